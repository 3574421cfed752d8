"""Whether a sentence follows another, as a loaded model judges."""

import itertools
from collections.abc import Iterable
from typing import Any

from bert_jax.errors import UserError
from bert_jax.pretrained.model_inputs import in_batches, read_texts
from bert_jax.pretrained.runner import softmax


def next_sentence(model: Any, first: Any, second: Any, batch_size: int) -> float | list[float]:
    """Return the probability of class 0; PretrainedModel.next_sentence describes arguments and result."""
    single = isinstance(first, str) and isinstance(second, str)
    pairs = _text_pairs([first], [second]) if single else _text_pairs(first, second)
    found = [0.0] * len(pairs)
    for numbers, batch in in_batches(read_texts(model, pairs), batch_size, None, packed=True):
        shares = softmax(model.next_sentence_logits(batch))[:, 0]
        for number, share in zip(numbers, shares, strict=False):
            found[number] = float(share)
    return found[0] if single else found


def _text_pairs(first: Any, second: Any) -> list[tuple[str, str]]:
    columns = [list(texts) for texts in (first, second) if isinstance(texts, Iterable) and not isinstance(texts, str)]
    if (
        len(columns) < 2
        or len(columns[0]) != len(columns[1])
        or not all(isinstance(text, str) for text in itertools.chain(*columns))
    ):
        raise UserError(
            f"next_sentence takes two texts, or two lists of as many texts, not {first!r:.60} and {second!r:.60}"
        )
    return list(zip(*columns, strict=True))
