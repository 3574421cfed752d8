"""Rolls a run back to its last good checkpoint; the run then continues after the batches that it had read."""

import dataclasses
from collections.abc import Callable

from absl import logging

from bert_jax.config import Phase
from bert_jax.errors import UserError
from bert_jax.training.fault_report import write_report
from bert_jax.training.guard import Trouble
from bert_jax.training.position import Position, Span
from bert_jax.training.pretraining_run import PretrainingRun
from bert_jax.training.state import TrainState


def check_way_back(
    run: PretrainingRun, phase: Phase, trouble: Trouble, state: TrainState, positions: Callable[[int], Position]
) -> None:
    """Raise a UserError that names a report if no checkpoint is old enough to go back to, or no rollback is left.

    Args:
      run: what the phases share.
      phase: the phase of the trouble.
      trouble: what has happened.
      state: the newest state.
      positions: returns where the run was in its data after a step.
    """
    left = run.config.faults.rollbacks - len(positions(trouble.last).skipped)
    if left > 0 and any(step < trouble.first for step in run.checkpoints.steps_anywhere()):
        return
    span = positions(trouble.first - 1).examples_seen, positions(trouble.last).examples_seen
    examples = run.corpus.training[phase.index]
    file = write_report(run.workdir.path, trouble, span, run.learner, phase, state, examples, run.config.seed)
    newest = run.checkpoints.latest_step()
    raise UserError(
        f"{trouble}, "
        + (
            "and no checkpoint is older"
            if left > 0
            else f"and none of the {run.config.faults.rollbacks} rollbacks is left"
        )
        + f". {file} has the batch and the norms of each layer"
        + ("" if newest is None else f"; the newest checkpoint is step {newest}")
        + ". Lower the learning rate or lengthen the warm-up, in another --workdir; or raise --faults.rollbacks"
    )


def roll_back(run: PretrainingRun, phase: Phase, trouble: Trouble, behind: Position) -> tuple[TrainState, Position]:
    """Restore the newest good checkpoint before `trouble`; return its state and where to resume: at position `behind`.

    Checkpoints after it, and rows of metrics, are deleted: the run takes these steps again. Nothing else is written.
    A run that ends before its next save meets the same trouble and rolls back in the same way.

    Args:
      run: what the phases share.
      phase: the phase of the trouble.
      trouble: what has happened.
      behind: the position behind the last batch of `trouble`.

    Raises:
      UserError: there is no checkpoint to go back to.
    """
    run.checkpoints.discard_after(trouble.first - 1)
    restored = run.checkpoints.restore(run.learner.abstract)
    if restored is None:
        raise UserError(
            f"{trouble}, before the first checkpoint. Lower the learning rate or lengthen the warm-up, and start in "
            "another --workdir"
        )
    there = Position.from_dict(restored.position)
    known = tuple(dict.fromkeys((*there.skipped, *behind.skipped)))
    there = dataclasses.replace(there, skipped=known)
    span = Span(phase.index, there.seen_in(phase.index), behind.examples_seen)
    run.metrics.rewind(restored.step)
    run.events.write(
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
