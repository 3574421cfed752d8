"""The sentences of a split with their tags: from CoNLL files, TFDS or plain text."""

import dataclasses
from collections.abc import Sequence

from bert_jax.config.task_options import TaskDataConfig
from bert_jax.errors import UserError
from bert_jax.tasks import plain_text, task_files, tfds_examples
from bert_jax.tasks.ner import conll, entities
from bert_jax.tasks.ner.conll import Sentence
from bert_jax.tasks.plain_text import PlainText

FILES = {
    "train": ("train.txt", "train.conll", "train.conllu", "eng.train"),
    "dev": ("dev.txt", "valid.txt", "dev.conll", "valid.conll", "dev.conllu", "eng.testa"),
    "test": ("test.txt", "test.conll", "test.conllu", "eng.testb"),
}
"""Names that a split may have in `data.dir`; the last ones are the original's."""
_TFDS_TAGS = ("ner", "tags", "ner_tags")


@dataclasses.dataclass(frozen=True)
class Examples:
    """The sentences of one split; their tags are in IOB2."""

    sentences: tuple[Sentence, ...]
    labels: tuple[str, ...]
    has_answers: bool
    index: tuple[str, ...] = ()
    """Name of each plain text in a file of predictions, if the sentences are plain texts."""

    def __len__(self) -> int:
        return len(self.sentences)


def splits(task: str, data: TaskDataConfig) -> tuple[str, ...]:
    """Return those of train, dev and test that the data has."""
    return task_files.splits(data, FILES)


def load(task: str, data: TaskDataConfig, split: str, labels: tuple[str, ...] | None = None) -> Examples:
    """Read split "train", "dev" or "test" from a CoNLL file or TFDS.

    Args:
      labels: the classes; None: O, then B- and I- of every type that occurs (plain tags: those that occur, sorted).

    Raises:
      UserError: see `conll.read` and `conll.in_iob2`; or there are no tags to train on, or a tag is not among `labels`.
    """
    if data.tfds:
        sentences = _read_tfds(data, split)
    else:
        sentences = conll.read(task_files.find(data, split, FILES[split]), data, to_predict=split == "test")
    has_answers = all(sentence.tags is not None for sentence in sentences)
    if has_answers:
        sentences = conll.in_iob2(sentences, data.scheme)
    elif split == "train" or labels is None:
        raise UserError(
            f"{sentences[0].places[0]}: a word without a tag; training needs a column of tags as well as one of words"
        )
    labels = _classes(sentences) if labels is None else tuple(labels)
    for sentence in sentences if has_answers else ():
        for tag, place in zip(sentence.need_tags(), sentence.places, strict=True):
            if tag not in labels:
                raise UserError(f"{place}: the tag {tag} is not among those of the training data: {', '.join(labels)}")
    return Examples(tuple(sentences), labels, has_answers)


def from_plain(texts: Sequence[PlainText], labels: tuple[str, ...]) -> Examples:
    """Return each plain text as one unlabelled sentence of the words that BERT splits it into.

    Raises:
      UserError: a text has no words (names the line).
    """
    sentences = []
    for where, text, *_ in texts:
        if not (spans := plain_text.words(text)):
            raise UserError(f"{where}: {text!r:.80} holds no words")
        words = tuple(text[start:end] for start, end in spans)
        sentences.append(Sentence(words, None, None, (where,) * len(spans), tuple(spans)))
    return Examples(tuple(sentences), tuple(labels), has_answers=False, index=tuple(text.index for text in texts))


def _classes(sentences: list[Sentence]) -> tuple[str, ...]:
    tags = {tag for sentence in sentences for tag in sentence.need_tags()}
    types = sorted({kind for prefix, kind in map(entities.split, tags) if prefix in ("B", "I")})
    if not types:
        return tuple(sorted(tags))
    return (entities.OUTSIDE, *(f"{prefix}-{kind}" for kind in types for prefix in "BI"))


def _read_tfds(data: TaskDataConfig, split: str) -> list[Sentence]:
    source = f"{data.tfds}, split {tfds_examples.split_name(data, split)}"
    sentences = []
    for index, example in enumerate(
        tfds_examples.examples(data.tfds, tfds_examples.split_name(data, split), data.tfds_dir)
    ):
        key = data.label_column or next((name for name in _TFDS_TAGS if name in example), "")
        for name in ("tokens", key):
            if name not in example:
                raise UserError(
                    f"{source}: no field {name or ' or '.join(_TFDS_TAGS)!r} among {', '.join(sorted(example))}; "
                    "give the one that holds the tags with --data.label_column=NAME"
                )
        words, tags = example["tokens"], example[key]
        if not words or len(words) != len(tags):
            raise UserError(
                f"{source}, example {index}: {len(words)} words and {len(tags)} tags; each word needs one, and "
                "each sentence a word"
            )
        places = tuple(f"{source}, example {index}, word {word}" for word in range(len(words)))
        sentences.append(Sentence(tuple(words), None if None in tags else tuple(tags), None, places))
    if not sentences:
        raise UserError(f"{source} holds no sentence")
    return sentences
