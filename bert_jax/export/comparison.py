"""An exported program compared with its model, on texts of odd lengths: empty, of one word, padded, and the longest.

The model answers as its users ask it, by the methods of `PretrainedModel`, in the form that this machine computes
fastest. So a mistake in the function that is exported shows, not only one in its translation.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from bert_jax.config import HeadConfig
from bert_jax.config.heads import SingleVector, TokenVectors
from bert_jax.data.sequences import Batch, Features
from bert_jax.export.function import ROWS, ModelFunction
from bert_jax.models.bert_parameters import TOKEN_VECTORS
from bert_jax.models.pooling import token_vectors
from bert_jax.models.task import BertForTask
from bert_jax.pretrained.encodings import read_texts
from bert_jax.pretrained.model import PretrainedModel
from bert_jax.tokenization.tokenizer import Texts, lowered

LONGEST = 512
"""Tokens of the longest row that is compared, of a model that reads longer ones."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What was compared, and the largest difference of a value."""

    texts: int
    longest: int
    """Tokens of the longest text."""
    output: str
    """Name of the output with the largest difference."""
    difference: float
    """The largest absolute difference of two values, or infinity if a value is no number."""
    relative: float
    """The same, divided by the largest absolute value of its output if that is more than 1."""

    def describe(self) -> str:
        return (
            f"compared with the model on {self.texts} texts of up to {self.longest} tokens: the largest difference is "
            f"{self.difference:.1e}, in {self.output}"
        )


def compare(
    model: PretrainedModel, function: ModelFunction, run: Callable[..., Mapping[str, np.ndarray]]
) -> Comparison:
    """Compare what `run`, the exported function, returns with the answers of the model."""
    found: list[tuple[float, float, str]] = []
    number, longest = 0, 0
    for texts in sample_texts(model):
        features = _read(model, texts)
        batch = padded(features, model.need_tokenizer().pad_id)
        number, longest = number + len(features), max(longest, batch["input_ids"].shape[1])
        outputs, expected = run(*(batch[name] for name in function.inputs)), answers(model, texts, features, batch)
        for name, axes in function.outputs.items():
            mask = batch["attention_mask"] if axes[:2] == ROWS else np.ones(1)
            found.append((*_difference(np.asarray(outputs[name]), expected[name], mask), name))
    relative, difference, name = max(found)
    return Comparison(number, longest, name, difference, relative)


def _difference(found: np.ndarray, expected: np.ndarray, mask: np.ndarray) -> tuple[float, float]:
    """Return the largest difference in proportion to the largest value, and as it is, of what the mask [B, L] shows."""
    if found.shape != expected.shape or not np.isfinite(found).all():
        return np.inf, np.inf
    seen = np.broadcast_to((mask > 0).reshape(mask.shape + (1,) * (expected.ndim - mask.ndim)), expected.shape)
    difference = float(np.max(np.abs(found - expected), where=seen, initial=0.0))
    return difference / max(1.0, float(np.max(np.abs(expected), where=seen, initial=0.0))), difference


def sample_texts(model: PretrainedModel) -> list[list[str | tuple[str, str]]]:
    """Return batches of texts of words of the vocabulary: of several lengths, the empty text alone, and the longest."""
    tokenizer = model.need_tokenizer()
    plain = (token.strip("▁Ġ#") for token in tokenizer.tokens)
    words = [word for word in dict.fromkeys(plain) if word.isalpha() and word.islower()] or ["a"]
    mask = [tokenizer.tokens[tokenizer.mask_id]] if model.head is None and "mlm" in model.network.parts else []
    random = np.random.default_rng(0)

    def text(count: int) -> str:
        chosen = [str(word) for word in random.choice(words, count)]
        return " ".join(chosen[:1] + mask + chosen[1:])

    longest = _longest(model)
    some = [text(count) for count in (1, 2, 5, 11) if count < longest - 4]
    pair = [(text(3), text(2))] if model.config.type_vocab_size > 1 and longest > 16 else []
    return [["", *some, *pair], [""], [text(longest)]]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Leave out the warnings of what is logged within."""
    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _longest(model: PretrainedModel) -> int:
    return min(LONGEST, model.config.longest_sequence, model.embedding.max_length or LONGEST)


def _read(model: PretrainedModel, texts: Texts) -> Features:
    with quiet():  # the longest text is cut, as it should be
        return read_texts(model, lowered(texts) if model.embedding.lowercase else texts, _longest(model))


def padded(features: Features, pad_id: int) -> Batch:
    """Return all sequences as one batch, whose length is that of the longest."""
    shape = len(features), max(map(len, features.input_ids))
    batch = {
        "input_ids": np.full(shape, pad_id, np.int32),
        "token_type_ids": np.zeros(shape, np.int32),
        "attention_mask": np.zeros(shape, np.int32),
    }
    for row, (ids, types) in enumerate(zip(features.input_ids, features.token_type_ids, strict=True)):
        for name, values in zip(batch, (ids, types, 1), strict=True):
            batch[name][row, : len(ids)] = values
    return batch


def answers(model: PretrainedModel, texts: Texts, features: Features, batch: Batch) -> dict[str, np.ndarray]:
    """Return what the methods of a model answer, by the names of the outputs of `model_function`."""
    if model.head is not None:
        return _scores(model, model.head, features, batch)
    encoded = model.encode_ids(batch["input_ids"], batch["attention_mask"], batch["token_type_ids"], layers="last")
    found: dict[str, Any] = {"last_hidden_state": encoded.last_hidden_state, "pooler_output": encoded.pooled}
    if isinstance(model.embedding.form, TokenVectors):
        kernel = model.params[TOKEN_VECTORS]["kernel"]
        found["token_embeddings"] = np.asarray(token_vectors(jnp.asarray(encoded.last_hidden_state), kernel))
    else:
        with quiet():
            vectors = model.embed(texts, max_length=_longest(model), progress=False)
        found["sentence_embedding"] = vectors if isinstance(model.embedding.form, SingleVector) else vectors.toarray()
    if "mlm" in model.network.parts and not model.config.two_directions:
        found["logits"] = _words(model, batch)
    if {"pooler", "next_sentence"} <= {*model.network.parts}:
        found["next_sentence_logits"] = model.next_sentence_logits(batch)
    if "replaced_tokens" in model.network.parts:
        replaced = jax.jit(model.network.replaced_token_logits)
        found["replaced_token_logits"] = np.asarray(replaced(model.params, batch), np.float32)
    return found


def _words(model: PretrainedModel, batch: Batch) -> np.ndarray:
    """Return the logits of the words at each position; of an XLNet at its masks, and 0 elsewhere."""
    ids = batch["input_ids"]
    if not model.config.two_streams:
        every = np.broadcast_to(np.arange(ids.shape[1], dtype=np.int32), ids.shape)
        return model.mlm_logits({**batch, "masked_positions": np.ascontiguousarray(every)})
    masks = [np.flatnonzero(row == model.need_tokenizer().mask_id) for row in ids]
    width = max(1, *map(len, masks))
    places = np.stack([np.resize(row, width) if len(row) else np.zeros(width) for row in masks]).astype(np.int32)
    at_masks = model.mlm_logits({**batch, "masked_positions": places})
    found = np.zeros((*ids.shape, at_masks.shape[-1]), np.float32)
    for row, own in enumerate(masks):
        found[row, own] = at_masks[row, : len(own)]
    return found


def _scores(model: PretrainedModel, head: HeadConfig, features: Features, batch: Batch) -> dict[str, np.ndarray]:
    if head.crf or head.windows:  # whose answers are paths, for words that are marked, and those of several windows
        task = BertForTask(model.config, head, model.network.compute, unread=model.unread)
        batch = {name: values[:, None] for name, values in batch.items()} if head.windows else batch
        scores = np.asarray(jax.jit(task.apply)(model.params, batch), np.float32)
        chain = {name: np.asarray(values) for name, values in model.params["crf"].items()} if head.crf else {}
        return {"logits": scores, "scores": scores, **chain}
    if head.kind == "choice":
        ids, types = ([[row] for row in rows] for rows in (features.input_ids, features.token_type_ids))
        features = dataclasses.replace(features, input_ids=ids, token_type_ids=types)
    rows = [np.asarray(row) for row in model.task_scores(features)]
    if head.kind in ("span", "tagging"):
        length = batch["input_ids"].shape[1]
        rows = [np.pad(row, ((0, length - len(row)), (0, 0))) for row in rows]
    scores = np.stack(rows)
    if head.kind == "span":
        return {"start_logits": scores[..., 0], "end_logits": scores[..., 1]}
    return {"scores": scores[:, 0] if head.kind == "choice" else scores, "logits": scores}
