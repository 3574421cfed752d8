"""The small parts of a model: affine maps, dropout, activations, norms, matrix products, and packed rows.

Modules hold float32 parameters and static sizes only. The dtype of a computation is the dtype of the activations that
enter it: parameters are cast where they are used. The sums of norms are float32.

Random words, made for dropout, are functions of a key and of the indices of an element in the whole array, in plain
32-bit arithmetic. So they are the same however the array is split over devices or cut into blocks, can be computed
again instead of stored, and the same few lines give them in XLA and inside a Pallas kernel. They are fast and without
visible structure, but anybody who sees them can find the key. Threefry, which makes the keys, costs some twenty times
as much for each word.

Matrix products come in the forms that XLA computes fastest on one CPU, and with the least traffic of sums over TPUs.
On a CPU, the fast routines for bfloat16 operands take the rows of the first one as they lie in memory and return
float32. Automatic differentiation of an ordinary product asks for weight gradients that contract the first axis of
both operands, results in bfloat16 and cotangents in float32. That halves the rate or worse (docs/speed.md).

`PackedTexts` describes rows of several texts, each of which is computed as if it were alone.
"""

import contextlib
import contextvars
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.layout import Layout, with_layout_constraint

from bert_jax.config import EncoderConfig


def platform_in_use() -> str:
    """Return the platform of the mesh in use, which a plan makes of chips that are not there, else of this process."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def for_all_rows(x: jax.Array, rows: int) -> jax.Array:
    """Return x [L, H] to be added to each of so many rows: [1, L, H]; on one GPU [B, L, H], row by row in memory.

    There the gradient, a sum over the batch, would make XLA put the batch innermost, in the whole residual stream too,
    and transpose that before each product (docs/speed.md). On several, XLA would not split what has a given layout.
    """
    if platform_in_use() != "gpu" or math.prod(jax.sharding.get_abstract_mesh().axis_sizes) > 1:
        return x[None]
    return with_layout_constraint(jnp.broadcast_to(x, (rows, *x.shape)), Layout((0, 1, 2)))


def gather_positions(hidden: jax.Array, positions: jax.Array) -> jax.Array:
    """Return hidden [B, L, H] at positions [B, M]: [B, M, H]. A position outside the sequence gives NaN."""
    return jnp.take_along_axis(hidden, positions[:, :, None], axis=1, mode="fill")


def last_positions(mask: jax.Array) -> jax.Array:
    """Return int32 [B]: the position of the last real token of rows whose mask [B, L] is 1 there, on any side; or 0."""
    positions = jnp.arange(mask.shape[1], dtype=jnp.int32)
    return jnp.max(jnp.where(mask > 0, positions, 0), axis=1)


WORDS = 2**32


class Stream(NamedTuple):
    """64 bits of state, from which up to 2³² words follow; uint32 arrays of one shape, or scalars."""

    first: jax.Array
    second: jax.Array


def counter_stream(key: jax.Array) -> Stream:
    """Return the stream of a key of jax.random, typed or raw, of any implementation."""
    state = Stream(jnp.uint32(0x243F6A88), jnp.uint32(0x85A308D3))  # the first digits of π
    for word in jax.random.key_data(key).reshape(-1):
        state = substream(state, word)
    return state


def substream(state: Stream, index: jax.Array) -> Stream:
    """Return the stream number `index` (uint32, of a shape that broadcasts) of those that `state` has."""
    first = _mixed(state.first ^ index)
    return Stream(first, _mixed((state.second ^ jnp.uint32(0x9E3779B9)) + first))


def words(state: Stream, index: jax.Array) -> jax.Array:
    """Return the words number `index` (uint32, of a shape that broadcasts) of a stream; the high bits are the best.

    These are the rounds of lowbias32 (Wellons 2018) without the last shift, which would change only the low half. The
    second half of the state enters between them: if it came before, or not at all, two streams with the same high bits
    of `first` would be permuted copies of each other. It is added: one pair of streams in 2³² has the same `first`, and
    is then less alike than after an exclusive or.
    """
    x = state.first ^ index
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = x + state.second
    return (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)


def array_words(
    state: Stream, shape: tuple[int, ...], rows: jax.Array | None = None, numbers: jax.Array | None = None
) -> jax.Array:
    """Return one word for each element of an array of `shape`: words [*shape], each from its own indices.

    The last axes, two at most, count through one stream as long as they have no more than 2³² elements; every axis
    before them chooses a substream. With `rows`, int32 [B, M], only the words of M entries of the second last axis are
    made, others for each of the B entries of the first: [B, …, M, N] for a shape [B, …, L, N].
    `numbers`, int32 [B], stand for the indices of the first axis, which then chooses a substream.
    """
    state, counted = leading_streams(state, shape, rows, numbers)
    index = jnp.zeros((1,) * len(shape), jnp.uint32)
    for axis in range(len(shape) - counted, len(shape)):
        index = index * jnp.uint32(shape[axis]) + _indices(shape, axis, rows)
    made = shape if rows is None else (*shape[:-2], rows.shape[1], shape[-1])
    return jnp.broadcast_to(words(state, index), made)


def leading_streams(
    state: Stream, shape: tuple[int, ...], rows: jax.Array | None = None, numbers: jax.Array | None = None
) -> tuple[Stream, int]:
    """Return the streams [*leading axes, 1 …] of `array_words`, and how many of the last axes count through them."""
    counted = min(len(shape), 2)
    if counted == 2 and shape[-2] * shape[-1] > WORDS:
        counted = 1
    for axis in range(len(shape) - counted):
        index = _indices(shape, axis, rows)
        if axis == 0 and numbers is not None:
            index = numbers.astype(jnp.uint32).reshape(index.shape)
        state = substream(state, index)
    return state, counted


def keeps(word: jax.Array, threshold: int) -> jax.Array:
    """Return whether `word` is at least `threshold`, a number of 32 bits; what dropout keeps."""
    # Compared as signed numbers, which every processor can: both sides lose 2³¹.
    return (word ^ jnp.uint32(1 << 31)).astype(jnp.int32) >= jnp.int32(threshold - (1 << 31))


def drop_threshold(rate: float) -> int:
    """Return how many of the 2³² words mean that an element is dropped; never all of them."""
    return min(round(rate * WORDS), WORDS - 1)


def kept_scale(threshold: int) -> float:
    """Return what the kept elements are multiplied by, so that the mean stays."""
    return WORDS / (WORDS - threshold)


def _indices(shape: tuple[int, ...], axis: int, rows: jax.Array | None = None) -> jax.Array:
    """Return the index along `axis`, in the shape [1 …, size, 1 …]; of the second last the `rows`, [B, 1 …, M, 1]."""
    if rows is not None and axis == len(shape) - 2:
        return rows.astype(jnp.uint32).reshape(rows.shape[0], *(1,) * (len(shape) - 3), rows.shape[1], 1)
    return jax.lax.broadcasted_iota(jnp.uint32, [n if i == axis else 1 for i, n in enumerate(shape)], axis)


def _mixed(x: jax.Array) -> jax.Array:
    """Return the finalizer of MurmurHash3 (Appleby 2011), a permutation of the 32-bit numbers."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PackedTexts:
    """The positions of B rows that belong to each of at most T texts."""

    ids: jax.Array
    """int32 [B, L]: number of the text, from 1; 0 for padding. A text attends to itself alone."""
    starts: jax.Array
    """int32 [B, T]: position of the first token of each text, which the pooler reads; 0 if there is no such text."""

    @classmethod
    def of(cls, batch: dict[str, jax.Array]) -> "PackedTexts | None":
        """Return those of a batch of packed rows; None if each row is one text."""
        return cls(batch["text_ids"], batch["text_starts"]) if "text_ids" in batch else None

    def positions(self) -> jax.Array:
        """Return int32 [B, L]: the position of each token within its text."""
        start = jnp.sum(jnp.where(self.belongs(), self.starts[:, None, :], 0), axis=-1)
        return jnp.arange(self.ids.shape[1])[None, :] - start

    def lengths(self) -> jax.Array:
        """Return int32 [B, T]: number of tokens of each text; 0 if there is no such text."""
        return jnp.sum(self.belongs(), axis=1)

    def ends(self) -> jax.Array:
        """Return int32 [B, T]: position of the last token of each text; 0 if there is no such text."""
        return jnp.maximum(self.starts + self.lengths() - 1, 0)

    def belongs(self) -> jax.Array:
        """Return bool [B, L, T]: whether the position belongs to the text."""
        number = 1 + jnp.arange(self.starts.shape[1], dtype=self.ids.dtype)
        return self.ids[:, :, None] == number[None, None, :]


Product = Callable[[jax.Array, jax.Array, int], jax.Array]
"""Maps x [..., *inputs], kernel [*inputs, *outputs] and the number of inputs to [..., *outputs], in the dtype of x."""


def plain_product(x: jax.Array, kernel: jax.Array, axes: int) -> jax.Array:
    """Return the product as one operation, whose form the compiler chooses, also in the backward pass."""
    return jnp.tensordot(x, kernel.astype(x.dtype), axes=axes)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def wide_einsum(equation: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """Return the einsum of two arrays of one dtype in float32; both products of its gradient have that dtype.

    Differentiation alone would multiply by a gradient in float32. TPUs round it to bfloat16, but GPUs multiply it as it
    is, at half the rate at best, and XLA does not fill up its rows to a multiple of 16 bytes, as of 30,522 words.
    """
    return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)


def _wide_forward(equation: str, a: jax.Array, b: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return wide_einsum(equation, a, b), (a, b)


def _wide_backward(
    equation: str, kept: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return jax.vjp(functools.partial(jnp.einsum, equation), *kept)[1](gradient.astype(kept[0].dtype))


wide_einsum.defvjp(_wide_forward, _wide_backward)


def tpu_product(x: jax.Array, kernel: jax.Array, axes: int) -> jax.Array:
    """Return the product such that the sum of its kernel's gradient over chips that split the state can be scattered.

    The compiler does that with a matrix, but sums an array with narrow axes, such as heads of 64, whole.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.shape.get("fsdp", 1) == 1:
        return plain_product(x, kernel, axes)
    inputs, outputs = math.prod(kernel.shape[:axes]), kernel.shape[axes:]
    rows = x.reshape(*x.shape[: x.ndim - axes], inputs)
    y = plain_product(rows, kernel.reshape(inputs, -1), 1)
    return y.reshape(*y.shape[:-1], *outputs)


def cpu_product(x: jax.Array, kernel: jax.Array, axes: int) -> jax.Array:
    """Return the product such that it and both products of its gradient run at the full rate of a CPU."""
    inputs = math.prod(kernel.shape[:axes])
    y = _rows_times_kernel(x.reshape(-1, inputs), kernel.reshape(inputs, -1))
    return y.reshape(*x.shape[: x.ndim - axes], *kernel.shape[axes:])


def wide_product(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return a [M, K] · b [K, N] in float32, from operands of one dtype."""
    return jax.lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32)


def wide_product_with_rows(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return a [M, K] · b [N, K]ᵀ in float32, from operands of one dtype."""
    return jax.lax.dot_general(a, b, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)


def transposed(x: jax.Array) -> jax.Array:
    """Return the transpose of a matrix, written out row by row instead of read column by column."""
    return written(x.T)


def written(x: jax.Array) -> jax.Array:
    """Return x, whose elements lie in memory in the order of its axes."""
    return with_layout_constraint(x, Layout(major_to_minor=tuple(range(x.ndim))))


def summed_over_rows(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return aᵀ · b of a [M, K] and b [M, N] in float32, as gradients of kernels are.

    Float32 is read down the columns of the narrower operand, the first one. Of other operands, whatever is less is
    transposed and written out: a, or both b and the result.
    """
    (rows, outputs), inputs = a.shape, b.shape[1]
    if a.dtype == jnp.float32:
        product, swaps = _product_down_columns, outputs > inputs and rows > inputs
    else:
        product, swaps = _product_of_transpose, rows * outputs > (rows + outputs) * inputs
    # Without the barrier, the compiler would turn the second form into the first; and transposed while it is stacked
    # with the gradients of other layers, it would be read column by column.
    return transposed(jax.lax.optimization_barrier(product(b, a))) if swaps else product(a, b)


def _product_down_columns(a: jax.Array, b: jax.Array) -> jax.Array:
    return jax.lax.dot_general(a, b, (((0,), (0,)), ((), ())))


def _product_of_transpose(a: jax.Array, b: jax.Array) -> jax.Array:
    return wide_product(transposed(a), b)


@jax.custom_vjp
def _rows_times_kernel(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Return x [M, K] · kernel [K, N] in the dtype of x; the gradient of the kernel has the kernel's dtype."""
    return wide_product(x, kernel.astype(x.dtype)).astype(x.dtype)


def _forward(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array, jax.Array]]:
    narrow = kernel.astype(x.dtype)
    return wide_product(x, narrow).astype(x.dtype), (x, narrow, jnp.zeros((), kernel.dtype))


def _backward(kept: tuple[jax.Array, jax.Array, jax.Array], gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, kernel, like = kept
    return wide_product_with_rows(gradient, kernel).astype(x.dtype), summed_over_rows(x, gradient).astype(like.dtype)


_rows_times_kernel.defvjp(_forward, _backward)


def truncated_normal(key: jax.Array, shape: tuple[int, ...], stddev: float) -> jax.Array:
    """Return normal values cut at two standard deviations and, as in TF's initializer, not rescaled.

    Their standard deviation is 0.8796 × `stddev`.
    """
    return stddev * jax.random.truncated_normal(key, -2.0, 2.0, shape, jnp.float32)


def like(parameter: jax.Array, x: jax.Array) -> jax.Array:
    """Return `parameter` in the dtype of x, with leading axes of size 1 to broadcast it without rank promotion."""
    return parameter.reshape((1,) * (x.ndim - parameter.ndim) + parameter.shape).astype(x.dtype)


AddBias = Callable[[jax.Array, jax.Array], jax.Array]
"""Maps y [..., *outputs] and bias [*outputs] to their sum in the dtype of y."""


def plain_bias(y: jax.Array, bias: jax.Array) -> jax.Array:
    """Return y + bias; how its gradient is summed over rows is left to the compiler."""
    return y + like(bias, y)


@jax.custom_vjp
def wide_bias(y: jax.Array, bias: jax.Array) -> jax.Array:
    """Return y + bias, whose gradient is summed in float32, though y is bfloat16."""
    return y + like(bias, y)


def _wide_bias_backward(bias: jax.Array, gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    rows = tuple(range(gradient.ndim - bias.ndim))
    return gradient, jnp.sum(gradient.astype(jnp.float32), axis=rows).astype(bias.dtype)


wide_bias.defvjp(lambda y, bias: (wide_bias(y, bias), bias), _wide_bias_backward)


@jax.custom_vjp
def product_bias(y: jax.Array, bias: jax.Array) -> jax.Array:
    """Return y + bias, whose gradient is a product with ones: a TPU sums rows faster in its matrix units.

    Sums are float32.
    """
    return y + like(bias, y)


def _product_bias_backward(bias: jax.Array, gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    rows = gradient.reshape(*gradient.shape[: gradient.ndim - bias.ndim], bias.size)
    if rows.ndim > 2:
        # Eight equal rows, which fill a tile: of one row the compiler makes an ordinary sum again. Only the last axis
        # is contracted, because batches are split over devices, which would exchange all eight.
        ones = jnp.ones((8, rows.shape[-2]), rows.dtype)
        rows = jax.lax.dot_general(
            ones,
            rows,
            (((1,), (rows.ndim - 2,)), ((), ())),
            precision=jax.lax.Precision.HIGHEST,
            preferred_element_type=jnp.float32,
        )[0]
    total = jnp.sum(rows, axis=tuple(range(rows.ndim - 1)), dtype=jnp.float32)
    return gradient, total.reshape(bias.shape).astype(bias.dtype)


product_bias.defvjp(lambda y, bias: (product_bias(y, bias), bias), _product_bias_backward)


def affine(
    x: jax.Array,
    kernel: jax.Array,
    bias: jax.Array,
    product: Product = plain_product,
    add_bias: AddBias = plain_bias,
) -> jax.Array:
    """Return x · kernel + bias in the dtype of x: x [..., *inputs], kernel [*inputs, *outputs], bias [*outputs]."""
    return add_bias(steady_product(x, kernel, kernel.ndim - bias.ndim, product), bias)


NARROW = 16
"""Outputs. With fewer than 9, CPUs without AVX-512 add up the products of 64 rows in another order than of 128."""
_STEADY: contextvars.ContextVar[bool] = contextvars.ContextVar("steady", default=False)


@contextlib.contextmanager
def steady_rows() -> Iterator[None]:
    """Let the bits of a row of `steady_product` not depend on other rows, on a CPU, in what is traced within."""
    before = _STEADY.set(True)
    try:
        yield
    finally:
        _STEADY.reset(before)


def steady_product(x: jax.Array, kernel: jax.Array, axes: int, product: Product = plain_product) -> jax.Array:
    """Return the product; within `steady_rows` one of few outputs is computed with zeros as further ones."""
    missing = NARROW - math.prod(kernel.shape[axes:])
    if not _STEADY.get() or missing <= 0 or kernel.ndim != axes + 1 or platform_in_use() != "cpu":
        return product(x, kernel, axes)
    wide = jnp.pad(kernel, (*((0, 0) for _ in range(axes)), (0, missing)))
    return product(x, wide, axes)[..., :-missing]


class Linear(nnx.Module):
    """Affine map of the last axes of its input: kernel [*inputs, *outputs], bias [*outputs], or none without `bias`.

    The model that it is part of sets `product` and `add_bias` to those of its architecture.
    """

    def __init__(
        self, inputs: tuple[int, ...], outputs: tuple[int, ...], stddev: float, key: jax.Array, bias: bool = True
    ):
        self.product: Product = plain_product
        self.add_bias: AddBias = plain_bias
        self.kernel: nnx.Param[jax.Array] = nnx.Param(truncated_normal(key, inputs + outputs, stddev))
        self.bias: nnx.Param[jax.Array] | None = nnx.Param(jnp.zeros(outputs, jnp.float32)) if bias else None
        self.input_axes: int = len(inputs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map [..., *inputs] to [..., *outputs], in the dtype of x."""
        if self.bias is None:
            return self.product(x, self.kernel[...], self.input_axes)
        return affine(x, self.kernel[...], self.bias[...], self.product, self.add_bias)


_ROW_NUMBERS: contextvars.ContextVar[jax.Array | None] = contextvars.ContextVar("row_numbers", default=None)


@contextlib.contextmanager
def numbered_rows(numbers: jax.Array) -> Iterator[None]:
    """Let `dropout` drop from B rows what it would from the rows `numbers`, int32 [B], of a larger batch.

    It is for what is traced within, of arrays [B, …] with three axes or more. So a batch that is computed in parts
    loses the same elements as in one, but for the kernel for TPUs, which counts the rows of a part from 0.
    """
    before = _ROW_NUMBERS.set(numbers)
    try:
        yield
    finally:
        _ROW_NUMBERS.reset(before)


def row_numbers(x: jax.Array) -> jax.Array | None:
    """Return int32 [B], the numbers of the rows of x [B, …] for `array_words`; None: they count from 0."""
    numbers = _ROW_NUMBERS.get()
    return numbers if numbers is not None and x.ndim > 2 and len(numbers) == len(x) else None


def dropout(
    x: jax.Array, rate: float, key: jax.Array | None, rows: jax.Array | None = None, length: int = 0
) -> jax.Array:
    """Zero each element with probability `rate` (to the nearest 2⁻³²) and scale the others so that the mean stays.

    Without a key, return x itself. What is dropped depends on the key and on the place of an element in the array, and
    is computed again in the backward pass. With `rows`, int32 [B, M], x [B, …, M, N] are those of `length` rows of the
    whole array, and what is dropped is the same as there.
    """
    threshold = drop_threshold(rate)
    if key is None or threshold == 0:
        return x
    shape = x.shape if rows is None else (*x.shape[:-2], length, x.shape[-1])
    return _dropped(x, (counter_stream(key), rows, row_numbers(x)), shape, threshold)


Place = tuple[Stream, jax.Array | None, jax.Array | None]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _dropped(x: jax.Array, place: Place, shape: tuple[int, ...], threshold: int) -> jax.Array:
    stream, rows, numbers = place
    keep = keeps(array_words(stream, shape, rows, numbers), threshold)
    return jnp.where(keep, x * kept_scale(threshold), jnp.zeros_like(x))


def _dropped_backward(
    shape: tuple[int, ...], threshold: int, place: Place, gradient: jax.Array
) -> tuple[jax.Array, None]:
    # The map is linear in x, so it is its own transpose. Without the barrier, XLA would see that the words are those of
    # the forward pass and keep what it decided there.
    return _dropped(gradient, jax.lax.optimization_barrier(place), shape, threshold), None


_dropped.defvjp(lambda x, place, *static: (_dropped(x, place, *static), place), _dropped_backward)


def gelu_tanh(x: jax.Array) -> jax.Array:
    """Return the tanh approximation of GELU, as in Google's code."""
    return jax.nn.gelu(x, approximate=True)


def relu(x: jax.Array) -> jax.Array:
    """Return x where it is positive, else 0."""
    return jnp.maximum(x, 0)


def relu_squared(x: jax.Array) -> jax.Array:
    """Return the square of x where it is positive, else 0 (So et al. 2021)."""
    return jnp.square(relu(x))


def in_float32(activation: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    """Return the same function of x, computed in float32 and rounded once, whose backward pass keeps x alone.

    On a CPU, every operation on bfloat16 is one on float32 between two conversions.
    """

    @jax.custom_vjp
    def computed(x: jax.Array) -> jax.Array:
        return activation(x.astype(jnp.float32)).astype(x.dtype)

    def backward(x: jax.Array, gradient: jax.Array) -> tuple[jax.Array]:
        _, pull_back = jax.vjp(activation, x.astype(jnp.float32))
        return (pull_back(gradient.astype(jnp.float32))[0].astype(x.dtype),)

    computed.defvjp(lambda x: (computed(x), x), backward)
    return computed


def gelu_erf(x: jax.Array) -> jax.Array:
    """Return the exact GELU, which Hugging Face checkpoints use."""
    return jax.nn.gelu(x, approximate=False)


NormForm = Callable[[jax.Array, jax.Array, jax.Array | None, float], jax.Array]
"""Maps x [..., H], scale [H], bias [H] or None, and epsilon to the layer normalization of x, in its dtype."""


def plain_layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array | None, epsilon: float) -> jax.Array:
    """Return the norm of x in float32 and in two passes.

    E[x²] - E[x]² would lose the small variances that epsilon = 1e-12 is meant for.
    """
    wide = x.astype(jnp.float32)
    centred = wide - checkpoint_name(jnp.mean(wide, axis=-1, keepdims=True), "mean")
    variance = checkpoint_name(jnp.mean(jnp.square(centred), axis=-1, keepdims=True), "variance")
    return _scaled(centred * jax.lax.rsqrt(variance + epsilon), scale, bias).astype(x.dtype)


def fused_layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array | None, epsilon: float) -> jax.Array:
    """Return the norm of x such that a compiler can put all its sums at the end of the product before it.

    No sum waits for another: the gradient is the closed form, not the chain through variance and mean, and the variance
    of bfloat16 is E[x²] - E[x]² in float32. That errs by about 2⁻²³ E[x²], where rounding x to bfloat16 has added at
    least 2⁻²⁰ E[x²] to the variance. Of other types it takes two passes.
    """
    return jnp.asarray(_fused(x, scale, bias, epsilon))


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _fused(x: jax.Array, scale: jax.Array, bias: jax.Array | None, epsilon: float) -> jax.Array:
    return _fused_forward(x, scale, bias, epsilon)[0]


def _fused_forward(x: jax.Array, scale: jax.Array, bias: jax.Array | None, epsilon: float):
    wide = x.astype(jnp.float32)
    mean = checkpoint_name(jnp.mean(wide, axis=-1, keepdims=True), "mean")
    if x.dtype == jnp.bfloat16:
        variance = jnp.maximum(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) - jnp.square(mean), 0.0)
    else:
        variance = jnp.mean(jnp.square(wide - mean), axis=-1, keepdims=True)
    inverse = jax.lax.rsqrt(checkpoint_name(variance, "variance") + epsilon)
    return _scaled((wide - mean) * inverse, scale, bias).astype(x.dtype), (x, mean, inverse, scale, bias)


def _fused_backward(epsilon: float, kept: tuple[Any, ...], gradient: jax.Array) -> tuple[jax.Array | None, ...]:
    x, mean, inverse, scale, bias = kept
    normed, gradient = (x.astype(jnp.float32) - mean) * inverse, gradient.astype(jnp.float32)
    of_normed = gradient * like(scale, gradient)
    common = jnp.mean(of_normed, axis=-1, keepdims=True)
    along = jnp.mean(of_normed * normed, axis=-1, keepdims=True)
    rows = tuple(range(x.ndim - 1))
    return (
        (inverse * (of_normed - common - normed * along)).astype(x.dtype),
        jnp.sum(gradient * normed, axis=rows),
        None if bias is None else jnp.sum(gradient, axis=rows),
    )


_fused.defvjp(_fused_forward, _fused_backward)


def _scaled(normed: jax.Array, scale: jax.Array, bias: jax.Array | None) -> jax.Array:
    scaled = normed * like(scale, normed)
    return scaled if bias is None else scaled + like(bias, scaled)


class LayerNorm(nnx.Module):
    """Layer normalization over the last axis (Ba et al. 2016).

    The model that it is part of sets `form` to that of its architecture.
    """

    def __init__(self, size: int, epsilon: float, bias: bool = True):
        self.form: NormForm = plain_layer_norm
        self.epsilon = epsilon
        self.scale: nnx.Param[jax.Array] = nnx.Param(jnp.ones(size, jnp.float32))
        self.bias: nnx.Param[jax.Array] | None = nnx.Param(jnp.zeros(size, jnp.float32)) if bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.form(x, self.scale[...], None if self.bias is None else self.bias[...], self.epsilon)


class RmsNorm(nnx.Module):
    """Division by the root mean square over the last axis (Zhang & Sennrich 2019), in float32."""

    def __init__(self, size: int, epsilon: float):
        self.epsilon = epsilon
        self.scale: nnx.Param[jax.Array] = nnx.Param(jnp.ones(size, jnp.float32))

    def __call__(self, x: jax.Array) -> jax.Array:
        wide = x.astype(jnp.float32)
        variance = checkpoint_name(jnp.mean(jnp.square(wide), axis=-1, keepdims=True), "variance")
        normed = wide * jax.lax.rsqrt(variance + self.epsilon)
        return (normed * like(self.scale[...], normed)).astype(x.dtype)


Norm = LayerNorm | RmsNorm


def make_norm(config: EncoderConfig, size: int) -> Norm:
    """Return a fresh norm of `size` features, of the kind that the model has everywhere."""
    if config.norm == "rms_norm":
        return RmsNorm(size, config.layer_norm_epsilon)
    return LayerNorm(size, config.layer_norm_epsilon, config.norm_bias)
