"""The feed-forward network of a block, plain and gated."""

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
        self.intermediate: Linear = Linear(hidden, wide, config.initializer_range, intermediate_key, config.use_bias)
        self.output: Linear = Linear(wide, hidden, config.output_range, output_key, config.use_bias)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map x [..., H] to [..., H]."""
        return self.output(self.activation(checkpoint_name(self.intermediate(x), "intermediate")))


class GatedFeedForward(nnx.Module):
    """activation(gate(x)) ⊙ intermediate(x) → output: H → intermediate size → H (Shazeer 2020).

    Two matrices, not one of twice the width, so that both are split alike over devices.
    """

    def __init__(self, config: ModelConfig, key: jax.Array, activation: Callable[[jax.Array], jax.Array]):
        hidden, wide = (config.hidden_size,), (config.feed_forward_size,)
        gate_key, intermediate_key, output_key = jax.random.split(key, 3)
        self.activation = activation
        self.gate: Linear = Linear(hidden, wide, config.initializer_range, gate_key, config.use_bias)
        self.intermediate: Linear = Linear(hidden, wide, config.initializer_range, intermediate_key, config.use_bias)
        self.output: Linear = Linear(wide, hidden, config.output_range, output_key, config.use_bias)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map x [..., H] to [..., H]."""
        gate, values = checkpoint_name(self.gate(x), "gate"), checkpoint_name(self.intermediate(x), "intermediate")
        return self.output(self.activation(gate) * values)
