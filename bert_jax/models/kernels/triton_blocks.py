"""The bodies of the Pallas kernels of attention on NVIDIA GPUs: what one block of threads computes.

A block of queries of one head goes over the keys of its row and keeps the largest score and the sum of exponentials so
far (Dao 2023, FlashAttention-2, algorithms 1 and 2), so scores and probabilities never leave the multiprocessor. In
the backward pass a block of threads computes the gradients of a block of keys and values, going over all queries, and
then that of a block of queries, going over all keys: no two blocks add to one number, so a run repeats bit for bit.
Each reference is a whole array in the memory of the card. Blocks of queries and of keys have one size, and are named by
their first place in the row.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from bert_jax.models import counter_bits
from bert_jax.models.kernels.contract import MASKED_SCORE


@dataclasses.dataclass(frozen=True)
class Blocks:
    """What is known when the kernels are built; with it, a call is a function of arrays."""

    length: int
    """Positions of a row, L."""
    size: int
    """Width of a head, D."""
    together: int
    """Queries of a block, which meet as many keys at once; it divides the length."""
    threshold: int
    """Of `counter_bits.keeps`; 0 for no dropout."""
    reach: int | None = None
    """Positions that a query sees to either side, where the window is known when the kernels are built."""

    @property
    def scale(self) -> float:
        return self.size**-0.5

    @property
    def kept_scale(self) -> float:
        return counter_bits.kept_scale(self.threshold)

    @property
    def count(self) -> int:
        """Number of blocks in a row."""
        return self.length // self.together

    @property
    def apart(self) -> int:
        """How many blocks further, to either side, the furthest lies that a block can see."""
        if self.reach is None:
            return self.count - 1
        # Between two blocks that are n apart, the nearest places are (n - 1) · together + 1 apart.
        return min((self.reach - 1) // self.together + 1, self.count - 1)

    def met(self, number: Any) -> tuple[Any, Any]:
        """Return the first and the last block, not included, that block number `number` can see."""
        if self.apart == self.count - 1:
            return 0, self.count
        return jnp.maximum(number - self.apart, 0), jnp.minimum(number + self.apart + 1, self.count)

    @property
    def pairs(self) -> int:
        """Queries of a row times the keys that each of them meets."""
        # Every block meets those up to `apart` to either side, but for the ones beyond both ends of the row.
        return (self.count * (2 * self.apart + 1) - self.apart * (self.apart + 1)) * self.together**2


def forward(blocks: Blocks, names: tuple[str, ...], *refs: Any) -> None:
    """Write the output [B, L, A, D] and the logarithms of the sums of exponentials, float32 [B, A, L].

    The grid is (blocks of queries, heads, rows).
    """
    arrays, (output_ref, logarithms_ref) = dict(zip(names, refs[:-2], strict=True)), refs[-2:]
    number = pl.program_id(0)
    own, head = number * blocks.together, _Head(blocks, arrays, row=pl.program_id(2), head=pl.program_id(1))
    query = head.block("query", own)

    def step(other: Any, so_far: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        (output, largest, total), keys = so_far, other * blocks.together
        scores = head.scores(query, head.block("key", keys), own, keys)
        larger = jnp.maximum(largest, jnp.max(scores, axis=1))
        weights, shrink = jnp.exp(scores - larger[:, None]), jnp.exp(largest - larger)
        value = head.block("value", keys)
        added = _dot(head.dropped(weights, own, keys).astype(value.dtype), value, (1, 0))
        return output * shrink[:, None] + added, larger, total * shrink + jnp.sum(weights, axis=1)

    zeros = jnp.zeros(blocks.together, jnp.float32)
    start = jnp.zeros(query.shape, jnp.float32), zeros - jnp.inf, zeros
    output, largest, total = jax.lax.fori_loop(*blocks.met(number), step, start)
    head.write(output_ref, own, output * (blocks.kept_scale / total)[:, None])
    logarithms_ref[head.row, head.head, pl.ds(own, blocks.together)] = largest + jnp.log(total)


def backward(blocks: Blocks, names: tuple[str, ...], *refs: Any) -> None:
    """Write the gradients of query, key and value, [B, L, A, D].

    The grid is (blocks of keys, then of queries; heads; rows).
    """
    arrays, (of_query, of_key, of_value) = dict(zip(names, refs[:-3], strict=True)), refs[-3:]
    number, scale = pl.program_id(0), blocks.scale * blocks.kept_scale
    own, head = number * blocks.together, _Head(blocks, arrays, row=pl.program_id(2), head=pl.program_id(1))
    key, value = head.block("key", own), head.block("value", own)

    def add_queries(other: Any, sums: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        met = other * blocks.together
        query, gradient = head.block("query", met), head.block("gradient", met)
        kept, of_scores = head.gradient_of_scores(query, key, value, gradient, met, own)
        return (
            sums[0] + _dot(of_scores.astype(query.dtype), query, (0, 0)),
            sums[1] + _dot(kept.astype(query.dtype), gradient, (0, 0)),
        )

    zeros = jnp.zeros(key.shape, jnp.float32)
    key_sum, value_sum = jax.lax.fori_loop(*blocks.met(number), add_queries, (zeros, zeros))
    head.write(of_key, own, key_sum * scale)
    head.write(of_value, own, value_sum * blocks.kept_scale)
    query, gradient = head.block("query", own), head.block("gradient", own)

    def add_keys(other: Any, total: jax.Array) -> jax.Array:
        met = other * blocks.together
        key, value = head.block("key", met), head.block("value", met)
        of_scores = head.gradient_of_scores(query, key, value, gradient, own, met)[1]
        return total + _dot(of_scores.astype(key.dtype), key, (1, 0))

    head.write(of_query, own, jax.lax.fori_loop(*blocks.met(number), add_keys, zeros) * scale)


def backward_of_bias(blocks: Blocks, names: tuple[str, ...], *refs: Any) -> None:
    """Write the gradient of a bias, float32 [B or 1, A or 1, L (query), L (key)], summed over what shares it.

    The grid is (blocks of queries, blocks of keys, rows × heads of the bias).
    """
    arrays, of_bias = dict(zip(names, refs[:-1], strict=True)), refs[-1]
    batch, _, heads, _ = arrays["query"].shape
    rows_sharing, heads_sharing = batch // of_bias.shape[0], heads // of_bias.shape[1]
    row, first = _divided(pl.program_id(2), of_bias.shape[1])
    queries, keys = pl.program_id(0) * blocks.together, pl.program_id(1) * blocks.together

    def add(number: Any, total: jax.Array) -> jax.Array:
        further, next_head = _divided(number, heads_sharing)
        head = _Head(blocks, arrays, row=row + further, head=first + next_head)
        query, gradient = head.block("query", queries), head.block("gradient", queries)
        key, value = head.block("key", keys), head.block("value", keys)
        return total + head.gradient_of_scores(query, key, value, gradient, queries, keys)[1]

    zeros = jnp.zeros((blocks.together, blocks.together), jnp.float32)
    total = jax.lax.fori_loop(0, rows_sharing * heads_sharing, add, zeros)
    place = row, first, pl.ds(queries, blocks.together), pl.ds(keys, blocks.together)
    of_bias[place] = total * blocks.kept_scale


@dataclasses.dataclass(frozen=True)
class _Head:
    """One head of one row of the batch, and what all kernels compute of it."""

    blocks: Blocks
    arrays: dict[str, Any]
    row: Any
    head: Any

    def block(self, name: str, first: Any) -> jax.Array:
        """Return a block of an array [B, L, A, D], as [positions, D]."""
        return self.arrays[name][self.row, self._span(first), self.head, :]

    def write(self, ref: Any, first: Any, values: jax.Array) -> None:
        ref[self.row, self._span(first), self.head, :] = values.astype(ref.dtype)

    def scores(self, query: jax.Array, key: jax.Array, queries: Any, keys: Any) -> jax.Array:
        """Return the scores [queries, keys] of two blocks with everything that is added to them, float32."""
        scores = _dot(query, key, (1, 1)) * self.blocks.scale
        if "bias" in self.arrays:
            bias = self.arrays["bias"]
            row, head = self.row if bias.shape[0] > 1 else 0, self.head if bias.shape[1] > 1 else 0
            scores = scores + bias[row, head, self._span(queries), self._span(keys)].astype(jnp.float32)
        return jnp.where(self._seen(queries, keys), scores, scores + MASKED_SCORE)

    def _seen(self, queries: Any, keys: Any) -> jax.Array:
        of_keys = self.arrays["key_numbers"][self.row, self._span(keys)][None, :]
        of_queries: Any = 0
        if "query_numbers" in self.arrays:
            of_queries = self.arrays["query_numbers"][self.row, self._span(queries)][:, None]
        seen = of_keys == of_queries
        reach = self.arrays["reach"][0] if "reach" in self.arrays else self.blocks.reach
        if reach is None:
            return seen
        query, key = self._places(queries, keys)
        return seen & (jnp.abs(query - key) <= reach)

    def gradient_of_scores(
        self, query: jax.Array, key: jax.Array, value: jax.Array, gradient: jax.Array, queries: Any, keys: Any
    ) -> tuple[jax.Array, jax.Array]:
        """Return the dropped probabilities and the gradient of the scores, both [queries, keys] float32.

        Both lack the factor `kept_scale`. `gradient` is that of the output.
        """
        logarithms, common = (
            self.arrays[name][self.row, self.head, self._span(queries)][:, None] for name in ("logarithms", "common")
        )
        weights = jnp.exp(self.scores(query, key, queries, keys) - logarithms)
        of_weights = self.dropped(_dot(gradient, value, (1, 1)), queries, keys)
        of_scores = weights * (of_weights - common * (1 / self.blocks.kept_scale))
        return self.dropped(weights, queries, keys), of_scores

    def dropped(self, values: jax.Array, queries: Any, keys: Any) -> jax.Array:
        """Return the values [queries, keys] with zeros where dropout falls."""
        if not self.blocks.threshold:
            return values
        words = self.arrays["words"]
        state = counter_bits.Stream(words[0, self.row, self.head], words[1, self.row, self.head])
        query, key = self._places(queries, keys)
        index = (query * self.blocks.length + key).astype(jnp.uint32)
        return jnp.where(counter_bits.keeps(counter_bits.words(state, index), self.blocks.threshold), values, 0.0)

    def _places(self, queries: Any, keys: Any) -> tuple[jax.Array, jax.Array]:
        """Return the places in the row of the queries, int32 [queries, 1], and of the keys, int32 [1, keys]."""
        within = jnp.arange(self.blocks.together)
        return (queries + within)[:, None], (keys + within)[None, :]

    def _span(self, first: Any) -> Any:
        return pl.ds(first, self.blocks.together)


def _divided(number: Any, by: int) -> tuple[Any, Any]:
    """Return quotient and remainder of a scalar; Triton would take a Python number for an integer of fewer bits."""
    return jax.lax.div(number, jnp.int32(by)), jax.lax.rem(number, jnp.int32(by))


def _dot(left: jax.Array, right: jax.Array, axes: tuple[int, int]) -> jax.Array:
    """Return the product of two matrices over one axis of each, summed in float32."""
    return jax.lax.dot_general(left, right, (((axes[0],), (axes[1],)), ((), ())), preferred_element_type=jnp.float32)
