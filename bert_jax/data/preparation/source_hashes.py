"""SHA-256 of the files that a store was made from, so that anybody can tell whether a file is the one."""

import concurrent.futures
import dataclasses
import os
import pathlib

from absl import logging

from bert_jax.console.progress_bar import progress_bar
from bert_jax.data.store.manifest import SourceRecord, hash_file
from bert_jax.files import is_remote

SHOWN_BYTES = 1 << 30
"""Hashing this much takes longer than a second, so a progress bar is shown."""


def with_hashes(sources: tuple[SourceRecord, ...]) -> tuple[SourceRecord, ...]:
    """Return the sources with the hashes of those that are files of this machine.

    A remote file would be fetched a second time, and data sets of a library are not files: they get none. A file that
    is not what it was at the start gets none either, and a warning says so.
    """
    total, done, hashed = sum(source.bytes for source in sources), 0, []
    with (
        concurrent.futures.ThreadPoolExecutor() as pool,  # hashing releases Python's lock
        progress_bar("hashing sources", total, unit="bytes", visible=total >= SHOWN_BYTES) as advance_to,
    ):
        for source, sha256 in zip(sources, pool.map(_hash, sources), strict=True):
            done += source.bytes
            advance_to(done)
            hashed.append(dataclasses.replace(source, sha256=sha256))
    return tuple(hashed)


def without_hashes(sources: tuple[SourceRecord, ...]) -> tuple[SourceRecord, ...]:
    """Return the sources as they are known before they have been read."""
    return tuple(dataclasses.replace(source, sha256="") for source in sources)


def _hash(source: SourceRecord) -> str:
    if source.format in ("tfds", "docs") or is_remote(source.name):
        return ""
    path, found = pathlib.Path(source.name), ""
    try:
        if _is_what_it_was(path, source):
            found = hash_file(path) or ""
        if found and _is_what_it_was(path, source):
            return found
    except OSError:
        pass
    logging.warning("%s was changed or removed while it was read; the manifest has no hash of it", source.name)
    return ""


def _is_what_it_was(path: pathlib.Path, source: SourceRecord) -> bool:
    status = os.stat(path)
    return (status.st_size, str(status.st_mtime_ns)) == (source.bytes, source.revision)
