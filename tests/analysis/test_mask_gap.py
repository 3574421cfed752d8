"""Masks of training against fresh ones: the same text, transcribed losses, and a run that learns them by heart."""

import dataclasses

import numpy as np
import pytest
from command_lines import refusal
from one_device import pretrain
from small_pretraining import run_config

import bert_jax
from bert_jax.analysis import mask_gap
from bert_jax.analysis.mask_memory import check_measurable, last_visits, seen_by
from bert_jax.config import Config, DataConfig, MaskingConfig, PhaseConfig
from bert_jax.config.objective import Permutation
from bert_jax.config.pretraining import PretrainingNoiseConfig
from bert_jax.data.examples import Examples
from bert_jax.data.store import open_store
from bert_jax.errors import UserError


@pytest.fixture(scope="module")
def run(small_store, tmp_path_factory):
    """A short run with three checkpoints and two fixed masks a sequence."""
    place = tmp_path_factory.mktemp("gap") / "run"
    config = run_config(small_store, place, masking=MaskingConfig(static_masks=2))
    pretrain(dataclasses.replace(config, checkpoint=dataclasses.replace(config.checkpoint, keep_last=3)))
    return place


def unmasked(batch: dict) -> np.ndarray:
    ids, used = batch["input_ids"].copy(), batch["masked_weights"] > 0
    ids[np.nonzero(used)[0], batch["masked_positions"][used]] = batch["masked_ids"][used]
    return ids


@pytest.mark.parametrize("static_masks", (0, 1, 10))
def test_fresh_masks_hide_other_words_of_the_same_text(small_store, static_masks):
    config = run_config(small_store, "w", masking=MaskingConfig(static_masks=static_masks))
    examples = Examples(open_store(small_store), config)
    epochs, indices = np.repeat([0, 1, 2, 12], 20), np.tile(np.arange(20), 4)
    own, fresh, other = (examples.examples_at(epochs, indices, fresh=number) for number in (None, 0, 1))
    for first, second in ((own, fresh), (fresh, other)):
        np.testing.assert_array_equal(unmasked(first), unmasked(second))
        np.testing.assert_array_equal(first["masked_weights"].sum(axis=1), second["masked_weights"].sum(axis=1))
        assert (first["masked_positions"] != second["masked_positions"]).any(axis=1).mean() > 0.9
    again = examples.examples_at(epochs, indices, fresh=0)
    np.testing.assert_array_equal(again["input_ids"], fresh["input_ids"])
    rounds = {0: [False, False], 1: [True, True], 10: [False, True]}[static_masks]  # epochs 1 and 12, then 2 and 12
    for epoch, same in zip((1, 2), rounds, strict=True):
        positions = [own["masked_positions"][epochs == each] for each in (epoch, 12)]
        if static_masks:
            assert np.array_equal(*positions) == same


@pytest.mark.slow
def test_losses_are_those_of_a_transcription(run, small_store):
    result = mask_gap(run, sequences=12, fresh_masks=2, batch_size=5, progress=False)
    assert result.steps.tolist() == [6, 8, 12] and result.masks == "static, 2" and result.sequences == 12
    config = run_config(small_store, run, masking=MaskingConfig(static_masks=2))
    examples = Examples(open_store(small_store), config)
    model = bert_jax.load(run / "checkpoints" / "step_000000008")
    epochs, indices = last_visits(examples, 8 * 16, 12, 0)
    batches = [examples.examples_at(epochs, indices, fresh=number) for number in (None, 0, 1)]
    losses = np.array([[loss_of(model, batch, row) for row in range(12)] for batch in batches])
    assert result.trained[1] == pytest.approx(losses[0].mean(), rel=1e-5)
    assert result.fresh[1] == pytest.approx(losses[1:].mean(), rel=1e-5)
    differences = losses[0] - losses[1:].mean(axis=0)
    assert result.gap[1] == pytest.approx(differences.mean(), rel=1e-3, abs=1e-5)
    assert result.gap_error[1] == pytest.approx(differences.std(ddof=1) / np.sqrt(12), rel=1e-3)
    assert np.isfinite(result.held_out).all() and result.held_out_sequences == 12


def loss_of(model, batch: dict, row: int) -> float:
    one = {name: values[row : row + 1] for name, values in batch.items()}
    logits, used = model.mlm_logits(one)[0].astype(np.float64), one["masked_weights"][0] > 0
    scores, targets = logits[used], one["masked_ids"][0][used]
    return float(np.mean(np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(targets)), targets]))


@pytest.mark.slow
def test_the_command_leaves_its_files_and_computes_once(run, tmp_path, analyze):
    words = ["mask_gap", run, "--sequences=8", "--fresh_masks=1"]
    printed, saved = analyze(*words)
    assert f"{tmp_path}/out: result.json, mask_gap.png, mask_gap.svg" in printed and saved["steps"] == [6, 8, 12]
    assert "has this result already" in analyze(*words)[0]


def test_what_had_been_seen(small_store):
    phases = (
        PhaseConfig(steps=10, batch_size=8),
        PhaseConfig(steps=10, batch_size=6, ramp_batch_sizes=(2,), ramp_steps=4),
    )
    config = Config(phases=phases)
    for step, phase, seen in ((3, 0, 24), (10, 0, 80), (11, 1, 2), (14, 1, 8), (16, 1, 20)):
        found = seen_by(config, step)
        assert (found[0].index, found[1]) == (phase, seen)
    examples = Examples(open_store(small_store), run_config(small_store, "w"))
    first = examples.num_examples(0)
    assert set(last_visits(examples, 5, 99, 0)[1].tolist()) == set(range(5))
    for seen, complete in ((first - 1, 0), (first, 0), (first + examples.num_examples(1), 1)):
        epochs, indices = last_visits(examples, seen, 30, 0)
        assert set(epochs.tolist()) == {complete} and len(set(indices.tolist())) == 30


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"objective": Permutation()}, "objective.name=permutation has no masked words"),
        ({"data": DataConfig(packing="on")}, "its rows are packed"),
        ({"data": DataConfig(noise=PretrainingNoiseConfig(rate=0.1))}, "data.noise changes the text"),
        ({"data": DataConfig(mixture="a:1,b:1")}, "it reads a mixture of stores"),
    ],
)
def test_runs_that_cannot_be_measured_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        check_measurable(Config(**changes), "run")


def test_bad_input_is_one_line(tmp_path, capsys):
    words = ["analyze", "mask_gap", f"{tmp_path}/nowhere", f"--output={tmp_path}/o"]
    assert "sequences=0 must be at least 1" in refusal(capsys, *words, "--sequences=0")
    assert "nowhere" in refusal(capsys, *words)


@pytest.mark.slow
def test_a_run_learns_one_mask_by_heart_and_held_out_text_does_not_know_it(small_store, tmp_path):
    phase = PhaseConfig(steps=300, sequence_length=32, batch_size=32, learning_rate=3e-3, warmup_steps=10)
    config = run_config(small_store, tmp_path / "run", masking=MaskingConfig(static_masks=1), phases=(phase,))
    config = dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, held_out=0.9),  # few sequences to learn
        checkpoint=dataclasses.replace(config.checkpoint, every_steps=300),
        evaluation=dataclasses.replace(config.evaluation, every_steps=0),
        model=dataclasses.replace(config.model, hidden_dropout=0.0, attention_dropout=0.0),
    )
    pretrain(config)
    result = mask_gap(tmp_path / "run", progress=False)
    assert result.gap[-1] < -5 * result.gap_error[-1]
    assert abs(result.held_out_gap[-1]) < 4 * result.held_out_gap_error[-1]
