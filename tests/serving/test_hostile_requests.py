"""Requests that are malformed or hostile: each is answered with one error in JSON, and the server goes on."""

import asyncio
import dataclasses
import json
import threading
import typing

import numpy as np
import pytest
from stand_in_engines import QuickEngine, models
from starlette.testclient import TestClient

from bert_jax.config.serving import ServeConfig
from bert_jax.tools.serving import bodies
from bert_jax.tools.serving.app import make_app
from bert_jax.tools.serving.bodies import Limits, Refusal, read_body
from bert_jax.tools.serving.native import ROUTES, EmbedBody

CONFIG = ServeConfig(
    max_inputs=4, max_characters=50, max_body=3000, max_bodies=6000, max_answer=2000, playground=False, access_log=False
)
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def client():
    return TestClient(make_app(QuickEngine(models()), CONFIG), base_url="http://localhost:8080")


def assert_refused(client, answer, status, path="/embed"):
    """One sentence in the form that the route has, and headers that keep browsers from making more of it."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    error = json.loads(answer.text)["error"]
    message = error["message"] if path.startswith("/v1/") else error
    assert isinstance(message, str) and 10 < len(message) < 600 and "\n" not in message
    assert client.app.state.service.metrics.body_bytes == 0


NO_JSON = [
    *(b"", b" ", b"\0", b"{", b"}", b"[", b"]", b"nul", b"null", b"true", b"0", b'"text"', b"[]", b"[1]", b"{}{}"),
    *(b"{'inputs': 'a'}", b'{"inputs": "a",}', b'{"inputs" "a"}', b'{"inputs": a}', b'{inputs: "a"}', b'{"inputs":}'),
    *(b'{"inputs": "a"} x', b'\xef\xbb\xbf{"inputs": "a"}', b'{"inputs": "\xff"}', b'{"inputs": "\xc3\x28"}'),
    *(b'{"inputs": "\xed\xa0\x80"}', b'{"inputs": "\\ud800"}', b'{"inputs": "\\udc00\\ud800"}', b'{"\\ud800": 1}'),
    *(b'{"inputs": "a\nb"}', b'{"inputs": "a\0b"}', b'{"inputs": "\\x41"}', b'{"inputs": "\\u12"}', b'{"inputs": "a'),
    *(b'{"inputs": NaN}', b'{"inputs": Infinity}', b'{"inputs": -Infinity}', b'{"inputs": 1e999}', b'{"inputs": 01}'),
    *(b'{"inputs": 1' + b"0" * 400 + b"}", b'{"inputs": -' + b"9" * 2900 + b"}", b'{"dimensions": 1e400}'),
    *(b'{"inputs": "a", "inputs": "b"}', b'{"inputs": "a", "model": null, "model": null}'),
    *(b'{"inputs": {"question": "a", "question": "b"}}', b"[" * 2900, b'{"inputs":' * 290, b'{"a":[' * 480),
    *(b'{"inputs": ' + b"[" * 1400 + b"]" * 1400 + b"}", b"\x1f\x8b\x08\x00\x00", b"inputs=a", b"<inputs>a</inputs>"),
    *('{"inputs": "a"}'.encode("utf-16"), '{"inputs": "a"}'.encode("utf-32"), b'{"inputs": "a" /* b */}', b"\x80abc"),
]
WRONG = [
    *({}, {"input": "a"}, {"inputs": None}, {"inputs": 1}, {"inputs": True}, {"inputs": {}}, {"inputs": []}),
    *({"inputs": [None]}, {"inputs": ["a", 1]}, {"inputs": [1, "a"]}, {"inputs": [["a"]]}, {"inputs": [[]]}),
    *({"inputs": [[[1]]]}, {"inputs": [1.5]}, {"inputs": [True]}, {"inputs": [-1]}, {"inputs": [10**9]}),
    *({"inputs": [[5], []]}, {"inputs": [[5], [2**63]]}, {"inputs": {"text": "a"}}, {"inputs": ["a", ["b"]]}),
    *({"inputs": "a", "normalize": 1}, {"inputs": "a", "normalize": "true"}, {"inputs": "a", "truncate": "no"}),
    *({"inputs": "a", "truncation_direction": "Left"}, {"inputs": "a", "prompt_name": "passage"}),
    *({"inputs": "a", "prompt_name": 1}, {"inputs": "a", "dimensions": 0}, {"inputs": "a", "dimensions": -3}),
    *({"inputs": "a", "dimensions": 1.0}, {"inputs": "a", "dimensions": "3"}, {"inputs": "a", "dimensions": True}),
    *({"inputs": "a", "model": 1}, {"inputs": "a", "model": ["words"]}, {"inputs": "a", "model": {}}),
    *(
        {"inputs": "a", "batch": 1},
        {"inputs": "a", "": 1},
        {"inputs": "a", "__class__": "x"},
        {"inputs": "a", "Model": 1},
    ),
    *({"inputs": "a", "x" * 900: 1}, {"inputs": "a", "\n": 1}, {"inputs": "a", "</script>": 1}),
]
ELSEWHERE = [
    *(("/fill-mask", {"inputs": "no mask"}), ("/fill-mask", {"inputs": "[MASK]", "top_k": 0})),
    *(("/fill-mask", {"inputs": "[MASK]", "top_k": 10**9}), ("/fill-mask", {"inputs": "[MASK]", "top_k": 2.0})),
    *(("/fill-mask", {"inputs": [["a", "b"]]}), ("/fill-mask", {"inputs": [1]}), ("/fill-mask", {"inputs": []})),
    *(("/classify", {"inputs": [["a", "b", "c"]]}), ("/classify", {"inputs": [["a"]]}), ("/classify", {"inputs": []})),
    *(("/classify", {"inputs": [["a", 1]]}), ("/tag", {"inputs": [[1]]}), ("/tag", {"inputs": {"words": []}})),
    *(("/answer", {"inputs": "a"}), ("/answer", {"inputs": {"question": "a"}}), ("/answer", {"inputs": [[]]})),
    *(("/answer", {"inputs": {"context": "a"}}), ("/answer", {"inputs": {"question": "a", "context": 1}})),
    *(("/answer", {"inputs": {"question": "a", "context": "b", "more": 1}}), ("/answer", {"inputs": []})),
    *(("/answer", {"inputs": {"question": "a", "candidates": ["b", "c"]}}), ("/rank", {"query": "a"})),
    *(("/answer", {"inputs": {"question": "a", "context": "b", "candidates": ["c"]}}), ("/rank", {"documents": ["a"]})),
    *(("/rank", {"query": "a", "documents": []}), ("/rank", {"query": "a", "documents": "b"}), ("/rank", {})),
    *(("/rank", {"query": ["a"], "documents": ["b"]}), ("/rank", {"query": "a", "documents": [["b"]]})),
    *(("/rank", {"query": "a", "documents": ["b"], "top": 0}), ("/rerank", {"query": "a", "texts": []})),
    *(("/rerank", {"query": "a", "texts": [None]}), ("/rerank", {"query": "a", "texts": ["b"], "raw_scores": 1})),
    *(("/rerank", {"query": "a", "documents": ["b"]}), ("/predict", {"inputs": []}), ("/predict", {"inputs": [[]]})),
    *(("/predict", {"inputs": ["a", "b", "c"]}), ("/predict", {"inputs": ["a", ["b"]]}), ("/predict", {"inputs": 1})),
    *(("/predict", {"inputs": [["a"], "b"]}), ("/predict", {"inputs": [["a", "b", "c"]]}), ("/predict", {})),
    *(("/score", {"inputs": "a"}), ("/score", {"inputs": ["a", "b"]}), ("/score", {"inputs": [["a", "b", "c"]]})),
    *(("/score", {"inputs": [["a", "b"]], "kind": "regression"}), ("/score", {"inputs": [["a", "b"]], "kind": "x"})),
    *(("/similarity", {"inputs": "a"}), ("/similarity", {"inputs": {"source_sentence": "a", "sentences": []}})),
    *(("/similarity", {"inputs": {"source_sentence": "a", "sentences": "b"}}), ("/tokenize", {"inputs": [1]})),
    *(("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}, "parameters": {"x": 1}}),),
    *(("/tokenize", {"inputs": "a", "prompt_name": "query"}), ("/decode", {"ids": "a"}), ("/decode", {"ids": []})),
    *(
        ("/decode", {"ids": [99999]}),
        ("/decode", {"ids": [-1]}),
        ("/decode", {"ids": [[]]}),
        ("/decode", {"ids": [1.0]}),
    ),
    *(("/v1/embeddings", {}), ("/v1/embeddings", {"input": []}), ("/v1/embeddings", {"input": {}})),
    *(("/v1/embeddings", {"input": "a", "encoding_format": "int8"}), ("/v1/embeddings", {"input": [[1, "a"]]})),
    *(("/v1/embeddings", {"input": "a", "dimensions": 0}), ("/v1/embeddings", {"inputs": "a"})),
    *(("/v1/embeddings", {"input": ["a", None]}), ("/v1/embeddings", {"input": "a", "user": 1})),
]


@pytest.mark.parametrize("body", NO_JSON, ids=lambda body: ascii(body)[:40])
def test_what_is_no_json_object_is_refused(client, body):
    for path in "/embed", "/v1/embeddings":
        assert_refused(client, client.post(path, content=body, headers=JSON), 400, path)


@pytest.mark.parametrize("body", WRONG, ids=lambda body: ascii(body)[:40])
def test_values_of_another_kind_are_refused_by_name(client, body):
    answer = client.post("/embed", json=body)
    assert_refused(client, answer, 422)


@pytest.mark.parametrize("path, body", ELSEWHERE, ids=lambda value: ascii(value)[:40])
def test_each_route_refuses_what_it_cannot_read(client, path, body):
    assert_refused(client, client.post(path, json=body), 400 if path.startswith("/v1/") else 422, path)


def test_a_hostile_value_is_not_repeated_in_full(client):
    answer = client.post("/embed", json={"inputs": "a", "x" * 900: 1})
    assert "x" * 60 in answer.text and "x" * 61 not in answer.text


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_every_route_reads_bounded_bodies_of_json(client, route):
    post, path = client.post, route.path
    assert_refused(client, post(path, content=b"{}" + b" " * 3000, headers=JSON), 413, path)
    assert_refused(client, post(path, content=iter([b"{}"] + [b" " * 1000] * 4), headers=JSON), 413, path)
    assert_refused(client, post(path, content=b"{}"), 415, path)
    assert_refused(client, post(path, content=b"{}", headers={"content-type": "text/plain"}), 415, path)
    assert_refused(client, post(path, content=b"{}", headers={**JSON, "content-encoding": "gzip"}), 415, path)
    for method in "GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW":
        answer = client.request(method, path)
        assert_refused(client, answer, 405, path)
        assert answer.headers["allow"] == "POST"


@pytest.mark.parametrize(
    "path, body",
    [
        ("/embed", {"inputs": ["a"] * 5}),
        ("/embed", {"inputs": "a" * 51}),
        ("/embed", {"inputs": [[5]] * 5}),
        ("/embed", {"inputs": [5] * 51}),
        ("/embed", {"inputs": [9] * 40}),  # as text it is longer
        ("/classify", {"inputs": [["a", "b"]] * 5}),
        ("/tag", {"inputs": [["a"]] * 5}),
        ("/rank", {"query": "a", "documents": ["b"] * 5}),
        ("/rank", {"query": "a" * 51, "documents": ["b"]}),
        ("/predict", {"inputs": [["a"]] * 5}),
        ("/tokenize", {"inputs": ["a"] * 5}),
        ("/tokenize", {"inputs": ["a " * 20] * 2}),
        ("/fill-mask", {"inputs": ["[MASK]" * 8] * 4}),  # of many candidates a long answer
        ("/decode", {"ids": [[5]] * 5}),
        ("/v1/embeddings", {"input": ["a"] * 5}),
    ],
)
def test_more_than_the_limits_is_413(client, path, body):
    assert_refused(client, client.post(path, json=body), 413, path)


def test_what_is_not_there_is_404(client):
    for path in (
        "/none",
        "/embed/",
        "/v1/chat/completions",
        "/../etc/passwd",
        "/%00",
        "/embed%2f..",
        "/" + "a" * 3000,
    ):
        assert_refused(client, client.get(path), 404, path)


def test_a_length_that_lies_is_refused_before_it_is_read(client):
    for length in "3001", "9" * 30:
        assert_refused(client, client.post("/embed", content=b"{}", headers={**JSON, "content-length": length}), 413)


def test_two_lengths_are_refused(client):
    """A proxy may have believed the other one, and taken the rest of the body for a request (smuggling)."""
    headers = {**JSON, "content-length": "15", "transfer-encoding": "chunked"}
    answer = client.post("/embed", content=b'{"inputs": "a"}', headers=headers)
    assert_refused(client, answer, 400)
    assert answer.headers["connection"] == "close"


def test_long_lists_are_read_without_a_look_at_each_entry():
    """Two megabytes of entries would keep the server from all others for seconds."""
    body, limits = json.dumps({"inputs": ["a"] * 1000}).encode(), Limits(10, 4)
    assert len(read_body(body, EmbedBody, limits).inputs) == 1000
    with pytest.raises(Refusal, match="more than 10000 lists and objects"):
        read_body(b'{"inputs": [' + b"[1]," * 10_000 + b"[1]]}", EmbedBody, limits)
    assert read_body(json.dumps({"inputs": '[{"' * 10_000}).encode(), EmbedBody, Limits(10**6, 4))
    for inputs in [[1]] * 5, [1] * 11, ["a", 1, "a", "a", "a"]:
        with pytest.raises(Refusal, match="entries, and at most 4 are read") as refused:
            read_body(json.dumps({"inputs": inputs}).encode(), EmbedBody, limits)
        assert refused.value.status == 413


def test_a_large_body_is_read_in_a_thread(monkeypatch):
    monkeypatch.setattr(bodies, "read_body", lambda *_: threading.current_thread() is threading.main_thread())
    read = [asyncio.run(bodies.read_aside(b" " * size, EmbedBody, Limits(1, 1))) for size in (9, bodies.LARGE)]
    assert read == [True, False]


def test_bodies_together_are_bounded(client):
    metrics = client.app.state.service.metrics
    metrics.body_bytes = 5990
    answer = client.post("/embed", json={"inputs": "more than ten bytes"})
    assert answer.status_code == 429 and answer.headers["retry-after"] == "1" and metrics.body_bytes == 5990
    metrics.body_bytes = 0


def test_texts_are_answered_as_text(client):
    """No answer can become a page, whatever is in it."""
    hostile = "<script>alert(1)</script>\u2028"
    answer = client.post("/rerank", json={"query": "a", "texts": [hostile], "return_text": True})
    assert answer.json()[0]["text"] == hostile
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"


def test_a_failure_of_ours_is_500_without_its_reason(client, monkeypatch):
    def fails(*_):
        raise ValueError("a secret of the server")

    monkeypatch.setattr("bert_jax.tools.serving.bodies.read_body", fails)
    answer = client.post("/embed", json={"inputs": "a"})
    assert_refused(client, answer, 500)
    assert "secret" not in answer.text


def random_value(random: np.random.Generator, depth: int = 0):
    """A JSON value of few words, so that some of them fit."""
    kind = random.integers(9 if depth < 4 else 6)
    if kind < 3:
        return ["a", "the [MASK]", ""][random.integers(3)]
    if kind < 6:
        return [1, 5, -1, 2.5, True, None, "query", "base64", 2**40, "words"][random.integers(10)]
    if kind < 8:
        return [random_value(random, depth + 1) for _ in range(random.integers(4))]
    return {name: random_value(random, depth + 1) for name in random.choice(FIELDS, random.integers(4))}


FIELDS = ["inputs", "question", "context", "candidates", "source_sentence", "sentences", "truncate", "model"]


def test_random_bodies_are_answered_or_refused(client):
    """Fields of the right names with values of all kinds never make the server fail."""
    random, seen = np.random.default_rng(47), set()
    for route in client.app.state.service.routes:
        kind = typing.get_type_hints(route.answer)["body"]
        for _ in range(25):
            chosen = [
                field.name for field in dataclasses.fields(kind) if field.name == "inputs" or random.random() < 0.6
            ]
            answer = client.post(route.path, json={name: random_value(random) for name in chosen})
            seen.add(answer.status_code)
            json.loads(answer.text)
    assert {200, 422} <= seen <= {200, 400, 404, 413, 422}, seen


def test_few_bytes_do_not_make_a_huge_answer(client):
    """2 MB of masks, each with a thousand candidates, would be gigabytes; it is refused before they are computed."""
    engine = client.app.state.service.engine
    before = len(engine.asked)
    wide = TestClient(make_app(engine, dataclasses.replace(CONFIG, max_body=10**6, max_bodies=10**6, max_inputs=200)))
    answer = wide.post(
        "/fill-mask", json={"inputs": ["[MASK]" * 8] * 100, "top_k": 1000}, headers={"host": "localhost"}
    )
    assert answer.status_code == 413 and "at most 100000" in answer.json()["error"] and len(engine.asked) == before
