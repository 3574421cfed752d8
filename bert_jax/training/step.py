"""One training step and one forward step for every objective (objectives/objective.py), compiled for a mesh.

Gradients of a whole batch are computed in parts or at once, summed over the devices and split like the parameters.
Counts of tokens and operations leave padding out. `Program` compiles ahead of the first call, while other work goes
on, and so that a signal can end the wait.

Frozen arrays, such as the parameters of a teacher, are read and never changed. They are arguments of the compiled
functions, after all others: as constants they would be part of the program. They are on the devices once, are split
like parameters, and are in no checkpoint and no optimizer state.

Where the batch is split and the model allows it, each part of the batch reads its own copy of the word table.
Otherwise XLA sums what lookup and logits give over the devices as soon as each is computed, which moves the largest
array of the model twice. With copies, each device adds up its own two gradients, and the only sum is the transpose of
copying. That sum is in the type of the products, in which the gradients of all kernels are summed too: they leave a
product in that type. What one device adds up is float32 before and after.
"""

import concurrent.futures
import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bert_jax.devices import sharding
from bert_jax.devices.compilation import compile_with
from bert_jax.devices.hardware import hardware
from bert_jax.devices.sharding import widened
from bert_jax.devices.signals import COMPILING, StopSignals
from bert_jax.models.layers import PackedTexts
from bert_jax.models.protocol import Model, Params, SharesWordTable
from bert_jax.objectives.objective import Batch, Objective, TaughtObjective, mean_loss, training_metrics
from bert_jax.parameters import Parameter, ParameterTable, entries
from bert_jax.training.events import Events
from bert_jax.training.metrics import Rates
from bert_jax.training.optimizers import Holding, clip_by_global_norm, held, holding, moved
from bert_jax.training.state import TrainState

Frozen = tuple[Any, ...]
"""Trees of arrays, or of ShapeDtypeStructs with shardings, in the order in which an objective takes them."""


def frozen_shardings(frozen: Frozen) -> Frozen:
    """Return the sharding of each array, in the same trees."""
    return jax.tree.map(lambda leaf: leaf.sharding, frozen)


def reader(objective: Objective, frozen: Frozen) -> Callable[[Frozen], Objective]:
    """Return what makes the objective that reads arrays like `frozen`, in the function that is traced with them."""
    where = sharding.gathered(frozen_shardings(frozen))

    def reading(arrays: Frozen) -> Objective:
        if not arrays:
            return objective
        return cast(TaughtObjective, objective).reading(*jax.lax.with_sharding_constraint(arrays, where))

    return reading


LEAST_BY_ROWS = 8  # devices on the fsdp axis; with four, large's columns are scattered, and the exchange is a loss
TILE_ROWS = 16  # of bfloat16 on a TPU


def copies_type(model: Model, mesh: Mesh) -> jnp.dtype | None:
    """Return the type in which gradients of copies are summed; None if `model` cannot read copies, or one is enough."""
    if isinstance(model, SharesWordTable) and model.shares_word_table and sharding.batch_parts(mesh) > 1:
        return model.dtype
    return None


def with_copies(params: Params, mesh: Mesh, where: NamedSharding, dtype: jnp.dtype) -> Params:
    """Return `params` with the word table [V, H] as [N, V, H], where each of the N parts of the batch has its copy.

    Args:
      params: of a model that has a `copies_type`.
      mesh: the devices.
      where: how the table is split over them.
      dtype: type in which the gradients of the copies are summed.
    """
    parts = sharding.batch_parts(mesh)
    apart = NamedSharding(mesh, P(sharding.BATCH_AXES, where.spec[0] if where.spec else None, None))
    by_rows = "fsdp" in where.spec and mesh.shape["fsdp"] >= LEAST_BY_ROWS

    @jax.custom_vjp
    def copied(table: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(jnp.broadcast_to(table[None], (parts, *table.shape)), apart)

    def summed(_: Any, gradient: jax.Array) -> tuple[jax.Array]:
        own = jax.lax.with_sharding_constraint(gradient, apart).astype(dtype)
        # lax.reduce, because jnp.sum would widen a narrow type before it sums.
        total = _sum_by_rows(own, where) if by_rows else jax.lax.reduce(own, jnp.zeros((), dtype), jax.lax.add, (0,))
        return (jax.lax.with_sharding_constraint(total, where).astype(jnp.float32),)

    copied.defvjp(lambda table: (copied(table), None), summed)
    embeddings = params["embeddings"]
    copies = embeddings["word"] | {"table": copied(embeddings["word"]["table"])}
    return params | {"embeddings": embeddings | {"word": copies}}


def _sum_by_rows(own: jax.Array, where: NamedSharding) -> jax.Array:
    """Return the sum of what each device has, [N, V, H] → [V, H] split coarsely, by way of rows.

    The compiler for TPUs scatters a sum over rows, of whole tiles, but not one over columns: it sums whole tables,
    which moves twice as much. Once each device has the sum of its rows alone, they exchange rows for columns, which
    is little.
    """
    coarse = sharding.split_coarsely(where)
    mesh = coarse.mesh
    assert isinstance(mesh, Mesh), "shardings of a state are on devices"
    batch = tuple(axis for axis in mesh.axis_names if axis != "tensor")
    within = tuple(axis for axis in batch if axis not in ("slice", "fsdp"))

    def of_one_device(own: jax.Array) -> jax.Array:
        rows = own.shape[1]
        padded = jnp.pad(own[0], ((0, -rows % (TILE_ROWS * mesh.shape["fsdp"])), (0, 0)))
        part = jax.lax.psum_scatter(padded, "fsdp", scatter_dimension=0, tiled=True)
        part = jax.lax.psum(jax.lax.psum(part, within), "slice")
        return jax.lax.all_to_all(part, "fsdp", split_axis=1, concat_axis=0, tiled=True)[:rows]

    split = jax.shard_map(of_one_device, mesh=mesh, in_specs=P(batch, "tensor", None), out_specs=coarse.spec)
    return sharding.under(mesh, split)(own)


def make_gradients(
    objective: Objective, mesh: Mesh, shardings: TrainState, *, micro_batches: int, seed: int, frozen: Frozen = ()
) -> jax.stages.Wrapped:
    """Return a compiled (state, batch, *frozen) → gradients, those that a training step clips.

    The state is not consumed.
    """
    reading = reader(objective, frozen)

    def gradients(state: TrainState, batch: Batch, *arrays: Any):
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        return batch_gradients(reading(arrays), mesh, shardings, micro_batches)(
            state.params, batch, key, jax.random.fold_in(key, 0)
        )[0]

    return jax.jit(
        sharding.under(mesh, gradients),
        in_shardings=(shardings, sharding.batch_sharding(mesh), *frozen_shardings(frozen)),
        out_shardings=shardings.params,
    )


def batch_gradients(objective: Objective, mesh: Mesh, shardings: TrainState, micro_batches: int) -> Callable[..., Any]:
    """Return (params, batch, key, key of a batch in one part) → (gradients, sums, denominators)."""

    def of_batch(params: Any, batch: Batch, key: jax.Array, whole_key: jax.Array) -> tuple[Any, ...]:
        batch = widened(batch)
        denominators = objective.denominators(batch)
        whole = sharding.gather(params, shardings.params)

        def part(rows: Batch, dropout_key: jax.Array) -> tuple[Any, ...]:
            return _gradients(objective, mesh, whole, rows, denominators, dropout_key, shardings.params)

        if micro_batches == 1:
            return *part(batch, whole_key), denominators
        rows = jax.tree.map(lambda x: _split_rows(x, micro_batches, mesh), batch)
        total = _sum_of_parts(lambda rows, i: part(rows, jax.random.fold_in(key, i)), rows, micro_batches)
        return *total, denominators

    return of_batch


def _gradients(
    objective: Objective,
    mesh: Mesh,
    params: Any,
    rows: Batch,
    denominators: dict[str, Any],
    dropout_key: jax.Array,
    shardings: Any,
) -> tuple[Any, ...]:
    """Return what `rows` add to the gradient of the mean loss of the batch, split like the parameters, and their sums.

    The weights of the whole batch are known before any of it is computed, so every micro-batch divides its sums by the
    totals right away and the parts simply add up.
    """

    copied = copies_type(objective.model, mesh)

    def loss(params: Any):
        if copied is not None:
            params = with_copies(params, mesh, shardings["embeddings"]["word"]["table"], copied)
        sums = objective.sums(params, rows, dropout_key)
        return mean_loss(objective.terms, sums, denominators), sums

    gradients, sums = jax.grad(loss, has_aux=True)(params)
    gradients = _tables_whole(objective.model.parameters, gradients, shardings, copied is not None)
    gradients = jax.lax.with_sharding_constraint(gradients, jax.tree.map(sharding.split_coarsely, shardings))
    return jax.lax.with_sharding_constraint(gradients, shardings), sums


def _tables_whole(parameters: ParameterTable, gradients: Any, shardings: Any, copies: bool):
    """Return the gradients with those of tables that are looked up whole over fsdp, before all are split.

    The word table is no exception where it was read from copies, whose gradients are summed like those of kernels.

    A scatter into a table that is split over the hidden axis would move every activation. All others are split as they
    are summed (reduce-scatter), which moves half of what summing whole gradients does and never keeps them whole.
    """

    def one(parameter: Parameter, gradient: jax.Array, whole: NamedSharding) -> jax.Array:
        of_copies = copies and parameter.path == "embeddings/word/table"
        scattered = parameter.use == "looked_up" and not of_copies
        return jax.lax.with_sharding_constraint(gradient, whole) if scattered else gradient

    return jax.tree.map(one, entries(parameters, gradients), gradients, sharding.gathered(shardings))


def _sum_of_parts(part: Callable[..., Any], rows: Batch, micro_batches: int):
    """Return the sum of part(rows[i], i) over the micro-batches, only one of which is in memory at a time."""
    first = jax.tree.map(lambda x: x[0], rows)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(part, first, 0))
    return jax.lax.scan(
        lambda total, xs: (jax.tree.map(jnp.add, total, part(*xs)), None), zeros, (rows, jnp.arange(micro_batches))
    )[0]


def _split_rows(x: jax.Array, micro_batches: int, mesh: Mesh) -> jax.Array:
    """Reshape [B, …] to [micro_batches, B / micro_batches, …] without moving a row to a different device.

    Micro-batch i takes rows i, i + micro_batches, …: each micro-batch then gets the same number of the consecutive rows
    that a device holds. Micro-batches of consecutive rows would each be on a few devices only.
    """
    parts = jnp.swapaxes(x.reshape(-1, micro_batches, *x.shape[1:]), 0, 1)
    return jax.lax.with_sharding_constraint(parts, NamedSharding(mesh, P(None, *sharding.BATCH)))


COUNTS = ("useful_tokens", "useful_squares", "useful_texts", "useful_predictions")


def counts(batch: Batch) -> dict[str, jax.Array]:
    """Return COUNTS of a batch, float32 []: tokens, Σ length² of its texts, texts, and predictions."""
    mask, texts = batch["attention_mask"], PackedTexts.of(batch)
    lengths = (jnp.sum(mask, axis=1, keepdims=True) if texts is None else texts.lengths()).astype(jnp.float32)
    # Sums over devices are all in float32, which XLA puts into one.
    predictions = jnp.sign(batch["masked_weights"])  # which in masked diffusion weigh more than 1
    found = jnp.sum(lengths), jnp.sum(jnp.square(lengths)), jnp.sum(jnp.sign(lengths)), jnp.sum(predictions)
    return dict(zip(COUNTS, found, strict=True))


def useful_flops(model: Model, sequence_length: int, counts: dict[str, float]) -> float:
    """Return the operations of a training step on the texts of a batch, each computed alone and without padding.

    `Model.training_flops` is taken to be a polynomial: of degree two in the length, as attention within the text is,
    and of degree one in the predictions. It is exact at 0, half of `sequence_length` and all of it; a prediction, which
    XLNet's second stream lets attend to its text, counts as in a text of the mean length of a token's.
    """
    tokens, squares, texts, predictions = (counts[name] for name in COUNTS)
    text, token, square = _operations(model, sequence_length)
    length = round(squares / tokens) if tokens else 0
    prediction = model.training_flops(length, 1) - model.training_flops(length, 0)
    return text * texts + token * tokens + square * squares + prediction * predictions


def flops_of_texts(model: Model, sequence_length: int) -> Callable[[np.ndarray], float]:
    """Return a function of the lengths of texts, int64 [T]: `useful_flops` of a batch of them, without predictions."""
    text, token, square = _operations(model, sequence_length)
    return lambda lengths: float(text * len(lengths) + token * lengths.sum() + square * np.square(lengths).sum())


def peak_flops(mesh: Mesh) -> float | None:
    """Return the FLOP/s of all devices together; None if unknown."""
    peak = hardware(list(mesh.devices.flat)).peak_flops
    return None if peak is None else peak * mesh.size


def _operations(model: Model, sequence_length: int) -> tuple[float, float, float]:
    """Return the operations for a text of any length, for each of its tokens, and for each pair of two of them."""
    whole, half = float(sequence_length), float(sequence_length // 2)
    text = model.training_flops(0, 0)
    slopes = [(model.training_flops(int(length), 0) - text) / length for length in (whole, half)]
    curvature = (slopes[0] - slopes[1]) / (whole - half)
    return text, slopes[0] - curvature * whole, curvature


def make_train_step(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    shardings: TrainState,
    *,
    clip_norm: float,
    micro_batches: int = 1,
    schedule: Callable[[jax.Array], jax.Array],
    seed: int = 0,
    frozen: Frozen = (),
) -> jax.stages.Wrapped:
    """Return a compiled (state, batch, *frozen) → (state, metrics); the state passed in is consumed (donated).

    Metrics are float32 scalars: loss, NAME_loss and NAME_accuracy of each term that the batch has, learning_rate,
    grad_norm (before clipping), skipped, and the COUNTS of the batch. A loss or gradient that is not
    finite leaves parameters and optimizer state as they were (skipped = 1); the step counter advances all the same.

    Args:
      objective: holds the model and makes the loss.
      optimizer: gives the direction of the update, without a learning rate.
      mesh: the devices.
      shardings: shardings of the state.
      clip_norm: largest global norm of the gradient; 0 for no clipping.
      micro_batches: number of parts in which a batch is computed; it divides the rows on every device. Metrics and
        update are those of the whole batch, except for which elements dropout drops.
      schedule: maps a step to the learning rate of the update from that step to the next.
      seed: determines dropout, together with the step.
      frozen: what the objective reads in addition to the parameters.
    """
    reading = reader(objective, frozen)

    def train_step(state: TrainState, batch: Batch, *arrays: Any) -> tuple[TrainState, dict[str, Any]]:
        step = _step(reading(arrays), optimizer, mesh, shardings, clip_norm, micro_batches)
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        state, metrics = step(state, batch, schedule(state.step), key, jax.random.fold_in(key, 0))
        return state, metrics | counts(batch)

    return _compiled(train_step, mesh, shardings, frozen)


def make_shared_train_step(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    shardings: TrainState,
    *,
    clip_norm: float,
    micro_batches: int = 1,
    by_epoch: bool = False,
    frozen: Frozen = (),
) -> jax.stages.Wrapped:
    """Return `make_train_step` for runs that differ in rate and seed: (state, batch, rate, seed, *frozen).

    A batch in one part draws other dropout than it does in `make_train_step` with the same seed. With `by_epoch`, the
    number of the epoch, from 0, follows the seed, and the optimizer is one whose `update` takes it as `epoch`.
    """
    reading = reader(objective, frozen)

    def train_step(
        state: TrainState, batch: Batch, rate: jax.Array, seed: jax.Array, *arrays: Any
    ) -> tuple[TrainState, dict[str, Any]]:
        epochs, arrays = arrays[:by_epoch], arrays[by_epoch:]
        now = _in_epoch(optimizer, epochs[0]) if by_epoch else optimizer
        step = _step(reading(arrays), now, mesh, shardings, clip_norm, micro_batches)
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        return step(state, batch, rate, key, key)

    return _compiled(train_step, mesh, shardings, frozen, arguments=3 if by_epoch else 2)


def _in_epoch(optimizer: optax.GradientTransformation, epoch: jax.Array) -> Holding:
    """Return the optimizer as it is in one epoch."""
    return Holding(optimizer.init, functools.partial(holding(optimizer).update, epoch=epoch))


def _compiled(
    train_step: Callable[..., Any], mesh: Mesh, shardings: TrainState, frozen: Frozen, arguments: int = 0
) -> jax.stages.Wrapped:
    """Return the compiled function of state, batch, so many scalars and `frozen`."""
    alike = sharding.replicated(mesh)
    return jax.jit(
        sharding.under(mesh, train_step),
        donate_argnums=0,
        in_shardings=(shardings, sharding.batch_sharding(mesh), *(alike,) * arguments, *frozen_shardings(frozen)),
        out_shardings=(shardings, alike),
    )


def _step(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    shardings: TrainState,
    clip_norm: float,
    micro_batches: int,
):
    """Return (state, batch, rate, key, key of a batch in one part) → (state, metrics), see `make_train_step`."""

    gradients_of = batch_gradients(objective, mesh, shardings, micro_batches)

    def step(
        state: TrainState, batch: Batch, rate: jax.Array, key: jax.Array, whole_key: jax.Array
    ) -> tuple[TrainState, dict[str, Any]]:
        gradients, sums, denominators = gradients_of(state.params, batch, key, whole_key)
        metrics = training_metrics(objective.terms, sums, denominators)
        state, taken = updated(state, gradients, metrics["loss"], optimizer, rate, clip_norm)
        return state, metrics | taken

    return step


def make_sums_step(objective: Objective, mesh: Mesh, shardings: Any, frozen: Frozen = ()) -> jax.stages.Wrapped:
    """Return a compiled (params, batch, *frozen) → the sums of the objective without dropout; see make_forward_step."""
    reading = reader(objective, frozen)
    sums = lambda params, batch, *arrays: reading(arrays).sums(params, batch)
    return make_forward_step(sums, mesh, shardings, frozen)


def make_forward_step(
    function: Callable[..., Any], mesh: Mesh, shardings: Any, frozen: Frozen = ()
) -> jax.stages.Wrapped:
    """Return a compiled `function` of (params, batch, *frozen), whose result is the same on every device.

    Args:
      function: takes the global batch.
      mesh: the devices.
      shardings: tree of the shardings of the parameters.
      frozen: what it reads in addition to them.
    """

    def forward_step(params: Any, batch: Batch, *arrays: Any):
        return function(sharding.gather(params, shardings), batch, *arrays)

    return jax.jit(
        sharding.under(mesh, forward_step),
        in_shardings=(shardings, sharding.batch_sharding(mesh), *frozen_shardings(frozen)),
        out_shardings=sharding.replicated(mesh),
    )


def updated(
    state: TrainState,
    gradients: Any,
    loss: jax.Array,
    optimizer: optax.GradientTransformation,
    rate: jax.Array,
    clip_norm: float,
) -> tuple[TrainState, dict[str, jax.Array]]:
    """Return the next state, and the metrics learning_rate, grad_norm (before clipping) and skipped.

    A loss or gradient that is not finite leaves parameters and optimizer state as they were (skipped = 1).
    """
    gradients, norm = clip_by_global_norm(gradients, clip_norm)
    finite = jnp.isfinite(loss) & jnp.isfinite(norm)
    updates, optimizer_state = holding(optimizer).update(gradients, state.optimizer_state, state.params, finite=finite)
    params = held(finite, jax.tree.map(lambda p, u: p - rate * u, state.params, updates), state.params)
    optimizer_state = moved(optimizer_state, params, state.step, finite)
    metrics = {"learning_rate": rate, "grad_norm": norm, "skipped": 1.0 - finite.astype(jnp.float32)}
    return TrainState(step=state.step + 1, params=params, optimizer_state=optimizer_state), metrics


class Program:
    """A jitted function of (state or parameters, batch, …), compiled once per shape and type of the batch.

    Args:
      function: from `jax.jit`; only the shapes and types of the batch may differ between two calls.
      frozen: arrays that it takes after the arguments of every call (training/step.py).
      options: of the compiler (devices/compilation.py).
    """

    def __init__(self, function: Any, frozen: Frozen = (), options: Mapping[str, bool | str] | None = None):
        self._function, self._frozen, self._options = function, frozen, options or {}
        self.compiled: dict[tuple[Any, ...], Callable[..., Any]] = {}
        """Compiled functions by the shapes and types of the batch's arrays."""
        self._begun: dict[tuple[Any, ...], concurrent.futures.Future[Any]] = {}

    def __call__(self, *arguments: Any) -> Any:
        self.prepare(*arguments)
        return self.compiled[_shapes(arguments)](*arguments, *self._frozen)

    def begin(self, *arguments: Any) -> None:
        """Compile in a thread, for arguments of these shapes, types and shardings; `prepare` waits for what is left.

        Args:
          *arguments: arrays, or ShapeDtypeStructs with the shardings of the arrays to come.
        """
        shapes = _shapes(arguments)
        if shapes in self.compiled or shapes in self._begun:
            return
        executor = concurrent.futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix=COMPILING)
        self._begun[shapes] = executor.submit(lambda: self._compilation(*arguments)())
        executor.shutdown(wait=False)

    def prepare(
        self,
        *arguments: Any,
        signals: StopSignals | None = None,
        rates: Rates | None = None,
        events: Events | None = None,
    ) -> None:
        """Compile for arguments of these shapes if that has not been done yet.

        Args:
          signals: may end the wait.
          rates: paused during the compilation. The steps under way are waited for first, so that they are counted.
          events: where the seconds of waiting for the compilation are noted.

        Raises:
          Stopped: raised by `signals`.
        """
        shapes = _shapes(arguments)
        if shapes in self.compiled:
            return
        jax.block_until_ready(arguments)
        with contextlib.ExitStack() as measured:
            if rates is not None:
                measured.enter_context(rates.paused("compile"))
            if events is not None:
                measured.enter_context(events.timed("compiled", events.step))
            begun = self._begun.pop(shapes, None)
            compile_ = self._compilation(*arguments) if begun is None else begun.result
            self.compiled[shapes] = compile_() if signals is None else signals.wait(compile_)

    def _compilation(self, *arguments: Any) -> Callable[[], Callable[..., Any]]:
        """Trace the function, and return what compiles it."""
        return functools.partial(compile_with, self._function.lower(*arguments, *self._frozen), self._options)


def _shapes(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    _, batch, *_ = arguments
    return tuple((name, values.shape, values.dtype) for name, values in sorted(batch.items()))
