"""Options of `bert-jax predict`, as frozen dataclasses; only the standard library is imported here, as in `config.py`."""

import dataclasses
from typing import Literal

from bert_jax.config import ComputeConfig, MeshConfig
from bert_jax.config_checks import check_mesh
from bert_jax.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputFormConfig:
    """How a file to be predicted differs in form from those that the model was fine-tuned on. None: not in this."""

    text_column: str | None = None
    """text: name of the column of the sentence, or its number, from 1, in a file without a line of names."""
    pair_column: str | None = None
    """text: of the second sentence."""
    label_column: str | None = None
    """text: of the label."""
    word_column: int | None = None
    """ner: number of the column of the words, from 1."""
    tag_column: int | None = None
    """ner: of the tags."""
    scheme: Literal["auto", "iob1", "iob2", "iobes", "plain"] | None = None
    """ner: how the tags mark entities."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictConfig:
    """Options of `bert-jax predict`."""

    input: str = ""
    """File in the form of one of the task's own; or plain text to classify, score or tag: a .txt file (not for ner, whose .txt
    files have columns) or - for standard input with one text per line, or a directory with one text per .txt file."""
    text: str = ""
    """A single text in place of --input. The two texts of a pair are separated by a tab, here and in plain text."""
    output: str = ""
    """File of the predictions; a directory (with a slash at the end) for everything that the task writes. Empty: they are
    printed."""
    overwrite: bool = False
    """Replace an output that exists."""
    split: Literal["test", "dev"] = "test"
    """Which of them: the two differ in some tasks. Labels are used where there are any."""
    task: str = ""
    """Another task that the model's head fits: ax for a model of mnli. Empty: the one it was fine-tuned on."""
    data: InputFormConfig = InputFormConfig()
    batch_size: int = 64
    compute: ComputeConfig = ComputeConfig()
    mesh: MeshConfig = MeshConfig()


def check_predict(config: PredictConfig) -> PredictConfig:
    """Returns `config` if its values can be used; raises UserError naming option, value and remedy if not."""
    if bool(config.input) == bool(config.text.strip()):
        raise UserError("give one of --input=FILE and --text=TEXT" + (", not both" if config.text else ""))
    if config.batch_size < 1:
        raise UserError(f"batch_size={config.batch_size} must be positive")
    check_mesh(config.mesh)
    return config
