"""Figures of GLUE's tasks, and the files in which predictions are submitted."""

import pathlib

import numpy as np
import pytest
from glue_files import load, write

from bert_jax.config.finetuning import TaskDataConfig
from bert_jax.errors import UserError
from bert_jax.tasks import glue, readers

QQP = "id  qid1  qid2  question1  question2  is_duplicate"


def test_scores_do_not_depend_on_the_order_of_the_outputs(tmp_path):
    for task, expected in (
        ("cola", {"matthews": 1 / np.sqrt(3), "accuracy": 0.75}),
        ("qqp", {"f1": 0.8, "accuracy": 0.75}),
    ):
        write(
            tmp_path,
            "train.tsv",
            *{
                "cola": ["x  1    a"] * 2 + ["x  0    a"] * 2,
                "qqp": [
                    "id  qid1  qid2  question1  question2  is_duplicate",
                    *["0  1  2  a  b  1"] * 2,
                    *["0  1  2  a  b  0"] * 2,
                ],
            }[task],
        )
        for order in (1, -1):  # the figures do not hang on the order of a model's outputs
            labels = glue.GLUE_TASKS[task].labels[::order]
            logits = [np.float32([0, 1])[::order]] * 3 + [np.float32([1, 0])[::order]]
            assert glue.score(load(task, tmp_path, labels=labels), None, logits) == pytest.approx(expected)
        assert next(iter(expected)) == glue.MAIN_METRIC[task]
        with pytest.raises(UserError, match="3 rows of logits for 4"):
            glue.score(load(task, tmp_path), None, logits[:3])


@pytest.mark.parametrize(
    ("task", "split", "file", "expected"),
    [
        ("cola", "test", "CoLA.tsv", ["1", "0"]),
        ("sst2", "test", "SST-2.tsv", ["1", "0"]),
        ("mrpc", "test", "MRPC.tsv", ["1", "0"]),
        ("qqp", "test", "QQP.tsv", ["1", "0"]),
        ("wnli", "test", "WNLI.tsv", ["1", "0"]),
        ("qnli", "test", "QNLI.tsv", ["not_entailment", "entailment"]),
        ("rte", "test", "RTE.tsv", ["not_entailment", "entailment"]),
        ("mnli", "test", "MNLI-m.tsv", ["neutral", "contradiction"]),
        ("ax", "test", "AX.tsv", ["neutral", "contradiction"]),
        ("mnli", "test_mismatched", "MNLI-mm.tsv", ["neutral", "contradiction"]),
        ("mnli", "dev", "MNLI-m-dev.tsv", ["neutral", "contradiction"]),
        ("stsb", "test", "STS-B.tsv", ["5.000", "0.000"]),
    ],
)
@pytest.mark.parametrize("order", [1, -1])
def test_a_submission_has_the_columns_names_and_order_of_the_benchmark(task, split, file, expected, order, tmp_path):
    """Columns, names and order of the benchmark, also from a model whose classes are in another order."""
    spec = glue.GLUE_TASKS[task]
    dev = split == "dev"
    write(
        tmp_path,
        glue.glue_file_names(task, split)[0],
        "\t".join(["index", *spec.columns, spec.label][: None if dev else -1]),
        *("\t".join([index, *["a"] * len(spec.columns), *["neutral"] * dev]) for index in "34"),
    )
    examples = load(task, tmp_path, split, spec.labels[::order])
    rows = {
        0: [np.float32(7.2), np.float32(-0.3)],
        2: [np.float32([0, 1]), np.float32([1, 0])],
        3: [np.float32([0, 1, 0]), np.float32([0, 1, 2])],
    }[len(spec.labels)]
    logits = [row[::order] if row.ndim else row for row in rows]
    written = glue.write_predictions(examples, None, logits, str(tmp_path / "out"), split)
    assert written == [str(tmp_path / "out" / file)]
    assert pathlib.Path(written[0]).read_text() == f"index\tprediction\n3\t{expected[0]}\n4\t{expected[1]}\n"


def test_a_submission_from_tfds_is_in_the_benchmarks_order(monkeypatch, tmp_path):
    """TFDS stores its examples in a shuffled order and keeps their numbers; the file has the rows in order."""
    order = np.random.default_rng(0).permutation(12).tolist()
    monkeypatch.setattr(
        readers, "tfds_examples", lambda *_: [{"sentence": f"{i}", "label": None, "idx": i} for i in order]
    )
    examples = glue.load("cola", TaskDataConfig(tfds="glue"), "test")
    assert examples.first == examples.index == [str(i) for i in range(12)]
    (file,) = glue.write_predictions(
        examples, None, [np.float32([i % 2, 0.5]) for i in range(12)], str(tmp_path), "test"
    )
    assert pathlib.Path(file).read_text().split("\n")[1:-1] == [f"{i}\t{1 - i % 2}" for i in range(12)]
