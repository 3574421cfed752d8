"""`bert-jax fill-mask`: the words that a model would write in place of each [MASK]."""

import dataclasses
from collections.abc import Iterable
from typing import Any, overload

import numpy as np

from bert_jax.data.sequences.text_batches import as_features, batches
from bert_jax.errors import UserError
from bert_jax.pretrained.runner import softmax
from bert_jax.tokenization.segments import assembled
from bert_jax.tokenization.texts import check_utf8
from bert_jax.tokenization.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A piece that a model would write in place of a mask."""

    token: str
    """The piece, as the vocabulary spells it."""
    probability: float
    """Its probability at the mask."""


Filled = list[list[Candidate]]
"""Candidates for each mask of a text, the most likely first."""


@overload
def fill_mask(  # pyright: ignore[reportOverlappingOverload] (a str is an Iterable[str] too)
    model: Any, texts: str, top_k: int = 5, batch_size: int = 32
) -> Filled: ...


@overload
def fill_mask(model: Any, texts: Iterable[str], top_k: int = 5, batch_size: int = 32) -> list[Filled]: ...


def fill_mask(model: Any, texts: str | Iterable[str], top_k: int = 5, batch_size: int = 32) -> Filled | list[Filled]:
    """Return the `top_k` most likely pieces for each [MASK], in order, of one text, or of each of several.

    Every mask is predicted with the other masks in place; from left to right, from the words before it alone.

    Args:
      model: a PretrainedModel.

    Raises:
      UserError: there is no mask or too much text.
    """
    tokenizer = model.need_tokenizer()
    if not 0 < top_k <= tokenizer.vocab_size:
        raise UserError(f"top_k={top_k} must be between 1 and the {tokenizer.vocab_size} entries of the vocabulary")
    single = isinstance(texts, str)
    if isinstance(texts, tuple) or not isinstance(texts, Iterable):
        raise UserError(f"fill_mask takes a text or a list of texts, not {texts!r:.60}")
    rows = [_masked_row(model, text) for text in ([texts] if single else texts)]
    ids = [row for row, _ in rows]
    if not ids or batch_size < 1:
        raise UserError(
            "no texts were given: an empty list" if not ids else f"batch_size={batch_size} must be positive"
        )
    features = as_features(rows, model.config.longest_sequence)
    if model.config.two_directions:
        raise UserError(
            "this model predicts a word from one side of it at a time (model.layer=lstm, both directions), so it fills "
            "no mask; use one with model.direction=left_to_right, or a Transformer"
        )
    before = int(model.config.direction == "left_to_right")  # a token is predicted at the place before it
    masks = [np.flatnonzero(row == tokenizer.mask_id) - before for row in ids]
    width = 1 << (max(map(len, masks)) - 1).bit_length()  # so that another text rarely compiles again
    filled: list[Filled] = [[] for _ in ids]
    for numbers, batch in batches(features, batch_size):
        batch["masked_positions"] = np.zeros((len(batch["input_ids"]), width), np.int32)
        for row, number in enumerate(numbers):
            batch["masked_positions"][row] = np.resize(masks[number], width)  # repeated where there are fewer
        for logits, number in zip(model.mlm_logits(batch), numbers, strict=False):
            filled[number] = _candidates(logits[: len(masks[number])], tokenizer, top_k)
    return filled[0] if single else filled


def _masked_row(model: Any, text: str) -> tuple[np.ndarray, np.ndarray]:
    """Return input_ids and token_type_ids of a text with at least one mask."""
    tokenizer, longest = model.tokenizer, model.config.longest_sequence
    mask = tokenizer.tokens[tokenizer.mask_id]
    if not isinstance(text, str):
        raise UserError(f"fill_mask takes a text or a list of texts, each a str, not {text!r:.60}")
    check_utf8(text)
    ids, types = assembled(tokenizer, tokenizer.encode_masked(text))
    if tokenizer.mask_id not in ids:
        raise UserError(f"there is no {mask} in {text[:60]!r}; write {mask} where a word is to be filled in")
    if len(ids) > longest:
        raise UserError(
            f"the text {text[:60]!r} has {len(ids)} tokens with its [CLS] and [SEP], but the model takes {longest}; "
            "shorten it"
        )
    return ids, types


def _candidates(logits: np.ndarray, tokenizer: Tokenizer, top_k: int) -> Filled:
    probabilities = softmax(logits)
    best = np.argsort(-probabilities, axis=-1, kind="stable")[:, :top_k]
    return [
        [Candidate(tokenizer.tokens[token], float(row[token])) for token in tokens]
        for row, tokens in zip(probabilities, best, strict=True)
    ]
