"""The files of `bert-jax predict`: examples of a task or plain texts, and predictions that replace no other file."""

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Sequence
from typing import Any

import jax
from etils import epath

from bert_jax.config.predicting import PredictConfig
from bert_jax.data.sequences.features import Features
from bert_jax.errors import UserError
from bert_jax.files import is_remote
from bert_jax.formats.stored import StoredModel
from bert_jax.tasks import ner, plain_text, text
from bert_jax.tasks.families import Family
from bert_jax.tasks.plain_text import PlainText
from bert_jax.tasks.recorded import recorded_data, recorded_pairs
from bert_jax.tokenization.texts import check_utf8


def check_files(config: PredictConfig) -> None:
    """Raise UserError if the input does not exist, or the output is a file that must stay as it is."""
    if config.input not in ("", plain_text.STANDARD_INPUT) and not epath.Path(config.input).expanduser().exists():
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


def read_examples(stored: StoredModel, task: str, family: Family, config: PredictConfig) -> tuple[Family, Any]:
    """Return the family that answers the input, which is `family` except for plain texts, and the input's examples.

    Raises:
      UserError: a file, text or line cannot be read, or plain text is given for questions.
    """
    labels, kind = stored.need_head().labels, stored.need_head().kind
    if config.input and not plain_text.is_plain(config.input, kind):
        form = {name: value for name, value in dataclasses.asdict(config.data).items() if value is not None}
        data = dataclasses.replace(recorded_data(stored.history), **form, **{config.split: config.input})
        return family, family.load(task, data, config.split, labels)
    if kind not in ("classification", "regression", "tagging"):
        raise UserError(f"plain text does not say what {task} asks of it; give --input=FILE in a format of that task")
    check_utf8(config.text)
    texts = plain_text.read(config.input) if config.input else [PlainText("--text", config.text, "0")]
    if kind == "tagging":
        return ner, ner.from_plain(texts, labels)
    return text, text.from_plain(texts, labels, recorded_pairs(stored.history))


def write_predictions(
    family: Family, examples: Any, features: Features, logits: list[Any], output: str, split: str
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
        with open(main, "rb") as source, epath.Path(output).open("wb") as target:
            shutil.copyfileobj(source, target)


def _is_directory(output: str) -> bool:
    return output.endswith(os.sep) or output != "" and epath.Path(output).is_dir()
