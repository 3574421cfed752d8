"""Attention in one text: the probabilities, the files of the command, and the page in a browser."""

import json
import os
import re
import shutil
import subprocess

import numpy as np
import numpy_bert
import pytest
from loaded_model import SMALL, loaded
from model_variants import variant
from pretrained_model import stored_model, write_workdir
from processes import SECONDS

from bert_jax.analysis import attention, attention_maps
from bert_jax.analysis.attention_maps import AttentionMaps, attention_page
from bert_jax.errors import UserError

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
    found = attention(model, "the cat sat", "a big dog")
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
        attention(model, " ")
    with pytest.raises(UserError, match="recurrent .* have no attention"):
        attention(loaded(stored_model(config=variant(SMALL, layer="lstm"))), "the cat")
    monkeypatch.setattr(attention_maps, "MOST_VALUES", 400)
    with pytest.raises(UserError, match=r"5 tokens with 20 heads make 500 probabilities, .* set max_length=4"):
        attention(model, "the cat sat")


@pytest.mark.skipif(BROWSER is None, reason="there is no chromium or chrome on the PATH")
def test_a_browser_shows_the_chosen_head_and_the_shares_of_a_token(maps, tmp_path):
    page = attention_page(maps)
    nonce = re.findall(r'<script nonce="(.*?)">', page)[0]
    file = tmp_path / "index.html"
    file.write_text(page.replace("</body>", f'<script nonce="{nonce}">{CHOICE}</script></body>'))
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--dump-dom"]
    done = subprocess.run(
        [*command, file.as_uri()],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
        env={**os.environ, "HOME": str(tmp_path)},
    )
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
