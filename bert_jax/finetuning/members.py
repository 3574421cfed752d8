"""The fine-tuned models that predict together: what they must have in common, and how they read their task."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np
from rich.console import Console

from bert_jax.config.task_options import TaskOptions
from bert_jax.data.sequences.features import Features
from bert_jax.errors import UserError
from bert_jax.formats.stored import StoredModel
from bert_jax.tasks.families import Family
from bert_jax.tasks.families import family as family_of
from bert_jax.tasks.recorded import recorded_options, recorded_task


def check_member(member: StoredModel, first: StoredModel) -> None:
    """Raise UserError if a model is not fine-tuned, or cannot answer together with the first one."""
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


def task_of(stored: StoredModel, asked: str) -> str:
    """Return the task that was asked for, else the recorded one; raise UserError if there is neither."""
    if not (task := asked or recorded_task(stored.history)):
        raise UserError(f"{stored.path} does not say which task it is for; give --task=NAME")
    return task


def family_for(stored: StoredModel, task: str) -> Family:
    """Return the module that reads and scores a task; raise UserError if the model has a different kind of head."""
    family = family_of(task)
    wanted = family.head(task, stored.need_head().labels).kind
    if wanted != stored.need_head().kind:
        raise UserError(
            f"{stored.path} has a {stored.need_head().kind} head, but {task} needs one of {wanted}; give another model "
            "or another task"
        )
    return family


def options_of(members: Sequence[StoredModel], task: str) -> TaskOptions:
    """Return the options of the first member, no longer than any member reads, with the mean "no answer" threshold."""
    positions = min(member.model.longest_sequence for member in members)
    options = [recorded_options(member.history, task, positions) for member in members]
    known = [each.null_threshold for each in options if each.null_threshold is not None]
    return dataclasses.replace(options[0], null_threshold=float(np.mean(known)) if len(known) == len(options) else None)


def say_what_is_cut(features: Features, split: str, console: Console) -> None:
    """Print how many sequences are longer than the model reads, if any are."""
    uncut = features.uncut
    if uncut is not None and uncut.share and jax.process_index() == 0:
        console.print(
            uncut.describe(split, f"the {uncut.limit} tokens that the model was fine-tuned to read"),
            markup=False,
            soft_wrap=True,
        )
