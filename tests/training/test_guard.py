"""Guarded steps, frozen parameters, and samples."""

import dataclasses
import json
import pathlib

import jax
import numpy as np
import pytest
from pretrained_model import random_params
from small_model import FLOAT32, SMALL, make_batch
from small_pretraining import assert_filled_in, pretrain, rows, run_config

import bert_jax
from bert_jax.checkpoints.record import leaf_paths
from bert_jax.config import Config, DataConfig, EvaluationConfig, FaultsConfig, MeshConfig, PhaseConfig
from bert_jax.config.objective import DistillationConfig, LeftToRight, MaskedWords
from bert_jax.config.pretraining import ReportConfig
from bert_jax.devices import sharding
from bert_jax.models.bert import BertForPreTraining
from bert_jax.objectives.distillation import Teacher
from bert_jax.objectives.masked_words import MASKED_WORDS, NEXT_SENTENCE
from bert_jax.parameters import entries
from bert_jax.pretraining import make_learner
from bert_jax.tools.report import is_samples, run_report
from bert_jax.training.evaluation import make_samples
from bert_jax.training.events import read_events
from bert_jax.training.reporter import FEWEST, WINDOW, Guard, Trouble, too_little
from bert_jax.training.state import state_shardings


def observe(guard: Guard, losses) -> tuple[int, int] | None:
    """The steps of the trouble that the losses of steps 1, 2, … are; None if they are none."""
    for step, loss in enumerate(losses, 1):
        try:
            guard.observe(step, float(loss), skipped=not np.isfinite(loss))
        except Trouble as trouble:
            return trouble.first, trouble.last
    return None


def test_only_skips_in_a_row_are_trouble():
    nan = float("nan")
    faults = FaultsConfig(max_skipped_steps=3)
    assert observe(Guard(faults, {}), [1.0, nan, nan, 1.0, nan, nan, 1.0]) is None
    assert observe(Guard(faults, {}), [1.0, nan, nan, 1.0, nan, float("inf"), nan, 1.0]) == (5, 7)
    # Two skips before an interruption and one after it are three, which began before the step it resumed from.
    guard = Guard(faults, {})
    observe(guard, [1.0, nan, nan])
    with pytest.raises(Trouble) as found:
        Guard(faults, guard.memory()).observe(4, nan, skipped=True)
    assert (found.value.first, found.value.last) == (2, 4)


def bound(losses, threshold: float) -> float:
    """Median + threshold · 1.4826 · median absolute deviation, as Rousseeuw and Croux (1993) define it."""
    return np.median(losses) + threshold * 1.4826 * np.median(np.abs(losses - np.median(losses)))


def test_a_spike_is_measured_against_the_median_of_the_window():
    losses = 5 + np.random.default_rng(0).normal(size=300)
    highest = bound(losses[-WINDOW:], 6)
    for last, trouble in ((highest - 1e-6, None), (highest + 1e-6, (301, 301))):
        assert observe(Guard(FaultsConfig(spike_threshold=6), {}), [*losses, last]) == trouble
    assert observe(Guard(FaultsConfig(), {}), [*losses, 1e9]) is None  # off by default
    few = losses[: FEWEST - 1]
    assert observe(Guard(FaultsConfig(spike_threshold=6), {}), [*few, 1e9]) is None
    # A third of outliers moves neither median far: their mean plus six standard deviations would admit this loss.
    memory = {"losses": [*losses[-WINDOW:-40], *[30.0] * 40]}
    assert np.mean(memory["losses"]) + 6 * np.std(memory["losses"]) > 29
    assert observe(Guard(FaultsConfig(spike_threshold=6), memory), [29]) == (1, 1)


def test_batches_in_which_nothing_is_predicted_say_nothing_of_spikes():
    """Their loss is 0; were they most of the window, any other would be a spike."""
    losses = 5 + np.random.default_rng(0).normal(size=300)
    with_empty = np.concatenate([losses, np.zeros(WINDOW)])
    assert observe(Guard(FaultsConfig(spike_threshold=6), {}), [*with_empty, losses.max()]) is None
    assert observe(Guard(FaultsConfig(spike_threshold=6), {}), [*with_empty, 50.0]) == (429, 429)


def test_equal_losses_are_no_spikes():
    guard = Guard(FaultsConfig(spike_threshold=5), {})
    assert observe(guard, [2.0] * 100 + [2.0099]) is None  # 5 × 0.001 × 2 above the median
    assert observe(guard, [2.0101]) == (1, 1)


def test_a_run_that_is_worse_than_word_frequencies_is_told_how_much_it_lacks():
    """At step 60, 9.36 of ln 30,522 = 10.33: half of the way to 8.32, so that 100 steps lead there."""
    say = lambda loss, step=60: too_little(step, (MASKED_WORDS, NEXT_SENTENCE), loss, {"mlm_loss": 8.32}, 30_522)
    (line,) = say({"mlm_loss": 9.36, "next_sentence_loss": 0.7})
    assert "mlm_loss 9.36 is worse than 8.32" in line and "about 100 steps" in line
    assert "very many steps" in say({"mlm_loss": 10.33})[0] and "very many steps" in say({"mlm_loss": 11.0})[0]
    assert say({"mlm_loss": 8.3}) == say({}) == say({"mlm_loss": np.nan}) == []


def test_the_memory_goes_through_json_exactly():
    losses = np.random.default_rng(1).normal(size=200).astype(np.float32) + 5
    faults = FaultsConfig(spike_threshold=4)
    whole, first = Guard(faults, {}), Guard(faults, {})
    observe(whole, losses)
    observe(first, losses[:150])
    second = Guard(faults, json.loads(json.dumps(first.memory())))
    observe(second, losses[150:])
    assert second.memory() == whole.memory() and len(whole.memory()["losses"]) == WINDOW
    assert Guard(FaultsConfig(), {}).memory() == {}


@pytest.mark.parametrize("skipped", [True, False])
def test_a_spike_that_is_skipped_does_not_enter_the_window(skipped):
    guard = Guard(FaultsConfig(spike_threshold=5), {})
    guard.observe(1, 3.0, skipped=skipped)
    assert guard.memory() == ({"skipped": 1} if skipped else {"losses": [3.0]})


ONE_LAYER = dataclasses.replace(SMALL, num_layers=1)


def learner_on(mesh, arrays):
    teacher_model = BertForPreTraining(ONE_LAYER, FLOAT32, ("mlm",))
    where = sharding.shardings(mesh, entries(teacher_model.parameters, arrays))
    teacher = Teacher(teacher_model, jax.device_put(arrays, where), "fingerprint")
    data = DataConfig(sentence_pairs="none")
    objective = MaskedWords(distillation=DistillationConfig(teacher="there"))
    phases = (PhaseConfig(steps=4, sequence_length=14, batch_size=3, max_predictions=4),)
    config = Config(model=ONE_LAYER, compute=FLOAT32, data=data, objective=objective, phases=phases)
    return make_learner(config, mesh, teacher=teacher)


@pytest.fixture(scope="module")
def arrays():
    return random_params(BertForPreTraining(ONE_LAYER, FLOAT32, ("mlm",)), seed=4)


def test_a_teacher_is_neither_trained_nor_consumed(arrays):
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:1])
    learner = learner_on(mesh, arrays)
    (phase,) = learner.stages
    state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), learner.abstract)
    state = dataclasses.replace(state, params=random_params(learner.objective.model))
    state = jax.device_put(state, state_shardings(learner.abstract))
    assert not [path for path in leaf_paths(state) if "teacher" in path]
    batch = {name: values for name, values in make_batch().items() if not name.startswith("next_sentence")}
    batch = sharding.to_global(mesh, batch, 3)
    step = learner.train_step(phase).lower(state, batch, *learner.frozen).compile()
    found = []
    for _ in range(2):
        state, metrics = step(state, batch, *learner.frozen)
        found.append(float(metrics["soft_targets_loss"]))
    assert found[0] != found[1] > 0
    for path, values in leaf_paths(learner.teacher.params).items():
        assert np.asarray(values).tobytes() == leaf_paths(arrays)[path].tobytes()


def test_a_teacher_is_an_argument_and_no_constant_of_the_program(arrays):
    learner = learner_on(sharding.make_mesh(MeshConfig(), jax.devices()[:1]), arrays)
    (phase,) = learner.stages
    arguments = learner.abstract, learner.abstract_batch(phase), *learner.frozen
    text = learner.train_step(phase).lower(*arguments).as_text()
    assert text.split("func.func public @main(")[1].split("->")[0].count("%arg") == len(jax.tree.leaves(arguments))


@pytest.mark.slow
def test_a_run_notes_what_its_model_fills_in(finished, small_store, tmp_path):
    """And it learns what it learns without."""
    evaluation = EvaluationConfig(every_steps=6, sequences=64, batch_size=32, samples=3)
    config = run_config(small_store, tmp_path / "run", evaluation=evaluation)
    pretrain(config)
    assert rows(config.workdir) == rows(finished[0].workdir)
    assert rows(config.workdir, "evaluation") == rows(finished[0].workdir, "evaluation")
    noted = [row for row in read_events(tmp_path / "run" / "events.jsonl") if row["event"] == "sampled"]
    assert [row["step"] for row in noted] == [6, 12] and all(is_samples(row["samples"]) for row in noted)
    first, last = (row["samples"] for row in noted)
    assert [sample["text"] for sample in first] == [sample["text"] for sample in last] and len(last) == 3
    assert_filled_in(bert_jax.load(config.workdir), last)  # of step 12
    run_report([config.workdir], ReportConfig(output=str(tmp_path / "page.html")))
    page = pathlib.Path(tmp_path / "page.html").read_text()
    assert "<th>step 6</th><th>step 12</th>" in page and f"<td>{last[0]['masks'][0]['word']}</td>" in page


@pytest.mark.slow
def test_fewer_samples_than_devices_of_several_slices(small_store, tmp_path):
    """One row for each device of both slices; the surplus is not noted."""
    evaluation = EvaluationConfig(every_steps=6, sequences=64, batch_size=32, samples=2)
    config = run_config(small_store, tmp_path / "run", evaluation=evaluation, mesh=MeshConfig(slice=2))
    bert_jax.pretrain(config, devices=jax.devices()[:4])
    noted = [row for row in read_events(tmp_path / "run" / "events.jsonl") if row["event"] == "sampled"]
    assert [len(row["samples"]) for row in noted] == [2, 2] and all(is_samples(row["samples"]) for row in noted)


def test_what_has_another_form_is_no_sample():
    good = [{"text": "a [MASK]", "masks": [{"word": "b", "candidates": []}]}]
    assert is_samples(good) and is_samples([])
    wrong = [[{"text": text, "masks": masks}] for text, masks in ((3, []), ("", [3]), ("", 3))]
    assert not any(is_samples(bad) for bad in (None, {}, "x", [3], *wrong))


@pytest.mark.parametrize("given, parts", [(LeftToRight(), ("mlm",)), (MaskedWords(), ("pooler",))])
def test_of_what_fills_no_masks_in_nothing_is_noted_and_that_is_said(given, parts, caplog):
    model = bert_jax.BertForPreTraining(bert_jax.ModelConfig(vocab_size=61), parts=parts)
    assert make_samples(model, evaluation=None, tokenizer=None, objective=given, shardings=None, count=3) is None
    form = f"the model BertForPreTraining with objective.name={given.name}"
    assert f"evaluation.samples=3 notes nothing: {form}" in caplog.text


def test_without_the_option_nothing_is_noted(finished):
    events = read_events(pathlib.Path(finished[0].workdir) / "events.jsonl")
    assert "evaluated" in {row["event"] for row in events} and "sampled" not in {row["event"] for row in events}
    assert dataclasses.asdict(finished[0].evaluation)["samples"] == 0
