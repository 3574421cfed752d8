"""Published tokenizers in plain Python: Google's, SentencePiece families', GPT-2's.

Google's asks Python's unicodedata for categories, the product asks the tables inside `tokenizers`. On the characters
that Python 3.11, 3.12 and 3.13 know, the two differ in U+1171E and U+11938 only, whose entry in Unicode has changed.

Of the families: ALBERT's `preprocess_text` and `encode_pieces` of tokenization.py (google-research/albert), XLNet's of
prepro_utils.py, with the quotation marks that `transformers` replaces in both; the offsets of fairseq's ids in
XLM-RoBERTa and CamemBERT; the mask that DeBERTa appends.
"""

import re
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


def preprocess_text(text: str, lower: bool) -> str:
    text = " ".join(text.strip().split()).replace("``", '"').replace("''", '"')
    text = unicodedata.normalize("NFKD", text)
    text = "".join(c for c in text if not unicodedata.combining(c))
    return text.lower() if lower else text


def encode_pieces(processor, text: str) -> list[str]:
    found = []
    for piece in processor.encode_as_pieces(text):
        if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit():
            parts = processor.encode_as_pieces(piece[:-1].replace("\u2581", ""))
            if piece[0] != "\u2581" and parts[0][0] == "\u2581":
                parts = parts[1:] if len(parts[0]) == 1 else [parts[0][1:], *parts[1:]]
            found += [*parts, piece[-1]]
        else:
            found.append(piece)
    return found


def ids(family: str, processor, text: str) -> list[int]:
    if family in ("albert", "xlnet"):
        return [
            processor.piece_to_id(piece)
            for piece in encode_pieces(processor, preprocess_text(text, family == "albert"))
        ]
    plain = processor.encode_as_ids(text)
    if family == "deberta-v2":
        return plain
    offset = {"xlm-roberta": 1, "camembert": 4}[family]
    return [i + offset if i else 3 for i in plain]


PART = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")
"""GPT-2's expression with Python's classes; for letters and digits that Unicode calls L and Nd they are the same."""


def byte_characters() -> dict[int, str]:
    """The printable character that each byte is written as (bytes_to_unicode of the published encoder.py)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}


CHARACTERS = byte_characters()


def pieces(text: str, merges: list[tuple[str, str]]) -> list[str]:
    """The pieces of a text that no space precedes."""
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    found = []
    for part in PART.findall(text):
        symbols = [CHARACTERS[byte] for byte in part.encode()]
        while len(symbols) > 1:
            pairs = list(zip(symbols, symbols[1:]))
            best = min(pairs, key=lambda pair: ranks.get(pair, len(ranks)))
            if best not in ranks:
                break
            merged, i = [], 0
            while i < len(symbols):
                if i + 1 < len(symbols) and (symbols[i], symbols[i + 1]) == best:
                    merged, i = [*merged, "".join(best)], i + 2
                else:
                    merged, i = [*merged, symbols[i]], i + 1
            symbols = merged
        found += symbols
    return found
