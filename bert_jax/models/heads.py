"""The heads on the encoder: masked words, replaced tokens, span boundaries and tasks.

The span boundary head (Joshi et al. 2020, section 3.2) predicts the words of a masked span from the states next to
it: y_i = f(x_{s-1}, x_{e+1}, p_{i-s+1}) for place i of the span s … e, where f is two layers of affine → activation →
norm.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import EncoderConfig, HeadConfig
from bert_jax.config.heads import TextState
from bert_jax.models.bert_parameters import POOLED, SPAN_PLACE_SIZE, SPAN_PLACES
from bert_jax.models.embeddings import Embedding, WordLosses, capped, position_vectors, word_logits, word_losses
from bert_jax.models.layers import (
    Linear,
    Norm,
    PackedTexts,
    affine,
    dropout,
    gather_positions,
    like,
    make_norm,
    truncated_normal,
)
from bert_jax.models.pooling import text_states
from bert_jax.models.protocol import Encoded, EncoderOutput, ReadStates

WORDS_AT_ONCE = 1024  # whose logits at all positions are one array
PADDED_LOGIT = -1e9  # logit of table rows without a word: never predicted, and its exp is 0


class MaskedLanguageModelHead(nnx.Module):
    """dense → activation → norm → product with the word table (tied) → + bias; XLNet begins with the product.

    With another `form` than tied (`ModelConfig.word_head`), the product is with a table of its own, and it is the first
    step too. With a cap c (`logit_cap` of the model), the logits become c · tanh(logit / c).
    """

    def __init__(
        self, config: EncoderConfig, key: jax.Array, activation: Callable[[jax.Array], jax.Array], form: str = "tied"
    ):
        width = (config.word_size,)
        assert config.vocab_size is not None, "BertForPreTraining refuses such a configuration"
        self.activation: Callable[[jax.Array], jax.Array] = activation
        self.vocab_size: int = config.vocab_size
        self.cap: float | None = config.logit_cap
        self.transforms: bool = form == "tied" and not config.two_streams
        if self.transforms:
            self.dense: Linear = Linear((config.hidden_size,), width, config.initializer_range, key, config.use_bias)
            self.norm: Norm = make_norm(config, config.word_size)
        shape = (config.padded_vocab_size, config.hidden_size)
        self.table: nnx.Param[jax.Array] | None = (
            None if form == "tied" else nnx.Param(truncated_normal(key, shape, config.initializer_range))
        )
        self.bias: nnx.Param[jax.Array] | None = (
            None if form == "linear" else nnx.Param(jnp.zeros(config.padded_vocab_size, jnp.float32))
        )

    def __call__(self, x: jax.Array, word_table: jax.Array) -> jax.Array:
        """Map x [B, M, H] and the word table to logits [B, M, V], float32 whatever the dtype of x."""
        logits = word_logits(self._transformed(x), self._table(word_table))
        logits = capped(logits if self.bias is None else logits + like(self.bias[...], logits), self.cap)
        real = jax.lax.broadcasted_iota(jnp.int32, (1, 1, logits.shape[-1]), 2) < self.vocab_size
        return jnp.where(real, logits, PADDED_LOGIT)

    def losses(self, x: jax.Array, word_table: jax.Array, labels: jax.Array, block: int, log_sums: bool) -> WordLosses:
        """Return the losses [B, M] of predicting labels [B, M] from x [B, M, H], from the logits of a block at a time.

        Arguments are as above and, from `block` on, those of `embeddings.word_losses`.
        """
        x = self._transformed(x)
        rows, table = x.reshape(-1, x.shape[-1]), self._table(word_table)
        bias = jnp.zeros(len(table), jnp.float32) if self.bias is None else self.bias[...]
        found = word_losses(rows, table, bias, labels.reshape(-1), self.vocab_size, block, self.cap, log_sums)
        return jax.tree.map(lambda of_rows: of_rows.reshape(labels.shape), found)

    def strengths(self, x: jax.Array, word_table: jax.Array, mask: jax.Array) -> jax.Array:
        """Return float32 [B, V]: for each word, log(1 + max(0, its highest logit at a position where mask is 1)).

        The logits of some words at a time are in memory, in the backward pass too.

        Args:
          x: [B, L, H].
          word_table: as above.
          mask: [B, L].
        """
        x, table = self._transformed(x), self._table(word_table)
        bias = jnp.zeros(len(table), jnp.float32) if self.bias is None else self.bias[...]
        rows, blocks = len(table), -(-len(table) // WORDS_AT_ONCE)
        size = -(-rows // blocks)
        filling = (0, blocks * size - rows)
        tables = jnp.pad(table, (filling, (0, 0))).reshape(blocks, size, -1)

        def highest(of_words: tuple[jax.Array, jax.Array]) -> jax.Array:
            logits = word_logits(x, of_words[0])
            logits = capped(logits + like(of_words[1], logits), self.cap)
            return jnp.max(jnp.where(mask[:, :, None] > 0, logits, 0.0), axis=1)  # what is negative counts as 0

        once_more = jax.checkpoint(highest, prevent_cse=False)  # a scan needs no protection
        found = jax.lax.map(once_more, (tables, jnp.pad(bias, filling).reshape(blocks, size)))
        found = jnp.swapaxes(found, 0, 1).reshape(x.shape[0], -1)[:, :rows]
        return jnp.where(jnp.arange(rows)[None] < self.vocab_size, jnp.log1p(jax.nn.relu(found)), 0.0)

    def _table(self, word_table: jax.Array) -> jax.Array:
        return word_table if self.table is None else self.table[...]

    def _transformed(self, x: jax.Array) -> jax.Array:
        return self.norm(self.activation(self.dense(x))) if self.transforms else x


class ReplacedTokenHead(nnx.Module):
    """dense → activation → affine map to one logit: the head of ELECTRA's discriminator."""

    def __init__(self, config: EncoderConfig, key: jax.Array, activation: Callable[[jax.Array], jax.Array]):
        hidden = (config.hidden_size,)
        dense_key, output_key = jax.random.split(key)
        self.activation = activation
        self.dense: Linear = Linear(hidden, hidden, config.initializer_range, dense_key)
        self.output: Linear = Linear(hidden, (1,), config.initializer_range, output_key)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map x [B, L, H] to logits [B, L], float32: positive where a token was replaced."""
        return self.output(self.activation(self.dense(x)).astype(jnp.float32))[:, :, 0]


class TaskHead(nnx.Module):
    """Dropout and an affine map of the pooled first position or of every position to C outputs.

    kernel [H, C], bias [C].
    """

    def __init__(self, config: EncoderConfig, head: HeadConfig, key: jax.Array):
        shape = (config.hidden_size, head.outputs)
        self.kernel: nnx.Param[jax.Array] = nnx.Param(truncated_normal(key, shape, config.initializer_range))
        self.bias: nnx.Param[jax.Array] = nnx.Param(jnp.zeros(head.outputs, jnp.float32))
        self.rate: float = head.dropout
        self.pooled: bool = head.kind in POOLED

    def __call__(
        self, output: Encoded, mask: jax.Array, texts: PackedTexts | None, dropout_key: jax.Array | None
    ) -> jax.Array:
        """Return scores in float32: [B, C] from the pooled position, [B, L, C] from every position.

        Of rows of T texts it is [B, T, C]. `mask` [B, L] is 1 for real tokens; it is for heads that read their mean.
        """
        del mask, texts
        if self.pooled:
            read = output.pooled
            assert read is not None, "the model below this head has no pooler"
        else:
            assert isinstance(output, EncoderOutput), "this head reads every position"
            read = output.last_hidden_state
        read = dropout(read.astype(jnp.float32), self.rate, dropout_key)
        return affine(read, self.kernel[...], self.bias[...])


class TransformedTaskHead(nnx.Module):
    """dense → activation → norm → dropout → affine map to C outputs, as in ModernBERT.

    It reads the state of the text that a pooler would, the mean over its tokens, or every position in turn.
    """

    def __init__(
        self,
        config: EncoderConfig,
        head: HeadConfig,
        key: jax.Array,
        activation: Callable[[jax.Array], jax.Array],
    ):
        hidden, std = (config.hidden_size,), config.initializer_range
        dense_key, output_key = jax.random.split(key)
        self.activation = activation
        self.dense: Linear = Linear(hidden, hidden, std, dense_key, config.use_bias)
        self.norm: Norm = make_norm(config, config.hidden_size)
        self.kernel: nnx.Param[jax.Array] = nnx.Param(
            truncated_normal(output_key, (config.hidden_size, head.outputs), std)
        )
        self.bias: nnx.Param[jax.Array] = nnx.Param(jnp.zeros(head.outputs, jnp.float32))
        self.rate: float = head.dropout
        self.pooled: bool = head.kind in POOLED
        self.read: TextState = config.text_state if head.pooling == "cls" else "mean"

    def __call__(
        self, output: Encoded, mask: jax.Array, texts: PackedTexts | None, dropout_key: jax.Array | None
    ) -> jax.Array:
        """Return the scores, as `TaskHead` does; of what `read` returned, the states are those of the texts."""
        if isinstance(output, ReadStates):
            read = (output.states[:, 0] if texts is None else output.states).astype(jnp.float32)
        else:
            read = output.last_hidden_state.astype(jnp.float32)
            if self.pooled:
                read = text_states(read, mask, self.read, texts)
        read = dropout(self.norm(self.activation(self.dense(read))), self.rate, dropout_key)
        return affine(read, self.kernel[...], self.bias[...])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SpanBoundaries:
    """The span of each of M predictions in B rows: the run of adjacent masked positions that it is in.

    Spans that touch are one, as in the published code, so the states next to a span are never masked ones.
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

    def __init__(self, config: EncoderConfig, key: jax.Array, activation: Callable[[jax.Array], jax.Array]):
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
