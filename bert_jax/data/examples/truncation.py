"""Cutting text to the size of a sequence such that every sentence keeps a token.

The original takes tokens off the longer segment, one at a time, from its front or its back by a fair coin, so a short
sentence at an edge can vanish. Here an end gives up at most all but one token of its sentence, then the other end of
the segment does, then the other segment. Chunks and pairs are made such that this suffices.
"""

import dataclasses
from typing import Any

import numpy as np

from bert_jax.data.randomness import Stream, bits, heads


@dataclasses.dataclass(frozen=True)
class Segments:
    """Runs of consecutive sentences, of which the first and last may be partial; int64 arrays of one common shape."""

    begin: np.ndarray  # token offsets [begin, end)
    end: np.ndarray
    first_end: np.ndarray  # where the first sentence ends; `end` if there is only one
    last_begin: np.ndarray  # where the last sentence begins; `begin` if there is only one

    @property
    def columns(self) -> tuple[np.ndarray, ...]:
        """The four arrays, in the order of the constructor."""
        return self.begin, self.end, self.first_end, self.last_begin

    @property
    def length(self) -> np.ndarray:
        return self.end - self.begin

    @property
    def spare(self) -> np.ndarray:
        """Number of tokens that can be removed while every sentence keeps one."""
        both = self.first_end - self.begin + self.end - self.last_begin - 2
        return np.maximum(np.minimum(both, self.length - 1), 0)

    def __getitem__(self, where: Any) -> "Segments":
        return Segments(self.begin[where], self.end[where], self.first_end[where], self.last_begin[where])

    def __setitem__(self, where: Any, values: "Segments") -> None:
        for field in dataclasses.fields(self):
            getattr(self, field.name)[where] = getattr(values, field.name)


def truncate(pair: Segments, keys: np.ndarray, max_tokens: int | np.ndarray) -> tuple[np.ndarray, ...]:
    """Cut pairs of segments [B, 2], which must be able to spare that much, to `max_tokens` together, the longer first.

    `max_tokens` is one number, or one for each pair [B].

    In closed form: first the difference of the lengths comes off the longer, then both lose tokens in turn, the second
    first (the original trims it on a tie). Returns begin, end and the number of tokens removed, [B, 2] each.
    """
    excess = np.maximum(pair.length.sum(1) - max_tokens, 0)
    difference = pair.length[:, 0] - pair.length[:, 1]
    uneven = np.minimum(excess, abs(difference))
    from_both = np.stack([(excess - uneven) // 2, (excess - uneven + 1) // 2], axis=1)
    removed = from_both + np.stack([np.where(difference > 0, uneven, 0), np.where(difference < 0, uneven, 0)], axis=1)
    beyond = np.maximum(removed - pair.spare, 0)
    removed += beyond[:, ::-1] - beyond
    begin, end = trim(pair, removed, bits(keys[:, None], Stream.TRUNCATION, np.arange(2)))
    return begin, end, removed


def trim(segments: Segments, removed: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return begin and end without `removed` <= spare tokens, each from front or back by a fair coin if possible."""
    front = heads(keys.ravel(), Stream.TRUNCATION, removed.ravel()).reshape(removed.shape)
    front_spare = np.maximum(segments.first_end - segments.begin - 1, 0)
    back_spare = np.maximum(segments.end - segments.last_begin - 1, 0)
    front = np.clip(front, removed - back_spare, front_spare)
    return segments.begin + front, segments.end - (removed - front)
