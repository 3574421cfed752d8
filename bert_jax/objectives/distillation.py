"""Distillation: learning from a teacher's predictions and states, in pre-training and in fine-tuning.

Pre-training (Sanh et al. 2019) has BERT's objective and, as further terms, the teacher's softened distributions
(Hinton et al. 2015), cosines of states, and squared differences of states and attention, layer by layer. Fine-tuning
has the labels of the task, and the scores of a fine-tuned teacher for the same examples.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp

from bert_jax.config import EncoderConfig, MaskedWords
from bert_jax.config.objective import DistillationConfig, TaskDistillationConfig
from bert_jax.config.pretraining import SentencePairs
from bert_jax.errors import UserError
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.layers import PackedTexts, gather_positions
from bert_jax.models.protocol import EncoderOutput, Params, encoder_inputs
from bert_jax.models.task import BertForTask, without_edges
from bert_jax.objectives import masked_words, tasks
from bert_jax.objectives.masked_words import MASKED_WORDS, PretrainingObjective
from bert_jax.objectives.objective import Batch, Sums, Term
from bert_jax.objectives.tasks import PLAIN, TaskLoss, TaskObjective


def loss_sums(logits: jax.Array, teacher_logits: jax.Array, weights: jax.Array, temperature: float) -> Sums:
    """Return sums over the batch of T² · KL(teacher ‖ student), in nats, of distributions softmax(logits / T).

    The factor T² keeps the size of the gradient, which softening divides by about as much.

    Args:
      logits: [..., C], of the student.
      teacher_logits: as `logits`.
      weights: float32 [...], 0 where nothing is predicted.
      temperature: T.
    """
    ours, theirs = (jax.nn.log_softmax(each.astype(jnp.float32) / temperature) for each in (logits, teacher_logits))
    divergence = jnp.sum(jnp.exp(theirs) * (theirs - ours), axis=-1)
    return Sums(temperature**2 * jnp.sum(weights * divergence), jnp.sum(weights))


LEAST_SQUARE = 1e-12  # added to squared norms, as in torch's CosineEmbeddingLoss


def cosine_sums(states: jax.Array, teacher_states: jax.Array, weights: jax.Array) -> Sums:
    """Return sums over tokens of 1 - cosine of states [B, L, H]; weights [B, L] are 0 for padding."""
    ours, theirs = states.astype(jnp.float32), teacher_states.astype(jnp.float32)
    squares = (jnp.sum(jnp.square(each), axis=-1) + LEAST_SQUARE for each in (ours, theirs))
    cosines = jnp.sum(ours * theirs, axis=-1) * jax.lax.rsqrt(next(squares) * next(squares))
    return Sums(jnp.sum(weights * (1 - cosines)), jnp.sum(weights))


def hidden_sums(states: Sequence[jax.Array], teacher_states: Sequence[jax.Array], weights: jax.Array) -> Sums:
    """Return sums over tokens of the squared difference of states [B, L, H], a mean over features and layers."""
    total = jnp.zeros((), jnp.float32)
    for ours, theirs in zip(states, teacher_states, strict=True):
        squares = jnp.square(ours.astype(jnp.float32) - theirs.astype(jnp.float32))
        total += jnp.sum(weights * jnp.mean(squares, axis=-1))
    return Sums(total / len(states), jnp.sum(weights))


def attention_sums(maps: Sequence[jax.Array], teacher_maps: Sequence[jax.Array], pairs: jax.Array) -> Sums:
    """Return sums over pairs of tokens of the squared difference of probabilities [B, A, L, L].

    It is a mean over heads and layers; `pairs` float32 [B, L, L] has 1 for tokens of one text.
    """
    total = jnp.zeros((), jnp.float32)
    for ours, theirs in zip(maps, teacher_maps, strict=True):
        total += jnp.sum(pairs * jnp.mean(jnp.square(ours - theirs), axis=1))
    return Sums(total / len(maps), jnp.sum(pairs))


def token_pairs(batch: Batch) -> jax.Array:
    """Return float32 [B, L, L]: 1 where both positions are tokens of one text."""
    texts = PackedTexts.of(batch)
    ids = batch["attention_mask"] if texts is None else texts.ids
    return ((ids[:, :, None] == ids[:, None, :]) & (ids[:, :, None] > 0)).astype(jnp.float32)


SOFT_TARGETS = Term(name="soft_targets", label="KL", title="Teacher's predictions", unit="nats", panels=("loss",))
COSINE = Term(name="cosine", label="cosine", title="Teacher's last states", unit="1 - cosine", panels=("loss",))
HIDDEN = Term(name="hidden", title="Teacher's states", unit="mean square", panels=("loss",))
ATTENTION = Term(name="attention", title="Teacher's attention", unit="mean square", panels=("loss",))


Network = TypeVar("Network", BertForPreTraining, BertForTask)


@dataclasses.dataclass(frozen=True)
class Teacher(Generic[Network]):
    """A trained model that another one imitates."""

    model: Network
    params: Params
    """On the devices, split as the model's table says."""
    fingerprint: str
    """Fingerprint of the parameters, by which a run recognizes its teacher."""


@dataclasses.dataclass(frozen=True)
class DistillationObjective:
    """The terms of `PretrainingObjective`, and those of DistillationConfig that have a weight (see `Objective`)."""

    model: BertForPreTraining
    """The student; where its states are compared with wider or narrower ones, it has the map to them."""
    teacher: BertForPreTraining
    weights: MaskedWords
    epsilon: float = 0.0
    sentence_pairs: SentencePairs = "none"
    """Both are the same as in `PretrainingObjective`."""
    teacher_params: Params | None = None
    """Parameters of the teacher, which are never trained; see `reading`."""

    def reading(self, teacher_params: Params) -> "DistillationObjective":
        """Return the objective with the arrays of the teacher, inside the function that is compiled to take them."""
        return dataclasses.replace(self, teacher_params=teacher_params)

    @property
    def options(self) -> DistillationConfig:
        return self.weights.distillation

    @property
    def terms(self) -> tuple[Term, ...]:
        weights = self.options.weights
        of_teacher = (
            dataclasses.replace(term, weight=weights[name])
            for name, term in (
                ("soft_weight", SOFT_TARGETS),
                ("cosine_weight", COSINE),
                ("hidden_weight", HIDDEN),
                ("attention_weight", ATTENTION),
            )
        )
        return (*self._labelled.terms, *(term for term in of_teacher if term.weight))

    @property
    def _labelled(self) -> PretrainingObjective:
        """The terms that are learned without the teacher."""
        return PretrainingObjective(self.model, self.weights, self.epsilon, self.sentence_pairs)

    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        tokens = jnp.sum(batch["attention_mask"]).astype(jnp.float32)
        possible = self._labelled.denominators(batch) | {
            SOFT_TARGETS.name: jnp.sum(self._compared(batch)[1]),
            COSINE.name: tokens,
            HIDDEN.name: tokens,
            ATTENTION.name: jnp.sum(token_pairs(batch)),
        }
        return {term.name: possible[term.name] for term in self.terms if term.name in possible}

    def sums(self, params: Any, batch: Batch, dropout_key: jax.Array | None = None) -> dict[str, Sums]:
        assert self.teacher_params is not None, "`reading` comes first"
        options, texts = self.options, PackedTexts.of(batch)
        inputs, collect = encoder_inputs(batch), bool(options.hidden_weight or options.attention_weight)
        student = self.model.encode(params, *inputs, dropout_key, collect, texts)
        teacher = self.teacher.encode(self.teacher_params, *inputs, None, collect, texts)
        tokens = batch["attention_mask"].astype(jnp.float32)
        found = self._predictions(params, batch, student, teacher)
        found |= self._labelled.sums_beside_words(params, batch, student)
        if options.cosine_weight:
            (ours,) = self.model.projected(params, [student.last_hidden_state])
            found[COSINE.name] = cosine_sums(ours, teacher.last_hidden_state, tokens)
        if options.hidden_weight:
            found[HIDDEN.name] = self._hidden_sums(params, student, teacher, tokens)
        if options.attention_weight:
            found[ATTENTION.name] = self._attention_sums(student, teacher, token_pairs(batch))
        return found

    def _predictions(
        self, params: Any, batch: Batch, student: EncoderOutput, teacher: EncoderOutput
    ) -> dict[str, Sums]:
        z_loss = self.weights.z_loss_weight
        if not self.options.soft_weight:
            return masked_words.sums_with_z_loss(self.model, params, batch, student, MASKED_WORDS, z_loss)
        words = self.model.config.need_vocab_size()
        at, weights = self._compared(batch)
        logits = self.model.word_logits(params, at, "mlm", student)[:, :, :words]
        theirs = self.teacher.word_logits(self.teacher_params or {}, at, "mlm", teacher)[:, :, :words]
        soft = loss_sums(logits, theirs, weights, self.options.temperature)
        if self.options.soft_positions == "all":
            logits = gather_positions(logits, batch["masked_positions"])
        hard, masked = masked_words.masked_word_losses(logits, batch["masked_ids"]), batch["masked_weights"]
        found = {MASKED_WORDS.name: masked_words.weighted_sums(hard, masked), SOFT_TARGETS.name: soft}
        return found | (masked_words.z_loss_sums(hard, masked) if z_loss else {})

    def _compared(self, batch: Batch) -> tuple[Batch, jax.Array]:
        """Return a batch whose masked_positions [B, M] are where predictions are compared, and the weight of each."""
        if self.options.soft_positions == "masked":
            return batch, batch["masked_weights"]
        tokens = batch["attention_mask"]
        everywhere = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32)[None], tokens.shape)
        return batch | {"masked_positions": everywhere}, tokens.astype(jnp.float32)

    def _hidden_sums(self, params: Any, student: EncoderOutput, teacher: EncoderOutput, tokens: jax.Array) -> Sums:
        theirs = list(teacher.hidden_states or ())
        chosen = [theirs[0], *(theirs[1 + layer] for layer in self._layers)]
        return hidden_sums(self.model.projected(params, student.hidden_states or ()), chosen, tokens)

    def _attention_sums(self, student: EncoderOutput, teacher: EncoderOutput, pairs: jax.Array) -> Sums:
        maps, theirs = student.attentions or (), teacher.attentions or ()
        return attention_sums(maps, [theirs[layer] for layer in self._layers], pairs)

    @property
    def _layers(self) -> tuple[int, ...]:
        return compared_layers(self.options, self.model.config, self.teacher.config)


def compared_layers(options: DistillationConfig, student: EncoderConfig, teacher: EncoderConfig) -> tuple[int, ...]:
    """Return the layer of the teacher, from 0, that each layer of the student is compared with.

    Raises:
      UserError: the options name others than there are, or the default cannot spread them evenly.
    """
    ours, theirs = student.num_layers, teacher.num_layers
    if not options.layers and theirs % ours == 0:
        return tuple(range(theirs // ours - 1, theirs, theirs // ours))
    if len(options.layers) == ours and all(0 <= layer < theirs for layer in options.layers):
        return options.layers
    raise UserError(
        f"objective.distillation.layers={','.join(map(str, options.layers)) or '()'} must name a layer of the teacher, "
        f"0 to {theirs - 1}, for each of the {ours} layers of the student"
    )


LABELS = Term(name="labels")
TEACHER = Term(name="teacher", title="Teacher's scores", panels=("loss",))


@dataclasses.dataclass(frozen=True)
class TaughtTaskObjective:
    """The loss of the labels and that of the teacher's scores, by their shares (see `Objective`)."""

    model: BertForTask
    teacher: BertForTask
    options: TaskDistillationConfig
    teacher_params: Params | None = None
    """Parameters of the teacher, which are never trained; see `reading`."""
    loss: TaskLoss = PLAIN
    """That of the labels."""

    def reading(self, teacher_params: Params) -> "TaughtTaskObjective":
        """Return the objective with the arrays of the teacher, inside the function that is compiled to take them."""
        return dataclasses.replace(self, teacher_params=teacher_params)

    @property
    def terms(self) -> tuple[Term, ...]:
        share = self.options.share
        return dataclasses.replace(LABELS, weight=1 - share), dataclasses.replace(TEACHER, weight=share)

    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        (of_labels,) = TaskObjective(self.model, self.loss).denominators(batch).values()
        return {LABELS.name: of_labels, TEACHER.name: jnp.sum(self._weights(batch))}

    def sums(self, params: Any, batch: Batch, dropout_key: jax.Array | None = None) -> dict[str, Sums]:
        assert self.teacher_params is not None, "`reading` comes first"
        scores = self.model.apply(params, batch, dropout_key)
        theirs = self.teacher.apply(self.teacher_params, batch)
        labels = TaskObjective(self.model, self.loss).sums_of_scores(params, batch, scores)
        return {LABELS.name: labels, TEACHER.name: self._teacher_sums(batch, scores, theirs)}

    def _teacher_sums(self, batch: Batch, scores: jax.Array, theirs: jax.Array) -> Sums:
        weights, kind = self._weights(batch), self.model.head.kind
        if kind == "regression":
            return tasks.regression_sums(scores, theirs, weights)
        if kind == "multilabel":  # two probabilities for each class, that of the text having it and that of not
            scores, theirs = (jnp.stack([each, jnp.zeros_like(each)], axis=-1) for each in (scores, theirs))
            weights = jnp.broadcast_to(weights[..., None] / scores.shape[-2], scores.shape[:-1])
        if kind == "span":  # a choice among the positions, once for the start and once for the end
            mask = batch["attention_mask"][:, :, None] > 0
            scores, theirs = (jnp.where(mask, each, tasks.OUTSIDE).swapaxes(1, 2) for each in (scores, theirs))
        return loss_sums(scores, theirs, weights, self.options.temperature)

    def _weights(self, batch: Batch) -> jax.Array:
        """Return the weight of each comparison: of a sequence, of both ends of an answer, or of a word."""
        weights, kind = batch["weights"], self.model.head.kind
        if kind == "span":
            return jnp.broadcast_to(0.5 * weights[:, None], (*weights.shape, 2))
        if kind == "tagging":
            classes, *_ = without_edges(batch["labels"])
            return tasks.word_weights(classes, weights)
        return weights
