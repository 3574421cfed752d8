"""Probing tasks from tagged and parsed text: the columns of CoNLL files, and the trees of CoNLL-U."""

import itertools
from collections.abc import Sequence
from typing import Literal

import numpy as np

from bert_jax.analysis.probing.probing_task import ProbingTask, make_task
from bert_jax.analysis.tree_columns import HEAD, RELATION, heads_of
from bert_jax.config.task_options import TaskDataConfig
from bert_jax.errors import UserError
from bert_jax.tasks.ner import conll

Part = Literal["train", "dev", "test"]
Spans = list[tuple[int, int]]
CONLL_2003 = {"pos": 2, "chunk": 3, "entity": 4}


def tagging_task(
    name: str, sentences: Sequence[Sequence[str]], tags: Sequence[Sequence[str]], part: Part = "train"
) -> ProbingTask:
    """Return the task to tell the tag of every word; its control assigns a tag to each word form.

    Raises:
      UserError: there are not as many tags as words.
    """
    texts, examples = [], []
    for number, (words, of_words) in enumerate(itertools.zip_longest(sentences, tags, fillvalue=())):
        if len(words) != len(of_words):
            raise UserError(
                f"the probing task {name}, sentence {number}: {len(words)} words and {len(of_words)} tags; each word "
                "needs one"
            )
        text, spans = spaced(words)
        texts.append(text)
        examples += [(number, (span,), tag, word) for span, tag, word in zip(spans, of_words, words, strict=True)]
    return make_task(name, texts, examples, part)


def column_tasks(file: str, columns: dict[str, int], part: Part = "train") -> list[ProbingTask]:
    """Return a tagging task for each named column, numbered from 1, of a CoNLL file; see `tasks.ner.conll`."""
    found = []
    for name, column in columns.items():
        sentences = conll.read(file, TaskDataConfig(tag_column=column))
        words, tags = [sentence.words for sentence in sentences], [sentence.need_tags() for sentence in sentences]
        found.append(tagging_task(name, words, tags, part))
    return found


def tree_tasks(file: str, part: Part = "train", seed: int = 0) -> list[ProbingTask]:
    """Return the tasks of a CoNLL-U file: pos, arc, relation and depth.

    arc: is the second word the head of the first, or one drawn at random (Liu et al. 2019)? relation: the relation of a
    word to its head, without its subtype. depth: the number of arcs between a word and the root.

    Raises:
      UserError: the file cannot be read, or its heads make no tree. Names file and line.
    """
    columns = [conll.read(file, TaskDataConfig(tag_column=column)) for column in (HEAD, RELATION)]
    texts, arcs, relations, depths = [], [], [], []
    random = np.random.default_rng(seed)
    for number, (sentence, related) in enumerate(zip(*columns, strict=True)):
        words = sentence.words
        text, spans = spaced(words)
        texts.append(text)
        heads = heads_of(sentence)
        depths += [
            (number, (span,), float(depth), word)
            for span, depth, word in zip(spans, _depths(sentence, heads), words, strict=True)
        ]
        for word, (head, relation) in enumerate(zip(heads, related.need_tags(), strict=True)):
            if head < 0:
                continue
            pairs = {"head": head}
            if others := [other for other in range(len(words)) if other not in (word, head)]:
                pairs["other"] = int(random.choice(others))
            for label, other in pairs.items():
                arcs.append((number, (spans[word], spans[other]), label, f"{words[word]} {words[other]}"))
            pair = (spans[word], spans[head])
            relations.append((number, pair, relation.partition(":")[0], f"{words[word]} {words[head]}"))
    return [
        *column_tasks(file, {"pos": 4}, part),
        make_task("arc", texts, arcs, part),
        make_task("relation", texts, relations, part),
        make_task("depth", texts, depths, part),
    ]


def spaced(words: Sequence[str]) -> tuple[str, Spans]:
    """Return the words with a space between them, and the (start, end) characters of each."""
    ends = np.cumsum([len(word) + 1 for word in words]) - 1
    return " ".join(words), [(int(end) - len(word), int(end)) for word, end in zip(words, ends, strict=True)]


def _depths(sentence: conll.Sentence, heads: list[int]) -> list[int]:
    """Return the number of arcs from each word to the root."""
    found = []
    for word, place in enumerate(sentence.places):
        depth, above = 0, heads[word]
        while above >= 0 and depth <= len(heads):
            depth, above = depth + 1, heads[above]
        if above >= 0:
            raise UserError(
                f"{place}: the heads above {sentence.words[word]!r} go in a circle and never reach the root"
            )
        found.append(depth)
    return found
