"""A stack of layers whose parameters share a leading axis, run as one scan or unrolled, with rematerialization.

A rematerialization policy says what the forward pass of a layer keeps; the backward pass computes the rest again. The
last of unrolled layers is computed only at the positions that are read, where its kind allows it. A scan would have
to copy the parameters of all other layers for that.
"""

import dataclasses
import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.errors import UserError
from bert_jax.models.kernels.plain import Kernel
from bert_jax.models.layers import gather_positions

Remat = Literal["none", "sel", "dots", "full"]
"""Policies of ComputeConfig.remat, but for auto, which is one of them."""

# What blocks name (checkpoint_name). Kept, they leave to the backward pass only what costs no product with a kernel:
# attention between its projections, norms, activations and dropout.
SELECTED = (
    *("query", "key", "value", "attention_output", "attention_sum"),
    *("gate", "intermediate", "feed_forward_sum", "convolution", "mean", "variance"),
)

REMAT_POLICIES = {
    "sel": jax.checkpoint_policies.save_only_these_names(*SELECTED),
    # Products with a kernel are kept; those of attention, which grow with the square of the length, are computed again.
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
}


def with_remat(step: Callable[..., Any], policy: Remat, scanned: bool) -> Callable[..., Any]:
    """Return `step`, of which the backward pass computes again what the policy says."""
    if policy == "none":
        return step
    return jax.checkpoint(step, policy=REMAT_POLICIES[policy], prevent_cse=not scanned)


Layer = Callable[..., tuple[jax.Array, jax.Array | None]]
"""One layer of a stack: an nnx.Module, called as (x, mask, dropout_key, attend, collect, **layer_inputs, **settings).

It maps x [B, L, H] to (x [B, L, H], attention probabilities [B, A, L, L] if `collect`, else None); see `blocks.Block`.
"""


@dataclasses.dataclass(frozen=True, eq=False)
class Stack:
    """N layers: what they are, how they differ, and how they are run.

    Raises UserError if `attend` does not say what it supports, or `sharing` or `layer_inputs` do not have one entry per
    layer.
    """

    block: Callable[[jax.Array], Layer]
    """Makes one block from a key."""
    num_layers: int
    """Number of layers, N."""
    attend: Kernel
    """The attention kernel of every layer, with what it supports."""
    scan: bool
    """True: one scan over the layers, which compiles fast; False: unrolled, which runs faster. The values are equal."""
    remat: Remat = "none"
    """Parts that the backward pass computes again (ComputeConfig.remat)."""
    sharing: tuple[int, ...] | None = None
    """Index of the parameters of each layer, where several layers use the same ones. None: each has its own."""
    shared: tuple[str, ...] = ()
    """Attributes of the block that are the same in all layers, such as "attention", while the others are each layer's
    own, or those of the set that `sharing` gives it."""
    layer_inputs: Mapping[str, np.ndarray | jax.Array] = dataclasses.field(default_factory=dict)
    """{argument of the block: array [N, ...] of its value in each layer}, such as a window or a rotary base."""
    inputs: Mapping[str, jax.Array] = dataclasses.field(default_factory=dict)
    """{argument of the block: array that every layer gets}, such as vectors of the words of a batch."""
    layer_settings: Mapping[str, Sequence[Hashable]] = dataclasses.field(default_factory=dict)
    """{argument of the block: its value in each layer, known when the program is compiled}, such as a window by which
    another kernel is chosen. A scan goes over the shortest pattern that repeats."""
    from_second: tuple[str, ...] = ()
    """Parts of the block that the first layer does not have; its settings must be such that it does not use them."""
    first_only: tuple[str, ...] = ()
    """Parts of the block that the first layer alone has; the settings of others must be such that they do not use them.
    """

    def __post_init__(self) -> None:
        if not isinstance(self.attend, Kernel):  # as a script from outside may have it
            raise UserError(
                f"attend={getattr(self.attend, '__name__', self.attend)} does not say what it supports; make it a "
                "value: Kernel(function, supports=…) (docs/extending.md)"
            )
        if self.sharing is not None and len(self.sharing) != self.num_layers:
            raise UserError(f"sharing={self.sharing} must have one index for each of {self.num_layers} layers")
        for kind in ("layer_inputs", "layer_settings"):
            for name, values in getattr(self, kind).items():
                if len(values) != self.num_layers:
                    raise UserError(
                        f"{kind}[{name!r}] has {len(values)} entries and must have one for each of "
                        f"{self.num_layers} layers"
                    )

    @property
    def num_blocks(self) -> int:
        """Number of sets of parameters, the size of the leading axis."""
        return self.num_layers if self.sharing is None else max(self.sharing, default=-1) + 1

    def settings(self, layer: int) -> dict[str, Any]:
        """Return the settings of one layer."""
        return {name: values[layer] for name, values in self.layer_settings.items()}

    def arguments(self, layer: int) -> dict[str, Any]:
        """Return the inputs and settings of one layer that is called by itself."""
        own = {name: values[layer] for name, values in self.layer_inputs.items()}
        return {**self.inputs, **own, **self.settings(layer)}


def stacked_blocks(stack: Stack, key: jax.Array) -> Layer:
    """Return a block whose parameters have a leading axis of `num_blocks`; each set is drawn from its own key.

    The axis is one shorter in the parts `from_second`, which a single layer does not have, and has size 1 in those that
    are `shared` or `first_only`.
    """
    blocks = jax.vmap(stack.block)(jax.random.split(key, stack.num_blocks))
    if stack.num_blocks == 1:
        for name in stack.from_second:
            setattr(blocks, name, None)
    for names, kept in ((stack.from_second, slice(1, None)), ((*stack.shared, *stack.first_only), slice(1))):
        for name in names:
            setattr(blocks, name, jax.tree.map(lambda leaf, kept=kept: leaf[kept], getattr(blocks, name)))
    return blocks


def without_last(stack: Stack, blocks: Layer) -> tuple[Stack, Layer, Layer]:
    """Return the stack of all layers but the last, its blocks, which nothing reads if it has none, and the last."""
    shared = stack.sharing is not None
    last = stack.sharing[-1] if stack.sharing is not None else -1
    below = dataclasses.replace(
        stack,
        num_layers=stack.num_layers - 1,
        sharing=None if stack.sharing is None else stack.sharing[:-1],
        layer_inputs={name: values[:-1] for name, values in stack.layer_inputs.items()},
        layer_settings={name: values[:-1] for name, values in stack.layer_settings.items()},
    )
    kept = below.num_blocks if shared else -1
    lower = jax.tree.map(lambda leaf: leaf if leaf.shape[0] == 1 else leaf[:kept], blocks)
    return below, lower, jax.tree.map(lambda leaf: leaf[0 if leaf.shape[0] == 1 else last], blocks)


def one_block(stack: Stack, layer: int, key: jax.Array) -> Layer:
    """Return a fresh block with the parts that this layer has."""
    block = stack.block(key)
    for name in stack.from_second if layer == 0 else stack.first_only:
        setattr(block, name, None)
    return block


def run_stack(
    stack: Stack,
    blocks: Layer,
    x: jax.Array,
    mask: Any,
    dropout_key: jax.Array | None,
    collect: bool = False,
    read: jax.Array | None = None,
) -> tuple[jax.Array, list[tuple[jax.Array, jax.Array]] | None]:
    """Run x through the layers; scan, loop and every remat policy give the same values.

    Args:
      stack: what the layers are and how they are run.
      blocks: from `stacked_blocks`.
      x: [B, L, H].
      mask: the AttentionMask of all layers, which a block may restrict further, or what `Architecture.relations` makes
        of it.
      dropout_key: None for no dropout.
      collect: also return the output of each layer.
      read: int32 [B, M], the positions at which the last of unrolled layers, a `blocks.Block`, computes its output
        [B, M, H]. None: all.

    Returns:
      (x [B, L, H], None), or with `collect` (x, N pairs of output [B, L, H] and attention probabilities [B, A, L, L]).
    """
    assert read is None or not (stack.scan or collect), "only unrolled layers compute a part, and collect nothing then"
    keys = None if dropout_key is None else jax.random.split(dropout_key, stack.num_layers)
    inputs, blocks = dict(stack.layer_inputs), _aligned(stack, blocks)

    def step(x: jax.Array, layer: tuple[Layer, jax.Array | None, dict[str, jax.Array]], number: int = 0):
        block, key, inputs = layer
        arguments = {**stack.inputs, **inputs, **stack.settings(number)}
        if read is not None and number == stack.num_layers - 1:
            seen, queries = dataclasses.replace(mask, queries=read), gather_positions(x, read)
            return block(x, seen, key, stack.attend, collect, queries=queries, **arguments)[0], None
        x, weights = block(x, mask, key, stack.attend, collect, **arguments)
        return x, (x, weights) if collect else None

    if stack.scan:
        own, block_of = _own_arrays(blocks, stack)

        def of_own(x: jax.Array, layer: tuple[Any, jax.Array | None, dict[str, jax.Array]], number: int = 0):
            own, key, inputs = layer
            return step(x, (block_of(own), key, inputs), number)

        x, collected = _scan(stack, of_own, x, (own, keys, inputs))
        return x, collected if collect else None
    collected, own = [], unstack(blocks, stack.num_blocks)
    per_layer = unstack((keys, inputs), stack.num_layers)
    for number, (index, rest) in enumerate(zip(stack.sharing or range(stack.num_layers), per_layer, strict=True)):
        run = with_remat(functools.partial(step, number=number), stack.remat, scanned=False)
        x, output = run(x, (own[index], *rest))
        collected.append(output)
    return x, collected if collect else None


def _scan(stack: Stack, run: Callable[..., Any], x: jax.Array, layers: Any) -> tuple[jax.Array, list[Any] | None]:
    """Run all layers, as one scan over those whose settings repeat, and return what they collect, one by one."""
    start, period, rounds = repeating(stack)
    if (start, period, rounds) == (0, 1, stack.num_layers):
        x, collected = jax.lax.scan(with_remat(run, stack.remat, scanned=True), x, layers, length=stack.num_layers)
        return x, unstack(collected, stack.num_layers)
    collected, end = [], start + period * rounds
    steps = [
        with_remat(functools.partial(run, number=number), stack.remat, scanned=start <= number < end)
        for number in range(stack.num_layers)
    ]

    def several(x: jax.Array, group: Any):
        outputs = []
        for place, layer in enumerate(unstack(group, period)):
            x, output = steps[start + place](x, layer)
            outputs.append(output)
        return x, outputs

    def by_round(leaf: jax.Array) -> jax.Array:
        return leaf[start:end].reshape(rounds, period, *leaf.shape[1:])

    for number in range(start):
        x, output = steps[number](x, jax.tree.map(lambda leaf, number=number: leaf[number], layers))
        collected.append(output)
    x, outputs = jax.lax.scan(several, x, jax.tree.map(by_round, layers), length=rounds)
    collected += [each for group in unstack(outputs, rounds) for each in group]
    for number in range(end, stack.num_layers):
        x, output = steps[number](x, jax.tree.map(lambda leaf, number=number: leaf[number], layers))
        collected.append(output)
    return x, collected


def repeating(stack: Stack) -> tuple[int, int, int]:
    """Return how the settings of the layers repeat: (layers before the pattern, layers of the pattern, rounds of it).

    The layers after the last whole round are left over. (0, 1, N): all are alike.
    """
    kinds = [tuple(stack.settings(layer).values()) for layer in range(stack.num_layers)]
    for start in range(min(2, stack.num_layers)):
        rest = kinds[start:]
        for period in range(1, len(rest) // 2 + 1):
            if all(kind == rest[place % period] for place, kind in enumerate(rest)):
                return start, period, len(rest) // period
    return 0, stack.num_layers, 1


def _aligned(stack: Stack, blocks: Layer) -> Layer:
    """Return the blocks with a row for every layer; that of the first layer is one that it does not use."""
    aligned = jax.tree.map(lambda leaf: leaf, blocks)
    for name in stack.from_second:
        setattr(aligned, name, jax.tree.map(lambda leaf: jnp.concatenate([leaf[:1], leaf]), getattr(blocks, name)))
    return aligned


def unstack(tree: Any, size: int) -> list[Any]:
    """Return `size` trees, one for each entry of the leading axis; a leaf whose axis has size 1 is in all of them."""
    leaves, structure = jax.tree.flatten(tree)
    # lax.split rather than leaf[i]: its gradient is one concatenation instead of a sum of padded arrays.
    pieces = [
        [jnp.squeeze(part, 0) for part in (jax.lax.split(leaf, [1] * size) if leaf.shape[0] > 1 else [leaf] * size)]
        for leaf in leaves
    ]
    return [jax.tree.unflatten(structure, parts) for parts in zip(*pieces, strict=True)] if leaves else [tree] * size


def _own_arrays(blocks: Layer, stack: Stack) -> tuple[Any, Callable[[Any], Layer]]:
    """Return what differs between the parameters of the layers, to scan over, and what makes a block of one entry.

    What every layer uses is not scanned over: the backward pass then keeps it once, not once per layer.
    """
    leaves, structure = jax.tree.flatten(blocks)
    alike = [leaf.shape[0] == 1 for leaf in leaves]

    def indexed(index: jax.Array) -> Layer:
        return jax.tree.unflatten(
            structure,
            [
                leaf[0] if one else jax.lax.dynamic_index_in_dim(leaf, index, keepdims=False)
                for leaf, one in zip(leaves, alike, strict=True)
            ],
        )

    def joined(own: list[jax.Array]) -> Layer:
        entries = iter(own)
        return jax.tree.unflatten(
            structure, [leaf[0] if one else next(entries) for leaf, one in zip(leaves, alike, strict=True)]
        )

    if stack.sharing is not None:
        return jnp.asarray(stack.sharing), indexed
    return [leaf for leaf, one in zip(leaves, alike, strict=True) if not one], joined
