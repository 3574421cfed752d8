"""Local saves of two hosts, each with a disk of its own: lost, damaged, exchanged, and read by one host."""

import dataclasses
import json
import pathlib
import re
import shutil
import signal
import subprocess

import jax
import numpy as np
import pytest
from pod import finish, logs, run_on_two_hosts, start
from processes import wait_until
from small_pretraining import nothing_held_out, rows, run_config

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.local_tier import LocalTier
from bert_jax.config import CheckpointConfig, MeshConfig, PhaseConfig
from bert_jax.config.options import to_dict

pytestmark = pytest.mark.slow

HOST = """
import pathlib, shutil
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
home = pathlib.Path(arguments[0])
from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.local_tier import LocalTier
from bert_jax.devices.hosts import from_first

mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("hosts", "local"))
specs = {"split": PartitionSpec("hosts", "local"), "replicated": PartitionSpec(None, "local")}
bits = np.random.default_rng(0).integers(0, 2**32, (64, 1024), np.uint32)
bits[0, :2] = 0x80000000, 0x7FC00001
full = bits.view(np.float32)
disk, other = home / f"disk{host}", home / f"disk{1 - host}"

def open_at(where, local):
    return Checkpoints(home / where, run_id="run", local=LocalTier(local, "run"))

def scenario(name, saved, restored, fault, local=disk, then=None):
    placed = lambda kind, step: jax.make_array_from_callback(
        full.shape, NamedSharding(mesh, specs[kind]), lambda index: full[index] * 2.0 ** -step)
    shutil.rmtree(disk, ignore_errors=True)
    from_first(None)
    with open_at(name, local) as checkpoints:
        checkpoints.save(1, {"x": placed(saved, 1)}, position={}, config={"host": 0})
        for step in (3, 5):
            checkpoints.local.save(step, {"x": placed(saved, step)}, position={}, config={"host": host})
    fault()
    from_first(None)
    with open_at(name, then or local) as checkpoints:
        sharding = NamedSharding(mesh, specs[restored])
        found = checkpoints.restore({"x": jax.ShapeDtypeStruct(full.shape, full.dtype, sharding=sharding)})
        expected = placed(restored, found.step)
        for ours, theirs in zip(found.state["x"].addressable_shards, expected.addressable_shards):
            assert np.asarray(ours.data).tobytes() == np.asarray(theirs.data).tobytes()
        # The next save goes on from there, and leaves two steps at most.
        for step in (7, 9, 11):
            checkpoints.local.save(step, {"x": expected}, position={}, config={})
        checkpoints.local.wait()
        assert len(list((then or local).glob(f"run/host_{host}/step_*"))) == 2
    print(name, found.step, flush=True)

def flip(on, *steps):
    def act():
        for step in steps if host in on else ():
            file = disk / "run" / f"host_{host}" / f"step_{step:09d}" / "arrays"
            contents = bytearray(file.read_bytes())
            contents[len(contents) // 2] ^= 1
            file.write_bytes(contents)
    return act

def lose(on):
    return lambda: shutil.rmtree(disk) if host in on else None

nothing = lambda: None
scenario("replicated-disk-lost", "replicated", "replicated", lose([1]))
scenario("replicated-first-disk-lost-and-split", "replicated", "split", lose([0]))
scenario("replicated-one-damaged", "replicated", "replicated", flip([0], 5))
scenario("replicated-all-damaged", "replicated", "replicated", flip([0, 1], 5))
scenario("split", "split", "split", nothing)
scenario("split-to-replicated", "split", "replicated", nothing)
scenario("split-disk-lost", "split", "split", lose([1]))
scenario("split-one-damaged", "split", "split", flip([1], 5))
scenario("split-damaged-twice", "split", "split", lambda: (flip([1], 3)(), flip([0], 5)()))
scenario("split-hosts-renumbered", "split", "split", nothing, then=other)
from_first(None)
tier = LocalTier(home / "common", "run")
tier.save(8, {"x": jax.make_array_from_callback(
    full.shape, NamedSharding(mesh, specs["split"]), lambda index: full[index])}, position={}, config={})
tier.close()
from_first(None)
"""

USED = {
    **{"replicated-disk-lost": 5, "replicated-first-disk-lost-and-split": 5, "replicated-one-damaged": 5},
    **{"replicated-all-damaged": 3, "split": 5, "split-to-replicated": 5, "split-disk-lost": 1, "split-one-damaged": 3},
    **{"split-damaged-twice": 1, "split-hosts-renumbered": 5},
}


def test_the_newest_step_that_the_disks_have_whole_is_used(tmp_path):
    for output in run_on_two_hosts(HOST, str(tmp_path)):
        expected = {name: str(step) for name, step in USED.items()}
        assert dict(re.findall(r"^((?:replicated|split)\S*) (\d+)$", output, re.MULTILINE)) == expected
    # One process now, with the disk on which two have saved a half each.
    full = np.random.default_rng(0).integers(0, 2**32, (64, 1024), np.uint32)
    full[0, :2] = 0x80000000, 0x7FC00001
    with Checkpoints(tmp_path / "checkpoints", local=LocalTier(tmp_path / "common", "run")) as checkpoints:
        restored = checkpoints.restore({"x": jax.ShapeDtypeStruct(full.shape, np.float32)})
    assert restored.step == 8 and np.asarray(restored.state["x"]).tobytes() == full.tobytes()


def test_hosts_killed_between_checkpoints_resume_from_a_surviving_disk(small_store, tmp_path):
    """kill -9 of both, and the disk of the second one is lost: losses equal those of an uninterrupted run exactly."""
    changes = {
        "mesh": MeshConfig(data=2, fsdp=2),
        "phases": (PhaseConfig(steps=30, sequence_length=32, batch_size=16, learning_rate=1e-3, warmup_steps=2),),
        "data": nothing_held_out(small_store),
    }
    kept = CheckpointConfig(every_steps=10, keep_best=0)
    whole = run_config(small_store, tmp_path / "whole", checkpoint=kept, **changes)
    checkpoint = dataclasses.replace(kept, local_path=str(tmp_path / "disk0"), local_every_steps=3)
    killed = run_config(small_store, tmp_path / "killed", checkpoint=checkpoint, **changes)

    def launched(config) -> list[subprocess.Popen]:
        file = pathlib.Path(config.workdir).with_suffix(".json")
        file.write_text(json.dumps(to_dict(config)))
        own = (f"--checkpoint.local_path={tmp_path / 'disk1'}",) if config.checkpoint.local_path else ()
        return start(["pretrain", str(file)], config.workdir, 2, own)

    assert finish(launched(whole), whole) == [0, 0], logs(whole)
    hosts = launched(killed)
    wait_until(
        lambda: any(row["step"] >= 13 for row in rows(killed.workdir)),
        lambda: hosts[0].poll() is None,
        lambda: logs(killed),
    )
    for host in hosts:
        host.send_signal(signal.SIGKILL)
    finish(hosts, killed)
    local = max(int(path.name[-9:]) for path in tmp_path.glob("disk0/*/host_0/step_*"))
    durable = Checkpoints(tmp_path / "killed" / "checkpoints", read_only=True).latest_step()
    assert 12 <= local < 30 and local % 3 == 0
    shutil.rmtree(tmp_path / "disk1")
    assert finish(launched(killed), killed) == [0, 0], logs(killed)
    assert f"resuming from step {max(local, durable)}" in (tmp_path / "killed.log").read_text()
    assert rows(killed.workdir) == rows(whole.workdir)
    assert list((tmp_path / "disk0").iterdir()) == list((tmp_path / "disk1").iterdir()) == []
