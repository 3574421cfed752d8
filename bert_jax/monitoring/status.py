"""`bert-jax status`: how a run is doing, from its files alone, while it runs or after."""

import json
import os
import time
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bert_jax.config.finetuning import RESULTS
from bert_jax.config.watching import StatusConfig
from bert_jax.errors import UserError
from bert_jax.files import finite_json, write_atomically
from bert_jax.monitoring.alarms import alarms, is_finished
from bert_jax.monitoring.goodput import goodput
from bert_jax.monitoring.run_history import RunHistory, read_run
from bert_jax.training.sinks import describe, duration, read_rows

RATES = ("tokens_per_second", "token_share", "sequences_per_second", "steps_per_second", "mfu")
NOT_FIGURES = ("kind", "step", "learning_rate", "grad_norm", "skipped", "seconds_left", *RATES)


def run_status(path: str, config: StatusConfig, console: Console | None = None) -> dict[str, Any]:
    """Print how the run in work directory `path` is doing, and return the same facts as JSON values.

    Raises:
      UserError: `path` is not the work directory of a run, or `config.output` cannot be written.
    """
    facts = status(read_run(path), time.time())
    _print(facts, console or Console(highlight=False))
    if config.output:
        try:
            write_atomically(config.output, (json.dumps(facts, indent=2) + "\n").encode())
        except OSError as error:
            raise UserError(f"cannot write output={config.output}: {error.strerror or error}") from None
    return facts


def status(run: RunHistory, now: float) -> dict[str, Any]:
    """Return the facts about a run as JSON values; what is not known is absent.

    Args:
      run: from `read_run`.
      now: seconds since 1970.
    """
    owner, saved, last = run.owner(), run.newest_checkpoint(), run.last_sign()
    facts: dict[str, Any] = {"workdir": os.fspath(run.path), "kind": _kind(run)}
    facts["process"] = None if owner is None else {name: owner.get(name) for name in ("host", "pid", "since")}
    facts |= _of_finetuning(run) if run.is_finetuning else _of_pretraining(run, saved.step if saved else 0)
    if last is not None:
        facts["seconds_since_last_row"] = max(0.0, now - last)
    if saved is not None:
        facts["checkpoint"] = {"step": saved.step, "seconds_old": max(0.0, now - saved.time)}
    if (local := run.newest_local_save()) is not None and (saved is None or local["step"] > saved.step):
        facts["local_save"] = {"step": local["step"], "seconds_old": max(0.0, now - local["time"])}
    if run.starts:
        names = ("time", "host", "hosts", "devices", "device_kind")
        facts["starts"] = len(run.starts)
        facts["last_start"] = {name: run.starts[-1][name] for name in names if name in run.starts[-1]}
    if (spent := goodput(run.rows)) is not None and spent.total:
        facts["goodput"] = {"share": spent.share, "restarts": spent.restarts, "seconds": spent.seconds}
    facts["alarms"] = alarms(run, saved, owner, facts.get("step", 0), now)
    return facts


def _kind(run: RunHistory) -> str:
    if run.is_finetuning:
        return "fine-tuning"
    return "pre-training" if "phases" in run.settings or run.rows else "model without a run"


def _of_pretraining(run: RunHistory, saved_step: int) -> dict[str, Any]:
    train, held_out = run.of_kind("train")[-1:], run.of_kind("evaluation")[-1:]
    step = max([saved_step, *(row["step"] for row in [*train, *held_out])])
    facts: dict[str, Any] = {"step": step}
    if run.config is not None:
        facts |= {"total_steps": run.config.total_steps, "finished": is_finished(run, step)}
    for name, rows in (("training", train), ("held_out", held_out)):
        for row in rows:
            facts[name] = {"step": row["step"], **_figures(row)}
    for row in train:
        facts |= _pace(row)
        if step != row["step"]:
            facts.pop("seconds_left", None)
    return facts


def _of_finetuning(run: RunHistory) -> dict[str, Any]:
    """Return the task and, for each run below runs/, whether it is finished and the last row it wrote.

    Rates and the time left are those of the run that is not finished: they go one after another.
    """
    options, runs = run.settings["finetune"], {}
    pace = next(map(_pace, run.of_kind("train")[-1:]), {})  # of a run that is looked at by itself
    for directory in sorted((run.path / "runs").glob("*")):
        rows = [row for row in read_rows(directory / "metrics.jsonl") if row["kind"] == "train"][-1:]
        runs[directory.name] = {"finished": (directory / RESULTS).exists()}
        for row in rows:
            runs[directory.name] |= {"step": row["step"], **_figures(row)}
            pace = pace if runs[directory.name]["finished"] else _pace(row)
    task = options.get("task") if isinstance(options, dict) else None
    return {"task": str(task), "finished": is_finished(run, 0), "runs": runs, **pace}


def _pace(row: dict[str, Any]) -> dict[str, Any]:
    """Return the rates in a row of training and the seconds left at them, as far as they are there."""
    found: dict[str, Any] = {"rates": {name: finite_json(row[name]) for name in RATES if name in row}}
    return found | {name: finite_json(row[name]) for name in ("seconds_left",) if name in row}


def _figures(row: dict[str, Any]) -> dict[str, float | str]:
    return {name: finite_json(value) for name, value in row.items() if name not in NOT_FIGURES}


def _print(facts: dict[str, Any], console: Console) -> None:
    console.print(Text(f"{facts['kind']} in {facts['workdir']}", "bold"), soft_wrap=True)
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, value in _lines(facts):
        table.add_row(name, Text(value))
    console.print(table)
    if "goodput" in facts:
        console.print(_goodput_table(facts["goodput"]))
    for alarm in facts["alarms"]:
        console.print(Text(f"alarm: {alarm}", "bold red"), soft_wrap=True)


def _lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what is known as pairs of a name and a text, in reading order."""
    lines = [("process", _process(facts))]
    if "step" in facts:
        total = facts.get("total_steps")
        lines.append(("step", f"{facts['step']:,}" + (f" of {total:,} ({facts['step'] / total:.1%})" if total else "")))
    if isinstance(left := facts.get("seconds_left"), float) and facts["process"] and not facts.get("finished"):
        of_run = " in this run" if "runs" in facts else ""
        lines.append(("time left", duration(max(0.0, left - facts.get("seconds_since_last_row", 0.0))) + of_run))
    if rates := " · ".join(describe(_numbers(facts.get("rates", {})))):
        lines.append(("throughput", rates))
    for name in ("training", "held_out"):
        if name in facts:
            figures = {key: value for key, value in facts[name].items() if key != "step"}
            lines.append((name.replace("_", " "), f"{_told(figures)} (step {facts[name]['step']:,})"))
    if "seconds_since_last_row" in facts:
        lines.append(("last row", f"{duration(facts['seconds_since_last_row'])} ago"))
    if saved := facts.get("checkpoint"):
        lines.append(("checkpoint", f"step {saved['step']:,}, {duration(saved['seconds_old'])} old"))
    elif facts["kind"] == "pre-training":
        lines.append(("checkpoint", "none yet"))
    if near := facts.get("local_save"):
        lines.append(("local save", f"step {near['step']:,}, {duration(near['seconds_old'])} old"))
    if start := facts.get("last_start"):
        where = f"{start.get('hosts', 1)} host(s), {start.get('devices', '?')} × {start.get('device_kind', '?')}"
        lines.append(("hosts", where))
        lines.append(("starts", f"{facts['starts']:,}, the last {start.get('time', '?')} on {start.get('host', '?')}"))
    for name, run in facts.get("runs", {}).items():
        state = "finished" if run["finished"] else "unfinished"
        figures = {key: value for key, value in run.items() if key not in ("finished", "step")}
        lines.append((name, f"{state}, step {run.get('step', 0):,}" + (f": {_told(figures)}" if figures else "")))
    return lines


def _process(facts: dict[str, Any]) -> str:
    if owner := facts["process"]:
        return f"{owner['pid']} on {owner['host']} since {owner['since']}"
    return "none; the run is finished" if facts.get("finished") else "none"


def _numbers(values: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in values.items() if isinstance(value, float)}


def _told(figures: dict[str, float | str]) -> str:
    return ", ".join(f"{name} {_shown(value)}" for name, value in figures.items())


def _shown(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def _goodput_table(spent: dict[str, Any]) -> Table:
    total = sum(spent["seconds"].values())
    table = Table(title=f"goodput {spent['share']:.1%} of {duration(total)}; restarts: {spent['restarts']}")
    table.add_column("spent on")
    table.add_column("time", justify="right")
    table.add_column("share", justify="right")
    for name, seconds in spent["seconds"].items():
        table.add_row(name, duration(seconds), f"{seconds / total:.1%}")
    return table
