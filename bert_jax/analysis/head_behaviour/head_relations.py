"""Whether heads look from a word to its syntactic head, or back, and from a mention to its antecedent.

The attention between words is that of Clark et al. 2019, section 4.1: the sum over the pieces of the word that is
looked at, the mean over those of the word that looks.
"""

import collections
import dataclasses
from collections.abc import Sequence

import numpy as np

from bert_jax.analysis.head_behaviour.attention_batches import batch_fitting
from bert_jax.analysis.head_behaviour.parsed_text import ParsedText
from bert_jax.console.progress_bar import progress_bar
from bert_jax.errors import UserError
from bert_jax.pretrained.model import PretrainedModel

ANY = "any"
WINDOW = 512  # sentences in memory at a time


@dataclasses.dataclass(frozen=True)
class HeadRelations:
    """R relations, the first of which is "any"; of all other words, the highest attention is the guess."""

    relations: tuple[str, ...]
    """Names, the most frequent first; empty without trees."""
    counts: np.ndarray
    """float64 [R]: number of pairs of a word and its head."""
    to_head: np.ndarray
    """float64 [R, N, A]: share of the words that look most at their head."""
    from_head: np.ndarray
    """float64 [R, N, A]: share of the words that get more attention from their head than from any other word."""
    offsets: np.ndarray
    """float64 [R]: the distance from a word to its head that is most frequent."""
    baseline: np.ndarray
    """float64 [R]: share of the pairs with that distance, which is what guessing by place gives."""
    attention: np.ndarray
    """float64 [N, A]: mean attention of a word to its head."""
    antecedents: np.ndarray
    """float64 [N, A]: share of the mentions that look most at one of their antecedents; NaN if none are marked."""
    nearest: float
    """Share of the mentions whose nearest earlier mention is an antecedent."""
    mentions: int
    """Number of mentions with an antecedent in their sentence."""
    sentences: int
    """Number of sentences that were read."""
    skipped: int
    """Number of sentences that were left out: they are too long, or have the word [MASK]."""


def head_relations(
    model: PretrainedModel,
    trees: Sequence[ParsedText],
    *,
    batch_size: int = 32,
    max_length: int | None = None,
    progress: bool = True,
) -> HeadRelations:
    """Return how well every head finds syntactic heads and antecedents in sentences.

    Args:
      model: a Transformer with a tokenizer.
      trees: sentences; none give a result without relations.
      batch_size: number of sentences that the model reads at once.
      max_length: tokens per sentence; longer ones are left out. None: as many as the model has positions.
      progress: whether to show a bar.

    Raises:
      UserError: every sentence is too long.
    """
    sums, skipped = _RelationSums(model.config.num_layers, model.config.num_heads), 0
    longest = min(model.config.longest_sequence or max_length or 0, max_length or model.config.longest_sequence or 0)
    with progress_bar("sentences", len(trees), visible=progress) as move_to:
        for start in range(0, len(trees), WINDOW):
            placed = [(tree, *word_pieces(model, tree.words)) for tree in trees[start : start + WINDOW]]
            kept = [(tree, member) for tree, member, size in placed if not longest or size <= longest]
            skipped += len(placed) - len(kept)
            texts = [" ".join(tree.words) for tree, _ in kept]
            if not texts:
                continue
            size = batch_fitting(model, texts, batch_size, max_length)
            for numbers, part in model.encode_batches(
                texts, attentions=True, batch_size=size, max_length=max_length, progress=False
            ):
                assert part.attentions is not None
                for row, number in enumerate(numbers):
                    tree, member = kept[number]
                    size = member.shape[1]
                    if part.attention_mask[row].sum() != size:  # it has [MASK] as a word, which the model reads as one
                        skipped += 1
                        continue
                    weights = np.stack([layer[row, :, :size, :size] for layer in part.attentions])
                    sums.add(word_attention(weights, member), member.any(axis=1), tree)
            move_to(start + len(placed))
    if trees and not sums.sentences:
        raise UserError(f"all {skipped:,} sentences of the trees have more than {longest} tokens; raise max_length")
    return sums.result(skipped)


def word_pieces(model: PretrainedModel, words: Sequence[str]) -> tuple[np.ndarray, int]:
    """Return bool [W, L]: which tokens of a sentence, special ones included, are pieces of each word; and L."""
    tokenizer = model.need_tokenizer()
    ends = np.cumsum([len(word) + 1 for word in words])
    ids, spans = tokenizer.encode_with_offsets(" ".join(words))
    member, first = np.zeros((len(words), len(ids) + 2), bool), 0 if tokenizer.class_last else 1
    for place, (start, end) in enumerate(spans):
        last = max(start, end - 1)  # a piece may begin with the space before its word
        member[min(int(np.searchsorted(ends, last, "right")), len(words) - 1), first + place] = True
    return member, len(ids) + 2


def word_attention(weights: np.ndarray, member: np.ndarray) -> np.ndarray:
    """Return float64 [N, A, W (from), W (to)] from attention [N, A, L, L] and the pieces of words, bool [W, L]."""
    shares = member / np.maximum(member.sum(axis=1, keepdims=True), 1)
    return shares @ (weights.astype(np.float64) @ member.T.astype(np.float64))


class _RelationSums:
    """Hits of every head by relation."""

    def __init__(self, layers: int, heads: int):
        self._shape = layers, heads
        self._hits = collections.defaultdict(lambda: np.zeros((2, layers, heads)))
        self._offsets: dict[str, collections.Counter[int]] = collections.defaultdict(collections.Counter)
        self._attention, self._antecedents = np.zeros((layers, heads)), np.zeros((layers, heads))
        self._nearest, self._mentions, self.sentences = 0, 0, 0

    def add(self, weights: np.ndarray, there: np.ndarray, tree: ParsedText) -> None:
        """Add a sentence: attention of words [N, A, W, W], and which words have pieces, bool [W]."""
        self.sentences += 1
        others = np.where(np.eye(len(there), dtype=bool), -1.0, weights)
        looks_at, seen_by = others.argmax(axis=3), others.argmax(axis=2)
        for word, (head, relation) in enumerate(zip(tree.heads, tree.relations, strict=True)):
            if head >= 0 and there[word] and there[head]:
                hits = np.stack([looks_at[..., word] == head, seen_by[..., word] == head])
                for name in (ANY, relation):
                    self._hits[name] += hits
                    self._offsets[name][head - word] += 1
                self._attention += weights[..., word, head]
        for mention in tree.mentions:
            if there[mention.word]:
                self._antecedents += np.isin(looks_at[..., mention.word], mention.antecedents)
                self._nearest += mention.nearest in mention.antecedents
                self._mentions += 1

    def result(self, skipped: int) -> HeadRelations:
        """Return the shares."""
        totals = {name: sum(offsets.values()) for name, offsets in self._offsets.items()}
        names = sorted(totals, key=lambda name: (name != ANY, -totals[name], name))
        counts = np.array([totals[name] for name in names], np.float64)
        shares = np.zeros((0, 2, *self._shape))
        if names:
            shares = np.stack([self._hits[name] / totals[name] for name in names])
        common = [self._offsets[name].most_common(1)[0] for name in names]
        return HeadRelations(
            tuple(names),
            counts,
            shares[:, 0],
            shares[:, 1],
            np.array([offset for offset, _ in common], np.float64),
            np.array([count for _, count in common], np.float64) / counts,
            self._attention / counts[0] if names else np.full(self._shape, np.nan),
            self._antecedents / self._mentions if self._mentions else np.full(self._shape, np.nan),
            self._nearest / self._mentions if self._mentions else np.nan,
            self._mentions,
            self.sentences,
            skipped,
        )
