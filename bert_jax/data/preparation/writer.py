"""Appends encoded blocks to the shards of a token store such that writing can be resumed after a crash."""

import dataclasses
import hashlib
import os
import pathlib
from typing import Any

import numpy as np

from bert_jax.data.preparation.encoding import EncodedBlock
from bert_jax.data.store.manifest import PARTS, Counts, FileRecord, Shard, hash_file, shard_file

SHARD_TOKENS = 1 << 28
"""A shard that has this many tokens is closed before the next block that begins with a new document."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WriterState:
    """What `StoreWriter` needs to resume: closed shards, sizes and hashes of the open one, and the sums so far."""

    shards: tuple[Shard, ...] = ()
    hashes: tuple[FileRecord, ...] = ()
    """Hashes of the files of the closed shards."""
    open_hashes: tuple[FileRecord, ...] = ()
    """Hashes of the files of the open shard up to their sizes at the last flush."""
    tokens: int = 0
    sentences: int = 0
    documents: int = 0
    document_begun: bool = False
    text_bytes: int = 0
    unknown_tokens: int = 0
    cut_sentences: int = 0
    replaced_characters: int = 0


class StoreWriter:
    """Writes shard files under `directory`, continuing from `state`; anything written after that state is cut off."""

    def __init__(self, directory: pathlib.Path, dtype: str, state: WriterState = WriterState()):
        self.directory: pathlib.Path = directory
        self.state: WriterState = state
        self._types = _types(dtype)
        self._open_shard()

    def append(self, block: EncodedBlock, continues: bool) -> None:
        """Append a block; `continues`: its first piece belongs to the last document of the previous block."""
        if begins_shard(self.state.tokens, continues):
            self._next_shard()
        state = self.state
        pieces = block.piece_lengths
        begins = pieces > 0
        if continues and state.document_begun:
            begins[0] = False
        documents = state.sentences + _starts(pieces)[begins]
        hashes = self._write(
            {
                "tokens": block.tokens,
                "sentences": state.tokens + _starts(block.sentence_lengths),
                "documents": documents,
            }
        )
        begun = bool(pieces[-1]) if len(pieces) > 1 else bool(pieces[0]) or (continues and state.document_begun)
        state = dataclasses.replace(
            state,
            document_begun=begun,
            tokens=state.tokens + len(block.tokens),
            sentences=state.sentences + len(block.sentence_lengths),
            documents=state.documents + len(documents),
            **{
                key: getattr(state, key) + getattr(block, key)
                for key in ("text_bytes", "unknown_tokens", "cut_sentences", "replaced_characters")
            },
        )
        self.state, self._hashes = state, hashes  # together: a record describes files that were completely written

    def flush(self) -> WriterState:
        """Write everything appended so far to disk and return the state that describes it."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        self.state = dataclasses.replace(
            self.state,
            open_hashes=tuple(
                FileRecord(name=shard_file(len(self.state.shards), part), sha256=self._hashes[part].hexdigest())
                for part in PARTS
            ),
        )
        return self.state

    def finish(self) -> WriterState:
        """Close the last shard, or remove it if it is empty."""
        if self.state.tokens:
            self._close_shard()
        else:
            self.close()
            for part in PARTS:
                (self.directory / shard_file(len(self.state.shards), part)).unlink()
        return self.state

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def _open_shard(self) -> None:
        self._files = {part: self._open(part) for part in PARTS}
        # Hashing reads to the end of the existing data, which is where writing continues.
        self._hashes = {part: hashlib.file_digest(file, "sha256") for part, file in self._files.items()}

    def _open(self, part: str):
        path = self.directory / shard_file(len(self.state.shards), part)
        path.touch()
        file = path.open("r+b")
        file.truncate(getattr(self.state, part) * self._types[part].itemsize)
        return file

    def _write(self, values: dict[str, np.ndarray]) -> dict[str, Any]:
        """Write the values of each part; return the hashes of the files including them."""
        hashes = {part: found.copy() for part, found in self._hashes.items()}
        for part, array in values.items():
            data = array.astype(self._types[part]).tobytes()
            self._files[part].write(data)
            hashes[part].update(data)
        return hashes

    def _next_shard(self) -> None:
        self._close_shard()
        self._open_shard()

    def _close_shard(self) -> None:
        state = self.flush()
        self.close()
        shard = Shard(tokens=state.tokens, sentences=state.sentences, documents=state.documents)
        self.state = dataclasses.replace(
            state,
            shards=(*state.shards, shard),
            hashes=state.hashes + state.open_hashes,
            open_hashes=(),
            tokens=0,
            sentences=0,
            documents=0,
        )


def begins_shard(tokens: int, continues: bool) -> bool:
    """Return whether a block begins a new shard after `tokens` in the present one; `continues` as in `append`."""
    return not continues and tokens >= SHARD_TOKENS


def counts(state: WriterState) -> Counts:
    """Return the sums over the closed shards of a finished store."""
    sums = {part: sum(getattr(shard, part) for shard in state.shards) for part in PARTS}
    return Counts(
        **sums,
        text_bytes=state.text_bytes,
        unknown_tokens=state.unknown_tokens,
        cut_sentences=state.cut_sentences,
        replaced_characters=state.replaced_characters,
    )


def damaged_file(directory: pathlib.Path, dtype: str, state: WriterState) -> str | None:
    """Return the name of a file that does not hold what `state` says, or None if all do.

    A machine that lost power may have lost the end of a file; the open shard may hold more, which is not yet in
    `state`.
    """
    hashes = {file.name: file.sha256 for file in (*state.hashes, *state.open_hashes)}
    for index, shard in enumerate((*state.shards, state)):
        for part, dtype_of_part in _types(dtype).items():
            name, size = shard_file(index, part), getattr(shard, part) * dtype_of_part.itemsize
            if not size:
                continue
            closed = index < len(state.shards)
            found = hash_file(directory / name) if closed else _hash_of_beginning(directory / name, size)
            if found is None or found != hashes.get(name):
                return name
    return None


def _hash_of_beginning(path: pathlib.Path, size: int) -> str | None:
    """Return the SHA-256 of the first `size` bytes, or None if the file has fewer."""
    if not path.is_file() or path.stat().st_size < size:
        return None
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while size and (data := file.read(min(size, 1 << 24))):
            digest.update(data)
            size -= len(data)
    return digest.hexdigest()


def _types(dtype: str) -> dict[str, np.dtype]:
    return {"tokens": np.dtype(dtype).newbyteorder("<"), "sentences": np.dtype("<u8"), "documents": np.dtype("<u8")}


def _starts(lengths: np.ndarray) -> np.ndarray:
    """Return the exclusive cumulative sum."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])[:-1]
