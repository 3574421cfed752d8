"""Options of `bert-jax predict`, as frozen dataclasses.

Only the standard library is imported here, as in `config.options`.
"""

import dataclasses
from typing import Literal

from bert_jax.config import ComputeConfig, MeshConfig
from bert_jax.config.checks import check_mesh
from bert_jax.config.task_options import TagScheme
from bert_jax.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputFormConfig:
    """Differences of the input file's format from that of the training files. None: same as in training."""

    text_column: str | None = None
    """Column of the sentence in the task text: its name, or its number, from 1, in a file without a header. None: same
    as in training."""
    pair_column: str | None = None
    """Column of the second sentence in the task text. None: same as in training."""
    label_column: str | None = None
    """Column of the label in the task text. None: same as in training."""
    word_column: int | None = None
    """Number of the column of the words in the task ner, from 1. None: same as in training."""
    tag_column: int | None = None
    """Number of the column of the tags in the task ner, from 1. None: same as in training."""
    scheme: TagScheme | None = None
    """Tagging scheme of the task ner. None: same as in training."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictConfig:
    """Options of `bert-jax predict`."""

    input: str = ""
    """File in one of the task's own formats, or plain text to classify, score or tag: a .txt file (not for ner, whose
    .txt files have columns) or - for standard input, with one text per line, or a directory with one text per .txt
    file."""
    text: str = ""
    """A single text instead of --input. The two texts of a pair are separated by a tab, here and in plain text."""
    output: str = ""
    """File to write the predictions to, or a directory (with a slash at the end) for everything that the task writes.
    By default the predictions are printed."""
    overwrite: bool = False
    """Whether an existing output is replaced."""
    split: Literal["test", "dev"] = "test"
    """Whether the file has the format of the task's test file or of its dev file, which differ in some tasks. Labels
    are used if there are any."""
    task: str = ""
    """Task to predict for, if it is not the one that the model was fine-tuned on but its head fits, such as ax for a
    model of mnli."""
    data: InputFormConfig = InputFormConfig()
    """Differences of the input's format from that of the training files."""
    batch_size: int = 64
    """Sequences per batch."""
    compute: ComputeConfig = ComputeConfig()
    """Settings of the computation."""
    mesh: MeshConfig = MeshConfig()
    """Layout of the devices."""


def check_predict(config: PredictConfig) -> PredictConfig:
    """Return `config` if its values can be used; raise a UserError that names option, value and remedy otherwise."""
    if config.text and not config.text.strip():
        raise UserError(f"--text={config.text!r:.20} is blank; give --text=TEXT or --input=FILE")
    if bool(config.input) == bool(config.text):
        raise UserError("give one of --input=FILE and --text=TEXT" + (", not both" if config.text else ""))
    if config.batch_size < 1:
        raise UserError(f"batch_size={config.batch_size} must be positive")
    check_mesh(config.mesh)
    return config
