"""The moving average of the weights against its closed form."""

import jax
import numpy as np
import optax
import pytest

from bert_jax.training.optimizers import average_of, averaged, moved, restarted, with_average_of

SGD = optax.identity()


@pytest.mark.parametrize("decay", [0.5, 0.999])
def test_the_average_is_the_closed_form(decay):
    """Σ_t (1 − d_t) Π_{s > t} d_s · p_t, plus the start's own share, which is what the decays leave."""
    random = np.random.default_rng(0)
    values = random.normal(size=(9, 3, 2)).astype(np.float32)
    rule = averaged(SGD, decay)
    state = rule.init({"w": values[0]})
    for step in range(8):
        _, state = rule.update({"w": values[step]}, state, {"w": values[step]})
        state = jax.jit(moved)(state, {"w": values[step + 1]}, np.int32(step))
    decays = np.array([min(decay, (1 + step) / (10 + step)) for step in range(8)])
    expected = values[0] * np.prod(decays)
    for step in range(8):
        expected = expected + (1 - decays[step]) * np.prod(decays[step + 1 :]) * values[step + 1]
    np.testing.assert_allclose(average_of(state)["w"], expected, rtol=1e-5)


def test_a_fresh_start_and_fresh_moments():
    rule = averaged(optax.trace(0.9), 0.9)
    state = moved(rule.init({"w": np.ones(2)}), {"w": np.full(2, 3.0)}, np.int32(0))
    again = with_average_of(rule.init({"w": np.zeros(2)}), state)
    np.testing.assert_allclose(average_of(again)["w"], average_of(state)["w"])
    np.testing.assert_array_equal(average_of(restarted(state, {"w": np.full(2, 7.0)}))["w"], np.full(2, 7.0))


def test_without_a_decay_nothing_is_kept():
    assert averaged(SGD, 0.0) is SGD
    state = SGD.init({"w": np.ones(2)})
    assert moved(state, {"w": np.zeros(2)}, np.int32(3)) is state and restarted(state, {"w": np.zeros(2)}) is state
    assert average_of(state) is None and with_average_of(state, state) is state
