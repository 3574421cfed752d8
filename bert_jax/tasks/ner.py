"""Tagging of words, in documents or single sentences: named entities, parts of speech and the like.

Sentences come from CoNLL files, TFDS or plain text. The tag of a word is predicted at its first piece (Devlin et al.
2018, section 5.3). Documents become windows, so that each word is predicted with the words around it on both sides;
section 5.3: "we include the maximal document context provided by the data". Sentences are predicted as a whole: an
entity is never cut, and a CRF runs over whole sentences.
"""

import bisect
import dataclasses
import functools
import itertools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from etils import epath

from bert_jax.config import HeadConfig
from bert_jax.config.tasks import TaggingDataConfig, TaggingOptions
from bert_jax.data.sequences import Features
from bert_jax.errors import UserError
from bert_jax.files import write_atomically
from bert_jax.models.task import with_edges
from bert_jax.tasks import conll, readers
from bert_jax.tasks.conll import Sentence
from bert_jax.tasks.text import PlainText, word_places
from bert_jax.tokenization.tokenizer import Tokenizer, assembled, text_start

FILES = {
    "train": ("train.txt", "train.conll", "train.conllu", "eng.train"),
    "dev": ("dev.txt", "valid.txt", "dev.conll", "valid.conll", "dev.conllu", "eng.testa"),
    "test": ("test.txt", "test.conll", "test.conllu", "eng.testb"),
}
"""Names that a split may have in `data.dir`; the last ones are the original's."""
_WORDS, _TAGS = ("tokens", "words"), ("ner", "tags", "ner_tags")


@dataclasses.dataclass(frozen=True)
class Examples(readers.DividedExamples):
    """The sentences of one split; their tags are in IOB2."""

    sentences: tuple[Sentence, ...]
    labels: tuple[str, ...]
    has_answers: bool
    index: tuple[str, ...] = ()
    """Name of each plain text in a file of predictions, if the sentences are plain texts."""

    @property
    def unit(self) -> str:
        return "sentences" if self.sentences[0].document is None else "documents"

    @property
    def together(self) -> list[Any]:
        """The documents, or the words of sentences that are in none, which are held out together."""
        return [each.words if each.document is None else each.document for each in self.sentences]

    def chosen(self, numbers: np.ndarray) -> Self:
        """Return some of the examples."""
        return dataclasses.replace(self, sentences=tuple(self.sentences[number] for number in numbers))

    def __len__(self) -> int:
        return len(self.sentences)


def splits(task: str, data: TaggingDataConfig) -> tuple[str, ...]:
    """Return those of train, dev and test that the data has."""
    return readers.file_splits(data, FILES)


def load(
    task: str,
    data: TaggingDataConfig,
    split: str,
    labels: tuple[str, ...] | None = None,
    given: readers.Given | None = None,
) -> Examples:
    """Read split "train", "dev" or "test" from a CoNLL file or rows (see `readers.rows_of`).

    Args:
      labels: the classes; None: O, then B- and I- of every type that occurs (plain tags: those that occur, sorted).
      given: rows of the splits that are in memory: (words, tags), or dicts with the columns of a data set.

    Raises:
      UserError: see `conll.read` and `conll.in_iob2`; or there are no tags to train on, or a tag is not among `labels`.
    """
    found = readers.rows_of(data, split, given, functools.partial(_columns_of_row, data))
    if found is not None:
        sentences = _row_sentences(*found, data, split)
    else:
        if split == "train" and data.weight_column:
            raise UserError(
                f"data.weight_column={data.weight_column} names a column of sentences, but a file of CoNLL has a line "
                "for each word; give the sentences as JSON lines, a data frame or rows"
            )
        sentences = conll.read(readers.find_file(data, split, FILES[split]), data, to_predict=split == "test")
    has_answers = all(sentence.tags is not None for sentence in sentences)
    if has_answers:
        sentences = conll.in_iob2(_composed(sentences), data.scheme)
    elif split == "train" or labels is None:
        raise UserError(
            f"{sentences[0].places[0]}: a word without a tag; training needs a column of tags as well as one of words"
        )
    labels = _classes(sentences) if labels is None else tuple(labels)
    spelled = {readers.composed_form(label): label for label in labels}
    for sentence in sentences if has_answers else ():
        for tag, place in zip(sentence.need_tags(), sentence.places, strict=True):
            if tag not in spelled:
                raise UserError(f"{place}: the tag {tag} is not among those of the training data: {', '.join(labels)}")
    if has_answers:
        sentences = [_with_tags(sentence, map(spelled.__getitem__, sentence.need_tags())) for sentence in sentences]
    return Examples(tuple(sentences), labels, has_answers)


def _composed(sentences: list[Sentence]) -> list[Sentence]:
    """Return sentences whose tags have the composed form (NFC)."""
    tags = [pair for sentence in sentences for pair in zip(sentence.places, sentence.need_tags(), strict=True)]
    found = iter(readers.composed(tags))
    return [_with_tags(sentence, itertools.islice(found, len(sentence.words))) for sentence in sentences]


def _with_tags(sentence: Sentence, tags: Iterable[str]) -> Sentence:
    return dataclasses.replace(sentence, tags=tuple(tags))


def from_plain(texts: Sequence[PlainText], labels: tuple[str, ...]) -> Examples:
    """Return each plain text as one unlabelled sentence of the words that BERT splits it into.

    Raises:
      UserError: a text has no words (names the line).
    """
    sentences = []
    for where, text, *_ in texts:
        if not (spans := word_places(text)):
            raise UserError(f"{where}: {text!r:.80} holds no words")
        words = tuple(text[start:end] for start, end in spans)
        sentences.append(Sentence(words, None, None, (where,) * len(spans), tuple(spans)))
    return Examples(tuple(sentences), tuple(labels), has_answers=False, index=tuple(text.index for text in texts))


def _classes(sentences: list[Sentence]) -> tuple[str, ...]:
    tags = {tag for sentence in sentences for tag in sentence.need_tags()}
    types = sorted({kind for prefix, kind in map(conll.split, tags) if prefix in ("B", "I")})
    if not types:
        return tuple(sorted(tags))
    return (conll.OUTSIDE, *(f"{prefix}-{kind}" for kind in types for prefix in "BI"))


def _columns_of_row(data: TaggingDataConfig, where: str, row: Any) -> dict[str, Any]:
    if not isinstance(row, list) or len(row) != 2:
        raise UserError(f"{where} is {row!r:.80}; expected ([word, …], [tag, …]), or a dict with tokens and tags")
    return {_WORDS[0]: row[0], data.label_column or _TAGS[0]: row[1]}


def _row_sentences(source: str, rows: readers.Rows, data: TaggingDataConfig, split: str) -> list[Sentence]:
    """Return the sentences in rows with columns of words and of tags; a test set may lack the latter."""
    wanted, sentences = (data.label_column,) if data.label_column else _TAGS, []
    for where, row in rows:
        words = list(map(readers.whole_characters, _texts(where, "word", row[_field(where, row, _WORDS, data)])))
        tags = None
        if split != "test" or any(name in row for name in wanted):
            tags = row[_field(where, row, wanted, data)]
        tags = None if tags is None else _texts(where, "tag", tags)
        if not words or tags is not None and len(words) != len(tags):
            raise UserError(
                f"{where}: {len(words)} words and {len(tags or [])} tags; each word needs one, and each sentence a word"
            )
        places = tuple(f"{where}, word {word}" for word in range(len(words)))
        tags = None if tags is None or None in tags else tuple(tags)
        weight = readers.weight_of(where, row, data.weighed_by(split))
        sentences.append(Sentence(tuple(words), tags, None, places, weight=weight))
    if not sentences:
        raise UserError(f"{source} holds no sentence")
    return sentences


def _field(where: str, row: Mapping[str, Any], names: Sequence[str], data: TaggingDataConfig) -> str:
    """Return the first of these columns that a row has."""
    if (found := next((name for name in names if name in row), None)) is None:
        raise UserError(
            f"{where}: no field {' or '.join(names)!r} among {', '.join(sorted(row))}"
            + ("; give the one that holds the tags with --data.label_column=NAME" if data.named else "; rename one")
        )
    return found


def _texts(where: str, noun: str, values: Any) -> list[Any]:
    """Return a list of words, or of tags, of which some may be None."""
    if not isinstance(values, list):
        raise UserError(f"{where}: its {noun}s are {values!r:.60}, not a list of text")
    for number, value in enumerate(values):
        if not isinstance(value, str) and (value is not None or noun == "word"):
            remedy = "; give the names of the tags, such as B-PER" if noun == "tag" else ""
            raise UserError(f"{where}, {noun} {number} is {value!r:.60}, not text{remedy}")
    return list(values)


@dataclasses.dataclass(frozen=True)
class Window:
    """Words first … end - 1 of a document: those in `predicted` have a label, the others are context."""

    first: int
    end: int
    predicted: np.ndarray
    """int [n]: predicted words, in order; one range, or several."""


def windows(sentences: list[np.ndarray], room: int, step: int) -> list[Window]:
    """Return windows of one document that together predict each of its words once.

    Sentences are grouped, up to `step` tokens per group; one window is centred on each group and filled with its
    surroundings. If a sentence is in several windows, the one counts in which the poorer of its two sides has most
    context (and among those, the richer side). Sentences longer than a window are treated as several of at most `step`
    tokens.

    Args:
      sentences: number of tokens of each word, at most `step`, per sentence.
      room: number of tokens per window.
      step: number of tokens per group; `step` <= `room`.
    """
    starts = np.concatenate([[0], np.cumsum(np.concatenate(sentences))])  # of each word, in tokens; and the end
    units = _units(sentences, starts, room, step)
    ranges = sorted({_around(first, end, starts, room) for first, end in _groups(units, starts, step)})
    firsts, ends = [first for first, _ in ranges], [end for _, end in ranges]
    predicted: list[list[np.ndarray]] = [[] for _ in ranges]
    for first, end in units:
        # Windows and units are both in order, so those that contain a unit are adjacent.
        holding = range(bisect.bisect_left(ends, end), bisect.bisect_right(firsts, first))
        sides = [sorted((starts[first] - starts[firsts[w]], starts[ends[w]] - starts[end])) for w in holding]
        predicted[holding[sides.index(max(sides))]].append(np.arange(first, end))
    return [
        Window(first, end, np.concatenate(words))
        for (first, end), words in zip(ranges, predicted, strict=True)
        if words
    ]


def _units(sentences: list[np.ndarray], starts: np.ndarray, room: int, step: int) -> list[tuple[int, int]]:
    """Return (first word, end) of every sentence, or of its parts if it has more than `room` tokens."""
    units, first = [], 0
    for sentence in sentences:
        end = first + len(sentence)
        size = room if starts[end] - starts[first] <= room else step
        while first < end:
            cut = min(end, int(np.searchsorted(starts, starts[first] + size, side="right")) - 1)
            units.append((first, cut))
            first = cut
    return units


def _groups(units: list[tuple[int, int]], starts: np.ndarray, step: int) -> list[tuple[int, int]]:
    """Return adjacent units combined, up to `step` tokens; a longer unit is a group by itself."""
    groups: list[tuple[int, int]] = []
    for first, end in units:
        if groups and starts[end] - starts[groups[-1][0]] <= step:
            groups[-1] = (groups[-1][0], end)
        else:
            groups.append((first, end))
    return groups


def _around(first: int, end: int, starts: np.ndarray, room: int) -> tuple[int, int]:
    """Return the widest range of words around first … end - 1 within `room` tokens, evenly on both sides."""
    spare = room - (starts[end] - starts[first])
    before = max(min(starts[first], spare // 2), spare - (starts[-1] - starts[end]))
    low = max(0, starts[first] - before)
    high = min(starts[-1], low + room)
    return int(np.searchsorted(starts, low, side="left")), int(np.searchsorted(starts, high, side="right")) - 1


@dataclasses.dataclass(frozen=True)
class TaggingFeatures(Features):
    """Windows; `labels` is -1 where nothing is predicted, and has class 0 if the examples have no tags."""

    words: list[np.ndarray]
    """int32 [n] for each window: the word of the split, counted through all sentences, for each of its n labels."""


def features(examples: Examples, tokenizer: Tokenizer, options: TaggingOptions) -> TaggingFeatures:
    """Return windows [CLS] words [SEP] of at most `max_length` tokens; every word is predicted in one of them.

    With `options.context` a window continues across the sentences of a document, else it holds one sentence (or part of
    one). A word of which the tokenizer leaves nothing becomes [UNK].
    """
    room = options.max_length - 2
    step = min(options.doc_stride, room // 2)
    pieces = [
        ids[:step] or [tokenizer.unk_id]
        for ids in tokenizer.encode_words([word for sentence in examples.sentences for word in sentence.words])
    ]
    classes = {label: index for index, label in enumerate(examples.labels)}
    tags = np.array(
        [
            classes[tag] if examples.has_answers else 0
            for sentence in examples.sentences
            for tag in sentence.tags or sentence.words
        ],
        np.int32,
    )
    owner = np.repeat(np.arange(len(examples)), [len(sentence.words) for sentence in examples.sentences])
    tags = with_edges(tags, first=np.diff(owner, prepend=-1) > 0, last=np.diff(owner, append=len(examples)) > 0)
    rows = []
    first = 0
    for document in _documents(examples.sentences, options.context):
        lengths = [np.array([len(pieces[first + word]) for word in range(low, high)]) for low, high in document]
        for window in windows(lengths, room, step):
            rows.append(
                _row(
                    pieces[first + window.first : first + window.end],
                    first + window.first,
                    first + window.predicted,
                    tags,
                    tokenizer,
                )
            )
        first += document[-1][1]
    ids, labels, words, types = ([row[part] for row in rows] for part in range(4))
    sentence = owner[[row[0] for row in words]].astype(np.int32)
    return TaggingFeatures(
        input_ids=ids,
        token_type_ids=types,
        labels=labels,
        example=sentence,
        max_length=options.max_length,
        words=words,
        weights=None if (weights := readers.weights_of(examples.sentences)) is None else weights[sentence],
    )


def _documents(sentences: tuple[Sentence, ...], context: bool) -> list[list[tuple[int, int]]]:
    """Return, per document, (first word, end) of its sentences, counted from its beginning."""

    def document(item: tuple[int, Sentence]):
        number, sentence = item
        return sentence.document if context and sentence.document is not None else f"sentence {number} alone"

    result = []
    for _, group in itertools.groupby(enumerate(sentences), key=document):
        ends = np.cumsum([len(sentence.words) for _, sentence in group]).tolist()
        result.append(list(itertools.pairwise([0, *ends])))
    return result


def _row(pieces: list[list[int]], first: int, predicted: np.ndarray, tags: np.ndarray, tokenizer: Tokenizer):
    """Return (input_ids, labels, words, token_type_ids) of the window whose first word is `first`."""
    ids, types = assembled(tokenizer, list(itertools.chain.from_iterable(pieces)))
    positions = text_start(tokenizer) + np.cumsum([0, *map(len, pieces[:-1])])  # of the first pieces
    labels = np.full(len(ids), -1, np.int32)
    labels[positions[predicted - first]] = tags[predicted]
    return ids, labels, predicted.astype(np.int32), types


__all__ = [  # what each family has, and sentences of plain text
    "Examples",
    "features",
    "from_plain",
    "head",
    "load",
    "metrics",
    "prediction_names",
    "score",
    "splits",
    "write_predictions",
]


def predicted_tags(examples: Examples, features: TaggingFeatures, logits: list[np.ndarray]) -> list[list[str]]:
    """Return the label with the highest score for every word. With a CRF, `logits` must mark its best paths."""
    lengths = [len(sentence.words) for sentence in examples.sentences]
    best = np.zeros(sum(lengths), np.int64)
    assert features.labels is not None  # they say where the words are
    for words, labels, scores in zip(features.words, features.labels, logits, strict=True):
        best[words] = scores[labels >= 0].argmax(axis=-1)
    return [[examples.labels[label] for label in sentence] for sentence in np.split(best, np.cumsum(lengths)[:-1])]


def metrics(examples: Examples) -> tuple[str, ...]:
    """Return the metrics by which runs can be compared, the usual one first."""
    return ("f1", "precision", "recall", "accuracy")


def score(examples: Examples, features: TaggingFeatures, logits: list[np.ndarray]) -> dict[str, float]:
    """Return precision, recall and f1 over entities, accuracy over words, and the F1 of each type (f1_PER)."""
    scores = _all_scores(examples, predicted_tags(examples, features, logits))
    kinds = [kind for prefix, kind in map(conll.split, examples.labels) if prefix == "B"]
    # Always the same names, so that runs can be compared: a type that neither occurs nor is predicted has 0.
    return {name: scores[name] for name in ("precision", "recall", "f1", "accuracy")} | {
        f"f1_{kind}": scores.get(f"f1_{kind}", 0.0) for kind in kinds
    }


def _all_scores(examples: Examples, predicted: list[list[str]]) -> dict[str, float]:
    return conll.scores([sentence.need_tags() for sentence in examples.sentences], predicted)


def prediction_names(examples: Examples, split: str) -> list[str]:
    """Return the names of the files that `write_predictions` writes, the main one first."""
    names = ["predictions.tsv" if examples.index else "predictions.conll", *["by_type.json"] * examples.has_answers]
    return [name if split == "dev" else f"{split}_{name}" for name in names]


def write_predictions(
    examples: Examples,
    features: TaggingFeatures,
    logits: list[np.ndarray],
    directory: str | os.PathLike[str],
    split: str,
) -> list[str]:
    """Write predictions.conll, which conlleval reads, and by_type.json; named test_… for splits different from dev.

    A line is word, gold tag (if there is one) and predicted tag in IOB2, separated by spaces, or by tabs if a word
    contains a space. A blank line ends a sentence, and one more a document: the script would count a line -DOCSTART- as
    a word that is tagged right. by_type.json, if there are gold tags, has all of `conll.scores`: precision, recall and
    F1 of every type. Plain texts have predictions.tsv instead: index of the text, first character and end of the word,
    word, tag.
    """
    predicted = predicted_tags(examples, features, logits)
    contents = [_table(examples, predicted) if examples.index else _columns(examples, predicted)]
    if examples.has_answers:
        contents.append(json.dumps(_all_scores(examples, predicted), indent=2, ensure_ascii=False) + "\n")
    written = [os.fspath(epath.Path(directory) / name) for name in prediction_names(examples, split)]
    for file, text in zip(written, contents, strict=True):
        write_atomically(file, text.encode())
    return written


def _table(examples: Examples, predicted: list[list[str]]) -> str:
    """Return TSV with a row for each word of plain texts."""
    rows = ["index\tstart\tend\tword\ttag"]
    for index, sentence, tags in zip(examples.index, examples.sentences, predicted, strict=True):
        rows += [
            f"{index}\t{start}\t{end}\t{word}\t{tag}"
            for (start, end), word, tag in zip(sentence.spans or (), sentence.words, tags, strict=True)
        ]
    return "\n".join(rows) + "\n"


def _columns(examples: Examples, predicted: list[list[str]]) -> str:
    """Return the sentences in the format that conlleval reads, with every line a word that `score` counts."""
    blank = "\t" if any(" " in word for sentence in examples.sentences for word in sentence.words) else " "
    lines, document = [], examples.sentences[0].document
    for sentence, tags in zip(examples.sentences, predicted, strict=True):
        if sentence.document != document:
            document = sentence.document
            lines.append("")
        columns = (sentence.words, sentence.tags, tags) if examples.has_answers else (sentence.words, tags)
        lines += [*(blank.join(fields) for fields in zip(*columns, strict=True)), ""]
    return "\n".join(lines) + "\n"


def head(task: str, labels: tuple[str, ...]) -> HeadConfig:
    """Return a head with a score for every class at every position."""
    return HeadConfig(kind="tagging", labels=labels)
