"""One check of `bert-jax doctor`: what was measured, where the limit is, and what to do about it."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """The outcome of one check."""

    name: str
    """The failure that it looks for."""
    seen: str
    """The figure, in words."""
    limit: str
    """What the figure has to be."""
    is_wrong: bool
    remedy: str
    """What to do if it is wrong."""
