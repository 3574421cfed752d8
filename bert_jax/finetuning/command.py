"""What all runs of one `finetune` share."""

import dataclasses

from bert_jax.checkpoints.workdir import WorkDirectory
from bert_jax.config.finetuning import FinetuneConfig
from bert_jax.devices.signals import StopSignals
from bert_jax.finetuning.programs import Programs
from bert_jax.formats.stored import StoredModel
from bert_jax.tasks.task_data import TaskData
from bert_jax.training.events import Events
from bert_jax.training.wall_time import WallTime


@dataclasses.dataclass(frozen=True)
class Command:
    """What all runs of a command share."""

    config: FinetuneConfig
    data: TaskData
    stored: StoredModel
    """The model that is fine-tuned."""
    programs: Programs
    workdir: WorkDirectory
    events: Events
    signals: StopSignals
    wall_time: WallTime
    """Runs on from one run to the next, so that the rows of all of them add up to the time of the command."""
