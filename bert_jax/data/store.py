"""The token store: the corpus as token ids, once on disk, with random access to every sentence and document.

A directory:

    manifest.json          contents of the store (`Manifest`); written last, so without it there is no store
    tokenizer/             the vocabulary that made the ids
    shard-00000.tokens     ids, little-endian uint16 (uint32 if the vocabulary needs it)
    shard-00000.sentences  uint64: first token of each sentence, counted within the shard
    shard-00000.documents  uint64: first sentence of each document, counted within the shard

A document is in one shard. All positions in the interface of this module are 64-bit positions in the whole store.
`Rows` knows the origin of every token of a row before any token is read.

Opening a local store verifies it, by hashing every file unless no file has changed; the files of a remote store are
copied to the local disk when they are first needed, and verified. The record of a verified store is an empty file in
the user's cache directory. Its name is a digest of the store's fingerprint and of the device, inode, size and times
of each file, so there is no content to trust; without it, or if it cannot be written, the store is hashed again. The
times include the change time (ctime), because a copying tool can restore the modification time, but not the change
time.
"""

import concurrent.futures
import dataclasses
import fcntl
import functools
import hashlib
import os
import pathlib
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from etils import epath

from bert_jax.data.manifest import (
    PARTS,
    Counts,
    FileRecord,
    Manifest,
    Options,
    Shard,
    TokenizerRecord,
    dtype_for,
    hash_file,
    read_manifest,
    shard_file,
)
from bert_jax.errors import UserError, need_cloud_storage
from bert_jax.files import cache_directory, is_remote
from bert_jax.progress import progress_bar
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
            raise UserError(f"{path} cannot be read: {error.strerror or error}") from error

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
        """int64 [vocab_size]: how often each id occurs; the first use reads every token once."""
        return self.count_tokens(np.array([0]), np.array([self.num_tokens]))

    def count_tokens(self, begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Return int64 [vocab_size]: how often each id occurs in the ranges of tokens [begins, ends), int64 [N]."""
        counts, before = np.zeros(self.vocab_size, np.int64), np.cumsum([0, *(ends - begins)])
        for start in range(0, int(before[-1]), _COUNTED):
            places = np.arange(start, min(start + _COUNTED, before[-1]))
            ranges = np.searchsorted(before, places, side="right") - 1
            ids = self.tokens(begins[ranges] + places - before[ranges])
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


class MemoryStore(Store):
    """A store of a few documents that is in memory, for examples that nobody keeps.

    Args:
      tokenizer: the one that made the ids.
      tokens: ids, [tokens].
      sentences: number of tokens of each sentence, int64, none of them 0.
      documents: number of sentences of each document, int64, none of them 0.
    """

    def __init__(self, tokenizer: Tokenizer, tokens: np.ndarray, sentences: np.ndarray, documents: np.ndarray):
        size = {"tokens": len(tokens), "sentences": len(sentences), "documents": len(documents)}
        nothing = dict.fromkeys(("text_bytes", "unknown_tokens", "cut_sentences", "replaced_characters"), 0)
        record = TokenizerRecord(
            kind=tokenizer.kind, fingerprint=tokenizer.fingerprint, vocab_size=tokenizer.vocab_size
        )
        starts = {"sentences": np.cumsum(sentences) - sentences, "documents": np.cumsum(documents) - documents}
        self._held = {"tokens": tokens, **{part: values.astype(np.uint64) for part, values in starts.items()}}
        manifest = Manifest(
            version=1,
            dtype=dtype_for(tokenizer.vocab_size),
            counts=Counts(**size, **nothing),
            tokenizer=record,
            options=Options(sentences="split", language="en", text_field="text", bad_utf8="error"),
            sources=(),
            shards=(Shard(**size),),
            files=(),
        )
        super().__init__(pathlib.Path("memory"), manifest)

    def _map(self, part: str, fetch_shard: Callable[[int, str], None] | None, index: int) -> np.ndarray:
        return self._held[part]


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


SHOWN_BYTES = 1 << 30
"""Stores of this size and more take longer than a second, so a progress bar is shown."""

SETTLED_NANOSECONDS = 2_000_000_000
"""Files changed more recently are not recorded: they could change again within the resolution of the file clock."""

_PIECE = 1 << 22  # entries of a file that are checked at once


def verify(store: Store) -> None:
    """Check that every file of the store has exactly the bytes that `prepare` wrote and holds what a store can hold.

    Raises:
      UserError: files are missing, unreadable or changed, or the boundaries of a shard do not ascend within it; the
        message names them. Ids beyond the vocabulary are found when they are read (`Store.tokens`).
    """
    directory, manifest = store.path, store.manifest
    try:
        record = VerificationRecord(manifest, [directory / file.name for file in manifest.files])
        if record.exists():
            return
        changed = _changed(directory, manifest.files, [state.st_size for state in record.states])
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read: {error.strerror}; prepare or copy the store again") from None
    if changed:
        more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
        raise UserError(
            f"{directory}: the content of {', '.join(changed[:5])}{more} is not what `bert-jax prepare` wrote; "
            "delete the store and prepare or copy it again"
        )
    for index in range(len(manifest.shards)):
        for part in ("sentences", "documents"):
            check_boundaries(directory, manifest, index, part, store.arrays[part][index])
    record.write()


class VerificationRecord:
    """That some files of a store have been verified, in the state in which they are now."""

    def __init__(self, manifest: Manifest, files: list[pathlib.Path]):
        self.states: list[os.stat_result] = [file.stat() for file in files]
        states = [(each.st_dev, each.st_ino, each.st_size, each.st_mtime_ns, each.st_ctime_ns) for each in self.states]
        digest = hashlib.sha256(repr((manifest.fingerprint, states)).encode()).hexdigest()
        self._path = cache_directory() / "verified" / digest

    def exists(self) -> bool:
        """Return whether it was written, so that the files need not be hashed again."""
        return os.path.isfile(self._path)

    def write(self) -> None:
        """Write it, unless a file is so young that its times would not show a change."""
        if time.time_ns() - max(state.st_ctime_ns for state in self.states) <= SETTLED_NANOSECONDS:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch()
        except OSError:  # no cache: the store is hashed again next time
            pass


def _changed(directory: pathlib.Path, files: tuple[FileRecord, ...], sizes: list[int]) -> list[str]:
    """Return the names of the files that do not have their hash; several are hashed at once."""
    total, done, changed = sum(sizes), 0, []
    with (
        concurrent.futures.ThreadPoolExecutor() as pool,  # hashing releases Python's lock
        progress_bar("verifying", total, unit="bytes", visible=total >= SHOWN_BYTES and _is_first_host()) as advance_to,
    ):
        hashes = pool.map(_hash, (directory / file.name for file in files))
        for file, size, found in zip(files, sizes, hashes, strict=True):
            done += size
            advance_to(done)
            if found != file.sha256:
                changed.append(file.name)
    return changed


def _hash(file: pathlib.Path) -> str | None:
    """Return the hash of `file`, and name it in errors, which an error in the middle of reading does not."""
    try:
        return hash_file(file)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}; prepare or copy the store again") from None


def _is_first_host() -> bool:
    jax = sys.modules.get("jax")  # without it there is one process
    return jax is None or not jax.distributed.is_initialized() or jax.process_index() == 0


def check_boundaries(directory: pathlib.Path, manifest: Manifest, index: int, part: str, starts: np.ndarray) -> None:
    """Check the boundaries of a shard: hashes prove that a file is that of the manifest, but not who wrote that.

    Raises:
      UserError: `starts`, the `part` (sentences or documents) of shard `index`, are not boundaries.
    """
    end = getattr(manifest.shards[index], "tokens" if part == "sentences" else "sentences")
    if not _are_starts(starts, end):
        raise UserError(
            f"{directory}: the {part} of shard {index} do not begin at 0 and ascend to below {end:,}; "
            "delete the store and prepare or copy it again"
        )


def _are_starts(starts: np.ndarray, end: int) -> bool:
    """Return whether `starts` are the starts of consecutive non-empty ranges that together are [0, end)."""
    pieces = (starts[at : at + _PIECE + 1] for at in range(0, len(starts), _PIECE))  # overlapping by one
    return (
        len(starts) > 0
        and starts[0] == 0
        and starts[-1] < end
        and all((piece[1:] > piece[:-1]).all() for piece in pieces)
    )


class FetchedFiles:
    """Files of a remote store in `directory`, as far as they have been needed.

    Processes of a host may share the directory: a file is fetched by one of them, and the others wait for it.
    """

    def __init__(self, remote: epath.Path, directory: pathlib.Path, manifest: Manifest):
        self.remote, self.directory, self.manifest = remote, directory, manifest
        self._hashes = {file.name: file.sha256 for file in manifest.files}

    def fetch_tokenizer(self) -> None:
        """Bring the files of the tokenizer, which are small, to the local disk."""
        for name in self._hashes:
            if name.startswith("tokenizer/"):
                self._fetch(name)

    def fetch_shard(self, index: int, part: str) -> None:
        """Bring a file of a shard to the local disk, unless it is there and unchanged.

        Raises:
          UserError: it cannot be copied, or is not what `prepare` wrote.
        """
        self._fetch(shard_file(index, part), None if part == "tokens" else (index, part))

    def _fetch(self, name: str, boundaries: tuple[int, str] | None = None) -> None:
        file = self.directory / name
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with (self.directory / f"{file.name}.lock").open("wb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if file.is_file():
                    record = VerificationRecord(self.manifest, [file])
                    if not record.exists():
                        self._check(name, file, boundaries)
                        record.write()
                else:
                    self._copy(name, boundaries)
        except OSError as error:
            raise UserError(
                f"cannot copy {self.remote / name} to {self.directory}: {error.strerror or error}"
            ) from error

    def _copy(self, name: str, boundaries: tuple[int, str] | None) -> None:
        """Copy a file; it gets its name when it has been verified."""
        partial = self.directory / f"{name}.{uuid.uuid4().hex}.partial"
        try:
            with (self.remote / name).open("rb") as source, partial.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 24)
            self._check(name, partial, boundaries)
            os.replace(partial, self.directory / name)
        finally:
            partial.unlink(missing_ok=True)

    def _check(self, name: str, file: pathlib.Path, boundaries: tuple[int, str] | None) -> None:
        if hash_file(file) != self._hashes[name]:
            raise UserError(
                f"{self.directory}: the content of {name} is not what `bert-jax prepare` wrote to {self.remote}; "
                "delete it and copy or prepare the store again"
            )
        if boundaries:
            check_boundaries(self.directory, self.manifest, *boundaries, np.memmap(file, "<u8", "r"))


def need_store(path: str) -> None:
    """Raise the UserError of `open_store` if a place on this machine has no manifest that can be read."""
    if not is_remote(path):
        read_manifest(epath.Path(path).expanduser())


def open_store(path: str | os.PathLike[str], cache: str = "") -> Store:
    """Open the store at `path` and verify its files; those of a remote one are copied to `cache` when they are needed.

    Args:
      cache: local directory for copies of remote stores; empty: the user's cache directory.

    Raises:
      UserError: there is no store, its manifest is damaged, or its files are not what `prepare` wrote. Files of a
        remote store that cannot be copied, or are not, raise it when they are first read.
    """
    need_cloud_storage(os.fspath(path))
    directory = epath.Path(path).expanduser()
    manifest = read_manifest(directory)
    if is_remote(directory):
        place = pathlib.Path(cache).expanduser() if cache else cache_directory()
        copy = FetchedFiles(directory, place / manifest.fingerprint, manifest)
        copy.fetch_tokenizer()
        return Store(copy.directory, manifest, copy.fetch_shard)
    store = Store(pathlib.Path(directory), manifest)
    verify(store)
    return store
