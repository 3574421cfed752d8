"""Probing tasks: labels of words, word pairs, spans or texts, from treebanks, tables, JSON lines or plain text.

A file's name determines its kind: trees of CoNLL-U, CoNLL files with columns of tags, spans in JSON lines, or any
other text. Tasks on plain text need no labels: they are made from its sentences (Conneau et al. 2018, and two on
pieces).

Labelled spans and pairs of spans follow edge probing (Tenney et al. 2019). Each line is {"text": "The cat sat",
"targets": [{"span1": [0, 2], "span2": [2, 3], "label": "agent"}, …]}, the form of jiant's data. A span counts words,
split at spaces: the number of the first, and the number after the last. All targets of a file have one span, or all
have two.
"""

import collections
import dataclasses
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np

from bert_jax.analysis.head_behaviour import HEAD, RELATION, heads_of
from bert_jax.analysis.texts import texts_of
from bert_jax.config.tasks import TaggingDataConfig
from bert_jax.corpus.readers import find_sources
from bert_jax.corpus.text import make_splitter
from bert_jax.errors import UserError
from bert_jax.files import read_text
from bert_jax.pretrained.model import PretrainedModel
from bert_jax.tasks import conll, readers
from bert_jax.tasks.text import word_places as words_of
from bert_jax.tokenization.tokenizer import Tokenizer

PARTS = ("train", "dev", "test")


@dataclasses.dataclass(frozen=True)
class ProbingTask:
    """T texts, and n examples in them: each is one or two spans of characters and a label."""

    name: str
    """Name of the task in results and pictures."""
    texts: tuple[str, ...]
    """The texts that the model reads."""
    parts: np.ndarray
    """int [T]: the place in PARTS of the file that each text is from."""
    owners: np.ndarray
    """int [n]: the text of each example."""
    spans: np.ndarray
    """int [n, S, 2]: (start, end) characters of the S = 1 or 2 spans of each example."""
    labels: np.ndarray
    """[n]: classes, as str, or numbers to estimate, float64."""
    types: np.ndarray
    """str [n]: what the control task assigns a label to, such as the word itself."""
    pooled: bool = False
    """Whether an example is a whole text, whose vector is the mean of its pieces."""

    @property
    def regression(self) -> bool:
        """Whether the labels are numbers to estimate."""
        return self.labels.dtype.kind == "f"

    def chosen(self, examples: np.ndarray) -> "ProbingTask":
        """Return the task with only these examples, int or bool [n]."""
        fields = ("owners", "spans", "labels", "types")
        return dataclasses.replace(self, **{name: getattr(self, name)[examples] for name in fields})


def make_task(
    name: str,
    texts: list[str],
    examples: Sequence[tuple[int, tuple[tuple[int, int], ...], str | float, str]],
    part: Literal["train", "dev", "test"] = "train",
    pooled: bool = False,
) -> ProbingTask:
    """Return a task of examples (number of the text, spans, label, type), see ProbingTask.

    Raises:
      UserError: there is no example, or a span is not inside its text.
    """
    if not examples:
        raise UserError(f"the probing task {name} has no examples in {len(texts):,} texts ({part}); give more texts")
    owners, spans, labels, types = zip(*examples, strict=True)
    for owner, each in zip(owners, spans, strict=True):
        for start, end in each:
            if not 0 <= start < end <= len(texts[owner]):
                raise UserError(
                    f"the probing task {name}: the characters {start} to {end} are not in text {owner}, which has "
                    f"{len(texts[owner])}"
                )
    return ProbingTask(
        name,
        tuple(texts),
        np.full(len(texts), PARTS.index(part)),
        np.array(owners),
        np.array(spans).reshape(len(examples), -1, 2),
        np.array(labels, np.float64 if isinstance(labels[0], float) else np.str_),
        np.array(types),
        pooled,
    )


def joined(tasks: list[ProbingTask]) -> ProbingTask:
    """Return the parts of one task as a whole.

    Raises:
      UserError: the labels are all the same, so that there is nothing to tell apart, or some parts have pairs of spans.
    """
    if len({task.spans.shape[1] for task in tasks}) > 1:
        raise UserError(
            f"the probing task {tasks[0].name}: some of its files have one span per example and some two; give one kind"
        )
    offsets = np.cumsum([0, *(len(task.texts) for task in tasks)])[:-1]
    whole = dataclasses.replace(
        tasks[0],
        texts=sum((task.texts for task in tasks), ()),
        parts=np.concatenate([task.parts for task in tasks]),
        owners=np.concatenate([task.owners + offset for task, offset in zip(tasks, offsets, strict=True)]),
        **{name: np.concatenate([getattr(task, name) for task in tasks]) for name in ("spans", "labels", "types")},
    )
    labels = whole.labels[whole.parts[whole.owners] == 0]
    if len(np.unique(labels)) < 2:
        raise UserError(
            f"the probing task {whole.name}: all {len(labels):,} examples to train on have the same label "
            f"{str(labels[0])!r}; a probe needs two classes or more"
        )
    return whole


def drawn_examples(task: ProbingTask, most: int, seed: int) -> ProbingTask:
    """Return the task with at most `most` examples of each part, drawn at random."""
    random, kept = np.random.default_rng([seed, 0]), []
    for part in range(len(PARTS)):
        there = np.flatnonzero(task.parts[task.owners] == part)
        kept.append(there if len(there) <= most else random.choice(there, most, replace=False))
    return task.chosen(np.sort(np.concatenate(kept)))


SHARE = 0.15  # of the texts to train on, for dev and for test where there is no file of them
SUBSAMPLE = 0.8  # of the texts to train on, where dev and test have files, so that seeds differ


def divided(task: ProbingTask, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the numbers of the examples to train on, to choose by, and to test on; no text is in two of them.

    Where dev or test has no file, a seed draws 15 % of the other texts for it. Where both have one, it draws 80 % of
    the texts to train on. So the results of several seeds differ by the texts that a probe is trained on.

    Raises:
      UserError: a part has no examples.
    """
    parts = np.full(len(task.texts), -1)
    there = np.unique(task.owners)
    parts[there] = task.parts[there]
    missing = [part for part in (1, 2) if not (parts == part).any()]
    order = np.random.default_rng([seed, 1]).permutation(np.flatnonzero(parts == 0))
    size = round(SHARE * len(order))
    for number, part in enumerate(missing):
        parts[order[number * size : (number + 1) * size]] = part
    if not missing:
        parts[order[round(SUBSAMPLE * len(order)) :]] = -1
    of_examples = parts[task.owners]
    train, dev, test = (np.flatnonzero(of_examples == part) for part in range(len(PARTS)))
    if not min(len(train), len(dev), len(test)):
        raise UserError(
            f"the probing task {task.name} has examples in {len(there)} texts, too few to divide into train, dev and "
            "test; give more texts"
        )
    return train, dev, test


def control_labels(task: ProbingTask, seed: int) -> np.ndarray:
    """Return the labels [n] of a control task (Hewitt and Liang 2019): one per type, whatever the context.

    Each type gets a label drawn from those of all examples, so the shares of the classes are the same in expectation.
    """
    _, types = np.unique(task.types, return_inverse=True)
    return np.random.default_rng([seed, 2]).choice(task.labels, types.max() + 1)[types]


LENGTHS = (8, 12, 16, 20, 25, 35)
"""Longest sentences of each class of length, in words; the last class has longer ones."""
COMMON, CONTENT_WORDS = 30, 20
"""The most common words, which are left out, and the number of those after them that the task content tells apart."""
FEWEST_WORDS = 4


Makers = dict[str, Callable[[], ProbingTask]]


def text_tasks(tokenizer: Tokenizer, lines: Iterable[str], seed: int = 0) -> Makers:
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
    names = [f"{low + 1}-{high}" for low, high in zip((0, *LENGTHS), (*LENGTHS, ""), strict=True)]
    labels = [names[int(np.searchsorted(LENGTHS, len(words_of(text))))] for text in texts]
    examples = [(number, ((0, len(text)),), labels[number], text) for number, text in enumerate(texts)]
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


Part = Literal["train", "dev", "test"]
Spans = list[tuple[int, int]]


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
    """Return a tagging task for each named column, numbered from 1, of a CoNLL file; see `tasks.conll`."""
    found = []
    for name, column in columns.items():
        sentences = conll.read(file, TaggingDataConfig(tag_column=column))
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
    columns = [conll.read(file, TaggingDataConfig(tag_column=column)) for column in (HEAD, RELATION)]
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


FORM = '{"text": …, "targets": [{"span1": [0, 2], "label": …}, …]}'


def span_task(file: str, part: Part = "train") -> ProbingTask:
    """Return the task of a file, by whose name it is called. The control goes by the words of the spans.

    Raises:
      UserError: the file is not of this form, or a span is not inside its text. Names file and line.
    """
    texts, examples, pairs = [], [], None
    for line, row in readers.json_lines(read_text(file), file):
        place = f"{os.fspath(file)}, line {line}"
        if not isinstance(row.get("text"), str) or not isinstance(row.get("targets"), list):
            raise UserError(f"{place}: expected {FORM}, not {str(row)[:60]}")
        words = row["text"].split()
        text, of_words = spaced(words)
        for target in row["targets"]:
            label, spans = _target(place, target, len(words))
            pairs = len(spans) if pairs is None else pairs
            if len(spans) != pairs:
                raise UserError(f"{place}: a target with {len(spans)} spans, but earlier targets have {pairs}")
            characters = tuple((of_words[low][0], of_words[high - 1][1]) for low, high in spans)
            kind = " | ".join(" ".join(words[low:high]) for low, high in spans)
            examples.append((len(texts), characters, label, kind))
        texts.append(text)
    return make_task(os.path.basename(file).partition(".")[0], texts, examples, part)


def _target(place: str, target: Any, words: int) -> tuple[str, list[tuple[int, int]]]:
    """Return the label and the one or two spans of a target."""
    if not isinstance(target, dict) or not isinstance(target.get("label"), str) or "span1" not in target:
        raise UserError(f"{place}: expected a target with span1 and one label, a string; found {str(target)[:80]}")
    spans = []
    for name in ("span1", "span2"):
        if name not in target:
            continue
        span = target[name]
        if not (isinstance(span, list) and len(span) == 2 and all(type(each) is int for each in span)):
            raise UserError(
                f"{place}: {name}={span!r} must be two numbers: that of the first word, and that of the word after "
                "the last"
            )
        if not 0 <= span[0] < span[1] <= words:
            raise UserError(f"{place}: {name}={span} is not inside the text of {words} words, which are counted from 0")
        spans.append((span[0], span[1]))
    return target["label"], spans


COLUMNS = (".conll", ".iob", ".bio", ".train", ".testa", ".testb")
"""Ends of the names of files with a word and its tags per line; .train, .testa and .testb are those of CoNLL-2003."""


def read_probing_tasks(
    model: PretrainedModel,
    input: str,
    *,
    dev: str = "",
    test: str = "",
    tasks: Iterable[str] = (),
    columns: dict[str, int] | None = None,
    texts: int = 2_000,
    seed: int = 0,
    text_field: str = "text",
) -> list[ProbingTask]:
    """Return the tasks that files make.

    Args:
      model: whose tokenizer says what a piece is.
      input: files, separated by commas: *.conllu (trees), *.conll and the other COLUMNS (tags), *.jsonl (spans), and
        any other (text; not tfds:).
      dev: files of the same tasks to choose penalties by; "": a part of the input.
      test: files of the same tasks to test on; "": a part of the input.
      tasks: names of those to return; none: all.
      columns: name and column, from 1, of the tags of COLUMNS; None: the last, as tags.
      texts: number of lines that text_tasks are made from, drawn at random; 0: all.
      seed: of what is drawn.
      text_field: name of the field that holds the text in JSON.

    Raises:
      UserError: a file cannot be read or makes no task of these names, or two make the same.
    """
    found: dict[str, list[ProbingTask]] = collections.defaultdict(list)
    if columns and not any(file.strip().endswith(COLUMNS) for file in input.split(",")):
        raise UserError(f"columns have no effect on {input}, which has no file of {', '.join(COLUMNS)}; leave them out")
    lines = lambda file: texts_of(find_sources(file, text_field=text_field), texts, seed, text_field)
    of_text = lambda file: text_tasks(model.need_tokenizer(), lines(file), seed)
    for part, files in zip(PARTS, (input, dev, test), strict=True):
        there: set[str] = set()
        for file in filter(None, map(str.strip, files.split(","))):
            for task in _tasks_of(file, part, set(tasks), columns, seed, of_text):
                if task.name in there:
                    raise UserError(
                        f"{file}: another file of {part} gives the task {task.name!r} too; probe the two separately"
                    )
                if part != "train" and task.name not in found:
                    raise UserError(f"{file}: the input has no task {task.name!r} to train on")
                there.add(task.name)
                found[task.name].append(task)
    if missing := set(tasks) - found.keys():
        raise UserError(
            f"tasks={','.join(sorted(missing))}: {input} makes no such task; *.conllu makes pos, arc, relation and "
            "depth, text makes length, content, order, capital and subword, *.jsonl one of its own name"
        )
    return [joined(parts) for parts in found.values()]


def _tasks_of(
    file: str, part: Part, wanted: set[str], columns: dict[str, int] | None, seed: int, of_text: Callable[[str], Makers]
) -> list[ProbingTask]:
    end = os.path.splitext(file)[1]
    if end == ".conllu":
        found = tree_tasks(file, part, seed)
    elif end in COLUMNS:
        found = column_tasks(file, columns or {"tags": 0}, part)
    elif end == ".jsonl":
        found = [span_task(file, part)]
    elif part != "train":
        raise UserError(f"{file}: tasks from text are divided by the seed; name only files with labels in dev and test")
    else:
        return [make() for name, make in of_text(file).items() if not wanted or name in wanted]
    return [task for task in found if not wanted or task.name in wanted]
