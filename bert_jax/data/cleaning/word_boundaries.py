"""What a word is: the text between spaces or marks, or one character of a script without spaces between words.

Chinese, Japanese, Thai, Lao, Khmer and Burmese are such; BERT's tokenizer splits Chinese in the same way. In other text
these functions are `str.split` and the regular expression for words.
"""

import re
import unicodedata

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


def _of_category(category: str) -> str:
    characters = (chr(code) for block in _BLOCKS for code in block)
    return "".join(each for each in characters if unicodedata.category(each).startswith(category))


_LETTERS, _SIGNS = _HAN + _of_category("L"), _of_category("M")
_UNSPACED = re.compile(f"[{_LETTERS}]")
_WORD = re.compile(r"\w+")
_WORD_OR_CHARACTER = re.compile(rf"[{_LETTERS}][{_SIGNS}]*|[^\W{_LETTERS}]+")
_WITH_MARKS = re.compile(rf"[{_LETTERS}][^\w\s]*|[^\s{_LETTERS}]+")


def words_without_marks(text: str) -> list[str]:
    """Return the words of a text without punctuation; vowel signs stay with their letters."""
    return (_WORD_OR_CHARACTER if _UNSPACED.search(text) else _WORD).findall(text)


def words_with_marks(line: str) -> list[str]:
    """Return the words of a line with the punctuation that touches them."""
    return _WITH_MARKS.findall(line) if _UNSPACED.search(line) else line.split()


def between_spaces(words: list[str]) -> list[str]:
    """Return those words that are not of a script without spaces."""
    return [word for word in words if not _UNSPACED.match(word)]
