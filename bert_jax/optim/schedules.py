"""Learning rate as a pure function of the global step.

A schedule begins with the first phase and with every phase that says `schedule="restart"`, and ends where the next one
begins. Inside it, a phase scales the common shape by its own peak, so it may continue the line at a different height.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from bert_jax.config import Config, ScheduleConfig, resolve_phases


def learning_rate(config: Config, step: jax.Array | np.ndarray | int) -> jax.Array:
    """Return the learning rate, float32, of the update from `step` to `step + 1`, for integers of any shape.

    Integers are subtracted before anything is divided, so the result is the rounded exact one up to step 2^24.
    """
    step = jnp.asarray(step, jnp.int32)
    rate = jnp.zeros(step.shape, jnp.float32)
    for phase in resolve_phases(config):
        fraction = shape(config.schedule, step - phase.schedule_begin, phase.schedule_length, phase.warmup_steps)
        rate = jnp.where(step >= phase.begin, jnp.float32(phase.learning_rate) * fraction, rate)
    return rate


def shape(schedule: ScheduleConfig, step: ArrayLike, length: int, warmup: int) -> jax.Array:
    """Return the fraction of the peak at `step` of `length` steps: from 0 (if there is a warm-up) to final_fraction."""
    step = jnp.clip(step, 0, length)
    after = _descent(schedule, step, length, warmup)
    if not warmup:
        return after
    return jnp.where(step < warmup, _ratio(step, warmup), after)


def _descent(schedule: ScheduleConfig, step: jax.Array, length: int, warmup: int) -> jax.Array:
    """Return the fraction of the peak after the warm-up.

    linear and polynomial are lines and powers counted from step 0, which the warm-up merely overrides: right after it
    the rate is peak · (1 − warmup/length)^power (google-research/bert optimization.py, tf.train.polynomial_decay).
    linear_after_warmup and cosine start from the full peak at the end of the warm-up.
    """
    if schedule.name == "constant":
        if not schedule.cooldown_steps:
            return jnp.ones(step.shape, jnp.float32)
        left = jnp.minimum(_ratio(length - step, schedule.cooldown_steps), 1.0)
        if schedule.cooldown == "one_minus_sqrt":
            over = jnp.maximum(step - (length - schedule.cooldown_steps), 0)
            left = 1.0 - jnp.sqrt(_ratio(over, schedule.cooldown_steps))
    elif schedule.name == "cosine":
        left = 0.5 + 0.5 * jnp.cos(jnp.pi * _ratio(step - warmup, max(length - warmup, 1)))
    elif schedule.name == "linear_after_warmup":
        left = _ratio(length - step, max(length - warmup, 1))
    elif schedule.name == "polynomial":
        left = _ratio(length - step, length) ** jnp.float32(schedule.power)
    else:
        left = _ratio(length - step, length)
    return schedule.final_fraction + (1.0 - schedule.final_fraction) * left


def _ratio(numerator: jax.Array, denominator: int) -> jax.Array:
    return numerator.astype(jnp.float32) / jnp.float32(denominator)
