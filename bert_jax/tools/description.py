"""`bert-jax describe`: one token store, or two side by side, in one HTML file and as JSON.

The card of a store has counts, lengths, vocabulary, duplicates, frequent sentences, languages, sources and samples.
One pass over the tokens counts each id and hashes each document; frequent sentences take two passes with bounded
memory; languages are detected on documents drawn at random.
"""

import collections
import dataclasses
import importlib.util
import json
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bert_jax.config.options import to_dict
from bert_jax.config.pretraining import DescribeConfig
from bert_jax.corpus.rules import READ_CHARACTERS, language_of
from bert_jax.data.store import Store, open_store
from bert_jax.errors import UserError, need_extra
from bert_jax.files import write_atomically
from bert_jax.progress import progress_bar
from bert_jax.tools.report import COLOURS, Table, figure, page

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


BLOCK_TOKENS = 1 << 22
"""How many tokens are read at once."""
_ODD = tuple(np.uint64(factor) for factor in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xD6E8FEB86659FD93))


@dataclasses.dataclass(frozen=True)
class TokenCounts:
    ids: np.ndarray
    """int64: how often each id occurs, also ids that the vocabulary does not have."""
    hashes: np.ndarray
    """uint64 [num_documents]: equal for documents of the same tokens, and hardly ever for others."""

    def entropy(self) -> float:
        """Return the entropy of the ids in nats: the loss of predicting them from their frequencies alone."""
        shares = self.ids[self.ids > 0] / self.ids.sum()
        return float(-(shares * np.log(shares)).sum())


def count_tokens(store: Store, advance_to: Callable[[int], object] = lambda tokens: None) -> TokenCounts:
    """Read every token of `store` once; `advance_to` is called with the number read so far."""
    ids, hashes, done = np.zeros(store.vocab_size, np.int64), [], 0
    for shard, tokens in enumerate(store.arrays["tokens"]):
        sentences = np.asarray(store.arrays["sentences"][shard]).astype(np.int64)
        starts = np.append(sentences[np.asarray(store.arrays["documents"][shard]).astype(np.int64)], len(tokens))
        first = 0
        while first < len(starts) - 1:
            last = block_end(starts, first)
            sums = np.zeros(last - first, np.uint64)
            for at in range(starts[first], starts[last], BLOCK_TOKENS):  # one document alone may be longer
                block = np.asarray(tokens[at : min(at + BLOCK_TOKENS, starts[last])])
                found = np.bincount(block, minlength=len(ids))
                ids = np.pad(ids, (0, len(found) - len(ids))) + found
                sums += text_hashes(block, np.clip(starts[first : last + 1] - at, 0, len(block)), at - starts[first])
                done += len(block)
                advance_to(done)
            hashes.append(sums)
            first = last
    return TokenCounts(ids, np.concatenate(hashes))


def block_end(starts: np.ndarray, first: int) -> int:
    """Return how far to read from text `first`: as many whole texts as BLOCK_TOKENS hold, and at least one."""
    return max(first + 1, int(np.searchsorted(starts, starts[first] + BLOCK_TOKENS, side="right")) - 1)


def text_hashes(tokens: np.ndarray, starts: np.ndarray, before: int = 0) -> np.ndarray:
    """Return a hash, uint64, of each of the consecutive texts tokens[starts[i]:starts[i + 1]].

    The hash of a text is the sum of those of its parts, where `before` is the number of its tokens before the part.
    """
    places = np.arange(before, before + len(tokens)) - np.repeat(starts[:-1], np.diff(starts))
    mixed = (tokens.astype(np.uint64) + np.uint64(1)) * _ODD[0] + places.astype(np.uint64) * _ODD[1]
    mixed = (mixed ^ mixed >> np.uint64(29)) * _ODD[2]
    return np.add.reduceat(mixed ^ mixed >> np.uint64(32), starts[:-1])


_STARTS_AT_ONCE = 1 << 17  # starts of sentences at once
_BUCKETS = 1 << 22


@dataclasses.dataclass(frozen=True)
class FrequentSentence:
    """A sentence and how often it occurs in the store."""

    text: str
    count: int
    tokens: int


def frequent_sentences(
    store: Store, most: int = 20, advance_to: Callable[[int], object] = lambda sentences: None
) -> list[FrequentSentence]:
    """Return up to `most` sentences that occur more than once, the most frequent first.

    The first pass counts hashes in 2²² buckets; the second counts the sentences of the fullest buckets. A sentence can
    be missed only where as many other buckets are fuller than its own.

    `advance_to`: called with the number of sentences read so far, out of twice as many as the store has.
    """
    buckets, done = np.zeros(_BUCKETS, np.int64), 0
    for _, found in _hashed(store):
        buckets += np.bincount((found % np.uint64(_BUCKETS)).astype(np.int64), minlength=_BUCKETS)
        advance_to(done := done + len(found))
    fullest = np.flatnonzero(buckets > 1)
    fullest = fullest[np.argsort(buckets[fullest], kind="stable")[::-1][: 4 * most]]
    counts: collections.Counter[int] = collections.Counter()
    first: dict[int, int] = {}
    for start, found in _hashed(store):
        for place in np.flatnonzero(np.isin(found % np.uint64(_BUCKETS), fullest.astype(np.uint64))).tolist():
            key = int(found[place])
            counts[key] += 1
            first.setdefault(key, start + place)
        advance_to(done := done + len(found))
    tokenizer, shown = store.tokenizer(), []
    for key, count in counts.most_common(most):
        if count > 1:
            begin, end = store.sentence_starts(np.array([first[key], first[key] + 1])).tolist()
            ids = store.tokens(np.arange(begin, end))
            shown.append(FrequentSentence(tokenizer.decode(ids.tolist()), count, len(ids)))
    return shown


def _hashed(store: Store) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the number of the first sentence of each block, and a hash of each of its sentences."""
    for first in range(0, store.num_sentences, _STARTS_AT_ONCE):
        starts = store.sentence_starts(np.arange(first, min(first + _STARTS_AT_ONCE, store.num_sentences) + 1))
        begin = 0
        while begin < len(starts) - 1:
            end = block_end(starts, begin)
            tokens = store.tokens(np.arange(starts[begin], starts[end]))
            yield first + begin, text_hashes(tokens, starts[begin : end + 1] - starts[begin])
            begin = end


SHARES = (1, 10, 25, 50, 75, 90, 99)
"""Percentages of the lengths that are shown."""
SHOWN_TOKENS = 5_000_000  # from here on reading them takes seconds
COMMON = (100, 1_000, 10_000)
MOST_CHARACTERS = 600  # of a sample
_SENTENCES_AT_ONCE = 1 << 20  # sentences whose lengths are counted at once


@dataclasses.dataclass(frozen=True)
class CorpusCard:
    """Everything that `bert-jax describe` reports about one store."""

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
    """Entropy of the word frequencies, in nats: the loss of a model that knows nothing else."""
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
    """As in manifest.json: contents of the sources that are not text."""
    sources: list[dict[str, Any]]
    """As in manifest.json: name, format, bytes, revision, licence, SHA-256."""
    files: list[dict[str, Any]]
    """As in manifest.json: name and SHA-256."""
    samples: list[str]
    """Beginnings of documents drawn at random."""


def corpus_card(store: Store, path: str, samples: int = 8, seed: int = 0) -> CorpusCard:
    """Read a store twice and return what it holds; memory is bounded but for 16 bytes per document.

    `samples`: number of documents to show.
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
    repeated, total = repeats(counts), int(frequencies.sum())
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
        duplicated_documents=int(repeated.sum()),
        duplicated_tokens=int(documents[repeated].sum()),
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
    for first in range(0, store.num_sentences, _SENTENCES_AT_ONCE):
        last = min(first + _SENTENCES_AT_ONCE, store.num_sentences)
        counts = np.bincount(np.diff(store.sentence_starts(np.arange(first, last + 1))))
        size = max(len(found), len(counts))
        found = np.pad(found, (0, size - len(found))) + np.pad(counts, (0, size - len(counts)))
    return found


def _percentiles(counts: np.ndarray) -> np.ndarray:
    """Return the least lengths that SHARES of all do not exceed, float64 [7], from how often each length occurs."""
    shares = np.cumsum(counts) / max(1, counts.sum())
    return np.array([np.searchsorted(shares, share / 100) for share in SHARES], np.float64)


def repeats(counts: TokenCounts) -> np.ndarray:
    """Return bool [num_documents]: whether an earlier document has the same tokens."""
    found = np.ones(len(counts.hashes), bool)
    found[np.unique(counts.hashes, return_index=True)[1]] = False
    return found


def _samples(store: Store, number: int, seed: int) -> list[str]:
    chosen = np.random.default_rng(seed).choice(store.num_documents, min(number, store.num_documents), replace=False)
    tokenizer, texts = store.tokenizer(), []
    for document in np.sort(chosen).tolist():
        begin, end = store.document_tokens[document : document + 2].tolist()
        text = tokenizer.decode(store.tokens(np.arange(begin, min(end, begin + MOST_CHARACTERS))).tolist())
        texts.append(text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS] + "…")
    return texts


MOST_RANKS = 400  # points of the curve of frequencies


def run_describe(paths: list[str], config: DescribeConfig) -> list[CorpusCard]:
    """Write the card of each store to config.output, and the same figures as JSON next to it.

    Args:
      paths: one token store, or two to compare.

    Raises:
      UserError: there is no such store, there are more than two, plotly is not installed, or a file cannot be written.
    """
    need_extra("plotly", "report", "bert-jax describe")
    output = pathlib.PurePath(config.output)
    if output.suffix != ".html":
        raise UserError(f"output={config.output} must end in .html; the figures go next to it, as .json")
    if len(paths) > 2:
        raise UserError(f"{len(paths)} stores are too many for two columns; give one or two")
    if config.samples < 0:
        raise UserError(f"samples={config.samples} must not be negative")
    stores = [open_store(path, config.cache) for path in paths]
    cards = [corpus_card(store, path, config.samples, config.seed) for store, path in zip(stores, paths, strict=True)]
    values = json.dumps(
        [dataclasses.asdict(card) for card in cards], indent=1, ensure_ascii=False, default=lambda array: array.tolist()
    )
    content = page(" and ".join(paths), figures(cards), tables(cards), time.time(), heading="Lengths and frequencies")
    beside = config.output.removesuffix(".html") + ".json"
    for file, text in ((config.output, content), (beside, values + "\n")):
        try:
            write_atomically(file, text.encode())
        except OSError as error:
            raise UserError(f"cannot write {file}: {error.strerror or error}") from None
    print(f"{config.output}: {len(cards)} store{'s' * (len(cards) > 1)}; {beside} has the figures")
    return cards


def tables(cards: list[CorpusCard]) -> list[Table]:
    """Return the tables of the page: figures side by side, then sentences, sources and samples of each store."""
    names = [card.path for card in cards]
    common = sorted({number for card in cards for number in card.token_shares})
    facts = [_facts(card, common) for card in cards]
    rows = [[name, *(each[name] for each in facts)] for name in facts[0]]
    percentiles = [
        [f"{what}, {share} %", *(f"{values[place]:,.0f}" for values in lengths)]
        for what, lengths in (
            ("tokens of a document", [card.document_lengths for card in cards]),
            ("tokens of a sentence", [card.sentence_lengths for card in cards]),
        )
        for place, share in enumerate(SHARES)
    ]
    made = [Table("What is in it", ["", *names], rows), Table("Lengths: percentiles", ["", *names], percentiles)]
    for card in cards:
        of_it = f" of {card.path}" if len(cards) > 1 else ""
        made += [_languages(card, of_it), *_left_out(card, of_it)]
        frequent = [[f"{each.count:,}", f"{each.tokens:,}", each.text] for each in card.frequent]
        sources = [[str(value) for value in source.values()] for source in card.sources]
        files = [[file["name"], file["sha256"]] for file in card.files]
        nothing = "No sentence occurs twice."
        made += [
            Table(f"Most frequent sentences{of_it}", ["times", "tokens", "sentence"], frequent, nothing),
            Table(f"Documents drawn at random{of_it}", ["beginning"], [[text] for text in card.samples]),
            Table(
                f"Sources{of_it}",
                list(card.sources[0]) if card.sources else [],
                sources,
                "The store does not say what it was made from.",
                folded=(Table("Files and their SHA-256", ["file", "SHA-256"], files),),
            ),
        ]
    return made


def _languages(card: CorpusCard, of_it: str) -> Table:
    found = card.languages or []
    documents, tokens = sum(each.documents for each in found), sum(each.tokens for each in found)
    rows = [
        [each.language, f"{each.documents / documents:.1%}", f"{each.tokens / max(1, tokens):.1%}"] for each in found
    ]
    title = f"Languages of {documents:,} documents drawn at random{of_it}" if found else f"Languages{of_it}"
    nothing = "They are identified by py3langid: pip install 'bert_jax[corpora]'"
    return Table(title, ["language", "documents", "tokens in them"], rows, nothing)


def _left_out(card: CorpusCard, of_it: str) -> list[Table]:
    """Return what the cleaning removed and what was not text, for a store that lacks parts of its sources."""
    steps = [
        [step["step"], *(f"{step[key]:,}" for key in ("documents", "paragraphs", "characters"))]
        for step in card.cleaning
    ]
    samples = [[step["step"], sample] for step in card.cleaning for sample in step["samples"]]
    kinds = [[kind["source"], kind["what"], f"{kind['number']:,}"] for kind in card.removed]
    head = ["step", "documents", "paragraphs", "characters"]
    shown = Table("Samples", ["step", "beginning"], samples)
    cleaning = Table(f"Removed and changed by the cleaning{of_it}", head, steps, folded=(shown,))
    no_text = Table(f"Left out as no text{of_it}", ["source", "what", "number"], kinds)
    return [table for table in (cleaning, no_text) if table.rows]


def figures(cards: list[CorpusCard]) -> dict[str, dict[str, Any]]:
    """Return figures of Plotly: the distribution of lengths, and frequencies by rank."""
    documents, sentences, ranks = [], [], []
    for number, card in enumerate(cards):
        line = {"mode": "lines", "name": card.path, "line": {"color": COLOURS[number]}}
        places = [int(edge) for edge in card.length_edges[:-1]]
        for traces, histogram in ((documents, card.document_histogram), (sentences, card.sentence_histogram)):
            traces.append({**line, "x": places, "y": (histogram / max(1, histogram.sum())).tolist()})
        used = card.frequencies[card.frequencies > 0]
        chosen = sorted({round(max(1, len(used)) ** (place / MOST_RANKS)) for place in range(MOST_RANKS + 1)})
        share = (used / max(1, used.sum())).tolist()
        ranks.append({**line, "x": chosen, "y": [share[rank - 1] for rank in chosen if share]})
    return {
        "Documents by tokens": _figure(documents, "tokens, from", {"tickformat": ".1%"}),
        "Sentences by tokens": _figure(sentences, "tokens, from", {"tickformat": ".1%"}),
        "Share of the tokens by rank of the entry": _figure(ranks, "rank", {"type": "log"}),
    }


def _figure(traces: list[dict[str, Any]], title: str, scale: dict[str, Any]) -> dict[str, Any]:
    return figure(traces, {"title": {"text": title}, "type": "log"}, scale)


def _facts(card: CorpusCard, common: list[int]) -> dict[str, str]:
    """Return the figures of a store in words, in reading order, with its shares of so many most frequent entries."""
    counts, share = card.counts, lambda part, whole: f"{part:,} ({part / max(1, whole):.3%})"
    return {
        "fingerprint": card.fingerprint,
        "documents": f"{counts['documents']:,}",
        "sentences": f"{counts['sentences']:,}",
        "tokens": f"{counts['tokens']:,}",
        "bytes of text": f"{counts['text_bytes']:,}",
        "unknown tokens": share(counts["unknown_tokens"], counts["tokens"]),
        "bytes that were not UTF-8": f"{counts['replaced_characters']:,}",
        "documents that repeat an earlier one": share(card.duplicated_documents, counts["documents"]),
        "tokens in them": share(card.duplicated_tokens, counts["tokens"]),
        "vocabulary entries that occur": share(card.used_entries, counts["vocabulary"]),
        "vocabulary entries that occur fewer than 100 times": share(card.rare_entries, counts["vocabulary"]),
        **{
            # a vocabulary that has no more entries than that holds all
            f"tokens among the {number:,} most frequent entries": f"{card.token_shares.get(number, 1.0):.2%}"
            for number in common
        },
        "loss of word frequencies alone": f"{card.entropy:.3f} nats",
    }
