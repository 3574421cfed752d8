"""Byte-level BPEs of a few hundred pieces, learned from the small corpus."""

import dataclasses
import functools

import small_corpus

from bert_jax.data.preparation.vocabularies import learn_modernbert
from bert_jax.tokenization.byte_level import learn_byte_level
from bert_jax.tokenization.tokenizer import Tokenizer


@functools.cache
def byte_level(spaced: bool = True) -> Tokenizer:
    """`spaced` False: as RoBERTa's own, which read the beginning of a text as if no space preceded it."""
    return Tokenizer(dataclasses.replace(learn_byte_level(_words(), 400), spaced=spaced))


@functools.cache
def modernbert() -> Tokenizer:
    """ModernBERT's form, whose text is composed first; some words are decomposed in the corpus."""
    return learn_modernbert([*_words(), *["Cafe\u0301", "na\u00efve"] * 20], 400)


def _words() -> list[str]:
    return [word for document in small_corpus.documents(60) for word in document.split()]
