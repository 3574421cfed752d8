"""How well a vocabulary fits a text: fertility, coverage and share of [UNK]."""

import dataclasses
from collections.abc import Mapping

import rich.table

from bert_jax.tokenization.sentence_pieces import WORD_START
from bert_jax.tokenization.tokenizer import Tokenizer
from bert_jax.tokenization.words import Sample, basic_words


@dataclasses.dataclass(frozen=True, kw_only=True)
class VocabularyReport:
    """Fit of a vocabulary to a text; shares are of occurrences, and words are BERT's (punctuation marks are words)."""

    num_words: int
    pieces_per_word: float
    """Fertility."""
    single_piece_words: float
    """Coverage: share of the words that are one known piece."""
    unknown_words: float
    """Share of the words with a part that is [UNK]."""
    unknown_pieces: float
    pieces_per_byte: float

    def table(self, title: str) -> rich.table.Table:
        table = rich.table.Table(title=f"{title} ({self.num_words:,} words)", show_header=False)
        table.add_row("pieces per word (fertility)", f"{self.pieces_per_word:.3f}")
        table.add_row("words in one piece (coverage)", f"{self.single_piece_words:.2%}")
        table.add_row("words with an [UNK]", f"{self.unknown_words:.3%}")
        table.add_row("[UNK] among the pieces", f"{self.unknown_pieces:.3%}")
        table.add_row("bytes per piece", f"{1 / self.pieces_per_byte:.2f}")
        return table


def report(tokenizer: Tokenizer, sample: Sample) -> VocabularyReport:
    """Measure `tokenizer` on the words of `sample`, which must not be empty; each distinct word is encoded once."""
    raw_words = sample.words()
    words = basic_words(raw_words, lowercase=False)
    num_words = words.total()
    pieces, unknown_pieces = 0, 0
    for ids, count in _encoded(tokenizer, raw_words):
        pieces += count * len(ids)
        unknown_pieces += count * ids.count(tokenizer.unk_id)
    single, unknown = 0, 0
    for ids, count in _encoded(tokenizer, words):
        known = tokenizer.unk_id not in ids
        # SentencePiece may spell a punctuation mark as ▁ and the mark, which does not split a word.
        single += count * (known and sum(tokenizer.tokens[i] != WORD_START for i in ids) == 1)
        unknown += count * (not known)
    return VocabularyReport(
        num_words=num_words,
        pieces_per_word=pieces / num_words,
        single_piece_words=single / num_words,
        unknown_words=unknown / num_words,
        unknown_pieces=unknown_pieces / max(pieces, 1),
        pieces_per_byte=pieces / sample.num_bytes,
    )


def _encoded(tokenizer: Tokenizer, words: Mapping[str, int]):
    return zip(tokenizer.encode_batch(list(words)), words.values(), strict=True)
