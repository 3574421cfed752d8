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
        record = VerificationRecord(manifest, [directory / file.name for file in manifest.files])
        if record.exists():
            return
        changed = _changed(directory, manifest.files, [state.st_size for state in record.states])
    except OSError as error:
        raise UserError(f"cannot read {error.filename}: {error.strerror}; prepare or copy the store again") from None
    if changed:
        more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
        raise UserError(
            f"{directory}: the content of {', '.join(changed[:5])}{more} is not what `bert-jax prepare` wrote; "
            "delete the store and prepare or copy it again"
        )
    for index in range(len(manifest.shards)):
        for part in ("sentences", "documents"):
            check_boundaries(directory, manifest, index, part, store.arrays[part][index])
    record.write()


class VerificationRecord:
    """That some files of a store have been verified, in the state in which they are now."""

    def __init__(self, manifest: Manifest, files: list[pathlib.Path]):
        self.states: list[os.stat_result] = [file.stat() for file in files]
        states = [(each.st_dev, each.st_ino, each.st_size, each.st_mtime_ns, each.st_ctime_ns) for each in self.states]
        digest = hashlib.sha256(repr((manifest.fingerprint, states)).encode()).hexdigest()
        self._path = cache_directory() / "verified" / digest

    def exists(self) -> bool:
        """Return whether it was written, so that the files need not be hashed again."""
        return os.path.isfile(self._path)

    def write(self) -> None:
        """Write it, unless a file is so young that its times would not show a change."""
        if time.time_ns() - max(state.st_ctime_ns for state in self.states) <= SETTLED_NANOSECONDS:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch()
        except OSError:  # no cache: the store is hashed again next time
            pass


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


def check_boundaries(directory: pathlib.Path, manifest: Manifest, index: int, part: str, starts: np.ndarray) -> None:
    """Check the boundaries of a shard: hashes prove that a file is that of the manifest, but not who wrote that.

    Raises:
      UserError: `starts`, the `part` (sentences or documents) of shard `index`, are not boundaries.
    """
    end = getattr(manifest.shards[index], "tokens" if part == "sentences" else "sentences")
    if not _are_starts(starts, end):
        raise UserError(
            f"{directory}: the {part} of shard {index} do not begin at 0 and ascend to below {end:,}; "
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
