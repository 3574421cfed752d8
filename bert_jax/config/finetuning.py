"""Options of fine-tuning, as a frozen dataclass, and the defaults of each task; its data are in `config.task_options`.

Only the standard library is imported here, as in `config.options`. The defaults of a task come from one table; the
command line overrides them, and `config.finetuning_checks` checks the result once, at the end.
"""

import dataclasses
import difflib
from typing import Any, Literal

from bert_jax.config import ComputeConfig, MeshConfig, OptimizerConfig, ScheduleConfig
from bert_jax.config.encoder_heads import LayersRead
from bert_jax.config.faults import HostFaultsConfig
from bert_jax.config.noise import NoiseConfig
from bert_jax.config.task_options import TASKS, TaskDataConfig, TaskOptions
from bert_jax.config.teachers import TaskDistillationConfig
from bert_jax.config.watching import ProfileConfig, SinksConfig
from bert_jax.errors import UserError

RESULTS = "results.json"
"""File that a fine-tuning, and each of its runs, leaves in its directory when it is done; a study does the same."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    """Fine-tuning one model on one task: one run, several seeds, or a grid."""

    task: str = ""
    """Name of the task. On the command line it is the first word."""
    init_from: str = ""
    """Model to start from. It is anything that `bert_jax.load` opens: a work directory (of pre-training or of another
    task), Hugging Face or TF1 files."""
    random_weights: bool = False
    """Whether to take only the shape and the vocabulary from init_from, and start from random parameters. The
    comparison with a run without this option shows what pre-training contributes."""
    data: TaskDataConfig = TaskDataConfig()
    """Where the examples of the task are."""
    options: TaskOptions = TaskOptions()
    """Conversion of examples to sequences, and of logits to answers. Each task uses the options that apply to it."""
    noise: NoiseConfig = NoiseConfig()
    """Spelling errors in the training texts, the same in every epoch and run; dev and test stay clean. Not for
    SQuAD."""
    workdir: str = ""
    """Directory of the results (local or gs://): results.json, config.json, the chosen checkpoint, predictions,
    runs/."""

    epochs: int = 3
    """Number of passes over the training examples."""
    batch_size: int = 32
    """Sequences per step."""
    micro_batches: int = 1
    """Number of parts into which a batch is divided (gradient accumulation), to save memory. The losses are those of
    the whole batch. Every batch size must be a multiple of it."""
    learning_rate: float = 5e-5
    """Peak learning rate."""
    warmup_share: float = 0.1
    """Share of the steps over which the learning rate rises from 0."""
    schedule: ScheduleConfig = ScheduleConfig()
    """Shape of the decay after the warm-up; by default linear to 0 at the last step."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """The optimizer. name=adamw_bert turns the bias correction off, as in 2018, which makes small tasks fail more
    often."""
    layer_decay: float = 1.0
    """Factor between the learning rate of each layer and that of the layer above it (0.95 in Zhang et al. 2021). 1: all
    layers learn at the same rate."""
    gradual_unfreezing: bool = False
    """Whether the first epoch trains the head and the pooler alone, each later epoch one more layer from the top, and
    the epoch after the last layer the embeddings too (ULMFiT, Howard & Ruder 2018)."""
    reinitialize_layers: int = 0
    """Number of top layers that, together with the pooler, start from random parameters (Zhang et al. 2021, "Revisiting
    few-sample BERT")."""
    head_dropout: float | None = None
    """Dropout rate on the input of the head. None: 0.1, and 0 for SQuAD, as in the original."""
    dropout: float | None = None
    """Dropout rate of the encoder: of hidden states, of attention, and of the weights from state to state of recurrent
    layers. None: the rates of the checkpoint's configuration."""
    crf: bool = False
    """Whether the head has a linear-chain CRF on its scores; for ner only."""
    features: LayersRead = ""
    """Layers of the frozen encoder on which a two-layer BiLSTM is trained (paper section 5.3), with a learning rate
    such as 1e-3. weighted_with_embeddings: all layers and the embeddings, with learned weights (ELMo). By default the
    encoder itself is fine-tuned."""
    lstm_size: int = 768
    """Width of the BiLSTM in each direction if features is given. The default is that of the paper."""
    train_encoder: bool = False
    """Whether the encoder below that BiLSTM is trained with it rather than frozen, as in the row of the paper's table 5
    that puts a BiLSTM on a left-to-right model."""

    seed: int = 0
    """Seed of the first run, for the head, the order of the examples and dropout."""
    seeds: int = 1
    """Number of runs of each setting, with the seeds seed, seed + 1, and so on. Their mean and standard deviation are
    reported."""
    grid: bool = False
    """Whether to run every combination of grid_batch_sizes, grid_learning_rates and grid_epochs instead of the single
    setting above, and choose the best on dev."""
    grid_batch_sizes: tuple[int, ...] = (16, 32)
    """Batch sizes of the grid, separated by commas."""
    grid_learning_rates: tuple[float, ...] = (5e-5, 4e-5, 3e-5, 2e-5)
    """Peak learning rates of the grid, separated by commas."""
    grid_epochs: tuple[int, ...] = (2, 3, 4)
    """Numbers of epochs of the grid, separated by commas."""
    select: Literal["last", "best"] = "last"
    """Which weights of a run count: those after its last epoch (as in the paper, whose grid has the epochs), or those
    that score best on dev."""
    keep: Literal["best", "all"] = "best"
    """Weights to keep at the end: those of the chosen run (best), or also those of every other run below runs/ (all;
    for ensembles)."""

    distillation: TaskDistillationConfig = TaskDistillationConfig()
    """A fine-tuned teacher to learn from, in addition to the labels."""

    bucket_window: int = 4
    """Number of batches of the shuffled order that are sorted by length together, to reduce padding. 1: plain shuffled
    order. If the lengths of the classes differ, a wide window makes batches of few classes, which hurts on small data
    sets."""
    packing: bool = False
    """Whether the sequences of a batch share rows, so that little is computed on padding. The batches and the weight of
    each sequence stay the same; dropout falls on different elements. Sorting becomes superfluous, so use
    bucket_window=1. Packing works for tasks on sentences and pairs."""
    eval_batch_size: int = 64
    """Sequences per batch of evaluation and prediction."""
    save_every_steps: int = 500
    """Number of steps between two saves of a run, from which it resumes after an interruption. It is also saved at the
    end of every epoch."""
    log_every_steps: int = 10
    """Number of steps between two rows of metrics."""
    compute: ComputeConfig = ComputeConfig()
    """Settings of the computation."""
    mesh: MeshConfig = MeshConfig()
    """Layout of the devices."""
    faults: HostFaultsConfig = HostFaultsConfig()
    """Handling of hosts that hang or die, and of devices that compute wrongly."""
    profile: ProfileConfig = ProfileConfig()
    """Which steps of each run leave a trace for XProf, in runs/NAME/profile."""
    sinks: SinksConfig = SinksConfig()
    """Services that receive the metrics in addition to TensorBoard. Each seed and each setting of a grid is a separate
    run there."""


# Where the defaults of a task differ from those above. Epochs, batch and learning rate of SQuAD and SWAG: Devlin et al.
# 2018, sections 4.2 to 4.4; lengths: google-research/bert (run_squad.py 384, others 128); STS-B, RTE, MRPC and CoLA are
# inside the paper's grid with its longest training, because small sets are the ones that fail.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "squad_v1": {"epochs": 3, "batch_size": 32, "learning_rate": 5e-5, "max_length": 384},
    "squad_v2": {"epochs": 2, "batch_size": 48, "learning_rate": 5e-5, "max_length": 384},
    "swag": {"epochs": 3, "batch_size": 16, "learning_rate": 2e-5},
    "race": {"epochs": 3, "batch_size": 16, "learning_rate": 2e-5, "max_length": 512},
    "choice": {"epochs": 3, "batch_size": 16, "learning_rate": 2e-5},
    "ner": {"epochs": 4, "batch_size": 16, "learning_rate": 5e-5, "max_length": 256},
    **{
        task: {"epochs": 4, "batch_size": 16, "learning_rate": 3e-5} for task in ("cola", "mrpc", "stsb", "rte", "wnli")
    },
}


def task_defaults(task: str) -> FinetuneConfig:
    """Return the FinetuneConfig that the options of a command, or `dataclasses.replace`, start from.

    Raises:
      UserError: there is no such task.
    """
    if task not in TASKS:
        close = difflib.get_close_matches(task.lower().replace("-", "").replace(".", ""), TASKS, n=1)
        hint = f"; perhaps you meant {close[0]}" if close else ""
        raise UserError(f"unknown task {task!r}{hint}; tasks: {' '.join(TASKS)}")
    values = dict(_DEFAULTS.get(task, {}))
    options = TaskOptions(max_length=values.pop("max_length", 128))
    return FinetuneConfig(task=task, options=options, **values)
