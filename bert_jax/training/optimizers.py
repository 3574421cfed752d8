"""Optimizers as update directions, learning rates as functions of the global step, and averaged weights.

The step multiplies the direction by −learning_rate(step), so the schedule depends on the global step alone: resetting
or loading moments never shifts it. The model's table says which parameters decay and which have one array per layer.
Where a gradient is not finite, an optimizer keeps its state. The moving average is kept, evaluated and saved in
addition to the weights.

Muon (Jordan et al. 2024) is momentum whose singular values are all made about 1, for the matrices of the layers. Each
layer of a stacked kernel is a matrix of its own, and the heads of a kernel are columns (or rows) of one matrix. Word,
position and segment tables, heads, norms and biases follow Adam, as in the published code.

A schedule begins with the first phase and with every phase that says `schedule="restart"`, and ends where the next
one begins. Inside it, a phase scales the common shape by its own peak, so it may continue the line at a different
height. In fine-tuning, rates can fall from the top layer to the embeddings (Howard & Ruder 2018; Zhang et al. 2021),
and layers can be unfrozen one per epoch.
"""

import dataclasses
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from bert_jax.config import OptimizerConfig, Phase, ScheduleConfig
from bert_jax.errors import UserError
from bert_jax.models.bert_parameters import ENCODER_PARTS, TASK_PARTS
from bert_jax.parameters import Parameter, ParameterTable, entries


class Holding(optax.GradientTransformationExtraArgs):
    """An optimizer whose `update` takes `finite`, a boolean [] that is True unless given.

    Where it is false, the state returned is the one passed in; the updates are then worth nothing.
    """


def holding(optimizer: optax.GradientTransformation) -> Holding:
    """Return the optimizer as one that holds its state: itself if it does, else chosen after its update.

    XLA's compiler for CPUs computes what an update and a choice after it both read a second time, and copies the old
    state. An optimizer that chooses its moments before it reads them is spared both.
    """
    if isinstance(optimizer, Holding):
        return optimizer
    update_of = optax.with_extra_args_support(optimizer).update

    def update(updates: Any, state: Any, params: Any = None, *, finite: jax.Array | bool = True, **given: Any):
        updates, new = update_of(updates, state, params, **given)
        return updates, held(finite, new, state)

    return Holding(optimizer.init, update)


Schedule = Callable[[jax.Array], jax.Array | float]
"""Maps the step, int32 [], to the learning rate of its update."""


def given_optimizer(optimizer: optax.GradientTransformation, parameters: ParameterTable) -> Holding:
    """Return an optimizer from outside as one that holds its state, which has its own arrays.

    Random keys are kept as their numbers, as checkpoints need them. Its updates are multiplied by the factor of each
    array's rate, weight decay included.

    Raises:
      UserError: it is not a transformation of optax.
    """
    if not isinstance(optimizer, optax.GradientTransformation):
        raise UserError(
            f"optimizer={optimizer!r:.80} is no optax.GradientTransformation; give one without a learning rate, such "
            "as optax.scale_by_lion()"
        )

    def update(updates: Any, state: Any, params: Any = None, **given: Any) -> tuple[Any, Any]:
        with_keys = lambda made, leaf: jax.random.wrap_key_data(leaf) if _is_key(made) else leaf
        state = jax.tree.map(with_keys, jax.eval_shape(optimizer.init, params), state)
        updates, new = holding(optimizer).update(updates, state, params, **given)
        return at_rates(parameters, updates), _as_numbers(new)

    return Holding(lambda params: _as_numbers(optimizer.init(_copied(params))), update)


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _as_numbers(state: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.random.key_data(leaf) if _is_key(leaf) else leaf, state)


def given_schedule(schedule: Schedule) -> Callable[[jax.Array], jax.Array]:
    """Return a schedule from outside as one of float32.

    Raises:
      UserError: it does not return a number.
    """
    as_float32 = lambda step: jnp.asarray(schedule(step), jnp.float32)
    found = jax.eval_shape(as_float32, jax.ShapeDtypeStruct((), jnp.int32))
    if found.shape:
        raise UserError(f"schedule returns an array {list(found.shape)} for a step; it must return the learning rate")
    return as_float32


def chained(*parts: optax.GradientTransformation) -> Holding:
    """Return the parts as one optimizer, in which each holds its state."""
    return Holding(*optax.chain(*map(holding, parts)))


def held(finite: jax.Array | bool, new: Any, old: Any) -> Any:
    """Return the tree `new` where `finite` is true, else `old`."""
    return jax.tree.map(lambda new, old: jnp.where(finite, new, old), new, old)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AveragedState:
    """State of an optimizer with the average of the parameters."""

    optimizer: optax.OptState
    average: dict[str, Any]
    decay: float = dataclasses.field(metadata={"static": True})


def averaged(optimizer: optax.GradientTransformation, decay: float) -> optax.GradientTransformation:
    """Return the optimizer with the average in its state; 0 changes nothing. `moved` takes the average along."""
    if not decay:
        return optimizer

    def init(params: Any) -> Any:
        return AveragedState(optimizer.init(params), _copied(params), decay)

    def update(updates: Any, state: Any, params: Any = None, **given: Any) -> tuple[Any, Any]:
        updates, inner = holding(optimizer).update(updates, state.optimizer, params, **given)
        return updates, dataclasses.replace(state, optimizer=inner)

    return Holding(init, update)


def moved(
    state: optax.OptState, params: dict[str, Any], step: jax.Array, finite: jax.Array | bool = True
) -> optax.OptState:
    """Return the state after the update from `step`, which gave `params`: average ← d · average + (1 − d) · params.

    d is min(decay, (1 + step) / (10 + step)), as in TensorFlow's ExponentialMovingAverage, so that the average forgets
    the parameters of the start. Unless `finite`, the average stays. A state without one is returned as it is.
    """
    if not isinstance(state, AveragedState):
        return state
    step = step.astype(jnp.float32)
    decay = jnp.minimum(jnp.float32(state.decay), (1 + step) / (10 + step))
    average = jax.tree.map(lambda mean, value: mean + (1 - decay) * (value - mean), state.average, params)
    return dataclasses.replace(state, average=held(finite, average, state.average))


def restarted(state: optax.OptState, params: dict[str, Any]) -> optax.OptState:
    """Return the state of a run that starts from `params`."""
    return dataclasses.replace(state, average=_copied(params)) if isinstance(state, AveragedState) else state


def with_average_of(fresh: optax.OptState, state: optax.OptState) -> optax.OptState:
    """Return the state `fresh` with the average of `state`, which continues when moments are reset."""
    if not (isinstance(state, AveragedState) and isinstance(fresh, AveragedState)):
        return fresh
    return dataclasses.replace(fresh, average=state.average)


def average_of(state: optax.OptState) -> dict[str, Any] | None:
    """Return the average of the parameters; None if none is kept."""
    return state.average if isinstance(state, AveragedState) else None


def _copied(params: dict[str, Any]) -> dict[str, Any]:
    """Return separate arrays, since a step gives away the memory of both."""
    return jax.tree.map(jnp.copy, params)


Polynomials = tuple[tuple[float, float, float], ...]
"""Coefficients of x, x³ and x⁵ of the polynomials that are applied to the singular values, one after the other."""
NEWTON_SCHULZ: Polynomials = ((3.4445, -4.7750, 2.0315),) * 5
"""That of the published code. They take values above about 0.01 to between 0.7 and 1.2, rather than to 1."""
POLAR_EXPRESS: Polynomials = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
)
"""The odd quintics whose largest error is the least for values from 0.001 to 1, each for where those before it end
(Amsel et al. 2025, algorithm 1). Of an interval that begins below 0.0241 of its end, only that part counts."""
SAFETY = 1.01
"""What the arguments of those are divided by, as in the paper, since rounding may take them beyond their intervals."""
ORTHOGONALIZATIONS: dict[str, Polynomials] = {
    "newton_schulz": NEWTON_SCHULZ,
    "polar_express": tuple((a / SAFETY, b / SAFETY**3, c / SAFETY**5) for a, b, c in POLAR_EXPRESS),
}
FIRST_MOMENTUM = 0.85
"""Decay rate of the momentum before its warm-up."""
UPDATE_SIZE = 0.2
"""Root mean square of an update without the learning rate, about that of Adam (Liu et al. 2025, arXiv 2502.16982), so
that both halves share one learning rate and weight decay. The published code multiplies by √max(1, outputs/inputs)
instead, and gives matrices a learning rate of their own."""


def scale_by_muon(config: OptimizerConfig, parameters: ParameterTable) -> optax.GradientTransformation:
    """Return orthogonalized Nesterov momentum for `Parameter.matrix`, and the direction of Adam for all others."""
    polynomials, warmup = ORTHOGONALIZATIONS[config.orthogonalization], config.momentum_warmup_steps

    def orthogonal(entry: Parameter, momentum: jax.Array) -> jax.Array:
        assert entry.matrix is not None
        inputs, outputs = entry.matrix
        matrices = orthogonalized(momentum.reshape(-1, inputs, outputs), polynomials)
        return matrices.reshape(momentum.shape) * (UPDATE_SIZE * max(inputs, outputs) ** 0.5)

    def kinds(tree: Any) -> dict[str, Any]:
        return jax.tree.map(lambda entry: "other" if entry.matrix is None else "matrix", entries(parameters, tree))

    orthogonalize = optax.stateless(lambda updates, _: jax.tree.map(orthogonal, entries(parameters, updates), updates))
    return optax.partition(
        {
            "matrix": optax.chain(
                warmed_momentum(config.momentum, warmup) if warmup else optax.trace(config.momentum, nesterov=True),
                orthogonalize,
            ),
            "other": optax.scale_by_adam(config.beta1, config.beta2, config.epsilon),
        },
        kinds,
    )


class WarmedMomentumState(NamedTuple):
    updates: ArrayLike
    trace: optax.Updates


def warmed_momentum(momentum: float, warmup: int) -> optax.GradientTransformation:
    """Return Nesterov momentum whose decay rate rises in a line from FIRST_MOMENTUM over `warmup` updates.

    The average is one of weights that add up to 1, as in the published code.
    """

    def init(params: Any) -> WarmedMomentumState:
        return WarmedMomentumState(jnp.zeros([], jnp.int32), optax.tree.zeros_like(params))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, WarmedMomentumState]:
        del params
        first = min(FIRST_MOMENTUM, momentum)
        rate = first + (momentum - first) * jnp.minimum(_ratio(state.updates, warmup), 1.0)
        averaged = lambda old, new: new + rate * (old - new)
        trace = jax.tree.map(averaged, state.trace, updates)
        state = WarmedMomentumState(optax.safe_increment(state.updates), trace)
        return jax.tree.map(averaged, trace, updates), state

    return optax.GradientTransformation(init, update)


def orthogonalized(matrices: jax.Array, polynomials: Polynomials = NEWTON_SCHULZ) -> jax.Array:
    """Return U S Vᵀ for each U Σ Vᵀ of `matrices` [N, I, O], with all of S about 1, by odd polynomials of the matrices.

    In float32, which the matrix units of TPUs and of NVIDIA GPUs round to fewer bits; the published code uses bfloat16.
    """
    wide = matrices.shape[1] <= matrices.shape[2]
    x = matrices if wide else matrices.transpose(0, 2, 1)
    x = x / (jnp.linalg.norm(x, axis=(1, 2), keepdims=True) + 1e-7)
    for first, third, fifth in polynomials:
        square = x @ x.transpose(0, 2, 1)
        x = first * x + (third * square + fifth * square @ square) @ x
    return x if wide else x.transpose(0, 2, 1)


def optimizer_flops(config: OptimizerConfig, parameters: ParameterTable) -> int:
    """Return the operations of one update that are matrix products: those of `orthogonalized` with muon, else none.

    A multiply-add counts as two, as in `models.costs`.
    """
    if config.name != "muon":
        return 0
    found, iterations = 0, len(ORTHOGONALIZATIONS[config.orthogonalization])
    for entry in parameters.values():
        if entry.matrix is not None:
            rows, columns = sorted(entry.matrix)
            found += entry.size // (rows * columns) * iterations * 2 * (2 * rows * rows * columns + rows**3)
    return found


def optimizer(config: OptimizerConfig, parameters: ParameterTable) -> Holding:
    """Return the direction of the update for gradients that have been clipped; `update` needs the parameters.

    adamw_bert: google-research/bert optimization.py: m / (sqrt(v) + epsilon) + weight_decay · p, no bias correction.
    adamw: the same with bias-corrected m and v (Loshchilov & Hutter 2019).
    lamb: the adamw direction times |p| / |direction| of each layer (You et al. 2020, algorithm 2 with phi = identity).
    muon: orthogonalized momentum for matrices, the adamw direction for the rest (training/optimizers.py).
    stable_adamw: the adamw direction divided by max(1, RMS(g / √v)) of each array (Wortsman et al. 2023, algorithm 2).
    """
    if config.name == "stable_adamw":
        return stable_adamw(config, parameters)
    if config.name == "muon":
        moments = scale_by_muon(config, parameters)
    elif config.name == "adamw_bert":
        moments = scale_by_uncorrected_adam(config.beta1, config.beta2, config.epsilon)
    else:
        moments = scale_by_adam(config.beta1, config.beta2, config.epsilon)
    decay = optax.add_decayed_weights(config.weight_decay, mask=lambda tree: included(parameters, tree))
    scaled = is_scaled(parameters)
    if scaled and config.name == "lamb":
        raise UserError(
            "optimizer.name=lamb takes the size of an update from the array, so model.scaling cannot scale its rate; "
            "use optimizer.name=adamw, or model.scaling.base_hidden_size=None"
        )
    parts = [moments, *([scale_by_rates(parameters, config)] if scaled else []), decay]
    if config.name == "lamb":
        parts.append(scale_by_layer_trust_ratio(parameters))
    return chained(*parts)


def is_scaled(parameters: ParameterTable) -> bool:
    """Return whether the rate of any array differs from that of the schedule."""
    return any(entry.rate != 1 for entry in parameters.values())


def scale_by_rates(parameters: ParameterTable, config: OptimizerConfig) -> optax.GradientTransformation:
    """Return a transformation that multiplies updates by the factor of each array's rate (`Parameter.rate`).

    It comes before weight decay, which so takes rate · decay of every weight, whatever the width: with AdamW that is
    what the best decay of a wider model stays at (Wang & Aitchison 2024, arXiv 2405.13698).
    """
    return optax.stateless(lambda updates, _: at_rates(parameters, updates, muon=config.name == "muon"))


def at_rates(parameters: ParameterTable, updates: Any, muon: bool = False) -> Any:
    """Return the updates times the factor of each array's rate.

    Values of Adam's update are about 1 and agree, so the largest singular value of a matrix grows like its width. Those
    of Muon's are about UPDATE_SIZE, and its singular values all alike, so they grow like the root of the width alone.
    """

    if not is_scaled(parameters):
        return updates

    def one(entry: Parameter, update: jax.Array) -> jax.Array:
        rate = entry.rate * entry.width**0.5 if muon and entry.matrix is not None else entry.rate
        return update if rate == 1 else update * rate

    return jax.tree.map(one, entries(parameters, updates), updates)


def included(parameters: ParameterTable, tree: Any) -> dict[str, Any]:
    """Return a tree of booleans: whether weight decay (and the trust ratio) applies; not to biases and LayerNorm.

    Embedding tables and the dense layer of the MLM head decay; the output bias of the MLM head does not.
    """
    return jax.tree.map(lambda parameter: parameter.decays, entries(parameters, tree))


def clip_by_global_norm(gradients: Any, max_norm: float) -> tuple[Any, ...]:
    """Return (gradients · max_norm / max(norm, max_norm), norm before clipping); max_norm=0 changes no gradient.

    The norm is that of the whole tree, as in tf.clip_by_global_norm. The original clips each replica's gradient before
    the mean over replicas; here the gradient of the global batch is clipped, so the result does not depend on the
    number of devices.
    """
    norm = optax.tree.norm(gradients)
    if not max_norm:
        return gradients, norm
    scale = max_norm / jnp.maximum(norm, max_norm)
    return jax.tree.map(lambda g: g * scale, gradients), norm


class UncorrectedAdamState(NamedTuple):
    mu: optax.Params
    nu: optax.Params


def scale_by_adam(beta1: float, beta2: float, epsilon: float) -> Holding:
    """Return optax's Adam, with the same state, which holds it (`holding`)."""

    def update(updates: Any, state: Any, params: Any = None, *, finite: jax.Array | bool = True, **given: Any):
        del params, given
        mu, nu = _moments(updates, state, beta1, beta2, finite)
        count = optax.safe_increment(state.count)
        directions = jax.tree.map(
            lambda m, v: m / (jnp.sqrt(v) + epsilon),
            optax.tree.bias_correction(mu, beta1, count),
            optax.tree.bias_correction(nu, beta2, count),
        )
        return directions, optax.ScaleByAdamState(held(finite, count, state.count), mu, nu)

    return Holding(optax.scale_by_adam(beta1, beta2, epsilon).init, update)


def scale_by_uncorrected_adam(beta1: float, beta2: float, epsilon: float) -> Holding:
    """Return Adam without bias correction and with epsilon outside the root, with which BERT was trained."""

    def init(params: Any):
        return UncorrectedAdamState(mu=optax.tree.zeros_like(params), nu=optax.tree.zeros_like(params))

    def update(updates: Any, state: Any, params: Any = None, *, finite: jax.Array | bool = True, **given: Any):
        del params, given
        mu, nu = _moments(updates, state, beta1, beta2, finite)
        return jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + epsilon), mu, nu), UncorrectedAdamState(mu, nu)

    return Holding(init, update)


def _moments(gradients: Any, state: Any, beta1: float, beta2: float, finite: jax.Array | bool) -> tuple[Any, Any]:
    """Return the next first and second moments, or those of `state`."""
    mu = optax.tree.update_moment(gradients, state.mu, beta1, 1)
    nu = optax.tree.update_moment_per_elem_norm(gradients, state.nu, beta2, 2)
    return held(finite, mu, state.mu), held(finite, nu, state.nu)


def scale_by_layer_trust_ratio(parameters: ParameterTable) -> optax.GradientTransformation:
    """Return a transformation that multiplies each layer's update by |parameter| / |update|.

    The ratio is 1 where a norm is 0 or nothing decays. A stacked parameter holds one array per layer: its norms, and
    its ratios, are taken layer by layer.
    """

    def scaled(entry: Parameter, update: jax.Array, parameter: jax.Array) -> jax.Array:
        if not entry.decays:
            return update
        axes = tuple(axis for axis in range(update.ndim) if axis != entry.axis("layer"))
        parameter_norm = jnp.sqrt(jnp.sum(parameter**2, axes, keepdims=True))
        update_norm = jnp.sqrt(jnp.sum(update**2, axes, keepdims=True))
        defined = (parameter_norm > 0) & (update_norm > 0)
        return update * jnp.where(defined, parameter_norm / jnp.where(defined, update_norm, 1.0), 1.0)

    return optax.stateless(lambda updates, params: jax.tree.map(scaled, entries(parameters, updates), updates, params))


def stable_adamw(config: OptimizerConfig, parameters: ParameterTable) -> Holding:
    """Return AdamW with the update clipping of Adafactor; a stacked parameter holds one array per layer.

    After a sudden change the second moments are too small for the gradients, and an unclipped step would be too long.
    """
    adam = scale_by_adam(config.beta1, config.beta2, config.epsilon)
    decay = optax.add_decayed_weights(config.weight_decay, mask=lambda tree: included(parameters, tree))

    def surprise(entry: Parameter, gradient: jax.Array, second: jax.Array) -> jax.Array:
        axes = tuple(axis for axis in range(gradient.ndim) if axis != entry.layer_axis)
        square = jnp.square(gradient) / jnp.maximum(second, config.epsilon**2)
        return jnp.maximum(jnp.sqrt(jnp.mean(square, axes, keepdims=True)), 1.0)

    def update(updates: Any, state: Any, params: Any = None, **given: Any):
        directions, state = adam.update(updates, state, **given)
        directions = at_rates(parameters, directions)
        directions, _ = decay.update(directions, decay.init(updates), params)
        moments = typing.cast(optax.ScaleByAdamState, state)
        seconds = optax.tree.bias_correction(moments.nu, config.beta2, moments.count)
        ratios = jax.tree.map(surprise, entries(parameters, updates), updates, seconds)
        return jax.tree.map(jnp.divide, directions, ratios), state

    return Holding(adam.init, update)


def scale_by_depth(decay: float, num_layers: int, parameters: ParameterTable) -> optax.GradientTransformation:
    """Return a transformation that multiplies updates by decay^d.

    d is 0 for head, pooler and top layer, 1 for the layer below it, …, num_layers for the embeddings.

    Raises:
      UserError: there are no layers, or they share parameters, which then have no depth.
    """
    if not num_layers:
        raise UserError(f"layer_decay={decay} needs layers, and this model has none; use layer_decay=1")
    _check_separate(num_layers, parameters, f"layer_decay={decay}", "use layer_decay=1")

    def scaled(parameter: Parameter, update: jax.Array) -> jax.Array:
        if parameter.embedding:
            return update * decay**num_layers
        axis = parameter.layer_axis
        if axis is None:
            return update
        below = num_layers - 1 - parameter.lowest_layer - jnp.arange(update.shape[axis], dtype=update.dtype)
        factors = decay**below
        return update * jnp.expand_dims(factors, [other for other in range(update.ndim) if other != axis])

    return optax.stateless(lambda updates, params: jax.tree.map(scaled, entries(parameters, updates), updates))


def unfrozen_by_epoch(num_layers: int, parameters: ParameterTable) -> optax.GradientTransformationExtraArgs:
    """Return a transformation whose `update` takes the number of the `epoch` and lets pass what learns by then.

    That is the head and the pooler in epoch 0, in each later one also the next layer from the top, the final norm with
    the first of them, and everything after the last layer (gradual unfreezing, Howard & Ruder 2018, section 3.3).

    Raises:
      UserError: layers share parameters, which then have no depth.
    """
    _check_separate(num_layers, parameters, "gradual_unfreezing=True", "use gradual_unfreezing=False")

    def first_epochs(parameter: Parameter, update: jax.Array) -> jax.Array:
        if parameter.part == "final_norm":
            return jnp.asarray(1)
        if parameter.part not in ENCODER_PARTS:
            return jnp.asarray(0)
        axis = parameter.layer_axis
        if parameter.embedding or axis is None:
            return jnp.asarray(num_layers + 1)
        from_top = num_layers - parameter.lowest_layer - jnp.arange(update.shape[axis])
        return jnp.expand_dims(from_top, [other for other in range(update.ndim) if other != axis])

    def update(updates: Any, state: optax.OptState, params: Any = None, **given: Any):
        del params
        thawed = lambda parameter, each: jnp.where(given["epoch"] >= first_epochs(parameter, each), each, 0.0)
        return jax.tree.map(thawed, entries(parameters, updates), updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def _check_separate(num_layers: int, parameters: ParameterTable, option: str, remedy: str) -> None:
    """Raise a UserError if layers share parameters."""
    for parameter in parameters.values():
        axis = parameter.axis("layer")
        if axis is not None and parameter.shape[axis] != num_layers:
            raise UserError(
                f"{option} needs separate parameters for each of {num_layers} layers, but {parameter.path} is "
                f"{list(parameter.shape)}, which layers share; {remedy}"
            )


def frozen_encoder(parameters: ParameterTable) -> optax.GradientTransformation:
    """Return a transformation that updates only the head and its CRF; not even weight decay changes the encoder."""

    def kept(parameter: Parameter, update: jax.Array) -> jax.Array:
        return update if parameter.part in TASK_PARTS else jnp.zeros_like(update)

    return optax.stateless(lambda updates, params: jax.tree.map(kept, entries(parameters, updates), updates))


FrozenParts = Mapping[str, np.ndarray]
"""Where arrays are frozen: bool by path, with as many axes as the array, each of its size or of 1."""
_LAYERS = re.compile(r"layers\.(\d{1,4})(-(\d{1,4}))?")


def frozen_parts(names: Sequence[str], num_layers: int, parameters: ParameterTable) -> FrozenParts:
    """Return what stays as it is: parts of the table by their names, and layers as layers.N or layers.N-M.

    With the embeddings go all tables below the first layer, such as those of relative positions.

    Raises:
      UserError: there is no such part or layer, layers share their parameters, or nothing is left that learns.
    """
    found: dict[str, np.ndarray] = {}
    for name in names:
        layers = _layers_named(name, num_layers, parameters)
        for path, parameter in parameters.items():
            if layers is None:
                there = name == ("embeddings" if parameter.embedding else parameter.part)
                where = np.full((1,) * len(parameter.axes), there)
            elif (axis := parameter.layer_axis) is not None and not parameter.embedding:
                there = np.isin(parameter.lowest_layer + np.arange(parameter.shape[axis]), layers)
                where = np.expand_dims(there, [other for other in range(len(parameter.axes)) if other != axis])
            else:
                continue
            if where.any():
                found[path] = found.get(path, False) | where
    if found and not learned_size(found, parameters):
        raise UserError(f"freeze={','.join(names)} leaves nothing that learns; leave out at least one of them")
    return found


def _layers_named(name: str, num_layers: int, parameters: ParameterTable) -> range | None:
    """Return the layers that a name of `frozen_parts` means; None if it is that of a part."""
    parts = dict.fromkeys(parameter.part for parameter in parameters.values())
    if name in parts:
        return None
    span = _LAYERS.fullmatch(name)
    layers = range(int(span[1]), int(span[3] or span[1]) + 1) if span else range(0)
    if not layers or layers[-1] >= num_layers:
        known = [*parts, *([f"layers.0 to layers.{num_layers - 1} (several: layers.0-1)"] if num_layers else [])]
        raise UserError(f"freeze={name!r:.60} is no part that would learn here; these would: {', '.join(known)}")
    _check_separate(num_layers, parameters, f"freeze={name}", "freeze=encoder means all of them")
    return layers


def learned_size(frozen: FrozenParts, parameters: ParameterTable) -> int:
    """Return the number of values that are not frozen."""
    shares = {path: float(np.mean(where)) for path, where in frozen.items()}
    return sum(round(entry.size * (1 - shares.get(path, 0.0))) for path, entry in parameters.items())


def stopped(frozen: FrozenParts, params: Any) -> Any:
    """Return the parameters, with a gradient of zero for what is frozen, so that it does not count in clipping."""

    def one(path: Any, leaf: jax.Array) -> jax.Array:
        where = _place(frozen, path)
        if where is None:
            return leaf
        constant = jax.lax.stop_gradient(leaf)
        return constant if where.all() else jnp.where(where, constant, leaf)

    return jax.tree.map_with_path(one, params)


def leaving(optimizer: optax.GradientTransformation, frozen: FrozenParts) -> Holding:
    """Return the optimizer that changes nothing frozen, and keeps nothing for arrays that are frozen as a whole."""

    def learns(tree: Any) -> Any:
        return jax.tree.map_with_path(lambda path, _: (where := _place(frozen, path)) is None or not where.all(), tree)

    def zeroed(path: Any, update: jax.Array) -> jax.Array:
        where = _place(frozen, path)
        return update if where is None else jnp.where(where, 0.0, update)

    partly = optax.masked(holding(optimizer), learns)

    def update(updates: Any, state: Any, params: Any = None, **given: Any) -> tuple[Any, Any]:
        updates, state = partly.update(updates, state, params, **given)
        return jax.tree.map_with_path(zeroed, updates), state

    return Holding(partly.init, update)


def _place(frozen: FrozenParts, path: Any) -> np.ndarray | None:
    return frozen.get(jax.tree_util.keystr(path, simple=True, separator="/"))


def learning_rate(schedule: ScheduleConfig, phases: Sequence[Phase], step: jax.Array | np.ndarray | int) -> jax.Array:
    """Return the learning rate, float32, of the update from `step` to `step + 1`, for integers of any shape.

    Integers are subtracted before anything is divided, so the result is the rounded exact one up to step 2^24.
    """
    step = jnp.asarray(step, jnp.int32)
    rate = jnp.zeros(step.shape, jnp.float32)
    for phase in phases:
        fraction = shape(schedule, step - phase.schedule_begin, phase.schedule_length, phase.warmup_steps)
        rate = jnp.where(step >= phase.begin, jnp.float32(phase.learning_rate) * fraction, rate)
    return rate


def shape(schedule: ScheduleConfig, step: ArrayLike, length: int, warmup: int) -> jax.Array:
    """Return the fraction of the peak at `step` of `length` steps: from 0 (if there is a warm-up) to final_fraction."""
    step = jnp.clip(step, 0, length)
    after = _descent(schedule, step, length, warmup)
    if not warmup:
        return after
    return jnp.where(step < warmup, _ratio(step, warmup), after)


def _descent(schedule: ScheduleConfig, step: jax.Array, length: int, warmup: int) -> jax.Array:
    """Return the fraction of the peak after the warm-up.

    linear and polynomial are lines and powers counted from step 0, which the warm-up merely overrides: right after it
    the rate is peak · (1 − warmup/length)^power (google-research/bert optimization.py, tf.train.polynomial_decay).
    linear_after_warmup and cosine start from the full peak at the end of the warm-up.
    """
    if schedule.name == "constant":
        if not schedule.cooldown_steps:
            return jnp.ones(step.shape, jnp.float32)
        left = jnp.minimum(_ratio(length - step, schedule.cooldown_steps), 1.0)
        if schedule.cooldown == "one_minus_sqrt":
            over = jnp.maximum(step - (length - schedule.cooldown_steps), 0)
            left = 1.0 - jnp.sqrt(_ratio(over, schedule.cooldown_steps))
    elif schedule.name == "cosine":
        left = 0.5 + 0.5 * jnp.cos(jnp.pi * _ratio(step - warmup, max(length - warmup, 1)))
    elif schedule.name == "linear_after_warmup":
        left = _ratio(length - step, max(length - warmup, 1))
    elif schedule.name == "polynomial":
        left = _ratio(length - step, length) ** jnp.float32(schedule.power)
    else:
        left = _ratio(length - step, length)
    return schedule.final_fraction + (1.0 - schedule.final_fraction) * left


def _ratio(numerator: jax.Array, denominator: int) -> jax.Array:
    return numerator.astype(jnp.float32) / jnp.float32(denominator)
