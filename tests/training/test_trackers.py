"""Weights & Biases and MLflow: what they are called with, by stubs, and the packages themselves where installed."""

import dataclasses
import importlib.util
import json
import math
import sys
import types

import jax
import pytest
from one_device import finetune, pretrain
from small_pretraining import rows, run_config

from bert_jax.config.pretraining import SinksConfig
from bert_jax.errors import UserError
from bert_jax.training.metrics import Metrics
from bert_jax.training.trackers import check_trackers, trackers

BOTH = SinksConfig(wandb="project", mlflow="experiment")
CONFIG = {"seed": 3, "model": {"num_layers": 2}, "phases": [{"steps": 5}]}
FIND_SPEC = importlib.util.find_spec


def finds_services(name: str, package: str | None = None):
    """Find both packages, and everything else as usual: libraries look for others as they are first used."""
    return types.SimpleNamespace(name=name) if name in ("wandb", "mlflow") else FIND_SPEC(name, package)


class Recorder:
    """Stands for a module or an object of a service: notes every call by its name, and returns what it is told to."""

    def __init__(self, calls: list, answers: dict | None = None, name: str = ""):
        self.calls, self.answers, self.name = calls, answers or {}, name

    def __getattr__(self, name: str):
        def call(*arguments, **options):
            self.calls.append((name, arguments, options))
            answer = self.answers.get(name)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


def services(monkeypatch, **answers) -> tuple[list, list]:
    """Put recorders in the place of both packages; return the calls of each."""
    ours, theirs = [], []
    run = Recorder(ours, answers)
    wandb = Recorder(ours, {"init": run, **answers})
    experiment = types.SimpleNamespace(experiment_id="7")
    created = types.SimpleNamespace(info=types.SimpleNamespace(run_id="abc"))
    client = Recorder(
        theirs, {"get_experiment_by_name": experiment, "search_runs": [], "create_run": created, **answers}
    )
    entities = types.ModuleType("mlflow.entities")
    entities.Metric = lambda key, value, timestamp, step: (key, value, step)
    mlflow = types.ModuleType("mlflow")
    mlflow.MlflowClient, mlflow.entities = lambda: client, entities
    for name, stub in (("wandb", wandb), ("mlflow", mlflow), ("mlflow.entities", entities)):
        monkeypatch.setitem(sys.modules, name, stub)
    return ours, theirs


def of(calls: list, name: str) -> list:
    return [(arguments, options) for called, arguments, options in calls if called == name]


def test_rows_reach_both_services(monkeypatch, tmp_path):
    ours, theirs = services(monkeypatch)
    make = lambda: trackers(BOTH, "0f0f", "run", CONFIG)
    with Metrics(tmp_path, total_steps=5, trackers=make) as metrics:
        metrics.write(2, {"loss": 1.5, "grad_norm": math.inf})
        metrics.write(2, {"mlm_loss": 2.5}, kind="evaluation")
    ((_, options),) = of(ours, "init")
    assert {**options, "settings": None} == {
        "project": "project", "id": "0f0f", "name": "run", "config": CONFIG, "resume": "allow", "settings": None
    }  # fmt: skip
    assert [arguments for arguments, _ in of(ours, "log")] == [
        ({"train/loss": 1.5, "step": 2},),
        ({"evaluation/mlm_loss": 2.5, "step": 2},),
    ]
    assert of(ours, "define_metric")[1] == (("*",), {"step_metric": "step"}) and len(of(ours, "finish")) == 1
    assert [options for _, options in of(theirs, "log_batch")] == [
        {"metrics": [("train/loss", 1.5, 2)]},
        {"metrics": [("evaluation/mlm_loss", 2.5, 2)]},
    ]
    assert of(theirs, "create_run") == [(("7",), {"tags": {"run_id": "0f0f"}, "run_name": "run"})]
    assert ("abc", "phases.0.steps", 5) in [arguments for arguments, _ in of(theirs, "log_param")]
    assert of(theirs, "set_terminated") == [(("abc",), {})]


def test_a_resumed_run_of_mlflow_is_continued(monkeypatch):
    earlier = types.SimpleNamespace(info=types.SimpleNamespace(run_id="old"))
    _, theirs = services(monkeypatch, search_runs=[earlier])
    (tracker,) = trackers(SinksConfig(mlflow="experiment"), "0f0f", "run", CONFIG)
    tracker.write(1, "train", {"loss": 1.0})
    assert of(theirs, "search_runs")[0][0] == (["7"], "tags.run_id = '0f0f'")
    assert not of(theirs, "create_run") and of(theirs, "log_batch")[0][0] == ("old",)


@pytest.mark.parametrize("fails", ["init", "log", "finish"])
def test_a_service_that_fails_is_one_warning(monkeypatch, tmp_path, caplog, fails):
    ours, _ = services(monkeypatch, **{fails: ConnectionError("no route\nto host")})
    make = lambda: trackers(SinksConfig(wandb="project"), "0f0f", "run", CONFIG)
    with Metrics(tmp_path, total_steps=5, trackers=make) as metrics:
        for step in (1, 2, 3):
            metrics.write(step, {"loss": 1.0})
    (record,) = caplog.records
    assert record.getMessage() == (
        "Weights & Biases gets no more metrics of this run: ConnectionError: no route to host"
    )
    assert len(of(ours, "log")) == {"init": 0, "log": 1, "finish": 3}[fails]
    assert (tmp_path / "metrics.jsonl").read_text().count("loss") == 3


@pytest.mark.slow
def test_a_run_sends_its_rows_under_its_own_id(finished, small_store, monkeypatch, tmp_path):
    ours, _ = services(monkeypatch)
    config = run_config(small_store, tmp_path / "run", sinks=SinksConfig(wandb="project"))
    monkeypatch.setattr("importlib.util.find_spec", finds_services)
    pretrain(config)
    ((_, options),) = of(ours, "init")
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert options["id"] == run["run_id"] and options["name"] == "run" and options["config"]["seed"] == 0
    sent = [arguments[0] for arguments, _ in of(ours, "log")]
    logged = [(row["step"], row["loss"]) for row in rows(config.workdir)]
    assert [(row["step"], row["train/loss"]) for row in sent if "train/loss" in row] == logged
    assert rows(config.workdir) == rows(finished[0].workdir)  # it learns the same


@pytest.mark.slow
def test_each_run_of_a_fine_tuning_is_one_of_the_service(two_seeds, monkeypatch, tmp_path):
    ours, _ = services(monkeypatch)
    config = dataclasses.replace(two_seeds[0], workdir=str(tmp_path / "work"), sinks=SinksConfig(wandb="project"))
    monkeypatch.setattr("importlib.util.find_spec", finds_services)
    results = finetune(config).results
    names = [record["run"] for record in two_seeds[1]["runs"]]
    run_id = json.loads((tmp_path / "work" / "run.json").read_text())["run_id"]
    begun = [options for _, options in of(ours, "init")]
    assert len(names) == 2 and [options["name"] for options in begun] == [f"work/{name}" for name in names]
    assert [options["id"] for options in begun] == [f"{run_id}-{name}" for name in names]
    assert [options["config"]["seed"] for options in begun] == [config.seed, config.seed + 1]
    sent = [(row["step"], row["train/loss"]) for (row,), _ in of(ours, "log") if "train/loss" in row]
    assert sent == [(row["step"], row["loss"]) for name in names for row in rows(tmp_path / "work/runs" / name)]
    assert len(of(ours, "finish")) == 2
    metrics = [[record["metrics"] for record in each["runs"]] for each in (results, two_seeds[1])]
    assert metrics[0] == metrics[1]  # it learns the same
    finetune(dataclasses.replace(config, sinks=SinksConfig()))  # another service, or none, is no other run
    assert len(of(ours, "init")) == 2


def test_a_package_that_is_missing_is_named_before_anything_starts(monkeypatch, tmp_path, small_store):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"sinks.wandb needs wandb.*pip install 'bert_jax\[wandb\]'"):
        check_trackers(SinksConfig(wandb="project"))
    with pytest.raises(UserError, match=r"sinks.mlflow needs mlflow.*pip install 'bert_jax\[mlflow\]'"):
        check_trackers(SinksConfig(mlflow="experiment"))
    check_trackers(SinksConfig())


def test_only_the_first_host_sends(monkeypatch, tmp_path):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    Metrics(tmp_path, total_steps=5, trackers=lambda: pytest.fail("made on another host")).close()


@pytest.mark.filterwarnings("default")  # of packages that are not ours
def test_the_real_mlflow_continues_a_run(monkeypatch, tmp_path):
    mlflow = pytest.importorskip("mlflow", reason="the package is of the extra `mlflow`")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    for step in (1, 2):
        (tracker,) = trackers(SinksConfig(mlflow="experiment"), "0f0f", "run", CONFIG)
        tracker.write(step, "train", {"loss": 1.0 / step, "grad_norm": math.nan})
        tracker.close()
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("experiment").experiment_id])
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(metric.step, metric.value) for metric in history] == [(1, 1.0), (2, 0.5)]
    assert run.data.params["model.num_layers"] == "2" and run.info.status == "FINISHED"


@pytest.mark.filterwarnings("default")
def test_the_real_weights_and_biases_writes_offline(monkeypatch, tmp_path):
    pytest.importorskip("wandb", reason="the package is of the extra `wandb`")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    (tracker,) = trackers(SinksConfig(wandb="project"), "0f0f", "run", CONFIG)
    tracker.write(1, "train", {"loss": 1.0})
    tracker.close()
    (written,) = (tmp_path / "wandb").glob("offline-run-*-0f0f/run-0f0f.wandb")
    assert b"train/loss" in written.read_bytes()
