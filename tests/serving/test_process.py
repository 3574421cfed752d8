"""The process of `bert-jax serve`: its answers are the library's, and its end loses none."""

import concurrent.futures
import http.client
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import numpy as np
import processes
import pytest
from pretrained_model import random_texts, write_workdir

import bert_jax


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    directory = tmp_path_factory.mktemp("served") / "words"
    write_workdir(directory, 1)
    return directory


class Process:
    """`bert-jax serve`, from its start until it is ready."""

    def __init__(self, place, log, *options: str):
        words = [sys.executable, "-m", "bert_jax", "serve", str(place), *(options or ["--port=0"])]
        self.log, self._log = log, open(log, "w+")
        self.process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=self._log, text=True, env={**os.environ, **processes.one_device()}
        )
        self.url = ""

    def wait(self, ready: bool = True) -> None:
        line = ""
        while not line.startswith("serving at "):
            line = self.process.stdout.readline()
            assert line, self.said()
        self.url = line.split()[2]
        if not ready:
            return
        processes.wait_until(lambda: self.status("/ready") == 200, lambda: self.process.poll() is None, self.said)

    def said(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def status(self, path: str) -> int:
        try:
            with urllib.request.urlopen(self.url + path, timeout=processes.SECONDS) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    def ask(self, path: str, body):
        """The answer, or what a client sees in its place: a status, or the kind of a failed connection."""
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=processes.SECONDS) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            assert "error" in json.load(error)
            return error.code
        except (OSError, http.client.HTTPException) as error:
            return type(error)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self._log.close()


@pytest.fixture
def started(place, tmp_path):
    found = Process(place, tmp_path / "log")
    try:
        found.wait()
        yield found
    finally:
        found.close()


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL, *([signal.SIGINT] if processes.EXHAUSTIVE else [])])
def test_an_end_under_load_gives_whole_answers_or_none(started, place, sent):
    """Every answer is that of the library; after the signal there are refusals and closed connections, and no half."""
    texts = random_texts(200)
    expected = bert_jax.load(place).embed(texts, normalize=True)

    def ask(number: int):
        return started.ask("/embed", {"inputs": [texts[number % 200]]})

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(ask, number) for number in range(1000)]
        asked[200].result()
        started.process.send_signal(sent)
        found = [each.result() for each in asked]
    answered = [number for number, each in enumerate(found) if isinstance(each, list)]
    assert 200 - 7 <= len(answered) < 1000  # of those before, seven may have been on their way
    for number in answered:
        np.testing.assert_allclose(np.array(found[number][0]), expected[number % 200], atol=2e-6)
    others = [each for each in found if not isinstance(each, list)]
    assert all(each in (503, 429) or isinstance(each, type) for each in others), set(map(str, others))
    assert started.process.wait(processes.SECONDS) == (0 if sent != signal.SIGKILL else -signal.SIGKILL)
    if sent == signal.SIGKILL:
        assert all(isinstance(each, type) for each in others)
        again = Process(place, f"{started.log}2", f"--port={started.url.rpartition(':')[2]}")
        try:
            again.wait()  # at the same port, though connections of the one before are not forgotten yet
            assert again.url == started.url
            np.testing.assert_allclose(again.ask("/embed", {"inputs": texts[:1]})[0], expected[0], atol=2e-6)
        finally:
            again.close()
    else:
        assert "Traceback" not in started.said()


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2])
def test_a_signal_while_programs_are_compiled_ends_the_process(place, tmp_path, times):
    found = Process(place, tmp_path / "log")
    try:
        found.wait(ready=False)
        assert found.status("/ready") == 503
        for _ in range(times):
            found.process.send_signal(signal.SIGTERM)
        assert found.process.wait(processes.SECONDS) in ((0,) if times == 1 else (0, 128 + signal.SIGTERM))
        assert "Traceback" not in found.said()
    finally:
        found.close()


@pytest.mark.slow
def test_answers_of_a_process_are_those_of_the_library(started, place):
    model, texts = bert_jax.load(place), ["the [MASK] sat", "a big dog [MASK] on the [MASK]"]
    found = started.ask("/fill-mask", {"inputs": texts, "top_k": 3})
    for masks, expected in zip(found, model.fill_mask(texts, top_k=3), strict=True):
        assert [[each["token"] for each in mask] for mask in masks] == [[c.token for c in mask] for mask in expected]
    assert started.ask("/score", {"inputs": [["the cat", "a dog"]], "kind": "next_sentence"})[
        "scores"
    ] == pytest.approx(model.next_sentence(["the cat"], ["a dog"]), abs=1e-6)
    assert started.status("/ready") == started.status("/docs") == started.status("/metrics") == 200
    assert started.ask("/classify", {"inputs": "a"}) == 404
