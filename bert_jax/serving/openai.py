"""OpenAI's /v1/embeddings and /v1/models, for clients that are written for them."""

import base64
import dataclasses
from typing import Annotated, Any, Literal

import numpy as np

from bert_jax.serving import service as of
from bert_jax.serving.bodies import Refusal
from bert_jax.serving.native import EmbedBody, vectors_of
from bert_jax.serving.service import Route, Service

PREFIX = "/v1/"
"""Beginning of the paths whose errors are objects of OpenAI."""


@dataclasses.dataclass(frozen=True)
class EmbeddingsBody:
    """Texts to be turned into vectors, as OpenAI's clients send them."""

    input: Annotated[str | list[str] | list[int] | list[list[int]], "Texts, or ids of tokens of this model."]
    model: Annotated[str | None, "Name of the model; null: the first that has vectors."] = None
    encoding_format: Annotated[Literal["float", "base64"], "base64: the bytes of a vector, float32, little-endian."] = (
        "float"
    )
    dimensions: Annotated[int | None, "Number of the first values to keep (Matryoshka); vectors keep length 1."] = None
    user: Annotated[str | None, "Ignored."] = None


@dataclasses.dataclass(frozen=True)
class Embedding:
    """A vector."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


@dataclasses.dataclass(frozen=True)
class Usage:
    """Numbers of tokens."""

    prompt_tokens: int
    total_tokens: int


@dataclasses.dataclass(frozen=True)
class Embeddings:
    """Vectors, in the order of the texts."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage


async def embeddings(service: Service, name: str, body: EmbeddingsBody) -> Embeddings:
    """A vector of length 1 for each text."""
    if service.engine.models[name].vector_form != "single":
        raise Refusal(400, f"{name} has several vectors, or weights, for each text; /embed returns them", "model")
    if isinstance(body.input, list) and not body.input:
        raise Refusal(400, "input is empty; give at least one text", "input")
    vectors, sizes = await vectors_of(service, name, EmbedBody(body.input, dimensions=body.dimensions))
    coded: list[Any] = [*vectors]
    if body.encoding_format == "base64":
        coded = [base64.b64encode(np.asarray(row, "<f4").tobytes()).decode() for row in vectors]
    data = [Embedding("embedding", number, each) for number, each in enumerate(coded)]
    return Embeddings("list", data, name, Usage(sum(sizes), sum(sizes)))


def list_models(service: Service, since: int) -> dict[str, Any]:
    """Return the served models, in OpenAI's form; `since` is when the server was started, in seconds."""
    same = {"object": "model", "created": since, "owned_by": "bert_jax"}
    return {"object": "list", "data": [{"id": name, **same} for name in service.engine.models]}


def error_object(refusal: Refusal) -> tuple[int, dict[str, Any]]:
    """Return a refusal as OpenAI's clients expect it: its status, and the object of the error."""
    kinds = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    codes = {401: "invalid_api_key", 429: "rate_limit_exceeded"}
    status = 400 if refusal.status == 422 else refusal.status
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
    code = "model_not_found" if status == 404 and refusal.field == "model" else codes.get(status)
    return status, {"error": {"message": refusal.message, "type": kind, "param": refusal.field or None, "code": code}}


ROUTES = (Route("/v1/embeddings", embeddings, of.embeds, "vectors, which a model with a task's head has none of"),)
"""What OpenAI's clients ask by POST."""
