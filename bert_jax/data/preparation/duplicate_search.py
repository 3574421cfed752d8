"""The first pass over a corpus whose duplicates are removed: it decides which documents and paragraphs to remove.

It reads and cleans every block as the second pass does, keeps hashes of it in files that only grow, and then searches
those. A run that was killed resumes where `search.json` says; only the search itself, which is short beside the
reading, begins again.
"""

import contextlib
import dataclasses
import json
import pathlib
import shutil
import time
from collections.abc import Callable, Iterator

from bert_jax.config.json_form import from_dict, to_dict
from bert_jax.console.progress_bar import progress_bar
from bert_jax.data.corpus.text_blocks import Block, Position, Source, read_blocks
from bert_jax.data.duplicates.block_records import BlockRecords, block_records
from bert_jax.data.duplicates.corpus_search import find_duplicates
from bert_jax.data.duplicates.minhash import Banding, banding_for
from bert_jax.data.duplicates.record_files import RecordCounts, RecordWriter, are_there, read_table, remove_records
from bert_jax.data.duplicates.removals import FILES, Removals
from bert_jax.data.preparation.block_text import TextReader
from bert_jax.data.preparation.progress import DUPLICATES, MadeFrom
from bert_jax.data.preparation.request import Request
from bert_jax.data.preparation.workers import in_order
from bert_jax.data.store.manifest import VERSION, FileRecord, Options, hash_file
from bert_jax.errors import UserError
from bert_jax.files import read_object, sealed, unsealed, write_atomically

RECORD_SECONDS = 10.0
"""Time between two records of the progress: the most work that a killed run has to repeat."""

_PROGRESS = "search.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchProgress:
    """What is on disk: the records of everything before `position` of source number `source`, or the result."""

    version: int = VERSION
    made_from: MadeFrom
    source: int = 0
    position: Position = Position()
    counts: RecordCounts = RecordCounts()
    found: tuple[FileRecord, ...] = ()
    """The files of the result and their hashes, once the search has ended."""


def banding_of(options: Options) -> Banding | None:
    """Return how near duplicates are found, or None if they are not looked for."""
    threshold = options.clean.similarity
    return None if threshold is None else banding_for(threshold)


def make_recorder(options: Options) -> Callable[[Block], BlockRecords]:
    """Return what turns blocks into the records among which duplicates are searched."""
    read, banding = TextReader(options), banding_of(options)
    return lambda block: block_records(read(block).pieces, banding)


def find_removals(working_directory: pathlib.Path, request: Request, workers: int) -> Removals | None:
    """Return what is to be removed from each block, after a search or from an earlier run; None without such a wish.

    Raises:
      UserError: bad input; see `parse_block` and `TextReader`.
    """
    directory, options = working_directory / DUPLICATES, request.made_from.options
    if options.clean.deduplicate == "keep":
        return None
    directory.mkdir(exist_ok=True)
    progress = _resume(directory, request.made_from)
    if not progress.found:
        for path in directory.iterdir():
            if path.is_dir():  # of a search that was killed
                shutil.rmtree(path)
        progress = _append_records(directory, progress, request.sources, workers)
        table = read_table(directory, banding_of(options), progress.counts)
        find_duplicates(table, options.clean.similarity, directory)
        _write(directory, dataclasses.replace(progress, found=_hashes(directory)))
        del table
        remove_records(directory)
    return Removals(directory)


def _append_records(
    directory: pathlib.Path, progress: SearchProgress, sources: list[Source], workers: int
) -> SearchProgress:
    """Append the records of what is left of the sources; return the progress at their end."""
    options = progress.made_from.options
    number = {source: index for index, source in enumerate(sources)}
    done = [sum(source.bytes for source in sources[:index]) for index in range(len(sources) + 1)]
    blocks = ((block,) for block in remaining_blocks(sources, options.text_field, progress.source, progress.position))
    writer, recorded = RecordWriter(directory, banding_of(options), progress.counts), time.monotonic()
    bar = progress_bar("looking for duplicates", done[-1], done[progress.source], "bytes")
    with contextlib.closing(writer), bar as advance_to:
        try:
            for (block,), records in in_order(blocks, make_recorder, (options,), workers):
                writer.append(number[block.source], block.start.offset, records)
                progress = dataclasses.replace(progress, source=number[block.source], position=block.end)
                advance_to(done[progress.source] + block.consumed)
                if time.monotonic() - recorded >= RECORD_SECONDS:
                    _write(directory, dataclasses.replace(progress, counts=writer.flush()))
                    recorded = time.monotonic()
        finally:
            progress = dataclasses.replace(progress, counts=writer.flush())
            _write(directory, progress)
    return progress


def remaining_blocks(sources: list[Source], text_field: str, first: int, start: Position) -> Iterator[Block]:
    """Yield the blocks of all sources from `start` in source number `first`."""
    for index in range(first, len(sources)):
        yield from read_blocks(sources[index], text_field, start if index == first else Position())


def _resume(directory: pathlib.Path, made_from: MadeFrom) -> SearchProgress:
    """Return the progress of the previous run; the beginning, if its files are not all there as it left them.

    The lengths of the records are checked, and the hashes of the result.
    """
    begin, path = SearchProgress(made_from=made_from), directory / _PROGRESS
    if not path.exists():
        return begin
    try:
        progress = from_dict(SearchProgress, unsealed(read_object(path)), complete=True)
    except UserError:
        return begin
    if progress.found:
        whole = progress.found == _hashes(directory)
    else:
        whole = are_there(directory, banding_of(made_from.options), progress.counts)
    return progress if whole and progress.made_from == made_from else begin


def _hashes(directory: pathlib.Path) -> tuple[FileRecord, ...]:
    return tuple(FileRecord(name=name, sha256=hash_file(directory / name) or "") for name in FILES)


def _write(directory: pathlib.Path, progress: SearchProgress) -> None:
    write_atomically(directory / _PROGRESS, json.dumps(sealed(to_dict(progress))).encode())
