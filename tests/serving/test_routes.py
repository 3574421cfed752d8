"""The routes of a server: what each answers to bodies that are right."""

import base64
import json

import numpy as np
import pytest
from stand_in_engines import QuickEngine, models, vector
from starlette.testclient import TestClient

from bert_jax.config.serving import ServeConfig
from bert_jax.tools.serving import engine as of_engine
from bert_jax.tools.serving.app import make_app

CONFIG = ServeConfig(max_inputs=8, max_characters=100, playground=False, access_log=False)


@pytest.fixture
def engine():
    return QuickEngine(models())


@pytest.fixture
def client(engine):
    return TestClient(make_app(engine, CONFIG), base_url="http://localhost:8080")


@pytest.mark.parametrize(
    "path, body, expected",
    [
        ("/fill-mask", {"inputs": "a [MASK]", "top_k": 1}, [[{"token": "cat", "probability": 0.5}]]),
        ("/fill-mask", {"inputs": ["a [MASK]"], "top_k": 1}, [[[{"token": "cat", "probability": 0.5}]]]),
        ("/classify", {"inputs": "a cat"}, {"name": "good", "probabilities": {"bad": 0.25, "good": 0.75}}),
        (
            "/classify",
            {"inputs": [["a", "b"]], "model": "topics"},
            [{"names": ["news"], "probabilities": {"news": 0.9, "sport": 0.1}}],
        ),
        ("/tag", {"inputs": [["a", "cat"]]}, [[{"word": "a", "tag": "O"}, {"word": "cat", "tag": "O"}]]),
        (
            "/answer",
            {"inputs": {"question": "who?", "context": "cats sat"}},
            {"text": "cat", "candidates": [["cat", 1.0]]},
        ),
        (
            "/answer",
            {"inputs": [{"question": "who?", "candidates": ["a", "b"]}], "model": "best"},
            [{"index": 1, "probabilities": [0.25, 0.75]}],
        ),
        ("/rank", {"query": "q", "documents": ["a", "bcd", "ef"], "top": 2}, [(1, 3.0), (2, 2.0)]),
        ("/score", {"inputs": [["a", "b"]]}, {"kind": "next_sentence", "scores": [1.0]}),
        ("/score", {"inputs": [["a", "bc"]], "kind": "similarity"}, {"kind": "similarity", "scores": [0.5]}),
        ("/score", {"inputs": "good", "model": "stars"}, {"kind": "regression", "scores": [0.5]}),
        ("/rerank", {"query": "q", "texts": ["a", "bc"], "return_text": True}, [(1, 2.0, "bc"), (0, 1.0, "a")]),
        ("/rerank", {"query": "q", "texts": ["a"], "model": "stars", "raw_scores": True}, [(0, 1.0)]),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b", "cd"]}}, [1.0, 0.5]),
        ("/predict", {"inputs": "a cat"}, [{"score": 0.75, "label": "good"}, {"score": 0.25, "label": "bad"}]),
        ("/predict", {"inputs": [["a", "b"]], "model": "stars"}, [[{"score": 0.6225, "label": "LABEL_0"}]]),
        ("/decode", {"ids": [2, 5, 7, 3]}, ["the cat"]),
    ],
)
def test_what_each_route_answers(client, path, body, expected):
    found = client.post(path, json=body).json()
    if path in ("/rank", "/rerank"):
        expected = [dict(zip(("index", "score", "text"), row, strict=False)) for row in expected]
    if body.get("raw_scores") or "0.62" in str(expected):
        found = json.loads(json.dumps(found), parse_float=lambda digits: round(float(digits), 4))
    assert found == expected


def test_predict_takes_a_list_of_strings_as_one_text_or_pair(client, engine):
    """As text-embeddings-inference, where /classify takes it for several texts."""
    for inputs, asked in (["a"], ["a"]), (["a", "b"], [("a", "b")]), ([["a"], ["b", "c"]], ["a", ("b", "c")]):
        client.post("/predict", json={"inputs": inputs})
        assert engine.asked[-1][1].question.inputs == asked
    assert len(client.post("/classify", json={"inputs": ["a", "b"]}).json()) == 2


def test_raw_scores_of_classes_give_the_probabilities_by_softmax(client):
    raw = client.post("/predict", json={"inputs": "a", "raw_scores": True}).json()
    shares = np.exp([each["score"] for each in raw])
    assert shares / shares.sum() == pytest.approx([0.75, 0.25])


def test_embed_answers_with_vectors_to_the_bit(client, engine):
    found = client.post("/embed", json={"inputs": "the cat"}).json()
    assert np.array_equal(np.array(found, np.float32), [vector("the cat")])
    question = engine.asked[-1][1].question
    assert (question.normalize, question.prompt, question.dimensions) == (True, None, None)
    client.post("/embed", json={"inputs": "a", "normalize": None, "prompt_name": "query", "dimensions": 4})
    question = engine.asked[-1][1].question
    assert (question.normalize, question.prompt, question.dimensions) == (None, "query", 4)


def test_openai_embeddings(client):
    def ask(**body):
        found = client.post("/v1/embeddings", json={"model": "words", **body}).json()
        assert (found["object"], found["model"]) == ("list", "words")
        assert [(each["object"], each["index"]) for each in found["data"]] == [
            ("embedding", number) for number in range(len(found["data"]))
        ]
        return [each["embedding"] for each in found["data"]], found["usage"]

    both, usage = ask(input=["the cat", "a dog ran"], encoding_format="float", user="me")
    assert np.array_equal(np.array(both, np.float32), [vector("the cat"), vector("a dog ran")])
    assert usage == {"prompt_tokens": 4 + 5, "total_tokens": 9}
    coded, _ = ask(input="the cat", encoding_format="base64")
    assert np.array_equal(np.frombuffer(base64.b64decode(coded[0]), "<f4"), vector("the cat"))
    for ids in [5, 7], [[5, 7]], [2, 5, 7, 3]:  # with [CLS] and [SEP] too, which are put there anyway
        assert np.array_equal(np.array(ask(input=ids)[0], np.float32), [vector("the cat")])
    cut = np.array(ask(input="the cat", dimensions=3)[0])
    assert cut.shape == (1, 3) and np.linalg.norm(cut) == pytest.approx(1)


def test_tokenize_gives_the_places_of_pieces(client):
    (found,) = client.post("/tokenize", json={"inputs": "The cats"}).json()
    assert [(each["text"], each["special"], each.get("start"), each.get("stop")) for each in found] == [
        ("[CLS]", True, None, None),
        ("The", False, 0, 3),
        ("cat", False, 4, 7),
        ("s", False, 7, 8),
        ("[SEP]", True, None, None),
    ]
    (plain,) = client.post("/tokenize", json={"inputs": "The cats", "add_special_tokens": False}).json()
    assert plain == found[1:-1]


def test_what_is_too_long_is_cut_or_refused(client, engine):
    long = {"inputs": "cat " * 20}
    assert client.post("/embed", json=long).status_code == 200
    refused = client.post("/embed", json={**long, "truncate": False})
    assert refused.status_code == 413 and "22 tokens" in refused.json()["error"]


def test_the_model_is_the_first_that_can_or_the_one_that_is_named(client, engine):
    client.post("/classify", json={"inputs": "a"})
    client.post("/classify", json={"inputs": "a", "model": "topics"})
    assert [name for name, _ in engine.asked] == ["mood", "topics"]
    cannot = client.post("/classify", json={"inputs": "a", "model": "words"})
    assert cannot.status_code == 400 and "words answers /fill-mask, /embed" in cannot.json()["error"]
    unknown = client.post("/classify", json={"inputs": "a", "model": "else"})
    assert unknown.status_code == 404 and "no model is called else" in unknown.json()["error"]
    none = TestClient(make_app(QuickEngine({"names": models()["names"]}), CONFIG), base_url="http://localhost")
    answer = none.post("/embed", json={"inputs": "a"})
    assert answer.status_code == 404 and "names answers /tag" in answer.json()["error"]


@pytest.mark.parametrize(
    "failure, status, kind",
    [
        (of_engine.Overloaded(2.5), 429, "Overloaded"),
        (of_engine.Draining(), 503, "Unhealthy"),
        (of_engine.Late(), 504, "Backend"),
        (of_engine.Failed(), 500, "Backend"),
        (of_engine.TooLarge("too many"), 413, "Validation"),
        (of_engine.UserError("cannot read it"), 422, "Validation"),
    ],
)
def test_what_the_engine_says_has_its_status(client, engine, failure, status, kind):
    engine.fails = failure
    found = client.post("/embed", json={"inputs": "a"})
    assert (found.status_code, found.json()["error_type"]) == (status, kind)
    assert ("retry-after" in found.headers) == (status == 429)
    theirs = client.post("/v1/embeddings", json={"input": "a"})
    assert theirs.status_code == (400 if status == 422 else status) and set(theirs.json()["error"]) == {
        *("message", "type", "param", "code")
    }


def test_an_answer_with_nan_is_an_error(client, engine, monkeypatch):
    monkeypatch.setattr("stand_in_engines.vector", lambda text: np.array([np.nan] * 8, np.float32))
    assert client.post("/embed", json={"inputs": "a"}).status_code == 500


def test_a_word_that_is_none_of_those_and_another_method_are_said(client):
    wrong = client.post("/embed", json={"inputs": "a", "prompt_name": "title"}).json()["error"]
    assert wrong == 'prompt_name is another string; expected "query" | "document" | null'
    assert client.get("/embed").json()["error"] == "/embed is asked by POST, not by GET"


def test_health_readiness_and_counts(client, engine):
    engine.ready = False
    assert [client.get(path).status_code for path in ("/health", "/ready")] == [200, 503]
    early = client.post("/embed", json={"inputs": "a"})
    assert early.status_code == 503 and early.headers["retry-after"] == "1"
    assert "3 of 40 shapes of batches are compiled" in early.json()["error"] + client.get("/ready").json()["error"]
    engine.ready = True
    assert client.get("/ready").json() == {"status": "ready", "compiled": 3, "of": 40}
    engine.ready, engine.draining = False, True
    assert [client.get(path).status_code for path in ("/health", "/ready")] == [200, 503]
    assert "about to end" in client.post("/embed", json={"inputs": "a"}).json()["error"]
    engine.ready, engine.draining = True, False
    client.post("/embed", json={"inputs": ["a", "b"]})
    client.get("/no/such/place")
    counts = client.get("/metrics").text
    for line in (
        'bert_jax_requests_total{route="/embed",status="200"} 1.0',
        'bert_jax_requests_total{route="other",status="404"} 1.0',
        "bert_jax_texts_total 2.0",
        "bert_jax_padding_share 0.25",
        "bert_jax_body_bytes 0.0",
    ):
        assert line in counts
    assert "no/such" not in counts


def test_what_is_served(client):
    first = client.get("/models").json()[0]
    assert first["name"] == "words" and "/fill-mask" in first["answers"] and first["vectors"] == "single"
    assert [each["id"] for each in client.get("/v1/models").json()["data"]] == list(models())
    info = client.get("/info").json()
    assert info["model_id"] == "words" and info["model_type"] == {"embedding": {"pooling": "mean"}}


def test_the_description_is_made_of_what_checks(client):
    document = client.get("/openapi.json").json()
    body = document["components"]["schemas"]["FillMaskBody"]
    assert body["required"] == ["inputs"] and body["additionalProperties"] is False
    assert body["properties"]["top_k"] == {
        "type": "integer",
        "description": "Number of candidates for each mask.",
        "minimum": 1,
        "maximum": 1000,
        "default": 5,
    }
    posted = {path for path, methods in document["paths"].items() if "post" in methods}
    assert posted == {route.path for route in client.app.state.service.routes}
    page = client.get("/docs")
    assert "POST /fill-mask" in page.text and "<script" not in page.text and "http" not in page.text
    assert client.get("/").text == page.text
