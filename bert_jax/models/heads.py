"""The heads on the encoder: masked words, replaced tokens, and the head of a task."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.config.encoder_heads import HeadPooling
from bert_jax.models.bert_parameters import POOLED
from bert_jax.models.layers import Linear, affine, dropout, like, truncated_normal
from bert_jax.models.norms import Norm, make_norm
from bert_jax.models.packed_texts import PackedTexts
from bert_jax.models.pooling import pool
from bert_jax.models.protocol import Encoded, EncoderOutput, ReadStates
from bert_jax.models.word_losses import WordLosses, word_losses
from bert_jax.models.word_table import word_logits

PADDED_LOGIT = -1e9  # logit of table rows without a word: never predicted, and its exp is 0


class MaskedLanguageModelHead(nnx.Module):
    """dense → activation → norm → product with the word table (tied) → + bias; XLNet begins with the product."""

    def __init__(self, config: ModelConfig, key: jax.Array, activation: Callable[[jax.Array], jax.Array]):
        width = (config.word_size,)
        assert config.vocab_size is not None, "BertForPreTraining refuses such a configuration"
        self.activation: Callable[[jax.Array], jax.Array] = activation
        self.vocab_size: int = config.vocab_size
        self.transforms: bool = not config.is_xlnet
        if self.transforms:
            self.dense: Linear = Linear((config.hidden_size,), width, config.initializer_range, key, config.use_bias)
            self.norm: Norm = make_norm(config, config.word_size)
        self.bias: nnx.Param[jax.Array] = nnx.Param(jnp.zeros(config.padded_vocab_size, jnp.float32))

    def __call__(self, x: jax.Array, word_table: jax.Array) -> jax.Array:
        """Map x [B, M, H] and the word table to logits [B, M, V], float32 whatever the dtype of x."""
        logits = word_logits(self._transformed(x), word_table)
        logits = logits + like(self.bias[...], logits)
        real = jax.lax.broadcasted_iota(jnp.int32, (1, 1, logits.shape[-1]), 2) < self.vocab_size
        return jnp.where(real, logits, PADDED_LOGIT)

    def losses(self, x: jax.Array, word_table: jax.Array, labels: jax.Array, block: int) -> WordLosses:
        """Return the losses [B, M] of predicting labels [B, M] from x [B, M, H], from the logits of a block at a time.

        Arguments are as above, and `block` is a number of words.
        """
        x = self._transformed(x)
        rows, bias = x.reshape(-1, x.shape[-1]), self.bias[...]
        found = word_losses(rows, word_table, bias, labels.reshape(-1), self.vocab_size, block)
        return WordLosses(*(of_rows.reshape(labels.shape) for of_rows in found))

    def _transformed(self, x: jax.Array) -> jax.Array:
        return self.norm(self.activation(self.dense(x))) if self.transforms else x


class ReplacedTokenHead(nnx.Module):
    """dense → activation → affine map to one logit: the head of ELECTRA's discriminator."""

    def __init__(self, config: ModelConfig, key: jax.Array, activation: Callable[[jax.Array], jax.Array]):
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

    def __init__(self, config: ModelConfig, head: HeadConfig, key: jax.Array):
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

    It reads the first position or the mean over the real ones, or every position in turn.
    """

    def __init__(
        self,
        config: ModelConfig,
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
        self.pooling: HeadPooling = head.pooling

    def __call__(
        self, output: Encoded, mask: jax.Array, texts: PackedTexts | None, dropout_key: jax.Array | None
    ) -> jax.Array:
        """Return the scores, as `TaskHead` does; of what `read` returned, the states are those of the texts."""
        if isinstance(output, ReadStates):
            read = (output.states[:, 0] if texts is None else output.states).astype(jnp.float32)
        else:
            read = output.last_hidden_state.astype(jnp.float32)
            if self.pooled:
                read = pool(read, mask, self.pooling, texts)
        read = dropout(self.norm(self.activation(self.dense(read))), self.rate, dropout_key)
        return affine(read, self.kernel[...], self.bias[...])
