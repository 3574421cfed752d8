"""What a finished run of a study measured, read from its work directories; and held-out texts that all arms share."""

import dataclasses
import json
import statistics
from typing import Any

import jax
from etils import epath

from bert_jax.checkpoints.run_files import read_json, write_json
from bert_jax.config import Config, resolve_phases
from bert_jax.config.finetuning import RESULTS, FinetuneConfig
from bert_jax.config.json_form import to_dict
from bert_jax.config.studying import HELD_OUT, OWN
from bert_jax.data.examples.corpus import open_corpus
from bert_jax.devices import sharding
from bert_jax.finetuning.plan import plan as planned_runs
from bert_jax.objectives.objective_choice import default_objective
from bert_jax.pretrained.loading import load
from bert_jax.studies.study_plan import StudyPlan, StudyRun
from bert_jax.training.evaluation import Evaluation
from bert_jax.training.sinks import read_rows

MEASURED = "study_held_out.json"


def run_measures(plan: StudyPlan, run: StudyRun) -> dict[str, dict[str, float]]:
    """Return the metrics that a run has so far, by what they are figures of: held_out, own, or the name of a task."""
    found: dict[str, dict[str, float]] = {}
    if own := own_evaluation(run.config):
        found[OWN] = own
        shared = own if same_texts(run.config, plan.base) else _saved(run.config, plan.base)
        if shared:
            found[HELD_OUT] = shared
    for name, task in run.tasks.items():
        if metrics := task_metrics(task):
            found[name] = metrics
    return found


def own_evaluation(config: Config) -> dict[str, float]:
    """Return the held-out metrics at the last step of a pre-training; {} while it has not got there."""
    rows = read_rows(epath.Path(config.workdir) / "metrics.jsonl")
    last = [row for row in rows if row.get("kind") == "evaluation" and row.get("step") == config.total_steps]
    return {name: value for name, value in last[-1].items() if isinstance(value, float)} if last else {}


def task_metrics(task: FinetuneConfig) -> dict[str, float]:
    """Return the mean dev metrics over the planned runs of a fine-tuning; {} while one of them is missing."""
    records = [epath.Path(task.workdir) / "runs" / run.name / RESULTS for run in planned_runs(task)]
    if not all(record.exists() for record in records):
        return {}
    metrics = [read_json(record)["metrics"] for record in records]
    return {name: statistics.fmean(each[name] for each in metrics) for name in metrics[0]}


def same_texts(config: Config, base: Config) -> bool:
    """Return whether an arm's own evaluation reads what that of the base reads, or has nothing in common with it."""
    return config.objective.name != base.objective.name or _as_base(config, base) == config


def measure_held_out(config: Config, base: Config, devices: sharding.Devices = None) -> None:
    """Measure the last checkpoint of an arm on held-out texts as the base cuts and masks them; write it beside it."""
    if _saved(config, base):
        return
    mesh = sharding.make_mesh(config.mesh, devices)
    model = load(config.workdir, mesh=mesh, compute=config.compute)
    given = dataclasses.replace(_as_base(config, base), model=model.config)
    corpus, phase = open_corpus(given), resolve_phases(given)[-1]
    evaluation = Evaluation(
        default_objective(model.network, given),
        given,
        phase,
        corpus.held_out,
        corpus.shares(phase),
        mesh,
        jax.tree.map(lambda leaf: leaf.sharding, model.params),
    )
    values = {"step": config.total_steps, "read_as": _reading(base), "metrics": evaluation.run(model.params)}
    write_json(epath.Path(config.workdir) / MEASURED, values)


def _as_base(config: Config, base: Config) -> Config:
    """Return the options of an arm with those of the base where they say how held-out texts are cut and masked."""
    data = dataclasses.replace(
        config.data,
        sentence_pairs=base.data.sentence_pairs,
        short_sequence_probability=base.data.short_sequence_probability,
    )
    lengths = [phase.sequence_length for phase in base.phases], [phase.sequence_length for phase in config.phases]
    phases = config.phases if lengths[0] == lengths[1] else base.phases
    return dataclasses.replace(config, masking=base.masking, data=data, phases=phases)


def _reading(base: Config) -> dict[str, Any]:
    length = base.phases[-1].sequence_length
    return {"masking": to_dict(base.masking), "sentence_pairs": base.data.sentence_pairs, "sequence_length": length}


def _saved(config: Config, base: Config) -> dict[str, float]:
    """Return what `measure_held_out` wrote for this checkpoint and base; {} if it has not."""
    file = epath.Path(config.workdir) / MEASURED
    values = read_json(file) if file.exists() else {}
    # JSON has no tuples, so both are compared as it writes them.
    fits = json.dumps([values.get("step"), values.get("read_as")]) == json.dumps([config.total_steps, _reading(base)])
    return values["metrics"] if fits else {}
