"""Statistics of one epoch, measured on its rows without reading a token."""

import dataclasses
from typing import Any

import numpy as np

from bert_jax.data.examples.examples import Examples

_ROWS_AT_ONCE = 4096


@dataclasses.dataclass(frozen=True)
class EpochReport:
    """Statistics of one epoch; shares are between 0 and 1, and lengths count [CLS] and [SEP]."""

    sequences: int
    examined: int  # the first ones of the epoch, in order
    is_next: float | None  # share of label 0; None if pairs have no labels
    mean_length: float
    padding: float  # share of the positions of a batch
    truncated: float  # share of the text's tokens
    duplicated: float  # share of the text's tokens
    sentences_seen: float | None  # share with at least one token; None unless all sequences were examined
    tokens_seen: float | None
    texts_per_sequence: float  # 1 unless rows are packed


def epoch_report(examples: Examples, epoch: int = 0, limit: int = 100_000) -> EpochReport:
    """Measure at most `limit` sequences of `epoch`; this takes one byte of memory per token of the store."""
    sequences = examples.num_examples(epoch)
    examined = min(sequences, limit)
    documents, store = examples.documents, examples.store
    seen = np.zeros(store.num_tokens, bool) if examined == sequences else None
    lengths, labels, truncated, duplicated, kept, texts = [], [], 0, 0, 0, 0
    for start in range(0, examined, _ROWS_AT_ONCE):
        indices = np.arange(start, min(start + _ROWS_AT_ONCE, examined))
        rows = examples.rows(np.full(len(indices), epoch), indices)
        text = rows.token_index[rows.token_index >= 0]
        lengths.append(rows.lengths)
        texts += len(indices) if rows.text_weights is None else int(rows.text_weights.sum())
        truncated, duplicated, kept = (
            truncated + rows.truncated.sum(),
            duplicated + rows.duplicated.sum(),
            kept + text.size,
        )
        if rows.labels is not None:
            labels.append(rows.labels if rows.text_weights is None else rows.labels[rows.text_weights > 0])
        if seen is not None:
            seen[text] = True
    lengths, own = np.concatenate(lengths), kept - duplicated + truncated
    sentences_seen = None if seen is None else _sentences_seen(store, seen, documents)
    tokens_seen = None if seen is None else float(seen.sum() / documents.num_tokens.sum())
    return EpochReport(
        sequences,
        examined,
        1 - float(np.concatenate(labels).mean()) if labels else None,
        float(lengths.mean()),
        1 - float(lengths.mean()) / examples.sequence_length,
        float(truncated / own),
        float(duplicated / own),
        sentences_seen,
        tokens_seen,
        texts / examined,
    )


def _sentences_seen(store: Any, seen: np.ndarray, documents: Any) -> float:
    starts = store.sentence_starts(np.arange(store.num_sentences))
    touched = np.logical_or.reduceat(seen, starts).sum()
    return float(touched / (documents.end_sentences - documents.first_sentences).sum())
