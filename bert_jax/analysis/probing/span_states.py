"""States of spans of text in every layer, computed once into a file that is mapped into memory."""

import hashlib
import json
import os
import pathlib
import uuid
from typing import Any, Literal

import numpy as np

from bert_jax.analysis.saved_results import model_fingerprint
from bert_jax.console.progress_bar import progress_bar
from bert_jax.data.sequences.text_batches import as_features, batches
from bert_jax.errors import UserError
from bert_jax.pretrained.model import PretrainedModel
from bert_jax.tokenization.segments import assembled, text_start

Pieces = Literal["first", "mean", "last"]


def span_states(
    model: PretrainedModel,
    texts: tuple[str, ...],
    spans: np.ndarray,
    directory: pathlib.Path,
    *,
    pieces: Pieces = "mean",
    batch_size: int = 32,
    max_length: int | None = None,
    progress: bool = True,
) -> np.ndarray:
    """Return float32 [N + 1, m, H]: the states of m spans in the embeddings and each of N layers; NaN if they were cut.

    Args:
      model: any model with a tokenizer.
      texts: T texts. "[MASK]" in them is no mask.
      spans: int [m, 3]: number of the text, first character, the one behind the last.
      directory: the array is a file in it, mapped into memory; a call with the same arguments finds it there.
      pieces: which of the pieces that overlap a span represent it.
      batch_size: number of texts that the model reads at once.
      max_length: tokens per text; None: as many as the model has positions.
      progress: whether to show a bar.
    """
    longest = model.config.longest_sequence
    if max_length is not None and not 5 <= max_length <= longest:
        raise UserError(f"max_length={max_length} must be between 5 and the {longest} positions of the model")
    limit = max_length or longest
    content = json.dumps([model_fingerprint(model), texts, spans.tolist(), pieces, limit])
    file = directory / f"states_{hashlib.sha256(content.encode()).hexdigest()[:24]}.npy"
    if not file.exists():
        directory.mkdir(parents=True, exist_ok=True)
        unfinished = directory / f"{uuid.uuid4().hex}.unfinished"  # another process may be computing the same
        try:
            _compute(model, texts, spans, unfinished, pieces, batch_size, limit, progress)
            os.replace(unfinished, file)
        finally:
            unfinished.unlink(missing_ok=True)
    return np.load(file, mmap_mode="r")


def _compute(
    model: PretrainedModel,
    texts: tuple[str, ...],
    spans: np.ndarray,
    file: pathlib.Path,
    pieces: Pieces,
    batch_size: int,
    limit: int,
    progress: bool,
) -> None:
    shape = (model.config.num_layers + 1, len(spans), model.config.hidden_size)
    found = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=shape)
    tokenizer = model.need_tokenizer()
    encoded = [tokenizer.encode_with_offsets(text) for text in texts]
    rows = [assembled(tokenizer, ids[: limit - 2]) for ids, _ in encoded]
    by_text = np.split(
        np.argsort(spans[:, 0], kind="stable"), np.cumsum(np.bincount(spans[:, 0], minlength=len(texts)))
    )
    done = 0
    with progress_bar("states of texts", len(texts), visible=progress) as move_to:
        for numbers, batch in batches(as_features(rows, limit), batch_size):
            inputs = (batch["input_ids"], batch["attention_mask"], batch["token_type_ids"])
            states = np.stack(model.encode_ids(*inputs).hidden_states or (), axis=2)  # [B, L, N + 1, H]
            for row, number in enumerate(numbers):
                places = by_text[number]
                tokens = _tokens(encoded[number][1], spans[places, 1:], text_start(tokenizer), limit, pieces)
                found[:, places] = np.moveaxis(_means(states[row], tokens), 1, 0)
            done += len(numbers)
            move_to(done)
    found.flush()


def _tokens(offsets: list[Any], spans: np.ndarray, first: int, limit: int, pieces: Pieces) -> np.ndarray:
    """Return int [m, 2], the first token and the one behind the last of each span [m, 2]; (0, 0) if one was cut."""
    starts, ends = np.array(offsets, np.int64).reshape(-1, 2).T
    overlap = (starts[None] < spans[:, 1:]) & (ends[None] > spans[:, :1]) & (ends > starts)[None]
    if not overlap.shape[1]:
        return np.zeros((len(spans), 2), np.int64)
    low, high = overlap.argmax(axis=1), overlap.shape[1] - overlap[:, ::-1].argmax(axis=1)
    read = overlap.any(axis=1) & (high <= limit - 2)
    if pieces == "first":
        high = low + 1
    elif pieces == "last":
        low = high - 1
    return np.where(read[:, None], first + np.stack([low, high], axis=1), 0)


def _means(states: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Return float64 [m, N + 1, H]: means of the states [L, N + 1, H] over tokens [m, 2]; NaN over none."""
    sums = np.concatenate([np.zeros((1, *states.shape[1:])), np.cumsum(states, axis=0, dtype=np.float64)])
    low, high = tokens.T
    count = np.where(high > low, high - low, np.nan)
    return (sums[high] - sums[low]) / count[:, None, None]
