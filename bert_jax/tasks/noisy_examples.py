"""Examples of a task with spelling errors in their texts, before these are tokenized; the answers stay."""

import dataclasses
from typing import Any

import numpy as np

from bert_jax.config.noise import NoiseConfig
from bert_jax.data.character_edits import edited_text, edited_words
from bert_jax.data.randomness import Stream, bits
from bert_jax.errors import UserError
from bert_jax.tasks import choice, ner
from bert_jax.tasks.ner.conll import Sentence
from bert_jax.tasks.sentence_examples import Sentences


def noisy_examples(examples: Any, noise: NoiseConfig, seed: int = 0) -> Any:
    """Return the examples with errors; which ones is a pure function of the seed and the number of the example.

    The words of sentences with tags keep their number, so each keeps its tag.

    Args:
      examples: of one split, of the family's own type.
      noise: the errors; with a rate of 0 the examples stay as they are.
      seed: of the errors.

    Raises:
      UserError: answers are positions in the text (SQuAD), which errors would move.
    """
    if noise.rate == 0:
        return examples
    keys = bits(seed, Stream.EDITED_TEXT, np.arange(len(examples)))
    if isinstance(examples, Sentences):
        second = examples.second and _texts(examples.second, bits(keys, Stream.EDITED_TEXT, 1), noise)
        return dataclasses.replace(examples, first=_texts(examples.first, keys, noise), second=second)
    if isinstance(examples, ner.Examples):
        pairs = zip(examples.sentences, keys, strict=True)
        return dataclasses.replace(examples, sentences=tuple(_sentence(*pair, noise) for pair in pairs))
    if isinstance(examples, choice.Examples):
        pairs = zip(examples.questions, keys, strict=True)
        return dataclasses.replace(examples, questions=tuple(_question(*pair, noise) for pair in pairs))
    raise UserError(
        f"noise.rate={noise.rate} would move the answers of {examples.task}, which are positions in the text; leave it "
        "at 0, or choose a task whose answers are classes, numbers, choices or tags"
    )


def _texts(texts: list[str], keys: np.ndarray, noise: NoiseConfig) -> list[str]:
    return [edited_text(text, key, noise) for text, key in zip(texts, keys, strict=True)]


def _sentence(sentence: Sentence, key: np.ndarray, noise: NoiseConfig) -> Sentence:
    keys = bits(key, Stream.EDITED_WORD, np.arange(len(sentence.words)))
    return dataclasses.replace(sentence, words=tuple(edited_words(list(sentence.words), keys, noise)))


def _question(question: choice.Question, key: np.ndarray, noise: NoiseConfig) -> choice.Question:
    texts = [question.context, question.stem, *question.choices]
    context, stem, *choices = _texts(texts, bits(key, Stream.EDITED_TEXT, 2 + np.arange(len(texts))), noise)
    return question._replace(context=context, stem=stem, choices=tuple(choices))
