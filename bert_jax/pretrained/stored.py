"""A model as some directory holds it, before anything is read: the one form that loading, conversion and fine-tuning share.

Every reader (our checkpoints, Hugging Face, Google's TF1 files) describes what it found with our parameter paths, and
every writer starts from the same description.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
from absl import logging

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.errors import UserError
from bert_jax.tokenization import Tokenizer

PADDING_LIMIT = 1_024  # a word table with as many rows beyond its vocabulary is not one that was padded
PARTS = ("pooler", "mlm", "next_sentence", "head", "crf")
"""Top-level names of the parameter tree that a model may lack; `embeddings` and `encoder` are always there."""


@dataclasses.dataclass(frozen=True)
class StoredArray:
    """One parameter, on disk. Nothing is read until `read` is called."""

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[tuple[slice, ...]], np.ndarray]
    """Values of the part that an index names (a slice for each axis), in our layout; (slice(None),) * ndim is everything.
    Nobody changes them afterwards: a device may take their memory over."""


@dataclasses.dataclass(frozen=True)
class StoredModel:
    """What `open_stored` finds in a directory."""

    kind: str
    """bert_jax, huggingface or tf1."""
    path: str
    model: ModelConfig
    arrays: dict[str, StoredArray]
    """By path in our tree, e.g. encoder/attention/query/kernel [N, H, A, D]. Vocabulary rows beyond the tokenizer's are
    cut off; a reader that meets a name it does not know puts it into `ignored`."""
    tokenizer: Tokenizer | None = None
    """None where the directory has no vocabulary; whoever needs one says so to the user."""
    head: HeadConfig | None = None
    """The task head of a fine-tuned model; its arrays are head/kernel, head/bias (and crf/…)."""
    ignored: tuple[str, ...] = ()
    """Names of stored arrays that have no place in our model (optimizer slots, buffers)."""
    history: dict = dataclasses.field(default_factory=dict)
    """For a model card: metrics, data manifest, step, source; whatever was found, JSON types."""

    @property
    def parts(self) -> tuple[str, ...]:
        """Those of PARTS that are there."""
        return tuple(part for part in PARTS if any(path.startswith(part + "/") for path in self.arrays))


def without_padding(model: ModelConfig, tokenizer: Tokenizer | None, path) -> ModelConfig:
    """`model` with the tokenizer's number of words: rows beyond are padding, and a warning says that they are cut off.

    Raises:
      UserError: more words than rows, or so many fewer that `path` has another model's vocabulary.
    """
    if tokenizer is None:
        return model
    beyond = model.vocab_size - tokenizer.vocab_size
    if not 0 <= beyond < PADDING_LIMIT:
        raise UserError(f"{path} has a vocabulary of {tokenizer.vocab_size:,} entries for a word table of {model.vocab_size:,} "
                        "rows; they do not belong together: put the model's own vocabulary there")
    if beyond:
        logging.warning("%s: %d rows of the word table beyond the %d entries of the vocabulary are taken for padding and cut off",
                        path, beyond, tokenizer.vocab_size)
    return dataclasses.replace(model, vocab_size=tokenizer.vocab_size)


def empty(shape: tuple[int, ...], dtype=np.float32) -> np.ndarray:
    """Memory for values that are read, at an address divisible by 64: a CPU device takes such an array over as it is.

    Of any other it makes a copy, and jax 0.10.2 keeps the original until the garbage collector comes by.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start:start + size].view(dtype).reshape(shape)
