"""Checks texts as users give them (one, a pair, or several of either) and converts them to ids."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from absl import logging

from bert_jax.errors import UserError
from bert_jax.tokenization.segments import join, sequence_length

Texts = str | tuple[str, str] | Iterable[str | tuple[str, str]]
"""One text, one pair (a tuple), or several of either (any other iterable)."""


def tokenize(
    tokenizer: Any,
    texts: Texts,
    longest: int | None,
    max_length: int | None = None,
    truncate: bool = True,
    masks: bool = False,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return ids and token types, int32 [L] each, of [CLS] A [SEP] or [CLS] A [SEP] B [SEP] for every text.

    A text longer than `max_length` tokens (None: `longest`) loses its last ones (of a pair, the longer text does until
    both fit), and a warning is logged.

    Args:
      longest: maximum number of tokens that the model takes; None: any number.
      truncate: False makes a text that is too long an error.
      masks: whether "[MASK]" in a text is the mask token, not these letters.

    Raises:
      UserError: `texts` has a different type, or a text is too long with truncate=False.
    """
    if max_length is not None and not 5 <= max_length <= (longest or max_length):
        raise UserError(
            f"max_length={max_length} must "
            + (f"be between 5 and the {longest} positions of the model" if longest else "be 5 or more")
        )
    firsts, seconds = _columns(texts)
    first_ids = _encoded(tokenizer, firsts, masks)
    second_ids = iter(_encoded(tokenizer, [text for text in seconds if text is not None], masks))
    pairs = [(ids, None if text is None else next(second_ids)) for ids, text in zip(first_ids, seconds, strict=True)]
    sizes = [sequence_length(tokenizer, *pair) for pair in pairs]
    limit = max_length or longest or max(4 + tokenizer.separators, *sizes)
    if long := [number for number, size in enumerate(sizes) if size > limit]:
        if not truncate:
            raise UserError(
                f"text {long[0]} ({firsts[long[0]][:40]!r}…) has {sizes[long[0]]} tokens with its [CLS] and [SEP], "
                f"{limit} are allowed; shorten it, or let truncate=True cut it"
            )
        logging.warning(
            "%d of %d texts have more than %d tokens and were cut (the longest has %d)",
            len(long),
            len(pairs),
            limit,
            max(sizes),
        )
    return [join(tokenizer, first, second, limit) for first, second in pairs]


def as_arrays(rows: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return all texts in one batch, as long as the longest: int32 [n, L], zero beyond a text's own tokens."""
    return {
        "input_ids": _padded([ids for ids, _ in rows]),
        "token_type_ids": _padded([types for _, types in rows]),
        "attention_mask": _padded([np.ones_like(ids) for ids, _ in rows]),
    }


def _padded(rows: list[np.ndarray]) -> np.ndarray:
    whole = np.zeros((len(rows), max(map(len, rows))), np.int32)
    for target, row in zip(whole, rows, strict=True):
        target[: len(row)] = row
    return whole


def _columns(texts: Texts) -> tuple[list[str], list[str | None]]:
    """Return first and second texts; None if there is no second."""
    rows = [texts] if isinstance(texts, (str, tuple)) or not isinstance(texts, Iterable) else list(texts)
    if not rows:
        raise UserError("no texts were given: an empty list")
    pairs: list[tuple[Any, ...]] = [row if isinstance(row, tuple) else (row, None) for row in rows]
    for number, pair in enumerate(pairs):
        if len(pair) != 2 or not isinstance(pair[0], str) or not isinstance(pair[1], str | None):
            raise UserError(
                f"text {number} is {rows[number]!r:.60}; expected a str, a tuple of two, or a list of these"
            )
        check_utf8(*pair)
    return [first for first, _ in pairs], [second for _, second in pairs]


def _encoded(tokenizer: Any, texts: list[str], masks: bool) -> list[list[int]]:
    mask = tokenizer.tokens[tokenizer.mask_id]
    return [
        tokenizer.encode_masked(text) if masks and mask in text else ids
        for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True)
    ]


def lowered(texts: Texts) -> Texts:
    """Return the same texts in lowercase, by Python's rules."""
    if isinstance(texts, (str, tuple)) or not isinstance(texts, Iterable):
        return _lowered(texts)
    return [_lowered(text) for text in texts]


def _lowered(text: Any) -> Any:
    if isinstance(text, tuple):
        return tuple(map(_lowered, text))
    return text.lower() if isinstance(text, str) else text


def check_utf8(*texts: str | None) -> None:
    """Raise a UserError about a lone surrogate, the mark of bytes that were not UTF-8."""
    for text in texts:
        if text is not None and any("\ud800" <= character <= "\udfff" for character in text):
            raise UserError(f"the text {ascii(text[:60])} is not UTF-8; type or pass it in that encoding")
