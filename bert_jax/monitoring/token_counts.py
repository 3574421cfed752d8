"""One pass over the tokens of a store: how often each id occurs, and a hash of each document."""

import dataclasses
from collections.abc import Callable

import numpy as np

from bert_jax.data.store.store import Store

BLOCK_TOKENS = 1 << 22
"""How many tokens are read at once."""
_ODD = tuple(np.uint64(factor) for factor in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xD6E8FEB86659FD93))


@dataclasses.dataclass(frozen=True)
class TokenCounts:
    ids: np.ndarray
    """int64: how often each id occurs, also ids that the vocabulary does not have."""
    hashes: np.ndarray
    """uint64 [num_documents]: equal for documents of the same tokens, and hardly ever for others."""

    def entropy(self) -> float:
        """Return the entropy of the ids in nats: the loss of predicting them from their frequencies alone."""
        shares = self.ids[self.ids > 0] / self.ids.sum()
        return float(-(shares * np.log(shares)).sum())


def count_tokens(store: Store, advance_to: Callable[[int], object] = lambda tokens: None) -> TokenCounts:
    """Read every token of `store` once; `advance_to` is told how many have been read."""
    ids, hashes, done = np.zeros(store.vocab_size, np.int64), [], 0
    for shard, tokens in enumerate(store.arrays["tokens"]):
        sentences = np.asarray(store.arrays["sentences"][shard]).astype(np.int64)
        starts = np.append(sentences[np.asarray(store.arrays["documents"][shard]).astype(np.int64)], len(tokens))
        first = 0
        while first < len(starts) - 1:
            last = block_end(starts, first)
            sums = np.zeros(last - first, np.uint64)
            for at in range(starts[first], starts[last], BLOCK_TOKENS):  # one document alone may be longer
                block = np.asarray(tokens[at : min(at + BLOCK_TOKENS, starts[last])])
                found = np.bincount(block, minlength=len(ids))
                ids = np.pad(ids, (0, len(found) - len(ids))) + found
                sums += text_hashes(block, np.clip(starts[first : last + 1] - at, 0, len(block)), at - starts[first])
                done += len(block)
                advance_to(done)
            hashes.append(sums)
            first = last
    return TokenCounts(ids, np.concatenate(hashes))


def block_end(starts: np.ndarray, first: int) -> int:
    """Return how far to read from text `first`: as many whole texts as BLOCK_TOKENS hold, and at least one."""
    return max(first + 1, int(np.searchsorted(starts, starts[first] + BLOCK_TOKENS, side="right")) - 1)


def text_hashes(tokens: np.ndarray, starts: np.ndarray, before: int = 0) -> np.ndarray:
    """Return a hash, uint64, of each of the consecutive texts tokens[starts[i]:starts[i + 1]].

    The hash of a text is the sum of those of its parts, where `before` is the number of its tokens before the part.
    """
    places = np.arange(before, before + len(tokens)) - np.repeat(starts[:-1], np.diff(starts))
    mixed = (tokens.astype(np.uint64) + np.uint64(1)) * _ODD[0] + places.astype(np.uint64) * _ODD[1]
    mixed = (mixed ^ mixed >> np.uint64(29)) * _ODD[2]
    return np.add.reduceat(mixed ^ mixed >> np.uint64(32), starts[:-1])
