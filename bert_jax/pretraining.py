"""`pretrain`: a whole run, readable from top to bottom."""

import contextlib
import dataclasses
import functools
import math
import os
from collections.abc import Callable

import jax
import optax
from etils import epath
from rich.console import Console

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.fingerprint import stored_fingerprint
from bert_jax.checkpoints.workdir import WorkDirectory, has_checkpoint, open_workdir
from bert_jax.config import Config
from bert_jax.config.checks import check
from bert_jax.config.json_form import to_dict
from bert_jax.data.examples.examples import Examples, check_epoch
from bert_jax.data.examples.pipeline import batches
from bert_jax.data.store.store import Store, open_store
from bert_jax.devices import hardware, sharding
from bert_jax.devices.compilation_cache import use_compilation_cache
from bert_jax.devices.hosts import check_alike, ending_together, from_first
from bert_jax.devices.signals import Stopped, StopSignals
from bert_jax.errors import UserError
from bert_jax.formats.fit import check_fit
from bert_jax.formats.stored import StoredModel
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.parameters import total_size
from bert_jax.objectives.objective import Objective
from bert_jax.objectives.pretraining import default_objective
from bert_jax.optim.optimizers import optimizer as make_optimizer
from bert_jax.optim.schedules import learning_rate, phase_starts
from bert_jax.pretrained.initialization import Report, check_architecture, initialize, table_rows
from bert_jax.training.curves import draw_curves
from bert_jax.training.evaluation import Evaluation
from bert_jax.training.metrics import Metrics, Rates
from bert_jax.training.pretraining_reporter import PhaseReporter, due
from bert_jax.training.program import Program
from bert_jax.training.sinks import read_rows
from bert_jax.training.state import TrainState, abstract_state, create_state, reset_moments, state_shardings
from bert_jax.training.step import make_train_step

PER_HOST = ("data.path", "data.eval_path", "data.cache", "data.loader", "data.prefetch", "init_from")
"""Options that may be different on each host: where copies of the same data lie, and how they are read."""


@dataclasses.dataclass(frozen=True)
class Result:
    step: int
    evaluation: dict[str, float]
    """Held-out metrics at `step`; empty if nothing was held out, or this start has made no evaluation there."""
    exit_code: int
    """0; 130 or 143 if a signal ended the run, which has saved what steps it had made."""


@ending_together
def pretrain(config: Config, objective: Callable[[BertForPreTraining, Config], Objective] | None = None) -> Result:
    """Trains to the last step of the last phase, or until a signal; resumes from what `config.workdir` holds.

    Args:
      objective: makes what is trained for from the model and the configuration, whose vocabulary is then known; None for
        `default_objective`. A run that is resumed must be given the same one.

    Raises:
      UserError: the options, the data or the work directory cannot be used, and nothing has been changed; or a checkpoint
        could not be written, or the loss is not finite any more: then the newest good checkpoint stays.
    """
    hardware.initialize_distributed()
    check_alike(lambda: to_dict(config), PER_HOST)
    use_compilation_cache()
    mesh = sharding.make_mesh(config.mesh)
    sharding.check_batch(check(config), mesh)
    _check_given(config)
    source = _open_source(config, resumed=from_first(has_checkpoint(config.workdir)))
    store, evaluation_store = _open_stores(config)
    tokenizer = store.tokenizer()
    config = _with_vocabulary(config, store)
    training = [_training_examples(store, config, index) for index in range(len(config.phases))]
    trained = (objective or default_objective)(BertForPreTraining(config.model, config.compute), config)
    model = trained.model
    optimizer = make_optimizer(config.optimizer, model.parameters)
    abstract = abstract_state(model, optimizer, mesh)
    shardings, starts = state_shardings(abstract), phase_starts(config)
    if source is not None:
        table_rows(source, model.parameters, tokenizer)  # raises before anything is compiled
    check_alike(lambda: _fingerprints(config, store, evaluation_store, source))

    result = Result(0, {}, 0)
    with StopSignals() as signals, contextlib.ExitStack() as closing:
        workdir = closing.enter_context(
            open_workdir(config.workdir, config, store_fingerprint=store.fingerprint, tokenizer=tokenizer)
        )
        checkpoints = closing.enter_context(
            Checkpoints(
                workdir.checkpoints,
                config.checkpoint,
                run_id=workdir.run_id,
                lost=workdir.is_lost,
                best_metric=trained.terms[0].loss,
            )
        )
        signals.newest = checkpoints.latest_step
        result = Result(checkpoints.latest_step() or 0, {}, 0)
        # Where the run stands: 1. the newest good checkpoint of this work directory; 2. the parameters of init_from, at step 0;
        # 3. fresh parameters.
        restored = checkpoints.restore(abstract)
        state = (
            signals.wait(lambda: create_state(model, optimizer, mesh, config.seed))
            if restored is None
            else restored.state
        )
        report = None
        if restored is None and source is not None:
            params, report = initialize(source, model.parameters, tokenizer, state.params)
            state = dataclasses.replace(state, params=params)
        position = {"phase": 0, "examples_seen": 0} if restored is None else restored.position
        result = Result(int(state.step), {}, 0)
        _announce(config, mesh, model, store, training, result.step, report)
        # A signal during an evaluation has its step saved without it.
        evaluates_first = restored is not None and _lacks_evaluation(config, evaluation_store, result.step)
        if result.step >= config.total_steps and not evaluates_first:
            return result
        metrics = closing.enter_context(
            Metrics(workdir.path, total_steps=config.total_steps, start_step=result.step, terms=trained.terms)
        )
        run = _Run(
            config,
            mesh,
            trained,
            optimizer,
            shardings,
            training,
            evaluation_store,
            workdir,
            checkpoints,
            metrics,
            signals,
        )
        for index, phase in enumerate(config.phases):
            resumed = position["phase"] == index
            owed = evaluates_first and resumed
            if (owed or result.step < starts[index] + phase.steps) and not result.exit_code:
                if result.step == starts[index] and phase.moments == "reset":
                    state = reset_moments(state, optimizer)
                state, result = _train_phase(
                    run, index, state, result.step, position["examples_seen"] if resumed else 0, owed
                )
    return dataclasses.replace(result, exit_code=signals.exit_code)


@dataclasses.dataclass(frozen=True)
class _Run:
    """What the phases of a run share."""

    config: Config
    mesh: jax.sharding.Mesh
    objective: Objective
    optimizer: optax.GradientTransformation
    shardings: TrainState
    training: list[Examples]
    evaluation_store: Store | None
    workdir: WorkDirectory
    checkpoints: Checkpoints
    metrics: Metrics
    signals: StopSignals


def _train_phase(
    run: _Run, index: int, state: TrainState, begin: int, seen: int, evaluates_first: bool
) -> tuple[TrainState, Result]:
    """Trains from step `begin`, after `seen` sequences of phase `index`, to the end of that phase or until told to stop.

    Args:
      evaluates_first: the evaluation of step `begin` is still to be made.
    """
    config, mesh, phase = run.config, run.mesh, run.config.phases[index]
    end, examples = phase_starts(config)[index] + phase.steps, run.training[index]
    run.signals.saving = None  # the phase before has saved its end
    evaluation = (
        None
        if run.evaluation_store is None
        else Evaluation(
            run.objective,
            config,
            index,
            run.evaluation_store,
            "all" if config.data.eval_path else "held_out",
            mesh,
            run.shardings.params,
        )
    )
    unigram = None if evaluation is None else evaluation.unigram(examples)
    train_step = Program(
        make_train_step(
            run.objective,
            run.optimizer,
            mesh,
            run.shardings,
            clip_norm=config.optimizer.clip_norm,
            micro_batches=phase.micro_batches,
            schedule=functools.partial(learning_rate, config),
            seed=config.seed,
        )
    )
    rates = Rates(_peak_flops())
    reporter = PhaseReporter(run.metrics, rates, config, index)
    stream = batches(
        examples,
        seen,
        phase.batch_size,
        sharding.host_rows(mesh, phase.batch_size),
        end - begin,
        loader=config.data.loader,
        prefetch=config.data.prefetch,
    )
    step, evaluated, wanted, main = begin, {}, False, run.objective.terms[0].loss

    def save() -> None:
        reporter.finish()
        if run.workdir.secure():
            run.checkpoints.reload()
            run.metrics.reload()
        position = {"phase": index, "examples_seen": seen + (step - begin) * phase.batch_size}
        with rates.paused():
            run.checkpoints.save(step, state, position=position, config=to_dict(config), metrics=evaluated or None)

    def save_for_good() -> None:
        for _ in range(2):  # a directory that is lost while it is written to is noticed by the next save
            save()
            run.checkpoints.wait()

    try:
        with contextlib.closing(stream):
            for step in range(begin, end + 1):  # `state` is that after `step` steps
                run.signals.saving, evaluated = step if step > begin else None, {}
                if evaluation and _evaluates(config, step) and (step > begin or evaluates_first):
                    reporter.finish()
                    with rates.paused():
                        evaluated = evaluation.run(state.params, run.signals)
                        run.metrics.write(step, evaluated, kind="evaluation")
                        _draw(run, unigram)
                if step == end:
                    break
                if step > begin:
                    wanted = (
                        wanted or due(step, config.checkpoint.every_steps) or evaluated and config.checkpoint.keep_best
                    )
                    # A state whose loss is not finite would push out a good one; the next that is finite is saved.
                    if wanted and reporter.is_finite() and math.isfinite(evaluated.get(main, 0.0)):
                        save()
                        wanted = False
                with rates.paused() if step == begin else contextlib.nullcontext():  # which starts the pipeline
                    batch = sharding.to_global(mesh, next(stream), phase.batch_size)
                train_step.prepare(state, batch, signals=run.signals, rates=rates)
                run.signals.check()
                run.signals.saving = step + 1
                state, values = train_step(state, batch)
                reporter.dispatched(step + 1, values)
                run.checkpoints.poll()
        if step > begin:
            save_for_good()
    except Stopped:
        if step > begin:
            save_for_good()
            run.signals.saved(step)
    if step > begin:
        reporter.finish()
        _draw(run, unigram)
    # A signal that nobody has asked for any more is the next phase's to answer, on every host; what there is, is saved.
    return state, Result(step, evaluated, run.signals.exit_code)


def _evaluates(config: Config, step: int) -> bool:
    """Whether the held-out documents, if there are any, are evaluated after `step`."""
    return step == config.total_steps or due(step, config.evaluation.every_steps)


def _lacks_evaluation(config: Config, evaluation_store: Store | None, step: int) -> bool:
    """Whether the evaluation after `step`, to which the run has come before, is not in its log."""
    if evaluation_store is None or not _evaluates(config, step):
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


def _open_source(config: Config, resumed: bool) -> StoredModel | None:
    """Return what init_from names; None without it, and in a run that is resumed, which does not look at it again."""
    if not config.init_from or resumed:
        return None
    from bert_jax.pretrained.loading import open_stored  # the readers of all formats, which most runs do without

    source = open_stored(config.init_from)
    check_fit(source)
    check_architecture(source, config.model)
    return source


def _open_stores(config: Config) -> tuple[Store, Store | None]:
    """The store to train on and the one to evaluate on (None: nothing is held out)."""
    store = open_store(config.data.path, config.data.cache)
    if not config.data.eval_path:
        return store, store if config.data.held_out else None
    evaluation_store = open_store(config.data.eval_path, config.data.cache)
    if evaluation_store.tokenizer().fingerprint != store.tokenizer().fingerprint:
        raise UserError(
            f"data.eval_path={config.data.eval_path} was prepared with another vocabulary than "
            f"data.path={config.data.path}; prepare it again with the same --vocab"
        )
    return store, evaluation_store


def _with_vocabulary(config: Config, store: Store) -> Config:
    given = config.model.vocab_size
    if given not in (None, store.vocab_size):
        raise UserError(
            f"model.vocab_size={given}, but {config.data.path} was prepared with a vocabulary of {store.vocab_size} "
            "entries; leave model.vocab_size out (it is taken from the store), or prepare the corpus with the other "
            "vocabulary"
        )
    return dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=store.vocab_size))


def _training_examples(store: Store, config: Config, index: int) -> Examples:
    # A phase of its own seed: with the same length as the one before it would otherwise begin with the same pairs and masks.
    examples = Examples(store, config, index, split="train", seed=config.seed + (index << 32))
    check_epoch(examples, config.phases[index].batch_size)
    return examples


def _fingerprints(config: Config, store: Store, evaluation_store: Store | None, source: StoredModel | None) -> dict:
    """Of what the options PER_HOST name, which must be the same on every host."""
    return {
        "store_fingerprint": store.fingerprint,
        "tokenizer_fingerprint": store.manifest.tokenizer.fingerprint,
        "evaluation_store_fingerprint": None if evaluation_store is None else evaluation_store.fingerprint,
        "evaluation_split": "all" if config.data.eval_path else "held_out",
        "init_from_fingerprint": None if source is None else stored_fingerprint(source.arrays),
    }


def _announce(
    config: Config,
    mesh,
    model: BertForPreTraining,
    store: Store,
    training: list[Examples],
    step: int,
    report: Report | None,
) -> None:
    """Every derived quantity that people check before they leave a run alone."""
    if jax.process_index() != 0:
        return
    console = Console(highlight=False)
    device = hardware.hardware()
    print_ = lambda text: console.print(text, markup=False, soft_wrap=True)
    print_(f"{device}" + (f"; {note}" if (note := hardware.idle_accelerator()) else ""))
    print_(
        f"model: {total_size(model.parameters):,} parameters, {config.model.num_layers} layers, hidden size "
        f"{config.model.hidden_size}, vocabulary {config.model.vocab_size:,}"
    )
    print_(
        f"data: {store.num_tokens:,} tokens in {store.num_documents:,} documents, {len(training[0].documents):,} of them "
        "to train on"
    )
    for index, phase in enumerate(config.phases):
        epoch = training[index].num_examples(0)
        print_(
            f"phase {index}: {phase.steps:,} steps of {phase.batch_size:,} sequences of length {phase.sequence_length} "
            f"({phase.batch_size * phase.sequence_length:,} tokens per step), {phase.steps * phase.batch_size / epoch:.3g} "
            f"epochs of {epoch:,} sequences"
        )
    # A pipe or a log file has no width of its own, and rich would take 80 columns.
    wide = console if console.is_terminal else Console(highlight=False, width=200)
    if device.num_devices > 1:
        wide.print(sharding.table(mesh, model.parameters))
    if report is not None:
        wide.print(report.table())
    if step:
        left = config.total_steps - step
        print_(
            f"resuming from step {step:,} of {config.workdir}"
            if left > 0
            else f"{config.workdir} has reached its last step, {step:,}; raise the steps of its last phase to train on"
        )


def _draw(run: _Run, unigram: dict[str, float] | None) -> None:
    if run.workdir.is_ours():
        path, name = run.workdir.path, os.path.basename(os.path.normpath(run.config.workdir))
        draw_curves(path / "metrics.jsonl", path / "curves.png", run.objective.terms, unigram, title=name)


def _peak_flops() -> float | None:
    device = hardware.hardware()
    return None if device.peak_flops is None else device.peak_flops * device.num_devices
