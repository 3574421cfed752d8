"""What routes have in common: which model answers, what an engine's errors are in HTTP, how much a request may ask, and
what is counted, in the form of Prometheus."""

import dataclasses
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from bert_jax.config.serving import ServeConfig
from bert_jax.errors import UserError
from bert_jax.pretrained.model import PretrainedModel
from bert_jax.tokenization.tokenizer import tokenize
from bert_jax.tools.serving.bodies import Refusal
from bert_jax.tools.serving.engine import Draining, Engine, Failed, Late, Overloaded, TooLarge
from bert_jax.tools.serving.questions import Question

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
"""Bounds of the histogram of latencies."""


@dataclasses.dataclass(frozen=True)
class Route:
    """A question that is asked by POST, with a JSON body."""

    path: str
    answer: "Callable[[Service, str, Any], Awaitable[Any]]"
    """Answers the body of a request with the model of this name. The types of its parameter `body` and of what it
    returns are those of /openapi.json, and its docstring the description there."""
    able: Callable[[PretrainedModel], bool]
    """Whether a model has what it needs."""
    needs: str
    """What that is, in words."""


def fills_masks(model: PretrainedModel) -> bool:
    """Return whether a model predicts masked words."""
    return model.network.fills_masks and model.head is None and not model.config.two_directions


def classifies(model: PretrainedModel) -> bool:
    return model.head is not None and model.head.kind in ("classification", "multilabel")


def predicts(model: PretrainedModel) -> bool:
    return classifies(model) or model.head is not None and model.head.kind == "regression"


def tags(model: PretrainedModel) -> bool:
    return model.head is not None and model.head.kind == "tagging"


def answers(model: PretrainedModel) -> bool:
    return model.head is not None and model.head.kind in ("span", "choice")


def embeds(model: PretrainedModel) -> bool:
    return model.head is None


def embeds_words(model: PretrainedModel) -> bool:
    return model.head is None and model.vector_form == "words"


def ranks(model: PretrainedModel) -> bool:
    """Return whether a model compares a query with documents: by vectors, a number, or the probability of class 1."""
    head = model.head
    return head is None or head.kind == "regression" or head.kind == "classification" and "1" in head.labels


def scores(model: PretrainedModel) -> bool:
    return model.head is None or model.head.kind == "regression"


def reads(_model: PretrainedModel) -> bool:
    """Return that any model has a tokenizer, as all that are served do."""
    return True


@dataclasses.dataclass(frozen=True)
class Counted:
    """A question about texts, and the number of tokens that the model reads of each; its answer has both.

    Args:
      question: the question.
      counted: its texts or pairs, prompts included.
      limit: tokens of which the model reads no more.
      truncate: whether longer texts are cut; False: they are an error.
    """

    question: Question
    counted: Sequence[Any]
    limit: int
    truncate: bool

    def texts(self) -> Sequence[Any]:
        return self.question.texts()

    def answer(self, model: PretrainedModel) -> tuple[Any, list[int]]:
        rows = tokenize(model.need_tokenizer(), list(self.counted), None, masks=True)
        sizes = [len(ids) for ids, _ in rows]
        if not self.truncate and max(sizes) > self.limit:
            number = sizes.index(max(sizes))
            raise TooLarge(
                f"input {number} has {sizes[number]} tokens with its [CLS] and [SEP], the model reads {self.limit}: "
                "shorten it, or let truncate=true cut it"
            )
        return self.question.answer(model), [min(size, self.limit) for size in sizes]


class Metrics:
    """Counts of one server; several in a process have one each.

    Args:
      engine: what computes, whose counts are read when they are asked for.
    """

    content_type: str = CONTENT_TYPE_LATEST

    def __init__(self, engine: Engine):
        self._registry: CollectorRegistry = CollectorRegistry()
        self.requests: Counter = Counter(
            "bert_jax_requests", "Requests by route and status.", ["route", "status"], registry=self._registry
        )
        self.seconds: Histogram = Histogram(
            "bert_jax_request_seconds",
            "Seconds from the header of a request to the end of its answer.",
            ["route"],
            buckets=SECONDS,
            registry=self._registry,
        )
        self.body_bytes: int = 0
        """Bytes of the bodies that are being read or answered."""
        Gauge(
            "bert_jax_body_bytes", "Bytes of bodies that are being read or answered.", registry=self._registry
        ).set_function(lambda: self.body_bytes)
        self._registry.register(_OfEngine(engine))

    def text(self) -> bytes:
        """Return all counts."""
        return generate_latest(self._registry)


class _OfEngine(Collector):
    """The counts of an engine, as a collector of prometheus_client."""

    def __init__(self, engine: Engine):
        self._engine = engine

    def collect(self) -> Iterable[Metric]:
        seen = self._engine.observed()
        counts = {
            "batches": ("Batches that were computed.", seen.batches),
            "rows": ("Rows of these batches.", seen.rows),
            "texts": ("Texts that were computed.", seen.texts),
            "tokens": ("Tokens of texts that were computed.", seen.tokens),
            "positions": ("Positions that were computed, padding included.", seen.positions),
            "compute_seconds": ("Seconds of computing.", seen.seconds),
            "overloaded": ("Requests that were refused since the queue was full.", seen.overloaded),
            "late": ("Requests that were dropped at their deadline.", seen.late),
            "cancelled": ("Requests whose client went away.", seen.cancelled),
            "cut": ("Texts that were longer than a model reads.", seen.cut),
            "failed": ("Requests whose computation failed.", seen.failed),
            "compiled": ("Programs that were compiled.", seen.compiled),
        }
        for name, (meaning, value) in counts.items():
            yield CounterMetricFamily(f"bert_jax_{name}", meaning, value=value)
        padding = 1 - seen.tokens / seen.positions if seen.positions else 0.0
        yield GaugeMetricFamily("bert_jax_padding_share", "Share of padding in all positions.", value=padding)
        yield GaugeMetricFamily("bert_jax_waiting", "Requests in the queue.", value=self._engine.waiting)
        yield GaugeMetricFamily("bert_jax_ready", "1 if new requests are answered.", value=int(self._engine.ready))


class Service:
    """The engine as the routes see it.

    Args:
      engine: answers the questions.
      config: limits.
      routes: all that are asked by POST.
    """

    def __init__(self, engine: Engine, config: ServeConfig, routes: Sequence[Route]):
        self.engine, self.config, self.routes = engine, config, tuple(routes)
        self.metrics: Metrics = Metrics(engine)

    @property
    def warming(self) -> str:
        """How far the start is, in words."""
        done, shapes = self.engine.warmed
        return f"the models are not ready yet: {done} of {shapes} shapes of batches are compiled"

    def served(self, name: str) -> list[str]:
        """Return the routes that a model answers."""
        return [route.path for route in self.routes if route.able(self.engine.models[name])]

    def choose(self, route: Route, name: str | None) -> str:
        """Return the name of the model that answers: the given one, or the first that can.

        Raises:
          Refusal: 404 if there is none, 400 if the given one cannot.
        """
        models = self.engine.models
        if name is None:
            able = [each for each, model in models.items() if route.able(model)]
            if not able:
                raise Refusal(404, f"{route.path} needs {route.needs}, which no served model has; {self._overview()}")
            return able[0]
        if name not in models:
            raise Refusal(404, f"no model is called {name:.100}; {self._overview()}", "model")
        if not route.able(models[name]):
            raise Refusal(400, f"{route.path} needs {route.needs}; {self._of(name)}", "model")
        return name

    def _overview(self) -> str:
        return "; ".join(map(self._of, self.engine.models))

    def _of(self, name: str) -> str:
        return f"{name} answers {', '.join(self.served(name))}"

    def several(self, inputs: Sequence[Any], field: str) -> None:
        """Raise a Refusal unless there is an input, and not more than a request may have."""
        if not inputs:
            raise Refusal(422, f"{field} is empty; give at least one", field)
        if len(inputs) > self.config.max_inputs:
            most = self.config.max_inputs
            raise Refusal(413, f"{field} has {len(inputs)} entries, and at most {most} are answered at once", field)

    async def ask(self, name: str, question: Question) -> Any:
        """Return the answer of a model; raise what the engine raises, of which `refusal_of` makes an answer."""
        if self.engine.draining:
            raise Draining
        if not self.engine.ready:
            raise Refusal(503, f"{self.warming}; /ready says when", headers=retry_after(1))
        return await self.engine.ask(name, question)


def refusal_of(error: Exception) -> Refusal | None:
    """Return what is answered where an engine or a check of ours raises `error`; None: it is a failure of ours."""
    match error:
        case Refusal():
            return error
        case Overloaded():
            return Refusal(429, str(error), headers=retry_after(error.retry_after))
        case Draining():
            return Refusal(503, "the server is about to end; ask another", headers={"connection": "close"})
        case Late():
            return Refusal(504, "the answer was not computed before the deadline; send less, or later")
        case Failed():
            return Refusal(500, "the computation failed; the log of the server says why")
        case TooLarge():
            return Refusal(413, str(error))
        case UserError():
            return Refusal(422, str(error))
    return None


def retry_after(seconds: float) -> dict[str, str]:
    """Return the header that says after how many seconds, at least one, a client may come again."""
    return {"retry-after": str(max(1, math.ceil(seconds)))}
