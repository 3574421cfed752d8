"""From sequences to scores, by one fine-tuned model or the mean of several, and `bert-jax predict`."""

import dataclasses
import functools
import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from etils import epath
from jax.sharding import Mesh
from rich.console import Console

from bert_jax.checkpoints.fingerprint import stored_fingerprint
from bert_jax.checkpoints.workdir import read_json, write_json
from bert_jax.config import HeadConfig
from bert_jax.config.finetuning import FinetuneConfig
from bert_jax.config.predicting import PredictConfig, check_predict
from bert_jax.config.task_options import TaskOptions
from bert_jax.data.sequences.batching import evaluation_batches, padded, round_up
from bert_jax.data.sequences.features import Features
from bert_jax.devices import sharding
from bert_jax.devices.compilation_cache import use_compilation_cache
from bert_jax.devices.hosts import check_alike
from bert_jax.devices.signals import StopSignals
from bert_jax.devices.software import commit, versions
from bert_jax.errors import UserError
from bert_jax.finetuning.prediction_files import check_files, check_outputs, read_examples, write_predictions
from bert_jax.formats.stored import StoredModel
from bert_jax.models.kernels.choice import check_attention
from bert_jax.models.task import BertForTask
from bert_jax.objectives.task_head import predictions
from bert_jax.tasks.families import Family
from bert_jax.tasks.families import family as family_of
from bert_jax.tasks.recorded import check_pairs, recorded_options, recorded_task
from bert_jax.training.metrics import Rates
from bert_jax.training.program import Program
from bert_jax.training.step import make_forward_step


def predict_logits(
    predict_step: Program,
    params: Any,
    features: Features,
    head: HeadConfig,
    batch_size: int,
    mesh: Mesh,
    signals: StopSignals | None = None,
    rates: Rates | None = None,
) -> list[np.ndarray]:
    """Return the scores of every sequence, in order and without padding, float32.

    Args:
      predict_step: (params, batch) → `predictions`; compiled once per rung of the ladder of lengths.
      rates: paused while it is compiled.

    Returns:
      classification [C]; regression []; choice [K]; span [L, 2]; tagging [L, C].

    Raises:
      Stopped: raised by `signals` before one of the batches.
    """
    rows = round_up(batch_size, sharding.batch_parts(mesh))
    mine = sharding.host_rows(mesh, rows)
    inputs = ("input_ids", "token_type_ids", "attention_mask", *(("labels",) if head.crf else ()))
    results: list[Any] = [None] * len(features)

    def collect(indices: np.ndarray, scores: jax.Array) -> None:
        for index, row in zip(indices, np.asarray(scores), strict=False):
            results[index] = row[: len(features.input_ids[index])] if head.kind in ("span", "tagging") else row

    pending: tuple[np.ndarray, jax.Array] | None = None
    for indices in evaluation_batches(features, batch_size):
        batch = padded(features, indices, rows)
        batch = sharding.to_global(mesh, {name: batch[name][mine] for name in inputs}, rows)
        if signals is not None:
            signals.check()
            predict_step.prepare(params, batch, signals=signals, rates=rates)
        scores = predict_step(params, batch)
        if pending is not None:  # fetched one batch late, so that the device never waits for Python
            collect(*pending)
        pending = indices, scores
    if pending is not None:
        collect(*pending)
    return results


def average(head: HeadConfig, predictions: Sequence[list[np.ndarray]]) -> list[np.ndarray]:
    """Return the scores of an ensemble: log of the mean probability of a class or candidate; for others the mean score.

    Span scores are averaged, not probabilities: scores are comparable across the windows of a question, and the
    threshold was tuned on them. For a CRF, whose scores are those of the best path, each word gets the fraction of the
    models that vote for a label.
    """
    if len(predictions) == 1:
        return predictions[0]
    if head.kind in ("regression", "span") or head.crf:
        return [np.mean(rows, axis=0) for rows in zip(*predictions, strict=True)]
    members = [
        [row - np.logaddexp.reduce(row, axis=-1, keepdims=True) for row in rows]
        for rows in zip(*predictions, strict=True)
    ]
    return [np.logaddexp.reduce(rows, axis=0) - np.float32(np.log(len(rows))) for rows in members]


def run_predict(workdirs: str, config: PredictConfig, devices: sharding.Devices = None) -> dict[str, float]:
    """Predict `config.input` with one model or the mean of several, and write `config.output`.

    Args:
      workdirs: directory of the model, or of several, separated by commas.
      config: input, output and how to predict.
      devices: the devices of the mesh; by default every device of every process.

    Returns:
      The task's metrics, which are also printed, if the input has labels; otherwise {}.

    Raises:
      UserError: the output exists; a model is not fine-tuned; the members of an ensemble have different heads, tasks or
        vocabularies; the task needs a different head; pairs are given to a model of single texts, or the reverse; the
        input file is bad.
    """
    from bert_jax.formats.opening import open_stored

    check_files(check_predict(config))
    use_compilation_cache()
    members = [open_stored(path) for path in workdirs.split(",")]
    first = members[0]
    for member in members:
        _check_member(member, first)
    task = _task(first, config.task)
    family, examples = read_examples(first, task, _family(first, task), config)
    check_outputs(family.prediction_names(examples, config.split), config)
    features = family.features(examples, first.need_tokenizer(), _options(members, task))
    for member in members if first.need_head().kind in ("classification", "regression") else ():
        check_pairs(
            member.history,
            features,
            first.need_tokenizer(),
            lambda number: f"example {number} of {config.input or '--text'}",
            member.path,
        )
    console = Console(highlight=False, stderr=not config.output)  # standard output may be for predictions alone
    _say_what_is_cut(features, "", console)
    mesh = sharding.make_mesh(config.mesh, devices)
    check_attention(config.compute, mesh.devices.flat[0].platform)
    logits = average(first.need_head(), [_member_logits(member, features, config, mesh) for member in members])
    write_predictions(family, examples, features, logits, config.output, config.split)
    scores = family.score(examples, features, logits) if examples.has_answers else {}
    for name, value in scores.items():
        console.print(f"{name} {value:.4f}")
    return scores


def diagnose(config: FinetuneConfig, mesh: Mesh) -> dict[str, Any]:
    """Apply a model of mnli to AX, write predictions of its splits and results.json, and return that file's content.

    Sequences are made as in that model's own evaluation, whatever `config.options` says. Metrics are those of the split
    that has labels.

    Raises:
      UserError: the work directory holds another task's results; init_from has no head for mnli's classes; there is no
        file of AX.
    """
    from bert_jax.formats.opening import open_stored

    _check_vacant(epath.Path(config.workdir))
    stored = open_stored(config.init_from)
    _check_member(stored, stored)
    check_alike(
        lambda: {
            "init_from_fingerprint": stored_fingerprint(stored.arrays),
            "tokenizer_fingerprint": stored.need_tokenizer().fingerprint,
        }
    )
    options = _options([stored], config.task)
    family, directory, results = _family(stored, config.task), epath.Path(config.workdir), {}
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
        "main_metric": family.MAIN_METRIC[config.task],
        "init_from": config.init_from,
        "random_weights": False,
        "settings": [setting],
        "runs": [],
        "commit": commit(),
        "versions": versions(),
    }
    if jax.process_index() == 0:
        directory.mkdir(parents=True, exist_ok=True)
        write_json(directory / "results.json", content)
    return content


def _diagnose_split(
    config: FinetuneConfig, stored: StoredModel, family: Family, options: TaskOptions, split: str, mesh: Mesh
) -> dict[str, float]:
    """Write the predictions of one split, and return its metrics, which are printed too; {} if it has no labels."""
    examples = family.load(config.task, config.data, split, stored.need_head().labels)
    features = family.features(examples, stored.need_tokenizer(), options)
    _say_what_is_cut(features, split, Console(highlight=False))
    predicting = PredictConfig(input="", output="", batch_size=config.eval_batch_size, compute=config.compute)
    logits = _member_logits(stored, features, predicting, mesh)
    where = epath.Path(config.workdir) / "predictions" / split
    write_predictions(family, examples, features, logits, os.fspath(where) + os.sep, split)
    results = family.score(examples, features, logits) if examples.has_answers else {}
    if jax.process_index() == 0:
        figures = "".join(f", {name} {100 * value:.2f}" for name, value in results.items())
        Console(highlight=False).print(
            f"{config.task} {split}: {len(examples):,} predictions in {where}{figures}", markup=False, soft_wrap=True
        )
    return results


def _say_what_is_cut(features: Features, split: str, console: Console) -> None:
    uncut = features.uncut
    if uncut is not None and uncut.share and jax.process_index() == 0:
        console.print(
            uncut.describe(split, f"the {uncut.limit} tokens that the model was fine-tuned to read"),
            markup=False,
            soft_wrap=True,
        )


def _check_vacant(workdir: epath.Path) -> None:
    """Raise UserError if the figures of AX would replace those of a run."""
    results = workdir / "results.json"
    if (workdir / "run.json").exists() or results.exists() and read_json(results).get("task") != "ax":
        raise UserError(f"workdir={workdir} holds another run or its results; give ax its own --workdir")


def _member_logits(stored: StoredModel, features: Features, config: PredictConfig, mesh: Mesh) -> list[np.ndarray]:
    from bert_jax.formats.fit import check_fit
    from bert_jax.formats.opening import place

    check_fit(stored)
    params = place(stored, mesh)
    model = BertForTask(stored.model, stored.need_head(), config.compute)
    step = Program(
        make_forward_step(functools.partial(predictions, model), mesh, jax.tree.map(lambda leaf: leaf.sharding, params))
    )
    return predict_logits(step, params, features, stored.need_head(), config.batch_size, mesh)


def _check_member(member: StoredModel, first: StoredModel) -> None:
    if member.head is None:
        raise UserError(
            f"{member.path} has no task head: it is a pre-trained model; bert-jax finetune makes a fine-tuned one"
        )
    if member.tokenizer is None:
        raise UserError(f"{member.path} has no vocabulary; put the vocab.txt there that it was trained with")
    if any(getattr(member.head, name) != getattr(first.need_head(), name) for name in ("kind", "labels", "crf")):
        shown = [
            f"{stored.path}: {stored.need_head().kind}{' with a CRF' * stored.need_head().crf} "
            f"{', '.join(stored.need_head().labels)}"
            for stored in (member, first)
        ]
        raise UserError(f"an ensemble needs models with the same answers, not {' and '.join(shown)}")
    tasks = [recorded_task(stored.history) for stored in (member, first)]
    if all(tasks) and len(set(tasks)) > 1:
        raise UserError(
            f"an ensemble needs models of one task, not {member.path} of {tasks[0]} and {first.path} of {tasks[1]}"
        )
    if member.tokenizer.fingerprint != first.need_tokenizer().fingerprint:
        raise UserError(
            f"{member.path} and {first.path} have different vocabularies; an ensemble reads one set of sequences"
        )


def _task(stored: StoredModel, asked: str) -> str:
    if not (task := asked or recorded_task(stored.history)):
        raise UserError(f"{stored.path} does not say which task it is for; give --task=NAME")
    return task


def _family(stored: StoredModel, task: str) -> Family:
    """Return the module that reads and scores a task; raise UserError if the model has a different kind of head."""
    family = family_of(task)
    wanted = family.head(task, stored.need_head().labels).kind
    if wanted != stored.need_head().kind:
        raise UserError(
            f"{stored.path} has a {stored.need_head().kind} head, but {task} needs one of {wanted}; give another model "
            "or another task"
        )
    return family


def _options(members: Sequence[StoredModel], task: str) -> TaskOptions:
    """Return the options of the first member, no longer than any member reads, with the mean "no answer" threshold."""
    positions = min(member.model.longest_sequence for member in members)
    options = [recorded_options(member.history, task, positions) for member in members]
    known = [each.null_threshold for each in options if each.null_threshold is not None]
    return dataclasses.replace(options[0], null_threshold=float(np.mean(known)) if len(known) == len(options) else None)
