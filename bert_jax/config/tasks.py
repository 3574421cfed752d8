"""Where the examples of a task are, and how they become sequences and answers, a type for each kind of task.

Standard library only.
"""

import dataclasses
from typing import ClassVar, Literal, Self, get_args

from bert_jax.config.heads import EmbeddingConfig, HeadWindows, SingleVector, TextVectors, TokenPooling, WordVector
from bert_jax.config.options import kinds, option
from bert_jax.config.ranking import BinaryLoss, RankingLoss
from bert_jax.config.vectors import InfoNce, InheritedForm, SparsityConfig, VectorLoss, check_matryoshka
from bert_jax.errors import UserError, need_positive

GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli", "ax")
SUPERGLUE_SENTENCES = ("boolq", "cb", "multirc", "record", "superglue_rte", "wic", "wsc")
"""SuperGLUE without copa, which is multiple choice."""
DIAGNOSES = {"ax": "mnli", "axb": "superglue_rte", "axg": "superglue_rte"}
"""Diagnostic sets, which are not trained on, and the task whose models each tests."""
GLUE_TRAINED = tuple(task for task in GLUE if task not in DIAGNOSES)
XNLI_LANGUAGES = ("ar", "bg", "de", "el", "en", "es", "fr", "hi", "ru", "sw", "th", "tr", "ur", "vi", "zh")
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

    chosen_for: ClassVar[tuple[str, ...]] = (*GLUE_TRAINED, "xnli", *SUPERGLUE_SENTENCES, "text")
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
    """No options: a diagnostic set is read as in the evaluation of the model that it tests."""

    chosen_for: ClassVar[tuple[str, ...]] = tuple(DIAGNOSES)
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
    form: InheritedForm | TextVectors = kinds(InheritedForm(), nested=True)
    """Form of the vectors of a text."""
    sparsity: SparsityConfig = option(SparsityConfig(), of=("form.name", "inherited", "words"))
    """What keeps vectors of words sparse."""
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
            form=SingleVector() if isinstance(self.form, InheritedForm) else self.form,
            pooling=self.pooling or "mean",
            normalize=bool(self.normalize),
            max_length=self.max_length,
            lowercase=bool(self.lowercase),
            query_prompt=self.query_prompt or "",
            document_prompt=self.document_prompt or "",
        )

    def like(self, embedding: EmbeddingConfig) -> "VectorOptions":
        """Return the options with those of `embedding` in place of None, and the loss with what follows from the form.

        Raises:
          UserError: an option does not belong to that form.
        """
        form = embedding.form if isinstance(self.form, InheritedForm) else self.form
        of_single = ("pooling", "normalize") if isinstance(form, SingleVector) else ()
        names = (*of_single, "lowercase", "query_prompt", "document_prompt")
        missing = [name for name in names if getattr(self, name) is None]
        found = dataclasses.replace(self, form=form, **{name: getattr(embedding, name) for name in missing})
        self._check_form(form)
        return dataclasses.replace(found, loss=self.loss.of(form))

    def check(self) -> None:
        for part in (self.form, self.sparsity, self.loss):
            part.check()
        check_matryoshka(self.dims, self.dim_weights)
        if not isinstance(self.form, InheritedForm):
            self._check_form(self.form)
        super().check()

    def _check_form(self, form: TextVectors) -> None:
        """Raise a UserError about an option that belongs to another form of vectors."""
        self.loss.of(form)
        of_single = {"pooling": self.pooling, "normalize": self.normalize, "dims": self.dims}
        for name, value in of_single.items() if not isinstance(form, SingleVector) else ():
            if value:
                shown = ",".join(map(str, value)) if isinstance(value, tuple) else value
                raise UserError(
                    f"options.{name}={shown} is for single vectors, and options.form.name={form.name} gives others; "
                    "leave it out"
                )
        if self.sparsity != SparsityConfig() and not isinstance(form, WordVector):
            raise UserError(
                f"options.sparsity is for vectors of words, and these have options.form.name={form.name}; leave it out"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankingOptions(SequenceOptions):
    """Conversion of queries and their documents to a sequence for each document, and what their scores learn."""

    chosen_for: ClassVar[tuple[str, ...]] = ("ranking",)
    max_length: int = 256
    """Tokens of a query and a document, [CLS] and [SEP] included. Longer pairs are cut, the longer text first."""
    loss: RankingLoss = kinds(BinaryLoss(), nested=True)
    """What the scores learn."""

    def check(self) -> None:
        self.loss.check()
        super().check()


TaskOptions = (
    SentenceOptions
    | DiagnosticOptions
    | SquadOptions
    | Squad2Options
    | ChoiceOptions
    | TaggingOptions
    | VectorOptions
    | RankingOptions
)
"""Conversion of the examples of a task to sequences, and of logits to answers: one of these, by the task."""
TASKS: tuple[str, ...] = tuple(task for kind in get_args(TaskOptions) for task in kind.chosen_for)
SHARE_ROWS = (*SentenceOptions.chosen_for, *VectorOptions.chosen_for, *RankingOptions.chosen_for)
"""The tasks whose sequences may share rows."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSourceConfig:
    """Source of the examples of a task: local files, or a data set of TFDS or the Hugging Face hub."""

    chosen_for: ClassVar[tuple[str, ...]] = tuple(DIAGNOSES)
    """The tasks of a kind."""
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

    def check(self) -> None:
        """Raise a UserError if the examples cannot be found."""
        if self.tfds and self.hub:
            raise UserError(f"data.tfds={self.tfds} and data.hub={self.hub} are two data sets; leave one of them out")
        if not (self.dir or self.named or self.train):
            raise UserError(
                "no data: give --data.dir=DIR with the task's original files, --data.train=FILE and --data.dev=FILE, "
                "--data.tfds=NAME or --data.hub=OWNER/NAME"
            )

    def weighed_by(self, split: str) -> str:
        """Return the column of weights that the examples of a split have; "" for none."""
        return ""

    def files(self, split: str) -> tuple[str, ...]:
        """Return the files that are given for a split."""
        return (getattr(self, split),) if getattr(self, split) else ()

    def without_files(self) -> Self:
        """Return how the examples of files are read, without the files."""
        return dataclasses.replace(self, dir="", train="", dev="", test="", tfds="", hub="")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DividedDataConfig(DataSourceConfig):
    """The same of a task that is trained, and which of its training examples are held out."""

    chosen_for: ClassVar[tuple[str, ...]] = ()
    dev_share: float | None = option(None, before=0.0)
    """Share of the training examples, such as 0.1, that is held out as dev if there are no dev examples. Which these
    are depends only on the examples, so all seeds and settings have the same ones. Equal texts stay together, and so
    does what has an article, a document, a context or an anchor in common; the share is of those. None: a tenth, if
    that is at least 10 examples, and the training examples are not those of data.dir, but for the task text. 0: none,
    so that there must be dev examples."""
    stratified: bool | None = option(None, before=False)
    """Whether the part that is held out has the same share of every class, where an example has one. None: it has,
    unless the runs in the work directory began without, as those of 0.1.0 did."""
    folds: int = option(0, before=0)
    """Number of parts of a cross-validation, such as 5: there is a run per part, trained on the others and scored on
    it, and no dev set. The parts are made as that of dev_share is. 0: no cross-validation."""

    def check(self) -> None:
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
        super().check()
        if not (self.dir or self.named or self.dev or self.folds) and self.dev_share == 0:
            raise UserError(
                "no dev data, on which runs are compared and chosen: give --data.dev=FILE, or --data.dev_share=0.1 to "
                f"hold out a tenth of {self.train}"
            )

    def without_files(self) -> Self:
        return dataclasses.replace(super().without_files(), dev_share=0.0, folds=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskDataConfig(DividedDataConfig):
    """Source of the examples of a benchmark or of questions, and their weights."""

    chosen_for: ClassVar[tuple[str, ...]] = tuple(
        task for task in TASKS if task not in (*DIAGNOSES, "text", "ner", "vectors", "ranking", "xnli")
    )
    weight_column: str = option("", before="")
    """Column of the weights of the training examples, numbers of 0 or more by which their losses are multiplied; the
    loss of a batch is divided by the sum of its weights. By default all weigh the same."""

    def weighed_by(self, split: str) -> str:
        return self.weight_column if split == "train" else ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextDataConfig(TaskDataConfig):
    """Source of the examples of the task text, their columns, and whether their labels are classes or numbers."""

    chosen_for: ClassVar[tuple[str, ...]] = ("text",)
    text_column: str = ""
    """Column of the sentence: its name (TSV, CSV, hub, a data frame), its key (JSON lines, TFDS), or its number, from
    1, in a file without a header. By default text, sentence or sentence1."""
    pair_column: str = ""
    """Column of the second sentence. By default text_pair or sentence2, if there is one."""
    label_column: str = ""
    """Column of the label. By default label."""
    regression: bool | None = None
    """Whether the labels are numbers to estimate rather than classes. None: they are classes, and decimal numbers such
    as 0.5, which rarely are, must be said to be one or the other."""
    several_labels: bool = option(False, before=False)
    """Whether an example has any number of labels, also none, rather than one: a list in JSON lines, data sets and
    memory; names with label_separator between them in a column of text."""
    label_separator: str = option(",", of=("several_labels",), before=",")
    """What stands between two labels of an example in a column of text."""

    def check(self) -> None:
        if self.several_labels and self.regression:
            raise UserError(
                "data.regression=True estimates a number for each text, and data.several_labels=True gives it classes; "
                "leave one of them out"
            )
        if not self.label_separator:
            raise UserError("data.label_separator is empty; give what stands between two labels, such as a comma")
        super().check()


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
class XnliDataConfig(TaskDataConfig):
    """Source of the examples of the task xnli, and the languages to train on."""

    chosen_for: ClassVar[tuple[str, ...]] = ("xnli",)
    languages: str = "en"
    """Languages of the training examples, separated by commas, such as de,en; all for every one. Dev and test are
    measured in all languages that they have."""

    @property
    def trained(self) -> tuple[str, ...]:
        """The languages to train on."""
        named = tuple(name.strip() for name in self.languages.split(","))
        return XNLI_LANGUAGES if named == ("all",) else named

    def check(self) -> None:
        given = self.languages
        if not given.strip():
            raise UserError(f"data.languages is empty; give some of {', '.join(XNLI_LANGUAGES)}, or all")
        if unknown := [name for name in self.trained if name not in XNLI_LANGUAGES]:
            raise UserError(
                f"data.languages={given} has {unknown[0]!r:.40}, but XNLI has {', '.join(XNLI_LANGUAGES)}; give some, "
                "or all"
            )
        if len(set(self.trained)) < len(self.trained):
            raise UserError(f"data.languages={given} names a language twice; give each once")
        if self.train and not self.named and given != "en":
            raise UserError(
                f"data.languages={given} chooses files of data.dir, but data.train={self.train} is read as it is; "
                "leave one of them out"
            )
        super().check()


@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorDataConfig(DividedDataConfig):
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

    def check(self) -> None:
        for file, times in self.parts if self.train and not self.named else ():
            if not file or not 0 < times <= 1000:
                raise UserError(
                    f"data.train={self.train} must be files separated by commas, each perhaps with how often its "
                    "examples are taken, from 1 to 1000: a.tsv,b.tsv*3"
                )
        super().check()


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankingDataConfig(DividedDataConfig):
    """Source of the examples of the task ranking, and their columns."""

    chosen_for: ClassVar[tuple[str, ...]] = ("ranking",)
    query_column: str = ""
    """Column of the query. By default query, anchor, question or sentence1."""
    document_column: str = ""
    """Column of a document, of a list of documents, or of the one that answers the query where others do not. By
    default documents, document, positive, passage, answer or sentence2."""
    negative_columns: str = ""
    """Columns of documents that do not answer the query, separated by commas. By default all whose names begin with
    negative."""
    label_column: str = ""
    """Column of the grade of a document, or of the list of grades, or scores of a teacher, of all documents of a row.
    By default labels, label, grade, score or scores."""
    group_column: str = ""
    """Column of what the rows of one query have in common, where each row has one document. By default query_id,
    query-id or qid if there is such a column, else the query itself."""
