"""Positions that enter inside attention: turned queries and keys (RoPE), scores that fall with distance (ALiBi), order.

All depend on distances alone. So a text in a packed row is computed as if it were alone, without restarting positions,
and no length needs a table.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.models.kernels.contract import MASKED_SCORE


@dataclasses.dataclass(frozen=True)
class Rotary:
    """Rotary position embedding (Su et al. 2021) of one layer.

    Features i and i + D/2 of a head of even size D are turned by the angle position / scale · theta^(-2i/D).
    """

    theta: float
    scale: float = 1.0

    def turned(self, x: jax.Array, positions: jax.Array | None = None) -> jax.Array:
        """Return queries or keys [B, L, A, D], turned by their positions; computed in float32, in the dtype of x.

        `positions` are int32 [B, L]; None: 0, 1, 2, ….
        """
        sine, cosine = self._waves(jnp.arange(x.shape[1])[None] if positions is None else positions, x.shape[3])
        first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        turned = jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
        return turned.astype(x.dtype)

    def _waves(self, positions: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
        """Return sines and cosines [B, L, 1, D/2] for positions [B, L]."""
        exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
        frequencies = np.float32(1) / (np.float32(self.theta) ** exponents) / np.float32(self.scale)
        angles = positions.astype(jnp.float32)[:, :, None, None] * jnp.asarray(frequencies)[None, None, None, :]
        return jnp.sin(angles), jnp.cos(angles)


def alibi_bias(heads: int, distance: jax.Array) -> jax.Array:
    """Return what ALiBi adds to the scores, float32 [A, …] for distances […]: -slope of the head · distance."""
    slopes = alibi_slopes(heads).reshape(heads, *(1,) * distance.ndim)
    return -jnp.asarray(slopes) * jnp.abs(distance).astype(jnp.float32)[None]


def causal_bias(distance: jax.Array) -> jax.Array:
    """Return what hides the tokens after a token from it: float32 [1, …] for distances […], 0 or MASKED_SCORE."""
    return jnp.where(distance > 0, MASKED_SCORE, 0.0)[None]


def alibi_slopes(heads: int) -> np.ndarray:
    """Return float32 [A]: 2^(-8/n), 2^(-16/n), … for n heads (Press et al. 2022).

    If n is not a power of two, the slopes of the next lower power come first, then every other one of the next higher,
    as in the published code.
    """
    lower = 2 ** math.floor(math.log2(heads))
    slopes = _powers(lower) + _powers(2 * lower)[::2][: heads - lower]
    return np.asarray(slopes, np.float32)


def _powers(count: int) -> list[float]:
    return [2.0 ** (-8 * (number + 1) / count) for number in range(count)]
