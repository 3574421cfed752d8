"""Runs whose numbers go wrong: back to a good checkpoint, on behind the batches, the same after any interruption."""

import dataclasses
import json
import math
import pathlib
import signal

import numpy as np
import pytest
from one_device import pretrain
from poisoned_objective import poisoned
from processes import EXHAUSTIVE
from small_pretraining import rows, run_config

from bert_jax import pretraining
from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.record import read_record
from bert_jax.config import CheckpointConfig, EvaluationConfig, FaultsConfig, PhaseConfig
from bert_jax.data.mixtures import open_corpus
from bert_jax.errors import UserError
from bert_jax.training.events import Events, read_events
from bert_jax.training.metrics import Metrics

BATCH = 16


def config_of(store, workdir, steps: int = 10, **changes):
    phase = PhaseConfig(steps=steps, sequence_length=32, batch_size=BATCH, learning_rate=1e-3, warmup_steps=2)
    settings = {
        "phases": (phase,),
        "checkpoint": CheckpointConfig(every_steps=2, keep_last=20, keep_best=0),
        "evaluation": EvaluationConfig(every_steps=0, sequences=32, batch_size=32),
        "faults": FaultsConfig(max_skipped_steps=2),
    }
    return run_config(store, workdir, **settings | changes)


def arrays(config, step: int) -> dict[str, str]:
    """Fingerprints of everything in a checkpoint."""
    record = read_record(pathlib.Path(config.workdir) / f"checkpoints/step_{step:09}/record")
    return {path: entry["fingerprint"] for path, entry in record["arrays"].items()}


def position(config, step: int) -> dict:
    return read_record(pathlib.Path(config.workdir) / f"checkpoints/step_{step:09}/record")["position"]


def happened(config, *events: str) -> list[dict]:
    return [row for row in read_events(f"{config.workdir}/events.jsonl") if row["event"] in events]


@pytest.fixture(scope="module")
def expected(small_store, tmp_path_factory):
    """What the others should become: a run in which nothing goes wrong, on data without the batches of steps 5 to 7."""
    config = config_of(small_store, tmp_path_factory.mktemp("rollback") / "expected")

    def with_a_gap(examples, first: int, size: int, mine: np.ndarray, number: int, place, **options):
        for step in range(number):
            start = first + step * size
            yield place(examples.batch(start + (3 * BATCH if start >= 4 * BATCH else 0) + mine))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretraining, "batches", with_a_gap)
        pretrain(config, objective=poison(config))  # the same program, which never meets its marks
    return config


def poison(config, factor: float = math.nan):
    """The batches of steps 6 and 7 go wrong; the checkpoint before them is that of step 4."""
    return poisoned(config, (5 * BATCH, 6 * BATCH), factor)


def assert_as_expected(config, expected):
    assert rows(config.workdir) == rows(expected.workdir)
    assert arrays(config, 10) == arrays(expected, 10)
    assert position(config, 10) == {"phase": 0, "examples_seen": 13 * BATCH, "skipped": [[0, 4 * BATCH, 7 * BATCH]]}
    assert "skipped" not in position(config, 4)


@pytest.mark.slow
def test_a_run_goes_on_behind_batches_that_are_not_finite(small_store, tmp_path, expected):
    config = config_of(small_store, tmp_path / "run")
    assert pretrain(config, objective=poison(config)).step == 10
    assert_as_expected(config, expected)
    (rollback,) = happened(config, "rollback")
    assert (rollback["from_step"], rollback["to_step"], rollback["span"]) == (7, 4, [0, 4 * BATCH, 7 * BATCH])
    assert [(row["step"], row["in_a_row"], row["loss"]) for row in happened(config, "skipped")] == [
        (6, 1, "nan"),
        (7, 2, "nan"),
    ]


@pytest.mark.slow
def test_a_run_goes_back_to_a_local_save_that_is_newer_than_the_checkpoint(small_store, tmp_path, expected):
    kept = CheckpointConfig(
        every_steps=3, keep_last=20, keep_best=0, local_path=str(tmp_path / "local"), local_every_steps=4
    )
    config = config_of(small_store, tmp_path / "run", checkpoint=kept)
    assert pretrain(config, objective=poison(config)).step == 10
    assert rows(config.workdir) == rows(expected.workdir) and arrays(config, 10) == arrays(expected, 10)
    (rollback,) = happened(config, "rollback")
    assert (rollback["from_step"], rollback["to_step"]) == (7, 4)
    assert [row["step"] for row in happened(config, "saved_locally")] == [4, 8]  # and 8 only once


class Death(BaseException):
    """The process ends here."""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["restored", *(["deleting", "stepping"] if EXHAUSTIVE else [])])
def test_a_run_that_dies_around_a_rollback_becomes_the_same(small_store, tmp_path, monkeypatch, expected, moment):
    config = config_of(small_store, tmp_path / "run")

    def die(*unused, **options):
        raise Death

    write = Metrics.write

    def die_at_step_five(self, step, values, kind="train"):
        if step == 5 and happened(config, "rollback"):
            raise Death
        write(self, step, values, kind)

    with monkeypatch.context() as patch:
        if moment == "deleting":
            patch.setattr(
                Checkpoints,
                "restore",
                lambda self, state, restore=Checkpoints.restore: (
                    die() if happened(config, "skipped") else restore(self, state)
                ),
            )
        elif moment == "restored":
            patch.setattr(Metrics, "rewind", die)
        else:
            patch.setattr(Metrics, "write", die_at_step_five)
        with pytest.raises(Death):
            pretrain(config, objective=poison(config))
    assert pretrain(config, objective=poison(config)).step == 10
    assert_as_expected(config, expected)
    assert len(happened(config, "start")) == 2 and happened(config, "rollback")[-1]["to_step"] == 4


@pytest.mark.slow
def test_a_run_that_is_stopped_among_skipped_steps_counts_on(small_store, tmp_path, monkeypatch, expected):
    """SIGTERM arrives as the first step is skipped: the state that is saved then is not one to go back to."""
    config = config_of(small_store, tmp_path / "run")
    write = Events.write

    def stop(self, event, step, **details):
        write(self, event, step, **details)
        if event == "skipped":
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Events, "write", stop)
        stopped = pretrain(config, objective=poison(config))
    assert stopped.exit_code == 143 and stopped.step in (6, 7)
    if stopped.step == 6:
        assert position(config, 6)["guard"] == {"skipped": 1}
    assert pretrain(config, objective=poison(config)).step == 10
    assert_as_expected(config, expected)


@pytest.mark.slow
def test_a_spike_is_rolled_back(small_store, tmp_path, monkeypatch):
    """Of ten times the loss before, at step 7 of a window of at least four losses."""
    monkeypatch.setattr("bert_jax.training.reporter.FEWEST", 4)
    config = config_of(small_store, tmp_path / "run", faults=FaultsConfig(spike_threshold=50))
    objective = poisoned(config, (6 * BATCH,), 10.0)
    assert pretrain(config, objective=objective).step == 10
    (rollback,) = happened(config, "rollback")
    assert (rollback["from_step"], rollback["to_step"], rollback["span"]) == (7, 6, [0, 6 * BATCH, 7 * BATCH])
    assert "is a spike" in rollback["reason"]
    assert [row["step"] for row in rows(config.workdir)] == list(range(1, 11))
    assert max(row["loss"] for row in rows(config.workdir)) < 7
    losses = [row["loss"] for row in rows(config.workdir)]
    assert position(config, 10)["guard"]["losses"] == losses
    # Interrupted after step 8, it becomes the same: the losses of the window come from the checkpoint.
    for step in (10,):
        (pathlib.Path(config.workdir) / f"checkpoints/step_{step:09}").rename(tmp_path / "later")
    before = rows(config.workdir)
    assert pretrain(config, objective=objective).step == 10
    assert rows(config.workdir) == before and position(config, 10)["guard"]["losses"] == losses


@pytest.mark.slow
def test_a_run_that_may_not_go_back_stops_with_a_report(small_store, tmp_path):
    config = config_of(small_store, tmp_path / "run", faults=FaultsConfig(max_skipped_steps=2, rollbacks=0))
    with pytest.raises(
        UserError, match="not been finite for 2 steps up to 7, and none of the 0 rollbacks is left"
    ) as error:
        pretrain(config, objective=poison(config))
    file = pathlib.Path(config.workdir) / "fault_at_step_7.json"
    assert str(file) in str(error.value) and "the newest checkpoint is step 4" in str(error.value)
    report = json.loads(file.read_text(), parse_constant=pytest.fail)
    assert report["steps"] == [6, 7] and report["positions"] == [5 * BATCH, 7 * BATCH]
    assert [row["position"] for row in report["last_batch"]] == list(range(6 * BATCH, 7 * BATCH))
    examples = open_corpus(config).training[0]
    batch = examples.batch(np.array([6 * BATCH]))
    ids = batch["input_ids"][0][batch["attention_mask"][0] > 0]
    assert report["last_batch"][0]["text"] == examples.store.tokenizer().decode(ids.tolist())
    norms = report["parameter_norms"]
    assert norms.keys() == report["gradient_norms"].keys() and report["gradient_norms"]["mlm/bias"] == "nan"
    assert happened(config, "failed")[0]["error"].startswith("loss or gradient has not been finite")


@pytest.mark.slow
def test_before_the_first_checkpoint_there_is_nothing_to_go_back_to(small_store, tmp_path):
    config = config_of(small_store, tmp_path / "run", checkpoint=CheckpointConfig(every_steps=100))
    with pytest.raises(UserError, match="for 2 steps up to 7, and no checkpoint is older"):
        pretrain(config, objective=poison(config))
    assert (pathlib.Path(config.workdir) / "fault_at_step_7.json").exists()


@pytest.mark.slow
def test_a_later_phase_goes_back_into_the_earlier_one(small_store, tmp_path):
    """Its first two batches are bad: the end of the first phase is restored, and the second begins behind them."""
    phases = tuple(PhaseConfig(steps=4, sequence_length=32, batch_size=size, learning_rate=1e-3) for size in (16, 8))
    config = config_of(small_store, tmp_path / "run", phases=phases)
    examples = open_corpus(config).training[1]
    marks = [int(examples.batch(start + np.arange(8))["input_ids"].sum()) for start in (0, 8)]
    make = poisoned(config, (0, BATCH), math.nan)
    objective = lambda model, config: dataclasses.replace(make(model, config), marks=tuple(marks))
    assert pretrain(config, objective=objective).step == 8
    (rollback,) = happened(config, "rollback")
    assert (rollback["from_step"], rollback["to_step"], rollback["span"]) == (6, 4, [1, 0, 16])
    assert position(config, 8) == {"phase": 1, "examples_seen": 48, "skipped": [[1, 0, 16]]}
