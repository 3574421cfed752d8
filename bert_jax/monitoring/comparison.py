"""`bert-jax report`: runs side by side in one HTML file, which needs neither a server nor the network."""

import dataclasses
import os
import time
from typing import Any

import numpy as np

from bert_jax.config.json_form import flattened
from bert_jax.config.watching import ReportConfig
from bert_jax.errors import UserError, need_extra
from bert_jax.files import write_atomically
from bert_jax.monitoring.charts import figures
from bert_jax.monitoring.goodput import LOST, goodput
from bert_jax.monitoring.page import Table, page
from bert_jax.monitoring.run_history import RunHistory, read_run
from bert_jax.monitoring.status import status
from bert_jax.training.events import EVENTS
from bert_jax.training.sinks import duration, read_rows
from bert_jax.training.wall_time import CATEGORIES

UNTOLD = ("time", "event", "step", "versions", "norms", "terms")  # of an event: what has a column, or is too long
MOST_EVENTS = 200  # per run, the newest
MOST_RUNS = 32
MOST_STEPS = 8  # columns of a table of sample predictions
NO_SAMPLES = "None were noted; pretrain --evaluation.samples=4 notes those of four sequences at each evaluation."


def run_report(paths: list[str], config: ReportConfig) -> int:
    """Write a page that compares the runs in these work directories; return the size of the file in bytes.

    Args:
      paths: work directories, local or gs://. Each run of a fine-tuning directory is a run of its own.
      config: where to write.

    Raises:
      UserError: a path is not a work directory, there are too many runs, plotly is not installed, or the file cannot be
        written.
    """
    need_extra("plotly", "report", "bert-jax report")
    runs = named([run for path in paths for run in runs_below(path)])
    if len(runs) > MOST_RUNS:
        raise UserError(f"{len(runs)} runs are more than a page can compare; give at most {MOST_RUNS}")
    now = time.time()
    tables = [summary(runs, now), time_spent(runs), held_out(runs), sampled(runs), differing(runs), events(runs)]
    content = page(" · ".join(runs), figures(runs), tables, now).encode()
    try:
        write_atomically(config.output, content)
    except OSError as error:
        raise UserError(f"cannot write output={config.output}: {error.strerror or error}") from None
    shown = f"{len(runs)} run" + "s" * (len(runs) > 1)
    print(f"{config.output}: {shown}, {len(content) / 1e6:.1f} MB; open it in any browser")
    return len(content)


def runs_below(path: str) -> list[RunHistory]:
    """Return the run in work directory `path`, or each run of a fine-tuning directory."""
    run = read_run(path)
    found = sorted((run.path / "runs").glob("*")) if run.is_finetuning else []
    return [
        dataclasses.replace(
            run,
            path=each,
            home=run.path,
            rows=read_rows(each / "metrics.jsonl"),
            events=_events_of(run.events, each.name),
            problems=[],
        )
        for each in found
    ] or [run]


def _events_of(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Return those of one run of a fine-tuning: from each of its starts to the next start."""
    found, current = [], None
    for row in events:
        current = row.get("run") if row["event"] == "start" else current
        found += [row] * (current == name)
    return found


def named(runs: list[RunHistory]) -> dict[str, RunHistory]:
    """Return the runs by name: that of the directory, or its whole path where two have one name."""
    names = [run.name for run in runs]
    paths = [os.fspath(run.path) for run in runs]
    return {path if names.count(name) > 1 else name: run for name, path, run in zip(names, paths, runs, strict=True)}


def summary(runs: dict[str, RunHistory], now: float) -> Table:
    rows = []
    for name, run in runs.items():
        facts = status(run, now)
        step = facts.get("step", max((row["step"] for row in run.rows), default=0))
        done = f"{step:,}" + (f" of {facts['total_steps']:,}" if "total_steps" in facts else "")
        state = "finished" if facts.get("finished") else "running" if facts["process"] else "not running"
        spent = f"{facts['goodput']['share']:.1%}" if "goodput" in facts else ""
        rate = facts.get("rates", {}).get("tokens_per_second")
        speed = f"{rate:,.0f}" if isinstance(rate, float) else ""
        rows.append([name, os.fspath(run.path), done, state, speed, spent, "; ".join(facts["alarms"])])
    head = ["run", "work directory", "step", "state", "tokens/s", "goodput", "alarms"]
    return Table("Runs", head, rows)


def time_spent(runs: dict[str, RunHistory]) -> Table:
    head, rows = ["run", *CATEGORIES, LOST, "total"], []
    for name, run in runs.items():
        if (found := goodput(run.rows)) is not None:
            rows.append([name, *(duration(found.seconds[category]) for category in head[1:-1]), duration(found.total)])
    return Table("What the time went to", head, rows, "No run has logged any yet.")


def held_out(runs: dict[str, RunHistory]) -> Table:
    """Return the last figures of each run and those of its step with the lowest main loss."""
    evaluations = {name: run.of_kind("evaluation") for name, run in runs.items()}
    metrics = list(dict.fromkeys(key for rows in evaluations.values() for row in rows for key in row))
    metrics = [metric for metric in metrics if metric not in ("kind", "step")]
    table = []
    for name, rows in evaluations.items():
        main, chosen = runs[name].main_loss, {"last": rows[-1]} if rows else {}
        if len(rows) > 1 and any(main in row for row in rows):
            chosen["best"] = min(rows, key=lambda row: row.get(main, float("inf")))
        for which, row in chosen.items():
            values = [f"{row[metric]:.4g}" if metric in row else "" for metric in metrics]
            table.append([name, which, f"{row['step']:,}", *values])
    return Table("Held-out figures", ["run", "which", "step", *metrics], table, "No run has been evaluated yet.")


def sampled(runs: dict[str, RunHistory]) -> Table:
    """Return, for each masked word of the sequences that the runs have noted, what was filled in at which step."""
    folded = []
    for name, run in runs.items():
        noted = {row["step"]: row["samples"] for row in run.happened("sampled") if is_samples(row.get("samples"))}
        steps = sorted(noted)
        places = np.unique(np.linspace(0, len(steps) - 1, MOST_STEPS).round().astype(int)) if steps else []
        shown = [steps[place] for place in places]
        for number, sample in enumerate(noted[shown[-1]] if shown else []):
            cells = [[_filled(noted[step], number, slot) for step in shown] for slot in range(len(sample["masks"]))]
            rows = [[mask["word"], *row] for mask, row in zip(sample["masks"], cells, strict=True)]
            head = ["masked word", *(f"step {step:,}" for step in shown)]
            folded.append(Table(f"{name}: {sample['text']}", head, rows))
    nothing = "The same held-out sequences at several steps; open one." if folded else NO_SAMPLES
    return Table("Sample predictions over time", [], [], nothing, folded=tuple(folded))


def is_samples(value: Any) -> bool:
    """Return whether a value from events.jsonl has the form that `training.samples` writes."""
    if not isinstance(value, list):
        return False
    return all(
        isinstance(sample, dict)
        and isinstance(sample.get("text"), str)
        and isinstance(sample.get("masks"), list)
        and all(isinstance(mask, dict) and isinstance(mask.get("word"), str) for mask in sample["masks"])
        for sample in value
    )


def _filled(samples: list[dict[str, Any]], number: int, slot: int) -> str:
    """Return the candidates for one mask in words: cat 41%, dog 7%."""
    masks = samples[number]["masks"] if number < len(samples) else []
    candidates = masks[slot].get("candidates") if slot < len(masks) else None
    pairs = candidates if isinstance(candidates, list) else []
    words = [
        f"{pair[0]} {pair[1]:.0%}"
        for pair in pairs
        if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[1], (int, float))
    ]
    return ", ".join(words)


def differing(runs: dict[str, RunHistory]) -> Table:
    """Return the options in which the runs differ."""
    flat = {name: _texts(run.settings) for name, run in runs.items()}
    keys = sorted({key for options in flat.values() for key in options})
    values = {key: [str(options.get(key, "")) for options in flat.values()] for key in keys}
    rows = [[key, *shown] for key, shown in values.items() if len({*shown}) > 1]
    nothing = "All options are the same." if len(runs) > 1 else "There is one run."
    whole = [
        Table(f"All options of {name}", ["option", "value"], [list(pair) for pair in options.items()])
        for name, options in flat.items()
    ]
    return Table("Options that differ", ["option", *runs], rows, nothing, folded=tuple(whole))


def _texts(options: dict[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in flattened(options).items()}


def events(runs: dict[str, RunHistory]) -> Table:
    rows, shown = [], {name for name, kind in EVENTS.items() if kind.is_told}
    for name, run in runs.items():
        for row in [row for row in run.events if row["event"] in shown][-MOST_EVENTS:]:
            details = {key: value for key, value in row.items() if key not in UNTOLD}
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(max(0.0, min(row["time"], 2**40))))
            told = ", ".join(f"{key} {value}" for key, value in details.items())[:300]
            rows.append([name, when, row["event"], f"{row['step']:,}", told])
    return Table("Events (UTC)", ["run", "time", "event", "step", "details"], rows, "Nothing has happened yet.")
