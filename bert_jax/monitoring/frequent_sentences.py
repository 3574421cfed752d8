"""The sentences that a store has most often, found in two passes with bounded memory."""

import collections
import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from bert_jax.data.store.store import Store
from bert_jax.monitoring.token_counts import block_end, text_hashes

_BLOCK = 1 << 17  # starts of sentences at once
_BUCKETS = 1 << 22


@dataclasses.dataclass(frozen=True)
class FrequentSentence:
    """A sentence and how often the store has it."""

    text: str
    count: int
    tokens: int


def frequent_sentences(
    store: Store, most: int = 20, advance_to: Callable[[int], object] = lambda sentences: None
) -> list[FrequentSentence]:
    """Return up to `most` sentences that occur more than once, the most frequent first.

    The first pass counts hashes in 2²² buckets; the second counts the sentences of the fullest buckets. A sentence can
    be missed only where as many other buckets are fuller than its own.

    Args:
      advance_to: is told how many sentences have been read, of twice as many as the store has.
    """
    buckets, done = np.zeros(_BUCKETS, np.int64), 0
    for _, found in _hashed(store):
        buckets += np.bincount((found % np.uint64(_BUCKETS)).astype(np.int64), minlength=_BUCKETS)
        advance_to(done := done + len(found))
    fullest = np.flatnonzero(buckets > 1)
    fullest = fullest[np.argsort(buckets[fullest], kind="stable")[::-1][: 4 * most]]
    counts: collections.Counter[int] = collections.Counter()
    first: dict[int, int] = {}
    for start, found in _hashed(store):
        for place in np.flatnonzero(np.isin(found % np.uint64(_BUCKETS), fullest.astype(np.uint64))).tolist():
            key = int(found[place])
            counts[key] += 1
            first.setdefault(key, start + place)
        advance_to(done := done + len(found))
    tokenizer, shown = store.tokenizer(), []
    for key, count in counts.most_common(most):
        if count > 1:
            begin, end = store.sentence_starts(np.array([first[key], first[key] + 1])).tolist()
            ids = store.tokens(np.arange(begin, end))
            shown.append(FrequentSentence(tokenizer.decode(ids.tolist()), count, len(ids)))
    return shown


def _hashed(store: Store) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the number of the first sentence of each block, and a hash of each of its sentences."""
    for first in range(0, store.num_sentences, _BLOCK):
        starts = store.sentence_starts(np.arange(first, min(first + _BLOCK, store.num_sentences) + 1))
        begin = 0
        while begin < len(starts) - 1:
            end = block_end(starts, begin)
            tokens = store.tokens(np.arange(starts[begin], starts[end]))
            yield first + begin, text_hashes(tokens, starts[begin : end + 1] - starts[begin])
            begin = end
