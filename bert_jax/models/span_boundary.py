"""The span boundary head (Joshi et al. 2020, section 3.2): the words of a masked span from the states beside it.

y_i = f(x_{s-1}, x_{e+1}, p_{i-s+1}) for place i of the span s … e, where f is two layers of affine → activation → norm.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import ModelConfig
from bert_jax.models.bert_parameters import SPAN_PLACE_SIZE, SPAN_PLACES
from bert_jax.models.chosen_positions import gather_positions
from bert_jax.models.embeddings import Embedding, position_vectors
from bert_jax.models.heads import MaskedLanguageModelHead
from bert_jax.models.layers import Linear, truncated_normal
from bert_jax.models.norms import Norm, make_norm


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SpanBoundaries:
    """The span of each of M predictions in B rows: the run of adjacent masked positions that it is in.

    Spans that touch are one, as in the published code, so the states beside a span are never those of masked positions.
    [CLS] and [SEP] are never masked: a span does not leave its segment, and there is a position on both sides.
    """

    left: jax.Array
    """int32 [B, M]: the position before the span."""
    right: jax.Array
    """int32 [B, M]: the position after it."""
    place: jax.Array
    """int32 [B, M]: number of the prediction within its span, from 0."""
    weights: jax.Array
    """float32 [B, M]: 1 for the first SPAN_PLACES predictions of a span, 0 for others and in unused slots."""

    @classmethod
    def of(cls, batch: dict[str, jax.Array]) -> "SpanBoundaries":
        """Return those of masked_positions [B, M], which ascend, and masked_weights [B, M]."""
        positions, weights = batch["masked_positions"], batch["masked_weights"]
        beyond = jnp.iinfo(positions.dtype).max
        positions = jnp.where(weights > 0, positions, beyond)
        begins = jnp.pad(positions[:, 1:] != positions[:, :-1] + 1, ((0, 0), (1, 0)), constant_values=True)
        ends = jnp.pad(begins[:, 1:], ((0, 0), (0, 1)), constant_values=True)
        first = jax.lax.cummax(jnp.where(begins, positions, -1), axis=1)
        last = jax.lax.cummin(jnp.where(ends, positions, beyond), axis=1, reverse=True)
        used = weights > 0
        place = jnp.where(used, positions - first, 0)
        return cls(
            left=jnp.where(used, first - 1, 0),
            right=jnp.where(used, last + 1, 0),
            place=jnp.minimum(place, SPAN_PLACES - 1),
            weights=jnp.where(place < SPAN_PLACES, weights, 0.0),
        )


class SpanBoundaryHead(nnx.Module):
    """[left; right; place] → affine → activation → norm; `words`, the second such layer and the word table (tied)."""

    def __init__(self, config: ModelConfig, key: jax.Array, activation: Callable[[jax.Array], jax.Array]):
        place_key, dense_key, words_key = jax.random.split(key, 3)
        hidden, std = config.hidden_size, config.initializer_range
        self.activation = activation
        self.place: Embedding = Embedding(truncated_normal(place_key, (SPAN_PLACES, SPAN_PLACE_SIZE), std))
        self.dense: Linear = Linear((2 * hidden + SPAN_PLACE_SIZE,), (hidden,), std, dense_key, config.use_bias)
        self.norm: Norm = make_norm(config, hidden)
        self.words: MaskedLanguageModelHead = MaskedLanguageModelHead(config, words_key, activation)

    def __call__(self, x: jax.Array, spans: SpanBoundaries) -> jax.Array:
        """Map the states x [B, L, H] to what `words` reads at each prediction, [B, M, H]."""
        beside = [gather_positions(x, positions) for positions in (spans.left, spans.right)]
        places = position_vectors(self.place.table[...], spans.place, x.dtype).astype(x.dtype)
        return self.norm(self.activation(self.dense(jnp.concatenate([*beside, places], axis=-1))))
