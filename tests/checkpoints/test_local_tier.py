"""Frequent saves to a local disk by one process: exact, bounded, nearer than checkpoints, and given up when damaged."""

import json
import os
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from processes import SECONDS
from small_pretraining import pretrain, rows, run_config

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.local_tier import LocalTier, _choose
from bert_jax.checkpoints.record import sealed
from bert_jax.config import CheckpointConfig
from bert_jax.errors import UserError
from bert_jax.training.events import read_events
from bert_jax.training.metrics import Metrics

SHAPES = {"kernel": (64, 48), "bias": (48,), "half": (8, 4), "flags": (3,), "step": ()}
ROWS, COLUMNS = PartitionSpec(("data", "fsdp")), PartitionSpec(None, "fsdp")


def mesh(data: int, fsdp: int) -> Mesh:
    return Mesh(np.array(jax.devices()[: data * fsdp]).reshape(data, fsdp), ("data", "fsdp"))


def make_state(seed: int, mesh: Mesh, kernel: PartitionSpec = COLUMNS) -> dict:
    """Every bit pattern that additions or conversions would lose: negative zeros, subnormal numbers, NaN payloads."""
    bits = np.random.default_rng(seed).integers(0, 2**32, SHAPES["kernel"], np.uint32)
    bits[0, :3] = 0x80000000, 1, 0x7FC00001
    host = {
        "kernel": bits.view(np.float32),
        "bias": np.arange(48, dtype=np.float32) + seed,
        "half": np.full((8, 4), -0.0, jnp.bfloat16),
        "flags": np.array([True, False, True]),
        "step": np.int32(seed),
    }
    specs = {"kernel": kernel, "bias": PartitionSpec("fsdp")}
    return {
        name: jax.device_put(value, NamedSharding(mesh, specs.get(name, PartitionSpec())))
        for name, value in host.items()
    }


def abstract(state) -> dict:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state)


def assert_same_bits(a: dict, b: dict) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert (a[name].shape, a[name].dtype) == (b[name].shape, b[name].dtype)
        assert np.asarray(a[name]).tobytes() == np.asarray(b[name]).tobytes()


def saved(path, *steps: int, run_id: str = "run") -> dict[int, dict]:
    states = {step: make_state(step, mesh(2, 2)) for step in steps}
    tier = LocalTier(path, run_id)
    for step, state in states.items():
        tier.save(step, state, position={"examples_seen": 16 * step}, config={"seed": 1})
    tier.close()
    return states


def steps_of(path: pathlib.Path) -> list[str]:
    return sorted(found.name for found in path.glob("run/host_*/step_*"))


@pytest.mark.parametrize("size", [(2, 2), (1, 4), (8, 1), (1, 1)], ids=str)
@pytest.mark.parametrize("kernel", [ROWS, COLUMNS], ids=["rows", "columns"])
def test_the_newest_two_are_kept_and_restored_exactly_on_any_mesh(tmp_path, size, kernel):
    states = saved(tmp_path / "local", 3, 5, 9)
    assert steps_of(tmp_path / "local") == ["step_000000005", "step_000000009"]
    wanted = abstract(make_state(0, mesh(*size), kernel))
    with Checkpoints(tmp_path / "checkpoints", local=LocalTier(tmp_path / "local", "run")) as checkpoints:
        assert checkpoints.latest_step() == 9
        restored = checkpoints.restore(wanted)
    assert (restored.step, restored.position, restored.config) == (9, {"examples_seen": 144}, {"seed": 1})
    assert_same_bits(restored.state, states[9])
    assert all(restored.state[name].sharding == wanted[name].sharding for name in wanted)


def test_the_state_may_be_donated_while_it_is_written(tmp_path):
    state = make_state(4, mesh(2, 2))
    expected = jax.tree.map(np.array, state)
    change = jax.jit(lambda tree: jax.tree.map(lambda x: (x * 0).astype(x.dtype), tree), donate_argnums=0)
    tier = LocalTier(tmp_path, "run")
    tier.save(4, state, position={}, config={})
    state = change(state)
    tier.close()
    with Checkpoints(tmp_path / "checkpoints", local=LocalTier(tmp_path, "run")) as checkpoints:
        assert_same_bits(checkpoints.restore(abstract(state)).state, expected)


@pytest.mark.parametrize(
    "local, durable, used", [((3, 5), (4,), 5), ((3, 5), (6,), 6), ((3, 5), (5,), 5), ((), (2,), 2), ((), (), None)]
)
def test_the_newest_step_of_either_is_used_and_later_ones_are_removed(tmp_path, local, durable, used):
    saved(tmp_path / "local", *local)
    state = make_state(0, mesh(1, 1))
    with Checkpoints(tmp_path / "checkpoints", run_id="run") as checkpoints:
        for step in durable:
            checkpoints.save(step, state, position={}, config={})
    local_tier = LocalTier(tmp_path / "local", "run")
    with Checkpoints(tmp_path / "checkpoints", run_id="run", local=local_tier) as checkpoints:
        restored = checkpoints.restore(abstract(state))
        assert (None if restored is None else restored.step) == used
        checkpoints.finish()
    assert not (tmp_path / "local" / "run").exists()


def rewrite(file: pathlib.Path, change) -> None:
    content = json.loads(file.read_text())["content"]
    change(content)
    file.write_text(json.dumps(sealed(content)))


def flip(step: pathlib.Path):
    contents = bytearray((step / "arrays").read_bytes())
    contents[len(contents) // 2] ^= 1
    (step / "arrays").write_bytes(contents)


def record(change):
    return lambda step: rewrite(step / "metadata", change)


DAMAGES = {
    "flipped bit": flip,
    "cut": lambda step: (step / "arrays").write_bytes((step / "arrays").read_bytes()[:-1]),
    "no arrays": lambda step: (step / "arrays").unlink(),
    "no record": lambda step: (step / "metadata").unlink(),
    "record of another step": lambda step: shutil.copy(step.parent / "step_000000003" / "metadata", step),
    "record without its seal": lambda step: (step / "metadata").write_text('{"content": {"step": 5}}'),
    "offset beyond the end": record(lambda content: content["held"]["kernel"]["0"].update(offset=2**62)),
    "part beyond the array": record(lambda content: content["layout"]["kernel"][0][0].__setitem__(1, 2**40)),
    "part that is missing": record(lambda content: content["held"]["kernel"].pop("1")),
    "layout of words": record(lambda content: content["layout"].update(kernel=[["a", "b"]])),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_copy_gives_way_to_the_older_one_and_both_to_the_checkpoint(tmp_path, caplog, damage):
    states = saved(tmp_path / "local", 3, 5)
    host = tmp_path / "local" / "run" / "host_0"
    DAMAGES[damage](host / "step_000000005")
    state = make_state(1, mesh(1, 1))
    with Checkpoints(tmp_path / "checkpoints", run_id="run") as checkpoints:
        checkpoints.save(1, state, position={}, config={})

    def restore():
        tier = LocalTier(tmp_path / "local", "run")
        with Checkpoints(tmp_path / "checkpoints", run_id="run", local=tier) as checkpoints:
            return checkpoints.restore(abstract(state))

    restored = restore()
    assert restored.step == 3 and "the local copies of step 5 cannot be used" in caplog.text
    assert_same_bits(restored.state, states[3])
    assert steps_of(tmp_path / "local") == ["step_000000003"]
    flip(host / "step_000000003")
    assert_same_bits(restore().state, state)
    assert steps_of(tmp_path / "local") == []


def test_saves_of_another_run_are_neither_used_nor_removed(tmp_path):
    saved(tmp_path, 3, run_id="other")
    shutil.copytree(tmp_path / "other" / "host_0" / "step_000000003", tmp_path / "run" / "host_0" / "step_000000003")
    state = make_state(0, mesh(1, 1))
    with Checkpoints(tmp_path / "checkpoints", local=LocalTier(tmp_path, "run")) as checkpoints:
        assert checkpoints.restore(abstract(state)) is None
    assert (tmp_path / "other" / "host_0" / "step_000000003").is_dir()


def test_directories_of_hosts_that_are_gone_are_read_and_then_removed(tmp_path):
    """Two processes of this machine had half of the columns each; now there is one."""
    states = saved(tmp_path, 3, 5)
    one, two = tmp_path / "run" / "host_0", tmp_path / "run" / "host_1"
    two.mkdir()
    for step in ("step_000000003", "step_000000005"):
        shutil.copytree(one / step, two / step)
        for host, other in ((one, "0"), (two, "1")):
            for path in ("kernel", "bias"):
                rewrite(
                    host / step / "metadata", lambda content, path=path, other=other: content["held"][path].pop(other)
                )
    tier = LocalTier(tmp_path, "run")
    with Checkpoints(tmp_path / "checkpoints", local=tier) as checkpoints:
        restored = checkpoints.restore(abstract(states[5]))
        assert restored.step == 5
        assert_same_bits(restored.state, states[5])
        for step in (7, 9):
            tier.save(step, states[5], position={}, config={})
        tier.wait()
    assert list(two.glob("step_*")) == [] and len(list(one.glob("step_*"))) == 2


def test_a_copy_that_cannot_be_written_is_a_warning(tmp_path, caplog, monkeypatch):
    tier, state = LocalTier(tmp_path, "run"), make_state(1, mesh(1, 1))
    tier.save(1, state, position={}, config={})
    tier.wait()
    with monkeypatch.context() as patch:
        patch.setattr(pathlib.Path, "rename", lambda *_: (_ for _ in ()).throw(OSError(28, os.strerror(28))))
        tier.save(2, state, position={}, config={})
        tier.wait()
    assert "step 2 was not saved to" in caplog.text and "No space left on device" in caplog.text
    assert [entry.name for entry in (tmp_path / "run" / "host_0").glob("*_*")] == ["step_000000001"]
    tier.close()


def test_a_place_that_cannot_be_written_and_one_in_use_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot save below .*file: .*; give another --checkpoint.local_path"):
        LocalTier(tmp_path / "file", "run")
    first = LocalTier(tmp_path, "run")
    with pytest.raises(UserError, match="which belongs to an earlier start of this run"):
        LocalTier(tmp_path, "run")
    first.close()
    LocalTier(tmp_path, "run").close()


HALF = {"kernel": [0], "bias": [0]}
OTHER = {"kernel": [1], "bias": [0]}


def offer(held: dict, id: str = "a") -> dict:
    return {"offers": [{"id": id, "held": held, "parts": {"kernel": 2, "bias": 1}}], "problems": []}


def test_hosts_choose_copies_that_have_every_part():
    nothing, damaged = {"offers": [], "problems": []}, {"offers": [], "problems": ["the array x has changed"]}
    chosen = _choose([offer(HALF), nothing, offer(OTHER)])
    assert chosen == {"id": "a", "givers": {"kernel": [0, 2], "bias": [0]}}
    expected = {"problem": "host 1: the array x has changed; no host has part of the array kernel"}
    assert _choose([offer(HALF), damaged, nothing]) == expected
    assert _choose([offer(HALF, "a"), offer(OTHER, "b")])["problem"].count("no host has part of the array kernel") == 2
    everything = {"kernel": [0, 1], "bias": [0]}
    assert _choose([offer(HALF, "a"), offer(everything, "b")])["givers"] == {"kernel": [1, 1], "bias": [1]}


def noted(config) -> list[dict]:
    return [row for row in read_events(f"{config.workdir}/events.jsonl") if row["event"] == "saved_locally"]


class Crash(Exception):
    pass


def crash_after(monkeypatch, step: int) -> None:
    write = Metrics.write

    def patched(self, at, *arguments, **options):
        write(self, at, *arguments, **options)
        if at == step:
            raise Crash

    monkeypatch.setattr(Metrics, "write", patched)


@pytest.mark.slow
@pytest.mark.parametrize("every", [100, 4], ids=["without a checkpoint", "beside checkpoints"])
def test_a_crashed_run_resumes_from_its_last_local_save(finished, small_store, tmp_path, monkeypatch, capsys, every):
    local = CheckpointConfig(every_steps=every, keep_best=0, local_path=str(tmp_path / "local"), local_every_steps=3)
    config = run_config(small_store, tmp_path / "run", checkpoint=local)
    with monkeypatch.context() as patch:
        crash_after(patch, 11)
        with pytest.raises(Crash):
            pretrain(config)
    assert Checkpoints(tmp_path / "run" / "checkpoints", read_only=True).latest_step() == (8 if every == 4 else None)
    assert sorted(path.name for path in tmp_path.glob("local/*/host_0/step_*")) == ["step_000000006", "step_000000009"]
    assert [row["step"] for row in noted(config)] == [3, 6, 9]
    assert pretrain(config).step == 12
    assert [row["step"] for row in noted(config)] == [3, 6, 9]  # step 12 is a checkpoint, not a local save
    assert all(0 < row["seconds"] < SECONDS for row in noted(config))
    assert "resuming from step 9" in capsys.readouterr().out
    for kind in ("train", "evaluation"):
        assert rows(config.workdir, kind) == rows(finished[0].workdir, kind)
    assert list((tmp_path / "local").iterdir()) == []


@pytest.mark.slow
def test_a_run_whose_only_saves_were_local_and_are_lost_begins_again(small_store, tmp_path, monkeypatch, caplog):
    local = CheckpointConfig(every_steps=100, local_path=str(tmp_path / "local"), local_every_steps=3, keep_best=0)
    config = run_config(small_store, tmp_path / "run", checkpoint=local)
    with monkeypatch.context() as patch:
        crash_after(patch, 8)
        with pytest.raises(Crash):
            pretrain(config)
    for step in tmp_path.glob("local/*/host_0/step_*"):
        flip(step)
    assert pretrain(config).step == 12
    assert "the local copies of step 6 cannot be used" in caplog.text and "step 0 is used" in caplog.text
    assert [row["step"] for row in rows(config.workdir)] == list(range(1, 13))


def test_local_saves_go_to_a_disk(small_store, tmp_path):
    config = run_config(small_store, tmp_path / "run", checkpoint=CheckpointConfig(local_path="gs://bucket/local"))
    with pytest.raises(UserError, match="checkpoint.local_path=gs://bucket/local must be a directory on each host"):
        pretrain(config)
