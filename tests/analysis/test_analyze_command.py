"""`bert-jax analyze`: its texts, its files, a second call that computes nothing, and bad input."""

import argparse
import pathlib

import numpy as np
import pytest
from command_lines import refusal
from pretrained_model import write_workdir

import bert_jax
from bert_jax.analysis import layers
from bert_jax.analysis.layers import LayerSimilarity
from bert_jax.analysis.results import call_with, save_result, saved_result
from bert_jax.analysis.texts import drawn, texts_of, windows
from bert_jax.corpus.readers import find_sources
from bert_jax.errors import UserError

LINES = ["the cat sat on the mat.", "a big dog ran in the house", "birds", "old cats, old dogs flew", "a tree sat"] * 3


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> pathlib.Path:
    """A model with two checkpoints, and texts."""
    place = tmp_path_factory.mktemp("analyze")
    write_workdir(place / "run", 1, 2)
    (place / "texts.txt").write_text("\n".join(LINES) + "\n")
    return place


@pytest.mark.slow
def test_cka_leaves_its_result_and_pictures(place, tmp_path, analyze):
    older = next((place / "run" / "checkpoints").glob("step_*1"))
    words = [place / "run", f"--input={place}/texts.txt", f"--other={older}", "--minibatch=5"]
    printed, saved = analyze("cka", *words)
    assert "linear CKA over 15 texts in 3 minibatches" in printed
    assert f"{tmp_path / 'out'}: result.json, cka.png, cka.svg" in printed
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["cka.png", "cka.svg", "result.json"]
    model, other = bert_jax.load(place / "run"), bert_jax.load(older)
    # The texts of the sample are in another order, so its minibatches are others.
    full = bert_jax.analysis.cka(model, LINES, other, minibatch=15, progress=False)
    assert np.shape(saved["matrix"]) == full.matrix.shape and saved["texts"] == 15
    assert (tmp_path / "out" / "cka.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "out" / "cka.svg").read_text()


def test_isotropy_leaves_its_result_and_pictures(place, tmp_path, analyze):
    words = ["isotropy", place / "run", f"--input={place}/texts.txt", "--texts=0", "--vectors=cls"]
    printed, saved = analyze(*words)
    assert f"{tmp_path}/out: result.json, isotropy.png, isotropy.svg" in printed
    wanted = bert_jax.analysis.isotropy(bert_jax.load(place / "run"), LINES, vectors="cls", progress=False)
    np.testing.assert_allclose(saved["cosine"], wanted.cosine, atol=1e-6)
    assert saved["effective_dimensions"][0] is None and saved["texts"] == len(LINES)  # JSON has no NaN
    assert "has this result already" in analyze(*words)[0]


def test_a_second_call_takes_the_result_that_is_there(place, tmp_path, monkeypatch, analyze):
    corpus, output = tmp_path / "texts.txt", tmp_path / "out"
    corpus.write_text("\n".join(LINES) + "\n")

    def again(*words: str) -> str:
        return analyze("cka", place / "run", f"--input={corpus}", *words)[0]

    again("--vectors=cls")
    first = (output / "result.json").read_bytes()
    (output / "cka.svg").unlink()

    def refuse(*arguments, **options):
        raise AssertionError("computed again")

    monkeypatch.setattr(layers, "cka", refuse)
    assert "has this result already" in again("--vectors=cls", "--batch_size=4")
    assert (output / "result.json").read_bytes() == first and (output / "cka.svg").exists()
    for words in (["--vectors=mean"], ["--vectors=cls", "--seed=1"], ["--vectors=cls", f"--other={place}/run"]):
        with pytest.raises(AssertionError, match="computed again"):
            again(*words)
    corpus.write_text("\n".join([*LINES, "a new line"]) + "\n")
    with pytest.raises(AssertionError, match="computed again"):
        again("--vectors=cls")


def test_a_result_comes_back_as_it_was_saved(tmp_path):
    result = LayerSimilarity(np.array([[1.0, np.nan], [0.25, 1 / 3]]), 9, 2, ("one", "two"), "cls")
    save_result(tmp_path / "result.json", {"a": 1}, result)
    found = saved_result(tmp_path / "result.json", {"a": 1}, LayerSimilarity)
    np.testing.assert_array_equal(found.matrix, result.matrix)
    assert found.models == ("one", "two") and (found.texts, found.minibatches, found.vectors) == (9, 2, "cls")
    assert saved_result(tmp_path / "result.json", {"a": 2}, LayerSimilarity) is None
    assert saved_result(tmp_path / "other.json", {"a": 1}, LayerSimilarity) is None


def test_keywords_get_the_options_of_their_names_unless_they_are_given():
    def function(first, second=0, *, seed=0, draws=1, progress=True):
        return first, second, seed, draws, progress

    options = argparse.Namespace(seed=5, draws=7, second=9, first=8)
    assert call_with(function, options, 1, draws=2)() == (1, 0, 5, 2, True)
    assert call_with(function, options, 1)(3) == (1, 3, 5, 7, True)


@pytest.mark.parametrize(
    "words, message",
    [
        (["pca", "MODEL"], "unknown analysis 'pca'; analyses: attention, cka, heads, "),
        (["cka"], "MODEL comes first"),
        (["cka", "RUN", "--output=x"], "give the required --input"),
        (["cka", "RUN", "--input=nothing.txt", "--output=OUT"], "nothing.txt"),
        (["cka", "RUN", "--input=TEXTS", "--output= "], "output is empty"),
        (["cka", "RUN", "--input=TEXTS", "--output=TEXTS"], "cannot be made"),
        (["cka", "RUN", "--input=TEXTS", "--output=OUT", "--texts=-1"], "texts=-1 must be at least 0"),
        (["cka", "RUN", "--input=TEXTS", "--output=OUT", "--minibatch=2"], "minibatch=2 must be at least 4"),
        (["cka", "RUN", "--input=TEXTS", "--output=OUT", "--other=nowhere"], "there is no 'nowhere'"),
        (["cka", "RUN", "--input=TEXTS", "--output=DAMAGED"], "remove it, and the result is computed again"),
    ],
)
def test_bad_input_is_one_line(place, tmp_path, capsys, words, message):
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "result.json").write_text('{"key": 1, "checksum": "no"}')
    names = {"RUN": "run", "TEXTS": "texts.txt"}
    for name, path in names.items():
        words = [word.replace(name, str(place / path)) for word in words]
    words = [word.replace("OUT", str(tmp_path / "out")).replace("DAMAGED", str(tmp_path / "damaged")) for word in words]
    assert message in refusal(capsys, "analyze", *words)


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
