"""Collections to search, in BEIR's form or as plain text: documents, queries and judgements, each line checked.

A corpus is read line by line, in the memory of a mebibyte or of its longest line, plain or compressed. What is wrong
with a line is said with its number.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from bert_jax.config.corpora import MOST_EXPANSION
from bert_jax.corpus.blocks import Limits, Source, read_blocks, refuse_unnamed_compression, suffix
from bert_jax.corpus.readers import need_libraries
from bert_jax.errors import UserError
from bert_jax.files import LONE_RETURNS, is_remote, parse_object, wide_encoding

Format = Literal["beir", "tsv", "text"]
HEADER = ["query-id", "corpus-id", "score"]
"""The columns of judgements, as BEIR's files begin."""
_SCORE = re.compile(r"-?\d{1,9}", re.ASCII)
_MARK = b"\xef\xbb\xbf"


class Document(NamedTuple):
    """A document, or a query, which has no title."""

    id: str
    title: str
    text: str

    @property
    def whole(self) -> str:
        """Title and text as BEIR joins them for a model to read."""
        return f"{self.title} {self.text}".strip()


Judgements = dict[str, dict[str, int]]
"""Scores by query, then by document; those of 1 and more are relevant."""


def corpus_file(path: str | os.PathLike[str]) -> str:
    """Return the file of a corpus: the path itself or, of a directory of BEIR, its corpus.jsonl, which may be packed.

    Raises:
      UserError: there is none.
    """
    if not isinstance(path, str | os.PathLike):
        raise UserError(f"a corpus is a file or a directory, not {path!r:.60}; write its documents to a .jsonl first")
    path = os.fspath(path)
    directory = os.path.expanduser(path)
    if is_remote(path) or not os.path.isdir(directory):
        return path
    names = [f"corpus.jsonl{ending}" for ending in ("", ".gz", ".bz2", ".xz", ".zst")]
    if found := [name for name in names if os.path.isfile(os.path.join(directory, name))]:
        return os.path.join(path, found[0])
    raise UserError(f"{path} is a directory without corpus.jsonl or corpus.jsonl.gz; give the file of the corpus")


def file_format(name: str) -> Format:
    """Return the format of a file by its name, before .gz and the like."""
    ending = os.path.splitext(name.removesuffix(suffix(name)))[1]
    return "beir" if ending == ".jsonl" else "tsv" if ending == ".tsv" else "text"


def read_corpus(
    name: str,
    format: Format,
    *,
    keep_empty: bool = False,
    max_expansion: int = MOST_EXPANSION,
    moved: Callable[[int], None] = lambda consumed: None,
) -> Iterator[Document]:
    """Yield the documents of a file.

    Whether an id occurs twice is for the caller to find out, who keeps something of each.

    Args:
      keep_empty: whether a document without any text is one all the same.
      max_expansion: see IndexConfig.
      moved: called with the bytes of the file that have been read.

    Raises:
      UserError: the file cannot be read, a line is not UTF-8, not of the format, or has no id or text.
    """
    columns = 0
    for number, line in _lines(name, max_expansion, moved):
        if format == "beir":
            document = document_of(_object(name, number, line), f"{name}, line {number}")
        elif format == "tsv":
            fields = _text(name, number, line).split("\t")
            columns = columns or len(fields)
            if len(fields) != columns or not 2 <= columns <= 3:
                shape = "id and text, or id, title and text, between tabs" if columns == len(fields) else f"{columns}"
                raise UserError(f"{name}, line {number}: {len(fields)} columns; expected {shape}")
            document = Document(fields[0], fields[1] if columns == 3 else "", fields[-1])
        else:
            document = Document(str(number), "", _text(name, number, line))
        _check_id(document.id, f"{name}, line {number}")
        if not (keep_empty or document.whole):
            raise UserError(
                f"{name}, line {number}: the document {document.id!r:.80} has no text; remove it, or keep it as an "
                "empty one with --empty=keep"
            )
        yield document


def read_queries(name: str) -> dict[str, str]:
    """Return the texts of queries by their ids, in the order of the file.

    Raises:
      UserError: see `read_corpus`; an id occurs twice; or there is no query.
    """
    found: dict[str, str] = {}
    for document in read_corpus(name, file_format(name), keep_empty=True):
        if document.id in found:
            raise UserError(f"{name}: two queries have the id {document.id!r:.80}; ids must differ")
        if not document.whole:
            raise UserError(f"{name}: the query {document.id!r:.80} has no text; remove it")
        found[document.id] = document.whole
    if not found:
        raise UserError(f"{name} holds no query")
    return found


def read_judgements(name: str, queries: Mapping[str, str]) -> Judgements:
    """Return the judgements of a file, whose queries must be among `queries`.

    Raises:
      UserError: the header or a column is missing, a score is no whole number, a pair is judged twice, a query is not
        there, or nothing is relevant.
    """
    found: Judgements = {}
    header = None
    for number, line in _lines(name):
        fields, where = _text(name, number, line).split("\t"), f"{name}, line {number}"
        if header is None:
            header = fields
            if header != HEADER:
                raise UserError(f"{where}: {header!r:.120} must be the header {' '.join(HEADER)}, between tabs")
            continue
        if len(fields) != len(HEADER):
            raise UserError(f"{where}: {len(fields)} columns; expected {len(HEADER)}, {' '.join(HEADER)}, between tabs")
        query, document, score = fields
        if not _SCORE.fullmatch(score):
            raise UserError(f"{where}: the score {score!r:.40} is no whole number, such as 0, 1 or 2")
        if query not in queries:
            raise UserError(f"{where}: there is no query {query!r:.80} among the {len(queries):,} queries given")
        judged = found.setdefault(query, {})
        if document in judged:
            raise UserError(f"{where}: query {query!r:.80} and document {document!r:.80} are judged a second time")
        judged[document] = int(score)
    if not found:
        raise UserError(f"{name} holds no judgement")
    if not any(score > 0 for judged in found.values() for score in judged.values()):
        raise UserError(f"{name}: no score is 1 or more, so no document is relevant and nothing can be found")
    return found


def _lines(
    name: str, max_expansion: int = MOST_EXPANSION, moved: Callable[[int], None] = lambda consumed: None
) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the bytes of every line that is not blank, without the end of the line."""
    source = _source(name, max_expansion)
    try:
        for block in read_blocks(source):
            payload = block.payload
            if not block.start.offset:
                refuse_unnamed_compression(name, payload)
                if wide := wide_encoding(payload):
                    raise UserError(f"{name} is {wide}, not UTF-8; convert it: iconv -f {wide} -t UTF-8 FILE > NEW")
                if b"\n" not in payload and b"\r" in payload.rstrip(b"\r"):
                    raise UserError(f"{name}: {LONE_RETURNS}")
                payload = payload.removeprefix(_MARK)
            for number, line in enumerate(payload.split(b"\n"), block.start.line + 1):
                if line.strip():
                    yield number, line.removesuffix(b"\r")
            moved(block.consumed)
    except OSError as error:
        raise UserError(f"{name} cannot be read: {error.strerror or error}") from None


def _source(name: str, max_expansion: int) -> Source:
    """Return a file of whole lines; raise a UserError if it is not a file on this machine, or has no contents."""
    path = os.path.expanduser(name)
    if is_remote(name):
        raise UserError(f"{name:.200} is not on this machine; copy it here, and give that file")
    if not os.path.isfile(path):  # a pipe or a device may never end
        raise UserError(f"{name}: " + ("not a file" if os.path.exists(path) else "no such file"))
    need_libraries(path, "jsonl")
    if not (size := os.path.getsize(path)):
        raise UserError(f"{name} is empty: 0 bytes")
    return Source(path, "jsonl", size, "", limits=Limits(expansion=max_expansion))


def _text(name: str, number: int, line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{name}, line {number}: not UTF-8 (byte 0x{line[error.start]:02x}); convert it, for example with iconv -f "
            "latin1 -t utf-8"
        ) from None


def _object(name: str, number: int, line: bytes) -> dict[str, Any]:
    _text(name, number, line)
    try:
        return parse_object(line)
    except ValueError as error:
        raise UserError(f'{name}, line {number} {error}; expected {{"_id": …, "text": …}}') from None


def document_of(values: Mapping[str, Any], where: str) -> Document:
    """Return the document of an object of BEIR's corpus; a UserError if a part is no string, or is missing."""
    parts = []
    for key in ("_id", "title", "text"):
        value = values.get(key, "" if key == "title" else None)
        if not isinstance(value, str):
            seen = f"{key}={value!r:.60}" if key in values else f"no {key!r} but {', '.join(values)!r:.80}"
            raise UserError(f"{where}: {seen}; expected a string, as in BEIR's files")
        parts.append(value)
    return Document(*parts)


def _check_id(name: str, where: str) -> None:
    if not name.strip():
        raise UserError(f"{where}: the id is empty")
    if re.search(r"[\t\r\n]", name):
        raise UserError(f"{where}: the id {name!r:.80} has a tab or a line end, which judgements and runs cannot hold")
