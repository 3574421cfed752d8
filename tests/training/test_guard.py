"""When steps count as trouble, and that a guard with the memory of another decides as that one does."""

import json

import numpy as np
import pytest

from bert_jax.config import FaultsConfig
from bert_jax.training.reporter import FEWEST, WINDOW, Guard, Trouble


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


def test_equal_losses_are_no_spikes():
    guard = Guard(FaultsConfig(spike_threshold=5), {})
    assert observe(guard, [2.0] * 100 + [2.0099]) is None  # 5 × 0.001 × 2 above the median
    assert observe(guard, [2.0101]) == (1, 1)


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
