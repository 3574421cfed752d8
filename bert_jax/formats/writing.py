"""Writing a model as a work directory of ours, and the new directory that a model of any format goes to."""

import contextlib
import dataclasses
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from typing import Any

from etils import epath

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.config import EmbeddingConfig
from bert_jax.config.json_form import to_dict
from bert_jax.errors import UserError, need_cloud_storage
from bert_jax.files import is_remote, write_atomically
from bert_jax.formats.opening import place
from bert_jax.formats.postprocess_files import write_postprocesses
from bert_jax.formats.stored import StoredModel


def check_destination(destination: str | os.PathLike[str]) -> None:
    """Raise a UserError unless `destination` is absent or an empty directory."""
    if not os.fspath(destination).strip() or "\0" in os.fspath(destination):
        raise UserError(f"the destination {os.fspath(destination)!r} is not a path; give a new directory to write to")
    need_cloud_storage(os.fspath(destination))
    path = epath.Path(destination)
    if path.exists() and not path.is_dir():
        raise UserError(f"{destination} is a file; give a new directory to write to")
    if path.exists() and (there := next(path.iterdir(), None)):
        raise UserError(f"{destination} is not empty: it has {there.name}; give a new directory to write to")


@contextlib.contextmanager
def new_directory(destination: str | os.PathLike[str]) -> Iterator[epath.Path]:
    """Yield a directory to fill, which gets its name on success and is removed otherwise.

    An object store has no atomic rename, so there it is filled under its final name.

    Raises:
      UserError: it cannot be made, or the disk is full.
    """
    check_destination(destination)
    remote = is_remote(destination)
    target = epath.Path(destination if remote else os.path.realpath(destination))  # keep a link, and make what it names
    partial = target if remote else target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}.partial"
    try:
        partial.mkdir(parents=True, exist_ok=remote)
    except OSError as error:
        raise UserError(f"cannot make the directory {target}: {error.strerror or error}; choose another") from None
    try:
        yield partial
        if not remote:
            os.rename(partial, target)
    except BaseException as error:
        partial.rmtree() if remote else shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, OSError):
            raise UserError(f"cannot write {target}: {error.strerror or error}; nothing was left there") from None
        raise


def write_bert_jax(stored: StoredModel, destination: str | os.PathLike[str], by: str = "convert") -> None:
    """Write config.json, tokenizer/ and one checkpoint, as a run leaves them, and postprocess/, into `destination`.

    There is no optimizer state and no data position: it is for loading, fine-tuning and --init_from, not for resuming.

    Args:
      by: writer that run.json names: "convert" or "model.save", before which parameters may have been changed.
    """

    directory, params = epath.Path(destination), place(stored)
    # The arrays have no padding: that serves the mesh of one run.
    model = dataclasses.replace(stored.model, vocab_pad_multiple=1)
    config = _settings(stored) | {"model": to_dict(model)} | ({"head": to_dict(stored.head)} if stored.head else {})
    if stored.embedding != EmbeddingConfig():
        config["embedding"] = to_dict(stored.embedding)
    run_id = uuid.uuid4().hex
    for name, values in (("run.json", {"run_id": run_id, **_origin(stored, by)}), ("config.json", config)):
        write_atomically(directory / name, (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode())
    if stored.tokenizer is not None:
        stored.tokenizer.save(directory / "tokenizer")
    write_postprocesses(directory, stored.postprocesses)
    with Checkpoints(directory / "checkpoints", run_id=run_id) as checkpoints:
        checkpoints.save(
            stored.history.get("step") or 0,
            {"params": params},
            position={},
            config=config,
            metrics=stored.history.get("metrics"),
        )


def _settings(stored: StoredModel) -> dict[str, Any]:
    """Return the settings that a fine-tuned model needs to read and answer, or an evaluation needs to mask."""
    recorded = stored.history.get("config") or {}
    return {
        name: value
        for name, value in recorded.items()
        if stored.head or name not in ("head", "finetune", "pairs", "run")
    }


def _origin(stored: StoredModel, by: str) -> dict[str, Any]:
    """Return the contents of run.json: the source, with its own source, and the data and vocabulary of the training."""
    run = stored.history.get("run") or {}
    known = {name: run[name] for name in ("store_fingerprint", "objective") if name in run}
    if stored.tokenizer is not None:
        known["tokenizer_fingerprint"] = stored.tokenizer.fingerprint
    source = {"kind": stored.kind, "path": stored.path, "step": stored.history.get("step"), "written_by": by}
    if stored.architecture:
        source["architecture"] = stored.architecture
    return {**known, "source": source | ({"source": run["source"]} if run.get("source") else {})}
