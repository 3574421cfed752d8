"""From the newest step to older ones, over one or several tiers, until one can be used: the same walk on every host."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar

import jax

from bert_jax.checkpoints.record import Damaged
from bert_jax.devices.hosts import any_failure, from_first
from bert_jax.devices.memory_shortage import tells_of_memory
from bert_jax.errors import UserError

P = ParamSpec("P")
R = TypeVar("R")


@dataclasses.dataclass(frozen=True)
class Restored:
    """Contents of a checkpoint. `state` is the requested tree on the requested devices."""

    step: int
    state: Any
    position: dict[str, Any]
    config: dict[str, Any]
    metrics: dict[str, Any] | None


class Tier(Protocol):
    """A place where steps of one run are saved."""

    def steps(self) -> list[int]:
        """Return the steps that the first host sees there; every host asks."""
        ...

    def read(self, step: int, abstract: Any) -> Restored:
        """Return a step in the shape of `abstract`.

        Raises:
          Damaged: it cannot be used; raised on every host.
          UserError: it belongs to a different model.
        """
        ...


def walk_back(tiers: Sequence[Tier], abstract: Any) -> tuple[Restored | None, list[dict[int, str]]]:
    """Return the newest good step, that of the last tier if several have it, and the refused steps of each tier.

    Raises:
      UserError: the newest readable step belongs to a different model.
    """
    refused: list[dict[int, str]] = [{} for _ in tiers]
    found = from_first([(step, number) for number, tier in enumerate(tiers) for step in tier.steps()])
    for step, number in sorted(found, reverse=True):
        try:
            return tiers[number].read(step, abstract), refused
        except Damaged as damage:
            refused[number][step] = str(damage)
    return None, refused


def together(read: Callable[P, R], *args: P.args, **options: P.kwargs) -> R:
    """Return `read(…)`, in which hosts do not meet.

    Raises:
      Damaged: it has failed on one of the hosts; raised on all of them, so that they go back to an older step together.
    """
    value, problem = attempt(read, *args, **options)
    if problem is not None:
        raise Damaged(problem)
    return value


def attempt(read: Callable[..., Any], *args: Any, **options: Any) -> tuple[Any, str | None]:
    """Return (value, None) or (None, reason), the same on every host, so that all go back to an older step together."""
    value, problem = None, None
    try:
        value = read(*args, **options)
    except UserError:
        raise
    except Exception as error:  # damaged files provoke anything, from KeyError to TensorStore's ValueError
        if isinstance(error, jax.errors.JaxRuntimeError) and tells_of_memory(error):  # of a device, not of the files
            raise
        problem = reason(error)
    return value, any_failure(problem)


def reason(error: Exception) -> str:
    """Return what an error says, in one line."""
    if isinstance(error, Damaged):
        return str(error)
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__
