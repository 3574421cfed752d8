"""Texts as padded batches of few shapes, so that a jitted model compiles a few times and not once a length."""

import bisect
import dataclasses
from collections.abc import Iterable, Iterator

import numpy as np
from absl import logging

from bert_jax.errors import UserError
from bert_jax.tasks.features import join
from bert_jax.tokenization import Tokenizer

LENGTHS = (16, 32, 64, 96, 128, 192, 256, 384, 512)
"""Batches are padded to the first of these that is long enough, or to what the model takes at most."""

Texts = str | tuple[str, str] | Iterable[str | tuple[str, str]]
"""One text, one pair (a tuple), or several of either (any other iterable)."""


@dataclasses.dataclass(frozen=True)
class Sequences:
    """Texts as ids, [CLS] A [SEP] or [CLS] A [SEP] B [SEP]: int32 [length] each, not padded."""

    input_ids: list[np.ndarray]
    token_type_ids: list[np.ndarray]

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def lengths(self) -> np.ndarray:
        return np.array([len(ids) for ids in self.input_ids], np.int64)


def tokenize(tokenizer: Tokenizer, texts: Texts, max_length: int, truncate: bool) -> Sequences:
    """Ids of every text.

    What is longer than `max_length` tokens loses its last ones (of a pair the longer text does, until both fit), and a
    warning is logged; truncate=False makes that an error.

    Raises:
      UserError: not texts, or too long with truncate=False.
    """
    firsts, seconds = _columns(texts)
    first_ids = tokenizer.encode_batch(firsts)
    second_ids = iter(tokenizer.encode_batch([text for text in seconds if text is not None]))
    pairs = [(ids, None if text is None else next(second_ids)) for ids, text in zip(first_ids, seconds)]
    sizes = [len(a) + 2 if b is None else len(a) + len(b) + 3 for a, b in pairs]
    if long := [number for number, size in enumerate(sizes) if size > max_length]:
        if not truncate:
            raise UserError(f"text {long[0]} ({firsts[long[0]][:40]!r}…) has {sizes[long[0]]} tokens with its [CLS] and [SEP], "
                            f"{max_length} are allowed; shorten it, or let truncate=True cut it")
        logging.warning("%d of %d texts have more than %d tokens and were cut (the longest has %d)",
                        len(long), len(pairs), max_length, max(sizes))
    rows = [join(tokenizer, first, second, max_length) for first, second in pairs]
    return Sequences([ids for ids, _ in rows], [types for _, types in rows])


def batches(sequences: Sequences, rows: int, pad_id: int, longest: int) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Numbers [≤ rows] of the sequences in a batch, and the batch: input_ids, token_type_ids, attention_mask [rows, L] int32.

    Longest first, so that little is padding and a batch that does not fit the memory fails at once; the last batch is
    filled up with copies of its first row, whose results nobody reads.
    """
    order = np.argsort(-sequences.lengths, kind="stable")
    for begin in range(0, len(order), rows):
        numbers = order[begin:begin + rows]
        length = padded_length(len(sequences.input_ids[numbers[0]]), longest)
        batch = {name: np.full((rows, length), fill, np.int32)
                 for name, fill in (("input_ids", pad_id), ("token_type_ids", 0), ("attention_mask", 0))}
        for row, number in enumerate(np.concatenate([numbers, np.repeat(numbers[:1], rows - len(numbers))])):
            size = len(sequences.input_ids[number])
            batch["input_ids"][row, :size] = sequences.input_ids[number]
            batch["token_type_ids"][row, :size] = sequences.token_type_ids[number]
            batch["attention_mask"][row, :size] = 1
        yield numbers, batch


def padded_length(length: int, longest: int) -> int:
    """The rung of LENGTHS for `length` tokens, in a model that takes `longest`."""
    rung = bisect.bisect_left(LENGTHS, length)
    return min(LENGTHS[rung], longest) if rung < len(LENGTHS) else longest


def rows_for(count: int, batch_size: int) -> int:
    """Rows of each batch for `count` texts: batch_size, or for fewer texts the next power of two."""
    return min(batch_size, 1 << (count - 1).bit_length())


def _columns(texts: Texts) -> tuple[list[str], list[str | None]]:
    """First and second texts; None where there is no second."""
    rows = [texts] if isinstance(texts, (str, tuple)) else list(texts)
    if not rows:
        raise UserError("no texts were given: an empty list")
    pairs = [row if isinstance(row, tuple) else (row, None) for row in rows]
    for number, pair in enumerate(pairs):
        if len(pair) != 2 or not isinstance(pair[0], str) or not isinstance(pair[1], str | None):
            raise UserError(f"text {number} is {rows[number]!r:.60}; expected a str, a tuple of two, or a list of these")
        if any("\ud800" <= character <= "\udfff" for text in pair for character in text or ""):
            raise UserError(f"text {number} ({ascii(rows[number])[:60]}) is not UTF-8; read it in its own encoding")
    return [first for first, _ in pairs], [second for _, second in pairs]
