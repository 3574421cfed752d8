"""The documents of one split of a token store, and the search for sentences inside them."""

import functools

import numpy as np

from bert_jax.data.held_out import held_out_documents
from bert_jax.data.store.store import Store
from bert_jax.errors import UserError


class Documents:
    """The documents of `split` ("train", "held_out" or "all") of a store, numbered from 0, without empty ones.

    Arrays of int64 [D]: numbers (in the store), token_starts (global token offset), num_tokens, first_sentences and
    end_sentences (global sentence indices). The store has no empty sentences and a document begins with a sentence.
    """

    def __init__(self, store: Store, split: str, held_out: float):
        numbers = _numbers(store.num_documents, split, held_out)
        numbers = numbers[store.document_tokens[numbers + 1] > store.document_tokens[numbers]]
        if not numbers.size:
            raise UserError(
                f"the token store has no text in its {split.replace('_', '-')} documents ({store.num_documents} "
                f"documents in all, data.held_out={held_out}); prepare a corpus with more text"
            )
        self.store = store
        self.numbers: np.ndarray = numbers
        self.token_starts: np.ndarray = store.document_tokens[numbers]
        self.num_tokens: np.ndarray = store.document_tokens[numbers + 1] - self.token_starts
        self.first_sentences: np.ndarray = store.document_sentences[numbers]
        self.end_sentences: np.ndarray = store.document_sentences[numbers + 1]

    def __len__(self) -> int:
        return len(self.numbers)

    @functools.cached_property
    def collision(self) -> float:
        """Probability that two random tokens of the split are in the same document."""
        return float(((self.num_tokens / self.num_tokens.sum()) ** 2).sum())

    def first_sentence_from(self, offsets: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Return the first sentence in [low, high) that starts at or after token `offsets`, else `high` (global)."""
        low, high = low.copy(), high.copy()
        for _ in range(int((high - low).max(initial=0)).bit_length()):
            middle = (low + high) >> 1
            before = (self.store.sentence_starts(middle) < offsets) & (low < high)
            high = np.where(before, high, middle)
            low = np.where(before, middle + 1, low)
        return low


def _numbers(num_documents: int, split: str, held_out: float) -> np.ndarray:
    if split == "all":
        return np.arange(num_documents)
    chosen = held_out_documents(num_documents, held_out)
    if chosen.all():
        raise UserError(
            f"data.held_out={held_out} keeps {num_documents} of the store's {num_documents} documents out of "
            "training, which leaves none to train on; give more documents, a smaller data.held_out, "
            "or data.held_out=0"
        )
    if split == "held_out" and not chosen.any():
        raise UserError("data.held_out=0 keeps no documents for evaluation; set data.held_out or give data.eval_path")
    return np.flatnonzero(chosen if split == "held_out" else ~chosen)
