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
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from bert_jax.config.finetuning import RESULTS
from bert_jax.config.options import from_dict
from bert_jax.config.serving import ServeConfig
from bert_jax.errors import UserError
from bert_jax.files import read_object
from bert_jax.pretrained.model import PretrainedModel
from bert_jax.tools.search.index import SearchIndex, read_index
from bert_jax.tools.serving.bodies import Limits, Refusal, read_aside
from bert_jax.tools.serving.demonstrations import (
    DEMONSTRATIONS,
    MOST_CHARACTERS,
    MOST_LINES,
    Demonstration,
    checked,
    described,
)
from bert_jax.tools.serving.engine import Engine
from bert_jax.tools.serving.security import need_json
from bert_jax.tools.study import MeasuredFigure

HERE = pathlib.Path(__file__).parent
PAGE = "playground.html"
FILES = {"playground.css": "text/css", "playground.js": "text/javascript"}
POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "connect-src": "'self'",
    "img-src": "data:",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'self' http://localhost:* http://127.0.0.1:*",  # notebooks of this machine
}
HEADERS = {"content-security-policy": "; ".join(f"{name} {value}" for name, value in POLICY.items())}
MOST_FIGURES = 2_000
"""Of a study, arms times measures."""
HITS = 10
MOST_SHOWN = 1_000
"""Characters of a document that was found."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """The documents of the index that are nearest to a query."""

    query: str


def playground_routes(engine: Engine, config: ServeConfig) -> list[Route]:
    """Return the routes of the page, / and /playground, and of what it asks, below /playground/.

    Args:
      engine: computes, with its models.
      config: its `study` and `index` are the directories whose contents the page shows; "" for none.

    Raises:
      UserError: a directory holds no results of a study or no index, or no model here made the index.
    """
    figures = study_figures(config.study) if config.study else None
    index = _opened_index(config.index, engine) if config.index else None

    async def page(_request: Request) -> Response:
        return FileResponse(HERE / PAGE, headers=HEADERS, media_type="text/html")

    async def about(_request: Request) -> Response:
        models = {name: described(model) for name, model in engine.models.items()}
        documents = None if index is None else len(index[1])
        found = {"ready": engine.ready, "warmed": engine.warmed, "models": models}
        return JSONResponse({**found, "study": figures, "index": documents})

    async def search(request: Request) -> Response:
        query = checked((await _asked(request, Search)).query, "query")
        if index is None:
            raise UserError("no index is served; give --index=DIR, a directory that `bert-jax index` wrote")
        name, documents = index
        hits = await engine.run(name, lambda _: documents.search(query, HITS))
        return JSONResponse(
            {"hits": [{"score": hit.score, "title": hit.title, "text": hit.text[:MOST_SHOWN]} for hit in hits]}
        )

    return [
        Route("/", page),
        Route("/playground", page),
        *(Route(f"/playground/{name}", _file(name, kind)) for name, kind in FILES.items()),
        Route("/playground/about", about),
        Route("/playground/search", search, methods=["POST"]),
        *(
            Route(f"/playground/ask/{name}", _answered(engine, kind), methods=["POST"])
            for name, kind in DEMONSTRATIONS.items()
        ),
    ]


Endpoint = Callable[[Request], Awaitable[Response]]


def _file(name: str, kind: str) -> Endpoint:
    async def file(_request: Request) -> Response:
        return FileResponse(HERE / name, media_type=kind)

    return file


def _answered(engine: Engine, kind: type[Demonstration]) -> Endpoint:
    """Return what answers a question of this kind by the model that the address names: /playground/ask/…?model=NAME."""

    async def answer(request: Request) -> Response:
        name = request.query_params.get("model", "")
        if name not in engine.models:
            known = ", ".join(engine.models)
            raise Refusal(404, f"no model is called {name:.100}; give ?model= with one of {known}", "model")
        question = await _asked(request, kind)
        return JSONResponse(await engine.run(name, question.answer))

    return answer


async def _asked(request: Request, kind: Any) -> Any:
    need_json(request.scope)
    return await read_aside(await request.body(), kind, Limits(MOST_CHARACTERS, MOST_LINES))


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
