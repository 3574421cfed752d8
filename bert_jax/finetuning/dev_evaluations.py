"""The evaluations of a run on dev, and the weights that count according to them."""

from typing import Any

import numpy as np

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.devices.signals import StopSignals
from bert_jax.finetuning.collapse import ignores_input
from bert_jax.finetuning.command import Command
from bert_jax.finetuning.programs import Programs
from bert_jax.finetuning.task_logits import predict_logits
from bert_jax.tasks.task_data import TaskData
from bert_jax.training.metrics import Metrics, Rates
from bert_jax.training.saver import Saver


class DevEvaluations:
    """The evaluations of a run on dev after each epoch, and the weights that count according to them.

    Args:
      command: what all runs share.
      found: metrics of each evaluation, and the result of `ignores_input`, by step; `make` adds to it.
      weights: where the weights that count are saved.
      metrics: where the evaluations are logged.
      saver: makes sure of the work directory.
      config: the resolved configuration, saved in every checkpoint.
    """

    def __init__(
        self,
        command: Command,
        found: dict[int, dict[str, Any]],
        weights: Checkpoints,
        metrics: Metrics,
        saver: Saver,
        config: dict[str, Any],
    ):
        self._command, self._found, self._config = command, found, config
        self._weights, self._metrics, self._saver = weights, metrics, saver

    def has(self, step: int) -> bool:
        """Whether the evaluation after `step` was made, by this process or before an interruption."""
        return step in self._found

    def make(self, step: int, params: Any, rates: Rates, is_last: bool) -> None:
        """Evaluate the parameters after `step` steps, and save them if they are the ones that count so far."""
        command, main = self._command, self._command.data.main_metric
        with rates.paused("evaluation"), command.events.timed("evaluated", step) as details:
            scores, ignored = evaluate(
                command.data, command.programs, params, command.config.eval_batch_size, command.signals, rates
            )
            details |= scores
        earlier = [entry["metrics"][main] for entry in self._found.values()]
        self._saver.secure()
        is_best = scores[main] > max(earlier, default=-np.inf)
        command.signals.watchdog.begin("save")
        if is_last if command.config.select == "last" else is_best:
            with rates.paused("checkpoint"):
                state, position = {"params": params}, {"step": step}
                self._weights.save(step, state, position=position, config=self._config, metrics=scores)
                # A kill could otherwise leave only the state that is saved next, and no step would save these again.
                self._weights.wait()
        self._metrics.write(step, {f"dev_{name}": value for name, value in scores.items()}, kind="evaluation")
        self._found[step] = {"metrics": scores, "ignored": ignored}


def evaluate(
    data: TaskData, programs: Programs, params: Any, batch_size: int, signals: StopSignals, rates: Rates | None = None
) -> tuple[dict[str, float], str | None]:
    """Return the metrics on dev, and the result of `ignores_input`.

    Metrics on MNLI's second dev set have names that begin with `mismatched_`. `rates` pause while something is
    compiled.
    """
    results, ignored = {}, None
    for name, split in data.evaluations.items():
        logits = predict_logits(
            programs.predict_step, params, split.features, data.head, batch_size, programs.mesh, signals, rates
        )
        prefix = name.removeprefix("dev").removeprefix("_")
        results |= {
            f"{prefix}_{key}" if prefix else key: float(value)
            for key, value in data.family.score(split.examples, split.features, logits).items()
        }
        if name == "dev":
            ignored = ignores_input(data.head, split.features, logits, results)
    return results, ignored
