"""Options of fine-tuning and `bert-jax predict`, tasks by name with their defaults; standard library only.

The defaults of a task come from one table and the command line overrides them. `check_finetune` checks the result
once, at the end, before anything is read; errors name option and remedy. The options of a task's examples tell where
they are, and how they become sequences and answers.
"""

import dataclasses
import difflib
import math
from typing import Any, ClassVar, Literal, Self, get_args

from bert_jax.config.checks import check_mesh, check_optimizer, check_schedule, need_divisible
from bert_jax.config.model import EmbeddingConfig, HeadWindows, LayersRead, TokenPooling
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
from bert_jax.config.vectors import InfoNce, VectorLoss, check_matryoshka
from bert_jax.errors import UserError, need_cloud_storage, need_positive

GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli", "ax")
SUPERGLUE_SENTENCES = ("boolq", "cb", "multirc", "record", "superglue_rte", "wic", "wsc")
"""SuperGLUE without copa, which is multiple choice."""
MOST_SEEDS = 10_000
TagScheme = Literal["auto", "iob1", "iob2", "iobes", "plain"]
"""Tagging schemes for entities; see `TaggingDataConfig.scheme`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceOptions:
    """Options of every task that is trained."""

    chosen_for: ClassVar[tuple[str, ...]]
    """The tasks that have these options."""
    max_length: int = 128
    """Tokens per sequence, [CLS] and [SEP] included. Longer ones are cut."""

    def check(self) -> None:
        """Raise a UserError if a value is out of range."""
        if self.max_length < 8:
            raise UserError(
                f"options.max_length={self.max_length} is too short for [CLS] A [SEP] B [SEP]; the minimum is 8"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceOptions(SequenceOptions):
    """Conversion of texts, and pairs of texts, to sequences with a class or a number each."""

    chosen_for: ClassVar[tuple[str, ...]] = (*(task for task in GLUE if task != "ax"), *SUPERGLUE_SENTENCES, "text")
    windows: HeadWindows = option("", before="")
    """Pooling of the scores of overlapping windows, in which a text is read that is longer than max_length: their mean,
    or the highest of each class. For single texts. By default a longer text is cut."""
    window_overlap: int = option(32, of=("windows",), refused=False, before=32)
    """Number of tokens that a window has in common with the one before it."""
    thresholds: tuple[float, ...] = option((), before=())
    """Probabilities from which a text gets a class; for the task text with data.several_labels only. They are in the
    order of the classes and separated by commas; a single one is for all classes. By default each class has the one
    that gives the best F1 on dev."""

    def check(self) -> None:
        super().check()
        if self.windows and not 0 <= self.window_overlap < self.max_length - 2:
            raise UserError(
                f"options.window_overlap={self.window_overlap} must be at least 0 and less than the "
                f"{self.max_length - 2} tokens of a text that a window of options.max_length={self.max_length} has"
            )
        for value in self.thresholds:
            if not 0 < value < 1:
                raise UserError(f"options.thresholds has {value}, which is no probability between 0 and 1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DiagnosticOptions:
    """No options: ax, a test set for models of mnli, is read as in their own evaluation."""

    chosen_for: ClassVar[tuple[str, ...]] = ("ax",)
    """The tasks that have none."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChoiceOptions(SequenceOptions):
    """Conversion of questions with several choices to a sequence for each choice."""

    chosen_for: ClassVar[tuple[str, ...]] = ("swag", "race", "copa", "choice")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadOptions(SequenceOptions):
    """Conversion of questions and contexts to windows, and of scores to answers, which are parts of the context."""

    chosen_for: ClassVar[tuple[str, ...]] = ("squad_v1",)
    max_length: int = 384
    """Tokens per sequence, [CLS] and [SEP] included. Longer ones are split into windows."""
    doc_stride: int = 128
    """Number of tokens between the starts of two windows, as in the original (not their overlap)."""
    max_query_length: int = 64
    """Maximum number of tokens of a question. Longer ones are cut."""
    max_answer_length: int = 30
    """Maximum number of tokens of a predicted answer."""
    n_best: int = 20
    """Number of answers that are kept for each question."""

    def check(self) -> None:
        need_positive(self, "options.", "doc_stride", "max_query_length", "max_answer_length", "n_best")
        super().check()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Squad2Options(SquadOptions):
    """The same where a question may have no answer."""

    chosen_for: ClassVar[tuple[str, ...]] = ("squad_v2",)
    null_threshold: float | None = None
    """Number by which "no answer" must score higher than the best answer for a question to be left unanswered. None:
    tuned on dev."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggingOptions(SequenceOptions):
    """Conversion of sentences whose words have a tag each to windows."""

    chosen_for: ClassVar[tuple[str, ...]] = ("ner",)
    max_length: int = 256
    """Tokens per sequence, [CLS] and [SEP] included. Longer ones are split into windows."""
    doc_stride: int = 128
    """Maximum number of tokens that are predicted per window. They are in its middle and at most half of it; the rest
    of the window is context."""
    context: bool = True
    """Whether each window is filled up with the sentences around it, as in the paper."""

    def check(self) -> None:
        need_positive(self, "options.", "doc_stride")
        super().check()


@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorOptions(SequenceOptions):
    """Conversion of texts to vectors, which `embed` of the trained model makes in the same way, and what they learn."""

    chosen_for: ClassVar[tuple[str, ...]] = ("vectors",)
    max_length: int = 128
    """Tokens per text, [CLS] and [SEP] included. Longer ones are cut."""
    pooling: TokenPooling | None = None
    """Vector of a text: that of [CLS], or the mean or the maximum of those of its tokens, or their sum divided by the
    square root of their number. None: as in init_from, where the mean is usual."""
    normalize: bool | None = None
    """Whether each vector is divided by its Euclidean norm. None: as in init_from, where they usually are not."""
    lowercase: bool | None = None
    """Whether texts are lowercased before they are tokenized, even with a cased vocabulary. None: as in init_from,
    where they usually are not."""
    query_prompt: str | None = None
    """Text that is put before every anchor. None: as in init_from, where there usually is none."""
    document_prompt: str | None = None
    """Text that is put before every text but the anchors. None: as in init_from, where there usually is none."""
    loss: VectorLoss = kinds(InfoNce(), nested=True)
    """What the vectors learn."""
    dims: tuple[int, ...] = ()
    """Numbers of features, separated by commas, such as 384,128,64: so many first features are trained to be vectors
    themselves, and the losses of all are added (Kusupati et al. 2022, Matryoshka). By default whole vectors alone."""
    dim_weights: tuple[float, ...] = option((), of=("dims",))
    """Factor of the loss of each of `dims`, separated by commas. By default each is 1."""

    @property
    def embedding(self) -> EmbeddingConfig:
        """What `embed` of the trained model does by default; options that are None have the usual value."""
        return EmbeddingConfig(
            pooling=self.pooling or "mean",
            normalize=bool(self.normalize),
            max_length=self.max_length,
            lowercase=bool(self.lowercase),
            query_prompt=self.query_prompt or "",
            document_prompt=self.document_prompt or "",
        )

    def like(self, embedding: EmbeddingConfig) -> "VectorOptions":
        """Return the options with those of `embedding` in place of None."""
        names = ("pooling", "normalize", "lowercase", "query_prompt", "document_prompt")
        missing = [name for name in names if getattr(self, name) is None]
        return dataclasses.replace(self, **{name: getattr(embedding, name) for name in missing})

    def check(self) -> None:
        self.loss.check()
        check_matryoshka(self.dims, self.dim_weights)
        super().check()


TaskOptions = (
    SentenceOptions | DiagnosticOptions | SquadOptions | Squad2Options | ChoiceOptions | TaggingOptions | VectorOptions
)
"""Conversion of the examples of a task to sequences, and of logits to answers: one of these, by the task."""
TASKS: tuple[str, ...] = tuple(task for kind in get_args(TaskOptions) for task in kind.chosen_for)
SHARE_ROWS = (*SentenceOptions.chosen_for, *VectorOptions.chosen_for)
"""The tasks whose sequences may share rows."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskDataConfig:
    """Source of the examples of a task: local files, or a data set of TFDS or the Hugging Face hub."""

    chosen_for: ClassVar[tuple[str, ...]] = ()
    """The tasks of a kind; those of no other kind have this one."""
    dir: str = option("", hosts_differ=True, of=("tfds and hub", ""))
    """Directory with the task's files under their original names, local or gs://."""
    train: str = option("", hosts_differ=True)
    """File to train on, if it does not have its original name."""
    dev: str = option("", hosts_differ=True)
    """File to evaluate on, if it does not have its original name."""
    test: str = option("", hosts_differ=True)
    """File to predict, labelled or not, if it does not have its original name."""
    tfds: str = option("", hosts_differ=True)
    """Name of a TFDS dataset (glue/mrpc, squad/v1.1, …) to read instead of files; train, dev and test then name its
    splits."""
    tfds_dir: str = option("", hosts_differ=True, of=("tfds",))
    """Directory where TFDS keeps its data. By default TFDS decides."""
    hub: str = option("", hosts_differ=True)
    """Data set of the Hugging Face hub to read instead of files, as owner/name, owner/name:configuration (such as
    nyu-mll/glue:mrpc) or owner/name@revision:configuration; train, dev and test then name its splits."""

    @property
    def named(self) -> str:
        """The data set of TFDS or the hub (hf://datasets/…) that is read; empty for files."""
        return f"hf://datasets/{self.hub.removeprefix('hf://datasets/')}" if self.hub else self.tfds

    def check(self, instead: str = "") -> None:
        """Raise a UserError if the examples cannot be found; `instead` tells what may be given but a dev file."""
        if self.tfds and self.hub:
            raise UserError(f"data.tfds={self.tfds} and data.hub={self.hub} are two data sets; leave one of them out")
        if self.dir or self.named or self.train and self.dev:
            return
        if self.train:
            raise UserError(f"no dev data, on which runs are compared and chosen: give --data.dev=FILE{instead}")
        raise UserError(
            "no data: give --data.dir=DIR with the task's original files, --data.train=FILE and --data.dev=FILE, "
            "--data.tfds=NAME or --data.hub=OWNER/NAME"
        )

    def files(self, split: str) -> tuple[str, ...]:
        """Return the files that are given for a split."""
        return (getattr(self, split),) if getattr(self, split) else ()

    def without_files(self) -> Self:
        """Return how the examples of files are read, without the files."""
        return dataclasses.replace(self, dir="", train="", dev="", test="", tfds="", hub="")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextDataConfig(TaskDataConfig):
    """Source of the examples of the task text, their columns, and whether their labels are classes or numbers."""

    chosen_for: ClassVar[tuple[str, ...]] = ("text",)
    dev_share: float | None = None
    """Share of the training examples, such as 0.1, that is held out as dev if there are no dev examples. Which texts
    these are depends only on the examples, so all seeds and settings have the same ones; equal texts stay together.
    None: a tenth, if that is at least 10 examples. 0: none, so that there must be dev examples."""
    stratified: bool | None = option(None, before=False)
    """Whether the part that is held out has the same share of every class. None: it has, unless the runs in the work
    directory began without, as those of 0.1.0 did."""
    folds: int = option(0, before=0)
    """Number of parts of a cross-validation, such as 5: there is a run per part, trained on the others and scored on
    it, and no dev set. Equal texts are in one part, and each has the same share of every class. 0: no
    cross-validation."""
    text_column: str = ""
    """Column of the sentence: its name (TSV, CSV, hub, a data frame), its key (JSON lines, TFDS), or its number, from
    1, in a file without a header. By default text, sentence or sentence1."""
    pair_column: str = ""
    """Column of the second sentence. By default text_pair or sentence2, if there is one."""
    label_column: str = ""
    """Column of the label. By default label."""
    weight_column: str = option("", before="")
    """Column of the weights of the training examples, numbers of 0 or more by which their losses are multiplied; the
    loss of a batch is divided by the sum of its weights. By default all weigh the same."""
    regression: bool | None = None
    """Whether the labels are numbers to estimate rather than classes. None: they are classes, and decimal numbers such
    as 0.5, which rarely are, must be said to be one or the other."""
    several_labels: bool = option(False, before=False)
    """Whether an example has any number of labels, also none, rather than one: a list in JSON lines, data sets and
    memory; names with label_separator between them in a column of text."""
    label_separator: str = option(",", of=("several_labels",), before=",")
    """What stands between two labels of an example in a column of text."""

    def check(self, instead: str = "") -> None:
        if self.several_labels and self.regression:
            raise UserError(
                "data.regression=True estimates a number for each text, and data.several_labels=True gives it classes; "
                "leave one of them out"
            )
        if not self.label_separator:
            raise UserError("data.label_separator is empty; give what stands between two labels, such as a comma")
        if self.dev_share is not None and not 0 <= self.dev_share < 1:
            raise UserError(
                f"data.dev_share={self.dev_share} must be between 0 and 1; 0.1 holds out a tenth of the training file"
            )
        if self.dev_share and self.dev:
            raise UserError(
                f"data.dev_share={self.dev_share} cannot be used: data.dev={self.dev} is given; leave it out"
            )
        if self.folds < 0 or self.folds == 1:
            raise UserError(f"data.folds={self.folds} must be 2 or more parts, or 0 for no cross-validation")
        for name, value in (("dev", self.dev), ("dev_share", self.dev_share)) if self.folds else ():
            if value:
                raise UserError(
                    f"data.folds={self.folds} scores every training example, so data.{name}={value} has nothing to do; "
                    "leave one of them out, or give the examples as data.test"
                )
        if not self.train or self.dev_share == 0 and not self.folds:
            super().check(instead or f", or --data.dev_share=0.1 to hold out a tenth of {self.train}")

    def without_files(self) -> Self:
        return dataclasses.replace(super().without_files(), dev_share=0.0, folds=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggingDataConfig(TaskDataConfig):
    """Source of the examples of the task ner, their columns, and how the tags are written."""

    chosen_for: ClassVar[tuple[str, ...]] = ("ner",)
    word_column: int = option(0, of=("tfds and hub", ""))
    """Number of the column of the words, from 1. 0: the first (CoNLL-U: the second)."""
    tag_column: int = option(0, of=("tfds and hub", ""))
    """Number of the column of the tags, from 1. 0: the last (CoNLL-U: the fourth, universal parts of speech)."""
    label_column: str = option("", of=("tfds or hub",))
    """Column of the tags in a data set of TFDS or the hub. By default ner, tags or ner_tags."""
    scheme: TagScheme = "auto"
    """Tagging scheme. auto: recognized from the tags. plain: tags without B- and I-, such as parts of speech."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorDataConfig(TaskDataConfig):
    """Source of the examples of the task vectors, and their columns."""

    chosen_for: ClassVar[tuple[str, ...]] = ("vectors",)
    train: str = option("", hosts_differ=True)
    """File to train on, if it does not have its original name, or several, separated by commas. FILE*3 takes each of
    its examples three times per epoch."""
    anchor_column: str = ""
    """Column of the anchor, a question or a first text. By default anchor, query, question, sentence1, sentence or
    text."""
    positive_column: str = ""
    """Column of the text that belongs to the anchor, or of the second text of a pair with a score. By default positive,
    answer, document, passage, sentence2 or text_pair."""
    negative_columns: str = ""
    """Columns of texts that do not belong to the anchor, separated by commas. By default all whose names begin with
    negative."""
    score_column: str = ""
    """Column of the score of a pair, or of the list of scores of a teacher. By default score, similarity or label."""
    lowest_score: float | None = None
    """Lowest score of the training pairs that belong together, if pairs with scores are trained on as pairs without;
    the others are left out, and their number is said. None: such pairs are refused."""

    @property
    def parts(self) -> tuple[tuple[str, int], ...]:
        """The files to train on, and how often each is taken."""
        found = []
        for part in self.train.split(","):
            file, star, times = part.strip().rpartition("*")
            counted = star and times.isdecimal()
            found.append((file, int(times[:9])) if counted else (part.strip(), 1))
        return tuple(found)

    def files(self, split: str) -> tuple[str, ...]:
        return tuple(file for file, _ in self.parts) if split == "train" and self.train else super().files(split)

    def check(self, instead: str = "") -> None:
        for file, times in self.parts if self.train and not self.named else ():
            if not file or not 0 < times <= 1000:
                raise UserError(
                    f"data.train={self.train} must be files separated by commas, each perhaps with how often its "
                    "examples are taken, from 1 to 1000: a.tsv,b.tsv*3"
                )
        super().check(instead)


RESULTS = "results.json"
"""File that a fine-tuning, and each of its runs, leaves in its directory when it is done; a study does the same."""


def trained(default: T, resume: Resume | None = None, before: Any = dataclasses.MISSING) -> T:
    """Return a field that belongs to the tasks that are trained, which are all but ax."""
    of = ("task", "", *(task for task in TASKS if task != "ax"))
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
    data: TaskDataConfig | TextDataConfig | TaggingDataConfig | VectorDataConfig = kinds(
        TaskDataConfig(), by="task", resume="free"
    )
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
    """Sequences per step."""
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
    positions, in tasks on sentences and for vectors."""
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
    def max_length(self) -> int:
        """Tokens per sequence of a task that is trained."""
        assert isinstance(self.options, SequenceOptions)
        return self.options.max_length


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
    check_effects(config)
    config.distillation.check(config.crf)
    _check_classes(config)
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
    if config.packing == "on" and isinstance(config.options, SentenceOptions) and config.options.windows:
        raise UserError(
            f"packing=on puts several texts into a row, but options.windows={config.options.windows} makes several "
            "rows of a text; leave one of them out"
        )
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


def _check_classes(config: FinetuneConfig) -> None:
    """Check the options that only classifiers have, as far as the data need not be read for it."""
    config.loss.check()
    several = isinstance(config.data, TextDataConfig) and config.data.several_labels
    if config.loss != TaskLossConfig() and (config.task == "stsb" or getattr(config.data, "regression", None)):
        raise UserError(
            f"{config.loss.given()} is for classes, but {config.task} estimates a number here; leave it out"
        )
    if isinstance(config.options, SentenceOptions) and config.options.thresholds and not several:
        raise UserError(
            f"options.thresholds={','.join(map(str, config.options.thresholds))} is for texts with several labels "
            "each (task=text with --data.several_labels=true); leave it out"
        )
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
