"""A server on loopback: connections that are slow, broken or left, and its end."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import threading
import time
import types
import urllib.request

import processes
import pytest
from stand_in_engines import QuickEngine, models

from bert_jax.config.serving import ServeConfig
from bert_jax.errors import UserError
from bert_jax.tools.serving import server as of_server
from bert_jax.tools.serving.notebook import serve

ASK = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@contextlib.contextmanager
def served(engine=QuickEngine, **options):
    """A server with an engine that answers at once."""
    config = ServeConfig(port=0, **{"playground": False, "access_log": False, **options})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_server, "Engine", engine)
        with serve(models(), config) as handle:
            yield handle


@pytest.fixture(scope="module")
def server():
    with served(max_body=100_000, drain_seconds=5.0) as handle:
        yield handle


def connected(handle) -> socket.socket:
    host, port = handle.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=processes.SECONDS)


def told(connection: socket.socket) -> bytes:
    """All that a server sends until it closes the connection."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def exchange(handle, data: bytes) -> tuple[int, bytes]:
    """Send a request and all that follows it, say that this is all, and return the status and body of the answer."""
    with connected(handle) as connection:
        with contextlib.suppress(OSError):  # it is refused before all is sent
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        head, _, body = told(connection).partition(b"\r\n\r\n")
    return int(head.split()[1]) if head else 0, body


def is_well(handle) -> bool:
    body = json.dumps({"inputs": "a cat"}).encode()
    request = urllib.request.Request(f"{handle.url}/tokenize", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=processes.SECONDS) as answer:
        return [each["text"] for each in json.load(answer)[0]] == ["[CLS]", "a", "cat", "[SEP]"]


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\n\r\nnonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),  # the beginning of TLS
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",  # without Host
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.org\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n folded: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 2_000_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 2_000_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 400_000 + b"\r\n",
        ASK + b"Content-Length: -1\r\n\r\n{}",
        ASK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        ASK + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        ASK + b"Content-Length: " + b"9" * 50 + b"\r\n\r\n{}",
        ASK + b"Transfer-Encoding: gzip\r\n\r\n{}",
        ASK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
        ASK + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 30 + b"\r\n{}",
        ASK + b"Transfer-Encoding: chunked\r\n\r\n" + (b"400\r\n" + b" " * 1024 + b"\r\n") * 200,
        ASK + b"Content-Length: 100\r\n\r\n{}",  # and nothing more
        ASK + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n",
    ],
    ids=lambda data: ascii(data[-40:]),
)
def test_what_is_no_request_is_refused_and_the_server_goes_on(server, data):
    status, body = exchange(server, data)
    assert 400 <= status < 500 or not status and b"{}" in data  # where a body ends early nobody waits for an answer
    assert not body or b'"error"' in body
    assert is_well(server)


def test_requests_in_one_connection_are_answered_in_order(server):
    bodies = [json.dumps({"inputs": text}).encode() for text in ("a", "cat", "the")]
    data = b"".join(ASK + b"Content-Length: %d\r\n\r\n%s" % (len(body), body) for body in bodies)
    with connected(server) as connection:
        connection.sendall(data + b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answers = told(connection)
    places = [answers.index(text) for text in (b'"a"', b'"cat"', b'"the"', b'"alive"')]
    assert places == sorted(places) and answers.count(b"HTTP/1.1 200") == 4


def test_slow_headers_and_bodies_are_ended():
    """At any point of a request, and of a second one in the same connection."""
    whole = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with served(read_seconds=0.2) as handle:
        for data, expected in (
            (b"", 408),
            (b"GET / HT", 408),
            (ASK, 408),
            (ASK + b"Content-Length: 10\r\n\r\n{", 408),
            (ASK + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", 408),
            (whole + b"GET / HT", 200),
        ):
            with connected(handle) as connection:
                connection.sendall(data)
                *_, last = told(connection).split(b"HTTP/1.1 ")
            assert int(last[:3]) == expected and (b'"error"' in last) == (expected == 408), data
        with connected(handle) as connection:  # a byte at a time, each in time
            connection.sendall(ASK + b"Content-Length: 100000\r\n\r\n")
            with contextlib.suppress(OSError):
                for _ in range(2000):
                    connection.sendall(b" ")
                    time.sleep(0.01)
                pytest.fail("it reads for longer than it says")


class Long(QuickEngine):
    """Gives answers of 20 MB."""

    async def ask(self, *arguments, **options):
        return ["x" * 20_000_000]


def asked_without_reading(handle) -> socket.socket:
    connection = connected(handle)
    connection.sendall(ASK + b'Content-Length: 15\r\n\r\n{"inputs": "a"}')
    return connection


def test_a_client_that_does_not_read_is_left():
    with served(Long, read_seconds=0.5) as handle, asked_without_reading(handle):
        connections = handle._server.server_state.connections
        processes.wait_until(lambda: connections)
        processes.wait_until(lambda: not connections)


def test_answers_that_nobody_takes_are_bounded_together():
    with served(Long, max_answer=21_000_000, max_unsent=21_000_000) as handle, contextlib.ExitStack() as opened:
        for _ in range(4):
            opened.enter_context(asked_without_reading(handle))
        count = handle._server.service.metrics.text
        processes.wait_until(lambda: b'bert_jax_requests_total{route="/tokenize",status="200"} 4.0' in count())
        processes.wait_until(lambda: len(handle._server.server_state.connections) == 1)


def test_connections_without_a_whole_request_make_room_for_others():
    engines = []

    class Slow(QuickEngine):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            engines.append(self)

    with served(Slow, max_connections=4) as handle, contextlib.ExitStack() as opened:
        states = lambda: sorted(str(each.conn.their_state) for each in handle._server.server_state.connections)
        nothing = opened.enter_context(connected(handle))
        processes.wait_until(lambda: len(states()) == 1)
        half = opened.enter_context(connected(handle))
        half.sendall(ASK + b"Content-Length: 15\r\n\r\n{")
        processes.wait_until(lambda: states() == ["IDLE", "SEND_BODY"])
        assert is_well(handle) and is_well(handle), "there is room"
        engines[0].delay = 60.0
        for count in range(1, 5):
            opened.enter_context(connected(handle)).sendall(ASK + b'Content-Length: 15\r\n\r\n{"inputs": "a"}')
            processes.wait_until(lambda count=count: len(engines[0].asked) == count + 2)
        assert told(nothing) == b"", "the oldest is closed first"
        assert told(half) == b""
        with connected(handle) as one_more:
            assert told(one_more) == b"", "where all have their requests, the new one is closed"
        assert engines[0].cancelled == 0


def test_the_question_of_a_client_that_goes_away_is_dropped():
    engines = []

    class Slow(QuickEngine):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.delay = 60.0
            engines.append(self)

    with served(Slow) as handle:
        with connected(handle) as connection:
            connection.sendall(ASK + b'Content-Length: 15\r\n\r\n{"inputs": "a"}')
            processes.wait_until(lambda: engines[0].asked)
        processes.wait_until(lambda: engines[0].cancelled == 1)


def test_an_end_answers_what_was_accepted():
    engines = []

    class Waiting(QuickEngine):
        """Answers when it is drained."""

        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.ends = asyncio.Event()
            engines.append(self)

        async def ask(self, *arguments, **options):
            self.asked.append(arguments)
            await self.ends.wait()
            return [[]]

        async def drain(self, seconds):
            await super().drain(seconds)
            self.ends.set()

    with served(Waiting) as handle:
        with connected(handle) as connection:
            connection.sendall(ASK + b'Content-Length: 15\r\n\r\n{"inputs": "a"}')
            processes.wait_until(lambda: engines[0].asked)
            handle.close()
            assert told(connection).endswith(b"\r\n\r\n[[]]")
        with pytest.raises(ConnectionRefusedError):
            connected(handle)


def test_what_a_start_raises_is_raised():
    class Broken(QuickEngine):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.ready = False

        def start(self, told=lambda: None):
            raise UserError("no memory for it")

    with pytest.raises(UserError, match="no memory for it"), served(Broken):
        pass


def test_a_long_start_says_how_far_it_is(monkeypatch, capsys):
    class Compiling(QuickEngine):
        def __init__(self, *given):
            super().__init__(*given)
            self.ready = False  # or the lines might be read before they are written

        def start(self, told=lambda: None):
            for done in range(3):
                self.warmed = (done, 40)
                told()
            self.warmed = (10, 40)
            super().start()
            told()

    monkeypatch.setattr(of_server, "TELL_SECONDS", 0)
    with served(Compiling, access_log=True):
        said = capsys.readouterr().err
    assert re.search(r"compiling: 1 of 40 shapes of batches after \d+ s\n", said) and said.count("compiling: ") == 3
    assert re.search(r"ready after \d+\.\d s; 30 of 40 shapes of batches are compiled meanwhile\n", said)


def test_an_address_that_is_taken_is_said_before_models_are_read(server):
    port = int(server.url.rpartition(":")[2])
    with pytest.raises(UserError, match=f"cannot listen at 127.0.0.1:{port}"):
        serve("no/such/model", ServeConfig(port=port))
    with pytest.raises(UserError, match="there is no 'no/such/model'"):
        serve({"a": "no/such/model"})
    for given, message in (
        ({}, "there are no models to serve"),
        ([models()], "models is list; give a model of bert_jax.load"),
        ({"a": 3}, "the model a is int; give a model"),
        ({1: "runs/mine"}, "a model has the name 1"),
    ):
        with pytest.raises(UserError, match=message):
            serve(given)


def test_the_first_signal_ends_gently_and_the_second_at_once(monkeypatch):
    ended = []
    monkeypatch.setattr(os, "_exit", ended.append)
    process = types.SimpleNamespace(should_exit=False)
    of_server.Server.handle_exit(process, signal.SIGTERM, None)
    assert process.should_exit and not ended
    of_server.Server.handle_exit(process, signal.SIGTERM, None)
    assert ended == [128 + signal.SIGTERM]
    assert threading.current_thread() is threading.main_thread()
