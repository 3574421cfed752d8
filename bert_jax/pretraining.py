"""`pretrain`: a whole pre-training run in one function, readable from top to bottom."""

import contextlib
import dataclasses
from collections.abc import Generator

import jax
import optax

from bert_jax.checkpoints.workdir import has_checkpoint
from bert_jax.config import Config, Phase, resolve_stages
from bert_jax.config.checks import check, check_ramps, training_paths
from bert_jax.config.json_form import differing_options
from bert_jax.data.mixtures import Corpus, open_corpus
from bert_jax.data.pipeline import batches, check_loader
from bert_jax.devices import hardware, sharding
from bert_jax.devices.hardware import memory_advice, memory_error
from bert_jax.devices.hosts import check_alike, ending_together, from_first
from bert_jax.devices.sharding import narrowed
from bert_jax.devices.signals import Stopped, StopSignals, Watchdog
from bert_jax.errors import UserError, need_cloud_storage
from bert_jax.formats.stored import StoredModel
from bert_jax.models.kernels.choice import check_attention
from bert_jax.objectives.choice import MakeObjective, default_objective
from bert_jax.objectives.objective import records
from bert_jax.pretrained.initialization import Report, initialize, open_source, source_fingerprint, table_rows
from bert_jax.pretrained.teacher import open_teacher
from bert_jax.tokenization.abstract import Tokenizer
from bert_jax.training.events import Events
from bert_jax.training.learner import Learner, phase_advice, state_advice
from bert_jax.training.metrics import WallTime
from bert_jax.training.optimizers import Schedule, restarted
from bert_jax.training.reporter import Trouble, announce
from bert_jax.training.run import (
    PhaseDuties,
    PhaseSteps,
    Position,
    PretrainingRun,
    check_way_back,
    join_hosts,
    lacks_evaluation,
    open_checkpoints,
    open_directory,
    open_metrics,
    open_profiler,
    roll_back,
)
from bert_jax.training.state import TrainState, create_state, reset_moments
from bert_jax.training.trackers import check_trackers


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
    if objective is not None and config.data.packing == "auto":  # it may not know of several texts in a row
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, packing="off"))
    config, learner, corpus, source = _opened(config, devices, objective or default_objective, optimizer, schedule)
    result = Result(0, {}, 0)
    with (
        Watchdog(config.faults.step_timeout_seconds) as watchdog,
        StopSignals(watchdog) as signals,
        contextlib.ExitStack() as closing,
    ):
        workdir = closing.enter_context(open_directory(config, corpus, learner))
        events = closing.enter_context(Events(workdir.path, signals))
        watchdog.report = lambda seconds, place: events.write("hung", events.step, seconds=seconds, place=place)
        checkpoints = closing.enter_context(open_checkpoints(config, workdir, learner, events))
        signals.newest = checkpoints.latest_step
        result = Result(checkpoints.latest_step() or 0, {}, 0)
        steps = PhaseSteps(learner)
        steps.begin(result.step)
        # The run starts from: 1. the newest good checkpoint of this work directory or of the hosts' local disks; 2. the
        # parameters of init_from, at step 0; 3. fresh parameters, at step 0.
        with memory_advice("the state of the run", state_advice(learner.mesh.shape)):
            if restored := checkpoints.restore(learner.abstract):
                state, position, report = restored.state, Position.from_dict(restored.position), None
            else:
                state, position, report = _first_state(learner, config.seed, source, corpus.store.tokenizer(), signals)
            result = Result(int(state.step), {}, 0)
        terms = records(learner.objective.terms)
        events.start(result.step, list(learner.mesh.devices.flat), resumed=restored is not None, terms=terms)
        origins = None if report is None else report.table()
        announce(learner, corpus, origins, result.step)
        # A signal during an evaluation saves the step without that evaluation.
        owed = restored is not None and lacks_evaluation(config, corpus, result.step)
        if result.step >= config.total_steps and not owed:
            checkpoints.finish()
            return result
        metrics = closing.enter_context(open_metrics(config, workdir, learner, wall_time, result.step))
        profiler = closing.enter_context(open_profiler(config, workdir))
        run = PretrainingRun(
            config, learner, steps, corpus, workdir, checkpoints, metrics, events, signals, wall_time, profiler
        )
        while (owed or result.step < config.total_steps) and not result.exit_code:
            last = result.step - owed  # of an evaluation that is owed, the step that it belongs to is over
            phase = next(each for each in resolve_stages(config) if last < each.end)
            state, position, result = _train_phase(run, phase, state, position, evaluates_first=owed)
            owed = False
        if result.step >= config.total_steps:
            checkpoints.finish()
    return dataclasses.replace(result, exit_code=signals.exit_code)


def _train_phase(
    run: PretrainingRun, phase: Phase, state: TrainState, position: Position, evaluates_first: bool
) -> tuple[TrainState, Position, Result]:
    """Train from `state`, at `position`, to the end of the phase or until told to stop; or go back, if that must be.

    Args:
      evaluates_first: whether the step of `state` still has to be evaluated.

    Returns:
      Where to continue, if there is anything left to do: in this phase after a rollback, otherwise in the next one.
    """
    signals, learner = run.signals, run.learner
    signals.saving, begin = None, int(state.step)  # the previous phase has saved its last step
    run.wall_time.switch("setup")
    duties = PhaseDuties(run, phase, begin, position)
    train_step = run.steps.of(phase)
    step, evaluated, trouble = begin, {}, None
    try:
        if begin == phase.begin and phase.resets_moments:
            state = reset_moments(state, learner.optimizer)
        with contextlib.closing(_stream(run, phase, duties.seen, phase.end - begin)) as stream:
            for step in range(begin, phase.end + 1):  # `state` is the state after `step` steps
                signals.saving, evaluated = step if step > begin else None, {}
                run.profiler.finish(step, state)
                if step > begin:
                    duties.compare_copies(step, state)
                if step > begin or evaluates_first:
                    evaluated = duties.evaluate(step, state)
                if step == phase.end:
                    break
                if step > begin:
                    duties.save(step, state, evaluated)
                with duties.awaiting_input(step):
                    batch = next(stream)
                train_step.prepare(state, batch, signals=signals, rates=duties.rates, events=run.events)
                signals.check()
                signals.saving = run.events.step = step + 1
                with run.profiler.step(step, state):
                    state, values = train_step(state, batch)
                duties.reporter.dispatched(step + 1, values)
                run.checkpoints.poll()
        duties.save_for_good(step, state, evaluated)
    except Stopped:
        # A step that turns out to be bad only now is not saved; the next start takes it again and decides.
        with contextlib.suppress(Trouble):
            duties.save_for_good(step, state, evaluated)
            if step > begin:
                signals.saved(step)
    except jax.errors.JaxRuntimeError as error:
        remedies = phase_advice(phase, run.learner.mesh.shape, run.learner.remat(phase))
        raise memory_error(error, f"phase {phase.index}", remedies) from error
    except Trouble as found:
        trouble = found.with_traceback(None)  # which would keep this state while an older one is restored
    if trouble is not None:
        check_way_back(run, phase, trouble, state, duties.position)
        del state
        state, position = roll_back(run, phase, trouble, duties.position(trouble.last))
        return state, position, Result(int(state.step), {}, 0)
    if step > begin:
        duties.draw()
    # A signal that arrives after the last check is left to the next phase, on every host; every step has been saved.
    return state, duties.position(step), Result(step, evaluated, signals.exit_code)


def _opened(
    config: Config,
    devices: sharding.Devices,
    make_objective: MakeObjective,
    optimizer: optax.GradientTransformation | None,
    schedule: Schedule | None,
) -> tuple[Config, Learner, Corpus, StoredModel | None]:
    """Return the options with the vocabulary size of the data, what is trained, on what, and the model to start from.

    Nothing is compiled or written. Every host has made sure that it runs the same thing as the others.
    """
    join_hosts(config, differing_options(Config))
    mesh = sharding.make_mesh(config.mesh, devices)
    sharding.check_batch(check(config), mesh)
    check_attention(config.compute, mesh.devices.flat[0].platform)
    _check_given(config)
    if not (resumed := from_first(has_checkpoint(config.workdir))):
        check_ramps(config)
    source = open_source(config, resumed=resumed)
    corpus = open_corpus(config)
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=corpus.store.vocab_size))
    # All hosts plan with the memory of the first one's devices, so that they compute alike.
    memory = from_first(hardware.hardware(list(mesh.devices.flat)).memory_bytes)
    teacher = open_teacher(config, corpus.store.tokenizer(), mesh)
    learner = Learner.of(config, mesh, make_objective, memory, teacher, optimizer, schedule)
    if source is not None:
        table_rows(source, learner.objective.model.parameters, corpus.store.tokenizer())  # raises where it does not fit
    facts = {"checkpoint.local_path": "given" if config.checkpoint.local_path else "not given"}
    check_alike(lambda: corpus.fingerprints() | source_fingerprint(source) | learner.own_names | facts)
    return config, learner, corpus, source


def _stream(run: PretrainingRun, phase: Phase, seen: int, steps: int) -> Generator[dict[str, jax.Array], None, None]:
    """Return the next `steps` batches on the devices, after `seen` sequences of the phase."""
    mesh, bound = run.learner.mesh, run.learner.value_bound(phase)
    return batches(
        run.corpus.training[phase.index],
        seen,
        phase.batch_size,
        sharding.host_rows(mesh, phase.batch_size),
        steps,
        loader=run.config.data.loader,
        prefetch=run.config.data.prefetch,
        place=lambda rows: sharding.to_global(mesh, narrowed(rows, bound), phase.batch_size),
    )


def _check_given(config: Config) -> None:
    for name, value, meaning in (
        ("data.path", "".join(training_paths(config)), "the token store that bert-jax prepare wrote"),
        ("workdir", config.workdir, "a directory for checkpoints and metrics"),
    ):
        if not value:
            raise UserError(f"--{name} is missing: give {meaning}")
    for path in (config.workdir, *training_paths(config), config.data.eval_path):
        need_cloud_storage(path)
    check_loader(config.data.loader)
    check_trackers(config.sinks)


def _first_state(
    learner: Learner, seed: int, source: StoredModel | None, tokenizer: Tokenizer, signals: StopSignals
) -> tuple[TrainState, Position, Report | None]:
    """Return state and position at step 0 and, if a `source` gives the parameters, a report on each of them."""
    state = signals.wait(lambda: create_state(learner.objective.model, learner.optimizer, learner.mesh, seed))
    if source is None:
        return state, Position(), None
    params, report = initialize(source, learner.objective.model.parameters, tokenizer, state.params)
    state = dataclasses.replace(state, params=params, optimizer_state=restarted(state.optimizer_state, params))
    if "optimizer" in learner.given:  # it may keep something that depends on the parameters
        state = reset_moments(state, learner.optimizer)
    return state, Position(), report
