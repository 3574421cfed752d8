"""`finetune`: a task from its files to results.json, readable from top to bottom."""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from etils import epath
from rich.console import Console

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.fingerprint import stored_fingerprint
from bert_jax.checkpoints.workdir import WorkDirectory, id_below, write_json
from bert_jax.config import CheckpointConfig
from bert_jax.config.finetuning import FinetuneConfig, check_finetune
from bert_jax.config.json_form import first_lines, to_dict
from bert_jax.data.sequences.batching import TrainingBatches
from bert_jax.devices import hardware, sharding
from bert_jax.devices.compilation_cache import use_compilation_cache
from bert_jax.devices.hosts import check_alike, ending_together, from_first
from bert_jax.devices.signals import Stopped, StopSignals
from bert_jax.errors import UserError
from bert_jax.finetuning.arguments import from_arguments
from bert_jax.finetuning.collapse import collapsed, ignores_input
from bert_jax.finetuning.directory import LATEST, drop_losers, keep, open_workdir, publish, remove
from bert_jax.finetuning.plan import Run, check_cooldown, learning_rates, plan
from bert_jax.finetuning.prediction import diagnose, predict_logits
from bert_jax.finetuning.programs import Programs, first_state, fitting_head, make_programs
from bert_jax.finetuning.results import RECORD, best, earlier_predictions, finished_runs, show, summary
from bert_jax.formats.fit import check_fit
from bert_jax.formats.stored import StoredModel
from bert_jax.models.task import BertForTask
from bert_jax.pretrained.loading import load, open_stored
from bert_jax.pretrained.model import PretrainedModel
from bert_jax.tasks.squad import tuned
from bert_jax.tasks.squad.windows import SpanFeatures
from bert_jax.tasks.task_data import TaskData, read_task
from bert_jax.training.metrics import Metrics
from bert_jax.training.task_reporter import Reporter

STATES = CheckpointConfig(keep_last=2, keep_best=0)
PER_HOST = ("init_from", *(f"data.{name}" for name in ("dir", "train", "dev", "test", "tfds", "tfds_dir")))
"""Options that may be different on each host: where copies of the same model and data lie."""


@dataclasses.dataclass(frozen=True)
class Result:
    results: dict = dataclasses.field(repr=False)
    """Content of results.json; empty if a signal ended the command before its last run."""
    exit_code: int
    """0; 130 or 143 if a signal ended it, which has saved what steps it had made."""
    path: str
    """The work directory."""

    @functools.cached_property
    def model(self) -> PretrainedModel:
        """The chosen model, loaded when it is first asked for: result.model.predict(texts)."""
        if not self.results:
            raise UserError(
                f"there is no model yet: the training was interrupted; the same call with workdir={self.path!r} "
                "resumes it"
            )
        return load(self.path)


def finetune(task: FinetuneConfig | str, *, train=None, dev=None, test=None, **options) -> Result:
    """Fine-tune on a task: train every run of the plan that is not finished, choose one, predict, and write results.json.

        result = bert_jax.finetune("text", train=[("a text", "its label"), …], dev=[…], init_from=PATH, epochs=3)
        result.model.predict(["another text"])

    Args:
      task: the name of a task, or a FinetuneConfig that has everything.
      train, dev, test: a file each; for the task text also examples in memory: any iterable of (text, label) or
        ((text, text_b), label), rows of an array among them. Labels are names or whole numbers, and come back as str; with
        regression=True they are numbers. With None for labels `test` is predicted only.
      options: fields of FinetuneConfig, and of its groups by their own name where one group has it (max_length=256), else in
        a dict (optimizer={"name": "lamb"}). Without workdir, results and weights go to a new temporary directory.

    Raises:
      UserError: the options, the checkpoint, the data or the work directory cannot be used, and nothing has been changed; or
        a checkpoint could not be written.
    """
    config, given = from_arguments(task, {"train": train, "dev": dev, "test": test}, options)
    if isinstance(task, str) and not options.get("workdir"):
        hardware.initialize_distributed()  # which must come before jax is asked for hosts
        if jax.process_count() > 1:
            raise UserError("several hosts need one workdir that all of them see: give workdir=…")
        _say(f"no workdir was given: results and weights go to {config.workdir}")
    return _finetune(config, given)


@ending_together
def _finetune(config: FinetuneConfig, given: Mapping[str, Sequence]) -> Result:
    hardware.initialize_distributed()
    check_alike(lambda: to_dict(config), PER_HOST)
    use_compilation_cache()
    mesh = sharding.make_mesh(check_finetune(config).mesh)
    if config.task == "ax":  # a test of models of mnli: there is nothing to train
        return Result(diagnose(config, mesh), 0, config.workdir)
    stored = open_stored(config.init_from)
    check_fit(stored)
    if stored.tokenizer is None:
        raise UserError(
            f"init_from={stored.path} has no vocabulary; put the vocab.txt (or SentencePiece .model) there that it "
            "was trained with"
        )
    data = read_task(config, stored.model, stored.tokenizer, given)
    check_cooldown(config, len(data.train.features))
    stored, note = fitting_head(stored, data.head)
    programs = make_programs(config, stored.model, data.head, mesh)

    with StopSignals() as signals, contextlib.ExitStack() as closing:
        parameters = None if config.random_weights else stored_fingerprint(stored.arrays)
        features = data.fingerprint()
        check_alike(
            lambda: {
                "features_fingerprint": features,
                "test_fingerprint": data.test_fingerprint(),
                "init_from_fingerprint": parameters,
                "tokenizer_fingerprint": stored.tokenizer.fingerprint,
                "settings": settings(config, programs, data),
            },
            tuple(f"settings.finetune.{name}" for name in PER_HOST),
        )
        workdir = closing.enter_context(
            open_workdir(config.workdir, settings(config, programs, data), features, parameters, stored.tokenizer)
        )
        _announce(config, data, stored.model.max_position_embeddings, note)
        for run in plan(config):
            directory = workdir.path / "runs" / run.name
            if not from_first((directory / RECORD).exists()):
                record = train(run, config, data, stored, programs, workdir, signals)
                workdir.secure()
                _write_once(directory / RECORD, record)
                if config.keep == "best":
                    drop_losers(workdir, data.main_metric)
            remove(directory / "training")
        signals.check()
        workdir.secure()
        records = from_first(finished_runs(workdir.path / "runs", data.main_metric))
        if gone := [run.name for run in plan(config) if run.name not in {record["run"] for record in records}]:
            raise UserError(
                f"the results of {first_lines(gone)} were deleted with {workdir.path} during this command; the same "
                "command trains these runs again"
            )
        chosen = best(records, data.main_metric)
        params = publish(workdir, chosen, mesh)
        predicted = _predicted(workdir.path, data, programs, params, chosen, config.eval_batch_size, signals)
        results = summary(
            config,
            records,
            data.main_metric,
            {**predicted, "data": _sizes(data), "truncated": data.truncated, "labels": list(data.head.labels)},
        )
        if workdir.secure():
            raise UserError(
                f"{workdir.path} was deleted or renamed while predictions were written; start the same command again"
            )
        _write_once(workdir.path / RECORD, results)
        for record in records:
            keep(workdir, config.keep, record, chosen, stored.tokenizer)
    if signals.exit_code:
        return Result({}, signals.exit_code, config.workdir)
    if jax.process_index() == 0:
        show(results)
    return Result(results, 0, config.workdir)


def train(
    run: Run,
    config: FinetuneConfig,
    data: TaskData,
    stored: StoredModel,
    programs: Programs,
    workdir: WorkDirectory,
    signals: StopSignals,
) -> dict:
    """One run, from the checkpoint or from where it was interrupted: its record.

    Leaves the weights that count in runs/NAME/checkpoints of the work directory.

    Raises:
      Stopped: by `signals`, after its state has been saved.
    """
    directory, run_id = workdir.path / "runs" / run.name, id_below(workdir.run_id, run.name)
    mesh, seed, clock = programs.mesh, np.uint32(run.seed), time.perf_counter()
    batches = TrainingBatches(
        data.train.features,
        run.batch_size,
        window=config.bucket_window,
        seed=run.seed,
        multiple=mesh.shape["data"] * mesh.shape["fsdp"] * config.micro_batches,
    )
    epoch, total = batches.steps_per_epoch, run.epochs * batches.steps_per_epoch
    rates, mine = (
        learning_rates(run, config.schedule, config.warmup_share, total),
        sharding.host_rows(mesh, batches.rows),
    )
    record_config = settings(config, programs, data, run)

    with contextlib.ExitStack() as closing:
        states = closing.enter_context(Checkpoints(directory / "training", STATES, run_id=run_id, lost=workdir.is_lost))
        weights = closing.enter_context(
            Checkpoints(directory / "checkpoints", LATEST, run_id=run_id, lost=workdir.is_lost)
        )
        signals.newest = states.latest_step
        # Where the run stands: 1. its newest good state; 2. the parameters of init_from under a fresh head, at step 0.
        restored = states.restore(programs.abstract)
        state, report = first_state(config, stored, programs, seed) if restored is None else (restored.state, None)
        if report is not None:
            _say(
                f"{len(report.loaded)} arrays loaded from {config.init_from}, fresh: {', '.join(report.fresh) or 'none'}"
            )
        begin, position = int(state.step), {} if restored is None else restored.position
        dev = {int(step): entry for step, entry in position.get("dev", {}).items()}
        metrics = closing.enter_context(Metrics(directory, total_steps=total, start_step=begin, evaluated=begin in dev))
        # The second half of the last epoch: a run of one epoch begins with losses of a model that knows nothing.
        reporter = Reporter(metrics, config.log_every_steps, total, max(1, epoch // 2), position.get("totals"))

        def secure() -> None:
            if workdir.secure():
                for written in (states, weights, metrics):
                    written.reload()

        def save_state(step: int) -> None:
            reporter.finish()
            secure()
            where = {"step": step, "dev": {str(evaluated): entry for evaluated, entry in dev.items()}}
            with reporter.rates.paused():
                states.save(step, state, position=where | {"totals": dict(reporter.totals)}, config=record_config)

        try:
            for step in range(begin, total + 1):  # `state` is that after `step` steps
                signals.saving = step if step > begin else None
                if step and step % epoch == 0 and step not in dev:
                    reporter.finish()
                    with reporter.rates.paused():
                        scores, ignored = evaluate(data, programs, state.params, config.eval_batch_size, signals)
                        earlier = [entry["metrics"][data.main_metric] for entry in dev.values()]
                        secure()
                        is_best = scores[data.main_metric] > max(earlier, default=-np.inf)
                        if step == total if config.select == "last" else is_best:
                            weights.save(
                                step,
                                {"params": state.params},
                                position={"step": step},
                                config=record_config,
                                metrics=scores,
                            )
                            # Else the state below could be all that a kill leaves, and nobody would save the weights again.
                            weights.wait()
                        metrics.write(step, {f"dev_{name}": value for name, value in scores.items()}, kind="evaluation")
                    dev[step] = {"metrics": scores, "ignored": ignored}
                    save_state(step)
                if step == total:
                    break
                batch = batches.batch(step)
                batch = sharding.to_global(mesh, {name: values[mine] for name, values in batch.items()}, batches.rows)
                programs.train_step.prepare(state, batch, rates[step], seed, signals=signals, rates=reporter.rates)
                signals.check()
                signals.saving = step + 1
                state, values = programs.train_step(state, batch, rates[step], seed)
                reporter.dispatched(step + 1, values, batch["input_ids"].shape)
                states.poll()
                if (step + 1) % config.save_every_steps == 0:
                    save_state(step + 1)
        except Stopped:
            if step > begin:
                for _ in range(2):  # a directory that is lost while it is written to is noticed by the next save
                    save_state(step)
                    states.wait()
                signals.saved(step)
            raise
        signals.saving = None
        weights.wait()
        counted = weights.latest_step()
        if counted is None:
            raise UserError(
                f"the weights of {run.name} were deleted with {workdir.path} during the run; remove {directory} to "
                "train it again"
            )

    record = _record(run, config, data, programs, reporter, dev, counted)
    return record | {
        "init_from_step": stored.history.get("step"),
        "seconds_since_last_start": round(time.perf_counter() - clock, 1),
    }


def _record(
    run: Run,
    config: FinetuneConfig,
    data: TaskData,
    programs: Programs,
    reporter: Reporter,
    dev: dict[int, dict],
    counted: int,
) -> dict:
    """Return what results.json says of a run whose evaluations by step are `dev`, and whose weights of step `counted` count."""
    loss, skipped = reporter.tail_loss, reporter.totals["skipped"]
    return {
        "run": run.name,
        "setting": run.setting,
        "seed": run.seed,
        "metrics": dev[counted]["metrics"],
        "collapsed": collapsed(data.head, data.train.features, dev[counted]["ignored"], loss, skipped),
        "step": counted,
        "steps": max(dev),
        "training_loss": loss if np.isfinite(loss) else None,
        "epochs": [{"epoch": epoch, **dev[step]["metrics"]} for epoch, step in enumerate(sorted(dev), 1)],
        "keep": config.keep,
        "hyperparameters": _hyperparameters(run, config, programs.model),
    }


def evaluate(
    data: TaskData, programs: Programs, params, batch_size: int, signals: StopSignals
) -> tuple[dict[str, float], str | None]:
    """Metrics on dev (and, with `mismatched_` before their names, on MNLI's second dev set), and what `ignores_input` says."""
    results, ignored = {}, None
    for name, split in data.evaluations.items():
        logits = predict_logits(
            programs.predict_step, params, split.features, data.head, batch_size, programs.mesh, signals
        )
        prefix = name.removeprefix("dev").removeprefix("_")
        results |= {
            f"{prefix}_{key}" if prefix else key: float(value)
            for key, value in data.family.score(split.examples, split.features, logits).items()
        }
        if name == "dev":
            ignored = ignores_input(data.head, split.features, logits, results)
    return results, ignored


def settings(config: FinetuneConfig, programs: Programs, data: TaskData, run: Run | None = None) -> dict:
    """What config.json and every checkpoint say; of a run, with its own hyper-parameters."""
    if run is not None:
        config = dataclasses.replace(config, **dataclasses.asdict(run))
    return {
        "model": to_dict(programs.model.config),
        "head": to_dict(programs.model.head),
        "compute": to_dict(config.compute),
        "finetune": to_dict(config),
        "pairs": data.pairs,
        **({} if run is None else {"run": run.name}),
    }


def _hyperparameters(run: Run, config: FinetuneConfig, model: BertForTask) -> dict:
    return {
        "batch_size": run.batch_size,
        "learning_rate": run.learning_rate,
        "epochs": run.epochs,
        "warmup_share": config.warmup_share,
        "schedule": config.schedule.name,
        "optimizer": config.optimizer.name,
        "weight_decay": config.optimizer.weight_decay,
        "layer_decay": config.layer_decay,
        "reinitialize_layers": config.reinitialize_layers,
        "hidden_dropout": model.config.hidden_dropout,
        "attention_dropout": model.config.attention_dropout,
        "head_dropout": model.head.dropout,
        "crf": model.head.crf,
        "features": model.head.features,
        "dtype": str(model.encoder.dtype),
        "max_length": config.options.max_length,
        "bucket_window": config.bucket_window,
        "select": config.select,
    }


def _predicted(
    path: epath.Path, data: TaskData, programs: Programs, params, chosen: dict, batch_size: int, signals: StopSignals
) -> dict:
    """Facts for results.json: metrics on the test sets that have labels, and which files of predictions there are.

    They are left as an earlier command wrote them if they are there and of the same run and test sets.
    """
    place, tests_now = path / "predictions", data.test_fingerprint()
    before = from_first(earlier_predictions(path / RECORD))
    if before is not None:
        made = before["predictions"]
        same = (before["run"], before["metrics"], made["test_fingerprint"]) == (
            chosen["run"],
            chosen["metrics"],
            tests_now,
        )
        if same and from_first(all((place / file).exists() for file in made["files"])):
            return {"tests": before["tests"], "predictions": made}
    tests, files = _write_predictions(place, data, programs, params, batch_size, chosen["metrics"], signals)
    return {"tests": tests, "predictions": {"test_fingerprint": tests_now, "files": files}}


def _write_predictions(
    directory: epath.Path,
    data: TaskData,
    programs: Programs,
    params,
    batch_size: int,
    metrics: dict[str, float],
    signals: StopSignals,
) -> tuple[dict[str, dict[str, float]], list[str]]:
    """Files of the benchmark's form for every split that is not trained on; `metrics` are those of `params` on dev.

    Returns the metrics on the test sets that have labels, and the names of the files below `directory` (on the first host).
    """
    tests, written = {}, []
    for name, split in (data.evaluations | data.tests).items():
        features = split.features
        if name in data.tests and isinstance(
            features, SpanFeatures
        ):  # answered by dev's threshold, never by one of its own
            features = dataclasses.replace(features, options=tuned(features.options, metrics))
        logits = predict_logits(programs.predict_step, params, features, data.head, batch_size, programs.mesh, signals)
        if jax.process_index() == 0:
            (directory / name).mkdir(parents=True, exist_ok=True)
            files = data.family.write_predictions(split.examples, features, logits, directory / name, name)
            written += [f"{name}/{epath.Path(file).name}" for file in files]
        if name in data.tests and split.examples.has_answers:
            tests[name] = {
                key: float(value) for key, value in data.family.score(split.examples, features, logits).items()
            }
    return tests, written


def _write_once(file: epath.Path, values: dict) -> None:
    if jax.process_index() == 0:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, values)


def _sizes(data: TaskData) -> dict[str, int]:
    return {name: len(split.examples) for name, split in data.splits.items()}


def _announce(config: FinetuneConfig, data: TaskData, positions: int, note: str) -> None:
    sizes = ", ".join(f"{name} {size:,}" for name, size in _sizes(data).items())
    runs = plan(config)
    _say(f"{hardware.hardware()}" + (f"; {idle}" if (idle := hardware.idle_accelerator()) else ""))
    _say(
        f"{config.task}: {sizes} examples; {len(data.train.features):,} sequences to train on; "
        + (f"labels {', '.join(data.head.labels)}" if data.head.labels else f"a {data.head.kind} head")
    )
    for name, split in data.splits.items():
        if (uncut := split.features.uncut) and uncut.share:
            _say(uncut.advise(name, positions))
    if note:
        _say(note)
    _say(f"runs: {len(runs)}, namely {', '.join(run.name for run in runs[:3])}{', …' if len(runs) > 3 else ''}")


def _say(text: str) -> None:
    if jax.process_index() == 0:
        Console(highlight=False).print(text, markup=False, soft_wrap=True)
