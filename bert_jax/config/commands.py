"""Options of bench, launch, plan and the smaller commands, as frozen dataclasses; standard library only.

The docstring of a benchmark or a platform is its help: its usage, then what it does. No option of `launch` has the
name of one of `pretrain`, because the same command line takes both.
"""

import dataclasses
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, Self, get_args

from bert_jax.config.corpora import LONGEST_LINE, MOST_EXPANSION, CorpusFormat, PrepareConfig, PreparedTextConfig
from bert_jax.config.finetuning import FinetuneConfig
from bert_jax.config.options import check_kinds, check_numbers, field_values, kinds, option
from bert_jax.config.pretraining import Config, MaskUnit, PackingChoice, SentencePairs
from bert_jax.errors import UserError, at_least, need_positive, need_share


@dataclasses.dataclass(frozen=True, kw_only=True)
class TurnsConfig:
    """Options of all benchmarks: how contestants take turns, and where the result goes."""

    rounds: int = 8
    """Number of rounds. In each, every contestant has one turn, in the same order. Ratios compare neighbouring turns,
    and their median is reported."""
    turn_seconds: float = 2.0
    """Minimum length of a turn, in seconds; a turn does at least one unit of work, such as a training step."""
    peer: Literal["none", "torch"] = "none"
    """Competitor that is measured in turns with bert_jax. torch: the same work in torch and transformers, in the
    environment that peer_python names."""
    peer_python: str = ""
    """Python of an environment that has torch and transformers, such as peer/bin/python. Nothing is installed there."""
    output: str = ""
    """File to write the result to, FILE.json; a table for people goes to FILE.md. By default it is only printed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseTurnsConfig(Config, TurnsConfig):
    """Options of the benchmarks of pre-training: the phase to measure, and variants to compare it with."""

    phase: int = 0
    """Number of the phase of CONFIG to measure, counted from 0. For bert_base, 1 is the phase at length 512."""
    variant: tuple[str, ...] = ()
    """Another contestant, which differs from the first in these options, such as "compute.dtype=bfloat16 seed=1". A
    word in capitals is an environment variable: "XLA_FLAGS=--xla_cpu_use_onednn=true"; PYTHONPATH=CHECKOUT measures
    another version of bert_jax. Give the option once for each contestant."""

    @classmethod
    def of(cls, config: Config, phase: int) -> Self:
        """Return the options of a measurement of one phase of a run.

        Raises:
          UserError: `config` has no such phase.
        """
        if not 0 <= phase < len(config.phases):
            raise UserError(f"phase={phase}: this configuration has phases 0 to {len(config.phases) - 1}")
        alone = dataclasses.replace(config.phases[phase], schedule="continue", moments="keep")  # none is before it
        one = dataclasses.replace(config, phases=(alone,))
        return cls(**field_values(Config, one), phase=phase)

    @property
    def run(self) -> Config:
        """The options of the run alone."""
        return Config(**field_values(Config, self))


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepBenchConfig(PhaseTurnsConfig):
    """bench step CONFIG [--peer=torch --peer_python=PYTHON] [--variant=OPTIONS …] [--output=FILE.json]

    Measure the training step in tokens per second, in turns with torch and with other options of bert_jax.

    CONFIG is that of `bert-jax pretrain`, and all options of that command apply. The batch is synthetic; with
    --data.path=STORE it comes from a token store. Only one phase is measured, so its options need no prefix.
    """

    starts: int = 1
    """Number of times that every contestant is started, each time for `rounds` rounds. Processes of the same program
    differ by a few percent, probably by the memory that they get, so compare small changes over several starts."""
    padding: float = option(0.0625, of=("data.path", ""))
    """Share of each sequence of a synthetic batch that is padding. With --data.path the padding is that of the
    store."""
    platform: Literal["auto", "cpu", "gpu", "tpu"] = "auto"
    """Platform to compute on. auto: the one that JAX chooses."""
    peer_compile: bool = option(True, of=("peer", "torch"))
    """Whether the tuned peer also tries torch.compile, which can take minutes, and keeps it where it is faster."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataBenchConfig(PhaseTurnsConfig):
    """bench data STORE CONFIG [--grid] [--need=PLAN.json,…] [--peer=torch --peer_python=PYTHON] [--output=FILE.json]

    Measure how fast batches are made, in sequences per CPU second, in turns with the masking collator of transformers.

    STORE is a token store that `bert-jax prepare` wrote. CONFIG is that of `bert-jax pretrain`, and all options of that
    command apply. Only one phase is measured, so its options need no prefix. The collator receives sequences that have
    already been tokenized, paired and cut, and only masks and pads them.
    """

    grid: bool = False
    """Also measure every loader, packed and not, with single tokens and whole words masked."""
    need: tuple[str, ...] = ()
    """Rates that hosts need, separated by commas, such as plan.json,v5p:2x2x1=9000: files that `bert-jax plan
    --output=FILE.json` wrote, of which the optimistic estimate is used, or NAME=SEQUENCES_PER_SECOND for all chips of
    one host. The result says how many cores each rate keeps busy."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneBenchConfig(FinetuneConfig, TurnsConfig):
    """bench finetune TASK --init_from=MODEL [--data.dir=DIR] [--peer=torch --peer_python=PYTHON] [--output=FILE.json]

    Measure fine-tuning steps, and texts as states of tokens and as vectors, in turns with transformers, which uses its
    fastest order and data type. For the task vectors, the peer is sentence-transformers with its own loss and encode.

    TASK is that of `bert-jax finetune`, vectors or one on sentences or pairs, and all options of that command apply,
    except that no --workdir is needed. Both sides start from the same weights and train on the same token ids.
    """

    texts: int = 1_000
    """Number of texts to encode: the first ones of the training set."""

    @classmethod
    def of(cls, config: FinetuneConfig) -> Self:
        """Return the options of a measurement of a task."""
        return cls(**field_values(FinetuneConfig, config))

    @property
    def run(self) -> FinetuneConfig:
        """The options of the run alone; nothing is written to its work directory."""
        return FinetuneConfig(**{**field_values(FinetuneConfig, self), "workdir": self.workdir or "nowhere"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareBenchConfig(PreparedTextConfig, TurnsConfig):
    """bench prepare --input=CORPUS --vocab=VOCAB [--peer=torch --peer_python=PYTHON] [--output=FILE.json]

    Measure `bert-jax prepare` with one worker, in MB of text per CPU second, in turns with its tokenizer alone.

    CORPUS is what `bert-jax prepare` takes, VOCAB is its vocabulary; no store is kept.
    """

    output: str = ""
    """File to write the result to, FILE.json; a table for people goes to FILE.md. By default it is only printed."""
    max_bytes: int = 5_000_000
    """Number of bytes of text to measure on, from the beginning of the corpus."""

    @property
    def run(self) -> PrepareConfig:
        """The options of `prepare` alone; nothing is written to its output."""
        return PrepareConfig(**{**field_values(PreparedTextConfig, self), "output": "nowhere"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadBenchConfig(TurnsConfig):
    """bench load MODEL [--also=MODEL,…] [--peer=torch --peer_python=PYTHON] [--output=FILE.json]

    Measure how fast a model is loaded, from the start of a new process until every parameter has been read, in turns.

    MODEL is anything that bert_jax.load opens; for transformers it must be a Hugging Face directory. Each turn is one
    process, whatever turn_seconds says. Where peer_python has sentence-transformers, both also make a first vector.
    """

    also: tuple[str, ...] = ()
    """Further models to load with bert_jax, such as the same weights in another format, separated by commas."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionBenchConfig(TurnsConfig):
    """bench attention [--kernels=xla,cudnn] [--lengths=128,512] [--peer=torch --peer_python=PYTHON]

    Measure attention kernels, forward and backward, by length, in turns. The others, and the scaled-dot-product
    attention of torch with --peer=torch, are compared with the first.
    """

    kernels: tuple[str, ...] = ("xla",)
    """Kernels to compare: xla and auto everywhere, pallas on a TPU, triton and cudnn on an NVIDIA GPU."""
    lengths: tuple[int, ...] = (128, 512, 2048)
    """Lengths of the sequences, in tokens."""
    tokens: int = 4096
    """Approximate number of tokens per batch: each length gets as many rows as fit, and at least one."""
    heads: int = 12
    """Number of heads, each of size 64."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Data type of queries, keys and values."""
    dropout: float = 0.1
    """Dropout rate on the probabilities."""
    padding: float = 0.0625
    """Share of each sequence that is padding."""
    window: int = 0
    """Number of tokens that each token sees to either side, as in a local layer. 0: all of them."""
    global_tokens: int = 0
    """With window, number of tokens at the start of each sequence that see all others and that all others see."""


BENCHMARKS = {
    "step": StepBenchConfig,
    "data": DataBenchConfig,
    "prepare": PrepareBenchConfig,
    "load": LoadBenchConfig,
    "finetune": FinetuneBenchConfig,
    "attention": AttentionBenchConfig,
}
KERNELS = ("xla", "auto", "pallas", "triton", "cudnn")


def check_attention_bench(options: AttentionBenchConfig) -> None:
    """Raise a UserError if a kernel, a size or a share does not exist."""
    for kernel in options.kernels or ("",):
        if kernel not in KERNELS:
            raise UserError(f"kernels={kernel}: there is no such kernel; choose from {', '.join(KERNELS)}")
    for name, values in (("lengths", options.lengths), ("tokens", (options.tokens,)), ("heads", (options.heads,))):
        if not values or min(values) < 1:
            raise UserError(f"{name}={','.join(map(str, values))} must be at least 1")
    if options.window < 0:
        raise UserError(f"window={options.window} must be a number of tokens, or 0 for all of them")
    if options.global_tokens < 0 or (options.global_tokens and not options.window):
        raise UserError(
            f"global_tokens={options.global_tokens} must be a number of tokens that a window does not restrict; "
            "give --window too, or leave global_tokens out"
        )
    for name, share in (("dropout", options.dropout), ("padding", options.padding)):
        if not 0 <= share < 1:
            raise UserError(f"{name}={share} must be at least 0 and less than 1")


MAKE_PEER = (
    "give the Python of an environment made with: python -m venv peer && peer/bin/pip install torch transformers"
)


def check_turns(options: TurnsConfig) -> None:
    """Raise a UserError if the options that all benchmarks share do not fit together."""
    at_least(1, rounds=options.rounds)
    if not 0 <= options.turn_seconds < float("inf"):
        raise UserError(f"turn_seconds={options.turn_seconds} must be 0 or a positive number")
    if (options.peer == "none") != (not options.peer_python):
        raise UserError(
            f"peer={options.peer} and peer_python={options.peer_python or 'nothing'}: give both, "
            "--peer=torch --peer_python=PYTHON, or neither"
        )
    if options.peer_python and shutil.which(options.peer_python) is None:
        raise UserError(f"peer_python={options.peer_python} cannot be started (there is no such program); {MAKE_PEER}")
    if options.output and not options.output.endswith(".json"):
        raise UserError(
            f"output={options.output} must end in .json; the table goes to a file in .md with the same name"
        )
    if os.path.isdir(options.output):
        raise UserError(f"output={options.output} is a directory; name a file in it")
    directory = os.path.dirname(options.output) or "."
    if options.output and not os.path.isdir(directory):
        raise UserError(f"output={options.output}: there is no directory {directory}; create it first")


ModelFormat = Literal["bert_jax", "huggingface", "tf1"]
"""Formats that a model is written in, to be opened here or elsewhere; see `ConvertConfig.to`."""
ExportFormat = Literal["onnx", "stablehlo", "saved_model"]
"""Formats that a model is written in as a program, which only runs; see `ConvertConfig.to`."""
PartsWritten = Literal["all", "mlm", "encoder", "generator"]
"""Parts of a model that are written; see `ConvertConfig.parts`."""
Weights = Literal["last", "ema"]
"""Weights of a run of bert_jax; see `ConvertConfig.weights`."""


Precision = Literal["float32", "int8"]
"""Numbers in which a program has its weights; see `ConvertConfig.precision`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CountConfig:
    """Options of `bert-jax count`."""

    output: str
    """Directory to write the counts to. It must not exist yet, or be empty."""
    window: int = 10
    """Maximum distance of two tokens that are counted as a pair, 1 to 20. A pair at distance d counts 1/d."""
    held_out: float = 0.01
    """Share of the documents that are not counted: those that a run with the same --data.held_out evaluates on."""
    cache: str = ""
    """Local directory that a remote store is copied to once. By default bert_jax in the user's cache directory
    ($XDG_CACHE_HOME, else ~/.cache)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """Options of `bert-jax demo`."""

    workdir: str = "runs/demo"
    """Directory of the run. The demo resumes if it is started again with the same directory."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExtendVocabConfig:
    """Options of `bert-jax extend-vocab`."""

    vocab: str
    """The vocab.txt to extend, or a directory that holds one. It is not changed."""
    output: str
    """File (vocab.txt) or directory to write the extended vocabulary to."""
    words: str = ""
    """File of words to add, one per line. By default they are found in the corpus that --input names."""
    input: str = ""
    """Corpus to find words in, as for train-vocab. Not needed if --words is given."""
    max_words: int = option(1_000, of=("input",))
    """Maximum number of words to add from a corpus: those that save the most pieces."""
    min_count: int = option(10, of=("input",))
    """Words that occur less often than this in the corpus are not added."""
    max_bytes: int = option(1_000_000_000, of=("input",))
    """Maximum number of bytes of text to read from the corpus, taken evenly from all documents."""
    lowercase: bool | None = None
    """Whether text is lowercased. None: as the vocabulary was made."""
    format: CorpusFormat = option("auto", of=("input",))
    """Format of the corpus. auto: by the file name, as for train-vocab."""
    text_field: str = option("text", of=("input",))
    """Name of the field that holds the text in JSON lines, Parquet, Arrow and TFDS examples."""
    max_line_bytes: int = option(LONGEST_LINE, of=("input",))
    """Maximum number of bytes of a line of plain text; a longer one stops the command, because hardly anybody writes
    such lines. For a line of JSON, a page of Wikipedia and a book the limit is 64 MiB."""
    max_expansion: int = option(MOST_EXPANSION, of=("input",))
    """Maximum size of the text of a compressed file, as a multiple of the size of the file; one with more stops the
    command, because it may be made to exhaust its readers. What people write is at most about 10 times as large. The
    first 16 MiB are not counted."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class InspectConfig:
    """Options of `bert-jax inspect`."""

    document: int = 0
    """Number of the document to follow, counted from 0."""
    words: str = ""
    """Words to follow instead of a whole document, such as "the white whale", which stand one after the other; the
    first 20 places are found. By default the document is that of --document."""
    run: str = ""
    """Work directory of a run of `bert-jax pretrain`, local or gs://, that was trained on STORE or a copy of it. Every
    step at which it read the document or the words, or will read them, is listed, with the rows of the batch and the
    places in them. By default a document is followed into examples made with the options below."""
    stores: tuple[str, ...] = option((), of=("run",))
    """New places of the other stores of a run with a mixture, separated by commas, if they have been moved."""
    output: str = option("", of=("run",))
    """JSON file to write all steps to. By default they are printed only, the first 40 rows."""
    sentences: int = 8
    """Number of sentences of the document to show."""
    examples: int = option(3, of=("run", ""))
    """Number of examples made from the document to show."""
    epoch: int = option(0, of=("run", ""))
    """Epoch to take the examples from, counted from 0."""
    sequence_length: int = option(128, of=("run", ""))
    """Tokens per sequence, [CLS] and [SEP] included."""
    sentence_pairs: SentencePairs = option("nsp", of=("run", ""))
    """Pairs of segments: next-sentence prediction (nsp), sentence order (sop, as in ALBERT), without a label (adjacent,
    as in ELECTRA), or none."""
    packing: PackingChoice = option("auto", of=("run", ""))
    """Whether a row holds several texts. auto: from 256 tokens on, as in a training run."""
    unit: MaskUnit = option("token", of=("run", ""))
    """Unit of masking: single tokens, whole words, spans of words (SpanBERT), or n-grams of words (ALBERT)."""
    short_sequence_probability: float = option(0.1, of=("run", ""))
    """Share of the documents that an epoch cuts to a random shorter length."""
    seed: int = option(0, of=("run", ""))
    """Seed of the order, the pairs and the masks, as in a training run with this --seed."""
    report_sequences: int = option(100_000, of=("run", ""))
    """Maximum number of sequences that the report on the epoch examines."""
    cache: str = ""
    """Local directory that a remote store is copied to once. By default bert_jax in the user's cache directory
    ($XDG_CACHE_HOME, else ~/.cache)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """Options of `bert-jax replay`."""

    step: str
    """Step to take again, counted from 1, or FROM:TO for all from one to another, such as 101:120."""
    from_start: bool = False
    """Whether steps before the oldest checkpoint are taken from the first parameters on. By default they are refused,
    because that may take hours."""
    show: int = 0
    """Number of rows of each batch to show, with their documents and what was predicted in them."""
    stores: tuple[str, ...] = ()
    """New places of the token stores of the run, separated by commas, if they have been moved; their fingerprints tell
    which is which."""
    teacher: str = ""
    """New place of the teacher of the run, if it has been moved."""
    output: str = ""
    """JSON file to write everything to, with the documents of each row. By default it is only printed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FillMaskConfig:
    """Options of `bert-jax fill-mask`."""

    top_k: int = 5
    """Number of candidates to show for each [MASK]."""


UnmaskingOrder = Literal["confidence", "random", "left_to_right"]
"""Which masks are filled in first; see `UnmaskingConfig.order`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnmaskingConfig:
    """How the masks of a text are filled in, step by step."""

    length: int | None = None
    """Number of masks that are put after the text, each of which becomes a token. None: 16, or none if the text has
    masks of its own."""
    steps: int | None = None
    """Number of steps, in each of which about as many masks are filled in. None: one mask at a time, which reads best;
    with fewer steps those that are filled in together do not know of each other."""
    temperature: float = 1.0
    """Divisor of the logits before a word is drawn. Lower ones draw likely words more often; 0: always the likeliest
    word."""
    order: UnmaskingOrder | None = None
    """Masks to be filled in first. confidence: those for which the word that was drawn is the most likely (LLaDA).
    random: any. left_to_right: the first ones. None: confidence, or left_to_right for a model that reads in this
    direction and can do no other."""
    samples: int = 1
    """Number of texts to make of each given one."""
    seed: int = 0
    """Seed of all draws. A text follows from it, the number of the sample, the model and the options, and not from the
    other texts."""

    def check(self) -> None:
        """Raise a UserError if a value is out of range, or all samples would be the same."""
        if self.order not in (None, *get_args(UnmaskingOrder)):
            raise UserError(f"order={self.order!r:.40} must be confidence, random or left_to_right")
        at_least(1, samples=self.samples, steps=1 if self.steps is None else self.steps)
        at_least(0, length=self.length or 0, seed=self.seed)
        if not 0 <= self.temperature <= 100:
            raise UserError(f"temperature={self.temperature:g} must be from 0, always the likeliest word, to 100")
        if self.samples > 1 and not self.temperature and self.order != "random":
            raise UserError(
                f"samples={self.samples} would all be the same text, because nothing is drawn with temperature=0 and "
                f"order={self.order or 'confidence'}; set temperature=1, or order=random"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerateConfig(UnmaskingConfig):
    """Options of `bert-jax generate`."""

    show_steps: bool = False
    """Whether to print the text after each step, with its masks."""
    output: str = ""
    """File to write the texts to, as JSON lines with prompt, sample and text. By default they are only printed."""
    batch_size: int = 32
    """Texts per batch."""

    def check(self) -> None:
        """Raise a UserError as `UnmaskingConfig.check` does."""
        super().check()
        at_least(1, batch_size=self.batch_size)


ScoreUnit = Literal["token", "word"]
"""What is masked at a time; see `ScoreConfig.unit`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoreConfig:
    """Options of `bert-jax score`."""

    input: str = ""
    """File of the texts to score, in place of texts on the command line: a .txt file or - for standard input, with one
    text per line, or a directory with one text per .txt file."""
    pairs: str = ""
    """File of minimal pairs: JSON lines, CSV, TSV or Parquet with the columns sentence_good and sentence_bad (BLiMP) or
    sent_more and sent_less (CrowS-Pairs); or a directory of such JSON lines. By default there are none."""
    group_by: str = option("", of=("pairs",))
    """Column with the group of a pair, which has a row of its own in the table. By default UID, bias_type, phenomenon
    or linguistics_term, or else the name of the file."""
    unit: ScoreUnit = "token"
    """What is masked with a token. token: nothing else. word: also the tokens to its right in the same word, which does
    not favour words of several pieces."""
    reduction: Literal["sum", "mean", "tokens"] = "sum"
    """What is shown of each text, and compared in each pair. sum: its log-likelihood in nats. mean: nats per token.
    tokens: the figure of every token; not for pairs."""
    output: str = ""
    """File to write the scores to, as JSON lines: one line for each text or pair. By default scores of texts are only
    printed, and those of single pairs are not shown."""
    batch_size: int = 32
    """Rows per batch, each of which may hold several copies of texts."""

    def check(self, texts: int) -> None:
        """Raise a UserError if there is not one source of texts, or an option has no effect; `texts` were given."""
        if (texts > 0) + bool(self.input) + bool(self.pairs) != 1:
            several = ", not several" * (bool(texts) or bool(self.input))
            raise UserError(f"give texts after MODEL, --input=FILE or --pairs=FILE{several}")
        if self.pairs and self.reduction == "tokens":
            raise UserError("--reduction=tokens has no one figure to compare the texts of --pairs by; set sum or mean")
        at_least(1, batch_size=self.batch_size)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResultsConfig:
    """Options of `bert-jax results`."""

    gain_over: str = ""
    """Directory to compare with, one of those given, or one of its rows if it has several (such as random weights). For
    each other row, an additional row shows by how much it is better. By default there are no such rows."""
    output: str = ""
    """Directory to write results_table.md and results_table.json to. By default the table is only printed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvertConfig:
    """Options of `bert-jax convert`."""

    to: Literal[ModelFormat, ExportFormat]
    """Format to write. bert_jax: a work directory for load, --init_from and the other commands. huggingface: a
    directory that transformers opens. tf1: files that Google's code opens. onnx, stablehlo and saved_model: a program
    that runs without bert_jax, and is compared with the model before it is kept (docs/export.md)."""
    parts: PartsWritten = "all"
    """Parts to write. all: everything that the source has; for a run of replaced-token detection, the discriminator.
    generator: the generator of such a run, a masked language model. mlm: encoder and masked-language-model head, the
    exact contents of AutoModelForMaskedLM. encoder: the encoder with its pooler, if it has one, the exact contents of
    AutoModel."""
    weights: Weights = "last"
    """Weights to write if the source is a run of bert_jax: those after the last step, or their moving average
    (optimizer.ema_decay)."""
    push: str = ""
    """Repository of the Hugging Face hub, as owner/name[@branch], to which the directory is uploaded too once it is
    written; for to=huggingface. It is made if there is none. By default nothing is uploaded."""
    private: bool = False
    """Whether a repository that push makes is visible to its owner alone."""
    precision: Precision = "float32"
    """Numbers in which a program has its weights. int8: kernels and tables as integers with a scale for each output,
    which take a quarter of the space, and change the results."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mean:
    """Weighted mean of the models."""

    chosen_by: ClassVar[Mapping[str, str]] = {"method": "mean"}
    """The option that chooses it, and its value."""
    shares: tuple[float, ...] = ()
    """Weight of each model, in their order; they are divided by their sum. By default all count alike."""

    def check(self, models: int) -> None:
        """Raise a UserError unless there is a share for each model."""
        shown = ",".join(map(str, self.shares))
        if self.shares and len(self.shares) != models:
            raise UserError(f"shares={shown} has {len(self.shares)} numbers for {models} models; give one for each")
        if self.shares and (min(self.shares) < 0 or not 0 < sum(self.shares) < math.inf):
            raise UserError(f"shares={shown} must be positive numbers; leave out a model that does not count")

    def of(self, models: int) -> list[float]:
        """Return the share of each model in the mean; they add up to 1."""
        given = self.shares or (1.0,) * models
        return [share / sum(given) for share in given]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MovingAverage:
    """Exponential moving average over the models in their order, which begins with the first."""

    chosen_by: ClassVar[Mapping[str, str]] = {"method": "ema"}
    """The option that chooses it, and its value."""
    decay: float = 0.5
    """Share of the average so far that each further model leaves: average = decay × average + (1 − decay) × model."""

    def check(self, models: int) -> None:
        """Raise a UserError if the decay is no share below 1."""
        need_share(self, "", "decay", below_one=True)

    def of(self, models: int) -> list[float]:
        """Return the share of each model in the average; they add up to 1."""
        later = [(1 - self.decay) * self.decay ** (models - 1 - place) for place in range(1, models)]
        return [self.decay ** (models - 1), *later]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slerp:
    """The point between two models on the arc from one to the other (Shoemake 1985), for each array of each layer."""

    chosen_by: ClassVar[Mapping[str, str]] = {"method": "slerp"}
    """The option that chooses it, and its value."""
    share: float = 0.5
    """Share of the way from the first model to the second."""

    def check(self, models: int) -> None:
        """Raise a UserError unless there are two models."""
        need_share(self, "", "share")
        if models != 2:
            raise UserError(f"method=slerp lies between two models, and these are {models}; give two, or method=mean")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ties:
    """What models of one ancestor have learned since, where most of them agree (TIES, arXiv:2306.01708).

    Of each model the largest changes are kept; the sign of their sum is elected for each value, and the mean of those
    changes that have it is added to the ancestor.
    """

    chosen_by: ClassVar[Mapping[str, str]] = {"method": "ties"}
    """The option that chooses it, and its value."""
    ancestor: str = ""
    """Model that all of them started from, spelled like them."""
    kept: float = 0.2
    """Share of the changes of a model, the largest over all its arrays, that counts."""
    scale: float = 1.0
    """Factor of the change that is added to the ancestor (λ in the paper)."""

    def check(self, models: int) -> None:
        """Raise a UserError without an ancestor, or if a number is out of range."""
        if not self.ancestor:
            raise UserError(
                "method=ties adds up changes since a common ancestor; name it, for example --ancestor=RUN:STEP, the "
                "step that these runs branched off from"
            )
        need_share(self, "", "kept")
        if not 0 < self.kept:
            raise UserError("kept=0.0 keeps no change; the paper keeps 0.2")
        need_positive(self, "", "scale")


AverageMethod = Mean | MovingAverage | Slerp | Ties


@dataclasses.dataclass(frozen=True, kw_only=True)
class AverageConfig:
    """Options of `bert-jax average`."""

    output: str = ""
    """Directory to write, which is made: a model for load, --init_from and all commands. Its run.json says what it is
    made of."""
    method: AverageMethod = kinds(Mean())
    """How the values of several models become one."""
    last: int = 0
    """Number of steps of a single run to average, the newest ones. 0: each model that is named counts once, a run with
    its newest step."""

    def check(self, models: Sequence[str | os.PathLike[str]]) -> None:
        """Raise a UserError if a model is named twice, or an option does not suit the number of `models`."""
        check_kinds(self)
        check_numbers(self)
        if not self.output:
            raise UserError("--output is missing: give a new directory for the average")
        at_least(0, last=self.last)
        number = self.last or len(models)
        if self.last and len(models) != 1:
            raise UserError(
                f"last={self.last} takes steps of one run, but {len(models)} models are named; name one run"
            )
        if number < 2:
            raise UserError(
                "an average is made of at least two models; name more, such as RUN:1000 RUN:2000, or give --last=3"
            )
        places = [os.path.realpath(os.path.expanduser(model)) for model in models]
        if twice := [model for model, place in zip(models, places, strict=True) if places.count(place) > 1]:
            raise UserError(f"{twice[0]} is named twice; name each model once (--shares says how much one counts)")
        self.method.check(number)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TpuConfig:
    """launch tpu CONFIG --name=NAME --zone=ZONE --accelerator_type=TYPE --data.path=STORE --workdir=gs://BUCKET/DIR

    Train on Cloud TPU VMs: request a slice, install, start on all workers, show the log, restart after a preemption.

    The request waits in the queue of Cloud TPU. If the slice is taken away, it is requested again and the run resumes.
    At the end the slice is deleted. Ctrl-C only detaches: the run continues, and the same command shows its log again.
    CONFIG is that of `bert-jax pretrain`, and all options of that command apply.
    """

    name: str
    """Name of the queued resource, and of its slice. If one of this name exists, the command attaches to it."""
    zone: str
    """Zone of Google Cloud, such as us-central2-b."""
    accelerator_type: str
    """Kind and size of a slice, such as v5litepod-256, v5p-128 or v6e-64."""
    runtime_version: str = ""
    """Image of the TPU VMs. By default the one that Google documents for JAX on this accelerator type."""
    slices: int = 1
    """Number of slices. mesh.slice must be the same number."""
    spot: bool = False
    """Request spot capacity, which is cheaper and may be taken away at any time."""
    project: str = ""
    """Project of Google Cloud. By default that of the gcloud configuration."""
    service_account: str = ""
    """Service account of the workers, which must have access to the bucket. By default that of Compute Engine."""
    wheel: str = ""
    """Wheel of bert_jax to install on the workers. By default one is built from this checkout."""
    max_restarts: int = 10
    """Maximum number of consecutive restarts; a start that lasts for an hour resets the count. A run that ended because
    of bad input is never restarted."""
    keep: bool = option(False, of=("teardown", False))
    """Do not delete the slice at the end. It costs money until --teardown deletes it."""
    teardown: bool = False
    """End the run and delete the slice, and do nothing else."""
    dry_run: bool = False
    """Print the commands, which can be pasted into a shell, and run nothing."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GkeConfig:
    """launch gke CONFIG --name=NAME --image=IMAGE --topology=TOPOLOGY --data.path=STORE --workdir=gs://BUCKET/DIR

    Train on TPU slices of Google Kubernetes Engine: submit a JobSet, which restarts the run after a preemption.

    A cluster with TPU node pools, the JobSet controller and a container image with bert_jax must exist. The command
    returns at once and says how to watch the run. CONFIG is that of `bert-jax pretrain`, and all options of that
    command apply.
    """

    name: str
    """Name of the JobSet."""
    image: str
    """Container image in which bert-jax can be called, such as us-docker.pkg.dev/project/images/bert_jax:1."""
    topology: str
    """Chips of one slice, such as v5e:4x4, v5p:4x4x4 or v6e:4x8. The node pools must be of this kind."""
    chips_per_host: int = 0
    """Number of chips of one node. 0: four, or all chips of a smaller slice. For v5e:2x4 and v6e:2x4, 8 is possible."""
    slices: int = 1
    """Number of slices, each on a node pool of its own. mesh.slice must be the same number."""
    spot: bool = False
    """Run on spot nodes only."""
    namespace: str = "default"
    """Namespace of the JobSet."""
    service_account: str = ""
    """Kubernetes service account that has access to the bucket. By default that of the namespace."""
    max_restarts: int = 100
    """Maximum number of restarts of the whole JobSet. A run that ended because of bad input is never restarted."""
    teardown: bool = False
    """Delete the JobSet, and do nothing else."""
    dry_run: bool = False
    """Print the command with its manifest, which can be pasted into a shell, and run nothing."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlurmConfig:
    """launch slurm CONFIG --name=NAME --nodes=N --data.path=STORE --workdir=DIR

    Train on the GPUs of a Slurm cluster: submit a job with one task per GPU, which is requeued after a preemption.

    The job runs the Python that runs this command, so its environment and the paths must be on disks that all nodes
    see. The command returns at once and says how to watch the job. CONFIG is that of `bert-jax pretrain`, and all
    options of that command apply.
    """

    name: str
    """Name of the job. If a job of this name is queued or running, none is submitted."""
    nodes: int
    """Number of nodes."""
    gpus_per_node: int = 8
    """Number of GPUs, and of tasks, on each node."""
    partition: str = ""
    """Partition. By default that of the cluster."""
    account: str = ""
    """Account that is charged. By default that of the user."""
    time: str = ""
    """Time limit, such as 24:00:00 or 2-12:00:00. The job saves before it and is requeued. By default that of the
    partition."""
    cpus_per_task: int = 0
    """Number of processor cores per task. 0: the default of the cluster."""
    notice_seconds: int = 120
    """Number of seconds before the time limit at which the run is asked to save."""
    max_restarts: int = 3
    """Maximum number of consecutive restarts inside one allocation. A run that ended because of bad input is never
    restarted."""
    teardown: bool = False
    """Cancel the job, and do nothing else."""
    dry_run: bool = False
    """Print the command, which can be pasted into a shell, and run nothing."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalConfig:
    """launch local CONFIG --data.path=STORE --workdir=DIR [--hosts=N]

    Run pretrain as several processes of this machine that act as the hosts of a pod, connected over gloo.

    Each process has virtual CPU devices. All of them end when one ends with an error, and signals reach all of them.
    Every line that a process prints begins with its number. CONFIG is that of `bert-jax pretrain`, and all options of
    that command apply.
    """

    hosts: int = 2
    """Number of processes, each of which acts as one host."""
    devices_per_host: int = 1
    """Number of virtual CPU devices of each process."""
    max_restarts: int = 0
    """Maximum number of consecutive restarts after a failure. A run that ended because of bad input or Ctrl-C is never
    restarted."""
    dry_run: bool = False
    """Print the commands, which can be pasted into a shell, and run nothing."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _OfRun(Config):
    """Options of a command on a run: those of the run, and its own."""

    @classmethod
    def of(cls, config: Config) -> Self:
        """Return the options of a run, and the usual ones of the command."""
        return cls(**field_values(Config, config))

    @property
    def run(self) -> Config:
        """The options of the run alone."""
        return Config(**field_values(Config, self))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainConfig(_OfRun):
    """Options of `bert-jax pretrain`: those of a run, and whether it is rehearsed as a pod."""

    simulate_hosts: int = 0
    """Rehearse the run on a pod: start this many processes on this machine, connected over gloo, that act as
    hosts with one device each. `bert-jax launch local` has more options. 0: train in this process."""


PLATFORMS = {"tpu": TpuConfig, "gke": GkeConfig, "slurm": SlurmConfig, "local": LocalConfig}


OUTPUTS = (".json", ".html")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanConfig(_OfRun):
    """Options of `bert-jax plan`: those of a run, and the machine that it is planned for."""

    topology: str = ""
    """Machine to plan for. v5e:16x16: a slice of 16 × 16 TPU v5e chips; 2xv5e:4x4: two slices of 4 × 4; also v4, v5p
    and v6e. cpu:8: eight devices of a processor. gpu:h100:8: eight cards. An unknown name lists
    the known ones."""
    search: bool = False
    """Also find, for each phase, the weakest remat that makes it fit, the largest batch that fits, and the fastest of a
    few meshes. This compiles about ten programs per phase."""
    price_per_chip_hour: float = 0.0
    """Price of a chip for an hour, in any currency. By default no cost is computed."""
    output: str = ""
    """File to write the plan to: .json for programs, .html for people. By default it is only printed."""


def check_plan(options: PlanConfig) -> None:
    """Raise a UserError if the price is negative or the output has an unknown format."""
    if not 0 <= options.price_per_chip_hour < float("inf"):
        raise UserError(f"price_per_chip_hour={options.price_per_chip_hour} must be 0 or a positive number")
    if options.output and not options.output.endswith(OUTPUTS):
        raise UserError(f"output={options.output} must end in {' or '.join(OUTPUTS)}")
