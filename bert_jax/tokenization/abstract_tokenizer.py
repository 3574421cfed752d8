"""What every tokenizer can do, whatever its pieces are."""

import abc
import itertools
import os
from collections.abc import Iterable

import numpy as np
from etils import epath

from bert_jax.tokenization import vocabulary_file


class Tokenizer(abc.ABC):
    """Conversion between text and ids.

    In the text of a corpus "[MASK]" is two brackets and a word, never the special token.

    Attributes:
      tokens: the text of every id.
      lowercase: whether text is lowercased.
      pad_id: id of the padding, as unk_id, cls_id, sep_id and mask_id of the other special tokens.
      special_ids: those five.
      fingerprint: SHA-256 over everything that changes ids, never a path.
    """

    kind: str
    """wordpiece, sentencepiece, byte_level or tokenizer_json."""
    separators: int = 1
    """Number of separators between the texts of a pair: 1 as in BERT, or 2 as in RoBERTa, which has one segment."""

    class_last: bool = False
    """Whether the class token is the last of a sequence, as in XLNet, and in a segment of its own."""

    def __init__(self, tokens: list[str], special_ids: tuple[int, ...], lowercase: bool, fingerprint: str):
        self.tokens: list[str] = tokens
        self.special_ids: tuple[int, ...] = special_ids
        self.lowercase: bool = lowercase
        self.fingerprint: str = fingerprint
        self.pad_id: int
        self.unk_id: int
        self.cls_id: int
        self.sep_id: int
        self.mask_id: int
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = special_ids

    @property
    def vocab_size(self) -> int:
        """Number of entries of the vocabulary, special tokens included."""
        return len(self.tokens)

    @abc.abstractmethod
    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of each text; no [CLS] or [SEP] is added."""

    def encode_words(self, words: list[str]) -> list[list[int]]:
        """Return the ids of each word, written as after a space."""
        return self.encode_batch(words)

    def encode_flat(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of all texts in a row (int32) and their number in each text (int64), as `encode_batch` does.

        For much text: WordPiece encodes every distinct word once. Not for several threads at a time.
        """
        rows = self.encode_batch(texts)
        lengths = np.array([len(row) for row in rows], np.int64)
        return np.fromiter(itertools.chain.from_iterable(rows), np.int32, lengths.sum()), lengths

    @abc.abstractmethod
    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids and, for each, the (start, end) characters of `text` that it came from."""

    @abc.abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Return readable text; special tokens appear by name."""

    @abc.abstractmethod
    def continues_word(self) -> np.ndarray:
        """Return bool [vocab_size]: whether a piece continues the word before it; False for special tokens."""

    @abc.abstractmethod
    def spell(self, token: str) -> list[int]:
        """Return the ids, at least one, that spell an entry of another vocabulary of the same kind."""

    @abc.abstractmethod
    def _files(self) -> dict[str, bytes]:
        """Return the names and contents of the files that hold the vocabulary."""

    @abc.abstractmethod
    def _encode_glued(self, text: str) -> list[int]:
        """Return the ids of a text that follows a mask without a space between them."""

    def __call__(
        self, texts: str | tuple[str, str] | Iterable[str | tuple[str, str]], max_length: int | None = None
    ) -> dict[str, np.ndarray]:
        """Return the model's input for `texts`, as its `encode` does: [CLS] A [SEP] or [CLS] A [SEP] B [SEP], padded.

        Args:
          texts: one text, one pair (a tuple), or a list of either: n texts. "[MASK]" in a text is the mask token.
          max_length: maximum number of tokens, 5 or more; longer texts are cut, the longer text of a pair first. None:
            nothing is cut.

        Returns:
          input_ids, token_type_ids and attention_mask (1 for real tokens), int32 [n, L]; zero after the tokens of a
          text.

        Raises:
          UserError: `texts` has a different type.
        """
        from bert_jax.tokenization.texts import as_arrays, tokenize

        return as_arrays(tokenize(self, texts, None, max_length, masks=True))

    def __repr__(self) -> str:
        special = " ".join(f"{self.tokens[i]}={i}" for i in self.special_ids)
        return f"{type(self).__name__}({self.vocab_size:,} entries, {'un' * self.lowercase}cased; {special})"

    def encode(self, text: str) -> list[int]:
        """Return the ids of one text, without [CLS] and [SEP]."""
        return self.encode_batch([text])[0]

    def tokenize(self, text: str) -> list[str]:
        """Return the pieces of one text, without [CLS] and [SEP]."""
        return [self.tokens[i] for i in self.encode(text)]

    def encode_masked(self, text: str) -> list[int]:
        """Return the ids of a text in which the literal mask token ("[MASK]") is a piece to predict."""
        first, *rest = text.split(self.tokens[self.mask_id])
        ids = self.encode(first)
        for part in rest:
            glued = part[:1].strip() != ""
            ids += [self.mask_id, *(self._encode_glued(part) if glued else self.encode(part))]
        return ids

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write the vocabulary and tokenizer_config.json; `load_tokenizer(directory)` has the same fingerprint."""
        directory = epath.Path(directory)
        vocabulary_file.make_directory(directory)
        for name, contents in self._files().items():
            vocabulary_file.write(directory / name, contents)
        vocabulary_file.write_config(directory, self.kind, self.lowercase, self.options())

    def options(self) -> dict[str, bool | str]:
        """Return the further entries of tokenizer_config.json that belong to this kind of vocabulary."""
        return {}
