"""Mixtures of token stores as they are written in an option: STORE=0.7,STORE=0.3; the standard library only."""

import dataclasses
import math
import re
from typing import Literal

from bert_jax.config.options import Config
from bert_jax.errors import UserError

_UNITS = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_BUDGET = re.compile(r"(\d+(?:\.\d*)?|\.\d+)([KMBT])")


@dataclasses.dataclass(frozen=True)
class MixturePart:
    """One store of a mixture."""

    path: str
    amount: float | None
    """Its weight among the sequences, or its budget in tokens. None: it follows from its size."""
    kind: Literal["weight", "tokens", "size"]


def resolve_mixtures(config: Config) -> tuple[tuple[MixturePart, ...], ...]:
    """Return the mixture of each phase; none is empty, or all are, if the run has one store (data.path).

    Raises:
      UserError: an option cannot be read, or two of them contradict each other.
    """
    data = config.data
    if not data.mixture:
        for index, phase in enumerate(config.phases):
            if phase.mixture:
                raise UserError(
                    f"phases.{index}.mixture={phase.mixture}, but data.mixture is empty; give data.mixture, which the "
                    "phases without a mixture of their own read"
                )
        if data.mixture_temperature != 1:
            raise UserError(f"data.mixture_temperature={data.mixture_temperature} has no effect without data.mixture")
        return tuple(() for _ in config.phases)
    if data.path:
        raise UserError(
            f"data.path={data.path} and data.mixture={data.mixture}: give one of them; a store of a mixture is named "
            "in data.mixture"
        )
    if not (math.isfinite(data.mixture_temperature) and data.mixture_temperature > 0):
        raise UserError(f"data.mixture_temperature={data.mixture_temperature} must be a positive number")
    common = _parsed(data.mixture, "data.mixture", data.mixture_temperature)
    return tuple(
        _parsed(phase.mixture, f"phases.{index}.mixture", data.mixture_temperature) if phase.mixture else common
        for index, phase in enumerate(config.phases)
    )


def mixture_paths(config: Config) -> tuple[str, ...]:
    """Return the stores of all phases, each once, in the order in which they are first named; () without a mixture."""
    return tuple(dict.fromkeys(part.path for parts in resolve_mixtures(config) for part in parts))


def training_paths(config: Config) -> tuple[str, ...]:
    """Return the stores that a run trains on; () if none is given."""
    return mixture_paths(config) or ((config.data.path,) if config.data.path else ())


def _parsed(text: str, option: str, temperature: float) -> tuple[MixturePart, ...]:
    parts = tuple(_part(item.strip(), option) for item in text.split(",") if item.strip())
    if not parts:
        raise UserError(f"{option}={text!r} names no store; give STORE=WEIGHT,STORE=WEIGHT")
    paths = [part.path for part in parts]
    if twice := [path for path in paths if paths.count(path) > 1]:
        raise UserError(f"{option}={text} names {twice[0]} twice; give each store once, with its whole weight")
    kinds = {part.kind for part in parts}
    if len(kinds) > 1:
        raise UserError(
            f"{option}={text}: give all stores a weight (STORE=0.7), all a budget in tokens (STORE=300M), or none of "
            "them anything (shares then follow from their sizes)"
        )
    if kinds != {"size"} and sum(part.amount or 0.0 for part in parts) <= 0:
        raise UserError(f"{option}={text}: the weights add up to nothing; give at least one store a positive weight")
    if kinds != {"size"} and temperature != 1:
        raise UserError(
            f"data.mixture_temperature={temperature}, but {option}={text} says how much of each store is read; leave "
            "one of them out"
        )
    return parts


def _part(item: str, option: str) -> MixturePart:
    path, equals, amount = (item, "", "") if "=" not in item else item.rpartition("=")
    if not path:
        raise UserError(f"{option}: {item!r} names no store; give STORE=WEIGHT")
    if not equals:
        return MixturePart(path, None, "size")
    if budget := _BUDGET.fullmatch(amount):
        return MixturePart(path, float(budget[1]) * _UNITS[budget[2]], "tokens")
    try:
        weight = float(amount)
    except ValueError:
        weight = math.nan
    if not (math.isfinite(weight) and weight >= 0):
        raise UserError(
            f"{option}: {item!r} gives {path} the weight {amount!r}; give a number from 0 on (STORE=0.7), or a number "
            "of tokens with K, M, B or T (STORE=300M)"
        )
    return MixturePart(path, weight, "weight")
