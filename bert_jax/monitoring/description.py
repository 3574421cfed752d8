"""`bert-jax describe`: one token store, or two side by side, in one HTML file and as JSON."""

import dataclasses
import json
import pathlib
import time
from typing import Any

from bert_jax.config.watching import DescribeConfig
from bert_jax.data.store.access import open_store
from bert_jax.errors import UserError, need_extra
from bert_jax.files import write_atomically
from bert_jax.monitoring.charts import COLOURS
from bert_jax.monitoring.corpus_card import SHARES, CorpusCard, corpus_card
from bert_jax.monitoring.page import Table, page

MOST_RANKS = 400  # points of the curve of frequencies


def run_describe(paths: list[str], config: DescribeConfig) -> list[CorpusCard]:
    """Write the card of each store to config.output, and the same figures as JSON beside it.

    Args:
      paths: one token store, or two to compare.
      config: where to write, and how many samples.

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
    values = json.dumps([dataclasses.asdict(card) for card in cards], indent=1, ensure_ascii=False, default=_plain)
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
    facts = [_facts(card) for card in cards]
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
    """Return what the cleaning removed and what was no text, for a store that lacks anything of its sources."""
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
    return {
        "data": traces,
        "layout": {
            "xaxis": {"title": {"text": title}, "type": "log", "gridcolor": "#e6e6e6"},
            "yaxis": {"gridcolor": "#e6e6e6", "zeroline": False, **scale},
            "height": 340,
            "margin": {"l": 55, "r": 15, "t": 10, "b": 45},
            "legend": {"orientation": "h", "y": -0.28},
        },
    }


def _facts(card: CorpusCard) -> dict[str, str]:
    """Return the figures of a store in words, in reading order."""
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
            f"tokens among the {number:,} most frequent entries": f"{value:.2%}"
            for number, value in card.token_shares.items()
        },
        "loss of token frequencies alone": f"{card.entropy:.3f} nats",
    }


def _plain(value: Any) -> Any:
    """Return an array as nested lists, for JSON."""
    return value.tolist()
