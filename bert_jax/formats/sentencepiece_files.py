"""From a SentencePiece model to what a tokenizer.json needs to split text in the same way."""

import functools
import itertools
import sys
import unicodedata
from typing import Any

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from bert_jax.errors import UserError
from bert_jax.tokenization.cleaning import Cleaning
from bert_jax.tokenization.piece_families import OURS
from bert_jax.tokenization.piece_files import UNUSED, Piece, fields, read_pieces
from bert_jax.tokenization.sentence_pieces import WORD_START
from bert_jax.tokenization.tokenizer import final_sigma

UNIGRAM, BPE = 1, 2  # TrainerSpec.ModelType of sentencepiece_model.proto
APART = "\1"  # a control character, which SentencePiece's own tables drop
NEVER = 100.0  # less than the score of any text, as `transformers` writes pieces that are not used


def fast_tokenizer(model: bytes, unknown: int, cleaning: Cleaning = OURS.cleaning) -> tokenizers.Tokenizer:
    """Return a tokenizer of Hugging Face `tokenizers` for a SentencePiece model, without special tokens.

    It gives the same ids except for a letter with several separate combining marks: everything that can be composed is,
    whereas SentencePiece only composes the letter with the first mark.

    Args:
      model: contents of the .model file.
      unknown: id of [UNK].
      cleaning: what is done to a text first.

    Raises:
      UserError: the model has options that a tokenizer.json cannot express.
    """
    parts = fields(model)
    trainer, normalizer = (fields(parts[number][-1]) if number in parts else {} for number in (2, 3))

    def option(spec: Any, number: Any, default: Any):
        return spec[number][-1] if number in spec else default

    kind = option(trainer, 3, UNIGRAM)
    whitespace = [option(normalizer, number, 1) for number in (3, 4, 5)]  # a space in front, none repeated, marked by ▁
    if kind not in (UNIGRAM, BPE) or not all(whitespace) or option(trainer, 24, 0) or option(trainer, 35, 0):
        raise UserError(
            "this SentencePiece model cannot be written as a tokenizer.json: only unigram and bpe models can be, with "
            "a space before the text, no repeated spaces, marks at the start of words, and no pieces for bytes"
        )
    pieces = read_pieces(model)
    fast = tokenizers.Tokenizer(_unigram(pieces, unknown) if kind == UNIGRAM else _bpe(pieces, unknown))
    fast.normalizer = normalizers.Sequence(
        [
            *_cleaning(cleaning),
            *_by_characters(option(normalizer, 2, b"")),
            normalizers.Replace(tokenizers.Regex("^ +| +$"), ""),
            normalizers.Replace(tokenizers.Regex(" {2,}"), " "),
        ]
    )
    fast.pre_tokenizer = pre_tokenizers.Metaspace(WORD_START, "always")
    return fast


def _by_characters(table: bytes) -> list[normalizers.Normalizer]:
    """Return the replacements of a model's own table, applied to single characters as SentencePiece does.

    `tokenizers` applies it to grapheme clusters, and drops the marks of A + ring if the table knows A. So text is
    composed first, and what cannot be composed is separated by a control character while the table is applied.
    """
    if not table:
        return []
    between = tokenizers.Regex("(?<=.)(?=.)")
    return [
        normalizers.NFC(),
        normalizers.Replace(between, APART),
        normalizers.Precompiled(table),
        normalizers.Replace(APART, ""),
        normalizers.NFC(),
    ]


def _cleaning(cleaning: Cleaning) -> list[normalizers.Normalizer]:
    """Return the steps of `cleaning`; spaces are tidied afterwards in every case."""
    steps = []
    if cleaning.tidies:
        steps += [
            normalizers.Replace(tokenizers.Regex(r"[\s\x{1C}-\x{1F}]"), " "),
            normalizers.Replace(tokenizers.Regex("``|''"), '"'),
        ]
    if cleaning.strips_accents:
        steps += [normalizers.NFKD(), normalizers.Replace(tokenizers.Regex(_combining()), "")]
    if cleaning.lowercase:
        steps += [final_sigma(), normalizers.Lowercase()]
    return steps


@functools.cache
def _combining() -> str:
    """Return a regular expression of the characters that `Cleaning` drops; \\p{M} has more than these."""
    marks = [code for code in range(sys.maxunicode + 1) if unicodedata.combining(chr(code))]
    runs = itertools.groupby(enumerate(marks), key=lambda pair: pair[1] - pair[0])
    ranges = [[code for _, code in run] for _, run in runs]
    return "[" + "".join(f"\\x{{{run[0]:X}}}-\\x{{{run[-1]:X}}}" for run in ranges) + "]"


def _unigram(pieces: list[Piece], unknown: int) -> models.Unigram:
    scores = [(piece.text, piece.score - NEVER * (piece.kind == UNUSED)) for piece in pieces]
    return models.Unigram(scores, unknown, False)


def _bpe(pieces: list[Piece], unknown: int) -> models.BPE:
    """Return a BPE model that merges in every way that makes a piece of two others, earlier pieces first."""
    if unused := [piece.text for piece in pieces if piece.kind == UNUSED]:
        raise UserError(
            f"this SentencePiece model cannot be written as a tokenizer.json: {len(unused):,} pieces of its bpe are "
            f"never used (first {unused[0]!r:.40}), which only a unigram model can express; learn one with "
            "--method=unigram"
        )
    ids = {piece.text: i for i, piece in enumerate(pieces)}
    merges = []
    for piece in ids:
        halves = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        known = [(ids[left], ids[right]) for left, right in halves if left in ids and right in ids]
        merges += [(pieces[left].text, pieces[right].text) for left, right in sorted(known)]
    return models.BPE(ids, merges, unk_token=pieces[unknown].text, fuse_unk=True)
