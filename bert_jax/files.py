"""Atomic writing of files, bounded reading of those that others may have written, checked JSON, the cache directory."""

import collections
import errno
import hashlib
import json
import math
import os
import pathlib
import shutil
import stat
import tempfile
from typing import Any

from etils import epath

from bert_jax.errors import UserError

LONGEST_JSON = 1 << 28  # bytes; the tokenizer.json of a quarter of a million entries takes a tenth of that
LONGEST_LOG = 1 << 32  # bytes; ten million lines of metrics


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Return whether a path has the form gs://…, so that the operating system cannot open it."""
    return "://" in os.fspath(path)


def near_path(path: str) -> str:
    """Return a path as seen from the current directory if that is shorter."""
    return path if is_remote(path) else min(path, os.path.relpath(path), key=len)


def write_atomically(file: str | os.PathLike[str], contents: bytes) -> None:
    """Write `contents` to `file` (local or gs://) by way of a file next to it, so that no reader ever sees half of it.

    Raises:
      OSError: the file could not be written; its previous contents are unchanged.
    """
    file = epath.Path(file)
    partial = file.parent / f"{file.name}.partial"
    try:
        with partial.open("wb") as stream:
            stream.write(contents)
            if not is_remote(file):
                stream.flush()
                os.fsync(stream.fileno())  # a rename may reach the disk before the bytes do
        partial.replace(file)
    except OSError:
        if partial.exists():
            partial.unlink()
        raise


def read_bytes(file: str | os.PathLike[str], most: int = LONGEST_JSON) -> bytes:
    """Return the contents of a file, local or gs://, that anybody may have put there.

    A pipe, which may never end or never begin, and a device such as /dev/zero are not read.

    Raises:
      OSError: it cannot be read, is not a regular file, or has more than `most` bytes; `strerror` says so.
    """
    file = epath.Path(file)
    if is_remote(file):
        _check_size(file, file.stat().length, most)
        return file.read_bytes()
    with open(file, "rb", opener=_without_waiting) as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(file))
        _check_size(file, status.st_size, most)
        contents = stream.read(most + 1)
    _check_size(file, len(contents), most)  # some of /proc say that they are empty
    return contents


def read_contents(file: str | os.PathLike[str], remedy: str = "fetch it again") -> bytes:
    """Return what `read_bytes` does.

    Raises:
      UserError: it cannot be read; `remedy` ends the message.
    """
    try:
        return read_bytes(file)
    except OSError as error:
        raise UserError(f"{os.fspath(file)} cannot be read: {error.strerror or error}; {remedy}") from None


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # to open a pipe is otherwise to wait for its other end


def _check_size(file: epath.Path, size: int, most: int) -> None:
    if size > most:
        raise OSError(errno.EFBIG, f"it has {size:,} bytes, and at most {most:,} are read", os.fspath(file))


def copy_file(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Copy the contents of a file, local or gs://, piece by piece."""
    with epath.Path(source).open("rb") as contents, epath.Path(target).open("wb") as copy:
        shutil.copyfileobj(contents, copy, 1 << 24)


def cache_directory() -> pathlib.Path:
    """Return the user's directory for what can be made again: $XDG_CACHE_HOME/bert_jax, by default ~/.cache/bert_jax.

    It may not exist yet, and may not be writable. For a user without a home directory it is in the temporary directory.
    """
    try:
        return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "bert_jax"
    except RuntimeError:
        return pathlib.Path(tempfile.gettempdir()) / f"bert_jax-{os.getuid()}"


def read_object(file: str | os.PathLike[str], remedy: str = "fetch it again") -> dict[str, Any]:
    """Return the JSON object in an untrusted file.

    Raises:
      UserError: the file is unreadable or holds no such object (see `parse_object`); `remedy` ends the message.
    """
    contents = read_contents(file, remedy)
    try:
        return parse_object(contents)
    except ValueError as error:
        raise UserError(f"{file} {error}; {remedy}") from None


def parse_object(text: bytes) -> dict[str, Any]:
    """Return the JSON object in UTF-8 `text`.

    Raises:
      ValueError: `text` is not JSON or not an object, or has duplicate names, numbers beyond 64 bits, half a surrogate
        pair or endless nesting, none of which a writer intends. The message lacks its subject, the file.
    """
    try:
        values = json.loads(text.decode(), parse_int=_integer, parse_float=_float, object_pairs_hook=_unique)
        if b"\\ud" in text.lower():
            json.dumps(values, ensure_ascii=False).encode()
    except (json.JSONDecodeError, UnicodeError) as error:
        raise ValueError(f"is not JSON: {error}") from None
    except RecursionError:
        raise ValueError("is not JSON: nested too deeply") from None
    if not isinstance(values, dict):
        raise ValueError(f"must hold a JSON object, not {values!r:.60}")
    return values


def finite_json(value: Any) -> Any:
    """Return `value` as JSON can represent it: it has no NaN and no infinity, but their names read back by float()."""
    if isinstance(value, dict):
        return {str(key): finite_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite_json(each) for each in value]
    return repr(float(value)) if isinstance(value, float) and not math.isfinite(value) else value


_NO_MAXIMUM = str(int(1e30))
"""`model_max_length` of a tokenizer of `transformers` that has none."""


def _integer(digits: str) -> int:
    if digits == _NO_MAXIMUM:
        return int(digits)
    if len(digits) > 20 or not -(2**63) <= int(digits) < 2**64:
        raise ValueError(f"has a number beyond 64 bits, {digits:.30}")
    return int(digits)


def _float(digits: str) -> float:
    if math.isinf(value := float(digits)):
        raise ValueError(f"has a number beyond 64 bits, {digits:.30}")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        ((name, count),) = collections.Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"has {count} values named {name!r:.120}")
    return values


def sealed(values: dict[str, Any]) -> dict[str, Any]:
    """Return `values`, which JSON can represent, with a "checksum" of all of them, which `unsealed` checks."""
    return {**values, "checksum": checksum(values)}


def unsealed(values: dict[str, Any]) -> dict[str, Any]:
    """Return `values` without their "checksum".

    Raises:
      UserError: the values have changed since they were sealed, or were not sealed.
    """
    contents = {key: value for key, value in values.items() if key != "checksum"}
    if "checksum" not in values:
        raise UserError("it has no checksum")
    if values["checksum"] != checksum(contents):
        raise UserError("its contents have changed since it was written (the checksum is wrong)")
    return contents


def checksum(values: dict[str, Any]) -> str:
    """Return the SHA-256 of values that JSON can represent, in hexadecimal."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
