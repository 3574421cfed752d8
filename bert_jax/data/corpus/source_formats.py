"""Tells the format of a file by its name and its beginning, and checks that the libraries are there that read it."""

from bert_jax.data.corpus import arrow_documents, warc, wikipedia
from bert_jax.data.corpus.compression import need_decompressor, opened, refuse_unnamed_compression, suffix
from bert_jax.errors import UserError

_BEGINNING_BYTES = 1 << 16


def guess_format(name: str, size: int) -> str:
    """Return the format of a file of `size` bytes.

    Raises:
      UserError: it cannot be read, is an archive, or is compressed otherwise than its name says.
    """
    plain = name.removesuffix(suffix(name))
    if plain.endswith((".jsonl", ".json")):
        return "jsonl"
    if plain.endswith(tuple(arrow_documents.ENDINGS)):
        return next(format for ending, format in arrow_documents.ENDINGS.items() if plain.endswith(ending))
    if not size:
        return "text"
    need_decompressor(name)
    with opened(name) as (stream, _):
        beginning = stream.read(_BEGINNING_BYTES)
    refuse_unnamed_compression(name, beginning)
    for magic, format in arrow_documents.BEGINNINGS.items():
        if beginning.startswith(magic):
            return format
    if beginning.startswith(warc.BEGINNING):
        return "warc"
    if wikipedia.begins(beginning):
        return "wikipedia"
    begins = beginning.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"<doc ")
    return "wikiextractor" if begins else "text"


def need_libraries(name: str, format: str) -> None:
    """Check that what reads a file of this name and format is installed.

    Raises:
      UserError: it is not, and the message names the extra to install; or the format has a compression of its own, and
        the file is compressed besides.
    """
    if format in ("parquet", "arrow"):
        arrow_documents.need_library(name)
        if suffix(name):
            raise UserError(f"{name}: {format} files are compressed inside; decompress this one first")
    need_decompressor(name)
    if format == "wikipedia":
        wikipedia.need_parser(name)
