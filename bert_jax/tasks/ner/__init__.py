"""Tagging of words: named entities, in documents or single sentences, and similarly parts of speech and the like.

The tag of a word is predicted at its first piece (Devlin et al. 2018, section 5.3).
"""

import json
import os

import numpy as np
from etils import epath

from bert_jax.config import HeadConfig
from bert_jax.files import write_atomically
from bert_jax.tasks.ner import conll, entities
from bert_jax.tasks.ner.tagged_sentences import Examples, from_plain, load, splits
from bert_jax.tasks.ner.tagging_features import TaggingFeatures, features

__all__ = [  # what each family has, and sentences of plain text
    "MAIN_METRIC",
    "Examples",
    "features",
    "from_plain",
    "head",
    "load",
    "prediction_names",
    "score",
    "splits",
    "write_predictions",
]

MAIN_METRIC = {"ner": "f1"}


def predicted_tags(examples: Examples, features: TaggingFeatures, logits: list[np.ndarray]) -> list[list[str]]:
    """Return the label with the highest score for every word. With a CRF, `logits` must mark its best paths."""
    lengths = [len(sentence.words) for sentence in examples.sentences]
    best = np.zeros(sum(lengths), np.int64)
    assert features.labels is not None  # they say where the words are
    for words, labels, scores in zip(features.words, features.labels, logits, strict=True):
        best[words] = scores[labels >= 0].argmax(axis=-1)
    return [[examples.labels[label] for label in sentence] for sentence in np.split(best, np.cumsum(lengths)[:-1])]


def score(examples: Examples, features: TaggingFeatures, logits: list[np.ndarray]) -> dict[str, float]:
    """Return precision, recall and f1 over entities, accuracy over words, and the F1 of each type (f1_PER)."""
    scores = _all_scores(examples, predicted_tags(examples, features, logits))
    kinds = [kind for prefix, kind in map(entities.split, examples.labels) if prefix == "B"]
    # Always the same names, so that runs can be compared: a type that neither occurs nor is predicted has 0.
    return {name: scores[name] for name in ("precision", "recall", "f1", "accuracy")} | {
        f"f1_{kind}": scores.get(f"f1_{kind}", 0.0) for kind in kinds
    }


def _all_scores(examples: Examples, predicted: list[list[str]]) -> dict[str, float]:
    return entities.scores([sentence.need_tags() for sentence in examples.sentences], predicted)


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
    contains a space. by_type.json, if there are gold tags, has all of `entities.scores`: precision, recall and F1 of
    every type. Plain texts have predictions.tsv instead: index of the text, first character and end of the word, word,
    tag.
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
    """Return the sentences in the format that conlleval reads."""
    blank = "\t" if any(" " in word for sentence in examples.sentences for word in sentence.words) else " "
    lines, document = [], None
    for sentence, tags in zip(examples.sentences, predicted, strict=True):
        if sentence.document != document:
            document = sentence.document
            lines += [blank.join([conll.DOCUMENT_START, *(["O"] * (1 + examples.has_answers))]), ""]
        columns = (sentence.words, sentence.tags, tags) if examples.has_answers else (sentence.words, tags)
        lines += [*(blank.join(fields) for fields in zip(*columns, strict=True)), ""]
    return "\n".join(lines) + "\n"


def head(task: str, labels: tuple[str, ...]) -> HeadConfig:
    """Return a head with a score for every class at every position."""
    return HeadConfig(kind="tagging", labels=labels)
