"""What the tests of monitoring share: work directories of fine-tuning, with the files that are read there."""

import json
import pathlib

import pytest

from bert_jax.config.finetuning import RESULTS, task_defaults
from bert_jax.config.options import to_dict
from bert_jax.training.metrics import CATEGORIES

RUN = "batch8_rate0.003_epochs2_seed0"


@pytest.fixture
def finetunings(tmp_path) -> pathlib.Path:
    """A directory of two commands: `finetuned`, and `finetuning`, which was killed after its first epoch."""
    for name, epochs in (("finetuned", 2), ("finetuning", 1)):
        run = tmp_path / name / "runs" / RUN
        run.mkdir(parents=True)
        train = {"kind": "train", "loss": 0.5, "accuracy": 0.5, "grad_norm": 1.0, "skipped_steps": 0.0}
        spent = {"kind": "time", **dict.fromkeys(CATEGORIES, 0.0)}
        rows = [{**train, "step": step} for step in range(1, 5 * epochs + 1)]
        rows += [{**spent, "step": 5 * epoch, "steps": 9.0, "time": 1e9 + 9 * epoch} for epoch in range(1, epochs + 1)]
        rows += [{"kind": "evaluation", "step": 5 * epoch, "dev_accuracy": 1.0} for epoch in range(1, epochs + 1)]
        write_lines(run / "metrics.jsonl", rows)
        write_lines(tmp_path / name / "events.jsonl", [{"event": "start", "time": 1e9, "step": 0, "run": RUN}])
        if epochs == 2:
            (run / RESULTS).write_text(json.dumps({"run": RUN, "collapsed": None, "metrics": {"accuracy": 1.0}}))
            (tmp_path / name / RESULTS).write_text("{}")
        (tmp_path / name / "config.json").write_text(json.dumps({"finetune": to_dict(task_defaults("text"))}))
        (tmp_path / name / "run.json").write_text(json.dumps({"run_id": name, "starts": [{"host": "here"}]}))
    return tmp_path


def write_lines(file: pathlib.Path, rows: list[dict]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
