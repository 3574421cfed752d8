"""The arrays of a batch of pre-training: their names, shapes and types, by phase and objective."""

import numpy as np

from bert_jax.config import Config, Phase
from bert_jax.config.static_vectors import SHARED_NEGATIVES

Batch = dict[str, np.ndarray]
"""input_ids, token_type_ids, attention_mask int32 [B, L] · masked_positions, masked_ids int32 [B, M] · masked_weights
float32 [B, M] · next_sentence_labels int32 [B] (0 = IsNext or in order; absent if pairs have no labels).

Packed rows also have text_ids int32 [B, L] (the number of the text, from 1; 0 for padding) · text_starts int32 [B, T]
(place of its [CLS]; 0 if there is no such text); and next_sentence_labels are [B, T], with next_sentence_weights
float32 [B, T] (0 if there is no such text). Orders of tokens (objective.name=permutation) are order int32 [B, L].

Rows for static word vectors are words alone. They have windows int32 [B, L, 2] and negatives int32 [B, N] (see
`NeighbourWindows`), or pair_counts float32 [B, L, W] (see `NeighbourCounts`), which end with a text; no text_ids."""


def batch_layout(phase: Phase, config: Config) -> dict[str, tuple[tuple[int, ...], type[np.generic]]]:
    """Return the shape of a row and the type of each array of a batch of `phase`; see Batch."""
    tokens, masked = (phase.sequence_length,), (phase.max_predictions,)
    texts = (phase.max_texts,) if phase.packed else ()
    layout: dict[str, tuple[tuple[int, ...], type[np.generic]]] = {
        **dict.fromkeys(("token_type_ids", "attention_mask", "input_ids"), (tokens, np.int32)),
        **dict.fromkeys(("masked_positions", "masked_ids"), (masked, np.int32)),
        "masked_weights": (masked, np.float32),
    }
    if phase.packed and not config.objective.predicts_neighbours:
        layout |= {"text_ids": (tokens, np.int32), "text_starts": (texts, np.int32)}
    if config.objective.name == "permutation":
        layout |= {"order": (tokens, np.int32)}
    if config.objective.name == "skip_gram":
        layout |= {"windows": ((*tokens, 2), np.int32), "negatives": ((SHARED_NEGATIVES,), np.int32)}
    if config.objective.name == "glove":
        layout |= {"pair_counts": ((*tokens, config.objective.static_vectors.window), np.float32)}
    if config.data.has_pair_labels:
        layout |= {"next_sentence_labels": (texts, np.int32)}
        layout |= {"next_sentence_weights": (texts, np.float32)} if phase.packed else {}
    return layout
