"""predictions/ of a work directory: the answers of the chosen model on every split that is not trained on."""

import dataclasses
import os
from typing import Any

import jax
from etils import epath

from bert_jax.config.finetuning import RESULTS
from bert_jax.devices.hosts import from_first
from bert_jax.devices.signals import StopSignals
from bert_jax.finetuning.programs import Programs
from bert_jax.finetuning.results import earlier_predictions
from bert_jax.finetuning.task_logits import predict_logits
from bert_jax.tasks.squad import tuned
from bert_jax.tasks.squad.windows import SpanFeatures
from bert_jax.tasks.task_data import TaskData


def predicted(
    path: epath.Path,
    data: TaskData,
    programs: Programs,
    params: Any,
    chosen: dict[str, Any],
    batch_size: int,
    signals: StopSignals,
) -> dict[str, Any]:
    """Return facts for results.json: metrics on the test sets that have labels, and the files of predictions.

    Files of an earlier command stay as they are if they are complete and belong to the same run and test sets.
    """
    place, tests_now = path / "predictions", data.test_fingerprint()
    before = from_first(earlier_predictions(path / RESULTS))
    if before is not None:
        made = before["predictions"]
        same = (before["run"], before["metrics"], made["test_fingerprint"]) == (
            chosen["run"],
            chosen["metrics"],
            tests_now,
        )
        if same and from_first(all((place / file).exists() for file in made["files"])):
            return {"tests": before["tests"], "predictions": made}
    tests, files = _write_predictions(place, data, programs, params, batch_size, chosen["metrics"], signals)
    return {"tests": tests, "predictions": {"test_fingerprint": tests_now, "files": files}}


def _write_predictions(
    directory: epath.Path,
    data: TaskData,
    programs: Programs,
    params: Any,
    batch_size: int,
    metrics: dict[str, float],
    signals: StopSignals,
) -> tuple[dict[str, dict[str, float]], list[str]]:
    """Write files in the benchmark's format for every split that is not trained on.

    Args:
      metrics: the metrics of `params` on dev.

    Returns:
      Metrics on the test sets that have labels, and the names of the files below `directory` (on the first host).
    """
    tests, written = {}, []
    for name, split in (data.evaluations | data.tests).items():
        features = split.features
        # A test set is answered with the threshold of dev, never with its own.
        if name in data.tests and isinstance(features, SpanFeatures):
            features = dataclasses.replace(features, options=tuned(features.options, metrics))
        logits = predict_logits(programs.predict_step, params, features, data.head, batch_size, programs.mesh, signals)
        if jax.process_index() == 0:
            (directory / name).mkdir(parents=True, exist_ok=True)
            place = os.fspath(directory / name)
            files = data.family.write_predictions(split.examples, features, logits, place, name)
            written += [f"{name}/{epath.Path(file).name}" for file in files]
        if name in data.tests and split.examples.has_answers:
            tests[name] = {
                key: float(value) for key, value in data.family.score(split.examples, features, logits).items()
            }
    return tests, written
