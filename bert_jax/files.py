"""Files that are there whole or not at all."""

import os

from etils import epath


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
