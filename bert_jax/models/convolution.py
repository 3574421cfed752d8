"""The convolution beside the first layer of the two larger DeBERTa-v2 models, which learns n-grams of pieces."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from bert_jax.config import ModelConfig
from bert_jax.models.kernels.contract import AttentionMask
from bert_jax.models.layers import Linear, dropout
from bert_jax.models.norms import Norm, make_norm


def neighbours(x: jax.Array, mask: AttentionMask, width: int) -> jax.Array:
    """Return [B, L, W, H]: what is around each position of x [B, L, H], from the left to the right.

    Beyond the ends of a text there are zeros: padding, and tokens of another text of the row, are not seen.
    """
    length = x.shape[1]

    def around(values: jax.Array) -> jax.Array:
        edges = ((0, 0), (width // 2, width // 2), *((0, 0),) * (values.ndim - 2))
        padded = jnp.pad(values, edges)
        return jnp.stack([padded[:, place : place + length] for place in range(width)], axis=2)

    seen = around(mask.padding > 0)
    if mask.segments is not None:
        seen &= around(mask.segments) == mask.segments[:, :, None]
    return around(x) * seen[..., None].astype(x.dtype)


class Convolution(nnx.Module):
    """norm(states + activation(dropout(convolution of the embeddings))), with one output per feature."""

    def __init__(self, config: ModelConfig, key: jax.Array, activation: Callable[[jax.Array], jax.Array]):
        hidden = (config.hidden_size,)
        self.width: int = config.convolution_width
        self.rate: float = config.hidden_dropout
        self.activation: Callable[[jax.Array], jax.Array] = activation
        inputs = (self.width, *hidden)
        self.dense: Linear = Linear(inputs, hidden, config.initializer_range, key, config.use_bias)
        self.norm: Norm = make_norm(config, config.hidden_size)

    def __call__(
        self, embedded: jax.Array, states: jax.Array, mask: AttentionMask, dropout_key: jax.Array | None
    ) -> jax.Array:
        """Return [B, L, H] from what entered the first layer and what left it, both [B, L, H]."""
        y = checkpoint_name(self.dense(neighbours(embedded, mask, self.width)), "convolution")
        return self.norm(states + self.activation(dropout(y, self.rate, dropout_key)))
