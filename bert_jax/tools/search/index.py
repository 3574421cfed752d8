"""The index of a corpus: a directory with the documents, their vectors in blocks, and a record of the model.

index.json is written last, with a checksum; until then unfinished.json says what an interrupted indexing goes on with.
documents.jsonl has the documents in BEIR's form; offsets.npy where each begins there, int64 [N + 1]; ids.npy 64 bits of
a hash of each id, uint64 [N], by which an id is found. vectors/ has the vectors in blocks, whose forms vectors.py
describes. All are read from the disk as they are needed, and none is a pickle.
"""

import array
import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, get_args, overload

import numpy as np
from etils import epath

from bert_jax.config.heads import FormName
from bert_jax.config.options import from_record, option, to_dict
from bert_jax.config.search import Engine, ExactSearch, IndexConfig, VectorType, check_options
from bert_jax.errors import UserError
from bert_jax.files import parse_object, read_object, sealed, unsealed, write_atomically
from bert_jax.formats.opening import need_model
from bert_jax.ownership import Owner
from bert_jax.pretrained.model import PretrainedModel, load
from bert_jax.progress import progress_bar
from bert_jax.tokenization.tokenizer import check_max_length
from bert_jax.tools.search import beir, engines
from bert_jax.tools.search.beir import Document
from bert_jax.tools.search.vectors import (
    AGAIN,
    FORMS,
    IndexForm,
    Prompt,
    StoredVectors,
    Vectors,
    files_of,
    form_of,
    mapped,
)

RECORD, UNFINISHED, OWNER = "index.json", "unfinished.json", "owner.json"
CORPUS = DOCUMENTS, OFFSETS, IDS = "documents.jsonl", "offsets.npy", "ids.npy"
VECTORS = "vectors"
VERSION = 1
BATCHES = 64
"""Number of batches of documents between two movements of the bar."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class IndexRecord:
    """What an index was made of and how, the contents of index.json."""

    version: int
    """Version of the format."""
    model: str
    """Place of the model."""
    fingerprint: str
    """Checksum of the model, its sizes, parameters and tokenizer."""
    pooling: str
    """Vector of a text; see IndexConfig. Of the form single alone, as normalize is."""
    normalize: bool
    """Whether vectors have length 1."""
    max_length: int | None
    """Maximum number of tokens of a document. None: as many as the model reads."""
    dtype: str
    """Data type of the stored vectors."""
    block: int
    """Number of documents in one file."""
    corpus: str
    """Place of the corpus."""
    corpus_fingerprint: str
    """SHA-256 of the documents."""
    count: int
    """Number of documents."""
    width: int
    """Number of values of a vector, or of words; 0 until the first are made."""
    form: FormName = option("single", before="single")
    """What stands for a text: one vector, a vector for each of its tokens, or weights of words."""


@dataclasses.dataclass(frozen=True)
class Hit:
    """A document that was found."""

    score: float
    """Product of its vector with that of the query, which is their cosine, if the index is normalized; of token vectors
    MaxSim; of weights of words their product."""
    id: str
    """Its id in the corpus."""
    title: str
    """Its title, or nothing."""
    text: str
    """Its text."""


class SearchIndex:
    """An index that `bert-jax index` or `bert_jax.index` wrote, opened to search it.

    Args:
      path: its directory.
      model: the model that made it, or where it lies now; None: where the index says.
      engine: how the nearest vectors are found, see SearchConfig; None: exactly.

    Attributes:
      path (str): the directory.
      record (IndexRecord): what it was made of, and how.
      form (IndexForm): the form of its vectors.
      vectors (StoredVectors): these, in blocks.

    Raises:
      UserError: there is no finished index, it is damaged, the library of the engine is not installed, or it is not for
        vectors of this form.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        model: PretrainedModel | str | None = None,
        engine: Engine | None = None,
    ):
        if not isinstance(path, str | os.PathLike):
            raise UserError(f"an index is opened by its directory, not by {path!r:.60}")
        self.path: str = os.fspath(path)
        self._directory = pathlib.Path(path).expanduser()
        self.record: IndexRecord = read_index(self._directory)
        self._given, self._model = model, None
        self._engine: Engine = ExactSearch() if engine is None else engine
        if not isinstance(self._engine, Engine):
            raise UserError(f"engine={engine!r:.60} is no way to search; give one such as bert_jax.FaissHnsw()")
        self._engine.check()
        self._find: engines.Find | None = None
        self.form: IndexForm = form_of(self.record.form, self.record.dtype)
        engines.need_engine(self._engine, self.form)
        record, count = self.record, self.record.count
        self._offsets = mapped(self._directory / OFFSETS, (count + 1,), "int64")
        self._ids = mapped(self._directory / IDS, (count,), "uint64")
        file = self._directory / DOCUMENTS
        if not file.is_file() or file.stat().st_size != self._offsets[-1]:
            raise UserError(f"{file} is gone, or not the file that was written; {AGAIN}")
        self.vectors: StoredVectors = StoredVectors(
            self._directory / VECTORS, self.form, count, record.block, record.width, record.dtype
        )

    def __len__(self) -> int:
        return self.record.count

    def __repr__(self) -> str:
        record = self.record
        return f"SearchIndex of {record.count:,} documents ({_described(record)}, by {record.model})"

    @property
    def model(self) -> PretrainedModel:
        """The model that made the index; a UserError if the one in its place is another."""
        if self._model is None:
            given = self.record.model if self._given is None else self._given
            model = given if isinstance(given, PretrainedModel) else load(given)
            if (found := model.fingerprint) != self.record.fingerprint:
                raise UserError(
                    f"{model.path} is not the model that made {self.path}: its fingerprint is {found:.12}…, that of "
                    f"the index {self.record.fingerprint:.12}…; give the one that did with --model, or make the index "
                    "again"
                )
            self._model = model
        return self._model

    def embed(self, queries: Sequence[str], batch_size: int = 32) -> Vectors:
        """Return the vectors of queries as those of the documents were made, as `PretrainedModel.embed` gives them.

        Before the queries, and before the documents, is the prompt that the model has for these, if any.
        """
        return embedded(self.model, self.record, list(queries), batch_size, "query")

    def nearest(self, vectors: Vectors, top: int = 10) -> engines.Found:
        """Return scores, float32 [Q, K], and numbers of documents, int64 [Q, K], the best first, of vectors of queries.

        K is `top` or the number of documents. The number is -1 where fewer were found: by an engine that is not exact,
        or because the others share no word with the query.
        """
        self.form.check(vectors, "vectors of queries", self.record.width)
        if not self.form.count(vectors):
            raise UserError("there are no vectors of queries; give at least one")
        if not isinstance(top, int | np.integer) or top < 1:
            raise UserError(f"top={top!r} must be a whole number, at least 1")
        if self._find is None:
            self._find = engines.finder(self._engine, self.form, self.vectors)
        return self._find(vectors, top)

    @overload
    def search(  # pyright: ignore[reportOverlappingOverload] (a str is a Sequence[str] too)
        self, queries: str, top: int = 10
    ) -> list[Hit]: ...

    @overload
    def search(self, queries: Sequence[str], top: int = 10) -> list[list[Hit]]: ...

    def search(self, queries: str | Sequence[str], top: int = 10) -> list[Hit] | list[list[Hit]]:
        """Return the nearest documents to a query, the best first, or to each of several queries."""
        if not isinstance(queries, Iterable):
            raise UserError(f"search takes a text or a list of texts, not {queries!r:.60}")
        texts = [queries] if isinstance(queries, str) else list(queries)
        if empty := [number for number, text in enumerate(texts) if isinstance(text, str) and not text.strip()]:
            raise UserError(f"query {empty[0]} is empty; give a text")
        hits = [
            [Hit(score, *found) for score, found in zip(row[0].tolist(), self.documents(row[1]), strict=True)]
            for row in engines.lists(self.nearest(self.embed(texts), top))
        ]
        return hits[0] if isinstance(queries, str) else hits

    def documents(self, numbers: Iterable[int] | None = None) -> Iterator[Document]:
        """Yield the documents of these numbers, counted from 0 in the order of the corpus; None: all of them."""
        with open(self._directory / DOCUMENTS, "rb") as stream:
            for number in range(len(self)) if numbers is None else numbers:
                yield self._read(stream, self._checked(number))

    def _checked(self, number: object) -> int:
        """Return the number of a document; a UserError if there is none of this number."""
        if not isinstance(number, int | np.integer) or not 0 <= number < len(self):
            raise UserError(f"{self.path} has the documents 0 to {len(self) - 1}, not {number!r:.40}")
        return int(number)

    def _read(self, stream: Any, number: int) -> Document:
        start, end = int(self._offsets[number]), int(self._offsets[number + 1])
        try:
            stream.seek(start)
            return beir.document_of(parse_object(stream.read(max(0, end - start))), "")
        except (OSError, ValueError, UserError):
            raise UserError(f"{self._directory / DOCUMENTS} is damaged at byte {start}; {AGAIN}") from None

    def numbers(self, ids: Iterable[str]) -> dict[str, int]:
        """Return the number of each document of these ids that is in the index."""
        wanted = {_hashed(name): name for name in ids}
        places = np.flatnonzero(np.isin(self._ids, np.fromiter(wanted, np.uint64, len(wanted))))
        found = {document.id: int(place) for document, place in zip(self.documents(places), places, strict=True)}
        return {name: found[name] for name in wanted.values() if name in found}

    def vectors_of(self, numbers: Sequence[int]) -> Vectors:
        """Return the vectors of documents by their numbers, as `PretrainedModel.embed` gives them."""
        return self.vectors.of([self._checked(each) for each in numbers])


def _described(record: IndexRecord) -> str:
    return f"{FORMS[record.form].noun} [{record.width:,}] in {record.dtype}"


def read_index(directory: pathlib.Path) -> IndexRecord:
    """Return the record of a finished index; raise a UserError if there is none, or it is damaged."""
    file = directory / RECORD
    if not file.is_file():
        if (directory / UNFINISHED).is_file():
            raise UserError(f"{directory} is an index that was interrupted; the command that began it finishes it")
        reason = f"it has no {RECORD}" if directory.is_dir() else "there is no such directory"
        raise UserError(f"{directory} is not an index: {reason}; make one: bert-jax index CORPUS --model=… --output=…")
    record = _read_record(file)
    types = get_args(VectorType) if record.form == "single" else ("float32", "float16")
    if record.count < 1 or record.block < 1 or record.width < 1 or record.dtype not in types:
        raise UserError(f"{file} says what no index has: {to_dict(record)!r:.300}; {AGAIN}")
    return record


def _read_record(file: pathlib.Path) -> IndexRecord:
    try:
        values = unsealed(read_object(file, AGAIN))
    except UserError as error:
        raise UserError(str(error) if AGAIN in str(error) else f"{file}: {error}; {AGAIN}") from None
    if values.get("version") != VERSION:
        raise UserError(f"{file} is of version {values.get('version')!r:.20}; this one reads {VERSION}; {AGAIN}")
    return from_record(IndexRecord, values, str(file))


def _write_record(file: pathlib.Path, record: IndexRecord) -> None:
    write_atomically(file, (json.dumps(sealed(to_dict(record)), indent=1) + "\n").encode())


def embedded(
    model: PretrainedModel,
    record: IndexRecord,
    texts: list[str],
    batch_size: int,
    prompt: Prompt = "document",
) -> Vectors:
    """Return the vectors of texts as an index has them, in float32."""
    form = form_of(record.form, record.dtype)
    options = form.options(prompt, record.pooling, record.normalize, record.max_length)
    vectors = model.embed(texts, **options, prompt=prompt, batch_size=batch_size, progress=False)
    form.check(vectors, f"the vectors of {model.path}")
    return vectors


def run_index(corpus: str | os.PathLike[str], config: IndexConfig) -> SearchIndex:
    """Write the index of a corpus, print what it is, and return it opened.

    An indexing that was interrupted goes on after its last whole block if corpus, model and options are the same.

    Args:
      corpus: its file, or a directory of BEIR; see IndexConfig.format.
      config: the options.

    Raises:
      UserError: the corpus is damaged, there is no such model, it has no vocabulary, or the output is taken.
    """
    check_options(config, IndexConfig)
    config.check()
    file = beir.corpus_file(corpus)
    output = pathlib.Path(config.output).expanduser()
    _check_output(output, config.overwrite)
    need_model(config.model)
    with _taken(output):
        documents = _Corpus.written(file, config, output)
        model = load(config.model)
        model.need_tokenizer()
        form = model.vector_form if config.pooling is None else "single"
        FORMS[form].check_options(config)
        check_max_length(config.max_length, model.config.longest_sequence)
        record = IndexRecord(
            version=VERSION,
            model=model.path,
            fingerprint=model.fingerprint,
            pooling=config.pooling or model.embedding.pooling,
            normalize=config.normalize,
            max_length=config.max_length or model.embedding.max_length,
            dtype=config.dtype,
            block=config.block,
            corpus=os.path.abspath(os.path.expanduser(file)),
            corpus_fingerprint=documents.fingerprint,
            count=documents.count,
            width=0,
            form=form,
        )
        _begin(output, record, config.overwrite)
        documents.keep(output)
        width = _write_vectors(output, record, model, config.batch_size)
        _write_record(output / RECORD, dataclasses.replace(record, width=width))
        (output / UNFINISHED).unlink(missing_ok=True)
    index = SearchIndex(config.output, model=model)
    size = sum(each.stat().st_size for each in output.rglob("*") if each.is_file())
    print(f"{config.output}: {len(index):,} documents, {_described(index.record)}, {size / 1e6:,.1f} MB")
    return index


def _check_output(output: pathlib.Path, overwrite: bool) -> None:
    """Raise a UserError if a finished index must stay as it is, or the place holds anything else."""
    if output.exists() and not output.is_dir():
        raise UserError(f"output={output} is a file; give a directory")
    if not output.exists() or not (names := {each.name for each in output.iterdir()} - {OWNER}):
        return
    if not {RECORD, UNFINISHED} & names:
        raise UserError(f"output={output} holds {min(names)} and is no index; give an empty directory or a new one")
    if RECORD in names and not overwrite:
        raise UserError(f"output={output} already holds an index; give another directory, or --overwrite to replace it")


@contextlib.contextmanager
def _taken(output: pathlib.Path) -> Iterator[None]:
    """Make and own a directory during the block; one that was made for nothing is removed."""
    made = [each for each in (output, *output.parents) if not each.exists()]
    try:
        output.mkdir(parents=True, exist_ok=True)
        owner = Owner(epath.Path(output), OWNER, _refusal, lasting=False)
    except OSError as error:
        raise UserError(f"output={output} cannot be written: {error.strerror or error}; choose another") from None
    try:
        yield
    except OSError as error:
        raise UserError(f"output={output} cannot be written: {error.strerror or error}; give it more space") from None
    finally:
        owner.release()
        for name in CORPUS:
            (output / f"{name}.partial").unlink(missing_ok=True)
        for each in made:
            if any(each.iterdir()):
                break
            each.rmdir()


def _refusal(directory: epath.Path, facts: dict[str, Any]) -> UserError:
    return UserError(
        f"output={directory} is being written by process {facts.get('pid', '?')} on {facts.get('host', '?')}; wait for "
        "it, or give another directory"
    )


def _begin(output: pathlib.Path, record: IndexRecord, overwrite: bool) -> None:
    """Remove the files of an index that is replaced; raise a UserError about an interrupted one of something else."""
    if (file := output / UNFINISHED).is_file() and not overwrite:
        begun = _read_record(file)
        if begun == record:
            return
        names = [field.name for field in dataclasses.fields(record)]
        changed = next(name for name in names if getattr(begun, name) != getattr(record, name))
        raise UserError(
            f"output={output} is an interrupted index with {changed}={getattr(begun, changed)}, not "
            f"{getattr(record, changed)}; go on with the same corpus, model and options, or replace it with --overwrite"
        )
    (output / RECORD).unlink(missing_ok=True)  # without it the rest is no index
    shutil.rmtree(output / VECTORS, ignore_errors=True)
    _write_record(output / UNFINISHED, record)


def _write_vectors(output: pathlib.Path, record: IndexRecord, model: PretrainedModel, batch_size: int) -> int:
    """Write the blocks of vectors that are not there yet; return the width of a vector."""
    directory, form = output / VECTORS, form_of(record.form, record.dtype)
    directory.mkdir(exist_ok=True)
    blocks = [files_of(directory, form, number) for number in range(-(-record.count // record.block))]
    done = next((number for number, files in enumerate(blocks) if not files[form.parts[-1]].exists()), len(blocks))
    offsets = np.load(output / OFFSETS, mmap_mode="r", allow_pickle=False)
    with (
        open(output / DOCUMENTS, "rb") as stream,
        progress_bar("documents", record.count, completed=min(done * record.block, record.count)) as moved,
    ):
        for number in range(done, len(blocks)):
            start, end = number * record.block, min((number + 1) * record.block, record.count)
            stream.seek(int(offsets[start]))
            pieces = _pieces(stream, record, model, batch_size, range(start, end), moved)
            form.write(blocks[number], pieces, record.dtype)
    return form.width(blocks[0])


def _pieces(
    stream: Any,
    record: IndexRecord,
    model: PretrainedModel,
    batch_size: int,
    numbers: range,
    moved: Callable[[int], None],
) -> Iterator[Vectors]:
    """Yield the vectors of the documents that a stream has next, some batches of them at a time."""
    step = batch_size * BATCHES
    for first in numbers[::step]:
        rows = [json.loads(stream.readline()) for _ in range(first, min(first + step, numbers.stop))]
        texts = [Document(row["_id"], row["title"], row["text"]).whole for row in rows]
        yield embedded(model, record, texts, batch_size)
        moved(first + len(rows))


def _hashed(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


@dataclasses.dataclass(frozen=True)
class _Corpus:
    """The documents of an index, written next to its other files until `keep` gives them their names."""

    count: int
    fingerprint: str

    @classmethod
    def written(cls, file: str, config: IndexConfig, output: pathlib.Path) -> "_Corpus":
        """Check and write the documents of a file.

        Raises:
          UserError: see `read_corpus`; two documents have the same id; or there are none.
        """
        format = beir.file_format(file) if config.format == "auto" else config.format
        offsets, ids, digest = array.array("q", [0]), array.array("Q"), hashlib.sha256()
        partial = output / f"{DOCUMENTS}.partial"
        size = os.path.getsize(path) if os.path.isfile(path := os.path.expanduser(file)) else None
        with open(partial, "wb") as stream, progress_bar("reading", size, unit="bytes") as moved:
            documents = beir.read_corpus(
                file,
                format,
                keep_empty=config.empty == "keep",
                max_expansion=config.max_expansion,
                moved=moved,
            )
            for document in documents:
                row = {"_id": document.id, "title": document.title, "text": document.text}
                line = (json.dumps(row, ensure_ascii=False) + "\n").encode()
                stream.write(line)
                digest.update(line)
                offsets.append(offsets[-1] + len(line))
                ids.append(_hashed(document.id))
        if not ids:
            raise UserError(f"{file} holds no document")
        hashes = np.frombuffer(ids, np.uint64)
        _check_unique(file, partial, hashes)
        for name, values in ((OFFSETS, np.frombuffer(offsets, np.int64)), (IDS, hashes)):
            with open(output / f"{name}.partial", "wb") as stream:
                np.save(stream, values, allow_pickle=False)
        return cls(len(ids), digest.hexdigest())

    def keep(self, output: pathlib.Path) -> None:
        for name in CORPUS:
            os.replace(output / f"{name}.partial", output / name)


def _check_unique(file: str, documents: pathlib.Path, hashes: np.ndarray) -> None:
    """Raise a UserError if two documents have the same id, as their hashes suggest, and the ids themselves show."""
    in_order = np.sort(hashes)
    repeated = in_order[1:][in_order[1:] == in_order[:-1]]
    if not repeated.size:
        return
    places, suspect = np.flatnonzero(np.isin(hashes, repeated)), {}
    wanted = set(places.tolist())
    with open(documents, "rb") as stream:
        for number, line in enumerate(stream):
            if number not in wanted:
                continue
            name = json.loads(line)["_id"]
            if name in suspect:
                raise UserError(
                    f"{file}: documents {suspect[name] + 1:,} and {number + 1:,} have the same id {name!r:.80}; ids "
                    "must differ"
                )
            suspect[name] = number
