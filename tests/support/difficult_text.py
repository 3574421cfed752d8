"""Difficult Unicode of our own making, and why the tokenizers of Hugging Face transformers read some of it otherwise.

The standard is Google's published algorithm (google_tokenization.py), which the product equals on all of this.
"""

import re
import unicodedata

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

TEXTS = {
    "accents, composed": ["na\u00EFve caf\u00E9 \u00C5ngstr\u00F6m \u1EAD\u0111", "CAF\u00C9 \u00D1and\u00DA \u0104\u0118"],
    "accents, decomposed": ["cafe\u0301 A\u030Angstro\u0308m", "e\u0323\u0301 e\u0301\u0323 q\u0308\u0301x"],
    "combining marks at the start": ["\u0301abc \u0308", "\u0301", "\u20DD a\u20DD 1\uFE0F\u20E3"],
    "ideographs": ["\u65E5\u672C\u8A9E\u306E\u30C6\u30AD\u30B9\u30C8 \u4E2Dabc\u6587",
                   "\u3400\u4DB5 \U00020000\U0002A6D6 x\U0002A700y",
                   "\U0002B740\U0002B81D", "\u9FA6\u9FEF \u3005\u3007 \u9FFC"],
    "compatibility ideographs": ["\uF900\uFA0E \U0002F800a", "\u2F00\u2F83"],
    "ideographs at the start of extension E": ["\U0002B820x", "a\U0002B823b\U0002B91Fc"],
    "ideographs of extension E": ["\U0002B920\U0002CEA1"],
    "ideographs of extensions F and G": ["\U0002CEB0x", "a\U00030000b"],
    "Korean": ["\uD55C\uAD6D\uC5B4 \uB9D0", "\u1112\u1161\u11AB \u3131\u314F"],
    "controls": ["a\0b\x07c\x1Bd\x7Fe\x9Ff", "x\x0By\x0Cz\x1Cw\x1Dv\x1Eu\x1Ft", "a\tb\nc\rd"],
    "U+0085": ["a\x85b", "\x85"],
    "replacement character": ["a\uFFFDb \uFFFD"],
    "invisible characters": ["a\u200Bb\u200Cc\u200Dd\u2060e\uFEFFf\u00ADg", "\u200Eab\u200F \u202Acd\u202C \u2066ef\u2069"],
    "U+180E": ["a\u180Eb"],
    "spaces": ["a\u00A0b\u1680c\u2003d\u202Fe\u205Ff\u3000g", "\u00A0 \u3000", "  \t  "],
    "line and paragraph separators": ["a\u2028b\u2029c"],
    "emoji": ["\U0001F600ok\U0001F600", "\U0001F469\u200D\U0001F4BB \U0001F468\u200D\U0001F469\u200D\U0001F467",
              "\u2764\uFE0F \u2764",
              "\U0001F44D\U0001F3FD \U0001F1E9\U0001F1EA", "\U0001F3F4\U000E0067\U000E0062\U000E007F"],
    "long words": ["x" * n for n in (99, 100)] + ["a " + "y" * 100 + " b"],
    "words of 101 to 200 characters": ["x" * n for n in (101, 150, 200)] + ["a " + "\u00E9" * 120 + " b"],
    "words of more than 200 characters": ["x" * n for n in (201, 500)] + ["a " + "y" * 300 + " b"],
    "Turkish i": ["\u0130stanbul", "I\u0131\u0130i D\u0130YARBAKIR"],
    "ligatures and special letters": ["\uFB01n \uFB04 \u01C4 \u01C5 \u01F0", "\u1E9E \u00DF STRASSE \u017F \u00C6\u0153",
                                      "\u0149 \u1FB3 \u1FBC"],
    "singletons": ["\u212A \u2126 \u212B", "\u2002 \u0374 \u037E"],
    "final sigma": ["\u039F\u0394\u039F\u03A3", "\u0391\u03A3'\u0391 \u0391\u03A3. \u03A3 \u03A3\u03A3"],
    "Greek with accents": ["\u0386\u03BB\u03C6\u03B1 \u1F08\u03C1\u03C7\u03AE \u1FC6"],
    "private use": ["\uE000 private \U000F1234use \U0010FFFD", "a\uF8FFb"],
    "unassigned": ["a\u0378b \U0001FFFF c\uFDD0d", "\U000E0080"],
    "punctuation of ASCII": ["$9.99 + 5% ^_^ `code` a|b ~x <br/> #1 @me 3*4=12 \\n",
                             "don't U.S.A. 3,000.5 e-mail@x.org http://a.b/c?d=e&f"],
    "punctuation beyond": ["\u00AB\u00BB \u2014 \u2026 \u00BF? \u3002\uFF01 \u060C \u0964 \u05BE",
                           "\u20AC \u00A3 \u00A7 \u00B6 \u00B0 \u2122 \u00B1 \u2212 \u00D7"],
    "punctuation no more": ["a\u166Db c\U000111C9d"],
    "punctuation after Unicode 8": ["a\u2E43b", "a\u2E49b \u2E4Fc \u2E52d", "a\U0001E95Eb \U00011A9Bc"],
    "right to left": ["\u0627\u0644\u0652\u0639\u064E\u0631\u064E\u0628\u0650\u064A\u0651\u0629\u064F",
                      "\u05E9\u05B8\u05C1\u05DC\u05D5\u05B9\u05DD abc"],
    "Indic and Thai": ["\u0939\u093F\u0928\u094D\u0926\u0940 \u0915\u094D\u0937", "\u0E44\u0E17\u0E22\u0E19\u0E49\u0E33",
                       "\u0BA4\u0BAE\u0BBF\u0BB4\u0BCD"],
    "mixed scripts": ["\u041F\u0440\u0438\u0432\u0435\u0442world\u4E16\u754C\u0627\u0644\u0639",
                      "\u0419\u0439 \u0401\u0451 \u0457"],
    "case beyond letters": ["\u24B6\u24D0 \u2160\u2170 \U00010400\U00010428 \uFF21\uFF41 \U0001D400"],
    "beside the surrogates": ["a\uD7FBb \U00010000y", "a\uD7FFb", "\uFFFE\uFFFFx"],
    "names of specials": ["the [MASK] sat [SEP]", "[CLS][PAD] [UNK]"],
    "nothing": ["", " ", "\u200B"],
}


def texts() -> list[str]:
    return [text for group in TEXTS.values() for text in group]


def vocabulary() -> list[str]:
    """Specials and every character that any reading of the texts could leave, so that ids spell out what was done."""
    characters = {"\u03C2"}
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
PUNCTUATION = "punctuation is that of Unicode 8: newer marks are not set apart, and two signs that are none any more are"
# What Python 3.11 (Unicode 14) calls punctuation and the table inside `tokenizers` does not; and the other way round.
NEW_MARKS = (0x61D, 0x9FD, 0xA76, 0xC77, 0xC84, (0x1B7D, 0x1B7E), (0x2E43, 0x2E4F), (0x2E52, 0x2E5D), 0x10EAD,
             (0x10F55, 0x10F59), (0x10F86, 0x10F89), (0x1144B, 0x1144F), (0x1145A, 0x1145B), 0x1145D, (0x11660, 0x1166C),
             0x116B9, 0x1183B, (0x11944, 0x11946), 0x119E2, (0x11A3F, 0x11A46), (0x11A9A, 0x11A9C), (0x11A9E, 0x11AA2),
             (0x11C41, 0x11C45), (0x11C70, 0x11C71), (0x11EF7, 0x11EF8), 0x11FFF, (0x12FF1, 0x12FF2), (0x16E97, 0x16E9A),
             0x16FE2, (0x1E95E, 0x1E95F))
OLD_MARKS = (0x166D, 0x111C9)


def reasons(text: str, kind: str, lowercase: bool) -> list[str]:
    """Why "fast" or "legacy" (see oracles/make_tokenizer_oracle.py) reads `text` otherwise than Google's algorithm."""
    categories = {unicodedata.category(c) for c in text}
    found = {LONG_WORD: any(100 < len(word) <= 200 for word in re.findall(r"[^\W_]+", text)), PRIVATE: "Co" in categories}
    if kind == "legacy":
        found |= {UNASSIGNED: "Cn" in categories, COMPOSED: not lowercase and unicodedata.normalize("NFC", text) != text,
                  SPECIAL: not {*SPECIALS}.isdisjoint(text.split())}
    else:
        found |= {EXTENSION_E: _within(text, ((0x2B820, 0x2B91F),)), PUNCTUATION: _within(text, (*NEW_MARKS, *OLD_MARKS)),
                  SIGMA: lowercase and text.lower().count("\u03C2") > text.count("\u03C2")}
    return [reason for reason, holds in found.items() if holds]


def _within(text: str, ranges) -> bool:
    bounds = [one if isinstance(one, tuple) else (one, one) for one in ranges]
    return any(low <= ord(c) <= high for c in {*text} if ord(c) > 127 for low, high in bounds)
