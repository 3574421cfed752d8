"""Our own checkpoints as StoredModel: parameters by slices from disk, optimizer state left alone."""

import os
import re

import numpy as np
from absl import logging
from etils import epath

from bert_jax.checkpoint import Checkpoints, attempt
from bert_jax.checkpoint_record import check_origin, read_record
from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.config_dict import from_dict
from bert_jax.errors import UserError
from bert_jax.fingerprint import host_fingerprint
from bert_jax.pretrained.stored import StoredArray, StoredModel, empty
from bert_jax.tokenization import load_tokenizer
from bert_jax.vocabulary_file import vocabularies
from bert_jax.workdir import id_below, read_json

PARAMETERS = "params/"
VOCABULARY_ARRAYS = ("embeddings/word/table", "mlm/bias")  # their first axis is the padded vocabulary


def open_checkpoint(path: str | os.PathLike) -> StoredModel:
    """The newest good checkpoint of work directory `path`, or the very step whose directory `path` is (local or gs://).

    Every parameter is read once and compared with its fingerprint, one array at a time; a damaged step, or one of another
    run, gives way to the one before it. `history` has step, metrics, config (what the run was started with) and run (run.json).

    Raises:
      UserError: no checkpoint yet, all of them damaged, or one that a newer version has written.
    """
    path = epath.Path(path if "://" in os.fspath(path) else os.path.abspath(path))
    steps = [path] if is_step(path) else Checkpoints(path / "checkpoints", read_only=True).directories()
    refused = {}
    for step in reversed(steps):
        found, problem = attempt(_open_step, step, path)
        if problem is None:
            return found
        logging.warning("checkpoint %s cannot be used (%s); trying an older one", step, problem)
        refused[step.name] = problem
    if refused:
        reasons = "; ".join(f"{name}: {problem}" for name, problem in refused.items())
        raise UserError(f"no checkpoint of {path} can be used ({reasons}); bring it back from a copy")
    raise UserError(f"there is no checkpoint below {path / 'checkpoints'} yet; a run writes one every checkpoint.every_steps")


def is_step(path: epath.Path) -> bool:
    """Whether `path` is the directory of one step of ours."""
    return (path / "record").is_dir() and (path / "state").is_dir()


def _open_step(step: epath.Path, path: epath.Path) -> StoredModel:
    home = path.parent.parent if step == path else path
    content, arrays = _read_step(step, home)
    return _describe(path, home, content, arrays)


def _read_step(step: epath.Path, home: epath.Path) -> tuple[dict, dict[str, StoredArray]]:
    """The record, and the parameters by path; ValueError where values are not those recorded, or the run is another."""
    content = read_record(step / "record")
    named = re.fullmatch(r"step_(\d+)", step.name)
    check_origin(content, int(named[1]) if named else content["step"], _run_id(home, content))
    arrays = {}
    for path, recorded in content["arrays"].items():
        if path.startswith(PARAMETERS):
            array = _open_array(step / "state", path)
            if (list(array.shape), str(array.dtype)) != (recorded["shape"], recorded["dtype"]):
                raise ValueError(f"{path} is {array.dtype}{list(array.shape)}, recorded {recorded['dtype']}{recorded['shape']}")
            if host_fingerprint(array.read(_whole(array))) != recorded["fingerprint"]:
                raise ValueError(f"the contents of {path} have changed")
            arrays[path.removeprefix(PARAMETERS)] = array
    return content, arrays


def _run_id(home: epath.Path, content: dict) -> str | None:
    """Return the id of the run in `home`, or of that run below a fine-tuning directory; without a run.json, the record's."""
    above = home.parent.parent / "run.json"
    if (home / "run.json").exists():
        return read_json(home / "run.json").get("run_id")
    if home.parent.name == "runs" and above.exists():
        return id_below(read_json(above).get("run_id"), home.name)
    return content.get("run_id")


def _open_array(state: epath.Path, path: str) -> StoredArray:
    """One array of a directory that Orbax wrote: an OCDBT database in which the parts of a name are joined by dots."""
    import tensorstore

    place = os.fspath(state) + "/"
    base = place if "://" in place else {"driver": "file", "path": place}
    store = {"driver": "ocdbt", "base": base, "path": path.replace("/", ".") + "/"}
    array = tensorstore.open({"driver": "auto", "kvstore": store}, open=True, read=True).result()

    def read(index):
        part = array[index]
        values = empty(part.shape, part.dtype.numpy_dtype)
        values[...] = part.read().result()
        return values
    return StoredArray(tuple(array.shape), np.dtype(array.dtype.numpy_dtype), read)


def _describe(path: epath.Path, home: epath.Path, content: dict, arrays: dict[str, StoredArray]) -> StoredModel:
    config = content["config"]
    # The padding of the vocabulary serves one mesh and never reaches a prediction: nobody who opens the model needs it.
    model = from_dict(ModelConfig, {**config["model"], "vocab_pad_multiple": 1}, "model.")
    for name in VOCABULARY_ARRAYS:
        if name in arrays:
            arrays[name] = _first_rows(arrays[name], model.vocab_size)
    run = home / "run.json"
    history = {"step": content["step"], "metrics": content["metrics"], "config": config,
               "run": read_json(run) if run.exists() else None}
    head = from_dict(HeadConfig, config["head"], "head.") if config.get("head") else None
    tokenizer = load_tokenizer(home / "tokenizer") if vocabularies(home / "tokenizer") else None
    return StoredModel(kind="bert_jax", path=os.fspath(path), model=model, arrays=arrays, head=head, tokenizer=tokenizer,
                       history=history)


def _first_rows(array: StoredArray, rows: int) -> StoredArray:
    rows = min(rows, array.shape[0])  # fewer than the configuration says are the loader's to refuse

    def read(index):
        start, stop, step = index[0].indices(rows)
        return array.read((slice(start, stop, step), *index[1:]))
    return StoredArray((rows, *array.shape[1:]), array.dtype, read)


def _whole(array: StoredArray) -> tuple[slice, ...]:
    return (slice(None),) * len(array.shape)
