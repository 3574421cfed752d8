"""Where the time of a fine-tuning went, its traces, and what it does about a device or a host that fails."""

import dataclasses
import gzip
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import jax
import processes
import pytest
from flipped_bits import wrong_at
from full_device import DOES_NOT_FIT, full_device
from one_device import finetune
from small_finetuning import assert_same_weights, run_config

from bert_jax.config import HostFaultsConfig
from bert_jax.config.pretraining import ProfileConfig, SinksConfig
from bert_jax.devices.hosts import EXIT_CODE
from bert_jax.errors import UserError
from bert_jax.finetuning import loop
from bert_jax.tools.status import LOST, read_run, status
from bert_jax.training.events import read_events
from bert_jax.training.metrics import read_rows
from bert_jax.training.step import Program


@pytest.mark.parametrize(
    "function, said",
    [
        (
            "run.first_state",
            f"the state of a run {DOES_NOT_FIT}; what helps: a smaller model; chips with more",
        ),
        ("run.placed_batch", f"a batch of 16 sequences {DOES_NOT_FIT}; what helps: --compute.remat=sel or full"),
    ],
)
def test_what_does_not_fit_ends_with_advice(function, said, pretrained, tmp_path, monkeypatch):
    monkeypatch.setattr(f"bert_jax.finetuning.{function}", full_device)
    with pytest.raises(UserError, match=f"^{said}"):
        finetune(run_config(pretrained, tmp_path / "work"))


HANGING = """
import time
from bert_jax.cli import main
from bert_jax.devices import sharding
place, calls = sharding.to_global, []
def stuck(*given):
    calls.append(1)
    if len(calls) == 6:
        time.sleep(10_000)
    return place(*given)
sharding.to_global = stuck
main()
"""


@pytest.mark.slow
def test_a_traced_run_that_was_interrupted_learns_the_same_and_accounts_for_its_time(two_seeds, tmp_path, monkeypatch):
    """Steps 5 to 7 of both runs are traced; a signal ends the second one, which goes on half a second later."""
    config, expected = two_seeds
    work = tmp_path / "work"
    watched = {"profile": ProfileConfig(steps="4:7"), "faults": HostFaultsConfig(check_replicas_every=5)}
    config, call, steps = dataclasses.replace(config, workdir=str(work), **watched), Program.__call__, []

    def interrupted(program, state, batch, *rate_and_seed):
        if rate_and_seed:  # a step of training
            steps.append(1)
            if len(steps) == 40 + 12:  # 40 steps of the first run
                os.kill(os.getpid(), signal.SIGTERM)
        return call(program, state, batch, *rate_and_seed)

    monkeypatch.setattr(Program, "__call__", interrupted)
    begun = time.time()
    assert finetune(config).exit_code == 143
    time.sleep(0.5)
    results = finetune(config).results
    elapsed = time.time() - begun
    assert [record["metrics"] for record in results["runs"]] == [record["metrics"] for record in expected["runs"]]
    for record in results["runs"]:
        run = work / "runs" / record["run"]
        assert_same_weights(run, pathlib.Path(two_seeds[0].workdir) / "runs" / record["run"])
        (trace,) = (run / "profile").rglob("*.trace.json.gz")
        rows = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
        assert {int(row["args"]["step_num"]) for row in rows if row.get("name") == "train"} == {4, 5, 6}
        kinds = [row["kind"] for row in read_rows(run / "metrics.jsonl")]
        assert kinds.count("time") > kinds.count("train") == 40

    history = read_run(work)
    facts = status(history, time.time())
    seconds = facts["goodput"]["seconds"]
    assert min(seconds[name] for name in ("steps", "input", "evaluation", "checkpoint", "compile", "setup")) > 0
    # One stopwatch for both runs: the only hole is between the two starts.
    assert facts["goodput"]["restarts"] == 1 and seconds[LOST] >= 0.5
    spanned = history.rows[-1]["time"] - history.rows[0]["time"]
    assert spanned < sum(seconds.values()) < elapsed
    assert facts["seconds_since_last_row"] < time.time() - begun


@pytest.mark.slow
def test_a_device_that_computed_wrongly_ends_the_run(pretrained, tmp_path, monkeypatch):
    faults, devices = HostFaultsConfig(check_replicas_every=2), jax.devices()[:2]

    monkeypatch.setattr(Program, "__call__", wrong_at(3, devices[1].id))
    work = tmp_path / "work"
    with pytest.raises(UserError, match=r"not the same after step 4: .* delete the checkpoints after step 2"):
        loop.finetune(run_config(pretrained, work, faults=faults, save_every_steps=4), devices=devices)
    assert [row["event"] for row in read_events(work / "events.jsonl")][-2:] == ["replica_mismatch", "failed"]
    assert not list(work.glob("runs/*/training/step_*"))  # the state is compared before it is saved


@pytest.mark.parametrize(
    "change, said",
    [
        ({"profile": ProfileConfig(steps="30:41")}, "profile.steps=30:41 must be .* at most the last step, 40"),
        ({"faults": HostFaultsConfig(peer_timeout_seconds=3)}, "faults.peer_timeout_seconds=3 must be at least 10"),
        ({"sinks": SinksConfig(wandb="project")}, "sinks.wandb needs wandb, which is not installed"),
        ({"faults": HostFaultsConfig(check_replicas_every=-1)}, "faults.check_replicas_every=-1 must not be negative"),
    ],
)
def test_what_cannot_be_watched_is_refused_before_anything_is_written(pretrained, tmp_path, change, said, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    with pytest.raises(UserError, match=said):
        finetune(run_config(pretrained, tmp_path / "work", **change))
    assert not (tmp_path / "work").exists()


@pytest.mark.slow
def test_a_run_that_hangs_ends_with_its_stack(pretrained, tmp_path):
    words = [
        "finetune",
        "text",
        f"--init_from={pretrained / 'pretrained'}",
        f"--data.dir={pretrained / 'data'}",
        f"--workdir={tmp_path / 'work'}",
        "--options.max_length=16",
        "--faults.step_timeout_seconds=5",
    ]
    done = subprocess.run(
        [sys.executable, "-c", HANGING, *words],
        env=processes.one_device(),
        capture_output=True,
        text=True,
        timeout=processes.SECONDS,
    )
    assert done.returncode == EXIT_CODE, done.stderr
    assert "no progress for" in done.stderr and "in stuck" in done.stderr
    assert [row["event"] for row in read_events(tmp_path / "work/events.jsonl")][-1] == "hung"
