"""What a run writes for people, none of which can stop, delay or fail it; two of its trackers; traces for XProf.

A thread of its own (`Aside`) writes to each destination of metrics: a disk that is full and a service that is out of
reach are one warning. A file of lines (`Lines`) gets later what cannot be written now. The trackers, Weights & Biases
and MLflow, are not imported unless they are requested. Traces go below the `profile` folder of the work directory.
"""

import contextlib
import functools
import math
import os
import pathlib
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import jax
from absl import logging
from etils import epath
from rich.console import Console

from bert_jax.config.options import flattened
from bert_jax.config.pretraining import SinksConfig
from bert_jax.files import is_remote, write_atomically

FOLDER = "profile"
WAITING = 4096
"""Most rows that wait for a destination; later ones are dropped."""
WAITING_BYTES = 1 << 22
"""Most bytes of lines that wait for a file on a disk."""
SETTLE_SECONDS = 1.0
"""For which training waits, at most, until a file has what was written before: a row of a step that is saved next."""
CLOSE_SECONDS = 20.0
"""For which the end of a run waits, at most, until all destinations have all rows."""


class Aside:
    """A thread that does things for people one after another, in order; what fails is one warning, and no error.

    Args:
      title: whom a failure concerns, and what it means to them; begins the warning.
      most: how many things may wait; later ones are dropped.
    """

    def __init__(self, title: str, most: int = WAITING):
        self._title, self._has_warned, self._is_finished = title, False, False
        self._waiting: queue.Queue[Callable[[], Any] | None] = queue.Queue(most)
        self._thread = threading.Thread(target=self._work, name=title, daemon=True)
        self._thread.start()

    @property
    def has_more(self) -> bool:
        """Whether something waits that has not begun."""
        return not self._waiting.empty()

    def do(self, action: Callable[..., Any], *arguments: Any) -> None:
        """Have `action` called with these arguments, after everything before it."""
        self._put(functools.partial(action, *arguments))

    def settle(self, seconds: float = SETTLE_SECONDS) -> bool:
        """Wait until everything so far is done, but no longer than `seconds`; return whether it is."""
        done = threading.Event()
        return self._put(done.set) and done.wait(seconds)

    def finish(self) -> None:
        """Have the thread end once everything is done; `close` waits for that."""
        if not self._is_finished:
            self._is_finished = self._put(None)

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """End the thread once everything is done; after `seconds` it is left alone, and ends with the process."""
        self.finish()
        self._thread.join(seconds)
        if self._thread.is_alive():
            self.warn("it has not answered in time")

    def warn(self, reason: str) -> None:
        """Log the first reason why something is missing."""
        if not self._has_warned:
            self._has_warned = True
            logging.warning("%s: %s", self._title, reason)

    def _put(self, action: Callable[[], Any] | None) -> bool:
        try:
            self._waiting.put_nowait(action)
        except queue.Full:
            self.warn("it does not keep up")
            return False
        return True

    def _work(self) -> None:
        while (action := self._waiting.get()) is not None:
            try:
                action()
            except Exception as error:  # each service, and each network below it, has its own kinds
                self.warn(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")


class Sink(Protocol):
    """A destination of metrics."""

    def write(self, step: int, kind: str, metrics: dict[str, float]) -> None:
        """Take in one row."""

    def close(self) -> None:
        """Write or send what is left."""


class Destination:
    """A sink that a thread of its own makes, writes to and closes; its first failure is a warning and its end.

    Args:
      title: of the sink.
      start: makes the sink.
    """

    def __init__(self, title: str, start: Callable[[], Sink]):
        self._aside, self._sink = Aside(f"{title} gets no more metrics of this run"), None
        self.restart(start)

    def restart(self, start: Callable[[], Sink]) -> None:
        """Close the sink, and go on with a new one."""
        self._aside.do(self._end)
        self._aside.do(self._begin, start)

    def write(self, step: int, kind: str, metrics: dict[str, float]) -> None:
        """Have one row written."""
        self._aside.do(self._write, step, kind, dict(metrics))

    def settle(self) -> bool:
        """Wait for a moment until all rows have been written; return whether they have."""
        return self._aside.settle()

    def finish(self) -> None:
        """Have the sink closed; `close` waits for that."""
        self._aside.do(self._end)
        self._aside.finish()

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Close the sink, which may take a while, but not more than `seconds`."""
        self.finish()
        self._aside.close(seconds)

    def _begin(self, start: Callable[[], Sink]) -> None:
        self._sink = start()

    def _write(self, *row: Any) -> None:
        if self._sink is None:
            return
        try:
            self._sink.write(*row)
        except Exception:
            with contextlib.suppress(Exception):
                self._end()
            raise

    def _end(self) -> None:
        if self._sink is not None:
            sink, self._sink = self._sink, None
            sink.close()


class Lines:
    """A file of lines, local or gs://, that grows at its end; it raises nothing that a disk or a store may raise.

    What cannot be written waits, and is written with a later line. An object of a store cannot grow, so it is written
    again as a whole.

    Args:
      contents: what it begins with, which replaces what is there; None if it has to grow from what is there.
      seconds: between two times that an object is written, at least.
    """

    def __init__(self, file: epath.Path, contents: bytes | None, seconds: float):
        self._file, self._seconds, self._is_remote = file, seconds, is_remote(file)
        self._begins, self._waiting, self._has_warned = contents, b"", False
        self._descriptor: int | None = None
        self._uploaded = -math.inf

    def add(self, line: bytes) -> None:
        """Write a line, which ends with a line feed."""
        if self._is_remote or len(self._waiting) + len(line) <= WAITING_BYTES:
            self._waiting += line
        if not self._is_remote or time.monotonic() - self._uploaded > self._seconds:
            self.flush()

    def flush(self) -> None:
        """Write what is waiting."""
        try:
            self._upload() if self._is_remote else self._append()
        except Exception as error:  # those who read gs:// have their own kinds
            if not self._has_warned:
                self._has_warned = True
                logging.warning("%s lacks lines for now, and training goes on: %s", self._file, error)

    def close(self) -> None:
        """Write what is waiting, and close the file."""
        self.flush()
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None

    def _append(self) -> None:
        if self._begins is not None:
            write_atomically(self._file, self._begins)
            self._begins = None
        if self._descriptor is None:  # a pipe that nobody reads is refused at once
            self._descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK)
        while self._waiting:
            self._waiting = self._waiting[os.write(self._descriptor, self._waiting) :]

    def _upload(self) -> None:
        self._uploaded = time.monotonic()
        self._file.write_bytes((self._begins or b"") + self._waiting)


class _Unfailing:
    """A stream of text whose failures, such as a full disk or a pipe that nobody reads, are one warning."""

    def __init__(self, stream: Any):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return self._attempt(self._stream.write, text) or len(text)

    def flush(self) -> None:
        self._attempt(self._stream.flush)

    def _attempt(self, action: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return action(*arguments)
        except (OSError, ValueError) as error:  # ValueError: it was closed
            logging.log_first_n(logging.WARNING, "nothing more is shown, and training goes on: %s", 1, error)


def screen(**options: Any) -> Console:
    """Return a console on standard output whose failures end no run; rich would end it where nobody reads a pipe."""
    stream = getattr(sys.stdout, "rich_proxied_file", sys.stdout)  # a live bar has replaced it
    return Console(file=_Unfailing(stream), **options)  # pyright: ignore[reportArgumentType]


class Profiler:
    """Traces the steps of a range on the first host. A trace that fails is a warning, never the end of a run.

    Args:
      workdir: the work directory, local or gs://.
      steps: numbers of steps after which a traced step begins.
    """

    def __init__(self, workdir: str | os.PathLike[str], steps: range):
        self._folder = epath.Path(workdir) / FOLDER
        self._steps = steps if jax.process_index() == 0 else range(0)
        self._local: pathlib.Path | None = None  # where the trace is being written

    def step(self, step: int, state: Any) -> contextlib.AbstractContextManager[Any]:
        """Return a context for the step that begins after `step`; begins the trace before its first one.

        Args:
          state: arrays whose computation is waited for, so that the trace has whole steps.
        """
        if step not in self._steps:
            return contextlib.nullcontext()
        if self._local is None:
            self._start(state)
        return jax.profiler.StepTraceAnnotation("train", step_num=step)

    def finish(self, step: int, state: Any) -> None:
        """End the trace if `step` is its last one."""
        if self._local is not None and step >= self._steps.stop:
            jax.block_until_ready(state)
            self.close()

    def close(self) -> None:
        """End the trace if there is one, even before its last step, and put its files into the work directory."""
        if self._local is None:
            return
        local, self._local, self._steps = self._local, None, range(0)
        try:
            jax.profiler.stop_trace()
            _move(local, self._folder)
            logging.info("the trace is in %s; show it with xprof --logdir=%s", self._folder, self._folder)
        except Exception as error:  # those who write gs:// have their own kinds
            logging.warning("the trace could not be written to %s: %s", self._folder, error)

    def _start(self, state: Any) -> None:
        jax.block_until_ready(state)
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # an evaluation that compiles would fill the trace with calls of Python
        try:
            # jaxlib writes to no bucket, so the files of a trace are copied there.
            remote = is_remote(self._folder)
            self._local = pathlib.Path(tempfile.mkdtemp(prefix="bert_jax-") if remote else self._folder)
            jax.profiler.start_trace(self._local, profiler_options=options)
        except (OSError, RuntimeError) as error:
            self._local, self._steps = None, range(0)
            logging.warning("no trace is written to %s: %s", self._folder, error)

    def __enter__(self) -> "Profiler":
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()


def _move(local: pathlib.Path, folder: epath.Path) -> None:
    """Copy the files of a trace from a temporary directory, and delete them there; nothing if it is the folder."""
    if os.fspath(local) == os.fspath(folder):
        return
    for file in [file for file in local.rglob("*") if file.is_file()]:
        target = folder / file.relative_to(local)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
        file.unlink()


def trackers(sinks: SinksConfig, run_id: str, name: str, config: dict[str, Any]) -> list[Destination]:
    """Return the services that `sinks` asks for.

    Args:
      run_id: by which a resumed run continues its earlier one there.
      name: that people see.
      config: the resolved options.
    """
    classes = (("Weights & Biases", WeightsAndBiases, sinks.wandb), ("MLflow", MLflow, sinks.mlflow))
    return [
        Destination(title, functools.partial(make, group, run_id, name, config))
        for title, make, group in classes
        if group
    ]


class WeightsAndBiases:
    """A run of Weights & Biases under our own id, so that a resumed run continues it.

    Steps that are taken again after a crash appear twice, because the service keeps what it has been sent.
    """

    def __init__(self, project: str, run_id: str, name: str, config: dict[str, Any]):
        import wandb  # pyright: ignore[reportMissingImports]

        quiet = wandb.Settings(console="off", silent=True)
        self._run = wandb.init(project=project, id=run_id, name=name, config=config, resume="allow", settings=quiet)
        # One of our own metrics is the axis: steps of the service itself may only grow, and those taken again do not.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def write(self, step: int, kind: str, metrics: dict[str, float]) -> None:
        self._run.log({**_named(kind, metrics), "step": step})

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """A run of MLflow with our id as a tag, by which a resumed one is found; MLFLOW_TRACKING_URI says where."""

    def __init__(self, experiment: str, run_id: str, name: str, config: dict[str, Any]):
        from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]

        self._client = client = MlflowClient()
        found = client.get_experiment_by_name(experiment)
        place = client.create_experiment(experiment) if found is None else found.experiment_id
        earlier = client.search_runs([place], f"tags.run_id = '{run_id}'", max_results=1)
        if earlier:
            self._id = earlier[0].info.run_id
            client.update_run(self._id, status="RUNNING")
            return
        self._id = client.create_run(place, tags={"run_id": run_id}, run_name=name).info.run_id
        for option, value in flattened(config).items():
            client.log_param(self._id, option, value)

    def write(self, step: int, kind: str, metrics: dict[str, float]) -> None:
        from mlflow.entities import Metric  # pyright: ignore[reportMissingImports]

        now = int(1000 * time.time())
        values = [Metric(name, value, now, step) for name, value in _named(kind, metrics).items()]
        self._client.log_batch(self._id, metrics=values)

    def close(self) -> None:
        self._client.set_terminated(self._id)


def _named(kind: str, metrics: dict[str, float]) -> dict[str, float]:
    """Return the finite figures by the names that TensorBoard shows too."""
    return {f"{kind}/{name}": value for name, value in metrics.items() if math.isfinite(value)}
