"""Checks that the arrays of a stored model are those that its own configuration requires."""

import jax

from bert_jax.errors import UserError
from bert_jax.formats.stored import StoredModel, check_vocabulary
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.parameters import PRETRAINING_PARTS
from bert_jax.models.task import BertForTask


def check_fit(stored: StoredModel) -> None:
    """Raise a UserError if arrays and configuration disagree (naming the first) or the vocabulary does not fit."""
    wanted = {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape
        for path, leaf in jax.tree.leaves_with_path(abstract_params(stored))
    }
    lines = []
    for path in sorted({*wanted, *stored.arrays}):
        there = stored.arrays[path].shape if path in stored.arrays else None
        if there != wanted.get(path):
            lines.append(f"{path}: stored {_shape(there)}, by the configuration {_shape(wanted.get(path))}")
    if lines:
        more = f"; and {len(lines) - 3} more" if len(lines) > 3 else ""
        raise UserError(
            f"the parameters in {stored.path} do not fit its configuration: {'; '.join(lines[:3])}{more}. Put the "
            "configuration file that they were made with beside them"
        )
    if stored.tokenizer is not None:
        check_vocabulary(stored.tokenizer.vocab_size, stored.model.need_vocab_size(), stored.path)


def abstract_params(stored: StoredModel) -> dict:
    """Return a nested dict of ShapeDtypeStruct: the parameters that configuration and parts of `stored` require."""
    parts = tuple(part for part in PRETRAINING_PARTS if part in stored.parts)
    shapes = jax.eval_shape(lambda: BertForPreTraining(stored.model, parts=parts).init(jax.random.key(0)))
    if (head := stored.head) is None:
        return shapes
    return shapes | jax.eval_shape(lambda: BertForTask(stored.model, head).init(jax.random.key(0)))


def _shape(shape: tuple[int, ...] | None) -> str:
    return "none" if shape is None else str(list(shape))
