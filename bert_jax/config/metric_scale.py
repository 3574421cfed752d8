"""How a metric is shown."""


def metric_scale(metric: str) -> int:
    """Return the factor for display: shares are shown in percent; losses, perplexities and thresholds as they are."""
    return 1 if metric.endswith(("loss", "perplexity", "_thresh")) else 100
