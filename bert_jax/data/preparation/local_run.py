"""The store made on this machine: one process cuts the sources into blocks, worker processes turn them into ids.

The first process appends the ids in the order of the blocks, so the store is the same for every number of workers.
Every few seconds `progress.json` records how much is on disk, from which a killed run resumes. Memory use is a few
blocks per worker, regardless of corpus or document size.
"""

import collections
import contextlib
import dataclasses
import pathlib
import shutil
import time
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool

from bert_jax.console.progress_bar import progress_bar
from bert_jax.data.cleaning.step_record import StepRecord, merged
from bert_jax.data.corpus import text_blocks
from bert_jax.data.corpus.text_blocks import Block, Position
from bert_jax.data.duplicates.removals import NOTHING, BlockRemovals, Removals
from bert_jax.data.preparation.duplicate_search import find_removals, remaining_blocks
from bert_jax.data.preparation.encoding import make_encoder
from bert_jax.data.preparation.progress import BEAM, Progress, clear, owned, resume, write_progress
from bert_jax.data.preparation.publication import make_manifest, publish, working_directory
from bert_jax.data.preparation.request import Request, no_text
from bert_jax.data.preparation.workers import cores, in_order
from bert_jax.data.preparation.writer import StoreWriter, WriterState
from bert_jax.data.store.manifest import Manifest, Removed, dtype_for, removals
from bert_jax.errors import UserError

RECORD_SECONDS = 10.0
"""Time between two records of the progress: the most work that a killed run has to repeat."""


def prepare_locally(request: Request) -> tuple[Manifest, int]:
    """Make the store of `request`, or finish one that was begun.

    Returns:
      (the manifest of the store, the number of bytes of text that this run encoded)

    Raises:
      UserError: as `run_prepare`.
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
    workers = 1 if done[-1] <= text_blocks.BLOCK_BYTES else request.workers or cores()
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
    """Yield every block that is left, with what goes from it because the corpus has it before."""
    number = {source: index for index, source in enumerate(request.sources)}
    text_field = request.made_from.options.text_field
    for block in remaining_blocks(request.sources, text_field, progress.source, progress.position):
        yield block, duplicates.of(number[block.source], block.start.offset) if duplicates else NOTHING


def _record(
    directory: pathlib.Path, progress: Progress, writer: StoreWriter, removed: collections.Counter[tuple[str, str]]
) -> None:
    write_progress(directory, dataclasses.replace(progress, writer=writer.flush(), removed=removals(removed)))
