"""The Transformer block, and a stack of N of them whose parameters share a leading axis of size N."""

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import ComputeConfig, ModelConfig
from bert_jax.models.attention import SelfAttention
from bert_jax.models.layers import LayerNorm, Linear, activation, dropout

LOOP_LIMIT = 12  # layers; beyond, compiling an unrolled stack costs more than scan loses

REMAT_POLICIES = {
    # Products with a kernel are kept; those of attention, which grow with the square of the length, are computed again.
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
}


class FeedForward(nnx.Module):
    def __init__(self, config: ModelConfig, key: jax.Array):
        hidden, wide = (config.hidden_size,), (config.feed_forward_size,)
        intermediate_key, output_key = jax.random.split(key)
        self.activation = config.activation
        self.intermediate = Linear(hidden, wide, config.initializer_range, intermediate_key)
        self.output = Linear(wide, hidden, config.initializer_range, output_key)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.output(activation(self.intermediate(x), self.activation))


class Block(nnx.Module):
    """Attention and feed-forward, each inside a residual connection with dropout.

    post (BERT): x = norm(x + f(x)).  pre: x = x + f(norm(x)).
    """

    def __init__(self, config: ModelConfig, key: jax.Array):
        attention_key, feed_forward_key = jax.random.split(key)
        self.rate, self.pre_norm = config.hidden_dropout, config.norm_position == "pre"
        self.attention = SelfAttention(config, attention_key)
        self.attention_norm = LayerNorm(config.hidden_size, config.layer_norm_epsilon)
        self.feed_forward = FeedForward(config, feed_forward_key)
        self.feed_forward_norm = LayerNorm(config.hidden_size, config.layer_norm_epsilon)

    def __call__(self, x: jax.Array, mask: jax.Array, dropout_key: jax.Array | None, collect: bool):
        """x [B, L, H] to (x [B, L, H], attention weights [B, A, L, L] if `collect` else None)."""
        keys = (None,) * 3 if dropout_key is None else jax.random.split(dropout_key, 3)
        y, weights = self.attention(self.attention_norm(x) if self.pre_norm else x, mask, keys[0], collect)
        x = x + dropout(y, self.rate, keys[1])
        x = x if self.pre_norm else self.attention_norm(x)
        y = self.feed_forward(self.feed_forward_norm(x) if self.pre_norm else x)
        x = x + dropout(y, self.rate, keys[2])
        return x if self.pre_norm else self.feed_forward_norm(x), weights


def stacked_blocks(config: ModelConfig, key: jax.Array) -> Block:
    """A Block whose every parameter has a leading axis of num_layers; each layer is drawn from a key of its own."""
    return jax.vmap(lambda layer_key: Block(config, layer_key))(jax.random.split(key, config.num_layers))


def run_stack(
    blocks: Block,
    x: jax.Array,
    mask: jax.Array,
    dropout_key: jax.Array | None,
    compute: ComputeConfig,
    collect: bool = False,
):
    """Runs x through stacked blocks; scan, loop and every remat policy give the same values.

    Args:
        blocks: from `stacked_blocks`.
        x: [B, L, H].
        mask: [B, L], 1 = real token.
        dropout_key: None for no dropout.
        compute: `layers` and `remat` are read.
        collect: also return what each layer gave.

    Returns:
        (x [B, L, H], None), or with `collect` (x, N pairs of output [B, L, H] and attention weights [B, A, L, L]).
    """
    num_layers = blocks.attention_norm.scale.shape[0]
    scan = compute.layers == "scan" or (compute.layers == "auto" and num_layers > LOOP_LIMIT)
    layers = (blocks, None if dropout_key is None else jax.random.split(dropout_key, num_layers))

    def step(x, layer):
        block, key = layer
        x, weights = block(x, mask, key, collect)
        return x, (x, weights) if collect else None

    if compute.remat != "none":
        step = jax.checkpoint(step, policy=REMAT_POLICIES[compute.remat], prevent_cse=not scan)
    if scan:
        x, collected = jax.lax.scan(step, x, layers)
        collected = unstack(collected, num_layers)
    else:
        collected = []
        for layer in unstack(layers, num_layers):
            x, output = step(x, layer)
            collected.append(output)
    return x, collected if collect else None


def unstack(tree, size: int) -> list:
    """List of `size` trees, one for each entry of the leading axis that all leaves share."""
    leaves, structure = jax.tree.flatten(tree)
    # lax.split rather than leaf[i]: its gradient is one concatenation instead of a sum of padded arrays.
    pieces = [[jnp.squeeze(part, 0) for part in jax.lax.split(leaf, [1] * size)] for leaf in leaves]
    return [jax.tree.unflatten(structure, parts) for parts in zip(*pieces)] if leaves else [tree] * size
