"""Weights & Biases and MLflow as further destinations of metrics, and traces of a range of steps for XProf.

Neither tracker is imported unless it is requested. Traces go below the `profile` folder of the work directory.
"""

import contextlib
import math
import os
import pathlib
import tempfile
import time
from collections.abc import Callable
from typing import Any, Protocol

import jax
from absl import logging
from etils import epath

from bert_jax.config.options import flattened
from bert_jax.config.pretraining import SinksConfig
from bert_jax.files import is_remote

FOLDER = "profile"


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
        except (OSError, RuntimeError) as error:
            logging.warning("the trace could not be written to %s: %s", self._folder, error)

    def _start(self, state: Any) -> None:
        jax.block_until_ready(state)
        # jaxlib writes to no bucket, so the files of a trace are copied there.
        remote = is_remote(self._folder)
        self._local = pathlib.Path(tempfile.mkdtemp(prefix="bert_jax-") if remote else self._folder)
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # an evaluation that compiles would fill the trace with calls of Python
        try:
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


class Tracker(Protocol):
    """A service that keeps the metrics of runs."""

    def write(self, step: int, kind: str, metrics: dict[str, float]) -> None:
        """Send one row."""

    def close(self) -> None:
        """Send what is left, and end the run there."""


def trackers(sinks: SinksConfig, run_id: str, name: str, config: dict[str, Any]) -> list[Tracker]:
    """Return the services that `sinks` asks for; one that cannot be reached is a warning.

    Args:
      run_id: by which a resumed run continues its earlier one there.
      name: that people see.
      config: the resolved options.
    """
    classes = (("Weights & Biases", WeightsAndBiases, sinks.wandb), ("MLflow", MLflow, sinks.mlflow))
    return [
        Tolerated(title, lambda make=make, group=group: make(group, run_id, name, config))
        for title, make, group in classes
        if group
    ]


class Tolerated:
    """A tracker whose first failure is a warning and its end: no run ends for a service that is out of reach.

    Args:
      title: name of the service.
      start: makes the tracker.
    """

    def __init__(self, title: str, start: Callable[[], Tracker]):
        self._title = title
        self._tracker: Tracker | None = None
        self._tracker = self._attempt(start)

    def write(self, step: int, kind: str, metrics: dict[str, float]) -> None:
        if self._tracker is not None:
            self._attempt(self._tracker.write, step, kind, metrics)

    def close(self) -> None:
        if self._tracker is not None:
            self._attempt(self._tracker.close)

    def _attempt(self, action: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return action(*arguments)
        except Exception as error:  # each service, and each network below it, has its own kinds
            self._tracker = None
            reason = " ".join(str(error).split())[:200]
            logging.warning("%s gets no more metrics of this run: %s: %s", self._title, type(error).__name__, reason)
        return None


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
