"""Checks that the arrays of a stored model are those that its own configuration requires."""

from bert_jax.config.json_form import first_lines
from bert_jax.errors import UserError
from bert_jax.formats.stored import StoredModel, check_vocabulary


def check_fit(stored: StoredModel) -> None:
    """Raise a UserError if arrays and configuration disagree (naming the first) or the vocabulary does not fit."""
    wanted = {path: parameter.shape for path, parameter in stored.parameters.items()}
    lines = []
    for path in sorted({*wanted, *stored.arrays}):
        there = stored.arrays[path].shape if path in stored.arrays else None
        if there != wanted.get(path):
            lines.append(f"{path}: stored {_shape(there)}, by the configuration {_shape(wanted.get(path))}")
    if lines:
        raise UserError(
            f"the parameters in {stored.path} do not fit its configuration: {first_lines(lines, 3)}. {_remedy(stored)}"
        )
    if stored.tokenizer is not None:
        check_vocabulary(stored.tokenizer.vocab_size, stored.model.need_vocab_size(), stored.path)


def _remedy(stored: StoredModel) -> str:
    if stored.kind == "bert_jax":  # the configuration is in the checkpoint itself
        return (
            "They were made by an architecture or an objective from outside the package: `bert_jax.pretrain` resumes "
            "such a run with the same objective=…, but only BERT itself can be opened"
        )
    return "Put the configuration file that they were made with in the same directory"


def _shape(shape: tuple[int, ...] | None) -> str:
    return "none" if shape is None else str(list(shape))
