"""Answers of loaded models to many requests at once, computed in rows that they share."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

from bert_jax.config.serving import EngineOptions
from bert_jax.errors import UserError
from bert_jax.pretrained.model import PretrainedModel

Found = TypeVar("Found")


class Overloaded(Exception):
    """The queue is full; come again after `retry_after` seconds."""

    def __init__(self, retry_after: float):
        super().__init__(f"too many requests are waiting; try again in {retry_after:.0f} s")
        self.retry_after: float = retry_after


class Draining(Exception):
    """The engine is about to end, and accepts nothing new."""


class Late(Exception):
    """The deadline of the request passed before it was computed."""


class Failed(Exception):
    """The computation of the request failed; the log says why."""


class TooLarge(UserError):
    """The request alone is more than an engine ever accepts."""


class Question(Protocol):
    """What is asked of a model."""

    def texts(self) -> Sequence[Any]:
        """Return what is counted: each a text, or something with texts in it."""
        ...

    def answer(self, model: PretrainedModel) -> Any:
        """Return the answer of `model`; raise a UserError for what it cannot read."""
        ...


@dataclasses.dataclass(frozen=True)
class FillMask:
    """Words for each [MASK] of texts: a bert_jax.Filled for each."""

    asked: Sequence[str]
    top_k: int = 5


@dataclasses.dataclass(frozen=True)
class Predict:
    """The answers of the task head, as PretrainedModel.predict: Label, Labels, float, tagged words, Choice, Answer."""

    inputs: Sequence[Any]


@dataclasses.dataclass(frozen=True)
class Embed:
    """Vectors of texts, as PretrainedModel.embed, of their first `dimensions` values if it is given."""

    asked: Sequence[str]
    prompt: Literal["query", "document"] | None = None
    normalize: bool | None = None
    dimensions: int | None = None


@dataclasses.dataclass(frozen=True)
class NextSentence:
    """The probabilities that the second text of each pair follows the first, list[float]."""

    pairs: Sequence[tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class Rank:
    """A score for each document, list[float], in their order; the highest is the best."""

    query: str
    documents: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Similarity:
    """The likeness of the texts of each pair, list[float]: what a regression head says, or cosines of vectors."""

    pairs: Sequence[tuple[str, str]]


@dataclasses.dataclass
class Observed:
    """Counts since the start; `dataclasses.replace` keeps a copy."""

    batches: int = 0
    rows: int = 0
    tokens: int = 0
    """Real ones."""
    positions: int = 0
    """Of all rows, padding included."""
    texts: int = 0
    seconds: float = 0.0
    """Of computing."""
    answered: int = 0
    """Requests."""
    overloaded: int = 0
    late: int = 0
    cancelled: int = 0
    failed: int = 0
    compiled: int = 0
    """Programs that were compiled, in the warm-up too."""


class Engine:
    """Answers of loaded models to requests that arrive at the same time, in rows that they share."""

    def __init__(self, models: Mapping[str, PretrainedModel], options: EngineOptions = EngineOptions()):
        self.models: Mapping[str, PretrainedModel] = dict(models)
        self.options: EngineOptions = options

    def start(self) -> None:
        """Start the threads and compile every program; `ready` is true from then on."""
        raise NotImplementedError

    @property
    def ready(self) -> bool:
        """Whether every program is compiled and new requests are accepted."""
        return False

    @property
    def waiting(self) -> int:
        """Number of requests that are accepted and not yet answered."""
        return 0

    def observed(self) -> Observed:
        """Return the counts at this moment."""
        return Observed()

    async def ask(self, name: str, question: Question, *, deadline: float | None = None) -> Any:
        """Return the answer of the model `name`; `deadline` in seconds is at most that of the options.

        Raises:
          UserError: there is no such model, or it cannot read or answer this; TooLarge is one.
          Overloaded: the queue is full.
          Draining: the engine is about to end.
          Late: the deadline passed before the computation.
          Failed: the computation failed.
        """
        raise NotImplementedError

    async def run(self, name: str, function: Callable[[PretrainedModel], Found]) -> Found:
        """Return function(model), which the compute thread runs in its turn, as a request of one text."""
        raise NotImplementedError

    async def drain(self, seconds: float) -> None:
        """Accept nothing more, and wait until what was accepted is answered, for at most so many seconds."""
        raise NotImplementedError
