"""The network of a loaded model on its devices: what it is, its parameters, and what it gives for batches of ids."""

import os
from typing import Any

import numpy as np
from jax.sharding import Mesh

from bert_jax.config import ComputeConfig, EmbeddingConfig, HeadConfig, ModelConfig
from bert_jax.data.sequences.batching import Batch
from bert_jax.data.sequences.features import Features
from bert_jax.errors import UserError
from bert_jax.formats.stored import StoredModel
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.bert_parameters import MODEL_PARTS
from bert_jax.models.kernels.choice import check_attention
from bert_jax.models.postprocessing import Postprocess
from bert_jax.pretrained.answers import task_scores
from bert_jax.pretrained.edited_parameters import Parameters
from bert_jax.pretrained.runner import Runner
from bert_jax.pretrained.saved_model import save
from bert_jax.pretrained.view import Layers, describe
from bert_jax.tokenization.tokenizer import Tokenizer


class LoadedNetwork:
    """What a `PretrainedModel` holds, which describes the attributes, and its scores for batches of ids."""

    def __init__(
        self, stored: StoredModel, params: dict[str, Any], mesh: Mesh, compute: ComputeConfig = ComputeConfig()
    ):
        check_attention(compute, mesh.devices.flat[0].platform)
        self.config: ModelConfig = stored.model
        self.head: HeadConfig | None = stored.head
        self.tokenizer: Tokenizer | None = stored.tokenizer
        self.embedding: EmbeddingConfig = stored.embedding
        self.postprocesses: dict[str, Postprocess] = dict(stored.postprocesses)
        self.path: str = stored.path
        self.kind: str = stored.kind
        self.history: dict[str, Any] = stored.history
        self.mesh: Mesh = mesh
        parts = tuple(part for part in MODEL_PARTS if part in stored.parts)
        self.network: BertForPreTraining = BertForPreTraining(
            stored.model, compute, parts, teacher_size=stored.teacher_size
        )
        self._parameters = Parameters(params)
        self._runner = Runner(self.network, stored.head, self._parameters, mesh)

    @property
    def params(self) -> dict[str, Any]:
        """The parameters, a nested dict of float32 arrays; docs/checkpoints.md lists the paths. They may be edited and
        assigned; a UserError follows from those that do not fit."""
        return self._parameters.tree

    @params.setter
    def params(self, params: dict[str, Any]) -> None:
        self._parameters.replace(params)

    @property
    def layers(self) -> Layers:
        """The layers: model.layers[3] has the parameters of the fourth block and can be called; len(model.layers)."""
        return Layers(self.config, self.params["encoder"])

    def mlm_logits(self, batch: Batch) -> np.ndarray:
        """Return logits [B, M, V], float32.

        `batch` has int32 input_ids, token_type_ids, attention_mask [B, L] and masked_positions [B, M]. An XLNet does
        not see the tokens at these positions, whatever they are.
        """
        return self._runner.mlm_logits(batch)

    def mlm_losses(self, batch: Batch, head_gates: np.ndarray | None = None) -> np.ndarray:
        """Return the losses of masked words in nats, float32 [B, M].

        Args:
          batch: as for `mlm_logits`, and masked_ids, int32 [B, M], the words to predict.
          head_gates: factors, [N layers, A heads], of what each head adds to the output of its attention: 0 switches a
            head off; None: 1. All gates of one shape run in one compiled program.
        """
        shape = self.config.num_layers, self.config.num_heads
        gates = np.ones(shape) if head_gates is None else np.asarray(head_gates)
        if gates.shape != shape:
            raise UserError(f"head_gates has shape {gates.shape} and must have one entry per layer and head, {shape}")
        return self._runner.mlm_losses(batch, gates.astype(np.float32))

    def next_sentence_logits(self, batch: Batch) -> np.ndarray:
        """Return logits [B, 2], float32; class 0 is IsNext.

        `batch` has int32 input_ids, token_type_ids and attention_mask [B, L].
        """
        return self._runner.next_sentence_logits(batch)

    def task_scores(self, features: Features, *, batch_size: int = 32) -> list[np.ndarray]:
        """Return the scores of the task head for every sequence of a task, float32, as the score of its family reads
        them: classification [C], regression [], choice [K], span [L, 2], tagging [L, C]."""
        if self.head is None:
            raise UserError(f"{self.path} has no task head, which gives the scores; fine-tune it first")
        return task_scores(self.head.kind, self._runner, features, batch_size, progress=False)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model with its current parameters, head and tokenizer to the new directory `path`, or nothing.

        It is a work directory, for `bert_jax.load`, --init_from and the commands; its run.json records where the model
        came from. Held-out metrics are not copied, because they are those of the loaded parameters. NaN is saved, with
        a warning.

        Raises:
          UserError: `path` is not empty or cannot be written, the parameters no longer fit the model, or there are
            several hosts.
        """
        save(self, self._parameters.current(), path)

    def need_tokenizer(self) -> Tokenizer:
        """Return the tokenizer; raise a UserError if the model came without one."""
        if self.tokenizer is None:
            raise UserError(
                f"{self.path} has no vocabulary, so texts cannot become ids; put the vocab.txt (or SentencePiece "
                ".model) there that the model was trained with"
            )
        return self.tokenizer

    def __repr__(self) -> str:
        return describe(self)
