"""Attention in plain JAX on every device, the contract of all kernels, and the reference they are tested with.

The contract says what a kernel gets and must return; a `Kernel` is a function with a declaration of what it supports.
`gated` multiplies each head of any kernel by a factor.

Both products of attention come in two forms: as the mathematics is written, and as one CPU multiplies bfloat16
fastest. XLA multiplies many small matrices of bfloat16 as such if those of an operand lie one after the other, are
read by rows, and give float32. Automatic differentiation asks for results in bfloat16, cotangents in float32 and
operands that are read by columns, which takes several times as long (docs/speed.md).
"""

import dataclasses
import math
from collections.abc import Callable, Collection
from typing import Literal, Protocol, get_args

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType

from bert_jax.errors import UserError
from bert_jax.models.layers import dropout, like, platform_in_use, wide_einsum, written

# Google's adder. Finite, so that a row with nothing but padding attends as if unmasked instead of giving 0/0; and it is
# added to float32 scores, where exp(-10000) is exactly 0 and the score next to it still counts.
MASKED_SCORE = -10_000.0


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionMask:
    """Which positions attend to which, and what is added to their scores; every given restriction applies."""

    padding: jax.Array
    """[B, L]: 1 for positions that may be attended to, 0 for padding."""
    segments: jax.Array | None = None
    """Integers [B, L]: a position attends only to those with its own number (several texts packed into one row)."""
    window: jax.Array | int | None = None
    """Scalar: a position attends to those at most this far away on either side (local attention).

    A number of at least L - 1 restricts nothing, so layers with and without a window can share one program.
    """
    bias: jax.Array | None = None
    """[B or 1, A or 1, L (query), L (key)]: added to the scores after their scaling (relative positions)."""
    distance_bias: Callable[[jax.Array], jax.Array] | None = dataclasses.field(default=None, metadata={"static": True})
    """Maps the distances from queries to keys, int32 […], to what is added to their scores, float32 [A or 1, …].

    Known by distance alone, it can be computed for those pairs that a kernel meets (ALiBi, left to right).
    """
    global_positions: jax.Array | None = None
    """int32 [B or 1, G]: the positions that a window restricts neither as queries nor as keys; beyond the row: none."""
    queries: jax.Array | None = None
    """int32 [B, M]: the positions of M queries. None: every position is a query."""

    def seen(self) -> jax.Array:
        """Return which keys each query may attend to, bool [B, 1, L, M or 1, L (key)]; 1: all queries see the same."""
        seen = (self.padding > 0)[:, None, None, :]
        if self.segments is not None:
            same = self._of_queries(self.segments)[:, :, None] == self.segments[:, None, :]
            seen = seen & same[:, None]
        if self.window is not None:
            near = jnp.abs(self._distances()) <= self.window
            if self.global_positions is not None:
                free = self.is_global()
                near = near | self._of_queries(free)[:, :, None] | free[:, None, :]
            seen = seen & near[:, None]
        return seen

    def adder(self) -> jax.Array:
        """Return the sum of everything that is added to the scores, float32 [B, A or 1, L, M or 1, L (key)]."""
        adder = jnp.where(self.seen(), 0.0, MASKED_SCORE)
        if self.bias is not None:
            bias = self._of_queries(jnp.swapaxes(self.bias.astype(jnp.float32), 1, 2))
            adder = adder + jnp.swapaxes(bias, 1, 2)
        if self.distance_bias is not None:
            adder = adder + jnp.swapaxes(self.distance_bias(self._distances()), 0, 1)
        return adder

    def whole_bias(self) -> jax.Array | None:
        """Return everything that `bias` has or could have, with that of distances: as `bias`, or None."""
        if self.distance_bias is None:
            return self.bias
        bias = jnp.swapaxes(self.distance_bias(self._distances()), 0, 1)
        return bias if self.bias is None else self.bias + bias

    def _distances(self) -> jax.Array:
        """Return the place of each key less that of each query: int32 [B or 1, L, M or 1, L (key)]."""
        key = jnp.arange(self.padding.shape[1], dtype=jnp.int32)[None, None, :]
        return key - self._of_queries(key[:, 0])[:, :, None]

    def is_global(self) -> jax.Array:
        """Return bool [B or 1, L]: whether a window does not restrict the position."""
        assert self.global_positions is not None, "asked for where there are some"
        every = jnp.arange(self.padding.shape[1])[None, None, :]
        return jnp.any(self.global_positions[:, :, None] == every, axis=1)

    def _of_queries(self, values: jax.Array) -> jax.Array:
        """Return values [B or 1, L, …] at the positions of the queries."""
        if self.queries is None:
            return values
        if values.shape[0] == 1:
            return values[0][self.queries]
        return jax.vmap(lambda row, positions: row[positions])(values, self.queries)


class AttentionKernel(Protocol):
    """Scaled dot-product attention with dropout on its probabilities, the seam for faster kernels.

    `plain.attention` defines the result. Without dropout, every other kernel equals it up to rounding, in values and in
    gradients (including those of `mask.bias`). With dropout, a kernel need not drop the same elements: its
    output has the same distribution for a random key and is the same for an equal key, and the gradient belongs to the
    elements that were dropped.

    Steps are traced with the mesh of the run as the mesh in use (`devices.sharding.under`): a kernel that XLA cannot
    split finds it in `jax.sharding.get_abstract_mesh()`.
    """

    def __call__(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        mask: AttentionMask,
        dropout_key: jax.Array | None = None,
        rate: float = 0.0,
        collect: bool = False,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Return the mean of the values for each position and, with `collect`, the probabilities that weigh them.

        Args:
          query: [B, L, A, D], in the dtype of the matrix products. Scores are scaled by 1/√D. XLNet's second stream
            and a last layer that is computed where it is read have M queries for L keys.
          key: as `query`.
          value: as `query`.
          mask: the restrictions; a kernel may read its fields instead of `mask.adder()`.
          dropout_key: None for no dropout.
          rate: fraction of the probabilities that is dropped.
          collect: whether to return the probabilities.

        Returns:
          [B, L, A, D] in the dtype of `value`; probabilities before dropout, float32 [B, A, L (query), L (key)], or
          None.
        """
        ...


Feature = Literal[
    "segments",
    "window",
    "traced_window",
    "global_tokens",
    "bias",
    "distances",
    "queries",
    "dropout",
    "probabilities",
]
"""What a call may ask of a kernel, in addition to rows with padding at any of their positions."""

WORDS: dict[Feature, str] = {
    "segments": "segments, which keep the texts of a row apart (mask.segments)",
    "window": "window (mask.window)",
    "traced_window": "window that is known only when the program runs (mask.window as an array)",
    "global_tokens": "tokens that see the whole row (model.global_tokens)",
    "bias": "bias of each score (mask.bias)",
    "distances": "bias by distance, as ALiBi and models that read left to right have (mask.distance_bias)",
    "queries": "queries at some positions alone (mask.queries, not asked for with compute.layers=scan)",
    "dropout": "dropout of the probabilities (model.attention_dropout)",
    "probabilities": "probabilities to return (collect)",
}
EVERYTHING: frozenset[Feature] = frozenset(get_args(Feature))
HEADS_AXIS = "tensor"
"""The axis of the mesh that splits heads; all others split the rows of a batch."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """What attention is asked for: rows of so many positions, heads of a size, and the features of a call."""

    rows: int
    """Rows on all devices; the mesh splits them into `row_parts`."""
    length: int
    """Queries of a row."""
    heads: int
    """Heads on all devices; the mesh splits them into `head_parts`."""
    size: int
    """Width of a head."""
    rate: float
    """Share of the probabilities that is dropped."""
    dtype: jnp.dtype
    """Type of queries, keys and values."""
    row_parts: int = 1
    """Parts of the mesh that each have some of the rows."""
    head_parts: int = 1
    """Parts of the mesh that each have some of the heads."""
    window: int | None = None
    """Positions that a layer sees to either side, if that is known when the program is compiled."""
    global_tokens: int = 0
    """Tokens of a row that no window restricts: those at the start of each of its texts."""
    others: frozenset[Feature] = frozenset()
    """Features that do not follow from the fields above."""

    @property
    def needs(self) -> frozenset[Feature]:
        """Return every feature that the call has."""
        given: dict[Feature, bool] = {
            "window": self.window is not None,
            "global_tokens": self.global_tokens > 0,
            "dropout": self.rate > 0,
        }
        asked: frozenset[Feature] = frozenset({name for name, present in given.items() if present})
        return self.others | asked


def free_axes() -> dict[str, int]:
    """Return the axes of the mesh in use that no surrounding shard_map has split, and their sizes."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return {}
    kinds = zip(mesh.axis_names, mesh.axis_sizes, mesh.axis_types, strict=True)
    return {name: size for name, size, kind in kinds if kind == AxisType.Auto}


def call_of(
    query: jax.Array, key: jax.Array, mask: AttentionMask, dropout_key: jax.Array | None, rate: float, collect: bool
) -> Call:
    """Return what the arguments of an `AttentionKernel` ask for, on the mesh in use."""
    rows, length, heads, size = query.shape
    axes, known = free_axes(), isinstance(mask.window, int)
    given: dict[Feature, bool] = {
        "segments": mask.segments is not None,
        "traced_window": mask.window is not None and not known,
        "bias": mask.bias is not None,
        "distances": mask.distance_bias is not None,
        "queries": mask.queries is not None or length != key.shape[1],
        "probabilities": collect,
    }
    others: frozenset[Feature] = frozenset({name for name, present in given.items() if present})
    return Call(
        rows=rows,
        length=length,
        heads=heads,
        size=size,
        rate=0.0 if dropout_key is None else rate,
        dtype=query.dtype,
        row_parts=math.prod(parts for axis, parts in axes.items() if axis != HEADS_AXIS),
        head_parts=axes.get(HEADS_AXIS, 1),
        window=mask.window if isinstance(mask.window, int) else None,
        global_tokens=0 if mask.global_positions is None else mask.global_positions.shape[1],
        others=others,
    )


def no_obstacle(_call: Call) -> str | None:
    """Return None: the sizes of a call do not matter."""
    return None


@dataclasses.dataclass(frozen=True)
class Kernel:
    """An `AttentionKernel` and what it supports; called as one, it never computes a call that asks for more.

    Raises UserError if `supports` has a name that is no feature; a call raises one that names what is missing, unless
    `otherwise` computes it.
    """

    function: AttentionKernel
    """What is called with a call that it supports."""
    supports: Collection[Feature]
    """All features that the function computes. It is never given a mask, dropout or `collect` with another one."""
    obstacle: Callable[[Call], str | None] = no_obstacle
    """Says why the function cannot compute a call of some size or type, or returns None."""
    otherwise: AttentionKernel | None = None
    """What computes the calls that the function cannot, such as `plain.attention`; None: they are refused."""

    def __post_init__(self) -> None:
        unknown = sorted(set(self.supports) - EVERYTHING)
        if unknown:
            raise UserError(
                f"supports={', '.join(unknown)}: attention has no such features; choose from {', '.join(WORDS)}"
            )

    def missing(self, call: Call) -> str | None:
        """Return why the function cannot compute a call, or None if it can."""
        lacking = [words for name, words in WORDS.items() if name in call.needs and name not in self.supports]
        return f"it has no {', no '.join(lacking)}" if lacking else self.obstacle(call)

    def __call__(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        mask: AttentionMask,
        dropout_key: jax.Array | None = None,
        rate: float = 0.0,
        collect: bool = False,
    ) -> tuple[jax.Array, jax.Array | None]:
        """See `AttentionKernel`."""
        reason = self.missing(call_of(query, key, mask, dropout_key, rate, collect))
        function = self.function if reason is None else self.otherwise
        if function is None:
            name = getattr(self.function, "__name__", repr(self.function))
            raise UserError(
                f"the attention kernel {name} cannot compute this call: {reason}; set otherwise=plain.attention of its "
                "Kernel, which then computes such calls (docs/extending.md)"
            )
        return function(query, key, value, mask, dropout_key, rate, collect)


def gated(attend: AttentionKernel, gates: jax.Array | None) -> AttentionKernel:
    """Return a kernel whose means of the values are those of `attend` times `gates` [A]; None: `attend` itself.

    The probabilities stay as they are. A gate of 0 is a head whose rows of the output projection are zero.
    """
    if gates is None:
        return attend

    def attention(
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        mask: AttentionMask,
        dropout_key: jax.Array | None = None,
        rate: float = 0.0,
        collect: bool = False,
    ) -> tuple[jax.Array, jax.Array | None]:
        context, weights = attend(query, key, value, mask, dropout_key, rate, collect)
        return context * like(gates[:, None], context), weights

    return attention


Pair = Callable[[jax.Array, jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class HeadProducts:
    """The form of the products, whose operands have the dtype of key and value."""

    scores: Pair
    """Maps query [B, Q, A, D] and key [B, K, A, D] to query · keyᵀ of each head, float32 [B, A, Q, K]."""
    context: Pair
    """Maps weights float32 [B, A, Q, K] and value [B, K, A, D] to their product, [B, Q, A, D] in the dtype of value."""


def _plain_scores(query: jax.Array, key: jax.Array) -> jax.Array:
    return wide_einsum("bqad,bkad->baqk", query, key)


def _plain_context(weights: jax.Array, value: jax.Array) -> jax.Array:
    return jnp.einsum("baqk,bkad->bqad", weights.astype(value.dtype), value)


def _cpu_scores(query: jax.Array, key: jax.Array) -> jax.Array:
    scores = _rows_times_rows(_matrices(query), _matrices(key))
    return scores.reshape(query.shape[0], -1, *scores.shape[1:])


def _cpu_context(weights: jax.Array, value: jax.Array) -> jax.Array:
    context = _weighted(weights.reshape(-1, *weights.shape[2:]), _matrices(value))
    return jnp.swapaxes(context.reshape(*weights.shape[:3], -1), 1, 2)


def _alike_context(weights: jax.Array, value: jax.Array) -> jax.Array:
    by_head = jnp.swapaxes(value, 1, 2)
    context = jax.lax.dot_general(weights.astype(value.dtype), by_head, (((3,), (2,)), ((0, 1), (0, 1))))
    return jnp.swapaxes(context, 1, 2)


PLAIN = HeadProducts(_plain_scores, _plain_context)
ALIKE = HeadProducts(_plain_scores, _alike_context)
"""As PLAIN, for rows of more than `BLOCK` keys without dropout on a CPU: the values of all keys are added up in one
order in batches of one row and of several. Of `PLAIN`, XLA exchanges the operands for one row, and divides its sums. It
also takes less time. In narrower rows, where several texts are, sums of `PLAIN` do not depend on a text's place."""
BLOCK = 64
CPU = HeadProducts(_cpu_scores, _cpu_context)


def _matrices(x: jax.Array) -> jax.Array:
    """Return x [B, L, A, D] as matrices [B · A, L, D], one after the other."""
    by_head = written(jnp.swapaxes(x, 1, 2))
    return by_head.reshape(-1, *by_head.shape[2:])


def _transposed(x: jax.Array) -> jax.Array:
    """Return the transposes of matrices [N, L, D], written out; without the barrier, the compiler would undo them."""
    return jax.lax.optimization_barrier(written(jnp.swapaxes(x, 1, 2)))


def _dot(a: jax.Array, b: jax.Array, axis: int) -> jax.Array:
    """Return a [N, L, M] times b [N, …], summed over the last axis of a and this one of b, in float32."""
    return jax.lax.dot_general(a, b, (((2,), (axis,)), ((0,), (0,))), preferred_element_type=jnp.float32)


def _summed_over_rows(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return aᵀ · b of a [N, L, M], the wider, and b [N, L, D], in float32; only b and the result are transposed."""
    return jnp.swapaxes(jax.lax.optimization_barrier(_dot(_transposed(b), a, 1)), 1, 2)


@jax.custom_vjp
def _rows_times_rows(query: jax.Array, key: jax.Array) -> jax.Array:
    """Return query [N, Q, D] · key [N, K, D]ᵀ in float32."""
    return _dot(query, key, 2)


def _scores_forward(query: jax.Array, key: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _dot(query, key, 2), (query, key)


def _scores_backward(kept: tuple[jax.Array, jax.Array], gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    query, key = kept
    gradient = gradient.astype(key.dtype)
    return _dot(gradient, key, 1).astype(query.dtype), _summed_over_rows(gradient, query).astype(key.dtype)


_rows_times_rows.defvjp(_scores_forward, _scores_backward)


@jax.custom_vjp
def _weighted(weights: jax.Array, value: jax.Array) -> jax.Array:
    """Return weights float32 [N, Q, K], rounded to the dtype of value, times value [N, K, D], in that dtype."""
    return _context_forward(weights, value)[0]


def _context_forward(weights: jax.Array, value: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    weights = weights.astype(value.dtype)
    return _dot(weights, value, 1).astype(value.dtype), (weights, value)


def _context_backward(kept: tuple[jax.Array, jax.Array], gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    weights, value = kept
    return _dot(gradient, value, 2), _summed_over_rows(weights, gradient).astype(value.dtype)


_weighted.defvjp(_context_forward, _context_backward)


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: AttentionMask,
    dropout_key: jax.Array | None = None,
    rate: float = 0.0,
    collect: bool = False,
    *,
    products: HeadProducts = PLAIN,
) -> tuple[jax.Array, jax.Array | None]:
    """Return dropout(softmax(query · keyᵀ / √D + adder)) · value; see `AttentionKernel` for arguments and results."""
    exact, length = not rate or dropout_key is None, key.shape[1]
    # A length that is a symbol, in a program to export, cannot be compared.
    if products is PLAIN and exact and isinstance(length, int) and length > BLOCK and platform_in_use() == "cpu":
        products = ALIKE
    scores = products.scores(query, key) * query.shape[-1] ** -0.5
    weights = jax.nn.softmax(scores + mask.adder(), axis=-1)
    dropped = dropout(weights, rate, dropout_key, mask.queries, key.shape[1])
    context = products.context(dropped, value)
    return checkpoint_name(context, "attention_output"), weights if collect else None
