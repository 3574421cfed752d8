"""Options of `bert-jax index`, `search` and `mine`, as frozen dataclasses; standard library only.

A way to find the nearest vectors is a kind (`Engine`), with the options that it alone has.
"""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Literal

from bert_jax.config.corpora import MOST_EXPANSION
from bert_jax.config.heads import Pooling
from bert_jax.config.options import check_effects, check_kinds, check_numbers, from_dict, kinds, option, to_dict
from bert_jax.errors import UserError, at_least, need_no_negative, need_share

VectorType = Literal["float32", "float16", "int8", "binary"]
MOST_LINKS = 4096
"""The most links of a vector, of which 12 to 64 are usual."""
DEPTH = 100
"""Number of documents per query that the measures look at; a shorter list would change MAP and recall."""


def check_options(options: object, kind: type) -> None:
    """Raise a UserError unless these are the options of a command, each of its type; Python can give anything."""
    if not isinstance(options, kind):
        raise UserError(f"the options are {options!r:.60}; expected bert_jax.{kind.__name__}(…)")
    from_dict(kind, to_dict(options))


def _need_local(name: str, path: str) -> None:
    """Raise a UserError if a place that is read or written again and again is empty, or not on this machine."""
    if not path.strip():
        raise UserError(f"{name} is empty; give a path on this machine")
    if "://" in path:
        raise UserError(f"{name}={path:.200} is not on this machine; copy it here, or give a local path")


@dataclasses.dataclass(frozen=True, kw_only=True)
class IndexConfig:
    """Options of `bert-jax index`."""

    model: str
    """Model whose vectors stand for the documents: anything that bert_jax.load opens."""
    output: str
    """Directory of the index. The same command goes on with an index that was interrupted."""
    format: Literal["auto", "beir", "tsv", "text"] = "auto"
    """Format of the corpus. beir: JSON lines with _id, title and text. tsv: id and text, or id, title and text, between
    tabs. text: a document on each line, whose id is the number of the line. auto: by the file name, .jsonl, .tsv or any
    other, before .gz and the like."""
    empty: Literal["error", "keep"] = "error"
    """What becomes of a document without any text. error: it is refused. keep: it is indexed as an empty text, as in
    collections whose published figures count such documents."""
    pooling: Pooling | None = None
    """Vector of a text: that of [CLS], the mean or the maximum over its tokens, their sum divided by the square root of
    their number (mean_sqrt_len), or that of BERT's pooler. None: as the model says, for most models the mean. A
    model whose texts have a vector for each token, or weights of words, gives single ones if this is given."""
    normalize: bool = True
    """Whether single vectors have length 1, so that the product of two is their cosine."""
    max_length: int | None = None
    """Maximum number of tokens of a text; a longer one is cut. Of a model with a vector for each token, of documents
    alone. None: as many as the model reads."""
    dtype: VectorType = "float32"
    """Data type of the stored vectors. float16 takes half the space and changes a cosine by at most about 0.001. For
    one vector per text, int8 takes a quarter, with a scale for each vector, and binary a 32nd: the sign of each value,
    which is multiplied with the value of the query."""
    block: int = 16_384
    """Number of documents in one file: what an interruption may lose, and what a search reads at once."""
    batch_size: int = 32
    """Number of texts per batch."""
    max_expansion: int = MOST_EXPANSION
    """Maximum size of the text of a compressed file, as a multiple of the size of the file, as for prepare."""
    overwrite: bool = False
    """Whether an existing index is replaced."""

    def check(self) -> None:
        """Raise a UserError if an option cannot work; called before anything is read."""
        _need_local("output", self.output)
        if not self.model.strip():
            raise UserError("model is empty; give a model that bert_jax.load opens, as --model=MODEL")
        check_numbers(self)
        at_least(1, block=self.block, batch_size=self.batch_size, max_expansion=self.max_expansion)


class Engine:
    """A way to find the vectors with the greatest products."""

    chosen_by: ClassVar[Mapping[str, str]]
    """The option that chooses it, and its value there."""

    @property
    def name(self) -> str:
        """Its name in messages, the value of `engine`."""
        return self.chosen_by["engine"]

    def check(self) -> None:
        """Raise a UserError if an option is out of range."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExactSearch(Engine):
    """All products, block by block, on the device of JAX; those of weights of words by SciPy."""

    chosen_by: ClassVar[Mapping[str, str]] = {"engine": "exact"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FaissFlat(Engine):
    """All products, by FAISS."""

    chosen_by: ClassVar[Mapping[str, str]] = {"engine": "faiss"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FaissHnsw(Engine):
    """A graph of neighbours, by FAISS (Malkov and Yashunin 2016, arXiv 1603.09320), which may miss some."""

    chosen_by: ClassVar[Mapping[str, str]] = {"engine": "faiss_hnsw"}
    links: int = 32
    """Number of neighbours that a vector is linked to in each layer of the graph (M in the paper)."""
    build_width: int = 200
    """Number of candidates that are kept while the graph is built (efConstruction)."""
    search_width: int = 128
    """Number of candidates that are kept during a search (efSearch); at least as many as there are results."""

    def check(self) -> None:
        at_least(2, links=self.links)
        if self.links > MOST_LINKS:
            raise UserError(
                f"links={self.links} must be at most {MOST_LINKS}, as each vector has a place for all of them"
            )
        at_least(1, build_width=self.build_width, search_width=self.search_width)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FaissIvf(Engine):
    """Clusters, of which a search reads the nearest, by FAISS; what lies in others is missed."""

    chosen_by: ClassVar[Mapping[str, str]] = {"engine": "faiss_ivf"}
    lists: int = 0
    """Number of clusters. 0: four times the square root of the number of vectors, but at least 39 vectors each."""
    probes: int = 16
    """Number of clusters that a search reads."""

    def check(self) -> None:
        at_least(0, lists=self.lists)
        at_least(1, probes=self.probes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HammingSearch(Engine):
    """The signs nearest to those of a query, in the order of their products (Yamada et al. 2021, arXiv 2106.00882)."""

    chosen_by: ClassVar[Mapping[str, str]] = {"engine": "hamming"}
    shortlist: int = 1000
    """Number of documents with the least Hamming distances, of which the products are computed; at least as many as
    there are results. What is not among them is missed."""

    def check(self) -> None:
        at_least(1, shortlist=self.shortlist)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """Options of `bert-jax search`."""

    queries: str = ""
    """File of queries: JSON lines with _id and text, as BEIR's queries.jsonl; a .tsv of ids and texts; or any other
    with a query on each line. In place of QUERY."""
    qrels: str = option("", of=("queries",))
    """Judgements, as BEIR's qrels/test.tsv: a line query-id, corpus-id, score, then one for each judgement, between
    tabs. The judged queries are searched for, and each way to search is measured. By default nothing is."""
    output: str = option("", of=("queries",))
    """Directory for results.json and, for each way to search, the documents found (NAME.tsv in the six columns of a run
    of TREC). By default the measures are only printed."""
    overwrite: bool = option(False, of=("output",))
    """Whether existing results in that directory are replaced."""
    top: int = 10
    """Number of documents to show or, without --qrels, to write for each query. What is measured, and then written, is
    at least 100."""
    show: Literal["vectors", "bm25", "hybrid"] = "vectors"
    """What answers QUERY. vectors: the nearest vectors. bm25: the words that query and document share. hybrid: the sum
    of 1 / (60 + rank) over both. With --rerank, what is sorted again."""
    model: str = ""
    """Place of the model that made the index, if it has moved. By default the place that the index names."""
    bm25: bool = True
    """Whether BM25 and the hybrid with it are compared too where --queries is given."""
    bm25_k1: float = option(1.5, of=("bm25",), refused=False)
    """How slowly a word that occurs again in a document stops counting. BM25 by the library bm25s, in Lucene's form,
    without English stop words, without stemming."""
    bm25_b: float = option(0.75, of=("bm25",), refused=False)
    """How far the length of a document counts against it, from 0 to 1."""
    rerank: str = ""
    """Model that sorts the best documents again: one that was fine-tuned on pairs with a class or a number, and reads
    each together with the query, or one with a vector for each token (MaxSim). By default there is none."""
    rerank_top: int = option(100, of=("rerank",))
    """Number of documents per query that it reads. The others follow in the order that they had."""
    rerank_label: str = option("", of=("rerank",))
    """Its class for a document that answers the query. By default the class called 1, or the number of a regression."""
    engine: ExactSearch | FaissFlat | FaissHnsw | FaissIvf | HammingSearch = kinds(ExactSearch())
    """How the nearest vectors are found. exact: all products, on the device of JAX. faiss: the same by FAISS, which is
    for one vector per text, as the others are. faiss_hnsw: in a graph of neighbours. faiss_ivf: in the nearest
    clusters. hamming: among the nearest signs, for an index with --dtype=binary."""
    batch_size: int = 32
    """Number of texts per batch."""

    def check(self, query: str) -> None:
        """Raise a UserError if an option cannot work, or there is not one of QUERY and --queries."""
        check_kinds(self)
        check_numbers(self)
        check_effects(self)
        if bool(query.strip()) == bool(self.queries):
            both = ", not both" if query.strip() else ""
            raise UserError(f"give one of QUERY, a text in quotation marks, and --queries=FILE{both}")
        if self.queries and not (self.qrels or self.output):
            raise UserError("--queries without --qrels=FILE or --output=DIR shows nothing; give one of them, or both")
        at_least(1, top=self.top, batch_size=self.batch_size, rerank_top=self.rerank_top)
        need_no_negative(self, "", "bm25_k1")
        need_share(self, "", "bm25_b")
        self.engine.check()
        if self.output:
            _need_local("output", self.output)
        if self.queries and self.show != "vectors":
            raise UserError(
                f"show={self.show} says what answers QUERY; with --queries all are compared, so leave it out"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MineConfig:
    """Options of `bert-jax mine`."""

    queries: str
    """File of queries, as for search."""
    qrels: str
    """Judgements, as for search. A document with a score of 1 or more is a positive of its query."""
    output: str
    """File to write, JSON lines: a line for each pair of a query and a positive, with the texts anchor, positive,
    negative_1, negative_2 and so on, as the training of vectors reads them."""
    negatives: int = 5
    """Number of negatives on each line. A pair for which fewer are found is left out."""
    first_rank: int = 1
    """Rank, among the documents that are not judged relevant, of the first that may be a negative. A higher one leaves
    out what is likely to be an answer that nobody has judged."""
    last_rank: int = 100
    """Rank of the last that may be a negative."""
    margin: float = 0.0
    """How far the score of a negative must be below that of the positive."""
    model: str = ""
    """Place of the model that made the index, if it has moved. By default the place that the index names."""
    batch_size: int = 32
    """Number of texts per batch."""
    overwrite: bool = False
    """Whether an existing output is replaced."""

    def check(self) -> None:
        """Raise a UserError if an option cannot work."""
        _need_local("output", self.output)
        check_numbers(self)
        at_least(1, negatives=self.negatives, first_rank=self.first_rank, batch_size=self.batch_size)
        need_no_negative(self, "", "margin")
        if self.last_rank < self.first_rank + self.negatives - 1:
            raise UserError(
                f"first_rank={self.first_rank} to last_rank={self.last_rank} has fewer ranks than negatives="
                f"{self.negatives}; raise last_rank"
            )
