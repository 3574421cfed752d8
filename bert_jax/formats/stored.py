"""A model in some directory before it is read: the form that loading, conversion and fine-tuning share.

Every reader (our checkpoints, Hugging Face, Google's TF1 files) describes its model with our parameter paths, and every
writer starts from the same description.
"""

import dataclasses
import os
from typing import Any

from absl import logging

from bert_jax.config import EmbeddingConfig, HeadConfig, ModelConfig
from bert_jax.devices.placement import StoredArray
from bert_jax.errors import UserError
from bert_jax.models.bert_parameters import MODEL_PARTS, STATE_PROJECTION, TASK_PARTS, bert_parameters
from bert_jax.models.parameters import ParameterTable
from bert_jax.models.postprocessing import Postprocess
from bert_jax.tokenization.tokenizer import Tokenizer

PADDED_TO = (8, 16, 32, 64, 100, 128)
"""Multiples to which the rows of a word table are rounded up: for accelerators' matrix units, where 128 is Megatron's,
and 100 in DeBERTa v3."""
PARTS = (*MODEL_PARTS, STATE_PROJECTION, *TASK_PARTS)
"""Top-level names of the parameter tree that a model may lack; `embeddings` and `encoder` are always there."""


@dataclasses.dataclass(frozen=True)
class StoredModel:
    """The contents of a directory, as `open_stored` describes them."""

    kind: str
    """bert_jax, huggingface or tf1."""
    path: str
    model: ModelConfig
    arrays: dict[str, StoredArray]
    """Arrays by path in our tree, e.g. encoder/attention/query/kernel [N, H, A, D]. Vocabulary rows beyond the
    tokenizer's are cut off; unknown names are in `ignored`."""
    tokenizer: Tokenizer | None = None
    """None if the directory has no vocabulary; code that needs one raises a UserError."""
    head: HeadConfig | None = None
    """The task head of a fine-tuned model; its arrays are head/kernel, head/bias (and crf/…)."""
    embedding: EmbeddingConfig = EmbeddingConfig()
    """How `embed` pools by default."""
    ignored: tuple[str, ...] = ()
    """Names of stored arrays that have no counterpart in our model (optimizer slots, buffers)."""
    postprocesses: dict[str, Postprocess] = dataclasses.field(default_factory=dict)
    """What `embed` can do to its vectors, by name."""
    beside: dict[str, StoredArray] = dataclasses.field(default_factory=dict)
    """What a run of replaced-token detection has beside `arrays`, those of its discriminator, by the paths in its
    table of parameters: see formats/generator_arrays.py."""
    history: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Information for a model card: metrics, data manifest, step, source; whatever was found, as JSON types."""

    def without(self, *parts: str) -> "StoredModel":
        """Return the model without the arrays of these parts, such as those of a head."""
        arrays = {path: array for path, array in self.arrays.items() if path.split("/")[0] not in parts}
        return dataclasses.replace(self, arrays=arrays)

    def need_tokenizer(self) -> Tokenizer:
        """Return the tokenizer of a model that was checked to have one; ValueError if it has none."""
        if self.tokenizer is None:
            raise ValueError(f"{self.path} has no vocabulary")
        return self.tokenizer

    def need_head(self) -> HeadConfig:
        """Return the head of a model that was checked to have one; ValueError if it has none."""
        if self.head is None:
            raise ValueError(f"{self.path} has no task head")
        return self.head

    @property
    def architecture(self) -> str:
        """Class of `transformers` that the model was saved as, before all conversions; "" if it is unknown."""
        source = self.history.get("source") or (self.history.get("run") or {}).get("source")
        while isinstance(source, dict):
            if isinstance(found := source.get("architecture"), str):
                return found
            source = source.get("source")
        return ""

    @property
    def parts(self) -> tuple[str, ...]:
        """Those of PARTS that the model has."""
        return tuple(part for part in PARTS if any(path.startswith(part + "/") for path in self.arrays))

    @property
    def parameters(self) -> ParameterTable:
        """Path, named axes and shape of every array that a model of this configuration with these parts has."""
        return bert_parameters(self.model, self.parts, self.head, self.teacher_size)

    @property
    def teacher_size(self) -> int | None:
        """Width of the states that a student maps its own to; None if it has no such map."""
        kernel = self.arrays.get(f"{STATE_PROJECTION}/kernel")
        return None if kernel is None else kernel.shape[-1]


def describe_embedding(embedding: EmbeddingConfig) -> str:
    """Return a description of what `embed` does by default."""
    if embedding.unsupported:
        return f"needs pooling=…: sentence-transformers uses what is not supported here ({embedding.unsupported})"
    length = [] if embedding.max_length is None else [f"at most {embedding.max_length} tokens"]
    return ", ".join(
        [
            f"{embedding.pooling} of the last layer",
            *(["normalized"] if embedding.normalize else []),
            *length,
            *(["text in lower case"] if embedding.lowercase else []),
        ]
    )


def check_vocabulary(
    entries: int, rows: int, path: str | os.PathLike[str], padded_to: tuple[int, ...] = PADDED_TO
) -> None:
    """Raise a UserError unless a word table of `rows` has a row per entry, or that number rounded up to a multiple."""
    padding = rows - entries
    if padding and not any(0 < padding < multiple and rows % multiple == 0 for multiple in padded_to):
        problem = f"{path} has a vocabulary of {entries:,} entries for a word table of {rows:,} rows"
        if padding < 0:
            raise UserError(f"{problem}; put the vocabulary there that the model was trained with")
        raise UserError(
            f"{problem}, and {rows:,} is not {entries:,} rounded up to a multiple of "
            f"{', '.join(map(str, padded_to[:-1]))} or {padded_to[-1]}, so the last {padding:,} rows are not "
            "padding: entries are missing. Put the vocabulary there that the model was trained with; if those rows "
            "are indeed unused, append a line for each to its vocab.txt ([unused1], [unused2], …)"
        )


def without_padding(
    model: ModelConfig,
    tokenizer: Tokenizer | None,
    path: str | os.PathLike[str],
    padded_to: tuple[int, ...] = PADDED_TO,
) -> ModelConfig:
    """Return `model` with the tokenizer's vocabulary size; warn that the remaining rows are cut off as padding.

    Raises:
      UserError: see `check_vocabulary`.
    """
    rows = model.need_vocab_size()
    if tokenizer is None or tokenizer.vocab_size == rows:
        return model
    check_vocabulary(tokenizer.vocab_size, rows, path, padded_to)
    logging.warning(
        "%s: %d rows of the word table beyond the %d entries of the vocabulary are taken for padding and cut off",
        path,
        rows - tokenizer.vocab_size,
        tokenizer.vocab_size,
    )
    return dataclasses.replace(model, vocab_size=tokenizer.vocab_size)
