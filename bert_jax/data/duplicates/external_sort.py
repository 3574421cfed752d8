"""Rows of integers sorted on disk: any number of them, equal ones too, with bounded memory."""

import itertools
import pathlib
import tempfile
from collections.abc import Iterable, Iterator

import numpy as np

RUN_ROWS = 1 << 21
"""Rows that are sorted in memory at once: 50 MB of rows of three numbers, and as much again twice while sorting."""

MERGE_ROWS = 1 << 20
"""Rows in memory, of all runs together, while sorted runs are merged."""

MOST_RUNS = 256
"""Sorted runs that are merged at once; of more, longer runs are made first."""


def sorted_rows(chunks: Iterable[np.ndarray], width: int, directory: pathlib.Path) -> Iterator[np.ndarray]:
    """Yield all rows in lexicographic order, in arrays of any length.

    Args:
      chunks: arrays of [rows, width] uint64.
      width: number of columns.
      directory: where the runs are kept meanwhile; it needs the space of all rows.
    """
    with tempfile.TemporaryDirectory(dir=directory, prefix="runs-") as place:
        names = (pathlib.Path(place) / f"{number}" for number in itertools.count())
        runs = [_write([_sorted(rows)], next(names)) for rows in _gathered(chunks)]
        while len(runs) > MOST_RUNS:
            merged = _write(_merged(runs[:MOST_RUNS], width), next(names))
            for run in runs[:MOST_RUNS]:
                run.unlink()
            runs = [*runs[MOST_RUNS:], merged]
        yield from _merged(runs, width)


def rows_up_to(rows: np.ndarray, bound: np.ndarray) -> int:
    """Return how many of the sorted [rows, columns] are not after `bound`, [columns], in lexicographic order."""
    start, end = 0, len(rows)
    for column, value in enumerate(bound):
        among = rows[start:end, column]
        start, end = start + int(np.searchsorted(among, value)), start + int(np.searchsorted(among, value, "right"))
    return end


def _gathered(chunks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield the rows in arrays of RUN_ROWS or a little more."""
    held, count = [], 0
    for chunk in chunks:
        held.append(chunk)
        count += len(chunk)
        if count >= RUN_ROWS:
            yield np.concatenate(held)
            held, count = [], 0
    if count:
        yield np.concatenate(held)


def _sorted(rows: np.ndarray) -> np.ndarray:
    return rows[np.lexsort(rows.T[::-1])]


def _write(chunks: Iterable[np.ndarray], path: pathlib.Path) -> pathlib.Path:
    with path.open("wb") as file:
        for rows in chunks:
            file.write(rows.astype("<u8").tobytes())
    return path


def _merged(runs: list[pathlib.Path], width: int) -> Iterator[np.ndarray]:
    row_bytes = 8 * width
    places, lengths = [0] * len(runs), [run.stat().st_size // row_bytes for run in runs]
    at_once = max(MERGE_ROWS // max(len(runs), 1), 1)
    while waiting := [index for index, place in enumerate(places) if place < lengths[index]]:
        heads = {
            index: np.fromfile(runs[index], "<u8", at_once * width, offset=places[index] * row_bytes).reshape(-1, width)
            for index in waiting
        }
        # Whatever comes later in a run is after the last row of its head, so all rows up to the least of those can go.
        bound = min((head[-1] for head in heads.values()), key=tuple)
        ends = {index: rows_up_to(head, bound) for index, head in heads.items()}
        yield _sorted(np.concatenate([head[: ends[index]] for index, head in heads.items()]))
        for index, end in ends.items():
            places[index] += end
