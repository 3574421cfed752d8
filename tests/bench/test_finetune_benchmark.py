"""`bert-jax bench finetune` from end to end on a tiny model, what it refuses, and the orders of the peer."""

import json
import pathlib
import re
import subprocess

import pytest

from bert_jax import cli
from bert_jax.bench import finetune_benchmark

QUICK = ("--rounds=2", "--turn_seconds=0", "--batch_size=16", "--options.max_length=16", "--texts=20")


@pytest.fixture
def bench(pretrained, monkeypatch):
    """Run `bert-jax bench finetune` on the tiny model."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")

    def run(task, *words) -> int:
        data = [f"--data.{split}={pretrained}/data/{split}.tsv" for split in ("train", "dev")]
        words = ("--data.text_column=text", "--data.label_column=label", *words)
        model = f"--init_from={pretrained}/pretrained"
        return cli._run(["bert-jax", "bench", "finetune", task, model, *data, *map(str, words)])

    return run


@pytest.mark.slow
def test_training_and_encoding_take_turns(bench, tmp_path, capsys):
    output = tmp_path / "finetune.json"
    assert bench("text", *QUICK, f"--output={output}") == 0
    found = json.loads(output.read_text())
    training, encoding = found["contestants"]
    assert (training["work"], encoding["work"]) == ("training", "encoding")
    assert encoding["facts"]["texts"] == 20 and max(training["facts"]["lengths"]) <= 16
    rate = lambda entry, unit: unit / (sum(turn["wall"] / turn["units"] for turn in entry["turns"]) / 2)
    assert found["training_sequences_per_second"] == pytest.approx(rate(training, 16 * 16))  # 16 steps of 16
    assert found["encoding_sequences_per_second"] == pytest.approx(rate(encoding, 20))
    assert found["processor"] in capsys.readouterr().out


@pytest.mark.parametrize(
    "words, message",
    [
        (("text", "--texts=0"), "texts=0 must be at least 1"),
        (("text", "--peer=torch", "--peer_python=nowhere"), "peer_python=nowhere cannot be started"),
        (("txt",), "perhaps you meant text"),
    ],
)
def test_what_cannot_be_measured_is_refused(bench, words, message, capsys):
    assert bench(*words) == 2
    assert re.search(message, capsys.readouterr().err.splitlines()[-1])


def test_transformers_takes_turns(bench, tmp_path, peer):
    output = tmp_path / "finetune.json"
    assert bench("text", *QUICK, "--peer=torch", f"--peer_python={peer}", f"--output={output}") == 0
    found = json.loads(output.read_text())
    for ours, theirs, work in zip(found["contestants"], found["contestants"][2:], finetune_benchmark.WORKS):
        assert ours["work"] == theirs["work"] == work
        assert found[f"ratio_{work}"] == theirs["ratio"]["wall"]["median"]
        tried = theirs["facts"]["seconds_per_unit_of_each_form"]
        assert theirs["facts"]["form"] == min(tried, key=tried.get) and len(tried) >= 3


ORDERS = """
import sys; sys.path.insert(0, sys.argv[1])
import numpy, torch_task
lengths = numpy.random.default_rng(1).integers(1, 99, 1000)
order = torch_task.grouped_by_length([range(n) for n in lengths], 4)
assert sorted(order) == list(range(1000))
for begin in range(0, 1000, 200):
    assert (numpy.diff(lengths[order[begin : begin + 200]]) <= 0).all()
assert (numpy.diff(lengths[order[:400]]) > 0).any()
batch = torch_task.padded([[5, 6], [7]], [[0, 1], [0]], "cpu")
assert batch["input_ids"].tolist() == [[5, 6], [7, 0]] and batch["attention_mask"].tolist() == [[1, 1], [1, 0]]
"""


def test_the_orders_and_batches_of_the_peer(peer):
    directory = pathlib.Path(finetune_benchmark.__file__).parent / "peer"
    subprocess.run([peer, "-c", ORDERS, str(directory)], check=True)
