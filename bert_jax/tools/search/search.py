"""`bert-jax search` and `bert-jax mine`: answers to queries, ways to search compared, and negatives for training.

The ways are BM25, vectors, the hybrid of both and, with a model that compares a query with documents again, its order
of the best of them.
"""

import dataclasses
import json
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from absl import logging
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bert_jax.config.options import to_dict
from bert_jax.config.search import DEPTH, MineConfig, SearchConfig, check_options
from bert_jax.errors import UserError
from bert_jax.files import near_path, write_atomically
from bert_jax.formats.opening import need_model
from bert_jax.pretrained.model import PretrainedModel, load
from bert_jax.progress import track
from bert_jax.tasks import ranking
from bert_jax.tokenization.tokenizer import counted_cuts
from bert_jax.tools.search import beir, engines
from bert_jax.tools.search.beir import Judgements
from bert_jax.tools.search.index import Hit, SearchIndex
from bert_jax.tools.search.vectors import Prompt, TokenForm

SHOWN = 100
"""Characters of a document that a table shows."""
RESULTS = "results.json"

Lists = list[engines.Found]
"""For each query scores and numbers of documents, [K] each, the best first."""


@dataclasses.dataclass(frozen=True)
class SearchResults:
    """What `bert-jax search --queries` measured and found."""

    measures: dict[str, dict[str, float]]
    """Means over the queries by way to search, then by measure, such as ndcg@10; {} without judgements."""
    runs: dict[str, dict[str, dict[str, float]]]
    """Scores of what was found by way to search, query and document."""


class Reranker(Protocol):
    """What says how well a document answers a query."""

    def scores(self, query: str, documents: Sequence[str]) -> np.ndarray:
        """Return how well each document answers a query, [K]; a higher score is better."""
        ...


def open_reranker(path: str, label: str, batch_size: int) -> Reranker:
    """Return a model as what sorts documents again; see SearchConfig.rerank.

    Raises:
      UserError: it is of no kind that can, or has no such class.
    """
    model = load(path)
    kind = TokenReranker if model.vector_form == TokenForm.name else PairReranker
    return kind(model, path, label, batch_size)


class TokenReranker:
    """A model with a vector for each token, which compares those of query and document (MaxSim).

    Args:
      model: the model, and path: its place.
      label: a class, which it has none of.
    """

    def __init__(self, model: PretrainedModel, path: str, label: str, batch_size: int):
        if label:
            raise UserError(f"rerank_label={label}: {path} compares tokens and has no classes; leave it out")
        self.model, self._form, self._batch_size = model, TokenForm(), batch_size

    def scores(self, query: str, documents: Sequence[str]) -> np.ndarray:
        """Return MaxSim of a query and each document, float32 [K]."""
        return self._form.scores(self._vectors([query], "query"), self._vectors(list(documents), "document"))

    def _vectors(self, texts: list[str], prompt: Prompt) -> Any:
        vectors = self.model.embed(texts, prompt=prompt, batch_size=self._batch_size, progress=False)
        self._form.check(vectors, f"the vectors of {self.model.path}")
        return vectors


class PairReranker:
    """A model that was fine-tuned on pairs of texts, and reads query and document together.

    Args:
      model: the model, and path: its place.
      label: its class for a document that answers the query; see SearchConfig.

    Raises:
      UserError: it has no head for pairs, or no such class.
    """

    def __init__(self, model: PretrainedModel, path: str, label: str, batch_size: int):
        self.model, self._batch_size, head = model, batch_size, model.head
        if head is None or head.kind not in ("classification", "regression"):
            kind = "no head" if head is None else f"a head for {head.kind}"
            raise UserError(
                f"--rerank={path} has {kind}; give a model that was fine-tuned on pairs of texts with a class or a "
                "number, or one with a vector for each token"
            )
        if head.kind == "regression" and label:
            raise UserError(f"rerank_label={label}: {path} gives a number and has no classes; leave it out")
        self._label = label or "1"
        if head.kind == "classification" and self._label not in head.labels:
            raise UserError(
                f"--rerank={path} has the classes {', '.join(head.labels)}, not {self._label}; say which is that of a "
                "document that answers the query with --rerank_label"
            )

    def scores(self, query: str, documents: Sequence[str]) -> np.ndarray:
        """Return how well each document answers a query, float64 [K]: a probability, or the number of a regression."""
        answers = self.model.predict(
            [(query, document) for document in documents], batch_size=self._batch_size, progress=False
        )
        return np.array([each if isinstance(each, float) else each.probabilities[self._label] for each in answers])


def run_search(path: str, query: str, config: SearchConfig) -> list[Hit] | SearchResults:
    """Answer a query, or compare ways to search with the queries of a file; print the answer, and return it.

    Args:
      path: directory of the index.
      query: a text, or "" if the options name a file of queries.
      config: the options.

    Raises:
      UserError: there is no index, the model is another than the one that made it, a file is damaged, or a library is
        not installed.
    """
    check_options(config, SearchConfig)
    config.check(query)
    if uses_words(config):
        engines.need_bm25()
    if config.rerank:
        need_model(config.rerank)
    index = SearchIndex(path, model=config.model or None, engine=config.engine)
    if not config.queries:
        return _answer(index, query, config)
    queries = beir.read_queries(config.queries)
    judgements = read_judgements(config.qrels, queries, index) if config.qrels else {}
    output = _output_directory(config) if config.output else None
    asked = {name: text for name, text in queries.items() if name in judgements or not judgements}
    ways = _ways(index, list(asked.values()), config, max(config.top, DEPTH))
    runs = {way: named(index, asked, found) for way, found in ways.items()}
    measures = {way: ranking.evaluated(judgements, run) for way, run in runs.items()} if judgements else {}
    results = SearchResults(measures, runs)
    if judgements:
        _print_measures(index, len(judgements), measures)
    if output is not None:
        _write(output, index, config, results, len(asked))
    return results


def read_judgements(path: str, queries: Mapping[str, str], index: SearchIndex) -> Judgements:
    """Return judgements of queries and of documents of an index; a UserError if one is of a document that is not."""
    judgements = beir.read_judgements(path, queries)
    there = index.numbers({name for judged in judgements.values() for name in judged})
    for query, judged in judgements.items():
        if missing := [name for name in judged if name not in there]:
            raise UserError(
                f"{path}: query {query!r:.80} has a judgement of the document {missing[0]!r:.80}, which is not in "
                f"{index.path}; give the judgements of this corpus"
            )
    return judgements


def uses_words(config: SearchConfig) -> bool:
    """Return whether documents are searched for words too."""
    return config.bm25 if config.queries else config.show != "vectors"


def _ways(index: SearchIndex, queries: Sequence[str], config: SearchConfig, depth: int) -> dict[str, Lists]:
    """Return what each way to search finds for the queries, by the name of the way."""
    reranker = open_reranker(config.rerank, config.rerank_label, config.batch_size) if config.rerank else None
    ways: dict[str, Lists] = {}
    uses_vectors = bool(config.queries) or config.show != "bm25"
    vectors = index.embed(queries, config.batch_size) if uses_vectors else None  # refuses another model at once
    if uses_words(config):
        words = engines.WordIndex((each.whole for each in index.documents()), config.bm25_k1, config.bm25_b)
        ways["bm25"] = words.find(queries, depth)
    if vectors is not None:
        ways["vectors"] = engines.lists(index.nearest(vectors, depth))
    if len(ways) == 2:
        ways["hybrid"] = [hybrid([one, other], depth) for one, other in zip(*ways.values(), strict=True)]
    if reranker is not None:
        with counted_cuts() as cuts:
            ways["reranked"] = _reranked(index, reranker, queries, [*ways.values()][-1], config.rerank_top)
        if cuts:
            logging.warning("--rerank=%s cut %d texts, longer than it reads", config.rerank, sum(cuts))
    return ways


FUSION_CONSTANT = 60
"""The constant of reciprocal rank fusion (Cormack, Clarke and Büttcher 2009)."""


def hybrid(found: Iterable[engines.Found], most: int) -> engines.Found:
    """Return the reciprocal rank fusion of what several ways found for one query: the best, at most so many.

    Their scores, float64, are the sum of 1 / (60 + rank) over the ways. Of equal ones the lowest document comes first.
    """
    sums: dict[int, float] = {}
    for _, numbers in found:
        for rank, document in enumerate(numbers.tolist(), 1):
            sums[document] = sums.get(document, 0.0) + 1 / (FUSION_CONSTANT + rank)
    best = sorted(sums.items(), key=lambda each: (-each[1], each[0]))[:most]
    return np.array([score for _, score in best], np.float64), np.array([each for each, _ in best], np.int64)


def _reranked(index: SearchIndex, reranker: Reranker, queries: Sequence[str], found: Lists, most: int) -> Lists:
    """Return the best documents of each query in the order of a model that compares them with it, and then the others.

    The others stay in their order, each 1 below the one before it.
    """
    sorted_again: Lists = []
    for query, (_, numbers) in track(zip(queries, found, strict=True), "queries read again", len(queries)):
        chosen, rest = numbers[:most], numbers[most:]
        scores = (
            reranker.scores(query, [each.whole for each in index.documents(chosen)]) if len(chosen) else np.zeros(0)
        )
        order = np.argsort(-scores, kind="stable")
        below = scores.min(initial=0.0) - 1.0 - np.arange(len(rest))
        sorted_again.append((np.append(scores[order], below), np.append(chosen[order], rest)))
    return sorted_again


def named(index: SearchIndex, queries: Mapping[str, str], found: Lists) -> dict[str, dict[str, float]]:
    """Return what was found as a run: scores by the ids of query and document."""
    return {
        query: {document.id: score for document, score in zip(index.documents(numbers), scores.tolist(), strict=True)}
        for query, (scores, numbers) in zip(queries, found, strict=True)
    }


def _answer(index: SearchIndex, query: str, config: SearchConfig) -> list[Hit]:
    """Print and return the best documents of one query."""
    depth = max(config.top, config.rerank_top if config.rerank else 0, DEPTH if config.show == "hybrid" else 0)
    way, ((scores, numbers),) = [*_ways(index, [query], config, depth).items()][-1]
    found = zip(scores[: config.top].tolist(), index.documents(numbers[: config.top]), strict=True)
    hits = [Hit(score, *document) for score, document in found]
    if not hits:
        print(f"no document of {index.path} has a word of the query")
        return hits
    table = Table(title=f"{way} of {near_path(index.path)}", title_justify="left")
    table.add_column("score", justify="right", no_wrap=True)
    table.add_column("id", no_wrap=True)
    table.add_column("document")
    for hit in hits:
        text = " ".join(f"{hit.title} {hit.text}".split())
        shown = _visible(text[:SHOWN]) + "…" * (len(text) > SHOWN)
        table.add_row(f"{hit.score:.4f}", Text(_visible(hit.id)), Text(shown))
    Console(highlight=False).print(table)
    return hits


def _visible(text: str) -> str:
    """Return a text of a corpus with � for what would be a command to a terminal."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


def _print_measures(index: SearchIndex, queries: int, measures: Mapping[str, Mapping[str, float]]) -> None:
    table = Table(title=f"{queries:,} queries, {len(index):,} documents; percent", title_justify="left")
    table.add_column("")
    for measure in ranking.MEASURES:
        table.add_column(ranking.title(measure), justify="right")
    for way, row in measures.items():
        table.add_row(way, *(f"{100 * row[measure]:.2f}" for measure in ranking.MEASURES))
    Console(highlight=False).print(table)


def _output_directory(config: SearchConfig) -> pathlib.Path:
    """Return the directory of results, made if there is none; a UserError if others must stay as they are."""
    directory = pathlib.Path(config.output).expanduser()
    if (directory / RESULTS).exists() and not config.overwrite:
        raise UserError(f"output={config.output} already has {RESULTS}; give another directory, or --overwrite")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"output={config.output} cannot be made: {error.strerror or error}; choose another") from None
    return directory


def _write(
    directory: pathlib.Path, index: SearchIndex, config: SearchConfig, results: SearchResults, queries: int
) -> None:
    """Write the run of each way to search, and last the measures of all."""
    for way, run in results.runs.items():
        lines = [
            f"{query}\tQ0\t{document}\t{rank}\t{scores[document]!r}\t{way}\n"
            for query, scores in run.items()
            for rank, document in enumerate(ranking.ordered(scores)[: config.top if not results.measures else None], 1)
        ]
        _write_file(directory / f"{way}.tsv", "".join(lines))
    values = {
        "measures": results.measures,
        "queries": queries,
        "documents": len(index),
        "index": to_dict(index.record),
        "options": to_dict(config),
    }
    _write_file(directory / RESULTS, json.dumps(values, indent=1) + "\n")
    print(f"written to {config.output}: {RESULTS}, {', '.join(f'{way}.tsv' for way in results.runs)}")


def _write_file(file: pathlib.Path, text: str) -> None:
    try:
        write_atomically(file, text.encode())
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror or error}; choose another place") from None


def run_mine(path: str, config: MineConfig) -> int:
    """Write training examples with hard negatives: near documents that are not judged relevant; return their number.

    A document with the text of a positive is none, whatever its id.

    Args:
      path: directory of the index.
      config: the options.

    Raises:
      UserError: see `run_search`; the output exists; or no pair has enough negatives.
    """
    check_options(config, MineConfig)
    config.check()
    output = pathlib.Path(config.output).expanduser()
    if output.exists() and not config.overwrite:
        raise UserError(f"output={config.output} exists; give another file, or --overwrite to replace it")
    if not output.parent.is_dir():
        raise UserError(f"output={config.output}: there is no directory {output.parent}; create it first")
    index = SearchIndex(path, model=config.model or None)
    if config.first_rank > len(index):
        raise UserError(f"first_rank={config.first_rank}, but {path} has {len(index):,} documents; give a lower one")
    queries = beir.read_queries(config.queries)
    judgements = read_judgements(config.qrels, queries, index)
    positives = {query: [name for name, score in judged.items() if score > 0] for query, judged in judgements.items()}
    pairs = sum(map(len, positives.values()))
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in mined(index, queries, positives, config)]
    if not lines:
        raise UserError(
            f"none of {pairs:,} pairs of a query and a positive has {config.negatives} negatives at the ranks "
            f"{config.first_rank} to {config.last_rank} that score {config.margin} below it; raise last_rank, or lower "
            "margin or negatives"
        )
    _write_file(output, "".join(lines))
    print(
        f"{config.output}: {len(lines):,} examples with {config.negatives} negatives each; "
        f"{pairs - len(lines):,} pairs have fewer and are left out"
    )
    return len(lines)


def mined(
    index: SearchIndex, queries: Mapping[str, str], positives: Mapping[str, Sequence[str]], config: MineConfig
) -> Iterator[dict[str, str]]:
    """Yield an example for each query and positive: texts by the names anchor, positive, negative_1 and so on."""
    asked = [query for query, names in positives.items() if names]
    if not asked:
        return
    numbers = index.numbers({name for query in asked for name in positives[query]})
    depth = config.last_rank + max(len(positives[query]) for query in asked)
    vectors = index.embed([queries[query] for query in asked], config.batch_size)
    found = engines.lists(index.nearest(vectors, depth))
    for place, (query, (scores, near)) in enumerate(zip(asked, found, strict=True)):
        own = [numbers[name] for name in positives[query]]
        texts = [each.whole for each in index.documents(own)]
        other = ~np.isin(near, own)
        ranks = slice(config.first_rank - 1, config.last_rank)
        candidates = [
            (score, each.whole)
            for score, each in zip(scores[other][ranks].tolist(), index.documents(near[other][ranks]), strict=True)
        ]
        own_scores = index.form.scores(vectors[place : place + 1], index.vectors_of(own))
        for text, score in zip(texts, own_scores.tolist(), strict=True):
            negatives = [each for below, each in candidates if below <= score - config.margin and each not in texts]
            if len(negatives) >= config.negatives:
                chosen = enumerate(negatives[: config.negatives], 1)
                yield {"anchor": queries[query], "positive": text} | {f"negative_{n}": each for n, each in chosen}
