"""Forms of vectors: how an index stores those of its documents, checks them, and multiplies them with queries.

A text has one vector (`SingleForm`), a vector for each of its tokens (`TokenForm`, late interaction), or a weight
for some words of the vocabulary (`WordForm`). The vectors of as many documents as a block has are in one or several
arrays, each in a file; a block is whole as soon as the last of them is there. Files are mapped, never unpickled, and
what they say is checked before anything follows it.
"""

import abc
import dataclasses
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np
from scipy import sparse

from bert_jax.config.heads import FormName
from bert_jax.config.search import IndexConfig
from bert_jax.errors import UserError
from bert_jax.pretrained.precision import as_integers, quantize_embeddings

AGAIN = "make the index again with --overwrite"
QUERIES = 256
"""Number of queries that are multiplied with a block at once."""
QUERY_TOKENS = 2_048
"""Number of tokens, with padding, of the queries that are compared with token vectors at once."""
TOKENS = 8_192
"""Number of tokens, with padding, of the documents that are compared with these at once."""
VALUES = 1 << 21
"""Number of values of these tokens at most; of wider vectors there are fewer."""
LONGEST = 65_536
"""Most tokens of a text."""
SHORTEST = 16
"""Least number of tokens that a document is padded to: a power of 2, as are all others, so that few programs do."""

Opened = TypeVar("Opened")
Vectors = Any
"""Vectors of N texts, as a model gives them: float32 [N, H], a list of N float32 [L, D], or a CSR matrix [N, V]."""
Prompt = Literal["query", "document"]
Files = Mapping[str, pathlib.Path]
"""The files of one block by the names of its parts."""


def mapped(file: pathlib.Path, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return an array of a file without reading it; raise a UserError if it is not of this shape and type."""
    seen, found = described(file)
    if seen != shape or found != np.dtype(dtype):
        raise UserError(f"{file} is {found}{list(seen)}, not {dtype}{list(shape)}; {AGAIN}")
    return _opened(file, lambda: np.load(file, mmap_mode="r", allow_pickle=False))


def described(file: pathlib.Path) -> tuple[tuple[int, ...], np.dtype]:
    """Return shape and type that the header of an array's file names; a UserError if there is none.

    NumPy would map what the header says at once, and some types and sizes end its process.
    """

    def read() -> tuple[tuple[int, ...], np.dtype]:
        with open(file, "rb") as stream:
            if np.lib.format.read_magic(stream) != (1, 0):
                raise ValueError("another version")
            shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
            return shape, dtype

    return _opened(file, read)


def _opened(file: pathlib.Path, read: Callable[[], Opened]) -> Opened:
    """Return what `read` reads of a file of NumPy; a UserError if it cannot."""
    try:
        return read()
    except OSError as error:
        reason = error.strerror or "it cannot be opened"
    except Exception:  # a header is parsed as an expression of Python, which fails in many ways
        reason = "it is no array of NumPy, or not the whole of it"
    raise UserError(f"{file} cannot be read: {reason}; {AGAIN}")


def write_rows(file: pathlib.Path, parts: Iterable[np.ndarray]) -> None:
    """Write the rows of arrays as one array, with one of them in memory at a time, and no reader sees half of it."""
    partial = file.with_name(f"{file.name}.partial")
    try:
        with open(partial, "wb") as stream:
            header: dict[str, Any] = {}
            for part in parts:
                if not header:
                    header = np.lib.format.header_data_from_array_1_0(np.ascontiguousarray(part[:0]))
                    np.lib.format.write_array_header_1_0(stream, header)
                header["shape"] = (header["shape"][0] + len(part), *part.shape[1:])
                stream.write(np.ascontiguousarray(part).data)
            stream.seek(0)  # a header leaves room for any number of rows, so the second fits in place of the first
            np.lib.format.write_array_header_1_0(stream, header)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, file)
    finally:
        partial.unlink(missing_ok=True)


def _stored(values: np.ndarray, dtype: str) -> np.ndarray:
    """Return values in the data type of an index; raise a UserError if it does not reach so far."""
    with np.errstate(over="ignore"):
        stored = values.astype(dtype)
    if not np.isfinite(stored).all():
        raise UserError(
            f"a vector has the value {float(np.abs(values).max()):.6g}, which {dtype} cannot hold; use --dtype=float32"
        )
    return stored


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()


class IndexForm(abc.ABC):
    """A form of vectors: its name in records, its files, its checks and its products."""

    name: ClassVar[FormName]
    """What a model calls it, its `vector_form`."""
    noun: ClassVar[str]
    """What an index has of it, in messages."""
    parts: ClassVar[tuple[str, ...]]
    """Endings of the files of a block, in the order in which they are written."""
    lowest: ClassVar[float] = -np.inf
    """A document whose product with a query is not above it is not found."""

    def check_options(self, config: IndexConfig) -> None:
        """Raise a UserError if an option of an index has no effect on vectors of this form."""
        if not config.normalize:
            raise UserError(
                f"normalize=False is for one vector per text, and {config.model} gives {self.noun}; leave it out, or "
                "give a pooling"
            )
        if config.dtype in NARROW:
            raise UserError(
                f"dtype={config.dtype} is for one vector per text, and {config.model} gives {self.noun}; use "
                "--dtype=float16, or give a pooling"
            )

    def options(self, prompt: Prompt, pooling: str, normalize: bool, max_length: int | None) -> dict[str, Any]:
        """Return what `PretrainedModel.embed` is given for documents or queries, of what an index says."""
        return {"max_length": max_length}

    @abc.abstractmethod
    def check(self, vectors: Vectors, whose: str, width: int | None = None) -> None:
        """Raise a UserError if vectors are not in this form, not of this width, or not finite."""

    @abc.abstractmethod
    def write(self, files: Files, pieces: Iterable[Vectors], dtype: str) -> None:
        """Write a block: the vectors of documents that come in pieces."""

    @abc.abstractmethod
    def width(self, files: Files) -> int:
        """Return the number of values of a vector in a block that was written."""

    @abc.abstractmethod
    def opened(self, files: Files, rows: int, width: int, dtype: str) -> Any:
        """Return a block of so many documents, which has a length; a UserError if its files are damaged."""

    @abc.abstractmethod
    def taken(self, found: Sequence[tuple[Any, int]]) -> Vectors:
        """Return the vectors of documents, each a block and a place in it."""

    def count(self, vectors: Vectors) -> int:
        """Return of how many texts these are the vectors."""
        return len(vectors)

    @abc.abstractmethod
    def batches(self, queries: Vectors) -> list[Any]:
        """Return the vectors of queries in batches of one shape [Q, …], filled up with queries of zeros."""

    @abc.abstractmethod
    def products(self, batch: Any, block: Any, rows: int) -> Any:
        """Return the products of a batch and a block, float32 [Q, rows]; what comes after the block means nothing."""

    @abc.abstractmethod
    def scores(self, query: Vectors, documents: Vectors) -> np.ndarray:
        """Return the product of one query, a batch of its own, with each of a few documents, float32 [N]."""


class SingleForm(IndexForm):
    """One vector for each text, and its scalar product with another."""

    name = "single"
    noun = "vectors"
    parts = ("",)

    def check_options(self, config: IndexConfig) -> None:
        pass

    def options(self, prompt: Prompt, pooling: str, normalize: bool, max_length: int | None) -> dict[str, Any]:
        return {"pooling": pooling, "normalize": normalize, "max_length": max_length}

    def check(self, vectors: Vectors, whose: str, width: int | None = None) -> None:
        shape = list(np.shape(vectors))
        if len(shape) != 2 or width not in (None, shape[1]):
            raise UserError(f"{whose} have the shape {shape}; expected [texts, {width or 'width'}]")
        _need_finite(vectors, whose)

    def write(self, files: Files, pieces: Iterable[Vectors], dtype: str) -> None:
        write_rows(files[""], (_stored(piece, dtype) for piece in pieces))

    def width(self, files: Files) -> int:
        return described(files[""])[0][1]

    def opened(self, files: Files, rows: int, width: int, dtype: str) -> Any:
        return mapped(files[""], (rows, width), dtype)

    def taken(self, found: Sequence[tuple[Any, int]]) -> np.ndarray:
        return np.stack([np.asarray(block[place], np.float32) for block, place in found])

    def batches(self, queries: np.ndarray) -> list[jax.Array]:
        width = min(_power_of_two(len(queries)), QUERIES)  # so that another number rarely compiles again
        parts = [queries[start : start + width] for start in range(0, len(queries), width)]
        return [jnp.asarray(np.pad(part, ((0, width - len(part)), (0, 0))), jnp.float32) for part in parts]

    def products(self, batch: jax.Array, block: Any, rows: int) -> jax.Array:
        return _products(batch, jnp.asarray(np.pad(block, ((0, rows - len(block)), (0, 0)))))

    def scores(self, query: np.ndarray, documents: np.ndarray) -> np.ndarray:
        return documents @ query[0]


@jax.jit
def _products(queries: jax.Array, block: jax.Array) -> jax.Array:
    return jnp.einsum("qh,nh->qn", queries, block.astype(jnp.float32), precision=jax.lax.Precision.HIGHEST)


@dataclasses.dataclass(frozen=True)
class IntegerBlock:
    """Vectors as integers, each with its scale."""

    values: np.ndarray
    """int8 [N, H]."""
    scales: np.ndarray
    """float32 [N]."""

    def __len__(self) -> int:
        return len(self.values)


class IntegerForm(SingleForm):
    """One vector for each text in a byte for each value; the vectors of queries stay as they are."""

    noun = "vectors of integers"
    parts = ("", ".scales")

    def write(self, files: Files, pieces: Iterable[Vectors], dtype: str) -> None:
        scales: list[np.ndarray] = []

        def rows() -> Iterator[np.ndarray]:
            for piece in pieces:
                integers, scale = as_integers(piece, (1,))
                scales.append(scale[:, 0])
                yield integers

        write_rows(files[""], rows())
        write_rows(files[".scales"], scales)

    def opened(self, files: Files, rows: int, width: int, dtype: str) -> IntegerBlock:
        return IntegerBlock(mapped(files[""], (rows, width), "int8"), mapped(files[".scales"], (rows,), "float32"))

    def taken(self, found: Sequence[tuple[IntegerBlock, int]]) -> np.ndarray:
        return np.stack([block.values[place] * block.scales[place] for block, place in found])

    def products(self, batch: jax.Array, block: IntegerBlock, rows: int) -> jax.Array:
        scales = np.pad(block.scales, (0, rows - len(block)))
        return super().products(batch, block.values, rows) * jnp.asarray(scales)[None]


class SignForm(SingleForm):
    """The signs of one vector for each text, eight in a byte: the vector of length 1 whose values are all ±1/√H.

    The vectors of queries stay as they are, so all documents have the scores that otherwise those with the least
    Hamming distances get in a second step (Yamada et al. 2021, arXiv 2106.00882).
    """

    noun = "vectors of signs"

    def check(self, vectors: Vectors, whose: str, width: int | None = None) -> None:
        super().check(vectors, whose, width)
        if np.shape(vectors)[1] % 8:
            raise UserError(f"{whose} have {np.shape(vectors)[1]} values; dtype=binary packs eight in a byte")

    def write(self, files: Files, pieces: Iterable[Vectors], dtype: str) -> None:
        write_rows(files[""], (quantize_embeddings(piece, "ubinary") for piece in pieces))

    def width(self, files: Files) -> int:
        return 8 * super().width(files)

    def opened(self, files: Files, rows: int, width: int, dtype: str) -> np.ndarray:
        if width % 8:
            raise UserError(f"{files['']} cannot have vectors of {width} values, eight in a byte; {AGAIN}")
        return mapped(files[""], (rows, width // 8), "uint8")

    def taken(self, found: Sequence[tuple[np.ndarray, int]]) -> np.ndarray:
        bits = np.unpackbits(np.stack([block[place] for block, place in found]), axis=1)
        return (2 * bits.astype(np.float32) - 1) / np.sqrt(np.float32(bits.shape[1]))

    def products(self, batch: jax.Array, block: np.ndarray, rows: int) -> jax.Array:
        signs = jnp.unpackbits(jnp.asarray(np.pad(block, ((0, rows - len(block)), (0, 0)))), axis=1).astype(jnp.int8)
        return _products(batch, 2 * signs - 1) / np.sqrt(np.float32(signs.shape[1]))


@dataclasses.dataclass(frozen=True)
class TokenBlock:
    """The vectors of the tokens of documents, one document after the other."""

    values: np.ndarray
    """[T, D]."""
    starts: np.ndarray
    """Where each document begins, int64 [N + 1]."""

    def __len__(self) -> int:
        return len(self.starts) - 1


class TokenForm(IndexForm):
    """A vector for each token: the product is MaxSim (Khattab and Zaharia 2020, arXiv 2004.12832).

    That is the sum, over the tokens of the query, of the greatest product with a token of the document.
    """

    name = "tokens"
    noun = "token vectors"
    parts = (".tokens", ".lengths")

    def options(self, prompt: Prompt, pooling: str, normalize: bool, max_length: int | None) -> dict[str, Any]:
        return {"max_length": max_length if prompt == "document" else None}  # how long queries are, the model says

    def check(self, vectors: Vectors, whose: str, width: int | None = None) -> None:
        if not isinstance(vectors, list | tuple | np.ndarray):
            seen = type(vectors).__name__
            raise UserError(f"{whose} are {seen}; expected a list of arrays [tokens, {width or 'width'}]")
        shapes = [list(np.shape(each)) for each in vectors]
        width = width or (shapes[0][-1] if shapes and shapes[0] else None)
        for shape in shapes:
            if len(shape) != 2 or not 1 <= shape[0] <= LONGEST or shape[1] != width:
                raise UserError(f"{whose} have the shape {shape} for one text; expected [1 to {LONGEST:,}, {width}]")
        for each in vectors:
            _need_finite(each, whose)

    def write(self, files: Files, pieces: Iterable[Vectors], dtype: str) -> None:
        lengths: list[int] = []

        def rows() -> Iterator[np.ndarray]:
            for piece in pieces:
                lengths.extend(map(len, piece))
                yield _stored(np.concatenate(piece), dtype)

        write_rows(files[".tokens"], rows())
        write_rows(files[".lengths"], [np.array(lengths, np.int32)])

    def width(self, files: Files) -> int:
        return described(files[".tokens"])[0][1]

    def opened(self, files: Files, rows: int, width: int, dtype: str) -> TokenBlock:
        lengths = mapped(files[".lengths"], (rows,), "int32")
        if not 1 <= lengths.min() <= lengths.max() <= LONGEST:
            raise UserError(
                f"{files['.lengths']} has documents of {lengths.min():,} to {lengths.max():,} tokens, not 1 to "
                f"{LONGEST:,}; {AGAIN}"
            )
        starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        return TokenBlock(mapped(files[".tokens"], (int(starts[-1]), width), dtype), starts)

    def taken(self, found: Sequence[tuple[TokenBlock, int]]) -> list[np.ndarray]:
        spans = [(block.values, *block.starts[place : place + 2]) for block, place in found]
        return [np.asarray(values[start:end], np.float32) for values, start, end in spans]

    def batches(self, queries: Sequence[np.ndarray]) -> list[jax.Array]:
        length = _power_of_two(max(map(len, queries)))
        width = min(_power_of_two(len(queries)), max(1, QUERY_TOKENS // length))
        placed = np.zeros((-(-len(queries) // width) * width, length, queries[0].shape[1]), np.float32)
        for row, query in zip(placed, queries, strict=False):
            row[: len(query)] = query  # a token of zeros adds 0 to every document
        return [jnp.asarray(placed[start : start + width]) for start in range(0, len(placed), width)]

    def products(self, batch: jax.Array, block: TokenBlock, rows: int) -> np.ndarray:
        found = np.zeros((len(batch), rows), np.float32)
        lengths = np.diff(block.starts)
        padded = np.maximum(SHORTEST, 2 ** np.ceil(np.log2(lengths)).astype(np.int64))
        for length in np.unique(padded).tolist():
            alike = np.flatnonzero(padded == length)
            step = max(1, min(TOKENS, VALUES // block.values.shape[1]) // length)
            for first in range(0, len(alike), step):
                chosen = alike[first : first + step]
                filled = np.resize(chosen, step)  # documents that are there twice are left out below
                places = block.starts[filled][:, None] + np.minimum(np.arange(length), lengths[filled][:, None] - 1)
                # The last token of a document stands in place of padding, which leaves its greatest products alone.
                found[:, chosen] = np.asarray(_max_sim(batch, jnp.asarray(block.values[places])))[:, : len(chosen)]
        return found

    def scores(self, query: Sequence[np.ndarray], documents: Sequence[np.ndarray]) -> np.ndarray:
        return np.array([(query[0] @ each.T).max(axis=1).sum() for each in documents], np.float32)


@jax.jit
def _max_sim(queries: jax.Array, documents: jax.Array) -> jax.Array:
    """Return MaxSim, float32 [Q, N], of token vectors [Q, L, D] and [N, M, D]."""
    documents = documents.astype(jnp.float32)
    products = jnp.einsum("qld,nmd->qlnm", queries, documents, precision=jax.lax.Precision.HIGHEST)
    products = jnp.where(jnp.isnan(products), jnp.inf, products)  # XLA's maximum of NaN and a number may be the number
    return products.max(axis=3).sum(axis=1)


@dataclasses.dataclass(frozen=True)
class WordBlock:
    """For each word the documents that have it, and its weights there: an inverted file."""

    weights: Any
    """CSR matrix [V, N]; type checkers do not know the shapes of SciPy's."""

    def __len__(self) -> int:
        return self.weights.shape[1]


class WordForm(IndexForm):
    """Weights for some words of the vocabulary, as SPLADE's (Formal et al. 2021, arXiv 2107.05720), and their product.

    A document that shares no word with a query is not found.
    """

    name = "words"
    noun = "weights of words"
    parts = (".documents", ".weights", ".starts")
    lowest = 0.0

    def check(self, vectors: Vectors, whose: str, width: int | None = None) -> None:
        if getattr(vectors, "format", "") != "csr" or width not in (None, vectors.shape[1]):
            seen = f"{type(vectors).__name__} {list(np.shape(vectors))}"
            raise UserError(f"{whose} are {seen}; expected a csr_matrix [texts, {width or 'words'}]")
        _need_finite(vectors.data, whose)

    def write(self, files: Files, pieces: Iterable[Vectors], dtype: str) -> None:
        by_word = sparse.csr_matrix(sparse.vstack(list(pieces), format="csr").T)
        by_word.sort_indices()
        write_rows(files[".documents"], [by_word.indices.astype(np.int32)])
        write_rows(files[".weights"], [_stored(by_word.data, dtype)])
        write_rows(files[".starts"], [by_word.indptr.astype(np.int64)])

    def width(self, files: Files) -> int:
        return described(files[".starts"])[0][0] - 1

    def opened(self, files: Files, rows: int, width: int, dtype: str) -> WordBlock:
        starts = mapped(files[".starts"], (width + 1,), "int64")
        if starts[0] != 0 or (starts[1:] < starts[:-1]).any():
            raise UserError(f"{files['.starts']} does not grow from 0; {AGAIN}")
        count = int(starts[-1])
        documents = mapped(files[".documents"], (count,), "int32")
        if count and not 0 <= documents.min() <= documents.max() < rows:  # or SciPy would read what is not its own
            raise UserError(f"{files['.documents']} names a document that is not among {rows:,}; {AGAIN}")
        weights = mapped(files[".weights"], (count,), dtype).astype(np.float32, copy=False)
        return WordBlock(sparse.csr_matrix((weights, documents, starts), shape=(width, rows)))

    def taken(self, found: Sequence[tuple[WordBlock, int]]) -> Vectors:
        rows = []
        for block, place in found:
            held = block.weights
            places = np.flatnonzero(held.indices == place)
            words = np.searchsorted(held.indptr, places, side="right") - 1
            rows.append(sparse.csr_matrix((held.data[places], words, [0, len(words)]), shape=(1, held.shape[0])))
        return sparse.csr_matrix(sparse.vstack(rows, format="csr"))

    def count(self, vectors: Vectors) -> int:
        return vectors.shape[0]  # a matrix of SciPy has no length

    def batches(self, queries: Vectors) -> list[Any]:
        count, words = queries.shape
        width = min(_power_of_two(count), QUERIES)
        filled: Any = sparse.csr_matrix(queries, dtype=np.float32, copy=True)
        filled.resize((-(-count // width) * width, words))
        return [filled[start : start + width] for start in range(0, filled.shape[0], width)]

    def products(self, batch: Any, block: WordBlock, rows: int) -> np.ndarray:
        found = (batch @ block.weights).toarray()
        return np.pad(found, ((0, 0), (0, rows - len(block))))

    def scores(self, query: Vectors, documents: Vectors) -> np.ndarray:
        return (documents @ query.T).toarray()[:, 0]


def _need_finite(values: np.ndarray, whose: str) -> None:
    try:
        finite = bool(np.isfinite(values).all())
    except TypeError:  # text, or objects
        finite = False
    if not finite:
        raise UserError(f"{whose} are not finite numbers, so nothing can be compared with them")


FORMS: Mapping[FormName, IndexForm] = {form.name: form for form in (SingleForm(), TokenForm(), WordForm())}
NARROW: Mapping[str, IndexForm] = {"int8": IntegerForm(), "binary": SignForm()}
"""Forms of single vectors in few bits, by their data type in an index."""


def form_of(name: FormName, dtype: str) -> IndexForm:
    """Return the form of vectors that have this data type in an index."""
    return NARROW.get(dtype, FORMS[name])


class StoredVectors(Sequence[Any]):
    """The vectors of an index, mapped from the disk block by block.

    Args:
      directory: where their files are.
      form: their form.
      count: number of documents.
      block: number of documents of a block.
      width: number of values of a vector.
      dtype: data type of the values.
    """

    def __init__(self, directory: pathlib.Path, form: IndexForm, count: int, block: int, width: int, dtype: str):
        self._directory, self._form, self._count, self._block = directory, form, count, block
        self._width, self._dtype = width, dtype

    def __len__(self) -> int:
        return -(-self._count // self._block)

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[each] for each in range(len(self))[index]]
        number = range(len(self))[index]
        rows = min(self._block, self._count - number * self._block)
        return self._form.opened(files_of(self._directory, self._form, number), rows, self._width, self._dtype)

    def of(self, numbers: Sequence[int]) -> Vectors:
        """Return the vectors of documents by their numbers, in float32."""
        return self._form.taken([(self[each // self._block], each % self._block) for each in numbers])


def files_of(directory: pathlib.Path, form: IndexForm, number: int) -> dict[str, pathlib.Path]:
    """Return the files of a block by their parts."""
    return {part: directory / f"{number:05d}{part}.npy" for part in form.parts}
