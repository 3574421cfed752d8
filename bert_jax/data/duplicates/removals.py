"""What the search for duplicates found, by block of the corpus: written once, then read by every worker."""

import contextlib
import dataclasses
import os
import pathlib

import numpy as np

from bert_jax.data.cleaning.step_record import StepRecord, record
from bert_jax.data.duplicates.external_sort import rows_up_to
from bert_jax.data.duplicates.record_files import RecordTable, mapped_rows
from bert_jax.errors import UserError

EXACT, NEAR = 1, 2
"""Why a document is removed."""

FILES = {
    "removed_blocks": (np.dtype("<u8"), 4),
    "removed_documents": (np.dtype("<u4"), 2),
    "removed_paragraphs": (np.dtype("<u4"), 2),
}
"""Rows of (source, offset, documents and paragraphs removed before), (document, why), (document, paragraph); the
numbers of documents and paragraphs are those within their blocks."""

_STEPS = {EXACT: "deduplicate.documents", NEAR: "deduplicate.near"}


@dataclasses.dataclass(frozen=True)
class BlockRemovals:
    """What is removed from one block: why, by number of the document; paragraphs by that and by their own number."""

    documents: dict[int, int] = dataclasses.field(default_factory=dict)
    paragraphs: frozenset[tuple[int, int]] = frozenset()

    def remaining(self, number: int, lines: list[str]) -> tuple[list[str], list[StepRecord]]:
        """Return the paragraphs that document `number` of the block keeps, and the record of what goes."""
        if why := self.documents.get(number):
            return [], [record(_STEPS[why], " ".join(lines), documents=1, characters=sum(map(len, lines)))]
        kept, records = [], []
        for place, line in enumerate(lines):
            if (number, place) in self.paragraphs:
                records.append(record("deduplicate.paragraphs", line, paragraphs=1, characters=len(line)))
            else:
                kept.append(line)
        return kept, records


NOTHING = BlockRemovals()


class Removals:
    """What is removed from each block of a corpus, in files that are mapped into memory."""

    def __init__(self, directory: pathlib.Path):
        self._blocks, self._documents, self._paragraphs = (
            mapped_rows(directory / name, dtype, width, (directory / name).stat().st_size // (dtype.itemsize * width))
            for name, (dtype, width) in FILES.items()
        )

    def of(self, source: int, offset: int) -> BlockRemovals:
        """Return what is removed from the block at `offset` of source number `source`.

        Raises:
          UserError: the search has seen no such block.
        """
        row = rows_up_to(self._blocks[:, :2], np.array([source, offset], np.uint64)) - 1
        if row < 0 or self._blocks[row, :2].tolist() != [source, offset]:
            raise UserError(f"source number {source + 1} has changed while it was read; start again")
        last = row + 1 == len(self._blocks)
        end = (len(self._documents), len(self._paragraphs)) if last else self._blocks[row + 1, 2:].tolist()
        start = self._blocks[row, 2:].tolist()
        return BlockRemovals(
            dict(self._documents[start[0] : end[0]].tolist()),
            frozenset(map(tuple, self._paragraphs[start[1] : end[1]].tolist())),
        )


def write_removals(table: RecordTable, kinds: np.ndarray, gone: np.ndarray, directory: pathlib.Path) -> None:
    """Write what is removed, block by block, to the files of FILES in `directory`.

    Args:
      table: the records of the corpus.
      kinds: [documents] uint8, why a document is removed or 0.
      gone: [paragraphs] uint8, whether a paragraph is removed.
      directory: where the files go, incomplete until this function returns.
    """
    with contextlib.ExitStack() as stack:
        blocks, documents, paragraphs = (stack.enter_context((directory / name).open("wb")) for name in FILES)
        written = [0, 0]
        for row, (source, offset, *start) in enumerate(table.blocks):
            last = row + 1 == len(table.blocks)
            end = (len(table.documents), len(table.paragraphs)) if last else table.blocks[row + 1, 2:]
            block_kinds = kinds[start[0] : end[0]]
            numbers = np.flatnonzero(block_kinds)
            places = table.places[start[1] : end[1]][gone[start[1] : end[1]] > 0]
            blocks.write(np.array([source, offset, *written], "<u8").tobytes())
            documents.write(np.stack([numbers, block_kinds[numbers]], axis=1).astype("<u4").tobytes())
            paragraphs.write(places.astype("<u4").tobytes())
            written = [written[0] + len(numbers), written[1] + len(places)]
        for file in (blocks, documents, paragraphs):
            file.flush()
            os.fsync(file.fileno())
