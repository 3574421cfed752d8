"""A pod stood in for by two processes of two virtual devices each, over gloo on this machine."""

import dataclasses
import json
import pathlib
import re
import shutil
import signal
import sys
import time
import types

import jax
import pytest
from dying import dying
from pod import STARTED, finish, launch, logs, start
from processes import EXHAUSTIVE, wait_until
from small_pretraining import nothing_held_out, rows, run_config

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.record import read_record
from bert_jax.config import CheckpointConfig, MeshConfig, PhaseConfig
from bert_jax.config.options import to_dict
from bert_jax.finetuning.together import finetune_together
from bert_jax.training.metrics import read_rows

pytestmark = pytest.mark.slow

BUSY = 60
"""Seconds that a busy machine may add to a bound."""


@pytest.fixture(autouse=True)
def no_host_outlives_its_test():
    yield
    while STARTED:
        process = STARTED.pop()
        process.kill()
        process.wait()


def pod_config(store, workdir, **changes):
    mesh = MeshConfig(data=2, fsdp=2)
    checkpoint = CheckpointConfig(every_steps=4, keep_last=5)
    return run_config(store, workdir, mesh=mesh, checkpoint=checkpoint, data=nothing_held_out(store), **changes)


def lines(workdir) -> list[str]:
    """What each of two hosts has printed."""
    return [pathlib.Path(workdir).with_suffix(suffix).read_text() for suffix in (".log", ".1.log")]


DIFFERENCES = {
    "--seed=7": "the hosts do not run the same thing: seed is 0 on host 0 and 7 on host 1.",
    "--mesh.fsdp=1": "the hosts do not run the same thing: mesh.fsdp is 2 on host 0 and 1 on host 1.",
    "--data.path=nothing": "nothing is not a token store (no manifest.json)",
}


@pytest.mark.parametrize("option", [*DIFFERENCES] if EXHAUSTIVE else ["--seed=7", "--data.path=nothing"])
def test_hosts_that_do_not_run_the_same_thing_end_before_anything_is_written(small_store, tmp_path, option):
    config = pod_config(small_store, tmp_path / "run")
    (tmp_path / "run.json").write_text(json.dumps(to_dict(config)))
    assert finish(start(["pretrain", str(tmp_path / "run.json")], config.workdir, 2, (option,)), config) == [2, 2], (
        logs(config)
    )
    first, second = (text[text.index("error: ") :] for text in lines(config.workdir))
    assert DIFFERENCES[option] in first and DIFFERENCES[option] in second
    assert first.count("\n") == second.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_work_directory_that_the_first_host_refuses_ends_the_second_too(small_store, tmp_path):
    config = pod_config(small_store, tmp_path / "run")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    assert finish(launch(config, 2), config) == [2, 2], logs(config)
    first, second = (text[text.index("error: ") :] for text in lines(config.workdir))
    assert first.startswith(f"error: {config.workdir} already holds metrics.jsonl")
    assert second.startswith(f"error: host 0 has stopped: {config.workdir} already holds metrics.jsonl")


def test_hosts_with_other_copies_of_the_task_s_data_are_refused(pretrained, tmp_path):
    """The same elsewhere is the same; one label of another is not."""
    work, here = tmp_path / "work", types.SimpleNamespace(workdir=tmp_path / "work")
    shutil.copytree(pretrained / "data", tmp_path / "data")
    train = (tmp_path / "data" / "train.tsv").read_text()
    (tmp_path / "data" / "train.tsv").write_text(train.replace("\tgarden\n", "\tharbour\n", 1))
    processes = start(task(pretrained, work, "--epochs=1"), work, 2, (f"--data.dir={tmp_path / 'data'}",))
    assert finish(processes, here) == [2, 2], logs(here)
    for printed in lines(work):
        assert re.search(
            "error: the hosts do not run the same thing: features_fingerprint is [0-9a-f]{64} on host 0", printed
        )
    assert not work.exists()


def wait_for_text(config, text: str, process):
    wait_until(lambda: text in logs(config), lambda: process.poll() is None, lambda: logs(config))


def left_in_time(processes, config) -> list[int]:
    """Return the exit codes of hosts one of which has just been sent a signal; all leave within 30 s, saved."""
    begun = time.monotonic()
    codes = finish(processes, config)
    assert time.monotonic() - begun < 30 + BUSY, logs(config)
    return codes


@pytest.mark.parametrize("compiled", [True, False] if EXHAUSTIVE else [True])
def test_a_preempted_host_stops_both_at_one_step_and_another_slice_goes_on(small_store, tmp_path, compiled):
    phase = PhaseConfig(steps=100_000, sequence_length=32, batch_size=16, learning_rate=1e-3)
    config = pod_config(small_store, tmp_path / "preempted", phases=(phase,))
    processes = launch(config, 2)
    wait_for_text(config, "step 3/" if compiled else "4 × cpu on 2 hosts", processes[0])
    processes[1].send_signal(signal.SIGTERM)
    assert left_in_time(processes, config) == [143, 143], logs(config)
    stopped = Checkpoints(tmp_path / "preempted" / "checkpoints", read_only=True).latest_step() or 0
    assert [row["step"] for row in rows(config.workdir)] == list(range(1, stopped + 1)) and stopped >= 3 * compiled
    # The notice may take long enough to reach the hosts that they have begun to train.
    said = (
        [f"saving step {stopped}\n", f"saved step {stopped}; the same command resumes\n"]
        if stopped
        else ["nothing needs to be saved\n"]
    )
    assert [logs(config).count(line) for line in said] == [1] * len(said)  # by the first host alone

    shorter = dataclasses.replace(config, phases=(dataclasses.replace(phase, steps=stopped + 3),))
    assert finish(launch(shorter, 1), shorter) == [0], logs(config)
    assert [row["step"] for row in rows(config.workdir)] == list(range(1, stopped + 4))


def task(home, workdir, *options: str) -> list[str]:
    """A command of two runs, 20 steps an epoch, on a mesh of four devices."""
    places = [f"--init_from={home / 'pretrained'}", f"--data.dir={home / 'data'}", f"--workdir={workdir}"]
    usual = "--options.max_length=16 --batch_size=16 --learning_rate=2e-3 --log_every_steps=1 --seeds=2"
    return ["finetune", "text", *places, "--mesh.data=2", "--mesh.fsdp=2", *usual.split(), *options]


def results_of(arguments: list[str], workdir, hosts: int) -> dict:
    """results.json, when the command has ended well on every host."""
    here = types.SimpleNamespace(workdir=workdir)
    assert finish(start(arguments, workdir, hosts), here) == [0] * hosts, logs(here)
    return json.loads((workdir / "results.json").read_text())


def test_two_hosts_fine_tune_as_one(pretrained, tmp_path):
    works = [tmp_path / "one", tmp_path / "two"]
    # The train state and the weights that count are saved at the same step, each in the background of the other.
    one, two = (
        results_of(task(pretrained, work, "--epochs=2", "--save_every_steps=20", "--select=best"), work, hosts)
        for hosts, work in enumerate(works, 1)
    )
    for ours, theirs in zip(two["runs"], one["runs"], strict=True):
        logs_of_run = [read_rows(work / "runs" / ours["run"] / "metrics.jsonl") for work in works]
        expected, losses = ([row["loss"] for row in run if row["kind"] == "train"] for run in logs_of_run)
        assert len(losses) == 40 and losses == pytest.approx(expected, abs=2e-5)
        assert ours["metrics"] == theirs["metrics"]
        assert ours["training_loss"] == pytest.approx(theirs["training_loss"], abs=2e-5)
    assert two["chosen"]["run"] == one["chosen"]["run"]
    files = [sorted(path.name for path in (work / "predictions/dev").iterdir()) for work in works]
    assert files[0] == files[1] != []


def test_two_hosts_train_vectors_as_one(pretrained, tmp_path):
    """Each text meets those of all devices of both hosts, in parts of a batch.

    With BERT_JAX_EXHAUSTIVE=1 both hosts are killed in epoch 2 too, as otherwise those of the next test alone.
    """
    texts = [line.split("\t")[0] for line in (pretrained / "data/train.tsv").read_text().splitlines()[1:97]]
    for name, some in (("train", texts), ("dev", texts[:20])):
        pairs = [f"{text}\t{text[4:]}" for text in some]
        (tmp_path / f"{name}.tsv").write_text("\n".join(["anchor\tpositive", *pairs]) + "\n")

    def command(workdir) -> list[str]:
        places = {"init_from": pretrained / "pretrained", "workdir": workdir, "mesh.data": 2, "mesh.fsdp": 2}
        places |= {f"data.{name}": tmp_path / f"{name}.tsv" for name in ("train", "dev")}
        usual = "--options.max_length=16 --batch_size=16 --micro_batches=2 --epochs=3 --learning_rate=2e-3"
        usual += " --log_every_steps=1 --save_every_steps=4"
        return ["finetune", "vectors", *(f"--{name}={value}" for name, value in places.items()), *usual.split()]

    def left(workdir) -> tuple[list[float], dict[str, bytes], dict]:
        """The losses of all steps, the files of predictions, and what the record says of every array."""
        losses = [row["loss"] for row in read_rows(*workdir.glob("runs/*/metrics.jsonl")) if row["kind"] == "train"]
        files = {path.name: path.read_bytes() for path in (workdir / "predictions/dev").iterdir()}
        return losses, files, read_record(workdir / "checkpoints/step_000000018/record")["arrays"]

    one, two, killed = (tmp_path / name for name in ("one", "two", "killed"))
    for hosts, work in enumerate((one, two), 1):
        results_of(command(work), work, hosts)
    if EXHAUSTIVE:
        here = types.SimpleNamespace(workdir=killed)
        codes = finish(start(command(killed), killed, 2, commands={host: dying(9) for host in (0, 1)}), here)
        assert -signal.SIGKILL in codes and 0 not in codes, logs(here)  # the first host's end may be sooner
        results_of(command(killed), killed, 2)
        assert left(killed) == left(two)
    assert left(two)[0] == pytest.approx(left(one)[0], rel=1e-5) and len(left(two)[0]) == 18
    assert left(two)[0][:6] == pytest.approx(left(one)[0][:6], rel=1e-6)


TWICE = """
import sys
sys.path.insert(0, {support!r})
from dying import die_after
from bert_jax.cli import commands
*command, whole, killed = sys.argv[2:]
assert commands.finetune([*command, whole]) == 0
die_after({step})
commands.finetune([*command, killed])
"""


def test_two_hosts_train_two_tasks_as_one_and_go_on_exactly_after_kill_9(pretrained, tmp_path):
    """The weights of both tasks are written at a time. After a whole run, the hosts are killed in the next one."""
    tagged = [f"{place} B-{place}\n{n} O\nis O\n" for n in range(24) for place in ("garden", "harbour")]
    for name, some in (("train", tagged), ("dev", tagged[:16])):
        (tmp_path / f"{name}.txt").write_text("\n".join(some))
    rows = (pretrained / "data/train.tsv").read_text().splitlines(keepends=True)
    for name, some in (("train", rows[:97]), ("dev", rows[:17])):
        (tmp_path / f"{name}.tsv").write_text("".join(some))
    usual = {"bucket_window": 1, "max_length": 16, "batch_size": 16}
    tasks = {"topic": {"task": "text", "packing": "off", **usual}, "place": {"task": "ner", **usual}}
    for task, ending in zip(tasks.values(), ("tsv", "txt"), strict=True):
        task |= {name: str(tmp_path / f"{name}.{ending}") for name in ("train", "dev")}
    (tmp_path / "tasks.json").write_text(json.dumps({"tasks": tasks}))
    places = {"init_from": pretrained / "pretrained", "mesh.data": 2, "mesh.fsdp": 2, "compute.layers": "scan"}
    run = {"epochs": 2, "learning_rate": 2e-3, "log_every_steps": 1, "save_every_steps": 4, "select": "best"}
    options = [f"--{name}={value}" for name, value in (places | run).items()]
    command = ["finetune", str(tmp_path / "tasks.json"), *options]

    def left(workdir, name: str) -> tuple[dict, list, dict[str, bytes]]:
        """What the record says of the arrays of a task, its figures, and the files of its predictions."""
        home = workdir / "tasks" / name
        (step,) = home.glob("checkpoints/step_*")
        results = json.loads((home / "results.json").read_text())
        files = {path.name: path.read_bytes() for path in (home / "predictions/dev").iterdir()}
        figures = [results["metrics"], results["runs"][0]["training_loss"]]
        return read_record(step / "record")["arrays"], figures, files

    def losses(workdir) -> list[float]:
        return [row["loss"] for row in read_rows(workdir / "metrics.jsonl") if row["kind"] == "train"]

    one, two, killed = (tmp_path / name for name in ("one", "two", "killed"))
    twice = [sys.executable, "-c", TWICE.format(support=str(pathlib.Path(__file__).parents[1] / "support"), step=13)]
    processes = start([*command, f"--workdir={two}", f"--workdir={killed}"], two, 2, commands={0: twice, 1: twice})
    here = types.SimpleNamespace(workdir=two)
    codes = finish(processes, here)
    assert -signal.SIGKILL in codes and 0 not in codes and (two / "results.json").exists(), logs(here)
    assert (killed / "training").exists() and not (killed / "results.json").exists()
    results_of([*command, f"--workdir={killed}"], killed, 2)
    for name in tasks:
        assert left(killed, name) == left(two, name)
    assert losses(killed) == losses(two) and len(losses(two)) == 18
    mesh = MeshConfig(data=2, fsdp=2)
    finetune_together(
        tasks,
        **run | {"init_from": pretrained / "pretrained", "workdir": one, "mesh": mesh, "layers": "scan"},
        devices=jax.devices()[:4],
    )
    assert losses(two) == pytest.approx(losses(one), rel=1e-4)


def test_interrupting_a_host_ends_fine_tuning_on_both_and_another_slice_goes_on(pretrained, tmp_path):
    """Ctrl-C on one host in the second run, whose steps begin at 0 again, while its second epoch is being saved."""
    work, here = tmp_path / "work", types.SimpleNamespace(workdir=tmp_path / "work")
    first, second = (work / "runs" / f"batch16_rate0.002_epochs5_seed{seed}" for seed in (0, 1))
    arguments = task(pretrained, work, "--epochs=5")
    processes = start(arguments, work, 2)
    wait_until(
        lambda: len(read_rows(second / "metrics.jsonl")) >= 40, lambda: processes[0].poll() is None, lambda: logs(here)
    )
    processes[1].send_signal(signal.SIGINT)
    assert left_in_time(processes, here) == [143, 130], logs(here)
    stopped = Checkpoints(second / "training", read_only=True).latest_step()
    assert stopped == read_rows(second / "metrics.jsonl")[-1]["step"] < 100
    before = (first / "metrics.jsonl").read_bytes()

    assert len(results_of(arguments, work, 1)["runs"]) == 2
    assert (first / "metrics.jsonl").read_bytes() == before
    steps = [row["step"] for row in read_rows(second / "metrics.jsonl") if row["kind"] == "train"]
    assert steps == list(range(1, 101))
