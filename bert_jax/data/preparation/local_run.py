"""A token store made on this machine: one process cuts blocks, worker processes encode them.

The first process appends the ids in the order of the blocks, so the store is the same for every number of workers.
Every few seconds `progress.json` records how much is on disk, from which a killed run resumes. Memory use is a few
blocks per worker, regardless of corpus or document size; a bounded number of tasks is in progress.

If duplicates are removed, a first pass over the corpus decides which documents and paragraphs to remove. It reads and
cleans every block as the second pass does, keeps its hashes in files that only grow, and then searches those. A
killed run resumes from `search.json`; only the search itself, which is short compared with the reading, begins again.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import json
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from bert_jax.config.options import from_dict, to_dict
from bert_jax.corpus import blocks
from bert_jax.corpus.blocks import Block, Position, Source, read_blocks
from bert_jax.corpus.cleaner import StepRecord, merged
from bert_jax.corpus.duplicates import (
    FILES,
    NOTHING,
    Banding,
    BlockRecords,
    BlockRemovals,
    RecordCounts,
    RecordWriter,
    Removals,
    are_there,
    banding_for,
    block_records,
    find_duplicates,
    read_table,
    remove_records,
)
from bert_jax.data.manifest import VERSION, FileRecord, Manifest, Options, Removed, dtype_for, hash_file, removals
from bert_jax.data.preparation.encoding import TextReader, make_encoder
from bert_jax.data.preparation.request import Request, no_text
from bert_jax.data.preparation.writer import (
    BEAM,
    DUPLICATES,
    MadeFrom,
    Progress,
    StoreWriter,
    WriterState,
    clear,
    make_manifest,
    owned,
    publish,
    resume,
    working_directory,
    write_progress,
)
from bert_jax.errors import UserError
from bert_jax.files import read_object, sealed, unsealed, write_atomically
from bert_jax.progress import progress_bar

Task = TypeVar("Task", bound=tuple[Any, ...])
Result = TypeVar("Result")

_function: Callable[..., Any]  # one per worker process


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(
    tasks: Iterable[Task], make: Callable[..., Callable[..., Result]], arguments: tuple[Any, ...], workers: int
) -> Iterator[tuple[Task, Result]]:
    """Yield every task with its result, in order; a single worker is this process.

    Args:
      tasks: the arguments of each call.
      make: what each worker calls with `arguments` to get the function that it applies to tasks.
    """
    if workers == 1:
        function = make(*arguments)
        for task in tasks:
            yield task, function(*task)
        return
    pool = concurrent.futures.ProcessPoolExecutor(  # spawn: the parent may hold threads (TensorFlow, tokenizers)
        workers, multiprocessing.get_context("spawn"), _start_worker, (make, arguments)
    )
    under_way: collections.deque[Any] = collections.deque()
    try:
        for task in tasks:
            under_way.append((task, pool.submit(_call, *task)))
            if len(under_way) > 2 * workers:
                task, future = under_way.popleft()
                yield task, future.result()
        for task, future in under_way:
            yield task, future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker(make: Callable[..., Callable[..., Any]], arguments: tuple[Any, ...]) -> None:
    global _function
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends its workers itself
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _function = make(*arguments)


def _end_with_parent() -> None:
    """End a worker whose parent was killed by SIGKILL, which would otherwise wait for work forever."""
    if parent := multiprocessing.parent_process():
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _call(*task: Any) -> Any:
    return _function(*task)


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


"""Time between two records of the progress: the most work that a killed run has to repeat."""


def prepare_locally(request: Request) -> tuple[Manifest, int]:
    """Make the store of `request`, or finish one that was begun.

    Returns:
      (the manifest of the store, the number of bytes of text that this run encoded)
    """
    if (request.output / BEAM).exists():
        raise UserError(
            f"{request.output} was started with --runner=beam; resume it with the same runner, or choose another output"
        )
    directory = working_directory(request.output)
    with owned(directory):
        progress = resume(directory, request.made_from)
        if progress.position != Position():
            print(
                f"{request.output}: resuming in {request.sources[progress.source].name}, "
                f"{progress.writer.text_bytes / 1e6:,.1f} MB of text are done"
            )
        try:
            write_progress(directory, progress)
            shutil.rmtree(directory / "tokenizer", ignore_errors=True)  # never trust what an interrupted run left
            request.tokenizer.save(directory / "tokenizer")
            state, left_out = _append_blocks(directory, progress, request)
            manifest = make_manifest(directory, request.made_from, state, *left_out)
            publish(directory, request.output, manifest)
        except UserError:
            clear(directory)
            raise
        except BrokenProcessPool as error:
            raise UserError(
                "a worker process died, perhaps for lack of memory; the same command resumes from where it was, "
                "with fewer --workers if necessary"
            ) from error
        except OSError as error:
            raise UserError(
                f"{request.output} could not be finished: {error}; correct that, and the same command resumes"
            ) from error
    return manifest, state.text_bytes - progress.writer.text_bytes


def _append_blocks(
    directory: pathlib.Path, progress: Progress, request: Request
) -> tuple[WriterState, tuple[tuple[Removed, ...], tuple[StepRecord, ...]]]:
    """Encode what is left of the sources and append it; return the state of the closed shards and what was left out."""
    made_from, sources = progress.made_from, request.sources
    number = {source: index for index, source in enumerate(sources)}
    done = [sum(source.bytes for source in sources[:index]) for index in range(len(sources) + 1)]
    workers = 1 if done[-1] <= blocks.BLOCK_BYTES else request.workers or cores()
    tasks = _tasks(progress, request, find_removals(directory, request, workers))
    arguments = (str(directory / "tokenizer"), made_from.options)
    recorded = time.monotonic()
    removed = collections.Counter({(entry.source, entry.what): entry.number for entry in progress.removed})
    writer = StoreWriter(directory, dtype_for(made_from.tokenizer.vocab_size), progress.writer)
    with contextlib.closing(writer), progress_bar("preparing", done[-1], done[progress.source], "bytes") as advance_to:
        try:
            for (block, _), encoded in in_order(tasks, make_encoder, arguments, workers):
                cleaning = merged([*progress.cleaning, *encoded.cleaning])
                following = dataclasses.replace(
                    progress, source=number[block.source], position=block.end, cleaning=cleaning
                )
                writer.append(encoded, block.continues)
                progress = following  # at once: an interruption records what the writer has
                removed.update({(block.source.name, what): number for what, number in encoded.removed.items()})
                advance_to(done[progress.source] + block.consumed)
                if time.monotonic() - recorded >= RECORD_SECONDS:
                    _record(directory, progress, writer, removed)
                    recorded = time.monotonic()
        finally:
            _record(directory, progress, writer, removed)
        state = writer.finish()
    if not state.shards:
        raise no_text(sources, progress.cleaning)
    return state, (removals(removed), progress.cleaning)


def _tasks(progress: Progress, request: Request, duplicates: Removals | None) -> Iterator[tuple[Block, BlockRemovals]]:
    """Yield every block that is left, with what goes from it because it occurs earlier in the corpus."""
    number = {source: index for index, source in enumerate(request.sources)}
    text_field = request.made_from.options.text_field
    for block in remaining_blocks(request.sources, text_field, progress.source, progress.position):
        yield block, duplicates.of(number[block.source], block.start.offset) if duplicates else NOTHING


def _record(
    directory: pathlib.Path, progress: Progress, writer: StoreWriter, removed: collections.Counter[tuple[str, str]]
) -> None:
    write_progress(directory, dataclasses.replace(progress, writer=writer.flush(), removed=removals(removed)))
