"""The search for duplicates as steps of a pipeline: records of every block on any worker, the search on one of them.

The functions are those of the local runner, and the order is that of the corpus, so the same documents are removed.
"""

import dataclasses
import pathlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator

import apache_beam
from etils import epath

from bert_jax.data.corpus.text_blocks import Block
from bert_jax.data.duplicates.block_records import BlockRecords
from bert_jax.data.duplicates.corpus_search import find_duplicates
from bert_jax.data.duplicates.record_files import RecordWriter, read_table
from bert_jax.data.duplicates.removals import FILES, NOTHING, BlockRemovals, Removals
from bert_jax.data.preparation.beam_work import Work, telling
from bert_jax.data.preparation.duplicate_search import banding_of, make_recorder
from bert_jax.data.preparation.encoded_block_files import block_file, read_arrays, read_if_whole, write_arrays
from bert_jax.data.preparation.progress import DUPLICATES
from bert_jax.files import is_remote


class RecordBlocks(apache_beam.DoFn):
    """(number, Block) → (number, offset). The records of the block become a file, unless that is there already."""

    def __init__(self, work: Work):
        self.work = work

    def setup(self) -> None:
        self.records = make_recorder(self.work.options)

    def process(self, element: tuple[int, Block]) -> Iterator[tuple[int, int]]:
        number, block = element
        offset = block.start.offset
        file = block_file(self.work.records, number, offset)
        if read_if_whole(file, read_records) is None:
            with telling(self.work, f"{number:06d}-{offset:015d}"):
                records = self.records(block)
            write_arrays(file, vars(records))
        yield number, offset


def read_records(file: epath.Path) -> BlockRecords:
    """Return the records in a file of `RecordBlocks`."""
    return BlockRecords(**read_arrays(file))


class FindDuplicates(apache_beam.DoFn):
    """(None, places of all blocks) → the directory that says what goes from each block.

    One worker joins the records of the corpus on its disk and searches them; its memory is bounded.
    """

    def __init__(self, work: Work):
        self.work = work

    def process(self, element: tuple[None, Iterable[tuple[int, int]]]) -> Iterator[str]:
        target = epath.Path(self.work.directory) / DUPLICATES
        options = self.work.options
        banding = banding_of(options)
        with tempfile.TemporaryDirectory(dir=self.work.scratch) as name:
            place = pathlib.Path(name)
            writer = RecordWriter(place, banding)
            for source, offset in sorted(element[1]):
                writer.append(source, offset, read_records(block_file(self.work.records, source, offset)))
            counts = writer.flush()
            writer.close()
            find_duplicates(read_table(place, banding, counts), options.clean.similarity, place)
            target.mkdir(parents=True, exist_ok=True)
            for file in FILES:
                with (place / file).open("rb") as source, (target / file).open("wb") as copy:
                    shutil.copyfileobj(source, copy, 1 << 24)
        yield str(target)


@dataclasses.dataclass
class FoundDuplicates:
    """What goes from each block, read by one worker; from a bucket it is first copied to the worker's disk."""

    work: Work
    _removals: Removals | None = None

    def of(self, directory: str, source: int, offset: int) -> BlockRemovals:
        """Return what goes from a block; `directory` is that of `FindDuplicates`, empty without a search."""
        if not directory:
            return NOTHING
        if self._removals is None:
            self._removals = self._read(directory)
        return self._removals.of(source, offset)

    def _read(self, directory: str) -> Removals:
        if not is_remote(directory):
            return Removals(pathlib.Path(directory))
        with tempfile.TemporaryDirectory() as name:  # the files stay mapped when their names are gone
            for file in FILES:
                with (
                    (epath.Path(directory) / file).open("rb") as source,
                    (pathlib.Path(name) / file).open("wb") as copy,
                ):
                    shutil.copyfileobj(source, copy, 1 << 24)
            return Removals(pathlib.Path(name))
