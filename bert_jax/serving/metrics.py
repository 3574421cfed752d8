"""What a server counts, in the form of Prometheus."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from bert_jax.serving.engine import Engine

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
"""Bounds of the histogram of latencies."""


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
            "failed": ("Requests whose computation failed.", seen.failed),
            "compiled": ("Programs that were compiled.", seen.compiled),
        }
        for name, (meaning, value) in counts.items():
            yield CounterMetricFamily(f"bert_jax_{name}", meaning, value=value)
        padding = 1 - seen.tokens / seen.positions if seen.positions else 0.0
        yield GaugeMetricFamily("bert_jax_padding_share", "Share of padding in all positions.", value=padding)
        yield GaugeMetricFamily("bert_jax_waiting", "Requests in the queue.", value=self._engine.waiting)
        yield GaugeMetricFamily("bert_jax_ready", "1 if new requests are answered.", value=int(self._engine.ready))
