"""BERT (Devlin et al. 2018): encoder, pooler and the two pre-training heads, as pure functions of a dict of arrays."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import ComputeConfig, ModelConfig
from bert_jax.errors import UserError
from bert_jax.models.architecture import Architecture, bert_architecture
from bert_jax.models.bert_module import Bert, WordPart
from bert_jax.models.bert_parameters import (
    ENCODER_PARTS,
    MODEL_PARTS,
    PRETRAINING_PARTS,
    STATE_PROJECTION,
    pretraining_parameters,
)
from bert_jax.models.costs import training_flops
from bert_jax.models.input_masks import input_mask
from bert_jax.models.kernels.contract import AttentionMask
from bert_jax.models.layer_loop import read_positions, reads_alone
from bert_jax.models.packed_texts import PackedTexts
from bert_jax.models.parameters import Axis, ParameterTable, with_axis
from bert_jax.models.permutation import Permutation
from bert_jax.models.protocol import Encoded, EncoderOutput, Params, arrays, encoder_inputs, structure
from bert_jax.models.word_losses import WordLosses


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

    config: ModelConfig
    """Sizes of the model."""
    compute: ComputeConfig = ComputeConfig()
    """How the same mathematics is carried out."""
    parts: tuple[str, ...] = PRETRAINING_PARTS
    """Parts on top of the encoder, in any order; checkpoints from elsewhere may lack some."""
    architecture: Callable[[ModelConfig, ComputeConfig], Architecture] = bert_architecture
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
    def shares_word_table(self) -> bool:
        """Implement `SharesWordTable`; embeddings of another architecture may use the table in ways of their own."""
        return "mlm" in self.parts and self.architecture is bert_architecture and not self.has_word_losses

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
        output = self.encode(params, *encoder_inputs(batch), dropout_key, texts=PackedTexts.of(batch))
        bert = self._module(params)
        return PretrainingOutput(bert.word_logits(output, batch, "mlm"), bert.next_sentence_logits(output))

    def mlm_logits(self, params: Params, batch: dict[str, jax.Array], encoded: Encoded | None = None) -> jax.Array:
        """Return [B, M, V] as in `apply`, without dropout, of a model that may lack the other parts.

        `encoded` is the output of `encode` for the batch, which then needs only masked_positions; None: it is computed.
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
        self, params: Params, batch: dict[str, jax.Array], encoded: Encoded, part: WordPart = "mlm"
    ) -> WordLosses:
        """Return the losses [B, M] of predicting the masked_ids of a batch at its masked_positions, and no logits.

        They are those of `objectives.masked_language_model.loss_sums`, block by block over the vocabulary.
        """
        self.require(part)
        block = self._pieces.word_block or self.config.need_vocab_size()
        return self._module(params).word_losses(encoded, batch, part, block)

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

    def context_scores(self, params: Params, encoded: EncoderOutput, ids: jax.Array) -> jax.Array:
        """Return float32 [B, L, M]: how well the words `ids` [B, M] go beside that of each place of `encoded`."""
        self.require("contexts")
        bert = self._module(params)
        assert bert.contexts is not None, "require(...) comes first"
        return bert.contexts(encoded.last_hidden_state, ids)

    def context_biases(self, params: Params, ids: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return float32 [B, L] twice: GloVe's bias of each of `ids` [B, L] as a word, and as a neighbour."""
        self.require("context_biases")
        bert = self._module(params)
        assert bert.context_biases is not None, "require(...) comes first"
        return bert.context_biases(ids)

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
                f"model.positions={self.config.positions} has no second stream of states, which predicts the tokens of "
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
        own = (*ENCODER_PARTS, *self.parts)  # a fine-tuned model has its head beside them
        own = own if self.teacher_size is None else (*own, STATE_PROJECTION)
        return nnx.merge(_structure(self), {name: tree for name, tree in params.items() if name in own})

    def require(self, *parts: str) -> None:
        """Raise UserError if the model lacks one of these parts."""
        if missing := [part for part in parts if part not in self.parts]:
            present = ", ".join(self.parts) or "nothing"
            raise UserError(
                f"this model has no {' and no '.join(missing)} (besides the encoder: {present}); load a checkpoint "
                "with it, for example one of a pre-training run"
            )


@functools.lru_cache(maxsize=64)
def _structure(model: BertForPreTraining) -> nnx.GraphDef[Bert]:
    """Return the structure of the module of every model that equals `model`; it takes a trace of the initialization."""
    return structure(lambda: model._fresh(jax.random.key(0)))
