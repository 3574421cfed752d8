"""Checkpoints: exact round trips on any mesh, damaged steps, retention, failed writes, models that do not fit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from small_states import abstract, assert_same_bits, make_state, write_steps

from bert_jax.checkpoints import record as fingerprints
from bert_jax.checkpoints import steps as manager
from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.record import PIECE, SEEDS, fingerprint, host_fingerprint
from bert_jax.config import CheckpointConfig


def test_saving_does_not_ask_about_preemption(tmp_path, monkeypatch):
    """Hosts agree on the number of the last call: a step of Orbax's between two of the loop's would lose a notice."""
    asked = []
    monkeypatch.setattr(multihost_utils, "reached_preemption_sync_point", asked.append)
    write_steps(tmp_path, 1, 2)
    assert Checkpoints(tmp_path, read_only=True).steps() == [1, 2] and not asked


def test_round_trip_is_exact(tmp_path):
    bits = np.array(
        [0x80000000, 1, 0x7F800000, 0xFF800000, 0x7FC00000, 0x3F800000], np.uint32
    )  # -0, subnormal, +-inf, nan, 1
    state = {
        "floats": jnp.asarray(bits.view(np.float32)),
        "step": jnp.int32(2**31 - 1),
        "half": jnp.asarray([-0.0, 3e-39], jnp.bfloat16),
        "flags": jnp.asarray([True, False]),
        "on the host": np.array([-0.0, 1.5], np.float32),
    }
    position = {"examples_seen": 2**40 + 1, "phase": 1}
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        assert checkpoints.restore(abstract(state)) is None
        assert checkpoints.save(
            7, state, position=position, config={"layers": 2}, metrics={"mlm_loss": np.float32(0.1)}
        )
        assert not checkpoints.save(7, state, position=position, config={})
        restored = checkpoints.restore(abstract(state))
    assert_same_bits(state, restored.state)
    assert (restored.step, restored.position) == (7, position)
    assert restored.config == {"layers": 2} and restored.metrics == {"mlm_loss": float(np.float32(0.1))}


def test_state_may_be_donated_while_the_save_runs(tmp_path):
    state = make_state(1, rows=4096)
    expected = jax.tree.map(np.array, state)
    change = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state, position={}, config={})
        for _ in range(20):
            state = change(state)
        restored = checkpoints.restore(abstract(state))
    assert_same_bits(expected, restored.state)


MESHES = {"8x1x1": (8, 1, 1), "2x2x2": (2, 2, 2), "1x8x1": (1, 8, 1), "1x1x1": (1, 1, 1)}


def shardings(name: str, tree):
    shape = MESHES[name]
    mesh = Mesh(np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape), ("data", "fsdp", "tensor"))
    specs = {0: PartitionSpec(), 1: PartitionSpec("fsdp"), 2: PartitionSpec("fsdp", "tensor")}
    return jax.tree.map(lambda x: NamedSharding(mesh, specs[x.ndim]), tree)


@pytest.mark.parametrize(
    "saved_on, restored_on", [("8x1x1", "1x1x1"), ("1x8x1", "2x2x2"), ("2x2x2", "1x8x1"), ("1x1x1", "2x2x2")]
)
def test_restores_onto_another_mesh(tmp_path, saved_on, restored_on, road):
    state = make_state(5)
    original = fingerprint(state)
    placed = jax.device_put(state, shardings(saved_on, state))
    assert fingerprint(placed) == original
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(5, placed, position={}, config={})
    target = shardings(restored_on, state)
    wanted = jax.tree.map(lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), state, target)
    restored = Checkpoints(tmp_path, read_only=True).restore(wanted).state
    assert_same_bits(state, restored)
    assert fingerprint(restored) == original
    assert all(leaf.sharding == sharding for leaf, sharding in zip(jax.tree.leaves(restored), jax.tree.leaves(target)))


@pytest.fixture(params=["by NumPy", "by programs"])
def road(request, monkeypatch) -> None:
    """How small arrays are hashed."""
    monkeypatch.setattr(fingerprints, "SMALL", 1 << 30 if request.param == "by NumPy" else -1)


@pytest.mark.parametrize("least, slices", [(manager.SMALLEST_SLICE, 0), (1024, 8)], ids=["small", "large"])
def test_copies_of_large_arrays_alone_are_cut_into_slices(tmp_path, monkeypatch, caplog, least, slices):
    """Eight copies of 8 KiB; each slice is a program that must be compiled, and all are read again either way."""
    monkeypatch.setattr(manager, "SMALLEST_SLICE", least)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    values = np.random.default_rng(least).normal(size=(8, 256)).astype(np.float32)
    state = {"x": jax.device_put(values, NamedSharding(mesh, PartitionSpec()))}
    with Checkpoints(tmp_path) as checkpoints:
        with jax.log_compiles():
            checkpoints.save(1, state, position={}, config={})
        assert len([line for line in caplog.messages if "Compiling jit(slice)" in line]) == slices
        assert_same_bits(state, checkpoints.restore(abstract(state)).state)


def test_fingerprint_is_the_same_by_numpy_and_by_programs(monkeypatch):
    mesh = jax.make_mesh((4, 2), ("a", "b"))
    tree = {
        **{
            name: np.arange(-6, 6).astype(name).reshape(3, 4)
            for name in ("bool", "int8", "float16", "bfloat16", "int32")
        },
        **{"scalar": 2.5, "count": jnp.int32(7), "empty": np.zeros((0, 4), np.float32), "keys": jax.random.key(3)},
        "split": jax.device_put(np.arange(32.0).reshape(8, 4), NamedSharding(mesh, PartitionSpec("a", "b"))),
        "copies": jax.device_put(jax.random.split(jax.random.key(1), 3), NamedSharding(mesh, PartitionSpec())),
    }
    by_numpy = fingerprint(tree)
    monkeypatch.setattr(fingerprints, "SMALL", -1)
    assert fingerprint(tree) == by_numpy


def reference_fingerprint(x: np.ndarray) -> str:
    """The definition in plain numpy: sum over elements of mix(word ^ mix(position + seed)), modulo 2^32."""

    def mix(h):
        h = ((h ^ (h >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
        h = ((h ^ (h >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
        return h ^ (h >> 16)

    words = [int(word) for word in x.ravel().view(np.uint32)]
    sums = [sum(mix(word ^ mix((place + seed) % 2**32)) for place, word in enumerate(words)) for seed in SEEDS]
    return "".join(f"{value % 2**32:08x}" for value in sums)


@pytest.mark.parametrize(
    "shape", [(), (0, 3), (768,), (3, 5, 7), (PIECE - 1,), (PIECE,), (PIECE + 1,), (3, PIECE // 2)]
)
def test_fingerprint_on_the_host_is_the_same(shape, road):
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    assert host_fingerprint(values) == fingerprint({"x": values})["x"]
    if values.size:
        values.reshape(-1).view(np.uint32)[-1] ^= 1
        assert host_fingerprint(values) == fingerprint({"x": values})["x"] != fingerprint({"x": values.T * 2})["x"]


def test_fingerprint_equals_its_definition_and_sees_small_changes(road):
    x = np.random.default_rng(0).normal(size=(3, 5, 7)).astype(np.float32)
    assert fingerprint({"x": x, "i": np.arange(9, dtype=np.int32)}) == {
        "x": reference_fingerprint(x),
        "i": reference_fingerprint(np.arange(9, dtype=np.int32)),
    }
    flipped = x.copy()
    flipped.view(np.uint32)[2, 4, 6] ^= 1
    swapped = x.copy()
    swapped[0, 0, [0, 1]] = swapped[0, 0, [1, 0]]
    zeros = np.zeros_like(x)
    prints = {fingerprint({"x": value})["x"] for value in (x, flipped, swapped, zeros, -zeros, x.reshape(5, 21).T)}
    assert len(prints) == 6
    assert fingerprint({"x": np.float64([1.0])}) == fingerprint(
        {"x": np.float32([1.0])}
    )  # jax without x64 sees float32


def test_keeps_the_last_and_the_best(tmp_path):
    small = {"x": jnp.zeros(2)}
    losses = {1: 5.0, 2: 3.0, 3: float("nan"), 4: 4.0, 5: None, 6: 6.0, 7: None}
    kept = []
    for steps in ((1, 2, 3, 4), (5, 6, 7)):  # the second opening knows the losses from disk
        with Checkpoints(tmp_path, CheckpointConfig(keep_last=2, keep_best=1), best_metric="mlm_loss") as checkpoints:
            for step in steps:
                metrics = None if losses[step] is None else {"mlm_loss": losses[step], "mlm_accuracy": 0.5}
                checkpoints.save(step, small, position={}, config={}, metrics=metrics)
        kept.append(checkpoints.steps())
    assert kept == [[2, 3, 4], [2, 6, 7]]


def test_without_a_finite_loss_only_the_last_stay(tmp_path):
    with Checkpoints(tmp_path, CheckpointConfig(keep_last=1, keep_best=2), best_metric="mlm_loss") as checkpoints:
        for step, metrics in enumerate([{"mlm_loss": float("nan")}, {"mlm_loss": float("-inf")}, None, {"loss": 1.0}]):
            checkpoints.save(step, {"x": jnp.zeros(2)}, position={}, config={}, metrics=metrics)
    assert checkpoints.steps() == [3]


def test_the_best_are_those_of_the_latest_phase(tmp_path):
    """Each phase has a sequence length of its own, and losses of different lengths do not compare."""
    saved = [
        (1, {}, 1.0),
        (2, {"phase": 0}, 2.0),
        (3, {"phase": 0}, 3.0),
        (4, {"phase": 1}, 6.0),
        (5, {"phase": 1}, 5.0),
        (6, {"phase": 1}, None),
    ]
    kept = []
    for best in (2, 3, 4):
        for part in (saved[:4], saved[4:]):  # the second opening knows losses and phases from disk
            with Checkpoints(
                tmp_path / str(best), CheckpointConfig(keep_last=1, keep_best=best), best_metric="mlm_loss"
            ) as checkpoints:
                for step, position, loss in part:
                    checkpoints.save(
                        step,
                        {"x": jnp.zeros(2)},
                        position=position,
                        config={},
                        metrics=None if loss is None else {"mlm_loss": loss},
                    )
        kept.append(checkpoints.steps())
    assert kept == [[4, 5, 6], [1, 4, 5, 6], [1, 2, 4, 5, 6]]  # a record of before phases were written is of the first
