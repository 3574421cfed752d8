"""The arrays of a BERT, of its relatives and of their heads, and how they are applied, for `BertForPreTraining`."""

import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import ModelConfig
from bert_jax.models.architecture import Architecture
from bert_jax.models.chosen_positions import gather_positions, last_positions
from bert_jax.models.context_words import ContextBiases, ContextWords
from bert_jax.models.embeddings import Embeddings
from bert_jax.models.heads import MaskedLanguageModelHead, ReplacedTokenHead
from bert_jax.models.kernels.contract import AttentionMask
from bert_jax.models.layers import Linear
from bert_jax.models.mask_decoder import MaskDecoder
from bert_jax.models.norms import LayerNorm, Norm
from bert_jax.models.packed_texts import PackedTexts
from bert_jax.models.permutation import Permutation
from bert_jax.models.pooling import pool
from bert_jax.models.protocol import Encoded, EncoderOutput, ReadStates
from bert_jax.models.span_boundary import SpanBoundaries, SpanBoundaryHead
from bert_jax.models.stack import Layer, Stack, run_stack, stacked_blocks, without_last
from bert_jax.models.word_losses import WordLosses
from bert_jax.models.xlnet import WordEmbeddings

WordPart = Literal["mlm", "span_boundary"]
"""Parts that predict the words at masked positions: from the states there, or from those beside the span."""


class Bert(nnx.Module):
    """The encoder and the requested MODEL_PARTS; its attribute names are the parameter paths."""

    def __init__(
        self,
        config: ModelConfig,
        architecture: Architecture,
        parts: tuple[str, ...],
        key: jax.Array,
        teacher_size: int | None,
    ):
        embeddings_key, encoder_key, pooler_key, mlm_key, next_sentence_key = jax.random.split(key, 5)
        hidden, std, bias = (config.hidden_size,), config.initializer_range, config.use_bias
        self.reads_last: bool = config.reads_last_token
        self.two_directions: bool = config.two_directions
        self.embeddings: Embeddings | WordEmbeddings = architecture.embeddings(embeddings_key)
        self.encoder: Layer | None = stacked_blocks(architecture.stack, encoder_key) if config.num_layers else None
        self.final_norm: Norm | None = None if architecture.final_norm is None else architecture.final_norm()
        self.pooler: Linear | None = Linear(hidden, hidden, std, pooler_key, bias) if "pooler" in parts else None
        self.mlm: MaskedLanguageModelHead | None = (
            MaskedLanguageModelHead(config, mlm_key, architecture.activation) if "mlm" in parts else None
        )
        self.next_sentence: Linear | None = (
            Linear(hidden, (2,), std, next_sentence_key) if "next_sentence" in parts else None
        )
        replaced = functools.partial(ReplacedTokenHead, config, jax.random.fold_in(key, 0), architecture.activation)
        self.replaced_tokens: ReplacedTokenHead | None = replaced() if "replaced_tokens" in parts else None
        spans = functools.partial(SpanBoundaryHead, config, jax.random.fold_in(key, 1), architecture.activation)
        self.span_boundary: SpanBoundaryHead | None = spans() if "span_boundary" in parts else None
        decoder = functools.partial(MaskDecoder, config, jax.random.fold_in(key, 2))
        self.mask_decoder: MaskDecoder | None = decoder() if "mask_decoder" in parts else None
        self.contexts: ContextWords | None = ContextWords(config) if "contexts" in parts else None
        self.context_biases: ContextBiases | None = ContextBiases(config) if "context_biases" in parts else None
        to_teacher = functools.partial(Linear, hidden, stddev=std, key=jax.random.fold_in(key, 3), bias=False)
        self.state_projection: Linear | None = None if teacher_size is None else to_teacher((teacher_size,))
        for _, module in nnx.iter_modules(self):
            if isinstance(module, Linear):
                module.product, module.add_bias = architecture.product, architecture.add_bias
            elif isinstance(module, LayerNorm):
                module.form = architecture.layer_norm

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

    def read(
        self,
        architecture: Architecture,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        mask: AttentionMask,
        positions: jax.Array,
        dropout_key: jax.Array | None,
        texts: PackedTexts | None,
    ) -> ReadStates:
        """See `BertForPreTraining.read`."""
        keys = (None, None) if dropout_key is None else jax.random.split(dropout_key)
        restarts = () if texts is None else (texts.positions(),)
        x = self.embeddings(input_ids, token_type_ids, architecture.dtype, keys[0], *restarts)
        first = self._pooled_positions(mask, texts)
        pooled, number = None, first.shape[1] if self.pooler is not None else 0
        read = jnp.concatenate([first[:, :number], positions], axis=1)
        assert self.encoder is not None, "a model without layers has nothing to leave out"
        x, _ = run_stack(architecture.stack, self.encoder, x, mask, keys[1], read=read)
        x = x if self.final_norm is None else self.final_norm(x)
        if self.pooler is not None:
            pooled = architecture.pooler(self.pooler(x[:, 0] if texts is None else x[:, :number]))
        return ReadStates(x[:, number:], pooled)

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
        x, weights = last(x, mask, keys[2], stack.attend, collect, **stack.arguments(stack.num_layers - 1))
        return x, None if collected is None else [*collected, (x, weights)], decoded

    def _read(self, x: jax.Array, mask: AttentionMask, texts: PackedTexts | None) -> jax.Array:
        """Return the first or the last token of each text: [B, H], or [B, T, H] of rows of several texts.

        Of recurrent layers in both directions it is the last state of each, which has seen the whole text; without
        layers, the mean of the text.
        """
        if self.encoder is None:
            return pool(x, mask.padding, "mean", texts)
        if self.two_directions:
            if texts is None:
                ends = last_positions(mask.padding)[:, None], jnp.argmax(mask.padding > 0, axis=1)[:, None]
            else:
                ends = texts.ends(), texts.starts
            half, (last, first) = x.shape[-1] // 2, (gather_positions(x, end) for end in ends)
            states = jnp.concatenate([last[..., :half], first[..., half:]], axis=-1)
            return states[:, 0] if texts is None else states
        if texts is None and not self.reads_last:
            return x[:, 0]
        states = gather_positions(x, self._pooled_positions(mask, texts))
        return states[:, 0] if texts is None else states

    def _pooled_positions(self, mask: AttentionMask, texts: PackedTexts | None) -> jax.Array:
        """Return int32 [B, T]: the positions of the token that `_read` returns; T is 1 where rows are single texts."""
        if texts is not None:
            return texts.ends() if self.reads_last else texts.starts
        last = last_positions(mask.padding)[:, None]
        return last if self.reads_last else jnp.zeros_like(last)

    def word_logits(self, output: Encoded, batch: dict[str, jax.Array], part: WordPart) -> jax.Array:
        """Return [B, M, V] float32, the logits of the words at masked_positions [B, M]."""
        head, states = self._word_head(output, batch, part)
        return head(states, self.embeddings.word.table[...])

    def word_losses(self, output: Encoded, batch: dict[str, jax.Array], part: WordPart, block: int) -> WordLosses:
        """Return the losses [B, M] of predicting masked_ids [B, M] at masked_positions [B, M]."""
        head, states = self._word_head(output, batch, part)
        return head.losses(states, self.embeddings.word.table[...], batch["masked_ids"], block)

    def _word_head(
        self, output: Encoded, batch: dict[str, jax.Array], part: WordPart
    ) -> tuple[MaskedLanguageModelHead, jax.Array]:
        """Return the head that predicts words, and what it reads for each prediction: [B, M, H]."""
        if isinstance(output, ReadStates):
            assert part == "mlm" and self.mlm is not None, "the only part that reads masked positions and no others"
            return self.mlm, output.states
        if part == "span_boundary":
            assert self.span_boundary is not None, "require(part) comes first"
            return self.span_boundary.words, self.span_boundary(output.last_hidden_state, SpanBoundaries.of(batch))
        assert self.mlm is not None, "require(part) comes first"
        states = output.last_hidden_state if output.decoded is None else output.decoded
        return self.mlm, gather_positions(states, batch["masked_positions"])

    def next_sentence_logits(self, output: Encoded) -> jax.Array:
        """Return [B, 2] or [B, T, 2] float32; class 0 = IsNext."""
        assert self.next_sentence is not None and output.pooled is not None, "require(...) comes first"
        return self.next_sentence(output.pooled.astype(jnp.float32))
