"""BERT with a task head in place of the pre-training ones, as pure functions of a dict of arrays."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import ComputeConfig, HeadConfig, ModelConfig
from bert_jax.errors import UserError
from bert_jax.models.architecture import Architecture, bert_architecture
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.bert_parameters import POOLED, reads_pooler, task_parameters
from bert_jax.models.bilstm import BiLstmHead
from bert_jax.models.costs import training_flops
from bert_jax.models.crf import ConditionalRandomField
from bert_jax.models.heads import TaskHead, TransformedTaskHead
from bert_jax.models.kernels.contract import AttentionMask
from bert_jax.models.packed_texts import PackedTexts
from bert_jax.models.parameters import ParameterTable
from bert_jax.models.protocol import EncoderOutput, Params, arrays, structure

Head = TaskHead | TransformedTaskHead | BiLstmHead


@dataclasses.dataclass(frozen=True)
class BertForTask:
    """The encoder and one head. Parameters: embeddings, encoder, (pooler,) head/kernel [H, C], head/bias [C], (crf/…).

    With head.features, head/ is that of models/bilstm.py, and the encoder is not trained unless head.train_encoder says
    so.

    Raises UserError if the head has no output: a classifier or tagger without labels.
    """

    config: ModelConfig
    head: HeadConfig
    compute: ComputeConfig = ComputeConfig()
    architecture: Callable[[ModelConfig, ComputeConfig], Architecture] = bert_architecture
    """Chooses the pieces of the encoder."""

    def __post_init__(self) -> None:
        if self.head.outputs < 1:
            raise UserError(f"a {self.head.kind} head needs the names of its labels, and head.labels is empty")
        if self.head.crf and self.head.kind != "tagging":
            raise UserError(f"head.crf=True belongs to tagging, not to {self.head.kind}")
        if self.head.pooling == "mean" and not self.config.task_transform:
            raise UserError("head.pooling=mean belongs to models with task_transform; BERT's head reads its pooler")

    @functools.cached_property
    def encoder(self) -> BertForPreTraining:
        """The model below the head, without pre-training heads."""
        parts = ("pooler",) if reads_pooler(self.config, self.head) else ()
        return BertForPreTraining(self.config, self.compute, parts, self.architecture)

    @property
    def parameters(self) -> ParameterTable:
        """See `Model.parameters`."""
        return {**self.encoder.parameters, **task_parameters(self.config, self.head)}

    def training_flops(self, sequence_length: int, predictions: int) -> int:
        """Implement `Model.training_flops`; a BiLSTM counts without its recurrence, and the encoder as if it were
        trained."""
        read = 1 if self._reads_first and self.encoder.reads_alone else None
        return training_flops(self.config, self.parameters, sequence_length, predictions, read).total

    def init(self, key: jax.Array) -> Params:
        """Return fresh parameters, as `Model.init`. A CRF has no preference for any transition yet."""
        encoder_key, head_key = jax.random.split(key)
        params = self.encoder.init(encoder_key) | {"head": arrays(self._fresh_head(head_key))}
        return params | {"crf": arrays(self._fresh_crf())} if self.head.crf else params

    def encode(
        self,
        params: Params,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        attention_mask: jax.Array | AttentionMask,
        dropout_key: jax.Array | None = None,
        collect: bool = False,
        texts: PackedTexts | None = None,
    ) -> EncoderOutput:
        """See `Model.encode` and, for `texts`, `BertForPreTraining.encode`; the head is not computed."""
        return self.encoder.encode(params, input_ids, token_type_ids, attention_mask, dropout_key, collect, texts)

    def apply(self, params: Params, batch: dict[str, jax.Array], dropout_key: jax.Array | None = None) -> jax.Array:
        """Return the scores of the head, float32.

        Args:
          params: from `init`, or of the same structure; there may also be heads of pre-training.
          batch: input_ids, token_type_ids and attention_mask, int32 [B, L]; [B, K, L] for choice. Rows that several
            sequences share (classification, regression) also have text_ids [B, L] and text_starts [B, T].
          dropout_key: None for no dropout.

        Returns:
          classification [B, C]; regression [B]; choice [B, K]; span [B, L, 2] (start, end); tagging [B, L, C], the
          scores that enter the CRF where there is one. Of shared rows, classification [B, T, C] and regression [B, T].
        """
        shape = batch["input_ids"].shape
        keys = (None, None) if dropout_key is None else jax.random.split(dropout_key)
        ids, types, mask = (
            batch[name].reshape(-1, shape[-1]) for name in ("input_ids", "token_type_ids", "attention_mask")
        )
        texts = PackedTexts.of(batch)
        head = nnx.merge(self._head_structure, params["head"])
        if isinstance(head, BiLstmHead):
            key = keys[0] if self.head.train_encoder else None
            output = self.encode(params, ids, types, mask, key, collect=True, texts=texts)
            return self._of_sequences(head(output.hidden_states or (), mask, texts, keys[1]), shape)
        if self._reads_first:
            first = jnp.zeros((len(ids), 1), jnp.int32) if texts is None else texts.starts
            read = first[:, :0] if reads_pooler(self.config, self.head) else first
            output = self.encoder.read(params, ids, types, mask, read, keys[0], texts)
        else:
            output = self.encode(params, ids, types, mask, keys[0], texts=texts)
        return self._of_sequences(head(output, mask, texts, keys[1]), shape)

    def _of_sequences(self, scores: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        """Return the scores in the form of input_ids of this shape: without a column where there is only one."""
        if self.head.kind == "choice":
            return scores.reshape(shape[:-1])
        return scores[..., 0] if self.head.kind == "regression" else scores

    @property
    def _reads_first(self) -> bool:
        """Whether the head reads one state of each text, that of the pooler or the first."""
        return self.head.kind in POOLED and self.head.pooling == "cls" and not self.head.features

    def crf(self, params: Params) -> ConditionalRandomField:
        """Return the CRF with its parameters, of a model whose head has one."""
        return nnx.merge(self._crf_structure, params["crf"])

    def _fresh_head(self, key: jax.Array) -> Head:
        if self.config.task_transform and not self.head.features:
            activation = self.architecture(self.config, self.compute).activation
            return TransformedTaskHead(self.config, self.head, key, activation)
        return (BiLstmHead if self.head.features else TaskHead)(self.config, self.head, key)

    def _fresh_crf(self) -> ConditionalRandomField:
        return ConditionalRandomField(self.head.outputs)

    @functools.cached_property
    def _head_structure(self) -> nnx.GraphDef[Head]:
        return structure(lambda: self._fresh_head(jax.random.key(0)))

    @functools.cached_property
    def _crf_structure(self) -> nnx.GraphDef[ConditionalRandomField]:
        return structure(self._fresh_crf)
