"""Who may ask what: hosts, origins, tokens, rates and sizes of requests, and the headers that keep browsers safe.

A server on loopback is in reach of every page that a browser on the machine shows. A page can send requests to it, but
says its own origin; and a page whose name was made to mean 127.0.0.1 (DNS rebinding) says its own host.
"""

import asyncio
import base64
import binascii
import hashlib
import hmac
import ipaddress
import os
import re
import time
from collections import OrderedDict
from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope

from bert_jax.config.serving import ServeConfig, is_loopback
from bert_jax.errors import UserError
from bert_jax.files import read_contents
from bert_jax.tools.serving.bodies import Refusal
from bert_jax.tools.serving.service import Metrics, retry_after

VARIABLE = "BERT_JAX_TOKEN"
"""Environment variable with the token."""
FOR_PROBES = ("/health", "/ready")
"""Paths that need no token and have no rate, for what watches a server."""
CLIENTS = 10_000
"""Number of clients whose rates are remembered; a client that is forgotten may send a burst."""
HEADERS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""Headers of every answer, unless it has its own."""


def find_token(config: ServeConfig) -> bytes:
    """Return the token that clients must send; b"" if none.

    Raises:
      UserError: its file cannot be read, it is empty or has other characters than a header may have, or others can
        reach the server and there is none.
    """
    if config.token_file:
        token, place = read_contents(config.token_file, "write the token to it").strip(), config.token_file
    else:
        token, place = os.environ.get(VARIABLE, "").encode(), f"${VARIABLE}"
    if config.token_file and not token or not re.fullmatch(rb"[!-~]{0,4096}", token):
        raise UserError(f"{place} must have a token of 1 to 4096 characters of ASCII without spaces, on one line")
    if not token and not is_loopback(config.host) and not config.without_token:
        raise UserError(
            f"host={config.host}: other machines can reach it, so clients need a token; put one into a file and give "
            f"--token_file=FILE, or set {VARIABLE}, or say --without_token"
        )
    return token


def page_policy(html: str) -> str:
    """Return the Content-Security-Policy of a page of ours: only the scripts and styles that are in it, no network.

    The page may call the server that it came from.
    """
    sources = {}
    for kind in ("script", "style"):
        parts = re.findall(rf"<{kind}>(.*?)</{kind}>", html, re.DOTALL)
        hashes = [base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in parts]
        sources[kind] = " ".join(f"'sha256-{each}'" for each in hashes) or "'none'"
    return (
        f"default-src 'none'; script-src {sources['script']}; style-src {sources['style']}; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


class Doorkeeper:
    """Refuses requests before anything of their bodies is read.

    Args:
      config: what is allowed.
      token: what clients must send; b"" for nothing.
    """

    def __init__(self, config: ServeConfig, token: bytes):
        self._config, self._token = config, token
        self._names = {name.lower() for name in (*config.allowed_hosts, config.host, "localhost")}
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def check(self, scope: Scope) -> None:
        """Raise a Refusal unless the client may ask for what its header says."""
        headers = Headers(scope=scope)
        self._check_length(headers)
        self._check_host(headers)
        self._check_origin(scope, headers)
        if scope["path"] not in FOR_PROBES:
            self._check_rate(scope)
            if not (scope["method"] == "OPTIONS" and self.allows_origin(scope)):  # asked before what has the token
                self._check_token(headers)

    def allows_origin(self, scope: Scope) -> str:
        """Return the origin of a request if it is one of the allowed, which its answer must name; "" otherwise."""
        origin = Headers(scope=scope).get("origin", "")
        return origin if origin in self._config.allowed_origins else ""

    def _check_length(self, headers: Headers) -> None:
        """Refuse a body with two lengths, of which a proxy may have believed the other (request smuggling)."""
        if "transfer-encoding" in headers and "content-length" in headers:
            message = "the header has Content-Length and Transfer-Encoding; send one of them"
            raise Refusal(400, message, headers={"connection": "close"})

    def _check_host(self, headers: Headers) -> None:
        given = headers.getlist("host")
        name = _host_name(given[0]) if len(given) == 1 else None
        if name is None:
            raise Refusal(400, "the header Host must be there once, with a name or an address")
        if name not in self._names and not self._is_own_address(name):
            raise Refusal(421, f"no server for the host {name:.100} is here; --allowed_hosts lists more names")

    def _is_own_address(self, name: str) -> bool:
        """Return whether a host is an address that may be ours, not a name that anybody can make mean it."""
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not is_loopback(self._config.host)

    def _check_origin(self, scope: Scope, headers: Headers) -> None:
        origins = headers.getlist("origin")
        own = {f"{scheme}://{headers['host'].lower()}" for scheme in ("http", "https")}
        if any(each.lower() not in own and each not in self._config.allowed_origins for each in origins):
            raise Refusal(403, "pages of other origins may not ask this server; --allowed_origins lists those that may")
        is_link = scope["method"] == "GET" and headers.get("sec-fetch-mode") == "navigate"
        if not origins and headers.get("sec-fetch-site") in ("cross-site", "same-site") and not is_link:
            raise Refusal(403, "pages of other origins may not ask this server")

    def _check_token(self, headers: Headers) -> None:
        given = _given_token(headers.get("authorization", ""))
        # Of digests, which are as long as each other: of bytes, the time would show whether the lengths are equal.
        if self._token and not hmac.compare_digest(*(hashlib.sha256(each).digest() for each in (given, self._token))):
            challenge = "Bearer"
            if "text/html" in headers.get("accept", ""):  # a browser asks its user, and sends it with each request
                challenge += ', Basic realm="bert-jax: any name, and the token as password", charset="UTF-8"'
            message = "the token is missing or wrong; send Authorization: Bearer TOKEN"
            raise Refusal(401, message, headers={"www-authenticate": challenge})

    def _check_rate(self, scope: Scope) -> None:
        """Take a request out of the client's bucket, which `rate` fills again."""
        rate, burst, now = self._config.rate, self._config.burst, time.monotonic()
        if not rate:
            return
        client = _client(scope)
        left, since = self._buckets.pop(client, (float(burst), now))
        left = min(burst, left + (now - since) * rate)
        self._buckets[client] = (left - 1 if left >= 1 else left, now)
        if len(self._buckets) > CLIENTS:
            self._buckets.popitem(last=False)
        if left < 1:
            message = f"more than {rate:g} requests in a second; come again later"
            raise Refusal(429, message, headers=retry_after((1 - left) / rate))


def _host_name(host: str) -> str | None:
    """Return the name or address of a Host header without its port; None if it is none."""
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?", host)
    return found[1].strip("[]").lower().removesuffix(".") if found else None


def _given_token(authorization: str) -> bytes:
    """Return the token of Authorization: Bearer TOKEN, or the password of Basic, which browsers ask for."""
    scheme, _, value = authorization.strip().partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode("utf-8", "surrogateescape")
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value.strip(), validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return b""
    return b""


def _client(scope: Scope) -> str:
    """Return the address of a client; of IPv6 its network, of which a machine has all addresses."""
    address = scope["client"][0] if scope.get("client") else ""
    return ":".join(address.split(":")[:4]) if ":" in address else address


def need_json(scope: Scope) -> None:
    """Raise a Refusal unless a request says that its body is JSON, as no form of another page can."""
    headers = Headers(scope=scope)
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" or headers.get("content-encoding", "identity") != "identity":
        raise Refusal(415, "the body must be JSON, with Content-Type: application/json and no Content-Encoding")


class Intake:
    """The body of a request, whose bytes are counted as they arrive, and whose arrival is timed.

    As a context, it gives the bytes back to `metrics.body_bytes` when the request is answered; as a function, it is
    the `receive` of ASGI, which raises a Refusal: 413 for more bytes than are read, 429 for too many of all requests,
    408 for a body that takes too long.
    """

    def __init__(self, scope: Scope, receive: Receive, config: ServeConfig, metrics: Metrics):
        self._receive, self._config, self._metrics = receive, config, metrics
        self._length: str = Headers(scope=scope).get("content-length", "0")
        self._end: float = time.monotonic() + config.read_seconds
        self._bytes, self._complete = 0, False

    def __enter__(self) -> "Intake":
        return self

    def __exit__(self, *_: object) -> None:
        self._metrics.body_bytes -= self._bytes

    async def __call__(self) -> Message:
        if self._complete:
            return await self._receive()  # that the client is gone
        most = self._config.max_body
        if len(self._length) > 15 or self._length.isdigit() and int(self._length) > most:
            raise Refusal(413, f"the body has more than {most} bytes")
        try:
            async with asyncio.timeout(max(0.0, self._end - time.monotonic())):
                message = await self._receive()
        except TimeoutError:
            text = f"the body did not arrive within {self._config.read_seconds:g} s"
            raise Refusal(408, text, headers={"connection": "close"}) from None
        count = len(message.get("body", b""))
        if self._bytes + count > most:
            raise Refusal(413, f"the body has more than {most} bytes")
        if self._metrics.body_bytes + count > self._config.max_bodies:
            raise Refusal(429, "too many requests are being read; come again later", headers=retry_after(1))
        self._bytes += count
        self._metrics.body_bytes += count
        self._complete = not message.get("more_body", False)
        return message


def cors(origin: str, method: str) -> Mapping[str, str]:
    """Return the headers that let a page of an allowed origin read an answer; more for the question before it."""
    if not origin:
        return {}
    found = {"access-control-allow-origin": origin, "vary": "Origin", "cross-origin-resource-policy": "cross-origin"}
    if method == "OPTIONS":
        found |= {
            "access-control-allow-methods": "GET, POST",
            "access-control-allow-headers": "authorization, content-type",
            "access-control-max-age": "600",
        }
    return found
