"""Our contestant in `bert-jax bench data`: batches as the loop of pre-training gets them, in a process of its own."""

from collections.abc import Callable
from typing import Any

import numpy as np

from bert_jax.bench.peer.serving import serve
from bert_jax.config import Config, resolve_phases
from bert_jax.config.json_form import from_dict
from bert_jax.data.examples.corpus import open_corpus
from bert_jax.data.examples.pipeline import batches, check_loader
from bert_jax.errors import UserError

EXAMINED = 8  # batches by which the share of tokens is told


def prepare(job: dict[str, Any]) -> tuple[Callable[[int], object], dict[str, Any]]:
    """Return a function that takes so many batches from the loader, and facts about them."""
    config = from_dict(Config, job["config"])
    (phase,) = resolve_phases(config)
    check_loader(config.data.loader)
    (examples,) = open_corpus(config).training
    rows, position = np.arange(phase.batch_size), 0
    first = [examples.batch(number * phase.batch_size + rows) for number in range(EXAMINED)]
    tokens = float(np.mean([np.count_nonzero(batch["attention_mask"]) for batch in first]))

    def work(units: int) -> None:
        nonlocal position
        loader, prefetch = config.data.loader, config.data.prefetch
        for _ in batches(examples, position, phase.batch_size, rows, units, loader=loader, prefetch=prefetch):
            pass
        position += units * phase.batch_size

    facts = {
        "sequences": phase.batch_size,
        "tokens": tokens,
        "token_share": tokens / phase.tokens_per_step,
    }
    return work, facts


if __name__ == "__main__":
    serve(prepare, UserError)
