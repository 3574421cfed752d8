"""The output of every task family: token sequences with their answers, not yet padded."""

import dataclasses
from typing import Any

import numpy as np

from bert_jax.data.sequences.lengths import Uncut


@dataclasses.dataclass(frozen=True)
class Features:
    """E sequences of at most `max_length` tokens, `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`; batching pads them."""

    input_ids: list[Any]
    """int32 [L] each; for choice a list of K such arrays per example."""
    token_type_ids: list[Any]
    """As `input_ids`: 0 for [CLS] A [SEP], 1 for B [SEP]."""
    labels: np.ndarray | list[np.ndarray] | None
    """int32 [E] for classification and choice; float32 [E] for regression; int32 [E, 2] for span, token positions,
    (0, 0) if the sequence has no answer; a list of int32 [L] for tagging, -1 where nothing is predicted, else as
    `models.crf.with_edges` makes them. None if there are no labels."""
    example: np.ndarray
    """int32 [E]: index of the example that each sequence came from."""
    max_length: int
    uncut: Uncut | None = dataclasses.field(default=None, kw_only=True)
    """None if everything is read, in windows."""

    def __len__(self) -> int:
        return len(self.input_ids)

    def part(self, numbers: np.ndarray) -> "Features":
        """Return the sequences `numbers`, integers [n], without labels, each as an example of its own."""
        return Features(
            [self.input_ids[number] for number in numbers],
            [self.token_type_ids[number] for number in numbers],
            None,
            np.arange(len(numbers), dtype=np.int32),
            self.max_length,
        )
