"""From sums to the figures that people read: each is divided once, by the weight of the whole global batch.

There are no means of means, so neither the number of devices nor that of micro-batches changes what is optimized.
"""

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from bert_jax.errors import UserError
from bert_jax.objectives.objective import Sums, Term


def ratio(total: jax.Array | float, weight: jax.Array | float) -> jax.Array:
    """Return total / weight; 0, not NaN, if nothing was weighed: a batch without a single prediction."""
    return total / jnp.where(weight > 0, weight, 1.0)


def mean_loss(terms: tuple[Term, ...], sums: Mapping[str, Sums], denominators: Mapping[str, jax.Array]) -> jax.Array:
    """Return the weighted sum of the mean losses of the terms in `sums`, float32 []: the loss that is minimized.

    Raises:
      UserError: the objective contradicts itself, which shows while the step is traced: a name in `sums` or in
        `denominators` is not that of a term, two terms have one name, sums have no denominator, or there are none.
    """
    _check_names(terms, sums, denominators)
    if missing := [name for name in sums if name not in denominators]:
        raise UserError(
            f"the objective has sums of {missing[0]!r} but no denominator; it must return both, which its batches allow"
        )
    means = [(term.weight, ratio(sums[term.name].loss, denominators[term.name])) for term in terms if term.name in sums]
    first, *others = (mean if weight == 1 else weight * mean for weight, mean in means)
    return sum(others, first)


def training_metrics(
    terms: tuple[Term, ...], sums: Mapping[str, Sums], denominators: Mapping[str, jax.Array]
) -> dict[str, jax.Array]:
    """Return `mean_loss` as loss, and the loss and accuracy of each term, float32 []."""
    metrics = {}
    for term in terms:
        if (found := sums.get(term.name)) is not None:
            metrics[term.loss] = ratio(found.loss, denominators[term.name])
            if found.correct is not None:
                metrics[term.accuracy] = ratio(found.correct, found.weight)
    return metrics | {"loss": mean_loss(terms, sums, denominators)}


def evaluation_metrics(terms: tuple[Term, ...], sums: Mapping[str, Sums]) -> dict[str, float]:
    """Return loss (per prediction), perplexity and accuracy of each term, from sums in float64.

    Raises:
      UserError: a name in `sums` is not that of a term, or there are none.
    """
    _check_names(terms, sums, {})
    metrics = {}
    for term in terms:
        if (found := sums.get(term.name)) is not None:
            metrics[term.loss] = mean = found.loss / found.weight
            if term.perplexity:
                metrics[term.perplexity] = math.exp(min(mean, 700.0))
            if found.correct is not None:
                metrics[term.accuracy] = found.correct / found.weight
    return metrics


def _check_names(terms: tuple[Term, ...], sums: Mapping[str, Sums], denominators: Mapping[str, jax.Array]) -> None:
    """Raise a UserError if a term would silently not be trained or measured."""
    names = [term.name for term in terms]
    known = ", ".join(map(repr, names)) or "none"
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"two terms of the objective have the name {twice[0]!r}; their metrics need different names")
    for found, values in (("sums", sums), ("denominators", denominators)):
        if unknown := [name for name in values if name not in names]:
            raise UserError(
                f"the {found} of the objective have {unknown[0]!r}, which is not one of its terms ({known})"
            )
    if not sums:
        raise UserError(
            f"the objective returns no sums of any of its terms ({known}), so there is nothing to train or to measure; "
            "does the model have the heads, and the data the labels?"
        )
