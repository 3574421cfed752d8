"""Write a token store: append blocks to shards, resume after a crash, publish, and report.

The directory of an unfinished store has one owner and records its progress, from which writing resumes. A store
exists from the moment its manifest is published. The manifest has the SHA-256 of the local source files, by which
anybody can check whether a file is the one that was read.
"""

import concurrent.futures
import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
from absl import logging
from etils import epath

from bert_jax.config import DataConfig
from bert_jax.config.options import differences, from_dict, to_dict
from bert_jax.corpus.blocks import Position
from bert_jax.corpus.cleaner import StepRecord
from bert_jax.data.manifest import (
    PARTS,
    VERSION,
    Counts,
    FileRecord,
    Manifest,
    Options,
    Removed,
    Shard,
    SourceRecord,
    TokenizerRecord,
    dtype_for,
    hash_file,
    read_manifest,
    shard_file,
)
from bert_jax.data.preparation.encoding import EncodedBlock
from bert_jax.data.store import open_store
from bert_jax.errors import UserError
from bert_jax.files import cache_directory, copy_file, is_remote, read_object, sealed, unsealed, write_atomically
from bert_jax.ownership import Owner
from bert_jax.progress import progress_bar
from bert_jax.randomness import held_out_documents

SHORT_DOCUMENT = 256
"""Tokens: wrapped documents that are shorter on average are probably paragraphs."""


def report(output: epath.Path, manifest: Manifest, text_bytes: int, seconds: float) -> None:
    """Print the counts and the speed of a run that took `seconds` for `text_bytes`, and what looks wrong."""
    print(
        f"{output}: {description(manifest)}; {text_bytes / 1e6:,.1f} MB of text in {seconds:,.1f} s, "
        f"{text_bytes / 1e6 / seconds:.2f} MB/s"
    )
    for line in cleaning_lines(manifest):
        print(line)
    _warn_of_few_documents(manifest.counts.documents)
    _warn_of_paragraphs_as_documents(manifest)


def cleaning_lines(manifest: Manifest) -> list[str]:
    """Return a line for each step and rule of the cleaning that did something."""
    lines = []
    for each in manifest.cleaning:
        parts = (
            (each.documents, "documents removed"),
            (each.paragraphs, "paragraphs removed or changed"),
            (each.characters, "characters fewer"),
        )
        lines.append(f"  {each.step}: " + ", ".join(f"{number:,} {what}" for number, what in parts if number))
    return lines


def _warn_of_few_documents(number: int) -> None:
    share = DataConfig().held_out
    if number * share >= 1:
        return
    held_out = int(held_out_documents(number, share).sum())
    effect = f"keeps {held_out} of them ({held_out / number:.0%}) for evaluation"
    logging.warning(
        "The corpus has %s, and training draws by document: data.held_out=%s %s, random next sentences come from other "
        "documents, and data.short_sequence_probability cuts whole documents short. Put a blank line between chapters "
        "or articles, or evaluate on a store of other text (--data.eval_path)",
        "one document" if number == 1 else f"only {number} documents",
        share,
        effect if number > 1 else "leaves nothing to train on",
    )


def _warn_of_paragraphs_as_documents(manifest: Manifest) -> None:
    counts = manifest.counts
    if any(source.wrap_column for source in manifest.sources) and counts.tokens < SHORT_DOCUMENT * counts.documents:
        logging.warning(
            "A blank line ends a document, and these have %.1f sentences and %.0f tokens on average. If the blank "
            "lines in the hard-wrapped files separate paragraphs, remove all but those between chapters: no training "
            "sequence and no sentence pair extends beyond a document",
            counts.sentences / counts.documents,
            counts.tokens / counts.documents,
        )


def description(manifest: Manifest) -> str:
    """Return the counts of a store in a line."""
    counts = manifest.counts
    notes = [
        f"{counts.documents:,} documents, {counts.sentences:,} sentences, {counts.tokens:,} tokens",
        f"{counts.unknown_tokens / counts.tokens:.3%} unknown",
    ]
    if counts.cut_sentences:
        notes.append(f"{counts.cut_sentences:,} cuts in overlong sentences")
    if counts.replaced_characters:
        notes.append(f"{counts.replaced_characters:,} malformed bytes or characters replaced by U+FFFD")
    return ", ".join(notes)


SHOWN_BYTES = 1 << 30
"""Hashing this much takes longer than a second, so a progress bar is shown."""


def with_hashes(sources: tuple[SourceRecord, ...]) -> tuple[SourceRecord, ...]:
    """Return the sources with the hashes of those that are files of this machine.

    A remote file would be fetched a second time, and data sets of a library are not files: they get none. A file that
    is not what it was at the start gets none either, and a warning says so.
    """
    total, done, hashed = sum(source.bytes for source in sources), 0, []
    with (
        concurrent.futures.ThreadPoolExecutor() as pool,  # hashing releases Python's lock
        progress_bar("hashing sources", total, unit="bytes", visible=total >= SHOWN_BYTES) as advance_to,
    ):
        for source, sha256 in zip(sources, pool.map(_hash, sources), strict=True):
            done += source.bytes
            advance_to(done)
            hashed.append(dataclasses.replace(source, sha256=sha256))
    return tuple(hashed)


def without_hashes(sources: tuple[SourceRecord, ...]) -> tuple[SourceRecord, ...]:
    """Return the sources as they are known before they have been read."""
    return tuple(dataclasses.replace(source, sha256="") for source in sources)


def _hash(source: SourceRecord) -> str:
    if source.format in ("tfds", "hub", "docs") or is_remote(source.name):
        return ""
    path, found = pathlib.Path(source.name), ""
    try:
        if _is_what_it_was(path, source):
            found = hash_file(path) or ""
        if found and _is_what_it_was(path, source):
            return found
    except OSError:
        pass
    logging.warning("%s was changed or removed while it was read; the manifest has no hash of it", source.name)
    return ""


def _is_what_it_was(path: pathlib.Path, source: SourceRecord) -> bool:
    status = os.stat(path)
    return (status.st_size, str(status.st_mtime_ns)) == (source.bytes, source.revision)


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


PROGRESS = "progress.json"
BEAM = "beam"
"""Directory in the output that a pipeline of Apache Beam works in."""
DUPLICATES = "duplicates"
"""Directory in the output that the search for duplicates works in."""
LOCK = "prepare.lock"
_OWN_FILES = re.compile(
    r"progress\.json(\.partial)?|manifest\.json\.partial|prepare\.lock(\.partial)?|tokenizer|beam|duplicates|"
    r"shard-\d{5,}\.(tokens|sentences|documents)"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MadeFrom:
    """Everything that determines the contents of a store: two runs with the same values make the same store."""

    tokenizer: TokenizerRecord
    options: Options
    sources: tuple[SourceRecord, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progress:
    """What is on disk: everything before `position` of source number `source`."""

    version: int = VERSION
    made_from: MadeFrom
    source: int = 0
    position: Position = Position()
    writer: WriterState = WriterState()
    removed: tuple[Removed, ...] = ()
    cleaning: tuple[StepRecord, ...] = ()


def refuse_difference(what: str, present: MadeFrom, wanted: MadeFrom) -> None:
    """Check that what is there is what is wanted. Licences are only written down, so they may differ.

    Raises:
      UserError: it was made from something else.
    """
    present, wanted = _without_licences(present), _without_licences(wanted)
    if present.tokenizer != wanted.tokenizer:
        ours, theirs = wanted.tokenizer, present.tokenizer
        raise UserError(
            f"{what} made with a different vocabulary ({theirs.kind} of {theirs.vocab_size} entries, --vocab is "
            f"{ours.kind} of {ours.vocab_size}); choose another output or delete it"
        )
    if lines := differences(to_dict(present), to_dict(wanted)):
        more = f" and {len(lines) - 4} more" if len(lines) > 4 else ""
        raise UserError(
            f"{what} made from something else ({'; '.join(lines[:4])}{more}); choose another output or delete it"
            + _by_wrapping(present, wanted)
        )


def _without_licences(made_from: MadeFrom) -> MadeFrom:
    sources = tuple(dataclasses.replace(source, license="") for source in made_from.sources)
    return dataclasses.replace(made_from, sources=sources)


def _by_wrapping(present: MadeFrom, wanted: MadeFrom) -> str:
    """Return the end of the message if only the joining of wrapped lines differs."""
    columns = [source.wrap_column for source in present.sources]
    if len(columns) != len(wanted.sources):
        return ""
    sources = tuple(
        dataclasses.replace(source, wrap_column=column) for source, column in zip(wanted.sources, columns, strict=True)
    )
    if dataclasses.replace(wanted, sources=sources) != present:
        return ""
    if any(columns):
        return "; --wrapped=auto (or yes, if it was made so) joins lines, as that store does"
    return "; --wrapped=no keeps the line ends, as that store does"


@contextlib.contextmanager
def owned(directory: pathlib.Path) -> Iterator[None]:
    """Create the directory and keep other runs out of it; the lock ends with the process, however that ends."""
    existed = directory.is_dir()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if foreign := sorted(path.name for path in directory.iterdir() if not _OWN_FILES.fullmatch(path.name)):
            raise UserError(
                f"output={directory} holds other files ({', '.join(foreign[:3])}); choose an empty or new one"
            )
        owner = Owner(epath.Path(directory), LOCK, _written_by_another, lasting=False)
    except OSError as error:
        raise UserError(f"cannot write output={directory}: {error.strerror or error}") from error
    if not owner.holds():  # removed by its owner meanwhile: others may lock a new one
        owner.release()
        raise UserError(f"another `bert-jax prepare` has just ended in {directory}; start the command again")
    try:
        yield
    finally:
        owner.release()
        if not existed and directory.is_dir() and not any(directory.iterdir()):
            directory.rmdir()


def _written_by_another(directory: epath.Path, facts: dict[str, Any]) -> UserError:
    return UserError(f"another `bert-jax prepare` is writing {directory}; wait or choose another output")


def resume(directory: pathlib.Path, made_from: MadeFrom) -> Progress:
    """Return the progress of the previous run in this directory; none if there was no run or its files are damaged."""
    path = directory / PROGRESS
    if not path.exists():
        if shards := sorted(file.name for file in directory.glob("shard-*")):
            raise UserError(
                f"{directory} holds {shards[0]} but neither manifest.json nor {PROGRESS}; choose another output or "
                "delete it"
            )
        return Progress(made_from=made_from)
    remedy = f"delete {directory} and start again"
    values = read_object(path, remedy)
    try:
        progress = from_dict(Progress, unsealed(values), complete=True)
    except UserError as error:
        raise UserError(f"{path} is damaged: {error}; {remedy}") from error
    refuse_difference(f"{directory} holds an unfinished token store", progress.made_from, made_from)
    if damaged := damaged_file(directory, dtype_for(made_from.tokenizer.vocab_size), progress.writer):
        print(
            f"{directory / damaged} does not hold what the interrupted run wrote; the store is made again from the "
            "beginning"
        )
        return Progress(made_from=made_from)
    return progress


def write_progress(directory: pathlib.Path, progress: Progress) -> None:
    write_atomically(directory / PROGRESS, json.dumps(sealed(to_dict(progress))).encode())


def forget_progress(directory: pathlib.Path) -> None:
    """Remove what a finished store does not need."""
    shutil.rmtree(directory / DUPLICATES, ignore_errors=True)
    (directory / PROGRESS).unlink(missing_ok=True)


def clear(directory: pathlib.Path) -> None:
    """Remove what this module wrote into the directory; `owned` removes the directory if it made it."""
    for path in directory.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()


def finished(output: epath.Path, made_from: MadeFrom) -> Manifest:
    """Return the manifest of the store that is already at `output`, with the licences that were given this time.

    Raises:
      UserError: it is not the requested one, or it is damaged.
    """
    manifest = read_manifest(output)
    present = MadeFrom(tokenizer=manifest.tokenizer, options=manifest.options, sources=without_hashes(manifest.sources))
    refuse_difference(f"{output} already holds a token store", present, made_from)
    if not is_remote(output):
        open_store(output)
        forget_progress(pathlib.Path(output))
    print(f"{output} is already complete: {description(manifest)}")
    return _with_licences(output, manifest, made_from)


def _with_licences(output: epath.Path, manifest: Manifest, made_from: MadeFrom) -> Manifest:
    """Record the licences that were given in the manifest; a source for which there is none keeps its own."""
    sources = tuple(
        dataclasses.replace(source, license=asked.license or source.license)
        for source, asked in zip(manifest.sources, made_from.sources, strict=True)
    )
    if sources == manifest.sources:
        return manifest
    manifest = dataclasses.replace(manifest, sources=sources)
    write_manifest(output, manifest)
    print(f"{output / 'manifest.json'} has the new licences: {', '.join(dict.fromkeys(s.license for s in sources))}")
    return manifest


def working_directory(output: epath.Path) -> pathlib.Path:
    """Return where the store is built: in place, or in the cache for a remote output, which cannot be appended to."""
    if not is_remote(output):
        return pathlib.Path(output)
    name = hashlib.sha256(os.fspath(output).encode()).hexdigest()[:16]
    return cache_directory() / f"prepare-{name}"


def make_manifest(
    directory: pathlib.Path,
    made_from: MadeFrom,
    state: WriterState,
    removed: tuple[Removed, ...],
    cleaning: tuple[StepRecord, ...],
) -> Manifest:
    """Return the manifest of the finished files in `directory`."""
    tokenizer_files = sorted(path for path in (directory / "tokenizer").iterdir() if path.is_file())
    hashes = ((path.name, hash_file(path)) for path in tokenizer_files)
    return Manifest(
        version=VERSION,
        dtype=dtype_for(made_from.tokenizer.vocab_size),
        counts=counts(state),
        tokenizer=made_from.tokenizer,
        options=made_from.options,
        sources=with_hashes(made_from.sources),
        shards=state.shards,
        files=(
            *state.hashes,
            *(FileRecord(name=f"tokenizer/{name}", sha256=sha256) for name, sha256 in hashes if sha256),
        ),
        removed=removed,
        cleaning=cleaning,
    )


def publish(directory: pathlib.Path, output: epath.Path, manifest: Manifest) -> None:
    """Make the finished files a store: the manifest comes last, for a remote output after all other files."""
    if not is_remote(output):
        write_manifest(output, manifest)
        forget_progress(directory)
        return
    for file in manifest.files:
        target = output / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        copy_file(directory / file.name, target)
    write_manifest(output, manifest)
    clear(directory)


def write_manifest(output: epath.Path, manifest: Manifest) -> None:
    """Make the files in `output` a store."""
    text = json.dumps(sealed(to_dict(manifest)), indent=1) + "\n"
    write_atomically(output / "manifest.json", text.encode())
