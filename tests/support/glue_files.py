"""Files and data sets of small tasks."""

import functools
from collections.abc import Callable

import numpy as np
import pytest

from bert_jax.config.tasks import TaskDataConfig
from bert_jax.tasks import glue


def write(directory, name: str, *lines: str, end: str = "\n"):
    file = directory / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes("".join(line.replace("  ", "\t") + end for line in lines).encode())
    return file


def load(task, directory, split="train", labels=None, **options):
    return glue.load(task, TaskDataConfig(dir=str(directory), **options), split, labels)


@functools.cache
def builder(called: str, features: Callable):
    """Return the class of a data set, which the library knows from then on; `write_dataset` sets its rows."""
    import tensorflow_datasets as tfds

    class Tiny(tfds.core.GeneratorBasedBuilder):
        name = called
        VERSION = tfds.core.Version("1.0.0")
        rows: dict[str, list[dict]]

        def _info(self):
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features(tfds.features)))

        def _split_generators(self, manager):
            return {split: self._generate_examples(rows) for split, rows in self.rows.items()}

        def _generate_examples(self, rows):
            yield from enumerate(rows)

    return Tiny


def write_dataset(directory, name: str, features: Callable, rows: dict[str, list[dict]], files: int = 1) -> None:
    """Write `tfds:NAME` with the rows of each split, in so many files; `features` gets the library's kinds of them."""
    tfds = pytest.importorskip("tensorflow_datasets")
    made = builder(name, features)
    made.rows = rows
    config = tfds.download.DownloadConfig(num_shards=files)
    made(data_dir=str(directory)).download_and_prepare(download_config=config)


def texts_of(features) -> dict:
    return {"text": features.Text(), "id": np.int64}


def prepare(directory, monkeypatch, texts: dict[str, list[str]], files: int = 1) -> None:
    """Write `tfds:tiny_corpus`, with the texts of each split in so many files, where the library looks for it."""
    tfds = pytest.importorskip("tensorflow_datasets")
    monkeypatch.setenv("TFDS_DATA_DIR", str(directory))
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(directory))
    rows = {split: [{"text": text, "id": index} for index, text in enumerate(all)] for split, all in texts.items()}
    write_dataset(directory, "tiny_corpus", texts_of, rows, files)
