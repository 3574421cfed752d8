"""Character edits: the identity, the rates asked for, distances by another road, and one key per word."""

import functools

import numpy as np
import pytest

from bert_jax.config.pretraining import EDITS, NoiseConfig, PretrainingNoiseConfig, check_noise
from bert_jax.data.spelling_errors import NEIGHBOURS, edit_sites, edited_text, edited_words, may_change
from bert_jax.errors import UserError
from bert_jax.randomness import Stream, bits

WORDS = ["Anchorage", "gull", "seven", "4711", "o", "don't", "Öland", "...", "lighthouse", "kettle"] * 2_000


def keys(count: int, seed: int = 0) -> np.ndarray:
    return bits(seed, Stream.EDITED_WORD, np.arange(count))


def distance(first: str, second: str, swaps: bool = False) -> int:
    """Insertions, deletions, substitutions and, if `swaps`, transpositions of neighbours, each character in one."""

    @functools.cache
    def between(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        ways = [between(i - 1, j) + 1, between(i, j - 1) + 1, between(i - 1, j - 1) + (first[i - 1] != second[j - 1])]
        if swaps and i > 1 and j > 1 and (first[i - 1], first[i - 2]) == (second[j - 2], second[j - 1]):
            ways.append(between(i - 2, j - 2) + 1)
        return min(ways)

    return between(len(first), len(second))


def test_rate_0_is_the_identity():
    assert edited_words(WORDS, keys(len(WORDS)), NoiseConfig()) == WORDS
    text = "  two\twords,\n and \u00a0 white space "
    assert edited_text(text, bits(0, Stream.EDITED_TEXT, 0), NoiseConfig()) == text


@pytest.mark.parametrize("kind", EDITS)
def test_one_edit_a_word_is_one_step_of_its_kind(kind):
    noise = NoiseConfig(rate=1.0, per="word", kinds=(kind,))
    for word, edited in zip(WORDS[:200], edited_words(WORDS[:200], keys(200), noise), strict=True):
        assert distance(word, edited, swaps=True) == any(map(str.isalnum, word)), (word, edited)
        if len(word) > 1:
            assert len(edited) - len(word) == {"insert": 1, "delete": -1}.get(kind, 0) * any(map(str.isalnum, word))
        if kind == "swap" and len(word) > 1:
            assert sorted(edited) == sorted(word) or "ee" in word or "tt" in word or "ll" in word or "11" in word
        if kind == "neighbour" and word.isascii() and edited != word:
            ((old, new),) = [pair for pair in zip(word, edited, strict=True) if pair[0] != pair[1]]
            assert new.lower() in NEIGHBOURS[old.lower()] and new.isupper() == old.isupper()


@pytest.mark.parametrize("rate", (0.02, 0.3))
def test_the_measured_rate_is_the_rate_asked_for(rate):
    editable = sum(character.isalnum() for word in WORDS for character in word)
    for kinds in (("substitute",), ("neighbour",), EDITS):
        noise = NoiseConfig(rate=rate, kinds=kinds)
        sites = edit_sites(WORDS, keys(len(WORDS)), noise)[2].sum()
        assert abs(sites - rate * editable) < 4 * np.sqrt(editable * rate * (1 - rate))
        if kinds != EDITS:  # substitutions can be counted in the result
            edited = edited_words(WORDS, keys(len(WORDS)), noise)
            assert sites == sum(a != b for pair in zip(WORDS, edited, strict=True) for a, b in zip(*pair, strict=True))
    noise, with_letters = NoiseConfig(rate=rate, per="word"), [word for word in WORDS if word != "..."]
    changed = sum(
        old != new for old, new in zip(with_letters, edited_words(with_letters, keys(18_000), noise), strict=True)
    )
    assert abs(changed - rate * 18_000) < 4 * np.sqrt(18_000 * rate * (1 - rate))


def test_kinds_are_equally_likely():
    lengths = np.array([len(word) for word in WORDS])
    edited = edited_words(WORDS, keys(len(WORDS)), NoiseConfig(rate=1.0, per="word"))
    change = (np.array([len(word) for word in edited]) - lengths)[lengths > 3]
    for difference in (-1, 1):
        assert abs(np.mean(change == difference) - 0.2) < 4 * np.sqrt(0.16 / len(change))


def test_a_word_depends_on_its_own_key_alone():
    noise, count = NoiseConfig(rate=0.3), 500
    edited = edited_words(WORDS[:count], keys(count), noise)
    assert edited == edited_words(WORDS[:count], keys(count), noise)
    assert edited != edited_words(WORDS[:count], keys(count, seed=1), noise)
    backwards = edited_words(WORDS[:count][::-1], keys(count)[::-1], noise)
    assert backwards[::-1] == edited


@pytest.mark.parametrize("per", ("character", "word"))
def test_what_cannot_change_does_not_and_no_word_is_lost(per):
    for rate in (0.05, 1.0):
        noise = NoiseConfig(rate=rate, per=per)
        edited = edited_words(WORDS, keys(len(WORDS)), noise)
        may = may_change(np.array([len(word) + 2 for word in WORDS]), keys(len(WORDS)), noise)
        assert all(may[number] for number, word in enumerate(WORDS) if edited[number] != word)
        assert all(edited) and (rate == 1 or not may.all())
    only_deleted = edited_words(WORDS, keys(len(WORDS)), NoiseConfig(rate=1.0, kinds=("delete",)))
    assert {len(word) for word in only_deleted if word != "..." and "'" not in word} == {1}


def test_errors_name_what_is_wrong():
    check_noise(NoiseConfig(rate=1.0), "noise.")
    for noise, message in (
        (NoiseConfig(rate=1.5), "noise.rate=1.5 must be a probability"),
        (NoiseConfig(kinds=("typo",)), "noise.kinds=typo must be some of insert,"),
        (NoiseConfig(kinds=()), "noise.kinds= must be some of"),
        (NoiseConfig(kinds=("swap", "swap")), "each once"),
        (PretrainingNoiseConfig(reserve=0.9), "noise.reserve=0.9 must be a share from 0 to 0.5"),
    ):
        with pytest.raises(UserError, match=message):
            check_noise(noise, "noise.")
