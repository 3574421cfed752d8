"""A vocabulary: what all kinds have in common, the pipeline of `tokenizers` that reads with one, and its files.

An error in a file of a vocabulary shows only much later, as a model that does not learn, so it is rejected when it is
read. `widened` maps offsets of pieces to the text before a normalizer that makes several characters of one, or drops
one.
"""

import functools
import itertools
import json
import os
from collections.abc import Iterable, Sequence

import tokenizers
from etils import epath

from bert_jax.errors import UserError
from bert_jax.files import is_remote, write_atomically

SPECIAL_NAMES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDPIECE_FILE, SENTENCEPIECE_FILE, CONFIG_FILE = "vocab.txt", "spm.model", "tokenizer_config.json"
BYTE_LEVEL_FILE, MERGES_FILE, JSON_FILE = "vocab.json", "merges.txt", "tokenizer.json"
JSON_KIND = "tokenizer_json"
"""In the tokenizer_config.json next to a tokenizer.json that is a vocabulary of its own."""
CLASS_SEGMENT = 2
"""Segment of a class token that comes last, in the published code of XLNet."""
WORD_START = "\u2581"
"""SentencePiece's mark for the space before a word."""


class Vocabulary:
    """A vocabulary and how text is read with it; each kind is a dataclass with what distinguishes it.

    The attributes are those of `Tokenizer`, and:

    Attributes:
      fast: the pipeline that reads a text; `SentencePieces` reads it without one.
    """

    kind: str
    tokens: list[str]
    special_ids: tuple[int, ...]
    lowercase: bool
    fingerprint: str
    fast: tokenizers.Tokenizer
    separators: int = 1
    class_last: bool = False
    continuing: str = ""
    """Mark of the pieces that continue a word; empty: all continue it that do not begin with one of `word_starts`."""
    word_starts: tuple[str, ...] = ()
    added_ids: Sequence[int] = ()
    """Ids of tokens that are found in a text before it is split into words."""
    mask_takes_space: bool = False
    """Whether a mask represents a word with the space before it, as RoBERTa's."""
    finds_specials: bool = False
    """Whether special tokens may be found in plain text."""
    joins_specials: bool = False
    """Whether a special token is written as a word like the others."""
    widens: bool = False
    """Whether characters may be dropped, or made into one: the pieces next to them get them."""
    cut_at_spaces: bool = False
    """Whether the ids of a text are those of its parts between spaces, whatever the parts."""

    @functools.cached_property
    def ids(self) -> dict[str, int]:
        """The id of every entry."""
        return {token: i for i, token in enumerate(self.tokens)}

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of each text, in which special tokens may have been found."""
        return [encoding.ids for encoding in self.fast.encode_batch_fast(texts, add_special_tokens=False)]

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the same of one text and, for each, the (start, end) characters of `text` that it came from."""
        encoding = self.fast.encode(text, add_special_tokens=False)
        if not self.widens:
            return encoding.ids, encoding.offsets
        return encoding.ids, widened(text, [_without_space(text, start, end) for start, end in encoding.offsets])

    def decode(self, ids: list[int]) -> str:
        """Return what the pieces with these ids spell."""
        return self.fast.decode(ids).strip()

    def spell(self, token: str) -> list[int]:
        """Return the ids that spell an entry of another vocabulary of this kind; none if they cannot."""
        return [piece.id for piece in self.fast.model.tokenize(token)]

    def pipeline(self) -> tokenizers.Tokenizer | None:
        """Return what a tokenizer.json says of this vocabulary, without special tokens; None: `files` has one."""
        return None

    def never_found(self) -> list[str]:
        """Return the further entries that are not found in a text, as the end of a document in XLNet."""
        return []

    def files(self) -> dict[str, bytes]:
        """Return the names and contents of the files that hold the vocabulary."""
        raise NotImplementedError

    def options(self) -> dict[str, bool | str]:
        """Return the further entries of tokenizer_config.json that belong to this kind of vocabulary."""
        return {}

    def after_space(self, text: str) -> str:
        """Return a text that is read as `text` after a space."""
        return text

    def glued(self, ids: list[int]) -> list[int]:
        """Return the ids of a text that follows a piece without a space between them, of those after a space."""
        if not ids or WORD_START not in self.word_starts or not self.tokens[ids[0]].startswith(WORD_START):
            return ids
        inner = self.tokens[ids[0]].removeprefix(WORD_START)
        return [self.ids.get(inner, ids[0]), *ids[1:]] if inner else ids[1:]


def widened(text: str, offsets: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the (start, end) of each piece with the characters next to it that belong to none and are not white space.

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


def _without_space(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the characters of a piece without the white space around them; the end of a piece of white space."""
    inner = text[start:end].strip()
    first = start + text[start:end].index(inner) if inner else end
    return first, first + len(inner)


def find_vocabulary(path: epath.Path) -> epath.Path:
    """Return the vocabulary file that `path` is or, as a directory, holds; a UserError if that is not exactly one."""
    if not path.exists():
        raise UserError(
            f"no vocabulary at {path}: expected a vocab.txt, a SentencePiece .model, the vocab.json of a byte-level "
            "BPE, a tokenizer.json or a directory that holds one; `bert-jax train-vocab` makes one"
        )
    if not path.is_dir():
        return path
    found = vocabulary_files(path)
    if len(found) != 1:
        seen = ", ".join(file.name for file in found) or "none of them"
        raise UserError(
            f"{path} must hold one vocab.txt, one vocab.json, one SentencePiece .model or a tokenizer.json, but has "
            f"{seen}; name the file itself"
        )
    return found[0]


def vocabulary_files(directory: epath.Path) -> list[epath.Path]:
    """Return the vocabulary files in `directory`, which need not exist; a tokenizer.json only if it is alone."""
    if not directory.is_dir():
        return []
    names = (WORDPIECE_FILE, BYTE_LEVEL_FILE)
    found = sorted(file for file in directory.iterdir() if file.name in names or file.suffix == ".model")
    return found or [file for file in (directory / JSON_FILE,) if file.exists()]


def check_writable(file: epath.Path) -> None:
    """Raise a UserError if a local place cannot be written to, before hours are spent on what should go there."""
    if is_remote(file):
        return
    nearest = next(parent for parent in file.absolute().parents if parent.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise UserError(f"cannot write {file}: {nearest} is not a writable directory; choose another")


def make_directory(directory: epath.Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the directory {directory}: {error.strerror or error}; choose another") from None


def write_config(
    directory: epath.Path, kind: str, lowercase: bool, options: dict[str, bool | str] | None = None
) -> None:
    """Write the tokenizer_config.json of the vocabulary in `directory`."""
    config = {"kind": kind, "do_lower_case": lowercase, **(options or {})}
    write_file(directory / CONFIG_FILE, (json.dumps(config) + "\n").encode())


def write_file(file: epath.Path, contents: bytes) -> None:
    """Write the whole file or nothing."""
    try:
        write_atomically(file, contents)
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror or error}; choose a writable directory") from None
