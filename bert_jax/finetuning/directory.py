"""The work directory of fine-tuning: one owner, the same settings for all its runs, and the chosen weights on top.

DIR/runs/NAME/training      train states of an unfinished run; gone when it is finished
DIR/runs/NAME/checkpoints   the weights of a finished run that count
DIR/runs/NAME/results.json  written last: the run is finished
DIR/checkpoints             weights of the chosen run, for `bert_jax.load(DIR)`
DIR/results.json, predictions/SPLIT/
"""

import json
from typing import Any

import jax
from absl import logging
from etils import epath
from jax.sharding import Mesh

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.record import check_origin, read_record
from bert_jax.checkpoints.run_files import read_json, refused_changes
from bert_jax.checkpoints.workdir import WorkDirectory, open_workdir
from bert_jax.config import CheckpointConfig
from bert_jax.config.changes import is_harmless_to_finetuning
from bert_jax.config.finetuning import RESULTS
from bert_jax.config.json_form import first_lines
from bert_jax.devices import sharding
from bert_jax.devices.hosts import from_first
from bert_jax.errors import UserError
from bert_jax.finetuning.results import best, finished_runs
from bert_jax.formats.opening import place
from bert_jax.formats.own_checkpoint import open_checkpoint
from bert_jax.tokenization.tokenizer import Tokenizer

LATEST = CheckpointConfig(keep_last=1, keep_best=0)


def open_finetuning(
    path: str,
    settings: dict[str, Any],
    features_fingerprint: str,
    init_from_fingerprint: str | None,
    tokenizer: Tokenizer,
    devices: sharding.Devices = None,
    teacher: str | None = None,
) -> WorkDirectory:
    """Take `path` for fine-tuning; the runs in it must have begun with the same data, parameters and settings.

    Args:
      path: the work directory.
      settings: content of config.json.
      features_fingerprint: that of the data; see `TaskData.fingerprint`.
      init_from_fingerprint: that of the parameters that are fine-tuned; None for fresh ones.
      tokenizer: the vocabulary of the model.
      devices: the devices of the runs; None for those of all processes.
      teacher: fingerprint of the teacher; None if there is none.

    Raises:
      UserError: the directory is not writable, another process writes to it, or it holds something else, or runs with
        other settings.
    """
    identity = {
        "features_fingerprint": features_fingerprint,
        "init_from_fingerprint": init_from_fingerprint,
        "tokenizer_fingerprint": tokenizer.fingerprint,
        "teacher": teacher,
    }
    directory = epath.Path(path)
    saved = ("checkpoints/*step_*", f"runs/*/{RESULTS}", "runs/*/checkpoints/*step_*", "runs/*/training/*step_*")
    resumed = (directory / "run.json").exists() and any(True for name in saved for _ in directory.glob(name))
    return open_workdir(path, identity, settings, tokenizer, resumed=resumed, check=_check_continues, devices=devices)


def publish(workdir: WorkDirectory, record: dict[str, Any], mesh: Mesh) -> dict[str, Any]:
    """Put the weights of the run of `record` into DIR/checkpoints, unless they are there, and return them on `mesh`."""
    # A different run may have the same name, so metrics are compared too; as JSON text, because nan != nan.
    if from_first(_published(workdir)) == [record["run"], json.dumps(record["metrics"], sort_keys=True)]:
        return place(open_checkpoint(workdir.path), mesh)
    directory = workdir.path / "runs" / record["run"]
    if not Checkpoints(directory / "checkpoints", read_only=True).steps():
        raise UserError(
            f"the weights of the best run are gone from {directory}; remove that directory to train it again"
        )
    stored = open_checkpoint(directory)
    params = place(stored, mesh)
    remove(workdir.checkpoints)
    with Checkpoints(workdir.checkpoints, LATEST, run_id=workdir.run_id) as checkpoints:
        checkpoints.save(
            record["step"],
            {"params": params},
            position={"step": record["step"]},
            config=stored.history["config"],
            metrics=record["metrics"],
        )
    return params


def remove(directory: epath.Path) -> None:
    """Delete a directory, on the first host; the others wait."""
    if jax.process_index() == 0 and directory.exists():
        directory.rmtree()
    from_first(None)


def drop_losers(workdir: WorkDirectory, metric: str) -> None:
    """Delete the weights of runs that can no longer be chosen: those of a grid of large models would fill the disk."""
    if jax.process_index() != 0:  # only the first host is sure to have seen the last record
        return
    records = finished_runs(workdir.path / "runs", metric)
    chosen = best(records, metric)
    for record in records:
        if record is not chosen and record["keep"] == "best":
            (workdir.path / "runs" / record["run"] / "checkpoints").rmtree(missing_ok=True)


def keep(
    workdir: WorkDirectory, wanted: str, record: dict[str, Any], chosen: dict[str, Any], tokenizer: Tokenizer
) -> None:
    """Delete the weights of a run, or make its directory one that can be loaded and used to predict.

    The weights of a command with --keep=all stay, whatever later commands want.
    """
    run = workdir.path / "runs" / record["run"]
    if wanted == record["keep"] == "best":
        remove(run / "checkpoints")
    elif (run / "checkpoints").exists():
        if jax.process_index() == 0:
            tokenizer.save(run / "tokenizer")
    elif wanted == "all":
        remedy = f"they are those of {workdir.path} itself" if record is chosen else f"remove {run} to train it again"
        logging.warning("the weights of %s are gone, an earlier command kept only the best; %s", run.name, remedy)


def _published(workdir: WorkDirectory) -> list[str] | None:
    """Return name and metrics of the run whose weights are in DIR/checkpoints, or None."""
    steps = Checkpoints(workdir.checkpoints, read_only=True).directories()
    try:
        if not steps:
            return None
        record = read_record(steps[-1] / "record")
        check_origin(record, record["step"], workdir.run_id)
        return [record["config"]["run"], json.dumps(record["metrics"], sort_keys=True)]
    except UserError:
        raise
    except Exception as error:  # a damaged record may raise anything; the run still has its weights
        logging.warning("%s cannot be used (%s); it is written again", steps[-1], error)
        return None


def _check_continues(path: epath.Path, identity: dict[str, Any], settings: dict[str, Any]) -> None:
    if "features_fingerprint" not in read_json(path / "run.json"):
        raise UserError(
            f"{path} is the work directory of a pre-training run: it can be given as --init_from; give another "
            "--workdir"
        )
    before = read_json(path / "config.json")
    if lines := refused_changes(path, identity, before, settings, is_harmless_to_finetuning):
        raise UserError(
            f"{path} holds runs with different data, parameters or settings ({first_lines(lines)}). Resume with "
            f"those ({path / 'config.json'}), or start this in another --workdir"
        )
