"""Grids and tasks that are interrupted or killed end as if they had not been; runs share programs and devices."""

import dataclasses
import os
import pathlib
import signal
import subprocess

import jax
import numpy as np
import processes
import pytest
from dying import dying
from one_device import finetune
from small_finetuning import Killed, assert_same_weights, run_config

from bert_jax.config import MeshConfig
from bert_jax.finetuning import loop
from bert_jax.training.metrics import read_rows
from bert_jax.training.step import Program


@pytest.mark.slow
@pytest.mark.optimized
@pytest.mark.parametrize("end", ["death", "signal"])
def test_an_interrupted_grid_repeats_nothing_and_ends_the_same(two_seeds, pretrained, tmp_path, monkeypatch, end):
    """Ended in the second epoch of the second run; every weight and metric equals the uninterrupted command's."""
    config, expected = two_seeds
    config = dataclasses.replace(config, workdir=str(tmp_path / "work"), save_every_steps=5)
    call, seen = Program.__call__, []

    def interrupted(program, state, batch, *rate_and_seed):
        if rate_and_seed:  # a step of training
            seen.append((int(rate_and_seed[1]), int(state.step)))
            if len(seen) == 40 + 29:  # 40 steps of the first run
                if end == "death":
                    raise Killed
                os.kill(os.getpid(), signal.SIGTERM)
        return call(program, state, batch, *rate_and_seed)

    monkeypatch.setattr(Program, "__call__", interrupted)
    if end == "death":
        with pytest.raises(Killed):
            finetune(config)
    else:
        assert finetune(config).exit_code == 143
    first = list(seen)
    if end == "death":  # a log in a bucket may lag behind the states, which have all that the record needs
        second = next((tmp_path / "work" / "runs").glob("*_seed1")) / "metrics.jsonl"
        second.write_text("".join(second.read_text().splitlines(keepends=True)[:3]))
    results = finetune(config).results
    assert seen[:69] == first
    assert seen[69] == (1, {"death": 25, "signal": 29}[end])  # nothing before the last save is done again
    for name in ("metrics", "epochs", "training_loss", "collapsed"):
        assert [record[name] for record in results["runs"]] == [record[name] for record in expected["runs"]]
    for record in results["runs"]:
        assert_same_weights(*(pathlib.Path(c.workdir) / "runs" / record["run"] for c in (config, two_seeds[0])))


@pytest.mark.slow
# The first batch of dev after an epoch, after the next, and for the files of predictions.
@pytest.mark.parametrize("batch", [1, 3, 5] if processes.EXHAUSTIVE else [1, 5])
def test_a_signal_during_predictions_is_answered_between_two_batches(
    two_seeds, pretrained, tmp_path, monkeypatch, capfd, batch
):
    """What is saved ends the same: nothing is trained again, and no evaluation is left out."""
    config, expected = two_seeds
    config = dataclasses.replace(
        config, workdir=str(tmp_path / "work"), seeds=1, eval_batch_size=20
    )  # dev: two batches
    call, steps, batches = Program.__call__, [], []

    def interrupted(program, params, *rest):
        if len(rest) == 3:
            steps.append(int(params.step))
        else:
            batches.append(None)
            if len(batches) == batch:
                os.kill(os.getpid(), signal.SIGTERM)
        return call(program, params, *rest)

    monkeypatch.setattr(Program, "__call__", interrupted)
    assert finetune(config).exit_code == 143
    assert len(batches) == batch
    said = capfd.readouterr().err
    assert (
        f"saved step {len(steps)}; the same command resumes\n" in said
        if batch < 5
        else said == "stopping: nothing needs to be saved\n"
    )
    results = finetune(config).results
    assert steps == list(range(40))
    for name in ("metrics", "epochs", "training_loss", "collapsed"):
        assert results["runs"][0][name] == expected["runs"][0][name]


@pytest.mark.slow
@pytest.mark.optimized
@pytest.mark.parametrize("taught", [False, *([True] if processes.EXHAUSTIVE else [])], ids=lambda taught: f"{taught=}")
def test_kill_9_in_the_middle_of_a_task(two_seeds, pretrained, tmp_path, taught):
    """The command line in a process of its own, killed at an arbitrary moment: the weights of an uninterrupted run."""
    arguments = [
        "finetune",
        "text",
        f"--init_from={pretrained / 'pretrained'}",
        f"--data.dir={pretrained / 'data'}",
        "--options.max_length=16",
        "--batch_size=16",
        "--epochs=5",
        "--learning_rate=1e-3",
        "--save_every_steps=7",
        "--log_every_steps=1",
        *([f"--distillation.teacher={two_seeds[0].workdir}", "--distillation.share=0.7"] if taught else []),
    ]

    def run(name: str, dies_after: int = 0) -> int:
        command = dying(dies_after, *arguments, f"--workdir={tmp_path / name}")
        environment = processes.one_device(killed=dies_after > 0)
        return subprocess.run(command, env=environment, stdout=subprocess.DEVNULL).returncode

    assert run("whole") == 0
    assert run("killed", dies_after=40) == -signal.SIGKILL
    assert not (tmp_path / "killed/results.json").exists()
    assert run("killed") == 0
    assert_same_weights(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.slow
def test_a_grid_shares_its_programs_and_chooses_the_best(pretrained, tmp_path, monkeypatch):
    made = []
    make = loop.make_programs
    monkeypatch.setattr(loop, "make_programs", lambda *args: made.append(make(*args)) or made[-1])
    config = run_config(
        pretrained,
        tmp_path / "work",
        grid=True,
        grid_batch_sizes=(16,),
        grid_learning_rates=(2e-3, 1e-6),
        grid_epochs=(1, 2),
        select="best",
    )
    train, held = loop.train_run, []
    monkeypatch.setattr(
        loop,
        "train_run",
        lambda *args: held.append(len(list((tmp_path / "work" / "runs").glob("*/checkpoints")))) or train(*args),
    )
    results = finetune(config).results
    assert held == [0, 1, 1, 1]  # weights that can be chosen no more are not kept until the end of a grid
    assert len(results["runs"]) == len(results["settings"]) == 4
    assert (
        results["chosen"]["run"] == "batch16_rate0.002_epochs2_seed0"
        and "of 4 runs, weights after the best epoch" in results["chosen"]["by"]
    )
    assert results["settings"][-1]["setting"].startswith("batch16_rate1e-06")
    assert any(record["collapsed"] for record in results["runs"] if record["hyperparameters"]["learning_rate"] == 1e-6)
    (programs,) = made
    assert (
        len(programs.train_step.compiled)
        == len(programs.predict_step.compiled)
        == programs.fresh_state._cache_size()
        == 1
    )
    assert not list((tmp_path / "work" / "runs").glob("*/checkpoints"))  # keep=best: the chosen weights lie on top
    assert (tmp_path / "work" / "checkpoints").is_dir()


@pytest.mark.slow
def test_devices_share_the_batches(two_seeds, pretrained, tmp_path):
    """Four devices, fsdp and tensor axes, and filling rows in the last batch: the losses of one device."""
    config = dataclasses.replace(
        two_seeds[0],
        workdir=str(tmp_path / "work"),
        seeds=1,
        mesh=MeshConfig(data=1, fsdp=2, tensor=2),
        dropout=0.0,
        head_dropout=0.0,
        batch_size=62,
        epochs=1,
    )
    loop.finetune(config, devices=jax.devices()[:4])
    finetune(dataclasses.replace(config, workdir=str(tmp_path / "one"), mesh=MeshConfig()))
    logs = (read_rows(next((tmp_path / name).glob("runs/*/metrics.jsonl"))) for name in ("one", "work"))
    one, many = ([row["loss"] for row in log if row["kind"] == "train"] for log in logs)
    assert len(one) == 6
    np.testing.assert_allclose(many, one, rtol=2e-4)
