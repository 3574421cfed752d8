"""Resolve `--input` into sources, recognize their formats, and read documents from them.

An input is one or several of these, separated by commas: a file, a directory (every file below it that is not hidden,
sorted), a glob, `tfds:name[/config][:version][:split]`, `hf://datasets/owner/name[@revision][:configuration[:split]]`
of the Hugging Face hub, `docs:` (see documentation.py). Files are local or gs://, plain or compressed: plain text (a
paragraph or a sentence per line, a blank line between documents), JSON lines, WikiExtractor output, MediaWiki exports,
WET and WARC, books of Project Gutenberg, Parquet and Arrow. The name and the beginning of a file determine its format;
missing libraries are reported before reading.
"""

import dataclasses
import itertools
import os
import re
from collections.abc import Iterator

from etils import epath

from bert_jax.corpus import crawls, datasets, documentation, wikipedia
from bert_jax.corpus.blocks import (
    USUAL,
    Limits,
    Source,
    opened,
    parse_block,
    read_blocks,
    refuse_unnamed_compression,
    suffix,
)
from bert_jax.errors import UserError, need_extra
from bert_jax.files import is_remote

_BEGINNING_BYTES = 1 << 16


def guess_format(name: str, size: int) -> str:
    """Return the format of a file of `size` bytes.

    Raises:
      UserError: it cannot be read, is an archive, or is compressed otherwise than its name says.
    """
    plain = name.removesuffix(suffix(name))
    if plain.endswith((".jsonl", ".json")):
        return "jsonl"
    if plain.endswith(tuple(datasets.ENDINGS)):
        return next(format for ending, format in datasets.ENDINGS.items() if plain.endswith(ending))
    if not size:
        return "text"
    _need_decompressor(name)
    with opened(name) as (stream, _):
        beginning = stream.read(_BEGINNING_BYTES)
    refuse_unnamed_compression(name, beginning)
    for magic, format in datasets.BEGINNINGS.items():
        if beginning.startswith(magic):
            return format
    if beginning.startswith(crawls.BEGINNING):
        return "warc"
    if wikipedia.begins(beginning):
        return "wikipedia"
    begins = beginning.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"<doc ")
    return "wikiextractor" if begins else "text"


LIBRARIES = {"parquet": "pyarrow", "arrow": "pyarrow", "wikipedia": "mwparserfromhell"}
"""What reads a format, if it comes with the extra `corpora`."""


def need_libraries(name: str, format: str) -> None:
    """Check that what reads a file of this name and format is installed.

    Raises:
      UserError: it is not, and the message names the extra to install; or the format has a compression of its own, and
        the file is also compressed.
    """
    if format in LIBRARIES:
        need_extra(LIBRARIES[format], "corpora", name)
    if format in ("parquet", "arrow") and suffix(name):
        raise UserError(f"{name}: {format} files are compressed inside; decompress this one first")
    _need_decompressor(name)


def _need_decompressor(name: str) -> None:
    if suffix(name) == ".zst":
        need_extra("backports.zstd", "corpora", name)


WITH_FIELDS = ("jsonl", "parquet", "arrow", "tfds", "hub")
"""Formats whose records have fields, one of which is the text."""

FILE_FORMATS = ("text", "jsonl", "wikiextractor", "wikipedia", "warc", "gutenberg", "parquet", "arrow")


@dataclasses.dataclass(frozen=True)
class Corpus:
    """The documents of some sources; each iteration reads them again."""

    sources: list[Source]
    text_field: str
    bad_utf8: str

    def __iter__(self) -> Iterator[str]:
        """Yield every document as one string, its lines separated by a line feed, none of them blank."""
        for source in self.sources:
            for is_document, lines in itertools.groupby(read_lines(source, self.text_field, self.bad_utf8), key=bool):
                if is_document:
                    yield "\n".join(lines)


def read_documents(
    input: str,
    *,
    format: str = "auto",
    text_field: str = "text",
    bad_utf8: str = "error",
    limits: Limits = USUAL,
) -> Corpus:
    """Return the documents of the corpus; the call itself resolves the sources.

    Args:
      input, format, text_field, bad_utf8: as in PrepareConfig.
      limits: beyond which a file is refused.

    Raises:
      UserError: see `find_sources` and, during an iteration, `read_lines`.
    """
    return Corpus(find_sources(input, format, text_field=text_field, limits=limits), text_field, bad_utf8)


def read_lines(source: Source, text_field: str = "text", bad_utf8: str = "error") -> Iterator[str]:
    """Yield the lines of a source, with an empty one before each document.

    Raises:
      UserError: see `blocks.read_blocks` and `blocks.parse_block`.
    """
    for block in read_blocks(source, text_field):
        for index, piece in enumerate(parse_block(block, text_field, bad_utf8).pieces):
            if index or not block.continues:
                yield ""
            yield from piece


def find_sources(
    input: str, format: str = "auto", license: str = "", text_field: str = "text", limits: Limits = USUAL
) -> list[Source]:
    """Resolve `--input` into its sources, in the order given, each file once.

    Raises:
      UserError: nothing matches (the message names glob and directory), all files are empty, a prefix contradicts
        `format`, a TFDS data set is unknown, `license` has neither one licence nor one for each item of `input`, or
        `text_field` is given where nothing has fields.
    """
    items = [item.strip() for item in input.split(",") if item.strip()]
    if not items:
        raise UserError(
            "input is empty; give files, directories, globs, tfds:name, hf://datasets/owner/name or docs: (the "
            "embedded documentation)"
        )
    licences = _licences(license, items)
    sources = {
        source.name: dataclasses.replace(source, license=licence or source.license, limits=limits)
        for item, licence in zip(items, licences, strict=True)
        for source in _find(item, format)
    }
    if all(source.format in FILE_FORMATS and not source.bytes for source in sources.values()):
        raise UserError(f"the corpus is empty: {input} is {len(sources)} file{'s' * (len(sources) > 1)} of 0 bytes")
    if text_field != "text" and not any(source.format in WITH_FIELDS for source in sources.values()):
        raise UserError(
            f"text_field={text_field} has no effect, since no source is of {', '.join(WITH_FIELDS)}; leave it out, or "
            "give the format"
        )
    return list(sources.values())


def _licences(license: str, items: list[str]) -> list[str]:
    given = [licence.strip() for licence in license.split(",")]
    if len(given) not in (1, len(items)):
        raise UserError(
            f"license={license!r} has {len(given)} licences, and input names {len(items)} "
            f"source{'s' * (len(items) > 1)}; give one for all, or one for each, with commas between"
        )
    return given * len(items) if len(given) == 1 else given


def _find(item: str, format: str) -> Iterator[Source]:
    prefix = item.partition(":")[0] if item.startswith(("tfds:", "hf:", "docs:")) else ""
    if format == "docs" or (prefix == "docs" and format == "auto"):
        if item != "docs:":
            raise UserError(f"input={item!r}: the embedded documentation is given as docs: alone")
        yield Source("docs:", "docs", *documentation.describe())
    elif format == "tfds" or (prefix == "tfds" and format == "auto"):
        name = item if prefix else f"tfds:{item}"
        for file, size, version in datasets.files(name):
            yield Source(file, "tfds", size, version)
    elif prefix == "hf" and format == "auto":
        for file, size, commit in datasets.hub_files(item):
            yield Source(file, "hub", size, commit)
    elif prefix:
        raise UserError(f"input={item!r} contradicts format={format}; leave the format out")
    else:
        licence = datasets.licence(epath.Path(item).expanduser())
        for path in _files(item):
            yield dataclasses.replace(_describe_file(path, format), license=licence)


def _files(item: str) -> list[epath.Path]:
    path = epath.Path(item).expanduser()
    if path.is_dir():
        if saved := datasets.saved_dataset(path):
            return saved
        files = sorted(_walk(path))
        if not files:
            raise UserError(f"input={item!r}: no file in or below the directory {path}")
        return files
    if path.exists():
        return [path]
    wild = next((i for i, part in enumerate(path.parts) if re.search(r"[*?\[]", part)), None)
    if wild is None:
        raise UserError(f"input={item!r}: no such file; the directory {path.parent} {_holdings(path.parent)}")
    directory, pattern = epath.Path(*path.parts[:wild]), os.path.join(*path.parts[wild:])
    if "**" in pattern:
        raise UserError(f"input={item!r}: ** is not supported; name a directory to read every file below it")
    files = sorted(file for file in directory.glob(pattern) if not file.is_dir()) if directory.is_dir() else []
    if not files:
        raise UserError(
            f"input={item!r}: no file matches the glob {pattern!r} in the directory {directory}, "
            f"which {_holdings(directory)}"
        )
    return files


def _holdings(directory: epath.Path) -> str:
    if not directory.is_dir():
        return "does not exist"
    names = sorted(path.name for path in directory.iterdir())
    return f"holds {', '.join(names[:5])}{', …' if len(names) > 5 else ''}" if names else "is empty"


def _walk(directory: epath.Path) -> Iterator[epath.Path]:
    for path in directory.iterdir():
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from _walk(path)
        else:
            yield path


def _size_and_revision(path: epath.Path) -> tuple[int, int | float]:
    if not is_remote(path):
        status = os.stat(path)
        return status.st_size, status.st_mtime_ns
    remote = path.stat()
    return remote.length, remote.mtime


def _describe_file(path: epath.Path, format: str) -> Source:
    name = os.fspath(path)
    try:
        size, revision = _size_and_revision(path)
    except OSError as error:
        raise UserError(f"{name} cannot be read: {error.strerror or error}") from error
    format = guess_format(name, size) if format == "auto" else format
    need_libraries(name, format)
    return Source(name, format, size, str(revision))
