"""Where every token of a sequence comes from, before any token is read."""

import dataclasses
from typing import Any

import numpy as np

SPECIAL, PADDING = -1, -2


@dataclasses.dataclass(frozen=True)
class Rows:
    """B sequences of L places as offsets into the token store, with what was done to them."""

    token_index: (
        np.ndarray
    )  # int64 [B, L]: global token offset; SPECIAL for [CLS] (place 0) and [SEP], PADDING after the end
    token_type_ids: np.ndarray  # int32 [B, L]
    labels: (
        np.ndarray | None
    )  # int32 [B]: 0 the second segment follows the first, 1 random or swapped; None without pairs
    truncated: np.ndarray  # int64 [B]: tokens of the chunk that did not fit
    duplicated: np.ndarray  # int64 [B]: tokens that also stand in another example of the epoch

    @property
    def lengths(self) -> np.ndarray:
        """int64 [B]: places in use, [CLS] and [SEP] included."""
        return (self.token_index != PADDING).sum(1)

    def __getitem__(self, where) -> "Rows":
        values = [getattr(self, field.name) for field in dataclasses.fields(self)]
        return Rows(*(_at(value, where) for value in values))

    @staticmethod
    def concatenate(parts: list["Rows"]) -> "Rows":
        columns = zip(
            *([getattr(part, field.name) for field in dataclasses.fields(Rows)] for part in parts), strict=True
        )
        return Rows(*map(_joined, columns))


def _at(values: Any, where) -> Any:
    return None if values is None else values[where]


def _joined(column: tuple[Any, ...]) -> Any:
    return None if column[0] is None else np.concatenate(column)
