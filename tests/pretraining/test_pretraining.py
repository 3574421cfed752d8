"""Whole runs on a small corpus: learning, exact resume after any end, phases, evaluation, filling in masks."""

import dataclasses
import functools
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time

import jax
import numpy as np
import processes
import pytest
from dying import dying
from one_device import pretrain, run_evaluate
from processes import SECONDS, wait_until
from small_pretraining import MODEL, nothing_held_out, rows, run_config

from bert_jax import pretraining
from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.config import (
    CheckpointConfig,
    Config,
    DataConfig,
    EvaluationConfig,
    FaultsConfig,
    MaskingConfig,
    MeshConfig,
    PhaseConfig,
    PrepareConfig,
)
from bert_jax.config.json_form import to_dict
from bert_jax.data.examples.examples import Examples
from bert_jax.data.store.access import open_store
from bert_jax.data.store.prepare import run_prepare
from bert_jax.devices import sharding
from bert_jax.errors import UserError
from bert_jax.models.bert import BertForPreTraining
from bert_jax.objectives.objective_choice import default_objective
from bert_jax.optim.optimizers import optimizer
from bert_jax.optim.schedules import learning_rate
from bert_jax.pretrained.loading import load
from bert_jax.training.evaluation import Evaluation
from bert_jax.training.sinks import read_rows
from bert_jax.training.state import abstract_state, create_state, state_shardings
from bert_jax.training.step import make_train_step


def start(config: Config, dies_after: int = 0) -> subprocess.Popen:
    """The same run in a process of its own with one device, through the command line."""
    file = pathlib.Path(config.workdir).with_suffix(".json")
    file.write_text(json.dumps(to_dict(config)))
    with open(log_of(config), "w") as log:
        return subprocess.Popen(
            dying(dies_after, "pretrain", str(file)),
            env=processes.one_device(killed=dies_after > 0),
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def log_of(config: Config) -> pathlib.Path:
    return pathlib.Path(config.workdir).with_suffix(".log")


def finish(process: subprocess.Popen, config: Config, seconds: float = SECONDS) -> tuple[int, str]:
    """Exit status and everything that was printed; a process that is late does not go on beside the next tests."""
    try:
        return process.wait(seconds), log_of(config).read_text()
    finally:
        process.kill()
        process.wait()


def wait_for_row(config: Config, step: int, process: subprocess.Popen):
    reached = lambda: any(row["step"] >= step for row in rows(config.workdir))
    wait_until(reached, lambda: process.poll() is None, lambda: log_of(config).read_text())


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


def test_kill_and_resume_are_bit_identical(small_store, tmp_path):
    """kill -9 at an arbitrary moment; all losses and metrics of the resumed run equal the uninterrupted run's exactly.

    The uninterrupted run uses the plain loader, the killed one tf.data before and after: their batches are equal too.
    """
    changes = {
        "phases": (PhaseConfig(steps=100, sequence_length=32, batch_size=16, learning_rate=1e-3, warmup_steps=2),),
        "evaluation": EvaluationConfig(every_steps=50, sequences=64, batch_size=32),
        "checkpoint": CheckpointConfig(every_steps=10, keep_last=2),
    }
    uninterrupted = run_config(small_store, tmp_path / "uninterrupted", **changes)
    whole = start(
        uninterrupted
    )  # a process like the others: how XLA splits a product depends on the number of its threads
    assert finish(whole, uninterrupted)[0] == 0

    config = run_config(small_store, tmp_path / "killed", **changes)
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, loader="tf.data"))
    assert finish(start(config, dies_after=25), config)[0] == -signal.SIGKILL
    assert 25 <= rows(config.workdir)[-1]["step"] < 100
    code, output = finish(start(config), config)
    assert code == 0, output
    assert "resuming from step" in output
    assert rows(config.workdir) == rows(uninterrupted.workdir)
    assert rows(config.workdir, "evaluation") == rows(uninterrupted.workdir, "evaluation")


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_leaves(small_store, tmp_path, number, code):
    config = run_config(
        small_store,
        tmp_path / "stopped",
        checkpoint=CheckpointConfig(every_steps=10_000),
        evaluation=EvaluationConfig(every_steps=0, sequences=64),
        phases=(PhaseConfig(steps=100_000, sequence_length=32, batch_size=16, learning_rate=1e-3),),
    )
    process = start(config)
    wait_for_row(config, 3, process)
    process.send_signal(number)
    ended, output = finish(process, config)
    assert ended == code, output
    last = rows(config.workdir)[-1]["step"]
    assert load(config.workdir).history["step"] == last


def test_phases_with_a_restart_resume_exactly(small_store, tmp_path):
    phases = (
        PhaseConfig(steps=4, sequence_length=16, batch_size=16, learning_rate=1e-3, warmup_steps=1),
        PhaseConfig(
            steps=4,
            sequence_length=32,
            batch_size=8,
            learning_rate=5e-4,
            warmup_steps=2,
            schedule="restart",
            moments="reset",
        ),
    )
    data = nothing_held_out(small_store)  # the rows of training are what counts, and evaluations are programs too
    whole = run_config(small_store, tmp_path / "whole", phases=phases, data=data)
    pretrain(whole)
    assert [row["learning_rate"] for row in rows(whole.workdir)][
        4
    ] == 0.0  # the second schedule has a warm-up of its own

    cut = run_config(
        small_store,
        tmp_path / "cut",
        phases=phases,
        data=data,
        checkpoint=CheckpointConfig(every_steps=3, keep_last=5, keep_best=0),
    )
    pretrain(cut)
    for first, taken in enumerate(
        ([8, 6], [8, 6, 4])
    ):  # back to step 4 of 8, between the phases, and to 3, inside the first
        for step in taken:
            os.rename(tmp_path / "cut" / "checkpoints" / f"step_{step:09d}", tmp_path / f"taken_{first}_{step}")
        pretrain(cut)
        assert rows(cut.workdir) == rows(whole.workdir)


def test_a_signal_during_the_last_evaluation_of_a_phase_loses_nothing(small_store, tmp_path, monkeypatch):
    """Its step is saved first, and the next start makes that evaluation, at that phase's length, before it trains."""
    phases = (
        PhaseConfig(steps=3, batch_size=8, sequence_length=32),
        PhaseConfig(steps=9, batch_size=8, sequence_length=64),
    )
    config = run_config(
        small_store,
        tmp_path / "run",
        phases=phases,
        checkpoint=CheckpointConfig(every_steps=100, keep_last=5, keep_best=0),
        evaluation=EvaluationConfig(every_steps=3, sequences=64, batch_size=32),
    )
    evaluate = Evaluation.run
    lengths = []

    def interrupted(self, *given):
        lengths.append(self.examples.sequence_length)
        if len(lengths) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(self, *given)

    monkeypatch.setattr(Evaluation, "run", interrupted)
    stopped = pretrain(config)
    assert (stopped.step, stopped.exit_code) == (3, 143)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step_000000003"]
    assert pretrain(config).exit_code == 0
    assert [row["step"] for row in rows(config.workdir, "evaluation")] == [3, 6, 9, 12] and lengths == [
        32,
        32,
        64,
        64,
        64,
    ]


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
    """The pipeline starts, a program compiles and states are saved, each in two seconds more: no row counts them."""

    def slow(function):
        def after_a_while(*given, **options):
            extra.append(time.sleep(2))
            return function(*given, **options)

        return after_a_while

    extra, spent, make = [], [], pretraining.batches

    def timed(*given, **options):
        start = time.perf_counter()
        try:
            yield from slow(make)(*given, **options)
        finally:
            spent.append(time.perf_counter() - start)

    monkeypatch.setattr(pretraining, "batches", timed)
    monkeypatch.setattr(jax.stages.Lowered, "compile", slow(jax.stages.Lowered.compile))
    monkeypatch.setattr(Checkpoints, "save", slow(Checkpoints.save))
    config = run_config(
        small_store, tmp_path / "run", evaluation=EvaluationConfig(every_steps=0, sequences=32, batch_size=32)
    )
    pretrain(config)
    logged = read_rows(tmp_path / "run" / "metrics.jsonl")
    counted = sum(1 / row["steps_per_second"] for row in logged if row["kind"] == "train")
    assert (
        len(extra) == 7 and counted < spent[0] - 4 * 2
    )  # pipeline, the program of the evaluation, two saves; the step compiles before it, the last state comes after it


def test_the_mesh_may_change_between_starts(small_store, tmp_path):
    """Saved on a mesh of 8 × 1 × 1, resumed on 2 × 2 × 2: one device's losses up to the order of float32 sums."""
    kept = CheckpointConfig(every_steps=4, keep_last=5, keep_best=0)
    data = nothing_held_out(small_store)
    config = run_config(small_store, tmp_path / "elastic", mesh=MeshConfig(data=8), checkpoint=kept, data=data)
    pretraining.pretrain(config)
    on_eight = rows(config.workdir)
    for step in (8, 12):
        os.rename(tmp_path / "elastic" / "checkpoints" / f"step_{step:09d}", tmp_path / f"taken_{step}")
    pretraining.pretrain(dataclasses.replace(config, mesh=MeshConfig(data=2, fsdp=2, tensor=2)))
    continued = rows(config.workdir)
    assert continued[:4] == on_eight[:4] and continued[4:] != on_eight[4:]
    for ours, theirs in zip(continued, on_eight, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=2e-5)


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
    assert ("next_sentence_accuracy" in result.evaluation) == (pairs == "sop")
    assert ("next_sentence_loss" in rows(config.workdir)[-1]) == (pairs == "sop")


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
def test_a_run_learns_what_the_corpus_has_to_teach(small_store, tmp_path):
    """Half of the words follow from the others: held-out accuracy rises far above that of word frequencies alone."""
    config = run_config(
        small_store,
        tmp_path / "learns",
        log_every_steps=100,
        evaluation=EvaluationConfig(every_steps=0, sequences=128),
        phases=(PhaseConfig(steps=1500, sequence_length=32, batch_size=32, learning_rate=3e-3, warmup_steps=100),),
    )
    pretrain(config)
    evaluated = run_evaluate(config.workdir, config)
    assert evaluated.metrics["mlm_accuracy"] > evaluated.unigram["mlm_accuracy"] + 0.2
    assert evaluated.metrics["mlm_loss"] < evaluated.unigram["mlm_loss"] - 1.2
