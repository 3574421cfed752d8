"""The texts of an analysis: every line with the same chance, in one pass, or all of them in order."""

import numpy as np
import pytest

from bert_jax.analysis.texts import drawn, texts_of, windows
from bert_jax.corpus.readers import find_sources
from bert_jax.errors import UserError


def test_every_item_has_the_same_chance_at_every_place():
    draws, items, count = 4_000, 6, 3
    seen = np.zeros((items, count))
    for seed in range(draws):
        for place, item in enumerate(drawn(map(str, range(items)), count, seed)):
            seen[int(item), place] += 1
    expected = draws / items
    # Chi-squared with 15 degrees of freedom (rows and columns are tied): above 37.7 once in a thousand.
    assert np.sum((seen - expected) ** 2 / expected) < 37.7


def test_lines_of_all_files_are_texts_and_blank_ones_are_not(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n\nthree\n")
    (tmp_path / "b.jsonl").write_text('{"text": "four\\nfive"}\n')
    sources = find_sources(f"{tmp_path}/a.txt,{tmp_path}/b.jsonl")
    assert list(texts_of(sources, 0, 0)) == ["one", "two", "three", "four", "five"]
    lines = texts_of(sources, 0, 0)
    assert list(lines) == list(lines)  # it can be read again
    some = list(texts_of(sources, 3, 1))
    assert len(set(some)) == 3 and some == list(texts_of(sources, 3, 1))
    assert sorted(texts_of(sources, 99, 1)) == sorted(texts_of(sources, 0, 0))


def test_windows_hold_all_items_and_need_one():
    assert list(windows(iter("abcde"), 2)) == [["a", "b"], ["c", "d"], ["e"]]
    with pytest.raises(UserError, match="no texts"):
        list(windows([], 2))
