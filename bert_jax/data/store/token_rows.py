"""The origin of every token of a row, before any token is read."""

import dataclasses
from typing import Any

import numpy as np

SPECIAL, PADDING = -1, -2


@dataclasses.dataclass(frozen=True)
class Rows:
    """B rows of L places as offsets into the token store, and what was done to them.

    A row is one text; or up to T of them if rows are packed, which have the last three fields.
    """

    token_index: np.ndarray  # int64 [B, L]: global token offset, or SPECIAL for [CLS] and [SEP], or PADDING
    token_type_ids: np.ndarray  # int32 [B, L]
    labels: (
        np.ndarray | None
    )  # int32 [B], packed [B, T]: 0 if the second segment follows, 1 if random or swapped; None: no such labels
    truncated: np.ndarray  # int64 [B]: tokens of the chunk that did not fit
    duplicated: np.ndarray  # int64 [B]: tokens that are also in another example of the epoch
    text_ids: np.ndarray | None = None  # int32 [B, L]: number of the text, from 1; 0 for padding
    text_starts: np.ndarray | None = None  # int32 [B, T]: place of its [CLS]; 0 if there is no such text
    text_weights: np.ndarray | None = None  # float32 [B, T]: 1 if there is such a text, else 0

    @property
    def lengths(self) -> np.ndarray:
        """int64 [B]: number of places in use, [CLS] and [SEP] included."""
        return (self.token_index != PADDING).sum(1)

    def __getitem__(self, where: np.ndarray) -> "Rows":
        values = [getattr(self, field.name) for field in dataclasses.fields(self)]
        return Rows(*(_at(value, where) for value in values))

    @staticmethod
    def concatenate(parts: list["Rows"]) -> "Rows":
        columns = zip(
            *([getattr(part, field.name) for field in dataclasses.fields(Rows)] for part in parts), strict=True
        )
        return Rows(*map(_joined, columns))


def padded_rows(rows: Rows, length: int) -> Rows:
    """Return rows of `length` places, the further ones padding."""
    if (missing := length - rows.token_index.shape[1]) == 0:
        return rows

    def widened(values: np.ndarray, padding: int) -> np.ndarray:
        return np.pad(values, ((0, 0), (0, missing)), constant_values=padding)

    return dataclasses.replace(
        rows,
        token_index=widened(rows.token_index, PADDING),
        token_type_ids=widened(rows.token_type_ids, 0),
        text_ids=None if rows.text_ids is None else widened(rows.text_ids, 0),
    )


def _at(values: Any, where: Any) -> Any:
    return None if values is None else values[where]


def _joined(column: tuple[Any, ...]) -> Any:
    return None if column[0] is None else np.concatenate(column)
