"""Every option of the framework, as frozen dataclasses.

Only the standard library is imported here, so that `bert-jax … --help` answers at once and a bad value is refused
before anything heavy is loaded. Order of precedence: the defaults below, then the file under `configs/`, then the
command line; `config_checks.check` looks at the result once, at the end.
"""

import dataclasses
import math
from typing import Literal

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
    """Of matrix products and activations. auto: bfloat16 on TPU and GPU, float32 on CPU. Parameters, softmax and loss
    are always float32."""
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
    """Linear warm-up at the start of a schedule; not read in a phase that continues one. None: a hundredth of the
    schedule, as in the paper (10,000 of 1,000,000)."""
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
    """Also saved are the end of each phase, every evaluation (with keep_best), and where a signal ends the run. Not saved is a step
    whose loss is not finite, unless one of these two ends comes there."""
    keep_last: int = 3
    keep_best: int = 1
    """Also keep this many with the lowest held-out MLM loss of the latest phase: lengths do not compare."""


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
    """Width of the masked-position arrays: the phase's own, or about rate × length as the original advises (20 at length 128,
    77 at 512)."""
    if phase.max_predictions is not None:
        return phase.max_predictions
    return min(phase.sequence_length, max(1, math.ceil(phase.sequence_length * masking.rate)))
