"""Initial values of the table of absolute positions, which is learned."""

import math

import jax
import jax.numpy as jnp

from bert_jax.config import ModelConfig
from bert_jax.models.layers import truncated_normal

TRUNCATED_STD = 0.87962566  # standard deviation of a unit normal cut at ±2


def random_positions(config: ModelConfig, key: jax.Array) -> jax.Array:
    """Return a position table [positions, H] drawn like every other table of the model."""
    return truncated_normal(key, (config.max_position_embeddings, config.word_size), config.initializer_range)


def sinusoidal_positions(config: ModelConfig, key: jax.Array) -> jax.Array:
    """Return sinusoids [positions, H]; nothing is drawn from `key`.

    They are scaled to the root mean square of the random tables (that of sinusoids is √½), or words would drown in
    positions.
    """
    del key
    scale = config.initializer_range * TRUNCATED_STD * math.sqrt(2)
    return scale * sinusoids(config.max_position_embeddings, config.word_size)


def sinusoids(length: int, size: int) -> jax.Array:
    """Return the table [length, size] of Vaswani et al. 2017, section 3.5: sines at even features, cosines at odd."""
    feature = jnp.arange(size, dtype=jnp.float32)[None, :]
    angle = jnp.arange(length, dtype=jnp.float32)[:, None] * 10_000.0 ** (-2 * (feature // 2) / size)
    return jnp.where(feature % 2 == 0, jnp.sin(angle), jnp.cos(angle))
