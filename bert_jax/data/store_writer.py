"""Appends encoded blocks to the shards of a token store, in a way that can be taken up again after a crash."""

import dataclasses
import os
import pathlib

import numpy as np

from bert_jax.data.encoding import EncodedBlock
from bert_jax.data.manifest import PARTS, Counts, FileRecord, Shard, hash_file, shard_file

SHARD_TOKENS = 1 << 28
"""A shard is closed before the first block that begins with a new document once it has this many tokens."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WriterState:
    """What `StoreWriter` must know to go on: closed shards, the sizes of the open one, and the sums so far."""

    shards: tuple[Shard, ...] = ()
    hashes: tuple[FileRecord, ...] = ()
    tokens: int = 0
    sentences: int = 0
    documents: int = 0
    document_begun: bool = False
    text_bytes: int = 0
    unknown_tokens: int = 0
    cut_sentences: int = 0
    replaced_characters: int = 0


class StoreWriter:
    """Writes shard files under `directory`, continuing from `state`: what was written after it is cut off."""

    def __init__(self, directory: pathlib.Path, dtype: str, state: WriterState = WriterState()):
        self.directory, self.state = directory, state
        self._types = {"tokens": np.dtype(dtype).newbyteorder("<"), "sentences": np.dtype("<u8"), "documents": np.dtype("<u8")}
        self._files = {part: self._open(part) for part in PARTS}

    def append(self, block: EncodedBlock, continues: bool) -> None:
        """Appends a block; `continues`: its first piece belongs to the last document of the block before."""
        if not continues and self.state.tokens >= SHARD_TOKENS:
            self._next_shard()
        state = self.state
        pieces = block.piece_lengths
        begins = pieces > 0
        if continues and state.document_begun:
            begins[0] = False
        documents = state.sentences + _starts(pieces)[begins]
        self._write("tokens", block.tokens)
        self._write("sentences", state.tokens + _starts(block.sentence_lengths))
        self._write("documents", documents)
        begun = bool(pieces[-1]) if len(pieces) > 1 else bool(pieces[0]) or (continues and state.document_begun)
        self.state = dataclasses.replace(
            state, document_begun=begun, tokens=state.tokens + len(block.tokens),
            sentences=state.sentences + len(block.sentence_lengths), documents=state.documents + len(documents),
            **{key: getattr(state, key) + getattr(block, key)
               for key in ("text_bytes", "unknown_tokens", "cut_sentences", "replaced_characters")})

    def flush(self) -> WriterState:
        """Brings everything appended so far to disk and returns the state that describes it."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        return self.state

    def finish(self) -> WriterState:
        """Closes the last shard; an empty one is removed."""
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

    def _open(self, part: str):
        path = self.directory / shard_file(len(self.state.shards), part)
        path.touch()
        file = path.open("r+b")
        file.truncate(getattr(self.state, part) * self._types[part].itemsize)
        file.seek(0, os.SEEK_END)
        return file

    def _write(self, part: str, values: np.ndarray) -> None:
        self._files[part].write(values.astype(self._types[part]).tobytes())

    def _next_shard(self) -> None:
        self._close_shard()
        self._files = {part: self._open(part) for part in PARTS}

    def _close_shard(self) -> None:
        self.flush()
        self.close()
        state, names = self.state, [shard_file(len(self.state.shards), part) for part in PARTS]
        shard = Shard(tokens=state.tokens, sentences=state.sentences, documents=state.documents)
        hashes = tuple(FileRecord(name=name, sha256=hash_file(self.directory / name)) for name in names)
        self.state = dataclasses.replace(
            state, shards=(*state.shards, shard), hashes=state.hashes + hashes, tokens=0, sentences=0, documents=0)


def counts(state: WriterState) -> Counts:
    """Sums over the closed shards of a finished store."""
    sums = {part: sum(getattr(shard, part) for shard in state.shards) for part in PARTS}
    return Counts(**sums, text_bytes=state.text_bytes, unknown_tokens=state.unknown_tokens,
                  cut_sentences=state.cut_sentences, replaced_characters=state.replaced_characters)


def is_on_disk(directory: pathlib.Path, dtype: str, state: WriterState) -> bool:
    """Whether the files are at least as long as `state` says; a machine that lost power may have lost their ends."""
    itemsize = {"tokens": np.dtype(dtype).itemsize, "sentences": 8, "documents": 8}
    for index, shard in enumerate((*state.shards, state)):
        for part in PARTS:
            path = directory / shard_file(index, part)
            if getattr(shard, part) and not (path.is_file() and path.stat().st_size >= getattr(shard, part) * itemsize[part]):
                return False
    return True


def _starts(lengths: np.ndarray) -> np.ndarray:
    """Exclusive cumulative sum."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])[:-1]
