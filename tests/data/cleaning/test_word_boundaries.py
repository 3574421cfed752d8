"""Words of scripts with and without spaces, and what the rules, evaluation sets and duplicates make of them."""

import random
import re
import unicodedata

import numpy as np
import pytest
from letter_corpus import run

from bert_jax.config.corpora import CleaningConfig
from bert_jax.corpus import rules
from bert_jax.corpus.contamination import (
    Contamination,
    between_spaces,
    word_hashes,
    words_with_marks,
    words_without_marks,
)
from bert_jax.corpus.duplicates import HASHES, signature, similarity, sketches


@pytest.mark.parametrize(
    ("text", "words", "with_marks"),
    [
        ("BERT模型，2018年。", ["BERT", "模", "型", "2018", "年"], ["BERT", "模", "型，", "2018", "年。"]),
        ("カタカナ・ひらがな々", list("カタカナひらがな々"), ["カ", "タ", "カ", "ナ・", *"ひらがな々"]),
        ("ที่นี่ดี", ["ที่", "นี่", "ดี"], ["ที่", "นี่", "ดี"]),  # vowel signs and tones stay with their letters
        ("ភាសា។", ["ភា", "សា"], ["ភា", "សា។"]),
        ("ພາສາ", list("ພາສາ"), list("ພາສາ")),
        ("မြန်မာ", ["မြ", "န်", "မာ"], ["မြ", "န်", "မာ"]),
        ("한국어 텍스트, don't", ["한국어", "텍스트", "don", "t"], ["한국어", "텍스트,", "don't"]),
    ],
)  # fmt: skip
def test_a_character_is_a_word_where_no_spaces_are_written(text, words, with_marks):
    assert words_without_marks(text) == words
    assert words_with_marks(text) == with_marks


def test_words_between_spaces_are_those_of_other_scripts():
    assert between_spaces(words_with_marks("BERT模型，2018年 (Google)。")) == ["BERT", "2018", "(Google)。"]


def test_other_text_has_the_words_that_it_had():
    """All characters below the first script without spaces, and those of Korean."""
    characters = [*map(chr, range(0x0E00)), *map(chr, range(0xAC00, 0xAD00))]
    draw = random.Random(0)
    for _ in range(50):
        text = "".join(draw.choices(characters, k=500))
        assert words_without_marks(text) == re.findall(r"\w+", text)
        assert words_with_marks(text) == text.split()


def chinese(draw, length):
    """Sentences of characters drawn from 2,000, as one line without spaces."""
    characters = [chr(draw.randrange(0x4E00, 0x4E00 + 2000)) for _ in range(length)]
    return "".join(each + ("。" if draw.random() < 0.06 else "") for each in characters)


def mixed(draw, length):
    """Chinese with a word of Latin letters after every tenth character or so."""
    latin = ("BERT", "model", "a", "Transformer")
    return "".join(each + (draw.choice(latin) if draw.random() < 0.1 else "") for each in chinese(draw, length))


def changed(draw, text, changes):
    characters = list(text)
    for place in draw.sample([place for place, each in enumerate(text) if is_han(each)], changes):
        characters[place] = chr(draw.randrange(0x6000, 0x7000))
    return "".join(characters)


def is_han(character):
    return unicodedata.name(character).startswith("CJK UNIFIED")


def jaccard(first, second):
    """Exact, over five words in a row, by characters that are looked up one by one."""
    sets = []
    for text in (first, second):
        spaced = "".join(f" {each} " if is_han(each) else " " if each == "。" else each for each in text.lower())
        words = spaced.split()
        sets.append({tuple(words[place : place + 5]) for place in range(len(words) - 4)})
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


@pytest.mark.parametrize("write", [chinese, mixed])
def test_the_estimated_similarity_is_the_exact_one(write):
    """The mean error of 60 independent pairs, and each error, within four standard deviations."""
    draw, errors = random.Random(0), []
    for changes in (1, 3, 6, 10, 20, 40) * 10:
        text = write(draw, 300)
        copy = changed(draw, text, changes)
        exact = jaccard(text, copy)
        signatures = [signature(word_hashes(each)) for each in (text, copy)]
        estimate = similarity(*(sketches(each)[None] for each in signatures))[0]
        errors.append((estimate - exact) / np.sqrt((exact * (1 - exact) + 1 / 256) / HASHES))
    assert abs(np.mean(errors)) <= 4 / np.sqrt(len(errors)) and np.abs(errors).max() <= 4


@pytest.mark.parametrize("write", [chinese, mixed])
def test_planted_near_duplicates_go_and_different_documents_stay(tmp_path, vocab, write):
    """Similarities are four standard deviations or more from the threshold of 0.7."""
    draw = random.Random(1)
    texts = [write(draw, 300) for _ in range(12)]
    near = [changed(draw, text, 4) for text in texts[:6]]
    far = [changed(draw, text, 40) for text in texts[6:]]
    assert min(map(jaccard, texts, near)) > 0.86 and max(map(jaccard, texts[6:], far)) < 0.54
    (tmp_path / "a.txt").write_text("\n\n".join([*texts, *near, *far]))
    clean = CleaningConfig(deduplicate="near", near_threshold=0.7)
    manifest = run(tmp_path / "a.txt", vocab, tmp_path / "store", clean=clean)
    assert {each.step: each.documents for each in manifest.cleaning} == {"deduplicate.near": 6}


def test_thirteen_characters_in_a_row_of_an_evaluation_text_are_found():
    draw = random.Random(2)
    question, before, after = (chinese(draw, size).replace("。", "") for size in (30, 40, 40))
    found = Contamination([question], 13)
    lines = [before + question[5:18] + after, before + question[5:17] + after, before + after]
    assert found.shared(lines).tolist() == [True, False, False]


def test_rules_about_quality_leave_chinese_prose():
    draw = random.Random(3)
    lines = ["".join(f"{chinese(draw, 20).replace('。', '')}。" for _ in range(4)) for _ in range(5)]
    assert rules.broken_rule(lines, english=False) is None
    assert rules.broken_rule(lines[:1] * 5, english=False) == "repeated_lines"
    assert rules.broken_rule([lines[0][:40]], english=False) == "few_words"
    one = chinese(draw, 3000) + "。"  # no word of more than a thousand characters
    assert rules.clean_page([*lines, one, "目录"]) == ([*lines, one], {"no_end_mark": ["目录"]}, None)
