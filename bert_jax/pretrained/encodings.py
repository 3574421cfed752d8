"""The result of `PretrainedModel.encode`, collected from batches in the order of the texts."""

import dataclasses
import os
from typing import Any

import numpy as np

from bert_jax.config import ModelConfig
from bert_jax.data.sequences.batching import Batch, sequence_lengths
from bert_jax.data.sequences.features import Features
from bert_jax.data.sequences.text_batches import text_places
from bert_jax.errors import UserError
from bert_jax.tokenization.texts import as_arrays


@dataclasses.dataclass(frozen=True)
class Encoding:
    """NumPy arrays, float32, in the order of the texts: n texts, L tokens in the longest, zeros as padding."""

    hidden_states: tuple[np.ndarray, ...]
    """[n, L, H] for each of the requested layers: "all" is the embeddings, then every layer."""
    last_hidden_state: np.ndarray
    """[n, L, H]; for a pre-LN model after the final norm, unlike hidden_states[-1]."""
    pooled: np.ndarray | None
    """[n, H] as `pooling` says; by default the output of the pooler, or None if the model has none."""
    attentions: tuple[np.ndarray, ...] | None
    """[n, A, L (query), L (key)] for each layer, if requested: the probabilities, before dropout."""
    input_ids: np.ndarray
    """int32 [n, L], 0 after a text's own tokens."""
    token_type_ids: np.ndarray
    """int32 [n, L]: 1 for the second text of a pair, otherwise 0."""
    attention_mask: np.ndarray
    """int32 [n, L]: 1 for real tokens, [CLS] and [SEP] included."""
    tokens: list[list[str]]
    """The pieces of each text."""

    def __repr__(self) -> str:
        n, length, size = self.last_hidden_state.shape
        texts = "1 text" if n == 1 else f"{n:,} texts"
        return f"Encoding of {texts}: up to {length} tokens, {len(self.hidden_states)} × hidden states of {size}"


class Collector:
    """Fills the arrays of an Encoding batch by batch."""

    def __init__(self, features: Features, config: ModelConfig, layers: tuple[int, ...] | None, attentions: bool):
        n, length = len(features), int(sequence_lengths(features).max())
        states, maps = (n, length, config.hidden_size), (n, config.num_heads, length, length)
        chosen, attended = len(layers or ()), config.num_layers if attentions else 0
        _check_memory(4 * (np.prod(states, dtype=float) * (1 + chosen) + np.prod(maps, dtype=float) * attended), n)
        self._features, self._layers = features, layers
        self.last: np.ndarray = np.zeros(states, np.float32)
        self.pooled: np.ndarray | None = None
        self.states: tuple[np.ndarray, ...] = tuple(np.zeros(states, np.float32) for _ in range(chosen))
        self.maps: tuple[np.ndarray, ...] = tuple(np.zeros(maps, np.float32) for _ in range(attended))

    def add(self, numbers: np.ndarray, batch: Batch, output: dict[str, Any]) -> None:
        """Add `output` of runner.encode for a batch of the texts `numbers`; rows beyond them are ignored."""
        for number, row, start in zip(numbers, *text_places(batch), strict=True):
            size = len(self._features.input_ids[number])
            for whole, part in zip((self.last, *self.states), (output["last"], *output["layers"]), strict=True):
                whole[number, :size] = part[row, start : start + size]
            for whole, part in zip(self.maps, output["attentions"], strict=True):
                whole[number, :, :size, :size] = part[row, :, :size, :size]
        if output["pooled"] is not None:
            if self.pooled is None:
                self.pooled = np.zeros((len(self._features), output["pooled"].shape[1]), np.float32)
            self.pooled[numbers] = output["pooled"][: len(numbers)]

    def encoding(self, tokens: list[str], attentions: bool) -> Encoding:
        features = self._features
        return Encoding(
            hidden_states=(self.last,) if self._layers is None else self.states,
            last_hidden_state=self.last,
            pooled=self.pooled,
            attentions=self.maps if attentions else None,
            **as_arrays(list(zip(features.input_ids, features.token_type_ids, strict=True))),
            tokens=[[tokens[i] for i in ids] for ids in features.input_ids],
        )


def _check_memory(size: float, texts: int) -> None:
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size > there:
        raise UserError(
            f"the states of {texts:,} texts would take {size / 1e9:,.0f} GB but this machine has "
            f"{there / 1e9:,.0f} GB; encode a part at a time, or use embed, which keeps one vector per text"
        )
