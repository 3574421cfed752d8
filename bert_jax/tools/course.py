"""The course of a run: which examples each of its steps read or will read, from its files alone.

A checkpoint records the configuration of the start that saved it and the place in the data. Between two of them the
steps follow from the later one's configuration: phases, batches that grow, and the spans that rollbacks have skipped.
Behind the newest they follow from config.json. So a step is an interval of positions, and a position is a step, of
which a rollback may have skipped it.
"""

import bisect
import dataclasses
import functools
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from etils import epath

from bert_jax.branches import Origin, recorded_origin
from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.record import Damaged, Position, Span, check_origin, read_record
from bert_jax.checkpoints.workdir import read_json
from bert_jax.config import Config, Phase, resolve_stages
from bert_jax.config.checks import training_paths
from bert_jax.config.options import from_record, options_recorded
from bert_jax.data.manifest import read_manifest
from bert_jax.data.mixtures import Corpus, recorded_stores
from bert_jax.data.reads import Passage, is_held_out, reads_of
from bert_jax.data.store import Store
from bert_jax.errors import UserError
from bert_jax.files import is_remote
from bert_jax.training.events import EVENTS_FILE, read_events
from bert_jax.training.metrics import read_rows
from bert_jax.training_data import open_corpus, read_config


@dataclasses.dataclass(frozen=True)
class Stretch:
    """Steps that read consecutive examples of a phase."""

    config: Config
    """Of the start that took them."""
    stage: Phase
    """The phase, with the batch size of these steps."""
    begin: int
    """The step before the first of them."""
    end: int
    """The last of them."""
    seen: int
    """Position of the first example that the first of them reads."""

    def positions(self, step: int) -> np.ndarray:
        """Return the positions (int64 [B]) of the examples of a step, in the order of the rows of its batch."""
        size = self.stage.batch_size
        return self.seen + (step - self.begin - 1) * size + np.arange(size)

    def steps_and_rows(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the step that reads each position (int64 [N]), and the row in its batch, from 0."""
        steps, rows = np.divmod(positions - self.seen, self.stage.batch_size)
        return self.begin + 1 + steps, rows

    @property
    def seen_after(self) -> int:
        """The first position behind these steps."""
        return self.seen + (self.end - self.begin) * self.stage.batch_size


@dataclasses.dataclass(frozen=True)
class Saved:
    """A checkpoint, without its arrays."""

    step: int
    position: Position
    config: Config


@dataclasses.dataclass(frozen=True)
class Course:
    """The steps of the run in work directory `path`."""

    path: epath.Path
    run: dict[str, Any]
    """Contents of run.json."""
    config: Config
    """Contents of config.json."""
    saved: tuple[Saved, ...]
    """The checkpoints whose record is whole, in ascending order."""
    stretches: tuple[Stretch, ...]
    """All steps, those to come included, in their order; without the ones between two checkpoints that no known
    configuration explains."""
    last: int
    """The newest step with a row or a checkpoint."""
    parent: Saved | None
    """The checkpoint of another run that this one has branched off from; None if it has not, or that is gone."""

    @property
    def origin(self) -> int:
        """The step of another run that this one has branched off from; 0 if it has not."""
        return self.branched_from.step if self.branched_from else 0

    @functools.cached_property
    def branched_from(self) -> Origin | None:
        """That step and the other run; None if it has not branched off."""
        return recorded_origin(self.run)

    def at(self, step: int) -> Stretch:
        """Return the stretch of a step, counted from 1.

        Raises:
          UserError: there is no such step, or nobody knows any more what it read.
        """
        if not 1 <= step <= (end := max(self.last, self.config.total_steps)):
            raise UserError(f"step={step}: {self.path} has the steps {self.origin + 1:,} to {end:,}")
        if self.branched_from and step <= self.origin:
            raise UserError(
                f"step={step}: {self.path} has branched off from step {self.origin:,} of {self.branched_from.path}; "
                "ask that run"
            )
        found = bisect.bisect_left([stretch.end for stretch in self.stretches], step)
        if found == len(self.stretches) or step <= self.stretches[found].begin:
            raise UserError(
                f"step={step}: nobody can tell what this step of {self.path} read, because {self._gap(step)}"
            )
        return self.stretches[found]

    def _gap(self, step: int) -> str:
        """Return why it is not known what a step read, for people."""
        if (origin := self.branched_from) and self.parent is None and step <= self.saved[0].step:
            return (
                f"it has branched off from step {origin.step:,} of {origin.path}, whose checkpoint is gone; give one "
                f"behind its own first checkpoint, of step {self.saved[0].step:,}"
            )
        return "the checkpoint at which the batch size changed is gone; give one behind the next checkpoint"


def read_course(path: str | os.PathLike[str]) -> Course:
    """Read which examples the steps of the run in work directory `path` take.

    Raises:
      UserError: it is no work directory of pre-training, or a file is damaged.
    """
    config, place = read_config(path), epath.Path(path).expanduser()
    run = read_json(place / "run.json")
    if "source" in run:
        raise UserError(f"{path} holds a model that convert, average or model.save wrote, without the steps of a run")
    saved = tuple(_saved(place, run.get("run_id")))
    stretches, before, parent = [], Saved(0, Position(), config), None
    if (origin := recorded_origin(run)) is not None:
        parent = _read(origin.steps.path(origin.step), origin.run_id)
        before = parent or Saved(origin.step, Position(phase=-1), config)  # of which no sum is right
    for each in saved:
        stretches += _between(before, each, _starts(place, before.step, each.step))
        before = each
    if origin is not None and before.position.phase < 0:
        raise UserError(
            f"{path} has branched off from step {before.step:,} of {origin.path}, whose checkpoint is gone, and "
            "has none of its own yet, which would say what it reads"
        )
    position = dataclasses.replace(before.position, skipped=_skipped(place, before.position.skipped))
    stretches += _steps(config, before.step, position, config.total_steps)
    rows = [row["step"] for row in read_rows(place / "metrics.jsonl") if row["kind"] == "train"]
    return Course(place, run, config, saved, tuple(stretches), max([0, before.step, *rows]), parent)


def _saved(place: epath.Path, run_id: str | None) -> Iterator[Saved]:
    directories = Checkpoints(place / "checkpoints", read_only=True, run_id=run_id).directories()
    yield from filter(None, (_read(directory, run_id) for directory in directories))


def _read(directory: epath.Path, run_id: str | None) -> Saved | None:
    """Return the checkpoint in the directory of a step; None if it is damaged or not there."""
    try:
        content = read_record(directory / "record")
        check_origin(content, int(directory.name.removeprefix("step_")), run_id)
        config = from_record(Config, options_recorded(content["config"]), f"{directory}/record")
        return Saved(content["step"], Position.from_dict(content["position"]), config)
    except (Damaged, OSError, ValueError, KeyError, TypeError):
        return None


def _between(first: Saved, last: Saved, starts: Sequence[int]) -> list[Stretch]:
    """Return the steps between two checkpoints; [] if they cannot be known.

    The later start may have changed the batch. Then the steps up to it are those of the earlier configuration, and
    there is one start for which the sum is that of the later checkpoint.
    """
    position = dataclasses.replace(first.position, skipped=last.position.skipped)
    for change in (first.step, *starts):
        before = _steps(first.config, first.step, position, change)
        there = Position(before[-1].stage.index, before[-1].seen_after, position.skipped) if before else position
        found = [*before, *_steps(last.config, change, there, last.step)]
        reached = last.position.phase, last.position.examples_seen
        if found and (found[-1].stage.index, found[-1].seen_after) == reached:
            return found
    return []


def _steps(config: Config, step: int, position: Position, end: int) -> list[Stretch]:
    """Return the steps from `step`, after which the run is at `position`, to `end`, by one configuration."""
    found = []
    for stage in resolve_stages(config):
        while step < min(stage.end, end):
            seen, steps = position.seen_in(stage.index), min(stage.end, end) - step
            for span in position.skipped:  # which begins between two steps
                if span.phase == stage.index and span.begin > seen:
                    steps = min(steps, max(1, (span.begin - seen) // stage.batch_size))
            found.append(Stretch(config, stage, step, step + steps, seen))
            step += steps
            position = Position(stage.index, found[-1].seen_after, position.skipped)
    return found


def _starts(place: epath.Path, after: int, before: int) -> list[int]:
    """Return the steps between two others from which a start has gone on."""
    events = [row["step"] for row in read_events(place / EVENTS_FILE) if row["event"] == "start"]
    return sorted({step for step in events if after < step < before})


def _skipped(place: epath.Path, known: tuple[Span, ...]) -> tuple[Span, ...]:
    """Return the spans that are skipped behind the newest checkpoint: `known` ones, and those of rollbacks to it."""
    found: list[Span] = []
    for row in read_events(place / EVENTS_FILE):
        if row["event"] in ("start", "saved"):  # a start that meets the same trouble goes back again
            found = []
        span = row.get("span")
        if row["event"] == "rollback" and isinstance(span, list) and [*map(type, span)] == [int] * 3:
            found.append(Span(*span))
    return tuple(dict.fromkeys((*known, *found)))


def at_places(course: Course, config: Config, places: Sequence[str]) -> Config:
    """Return `config` with the stores where they are now, and in the directory of the run.

    That is where the last start had them, or `places`, to which they have been moved or copied since. Which of the
    stores each of these is, their fingerprints tell.

    Raises:
      UserError: a place has no store, or not one of the run.
    """
    paths, moved, data = training_paths(course.config), {}, course.config.data
    known = recorded_stores(course.run)
    for place in places:
        fingerprint = read_manifest(epath.Path(place).expanduser()).fingerprint
        if fingerprint not in known:
            raise UserError(
                f"{place} is not the store that {course.path} was trained on: its fingerprint is {fingerprint:.12}…, "
                f"that of the run's {' or '.join(f'{each!s:.12}…' for each in known)}"
            )
        moved |= {path: place for path, each in zip(paths, known, strict=False) if each == fingerprint}
    for path in paths:
        there = moved.get(path, path)
        if not is_remote(there) and not (epath.Path(there).expanduser() / "manifest.json").exists():
            raise UserError(
                f"the token store {there} of {course.path} is not there; give its new place with --stores=STORE"
            )
    mixtures = [_renamed(phase.mixture, moved) for phase in course.config.phases]
    phases = tuple(
        dataclasses.replace(phase, mixture=text) for phase, text in zip(config.phases, mixtures, strict=True)
    )
    data = dataclasses.replace(
        data,
        path=moved.get(data.path, data.path),
        mixture=_renamed(data.mixture, moved),
        # Training reads the same examples if nothing is to be evaluated.
        held_out=0.0 if data.eval_path else data.held_out,
        eval_path="",
        loader="plain",
    )
    return dataclasses.replace(config, data=data, phases=phases, workdir=os.fspath(course.path))


def _renamed(mixture: str, moved: dict[str, str]) -> str:
    """Return a mixture with stores at their new places."""
    items = [item.strip().rpartition("=") if "=" in item else (item.strip(), "", "") for item in mixture.split(",")]
    return ",".join(f"{moved.get(path, path)}{equals}{amount}" for path, equals, amount in items)


@dataclasses.dataclass(frozen=True)
class PassageSteps:
    """The steps of a run that read, or will read, a document or a passage of it."""

    passage: Passage
    held_out: bool
    """Whether training never reads it, because the run is evaluated on it."""
    steps: tuple[dict[str, int], ...]
    """For each row in which it is read, in the order of the steps: step (from 1), row (of the batch, from 0), phase,
    epoch (of the store, from 0), first_place and last_place (in the row), first_token and last_token (in the document),
    tokens (of the passage in the row). Places are those before spelling errors."""


def trace(
    course: Course, store: Store, place: str, passages: Sequence[Passage], stores: Sequence[str]
) -> tuple[PassageSteps, ...]:
    """Return the steps of each of `passages` of `store`, which is at `place`.

    Args:
      course: of the run.
      store: one that it was trained on, or a copy.
      place: of the store.
      passages: documents, or parts of them.
      stores: places of the other stores of a mixture that have been moved.

    Raises:
      UserError: the run did not read the store, or its other stores are not there.
    """
    corpus = open_corpus(at_places(course, course.config, (place, *stores)))
    return tuple(_traced(course, corpus, store, passage) for passage in passages)


def _traced(course: Course, corpus: Corpus, store: Store, passage: Passage) -> PassageSteps:
    share = course.config.data.held_out if corpus.held_out else 0.0
    found = []
    for stretch in course.stretches:
        examples = corpus.training[stretch.stage.index]
        reads = reads_of(examples, store, passage, stretch.seen, stretch.seen_after)
        steps, rows = stretch.steps_and_rows(reads.positions)
        columns = {
            "step": steps,
            "row": rows,
            "phase": np.full(len(reads), stretch.stage.index),
            "epoch": reads.epochs,
            "first_place": reads.first_places,
            "last_place": reads.last_places,
            "first_token": reads.first_tokens,
            "last_token": reads.last_tokens,
            "tokens": reads.num_tokens,
        }
        lists = [column.tolist() for column in columns.values()]
        found += [dict(zip(columns, values, strict=True)) for values in zip(*lists, strict=True)]
    return PassageSteps(passage, is_held_out(store, passage.document, share), tuple(found))
