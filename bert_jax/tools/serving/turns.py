"""Whose turn it is: the sequences that wait to be computed, by model, output and width of row, and the next batch.

Models take turns, and what waits for one model does, too. In a batch, requests take turns text by text, so that one
of a thousand texts delays another by a batch at most.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bert_jax.data.sequences import Batch, Features, sequence_lengths
from bert_jax.pretrained.outputs import Output, batch_of, row_width, rows_of_batch, shares_row

TRIED = 8
"""Texts that do not fit into a batch before it is taken as full."""


def settle(future: "concurrent.futures.Future[Any]", result: Any = None, error: BaseException | None = None) -> None:
    """Give a future its result or error, unless another thread was first, or nobody waits any more."""
    with contextlib.suppress(concurrent.futures.InvalidStateError):
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


@dataclasses.dataclass(eq=False)
class Work:
    """Sequences of a request that wait for their outputs, which `future` gets."""

    model: str
    output: Output
    features: Features
    packed: bool
    """Whether sequences can share a row."""
    longest: int
    """Tokens that the model reads."""
    future: "concurrent.futures.Future[list[Any]]" = dataclasses.field(default_factory=concurrent.futures.Future)

    def __post_init__(self) -> None:
        self.lengths: list[int] = sequence_lengths(self.features).tolist()
        entries = self.features.input_ids
        self.tokens: int = sum(sum(map(len, entry)) if self.grouped else len(entry) for entry in entries)
        self.rows: list[Any] = [None] * len(self.features)
        self.missing: int = len(self.features)
        """Outputs that are not there yet."""
        self.untaken: int = len(self.features)
        """Sequences that are in no batch yet."""

    @property
    def grouped(self) -> bool:
        """Whether each entry is several sequences, of a question with candidates or of windows, and so a batch."""
        return isinstance(self.features.input_ids[0], list)

    def add(self, number: int, row: Any) -> None:
        """Add the output of a sequence; the last one makes the result."""
        self.rows[number] = row
        self.missing -= 1
        if not self.missing:
            settle(self.future, self.rows)


class Kind(NamedTuple):
    """What can be in one batch."""

    output: Output
    width: int
    packed: bool
    grouped: bool


class Place(NamedTuple):
    """Where a sequence of a batch is."""

    work: Work
    number: int
    row: int
    start: int


@dataclasses.dataclass(frozen=True, eq=False)
class Turn:
    """Sequences that are computed together."""

    model: str
    kind: Kind
    places: list[Place]
    rows: int

    @functools.cached_property
    def tokens(self) -> int:
        return sum(place.work.lengths[place.number] for place in self.places)

    @property
    def works(self) -> list[Work]:
        return list(dict.fromkeys(place.work for place in self.places))

    def batch(self) -> Batch:
        """Return the arrays, with the sequences in the order of `places`."""
        of = [(place.work.features, place.number) for place in self.places]
        numbers, first = np.arange(len(of)), of[0][0]
        features = Features(
            [features.input_ids[number] for features, number in of],
            [features.token_type_ids[number] for features, number in of],
            None,
            numbers.astype(np.int32),
            first.max_length,
            marks=None if first.marks is None else [(features.marks or [])[number] for features, number in of],
            in_windows=first.in_windows,
        )
        row, start = np.array([place.row for place in self.places]), np.array([place.start for place in self.places])
        return batch_of(features, numbers, row, start, (self.rows, self.kind.width), self.kind.packed)


Waiting = collections.deque[tuple[Work, collections.deque[int]]]


class Turns:
    """What waits, and the order in which it is computed; no thread may use it while another does.

    Args:
      most: returns the most rows of a batch, by model and kind.
    """

    def __init__(self, most: Callable[[str, Kind], int]):
        self._most = most
        # The first model has the next turn, and then of it the first kind.
        self._models: dict[str, dict[Kind, Waiting]] = {}

    def __bool__(self) -> bool:
        return bool(self._models)

    def put(self, work: Work) -> None:
        """Add what waits."""
        kinds = self._models.setdefault(work.model, {})
        numbers: dict[int, collections.deque[int]] = {}
        for number, length in enumerate(work.lengths):
            numbers.setdefault(row_width(length, work.longest), collections.deque()).append(number)
        for width, own in numbers.items():
            kind = Kind(work.output, width, work.packed, work.grouped)
            kinds.setdefault(kind, collections.deque()).append((work, own))

    def remove(self, work: Work) -> None:
        """Forget what waits of `work`."""
        kinds = self._models.get(work.model, {})
        for kind in list(kinds):
            kinds[kind] = collections.deque(each for each in kinds[kind] if each[0] is not work)
            if not kinds[kind]:
                del kinds[kind]
        if not kinds:
            self._models.pop(work.model, None)

    def next(self) -> Turn:
        """Return what is computed next; there must be something."""
        model, kinds = next(iter(self._models.items()))
        kind, waiting = next(iter(kinds.items()))
        found = self._taken(model, kind, waiting)
        del kinds[kind], self._models[model]
        if waiting:
            kinds[kind] = waiting
        if kinds:
            self._models[model] = kinds
        return found

    def _taken(self, model: str, kind: Kind, waiting: Waiting) -> Turn:
        most = 1 if kind.grouped else self._most(model, kind)
        shared = kind.packed and shares_row(kind.width)
        room: list[int] = []  # of each row
        places: list[Place] = []
        left: Waiting = collections.deque()
        while waiting and len(left) < TRIED:
            work, numbers = waiting.popleft()
            length = work.lengths[numbers[0]]
            able = [row for row, free in enumerate(room) if free >= length] if shared else []
            if not able and len(room) == most:
                left.append((work, numbers))
                if not shared:
                    break
                continue
            if not able:
                room.append(kind.width)
            row = min(able, key=room.__getitem__) if able else len(room) - 1
            places.append(Place(work, numbers.popleft(), row, kind.width - room[row]))
            room[row] -= length
            work.untaken -= 1
            if numbers:
                waiting.append((work, numbers))
        waiting.extendleft(reversed(left))
        places.sort(key=lambda place: (place.row, place.start))
        return Turn(model, kind, places, rows_of_batch(len(room), most))
