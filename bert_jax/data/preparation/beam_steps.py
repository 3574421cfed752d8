"""The steps of a pipeline of Apache Beam that makes a token store.

Sources are cut into blocks, which any worker encodes and leaves as a file. How many tokens each block has decides which
shards they belong to, by the rule of `StoreWriter`, which then writes each shard on some worker. Every step is a
function of its input that may be run twice, so the store does not depend on runner, workers, failures or order.
"""

import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator

import apache_beam
from etils import epath

from bert_jax.config.json_form import to_dict
from bert_jax.data.cleaning.step_record import StepRecord, merged
from bert_jax.data.corpus.text_blocks import Block, Source, read_blocks
from bert_jax.data.preparation.beam_duplicates import FoundDuplicates
from bert_jax.data.preparation.beam_work import Work, telling
from bert_jax.data.preparation.encoded_block_files import block_file, read_block, read_if_whole, write_block
from bert_jax.data.preparation.encoding import make_encoder
from bert_jax.data.preparation.writer import StoreWriter, WriterState, begins_shard
from bert_jax.data.store.manifest import Removed, Shard, removals
from bert_jax.errors import UserError
from bert_jax.files import sealed, write_atomically

RESULT = "shards.json"
"""File in the directory of the pipeline: what its shards add to the manifest."""


@dataclasses.dataclass(frozen=True, order=True)
class BlockSize:
    """What the layout of the store depends on. Blocks are in the order of sources and of offsets within each."""

    source: int
    offset: int
    end: int
    continues: bool
    tokens: int


@dataclasses.dataclass(frozen=True)
class ShardPlan:
    """A shard and its blocks in order, each as (source, offset, whether it continues a document)."""

    index: int
    blocks: tuple[tuple[int, int, bool], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class WrittenShard:
    """What a shard adds to the manifest; the last one may be empty, and then has no files."""

    index: int
    state: WriterState
    removed: tuple[Removed, ...]
    cleaning: tuple[StepRecord, ...]


class CutSources(apache_beam.DoFn):
    """(number, Source) → (number, Block) for each of its blocks."""

    def __init__(self, work: Work):
        self.work = work

    def process(self, element: tuple[int, Source]) -> Iterator[tuple[int, Block]]:
        number, source = element
        with telling(self.work, f"{number:06d}"):
            for block in read_blocks(source, self.work.options.text_field):
                yield number, block


class EncodeBlocks(apache_beam.DoFn):
    """(number, Block) → BlockSize. The encoded block becomes a file, unless a pipeline that was killed has left it."""

    def __init__(self, work: Work):
        self.work = work

    def setup(self) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the workers are the parallelism
        self.encode = make_encoder(f"{self.work.output}/tokenizer", self.work.options)
        self.duplicates = FoundDuplicates(self.work)

    def process(self, element: tuple[int, Block], duplicates: str = "") -> Iterator[BlockSize]:
        """`duplicates`: the directory of `FindDuplicates`, if duplicates are to go."""
        number, block = element
        start, file = block.start, block_file(self.work.blocks, number, block.start.offset)
        encoded = read_if_whole(file, read_block)
        if encoded is None:
            with telling(self.work, f"{number:06d}-{start.offset:015d}"):
                encoded = self.encode(block, self.duplicates.of(duplicates, number, start.offset))
            write_block(file, encoded)
        yield BlockSize(number, start.offset, block.end.offset, block.continues, len(encoded.tokens))


def planned_shards(sizes: Iterable[BlockSize]) -> Iterator[ShardPlan]:
    """Yield the shards of a store with these blocks, given in any order.

    Raises:
      UserError: the blocks of a source do not follow each other, so it has changed since it was first read.
    """
    index, tokens, blocks = 0, 0, []
    end = {}
    for size in sorted(sizes):
        if size.offset != end.get(size.source, 0):
            raise UserError(f"source number {size.source + 1} has changed while it was read; start again")
        end[size.source] = size.end
        if begins_shard(tokens, size.continues):
            yield ShardPlan(index, tuple(blocks))
            index, tokens, blocks = index + 1, 0, []
        tokens += size.tokens
        blocks.append((size.source, size.offset, size.continues))
    yield ShardPlan(index, tuple(blocks))


class PlanShards(apache_beam.DoFn):
    """(None, all BlockSizes) → ShardPlan for each shard."""

    def __init__(self, work: Work):
        self.work = work

    def process(self, element: tuple[None, Iterable[BlockSize]]) -> Iterator[ShardPlan]:
        with telling(self.work, "plan"):
            yield from planned_shards(element[1])


class WriteShards(apache_beam.DoFn):
    """ShardPlan → WrittenShard. Its files appear in the output under their names once they are complete."""

    def __init__(self, work: Work, names: tuple[str, ...]):
        self.work, self.names = work, names

    def process(self, element: ShardPlan) -> Iterator[WrittenShard]:
        local = self.work.scratch is not None
        with tempfile.TemporaryDirectory(dir=self.work.scratch) as directory:
            written = self._write(pathlib.Path(directory), element)
            for file in written.state.hashes:
                target = epath.Path(self.work.output) / file.name
                if local:
                    os.replace(pathlib.Path(directory) / file.name, target)
                else:
                    with (pathlib.Path(directory) / file.name).open("rb") as source, target.open("wb") as copy:
                        shutil.copyfileobj(source, copy, 1 << 24)
        yield written

    def _write(self, directory: pathlib.Path, plan: ShardPlan) -> WrittenShard:
        before = (Shard(tokens=0, sentences=0, documents=0),) * plan.index  # their number is all that counts
        removed: collections.Counter[tuple[str, str]] = collections.Counter()
        cleaning: tuple[StepRecord, ...] = ()
        with contextlib.closing(StoreWriter(directory, self.work.dtype, WriterState(shards=before))) as writer:
            for source, offset, continues in plan.blocks:
                block = read_block(block_file(self.work.blocks, source, offset))
                writer.append(block, continues)
                removed.update({(self.names[source], what): number for what, number in block.removed.items()})
                cleaning = merged([*cleaning, *block.cleaning])
            state = writer.finish()
        state = dataclasses.replace(state, shards=state.shards[plan.index :])
        return WrittenShard(index=plan.index, state=state, removed=removals(removed), cleaning=cleaning)


class RecordShards(apache_beam.DoFn):
    """(None, all WrittenShards) → a file from which the process that started the pipeline makes the manifest."""

    def __init__(self, work: Work):
        self.work = work

    def process(self, element: tuple[None, Iterable[WrittenShard]]) -> None:
        shards = sorted(element[1], key=lambda shard: shard.index)
        text = json.dumps(sealed({"shards": [to_dict(shard) for shard in shards]}))
        write_atomically(epath.Path(self.work.directory) / RESULT, text.encode())
