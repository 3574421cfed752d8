"""Options of the analysis of masks: mask_gap."""

import dataclasses

from bert_jax.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskGapConfig:
    """analyze mask_gap RUN --output=DIR

    Measure whether a model has memorized its masks: the loss on training sequences with the masks that they were
    trained with, minus the loss on the same sequences with fresh masks, at every checkpoint of a run. Held-out
    sequences are measured in the same way.

    RUN is a work directory of pre-training. The curve has a point for each of its checkpoints (checkpoint.keep_last
    decides how many there are). The token store must be where the configuration of the run says.
    """

    output: str
    """Directory for result.json and the pictures. The same command with the same checkpoints reads an existing result
    from there."""
    sequences: int = 256
    """Number of training sequences, and of held-out ones."""
    fresh_masks: int = 4
    """Number of fresh masks for each sequence; their losses are averaged."""
    seed: int = 0
    """Seed of the sequences and of the fresh masks."""
    batch_size: int = 32
    """Number of sequences that the model reads at once."""

    def check(self) -> None:
        """Raise a UserError if an option cannot work; called before a run is opened."""
        for name in ("sequences", "fresh_masks", "batch_size"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)} must be at least 1")
        if self.seed < 0:
            raise UserError(f"seed={self.seed} must not be negative")
        if not self.output.strip():
            raise UserError("output is empty; give the directory of the result")
