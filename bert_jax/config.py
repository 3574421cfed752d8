"""Every option of the framework, as frozen dataclasses, and the checks that span several of them.

Only the standard library is imported here, so that `bert-jax … --help` answers at once and a bad value is refused
before anything heavy is loaded. Order of precedence: the defaults below, then the file under `configs/`, then the
command line; `check` looks at the result once, at the end.
"""

import dataclasses
import difflib
import math
import types
import typing
from typing import Literal

from bert_jax.errors import UserError

DEFAULT_VOCAB_SIZE = 30_522  # BERT uncased; stands in where no data says otherwise (`bert-jax info`)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The encoder of Devlin et al. 2018, section 3; the defaults are BERT-base."""

    vocab_size: int | None = None
    """Entries of the vocabulary. None: taken from the token store."""
    vocab_pad_multiple: int = 1
    """Round the embedding table up to a multiple of this (128 lets a pod shard it); the extra rows are never predicted."""
    hidden_size: int = 768
    num_layers: int = 12
    num_heads: int = 12
    intermediate_size: int | None = None
    """Width of the feed-forward layer. None: four times hidden_size, as in every published BERT."""
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    activation: Literal["gelu_tanh", "gelu_erf"] = "gelu_tanh"
    """Google's code uses the tanh approximation, Hugging Face checkpoints run with the exact (erf) one."""
    hidden_dropout: float = 0.1
    """Dropout on embeddings, on both residual branches."""
    attention_dropout: float = 0.1
    """Dropout on attention probabilities."""
    layer_norm_epsilon: float = 1e-12
    initializer_range: float = 0.02
    """Standard deviation of the truncated normal before truncation (the effective one is 0.88 times that)."""
    norm_position: Literal["post", "pre"] = "post"
    position_init: Literal["random", "sinusoidal"] = "random"
    """Starting value of the learned position table."""

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def feed_forward_size(self) -> int:
        return 4 * self.hidden_size if self.intermediate_size is None else self.intermediate_size

    @property
    def padded_vocab_size(self) -> int:
        size = DEFAULT_VOCAB_SIZE if self.vocab_size is None else self.vocab_size
        return -(-size // self.vocab_pad_multiple) * self.vocab_pad_multiple


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """What stands on the encoder of a fine-tuned model; its parameters are head/kernel [H, C] and head/bias [C]."""

    kind: Literal["classification", "regression", "span", "choice", "tagging"] = "classification"
    """classification, regression and choice read the pooled [CLS]; span and tagging read every position."""
    labels: tuple[str, ...] = ()
    """Names of the classes, in the order of the columns (classification, tagging); empty for the other kinds."""
    dropout: float = 0.1
    """On what the head reads."""
    crf: bool = False
    """tagging: a linear-chain CRF on the scores (parameters crf/transitions [C, C], crf/start [C], crf/end [C])."""
    features: Literal["", "embeddings", "last", "second_to_last", "sum_last_four", "concat_last_four", "weighted_last_four",
                      "weighted_all"] = ""
    """tagging: keep the encoder as it is and read these of its layers by a two-layer BiLSTM, whose parameters lie in head/ too
    (models/bilstm.py; paper section 5.3). Empty: the encoder is trained."""
    lstm_size: int = 768
    """Width of the BiLSTM in each direction."""

    @property
    def outputs(self) -> int:
        """C, the columns of head/kernel: the labels; 2 for span (start, end); 1 for regression and choice."""
        return {"span": 2, "regression": 1, "choice": 1}.get(self.kind) or len(self.labels)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComputeConfig:
    """How the same mathematics is carried out; nothing here changes what a checkpoint holds."""

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of matrix products and activations. auto: bfloat16 on TPU and GPU, float32 on CPU. Parameters, softmax and loss are always float32."""
    layers: Literal["auto", "scan", "loop"] = "auto"
    """Run the stacked layers as one scan (compiles fast) or unrolled (runs faster). auto: loop up to 12 layers."""
    remat: Literal["none", "dots", "full"] = "none"
    """What the backward pass computes again to save memory: nothing, everything but matrix products, or whole layers."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where the token store is and how examples are cut from it."""

    path: str = ""
    """Token store written by `bert-jax prepare` (local or gs://)."""
    eval_path: str = ""
    """Another store to evaluate on. Empty: documents of `path` that are kept out of training."""
    held_out: float = 0.01
    """Share of the documents of `path` that training never sees (none when eval_path is given)."""
    sentence_pairs: Literal["nsp", "sop", "none"] = "nsp"
    """Next-sentence prediction (0 = IsNext), sentence order (ALBERT), or single packed texts without a second task."""
    short_sequence_probability: float = 0.1
    """Share of the documents that an epoch cuts to a random shorter length."""
    copies: int = 0
    """0: every epoch is cut, paired and masked anew. N: epoch e shows the examples of epoch e mod N in a new order, as the
    original, which wrote ten such copies of its corpus."""
    loader: Literal["auto", "tf.data", "plain"] = "auto"
    """auto: tf.data where TensorFlow is installed, else the plain iterator; the batches are the same bit for bit."""
    prefetch: int = 4
    """Batches made ahead of the device."""
    cache: str = ""
    """Local directory that a remote store is copied to once. Empty: ~/.cache/bert_jax."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskingConfig:
    """Masked language modelling, paper section 3.1 and its table 8."""

    unit: Literal["token", "whole_word", "span"] = "token"
    rate: float = 0.15
    """Share of a sequence's tokens that are predicted."""
    mask_share: float = 0.8
    """Of the predicted tokens, the share replaced by [MASK]."""
    random_share: float = 0.1
    """Of the predicted tokens, the share replaced by a random entry of the vocabulary; the rest stay."""
    span_continue: float = 0.8
    """A span grows by one more word with this probability (geometric with p = 0.2, SpanBERT section 3.1)."""
    span_max_words: int = 10
    static_masks: int = 0
    """0: new masks in every epoch. N: every epoch has the text of epoch 0, and epoch e its masks number e mod N."""
    loss_epsilon: float = 0.0
    """Added to the sum of weights that the loss is divided by. The original adds 1e-5, which float32 notices where a batch has
    fewer than 256 predictions."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseConfig:
    """A stretch of training at one sequence length. The paper: 900,000 steps at 128, then 100,000 at 512."""

    steps: int = 1_000_000
    sequence_length: int = 128
    batch_size: int = 256
    """Sequences a step, over all devices and micro-batches."""
    micro_batches: int = 1
    """Gradient accumulation: the batch is computed in this many parts; the result is that of the whole batch."""
    max_predictions: int | None = None
    """Masked positions a sequence at most. None: rate times length, rounded up (20 at length 128, 77 at 512)."""
    learning_rate: float = 1e-4
    """Peak of this phase."""
    schedule: Literal["continue", "restart"] = "continue"
    """continue: one schedule runs on across the switch. restart: this phase has a warm-up and a decay of its own."""
    warmup_steps: int | None = None
    """Linear warm-up at the start of a schedule; not read in a phase that continues one. None: a hundredth of the schedule, as in the paper (10,000 of 1,000,000)."""
    moments: Literal["keep", "reset"] = "keep"
    """What happens to the optimizer's moments (and its bias-correction count) at the switch."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    name: Literal["adamw_bert", "adamw", "lamb"] = "adamw"
    """adamw_bert: the 2018 optimizer exactly (no bias correction); adamw: with it; lamb: for very large batches."""
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-6
    weight_decay: float = 0.01
    """Decoupled; never applied to biases and LayerNorm parameters."""
    clip_norm: float = 1.0
    """Bound on the global gradient norm; 0 switches clipping off."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """Shape of the learning rate after the warm-up."""

    name: Literal["linear", "linear_after_warmup", "polynomial", "cosine", "constant"] = "linear"
    """linear is the 2018 one: the line runs from step 0 to the last step and the warm-up overrides its beginning.
    linear_after_warmup falls from the full peak at the end of the warm-up, as torch recipes do."""
    power: float = 1.0
    """Of the polynomial."""
    final_fraction: float = 0.0
    """Of the peak, reached at the last step."""
    cooldown_steps: int = 0
    """constant only: a straight descent to final_fraction over the last steps."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """How devices are laid out; -1 on one axis takes what the others leave."""

    data: int = -1
    fsdp: int = 1
    tensor: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    every_steps: int = 1_000
    keep_last: int = 3
    keep_best: int = 1
    """Also keep this many with the lowest held-out MLM loss."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    every_steps: int = 1_000
    """0: only at the end of training."""
    sequences: int = 1_024
    """Held-out sequences at most; the same ones with the same masks every time."""
    batch_size: int = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """A pre-training run."""

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    masking: MaskingConfig = MaskingConfig()
    phases: tuple[PhaseConfig, ...] = (PhaseConfig(),)
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    mesh: MeshConfig = MeshConfig()
    compute: ComputeConfig = ComputeConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    workdir: str = ""
    """Directory of the run (local or gs://): config.json, metrics.jsonl, checkpoints/, pictures."""
    init_from: str = ""
    """Model to start from: a work directory or checkpoint of ours, a Hugging Face directory, Google's TF1 files (local or
    gs://). Parameters only: the schedule begins at step 0 with moments of zero. A work directory that has a checkpoint goes
    on from that and does not look here again."""
    seed: int = 0
    log_every_steps: int = 10

    @property
    def total_steps(self) -> int:
        return sum(phase.steps for phase in self.phases)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainVocabConfig:
    """Options of `bert-jax train-vocab`."""

    input: str
    """Corpus: files, directories, globs, `tfds:name`, `docs:` (the embedded documentation); commas between several."""
    output: str
    """vocab.txt, NAME.model for SentencePiece, or a directory."""
    size: int = DEFAULT_VOCAB_SIZE
    method: Literal["frequency", "likelihood", "unigram", "bpe"] = "frequency"
    """WordPiece by pair frequency or by likelihood score; unigram and bpe are SentencePiece."""
    lowercase: bool = True
    min_pair_count: int = 100
    """likelihood only: rarer pairs are never merged. The score favours pairs whose parts occur nowhere else, so a low value
    fills the table with pieces of rare words; a high one keeps it for common words and, in a small corpus, leaves it unfilled."""
    max_bytes: int = 1_000_000_000
    """Text to learn from at most, taken evenly over the documents."""
    held_out: float = 0.01
    """Share of the documents that the printed fertility, coverage and [UNK] rate are measured on."""
    format: Literal["auto", "text", "jsonl", "wikiextractor", "tfds", "docs"] = "auto"
    text_field: str = "text"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Options of `bert-jax prepare`."""

    input: str
    """Corpus: files, directories, globs, `tfds:name`, `docs:` (the embedded documentation); commas between several."""
    vocab: str
    """vocab.txt, a SentencePiece .model, or a directory that holds one."""
    output: str
    """Directory of the token store."""
    format: Literal["auto", "text", "jsonl", "wikiextractor", "tfds", "docs"] = "auto"
    """auto: by the file name (.jsonl, .json, .txt, …) and, for plain text, by a first line that begins with `<doc`."""
    text_field: str = "text"
    """Of JSON lines and TFDS examples."""
    sentences: Literal["split", "lines"] = "split"
    """split: find the sentences; lines: the corpus already has one sentence a line."""
    language: str = "en"
    """For the sentence splitter."""
    lowercase: bool | None = None
    """None: as the vocabulary was made (cased if any of its entries has a capital letter)."""
    workers: int = 0
    """Processes; 0: one a core. The store is the same byte for byte whatever the number."""
    bad_utf8: Literal["error", "replace"] = "error"


def check(config: Config) -> Config:
    """Returns `config` if its values fit each other; raises UserError naming key, value and remedy if not."""
    model, masking = config.model, config.masking
    _positive(model, "model.", "hidden_size", "num_layers", "num_heads", "max_position_embeddings", "type_vocab_size",
              "vocab_pad_multiple", "layer_norm_epsilon", "initializer_range")
    if model.vocab_size is not None and model.vocab_size < 6:
        raise UserError(f"model.vocab_size={model.vocab_size} leaves no room for words beside the five special tokens")
    if model.hidden_size % model.num_heads:
        fits = [h for h in range(1, model.hidden_size + 1) if model.hidden_size % h == 0]
        near = sorted(fits, key=lambda h: abs(h - model.num_heads))[:3]
        raise UserError(f"model.hidden_size={model.hidden_size} is not divisible by model.num_heads={model.num_heads}; "
                        f"numbers of heads that fit: {', '.join(map(str, sorted(near)))}")
    if model.feed_forward_size < 1:
        raise UserError(f"model.intermediate_size={model.intermediate_size} must be positive")
    if config.data.sentence_pairs != "none" and model.type_vocab_size < 2:
        raise UserError(f"model.type_vocab_size={model.type_vocab_size} but data.sentence_pairs={config.data.sentence_pairs!r} "
                        "needs two segments: set model.type_vocab_size=2 or data.sentence_pairs=none")
    _share(model, "model.", "hidden_dropout", "attention_dropout", below_one=True)
    _share(config.data, "data.", "held_out", "short_sequence_probability", below_one=True)
    _share(masking, "masking.", "rate", "mask_share", "random_share", "span_continue")
    if masking.rate == 0:
        raise UserError("masking.rate=0 leaves nothing to predict; BERT uses 0.15")
    if masking.mask_share + masking.random_share > 1 + 1e-9:
        raise UserError(f"masking.mask_share={masking.mask_share} and masking.random_share={masking.random_share} add up to "
                        "more than 1; the paper has 0.8 and 0.1")
    _positive(masking, "masking.", "span_max_words")
    if masking.static_masks < 0:
        raise UserError(f"masking.static_masks={masking.static_masks}: 0 for new masks every epoch, N for N fixed ones")
    if config.data.copies < 0:
        raise UserError(f"data.copies={config.data.copies}: 0 for new examples every epoch, N for N epochs that come again")
    if config.data.copies and masking.static_masks:
        raise UserError(f"data.copies={config.data.copies} and masking.static_masks={masking.static_masks} contradict each "
                        "other: the first repeats several cuts of the text, the second has one; set one of them to 0")
    if not 0 <= masking.loss_epsilon < math.inf:
        raise UserError(f"masking.loss_epsilon={masking.loss_epsilon} must be 0 or a positive number")
    check_optimizer(config.optimizer)
    check_schedule(config.schedule)
    _positive(config.checkpoint, "checkpoint.", "every_steps", "keep_last")
    _positive(config.evaluation, "evaluation.", "sequences", "batch_size")
    for name, value in (("checkpoint.keep_best", config.checkpoint.keep_best), ("evaluation.every_steps", config.evaluation.every_steps),
                        ("seed", config.seed)):
        if value < 0:
            raise UserError(f"{name}={value} must not be negative")
    _positive(config.data, "data.", "prefetch")
    _positive(config, "", "log_every_steps")
    check_mesh(config.mesh)
    if not config.phases:
        raise UserError("phases is empty; a run needs at least one PhaseConfig")
    for index, phase in enumerate(config.phases):
        _check_phase(config, index, phase)
    return config


def _check_phase(config: Config, index: int, phase: PhaseConfig) -> None:
    prefix = f"phases.{index}."
    _positive(phase, prefix, "steps", "sequence_length", "batch_size", "micro_batches", "learning_rate")
    if phase.sequence_length > config.model.max_position_embeddings:
        raise UserError(f"{prefix}sequence_length={phase.sequence_length} is longer than "
                        f"model.max_position_embeddings={config.model.max_position_embeddings}; raise the latter or shorten the sequences")
    if phase.sequence_length < 8:
        raise UserError(f"{prefix}sequence_length={phase.sequence_length} is too short for [CLS] A [SEP] B [SEP]; the least is 8")
    if phase.batch_size % phase.micro_batches:
        low = phase.batch_size // phase.micro_batches * phase.micro_batches
        near = " or ".join(str(n) for n in (low, low + phase.micro_batches) if n)
        raise UserError(f"{prefix}batch_size={phase.batch_size} is not divisible by {prefix}micro_batches={phase.micro_batches}; "
                        f"nearest: {near}")
    if phase.max_predictions is not None and not 0 < phase.max_predictions <= phase.sequence_length:
        raise UserError(f"{prefix}max_predictions={phase.max_predictions} must lie between 1 and "
                        f"{prefix}sequence_length={phase.sequence_length}")
    if (phase.warmup_steps or 0) < 0:
        raise UserError(f"{prefix}warmup_steps={phase.warmup_steps} must not be negative")
    if index == 0 and phase.moments == "reset":
        raise UserError("phases.0.moments=reset: there are no moments yet at the start of the first phase")
    if index == 0 or phase.schedule == "restart":
        length = schedule_length(config, index)
        if warmup_steps(config, index) + config.schedule.cooldown_steps > length:
            raise UserError(f"{prefix}warmup_steps={warmup_steps(config, index)} (and schedule.cooldown_steps={config.schedule.cooldown_steps}) "
                            f"do not fit into the {length} steps of its schedule; lower it, for example to {max(1, length // 100)}")


def check_optimizer(optimizer: OptimizerConfig) -> None:
    """UserError if a value is out of range."""
    _positive(optimizer, "optimizer.", "epsilon")
    _share(optimizer, "optimizer.", "beta1", "beta2", below_one=True)
    for name in ("weight_decay", "clip_norm"):
        if not 0 <= getattr(optimizer, name) < math.inf:
            raise UserError(f"optimizer.{name}={getattr(optimizer, name)} must be 0 or a positive number")


def check_schedule(schedule: ScheduleConfig) -> None:
    """UserError if a value is out of range or belongs to another shape."""
    _share(schedule, "schedule.", "final_fraction")
    _positive(schedule, "schedule.", "power")
    if schedule.cooldown_steps < 0:
        raise UserError(f"schedule.cooldown_steps={schedule.cooldown_steps} must not be negative")
    if schedule.cooldown_steps and schedule.name != "constant":
        raise UserError(f"schedule.cooldown_steps={schedule.cooldown_steps} belongs to schedule.name=constant, not to {schedule.name}")


def check_mesh(mesh: MeshConfig) -> None:
    """UserError if no number of devices could fit."""
    sizes = dataclasses.asdict(mesh)
    for name, size in sizes.items():
        if size == 0 or size < -1:
            raise UserError(f"mesh.{name}={size} must be a positive number, or -1 for what the other axes leave")
    if list(sizes.values()).count(-1) > 1:
        raise UserError(f"mesh {sizes}: -1 may stand on one axis only")


def schedule_length(config: Config, first: int) -> int:
    """Steps of the schedule that begins with phase `first`: up to the next phase that restarts it."""
    length = config.phases[first].steps
    for phase in config.phases[first + 1:]:
        if phase.schedule == "restart":
            break
        length += phase.steps
    return length


def warmup_steps(config: Config, first: int) -> int:
    """Warm-up of the schedule that begins with phase `first`."""
    given = config.phases[first].warmup_steps
    return schedule_length(config, first) // 100 if given is None else given


def max_predictions(phase: PhaseConfig, masking: MaskingConfig) -> int:
    """Width of the masked-position arrays: the phase's own, or about rate × length as the original advises (20 at 128, 77 at 512)."""
    if phase.max_predictions is not None:
        return phase.max_predictions
    return min(phase.sequence_length, max(1, math.ceil(phase.sequence_length * masking.rate)))


def _positive(part, prefix: str, *names: str) -> None:
    for name in names:
        value = getattr(part, name)
        if not 0 < value < math.inf:
            raise UserError(f"{prefix}{name}={value} must be positive")


def _share(part, prefix: str, *names: str, below_one: bool = False) -> None:
    for name in names:
        value = getattr(part, name)
        if not 0 <= value <= 1 or (below_one and value == 1):
            raise UserError(f"{prefix}{name}={value} must lie between 0 and 1" + (", 1 not included" if below_one else ""))


def to_dict(config) -> dict:
    """Nested plain dict (JSON types) of any of these dataclasses; `from_dict` is the inverse."""
    return {f.name: _plain(getattr(config, f.name)) for f in dataclasses.fields(config)}


def _plain(value):
    if dataclasses.is_dataclass(value):
        return to_dict(value)
    return [_plain(v) for v in value] if isinstance(value, tuple) else value


def from_dict(cls, values: dict, path: str = ""):
    """Builds dataclass `cls` from a nested dict; unknown and missing keys and wrong types are UserErrors that name the key."""
    if not isinstance(values, dict):
        raise UserError(f"{path or 'the configuration'} must be an object with the fields of {cls.__name__}, not {values!r:.80}")
    hints = typing.get_type_hints(cls)
    for key in values:
        if key not in hints:
            close = difflib.get_close_matches(key, hints, n=1)
            hint = f"; perhaps you meant {path}{close[0]}" if close else f"; {cls.__name__} has {', '.join(hints)}"
            raise UserError(f"unknown option {path}{key}{hint}")
    required = [field.name for field in dataclasses.fields(cls)
                if field.default is field.default_factory is dataclasses.MISSING]
    if missing := [path + name for name in required if name not in values]:
        raise UserError(f"missing: {', '.join(missing)}")
    return cls(**{key: _typed(hints[key], value, f"{path}{key}") for key, value in values.items()})


def _typed(hint, value, path: str):
    if dataclasses.is_dataclass(hint):
        return from_dict(hint, value, path + ".")
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise UserError(f"{path}={value!r:.80} must be a list")
        return tuple(_typed(args[0], v, f"{path}.{i}") for i, v in enumerate(value))
    if origin is Literal:
        if value in args:
            return value
        raise UserError(f"{path}={value!r} must be one of {', '.join(args)}")
    if origin is types.UnionType:
        if value is None:
            return None
        hint = args[0]
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise UserError(f"{path}={value!r} must be of type {hint.__name__}")
    return value


def differences(old: dict, new: dict, path: str = "") -> list[str]:
    """Lines `key: old → new` for every leaf in which two nested dicts differ."""
    lines = []
    for key in sorted({*old, *new}):
        a, b = old.get(key), new.get(key)
        if isinstance(a, list) and isinstance(b, list):
            a, b = dict(enumerate(a)), dict(enumerate(b))
        if isinstance(a, dict) and isinstance(b, dict):
            lines += differences({str(k): v for k, v in a.items()}, {str(k): v for k, v in b.items()}, f"{path}{key}.")
        elif a != b:
            lines.append(f"{path}{key}: {a} → {b}")
    return lines
