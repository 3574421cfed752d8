"""Weights & Biases and MLflow as further destinations of metrics; neither is imported unless it is asked for."""

import math
import time
from collections.abc import Callable
from typing import Any, Protocol

from absl import logging

from bert_jax.config.json_form import flattened
from bert_jax.config.watching import SinksConfig
from bert_jax.errors import need_extra


class Tracker(Protocol):
    """A service that keeps the metrics of runs."""

    def write(self, step: int, kind: str, metrics: dict[str, float]) -> None:
        """Send one row."""

    def close(self) -> None:
        """Send what is left, and end the run there."""


def check_trackers(sinks: SinksConfig) -> None:
    """Raise a UserError if a service is asked for whose package is not installed."""
    for library in ("wandb", "mlflow"):
        if getattr(sinks, library):
            need_extra(library, library, f"sinks.{library}")


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
    """A run of Weights & Biases whose id is ours, so that a resumed one continues it.

    Steps that are taken again after a crash appear twice, because the service keeps what it has been sent.
    """

    def __init__(self, project: str, run_id: str, name: str, config: dict[str, Any]):
        import wandb  # pyright: ignore[reportMissingImports]

        quiet = wandb.Settings(console="off", silent=True)
        self._run = wandb.init(project=project, id=run_id, name=name, config=config, resume="allow", settings=quiet)
        # A metric of ours is the axis: steps of the service itself may only grow, and those taken again do not.
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
