"""SentencePiece vocabularies, with the ids, the special tokens and the cleaning of the models that use them."""

import bisect
import hashlib
import itertools
import json
from collections.abc import Iterable

import numpy as np
import sentencepiece
from etils import epath

from bert_jax.errors import UserError
from bert_jax.tokenization.abstract_tokenizer import Tokenizer
from bert_jax.tokenization.cleaning import Cleaning
from bert_jax.tokenization.offsets import widened
from bert_jax.tokenization.piece_families import OURS, PieceFamily, family_of, in_order_of_ids
from bert_jax.tokenization.piece_files import read_pieces

WORD_START = "\u2581"  # SentencePiece's mark for the space before a word


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model, unigram or BPE; its casing is part of its own normalization, or of the cleaning before."""

    kind = "sentencepiece"

    def __init__(
        self,
        model: bytes,
        special_ids: tuple[int, ...],
        file: bytes | None = None,
        family: PieceFamily = OURS,
        cleaning: Cleaning = OURS.cleaning,
    ):
        """Make a tokenizer of a model whose pieces are in the order of their ids.

        Args:
          model: contents of a .model file.
          special_ids: ids of padding, unknown, class, separator and mask tokens.
          file: contents of the file that `save` writes, in which the pieces may have another order; None: `model`.
          family: how texts are joined, and the name of the file.
          cleaning: what is done to a text first.
        """
        self.model = model
        self.family = family
        self.cleaning = cleaning
        self.separators, self.class_last = family.separators, family.class_last
        self._file = model if file is None else file
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        letter = self._processor.normalize("A")
        self._adds_space = letter.startswith(WORD_START)
        fingerprint = hashlib.sha256(self._file)
        if family is not OURS:
            fingerprint.update(json.dumps(self.options() | {"lowercase": cleaning.lowercase}).encode())
        super().__init__(
            [self._processor.id_to_piece(i) for i in range(self._processor.get_piece_size())],
            special_ids,
            cleaning.lowercase or letter.strip(WORD_START) == "a",
            fingerprint.hexdigest(),
        )
        # A model made with user_defined_symbols finds its special tokens in plain text; control symbols are never
        # found.
        found = itertools.chain(*self._processor.encode([self.tokens[i] for i in special_ids]))
        self._finds_specials = bool(set(found) & set(special_ids) - {self.unk_id})

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        cleaned = [self.cleaning(text) for text in texts] if self.cleaning else texts
        rows = self._processor.encode(cleaned, num_threads=1)  # the corpus is prepared by many processes already
        return [self._plain(row) for row in rows]

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        cleaned, origins = self.cleaning.with_origins(text) if self.cleaning else (text, None)
        found = self._processor.encode(cleaned, return_type="offset_mapping")
        ids, pieces = found["ids"], found["pieces"]
        # Of a character that becomes several, as an ellipsis does, found["offsets"] name the last piece only.
        sizes = [1 if self._processor.is_byte(i) else len(piece.encode()) for i, piece in zip(ids, pieces, strict=True)]
        offsets = self._places(cleaned, sizes)
        if origins is not None:
            offsets = [_origin(origins, start, end) for start, end in offsets]
        return self._plain(ids), widened(text, offsets)

    def _plain(self, ids: list[int]) -> list[int]:
        """Return the ids without special tokens, which a model may find in a text."""
        return [self.unk_id if i in self.special_ids else i for i in ids] if self._finds_specials else ids

    def _places(self, text: str, sizes: list[int]) -> list[tuple[int, int]]:
        """Return the (start, end) in `text` of the characters that the pieces with these numbers of bytes are made of.

        The space that is added before a text is made of none.
        """
        normalized, starts = self._processor.normalize(text, with_offsets=True)  # the last is the end of the text
        of_bytes = [start for start, character in zip(starts, normalized, strict=False) for _ in character.encode()]
        added = len(WORD_START.encode()) if self._adds_space else 0
        places, end = [], 0
        for size in sizes:
            first, end = of_bytes[end], end + size
            last = of_bytes[end - 1]
            following = bisect.bisect(starts, last) if end > added else 0
            places.append((first, starts[min(following, len(normalized))]))
        return places

    def decode(self, ids: Iterable[int]) -> str:
        parts = []
        for special, run in itertools.groupby(map(int, ids), key=lambda i: i in self.special_ids):
            parts += [self.tokens[i] for i in run] if special else [self._processor.decode(list(run))]  # noqa: B031
        return " ".join(parts)

    def continues_word(self) -> np.ndarray:
        continues = np.array([not token.startswith(WORD_START) for token in self.tokens])
        continues[list(self.special_ids)] = False
        return continues

    def spell(self, token: str) -> list[int]:
        inner = not token.startswith(WORD_START)
        return (self._encode_glued(token) if inner else self.encode(token[1:])) or [self.unk_id]

    def _files(self) -> dict[str, bytes]:
        return {self.family.file: self._file}

    def options(self) -> dict[str, bool | str]:
        if self.family is OURS:
            return {}
        return {"family": self.family.name, "keep_accents": not self.cleaning.strips_accents}

    def _encode_glued(self, text: str) -> list[int]:
        ids = self.encode(text)
        inner = self.tokens[ids[0]].removeprefix(WORD_START) if ids else ""
        if not inner:
            return ids[1:]
        glued = self._processor.piece_to_id(inner)
        return ids if glued == self.unk_id else [glued, *ids[1:]]


def _origin(origins: list[tuple[int, int]], start: int, end: int) -> tuple[int, int]:
    """Return the (start, end) in a text of characters start to end of what was made of it."""
    if start < end:
        return origins[start][0], origins[end - 1][1]
    place = origins[start][0] if start < len(origins) else origins[-1][1]
    return place, place


def tokenizer_of(file: epath.Path, contents: bytes, family: PieceFamily, cleaning: Cleaning) -> SentencePieceTokenizer:
    """Return the tokenizer of a .model file's contents; `file` is named in errors.

    Raises:
      UserError: it lacks a special token, or is no model.
    """
    model, special_ids = in_order_of_ids(contents, family, file)
    try:
        return SentencePieceTokenizer(model, special_ids, contents, family, cleaning)
    except (RuntimeError, OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read by SentencePiece: {' '.join(str(error).split()):.120}") from None


def load_sentence_pieces(file: epath.Path, contents: bytes, lowercase: bool | None) -> SentencePieceTokenizer:
    """Read a .model file, and beside it what says to which family of models it belongs.

    Raises:
      UserError: it is damaged, lacks a special token, or its casing is not `lowercase`.
    """
    try:
        sentencepiece.SentencePieceProcessor(model_proto=contents)
        pieces = read_pieces(contents)
    except (RuntimeError, OSError, ValueError):
        raise UserError(
            f"{file} is not a SentencePiece model ({len(contents):,} bytes); "
            "`bert-jax train-vocab --method=unigram` makes one"
        ) from None
    tokenizer = tokenizer_of(file, contents, *family_of(file, pieces))
    if lowercase not in (None, tokenizer.lowercase):
        casing = "uncased" if tokenizer.lowercase else "cased"
        raise UserError(
            f"lowercase={lowercase}, but {file} is {casing}: the casing of a SentencePiece model is fixed when it "
            "is trained; leave lowercase out"
        )
    return tokenizer
