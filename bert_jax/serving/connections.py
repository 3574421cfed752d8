"""Connections that are bounded in number, and in the time that a client may take."""

import asyncio
import contextlib
import json

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from bert_jax.config.serving import ServeConfig

SLOWEST = 4096
"""Bytes of a large answer that a client takes in a second, at least."""


class Bounded(H11Protocol):
    """uvicorn's protocol with what it lacks: limits of connections, and of the time for headers and for answers."""

    options: ServeConfig
    """The limits, which `bounded` sets."""
    waiting: asyncio.TimerHandle | None = None
    """Ends the connection unless a header is complete in time."""
    stuck: asyncio.TimerHandle | None = None
    """Ends it unless the client takes enough of an answer in time."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.options.max_connections:
            transport.abort()
        else:
            self.waiting = self.loop.call_later(self.options.read_seconds, self.too_slow)

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
