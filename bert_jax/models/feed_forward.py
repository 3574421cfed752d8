"""The feed-forward network of a block."""

from collections.abc import Callable

import jax
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from bert_jax.config import ModelConfig
from bert_jax.models.layers import Linear


class FeedForward(nnx.Module):
    """Two affine maps with an activation between them: H → intermediate size → H."""

    def __init__(self, config: ModelConfig, key: jax.Array, activation: Callable[[jax.Array], jax.Array]):
        hidden, wide = (config.hidden_size,), (config.feed_forward_size,)
        intermediate_key, output_key = jax.random.split(key)
        self.activation = activation
        self.intermediate = Linear(hidden, wide, config.initializer_range, intermediate_key)
        self.output = Linear(wide, hidden, config.initializer_range, output_key)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map x [..., H] to [..., H]."""
        return self.output(self.activation(checkpoint_name(self.intermediate(x), "intermediate")))
