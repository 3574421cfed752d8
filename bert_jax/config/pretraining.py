"""Every option of a pre-training run except model and objective, as frozen dataclasses; standard library only.

Only the standard library is imported here, so that `bert-jax … --help` answers at once and a bad value is refused
before anything heavy is loaded. The file under `configs/` overrides the defaults below, and the command line
overrides both; `config.checks.check` checks the result once, at the end. `resolve_phases` fills in all values that
`PhaseConfig` leaves open, and `config_of_phase` returns the options as a phase sees them. Also here: the options of
status, report, doctor and describe, which watch runs and stores.
"""

import dataclasses
import itertools
import math
import re
from typing import Any, Literal

from bert_jax.config.model import EncoderConfig, ModelConfig, RetrainedOption
from bert_jax.config.objective import MaskedWords, ObjectiveConfig
from bert_jax.config.options import from_record, kinds, option, options_recorded, to_dict, with_options
from bert_jax.errors import UserError

SentencePairs = Literal["nsp", "sop", "adjacent", "none"]
"""Pairs of segments, and the task on them; see `DataConfig.sentence_pairs`."""
PackingChoice = Literal["auto", "on", "off"]
"""Whether a row holds several texts; see `DataConfig.packing`."""
MaskUnit = Literal["token", "whole_word", "span", "ngram"]
"""Units of masking; see `MaskingConfig.unit`."""
ReplacementUnit = Literal["token", "span"]
"""Units of what stands in place of predicted tokens; see `MaskingConfig.replacement`."""
SharedObjective = Literal["masked_words", "left_to_right", "two_directions", "masked_diffusion"]
"""Objectives that train the same arrays; see `PhaseObjective.name`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostFaultsConfig:
    """Handling of hosts that hang or die, and of devices that compute wrongly."""

    step_timeout_seconds: float | None = None
    """Seconds that a step or a batch of an evaluation may take before the run ends on every host, with a stack trace of
    each. None: five minutes more than the slowest so far. 0: no limit."""
    peer_timeout_seconds: int = 60
    """Seconds without a heartbeat from another host after which it counts as dead, and the run ends."""
    check_replicas_every: int = 0
    """Number of steps between two checks that all copies of the parameters and of the optimizer state are the same to
    the bit. The run stops if they are not, and names the device. 0: no check."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FaultsConfig(HostFaultsConfig):
    """Handling of hosts that hang or die, and of numbers that go wrong."""

    max_skipped_steps: int = 10
    """Number of consecutive updates that are skipped because their loss or gradient is not finite. After them the run
    rolls back to its last good checkpoint and continues after the batches that it had reached."""
    spike_threshold: float = 0.0
    """Number of robust standard deviations (1.4826 times the median absolute deviation) above the median of the last
    128 losses at which a loss makes the run roll back in the same way; for PaLM this was done by hand. 0: no loss
    does."""
    rollbacks: int = 3
    """Maximum number of rollbacks of a run. After them it stops and leaves a report."""


def check_host_faults(faults: HostFaultsConfig) -> None:
    """Raise a UserError if a value is out of range."""
    if faults.step_timeout_seconds is not None and not 0 <= faults.step_timeout_seconds < math.inf:
        raise UserError(
            f"faults.step_timeout_seconds={faults.step_timeout_seconds} must be a positive number, or 0 for no limit"
        )
    if faults.peer_timeout_seconds < 10:
        raise UserError(
            f"faults.peer_timeout_seconds={faults.peer_timeout_seconds} must be at least 10: a busy host is not dead"
        )
    _need_count(faults, "check_replicas_every")


def check_faults(faults: FaultsConfig) -> None:
    """Raise a UserError if a value is out of range."""
    check_host_faults(faults)
    if faults.max_skipped_steps < 1:
        raise UserError(f"faults.max_skipped_steps={faults.max_skipped_steps} must be positive")
    if not 0 <= faults.spike_threshold < math.inf:
        raise UserError(f"faults.spike_threshold={faults.spike_threshold} must be a positive number, or 0 for none")
    _need_count(faults, "rollbacks")


def _need_count(faults: HostFaultsConfig, name: str) -> None:
    if getattr(faults, name) < 0:
        raise UserError(f"faults.{name}={getattr(faults, name)} must not be negative")


EDITS = ("insert", "delete", "substitute", "swap", "neighbour")
"""insert a random letter, delete, substitute a random letter, swap with the next character, hit a neighbouring key."""
ErrorUnit = Literal["character", "word"]
"""Unit of a rate of errors; see `NoiseConfig.per`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoiseConfig:
    """Spelling errors: edits of letters and digits, before the text is tokenized."""

    rate: float = 0.0
    """Probability of an edit, for each letter and digit, or for each word; see per. 0: the text stays as it is."""
    per: ErrorUnit = option("character", of=("rate",), refused=False)
    """Unit of the rate. character: each letter or digit is edited with this probability, independently. word: each
    word gets one edit with this probability, at one of its letters or digits."""
    kinds: tuple[str, ...] = option(EDITS, of=("rate",), refused=False)
    """Edits to draw from, each with the same probability: insert, delete, substitute, swap, neighbour (a key next to
    the right one on a QWERTY keyboard)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingNoiseConfig(NoiseConfig):
    """Spelling errors in the training rows, with clean targets; evaluation stays clean."""

    reserve: float = option(0.0, of=("rate",), refused=False)
    """Share of a row that is kept free of text, because words with errors take more pieces. Where a row has no room,
    errors are left out."""


def check_noise(noise: NoiseConfig, prefix: str) -> None:
    """Raise a UserError that names option, value and remedy if the values cannot be used; `prefix`: "data.noise."."""
    if not 0 <= noise.rate <= 1:
        raise UserError(f"{prefix}rate={noise.rate} must be a probability from 0 to 1, such as 0.05")
    unknown = [kind for kind in noise.kinds if kind not in EDITS]
    if unknown or not noise.kinds or len(set(noise.kinds)) < len(noise.kinds):
        raise UserError(f"{prefix}kinds={','.join(noise.kinds)} must be some of {','.join(EDITS)}, each once")
    if isinstance(noise, PretrainingNoiseConfig) and not 0 <= noise.reserve <= 0.5:
        raise UserError(f"{prefix}reserve={noise.reserve} must be a share from 0 to 0.5 of a row")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Optimizer, which turns gradients into updates."""

    name: Literal["adamw_bert", "adamw", "lamb", "stable_adamw", "muon"] = "adamw"
    """The update rule. adamw: Adam with decoupled weight decay and bias correction. adamw_bert: the optimizer of 2018
    exactly, without bias correction. lamb: for very large batches. stable_adamw: adamw with smaller steps for arrays
    whose gradients are larger than their second moments foresee, in place of clipping (set clip_norm=0). muon:
    orthogonalized momentum for the matrices of the layers, adamw for everything else."""
    beta1: float = 0.9
    """Decay rate of the first moment."""
    beta2: float = 0.999
    """Decay rate of the second moment."""
    momentum: float = option(0.95, of=("name", "muon"))
    """Decay rate of the momentum of matrices."""
    momentum_warmup_steps: int = option(0, of=("name", "muon"), before=0)
    """Number of updates over which that rate rises from 0.85 (the speedrun of GPT-2: 300). 0: it is the same from the
    first one on."""
    orthogonalization: Literal["newton_schulz", "polar_express"] = option(
        "newton_schulz", of=("name", "muon"), before="newton_schulz"
    )
    """Polynomials that take the singular values of the momentum to about 1, five of them. newton_schulz: always the
    same one, after which they are between 0.68 and 1.14 if they were above 0.01 of the norm. polar_express: each the
    best one for where those before it end (Amsel et al. 2025, arXiv 2505.16932); after them, those that were above
    0.001 are between 0.84 and 1.13."""
    epsilon: float = 1e-6
    """Constant added to the square root of the second moment."""
    weight_decay: float = 0.01
    """Rate of the decoupled weight decay: a step takes learning rate × weight_decay of each weight. Biases and
    LayerNorm parameters do not decay."""
    clip_norm: float = 1.0
    """Maximum global norm of the gradients. 0 turns clipping off."""
    ema_decay: float = 0.0
    """Decay rate of a moving average of the weights, for example 0.999, which is evaluated as ema_…, saved in the
    checkpoints and written by `bert-jax convert --weights=ema`. 0: there is no average. It is used in pre-training
    only."""

    @property
    def moments(self) -> int:
        """Number of values kept for each parameter: m and v of Adam (with muon, at most), and the moving average."""
        return 2 + (self.ema_decay > 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """Shape of the learning rate after the warm-up."""

    name: Literal["linear", "linear_after_warmup", "polynomial", "cosine", "constant"] = "linear"
    """Shape of the decay. linear is that of 2018: the line runs from step 0 to the last step, and the warm-up overrides
    its beginning. linear_after_warmup falls from the full peak at the end of the warm-up, as in torch recipes."""
    power: float = option(1.0, of=("name", "polynomial"))
    """Exponent of the polynomial decay."""
    final_fraction: float = 0.0
    """Learning rate at the last step, as a fraction of the peak."""
    cooldown_steps: int = option(0, of=("name", "constant"))
    """Number of steps at the end in which a constant rate falls to final_fraction."""
    cooldown: Literal["linear", "one_minus_sqrt"] = option("linear", of=("cooldown_steps",))
    """Shape of that fall. one_minus_sqrt: 1 − √(share of the cooldown that is over), steep at first (Hägele et al.
    2024), as in ModernBERT."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProfileConfig:
    """Steps that leave a trace for XProf."""

    steps: str = ""
    """Steps to trace, as FROM:TO. 100:110 traces the ten steps after step 100, on the first host, into the folder
    profile of the work directory. Whatever else happens between them, such as an evaluation, is traced too. By default
    nothing is traced."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SinksConfig:
    """Services that receive the metrics of a run in addition to TensorBoard. One that cannot be reached only causes a
    warning."""

    wandb: str = ""
    """Project of Weights & Biases to log to; a resumed run continues there. It needs the extra wandb, and either a
    login with `wandb login` or WANDB_MODE=offline. By default nothing is sent."""
    mlflow: str = ""
    """Experiment of MLflow to log to, at MLFLOW_TRACKING_URI; a resumed run continues there. It needs the extra mlflow.
    By default nothing is sent."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StatusConfig:
    """Options of `bert-jax status`."""

    output: str = ""
    """JSON file to write the same facts to. By default they are printed only."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """Options of `bert-jax report`."""

    output: str
    """HTML file to write, local or gs://. It is self-contained and includes the library that draws the curves."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DescribeConfig:
    """Options of `bert-jax describe`."""

    output: str
    """Self-contained HTML file to write, local or gs://. The figures are also written next to it, as .json."""
    samples: int = 8
    """Number of documents, drawn at random, whose beginnings are shown."""
    seed: int = 0
    """Seed of the random choice of these documents."""
    cache: str = ""
    """Local directory that a remote store is copied to once. By default bert_jax in the user's cache directory
    ($XDG_CACHE_HOME, else ~/.cache)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DoctorConfig:
    """Options of `bert-jax doctor` for a token store. A run is examined with its own options."""

    sequence_length: int = 128
    """Tokens per sequence of the examples that are examined, [CLS] and [SEP] included."""
    sentence_pairs: SentencePairs = "nsp"
    """Pairs of segments, whose labels are examined if they have any: next-sentence prediction (nsp), sentence order
    (sop, as in ALBERT), pairs without a label (adjacent, as in ELECTRA), or none."""
    cache: str = ""
    """Local directory that a remote store is copied to once. By default bert_jax in the user's cache directory
    ($XDG_CACHE_HOME, else ~/.cache)."""


def traced_steps(profile: ProfileConfig, total_steps: int) -> range:
    """Return the numbers of steps after which a traced step begins; empty if nothing is traced.

    Raises:
      UserError: `profile.steps` is not FROM:TO with 0 <= FROM < TO <= total_steps.
    """
    if not profile.steps:
        return range(0)
    match = re.fullmatch(r"([0-9]{1,18}):([0-9]{1,18})", profile.steps)
    if match is None:
        raise UserError(f"profile.steps={profile.steps!r} must be FROM:TO, such as 100:110 for the ten steps after 100")
    begin, end = map(int, match.groups())
    if not begin < end <= total_steps:
        raise UserError(
            f"profile.steps={profile.steps} must be FROM:TO with FROM below TO and TO at most the last step, "
            f"{total_steps}"
        )
    return range(begin, end)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComputeConfig:
    """Settings of the computation; nothing here changes the contents of a checkpoint."""

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Data type of matrix products and activations. auto: bfloat16 on TPU and GPU, float32 on CPU. Parameters, softmax
    and loss are always float32."""
    layers: Literal["auto", "scan", "loop"] = option("auto", resume="free")
    """Whether the stacked layers run as one scan, which compiles faster, or unrolled (loop), which runs faster and
    computes the last layer only at the positions that are read. auto: loop up to 12 layers. Deeper models take
    minutes to compile in a loop, which a run of days on TPUs earns back (docs/speed.md)."""
    attention: Literal["auto", "xla", "pallas", "triton", "cudnn"] = option("auto", resume="free")
    """Computation of attention. xla: in plain JAX, on every device. pallas: in one kernel that keeps scores and
    probabilities on the chip, on TPU. triton: the same for NVIDIA GPUs. cudnn: by cuDNN, on NVIDIA GPUs in bfloat16,
    where attention_dropout is 0. auto: for rows of 128 tokens and more pallas on TPU and, in bfloat16, triton on NVIDIA
    GPUs since Ampere, else xla; in layers whose window is far shorter than the row, all work block by block, so that
    time and memory grow linearly with the length. What a kernel cannot compute is left to xla, and a run says so."""
    remat: Literal["auto", "none", "sel", "dots", "full"] = option("auto", resume="free")
    """Parts that the backward pass computes again instead of keeping them: nothing (none); attention, norms,
    activations and dropout, but no product with a kernel (sel); whatever is not such a product (dots); whole layers
    (full). auto: the first that fits into the memory of a device, of none, sel and full where layers are unrolled, and
    of sel and full in a scan; none where the memory is unknown, as on a CPU."""
    products: Literal["auto", "plain", "cpu", "gpu", "tpu"] = option("auto", resume="free")
    """Form in which matrix products, sums over rows, norms and the loss over the vocabulary are computed. plain: they
    are computed as the mathematics is written. cpu: they are computed in the form that is fastest with XLA on a CPU,
    with the logits of a part of the words at a time; in bfloat16, so are the products in attention by xla, and sums
    have the form of tpu. tpu: gradients of biases are computed as products, the sums of a layer norm do not wait for
    each other, and kernels that fsdp splits are multiplied as matrices. gpu: activation functions are computed again in
    the backward pass, gradients of biases are summed in float32, and norms are those of tpu. auto: cpu on a single CPU
    device, gpu on GPUs, tpu on TPUs, else plain. The results are equal up to rounding."""
    overlap: bool = option(True, resume="free")
    """Whether several TPU chips sum the gradients of each kernel during the backward pass, instead of all gradients
    after it, as the compiler does by default; without effect elsewhere. Not measured on a TPU (docs/planning.md)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Location of the token store, and how examples are cut from it."""

    path: str = option("", resume="free", hosts_differ=True)
    """Token store that `bert-jax prepare` wrote, local or gs://."""
    mixture: str = option("", resume="free", hosts_differ=True)
    """Several token stores instead of `path`, each with its share of the sequences (STORE=0.7,STORE=0.3) or its budget
    in tokens (STORE=2B,STORE=300M). Without either, shares follow from sizes."""
    mixture_temperature: float = option(1.0, of=("mixture",))
    """Temperature that flattens shares which follow from sizes: they are proportional to tokens^(1 / temperature), so
    that a small store is read more often (XLM-R: 3.3)."""
    eval_path: str = option("", resume="moved", hosts_differ=True)
    """Separate store to evaluate on. By default the documents of `path` that are held out from training are used."""
    held_out: float = option(0.01, of=("eval_path", ""), refused=False)
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
    token. auto: on in phases of at least 256 tokens and for static word vectors, unless the objective is one of your
    own. Evaluation is not packed."""
    copies: int = 0
    """Number of different epochs. 0: each epoch is cut, paired and masked afresh. N: epoch e shows the examples of
    epoch e mod N in a new order, as in the original, which wrote ten such copies of its corpus."""
    noise: PretrainingNoiseConfig = PretrainingNoiseConfig()
    """Spelling errors in the training text."""
    loader: Literal["auto", "tf.data", "plain"] = option("auto", resume="free", hosts_differ=True)
    """Source of the batches: a thread (plain), or TensorFlow's tf.data, which takes 0.7 GiB of memory and seconds to
    start. auto: plain. The batches are identical to the last bit."""
    prefetch: int = option(4, resume="free", hosts_differ=True)
    """Number of batches to prepare ahead of the device."""
    cache: str = option("", resume="free", hosts_differ=True)
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
    replacement: ReplacementUnit = "token"
    """Unit for which the choice between [MASK], a random entry and no change is made: each predicted token, or each run
    of adjacent ones (span, as in SpanBERT), whose random entries still differ."""
    span_continue: float = option(0.8, of=("unit", "span"), refused=False)
    """Probability that a span grows by one more word, up to span_max_words (0.8 is the geometric distribution with p =
    0.2 of SpanBERT, section 3.1)."""
    span_max_words: int = option(10, of=("unit", "span"), refused=False)
    """Maximum length of a span, in words."""
    ngram_max: int = option(3, of=("unit", "ngram"), refused=False)
    """Longest n-gram, in words; the probability of n is proportional to 1/n."""
    static_masks: int = 0
    """Number of fixed masks. 0: each epoch has new masks. N: every epoch has the text of epoch 0, and epoch e uses mask
    number e mod N."""
    loss_epsilon: float = 0.0
    """Constant added to the sum of weights by which the loss is divided. The original adds 1e-5, which changes a
    float32 result if a batch has fewer than 256 predictions."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseMasking:
    """Options of masking that a phase replaces; those left out are the run's (`MaskingConfig`)."""

    unit: MaskUnit | None = None
    """Unit of masking in this phase. None: masking.unit."""
    rate: float | None = None
    """Share of the tokens that are predicted in this phase. None: masking.rate."""
    mask_share: float | None = None
    """Share of the predicted tokens that are replaced by [MASK] in this phase. None: masking.mask_share."""
    random_share: float | None = None
    """Share of the predicted tokens that are replaced by a random entry in this phase. None: masking.random_share."""
    replacement: ReplacementUnit | None = None
    """Unit of the choice between [MASK], a random entry and no change in this phase. None: masking.replacement."""
    span_continue: float | None = None
    """Probability that a span grows by one more word in this phase. None: masking.span_continue."""
    span_max_words: int | None = None
    """Maximum length of a span in this phase, in words. None: masking.span_max_words."""
    ngram_max: int | None = None
    """Longest n-gram in this phase, in words. None: masking.ngram_max."""
    static_masks: int | None = None
    """Number of fixed masks in this phase. None: masking.static_masks."""
    loss_epsilon: float | None = None
    """Constant added to the divisor of the loss in this phase. None: masking.loss_epsilon."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseObjective:
    """Objective of a phase, of those that train the same arrays, and weights of its losses."""

    name: SharedObjective | None = None
    """Objective of this phase, whose options are the run's where that has them. None: objective.name."""
    mlm_weight: float | None = None
    """Weight of the loss of the masked words in this phase. None: objective.mlm_weight."""
    sentence_pair_weight: float | None = None
    """Weight of the loss of pairs in this phase. None: objective.sentence_pair_weight."""
    span_boundary_weight: float | None = None
    """Weight of the loss of the span boundary objective in this phase; a run in which any phase has one has its head
    from the start. None: objective.span_boundary_weight."""
    next_word_weight: float | None = None
    """Weight of the loss of the next words in this phase. None: objective.next_word_weight."""
    previous_word_weight: float | None = None
    """Weight of the loss of the previous words in this phase. None: objective.previous_word_weight."""
    z_loss_weight: float | None = None
    """Weight of the z-loss in this phase. None: objective.z_loss_weight."""
    min_rate: float | None = None
    """Lowest rate of masked_diffusion in this phase. None: objective.min_rate."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseModel:
    """Options of the model that a phase replaces, none of which changes its arrays."""

    direction: Literal["both", "left_to_right"] | None = None
    """Tokens that each token sees in this phase. None: model.direction."""
    rope_theta: float | None = None
    """Base of the wavelengths of rope in this phase. None: model.rope_theta."""
    rope_local_theta: float | None = None
    """Base of the wavelengths of rope in layers with a window in this phase. None: model.rope_local_theta."""
    local_window: int | None = None
    """Number of tokens that local layers see to either side in this phase. 0: no layer is local. None:
    model.local_window."""
    global_every: int | None = None
    """Every n-th layer sees the whole sequence in this phase. None: model.global_every."""
    hidden_dropout: float | None = None
    """Dropout rate on the embeddings and on both residual branches in this phase. None: model.hidden_dropout."""
    attention_dropout: float | None = None
    """Dropout rate on the attention probabilities in this phase. None: model.attention_dropout."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseData:
    """Options of the data that a phase replaces, beside its mixture."""

    packing: PackingChoice | None = None
    """Whether a row holds several texts in this phase. None: data.packing."""
    sentence_pairs: SentencePairs | None = None
    """Segments of a text in this phase, and the second objective. None: data.sentence_pairs."""
    mixture_temperature: float | None = None
    """Temperature of the shares that follow from sizes in this phase. None: data.mixture_temperature."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseConfig:
    """A part of training, with a length, a batch and options of its own.

    The paper has 900,000 steps at length 128, then 100,000 at 512.

    A phase may replace options of the run that need no other arrays; --phases.0.masking.rate=0.3 --help shows which.
    """

    steps: int = option(1_000_000, resume="last")
    """Number of optimizer steps of the phase."""
    sequence_length: int = 128
    """Tokens per sequence, [CLS] and [SEP] included."""
    mixture: str = option("", resume="free")
    """Mixture of this phase, instead of data.mixture; it may name different stores."""
    batch_size: int = option(256, resume="elastic")
    """Sequences per step, over all devices and micro-batches."""
    ramp_batch_sizes: tuple[int, ...] = ()
    """Batch sizes of the first steps of the phase, ascending, each for an equal share of ramp_steps, before batch_size.
    The examples are those of a run without a ramp, in the same order."""
    ramp_steps: int = option(0, of=("ramp_batch_sizes",))
    """Number of steps until batch_size is reached."""
    micro_batches: int = option(1, resume="free")
    """Number of parts into which a batch is divided (gradient accumulation). The result is that of the whole batch."""
    max_predictions: int | None = None
    """Maximum number of masked positions per sequence. None: rate times length, rounded up (20 at length 128, 77 at
    512)."""
    learning_rate: float = option(1e-4, resume="elastic")
    """Peak learning rate of the phase."""
    schedule: Literal["continue", "restart"] = option("continue", resume="branch")
    """Whether the schedule continues across the switch to this phase, or restarts with its own warm-up and decay."""
    warmup_steps: int | None = option(None, resume="branch")
    """Number of steps of linear warm-up at the start of a schedule; ignored in a phase that continues one. None: a
    hundredth of the schedule, as in the paper (10,000 of 1,000,000)."""
    moments: Literal["keep", "reset"] = "keep"
    """Whether the optimizer's moments, and its step count for bias correction, are kept or reset at the switch to this
    phase."""
    masking: PhaseMasking = option(PhaseMasking(), of=("changes",), before=PhaseMasking())
    """Masking of this phase, instead of the run's."""
    objective: PhaseObjective = option(PhaseObjective(), of=("changes",), before=PhaseObjective())
    """Objective of this phase, instead of the run's."""
    model: PhaseModel = option(PhaseModel(), of=("changes",), before=PhaseModel())
    """Direction, reach and dropout of the model in this phase, instead of the run's."""
    data: PhaseData = option(PhaseData(), of=("changes",), before=PhaseData())
    """Packing, pairs and temperature of this phase, instead of the run's."""

    @property
    def changes(self) -> dict[str, Any]:
        """Options of the run that the phase replaces, by their dotted names, with its own values."""
        return {
            f"{group}.{name}": value
            for group in PHASE_GROUPS
            for name, value in vars(getattr(self, group)).items()
            if value is not None
        }


PHASE_GROUPS = ("masking", "objective", "model", "data")
"""Groups of options of the run that a phase replaces some of."""


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
    keep_every_steps: int = option(0, before=0)
    """Number of steps at whose multiples a checkpoint, where one is saved, is kept for good, such as those that later
    runs branch off from. 0: none is."""
    local_path: str = option("", hosts_differ=True)
    """Directory on each host's own disk for frequent saves in addition to those in the work directory; a run resumes
    from the newest good step of either. The last two are kept until the run ends. By default there are no such
    saves."""
    local_every_steps: int = option(100, of=("local_path",), refused=False)
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

    model: EncoderConfig = kinds(ModelConfig(), nested=True)
    """Sizes of the model and form of its layers."""
    data: DataConfig = DataConfig()
    """The token store, and how examples are cut from it."""
    masking: MaskingConfig = MaskingConfig()
    """The choice of the pieces that are masked, and what replaces them."""
    objective: ObjectiveConfig = kinds(MaskedWords(), nested=True)
    """Objective of the training, and the weights of the losses."""
    phases: tuple[PhaseConfig, ...] = (PhaseConfig(),)
    """Parts of training, each with a length, a batch and options of its own."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """Optimizer, which turns gradients into updates."""
    schedule: ScheduleConfig = option(ScheduleConfig(), resume="branch")
    """Shape of the learning rate after the warm-up."""
    mesh: MeshConfig = option(MeshConfig(), resume="free")
    """Layout of the devices."""
    compute: ComputeConfig = option(ComputeConfig(), resume="free")
    """Settings of the computation."""
    checkpoint: CheckpointConfig = option(CheckpointConfig(), resume="free")
    """When the state is saved, and which checkpoints are kept."""
    evaluation: EvaluationConfig = option(EvaluationConfig(), resume="free")
    """When the model is evaluated during training, and on how many sequences."""
    faults: FaultsConfig = option(FaultsConfig(), resume="free")
    """Handling of hosts that hang or die, and of numbers that go wrong."""
    profile: ProfileConfig = option(ProfileConfig(), resume="free")
    """Steps that leave a trace for XProf."""
    sinks: SinksConfig = option(SinksConfig(), resume="free")
    """Services that receive the metrics in addition to TensorBoard."""
    workdir: str = option("", resume="free")
    """Directory of the run (local or gs://), which holds config.json, metrics.jsonl, checkpoints/ and pictures."""
    init_from: str = option("", hosts_differ=True)  # not free, because a resumed run ignores it
    """Model to start from: a work directory or checkpoint of bert_jax, a Hugging Face directory, or Google's TF1 files
    (local or gs://), or a model of the Hugging Face hub, as hf://owner/name[@revision]. Only the parameters are taken:
    the schedule begins at step 0 with moments of zero. A run whose work directory has a checkpoint resumes from that
    and ignores this option. By default the parameters are random."""
    init_from_layers: tuple[int, ...] = option((), of=("init_from or objective.distillation.teacher",), refused=False)
    """Layers of that model, counted from 0, from which the layers of this one start, in order: for half as many layers
    0,2,4 and so on. Without init_from they are layers of objective.distillation.teacher, if there is one. What a
    student like DistilBERT lacks (token types and a pooler) is left out. By default all layers of init_from are copied,
    and both models must have the same depth; nothing is copied from a teacher, and the student starts from random
    parameters. --init_from_layers= cancels a value set in the configuration."""
    init_from_changes: tuple[RetrainedOption, ...] = option((), of=("init_from",), before=())
    """Options of model that may differ from those of init_from, although its parameters then compute another function,
    which training has to adapt; separated by commas, such as direction for a model that read from left to right so far.
    By default none may."""
    init_from_depth: Literal["same", "stack", "spread", "identity"] = option("same", of=("init_from",), before="same")
    """How a deeper model starts from init_from. stack: its layers follow one another again from the first. spread: each
    is repeated in its place, as in ModernBERT-large. identity: further layers on top begin as copies whose outputs are
    zero, so that the model computes what init_from does; for norms before the branches (norm_position=pre). same: there
    are as many layers, or those of init_from_layers."""
    init_from_width: Literal["same", "tile", "duplicate"] = option("same", of=("init_from",), before="same")
    """How a wider model, with more heads of the same size, starts from init_from. tile: features, heads and units
    repeat around the middle, as in ModernBERT-large. duplicate: each has copies that share its outgoing weights, so
    that the model computes what init_from does; for a multiple of the width. same: all sizes are the same."""
    branch_from: str = option("", hosts_differ=True, before="")  # not free, because a resumed run ignores it
    """Step of another run to continue from, as RUN:STEP: its work directory, local or gs://, and one of its
    checkpoints. Parameters, moments, moving average and the place in the data are taken over, and the steps count on.
    Schedule, rates, steps and later phases may differ from that run, whatever it has learned from may not. A run whose
    work directory has a checkpoint resumes from that and ignores this option. By default a run begins at step 0."""
    seed: int = 0
    """Seed of the initial parameters, the order of the examples, the pairs, the masks and dropout."""
    log_every_steps: int = option(10, resume="free")
    """Number of steps between two rows of metrics."""
    elastic_batch: bool = option(False, resume="free")
    """Whether a run may resume with values of phases.N.batch_size and phases.N.learning_rate that differ from those of
    its last start. It continues with the next example that it has not seen; the steps, and the schedule over them, are
    those of the options. If only the number of devices changes, not the batch, phases.N.micro_batches is enough."""

    @property
    def total_steps(self) -> int:
        """Number of steps of all phases."""
        return sum(phase.steps for phase in self.phases)


PACKED_FROM = 256
"""Sequence length from which data.packing=auto packs whatever the objective."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phase:
    """A resolved phase. Steps are those of the whole run, counted from 0."""

    index: int
    begin: int
    steps: int
    sequence_length: int
    batch_size: int
    micro_batches: int
    max_predictions: int
    """Maximum number of masked positions per sequence."""
    learning_rate: float
    """Peak learning rate, by which the phase scales the shape of its schedule."""
    schedule_begin: int
    """Step at which its schedule begins: that of the phase, or of the earlier one that it continues."""
    schedule_length: int
    """Number of steps of that schedule, over all phases that share it."""
    warmup_steps: int
    """Number of steps of linear warm-up at the start of that schedule."""
    resets_moments: bool
    """Whether the optimizer's moments and its step count start from 0 at `begin`."""
    packed: bool
    """Whether a row of its training batches holds several texts (data.packing)."""
    data_seed: int
    """Seed of the order, pairs and masks of its training examples. Each phase has its own, because with the same
    sequence length as the previous phase it would otherwise begin with the same pairs and masks."""

    @property
    def end(self) -> int:
        """Step at which the phase is over and the next one begins."""
        return self.begin + self.steps

    @property
    def max_texts(self) -> int:
        """Most texts of a row: one per 32 tokens and at least four if rows are packed, else one."""
        return max(4, self.sequence_length // 32) if self.packed else 1

    @property
    def tokens_per_step(self) -> int:
        return self.batch_size * self.sequence_length


def config_of_phase(config: Config, index: int) -> Config:
    """Return the options of a run as one of its phases sees them: with those that it replaces.

    What phases replace is no longer among their own options, so that the result is seen as it is, and has no options of
    other objectives. In a phase of an objective that masks no words, or each text at a rate of its own, what the run
    says of masks has no meaning, and in the former what it says of errors in the text.

    Raises:
      UserError: the phase has options of another objective, or of another kind of model.
    """
    if not (changes := config.phases[index].changes):
        return config
    if changes.get("model.local_window") == 0:
        changes["model.local_window"] = None
    none = {group: getattr(PhaseConfig(), group) for group in PHASE_GROUPS}
    seen = dataclasses.replace(config, phases=tuple(dataclasses.replace(each, **none) for each in config.phases))
    try:
        seen = with_options(seen, {name: value for name, value in changes.items() if not name.startswith("masking.")})
        if seen.objective.name != config.objective.name and not isinstance(seen.objective, MaskedWords):
            seen = dataclasses.replace(seen, masking=MaskingConfig(static_masks=config.masking.static_masks))
        if config.objective.masks_words and not seen.objective.masks_words:
            seen = dataclasses.replace(seen, data=dataclasses.replace(seen.data, noise=PretrainingNoiseConfig()))
        return with_options(seen, {name: value for name, value in changes.items() if name.startswith("masking.")})
    except UserError as error:
        raise in_phase(index, error) from None


def in_phase(index: int, error: UserError) -> UserError:
    """Return an error about the options of the run as a phase sees them, with the phase named."""
    return UserError(f"with what phases.{index} replaces: {error}")


def started_afresh(config: Config, index: int) -> tuple[str, ...]:
    """Return what a phase begins to train without anything that the phases before it have learned, for people."""
    seen = [config_of_phase(config, number) for number in range(index + 1)]
    *before, heads = [each.objective.heads(each.data.has_pair_labels) for each in seen]
    known = {head for each in before for head in each}
    moments = ("the moments of the optimizer",) if config.phases[index].moments == "reset" else ()
    return (*moments, *(head for head in heads if before and head not in known))


def phase_notes(config: Config, index: int) -> tuple[str, ...]:
    """Return what a phase changes and what it starts afresh, in words."""
    changes = tuple(f"{name}={value}" for name, value in config.phases[index].changes.items())
    afresh = started_afresh(config, index)
    return (*changes, *((f"starts {' and '.join(afresh)} afresh",) if afresh else ()))


def phase_of_step(config: Config, step: int) -> int:
    """Return the number of the phase that took a step; that of the first for step 0, which none has taken."""
    ends = itertools.accumulate(phase.steps for phase in config.phases)
    return next((index for index, end in enumerate(ends) if step <= end), len(config.phases) - 1)


def model_of_step(recorded: dict[str, Any], step: int, where: str) -> dict[str, Any]:
    """Return the model, as `to_dict` writes it, as the phase computed it that took a step.

    `recorded` is a configuration in `where`, a file of a run.

    Raises:
      UserError: the file is damaged.
    """
    config = from_record(Config, options_recorded(recorded), where)
    return to_dict(config_of_phase(config, phase_of_step(config, step)).model)


def resolve_phases(config: Config) -> tuple[Phase, ...]:
    """Return the phases of a run, in order."""
    phases, begin, first, schedule_begin = [], 0, 0, 0
    for index, phase in enumerate(config.phases):
        seen = config_of_phase(config, index)
        if phase.schedule == "restart":
            first, schedule_begin = index, begin
        phases.append(
            Phase(
                index=index,
                begin=begin,
                steps=phase.steps,
                sequence_length=phase.sequence_length,
                batch_size=phase.batch_size,
                micro_batches=phase.micro_batches,
                max_predictions=max_predictions(phase, seen),
                learning_rate=phase.learning_rate,
                schedule_begin=schedule_begin,
                schedule_length=schedule_length(config, first),
                warmup_steps=warmup_steps(config, first),
                resets_moments=phase.moments == "reset",
                packed=is_packed(phase.sequence_length, seen),
                data_seed=config.seed + (index << 32),
            )
        )
        begin += phase.steps
    return tuple(phases)


def resolve_stages(config: Config) -> tuple[Phase, ...]:
    """Return the phases of a run, in order, with those whose batch grows divided where its size changes.

    The stages of a phase have its index, and so its examples: each continues where the one before stopped.
    """
    return tuple(stage for phase in resolve_phases(config) for stage in _stages(phase, config.phases[phase.index]))


def _stages(phase: Phase, options: PhaseConfig) -> list[Phase]:
    sizes = (*options.ramp_batch_sizes, phase.batch_size)
    ends = [options.ramp_steps * (number + 1) // len(sizes[1:]) for number in range(len(sizes) - 1)]
    places = itertools.pairwise([0, *ends, phase.steps])
    return [
        dataclasses.replace(
            phase,
            begin=phase.begin + begin,
            steps=end - begin,
            batch_size=size,
            resets_moments=phase.resets_moments and begin == 0,
        )
        for size, (begin, end) in zip(sizes, places, strict=True)
        if end > begin
    ]


def is_packed(sequence_length: int, config: Config) -> bool:
    """Return whether training rows of that length hold several texts, with the options that their phase sees."""
    # Objectives that do not read texts, as of static word vectors, lose the pairs of words that the end of a row cuts.
    suits = sequence_length >= PACKED_FROM or not config.objective.reads_texts
    return config.data.packing == "on" or (config.data.packing == "auto" and suits)


def schedule_length(config: Config, first: int) -> int:
    """Return the number of steps of the schedule that begins with phase `first` and ends where a phase restarts it."""
    length = config.phases[first].steps
    for phase in config.phases[first + 1 :]:
        if phase.schedule == "restart":
            break
        length += phase.steps
    return length


def warmup_steps(config: Config, first: int) -> int:
    """Return the number of warm-up steps of the schedule that begins with phase `first`."""
    given = config.phases[first].warmup_steps
    return schedule_length(config, first) // 100 if given is None else given


def num_predicted(length: int, rate: float) -> int:
    """Return how many of so many tokens are predicted, where there is room: rate × length, halves to even, at least 1.

    The tokens are those of a row, its special tokens included.
    """
    return max(1, round(rate * length))


def max_predictions(phase: PhaseConfig, config: Config) -> int:
    """Return the width of the masked-position arrays, with the options that the phase sees."""
    return config.objective.predictions(phase.sequence_length, phase.max_predictions, config.masking.rate)
