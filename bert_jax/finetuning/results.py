"""Results of fine-tuning: results.json from the records of finished runs, a page on a classifier, a table over tasks.

results.json has the mean and deviation over seeds, and the chosen run with the reason for its choice. The page tells
class by class what a classifier confuses, how far its confidence can be trusted, and its worst errors. The table shows
the results of each directory next to the paper's published figures.
"""

import html
import json
import math
import os
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
from etils import epath
from rich.console import Console
from rich.table import Table

from bert_jax.checkpoints.workdir import read_json
from bert_jax.config.commands import ResultsConfig
from bert_jax.config.finetuning import RESULTS, FinetuneConfig
from bert_jax.config.options import is_of_class, metric_scale, to_dict
from bert_jax.devices.hosts import commit, versions
from bert_jax.errors import UserError
from bert_jax.files import read_object, write_atomically
from bert_jax.tasks.sentences import (
    BINS,
    SentenceFeatures,
    Sentences,
    answered,
    best_temperature,
    by_class,
    calibration_error,
    in_bins,
    judged,
    softened,
)
from bert_jax.training.trackers import screen

FIELDS = {"run": str, "setting": str, "seed": int, "step": int, "metrics": dict, "hyperparameters": dict, "keep": str}
YOUNGER = ("macro_f1", "balanced_accuracy")
"""Metrics of the task text that the records of 0.1.0 lack."""


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
    for name in (metric, *(each for each in measured if each not in YOUNGER)):
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
    fold, folds = record.get("fold", 1), record.get("folds", 1)
    if not (type(fold) is type(folds) is int and 0 < fold <= folds):
        raise _damaged(file, f"has fold={fold!r:.60} of folds={folds!r:.60}")
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

    These are `run` and `metrics` of the model, and `tests`, `report` and `predictions`, which `summary` got as facts.
    """
    try:
        before = read_json(file)
        return {
            "run": before["chosen"]["run"],
            "metrics": before["metrics"],
            "tests": {
                name: {key: float(value) for key, value in test.items()} for name, test in before["tests"].items()
            },
            "report": dict(before.get("report", {})),
            "predictions": {
                "test_fingerprint": before["predictions"]["test_fingerprint"],
                "files": list(map(os.fspath, before["predictions"]["files"])),
            },
        }
    except (UserError, LookupError, TypeError, ValueError, AttributeError):
        return None


def validation(record: dict[str, Any]) -> tuple[str, int] | None:
    """Return what the runs of one cross-validation have in common; None for a run with a dev set."""
    return (record["setting"], record["seed"]) if record.get("folds") else None


def best(records: list[dict[str, Any]], metric: str) -> dict[str, Any]:
    """Return the record with the highest dev metric; among equals the first, if possible one that has not collapsed.

    The parts of a cross-validation differ in difficulty, so the mean over all of them comes before that of a run.
    """

    def standing(record: dict[str, Any]) -> tuple[float, float, bool]:
        own = record["metrics"][metric]
        if not record.get("folds"):
            return own, own, record["collapsed"] is None
        group = [each["metrics"][metric] for each in records if validation(each) == validation(record)]
        mean = statistics.fmean(group) if len(group) == record["folds"] else -math.inf
        return mean, own, record["collapsed"] is None

    return max(records, key=standing)


def summary(
    config: FinetuneConfig, records: list[dict[str, Any]], metric: str, facts: dict[str, Any]
) -> dict[str, Any]:
    """Return the content of results.json.

    Args:
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
    if config.select == "best" and config.evaluate_every_steps:
        weights = "of the best evaluation on dev"
    by = f"highest {metric} on dev of {runs}"
    if chosen.get("folds"):
        by = f"highest {metric} among the {chosen['folds']} folds whose mean is the highest of {runs}"
    return {
        "task": config.task,
        "metrics": chosen["metrics"],
        "main_metric": metric,
        "hyperparameters": chosen["hyperparameters"],
        "seed": chosen["seed"],
        "collapsed": chosen["collapsed"],
        "stopped_early": chosen.get("stopped_early", False),
        "chosen": {"run": chosen["run"], "by": f"{by}, weights {weights}"},
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
    shared = [key for key in records[0]["metrics"] if all(key in record["metrics"] for record in records)]
    values = {key: [record["metrics"][key] for record in records] for key in shared}
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


MOST_COLUMNS = 8


def show(results: dict[str, Any]) -> None:
    """Print the settings, best first, the chosen run, and the runs that collapsed."""
    folds = results["runs"][0].get("folds")
    table = Table(title=f"{results['task']} on " + (f"{folds} folds" if folds else "dev"))
    means = [setting["mean"] for setting in results["settings"]]
    found = [name for name in results["metrics"] if not is_of_class(name) and all(name in mean for mean in means)]
    metrics = found[:MOST_COLUMNS]  # XNLI has one for each language, which the lines below the table have
    for column in ("setting", "runs", *metrics):
        table.add_column(column, justify="left" if column == "setting" else "right", no_wrap=column == "setting")
    for setting in results["settings"]:
        table.add_row(setting["setting"], str(setting["runs"]), *(figure(setting, name) for name in metrics))
    console = screen(highlight=False)
    (console if console.is_terminal else screen(highlight=False, width=160)).print(table)
    chosen = results["chosen"]
    console.print(
        f"chosen: {chosen['run']} ({_line(results['metrics'])}); {chosen['by']}", markup=False, soft_wrap=True
    )
    if "out_of_fold" in results:
        found = _line(results["out_of_fold"]["metrics"])
        console.print(f"every example, out of fold: {found}", markup=False, soft_wrap=True)
    for name, metrics in results["tests"].items():
        console.print(f"{name}: {_line(metrics)}", markup=False, soft_wrap=True)
    for record in results["runs"]:
        if record["collapsed"]:
            console.print(f"collapsed: {record['run']}: {record['collapsed']}", markup=False, soft_wrap=True)


def show_together(results: dict[str, Any], directory: str) -> None:
    """Print the figures of several tasks over one encoder, and where the model of each is."""
    console = screen(highlight=False)
    for name, found in results["tasks"].items():
        lines = [f"{name} on dev: {_line(found['metrics'])}; its model is {directory}/tasks/{name}"]
        lines += [f"{name} on {split}: {_line(metrics)}" for split, metrics in found["tests"].items()]
        if found["collapsed"]:
            lines.append(f"{name} collapsed: {found['collapsed']}")
        for line in lines:
            console.print(line, markup=False, soft_wrap=True)


def figure(setting: dict[str, Any], metric: str) -> str:
    """Return the mean in percent, ± standard deviation if there are several runs."""
    spread, scale = setting["standard_deviation"][metric], metric_scale(metric)
    return f"{scale * setting['mean'][metric]:.2f}" + ("" if spread is None else f" ± {scale * spread:.2f}")


def _line(metrics: dict[str, float]) -> str:
    shown = {name: value for name, value in metrics.items() if not is_of_class(name)}
    return ", ".join(f"{name} {metric_scale(name) * value:.2f}" for name, value in shown.items())


WORST, LONGEST, MOST_CLASSES = 50, 1_000, 30
"""Errors on the page of a classifier, letters of a text there, and classes up to which it has a matrix."""
PAGE_NAME = "report.html"
PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 1100px; padding: 0 1.5em; color: #222; }}
h1 {{ font-size: 1.5em; overflow-wrap: anywhere; }} h2 {{ font-size: 1.2em; margin: 2em 0 .5em; }}
.scroll {{ overflow-x: auto; }} table {{ border-collapse: collapse; }} svg {{ max-width: 100%; }}
th, td {{ text-align: left; padding: .25em .8em .25em 0; border-bottom: 1px solid #e6e6e6; vertical-align: top; }}
td {{ max-width: 40em; overflow-wrap: anywhere; white-space: pre-wrap; }} p {{ color: #666; max-width: 50em; }}
</style></head>
<body><h1>{title}</h1>
{sections}
</body></html>
"""


def class_report(examples: Sentences, features: SentenceFeatures, logits: Sequence[np.ndarray]) -> dict[str, Any]:
    """Return figures of a classifier of texts on a split that has answers.

    They are precision, recall, F1 and support of each class, and the expected calibration error before and after the
    temperature that is best for this split. Where a text has several labels, they have thresholds too, and the error is
    that of the probabilities of all labels, and of each.
    """
    if examples.several:
        return _several_report(examples, features, logits)
    answers, found = answered(examples, features, logits)
    names, scores = np.array(examples.labels), np.array(logits)
    assert examples.answers is not None  # or there would be none to compare with
    temperature, right = best_temperature(scores, examples.answers), answers == found
    errors = [calibration_error(_confidences(scores, each), right) for each in (1.0, temperature)]
    cells = by_class(answers[:, None] == names, found[:, None] == names)
    return {
        "classes": dict(zip(examples.labels, cells, strict=True)),
        "temperature": temperature,
        "calibration_error": errors[0],
        "calibration_error_at_temperature": errors[1],
    }


def _several_report(examples: Sentences, features: SentenceFeatures, logits: Sequence[np.ndarray]) -> dict[str, Any]:
    """Return the same where a text has several labels."""
    assert examples.answers is not None  # or there would be none to compare with
    shares, cuts, found = judged(examples, features, logits)
    columns = zip(by_class(examples.answers, found), cuts, shares.T, examples.answers.T, strict=True)
    cells = [
        {**each, "threshold": float(cut), "calibration_error": calibration_error(own, there)}
        for each, cut, own, there in columns
    ]
    there = examples.answers.reshape(-1)
    temperature = best_temperature(_two_sides(logits), there.astype(int))
    errors = [calibration_error(_presence(logits, each).reshape(-1), there) for each in (1.0, temperature)]
    return {
        "classes": dict(zip(examples.labels, cells, strict=True)),
        "temperature": temperature,
        "calibration_error": errors[0],
        "calibration_error_at_temperature": errors[1],
    }


def _two_sides(logits: Sequence[np.ndarray]) -> np.ndarray:
    """Return the logits of a label's absence and presence, [E * C, 2], for those of several labels [E, C]."""
    present = np.asarray(logits, np.float64).reshape(-1)
    return np.stack([np.zeros_like(present), present], axis=1)


def _presence(logits: Sequence[np.ndarray], temperature: float) -> np.ndarray:
    """Return the probability of each label, [E, C], with the logits divided by a temperature."""
    return np.exp(softened(_two_sides(logits), temperature)[:, 1]).reshape(len(logits), -1)


def _confidences(scores: np.ndarray, temperature: float) -> np.ndarray:
    return np.exp(softened(scores, temperature).max(axis=1))


def class_page(
    title: str,
    examples: Sentences,
    features: SentenceFeatures,
    logits: Sequence[np.ndarray],
    report: dict[str, Any],
) -> str:
    """Return a page on a classifier that needs no other file and runs nothing; `report` is that of `class_report`.

    It has the figures of the classes, a diagram of confidence and accuracy, the worst errors and, where a text has one
    class, their confusions.
    """
    if examples.several:
        sections = _several_sections(examples, features, logits, report)
    else:
        sections = _sections(examples, logits, report)
    shown = "\n".join(f"<h2>{head}</h2>{section}" for head, section in sections.items())
    return PAGE.format(title=html.escape(title), sections=shown)


def _sections(examples: Sentences, logits: Sequence[np.ndarray], report: dict[str, Any]) -> dict[str, str]:
    """Return what the page says where a text has one class."""
    scores, answers = np.array(logits), np.asarray(examples.answers)
    found, confidences = scores.argmax(axis=1), _confidences(scores, 1.0)
    right = found == answers
    told = f"{right.sum():,} of {len(right):,} answers are right."
    softer = in_bins(_confidences(scores, report["temperature"]), right)
    return {
        "Classes": _table(["class", *FIGURES, "examples"], _figures(report)),
        "Confusions": _confusions(examples.labels, answers, found),
        "Confidence": _confidence(told, "accuracy of the answers", report, in_bins(confidences, right), softer),
        "Errors of which the model was surest": _errors(examples, answers, found, np.where(right, -1.0, confidences)),
    }


def _several_sections(
    examples: Sentences, features: SentenceFeatures, logits: Sequence[np.ndarray], report: dict[str, Any]
) -> dict[str, str]:
    """Return what the page says where a text has several labels, each with a probability of its own."""
    shares, _, found = judged(examples, features, logits)
    there = np.asarray(examples.answers)
    rows = [
        [*row, *(f"{100 * each[key]:.2f}" for key in ("threshold", "calibration_error"))]
        for row, each in zip(_figures(report), report["classes"].values(), strict=True)
    ]
    whole = (found == there).all(axis=1).sum()
    told = f"{whole:,} of {len(there):,} texts have exactly the labels that they should have."
    bins, softer = (
        in_bins(each.reshape(-1), there.reshape(-1)) for each in (shares, _presence(logits, report["temperature"]))
    )
    surest = np.where(found == there, -1.0, np.where(found, shares, 1 - shares))
    return {
        "Labels": _table(["label", *FIGURES, "texts", "threshold %", "ECE %"], rows),
        "Confidence": _confidence(told, "share of the texts that have a label", report, bins, softer),
        "Errors of which the model was surest": _several_errors(examples, found, shares, surest),
    }


FIGURES = ("precision %", "recall %", "F1 %")


def _figures(report: dict[str, Any]) -> list[list[str]]:
    """Return a row for each class: its name, FIGURES and how many examples have it."""
    return [
        [name, *(f"{100 * each[key]:.1f}" for key in ("precision", "recall", "f1")), f"{each['support']:,}"]
        for name, each in report["classes"].items()
    ]


def _confidence(told: str, bars: str, report: dict[str, Any], bins: list[Any], softer: list[Any]) -> str:
    """Return a text on the calibration and its diagram; `bars` says what is compared with the confidence."""
    before, after = report["calibration_error"], report["calibration_error_at_temperature"]
    told += (
        f" The expected calibration error (ECE, {BINS} bins) is {100 * before:.2f} %; with the logits divided by the "
        f"temperature {report['temperature']:.3f}, the best on these examples, it is {100 * after:.2f} %. Bars: {bars} "
        "in a bin of confidence, with their number; points: the same at that temperature; on the line confidence and "
        "accuracy are equal."
    )
    return f"<p>{html.escape(told)}</p>{_diagram(bins, softer)}"


def _table(head: list[str], rows: list[list[str]]) -> str:
    cells = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows]
    return (
        f'<div class="scroll"><table><tr>{"".join(f"<th>{html.escape(cell)}</th>" for cell in head)}</tr>\n'
        + "".join(f"<tr>{row}</tr>\n" for row in cells)
        + "</table></div>"
    )


def _confusions(labels: Sequence[str], answers: np.ndarray, found: np.ndarray) -> str:
    """Return a row for each class, with how often each was predicted; of many classes, the most frequent confusions."""
    counts = np.zeros((len(labels), len(labels)), int)
    np.add.at(counts, (answers, found), 1)
    if len(labels) <= MOST_CLASSES:
        rows = [[name, *map(str, row)] for name, row in zip(labels, counts, strict=True)]
        return _table(["answer ↓, predicted →", *labels], rows)
    np.fill_diagonal(counts, 0)
    most = np.argsort(-counts, axis=None, kind="stable")[:WORST]
    pairs = [(*np.unravel_index(place, counts.shape), counts.flat[place]) for place in most]
    rows = [[labels[answer], labels[wrong], str(count)] for answer, wrong, count in pairs if count]
    return _table(["answer", "predicted", "examples"], rows)


def _errors(examples: Sentences, answers: np.ndarray, found: np.ndarray, surest: np.ndarray) -> str:
    """Return the wrong predictions with the highest confidence; `surest` float [E] is below 0 for right ones."""
    rows = []
    for place in _worst(surest):
        names = examples.labels[answers[place]], examples.labels[found[place]]
        rows.append([examples.index[place], *names, f"{100 * surest[place]:.1f}", _shown(examples, place)])
    return _table(["index", "answer", "predicted", "confidence %", "text"], rows) if rows else "<p>There are none.</p>"


def _several_errors(examples: Sentences, found: np.ndarray, shares: np.ndarray, surest: np.ndarray) -> str:
    """Return the labels that a text has and was not given, or the reverse; all but the examples are [E, C]."""
    rows = []
    for place in _worst(surest.reshape(-1)):
        text, label = divmod(place, len(examples.labels))
        wrong = "given, not there" if found[text, label] else "there, not given"
        share = f"{100 * shares[text, label]:.1f}"
        rows.append([examples.index[text], examples.labels[label], wrong, share, _shown(examples, text)])
    return _table(["index", "label", "error", "probability %", "text"], rows) if rows else "<p>There are none.</p>"


def _worst(surest: np.ndarray) -> list[int]:
    """Return the places of the wrong answers with the highest confidence; it is below 0 for right ones."""
    return [place for place in np.argsort(-surest, kind="stable")[:WORST].tolist() if surest[place] >= 0]


def _shown(examples: Sentences, place: int) -> str:
    text = "\n".join(each[place] for each in (examples.first, examples.second) if each is not None)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _diagram(bins: list[tuple[int, float, float]], softer: list[tuple[int, float, float]]) -> str:
    """Return a reliability diagram as SVG: bars of accuracy by confidence, and points at the best temperature."""
    size, edge = 400, 40
    at = lambda share: edge + share * size
    down = lambda share: edge + (1 - share) * size
    width = size / len(bins)
    parts = [
        f'<rect x="{edge}" y="{edge}" width="{size}" height="{size}" fill="none" stroke="#999"/>',
        f'<line x1="{at(0)}" y1="{down(0)}" x2="{at(1)}" y2="{down(1)}" stroke="#999" stroke-dasharray="4"/>',
    ]
    for number, (count, _, accuracy) in enumerate(bins):
        if count:
            left, top = edge + number * width, down(accuracy)
            parts += [
                f'<rect x="{left + 1:.1f}" y="{top:.1f}" width="{width - 2:.1f}" height="{down(0) - top:.1f}" '
                'fill="#3b6fb6" fill-opacity="0.7"/>',
                f'<text x="{left + width / 2:.1f}" y="{top - 3:.1f}" font-size="9" text-anchor="middle">{count}</text>',
            ]
    points = [(at(mean), down(accuracy)) for count, mean, accuracy in softer if count]
    parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="#d1495b"/>' for x, y in points]
    for share in (0, 0.5, 1):
        parts += [
            f'<text x="{at(share)}" y="{down(0) + 16}" font-size="11" text-anchor="middle">{share:g}</text>',
            f'<text x="{edge - 6}" y="{down(share) + 4}" font-size="11" text-anchor="end">{share:g}</text>',
        ]
    parts.append(f'<text x="{at(0.5)}" y="{down(0) + 32}" font-size="12" text-anchor="middle">confidence</text>')
    whole = size + 2 * edge
    return f'<svg width="{whole}" viewBox="0 0 {whole} {whole}" role="img">{"".join(parts)}</svg>'


METRICS = {
    "mnli": ("accuracy", "mismatched_accuracy"),
    "qqp": ("f1",),
    "qnli": ("accuracy",),
    "sst2": ("accuracy",),
    "cola": ("matthews",),
    "stsb": ("spearman",),
    "mrpc": ("f1",),
    "rte": ("accuracy",),
    "wnli": ("accuracy",),
    "squad_v1": ("exact_match", "f1"),
    "squad_v2": ("exact_match", "f1"),
    "swag": ("accuracy",),
    "ner": ("f1",),
    "race": ("accuracy",),
    "choice": ("accuracy",),
    "text": ("accuracy", "micro_f1", "pearson"),
    "vectors": ("spearman", "mrr@10"),
    "ranking": ("ndcg@10", "mrr@10"),
    "xnli": ("accuracy",),
    "ax": ("matthews",),
    "axb": ("matthews",),
    "axg": ("gender_parity", "accuracy"),
    "boolq": ("accuracy",),
    "cb": ("macro_f1", "accuracy"),
    "copa": ("accuracy",),
    "multirc": ("f1a", "exact_match"),
    "record": ("f1", "exact_match"),
    "superglue_rte": ("accuracy",),
    "wic": ("accuracy",),
    "wsc": ("accuracy",),
}
"""Metrics in a cell, as far as they were measured, and the order of the columns; for GLUE as in the paper's table 1."""

PUBLISHED = {
    "BERT-base": {
        "mnli": (84.6, 83.4),
        "qqp": (71.2,),
        "qnli": (90.5,),
        "sst2": (93.5,),
        "cola": (52.1,),
        "stsb": (85.8,),
        "mrpc": (88.9,),
        "rte": (66.4,),
        "squad_v1": (80.8, 88.5),
        "swag": (81.6,),
        "ner": (96.4,),
    },
    "BERT-large": {
        "mnli": (86.7, 85.9),
        "qqp": (72.1,),
        "qnli": (92.7,),
        "sst2": (94.9,),
        "cola": (60.5,),
        "stsb": (86.5,),
        "mrpc": (89.3,),
        "rte": (70.1,),
        "squad_v1": (84.1, 90.9),
        "squad_v2": (78.7, 81.9),
        "swag": (86.6,),
        "ner": (96.6,),
    },
}
"""Devlin et al. 2018, percent: GLUE on the hidden test sets (table 1), SQuAD, SWAG, NER on dev (tables 2, 3, 4, 7)."""


def run_results(directories: Sequence[str], options: ResultsConfig) -> None:
    """Print the table of `directories`, each a work directory of `bert-jax finetune` or the directory above several."""
    found = {place: tasks for directory in directories for place, tasks in measured(directory).items()}
    rows = {
        place: {"model": name, "source": "measured", "split": "dev", "tasks": found[place]}
        for place, name in _names(directories, list(found)).items()
    }
    if options.gain_over:
        base = rows.get(os.fspath(epath.Path(options.gain_over)))
        if base is None:
            raise UserError(f"--gain_over={options.gain_over} is not among the directories given: {' '.join(rows)}")
        gains = [row for row in (gain(row, base) for row in rows.values() if row is not base) if row["tasks"]]
    else:
        gains = []
    table = [*rows.values(), *gains] + [
        {
            "model": model,
            "source": "published",
            "split": "GLUE test; others dev",
            "tasks": {task: dict(zip(METRICS[task], values, strict=True)) for task, values in figures.items()},
        }
        for model, figures in PUBLISHED.items()
    ]
    text = markdown(table)
    if options.output:
        epath.Path(options.output).mkdir(parents=True, exist_ok=True)
        write_atomically(epath.Path(options.output) / "results_table.md", (text + "\n").encode())
        write_atomically(
            epath.Path(options.output) / "results_table.json", (json.dumps(table, indent=2) + "\n").encode()
        )
    Console(highlight=False).print(text, markup=False, soft_wrap=True)


def gain(row: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    """Return the row of differences of the means, in points, for the tasks and metrics that both rows have."""
    tasks = {
        task: {
            name: figures[name] - base["tasks"][task][name]
            for name in METRICS[task]
            if name in figures and name in base["tasks"][task]
        }
        for task, figures in row["tasks"].items()
        if task in base["tasks"]
    }
    return {"model": row["model"], "source": "gain", "split": f"over {base['model']}", "tasks": tasks}


def measured(directory: str) -> dict[str, dict[str, Any]]:
    """Return rows by the directory that names them, from `directory`/results.json and `directory`/*/results.json.

    A row has, by task, the best setting's metrics in percent, their standard deviation, and the number of runs. A
    file may have several tasks over one encoder. Tasks with one result are in the row of `directory`; of a task with
    several, each is in the row of its own directory. Nothing is averaged over directories.
    """
    place = epath.Path(directory)
    files = [place / RESULTS, *(sorted(place.glob(f"*/{RESULTS}"), key=str) if place.is_dir() else [])]
    found: dict[str, list[dict[str, Any]]] = {}
    for file in files:
        if not file.exists():
            continue
        results = read_object(file, "the same `bert-jax finetune` writes it again")
        try:
            together = results.get("tasks")  # over one encoder, each with results of its own
            own = {file.parent: results}
            if together is not None:
                own = {file.parent / "tasks" / name: each for name, each in together.items()}
            for where, each in own.items():
                found.setdefault(each["task"], []).append(_measured(each, where))
        except (ValueError, ArithmeticError, LookupError, TypeError, AttributeError) as error:
            raise UserError(
                f"{file} is not the results.json of a fine-tuning run ({type(error).__name__}: {error!s:.100})"
            ) from None
    if not found:
        raise UserError(f"{directory} holds no results.json, nor does a directory in it; bert-jax finetune writes them")
    rows: dict[str, dict[str, Any]] = {os.fspath(place): {}}
    for task, cells in found.items():
        for cell in cells:
            rows.setdefault(cell["directory"] if cells[1:] else os.fspath(place), {})[task] = cell
    return {name: tasks for name, tasks in rows.items() if tasks}


def _measured(results: dict[str, Any], directory: epath.Path) -> dict[str, Any]:
    """Return the figures of the best setting of a task, from its results."""
    setting, wanted = results["settings"][0], METRICS[results["task"]]
    cell: dict[str, Any] = {name: 100 * float(value) for name, value in setting["mean"].items() if name in wanted}
    cell["standard_deviation"] = {
        name: None if value is None else 100 * float(value)
        for name, value in setting["standard_deviation"].items()
        if name in cell
    }
    return cell | {
        "runs": int(setting["runs"]),
        "collapsed": setting["collapsed"],
        "init_from": results["init_from"],
        "random_weights": results["random_weights"],
        "directory": os.fspath(directory),
    }


def _names(directories: Sequence[str], places: list[str]) -> dict[str, str]:
    """Return the name of each row: its directory alone, or the whole path if two would have the same name."""
    given = {os.fspath(epath.Path(directory)) for directory in directories}
    short = {place: "/".join(place.split("/")[-1 if place in given else -2 :]) for place in places}
    return {place: place if list(short.values()).count(name) > 1 else name for place, name in short.items()}


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return the table with one column per task that was measured, in the paper's order."""
    tasks = [task for task in METRICS if any(task in row["tasks"] for row in rows if row["source"] == "measured")]
    header = ["model", "", *(f"{task} ({'/'.join(METRICS[task])})" for task in tasks)]
    lines = [header, ["---"] * len(header)]
    for row in rows:
        cells = [
            _cell(row["tasks"].get(task), METRICS[task], "+.1f" if row["source"] == "gain" else ".1f") for task in tasks
        ]
        lines.append([row["model"], f"{row['source']}, {row['split']}", *cells])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(figures: dict[str, Any] | None, metrics: tuple[str, ...], form: str = ".1f") -> str:
    figures = figures or {}
    names = [name for name in metrics if name in figures]
    if not names:
        return "–"
    told = "" if len(names) == len(metrics) else f"{'/'.join(names)} "  # which of the metrics of its column it has
    shown = told + "/".join(format(figures[name], form) for name in names)
    spread = figures.get("standard_deviation", {}).get(names[-1])
    return shown + ("" if spread is None else f" ± {spread:.1f} ({figures['runs']} runs)")
