"""Difficult Unicode of our own making, and why the tokenizers of Hugging Face transformers read some of it otherwise.

The standard is Google's published algorithm (published_tokenizers.py), which the product equals on all of this.
"""

import re
import unicodedata

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

TEXTS = {
    "accents, composed": [
        "na\u00efve caf\u00e9 \u00c5ngstr\u00f6m \u1ead\u0111",
        "CAF\u00c9 \u00d1and\u00da \u0104\u0118",
    ],
    "accents, decomposed": ["cafe\u0301 A\u030angstro\u0308m", "e\u0323\u0301 e\u0301\u0323 q\u0308\u0301x"],
    "combining marks at the start": ["\u0301abc \u0308", "\u0301", "\u20dd a\u20dd 1\ufe0f\u20e3"],
    "ideographs": [
        "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8 \u4e2dabc\u6587",
        "\u3400\u4db5 \U00020000\U0002a6d6 x\U0002a700y",
        "\U0002b740\U0002b81d",
        "\u9fa6\u9fef \u3005\u3007 \u9ffc",
    ],
    "compatibility ideographs": ["\uf900\ufa0e \U0002f800a", "\u2f00\u2f83"],
    "ideographs at the start of extension E": ["\U0002b820x", "a\U0002b823b\U0002b91fc"],
    "ideographs of extension E": ["\U0002b920\U0002cea1"],
    "ideographs of extensions F and G": ["\U0002ceb0x", "a\U00030000b"],
    "Korean": ["\ud55c\uad6d\uc5b4 \ub9d0", "\u1112\u1161\u11ab \u3131\u314f"],
    "controls": ["a\0b\x07c\x1bd\x7fe\x9ff", "x\x0by\x0cz\x1cw\x1dv\x1eu\x1ft", "a\tb\nc\rd"],
    "U+0085": ["a\x85b", "\x85"],
    "replacement character": ["a\ufffdb \ufffd"],
    "invisible characters": [
        "a\u200bb\u200cc\u200dd\u2060e\ufefff\u00adg",
        "\u200eab\u200f \u202acd\u202c \u2066ef\u2069",
    ],
    "U+180E": ["a\u180eb"],
    "spaces": ["a\u00a0b\u1680c\u2003d\u202fe\u205ff\u3000g", "\u00a0 \u3000", "  \t  "],
    "line and paragraph separators": ["a\u2028b\u2029c"],
    "emoji": [
        "\U0001f600ok\U0001f600",
        "\U0001f469\u200d\U0001f4bb \U0001f468\u200d\U0001f469\u200d\U0001f467",
        "\u2764\ufe0f \u2764",
        "\U0001f44d\U0001f3fd \U0001f1e9\U0001f1ea",
        "\U0001f3f4\U000e0067\U000e0062\U000e007f",
    ],
    "long words": ["x" * n for n in (99, 100)] + ["a " + "y" * 100 + " b"],
    "words of 101 to 200 characters": ["x" * n for n in (101, 150, 200)] + ["a " + "\u00e9" * 120 + " b"],
    "words of more than 200 characters": ["x" * n for n in (201, 500)] + ["a " + "y" * 300 + " b"],
    "Turkish i": ["\u0130stanbul", "I\u0131\u0130i D\u0130YARBAKIR"],
    "ligatures and special letters": [
        "\ufb01n \ufb04 \u01c4 \u01c5 \u01f0",
        "\u1e9e \u00df STRASSE \u017f \u00c6\u0153",
        "\u0149 \u1fb3 \u1fbc",
    ],
    "singletons": ["\u212a \u2126 \u212b", "\u2002 \u0374 \u037e"],
    "final sigma": ["\u039f\u0394\u039f\u03a3", "\u0391\u03a3'\u0391 \u0391\u03a3. \u03a3 \u03a3\u03a3"],
    "Greek with accents": ["\u0386\u03bb\u03c6\u03b1 \u1f08\u03c1\u03c7\u03ae \u1fc6"],
    "private use": ["\ue000 private \U000f1234use \U0010fffd", "a\uf8ffb"],
    "unassigned": ["a\u0378b \U0001ffff c\ufdd0d", "\U000e0080"],
    "punctuation of ASCII": [
        "$9.99 + 5% ^_^ `code` a|b ~x <br/> #1 @me 3*4=12 \\n",
        "don't U.S.A. 3,000.5 e-mail@x.org http://a.b/c?d=e&f",
    ],
    "punctuation beyond": [
        "\u00ab\u00bb \u2014 \u2026 \u00bf? \u3002\uff01 \u060c \u0964 \u05be",
        "\u20ac \u00a3 \u00a7 \u00b6 \u00b0 \u2122 \u00b1 \u2212 \u00d7",
    ],
    "punctuation no more": ["a\u166db c\U000111c9d"],
    "punctuation after Unicode 8": ["a\u2e43b", "a\u2e49b \u2e4fc \u2e52d", "a\U0001e95eb \U00011a9bc"],
    "right to left": [
        "\u0627\u0644\u0652\u0639\u064e\u0631\u064e\u0628\u0650\u064a\u0651\u0629\u064f",
        "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd abc",
    ],
    "Indic and Thai": [
        "\u0939\u093f\u0928\u094d\u0926\u0940 \u0915\u094d\u0937",
        "\u0e44\u0e17\u0e22\u0e19\u0e49\u0e33",
        "\u0ba4\u0bae\u0bbf\u0bb4\u0bcd",
    ],
    "mixed scripts": [
        "\u041f\u0440\u0438\u0432\u0435\u0442world\u4e16\u754c\u0627\u0644\u0639",
        "\u0419\u0439 \u0401\u0451 \u0457",
    ],
    "case beyond letters": ["\u24b6\u24d0 \u2160\u2170 \U00010400\U00010428 \uff21\uff41 \U0001d400"],
    "beside the surrogates": ["a\ud7fbb \U00010000y", "a\ud7ffb", "\ufffe\uffffx"],
    "names of specials": ["the [MASK] sat [SEP]", "[CLS][PAD] [UNK]"],
    "nothing": ["", " ", "\u200b"],
}


def texts() -> list[str]:
    return [text for group in TEXTS.values() for text in group]


def vocabulary() -> list[str]:
    """Specials and every character that any reading of the texts could leave, so that ids spell out what was done."""
    characters = {"\u03c2"}
    for text in texts():
        for cased in (text, text.lower()):
            characters |= {*cased, *unicodedata.normalize("NFC", cased), *unicodedata.normalize("NFD", cased)}
    pieces = sorted(c for c in characters if c.strip() and unicodedata.category(c) != "Cc")
    return [*SPECIALS, *pieces, *("##" + c for c in pieces)]


LONG_WORD = "a word of 101 to 200 characters is [UNK]: their limit is 100, Google's 200"
PRIVATE = "private-use characters are dropped, as if they were controls"
UNASSIGNED = "unassigned characters are dropped, as if they were controls"
COMPOSED = "text is composed (NFC) first, which also replaces compatibility ideographs and signs like that of Kelvin"
SPECIAL = "the name of a special that stands as a word is the special"
EXTENSION_E = "ideographs U+2B820 to U+2B91F are not set apart: a slip in the table, U+2B920 for U+2B820"
SIGMA = "capital sigma at the end of a word becomes σ, not ς: it is lowered without regard to its place"
PUNCTUATION = (
    "punctuation is that of Unicode 8: newer marks are not set apart, and two signs that are none any more are"
)
# What Python 3.11 (Unicode 14) calls punctuation and the table inside `tokenizers` does not; and the other way round.
NEW_MARKS = (
    *(0x61D, 0x9FD, 0xA76, 0xC77, 0xC84, (0x1B7D, 0x1B7E), (0x2E43, 0x2E4F), (0x2E52, 0x2E5D), 0x10EAD),
    *((0x10F55, 0x10F59), (0x10F86, 0x10F89), (0x1144B, 0x1144F), (0x1145A, 0x1145B), 0x1145D),
    *((0x11660, 0x1166C), 0x116B9, 0x1183B, (0x11944, 0x11946), 0x119E2, (0x11A3F, 0x11A46), (0x11A9A, 0x11A9C)),
    *((0x11A9E, 0x11AA2), (0x11C41, 0x11C45), (0x11C70, 0x11C71), (0x11EF7, 0x11EF8), 0x11FFF),
    *((0x12FF1, 0x12FF2), (0x16E97, 0x16E9A), 0x16FE2, (0x1E95E, 0x1E95F)),
)
OLD_MARKS = (0x166D, 0x111C9)


def reasons(text: str, kind: str, lowercase: bool) -> list[str]:
    """Why "fast" or "legacy" (see oracles/make_tokenizer_oracle.py) reads `text` otherwise than Google's algorithm."""
    categories = {unicodedata.category(c) for c in text}
    found = {
        LONG_WORD: any(100 < len(word) <= 200 for word in re.findall(r"[^\W_]+", text)),
        PRIVATE: "Co" in categories,
    }
    if kind == "legacy":
        found |= {
            UNASSIGNED: "Cn" in categories,
            COMPOSED: not lowercase and unicodedata.normalize("NFC", text) != text,
            SPECIAL: not {*SPECIALS}.isdisjoint(text.split()),
        }
    else:
        found |= {
            EXTENSION_E: _within(text, ((0x2B820, 0x2B91F),)),
            PUNCTUATION: _within(text, (*NEW_MARKS, *OLD_MARKS)),
            SIGMA: lowercase and text.lower().count("\u03c2") > text.count("\u03c2"),
        }
    return [reason for reason, holds in found.items() if holds]


def _within(text: str, ranges) -> bool:
    bounds = [one if isinstance(one, tuple) else (one, one) for one in ranges]
    return any(low <= ord(c) <= high for c in {*text} if ord(c) > 127 for low, high in bounds)


def without_specials(texts):
    return [text for text in texts if not any(special in text for special in SPECIALS)]
