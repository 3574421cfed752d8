"""One or two texts as the ids that a model reads: [CLS] A [SEP], or [CLS] A [SEP] B [SEP].

With two separators, as in RoBERTa, a pair is <s> A </s></s> B </s>, and all of it is in segment 0. XLNet's is
A <sep> B <sep> <cls>, and the class token alone is in segment 2.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax.errors import UserError

CLASS_SEGMENT = 2
"""Segment of a class token that comes last, in the published code of XLNet."""


def truncate_pair(first: int, second: int, room: int) -> tuple[int, int]:
    """Return how many tokens from their beginnings two segments keep so that together they have at most `room`.

    This is the original's rule for fine-tuning (`_truncate_seq_pair` of run_classifier.py): the longer segment gives up
    its last token until both fit, the second on a tie. In pre-training tokens are removed at either end instead
    (data/examples/truncation.py).
    """
    if first + second <= room:
        return first, second
    if second <= room // 2:
        return room - second, second
    if first <= room - room // 2:
        return first, room - first
    return room - room // 2, room // 2


def sequence_length(tokenizer: Any, first: list[int], second: list[int] | None) -> int:
    """Return how many tokens `join` makes of one or two segments if it cuts nothing."""
    return len(first) + 2 if second is None else len(first) + len(second) + 2 + tokenizer.separators


def join(tokenizer: Any, first: list[int], second: list[int] | None, max_length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return input_ids and token_type_ids, int32 [L], L <= max_length, of one or two segments; see `truncate_pair`."""
    specials = 2 + tokenizer.separators
    if max_length < specials + 2:
        raise UserError(
            f"options.max_length={max_length} leaves no room for two segments between [CLS] and [SEP]; the minimum is "
            f"{specials + 2}"
        )
    if second is None:
        return assembled(tokenizer, first[: max_length - 2])
    keep_first, keep_second = truncate_pair(len(first), len(second), max_length - specials)
    return assembled(tokenizer, first[:keep_first], second[:keep_second])


def assembled(
    tokenizer: Any, first: Sequence[int], second: Sequence[int] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return input_ids and token_type_ids, int32 [L], of one or two segments of any length."""
    classes, separator = [tokenizer.cls_id], [tokenizer.sep_id]
    segments = [[*first, *separator]]
    if second is not None:
        segments = [[*first, *separator * tokenizer.separators], [*second, *separator]]
    numbers = [number * (tokenizer.separators == 1) for number in range(len(segments))]
    if tokenizer.class_last:
        segments, numbers = [*segments, classes], [*numbers, CLASS_SEGMENT]
    else:
        segments[0] = classes + segments[0]
    types = np.repeat(numbers, [len(segment) for segment in segments])
    return np.concatenate(segments).astype(np.int32), types.astype(np.int32)


def text_start(tokenizer: Any) -> int:
    """Return the position of the first token of the first segment."""
    return 0 if tokenizer.class_last else 1
