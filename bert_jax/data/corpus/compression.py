"""Opens a file of a corpus, decompressed if its name says that it is compressed: .gz, .bz2, .xz or .zst.

A file of several streams (the multistream dumps of Wikipedia, a crawl with one per record) is read as one text.
"""

import bz2
import contextlib
import gzip
import lzma
import os
import zlib
from collections.abc import Iterator
from typing import IO, Any

from etils import epath

from bert_jax.errors import UserError, need_extra

_NAMES = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "Zstandard"}
_BEGINNINGS = {b"\x1f\x8b": ".gz", b"BZh": ".bz2", b"\xfd7zXZ\0": ".xz", b"\x28\xb5\x2f\xfd": ".zst"}
_ARCHIVES = {b"PK\x03\x04": "a zip archive", b"7z\xbc\xaf\x27\x1c": "a 7z archive"}
_SKIP_BYTES = 1 << 20


def suffix(name: str) -> str:
    """Return the ending of `name` that says how the file is compressed, or the empty string."""
    ending = os.path.splitext(name)[1]
    return ending if ending in _NAMES else ""


def need_decompressor(name: str) -> None:
    """Check that the library is installed that decompresses the file.

    Raises:
      UserError: it is compressed with Zstandard, and the extra `corpora` is not installed.
    """
    if suffix(name) == ".zst":
        need_extra("backports.zstd", "corpora", name)


def refuse_unnamed_compression(name: str, beginning: bytes) -> None:
    """Check by its beginning that a file, decompressed as its name says, is not an archive or compressed otherwise.

    Raises:
      UserError: it is; the message says what to do about it.
    """
    for magic, ending in _BEGINNINGS.items():
        if beginning.startswith(magic):
            raise UserError(
                f"{name} is compressed ({_NAMES[ending]}), but its name does not say so; rename it to …{ending}"
            )
    for magic, what in _ARCHIVES.items():
        if beginning.startswith(magic):
            raise UserError(f"{name} is {what}; unpack it, and give the files")


@contextlib.contextmanager
def opened(name: str) -> Iterator[tuple[Any, IO[bytes]]]:
    """Yield (stream of the decompressed bytes, stream of the stored bytes) of a local or remote file.

    Raises:
      UserError: the file cannot be opened, or is not a whole file of its compression. Any other OSError while reading
        is left to the caller, which may resume.
    """
    try:
        raw: Any = epath.Path(name).open("rb")
    except OSError as error:
        raise UserError(f"cannot read {name}: {error.strerror or error}") from error
    with raw:
        if not suffix(name):
            yield raw, raw
            return
        stream, errors = _decompressed(raw, suffix(name))
        try:
            with stream:
                yield stream, raw
        except (EOFError, OSError, *errors) as error:
            if isinstance(error, OSError) and error.errno is not None:  # of the disk or network, not of the contents
                raise
            kind = _NAMES[suffix(name)]
            raise UserError(f"{name} is not a whole {kind} file ({error}); fetch or compress it again") from error


def _decompressed(raw: IO[bytes], ending: str) -> tuple[Any, tuple[type[Exception], ...]]:
    """Return (stream, exceptions that damaged contents raise besides EOFError and an OSError without a number)."""
    if ending == ".gz":
        return gzip.GzipFile(fileobj=raw), (zlib.error,)
    if ending == ".bz2":
        return bz2.BZ2File(raw), ()
    if ending == ".xz":
        return lzma.LZMAFile(raw), (lzma.LZMAError,)
    from backports import zstd

    return zstd.ZstdFile(raw), (zstd.ZstdError,)


def skip(stream: Any, name: str, offset: int) -> None:
    """Advance a stream of `opened`, still at its beginning, by `offset` decompressed bytes."""
    if not suffix(name):
        stream.seek(offset)
        return
    while offset and (data := stream.read(min(offset, _SKIP_BYTES))):
        offset -= len(data)
