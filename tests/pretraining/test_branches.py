"""Runs that branch off from a step of another one."""

import dataclasses
import json
import pathlib
import shutil

import jax
import numpy as np
import pytest
from pretrained_model import every_array
from small_pretraining import assert_resumed_exactly, pretrain, rows, run_config

from bert_jax import pretraining
from bert_jax.checkpoints.record import read_record
from bert_jax.config import (
    CheckpointConfig,
    DataConfig,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    PhaseConfig,
    ScheduleConfig,
)
from bert_jax.config.commands import Ties
from bert_jax.config.options import with_options
from bert_jax.errors import UserError
from bert_jax.formats.opening import open_stored
from bert_jax.pretrained.averages import average
from bert_jax.tools.replay import replay
from bert_jax.tools.status import read_run, status

CONSTANT = ScheduleConfig(name="constant")


def trunk_config(store, workdir, phases):
    return run_config(
        store,
        workdir,
        model=ModelConfig(hidden_size=16, num_layers=1, num_heads=2, max_position_embeddings=64),
        data=DataConfig(path=str(store), held_out=0.0, loader="plain", packing="on"),
        phases=phases,
        schedule=CONSTANT,
        optimizer=OptimizerConfig(ema_decay=0.9),
        checkpoint=CheckpointConfig(every_steps=2, keep_last=1, keep_best=0, keep_every_steps=2),
    )


@pytest.fixture(scope="module")
def trunk(small_store, tmp_path_factory):
    """A run of eight packed steps, of which every second one is kept."""
    phases = (PhaseConfig(steps=8, sequence_length=32, batch_size=8, learning_rate=1e-3, warmup_steps=1),)
    config = trunk_config(small_store, tmp_path_factory.mktemp("trunk") / "run", phases)
    pretrain(config)
    return config


def branched(trunk, workdir, step, changes=None):
    """The configuration of a branch, as its user would give it: that of the trunk, and what differs."""
    return with_options(trunk, {"workdir": str(workdir), "branch_from": f"{trunk.workdir}:{step}", **(changes or {})})


def last_state(workdir):
    record = read_record(max(pathlib.Path(workdir, "checkpoints").glob("step_*")) / "record")
    return record["step"], record["position"], record["arrays"]


def test_a_branch_that_changes_nothing_is_the_run(trunk, tmp_path):
    """To the last bit: losses, moments, moving average and place in the data, from the middle of a phase."""
    branch = branched(trunk, tmp_path / "branch", 4)
    pretrain(branch)
    assert rows(branch.workdir) == rows(trunk.workdir)[4:]
    assert last_state(branch.workdir) == last_state(trunk.workdir)
    assert any(path.startswith("optimizer_state/average/") for path in last_state(branch.workdir)[2])
    found = replay(branch.workdir, "5:8", devices=jax.devices()[:1])
    assert (found.begin, found.compared, found.equal, found.obstacles) == (4, 4, 4, ())  # 4 is a step of the trunk


def test_a_decay_branches_off_and_resumes_without_its_trunk(trunk, tmp_path, capfd):
    gone = tmp_path / "gone"
    shutil.copytree(trunk.workdir, gone)
    trunk = dataclasses.replace(trunk, workdir=str(gone))
    decay = branched(trunk, tmp_path / "decay", 4, {"schedule.cooldown_steps": 2, "phases.0.steps": 6})
    pretrain(decay)
    rates = [row["learning_rate"] for row in rows(decay.workdir)]
    assert rates == pytest.approx([1e-3, 5e-4])  # the last update is made at the rate of the step before it
    said = capfd.readouterr().out
    assert "branching off from step 4" in said and f"resuming from step 4 of {gone}, after" in said

    run = read_run(decay.workdir)
    parent = json.loads((gone / "run.json").read_text())["run_id"]
    assert run.run["branched_from"] == {"path": str(gone), "run_id": parent, "step": 4}
    facts = status(run, now=0.0)
    assert facts["branched_from"] == {"path": str(gone), "step": 4} and not facts["alarms"]

    shutil.rmtree(gone)
    assert pretrain(decay).step == 6  # it resumes from its own checkpoint, without the trunk
    assert read_run(decay.workdir).run["branched_from"] == run.run["branched_from"]
    with pytest.raises(UserError, match="branch_from: "):
        pretrain(dataclasses.replace(decay, branch_from=""))
    with pytest.raises(UserError, match="no such directory"):
        pretrain(dataclasses.replace(decay, workdir=str(tmp_path / "again")))


@pytest.fixture(scope="module")
def faster(trunk, tmp_path_factory):
    """A branch from step 4 at three times the rate, with checkpoints of its own at steps 6 and 8."""
    branch = branched(trunk, tmp_path_factory.mktemp("branch") / "run", 4, {"phases.0.learning_rate": 3e-3})
    pretrain(branch)
    return branch


def test_a_branch_resumes_exactly_before_and_after_its_own_first_checkpoint(trunk, faster, capfd):
    assert [row["step"] for row in rows(faster.workdir)] == [5, 6, 7, 8]
    assert rows(faster.workdir)[1:] != rows(trunk.workdir)[5:]
    for lost, says in ((8,), f"resuming from step 6 of {faster.workdir}"), ((6, 8), "branching off from step 4 of"):
        assert_resumed_exactly(faster, lost)
        assert says in capfd.readouterr().out


def test_a_branch_and_its_trunk_can_be_averaged(trunk, faster, tmp_path):
    """Their mean, and by TIES what both have learned since the step: the mean of equal signs, else the larger."""
    models, step = [trunk.workdir, faster.workdir], f"{trunk.workdir}:4"
    average(models, tmp_path / "mean")
    average(models, tmp_path / "ties", method=Ties(ancestor=step, kept=1.0, scale=1.0))
    base, one, two, mean, ties = (
        every_array(open_stored(model)) for model in (step, *models, tmp_path / "mean", tmp_path / "ties")
    )
    for path, start in base.items():
        changes = one[path] - start, two[path] - start
        larger = np.where(np.abs(changes[0]) > np.abs(changes[1]), *changes)
        merged = np.where(np.sign(changes[0]) == np.sign(changes[1]), np.mean(changes, axis=0), larger)
        np.testing.assert_allclose(mean[path], start + np.mean(changes, axis=0), rtol=1e-5, atol=1e-7, err_msg=path)
        np.testing.assert_allclose(ties[path], start + merged, rtol=1e-5, atol=1e-7, err_msg=path)


def test_what_would_not_continue_the_step_is_refused(trunk, small_store, tmp_path):
    def refused(changes, step=4):
        with pytest.raises(UserError) as error:
            pretrain(branched(trunk, tmp_path / "refused", step, changes))
        assert not (tmp_path / "refused").exists()
        return str(error.value)

    assert f"step 5 of {trunk.workdir} is not there; other steps there: 2, 4, 6, 8" in refused({}, 5)
    for name, value in (
        ("seed", 1),
        ("model.hidden_dropout", 0.2),
        ("masking.rate", 0.3),
        ("data.packing", "off"),
        ("phases.0.sequence_length", 64),
        ("optimizer.name", "lamb"),
    ):
        assert f"{name}: " in refused({name: value})
    assert "a phase behind it" in refused({"phases.0.steps": 4})
    assert "model.num_layers: " in refused({"model.num_layers": 2})


@pytest.mark.parametrize("name", ["trunk", "trunk:", "trunk:last", ":4", "gs://bucket/trunk"])
def test_a_step_is_named_by_run_and_number(trunk, tmp_path, name):
    with pytest.raises(UserError, match="must be RUN:STEP"):
        pretrain(dataclasses.replace(trunk, workdir=str(tmp_path / "branch"), branch_from=name))


def test_a_damaged_step_is_refused(trunk, tmp_path):
    damaged = tmp_path / "damaged"
    shutil.copytree(trunk.workdir, damaged)
    (damaged / "checkpoints" / "step_000000004" / "record" / "metadata").write_text("{}")
    config = dataclasses.replace(trunk, workdir=str(tmp_path / "branch"), branch_from=f"{damaged}:4")
    with pytest.raises(UserError, match=r"step 4 of .* cannot be used .*other steps there: 2, 6, 8"):
        pretrain(config)
    assert not (tmp_path / "branch").exists()


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [MeshConfig(data=2, fsdp=2, tensor=2), MeshConfig(data=8)], ids=["2×2×2", "8×1×1"])
def test_a_branch_may_have_another_mesh(trunk, tmp_path, mesh):
    """The losses are those of one device, up to the order of sums."""
    branch = dataclasses.replace(branched(trunk, tmp_path / "branch", 4), mesh=mesh)
    pretraining.pretrain(branch)
    losses = [[row["loss"] for row in rows(each.workdir)] for each in (branch, trunk)]
    np.testing.assert_allclose(losses[0], losses[1][4:], rtol=2e-6)


@pytest.mark.slow
def test_a_branch_takes_other_phases_from_the_end_of_one(small_store, tmp_path):
    """At a switch, the rest is whatever the branch has; the phase of the parent may also go on."""
    first = PhaseConfig(steps=4, sequence_length=32, batch_size=8, learning_rate=1e-3, warmup_steps=1)
    second = PhaseConfig(steps=4, sequence_length=64, batch_size=8, learning_rate=5e-4)
    trunk = trunk_config(small_store, tmp_path / "trunk", (first, second))
    pretrain(trunk)
    for step in (4, 6):  # at the switch, and behind it
        same = branched(trunk, tmp_path / f"same{step}", step)
        pretrain(same)
        assert rows(same.workdir) == rows(trunk.workdir)[step:]
        assert last_state(same.workdir) == last_state(trunk.workdir)
    other = dataclasses.replace(second, batch_size=4, sequence_length=16)
    changed = dataclasses.replace(branched(trunk, tmp_path / "changed", 4), phases=(first, other))
    pretrain(changed)
    assert len(rows(changed.workdir)) == 4
    whole = dataclasses.replace(trunk, workdir=str(tmp_path / "whole"), phases=(first, other))
    pretrain(whole)
    assert rows(changed.workdir) == rows(whole.workdir)[4:]
    longer = dataclasses.replace(branched(trunk, tmp_path / "longer", 4), phases=(dataclasses.replace(first, steps=6),))
    pretrain(longer)
    assert [row["step"] for row in rows(longer.workdir)] == [5, 6]


@pytest.mark.slow
def test_arrays_that_have_changed_are_refused(trunk, tmp_path):
    """They are only read when the run restores them, which the work directory survives: it can be started again."""
    damaged = tmp_path / "damaged"
    shutil.copytree(trunk.workdir, damaged)
    for file in (damaged / "checkpoints" / "step_000000004" / "state").rglob("d/*"):
        file.write_bytes(b"\0" * file.stat().st_size)
    config = dataclasses.replace(trunk, workdir=str(tmp_path / "branch"), branch_from=f"{damaged}:4")
    with pytest.raises(UserError, match=r"step 4 of .* cannot be used .*other steps there: 2, 6, 8"):
        pretrain(config)
    good = dataclasses.replace(config, branch_from=f"{damaged}:6")
    assert pretrain(good).step == 8
