"""Options of `bert-jax bench`, per benchmark, as frozen dataclasses; standard library only.

The docstring of a benchmark is its help: its usage, then what it does.
"""

import dataclasses
import os
from typing import Literal, Self

from bert_jax.config.field_values import field_values
from bert_jax.config.finetuning import FinetuneConfig
from bert_jax.config.options import Config
from bert_jax.config.preparing import PrepareConfig, PreparedTextConfig
from bert_jax.errors import UserError


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
        one = dataclasses.replace(config, phases=(config.phases[phase],))
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
    padding: float = 0.0625
    """Share of each sequence of a synthetic batch that is padding. With --data.path the padding is that of the
    store."""
    platform: Literal["auto", "cpu", "gpu", "tpu"] = "auto"
    """Platform to compute on. auto: the one that JAX chooses."""
    peer_compile: bool = True
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

    Measure fine-tuning steps and the encoding of texts, in turns with transformers, which uses its fastest order and
    data type.

    TASK is that of `bert-jax finetune`, on sentences or pairs, and all options of that command apply, except that no
    --workdir is needed. Both sides start from the same weights and train on the same token ids.
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
    process, whatever turn_seconds says.
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


def check_turns(options: TurnsConfig) -> None:
    """Raise a UserError if the options that all benchmarks share do not fit together."""
    if options.rounds < 1:
        raise UserError(f"rounds={options.rounds} must be at least 1")
    if not 0 <= options.turn_seconds < float("inf"):
        raise UserError(f"turn_seconds={options.turn_seconds} must be 0 or a positive number")
    if (options.peer == "none") != (not options.peer_python):
        raise UserError(
            f"peer={options.peer} and peer_python={options.peer_python or 'nothing'}: give both, "
            "--peer=torch --peer_python=PYTHON, or neither"
        )
    if options.output and not options.output.endswith(".json"):
        raise UserError(
            f"output={options.output} must end in .json; the table goes to a file in .md with the same name"
        )
    if os.path.isdir(options.output):
        raise UserError(f"output={options.output} is a directory; name a file in it")
    directory = os.path.dirname(options.output) or "."
    if options.output and not os.path.isdir(directory):
        raise UserError(f"output={options.output}: there is no directory {directory}; create it first")
