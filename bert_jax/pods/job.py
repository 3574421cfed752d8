"""What a launch starts: the command line of `bert-jax pretrain`, checked before anything is started."""

import dataclasses
import pathlib

from bert_jax.config import Config
from bert_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Job:
    """A pre-training run that other processes will start."""

    source: str
    """CONFIG as it was given: the name of a shipped configuration, or a file."""
    words: tuple[str, ...]
    """The options of pretrain after it, as they were given."""
    config: Config
    """The options that result, checked."""

    def __post_init__(self):
        if not self.config.data.path:
            raise UserError("--data.path is missing: give the token store that bert-jax prepare wrote")
        if not self.config.workdir:
            raise UserError("--workdir is missing: give a directory for checkpoints and metrics")

    @property
    def file(self) -> pathlib.Path | None:
        """The configuration file, or None for a shipped configuration, which every installation has."""
        path = pathlib.Path(self.source)
        return path if path.is_file() else None

    def command(self, *program: str) -> list[str]:
        """Return the words of the command that starts the run, with `program` in place of bert-jax."""
        return [*program, "pretrain", self.source, *self.words]


def at_least(options, **minima: int) -> None:
    """Raise a UserError if one of these options is below its minimum."""
    for name, minimum in minima.items():
        if getattr(options, name) < minimum:
            raise UserError(f"--{name}={getattr(options, name)} must be at least {minimum}")
