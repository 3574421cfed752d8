"""Options of the analysis of masks: mask_gap."""

import dataclasses

from bert_jax.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskGapConfig:
    """analyze mask_gap RUN --output=DIR

    Measure whether a model has learned its masks by heart: the loss of training sequences with the masks that they were
    trained with, less that of the same sequences with fresh ones, at every checkpoint of a run, and the same for
    held-out sequences.

    RUN is a work directory of pre-training. The curve has a point for each checkpoint in it (checkpoint.keep_last), and
    the token store must be where its configuration says.
    """

    output: str
    """Directory for result.json and the pictures. Started again with the same checkpoints and options, the command
    reads the result from there."""
    sequences: int = 256
    """Number of training sequences, and of held-out ones."""
    fresh_masks: int = 4
    """Number of fresh masks of each sequence, whose losses are averaged."""
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
