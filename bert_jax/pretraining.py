"""`pretrain`: a whole pre-training run in one function, readable from top to bottom, and what a phase does.

`training.run.train` takes the steps of a phase; between two of them the phase may evaluate and save. `make_learner`
takes a configuration apart, and `PRETRAINING` says with which settings a run may resume.
"""

import contextlib
import dataclasses
import functools
import importlib
import itertools
import math
import os
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, cast

import jax
import optax
from absl import logging
from etils import epath

from bert_jax.branches import Branch, check_branch, open_branch
from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.local_tier import LocalTier
from bert_jax.checkpoints.record import Position, check_fit
from bert_jax.checkpoints.steps import Restored
from bert_jax.checkpoints.workdir import (
    Rules,
    WorkDirectory,
    has_checkpoint,
    open_workdir,
    read_json,
    refused_changes,
    resumable,
    with_commits,
)
from bert_jax.config import CheckpointConfig, Config, Phase, config_of_phase, resolve_phases, resolve_stages
from bert_jax.config.checks import check, check_given, check_new
from bert_jax.config.objective import MaskedWords
from bert_jax.config.options import (
    differing_options,
    from_dict,
    is_elastic,
    lengthens,
    to_dict,
)
from bert_jax.config.pretraining import phase_notes, started_afresh, traced_steps
from bert_jax.data.examples import StoreExamples, batch_layout
from bert_jax.data.mixtures import Corpus, Mixture
from bert_jax.data.pipeline import batches
from bert_jax.devices import hardware, sharding
from bert_jax.devices.hardware import memory_advice
from bert_jax.devices.hosts import check_alike, ending_together, from_first
from bert_jax.devices.sharding import narrowed
from bert_jax.devices.signals import StopSignals, Watchdog
from bert_jax.errors import UserError, first_lines
from bert_jax.formats.model_types import remark
from bert_jax.formats.stored import StoredModel
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.bert_parameters import pretraining_parts
from bert_jax.models.kernels.choice import check_attention
from bert_jax.objectives.distillation import DistillationObjective, Teacher
from bert_jax.objectives.objective import Objective, ObjectiveFamily, records
from bert_jax.parameters import state_names
from bert_jax.pretrained.initialization import Report, initialize, open_source, source_fingerprint, table_rows
from bert_jax.pretrained.teacher import open_teacher
from bert_jax.training.evaluation import Evaluation, Samples, make_samples
from bert_jax.training.events import Events, HostTimes
from bert_jax.training.learner import Learner, check_own_names, phase_advice, qualified, state_advice
from bert_jax.training.metrics import Metrics, Rates, WallTime, read_rows
from bert_jax.training.optimizers import (
    Schedule,
    average_of,
    averaged,
    given_optimizer,
    given_schedule,
    learning_rate,
    restarted,
)
from bert_jax.training.optimizers import optimizer as make_optimizer
from bert_jax.training.reporter import Guard, Reporter, announce, busy, due, say, too_little
from bert_jax.training.run import (
    GuardedSteps,
    Input,
    Opened,
    PhaseSteps,
    Saver,
    Started,
    check_way_back,
    join_hosts,
    roll_back,
    train,
)
from bert_jax.training.state import Replicas, TrainState, abstract_state, create_state, reset_moments
from bert_jax.training.step import Program, peak_flops
from bert_jax.training.trackers import Profiler, trackers
from bert_jax.training_data import held_out_examples, open_corpus, read_config

MakeObjective = Callable[[BertForPreTraining, Config], Objective]
"""Makes what is trained for, or measured, from the model and the configuration."""


def default_objective(
    model: BertForPreTraining, config: Config, teacher: BertForPreTraining | None = None
) -> Objective:
    """Return the objective of `pretrain`, unless it is given a different one.

    `model` has the parts of BERT's pre-training; an objective that needs others replaces them. Without the `teacher` of
    objective.distillation, what is measured of a model that had one is the loss of its labels alone.
    """
    options, epsilon, pairs = config.objective, config.masking.loss_epsilon, config.data.sentence_pairs
    if teacher is not None:
        assert isinstance(options, MaskedWords), "others have no teacher"
        return DistillationObjective(model, teacher, options, epsilon, pairs)
    family = cast(ObjectiveFamily, importlib.import_module(f"bert_jax.objectives.{options.losses}"))
    return family.objective(model, options, epsilon, pairs)


@dataclasses.dataclass(frozen=True)
class Problem:
    """The parts of a configuration."""

    config: Config
    """The options, model.vocab_size included."""
    learner: Learner
    """Model, objective and optimizer on the mesh."""
    corpus: Corpus
    """The data to train on and to measure on."""
    source: StoredModel | None
    """The model that it starts from, if any."""
    branch: Branch | None
    """The step of another run that it continues from, if any."""

    @property
    def begin(self) -> int:
        """Step at which a run that has saved nothing begins."""
        return 0 if self.branch is None else self.branch.step

    def path_of_start(self, restored: bool) -> str:
        """Return the work directory whose step a run continues: its own, or that which it branches off from."""
        return self.config.workdir if restored or self.branch is None else self.branch.path

    @property
    def identity(self) -> dict[str, Any]:
        """What run.json says of the run, and a resumed one must have in common with it."""
        facts, run = self.corpus.identity | self.learner.own_names, epath.Path(self.config.workdir) / "run.json"
        if self.branch is not None:
            return facts | {"branched_from": dataclasses.asdict(self.branch.origin)}
        if self.config.branch_from and run.exists():  # it resumes, and its parent may be gone
            return facts | {"branched_from": read_json(run).get("branched_from")}
        return facts


@dataclasses.dataclass(frozen=True)
class Result:
    """What a call of `pretrain` did."""

    step: int
    """Last step of the run so far."""
    evaluation: dict[str, float]
    """Held-out metrics at `step`; empty if nothing is held out or this start made no evaluation there."""
    exit_code: int
    """0; 130 (SIGINT) or 143 (SIGTERM) if a signal ended the run, after the steps made so far were saved."""


@ending_together
def pretrain(
    config: Config,
    devices: sharding.Devices = None,
    objective: MakeObjective | None = None,
    optimizer: optax.GradientTransformation | None = None,
    schedule: Schedule | None = None,
) -> Result:
    """Train to the last step of the last phase, or until a signal; resume from what `config.workdir` holds.

    Args:
      config: every option of the run.
      devices: the devices of the mesh; by default every device of every process.
      objective: makes the training objective from the model and the configuration, whose vocabulary size is known by
        then; None for `default_objective`. A resumed run must be given the same one, of the same names (which can still
        be different formulas).
      optimizer: makes the direction of an update, without a learning rate, such as `optax.scale_by_lion()`; None for
        that of `config.optimizer`, of which clip_norm and ema_decay hold for any. A resumed run must be given the same.
      schedule: maps the step to the learning rate; None for that of `config.schedule` and the phases. A resumed run
        must be given the same.

    Returns:
      The last step, its held-out metrics and an exit code.

    Raises:
      UserError: the options, the data or the work directory cannot be used, and nothing has been changed; or a
        checkpoint could not be written or the loss is no longer finite, and the newest good checkpoint stays.
    """
    wall_time = WallTime()
    if objective is not None:  # it may not know of several texts in a row
        config = _unpacked(config)
    problem = _opened(config, devices, objective or default_objective, optimizer, schedule)
    options, learner, result = problem.config, problem.learner, Result(0, {}, 0)
    if (last := _complete(problem)) is not None:
        announce(learner, problem.corpus, None, options.workdir, last.step, Position.from_dict(last.position))
        return Result(last.step, {}, 0)
    with (
        Watchdog(options.faults.step_timeout_seconds) as watchdog,
        StopSignals(watchdog) as signals,
        contextlib.ExitStack() as closing,
    ):
        workdir = closing.enter_context(_open_directory(problem))
        events = closing.enter_context(Events(workdir.path, signals))
        watchdog.report = lambda seconds, place: events.write("hung", events.step, seconds=seconds, place=place)
        checkpoints = closing.enter_context(_open_checkpoints(options.checkpoint, workdir, learner.main, events))
        signals.newest = checkpoints.latest_step
        result = Result(checkpoints.latest_step() or problem.begin, {}, 0)
        steps = PhaseSteps(learner)
        say(COMPILES)
        steps.begin(result.step)
        state, position, report, restored = _start(problem, checkpoints, workdir, signals)
        result = Result(int(state.step), {}, 0)
        events.start(result.step, list(learner.mesh.devices.flat), resumed=restored, terms=records(learner.terms))
        path = problem.path_of_start(restored)
        announce(learner, problem.corpus, report and report.table(), path, result.step, position)
        # A signal during an evaluation saves the step without that evaluation.
        owed = restored and _lacks_evaluation(problem, result.step)
        if result.step >= options.total_steps and not owed:
            checkpoints.finish()
            return result
        started = Started(workdir=workdir, faults=options.faults, events=events, signals=signals, wall_time=wall_time)
        opened = _open_run(problem, started, checkpoints, result.step, closing)
        told: set[int] = set()
        while (owed or result.step < options.total_steps) and not result.exit_code:
            phase = _entered(problem, opened, result.step, owed, told)
            task = PhaseTask(problem, opened, phase, steps.of(phase), result.step, position, owed)
            state, position, result = _train_phase(task, opened, state)
            owed = False
        if result.step >= options.total_steps:
            checkpoints.finish()
    return dataclasses.replace(result, exit_code=signals.exit_code)


def _unpacked(config: Config) -> Config:
    """Return the options without packed rows, also in the phases, unless they are asked for."""
    data = lambda options: dataclasses.replace(options, packing="off") if options.packing == "auto" else options
    phases = tuple(dataclasses.replace(phase, data=data(phase.data)) for phase in config.phases)
    return dataclasses.replace(config, data=data(config.data), phases=phases)


def _entered(problem: Problem, opened: Opened, step: int, owed: bool, told: set[int]) -> Phase:
    """Return the part of a phase that trains after `step`; say and note which phase it is, unless it has been told."""
    last = step - owed  # of an evaluation that is owed, the step that it belongs to is over
    phase = next(each for each in problem.learner.stages if last < each.end)
    opened.signals.saving = None  # the previous phase has saved its last step
    opened.wall_time.switch("setup")
    if len(problem.config.phases) > 1 and phase.index not in told:
        told.add(phase.index)
        _tell_of_phase(problem.learner, opened.events, problem.config, phase.index, step)
    return phase


def _tell_of_phase(learner: Learner, events: Events, config: Config, index: int, step: int) -> None:
    """Say which phase trains from `step` on; note it, with its losses and what it changes, for readers of the run."""
    begin = resolve_phases(config)[index].begin
    notes = learner.notes[index] or (("the options of the run",) if index else ())
    if begin == step and notes:
        say(f"phase {index} begins after step {step:,}: {', '.join(notes)}")
    events.write(
        "phase",
        step,
        phase=index,
        begin=begin,
        objective=config_of_phase(config, index).objective.name,
        changes=config.phases[index].changes,
        afresh=list(started_afresh(config, index)),
        terms=records(learner.objectives[index].terms),
    )


def _train_phase(task: "PhaseTask", opened: Opened, state: TrainState) -> tuple[TrainState, Position, Result]:
    """Train from `state` to the end of the phase or until told to stop; or go back, if that must be.

    Returns:
      Where to continue, if there is anything left to do: in this phase after a rollback, otherwise in the next one.
    """
    phase, learner = task.phase, task.learner
    if task.begin == phase.begin:
        with memory_advice(*task.shortage()):
            state = state_at_begin(learner, phase, state)
    state, step, trouble = train(task, opened, state)
    if trouble is not None:
        rollbacks = task.config.faults.rollbacks
        check_way_back(opened, learner, phase, task.examples, trouble, state, task.position, rollbacks)
        del state
        state, position = roll_back(opened, learner.abstract, phase, trouble, task.position(trouble.last))
        return state, position, Result(int(state.step), {}, 0)
    if step > task.begin:
        task.draw()
    # A signal that arrives after the last check is left to the next phase, on every host; every step has been saved.
    return state, task.position(step), Result(step, task.evaluated, opened.signals.exit_code)


def state_at_begin(learner: Learner, phase: Phase, state: TrainState) -> TrainState:
    """Return what a phase begins with, of the state that the step before it has left."""
    return reset_moments(state, learner.optimizer) if phase.resets_moments else state


COMPILES = "compiling the step, which this machine does once for each size; the first step follows"
PICTURE_SECONDS = 60
"""Time between two pictures of a phase, at least: half a second goes into one."""


class PhaseTask:
    """A phase of pre-training, for `train`.

    Args:
      begin: step of the state that it resumes from.
      position: where the run is in its data after that step.
      evaluates_first: whether that step still has to be evaluated.
    """

    def __init__(
        self,
        problem: Problem,
        opened: Opened,
        phase: Phase,
        program: Program,
        begin: int,
        position: Position,
        evaluates_first: bool,
    ):
        config, learner, corpus = problem.config, problem.learner, problem.corpus
        mesh, events = learner.mesh, opened.events
        self.config, self.learner, self.phase, self.program, self.begin = config, learner, phase, program, begin
        self._opened, self._evaluates_first = opened, evaluates_first
        self.end: int = phase.end
        self.examples: StoreExamples | Mixture = corpus.training[phase.index]
        self.evaluated: dict[str, float] = {}
        """Held-out metrics of the newest step; {} if there is no evaluation after it."""
        self._seen, self._skipped = position.seen_in(phase.index), position.skipped
        self._evaluation = self._samples = self._unigram = None
        self._objective, self._main = learner.objectives[phase.index], learner.main[phase.index]
        if corpus.held_out:
            self._evaluation, self._samples = self._held_out(corpus)
            if unigram := self._evaluation.unigram(self.examples):
                self._unigram = unigram
                events.write("baseline", begin, **unigram)
        rates = Rates(peak_flops(mesh), wall_time=opened.wall_time)
        places_after = sum(each.steps * each.tokens_per_step for each in learner.stages if each.begin >= phase.end)
        self._guard = guard = Guard(config.faults, position.guard_of(phase.index))
        self.reporter: Reporter = Reporter(
            opened.metrics,
            rates,
            HostTimes(events),
            GuardedSteps(rates, guard, events, self._objective.model, phase, places_after, self._main),
            every=config.log_every_steps,
            total=config.total_steps,
            every_step=True,
        )
        self.replicas: Replicas = Replicas(learner.shardings, mesh, events)
        self._saver = Saver(
            opened,
            self.reporter,
            to_dict(config),
            lambda step: dataclasses.replace(self.position(step), guard=guard.memory()).to_dict(),
        )
        self._owes_save, self._drawn = False, time.monotonic()

    def _held_out(self, corpus: Corpus) -> tuple[Evaluation, Samples | None]:
        """Return what measures the held-out texts, and what shows some of them."""
        config, phase, learner, objective = self.config, self.phase, self.learner, self._objective
        shardings = learner.shardings.params
        examples, shares = held_out_examples(config, phase, corpus.held_out), corpus.shares(phase)
        evaluation = Evaluation(objective, config.evaluation, examples, shares, learner.mesh, shardings, learner.frozen)
        tokenizer, options = corpus.store.tokenizer(), config_of_phase(config, phase.index).objective
        samples = make_samples(objective.model, evaluation, tokenizer, options, shardings, config.evaluation.samples)
        return evaluation, samples

    def position(self, step: int) -> Position:
        """Return where the run is in its data after `step`, without what the guard remembers."""
        seen = self._seen + (step - self.begin) * self.phase.batch_size
        return Position(self.phase.index, seen, self._skipped)

    def batches(self, begin: int) -> Generator[Input, None, None]:
        """Return the batches of the phase after `begin`; the step itself counts their work."""
        mesh, size, bound = self.learner.mesh, self.phase.batch_size, self.learner.value_bound(self.phase)
        stream = batches(
            self.examples,
            self._seen,
            size,
            sharding.host_rows(mesh, size),
            self.end - begin,
            loader=self.config.data.loader,
            prefetch=self.config.data.prefetch,
            place=lambda rows: sharding.to_global(mesh, narrowed(rows, bound), size),
        )
        with contextlib.closing(stream):
            for batch in stream:
                yield Input((batch,))

    def after_step(self, step: int, state: TrainState) -> None:
        """Evaluate the state after `step`, and save it, where that is due; the last one of the phase always.

        Raises:
          Stopped: a signal ended the evaluation.
        """
        self.evaluated = {}
        if step > self.begin or self._evaluates_first:
            self.evaluated = self._evaluate(step, state)
        if self.begin < step < self.end:
            self._save(step, state)
        elif step > self.begin:
            self.save_for_good(step, state)

    def save_for_good(self, step: int, state: TrainState) -> None:
        """Save the state after `step`, and wait until it is written."""
        self._saver.save_for_good(step, state, self.evaluated or None)

    def shortage(self) -> tuple[str, list[str]]:
        """Return that the phase does not fit into the memory, and what helps."""
        phase, learner = self.phase, self.learner
        return f"phase {phase.index}", phase_advice(phase, learner.mesh.shape, learner.remat(phase))

    def draw(self) -> None:
        """Draw the curves of the run into its directory, together with the metrics of word frequencies alone."""
        workdir, terms = self._opened.workdir, self.learner.terms
        if workdir.is_ours():
            self._opened.metrics.draw(terms, self._unigram, _name(self.config.workdir))
        self._drawn = time.monotonic()

    def _evaluate(self, step: int, state: TrainState) -> dict[str, float]:
        """Return the held-out metrics of the state after `step`, and write them; {} if that is not due."""
        opened, rates, evaluation = self._opened, self.reporter.rates, self._evaluation
        if evaluation is None or not _evaluates(self.config, step):
            return {}
        self.reporter.finish()
        with rates.paused("evaluation"):
            with opened.events.timed("evaluated", step) as details:
                evaluated = evaluation.run(state.params, opened.signals, rates)
                if (average := average_of(state.optimizer_state)) is not None:
                    of_average = evaluation.run(average, opened.signals, rates)
                    evaluated |= {f"ema_{name}": value for name, value in of_average.items()}
                details |= evaluated
                if len(self.config.phases) > 1:
                    details["phase"] = self.phase.index
            if self._samples is not None:
                sampled = self._samples.run(state.params, opened.signals, rates)
                opened.events.write("sampled", step, samples=sampled)
            opened.metrics.write(step, evaluated, kind="evaluation")
            if time.monotonic() - self._drawn > PICTURE_SECONDS:
                self.draw()
        if step == self.config.total_steps and self._unigram is not None:
            size, terms = self._opened.workdir.vocabulary.vocab_size, self._objective.terms
            for line in too_little(step, terms, evaluated, self._unigram, size):
                say(line)
        return evaluated

    def _save(self, step: int, state: TrainState) -> None:
        """Save the state after `step` where that is due.

        A state whose loss is not finite would displace a good one; the next finite one is saved instead.
        """
        options = self.config.checkpoint
        if due(step, options.every_steps) or self.evaluated and options.keep_best:
            self._owes_save = True
        main = self.evaluated.get(self._main, 0.0)
        if self._owes_save and self._is_finite() and math.isfinite(main):
            self._saver.save(step, state, self.evaluated or None)
            self._owes_save = False
        if self._opened.checkpoints.local and due(step, options.local_every_steps) and self._is_finite():
            self._saver.save_locally(step, state)

    def _is_finite(self) -> bool:
        """Return whether loss and gradient of the newest step were finite, after waiting for that step."""
        self.reporter.finish()
        return not self._guard.skipped


def _evaluates(config: Config, step: int) -> bool:
    """Return whether the held-out documents, if there are any, are evaluated after `step`."""
    return step == config.total_steps or due(step, config.evaluation.every_steps)


def _lacks_evaluation(problem: Problem, step: int) -> bool:
    """Return whether the evaluation after `step`, which the run has reached before, is missing from its log."""
    if not problem.corpus.held_out or not _evaluates(problem.config, step):
        return False
    try:
        rows = read_rows(epath.Path(problem.config.workdir) / "metrics.jsonl")
    except OSError as error:  # figures for people are not worth a run
        logging.warning("%s/metrics.jsonl cannot be read: %s", problem.config.workdir, error.strerror or error)
        rows = []
    return from_first(step not in [row["step"] for row in rows if row["kind"] == "evaluation"])


def _open_directory(problem: Problem) -> WorkDirectory:
    """Take the work directory for this run."""
    config, learner, corpus = problem.config, problem.learner, problem.corpus
    return open_workdir(
        config.workdir,
        PRETRAINING,
        problem.identity,
        to_dict(config),
        corpus.store.tokenizer(),
        local_path=config.checkpoint.local_path,
        devices=list(learner.mesh.devices.flat),
    )


def _complete(problem: Problem) -> Restored | None:
    """Return the newest checkpoint, read from the disk, if nothing is left to do; such a start changes nothing.

    Raises:
      UserError: these settings would not continue the run.
    """
    config, learner = problem.config, problem.learner
    path = epath.Path(config.workdir) / "checkpoints"
    newest = from_first(Checkpoints(path, read_only=True).latest_step())
    if newest is None or newest < config.total_steps or _lacks_evaluation(problem, newest):
        return None
    identity, local_path = problem.identity, config.checkpoint.local_path
    run_id = resumable(config.workdir, PRETRAINING, identity, to_dict(config), local_path=local_path)
    if run_id is None:
        return None
    with busy("reading the newest checkpoint"), memory_advice("the state of the run", state_advice(learner.mesh.shape)):
        try:
            restored = Checkpoints(path, read_only=True, run_id=run_id).restore(learner.abstract)
        except UserError:  # a start that sets damaged steps aside tells of it
            return None
    return None if restored is None or restored.step < newest else restored


def _open_checkpoints(
    options: CheckpointConfig, workdir: WorkDirectory, main: tuple[str, ...], events: Events
) -> Checkpoints:
    """Return the checkpoints of the run in `workdir`, the best ones by the held-out loss `main` of their phase."""
    committed_locally = lambda step, seconds: events.write("saved_locally", step, seconds=seconds)
    return Checkpoints(
        workdir.checkpoints,
        options,
        run_id=workdir.run_id,
        lost=workdir.is_lost,
        best_metric=main,
        committed=lambda step, seconds: events.write("saved", step, seconds=seconds),
        local=LocalTier(options.local_path, workdir.run_id, committed_locally) if options.local_path else None,
    )


def _open_run(
    problem: Problem, started: Started, checkpoints: Checkpoints, start_step: int, closing: contextlib.ExitStack
) -> Opened:
    """Return the run that resumes from `start_step`, with its metrics and traces, which `closing` closes."""
    config, workdir = problem.config, started.workdir
    metrics = Metrics(
        workdir.path,
        total_steps=config.total_steps,
        start_step=start_step,
        terms=problem.learner.terms,
        wall_time=started.wall_time,
        trackers=lambda: trackers(config.sinks, workdir.run_id, _name(config.workdir), to_dict(config)),
    )
    return Opened(
        **vars(started),
        checkpoints=checkpoints,
        metrics=closing.enter_context(metrics),
        profiler=closing.enter_context(Profiler(workdir.path, traced_steps(config.profile, config.total_steps))),
    )


def _name(workdir: str) -> str:
    return os.path.basename(os.path.normpath(workdir))


def _opened(
    config: Config,
    devices: sharding.Devices,
    make_objective: MakeObjective,
    optimizer: optax.GradientTransformation | None,
    schedule: Schedule | None,
) -> Problem:
    """Return what the options describe, and say if nothing but bert_jax can read what such a run makes.

    Nothing is compiled or written. Every host has made sure that it runs the same thing as the others.
    """
    join_hosts(config.faults, to_dict(config), differing_options(Config))
    opened = filter(None, (config.data.path or config.data.mixture, config.init_from))
    mesh = sharding.make_mesh(config.mesh, devices)  # which refuses a platform that JAX does not find
    with busy(f"opening {' and '.join(opened) or 'what is to be trained'}"):
        return described(config, mesh, make_objective, optimizer, schedule)


def described(
    config: Config,
    mesh: jax.sharding.Mesh,
    make_objective: MakeObjective = default_objective,
    optimizer: optax.GradientTransformation | None = None,
    schedule: Schedule | None = None,
) -> Problem:
    """Return what the options describe on the devices of `mesh`; nothing is compiled or written.

    Raises:
      UserError: as `pretrain`.
    """
    check(config)
    sharding.check_batch(resolve_stages(config), config.phases, mesh)
    check_attention(config.compute, mesh.devices.flat[0].platform)
    check_given(config)
    if not (resumed := from_first(has_checkpoint(config.workdir))):
        check_new(config)
    config = with_commits(config, ("init_from", "objective.distillation.teacher"))
    branch, first = open_branch(config, resumed), config_of_phase(config, 0)
    source = open_source(
        config.init_from,
        config.init_from_layers,
        first.model,
        first.objective,
        resumed or branch is not None,
        config.init_from_changes,
        config.phases[0].changes,
        config.init_from_depth,
        config.init_from_width,
    )
    corpus = open_corpus(config)
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=corpus.store.vocab_size))
    # All hosts plan with the memory of the first one's devices, so that they compute alike.
    memory = from_first(hardware.hardware(list(mesh.devices.flat)).memory_bytes)
    taught, phases, tokenizer = config.objective.taught, resolve_phases(config), corpus.store.tokenizer()
    teacher = open_teacher(taught, config.model, config.data, phases, config.compute, tokenizer, mesh)
    learner = make_learner(config, mesh, make_objective, memory, teacher, optimizer, schedule)
    if source is not None:
        table_rows(source, learner.objective.model.parameters, tokenizer)  # raises where it does not fit
    if branch is not None:
        check_branch(branch, config, corpus, learner.own_names)
        check_fit(branch.record, learner.abstract, f"branch_from={config.branch_from}")
    facts = {"checkpoint.local_path": "given" if config.checkpoint.local_path else "not given"}
    facts |= {} if branch is None else {"branch_from": branch.fingerprint}
    check_alike(lambda: corpus.fingerprints() | source_fingerprint(source) | learner.own_names | facts)
    last = config_of_phase(config, len(config.phases) - 1)
    if make_objective is default_objective and (note := remark(last.model)):
        say(note)
    return Problem(config, learner, corpus, source, branch)


def make_learner(
    config: Config,
    mesh: jax.sharding.Mesh,
    make_objective: MakeObjective = default_objective,
    memory_bytes: int | None = None,
    teacher: Teacher[BertForPreTraining] | None = None,
    optimizer: optax.GradientTransformation | None = None,
    schedule: Schedule | None = None,
) -> Learner:
    """Return what `config` trains on the devices of `mesh`, which have `memory_bytes` each; no array is made.

    With a `teacher`, whose arrays are on the devices already or described only, the objective is that of learning from
    it, whatever `make_objective` is. `optimizer` and `schedule` replace those of the options.

    Raises:
      UserError: the model's table of parameters and what it initializes differ, or what was given is no optimizer or no
        schedule.
    """
    taught, size, given = config.objective.taught, None, {}
    seen = [config_of_phase(config, index) for index in range(len(config.phases))]
    is_given = teacher is None and make_objective is not default_objective
    if teacher is not None:
        make_objective = functools.partial(default_objective, teacher=teacher.model)
        size = taught and taught.teacher_size(config.model.hidden_size, teacher.model.config.hidden_size)
    parts = tuple(dict.fromkeys(part for each in seen for part in pretraining_parts(each.model, each.objective)))
    networks = tuple(BertForPreTraining(each.model, config.compute, parts, teacher_size=size) for each in seen)
    objectives = tuple(itertools.starmap(make_objective, zip(networks, seen, strict=True)))
    check_arrays(config, objectives)
    objective, parameters = objectives[0], objectives[0].model.parameters
    rule = make_optimizer(config.optimizer, parameters) if optimizer is None else given_optimizer(optimizer, parameters)
    averaging = averaged(rule, config.optimizer.ema_decay)
    abstract = abstract_state(objective.model, averaging, mesh)
    if optimizer is not None:
        kept = ", ".join(state_names(parameters, jax.eval_shape(rule.init, abstract.params)))
        given["optimizer"] = f"{qualified(optimizer.update).partition('.<locals>')[0]} ({kept or 'no state'})"
    if schedule is not None:
        given["schedule"] = qualified(schedule).partition(".<locals>")[0]
    line = functools.partial(learning_rate, config.schedule, resolve_phases(config))
    return Learner(
        networks=networks,
        make_objective=lambda network, index: make_objective(
            network, dataclasses.replace(seen[index], compute=network.compute)
        ),
        is_given=is_given,
        objectives=objectives,
        notes=tuple(phase_notes(config, index) for index in range(len(seen))),
        layout=lambda phase: batch_layout(phase, seen[phase.index].objective, seen[phase.index].data.has_pair_labels),
        rule=config.optimizer,
        optimizer=averaging,
        schedule=line if schedule is None else given_schedule(schedule),
        stages=resolve_stages(config),
        seed=config.seed,
        mesh=mesh,
        abstract=abstract,
        memory_bytes=memory_bytes,
        teacher=teacher,
        given=given,
    )


def check_arrays(config: Config, objectives: Sequence[Objective]) -> None:
    """Raise a UserError if the phases of a run would not train the same arrays."""
    shapes = [{path: each.shape for path, each in objective.model.parameters.items()} for objective in objectives]
    for index, found in enumerate(shapes):
        if differing := [path for path in {**shapes[0], **found} if shapes[0].get(path) != found.get(path)]:
            phases = [config.phases[number].changes for number in (0, index)]
            options = [
                f"phases.{number}.{name}={value}"
                for number, changes in zip((0, index), phases, strict=True)
                for name, value in changes.items()
                if name.startswith(("objective.", "model."))
            ]
            raise UserError(
                f"{' and '.join(options)} would have phases 0 and {index} train different arrays "
                f"({first_lines(differing)}), and all phases of a run train the same ones; leave it out, or start "
                "another run from this one (init_from)"
            )


def _start(
    problem: Problem, checkpoints: Checkpoints, workdir: WorkDirectory, signals: StopSignals
) -> tuple[TrainState, Position, Report | None, bool]:
    """Return what `first_state` does, and whether a checkpoint gave it.

    The run starts from: 1. the newest good checkpoint of this work directory or of the hosts' local disks; 2. the step
    of another run that branch_from names; 3. the parameters of init_from, at step 0; 4. fresh parameters, at step 0.
    """
    learner = problem.learner
    with (
        busy("reading the newest checkpoint" if workdir.resumed else "making the first parameters"),
        memory_advice("the state of the run", state_advice(learner.mesh.shape)),
    ):
        if restored := checkpoints.restore(learner.abstract):
            return restored.state, Position.from_dict(restored.position), None, True
        if (branch := problem.branch) is not None:
            say(f"branching off from step {branch.step:,} of {branch.path}")
            return branch.restore(learner.abstract).state, branch.position, None, False
        return *first_state(problem, signals.wait), False


def first_state(
    problem: Problem, wait: Callable[[Callable[[], TrainState]], TrainState]
) -> tuple[TrainState, Position, Report | None]:
    """Return state and position at step 0 and, if a stored model gives the parameters, a report on each of them.

    `wait` returns what the function that it is given makes.
    """
    learner, source, tokenizer = problem.learner, problem.source, problem.corpus.store.tokenizer()
    state = wait(lambda: create_state(learner.objective.model, learner.optimizer, learner.mesh, learner.seed))
    if source is None:
        return state, Position(), None
    params, report = initialize(source, learner.objective.model.parameters, tokenizer, state.params)
    state = dataclasses.replace(state, params=params, optimizer_state=restarted(state.optimizer_state, params))
    if "optimizer" in learner.given:  # it may keep something that depends on the parameters
        state = reset_moments(state, learner.optimizer)
    return state, Position(), report


def _check_pretraining(path: epath.Path, identity: dict[str, Any], settings: dict[str, Any]) -> None:
    """Raise a UserError if `settings` and the data would not continue the run in `path`; log harmless changes."""
    if "source" in read_json(path / "run.json"):
        raise UserError(
            f"{path} holds a model that convert, average or model.save wrote, without the state of a run; give it as "
            "--init_from, and another --workdir"
        )
    check_own_names(path, read_json(path / "run.json"), identity)
    before, now, phases = read_config(path), from_dict(Config, settings), len(settings["phases"])
    lines = refused_changes(path, identity, to_dict(before), settings, Config)
    packed = [[phase.packed for phase in resolve_phases(config)] for config in (before, now)]
    if packed[0] == packed[1]:
        lines = [line for line in lines if not line.partition(": ")[0].endswith("data.packing")]
    refused = []
    for line in lines:
        if lengthens(Config, line, phases):
            logging.warning(
                "%s: from here on the learning rate (its decay, and a warm-up that is not given) follows a "
                "schedule of the new length",
                line,
            )
        elif settings["elastic_batch"] and is_elastic(Config, line):
            logging.warning("%s: from here on; no example is repeated or skipped, and the steps stay as given", line)
        else:
            refused.append(line)
    if refused:
        elastic = (
            ", or say --elastic_batch if the new values are meant"
            if all(is_elastic(Config, line) for line in refused)
            else ""
        )
        raise UserError(
            f"{path} holds a run with different settings ({first_lines(refused)}). Resume with that run's own settings "
            f"({path / 'config.json'}){elastic}, or start this one in another --workdir"
        )


PRETRAINING = Rules(has_checkpoint, _check_pretraining)
