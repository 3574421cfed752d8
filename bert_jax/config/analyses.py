"""Options of `bert-jax analyze`, per analysis, as frozen dataclasses; standard library only.

The docstring of an analysis is its help: its usage, then what it does. Its `check` is called before a model is
opened.
"""

import dataclasses
import typing
from collections.abc import Iterable
from typing import ClassVar, Literal

from bert_jax.config.options import option
from bert_jax.config.pretraining import EDITS, ErrorUnit, NoiseConfig, check_noise
from bert_jax.errors import UserError, at_least, need_positive

Examined = Literal["model", "run", "sizes"]
"""What an analysis is given: a stored model, a work directory of pre-training, or a configuration or model."""
VectorKind = Literal["mean", "cls", "token"]
"""Vector that represents a text. mean: the mean over all tokens, [CLS] and [SEP] included, as `embed` does; cls: the
first token; token: one token that is neither, drawn at random."""


def _check_places(output: str, **inputs: str) -> None:
    """Raise a UserError if the output or the input is empty; the input is named by what it holds."""
    for kind, place in inputs.items():
        if not place.strip():
            raise UserError(f"input is empty; give the {kind}")
    if not output.strip():
        raise UserError("output is empty; give the directory of the result")


def spelling_noises(rates: Iterable[float], per: ErrorUnit, kinds: Iterable[str]) -> list[NoiseConfig]:
    """Return the noise of each rate; raise a UserError if one cannot work or the rates do not ascend."""
    rates = [float(rate) for rate in rates]
    if not rates or any(low >= high for low, high in zip(rates, rates[1:], strict=False)):
        raise UserError(
            f"rates={','.join(map(str, rates))} must be ascending numbers, at least one, such as 0,0.05,0.1"
        )
    if per not in typing.get_args(ErrorUnit):
        raise UserError(f"per={per!r} must be {' or '.join(typing.get_args(ErrorUnit))}")
    noises = [NoiseConfig(rate=rate, per=per, kinds=tuple(kinds)) for rate in rates]
    for each in noises:
        check_noise(each, "")
    return noises


Options = typing.TypeVar("Options")


def _of_a_model(options: type[Options]) -> type[Options]:
    """Add to the help of an analysis what its MODEL is."""
    options.__doc__ = (
        f"{options.__doc__}\n\nMODEL is anything that bert_jax.load opens, such as a work directory or one step of it, "
        "as RUN:STEP."
    )
    return options


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnalysisConfig:
    """Options of all analyses: the texts that the model reads, and the place of the result."""

    examines: ClassVar[Examined] = "model"
    input: str
    """Texts: files, directories or globs, local or gs://, separated by commas, as for prepare. Each line that is not
    blank is one text."""
    output: str
    """Directory for result.json and the pictures. The same command with the same model and input reads an existing
    result from there."""
    texts: int = 2_000
    """Number of texts to draw at random from the input. 0: all of them, in their order."""
    seed: int = 0
    """Seed of everything that is drawn at random."""
    batch_size: int = 32
    """Number of texts that the model reads at once."""
    max_length: int | None = None
    """Tokens per text, [CLS] and [SEP] included; longer texts are cut. None: as many as the model has positions."""
    format: Literal["auto", "text", "jsonl", "wikiextractor"] = "auto"
    """Format of the input. auto: by the file name, as for prepare."""
    text_field: str = "text"
    """Name of the field that holds the text in JSON lines."""

    def check(self) -> None:
        """Raise a UserError if an option cannot work; called before a model is opened."""
        at_least(0, texts=self.texts)
        at_least(1, batch_size=self.batch_size)
        _check_places(self.output, texts=self.input)


@_of_a_model
@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """analyze attention MODEL --text=TEXT --output=DIR [--pair=TEXT]

    Show who attends to whom in a text or a pair of texts: a page to explore every layer and head, and a picture of all.
    """

    examines: ClassVar[Examined] = "model"
    text: str
    """Text that the model reads."""
    output: str
    """Directory for index.html, result.json and the pictures."""
    pair: str = ""
    """Second text, read after the first as a pair. By default there is none."""
    max_length: int | None = None
    """Maximum number of tokens, special ones included; a longer text is cut. None: as many as the model has
    positions."""

    def check(self) -> None:
        """Raise a UserError if an option cannot work; called before a model is opened."""
        _check_places(self.output)


@_of_a_model
@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadsConfig(AnalysisConfig):
    """analyze heads MODEL --input=FILE --output=DIR [--trees=FILE.conllu]

    Measure what every attention head does over a corpus: where it looks (neighbours, special tokens, punctuation,
    distance, entropy), which heads are alike, whether it finds syntactic heads and antecedents, and what the loss of
    masked words gains without it.
    """

    texts: int = 1_000
    """Number of texts to draw at random from the input. 0: all of them, in their order."""
    max_length: int | None = 128
    """Tokens per text, [CLS] and [SEP] included; longer texts are cut, longer sentences of --trees are left out. None:
    as many as the model has positions."""
    trees: str = ""
    """CoNLL-U file (*.conllu) with syntactic heads. Every attention head is measured by how well it finds them and, if
    the file marks mentions (Entity=… in its last column), antecedents. By default neither is measured."""
    clusters: int = 4
    """Number of clusters of heads."""
    ablation_texts: int = 200
    """Number of these texts in which masked words are predicted without each head in turn. 0: no heads are removed."""

    def check(self) -> None:
        """Raise a UserError if an option cannot work."""
        super().check()
        at_least(1, clusters=self.clusters)
        at_least(0, ablation_texts=self.ablation_texts)


@_of_a_model
@dataclasses.dataclass(frozen=True, kw_only=True)
class CkaConfig(AnalysisConfig):
    """analyze cka MODEL --input=FILE --output=DIR [--other=MODEL]

    Compare the layers of a model, or those of two models or checkpoints, by linear CKA: 1 where two layers represent
    texts alike up to rotation and scale, 0 where they have nothing in common.
    """

    other: str = ""
    """Model to compare with. By default the layers of MODEL are compared with one another."""
    vectors: VectorKind = "mean"
    """Vector that represents a text in each layer. mean: the mean of its tokens. cls: the first token, [CLS]. token:
    one of its tokens, drawn at random, the same one in all layers; the two models then need the same tokenizer."""
    minibatch: int = 256
    """Number of texts in each estimate of the similarity. The estimates are averaged; they are unbiased for any number
    of at least 4."""


@_of_a_model
@dataclasses.dataclass(frozen=True, kw_only=True)
class IsotropyConfig(AnalysisConfig):
    """analyze isotropy MODEL --input=FILE --output=DIR

    Measure how evenly the vectors of texts fill the space, layer by layer: mean cosines, the partition function, the
    spectrum of the covariance.
    """

    vectors: VectorKind = "mean"
    """Vector that represents a text in each layer. mean: the mean of its tokens. cls: the first token, [CLS]. token:
    one of its tokens, drawn at random."""
    sts: str = ""
    """File of STS-B, dev.tsv or train.tsv. Its judgements are compared with the cosines of every layer, by mean and
    cls, before and after centring, component removal and whitening, all fitted on the input. By default there is no
    such comparison."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskGapConfig:
    """analyze mask_gap RUN --output=DIR

    Measure whether a model has memorized its masks: the loss on training sequences with the masks that they were
    trained with, minus the loss on the same sequences with fresh masks, at every checkpoint of a run. Held-out
    sequences are measured in the same way.

    RUN is a work directory of pre-training. The curve has a point for each of its checkpoints (checkpoint.keep_last
    decides how many there are). The token store must be where the configuration of the run says.
    """

    examines: ClassVar[Examined] = "run"
    output: str
    """Directory for result.json and the pictures. The same command with the same checkpoints reads an existing result
    from there."""
    sequences: int = 256
    """Number of training sequences, and of held-out ones."""
    fresh_masks: int = 4
    """Number of fresh masks for each sequence; their losses are averaged."""
    seed: int = 0
    """Seed of the sequences and of the fresh masks."""
    batch_size: int = 32
    """Number of sequences that the model reads at once."""

    def check(self) -> None:
        """Raise a UserError if an option cannot work; called before a run is opened."""
        at_least(1, sequences=self.sequences, fresh_masks=self.fresh_masks, batch_size=self.batch_size)
        if self.seed < 0:
            raise UserError(f"seed={self.seed} must not be negative")
        _check_places(self.output)


@_of_a_model
@dataclasses.dataclass(frozen=True, kw_only=True)
class ProbeConfig:
    """analyze probe MODEL --input=FILE --output=DIR [--dev=FILE --test=FILE]

    Train linear probes on every layer and on a learned mix of all layers, and compare their scores with control tasks
    and baselines.

    The tasks depend on the kind of file. *.conllu gives the tasks pos, arc, relation and depth. *.conll, with a word
    and its tags per line, gives one task for each of --columns. *.jsonl, with labelled spans or pairs of spans, gives
    one task with the name of the file. Any other file is text and gives the tasks length, content, order, capital and
    subword.
    """

    examines: ClassVar[Examined] = "model"
    input: str
    """Files to train on, separated by commas; their tasks are shown together. Without --dev and --test, each seed sets
    aside 15 % of the texts for each of the two."""
    output: str
    """Directory for result.json, the pictures and the states of words. The same command reads what already exists from
    there."""
    dev: str = ""
    """Files with the same tasks, on which the penalty is chosen. By default a part of the input."""
    test: str = ""
    """Files with the same tasks, on which the probes are tested. By default a part of the input."""
    tasks: str = ""
    """Names of the tasks, separated by commas. By default all tasks that the files provide."""
    columns: str = ""
    """Names and columns of the tags in CoNLL files, such as pos:2,chunk:3,entity:4. By default the last column gives
    the task "tags"."""
    layers: str = "all"
    """Layers to probe and to mix, such as 0,2,4, where 0 is the embeddings. all: the embeddings and every layer."""
    pieces: Literal["first", "mean", "last"] = "mean"
    """Pieces of a word or span that represent it. mean: the mean of all pieces. first, last: one of them."""
    seeds: int = 3
    """Number of seeds. Each divides the texts differently and draws a different control task."""
    examples: int = 5_000
    """Maximum number of examples of a task from each of the input, dev and test, drawn at random."""
    texts: int = 2_000
    """Number of lines of text from which tasks without labels are made, drawn at random. 0: all."""
    seed: int = 0
    """First of the seeds, and the seed of whatever else is drawn at random."""
    batch_size: int = 32
    """Number of texts that the model reads at once."""
    max_length: int | None = None
    """Tokens per text, [CLS] and [SEP] included; words beyond them are not probed. None: as many as the model has
    positions."""
    text_field: str = "text"
    """Name of the field that holds the text in JSON."""

    def check(self) -> None:
        """Raise a UserError if an option cannot work; called before a model is opened."""
        at_least(1, seeds=self.seeds, batch_size=self.batch_size)
        at_least(10, examples=self.examples)
        at_least(0, texts=self.texts)
        _check_places(self.output, files=self.input)
        if "://" in self.output:
            raise UserError(
                f"output={self.output} must be a local directory, because states in it are mapped to memory"
            )
        self.layer_numbers()
        self.tag_columns()

    def layer_numbers(self) -> str | list[int]:
        """Return "all", or the numbers of the layers."""
        if self.layers == "all":
            return "all"
        try:
            return [int(number) for number in self.layers.split(",")]
        except ValueError:
            raise UserError(
                f"layers={self.layers} must be all, or numbers separated by commas, such as 0,2,4"
            ) from None

    def tag_columns(self) -> dict[str, int] | None:
        """Return the columns by name; None for the last."""
        found = {}
        for item in filter(None, self.columns.split(",")):
            name, _, column = item.partition(":")
            if not name or not column.isdecimal() or int(column) < 1 or name in found:
                raise UserError(f"columns={self.columns}: expected NAME:COLUMN,… such as pos:2,chunk:3, not {item!r}")
            found[name] = int(column)
        return found or None


@_of_a_model
@dataclasses.dataclass(frozen=True, kw_only=True)
class PruneConfig(AnalysisConfig):
    """analyze prune MODEL --depth=N --input=FILE --output=DIR [--task=NAME --task_data=DIR]

    Remove the layers that a model needs least, as judged by CKA, down to a given depth. Measure what is lost, compared
    with removing the top layers or random ones. The smaller model is DIR/model: train it further (pretrain
    --init_from), fine-tune it, or convert it.
    """

    depth: int
    """Number of layers that remain."""
    texts: int = 1_000
    """Number of texts to draw at random from the input. Half of them guide the removal; in the other half masked words
    are predicted."""
    max_length: int | None = 128
    """Tokens per text, [CLS] and [SEP] included; longer texts are cut. None: as many as the model has positions."""
    vectors: VectorKind = "mean"
    """Vector that represents a text. mean: the mean of its tokens. cls: the first token, [CLS]. token: one of its
    tokens, drawn at random."""
    draws: int = 3
    """Number of random orders to compare with."""
    task: str = ""
    """Task whose score is measured too; see `bert-jax finetune`. By default the task of a fine-tuned MODEL."""
    task_data: str = ""
    """Directory with the files of the task under their original names. A fine-tuned MODEL is scored without the layers
    and without further training. A pre-trained one is fine-tuned separately for every set of layers. By default no task
    is scored."""
    epochs: int = option(3, of=("task_data",))
    """Number of passes over the training examples if MODEL is fine-tuned for a score."""
    learning_rate: float = option(5e-5, of=("task_data",))
    """Peak learning rate of these fine-tunings."""
    seeds: int = option(1, of=("task_data",))
    """Number of these fine-tunings for every set of layers; the score is their mean."""

    def check(self) -> None:
        """Raise a UserError if an option cannot work."""
        super().check()
        if self.depth < 1:
            raise UserError(f"depth={self.depth} must be at least 1: a model needs a layer")
        if self.texts == 0:
            raise UserError("texts=0: pruning reads its texts once per candidate and holds them; give a number of them")
        at_least(0, draws=self.draws)
        at_least(1, epochs=self.epochs, seeds=self.seeds)
        if self.task and not self.task_data:
            raise UserError(f"task={self.task} needs its examples; give --task_data=DIRECTORY")


@dataclasses.dataclass(frozen=True, kw_only=True)
class InitConfig:
    """analyze init MODEL --output=DIR

    Measure a model before its first step, and compare it with theory: the norm of attention by the number of heads,
    states and gradients by depth for post-norm and pre-norm, the similarity of positions, and operations and memory by
    length; with --widths also what the first steps change in wider and wider models.

    MODEL is the name of a shipped configuration (bert_mini), a configuration file, or anything that bert_jax.load
    opens. Only its sizes are used, except that its learned positions are compared with both ways to initialize them.
    """

    examines: ClassVar[Examined] = "sizes"
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
    widths: tuple[int, ...] = ()
    """Hidden sizes at which some steps are taken, such as 64,128,256,512, to see whether what they change depends on
    the width, with the rates and initial values as they are and with those of model.scaling. By default there are none,
    because that takes a minute."""
    width_steps: int = option(2, of=("widths",))
    """Number of those steps."""
    width_rate: float = option(1e-3, of=("widths",))
    """Learning rate of those steps, at every width."""
    width_optimizer: Literal["adamw", "muon"] = option("adamw", of=("widths",))
    """Optimizer of those steps; weights do not decay."""
    seed: int = 0
    """Seed of everything that is drawn at random."""

    def check(self) -> None:
        """Raise a UserError if an option cannot work."""
        _check_places(self.output)
        need_positive(self, "", "width_steps", "width_rate")
        if self.widths and (len(set(self.widths)) < 2 or min(self.widths) < 1):
            raise UserError(
                f"widths={','.join(map(str, self.widths))} must be two or more hidden sizes, for a slope, or nothing"
            )
        if self.draws < 2:
            raise UserError(f"draws={self.draws} must be at least 2, or there is no sampling error")
        for name in ("heads", "lengths"):
            if min(getattr(self, name), default=0) < 1:
                raise UserError(f"{name} must be positive numbers, separated by commas, at least one")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpellingConfig(AnalysisConfig):
    """analyze noise MODEL --input=FILE --output=DIR [--rates=0,0.05,0.1]

    Put spelling errors into texts, at several rates. Measure how well a pre-trained model still finds hidden words
    among them, or how well a fine-tuned one still answers, and into how many pieces the words break.

    MODEL is anything that bert_jax.load opens, such as a work directory or one step of it, as RUN:STEP. The
    input of a fine-tuned model is the labelled dev set of its task: the file, or the directory of the files under their
    original names. All of it is read.
    """

    texts: int = 1_000
    """Number of texts to draw at random from the input. 0: all of them, in their order. A dev set is read in full."""
    max_length: int | None = 128
    """Tokens per text, [CLS] and [SEP] included; longer texts are cut, and the texts of a task as in its fine-tuning.
    None: as many as the model has positions."""
    rates: tuple[float, ...] = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)
    """Probabilities of an error, ascending, separated by commas."""
    per: ErrorUnit = "character"
    """Unit of the rates. character: each letter or digit is edited with this probability. word: each word gets one
    edit with this probability."""
    kinds: tuple[str, ...] = EDITS
    """Edits to draw from: insert, delete, substitute, swap, neighbour (a key next to the right one)."""
    task: str = ""
    """Task of a fine-tuned MODEL. By default the one recorded with it."""

    def check(self) -> None:
        """Raise a UserError if an option cannot work; called before a model is opened."""
        super().check()
        spelling_noises(self.rates, self.per, self.kinds)


@_of_a_model
@dataclasses.dataclass(frozen=True, kw_only=True)
class SimilarityConfig(AnalysisConfig):
    """analyze similarity MODEL --input=FILE --output=DIR [--word=WORD --senses=FILE]

    Measure how much the vector of a word depends on its context, layer by layer, and whether the senses of one word
    come apart.
    """

    words: int = 100
    """Number of words to measure, drawn at random from those that occur in enough texts."""
    contexts: int = 16
    """Number of texts in which each of these words is measured."""
    word: str = ""
    """Word to look at in the texts of --senses, such as bank. By default there is none."""
    senses: str = ""
    """File with a line for each text that contains the word: a name for its sense, a tab, the text. It goes with
    --word."""

    def check(self) -> None:
        """Raise a UserError if an option cannot work; called before a model is opened."""
        super().check()
        if (not self.word) != (not self.senses):
            raise UserError(
                f"word={self.word or 'nothing'} and senses={self.senses or 'nothing'}: give both, "
                "--word=WORD --senses=FILE, or neither"
            )


@_of_a_model
@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorTasksConfig:
    """analyze vectors MODEL --output=DIR [--sts=FILE --pairs=FILE --clusters=FILE --train=FILE --test=FILE]

    Measure the vectors of texts in tasks from files, as MTEB does: similar pairs, pairs that belong together, clusters,
    and classes learned from a few examples. Search is measured by `bert-jax search`.
    """

    examines: ClassVar[Examined] = "model"
    output: str
    """Directory for result.json. The same command with the same model and files reads an existing result from there."""
    sts: str = ""
    """File of two texts and a score each, as for finetune vectors: Spearman's and Pearson's correlation of scores and
    cosines. By default none is read."""
    pairs: str = ""
    """File of two texts and 1 or 0 each, whether they belong together: average precision, and accuracy and F1 at the
    best threshold of the cosine. By default none is read."""
    clusters: str = ""
    """File of texts with a class each, as for finetune text: V-measure of as many clusters as there are classes. By
    default none is read."""
    train: str = ""
    """File of texts with a class each, of which a few are learned by logistic regression on the vectors. It goes with
    --test. By default none is read."""
    test: str = ""
    """File of texts with a class each, on which accuracy and macro-F1 are measured."""
    experiments: int = 10
    """Number of runs of k-means, and of regressions on other examples, whose mean is given."""
    per_class: int = 8
    """Number of training texts per class in a regression."""
    seed: int = 42
    """Seed of everything that is drawn at random."""
    batch_size: int = 32
    """Number of texts that the model reads at once."""
    precision: Literal["float32", "int8", "binary"] = "float32"
    """Numbers in which vectors are kept. int8 and binary: the cosines of pairs are also measured in one byte or one bit
    for each value, next to those in float32, so that the loss shows."""

    def check(self) -> None:
        """Raise a UserError if an option cannot work; called before a model is opened."""
        _check_places(self.output)
        if self.precision != "float32" and not (self.sts or self.pairs):
            raise UserError(f"precision={self.precision} is of cosines of pairs; give --sts=FILE or --pairs=FILE")
        at_least(1, experiments=self.experiments, per_class=self.per_class, batch_size=self.batch_size)
        if not 0 <= self.seed < 2**31:
            raise UserError(f"seed={self.seed} must be between 0 and {2**31 - 1}")
        if (not self.train) != (not self.test):
            raise UserError(
                f"train={self.train or 'nothing'} and test={self.test or 'nothing'}: give both, --train=FILE "
                "--test=FILE, or neither"
            )
        if not any((self.sts, self.pairs, self.clusters, self.train)):
            raise UserError("there is nothing to measure; give --sts=FILE, --pairs=FILE, --clusters=FILE, or --train")


ANALYSES = {
    "attention": AttentionConfig,
    "cka": CkaConfig,
    "heads": HeadsConfig,
    "init": InitConfig,
    "isotropy": IsotropyConfig,
    "mask_gap": MaskGapConfig,
    "noise": SpellingConfig,
    "probe": ProbeConfig,
    "prune": PruneConfig,
    "similarity": SimilarityConfig,
    "vectors": VectorTasksConfig,
}
