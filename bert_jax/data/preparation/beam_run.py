"""The store made by a pipeline of Apache Beam: the pipeline, how a run of it begins, ends and fails.

The pipeline works in the directory `beam` of the output. A pipeline that was killed leaves the blocks that it has
encoded there, and the next one does not encode them again. The directory goes when the manifest has been written.
"""

import collections
import json
import os
import pathlib
import tempfile
from typing import Any

import apache_beam
from apache_beam.pvalue import AsSingleton, PCollection
from etils import epath

from bert_jax.config.json_form import from_dict, to_dict
from bert_jax.data.cleaning.step_record import StepRecord, merged
from bert_jax.data.corpus.text_blocks import Source
from bert_jax.data.preparation import beam_steps
from bert_jax.data.preparation.beam_duplicates import FindDuplicates, RecordBlocks
from bert_jax.data.preparation.beam_pipeline import quiet
from bert_jax.data.preparation.beam_steps import WrittenShard
from bert_jax.data.preparation.beam_work import FAILURES, Work
from bert_jax.data.preparation.progress import BEAM, PROGRESS, MadeFrom, owned, refuse_difference
from bert_jax.data.preparation.publication import make_manifest, working_directory, write_manifest
from bert_jax.data.preparation.request import Request, no_text
from bert_jax.data.preparation.writer import WriterState
from bert_jax.data.store.manifest import Manifest, Removed, dtype_for, removals
from bert_jax.errors import UserError
from bert_jax.files import read_object, sealed, unsealed, write_atomically


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
            _copy_files(tokenizer, output / "tokenizer")
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
        | "Cut" >> apache_beam.ParDo(beam_steps.CutSources(work))
        | "ShareBlocks" >> apache_beam.Reshuffle()
    )
    _ = (
        blocks
        | "Encode" >> apache_beam.ParDo(beam_steps.EncodeBlocks(work), *_duplicates(blocks, work))
        | "KeySizes" >> apache_beam.WithKeys(None)  # one key for all: a size is some dozens of bytes
        | "GatherSizes" >> apache_beam.GroupByKey()
        | "Plan" >> apache_beam.ParDo(beam_steps.PlanShards(work))
        | "ShareShards" >> apache_beam.Reshuffle()
        | "Write" >> apache_beam.ParDo(beam_steps.WriteShards(work, names))
        | "KeyShards" >> apache_beam.WithKeys(None)
        | "GatherShards" >> apache_beam.GroupByKey()
        | "Record" >> apache_beam.ParDo(beam_steps.RecordShards(work))
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
    file = directory / beam_steps.RESULT
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


def _copy_files(directory: pathlib.Path, target: epath.Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for path in directory.iterdir():
        (target / path.name).write_bytes(path.read_bytes())


def _clear(output: epath.Path) -> None:
    """Remove what this module and the pipeline wrote; `owned` removes a directory of this machine if it made it."""
    for path in output.iterdir():
        if path.name in (BEAM, "tokenizer"):
            path.rmtree()
        elif path.name.startswith("shard-"):
            path.unlink()
