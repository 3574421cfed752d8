"""How much the vector of a word depends on its context, layer by layer: Ethayarajh 2019, "How contextual are …?".

All cosines are high where all vectors point the same way, so each measure is given with its baseline: what words drawn
at random would have.
"""

import collections
import dataclasses
from collections.abc import Iterable

import numpy as np

from bert_jax.analysis.layer_states.layer_isotropy import CosineSums
from bert_jax.analysis.text_sample import windows
from bert_jax.analysis.text_vectors import WINDOW, counted_texts
from bert_jax.analysis.word_states.word_vectors import WordFinder, spelled, word_vectors
from bert_jax.errors import UserError
from bert_jax.pretrained.encodings import Encoding
from bert_jax.pretrained.model import PretrainedModel


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

    A word is what the tokenizer splits into pieces, its vector the mean of theirs. Only words that occur in `contexts`
    texts are measured, each in the first so many, once a text, so that all have the same share of chance.

    Args:
      model: any model with a tokenizer.
      texts: a list, or anything else that can be read twice: first for its words, then for their vectors.
      words: number of words, drawn at random from those that occur in enough texts.
      contexts: number of texts per word, 2 or more. Memory is that of words · contexts vectors of all layers.
      seed: of what is drawn.
      batch_size: number of texts that the model reads at once.
      max_length: tokens per text; None: as many as the model has positions.
      progress: whether to show a bar.

    Raises:
      UserError: no word occurs in so many texts, or an option that cannot work.
    """
    if words < 1 or contexts < 2:
        raise UserError(f"words={words} must be at least 1, and contexts={contexts} at least 2")
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
    """What a stream of encodings leaves behind: the vectors of the chosen words, of random ones, and a sum."""

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
