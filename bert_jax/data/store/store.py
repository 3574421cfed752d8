"""The token store: the corpus as token ids, once on disk, with random access to every sentence and document.

A directory:

    manifest.json          contents of the store (`Manifest`); written last, so without it there is no store
    tokenizer/             the vocabulary that made the ids
    shard-00000.tokens     ids, little-endian uint16 (uint32 if the vocabulary needs it)
    shard-00000.sentences  uint64: first token of each sentence, counted within the shard
    shard-00000.documents  uint64: first sentence of each document, counted within the shard

A document is in one shard. All positions in the interface of this module are 64-bit positions in the whole store.
"""

import concurrent.futures
import functools
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from bert_jax.data.store.manifest import PARTS, Manifest, shard_file
from bert_jax.errors import UserError
from bert_jax.tokenization.tokenizer import Tokenizer, load_tokenizer

_COUNTED = 1 << 22  # tokens whose ids are counted at once
_FETCHED_AT_ONCE = 8  # files of a remote store


class ShardArrays(Sequence[np.ndarray]):
    """The memory maps of a part of a store, one per shard, each made when it is first needed."""

    def __init__(self, make: Callable[[int], np.ndarray], number: int):
        self._make = make
        self._maps: list[np.ndarray | None] = [None] * number

    def __len__(self) -> int:
        return len(self._maps)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        self.open([index])
        return self._maps[index]

    def open(self, indices: Iterable[int]) -> None:
        """Make some of the maps, several at once where files have to be fetched."""
        missing = [index for index in indices if self._maps[index] is None]
        if not missing:
            return
        with concurrent.futures.ThreadPoolExecutor(min(len(missing), _FETCHED_AT_ONCE)) as pool:
            for index, array in zip(missing, pool.map(self._make, missing), strict=True):
                self._maps[index] = array


class Store:
    """Read access to a token store, made by `open_store`. Arrays stay on disk, except for one number per document.

    Attributes:
      path: local directory of the files.
      manifest: what `prepare` recorded.
      num_documents: number of documents, as num_sentences and num_tokens of sentences and tokens.
      vocab_size: number of entries of the vocabulary.
      fingerprint: SHA-256 over the contents, without their origin.
      arrays: for each part (tokens, sentences, documents) one memory map per shard.
    """

    def __init__(self, path: pathlib.Path, manifest: Manifest, fetch_shard: Callable[[int, str], None] | None = None):
        """Open the files in `path`: all of them now or, with `fetch_shard`, each when it is first read.

        `fetch_shard`: is called before the file of a shard, given by number and part, is opened.
        """
        self.path: pathlib.Path = path
        self.manifest: Manifest = manifest
        self.num_tokens: int = manifest.counts.tokens
        self.num_sentences: int = manifest.counts.sentences
        self.num_documents: int = manifest.counts.documents
        self.vocab_size: int = manifest.tokenizer.vocab_size
        self.fingerprint: str = manifest.fingerprint
        self._token_starts = np.cumsum([0, *(shard.tokens for shard in manifest.shards)], dtype=np.int64)
        self._sentence_starts = np.cumsum([0, *(shard.sentences for shard in manifest.shards)], dtype=np.int64)
        self.arrays: dict[str, ShardArrays] = {
            part: ShardArrays(functools.partial(self._map, part, fetch_shard), len(manifest.shards)) for part in PARTS
        }
        if fetch_shard is None:
            for part in PARTS:
                self.arrays[part].open(range(len(manifest.shards)))

    def _map(self, part: str, fetch_shard: Callable[[int, str], None] | None, index: int) -> np.ndarray:
        if fetch_shard:
            fetch_shard(index, part)
        dtype = np.dtype(self.manifest.dtype if part == "tokens" else np.uint64)
        path = self.path / shard_file(index, part)
        expected = getattr(self.manifest.shards[index], part) * dtype.itemsize
        size = path.stat().st_size if path.is_file() else None
        if size != expected:
            found = "is missing" if size is None else f"has {size:,} bytes"
            raise UserError(
                f"{path} {found}, but the manifest says {expected:,}; the store is damaged: prepare or copy it again"
            )
        try:
            return np.asarray(np.memmap(path, dtype.newbyteorder("<"), "r")) if size else np.zeros(0, dtype)
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror or error}") from error

    @functools.cached_property
    def document_sentences(self) -> np.ndarray:
        """int64 [num_documents + 1]: first sentence of every document; the last entry is num_sentences."""
        parts = [
            np.asarray(part, np.int64) + start
            for part, start in zip(self.arrays["documents"], self._sentence_starts[:-1], strict=True)
        ]
        starts = np.concatenate([*parts, [self.num_sentences]]).astype(np.int64)
        if starts[0] != 0 or (np.diff(starts) <= 0).any():
            raise UserError(
                f"the document boundaries in {self.path} are not ascending; prepare or copy the store again"
            )
        return starts

    @functools.cached_property
    def document_tokens(self) -> np.ndarray:
        """int64 [num_documents + 1]: first token of every document; the last entry is num_tokens."""
        return self.sentence_starts(self.document_sentences)

    @functools.cached_property
    def token_counts(self) -> np.ndarray:
        """int64 [vocab_size]: how often each id occurs; the first use reads every token once.

        Raises:
          UserError: as `tokens`.
        """
        counts = np.zeros(self.vocab_size, np.int64)
        for start in range(0, self.num_tokens, _COUNTED):
            ids = self.tokens(np.arange(start, min(start + _COUNTED, self.num_tokens)))
            counts += np.bincount(ids, minlength=self.vocab_size)
        return counts

    def tokens(self, indices: np.ndarray) -> np.ndarray:
        """Return the ids (int32, shape of `indices`) at positions 0 <= indices < num_tokens.

        Raises:
          UserError: an id is beyond the vocabulary: the manifest is forged, or the file has changed since it was
            opened.
        """
        ids = self._gather("tokens", indices, self._token_starts)
        if ids.size and ids.max() >= self.vocab_size:
            raise UserError(
                f"{self.path} holds id {ids.max()}, but its vocabulary has {self.vocab_size:,} entries; delete the "
                "store and prepare or copy it again"
            )
        return ids.astype(np.int32)

    def sentence_starts(self, indices: np.ndarray) -> np.ndarray:
        """Return the first token (int64, shape of `indices`) of sentences 0 <= indices <= num_sentences."""
        indices = np.asarray(indices, np.int64)
        at_end = indices == self.num_sentences
        starts = self._gather("sentences", np.where(at_end, 0, indices), self._sentence_starts).astype(np.int64)
        if len(self.manifest.shards) > 1:
            starts += self._token_starts[np.searchsorted(self._sentence_starts, indices, side="right") - 1]
        return np.where(at_end, self.num_tokens, starts)

    def _gather(self, part: str, indices: np.ndarray, starts: np.ndarray) -> np.ndarray:
        indices = np.asarray(indices, np.int64)
        if indices.size and (indices.min() < 0 or indices.max() >= starts[-1]):
            raise IndexError(f"{part} run from 0 to {starts[-1] - 1}, not {indices.min()} to {indices.max()}")
        maps = self.arrays[part]
        if len(maps) == 1:
            return np.asarray(maps[0][indices])
        shards = np.searchsorted(starts, indices, side="right") - 1
        needed = np.unique(shards)
        maps.open(needed.tolist())
        result = np.empty(indices.shape, maps[int(needed[0]) if needed.size else 0].dtype)
        for shard in needed.tolist():
            here = shards == shard
            result[here] = maps[shard][indices[here] - starts[shard]]
        return result

    def tokenizer(self) -> Tokenizer:
        """Load the tokenizer that made the store.

        Raises:
          UserError: its files do not have the fingerprint in the manifest.
        """
        tokenizer, record = load_tokenizer(self.path / "tokenizer"), self.manifest.tokenizer
        if (tokenizer.fingerprint, tokenizer.vocab_size) != (record.fingerprint, record.vocab_size):
            raise UserError(
                f"the vocabulary in {self.path / 'tokenizer'} is not the one the store was made with; "
                "prepare or copy the store again"
            )
        return tokenizer
