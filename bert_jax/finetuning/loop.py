"""`finetune`: a task from its files, or from examples in memory, to results.json; read it from top to bottom.

predictions/ of the work directory has the answers of the chosen model on every split that is not trained on. A model
also answers the diagnostic sets of its task (`DIAGNOSES`), without being trained on them.
"""

import dataclasses
import difflib
import functools
import os
import pathlib
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath
from jax.sharding import Mesh

from bert_jax.checkpoints.record import stored_fingerprint
from bert_jax.checkpoints.workdir import (
    Rules,
    WorkDirectory,
    open_workdir,
    read_json,
    refused_changes,
    with_commits,
    write_json,
)
from bert_jax.config import AttentionConfig, ComputeConfig, EncoderConfig, HeadConfig
from bert_jax.config.checks import check_trackers
from bert_jax.config.finetuning import (
    RESULTS,
    FinetuneConfig,
    FinetuningRecord,
    PredictConfig,
    check_finetune,
    task_defaults,
)
from bert_jax.config.heads import TokenVectors, WordVector
from bert_jax.config.options import differing_options, dotted_names, from_dict, from_record, to_dict
from bert_jax.config.tasks import (
    DiagnosticOptions,
    DividedDataConfig,
    RankingOptions,
    SequenceOptions,
    VectorOptions,
)
from bert_jax.data.sequences import most_sequences
from bert_jax.devices import hardware, sharding
from bert_jax.devices.hosts import check_alike, commit, ending_together, from_first, versions
from bert_jax.devices.signals import StopSignals, Watchdog
from bert_jax.errors import UserError, first_lines
from bert_jax.files import write_atomically
from bert_jax.finetuning.plan import check_length, plan
from bert_jax.finetuning.prediction import check_member, options_of, say_what_is_cut, write_predictions
from bert_jax.finetuning.programs import (
    check_layers,
    fitting_head,
    make_programs,
    member_logits,
    score_shape,
    task_loss,
)
from bert_jax.finetuning.results import (
    METRICS,
    PAGE_NAME,
    best,
    class_page,
    class_report,
    earlier_predictions,
    finished_runs,
    show,
    summary,
)
from bert_jax.finetuning.run import (
    SCORES,
    Tuning,
    drop_losers,
    keep,
    publish,
    publish_adapter,
    read_scores,
    remove,
    settings,
    train_run,
    with_packing,
    write_scores,
)
from bert_jax.formats.opening import open_stored
from bert_jax.formats.stored import StoredModel, check_fit, left_out
from bert_jax.models.kernels.choice import check_attention
from bert_jax.models.pooling import check_pooling
from bert_jax.pretrained.model import PretrainedModel, load
from bert_jax.pretrained.teacher import open_task_teacher, stored_task_teacher
from bert_jax.tasks import readers
from bert_jax.tasks.sentences import SentenceFeatures
from bert_jax.tasks.squad import SpanFeatures
from bert_jax.tasks.task_data import Metric, TaskData, TaskFamily, check_metrics, family_for, folds, read_task, tuned
from bert_jax.tasks.vectors import VectorExamples
from bert_jax.training.events import Events
from bert_jax.training.learner import attention_of
from bert_jax.training.metrics import WallTime
from bert_jax.training.reporter import say, say_hardware
from bert_jax.training.run import Started, join_hosts
from bert_jax.training.trackers import screen

IN_MEMORY = "(in memory)"  # what the configuration has in place of a file


def from_arguments(
    task: FinetuneConfig | str, splits: Mapping[str, object], options: Mapping[str, object]
) -> tuple[FinetuneConfig, dict[str, list[Any]]]:
    """Return the configuration and, for each split given in memory, its rows.

    Args:
      task: a task, with its defaults, or a configuration to change.
      splits: train, dev and test, each a file, what `readers.in_memory` reads, a DatasetDict, or None.
      options: values by name, see `finetune`. Without `workdir`, a task gets a new temporary directory.

    Raises:
      UserError: an option is unknown or ambiguous, or its value has the wrong type; examples are given for a task that
        is not trained, or together with options for files.
    """
    if not isinstance(task, FinetuneConfig | str):
        raise UserError(f"finetune takes a task or a FinetuneConfig first, not {task!r:.60}")
    values = to_dict(task if isinstance(task, FinetuneConfig) else task_defaults(task))
    values = to_dict(from_dict(FinetuneConfig, values))  # with the kinds of its task
    if not isinstance(options.get("init_from", ""), str | os.PathLike):
        raise UserError(
            f"init_from takes the path of a model, not a {type(options['init_from']).__name__}; model.save(path) "
            "writes one that was edited, and then init_from=path"
        )
    for name, value in options.items():
        _set(values, name, _plain(value))
    given, data = {}, values["data"]
    for split, source in readers.out_of_dicts(splits).items():
        if isinstance(source, str | os.PathLike):
            data[split] = os.fspath(source)
        elif source is not None:
            data[split], given[split] = IN_MEMORY, readers.in_memory(split, source)
    if given:
        _check_in_memory(values["task"], data, given)
    if isinstance(task, str) and not values["workdir"]:
        values["workdir"] = str(pathlib.Path(tempfile.gettempdir()) / f"bert_jax_{uuid.uuid4().hex[:12]}")
    return from_dict(FinetuneConfig, values), given


def _check_in_memory(task: str, data: Mapping[str, object], given: Mapping[str, list[Any]]) -> None:
    """Raise UserError if the rows of `given` are not enough, or an option refers to other data and would be ignored."""
    if task in DiagnosticOptions.chosen_for:
        raise UserError(f"{', '.join(given)} in memory: {task} is not trained and reads files: give dir=DIRECTORY")
    for name in ("tfds", "hub"):
        if data[name]:
            raise UserError(
                f"{name}={data[name]!r} has all splits, but {' and '.join(given)} are given in memory too; leave one "
                "of the two out"
            )
    columns = [name for name in ("text_column", "pair_column", "label_column", "weight_column") if data.get(name)]
    read = data["dir"] or any(data[split] not in ("", IN_MEMORY) for split in ("train", "dev", "test"))
    named = any(readers.has_names(row) for rows in given.values() for row in rows[:1])
    if columns and not read and not named:
        raise UserError(
            f"{columns[0]}={data[columns[0]]!r} names a column, but all examples are in memory without such names, "
            "such as (text, label); leave it out, or give a data frame or dicts"
        )


def _set(values: dict[str, Any], name: str, value: Any) -> None:
    """Put an option in its place: a field, a group of fields, or a field of a group by its dotted or its own name."""
    if name in values:
        if isinstance(values[name], dict) and not isinstance(value, dict):
            raise UserError(f"{name} takes a dict of its options ({', '.join(values[name])}), not {value!r:.60}")
        if isinstance(value, dict):
            value = values[name] | {key: _listed(values[name].get(key), each) for key, each in value.items()}
        values[name] = _listed(values[name], value)
        return
    known = dotted_names(FinetuneConfig)
    found = [name] if name in known else [full for full in known if full.endswith(f".{name}")]
    found = [full for full in found if _is_there(values, full)] or found  # not what only other tasks have
    if len(found) != 1:
        raise UserError(_unclear(name, found, known))
    *groups, last = found[0].split(".")
    for group in groups:
        values = values[group]
    values[last] = _listed(values.get(last), value)


def _listed(before: Any, value: Any) -> Any:
    """Return the value of an option that holds several: of a dict NAME=VALUE each, of a text what is between commas."""
    if isinstance(before, list) and isinstance(value, Mapping):
        return [f"{name}={each}" for name, each in value.items()]
    return [*filter(None, value.split(","))] if isinstance(before, list) and isinstance(value, str) else value


def _is_there(values: Mapping[str, Any], name: str) -> bool:
    """Return whether nested dicts have an entry of this dotted name."""
    first, _, rest = name.partition(".")
    return first in values and (not rest or isinstance(values[first], dict) and _is_there(values[first], rest))


def _unclear(name: str, found: list[str], known: Sequence[str]) -> str:
    if found:
        group, _, last = found[0].rpartition(".")
        return f"{name} is ambiguous: {' or '.join(found)}; write {group}={{{last!r}: …}}"
    close = difflib.get_close_matches(name, [*known, *(full.split(".")[-1] for full in known)], n=1)
    hint = f"perhaps you meant {close[0]}" if close else "`bert-jax finetune TASK --help` lists them"
    return f"unknown option {name!r}; {hint}"


def _plain(value: Any):
    """Return an option's value as JSON: dataclasses as dicts, NumPy numbers as Python numbers, paths as text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_dict(value)
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def predicted(
    path: epath.Path, tuning: Tuning, params: Any, chosen: dict[str, Any], signals: StopSignals
) -> dict[str, Any]:
    """Return facts for results.json: metrics on the test sets that have labels, and the files of predictions.

    Files of an earlier command stay as they are if they are complete and belong to the same run and test sets.
    """
    place, tests_now = path / "predictions", tuning.data.test_fingerprint()
    before = from_first(earlier_predictions(path / RESULTS))
    if before is not None:
        made = before["predictions"]
        same = all(before[name] == chosen[name] for name in ("run", "metrics"))
        same = same and made["test_fingerprint"] == tests_now
        if same and from_first(all((place / file).exists() for file in made["files"])):
            return {name: before[name] for name in ("tests", "report", "predictions")}
    tests, report, files = answer_splits(place, tuning, params, chosen["metrics"], signals)
    return {"tests": tests, "report": report, "predictions": {"test_fingerprint": tests_now, "files": files}}


def answer_splits(
    directory: epath.Path, tuning: Tuning, params: Any, metrics: dict[str, float], signals: StopSignals
) -> tuple[dict[str, dict[str, float]], dict[str, Any], list[str]]:
    """Write files in the benchmark's format for every split that is not trained on; `metrics` are those on dev.

    Returns:
      Metrics on the test sets that have labels and, on the first host, figures of the classes of texts on dev and the
      names of the files below `directory`.
    """
    tests, report, written, data = {}, {}, [], tuning.data
    for name, split in (data.evaluations | data.tests).items():
        features = split.features
        # A test set is answered with the thresholds of dev, never with its own.
        if name in data.tests and isinstance(features, SpanFeatures | SentenceFeatures):
            features = dataclasses.replace(features, options=tuned(features.options, metrics, data.head))
        logits = tuning.logits(params, features, signals)
        if jax.process_index() == 0:
            (directory / name).mkdir(parents=True, exist_ok=True)
            place = os.fspath(directory / name)
            files = data.family.write_predictions(split.examples, features, logits, place, name)
            written += [f"{name}/{epath.Path(file).name}" for file in files]
            if name in data.evaluations and isinstance(features, SentenceFeatures) and data.head.labels:
                report[name] = class_report(split.examples, features, logits)
                page = class_page(f"{data.task}, {name}", split.examples, features, logits, report[name])
                write_atomically(directory / name / PAGE_NAME, page.encode())
                written.append(f"{name}/{PAGE_NAME}")
        if name in data.tests and split.examples.has_answers:
            tests[name] = data.scores(split, features, logits)
    return tests, report, written


def out_of_fold(path: epath.Path, tuning: Tuning, chosen: dict[str, Any]) -> dict[str, Any]:
    """Write the predictions of every training example by the run that was not trained on it; return their metrics.

    The runs are those with the setting and the seed of the chosen one. The files are in predictions/out_of_fold.

    Raises:
      UserError: what a run has written is gone or damaged.
    """
    found: dict[str, Any] = {}
    data, whole, place = tuning.data, tuning.data.clean, path / "predictions" / "out_of_fold"
    assert whole is not None, "there is a cross-validation"
    if jax.process_index() == 0:
        # The parts of the chosen run, which may be one of an earlier command with more or fewer of them.
        logits, parts = {}, folds(whole.examples, chosen["folds"])[whole.features.example]
        for part in range(chosen["folds"]):
            numbers = np.flatnonzero(parts == part)
            name = chosen["run"].removesuffix(f"_fold{chosen['fold']}") + f"_fold{part + 1}"
            shapes = [score_shape(data.head, whole.features, number) for number in numbers.tolist()]
            logits |= dict(zip(numbers.tolist(), read_scores(path / "runs" / name / SCORES, shapes), strict=True))
        rows = [logits[number] for number in range(len(whole.features))]
        place.mkdir(parents=True, exist_ok=True)
        metrics = data.scores(whole, whole.features, rows)
        files = data.family.write_predictions(whole.examples, whole.features, rows, os.fspath(place), "out_of_fold")
        found["metrics"] = metrics
        found["files"] = [f"out_of_fold/{epath.Path(file).name}" for file in files]
    return from_first(found)


def diagnose(config: FinetuneConfig, mesh: Mesh) -> dict[str, Any]:
    """Apply a model to a diagnostic set, write predictions of its splits and results.json, and return that file's
    content.

    Sequences are made as in that model's own evaluation. Metrics are those of the split that has labels.

    Raises:
      UserError: the work directory holds another task's results; init_from has no head for the classes; there is no
        file of the set.
    """
    _check_vacant(epath.Path(config.workdir), config.task)
    stored = open_stored(config.init_from)
    check_member(stored, stored)
    check_alike(
        lambda: {
            "init_from_fingerprint": stored_fingerprint(stored.arrays),
            "tokenizer_fingerprint": stored.need_tokenizer().fingerprint,
        }
    )
    options = options_of([stored], config.task)
    family, directory = family_for(config.task, stored.need_head(), stored.path), epath.Path(config.workdir)
    results: dict[str, float] = {}
    for split in family.splits(config.task, config.data) or ("test",):
        results = _diagnose_split(config, stored, family, options, split, mesh) or results
    setting = {
        "setting": "not trained on it",
        "runs": 1,
        "collapsed": 0,
        "mean": results,
        "standard_deviation": dict.fromkeys(results),
    }
    content = {
        "task": config.task,
        "metrics": results,
        "main_metric": METRICS[config.task][0],
        "init_from": config.init_from,
        "random_weights": False,
        "settings": [setting],
        "runs": [],
        "commit": commit(),
        "versions": versions(),
    }
    if jax.process_index() == 0:
        directory.mkdir(parents=True, exist_ok=True)
        write_json(directory / RESULTS, content)
    return content


def _diagnose_split(
    config: FinetuneConfig, stored: StoredModel, family: TaskFamily, options: SequenceOptions, split: str, mesh: Mesh
) -> dict[str, float]:
    """Write the predictions of one split, and return its metrics, which are printed too; {} if it has no labels."""
    examples = family.load(config.task, config.data, split, stored.need_head().labels)
    features = family.features(examples, stored.need_tokenizer(), options)
    say_what_is_cut(features, split, screen(highlight=False))
    predicting = PredictConfig(input="", output="", batch_size=config.eval_batch_size, compute=config.compute)
    logits = member_logits(stored, features, predicting, mesh)
    where = epath.Path(config.workdir) / "predictions" / split
    write_predictions(family, examples, features, logits, os.fspath(where) + os.sep, split)
    results = family.score(examples, features, logits) if examples.has_answers else {}
    if jax.process_index() == 0:
        figures = "".join(f", {name} {100 * value:.2f}" for name, value in results.items())
        screen(highlight=False).print(
            f"{config.task} {split}: {len(examples):,} predictions in {where}{figures}", markup=False, soft_wrap=True
        )
    return results


def _check_vacant(workdir: epath.Path, task: str) -> None:
    """Raise UserError if the figures of a diagnostic set would replace those of a run or another set."""
    results = workdir / RESULTS
    if (workdir / "run.json").exists() or results.exists() and read_json(results).get("task") != task:
        raise UserError(f"workdir={workdir} holds a different run or its results; give {task} its own --workdir")


@dataclasses.dataclass(frozen=True)
class Result:
    """The outcome of a call of `finetune`."""

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
    train: Any = None,
    dev: Any = None,
    test: Any = None,
    metrics: Mapping[str, Metric] | None = None,
    devices: sharding.Devices = None,
    **options: object,
) -> Result:
    """Fine-tune on a task: train every unfinished run of the plan, choose one, predict, and write results.json.

        result = bert_jax.finetune("text", train=[("a text", "its label"), …], dev=[…], init_from=PATH, epochs=3)
        result.model.predict(["another text"])

    Args:
      task: the name of a task, or a FinetuneConfig that has everything.
      train: a file, or examples: a data frame of pandas or polars, an Arrow table, a data set of the package datasets
        or of TensorFlow, a NumPy array, a dict of columns, or any iterable of dicts or tuples. Tuples are (text, label)
        or ((text, text_b), label) for texts, (words, tags) for ner, (context, choices, answer) for multiple choice,
        and (question, context, answers) for SQuAD; columns have the names that they have in files and data sets.
        Classes are returned as str; with regression=True labels are numbers. A DatasetDict gives its splits: as train
        all that are not given otherwise, as dev its validation, as test its test.
      dev: as `train`. Without it, a tenth of train is held out (dev_share=0.1), or with folds=5 there are five parts
        of train, each of which is scored by a run on the others.
      test: as `train`. Examples with None for a label are predicted, not scored.
      metrics: functions by name, for tasks on sentences. Each gets the answers and the predictions of a split, arrays
        [E] of names or numbers, or bool [E, C] where texts have several labels, and returns a number, the higher the
        better; what is undefined counts as 0. `select_by` may name one.
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
    check_metrics(config.task, metrics := metrics or {})
    return _finetune(config, given, devices, metrics)


@ending_together
def _finetune(
    config: FinetuneConfig,
    given: Mapping[str, Sequence[Any]],
    devices: sharding.Devices,
    metrics: Mapping[str, Metric],
) -> Result:
    wall_time = WallTime()
    join_hosts(config.faults, to_dict(config), differing_options(FinetuneConfig))
    mesh = sharding.make_mesh(check_finetune(config).mesh, devices)
    config = with_commits(config, ("init_from", "distillation.teacher"), dataset="data.hub", below="finetune.")
    check_attention(config.compute, mesh.devices.flat[0].platform)
    check_trackers(config.sinks)
    if isinstance(config.options, DiagnosticOptions):  # there is nothing to train
        return Result(diagnose(config, mesh), 0, config.workdir)
    stored = open_model(config)
    tuning, note = prepared(config, given, metrics, stored, mesh, _begun(config))
    config = tuning.config

    results: dict[str, Any] = {}
    with (
        Watchdog(config.faults.step_timeout_seconds) as watchdog,
        StopSignals(watchdog) as signals,
        _open_directory(tuning) as workdir,
        Events(workdir.path, signals) as events,
    ):
        watchdog.report = lambda seconds, place: events.write("hung", events.step, seconds=seconds, place=place)
        started = Started(workdir=workdir, faults=config.faults, events=events, signals=signals, wall_time=wall_time)
        _announce(tuning, note)
        _train_runs(tuning, started)
        signals.check()
        results = _conclude(tuning, workdir, signals)
    if signals.exit_code:
        return Result({}, signals.exit_code, config.workdir)
    if jax.process_index() == 0:
        show(results)
    return Result(results, 0, config.workdir)


def prepared(
    config: FinetuneConfig,
    given: Mapping[str, Sequence[Any]],
    metrics: Mapping[str, Metric],
    stored: StoredModel,
    mesh: Mesh,
    begun: Mapping[str, Any],
    factor: float = 1.0,
) -> tuple[Tuning, str]:
    """Return the data of a task and its programs, all options decided, and a note for the console.

    Args:
      begun: the options of runs that have begun already.
      factor: of the loss of one of several tasks.

    Raises:
      UserError: the data or the options do not fit the model.
    """
    config = with_embedding(config, stored)
    taught_by = stored_task_teacher(config, stored.need_tokenizer())
    config = _with_stratification(config, begun)
    data = read_task(config, stored.model, stored.need_tokenizer(), given).measured_by(metrics, config.select_by)
    check_length(config, data.fewest_sequences)
    _check_own_positives(config, data, stored.model)
    stored, note = fitting_head(stored, data.head)
    teacher = open_task_teacher(taught_by, config, data.head, mesh)
    loss = task_loss(config.loss, data.head, data.train.features)
    programs = make_programs(
        config,
        stored.model,
        data.head,
        mesh,
        teacher=teacher,
        unread=stored.unread,
        loss=loss,
        stored=stored,
        sequences=data.train.features.per_example,
        factor=factor,
    )
    config = with_packing(config, data.train.features, programs, begun)
    return Tuning(config, data, stored, programs), note


def open_model(config: FinetuneConfig) -> StoredModel:
    """Return the model to start from; raise a UserError if it cannot be opened, or the options do not fit it."""
    stored = open_stored(config.init_from)
    check_fit(stored)
    check_layers(config, stored.model)
    stored.need_tokenizer("init_from=")
    return stored


def with_embedding(config: FinetuneConfig, stored: StoredModel) -> FinetuneConfig:
    """Return `config` with what init_from says of vectors where the options of the task vectors say nothing.

    Raises:
      UserError: it says what is not supported here, or it has no such vectors.
    """
    options = config.options
    if not isinstance(options, VectorOptions):
        return config
    chosen = options.pooling is not None or isinstance(options.form, TokenVectors | WordVector)
    if stored.embedding.unsupported and not chosen:
        raise UserError(
            f"{config.init_from} is a model of sentence-transformers with {stored.embedding.unsupported}, which cannot "
            "be trained here; give --options.pooling=mean (or cls, max) for vectors of the bare encoder"
        )
    if too_long := [dim for dim in options.dims if dim > stored.model.hidden_size]:
        raise UserError(
            f"options.dims={too_long[0]}, but the vectors of {config.init_from} have {stored.model.hidden_size} "
            "features; give that at most"
        )
    options = options.like(stored.embedding)
    check_pooling(options.pooling, False, stored.model.trains_specials, "options.pooling")
    if isinstance(options.form, TokenVectors | WordVector):
        _check_form(config, options.form, stored)
    return dataclasses.replace(config, options=options)


def _check_form(config: FinetuneConfig, form: TokenVectors | WordVector, stored: StoredModel) -> None:
    """Raise a UserError if the model in init_from, or another option, does not go with such vectors."""
    given = f"options.form.name={form.name}"
    for name, value in (("packing=on", config.packing == "on"), ("lora.rank", config.lora.rank)):
        if value:
            raise UserError(f"{given} cannot be trained with {name}, which is for single vectors; leave it out")
    if stored.model.two_streams:
        raise UserError(
            f"{given} is for models that read their tokens in one stream, and {config.init_from} is an XLNet"
        )
    if isinstance(form, WordVector):
        if "mlm" not in stored.parts and not config.random_weights:
            raise UserError(
                f"{given} reads the head for masked words, and {config.init_from} has none "
                f"({', '.join(stored.parts) or 'an encoder only'}); start from a pre-trained model with that head, or "
                "give --options.form.name=tokens"
            )
        return
    there, longest = stored.token_size, stored.model.longest_sequence
    if there not in (None, form.size) and not config.random_weights:
        raise UserError(
            f"options.form.size={form.size}, but the vectors of tokens of {config.init_from} have {there} features; "
            "give that"
        )
    if longest is not None and form.query_length > longest:
        raise UserError(
            f"options.form.query_length={form.query_length} is longer than the {longest} tokens that "
            f"{config.init_from} reads; give that at most"
        )


def _check_own_positives(config: FinetuneConfig, data: TaskData, model: EncoderConfig) -> None:
    """Raise a UserError if an anchor is its own positive, and dropout does not tell the two apart."""
    examples, rate = data.train.examples, config.dropout
    if not isinstance(examples, VectorExamples) or len(examples.texts) > 1:
        return
    rates = [getattr(model, name, 0.0) for name in ("hidden_dropout", "attention_dropout")] if rate is None else [rate]
    if not any(rates):
        raise UserError(
            "the training examples are texts without a positive, which are told from themselves by dropout alone, and "
            "there is none; give --dropout=0.1"
        )


def _open_directory(tuning: Tuning) -> WorkDirectory:
    """Take the work directory, once all hosts have the same model, data and settings."""
    config, data, stored, programs = tuning.config, tuning.data, tuning.stored, tuning.programs
    wanted = settings(config, programs, data)
    identity = {
        "features_fingerprint": data.fingerprint(),
        "init_from_fingerprint": None if config.random_weights else stored_fingerprint(stored.arrays),
        "tokenizer_fingerprint": stored.need_tokenizer().fingerprint,
        "teacher": programs.teacher,
    }
    facts = lambda: identity | {"test_fingerprint": data.test_fingerprint(), "settings": wanted}
    check_alike(facts, differing_options(FinetuneConfig, "settings.finetune."))
    return open_workdir(
        config.workdir, FINETUNING, identity, wanted, stored.need_tokenizer(), devices=list(programs.mesh.devices.flat)
    )


def _train_runs(tuning: Tuning, started: Started) -> None:
    """Train every run of the plan that is not finished, and write its record."""
    config, workdir = tuning.config, started.workdir
    for run in plan(config):
        directory = workdir.path / "runs" / run.name
        if not from_first((directory / RESULTS).exists()):
            own = tuning.of(run)
            record = train_run(run, own, started)
            if run.fold and own.data.comparable:
                write_scores(directory, own, started.signals)
            workdir.secure()
            _write_once(directory / RESULTS, record)
            if config.keep == "best":
                drop_losers(workdir, tuning.data.main_metric)
        remove(directory / "training")


def _conclude(tuning: Tuning, workdir: WorkDirectory, signals: StopSignals) -> dict[str, Any]:
    """Choose a run, publish its weights, predict, write results.json and return its content."""
    config, data = tuning.config, tuning.data
    workdir.secure()
    records = from_first(finished_runs(workdir.path / "runs", data.main_metric))
    if gone := [run.name for run in plan(config) if run.name not in {record["run"] for record in records}]:
        raise UserError(
            f"the results of {first_lines(gone)} were deleted with {workdir.path} during this command; the same "
            "command trains these runs again"
        )
    chosen = best(records, data.main_metric)
    params = publish(workdir, chosen, tuning.programs.mesh)
    if tuning.programs.adapters is not None:
        publish_adapter(workdir, tuning.programs.adapters, config.init_from)
    facts = predicted(workdir.path, tuning, params, chosen, signals)
    if data.parts is not None and data.comparable:
        facts["out_of_fold"] = out_of_fold(workdir.path, tuning, chosen)
    facts |= {"data": sizes(data), "truncated": data.truncated, "labels": list(data.head.labels)}
    results = summary(config, records, data.main_metric, facts)
    if workdir.secure():
        raise UserError(
            f"{workdir.path} was deleted or renamed while predictions were written; start the same command again"
        )
    _write_once(workdir.path / RESULTS, results)
    for record in records:
        keep(workdir, config.keep, record, chosen, tuning.stored.need_tokenizer())
    return results


def _write_once(file: epath.Path, values: dict[str, Any]) -> None:
    if jax.process_index() == 0:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, values)


def sizes(data: TaskData) -> dict[str, int]:
    """Return the number of examples of each split."""
    return {name: len(split.examples) for name, split in data.splits.items()}


def _with_stratification(config: FinetuneConfig, recorded: Mapping[str, Any]) -> FinetuneConfig:
    """Return `config` with data.stratified decided: as the runs of the work directory began, or else so.

    Those of 0.1.0 do not record it, and held out a random part.
    """
    if not isinstance(config.data, DividedDataConfig) or config.data.stratified is not None:
        return config
    before = recorded.get("data")
    stratified = bool(before.get("stratified", False)) if isinstance(before, dict) else True
    return dataclasses.replace(config, data=dataclasses.replace(config.data, stratified=stratified))


def _held_out(config: FinetuneConfig, data: TaskData) -> str:
    """Return a line about the training examples that have become the dev set."""
    examples, alike = data.evaluations["dev"].examples, ""
    if examples.classes and isinstance(config.data, DividedDataConfig) and config.data.stratified:
        alike = ", the same share of every class"
    dev = len(examples)
    return (
        f"no dev examples were given: {dev:,} of {dev + len(data.train.examples):,} training examples are held out "
        f"(data.dev_share={data.held_out:g}{alike}; equal {examples.unit} stay together)"
    )


def _announce(tuning: Tuning, note: str) -> None:
    config, data, programs, model = tuning.config, tuning.data, tuning.programs, tuning.stored.model
    counted = ", ".join(f"{name} {size:,}" for name, size in sizes(data).items())
    runs = plan(config)
    say_hardware(programs.mesh, config.compute)
    say(
        f"{config.task}: {counted} examples; {len(data.train.features):,} sequences to train on; "
        + (f"labels {', '.join(data.head.labels)}" if data.head.labels else _learned(config, data.head))
    )
    if data.held_out:
        say(_held_out(config, data))
    for name, split in data.splits.items():
        if (uncut := split.features.uncut) and uncut.share:
            say(uncut.advise(name, model.longest_sequence))
    rows = config.batch_size // config.micro_batches
    length = config.max_length
    shared = config.packing == "on"
    texts = min(config.batch_size, most_sequences(length)) if shared else 1
    layout = f"rows of up to {length} tokens, {'shared by several sequences' if shared else 'of one sequence each'}"
    if isinstance(model, AttentionConfig):
        path = attention_of(model, config.compute, programs.mesh, rows, length, texts)
        layout = f"attention by {path} ({layout})"
    say(f"{layout}; remat: {programs.model.compute.remat}")
    taken = {path.split("/")[0] for path in programs.model.parameters}
    of_vectors = isinstance(config.options, VectorOptions)
    lost = [] if config.random_weights else left_out(tuning.stored, taken, vectors=of_vectors)
    for line in [*([note] if note else []), *lost]:
        say(line)
    learned, values = programs.learned
    if programs.adapters is not None or programs.frozen:
        say(f"{learned:,} of {values:,} parameters learn ({100 * learned / values:.2f} %)")
    layers, epochs = model.num_layers, min(run.epochs for run in runs)
    if config.gradual_unfreezing and epochs < layers + 2:
        say(
            f"gradual unfreezing: {epochs} epochs train the head and the top {epochs - 1} of {layers} layers; all, and "
            f"the embeddings, learn from --epochs={layers + 2} on"
        )
    say(f"runs: {len(runs)}, namely {', '.join(run.name for run in runs[:3])}{', …' if len(runs) > 3 else ''}")


def _learned(config: FinetuneConfig, head: HeadConfig) -> str:
    """Return in words what a task without labels learns."""
    options = config.options
    if isinstance(options, RankingOptions):
        return f"rankings by {options.loss.name}"
    return f"vectors by {options.loss.name}" if isinstance(options, VectorOptions) else f"a {head.kind} head"


def _begun(config: FinetuneConfig) -> dict[str, Any]:
    """Return the options of the runs in the work directory; {} if none has saved anything, or they are of no task."""
    path = epath.Path(config.workdir)
    there = read_json(path / "config.json").get("finetune") if _has_runs(path) else None
    known = there if isinstance(there, dict) and {"packing", "bucket_window"} <= there.keys() else {}
    return from_first(known)


def _has_runs(path: epath.Path) -> bool:
    """Return whether a run of fine-tuning in work directory `path` has saved anything."""
    saved = ("checkpoints/*step_*", f"runs/*/{RESULTS}", "runs/*/checkpoints/*step_*", "runs/*/training/*step_*")
    return (path / "run.json").exists() and any(True for name in saved for _ in path.glob(name))


RECORDED: dict[str, Any] = {
    "model": EncoderConfig,
    "head": HeadConfig,
    "compute": ComputeConfig,
    "finetune": FinetuneConfig,
}
"""Options in config.json, each of which an earlier version may have had fewer of."""


def _check_finetuning(path: epath.Path, identity: dict[str, Any], settings: dict[str, Any]) -> None:
    """Raise a UserError if `settings`, the data or the parameters would not continue the runs in `path`."""
    if "features_fingerprint" not in read_json(path / "run.json"):
        raise UserError(
            f"{path} is the work directory of a pre-training run: it can be given as --init_from; give another "
            "--workdir"
        )
    before, where = read_json(path / "config.json"), f"{path / 'config.json'}"
    for name, kind in RECORDED.items():
        if before.get(name) is not None:
            before[name] = to_dict(from_record(kind, before[name], where, f"{name}."))
    if lines := refused_changes(path, identity, before, settings, FinetuningRecord):
        raise UserError(
            f"{path} holds runs with different data, parameters or settings ({first_lines(lines)}). Resume with "
            f"those ({path / 'config.json'}), or start this in another --workdir"
        )


FINETUNING = Rules(_has_runs, _check_finetuning)
