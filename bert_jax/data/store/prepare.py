"""`bert-jax prepare`: makes a token store from a corpus.

One process cuts the sources into blocks, worker processes turn blocks into ids, and the first appends them in order, so
the store is the same for every number of workers. Every few seconds `progress.json` records how much is on disk, from
which a killed run resumes. `manifest.json` is written last, under a different name and then renamed; until then there
is no store. Memory use is a few blocks per worker, regardless of corpus or document size.
"""

import collections
import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
import time
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool

from absl import logging
from etils import epath

from bert_jax.config import DataConfig, PrepareConfig
from bert_jax.config.json_form import to_dict
from bert_jax.console.progress_bar import progress_bar
from bert_jax.data.corpus import wrapping
from bert_jax.data.corpus.readers import find_sources, read_lines
from bert_jax.data.corpus.sentences import make_splitter
from bert_jax.data.corpus.text_blocks import BLOCK_BYTES, Block, Position, Source, read_blocks
from bert_jax.data.held_out import held_out_documents
from bert_jax.data.store import writer as store_writer
from bert_jax.data.store.access import open_store
from bert_jax.data.store.manifest import (
    VERSION,
    FileRecord,
    Manifest,
    Options,
    Removed,
    SourceRecord,
    TokenizerRecord,
    dtype_for,
    hash_file,
    read_manifest,
)
from bert_jax.data.store.progress import (
    PROGRESS,
    MadeFrom,
    Progress,
    clear,
    owned,
    refuse_difference,
    resume,
    write_progress,
)
from bert_jax.data.store.workers import encoded_blocks
from bert_jax.data.store.writer import StoreWriter, WriterState
from bert_jax.errors import UserError, need_cloud_storage
from bert_jax.files import cache_directory, sealed, write_atomically
from bert_jax.tokenization.tokenizer import Tokenizer, load_tokenizer

RECORD_SECONDS = 10.0
"""Time between two records of the progress: the most work that a killed run has to repeat."""

MAY_BE_WRAPPED = ("text", "jsonl", "tfds", "parquet", "arrow")
"""Formats whose lines may end anywhere; the others have a whole paragraph on each line."""

SHORT_DOCUMENT = 256
"""Tokens: wrapped documents that are shorter on average are probably paragraphs."""


def run_prepare(config: PrepareConfig) -> Manifest:
    """Make the token store, or finish one that was begun, and print a report.

    Returns:
      The manifest of the store.

    Raises:
      UserError: bad input (see readers.py and blocks.py) or vocabulary; a corpus without a token; an output that cannot
        be written or holds something else. Bad input leaves nothing behind; a lack of space or memory leaves a state
        from which the same command resumes.
    """
    for path in (config.input, config.vocab, config.output):
        need_cloud_storage(path)
    make_splitter(config.sentences, config.language)
    if config.workers < 0:
        raise UserError(f"workers={config.workers}: give the number of processes, or 0 for one per core")
    if config.wrapped == "yes" and config.sentences == "lines":
        raise UserError(
            "wrapped=yes joins the lines of a paragraph, sentences=lines takes each line as a sentence; choose one"
        )
    tokenizer = load_tokenizer(config.vocab, config.lowercase)
    sources = _with_wrap_columns(config, find_sources(config.input, config.format))
    made_from = _made_from(config, tokenizer, sources)
    output = epath.Path(config.output).expanduser()
    if (output / "manifest.json").exists():
        return _finished(output, made_from)
    directory = _working_directory(output)
    with owned(directory):
        progress = resume(directory, made_from)
        if progress.position != Position():
            print(
                f"{output}: resuming in {sources[progress.source].name}, "
                f"{progress.writer.text_bytes / 1e6:,.1f} MB of text are done"
            )
        started = time.monotonic()
        try:
            write_progress(directory, progress)
            shutil.rmtree(directory / "tokenizer", ignore_errors=True)  # never trust what an interrupted run left
            tokenizer.save(directory / "tokenizer")
            state, removed = _append_blocks(directory, progress, sources, config.workers)
            manifest = _manifest(directory, made_from, state, removed)
            _publish(directory, output, manifest)
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
                f"{output} could not be finished: {error}; correct that, and the same command resumes"
            ) from error
    _report(output, manifest, state.text_bytes - progress.writer.text_bytes, time.monotonic() - started)
    return manifest


def _with_wrap_columns(config: PrepareConfig, sources: list[Source]) -> list[Source]:
    """Return the sources with the columns at which their lines are joined; report which ones look wrapped.

    Raises:
      UserError: wrapped=yes, but the format of a source has a paragraph on each line.
    """
    if config.wrapped == "no":
        return sources
    unbroken = [source for source in sources if source.format not in MAY_BE_WRAPPED]
    if config.wrapped == "yes" and unbroken:
        raise UserError(
            f"wrapped=yes joins the lines of a paragraph, but {unbroken[0].name} ({unbroken[0].format}) has "
            "a whole paragraph on each line; give --wrapped=auto, or leave it out"
        )
    found = {
        source: wrapping.find_column(read_lines(source, config.text_field, config.bad_utf8))
        for source in sources
        if source.format in MAY_BE_WRAPPED
    }
    wrapped = [source for source, (_, is_wrapped) in found.items() if is_wrapped]
    joining = config.wrapped == "yes" or config.wrapped == "auto" and config.sentences == "split"
    if wrapped:
        first, column = wrapped[0].name, found[wrapped[0]][0]
        which = first if len(sources) == 1 else f"{len(wrapped):,} of {len(sources):,} sources ({first}, …)"
        which = f"{which}: hard-wrapped lines of about {column} characters"
        if joining:
            print(f"{which}; the lines of each paragraph are joined (--wrapped=no keeps every line end)")
        else:
            logging.warning(
                "%s, and every line end is taken for the end of a sentence; --sentences=split --wrapped=auto joins "
                "the lines of each paragraph",
                which,
            )
    joined = found if config.wrapped == "yes" else set(wrapped) if joining else ()
    return [
        dataclasses.replace(source, wrap_column=found[source][0]) if source in joined else source for source in sources
    ]


def _made_from(config: PrepareConfig, tokenizer: Tokenizer, sources: list[Source]) -> MadeFrom:
    return MadeFrom(
        tokenizer=TokenizerRecord(
            kind=tokenizer.kind, fingerprint=tokenizer.fingerprint, vocab_size=tokenizer.vocab_size
        ),
        options=Options(
            sentences=config.sentences, language=config.language, text_field=config.text_field, bad_utf8=config.bad_utf8
        ),
        sources=tuple(SourceRecord(**dataclasses.asdict(source)) for source in sources),
    )


def _finished(output: epath.Path, made_from: MadeFrom) -> Manifest:
    """Return the manifest of the store that is already at `output`, if it is the requested one."""
    manifest = read_manifest(output)
    present = MadeFrom(tokenizer=manifest.tokenizer, options=manifest.options, sources=manifest.sources)
    refuse_difference(f"{output} already holds a token store", present, made_from)
    if _is_local(output):
        open_store(output)
        (pathlib.Path(output) / PROGRESS).unlink(missing_ok=True)
    print(f"{output} is already complete: {_describe(manifest)}")
    return manifest


def _working_directory(output: epath.Path) -> pathlib.Path:
    """Return where the store is built: in place, or in the cache for a remote output, which cannot be appended to."""
    if _is_local(output):
        return pathlib.Path(output)
    name = hashlib.sha256(os.fspath(output).encode()).hexdigest()[:16]
    return cache_directory() / f"prepare-{name}"


def _append_blocks(
    directory: pathlib.Path, progress: Progress, sources: list[Source], workers: int
) -> tuple[WriterState, tuple[Removed, ...]]:
    """Encode what is left of the sources and append it; return the state of the closed shards and what was left out."""
    made_from = progress.made_from
    number = {source: index for index, source in enumerate(sources)}
    done = [sum(source.bytes for source in sources[:index]) for index in range(len(sources) + 1)]
    workers = 1 if done[-1] <= BLOCK_BYTES else workers or _cores()
    blocks = _remaining(sources, progress, made_from.options.text_field)
    recorded = time.monotonic()
    removed = collections.Counter({(entry.source, entry.what): entry.number for entry in progress.removed})
    writer = StoreWriter(directory, dtype_for(made_from.tokenizer.vocab_size), progress.writer)
    with contextlib.closing(writer), progress_bar("preparing", done[-1], done[progress.source], "bytes") as advance_to:
        try:
            for block, encoded in encoded_blocks(blocks, str(directory / "tokenizer"), made_from.options, workers):
                writer.append(encoded, block.continues)
                removed.update({(block.source.name, what): number for what, number in encoded.removed.items()})
                progress = dataclasses.replace(progress, source=number[block.source], position=block.end)
                advance_to(done[progress.source] + block.consumed)
                if time.monotonic() - recorded >= RECORD_SECONDS:
                    _record(directory, progress, writer, removed)
                    recorded = time.monotonic()
        finally:
            _record(directory, progress, writer, removed)
        state = writer.finish()
    if not state.shards:
        raise UserError(
            f"the corpus holds no text: {done[-1]:,} bytes in {len(sources)} "
            f"source{'s' * (len(sources) > 1)} gave no token"
        )
    return state, _removals(removed)


def _record(
    directory: pathlib.Path, progress: Progress, writer: StoreWriter, removed: collections.Counter[tuple[str, str]]
) -> None:
    write_progress(directory, dataclasses.replace(progress, writer=writer.flush(), removed=_removals(removed)))


def _removals(removed: collections.Counter[tuple[str, str]]) -> tuple[Removed, ...]:
    return tuple(Removed(source=source, what=what, number=n) for (source, what), n in sorted(removed.items()) if n)


def _remaining(sources: list[Source], progress: Progress, text_field: str) -> Iterator[Block]:
    for index in range(progress.source, len(sources)):
        yield from read_blocks(
            sources[index], text_field, progress.position if index == progress.source else Position()
        )


def _manifest(
    directory: pathlib.Path, made_from: MadeFrom, state: WriterState, removed: tuple[Removed, ...]
) -> Manifest:
    tokenizer_files = sorted(path for path in (directory / "tokenizer").iterdir() if path.is_file())
    hashes = ((path.name, hash_file(path)) for path in tokenizer_files)
    return Manifest(
        version=VERSION,
        dtype=dtype_for(made_from.tokenizer.vocab_size),
        counts=store_writer.counts(state),
        tokenizer=made_from.tokenizer,
        options=made_from.options,
        sources=made_from.sources,
        shards=state.shards,
        files=(
            *state.hashes,
            *(FileRecord(name=f"tokenizer/{name}", sha256=sha256) for name, sha256 in hashes if sha256),
        ),
        removed=removed,
    )


def _publish(directory: pathlib.Path, output: epath.Path, manifest: Manifest) -> None:
    """Make the finished files a store: the manifest comes last, for a remote output after all other files."""
    text = json.dumps(sealed(to_dict(manifest)), indent=1) + "\n"
    if _is_local(output):
        write_atomically(directory / "manifest.json", text.encode())
        (directory / PROGRESS).unlink()
        return
    for file in manifest.files:
        target = output / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        with (directory / file.name).open("rb") as source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy, 1 << 24)
    (output / "manifest.json").write_text(text)
    clear(directory)


def _report(output: epath.Path, manifest: Manifest, text_bytes: int, seconds: float) -> None:
    print(
        f"{output}: {_describe(manifest)}; {text_bytes / 1e6:,.1f} MB of text in {seconds:,.1f} s, "
        f"{text_bytes / 1e6 / seconds:.2f} MB/s"
    )
    _warn_of_few_documents(manifest.counts.documents)
    _warn_of_paragraphs_as_documents(manifest)


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


def _describe(manifest: Manifest) -> str:
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


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _is_local(path: epath.Path) -> bool:
    return "://" not in os.fspath(path)
