"""The scripts that run a whole benchmark, with a stub in the place of bert-jax: what they start, leave out and refuse."""

import os
import pathlib
import subprocess

import pytest

SCRIPTS = pathlib.Path(__file__).resolve().parents[1] / "scripts"
STUB = """#!/bin/sh
echo "$*" >> "$CALLS"
case $* in finetune*) for word; do case $word in --workdir=*) mkdir -p "${word#--workdir=}/checkpoints" ;; esac; done ;; esac
"""  # finetune leaves a model in its work directory


@pytest.fixture
def run_glue(tmp_path):
    """Runs the script on a GLUE of these directories: its process, and for each task that it fine-tuned where it began."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/bert-jax").write_text(STUB)
    (tmp_path / "bin/bert-jax").chmod(0o755)

    def run(*directories, **environment):
        for name in directories:
            (tmp_path / "glue" / name).mkdir(parents=True, exist_ok=True)
        calls = tmp_path / "calls"
        calls.write_text("")
        process = subprocess.run(["sh", SCRIPTS / "run_glue.sh", "base", tmp_path / "glue", tmp_path / "out"], text=True,
                                 capture_output=True, env={**os.environ, **environment, "CALLS": str(calls),
                                                           "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"})
        started = [line.split() for line in calls.read_text().splitlines() if line.startswith("finetune ")]
        return process, {task: start.removeprefix("--init_from=") for _, task, start, *_ in started}

    return run


@pytest.mark.parametrize("name", ["AX", "diagnostic"])
def test_ax_is_left_out_where_there_is_no_model_of_mnli(run_glue, tmp_path, name):
    process, started = run_glue(name, "RTE")
    assert process.returncode == 0 and started == {"rte": "base"}
    assert f"ax: no model of mnli in {tmp_path / 'out/mnli'}, left out" in process.stdout
    process, started = run_glue("MNLI")
    assert process.returncode == 0 and started == {"mnli": "base", "ax": f"{tmp_path / 'out/mnli'}", "rte": "base"}
    _, started = run_glue(TASKS="ax")  # the model was made earlier
    assert started == {"ax": f"{tmp_path / 'out/mnli'}"}


def test_tasks_that_start_from_mnli_need_it_before_anything_runs(run_glue, tmp_path):
    process, started = run_glue("SST-2", "RTE", FROM_MNLI="1", TASKS="sst2 rte")
    assert process.returncode == 2 and not started and process.stderr.count("\n") == 1
    assert f"FROM_MNLI=1: rte starts from the model in {tmp_path / 'out/mnli'}, which has none" in process.stderr
    process, started = run_glue("MNLI", FROM_MNLI="1", TASKS="rte mnli")
    assert process.returncode == 2 and not started
    model = str(tmp_path / "out/mnli")
    _, started = run_glue(FROM_MNLI="1", TASKS="sst2 mnli rte")
    assert started == {"sst2": "base", "mnli": "base", "rte": model}
    _, started = run_glue(FROM_MNLI="1", TASKS="rte")  # the model was made earlier
    assert started == {"rte": model}
