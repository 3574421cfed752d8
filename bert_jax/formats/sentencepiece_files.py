"""Reads from a SentencePiece model what a tokenizer.json needs to split text in the same way.

The file is a protocol buffer of a few fields. They are parsed here because the generated classes would bind us to one
version of the library.
"""

import collections
import struct

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from bert_jax.errors import UserError
from bert_jax.tokenization.tokenizer import WORD_START

UNIGRAM, BPE = 1, 2  # TrainerSpec.ModelType of sentencepiece_model.proto
APART = "\1"  # a control character, which SentencePiece's own tables drop


def fast_tokenizer(model: bytes, unknown: int) -> tokenizers.Tokenizer:
    """Return a tokenizer of Hugging Face `tokenizers` for a SentencePiece model, without special tokens.

    It gives the same ids except for a letter with several separate combining marks: everything that can be composed is,
    whereas SentencePiece only composes the letter with the first mark.

    Args:
      model: contents of the .model file.
      unknown: id of [UNK].

    Raises:
      UserError: the model has options that a tokenizer.json cannot express.
    """
    fields = _fields(model)
    trainer, normalizer = (_fields(fields[number][-1]) if number in fields else {} for number in (2, 3))

    def option(spec, number, default):
        return spec[number][-1] if number in spec else default

    kind = option(trainer, 3, UNIGRAM)
    whitespace = [option(normalizer, number, 1) for number in (3, 4, 5)]  # a space in front, none repeated, marked by ▁
    if kind not in (UNIGRAM, BPE) or not all(whitespace) or option(trainer, 24, 0) or option(trainer, 35, 0):
        raise UserError(
            "this SentencePiece model cannot be written as a tokenizer.json: only unigram and bpe models can be, with "
            "a space before the text, no repeated spaces, marks at the start of words, and no pieces for bytes"
        )
    pieces = [_piece(_fields(message)) for message in fields[1]]
    fast = tokenizers.Tokenizer(models.Unigram(pieces, unknown, False) if kind == UNIGRAM else _bpe(pieces, unknown))
    fast.normalizer = normalizers.Sequence(
        [
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


def _piece(fields: dict[int, list]) -> tuple[str, float]:
    return fields[1][-1].decode(), struct.unpack("<f", fields[2][-1])[0] if 2 in fields else 0.0


def _bpe(pieces: list[tuple[str, float]], unknown: int) -> models.BPE:
    """Return a BPE model that merges in every way that makes a piece of two others, earlier pieces first."""
    ids = {piece: i for i, (piece, _) in enumerate(pieces)}
    merges = []
    for piece in ids:
        halves = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        known = [(ids[left], ids[right]) for left, right in halves if left in ids and right in ids]
        merges += [(pieces[left][0], pieces[right][0]) for left, right in sorted(known)]
    return models.BPE(ids, merges, unk_token=pieces[unknown][0], fuse_unk=True)


def _fields(message: bytes) -> dict[int, list]:
    """Return field number → its values in a protocol buffer's message: integers, or bytes for everything else."""
    fields, position = collections.defaultdict(list), 0
    while position < len(message):
        key, position = _varint(message, position)
        number, kind = key >> 3, key & 7
        size = {1: 8, 5: 4}.get(kind)
        if size is None:
            size, position = _varint(message, position)
        if kind == 0:
            fields[number].append(size)
        else:
            fields[number].append(message[position : position + size])
            position += size
    return dict(fields)


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """Return (value, position after it) of a number in groups of seven bits, the lowest first."""
    value = shift = 0
    while True:
        byte = message[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position
