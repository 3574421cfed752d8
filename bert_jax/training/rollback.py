"""Going back to the last good checkpoint when the numbers of a run have gone wrong, and on behind what it had read."""

import dataclasses
from typing import Any

from absl import logging

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.config import Phase
from bert_jax.errors import UserError
from bert_jax.training.events import Events
from bert_jax.training.guard import Trouble
from bert_jax.training.metrics import Metrics
from bert_jax.training.position import Position, Span


def roll_back(
    trouble: Trouble,
    behind: Position,
    phase: Phase,
    checkpoints: Checkpoints,
    abstract,
    metrics: Metrics,
    events: Events,
) -> tuple[Any, Position]:
    """Restore the newest good checkpoint before `trouble`; return its state and where to go on: at position `behind`.

    Checkpoints after it, and rows of metrics, are deleted: the run takes these steps again. Nothing else is written.
    A run that ends before its next save meets the same trouble and rolls back in the same way.

    Args:
      trouble: what has happened.
      behind: the position behind the last batch of `trouble`.
      phase: the phase of the trouble.
      checkpoints: those of the run.
      abstract: shapes and shardings of the state.
      metrics: whose rows of later steps are dropped.
      events: where the rollback is noted.

    Raises:
      UserError: there is no checkpoint to go back to.
    """
    checkpoints.discard_after(trouble.first - 1)
    restored = checkpoints.restore(abstract)
    if restored is None:
        raise UserError(
            f"{trouble}, before the first checkpoint. Lower the learning rate or lengthen the warm-up, and start in "
            "another --workdir"
        )
    there = Position.from_dict(restored.position)
    known = tuple(dict.fromkeys((*there.skipped, *behind.skipped)))
    there = dataclasses.replace(there, skipped=known)
    span = Span(phase.index, there.seen_in(phase.index), behind.examples_seen)
    metrics.rewind(restored.step)
    events.write(
        "rollback", trouble.last, reason=str(trouble), from_step=trouble.last, to_step=restored.step, span=list(span)
    )
    logging.warning(
        "%s: back to step %d; the examples %d to %d of phase %d are skipped",
        trouble,
        restored.step,
        span.begin,
        span.end - 1,
        span.phase,
    )
    return restored.state, dataclasses.replace(there, skipped=(*known, span))
