"""BERT (Devlin et al. 2018): encoder, pooler and the two pre-training heads, as pure functions of a dict of arrays."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import ComputeConfig, ModelConfig
from bert_jax.errors import UserError
from bert_jax.models.architecture import Architecture, bert_architecture
from bert_jax.models.bert_parameters import MODEL_PARTS, PRETRAINING_PARTS, pretraining_parameters
from bert_jax.models.context_words import ContextWords
from bert_jax.models.costs import training_flops
from bert_jax.models.heads import MaskedLanguageModelHead, ReplacedTokenHead, gather_positions, last_positions
from bert_jax.models.kernels.contract import AttentionMask
from bert_jax.models.layers import Linear
from bert_jax.models.mask_decoder import MaskDecoder
from bert_jax.models.packed_texts import PackedTexts
from bert_jax.models.parameters import Axis, ParameterTable, with_axis
from bert_jax.models.permutation import Permutation
from bert_jax.models.pooling import pool
from bert_jax.models.protocol import EncoderOutput, Params, arrays, structure
from bert_jax.models.span_boundary import SpanBoundaries, SpanBoundaryHead
from bert_jax.models.stack import Stack, run_stack, stacked_blocks, without_last
from bert_jax.models.word_losses import WordLosses
from bert_jax.models.xlnet import WordEmbeddings

WordPart = Literal["mlm", "span_boundary"]
"""Parts that predict the words at masked positions: from the states there, or from those beside the span."""


class PretrainingOutput(NamedTuple):
    """Logits of both pre-training tasks: B sequences, M masked positions, V words."""

    mlm_logits: jax.Array
    """[B, M, V] float32."""
    next_sentence_logits: jax.Array
    """[B, 2] float32, of T packed texts [B, T, 2]; class 0 = IsNext."""


class Bert(nnx.Module):
    """The encoder and the requested MODEL_PARTS; its attribute names are the parameter paths."""

    def __init__(self, config: ModelConfig, architecture: Architecture, parts: tuple[str, ...], key: jax.Array):
        embeddings_key, encoder_key, pooler_key, mlm_key, next_sentence_key = jax.random.split(key, 5)
        hidden, std, bias = (config.hidden_size,), config.initializer_range, config.use_bias
        self.reads_last = config.reads_last_token
        self.two_directions = config.layer == "lstm" and config.direction == "both"
        self.embeddings = architecture.embeddings(embeddings_key)
        self.encoder = stacked_blocks(architecture.stack, encoder_key) if config.num_layers else None
        self.final_norm = None if architecture.final_norm is None else architecture.final_norm()
        self.pooler = Linear(hidden, hidden, std, pooler_key, bias) if "pooler" in parts else None
        self.mlm = MaskedLanguageModelHead(config, mlm_key, architecture.activation) if "mlm" in parts else None
        self.next_sentence = Linear(hidden, (2,), std, next_sentence_key) if "next_sentence" in parts else None
        replaced = functools.partial(ReplacedTokenHead, config, jax.random.fold_in(key, 0), architecture.activation)
        self.replaced_tokens = replaced() if "replaced_tokens" in parts else None
        spans = functools.partial(SpanBoundaryHead, config, jax.random.fold_in(key, 1), architecture.activation)
        self.span_boundary = spans() if "span_boundary" in parts else None
        decoder = functools.partial(MaskDecoder, config, jax.random.fold_in(key, 2))
        self.mask_decoder = decoder() if "mask_decoder" in parts else None
        self.contexts = ContextWords(config) if "contexts" in parts else None
        for _, module in nnx.iter_modules(self):
            if isinstance(module, Linear):
                module.product, module.add_bias = architecture.product, architecture.add_bias

    def encode(
        self,
        architecture: Architecture,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        mask: AttentionMask,
        dropout_key: jax.Array | None,
        collect: bool,
        texts: PackedTexts | None,
        permutation: Permutation | None,
    ) -> EncoderOutput:
        """See `BertForPreTraining.encode`."""
        keys = (None, None) if dropout_key is None else jax.random.split(dropout_key)
        restarts = () if texts is None else (texts.positions(),)
        embedded = self.embeddings(input_ids, token_type_ids, architecture.dtype, keys[0], *restarts)
        if permutation is not None:
            assert isinstance(self.embeddings, WordEmbeddings), "others refuse a permutation"
            target_key = None if keys[0] is None else jax.random.fold_in(keys[0], 1)
            embedded = self.embeddings.with_targets(embedded, permutation.targets.shape[1], target_key)
        seen = mask if architecture.relations is None else architecture.relations(mask, token_type_ids, permutation)
        x, collected, decoded = self._through_layers(architecture.stack, embedded, seen, keys[1], collect, texts)
        x = x if self.final_norm is None else self.final_norm(x)
        pooled = None
        if self.pooler is not None:
            pooled = architecture.pooler(self.pooler(self._read(x, mask, texts)))
        if collected is None:
            return EncoderOutput(x, pooled, decoded=decoded)
        outputs, attentions = zip(*collected, strict=True) if collected else ((), ())
        return EncoderOutput(x, pooled, (embedded, *outputs), attentions, decoded)

    def _through_layers(
        self,
        stack: Stack,
        x: jax.Array,
        mask: Any,
        dropout_key: jax.Array | None,
        collect: bool,
        texts: PackedTexts | None,
    ) -> tuple[jax.Array, list[Any] | None, jax.Array | None]:
        """Return x [B, L, H] after the layers, what they collect, and the output of the decoder if there is one."""
        if self.encoder is None:
            return x, [] if collect else None, None
        if self.mask_decoder is None:
            return *run_stack(stack, self.encoder, x, mask, dropout_key, collect), None
        keys = (None,) * 3 if dropout_key is None else jax.random.split(dropout_key, 3)
        below, lower, last = without_last(stack, self.encoder)
        x, collected = run_stack(below, lower, x, mask, keys[0], collect)
        decoded = self.mask_decoder(stack, last, x, mask, keys[1], texts)
        x, weights = last(x, mask, keys[2], stack.attend, collect, **stack.settings(stack.num_layers - 1))
        return x, None if collected is None else [*collected, (x, weights)], decoded

    def _read(self, x: jax.Array, mask: AttentionMask, texts: PackedTexts | None) -> jax.Array:
        """Return the first or the last token of each text: [B, H], or [B, T, H] of rows of several texts.

        Of recurrent layers in both directions it is the last state of each, which has seen the whole text; without
        layers, the mean of the text.
        """
        if self.encoder is None:
            return pool(x, jnp.asarray(mask.padding).at[:, 0].set(1), "mean")  # a row of padding has one too
        if self.two_directions:
            ends = last_positions(mask.padding), jnp.argmax(mask.padding > 0, axis=1)
            states = [gather_positions(x, end[:, None])[:, 0] for end in ends]
            half = x.shape[-1] // 2
            return jnp.concatenate([states[0][:, :half], states[1][:, half:]], axis=-1)
        if texts is not None:
            return gather_positions(x, texts.ends() if self.reads_last else texts.starts)
        return gather_positions(x, last_positions(mask.padding)[:, None])[:, 0] if self.reads_last else x[:, 0]

    def word_logits(self, output: EncoderOutput, batch: dict[str, jax.Array], part: WordPart) -> jax.Array:
        """Return [B, M, V] float32, the logits of the words at masked_positions [B, M]."""
        head, states = self._word_head(output, batch, part)
        return head(states, self.embeddings.word.table[...])

    def word_losses(self, output: EncoderOutput, batch: dict[str, jax.Array], part: WordPart, block: int) -> WordLosses:
        """Return the losses [B, M] of predicting masked_ids [B, M] at masked_positions [B, M]."""
        head, states = self._word_head(output, batch, part)
        return head.losses(states, self.embeddings.word.table[...], batch["masked_ids"], block)

    def _word_head(
        self, output: EncoderOutput, batch: dict[str, jax.Array], part: WordPart
    ) -> tuple[MaskedLanguageModelHead, jax.Array]:
        """Return the head that predicts words, and what it reads for each prediction: [B, M, H]."""
        if part == "span_boundary":
            assert self.span_boundary is not None, "require(part) comes first"
            return self.span_boundary.words, self.span_boundary(output.last_hidden_state, SpanBoundaries.of(batch))
        assert self.mlm is not None, "require(part) comes first"
        states = output.last_hidden_state if output.decoded is None else output.decoded
        return self.mlm, gather_positions(states, batch["masked_positions"])

    def next_sentence_logits(self, output: EncoderOutput) -> jax.Array:
        """Return [B, 2] or [B, T, 2] float32; class 0 = IsNext."""
        assert self.next_sentence is not None and output.pooled is not None, "require(...) comes first"
        return self.next_sentence(output.pooled.astype(jnp.float32))


@dataclasses.dataclass(frozen=True)
class BertForPreTraining:
    """The model as functions of (params, inputs). It holds no arrays: build it anywhere, close over it in jitted code.

    Raises UserError if config.vocab_size is None: the size belongs to a tokenizer, and no default can replace it.
    """

    config: ModelConfig
    """Sizes of the model."""
    compute: ComputeConfig = ComputeConfig()
    """How the same mathematics is carried out."""
    parts: tuple[str, ...] = PRETRAINING_PARTS
    """Parts on top of the encoder, in any order; checkpoints from elsewhere may lack some."""
    architecture: Callable[[ModelConfig, ComputeConfig], Architecture] = bert_architecture
    """Chooses the pieces of the encoder."""

    def __post_init__(self) -> None:
        if unknown := set(self.parts) - set(MODEL_PARTS):
            raise UserError(
                f"unknown part {min(unknown)!r} of a pre-training model; there are {', '.join(MODEL_PARTS)}"
            )
        if self.config.vocab_size is None:
            raise UserError(
                "model.vocab_size=None, but a model needs the size of its vocabulary; take it from the token store "
                "or the tokenizer, or set model.vocab_size (BERT uncased: 30522)"
            )

    @property
    def dtype(self) -> jnp.dtype:
        """Type of activations and matrix products."""
        return self._pieces.dtype

    @property
    def shares_word_table(self) -> bool:
        """Whether lookup and logits use one table, by the functions of models/word_table.py."""
        return "mlm" in self.parts and self.architecture is bert_architecture and not self.has_word_losses

    @property
    def parameters(self) -> ParameterTable:
        """See `Model.parameters`."""
        encoder, stack = self._pieces.parameters, self._pieces.stack
        if not stack.shared:
            encoder = with_axis(encoder, Axis("layer", stack.num_blocks))
        return {**encoder, **pretraining_parameters(self.config, self.parts)}

    def training_flops(self, sequence_length: int, predictions: int) -> int:
        """As `Model.training_flops`, for `predictions` masked positions."""
        return training_flops(self.config, self.parameters, sequence_length, predictions).total

    def init(self, key: jax.Array) -> Params:
        """See `Model.init`."""
        return arrays(self._fresh(key))

    def apply(
        self, params: Params, batch: dict[str, jax.Array], dropout_key: jax.Array | None = None
    ) -> PretrainingOutput:
        """Return the logits of both pre-training tasks.

        Args:
          params: from `init`.
          batch: input_ids, token_type_ids, attention_mask [B, L] and masked_positions [B, M], all int32; of packed
            rows also text_ids [B, L] and text_starts [B, T].
          dropout_key: None for no dropout.

        Raises:
          UserError: the model was built without one of the three parts.
        """
        self.require("mlm", "pooler", "next_sentence")
        bert = self._module(params)
        output = self._encode(bert, *_inputs(batch), dropout_key, texts=PackedTexts.of(batch))
        return PretrainingOutput(bert.word_logits(output, batch, "mlm"), bert.next_sentence_logits(output))

    def mlm_logits(
        self, params: Params, batch: dict[str, jax.Array], encoded: EncoderOutput | None = None
    ) -> jax.Array:
        """Return [B, M, V] as in `apply`, without dropout, of a model that may lack the other parts.

        `encoded` is the output of `encode` for the batch, which then needs only masked_positions; None: it is computed.
        """
        return self.word_logits(params, batch, "mlm", encoded)

    def word_logits(
        self, params: Params, batch: dict[str, jax.Array], part: WordPart, encoded: EncoderOutput | None = None
    ) -> jax.Array:
        """Return [B, M, V] float32: the logits of the head for masked words, or of that for spans from their boundary.

        The latter needs masked_weights too. `encoded` is as above.
        """
        self.require(part)
        bert = self._module(params)
        return bert.word_logits(encoded or self._of(bert, batch), batch, part)

    def hidden_logits(self, params: Params, batch: dict[str, jax.Array]) -> jax.Array:
        """Return [B, M, V] of an XLNet, without dropout: the words at masked_positions, none of which is seen."""
        permutation = Permutation.hiding(batch["masked_positions"], batch["input_ids"].shape[1])
        encoded = self.encode(params, *_inputs(batch), permutation=permutation)
        return self.mlm_logits(params, {"masked_positions": permutation.states}, encoded)

    @property
    def has_word_losses(self) -> bool:
        """Whether `word_losses` takes less time and memory than `word_logits`."""
        return "mlm" in self.parts and self._pieces.word_block is not None

    def word_losses(
        self, params: Params, batch: dict[str, jax.Array], encoded: EncoderOutput, part: WordPart = "mlm"
    ) -> WordLosses:
        """Return the losses [B, M] of predicting the masked_ids of a batch at its masked_positions, and no logits.

        They are those of `objectives.masked_language_model.loss_sums`, block by block over the vocabulary.
        """
        self.require(part)
        block = self._pieces.word_block or self.config.need_vocab_size()
        return self._module(params).word_losses(encoded, batch, part, block)

    def next_sentence_logits(
        self, params: Params, batch: dict[str, jax.Array], encoded: EncoderOutput | None = None
    ) -> jax.Array:
        """Return [B, 2] or [B, T, 2] as in `apply`, without dropout, of a model that may lack the other head.

        `encoded` is as above.
        """
        self.require("pooler", "next_sentence")
        bert = self._module(params)
        return bert.next_sentence_logits(encoded or self._of(bert, batch))

    def replaced_token_logits(
        self, params: Params, batch: dict[str, jax.Array], encoded: EncoderOutput | None = None
    ) -> jax.Array:
        """Return float32 [B, L] of a discriminator (ELECTRA): positive where a token seems to be replaced.

        `encoded` is as above.
        """
        self.require("replaced_tokens")
        bert = self._module(params)
        assert bert.replaced_tokens is not None, "require(...) comes first"
        return bert.replaced_tokens((encoded or self._of(bert, batch)).last_hidden_state)

    def context_scores(self, params: Params, encoded: EncoderOutput, ids: jax.Array) -> jax.Array:
        """Return float32 [B, L, M]: how well the words `ids` [B, M] go beside that of each place of `encoded`."""
        self.require("contexts")
        bert = self._module(params)
        assert bert.contexts is not None, "require(...) comes first"
        return bert.contexts(encoded.last_hidden_state, ids)

    def encode(
        self,
        params: Params,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        attention_mask: jax.Array | AttentionMask,
        dropout_key: jax.Array | None = None,
        collect: bool = False,
        texts: PackedTexts | None = None,
        permutation: Permutation | None = None,
    ) -> EncoderOutput:
        """As `Model.encode`.

        With `texts`, each attends to itself alone, has positions from 0, and a pooled vector: `pooled` is [B, T, H].
        With a `permutation` of M targets, which is for XLNet, tokens see those that are not later in its order, and all
        states are [B, L + M, H]: those of the tokens, then those that predict the targets.

        Raises:
          UserError: the sequences are longer than the model has positions; or there is a permutation, and the model is
            no XLNet.
        """
        if permutation is not None and self._pieces.relations is None:
            raise UserError(
                f"model.positions={self.config.positions} has no second stream of states, which predicts the tokens of "
                "a permutation; set model.positions=xlnet"
            )
        bert = self._module(params)
        return self._encode(bert, input_ids, token_type_ids, attention_mask, dropout_key, collect, texts, permutation)

    def _of(self, bert: Bert, batch: dict[str, jax.Array]) -> EncoderOutput:
        return self._encode(bert, *_inputs(batch), texts=PackedTexts.of(batch))

    def _encode(
        self,
        bert: Bert,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        attention_mask: jax.Array | AttentionMask,
        dropout_key: jax.Array | None = None,
        collect: bool = False,
        texts: PackedTexts | None = None,
        permutation: Permutation | None = None,
    ) -> EncoderOutput:
        length, longest = input_ids.shape[1], self.config.longest_sequence
        if length > longest:
            raise UserError(
                f"a sequence of {length} tokens is longer than model.max_position_embeddings="
                f"{self.config.max_position_embeddings} allows; cut it to {longest} tokens, or use a model with more "
                "positions"
            )
        mask = attention_mask if isinstance(attention_mask, AttentionMask) else AttentionMask(padding=attention_mask)
        mask = mask if texts is None else dataclasses.replace(mask, segments=texts.ids)
        if self._pieces.attention_bias is not None:
            bias = self._pieces.attention_bias(length)
            mask = dataclasses.replace(mask, bias=bias if mask.bias is None else mask.bias + bias)
        if self.config.global_tokens:
            mask = dataclasses.replace(mask, global_tokens=self.config.global_tokens)
        return bert.encode(self._pieces, input_ids, token_type_ids, mask, dropout_key, collect, texts, permutation)

    @functools.cached_property
    def _pieces(self) -> Architecture:
        return self.architecture(self.config, self.compute)

    def _fresh(self, key: jax.Array) -> Bert:
        return Bert(self.config, self._pieces, self.parts, key)

    @functools.cached_property
    def _structure(self) -> nnx.GraphDef[Bert]:
        return structure(lambda: self._fresh(jax.random.key(0)))

    def _module(self, params: Params) -> Bert:
        own = ("embeddings", "encoder", "final_norm", *self.parts)  # a fine-tuned model has its head beside them
        return nnx.merge(self._structure, {name: tree for name, tree in params.items() if name in own})

    def require(self, *parts: str) -> None:
        """Raise UserError if the model lacks one of these parts."""
        if missing := [part for part in parts if part not in self.parts]:
            present = ", ".join(self.parts) or "nothing"
            raise UserError(
                f"this model has no {' and no '.join(missing)} (beside the encoder: {present}); load a checkpoint "
                "that has it, for example one of a pre-training run"
            )


def _inputs(batch: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
    return batch["input_ids"], batch["token_type_ids"], batch["attention_mask"]
