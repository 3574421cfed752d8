"""The arithmetic of a study: means and deviations over seeds, differences between arms, the order beside a paper's."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from bert_jax.config.studying import Study
from bert_jax.tasks.scores import spearman

CONFIDENCE = 0.95
Values = Mapping[str, Sequence[float]]
"""The figures of one measure over the seeds, by arm."""


@dataclasses.dataclass(frozen=True)
class Figure:
    """One measure of one arm."""

    values: tuple[float, ...]
    """One value per seed."""
    mean: float
    deviation: float | None
    """Sample standard deviation; None for one seed."""
    difference: float | None
    """From the mean of the first arm; None for that arm, and where that has no figure."""
    interval: tuple[float, float] | None
    """95 % confidence interval of the difference (Welch's t); None unless both arms have two seeds."""

    @property
    def told_apart(self) -> bool | None:
        """Whether the interval excludes 0; None where there is none."""
        return None if self.interval is None else not self.interval[0] <= 0 <= self.interval[1]


@dataclasses.dataclass(frozen=True)
class Column:
    """One measure of all arms."""

    heading: str
    figures: dict[str, Figure]
    """The figures by arm; arms without a finished run are absent."""
    p_value: float | None
    """Probability of differences as large as these if all arms were the same (one-way analysis of variance); None
    unless all arms, two at least, have two seeds."""
    beside: str
    """The paper's column that it is compared with; "" for none."""
    rank_correlation: float | None
    """Spearman's correlation of the means with that column over the arms that both have; None below three."""


def column(study: Study, heading: str, values: Values, beside: str = "") -> Column:
    """Return the figures of one measure."""
    first = values.get(study.arms[0].name, ())
    figures = {
        arm.name: _figure(values[arm.name], None if number == 0 else first)
        for number, arm in enumerate(study.arms)
        if values.get(arm.name)
    }
    published = {arm: value for each in study.published for arm, value in each.figures.get(beside, {}).items()}
    both = [name for name in figures if name in published]
    correlation = None
    if len(both) >= 3:
        ours, theirs = [figures[name].mean for name in both], [published[name] for name in both]
        correlation = spearman(np.asarray(ours), np.asarray(theirs))
    return Column(heading, figures, _p_value(list(values.values())), beside, correlation)


def difference_interval(values: Sequence[float], first: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % confidence interval of mean(values) − mean(first) by Welch's t; None below two values each."""
    from scipy import stats  # takes half a second to import

    if min(len(values), len(first)) < 2:
        return None
    difference = statistics.fmean(values) - statistics.fmean(first)
    if not statistics.pvariance(values) and not statistics.pvariance(first):
        return difference, difference
    interval = stats.ttest_ind(values, first, equal_var=False).confidence_interval(CONFIDENCE)
    return float(interval.low), float(interval.high)


def _figure(values: Sequence[float], first: Sequence[float] | None) -> Figure:
    return Figure(
        tuple(values),
        statistics.fmean(values),
        statistics.stdev(values) if len(values) > 1 else None,
        statistics.fmean(values) - statistics.fmean(first) if first else None,
        difference_interval(values, first) if first else None,
    )


def _p_value(groups: list[Sequence[float]]) -> float | None:
    from scipy import stats

    if len(groups) < 2 or min(map(len, groups)) < 2 or not any(map(statistics.pvariance, groups)):
        return None
    return float(stats.f_oneway(*groups).pvalue)
