"""Files that are written whole or not at all, JSON that is validated as it is read, the user's cache directory."""

import hashlib
import json
import os
import pathlib

from etils import epath

from bert_jax.errors import UserError


def write_atomically(file: str | os.PathLike, contents: bytes) -> None:
    """Writes `contents` to `file` (local or gs://) beside it first: no reader and no crash ever sees half of it.

    Raises:
      OSError: the file could not be written; what stood there before still does.
    """
    file = epath.Path(file)
    partial = file.parent / f"{file.name}.partial"
    try:
        with partial.open("wb") as stream:
            stream.write(contents)
            if "://" not in os.fspath(file):
                stream.flush()
                os.fsync(stream.fileno())  # a rename may reach the disk before the bytes do
        partial.replace(file)
    except OSError:
        if partial.exists():
            partial.unlink()
        raise


def cache_directory() -> pathlib.Path:
    """Return the user's directory for what can be made again: $XDG_CACHE_HOME/bert_jax, by default ~/.cache/bert_jax.

    It may not exist yet, and may not be writable.
    """
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "bert_jax"


def read_object(file: epath.Path) -> dict:
    """The JSON object in a file that comes from elsewhere; UserError where there is none."""
    try:
        values = json.loads(file.read_text())
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, or nested without end
        raise UserError(f"{file} is not JSON: {error}; fetch it anew") from None
    if not isinstance(values, dict):
        raise UserError(f"{file} must hold a JSON object, not {values!r:.60}")
    return values


def sealed(values: dict) -> dict:
    """Return `values`, which JSON can hold, with a "checksum" over all of them for `unsealed` to check."""
    return {**values, "checksum": _checksum(values)}


def unsealed(values) -> dict:
    """Return the dict `values` without its "checksum"; those written by earlier versions have none.

    Raises:
      UserError: the values are not a dict, or not the one that was sealed.
    """
    if not isinstance(values, dict):
        raise UserError(f"it holds {values!r:.40}, not a JSON object")
    contents = {key: value for key, value in values.items() if key != "checksum"}
    if "checksum" in values and values["checksum"] != _checksum(contents):
        raise UserError("its contents have changed since it was written (the checksum is wrong)")
    return contents


def _checksum(values: dict) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
