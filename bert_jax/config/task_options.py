"""Tasks by name, and the options of their examples: where they are, and how they become sequences and answers."""

import dataclasses
from typing import Literal

from bert_jax.config.ranges import need_positive
from bert_jax.errors import UserError

GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli", "ax")
PACKED = (*(task for task in GLUE if task != "ax"), "text")
"""Tasks whose sequences may share rows: one class or number for each sequence."""
TASKS = (*GLUE, "squad_v1", "squad_v2", "swag", "race", "choice", "ner", "text")
TagScheme = Literal["auto", "iob1", "iob2", "iobes", "plain"]
"""Tagging schemes for entities; see `TaskDataConfig.scheme`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskDataConfig:
    """Where the examples of a task are: local files, or a TFDS dataset."""

    dir: str = ""
    """Directory with the task's files under their original names, local or gs://."""
    train: str = ""
    """File to train on, if it does not have its original name."""
    dev: str = ""
    """File to evaluate on, if it does not have its original name."""
    test: str = ""
    """File to predict, labelled or not, if it does not have its original name."""
    dev_share: float = 0.0
    """Share of the training file, such as 0.1, that is held out as dev if there is no dev file (text only). Which texts
    these are depends only on the file, so all seeds and settings have the same ones; equal texts stay together."""
    tfds: str = ""
    """Name of a TFDS dataset (glue/mrpc, squad/v1.1, …) to read instead of files; train, dev and test then name its
    splits."""
    tfds_dir: str = ""
    """Directory where TFDS keeps its data. By default TFDS decides."""
    text_column: str = ""
    """Column of the sentence in the task text: its name (TSV, CSV), its key (JSON lines, TFDS), or its number, from 1,
    in a file without a header. By default text, sentence or sentence1."""
    pair_column: str = ""
    """Column of the second sentence in the task text. By default text_pair or sentence2, if there is one."""
    label_column: str = ""
    """Column of the label in the task text. By default label."""
    regression: bool = False
    """Whether the labels of the task text are numbers to estimate rather than classes."""
    word_column: int = 0
    """Number of the column of the words in the task ner, from 1. 0: the first (CoNLL-U: the second)."""
    tag_column: int = 0
    """Number of the column of the tags in the task ner, from 1. 0: the last (CoNLL-U: the fourth, universal parts of
    speech)."""
    scheme: TagScheme = "auto"
    """Tagging scheme of the task ner. auto: recognized from the tags. plain: tags without B-
    and I-, such as parts of speech."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """Conversion of the examples of a task to sequences, and of logits to answers. Each task uses the options that
    apply to it."""

    max_length: int = 128
    """Tokens per sequence, [CLS] and [SEP] included. Longer ones are cut or, in the SQuAD tasks and ner, split into
    windows."""
    doc_stride: int = 128
    """Number of tokens between the starts of two windows of SQuAD, as in the original (not their overlap). In ner, it
    is the maximum number of tokens that are predicted per window. They are in its middle and at most half of it; the
    rest of the window is context."""
    max_query_length: int = 64
    """Maximum number of tokens of a question; for SQuAD only. Longer ones are cut."""
    max_answer_length: int = 30
    """Maximum number of tokens of a predicted answer; for SQuAD only."""
    n_best: int = 20
    """Number of answers that are kept for each question; for SQuAD only."""
    null_threshold: float | None = None
    """Number by which "no answer" must score higher than the best answer for a question to be left unanswered; for
    SQuAD 2.0 only. None: tuned on dev."""
    context: bool = True
    """Whether each window is filled up with the sentences around it, as in the paper; for ner only."""


def check_task_data(task: str, data: TaskDataConfig) -> None:
    """Raise a UserError if the examples of `task` cannot be found by `data`, which is named with the remedy."""
    if not 0 <= data.dev_share < 1:
        raise UserError(
            f"data.dev_share={data.dev_share} must be between 0 and 1; 0.1 holds out a tenth of the training file"
        )
    if data.dev_share and (task != "text" or data.tfds or data.dev):
        reason = (
            f"{task} has a dev file of its own, or takes --data.dev=FILE"
            if task != "text"
            else "a split of TFDS is cut by --data.train='train[:90%]' --data.dev='train[90%:]'"
            if data.tfds
            else f"data.dev={data.dev} is given"
        )
        raise UserError(f"data.dev_share={data.dev_share} cannot be used: {reason}; leave it out")
    if task == "ax" or data.dir or data.tfds or data.train and (data.dev or data.dev_share):
        return
    if data.train:
        raise UserError(
            "no dev data, on which runs are compared and chosen: give --data.dev=FILE"
            + (f", or --data.dev_share=0.1 to hold out a tenth of {data.train}" if task == "text" else "")
        )
    raise UserError(
        "no data: give --data.dir=DIR with the task's original files, --data.train=FILE and --data.dev=FILE, "
        "or --data.tfds=NAME"
    )


def check_task_options(options: TaskOptions) -> None:
    """Raise a UserError if a value is out of range."""
    need_positive(options, "options.", "doc_stride", "max_query_length", "max_answer_length", "n_best")
    if options.max_length < 8:
        raise UserError(
            f"options.max_length={options.max_length} is too short for [CLS] A [SEP] B [SEP]; the minimum is 8"
        )
