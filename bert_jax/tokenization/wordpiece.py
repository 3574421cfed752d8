"""WordPiece: Google's basic tokenization, then the longest known piece first.

Both follow Google's BasicTokenizer and WordpieceTokenizer character for character. Hugging Face's ready-made
BertNormalizer does not (it drops private-use characters, leaves 256 ideographs of extension E unspaced, lowercases a
final sigma to σ, and only knows the punctuation of Unicode 8), so the same steps are assembled from its parts. The only
remaining difference is the version of Unicode: Google's code takes the category of a character from the running Python,
this one from the table in `tokenizers`, which is the same on every Python.

`WordIds` keeps the ids of words seen before: text repeats most of its words, and looking up is faster than encoding.
"""

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Callable, Container, Sequence
from typing import Any

import numpy as np
import tokenizers
from absl import logging
from etils import epath
from tokenizers import decoders, models, normalizers, pre_tokenizers

from bert_jax.errors import UserError
from bert_jax.files import decoded, read_contents, read_object
from bert_jax.tokenization.vocabulary import CONFIG_FILE, SPECIAL_NAMES, WORDPIECE_FILE, Vocabulary

MAX_WORD_LENGTH = 200  # characters; a longer word is [UNK] (Google's value)
HUGGING_FACE_LENGTH = 100  # the same in `transformers`

_CONTROL = r"[[\p{Cc}\p{Cf}\x{FFFD}]&&[^\t\n\r]]"
_FINAL_SIGMA = r"\p{Cased}\p{Case_Ignorable}*\KΣ(?!\p{Case_Ignorable}*\p{Cased})"
_IDEOGRAPHS = (
    r"\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2B73F}\x{2B740}-\x{2B81F}"
    r"\x{2B820}-\x{2CEAF}\x{F900}-\x{FAFF}\x{2F800}-\x{2FA1F}"
)


def final_sigma() -> normalizers.Normalizer:
    """Return a normalizer that lowercases the sigmas that Python lowercases to ς, so that others become σ."""
    return normalizers.Replace(tokenizers.Regex(_FINAL_SIGMA), "ς")


def basic_normalizer(lowercase: bool) -> normalizers.Normalizer:
    """Return a normalizer that drops control characters and U+FFFD.

    If `lowercase`, it also lowercases, decomposes (NFD) and strips accents.
    """
    steps = [normalizers.Replace(tokenizers.Regex(_CONTROL), "")]
    if lowercase:
        steps += [
            final_sigma(),
            normalizers.Lowercase(),
            normalizers.NFD(),
            normalizers.Replace(tokenizers.Regex(r"\p{Mn}"), ""),
        ]
    return normalizers.Sequence(steps)


def basic_pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    """Return a pre-tokenizer that splits at whitespace and isolates ideographs, punctuation and ASCII symbols."""
    alone = tokenizers.Regex(rf"[\p{{P}}$+<=>^`|~{_IDEOGRAPHS}]")
    return pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(alone, "isolated")])


@dataclasses.dataclass(eq=False, repr=False)
class WordPiece(Vocabulary):
    """The entries of a vocab.txt; a word with an unknown part is [UNK]."""

    tokens: list[str]
    lowercase: bool

    kind = "wordpiece"
    continuing = "##"
    joins_specials = True
    cut_at_spaces = True

    def __post_init__(self):
        self.special_ids = tuple(self.ids[name] for name in SPECIAL_NAMES)
        content = json.dumps([self.kind, self.lowercase, MAX_WORD_LENGTH, self.tokens])
        self.fingerprint = hashlib.sha256(content.encode()).hexdigest()
        self.fast = self.pipeline()

    def pipeline(self) -> tokenizers.Tokenizer:
        """Return what reads a text, without special tokens."""
        model = models.WordPiece(self.ids, unk_token="[UNK]", max_input_chars_per_word=MAX_WORD_LENGTH)
        fast = tokenizers.Tokenizer(model)
        fast.normalizer, fast.pre_tokenizer = basic_normalizer(self.lowercase), basic_pre_tokenizer()
        fast.decoder = decoders.WordPiece("##", cleanup=False)
        return fast

    def files(self) -> dict[str, bytes]:
        return {WORDPIECE_FILE: written_entries(self.tokens)}

    def spell(self, token: str) -> list[int]:
        if not token.startswith("##") or token == "##":
            return self.encode([token])[0]
        ids, start = [], 2
        while start < len(token):
            pieces = (("##" + token[start:end], end) for end in range(len(token), start, -1))
            piece, start = next(((piece, end) for piece, end in pieces if piece in self.ids), (None, start))
            if piece is None:
                return []
            ids.append(self.ids[piece])
        return ids


def read_wordpiece(file: epath.Path, lowercase: bool | None) -> WordPiece:
    """Read a vocab.txt; raise a UserError if it is damaged or does not fit `lowercase`."""
    tokens = parse_entries(read_contents(file), file)
    check_specials(tokens, SPECIAL_NAMES, file)
    return WordPiece(tokens, casing(tokens, file, lowercase))


STRAY_CAPITALS = 0.01  # share of entries; BERT's cased vocabulary has 0.29, an uncased one may have a stray symbol


def parse_entries(contents: bytes, file: epath.Path) -> list[str]:
    """Return the entries of a vocab.txt in the order of their ids, which are the numbers of the lines from 0 on.

    A blank line is the id of no text. Of lines with the same entry, the last is its id.

    Raises:
      UserError: it is empty or not UTF-8.
    """
    lines = decoded(contents, str(file)).split("\n")
    tokens = [line.strip(" \t\r") for line in lines]
    if tokens[-1] == "":
        tokens.pop()
    if not any(tokens):
        raise UserError(f"{file} is empty; `bert-jax train-vocab` makes a vocabulary")
    return tokens


def check_specials(entries: Container[str], names: Sequence[str], file: epath.Path) -> None:
    """Raise a UserError unless the special tokens are entries."""
    if missing := [name for name in names if name not in entries]:
        raise UserError(
            f"{file} has no {', '.join(missing)}; the model needs {' '.join(names)}, each on a line of its own "
            "(an [unusedN] line can be renamed)"
        )


def capitals(tokens: list[str]) -> list[str]:
    """Return the entries with a capital letter, without names in brackets."""
    return [token for token in tokens if token != token.lower() and not (token[0] == "[" and token[-1] == "]")]


def casing(tokens: list[str], file: epath.Path, lowercase: bool | None) -> bool:
    """Return whether text is lowercased for this vocabulary.

    Raises:
      UserError: Google's validate_case_matches_checkpoint would reject the combination too.
    """
    cased, source, stored = capitals(tokens), "", {}
    if lowercase is None:
        config = file.parent / CONFIG_FILE  # describes only the vocab.txt of its directory, not other files there
        stored = _read_config(config) if file.name == WORDPIECE_FILE and config.exists() else {}
        lowercase = bool(stored.get("do_lower_case", not cased))
        source = f" (by {config})"
    if lowercase and len(cased) > STRAY_CAPITALS * len(tokens):
        raise UserError(
            f"lowercase=True{source}, but {file} is a cased vocabulary ({len(cased)} of its {len(tokens)} "
            f"entries have capitals, for example {cased[0]!r}, and would never be used); set lowercase=False "
            f'or "do_lower_case": false in the {CONFIG_FILE} of a model'
        )
    written_by_us = "kind" in stored  # then the warning came when it was written; do not repeat it in each worker
    if not lowercase and not cased and "##a" in tokens and not written_by_us:
        logging.warning(
            "lowercase=False, but no entry of %s has a capital letter: words that have one become [UNK]", file
        )
    return lowercase


def _read_config(file: epath.Path) -> dict[str, Any]:
    config = read_object(file, "repair or delete it")
    if not isinstance(config.get("do_lower_case", True), bool):
        raise UserError(f'{file} must be a JSON object with "do_lower_case": true or false')
    return config


def written_entries(tokens: list[str]) -> bytes:
    """Return the contents of a vocab.txt with these entries; `parse_entries` is the inverse."""
    return "".join(f"{token}\n" for token in tokens).encode()


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
