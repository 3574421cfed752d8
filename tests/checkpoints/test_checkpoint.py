"""Checkpoints: saved and restored, steps that are damaged, and saves that fail."""

import contextlib
import dataclasses
import errno
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from pod import run_on_two_hosts
from processes import wait_until
from small_states import KEEP_ALL, abstract, assert_same_bits, make_state, write_steps

from bert_jax.checkpoints import record as fingerprints
from bert_jax.checkpoints import steps as manager
from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.record import PIECE, SEEDS, fingerprint, host_fingerprint
from bert_jax.checkpoints.steps import Manager
from bert_jax.config import CheckpointConfig
from bert_jax.errors import UserError


def test_saving_does_not_ask_about_preemption(tmp_path, monkeypatch):
    """Hosts agree on the number of the last call: a step of Orbax's between two of the loop's would lose a notice."""
    asked = []
    monkeypatch.setattr(multihost_utils, "reached_preemption_sync_point", asked.append)
    write_steps(tmp_path, 1, 2)
    assert Checkpoints(tmp_path, read_only=True).steps() == [1, 2] and not asked


def test_round_trip_is_exact(tmp_path):
    # -0, subnormal, +-inf, nan, 1.
    bits = np.array([0x80000000, 1, 0x7F800000, 0xFF800000, 0x7FC00000, 0x3F800000], np.uint32)
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
        metrics = {"mlm_loss": np.float32(0.1)}
        assert checkpoints.save(7, state, position=position, config={"layers": 2}, metrics=metrics)
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
    # JAX without x64 sees float32.
    assert fingerprint({"x": np.float64([1.0])}) == fingerprint({"x": np.float32([1.0])})


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
    of_phases = [(2, 0, 2.0), (3, 0, 3.0), (4, 1, 6.0), (5, 1, 5.0), (6, 1, None)]
    saved = [(1, {}, 1.0), *((step, {"phase": phase}, loss) for step, phase, loss in of_phases)]
    kept = []
    for best in (2, 3, 4):
        for part in (saved[:4], saved[4:]):  # the second opening knows losses and phases from disk
            keep = CheckpointConfig(keep_last=1, keep_best=best)
            with Checkpoints(tmp_path / str(best), keep, best_metric="mlm_loss") as checkpoints:
                for step, position, loss in part:
                    metrics = None if loss is None else {"mlm_loss": loss}
                    checkpoints.save(step, {"x": jnp.zeros(2)}, position=position, config={}, metrics=metrics)
        kept.append(checkpoints.steps())
    assert kept == [[4, 5, 6], [1, 4, 5, 6], [1, 2, 4, 5, 6]]  # a record of before phases were written is of the first


def largest_file(directory: pathlib.Path) -> pathlib.Path:
    return max((path for path in directory.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def flip_bit(step: pathlib.Path) -> None:
    path = largest_file(step / "state")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def truncate(step: pathlib.Path) -> None:
    path = largest_file(step / "state")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def change_position(step: pathlib.Path) -> None:
    path = largest_file(step / "record")
    text = path.read_text()
    assert '"examples_seen": 64' in text
    path.write_text(text.replace('"examples_seen": 64', '"examples_seen": 65'))


def empty(step: pathlib.Path) -> None:
    shutil.rmtree(step)
    step.mkdir()


DAMAGES = {
    "bit flip": (flip_bit, "the array params/embeddings/word/table has changed"),
    "truncated": (truncate, "the array params/embeddings/word/table cannot be read"),
    "deleted": (
        lambda step: largest_file(step / "state").unlink(),
        "the array params/embeddings/word/table cannot be read",
    ),
    "manifest deleted": (lambda step: (step / "state" / "manifest.ocdbt").unlink(), "cannot be used"),
    "position changed": (change_position, "checksum"),
    "record garbage": (lambda step: largest_file(step / "record").write_bytes(b"\xff{"), "cannot be used"),
    "no record": (lambda step: shutil.rmtree(step / "record"), "cannot be used"),
    "empty directory": (empty, "cannot be used"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_newest_step_gives_way_to_the_older(tmp_path, caplog, damage):
    states = write_steps(tmp_path, 1, 2)
    apply, said = DAMAGES[damage]
    apply(tmp_path / "step_000000002")
    with Checkpoints(tmp_path, KEEP_ALL) as checkpoints:
        restored = checkpoints.restore(abstract(states[1]))
        assert (restored.step, restored.position, restored.config) == (1, {"examples_seen": 32}, {"seed": 1})
        assert_same_bits(states[1], restored.state)
        assert "step 2" in caplog.text and said in caplog.text
        assert checkpoints.steps() == [1]
        # The run passes the place again.
        assert checkpoints.save(2, states[2], position={"examples_seen": 64}, config={})
    assert_same_bits(states[2], Checkpoints(tmp_path, read_only=True).restore(abstract(states[2])).state)
    assert (tmp_path / "damaged_step_000000002").is_dir()


@pytest.mark.parametrize("name", ["_METADATA", "_sharding"])
def test_what_orbax_notes_beside_the_arrays_is_not_needed(tmp_path, name):
    states = write_steps(tmp_path, 1)
    (tmp_path / "step_000000001" / "state" / name).write_text("{")
    assert_same_bits(states[1], Checkpoints(tmp_path, read_only=True).restore(abstract(states[1])).state)


@pytest.mark.parametrize(
    "ours, theirs", [("a" * 32, "b" * 32), ("a" * 32, None), (None, "b" * 32), ("a" * 32, "a" * 32 + "/seed0")]
)
def test_a_step_of_another_run_gives_way_to_an_older_one_of_this_run(tmp_path, caplog, ours, theirs):
    states = write_steps(tmp_path / "ours", 1, run_id=ours)
    write_steps(tmp_path / "theirs", 2, run_id=theirs)
    shutil.copytree(tmp_path / "theirs" / "step_000000002", tmp_path / "ours" / "step_000000002")
    with Checkpoints(tmp_path / "ours", KEEP_ALL, run_id=ours) as checkpoints:
        restored = checkpoints.restore(abstract(states[1]))
        assert restored.step == 1 and checkpoints.steps() == [1]
        assert_same_bits(states[1], restored.state)
        assert f"step 2 in {tmp_path / 'ours'} cannot be used" in caplog.text
        assert f"it is a step of another run, {theirs!r}, not of {ours!r}" in caplog.text
    shutil.rmtree(tmp_path / "ours" / "step_000000001")
    (tmp_path / "ours" / "damaged_step_000000002").rename(tmp_path / "ours" / "step_000000002")
    with pytest.raises(UserError, match=r"none of the 1 checkpoints .*step 2: .*a step of another run"):
        Checkpoints(tmp_path / "ours", read_only=True, run_id=ours).restore(abstract(states[1]))


def test_a_step_under_another_number_gives_way_to_an_older_one(tmp_path, caplog):
    states = write_steps(tmp_path, 1, 2, run_id="a")
    shutil.copytree(tmp_path / "step_000000001", tmp_path / "step_000000003")
    with Checkpoints(tmp_path, KEEP_ALL, run_id="a") as checkpoints:
        assert checkpoints.restore(abstract(states[1])).step == 2
        assert "step 3 in" in caplog.text and "it is step 1 under another number" in caplog.text
        assert checkpoints.save(3, states[1], position={}, config={})


def test_reading_changes_nothing(tmp_path):
    states = write_steps(tmp_path, 1, 2)
    flip_bit(tmp_path / "step_000000002")
    (tmp_path / "step_000000003.orbax-checkpoint-tmp").mkdir()  # another process is saving
    (tmp_path / "notes").mkdir()
    (tmp_path / "0009").mkdir()
    before = sorted(tmp_path.rglob("*"))
    reader = Checkpoints(tmp_path, read_only=True)
    assert reader.steps() == [1, 2] and reader.restore(abstract(states[1])).step == 1
    assert sorted(tmp_path.rglob("*")) == before
    assert Checkpoints(tmp_path / "absent", read_only=True).restore(abstract(states[1])) is None
    assert not (tmp_path / "absent").exists()


def test_nothing_usable_is_an_error_and_never_step_zero(tmp_path):
    states = write_steps(tmp_path, 1, 2)
    for step in (1, 2):
        flip_bit(tmp_path / f"step_00000000{step}")
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(UserError, match=r"none of the 2 checkpoints .*step 2: the array \S+ has changed; step 1: "):
            checkpoints.restore(abstract(states[1]))
        assert checkpoints.steps() == [1, 2]


def test_another_model_is_refused_by_name(tmp_path):
    write_steps(tmp_path, 1)
    reader = Checkpoints(tmp_path, read_only=True)
    message = r"params/embeddings/word/table: checkpoint float32\[256, 64\], model float32\[320, "
    with pytest.raises(UserError, match=message):
        reader.restore(abstract(make_state(rows=320)))
    state = abstract(make_state())
    half = {**state.params["pooler"], "bias": jax.ShapeDtypeStruct((16,), jnp.bfloat16)}
    message = r"step 1 .*params/pooler/bias: checkpoint float32\[16\], model bfloat16\[16\]\. "
    with pytest.raises(UserError, match=message):
        reader.restore(dataclasses.replace(state, params={**state.params, "pooler": half}))
    message = r"params/pooler/bias: checkpoint float32\[16\], model none; params/pooler/kernel"
    with pytest.raises(UserError, match=message):
        reader.restore(dataclasses.replace(state, params={"embeddings": state.params["embeddings"]}))


@contextlib.contextmanager
def file_size_limit(size: int):
    """Writes beyond `size` bytes fail as on a full disk."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def test_failed_background_save_is_reported_and_leaves_the_older_step(tmp_path):
    small, large = make_state(1), make_state(2, rows=20_000)
    checkpoints = Checkpoints(tmp_path, CheckpointConfig(keep_last=1, keep_best=0))
    checkpoints.save(1, small, position={}, config={})
    checkpoints.wait()
    with (
        file_size_limit(1_000_000),
        pytest.raises(UserError, match=r"step 2 .* failed: File too large; the newest good one is step 1.*free space"),
    ):
        checkpoints.save(2, large, position={}, config={})
        wait_until(checkpoints.poll)  # as the training loop does after each step, until the failure is known
    assert checkpoints.latest_step() == 1
    checkpoints.close()
    with Checkpoints(tmp_path) as again:
        assert_same_bits(small, again.restore(abstract(small)).state)
        assert again.save(2, large, position={}, config={})
        again.wait()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000000001", "step_000000002"]


def test_late_writes_of_a_lost_save_neither_stop_nor_join_the_next(tmp_path, monkeypatch):
    """Orbax does not await the other writes of a save that has failed, and TensorStore makes the directories anew."""
    directory, state, stopped, late = tmp_path / "checkpoints", make_state(2), threading.Event(), []
    remains = directory / f"step_000000002{ocp.path.atomicity.TMP_DIR_SUFFIX}" / "state" / "late"

    def lose(manager):
        finish(manager)
        shutil.rmtree(directory)
        raise FileNotFoundError(errno.ENOENT, "no such file", str(directory))

    def write_late():
        while not stopped.is_set():
            late.append(remains / str(len(late)))
            with contextlib.suppress(FileNotFoundError):  # removed in between
                remains.mkdir(parents=True, exist_ok=True)
                late[-1].write_bytes(b"late")

    finish, writer = Manager.wait_until_finished, threading.Thread(target=write_late)
    with Checkpoints(directory, lost=lambda: not directory.exists()) as checkpoints:
        checkpoints.save(2, state, position={}, config={})
        with monkeypatch.context() as patch:
            patch.setattr(Manager, "wait_until_finished", lose)
            checkpoints.wait()
        try:
            writer.start()
            wait_until(lambda: len(late) > 20)
            checkpoints.reload()
            assert checkpoints.save(2, state, position={}, config={})
            checkpoints.wait()
        finally:
            stopped.set()
            writer.join()
        assert checkpoints.steps() == [2]
        assert_same_bits(checkpoints.restore(abstract(state)).state, state)
    assert not list((directory / "step_000000002").rglob("late"))
    with Checkpoints(directory):  # the next start removes them in the background
        wait_until(lambda: [path.name for path in directory.iterdir()] == ["step_000000002"])


def test_a_step_during_whose_save_the_directory_was_lost_is_saved_again(tmp_path):
    """Part of its files may be where the directory is now, although the rest could be committed."""
    state = make_state(2)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(2, state, position={}, config={})
        checkpoints.reload()
        assert checkpoints.steps() == [] and checkpoints.save(2, state, position={}, config={})
        checkpoints.wait()
        assert checkpoints.steps() == [2]


def test_unwritable_place_is_an_error_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write checkpoints below"):
        Checkpoints(tmp_path / "file" / "checkpoints")


KILLED = """
import sys, jax.numpy as jnp, numpy as np
from bert_jax.checkpoints.checkpoint import Checkpoints
checkpoints = Checkpoints(sys.argv[1])
for step in range(1, 1000):
    state = {"x": jnp.full((2000, 2000), step, jnp.float32)}
    checkpoints.save(step, state, position={"examples_seen": step}, config={})
    print(step, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 0.05, 0.15, 0.3])
def test_kill_during_a_save_leaves_whole_steps_only(tmp_path, delay):
    command, environment = [sys.executable, "-c", KILLED, str(tmp_path)], {**os.environ, "JAX_PLATFORMS": "cpu"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        while int(process.stdout.readline()) < 4:
            pass
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
    with Checkpoints(tmp_path) as checkpoints:
        restored = checkpoints.restore({"x": jax.ShapeDtypeStruct((2000, 2000), jnp.float32)})
        assert restored.step >= 3 and restored.position == {"examples_seen": restored.step}
        assert (np.asarray(restored.state["x"]) == restored.step).all()
        assert checkpoints.save(restored.step + 1, restored.state, position={}, config={})


HOST = """
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from bert_jax.checkpoints.checkpoint import Checkpoints
sharding = NamedSharding(Mesh(np.array(jax.devices()), ("fsdp",)), PartitionSpec("fsdp"))
directory, action = arguments
full = np.random.default_rng(0).normal(size=(64, 1024)).astype(np.float32)
state = {"x": jax.make_array_from_callback(full.shape, sharding, lambda index: full[index])}
with Checkpoints(directory) as checkpoints:
    if action == "save":
        saved = [checkpoints.save(step, state, position={"step": step}, config={}) for step in (1, 2)]
    else:
        restored = checkpoints.restore({"x": jax.ShapeDtypeStruct(full.shape, full.dtype, sharding=sharding)})
        for shard in restored.state["x"].addressable_shards:
            assert (np.asarray(shard.data) == full[shard.index]).all()
        saved = [restored.position, checkpoints.save(2, state, position={"step": 2}, config={})]
print(saved)
"""


def last_lines(directory: pathlib.Path, action: str) -> list[str]:
    return [output.splitlines()[-1] for output in run_on_two_hosts(HOST, str(directory), action)]


@pytest.mark.slow
def test_two_hosts_walk_back_together_when_one_alone_meets_a_damaged_file(tmp_path):
    assert last_lines(tmp_path, "save") == ["[True, True]"] * 2
    # Written, and read again, by the second host; how many files it makes of its part depends on the moment.
    for part in (tmp_path / "step_000000002" / "state" / "ocdbt.process_1" / "d").iterdir():
        part.write_bytes(part.read_bytes()[: part.stat().st_size // 2])
    assert last_lines(tmp_path, "restore") == ["[{'step': 1}, True]"] * 2
    assert (tmp_path / "damaged_step_000000002").is_dir()
