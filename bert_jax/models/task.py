"""BERT with a task head in place of the pre-training ones, as pure functions of a dict of arrays."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from bert_jax.config import ComputeConfig, HeadConfig, ModelConfig
from bert_jax.errors import UserError
from bert_jax.models import bilstm, crf
from bert_jax.models.bert import BertForPreTraining, Params
from bert_jax.models.layers import dropout, like, truncated_normal
from bert_jax.models.parameters import POOLED, ParameterTable, bert_parameters


@dataclasses.dataclass(frozen=True)
class BertForTask:
    """The encoder and one head. Parameters: embeddings, encoder, (pooler,) head/kernel [H, C], head/bias [C], (crf/…).

    With head.features, the encoder is not trained and head/ is that of models/bilstm.py.

    Raises UserError if the head has no output: a classifier or tagger without labels.
    """

    config: ModelConfig
    head: HeadConfig
    compute: ComputeConfig = ComputeConfig()

    def __post_init__(self):
        if self.head.outputs < 1:
            raise UserError(f"a {self.head.kind} head needs the names of its labels, and head.labels is empty")
        if self.head.crf and self.head.kind != "tagging":
            raise UserError(f"head.crf=True belongs to tagging, not to {self.head.kind}")
        if self.head.features and self.head.kind != "tagging":
            raise UserError(f"head.features={self.head.features!r} belongs to tagging, not to {self.head.kind}")

    @functools.cached_property
    def encoder(self) -> BertForPreTraining:
        """The model below the head, without pre-training heads."""
        return BertForPreTraining(self.config, self.compute, parts=("pooler",) if self.head.kind in POOLED else ())

    @functools.cached_property
    def parameters(self) -> ParameterTable:
        """Path, named axes and shape of every array that `init` makes."""
        return bert_parameters(self.config, self.encoder.parts, self.head)

    def init(self, key: jax.Array) -> Params:
        """Fresh parameters. A CRF has no preference for any transition yet."""
        encoder_key, head_key = jax.random.split(key)
        size, outputs = self.config.hidden_size, self.head.outputs
        params = self.encoder.init(encoder_key)
        if self.head.features:
            params["head"] = bilstm.init(head_key, self.head, self.config)
        else:
            params["head"] = {
                "kernel": truncated_normal(head_key, (size, outputs), self.config.initializer_range),
                "bias": jnp.zeros(outputs, jnp.float32),
            }
        if self.head.crf:
            params["crf"] = crf.init(outputs)
        return params

    def apply(self, params: Params, batch: dict[str, jax.Array], dropout_key: jax.Array | None = None) -> jax.Array:
        """Scores of the head, float32.

        Args:
            params: from `init`, or of the same structure; heads of pre-training may be beside them.
            batch: input_ids, token_type_ids and attention_mask, int32 [B, L]; [B, K, L] for choice.
            dropout_key: None for no dropout.

        Returns:
            classification [B, C]; regression [B]; choice [B, K]; span [B, L, 2] (start, end); tagging [B, L, C], the scores
            that enter the CRF where there is one.
        """
        shape = batch["input_ids"].shape
        keys = (None, None) if dropout_key is None else jax.random.split(dropout_key)
        ids, types, mask = (
            batch[name].reshape(-1, shape[-1]) for name in ("input_ids", "token_type_ids", "attention_mask")
        )
        if self.head.features:
            hidden_states = self.encoder.encode(params, ids, types, mask, collect=True).hidden_states
            return bilstm.apply(params["head"], hidden_states, mask, self.head, keys[1])
        output = self.encoder.encode(params, ids, types, mask, keys[0])
        read = output.pooled if self.head.kind in POOLED else output.last_hidden_state
        read = dropout(read.astype(jnp.float32), self.head.dropout, keys[1])
        scores = jnp.tensordot(read, params["head"]["kernel"], axes=1)
        scores = scores + like(params["head"]["bias"], scores)
        return scores.reshape(shape[:-1]) if self.head.kind in ("regression", "choice") else scores
