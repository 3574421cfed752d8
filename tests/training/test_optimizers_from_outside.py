"""Optimizers and schedules that `pretrain` is given: any transformation of optax, any function of the step."""

import dataclasses
import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import one_device
import optax
import pytest
from small_pretraining import nothing_held_out, rows, run_config

from bert_jax.checkpoints.workdir import read_config
from bert_jax.config import CheckpointConfig, MeshConfig, OptimizerConfig, PhaseConfig
from bert_jax.devices import sharding
from bert_jax.errors import UserError
from bert_jax.formats.opening import open_stored
from bert_jax.formats.own import open_checkpoint
from bert_jax.models.bert import BertForPreTraining
from bert_jax.objectives.choice import default_objective
from bert_jax.pretraining import pretrain
from bert_jax.training.learner import Learner
from bert_jax.training.optimizers import average_of, given_optimizer, given_schedule, included, learning_rate
from bert_jax.training.state import TrainState
from bert_jax.training.step import updated

STEPS = 6


def config(store, workdir, **changes):
    phase = PhaseConfig(steps=STEPS, sequence_length=32, batch_size=16, learning_rate=1e-3, warmup_steps=2)
    more = {"phases": (phase,), "data": nothing_held_out(store)} | changes
    return run_config(store, workdir, checkpoint=CheckpointConfig(every_steps=1, keep_last=9, keep_best=0), **more)


def pulled_back(rate: float) -> optax.GradientTransformation:
    """Pulls parameters to where they began, which it remembers."""

    def update(updates, state, params):
        return jax.tree.map(lambda u, p, first: u + rate * (p - first), updates, params, state["first"]), state

    return optax.GradientTransformation(lambda params: {"first": params}, update)


EVERYTHING = optax.chain(
    optax.scale_by_factored_rms(min_dim_size_to_factor=8),  # arrays of other shapes than those of parameters
    optax.trace(0.9),  # moments
    optax.add_noise(1e-3, 0.5, 7),  # a random key
    pulled_back(0.1),  # parameters
)
falling = lambda step: 1e-3 / (1 + step)


def test_what_the_options_mean_can_be_given(small_store, tmp_path):
    options = config(small_store, tmp_path / "options")
    one_device.pretrain(options)
    adam, parameters = OptimizerConfig(), BertForPreTraining(read_config(options.workdir).model).parameters
    direction = optax.chain(
        optax.scale_by_adam(adam.beta1, adam.beta2, adam.epsilon),
        optax.add_decayed_weights(adam.weight_decay, mask=functools.partial(included, parameters)),
    )
    given = dataclasses.replace(options, workdir=str(tmp_path / "given"), optimizer=OptimizerConfig(name="lamb"))
    one_device.pretrain(given, optimizer=direction, schedule=functools.partial(learning_rate, options))
    found, expected = rows(given.workdir), rows(options.workdir)
    assert [row["learning_rate"] for row in found] == [row["learning_rate"] for row in expected]
    losses = [[row["loss"] for row in each] for each in (found, expected)]
    assert len(losses[0]) == STEPS
    np.testing.assert_allclose(*losses, rtol=1e-6)


@pytest.fixture(scope="module")
def finished(small_store, tmp_path_factory):
    """A run of EVERYTHING with an average of its weights."""
    workdir = tmp_path_factory.mktemp("given") / "run"
    options = config(small_store, workdir, optimizer=OptimizerConfig(ema_decay=0.9))
    one_device.pretrain(options, optimizer=EVERYTHING, schedule=falling)
    return options


def values(path, weights="last") -> dict[str, np.ndarray]:
    arrays = open_checkpoint(path, weights).arrays
    return {name: array.read((slice(None),) * len(array.shape)) for name, array in arrays.items()}


def test_a_resumed_run_takes_the_same_steps(finished, tmp_path):
    whole, last = rows(finished.workdir), f"{finished.workdir}/checkpoints/step_{STEPS:09d}"
    assert len({row["loss"] for row in whole}) == STEPS
    before = {weights: values(last, weights) for weights in ("last", "ema")}
    for step in (4, 5, 6):
        os.rename(f"{finished.workdir}/checkpoints/step_{step:09d}", tmp_path / f"taken_{step}")
    one_device.pretrain(finished, optimizer=EVERYTHING, schedule=falling)
    assert rows(finished.workdir) == whole
    for weights, arrays in before.items():
        jax.tree.map(np.testing.assert_array_equal, values(last, weights), arrays)
    assert any((before["last"][name] != before["ema"][name]).any() for name in before["ema"])


def test_a_resumed_run_must_be_given_the_same(finished):
    other = optax.chain(EVERYTHING, optax.trace(0.9))
    for given, said in (
        ({"schedule": falling}, "but this start has the default optimizer"),
        ({"optimizer": other, "schedule": falling}, r"\(0/0/count.*the optimizer that pretrain is given in Python"),
        ({"optimizer": EVERYTHING}, f"the schedule {__name__}.<lambda>, but this start has the default schedule"),
        ({"optimizer": EVERYTHING, "schedule": optax.constant_schedule(1.0)}, "the schedule optax.*constant_schedule"),
    ):
        with pytest.raises(UserError, match=said):
            one_device.pretrain(finished, **given)


def test_a_run_from_a_model_begins_with_a_state_of_its_parameters(finished, tmp_path):
    """Not with one of the parameters that it would have drawn."""
    begun = dataclasses.replace(finished, workdir=str(tmp_path / "next"), init_from=finished.workdir, seed=5)
    stored = open_stored(finished.workdir).arrays
    one_device.pretrain(begun, optimizer=pulled_back(1.0), schedule=lambda step: 1.0 * (step > 0))
    kernel = "encoder/attention/query/kernel"
    first = values(f"{begun.workdir}/checkpoints/step_000000001")[kernel]
    np.testing.assert_array_equal(first, stored[kernel].read((slice(None),) * 4))  # the rate of step 0 is 0
    # p − 1 · (gradient + p − first) = first − gradient: clipped gradients are small, other parameters are not.
    second = values(f"{begun.workdir}/checkpoints/step_000000002")[kernel]
    drawn = BertForPreTraining(read_config(begun.workdir).model).init(jax.random.key(0))["encoder"]["attention"][
        "query"
    ]["kernel"]
    assert 0 < np.linalg.norm(second - first) < 1 < np.linalg.norm(drawn - first)


MESHES = [MeshConfig(data=2, fsdp=2, tensor=2), pytest.param(MeshConfig(data=1, fsdp=8), marks=pytest.mark.slow)]


@pytest.mark.parametrize("mesh", MESHES, ids=lambda mesh: f"{mesh.data}x{mesh.fsdp}x{mesh.tensor}")
def test_on_any_mesh_the_steps_are_those_of_one_device(mesh, finished, tmp_path):
    options = dataclasses.replace(finished, workdir=str(tmp_path / "run"), mesh=mesh)
    pretrain(options, optimizer=EVERYTHING, schedule=falling)
    found, expected = ([row["loss"] for row in rows(each.workdir)] for each in (options, finished))
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    sized = read_config(options.workdir)
    learner = Learner.of(sized, sharding.make_mesh(mesh), default_objective, optimizer=EVERYTHING)
    factored, moments, noise, first = learner.abstract.optimizer_state.optimizer
    split = lambda leaf: leaf.sharding.spec
    for tree in (moments.trace, first["first"]):
        assert jax.tree.map(split, tree) == jax.tree.map(split, learner.abstract.params)
    whole = jax.tree.leaves((noise, factored.count, factored.v_row["encoder"]["feed_forward"]))
    assert all(leaf.sharding.is_fully_replicated for leaf in whole)
    assert learner._moments >= 3  # the trace, the first parameters, the average; and something of the factored ones


def test_a_gradient_that_is_not_finite_changes_nothing():
    params = {"a": jnp.arange(6.0).reshape(2, 3), "b": jnp.ones(4)}
    rule = given_optimizer(EVERYTHING)
    state = TrainState(step=jnp.int32(3), params=params, optimizer_state=rule.init(params))
    step = jax.jit(lambda state, slopes, loss: updated(state, slopes, loss, rule, jnp.float32(0.1), 1.0))
    good = jax.tree.map(jnp.ones_like, params)
    bad = good | {"b": jnp.array([1.0, jnp.nan, 1.0, 1.0])}
    for slopes, loss in ((bad, 1.0), (good, jnp.inf)):
        found, metrics = step(state, slopes, jnp.float32(loss))
        assert metrics["skipped"] == 1 and found.step == 4
        for one, other in zip(jax.tree.leaves(found)[1:], jax.tree.leaves(state)[1:], strict=True):
            np.testing.assert_array_equal(one, other)
    found, metrics = step(state, good, jnp.float32(1.0))
    assert metrics["skipped"] == 0 and not np.array_equal(found.params["a"], params["a"])


def test_the_state_has_arrays_of_its_own():
    """A step gives the memory of parameters and state away, so they may not share it."""
    params = {"a": jnp.arange(3.0)}
    state = jax.jit(given_optimizer(pulled_back(1.0)).init)(params)
    assert state["first"]["a"].unsafe_buffer_pointer() != params["a"].unsafe_buffer_pointer()
    assert average_of(state) is None


def test_what_is_no_optimizer_or_no_schedule_is_refused():
    with pytest.raises(UserError, match="optimizer='lion' is no optax.GradientTransformation"):
        given_optimizer("lion")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match=r"schedule returns an array \[2\] for a step"):
        given_schedule(lambda step: jnp.stack([step, step]))
    assert given_schedule(lambda step: 3)(jnp.int32(0)).dtype == jnp.float32
