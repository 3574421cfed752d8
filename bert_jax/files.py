"""Atomic writing, bounded and checked reading of text and JSON that others wrote, and the user's cache directory."""

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

REMEDY = "fetch the file again, or have its owner save the model again"
"""The way out where a file of a model is damaged."""
LONGEST_JSON = 1 << 28  # bytes; the tokenizer.json of a quarter of a million entries takes a tenth of that
LONGEST_LOG = 1 << 32  # bytes; ten million lines of metrics


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Return whether a path has the form gs://…, so that the operating system cannot open it."""
    return "://" in os.fspath(path)


def near_path(path: str) -> str:
    """Return a path as seen from the current directory if that is shorter."""
    return path if is_remote(path) else min(path, os.path.relpath(path), key=len)


def inside(directory: epath.Path, name: str) -> epath.Path:
    """Return directory/name if it is a plain file there: no way up, and no link that leads out.

    The cache of the Hugging Face hub is allowed, whose snapshots have links to the blobs next to them.
    """
    file = directory / name
    if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise UserError(
            f"{directory} refers to a file named {name!r:.80}: only files in the directory itself are opened"
        )
    if is_remote(directory):
        return file
    home, target = os.path.realpath(directory), os.path.realpath(file)
    above, _, below = home.rpartition(f"{os.sep}snapshots{os.sep}")
    is_snapshot = above and below.count(os.sep) < 2  # itself, or the directory of a module in it
    allowed = [home, os.path.join(above, "blobs")] if is_snapshot else [home]
    if os.path.dirname(target) not in allowed:
        raise UserError(f"{file} is a link to {target}, outside its directory; copy the file there if that is intended")
    if not os.path.isfile(target):
        raise UserError(f"{file} is missing or is not a file; {REMEDY}")
    return file


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


def check_output_place(file: str) -> None:
    """Raise a UserError if there is no directory for a local file, before minutes are spent on what should go there."""
    directory = os.path.dirname(file) or "."
    if not is_remote(file) and not (os.path.isdir(directory) and os.access(directory, os.W_OK)):
        raise UserError(
            f"cannot write output={file}: {directory} is not a writable directory; make it or choose another"
        )
    if os.path.isdir(file):
        raise UserError(f"cannot write output={file}: it is a directory; give a file")


def write_output(file: str, contents: bytes) -> None:
    """Write the file that --output names, as `write_atomically` does; raise a UserError if it cannot be written."""
    try:
        write_atomically(file, contents)
    except OSError as error:
        raise UserError(f"cannot write output={file}: {error.strerror or error}") from None


def read_bytes(file: str | os.PathLike[str], most: int = LONGEST_JSON) -> bytes:
    """Return the contents of a file, local or gs://, that anybody may have put there.

    Pipes, which may never end or never begin, and devices such as /dev/zero are refused; `read_text` reads them.

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


def read_text(file: str | os.PathLike[str], by_line: bool = True) -> str:
    """Return the contents of a UTF-8 file (local or gs://) without its byte order mark; see `decoded`.

    Raises:
      UserError: the file cannot be read, or `decoded` refuses its contents.
    """
    try:
        contents = epath.Path(file).read_bytes()
    except OSError as error:
        raise UserError(f"{os.fspath(file)} cannot be read: {error.strerror or error}") from None
    return decoded(contents, os.fspath(file), by_line)


def decoded(contents: bytes, name: str, by_line: bool = True) -> str:
    """Return UTF-8 text without its byte order mark. Lines end in LF or CR LF, and in nothing else.

    Args:
      by_line: whether the text is read by its lines, so that there must be some.

    Raises:
      UserError: it is UTF-16, UTF-32 or otherwise not UTF-8 (with the line), or all its lines end in CR alone. The
        message begins with `name`.
    """
    if wide := wide_encoding(contents):
        raise UserError(f"{name} is {wide}, not UTF-8; convert it: iconv -f {wide} -t UTF-8 FILE > NEW")
    try:
        text = contents.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = contents.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{name}, line {line}: not UTF-8 (byte 0x{contents[error.start]:02x}); "
            "convert it, for example with iconv -f latin1 -t utf-8"
        ) from None
    if by_line and "\n" not in text and "\r" in text:
        raise UserError(f"{name}: {LONE_RETURNS}")
    return text


LONE_RETURNS = (
    "its lines end in carriage returns alone, as on an old Macintosh, not in line feeds; convert it: "
    r"tr '\r' '\n' < FILE > NEW"
)


def lines_of(text: str) -> list[str]:
    """Return the lines of a text without their ends, LF or CR LF; other separators of Unicode are text."""
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def parsed(text: str) -> Any:
    """Return the value of JSON that other people wrote, in which a whole number may have any number of digits.

    Raises:
      ValueError: `text` is not JSON.
      RecursionError: it is nested too deeply.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError:  # Python reads no more than 4,300 digits, because that takes long
        return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) < 1000 else float(digits))


def wide_encoding(beginning: bytes) -> str:
    """Return the name for iconv of the encoding of units of 2 or 4 bytes that a file begins in; "" for any other.

    It shows by the byte order mark or, without one, by the zeros of ASCII text, every second byte.
    """
    for mark, encoding in _MARKS.items():
        if beginning.startswith(mark):
            return encoding
    sample = beginning[:1024]
    for encoding, zeros, others in (("UTF-16LE", sample[1::2], sample[::2]), ("UTF-16BE", sample[::2], sample[1::2])):
        if len(sample) > 1 and zeros.count(0) > 0.5 * len(zeros) > 0 == others.count(0):
            return encoding
    return ""


_MARKS = {b"\xff\xfe\0\0": "UTF-32", b"\0\0\xfe\xff": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


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


def parse_object(text: bytes, finite: bool = False) -> dict[str, Any]:
    """Return the JSON object in UTF-8 `text`.

    Args:
      finite: whether NaN and Infinity are refused, which JSON has not, and which Python writes all the same.

    Raises:
      ValueError: `text` is not JSON or not an object, or has duplicate names, numbers beyond 64 bits, half a surrogate
        pair or endless nesting, none of which a writer intends. The message lacks its subject, the file.
    """
    try:
        hooks: dict[str, Any] = {"parse_constant": _no_number} if finite else {}
        values = json.loads(text.decode(), parse_int=_integer, parse_float=_float, object_pairs_hook=_unique, **hooks)
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


def _no_number(name: str) -> float:
    raise ValueError(f"has {name}, which is no number of JSON")


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
