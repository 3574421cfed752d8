"""Objectives of pre-training, each a frozen dataclass with its own options, and what the rest of the package asks them.

`ObjectiveConfig` is any of them, and `_Objective` lists the questions. Also here: generator, teacher, static word
vectors. Standard library only.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Protocol

from bert_jax.config.model import EncoderConfig, ModelConfig, Scaling
from bert_jax.config.options import option
from bert_jax.errors import UserError, need_cloud_storage, need_no_negative, need_positive

EmbeddingSharing = Literal["shared", "own", "disentangled"]
"""Ways in which generator and discriminator share embeddings; see `GeneratorConfig.embeddings`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeneratorConfig:
    """The masked language model that is trained together with the discriminator. All other options are those of
    `model`."""

    hidden_size: int | None = None
    """Width of each layer, at most that of the discriminator. None: a quarter of it, as in ELECTRA-small and -large
    (base: a third)."""
    num_layers: int | None = None
    """Number of layers. None: as many as the discriminator has, as in ELECTRA; DeBERTa v3 has half of them."""
    num_heads: int | None = None
    """Number of attention heads per layer. None: heads as wide as the discriminator's, and at least one."""
    intermediate_size: int | None = None
    """Width of the feed-forward layer. None: four times hidden_size."""
    embeddings: EmbeddingSharing = "shared"
    """Sharing of embeddings between generator and discriminator. shared: the same tables and norm, trained by
    both losses, as in ELECTRA; an affine map takes them to the width of each. own: each part has its own. disentangled:
    the discriminator's tables are those of the generator, which its loss does not train, plus a difference that it
    learns (DeBERTa v3)."""


def generator_model(model: EncoderConfig, generator: GeneratorConfig) -> EncoderConfig:
    """Return the sizes of the generator of a discriminator `model`, which `ReplacedTokens` has checked."""
    hidden_size = max(1, model.hidden_size // 4) if generator.hidden_size is None else generator.hidden_size
    sizes = {
        "hidden_size": hidden_size,
        "embedding_size": None if model.word_size == hidden_size else model.word_size,
        "num_layers": model.num_layers if generator.num_layers is None else generator.num_layers,
        "pair_head": False,
    }
    if model.attention_heads:
        heads = max(1, hidden_size // model.head_size) if generator.num_heads is None else generator.num_heads
        sizes |= {"num_heads": heads, "intermediate_size": generator.intermediate_size}
        if isinstance(model, ModelConfig) and model.key_value_heads is not None:
            sizes["key_value_heads"] = math.gcd(heads, model.key_value_heads)
    if isinstance(model, ModelConfig) and model.scaling is not None:
        part = dataclasses.replace(model, **sizes)
        return dataclasses.replace(part, scaling=_of_part(model.scaling, model, part))
    return dataclasses.replace(model, **sizes)


def _of_part(scaling: Scaling, whole: ModelConfig, part: ModelConfig) -> Scaling:
    """Return the base of the generator: as many times as small as that of the discriminator, in every size."""
    bases = {
        "base_hidden_size": (part.hidden_size, whole.hidden_size),
        "base_head_size": (part.head_size, whole.head_size),
        "base_num_layers": (part.num_layers, whole.num_layers),
    }
    given = {name: getattr(scaling, name) for name in bases}
    return dataclasses.replace(
        scaling, **{name: max(1, base * bases[name][0] // bases[name][1]) for name, base in given.items() if base}
    )


SHARED_NEGATIVES = 64
"""Number of random words that are drawn for a row of skip-gram."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SkipGramConfig:
    """Windows and random words of skip-gram with negative sampling (Mikolov et al. 2013, arXiv 1310.4546)."""

    window: int = 5
    """Maximum number of words to either side of a word that count as its neighbours. The number for each word is drawn,
    from 1 to this."""
    negatives: int = 5
    """Weight of the randomly drawn words against each neighbour. In the paper it is their number; here all neighbours
    in a row share the words that are drawn, with the same expectation."""
    subsampling: float = 0.0
    """Threshold t for frequent words: a word that is a share f of the text is left out with probability 1 - √(t / f).
    The paper uses 1e-5 for a billion words. 0: none is left out."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GloVeConfig:
    """Windows and counts of GloVe (Pennington et al. 2014)."""

    window: int = 5
    """Number of words to either side of a word that count as its neighbours, each with the weight 1 / distance; that of
    the counts."""
    counts: str = ""
    """Directory of the counts of pairs that `bert-jax count` wrote, which GloVe needs."""
    maximum_count: float = 100.0
    """Count from which all pairs have the same weight (x_max in the paper)."""
    count_power: float = 0.75
    """Power of the count by which rarer pairs weigh less (α in the paper)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillationConfig:
    """A teacher whose predictions and states pre-training imitates (Sanh et al. 2019), and the weight of each loss."""

    teacher: str = option("", resume="free", hosts_differ=True)
    """Model to learn from: whatever init_from takes, with the vocabulary of the data and a head for masked
    words. A run resumes only with the same teacher, whose path may change. By default there is none."""
    temperature: float = option(2.0, of=("teacher",), refused=False)
    """Divisor of the logits of both models before they are compared. The loss is multiplied by its square."""
    soft_weight: float = option(5.0, of=("teacher",), refused=False)
    """Weight of the divergence of the student's predictions from the teacher's."""
    soft_positions: Literal["masked", "all"] = option("masked", of=("teacher",), refused=False)
    """Positions at which predictions are compared: the masked ones, or all tokens, as in the published code, which
    computes the logits of all of them."""
    cosine_weight: float = option(1.0, of=("teacher",), refused=False)
    """Weight of 1 - cosine of the last states of student and teacher. Where their widths differ, these and all other
    states of the student are compared through one linear map, which is learned."""
    hidden_weight: float = option(0.0, of=("teacher",), refused=False)
    """Weight of the squared difference of the embeddings and of the states after each layer (TinyBERT)."""
    attention_weight: float = option(0.0, of=("teacher",), refused=False)
    """Weight of the squared difference of the attention probabilities of each layer, for equal numbers of heads
    (TinyBERT compares the scores before the softmax)."""
    layers: tuple[int, ...] = option((), of=("teacher",), refused=False)
    """Layers of the teacher, from 0, that the student's layers are compared with, in order. By default they are spread
    evenly: the last is compared with the last and, for half as many layers, every second one is used."""

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each loss, by the name of its option."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name.endswith("_weight")}

    def teacher_size(self, ours: int, theirs: int) -> int | None:
        """Return the width of the teacher's states if those of the student are mapped to it, else None.

        They are if states are compared, and their widths, `ours` and `theirs`, differ.
        """
        return theirs if (self.cosine_weight or self.hidden_weight) and ours != theirs else None

    def check(self) -> None:
        """Raise a UserError if a value is out of range, or no weight is above 0."""
        need_positive(self, "objective.distillation.", "temperature")
        need_no_negative(self, "objective.distillation.", *self.weights)
        if not any(self.weights.values()):
            raise UserError(
                f"objective.distillation.teacher={self.teacher}, but all weights below objective.distillation are 0, "
                "so nothing is learned from it; give one a positive weight, such as soft_weight=5"
            )
        if self.layers and not (self.hidden_weight or self.attention_weight):
            raise UserError(
                f"objective.distillation.layers={','.join(map(str, self.layers))} says which layers hidden_weight and "
                "attention_weight compare, and both are 0; give one of them a positive weight, or leave it out"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskDistillationConfig:
    """A fine-tuned teacher whose scores are learned in addition to the labels of a task."""

    teacher: str = option("", resume="free", hosts_differ=True)
    """Fine-tuned model to learn from, for the same labels and with the vocabulary of init_from. A command resumes only
    with the same teacher, whose path may change. By default there is none."""
    temperature: float = option(2.0, of=("teacher",), refused=False)
    """Divisor of the logits of both models before they are compared. The loss is multiplied by its square. Regression
    compares the numbers directly."""
    share: float = option(0.5, of=("teacher",), refused=False)
    """Share of the teacher in the loss; the rest is the loss of the labels. 1: the labels are ignored."""

    def check(self, crf: bool) -> None:
        """Raise a UserError if a value is out of range, or the head has no scores to compare."""
        if not self.teacher:
            return
        need_cloud_storage(self.teacher)
        need_positive(self, "distillation.", "temperature")
        if not 0 < self.share <= 1:
            raise UserError(
                f"distillation.share={self.share} must be above 0, where nothing is learned from the teacher, and at "
                "most 1"
            )
        if crf:
            raise UserError(
                f"distillation.teacher={self.teacher} teaches the scores of single words, and a CRF learns those of "
                "whole sentences; leave --crf out"
            )


BALANCED = "balanced"
"""In place of the weights of classes: those that make up for how often each occurs."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskLossConfig:
    """The loss of a classifier of texts; by default the cross-entropy of all examples alike.

    With several labels per text it is the binary cross-entropy of each class, a mean over the classes.
    """

    class_weights: tuple[str, ...] = ()
    """Weights of the examples of each class, as NAME=WEIGHT, separated by commas; a class that is not named has 1. With
    several labels per text, the weight of a text for each class that it has. balanced: weights by which every class
    counts the same, or with several labels a class as much as its absence. The loss is divided by the sum of the
    weights, with several labels by the number of texts. By default all weigh 1."""
    label_smoothing: float = 0.0
    """Share of the target that is divided evenly among all classes (Szegedy et al. 2016), or with several labels
    between a class and its absence."""
    focal_gamma: float = 0.0
    """Exponent γ of the focal loss (Lin et al. 2017): the loss of an answer with probability p is multiplied by
    (1 - p)^γ, so what is right already hardly counts; 2 in the paper. 0: the plain loss."""

    def check(self) -> None:
        """Raise a UserError if a value is out of range, or two cannot be combined."""
        if not 0 <= self.label_smoothing < 1:
            raise UserError(f"loss.label_smoothing={self.label_smoothing} must be from 0 to below 1; 0.1 is usual")
        if not 0 <= self.focal_gamma <= 100:
            raise UserError(f"loss.focal_gamma={self.focal_gamma} must be from 0, the plain loss, to 100; 2 is usual")
        if self.focal_gamma and self.label_smoothing:
            raise UserError(
                f"loss.focal_gamma={self.focal_gamma} needs one right class, and loss.label_smoothing="
                f"{self.label_smoothing} makes all classes a little right; leave one of them out"
            )
        if self.class_weights != (BALANCED,):
            self.weights()

    def weights(self) -> dict[str, float]:
        """Return the weights that are given, by name of the class."""
        found = {}
        for entry in self.class_weights:
            name, equals, text = entry.rpartition("=")
            try:
                weight = float(text)
            except ValueError:
                weight = math.nan
            if not (equals and name and 0 < weight < math.inf):
                raise UserError(
                    f"loss.class_weights has {entry!r:.60}; expected {BALANCED}, or NAME=WEIGHT with a positive number "
                    "for each class, separated by commas"
                )
            if name in found:
                raise UserError(f"loss.class_weights names {name!r:.60} twice")
            found[name] = weight
        return found

    def given(self) -> str:
        """Return the first option that is not as usual, with its value."""
        usual = TaskLossConfig()
        fields = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
        name, value = next((name, value) for name, value in fields if value != getattr(usual, name))
        return f"loss.{name}={','.join(value) if isinstance(value, tuple) else value}"


class _Data(Protocol):
    @property
    def sentence_pairs(self) -> str: ...
    @property
    def has_pair_labels(self) -> bool: ...


class _Phase(Protocol):
    @property
    def sequence_length(self) -> int: ...
    @property
    def max_predictions(self) -> int | None: ...


class Run(Protocol):
    """The options of a run that objectives check, a part of `Config`."""

    @property
    def model(self) -> EncoderConfig: ...
    @property
    def data(self) -> _Data: ...
    @property
    def masking(self) -> object: ...


class _Objective:
    """Questions that every objective answers, with the answer of most."""

    chosen_by: ClassVar[Mapping[str, str]]
    """The option that chooses it, and its value."""
    losses: ClassVar[str]
    """The module of bert_jax/objectives/ that makes it (`objectives.objective.ObjectiveFamily`)."""
    places: ClassVar[str] = "masking"
    """The module of bert_jax/data/ that chooses the places it predicts (`data.examples.PlaceFamily`)."""
    masks_words: ClassVar[bool] = False
    """Whether batches have masked words, which the model or its generator fills in."""
    reads_texts: ClassVar[bool] = True
    """Whether rows are texts with their special tokens, rather than words alone."""
    two_streams: ClassVar[bool] = False
    """Whether XLNet's second stream of states predicts the words."""
    predicts: ClassVar[str]
    """Its description in messages, of one that masks no words."""
    masking_read: ClassVar[tuple[str, ...]] = ("static_masks",)
    """The options of masking that mean something to it; of one that masks none."""
    word_arrays: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Names of the axes, vocab and hidden, of the arrays that only its model has, by path; it looks rows of them up."""

    @property
    def name(self) -> str:
        """Its name in messages, the value of objective.name."""
        return self.chosen_by["name"]

    @property
    def taught(self) -> DistillationConfig | None:
        """The teacher, and what is learned from it; None without one."""
        return None

    @property
    def parts(self) -> tuple[str, ...]:
        """Parts of the model that other objectives do without."""
        return ()

    def word_products(self, sequence_length: int, predictions: int) -> tuple[int, int]:
        """Return how many products of the vectors of two words it takes: of words of a row, and with words drawn."""
        del sequence_length, predictions
        return 0, 0

    def head_bytes(self, word_size: int, sequence_length: int, predictions: int, value_bytes: int) -> int | None:
        """Return what the backward pass needs of its losses for a row; None for those of logits of all words.

        Args:
          word_size: values of the vector of a word.
          sequence_length: tokens of the row.
          predictions: number of words that it predicts there.
          value_bytes: of an activation.
        """
        del word_size, sequence_length, predictions, value_bytes
        return None

    def predictions(self, sequence_length: int, given: int | None, rate: float) -> int:
        """Return the width of the arrays of predicted places, as the original advises (20 at length 128, 77 at 512).

        Args:
          sequence_length: tokens of a row.
          given: max_predictions of the phase.
          rate: share of the tokens that is predicted.
        """
        return min(sequence_length, max(1, math.ceil(sequence_length * rate))) if given is None else given

    def arrays(self, sequence_length: int) -> dict[str, tuple[tuple[int, ...], type[int] | type[float]]]:
        """Return the shape of a row, and the type of its numbers, of the arrays that only its batches have."""
        del sequence_length
        return {}

    def check_model(self, model: EncoderConfig) -> None:
        """Raise a UserError if a model with these layers, or without any, cannot be trained for it."""
        if not model.has_layers:
            raise UserError(
                f"model.layer=none gives a word the same vector everywhere, which objective.name={self.name} cannot "
                "learn from; set objective.name=skip_gram or glove"
            )

    def heads(self, has_pair_labels: bool) -> tuple[str, ...]:
        """Return the heads that it trains, as people call them."""
        del has_pair_labels
        return ("the head for words",)

    def check_phase(self, phase: _Phase, prefix: str) -> None:
        """Raise a UserError if a phase that trains it, whose options begin with `prefix`, does not suit it."""

    def check(self, run: Run) -> None:
        """Raise a UserError if its options are out of range, or contradict those of the run."""
        if run.model.two_streams != self.two_streams:
            raise UserError(
                f"{run.model.spelled} and objective.name={self.name}: the tokens of a permutation are predicted by "
                "XLNet's second stream of states, and nothing else trains it; set model.positions=xlnet and "
                "objective.name=permutation, or neither"
            )
        if not self.masks_words:
            self._check_single_texts(run, " and masks none")

    def _check_single_texts(self, run: Run, masks: str = "") -> None:
        """Raise a UserError if there are pairs, or an option of masking has no effect, for the reason in `masks`."""
        if run.data.sentence_pairs != "none":
            raise UserError(
                f"{self.reason} and reads single texts, but data.sentence_pairs={run.data.sentence_pairs}; set "
                "data.sentence_pairs=none"
            )
        for name, value in vars(run.masking).items():
            if name not in self.masking_read and value != getattr(type(run.masking), name):
                raise UserError(f"{self.reason}{masks}, so masking.{name}={value} has no effect; leave it out")

    @property
    def reason(self) -> str:
        """The beginning of messages that refuse an option which means nothing to it."""
        return f"objective.name={self.name} {self.predicts}"


class _MasksWords(_Objective):
    """Common part of the objectives of masked words."""

    masks_words: ClassVar[bool] = True
    mask_decoder: bool
    """Whether they are predicted by DeBERTa's enhanced mask decoder."""

    @property
    def parts(self) -> tuple[str, ...]:
        return ("mask_decoder",) if self.mask_decoder else ()

    def check(self, run: Run) -> None:
        super().check(run)
        self._check_pairs(run)
        if self.mask_decoder:
            self._check_mask_decoder(run.model)

    def _check_pairs(self, run: Run) -> None:
        """Raise a UserError if there are pairs, but the model cannot read them or not learn from their labels."""
        model, pairs, labelled = run.model, run.data.sentence_pairs, run.data.has_pair_labels
        needed = {"type_vocab_size": max(2, model.type_vocab_size)} | ({"pair_head": True} if labelled else {})
        if pairs != "none" and (wrong := [name for name, value in needed.items() if getattr(model, name) != value]):
            raise UserError(
                f"data.sentence_pairs={pairs} needs two segments{' and a head for pairs' if labelled else ''}, but "
                f"{' and '.join(f'model.{name}={getattr(model, name)}' for name in wrong)}; set "
                f"{' and '.join(f'model.{name}={needed[name]}' for name in wrong)}, or data.sentence_pairs=none"
            )

    def _check_mask_decoder(self, model: EncoderConfig) -> None:
        """Raise a UserError if the model has no layer that the enhanced mask decoder could pass through again."""
        for name, value, fitting in (
            ("model.disentangled.terms", "none", model.disentangled is not None),
            ("model.positions", "learned", model.position_table is None),
            ("model.norm_position", model.norm_position, model.norm_position == "post"),
            ("model.num_layers", model.num_layers, model.num_layers > 1),
        ):
            if not fitting:
                raise UserError(
                    f"objective.mask_decoder=True cannot be combined with {name}={value}: masked words are predicted "
                    "by further passes of the last of several layers of a DeBERTa (terms=c2p+p2c, positions=none, "
                    "norm_position=post), whose input has no absolute positions; leave it out"
                )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _WithZLoss:
    """Option of the objectives whose words have one softmax."""

    z_loss_weight: float = option(0.0, before=0.0)
    """Weight of the z-loss: the square of the logarithm of the sum by which the softmax of the words divides, so that
    logits do not drift (PaLM, arXiv 2204.02311: 1e-4). 0: it is not added."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedWords(_WithZLoss, _MasksWords):
    """BERT's masked language model, with the second objective of data.sentence_pairs."""

    chosen_by: ClassVar[Mapping[str, str]] = {"name": "masked_words"}
    losses: ClassVar[str] = "masked_words"

    mlm_weight: float = 1.0
    """Weight of the loss of the masked words. 0: its head is not trained."""
    sentence_pair_weight: float = 1.0
    """Weight of the loss of the second objective, next sentences or sentence order, whichever data.sentence_pairs
    chooses. 0: its head is not trained."""
    span_boundary_weight: float = 0.0
    """Weight of the loss of the span boundary objective (SpanBERT): the words of each run of masked tokens, from the
    two tokens at its borders. 0: there is no such head. Use it with masking.unit=span."""
    distillation: DistillationConfig = DistillationConfig()
    """A teacher to learn from, in addition to the masked words, and the weights of what is learned from it."""
    mask_decoder: bool = False
    """Whether masked words are predicted by DeBERTa's enhanced mask decoder: from two more passes of the last layer,
    whose queries begin with absolute positions. It needs model.disentangled.terms."""

    @property
    def taught(self) -> DistillationConfig | None:
        return self.distillation if self.distillation.teacher else None

    @property
    def parts(self) -> tuple[str, ...]:
        return (*(("span_boundary",) if self.span_boundary_weight else ()), *super().parts)

    def heads(self, has_pair_labels: bool) -> tuple[str, ...]:
        heads = {
            "the head for words": self.mlm_weight,
            "pooler and head for pairs": has_pair_labels and self.sentence_pair_weight,
            "the span boundary head": self.span_boundary_weight,
        }
        return tuple(name for name, weight in heads.items() if weight)

    def check(self, run: Run) -> None:
        weights = ("mlm_weight", "sentence_pair_weight", "span_boundary_weight", "z_loss_weight")
        need_no_negative(self, "objective.", *weights)
        others = self.span_boundary_weight or (run.data.has_pair_labels and self.sentence_pair_weight)
        if not self.mlm_weight and not others:
            raise UserError(
                f"objective.mlm_weight=0 leaves nothing to learn: objective.sentence_pair_weight="
                f"{self.sentence_pair_weight:g}, data.sentence_pairs={run.data.sentence_pairs}; the paper's weights "
                "are 1"
            )
        if self.z_loss_weight and not self.mlm_weight:
            raise UserError(
                f"objective.z_loss_weight={self.z_loss_weight:g} adds to the loss of the masked words, which "
                "objective.mlm_weight=0 leaves out; set objective.z_loss_weight=0"
            )
        if self.taught is not None:
            self.taught.check()
        super().check(run)


class _EveryWord(_Objective):
    """Common part of the objectives that predict every word of a row, or may do so."""

    left_out: ClassVar[int] = 0
    """Number of tokens of a row that are not predicted."""
    how_many: ClassVar[str] = "all of them"
    """How many of them are predicted, in messages."""

    def predictions(self, sequence_length: int, given: int | None, rate: float) -> int:
        del given, rate
        return sequence_length - self.left_out

    def check_phase(self, phase: _Phase, prefix: str) -> None:
        super().check_phase(phase, prefix)
        if phase.max_predictions is not None:
            raise UserError(
                f"{self.reason}, {self.how_many}, so {prefix}max_predictions={phase.max_predictions} has no effect; "
                "leave it out"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedDiffusion(_EveryWord):
    """Masked diffusion (MDLM, arXiv 2406.07524; LLaDA, arXiv 2502.09992): a rate is drawn for each text, and each token
    of it is masked with that probability. The loss of a masked token weighs 1 / rate, and their sum is divided by the
    number of all tokens: a bound on the negative logarithm of the probability of a token."""

    chosen_by: ClassVar[Mapping[str, str]] = {"name": "masked_diffusion"}
    losses: ClassVar[str] = "masked_words"
    masks_words: ClassVar[bool] = True
    predicts: ClassVar[str] = "masks each text at a rate of its own, always with [MASK]"
    how_many: ClassVar[str] = "up to all of it"

    min_rate: float = 0.001
    """Lowest rate that is drawn for a text, the highest being 1, so that no weight is above its inverse. Evaluations
    mask an exact number of tokens instead, from one to all, and need none."""

    def arrays(self, sequence_length: int) -> dict[str, tuple[tuple[int, ...], type[int] | type[float]]]:
        del sequence_length
        return {"num_tokens": ((), float)}

    def check(self, run: Run) -> None:
        super().check(run)
        self._check_single_texts(run)
        if run.model.direction != "both" or run.model.two_directions:
            raise UserError(
                f"{self.reason}, so that a word is predicted from all that are left, but with {run.model.spelled}, "
                f"model.direction={run.model.direction} each state knows one side of it; set model.direction=both and "
                "no model.layer=lstm"
            )
        if not 0 < self.min_rate <= 0.1:
            raise UserError(
                f"objective.min_rate={self.min_rate:g} must be above 0, where weights are infinite, and at most 0.1; "
                "0.001 is usual"
            )


class _OneSided(_EveryWord):
    """Common part of the objectives that predict every token from those on one side."""

    losses: ClassVar[str] = "autoregressive"
    predicts: ClassVar[str] = "predicts each token from those on one side of it"
    left_out: ClassVar[int] = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeftToRight(_WithZLoss, _OneSided):
    """Each token of a text, from those before it; the model needs direction=left_to_right."""

    chosen_by: ClassVar[Mapping[str, str]] = {"name": "left_to_right"}

    def check(self, run: Run) -> None:
        need_no_negative(self, "objective.", "z_loss_weight")
        if run.model.direction != "left_to_right":
            raise UserError(
                f"{self.reason}, but with model.direction={run.model.direction} it would see the answer; set "
                "model.direction=left_to_right"
            )
        super().check(run)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TwoDirections(_OneSided):
    """Each token of a text, from those before it and, by the other half of the states, from those after it, as in
    ELMo; the model needs layer=lstm."""

    chosen_by: ClassVar[Mapping[str, str]] = {"name": "two_directions"}

    next_word_weight: float = 1.0
    """Weight of the loss of the next words."""
    previous_word_weight: float = 1.0
    """Weight of the loss of the previous words."""

    def check(self, run: Run) -> None:
        model = run.model
        if not model.two_directions:
            raise UserError(
                f"{self.reason}, but with {model.spelled}, model.direction={model.direction} it would see "
                "the answer; set model.layer=lstm and model.direction=both, whose two directions are kept apart"
            )
        super().check(run)
        need_no_negative(self, "objective.", "next_word_weight", "previous_word_weight")
        if not (self.next_word_weight or self.previous_word_weight):
            raise UserError(
                "objective.next_word_weight=0 and objective.previous_word_weight=0 leave nothing to learn; the paper's "
                "weights are 1"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplacedTokens(_MasksWords):
    """ELECTRA's discriminator, which tells the words of a generator, trained with it, from those of the text."""

    chosen_by: ClassVar[Mapping[str, str]] = {"name": "replaced_tokens"}
    losses: ClassVar[str] = "replaced_tokens"

    mlm_weight: float = 1.0
    """Weight of the loss of the generator's masked words."""
    replaced_tokens_weight: float = 50.0
    """Weight of the discriminator's loss."""
    generator: GeneratorConfig = GeneratorConfig()
    """The generator."""
    mask_decoder: bool = False
    """Whether the generator's words are predicted by DeBERTa's enhanced mask decoder: from two more passes of its last
    layer, whose queries begin with absolute positions. It needs model.disentangled.terms."""

    def check(self, run: Run) -> None:
        need_no_negative(self, "objective.", "mlm_weight", "replaced_tokens_weight")
        for name, consequence in (
            ("mlm_weight", "the generator would never learn"),
            ("replaced_tokens_weight", "the discriminator would never learn"),
        ):
            if not getattr(self, name):
                raise UserError(
                    f"objective.{name}=0 with objective.name=replaced_tokens: {consequence}; the paper's weights are "
                    "mlm_weight=1 and replaced_tokens_weight=50"
                )
        if run.data.has_pair_labels or run.model.pair_head:
            raise UserError(
                f"objective.name=replaced_tokens has no second objective, but data.sentence_pairs="
                f"{run.data.sentence_pairs} and model.pair_head={run.model.pair_head}; set "
                "data.sentence_pairs=adjacent (or none) and model.pair_head=False"
            )
        super().check(run)
        self._check_generator(run.model)

    def _check_generator(self, discriminator: EncoderConfig) -> None:
        sizes = ("hidden_size", "num_layers", "num_heads", "intermediate_size")
        need_positive(self.generator, "objective.generator.", *sizes)
        for name in ("num_heads", "intermediate_size"):
            if not discriminator.attention_heads and getattr(self.generator, name) is not None:
                raise UserError(
                    f"objective.generator.{name}={getattr(self.generator, name)} has no effect with "
                    f"{discriminator.spelled}; leave it out"
                )
        model = generator_model(discriminator, self.generator)
        if model.hidden_size > discriminator.hidden_size:
            raise UserError(
                f"objective.generator.hidden_size={model.hidden_size} is wider than the discriminator, "
                f"model.hidden_size={discriminator.hidden_size}; the paper takes a quarter to a half of it"
            )
        if (heads := model.attention_heads) and model.hidden_size % heads:
            raise UserError(
                f"the generator's width of {model.hidden_size} is not divisible by its {heads} heads; set "
                "objective.generator.hidden_size or objective.generator.num_heads so that it is"
            )
        if model.scaling is not None and discriminator.scaling is not None:
            for name in ("width", "depth", "scores"):
                times = [getattr(each.scaling, name)(each) for each in (discriminator, model)]
                if times[0] != times[1]:
                    raise UserError(
                        f"the generator of model.scaling's base would not be a whole number wide or deep ({name}: "
                        f"{times[1]:g} times the base, and {times[0]:g} times for the discriminator); choose sizes of "
                        "objective.generator so that it is, such as a quarter of the discriminator's width"
                    )
        if self.mask_decoder and model.num_layers < 2:
            raise UserError(
                "objective.mask_decoder=True passes through the last of several layers again, but "
                f"objective.generator.num_layers={model.num_layers}; give it two or leave the decoder out"
            )
        if model.needs_even_heads and model.head_size % 2:
            raise UserError(
                f"model.positions=rope turns features in pairs, but the generator has heads of {model.head_size}; set "
                "objective.generator.num_heads so that they are even"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Permutation(_Objective):
    """Some tokens, from those that come before them in a random order, as in XLNet; the model needs
    positions=xlnet."""

    chosen_by: ClassVar[Mapping[str, str]] = {"name": "permutation"}
    losses: ClassVar[str] = "autoregressive"
    two_streams: ClassVar[bool] = True
    predicts: ClassVar[str] = "predicts tokens that it leaves as they are"
    masking_read: ClassVar[tuple[str, ...]] = ("rate", "static_masks")

    longest_span: int = 5
    """Maximum number of adjacent tokens that are predicted together; the probability of n is proportional to 1/n.
    masking.rate is the share of all tokens."""

    def arrays(self, sequence_length: int) -> dict[str, tuple[tuple[int, ...], type[int] | type[float]]]:
        return {"order": ((sequence_length,), int)}

    def check(self, run: Run) -> None:
        super().check(run)
        if self.longest_span < 1:
            raise UserError(f"objective.longest_span={self.longest_span} must be positive; the paper's is 5")


class _StaticVectors(_EveryWord):
    """Common part of the objectives of static word vectors."""

    losses: ClassVar[str] = "static_vectors"
    places: ClassVar[str] = "neighbours"
    reads_texts: ClassVar[bool] = False
    predicts: ClassVar[str] = "predicts the neighbours of each word"
    word_arrays: ClassVar[Mapping[str, tuple[str, ...]]] = {"contexts/table": ("vocab", "hidden")}
    static_vectors: Any
    """Options of each, among which is a window."""

    def word_products(self, sequence_length: int, predictions: int) -> tuple[int, int]:
        del predictions
        return sequence_length * sequence_length, 0

    def head_bytes(self, word_size: int, sequence_length: int, predictions: int, value_bytes: int) -> int:
        """Return the bytes of three arrays of scores in float32, and of the vectors that are not those of the row."""
        scores = predictions * (sequence_length + SHARED_NEGATIVES)
        return 3 * 4 * scores + value_bytes * word_size * (predictions + SHARED_NEGATIVES)

    def check_model(self, model: EncoderConfig) -> None:
        if model.has_layers:
            raise UserError(
                f"objective.name={self.name} learns one vector per word, but with {model.spelled} it would "
                "see the neighbours that it has to predict; set model.layer=none"
            )

    def check(self, run: Run) -> None:
        super().check(run)
        need_positive(self.static_vectors, "objective.static_vectors.", "window")

    def check_phase(self, phase: _Phase, prefix: str) -> None:
        super().check_phase(phase, prefix)
        window = self.static_vectors.window
        if phase.sequence_length <= window:
            raise UserError(
                f"objective.static_vectors.window={window} is not shorter than the rows of "
                f"{prefix}sequence_length={phase.sequence_length}; make it smaller, or the rows longer"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SkipGram(_StaticVectors):
    """The words near each word, from its vector alone (word2vec); the model needs layer=none."""

    chosen_by: ClassVar[Mapping[str, str]] = {"name": "skip_gram"}

    static_vectors: SkipGramConfig = SkipGramConfig()
    """Windows and random words."""

    def arrays(self, sequence_length: int) -> dict[str, tuple[tuple[int, ...], type[int] | type[float]]]:
        return {"windows": ((sequence_length, 2), int), "negatives": ((SHARED_NEGATIVES,), int)}

    def word_products(self, sequence_length: int, predictions: int) -> tuple[int, int]:
        return sequence_length * sequence_length, predictions * SHARED_NEGATIVES

    def check(self, run: Run) -> None:
        super().check(run)
        options = self.static_vectors
        need_positive(options, "objective.static_vectors.", "negatives")
        if not 0 <= options.subsampling < 1:
            raise UserError(
                f"objective.static_vectors.subsampling={options.subsampling} must be a share of the text, from 0 to "
                "below 1; the paper's is 1e-5"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GloVe(_StaticVectors):
    """Counts of neighbouring words, from the vectors of both; the model needs layer=none, and the data
    static_vectors.counts."""

    chosen_by: ClassVar[Mapping[str, str]] = {"name": "glove"}
    word_arrays: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **_StaticVectors.word_arrays,
        **{"context_biases/center": ("vocab",), "context_biases/neighbour": ("vocab",)},
    }

    static_vectors: GloVeConfig = GloVeConfig()
    """Windows and counts."""

    def arrays(self, sequence_length: int) -> dict[str, tuple[tuple[int, ...], type[int] | type[float]]]:
        return {"pair_counts": ((sequence_length, self.static_vectors.window), float)}

    def check(self, run: Run) -> None:
        super().check(run)
        options = self.static_vectors
        if not (0 < options.maximum_count < math.inf and 0 <= options.count_power <= 1):
            raise UserError(
                f"objective.static_vectors.maximum_count={options.maximum_count:g} must be positive and count_power="
                f"{options.count_power:g} from 0 to 1; the paper's are 100 and 0.75"
            )


ObjectiveConfig = (
    MaskedWords | LeftToRight | TwoDirections | ReplacedTokens | Permutation | MaskedDiffusion | SkipGram | GloVe
)
"""The objective of a run: one of these."""
