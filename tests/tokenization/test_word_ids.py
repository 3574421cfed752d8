"""Texts encoded word by word: the ids of the whole texts, on every code point and on Wikipedia."""

import itertools
import unicodedata

import numpy as np
import pytest
from processes import EXHAUSTIVE

from bert_jax.tokenization import wordpiece
from bert_jax.tokenization.tokenizer import Tokenizer, load_tokenizer
from bert_jax.tokenization.vocabulary import SPECIAL_NAMES
from bert_jax.tokenization.wordpiece import WordIds, WordPiece

WORDS = [
    *SPECIAL_NAMES,
    "the",
    "cat",
    "un",
    "##want",
    "##ed",
    ".",
    ",",
    "[",
    "]",
    "mask",
    "##s",
    "σ",
    "##ς",
    "##σ",
    "a",
]


def assert_as_whole_texts(tokenizer, texts: list[str], size: int = 2000) -> None:
    """Each batch twice: words are new, and then known."""
    for start in range(0, len(texts), size):
        batch = texts[start : start + size]
        rows = tokenizer.encode_batch(batch)
        for _ in range(2):
            ids, lengths = tokenizer.encode_flat(batch)
            np.testing.assert_array_equal(lengths, [len(row) for row in rows])
            np.testing.assert_array_equal(ids, list(itertools.chain.from_iterable(rows)))


@pytest.mark.parametrize("separator", [True, False])
@pytest.mark.parametrize("lowercase", [True, False])
def test_texts_that_could_be_cut_wrongly(separator, lowercase):
    tokenizer = Tokenizer(WordPiece([*WORDS, "|"] if separator else WORDS, lowercase))
    texts = [
        "",
        " ",
        "  the  cat ",
        "the|cat",
        "|",
        "| |",
        "a | b",
        "the [MASK]",
        "un\u200bwanted\u00a0cats",
        "ΑΣ ΑΣ. ΑΣ.Α ΣΑ",
    ]
    texts += [
        "\tthe\ncat\r\n",
        "Σ \u0301Σ",
        "\u0301 a",
        "\x1cthe\x1fcat\x85",
        "unwanted " * 300,
        "a" * 300,
        "中国 的cat",
    ]
    assert_as_whole_texts(tokenizer, texts)
    for text in texts:
        assert_as_whole_texts(tokenizer, [text])
    ids, lengths = tokenizer.encode_flat([])
    assert len(ids) == len(lengths) == 0


@pytest.mark.parametrize("step", [pytest.param(1 if EXHAUSTIVE else 7, marks=pytest.mark.slow), 29])
def test_every_code_point_between_words(shared_data, step):
    tokenizer = load_tokenizer(shared_data / "vocab" / "uncased")
    characters = [chr(c) for c in range(0, 0x110000, step) if unicodedata.category(chr(c)) != "Cs"]
    assert_as_whole_texts(tokenizer, [f"x{c}Y {c} a {c}{c}|b Σ{c} {c}ΑΣ" for c in characters])


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(wordpiece, "MAX_SIZE", 100)
    encoded = []

    def encode(texts):
        encoded.append(texts)
        return [[ord(c) for c in text if c != " "] for text in texts]

    remembered = WordIds(encode, ord("|"))
    for _ in range(3):
        for start in range(0, 40, 4):
            texts = [f"{chr(97 + i % 26)}{i} z" for i in range(start, start + 4)]
            ids, lengths = remembered(texts)
            assert ids.tolist() == [ord(c) for text in texts for c in text if c != " "]
            assert lengths.tolist() == [len(text) - 1 for text in texts]
    assert len(encoded) == 30, "what was forgotten is encoded again"
    assert len(remembered._numbers) < 20


def test_a_separator_that_is_not_found_again():
    """An id that a word has too: as many as there are words, but one by one they are right."""
    remembered = WordIds(lambda texts: [[7] * len(text.split()) for text in texts], 7)
    ids, lengths = remembered(["a b", "c"])
    assert ids.tolist() == [7, 7, 7] and lengths.tolist() == [2, 1]
