"""Who attends to whom in one text or pair: the attention probabilities of every layer and head."""

import dataclasses

import numpy as np

from bert_jax.errors import UserError
from bert_jax.pretrained.model import PretrainedModel

MOST_VALUES = 20_000_000
"""Probabilities that a result may hold: 12 layers of 12 heads over 370 tokens. Browsers and JSON end not far above."""


@dataclasses.dataclass(frozen=True)
class AttentionMaps:
    """The attention of a model in one text; tokens are in the order in which the model reads them."""

    model: str
    """Path of the model."""
    tokens: tuple[str, ...]
    """The L pieces, special ones included."""
    segments: tuple[int, ...]
    """Number of the segment of each token: 1 in the second text of a pair, else 0."""
    weights: np.ndarray
    """float64 [N, A, L (query), L (key)]: the probabilities of each layer and head. The rows of a query add up to 1."""


def attention(
    model: PretrainedModel, text: str, pair: str | None = None, *, max_length: int | None = None
) -> AttentionMaps:
    """Return the attention probabilities of a model in a text, or in a pair of texts.

    They are those of the weights and inputs by which the model computes its states (`PretrainedModel.encode`).

    Args:
      model: a Transformer.
      text: what it reads.
      pair: second text, read after the first in the pair format of the vocabulary; None: there is none.
      max_length: tokens, special ones included; a longer text is cut. None: as many as the model has positions.

    Raises:
      UserError: the text is blank or too long for a picture, or the layers have no attention.
    """
    for given in (text,) if pair is None else (text, pair):
        if not given.strip():
            raise UserError(f"a blank text {given!r} has no tokens; give a text with words")
    longest = model.config.longest_sequence if max_length is None else max_length
    count = model.config.num_layers * model.config.num_heads
    if count * min(longest, len(text) + len(pair or "") + 3) ** 2 > MOST_VALUES:  # a token has a character at least
        tokens = len(model.encode([text if pair is None else (text, pair)], max_length=max_length).tokens[0])
        if count * tokens**2 > MOST_VALUES:
            raise UserError(
                f"{tokens} tokens with {count} heads make {count * tokens**2:,} probabilities, too many to look at; "
                f"shorten the text, or set max_length={int((MOST_VALUES / count) ** 0.5)}"
            )
    found = model.encode([text if pair is None else (text, pair)], attentions=True, max_length=max_length)
    assert found.attentions is not None
    return AttentionMaps(
        model.path,
        tuple(found.tokens[0]),
        tuple(int(number) for number in found.token_type_ids[0]),
        np.stack([layer[0] for layer in found.attentions]).astype(np.float64),
    )
