"""Compiled functions and initial parameters shared by all fine-tuning runs of a command, and task logits.

Logits come from one fine-tuned model or the mean of several.
"""

import dataclasses
import difflib
import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.traverse_util import unflatten_dict
from jax.sharding import Mesh

from bert_jax.config import ComputeConfig, EncoderConfig, HeadConfig
from bert_jax.config.finetuning import FinetuneConfig, PredictConfig
from bert_jax.config.heads import SingleVector, TokenVectors
from bert_jax.config.objective import BALANCED, TaskLossConfig
from bert_jax.config.tasks import RankingOptions, VectorOptions
from bert_jax.data.sequences import Features, TextFeatures, compared_tokens, evaluation_batches, padded, round_up
from bert_jax.devices import sharding
from bert_jax.devices.compilation import step_options
from bert_jax.devices.hardware import hardware, memory_advice
from bert_jax.devices.hosts import from_first
from bert_jax.devices.signals import StopSignals
from bert_jax.errors import UserError
from bert_jax.finetuning.lora import Adapters
from bert_jax.formats.opening import place
from bert_jax.formats.stored import PARTS, StoredModel, check_fit
from bert_jax.models.bert_parameters import ENCODER_PARTS, TASK_PARTS, bert_parameters
from bert_jax.models.lstm import check_features
from bert_jax.models.protocol import Model, Params
from bert_jax.models.task import BertForTask
from bert_jax.objectives.distillation import TaughtTaskObjective, Teacher
from bert_jax.objectives.objective import Objective, ReparametrizedObjective, WeightedObjective
from bert_jax.objectives.ranking import RankingObjective
from bert_jax.objectives.tasks import PLAIN, TaskLoss, TaskObjective, predictions
from bert_jax.objectives.vectors import VectorObjective
from bert_jax.parameters import Parameter, ParameterTable, entries, total_size
from bert_jax.pretrained.initialization import Report, initialize
from bert_jax.training.learner import Load, keeps_no_probabilities, local_keys, remat_policy
from bert_jax.training.metrics import Rates
from bert_jax.training.optimizers import (
    FrozenParts,
    Holding,
    chained,
    frozen_encoder,
    frozen_parts,
    learned_size,
    leaving,
    scale_by_depth,
    stopped,
    unfrozen_by_epoch,
)
from bert_jax.training.optimizers import optimizer as make_optimizer
from bert_jax.training.state import TrainState, abstract_state, created, initializer, state_shardings
from bert_jax.training.step import Program, make_forward_step, make_shared_train_step


@dataclasses.dataclass(frozen=True)
class Programs:
    """The model and its functions, compiled once per shape of batches, which all runs of a command share."""

    model: BertForTask
    mesh: Mesh
    abstract: TrainState
    fresh_state: Callable[..., Any]
    train_step: Program
    predict_step: Program
    longest_row: int
    """Most tokens of a row of several sequences: what the model can read, and its teacher."""
    teacher: str | None = None
    """Fingerprint of the teacher, if there is one."""
    loss: TaskLoss = PLAIN
    """What is trained."""
    adapters: Adapters | None = None
    """What learns in place of the encoder, if it is adapted with LoRA."""
    base: Params | None = None
    """Its encoder, on the devices."""
    frozen: FrozenParts = dataclasses.field(default_factory=dict)
    """What does not learn of the parameters in a state."""

    @property
    def learner(self) -> BertForTask | Adapters:
        """The model of the parameters in a state, which are the whole model unless it is adapted."""
        return self.adapters or self.model

    def whole(self, params: Params) -> Params:
        """Return the parameters of the model that those of a state make."""
        if self.adapters is None:
            return params
        return self._joined(params, self.base)

    @functools.cached_property
    def _joined(self) -> Callable[..., Params]:
        assert self.adapters is not None
        return jax.jit(self.adapters.whole, out_shardings=model_shardings(self.model, self.mesh))

    @property
    def learned(self) -> tuple[int, int]:
        """Number of values that learn, and of all values of the model."""
        return learned_size(self.frozen, self.learner.parameters), total_size(self.model.parameters)


def make_programs(
    config: FinetuneConfig,
    model: EncoderConfig,
    head: HeadConfig,
    mesh: Mesh,
    *,
    teacher: Teacher[BertForTask] | None = None,
    unread: tuple[int, ...] = (),
    loss: TaskLoss = PLAIN,
    stored: StoredModel | None = None,
    sequences: int = 1,
    factor: float = 1.0,
) -> Programs:
    """Return the model with the dropout of `config`, and the functions that are compiled for it.

    Args:
      unread: as `StoredModel.unread`.
      loss: what `task_loss` returns.
      sequences: most of an example, which are compared.
      stored: the model to start from, whose encoder is read if it is adapted; None: nothing is going to be computed.
      factor: of the loss of one of several tasks.

    Raises:
      UserError: an option does not fit this model.
    """
    if config.dropout is not None:
        rates = {name for name in ("hidden_dropout", "attention_dropout", "recurrent_dropout") if hasattr(model, name)}
        model = dataclasses.replace(model, **dict.fromkeys(rates, config.dropout))
    check_layers(config, model)
    task_model = BertForTask(model, head, _resolved(config, model, head, mesh, sequences), unread=unread)
    compared = isinstance(config.options, VectorOptions | RankingOptions)
    if isinstance(config.options, VectorOptions):
        task_model = dataclasses.replace(task_model, embedding=config.options.embedding)
    adapters = Adapters(task_model, config.lora) if config.lora.rank else None
    learner = task_model if adapters is None else cast(Model, adapters)
    unchanged = _frozen(config, model, learner.parameters, stored if adapters is None else None)
    optimizer = _optimizer(config, task_model, learner.parameters, unchanged)
    abstract = abstract_state(learner, optimizer, mesh)
    shardings = state_shardings(abstract)
    objective = _objective(config, task_model, loss, teacher)
    objective = objective if factor == 1 else WeightedObjective(objective, factor)
    frozen = () if teacher is None else (teacher.params,)
    base = None if adapters is None else _base(task_model, stored, mesh)
    if adapters is not None or unchanged:
        objective = _of_what_learns(objective, learner, adapters, unchanged)
        frozen = frozen if base is None else (base, *frozen)
    train_step = make_shared_train_step(
        objective,
        optimizer,
        mesh,
        shardings,
        clip_norm=config.optimizer.clip_norm,
        micro_batches=1 if compared else config.micro_batches,  # their objective divides the batch itself
        by_epoch=config.gradual_unfreezing,
        frozen=frozen,
    )
    predicted = functools.partial(predictions, task_model)
    readers = [model] if teacher is None else [model, teacher.model.config]
    return Programs(
        model=task_model,
        mesh=mesh,
        abstract=abstract,
        fresh_state=initializer(learner, optimizer, mesh),
        train_step=Program(train_step, frozen, step_options(config.compute, mesh)),
        predict_step=Program(make_forward_step(predicted, mesh, model_shardings(task_model, mesh))),
        longest_row=min(each.longest_sequence for each in readers),
        teacher=None if teacher is None else teacher.fingerprint,
        loss=loss,
        adapters=adapters,
        base=base,
        frozen=unchanged,
    )


def _objective(
    config: FinetuneConfig, model: BertForTask, loss: TaskLoss, teacher: Teacher[BertForTask] | None
) -> Objective:
    """Return what is minimized: the loss of the head, of the head and a teacher's scores, of vectors or of rankings."""
    if isinstance(config.options, RankingOptions):
        return RankingObjective(model, config.options.loss, config.micro_batches)
    if isinstance(config.options, VectorOptions):
        return VectorObjective(model, config.options, config.micro_batches)
    if teacher is not None:
        return TaughtTaskObjective(model, teacher.model, config.distillation, loss=loss)
    return TaskObjective(model, loss)


def task_loss(options: TaskLossConfig, head: HeadConfig, train: Features) -> TaskLoss:
    """Return the loss with a weight for each class, those of `balanced` from the labels of the training examples.

    Raises:
      UserError: a weight is for a class that there is not.
    """
    weights = ()
    if options.class_weights == (BALANCED,):
        weights = tuple(balanced_weights(head, np.asarray(train.labels)).tolist())
    elif given := options.weights():
        if unknown := next((name for name in given if name not in head.labels), None):
            close = difflib.get_close_matches(unknown, head.labels, n=1)
            raise UserError(
                f"loss.class_weights has {unknown!r:.60}, but the classes are {', '.join(head.labels):.200}"
                + (f"; perhaps {close[0]!r} is meant" if close else "")
            )
        weights = tuple(given.get(label, 1.0) for label in head.labels)
    return TaskLoss(weights, options.label_smoothing, options.focal_gamma)


def balanced_weights(head: HeadConfig, labels: np.ndarray) -> np.ndarray:
    """Return the weights by which all C classes count the same, float64 [C]; scikit-learn's `balanced`.

    With several labels per text it is, for each class, the number of texts without it by that of texts with it.

    Args:
      labels: of the training examples, as in `Features`; a class without any has the weight 1.
    """
    if head.kind == "multilabel":
        count = labels.sum(axis=0, dtype=np.float64)
        return np.where(count > 0, (len(labels) - count) / np.maximum(count, 1), 1.0)
    count = np.bincount(labels, minlength=len(head.labels))
    return np.where(count > 0, len(labels) / (len(head.labels) * np.maximum(count, 1)), 1.0)


def _frozen(
    config: FinetuneConfig, model: EncoderConfig, parameters: ParameterTable, stored: StoredModel | None
) -> FrozenParts:
    """Return what `config.freeze` means; UserError if some of it would stay random.

    `stored`: the model that all of `parameters` which are not random come from; None: this is not to be checked.
    """
    frozen, given = frozen_parts(config.freeze, model.num_layers, parameters), f"freeze={','.join(config.freeze)}"
    for path in frozen:
        if stored is not None and path not in stored.arrays:
            raise UserError(
                f"{given}: {stored.path} has no {path}, which would stay random; leave out {parameters[path].part}"
            )
    if frozen and (count := config.reinitialize_layers):
        top = f"layers.{model.num_layers - count}-{model.num_layers - 1}"
        parts = [top, *(part for part in ("pooler",) if f"{part}/kernel" in parameters)]
        fresh = frozen_parts(parts, model.num_layers, parameters)
        if any(np.any(frozen[path] & where) for path, where in fresh.items() if path in frozen):
            raise UserError(
                f"{given} would leave random what reinitialize_layers={count} makes random; freeze lower layers, and "
                "not the pooler, or leave one of them out"
            )
    return frozen


def _base(model: BertForTask, stored: StoredModel | None, mesh: Mesh) -> Params:
    """Return the encoder of `stored` on the devices or, without a model, a description of it."""
    if stored is not None:
        return place(stored.without(*PARTS), mesh)
    there = {path: entry for path, entry in model.parameters.items() if entry.part in ENCODER_PARTS}
    where = sharding.shardings(mesh, unflatten_dict(there, sep="/"))
    return jax.tree.map(
        lambda entry, where: jax.ShapeDtypeStruct(entry.shape, jnp.float32, sharding=where),
        unflatten_dict(there, sep="/"),
        where,
    )


def model_shardings(model: BertForTask, mesh: Mesh) -> Params:
    """Return the sharding of each parameter of the model."""
    return sharding.shardings(mesh, unflatten_dict(dict(model.parameters), sep="/"))


def _of_what_learns(
    objective: Objective, learner: Model, adapters: Adapters | None, frozen: FrozenParts
) -> ReparametrizedObjective:
    """Return the objective as one of the parameters that learn, with the encoder that is adapted, if it is, frozen."""

    def whole(params: Params, *base: Params) -> Params:
        params = stopped(frozen, params)
        return params if adapters is None else adapters.whole(params, *base)

    return ReparametrizedObjective(objective, learner, whole, 0 if adapters is None else 1)


def check_layers(config: FinetuneConfig, model: EncoderConfig) -> None:
    """Raise a UserError if an option that treats layers differently does not fit the model, whatever its head."""
    if config.reinitialize_layers > model.num_layers:
        raise UserError(
            f"reinitialize_layers={config.reinitialize_layers}, but the model has {model.num_layers} layers; give "
            f"{model.num_layers} at most"
        )
    if config.reinitialize_layers and model.sharing != "none":
        raise UserError(
            f"reinitialize_layers={config.reinitialize_layers} needs layers with parameters of their own, but in this "
            f"model they share them (model.sharing={model.sharing}); use reinitialize_layers=0"
        )
    check_features(model, HeadConfig(features=config.features))
    _by_depth(config, model.num_layers, bert_parameters(model, ()))  # which raises


def _optimizer(config: FinetuneConfig, model: BertForTask, parameters: ParameterTable, frozen: FrozenParts) -> Holding:
    """Return the direction of an update of `parameters`, with what the options do to some layers alone."""
    parts = [make_optimizer(config.optimizer, parameters), *_by_depth(config, model.config.num_layers, parameters)]
    if model.head.features and not model.head.train_encoder:
        parts.append(frozen_encoder(parameters))
    return leaving(chained(*parts), frozen) if frozen else chained(*parts)


def _by_depth(
    config: FinetuneConfig, num_layers: int, parameters: ParameterTable
) -> list[optax.GradientTransformation]:
    """Return what the options do to an update by the depth of its layer; UserError if the layers have none."""
    parts: list[optax.GradientTransformation] = []
    if config.layer_decay < 1:
        parts.append(scale_by_depth(config.layer_decay, num_layers, parameters))
    if config.gradual_unfreezing:
        parts.append(unfrozen_by_epoch(num_layers, parameters))
    return parts


def _resolved(
    config: FinetuneConfig, model: EncoderConfig, head: HeadConfig, mesh: Mesh, sequences: int
) -> ComputeConfig:
    """Return the options of the computation with the policy that compute.remat=auto leaves to the memory."""
    batch_size = max(config.grid_batch_sizes) if config.grid else config.batch_size
    length, parts = config.max_length, sharding.batch_parts(mesh)
    sequences = max(sequences, 2 if head.kind == "vectors" else 1)
    rows = max(1, sequences * batch_size // (parts * config.micro_batches))
    load = Load(
        memory_bytes=from_first(hardware(list(mesh.devices.flat)).memory_bytes),
        moments=config.optimizer.moments,
        sequence_length=length,
        predictions=0,
        rows=rows,
        split=mesh.shape["fsdp"] * mesh.shape["tensor"],
        probabilities=not keeps_no_probabilities(model, config.compute, mesh, rows * parts, length),
        local_keys=local_keys(model, config.compute, mesh, rows * parts, length),
    )
    return dataclasses.replace(
        config.compute, remat=remat_policy(BertForTask(model, head, config.compute), config.compute, load)
    )


def first_state(
    config: FinetuneConfig, stored: StoredModel, programs: Programs, seed: np.uint32
) -> tuple[TrainState, Report | None]:
    """Return the state at step 0, with the parameters of `stored` where it has them and fresh ones elsewhere.

    With random_weights, all are fresh and the report is None.
    """
    state = created(programs.fresh_state, seed)
    if config.random_weights:
        return state, None
    params, report = initialize(stored, programs.learner.parameters, stored.need_tokenizer(), state.params)
    if config.reinitialize_layers:
        kept = programs.model.config.num_layers - config.reinitialize_layers
        params = with_fresh_layers(params, state.params, kept, programs.model.parameters)
    return dataclasses.replace(state, params=params), report


def with_fresh_layers(
    params: dict[str, Any], fresh: dict[str, Any], kept: int, parameters: ParameterTable
) -> dict[str, Any]:
    """Return `params` with the pooler of `fresh` and its layers from number `kept` on (Zhang et al. 2021)."""

    def mixed(parameter: Parameter, old: jax.Array, new: jax.Array) -> jax.Array:
        axis = parameter.layer_axis
        if axis is None:
            return new if parameter.part == "pooler" else old
        top = parameter.lowest_layer + np.arange(old.shape[axis]) >= kept
        top = np.expand_dims(top, [other for other in range(old.ndim) if other != axis])
        return jax.jit(lambda old, new: jnp.where(top, new, old), out_shardings=old.sharding)(old, new)

    return jax.tree.map(mixed, entries(parameters, params), params, fresh)


def fitting_head(stored: StoredModel, head: HeadConfig) -> tuple[StoredModel, str]:
    """Return `stored` without its task head unless that fits, and a note for the console.

    A head fits if it has the same parts as `head`, and the same classes in the same order.
    """
    if stored.head is None:
        return stored, ""
    have, want = ((h.kind, h.classes, h.crf, h.features, h.lstm_size if h.features else 0) for h in (stored.head, head))
    if have == want:
        return stored, f"the {head.kind} head of {stored.path} fits this task and is kept"
    needed = (
        "none: the encoder is taken"
        if head.kind == "vectors"
        else f"{_described(head)}: the encoder is taken, the head starts fresh"
    )
    return dataclasses.replace(stored.without(*TASK_PARTS), head=None), (
        f"{stored.path} has a head for {_described(stored.head)}, this task needs {needed}"
    )


def _described(head: HeadConfig) -> str:
    labels = f" with {len(head.labels)} labels ({', '.join(head.labels)})" if head.labels else ""
    features = f", a BiLSTM of width {head.lstm_size} on {head.features}" if head.features else ""
    return f"{head.kind}{labels}{', a CRF' * head.crf}{features}"


SMALLER = ("a smaller --batch_size (in fine-tuning, --eval_batch_size)",)


def predict_logits(
    predict_step: Program,
    params: Any,
    features: Features,
    head: HeadConfig,
    batch_size: int,
    mesh: Mesh,
    signals: StopSignals | None = None,
    rates: Rates | None = None,
) -> list[np.ndarray]:
    """Return the scores of every sequence, in order and without padding, float32.

    Args:
      predict_step: (params, batch) → `predictions`; compiled once per rung of the ladder of lengths.
      rates: paused while it is compiled.

    Returns:
      classification and multilabel [C]; regression []; choice [K]; span [L, 2]; tagging [L, C]; vectors [K, H], of
      tokens K arrays [L, D], and of words a sparse matrix [K, V].

    Raises:
      Stopped: raised by `signals` before one of the batches.
    """
    rows = round_up(batch_size, sharding.batch_parts(mesh))
    mine = sharding.host_rows(mesh, rows)
    inputs = ("input_ids", "token_type_ids", "attention_mask", *(("labels",) if head.crf else ()))
    results: list[Any] = [None] * len(features)

    def collect(indices: np.ndarray, scores: jax.Array) -> None:
        for index, row in zip(indices, np.asarray(scores), strict=False):
            results[index] = _without_padding(head, features, index, row)

    pending: tuple[np.ndarray, jax.Array] | None = None
    with memory_advice(f"a batch of {rows} sequences to predict", SMALLER):
        for indices in evaluation_batches(features, batch_size):
            batch = padded(features, indices, rows)
            batch = sharding.to_global(mesh, {name: batch[name][mine] for name in inputs}, rows)
            if signals is not None:
                signals.check()
                predict_step.prepare(params, batch, signals=signals, rates=rates)
            scores = predict_step(params, batch)
            if pending is not None:  # fetched one batch late, so that the device never waits for Python
                collect(*pending)
            pending = indices, scores
        if pending is not None:
            collect(*pending)
    return results


def _without_padding(head: HeadConfig, features: Features, index: int, row: np.ndarray) -> Any:
    """Return what there is of the scores of a sequence, or of the vectors of an example."""
    if head.kind in ("span", "tagging"):
        return row[: len(features.input_ids[index])]
    if not isinstance(features, TextFeatures) or isinstance(features.form, SingleVector):
        return row
    if isinstance(features.form, TokenVectors) and features.marks is not None:
        return compared_tokens(row, features.marks[index])
    from scipy import sparse

    return sparse.csr_matrix(row)


def score_shape(head: HeadConfig, features: Features, number: int) -> tuple[int, ...]:
    """Return the shape of the scores that `predict_logits` gives a sequence, of a head with parameters."""
    if head.kind in ("span", "tagging"):
        return len(features.input_ids[number]), head.outputs
    if head.kind == "choice":
        return (len(features.input_ids[number]),)
    return () if head.kind == "regression" else (head.outputs,)


def average(head: HeadConfig, predictions: Sequence[list[np.ndarray]]) -> list[np.ndarray]:
    """Return the scores of an ensemble: log of the mean probability of a class or candidate; for others the mean score.

    Where a text may have several labels, it is the logit of the mean probability of each.

    Span scores are averaged, not probabilities: scores are comparable across the windows of a question, and the
    threshold was tuned on them. For a CRF, whose scores are those of the best path, each word gets the fraction of the
    models that vote for a label.
    """
    if len(predictions) == 1:
        return predictions[0]
    if head.kind in ("regression", "span") or head.crf:
        return [np.mean(rows, axis=0) for rows in zip(*predictions, strict=True)]
    if head.kind == "multilabel":  # log of the sum of p, less that of 1 - p
        rows = np.asarray(predictions)
        present, absent = (np.logaddexp.reduce(-np.logaddexp(0, sign * rows), axis=0) for sign in (-1, 1))
        return list(present - absent)
    members = [
        [row - np.logaddexp.reduce(row, axis=-1, keepdims=True) for row in rows]
        for rows in zip(*predictions, strict=True)
    ]
    return [np.logaddexp.reduce(rows, axis=0) - np.float32(np.log(len(rows))) for rows in members]


def member_logits(stored: StoredModel, features: Features, config: PredictConfig, mesh: Mesh) -> list[np.ndarray]:
    """Return what `predict_logits` does for a stored model."""
    check_fit(stored)
    params = place(stored, mesh)
    model = BertForTask(stored.model, stored.need_head(), config.compute, unread=stored.unread)
    step = Program(
        make_forward_step(functools.partial(predictions, model), mesh, jax.tree.map(lambda leaf: leaf.sharding, params))
    )
    return predict_logits(step, params, features, stored.need_head(), config.batch_size, mesh)
