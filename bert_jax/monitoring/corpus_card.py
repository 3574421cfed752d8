"""What a token store holds, in figures: counts, lengths, vocabulary, duplicates, sources, samples."""

import dataclasses
from typing import Any

import numpy as np

from bert_jax.config.json_form import to_dict
from bert_jax.console.progress_bar import progress_bar
from bert_jax.data.store.store import Store
from bert_jax.monitoring.frequent_sentences import FrequentSentence, frequent_sentences
from bert_jax.monitoring.language_shares import LanguageShare, language_shares
from bert_jax.monitoring.token_counts import TokenCounts, count_tokens

SHARES = (1, 10, 25, 50, 75, 90, 99)
"""Percentages of the lengths that are shown."""
SHOWN_TOKENS = 5_000_000  # from here on reading them takes seconds
COMMON = (100, 1_000, 10_000)
MOST_CHARACTERS = 600  # of a sample
_BLOCK = 1 << 20  # sentences whose lengths are counted at once


@dataclasses.dataclass(frozen=True)
class CorpusCard:
    """What `bert-jax describe` says of one store."""

    path: str
    fingerprint: str
    counts: dict[str, int]
    """Documents, sentences, tokens, bytes of text and what else the manifest counts."""
    document_lengths: np.ndarray
    """float64 [7]: tokens of a document, at each of SHARES."""
    sentence_lengths: np.ndarray
    """float64 [7]: tokens of a sentence."""
    length_edges: np.ndarray
    """int64 [E + 1]: edges of the two histograms, powers of the square root of 2."""
    document_histogram: np.ndarray
    """int64 [E]: documents per length in tokens."""
    sentence_histogram: np.ndarray
    """int64 [E]: sentences per length in tokens."""
    used_entries: int
    """Entries of the vocabulary that occur."""
    rare_entries: int
    """Entries of the vocabulary that occur, but fewer than 100 times."""
    token_shares: dict[int, float]
    """Share of the tokens that are among the 100, 1,000 and 10,000 most frequent entries, where there are more."""
    entropy: float
    """Entropy of the token frequencies, in nats: the loss of a model that knows nothing else."""
    frequencies: np.ndarray
    """int64 [V]: how often each entry occurs, the most frequent first."""
    duplicated_documents: int
    """Documents that repeat an earlier one, token for token."""
    duplicated_tokens: int
    """Tokens in them."""
    frequent: list[FrequentSentence]
    languages: list[LanguageShare] | None
    """Languages of documents drawn at random; None if the library that tells them is not installed."""
    cleaning: list[dict[str, Any]]
    """As in manifest.json: what each step of the cleaning removed, with samples."""
    removed: list[dict[str, Any]]
    """As in manifest.json: what the sources held that is no text."""
    sources: list[dict[str, Any]]
    """As in manifest.json: name, format, bytes, revision, licence, SHA-256."""
    files: list[dict[str, Any]]
    """As in manifest.json: name and SHA-256."""
    samples: list[str]
    """Beginnings of documents drawn at random."""


def corpus_card(store: Store, path: str, samples: int = 8, seed: int = 0) -> CorpusCard:
    """Read a store twice and return what it holds; memory is bounded but for 16 bytes per document.

    Args:
      path: the store as it was named.
      samples: number of documents to show.
      seed: of their choice.
    """
    visible = store.num_tokens >= SHOWN_TOKENS
    with progress_bar("reading tokens", store.num_tokens, visible=visible) as advance_to:
        counts = count_tokens(store, advance_to)
    with progress_bar("counting sentences", 2 * store.num_sentences, visible=visible) as advance_to:
        frequent = frequent_sentences(store, advance_to=advance_to)
    documents = np.diff(store.document_tokens)
    edges = length_edges(int(documents.max(initial=1)))
    sentences = _sentence_lengths(store)
    frequencies = np.sort(counts.ids)[::-1]
    repeats, total = _repeats(counts), int(frequencies.sum())
    common = [number for number in COMMON if number < store.vocab_size]
    return CorpusCard(
        path=path,
        fingerprint=store.fingerprint,
        counts=to_dict(store.manifest.counts) | {"vocabulary": store.vocab_size},
        document_lengths=np.percentile(documents, SHARES) if len(documents) else np.zeros(len(SHARES)),
        sentence_lengths=_percentiles(sentences),
        length_edges=edges,
        document_histogram=np.histogram(documents, edges)[0],
        sentence_histogram=np.add.reduceat(np.pad(sentences, (0, max(0, int(edges[-1]) - len(sentences)))), edges[:-1]),
        used_entries=int((counts.ids > 0).sum()),
        rare_entries=int(((counts.ids > 0) & (counts.ids < 100)).sum()),
        token_shares={number: float(frequencies[:number].sum() / max(1, total)) for number in common},
        entropy=counts.entropy(),
        frequencies=frequencies,
        duplicated_documents=int(repeats.sum()),
        duplicated_tokens=int(documents[repeats].sum()),
        frequent=frequent,
        languages=language_shares(store, seed),
        cleaning=[to_dict(step) for step in store.manifest.cleaning],
        removed=[to_dict(kind) for kind in store.manifest.removed],
        sources=[to_dict(source) for source in store.manifest.sources],
        files=[to_dict(file) for file in store.manifest.files],
        samples=_samples(store, samples, seed),
    )


def length_edges(longest: int) -> np.ndarray:
    """Return edges from 1 to past `longest`, each about √2 times the one before."""
    edges = [1]
    while edges[-1] <= longest:
        edges.append(max(edges[-1] + 1, round(edges[-1] * 2**0.5)))
    return np.array(edges, np.int64)


def _sentence_lengths(store: Store) -> np.ndarray:
    """Return int64 [longest + 1]: how many sentences have each number of tokens."""
    found = np.zeros(1, np.int64)
    for first in range(0, store.num_sentences, _BLOCK):
        last = min(first + _BLOCK, store.num_sentences)
        counts = np.bincount(np.diff(store.sentence_starts(np.arange(first, last + 1))))
        size = max(len(found), len(counts))
        found = np.pad(found, (0, size - len(found))) + np.pad(counts, (0, size - len(counts)))
    return found


def _percentiles(counts: np.ndarray) -> np.ndarray:
    """Return the least lengths that SHARES of all do not exceed, float64 [7], from how often each length occurs."""
    shares = np.cumsum(counts) / max(1, counts.sum())
    return np.array([np.searchsorted(shares, share / 100) for share in SHARES], np.float64)


def _repeats(counts: TokenCounts) -> np.ndarray:
    """Return bool [num_documents]: whether an earlier document has the same tokens."""
    repeats = np.ones(len(counts.hashes), bool)
    repeats[np.unique(counts.hashes, return_index=True)[1]] = False
    return repeats


def _samples(store: Store, number: int, seed: int) -> list[str]:
    chosen = np.random.default_rng(seed).choice(store.num_documents, min(number, store.num_documents), replace=False)
    tokenizer, texts = store.tokenizer(), []
    for document in np.sort(chosen).tolist():
        begin, end = store.document_tokens[document : document + 2].tolist()
        text = tokenizer.decode(store.tokens(np.arange(begin, min(end, begin + MOST_CHARACTERS))).tolist())
        texts.append(text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS] + "…")
    return texts
