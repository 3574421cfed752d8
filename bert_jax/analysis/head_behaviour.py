"""Attention heads over a corpus: where they look, what they are worth, and pictures of both.

Behind `bert-jax analyze heads`. Statistics are sums over the tokens of a corpus: attention to neighbours, special
tokens and punctuation, distance, entropy. Heads are compared by the Jensen-Shannon divergences of their attention,
which give a map in two dimensions and clusters. Ablation measures the loss on masked words with a head switched off,
minus the loss of the whole model. Batches are sized so that their attention fits into memory.

Relations measure attention from a word to its syntactic head and back, and from a mention to its antecedent. The
attention between words is that of Clark et al. 2019, section 4.1: the sum over the pieces of the word that is
attended to, the mean over the pieces of the word that attends. Sentences come from CoNLL-U files. Antecedents come
from `Entity=` in the last column, as in CorefUD and GUM: `Entity=(e1-person` begins a mention of e1, `e1)` ends it,
and `(e1-person)` is a mention of a single word.
"""

import collections
import dataclasses
import itertools
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table
from scipy.special import entr

from bert_jax.analysis.results import Analysis, call_with, framed, panels, short_path, table
from bert_jax.analysis.texts import in_batches, mask_words, windows
from bert_jax.config.analyses import HeadsConfig
from bert_jax.config.tasks import TaggingDataConfig
from bert_jax.errors import UserError, at_least
from bert_jax.pretrained.model import PretrainedModel, load
from bert_jax.progress import progress_bar, track
from bert_jax.tasks import conll
from bert_jax.tokenization.tokenizer import Tokenizer

VALUES = 2**26
"""Probabilities of one batch, at most: 0.25 GiB on the device, and about three times that on the host."""


def batch_fitting(model: PretrainedModel, texts: Sequence[str], batch_size: int, max_length: int | None) -> int:
    """Return the batch size, or the largest below it whose maps of all heads are not more than VALUES; at least 1."""
    limits = (max_length, model.config.longest_sequence, max(map(len, texts)) + 2)  # a token has a character at least
    length = min(limit for limit in limits if limit is not None)
    maps = model.config.num_layers * model.config.attention_heads * length**2
    return max(1, min(batch_size, VALUES // max(maps, 1)))


def attention_of(
    model: PretrainedModel, texts: list[str], batch_size: int, max_length: int | None
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield the number of each text, its ids [L] and the attention of all heads [N, A, L (query), L (key)] in it.

    Batches may be smaller than `batch_size`, see `batch_fitting`; there is no padding in what is yielded.
    """
    size = batch_fitting(model, texts, batch_size, max_length)
    batches = model.encode_batches(texts, attentions=True, batch_size=size, max_length=max_length, progress=False)
    for numbers, part in batches:
        assert part.attentions is not None
        for row, number in enumerate(numbers):
            length = int(part.attention_mask[row].sum())
            weights = np.stack([layer[row, :, :length, :length] for layer in part.attentions])
            yield number, part.input_ids[row, :length], weights


@dataclasses.dataclass(frozen=True)
class HeadAblation:
    """The same masked words predicted with each of the N · A heads switched off; NaN if none were predicted."""

    loss: float
    """Cross-entropy of the whole model in nats per masked token."""
    increase: np.ndarray
    """float64 [N, A]: how much it is higher without the head. Negative: the model is better without it."""
    error: np.ndarray
    """float64 [N, A]: the standard error of the increase, from the differences of the texts."""
    texts: int
    """Number of texts."""
    predictions: int
    """Number of masked tokens."""


def head_ablation(
    model: PretrainedModel,
    texts: Sequence[str],
    *,
    seed: int = 0,
    batch_size: int = 32,
    max_length: int | None = None,
    progress: bool = True,
) -> HeadAblation:
    """Return what each head is worth for masked words, of which 15 % are hidden, the same for every head.

    A head is switched off by a factor of 0 on its output, before the output projection. All heads run in one compiled
    program. Texts are held in memory; one pass over them is made for the whole model and for each head.

    Args:
      model: any with heads; one without a head for masked words gives NaN.
      texts: what it reads; none give NaN.
      seed: of the choice of words.
    """
    shape = model.config.num_layers, model.config.attention_heads
    masked = mask_words(model, list(texts), seed=seed, max_length=max_length) if texts else None
    if masked is None:
        return HeadAblation(np.nan, np.full(shape, np.nan), np.full(shape, np.nan), 0, 0)
    batches = list(in_batches(masked, batch_size))
    losses, increases, counts = [], [], []
    for batch in track(batches, "batches of texts, without each head", len(batches), visible=progress):
        real = batch["weights"] > 0
        weights = batch["masked_weights"][real].astype(np.float64)
        whole = (weights * model.mlm_losses(batch)[real]).sum(axis=1)
        without = np.empty((len(whole), *shape))
        for layer, head in np.ndindex(shape):
            gates = np.ones(shape)
            gates[layer, head] = 0.0
            without[:, layer, head] = (weights * model.mlm_losses(batch, gates)[real]).sum(axis=1)
        losses.append(whole)
        increases.append(without - whole[:, None, None])
        counts.append(weights.sum(axis=1))
    count = np.concatenate(counts)
    mean, error = ratio(np.concatenate(increases), count)
    loss = float(np.concatenate(losses).sum() / count.sum())
    return HeadAblation(loss, mean, error, len(masked["input_ids"]), round(float(count.sum())))


def ratio(sums: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean per token, and its standard error, of sums [T, …] over counts [T] of tokens of T texts.

    Tokens of one text are not independent, texts are: the error is that of a ratio of means (Cochran 1977, section
    6.4), NaN for a single text.
    """
    mean, texts = sums.sum(axis=0) / counts.sum(), len(counts)
    rests = sums - mean * counts.reshape(-1, *(1,) * (sums.ndim - 1))
    spread = np.square(rests).sum(axis=0) * texts / (texts - 1) if texts > 1 else np.full(mean.shape, np.nan)
    return mean, np.sqrt(spread) / counts.sum()


TOKENS = 4_096
"""Tokens that the divergences are means over: the first texts of a corpus have as many."""
OF_A_TEXT = 16  # at most, drawn at random: those of one text are alike


class DivergenceSums:
    """Sums over tokens of the divergences between what any two of H heads attend to."""

    def __init__(self, heads: int, seed: int):
        self._sums, self._random = np.zeros((heads, heads)), np.random.default_rng(seed)
        self.tokens: int = 0

    def add(self, weights: np.ndarray) -> None:
        """Add some tokens of a text, unless there are enough: probabilities [H, L (query), L (key)]."""
        count = min(OF_A_TEXT, weights.shape[1], TOKENS - self.tokens)
        if count:
            places = self._random.choice(weights.shape[1], count, replace=False)
            self._sums += divergences(weights[:, places].astype(np.float64)) * count
            self.tokens += count

    def means(self) -> np.ndarray:
        """Return float64 [H, H], in nats."""
        return self._sums / self.tokens


def divergences(rows: np.ndarray) -> np.ndarray:
    """Return [H, H]: the mean Jensen-Shannon divergences of distributions [H, Q, L], from 0 to log 2 nats.

    JS(p, q) = S((p + q) / 2) - (S(p) + S(q)) / 2, with the entropy S.
    """
    entropies, found = entr(rows).sum(axis=-1), np.zeros((len(rows), len(rows)))
    for head in range(len(rows) - 1):
        mixed = entr((rows[head] + rows[head + 1 :]) / 2).sum(axis=-1)
        values = (mixed - (entropies[head] + entropies[head + 1 :]) / 2).mean(axis=-1)
        found[head, head + 1 :] = found[head + 1 :, head] = np.maximum(values, 0.0)
    return found


def scaled_map(squared: np.ndarray) -> np.ndarray:
    """Return points [H, 2] whose distances are close to the roots of `squared` [H, H]: classical scaling.

    Roots of Jensen-Shannon divergences, and of their means, are distances of points in a space of more dimensions
    (Fuglede & Topsøe 2004); the map has the two in which they differ most. The sign of each is such that the point
    farthest out is positive.
    """
    centred = -0.5 * (squared - squared.mean(axis=0) - squared.mean(axis=1)[:, None] + squared.mean())
    values, vectors = np.linalg.eigh(centred)
    points = np.zeros((len(squared), 2))
    chosen = np.argsort(values)[::-1][:2]
    points[:, : len(chosen)] = vectors[:, chosen] * np.sqrt(np.maximum(values[chosen], 0.0))
    signs = np.sign(points[np.abs(points).argmax(axis=0), [0, 1]])
    return points * np.where(signs == 0, 1.0, signs)


def clusters_of(squared: np.ndarray, count: int) -> np.ndarray:
    """Return the cluster of each head, int [H] from 0, the largest first: average linkage of the roots of `squared`.

    Raises:
      UserError: fewer than one cluster, or more than heads.
    """
    if not 1 <= count <= len(squared):
        raise UserError(f"clusters={count} must be from 1 to the {len(squared)} heads of the model")
    if count == len(squared):
        return np.arange(count)
    from scipy.cluster import hierarchy  # takes a while to import

    condensed = np.sqrt(squared)[np.triu_indices(len(squared), 1)]
    found = hierarchy.fcluster(hierarchy.linkage(condensed, "average"), count, "maxclust") - 1
    order = sorted(set(found), key=lambda each: (-np.sum(found == each), int(np.argmax(found == each))))
    return np.array([order.index(each) for each in found])


MEASURES = ("previous", "next", "itself", "cls", "sep", "punctuation", "distance", "entropy", "broadness")
"""The first six are shares of a token's attention; see `HeadBehaviour` for all."""
_MARKS = ("##", "▁", "Ġ")  # of a piece inside a word, or at its start


class HeadSums:
    """Sums of what N layers of A heads attend to, over texts; their memory does not grow."""

    def __init__(self, layers: int, heads: int, tokenizer: Tokenizer):
        self._cls_id, self._sep_id = tokenizer.cls_id, tokenizer.sep_id
        self._punctuation = punctuation_pieces(tokenizer)
        self._sums = np.zeros((len(MEASURES), layers, heads))
        self._uniform, self._counts = np.zeros(len(MEASURES)), np.zeros(len(MEASURES))
        self.tokens: int = 0

    def add(self, weights: np.ndarray, ids: np.ndarray) -> None:
        """Add one text of L tokens, without padding: probabilities [N, A, L (query), L (key)] and ids [L]."""
        length = len(ids)
        distances = np.abs(np.arange(length)[:, None] - np.arange(length)[None])
        for measure, offset in (("previous", -1), ("next", 1), ("itself", 0)):
            shares = np.diagonal(weights, offset, axis1=2, axis2=3).sum(axis=-1, dtype=np.float64)
            count = max(length - abs(offset), 0)
            self._add(measure, shares, count / length, count)
        whole = (("cls", ids == self._cls_id), ("sep", ids == self._sep_id), ("punctuation", self._punctuation[ids]))
        for measure, keys in whole:
            if keys.any():
                self._add(measure, weights[..., keys].sum(axis=(2, 3), dtype=np.float64), keys.sum(), length)
        far = np.einsum("naqk,qk->na", weights, distances, dtype=np.float64)
        self._add("distance", far, distances.sum() / length, length)
        entropy = entr(weights).sum(axis=-1, dtype=np.float64)
        self._add("entropy", entropy.sum(axis=-1), length * np.log(length), length)
        self._add("broadness", np.exp(entropy).sum(axis=-1) / length, length, length)
        self.tokens += length

    def means(self) -> np.ndarray:
        """Return float64 [MEASURES, N, A]: means over tokens; NaN where no token had what is measured."""
        return _quotients(self._sums, self._counts[:, None, None])

    def uniform(self) -> np.ndarray:
        """Return float64 [MEASURES]: the same of heads that look at every token of a text alike."""
        return _quotients(self._uniform, self._counts)

    def _add(self, measure: str, values: np.ndarray, uniform: float, count: int) -> None:
        row = MEASURES.index(measure)
        self._sums[row] += values
        self._uniform[row] += uniform
        self._counts[row] += count


def punctuation_pieces(tokenizer: Tokenizer) -> np.ndarray:
    """Return bool [vocab_size]: whether a piece has punctuation only, by BERT's definition, and is no special token.

    It is every character of the Unicode categories P, and every one of ASCII that is not a letter, digit or space.
    """
    found = np.array([_is_punctuation(token) for token in tokenizer.tokens])
    found[list(tokenizer.special_ids)] = False
    return found


def _is_punctuation(piece: str) -> bool:
    for mark in _MARKS:
        piece = piece.removeprefix(mark) if len(piece) > len(mark) else piece
    marks = (unicodedata.category(each)[0] == "P" or ("!" <= each <= "~" and not each.isalnum()) for each in piece)
    return piece not in _MARKS and bool(piece) and all(marks)


def _quotients(sums: np.ndarray, counts: np.ndarray) -> np.ndarray:
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


HEAD, RELATION = 7, 8
"""Numbers of the columns, from 1."""


def heads_of(sentence: conll.Sentence) -> list[int]:
    """Return the place of each word's head, -1 for the root, of a sentence whose tags are those of column HEAD.

    Raises:
      UserError: a head is not a number, is the word itself, or is beyond the sentence. Names file and line.
    """
    found = []
    for word, (head, place) in enumerate(zip(sentence.need_tags(), sentence.places, strict=True)):
        if not (head.isascii() and head.isdigit()) or int(head) > len(sentence.words) or int(head) == word + 1:
            raise UserError(
                f"{place}: the head {head!r} of {sentence.words[word]!r} must be the number of a different one of the "
                f"{len(sentence.words)} words, or 0 for the root"
            )
        found.append(int(head) - 1)
    return found


_MORE = 10  # the last column of CoNLL-U
_BRACKET = re.compile(r"\((?P<begun>[^()\-\[|]+)[^()]*(?P<single>\))?|(?P<ended>[^()\-\[|]+)[^()]*\)")


@dataclasses.dataclass(frozen=True)
class Mention:
    """A mention of something that was mentioned before in the sentence; each mention is named by its syntactic head."""

    word: int
    """Place of the mention."""
    antecedents: tuple[int, ...]
    """Places of the earlier mentions of the same thing."""
    nearest: int
    """Place of the earlier mention, of anything, that is nearest."""


@dataclasses.dataclass(frozen=True)
class ParsedText:
    """A sentence of W words."""

    words: tuple[str, ...]
    """The words."""
    heads: tuple[int, ...]
    """Place of the head of each word; -1: it is the root."""
    relations: tuple[str, ...]
    """Relation of each word to its head, without its subtype."""
    mentions: tuple[Mention, ...] = ()
    """Those with an antecedent."""


def read_parsed(file: str | os.PathLike[str]) -> list[ParsedText]:
    """Return the sentences of a *.conllu file.

    Raises:
      UserError: the file has another name, cannot be read, or has a head that is not a word. Names file and line.
    """
    if not os.fspath(file).endswith(".conllu"):
        raise UserError(f"trees={os.fspath(file)} must be a CoNLL-U file, *.conllu (if it is compressed, unpack it)")
    columns = [conll.read(file, TaggingDataConfig(tag_column=column)) for column in (HEAD, RELATION, _MORE)]
    return [_parsed(*sentences) for sentences in zip(*columns, strict=True)]


def _parsed(sentence: conll.Sentence, related: conll.Sentence, marked: conll.Sentence) -> ParsedText:
    heads = heads_of(sentence)
    relations = tuple(relation.partition(":")[0] for relation in related.need_tags())
    return ParsedText(sentence.words, tuple(heads), relations, _mentions(marked.need_tags(), heads))


def _mentions(notes: tuple[str, ...], heads: list[int]) -> tuple[Mention, ...]:
    """Return the mentions with an antecedent; a mention that does not end in the sentence does not count."""
    spans: list[tuple[int, int, str]] = []
    begun: dict[str, list[int]] = {}
    for word, note in enumerate(notes):
        entity = next((part[7:] for part in note.split("|") if part.startswith("Entity=")), "")
        for bracket in _BRACKET.finditer(entity):
            if bracket["single"]:
                spans.append((word, word, bracket["begun"]))
            elif bracket["begun"]:
                begun.setdefault(bracket["begun"], []).append(word)
            elif begun.get(bracket["ended"]):
                spans.append((begun[bracket["ended"]].pop(), word, bracket["ended"]))
    named = sorted({(_syntactic_head(first, last, heads), entity) for first, last, entity in spans})
    found = []
    for word, entity in named:
        earlier = tuple(other for other, of in named if of == entity and other < word)
        if earlier:
            found.append(Mention(word, earlier, max(other for other, _ in named if other < word)))
    return tuple(found)


def _syntactic_head(first: int, last: int, heads: list[int]) -> int:
    """Return the first word of a span whose head is outside of it."""
    return next((word for word in range(first, last + 1) if not first <= heads[word] <= last), last)


ANY = "any"
SENTENCES_AT_A_TIME = 512  # sentences in memory at a time


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
    """float64 [R]: share of the pairs with that distance, which is the score of guessing by place."""
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

    Raises:
      UserError: every sentence is too long.
    """
    sums, skipped = _RelationSums(model.config.num_layers, model.config.attention_heads), 0
    longest = min(model.config.longest_sequence or max_length or 0, max_length or model.config.longest_sequence or 0)
    with progress_bar("sentences", len(trees), visible=progress) as move_to:
        for start in range(0, len(trees), SENTENCES_AT_A_TIME):
            placed = [(tree, *word_pieces(model, tree.words)) for tree in trees[start : start + SENTENCES_AT_A_TIME]]
            kept = [(tree, member) for tree, member, size in placed if not longest or size <= longest]
            skipped += len(placed) - len(kept)
            texts = [" ".join(tree.words) for tree, _ in kept]
            for number, ids, weights in attention_of(model, texts, batch_size, max_length) if texts else ():
                tree, member = kept[number]
                if len(ids) == member.shape[1]:
                    sums.add(word_attention(weights, member), np.any(member, axis=1), tree)
                else:  # it has [MASK] as a word, which the model reads as one
                    skipped += 1
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


TEXTS_AT_A_TIME = 256  # texts in memory at a time


@dataclasses.dataclass(frozen=True)
class HeadBehaviour:
    """Measures of N layers of A heads: float64 [N, A], means over tokens unless noted otherwise.

    Clark et al. 2019, "What Does BERT Look At?", sections 3 to 6, measure the same.
    """

    previous: np.ndarray
    """Share of the attention of a token that goes to the token before it; of tokens that have one."""
    next: np.ndarray
    """Share that goes to the token after it."""
    itself: np.ndarray
    """Share that goes to the token itself."""
    cls: np.ndarray
    """Share that goes to [CLS]."""
    sep: np.ndarray
    """Share that goes to the separators [SEP] of the text, together."""
    punctuation: np.ndarray
    """Share that goes to all punctuation, of tokens of texts that have some."""
    distance: np.ndarray
    """Mean distance, in tokens, of what is attended to."""
    entropy: np.ndarray
    """Entropy of a token's attention in nats: 0 for a single token."""
    broadness: np.ndarray
    """exp(entropy) over the tokens of the text: 1 for attention to all tokens alike, little for a single one."""
    uniform: np.ndarray
    """[9]: what these nine would be for heads that attend to every token of a text alike."""
    divergence: np.ndarray
    """[N · A, N · A]: mean Jensen-Shannon divergence between the attention of two heads, in nats; layer by layer."""
    points: np.ndarray
    """[N · A, 2]: a map whose distances are about the roots of the divergences."""
    clusters: np.ndarray
    """[N · A]: the cluster of each head, from 0, the largest first."""
    ablation: HeadAblation
    """Increase of the loss of masked words without each head."""
    relations: HeadRelations
    """Whether heads find syntactic heads and antecedents."""
    texts: int
    """Number of texts."""
    tokens: int
    """Number of their tokens, special ones included."""
    map_error: float
    """Largest difference between the last states of the first texts that were computed with and without returning the
    attention: rounding, if the maps are those of the faster computation."""
    model: str
    """Path of the model."""


def heads(
    model: PretrainedModel,
    texts: Iterable[str],
    trees: Sequence[ParsedText] = (),
    *,
    clusters: int = 4,
    ablation_texts: int = 200,
    seed: int = 0,
    batch_size: int = 32,
    max_length: int | None = None,
    progress: bool = True,
) -> HeadBehaviour:
    """Return what every attention head of a model does over texts.

    Args:
      model: a Transformer with a tokenizer.
      texts: one or more; they may be a stream of any length, of which a few hundred are in memory at a time.
      trees: parsed sentences (`read_parsed`), on which attention to syntactic heads and antecedents is measured.
      clusters: number of clusters of heads.
      ablation_texts: number of texts, the first ones, in which words are masked and predicted without each head. 0:
        none are.
      seed: of what is drawn at random.
      batch_size: number of texts that the model reads at once, fewer if their attention would not fit into memory.

    Raises:
      UserError: the model has no heads, there are no texts, or an option cannot work.
    """
    _check(model, clusters, ablation_texts)
    layers, count = model.config.num_layers, model.config.attention_heads
    sums = HeadSums(layers, count, model.need_tokenizer())
    between, held, number, error = DivergenceSums(layers * count, seed), [], 0, np.nan
    with progress_bar("texts", None, visible=progress) as move_to:
        for window in windows(texts, TEXTS_AT_A_TIME):
            held += itertools.islice(window, max(0, ablation_texts - len(held)))
            if not number:
                size = batch_fitting(model, window, batch_size, max_length)
                error = _map_error(model, window[:size], max_length)
            for _, ids, weights in attention_of(model, window, batch_size, max_length):
                sums.add(weights, ids)
                between.add(weights.reshape(layers * count, len(ids), len(ids)))
                number += 1
                move_to(number)
    divergence = between.means()
    shared = {"batch_size": batch_size, "max_length": max_length, "progress": progress}
    return HeadBehaviour(
        *sums.means(),
        uniform=sums.uniform(),
        divergence=divergence,
        points=scaled_map(divergence),
        clusters=clusters_of(divergence, clusters).astype(np.float64),
        ablation=head_ablation(model, held, seed=seed, **shared),
        relations=head_relations(model, trees, **shared),
        texts=number,
        tokens=sums.tokens,
        map_error=error,
        model=model.path,
    )


def _check(model: PretrainedModel, clusters: int, ablation_texts: int) -> None:
    if not model.config.attention_heads:
        kind = "recurrent layers" if model.config.num_layers else "no layers"
        raise UserError(f"{model.path} has {kind} and no attention heads; give a Transformer")
    number = model.config.num_layers * model.config.attention_heads
    if not 1 <= clusters <= number:
        raise UserError(f"clusters={clusters} must be from 1 to the {number} heads of {model.path}")
    at_least(0, ablation_texts=ablation_texts)


def _map_error(model: PretrainedModel, texts: list[str], max_length: int | None) -> float:
    """Return the largest difference between states computed with and without returning the attention."""
    states = [
        model.encode(texts, attentions=attentions, max_length=max_length, progress=False).last_hidden_state
        for attentions in (False, True)
    ]
    return float(np.abs(states[0] - states[1]).max())


SHARES = 6  # of the MEASURES, the first ones are shares of attention
RELATIONS = 15  # in a picture, at most
LARGEST = 60  # heads, up to which each has its name or number in a picture


def draw_heads(result: HeadBehaviour) -> Figure:
    """Return nine maps, of layers (rows) and heads (columns); under each its value for attention to all alike."""
    layers, heads = result.entropy.shape
    heading = f"{short_path(result.model)}: heads over {result.texts:,} texts, {result.tokens:,} tokens"
    figure, maps = panels((3 * max(2.6, 0.5 * heads + 0.6), 3 * max(2.2, 0.4 * layers + 1.0)), heading, 3, 3)
    for number, (name, axes) in enumerate(zip(MEASURES, maps.flat, strict=True)):
        values, share = getattr(result, name), number < SHARES or name == "broadness"
        titles = {"cls": "to [CLS]", "sep": "to [SEP]", "punctuation": "to punctuation", "itself": "to itself"}
        titles |= {"previous": "to the previous token", "next": "to the next token", "distance": "distance (tokens)"}
        _by_head(axes, values, (0.0, 1.0) if share else (0.0, float(np.nanmax(values, initial=1e-9))))
        axes.set_title(titles.get(name, name), loc="left", fontsize=9)
        axes.set_xlabel(f"head (attention to all alike: {result.uniform[number]:.2f})", fontsize=7)
        axes.set_ylabel("layer", fontsize=7)
    return figure


def draw_head_clusters(result: HeadBehaviour) -> Figure:
    """Return the map of heads by the divergence of their attention; colours are clusters, 2-3 is layer 2, head 3."""
    heads = result.entropy.shape[1]
    figure, axes = panels((7.0, 6.0), f"{short_path(result.model)}: heads by how differently they attend")
    clusters = result.clusters.astype(int)
    for cluster in range(clusters.max() + 1):
        points = result.points[clusters == cluster]
        axes.scatter(points[:, 0], points[:, 1], s=40, label=f"cluster {cluster + 1} ({len(points)})")
    for number, (x, y) in enumerate(result.points):
        if len(result.points) <= LARGEST:
            label = f"{number // heads + 1}-{number % heads + 1}"
            axes.annotate(label, (x, y), (3, 3), textcoords="offset points", fontsize=8)
    framed(axes, legend=8)
    axes.set_aspect("equal", "datalim")
    return figure


def draw_head_ablation(result: HeadBehaviour) -> Figure:
    """Return the increase of the loss without each head, with 95 % intervals, layer by layer."""
    ablation, (layers, heads) = result.ablation, result.ablation.increase.shape
    heading = f"{short_path(result.model)}: MLM loss {ablation.loss:.3f}, and how much more without each head"
    figure, axes = panels((max(6.0, 0.22 * layers * heads + 1.5), 3.8), heading, heading_size=10)
    for layer in range(layers):
        places = np.arange(heads) + layer * (heads + 1)
        intervals = 1.96 * ablation.error[layer]
        axes.bar(places, ablation.increase[layer], yerr=intervals, capsize=2, color="#1f5fa8", error_kw={"lw": 1})
    places = [layer * (heads + 1) + (heads - 1) / 2 for layer in range(layers)]
    axes.set_xticks(places, [f"layer {layer + 1}" for layer in range(layers)])
    axes.axhline(0.0, color="black", linewidth=0.8)
    axes.set_ylabel("increase of the loss (nats)")
    framed(axes)
    return figure


def draw_head_relations(result: HeadBehaviour) -> Figure:
    """Return, for the most frequent relations, the best head's share next to that of guessing by place."""
    found = result.relations
    count = min(len(found.relations), RELATIONS)
    best = np.maximum(found.to_head, found.from_head)[:count].reshape(count, -1).max(axis=1)
    figure, axes = panels((7.0, 0.3 * count + 1.4), f"{short_path(result.model)}: {found.sentences:,} sentences")
    places = np.arange(count)
    axes.barh(places - 0.2, best, 0.4, label="the best head", color="#1f5fa8")
    axes.barh(places + 0.2, found.baseline[:count], 0.4, label="the most frequent distance", color="#b8b8b8")
    axes.set_yticks(
        places, [f"{name} ({int(found.counts[row]):,})" for row, name in enumerate(found.relations[:count])]
    )
    axes.invert_yaxis()
    axes.set_xlim(0.0, 1.0)
    framed(axes, below="share of the words whose syntactic head is found", legend=8)
    return figure


def _by_head(axes: Axes, values: np.ndarray, limits: tuple[float, float]) -> None:
    layers, heads = values.shape
    image = axes.imshow(values, cmap="Blues", vmin=limits[0], vmax=limits[1], aspect="auto")
    axes.set_xticks(range(heads), [str(head + 1) for head in range(heads)], fontsize=7)
    axes.set_yticks(range(layers), [str(layer + 1) for layer in range(layers)], fontsize=7)
    if layers * heads <= LARGEST:
        for (layer, head), value in np.ndenumerate(values):
            dark = value > 0.6 * limits[1]
            axes.text(head, layer, f"{value:.2f}", ha="center", va="center", fontsize=7, color="w" if dark else "k")
    else:
        axes.figure.colorbar(image, ax=axes)


COLUMNS = ("head", "prev", "next", "self", "CLS", "SEP", "punct", "dist", "entropy", "broad", "cluster", "loss")
"""Short, so that the table fits a narrow terminal."""
SHOWN = 20  # relations in the table, the most frequent ones


def _told(result: HeadBehaviour) -> Iterator[Table | str]:
    yield _heads_table(result)
    yield f"states with and without returning attention differ by at most {result.map_error:.1e}"
    if result.ablation.texts:
        yield (
            f"MLM loss {result.ablation.loss:.4f} over {result.ablation.predictions:,} masked tokens of "
            f"{result.ablation.texts:,} texts; the column is how much more without the head"
        )
    if result.relations.relations:
        yield from _relations_told(result.relations)


def _heads_table(result: HeadBehaviour) -> Table:
    title = f"{result.texts:,} texts, {result.tokens:,} tokens"
    made = Table(*COLUMNS, title=title, padding=(0, 0), collapse_padding=True)
    clusters = result.clusters.reshape(result.entropy.shape)
    for layer, head in np.ndindex(result.entropy.shape):
        values = (format(getattr(result, name)[layer, head], ".2f") for name in MEASURES)
        increase, error = result.ablation.increase[layer, head], result.ablation.error[layer, head]
        spread = f" ±{error:.3f}" if np.isfinite(error) else ""  # there is none of one text
        effect = f"{increase:+.3f}{spread}" if result.ablation.texts else "-"
        made.add_row(f"{layer + 1}-{head + 1}", *values, str(int(clusters[layer, head]) + 1), effect)
    made.add_section()
    made.add_row("even", *(format(value, ".2f") for value in result.uniform), "", "")
    return made


def _relations_told(found: HeadRelations) -> Iterator[Table | str]:
    rows = []
    for row, name in enumerate(found.relations[:SHOWN]):
        ways = np.stack([found.to_head[row], found.from_head[row]])
        way, layer, head = np.unravel_index(ways.argmax(), ways.shape)
        best = f"{layer + 1}-{head + 1}", ("word", "its head")[way], f"{ways.max():.3f}"
        by_place = f"{found.offsets[row]:+.0f}", f"{found.baseline[row]:.3f}"
        rows.append((name, f"{int(found.counts[row]):,}", *best, *by_place))
    header = ("relation", "pairs", "best head", "who looks", "found", "distance", "found by it")
    yield table(header, rows, f"{found.sentences:,} sentences ({found.skipped:,} left out)")
    if found.mentions:
        layer, head = np.unravel_index(found.antecedents.argmax(), found.antecedents.shape)
        yield (
            f"antecedents of {found.mentions:,} mentions: head {layer + 1}-{head + 1} finds "
            f"{found.antecedents.max():.3f}, the nearest earlier mention {found.nearest:.3f}"
        )


HEADS = Analysis(
    "heads",
    HeadBehaviour,
    _told,
    {
        "heads": draw_heads,
        "clusters": draw_head_clusters,
        "ablation": lambda result: draw_head_ablation(result) if result.ablation.texts else None,
        "relations": lambda result: draw_head_relations(result) if result.relations.relations else None,
    },
)


def run_heads(path: str, options: HeadsConfig) -> None:
    """Print and draw what the heads of a model do over texts, and in parsed sentences."""
    trees = read_parsed(options.trees) if options.trees else []  # before anything that takes long
    model = load(path)
    HEADS.run_on_texts(options, [model], call_with(heads, options, model, trees=trees), options.trees)
