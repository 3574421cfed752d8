"""Fine-tuning: what is learned, torch's steps, programs and predictions.

The live test runs where torch and transformers are, or with the Python that BERT_JAX_PEER names.
"""

import contextlib
import dataclasses
import functools
import importlib.util
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest
import random_bert
from command_lines import succeed
from modern_models import MODERN
from oracles import make_finetuning_oracle as oracle
from pretrained_model import CONFIG, random_params
from processes import EXHAUSTIVE
from small_finetuning import MODEL, assert_same_weights, run_config, sentences, task_config, weights, write
from small_pretraining import SCANNED, finetune, run_predict
from task_models import HEADS, LABELS, ROWS, make_batch, write_model
from task_models import MODEL as PROGRAMS_MODEL

import bert_jax
from bert_jax.cli import _run
from bert_jax.config import ComputeConfig, HeadConfig, MeshConfig, ModelConfig, OptimizerConfig, ScheduleConfig
from bert_jax.config.finetuning import FinetuneConfig, InputFormConfig, PredictConfig, check_finetune, task_defaults
from bert_jax.config.tasks import SentenceOptions, SquadOptions, TaskDataConfig, TextDataConfig
from bert_jax.console import load_config
from bert_jax.data import sequences
from bert_jax.data.sequences import Features, SharedRowBatches
from bert_jax.devices import sharding
from bert_jax.errors import UserError
from bert_jax.finetuning import loop, prediction, programs, run
from bert_jax.finetuning.plan import Run, learning_rates
from bert_jax.finetuning.programs import fitting_head, make_programs, with_fresh_layers
from bert_jax.finetuning.run import training_batches, with_packing
from bert_jax.formats.opening import open_stored
from bert_jax.models.task import BertForTask
from bert_jax.objectives.distillation import Teacher
from bert_jax.objectives.tasks import PLAIN, TaskLoss, TaskObjective
from bert_jax.parameters import Axis, Parameter, table
from bert_jax.tasks.task_data import read_task
from bert_jax.tokenization.tokenizer import load_tokenizer
from bert_jax.training.metrics import read_rows
from bert_jax.training.optimizers import frozen_encoder, optimizer, scale_by_depth
from bert_jax.training.state import TrainState, abstract_state, state_shardings
from bert_jax.training.step import make_shared_train_step


def test_it_learns_and_tells_what_it_did(two_seeds):
    config, results = two_seeds
    work = pathlib.Path(config.workdir)
    assert results["metrics"]["accuracy"] > 0.9 and results["collapsed"] is None
    assert json.loads((work / "results.json").read_text()) == results
    assert results["task"] == "text" and results["main_metric"] == "accuracy"
    assert results["labels"] == ["garden", "harbour"]
    assert results["hyperparameters"]["learning_rate"] == 2e-3 and results["versions"]["jax"] == jax.__version__
    assert [record["init_from_step"] for record in results["runs"]] == [0, 0]
    assert results["data"] == {"train": 320, "dev": 40, "test": 20} and results["tests"] == {}
    assert [record["run"] for record in results["runs"]] == [f"batch16_rate0.002_epochs2_seed{seed}" for seed in (0, 1)]
    accuracies = [record["metrics"]["accuracy"] for record in results["runs"]]
    (setting,) = results["settings"]
    found = setting["mean"]["accuracy"], setting["standard_deviation"]["accuracy"]
    assert found == pytest.approx((np.mean(accuracies), np.std(accuracies, ddof=1)), rel=1e-12)
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
    for packing in ("off", "on"):
        config = run_config(home, tmp_path / packing, epochs=1, dropout=0.0, head_dropout=0.0)
        config = dataclasses.replace(config, features=features, lstm_size=8)
        results[packing] = finetune(dataclasses.replace(config, packing=packing)).results
    assert results["on"]["metrics"] == pytest.approx(results["off"]["metrics"], abs=1e-4)
    ours, theirs = (weights(tmp_path / packing) for packing in ("on", "off"))
    for path, values in ours.items():
        # Adam divides by tiny numbers.
        np.testing.assert_allclose(values, theirs[path], rtol=0, atol=2e-4, err_msg=path)
    sizes = []
    for packing in ("off", "on"):
        (metrics,) = (tmp_path / packing).glob("runs/*/metrics.jsonl")
        rows = [row for row in read_rows(metrics) if "tokens_per_second" in row]
        tokens = [row["tokens_per_second"] / row["sequences_per_second"] for row in rows]  # of each sequence
        sizes.append((np.mean(tokens), np.mean([row["token_share"] for row in rows])))
    assert sizes[1][0] == pytest.approx(sizes[0][0], rel=1e-6)
    assert sizes[1][1] > sizes[0][1] / 0.9  # fewer places for the same tokens


@pytest.fixture(scope="module")
def cut(pretrained, tmp_path_factory):
    """A run from random weights that moves nothing, on texts in shared rows, half of which are cut.

    Its configuration, results and output.
    """
    tokenizer = load_tokenizer(pretrained / "pretrained/tokenizer")
    lines = {name: (pretrained / f"data/{name}.tsv").read_text().splitlines()[1:] for name in ("train", "dev", "test")}
    lengths = {name: [len(tokenizer.encode(line.split("\t")[0])) + 2 for line in rows] for name, rows in lines.items()}
    limit = int(np.median(lengths["train"]))
    changes = {"epochs": 1, "random_weights": True, "learning_rate": 1e-12, "packing": "on"}
    work = tmp_path_factory.mktemp("cut") / "work"
    config = run_config(pretrained, work, options=SentenceOptions(max_length=limit), **changes)
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
    good, bad = {"accuracy": 1.0, "matthews": 1.0}, {"accuracy": 0.5, "matthews": 0.0}
    found = iter([(good, None), (bad, "the same to everything")])
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
    changes = {"seeds": 1, "epochs": 1, "data": TaskDataConfig(dir=str(data)), "learning_rate": 1e-12}
    places = {"init_from": config.workdir, "workdir": str(tmp_path / "work")}
    second = dataclasses.replace(config, **places, **changes)
    results = finetune(second).results
    assert "labels (garden, harbour)" in capsys.readouterr().out
    assert results["labels"] == ["garden", "harbour", "kitchen"]
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

    def filled(value: float) -> dict:
        encoder = {"x": np.full((3, 2), value, np.float32), "first": np.full((1, 2), value, np.float32)}
        others = {part: {"kernel": np.full(2, value, np.float32)} for part in ("pooler", "head")}
        return {"embeddings": {"t": np.full(2, value, np.float32)}, "encoder": encoder, **others}

    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:1])
    old, new = (jax.device_put(filled(value), sharding.replicated(mesh)) for value in (1, 2))
    mixed = with_fresh_layers(old, new, 1, parameters)
    assert mixed["encoder"]["x"][:, 0].tolist() == [1, 2, 2] and mixed["encoder"]["first"][:, 0].tolist() == [1]
    assert mixed["pooler"]["kernel"][0] == 2 and mixed["head"]["kernel"][0] == 1
    assert with_fresh_layers(old, new, 0, parameters)["encoder"]["first"][:, 0].tolist() == [2]
    with pytest.raises(UserError, match="has 3 layers"):
        make_programs(dataclasses.replace(config, reinitialize_layers=4), model, HeadConfig(labels=("a", "b")), mesh)

    ones = filled(1)
    by_depth, features_only = scale_by_depth(0.5, 3, parameters), frozen_encoder(parameters)
    scaled, _ = by_depth.update(ones, by_depth.init(ones))
    assert scaled["embeddings"]["t"][0] == 0.125 and scaled["encoder"]["x"][:, 0].tolist() == [0.25, 0.5, 1]
    assert scaled["encoder"]["first"][:, 0].tolist() == [0.25]
    assert scaled["pooler"]["kernel"][0] == scaled["head"]["kernel"][0] == 1
    frozen, _ = features_only.update(ones, features_only.init(ones))
    expected = {"embeddings": 0, "encoder": 0, "pooler": 0, "head": 2}
    assert {part: float(next(iter(tree.values())).sum()) for part, tree in frozen.items()} == expected


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"init_from": ""}, "--init_from is missing"),
        ({"workdir": ""}, "--workdir is missing"),
        ({"data": TaskDataConfig()}, "--data.dir=DIR"),
        ({"epochs": 0}, "epochs=0 must be positive"),
        ({"layer_decay": 0.0}, "layer_decay=0.0"),
        ({"task": "ner"}, r"data is TaskDataConfig\(\), but task=ner has TaggingDataConfig\(\); give that"),
        ({"crf": True}, "crf=True belongs to task=ner, not to sst2; leave it out"),
        ({"features": "last", "reinitialize_layers": 2}, "features=last leaves untrained"),
        (
            {"features": "last", "layer_decay": 0.9},
            "features=last freezes the encoder .*, so layer_decay=0.9 has nothing",
        ),
        (
            {"features": "last", "dropout": 0.2},
            "features=last freezes the encoder .*, so dropout=0.2 has nothing to do",
        ),
        ({"grid": True, "batch_size": 8}, "batch_size=8 has no effect with grid=True; give it in grid_batch_sizes"),
        ({"grid": True, "epochs": 7}, "epochs=7 has no effect with grid=True; give it in grid_epochs"),
        ({"data": TaskDataConfig(dir="c", tfds="glue")}, "data.dir=c has no effect with data.tfds=glue; leave one of"),
        ({"train_encoder": True}, "give features=last too"),
        (
            {"task": "squad_v1", "options": SquadOptions(), "packing": "on"},
            "packing=on belongs to task=cola or .* or vectors or ranking, not to squad_v1",
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
    trained = dataclasses.replace(config, features="last", train_encoder=True, layer_decay=0.9, dropout=0.2)
    assert check_finetune(trained) is trained
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
    base = ["bert-jax", "finetune", "text", f"--init_from={pretrained / 'pretrained'}"]
    base += [f"--data.dir={pretrained / 'data'}", "--options.max_length=16"]
    base += ["--compute.layers=scan", "--bucket_window=1", "--packing=off"]  # the step of the runs of other tests
    grid = ["--grid", "--grid_batch_sizes=16", "--grid_learning_rates=5e-3", "--grid_epochs=1"]
    assert _run([*base, f"--workdir={tmp_path / 'w'}", *grid]) == 0
    assert (tmp_path / "w" / "results.json").exists()
    succeed("predict", tmp_path / "w", f"--input={pretrained / 'data/test.tsv'}", f"--output={tmp_path / 'p.tsv'}")
    assert (tmp_path / "p.tsv").exists()
    assert "\nleft out: mlm, next_sentence\n" in capsys.readouterr().out  # of what it starts from
    for words, message in (
        ([*base, "--workdir=x", "--max_length=4"], "--options.max_length"),
        (["bert-jax", "finetune", "sst3"], "sst2"),
        (["bert-jax", "finetune"], "TASK comes first"),
        (["bert-jax", "predict", str(tmp_path / "w")], "--input"),
    ):
        assert _run(words) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1


def train(kind: str, micro_batches: int, loss: TaskLoss = PLAIN) -> tuple[list[dict], dict]:
    compute = dataclasses.replace(SCANNED, dtype="float32")
    config = FinetuneConfig(micro_batches=micro_batches, dropout=0.0, compute=compute)
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:2])
    programs = make_programs(config, PROGRAMS_MODEL, HEADS[kind], mesh, loss=loss)
    state, history = programs.fresh_state(np.uint32(0)), []
    rate, seed = (sharding.on_every_device(mesh, value) for value in (np.float32(1e-3), np.uint32(0)))
    for step in range(3):
        batch = sharding.to_global(mesh, make_batch(kind, step), ROWS)
        state, values = programs.train_step(state, batch, rate, seed)
        history.append({name: float(value) for name, value in values.items()})
    return history, jax.device_get(state.params)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, loss",
    [
        ("classification", PLAIN),
        ("tagging", PLAIN),
        ("classification", TaskLoss((0.5, 2.0, 3.0), label_smoothing=0.1)),  # parts of very different weights
        ("multilabel", TaskLoss((0.5, 2.0, 3.0), focal_gamma=1.5)),
    ],
)
def test_micro_batches_give_the_losses_of_the_whole_batch(kind, loss):
    (whole, params), (parts, parts_params) = train(kind, 1, loss), train(kind, 4, loss)
    for found, expected in zip(parts, whole, strict=True):
        assert found == pytest.approx(expected, rel=1e-5)
    assert ("accuracy" in whole[0]) == (kind != "tagging")
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), parts_params, params)


@pytest.mark.parametrize("dropout, expected", [(None, (0.1, 0.5)), (0.0, (0.0, 0.0)), (0.3, (0.3, 0.3))])
def test_dropout_is_that_of_recurrent_layers_too(dropout, expected):
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:1])
    config, head = FinetuneConfig(dropout=dropout), HEADS["classification"]
    recurrent = load_config("ulmfit_mini").model
    recurrent = dataclasses.replace(recurrent, vocab_size=41, hidden_dropout=0.1)
    found = make_programs(config, recurrent, head, mesh).model.config
    assert (found.hidden_dropout, found.recurrent_dropout) == expected
    attends = make_programs(config, PROGRAMS_MODEL, head, mesh).model.config
    rate = PROGRAMS_MODEL.attention_dropout if dropout is None else dropout
    assert attends.attention_dropout == rate and not hasattr(attends, "recurrent_dropout")


@pytest.mark.parametrize(
    "remat", ["sel", *(pytest.param(name, marks=pytest.mark.slow) for name in ("auto", "none", "dots", "full"))]
)
def test_remat_reaches_the_step_of_fine_tuning(remat):
    config = FinetuneConfig(compute=ComputeConfig(dtype="float32", remat=remat))
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:1])
    programs = make_programs(config, PROGRAMS_MODEL, HEADS["classification"], mesh)
    transformation = optimizer(config.optimizer, programs.model.parameters)
    state = abstract_state(programs.model, transformation, mesh)
    shardings = state_shardings(state)
    step = make_shared_train_step(TaskObjective(programs.model), transformation, mesh, shardings, clip_norm=1.0)
    program = str(jax.make_jaxpr(step)(state, make_batch("classification", 0), np.float32(0), np.uint32(0)))
    assert ("remat" in program or "checkpoint" in program) == (remat not in ("auto", "none"))


@pytest.mark.parametrize(
    "options, said",
    [
        (
            {"batch_size": 30, "micro_batches": 4},
            "batch_size=30 is not divisible by micro_batches=4; nearest: 28 or 32",
        ),
        ({"batch_size": 2, "micro_batches": 4}, "batch_size=2 is not divisible by micro_batches=4; nearest: 4"),
        (
            {"grid": True, "grid_batch_sizes": (16, 20), "micro_batches": 8},
            "grid_batch_sizes=20 is not divisible by micro_batches=8; nearest: 16 or 24",
        ),
        ({"micro_batches": 0}, "micro_batches=0 must be positive"),
    ],
)
def test_batches_that_cannot_be_divided_are_refused(options, said):
    given = {"task": "mrpc", "init_from": "model", "workdir": "work", "data": TaskDataConfig(dir="data")}
    with pytest.raises(UserError, match=said):
        check_finetune(FinetuneConfig(**given, **options))
    check_finetune(FinetuneConfig(**given, batch_size=32, micro_batches=4))


def test_shared_rows_are_as_long_as_model_and_teacher_can_read():
    """Texts of 10, 5 and 3 tokens, in turn, which rows of 18 hold without padding."""
    config = FinetuneConfig(packing="on", batch_size=8, bucket_window=1)
    ids = [np.ones(length, np.int32) for length in (10, 5, 3) * 8]
    features = Features(ids, ids, np.zeros(len(ids), np.int32), np.arange(len(ids)), 12)
    model, head = dataclasses.replace(PROGRAMS_MODEL, max_position_embeddings=40), HEADS["classification"]
    mesh, found = sharding.make_mesh(MeshConfig(), jax.devices()[:1]), []
    for positions in (None, 40, 12):
        teacher = None
        if positions:
            network = BertForTask(dataclasses.replace(model, max_position_embeddings=positions), head)
            params = jax.device_put(random_params(network), sharding.replicated(mesh))
            teacher = Teacher(network, params, "fingerprint")
        programs = make_programs(config, model, head, mesh, teacher=teacher)
        found.append(training_batches(config, features, programs, batch_size=8, seed=0).length)
    assert found == [18, 18, 12]


def test_sequences_share_rows_where_that_saves_places():
    """Texts of 10, 5 and 3 tokens do in rows of 18; texts of 10 tokens each would leave as much empty as in rows of 12.

    Other batches cost what their arrays hold.
    """
    config, head = FinetuneConfig(task="sst2", batch_size=8), HEADS["classification"]
    model = dataclasses.replace(PROGRAMS_MODEL, max_position_embeddings=40)
    programs = make_programs(config, model, head, sharding.make_mesh(MeshConfig(), jax.devices()[:1]))

    def decided(lengths, recorded=None, **options):
        ids = [np.ones(length, np.int32) for length in lengths]
        features = Features(ids, ids, np.zeros(len(ids), np.int32), np.arange(len(ids)), 12)
        found = with_packing(dataclasses.replace(config, **options), features, programs, recorded)
        batches = training_batches(found, features, programs, batch_size=8, seed=0)
        held = sum(batches.batch(step)["input_ids"].size for step in range(batches.steps_per_epoch))
        assert batches.positions() == held
        return found.packing, found.bucket_window

    assert decided((10, 5, 3) * 8) == ("on", 1)
    assert decided((10,) * 24) == ("off", 4)
    assert decided((10,) * 24, packing="on", bucket_window=2) == ("on", 2)
    assert decided((10, 5, 3) * 8, packing="off") == ("off", 4)
    assert decided((10, 5, 3) * 8, task="squad_v1") == ("off", 4)
    for lengths in ((10, 5, 3) * 8, (10,) * 24):  # a run that began goes on as it did
        for began in (("off", 3), ("on", 2)):
            assert decided(lengths, dict(zip(("packing", "bucket_window"), began))) == began


def test_runs_that_began_decide_how_rows_are_shared(two_seeds, tmp_path):
    """Sharing would save more than a tenth, and auto would choose another window of the order."""
    config, results = two_seeds
    work = shutil.copytree(config.workdir, tmp_path / "work")
    assert json.loads((work / "config.json").read_text())["finetune"]["packing"] == "off"
    again = dataclasses.replace(config, workdir=str(work), packing="auto", bucket_window=None)
    assert finetune(again).results["runs"] == results["runs"]
    settings = json.loads((work / "config.json").read_text())["finetune"]
    assert (settings["packing"], settings["bucket_window"]) == ("off", 1)


HEAD = HeadConfig(labels=("no", "yes"), dropout=0.0)


@pytest.fixture(scope="module", params=["own_rows", pytest.param("shared_rows", marks=pytest.mark.slow)])
def ours(request):
    """Losses of every step and the final logits of the first batch, through the code that `finetune` runs."""
    optimizer = OptimizerConfig(epsilon=oracle.EPSILON, weight_decay=oracle.DECAY, clip_norm=oracle.CLIP)
    config = FinetuneConfig(dropout=0.0, compute=dataclasses.replace(SCANNED, dtype="float32"), optimizer=optimizer)
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:1])
    programs = make_programs(config, ModelConfig(**oracle.SIZES, activation="gelu_erf"), HEAD, mesh)
    flat = random_bert.draw_parameters(oracle.SIZES) | oracle.draw_head()
    drawn = lambda path, leaf: jax.device_put(flat["/".join(key.key for key in path)], leaf.sharding)
    params = jax.tree.map_with_path(drawn, programs.abstract.params)
    state = programs.fresh_state(np.uint32(0))
    state = TrainState(step=state.step, params=params, optimizer_state=state.optimizer_state)
    ids, types, labels = oracle.draw_pairs()
    features = Features(ids, types, labels, np.arange(len(ids)), oracle.SIZES["max_position_embeddings"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequences, "permute", lambda indices, *_: indices)
        plain = sequences.TrainingBatches(features, oracle.BATCH)
        shared = SharedRowBatches(features, oracle.BATCH, features.max_length)
        batches = plain if request.param == "own_rows" else shared
        steps = oracle.EPOCHS * batches.steps_per_epoch
        asked, schedule = Run(oracle.BATCH, oracle.RATE, oracle.EPOCHS, 0), ScheduleConfig(name="linear_after_warmup")
        rates = learning_rates(asked, schedule, oracle.WARMUP / steps, steps)
        losses = []
        for step in range(steps):
            given = jax.device_put((batches.batch(step), rates[step], np.uint32(0)))
            state, values = programs.train_step(state, *given)
            losses.append(float(values["loss"]))
        first = {name: value for name, value in plain.batch(0).items() if name not in ("labels", "weights")}
    return np.array(losses), np.asarray(programs.predict_step(state.params, jax.device_put(first))), programs


def check(ours, path) -> None:
    losses, logits, _ = ours
    with np.load(path) as stored:
        # Float32 against float64, over 20 updates that Adam divides by their own size. The distance is 1.4e-6 and
        # 2.3e-6; without weight decay it would be 1.7e-5 and 1.6e-4, with the gradient clipped at 0.999 5.6e-6 and
        # 2.8e-5.
        np.testing.assert_allclose(losses, stored["losses"], rtol=0, atol=4e-6)
        np.testing.assert_allclose(logits, stored["logits"], rtol=0, atol=1e-5)
        assert stored["losses"].max() - stored["losses"].min() > 0.3  # a curve that moves, or it would show nothing


def test_the_loss_curve_of_torch_and_transformers(ours):
    check(ours, oracle.PATH)
    shapes = {shape for compiled in ours[2].train_step.compiled for name, shape, _ in compiled if name == "input_ids"}
    assert len({length for _, length in shapes}) <= len(sequences.ladder(20)) == 3


def test_the_loss_curve_of_this_torch(ours, tmp_path):
    peer = os.environ.get("BERT_JAX_PEER") or (sys.executable if importlib.util.find_spec("torch") else None)
    if not peer:
        pytest.skip("neither torch here nor BERT_JAX_PEER")
    subprocess.run([peer, oracle.__file__, str(tmp_path / "oracle.npz")], check=True, capture_output=True)
    check(ours, tmp_path / "oracle.npz")


@pytest.mark.parametrize(
    ("task", "asked", "needed"),
    [
        ("rte", "squad_v1", "classification head, but squad_v1 needs one of span"),
        ("squad_v2", "stsb", "span head, but stsb needs one of regression"),
        ("swag", "stsb", "choice head, but stsb needs one of regression"),
        ("stsb", "choice", "regression head, but choice needs one of choice"),
        ("stsb", "rte", "regression head, but rte needs one of classification"),
        ("rte", "stsb", "classification head, but stsb needs one of regression"),
        ("ner", "text", "tagging head, but text needs one of classification"),
    ],
)
def test_a_task_that_needs_another_head_is_named(tmp_path, task, asked, needed):
    model = write_model(tmp_path / "model", task)
    (tmp_path / "input.tsv").write_text("sentence1\tsentence2\na cat\ta dog\n")
    options = PredictConfig(input=str(tmp_path / "input.tsv"), output=str(tmp_path / "output"), task=asked)
    with pytest.raises(UserError, match=f"{model} has a {needed}"):
        run_predict(str(model), options)
    assert not (tmp_path / "output").exists()


@pytest.mark.parametrize("tasks", [("qnli", "rte"), ("swag", "race"), ("squad_v1", "squad_v2")])
def test_models_of_several_tasks_are_no_ensemble(tmp_path, tasks):
    first, second = (write_model(tmp_path / task, task) for task in tasks)
    (tmp_path / "input").touch()
    options = PredictConfig(input=str(tmp_path / "input"), output=str(tmp_path / "output"))
    message = f"an ensemble needs models of one task, not {second} of {tasks[1]} and {first} of {tasks[0]}"
    with pytest.raises(UserError, match=message):
        run_predict(f"{first},{second}", options)


def test_a_model_predicts_another_task_of_its_head(tmp_path):
    model = write_model(tmp_path / "mnli", "mnli")
    (tmp_path / "input.tsv").write_text("index\tsentence1\tsentence2\n0\ta cat sat\ta dog ran\n")
    options = PredictConfig(input=str(tmp_path / "input.tsv"), output=str(tmp_path / "AX.tsv"), task="ax")
    assert run_predict(f"{model},{model}", options) == {}
    assert (tmp_path / "AX.tsv").read_text().split("\n")[0] == "index\tprediction"


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"input": "/nowhere.tsv"}, "--input=/nowhere.tsv: no such file"),
        ({"input": ""}, "give one of --input=FILE and --text=TEXT"),
        ({"text": "a cat"}, "give one of --input=FILE and --text=TEXT, not both"),
        ({"batch_size": 0}, "batch_size=0 must be positive"),
        ({"mesh": MeshConfig(data=0)}, "mesh.data=0"),
    ],
)
def test_options_of_a_prediction_that_cannot_be_are_named(tmp_path, changes, message):
    options = PredictConfig(input=__file__, output=str(tmp_path / "output"))
    with pytest.raises(UserError, match=message):
        run_predict(str(tmp_path), dataclasses.replace(options, **changes))


def test_a_file_without_a_header_is_read_as_its_error_says(tmp_path):
    """The model was taught by files with one."""
    model = write_model(tmp_path / "text", "text")
    (tmp_path / "input.tsv").write_text("a cat sat\na dog ran\n")
    options = PredictConfig(input=str(tmp_path / "input.tsv"), output=str(tmp_path / "output.tsv"))
    message = "no column text or sentence or sentence1 .*--data.text_column=1 --data.label_column=2"
    with pytest.raises(UserError, match=message):
        run_predict(str(model), options)
    run_predict(str(model), dataclasses.replace(options, data=InputFormConfig(text_column="1", label_column="2")))
    assert len((tmp_path / "output.tsv").read_text().splitlines()) == 3
    options = dataclasses.replace(options, output=str(tmp_path / "other.tsv"), data=InputFormConfig(scheme="iob1"))
    with pytest.raises(UserError, match="^data.scheme=iob1 belongs to task=ner, not to text; leave it out$"):
        run_predict(str(model), options)


def test_ax_asks_for_a_model_of_mnli(tmp_path, monkeypatch):
    monkeypatch.setitem(LABELS, "text", ("LABEL_0", "LABEL_1", "LABEL_2"))
    model = write_model(tmp_path / "model", "text")
    (tmp_path / "input.tsv").write_text("index\tsentence1\tsentence2\n0\ta cat sat\ta dog ran\n")
    options = PredictConfig(input=str(tmp_path / "input.tsv"), output=str(tmp_path / "AX.tsv"), task="ax")
    message = "the model has LABEL_0, .*; give one that was fine-tuned on mnli, or put .* id2label"
    with pytest.raises(UserError, match=message):
        run_predict(str(model), options)


@pytest.fixture
def on_ax(tmp_path):
    """`finetune ax` of a model of mnli, on one pair, into out/."""
    (tmp_path / "diagnostic.tsv").write_text("index\tsentence1\tsentence2\n0\ta cat sat\ta dog ran\n")
    return task_config("ax", write_model(tmp_path / "mnli", "mnli"), tmp_path / "out", {"dir": tmp_path})


@pytest.mark.parametrize("held", [{"run.json": {}}, {"results.json": {"task": "mnli"}}])
def test_ax_takes_no_work_directory_of_another_task(on_ax, tmp_path, held):
    (tmp_path / "out").mkdir()
    for name, content in held.items():
        (tmp_path / "out" / name).write_text(json.dumps(content))
    with pytest.raises(UserError, match=f"workdir={tmp_path}/out holds a different run or its results"):
        finetune(on_ax)
    assert {file.name: json.loads(file.read_text()) for file in (tmp_path / "out").iterdir()} == held


def test_ax_is_read_as_its_model_was_in_batches_of_the_size_asked_for(on_ax, monkeypatch):
    predict, seen = programs.predict_logits, []

    def spy(step, params, features, head, batch_size, mesh):
        seen.append((batch_size, features.max_length))
        return predict(step, params, features, head, batch_size, mesh)

    monkeypatch.setattr(programs, "predict_logits", spy)
    for _ in range(2):  # a directory of its own may be written again
        finetune(dataclasses.replace(on_ax, eval_batch_size=3))
    assert seen == [(3, CONFIG.max_position_embeddings)] * 2
    with pytest.raises(UserError, match="options.max_length=8 belongs to task=cola .*, not to ax; leave it out"):
        finetune(on_ax, max_length=8)
