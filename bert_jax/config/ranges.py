"""Ranges that the values of options must be in."""

import math

from bert_jax.errors import UserError


def need_positive(part: object, prefix: str, *names: str) -> None:
    """Raise a UserError unless the options `names` of `part`, which errors begin with `prefix`, are positive."""
    for name in names:
        value = getattr(part, name)
        if not 0 < value < math.inf:
            raise UserError(f"{prefix}{name}={value} must be positive")


def need_divisible(prefix: str, name: str, batch_size: int, micro_batches: int) -> None:
    """Raise a UserError unless the batches of option `name` divide into micro-batches."""
    if batch_size % micro_batches:
        low = batch_size // micro_batches * micro_batches
        near = " or ".join(str(size) for size in (low, low + micro_batches) if size)
        raise UserError(
            f"{prefix}{name}={batch_size} is not divisible by {prefix}micro_batches={micro_batches}; nearest: {near}"
        )


def need_share(part: object, prefix: str, *names: str, below_one: bool = False) -> None:
    """Raise a UserError unless the options `names` of `part` are between 0 and 1, which `below_one` excludes."""
    for name in names:
        value = getattr(part, name)
        if not 0 <= value <= 1 or (below_one and value == 1):
            raise UserError(
                f"{prefix}{name}={value} must be between 0 and 1" + (", 1 not included" if below_one else "")
            )
