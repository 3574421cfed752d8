"""How much of a batch is text: what tokens per second and utilization count, without padding."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from bert_jax.devices.hardware import hardware
from bert_jax.models.packed_texts import PackedTexts
from bert_jax.models.protocol import Model
from bert_jax.objectives.objective import Batch

COUNTS = ("useful_tokens", "useful_squares", "useful_texts", "useful_predictions")


def counts(batch: Batch) -> dict[str, jax.Array]:
    """Return COUNTS of a batch, float32 []: tokens, Σ length² of its texts, texts, and predictions."""
    mask, texts = batch["attention_mask"], PackedTexts.of(batch)
    lengths = (jnp.sum(mask, axis=1, keepdims=True) if texts is None else texts.lengths()).astype(jnp.float32)
    # Sums over devices are all in float32, which XLA puts into one.
    found = jnp.sum(lengths), jnp.sum(jnp.square(lengths)), jnp.sum(jnp.sign(lengths)), jnp.sum(batch["masked_weights"])
    return dict(zip(COUNTS, found, strict=True))


def useful_flops(model: Model, sequence_length: int, counts: dict[str, float]) -> float:
    """Return the operations of a training step on the texts of a batch, each computed alone and without padding.

    `Model.training_flops` is taken to be a polynomial: of degree two in the length, as attention within the text is,
    and of degree one in the predictions. It is exact at 0, half of `sequence_length` and all of it; a prediction, which
    XLNet's second stream lets attend to its text, counts as in a text of the mean length of a token's.
    """
    tokens, squares, texts, predictions = (counts[name] for name in COUNTS)
    text, token, square = _operations(model, sequence_length)
    length = round(squares / tokens) if tokens else 0
    prediction = model.training_flops(length, 1) - model.training_flops(length, 0)
    return text * texts + token * tokens + square * squares + prediction * predictions


def flops_of_texts(model: Model, sequence_length: int) -> Callable[[np.ndarray], float]:
    """Return a function of the lengths of texts, int64 [T]: `useful_flops` of a batch of them, without predictions."""
    text, token, square = _operations(model, sequence_length)
    return lambda lengths: float(text * len(lengths) + token * lengths.sum() + square * np.square(lengths).sum())


def peak_flops(mesh: Mesh) -> float | None:
    """Return the FLOP/s of all devices together; None if unknown."""
    peak = hardware(list(mesh.devices.flat)).peak_flops
    return None if peak is None else peak * mesh.size


def _operations(model: Model, sequence_length: int) -> tuple[float, float, float]:
    """Return the operations for a text of any length, for each of its tokens, and for each pair of two of them."""
    whole, half = float(sequence_length), float(sequence_length // 2)
    text = model.training_flops(0, 0)
    slopes = [(model.training_flops(int(length), 0) - text) / length for length in (whole, half)]
    curvature = (slopes[0] - slopes[1]) / (whole - half)
    return text, slopes[0] - curvature * whole, curvature
