"""The records of all blocks in order, in files that only grow, so that a run that was killed resumes at their end."""

import dataclasses
import os
import pathlib

import numpy as np

from bert_jax.data.duplicates.block_records import BlockRecords, widths
from bert_jax.data.duplicates.minhash import Banding


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordCounts:
    """How many rows the files have: what a run needs to resume."""

    blocks: int = 0
    documents: int = 0
    paragraphs: int = 0


@dataclasses.dataclass(frozen=True)
class RecordTable:
    """The rows of all files, mapped into memory. The number of a document or paragraph is its place here."""

    blocks: np.ndarray  # [blocks, 4] uint64: source, offset, documents and paragraphs before it
    documents: np.ndarray  # [documents, 2] uint64
    bands: np.ndarray  # [documents, bands] uint64
    sketches: np.ndarray  # [documents, hashes] uint8
    paragraphs: np.ndarray  # [paragraphs, 2] uint64
    places: np.ndarray  # [paragraphs, 2] uint32


class RecordWriter:
    """Appends the records of blocks to the files in `directory`; what was written after `counts` is cut off."""

    def __init__(self, directory: pathlib.Path, banding: Banding | None, counts: RecordCounts = RecordCounts()):
        self.counts: RecordCounts = counts
        self._files = {}
        for name, (dtype, width, unit) in _layout(banding).items():
            path = directory / name
            path.touch()
            self._files[name] = path.open("r+b")
            self._files[name].truncate(getattr(counts, unit) * width * dtype.itemsize)
            self._files[name].seek(0, os.SEEK_END)

    def append(self, source: int, offset: int, records: BlockRecords) -> None:
        """Append the records of the block at `offset` of source number `source`; blocks come in order."""
        counts = self.counts
        row = np.array([source, offset, counts.documents, counts.paragraphs], "<u8")
        for name, file in self._files.items():
            file.write((row if name == "blocks" else getattr(records, name)).tobytes())
        self.counts = RecordCounts(
            blocks=counts.blocks + 1,
            documents=counts.documents + len(records.documents),
            paragraphs=counts.paragraphs + len(records.paragraphs),
        )

    def flush(self) -> RecordCounts:
        """Write everything appended so far to disk and return how much that is."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        return self.counts

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()


def read_table(directory: pathlib.Path, banding: Banding | None, counts: RecordCounts) -> RecordTable:
    """Map the files into memory, which takes none until rows are read."""
    return RecordTable(
        **{
            name: mapped_rows(directory / name, dtype, width, getattr(counts, unit))
            for name, (dtype, width, unit) in _layout(banding).items()
        }
    )


def are_there(directory: pathlib.Path, banding: Banding | None, counts: RecordCounts) -> bool:
    """Return whether every file has at least that many rows."""
    return all(
        (directory / name).is_file()
        and (directory / name).stat().st_size >= getattr(counts, unit) * width * dtype.itemsize
        for name, (dtype, width, unit) in _layout(banding).items()
    )


def remove_records(directory: pathlib.Path) -> None:
    """Remove the files, once the search has ended."""
    for name in _layout(None):
        (directory / name).unlink()


def mapped_rows(path: pathlib.Path, dtype: np.dtype, width: int, rows: int) -> np.ndarray:
    """Map the [rows, width] values at the beginning of a file, read only."""
    if not rows * width:  # nothing cannot be mapped
        return np.zeros((rows, width), dtype)
    return np.memmap(path, dtype, "r", shape=(rows, width))


def _layout(banding: Banding | None) -> dict[str, tuple[np.dtype, int, str]]:
    """Return type, number of columns and kind of row of each file."""
    long, short, byte = np.dtype("<u8"), np.dtype("<u4"), np.dtype("u1")
    bands, length = widths(banding)
    return {
        "blocks": (long, 4, "blocks"),
        "documents": (long, 2, "documents"),
        "bands": (long, bands, "documents"),
        "sketches": (byte, length, "documents"),
        "paragraphs": (long, 2, "paragraphs"),
        "places": (short, 2, "paragraphs"),
    }
