"""Files and data sets of small tasks."""

import functools

import numpy as np

from bert_jax.config.finetuning import TaskDataConfig
from bert_jax.tasks import glue


def write(directory, name: str, *lines: str, end: str = "\n"):
    file = directory / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes("".join(line.replace("  ", "\t") + end for line in lines).encode())
    return file


def load(task, directory, split="train", labels=None, **options):
    return glue.load(task, TaskDataConfig(dir=str(directory), **options), split, labels)


@functools.cache
def builder():
    """Return the class `tiny_corpus`, which the library knows from then on; its texts are set by `prepare`."""
    import tensorflow_datasets as tfds

    class TinyCorpus(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")
        texts: dict[str, list[str]]

        def _info(self):
            features = tfds.features.FeaturesDict({"text": tfds.features.Text(), "id": np.int64})
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, manager):
            return {split: self._generate_examples(texts) for split, texts in self.texts.items()}

        def _generate_examples(self, texts):
            yield from ((index, {"text": text, "id": index}) for index, text in enumerate(texts))

    return TinyCorpus


def prepare(directory, monkeypatch, texts: dict[str, list[str]], files: int = 1) -> None:
    """Write `tfds:tiny_corpus`, with the texts of each split in so many files, where the library looks for it."""
    import tensorflow_datasets as tfds

    monkeypatch.setenv("TFDS_DATA_DIR", str(directory))
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(directory))
    monkeypatch.setattr(builder(), "texts", texts, raising=False)
    builder()().download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=files))
