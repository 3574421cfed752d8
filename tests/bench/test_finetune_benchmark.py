"""`bert-jax bench finetune` and `load` from end to end on tiny models, what they refuse, and what the peer gets."""

import dataclasses
import json
import math
import pathlib
import re
import sys
import types

import jax
import numpy as np
import pytest
from command_lines import status
from huggingface_directory import directory
from processes import UNOPTIMIZED
from small_pretraining import DOES_NOT_FIT, full_device

from bert_jax import cli, load
from bert_jax.config.commands import FinetuneBenchConfig, LoadBenchConfig
from bert_jax.config.finetuning import LoraConfig, task_defaults
from bert_jax.config.heads import SingleVector, TokenVectors
from bert_jax.config.tasks import SentenceOptions, TextDataConfig, VectorDataConfig, VectorOptions
from bert_jax.config.vectors import Angle, Cosent, InfoNce
from bert_jax.errors import UserError
from bert_jax.formats.opening import open_stored
from bert_jax.tasks.task_data import read_task
from bert_jax.tools.bench import contestants, finetuning
from bert_jax.tools.bench.turns import Turn, peer_program

QUICK = ("--rounds=2", "--turn_seconds=0", "--batch_size=16", "--options.max_length=16", "--texts=20")


@pytest.fixture
def bench(pretrained, monkeypatch):
    """Run `bert-jax bench finetune` on the tiny model."""
    monkeypatch.setenv("XLA_FLAGS", UNOPTIMIZED)

    def run(task, *words) -> int:
        data = [f"--data.{split}={pretrained}/data/{split}.tsv" for split in ("train", "dev")]
        words = ("--data.text_column=text", "--data.label_column=label", *words)
        model = f"--init_from={pretrained}/pretrained"
        return cli._run(["bert-jax", "bench", "finetune", task, model, *data, *map(str, words)])

    return run


@pytest.fixture
def scored_pairs(tmp_path) -> str:
    """The path of pairs with scores."""
    rows = ["sentence1\tsentence2\tscore", "a cat\ta dog\t4.5", "the bird\ta house\t0.5", "a mat\tthe cat\t2.5"]
    (tmp_path / "scored.tsv").write_text("\n".join(rows) + "\n")
    return str(tmp_path / "scored.tsv")


@pytest.mark.slow
def test_training_and_encoding_take_turns(bench, tmp_path, capsys):
    output = tmp_path / "finetune.json"
    assert bench("text", *QUICK, "--packing=off", f"--output={output}") == 0
    found = json.loads(output.read_text())
    training, encoding, embedding = found["contestants"]
    assert [entry["work"] for entry in found["contestants"]] == ["training", "encoding", "embedding"]
    assert (
        encoding["facts"]["texts"] == embedding["facts"]["texts"] == 20
        and max(length for _, length in training["facts"]["shapes"]) <= 16
    )
    rate = lambda entry, unit: unit / (sum(turn["wall"] / turn["units"] for turn in entry["turns"]) / 2)
    assert found["training_sequences_per_second"] == pytest.approx(rate(training, 16 * 16))  # 16 steps of 16
    assert found["encoding_sequences_per_second"] == pytest.approx(rate(encoding, 20))
    assert found["embedding_sequences_per_second"] == pytest.approx(rate(embedding, 20))
    both = sum(turn["units"] for turn in encoding["turns"]) * 20 / sum(turn["cpu"] for turn in encoding["turns"])
    assert encoding["total_sequences_per_cpu_second"] == pytest.approx(both)
    assert found["processor"] in capsys.readouterr().out


@pytest.mark.parametrize(
    "words, message",
    [
        (("text", "--texts=0"), "texts=0 must be at least 1"),
        (("text", "--peer=torch", "--peer_python=nowhere"), "peer_python=nowhere cannot be started"),
        (("txt",), "perhaps you meant text"),
        (("text", "--gradual_unfreezing=True"), "gradual_unfreezing=True is no part of the steps that are measured"),
    ],
)
def test_what_cannot_be_measured_is_refused(bench, words, message, pythons, capsys):
    pythons()
    assert bench(*words) == 2
    assert re.search(message, capsys.readouterr().err.splitlines()[-1])


def test_a_peer_does_the_work_of_ours():
    alone = FinetuneBenchConfig(task="text", lora=LoraConfig(rank=2))
    finetuning._check_measurable(alone)
    with pytest.raises(UserError, match="lora.rank=2 is no part of those of --peer=torch; leave it out"):
        finetuning._check_measurable(dataclasses.replace(alone, peer="torch"))


def test_sentence_transformers_does_the_work_of_ours():
    ours = FinetuneBenchConfig.of(task_defaults("vectors"))
    assert finetuning.works_of(ours) == ("training", "embedding")
    for changed, said in (
        ({"options": VectorOptions(loss=Angle())}, "options.loss.name=angle"),
        ({"options": VectorOptions(loss=InfoNce(symmetric=True))}, "options.loss.symmetric=True"),
        ({"options": VectorOptions(dims=(8, 4))}, "options.dims=8,4"),
        ({"micro_batches": 2}, "micro_batches=2"),
    ):
        finetuning._check_measurable(dataclasses.replace(ours, **changed))
        with pytest.raises(UserError, match=f"^{said} is no part of those of --peer=torch; leave it out"):
            finetuning._check_measurable(dataclasses.replace(ours, peer="torch", **changed))
    finetuning._need_single(dataclasses.replace(ours, options=VectorOptions(form=SingleVector())))
    with pytest.raises(UserError, match="options.form.name=tokens: only single vectors are measured"):
        finetuning._need_single(dataclasses.replace(ours, options=VectorOptions(form=TokenVectors())))


@pytest.mark.parametrize(
    "function, said",
    [
        ("programs.first_state", f"the state {DOES_NOT_FIT}; what helps: --mesh.data=1 --mesh.fsdp=8"),
        ("run.placed_batch", f"the step {DOES_NOT_FIT}; what helps: --compute.remat=sel"),
    ],
)
def test_training_that_does_not_fit_gets_advice(function, said, pretrained, monkeypatch):
    monkeypatch.setattr(f"bert_jax.finetuning.{function}", full_device)
    config = dataclasses.replace(
        task_defaults("text"),
        init_from=f"{pretrained}/pretrained",
        data=TextDataConfig(dir=f"{pretrained}/data"),
        options=SentenceOptions(max_length=16),
        batch_size=16,
    )
    with pytest.raises(UserError, match=f"^{said}"):
        contestants.training(config, {"steps_per_unit": 1})


def test_the_peer_gets_the_sequences_and_weights_of_ours(pretrained, tmp_path):
    data = TextDataConfig(dir=f"{pretrained}/data")
    config = dataclasses.replace(
        task_defaults("text"),
        init_from=f"{pretrained}/pretrained",
        data=data,
        options=SentenceOptions(max_length=32),
        batch_size=16,
    )
    options = dataclasses.replace(FinetuneBenchConfig.of(config), peer_python="a python")
    stored = open_stored(options.init_from)
    read = read_task(options.run, stored.model, stored.need_tokenizer())
    finetuning.write_for_peer(stored, read, tmp_path)
    (tmp_path / "texts.json").write_text(json.dumps(["one", "two"]))
    peers = finetuning.peer_contestants(options, read.head.outputs, {"device": "a processor (cpu)"}, tmp_path)
    lines = (pretrained / "data/train.tsv").read_text().splitlines()[1:]
    texts, labels = zip(*(line.split("\t") for line in lines), strict=True)
    tokenizer = stored.need_tokenizer()
    expected = [[tokenizer.cls_id, *tokenizer.encode(text), tokenizer.sep_id] for text in texts]
    for one, work in zip(peers, finetuning.WORKS, strict=True):
        assert one.is_peer and one.command == peer_program("a python", "finetune")
        job = json.loads(json.dumps(one.job))  # as it reaches a process
        assert (job["work"], job["outputs"], job["max_length"], job["device"]) == (work, 2, 32, "cpu")
        assert job["batch_size"] == 16 and len(json.loads(pathlib.Path(job["texts"]).read_text())) == 2
        model = json.loads(pathlib.Path(job["model"], "config.json").read_text())
        assert model["num_hidden_layers"] == stored.model.num_layers
        with np.load(job["sequences"], allow_pickle=False) as sequences:
            ids = np.split(sequences["input_ids"], np.cumsum(sequences["lengths"])[:-1])
            assert [row.tolist() for row in ids] == expected
            assert sequences["labels"].tolist() == [sorted(set(labels)).index(label) for label in labels]


def test_sentence_transformers_gets_the_texts_of_ours(pretrained, scored_pairs, tmp_path):
    config = dataclasses.replace(
        task_defaults("vectors"),
        init_from=f"{pretrained}/pretrained",
        data=VectorDataConfig(train=scored_pairs, dev=scored_pairs),
        options=VectorOptions(max_length=16, pooling="cls", normalize=True, loss=Cosent(scale=7.0)),
    )
    options = dataclasses.replace(FinetuneBenchConfig.of(config), peer_python="a python", texts=3)
    stored = open_stored(options.init_from)
    read = read_task(options.run, stored.model, stored.need_tokenizer())
    finetuning.write_for_peer(stored, read, tmp_path)
    rows = [line.split("\t") for line in pathlib.Path(scored_pairs).read_text().splitlines()[1:]]
    assert finetuning._texts(options, read) == [*rows[0][:2], rows[1][0]]
    peers = finetuning.peer_contestants(options, 0, {"device": "a processor (cpu)"}, tmp_path)
    assert [one.name for one in peers] == ["sentence-transformers, training", "sentence-transformers, embedding"]
    made = json.loads(json.dumps(peers[0].job))["vectors"]
    assert (made["pooling"], made["normalize"]) == ("cls", True)
    assert (made["loss"]["name"], made["loss"]["scale"]) == ("cosent", 7)
    tokenizer = stored.need_tokenizer()
    expected = [[tokenizer.cls_id, *tokenizer.encode(text), tokenizer.sep_id] for *texts, _ in rows for text in texts]
    with np.load(tmp_path / "sequences.npz", allow_pickle=False) as sequences:
        ids = np.split(sequences["input_ids"], np.cumsum(sequences["lengths"])[:-1])
        assert [row.tolist() for row in ids] == [ids[:16] for ids in expected]
        assert sequences["labels"].tolist() == [float(score) for *_, score in rows]


@pytest.mark.slow
def test_sentence_transformers_takes_turns(pretrained, scored_pairs, tmp_path, peer):
    output = tmp_path / "vectors.json"
    words = ("--options.loss.name=cosent", "--batch_size=2", "--peer=torch", f"--peer_python={peer}", *QUICK[:2])
    data = (f"--data.train={scored_pairs}", f"--data.dev={scored_pairs}", "--options.max_length=16", "--texts=4")
    model = f"--init_from={pretrained}/pretrained"
    assert status("bench", "finetune", "vectors", model, *data, *words, f"--output={output}") == 0
    found = json.loads(output.read_text())
    for entry, work in zip(found["contestants"][2:], finetuning.VECTOR_WORKS, strict=True):
        assert found[f"ratio_{work}"] == entry["ratio"]["wall"]["median"]
        assert len(entry["facts"]["seconds_of_first_share_of_each_form"]) == {"training": 4, "embedding": 3}[work]
        assert "sentence_transformers" in entry["facts"]["versions"]


def test_transformers_takes_turns(bench, tmp_path, peer):
    output = tmp_path / "finetune.json"
    assert bench("text", *QUICK, "--peer=torch", f"--peer_python={peer}", f"--output={output}") == 0
    found = json.loads(output.read_text())
    for ours, theirs, work in zip(
        found["contestants"], found["contestants"][len(finetuning.WORKS) :], finetuning.WORKS
    ):
        assert ours["work"] == theirs["work"] == work
        assert found[f"ratio_{work}"] == theirs["ratio"]["wall"]["median"]
        assert found[f"total_cpu_ratio_{work}"] == theirs["ratio"]["total_cpu"]
        tried = theirs["facts"]["seconds_per_unit_of_each_form"]
        first = theirs["facts"]["seconds_of_first_share_of_each_form"]
        assert (
            theirs["facts"]["form"] == min(tried, key=tried.get)
            and len(first) >= {"training": 4, "encoding": 3, "embedding": 2}[work]
        )
        assert set(tried) == {name for name in first if first[name] < 3 * min(first.values())}


def test_a_peer_without_sentence_transformers_is_refused_in_one_line(torch_contestants, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(torch_contestants.Refusal, match="^this environment has no sentence-transformers"):
        torch_contestants.sentence_transformers()


def test_the_orders_of_the_peer(torch_contestants):
    lengths = np.random.default_rng(1).integers(1, 99, 1000)
    order = torch_contestants.grouped_by_length([range(n) for n in lengths], 4)
    assert sorted(order) == list(range(1000))
    for begin in range(0, 1000, 200):
        assert (np.diff(lengths[order[begin : begin + 200]]) <= 0).all()
    assert (np.diff(lengths[order[:400]]) > 0).any()


def test_the_program_that_loads_reads_every_parameter(tmp_path, capsys):
    model = directory(tmp_path / "model")
    contestants.main(["load", model])
    found = json.loads(capsys.readouterr().out)
    total = sum(float(np.sum(leaf)) for leaf in jax.tree.leaves(load(model).params))
    assert found["sum"] == pytest.approx(total, rel=1e-6)
    assert 0 < found["load"] <= found["load_and_read"] < found["from_the_start"] and found["imports"] > 0


def test_what_cannot_be_loaded_ends_the_program_with_one_line(tmp_path, monkeypatch, capsys):
    def no_device():
        raise UserError("JAX finds no such device")

    monkeypatch.setattr("bert_jax.devices.hardware.all_devices", no_device)
    with pytest.raises(SystemExit, match="^JAX finds no such device$"):
        contestants.main(["load", directory(tmp_path / "model")])
    assert status("bench", "load", "nowhere") == 2
    captured = capsys.readouterr()
    assert "nowhere" in captured.err.splitlines()[-1] and not captured.out


@pytest.mark.slow
def test_loading_is_measured_in_new_processes(tmp_path):
    model = directory(tmp_path / "model")
    output = tmp_path / "load.json"
    assert status("bench", "load", model, "--rounds=2", f"--output={output}") == 0
    (ours,) = json.loads(output.read_text())["contestants"]
    for turn in ours["turns"]:
        parts = turn["found"]
        assert (
            turn["units"] == 1 and 0 < parts["load"] <= parts["load_and_read"] < parts["from_the_start"] < turn["wall"]
        )
        assert turn["cpu"] > 0.1  # that of the process that was started
        assert math.isfinite(parts["sum"])


def test_transformers_loads_the_same_weights(tmp_path, peer):
    model, output = directory(tmp_path / "model"), tmp_path / "load.json"
    assert (
        status("bench", "load", model, "--rounds=2", "--peer=torch", f"--peer_python={peer}", f"--output={output}") == 0
    )
    found = json.loads(output.read_text())["contestants"]
    sums = [entry["turns"][0]["found"]["sum"] for entry in found]
    assert sums[::2] == pytest.approx(sums[1::2], rel=1e-3)  # all parameters, and a first vector


def test_who_answers_is_compared_with_who_answers():
    turn = lambda wall, **parts: Turn(1, wall, wall, {"imports": 1.0, "load": 2.0, "peak_memory_bytes": 2**20, **parts})
    names = ("bert_jax, m", "transformers", "bert_jax, a first vector", "sentence-transformers, a first vector")
    read, answered = {"load_and_read": 2.0, "from_the_start": 3.0}, {"first_answer": 1.0, "from_the_start": 4.0}
    played = [[turn(wall, **parts)] for wall, parts in ((4.0, read), (8.0, read), (5.0, answered), (15.0, answered))]
    waiting = [types.SimpleNamespace(name=name) for name in names]
    report = finetuning.load_report(LoadBenchConfig(), waiting, played, {})
    assert report.values["ratio_to_transformers"] == 2 and report.values["ratio_to_sentence_transformers"] == 3
    cells = [[cell(entry) for cell in report.columns.values()] for entry in report.values["contestants"]]
    assert [row[3:5] for row in cells] == [["2.00", ""], ["2.00", ""], ["", "1.00"], ["", "1.00"]]
    assert [row[-2].split(" ")[0] for row in cells] == ["", "2.00", "", "3.00"]
