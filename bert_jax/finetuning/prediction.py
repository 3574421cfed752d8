"""`bert-jax predict`: the answers of a fine-tuned model, or of the mean of several, to a file or a text.

Models that predict together must have the same answers, task and vocabulary. The input is examples of a task or plain
texts; predictions replace no other file unless --overwrite is given.
"""

import dataclasses
import os
import tempfile
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from etils import epath
from rich.console import Console

from bert_jax.config.finetuning import PredictConfig, check_predict
from bert_jax.config.options import is_of_class, with_options
from bert_jax.config.tasks import SentenceOptions, SequenceOptions, Squad2Options
from bert_jax.data.sequences import Features
from bert_jax.devices import sharding
from bert_jax.devices.compilation import use_compilation_cache
from bert_jax.errors import UserError, need_cloud_storage
from bert_jax.files import copy_file, is_remote
from bert_jax.finetuning.programs import average, member_logits
from bert_jax.formats.opening import open_stored
from bert_jax.formats.stored import StoredModel, warn_of_what_is_left_out
from bert_jax.models.bert_parameters import OF_TEXTS
from bert_jax.models.kernels.choice import check_attention
from bert_jax.tasks import ner, task_data, text
from bert_jax.tasks.text import PlainText
from bert_jax.tokenization.tokenizer import check_utf8
from bert_jax.training.trackers import screen


def check_member(member: StoredModel, first: StoredModel) -> None:
    """Raise UserError if a model is not fine-tuned, or cannot answer together with the first one."""
    if member.head is None and task_data.recorded_task(member.history) == "vectors":
        raise UserError(
            f"{member.path} was trained on vectors and has no task head to predict with; "
            "bert_jax.load(PATH).embed(texts) returns its vectors"
        )
    if member.head is None:
        raise UserError(
            f"{member.path} has no task head: it is a pre-trained model; bert-jax finetune makes a fine-tuned one"
        )
    tokenizer = member.need_tokenizer()
    if any(getattr(member.head, name) != getattr(first.need_head(), name) for name in ("kind", "classes", "crf")):
        shown = [
            f"{stored.path}: {stored.need_head().kind}{' with a CRF' * stored.need_head().crf} "
            f"{', '.join(stored.need_head().labels)}"
            for stored in (member, first)
        ]
        raise UserError(f"an ensemble needs models with the same answers, not {' and '.join(shown)}")
    tasks = [task_data.recorded_task(stored.history) for stored in (member, first)]
    if all(tasks) and len(set(tasks)) > 1:
        raise UserError(
            f"an ensemble needs models of one task, not {member.path} of {tasks[0]} and {first.path} of {tasks[1]}"
        )
    if tokenizer.fingerprint != first.need_tokenizer().fingerprint:
        raise UserError(
            f"{member.path} and {first.path} have different vocabularies; an ensemble reads one set of sequences"
        )


def task_of(stored: StoredModel, asked: str) -> str:
    """Return the task that was asked for, else the recorded one; raise UserError if there is neither."""
    if not (task := asked or task_data.recorded_task(stored.history)):
        raise UserError(f"{stored.path} does not say which task it is for; give --task=NAME")
    return task


def options_of(members: Sequence[StoredModel], task: str) -> SequenceOptions:
    """Return the options of the first member, no longer than any member reads, with the mean of the thresholds."""
    positions = min(member.model.longest_sequence for member in members)
    options = [task_data.recorded_options(member.history, task, positions, member.head) for member in members]
    if isinstance(options[0], SentenceOptions) and options[0].thresholds:
        several = [each.thresholds for each in options if isinstance(each, SentenceOptions)]
        return dataclasses.replace(options[0], thresholds=_mean(several, len(members[0].need_head().labels)))
    if not isinstance(options[0], Squad2Options):
        return options[0]
    given = [each.null_threshold for each in options if isinstance(each, Squad2Options)]
    known = [threshold for threshold in given if threshold is not None]
    return dataclasses.replace(options[0], null_threshold=float(np.mean(known)) if len(known) == len(options) else None)


def _mean(thresholds: Sequence[tuple[float, ...]], classes: int) -> tuple[float, ...]:
    """Return the mean threshold of each class; a model that has a single one has it for all."""
    return tuple(np.mean([np.broadcast_to(each, classes) for each in thresholds], axis=0).tolist())


def say_what_is_cut(features: Features, split: str, console: Console) -> None:
    """Print how many sequences are longer than the model reads, if any are."""
    uncut = features.uncut
    if uncut is not None and uncut.share and jax.process_index() == 0:
        console.print(
            uncut.describe(split, f"the {uncut.limit} tokens that the model was fine-tuned to read"),
            markup=False,
            soft_wrap=True,
        )


def check_files(config: PredictConfig) -> None:
    """Raise UserError if the input does not exist, or the output is a file that must stay as it is."""
    need_cloud_storage(config.input)
    need_cloud_storage(config.output)
    if config.input not in ("", text.STANDARD_INPUT) and not epath.Path(config.input).expanduser().exists():
        raise UserError(f"--input={config.input}: no such file; give one that exists, or a text with --text=TEXT")
    if config.output and not _is_directory(config.output):
        _check_replaceable([epath.Path(config.output)], config)


def check_outputs(names: Sequence[str], config: PredictConfig) -> None:
    """Raise UserError if the output is a directory in which a file of one of these names must stay as it is."""
    if _is_directory(config.output):
        _check_replaceable([epath.Path(config.output) / name for name in names], config)


def _check_replaceable(files: Sequence[epath.Path], config: PredictConfig) -> None:
    source = epath.Path(config.input).expanduser()
    for file in files:
        if not file.is_file():  # such as /dev/null
            continue
        local = config.input and not is_remote(config.input + config.output)
        if file == source or local and source.exists() and os.path.samefile(file, source):
            raise UserError(f"--output={config.output} would replace the input {config.input}; give another file")
        if not config.overwrite:
            raise UserError(f"--output: {file} exists; give another file, or --overwrite to replace it")


def read_examples(
    stored: StoredModel, task: str, family: task_data.TaskFamily, config: PredictConfig
) -> tuple[task_data.TaskFamily, Any]:
    """Return the family that answers the input, which is `family` except for plain texts, and the input's examples.

    Raises:
      UserError: a file, text or line cannot be read, or plain text is given for questions.
    """
    labels, kind = stored.need_head().labels, stored.need_head().kind
    if config.input and not text.is_plain(config.input, kind):
        form = {f"data.{name}": value for name, value in dataclasses.asdict(config.data).items() if value is not None}
        data = with_options(task_data.recorded_config(stored.history, task, stored.head), form).data.without_files()
        data = dataclasses.replace(data, **{config.split: config.input})
        return family, family.load(task, data, config.split, labels)
    if form := {name: value for name, value in dataclasses.asdict(config.data).items() if value is not None}:
        name, value = next(iter(form.items()))
        raise UserError(f"data.{name}={value} has no effect on plain text, which has no columns; leave it out")
    if kind not in (*OF_TEXTS, "tagging"):
        raise UserError(f"plain text does not say what {task} asks of it; give --input=FILE in a format of that task")
    check_utf8(config.text)
    texts = text.read_plain_texts(config.input) if config.input else [PlainText("--text", config.text, "0")]
    if kind == "tagging":
        return ner, ner.from_plain(texts, labels)
    return text, text.from_plain(texts, labels, task_data.recorded_pairs(stored.history), kind == "multilabel")


def write_predictions(
    family: task_data.TaskFamily, examples: Any, features: Features, logits: list[Any], output: str, split: str
) -> None:
    """Write all files of the family into a directory, or its main file to `output`, on the first host.

    Without `output`, the main file goes to standard output.
    """
    if jax.process_index() != 0:
        return
    if _is_directory(output):
        epath.Path(output).mkdir(parents=True, exist_ok=True)
        family.write_predictions(examples, features, logits, output, split)
        return
    with tempfile.TemporaryDirectory() as directory:
        main, *_ = family.write_predictions(examples, features, logits, directory, split)
        if not output:
            print(epath.Path(main).read_text(), end="")
            return
        epath.Path(output).parent.mkdir(parents=True, exist_ok=True)
        copy_file(main, output)


def _is_directory(output: str) -> bool:
    return output.endswith(os.sep) or output != "" and epath.Path(output).is_dir()


def run_predict(workdirs: str, config: PredictConfig, devices: sharding.Devices = None) -> dict[str, float]:
    """Predict `config.input` with one model or the mean of several, and write `config.output`.

    Args:
      workdirs: directory of the model, or of several, separated by commas.
      devices: the devices of the mesh; by default every device of every process.

    Returns:
      The task's metrics, which are also printed, if the input has labels; otherwise {}.

    Raises:
      UserError: the output exists; a model is not fine-tuned; the members of an ensemble have different heads, tasks or
        vocabularies; the task needs a different head; pairs are given to a model of single texts, or the reverse; the
        input file is bad.
    """
    check_files(check_predict(config))
    use_compilation_cache()
    members = [open_stored(path) for path in workdirs.split(",")]
    first = members[0]
    for member in members:
        check_member(member, first)
        warn_of_what_is_left_out(member)
    mesh = sharding.make_mesh(config.mesh, devices)
    check_attention(config.compute, mesh.devices.flat[0].platform)
    task = task_of(first, config.task)
    family = task_data.family_for(task, first.need_head(), first.path)
    family, examples = read_examples(first, task, family, config)
    check_outputs(family.prediction_names(examples, config.split), config)
    options = options_of(members, task)
    if family is text and not isinstance(options, SentenceOptions):  # plain pairs for a model of rankings
        options = SentenceOptions(max_length=options.max_length)
    features = family.features(examples, first.need_tokenizer(), options)
    for member in members if first.need_head().kind in OF_TEXTS else ():
        task_data.check_pairs(
            member.history,
            features,
            first.need_tokenizer(),
            lambda number: f"example {number} of {config.input or '--text'}",
            member.path,
        )
    # Standard output may be for predictions alone.
    console = screen(highlight=False) if config.output else Console(highlight=False, stderr=True)
    say_what_is_cut(features, "", console)
    logits = average(first.need_head(), [member_logits(member, features, config, mesh) for member in members])
    write_predictions(family, examples, features, logits, config.output, config.split)
    scores = family.score(examples, features, logits) if examples.has_answers else {}
    for name, value in scores.items():
        if not is_of_class(name):
            console.print(f"{name} {value:.4f}")
    return scores
