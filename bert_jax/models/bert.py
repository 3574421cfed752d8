"""BERT (Devlin et al. 2018): encoder, pooler and the two pre-training heads, as pure functions of a dict of arrays."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import ComputeConfig, ModelConfig
from bert_jax.errors import UserError
from bert_jax.models import blocks
from bert_jax.models.heads import MaskedLanguageModelHead, gather_positions
from bert_jax.models.layers import LayerNorm, Linear, dropout, like, truncated_normal
from bert_jax.models.parameters import PRETRAINING_PARTS, ParameterTable, bert_parameters

Params = dict[str, Any]  # nested dict of float32 arrays; encoder/… leaves have a leading axis of num_layers
TRUNCATED_STD = 0.87962566  # standard deviation of a unit normal cut at ±2


class EncoderOutput(NamedTuple):
    """What `BertForPreTraining.encode` returns; the last two are None unless asked for, and pooled where there is no pooler."""

    last_hidden_state: jax.Array
    """[B, L, H]."""
    pooled: jax.Array | None
    """[B, H]: tanh of an affine map of the first position."""
    hidden_states: tuple[jax.Array, ...] | None = None
    """(N + 1) × [B, L, H]: the embeddings, then every block (pre-LN: before the final norm)."""
    attentions: tuple[jax.Array, ...] | None = None
    """N × [B, A, L, L] float32: the attention probabilities, before dropout."""


class PretrainingOutput(NamedTuple):
    mlm_logits: jax.Array
    """[B, M, V] float32."""
    next_sentence_logits: jax.Array
    """[B, 2] float32; class 0 = IsNext."""


def sinusoids(length: int, size: int) -> jax.Array:
    """Position table of Vaswani et al. 2017, section 3.5: sines at even features, cosines at odd ones; [length, size]."""
    feature = jnp.arange(size, dtype=jnp.float32)[None, :]
    angle = jnp.arange(length, dtype=jnp.float32)[:, None] * 10_000.0 ** (-2 * (feature // 2) / size)
    return jnp.where(feature % 2 == 0, jnp.sin(angle), jnp.cos(angle))


class Embedding(nnx.Module):
    def __init__(self, table: jax.Array):
        self.table = nnx.Param(table)


class Embeddings(nnx.Module):
    """word + position + token type → LayerNorm → dropout."""

    def __init__(self, config: ModelConfig, key: jax.Array):
        word_key, position_key, token_type_key = jax.random.split(key, 3)
        std, hidden, positions = config.initializer_range, config.hidden_size, config.max_position_embeddings
        self.rate = config.hidden_dropout
        self.word = Embedding(truncated_normal(word_key, (config.padded_vocab_size, hidden), std))
        if config.position_init == "sinusoidal":
            # Scaled to the root mean square of the random tables (that of sinusoids is √½), or words would drown in positions.
            self.position = Embedding(std * TRUNCATED_STD * math.sqrt(2) * sinusoids(positions, hidden))
        else:
            self.position = Embedding(truncated_normal(position_key, (positions, hidden), std))
        self.token_type = Embedding(truncated_normal(token_type_key, (config.type_vocab_size, hidden), std))
        self.norm = LayerNorm(hidden, config.layer_norm_epsilon)

    def __call__(
        self, input_ids: jax.Array, token_type_ids: jax.Array, dtype, dropout_key: jax.Array | None
    ) -> jax.Array:
        """ids [B, L] to [B, L, H] of `dtype`; sum and norm in float32. An id beyond the table gives NaN, not another word."""
        words = jnp.take(self.word.table[...], input_ids, axis=0)
        # A product, because the gradient of a lookup would scatter every token of the batch into two rows.
        token_types = jnp.einsum(
            "blt,th->blh",
            jax.nn.one_hot(token_type_ids, self.token_type.table.shape[0]),
            self.token_type.table[...],
            precision=jax.lax.Precision.HIGHEST,
        )
        positions = like(self.position.table[: input_ids.shape[1]], words)
        return dropout(self.norm(words + positions + token_types).astype(dtype), self.rate, dropout_key)


class Bert(nnx.Module):
    """The encoder and those of PRETRAINING_PARTS that are asked for; its attribute names are the parameter paths."""

    def __init__(self, config: ModelConfig, key: jax.Array, parts: tuple[str, ...] = PRETRAINING_PARTS):
        embeddings_key, encoder_key, pooler_key, mlm_key, next_sentence_key = jax.random.split(key, 5)
        hidden = (config.hidden_size,)
        self.embeddings = Embeddings(config, embeddings_key)
        self.encoder = blocks.stacked_blocks(config, encoder_key)
        if config.norm_position == "pre":
            self.final_norm = LayerNorm(config.hidden_size, config.layer_norm_epsilon)
        if "pooler" in parts:
            self.pooler = Linear(hidden, hidden, config.initializer_range, pooler_key)
        if "mlm" in parts:
            self.mlm = MaskedLanguageModelHead(config, mlm_key)
        if "next_sentence" in parts:
            self.next_sentence = Linear(hidden, (2,), config.initializer_range, next_sentence_key)

    def encode(
        self, input_ids, token_type_ids, attention_mask, dropout_key, compute: ComputeConfig, dtype, collect: bool
    ):
        keys = (None, None) if dropout_key is None else jax.random.split(dropout_key)
        embedded = self.embeddings(input_ids, token_type_ids, dtype, keys[0])
        x, collected = blocks.run_stack(self.encoder, embedded, attention_mask, keys[1], compute, collect)
        x = self.final_norm(x) if hasattr(self, "final_norm") else x
        pooled = jnp.tanh(self.pooler(x[:, 0])) if hasattr(self, "pooler") else None
        if not collect:
            return EncoderOutput(x, pooled)
        outputs, attentions = zip(*collected)
        return EncoderOutput(x, pooled, (embedded, *outputs), attentions)


@dataclasses.dataclass(frozen=True)
class BertForPreTraining:
    """The model as functions of (params, inputs). Holds no arrays; build it anywhere, close over it in a jitted function.

    Raises UserError if config.vocab_size is None: the size belongs to a tokenizer, and no default can stand in for it.
    """

    config: ModelConfig
    compute: ComputeConfig = ComputeConfig()
    parts: tuple[str, ...] = PRETRAINING_PARTS
    """What stands on the encoder, in any order; checkpoints from elsewhere may lack some."""

    def __post_init__(self):
        if unknown := set(self.parts) - set(PRETRAINING_PARTS):
            raise UserError(
                f"unknown part {min(unknown)!r} of a pre-training model; there are {', '.join(PRETRAINING_PARTS)}"
            )
        if self.config.vocab_size is None:
            raise UserError(
                "model.vocab_size=None, but a model needs the size of its vocabulary; take it from the token store "
                "or the tokenizer, or set model.vocab_size (BERT uncased: 30522)"
            )

    @property
    def dtype(self):
        """Of activations and matrix products."""
        name = self.compute.dtype
        if name == "auto":
            name = "float32" if jax.default_backend() == "cpu" else "bfloat16"
        return jnp.dtype(name)

    @functools.cached_property
    def parameters(self) -> ParameterTable:
        """Path, named axes and shape of every array that `init` makes."""
        return bert_parameters(self.config, self.parts)

    def init(self, key: jax.Array) -> Params:
        """Fresh parameters. Works under jit with any out_shardings and under eval_shape; the values do not depend on either."""
        return nnx.to_pure_dict(nnx.state(Bert(self.config, key, self.parts), nnx.Param))

    def apply(
        self, params: Params, batch: dict[str, jax.Array], dropout_key: jax.Array | None = None
    ) -> PretrainingOutput:
        """Logits of both pre-training tasks.

        Args:
            params: from `init`.
            batch: input_ids, token_type_ids, attention_mask [B, L] and masked_positions [B, M], all int32.
            dropout_key: None for no dropout.

        Raises:
            UserError: the model was built without one of the three parts.
        """
        self.require("mlm", "pooler", "next_sentence")
        bert = self._module(params)
        output = self._encode(bert, *_inputs(batch), dropout_key, False)
        return PretrainingOutput(_mlm_logits(bert, output, batch), _next_sentence_logits(bert, output))

    def mlm_logits(
        self, params: Params, batch: dict[str, jax.Array], encoded: EncoderOutput | None = None
    ) -> jax.Array:
        """[B, M, V] as in `apply`, without dropout, of a model that may lack the other parts.

        `encoded` is what `encode` gave for the batch, of which masked_positions are then enough; None: it is computed.
        """
        self.require("mlm")
        bert = self._module(params)
        return _mlm_logits(bert, encoded or self._encode(bert, *_inputs(batch), None, False), batch)

    def next_sentence_logits(
        self, params: Params, batch: dict[str, jax.Array], encoded: EncoderOutput | None = None
    ) -> jax.Array:
        """[B, 2] as in `apply`, without dropout, of a model that may lack the other head; `encoded` as above."""
        self.require("pooler", "next_sentence")
        bert = self._module(params)
        return _next_sentence_logits(bert, encoded or self._encode(bert, *_inputs(batch), None, False))

    def encode(
        self,
        params: Params,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        attention_mask: jax.Array,
        dropout_key: jax.Array | None = None,
        collect: bool = False,
    ) -> EncoderOutput:
        """Contextual embeddings of ids [B, L]; attention_mask [B, L] is 1 for real tokens. See EncoderOutput for `collect`."""
        return self._encode(self._module(params), input_ids, token_type_ids, attention_mask, dropout_key, collect)

    def _encode(
        self, bert: Bert, input_ids, token_type_ids, attention_mask, dropout_key, collect: bool
    ) -> EncoderOutput:
        length, longest = input_ids.shape[1], self.config.max_position_embeddings
        if length > longest:
            raise UserError(
                f"a sequence of {length} tokens is longer than model.max_position_embeddings={longest}; cut it to "
                f"{longest} tokens, or use a model with more positions"
            )
        return bert.encode(input_ids, token_type_ids, attention_mask, dropout_key, self.compute, self.dtype, collect)

    @functools.cached_property
    def _structure(self) -> nnx.GraphDef:
        return nnx.graphdef(jax.eval_shape(lambda: Bert(self.config, jax.random.key(0), self.parts)))

    def _module(self, params: Params) -> Bert:
        own = ("embeddings", "encoder", "final_norm", *self.parts)  # a fine-tuned model has its head beside them
        return nnx.merge(self._structure, {name: tree for name, tree in params.items() if name in own})

    def require(self, *parts: str) -> None:
        """Raises UserError if the model lacks one of these parts."""
        if missing := [part for part in parts if part not in self.parts]:
            present = ", ".join(self.parts) or "nothing"
            raise UserError(
                f"this model has no {' and no '.join(missing)} (beside the encoder: {present}); load a checkpoint "
                "that has it, for example one of a pre-training run"
            )


def _inputs(batch: dict[str, jax.Array]) -> tuple[jax.Array, ...]:
    return batch["input_ids"], batch["token_type_ids"], batch["attention_mask"]


def _mlm_logits(bert: Bert, output: EncoderOutput, batch: dict[str, jax.Array]) -> jax.Array:
    masked = gather_positions(output.last_hidden_state, batch["masked_positions"])
    return bert.mlm(masked, bert.embeddings.word.table[...])


def _next_sentence_logits(bert: Bert, output: EncoderOutput) -> jax.Array:
    return bert.next_sentence(output.pooled.astype(jnp.float32))
