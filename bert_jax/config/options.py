"""Every option of a pre-training run, as frozen dataclasses; those of its model are in encoder.py, those
of its optimizer in optimization.py.

Only the standard library is imported here, so that `bert-jax … --help` answers at once and a bad value is refused
before anything heavy is loaded. The file under `configs/` overrides the defaults below, and the command line overrides
both; `config.checks.check` checks the result once, at the end.
"""

import dataclasses
from typing import Literal

from bert_jax.config.encoder import ModelConfig
from bert_jax.config.example_choices import MaskUnit, PackingChoice, SentencePairs
from bert_jax.config.faults import FaultsConfig
from bert_jax.config.noise import PretrainingNoiseConfig
from bert_jax.config.objectives import ObjectiveConfig
from bert_jax.config.optimization import OptimizerConfig, ScheduleConfig
from bert_jax.config.watching import ProfileConfig, SinksConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComputeConfig:
    """Settings of the computation; nothing here changes the contents of a checkpoint."""

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Data type of matrix products and activations. auto: bfloat16 on TPU and GPU, float32 on CPU. Parameters, softmax
    and loss are always float32."""
    layers: Literal["auto", "scan", "loop"] = "auto"
    """Whether the stacked layers run as one scan, which compiles faster, or unrolled (loop), which runs faster and
    computes the last layer only at the positions that are read. auto: loop up to 12 layers. Deeper models take
    minutes to compile in a loop, which a run of days on TPUs earns back (docs/speed.md)."""
    attention: Literal["auto", "xla", "pallas", "triton", "cudnn"] = "auto"
    """Computation of attention. xla: in plain JAX, on every device. pallas: in one kernel that keeps scores and
    probabilities on the chip, on TPU. triton: the same for NVIDIA GPUs, not measured yet. cudnn: by cuDNN, on NVIDIA
    GPUs in bfloat16, where attention_dropout is 0. auto: pallas on TPU for rows of 128 tokens and more, else xla; in
    layers whose window is far shorter than the row, both work block by block, so that time and memory grow linearly
    with the length. What a kernel cannot compute is left to xla, and a run says so."""
    remat: Literal["auto", "none", "sel", "dots", "full"] = "auto"
    """Parts that the backward pass computes again instead of keeping them: nothing (none); attention, norms,
    activations and dropout, but no product with a kernel (sel); whatever is not such a product (dots); whole layers
    (full). auto: the first that fits into the memory of a device, of none, sel and full where layers are unrolled, and
    of sel and full in a scan; none where the memory is unknown, as on a CPU."""
    products: Literal["auto", "plain", "cpu", "tpu"] = "auto"
    """Form in which matrix products, sums over rows, norms and the loss over the vocabulary are computed. plain: they
    are computed as the mathematics is written. cpu: they are computed in the form that is fastest with XLA on a CPU,
    with the logits of a part of the words at a time; in bfloat16, so are the products in attention by xla, and sums
    have the form of tpu. tpu: gradients of biases are computed as products, the sums of a layer norm do not wait for
    each other, and kernels that fsdp splits are multiplied as matrices. auto: cpu on a single CPU device, tpu on TPUs,
    else plain. The results are equal up to rounding."""
    overlap: bool = True
    """Whether several TPU chips sum the gradients of each kernel during the backward pass, instead of all gradients
    after it, as the compiler does by default; without effect elsewhere. Not measured on a TPU (docs/planning.md)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where the token store is and how examples are cut from it."""

    path: str = ""
    """Token store that `bert-jax prepare` wrote, local or gs://."""
    mixture: str = ""
    """Several token stores instead of `path`, each with its share of the sequences (STORE=0.7,STORE=0.3) or its budget
    in tokens (STORE=2B,STORE=300M). Without either, shares follow from sizes."""
    mixture_temperature: float = 1.0
    """Temperature that flattens shares which follow from sizes: they are proportional to tokens^(1 / temperature), so
    that a small store is read more often (XLM-R: 3.3)."""
    eval_path: str = ""
    """Separate store to evaluate on. By default the documents of `path` that are held out from training are used."""
    held_out: float = 0.01
    """Share of the documents of `path` that training never sees. It is ignored with eval_path: nothing is held out
    then."""
    sentence_pairs: SentencePairs = "nsp"
    """Segments of a text, and the second objective, which learns from pairs of them: next-sentence prediction (nsp;
    label 0 is IsNext) or sentence-order prediction (sop, as in ALBERT). adjacent: no second objective; most texts have
    two segments, of which the second continues the first, as in ELECTRA. none: no second objective, and single packed
    texts."""
    short_sequence_probability: float = 0.1
    """Share of the documents that an epoch cuts to a random shorter length."""
    packing: PackingChoice = "auto"
    """Whether a row holds several texts, each of which attends to itself alone, so that nearly every position is a
    token. auto: on in phases of at least 256 tokens, unless the objective is one of your own. Evaluation is not
    packed."""
    copies: int = 0
    """Number of different epochs. 0: each epoch is cut, paired and masked afresh. N: epoch e shows the examples of
    epoch e mod N in a new order, as in the original, which wrote ten such copies of its corpus."""
    noise: PretrainingNoiseConfig = PretrainingNoiseConfig()
    """Spelling errors in the training text."""
    loader: Literal["auto", "tf.data", "plain"] = "auto"
    """Source of the batches: a thread (plain), or TensorFlow's tf.data, which takes 0.7 GiB of memory and seconds to
    start. auto: plain. The batches are identical to the last bit."""
    prefetch: int = 4
    """Number of batches to prepare ahead of the device."""
    cache: str = ""
    """Local directory that a remote store is copied to once. By default bert_jax in the user's cache directory
    ($XDG_CACHE_HOME, else ~/.cache)."""

    @property
    def has_pair_labels(self) -> bool:
        """Whether each text is a pair of segments with a label, which a second objective learns."""
        return self.sentence_pairs in ("nsp", "sop")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskingConfig:
    """Masked language modelling, paper section 3.1 and its table 8."""

    unit: MaskUnit = "token"
    """Unit of masking. token: single tokens. whole_word: whole words. span: spans of words (SpanBERT). ngram:
    n-grams of words (ALBERT)."""
    rate: float = 0.15
    """Share of the tokens of a sequence that are predicted."""
    mask_share: float = 0.8
    """Share of the predicted tokens that are replaced by [MASK]."""
    random_share: float = 0.1
    """Share of the predicted tokens that are replaced by a random entry of the vocabulary. The rest stay as they
    are."""
    replacement: Literal["token", "span"] = "token"
    """Unit for which the choice between [MASK], a random entry and no change is made: each predicted token, or each run
    of adjacent ones (span, as in SpanBERT), whose random entries still differ."""
    span_continue: float = 0.8
    """Probability that a span grows by one more word, up to span_max_words (0.8 is the geometric distribution with p =
    0.2 of SpanBERT, section 3.1)."""
    span_max_words: int = 10
    """Maximum length of a span, in words."""
    ngram_max: int = 3
    """Longest n-gram, in words; the probability of n is proportional to 1/n."""
    static_masks: int = 0
    """Number of fixed masks. 0: each epoch has new masks. N: every epoch has the text of epoch 0, and epoch e uses mask
    number e mod N."""
    loss_epsilon: float = 0.0
    """Constant added to the sum of weights by which the loss is divided. The original adds 1e-5, which changes a
    float32 result if a batch has fewer than 256 predictions."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseConfig:
    """A part of training at one sequence length. The paper: 900,000 steps at 128, then 100,000 at 512."""

    steps: int = 1_000_000
    """Number of optimizer steps of the phase."""
    sequence_length: int = 128
    """Tokens per sequence, [CLS] and [SEP] included."""
    mixture: str = ""
    """Mixture of this phase, instead of data.mixture; it may name different stores."""
    batch_size: int = 256
    """Sequences per step, over all devices and micro-batches."""
    ramp_batch_sizes: tuple[int, ...] = ()
    """Batch sizes of the first steps of the phase, ascending, each for an equal share of ramp_steps, before batch_size.
    The examples are those of a run without a ramp, in the same order."""
    ramp_steps: int = 0
    """Number of steps until batch_size is reached; used with ramp_batch_sizes only."""
    micro_batches: int = 1
    """Number of parts into which a batch is divided (gradient accumulation). The result is that of the whole batch."""
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
class MeshConfig:
    """Layout of the devices. The size of one axis may be -1: all devices that the other axes leave."""

    slice: int = 1
    """Number of TPU slices, connected only by the network of the data centre. Each takes a share of every batch and
    holds the whole training state, so that nothing but gradients crosses that network."""
    data: int = -1
    """Number of groups of devices that each take a share of every batch and hold a copy of the model. -1: as many as
    the other axes leave devices for."""
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
    """Number of further checkpoints to keep: those of the latest phase, since losses of different phases are not
    comparable, with the lowest held-out loss of the objective's first term that has a weight. That is the loss of the
    masked words, or of what is predicted instead of them."""
    local_path: str = ""
    """Directory on each host's own disk for frequent saves in addition to those in the work directory; a run resumes
    from the newest good step of either. The last two are kept until the run ends. By default there are no such
    saves."""
    local_every_steps: int = 100
    """Number of steps between two saves below local_path."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """When the model is evaluated during training, and on how many sequences."""

    every_steps: int = 1_000
    """Number of steps between two evaluations. 0: only at the end of training."""
    sequences: int = 1_024
    """Maximum number of held-out sequences; the same ones with the same masks every time."""
    batch_size: int = 64
    """Sequences per evaluation batch."""
    samples: int = 0
    """Number of held-out sequences for which each evaluation records the words that the model fills in, in events.jsonl
    for `bert-jax report`. One more program is then compiled."""


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
    """Objective of the training, and the weights of the losses."""
    phases: tuple[PhaseConfig, ...] = (PhaseConfig(),)
    """Parts of training, each at one sequence length."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """Optimizer, which turns gradients into updates."""
    schedule: ScheduleConfig = ScheduleConfig()
    """Shape of the learning rate after the warm-up."""
    mesh: MeshConfig = MeshConfig()
    """Layout of the devices."""
    compute: ComputeConfig = ComputeConfig()
    """Settings of the computation."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """When the state is saved, and which checkpoints are kept."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """When the model is evaluated during training, and on how many sequences."""
    faults: FaultsConfig = FaultsConfig()
    """Handling of hosts that hang or die, and of numbers that go wrong."""
    profile: ProfileConfig = ProfileConfig()
    """Which steps leave a trace for XProf."""
    sinks: SinksConfig = SinksConfig()
    """Services that receive the metrics in addition to TensorBoard."""
    workdir: str = ""
    """Directory of the run (local or gs://), which holds config.json, metrics.jsonl, checkpoints/ and pictures."""
    init_from: str = ""
    """Model to start from: a work directory or checkpoint of bert_jax, a Hugging Face directory, or Google's TF1 files
    (local or gs://). Only the parameters are taken: the schedule begins at step 0 with moments of zero. A run whose
    work directory has a checkpoint resumes from that and ignores this option. By default the parameters are random."""
    init_from_layers: tuple[int, ...] = ()
    """Layers of that model, counted from 0, from which the layers of this one start, in order: for half as many layers
    0,2,4 and so on. Without init_from they are layers of objective.distillation.teacher, if there is one. What a
    student like DistilBERT lacks (token types and a pooler) is left out. By default all layers of init_from are copied,
    and both models must have the same depth; nothing is copied from a teacher, and the student starts from random
    parameters. --init_from_layers= cancels a value set in the configuration."""
    seed: int = 0
    """Seed of the initial parameters, the order of the examples, the pairs, the masks and dropout."""
    log_every_steps: int = 10
    """Number of steps between two rows of metrics."""
    elastic_batch: bool = False
    """Whether a run may resume with values of phases.N.batch_size and phases.N.learning_rate that differ from those of
    its last start. It continues with the next example that it has not seen; the steps, and the schedule over them, are
    those of the options. If only the number of devices changes, not the batch, phases.N.micro_batches is enough."""

    @property
    def total_steps(self) -> int:
        """Number of steps of all phases."""
        return sum(phase.steps for phase in self.phases)
