"""What a launch starts: the command line of `bert-jax pretrain`, checked before anything is started."""

import dataclasses
import os
import pathlib
import re
from typing import Any

from bert_jax.config import Config
from bert_jax.config.mixtures import training_paths
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

    def __post_init__(self) -> None:
        if not training_paths(self.config):
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

    def words_elsewhere(self, directory: str = "") -> list[str]:
        """Return the words after bert-jax on a machine that has the configuration file, if any, in `directory`."""
        source = self.source if self.file is None else os.path.join(directory, self.file.name)
        return ["pretrain", source, *self.words]

    def need_bucket(self, reason: str) -> None:
        """Raise a UserError if what the run reads and writes is on the disk of this machine.

        Args:
          reason: why the work directory has to be in a bucket.
        """
        if not self.config.workdir.startswith("gs://"):
            raise UserError(
                f"--workdir={self.config.workdir} is not in a bucket: {reason}; give --workdir=gs://BUCKET/DIRECTORY"
            )
        paths = training_paths(self.config)
        for name, path in (
            *(("data.path" if path == self.config.data.path else "data.mixture", path) for path in paths),
            ("data.eval_path", self.config.data.eval_path),
            ("init_from", self.config.init_from),
            ("objective.distillation.teacher", self.config.objective.distillation.teacher),
        ):
            if path and not path.startswith(("gs://", "/")):
                raise UserError(
                    f"--{name}={path} is a path of this machine, which the workers cannot read; copy it to a bucket "
                    f"(gcloud storage cp --recursive {path} gs://BUCKET/) and give --{name}=gs://BUCKET/…"
                )

    def need_slices(self, slices: int) -> None:
        """Raise a UserError if the mesh of the run has another number of slices; -1 takes as many as there are."""
        if self.config.mesh.slice not in (slices, -1):
            raise UserError(
                f"--slices={slices} but mesh.slice={self.config.mesh.slice}; add --mesh.slice={slices}, with which the "
                "gradients are added up within each slice first"
            )


def need_name(name: str) -> None:
    """Raise a UserError if Google Cloud and Kubernetes would not take this name."""
    if not re.fullmatch(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", name):
        raise UserError(
            f"--name={name} must be at most 40 lower-case letters, digits and hyphens, beginning with a letter and not "
            "ending with a hyphen"
        )


def at_least(options: Any, **minima: int) -> None:
    """Raise a UserError if one of these options is below its minimum."""
    for name, minimum in minima.items():
        if getattr(options, name) < minimum:
            raise UserError(f"--{name}={getattr(options, name)} must be at least {minimum}")
