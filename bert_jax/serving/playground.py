"""The page on which a loaded model shows what it does, and the questions that the page asks.

The page is three files, which load nothing from elsewhere: playground.html, playground.css and playground.js. It sends
each question of demonstrations.py as JSON to /playground/ask/NAME and draws the answer. What a person, a study or an
index contributes reaches the page as JSON and is written there as text; the policy in the header lets no other script
run, so a text with markup in it is shown, not obeyed. Every question is computed in its turn on the engine's thread.
"""

import dataclasses
import os
import pathlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from bert_jax.config.finetuning import RESULTS
from bert_jax.config.options import from_dict

from bert_jax.errors import UserError
from bert_jax.files import parse_object, read_object
from bert_jax.pretrained.model import PretrainedModel
from bert_jax.serving.demonstrations import QUESTIONS, checked, described
from bert_jax.serving.engine import Engine
from bert_jax.tools.search.index import SearchIndex, read_index
from bert_jax.tools.study import MeasuredFigure

if TYPE_CHECKING:
    from bert_jax.config.serving import ServeConfig
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

HERE = pathlib.Path(__file__).parent
PAGE = "playground.html"
FILES = {"playground.css": "text/css", "playground.js": "text/javascript"}
POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "connect-src": "'self'",
    "img-src": "'self' data:",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'self' http://localhost:* http://127.0.0.1:*",  # notebooks of this machine
}
HEADERS = {
    "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in POLICY.items()),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
MOST_BYTES = 65_536
"""Of a question as JSON."""
MOST_FIGURES = 2_000
"""Of a study, arms times measures."""
HITS = 10

Ask = Callable[["Request"], Awaitable[Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """The documents of the index that are nearest to a query."""

    query: str


def playground_routes(engine: Engine, config: "ServeConfig") -> "list[Route]":
    """Return the routes of the page, / and /playground, and of what it asks, below /playground/.

    Args:
      engine: computes, with its models.
      config: its `study` and `index` are the directories whose contents the page shows; "" for none.

    Raises:
      UserError: a directory holds no results of a study or no index, or no model here made the index.
    """
    from starlette.responses import FileResponse
    from starlette.routing import Route

    figures = study_figures(config.study) if config.study else None
    index = _opened_index(config.index, engine) if config.index else None

    async def page(request: "Request") -> "Response":
        del request
        return FileResponse(HERE / PAGE, headers=HEADERS, media_type="text/html")

    async def file(request: "Request") -> "Response":
        name = request.url.path.rpartition("/")[2]
        return FileResponse(HERE / name, headers=HEADERS, media_type=FILES[name])

    async def about(request: "Request") -> Any:
        del request
        models = {name: described(model) for name, model in engine.models.items()}
        return {"models": models, "study": figures, "index": None if index is None else len(index[1])}

    async def ask(request: "Request") -> Any:
        values = await _sent(request)
        name, kind = values.pop("model", None), QUESTIONS[request.url.path.rpartition("/")[2]]
        if name not in engine.models:
            raise UserError(f"model={name!r:.60} is not served here; give one of {', '.join(engine.models)}")
        return await engine.run(name, from_dict(kind, values).answer)

    async def search(request: "Request") -> Any:
        query = checked(from_dict(Search, await _sent(request)).query, "query")
        if index is None:
            raise UserError("no index is served; give --index=DIR, a directory that `bert-jax index` wrote")
        name, documents = index
        hits = await engine.run(name, lambda _: documents.search(query, HITS))
        return {"hits": [{"score": hit.score, "title": hit.title, "text": hit.text[:1000]} for hit in hits]}

    return [
        Route("/", page),
        Route("/playground", page),
        *(Route(f"/playground/{name}", file) for name in FILES),
        Route("/playground/about", _answered(about)),
        Route("/playground/search", _answered(search), methods=["POST"]),
        *(Route(f"/playground/ask/{name}", _answered(ask), methods=["POST"]) for name in QUESTIONS),
    ]


def _answered(ask: Ask) -> Callable[["Request"], Awaitable["Response"]]:
    """Return an endpoint that sends what `ask` returns as JSON, and what people can mend with status 400."""
    from starlette.responses import JSONResponse

    async def endpoint(request: "Request") -> "Response":
        try:
            return JSONResponse(await ask(request), headers=HEADERS)
        except UserError as error:
            return JSONResponse({"error": str(error)}, status_code=400, headers=HEADERS)

    return endpoint


async def _sent(request: "Request") -> dict[str, Any]:
    """Return the JSON object of a request; raise a UserError if it is none, or too long."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise UserError(f"the question has more than {MOST_BYTES:,} bytes; shorten its texts")
    try:
        return parse_object(body)
    except ValueError as error:
        raise UserError(f"the question {error}") from None


def _opened_index(path: str, engine: Engine) -> tuple[str, SearchIndex]:
    """Return an index, and the name of the model that made it."""
    made_by = read_index(pathlib.Path(path).expanduser()).fingerprint
    models: list[tuple[str, PretrainedModel]] = [(n, m) for n, m in engine.models.items() if m.tokenizer is not None]
    for name, model in models:
        if model.fingerprint == made_by:
            return name, SearchIndex(path, model=model)
    raise UserError(f"index={path}: none of the models here made it; serve the one that did, or make the index again")


def study_figures(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what the page shows of the results of a study: arms, and means over seeds for each measure.

    Raises:
      UserError: there is no results.json in the directory, or `bert-jax study` did not write it.
    """
    file = pathlib.Path(path).expanduser() / RESULTS
    values = read_object(file, "give the directory of a study, and run bert-jax study first")
    try:
        arms = [{"name": str(arm["name"]), "title": str(arm["title"])} for arm in values["arms"]]
        measures = [
            {"heading": str(each["heading"]), "arms": {str(name): _figure(f) for name, f in each["arms"].items()}}
            for each in values["measures"]
        ]
        figures = {"title": str(values["title"]), "question": str(values["question"]), "arms": arms}
    except (AttributeError, KeyError, TypeError, UserError):
        raise UserError(f"{file} is not what bert-jax study writes; run the study again with --render") from None
    if len(arms) * len(measures) > MOST_FIGURES:
        raise UserError(f"{file} has {len(arms) * len(measures):,} figures; the page shows {MOST_FIGURES:,} at most")
    return {**figures, "measures": measures}


def _figure(values: dict[str, Any]) -> dict[str, Any]:
    figure: MeasuredFigure = from_dict(MeasuredFigure, values, complete=True)
    return {"mean": figure.mean, "deviation": figure.deviation, "values": figure.values, "apart": figure.told_apart}
