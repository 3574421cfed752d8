"""Words in context, layer by layer: how contextual their vectors are, and whether senses separate.

Behind `bert-jax analyze similarity`. The vector of a word is the mean of its pieces. The measures of context are
those of Ethayarajh 2019, "How Contextual are Contextualized Word Representations?". All cosines are high where all
vectors point the same way, so each measure comes with a baseline: its value for words drawn at random. For one word
in several texts, the question is whether vectors of the same sense come together, and those of different senses move
apart.
"""

import collections
import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.figure import Figure
from rich.table import Table

from bert_jax.analysis import results
from bert_jax.analysis.layers import CosineSums, units
from bert_jax.analysis.texts import WINDOW, counted_texts, span_means, windows
from bert_jax.config.analyses import SimilarityConfig
from bert_jax.errors import UserError, at_least
from bert_jax.files import lines_of, read_text
from bert_jax.pretrained.encodings import Encoding
from bert_jax.pretrained.model import PretrainedModel, load


@dataclasses.dataclass(frozen=True)
class WordFinder:
    """Finds the words in the ids of a text: runs of pieces of which all but the first continue the word."""

    continues: np.ndarray
    """bool [vocab_size]: whether a piece continues the word before it."""
    special_ids: np.ndarray
    """Ids of pieces that are not part of a word, such as [SEP]."""

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
    return span_means(np.stack([layer[row] for layer in encoding.hidden_states], axis=1), np.array(spans))


@dataclasses.dataclass(frozen=True)
class ContextSimilarity:
    """Measures of contextuality in the embeddings and each of N layers, and the baselines to subtract from them."""

    self_similarity: np.ndarray
    """float64 [W, N + 1]: for each word, the mean cosine of its vectors in different texts; 1 where the context changes
    nothing."""
    explained_variance: np.ndarray
    """float64 [W, N + 1]: for each word, the largest share of its vectors' sum of squares that lies in one direction:
    how well a single vector per word could represent them."""
    intra_sentence: np.ndarray
    """float64 [N + 1]: mean cosine of a word with the mean of its text's words."""
    cosine_baseline: np.ndarray
    """float64 [N + 1]: mean cosine of two words drawn from different texts, for self_similarity and intra_sentence."""
    explained_baseline: np.ndarray
    """float64 [N + 1]: mean explained variance of as many words drawn from different texts."""
    words: tuple[str, ...]
    """The W words, each measured in `contexts` texts."""
    contexts: int
    """Number of texts that each word is measured in."""
    texts: int
    """Number of texts that were read."""
    model: str
    """Path of the model."""


def similarity(
    model: PretrainedModel,
    texts: Iterable[str],
    *,
    words: int = 100,
    contexts: int = 16,
    seed: int = 0,
    batch_size: int = 32,
    max_length: int | None = None,
    progress: bool = True,
) -> ContextSimilarity:
    """Return how much the vectors of words differ between contexts, next to the same of words drawn at random.

    A word is what the tokenizer splits into pieces; its vector is the mean of their vectors. Only words that occur in
    `contexts` texts are measured, once per text and in the first `contexts` of them, so that chance affects all alike.

    Args:
      model: any model with a tokenizer.
      texts: a list, or anything else that can be read twice: first for its words, then for their vectors.
      words: number of words, drawn at random from those that occur in enough texts.
      contexts: number of texts per word, 2 or more. Memory is that of words · contexts vectors of all layers.
      seed: of what is drawn.

    Raises:
      UserError: no word occurs in so many texts, or an option that cannot work.
    """
    at_least(1, words=words)
    at_least(2, contexts=contexts)
    chosen, count = _chosen_words(model, texts, words, contexts, seed, max_length)
    sums = _ContextSums(model, chosen, contexts, seed)
    with counted_texts(texts, visible=progress) as done:
        for window in windows(texts, WINDOW):
            for numbers, encoding in model.encode_batches(
                window, "all", batch_size=batch_size, max_length=max_length, progress=False
            ):
                sums.add(encoding)
                done(len(numbers))
    return sums.result(count)


def explained_variance(vectors: np.ndarray) -> np.ndarray:
    """Return σ₁² / Σ σ² of the singular values of the vectors of each layer, float64 [R], for [n, R, H]."""
    squares = np.linalg.svd(np.moveaxis(vectors, 1, 0).astype(np.float64), compute_uv=False) ** 2
    return squares[:, 0] / squares.sum(axis=1)


def mean_cosine(vectors: np.ndarray) -> np.ndarray:
    """Return the mean cosine of all pairs of different vectors of each layer, float64 [R], for [n, R, H]."""
    sums = CosineSums(vectors.shape[1])
    sums.add(vectors)
    return sums.signed / sums.pairs


def intra_sentence_similarity(vectors: np.ndarray) -> np.ndarray:
    """Return the mean cosine of the words of a text [n, R, H] with their mean, of each layer, float64 [R]."""
    mean = vectors.mean(axis=0)
    lengths = np.linalg.norm(vectors, axis=2) * np.linalg.norm(mean, axis=1)
    products = np.einsum("nrh,rh->nr", vectors, mean)
    return np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0).mean(axis=0)


class _ContextSums:
    """Sums over a stream of encodings: the vectors of the chosen words and of random ones, and cosines."""

    def __init__(self, model: PretrainedModel, chosen: list[tuple[int, ...]], contexts: int, seed: int):
        self._model, self._contexts, self._finder = model, contexts, WordFinder.of(model)
        self._vectors: dict[tuple[int, ...], list[np.ndarray]] = {word: [] for word in chosen}
        self._random_words: list[np.ndarray] = []
        self._random = np.random.default_rng(seed)
        self._intra, self._texts = np.zeros(model.config.num_layers + 1), 0

    def add(self, encoding: Encoding) -> None:
        for row, ids in enumerate(encoding.input_ids):
            spans = self._finder.find(ids)
            if len(spans) < 2:  # a single word is its text's mean
                continue
            vectors = word_vectors(encoding, row, spans)
            self._intra += intra_sentence_similarity(vectors)
            self._texts += 1
            if len(self._random_words) < len(self._vectors) * self._contexts:
                self._random_words.append(vectors[self._random.integers(len(spans))].astype(np.float32))
            there = {spelled(ids, span): number for number, span in reversed(list(enumerate(spans)))}
            for word in there.keys() & self._vectors.keys():
                if len(self._vectors[word]) < self._contexts:
                    self._vectors[word].append(vectors[there[word]].astype(np.float32))

    def result(self, texts: int) -> ContextSimilarity:
        tokenizer = self._model.need_tokenizer()
        found = {word: np.stack(each) for word, each in self._vectors.items() if len(each) == self._contexts}
        random = np.stack(self._random_words)
        whole = len(random) // self._contexts * self._contexts  # what chance explains depends on the number of vectors
        groups = random[:whole].reshape(-1, self._contexts, *random.shape[1:])
        return ContextSimilarity(
            self_similarity=np.stack([mean_cosine(each) for each in found.values()]),
            explained_variance=np.stack([explained_variance(each) for each in found.values()]),
            intra_sentence=self._intra / self._texts,
            cosine_baseline=mean_cosine(random),
            explained_baseline=np.mean([explained_variance(group) for group in groups], axis=0),
            words=tuple(tokenizer.decode(word) for word in found),
            contexts=self._contexts,
            texts=texts,
            model=self._model.path,
        )


def _chosen_words(
    model: PretrainedModel, texts: Iterable[str], words: int, contexts: int, seed: int, max_length: int | None
) -> tuple[list[tuple[int, ...]], int]:
    """Return the ids of random words that occur in enough texts of two words or more, and the number of all texts."""
    tokenizer, finder = model.need_tokenizer(), WordFinder.of(model)
    room = (max_length or model.config.longest_sequence) - 2  # for [CLS] and [SEP]
    counts: collections.Counter[tuple[int, ...]] = collections.Counter()
    total = 0
    for window in windows(texts, WINDOW):
        total += len(window)
        for ids in tokenizer.encode_batch(window):
            cut = np.array(ids[:room], np.int64)
            spans = finder.find(cut)
            counts.update({spelled(cut, span) for span in spans} if len(spans) > 1 else ())
    frequent = sorted(word for word, count in counts.items() if count >= contexts)
    if not frequent:
        most = max(counts.values(), default=0)
        raise UserError(
            f"no word occurs in contexts={contexts} of the {total:,} texts, the most frequent one in {most}; give more "
            "texts, or fewer contexts"
        )
    order = np.random.default_rng(seed).permutation(len(frequent))[:words]
    return [frequent[number] for number in order], total


@dataclasses.dataclass(frozen=True)
class SenseSimilarity:
    """Cosines of the vectors of a word in n texts, in the embeddings and each of N layers."""

    cosines: np.ndarray
    """float64 [N + 1, n, n]: of the word in each two of the texts."""
    within: np.ndarray
    """float64 [N + 1]: their mean over two different texts of the same sense; NaN if no sense has two texts."""
    between: np.ndarray
    """float64 [N + 1]: their mean over two texts of different senses; NaN if there is one sense."""
    baseline: np.ndarray
    """float64 [N + 1]: the mean cosine of other words of the same texts, two from different texts: what within and
    between would be if they said nothing (anisotropy)."""
    word: str
    """The word."""
    texts: tuple[str, ...]
    """The n texts."""
    senses: tuple[str, ...]
    """The sense of the word in each text; "" in all of them if none were given."""
    model: str
    """Path of the model."""


def word_senses(
    model: PretrainedModel,
    word: str,
    texts: Sequence[str],
    senses: Sequence[str] | None = None,
    *,
    batch_size: int = 32,
    max_length: int | None = None,
) -> SenseSimilarity:
    """Return the cosines of a word's vectors in several texts, within and between its senses.

    Args:
      model: any model with a tokenizer.
      word: a word as the tokenizer divides text, such as "bank"; its vector is the mean of those of its pieces.
      texts: two or more that have the word; its first occurrence counts.
      senses: a name for each text; None: all have the same.

    Raises:
      UserError: the word is not a single word or not in one of the texts, or texts and senses do not go together.
    """
    senses = [""] * len(texts) if senses is None else list(senses)
    if len(senses) != len(texts) or len(texts) < 2:
        raise UserError(f"{len(texts)} texts with {len(senses)} senses; give two texts or more, and a sense for each")
    finder, wanted = WordFinder.of(model), single_word(model, word)
    layers, size = model.config.num_layers + 1, model.config.hidden_size
    found, others = np.zeros((len(texts), layers, size)), []
    batches = model.encode_batches(list(texts), "all", batch_size=batch_size, max_length=max_length, progress=False)
    for numbers, encoding in batches:
        for row, number in enumerate(numbers):
            ids = encoding.input_ids[row]
            spans = finder.find(ids)
            places = [place for place, span in enumerate(spans) if spelled(ids, span) == wanted]
            if not places:
                raise UserError(
                    f"the word {word!r} is not in text {number} ({texts[number]!r:.80}), or comes after the last "
                    "token that the model reads; leave the text out"
                )
            vectors = word_vectors(encoding, row, spans)
            found[number] = vectors[places[0]]
            others += [(number, vectors[place]) for place in range(len(spans)) if place not in places]
    cosines = _cosines(found)
    same = np.equal.outer(senses, senses)
    return SenseSimilarity(
        cosines=cosines,
        within=_mean(cosines, same & ~np.eye(len(texts), dtype=bool)),
        between=_mean(cosines, ~same),
        baseline=_baseline(others, layers),
        word=word,
        texts=tuple(texts),
        senses=tuple(senses),
        model=model.path,
    )


def read_senses(path: str) -> list[tuple[str, str]]:
    """Return (sense, text) of each line of a file: the name of a sense, a tab, a text.

    Raises:
      UserError: there is no such file, it is not UTF-8, or a line is not of this form.
    """
    rows = []
    for number, line in enumerate(lines_of(read_text(path)), 1):
        sense, tab, text = line.partition("\t")
        if line.strip() and not (tab and text.strip()):
            raise UserError(f"{path}, line {number}: expected the name of a sense, a tab and a text, not {line!r:.60}")
        rows += [(sense.strip(), text)] if line.strip() else []
    return rows


def single_word(model: PretrainedModel, word: str) -> tuple[int, ...]:
    """Return the ids of a word; raise a UserError if the tokenizer does not read it as one word."""
    tokenizer = model.need_tokenizer()
    ids = np.array(tokenizer.encode(word), np.int64)
    if len(WordFinder.of(model).find(ids)) != 1 or np.isin(ids, tokenizer.special_ids).any():
        pieces = ", ".join(tokenizer.tokens[number] for number in ids) or "nothing"
        raise UserError(f"{word!r} is not a single word for this tokenizer, which reads {pieces}; give one word")
    return tuple(ids.tolist())


def _cosines(vectors: np.ndarray) -> np.ndarray:
    """Return float64 [R, n, n] for [n, R, H]."""
    layers = units(np.moveaxis(vectors, 1, 0))
    return layers @ np.swapaxes(layers, 1, 2)


def _mean(cosines: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    return cosines[:, pairs].mean(axis=1) if pairs.any() else np.full(len(cosines), np.nan)


def _baseline(others: list[tuple[int, np.ndarray]], layers: int) -> np.ndarray:
    """Return the mean cosine of two words from different texts, float64 [R]: that of all pairs less those within."""
    if len({number for number, _ in others}) < 2:
        return np.full(layers, np.nan)
    numbers, vectors = np.array([number for number, _ in others]), np.stack([vector for _, vector in others])
    total, pairs = np.zeros(layers), 0
    for chosen, sign in [(np.ones(len(numbers), bool), 1), *((numbers == each, -1) for each in np.unique(numbers))]:
        sums = CosineSums(layers)
        sums.add(vectors[chosen])
        total, pairs = total + sign * sums.signed, pairs + sign * sums.pairs
    return total / pairs


def draw_context_similarity(result: ContextSimilarity) -> Figure:
    """Return three panels: each measure by layer, with the baseline that it is to be compared with."""
    heading = f"{results.short_path(result.model)}: {len(result.words)} words in {result.contexts} texts each"
    figure, drawn = results.panels((13.0, 3.8), heading, 1, 3)
    shown = {
        "Self-similarity of words": (result.self_similarity.mean(axis=0), result.cosine_baseline),
        "Words and their sentence's mean": (result.intra_sentence, result.cosine_baseline),
        "Explained by one direction": (result.explained_variance.mean(axis=0), result.explained_baseline),
    }
    for axes, (title, (values, baseline)) in zip(drawn, shown.items(), strict=True):
        results.lines_by_layer(axes, title, {"measured": values, "words at random": baseline})
    drawn[0].legend(frameon=False)
    return figure


def draw_sense_similarity(result: SenseSimilarity) -> Figure:
    """Return the cosines within and between senses by layer, and those of all texts in the last layer."""
    order = np.argsort(result.senses, kind="stable")
    heading = f"{results.short_path(result.model)}: {result.word!r}"
    figure, (by_layer, pairs) = results.panels((11.0, 4.2), heading, 1, 2)
    series = {"within senses": result.within, "between senses": result.between, "other words": result.baseline}
    results.lines_by_layer(by_layer, "Mean cosine", series)
    by_layer.legend(frameon=False)
    image = pairs.imshow(result.cosines[-1][np.ix_(order, order)], cmap="viridis")
    labels = [result.senses[number] or result.texts[number][:20] for number in order]
    pairs.set_yticks(range(len(order)), labels, fontsize=8, parse_math=False)
    pairs.set_xticks([])
    pairs.set_title("Texts in the last layer", loc="left")
    figure.colorbar(image, ax=pairs, label="cosine")
    return figure


def _told(result: ContextSimilarity) -> list[Table]:
    columns = {
        "self-similarity": result.self_similarity.mean(axis=0),
        "intra-sentence": result.intra_sentence,
        "cosine of any two": result.cosine_baseline,
        "explained": result.explained_variance.mean(axis=0),
        "of any words": result.explained_baseline,
    }
    return [results.layers_table(columns, title=f"{len(result.words)} words in {result.contexts} texts each")]


def _senses_told(result: SenseSimilarity) -> list[Table]:
    columns = {"within senses": result.within, "between senses": result.between, "other words": result.baseline}
    return [results.layers_table(columns, title=f"cosines of {result.word!r}")]


SIMILARITY = results.Analysis("similarity", ContextSimilarity, _told, {"similarity": draw_context_similarity})
SENSES = results.Analysis("word_senses", SenseSimilarity, _senses_told, {"word": draw_sense_similarity}, "word.json")


def run_similarity(path: str, options: SimilarityConfig) -> None:
    """Print and draw how much the vectors of words depend on their contexts; with `--word`, on its senses."""
    rows = read_senses(options.senses) if options.word else None  # before anything that takes long
    model = load(path)
    SIMILARITY.run_on_texts(options, [model], results.call_with(similarity, options, model))
    if rows is not None:
        origin = {"models": [results.model_fingerprint(model)], "word": options.word, "texts": rows}
        senses, texts = zip(*rows, strict=True) if rows else ((), ())
        SENSES.run(options, origin, results.call_with(word_senses, options, model, options.word, texts, senses))
