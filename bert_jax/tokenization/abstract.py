"""The common part of all tokenizers: texts as users give them, checked and converted to the ids of a model.

Texts are one, a pair, or several of either. One or two become [CLS] A [SEP] or [CLS] A [SEP] B [SEP]. With two
separators, as in RoBERTa, a pair is <s> A </s></s> B </s>, and all of it is in segment 0. XLNet's is A <sep> B <sep>
<cls>, and the class token alone is in segment 2.

`widened` maps offsets of pieces to the text before a normalizer that makes several characters of one, or drops one.
`WordIds` keeps the ids of words seen before: text repeats most of its words, and looking up is faster than encoding.
"""

import abc
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from absl import logging
from etils import epath

from bert_jax.errors import UserError
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


def widened(text: str, offsets: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the (start, end) of each piece with the characters beside it that belong to none and are no white space.

    Of characters that become one, as two backquotes do, a tokenizer names one alone; of those that it drops, none. An
    answer that is cut from the text by its pieces would lack them. Between two pieces they go to the first, and to all
    that end where it does, up to white space, and after that to the second.
    """
    found: list[tuple[int, int]] = []
    covered = 0
    for start, end in offsets:
        if start > covered:
            start -= _give(text, covered, start, found)
        found.append((start, end))
        covered = max(covered, end)
    _give(text, covered, len(text), found)
    return found


def _give(text: str, start: int, end: int, found: list[tuple[int, int]]) -> int:
    """Widen the pieces that end at `start` by what follows them, and return how many characters precede `end`.

    An empty piece is not widened.
    """
    until = start + _until_space(text[start:end])
    place = len(found)
    while place and found[place - 1][0] < found[place - 1][1] == start:
        place -= 1
        found[place] = found[place][0], until
    return _until_space(reversed(text[until if place < len(found) else start : end]))


def _until_space(characters: Iterable[str]) -> int:
    return sum(1 for _ in itertools.takewhile(lambda character: not character.isspace(), characters))


CLASS_SEGMENT = 2
"""Segment of a class token that comes last, in the published code of XLNet."""


def truncate_pair(first: int, second: int, room: int) -> tuple[int, int]:
    """Return how many tokens from their beginnings two segments keep so that together they have at most `room`.

    This is the original's rule for fine-tuning (`_truncate_seq_pair` of run_classifier.py): the longer segment gives up
    its last token until both fit, the second on a tie. In pre-training tokens are removed at either end instead
    (data/chunks.py).
    """
    if first + second <= room:
        return first, second
    if second <= room // 2:
        return room - second, second
    if first <= room - room // 2:
        return first, room - first
    return room - room // 2, room // 2


def sequence_length(tokenizer: Any, first: list[int], second: list[int] | None) -> int:
    """Return how many tokens `join` makes of one or two segments if it cuts nothing."""
    return len(first) + 2 if second is None else len(first) + len(second) + 2 + tokenizer.separators


def join(tokenizer: Any, first: list[int], second: list[int] | None, max_length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return input_ids and token_type_ids, int32 [L], L <= max_length, of one or two segments; see `truncate_pair`."""
    specials = 2 + tokenizer.separators
    if max_length < specials + 2:
        raise UserError(
            f"options.max_length={max_length} leaves no room for two segments between [CLS] and [SEP]; the minimum is "
            f"{specials + 2}"
        )
    if second is None:
        return assembled(tokenizer, first[: max_length - 2])
    keep_first, keep_second = truncate_pair(len(first), len(second), max_length - specials)
    return assembled(tokenizer, first[:keep_first], second[:keep_second])


def assembled(
    tokenizer: Any, first: Sequence[int], second: Sequence[int] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return input_ids and token_type_ids, int32 [L], of one or two segments of any length."""
    classes, separator = [tokenizer.cls_id], [tokenizer.sep_id]
    segments = [[*first, *separator]]
    if second is not None:
        segments = [[*first, *separator * tokenizer.separators], [*second, *separator]]
    numbers = [number * (tokenizer.separators == 1) for number in range(len(segments))]
    if tokenizer.class_last:
        segments, numbers = [*segments, classes], [*numbers, CLASS_SEGMENT]
    else:
        segments[0] = classes + segments[0]
    types = np.repeat(numbers, [len(segment) for segment in segments])
    return np.concatenate(segments).astype(np.int32), types.astype(np.int32)


def text_start(tokenizer: Any) -> int:
    """Return the position of the first token of the first segment."""
    return 0 if tokenizer.class_last else 1


Texts = str | tuple[str, str] | Iterable[str | tuple[str, str]]
"""One text, one pair (a tuple), or several of either (any other iterable)."""


def tokenize(
    tokenizer: Any,
    texts: Texts,
    longest: int | None,
    max_length: int | None = None,
    truncate: bool = True,
    masks: bool = False,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return ids and token types, int32 [L] each, of [CLS] A [SEP] or [CLS] A [SEP] B [SEP] for every text.

    A text longer than `max_length` tokens (None: `longest`) loses its last ones (of a pair, the longer text does until
    both fit), and a warning is logged.

    Args:
      longest: maximum number of tokens that the model takes; None: any number.
      truncate: False makes a text that is too long an error.
      masks: whether "[MASK]" in a text is the mask token, not these letters.

    Raises:
      UserError: `texts` has a different type, or a text is too long with truncate=False.
    """
    if max_length is not None and not 5 <= max_length <= (longest or max_length):
        raise UserError(
            f"max_length={max_length} must "
            + (f"be between 5 and the {longest} positions of the model" if longest else "be 5 or more")
        )
    firsts, seconds = _columns(texts)
    first_ids = _encoded(tokenizer, firsts, masks)
    second_ids = iter(_encoded(tokenizer, [text for text in seconds if text is not None], masks))
    pairs = [(ids, None if text is None else next(second_ids)) for ids, text in zip(first_ids, seconds, strict=True)]
    sizes = [sequence_length(tokenizer, *pair) for pair in pairs]
    limit = max_length or longest or max(4 + tokenizer.separators, *sizes)
    if long := [number for number, size in enumerate(sizes) if size > limit]:
        if not truncate:
            raise UserError(
                f"text {long[0]} ({firsts[long[0]][:40]!r}…) has {sizes[long[0]]} tokens with its [CLS] and [SEP], "
                f"{limit} are allowed; shorten it, or let truncate=True cut it"
            )
        logging.warning(
            "%d of %d texts have more than %d tokens and were cut (the longest has %d)",
            len(long),
            len(pairs),
            limit,
            max(sizes),
        )
    return [join(tokenizer, first, second, limit) for first, second in pairs]


def as_arrays(rows: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return all texts in one batch, as long as the longest: int32 [n, L], zero beyond a text's own tokens."""
    return {
        "input_ids": _padded([ids for ids, _ in rows]),
        "token_type_ids": _padded([types for _, types in rows]),
        "attention_mask": _padded([np.ones_like(ids) for ids, _ in rows]),
    }


def _padded(rows: list[np.ndarray]) -> np.ndarray:
    whole = np.zeros((len(rows), max(map(len, rows))), np.int32)
    for target, row in zip(whole, rows, strict=True):
        target[: len(row)] = row
    return whole


def _columns(texts: Texts) -> tuple[list[str], list[str | None]]:
    """Return first and second texts; None if there is no second."""
    rows = [texts] if isinstance(texts, (str, tuple)) or not isinstance(texts, Iterable) else list(texts)
    if not rows:
        raise UserError("no texts were given: an empty list")
    pairs: list[tuple[Any, ...]] = [row if isinstance(row, tuple) else (row, None) for row in rows]
    for number, pair in enumerate(pairs):
        if len(pair) != 2 or not isinstance(pair[0], str) or not isinstance(pair[1], str | None):
            raise UserError(
                f"text {number} is {rows[number]!r:.60}; expected a str, a tuple of two, or a list of these"
            )
        check_utf8(*pair)
    return [first for first, _ in pairs], [second for _, second in pairs]


def _encoded(tokenizer: Any, texts: list[str], masks: bool) -> list[list[int]]:
    mask = tokenizer.tokens[tokenizer.mask_id]
    return [
        tokenizer.encode_masked(text) if masks and mask in text else ids
        for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True)
    ]


def lowered(texts: Texts) -> Texts:
    """Return the same texts in lowercase, by Python's rules."""
    if isinstance(texts, (str, tuple)) or not isinstance(texts, Iterable):
        return _lowered(texts)
    return [_lowered(text) for text in texts]


def _lowered(text: Any) -> Any:
    if isinstance(text, tuple):
        return tuple(map(_lowered, text))
    return text.lower() if isinstance(text, str) else text


def check_utf8(*texts: str | None) -> None:
    """Raise a UserError about a lone surrogate, the mark of bytes that were not UTF-8."""
    for text in texts:
        if text is not None and any("\ud800" <= character <= "\udfff" for character in text):
            raise UserError(f"the text {ascii(text[:60])} is not UTF-8; type or pass it in that encoding")


MAX_SIZE = 1 << 22
"""Characters of the words that are remembered, each with 8 more: then all are forgotten. It takes about 40 MiB."""
SEPARATOR = "|"


class WordIds:
    """Encodes texts word by word and each distinct word once, where words are what spaces separate.

    That is exact if nothing in `encode` looks beyond a space, as in BERT's basic tokenization and WordPiece: the ids of
    a text are then those of its words in a row.

    Args:
      encode: returns the ids of each of many texts.
      separator: the id of SEPARATOR, which `encode` gives wherever it is between spaces; None if it has no id.
    """

    def __init__(self, encode: Callable[[list[str]], list[list[int]]], separator: int | None):
        self._encode, self._separator = encode, separator
        self._forget()

    def __call__(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of all texts in a row, int32, and the number of ids of each text, int64."""
        if not texts:
            return np.zeros(0, np.int32), np.zeros(0, np.int64)
        words = " ".join(texts).split(" ")
        if self._size > MAX_SIZE:
            self._forget()
        self._learn(list(set(words).difference(self._numbers)))
        numbers = np.fromiter(map(self._numbers.__getitem__, words), np.int64, len(words))
        counts = self._counts[numbers]
        ends = np.cumsum(counts)
        ids = self._ids[np.repeat(self._begins[numbers] - (ends - counts), counts) + np.arange(ends[-1])]
        last_words = np.cumsum([text.count(" ") + 1 for text in texts]) - 1
        return ids, np.diff(ends[last_words], prepend=0)

    def _forget(self) -> None:
        self._size, self._numbers = 0, {}  # the number of each word
        self._ids = np.zeros(0, np.int32)  # of all words in a row
        self._begins = self._counts = np.zeros(0, np.int64)  # where those of each word begin, and how many they are

    def _learn(self, words: list[str]) -> None:
        for group in ([word for word in words if SEPARATOR not in word], [word for word in words if SEPARATOR in word]):
            if group:
                ids, counts = self._of_each(group)
                self._numbers.update(zip(group, itertools.count(len(self._numbers))))
                self._begins = np.append(self._begins, len(self._ids) + np.cumsum(counts) - counts)
                self._counts = np.append(self._counts, counts)
                self._ids = np.append(self._ids, ids)
                self._size += sum(map(len, group)) + 8 * len(group)

    def _of_each(self, words: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of the words in a row, and the number of ids of each.

        One text of all words takes a third of the time that as many texts take. Its separators are found again if there
        are as many as were put in, since none of them is ever lost.
        """
        if self._separator is not None:
            ids = np.array(self._encode([f" {SEPARATOR} ".join(words)])[0], np.int32)
            (between,) = np.nonzero(ids == self._separator)
            if len(between) == len(words) - 1:
                counts = np.diff(between, prepend=-1, append=len(ids)) - 1
                return np.delete(ids, between), counts
        rows = self._encode(words)
        counts = np.array([len(row) for row in rows], np.int64)
        return np.fromiter(itertools.chain.from_iterable(rows), np.int32, counts.sum()), counts
