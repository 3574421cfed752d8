"""What ALBERT and XLNet do to a text before SentencePiece sees it, with the characters that each result came from."""

import dataclasses
import re
import unicodedata

_SPACES, _QUOTES = re.compile(r"\s+"), re.compile("``|''")


@dataclasses.dataclass(frozen=True)
class Cleaning:
    """Steps in this order, as in `preprocess_text` of the published code and `transformers`.

    Attributes:
      tidies: whether runs of white space become one space, none is left at the ends, and `` and '' become ".
      strips_accents: whether text is decomposed (NFKD) and combining characters are dropped.
      lowercase: whether text is lowercased.
    """

    tidies: bool = False
    strips_accents: bool = False
    lowercase: bool = False

    def __bool__(self) -> bool:
        return self.tidies or self.strips_accents or self.lowercase

    def __call__(self, text: str) -> str:
        """Return the cleaned text."""
        if self.tidies:
            text = _QUOTES.sub('"', _SPACES.sub(" ", text.strip()))
        if self.strips_accents and not text.isascii():
            text = _without_accents(text)
        return text.lower() if self.lowercase else text

    def with_origins(self, text: str) -> tuple[str, list[tuple[int, int]]]:
        """Return the cleaned text and, for each of its characters, the (start, end) in `text` that it came from."""
        parts = [(character, i, i + 1) for i, character in enumerate(text)]
        if self.tidies:
            parts = _replaced(_replaced(_stripped(parts), _SPACES, " "), _QUOTES, '"')
        if self.strips_accents:
            parts = [(base, *at) for character, *at in parts for base in _without_accents(character)]
        if self.lowercase:
            lowered = iter("".join(character for character, *_ in parts).lower())  # Σ depends on its neighbours
            parts = [(next(lowered), *at) for character, *at in parts for _ in character.lower()]
        return "".join(character for character, *_ in parts), [(start, end) for _, start, end in parts]


def _without_accents(text: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))


def _stripped(parts: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    text = "".join(character for character, *_ in parts)
    return parts[len(text) - len(text.lstrip()) : len(text.rstrip())]


def _replaced(parts: list[tuple[str, int, int]], pattern: re.Pattern[str], by: str) -> list[tuple[str, int, int]]:
    """Return the parts with one character for each match, which came from all of it."""
    result, position = [], 0
    for match in pattern.finditer("".join(character for character, *_ in parts)):
        first, end = match.span()
        result += [*parts[position:first], (by, parts[first][1], parts[end - 1][2])]
        position = end
    return result + parts[position:]
