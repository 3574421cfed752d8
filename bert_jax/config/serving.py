"""Options of `bert-jax serve` and of the engine behind it, as frozen dataclasses; standard library only."""

import dataclasses
import ipaddress
import os
from collections.abc import Iterable
from typing import Literal

from bert_jax.config.options import check_effects, check_numbers, option
from bert_jax.errors import UserError, at_least, need_extra, need_no_negative, need_positive


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """What an engine computes at once, and how much may wait for it."""

    positions: int = 2048
    """Most positions of a batch, padding included. Larger batches use wide processors better, and a text that has just
    arrived waits longer for the batch before it. On a CPU, answers of batches of more than 2,048 may differ by rounding
    from those that the library gives."""
    max_requests: int = 256
    """Most requests that are accepted and not yet answered; more are told to come again."""
    max_texts: int = 4096
    """Most texts of all requests that are accepted and not yet answered, and of a single one."""
    max_tokens: int = 262_144
    """Most tokens that wait to be computed, and of a single request; windows of long contexts count each."""
    max_bytes: int = 16_777_216
    """Most bytes of text, in UTF-8, of all requests that are accepted and not yet answered, and of a single one."""
    deadline: float = 30.0
    """Seconds after which a request that has not been computed is dropped from the queue."""
    threads: int = 64
    """Number of requests that are read and answered at the same time, each in a thread that waits while the rows of all
    of them are computed."""
    compile_first: Literal["single", "all"] = "single"
    """Programs that are compiled before the server says that it is ready. single: those that compute one text at a
    time, which answer every question; batches grow while the others are compiled beside them. all: every one, so that
    the first answers take no longer than later ones, as where a load balancer sends full load to whoever is ready."""

    def __post_init__(self) -> None:
        names = (field.name for field in dataclasses.fields(self) if field.name != "compile_first")
        need_positive(self, "engine.", *names)
        if self.compile_first not in ("single", "all"):
            raise UserError(f"engine.compile_first={self.compile_first!r:.40} must be single or all")


def need_libraries(purpose: str) -> None:
    """Raise a UserError unless what the extra `serve` brings is installed; `purpose` begins the message."""
    for library in ("starlette", "uvicorn", "prometheus_client"):
        need_extra(library, "serve", purpose)


def is_loopback(host: str) -> bool:
    """Return whether only programs on this machine can reach a server at this address or name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """Options of `bert-jax serve`."""

    host: str = "127.0.0.1"
    """Address to listen at. By default only programs on this machine reach it; 0.0.0.0 is all addresses of it, and
    needs a token."""
    port: int = 8080
    """Port to listen at. 0: any that is free, which is printed."""
    token_file: str = ""
    """File with the token that clients must send, as `Authorization: Bearer TOKEN`. By default the environment variable
    BERT_JAX_TOKEN has it, and without that none is needed. There is no option for the token itself, since every user
    of a machine can read the command lines of its processes."""
    without_token: bool = False
    """Whether an address that other machines can reach is opened without a token."""
    allowed_hosts: tuple[str, ...] = ()
    """Names by which clients may call the server, such as models.example.org; others are answered with status 421, so
    that no page of a browser reaches it by a name of its own (DNS rebinding). localhost and the address are always
    allowed."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages that may call the server from a browser, such as https://example.org. By default those of
    others may not."""
    max_body: int = 2_000_000
    """Most bytes of the body of a request."""
    max_bodies: int = 64_000_000
    """Most bytes of all bodies that are being read or answered; more are told to come again."""
    max_answer: int = 64_000_000
    """Most bytes of an answer; who asks for more is told to ask in parts."""
    max_unsent: int = 256_000_000
    """Most bytes of all answers that clients have not taken yet; a connection with more is closed."""
    max_inputs: int = 2048
    """Most texts, or pairs of texts, of a request."""
    max_characters: int = 100_000
    """Most characters of a text, and of all texts of /tokenize."""
    max_connections: int = 1024
    """Most connections. For one more, that which has been without a whole request for longest is closed; if all have
    theirs, the new one."""
    read_seconds: float = 30.0
    """Seconds in which the header of a request must arrive, and then its body. A client that takes less than 4 KiB of a
    large answer in each of as many seconds is left."""
    rate: float = 0.0
    """Most requests of a client, which is an address, in a second on average. 0: as many as it sends."""
    burst: int = option(20, of=("rate",))
    """Number of requests that a client may send at once under this rate."""
    drain_seconds: float = 30.0
    """Seconds in which what was accepted is answered after SIGTERM or Ctrl+C, before the process ends. A second signal
    ends it at once."""
    playground: bool = True
    """Whether the page is served on which one tries the models."""
    study: str = option("", of=("playground",))
    """Directory of a study of `bert-jax study` whose results the page shows. By default it shows none."""
    index: str = option("", of=("playground",))
    """Directory that `bert-jax index` wrote with one of the models, in which the page also seeks the neighbours of
    a text. By default it seeks them among the lines of the page alone."""
    access_log: bool = True
    """Whether a line is printed for each request: client, method, route, status, seconds; never what was sent."""
    engine: EngineOptions = EngineOptions()
    """What is computed at once, and how much may wait."""

    def check(self) -> None:
        """Raise a UserError if an option cannot work; called before anything is loaded."""
        check_numbers(self)
        check_effects(self)
        if not self.host.strip():
            raise UserError("host is empty; give an address to listen at, such as 127.0.0.1")
        if not 0 <= self.port < 65536:
            raise UserError(f"port={self.port} must be between 0 and 65535")
        at_least(1, max_body=self.max_body, max_inputs=self.max_inputs, max_characters=self.max_characters)
        at_least(1, max_answer=self.max_answer, max_connections=self.max_connections, burst=self.burst)
        at_least(self.max_body, max_bodies=self.max_bodies)
        at_least(self.max_answer, max_unsent=self.max_unsent)
        need_positive(self, "", "read_seconds")
        need_no_negative(self, "", "rate", "drain_seconds")
        for origin in self.allowed_origins:
            if not origin.startswith(("http://", "https://")) or origin.count("/") != 2:
                raise UserError(f"allowed_origins={origin:.100} must be https://NAME or http://NAME:PORT, and no path")
        for host in self.allowed_hosts:
            if not host or any(sign in host for sign in "/: \t"):
                raise UserError(f"allowed_hosts={host:.100} must be a name such as models.example.org, without a port")


def named_models(words: Iterable[str]) -> dict[str, str]:
    """Return the places of models by the names under which they are served; MODEL or NAME=MODEL."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, place = word.partition("=")
        if not equals or "/" in name or os.path.exists(word):
            name, place = name_of(word), word
        if not name or not place:
            raise UserError(f"{word!r:.100} must be a model, or NAME=MODEL")
        if name in found:
            raise UserError(f"two models are called {name}; give each a name of its own, as NAME=MODEL")
        found[name] = place
    if not found:
        raise UserError("there are no models to serve; give at least one, as MODEL or NAME=MODEL")
    return found


def name_of(place: str) -> str:
    """Return the name of a model by its place: owner/name on the hub, or the last part of a path."""
    if place.startswith("hf://"):
        return place.removeprefix("hf://").partition("@")[0]
    return os.path.basename(os.path.normpath(os.path.abspath(place))) if "://" not in place else place.rstrip("/")
