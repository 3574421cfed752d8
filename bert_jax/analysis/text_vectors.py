"""One vector per text in every layer: what the similarity of layers and their isotropy are measured on."""

import contextlib
import typing
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from bert_jax.config.analyses.analysis_options import VectorKind
from bert_jax.console.progress_bar import progress_bar
from bert_jax.data.randomness import Stream, bits, integers
from bert_jax.errors import UserError
from bert_jax.pretrained.model import PretrainedModel

WINDOW = 2_048  # texts that are tokenized, sorted by length and held at once
CONSTANT = 1e-10  # a variance below this share of the mean square is rounding in float32: the vectors are all the same


def layer_vectors(
    model: PretrainedModel,
    texts: list[str],
    kind: VectorKind,
    *,
    first: int = 0,
    seed: int = 0,
    batch_size: int = 32,
    max_length: int | None = None,
    done: Callable[[int], None] = lambda texts: None,
) -> np.ndarray:
    """Return float32 [n, N + 1, H]: the vector of each of n texts in the embeddings and each of N layers.

    Args:
      model: any model with a tokenizer.
      texts: a list, in whose order the rows are.
      kind: see VectorKind.
      first: number of the first of these texts among all, from which, with the seed, its token is drawn.
      seed: see `first`.
      batch_size: number of texts that the model reads at once.
      max_length: tokens per text; None: as many as the model has positions.
      done: called with the number of texts of every batch, for a progress bar.
    """
    found = np.zeros((len(texts), model.config.num_layers + 1, model.config.hidden_size), np.float32)
    for numbers, encoding in model.encode_batches(
        texts, "all", batch_size=batch_size, max_length=max_length, progress=False
    ):
        weights = token_weights(encoding.attention_mask, kind, bits(seed, Stream.ANALYSED_TOKEN, first + numbers))
        for layer, states in enumerate(encoding.hidden_states):
            found[numbers, layer] = np.einsum("nlh,nl->nh", states, weights)
        done(len(numbers))
    return found


def check_vectors(kind: str) -> None:
    if kind not in typing.get_args(VectorKind):
        raise UserError(f"vectors={kind!r} must be one of {', '.join(typing.get_args(VectorKind))}")


@contextlib.contextmanager
def counted_texts(texts: Iterable[str], models: int = 1, visible: bool = True) -> Iterator[Callable[[int], None]]:
    """Show a bar of the texts read so far during the block; yield a function that adds a number of texts.

    `models` is how often every text is read.
    """
    total = len(texts) * models if isinstance(texts, list) else None
    with progress_bar("texts", total, visible=visible) as move_to:
        read = 0

        def add(texts: int) -> None:
            nonlocal read
            read += texts
            move_to(read)

        yield add


def token_weights(attention_mask: np.ndarray, kind: VectorKind, random: np.ndarray) -> np.ndarray:
    """Return float32 [n, L]: the share of each token in the vector of its text; `random` has 64 bits per text."""
    real = attention_mask > 0
    if kind == "mean":
        return (real / real.sum(axis=1, keepdims=True)).astype(np.float32)
    places = np.zeros(len(real), np.int64)
    if kind == "token":
        words = real.sum(axis=1) - 2  # between [CLS] and the last [SEP]; a text without a word has its [CLS] instead
        places = np.where(words > 0, 1 + integers(random, np.maximum(words, 1)), 0)
    return (np.arange(real.shape[1])[None] == places[:, None]).astype(np.float32)
