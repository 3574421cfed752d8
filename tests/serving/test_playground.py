"""What the playground asks: its answers next to those of the library, hostile texts, and what a model lacks."""

import dataclasses
import json
import re

import numpy as np
import pytest
from pretrained_model import SMALL, TOKENIZER, WORDS, loaded, stored_model
from stand_in_engines import DirectEngine
from starlette.testclient import TestClient

from bert_jax.analysis.words import word_senses
from bert_jax.config import Config, MaskingConfig, PhaseConfig, PrepareConfig, RecurrentConfig
from bert_jax.config.serving import ServeConfig
from bert_jax.data.preparation.prepare import run_prepare
from bert_jax.data.store import open_store
from bert_jax.errors import UserError
from bert_jax.tools.serving.app import make_app
from bert_jax.tools.serving.demonstrations import DEMONSTRATIONS, MOST_CHARACTERS, STRIP, described
from bert_jax.tools.serving.playground import FILES, HERE, PAGE, study_figures
from bert_jax.training_data import Examples

TEXT = "the cat sat on the big mat."
HOSTILE = '<b onclick="a()">'


@pytest.fixture(scope="module")
def model():
    return loaded(stored_model(SMALL))


@pytest.fixture(scope="module")
def client(model):
    app = make_app(DirectEngine({"small": model}), ServeConfig(access_log=False))
    return TestClient(app, base_url="http://localhost:8080")


@pytest.fixture(scope="module")
def ask(client):
    def answer(name, **values):
        found = client.post(f"/playground/ask/{name}?model=small", json=values)
        assert found.status_code == 200, found.text
        return found.json()

    return answer


def guesses(answer):
    return [(each["token"], each["probability"]) for each in answer["candidates"]]


def test_masks_are_those_of_fill_mask(model, ask):
    filled = model.fill_mask("the [MASK] sat on the [MASK] mat.", top_k=len(WORDS))
    first, second = ask("masks", text=TEXT, places=[5, 1], top_k=len(WORDS))["masks"]
    assert [first["place"], first["original"], second["original"]] == [1, "cat", "big"]
    for answer, expected in zip((first, second), filled):
        assert [token for token, _ in guesses(answer)] == [each.token for each in expected]
        shares = np.array([share for _, share in guesses(answer)])
        np.testing.assert_allclose(shares, [each.probability for each in expected], rtol=1e-5)
        assert answer["candidates"][answer["rank"] - 1]["token"] == answer["original"]
        assert answer["entropy"] == pytest.approx(-(shares * np.log(shares)).sum(), rel=1e-4)


def test_the_left_side_is_what_a_mask_of_attention_leaves(model, ask):
    """Two roads to it: the text cut after the mask, and the whole text whose right part nobody attends to."""
    found = ask("sides", text=TEXT, place=2, top_k=len(WORDS))
    ids = np.array([[TOKENIZER.cls_id, *TOKENIZER.encode(TEXT), TOKENIZER.sep_id]], np.int32)
    ids[0, 3] = TOKENIZER.mask_id
    seen = (np.arange(ids.shape[1]) <= 3)[None].astype(np.int32)
    batch = {"input_ids": ids, "token_type_ids": np.zeros_like(ids), "masked_positions": np.array([[3]], np.int32)}
    for side, mask in (("left", seen), ("both", np.ones_like(ids))):
        logits = model.mlm_logits({**batch, "attention_mask": mask})[0, 0].astype(float)
        shares = dict(guesses(found[side]))
        expected = np.exp(logits) / np.exp(logits).sum()
        np.testing.assert_allclose([shares[word] for word in WORDS], expected, rtol=2e-5)
    assert found["left"]["read"] == found["both"]["read"][:4] == ["[CLS]", "the", "cat", "[MASK]"]
    assert found["both"]["read"][4:] == ["on", "the", "big", "mat", ".", "[SEP]"] and found["place"] == 3


def test_pieces_and_pairs(model, ask):
    found = ask("pieces", text="Cats, zebra [MASK]")
    assert found["tokens"] == ["cat", "##s", ",", "[UNK]", "[MASK]"]
    assert found["ids"] == [WORDS.index(token) for token in found["tokens"]]
    assert found["continues"] == [False, True, False, False, False]
    assert found["unknown"] == [token == "[UNK]" for token in found["tokens"]]
    sentences = ["The cat sat.", "A dog ran.", "Birds flew on.", "The old house."]
    seen = set()
    for seed in range(3):
        answer = ask("next", text=" ".join(sentences), seed=seed)
        assert answer == ask("next", text=" ".join(sentences), seed=seed)
        for number, pair in enumerate(answer["pairs"]):
            follows = sentences.index(pair["second"]) == number + 1
            assert pair["first"] == sentences[number] != pair["second"] and pair["is_next"] == follows
            seen.add(follows)
            assert pair["probability"] == pytest.approx(model.next_sentence(pair["first"], pair["second"]), rel=1e-5)
        assert answer["right"] == sum((each["probability"] > 0.5) == each["is_next"] for each in answer["pairs"])
    assert seen == {True, False}


def test_the_way_through_the_layers_begins_with_the_tables(model, ask):
    found = ask("journey", text=TEXT)
    expected = model.encode(TEXT, layers="all")
    word, position, segment, total, *states = found["stages"]
    assert found["tokens"] == expected.tokens[0]
    assert [each["name"] for each in states] == ["input of layer 1", "after layer 1", "after layer 2"]
    values = [np.array(each["values"]) for each in (word, position, segment, total)]
    np.testing.assert_allclose(sum(values[:3]), values[3], atol=5e-5)
    norm = {name: np.asarray(array) for name, array in model.params["embeddings"]["norm"].items()}
    centred = values[3] - values[3].mean(-1, keepdims=True)  # all 16 values are drawn
    normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12) * norm["scale"] + norm["bias"]
    np.testing.assert_allclose(normed, states[0]["values"], atol=2e-4)
    for stage, layer in zip(states, expected.hidden_states, strict=True):
        np.testing.assert_allclose(stage["values"], layer[0][:, :STRIP], atol=1e-5)
        np.testing.assert_allclose(stage["norms"], np.linalg.norm(layer[0], axis=1), atol=1e-4)
        start = expected.hidden_states[0][0]
        cosine = (layer[0] * start).sum(1) / np.linalg.norm(layer[0], axis=1) / np.linalg.norm(start, axis=1)
        np.testing.assert_allclose(stage["to_start"], cosine, atol=2e-5)


def test_attention_senses_and_neighbours(model, ask):
    maps = model.encode([(TEXT, "a dog ran")], attentions=True)
    for layer in range(2):
        found = ask("attention", text=TEXT, second="a dog ran", layer=layer)
        np.testing.assert_allclose(found["weights"], maps.attentions[layer][0], atol=1e-5)
        weights = maps.attentions[layer][0].astype(float)
        np.testing.assert_allclose(found["entropies"], -(weights * np.log(weights)).sum(-1), atol=2e-5)
        np.testing.assert_allclose(found["heads"][layer], np.mean(found["entropies"], -1), atol=2e-5)
    assert found["segments"] == maps.token_type_ids[0].tolist() and found["tokens"] == maps.tokens[0]

    lines = ["the cat sat", "a dog ran", "on the mat a cat flew"]
    found, expected = ask("senses", word="cat", text="\n".join(lines)), word_senses(model, "cat", [lines[0], lines[2]])
    assert found["texts"] == list(expected.texts) and found["left_out"] == 1 and found["static"] == 1
    np.testing.assert_allclose(found["cosines"], expected.cosines, atol=1e-5)
    np.testing.assert_allclose(found["means"], expected.cosines[:, 0, 1], atol=1e-5)
    apart = [np.linalg.norm(np.subtract(*points)) for points in found["maps"]]
    np.testing.assert_allclose(apart, np.sqrt(2 - 2 * expected.cosines[:, 0, 1]), atol=1e-4)

    vectors = model.embed(["a big cat", *lines], normalize=True)
    hits = ask("neighbours", query="a big cat", text="\n\n".join(lines))["hits"]
    scores = vectors[1:] @ vectors[0]
    assert [hit["text"] for hit in hits] == [lines[number] for number in np.argsort(-scores)]
    np.testing.assert_allclose([hit["score"] for hit in hits], np.sort(scores)[::-1], rtol=1e-5)


DOCUMENTS = "The cat sat on the mat. A dog ran. Birds flew in.\n\nThe old house. A tree. The big old dog sat.\n"


def test_training_examples_are_those_of_a_store_on_the_disk(ask, tmp_path, capsys):
    """The same documents as `bert-jax prepare` stores them, and examples as a run with this seed reads them."""
    (tmp_path / "corpus.txt").write_text(DOCUMENTS)
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    place = str(tmp_path / "store")
    run_prepare(
        PrepareConfig(input=str(tmp_path / "corpus.txt"), vocab=str(tmp_path / "vocab.txt"), output=place, workers=1)
    )
    store = open_store(place)
    for seed, again, unit in ((0, 0, "token"), (3, 0, "whole_word"), (3, 1, "whole_word")):
        found = ask("preparation", text=DOCUMENTS, seed=seed, again=again, unit=unit, length=16)
        config = Config(masking=MaskingConfig(unit=unit), phases=(PhaseConfig(sequence_length=16),))
        examples = Examples(store, config, split="all", seed=seed)
        assert found["count"] == examples.num_examples(0)
        count = len(found["examples"])
        batch = examples.examples_at(np.zeros(count, np.int64), np.arange(count), again)
        for row, example in enumerate(found["examples"]):
            length = int(batch["attention_mask"][row].sum())
            tokens, originals = example["tokens"], batch["masked_ids"][row][batch["masked_weights"][row] > 0]
            assert [each["token"] for each in tokens] == [WORDS[number] for number in batch["input_ids"][row, :length]]
            assert [each["segment"] for each in tokens] == batch["token_type_ids"][row, :length].tolist()
            predicted = [each for each in tokens if "became" in each]
            assert [each["original"] for each in predicted] == [WORDS[number] for number in originals]
            for each in predicted:
                assert (each["became"] == "kept") == (each["token"] == each["original"])
                assert each["became"] != "mask" or each["token"] == "[MASK]"
            assert example["is_next"] == (batch["next_sentence_labels"][row] == 0)
    sentences = [[sentence["text"] for sentence in document] for document in found["documents"]]
    assert [len(document) for document in sentences] == [3, 3] and sentences[1][1] == "A tree."


def test_hostile_questions_are_answered_with_a_sentence(client):
    values = {
        "pieces": {},
        "masks": {"places": [0]},
        "sides": {"place": 0},
        "next": {},
        "journey": {},
        "attention": {},
        "senses": {"word": "cat"},
        "neighbours": {"query": "a cat"},
        "preparation": {"length": 16},
    }
    assert values.keys() == DEMONSTRATIONS.keys()
    texts = {"blank": " \n ", "long": "cat " * MOST_CHARACTERS, "lines": "\n".join(["a cat"] * 1000)}
    for name, others in values.items():
        for kind, text in {**texts, "markup": HOSTILE, "signs": "\0\u202e\ufeff" * 9, "none": None}.items():
            found = client.post(f"/playground/ask/{name}?model=small", json={"text": text, **others})
            fine = found.status_code == 200 and kind not in ("blank", "long", "none")
            assert fine or found.status_code in (413, 422) and 10 < len(found.json()["error"]) < 500, (name, kind)
        body = json.dumps({"text": "a cat", **others, "model": 3})
        assert client.post(f"/playground/ask/{name}?model=small", content=body).status_code == 415
    assert client.post("/playground/ask/pieces?model=small", json={"text": "a", "more": 1}).status_code == 422
    assert client.post("/playground/ask/pieces?model=other", json={"text": "a"}).status_code == 404
    for places in ([], [-1], [99], [0, 0], [0.5], "0"):
        found = client.post("/playground/ask/masks?model=small", json={"text": TEXT, "places": places})
        assert found.status_code == 422 and "place" in found.json()["error"]
    sent = client.post(
        "/playground/ask/pieces?model=small",
        content=b'{"text": "\\ud800"}',
        headers={"content-type": "application/json"},
    )
    assert sent.status_code == 400
    for name, wrong in (
        ("masks", {"top_k": 10**9}),
        ("attention", {"layer": 2}),
        ("preparation", {"length": 4096}),
        ("preparation", {"seed": -1}),
    ):
        asked = {"text": TEXT, **values[name], **wrong}
        assert client.post(f"/playground/ask/{name}?model=small", json=asked).status_code == 422
    assert client.post("/playground/search", json={"query": "a cat"}).status_code == 422  # no index is served


def test_the_page_runs_its_own_script_alone(client):
    page = client.get("/")
    policy = dict(each.split(" ", 1) for each in page.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'" and policy["script-src"] == policy["style-src"] == "'self'"
    assert page.text == client.get("/playground").text
    for name, kind in FILES.items():
        found = client.get(f"/playground/{name}")
        assert found.status_code == 200 and found.headers["content-type"].startswith(kind)
    script = (HERE / "playground.js").read_text()
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function|https?://(?!www\.w3\.org/2000/svg)",
        script,
    )
    html = (HERE / PAGE).read_text()
    assert not re.search(
        r"https?://|\son\w+=|\sstyle=|<style|<script(?! src=\"playground/playground\.js\" defer></script>)", html
    )
    assert set(re.findall(r'<section id="(\w+)"', html)) == {*DEMONSTRATIONS, "ablations"}


def test_what_a_model_lacks_is_said():
    whole = described(loaded(stored_model(SMALL)))
    assert whole["lacking"] == dict.fromkeys(DEMONSTRATIONS, "") and (whole["layers"], whole["heads"]) == (2, 4)
    bare = described(loaded(stored_model(SMALL, parts=(), tokenizer=TOKENIZER)))["lacking"]
    assert "no head for masked words" in bare["masks"] == bare["sides"] and "no pooler" in bare["next"]
    assert not bare["attention"] and not bare["preparation"]
    recurrent = RecurrentConfig(vocab_size=len(WORDS), hidden_size=16, num_layers=1)
    lstm = described(loaded(stored_model(recurrent, parts=("mlm",))))["lacking"]
    assert "one side of it at a time" in lstm["masks"] and "recurrent" in lstm["attention"] and not lstm["journey"]
    mute = described(loaded(stored_model(SMALL, tokenizer=None)))
    assert mute["vocabulary"] is None and all("vocabulary" in reason for reason in mute["lacking"].values())


def figure(*values):
    return {
        "values": values,
        "mean": sum(values) / len(values),
        "deviation": None,
        "difference": None,
        "interval": None,
    }


def test_the_figures_of_a_study(tmp_path):
    results = {
        "title": HOSTILE,
        "question": "which?",
        "arms": [{"name": name, "title": name.upper(), "options": {}, "task_options": {}} for name in "ab"],
        "measures": [
            {"heading": "accuracy", "arms": {"a": figure(0.5, 0.7), "b": {**figure(0.75), "interval": [0.1, 0.2]}}}
        ],
    }
    (tmp_path / "results.json").write_text(json.dumps(results))
    found = study_figures(tmp_path)
    assert found["title"] == HOSTILE and found["arms"][1] == {"name": "b", "title": "B"}
    arms = found["measures"][0]["arms"]
    assert arms["a"]["mean"] == pytest.approx(0.6) and arms["a"]["apart"] is None and arms["b"]["apart"] is True
    for wrong in ([], {"arms": 3}, {**results, "measures": [{"heading": "x", "arms": {"a": {"mean": "1"}}}]}):
        (tmp_path / "results.json").write_text(json.dumps(wrong))
        with pytest.raises(UserError, match="results.json"):
            study_figures(tmp_path)
    with pytest.raises(UserError, match="results.json"):
        study_figures(tmp_path / "nothing")
    with pytest.raises(UserError, match="playground"):
        dataclasses.replace(ServeConfig(playground=False), study="x").check()
