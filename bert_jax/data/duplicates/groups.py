"""Documents that are the same, directly or by way of others: groups that grow by pairs, in a file."""

import pathlib
from collections.abc import Iterable, Iterator

import numpy as np


class Groups:
    """Groups of the numbers below `count`, at first one for each, in a file of 8 bytes for each.

    The first of a group is the least of its numbers.
    """

    def __init__(self, path: pathlib.Path, count: int):
        self._before = np.memmap(path, np.dtype("<u8"), "w+", shape=(max(count, 1),))  # a smaller one of the group
        for start in range(0, count, 1 << 20):
            end = min(start + (1 << 20), count)
            self._before[start:end] = np.arange(start, end)

    def first(self, numbers: np.ndarray) -> np.ndarray:
        """Return the first number of the group of each of `numbers`."""
        found = self._before[numbers]
        while not np.array_equal(further := self._before[found], found):
            found = further
        self._before[numbers] = found  # the way is shorter next time
        return found

    def unite(self, first: np.ndarray, second: np.ndarray) -> None:
        """Make one group of those of first[i] and second[i], for every i."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        nodes, places = np.unique(np.concatenate([self.first(first), self.first(second)]), return_inverse=True)
        if not nodes.size:
            return
        ends = (places[: len(first)], places[len(first) :])
        graph = coo_array((np.ones(len(first), bool), ends), shape=(len(nodes), len(nodes)))
        _, labels = connected_components(graph, directed=False)
        _, least = np.unique(labels, return_index=True)  # nodes are sorted, so the first of a component is its least
        self._before[nodes] = nodes[least][labels]


def repeated(chunks: Iterable[np.ndarray], keys: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Find the rows whose key an earlier row has.

    Args:
      chunks: sorted rows of `keys` columns and one more, a number.
      keys: how many of the columns are the key.

    Yields:
      For every such row: the number of the first row with its key, that of the row before it, and its own.
    """
    last, first_of_last = None, np.uint64(0)
    for rows in chunks:
        begins = np.ones(len(rows), bool)
        begins[1:] = (rows[1:, :keys] != rows[:-1, :keys]).any(axis=1)
        goes_on = last is not None and bool((rows[0, :keys] == last[:keys]).all())
        starts = np.maximum.accumulate(np.where(begins, np.arange(len(rows)), 0))
        first = rows[starts, keys]
        before = np.concatenate([rows[:1, keys], rows[:-1, keys]])
        if goes_on:
            assert last is not None
            first[starts == 0] = first_of_last
            before[0], begins[0] = last[keys], False
        again = ~begins
        yield first[again], before[again], rows[again, keys]
        last, first_of_last = rows[-1], first[-1]
