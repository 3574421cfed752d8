"""Saves that fail, come late, or end with their process; and two hosts that walk back together."""

import contextlib
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
from processes import wait_until
from small_states import abstract, assert_same_bits, make_state
from two_hosts import run_on_two_hosts

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.steps import Manager
from bert_jax.config import CheckpointConfig
from bert_jax.errors import UserError


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
