"""Task examples out of TFDS, through a small builder of our own."""

import numpy as np
import pytest

from bert_jax.config.finetuning import TaskDataConfig, TextDataConfig
from bert_jax.errors import UserError
from bert_jax.tasks import glue, readers, text

builders = pytest.importorskip("tensorflow_datasets")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    class TinyTasks(builders.core.GeneratorBasedBuilder):
        VERSION = builders.core.Version("1.0.0")

        def _info(self):
            of = builders.features
            return builders.core.DatasetInfo(
                builder=self,
                features=of.FeaturesDict(
                    {
                        "sentence1": of.Text(),
                        "sentence2": of.Text(),
                        "score": np.float32,
                        "label": of.ClassLabel(names=["entailment", "not_entailment"]),
                        "tokens": of.Sequence(of.Text()),
                        "tags": of.Sequence(of.ClassLabel(names=["O", "B-PER"])),
                        "answers": of.Sequence({"text": of.Text(), "start": np.int32}),
                        "options": of.Sequence(of.Sequence(of.Text())),
                    }
                ),
            )

        def _split_generators(self, manager):
            return {"train": self._rows([0, 1, 0]), "validation": self._rows([1, 0]), "test": self._rows([-1, -1])}

        def _rows(self, labels):
            for key, label in enumerate(labels):
                yield (
                    key,
                    {
                        "sentence1": f"Über {key}",
                        "sentence2": "b",
                        "score": key / 2,
                        "label": label,
                        "tokens": ["New", "York"][: key + 1],
                        "tags": ["O", "B-PER"][: key + 1],
                        "answers": [{"text": "b", "start": 7}] * key,
                        "options": [["x", "y"], ["z"]][:key],
                    },
                )

        def _generate_examples(self):
            raise NotImplementedError

    path = tmp_path_factory.mktemp("tfds")
    TinyTasks(data_dir=str(path)).download_and_prepare()
    return str(path)


def test_examples_are_plain(directory):
    rows = sorted(readers.tfds_examples("tiny_tasks", "train", directory), key=lambda row: row["score"])
    assert rows[1] == {
        "sentence1": "Über 1",
        "sentence2": "b",
        "score": 0.5,
        "label": "not_entailment",
        "tokens": ["New", "York"],
        "tags": ["O", "B-PER"],
        "answers": {"text": ["b"], "start": [7]},
        "options": [["x", "y"]],
    }
    assert rows[0]["answers"] == {"text": [], "start": []} and rows[2]["options"] == [["x", "y"], ["z"]]
    assert type(rows[0]["score"]) is float and type(rows[1]["answers"]["start"][0]) is int
    assert [row["label"] for row in readers.tfds_examples("tiny_tasks", "test", directory)] == [None, None]


def test_glue_and_own_text_through_the_builder(directory):
    data = TextDataConfig(tfds="tiny_tasks", tfds_dir=directory)
    for read in (
        lambda split: glue.load("rte", data, split),
        lambda split: text.load("text", data, split, ("entailment", "not_entailment")),
    ):
        train, test = read("train"), read("test")
        assert sorted(zip(train.first, train.answers)) == [("Über 0", 0), ("Über 1", 1), ("Über 2", 0)]
        assert sorted(read("dev").answers) == [0, 1] and train.second == ["b"] * 3
        assert not test.has_answers and sorted(test.first) == ["Über 0", "Über 1"]
    numbers = TextDataConfig(tfds="tiny_tasks", tfds_dir=directory, label_column="score", regression=True)
    assert sorted(text.load("text", numbers, "train").answers) == [0, 0.5, 1]


def test_names_of_splits(directory):
    data = TaskDataConfig(train="train[:2]")
    assert [readers.tfds_split_name(data, split) for split in ("train", "dev", "test")] == [
        "train[:2]",
        "validation",
        "test",
    ]
    assert readers.tfds_split_name(data, "dev_mismatched") == "validation_mismatched"
    assert len(list(readers.tfds_examples("tiny_tasks", "train[:2]", directory))) == 2
    tiny = TaskDataConfig(tfds="tiny_tasks", tfds_dir=directory)
    assert glue.splits("rte", tiny) == text.splits("text", tiny) == ("train", "dev", "test")
    assert glue.splits("mnli", tiny) == ("train",)  # no validation_matched and so on
    with pytest.raises(UserError, match="valid"):
        readers.tfds_examples("tiny_tasks", "valid", directory)
    with pytest.raises(UserError, match="no_such_task"):
        readers.tfds_examples("no_such_task", "train", directory)
