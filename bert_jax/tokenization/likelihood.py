"""WordPiece vocabularies by likelihood: merge the adjacent pieces a b with maximum count(ab) / (count(a) · count(b)).

This is the score commonly attributed to the original WordPiece (Schuster and Nakajima 2012; Google never published its
trainer): it selects the merge that, per use, raises the likelihood of the corpus under a unigram model most. The bare
ratio prefers pairs that hardly ever occur, hence the minimum pair count.
"""

import collections
import itertools
from collections.abc import Callable, Mapping

import numpy as np

Pair = tuple[int, int]


def learn_pieces(
    words: Mapping[str, int],
    alphabet: list[str],
    room: int,
    min_pair_count: int,
    advance: Callable[[], None] = lambda: None,
) -> list[str]:
    """Return up to `room` merged pieces in the order of merging; fewer once no pair occurs `min_pair_count` times.

    `words` are counted words; `alphabet` holds each of their characters, with ## unless it begins the word. Equal
    scores go to the more frequent pair, then to the alphabetically first. `advance` is called for each new piece.
    """
    texts = list(alphabet)
    ids = {text: i for i, text in enumerate(texts)}
    segmentation = _Segmentation(words, ids)
    symbol_counts = np.zeros(len(alphabet) + room, np.int64)
    for word, count in zip(segmentation.words, segmentation.counts, strict=True):
        for symbol in word:
            symbol_counts[symbol] += count
    pairs = _FrequentPairs(segmentation.pair_counts, min_pair_count)
    while len(texts) < len(alphabet) + room:
        best = pairs.best(symbol_counts, texts)
        if best is None:
            break
        left, right = best
        text = texts[left] + texts[right].removeprefix("##")
        merged = ids.setdefault(text, len(texts))  # the same text may already exist as a different merge
        if merged == len(texts):
            texts.append(text)
            advance()
        times, changed = segmentation.merge(best, merged)
        np.add.at(symbol_counts, [left, right, merged], [-times, -times, times])
        for pair in changed:
            pairs.set(pair, segmentation.pair_counts[pair])
    return texts[len(alphabet) :]


class _Segmentation:
    """Every word as a list of symbols, with the counts of neighbouring symbols kept up to date as they merge."""

    def __init__(self, words: Mapping[str, int], ids: Mapping[str, int]):
        self.words = [[ids[c if i == 0 else "##" + c] for i, c in enumerate(word)] for word in words]
        self.counts = list(words.values())
        self.pair_counts: dict[Pair, int] = collections.defaultdict(int)
        self._where: dict[Pair, list[int]] = collections.defaultdict(list)  # words that have, or once had, the pair
        for index, (word, count) in enumerate(zip(self.words, self.counts, strict=True)):
            for pair in itertools.pairwise(word):
                self.pair_counts[pair] += count
                self._where[pair].append(index)

    def merge(self, pair: Pair, merged: int) -> tuple[int, set[Pair]]:
        """Replace `pair` by the symbol `merged`; return the number of times and the pairs whose count has changed."""
        left, right = pair
        times, changes = 0, collections.defaultdict(int)
        for index in self._where.pop(pair):
            word, count = self.words[index], self.counts[index]
            at = 0
            while at < len(word) - 1:
                if word[at] == left and word[at + 1] == right:
                    times += count
                    changes[pair] -= count
                    if at > 0:
                        changes[word[at - 1], left] -= count
                        self._gain((word[at - 1], merged), index, count, changes)
                    if at + 2 < len(word):
                        changes[right, word[at + 2]] -= count
                        self._gain((merged, word[at + 2]), index, count, changes)
                    word[at : at + 2] = [merged]
                at += 1
        for changed, change in changes.items():
            self.pair_counts[changed] += change
        return times, set(changes)

    def _gain(self, pair: Pair, index: int, count: int, changes: dict[Pair, int]) -> None:
        changes[pair] += count
        where = self._where[pair]
        if not where or where[-1] != index:
            where.append(index)


class _FrequentPairs:
    """The pairs that may be merged, in arrays, so that each merge can consider all their scores.

    A heap would be no better: a merge raises the score of every pair that contains one of its two symbols.
    """

    def __init__(self, pair_counts: Mapping[Pair, int], min_count: int):
        self._min_count = min_count
        self._rows: dict[Pair, int] = {}
        self._free: list[int] = []
        self._symbols, self._counts = np.zeros((2, 0), np.int64), np.zeros(0, np.int64)
        for pair, count in pair_counts.items():
            self.set(pair, count)

    def set(self, pair: Pair, count: int) -> None:
        row = self._rows.get(pair)
        if count < self._min_count:
            if row is not None:
                self._counts[self._rows.pop(pair)] = 0
                self._free.append(row)
            return
        if row is None:
            if not self._free:
                self._grow()
            row = self._rows[pair] = self._free.pop()
            self._symbols[:, row] = pair
        self._counts[row] = count

    def best(self, symbol_counts: np.ndarray, texts: list[str]) -> Pair | None:
        """Return the pair to merge next, or None if no pair is frequent enough."""
        if not self._rows:
            return None
        left, right = self._symbols
        # Unused rows have count 0, and their symbols may have vanished: the maximum keeps their score a plain 0.
        scores = self._counts / np.maximum(symbol_counts[left] * symbol_counts[right], 1)
        ties = np.flatnonzero(scores == scores.max())
        row = min(ties, key=lambda row: (-self._counts[row], texts[left[row]], texts[right[row]]))
        return int(left[row]), int(right[row])

    def _grow(self) -> None:
        old = len(self._counts)
        more = max(1024, old // 4)
        self._symbols = np.concatenate([self._symbols, np.zeros((2, more), np.int64)], axis=1)
        self._counts = np.concatenate([self._counts, np.zeros(more, np.int64)])
        self._free = list(range(old + more - 1, old - 1, -1))
