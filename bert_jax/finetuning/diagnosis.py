"""The diagnostic set AX, which a model of mnli answers without being trained on it."""

import os
from typing import Any

import jax
from etils import epath
from jax.sharding import Mesh
from rich.console import Console

from bert_jax.checkpoints.fingerprint import stored_fingerprint
from bert_jax.checkpoints.run_files import read_json, write_json
from bert_jax.config.finetuning import RESULTS, FinetuneConfig
from bert_jax.config.predicting import PredictConfig
from bert_jax.config.task_options import TaskOptions
from bert_jax.devices.hosts import check_alike
from bert_jax.devices.software import commit, versions
from bert_jax.errors import UserError
from bert_jax.finetuning.members import check_member, family_for, options_of, say_what_is_cut
from bert_jax.finetuning.prediction_files import write_predictions
from bert_jax.finetuning.task_logits import member_logits
from bert_jax.formats.opening import open_stored
from bert_jax.formats.stored import StoredModel
from bert_jax.tasks.families import Family


def diagnose(config: FinetuneConfig, mesh: Mesh) -> dict[str, Any]:
    """Apply a model of mnli to AX, write predictions of its splits and results.json, and return that file's content.

    Sequences are made as in that model's own evaluation, whatever `config.options` says. Metrics are those of the split
    that has labels.

    Raises:
      UserError: the work directory holds another task's results; init_from has no head for mnli's classes; there is no
        file of AX.
    """
    _check_vacant(epath.Path(config.workdir))
    stored = open_stored(config.init_from)
    check_member(stored, stored)
    check_alike(
        lambda: {
            "init_from_fingerprint": stored_fingerprint(stored.arrays),
            "tokenizer_fingerprint": stored.need_tokenizer().fingerprint,
        }
    )
    options = options_of([stored], config.task)
    family, directory, results = family_for(stored, config.task), epath.Path(config.workdir), {}
    for split in family.splits(config.task, config.data) or ("test",):
        results = _diagnose_split(config, stored, family, options, split, mesh) or results
    setting = {
        "setting": "not trained on it",
        "runs": 1,
        "collapsed": 0,
        "mean": results,
        "standard_deviation": dict.fromkeys(results),
    }
    content = {
        "task": config.task,
        "metrics": results,
        "main_metric": family.MAIN_METRIC[config.task],
        "init_from": config.init_from,
        "random_weights": False,
        "settings": [setting],
        "runs": [],
        "commit": commit(),
        "versions": versions(),
    }
    if jax.process_index() == 0:
        directory.mkdir(parents=True, exist_ok=True)
        write_json(directory / RESULTS, content)
    return content


def _diagnose_split(
    config: FinetuneConfig, stored: StoredModel, family: Family, options: TaskOptions, split: str, mesh: Mesh
) -> dict[str, float]:
    """Write the predictions of one split, and return its metrics, which are printed too; {} if it has no labels."""
    examples = family.load(config.task, config.data, split, stored.need_head().labels)
    features = family.features(examples, stored.need_tokenizer(), options)
    say_what_is_cut(features, split, Console(highlight=False))
    predicting = PredictConfig(input="", output="", batch_size=config.eval_batch_size, compute=config.compute)
    logits = member_logits(stored, features, predicting, mesh)
    where = epath.Path(config.workdir) / "predictions" / split
    write_predictions(family, examples, features, logits, os.fspath(where) + os.sep, split)
    results = family.score(examples, features, logits) if examples.has_answers else {}
    if jax.process_index() == 0:
        figures = "".join(f", {name} {100 * value:.2f}" for name, value in results.items())
        Console(highlight=False).print(
            f"{config.task} {split}: {len(examples):,} predictions in {where}{figures}", markup=False, soft_wrap=True
        )
    return results


def _check_vacant(workdir: epath.Path) -> None:
    """Raise UserError if the figures of AX would replace those of a run."""
    results = workdir / RESULTS
    if (workdir / "run.json").exists() or results.exists() and read_json(results).get("task") != "ax":
        raise UserError(f"workdir={workdir} holds a different run or its results; give ax its own --workdir")
