"""From the records of finished runs to results.json: mean and deviation over seeds, the chosen run and how it was chosen."""

import statistics

from etils import epath
from rich.console import Console
from rich.table import Table

from bert_jax.config_dict import to_dict
from bert_jax.finetune_config import FinetuneConfig
from bert_jax.software import commit, versions
from bert_jax.workdir import read_json

RECORD = "results.json"


def finished_runs(runs: epath.Path) -> list[dict]:
    """The records of all finished runs below a work directory, by name."""
    if not runs.is_dir():
        return []
    names = sorted(place.name for place in runs.iterdir())
    return [read_json(runs / name / RECORD) for name in names if (runs / name / RECORD).exists()]


def best(records: list[dict], metric: str) -> dict:
    """The record of the highest dev metric; of equals the first, and one that has not collapsed before one that has."""
    return max(records, key=lambda record: (record["metrics"][metric], record["collapsed"] is None))


def summary(config: FinetuneConfig, records: list[dict], metric: str, facts: dict) -> dict:
    """Content of results.json.

    Args:
      metric: name of the dev metric that chooses.
      facts: of data and model, added as they are.
    """
    chosen = best(records, metric)
    settings = [_setting(name, [record for record in records if record["setting"] == name], metric)
                for name in dict.fromkeys(record["setting"] for record in records)]
    weights = "after the last epoch" if config.select == "last" else "after the best epoch on dev"
    return {"task": config.task, "metrics": chosen["metrics"], "main_metric": metric,
            "hyperparameters": chosen["hyperparameters"], "seed": chosen["seed"], "collapsed": chosen["collapsed"],
            "chosen": {"run": chosen["run"], "by": f"highest {metric} on dev of {len(records)} runs, weights {weights}"},
            "init_from": config.init_from, "random_weights": config.random_weights, **facts,
            "settings": sorted(settings, key=lambda setting: -setting["mean"][metric]), "runs": records,
            "commit": commit(), "versions": versions(), "config": to_dict(config)}


def _setting(name: str, records: list[dict], metric: str) -> dict:
    """What the runs of one setting have in common: mean, sample standard deviation (None for one run), best."""
    values = {key: [record["metrics"][key] for record in records] for key in records[0]["metrics"]}
    return {"setting": name, "runs": len(records), "collapsed": sum(record["collapsed"] is not None for record in records),
            "mean": {key: statistics.fmean(numbers) for key, numbers in values.items()},
            "standard_deviation": {key: statistics.stdev(numbers) if records[1:] else None for key, numbers in values.items()},
            "best": max(values[metric]), "best_seed": best(records, metric)["seed"]}


def show(results: dict) -> None:
    """Prints the settings, best first, what was chosen, and which runs collapsed."""
    table = Table(title=f"{results['task']} on dev")
    metrics = list(results["metrics"])
    for column in ("setting", "runs", *metrics):
        table.add_column(column, justify="left" if column == "setting" else "right", no_wrap=column == "setting")
    for setting in results["settings"]:
        table.add_row(setting["setting"], str(setting["runs"]), *(figure(setting, name) for name in metrics))
    console = Console(highlight=False)
    (console if console.is_terminal else Console(highlight=False, width=160)).print(table)
    chosen = results["chosen"]
    console.print(f"chosen: {chosen['run']} ({_line(results['metrics'])}); {chosen['by']}", markup=False, soft_wrap=True)
    for name, metrics in results["tests"].items():
        console.print(f"{name}: {_line(metrics)}", markup=False, soft_wrap=True)
    for record in results["runs"]:
        if record["collapsed"]:
            console.print(f"collapsed: {record['run']}: {record['collapsed']}", markup=False, soft_wrap=True)


def figure(setting: dict, metric: str) -> str:
    """Mean in percent, ± standard deviation where there are several runs."""
    spread, scale = setting["standard_deviation"][metric], _scale(metric)
    return f"{scale * setting['mean'][metric]:.2f}" + ("" if spread is None else f" ± {scale * spread:.2f}")


def _line(metrics: dict[str, float]) -> str:
    return ", ".join(f"{name} {_scale(name) * value:.2f}" for name, value in metrics.items())


def _scale(metric: str) -> int:
    """Fractions are shown in percent; a threshold is a difference of scores."""
    return 1 if metric.endswith("_thresh") else 100
