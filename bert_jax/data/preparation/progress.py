"""The directory in which a token store is being made: its owner, its progress, and what can be resumed."""

import contextlib
import dataclasses
import json
import pathlib
import re
import shutil
from collections.abc import Iterator
from typing import Any

from etils import epath

from bert_jax.checkpoints.owner import Owner
from bert_jax.config.json_form import differences, from_dict, to_dict
from bert_jax.data.cleaning.step_record import StepRecord
from bert_jax.data.corpus.text_blocks import Position
from bert_jax.data.preparation import writer as store_writer
from bert_jax.data.preparation.writer import WriterState
from bert_jax.data.store.manifest import VERSION, Options, Removed, SourceRecord, TokenizerRecord, dtype_for
from bert_jax.errors import UserError
from bert_jax.files import read_object, sealed, unsealed, write_atomically

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
    if damaged := store_writer.damaged_file(directory, dtype_for(made_from.tokenizer.vocab_size), progress.writer):
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
