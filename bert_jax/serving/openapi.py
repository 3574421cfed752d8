"""The description of the routes: /openapi.json, made of what checks the bodies, and /docs, the same as a page."""

import html
import inspect
import json
import typing
from collections.abc import Sequence
from typing import Any

from bert_jax import __version__
from bert_jax.serving.bodies import schema, spelled
from bert_jax.serving.openai import PREFIX
from bert_jax.serving.service import Route

STATUSES = {
    "400": "The body is not JSON, or the model cannot answer this.",
    "401": "The token is missing or wrong.",
    "403": "The request comes from a page of another origin.",
    "404": "There is no such model, or none that can answer this.",
    "408": "The body did not arrive in time.",
    "413": "The request is too large: bytes, texts, characters or tokens.",
    "415": "The body is not said to be JSON.",
    "421": "The host is not one of the allowed.",
    "422": "The body has an unknown field, lacks one, or has a value that cannot be read. OpenAI's routes say 400.",
    "429": "Too much is waiting, or the client has sent too much. Retry-After says when to come again.",
    "500": "The computation failed.",
    "503": "The server is about to end, or not ready.",
    "504": "The answer was not computed before the deadline.",
}
"""What each status means."""
PAGES = {
    "/health": "Whether the process is alive: 200.",
    "/ready": "Whether new questions are answered: 200, or 503 while programs are compiled and while the server ends.",
    "/metrics": "Counts in the form of Prometheus.",
    "/models": "The served models: what they answer, their labels and sizes.",
    "/v1/models": "The served models, in OpenAI's form.",
    "/info": "The first model and the limits, in the form of text-embeddings-inference.",
    "/openapi.json": "This description.",
    "/docs": "This description as a page.",
}
"""What is asked by GET, and what it answers."""


def described(routes: Sequence[Route]) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of these routes."""
    components: dict[str, Any] = {
        "Error": {
            "type": "object",
            "properties": {"error": {"type": "string"}, "error_type": {"type": "string"}},
            "required": ["error", "error_type"],
        },
        "OpenAIError": {"type": "object", "properties": {"error": {"type": "object"}}, "required": ["error"]},
    }
    paths: dict[str, Any] = {path: {"get": _page(path, meaning)} for path, meaning in PAGES.items()}
    for route in routes:
        paths[route.path] = {"post": _operation(route, components)}
    bearer = {"bearer": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "bert-jax serve", "version": __version__},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": bearer},
        "security": [{"bearer": []}, {}],
    }


def _page(path: str, meaning: str) -> dict[str, Any]:
    return {"summary": meaning, "operationId": path.strip("/"), "responses": {"200": {"description": meaning}}}


def _operation(route: Route, components: dict[str, Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(route.answer, include_extras=True)
    error = "OpenAIError" if route.path.startswith(PREFIX) else "Error"
    failed = {"content": _json({"$ref": f"#/components/schemas/{error}"})}
    answers = {"200": {"description": "The answer.", "content": _json(schema(hints["return"], components))}}
    return {
        "summary": " ".join(inspect.cleandoc(route.answer.__doc__ or "").split()),
        "description": f"Needs {route.needs}.",
        "operationId": route.path.strip("/"),
        "requestBody": {"required": True, "content": _json(schema(hints["body"], components))},
        "responses": answers | {status: {"description": why} | failed for status, why in STATUSES.items()},
    }


def _json(described_by: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": described_by}}


STYLE = """
:root { color-scheme: light dark; } body { font: 16px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 60em;
padding: 0 1.5em; } code { font: .9em/1.4 ui-monospace, monospace; overflow-wrap: anywhere; }
table { border-collapse: collapse; } td, th { text-align: left; vertical-align: top; padding: .2em 1em .2em 0; }
section { border-top: 1px solid #8886; margin-top: 1.5em; } h2 { font-size: 1.15em; }
"""


def page(document: dict[str, Any]) -> str:
    """Return the description as one page of HTML, without scripts."""
    parts = ["<h1>bert-jax serve</h1>", "<p>The same for programs: <a href='/openapi.json'>openapi.json</a>.</p>"]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts.append(f"<section><h2><code>{method.upper()} {_text(path)}</code></h2>")
            parts.append(f"<p>{_text(operation['summary'])} {_text(operation.get('description', ''))}</p>")
            if "requestBody" in operation:
                parts.append(_body(operation, document["components"]["schemas"]))
            parts.append("</section>")
    parts.append("<section><h2>Statuses</h2>" + _table(("status", "meaning"), [*STATUSES.items()]) + "</section>")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>bert-jax serve</title>'
        f"<style>{STYLE}</style></head><body><main>{''.join(parts)}</main></body></html>\n"
    )


def _body(operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    of = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    rows = [
        (name, spelled(each), each.get("description", ""), json.dumps(each["default"]) if "default" in each else "")
        for name, each in schemas[of]["properties"].items()
    ]
    answer = operation["responses"]["200"]["content"]["application/json"]["schema"]
    fields = _table(("field", "type", "meaning", "default"), rows)
    return f"{fields}<p>Answer: <code>{_text(spelled(answer))}</code></p>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = "".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{''.join(f'<th>{name}</th>' for name in head)}</tr>{cells}</table>"


def _text(text: str) -> str:
    return html.escape(text)
