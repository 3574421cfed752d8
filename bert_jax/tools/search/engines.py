"""Ways to find documents: exactly, by FAISS, and by the words that they share with the query (BM25).

Vectors come in blocks, of which one is in memory at a time; FAISS keeps all of them. Whatever finds them, the best
comes first and, of equal scores, the document that stands first in the corpus.
"""

import functools
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.config.search import Engine, FaissHnsw, FaissIvf, HammingSearch
from bert_jax.errors import UserError, need_extra
from bert_jax.progress import progress_bar
from bert_jax.tools.search.vectors import IndexForm, SignForm, SingleForm, Vectors

EXTRA = "search"
Found = tuple[np.ndarray, np.ndarray]
"""Scores, float32 [Q, K], and numbers of documents, int64 [Q, K], of Q queries; -1 where there are fewer than K."""
Find = Callable[[Vectors, int], Found]
"""Finds the documents with the greatest products with the vectors of queries: so many for each."""
MANY_BLOCKS = 16
"""Number of blocks above which a search shows how far it is."""
TRAINING_VECTORS = 39
"""Least number of vectors for each cluster that FAISS asks for."""


def lists(found: Found) -> list[Found]:
    """Return scores and numbers of documents for each query, [K] each, without those that are lacking."""
    return [(scores[numbers >= 0], numbers[numbers >= 0]) for scores, numbers in zip(*found, strict=True)]


def need_engine(options: Engine, form: IndexForm) -> None:
    """Raise a UserError if the library of a way to search is not installed, or it is not for vectors of this form."""
    if options.name == "exact":
        return
    if isinstance(options, HammingSearch):
        if not isinstance(form, SignForm):
            raise UserError(f"engine=hamming is for an index with dtype=binary, and this one has {form.noun}")
        return
    if type(form) is not SingleForm:
        raise UserError(
            f"engine={options.name} is for one vector per text of float32 or float16, and the index has {form.noun}; "
            "leave it out"
        )
    need_extra("faiss", EXTRA, f"--engine={options.name}", "--engine=exact does without it")


def finder(options: Engine, form: IndexForm, blocks: Sequence[Any]) -> Find:
    """Return what finds the documents whose vectors are in `blocks`, as the options say."""
    need_engine(options, form)
    if isinstance(options, HammingSearch):
        return functools.partial(_by_signs, options.shortlist, form, blocks)
    return functools.partial(exact, form, blocks) if options.name == "exact" else _by_faiss(options, blocks)


def exact(form: IndexForm, blocks: Sequence[Any], queries: Vectors, most: int) -> Found:
    """Return the documents with the greatest products of all, as a whole ranking in NumPy would begin.

    Args:
      blocks: as the form has them; the last may be shorter than the others.

    Raises:
      UserError: a product is not finite, so the vectors are damaged.
    """
    rows = len(blocks[0])
    count = (len(blocks) - 1) * rows + len(blocks[-1])
    most = min(most, count)
    batches = form.batches(queries)
    width = batches[0].shape[0]
    best = [(jnp.full((width, most), -jnp.inf), jnp.full((width, most), -1, jnp.int32)) for _ in batches]
    with progress_bar("documents compared", count, visible=len(blocks) > MANY_BLOCKS) as moved:
        for start, block in zip(range(0, count, rows), blocks, strict=True):
            best = [
                _merged(form.products(batch, block, rows), len(block), start, *found)
                for batch, found in zip(batches, best, strict=True)
            ]
            jax.block_until_ready(best)  # or the blocks to come would wait in memory
            moved(start + len(block))
    asked = form.count(queries)
    scores, numbers = (np.concatenate(list(map(np.asarray, each)))[:asked] for each in zip(*best, strict=True))
    if not np.isfinite(scores).all():
        raise UserError("a product of a query and a document is not finite: the index is damaged; make it again")
    return scores, np.where(scores > form.lowest, numbers, -1).astype(np.int64)


@jax.jit
def _merged(
    products: jax.Array, rows: int, start: int, scores: jax.Array, numbers: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the best of what was found before and of the first `rows` documents of a block, from `start` on."""
    products = jnp.where(jnp.isnan(products), jnp.inf, products)  # or one of negative sign would never be seen
    products = jnp.where(jnp.arange(products.shape[1]) < rows, products, -jnp.inf)
    own, places = jax.lax.top_k(products, min(scores.shape[1], products.shape[1]))
    # Of equal scores top_k takes the first, and what was found before stands further ahead in the corpus.
    scores, order = jax.lax.top_k(jnp.concatenate([scores, own], axis=1), scores.shape[1])
    return scores, jnp.take_along_axis(jnp.concatenate([numbers, start + places], axis=1), order, axis=1)


def _by_signs(shortlist: int, form: IndexForm, blocks: Sequence[np.ndarray], queries: np.ndarray, most: int) -> Found:
    """Return the documents with the greatest products of those whose signs differ least from a query's."""
    rows = len(blocks[0])
    count = (len(blocks) - 1) * rows + len(blocks[-1])
    most = min(most, count)
    signs = _words(np.packbits(queries > 0, axis=1))
    nearest = [np.zeros(0, np.int64) for _ in signs]  # distance · count + number, so that no two are equal
    for start, block in zip(range(0, count, rows), blocks, strict=True):
        words, numbers = _words(np.asarray(block)), np.arange(start, start + len(block))
        for place, own in enumerate(signs):
            distances = np.bitwise_count(words ^ own).sum(axis=1, dtype=np.int64)
            known = np.concatenate([nearest[place], distances * count + numbers])
            kept = min(max(shortlist, most), len(known))
            nearest[place] = np.partition(known, kept - 1)[:kept]
    scores, found = np.zeros((len(queries), most), np.float32), np.zeros((len(queries), most), np.int64)
    for place, (query, known) in enumerate(zip(queries, nearest, strict=True)):
        numbers = np.sort(known % count)
        products = form.taken([(blocks[each // rows], each % rows) for each in numbers.tolist()]) @ query
        order = np.argsort(-products, kind="stable")[:most]
        scores[place], found[place] = products[order], numbers[order]
    return scores, found


def _words(signs: np.ndarray) -> np.ndarray:
    """Return bytes of signs [N, H/8] as words of 64 bits, if they are a whole number of those."""
    return np.ascontiguousarray(signs).view(np.uint64) if signs.shape[1] % 8 == 0 else signs


def _by_faiss(options: Engine, blocks: Sequence[np.ndarray]) -> Find:
    """Return what finds vectors by an index of FAISS, which is filled here and kept in memory."""
    import faiss

    width, count = blocks[0].shape[1], sum(len(block) for block in blocks)
    flat: Any = faiss.IndexFlatIP(width)
    index: Any = flat
    if isinstance(options, FaissHnsw):
        index = faiss.IndexHNSWFlat(width, options.links, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = options.build_width
    elif isinstance(options, FaissIvf):
        usual = max(1, min(4 * math.isqrt(count), count // TRAINING_VECTORS))
        clusters = min(options.lists or usual, count)
        index = faiss.IndexIVFFlat(flat, width, clusters, faiss.METRIC_INNER_PRODUCT)
        step = max(1, count // (256 * clusters))  # FAISS itself would draw no more than 256 vectors per cluster
        index.train(np.concatenate([_plain(block[::step]) for block in blocks]))
        index.nprobe = min(options.probes, clusters)
    for block in blocks:
        index.add(_plain(block))

    def find(queries: np.ndarray, most: int) -> Found:
        most = min(most, count)
        if isinstance(options, FaissHnsw):
            index.hnsw.efSearch = max(options.search_width, most)
        scores, numbers = index.search(_plain(queries), most)
        order = np.lexsort((numbers, -scores, numbers < 0), axis=1)  # those that are lacking are at the end
        return np.take_along_axis(scores, order, axis=1), np.take_along_axis(numbers, order, axis=1)

    return find


def _plain(vectors: np.ndarray) -> np.ndarray:
    if not np.isfinite(vectors).all():  # FAISS would never find it
        raise UserError("a vector is not finite: the index is damaged; make it again")
    return np.ascontiguousarray(vectors, np.float32)


def need_bm25() -> None:
    """Raise a UserError if the library of BM25 is not installed."""
    need_extra("bm25s", EXTRA, "BM25", "--bm25=False with --queries, or --show=vectors with QUERY, does without it")


class WordIndex:
    """BM25 (Robertson et al. 1994) over texts, by the library bm25s in Lucene's form; all of it is in memory.

    Args:
      texts: the documents.
      k1, b: see SearchConfig.
    """

    def __init__(self, texts: Iterable[str], k1: float = 1.5, b: float = 0.75):
        need_bm25()
        import bm25s

        logging.getLogger("bm25s").setLevel(logging.WARNING)  # the library sets it to DEBUG as it is imported
        self._library: Any = bm25s
        self._index: Any = bm25s.BM25(k1=k1, b=b, method="lucene")
        self._index.index(self._words(list(texts)), show_progress=False)

    def find(self, queries: Sequence[str], most: int) -> list[Found]:
        """Return scores and documents for each query, [K] each: those that share a word with it, at most so many."""
        return [self._best(words, most) for words in self._words(list(queries))]

    def _words(self, texts: list[str]) -> list[list[str]]:
        return self._library.tokenize(texts, stopwords="en", return_ids=False, show_progress=False)

    def _best(self, words: list[str], most: int) -> Found:
        known = [word for word in words if word in self._index.vocab_dict]
        if not known:
            return np.zeros(0, np.float32), np.zeros(0, np.int64)
        scores = self._index.get_scores(known)
        hits = np.flatnonzero(scores > 0)
        if len(hits) > most:  # all that are tied with the last stay for the order to choose from
            hits = hits[scores[hits] >= np.partition(scores[hits], -most)[-most]]
        hits = hits[np.argsort(-scores[hits], kind="stable")][:most]
        return scores[hits], hits
