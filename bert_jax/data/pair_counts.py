"""`bert-jax count`: how often any two tokens of a store occur near each other, counted and stored.

As `cooccur` of the code of GloVe (Pennington et al. 2014): two tokens at distance d inside a document count 1/d, in
both directions. Sums are exact, in units of 1/lcm(1 … window), so that they do not depend on how the text is divided.
Memory is bounded. The result is a directory:

    counts.json  what was counted (`CountedPairs`); written last, so without it there are no counts
    pairs.bin    ascending little-endian uint64: lower id · vocabulary size + higher id, one per pair that occurs
    counts.bin   float32: its count, in the same order
"""

import dataclasses
import hashlib
import json
import math
import pathlib
import shlex
import tempfile
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from bert_jax.config.commands import CountConfig
from bert_jax.config.options import from_dict
from bert_jax.corpus.duplicates import sorted_rows
from bert_jax.data.store import Store, open_store
from bert_jax.errors import UserError
from bert_jax.files import is_remote, read_object, sealed, unsealed, write_atomically
from bert_jax.progress import progress_bar
from bert_jax.randomness import held_out_documents

MANIFEST, PAIRS, COUNTS = "counts.json", "pairs.bin", "counts.bin"
AGAIN = "count the pairs again with `bert-jax count`"


def count_again(store: str | pathlib.Path, window: int, held_out: float | None) -> str:
    """Return the advice to count the pairs of a store for a run that holds out that share; None: for an evaluation."""
    held_out = CountConfig.held_out if held_out is None else held_out
    command = f"bert-jax count {shlex.quote(str(store))} --output=COUNTS --window={window} --held_out={held_out}"
    return f"count the pairs with `{command}`, and give --objective.static_vectors.counts=COUNTS"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CountedPairs:
    """Parameters of the counts."""

    window: int
    held_out: float
    store: str
    """Fingerprint of the store."""
    tokenizer: str
    """Fingerprint of its vocabulary."""
    vocab_size: int
    pairs: int
    """Number of pairs with a count."""
    pairs_sha256: str
    counts_sha256: str


class PairCounts:
    """Read access to counts, which stay on disk.

    Attributes:
      counted: what they are of.
    """

    def __init__(self, directory: pathlib.Path, counted: CountedPairs):
        self.counted: CountedPairs = counted
        self._pairs: np.ndarray = _array(directory / PAIRS, "<u8", counted.pairs, counted.pairs_sha256)
        self._counts: np.ndarray = _array(directory / COUNTS, "<f4", counted.pairs, counted.counts_sha256)

    def of(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return float32: the counts of the pairs of two arrays of ids of the same shape, 0 for those that never occur.

        The order of a pair does not matter.
        """
        first, second = np.asarray(first, np.uint64), np.asarray(second, np.uint64)
        keys = np.minimum(first, second) * np.uint64(self.counted.vocab_size) + np.maximum(first, second)
        unique, places = np.unique(keys, return_inverse=True)  # neighbours on disk are read one after the other
        found = np.minimum(np.searchsorted(self._pairs, unique), max(self.counted.pairs - 1, 0))
        there = self._pairs[found] == unique if self.counted.pairs else np.zeros(len(unique), bool)
        counts = np.where(there, self._counts[found] if self.counted.pairs else 0, 0)
        return counts.astype(np.float32)[places].reshape(keys.shape)


def open_pair_counts(directory: str) -> PairCounts:
    """Open the counts that `bert-jax count` wrote to a local directory.

    Raises:
      UserError: there are none, or they are damaged.
    """
    if is_remote(directory):
        raise UserError(f"{directory} is not a local directory; copy the counts to this machine")
    place = pathlib.Path(directory).expanduser()
    if not (place / MANIFEST).is_file():
        raise UserError(f"there are no counts of pairs in {directory} ({MANIFEST} is missing): {AGAIN}")
    try:
        counted = from_dict(CountedPairs, unsealed(read_object(place / MANIFEST, AGAIN)))
    except (UserError, TypeError, ValueError) as error:
        raise UserError(f"{place / MANIFEST} is damaged: {error}; {AGAIN}") from None
    return PairCounts(place, counted)


def _array(file: pathlib.Path, dtype: str, length: int, sha256: str) -> np.ndarray:
    expected = length * np.dtype(dtype).itemsize
    size = file.stat().st_size if file.is_file() else None
    if size != expected:
        found = "is missing" if size is None else f"has {size:,} bytes"
        raise UserError(f"{file} {found}, but {MANIFEST} says {expected:,}; {AGAIN}")
    with file.open("rb") as stream:
        if hashlib.file_digest(stream, "sha256").hexdigest() != sha256:
            raise UserError(f"the contents of {file} have changed since they were written; {AGAIN}")
    return np.memmap(file, dtype, "r") if size else np.zeros(0, dtype)


WIDEST = 20
"""Maximum window: the units of more would exceed 64 bits for a pair that occurs 2³⁶ times."""
BLOCK = 1 << 20
"""Tokens whose pairs are counted at once: 8 bytes each for every distance, and as much again to sort them."""


def run_count(path: str, config: CountConfig) -> None:
    """Count the pairs of the store at `path`, and write them to `config.output`.

    Raises:
      UserError: an option is out of range, the output has files already, or there is no store.
    """
    if not 1 <= config.window <= WIDEST:
        raise UserError(f"--window={config.window} must be from 1 to {WIDEST}; the paper's is 10")
    if not 0 <= config.held_out < 1:
        raise UserError(f"--held_out={config.held_out} must be from 0 to below 1")
    if is_remote(config.output):
        raise UserError(f"--output={config.output} must be a local directory; copy the counts from there")
    output = pathlib.Path(config.output).expanduser()
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"--output={config.output} exists and is not an empty directory; choose another, or remove it")
    store = open_store(path, config.cache)
    output.mkdir(parents=True, exist_ok=True)
    with progress_bar("counting pairs", store.num_tokens) as move_to:
        counted = write_pair_counts(store, output, config.window, config.held_out, move_to)
    print(f"{output}: {counted.pairs:,} pairs of {store.num_tokens:,} tokens, at most {counted.window} apart")


def write_pair_counts(
    store: Store,
    output: pathlib.Path,
    window: int,
    held_out: float,
    move_to: Callable[[int], None] = lambda position: None,
    block: int = BLOCK,
) -> CountedPairs:
    """Write the counts of `store` to the directory `output`; see `run_count`. `block`: tokens that are held at once."""
    hashes = {PAIRS: hashlib.sha256(), COUNTS: hashlib.sha256()}
    number, unit = 0, math.lcm(*range(1, window + 1))
    with (
        tempfile.TemporaryDirectory(dir=output, prefix="counting-") as place,
        (output / PAIRS).open("wb") as pairs,
        (output / COUNTS).open("wb") as counts,
    ):
        blocks = _blocks(store, window, held_out, move_to, block)
        for rows in _summed(sorted_rows(blocks, 2, pathlib.Path(place))):
            number += len(rows)
            for file, name, values in (
                (pairs, PAIRS, rows[:, 0].astype("<u8")),
                (counts, COUNTS, (rows[:, 1] / unit).astype("<f4")),
            ):
                file.write(values.tobytes())
                hashes[name].update(values.tobytes())
    counted = CountedPairs(
        window=window,
        held_out=held_out,
        store=store.fingerprint,
        tokenizer=store.manifest.tokenizer.fingerprint,
        vocab_size=store.vocab_size,
        pairs=number,
        pairs_sha256=hashes[PAIRS].hexdigest(),
        counts_sha256=hashes[COUNTS].hexdigest(),
    )
    write_atomically(output / MANIFEST, (json.dumps(sealed(dataclasses.asdict(counted)), indent=1) + "\n").encode())
    return counted


def _blocks(
    store: Store, window: int, held_out: float, move_to: Callable[[int], None], block: int
) -> Iterator[np.ndarray]:
    """Yield uint64 [pairs, 2] for each block of tokens: ascending pairs, and their counts in units."""
    starts, left_out = store.document_tokens, held_out_documents(store.num_documents, held_out)
    units = np.array([0, *(math.lcm(*range(1, window + 1)) // d for d in range(1, window + 1))], np.uint64)
    for begin in range(0, store.num_tokens, block):
        end = min(begin + block, store.num_tokens)
        places = np.arange(begin, min(end + window, store.num_tokens))
        ids = store.tokens(places).astype(np.uint64)
        documents = np.searchsorted(starts, places, "right") - 1
        documents = np.where(left_out[documents], -1, documents)
        keys = [np.zeros(0, np.uint64)]
        for distance in range(1, window + 1):
            count = min(end - begin, len(ids) - distance)
            if count < 1:
                break
            first, second = ids[:count], ids[distance : distance + count]
            beside = (documents[:count] == documents[distance : distance + count]) & (documents[:count] >= 0)
            pairs = np.minimum(first, second) * np.uint64(store.vocab_size) + np.maximum(first, second)
            keys.append(pairs[beside] * np.uint64(WIDEST + 1) + np.uint64(distance))  # one number sorts fastest
        pairs, distances = np.divmod(np.sort(np.concatenate(keys)), np.uint64(WIDEST + 1))
        both = np.where(pairs // np.uint64(store.vocab_size) == pairs % np.uint64(store.vocab_size), 2, 1)
        yield from _summed([np.stack([pairs, units[distances] * both.astype(np.uint64)], axis=1)])
        move_to(end)


def _summed(chunks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield the rows of sorted chunks with one row per key, which has the sum of the second column."""
    held = np.zeros((0, 2), np.uint64)
    for rows in chunks:
        rows = np.concatenate([held, rows])
        if not len(rows):
            continue
        first = np.flatnonzero(np.concatenate([[True], rows[1:, 0] != rows[:-1, 0]]))
        rows = np.stack([rows[first, 0], np.add.reduceat(rows[:, 1], first)], axis=1)
        held = rows[-1:]  # whose key may continue in the next chunk
        yield rows[:-1]
    yield held
