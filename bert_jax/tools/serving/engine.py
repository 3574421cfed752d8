"""Answers of loaded models to many requests at once, computed in rows that they share.

A request is answered in a thread by the code of `PretrainedModel`: it reads texts, asks for the outputs of sequences
and makes answers of them. Outputs are what the threads share: one thread computes those of all requests, in batches
of a few shapes that were compiled before. It never waits for a batch to become full: it computes what has arrived
while it computed the batch before. Whatever else is computed with a model (`Engine.run`), such as what the page asks,
may compile programs of its own for seconds, and so has a thread of its own.
"""

import asyncio
import collections
import concurrent.futures
import dataclasses
import functools
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import jax
import numpy as np
from absl import logging

from bert_jax.config.serving import EngineOptions
from bert_jax.data.sequences import Features
from bert_jax.errors import UserError
from bert_jax.pretrained.model import PretrainedModel
from bert_jax.pretrained.outputs import Output, Outputs, most_rows
from bert_jax.tokenization.tokenizer import counted_cuts, read_in_parts
from bert_jax.tools.serving.questions import Question, sequences_like
from bert_jax.tools.serving.turns import Kind, Turn, Turns, Work, settle

Found = TypeVar("Found")

TELL_SECONDS = 60
"""Between two lines that say how many texts were cut."""
CALLS = "compiling (calls)"
"""Name of the thread of `Engine.run`; `console.leave` ends a process whose thread is called so without waiting."""


class Overloaded(Exception):
    """The queue is full; come again after `retry_after` seconds."""

    def __init__(self, retry_after: float):
        super().__init__(f"too many requests are waiting; try again in {retry_after:.0f} s")
        self.retry_after: float = retry_after


class Draining(Exception):
    """The engine is not ready yet, or about to end, and accepts nothing."""


class Late(Exception):
    """The deadline of the request passed before it was computed."""


class Failed(Exception):
    """The computation of the request failed; the log says why."""


class TooLarge(UserError):
    """The request alone is more than an engine ever accepts."""


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
    cut: int = 0
    """Texts, longer than a model reads."""
    cancelled: int = 0
    failed: int = 0
    compiled: int = 0
    """Programs that this process has compiled, in the warm-up too."""


@dataclasses.dataclass(eq=False)
class _Request:
    """What is known of a request from its arrival to its answer."""

    model: str
    texts: int
    size: int
    """Bytes of its texts."""
    deadline: float
    """By time.monotonic()."""
    works: list[Work] = dataclasses.field(default_factory=list)
    """What it waits for."""
    ended: BaseException | None = None
    """Why nothing more is computed for it."""


class Engine:
    """Answers of loaded models to requests that arrive at the same time, in rows that they share.

    Args:
      models: the models by the names by which they are asked.
      options: what is computed at once, and how much may wait.
    """

    def __init__(self, models: Mapping[str, PretrainedModel], options: EngineOptions | None = None):
        self.models: Mapping[str, PretrainedModel] = dict(models)
        self.options: EngineOptions = options or EngineOptions()
        self.warmed: tuple[int, int] = (0, 0)
        """Shapes of batches that are compiled, and all that will be."""
        self._changed: threading.Condition = threading.Condition()
        # Changed under the lock of `_changed`:
        self._turns: Turns = Turns(self._most)
        self._requests: set[_Request] = set()
        self._tokens: int = 0
        """Of what waits, until all of it is in batches."""
        self._seen: Observed = Observed()
        self._told: float = 0.0
        """When the next line may say how many texts were cut."""
        self._state: Literal["new", "ready", "draining", "closed"] = "new"
        self._pool: concurrent.futures.ThreadPoolExecutor = concurrent.futures.ThreadPoolExecutor(
            self.options.threads, thread_name_prefix="answers"
        )
        self._calls: concurrent.futures.ThreadPoolExecutor = concurrent.futures.ThreadPoolExecutor(1, CALLS)
        self._rows: int | None = 1
        """Batches of so many rows, a power of two, and of fewer have their programs; None: all have."""
        self._thread: threading.Thread = threading.Thread(target=self._run, name="computes", daemon=True)

    def start(self, told: Callable[[], None] = lambda: None) -> None:
        """Compile every program, those of the smallest batches first, and start the threads as soon as they can answer.

        `ready` is true from the moment when the programs are there that `EngineOptions.compile_first` asks for, unless
        the engine ends before.

        Args:
          told: called whenever `warmed` or `ready` has changed.
        """
        _compiled()
        shapes = [
            (name, output, features)
            for name, model in self.models.items()
            for output, features in sequences_like(model, self.options.positions)
        ]
        shapes.sort(key=lambda shape: len(shape[2]))
        first = len(shapes) if self.options.compile_first == "all" else sum(len(each) == 1 for _, _, each in shapes)
        for number, (name, output, features) in enumerate(shapes):
            if number == first:
                self._open()
            if self._state not in ("new", "ready"):
                return
            self.warmed = (number, len(shapes))
            self._rows = 1 << max(0, (len(features) - 1).bit_length() - 1)  # what is smaller is all there
            told()
            self._warm(name, output, features)
        self.warmed, self._rows = (len(shapes), len(shapes)), None
        self._open()
        told()

    def _open(self) -> None:
        with self._changed:
            if self._state == "new":
                self._thread.start()
                self._state = "ready"

    def _warm(self, name: str, output: Output, features: Features) -> None:
        turns = Turns(self._all_rows)
        turns.put(self._work(name, output, features))
        while turns:
            turn = turns.next()
            turn.kind.output.rows(self.models[name].runner, turn.batch())

    def _all_rows(self, _model: str, kind: Kind) -> int:
        return most_rows(kind.width, self.options.positions)

    def _most(self, model: str, kind: Kind) -> int:
        """Return the most rows of a batch for which there is a program."""
        rows, most = self._rows, self._all_rows(model, kind)
        return most if rows is None else min(most, rows)

    @property
    def ready(self) -> bool:
        """Whether new requests are accepted."""
        return self._state == "ready"

    @property
    def draining(self) -> bool:
        """Whether nothing more is accepted, since the process is about to end."""
        return self._state in ("draining", "closed")

    @property
    def waiting(self) -> int:
        """Number of requests that are accepted and not yet answered."""
        return len(self._requests)

    def observed(self) -> Observed:
        """Return the counts at this moment."""
        with self._changed:
            return dataclasses.replace(self._seen, compiled=_compiled())

    async def ask(self, name: str, question: Question, *, deadline: float | None = None) -> Any:
        """Return the answer of the model `name`; `deadline` in seconds is at most that of the options.

        Raises:
          UserError: there is no such model, or it cannot read or answer this; TooLarge is one.
          Overloaded: the queue is full.
          Draining: the engine is not ready, or about to end.
          Late: the deadline passed before the computation.
          Failed: the computation failed.
        """
        request = self._accepted(name, question.texts(), deadline)
        return await self._left(request, self._submitted(self._pool, request, question.answer))

    async def run(self, name: str, function: Callable[[PretrainedModel], Found]) -> Found:
        """Return function(model), which a thread runs that others may wait for, as a request of one text."""
        request = self._accepted(name, (), None)
        return await self._left(request, self._submitted(self._calls, request, function))

    def refuse(self) -> None:
        """Accept nothing more."""
        with self._changed:
            if not self.draining:
                self._state = "draining"

    async def drain(self, seconds: float) -> None:
        """Accept nothing more, and wait until what was accepted is answered, for at most so many seconds."""
        self.refuse()
        until = time.monotonic() + seconds
        while self._requests and time.monotonic() < until:
            await asyncio.sleep(0.02)
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Drop what is not answered, and end the threads."""
        with self._changed:
            self._state = "closed"
            left = list(self._requests)
            self._changed.notify()
        for request in left:
            self._end(request, Draining())
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        for pool in (self._pool, self._calls):
            pool.shutdown(wait=False, cancel_futures=True)

    # ---- acceptance

    def _accepted(self, name: str, texts: Sequence[Any], deadline: float | None) -> _Request:
        if name not in self.models:
            raise UserError(f"no model is called {name!r:.60}; there are {', '.join(self.models)}")
        most, count, size = self.options, max(1, len(texts)), _bytes(texts)
        for found, limit, noun in ((count, most.max_texts, "texts"), (size, most.max_bytes, "bytes of text")):
            if found > limit:
                raise TooLarge(f"the request has {found:,} {noun}, and at most {limit:,} are accepted; ask in parts")
        seconds = most.deadline if deadline is None else min(deadline, most.deadline)
        request = _Request(name, count, size, time.monotonic() + seconds)
        with self._changed:
            if not self.ready:
                raise Draining
            held = self._requests
            if (
                len(held) >= most.max_requests
                or sum(each.texts for each in held) + count > most.max_texts
                or sum(each.size for each in held) + size > most.max_bytes
            ):
                self._seen.overloaded += 1
                raise Overloaded(self._wait())
            held.add(request)
        return request

    def _wait(self) -> float:
        """Return after how many seconds half of the waiting texts will be computed."""
        seen, texts = self._seen, sum(each.texts for each in self._requests)
        return min(60.0, max(1.0, texts / 2 * seen.seconds / max(1, seen.texts)))

    def _submitted(
        self,
        pool: concurrent.futures.ThreadPoolExecutor,
        request: _Request,
        answer: Callable[[PretrainedModel], Any],
    ) -> Any:
        try:
            future = pool.submit(self._answer, request, answer)
        except RuntimeError:  # closed meanwhile
            self._forget(request)
            raise Draining from None
        future.add_done_callback(lambda _: self._forget(request))
        return future

    async def _left(self, request: _Request, future: "concurrent.futures.Future[Found]") -> Found:
        """Wait for the answer; a cancelled task takes the request out of the queue."""
        try:
            found = await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if isinstance(request.ended, Draining):
                raise request.ended from None
            with self._changed:
                self._seen.cancelled += 1
            self._end(request, _Cancelled())
            raise
        except (Late, Overloaded, Failed) as error:
            with self._changed:
                self._seen.late += isinstance(error, Late)
                self._seen.overloaded += isinstance(error, Overloaded)
                self._seen.failed += isinstance(error, Failed)
            raise
        with self._changed:
            self._seen.answered += 1
        return found

    def _forget(self, request: _Request) -> None:
        with self._changed:
            self._dropped(request)
            self._requests.discard(request)
            request.works.clear()

    def _end(self, request: _Request, reason: BaseException) -> None:
        """Take what waits of a request out of the queue, and give its threads `reason`."""
        with self._changed:
            request.ended = request.ended or reason
            works = self._dropped(request)
        for work in works:
            settle(work.future, error=reason)

    def _dropped(self, request: _Request) -> list[Work]:
        """Return what a request waits for, which is no longer in the queue."""
        for work in request.works:
            if work.untaken:
                self._turns.remove(work)
                self._tokens -= work.tokens
                work.untaken = work.tokens = 0
        return list(request.works)

    # ---- in the threads that answer

    def _answer(self, request: _Request, answer: Callable[[PretrainedModel], Any]) -> Any:
        model = self.models[request.model].computed_by(functools.partial(self._compute, request))
        model.tokenizer = read_in_parts(model.need_tokenizer(), lambda: self._check(request))
        try:
            self._check(request)
            with counted_cuts() as cuts:
                answered = answer(model)
            self._tell(sum(cuts))
            return answered
        except (UserError, Overloaded, Draining, Late, Failed, _Cancelled):
            raise
        except Exception as error:
            _log(request.model, "an answer", error)
            raise Failed from None

    def _tell(self, cut: int) -> None:
        """Count texts that were cut, and say so at most once in TELL_SECONDS."""
        if not cut:
            return
        with self._changed:
            self._seen.cut += cut
            total, now = self._seen.cut, time.monotonic()
            if now < self._told:
                return
            self._told = now + TELL_SECONDS
        logging.warning("%d texts were longer than a model reads and were cut, since the start", total)

    def _check(self, request: _Request) -> None:
        """Raise the reason if nothing more is computed for the request."""
        if request.ended is not None:
            raise request.ended
        if time.monotonic() > request.deadline:
            raise Late

    def _compute(
        self, request: _Request, output: Output, features: Features, batch_size: int, progress: bool | None
    ) -> Outputs:
        """Implement `Compute` for one request, by the batches of all."""
        if not len(features):
            return iter(())
        work = self._work(request.model, output, features)
        limits = {"tokens": (work.tokens, self.options.max_tokens)}
        limits["tokens in a text"] = (max(work.lengths), self.options.positions)
        for noun, (found, limit) in limits.items():
            if found > limit:
                raise TooLarge(f"the request has {found:,} {noun}, and at most {limit:,} are accepted; ask in parts")
        self._put(request, work)
        return iter([(np.arange(len(features)), work.future.result())])

    def _work(self, name: str, output: Output, features: Features) -> Work:
        runner = self.models[name].runner
        packed = output.packed(runner) and not features.in_windows
        return Work(name, output, features, packed, runner.longest)

    def _put(self, request: _Request, work: Work) -> None:
        with self._changed:
            self._check(request)
            if self._state == "closed":
                raise Draining
            if self._tokens + work.tokens > self.options.max_tokens:
                raise Overloaded(self._wait())
            self._tokens += work.tokens
            request.works.append(work)
            self._turns.put(work)
            self._changed.notify()

    # ---- in the thread that computes

    def _run(self) -> None:
        while (turn := self._next()) is not None:
            try:
                self._computed(turn)
            except Exception as error:
                _log(turn.model, f"a batch of {len(turn.places)} texts", error)
                self._fail(turn.works)
            del turn  # or it would be kept until the next one

    def _next(self) -> Turn | None:
        """Wait for something to compute and return it; None: the engine is closed."""
        self._drop_late()
        with self._changed:
            while not self._turns and self._state != "closed":
                self._changed.wait()
            if not self._turns:
                return None
            turn = self._turns.next()
            for work in turn.works:
                if not work.untaken:  # all of it is out of the queue
                    self._tokens -= work.tokens
                    work.tokens = 0
            return turn

    def _drop_late(self) -> None:
        now = time.monotonic()
        with self._changed:
            late = [
                request
                for request in self._requests
                if now > request.deadline and any(work.untaken for work in request.works)
            ]
        for request in late:
            self._end(request, Late())

    def _computed(self, turn: Turn) -> None:
        began = time.monotonic()
        rows = turn.kind.output.rows(self.models[turn.model].runner, turn.batch())
        for place, row in zip(turn.places, rows, strict=False):
            place.work.add(place.number, row)
        with self._changed:
            seen = self._seen
            seen.seconds += time.monotonic() - began
            seen.batches += 1
            seen.rows += turn.rows
            seen.texts += len(turn.places)
            seen.tokens += turn.tokens
            seen.positions += turn.rows * turn.kind.width

    def _fail(self, works: Sequence[Work]) -> None:
        with self._changed:
            requests = [request for request in self._requests if not set(works).isdisjoint(request.works)]
        for request in requests:
            self._end(request, Failed())


class _Cancelled(Exception):
    """The client is gone."""


def _bytes(texts: Any) -> int:
    """Return the bytes of all texts, at any depth of lists and tuples."""
    size, left = 0, collections.deque(texts)
    while left:
        each = left.pop()
        if isinstance(each, str):
            size += len(each.encode("utf-8", "surrogatepass"))
        elif isinstance(each, (list, tuple)):
            left.extend(each)
    return size


def _log(name: str, what: str, error: Exception) -> None:
    """Log where an error came from; its message may contain texts, which are nobody's business."""
    where = "".join(traceback.format_tb(error.__traceback__))
    logging.error("%s: %s in %s\n%s", name, type(error).__name__, what, where)


@functools.cache
def _counter() -> list[int]:
    """Return the number of programs that this process has compiled, in a list that goes on counting."""
    count = [0]

    def add(event: str, *_: Any, **__: Any) -> None:
        count[0] += event == "/jax/core/compile/backend_compile_duration"

    jax.monitoring.register_event_duration_secs_listener(add)
    return count


def _compiled() -> int:
    return _counter()[0]
