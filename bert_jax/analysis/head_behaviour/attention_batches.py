"""Batches whose attention fits into memory."""

from collections.abc import Sequence

from bert_jax.pretrained.model import PretrainedModel

VALUES = 2**26
"""Probabilities of one batch, at most: 0.25 GiB on the device, and about three times that on the host."""


def batch_fitting(model: PretrainedModel, texts: Sequence[str], batch_size: int, max_length: int | None) -> int:
    """Return the batch size, or the largest below it whose maps of all heads are not more than VALUES; at least 1."""
    limits = (max_length, model.config.longest_sequence, max(map(len, texts)) + 2)  # a token has a character at least
    length = min(limit for limit in limits if limit is not None)
    maps = model.config.num_layers * model.config.num_heads * length**2
    return max(1, min(batch_size, VALUES // max(maps, 1)))
