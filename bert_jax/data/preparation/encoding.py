"""Encode a block of text as token ids: the pure function that worker processes run, one block at a time.

The text of a block is documents without what cleaning removes, each a list of paragraphs. Workers that share no
memory hand blocks over as files, one per block.
"""

import dataclasses
import io
import json
import uuid
import zipfile
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from etils import epath

from bert_jax.config.options import from_dict, to_dict
from bert_jax.corpus.blocks import Block, parse_block
from bert_jax.corpus.cleaner import Cleaner, StepRecord, merged
from bert_jax.corpus.duplicates import NOTHING, BlockRemovals
from bert_jax.corpus.text import SentenceSplitter, join_lines, make_splitter
from bert_jax.data.manifest import Options, dtype_for
from bert_jax.errors import UserError
from bert_jax.files import LONGEST_LOG, read_bytes
from bert_jax.tokenization.tokenizer import Tokenizer, load_tokenizer


@dataclasses.dataclass(frozen=True)
class CleanText:
    """Contents of a block; see `blocks.BlockText` for the pieces. Pieces that were removed are empty."""

    pieces: list[list[str]]
    replaced: int
    removed: dict[str, int]
    records: list[StepRecord]  # what the steps of the cleaning did


class TextReader:
    """Reads blocks; calling it has no side effect."""

    def __init__(self, options: Options):
        """Prepare the cleaning, if any of it is wanted.

        Raises:
          UserError: the evaluation sets are not those of `options`.
        """
        self._options, clean = options, options.clean
        self._clean = Cleaner(clean, options.language) if clean.cleans else None
        contamination = self._clean and self._clean.contamination
        if contamination and contamination.fingerprint != options.evaluation_rows:
            raise UserError(f"clean.decontaminate={clean.decontaminate}: the files have changed; start again")

    def __call__(self, block: Block) -> CleanText:
        """Return the text of a block."""
        text = parse_block(block, self._options.text_field, self._options.bad_utf8)
        pieces, records = [], []
        for lines in text.pieces:
            if block.source.wrap_column:
                lines = join_lines(lines, block.source.wrap_column)
            if self._clean:
                cleaned = self._clean(lines)
                lines = cleaned.lines
                records += cleaned.records
            pieces.append(lines)
        return CleanText(pieces, text.replaced, text.removed, records)


MAX_SENTENCE_CHARACTERS = 20_000
"""Longer sentences are cut, and the cuts counted: no model reads a sentence of thousands of tokens at once."""

_BATCH_CHARACTERS = 1 << 17  # text tokenized at once: the tokenizer's own records take hundreds of bytes per token


@dataclasses.dataclass(frozen=True)
class EncodedBlock:
    """The sentences of a block as ids. The first piece may continue the previous document (0 if it does not)."""

    tokens: np.ndarray  # [tokens] uint16 or uint32
    sentence_lengths: np.ndarray  # [sentences] int64: number of tokens of each, never 0
    piece_lengths: np.ndarray  # [pieces] int64: number of sentences of each; only those of the first and last may be 0
    text_bytes: int
    unknown_tokens: int
    cut_sentences: int
    replaced_characters: int
    removed: dict[str, int]  # number of each kind of thing in the source that is no text
    cleaning: tuple[StepRecord, ...] = ()


@dataclasses.dataclass(frozen=True)
class Encoder:
    """Turns blocks into ids; calling it has no side effect."""

    tokenizer: Tokenizer
    split: SentenceSplitter
    read: TextReader

    def __call__(self, block: Block, duplicates: BlockRemovals = NOTHING) -> EncodedBlock:
        """Encode one block without its duplicates, and without the sentences and documents that have no token.

        Raises:
          UserError: see `parse_block`; or an id is beyond the vocabulary, so tokenizer and vocabulary disagree.
        """
        text = self.read(block)
        pieces, cuts, records = [], 0, text.records
        for number, lines in enumerate(text.pieces):
            lines, removed = duplicates.remaining(number, lines)
            records += removed
            sentences = self.split(lines)
            pieces.append([part for sentence in sentences for part in _cut(sentence)])
            cuts += len(pieces[-1]) - len(sentences)
        sentences = [sentence for piece in pieces for sentence in piece]
        tokens, lengths = self._encode(sentences)
        owners = np.repeat(np.arange(len(pieces)), [len(piece) for piece in pieces])
        piece_lengths = np.bincount(owners[lengths > 0], minlength=len(pieces))
        kept = piece_lengths > 0
        kept[[0, -1]] = True  # the next block may continue the last, or with what is gone
        return EncodedBlock(
            tokens=tokens,
            sentence_lengths=lengths[lengths > 0],
            piece_lengths=piece_lengths[kept],
            text_bytes=sum(len(sentence.encode()) for sentence in sentences),
            unknown_tokens=int(np.count_nonzero(tokens == self.tokenizer.unk_id)),
            cut_sentences=cuts,
            replaced_characters=text.replaced,
            removed=text.removed,
            cleaning=merged(records),
        )

    def _encode(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return (ids of all sentences in a row, number of tokens of each sentence)."""
        dtype = dtype_for(self.tokenizer.vocab_size)
        arrays, lengths = [np.zeros(0, dtype)], [np.zeros(0, np.int64)]
        for batch in _batches(sentences):
            flat, counts = self.tokenizer.encode_flat(batch)
            if flat.size and not 0 <= flat.min() <= flat.max() < self.tokenizer.vocab_size:
                raise UserError(f"the tokenizer gave id {flat.max()} for a vocabulary of {self.tokenizer.vocab_size}")
            arrays.append(flat.astype(dtype))
            lengths.append(counts)
        return np.concatenate(arrays), np.concatenate(lengths)


def make_encoder(tokenizer_directory: str, options: Options) -> Encoder:
    """Return what turns blocks into ids."""
    splitter = make_splitter(options.sentences, options.language)
    return Encoder(load_tokenizer(tokenizer_directory), splitter, TextReader(options))


def _batches(sentences: list[str]):
    batch, size = [], 0
    for sentence in sentences:
        batch.append(sentence)
        size += len(sentence)
        if size >= _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _cut(sentence: str) -> list[str]:
    """Cut a sentence into parts of at most MAX_SENTENCE_CHARACTERS, at a space if there is one."""
    parts = []
    while len(sentence) > MAX_SENTENCE_CHARACTERS:
        space = sentence.rfind(" ", 1, MAX_SENTENCE_CHARACTERS + 1)
        end = space if space > 0 else MAX_SENTENCE_CHARACTERS
        parts.append(sentence[:end])
        sentence = sentence[end:].lstrip()
    return [*parts, sentence]


Result = TypeVar("Result")


def block_file(directory: epath.Path, source: int, offset: int) -> epath.Path:
    """Return the file of the block of a source, by its number, that begins at `offset`."""
    return directory / f"{source:06d}" / f"{offset:015d}.npz"


def write_arrays(file: epath.Path, arrays: dict[str, Any]) -> None:
    """Write arrays by name such that no reader sees half of them, even if several processes write the same file."""
    contents = io.BytesIO()
    np.savez(contents, **arrays)
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.parent / f"{file.name}.{uuid.uuid4().hex}.partial"
    partial.write_bytes(contents.getvalue())
    partial.replace(file)


def read_arrays(file: epath.Path) -> dict[str, np.ndarray]:
    """Return the arrays that `write_arrays` wrote."""
    with np.load(io.BytesIO(read_bytes(file, LONGEST_LOG)), allow_pickle=False) as contents:
        return {name: contents[name] for name in contents.files}


def write_block(file: epath.Path, block: EncodedBlock) -> None:
    """Write a block as `write_arrays` does."""
    values = {field.name: getattr(block, field.name) for field in dataclasses.fields(block)}
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    others = {name: value for name, value in values.items() if name not in arrays}
    others["cleaning"] = [to_dict(each) for each in block.cleaning]
    write_arrays(file, {"others": np.frombuffer(json.dumps(others).encode(), np.uint8), **arrays})


def read_block(file: epath.Path) -> EncodedBlock:
    """Return the block that `write_block` wrote."""
    arrays: dict[str, Any] = read_arrays(file)
    others = json.loads(arrays.pop("others").tobytes())
    others["cleaning"] = tuple(from_dict(StepRecord, each) for each in others["cleaning"])
    return EncodedBlock(**others, **arrays)


def read_if_whole(file: epath.Path, read: Callable[[epath.Path], Result]) -> Result | None:
    """Return what `read` reads; None if there is no such file, or a crash of the machine has damaged it."""
    if not file.exists():
        return None
    try:
        return read(file)
    except (OSError, ValueError, KeyError, TypeError, UserError, zipfile.BadZipFile):
        return None
