"""The scripts that run a whole benchmark, with a stub for bert-jax: what they start, leave out and refuse."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
STUB = """#!/bin/sh
echo "$*" >> "$CALLS"
case $* in finetune*)
  for word; do case $word in --workdir=*) mkdir -p "${word#--workdir=}/checkpoints" ;; esac; done ;;
esac
"""  # finetune leaves a model in its work directory


SHELLCHECK = shutil.which("shellcheck", path=f"{sys.prefix}/bin{os.pathsep}{os.environ['PATH']}")


@pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is not installed; make install brings it")
def test_shellcheck_finds_nothing():
    scripts = [*SCRIPTS.glob("*.sh"), *(SCRIPTS.parent / "bert_jax").rglob("*.sh")]
    done = subprocess.run([SHELLCHECK, *scripts], capture_output=True, text=True)
    assert len(scripts) >= 5 and done.returncode == 0, done.stdout


@pytest.fixture
def run_script(tmp_path):
    """Run a script of the checkpoint `base` on tmp_path/data into tmp_path/out: its process, and its bert-jax calls."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "bin/bert-jax").write_text(STUB)
    (tmp_path / "bin/bert-jax").chmod(0o755)

    def run(script, *options, **environment):
        calls = tmp_path / "calls"
        calls.write_text("")
        process = subprocess.run(
            ["sh", SCRIPTS / script, "base", tmp_path / "data", tmp_path / "out", *options],
            text=True,
            capture_output=True,
            env={**os.environ, **environment, "CALLS": str(calls), "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"},
        )
        return process, [line.split() for line in calls.read_text().splitlines()]

    return run


@pytest.fixture
def run_glue(run_script, tmp_path):
    """Run run_glue.sh on a GLUE of these directories: its process, and where each task that it fine-tuned began."""

    def run(*directories, **environment):
        for name in directories:
            (tmp_path / "data" / name).mkdir(parents=True, exist_ok=True)
        process, calls = run_script("run_glue.sh", **environment)
        return process, {
            task: start.removeprefix("--init_from=") for command, task, start, *_ in calls if command == "finetune"
        }

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


def options(call: list[str]) -> dict[str, str]:
    """As the command line reads them: of equal names the last counts."""
    return dict(word.removeprefix("--").split("=", 1) for word in call if word.startswith("--") and "=" in word)


def test_squad_leaves_out_what_is_not_there_and_goes_on_from_triviaqa(run_script, tmp_path):
    (tmp_path / "data/train-mini-v2.0.json").touch()
    process, (squad, results) = run_script("run_squad.sh", "--seeds=3")
    assert process.returncode == 0 and "squad_v1: no train-v1.1.json" in process.stdout
    assert squad[:2] == ["finetune", "squad_v2"] and results[0] == "results"
    assert options(squad) == {
        "init_from": "base",
        "data.dir": str(tmp_path / "data"),
        "workdir": str(tmp_path / "out/squad_v2"),
        "seeds": "3",
    }
    _, (trivia, squad, _) = run_script("run_squad.sh", TRIVIAQA="trivia", VERSIONS="v2")
    assert options(trivia)["data.dir"] == "trivia" and options(squad)["init_from"] == options(trivia)["workdir"]


def test_swag(run_script, tmp_path):
    process, (swag, results) = run_script("run_swag.sh", "--seeds=3")
    assert process.returncode == 0 and swag[:2] == ["finetune", "swag"] and options(swag)["seeds"] == "3"
    assert results == ["results", str(tmp_path / "out"), f"--output={tmp_path / 'out'}"]


def test_rates_and_grids_of_fine_tuning_are_not_those_of_a_bilstm(run_script, tmp_path):
    process, (tuned, *frozen, results) = run_script("run_ner.sh", "--learning_rate=2e-5", "--grid=true", FEATURES="1")
    assert process.returncode == 0
    assert (
        options(tuned)["learning_rate"] == "2e-5"
        and options(tuned)["grid"] == "true"
        and "features" not in options(tuned)
    )
    assert [options(call)["features"] for call in frozen] == [
        "embeddings",
        "second_to_last",
        "last",
        "weighted_last_four",
        "concat_last_four",
        "weighted_all",
    ]
    assert {(options(call)["learning_rate"], options(call)["grid"]) for call in frozen} == {("1e-3", "false")}
    assert len({options(call)["workdir"] for call in [tuned, *frozen]}) == 7 == len(results[1:-1])
    _, (_, first, *_) = run_script("run_ner.sh", FEATURES="1", FEATURE_RATE="5e-4")
    assert options(first)["learning_rate"] == "5e-4"
