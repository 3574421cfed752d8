"""Paragraphs that share words in a row with an evaluation set, which is read from its published files.

The measure is n-gram overlap, as in Brown et al. 2020, appendix C. A word is a run of letters, digits and underscores
with the marks on them (vowel signs, accents), or one character of a script without spaces between words: Chinese,
Japanese, Thai, Lao, Khmer and Burmese; BERT's tokenizer splits Chinese in the same way. So "didn't" is two words, and
"हिन्दी" is one. Rules about the quality of a text count what is between spaces, with its punctuation.
Hashes of words, and of words in a row, are the same in every process.
"""

import csv
import functools
import hashlib
import io
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from etils import epath

from bert_jax.config.corpora import SHORTEST_OVERLAP
from bert_jax.corpus.blocks import UNCOUNTED, USUAL, opened, suffix
from bert_jax.errors import UserError
from bert_jax.files import decoded, lines_of, parsed

LARGEST_FILE = 1 << 30
_HELD_OUT = re.compile(r"(^|[^a-z])(dev|test|val|valid|validation|eval|matched|mismatched)([^a-z]|$)", re.IGNORECASE)
_KINDS = (".tsv", ".csv", ".json", ".jsonl", ".txt")


def evaluation_files(paths: str) -> list[epath.Path]:
    """Return the files that --clean.decontaminate names, those of a directory in a fixed order.

    Raises:
      UserError: a path does not exist, or a directory has no file for development or testing.
    """
    found: list[epath.Path] = []
    for name in filter(None, (part.strip() for part in paths.split(","))):
        path = epath.Path(name).expanduser()
        if path.is_dir():
            inside = [each for each in _files(path) if _kind(each) in _KINDS and _HELD_OUT.search(each.name)]
            if not inside:
                raise UserError(
                    f"clean.decontaminate={name} has no file of {', '.join(_KINDS)} whose name says dev, valid or "
                    "test; name the files themselves"
                )
            found += inside
        elif path.is_file():
            if _kind(path) not in _KINDS:
                raise UserError(f"clean.decontaminate={name} must be a file of {', '.join(_KINDS)}, or a directory")
            found.append(path)
        else:
            raise UserError(f"clean.decontaminate={name} does not exist; give the files of an evaluation set")
    return found


def read_texts(path: epath.Path) -> Iterator[str]:
    """Yield the texts of a file: cells, strings inside of JSON, or lines.

    Raises:
      UserError: the file is damaged, not UTF-8, or not what its name says.
    """
    expanded = max(UNCOUNTED, USUAL.expansion * path.stat().length) if suffix(path.name) else LARGEST_FILE
    most = min(LARGEST_FILE, expanded)
    with opened(str(path)) as (stream, _):
        content = stream.read(most + 1)
    if len(content) > most:
        reason = f"more than {USUAL.expansion} times as much text as it has bytes; decompress it if that is right"
        large = f"more than {LARGEST_FILE >> 30} GiB, too much for an evaluation set; divide it"
        raise UserError(f"{path} holds {reason if most < LARGEST_FILE else large}")
    kind = _kind(path)
    text = decoded(content, str(path), by_line=kind != ".json")
    try:
        yield from _TEXTS[kind](text)
    except (csv.Error, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not a readable {kind} file: {error}") from error


def _files(directory: epath.Path, depth: int = 3) -> Iterator[epath.Path]:
    """Yield the files in a directory and in those inside it, in a fixed order."""
    for path in sorted(directory.iterdir()):
        if path.is_file():
            yield path
        elif depth and path.is_dir():
            yield from _files(path, depth - 1)


def _kind(path: epath.Path) -> str:
    name = path.name.lower()
    return f".{name.removesuffix(suffix(name)).rpartition('.')[2]}"


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _strings(each)


_TEXTS: dict[str, Callable[[str], Iterable[str]]] = {
    # GLUE's tables have quotes that are never closed.
    ".tsv": lambda text: (cell for row in lines_of(text) for cell in row.split("\t")),
    ".csv": lambda text: itertools.chain.from_iterable(csv.reader(io.StringIO(text), strict=False)),
    ".json": lambda text: _strings(parsed(text)),
    ".jsonl": lambda text: _strings([parsed(line) for line in filter(str.strip, lines_of(text))]),
    ".txt": lines_of,
}


_HAN = "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
_BLOCKS = (
    range(0x0E00, 0x0E80),  # Thai
    range(0x0E80, 0x0F00),  # Lao
    range(0x1000, 0x10A0),  # Burmese
    range(0x1780, 0x1800),  # Khmer
    range(0x3040, 0x3100),  # Hiragana and Katakana
    range(0x31F0, 0x3200),  # small Katakana
    range(0xFF66, 0xFFA0),  # Katakana of half width
)


def _of_category(category: str, codes: Iterable[int]) -> str:
    return "".join(each for each in map(chr, codes) if unicodedata.category(each).startswith(category))


_JOINERS = "\u200c\u200d"  # within words of Persian and of the scripts of India
_LETTERS = _HAN + _of_category("L", itertools.chain(*_BLOCKS))
_SIGNS = _of_category("M", (*range(0x300, 0x1F000), *range(0xE0100, 0xE01F0))) + _JOINERS
_UNSPACED = re.compile(f"[{_LETTERS}]")
_SIGN = rf"[\u0300-\U000e01ff](?<=[{_SIGNS}])"  # the range comes first because it is eight times as fast
_WORD = re.compile(rf"\w+(?:{_SIGN}\w*)*")
_WORD_OF_ASCII = re.compile(r"\w+", re.ASCII)
_WORD_OR_CHARACTER = re.compile(rf"[{_LETTERS}](?:{_SIGN})*|[^\W{_LETTERS}]+(?:{_SIGN}[^\W{_LETTERS}]*)*")
_WITH_MARKS = re.compile(rf"[{_LETTERS}][^\w\s]*|[^\s{_LETTERS}]+")


def words_without_marks(text: str) -> list[str]:
    """Return the words of a text, in the composed form (NFC), without punctuation; marks stay with their letters."""
    if text.isascii():
        return _WORD_OF_ASCII.findall(text)
    text = unicodedata.normalize("NFC", text)
    return (_WORD_OR_CHARACTER if _UNSPACED.search(text) else _WORD).findall(text)


def words_with_marks(line: str) -> list[str]:
    """Return the words of a line with the punctuation that touches them."""
    return _WITH_MARKS.findall(line) if _UNSPACED.search(line) else line.split()


def between_spaces(words: list[str]) -> list[str]:
    """Return those words that are not of a script without spaces."""
    return [word for word in words if not _UNSPACED.match(word)]


_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so that multiplication by it loses nothing


def word_hashes(text: str) -> np.ndarray:
    """Return [words] uint64: a hash of each word of the text, in lower case and without punctuation."""
    return np.fromiter(map(_hash, words_without_marks(text.lower())), np.uint64)


def overlapping(words: np.ndarray, length: int) -> np.ndarray:
    """Return [words - length + 1] uint64: a hash of each row of `length` words, which depends on their order."""
    return next(rows for size, rows in rows_of_words(words, length) if size == length)


def rows_of_words(words: np.ndarray, longest: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield, for each length from 1 to `longest`, (the length, the hashes of `overlapping`)."""
    rows = words
    yield 1, rows
    for length in range(2, longest + 1):
        rows = rows[:-1] * _BASE + words[length - 1 :]
        yield length, rows


@functools.lru_cache(maxsize=1 << 17)
def _hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode("utf-8", "replace"), digest_size=8).digest(), "little")


class Contamination:
    """The rows of words of evaluation texts.

    A text of `overlap` words or more is there with all its rows of that many; a shorter one, of at least
    SHORTEST_OVERLAP, as a whole.
    """

    def __init__(self, texts: Iterable[str], overlap: int):
        rows: dict[int, list[np.ndarray]] = {length: [] for length in range(SHORTEST_OVERLAP, overlap + 1)}
        for text in texts:
            words = word_hashes(text)
            if len(words) >= SHORTEST_OVERLAP:
                length = min(len(words), overlap)
                rows[length].append(overlapping(words, length))
        self.rows = {length: np.unique(np.concatenate(found)) for length, found in rows.items() if found}

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the rows."""
        digest = hashlib.sha256()
        for length, rows in self.rows.items():
            digest.update(length.to_bytes(4, "little") + rows.astype("<u8").tobytes())
        return digest.hexdigest()

    def shared(self, lines: list[str]) -> np.ndarray:
        """Return [lines] bool: which paragraphs have a word in a row that an evaluation text has too."""
        words = [word_hashes(line) for line in lines]
        owners = np.repeat(np.arange(len(lines)), [len(each) for each in words])
        joined = np.concatenate([np.zeros(0, np.uint64), *words])
        found = np.zeros(len(lines), bool)
        for length, candidates in rows_of_words(joined, max(self.rows, default=0)):
            if length not in self.rows:
                continue
            rows = self.rows[length]
            places = np.searchsorted(rows, candidates)
            hits = np.flatnonzero(rows[np.minimum(places, len(rows) - 1)] == candidates)
            for place in hits:
                found[owners[place] : owners[place + length - 1] + 1] = True
        return found
