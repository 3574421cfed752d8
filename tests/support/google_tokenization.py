"""Google's published tokenization, written down again from its description: the oracle of the tokenizer tests.

It asks Python's unicodedata for categories, the product asks the tables inside `tokenizers`. On the characters that
Python 3.11, 3.12 and 3.13 know, the two differ in U+1171E and U+11938 only, whose entry in Unicode has changed since.
"""

import unicodedata

IDEOGRAPHS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


def google_basic(text: str, lowercase: bool) -> list[str]:
    spaced = []
    for c in text:
        if c in "\t\n\r" or unicodedata.category(c) == "Zs":
            spaced.append(" ")
        elif c in "\0\ufffd" or unicodedata.category(c) in ("Cc", "Cf"):
            continue
        else:
            spaced.append(f" {c} " if any(low <= ord(c) <= high for low, high in IDEOGRAPHS) else c)
    words = []
    for word in "".join(spaced).split():
        if lowercase:
            word = unicodedata.normalize("NFD", word.lower())
            word = "".join(c for c in word if unicodedata.category(c) != "Mn")
        words += "".join(f" {c} " if is_punctuation(c) else c for c in word).split()
    return words


def is_punctuation(c: str) -> bool:
    symbol = ord(c) < 128 and c.isprintable() and not c.isalnum() and c != " "
    return symbol or unicodedata.category(c).startswith("P")


def google_wordpiece(word: str, vocabulary: set[str]) -> list[str]:
    if len(word) > 200:
        return ["[UNK]"]
    pieces, start = [], 0
    while start < len(word):
        for end in range(len(word), start, -1):
            piece = ("##" if start else "") + word[start:end]
            if piece in vocabulary:
                break
        else:
            return ["[UNK]"]
        pieces.append(piece)
        start = end
    return pieces


def google(text: str, vocabulary: set[str], lowercase: bool) -> list[str]:
    return [piece for word in google_basic(text, lowercase) for piece in google_wordpiece(word, vocabulary)]
