"""What Slurm is called with, and the job itself under a shell, with stubs for srun and scontrol."""

import functools
import os
import shlex
import subprocess
import sys

import pytest
from command_lines import refusal, status
from recorder import Recorder

from bert_jax.tools.pods.job import PACKAGE

COMMAND = "launch slurm bert_tiny --name=run --nodes=2"
RUN = ["--data.path=/disk/a store", "--workdir=/disk/run"]
launch = functools.partial(status, *COMMAND.split(), *RUN)
JOB = PACKAGE / "tools" / "pods" / "slurm.sh"


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    recorder = Recorder(tmp_path / "slurm", "sbatch", "squeue", "scancel", "scontrol")
    monkeypatch.setenv("PATH", f"{recorder.bin}:{os.environ['PATH']}")
    return recorder


def test_the_job_has_a_task_per_gpu_and_a_notice_before_its_limit(slurm, capsys):
    slurm.answers(**{"sbatch_--parsable": (0, "4711;west\n", "")})
    more = ["--partition=a100", "--account=lab", "--time=24:00:00", "--cpus_per_task=12", "--notice_seconds=300"]
    assert launch(*more, "--gpus_per_node=4", "--max_restarts=5") == 0
    asked, submitted = slurm.calls
    assert asked == ["squeue", "--me", "--name=run", "--noheader", "--format=%i %T"]
    options, job = submitted[1 : submitted.index(str(JOB))], submitted[submitted.index(str(JOB)) :]
    assert sorted(options) == sorted(
        "--parsable --job-name=run --nodes=2 --ntasks-per-node=4 --gpus-per-node=4 --partition=a100 --account=lab "
        "--time=24:00:00 --cpus-per-task=12 --requeue --open-mode=append --signal=TERM@300 --output=run-%j.log".split()
    )
    assert job == [str(JOB), "5", sys.executable, "-m", "bert_jax", "pretrain", "bert_tiny", *RUN]
    assert capsys.readouterr().out.splitlines() == [
        "run is job 4711",
        "log:    tail --follow=name --retry run-4711.log",
        "state:  squeue --job=4711",
    ]


def test_the_same_launch_again_submits_nothing(slurm, capsys):
    slurm.answers(**{"squeue_--me": (0, "4711 RUNNING\n", "")})
    assert launch() == 0
    assert [call[0] for call in slurm.calls] == ["squeue"]
    assert capsys.readouterr().out.startswith("run is job 4711 already, RUNNING")


def test_a_dry_run_prints_the_command_that_a_launch_makes(slurm, capsys):
    for words in ([], ["--teardown"]):
        slurm.answers(**{"sbatch_--parsable": (0, "1\n", "")})
        assert launch(*words, "--dry_run") == 0
        (line,) = capsys.readouterr().out.splitlines()
        assert launch(*words) == 0
        assert shlex.split(line) == slurm.calls[-1]
        capsys.readouterr()
    assert slurm.calls[-1] == ["scancel", "--me", "--name=run"]


def test_the_run_keeps_no_programs_where_its_launch_keeps_none(slurm, monkeypatch):
    monkeypatch.setenv("JAX_ENABLE_COMPILATION_CACHE", "true")  # restored after the test, whose command sets it
    slurm.answers(**{"sbatch_--parsable": (0, "1\n", "")})
    assert launch("--no_compilation_cache") == 0
    assert slurm.calls[-1][-4:] == ["bert_tiny", *RUN, "--no_compilation_cache"]


def test_what_slurm_refuses_is_one_line(slurm, capsys):
    slurm.answers(**{"sbatch_--parsable": (1, "", "sbatch: error: Invalid account or partition\n")})
    assert launch() == 2
    said = capsys.readouterr().err
    assert "failed with exit code 1: sbatch: error: Invalid account or partition" in said and said.count("\n") == 1


SRUN = """#!/bin/bash
echo "$*" >> "$CALLS"
read -r code rest <<< "$(cat "$CODES")"
echo "$rest" > "$CODES"
exit "$code"
"""


@pytest.fixture
def job(slurm, tmp_path, monkeypatch):
    """Run the job with these exit codes of srun, one after the other; return its exit code and output."""
    for name, text in (("srun", SRUN), ("sleep", '#!/bin/sh\necho "sleep $*" >> "$CALLS"\n')):
        (slurm.bin / name).write_text(text)
        (slurm.bin / name).chmod(0o755)
    for name, value in (("CALLS", "srun_calls"), ("CODES", "codes")):
        monkeypatch.setenv(name, str(tmp_path / value))
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)

    def run(codes: str, most: int = 3):
        (tmp_path / "codes").write_text(codes)
        done = subprocess.run(["bash", JOB, str(most), "bert-jax", "pretrain", "a b"], capture_output=True, text=True)
        return done.returncode, done.stdout, (tmp_path / "srun_calls").read_text().splitlines()

    return run


START = "--kill-on-bad-exit=0 --wait=120 bert-jax pretrain a b"


@pytest.mark.parametrize("code", [0, 2, 130])
def test_the_job_ends_with_what_is_final(job, slurm, code):
    assert job(f"{code} 0") == (code, f"the run has ended: exit code {code}\n", [START])
    assert slurm.calls == []


def test_the_tasks_get_the_processors_that_the_job_has_asked_for(job, monkeypatch):
    """Since Slurm 22.05 srun does not take them from sbatch, which sets this variable if --cpus-per-task was given."""
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "12")
    asked = START.replace("bert-jax", "--cpus-per-task=12 bert-jax")
    assert job("75 0")[2] == [asked, "sleep 10", asked]


def test_the_job_is_requeued_after_it_was_told_to_stop(job, slurm):
    code, said, calls = job("143 0")
    assert (code, calls) == (143, [START]) and said == "stopped by SIGTERM and saved; requeued\n"
    assert slurm.calls == [["scontrol", "requeue", "4711"]]


def test_the_job_starts_again_after_crashes_up_to_the_bound(job, slurm):
    assert job("75 137 0")[::2] == (0, [START, "sleep 10", START, "sleep 20", START])
    assert slurm.calls == []


def test_the_job_gives_up(job):
    code, said, calls = job("1 1 1 1", most=2)
    assert (code, calls.count(START)) == (1, 3)
    assert said.splitlines()[-1] == "exit code 1; not started again, after 2 restarts"


def test_waits_of_the_job_double_up_to_five_minutes(job):
    waits = [call for call in job("1 " * 9, most=7)[2] if call != START]
    assert waits == [f"sleep {seconds}" for seconds in (10, 20, 40, 80, 160, 300, 300)]


@pytest.mark.parametrize(
    "words, message",
    [
        ("--name=My_run", "--name=My_run must be at most 40 lower-case letters"),
        ("--nodes=0", "--nodes=0 must be at least 1"),
        ("--gpus_per_node=0", "--gpus_per_node=0 must be at least 1"),
        ("--notice_seconds=0", "--notice_seconds=0 must be at least 1"),
        ("--time=tomorrow", "--time=tomorrow is not a time limit of Slurm, such as 24:00:00 or 2-12:00:00"),
        ("--partition=a;b", "--partition=a;b is not a name that Slurm allows"),
        ("--nodse=2", "unknown option --nodse; perhaps you meant --nodes"),
    ],
)
def test_bad_input_is_refused_before_slurm_is_called(words, message, slurm, capsys):
    assert message in refusal(capsys, *COMMAND.split(), *RUN, words)
    assert slurm.calls == []


def test_without_slurm(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert launch() == 2
    assert "sbatch is not installed, or not on PATH; run this on a login node" in capsys.readouterr().err
