"""A byte-level BPE of a few hundred pieces, learned from the small corpus."""

import functools

import small_corpus

from bert_jax.tokenization.byte_level import ByteLevelTokenizer, learn_byte_level


@functools.cache
def byte_level(spaced: bool = True) -> ByteLevelTokenizer:
    """`spaced` False: as RoBERTa's own, which read the beginning of a text as if no space preceded it."""
    words = [word for document in small_corpus.documents(60) for word in document.split()]
    learned = learn_byte_level(words, 400)
    return learned if spaced else ByteLevelTokenizer(learned.tokens, learned.merges, spaced=False)
