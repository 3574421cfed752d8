"""Real training on simulated pods: how processes and devices are grouped changes nothing, nor does losing a host."""

import contextlib
import io
import json
import re
import subprocess
import sys

import jax
import numpy as np
import pytest
from processes import EXHAUSTIVE
from small_pretraining import nothing_held_out, rows, run_config

import bert_jax
from bert_jax import cli
from bert_jax.config import CheckpointConfig, MeshConfig, PhaseConfig
from bert_jax.config.json_form import to_dict
from bert_jax.pretraining import pretrain
from bert_jax.tools.pods import job, launch

pytestmark = pytest.mark.slow
STEPS = 24
DEVICES = 4 if EXHAUSTIVE else 2
"""Of all hosts together."""


def launched(config, *words: str, command: str = "launch local") -> int:
    file = f"{config.workdir}.json"
    with open(file, "w") as stream:
        json.dump(to_dict(config), stream)
    return cli._run(["bert-jax", *command.split(), file, *words])


@pytest.fixture(scope="module")
def runs(small_store, tmp_path_factory):
    """The same run on devices that belong to this process, to two hosts and to a host each, by number of hosts."""
    place = tmp_path_factory.mktemp("pods")
    configs = {hosts: pod_config(small_store, place / f"hosts{hosts}") for hosts in sorted({1, 2, DEVICES})}
    pretrain(configs[1], devices=jax.devices()[:DEVICES])
    if DEVICES > 2:
        assert launched(configs[2], "--hosts=2", f"--devices_per_host={DEVICES // 2}") == 0
    with contextlib.redirect_stdout(io.StringIO()) as printed:  # as `pretrain` rehearses itself, a device for each host
        assert launched(configs[DEVICES], f"--simulate_hosts={DEVICES}", command="pretrain") == 0
    assert "[host 0] " in printed.getvalue() and f"on {DEVICES} hosts" in printed.getvalue()
    return configs


def pod_config(store, workdir):
    phase = PhaseConfig(steps=STEPS, sequence_length=32, batch_size=16, learning_rate=1e-3)
    mesh, saves = MeshConfig(data=DEVICES // 2, fsdp=2), CheckpointConfig(every_steps=10)
    return run_config(store, workdir, mesh=mesh, checkpoint=saves, phases=(phase,), data=nothing_held_out(store))


def parameters(config) -> dict[str, np.ndarray]:
    return bert_jax.load(config.workdir).params


def same_to_the_bit(config, other) -> None:
    assert rows(config.workdir) == rows(other.workdir) and len(rows(config.workdir)) == STEPS
    ours, theirs = flattened(parameters(config)), flattened(parameters(other))
    assert ours.keys() == theirs.keys() and len(ours) > 20
    for name in ours:
        assert ours[name].tobytes() == theirs[name].tobytes(), name


def flattened(tree, prefix="") -> dict[str, np.ndarray]:
    if not isinstance(tree, dict):
        return {prefix: np.asarray(tree)}
    return {name: leaf for key in tree for name, leaf in flattened(tree[key], f"{prefix}/{key}").items()}


@pytest.mark.skipif(not EXHAUSTIVE, reason="set BERT_JAX_EXHAUSTIVE=1; without it each of two hosts has one device")
def test_two_hosts_of_two_devices_are_four_of_one_to_the_bit(runs):
    same_to_the_bit(runs[2], runs[4])


def test_several_hosts_train_as_one(runs):
    """Sums over hosts are taken in another order than sums in one process: 1e-5 is 80 units in the last place of 1."""
    ours, theirs = ([row["loss"] for row in rows(runs[hosts].workdir)] for hosts in (2, 1))
    assert len(ours) == STEPS and ours == pytest.approx(theirs, abs=1e-5)


def test_a_host_that_is_killed_costs_nothing_but_time(runs, small_store, tmp_path, monkeypatch, capsys):
    started, write = [], sys.stdout.write

    class Recorded(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            started.append(self)

    def watched(text):
        write(text)
        if re.search(r"step 1\d/", text) and len(started) == 2:
            started[1].kill()

    monkeypatch.setattr(launch.subprocess, "Popen", Recorded)
    monkeypatch.setattr(sys.stdout, "write", watched)
    monkeypatch.setattr(job, "FIRST_SECONDS", 0.0)
    config = pod_config(small_store, tmp_path / "run")
    assert launched(config, "--hosts=2", f"--devices_per_host={DEVICES // 2}", "--max_restarts=2") == 0
    assert "restart 1 of at most 2" in capsys.readouterr().out and len(started) == 4
    same_to_the_bit(config, runs[2])
