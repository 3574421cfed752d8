"""The web application of `bert-jax serve`: from a request to a question of the engine, and from its answer to JSON."""

import asyncio
import dataclasses
import functools
import json
import sys
import time
import typing
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import numpy as np
from absl import logging
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route as Path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bert_jax import __version__
from bert_jax.config.serving import ServeConfig
from bert_jax.tools.serving import native, openai
from bert_jax.tools.serving.bodies import Limits, Refusal, read_aside
from bert_jax.tools.serving.engine import Engine
from bert_jax.tools.serving.openapi import described, page
from bert_jax.tools.serving.questions import longest_text
from bert_jax.tools.serving.security import HEADERS, Doorkeeper, Intake, cors, need_json, page_policy
from bert_jax.tools.serving.service import Route, Service, refusal_of

SLICE = 0.005
"""Seconds for which an answer is written as JSON before other requests have their turn."""


def make_app(engine: Engine, config: ServeConfig, token: bytes = b"") -> Starlette:
    """Return the application; `app.state.service` is what its routes share.

    Args:
      engine: answers; it is started and drained by whoever made it.
      config: limits and what is allowed.
      token: what clients must send; b"" for nothing.
    """
    routes = (*native.ROUTES, *openai.ROUTES)
    service = Service(engine, config, routes)
    document = described(routes)
    pages = [*_about(service), *_documentation(document, at_root=not config.playground)]
    if config.playground:
        from bert_jax.tools.serving.playground import playground_routes

        pages += playground_routes(engine, config)
    posted = [Path(route.path, _endpoint(service, route), methods=["POST"]) for route in routes]
    app = Starlette(routes=[*posted, *pages], exception_handlers={HTTPException: _refuse_unknown})
    app.router.redirect_slashes = False
    app.state.service = service
    app.add_middleware(Guard, service=service, doorkeeper=Doorkeeper(config, token), paths=frozenset(_paths(app)))
    return app


def _paths(app: Starlette) -> Iterator[str]:
    for route in app.routes:
        yield getattr(route, "path", "")


def _endpoint(service: Service, route: Route) -> Callable[[Request], Awaitable[Response]]:
    kind = typing.get_type_hints(route.answer)["body"]

    async def endpoint(request: Request) -> Response:
        return await _answer(service, route, kind, request)

    return endpoint


async def _answer(service: Service, route: Route, kind: Any, request: Request) -> Response:
    """Read the body of a request, ask, and return the answer; the question is dropped when the client goes away."""
    need_json(request.scope)
    asked = await read_aside(
        await request.body(), kind, Limits(service.config.max_characters, service.config.max_inputs)
    )
    name = service.choose(route, asked.model)
    answering = asyncio.ensure_future(route.answer(service, name, asked))
    gone = asyncio.ensure_future(_disconnected(request.receive))
    try:
        await asyncio.wait((answering, gone), return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            raise ClientDisconnect
        return Response(await _written(await answering, service.config.max_answer), media_type="application/json")
    finally:
        answering.cancel()
        gone.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _written(value: Any, most: int) -> bytes:
    """Return `value` as JSON; other requests have their turns while a long list is written.

    Raises:
      Refusal: it has more than `most` bytes, or a number in it is NaN or infinite.
    """
    parts, size, since = [], 0, time.monotonic()
    try:
        for part in _parts(value):
            parts.append(part.encode())
            size += len(parts[-1])
            if size > most:
                raise Refusal(413, f"the answer has more than {most} bytes; ask in parts, or for less")
            if time.monotonic() - since > SLICE:
                await asyncio.sleep(0)
                since = time.monotonic()
    except ValueError:
        raise Refusal(500, "the model's answer has a number that is not finite, so its weights are damaged") from None
    return b"".join(parts)


def _parts(value: Any) -> Iterator[str]:
    """Yield the JSON of a value, a list item by item."""
    value = _plain(value)
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield "[" if number == 0 else ","
            yield _dumps(item)
        yield "]" if value else "[]"
    elif isinstance(value, dict):
        for number, (name, each) in enumerate(value.items()):
            yield "{" if number == 0 else ","
            yield f"{_dumps(name)}:"
            yield from _parts(each)
        yield "}" if value else "{}"
    else:
        yield _dumps(value)


def _plain(value: Any) -> Any:
    """Return a dataclass as a dict, without what is None by default, and an array as a list; parts stay as they are."""
    if dataclasses.is_dataclass(value):
        fields = [(field, getattr(value, field.name)) for field in dataclasses.fields(value)]
        return {field.name: each for field, each in fields if each is not None or field.default is not None}
    if isinstance(value, np.ndarray) and value.ndim > 1:
        return list(value)
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


_dumps = functools.partial(json.dumps, allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=_plain)


def _about(service: Service) -> list[Path]:
    """Return the routes that say how the server is."""
    since = int(time.time())

    async def health(_request: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def ready(_request: Request) -> Response:
        if not service.engine.ready:
            raise Refusal(503, "the server is about to end" if service.engine.draining else service.warming)
        done, shapes = service.engine.warmed
        return JSONResponse({"status": "ready", "compiled": done, "of": shapes})

    async def metrics(_request: Request) -> Response:
        return Response(service.metrics.text(), media_type=service.metrics.content_type)

    async def models(_request: Request) -> Response:
        return JSONResponse([_model(service, name) for name in service.engine.models])

    async def openai_models(_request: Request) -> Response:
        return JSONResponse(openai.list_models(service, since))

    async def info(_request: Request) -> Response:
        return JSONResponse(_info(service))

    pages = {"/health": health, "/ready": ready, "/metrics": metrics, "/models": models, "/info": info}
    return [Path(path, page) for path, page in {**pages, "/v1/models": openai_models}.items()]


def _model(service: Service, name: str) -> dict[str, Any]:
    model = service.engine.models[name]
    head = model.head
    return {
        "name": name,
        "answers": service.served(name),
        "head": None if head is None else head.kind,
        "labels": [] if head is None else list(head.labels),
        "vectors": model.vector_form if head is None else None,
        "hidden_size": model.config.hidden_size,
        "layers": model.config.num_layers,
        "max_tokens": longest_text(model),
        "vocabulary": model.need_tokenizer().vocab_size,
    }


def _info(service: Service) -> dict[str, Any]:
    """Return what text-embeddings-inference says of the model that it serves: here of the first."""
    name, model = next(iter(service.engine.models.items()))
    kind: dict[str, Any] = {"embedding": {"pooling": model.embedding.pooling}}
    if model.head is not None:
        labels = dict(enumerate(model.head.labels or ("LABEL_0",)))
        ids = {"id2label": labels, "label2id": {label: number for number, label in labels.items()}}
        kind = {"reranker" if model.head.kind == "regression" else "classifier": ids}
    return {
        "model_id": name,
        "model_sha": None,
        "model_dtype": "float32",
        "model_type": kind,
        "max_concurrent_requests": service.engine.options.max_requests,
        "max_input_length": longest_text(model),
        "max_batch_tokens": service.engine.options.positions,
        "max_batch_requests": None,
        "max_client_batch_size": service.config.max_inputs,
        "auto_truncate": True,
        "tokenization_workers": service.engine.options.threads,
        "version": __version__,
    }


def _documentation(document: dict[str, Any], at_root: bool) -> list[Path]:
    text = page(document)
    policy = {"content-security-policy": page_policy(text)}

    async def docs(_request: Request) -> Response:
        return HTMLResponse(text, headers=policy)

    async def openapi(_request: Request) -> Response:
        return JSONResponse(document)

    return [Path("/docs", docs), Path("/openapi.json", openapi), *([Path("/", docs)] if at_root else [])]


async def _refuse_unknown(request: Request, error: Exception) -> Response:
    """Answer what has no route, or not by this method."""
    assert isinstance(error, HTTPException)
    path, status = request.url.path, error.status_code
    methods = (error.headers or {}).get("Allow", "another method")
    message = {
        404: f"there is nothing at {path:.100}; /docs lists what is",
        405: f"{path:.100} is asked by {methods}, not by {request.method:.20}",
    }.get(status, error.detail)
    return refused(path, Refusal(status, message, headers=error.headers))


def refused(path: str, refusal: Refusal) -> Response:
    """Return the answer to a request that is refused, in the form of OpenAI or of text-embeddings-inference."""
    if path.startswith(openai.PREFIX):
        status, value = openai.error_object(refusal)
        return JSONResponse(value, status, refusal.headers)
    kinds = {429: "Overloaded", 500: "Backend", 503: "Unhealthy", 504: "Backend"}
    value = {"error": refusal.message, "error_type": kinds.get(refusal.status, "Validation")}
    return JSONResponse(value, refusal.status, refusal.headers)


class Guard:
    """Lets in whom the doorkeeper lets in, makes answers of refusals and failures, adds headers, counts and logs.

    Args:
      app: the application.
      service: its counts and options.
      doorkeeper: looks at the header of each request.
      paths: those that are counted by name.
    """

    def __init__(self, app: ASGIApp, service: Service, doorkeeper: Doorkeeper, paths: frozenset[str]):
        self._app, self._service, self._doorkeeper, self._paths = app, service, doorkeeper, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        began, status, extra = time.monotonic(), 0, cors(self._doorkeeper.allows_origin(scope), scope["method"])

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = {name.lower() for name, _ in message.get("headers", ())}
                added = {**HEADERS, **extra}.items()
                pairs = [(name.encode(), value.encode()) for name, value in added if name.encode() not in own]
                message = {**message, "headers": [*message.get("headers", ()), *pairs]}
            await send(message)

        try:
            with Intake(scope, receive, self._service.config, self._service.metrics) as intake:
                await self._handle(scope, intake, sending)
        except ClientDisconnect:
            status = 499  # as nginx logs it: nobody is there to be answered
        except Exception as error:
            refusal = refusal_of(error)
            if refusal is None:
                logging.exception("a request to %s failed", self._route(scope))
                refusal = Refusal(500, "the server failed; its log says why")
            if status:  # half of an answer is sent: all that is left is to close the connection
                raise
            await refused(scope["path"], refusal)(scope, receive, sending)
        finally:
            self._record(scope, status, time.monotonic() - began)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._doorkeeper.check(scope)
        if scope["method"] == "OPTIONS" and self._doorkeeper.allows_origin(scope):
            await Response(status_code=204)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _route(self, scope: Scope) -> str:
        path = scope["path"]
        return path if path in self._paths else "other"

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        route, metrics = self._route(scope), self._service.metrics
        metrics.requests.labels(route, str(status)).inc()
        metrics.seconds.labels(route).observe(seconds)
        if self._service.config.access_log:
            client = scope["client"][0] if scope.get("client") else "-"
            method = scope["method"] if scope["method"] in ("GET", "POST", "HEAD", "OPTIONS") else "other"
            print(f"{client} {method} {route} {status} {seconds:.3f} s", file=sys.stderr, flush=True)
