"""`pretrain`: a whole run, readable from top to bottom."""

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Generator

import jax
import numpy as np
from etils import epath

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.fingerprint import stored_fingerprint
from bert_jax.checkpoints.local_tier import LocalTier
from bert_jax.checkpoints.run_directory import has_checkpoint, open_pretraining
from bert_jax.checkpoints.workdir import WorkDirectory
from bert_jax.config import Config, Phase, resolve_phases
from bert_jax.config.changes import PRETRAINING
from bert_jax.config.checks import check
from bert_jax.config.json_form import to_dict
from bert_jax.config.watching import traced_steps
from bert_jax.data.examples.corpus import Corpus, open_corpus
from bert_jax.data.examples.pipeline import batches, check_loader
from bert_jax.devices import hardware, peers, sharding
from bert_jax.devices.compilation_cache import use_compilation_cache
from bert_jax.devices.hosts import check_alike, ending_together, from_first
from bert_jax.devices.signals import Stopped, StopSignals
from bert_jax.devices.watchdog import Watchdog
from bert_jax.errors import UserError, need_cloud_storage
from bert_jax.formats.fit import check_fit
from bert_jax.formats.stored import StoredModel
from bert_jax.objectives.bert_pretraining import MakeObjective, default_objective
from bert_jax.objectives.identity import own_names
from bert_jax.pretrained.initialization import Report, check_architecture, initialize, table_rows
from bert_jax.tokenization.tokenizer import Tokenizer
from bert_jax.training.announcement import announce
from bert_jax.training.curves import draw_curves
from bert_jax.training.evaluation import Evaluation
from bert_jax.training.events import Events
from bert_jax.training.fault_report import write_report
from bert_jax.training.guard import Guard, Trouble
from bert_jax.training.host_times import HostTimes
from bert_jax.training.learner import Learner
from bert_jax.training.metrics import Metrics, Rates
from bert_jax.training.position import Position
from bert_jax.training.pretraining_reporter import PhaseReporter, due
from bert_jax.training.profiler import Profiler
from bert_jax.training.program import Program
from bert_jax.training.replicas import Replicas
from bert_jax.training.rollback import roll_back
from bert_jax.training.samples import make_samples
from bert_jax.training.saver import Saver
from bert_jax.training.sinks import read_rows
from bert_jax.training.state import TrainState, create_state, reset_moments
from bert_jax.training.trackers import Tracker, check_trackers, trackers
from bert_jax.training.wall_time import WallTime


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
def pretrain(config: Config, devices: sharding.Devices = None, objective: MakeObjective | None = None) -> Result:
    """Train to the last step of the last phase, or until a signal; resume from what `config.workdir` holds.

    Args:
      config: every option of the run.
      devices: the devices of the mesh; by default every device of every process.
      objective: makes the training objective from the model and the configuration, whose vocabulary size is known by
        then; None for `default_objective`. A resumed run must be given the same one, of the same names (which can still
        be different formulas).

    Returns:
      The last step, its held-out metrics and an exit code.

    Raises:
      UserError: the options, the data or the work directory cannot be used, and nothing has been changed; or a
        checkpoint could not be written or the loss is no longer finite, and the newest good checkpoint stays.
    """
    wall_time = WallTime()
    hardware.initialize_distributed(config.faults.peer_timeout_seconds)
    peers.watch(config.faults.peer_timeout_seconds)
    check_alike(lambda: to_dict(config), PRETRAINING.where)
    use_compilation_cache()
    mesh = sharding.make_mesh(config.mesh, devices)
    sharding.check_batch(check(config), mesh)
    _check_given(config)
    source = _open_source(config, resumed=from_first(has_checkpoint(config.workdir)))
    corpus = open_corpus(config)
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=corpus.store.vocab_size))
    tokenizer, learner = corpus.store.tokenizer(), Learner.of(config, mesh, objective or default_objective)
    if source is not None:
        table_rows(source, learner.objective.model.parameters, tokenizer)  # raises before anything is compiled
    facts = {"checkpoint.local_path": "given" if config.checkpoint.local_path else "not given"}
    check_alike(lambda: corpus.fingerprints() | _source_fingerprint(source) | own_names(learner.objective) | facts)

    result = Result(0, {}, 0)
    with (
        Watchdog(config.faults.step_timeout_seconds) as watchdog,
        StopSignals(watchdog) as signals,
        contextlib.ExitStack() as closing,
    ):
        workdir = closing.enter_context(_open_directory(config, corpus, learner, tokenizer))
        events = closing.enter_context(Events(workdir.path, signals))
        watchdog.report = lambda seconds, place: events.write("hung", events.step, seconds=seconds, place=place)
        checkpoints = closing.enter_context(_open_checkpoints(config, workdir, learner, events))
        signals.newest = checkpoints.latest_step
        result = Result(checkpoints.latest_step() or 0, {}, 0)
        # The run starts from: 1. the newest good checkpoint of this work directory or of the hosts' local disks; 2. the
        # parameters of init_from, at step 0; 3. fresh parameters, at step 0.
        if restored := checkpoints.restore(learner.abstract):
            state, position, report = restored.state, Position.from_dict(restored.position), None
        else:
            state, position, report = _first_state(learner, config.seed, source, tokenizer, signals)
        result = Result(int(state.step), {}, 0)
        events.start(result.step, list(mesh.devices.flat), resumed=restored is not None)
        origins = None if report is None else report.table()
        announce(config, corpus, learner.mesh, learner.objective.model.parameters, origins, result.step)
        # A signal during an evaluation saves the step without that evaluation.
        owed = restored is not None and _lacks_evaluation(config, corpus, result.step)
        if result.step >= config.total_steps and not owed:
            checkpoints.finish()
            return result
        metrics = closing.enter_context(
            Metrics(
                workdir.path,
                total_steps=config.total_steps,
                start_step=result.step,
                terms=learner.objective.terms,
                wall_time=wall_time,
                trackers=lambda: _trackers(config, workdir),
            )
        )
        traced = traced_steps(config.profile, config.total_steps)
        profiler = closing.enter_context(Profiler(workdir.path, traced))
        run = _Run(config, learner, corpus, workdir, checkpoints, metrics, events, signals, wall_time, profiler)
        while (owed or result.step < config.total_steps) and not result.exit_code:
            phases = resolve_phases(config)
            phase = phases[position.phase] if owed else next(each for each in phases if result.step < each.end)
            state, position, result = _train_phase(run, phase, state, position, evaluates_first=owed)
            owed = False
        if result.step >= config.total_steps:
            checkpoints.finish()
    return dataclasses.replace(result, exit_code=signals.exit_code)


@dataclasses.dataclass(frozen=True)
class _Run:
    """What the phases of a run share."""

    config: Config
    learner: Learner
    corpus: Corpus
    workdir: WorkDirectory
    checkpoints: Checkpoints
    metrics: Metrics
    events: Events
    signals: StopSignals
    wall_time: WallTime
    profiler: Profiler


def _train_phase(
    run: _Run, phase: Phase, state: TrainState, position: Position, evaluates_first: bool
) -> tuple[TrainState, Position, Result]:
    """Train from `state`, at `position`, to the end of the phase or until told to stop; or go back, if that must be.

    Args:
      evaluates_first: whether the step of `state` still has to be evaluated.

    Returns:
      Where to go on, if there is anything left to do: in this phase after a rollback, otherwise in the next one.
    """
    config, mesh, signals = run.config, run.learner.mesh, run.signals
    signals.saving, begin = None, int(state.step)  # the previous phase has saved its last step
    run.wall_time.switch("setup")
    if begin == phase.begin and phase.resets_moments:
        state = reset_moments(state, run.learner.optimizer)
    evaluation = _evaluation(run, phase)
    unigram = None if evaluation is None else evaluation.unigram(run.corpus.training[phase.index])
    if unigram:
        run.events.write("baseline", begin, **unigram)
    samples = None if evaluation is None else make_samples(run.learner, config, evaluation, run.corpus.store)
    train_step = Program(run.learner.train_step(config, phase))
    rates = Rates(_peak_flops(mesh), wall_time=run.wall_time)
    seen, guard = position.seen_in(phase.index), Guard(config.faults, position.guard_of(phase.index))
    places = lambda step: Position(phase.index, seen + (step - begin) * phase.batch_size, position.skipped)
    host_times, model = HostTimes(run.events), run.learner.objective.model
    reporter = PhaseReporter(run.metrics, rates, config, phase, model, run.events, guard, host_times)
    replicas = Replicas(run.learner.shardings, mesh, run.events)
    saver = _saver(run, reporter, rates, lambda step: dataclasses.replace(places(step), guard=guard.memory()))
    step, evaluated, wanted, main, trouble = begin, {}, False, run.learner.main, None
    try:
        with contextlib.closing(_stream(run, phase, seen, phase.end - begin)) as stream:
            for step in range(begin, phase.end + 1):  # `state` is the state after `step` steps
                signals.saving, evaluated = step if step > begin else None, {}
                run.profiler.finish(step, state)
                if step > begin and due(step, config.faults.check_replicas_every):
                    with rates.paused("setup"):
                        replicas.check(step, state)
                if evaluation and _evaluates(config, step) and (step > begin or evaluates_first):
                    reporter.finish()
                    with rates.paused("evaluation"):
                        with run.events.timed("evaluated", step) as details:
                            evaluated = evaluation.run(state.params, signals, rates)
                            details |= evaluated
                        if samples is not None:
                            run.events.write("sampled", step, samples=samples.run(state.params, signals, rates))
                        run.metrics.write(step, evaluated, kind="evaluation")
                        _draw(run, unigram)
                if step == phase.end:
                    break
                if step > begin:
                    due_now = due(step, config.checkpoint.every_steps)
                    wanted = wanted or due_now or evaluated and config.checkpoint.keep_best
                    # A state whose loss is not finite would displace a good one; the next finite one is saved instead.
                    if wanted and reporter.is_finite() and math.isfinite(evaluated.get(main, 0.0)):
                        saver.save(step, state, evaluated or None)
                        wanted = False
                    if run.checkpoints.local and due(step, config.checkpoint.local_every_steps):
                        if reporter.is_finite():
                            saver.save_locally(step, state)
                # The first batch starts the pipeline.
                awaited = rates.paused("setup") if step == begin else run.wall_time.awaiting(reporter.is_busy)
                with awaited, contextlib.nullcontext() if step == begin else host_times.measured():
                    batch = sharding.to_global(mesh, next(stream), phase.batch_size)
                train_step.prepare(state, batch, signals=signals, rates=rates, events=run.events)
                signals.check()
                signals.saving = run.events.step = step + 1
                with run.profiler.step(step, state):
                    state, values = train_step(state, batch)
                reporter.dispatched(step + 1, values)
                run.checkpoints.poll()
        if step > begin:
            saver.save_for_good(step, state, evaluated or None)
    except Stopped:
        # A step that turns out to be bad only now is not saved; the next start takes it again and decides.
        with contextlib.suppress(Trouble):
            if step > begin:
                saver.save_for_good(step, state, evaluated or None)
                signals.saved(step)
    except Trouble as found:
        trouble = found.with_traceback(None)  # which would keep this state while an older one is restored
    if trouble is not None:
        _give_up_if_hopeless(run, phase, trouble, state, places)
        del state
        state, position = roll_back(
            trouble, places(trouble.last), phase, run.checkpoints, run.learner.abstract, run.metrics, run.events
        )
        return state, position, Result(int(state.step), {}, 0)
    if step > begin:
        _draw(run, unigram)
    # A signal that arrives after the last check is left to the next phase, on every host; every step has been saved.
    return state, places(step), Result(step, evaluated, signals.exit_code)


def _give_up_if_hopeless(
    run: _Run, phase: Phase, trouble: Trouble, state: TrainState, places: Callable[[int], Position]
) -> None:
    """Raise a UserError that names a report if no checkpoint is old enough to go back to, or no rollback is left."""
    left = run.config.faults.rollbacks - len(places(trouble.last).skipped)
    if left > 0 and any(step < trouble.first for step in run.checkpoints.steps_anywhere()):
        return
    positions = places(trouble.first - 1).examples_seen, places(trouble.last).examples_seen
    examples = run.corpus.training[phase.index]
    file = write_report(run.workdir.path, trouble, positions, run.learner, phase, state, examples, run.config.seed)
    newest = run.checkpoints.latest_step()
    raise UserError(
        f"{trouble}, "
        + (
            "and no checkpoint is older"
            if left > 0
            else f"and none of the {run.config.faults.rollbacks} rollbacks is left"
        )
        + f". {file} has the batch and the norms of each layer"
        + ("" if newest is None else f"; the newest checkpoint is step {newest}")
        + ". Lower the learning rate or lengthen the warm-up, in another --workdir; or raise --faults.rollbacks"
    )


def _saver(run: _Run, reporter: PhaseReporter, rates: Rates, position: Callable[[int], Position]) -> Saver:
    """Return what saves the states of a phase, with their positions."""
    return Saver(
        run.workdir,
        run.checkpoints,
        (run.metrics, run.events),
        reporter,
        rates,
        run.signals.watchdog,
        config=to_dict(run.config),
        position=lambda step: position(step).to_dict(),
    )


def _evaluation(run: _Run, phase: Phase) -> Evaluation | None:
    """Return the evaluation on the held-out documents at the length of the phase; None if none are held out."""
    store, learner = run.corpus.evaluation_store, run.learner
    if store is None:
        return None
    split, shardings = run.corpus.evaluation_split, learner.shardings.params
    return Evaluation(learner.objective, run.config, phase, store, split, learner.mesh, shardings)


def _stream(run: _Run, phase: Phase, seen: int, steps: int) -> Generator[dict[str, np.ndarray], None, None]:
    """Return this host's part of the next `steps` batches, after `seen` sequences of the phase."""
    return batches(
        run.corpus.training[phase.index],
        seen,
        phase.batch_size,
        sharding.host_rows(run.learner.mesh, phase.batch_size),
        steps,
        loader=run.config.data.loader,
        prefetch=run.config.data.prefetch,
    )


def _evaluates(config: Config, step: int) -> bool:
    """Return whether the held-out documents, if there are any, are evaluated after `step`."""
    return step == config.total_steps or due(step, config.evaluation.every_steps)


def _lacks_evaluation(config: Config, corpus: Corpus, step: int) -> bool:
    """Return whether the evaluation after `step`, which the run has reached before, is missing from its log."""
    if corpus.evaluation_store is None or not _evaluates(config, step):
        return False
    logged = [
        row["step"] for row in read_rows(epath.Path(config.workdir) / "metrics.jsonl") if row["kind"] == "evaluation"
    ]
    return from_first(step not in logged)


def _check_given(config: Config) -> None:
    for name, value, meaning in (
        ("data.path", config.data.path, "the token store that bert-jax prepare wrote"),
        ("workdir", config.workdir, "a directory for checkpoints and metrics"),
    ):
        if not value:
            raise UserError(f"--{name} is missing: give {meaning}")
    for path in (config.workdir, config.data.path, config.data.eval_path):
        need_cloud_storage(path)
    check_loader(config.data.loader)
    check_trackers(config.sinks)


def _open_source(config: Config, resumed: bool) -> StoredModel | None:
    """Return the model that init_from names; None without init_from, and for a resumed run, which ignores it."""
    if not config.init_from or resumed:
        return None
    from bert_jax.formats.opening import open_stored  # the readers of all formats, which most runs do not need

    source = open_stored(config.init_from)
    check_fit(source)
    check_architecture(source, config.model)
    return source


def _source_fingerprint(source: StoredModel | None) -> dict[str, str | None]:
    return {"init_from_fingerprint": None if source is None else stored_fingerprint(source.arrays)}


def _open_directory(config: Config, corpus: Corpus, learner: Learner, tokenizer: Tokenizer) -> WorkDirectory:
    """Take the work directory for this run."""
    return open_pretraining(
        config.workdir,
        config,
        store_fingerprint=corpus.store.fingerprint,
        tokenizer=tokenizer,
        own_names=own_names(learner.objective),
        devices=list(learner.mesh.devices.flat),
    )


def _open_checkpoints(config: Config, workdir: WorkDirectory, learner: Learner, events: Events) -> Checkpoints:
    """Return the checkpoints of the run in `workdir`, to be closed at its end."""
    local_path = config.checkpoint.local_path
    committed_locally = lambda step, seconds: events.write("saved_locally", step, seconds=seconds)
    return Checkpoints(
        workdir.checkpoints,
        config.checkpoint,
        run_id=workdir.run_id,
        lost=workdir.is_lost,
        best_metric=learner.main,
        committed=lambda step, seconds: events.write("saved", step, seconds=seconds),
        local=LocalTier(local_path, workdir.run_id, committed_locally) if local_path else None,
    )


def _first_state(
    learner: Learner, seed: int, source: StoredModel | None, tokenizer: Tokenizer, signals: StopSignals
) -> tuple[TrainState, Position, Report | None]:
    """Return state and position at step 0 and, if a `source` gives the parameters, a report on each of them."""
    state = signals.wait(lambda: create_state(learner.objective.model, learner.optimizer, learner.mesh, seed))
    if source is None:
        return state, Position(), None
    params, report = initialize(source, learner.objective.model.parameters, tokenizer, state.params)
    return dataclasses.replace(state, params=params), Position(), report


def _trackers(config: Config, workdir: WorkDirectory) -> list[Tracker]:
    name = os.path.basename(os.path.normpath(config.workdir))
    return trackers(config.sinks, workdir.run_id or name, name, to_dict(config))


def _draw(run: _Run, unigram: dict[str, float] | None) -> None:
    if run.workdir.is_ours():
        path, name = run.workdir.path, os.path.basename(os.path.normpath(run.config.workdir))
        draw_curves(path / "metrics.jsonl", path / "curves.png", run.learner.objective.terms, unigram, title=name)


def _peak_flops(mesh: jax.sharding.Mesh) -> float | None:
    peak = hardware.hardware(list(mesh.devices.flat)).peak_flops
    return None if peak is None else peak * mesh.size
