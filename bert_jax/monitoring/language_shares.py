"""The languages of a token store, told from documents drawn at random."""

import collections
import dataclasses
import importlib.util

import numpy as np

from bert_jax.data.cleaning.languages import READ_CHARACTERS, language_of
from bert_jax.data.store.store import Store

DRAWN_DOCUMENTS = 1_000
"""Of so many, the share of a language has a standard error of at most 1.6 percentage points."""


@dataclasses.dataclass(frozen=True)
class LanguageShare:
    """How much of the documents drawn is in one language."""

    language: str
    """Its code, of two or three letters; "und" for documents without a letter."""
    documents: int
    tokens: int
    """Tokens in them."""


def language_shares(store: Store, seed: int = 0) -> list[LanguageShare] | None:
    """Return the languages of up to DRAWN_DOCUMENTS documents, the most frequent first; None without py3langid.

    The text is as the vocabulary spells it: lowercased and without accents if the vocabulary is.
    """
    if importlib.util.find_spec("py3langid") is None:
        return None
    number = min(DRAWN_DOCUMENTS, store.num_documents)
    drawn = np.random.default_rng((seed, 1)).choice(store.num_documents, number, replace=False)
    tokenizer, documents, tokens = store.tokenizer(), collections.Counter[str](), collections.Counter[str]()
    for document in np.sort(drawn).tolist():
        begin, end = store.document_tokens[document : document + 2].tolist()
        ids = store.tokens(np.arange(begin, min(end, begin + READ_CHARACTERS)))
        language = language_of([tokenizer.decode(ids.tolist())])
        documents[language] += 1
        tokens[language] += end - begin
    return [LanguageShare(language, count, tokens[language]) for language, count in documents.most_common()]
