"""A stack of layers whose parameters share a leading axis, run as one scan or unrolled."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.errors import UserError
from bert_jax.models.kernels.contract import AttentionKernel, AttentionMask

# What blocks name (checkpoint_name). Kept, they leave to the backward pass only what costs no product with a kernel:
# attention between its projections, norms, activations and dropout.
SELECTED = (
    *("query", "key", "value", "attention_output", "attention_sum"),
    *("intermediate", "feed_forward_sum", "mean", "variance"),
)

REMAT_POLICIES = {
    "sel": jax.checkpoint_policies.save_only_these_names(*SELECTED),
    # Products with a kernel are kept; those of attention, which grow with the square of the length, are computed again.
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
}


Layer = Callable[..., tuple[jax.Array, jax.Array | None]]
"""One layer of a stack: an nnx.Module that is called as (x, mask, dropout_key, attend, collect, **layer_inputs).

It maps x [B, L, H] to (x [B, L, H], attention probabilities [B, A, L, L] if `collect`, else None); see `blocks.Block`.
"""


@dataclasses.dataclass(frozen=True, eq=False)
class Stack:
    """N layers: what they are, how they differ, and how they are run.

    Raises UserError if `sharing` or `layer_inputs` do not have one entry per layer.
    """

    block: Callable[[jax.Array], Layer]
    """Makes one block from a key."""
    num_layers: int
    """Number of layers, N."""
    attend: AttentionKernel
    """The attention kernel of every layer."""
    scan: bool
    """True: one scan over the layers, which compiles fast; False: unrolled, which runs faster. The values are equal."""
    remat: Literal["none", "sel", "dots", "full"] = "none"
    """What the backward pass computes again (ComputeConfig.remat)."""
    sharing: tuple[int, ...] | None = None
    """Index of the parameters of each layer, where several layers use the same ones. None: each has its own."""
    layer_inputs: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """{argument of the block: array [N, ...] of its value in each layer}, such as a window or a rotary base."""

    def __post_init__(self):
        if self.sharing is not None and len(self.sharing) != self.num_layers:
            raise UserError(f"sharing={self.sharing} must have one index for each of {self.num_layers} layers")
        for name, values in self.layer_inputs.items():
            if len(values) != self.num_layers:
                raise UserError(
                    f"layer_inputs[{name!r}] has {len(values)} entries and must have one for each of "
                    f"{self.num_layers} layers"
                )

    @property
    def num_blocks(self) -> int:
        """Number of sets of parameters, the size of the leading axis."""
        return self.num_layers if self.sharing is None else max(self.sharing) + 1


def stacked_blocks(stack: Stack, key: jax.Array) -> Layer:
    """Return a block whose parameters all have a leading axis of `num_blocks`; each set is drawn from its own key."""
    return jax.vmap(stack.block)(jax.random.split(key, stack.num_blocks))


def run_stack(
    stack: Stack,
    blocks: Layer,
    x: jax.Array,
    mask: AttentionMask,
    dropout_key: jax.Array | None,
    collect: bool = False,
) -> tuple[jax.Array, list[tuple[jax.Array, jax.Array]] | None]:
    """Run x through the layers; scan, loop and every remat policy give the same values.

    Args:
      stack: what the layers are and how they are run.
      blocks: from `stacked_blocks`.
      x: [B, L, H].
      mask: for all layers; a block may restrict it further.
      dropout_key: None for no dropout.
      collect: also return the output of each layer.

    Returns:
      (x [B, L, H], None), or with `collect` (x, N pairs of output [B, L, H] and attention probabilities [B, A, L, L]).
    """
    keys = None if dropout_key is None else jax.random.split(dropout_key, stack.num_layers)
    inputs = dict(stack.layer_inputs)

    def step(x: jax.Array, layer: tuple[Layer, jax.Array | None, dict[str, jax.Array]]):
        block, key, inputs = layer
        x, weights = block(x, mask, key, stack.attend, collect, **inputs)
        return x, (x, weights) if collect else None

    def shared_step(x: jax.Array, layer: tuple[jax.Array, jax.Array | None, dict[str, jax.Array]]):
        index, key, inputs = layer
        return step(x, (_select(blocks, index), key, inputs))

    if stack.scan:
        run, first = (step, blocks) if stack.sharing is None else (shared_step, jnp.asarray(stack.sharing))
        x, collected = jax.lax.scan(_with_remat(run, stack), x, (first, keys, inputs))
        return x, unstack(collected, stack.num_layers) if collect else None
    run, collected, own = _with_remat(step, stack), [], unstack(blocks, stack.num_blocks)
    per_layer = unstack((keys, inputs), stack.num_layers)
    for index, rest in zip(stack.sharing or range(stack.num_layers), per_layer, strict=True):
        x, output = run(x, (own[index], *rest))
        collected.append(output)
    return x, collected if collect else None


def unstack(tree: Any, size: int) -> list:
    """Return `size` trees, one for each entry of the leading axis that all leaves share."""
    leaves, structure = jax.tree.flatten(tree)
    # lax.split rather than leaf[i]: its gradient is one concatenation instead of a sum of padded arrays.
    pieces = [[jnp.squeeze(part, 0) for part in jax.lax.split(leaf, [1] * size)] for leaf in leaves]
    return [jax.tree.unflatten(structure, parts) for parts in zip(*pieces, strict=True)] if leaves else [tree] * size


def _select(blocks: Layer, index: jax.Array) -> Layer:
    """Return the block with the parameters number `index`."""
    # A set that every layer uses is taken without the index: the backward pass then keeps it once, not once per layer.
    return jax.tree.map(
        lambda leaf: leaf[0] if leaf.shape[0] == 1 else jax.lax.dynamic_index_in_dim(leaf, index, keepdims=False),
        blocks,
    )


def _with_remat(step: Callable, stack: Stack) -> Callable:
    if stack.remat == "none":
        return step
    return jax.checkpoint(step, policy=REMAT_POLICIES[stack.remat], prevent_cse=not stack.scan)
