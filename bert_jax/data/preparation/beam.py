"""A token store made by a pipeline of Apache Beam: its options, its steps, and a run from start to end.

Options `--beam.NAME=VALUE` are all checked before anything is read. Sources are cut into blocks, which any worker
encodes and leaves as a file. The number of tokens of each block decides which shards they belong to, by the rule of
`StoreWriter`, which then writes each shard on some worker. Every step is a function of its input that may be run
twice, so the store does not depend on runner, workers, failures or order.

Duplicates are searched with the functions of the local runner, in the order of the corpus: the records of every block
on any worker, the search on one of them. So the same documents are removed.

The pipeline works in the directory `beam` of the output. A killed pipeline leaves its encoded blocks there, and the
next one does not encode them again. The directory is removed when the manifest has been written.
"""

import collections
import contextlib
import dataclasses
import difflib
import io
import json
import logging
import os
import pathlib
import shlex
import sys
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions
from apache_beam.pvalue import AsSingleton, PCollection
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.transforms.environments import SubprocessSDKEnvironment
from etils import epath

from bert_jax.config import PrepareConfig
from bert_jax.config.options import from_dict, to_dict
from bert_jax.corpus.blocks import Block, Source, read_blocks
from bert_jax.corpus.cleaner import StepRecord, merged
from bert_jax.corpus.duplicates import (
    FILES,
    NOTHING,
    BlockRecords,
    BlockRemovals,
    RecordWriter,
    Removals,
    find_duplicates,
    read_table,
)
from bert_jax.data.manifest import Manifest, Options, Removed, Shard, dtype_for, removals
from bert_jax.data.preparation import encoding
from bert_jax.data.preparation.local_run import banding_of, cores, make_recorder
from bert_jax.data.preparation.request import Request, no_text
from bert_jax.data.preparation.writer import (
    BEAM,
    DUPLICATES,
    PROGRESS,
    MadeFrom,
    StoreWriter,
    WriterState,
    begins_shard,
    make_manifest,
    owned,
    refuse_difference,
    working_directory,
    write_manifest,
)
from bert_jax.errors import UserError
from bert_jax.files import copy_file, is_remote, read_object, sealed, unsealed, write_atomically

with contextlib.ExitStack() as _quiet:
    _quiet.callback(logging.disable, logging.root.manager.disable)
    logging.disable(logging.WARNING)  # of libraries for BigQuery that are not there
    import apache_beam


HERE = "DirectRunner"
"""The runner on this machine, which is taken without --beam.runner."""

WITH_OPTIONS_OF_THEIR_OWN = ("PortableRunner", "FlinkRunner", "SparkRunner")
"""Runners whose job server may know options that Beam's Python does not."""


def empty_pipeline(config: PrepareConfig) -> apache_beam.Pipeline:
    """Return a pipeline without steps, for the runner and with the options of this run.

    Raises:
      UserError: an option that Beam does not know, or that does not wait for the pipeline, a value of the wrong type, a
        runner that does not exist or lacks an option or a library, --workers with a runner elsewhere, or a runner in
        the cloud and paths of this machine.
    """
    given = dict(_split(option) for option in config.beam)
    runner = given.setdefault("runner", HERE)
    if runner == HERE:
        given.setdefault("direct_num_workers", str(config.workers or cores()))
    elif config.workers:
        raise UserError(
            f"workers={config.workers} applies to this machine only; {runner} has its own options, such as "
            "--beam.num_workers and --beam.max_num_workers of Dataflow"
        )
    if runner == "DataflowRunner":
        _need_cloud_paths(config)
        logging.getLogger("apache_beam.runners.dataflow").setLevel(logging.INFO)  # the address of the job, its state
    given.setdefault("default_sdk_harness_log_level", "ERROR")  # workers would print each of their steps
    options = _parsed([f"--{name}" if value is None else f"--{name}={value}" for name, value in given.items()])
    _refuse_unwatched(options)
    if runner not in WITH_OPTIONS_OF_THEIR_OWN:
        _refuse_unknown(options)
    try:
        with quiet():
            return apache_beam.Pipeline(_runner_here(options) if runner == HERE else None, options)
    except (ValueError, ImportError) as error:
        reason = " ".join(str(error).split()).replace("Pipeline has validations errors: ", "")
        raise UserError(f"beam.runner={runner} cannot be used: {reason:.400}") from error


def _split(option: str) -> tuple[str, str | None]:
    name, equals, value = option.partition("=")
    if not name.isidentifier():
        raise UserError(f"--beam.{option} names no option of Apache Beam; each is written --beam.NAME=VALUE")
    return name, value if equals else None


def _need_cloud_paths(config: PrepareConfig) -> None:
    read_by_workers = {
        "input": config.input,
        "output": config.output,
        "clean.decontaminate": config.clean.decontaminate,
    }
    for name, value in read_by_workers.items():
        for path in filter(None, map(str.strip, value.split(","))):
            if not path.startswith(("gs://", "tfds:", "hf://", "docs:")):
                raise UserError(f"{name}={path} is on this machine, where Dataflow's workers are not; use gs://")


def _parsed(words: list[str]) -> PipelineOptions:
    said = io.StringIO()
    try:
        with quiet(), contextlib.redirect_stderr(said):
            options = PipelineOptions(words)
            options.get_all_options()
            return options
    except SystemExit:
        message = said.getvalue().strip().rpartition("error: ")[2]
        raise UserError(f"Apache Beam refuses an option: {message}; each is written --beam.NAME=VALUE") from None


def _refuse_unwatched(options: PipelineOptions) -> None:
    """Refuse options with which Beam comes back before the pipeline has run, as if it had found no text."""
    given = options.get_all_options()
    for name in ("template_location", "dry_run", "no_wait_until_finish"):
        if given[name]:
            raise UserError(
                f"--beam.{name} would not wait for the end of the pipeline, when prepare writes the manifest; leave "
                "it out"
            )


def _refuse_unknown(options: PipelineOptions) -> None:
    with quiet():
        known = options.get_all_options()
        unknown = sorted(set(options.get_all_options(retain_unknown_options=True)) - set(known))
    if unknown:
        close = difflib.get_close_matches(unknown[0], known, n=1)
        hint = f"perhaps you meant --beam.{close[0]}" if close else "its guide to pipeline options lists them"
        raise UserError(f"Apache Beam has no option {unknown[0]!r}; {hint}")


def _runner_here(options: PipelineOptions) -> FnApiRunner:
    """Return Beam's own runner with a process per worker; a single worker is this process.

    Beam starts the same processes with --beam.direct_running_mode=multi_processing, but they print their tracebacks.
    """
    if options.view_as(DirectOptions).direct_num_workers == 1:
        return FnApiRunner()
    command = f"exec {shlex.quote(sys.executable)} -m apache_beam.runners.worker.sdk_worker_main"
    if not _debugging():
        command += " 2>/dev/null"
    environment: Any = SubprocessSDKEnvironment  # a decorator hides that it is a class
    return FnApiRunner(environment.from_command_string(command_string=command))


def _debugging() -> bool:
    return logging.getLogger().isEnabledFor(logging.INFO)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep Beam from logging what its exceptions say as well, several times and with tracebacks."""
    logger = logging.getLogger("apache_beam")
    level = logger.level
    if not _debugging():
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


FAILURES = "failure-*"
"""Names of the files, in the directory of the pipeline, that hold messages of steps."""


@dataclasses.dataclass(frozen=True)
class Work:
    """What every step knows: where the store will be, and where the pipeline keeps its own files."""

    output: str
    directory: str
    options: Options
    dtype: str

    @property
    def blocks(self) -> epath.Path:
        """Where encoded blocks are."""
        return epath.Path(self.directory) / "blocks"

    @property
    def records(self) -> epath.Path:
        """Where the records are in which duplicates are searched."""
        return epath.Path(self.directory) / "records"

    @property
    def scratch(self) -> str | None:
        """Where a worker keeps large files for a while: on the disk of the output, or its own if that is remote."""
        return None if is_remote(self.directory) else self.directory


@contextlib.contextmanager
def telling(work: Work, place: str) -> Iterator[None]:
    """Leave the message of a UserError in a file: runners pass an exception on as some text around its traceback."""
    try:
        yield
    except UserError as error:
        write_atomically(epath.Path(work.directory) / FAILURES.replace("*", place), str(error).encode())
        raise


class Step(apache_beam.DoFn):
    """A step of the pipeline, on any worker."""

    def __init__(self, work: Work):
        self.work = work


class RecordBlocks(Step):
    """(number, Block) → (number, offset). The records of the block become a file, unless that is there already."""

    def setup(self) -> None:
        self.records = make_recorder(self.work.options)

    def process(self, element: tuple[int, Block]) -> Iterator[tuple[int, int]]:
        number, block = element
        offset = block.start.offset
        file = encoding.block_file(self.work.records, number, offset)
        if encoding.read_if_whole(file, read_records) is None:
            with telling(self.work, f"{number:06d}-{offset:015d}"):
                records = self.records(block)
            encoding.write_arrays(file, vars(records))
        yield number, offset


def read_records(file: epath.Path) -> BlockRecords:
    """Return the records in a file of `RecordBlocks`."""
    return BlockRecords(**encoding.read_arrays(file))


class FindDuplicates(Step):
    """(None, places of all blocks) → the directory that says what goes from each block.

    One worker joins the records of the corpus on its disk and searches them; its memory is bounded.
    """

    def process(self, element: tuple[None, Iterable[tuple[int, int]]]) -> Iterator[str]:
        target = epath.Path(self.work.directory) / DUPLICATES
        options = self.work.options
        banding = banding_of(options)
        with tempfile.TemporaryDirectory(dir=self.work.scratch) as name:
            place = pathlib.Path(name)
            writer = RecordWriter(place, banding)
            for source, offset in sorted(element[1]):
                writer.append(source, offset, read_records(encoding.block_file(self.work.records, source, offset)))
            counts = writer.flush()
            writer.close()
            find_duplicates(read_table(place, banding, counts), options.clean.similarity, place)
            target.mkdir(parents=True, exist_ok=True)
            for file in FILES:
                copy_file(place / file, target / file)
        yield str(target)


@dataclasses.dataclass
class FoundDuplicates:
    """What goes from each block, read by one worker; from a bucket it is first copied to the worker's disk."""

    work: Work
    _removals: Removals | None = None

    def of(self, directory: str, source: int, offset: int) -> BlockRemovals:
        """Return what goes from a block; `directory` is that of `FindDuplicates`, empty without a search."""
        if not directory:
            return NOTHING
        if self._removals is None:
            self._removals = self._read(directory)
        return self._removals.of(source, offset)

    def _read(self, directory: str) -> Removals:
        if not is_remote(directory):
            return Removals(pathlib.Path(directory))
        with tempfile.TemporaryDirectory() as name:  # the files stay mapped when their names are gone
            for file in FILES:
                copy_file(epath.Path(directory) / file, pathlib.Path(name) / file)
            return Removals(pathlib.Path(name))


RESULT = "shards.json"
"""File in the directory of the pipeline: what its shards add to the manifest."""


@dataclasses.dataclass(frozen=True, order=True)
class BlockSize:
    """What the layout of the store depends on. Blocks are in the order of sources and of offsets within each."""

    source: int
    offset: int
    end: int
    continues: bool
    tokens: int


@dataclasses.dataclass(frozen=True)
class ShardPlan:
    """A shard and its blocks in order, each as (source, offset, whether it continues a document)."""

    index: int
    blocks: tuple[tuple[int, int, bool], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class WrittenShard:
    """What a shard adds to the manifest; the last one may be empty, and then has no files."""

    index: int
    state: WriterState
    removed: tuple[Removed, ...]
    cleaning: tuple[StepRecord, ...]


class CutSources(Step):
    """(number, Source) → (number, Block) for each of its blocks."""

    def process(self, element: tuple[int, Source]) -> Iterator[tuple[int, Block]]:
        number, source = element
        with telling(self.work, f"{number:06d}"):
            for block in read_blocks(source, self.work.options.text_field):
                yield number, block


class EncodeBlocks(Step):
    """(number, Block) → BlockSize. The encoded block becomes a file, unless a pipeline that was killed has left it."""

    def setup(self) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the workers are the parallelism
        self.encode = encoding.make_encoder(f"{self.work.output}/tokenizer", self.work.options)
        self.duplicates = FoundDuplicates(self.work)

    def process(self, element: tuple[int, Block], duplicates: str = "") -> Iterator[BlockSize]:
        """`duplicates`: the directory of `FindDuplicates`, if duplicates are to go."""
        number, block = element
        start, file = block.start, encoding.block_file(self.work.blocks, number, block.start.offset)
        encoded = encoding.read_if_whole(file, encoding.read_block)
        if encoded is None:
            with telling(self.work, f"{number:06d}-{start.offset:015d}"):
                encoded = self.encode(block, self.duplicates.of(duplicates, number, start.offset))
            encoding.write_block(file, encoded)
        yield BlockSize(number, start.offset, block.end.offset, block.continues, len(encoded.tokens))


def planned_shards(sizes: Iterable[BlockSize]) -> Iterator[ShardPlan]:
    """Yield the shards of a store with these blocks, given in any order.

    Raises:
      UserError: the blocks of a source do not follow each other, so it has changed since it was first read.
    """
    index, tokens, blocks = 0, 0, []
    end = {}
    for size in sorted(sizes):
        if size.offset != end.get(size.source, 0):
            raise UserError(f"source number {size.source + 1} has changed while it was read; start again")
        end[size.source] = size.end
        if begins_shard(tokens, size.continues):
            yield ShardPlan(index, tuple(blocks))
            index, tokens, blocks = index + 1, 0, []
        tokens += size.tokens
        blocks.append((size.source, size.offset, size.continues))
    yield ShardPlan(index, tuple(blocks))


class PlanShards(Step):
    """(None, all BlockSizes) → ShardPlan for each shard."""

    def process(self, element: tuple[None, Iterable[BlockSize]]) -> Iterator[ShardPlan]:
        with telling(self.work, "plan"):
            yield from planned_shards(element[1])


class WriteShards(apache_beam.DoFn):
    """ShardPlan → WrittenShard. Its files appear in the output under their names once they are complete."""

    def __init__(self, work: Work, names: tuple[str, ...]):
        self.work, self.names = work, names

    def process(self, element: ShardPlan) -> Iterator[WrittenShard]:
        local = self.work.scratch is not None
        with tempfile.TemporaryDirectory(dir=self.work.scratch) as directory:
            written = self._write(pathlib.Path(directory), element)
            for file in written.state.hashes:
                target = epath.Path(self.work.output) / file.name
                if local:
                    os.replace(pathlib.Path(directory) / file.name, target)
                else:
                    copy_file(pathlib.Path(directory) / file.name, target)
        yield written

    def _write(self, directory: pathlib.Path, plan: ShardPlan) -> WrittenShard:
        before = (Shard(tokens=0, sentences=0, documents=0),) * plan.index  # their number is all that counts
        removed: collections.Counter[tuple[str, str]] = collections.Counter()
        cleaning: tuple[StepRecord, ...] = ()
        with contextlib.closing(StoreWriter(directory, self.work.dtype, WriterState(shards=before))) as writer:
            for source, offset, continues in plan.blocks:
                block = encoding.read_block(encoding.block_file(self.work.blocks, source, offset))
                writer.append(block, continues)
                removed.update({(self.names[source], what): number for what, number in block.removed.items()})
                cleaning = merged([*cleaning, *block.cleaning])
            state = writer.finish()
        state = dataclasses.replace(state, shards=state.shards[plan.index :])
        return WrittenShard(index=plan.index, state=state, removed=removals(removed), cleaning=cleaning)


class RecordShards(Step):
    """(None, all WrittenShards) → a file from which the process that started the pipeline makes the manifest."""

    def process(self, element: tuple[None, Iterable[WrittenShard]]) -> None:
        shards = sorted(element[1], key=lambda shard: shard.index)
        text = json.dumps(sealed({"shards": [to_dict(shard) for shard in shards]}))
        write_atomically(epath.Path(self.work.directory) / RESULT, text.encode())


def prepare_with_beam(request: Request, pipeline: apache_beam.Pipeline) -> tuple[Manifest, int]:
    """Make the store of `request`, or finish one that a pipeline has begun.

    Returns:
      (the manifest of the store, the number of bytes of text in it)

    Raises:
      UserError: as `run_prepare`; or the pipeline failed, and the same command resumes.
    """
    output, made_from = request.output, request.made_from
    work = Work(
        os.fspath(output), os.fspath(output / BEAM), made_from.options, dtype_for(made_from.tokenizer.vocab_size)
    )
    with owned(working_directory(output)), tempfile.TemporaryDirectory() as place:
        if (working_directory(output) / PROGRESS).exists():
            raise UserError(
                f"{output} was started with --runner=local; resume it with the same runner, or choose another output"
            )
        try:
            _begin(output / BEAM, made_from)
            tokenizer = pathlib.Path(place) / "tokenizer"
            request.tokenizer.save(tokenizer)
            (output / "tokenizer").mkdir(parents=True, exist_ok=True)
            for path in tokenizer.iterdir():
                copy_file(path, output / "tokenizer" / path.name)
            _run(work, request, pipeline)
            state, removed, cleaning = _result(output / BEAM)
            if not state.shards:
                _clear(output)
                raise no_text(request.sources, cleaning)
            manifest = make_manifest(pathlib.Path(place), made_from, state, removed, cleaning)
            write_manifest(output, manifest)
            (output / BEAM).rmtree()
        except OSError as error:
            raise UserError(
                f"{output} could not be finished: {error}; correct that, and the same command resumes"
            ) from error
    return manifest, state.text_bytes


def _begin(directory: epath.Path, made_from: MadeFrom) -> None:
    """Make the directory of the pipeline, or check that the one there is of a pipeline for the same store."""
    file = directory / "made_from.json"
    if file.exists():
        remedy = f"delete {directory.parent} and start again"
        try:
            present = from_dict(MadeFrom, unsealed(read_object(file, remedy)), complete=True)
        except UserError as error:
            raise UserError(f"{file} is damaged: {error}; {remedy}") from error
        refuse_difference(f"{directory.parent} holds an unfinished token store", present, made_from)
        print(f"{directory.parent}: resuming; blocks that have been encoded are kept")
    else:
        directory.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(sealed(to_dict(made_from))).encode())
    for failure in directory.glob(FAILURES):
        failure.unlink()


def _run(work: Work, request: Request, pipeline: apache_beam.Pipeline) -> None:
    """Run the pipeline to its end.

    Raises:
      UserError: it failed: of bad input, and then nothing is left behind, or of something else.
    """
    try:
        with quiet(), pipeline:
            _add_steps(pipeline, work, request.sources)
    except Exception as error:
        failures = sorted(epath.Path(work.directory).glob(FAILURES))
        last = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        message = (
            failures[0].read_text()
            if failures
            else f"{work.output} could not be finished: the pipeline failed ({last:.300}); correct that, and the same "
            "command resumes"
        )
        if failures or not (work.blocks.exists() or work.records.exists()):
            _clear(request.output)
        raise UserError(message) from error


def _add_steps(pipeline: apache_beam.Pipeline, work: Work, sources: list[Source]) -> None:
    names = tuple(source.name for source in sources)
    blocks = (
        pipeline
        | "Sources" >> apache_beam.Create(list(enumerate(sources)))
        | "ShareSources" >> apache_beam.Reshuffle()
        | "Cut" >> apache_beam.ParDo(CutSources(work))
        | "ShareBlocks" >> apache_beam.Reshuffle()
    )
    _ = (
        blocks
        | "Encode" >> apache_beam.ParDo(EncodeBlocks(work), *_duplicates(blocks, work))
        | "KeySizes" >> apache_beam.WithKeys(None)  # one key for all: a size is some dozens of bytes
        | "GatherSizes" >> apache_beam.GroupByKey()
        | "Plan" >> apache_beam.ParDo(PlanShards(work))
        | "ShareShards" >> apache_beam.Reshuffle()
        | "Write" >> apache_beam.ParDo(WriteShards(work, names))
        | "KeyShards" >> apache_beam.WithKeys(None)
        | "GatherShards" >> apache_beam.GroupByKey()
        | "Record" >> apache_beam.ParDo(RecordShards(work))
    )


def _duplicates(blocks: PCollection[Any], work: Work) -> list[AsSingleton]:
    """Return the steps that have to end before a block is encoded, if duplicates are to go."""
    if work.options.clean.deduplicate == "keep":
        return []
    found: Any = (
        blocks
        | "RecordBlocks" >> apache_beam.ParDo(RecordBlocks(work))
        | "KeyPlaces" >> apache_beam.WithKeys(None)
        | "GatherPlaces" >> apache_beam.GroupByKey()
        | "Search" >> apache_beam.ParDo(FindDuplicates(work))
    )
    return [AsSingleton(found, default_value="")]  # there is none if no source has a block


def _result(directory: epath.Path) -> tuple[WriterState, tuple[Removed, ...], tuple[StepRecord, ...]]:
    """Return the state of all shards together, what was left out of the sources, and what the cleaning did."""
    file = directory / RESULT
    if not file.exists():  # no source has a block
        return WriterState(), (), ()
    values = unsealed(read_object(file, "start again"))
    shards = [from_dict(WrittenShard, shard, complete=True) for shard in values["shards"]]
    removed: collections.Counter[tuple[str, str]] = collections.Counter()
    for shard in shards:
        removed.update({(entry.source, entry.what): entry.number for entry in shard.removed})
    states = [shard.state for shard in shards]
    state = WriterState(
        shards=tuple(each for state in states for each in state.shards),
        hashes=tuple(each for state in states for each in state.hashes),
        text_bytes=sum(state.text_bytes for state in states),
        unknown_tokens=sum(state.unknown_tokens for state in states),
        cut_sentences=sum(state.cut_sentences for state in states),
        replaced_characters=sum(state.replaced_characters for state in states),
    )
    return state, removals(removed), merged(each for shard in shards for each in shard.cleaning)


def _clear(output: epath.Path) -> None:
    """Remove what this module and the pipeline wrote; `owned` removes a directory of this machine if it made it."""
    for path in output.iterdir():
        if path.name in (BEAM, "tokenizer"):
            path.rmtree()
        elif path.name.startswith("shard-"):
            path.unlink()
