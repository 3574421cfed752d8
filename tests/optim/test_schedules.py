"""Learning rates against closed forms in float64."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import Config, PhaseConfig, ScheduleConfig
from bert_jax.training.optimizers import learning_rate

PAPER = Config(phases=(PhaseConfig(steps=1_000_000, warmup_steps=10_000, learning_rate=1e-4),))


def config(steps=1000, warmup=100, peak=0.5, **schedule) -> Config:
    phase = PhaseConfig(steps=steps, warmup_steps=warmup, learning_rate=peak)
    return Config(phases=(phase,), schedule=ScheduleConfig(**schedule))


def test_the_2018_line_over_a_million_steps():
    steps = np.concatenate(
        [np.arange(0, 20_000, 7), np.arange(20_000, 1_000_001, 1_009), np.arange(999_990, 1_000_001)]
    )
    expected = 1e-4 * np.where(steps < 10_000, steps / 10_000, 1 - steps / 1e6)
    np.testing.assert_allclose(learning_rate(PAPER, steps), expected, rtol=3e-7, atol=0)


def test_anchor_points_of_the_2018_line():
    assert learning_rate(PAPER, 0) == 0
    np.testing.assert_allclose(learning_rate(PAPER, 9_999), 0.9999e-4, rtol=2e-7)
    np.testing.assert_allclose(learning_rate(PAPER, 10_000), 1e-4 * (1 - 10_000 / 1_000_000), rtol=2e-7)  # not the peak
    np.testing.assert_allclose(learning_rate(PAPER, 999_999), 1e-10, rtol=2e-7)
    assert learning_rate(PAPER, 1_000_000) == 0


@pytest.mark.parametrize(
    "schedule, expected",
    [
        (dict(name="linear"), lambda t: 1 - t / 1000),
        (dict(name="linear", final_fraction=0.1), lambda t: 0.1 + 0.9 * (1 - t / 1000)),
        (dict(name="polynomial", power=0.5), lambda t: math.sqrt(1 - t / 1000)),
        (dict(name="polynomial", power=2.0, final_fraction=0.2), lambda t: 0.2 + 0.8 * (1 - t / 1000) ** 2),
        (dict(name="cosine"), lambda t: 0.5 * (1 + math.cos(math.pi * (t - 100) / 900))),
        (dict(name="cosine", final_fraction=0.1), lambda t: 0.1 + 0.45 * (1 + math.cos(math.pi * (t - 100) / 900))),
        (dict(name="constant"), lambda t: 1.0),
        (
            dict(name="constant", cooldown_steps=200, final_fraction=0.25),
            lambda t: min(1.0, 0.25 + 0.75 * (1000 - t) / 200),
        ),
        (
            dict(name="constant", cooldown_steps=200, cooldown="one_minus_sqrt", final_fraction=0.25),
            lambda t: 0.25 + 0.75 * (1 - math.sqrt(max(0, t - 800) / 200)),
        ),
    ],
)
def test_closed_forms(schedule, expected):
    steps = np.array([0, 1, 50, 99, 100, 101, 400, 799, 800, 801, 999, 1000])
    wanted = [0.5 * (t / 100 if t < 100 else expected(t)) for t in steps]
    np.testing.assert_allclose(learning_rate(config(**schedule), steps), wanted, rtol=2e-6, atol=2e-8)


def test_no_warm_up_begins_at_the_peak_and_the_default_is_a_hundredth():
    np.testing.assert_allclose(learning_rate(config(warmup=0), np.array([0, 1])), [0.5, 0.4995], rtol=1e-6)
    np.testing.assert_allclose(learning_rate(config(warmup=None), np.array([5, 10])), [0.25, 0.5 * 0.99], rtol=1e-6)


def test_continuing_phases_share_one_line_and_scale_it():
    phases = (PhaseConfig(steps=900, warmup_steps=10, learning_rate=0.5), PhaseConfig(steps=100, learning_rate=0.5))
    steps = np.arange(1001)
    np.testing.assert_array_equal(learning_rate(Config(phases=phases), steps), learning_rate(config(warmup=10), steps))
    lower = (phases[0], dataclasses.replace(phases[1], learning_rate=0.1))
    rates = learning_rate(Config(phases=lower), np.array([899, 900, 950]))
    np.testing.assert_allclose(rates, [0.5 * 0.101, 0.1 * 0.1, 0.1 * 0.05], rtol=1e-6)


def test_restarting_phases_have_schedules_of_their_own():
    phases = (
        PhaseConfig(steps=900, warmup_steps=10, learning_rate=0.5),
        PhaseConfig(steps=60, warmup_steps=20, learning_rate=0.2, schedule="restart"),
        PhaseConfig(steps=40, learning_rate=0.2),
    )
    rates = learning_rate(Config(phases=phases), np.array([10, 899, 900, 910, 920, 960, 999, 1000]))
    wanted = [0.5 * 890 / 900, 0.5 / 900, 0, 0.1, 0.2 * 0.8, 0.2 * 0.4, 0.2 * 0.01, 0]
    np.testing.assert_allclose(rates, wanted, rtol=1e-6)


def test_python_numpy_and_traced_steps_agree():
    compiled = jax.jit(lambda step: learning_rate(PAPER, step))
    for step in (0, 123, 10_000, 777_777):
        assert learning_rate(PAPER, step) == learning_rate(PAPER, np.int64(step)) == compiled(jnp.int32(step))
    assert learning_rate(PAPER, 5).dtype == jnp.float32
