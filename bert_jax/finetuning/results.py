"""From the records of finished runs to results.json: mean and deviation over seeds, the chosen run and why."""

import os
import statistics
from typing import Any

from etils import epath
from rich.console import Console
from rich.table import Table

from bert_jax.checkpoints.run_files import read_json
from bert_jax.config.finetuning import RESULTS, FinetuneConfig
from bert_jax.config.json_form import to_dict
from bert_jax.config.metric_scale import metric_scale
from bert_jax.devices.software import commit, versions
from bert_jax.errors import UserError

FIELDS = {"run": str, "setting": str, "seed": int, "step": int, "metrics": dict, "hyperparameters": dict, "keep": str}


def finished_runs(runs: epath.Path, metric: str) -> list[dict[str, Any]]:
    """Return the records of all finished runs below a work directory, by name.

    Raises:
      UserError: one of them is damaged, lacks `metric`, by which runs are chosen, or lacks a metric that others have.
    """
    if not runs.is_dir():
        return []
    names = sorted(place.name for place in runs.iterdir())
    records = [_read_record(runs / name / RESULTS) for name in names if (runs / name / RESULTS).exists()]
    measured = sorted(set().union(*(record["metrics"] for record in records)))
    for name in (metric, *measured):
        for record in records:
            if name not in record["metrics"]:
                raise _damaged(runs / record["run"] / RESULTS, f"has no {name!r:.60} among its metrics")
    return records


def _read_record(file: epath.Path) -> dict[str, Any]:
    record = read_json(file)
    for name, kind in FIELDS.items():
        if type(record.get(name)) is not kind:
            raise _damaged(file, f"has {name}={record.get(name)!r:.60}")
    if record["run"] != file.parent.name:
        raise _damaged(file, f"is that of the run {record['run']!r:.80}")
    if any(type(value) not in (int, float) for value in record["metrics"].values()):
        raise _damaged(file, f"has metrics={record['metrics']!r:.80}")
    if not isinstance(record.get("collapsed", 0), str | None):
        raise _damaged(file, f"has collapsed={record.get('collapsed', 'missing')!r:.60}")
    return record


def _damaged(file: epath.Path, why: str) -> UserError:
    return UserError(
        f"{file} {why}, so it is not the record of this run; restore it from a copy, or delete {file.parent} "
        "to train the run again"
    )


def earlier_predictions(file: epath.Path) -> dict[str, Any] | None:
    """Return which predictions the results.json of an earlier command records; None if it is absent or unusable.

    These are `run` and `metrics` of the model, and `tests` and `predictions`, which `summary` got as facts.
    """
    try:
        before = read_json(file)
        return {
            "run": before["chosen"]["run"],
            "metrics": before["metrics"],
            "tests": {
                name: {key: float(value) for key, value in test.items()} for name, test in before["tests"].items()
            },
            "predictions": {
                "test_fingerprint": before["predictions"]["test_fingerprint"],
                "files": list(map(os.fspath, before["predictions"]["files"])),
            },
        }
    except (UserError, LookupError, TypeError, ValueError, AttributeError):
        return None


def best(records: list[dict[str, Any]], metric: str) -> dict[str, Any]:
    """Return the record with the highest dev metric; among equals the first, if possible one that has not collapsed."""
    return max(records, key=lambda record: (record["metrics"][metric], record["collapsed"] is None))


def summary(
    config: FinetuneConfig, records: list[dict[str, Any]], metric: str, facts: dict[str, Any]
) -> dict[str, Any]:
    """Return the content of results.json.

    Args:
      config: the resolved configuration.
      records: records of all runs.
      metric: name of the dev metric that decides.
      facts: facts about data and model, added as they are.
    """
    chosen = best(records, metric)
    settings = [
        _setting(name, [record for record in records if record["setting"] == name], metric)
        for name in dict.fromkeys(record["setting"] for record in records)
    ]
    runs = f"{len(records)} run" + "s" * (len(records) > 1)
    weights = "after the last epoch" if config.select == "last" else "after the best epoch on dev"
    return {
        "task": config.task,
        "metrics": chosen["metrics"],
        "main_metric": metric,
        "hyperparameters": chosen["hyperparameters"],
        "seed": chosen["seed"],
        "collapsed": chosen["collapsed"],
        "chosen": {"run": chosen["run"], "by": f"highest {metric} on dev of {runs}, weights {weights}"},
        "init_from": config.init_from,
        "random_weights": config.random_weights,
        **facts,
        "settings": sorted(settings, key=lambda setting: -setting["mean"][metric]),
        "runs": records,
        "commit": commit(),
        "versions": versions(),
        "config": to_dict(config),
    }


def _setting(name: str, records: list[dict[str, Any]], metric: str) -> dict[str, Any]:
    """Summarize the runs of one setting: mean, sample standard deviation (None for one run), best."""
    values = {key: [record["metrics"][key] for record in records] for key in records[0]["metrics"]}
    return {
        "setting": name,
        "runs": len(records),
        "collapsed": sum(record["collapsed"] is not None for record in records),
        "mean": {key: statistics.fmean(numbers) for key, numbers in values.items()},
        "standard_deviation": {
            key: statistics.stdev(numbers) if records[1:] else None for key, numbers in values.items()
        },
        "best": max(values[metric]),
        "best_seed": best(records, metric)["seed"],
    }


def show(results: dict[str, Any]) -> None:
    """Print the settings, best first, the chosen run, and the runs that collapsed."""
    table = Table(title=f"{results['task']} on dev")
    metrics = list(results["metrics"])
    for column in ("setting", "runs", *metrics):
        table.add_column(column, justify="left" if column == "setting" else "right", no_wrap=column == "setting")
    for setting in results["settings"]:
        table.add_row(setting["setting"], str(setting["runs"]), *(figure(setting, name) for name in metrics))
    console = Console(highlight=False)
    (console if console.is_terminal else Console(highlight=False, width=160)).print(table)
    chosen = results["chosen"]
    console.print(
        f"chosen: {chosen['run']} ({_line(results['metrics'])}); {chosen['by']}", markup=False, soft_wrap=True
    )
    for name, metrics in results["tests"].items():
        console.print(f"{name}: {_line(metrics)}", markup=False, soft_wrap=True)
    for record in results["runs"]:
        if record["collapsed"]:
            console.print(f"collapsed: {record['run']}: {record['collapsed']}", markup=False, soft_wrap=True)


def figure(setting: dict[str, Any], metric: str) -> str:
    """Return the mean in percent, ± standard deviation if there are several runs."""
    spread, scale = setting["standard_deviation"][metric], metric_scale(metric)
    return f"{scale * setting['mean'][metric]:.2f}" + ("" if spread is None else f" ± {scale * spread:.2f}")


def _line(metrics: dict[str, float]) -> str:
    return ", ".join(f"{name} {metric_scale(name) * value:.2f}" for name, value in metrics.items())
