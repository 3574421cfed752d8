"""Attention maps of one text or pair: probabilities of every layer and head, as an HTML page and as a picture.

Behind `bert-jax analyze attention`. The page is one HTML file that loads nothing: choose a layer and a head, hover
over a token. Tokens may come from texts of unknown origin, so they reach the script as JSON without any "<", the
script writes them as text, and a content security policy lets no other script run.
"""

import dataclasses
import html
import json
import pathlib
import re
import secrets

import numpy as np
from matplotlib.figure import Figure

from bert_jax.analysis.results import Analysis, call_with, model_fingerprint, panels, short_path
from bert_jax.config.analyses import AttentionConfig
from bert_jax.errors import UserError
from bert_jax.pretrained.model import PretrainedModel, load

MOST_VALUES = 20_000_000
"""Probabilities that a result may hold: 12 layers of 12 heads over 370 tokens. Browsers cope with little more."""


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
      pair: second text, read after the first in the pair format of the vocabulary; None for a single text.
      max_length: tokens, special ones included; a longer text is cut. None: as many as the model has positions.

    Raises:
      UserError: the text is blank or too long for a picture, or the layers have no attention.
    """
    for given in (text,) if pair is None else (text, pair):
        if not given.strip():
            raise UserError(f"a blank text {given!r} has no tokens; give a text with words")
    longest = model.config.longest_sequence if max_length is None else max_length
    count = model.config.num_layers * model.config.attention_heads
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


DIGITS = 4  # of a probability in the page
PAGE = pathlib.Path(__file__).with_name("attention.html")
"""The page, with names in double braces for what differs between pages."""


def attention_page(maps: AttentionMaps) -> str:
    """Return the page."""
    nonce = secrets.token_urlsafe(16)
    policy = f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'"
    weights = maps.weights.round(DIGITS).tolist()
    data = json.dumps({"tokens": maps.tokens, "segments": maps.segments, "weights": weights}, allow_nan=False)
    data = data.replace("<", "\\u003c")
    values = {"policy": html.escape(policy), "model": html.escape(maps.model), "nonce": nonce, "data": data}
    return re.sub(r"\{\{(\w+)\}\}", lambda name: values[name[1]], PAGE.read_text(encoding="utf-8"))


def draw_attention(result: AttentionMaps) -> Figure:
    """Return a map for every layer (rows, the first at the top) and head: queries from the top, keys from the left."""
    layers, heads, count, _ = result.weights.shape
    heading = f"{short_path(result.model)}: attention in {count} tokens (square roots of the probabilities)"
    figure, axes = panels((1.2 * heads + 1.4, 1.2 * layers + 1.0), heading, heading_size=10)
    size = count + max(2, count // 15)  # of a map with the gap behind it
    picture = np.full((layers * size, heads * size), np.nan)
    for layer, head in np.ndindex(layers, heads):
        rows, columns = layer * size, head * size
        picture[rows : rows + count, columns : columns + count] = np.sqrt(result.weights[layer, head])
    gap = size - count
    axes.imshow(picture[:-gap, :-gap], cmap="Blues", vmin=0.0, vmax=1.0, interpolation="none")
    axes.set_xticks([head * size + count / 2 for head in range(heads)], [f"head {head + 1}" for head in range(heads)])
    axes.set_yticks([row * size + count / 2 for row in range(layers)], [f"layer {row + 1}" for row in range(layers)])
    axes.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)
    axes.set_facecolor("#e6e6e6")
    return figure


def _told(result: AttentionMaps) -> list[str]:
    layers, heads, tokens, _ = result.weights.shape
    return [f"{layers} layers of {heads} heads over {tokens} tokens: {' '.join(result.tokens)}"]


MAPS = Analysis("attention", AttentionMaps, _told, {"index.html": attention_page, "attention": draw_attention})


def run_attention(path: str, options: AttentionConfig) -> None:
    """Write the attention in a text as a page, a picture and numbers."""
    model = load(path)
    compute = call_with(attention, options, model, options.text, options.pair or None)
    MAPS.run(options, {"models": [model_fingerprint(model)]}, compute)
