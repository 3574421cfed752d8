"""Distillation in pre-training (Sanh et al. 2019): BERT's objective, and what a teacher predicts and computes."""

import dataclasses
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp

from bert_jax.config import ModelConfig, ObjectiveConfig
from bert_jax.config.example_choices import SentencePairs
from bert_jax.config.teachers import DistillationConfig
from bert_jax.errors import UserError
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.chosen_positions import gather_positions
from bert_jax.models.packed_texts import PackedTexts
from bert_jax.models.protocol import EncoderOutput, Params, encoder_inputs
from bert_jax.models.task import BertForTask
from bert_jax.objectives import masked_language_model, soft_targets, state_matching
from bert_jax.objectives.bert_pretraining import MASKED_WORDS, PretrainingObjective
from bert_jax.objectives.objective import Batch, Sums, Term

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
    weights: ObjectiveConfig
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
        """What is learned without the teacher."""
        return PretrainingObjective(self.model, self.weights, self.epsilon, self.sentence_pairs)

    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        tokens = jnp.sum(batch["attention_mask"]).astype(jnp.float32)
        possible = self._labelled.denominators(batch) | {
            SOFT_TARGETS.name: jnp.sum(self._compared(batch)[1]),
            COSINE.name: tokens,
            HIDDEN.name: tokens,
            ATTENTION.name: jnp.sum(state_matching.token_pairs(batch)),
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
            found[COSINE.name] = state_matching.cosine_sums(ours, teacher.last_hidden_state, tokens)
        if options.hidden_weight:
            found[HIDDEN.name] = self._hidden_sums(params, student, teacher, tokens)
        if options.attention_weight:
            found[ATTENTION.name] = self._attention_sums(student, teacher, state_matching.token_pairs(batch))
        return found

    def _predictions(
        self, params: Any, batch: Batch, student: EncoderOutput, teacher: EncoderOutput
    ) -> dict[str, Sums]:
        if not self.options.soft_weight:
            return {MASKED_WORDS.name: masked_language_model.model_sums(self.model, params, batch, student)}
        words = self.model.config.need_vocab_size()
        at, weights = self._compared(batch)
        logits = self.model.word_logits(params, at, "mlm", student)[:, :, :words]
        theirs = self.teacher.word_logits(self.teacher_params or {}, at, "mlm", teacher)[:, :, :words]
        soft = soft_targets.loss_sums(logits, theirs, weights, self.options.temperature)
        if self.options.soft_positions == "all":
            logits = gather_positions(logits, batch["masked_positions"])
        hard = masked_language_model.loss_sums(logits, batch["masked_ids"], batch["masked_weights"])
        return {MASKED_WORDS.name: hard, SOFT_TARGETS.name: soft}

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
        return state_matching.hidden_sums(self.model.projected(params, student.hidden_states or ()), chosen, tokens)

    def _attention_sums(self, student: EncoderOutput, teacher: EncoderOutput, pairs: jax.Array) -> Sums:
        maps, theirs = student.attentions or (), teacher.attentions or ()
        return state_matching.attention_sums(maps, [theirs[layer] for layer in self._layers], pairs)

    @property
    def _layers(self) -> tuple[int, ...]:
        return compared_layers(self.options, self.model.config, self.teacher.config)


def compared_layers(options: DistillationConfig, student: ModelConfig, teacher: ModelConfig) -> tuple[int, ...]:
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
