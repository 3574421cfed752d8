"""Whole runs on a small corpus: what is written, learning, evaluation, rates, filling in masks."""

import dataclasses
import functools
import importlib.util
import pathlib
import shutil
import time

import jax
import numpy as np
import pytest
from one_device import pretrain, run_evaluate
from small_pretraining import MODEL, rows, run_config

from bert_jax import pretraining
from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.config import (
    CheckpointConfig,
    Config,
    DataConfig,
    EvaluationConfig,
    FaultsConfig,
    MaskingConfig,
    PhaseConfig,
    PrepareConfig,
)
from bert_jax.data.examples import Examples
from bert_jax.data.preparation.prepare import run_prepare
from bert_jax.data.store import open_store
from bert_jax.devices import sharding
from bert_jax.errors import UserError
from bert_jax.models.bert import BertForPreTraining
from bert_jax.objectives.choice import default_objective
from bert_jax.pretrained.model import load
from bert_jax.training.metrics import read_rows
from bert_jax.training.optimizers import learning_rate, optimizer
from bert_jax.training.state import abstract_state, create_state, state_shardings
from bert_jax.training.step import make_train_step


@pytest.mark.parametrize("seconds, times", [pytest.param(1e9, 1, marks=pytest.mark.slow), (-1, 3)])
def test_curves_are_drawn_at_the_end_and_now_and_then_at_evaluations(
    small_store, tmp_path, monkeypatch, seconds, times
):
    drawn = []
    monkeypatch.setattr(pretraining, "PICTURE_SECONDS", seconds)
    monkeypatch.setattr(pretraining, "draw_curves", lambda *_, **__: drawn.append(1))
    config = run_config(small_store, tmp_path / "run")  # two evaluations
    pretrain(config)
    assert len(drawn) == times


def test_a_work_directory_holds_what_was_promised(finished):
    config, result = finished
    names = {path.name for path in pathlib.Path(config.workdir).iterdir()}
    assert {"config.json", "metrics.jsonl", "checkpoints", "tensorboard", "tokenizer", "curves.png"} <= names
    logged = read_rows(pathlib.Path(config.workdir) / "metrics.jsonl")
    train = [row for row in logged if row["kind"] == "train"]
    assert [row["step"] for row in train] == list(range(1, 13))
    assert {
        "step",
        "loss",
        "mlm_loss",
        "mlm_accuracy",
        "next_sentence_loss",
        "next_sentence_accuracy",
        "learning_rate",
        "grad_norm",
        "tokens_per_second",
    } <= train[-1].keys()
    assert [row["step"] for row in logged if row["kind"] == "evaluation"] == [6, 12]
    assert result.step == 12 and result.exit_code == 0
    for row in train:
        assert row["loss"] == pytest.approx(row["mlm_loss"] + row["next_sentence_loss"], rel=1e-6)
    steps = sorted(
        int(path.name.removeprefix("step_")) for path in (pathlib.Path(config.workdir) / "checkpoints").iterdir()
    )
    assert steps == [8, 12]  # the last two; the best on held-out documents is the last


def test_evaluation_is_the_same_every_time(finished):
    config, result = finished
    again = run_evaluate(config.workdir, config)
    assert (
        again.metrics
        == result.evaluation
        == {
            name: value
            for name, value in rows(config.workdir, "evaluation")[-1].items()
            if name not in ("kind", "step")
        }
    )
    assert again.step == 12 and again.num_sequences == 64
    assert again.unigram["mlm_loss"] > 0


def test_evaluation_on_a_corpus_of_another_vocabulary_says_how_to_prepare_it(finished, small_store, tmp_path):
    config, _ = finished
    tokens = (small_store.parent / "vocab.txt").read_text().splitlines()
    (tmp_path / "vocab.txt").write_text("\n".join([*tokens, "hedgehog"]) + "\n")
    run_prepare(
        PrepareConfig(
            input=str(small_store.parent / "corpus.txt"),
            vocab=str(tmp_path / "vocab.txt"),
            output=str(tmp_path / "store"),
            sentences="lines",
            workers=1,
        )
    )
    other = dataclasses.replace(config, data=dataclasses.replace(config.data, path=str(tmp_path / "store")))
    with pytest.raises(UserError, match=f"prepare the corpus again with --vocab={config.workdir}/tokenizer"):
        run_evaluate(config.workdir, other)


def test_nothing_is_left_to_do(finished, tmp_path, capsys):
    shutil.copytree(finished[0].workdir, tmp_path / "run")
    config = dataclasses.replace(finished[0], workdir=str(tmp_path / "run"))
    before = rows(config.workdir)
    assert pretrain(config).evaluation == {}
    assert "raise the steps" in capsys.readouterr().out and rows(config.workdir) == before


@pytest.mark.slow
@pytest.mark.parametrize("broken_from, kept", [(7, [5, 6]), (1, [])])
def test_states_without_a_finite_loss_push_out_no_good_one(small_store, tmp_path, monkeypatch, broken_from, kept):
    """Every step and every evaluation is due to be saved; the run ends after ten steps in a row without an update."""

    def broken(*given, place, **options):
        for step, batch in enumerate(make(*given, **options), 1):
            yield place(
                batch | {"masked_weights": np.full_like(batch["masked_weights"], np.nan)}
                if step >= broken_from
                else batch
            )

    make = pretraining.batches
    monkeypatch.setattr(pretraining, "batches", broken)
    config = run_config(
        small_store,
        tmp_path / "run",
        checkpoint=CheckpointConfig(every_steps=1, keep_last=2, keep_best=0),
        phases=(PhaseConfig(steps=30, sequence_length=32, batch_size=16, learning_rate=1e-3),),
        faults=FaultsConfig(rollbacks=0),
    )
    with pytest.raises(UserError, match="has not been finite for 10 steps"):
        pretrain(config)
    assert Checkpoints(tmp_path / "run" / "checkpoints", read_only=True).steps() == kept


def test_rates_do_not_count_what_is_no_training(small_store, tmp_path, monkeypatch):
    """The pipeline starts, a program compiles and states are saved, each in an hour more: no row counts them."""
    hour, hours, make = 3600, [], pretraining.batches

    def slow(function):
        def after_an_hour(*given, **options):
            hours.append(hour)
            return function(*given, **options)

        return after_an_hour

    def batches(*given, **options):
        hours.append(hour)
        yield from make(*given, **options)

    clock = lambda: time.perf_counter() + sum(hours)
    monkeypatch.setattr(pretraining, "Rates", functools.partial(pretraining.Rates, clock=clock))
    monkeypatch.setattr(pretraining, "batches", batches)
    monkeypatch.setattr(jax.stages.Lowered, "compile", slow(jax.stages.Lowered.compile))
    monkeypatch.setattr(Checkpoints, "save", slow(Checkpoints.save))
    config = run_config(
        small_store, tmp_path / "run", evaluation=EvaluationConfig(every_steps=0, sequences=32, batch_size=32)
    )
    pretrain(config)
    logged = read_rows(tmp_path / "run" / "metrics.jsonl")
    counted = sum(1 / row["steps_per_second"] for row in logged if row["kind"] == "train")
    assert len(hours) == 7 and counted < hour  # pipeline, three programs, three saves


@pytest.mark.slow
@pytest.mark.parametrize("pairs", ["sop", "none"])
def test_other_objectives_run(small_store, tmp_path, pairs):
    config = run_config(
        small_store,
        tmp_path / pairs,
        masking=MaskingConfig(unit="whole_word"),
        phases=(PhaseConfig(steps=2, sequence_length=32, batch_size=16, learning_rate=1e-3),),
    )
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, sentence_pairs=pairs))
    result = pretrain(config)
    measured = run_evaluate(config.workdir, config).metrics
    for found in (result.evaluation, measured, rows(config.workdir)[-1]):
        of_pairs = {name for name in found if "sentence" in name}
        assert of_pairs == ({"sentence_order_loss", "sentence_order_accuracy"} if pairs == "sop" else set())


def test_fill_mask_gives_probabilities_for_every_mask(finished):
    config, _ = finished
    model = load(config.workdir)
    filled = model.fill_mask("The [MASK] grows in the [MASK].", top_k=200)
    assert len(filled) == 2
    for candidates in filled:
        assert sum(candidate.probability for candidate in candidates) == pytest.approx(1.0, abs=1e-4)
        assert [c.probability for c in candidates] == sorted((c.probability for c in candidates), reverse=True)
    with pytest.raises(UserError, match=r"there is no \[MASK\]"):
        model.fill_mask("nothing to fill in")
    with pytest.raises(UserError, match="the model takes 64"):
        model.fill_mask("[MASK] " * 100)


@pytest.mark.slow
@pytest.mark.optimized
def test_thirty_two_sequences_are_learned_by_heart(small_store):
    """32 sequences with one fixed mask each, dropout off: accuracy on them rises above 0.99."""
    steps, store = 300, open_store(small_store)
    config = Config(
        model=dataclasses.replace(MODEL, vocab_size=store.vocab_size, hidden_dropout=0.0, attention_dropout=0.0),
        phases=(PhaseConfig(steps=steps, sequence_length=32, batch_size=32, learning_rate=3e-3),),
        masking=MaskingConfig(static_masks=1),
    )
    mesh, model = sharding.make_mesh(config.mesh, jax.devices()[:1]), BertForPreTraining(config.model)
    tx = optimizer(config.optimizer, model.parameters)
    state = create_state(model, tx, mesh, seed=0)
    step = make_train_step(
        default_objective(model, config),
        tx,
        mesh,
        state_shardings(abstract_state(model, tx, mesh)),
        clip_norm=config.optimizer.clip_norm,
        schedule=functools.partial(learning_rate, config),
        seed=config.seed,
    )
    batch = sharding.to_global(mesh, Examples(store, config).batch(np.arange(32)), 32)
    for _ in range(steps):
        state, metrics = step(state, batch)
    assert float(metrics["mlm_accuracy"]) > 0.99 and float(metrics["next_sentence_accuracy"]) == 1.0


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"data": DataConfig(path="STORE", loader="tf.data")}, r"data.loader=tf.data needs tensorflow, .*loader=plain"),
        ({"workdir": "gs://bucket/run"}, r"gs://bucket/run needs gcsfs, .*bert_jax\[gcs\]"),
        ({"data": DataConfig(path="gs://bucket/store")}, r"gs://bucket/store needs gcsfs"),
        ({"data": DataConfig(path="STORE", eval_path="gs://bucket/other")}, r"gs://bucket/other needs gcsfs"),
    ],
    ids=["tf.data", "workdir", "store", "evaluation store"],
)
def test_a_library_that_is_missing_is_named_before_anything_is_written(
    small_store, tmp_path, monkeypatch, changes, message
):
    config = dataclasses.replace(run_config(small_store, tmp_path / "run"), **changes)
    if config.data.path == "STORE":
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, path=str(small_store)))
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in ("tensorflow", "gcsfs") else find_spec(name)
    )
    with pytest.raises(UserError, match=message):
        pretrain(config)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.optimized
def test_a_run_learns_what_the_corpus_has_to_teach(small_store, tmp_path):
    """Half of the words follow from the others: held-out accuracy rises far above that of word frequencies alone."""
    config = run_config(
        small_store,
        tmp_path / "learns",
        log_every_steps=100,
        evaluation=EvaluationConfig(every_steps=0, sequences=128),
        checkpoint=CheckpointConfig(every_steps=700, keep_best=0),
        phases=(PhaseConfig(steps=700, sequence_length=32, batch_size=32, learning_rate=3e-3, warmup_steps=50),),
    )
    pretrain(config)
    evaluated = run_evaluate(config.workdir, config)
    assert evaluated.metrics["mlm_accuracy"] > evaluated.unigram["mlm_accuracy"] + 0.2
    assert evaluated.metrics["mlm_loss"] < evaluated.unigram["mlm_loss"] - 1.2
