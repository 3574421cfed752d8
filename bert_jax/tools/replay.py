"""`replay`: take steps of a run again from its checkpoint, and compare what they give with what was logged.

The batch of a step follows from the store and one integer, its position, and a step is deterministic. So the same
devices give the same bits; on others the sums are rounded differently, which is said. The directory of the run is only
read.
"""

import contextlib
import dataclasses
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import optax
from jax.sharding import Mesh

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.record import Damaged
from bert_jax.config import Config, MeshConfig
from bert_jax.config.objective import MaskedWords
from bert_jax.config.pretraining import ProfileConfig, SinksConfig
from bert_jax.data.examples import Batch
from bert_jax.data.pipeline import batches
from bert_jax.data.reads import ReadDocuments, documents_at
from bert_jax.devices import sharding
from bert_jax.devices.compilation import use_compilation_cache
from bert_jax.devices.hardware import memory_advice
from bert_jax.devices.hosts import versions
from bert_jax.devices.sharding import narrowed
from bert_jax.errors import UserError
from bert_jax.pretrained.teacher import teacher_is_there
from bert_jax.pretraining import MakeObjective, Problem, default_objective, described, first_state, state_at_begin
from bert_jax.progress import progress_bar
from bert_jax.tokenization.tokenizer import Tokenizer
from bert_jax.tools.course import Course, Stretch, at_places, read_course
from bert_jax.training.events import EVENTS_FILE, read_events
from bert_jax.training.learner import phase_advice
from bert_jax.training.metrics import read_rows
from bert_jax.training.optimizers import Schedule
from bert_jax.training.run import PhaseSteps
from bert_jax.training.state import TrainState
from bert_jax.training.step import COUNTS
from bert_jax.training_data import open_corpus


@dataclasses.dataclass(frozen=True)
class ReplayedStep:
    """A step that was taken again."""

    step: int
    """Its number, counted from 1."""
    phase: int
    """Number of its phase, counted from 0."""
    positions: tuple[int, int]
    """Position of the first example of its batch, and the one behind the last."""
    documents: list[ReadDocuments]
    """The documents in each row of the batch."""
    logged: dict[str, float] | None
    """Figures of its row in metrics.jsonl; None if it has none, as steps between two rows."""
    replayed: dict[str, float]
    """The same figures, computed again."""

    @property
    def differences(self) -> dict[str, float]:
        """By how much each figure differs, of those that differ in a bit; {} also where nothing was logged."""
        pairs = {name: (value, self.replayed[name]) for name, value in (self.logged or {}).items()}
        differ = {name: (old, new) for name, (old, new) in pairs.items() if not _same(old, new)}
        return {name: new - old for name, (old, new) in differ.items()}


def _same(first: float, second: float) -> bool:
    return first == second or math.isnan(first) and math.isnan(second)


@dataclasses.dataclass(frozen=True)
class Replay:
    """What `replay` found."""

    path: str
    """Work directory of the run."""
    begin: int
    """Step of the checkpoint that the steps were taken from; 0 for the first parameters."""
    steps: tuple[ReplayedStep, ...]
    """The steps that were asked for."""
    obstacles: tuple[str, ...]
    """Why the bits need not be the same; () if nothing is known that could change one."""

    @property
    def compared(self) -> int:
        """Number of steps that have a row."""
        return sum(step.logged is not None for step in self.steps)

    @property
    def equal(self) -> int:
        """Number of steps of which every logged figure is the same to the last bit."""
        return sum(step.logged is not None and not step.differences for step in self.steps)

    def to_dict(self) -> dict[str, Any]:
        """Return the same as values of JSON."""
        steps = [dataclasses.asdict(step) | {"differences": step.differences} for step in self.steps]
        return {**dataclasses.asdict(self), "steps": steps, "compared": self.compared, "equal": self.equal}


MOST_STEPS = 1_000
"""Steps that are compared at a time; what is kept of each takes memory."""


def replay(
    workdir: str | os.PathLike[str],
    step: int | str,
    *,
    stores: Sequence[str] = (),
    teacher: str = "",
    from_start: bool = False,
    devices: sharding.Devices = None,
    objective: MakeObjective = default_objective,
    optimizer: optax.GradientTransformation | None = None,
    schedule: Schedule | None = None,
) -> Replay:
    """Take steps of a run of pre-training again, and compare loss, gradient norm and all else with what was logged.

    Args:
      workdir: directory of the run, which is not changed.
      step: number of the step, or "FROM:TO" for all from one to another.
      stores: new places of stores that have been moved.
      teacher: new place of the teacher that the run learned from.
      from_start: whether steps before the first checkpoint that is left are taken from the first parameters on.
      devices: to compute on; by default all of this machine, or as many of them as the run had.
      objective: as `pretrain` was given, and so `optimizer` and `schedule`.

    Returns:
      Each step with its batch, what was logged and what was computed.

    Raises:
      UserError: the run has not taken such a step, nothing to begin from is left, or what the run read is not there.
    """
    use_compilation_cache()
    course = read_course(workdir)
    first, last = wanted_steps(step, course)
    if last - first >= MOST_STEPS:
        raise UserError(
            f"step={step} are {last - first + 1:,} steps; at most {MOST_STEPS:,} at a time, "
            f"as with --step={first}:{first + MOST_STEPS - 1}"
        )
    starts = _starts_of(course, first, last)
    mesh, forced = _mesh(course, starts, devices)
    taken = _Steps(
        course, mesh, stores, teacher, lambda config: described(config, mesh, objective, optimizer, schedule)
    )
    state = taken.state(_begin(course, first, from_start))
    begin = int(state.step)
    rows = {row["step"]: row for row in read_rows(course.path / "metrics.jsonl") if row["kind"] == "train"}
    replayed = [
        _compared(stretch, number, taken.problem(stretch.config), values, rows.get(number))
        for stretch, number, values in taken.after(state, first, last)
    ]
    return Replay(os.fspath(workdir), begin, tuple(replayed), tuple(dict.fromkeys((*forced, *_changed(starts)))))


def batches_of_steps(
    workdir: str | os.PathLike[str], steps: Sequence[int], stores: Sequence[str] = ()
) -> Iterator[tuple[Batch, Tokenizer]]:
    """Yield the batch of each of these steps of a run, as it was read, and the tokenizer of its text.

    Raises:
      UserError: as `replay`.
    """
    course = read_course(workdir)
    corpus = open_corpus(at_places(course, course.config, stores))
    tokenizer = corpus.store.tokenizer()
    for step in steps:
        stretch = course.at(step)
        yield corpus.training[stretch.stage.index].batch(stretch.positions(step)), tokenizer


def wanted_steps(step: int | str, course: Course) -> tuple[int, int]:
    """Return the first and the last of the steps that are asked for.

    Raises:
      UserError: `step` is neither N nor FROM:TO, or the run has not taken them.
    """
    match = re.fullmatch(r"([0-9]{1,18})(?::([0-9]{1,18}))?", str(step))
    if match is None or not 1 <= int(match[1]) <= int(match[2] or match[1]):
        raise UserError(f"step={step} must be a step such as 120, or FROM:TO such as 101:120, counted from 1")
    first, last = int(match[1]), int(match[2] or match[1])
    if last > course.last:
        raise UserError(f"step={step}: {course.path} has taken {course.last:,} steps so far")
    for number in (first, last):
        course.at(number)
    return first, last


def _begin(course: Course, first: int, from_start: bool) -> list[int]:
    """Return the checkpoints to begin from, the nearest first, and at last 0 if that is wanted.

    That of the parent is the first of a branch.
    """
    before = [saved.step for saved in course.saved if saved.step < first][::-1]
    if (origin := course.branched_from) is not None:
        before += [origin.step] * (course.parent is not None and origin.step not in before)
        from_start = False  # its first parameters are those of another run
    if not before and not from_start and first > 1:
        kept = ", ".join(f"{saved.step:,}" for saved in course.saved) or "none"
        raise UserError(
            f"step={first}: {course.path} has no checkpoint of an earlier step (it has {kept}); "
            f"--from_start begins with the first parameters and takes {first - 1:,} more steps"
        )
    return [*before, *([0] if from_start or first == 1 else [])]


class _Steps:
    """The steps of a run, taken again: `describe` returns what options describe, on `mesh`."""

    def __init__(
        self, course: Course, mesh: Mesh, stores: Sequence[str], teacher: str, describe: Callable[[Config], Problem]
    ):
        self._course, self._mesh, self._stores, self._teacher, self._describe = course, mesh, stores, teacher, describe
        self._problems: dict[Config, tuple[Problem, PhaseSteps]] = {}

    def problem(self, config: Config) -> Problem:
        """Return what one configuration of the run describes."""
        return self._made(config)[0]

    def _made(self, config: Config) -> tuple[Problem, PhaseSteps]:
        if config not in self._problems:
            problem = self._opened(config)
            self._problems[config] = problem, PhaseSteps(problem.learner)
        return self._problems[config]

    def _opened(self, config: Config, begins: bool = False) -> Problem:
        """Return what a configuration describes for a run that goes on or, with the model it starts from, begins."""
        given = at_places(self._course, config, self._stores)
        given = dataclasses.replace(
            given,
            mesh=_as_options(self._mesh),
            sinks=SinksConfig(),
            profile=ProfileConfig(),
            init_from="",
            branch_from="",
        )
        if begins:  # as in a directory that is not there, and is not made
            given = dataclasses.replace(given, init_from=config.init_from, workdir=f"{given.workdir}/replayed")
        given = _with_teacher(self._course, given, self._teacher)
        problem = self._describe(given)
        identity, run = problem.corpus.identity, self._course.run
        if run.get("store_fingerprint") != identity["store_fingerprint"]:
            raise UserError(
                f"the stores are not those that {self._course.path} was trained on (fingerprint "
                f"{identity['store_fingerprint']:.12}…, that of the run {run.get('store_fingerprint')!s:.12}…); give "
                "the right ones with --stores=STORE"
            )
        _check_names(self._course, problem)
        return problem

    def after(self, state: TrainState, first: int, last: int) -> Iterator[tuple[Stretch, int, dict[str, float]]]:
        """Yield the steps from `first` to `last` with their figures."""
        with progress_bar("steps", last - int(state.step)) as advance_to:
            yield from self._taken(state, first, last, advance_to)

    def _taken(
        self, state: TrainState, first: int, last: int, advance_to: Callable[[int], None]
    ) -> Iterator[tuple[Stretch, int, dict[str, float]]]:
        step = begin = int(state.step)
        while step < last:
            stretch = self._course.at(step + 1)
            problem, steps = self._made(stretch.config)
            learner, stage = problem.learner, stretch.stage
            with (
                memory_advice(f"phase {stage.index}", phase_advice(stage, self._mesh.shape, learner.remat(stage))),
                contextlib.closing(self._batches(problem, stretch, step, last)) as stream,
            ):
                if step == stage.begin:
                    state = state_at_begin(learner, stage, state)
                for batch in stream:
                    state, values = steps.of(stage)(state, batch)
                    step += 1
                    advance_to(step - begin)
                    if step >= first:
                        values = jax.device_get(values)
                        yield stretch, step, {name: float(values[name]) for name in values if name not in COUNTS}

    def _batches(self, problem: Problem, stretch: Stretch, step: int, last: int) -> Any:
        size, learner, mesh = stretch.stage.batch_size, problem.learner, self._mesh
        bound = learner.value_bound(stretch.stage)
        return batches(
            problem.corpus.training[stretch.stage.index],
            int(stretch.positions(step + 1)[0]),
            size,
            sharding.host_rows(mesh, size),
            min(stretch.end, last) - step,
            place=lambda rows: sharding.to_global(mesh, narrowed(rows, bound), size),
        )

    def state(self, candidates: Sequence[int]) -> TrainState:
        """Return the state of the first of these steps that can be read."""
        course = self._course
        abstract = self.problem(course.at(candidates[0] + 1).config).learner.abstract
        checkpoints = Checkpoints(course.path / "checkpoints", read_only=True, run_id=course.run.get("run_id"))
        own, problems = {saved.step for saved in course.saved}, []
        for step in candidates:
            if not step:
                return first_state(self._opened(course.at(1).config, begins=True), lambda make: make())[0]
            place = checkpoints if step in own or course.branched_from is None else course.branched_from.steps
            try:
                return place.read(step, abstract).state
            except Damaged as damage:
                problems.append(f"step {step}: {damage}")
        raise UserError(
            f"no checkpoint of {course.path} that is early enough can be read ({problems[0]}); "
            "give a later --step, or --from_start"
        )


def _as_options(mesh: Mesh) -> MeshConfig:
    return MeshConfig(**{axis: int(size) for axis, size in mesh.shape.items()})


def _with_teacher(course: Course, config: Config, place: str) -> Config:
    """Return the options with the teacher at its new place, if it has one."""
    objective, taught = config.objective, course.config.objective.taught  # where the last start had it
    if taught is None or not isinstance(objective, MaskedWords):
        if place:
            raise UserError(f"teacher={place}, but {course.path} learned from no teacher; leave it out")
        return config
    place = place or taught.teacher
    if not teacher_is_there(place):
        raise UserError(f"the teacher {place} of {course.path} is not there; give its new place with --teacher=MODEL")
    distillation = dataclasses.replace(taught, teacher=place)
    return dataclasses.replace(config, objective=dataclasses.replace(objective, distillation=distillation))


def _check_names(course: Course, problem: Problem) -> None:
    """Raise a UserError if the run had another teacher, or an objective, optimizer or schedule from Python."""
    names = problem.learner.own_names
    for name in ("objective", "architecture", "optimizer", "schedule", "teacher"):
        before, now = course.run.get(name), names.get(name)
        if before == now:
            continue
        if name == "teacher":
            raise UserError(
                f"{course.path} learned from the teacher {before!s:.12}…, and this one is {now!s:.12}…; give that of "
                "the run with --teacher=MODEL"
            )
        argument = "objective" if name == "architecture" else name
        raise UserError(
            f"{course.path} was trained with the {name} {before or 'of the options'}, and this replay has "
            f"{now or 'that of the options'}; in Python, give bert_jax.replay the {argument} that pretrain was given"
        )


def _compared(
    stretch: Stretch, step: int, problem: Problem, values: dict[str, float], row: dict[str, Any] | None
) -> ReplayedStep:
    positions = stretch.positions(step)
    logged = None if row is None else {name: float(row[name]) for name in values if name in row}
    return ReplayedStep(
        step,
        stretch.stage.index,
        (int(positions[0]), int(positions[-1]) + 1),
        documents_at(problem.corpus.training[stretch.stage.index], positions),
        logged,
        values,
    )


def _starts_of(course: Course, first: int, last: int) -> list[dict[str, Any]]:
    """Return the events of the starts that took these steps."""
    starts = [row for row in read_events(course.path / EVENTS_FILE) if row["event"] == "start"]
    found, behind = [], last + 1
    for row in reversed(starts):  # a step was taken by the last start that began before it
        if row["step"] < min(behind, last + 1):
            if row["step"] + 1 < behind:
                found.append(row)
            behind = min(behind, row["step"] + 1)
        if behind <= first:
            break
    return found


def _mesh(course: Course, starts: list[dict[str, Any]], devices: sharding.Devices) -> tuple[Mesh, list[str]]:
    """Return the mesh to replay on, that of the run where there are as many devices, and why it is another."""
    here = list(jax.devices() if devices is None else devices)
    counts = {row["devices"] for row in starts if isinstance(row.get("devices"), int)} or {len(here)}
    options, needed = course.at(max(1, course.last)).config.mesh, counts.pop()
    if not counts and needed <= len(here):
        return sharding.make_mesh(options, here[:needed]), []
    sizes = [stretch.stage.batch_size // stretch.stage.micro_batches for stretch in course.stretches]
    split = math.gcd(len(here), *sizes)
    found = sharding.make_mesh(MeshConfig(data=1, fsdp=split), here[:split])
    return found, [f"the run was on {needed} devices, and here are {len(here)}, of which {split} are used"]


def _changed(starts: list[dict[str, Any]]) -> Iterator[str]:
    """Yield what of the machine, that is part of a bit, is not as it was."""
    now = versions()
    kind = jax.devices()[0].device_kind
    for row in starts:
        if row.get("hosts", 1) != 1:
            yield f"the run was on {row['hosts']} hosts, and this is one"
        if row.get("device_kind", kind) != kind:
            yield f"the run was on {row['device_kind']!s:.40}, and this is {kind}"
        before = row.get("versions")
        for name, version in (before if isinstance(before, dict) else {}).items():
            if name in now and now[name] != version:
                yield f"the run had {name} {version!s:.40}, and here is {now[name]}"
