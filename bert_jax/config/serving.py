"""Options of `bert-jax serve` and of the engine behind it, as frozen dataclasses; standard library only."""

import dataclasses

from bert_jax.errors import need_positive


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """What an engine computes at once, and how much may wait for it."""

    positions: int = 2048
    """Most positions of a batch, padding included. Larger batches use wide processors better, and a text that has just
    arrived waits longer for the batch before it."""
    max_requests: int = 256
    """Most requests that are accepted and not yet answered; more are told to come again."""
    max_texts: int = 4096
    """Most texts of all requests that are accepted and not yet answered, and of a single one."""
    max_tokens: int = 262_144
    """Most tokens that wait to be computed, and of a single request; windows of long contexts count each."""
    max_bytes: int = 16_777_216
    """Most bytes of text, in UTF-8, of all requests that are accepted and not yet answered, and of a single one."""
    deadline: float = 30.0
    """Seconds after which a request that has not been computed is dropped from the queue."""
    threads: int = 64
    """Number of requests that are read and answered at the same time, each in a thread that waits while the rows of all
    of them are computed."""

    def __post_init__(self) -> None:
        names = (field.name for field in dataclasses.fields(self))
        need_positive(self, "engine.", *names)
