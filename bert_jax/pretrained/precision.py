"""Vectors of texts in one byte or one bit for each value, in the forms of sentence-transformers and vector databases.

Of int8 the range of each value is divided into 256 equal steps; so the ranges belong to the vectors, and queries need
those of the documents. A bit says whether a value is positive, and needs nothing else. Weights, and the vectors of an
index, have a scale of their own for each row or column (`as_integers`).
"""

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from bert_jax.errors import UserError

VectorPrecision = Literal["float32", "int8", "uint8", "binary", "ubinary"]
STEPS = 255
LARGEST = 127


def value_ranges(vectors: ArrayLike) -> np.ndarray:
    """Return float32 [2, H]: the least and the greatest value of each feature of vectors [n, H]."""
    vectors = np.asarray(vectors, np.float32)
    return np.stack([vectors.min(axis=0), vectors.max(axis=0)])


def quantize_embeddings(vectors: ArrayLike, precision: VectorPrecision, ranges: ArrayLike | None = None) -> np.ndarray:
    """Return vectors [n, H] in fewer bits, equal to those of the function of this name in sentence-transformers.

    Args:
      vectors: float [n, H], as `embed` returns them.
      precision: int8 or uint8, one byte for each value; binary (int8) or ubinary (uint8), [n, ⌈H/8⌉], one bit for each
        value, eight in a byte; or float32.
      ranges: of int8 and uint8, [2, H], from `value_ranges` of many vectors, such as those of all documents; None: of
        these.

    Raises:
      UserError: the vectors are no matrix of finite numbers, the ranges do not fit them or are needed, as of one vector
        in int8, or there is no such precision.
    """
    values = np.asarray(vectors)
    if values.ndim != 2 or values.dtype.kind != "f":
        raise UserError(
            f"vectors of shape {list(values.shape)} and type {values.dtype} cannot be quantized; give single vectors "
            "[texts, features] of floating-point numbers, as model.embed returns them"
        )
    if precision not in get_args(VectorPrecision):
        raise UserError(f"precision={precision!r:.40} must be {', '.join(get_args(VectorPrecision))}")
    if not np.isfinite(values).all():
        raise UserError("vectors with NaN or infinite values cannot be quantized; look at the texts or the model")
    if precision == "float32":
        return values.astype(np.float32)
    if precision in ("binary", "ubinary"):
        bits = np.packbits(values > 0, axis=-1)
        return bits if precision == "ubinary" else (bits.astype(np.int16) - 128).astype(np.int8)
    if ranges is None and not len(values):
        return np.zeros(values.shape, precision)
    if ranges is None and len(values) == 1:
        raise UserError(f"one vector has no ranges to divide; give ranges=, those of the documents, for {precision}")
    least, greatest = _checked(value_ranges(values) if ranges is None else ranges, values.shape[1])
    steps = (greatest - least) / STEPS
    levels = np.clip(np.floor((values - least) / np.where(steps == 0, 1, steps)), 0, STEPS)
    return levels.astype(np.uint8) if precision == "uint8" else (levels - 128).astype(np.int8)


def _checked(ranges: ArrayLike, size: int) -> np.ndarray:
    found = np.asarray(ranges, np.float32)
    if found.shape != (2, size) or not (found[0] <= found[1]).all():
        raise UserError(
            f"ranges of shape {list(found.shape)} must be [2, {size}], the least and the greatest value of each "
            "feature, as value_ranges returns them"
        )
    return found


def compared_values(vectors: np.ndarray, precision: VectorPrecision, ranges: np.ndarray) -> np.ndarray:
    """Return float32 [n, H] whose cosines compare the quantized vectors: bits as ±1, so that it is Hamming distance."""
    found = quantize_embeddings(vectors, precision, ranges)
    if precision in ("binary", "ubinary"):
        packed = found if precision == "ubinary" else (found.astype(np.int16) + 128).astype(np.uint8)
        return 2.0 * np.unpackbits(packed, axis=-1, count=vectors.shape[1]).astype(np.float32) - 1.0
    if precision == "float32":
        return found
    levels = found.astype(np.float32) + (0 if precision == "uint8" else 128)
    return ranges[0] + (levels + 0.5) * (ranges[1] - ranges[0]) / STEPS


def as_integers(values: np.ndarray, axes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return int8 values and float32 scales, whose product is nearest to `values`, one scale over `axes`."""
    largest = np.max(np.abs(values), axis=axes, keepdims=True)
    scale = np.where(largest > 0, largest / LARGEST, 1.0).astype(np.float32)
    return np.clip(np.rint(values / scale), -LARGEST, LARGEST).astype(np.int8), scale
