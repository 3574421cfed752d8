"""Options of fine-tuning, as frozen dataclasses, the defaults of each task, and the checks that span several options.

Only the standard library is imported here, as in `config.options`. The defaults of a task come from one table; the
command line overrides them, and `check_finetune` checks the result once, at the end.
"""

import dataclasses
import difflib
import math
from typing import Any, Literal

from bert_jax.config import ComputeConfig, MeshConfig, OptimizerConfig, ScheduleConfig
from bert_jax.config.checks import check_mesh, check_optimizer, check_schedule
from bert_jax.config.encoder import LayersRead
from bert_jax.config.noise import NoiseConfig, check_noise
from bert_jax.config.teachers import TaskDistillationConfig, check_task_distillation
from bert_jax.errors import UserError, need_cloud_storage

GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli", "ax")
PACKED = (*(task for task in GLUE if task != "ax"), "text")
"""Tasks whose sequences may share rows: one class or number for each sequence."""
TASKS = (*GLUE, "squad_v1", "squad_v2", "swag", "race", "choice", "ner", "text")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskDataConfig:
    """Where the examples of a task are: local files, or a TFDS dataset."""

    dir: str = ""
    """Directory with the task's files under their original names, local or gs://."""
    train: str = ""
    """File to train on, if it does not have its original name."""
    dev: str = ""
    """File to evaluate on, if it does not have its original name."""
    test: str = ""
    """File to predict, labelled or not, if it does not have its original name."""
    dev_share: float = 0.0
    """Share of the training file, such as 0.1, that is held out as dev if there is no dev file (text only). Which texts
    these are depends only on the file, so all seeds and settings have the same ones; equal texts stay together."""
    tfds: str = ""
    """Name of a TFDS dataset (glue/mrpc, squad/v1.1, …) in place of files; train, dev and test then name its splits."""
    tfds_dir: str = ""
    """Directory where TFDS keeps its data. By default TFDS decides."""
    text_column: str = ""
    """Column of the sentence in the task text: its name (TSV, CSV), its key (JSON lines, TFDS), or its number, from 1,
    in a file without a header. By default text, sentence or sentence1."""
    pair_column: str = ""
    """Column of the second sentence in the task text. By default text_pair or sentence2, if there is one."""
    label_column: str = ""
    """Column of the label in the task text. By default label."""
    regression: bool = False
    """Whether the labels of the task text are numbers to estimate rather than classes."""
    word_column: int = 0
    """Number of the column of the words in the task ner, from 1. 0: the first (CoNLL-U: the second)."""
    tag_column: int = 0
    """Number of the column of the tags in the task ner, from 1. 0: the last (CoNLL-U: the fourth, universal parts of
    speech)."""
    scheme: Literal["auto", "iob1", "iob2", "iobes", "plain"] = "auto"
    """How the tags of the task ner mark entities. auto: recognized from the tags. plain: tags without B- and I-, such
    as parts of speech."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """How the examples of a task become sequences, and logits become answers. Each task uses those that apply to it."""

    max_length: int = 128
    """Tokens per sequence, [CLS] and [SEP] included. Longer ones are cut or, in the SQuAD tasks and ner, split into
    windows."""
    doc_stride: int = 128
    """SQuAD: number of tokens between the starts of two windows, as in the original (not their overlap). ner: maximum
    number of tokens predicted per window, in its middle and at most half of it; the rest of the window is context."""
    max_query_length: int = 64
    """SQuAD: maximum number of tokens of a question; longer ones are cut."""
    max_answer_length: int = 30
    """SQuAD: maximum number of tokens of a predicted answer."""
    n_best: int = 20
    """SQuAD: number of answers that are kept for each question."""
    null_threshold: float | None = None
    """SQuAD 2.0: a question is left unanswered if "no answer" scores higher than the best answer by more than this.
    None: tuned on dev."""
    context: bool = True
    """ner: whether each window is filled up with the sentences around it, as in the paper."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    """Fine-tuning one model on one task: one run, several seeds, or a grid."""

    task: str = ""
    """Name of the task. On the command line it is the first word."""
    init_from: str = ""
    """Model to start from, anything that `bert_jax.load` opens: a work directory (of pre-training or of another task),
    Hugging Face or TF1 files."""
    random_weights: bool = False
    """Whether to take only shape and vocabulary from init_from and start from random parameters. Compared with a run
    without this option, it shows what pre-training contributes."""
    data: TaskDataConfig = TaskDataConfig()
    """Where the examples of the task are."""
    options: TaskOptions = TaskOptions()
    """How examples become sequences, and logits answers."""
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
    """Number of parts in which a batch is computed (gradient accumulation), to save memory. The losses are those of the
    whole batch. Every batch size must be a multiple of it."""
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
    """Whether the first epoch trains the head and the pooler alone, and each later one also the next layer from the
    top, until after the last layer the embeddings learn too (ULMFiT, Howard & Ruder 2018)."""
    reinitialize_layers: int = 0
    """Number of top layers that, together with the pooler, start from random parameters (Zhang et al. 2021, "Revisiting
    few-sample BERT")."""
    head_dropout: float | None = None
    """Dropout rate on the input of the head. None: 0.1, and 0 for SQuAD, as in the original."""
    dropout: float | None = None
    """Dropout rate of the encoder, both hidden and attention. None: that of the checkpoint's configuration."""
    crf: bool = False
    """ner: whether the head has a linear-chain CRF on its scores."""
    features: LayersRead = ""
    """ner: layers of the frozen encoder on which a two-layer BiLSTM is trained (paper section 5.3), with a learning
    rate such as 1e-3. By default the encoder itself is fine-tuned."""
    lstm_size: int = 768
    """ner: width of the BiLSTM in each direction if features is given; by default that of the paper."""
    train_encoder: bool = False
    """ner: whether the encoder below that BiLSTM is trained with it, as in the row of the paper's table 5 that puts one
    on a left-to-right model, rather than frozen."""

    seed: int = 0
    """Seed of the first run: of the head, the order of the examples and dropout."""
    seeds: int = 1
    """Number of runs of each setting, with seeds seed, seed + 1, …, whose mean and standard deviation are reported."""
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
    """A fine-tuned teacher to learn from beside the labels."""

    bucket_window: int = 4
    """Number of batches of the shuffled order that are sorted by length together, to reduce padding. 1: plain shuffled
    order. If the lengths of the classes differ, a wide window makes batches of few classes, which hurts on small data
    sets."""
    packing: bool = False
    """Whether the sequences of a batch share rows, so that little is computed on padding. The batches and what each
    sequence counts stay the same, dropout falls on other elements. It makes sorting superfluous: bucket_window=1. For
    tasks on sentences and pairs."""
    eval_batch_size: int = 64
    """Sequences per batch of evaluation and prediction."""
    save_every_steps: int = 500
    """Number of steps between two saves of a run, from which it resumes after an interruption. It is also saved at the
    end of every epoch."""
    log_every_steps: int = 10
    """Number of steps between two rows of metrics."""
    compute: ComputeConfig = ComputeConfig()
    """How the computation is carried out."""
    mesh: MeshConfig = MeshConfig()
    """How the devices are laid out."""


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


def check_finetune(config: FinetuneConfig) -> FinetuneConfig:
    """Return `config` if its values fit together; raise a UserError that names option, value and remedy otherwise."""
    task_defaults(config.task)
    for name, value, meaning in (
        ("init_from", config.init_from, "the checkpoint to start from"),
        ("workdir", config.workdir, "a directory for the results"),
    ):
        if not value:
            raise UserError(f"--{name} is missing: give {meaning}")
    data = config.data
    for path in (config.init_from, config.workdir, data.dir, data.train, data.dev, data.test, data.tfds_dir):
        need_cloud_storage(path)
    _check_data(config.task, config.data)
    for name in (
        "epochs",
        "batch_size",
        "micro_batches",
        "learning_rate",
        "seeds",
        "bucket_window",
        "eval_batch_size",
        "save_every_steps",
        "log_every_steps",
        "lstm_size",
    ):
        _positive(name, getattr(config, name))
    for name in ("grid_batch_sizes", "grid_learning_rates", "grid_epochs"):
        if not getattr(config, name):
            raise UserError(f"{name} is empty; the paper's is {getattr(FinetuneConfig(), name)}")
        for value in getattr(config, name):
            _positive(name, value)
    sizes = [("grid_batch_sizes", size) for size in config.grid_batch_sizes]
    for name, size in sizes if config.grid else [("batch_size", config.batch_size)]:
        _check_divisible(name, size, config.micro_batches)
    for name, low, high in (("warmup_share", 0, 1), ("head_dropout", 0, 0.999), ("dropout", 0, 0.999)):
        value = getattr(config, name)
        if value is not None and not low <= value <= high:
            raise UserError(f"{name}={value} must be between {low} and {high}")
    check_noise(config.noise, "noise.")
    if config.noise.rate and config.task.startswith("squad"):
        raise UserError(
            f"noise.rate={config.noise.rate} would move the answers of {config.task}, which are places in the text; "
            "set noise.rate=0"
        )
    if not 0 < config.layer_decay <= 1:
        raise UserError(
            f"layer_decay={config.layer_decay} must be above 0 and at most 1 (1: all layers learn at the same rate)"
        )
    if config.reinitialize_layers < 0:
        raise UserError(f"reinitialize_layers={config.reinitialize_layers} must not be negative")
    if config.gradual_unfreezing and config.features:
        raise UserError(
            f"features={config.features} freezes the encoder for the whole run, so gradual_unfreezing=True has nothing "
            "to do; leave one of them out"
        )
    if config.gradual_unfreezing and config.reinitialize_layers:
        raise UserError(
            f"reinitialize_layers={config.reinitialize_layers} makes random layers, which gradual_unfreezing=True "
            "leaves random during the first epoch; leave one of them out"
        )
    if not 0 <= config.seed < 2**31:
        raise UserError(f"seed={config.seed} must be between 0 and {2**31 - 1}")
    if (config.crf or config.features) and config.task != "ner":
        raise UserError(f"{'crf' if config.crf else 'features'} belongs to tagging (task ner), not to {config.task}")
    if config.features and config.reinitialize_layers:
        raise UserError(
            f"reinitialize_layers={config.reinitialize_layers} makes random layers, which features={config.features} "
            "leaves untrained; leave one of them out"
        )
    if config.train_encoder and not config.features:
        raise UserError(
            "train_encoder=True is for an encoder below a BiLSTM: give features=last too, or leave it out, since "
            "without features the encoder is trained anyway"
        )
    if config.packing and config.task not in PACKED:
        raise UserError(f"packing is for tasks on sentences and pairs ({', '.join(PACKED)}), not for {config.task}")
    check_task_distillation(config.distillation, config.crf)
    _check_options(config.options)
    check_optimizer(config.optimizer)
    if config.optimizer.ema_decay:
        raise UserError(
            f"optimizer.ema_decay={config.optimizer.ema_decay} averages the weights of pre-training only; leave it out"
        )
    check_schedule(config.schedule)
    check_mesh(config.mesh)
    return config


def _check_data(task: str, data: TaskDataConfig) -> None:
    if not 0 <= data.dev_share < 1:
        raise UserError(
            f"data.dev_share={data.dev_share} must be between 0 and 1; 0.1 holds out a tenth of the training file"
        )
    if data.dev_share and (task != "text" or data.tfds or data.dev):
        reason = (
            f"{task} has a dev file of its own, or takes --data.dev=FILE"
            if task != "text"
            else "a split of TFDS is cut by --data.train='train[:90%]' --data.dev='train[90%:]'"
            if data.tfds
            else f"data.dev={data.dev} is given"
        )
        raise UserError(f"data.dev_share={data.dev_share} cannot be used: {reason}; leave it out")
    if task == "ax" or data.dir or data.tfds or data.train and (data.dev or data.dev_share):
        return
    if data.train:
        raise UserError(
            "no dev data, on which runs are compared and chosen: give --data.dev=FILE"
            + (f", or --data.dev_share=0.1 to hold out a tenth of {data.train}" if task == "text" else "")
        )
    raise UserError(
        "no data: give --data.dir=DIR with the task's original files, --data.train=FILE and --data.dev=FILE, "
        "or --data.tfds=NAME"
    )


def _check_options(options: TaskOptions) -> None:
    for name in ("doc_stride", "max_query_length", "max_answer_length", "n_best"):
        _positive(f"options.{name}", getattr(options, name))
    if options.max_length < 8:
        raise UserError(
            f"options.max_length={options.max_length} is too short for [CLS] A [SEP] B [SEP]; the minimum is 8"
        )


def _check_divisible(name: str, batch_size: int, micro_batches: int) -> None:
    if batch_size % micro_batches:
        down = batch_size // micro_batches * micro_batches
        near = " or ".join(str(size) for size in (down, down + micro_batches) if size)
        raise UserError(f"{name}={batch_size} is not divisible by micro_batches={micro_batches}; nearest: {near}")


def _positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise UserError(f"{name}={value} must be positive")
