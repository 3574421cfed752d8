"""Documents as windows for a tagger, so that each word is predicted with the words around it on both sides.

Devlin et al. 2018, section 5.3: "we include the maximal document context provided by the data". Sentences are predicted
as a whole: an entity is never cut, and a CRF runs over whole sentences.
"""

import bisect
import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Window:
    """Words first … end - 1 of a document: those in `predicted` have a label, the others are context."""

    first: int
    end: int
    predicted: np.ndarray
    """int [n]: predicted words, in order; one range, or several."""


def windows(sentences: list[np.ndarray], room: int, step: int) -> list[Window]:
    """Return windows of one document that together predict each of its words once.

    Sentences are grouped, up to `step` tokens per group; one window is centred on each group and filled with its
    surroundings. If a sentence is in several windows, the one counts in which the poorer of its two sides has most
    context (and among those, the richer side). Sentences longer than a window are treated as several of at most `step`
    tokens.

    Args:
      sentences: number of tokens of each word, at most `step`, per sentence.
      room: number of tokens per window.
      step: number of tokens per group; `step` <= `room`.
    """
    starts = np.concatenate([[0], np.cumsum(np.concatenate(sentences))])  # of each word, in tokens; and the end
    units = _units(sentences, starts, room, step)
    ranges = sorted({_around(first, end, starts, room) for first, end in _groups(units, starts, step)})
    firsts, ends = [first for first, _ in ranges], [end for _, end in ranges]
    predicted: list[list[np.ndarray]] = [[] for _ in ranges]
    for first, end in units:
        # Windows and units are both in order, so those that contain a unit are adjacent.
        holding = range(bisect.bisect_left(ends, end), bisect.bisect_right(firsts, first))
        sides = [sorted((starts[first] - starts[firsts[w]], starts[ends[w]] - starts[end])) for w in holding]
        predicted[holding[sides.index(max(sides))]].append(np.arange(first, end))
    return [
        Window(first, end, np.concatenate(words))
        for (first, end), words in zip(ranges, predicted, strict=True)
        if words
    ]


def _units(sentences: list[np.ndarray], starts: np.ndarray, room: int, step: int) -> list[tuple[int, int]]:
    """Return (first word, end) of every sentence, or of its parts if it has more than `room` tokens."""
    units, first = [], 0
    for sentence in sentences:
        end = first + len(sentence)
        size = room if starts[end] - starts[first] <= room else step
        while first < end:
            cut = min(end, int(np.searchsorted(starts, starts[first] + size, side="right")) - 1)
            units.append((first, cut))
            first = cut
    return units


def _groups(units: list[tuple[int, int]], starts: np.ndarray, step: int) -> list[tuple[int, int]]:
    """Return adjacent units combined, up to `step` tokens; a longer unit is a group by itself."""
    groups: list[tuple[int, int]] = []
    for first, end in units:
        if groups and starts[end] - starts[groups[-1][0]] <= step:
            groups[-1] = (groups[-1][0], end)
        else:
            groups.append((first, end))
    return groups


def _around(first: int, end: int, starts: np.ndarray, room: int) -> tuple[int, int]:
    """Return the widest range of words around first … end - 1 within `room` tokens, evenly on both sides."""
    spare = room - (starts[end] - starts[first])
    before = max(min(starts[first], spare // 2), spare - (starts[-1] - starts[end]))
    low = max(0, starts[first] - before)
    high = min(starts[-1], low + room)
    return int(np.searchsorted(starts, low, side="left")), int(np.searchsorted(starts, high, side="right")) - 1
