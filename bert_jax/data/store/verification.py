"""Verifies that a token store is what `prepare` wrote, by hashing every file unless no file has changed.

The record of a verified store is an empty file in the user's cache directory. Its name is a digest of the store's
fingerprint and of the device, inode, size and times of each file, so there is no content to trust; without it, or if it
cannot be written, the store is hashed again. The times include the change time (ctime), because a copying tool can
restore the modification time, but not the change time.
"""

import concurrent.futures
import hashlib
import os
import pathlib
import sys
import time

import numpy as np

from bert_jax.console.progress_bar import progress_bar
from bert_jax.data.store.manifest import FileRecord, Manifest, hash_file
from bert_jax.data.store.store import Store
from bert_jax.errors import UserError
from bert_jax.files import cache_directory

SHOWN_BYTES = 1 << 30
"""Stores of this size and more take longer than a second, so a progress bar is shown."""

SETTLED_NANOSECONDS = 2_000_000_000
"""Files changed more recently are not recorded: they could change again within the resolution of the file clock."""

_PIECE = 1 << 22  # entries of a file that are checked at once


def verify(store: Store) -> None:
    """Check that every file of the store has exactly the bytes that `prepare` wrote and holds what a store can hold.

    Raises:
      UserError: files are missing, unreadable or changed, or the boundaries of a shard do not ascend within it; the
        message names them. Ids beyond the vocabulary are found when they are read (`Store.tokens`).
    """
    directory, manifest = store.path, store.manifest
    try:
        states = [(directory / file.name).stat() for file in manifest.files]
        record = cache_directory() / "verified" / _digest(manifest, states)
        if os.path.isfile(record):
            return
        changed = _changed(directory, manifest.files, [state.st_size for state in states])
    except OSError as error:
        raise UserError(f"cannot read {error.filename}: {error.strerror}; prepare or copy the store again") from None
    if changed:
        more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
        raise UserError(
            f"{directory}: the content of {', '.join(changed[:5])}{more} is not what `bert-jax prepare` wrote; "
            "delete the store and prepare or copy it again"
        )
    _check_boundaries(store)
    if time.time_ns() - max(state.st_ctime_ns for state in states) > SETTLED_NANOSECONDS:
        _write(record)


def _digest(manifest: Manifest, states: list[os.stat_result]) -> str:
    files = [(state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns) for state in states]
    return hashlib.sha256(repr((manifest.fingerprint, files)).encode()).hexdigest()


def _changed(directory: pathlib.Path, files: tuple[FileRecord, ...], sizes: list[int]) -> list[str]:
    """Return the names of the files that do not have their hash; several are hashed at once."""
    total, done, changed = sum(sizes), 0, []
    with (
        concurrent.futures.ThreadPoolExecutor() as pool,  # hashing releases Python's lock
        progress_bar("verifying", total, unit="bytes", visible=total >= SHOWN_BYTES and _is_first_host()) as advance_to,
    ):
        hashes = pool.map(_hash, (directory / file.name for file in files))
        for file, size, found in zip(files, sizes, hashes, strict=True):
            done += size
            advance_to(done)
            if found != file.sha256:
                changed.append(file.name)
    return changed


def _hash(file: pathlib.Path) -> str | None:
    """Return the hash of `file`, and name it in errors, which an error in the middle of reading does not."""
    try:
        return hash_file(file)
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror or error}; prepare or copy the store again") from None


def _is_first_host() -> bool:
    jax = sys.modules.get("jax")  # without it there is one process
    return jax is None or not jax.distributed.is_initialized() or jax.process_index() == 0


def _check_boundaries(store: Store) -> None:
    """Check the boundaries: the hashes prove that the files are those of the manifest, but not who wrote that."""
    for index, shard in enumerate(store.manifest.shards):
        for part, end in (("sentences", shard.tokens), ("documents", shard.sentences)):
            if not _are_starts(store.arrays[part][index], end):
                raise UserError(
                    f"{store.path}: the {part} of shard {index} do not begin at 0 and ascend to below {end:,}; "
                    "delete the store and prepare or copy it again"
                )


def _are_starts(starts: np.ndarray, end: int) -> bool:
    """Return whether `starts` are the starts of consecutive non-empty ranges that together are [0, end)."""
    pieces = (starts[at : at + _PIECE + 1] for at in range(0, len(starts), _PIECE))  # overlapping by one
    return (
        len(starts) > 0
        and starts[0] == 0
        and starts[-1] < end
        and all((piece[1:] > piece[:-1]).all() for piece in pieces)
    )


def _write(record: pathlib.Path) -> None:
    try:
        record.parent.mkdir(parents=True, exist_ok=True)
        record.touch()
    except OSError:  # no cache: the store is hashed again next time
        pass
