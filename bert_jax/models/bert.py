"""BERT and its relatives as pure functions of a dict of arrays: encoder, pooler and pre-training heads.

Devlin et al. 2018. `Bert` holds the arrays, whose attribute names are the parameter paths; `BertForPreTraining`
applies them and holds none. `input_mask` says which positions of a batch see each other in every layer.

Two variants wrap a model without changing its parameters: `with_head_gates` multiplies what each attention head adds
by a factor, an input that may be traced, and `with_memory` lets the layers of an XLNet also attend to states of
earlier segments (Dai et al. 2019).
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import ArrayLike

from bert_jax.config import ComputeConfig, EncoderConfig
from bert_jax.config.heads import TextState
from bert_jax.errors import UserError
from bert_jax.models.architecture import Architecture, bert_architecture
from bert_jax.models.bert_parameters import (
    ENCODER_PARTS,
    MODEL_PARTS,
    PRETRAINING_PARTS,
    STATE_PROJECTION,
    Layers,
    layers_of,
    pretraining_parameters,
)
from bert_jax.models.costs import read_positions, reads_alone, training_flops
from bert_jax.models.deberta import MaskDecoder
from bert_jax.models.embeddings import Embeddings, WordLosses
from bert_jax.models.heads import (
    MaskedLanguageModelHead,
    ReplacedTokenHead,
    SpanBoundaries,
    SpanBoundaryHead,
)
from bert_jax.models.kernels.plain import AttentionMask
from bert_jax.models.layers import LayerNorm, Linear, Norm, PackedTexts, gather_positions
from bert_jax.models.pooling import text_positions, text_states
from bert_jax.models.protocol import Encoded, EncoderOutput, Params, ReadStates, arrays, encoder_inputs, structure
from bert_jax.models.stack import Layer, Stack, run_stack, stacked_blocks, without_last
from bert_jax.models.xlnet import Permutation, Relations, WordEmbeddings
from bert_jax.parameters import Axis, ParameterTable, with_axis, with_initial_factors

WordPart = Literal["mlm", "span_boundary"]
"""Parts that predict the words at masked positions: from the states there, or from those next to the span."""


class Bert(nnx.Module):
    """The encoder and the requested MODEL_PARTS; its attribute names are the parameter paths."""

    def __init__(
        self,
        config: EncoderConfig,
        architecture: Architecture,
        parts: tuple[str, ...],
        key: jax.Array,
        teacher_size: int | None,
    ):
        embeddings_key, encoder_key, pooler_key, mlm_key, next_sentence_key = jax.random.split(key, 5)
        hidden, std, bias = (config.hidden_size,), config.initializer_range, config.use_bias
        self.reads: TextState = config.text_state
        self.embeddings: Embeddings | WordEmbeddings = architecture.embeddings(embeddings_key)
        self.encoder: Layer | None = stacked_blocks(architecture.stack, encoder_key) if config.num_layers else None
        self.final_norm: Norm | None = None if architecture.final_norm is None else architecture.final_norm()
        self.pooler: Linear | None = Linear(hidden, hidden, std, pooler_key, bias) if "pooler" in parts else None
        self.mlm: MaskedLanguageModelHead | None = (
            MaskedLanguageModelHead(config, mlm_key, architecture.activation, config.word_head)
            if "mlm" in parts
            else None
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
        stack = self._stack(architecture, input_ids)
        x, collected, decoded = self._through_layers(stack, embedded, seen, keys[1], collect, texts)
        x = x if self.final_norm is None else self.final_norm(x)
        pooled = None
        if self.pooler is not None:
            pooled = architecture.pooler(self.pooler(text_states(x, mask.padding, self.reads, texts)))
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
        first = text_positions(mask.padding, self.reads, texts)
        pooled, number = None, first.shape[1] if self.pooler is not None else 0
        read = jnp.concatenate([first[:, :number], positions], axis=1)
        assert self.encoder is not None, "a model without layers has nothing to leave out"
        x, _ = run_stack(self._stack(architecture, input_ids), self.encoder, x, mask, keys[1], read=read)
        x = x if self.final_norm is None else self.final_norm(x)
        if self.pooler is not None:
            pooled = architecture.pooler(self.pooler(x[:, 0] if texts is None else x[:, :number]))
        return ReadStates(x[:, number:], pooled)

    def _stack(self, architecture: Architecture, input_ids: jax.Array) -> Stack:
        """Return the layers with the vectors of the words [B, L] that they add to their values, if any do."""
        stack, values = architecture.stack, getattr(self.embeddings, "value", None)
        if values is None:
            return stack
        factors, vectors = {"value_factor": values.factors()}, values(input_ids, architecture.dtype)
        return dataclasses.replace(
            stack, layer_inputs={**stack.layer_inputs, **factors}, inputs={**stack.inputs, "word_values": vectors}
        )

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
        collected = [] if collect else None
        if below.num_layers:
            x, collected = run_stack(below, lower, x, mask, keys[0], collect)
        decoded = self.mask_decoder(stack, last, x, mask, keys[1], texts)
        x, weights = last(x, mask, keys[2], stack.attend, collect, **stack.arguments(stack.num_layers - 1))
        return x, None if collected is None else [*collected, (x, weights)], decoded

    def word_logits(self, output: Encoded, batch: dict[str, jax.Array], part: WordPart) -> jax.Array:
        """Return [B, M, V] float32, the logits of the words at masked_positions [B, M], or at all if there are none."""
        head, states = self._word_head(output, batch, part)
        return head(states, self.embeddings.word.table[...])

    def word_losses(
        self, output: Encoded, batch: dict[str, jax.Array], part: WordPart, block: int, log_sums: bool
    ) -> WordLosses:
        """Return the losses [B, M] of predicting masked_ids [B, M] at masked_positions [B, M]."""
        head, states = self._word_head(output, batch, part)
        return head.losses(states, self.embeddings.word.table[...], batch["masked_ids"], block, log_sums)

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
        places = batch.get("masked_positions")
        return self.mlm, states if places is None else gather_positions(states, places)

    def next_sentence_logits(self, output: Encoded) -> jax.Array:
        """Return [B, 2] or [B, T, 2] float32; class 0 = IsNext."""
        assert self.next_sentence is not None and output.pooled is not None, "require(...) comes first"
        return self.next_sentence(output.pooled.astype(jnp.float32))


def input_mask(
    config: EncoderConfig,
    architecture: Architecture,
    length: int,
    attention_mask: jax.Array | AttentionMask,
    texts: PackedTexts | None,
) -> AttentionMask:
    """Return the mask of rows of `length` tokens: what the caller asks for, and what the model adds to it.

    Raises:
      UserError: the sequences are longer than the table of positions.
    """
    if config.position_limit is not None and length > config.position_limit:
        raise UserError(
            f"a sequence of {length} tokens is longer than model.max_position_embeddings="
            f"{config.max_position_embeddings} allows; cut it to {config.longest_sequence} tokens, or use a model with "
            "more positions"
        )
    mask = attention_mask if isinstance(attention_mask, AttentionMask) else AttentionMask(padding=attention_mask)
    mask = mask if texts is None else dataclasses.replace(mask, segments=texts.ids)
    mask = dataclasses.replace(mask, distance_bias=architecture.distance_bias)
    if config.global_tokens:
        mask = dataclasses.replace(mask, global_positions=_global_positions(config.global_tokens, length, texts))
    return mask


def _global_positions(number: int, length: int, texts: PackedTexts | None) -> jax.Array:
    """Return int32 [B or 1, G]: the first positions of each text, and `length` in place of those that it lacks."""
    place = jnp.arange(number, dtype=jnp.int32)[None]
    if texts is None:
        return place
    positions = jnp.where(place[None] < texts.lengths()[:, :, None], texts.starts[:, :, None] + place[None], length)
    return positions.reshape(len(positions), -1)


class PretrainingOutput(NamedTuple):
    """Logits of both pre-training tasks: B sequences, M masked positions, V words."""

    mlm_logits: jax.Array
    """[B, M, V] float32."""
    next_sentence_logits: jax.Array
    """[B, 2] float32, of T packed texts [B, T, 2]; class 0 = IsNext."""


@dataclasses.dataclass(frozen=True)
class BertForPreTraining:
    """The model as functions of (params, inputs). It holds no arrays: build it anywhere, close over it in jitted code.

    Raises UserError if config.vocab_size is None: the size belongs to a tokenizer, and no default can replace it.
    """

    config: EncoderConfig
    """Sizes of the model."""
    compute: ComputeConfig = ComputeConfig()
    """Choices of how the same mathematics is carried out."""
    parts: tuple[str, ...] = PRETRAINING_PARTS
    """Parts on top of the encoder, in any order; checkpoints from elsewhere may lack some."""
    architecture: Callable[[EncoderConfig, ComputeConfig], Architecture] = bert_architecture
    """Chooses the pieces of the encoder."""
    teacher_size: int | None = None
    """Width of the teacher's states that `projected` maps to; None: there is no such map."""

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
    def encoder_layers(self) -> Layers:
        """Implement `HasLayers`."""
        return self._pieces.layers or layers_of(self.config)

    @property
    def shares_word_table(self) -> bool:
        """Implement `SharesWordTable`; embeddings of another architecture may use the table in ways of their own."""
        tied = "mlm" in self.parts and self.config.word_head == "tied"
        return tied and self.architecture is bert_architecture and not self.has_word_losses

    @property
    def fills_masks(self) -> bool:
        """Implement `FillsMasks`."""
        return "mlm" in self.parts

    @property
    def parameters(self) -> ParameterTable:
        """See `Model.parameters`."""
        encoder, stack = self._pieces.parameters, self._pieces.stack
        if not stack.shared:
            encoder = with_axis(encoder, Axis("layer", stack.num_blocks))
        return {**encoder, **pretraining_parameters(self.config, self.parts, self.teacher_size)}

    def training_flops(self, sequence_length: int, predictions: int) -> int:
        """Implement `Model.training_flops`, for `predictions` masked positions and what `read` computes for them."""
        parameters = self.parameters
        read = read_positions(self.config, self.compute, parameters, predictions) if self.reads_alone else None
        return training_flops(self.config, parameters, sequence_length, predictions, read).total

    def init(self, key: jax.Array) -> Params:
        """See `Model.init`."""
        return with_initial_factors(self.parameters, arrays(self._fresh(key)))

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
        output = self.encode(params, *encoder_inputs(batch), dropout_key, texts=PackedTexts.of(batch))
        bert = self._module(params)
        return PretrainingOutput(bert.word_logits(output, batch, "mlm"), bert.next_sentence_logits(output))

    def mlm_logits(self, params: Params, batch: dict[str, jax.Array], encoded: Encoded | None = None) -> jax.Array:
        """Return [B, M, V] as in `apply`, without dropout, of a model that may lack the other parts.

        Of a batch without masked_positions they are those of every position, [B, L, V]. `encoded` is the output of
        `encode` for the batch, which then needs only masked_positions, if any; None: it is computed.
        """
        return self.word_logits(params, batch, "mlm", encoded)

    def word_logits(
        self, params: Params, batch: dict[str, jax.Array], part: WordPart, encoded: Encoded | None = None
    ) -> jax.Array:
        """Return [B, M, V] float32: the logits of the head for masked words, or of that for spans from their boundary.

        The latter needs masked_weights too. `encoded` is as above.
        """
        self.require(part)
        bert = self._module(params)
        return bert.word_logits(encoded or self._of(params, batch), batch, part)

    def hidden_logits(self, params: Params, batch: dict[str, jax.Array]) -> jax.Array:
        """Return [B, M, V] of an XLNet, without dropout: the words at masked_positions, none of which is seen."""
        permutation = Permutation.hiding(batch["masked_positions"], batch["input_ids"].shape[1])
        encoded = self.encode(params, *encoder_inputs(batch), permutation=permutation)
        return self.mlm_logits(params, {"masked_positions": permutation.states}, encoded)

    @property
    def has_word_losses(self) -> bool:
        """Whether `word_losses` takes less time and memory than `word_logits`."""
        return "mlm" in self.parts and self._pieces.word_block is not None

    def word_losses(
        self,
        params: Params,
        batch: dict[str, jax.Array],
        encoded: Encoded,
        part: WordPart = "mlm",
        log_sums: bool = False,
    ) -> WordLosses:
        """Return the losses [B, M] of predicting the masked_ids of a batch at its masked_positions, and no logits.

        They are those of `objectives.masked_words.masked_word_losses`, block by block over the vocabulary, with
        `log_sums` if asked for.
        """
        self.require(part)
        block = self._pieces.word_block or self.config.need_vocab_size()
        return self._module(params).word_losses(encoded, batch, part, block, log_sums)

    def word_strengths(self, params: Params, states: jax.Array, mask: jax.Array) -> jax.Array:
        """Return [B, V] float32, the `strengths` of the head for masked words, of states [B, L, H] and mask [B, L]."""
        self.require("mlm")
        bert = self._module(params)
        assert bert.mlm is not None, "require(...) comes first"
        return bert.mlm.strengths(states, bert.embeddings.word.table[...], mask)

    def next_sentence_logits(
        self, params: Params, batch: dict[str, jax.Array], encoded: Encoded | None = None
    ) -> jax.Array:
        """Return [B, 2] or [B, T, 2] as in `apply`, without dropout, of a model that may lack the other head.

        `encoded` is as above.
        """
        self.require("pooler", "next_sentence")
        bert = self._module(params)
        return bert.next_sentence_logits(encoded or self._of(params, batch))

    def replaced_token_logits(
        self, params: Params, batch: dict[str, jax.Array], encoded: EncoderOutput | None = None
    ) -> jax.Array:
        """Return float32 [B, L] of a discriminator (ELECTRA): positive where a token seems to be replaced.

        `encoded` is as above.
        """
        self.require("replaced_tokens")
        bert = self._module(params)
        assert bert.replaced_tokens is not None, "require(...) comes first"
        return bert.replaced_tokens((encoded or self._of(params, batch)).last_hidden_state)

    def projected(self, params: Params, states: Sequence[jax.Array]) -> list[jax.Array]:
        """Return states [B, L, H] by one linear map as wide as a teacher's; without a `teacher_size`, as they are."""
        if self.teacher_size is None:
            return list(states)
        bert = self._module(params)
        assert bert.state_projection is not None, "a model with a teacher_size has this map"
        return [bert.state_projection(each) for each in states]

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
        """Implement `Model.encode`.

        With `texts`, each attends to itself alone, has positions from 0, and a pooled vector: `pooled` is [B, T, H].
        With a `permutation` of M targets, which is for XLNet, tokens see those that are not later in its order, and all
        states are [B, L + M, H]: those of the tokens, then those that predict the targets.

        Raises:
          UserError: the sequences are longer than the table of positions; or there is a permutation, and the model is
            no XLNet.
        """
        if permutation is not None and self._pieces.relations is None:
            raise UserError(
                f"{self.config.spelled} has no second stream of states, which predicts the tokens of "
                "a permutation; set model.positions=xlnet"
            )
        mask = input_mask(self.config, self._pieces, input_ids.shape[1], attention_mask, texts)
        bert = self._module(params)
        return bert.encode(self._pieces, input_ids, token_type_ids, mask, dropout_key, collect, texts, permutation)

    @property
    def reads_alone(self) -> bool:
        """Whether `read` computes the last layer only where it is read, which other blocks need not be able to."""
        return self.architecture is bert_architecture and reads_alone(self.config, self.compute)

    def read(
        self,
        params: Params,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        attention_mask: jax.Array | AttentionMask,
        positions: jax.Array,
        dropout_key: jax.Array | None = None,
        texts: PackedTexts | None = None,
    ) -> Encoded:
        """Return what heads need that read pooled vectors and the last states at `positions` [B, M], which may be none.

        Other arguments are those of `encode`, and so are the values, with dropout too. If `reads_alone`, the last layer
        is computed at those positions alone.
        """
        if not self.reads_alone:
            return self.encode(params, input_ids, token_type_ids, attention_mask, dropout_key, texts=texts)
        mask = input_mask(self.config, self._pieces, input_ids.shape[1], attention_mask, texts)
        bert = self._module(params)
        return bert.read(self._pieces, input_ids, token_type_ids, mask, positions, dropout_key, texts)

    def _of(self, params: Params, batch: dict[str, jax.Array]) -> EncoderOutput:
        return self.encode(params, *encoder_inputs(batch), texts=PackedTexts.of(batch))

    @functools.cached_property
    def _pieces(self) -> Architecture:
        return self.architecture(self.config, self.compute)

    def _fresh(self, key: jax.Array) -> Bert:
        return Bert(self.config, self._pieces, self.parts, key, self.teacher_size)

    def _module(self, params: Params) -> Bert:
        own = (*ENCODER_PARTS, *self.parts)  # a fine-tuned model has its head, too
        own = own if self.teacher_size is None else (*own, STATE_PROJECTION)
        return nnx.merge(_structure(self), {name: tree for name, tree in params.items() if name in own})

    def require(self, *parts: str) -> None:
        """Raise UserError if the model lacks one of these parts."""
        if missing := [part for part in parts if part not in self.parts]:
            present = ", ".join(self.parts) or "nothing"
            raise UserError(
                f"this model has no {' and no '.join(missing)} (apart from the encoder: {present}); load a checkpoint "
                "with it, of a run whose objective trains it"
            )


@functools.lru_cache(maxsize=64)
def _structure(model: BertForPreTraining) -> nnx.GraphDef[Bert]:
    """Return the structure of the module of every model that equals `model`; it takes a trace of the initialization."""
    return structure(lambda: model._fresh(jax.random.key(0)))


def with_head_gates(network: BertForPreTraining, gates: jax.Array) -> BertForPreTraining:
    """Return the network with what head a of layer n adds multiplied by `gates` [N, A], which may be traced.

    Raises:
      UserError: its layers have no heads.
    """
    if network.encoder_layers.no_attention:
        raise UserError(f"{network.encoder_layers.no_attention} and have no heads to switch off")

    def architecture(config: EncoderConfig, compute: ComputeConfig) -> Architecture:
        usual = network.architecture(config, compute)
        inputs = {**usual.stack.layer_inputs, "head_gates": gates}
        return dataclasses.replace(usual, stack=dataclasses.replace(usual.stack, layer_inputs=inputs))

    return dataclasses.replace(network, architecture=architecture)


def with_memory(network: BertForPreTraining, memory: jax.Array) -> BertForPreTraining:
    """Return an XLNet whose layer n also sees `memory` [N, B, M, H] n, through which no gradient flows.

    As in the published code, all of it is seen, also by what predicts targets, and it is of segment 0. Rows are of one
    text.
    """
    constant = jax.lax.stop_gradient(memory)

    def architecture(config: EncoderConfig, compute: ComputeConfig) -> Architecture:
        usual = network.architecture(config, compute)
        inputs = {**usual.stack.layer_inputs, "memory": constant}
        relations = functools.partial(Relations.of, config.hidden_size, remembered=memory.shape[2])
        return dataclasses.replace(
            usual, stack=dataclasses.replace(usual.stack, layer_inputs=inputs), relations=relations
        )

    return dataclasses.replace(network, architecture=architecture)


def extended_memory(
    memory: Sequence[ArrayLike] | None,
    hidden_states: Sequence[ArrayLike],
    memory_length: int | None = None,
    reuse_length: int | None = None,
) -> tuple[jax.Array, ...]:
    """Return what the next segment remembers: for each of N layers, the states [B, M, H] that entered it.

    Args:
      memory: what this segment remembered; None: nothing.
      hidden_states: those of this segment, N + 1 arrays [B, L, H], the embeddings first.
      memory_length: how many states are kept, the latest ones (`mem_len` of transformers); None: all.
      reuse_length: how many states of this segment are kept, the first ones (`reuse_len`), where the next segment
        begins after them; None: all.

    Raises:
      UserError: a length is not positive.
    """
    for name, length in (("memory_length", memory_length), ("reuse_length", reuse_length)):
        if length is not None and length < 1:
            raise UserError(f"{name}={length} must be positive; leave it out to keep all states")
    entered = [jnp.asarray(state)[:, :reuse_length] for state in hidden_states[:-1]]
    if memory is not None:
        entered = [jnp.concatenate([old, new], axis=1) for old, new in zip(memory, entered, strict=True)]
    return tuple(state if memory_length is None else state[:, -memory_length:] for state in entered)
