"""Whole runs with Muon and a moving average of the weights: evaluated, saved, resumed exactly, written."""

import os

import jax
import numpy as np
import pytest
from small_pretraining import rows, run_config

from bert_jax.config import CheckpointConfig, DataConfig, OptimizerConfig, PhaseConfig
from bert_jax.errors import UserError
from bert_jax.formats.conversion import convert
from bert_jax.formats.opening import open_stored
from bert_jax.formats.own import open_checkpoint
from bert_jax.pretraining import pretrain

pytestmark = pytest.mark.slow
PHASES = (
    PhaseConfig(steps=3, sequence_length=48, batch_size=8, learning_rate=1e-2, warmup_steps=1),
    PhaseConfig(steps=3, sequence_length=48, batch_size=8, learning_rate=1e-2, moments="reset"),
)


@pytest.fixture(scope="module")
def finished(small_store, tmp_path_factory):
    config = run_config(
        small_store,
        tmp_path_factory.mktemp("average") / "run",
        optimizer=OptimizerConfig(name="muon", ema_decay=0.999),
        data=DataConfig(path=str(small_store), held_out=0.1, loader="plain"),
        phases=PHASES,
        checkpoint=CheckpointConfig(every_steps=1, keep_last=9, keep_best=0),
    )
    pretrain(config, devices=jax.devices()[:1])
    return config


def values(path, weights) -> dict[str, np.ndarray]:
    arrays = open_checkpoint(path, weights).arrays
    return {name: array.read((slice(None),) * len(array.shape)) for name, array in arrays.items()}


def test_the_average_of_a_run_follows_its_weights_over_fresh_moments(finished):
    steps = [f"{finished.workdir}/checkpoints/step_{step:09d}" for step in range(1, 7)]
    average = values(steps[0], "ema")
    for step, path in enumerate(steps[1:], 1):
        weights, found = values(path, "last"), values(path, "ema")
        assert found.keys() == weights.keys()
        share = 1 - (1 + step) / (10 + step)
        for name in found:
            expected = average[name] + share * (weights[name] - average[name])
            np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-7)
        average = found


def test_both_are_evaluated_by_name(finished):
    (row,) = rows(finished.workdir, "evaluation")[-1:]
    for name in ("mlm_loss", "mlm_accuracy", "next_sentence_loss"):
        assert f"ema_{name}" in row and name in row
    assert row["ema_mlm_loss"] != row["mlm_loss"]


def test_resume_is_bit_identical(finished, tmp_path):
    whole, evaluated = rows(finished.workdir), rows(finished.workdir, "evaluation")
    last = f"{finished.workdir}/checkpoints/step_000000006"
    before = {weights: values(last, weights) for weights in ("last", "ema")}
    for step in (4, 5, 6):
        os.rename(f"{finished.workdir}/checkpoints/step_{step:09d}", tmp_path / f"taken_{step}")
    pretrain(finished, devices=jax.devices()[:1])
    assert rows(finished.workdir) == whole and rows(finished.workdir, "evaluation") == evaluated
    for weights, arrays in before.items():
        jax.tree.map(np.testing.assert_array_equal, values(last, weights), arrays)


def test_the_average_is_written(finished, tmp_path):
    average, weights = values(finished.workdir, "ema"), values(finished.workdir, "last")
    convert(finished.workdir, tmp_path / "out", to="huggingface", weights="ema")
    written = open_stored(tmp_path / "out").arrays
    for name, array in written.items():
        np.testing.assert_array_equal(array.read((slice(None),) * len(array.shape)), average[name])
    assert any(np.any(average[name] != weights[name]) for name in written)
    with pytest.raises(UserError, match="is not a run of bert_jax"):
        convert(tmp_path / "out", tmp_path / "again", to="bert_jax", weights="ema")
    convert(finished.workdir, tmp_path / "ours", to="bert_jax")
    with pytest.raises(UserError, match="holds no moving average"):
        convert(tmp_path / "ours", tmp_path / "again", to="bert_jax", weights="ema")
