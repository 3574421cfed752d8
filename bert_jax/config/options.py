"""Every option of the framework, as frozen dataclasses.

Only the standard library is imported here, so that `bert-jax … --help` answers at once and a bad value is refused
before anything heavy is loaded. The file under `configs/` overrides the defaults below, and the command line overrides
both; `config.checks.check` checks the result once, at the end.
"""

import dataclasses
from typing import Literal

DEFAULT_VOCAB_SIZE = 30_522  # BERT uncased; used where there are no data to take it from (`bert-jax info`)


LayersRead = Literal[
    "",
    "embeddings",
    "last",
    "second_to_last",
    "sum_last_four",
    "concat_last_four",
    "weighted_last_four",
    "weighted_all",
]
"""Layers of a frozen encoder that a BiLSTM reads; "" for an encoder that is trained with its head."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The encoder of Devlin et al. 2018, section 3; the defaults are BERT-base."""

    vocab_size: int | None = None
    """Number of entries of the vocabulary. None: taken from the token store."""
    vocab_pad_multiple: int = 1
    """The number of rows of the embedding table is rounded up to a multiple of this; 128 lets a pod shard it. The extra
    rows are never predicted."""
    hidden_size: int = 768
    """Width of the embeddings and of each layer."""
    num_layers: int = 12
    """Number of layers of the encoder."""
    num_heads: int = 12
    """Number of attention heads per layer. hidden_size must be a multiple of it."""
    intermediate_size: int | None = None
    """Width of the feed-forward layer. None: four times hidden_size, as in every published BERT."""
    max_position_embeddings: int = 512
    """Number of rows of the position table, hence the length of the longest sequence that the model can read."""
    type_vocab_size: int = 2
    """Number of segment embeddings; sentence pairs need two."""
    activation: Literal["gelu_tanh", "gelu_erf"] = "gelu_tanh"
    """Form of GELU in the feed-forward layers. Google's code uses the tanh approximation; Hugging Face runs its
    checkpoints with the exact form (erf)."""
    hidden_dropout: float = 0.1
    """Dropout rate on the embeddings and on both residual branches of each layer."""
    attention_dropout: float = 0.1
    """Dropout rate on the attention probabilities."""
    layer_norm_epsilon: float = 1e-12
    """Added to the variance in LayerNorm."""
    initializer_range: float = 0.02
    """Standard deviation of the normal distribution of initial weights before truncation at two standard deviations,
    which leaves 0.88 times this value."""
    norm_position: Literal["post", "pre"] = "post"
    """Whether LayerNorm follows each residual branch (post, as in BERT) or precedes it (pre)."""
    position_init: Literal["random", "sinusoidal"] = "random"
    """Initial value of the position table, which is learned either way."""

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads

    @property
    def feed_forward_size(self) -> int:
        """Width of the feed-forward layer, also if `intermediate_size` is None."""
        return 4 * self.hidden_size if self.intermediate_size is None else self.intermediate_size

    def need_vocab_size(self) -> int:
        """Return `vocab_size` of a model that is trained or stored; ValueError where it is still open."""
        if self.vocab_size is None:
            raise ValueError("model.vocab_size is still open: a run takes it from its token store")
        return self.vocab_size

    @property
    def padded_vocab_size(self) -> int:
        """Number of rows of the embedding table."""
        size = DEFAULT_VOCAB_SIZE if self.vocab_size is None else self.vocab_size
        return -(-size // self.vocab_pad_multiple) * self.vocab_pad_multiple


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """The head on the encoder of a fine-tuned model; its parameters are head/kernel [H, C] and head/bias [C]."""

    kind: Literal["classification", "regression", "span", "choice", "tagging"] = "classification"
    """classification, regression and choice read the pooled [CLS]; span and tagging read every position."""
    labels: tuple[str, ...] = ()
    """Names of the classes, in the order of the columns (classification, tagging); empty for the other kinds."""
    dropout: float = 0.1
    """Dropout rate on the input of the head."""
    crf: bool = False
    """tagging: whether a linear-chain CRF follows the scores (crf/transitions [C, C], crf/start [C], crf/end [C])."""
    features: LayersRead = ""
    """tagging: freeze the encoder and feed these of its layers to a two-layer BiLSTM, whose parameters are in head/ too
    (models/bilstm.py; paper section 5.3). Empty: the encoder is trained."""
    lstm_size: int = 768
    """Width of the BiLSTM in each direction."""

    @property
    def outputs(self) -> int:
        """Number C of columns of head/kernel: one per label; 2 for span (start, end); 1 for regression and choice."""
        return {"span": 2, "regression": 1, "choice": 1}.get(self.kind) or len(self.labels)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingConfig:
    """How `model.embed` makes one vector per text by default, which directories of sentence-transformers specify."""

    pooling: Literal["cls", "mean", "max", "mean_sqrt_len"] = "mean"
    """How the vectors of the tokens become one: that of [CLS], their mean, their maximum, or their sum divided by the
    square root of their number."""
    normalize: bool = False
    """Divide each vector by its Euclidean norm."""
    max_length: int | None = None
    """Maximum number of tokens per text, [CLS] and [SEP] included. None: as many as the model has positions."""
    lowercase: bool = False
    """Lowercase the text before it is tokenized, even with a cased vocabulary."""
    unsupported: str = ""
    """Description of what the directory asks for that is not supported; `embed` then requires an explicit pooling."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComputeConfig:
    """How the computation is carried out; nothing here changes the contents of a checkpoint."""

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Data type of matrix products and activations. auto: bfloat16 on TPU and GPU, float32 on CPU. Parameters, softmax
    and loss are always float32."""
    layers: Literal["auto", "scan", "loop"] = "auto"
    """Whether the stacked layers run as one scan, which compiles faster, or unrolled (loop), which runs faster. auto:
    loop up to 12 layers."""
    remat: Literal["none", "dots", "full"] = "none"
    """What the backward pass recomputes to save memory: nothing (none), everything except matrix products (dots), or
    whole layers (full)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where the token store is and how examples are cut from it."""

    path: str = ""
    """Token store that `bert-jax prepare` wrote, local or gs://."""
    eval_path: str = ""
    """Separate store to evaluate on. By default the documents of `path` that are held out from training are used."""
    held_out: float = 0.01
    """Share of the documents of `path` that training never sees. It is ignored with eval_path: nothing is held out
    then."""
    sentence_pairs: Literal["nsp", "sop", "none"] = "nsp"
    """Second objective: next-sentence prediction (nsp; label 0 is IsNext), sentence-order prediction (sop, as in
    ALBERT), or none, with single packed texts."""
    short_sequence_probability: float = 0.1
    """Share of the documents that an epoch cuts to a random shorter length."""
    copies: int = 0
    """Number of different epochs. 0: each epoch is cut, paired and masked afresh. N: epoch e shows the examples of
    epoch e mod N in a new order, as in the original, which wrote ten such copies of its corpus."""
    loader: Literal["auto", "tf.data", "plain"] = "auto"
    """What produces the batches. auto: tf.data if TensorFlow is installed, else the plain iterator. The batches are
    identical to the last bit."""
    prefetch: int = 4
    """Number of batches to prepare ahead of the device."""
    cache: str = ""
    """Local directory that a remote store is copied to once. By default bert_jax in the user's cache directory
    ($XDG_CACHE_HOME, else ~/.cache)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskingConfig:
    """Masked language modelling, paper section 3.1 and its table 8."""

    unit: Literal["token", "whole_word", "span"] = "token"
    """What is masked together: single tokens, whole words, or spans of words."""
    rate: float = 0.15
    """Share of the tokens of a sequence that are predicted."""
    mask_share: float = 0.8
    """Share of the predicted tokens that are replaced by [MASK]."""
    random_share: float = 0.1
    """Share of the predicted tokens that are replaced by a random entry of the vocabulary. The rest stay as they
    are."""
    span_continue: float = 0.8
    """Probability that a span grows by one more word, up to span_max_words (0.8 is the geometric distribution with p =
    0.2 of SpanBERT, section 3.1)."""
    span_max_words: int = 10
    """Maximum length of a span, in words."""
    static_masks: int = 0
    """Number of fixed masks. 0: each epoch has new masks. N: every epoch has the text of epoch 0, and epoch e has masks
    number e mod N."""
    loss_epsilon: float = 0.0
    """Added to the sum of weights that the loss is divided by. The original adds 1e-5, which changes a float32 result
    if a batch has fewer than 256 predictions."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    """Weights of the losses in the sum that is minimized; the paper adds them without weights."""

    mlm_weight: float = 1.0
    """Weight of the loss of the masked words. 0: its head is not trained, and the best checkpoints are those with the
    lowest loss of the second objective."""
    next_sentence_weight: float = 1.0
    """Weight of the loss of the second objective (data.sentence_pairs). 0: its head is not trained."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseConfig:
    """A part of training at one sequence length. The paper: 900,000 steps at 128, then 100,000 at 512."""

    steps: int = 1_000_000
    """Number of optimizer steps of the phase."""
    sequence_length: int = 128
    """Tokens per sequence, [CLS] and [SEP] included."""
    batch_size: int = 256
    """Sequences per step, over all devices and micro-batches."""
    micro_batches: int = 1
    """Number of parts in which a batch is computed (gradient accumulation). The result is that of the whole batch."""
    max_predictions: int | None = None
    """Maximum number of masked positions per sequence. None: rate times length, rounded up (20 at length 128, 77 at
    512)."""
    learning_rate: float = 1e-4
    """Peak learning rate of the phase."""
    schedule: Literal["continue", "restart"] = "continue"
    """Whether the schedule continues across the switch to this phase, or restarts with its own warm-up and decay."""
    warmup_steps: int | None = None
    """Number of steps of linear warm-up at the start of a schedule; ignored in a phase that continues one. None: a
    hundredth of the schedule, as in the paper (10,000 of 1,000,000)."""
    moments: Literal["keep", "reset"] = "keep"
    """Whether the optimizer's moments, and its step count for bias correction, are kept or reset at the switch to this
    phase."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """How gradients become updates."""

    name: Literal["adamw_bert", "adamw", "lamb"] = "adamw"
    """The update rule. adamw: Adam with decoupled weight decay and bias correction. adamw_bert: the optimizer of 2018
    exactly, without bias correction. lamb: for very large batches."""
    beta1: float = 0.9
    """Decay rate of the first moment."""
    beta2: float = 0.999
    """Decay rate of the second moment."""
    epsilon: float = 1e-6
    """Added to the square root of the second moment."""
    weight_decay: float = 0.01
    """Rate of the decoupled weight decay. Biases and LayerNorm parameters do not decay."""
    clip_norm: float = 1.0
    """Maximum global norm of the gradients. 0 turns clipping off."""

    @property
    def moments(self) -> int:
        """Number of values that the optimizer keeps for each parameter: m and v of Adam."""
        return {"adamw_bert": 2, "adamw": 2, "lamb": 2}[self.name]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """Shape of the learning rate after the warm-up."""

    name: Literal["linear", "linear_after_warmup", "polynomial", "cosine", "constant"] = "linear"
    """Shape of the decay. linear is that of 2018: the line runs from step 0 to the last step, and the warm-up overrides
    its beginning. linear_after_warmup falls from the full peak at the end of the warm-up, as in torch recipes."""
    power: float = 1.0
    """Exponent of the polynomial decay; used with name=polynomial only."""
    final_fraction: float = 0.0
    """Learning rate at the last step, as a fraction of the peak."""
    cooldown_steps: int = 0
    """Number of steps at the end in which a constant rate falls linearly to final_fraction; used with name=constant
    only."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """How devices are laid out. The size of one axis may be -1: all devices that the other axes leave."""

    data: int = -1
    """Number of groups of devices that each take a share of every batch and hold a copy of the model."""
    fsdp: int = 1
    """Number of devices that each take a share of every batch and hold a share of the parameters and optimizer
    state."""
    tensor: int = 1
    """Number of devices that each compute a share of every layer."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When the state is saved, and which checkpoints are kept."""

    every_steps: int = 1_000
    """Number of steps between two checkpoints. One is also saved at the end of each phase, at every evaluation (with
    keep_best), and when a signal ends the run. A step whose loss is not finite is saved only at the end of a phase or
    of the run."""
    keep_last: int = 3
    """Number of newest checkpoints to keep."""
    keep_best: int = 1
    """Number of further checkpoints to keep: those with the lowest held-out MLM loss (if objective.mlm_weight=0, that
    of the second objective) of the latest phase, since the losses of different phases are not comparable."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """When the model is evaluated during training, and on how many sequences."""

    every_steps: int = 1_000
    """Number of steps between two evaluations. 0: only at the end of training."""
    sequences: int = 1_024
    """Maximum number of held-out sequences; the same ones with the same masks every time."""
    batch_size: int = 64
    """Sequences per evaluation batch."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """A pre-training run."""

    model: ModelConfig = ModelConfig()
    """Sizes of the model and form of its layers."""
    data: DataConfig = DataConfig()
    """Where the token store is, and how examples are cut from it."""
    masking: MaskingConfig = MaskingConfig()
    """Which pieces are masked, and what replaces them."""
    objective: ObjectiveConfig = ObjectiveConfig()
    """Weights of the losses in their sum."""
    phases: tuple[PhaseConfig, ...] = (PhaseConfig(),)
    """Parts of training, each at one sequence length."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """How gradients become updates."""
    schedule: ScheduleConfig = ScheduleConfig()
    """Shape of the learning rate after the warm-up."""
    mesh: MeshConfig = MeshConfig()
    """How the devices are laid out."""
    compute: ComputeConfig = ComputeConfig()
    """How the computation is carried out."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """When the state is saved, and which checkpoints are kept."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """When the model is evaluated during training, and on how many sequences."""
    workdir: str = ""
    """Directory of the run (local or gs://), which holds config.json, metrics.jsonl, checkpoints/ and pictures."""
    init_from: str = ""
    """Model to start from: a work directory or checkpoint of bert_jax, a Hugging Face directory, or Google's TF1 files
    (local or gs://). Only the parameters are taken: the schedule begins at step 0 with moments of zero. A run whose
    work directory has a checkpoint resumes from that and ignores this option. By default the parameters are random."""
    seed: int = 0
    """Seed of the initial parameters, the order of the examples, the pairs, the masks and dropout."""
    log_every_steps: int = 10
    """Number of steps between two rows of metrics."""

    @property
    def total_steps(self) -> int:
        """Number of steps of all phases."""
        return sum(phase.steps for phase in self.phases)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainVocabConfig:
    """Options of `bert-jax train-vocab`."""

    input: str
    """Corpus: files, directories, globs, `tfds:name`, or `docs:` (the documentation that Python itself carries), with
    commas between several."""
    output: str
    """File or directory to write to: vocab.txt, NAME.model for SentencePiece, or a directory."""
    size: int = DEFAULT_VOCAB_SIZE
    """Number of entries of the vocabulary, special tokens included."""
    method: Literal["frequency", "likelihood", "unigram", "bpe"] = "frequency"
    """WordPiece by the frequency of pairs or by their likelihood score; unigram and bpe are SentencePiece."""
    lowercase: bool = True
    """Whether text is lowercased and, for WordPiece, its accents are stripped."""
    min_pair_count: int = 100
    """Pairs that are rarer than this are never merged; used with method=likelihood only. The score favours pairs whose
    parts occur nowhere else, so a low value fills the vocabulary with pieces of rare words. A high value keeps it for
    common words and, in a small corpus, leaves it smaller than requested."""
    max_bytes: int = 1_000_000_000
    """Maximum number of bytes of text to learn from, taken evenly from all documents."""
    held_out: float = 0.01
    """Share of the documents that are not learned from; the printed fertility, coverage and [UNK] rate are measured on
    them. They are the documents that `pretrain` holds out of a store of the same corpus if data.held_out has the same
    value."""
    format: Literal["auto", "text", "jsonl", "wikiextractor", "tfds", "docs"] = "auto"
    """Format of the corpus. auto: by the file name (.jsonl, .json, .txt, …) and, for plain text, by a first line that
    begins with `<doc`."""
    text_field: str = "text"
    """Name of the field that holds the text in JSON lines and TFDS examples."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Options of `bert-jax prepare`."""

    input: str
    """Corpus: files, directories, globs, `tfds:name`, or `docs:` (the documentation that Python itself carries), with
    commas between several."""
    vocab: str
    """Vocabulary to tokenize with: vocab.txt, a SentencePiece .model, or a directory that holds one."""
    output: str
    """Directory of the token store to write."""
    format: Literal["auto", "text", "jsonl", "wikiextractor", "tfds", "docs"] = "auto"
    """Format of the corpus. auto: by the file name (.jsonl, .json, .txt, …) and, for plain text, by a first line that
    begins with `<doc`."""
    text_field: str = "text"
    """Name of the field that holds the text in JSON lines and TFDS examples."""
    sentences: Literal["split", "lines"] = "split"
    """How text becomes sentences. split: a sentence splitter finds them. lines: the corpus already has one sentence per
    line."""
    wrapped: Literal["auto", "yes", "no"] = "auto"
    """Whether the files are hard-wrapped, as most books in plain text are, so that the lines of each paragraph are
    joined before sentences are found. auto: decided from the beginning of each file; no: every line end is the end of a
    sentence."""
    language: str = "en"
    """Language code for the sentence splitter, such as en."""
    lowercase: bool | None = None
    """Whether text is lowercased. None: as the vocabulary was made (cased if any of its entries has a capital
    letter)."""
    workers: int = 0
    """Number of processes. 0: one per core. The store has the same bytes with any number."""
    bad_utf8: Literal["error", "replace"] = "error"
    """What to do about bytes that are not UTF-8: stop with an error, or replace them with U+FFFD."""
