"""Texts as a loaded model reads them: ids that fit its positions and segments, and batches of them."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from bert_jax.console.progress_bar import track
from bert_jax.data.sequences.batching import Batch
from bert_jax.data.sequences.features import Features
from bert_jax.data.sequences.text_batches import PackedBatches, as_features, batches
from bert_jax.errors import UserError
from bert_jax.tokenization.texts import Texts, tokenize

LONG = 10  # number of batches from which on a progress bar is shown


def read_texts(model: Any, texts: Texts, max_length: int | None = None, truncate: bool = True) -> Features:
    """Return texts or pairs as the ids of a PretrainedModel, with [CLS] and [SEP]; [MASK] is the mask token."""
    longest = model.config.longest_sequence
    rows = tokenize(model.need_tokenizer(), texts, longest, max_length, truncate, masks=True)
    features = as_features(rows, longest)
    if model.config.type_vocab_size == 1 and any(types.any() for types in features.token_type_ids):
        raise UserError(
            "this model has one segment (type_vocab_size=1) and cannot read pairs; join the two texts yourself"
        )
    return features


def in_batches(
    features: Features, batch_size: int, progress: bool | None, packed: bool = False
) -> Iterable[tuple[np.ndarray, Batch]]:
    """Yield batches with the numbers of their texts, beside a bar if `progress`; None: if there are many.

    With `packed`, several texts share a row; a text alone is in a batch of the same form as without.
    """
    if batch_size < 1:
        raise UserError(f"batch_size={batch_size} must be positive")
    if packed and len(features) > 1:
        found = PackedBatches(features, batch_size)
        count = len(found)
    else:
        found, count = batches(features, batch_size), -(-len(features) // batch_size)
    show = count >= LONG if progress is None else progress
    return track(found, "batches of texts", count, visible=show)
