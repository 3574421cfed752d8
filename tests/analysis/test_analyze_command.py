"""The command `analyze`, its page of attention, noise in the spelling, and models before their first step."""

import argparse
import dataclasses
import json
import os
import pathlib
import re
import shutil

import jax
import numpy as np
import numpy_bert
import processes
import pytest
from command_lines import refusal
from etils import epath
from model_variants import variant
from pretrained_model import CONFIG, SMALL, TOKENIZER, loaded, stored_model, write_workdir
from task_models import write_model

import bert_jax
from bert_jax import analysis
from bert_jax.analysis.attention_maps import AttentionMaps, attention_page
from bert_jax.analysis.layers import LayerSimilarity
from bert_jax.analysis.results import (
    Analysis,
    call_with,
    columns_table,
    framed,
    panels,
    save_result,
    saved_result,
)
from bert_jax.analysis.texts import drawn, texts_of, windows
from bert_jax.config import DisentangledConfig, ModelConfig
from bert_jax.config.analyses import CkaConfig
from bert_jax.config.pretraining import NoiseConfig
from bert_jax.config.tasks import TaskDataConfig
from bert_jax.corpus.readers import find_sources
from bert_jax.data.spelling_errors import edited_words
from bert_jax.errors import UserError
from bert_jax.randomness import Stream, bits, uniform

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

    monkeypatch.setattr(analysis.layers, "cka", refuse)
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


def test_what_is_refused_leaves_no_directory_but_what_was_there(tmp_path):
    def refuse():
        raise UserError("no")

    refusing = Analysis("none", LayerSimilarity, lambda result: [], {})
    (tmp_path / "old").mkdir()
    for output in ("old", "new", "old/new/below"):
        with pytest.raises(UserError, match="no"):
            refusing.run(CkaConfig(input="x", output=f"{tmp_path}/{output}"), {}, refuse)
    assert [path.name for path in tmp_path.rglob("*")] == ["old"]


def test_axes_show_whole_numbers_and_tables_a_dash_for_none():
    """Without 6.899 in a corner to be added to each of them."""
    figure, axes = panels((3.0, 2.0), "losses")
    axes.plot([0, 1], [6.8991, 6.8993])
    framed(axes)
    figure.draw_without_rendering()
    assert axes.yaxis.get_offset_text().get_text() == ""
    shown = [float(label.get_text()) for label in axes.get_yticklabels()]
    assert min(shown) > 6.89 and len(set(shown)) == len(shown)
    (cells,) = (column.cells for column in columns_table([("gap", ".2f", np.array([np.nan, 1.5]))]).columns)
    assert list(cells) == ["–", "1.50"]


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


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
EVIL = "</script><script>document.title='broken'</script><b>"
CHOICE = """
const view = (id) => document.getElementById(id);
view("layer").value = "1"; view("layer").dispatchEvent(new Event("change"));
view("head").value = "0"; view("head").dispatchEvent(new Event("change"));
document.querySelector('text[data-side="query"][data-place="2"]').dispatchEvent(new Event("mouseenter"));
"""


@pytest.fixture(scope="module")
def maps() -> AttentionMaps:
    """Two layers of two heads over three tokens; in head 1 of layer 2 token 3 gives 25, 0 and 75 %."""
    weights = np.full((2, 2, 3, 3), 1 / 3)
    weights[1, 0] = [[1, 0, 0], [0, 1, 0], [0.25, 0, 0.75]]
    return AttentionMaps("a model", ("[CLS]", EVIL, "cat"), (0, 0, 1), weights)


def test_the_maps_are_those_of_the_states_that_the_model_computes(model):
    found = analysis.attention(model, "the cat sat", "a big dog")
    assert found.tokens == ("[CLS]", "the", "cat", "sat", "[SEP]", "a", "big", "dog", "[SEP]")
    assert found.segments == (0, 0, 0, 0, 0, 1, 1, 1, 1)
    np.testing.assert_allclose(found.weights.sum(axis=-1), 1.0, atol=1e-6)
    encoding = model.encode([("the cat sat", "a big dog")])
    ids, types = encoding.input_ids, encoding.token_type_ids
    batch = {"input_ids": ids, "token_type_ids": types, "attention_mask": encoding.attention_mask}
    batch["masked_positions"] = np.zeros((1, 1), int)
    expected = numpy_bert.forward(model.params, model.config, batch)
    np.testing.assert_allclose(found.weights, np.concatenate(expected["attentions"]), atol=1e-5)
    np.testing.assert_allclose(encoding.last_hidden_state, expected["last_hidden_state"], atol=1e-5)


def test_the_command_leaves_a_page_a_picture_and_the_numbers(tmp_path, analyze, monkeypatch):
    write_workdir(tmp_path / "run", 1)
    words = ["attention", tmp_path / "run", "--text=the cat <b>sat"]
    printed, saved = analyze(*words)
    assert "result.json, index.html, attention.png, attention.svg" in printed
    page = (tmp_path / "out/index.html").read_text()
    (data,) = re.findall(r'<script type="application/json" id="maps">(.*?)</script>', page)
    assert json.loads(data)["tokens"] == saved["tokens"] and "<b>" not in page
    np.testing.assert_allclose(json.loads(data)["weights"], saved["weights"], atol=5.1e-5)
    (tmp_path / "out/index.html").unlink()
    monkeypatch.setattr("bert_jax.analysis.attention_maps.attention", None)  # is not called again
    assert "has this result already" in analyze(*words)[0]
    assert (tmp_path / "out/index.html").exists()


def test_what_cannot_be_shown_is_one_line(model, monkeypatch):
    with pytest.raises(UserError, match="a blank text ' ' has no tokens"):
        analysis.attention(model, " ")
    with pytest.raises(UserError, match="recurrent .* have no attention"):
        analysis.attention(loaded(stored_model(config=variant(SMALL, layer="lstm"))), "the cat")
    sizes = ModelConfig(vocab_size=len(TOKENIZER.tokens), hidden_size=8, max_position_embeddings=32)
    with pytest.raises(UserError, match=r"static word vectors .* have no layers and have no attention to return"):
        analysis.attention(loaded(stored_model(config=variant(sizes, layer="none"))), "the cat")
    monkeypatch.setattr(analysis.attention_maps, "MOST_VALUES", 400)
    with pytest.raises(UserError, match=r"5 tokens with 20 heads make 500 probabilities, .* set max_length=4"):
        analysis.attention(model, "the cat sat")


@pytest.mark.skipif(BROWSER is None, reason="there is no chromium or chrome on the PATH")
def test_a_browser_shows_the_chosen_head_and_the_shares_of_a_token(maps, tmp_path):
    page = attention_page(maps)
    nonce = re.findall(r'<script nonce="(.*?)">', page)[0]
    file = tmp_path / "index.html"
    file.write_text(page.replace("</body>", f'<script nonce="{nonce}">{CHOICE}</script></body>'))
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--dump-dom"]
    done = processes.run(*command, file.as_uri(), check=True, env={**os.environ, "HOME": str(tmp_path)})
    shown = done.stdout
    assert "<title>Attention of a model</title>" in shown  # what a token says did not run
    texts = re.findall(r'<text [^>]*data-side="key"[^>]*data-place="(\d)"[^>]*>(.*?)</text>', shown)
    shares = [re.sub("<[^>]*>", "", text).strip() for _, text in texts]
    assert shares[0] == "[CLS] 25.0 %" and shares[2] == "cat 75.0 %"
    assert shares[1] == "&lt;/script&gt;&lt;script&gt;document.title='broken'&lt;/script&gt;&lt;b&gt; 0.0 %"
    strip = re.findall(r'<span title="([^"]*)" data-place="(\d)"[^>]* style="[^"]*rgba\(31, 95, 168, ([^)]*)\)', shown)
    assert [share for share, *_ in strip] == ["25.0 %", "0.0 %", "75.0 %"]
    assert max(float(shade) for *_, shade in strip) == 0.75
    assert len(re.findall("<line ", shown)) == 2  # of the token that the mouse is on, to those it attends to
    assert re.search(r'<canvas[^>]*data-layer="1" data-head="0"[^>]*class="chosen"', shown)
    assert len(re.findall("<canvas", shown)) == 4
    assert set(re.findall(r"https?://[^\"]*", page)) == {"http://www.w3.org/2000/svg"}  # a name, not an address


TEXTS = [
    "the cat sat on the mat .",
    "a big dog ran in the house , the old birds flew",
    "bird",
    "old cats, old dogs",
] * 6
RATES = (0.0, 0.1, 0.5)


@pytest.fixture(scope="module")
def model_of_noise():
    return loaded(stored_model(SMALL))


def transcribed(model, rate: float) -> dict[str, float]:
    """All measures of `noise`, text by text; every text fits at every rate."""
    counts = dict.fromkeys(("predictions", "loss", "accuracy", "words", "pieces", "split", "unknown", "changed"), 0.0)
    for number, text in enumerate(TEXTS):
        words = text.split()
        keys = bits(bits(0, Stream.EDITED_TEXT, number), Stream.EDITED_WORD, np.arange(len(words)))
        ids, targets = [TOKENIZER.cls_id], {}
        for key, word in zip(keys, words, strict=True):
            clean = TOKENIZER.encode(word)
            if uniform(bits(key, Stream.HIDDEN_WORD)) < 0.15 and TOKENIZER.unk_id not in clean:
                targets |= {len(ids) + place: piece for place, piece in enumerate(clean)}
                ids += [TOKENIZER.mask_id] * len(clean)
                continue
            (spelled,) = edited_words([word], np.array([key]), NoiseConfig(rate=rate))
            pieces = TOKENIZER.encode(spelled)
            ids += pieces
            measured = (1, len(pieces), len(pieces) > 1, TOKENIZER.unk_id in pieces, spelled != word)
            for name, value in zip(("words", "pieces", "split", "unknown", "changed"), measured, strict=True):
                counts[name] += value
        if not targets:
            continue
        row = np.array([[*ids, TOKENIZER.sep_id]], np.int32)
        batch = {"input_ids": row, "token_type_ids": np.zeros_like(row), "attention_mask": np.ones_like(row)}
        logits = model.mlm_logits({**batch, "masked_positions": np.array([list(targets)], np.int32)})[0].astype(
            np.float64
        )
        for scores, target in zip(logits, targets.values(), strict=True):
            counts["loss"] += np.log(np.exp(scores).sum()) - scores[target]
            counts["accuracy"] += scores.argmax() == target
            counts["predictions"] += 1
    return counts


def test_every_measure_is_that_of_a_transcription(model_of_noise):
    result = analysis.noise(model_of_noise, TEXTS, rates=RATES, batch_size=5, max_length=None, progress=False)
    assert result.texts == len(TEXTS)
    for number, rate in enumerate(RATES):
        wanted = transcribed(model_of_noise, rate)
        assert result.predictions == wanted["predictions"] and result.words == wanted["words"]
        assert result.loss[number] == pytest.approx(wanted["loss"] / wanted["predictions"], rel=1e-5)
        assert result.accuracy[number] == pytest.approx(wanted["accuracy"] / wanted["predictions"])
        for name, field in (("pieces", "pieces_per_word"), ("split",) * 2, ("unknown",) * 2, ("changed",) * 2):
            ours = getattr(result, field if name == "pieces" else f"{field}_words")[number]
            assert ours == pytest.approx(wanted[name] / wanted["words"]), name
    assert result.edits[0] == 0 and 0.05 < result.edits[1] < 0.15 < 0.4 < result.edits[2] < 0.6


def test_texts_are_cut_where_they_fit_at_every_rate(model_of_noise):
    long = analysis.noise(model_of_noise, TEXTS, rates=RATES, progress=False)
    short = analysis.noise(model_of_noise, TEXTS, rates=RATES, max_length=8, progress=False)
    assert 0 < short.predictions < long.predictions and short.words < long.words
    alone = analysis.noise(model_of_noise, TEXTS, rates=(0.0,), progress=False)
    assert alone.loss[0] == pytest.approx(long.loss[0], rel=1e-6) and alone.predictions == long.predictions


@pytest.mark.slow
def test_a_task_is_scored_on_clean_and_noisy_texts(tmp_path, analyze):
    write_model(tmp_path / "tuned", "text", dataclasses.replace(SMALL, num_layers=1))
    rows = [f"the {word} sat on the mat\t{label}" for word, label in zip("cat big old dog bird".split(), "abaab")]
    (tmp_path / "dev.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    _, result = analyze("noise", tmp_path / "tuned", f"--input={tmp_path}/dev.tsv", "--rates=0,0.5")
    assert result["metric"] == "text accuracy" and result["examples"] == 5
    predicting = bert_jax.PredictConfig(input=str(tmp_path / "dev.tsv"), split="dev", output=str(tmp_path / "p"))
    assert result["score"][0] == pytest.approx(bert_jax.predict(str(tmp_path / "tuned"), predicting)["accuracy"])
    assert result["pieces"][0] == 8 and result["unknown"][0] == 0 < result["unknown"][1]
    assert {"noise.png", "noise.svg", "result.json"} == {path.name for path in (tmp_path / "out").iterdir()}


@pytest.mark.slow
def test_the_command_leaves_its_files_and_computes_once(tmp_path, analyze):
    write_workdir(tmp_path / "run", 1, config=SMALL)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    words = ["noise", tmp_path / "run", f"--input={tmp_path}/texts.txt", "--texts=0", "--rates=0,0.3"]
    printed, saved = analyze(*words, "--kinds=swap,delete")
    assert f"{tmp_path}/out: result.json, noise.png, noise.svg" in printed
    again = analysis.noise(
        bert_jax.load(tmp_path / "run"), TEXTS, rates=(0, 0.3), kinds=("swap", "delete"), progress=False
    )
    np.testing.assert_allclose(saved["loss"], again.loss, rtol=1e-6)
    assert "has this result already" in analyze(*words, "--kinds=swap,delete")[0]


@pytest.mark.parametrize(
    "word, message",
    [
        ("--rates=0.2,0.1", "rates=0.2,0.1 must be ascending numbers"),
        ("--rates=0,2", "rate=2.0 must be a probability"),
        ("--kinds=typo", "kinds=typo must be some of insert"),
    ],
)
def test_bad_options_are_one_line(tmp_path: pathlib.Path, word, message, capsys):
    assert message in refusal(capsys, "analyze", "noise", "nowhere", "--input=i", f"--output={tmp_path}/o", word)
    assert not (tmp_path / "o").exists()


def test_models_that_cannot_be_measured_are_refused(model_of_noise):
    without = loaded(stored_model(SMALL, parts=("pooler",)))
    with pytest.raises(UserError, match="predicts no masked words"):
        analysis.noise(without, TEXTS)
    with pytest.raises(UserError, match="has no task head to score"):
        analysis.task_noise(model_of_noise, TaskDataConfig(dev="dev.tsv"))
    with pytest.raises(UserError, match="no word of the texts could be hidden"):
        analysis.noise(model_of_noise, ["zebra"], progress=False)


INITIAL_SMALL = ModelConfig(vocab_size=60, hidden_size=64, num_layers=3, num_heads=4, max_position_embeddings=32)
WIDE = dataclasses.replace(INITIAL_SMALL, hidden_size=128, initializer_range=0.05)


@pytest.mark.slow
def test_the_norm_of_attention_follows_the_law_for_any_number_of_heads():
    found = analysis.signal.attention_norm(WIDE, (1, 2, 4, 8, 16), draws=64, length=16)
    assert found.heads == (1, 2, 4, 8, 16) and (found.standard_error < 0.04).all()
    assert (np.abs(found.ratio - 1) < 4 * found.standard_error).all()
    np.testing.assert_allclose(found.measured, found.predicted, rtol=0.06)


def test_the_law_is_that_of_independent_kernels():
    """The expectation over kernels drawn here, in NumPy, with one head of the whole width."""
    random, size, length, scale = np.random.default_rng(0), 48, 12, 0.88
    spread = 0.8796256610342398
    states = random.standard_normal((length, size)) + 0.7 * random.standard_normal(size)
    squares = []
    for _ in range(1500):
        query, key, value, output = spread * scale / size**0.5 * random.standard_normal((4, size, size))
        scores = (states @ query) @ (states @ key).T / size**0.5
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        squares.append(((weights @ states @ value @ output) ** 2).sum(axis=1).mean())
    law = jax.jit(analysis.signal.law)
    expected = float(law(np.asarray(states, np.float32), scale / size**0.5))
    error = np.std(squares) / len(squares) ** 0.5
    assert abs(np.mean(squares) - expected) < 4 * error + 0.1 * expected  # the law is of first order in the scores
    np.testing.assert_allclose(float(law(np.ones((5, 64), np.float32), 0.1)), (0.1 * spread) ** 4 * 64**3, rtol=1e-6)


DEEPER = dataclasses.replace(INITIAL_SMALL, num_layers=4, initializer_range=0.1)


@pytest.fixture(scope="module")
def growth() -> analysis.signal.DepthGrowth:
    return analysis.signal.depth_growth(DEEPER, draws=8, length=16)


@pytest.mark.slow
def test_states_grow_with_pre_norm_as_theory_says_and_not_with_post_norm(growth):
    np.testing.assert_allclose(growth.state[0], 1.0, rtol=1e-3)
    assert (np.diff(growth.state[1]) > 0.1).all()
    np.testing.assert_allclose(growth.state[1], growth.predicted_state, rtol=0.05)


@pytest.mark.slow
def test_the_last_gradient_falls_with_depth_only_with_pre_norm(growth):
    assert growth.depths == (1, 2, 4)
    post, pre = growth.last_gradient
    np.testing.assert_allclose(post, post[0], rtol=0.1)
    assert pre[2] < 0.8 * pre[0]
    np.testing.assert_allclose(post / pre, growth.predicted_ratio, rtol=0.1)
    assert growth.gradient.shape == growth.output_gradient.shape == (2, 4)
    assert (growth.output_gradient < growth.gradient).all()


@pytest.mark.slow
def test_states_grow_less_where_outputs_begin_smaller_as_theory_says_too(growth):
    scaled = analysis.signal.depth_growth(dataclasses.replace(DEEPER, scaled_outputs=True), draws=8, length=16)
    assert scaled.state[1, -1] - 1 < (growth.state[1, -1] - 1) / 4
    np.testing.assert_allclose(scaled.state[1], scaled.predicted_state, rtol=0.02)
    np.testing.assert_allclose(scaled.last_gradient[0] / scaled.last_gradient[1], scaled.predicted_ratio, rtol=0.02)


def test_positions_of_both_starts_are_as_similar_as_their_closed_forms_say():
    config = dataclasses.replace(INITIAL_SMALL, max_position_embeddings=300)
    learned = np.random.default_rng(0).standard_normal((300, 64))
    found = analysis.signal.position_similarity(config, learned)
    assert found.tables == ("random", "sinusoidal", "learned") and len(found.rows) == len(found.maps[0]) == 100
    np.testing.assert_allclose(found.by_distance[1], found.predicted, atol=1e-5)
    np.testing.assert_allclose([matrix.diagonal() for matrix in found.maps], 1.0, atol=1e-12)
    apart = found.maps[0][~np.eye(100, dtype=bool)]
    assert abs(apart.mean()) < 0.01 and apart.std() == pytest.approx(64**-0.5, rel=0.1)
    # Both starts have the same size (a table of the 0.02 of initializer_range, cut at two standard deviations).
    np.testing.assert_allclose(found.root_mean_square[:2], 0.02 * 0.8796, rtol=0.02)
    rows = learned[list(found.rows)]
    expected = rows[3] @ rows[7] / np.linalg.norm(rows[3]) / np.linalg.norm(rows[7])
    assert found.maps[2][3, 7] == pytest.approx(expected)


@pytest.mark.slow
def test_the_compiler_counts_the_operations_of_the_closed_form():
    wide = dataclasses.replace(INITIAL_SMALL, hidden_size=128, num_layers=2)
    found = analysis.signal.step_costs(wide, (8, 32), sequences=2)
    assert found.lengths == (8, 32) and found.sequences == 2
    # XLA counts everything, the closed form products alone.
    assert ((found.flops / found.closed_flops > 1) & (found.flops / found.closed_flops < 1.06)).all()
    # In short sequences what is not kept, such as gradients of the tables, weighs more than what is.
    assert 0.7 < found.bytes[1] / found.closed_bytes[1] < 1.2 and found.bytes[0] < found.bytes[1]
    # Of the operations of 32 tokens, four times those of 8, and again four times what is quadratic.
    quadratic = found.attention_flops
    assert quadratic[1] == 16 * quadratic[0] == 3 * 2 * 2 * 2 * 128 * 32**2


@pytest.mark.slow
def test_init_leaves_its_result_and_pictures_and_is_not_computed_again(tmp_path, monkeypatch, analyze):
    write_workdir(tmp_path / "run", 1, config=dataclasses.replace(CONFIG, num_layers=1))
    words = ["init", tmp_path / "run", "--draws=2", "--lengths=8", "--length=8", "--heads=1,4,5", "--widths="]
    printed, result = analyze(*words)
    names = ["init.png", "init.svg", "positions.png", "positions.svg", "result.json"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
    assert result["norm"]["heads"] == [1, 4]  # 5 does not divide 16
    assert result["positions"]["tables"] == ["random", "sinusoidal", "learned"]
    assert "norm of attention" in printed
    monkeypatch.setattr(analysis.signal, "init", None)
    (tmp_path / "out" / "init.svg").unlink()
    assert "has this result already" in analyze(*words)[0] and (tmp_path / "out" / "init.svg").exists()


@pytest.mark.slow
def test_a_configuration_without_positions_has_no_map_of_them(tmp_path):
    config = variant(dataclasses.replace(INITIAL_SMALL, num_layers=1), positions="rope")
    result = analysis.init(config, heads=(2,), lengths=(8,), draws=2, length=8, widths=(), name="rope", progress=False)
    assert result.positions is None and len(analysis.draw_initialisation(result).axes) == 6
    file = epath.Path(tmp_path) / "result.json"
    save_result(file, {}, result)
    again = saved_result(file, {}, analysis.signal.Initialisation)
    assert again is not None and again.positions is None and again.norm.heads == (2,)
    np.testing.assert_array_equal(again.growth.state, result.growth.state)
    assert (
        len(analysis.draw_positions(analysis.signal.position_similarity(INITIAL_SMALL)).axes) == 4
    )  # two maps, a bar of colours, the curves


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"layer": "lstm"}, {}, r"no attention \(model.layer=lstm\)"),
        ({"disentangled": DisentangledConfig(terms="c2p"), "positions": "none"}, {}, "depend on relative positions"),
        ({"positions": "xlnet"}, {}, "depend on relative positions"),
        ({}, {"heads": (3, 5)}, "heads=3,5: none divides the hidden size of 64"),
        ({}, {"heads": (0, 2)}, "heads=0,2 must be numbers from 1 on"),
        ({}, {"lengths": (64,)}, "lengths=64: the model reads 32 tokens"),
        ({}, {"length": 64}, "length=64 must be from 8 to the 32 tokens"),
        ({}, {"draws": 1}, "draws=1 must be at least 2"),
    ],
    ids=["lstm", "deberta", "xlnet", "heads", "no_heads", "lengths", "length", "draws"],
)
def test_bad_input_is_one_clear_error(changes, options, message):
    with pytest.raises(UserError, match=message):
        analysis.init(variant(INITIAL_SMALL, **changes), **{"length": 8, "name": "this", **options})


def test_a_shipped_configuration_is_known_by_its_name():
    config = analysis.signal._model("bert_mini")
    assert isinstance(config, ModelConfig) and config.hidden_size == 256


def test_bad_options_are_one_line_of_initial(tmp_path, capsys):
    words = ["analyze", "init", "bert_huge", f"--output={tmp_path}/out"]
    assert "draws=1 must be at least 2" in refusal(capsys, *words, "--draws=1")
    assert "bert_huge" in refusal(capsys, *words)
