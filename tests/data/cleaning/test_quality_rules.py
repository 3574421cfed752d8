"""The rules of Gopher beside a transcription with tuples, those of C4 beside the code that made C4."""

import collections
import random
import string

import numpy as np
import pytest

from bert_jax.corpus import rules
from bert_jax.corpus.contamination import overlapping, word_hashes

SENTENCE = "The quick brown fox jumps over the lazy dog and that is what they have to do with it today."


def prose(words: int, seed: int = 0) -> list[str]:
    """Lines of random words, with stop words, of which none is repeated."""
    rng = random.Random(seed)
    spelled = ["".join(rng.choices(string.ascii_lowercase, k=5)) for _ in range(words)]
    spelled[:3] = ["the", "of", "and"]
    return [" ".join(spelled[start : start + 10]) for start in range(0, words, 10)]


@pytest.mark.parametrize(
    ("rule", "lines"),
    [
        (None, prose(50)),
        ("few_words", prose(49)),
        (None, prose(100_000)),
        ("many_words", [*prose(100_000), "more"]),
        ("length_of_words", ["a b " * 30]),
        ("length_of_words", ["internationalizations " * 60]),
        (None, [*prose(100), "# " * 10]),
        ("symbols", [*prose(100), "# " * 13]),
        ("symbols", [line + " …" * 2 for line in prose(100)]),
        ("bullets", ["- " + line for line in prose(100)]),
        ("ellipses", [line + ("..." if index % 3 == 0 else "") for index, line in enumerate(prose(60))]),
        ("words_without_letters", [line + " 123 456 789" for line in prose(100)]),
        ("stop_words", [" ".join(line.split()[3:]) for line in prose(100)]),
        ("repeated_lines", [*prose(100), *prose(100)[:5]]),
        ("top_2_words", [f"{line} internationally regarded" for line in prose(60)]),
    ],
)
def test_each_rule_of_gopher_has_its_limit(rule, lines):
    assert rules.broken_rule(lines, english=True) == rule


def test_stop_words_are_asked_of_english_only():
    lines = [" ".join(line.split()[3:]) for line in prose(100)]
    assert rules.broken_rule(lines, english=False) is None


def shares_by_tuples(words: list[str], size: int) -> tuple[float, float]:
    """The two shares of table A1 as the words of the paper say them."""
    rows = [tuple(words[place : place + size]) for place in range(len(words) - size + 1)]
    counts, total = collections.Counter(rows), sum(map(len, words))
    most = max(counts.values(), default=0)
    top = max((sum(map(len, row)) * most for row, count in counts.items() if count == most > 1), default=0)
    covered = {at + step for at, row in enumerate(rows) if counts[row] > 1 for step in range(size)}
    return top / total, sum(len(words[place]) for place in covered) / total


@pytest.mark.parametrize("size", [2, 5, 10])
@pytest.mark.parametrize("seed", range(5))
def test_shares_of_repetition_are_those_counted_with_tuples(size, seed):
    rng = random.Random(seed)
    words = rng.choices(["a", "bb", "ccc"], k=rng.choice((size - 1, 30, 60)))
    hashes = word_hashes(" ".join(words))
    lengths = np.array(list(map(len, words)))
    ends = np.concatenate([[0], np.cumsum(lengths)])
    found = (
        rules._share_of_the_top(overlapping(hashes, size), ends, size),
        rules._share_repeated(overlapping(hashes, size), lengths, size),
    )
    assert found == pytest.approx(shares_by_tuples(words, size))


PAGES = [
    [SENTENCE] * 3,
    [SENTENCE] * 2,
    [SENTENCE, "Short line here.", "No end mark in this line of many words", SENTENCE, SENTENCE],
    [SENTENCE, "We use cookies on this site, as you may know already.", SENTENCE, SENTENCE],
    [SENTENCE, "Please enable JavaScript to see all of this page.", SENTENCE, SENTENCE],
    [SENTENCE, SENTENCE, SENTENCE, "This page has a { curly bracket in a line."],
    [SENTENCE, SENTENCE, SENTENCE, "A page of Lorem ipsum and nothing else at all."],
    [SENTENCE, "This has a citation [12] and another [citation needed] in the middle of it.", SENTENCE, SENTENCE],
    [SENTENCE, "It goes on and on and on and on ...", SENTENCE, SENTENCE],
    [SENTENCE, f"This has a long word {'x' * 1001} in the middle of it.", SENTENCE, SENTENCE],
    [SENTENCE, '"Is this what they said?" he asked, "then let us go."', "What? No! Yes. We are here."],
    ["{ in a line that goes for another reason", SENTENCE, SENTENCE, SENTENCE],
]


@pytest.mark.parametrize("page", PAGES)
def test_pages_are_cleaned_as_by_the_code_that_made_c4(page, monkeypatch):
    c4_utils = pytest.importorskip("tensorflow_datasets.text.c4_utils")
    monkeypatch.setattr(c4_utils, "_get_sentences", lambda line: [None] * rules.count_sentences(line))
    counted = collections.Counter()
    clean = c4_utils.get_clean_page_fn()
    expected = list(
        clean(c4_utils.PageFeatures(text="\n".join(page)), counter_inc_fn=lambda name: counted.update([name]))
    )
    kept, gone, rule = rules.clean_page(page)
    assert kept == (expected[0].text.split("\n") if expected else [])
    assert (rule is None) == bool(expected)
    if expected:
        filtered = sum(count for name, count in counted.items() if name.startswith("line-filtered"))
        assert sum(map(len, gone.values())) == filtered == len(page) - len(kept)


def test_sentences_of_a_line_are_counted_by_their_ends():
    lines = ("One. Two! Three?", 'He said "no." And left.', "3.5 is one.")
    assert [rules.count_sentences(line) for line in lines] == [3, 2, 1]
