"""One or two texts as the ids that a model reads: [CLS] A [SEP], or [CLS] A [SEP] B [SEP].

With two separators, as in RoBERTa, a pair is <s> A </s></s> B </s>, and all of it is in segment 0.
"""

import numpy as np

from bert_jax.errors import UserError


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


def sequence_length(tokenizer, first: list[int], second: list[int] | None) -> int:
    """Return how many tokens `join` makes of one or two segments if it cuts nothing."""
    return len(first) + 2 if second is None else len(first) + len(second) + 2 + tokenizer.separators


def join(tokenizer, first: list[int], second: list[int] | None, max_length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return input_ids and token_type_ids, int32 [L], L <= max_length, of one or two segments; see `truncate_pair`."""
    between = [tokenizer.sep_id] * tokenizer.separators
    if max_length < 4 + len(between):
        raise UserError(
            f"options.max_length={max_length} leaves no room for two segments between [CLS] and [SEP]; the minimum is "
            f"{4 + len(between)}"
        )
    if second is None:
        segments = [[tokenizer.cls_id, *first[: max_length - 2], tokenizer.sep_id]]
    else:
        keep_first, keep_second = truncate_pair(len(first), len(second), max_length - 2 - len(between))
        segments = [
            [tokenizer.cls_id, *first[:keep_first], *between],
            [*second[:keep_second], tokenizer.sep_id],
        ]
    numbers = np.arange(len(segments)) * (len(between) == 1)
    types = np.repeat(numbers, [len(segment) for segment in segments])
    return np.array(sum(segments, []), np.int32), types.astype(np.int32)
