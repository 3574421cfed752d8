"""Text to ids and back, with a vocabulary of any kind: WordPiece, SentencePiece, byte-level BPE or a tokenizer.json.

Texts are one, a pair, or several of either. One or two become [CLS] A [SEP] or [CLS] A [SEP] B [SEP]. With two
separators, as in RoBERTa, a pair is <s> A </s></s> B </s>, and all of it is in segment 0. XLNet's is A <sep> B <sep>
<cls>, and the class token alone is in segment 2.
"""

import contextlib
import contextvars
import copy
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from absl import logging
from etils import epath

from bert_jax import hub
from bert_jax.errors import UserError, need_cloud_storage
from bert_jax.tokenization.directories import read_vocabulary
from bert_jax.tokenization.vocabulary import (
    BYTE_LEVEL_FILE,
    CLASS_SEGMENT,
    JSON_FILE,
    WORDPIECE_FILE,
    Vocabulary,
    find_vocabulary,
    make_directory,
    write_config,
    write_file,
)
from bert_jax.tokenization.wordpiece import SEPARATOR, WordIds, read_wordpiece

Texts = str | tuple[str, str] | Iterable[str | tuple[str, str]]
"""One text, one pair (a tuple), or several of either (any other iterable)."""


class Tokenizer:
    """Conversion between text and ids.

    In the text of a corpus "[MASK]" is two brackets and a word, never the special token.

    Attributes:
      vocabulary: what the kinds of vocabulary do not have in common.
      kind: wordpiece, sentencepiece, byte_level or tokenizer_json.
      tokens: the text of every id.
      lowercase: whether text is lowercased.
      separators: number of separators between the texts of a pair: 1 as in BERT, or 2 as in RoBERTa, which has one
        segment.
      class_last: whether the class token is the last of a sequence, as in XLNet, and in a segment of its own.
      pad_id: id of the padding, as unk_id, cls_id, sep_id and mask_id of the other special tokens.
      special_ids: those five.
      fingerprint: SHA-256 over everything that changes ids, never a path.
    """

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary: Vocabulary = vocabulary
        self.kind: str = vocabulary.kind
        self.tokens: list[str] = vocabulary.tokens
        self.lowercase: bool = vocabulary.lowercase
        self.separators: int = vocabulary.separators
        self.class_last: bool = vocabulary.class_last
        self.fingerprint: str = vocabulary.fingerprint
        self.special_ids: tuple[int, ...] = vocabulary.special_ids
        self.pad_id: int
        self.unk_id: int
        self.cls_id: int
        self.sep_id: int
        self.mask_id: int
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = vocabulary.special_ids
        self._unwanted = set(self.special_ids) - {self.unk_id} if vocabulary.finds_specials else set()
        self._word_ids = WordIds(self.encode_batch, vocabulary.ids.get(SEPARATOR)) if vocabulary.cut_at_spaces else None

    @property
    def vocab_size(self) -> int:
        """Number of entries of the vocabulary, special tokens included."""
        return len(self.tokens)

    def __repr__(self) -> str:
        special = " ".join(f"{self.tokens[i]}={i}" for i in self.special_ids)
        return f"Tokenizer({self.kind}, {self.vocab_size:,} entries, {'un' * self.lowercase}cased; {special})"

    def __call__(self, texts: Texts, max_length: int | None = None) -> dict[str, np.ndarray]:
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

    def encode(self, text: str) -> list[int]:
        """Return the ids of one text, without [CLS] and [SEP]."""
        return self.encode_batch([text])[0]

    def tokenize(self, text: str) -> list[str]:
        """Return the pieces of one text, without [CLS] and [SEP]."""
        return [self.tokens[i] for i in self.encode(text)]

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of each text; no [CLS] or [SEP] is added."""
        rows = self.vocabulary.encode(texts)
        return [self._plain(row) for row in rows] if self._unwanted else rows

    def encode_words(self, words: list[str]) -> list[list[int]]:
        """Return the ids of each word, written as after a space."""
        return self.encode_batch([self.vocabulary.after_space(word) for word in words])

    def encode_flat(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of all texts in a row (int32) and their number in each text (int64).

        Each text is read as after a space, as the sentences of a corpus follow each other. For much text: WordPiece
        encodes every distinct word once. Not for several threads at a time.
        """
        if self._word_ids is not None:
            return self._word_ids(texts)
        rows = self.encode_words(texts)
        lengths = np.array([len(row) for row in rows], np.int64)
        return np.fromiter(itertools.chain.from_iterable(rows), np.int32, lengths.sum()), lengths

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids and, for each, the (start, end) characters of `text` that it came from."""
        ids, offsets = self.vocabulary.encode_with_offsets(text)
        return self._plain(ids), offsets

    def encode_masked(self, text: str) -> list[int]:
        """Return the ids of a text in which the literal mask token ("[MASK]") is a piece to predict."""
        *before, last = text.split(self.tokens[self.mask_id])
        if self.vocabulary.mask_takes_space:
            before = [part.rstrip() for part in before]
        first, *rest = [*before, last]
        ids = self.encode(first)
        for part in rest:
            found = self.encode(part)
            ids += [self.mask_id, *(self.vocabulary.glued(found) if part[:1].strip() else found)]
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Return readable text; special tokens appear by name."""
        apart = () if self.vocabulary.joins_specials else self.special_ids
        parts = []
        for special, run in itertools.groupby(map(int, ids), key=lambda i: i in apart):
            pieces = list(run)
            parts += [self.tokens[i] for i in pieces] if special else [self.vocabulary.decode(pieces)]
        return " ".join(parts)

    def continues_word(self) -> np.ndarray:
        """Return bool [vocab_size]: whether a piece continues the word before it; False for special tokens."""
        if mark := self.vocabulary.continuing:
            continues = np.array([token.startswith(mark) for token in self.tokens])
        else:
            continues = np.array([not token.startswith(self.vocabulary.word_starts) for token in self.tokens])
        continues[[*self.special_ids, *self.vocabulary.added_ids]] = False
        return continues

    def spell(self, token: str) -> list[int]:
        """Return the ids, at least one, that spell an entry of another vocabulary of the same kind."""
        return self.vocabulary.spell(token) or [self.unk_id]

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write the vocabulary and tokenizer_config.json; `load_tokenizer(directory)` has the same fingerprint."""
        directory = epath.Path(directory)
        make_directory(directory)
        for name, contents in self.vocabulary.files().items():
            write_file(directory / name, contents)
        write_config(directory, self.kind, self.lowercase, self.vocabulary.options())

    def _plain(self, ids: list[int]) -> list[int]:
        """Return the ids without special tokens, which may be found in a text as other pieces are."""
        return ids if self._unwanted.isdisjoint(ids) else [self.unk_id if i in self._unwanted else i for i in ids]


def load_tokenizer(path: str | os.PathLike[str], lowercase: bool | None = None) -> Tokenizer:
    """Read a vocab.txt, a SentencePiece .model, a vocab.json (of byte-level BPE, with its merges.txt next to it), a
    tokenizer.json, a directory that holds one of them (local or gs://), or a model of the hub
    (hf://owner/name[@revision]).

    A file with its usual name is read as the files of `transformers` next to it say, such as tokenizer_config.json.

    `lowercase` None: as tokenizer_config.json says, else uncased unless an entry of a vocab.txt has a capital letter.

    Raises:
      UserError: the vocabulary cannot be used or does not fit `lowercase`.
    """
    need_cloud_storage(os.fspath(path))
    path = epath.Path(hub.local_path(os.fspath(path), weights=False))
    file = find_vocabulary(path)
    if file.name not in (WORDPIECE_FILE, BYTE_LEVEL_FILE, JSON_FILE) and file.suffix != ".model":
        return Tokenizer(read_wordpiece(file, lowercase))
    found = read_vocabulary(file.parent, lowercase, "" if path.is_dir() else file.name, links=True)
    assert found is not None  # the file is there
    return Tokenizer(found)


def read_tokenizer(directory: epath.Path) -> Tokenizer | None:
    """Return the tokenizer of the directory of a model, in which all files must be; None if it has none.

    Raises:
      UserError: a file is damaged, contradicts another, or asks for what is not read here.
    """
    found = read_vocabulary(directory)
    return None if found is None else Tokenizer(found)


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


def sequence_length(tokenizer: Tokenizer, first: list[int], second: list[int] | None) -> int:
    """Return how many tokens `join` makes of one or two segments if it cuts nothing."""
    return len(first) + 2 if second is None else len(first) + len(second) + 2 + tokenizer.separators


def join(
    tokenizer: Tokenizer, first: list[int], second: list[int] | None, max_length: int
) -> tuple[np.ndarray, np.ndarray]:
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
    tokenizer: Tokenizer, first: Sequence[int], second: Sequence[int] | None = None
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


def text_start(tokenizer: Tokenizer) -> int:
    """Return the position of the first token of the first segment."""
    return 0 if tokenizer.class_last else 1


def check_max_length(max_length: int | None, longest: int | None) -> None:
    """Raise a UserError unless a text may be cut to `max_length` tokens for a model that takes `longest` of them.

    None stands for all of the text, and for any number.
    """
    if max_length is not None and not 5 <= max_length <= (longest or max_length):
        raise UserError(
            f"max_length={max_length} must "
            + (f"be between 5 and the {longest} positions of the model" if longest else "be 5 or more")
        )


def tokenize(
    tokenizer: Tokenizer,
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
    check_max_length(max_length, longest)
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
        found = f"{len(long)} of {len(pairs)} texts have more than {limit} tokens and were cut"
        tell_of_cuts(len(long), f"{found} (the longest has {max(sizes)})")
    return [join(tokenizer, first, second, limit) for first, second in pairs]


_CUTS: contextvars.ContextVar[list[int] | None] = contextvars.ContextVar("cuts", default=None)


@contextlib.contextmanager
def counted_cuts() -> Iterator[list[int]]:
    """Give the numbers of texts that each call within has cut, instead of a warning for each."""
    found: list[int] = []
    token = _CUTS.set(found)
    try:
        yield found
    finally:
        _CUTS.reset(token)


def tell_of_cuts(count: int, message: str) -> None:
    """Log a warning that texts were cut, or count them for `counted_cuts`."""
    if (counts := _CUTS.get()) is None:
        logging.warning("%s", message)
    else:
        counts.append(count)


PART = 16_384
"""Characters that are read between two calls of what may end the reading."""


def read_in_parts(tokenizer: Tokenizer, check: Callable[[], None]) -> Tokenizer:
    """Return the same tokenizer, which calls `check` before each text, or some short ones; what it raises ends it."""
    other = copy.copy(tokenizer)
    other.vocabulary = _Checked(tokenizer.vocabulary, check)  # type: ignore[assignment]
    return other


class _Checked:
    """A vocabulary that reads texts in parts."""

    def __init__(self, vocabulary: Vocabulary, check: Callable[[], None]):
        self._vocabulary, self._check = vocabulary, check

    def __getattr__(self, name: str) -> Any:
        return getattr(self._vocabulary, name)

    def encode(self, texts: list[str]) -> list[list[int]]:
        found: list[list[int]] = []
        first = size = 0
        for number, text in enumerate(texts, 1):
            size += len(text)
            if size >= PART or number == len(texts):
                self._check()
                found += self._vocabulary.encode(texts[first:number])
                first, size = number, 0
        return found


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


def _encoded(tokenizer: Tokenizer, texts: list[str], masks: bool) -> list[list[int]]:
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
