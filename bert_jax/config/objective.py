"""Objectives of pre-training as frozen dataclasses: masked words, generator, teacher, static word vectors.

Standard library only.
"""

import dataclasses
import math
from typing import Literal

from bert_jax.config.json_form import option
from bert_jax.config.model import EncoderConfig, ModelConfig, RecurrentConfig
from bert_jax.errors import UserError, need_cloud_storage

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
    """Return the sizes of the generator of a discriminator `model`."""
    assert isinstance(model, ModelConfig | RecurrentConfig)  # checked by ReplacedTokens
    hidden_size = max(1, model.hidden_size // 4) if generator.hidden_size is None else generator.hidden_size
    sizes = {
        "hidden_size": hidden_size,
        "embedding_size": None if model.word_size == hidden_size else model.word_size,
        "num_layers": model.num_layers if generator.num_layers is None else generator.num_layers,
        "pair_head": False,
    }
    if isinstance(model, RecurrentConfig):
        return dataclasses.replace(model, **sizes)
    heads = max(1, hidden_size // model.head_size) if generator.num_heads is None else generator.num_heads
    return dataclasses.replace(model, **sizes, num_heads=heads, intermediate_size=generator.intermediate_size)


SHARED_NEGATIVES = 64
"""Number of random words that are drawn for a row of skip-gram."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StaticVectorsConfig:
    """Skip-gram with negative sampling (Mikolov et al. 2013, arXiv 1310.4546) and GloVe (Pennington et al. 2014)."""

    window: int = 5
    """Maximum number of words to either side of a word that count as its neighbours. Skip-gram draws the number for
    each word, from 1 to this; GloVe takes them all, each with the weight 1 / distance."""
    negatives: int = 5
    """Weight of the randomly drawn words against each neighbour. In the paper it is their number; here all neighbours
    in a row share the words that are drawn, with the same expectation."""
    subsampling: float = 0.0
    """Threshold t for frequent words: a word that is a share f of the text is left out with probability 1 - √(t / f).
    The paper uses 1e-5 for a billion words. 0: none is left out."""
    counts: str = ""
    """Directory of the counts of pairs that `bert-jax count` wrote, which GloVe needs. window must be that of the
    counts."""
    maximum_count: float = 100.0
    """Count from which all pairs have the same weight in GloVe (x_max in the paper)."""
    count_power: float = 0.75
    """Power of the count by which rarer pairs weigh less in GloVe (α in the paper)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillationConfig:
    """A teacher whose predictions and states pre-training imitates (Sanh et al. 2019), and the weight of each loss."""

    teacher: str = option("", resume="free", hosts_differ=True)
    """Model to learn from: any directory that init_from takes, with the vocabulary of the data and a head for masked
    words. A run resumes only with the same teacher, whose path may change. By default there is none."""
    temperature: float = 2.0
    """Divisor of the logits of both models before they are compared. The loss is multiplied by its square."""
    soft_weight: float = 5.0
    """Weight of the divergence of the student's predictions from the teacher's."""
    soft_positions: Literal["masked", "all"] = "masked"
    """Positions at which predictions are compared: the masked ones, or all tokens, as in the published code, which
    computes the logits of all of them."""
    cosine_weight: float = 1.0
    """Weight of 1 - cosine of the last states of student and teacher. Where their widths differ, these and all other
    states of the student are compared through one linear map, which is learned."""
    hidden_weight: float = 0.0
    """Weight of the squared difference of the embeddings and of the states after each layer (TinyBERT)."""
    attention_weight: float = 0.0
    """Weight of the squared difference of the attention probabilities of each layer, for equal numbers of heads
    (TinyBERT compares the scores before the softmax)."""
    layers: tuple[int, ...] = ()
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


def check_distillation(options: DistillationConfig) -> None:
    """Raise a UserError if a value is out of range, or no weight is above 0."""
    check_temperature("objective.distillation", options.temperature)
    for name, weight in options.weights.items():
        if not 0 <= weight < math.inf:
            raise UserError(f"objective.distillation.{name}={weight} must be 0 or a positive number")
    if not any(options.weights.values()):
        raise UserError(
            f"objective.distillation.teacher={options.teacher}, but all weights below objective.distillation are 0, so "
            "nothing is learned from it; give one a positive weight, such as soft_weight=5"
        )
    if options.layers and not (options.hidden_weight or options.attention_weight):
        raise UserError(
            f"objective.distillation.layers={','.join(map(str, options.layers))} says which layers hidden_weight and "
            "attention_weight compare, and both are 0; give one of them a positive weight, or leave it out"
        )


def check_temperature(group: str, temperature: float) -> None:
    """Raise a UserError unless the temperature is positive."""
    if not 0 < temperature < math.inf:
        raise UserError(f"{group}.temperature={temperature} must be positive; DistilBERT has 2")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskDistillationConfig:
    """A fine-tuned teacher whose scores are learned in addition to the labels of a task."""

    teacher: str = option("", resume="free", hosts_differ=True)
    """Fine-tuned model to learn from, for the same labels and with the vocabulary of init_from. A command resumes only
    with the same teacher, whose path may change. By default there is none."""
    temperature: float = 2.0
    """Divisor of the logits of both models before they are compared. The loss is multiplied by its square. Regression
    compares the numbers directly."""
    share: float = 0.5
    """Share of the teacher in the loss; the rest is the loss of the labels. 1: the labels are ignored."""


def check_task_distillation(options: TaskDistillationConfig, crf: bool) -> None:
    """Raise a UserError if a value is out of range, or the head has no scores to compare."""
    if not options.teacher:
        return
    need_cloud_storage(options.teacher)
    check_temperature("distillation", options.temperature)
    if not 0 < options.share <= 1:
        raise UserError(
            f"distillation.share={options.share} must be above 0, where nothing is learned from the teacher, and at "
            "most 1"
        )
    if crf:
        raise UserError(
            f"distillation.teacher={options.teacher} teaches the scores of single words, and a CRF learns those of "
            "whole sentences; leave --crf out"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    """The objective, and the weights of its losses in the sum that is minimized; those of the paper are 1."""

    name: Literal[
        "masked_words", "left_to_right", "two_directions", "replaced_tokens", "permutation", "skip_gram", "glove"
    ] = "masked_words"
    """Objective of the training. masked_words: BERT's masked language model, with the second objective of
    data.sentence_pairs. left_to_right: each token of a text, from those before it; the model needs
    direction=left_to_right. two_directions: from those before it and, by the other half of the states, from those after
    it, as in ELMo; the model needs layer=lstm. replaced_tokens: ELECTRA's discriminator, which tells the words of a
    generator, trained with it, from those of the text. permutation: some tokens, from those that come before them in
    a random order, as in XLNet; the model needs positions=xlnet. skip_gram: the words near each word, from its vector
    alone (word2vec); the model needs layer=none. glove: how often each two words are near each other, from their
    vectors; the model needs layer=none, and the data static_vectors.counts."""
    mlm_weight: float = 1.0
    """Weight of the loss of the masked words. 0: its head is not trained."""
    sentence_pair_weight: float = 1.0
    """Weight of the loss of the second objective, next sentences or sentence order, whichever data.sentence_pairs
    chooses. 0: its head is not trained."""
    span_boundary_weight: float = 0.0
    """Weight of the loss of the span boundary objective (SpanBERT): the words of each run of masked tokens, from the
    two tokens at its borders. 0: there is no such head. Use it with masking.unit=span."""
    next_word_weight: float = 1.0
    """Weight of the loss of the next words with name=two_directions."""
    previous_word_weight: float = 1.0
    """Weight of the loss of the previous words with name=two_directions."""
    longest_span: int = 5
    """Maximum number of adjacent tokens that are predicted together with name=permutation; the probability of n is
    proportional to 1/n. masking.rate is the share of all tokens."""
    replaced_tokens_weight: float = 50.0
    """Weight of the discriminator's loss with name=replaced_tokens; mlm_weight is then that of the generator's."""
    generator: GeneratorConfig = GeneratorConfig()
    """The generator of name=replaced_tokens."""
    distillation: DistillationConfig = DistillationConfig()
    """A teacher to learn from, in addition to the masked words, and the weights of what is learned from it."""
    mask_decoder: bool = False
    """Whether masked words, including a generator's, are predicted by DeBERTa's enhanced mask decoder: from two more
    passes of the last layer, whose queries begin with absolute positions. It needs model.disentangled.terms and is left
    out of exports."""
    static_vectors: StaticVectorsConfig = StaticVectorsConfig()
    """Windows and random words of skip_gram; windows and counts of glove."""

    @property
    def predicts_neighbours(self) -> bool:
        """Whether each word has one vector, from which its neighbours, or their counts, are predicted."""
        return self.name in ("skip_gram", "glove")

    @property
    def masks_words(self) -> bool:
        """Whether batches have masked words, which the model or its generator fills in."""
        return self.name in ("masked_words", "replaced_tokens")

    @property
    def predicts_all(self) -> bool:
        """Whether every token is predicted from those on one side of it, and none is masked."""
        return self.name in ("left_to_right", "two_directions")
