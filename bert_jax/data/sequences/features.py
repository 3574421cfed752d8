"""What every task family turns its examples into: token sequences with their answers, not yet padded."""

import dataclasses

import numpy as np

from bert_jax.errors import UserError
from bert_jax.tasks.lengths import Uncut
from bert_jax.tokenization.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Features:
    """E sequences of at most `max_length` tokens, `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`; batching pads them."""

    input_ids: list
    """int32 [L] each; for choice a list of K such arrays each."""
    token_type_ids: list
    """As `input_ids`: 0 for [CLS] A [SEP], 1 for B [SEP]."""
    labels: np.ndarray | list[np.ndarray] | None
    """classification and choice int32 [E]; regression float32 [E]; span int32 [E, 2], token positions, (0, 0) where the
    sequence holds no answer; tagging a list of int32 [L], -1 where nothing is predicted, else as `models.crf.with_edges` makes them. None
    where unlabelled."""
    example: np.ndarray
    """int32 [E]: the index of the example that each sequence came from."""
    max_length: int
    uncut: Uncut | None = dataclasses.field(default=None, kw_only=True)
    """None where everything is read, in windows."""

    def __len__(self) -> int:
        return len(self.input_ids)


def truncate_pair(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens two segments keep of their beginnings so that together they have at most `room`.

    The original's rule for fine-tuning (`_truncate_seq_pair` of run_classifier.py): the longer segment gives up its last
    token until both fit, the second on a tie. In pre-training tokens go at either end instead (data/examples/truncation.py).
    """
    if first + second <= room:
        return first, second
    if second <= room // 2:
        return room - second, second
    if first <= room - room // 2:
        return first, room - first
    return room - room // 2, room // 2


def sequence_length(first: list[int], second: list[int] | None) -> int:
    """Return how many tokens `join` makes of one segment or two where it cuts nothing."""
    return len(first) + 2 if second is None else len(first) + len(second) + 3


def join(
    tokenizer: Tokenizer, first: list[int], second: list[int] | None, max_length: int
) -> tuple[np.ndarray, np.ndarray]:
    """(input_ids, token_type_ids), int32 [L] with L <= max_length, of one segment or two, cut by `truncate_pair`."""
    if max_length < 5:
        raise UserError(
            f"options.max_length={max_length} leaves no room for two segments between [CLS] and [SEP]; 5 is the least"
        )
    if second is None:
        segments = [[tokenizer.cls_id, *first[: max_length - 2], tokenizer.sep_id]]
    else:
        keep_first, keep_second = truncate_pair(len(first), len(second), max_length - 3)
        segments = [
            [tokenizer.cls_id, *first[:keep_first], tokenizer.sep_id],
            [*second[:keep_second], tokenizer.sep_id],
        ]
    types = np.repeat(np.arange(len(segments)), [len(segment) for segment in segments])
    return np.array(sum(segments, []), np.int32), types.astype(np.int32)
