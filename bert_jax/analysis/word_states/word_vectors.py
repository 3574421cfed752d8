"""The words of encoded texts and their vectors: the mean of their pieces."""

import dataclasses

import numpy as np

from bert_jax.pretrained.encodings import Encoding
from bert_jax.pretrained.model import PretrainedModel


@dataclasses.dataclass(frozen=True)
class WordFinder:
    """Finds the words in the ids of a text: runs of pieces of which all but the first continue the word."""

    continues: np.ndarray
    """bool [vocab_size]: whether a piece continues the word before it."""
    special_ids: np.ndarray
    """Ids of pieces that are no part of a word, such as [SEP]."""

    @classmethod
    def of(cls, model: PretrainedModel) -> "WordFinder":
        tokenizer = model.need_tokenizer()
        return cls(tokenizer.continues_word(), np.array(tokenizer.special_ids))

    def find(self, ids: np.ndarray) -> list[tuple[int, int]]:
        """Return the (first, behind the last) places of each word in the ids [L] of a text, its marks included."""
        text = ~np.isin(ids, self.special_ids)
        after_text = np.concatenate([[False], text[:-1]])
        begins = text & ~(self.continues[ids] & after_text)
        starts = np.flatnonzero(begins)
        behind = np.flatnonzero(text & ~np.append(text[1:] & ~begins[1:], False)) + 1
        return list(zip(starts.tolist(), behind.tolist(), strict=True))


def spelled(ids: np.ndarray, span: tuple[int, int]) -> tuple[int, ...]:
    """Return the ids of the pieces of one word."""
    return tuple(ids[span[0] : span[1]].tolist())


def word_vectors(encoding: Encoding, row: int, spans: list[tuple[int, int]]) -> np.ndarray:
    """Return float64 [words, N + 1, H]: the vectors of the words of one text of an encoding, in all its layers."""
    states = np.stack([layer[row] for layer in encoding.hidden_states], axis=1).astype(np.float64)
    sums = np.concatenate([np.zeros((1, *states.shape[1:])), np.cumsum(states, axis=0)])
    first, behind = np.array(spans).T
    return (sums[behind] - sums[first]) / (behind - first)[:, None, None]
