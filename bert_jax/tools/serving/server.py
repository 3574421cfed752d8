"""The process of `bert-jax serve`: models opened, connections bounded, signals, and an end without lost answers."""

import asyncio
import contextlib
import gc
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from bert_jax.config.serving import ServeConfig, named_models
from bert_jax.errors import UserError
from bert_jax.pretrained.model import PretrainedModel, load
from bert_jax.tools.serving.app import make_app
from bert_jax.tools.serving.engine import Engine
from bert_jax.tools.serving.security import find_token
from bert_jax.tools.serving.service import Service

WARMING = "compiling (warm-up)"
"""Name of the thread that compiles; `console.leave` ends a process whose thread is called so without waiting for it."""
BACKLOG = 2048  # connections that wait to be accepted
TELL_SECONDS = 5  # between two lines that say how far the warm-up is
AFTER_DRAIN = 2  # seconds in which what has been answered is sent, before connections are closed
SLOWEST = 4096
"""Bytes of a large answer that a client takes in a second, at least."""


def run_serve(words: Iterable[str], config: ServeConfig) -> int:
    """Serve models until a signal ends it; return the exit status.

    Args:
      words: models, each as a path or name for `bert_jax.load`, or as NAME=PATH.
      config: the options.

    Raises:
      UserError: a model cannot be opened or has no vocabulary, two have one name, or the address cannot be used.
    """
    config.check()
    token, places = find_token(config), named_models(words)
    listener = listen(config)
    print(f"opening {', '.join(places.values())}", flush=True)
    server = Server({name: load(place) for name, place in places.items()}, config, token, listener)
    gc.freeze()  # of a quarter of a million objects, a collection in the midst of requests would stop all for long
    listener.listen(BACKLOG)  # before the address is printed, which programs may be waiting for
    print(server.greeting(), flush=True)
    server.run(sockets=[listener])
    return server.status()


def listen(config: ServeConfig) -> socket.socket:
    """Return a socket with the address, so that one that is taken shows before models are read; nobody connects yet."""
    listener = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0]
        # asyncio sends at once (TCP_NODELAY) where the protocol is said to be TCP; else an answer waits for 40 ms.
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise UserError(
            f"cannot listen at {config.host}:{config.port}: {error.strerror or error}; give another --host or --port "
            "(--port=0: any that is free)"
        ) from None
    listener.setblocking(False)
    return listener


class Server(uvicorn.Server):
    """uvicorn with bounded connections, which drains the engine between its last request and its end."""

    def __init__(
        self, models: Mapping[str, PretrainedModel], config: ServeConfig, token: bytes, listener: socket.socket
    ):
        for model in models.values():
            model.need_tokenizer()
        self.engine: Engine = Engine(models, config.engine)
        self.options: ServeConfig = config
        app = make_app(self.engine, config, token)
        self.service: Service = app.state.service
        host, port = listener.getsockname()[:2]
        self.url: str = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._failure: list[BaseException] = []
        super().__init__(
            uvicorn.Config(
                app,
                http=bounded(config),
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
                timeout_keep_alive=max(1, round(config.read_seconds)),
                timeout_graceful_shutdown=AFTER_DRAIN,
            )
        )

    def greeting(self) -> str:
        """Return the lines that a start prints: the address, and what each model answers."""
        lines = [f"  {name}: {', '.join(self.service.served(name))}" for name in self.engine.models]
        page = "the playground" if self.options.playground else "the description of all routes"
        return "\n".join([f"serving at {self.url} ({page}; /docs describes the routes)", *lines])

    def status(self) -> int:
        """Return the exit status of the process; raise what the engine's start has raised."""
        for failure in self._failure:
            raise failure
        return 0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and compile the programs meanwhile: /ready says when they are there."""
        await super().startup(sockets)
        threading.Thread(target=self._warm_up, name=WARMING, daemon=True).start()

    def _warm_up(self) -> None:
        began = said = time.monotonic()
        ready = False

        def told() -> None:
            nonlocal said, ready
            now, (done, shapes) = time.monotonic(), self.engine.warmed
            if self.options.access_log and self.engine.ready and not ready:
                rest = (
                    f"; {shapes - done} of {shapes} shapes of batches are compiled meanwhile" if done < shapes else ""
                )
                print(f"ready after {now - began:.1f} s{rest}", file=sys.stderr, flush=True)
            elif self.options.access_log and now - said >= TELL_SECONDS:
                said, line = now, f"compiling: {done} of {shapes} shapes of batches after {now - began:.0f} s"
                print(line, file=sys.stderr, flush=True)
            ready = self.engine.ready

        try:
            self.engine.start(told)
        except BaseException as failure:
            self._failure.append(failure)
            self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, answer what was accepted, and close the connections."""
        self.engine.refuse()
        for server in self.servers:
            server.close()
        if not self._failure:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(
                    self.engine.drain(self.options.drain_seconds), self.options.drain_seconds + AFTER_DRAIN
                )
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End at SIGTERM and Ctrl+C with status 0 when all is answered, and at a second one at once.

        uvicorn would raise the signal again at the end, and wait on at a second SIGTERM.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {each: signal.signal(each, self.handle_exit) for each in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """End gently, or at once if that was asked for before."""
        if self.should_exit:
            os._exit(128 + sig)
        self.should_exit = True


class Bounded(H11Protocol):
    """uvicorn's protocol with what it lacks: limits of connections, and of the time for headers and for answers."""

    options: ServeConfig
    """The limits, which `bounded` sets."""
    waiting: asyncio.TimerHandle | None = None
    """Ends the connection unless a header is complete in time."""
    stuck: asyncio.TimerHandle | None = None
    """Ends it unless the client takes enough of an answer in time."""
    since: float = 0.0
    """When it was made, or when its last answer was given."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.since = self.loop.time()
        if len(self.connections) > self.options.max_connections:
            self.make_room()
        if not transport.is_closing():
            self.waiting = self.loop.call_later(self.options.read_seconds, self.too_slow)

    def on_response_complete(self) -> None:
        self.since = self.loop.time()
        super().on_response_complete()

    def make_room(self) -> None:
        """Close the connection that has been waiting for a whole request for longest, or this one if all have theirs.

        So clients that send slowly, or nothing, shut nobody out who sends a request at once.
        """
        others = (each for each in self.connections if isinstance(each, Bounded) and each is not self)
        idle = [each for each in others if each.lacks_request()]
        min(idle, key=lambda each: each.since, default=self).transport.abort()

    def lacks_request(self) -> bool:
        """Return whether neither a request nor an answer is complete or under way, but at most half a request."""
        waits = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        return waits and not self.transport.is_closing() and not self.transport.get_write_buffer_size()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop("waiting")
        self._stop("stuck")
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.waiting is None and self._is_between():
            self.waiting = self.loop.call_later(self.options.read_seconds, self.too_slow)
        super().data_received(data)
        if not self._is_between():
            self._stop("waiting")

    def _is_between(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def too_slow(self) -> None:
        if self.conn.our_state is h11.IDLE:
            self.refuse(408, f"the header did not arrive within {self.options.read_seconds:g} s")
        else:  # what is left of a body that was refused
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        self.refuse(400, msg)

    def refuse(self, status: int, message: str) -> None:
        """Answer what is no request, and close the connection."""
        body = json.dumps({"error": message, "error_type": "Validation"}).encode()
        headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
        answer = (
            h11.Response(status_code=status, headers=[*headers.items()]),
            h11.Data(data=body),
            h11.EndOfMessage(),
        )
        with contextlib.suppress(h11.LocalProtocolError):  # another answer has begun
            for event in answer:
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def pause_writing(self) -> None:
        """Stop until the client has taken what is written; end the connection if all of them have too much of it."""
        super().pause_writing()
        unsent = sum(each.transport.get_write_buffer_size() for each in self.connections)  # of all protocols
        if unsent > self.options.max_unsent:
            self.transport.abort()
        else:
            self._watch()

    def _watch(self) -> None:
        left = self.transport.get_write_buffer_size()
        self.stuck = self.loop.call_later(self.options.read_seconds, self.check_taken, left)

    def check_taken(self, before: int) -> None:
        """End the connection if the client takes less of an answer than SLOWEST."""
        if before - self.transport.get_write_buffer_size() < SLOWEST * self.options.read_seconds:
            self.transport.abort()
        else:
            self._watch()

    def resume_writing(self) -> None:
        self._stop("stuck")
        super().resume_writing()

    def _stop(self, name: str) -> None:
        if (timer := getattr(self, name)) is not None:
            timer.cancel()
            setattr(self, name, None)


def bounded(config: ServeConfig) -> type[Bounded]:
    """Return the protocol with the limits of `config`, for uvicorn, which makes one for each connection."""
    return type("BoundedByOptions", (Bounded,), {"options": config})
