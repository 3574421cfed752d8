"""Duplicates in a corpus: exact and near-duplicate documents, and repeated paragraphs; the first one is kept.

Documents are removed first: those equal to an earlier one, then those in a group of similar ones with an earlier one.
Then paragraphs are removed that occurred in an earlier kept document. Similar documents meet by bands of MinHash
signatures (Broder 1997; Leskovec et al. 2020, ch. 3); their similarity is the Jaccard similarity of their sets of
SHINGLE_WORDS consecutive words.

The records of a block are a pure function of its text. Record files only grow, so that a killed run resumes at their
end. Memory is bounded by the constants of this module, whatever the corpus: rows are sorted on disk, and everything
that grows with the corpus is on disk and mapped into memory. The removals are written once, by block, and read by
every worker.
"""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import os
import pathlib
import tempfile
from collections.abc import Iterable, Iterator

import numpy as np

from bert_jax.corpus.cleaner import StepRecord, record
from bert_jax.corpus.contamination import overlapping, word_hashes
from bert_jax.errors import UserError
from bert_jax.randomness import Stream, bits

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


SHINGLE_WORDS = 5
"""Number of words in a shingle, as in Lee et al. 2022 (Deduplicating Training Data Makes Language Models Better)."""

HASHES = 128
"""Numbers in a signature; an estimated similarity s has the standard deviation √(s(1-s)/128), 0.035 at 0.8."""

LEAST_RECALL = 0.95
"""Probability that two documents which are just similar enough have a band in common, so that they are compared."""

_SHINGLES_AT_ONCE = 1 << 11  # 1 MiB of permuted numbers
_PRIME = np.uint64(0x9E3779B97F4A7C15)


@dataclasses.dataclass(frozen=True)
class Banding:
    """How a signature is divided: `bands` groups of `rows` numbers; documents with an equal group are compared."""

    bands: int
    rows: int

    def probability(self, similarity: float) -> float:
        """Return how probably two documents of that similarity are compared: 1 - (1 - s^rows)^bands."""
        return 1 - (1 - similarity**self.rows) ** self.bands


def banding_for(threshold: float) -> Banding:
    """Return the banding with the most rows, so the fewest comparisons, that keeps LEAST_RECALL at the threshold."""
    choices = (Banding(HASHES // rows, rows) for rows in range(HASHES, 0, -1))
    return next(choice for choice in choices if choice.probability(threshold) >= LEAST_RECALL or choice.rows == 1)


def signature(words: np.ndarray) -> np.ndarray | None:
    """Return [HASHES] uint32, the minimum of each permutation over the shingles of a document.

    Args:
      words: [words] uint64, the hash of each word. Fewer than SHINGLE_WORDS are one shingle.

    Returns:
      None for a document without words.
    """
    if not words.size:
        return None
    shingles = overlapping(words, min(SHINGLE_WORDS, len(words)))
    return minimums(np.unique(shingles >> np.uint64(32)).astype(np.uint32))


def minimums(numbers: np.ndarray) -> np.ndarray:
    """Return [HASHES] uint32, the minimum of each permutation over a set of random numbers, [numbers] uint32."""
    factors, summands = _permutations()
    least = np.full(HASHES, np.iinfo(np.uint32).max, np.uint32)
    for start in range(0, len(numbers), _SHINGLES_AT_ONCE):
        part = numbers[start : start + _SHINGLES_AT_ONCE]
        np.minimum(least, (factors * part + summands).min(axis=1), out=least)
    return least


def band_keys(signatures: np.ndarray, banding: Banding) -> np.ndarray:
    """Return [documents, bands] uint64, never 0: equal in two documents where all rows of a band are.

    `signatures`: [documents, HASHES] uint32.
    """
    used = signatures[:, : banding.bands * banding.rows].reshape(-1, banding.bands, banding.rows).astype(np.uint64)
    keys = np.broadcast_to(np.arange(1, banding.bands + 1, dtype=np.uint64), used.shape[:2])
    for row in range(banding.rows):
        keys = (keys ^ used[:, :, row]) * _PRIME
        keys = keys ^ (keys >> np.uint64(32))
    return np.maximum(keys, np.uint64(1))


def sketches(signatures: np.ndarray) -> np.ndarray:
    """Return [documents, HASHES] uint8: of each number a byte, enough to compare (Li and König 2010)."""
    return signatures.astype(np.uint8)


def similarity(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return [pairs] float64, the estimated similarity of documents by their [pairs, HASHES] sketches.

    Bytes of different numbers are equal once in 256 times; that share is taken out.
    """
    equal = (first == second).mean(axis=1)
    return (equal - 1 / 256) / (1 - 1 / 256)


@functools.cache
def _permutations() -> tuple[np.ndarray, np.ndarray]:
    """Return the factors, all odd, and the summands of HASHES permutations of the 32-bit numbers, each [HASHES, 1]."""
    drawn = bits(0, Stream.DUPLICATES, np.arange(2 * HASHES)).astype(np.uint32).reshape(2, HASHES, 1)
    return drawn[0] | np.uint32(1), drawn[1]


SHORTEST_PARAGRAPH = 100
"""Characters: shorter ones, such as headings, items and answers in a dialogue, rightly recur and are kept."""


@dataclasses.dataclass(frozen=True)
class BlockRecords:
    """Hashes of the documents of a block, or of their parts in it, and of their paragraphs."""

    documents: np.ndarray  # [documents, 2] uint64: hash of the text, 0 if there is none
    bands: np.ndarray  # [documents, bands] uint64: see minhash.band_keys; 0 without words
    sketches: np.ndarray  # [documents, hashes] uint8
    paragraphs: np.ndarray  # [paragraphs, 2] uint64: hash of the text
    places: np.ndarray  # [paragraphs, 2] uint32: number of the document in the block, of the paragraph in it


def block_records(pieces: list[list[str]], banding: Banding | None) -> BlockRecords:
    """Return the records of a block.

    Args:
      pieces: the paragraphs of each document, none for a document that is already removed.
      banding: how near duplicates are found; None: only exact ones are, and there are no bands or sketches.
    """
    documents = np.zeros((len(pieces), 2), np.uint64)
    paragraphs, places = [], []
    for number, lines in enumerate(pieces):
        stripped = [line.strip() for line in lines]
        if any(stripped):
            documents[number] = _hash("\n".join(stripped))
        for place, line in enumerate(stripped):
            if len(line) >= SHORTEST_PARAGRAPH:
                paragraphs.append(_hash(line))
                places.append((number, place))
    keys, shortened = _similarity_records(pieces, banding)
    return BlockRecords(
        documents=documents,
        bands=keys,
        sketches=shortened,
        paragraphs=np.array(paragraphs, np.uint64).reshape(-1, 2),
        places=np.array(places, np.uint32).reshape(-1, 2),
    )


def widths(banding: Banding | None) -> tuple[int, int]:
    """Return how many bands, and bytes of a sketch, each document has."""
    return (banding.bands, HASHES) if banding else (0, 0)


def _similarity_records(pieces: list[list[str]], banding: Banding | None) -> tuple[np.ndarray, np.ndarray]:
    bands, length = widths(banding)
    keys, shortened = np.zeros((len(pieces), bands), np.uint64), np.zeros((len(pieces), length), np.uint8)
    if banding:
        found = {number: signature(word_hashes("\n".join(lines))) for number, lines in enumerate(pieces)}
        found = {number: values for number, values in found.items() if values is not None}
        if found:
            signatures = np.stack(list(found.values()))
            keys[list(found)], shortened[list(found)] = band_keys(signatures, banding), sketches(signatures)
    return keys, shortened


def _hash(text: str) -> tuple[int, int]:
    digest = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordCounts:
    """How many rows the files have: what a run needs to resume."""

    blocks: int = 0
    documents: int = 0
    paragraphs: int = 0


@dataclasses.dataclass(frozen=True)
class RecordTable(BlockRecords):
    """The rows of all blocks, mapped into memory. The number of a document or paragraph is its place here."""

    blocks: np.ndarray  # [blocks, 4] uint64: source, offset, documents and paragraphs before it


class RecordWriter:
    """Appends the records of blocks to the files in `directory`; what was written after `counts` is cut off."""

    def __init__(self, directory: pathlib.Path, banding: Banding | None, counts: RecordCounts = RecordCounts()):
        self.counts: RecordCounts = counts
        self._files = {}
        for name, (dtype, width, unit) in _layout(banding).items():
            path = directory / name
            path.touch()
            self._files[name] = path.open("r+b")
            self._files[name].truncate(getattr(counts, unit) * width * dtype.itemsize)
            self._files[name].seek(0, os.SEEK_END)

    def append(self, source: int, offset: int, records: BlockRecords) -> None:
        """Append the records of the block at `offset` of source number `source`; blocks come in order."""
        counts = self.counts
        row = np.array([source, offset, counts.documents, counts.paragraphs], "<u8")
        for name, file in self._files.items():
            file.write((row if name == "blocks" else getattr(records, name)).tobytes())
        self.counts = RecordCounts(
            blocks=counts.blocks + 1,
            documents=counts.documents + len(records.documents),
            paragraphs=counts.paragraphs + len(records.paragraphs),
        )

    def flush(self) -> RecordCounts:
        """Write everything appended so far to disk and return how much that is."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        return self.counts

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()


def read_table(directory: pathlib.Path, banding: Banding | None, counts: RecordCounts) -> RecordTable:
    """Map the files into memory, which takes none until rows are read."""
    return RecordTable(
        **{
            name: mapped_rows(directory / name, dtype, width, getattr(counts, unit))
            for name, (dtype, width, unit) in _layout(banding).items()
        }
    )


def are_there(directory: pathlib.Path, banding: Banding | None, counts: RecordCounts) -> bool:
    """Return whether every file has at least that many rows."""
    return all(
        (directory / name).is_file()
        and (directory / name).stat().st_size >= getattr(counts, unit) * width * dtype.itemsize
        for name, (dtype, width, unit) in _layout(banding).items()
    )


def remove_records(directory: pathlib.Path) -> None:
    """Remove the files, once the search has ended."""
    for name in _layout(None):
        (directory / name).unlink()


def mapped_rows(path: pathlib.Path, dtype: np.dtype, width: int, rows: int) -> np.ndarray:
    """Map the [rows, width] values at the beginning of a file, read only."""
    if not rows * width:  # nothing cannot be mapped
        return np.zeros((rows, width), dtype)
    return np.memmap(path, dtype, "r", shape=(rows, width))


def _layout(banding: Banding | None) -> dict[str, tuple[np.dtype, int, str]]:
    """Return type, number of columns and kind of row of each file."""
    long, short, byte = np.dtype("<u8"), np.dtype("<u4"), np.dtype("u1")
    bands, length = widths(banding)
    return {
        "blocks": (long, 4, "blocks"),
        "documents": (long, 2, "documents"),
        "bands": (long, bands, "documents"),
        "sketches": (byte, length, "documents"),
        "paragraphs": (long, 2, "paragraphs"),
        "places": (short, 2, "paragraphs"),
    }


EXACT, NEAR = 1, 2
"""Why a document is removed."""

FILES = {
    "removed_blocks": (np.dtype("<u8"), 4),
    "removed_documents": (np.dtype("<u4"), 2),
    "removed_paragraphs": (np.dtype("<u4"), 2),
}
"""Rows of (source, offset, documents and paragraphs removed before), (document, why), (document, paragraph); the
numbers of documents and paragraphs are those within their blocks."""

_STEPS = {EXACT: "deduplicate.documents", NEAR: "deduplicate.near"}


@dataclasses.dataclass(frozen=True)
class BlockRemovals:
    """What is removed from one block: why, by number of the document; paragraphs by that and by their own number."""

    documents: dict[int, int] = dataclasses.field(default_factory=dict)
    paragraphs: frozenset[tuple[int, int]] = frozenset()

    def remaining(self, number: int, lines: list[str]) -> tuple[list[str], list[StepRecord]]:
        """Return the paragraphs that document `number` of the block keeps, and the record of what goes."""
        if why := self.documents.get(number):
            return [], [record(_STEPS[why], " ".join(lines), documents=1, characters=sum(map(len, lines)))]
        kept, records = [], []
        for place, line in enumerate(lines):
            if (number, place) in self.paragraphs:
                records.append(record("deduplicate.paragraphs", line, paragraphs=1, characters=len(line)))
            else:
                kept.append(line)
        return kept, records


NOTHING = BlockRemovals()


class Removals:
    """What is removed from each block of a corpus, in files that are mapped into memory."""

    def __init__(self, directory: pathlib.Path):
        self._blocks, self._documents, self._paragraphs = (
            mapped_rows(directory / name, dtype, width, (directory / name).stat().st_size // (dtype.itemsize * width))
            for name, (dtype, width) in FILES.items()
        )

    def of(self, source: int, offset: int) -> BlockRemovals:
        """Return what is removed from the block at `offset` of source number `source`.

        Raises:
          UserError: the search has seen no such block.
        """
        row = rows_up_to(self._blocks[:, :2], np.array([source, offset], np.uint64)) - 1
        if row < 0 or self._blocks[row, :2].tolist() != [source, offset]:
            raise UserError(f"source number {source + 1} has changed while it was read; start again")
        last = row + 1 == len(self._blocks)
        end = (len(self._documents), len(self._paragraphs)) if last else self._blocks[row + 1, 2:].tolist()
        start = self._blocks[row, 2:].tolist()
        return BlockRemovals(
            dict(self._documents[start[0] : end[0]].tolist()),
            frozenset(map(tuple, self._paragraphs[start[1] : end[1]].tolist())),
        )


def write_removals(table: RecordTable, kinds: np.ndarray, gone: np.ndarray, directory: pathlib.Path) -> None:
    """Write what is removed, block by block, to the files of FILES in `directory`.

    Args:
      kinds: [documents] uint8, why a document is removed or 0.
      gone: [paragraphs] uint8, whether a paragraph is removed.
      directory: where the files go, incomplete until this function returns.
    """
    with contextlib.ExitStack() as stack:
        blocks, documents, paragraphs = (stack.enter_context((directory / name).open("wb")) for name in FILES)
        written = [0, 0]
        for row, (source, offset, *start) in enumerate(table.blocks):
            last = row + 1 == len(table.blocks)
            end = (len(table.documents), len(table.paragraphs)) if last else table.blocks[row + 1, 2:]
            block_kinds = kinds[start[0] : end[0]]
            numbers = np.flatnonzero(block_kinds)
            places = table.places[start[1] : end[1]][gone[start[1] : end[1]] > 0]
            blocks.write(np.array([source, offset, *written], "<u8").tobytes())
            documents.write(np.stack([numbers, block_kinds[numbers]], axis=1).astype("<u4").tobytes())
            paragraphs.write(places.astype("<u4").tobytes())
            written = [written[0] + len(numbers), written[1] + len(places)]
        for file in (blocks, documents, paragraphs):
            file.flush()
            os.fsync(file.fileno())


CHUNK_ROWS = 1 << 18
"""Rows of records that are read at once."""

COMPARED_PAIRS = 1 << 15
"""Pairs of sketches that are compared at once, 8 MiB."""


def find_duplicates(table: RecordTable, threshold: float | None, directory: pathlib.Path) -> None:
    """Write to `directory` which documents and paragraphs are to be removed, for `Removals` to read.

    `threshold`: the least similarity of near duplicates; None: only exact duplicates are looked for.
    """
    with tempfile.TemporaryDirectory(dir=directory, prefix="search-") as name:
        place = pathlib.Path(name)
        kinds = _marks(place / "kinds", len(table.documents))
        groups = Groups(place / "groups", len(table.documents))
        _unite_exact(table, groups, kinds, place)
        if threshold is not None:
            _unite_near(table, groups, kinds, threshold, place)
        gone = _marks(place / "gone", len(table.paragraphs))
        for _, _, number in repeated(sorted_rows(_paragraph_rows(table, kinds), 3, place), keys=2):
            gone[number] = 1
        write_removals(table, kinds, gone, directory)


def _unite_exact(table: RecordTable, groups: Groups, kinds: np.ndarray, place: pathlib.Path) -> None:
    rows = (_numbered(hashes, start, np.any(hashes, axis=1)) for start, hashes in _chunks(table.documents))
    for first, _, number in repeated(sorted_rows(rows, 3, place), keys=2):
        groups.unite(first, number)
        kinds[number] = EXACT


def _unite_near(table: RecordTable, groups: Groups, kinds: np.ndarray, threshold: float, place: pathlib.Path) -> None:
    """Compare each document with the first one that has a band in common, and with the one before it among those."""
    for first, before, number in repeated(sorted_rows(_band_rows(table, kinds), 2, place), keys=1):
        for other in (first, before):
            for start in range(0, len(number), COMPARED_PAIRS):
                pair = slice(start, start + COMPARED_PAIRS)
                one, two = other[pair], number[pair]
                apart = groups.first(one) != groups.first(two)
                one, two = one[apart], two[apart]
                near = similarity(table.sketches[one], table.sketches[two]) >= threshold
                groups.unite(one[near], two[near])
    for start, _ in _chunks(table.documents):
        numbers = np.arange(start, min(start + CHUNK_ROWS, len(table.documents)), dtype=np.uint64)
        later = groups.first(numbers) != numbers
        kinds[numbers[later & (kinds[numbers] != EXACT)]] = NEAR


def _band_rows(table: RecordTable, kinds: np.ndarray) -> Iterator[np.ndarray]:
    """Yield rows of (key of a band, number of the document), of documents that are not removed and have words."""
    for start, keys in _chunks(table.bands):
        kept = (kinds[start : start + len(keys)] == 0) & keys.any(axis=1)
        for band in range(keys.shape[1]):
            yield _numbered(keys[:, band : band + 1], start, kept)


def _paragraph_rows(table: RecordTable, kinds: np.ndarray) -> Iterator[np.ndarray]:
    """Yield rows of (hash, number of the paragraph), of documents that are not removed."""
    firsts, befores = table.blocks[:, 2], table.blocks[:, 3]
    for start, hashes in _chunks(table.paragraphs):
        numbers = np.arange(start, start + len(hashes), dtype=np.uint64)
        blocks = np.searchsorted(befores, numbers, "right") - 1
        documents = firsts[blocks] + table.places[start : start + len(hashes), 0]
        yield _numbered(hashes, start, kinds[documents] == 0)


def _chunks(rows: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    for start in range(0, len(rows), CHUNK_ROWS):
        yield start, np.array(rows[start : start + CHUNK_ROWS])


def _numbered(keys: np.ndarray, start: int, wanted: np.ndarray) -> np.ndarray:
    """Return the wanted rows, each with its number; the first of them is number `start`."""
    numbers = np.arange(start, start + len(keys), dtype=np.uint64)
    return np.concatenate([keys, numbers[:, None]], axis=1)[wanted]


def _marks(path: pathlib.Path, count: int) -> np.ndarray:
    """Return [count] uint8, all 0, in a file."""
    return np.memmap(path, np.uint8, "w+", shape=(max(count, 1),))
