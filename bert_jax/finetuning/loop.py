"""`finetune`: a task from its files to results.json, readable from top to bottom."""

import dataclasses
import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
from etils import epath

from bert_jax.checkpoints.fingerprint import stored_fingerprint
from bert_jax.checkpoints.run_files import write_json
from bert_jax.checkpoints.workdir import WorkDirectory
from bert_jax.config.changes import FINETUNING
from bert_jax.config.finetuning import RESULTS, FinetuneConfig
from bert_jax.config.finetuning_checks import check_finetune
from bert_jax.config.json_form import first_lines
from bert_jax.data.sequences.shared_rows import most_sequences
from bert_jax.devices import hardware, sharding
from bert_jax.devices.hosts import check_alike, ending_together, from_first
from bert_jax.devices.signals import StopSignals
from bert_jax.devices.watchdog import Watchdog
from bert_jax.errors import UserError
from bert_jax.finetuning.arguments import from_arguments
from bert_jax.finetuning.benchmark_files import predicted
from bert_jax.finetuning.command import Command
from bert_jax.finetuning.diagnosis import diagnose
from bert_jax.finetuning.directory import drop_losers, keep, open_finetuning, publish, remove
from bert_jax.finetuning.plan import check_length, plan
from bert_jax.finetuning.programs import Programs, check_layers, fitting_head, make_programs
from bert_jax.finetuning.results import best, finished_runs, show, summary
from bert_jax.finetuning.run_record import settings
from bert_jax.finetuning.training import train
from bert_jax.formats.fit import check_fit
from bert_jax.formats.opening import open_stored
from bert_jax.formats.stored import StoredModel
from bert_jax.models.kernels.choice import check_attention
from bert_jax.pretrained.loading import load
from bert_jax.pretrained.model import PretrainedModel
from bert_jax.pretrained.teacher import open_task_teacher, stored_task_teacher
from bert_jax.tasks.task_data import TaskData, read_task
from bert_jax.training.announcement import say, say_hardware
from bert_jax.training.attention_used import attention_of
from bert_jax.training.events import Events
from bert_jax.training.joined_hosts import join_hosts
from bert_jax.training.trackers import check_trackers
from bert_jax.training.wall_time import WallTime


@dataclasses.dataclass(frozen=True)
class Result:
    """What a call of `finetune` did."""

    results: dict[str, Any] = dataclasses.field(repr=False)
    """Content of results.json; empty if a signal ended the command before its last run."""
    exit_code: int
    """0; 130 (SIGINT) or 143 (SIGTERM) if a signal ended the command, after the steps made so far were saved."""
    path: str
    """The work directory."""

    @functools.cached_property
    def model(self) -> PretrainedModel:
        """The chosen model, loaded on first access: result.model.predict(texts)."""
        if not self.results:
            raise UserError(
                f"there is no model yet: the training was interrupted; the same call with workdir={self.path!r} "
                "resumes it"
            )
        return load(self.path)


def finetune(
    task: FinetuneConfig | str,
    *,
    train: str | os.PathLike[str] | Iterable[Any] | None = None,
    dev: str | os.PathLike[str] | Iterable[Any] | None = None,
    test: str | os.PathLike[str] | Iterable[Any] | None = None,
    devices: sharding.Devices = None,
    **options: object,
) -> Result:
    """Fine-tune on a task: train every unfinished run of the plan, choose one, predict, and write results.json.

        result = bert_jax.finetune("text", train=[("a text", "its label"), …], dev=[…], init_from=PATH, epochs=3)
        result.model.predict(["another text"])

    Args:
      task: the name of a task, or a FinetuneConfig that has everything.
      train: a file; for the task text also examples in memory: any iterable of (text, label) or ((text, text_b),
        label), such as rows of an array. Labels are names or integers and are returned as str; with regression=True
        they are numbers.
      dev: as `train`.
      test: as `train`. Examples with None for a label are predicted, not scored.
      devices: the devices of the mesh; by default every device of every process.
      **options: fields of FinetuneConfig, and of its groups by their own name if only one group has it
        (max_length=256), otherwise in a dict (optimizer={"name": "lamb"}). Without workdir, results and weights go to a
        new temporary directory.

    Returns:
      The results, also in results.json, an exit code and the chosen model.

    Raises:
      UserError: the options, the checkpoint, the data or the work directory cannot be used, and nothing has been
        changed; or a checkpoint could not be written.
    """
    config, given = from_arguments(task, {"train": train, "dev": dev, "test": test}, options)
    if isinstance(task, str) and not options.get("workdir"):
        # This must come before JAX is asked for the number of hosts.
        hardware.initialize_distributed(config.faults.peer_timeout_seconds)
        if hardware.hardware().num_processes > 1:
            raise UserError("several hosts need one workdir that all of them see: give workdir=…")
        say(f"no workdir was given: results and weights go to {config.workdir}")
    return _finetune(config, given, devices)


@ending_together
def _finetune(config: FinetuneConfig, given: Mapping[str, Sequence[Any]], devices: sharding.Devices) -> Result:
    wall_time = WallTime()
    join_hosts(config, FINETUNING.where)
    mesh = sharding.make_mesh(check_finetune(config).mesh, devices)
    check_attention(config.compute, mesh.devices.flat[0].platform)
    check_trackers(config.sinks)
    if config.task == "ax":  # a test set for models of mnli: there is nothing to train
        return Result(diagnose(config, mesh), 0, config.workdir)
    stored = _open_model(config)
    taught_by = stored_task_teacher(config, stored.need_tokenizer())
    data = read_task(config, stored.model, stored.need_tokenizer(), given)
    check_length(config, len(data.train.features))
    stored, note = fitting_head(stored, data.head)
    teacher = open_task_teacher(taught_by, config, data.head, mesh)
    programs = make_programs(config, stored.model, data.head, mesh, teacher)

    results: dict[str, Any] = {}
    with (
        Watchdog(config.faults.step_timeout_seconds) as watchdog,
        StopSignals(watchdog) as signals,
        _open_directory(config, stored, data, programs) as workdir,
        Events(workdir.path, signals) as events,
    ):
        watchdog.report = lambda seconds, place: events.write("hung", events.step, seconds=seconds, place=place)
        command = Command(config, data, stored, programs, workdir, events, signals, wall_time)
        _announce(command, note)
        _train_runs(command)
        signals.check()
        results = _conclude(command)
    if signals.exit_code:
        return Result({}, signals.exit_code, config.workdir)
    if jax.process_index() == 0:
        show(results)
    return Result(results, 0, config.workdir)


def _open_model(config: FinetuneConfig) -> StoredModel:
    """Return the model to start from; raise a UserError if it cannot be opened, or the options do not fit it."""
    stored = open_stored(config.init_from)
    check_fit(stored)
    check_layers(config, stored.model)
    if stored.tokenizer is None:
        raise UserError(
            f"init_from={stored.path} has no vocabulary; put the vocab.txt (or SentencePiece .model) there that it "
            "was trained with"
        )
    return stored


def _open_directory(config: FinetuneConfig, stored: StoredModel, data: TaskData, programs: Programs) -> WorkDirectory:
    """Take the work directory, once all hosts have the same model, data and settings."""
    init_from_fingerprint = None if config.random_weights else stored_fingerprint(stored.arrays)
    features_fingerprint, wanted = data.fingerprint(), settings(config, programs, data)
    check_alike(
        lambda: {
            "features_fingerprint": features_fingerprint,
            "test_fingerprint": data.test_fingerprint(),
            "init_from_fingerprint": init_from_fingerprint,
            "tokenizer_fingerprint": stored.need_tokenizer().fingerprint,
            "teacher": programs.teacher,
            "settings": wanted,
        },
        FINETUNING.below("settings.finetune").where,
    )
    devices = list(programs.mesh.devices.flat)
    return open_finetuning(
        config.workdir,
        wanted,
        features_fingerprint,
        init_from_fingerprint,
        stored.need_tokenizer(),
        devices,
        programs.teacher,
    )


def _train_runs(command: Command) -> None:
    """Train every run of the plan that is not finished, and write its record."""
    config, workdir = command.config, command.workdir
    for run in plan(config):
        directory = workdir.path / "runs" / run.name
        if not from_first((directory / RESULTS).exists()):
            record = train(run, command)
            workdir.secure()
            _write_once(directory / RESULTS, record)
            if config.keep == "best":
                drop_losers(workdir, command.data.main_metric)
        remove(directory / "training")


def _conclude(command: Command) -> dict[str, Any]:
    """Choose a run, publish its weights, predict, write results.json and return its content."""
    config, data, workdir = command.config, command.data, command.workdir
    workdir.secure()
    records = from_first(finished_runs(workdir.path / "runs", data.main_metric))
    if gone := [run.name for run in plan(config) if run.name not in {record["run"] for record in records}]:
        raise UserError(
            f"the results of {first_lines(gone)} were deleted with {workdir.path} during this command; the same "
            "command trains these runs again"
        )
    chosen = best(records, data.main_metric)
    params = publish(workdir, chosen, command.programs.mesh)
    facts = predicted(workdir.path, data, command.programs, params, chosen, config.eval_batch_size, command.signals)
    facts |= {"data": _sizes(data), "truncated": data.truncated, "labels": list(data.head.labels)}
    results = summary(config, records, data.main_metric, facts)
    if workdir.secure():
        raise UserError(
            f"{workdir.path} was deleted or renamed while predictions were written; start the same command again"
        )
    _write_once(workdir.path / RESULTS, results)
    for record in records:
        keep(workdir, config.keep, record, chosen, command.stored.need_tokenizer())
    return results


def _write_once(file: epath.Path, values: dict[str, Any]) -> None:
    if jax.process_index() == 0:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, values)


def _sizes(data: TaskData) -> dict[str, int]:
    return {name: len(split.examples) for name, split in data.splits.items()}


def _announce(command: Command, note: str) -> None:
    config, data = command.config, command.data
    sizes = ", ".join(f"{name} {size:,}" for name, size in _sizes(data).items())
    runs = plan(config)
    say_hardware(command.programs.mesh)
    say(
        f"{config.task}: {sizes} examples; {len(data.train.features):,} sequences to train on; "
        + (f"labels {', '.join(data.head.labels)}" if data.head.labels else f"a {data.head.kind} head")
    )
    for name, split in data.splits.items():
        if (uncut := split.features.uncut) and uncut.share:
            say(uncut.advise(name, command.stored.model.longest_sequence))
    rows = config.batch_size // config.micro_batches
    length = config.options.max_length
    texts = min(config.batch_size, most_sequences(length)) if config.packing else 1
    path = attention_of(command.stored.model, config.compute, command.programs.mesh, rows, length, texts)
    layout = "shared by several sequences" if config.packing else "of one sequence each"
    remat = command.programs.model.compute.remat
    say(f"attention by {path} (rows of up to {length} tokens, {layout}); remat: {remat}")
    if note:
        say(note)
    layers, epochs = command.stored.model.num_layers, min(run.epochs for run in runs)
    if config.gradual_unfreezing and epochs < layers + 2:
        say(
            f"gradual unfreezing: {epochs} epochs train the head and the top {epochs - 1} of {layers} layers; all, and "
            f"the embeddings, learn from --epochs={layers + 2} on"
        )
    say(f"runs: {len(runs)}, namely {', '.join(run.name for run in runs[:3])}{', …' if len(runs) > 3 else ''}")
