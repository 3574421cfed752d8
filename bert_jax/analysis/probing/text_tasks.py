"""Probing tasks that need no labels, made from the sentences of any text (Conneau et al. 2018, and two on pieces)."""

import collections
import itertools
from collections.abc import Callable, Iterable

import numpy as np

from bert_jax.analysis.probing.probing_task import ProbingTask, make_task
from bert_jax.data.corpus.sentences import make_splitter
from bert_jax.tasks.plain_text import words as words_of
from bert_jax.tokenization.abstract_tokenizer import Tokenizer

LENGTHS = (8, 12, 16, 20, 25, 35)
"""Longest sentences of each class of length, in words; the last class has longer ones."""
COMMON, CONTENT_WORDS = 30, 20
"""The most common words, which are left out, and the number of those after them that the task content tells apart."""
FEWEST_WORDS = 4


def text_tasks(tokenizer: Tokenizer, lines: Iterable[str], seed: int = 0) -> dict[str, Callable[[], ProbingTask]]:
    """Return what makes each task from one sentence, drawn at random, of every line that has one of four words or more.

    - length: in which of seven classes is the number of words?
    - content: which of 20 words of medium frequency does the sentence hold, one of which it holds?
    - order: are the words in their order, or were two neighbours swapped?
    - capital: is a word written in small letters, capitalized, or in capitals? The first of a sentence does not count.
    - subword: is a piece a whole word, or the first, an inner or the last of one?
    """
    random, split = np.random.default_rng(seed), make_splitter("split")
    texts = []
    for line in lines:
        if long := [sentence for sentence in split([line]) if len(words_of(sentence)) >= FEWEST_WORDS]:
            texts.append(long[int(random.integers(len(long)))])
    return {
        "length": lambda: _length(texts),
        "content": lambda: _content(texts),
        "order": lambda: _order(texts, np.random.default_rng([seed, 3])),
        "capital": lambda: _capital(texts, tokenizer.lowercase),
        "subword": lambda: _subword(texts, tokenizer),
    }


def _length(texts: list[str]) -> ProbingTask:
    names = [f"{low + 1}-{high}" for low, high in zip((0, *LENGTHS[:-1]), LENGTHS, strict=True)] + [
        f"{LENGTHS[-1] + 1}-"
    ]
    examples = []
    for number, text in enumerate(texts):
        label = names[int(np.searchsorted(LENGTHS, len(words_of(text))))]
        examples.append((number, ((0, len(text)),), label, text))
    return make_task("length", texts, examples, pooled=True)


def _content(texts: list[str]) -> ProbingTask:
    held = [collections.Counter(text[low:high].lower() for low, high in words_of(text)) for text in texts]
    counts = collections.Counter(word for each in held for word in each if word.isalpha())
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    wanted = set(ranked[COMMON : COMMON + CONTENT_WORDS])
    examples = []
    for number, (text, words) in enumerate(zip(texts, held, strict=True)):
        if len(there := sorted(wanted & words.keys())) == 1:
            examples.append((number, ((0, len(text)),), there[0], text))
    return make_task("content", texts, examples, pooled=True)


def _order(texts: list[str], random: np.random.Generator) -> ProbingTask:
    changed, examples = [], []
    for number, text in enumerate(texts):
        label, spans = "in order", words_of(text)
        places = [
            place
            for place, (first, second) in enumerate(itertools.pairwise(spans))
            if text[slice(*first)].isalnum() and text[slice(*second)].isalnum()
            if text[slice(*first)].lower() != text[slice(*second)].lower()
        ]
        if places and random.random() < 0.5:
            (start, end), (following, last) = spans[(place := int(random.choice(places)))], spans[place + 1]
            text = text[:start] + text[following:last] + text[end:following] + text[start:end] + text[last:]
            label = "swapped"
        changed.append(text)
        examples.append((number, ((0, len(text)),), label, text))
    return make_task("order", changed, examples, pooled=True)


def _capital(texts: list[str], lowercase: bool) -> ProbingTask:
    examples = []
    for number, text in enumerate(texts):
        for span in words_of(text)[1:]:
            word = text[slice(*span)]
            if word.isalpha() and word.lower() != word.upper():
                small, capitals = word.islower(), word.isupper() and len(word) > 1
                label = "small" if small else "capitals" if capitals else "capitalized"
                examples.append((number, (span,), label, word.lower() if lowercase else word))
    return make_task("capital", texts, examples)


def _subword(texts: list[str], tokenizer: Tokenizer) -> ProbingTask:
    examples = []
    for number, text in enumerate(texts):
        ids, offsets = tokenizer.encode_with_offsets(text)
        starts = np.array([start for start, _ in offsets])
        for low, high in words_of(text):
            pieces = np.flatnonzero((starts >= low) & (starts < high))
            for place, piece in enumerate(pieces):
                first, last = place == 0, place == len(pieces) - 1
                label = "whole" if first and last else "first" if first else "last" if last else "inner"
                start, end = offsets[piece]
                if end > start:
                    examples.append((number, ((start, end),), label, tokenizer.tokens[ids[piece]]))
    return make_task("subword", texts, examples)
