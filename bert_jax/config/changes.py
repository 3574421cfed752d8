"""The options that may change between two starts of a run, and those that may differ between its hosts.

Any other option determines what is learned from which batches: a start with a different value is an error. Names are
dotted; one that ends in a dot includes everything below it (`json_form.is_among`).
"""

import dataclasses
import re

from bert_jax.config.json_form import is_among

_HARMLESS = re.compile(r"phases\.\d+\.(micro_batches|mixture)")  # stores and shares are compared by fingerprint
_ELASTIC = re.compile(r"phases\.\d+\.(batch_size|learning_rate)")


@dataclasses.dataclass(frozen=True)
class Changes:
    """Options of one command that may vary, by what they determine."""

    where: tuple[str, ...]
    """Where copies of the same data and model are, and how they are read: may differ between hosts."""
    how: tuple[str, ...]
    """Where results go and how they are computed, logged and kept: may change between two starts."""

    def below(self, group: str) -> "Changes":
        """Return the same options as they are named in a dict in which they are under `group`."""
        return Changes(*(tuple(f"{group}.{name}" for name in names) for names in (self.where, self.how)))


_READING = ("data.path", "data.mixture", "data.cache", "data.loader", "data.prefetch")
PRETRAINING = Changes(
    where=(*_READING, "data.eval_path", "init_from", "objective.distillation.teacher", "checkpoint.local_path"),
    how=(
        *_READING,
        "workdir",
        "log_every_steps",
        "elastic_batch",
        "objective.distillation.teacher",
        "checkpoint.",
        "evaluation.",
        "mesh.",
        "compute.",
        "faults.",
        "profile.",
        "sinks.",
    ),
)
"""`init_from` is not in `how`, because a resumed run ignores it. A teacher is known by its arrays, wherever it is."""

_COPIES = tuple(f"data.{name}" for name in ("dir", "train", "dev", "test", "tfds", "tfds_dir"))
_RUN = ("seed", "seeds", "grid", "grid_batch_sizes.", "grid_learning_rates.", "grid_epochs.")
# But not the data type.
_COMPUTED = tuple(f"compute.{name}" for name in ("attention", "layers", "overlap", "products", "remat"))
FINETUNING = Changes(
    where=("init_from", "distillation.teacher", *_COPIES),
    how=(
        *("init_from", "distillation.teacher", "data.", "workdir", "mesh.", *_COMPUTED),
        *(*_RUN, "batch_size", "micro_batches", "packing", "learning_rate", "epochs"),
        *("keep", "eval_batch_size", "save_every_steps", "log_every_steps", "faults.", "profile.", "sinks."),
    ),
)
"""`how` includes the options that are part of a run's name, since each of their values is a separate run; data and
parameters are compared by their content."""

_FINETUNING_RECORD = (
    *FINETUNING.below("finetune").how,
    *_COMPUTED,
    "pairs",
)
"""The same in config.json of a work directory, which has the options of computation outside "finetune" too, and what
follows from the data."""


def is_harmless(line: str) -> bool:
    """Return whether a line of `differences` between two pre-training configurations does not prevent resuming."""
    key, change = line.split(": ", 1)
    if key == "data.eval_path":  # from or to "" moves the held-out documents into or out of the training data
        return "" not in change.split(" → ")
    return bool(_HARMLESS.fullmatch(key)) or is_among(key, PRETRAINING.how)


def is_harmless_to_finetuning(line: str) -> bool:
    """Return whether a line of `differences` between two config.json of fine-tuning does not prevent resuming."""
    return is_among(line.split(": ", 1)[0], _FINETUNING_RECORD)


def is_elastic(line: str) -> bool:
    """Return whether a line changes what a run may resume with if it says `elastic_batch`."""
    return bool(_ELASTIC.fullmatch(line.split(": ", 1)[0]))


def lengthens(line: str, phases: int) -> bool:
    """Return whether a line changes the steps of the last of `phases` phases: people extend runs, or cut them short."""
    key, change = line.split(": ", 1)
    return key == f"phases.{phases - 1}.steps" and "None" not in change
