"""Fine-tuning as a whole: learning, grids, exact resume, what is chosen and left behind, prediction, ensembles."""

import contextlib
import dataclasses
import functools
import io
import json
import pathlib

import jax
import numpy as np
import pytest
from modern_model import MODERN
from one_device import finetune, run_predict
from processes import EXHAUSTIVE
from small_finetuning import MODEL, assert_same_weights, run_config, sentences, weights, write

import bert_jax
from bert_jax.cli import _run
from bert_jax.config import HeadConfig, MeshConfig, OptimizerConfig
from bert_jax.config.finetuning import (
    PredictConfig,
    SentenceOptions,
    TaskDataConfig,
    TextDataConfig,
    check_finetune,
    task_defaults,
)
from bert_jax.devices import sharding
from bert_jax.errors import UserError
from bert_jax.finetuning import loop, prediction, run
from bert_jax.finetuning.programs import fitting_head, make_programs, with_fresh_layers
from bert_jax.formats.opening import open_stored
from bert_jax.parameters import Axis, Parameter, table
from bert_jax.tasks.task_data import read_task
from bert_jax.tokenization.tokenizer import load_tokenizer
from bert_jax.training.metrics import read_rows
from bert_jax.training.optimizers import frozen_encoder, scale_by_depth


def test_it_learns_and_tells_what_it_did(two_seeds):
    config, results = two_seeds
    work = pathlib.Path(config.workdir)
    assert results["metrics"]["accuracy"] > 0.9 and results["collapsed"] is None
    assert json.loads((work / "results.json").read_text()) == results
    assert (
        results["task"] == "text"
        and results["main_metric"] == "accuracy"
        and results["labels"] == ["garden", "harbour"]
    )
    assert results["hyperparameters"]["learning_rate"] == 2e-3 and results["versions"]["jax"] == jax.__version__
    assert [record["init_from_step"] for record in results["runs"]] == [0, 0]
    assert results["data"] == {"train": 320, "dev": 40, "test": 20} and results["tests"] == {}
    assert [record["run"] for record in results["runs"]] == [f"batch16_rate0.002_epochs2_seed{seed}" for seed in (0, 1)]
    accuracies = [record["metrics"]["accuracy"] for record in results["runs"]]
    (setting,) = results["settings"]
    np.testing.assert_allclose(
        [setting["mean"]["accuracy"], setting["standard_deviation"]["accuracy"]],
        [np.mean(accuracies), np.std(accuracies, ddof=1)],
        rtol=1e-12,
    )
    assert results["chosen"]["run"] == results["runs"][int(np.argmax(accuracies))]["run"]
    assert [entry["epoch"] for entry in results["runs"][0]["epochs"]] == [1, 2]
    assert_same_weights(work, work / "runs" / results["chosen"]["run"])
    assert (work / "predictions" / "test").is_dir() and not list(work.glob("runs/*/training"))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["bert", *(["modernbert", "bilstm"] if EXHAUSTIVE else [])])
def test_shared_rows_teach_the_same(pretrained, tmp_path, form):
    """Without dropout a run in shared rows ends with the weights of one in rows of their own, up to rounding.

    test_shared_task_rows has the scores and gradients of every form.
    """
    home = pretrained
    if form == "modernbert":
        home = write(tmp_path, dataclasses.replace(MODERN, max_position_embeddings=32, pair_head=False))
    results, features = {}, "weighted_all" if form == "bilstm" else ""
    for packing in (False, True):
        config = run_config(home, tmp_path / str(packing), epochs=1, dropout=0.0, head_dropout=0.0)
        config = dataclasses.replace(config, features=features, lstm_size=8)
        results[packing] = finetune(dataclasses.replace(config, packing=packing)).results
    assert results[True]["metrics"] == pytest.approx(results[False]["metrics"], abs=1e-4)
    ours, theirs = (weights(tmp_path / str(packing)) for packing in (True, False))
    for path, values in ours.items():
        np.testing.assert_allclose(
            values, theirs[path], rtol=0, atol=2e-4, err_msg=path
        )  # Adam divides by tiny numbers
    sizes = []
    for packing in (False, True):
        (metrics,) = (tmp_path / str(packing)).glob("runs/*/metrics.jsonl")
        rows = [row for row in read_rows(metrics) if "tokens_per_second" in row]
        tokens = [row["tokens_per_second"] / row["sequences_per_second"] for row in rows]  # of each sequence
        sizes.append((np.mean(tokens), np.mean([row["token_share"] for row in rows])))
    assert sizes[1][0] == pytest.approx(sizes[0][0], rel=1e-6)
    assert sizes[1][1] > sizes[0][1] / 0.9  # fewer places for the same tokens


@pytest.fixture(scope="module")
def cut(pretrained, tmp_path_factory):
    """A run from random weights that moves nothing, on texts half of which are cut: configuration, results, output."""
    tokenizer = load_tokenizer(pretrained / "pretrained/tokenizer")
    lines = {name: (pretrained / f"data/{name}.tsv").read_text().splitlines()[1:] for name in ("train", "dev", "test")}
    lengths = {name: [len(tokenizer.encode(line.split("\t")[0])) + 2 for line in rows] for name, rows in lines.items()}
    limit = int(np.median(lengths["train"]))
    config = run_config(
        pretrained,
        tmp_path_factory.mktemp("cut") / "work",
        epochs=1,
        options=SentenceOptions(max_length=limit),
        random_weights=True,
        learning_rate=1e-12,
    )
    with contextlib.redirect_stdout(io.StringIO()) as said:
        results = finetune(config).results
    return config, results, said.getvalue(), lengths


def test_what_is_cut_is_said_and_recorded(cut, pretrained, tmp_path, capsys):
    config, results, said, lengths = cut
    limit = config.options.max_length
    assert results["truncated"] == {name: np.mean(np.array(found) > limit) for name, found in lengths.items()}
    number = sum(length > limit for length in lengths["train"])
    share = f"({100 * number / 320:.1f} %)"
    assert (
        f"{number} of 320 train texts {share} are longer than options.max_length={limit} tokens (median {limit}) "
        f"and are cut; --options.max_length={max(lengths['train'])} keeps all of them\n"
    ) in said
    options = PredictConfig(input=str(pretrained / "data/train.tsv"), output=str(tmp_path / "out.tsv"))
    run_predict(config.workdir, options)
    assert f"{number} of 320 texts {share} are longer than the {limit} tokens that" in capsys.readouterr().out


@pytest.mark.slow
def test_without_a_dev_file_a_share_of_the_training_file_is_held_out(pretrained, tmp_path):
    """The record says so, and that the model reads single texts."""
    data = TextDataConfig(train=str(pretrained / "data/train.tsv"), dev_share=0.25)
    config = run_config(pretrained, tmp_path / "work", data=data, epochs=1)
    results = finetune(config).results
    texts = {line.split("\t")[0] for line in (pretrained / "data/train.tsv").read_text().splitlines()[1:]}
    assert results["config"]["data"]["dev_share"] == 0.25 and sum(results["data"].values()) == 320
    held_out = (tmp_path / "work/predictions/dev/predictions_dev.tsv").read_text().splitlines()[1:]
    lines = (pretrained / "data/train.tsv").read_text().splitlines()[1:]
    assert len({lines[int(row.split("\t")[0])].split("\t")[0] for row in held_out}) == round(0.25 * len(texts))
    options = PredictConfig(input=data.train, output=str(tmp_path / "out.tsv"), split="dev")
    run_predict(str(tmp_path / "work"), options)
    assert len((tmp_path / "out.tsv").read_text().splitlines()) == 321  # all of a file that is to be predicted
    with pytest.raises(UserError, match="text 0 of the list is a pair, but .* was fine-tuned on single texts"):
        bert_jax.load(tmp_path / "work").predict(("one text", "and another"))
    assert finetune(dataclasses.replace(config, seeds=2)).results["runs"][0] == results["runs"][0]
    with pytest.raises(UserError, match="features_fingerprint"):
        finetune(dataclasses.replace(config, data=dataclasses.replace(data, dev_share=0.5)))


@pytest.mark.parametrize(
    "select, accuracy, collapsed",
    [pytest.param("best", 1.0, None, marks=pytest.mark.slow), ("last", 0.5, "the same to everything")],
)
def test_collapsed_are_the_weights_that_count(pretrained, tmp_path, monkeypatch, select, accuracy, collapsed):
    found = iter(
        [({"accuracy": 1.0, "matthews": 1.0}, None), ({"accuracy": 0.5, "matthews": 0.0}, "the same to everything")]
    )
    monkeypatch.setattr(run, "evaluate", lambda *_: next(found))
    results = finetune(run_config(pretrained, tmp_path / "work", select=select)).results
    assert (results["metrics"]["accuracy"], results["collapsed"]) == (accuracy, collapsed)
    assert [entry["accuracy"] for entry in results["runs"][0]["epochs"]] == [1.0, 0.5]


@pytest.mark.slow
def test_in_sequence_the_encoder_is_taken_and_the_head_only_if_it_fits(two_seeds, pretrained, tmp_path, capsys):
    config, _ = two_seeds
    stored = open_stored(config.workdir)
    same, note = fitting_head(stored, stored.head)
    assert same is stored and "kept" in note
    data = tmp_path / "three"
    data.mkdir()
    for name, seed in (("train", 3), ("dev", 4), ("test", 4)):
        (data / f"{name}.tsv").write_text(sentences(40, seed, topics=3))
    second = dataclasses.replace(
        config,
        init_from=config.workdir,
        workdir=str(tmp_path / "work"),
        seeds=1,
        epochs=1,
        data=TaskDataConfig(dir=str(data)),
        learning_rate=1e-12,
    )
    results = finetune(second).results
    assert "labels (garden, harbour)" in capsys.readouterr().out and results["labels"] == [
        "garden",
        "harbour",
        "kitchen",
    ]
    assert results["tests"] == {"test": results["metrics"]}
    before, after = weights(config.workdir), weights(tmp_path / "work")
    assert after["head/kernel"].shape == (32, 3)
    for path in before:
        if not path.startswith("head"):
            np.testing.assert_allclose(after[path], before[path], atol=1e-9, err_msg=path)


def test_random_weights_take_only_shape_and_vocabulary(cut, pretrained):
    config, results, *_ = cut
    assert results["random_weights"]
    before, after = weights(pretrained / "pretrained"), weights(config.workdir)
    assert np.abs(after["embeddings/word/table"] - before["embeddings/word/table"]).mean() > 0.01


def test_stabilisers(pretrained):
    """Reinitialized layers, layer-wise rates, an encoder used for features only: effects on parameters and updates."""
    config = run_config(pretrained, "unused")
    model = dataclasses.replace(MODEL, vocab_size=40, num_layers=3)
    layer, hidden = Axis("layer", 3), Axis("hidden", 2)
    parameters = table(
        [
            Parameter("embeddings/t", (hidden,), embedding=True),
            Parameter("encoder/x", (layer, hidden)),
            Parameter("encoder/first", (Axis("first_layer", 1), hidden)),
            Parameter("pooler/kernel", (hidden,)),
            Parameter("head/kernel", (hidden,)),
        ]
    )
    old, new = (
        {
            "encoder": {"x": np.full((3, 2), value), "first": np.full((1, 2), value)},
            "pooler": {"kernel": np.full(2, value)},
            "head": {"kernel": np.full(2, value)},
        }
        for value in (1.0, 2.0)
    )
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:1])
    old, new = (jax.device_put(tree, sharding.replicated(mesh)) for tree in (old, new))
    mixed = with_fresh_layers(old, new, 1, parameters)
    assert mixed["encoder"]["x"][:, 0].tolist() == [1, 2, 2] and mixed["encoder"]["first"][:, 0].tolist() == [1]
    assert mixed["pooler"]["kernel"][0] == 2 and mixed["head"]["kernel"][0] == 1
    assert with_fresh_layers(old, new, 0, parameters)["encoder"]["first"][:, 0].tolist() == [2]
    with pytest.raises(UserError, match="has 3 layers"):
        make_programs(dataclasses.replace(config, reinitialize_layers=4), model, HeadConfig(labels=("a", "b")), mesh)

    ones = {
        "embeddings": {"t": np.ones(2, np.float32)},
        "encoder": {"x": np.ones((3, 2), np.float32), "first": np.ones((1, 2), np.float32)},
        "pooler": {"kernel": np.ones(2, np.float32)},
        "head": {"kernel": np.ones(2, np.float32)},
    }
    by_depth, features_only = scale_by_depth(0.5, 3, parameters), frozen_encoder(parameters)
    scaled, _ = by_depth.update(ones, by_depth.init(ones))
    assert scaled["embeddings"]["t"][0] == 0.125 and scaled["encoder"]["x"][:, 0].tolist() == [0.25, 0.5, 1]
    assert scaled["encoder"]["first"][:, 0].tolist() == [0.25]
    assert scaled["pooler"]["kernel"][0] == scaled["head"]["kernel"][0] == 1
    frozen, _ = features_only.update(ones, features_only.init(ones))
    assert {part: float(next(iter(tree.values())).sum()) for part, tree in frozen.items()} == {
        "embeddings": 0,
        "encoder": 0,
        "pooler": 0,
        "head": 2,
    }


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"init_from": ""}, "--init_from is missing"),
        ({"workdir": ""}, "--workdir is missing"),
        ({"data": TaskDataConfig()}, "--data.dir=DIR"),
        ({"epochs": 0}, "epochs=0 must be positive"),
        ({"layer_decay": 0.0}, "layer_decay=0.0"),
        ({"crf": True}, "crf=True belongs to task=ner, not to sst2; leave it out"),
        ({"task": "ner", "features": "last", "reinitialize_layers": 2}, "features=last leaves untrained"),
        ({"task": "ner", "train_encoder": True}, "give features=last too"),
        (
            {"task": "squad_v1", "packing": True},
            "packing=True belongs to task=cola or .* or text, not to squad_v1",
        ),
        ({"warmup_share": 1.5}, "warmup_share=1.5"),
        ({"seed": 2**31}, "seed="),
        ({"grid_epochs": ()}, "grid_epochs is empty"),
        ({"options": SentenceOptions(max_length=4)}, "options.max_length=4"),
        ({"task": "sst-2"}, "perhaps you meant sst2"),
        ({"optimizer": OptimizerConfig(epsilon=0)}, "optimizer.epsilon"),
    ],
)
def test_options_that_cannot_be_are_named(changes, message):
    config = dataclasses.replace(task_defaults("sst2"), init_from="a", workdir="b", data=TaskDataConfig(dir="c"))
    assert check_finetune(config) is config
    with pytest.raises(UserError, match=message):
        check_finetune(dataclasses.replace(config, **changes))


def test_a_model_with_one_segment_reads_no_pairs(pretrained, tmp_path):
    for name in ("train", "dev"):
        (tmp_path / f"{name}.tsv").write_text("text\ttext_pair\tlabel\nthe sun\tthe sea\ta\nthe sea\tthe sun\tb\n")
    config = run_config(pretrained, tmp_path / "work", data=TextDataConfig(dir=str(tmp_path)))
    tokenizer = load_tokenizer(pretrained / "vocab.txt")
    with pytest.raises(UserError, match="text has pairs of texts, but .*pretrained has one segment"):
        read_task(config, dataclasses.replace(MODEL, type_vocab_size=1), tokenizer)
    assert len(read_task(config, MODEL, tokenizer).train.examples) == 2
    single = run_config(pretrained, tmp_path / "work")
    assert len(read_task(single, dataclasses.replace(MODEL, type_vocab_size=1), tokenizer).train.examples) == 320


def test_command_line(pretrained, tmp_path, monkeypatch, capsys):
    """A bare --grid, lists by commas, and predict; mistakes are one line each."""
    first = {"devices": jax.devices()[:1]}
    monkeypatch.setattr(loop, "finetune", functools.partial(loop.finetune, **first))
    monkeypatch.setattr(prediction, "run_predict", functools.partial(prediction.run_predict, **first))
    base = [
        "bert-jax",
        "finetune",
        "text",
        f"--init_from={pretrained / 'pretrained'}",
        f"--data.dir={pretrained / 'data'}",
        "--options.max_length=16",
    ]
    grid = ["--grid", "--grid_batch_sizes=16", "--grid_learning_rates=5e-3", "--grid_epochs=1"]
    assert _run([*base, f"--workdir={tmp_path / 'w'}", *grid]) == 0
    assert (tmp_path / "w" / "results.json").exists()
    assert (
        _run(
            [
                "bert-jax",
                "predict",
                str(tmp_path / "w"),
                f"--input={pretrained / 'data/test.tsv'}",
                f"--output={tmp_path / 'p.tsv'}",
            ]
        )
        == 0
    )
    assert (tmp_path / "p.tsv").exists()
    capsys.readouterr()
    for words, message in (
        ([*base, "--workdir=x", "--max_length=4"], "--options.max_length"),
        (["bert-jax", "finetune", "sst3"], "sst2"),
        (["bert-jax", "finetune"], "TASK comes first"),
        (["bert-jax", "predict", str(tmp_path / "w")], "--input"),
    ):
        assert _run(words) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
