"""Tagged sentences as windows of tokens; the tag of a word is predicted at its first piece."""

import dataclasses
import itertools

import numpy as np

from bert_jax.config.task_options import TaskOptions
from bert_jax.data.sequences.features import Features
from bert_jax.models.crf import with_edges
from bert_jax.tasks.ner.conll import Sentence
from bert_jax.tasks.ner.tagged_sentences import Examples
from bert_jax.tasks.ner.word_windows import windows
from bert_jax.tokenization.segments import assembled, text_start
from bert_jax.tokenization.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class TaggingFeatures(Features):
    """Windows; `labels` is -1 where nothing is predicted, and has class 0 if the examples have no tags."""

    words: list[np.ndarray]
    """int32 [n] for each window: the word of the split, counted through all sentences, for each of its n labels."""


def features(examples: Examples, tokenizer: Tokenizer, options: TaskOptions) -> TaggingFeatures:
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
