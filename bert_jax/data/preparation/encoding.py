"""Encodes a block of text as token ids: the pure function that worker processes run, one block at a time."""

import dataclasses

import numpy as np

from bert_jax.data.cleaning.step_record import StepRecord, merged
from bert_jax.data.corpus.sentences import SentenceSplitter, make_splitter
from bert_jax.data.corpus.text_blocks import Block
from bert_jax.data.duplicates.removals import NOTHING, BlockRemovals
from bert_jax.data.preparation.block_text import TextReader
from bert_jax.data.store.manifest import Options, dtype_for
from bert_jax.errors import UserError
from bert_jax.tokenization.tokenizer import Tokenizer, load_tokenizer

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
    """Return what turns blocks into ids.

    Raises:
      UserError: see `TextReader`.
    """
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
