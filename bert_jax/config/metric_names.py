"""Metrics by their names of today, in what runs of earlier versions have written."""

from collections.abc import Mapping
from typing import Any

EARLIER = {"sentence_order_loss": "next_sentence_loss", "sentence_order_accuracy": "next_sentence_accuracy"}
"""The name that a metric had before: both tasks on pairs of segments once had one name, and a run has one of them."""


def metric_value(metrics: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """Return the value of a metric, also where it is written under its earlier name; `default` if it is not there."""
    return metrics.get(name, metrics.get(EARLIER.get(name, name), default))
