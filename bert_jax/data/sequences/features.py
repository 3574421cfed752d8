"""What every task family turns its examples into: token sequences with their answers, not yet padded."""

import dataclasses

import numpy as np

from bert_jax.data.sequences.lengths import Uncut


@dataclasses.dataclass(frozen=True)
class Features:
    """E sequences of at most `max_length` tokens, `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`; batching pads them."""

    input_ids: list
    """int32 [L] each; for choice a list of K such arrays each."""
    token_type_ids: list
    """As `input_ids`: 0 for [CLS] A [SEP], 1 for B [SEP]."""
    labels: np.ndarray | list[np.ndarray] | None
    """classification and choice int32 [E]; regression float32 [E]; span int32 [E, 2], token positions, (0, 0) where the
    sequence holds no answer; tagging a list of int32 [L], -1 where nothing is predicted, else as `with_edges` makes them. None
    where unlabelled."""
    example: np.ndarray
    """int32 [E]: the index of the example that each sequence came from."""
    max_length: int
    uncut: Uncut | None = dataclasses.field(default=None, kw_only=True)
    """None where everything is read, in windows."""

    def __len__(self) -> int:
        return len(self.input_ids)


def with_edges(classes: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """int32 labels for tagging: the class of each word, and whether the word is the first of its sentence, and the last.

    One number each, so that what a CRF has to know of sentences travels in the array that says where the words are.
    """
    return (classes << 2 | last << 1 | first).astype(np.int32)


def without_edges(labels):
    """(classes, first, last) of labels for tagging, NumPy's or JAX's; where nothing is predicted, the class is -1."""
    return labels >> 2, (labels & 1) > 0, (labels & 2) > 0
