"""Options of the analysis of a model before its first step: init."""

import dataclasses

from bert_jax.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class InitConfig:
    """analyze init MODEL --output=DIR

    Measure a model before its first step, and compare it with theory: the norm of attention by the number of heads,
    states and gradients by depth for post-norm and pre-norm, the similarity of positions, and operations and memory by
    length.

    MODEL is the name of a shipped configuration (bert_mini), a configuration file, or anything that bert_jax.load
    opens. Only its sizes are used, except that its learned positions are compared with both ways to initialize them.
    """

    output: str
    """Directory for result.json and the pictures. The same command with the same sizes reads an existing result from
    there."""
    heads: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Numbers of heads to compare; those that do not divide the hidden size are left out."""
    lengths: tuple[int, ...] = (32, 64, 128, 256, 512)
    """Sequence lengths, in tokens, for which the costs of a step are computed; those that the model cannot read are
    left out."""
    draws: int = 64
    """Number of initializations per number of heads. States and gradients use a sixteenth of it, and at least 2."""
    length: int = 64
    """Sequence length, in tokens, of all other measurements."""
    seed: int = 0
    """Seed of everything that is drawn at random."""

    def check(self) -> None:
        """Raise a UserError if an option cannot work."""
        if not self.output.strip():
            raise UserError("output is empty; give the directory of the result")
        if self.draws < 2:
            raise UserError(f"draws={self.draws} must be at least 2, or there is no sampling error")
        for name in ("heads", "lengths"):
            if min(getattr(self, name), default=0) < 1:
                raise UserError(f"{name} must be positive numbers, separated by commas, at least one")
