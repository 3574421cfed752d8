"""Options of fine-tuning and `bert-jax predict`, tasks by name with their defaults; standard library only.

The defaults of a task come from one table and the command line overrides them. `check_finetune` checks the result
once, at the end, before anything is read; errors name option and remedy.
"""

import dataclasses
import difflib
import math
from typing import Any, Literal

from bert_jax.config.checks import check_mesh, check_optimizer, check_schedule, need_divisible
from bert_jax.config.heads import LayersRead
from bert_jax.config.objective import TaskDistillationConfig, TaskLossConfig
from bert_jax.config.options import (
    INT32,
    Resume,
    T,
    check_effects,
    check_kinds,
    check_numbers,
    from_dict,
    kinds,
    option,
)
from bert_jax.config.pretraining import (
    ComputeConfig,
    HostFaultsConfig,
    MeshConfig,
    NoiseConfig,
    OptimizerConfig,
    PackingChoice,
    ProfileConfig,
    ScheduleConfig,
    SinksConfig,
    check_host_faults,
    check_noise,
)
from bert_jax.config.tasks import (
    DIAGNOSES,
    SHARE_ROWS,
    TASKS,
    ChoiceOptions,
    DataSourceConfig,
    DividedDataConfig,
    RankingDataConfig,
    RankingOptions,
    SentenceOptions,
    SequenceOptions,
    TaggingDataConfig,
    TaggingOptions,
    TagScheme,
    TaskDataConfig,
    TaskOptions,
    TextDataConfig,
    VectorDataConfig,
    VectorOptions,
    XnliDataConfig,
)
from bert_jax.errors import UserError, need_cloud_storage, need_positive

MOST_SEEDS = 10_000
RESULTS = "results.json"
"""File that a fine-tuning, and each of its runs, leaves in its directory when it is done; a study does the same."""


def trained(default: T, resume: Resume | None = None, before: Any = dataclasses.MISSING) -> T:
    """Return a field that belongs to the tasks that are trained, which are all but the diagnostic sets."""
    of = ("task", "", *(task for task in TASKS if task not in DIAGNOSES))
    return option(default, resume=resume, of=of, before=before)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Low-rank adaptation (LoRA, Hu et al. 2021): matrices W of the layers become W + alpha / rank · A · B."""

    rank: int = 0
    """Columns of A, and rows of B: 8 is usual. Only these two, the head and the pooler learn. 0: no adaptation."""
    alpha: float = option(8.0, of=("rank",))
    """Numerator of the factor of the product. Twice the rank is often used."""
    targets: tuple[str, ...] = option(("query", "value"), of=("rank",))
    """Matrices that are adapted, by the ends of their names (query, key, value, attention.output,
    feed_forward.intermediate, feed_forward.output), separated by commas. all: every matrix of the layers."""

    def check(self) -> None:
        """Raise a UserError if a value is out of range."""
        if self.rank:
            need_positive(self, "lora.", "rank", "alpha")
        if self.rank and not self.targets:
            raise UserError("lora.targets is empty, so nothing is adapted; give lora.targets=query,value, or all")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    """Fine-tuning one model on one task: one run, several seeds, or a grid."""

    task: str = ""
    """Name of the task. On the command line it is the first word."""
    init_from: str = option("", resume="free", hosts_differ=True)
    """Model to start from. It is anything that `bert_jax.load` opens: a work directory (of pre-training or of another
    task), Hugging Face or TF1 files, or the name of a model of the Hugging Face hub."""
    random_weights: bool = trained(False)
    """Whether to take only the shape and the vocabulary from init_from, and start from random parameters. The
    comparison with a run without this option shows what pre-training contributes."""
    data: (
        TaskDataConfig
        | TextDataConfig
        | TaggingDataConfig
        | VectorDataConfig
        | RankingDataConfig
        | XnliDataConfig
        | DataSourceConfig
    ) = kinds(TaskDataConfig(), by="task", resume="free")
    """Source of the examples of the task."""
    options: TaskOptions = kinds(SentenceOptions(), by="task")
    """Conversion of examples to sequences, and of logits to answers."""
    noise: NoiseConfig = option(
        NoiseConfig(), of=("task", *SentenceOptions.chosen_for, *ChoiceOptions.chosen_for, *TaggingOptions.chosen_for)
    )
    """Spelling errors in the training texts, the same in every epoch and run; dev and test stay clean. Not for SQuAD,
    whose answers are positions in the text, which errors would move."""
    workdir: str = option("", resume="free")
    """Directory of the results (local or gs://): results.json, config.json, the chosen checkpoint, predictions,
    runs/."""

    epochs: int = trained(3, resume="free")
    """Number of passes over the training examples."""
    batch_size: int = trained(32, resume="free")
    """Sequences per step; for ranking, queries with all their documents."""
    micro_batches: int = trained(1, resume="free")
    """Number of parts into which a batch is divided (gradient accumulation), to save memory. The losses are those of
    the whole batch. Every batch size must be a multiple of it."""
    learning_rate: float = trained(5e-5, resume="free")
    """Peak learning rate."""
    warmup_share: float = trained(0.1)
    """Share of the steps over which the learning rate rises from 0."""
    schedule: ScheduleConfig = trained(ScheduleConfig())
    """Shape of the decay after the warm-up; by default linear to 0 at the last step."""
    optimizer: OptimizerConfig = trained(OptimizerConfig())
    """The optimizer. name=adamw_bert turns the bias correction off, as in 2018, which makes small tasks fail more
    often."""
    layer_decay: float = trained(1.0)
    """Factor between the learning rate of each layer and that of the layer above it (0.95 in Zhang et al. 2021). 1: all
    layers learn at the same rate."""
    gradual_unfreezing: bool = trained(False)
    """Whether the first epoch trains the head and the pooler alone, each later epoch one more layer from the top, and
    the epoch after the last layer the embeddings too (ULMFiT, Howard & Ruder 2018)."""
    reinitialize_layers: int = trained(0)
    """Number of top layers that, together with the pooler, start from random parameters (Zhang et al. 2021, "Revisiting
    few-sample BERT")."""
    head_dropout: float | None = trained(None)
    """Dropout rate on the input of the head. None: 0.1, and 0 for SQuAD, as in the original."""
    dropout: float | None = trained(None)
    """Dropout rate of the encoder: of hidden states, of attention, and of the weights from state to state of recurrent
    layers. None: the rates of the checkpoint's configuration."""
    crf: bool = option(False, of=("task", *TaggingOptions.chosen_for))
    """Whether the head has a linear-chain CRF on its scores."""
    features: LayersRead = trained("")
    """Layers of the frozen encoder on which a two-layer BiLSTM is trained (paper section 5.3), with a learning rate
    such as 1e-3. weighted_with_embeddings: all layers and the embeddings, with learned weights (ELMo). By default the
    encoder itself is fine-tuned."""
    lstm_size: int = option(768, of=("features",), refused=False)
    """Width of the BiLSTM in each direction if features is given. The default is that of the paper."""
    train_encoder: bool = option(False, of=("features",), refused=False)
    """Whether the encoder below that BiLSTM is trained with it rather than frozen, as in the row of the paper's table 5
    that puts a BiLSTM on a left-to-right model."""
    freeze: tuple[str, ...] = trained((), before=())
    """Parts that stay as they are in init_from, to the last bit, separated by commas: embeddings, encoder, pooler,
    single layers or several (embeddings,layers.0-5), the lowest of which is layers.0. By default everything learns."""
    lora: LoraConfig = trained(LoraConfig(), before=LoraConfig())
    """Fine-tuning of two small factors of a change to each matrix, in place of the matrices. The chosen model has them
    added up; adapter/ has them on their own."""

    seed: int = trained(0, resume="free")
    """Seed of the first run, for the head, the order of the examples and dropout."""
    seeds: int = trained(1, resume="free")
    """Number of runs of each setting, with the seeds seed, seed + 1, and so on. Their mean and standard deviation are
    reported."""
    grid: bool = trained(False, resume="free")
    """Whether to run every combination of grid_batch_sizes, grid_learning_rates and grid_epochs instead of the single
    setting above, and choose the best on dev."""
    grid_batch_sizes: tuple[int, ...] = option((16, 32), resume="free", of=("grid",), refused=False)
    """Batch sizes of the grid, separated by commas."""
    grid_learning_rates: tuple[float, ...] = option(
        (5e-5, 4e-5, 3e-5, 2e-5), resume="free", of=("grid",), refused=False
    )
    """Peak learning rates of the grid, separated by commas."""
    grid_epochs: tuple[int, ...] = option((2, 3, 4), resume="free", of=("grid",), refused=False)
    """Numbers of epochs of the grid, separated by commas."""
    select: Literal["last", "best"] = trained("last")
    """The weights of a run that count: those after its last epoch (as in the paper, whose grid has the epochs), or
    those that score best on dev."""
    select_by: str = trained("", before="")
    """Metric on dev, by its name in results.json, whose highest value chooses among runs and, with select=best, among
    the evaluations of a run. By default the first of the task."""
    patience: int = trained(0, before=0)
    """Number of evaluations in a row without a better figure on dev after which a run ends, with the weights of its
    best one; for select=best only. The learning rate falls as if the run went on. 0: all epochs are trained."""
    evaluate_every_steps: int | None = trained(None, before=None)
    """Number of steps between two evaluations on dev, in addition to those after each epoch. None: only after each
    epoch."""
    keep: Literal["best", "all"] = trained("best", resume="free")
    """Weights to keep at the end: those of the chosen run (best), or also those of every other run below runs/ (all;
    for ensembles)."""

    loss: TaskLossConfig = option(TaskLossConfig(), of=("task", *SentenceOptions.chosen_for), before=TaskLossConfig())
    """What counts how much in the loss of a classifier of texts."""
    distillation: TaskDistillationConfig = trained(TaskDistillationConfig())
    """A fine-tuned teacher to learn from, in addition to the labels."""

    packing: PackingChoice = option("auto", resume="free", of=("task", *SHARE_ROWS))
    """Whether the sequences of a batch share rows, so that little is computed on padding. The sequences of a batch and
    the weight of each stay the same; dropout falls on different elements. auto: where it saves at least a tenth of the
    positions, in tasks on sentences, for vectors and for ranking."""
    bucket_window: int | None = trained(None)
    """Number of batches of the shuffled order that are sorted by length together, to reduce padding. 1: plain shuffled
    order. If the lengths of the classes differ, a wide window makes batches of few classes, which hurts on small data
    sets. None: 1 where rows are shared, else 4."""
    eval_batch_size: int = option(64, resume="free")
    """Sequences per batch of evaluation and prediction."""
    save_every_steps: int = trained(500, resume="free")
    """Number of steps between two saves of a run, from which it resumes after an interruption. It is also saved at the
    end of every epoch."""
    log_every_steps: int = trained(10, resume="free")
    """Number of steps between two rows of metrics."""
    compute: ComputeConfig = ComputeConfig()
    """Settings of the computation."""
    mesh: MeshConfig = option(MeshConfig(), resume="free")
    """Layout of the devices."""
    faults: HostFaultsConfig = option(HostFaultsConfig(), resume="free")
    """Handling of hosts that hang or die, and of devices that compute wrongly."""
    profile: ProfileConfig = trained(ProfileConfig(), resume="free")
    """Steps of each run that leave a trace for XProf, in runs/NAME/profile."""
    sinks: SinksConfig = trained(SinksConfig(), resume="free")
    """Services that receive the metrics in addition to TensorBoard. Each seed and each setting of a grid is a separate
    run there."""

    @property
    def folds(self) -> int:
        """Number of parts of a cross-validation; 0 where there is a dev set."""
        return self.data.folds if isinstance(self.data, DividedDataConfig) else 0

    @property
    def several_labels(self) -> bool:
        """Whether an example has any number of labels."""
        return isinstance(self.data, TextDataConfig) and self.data.several_labels

    @property
    def max_length(self) -> int:
        """Tokens per sequence of a task that is trained."""
        assert isinstance(self.options, SequenceOptions)
        return self.options.max_length


OF_A_TASK = (
    *("task", "data", "options", "noise", "batch_size", "eval_batch_size", "head_dropout", "crf", "loss", "packing"),
    *("bucket_window", "select_by"),
)
"""Options that each of several tasks over one encoder has for itself; all others belong to the run."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuningRecord:
    """The entries of config.json that may change in a work directory; everything else must stay as it is.

    It repeats the options of computation outside "finetune". Data and parameters are compared by their content, and
    each value of the options that are part of a run's name is a separate run.
    """

    finetune: FinetuneConfig = FinetuneConfig()
    compute: ComputeConfig = ComputeConfig()
    pairs: bool = option(False, resume="free")
    """Whether texts are pairs, which follows from the data."""


# Where the defaults of a task differ from those above. Epochs, batch and learning rate of SQuAD and SWAG: Devlin et al.
# 2018, sections 4.2 to 4.4; lengths: google-research/bert (run_squad.py 384, others 128); STS-B, RTE, MRPC and CoLA are
# inside the paper's grid with its longest training, because small sets are the ones that fail.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "squad_v1": {"epochs": 3, "batch_size": 32, "learning_rate": 5e-5},
    "squad_v2": {"epochs": 2, "batch_size": 48, "learning_rate": 5e-5},
    "swag": {"epochs": 3, "batch_size": 16, "learning_rate": 2e-5},
    "race": {"epochs": 3, "batch_size": 16, "learning_rate": 2e-5, "options": ChoiceOptions(max_length=512)},
    "choice": {"epochs": 3, "batch_size": 16, "learning_rate": 2e-5},
    "ner": {"epochs": 4, "batch_size": 16, "learning_rate": 5e-5},
    **dict.fromkeys(("boolq", "multirc", "record"), {"batch_size": 24, "options": SentenceOptions(max_length=256)}),
    **{
        task: {"epochs": 10, "batch_size": 16, "learning_rate": 2e-5}
        for task in ("cb", "copa", "superglue_rte", "wic", "wsc")
    },
    "vectors": {"epochs": 1, "batch_size": 64, "learning_rate": 5e-5},
    "ranking": {"epochs": 1, "batch_size": 16, "learning_rate": 2e-5},
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
    return dataclasses.replace(from_dict(FinetuneConfig, {"task": task}), **_DEFAULTS.get(task, {}))


def check_finetune(config: FinetuneConfig) -> FinetuneConfig:
    """Return `config` if its values fit together; raise a UserError that names option, value and remedy otherwise."""
    task_defaults(config.task)
    check_kinds(config)
    check_numbers(config)
    _check_places(config)
    if isinstance(config.options, SequenceOptions):
        config.data.check()
        config.options.check()
    _check_numbers(config)
    check_noise(config.noise, "noise.")
    _check_layers(config)
    _check_frozen(config)
    _check_head(config)
    if isinstance(config.options, VectorOptions):
        _check_vectors(config, config.options)
    if isinstance(config.options, RankingOptions) and config.distillation.teacher:
        raise UserError(
            f"distillation.teacher={config.distillation.teacher} teaches the scores of single examples; for ranking, "
            "write the scores of a teacher next to the documents, and give --options.loss.name=margin_mse"
        )
    check_effects(config)
    config.distillation.check(config.crf)
    if isinstance(config.options, SentenceOptions):
        _check_sentences(config, config.options)
    _check_stopping(config)
    config.lora.check()
    check_optimizer(config.optimizer)
    if config.optimizer.ema_decay:
        raise UserError(
            f"optimizer.ema_decay={config.optimizer.ema_decay} averages the weights of pre-training only; leave it out"
        )
    check_schedule(config.schedule)
    check_mesh(config.mesh)
    check_host_faults(config.faults)
    return config


def _check_places(config: FinetuneConfig) -> None:
    """Check that the directories are given, and can be reached with what is installed."""
    for name, value, meaning in (
        ("init_from", config.init_from, "the checkpoint to start from"),
        ("workdir", config.workdir, "a directory for the results"),
    ):
        if not value:
            raise UserError(f"--{name} is missing: give {meaning}")
    data = config.data
    for path in (config.init_from, config.workdir, data.dir, data.train, data.dev, data.test, data.tfds_dir):
        need_cloud_storage(path)


def _check_numbers(config: FinetuneConfig) -> None:
    """Check the values that have a range of their own, and that batches divide into micro-batches."""
    need_positive(
        config,
        "",
        "epochs",
        "batch_size",
        "micro_batches",
        "learning_rate",
        "seeds",
        "bucket_window",
        "eval_batch_size",
        "save_every_steps",
        "evaluate_every_steps",
        "log_every_steps",
        "lstm_size",
    )
    for name in ("grid_batch_sizes", "grid_learning_rates", "grid_epochs"):
        if not getattr(config, name):
            raise UserError(f"{name} is empty; the paper's is {getattr(FinetuneConfig(), name)}")
        for value in getattr(config, name):
            if not 0 < value < math.inf:
                raise UserError(f"{name}={value} must be positive")
    usual = task_defaults(config.task), FinetuneConfig()
    for name in ("batch_size", "learning_rate", "epochs") if config.grid else ():
        if (value := getattr(config, name)) not in [getattr(each, name) for each in usual]:
            grid = f"grid_{name.removesuffix('s')}s"
            raise UserError(f"{name}={value} has no effect with grid=True; give it in {grid}, or leave one of them out")
    sizes = [("grid_batch_sizes", size) for size in config.grid_batch_sizes]
    for name, size in sizes if config.grid else [("batch_size", config.batch_size)]:
        need_divisible("", name, size, config.micro_batches)
    for name, low, high in (("warmup_share", 0, 1), ("head_dropout", 0, 0.999), ("dropout", 0, 0.999)):
        value = getattr(config, name)
        if value is not None and not low <= value <= high:
            raise UserError(f"{name}={value} must be between {low} and {high}")
    if not 0 <= config.seed <= INT32[1] - config.seeds:
        raise UserError(f"seed={config.seed} must be between 0 and {INT32[1] - config.seeds}")
    if config.seeds > MOST_SEEDS:
        raise UserError(f"seeds={config.seeds} must be at most {MOST_SEEDS}")


def _check_layers(config: FinetuneConfig) -> None:
    """Check which layers learn, how fast, and from which parameters."""
    if not 0 < config.layer_decay <= 1:
        raise UserError(
            f"layer_decay={config.layer_decay} must be above 0 and at most 1 (1: all layers learn at the same rate)"
        )
    if config.reinitialize_layers < 0:
        raise UserError(f"reinitialize_layers={config.reinitialize_layers} must not be negative")
    if config.features and not config.train_encoder:
        for name, usual in (("layer_decay", 1.0), ("dropout", None)):
            if (value := getattr(config, name)) != usual:
                raise UserError(
                    f"features={config.features} freezes the encoder for the whole run, so {name}={value} has nothing "
                    "to do; leave one of them out, or give train_encoder=True"
                )
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


def _check_sentences(config: FinetuneConfig, options: SentenceOptions) -> None:
    """Check the options that only tasks on sentences have, as far as the data need not be read for it."""
    config.loss.check()
    if config.loss != TaskLossConfig() and (config.task == "stsb" or getattr(config.data, "regression", None)):
        raise UserError(
            f"{config.loss.given()} is for classes, but {config.task} estimates a number here; leave it out"
        )
    if options.thresholds and not config.several_labels:
        raise UserError(
            f"options.thresholds={','.join(map(str, options.thresholds))} is for texts with several labels each "
            "(task=text with --data.several_labels=true); leave it out"
        )
    if config.packing == "on" and options.windows:
        raise UserError(
            f"packing=on puts several texts into a row, but options.windows={options.windows} makes several rows of a "
            "text; leave one of them out"
        )


def _check_stopping(config: FinetuneConfig) -> None:
    """Check when a run ends before its last epoch."""
    if config.patience < 0:
        raise UserError(f"patience={config.patience} must be 0, which trains all epochs, or a number of evaluations")
    if config.patience and config.select != "best":
        raise UserError(
            f"patience={config.patience} ends a run after evaluations that are no better than its best one, whose "
            "weights then count; give --select=best too"
        )


def _check_frozen(config: FinetuneConfig) -> None:
    """Check that what does not learn has been learned before, and that only one option says what learns."""
    frozen = {"freeze": ",".join(config.freeze), "lora.rank": config.lora.rank}
    for name, value in frozen.items():
        if not value:
            continue
        if config.random_weights:
            raise UserError(
                f"random_weights=True starts from random parameters, some of which {name}={value} leaves as they are; "
                "leave one of them out"
            )
        if config.features and not config.train_encoder:
            raise UserError(
                f"features={config.features} freezes the encoder anyway, so {name}={value} has nothing to do; leave "
                "one of them out"
            )
        if config.reinitialize_layers and name == "lora.rank":
            raise UserError(
                f"reinitialize_layers={config.reinitialize_layers} makes random layers, which {name}={value} leaves "
                "almost as they are; leave one of them out"
            )


def _check_head(config: FinetuneConfig) -> None:
    """Check the BiLSTM on an encoder that is frozen or trained."""
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


def _check_vectors(config: FinetuneConfig, options: VectorOptions) -> None:
    """Check what only heads with parameters have, and that a batch has something to compare an example with."""
    for name, usual in (("features", ""), ("head_dropout", None), ("gradual_unfreezing", False)):
        if (value := getattr(config, name)) != usual:
            raise UserError(
                f"{name}={value} is for a head with parameters, and the task vectors has none; leave it out"
            )
    if config.distillation.teacher:
        raise UserError(
            f"distillation.teacher={config.distillation.teacher} teaches scores of a head, and the task vectors has "
            "none; write the scores of a teacher next to the texts, and give --options.loss.name=margin_mse or kl"
        )
    sizes = config.grid_batch_sizes if config.grid else (config.batch_size,)
    if options.loss.compares_examples and min(sizes) < 2:
        raise UserError(
            f"batch_size={min(sizes)} leaves options.loss.name={options.loss.name} nothing to compare an example with; "
            "give 2 or more, the more the better"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputFormConfig:
    """Differences of the input file's format from that of the training files. None: same as in training."""

    text_column: str | None = None
    """Column of the sentence in the task text: its name, or its number, from 1, in a file without a header. None: same
    as in training."""
    pair_column: str | None = None
    """Column of the second sentence in the task text. None: same as in training."""
    label_column: str | None = None
    """Column of the label in the task text. None: same as in training."""
    word_column: int | None = None
    """Number of the column of the words in the task ner, from 1. None: same as in training."""
    tag_column: int | None = None
    """Number of the column of the tags in the task ner, from 1. None: same as in training."""
    scheme: TagScheme | None = None
    """Tagging scheme of the task ner. None: same as in training."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictConfig:
    """Options of `bert-jax predict`."""

    input: str = ""
    """File in one of the task's own formats, or plain text to classify, score or tag: a .txt file (not for ner, whose
    .txt files have columns) or - for standard input, with one text per line, or a directory with one text per .txt
    file."""
    text: str = ""
    """A single text instead of --input. The two texts of a pair are separated by a tab, here and in plain text."""
    output: str = ""
    """File to write the predictions to, or a directory (with a slash at the end) for everything that the task writes.
    By default the predictions are printed."""
    overwrite: bool = option(False, of=("output",))
    """Whether an existing output is replaced."""
    split: Literal["test", "dev"] = option("test", of=("input",))
    """Whether the file has the format of the task's test file or of its dev file, which differ in some tasks. Labels
    are used if there are any."""
    task: str = ""
    """Task to predict for, if it is not the one that the model was fine-tuned on but its head fits, such as ax for a
    model of mnli."""
    data: InputFormConfig = option(InputFormConfig(), of=("input",))
    """Differences of the input's format from that of the training files."""
    batch_size: int = 64
    """Sequences per batch."""
    compute: ComputeConfig = ComputeConfig()
    """Settings of the computation."""
    mesh: MeshConfig = MeshConfig()
    """Layout of the devices."""


def check_predict(config: PredictConfig) -> PredictConfig:
    """Return `config` if its values can be used; raise a UserError that names option, value and remedy otherwise."""
    if config.text and not config.text.strip():
        raise UserError(f"--text={config.text!r:.20} is blank; give --text=TEXT or --input=FILE")
    if bool(config.input) == bool(config.text):
        raise UserError("give one of --input=FILE and --text=TEXT" + (", not both" if config.text else ""))
    if config.batch_size < 1:
        raise UserError(f"batch_size={config.batch_size} must be positive")
    check_effects(config)
    check_mesh(config.mesh)
    return config
