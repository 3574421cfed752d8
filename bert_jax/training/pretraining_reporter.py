"""The metrics of each step of a pre-training phase, and the guard that looks at them."""

import jax
from absl import logging

from bert_jax.config import Config, Phase, resolve_stages
from bert_jax.models.protocol import Model
from bert_jax.training import useful_work
from bert_jax.training.events import Events
from bert_jax.training.guard import Guard
from bert_jax.training.host_times import HostTimes
from bert_jax.training.metrics import Metrics, Rates


class PhaseReporter:
    """Writes the metrics of a step once the next one is under way, so that the device never waits for Python.

    Every method but the first raises the `Trouble` that `guard` finds in a step.
    """

    def __init__(
        self,
        metrics: Metrics,
        rates: Rates,
        config: Config,
        phase: Phase,
        model: Model,
        events: Events,
        guard: Guard,
        host_times: HostTimes,
    ):
        self._pending: tuple[int, dict[str, jax.Array]] | None = None
        self._metrics, self._rates, self._config, self._events = metrics, rates, config, events
        self._sequences, self._places = phase.batch_size, phase.tokens_per_step
        self._model, self._length = model, phase.sequence_length
        self._phase_end = phase.end
        later = [each for each in resolve_stages(config) if each.begin >= phase.end]
        self._places_after = sum(each.steps * each.tokens_per_step for each in later)
        self._guard, self._host_times = guard, host_times

    def dispatched(self, step: int, values: dict[str, jax.Array]) -> None:
        self._rates.wall_time.switch("steps")  # at the first one, setting up is over
        self.finish()
        self._pending = step, values

    def finish(self) -> None:
        """Fetch and write the metrics that are still pending."""
        if self._pending is None:
            return
        (step, values), self._pending = self._pending, None
        values = {name: float(value) for name, value in jax.device_get(values).items()}
        useful = {name: values.pop(name) for name in useful_work.COUNTS}
        flops = useful_work.useful_flops(self._model, self._length, useful)
        self._rates.count(self._sequences, useful["useful_tokens"], flops, self._places)
        self._judge(step, values)
        self._metrics.advance(step)
        if due(step, self._config.log_every_steps) or step == self._config.total_steps:
            left = (self._phase_end - step) * self._places + self._places_after
            self._metrics.write(step, values | self._rates.report(left) | self._host_times.row(step))

    def is_busy(self) -> bool:
        """Return whether the devices still compute the newest step."""
        if self._pending is None:
            return False
        return not self._pending[1]["loss"].is_ready()  # pyright: ignore[reportAttributeAccessIssue]

    def is_finite(self) -> bool:
        """Return whether loss and gradient of the newest step were finite, after waiting for that step."""
        self.finish()
        return not self._guard.skipped

    def _judge(self, step: int, values: dict[str, float]) -> None:
        try:
            self._guard.observe(step, values["loss"], bool(values["skipped"]))
        finally:
            if values["skipped"]:
                loss, norm, in_a_row = values["loss"], values["grad_norm"], self._guard.skipped
                self._events.write("skipped", step, loss=loss, grad_norm=norm, in_a_row=in_a_row)
                logging.warning("step %d: loss %s, gradient norm %s; the update was skipped", step, loss, norm)


def due(step: int, every: int) -> bool:
    """Return whether something done every `every` steps (0: never) is due after `step`."""
    return every > 0 and step % every == 0
