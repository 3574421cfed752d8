"""bert_jax's own checkpoints as `StoredModel`: parameters are read by slices; the optimizer state is not read."""

import dataclasses
import os
import re
from typing import Any

from absl import logging
from etils import epath

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.record import Damaged, check_files, check_origin, host_fingerprint, open_array, read_record
from bert_jax.checkpoints.steps import attempt
from bert_jax.checkpoints.workdir import id_below, need, read_json
from bert_jax.config import EmbeddingConfig, EncoderConfig, HeadConfig
from bert_jax.config.commands import Weights
from bert_jax.config.finetuning import FinetuneConfig
from bert_jax.config.options import from_record
from bert_jax.config.pretraining import model_of_step
from bert_jax.devices.hardware import all_devices
from bert_jax.devices.placement import StoredArray
from bert_jax.errors import UserError, first_lines
from bert_jax.files import is_remote
from bert_jax.formats.sentence_transformers import read_postprocesses
from bert_jax.formats.stored import WORD_ARRAYS, StoredModel, without_generator
from bert_jax.models.bert_parameters import GENERATOR, MODEL_PARTS, bert_parameters, difference_path, word_parameters
from bert_jax.parameters import row_tables
from bert_jax.tokenization.tokenizer import Tokenizer, load_tokenizer
from bert_jax.tokenization.vocabulary import vocabulary_files

PREFIXES = {"last": "params/", "ema": "optimizer_state/average/"}
"""Where the arrays of a training state are."""


def open_checkpoint(path: str | os.PathLike[str], weights: Weights = "last") -> StoredModel:
    """Return the newest good checkpoint of work directory `path`, or the step whose directory is `path`.

    Every parameter is read once and compared with its fingerprint, one array at a time; a damaged step gives way to the
    one before it, as does one of another run or under another number. `history` has step, metrics, config (that of the
    run, with the model as the phase of the step computed it) and run (run.json).

    Args:
      weights: those after the step, or their moving average.

    Raises:
      UserError: there is no checkpoint yet, or no average in it, all are damaged, a newer version has written one, the
        tokenizer is not the one that run.json names, its architecture is not BERT, or JAX finds no device.
    """
    path = epath.Path(path if is_remote(path) else os.path.abspath(path))
    _check_architecture(path.parent.parent if is_step(path) else path)
    steps = [path] if is_step(path) else Checkpoints(path / "checkpoints", read_only=True).directories()
    refused = {}
    all_devices()  # that hash the arrays; a step is not to blame where there is none
    for step in reversed(steps):
        found, problem = attempt(_open_step, step, path, weights)
        if problem is None:
            for damaged, reason in refused.items():
                logging.warning("checkpoint %s of %s cannot be used (%s); %s is used", damaged, path, reason, step.name)
            return found
        refused[step.name] = problem
    if refused:
        reasons = first_lines([f"{name}: {problem}" for name, problem in refused.items()])
        raise UserError(f"no checkpoint of {path} can be used ({reasons}); restore it from a copy")
    raise UserError(
        f"there is no checkpoint below {path / 'checkpoints'} yet; a run writes one every checkpoint.every_steps"
    )


ADAPTERS = "adapters"
"""Key, next to params, of what has learned in a fine-tuning with LoRA, whose sum with the base params has."""


def open_adapters(path: epath.Path) -> dict[str, StoredArray]:
    """Return what has learned beside the base, by path, in the newest step of a work directory; {} without LoRA."""
    *_, newest = Checkpoints(path / "checkpoints", read_only=True).directories()
    return _read_step(newest, path, f"{ADAPTERS}/")[1]


def is_step(path: epath.Path) -> bool:
    """Return whether `path` is the directory of a single step of a run."""
    return (path / "record").is_dir() and (path / "state").is_dir()


def _open_step(step: epath.Path, path: epath.Path, weights: Weights) -> StoredModel:
    home = path.parent.parent if step == path else path
    content, arrays = _read_step(step, home, PREFIXES[weights])
    if not arrays and weights == "ema":
        raise UserError(
            f"weights=ema, but {step} holds no moving average; runs with --optimizer.ema_decay=0.999 keep one"
        )
    return _describe(path, home, content, arrays)


def _read_step(step: epath.Path, home: epath.Path, prefix: str) -> tuple[dict[str, Any], dict[str, StoredArray]]:
    """Return the record, and the arrays below `prefix` by path; raise Damaged if they are not as recorded."""
    content = read_record(step / "record")
    named = re.fullmatch(r"step_(\d+)", step.name)
    check_origin(content, int(named[1]) if named else content["step"], _run_id(home, content))
    check_files(step / "state")
    arrays = {}
    for path, recorded in content["arrays"].items():
        if path.startswith(prefix):
            array = open_array(step / "state", path)
            if (list(array.shape), str(array.dtype)) != (recorded["shape"], recorded["dtype"]):
                raise Damaged(
                    f"the array {path} is {array.dtype}{list(array.shape)}, but recorded as {recorded['dtype']}"
                    f"{recorded['shape']}"
                )
            if host_fingerprint(array.read(_whole(array))) != recorded["fingerprint"]:
                raise Damaged(f"the array {path} has changed")
            arrays[path.removeprefix(prefix)] = array
    return content, arrays


def _run_id(home: epath.Path, content: dict[str, Any]) -> str | None:
    """Return the id in run.json, even if `home` is a run below the directory with that; without it, the record's."""
    run = _run(home)
    if run is None:
        return content["run_id"]
    if (file := home / "run.json").exists():
        return need(run, "run_id", str, file)
    return id_below(need(run, "run_id", str, home.parent.parent / "run.json"), home.name)


def _describe(
    path: epath.Path, home: epath.Path, content: dict[str, Any], arrays: dict[str, StoredArray]
) -> StoredModel:
    run, where = _run(home), f"the record of {path}"
    config = _as_left(content["config"], content["step"], where, run or {})
    # The padding of the vocabulary serves one mesh and never reaches a prediction, so an opened model does not need it.
    model = dataclasses.replace(from_record(EncoderConfig, config["model"], where, "model."), vocab_pad_multiple=1)
    tables = {**bert_parameters(model, MODEL_PARTS), **word_parameters(model, WORD_ARRAYS)}
    for table in row_tables(tables, "vocab"):
        for name in (table, f"{GENERATOR}/{table}", difference_path(table)):
            if name in arrays:
                arrays[name] = _first_rows(arrays[name], model.need_vocab_size())
    arrays, beside = without_generator(arrays)
    history = {"step": content["step"], "metrics": content["metrics"], "config": config, "run": run}
    head = from_record(HeadConfig, config["head"], where, "head.") if config.get("head") else None
    if head is not None and head.kind == "vectors":
        raise UserError(f"{where} has a head for vectors, which have none: another version of bert_jax wrote it")
    if "finetune" in config:  # read by those that predict
        from_record(FinetuneConfig, config["finetune"], where, "finetune.")
        if not isinstance(config.get("pairs", 0), bool | None):
            raise UserError(f"{where} does not say whether texts are pairs: another version of bert_jax wrote it")
    tokenizer = load_tokenizer(home / "tokenizer") if vocabulary_files(home / "tokenizer") else None
    _check_tokenizer(tokenizer, run or {}, home)
    embedding = EmbeddingConfig()
    if "embedding" in config:
        embedding = from_record(EmbeddingConfig, config["embedding"], where, "embedding.")
    return StoredModel(
        kind="bert_jax",
        path=os.fspath(path),
        model=model,
        arrays=arrays,
        beside=beside,
        head=head,
        tokenizer=tokenizer,
        embedding=embedding,
        postprocesses=read_postprocesses(home),
        history=history,
    )


def _as_left(config: dict[str, Any], step: int, where: str, run: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a step, with the model as the phase of pre-training computed it that took the step.

    Only a run has phases; what else was written of one, as its run.json says, has its model already.
    """
    if not isinstance(config.get("phases"), list) or {"finetune", "head"} & config.keys() or "source" in run:
        return config
    return config | {"model": model_of_step(config, step, where)}


def _run(home: epath.Path) -> dict[str, Any] | None:
    """Return the run.json of a work directory or, for one run of fine-tuning (DIR/runs/NAME), that of DIR."""
    homes = (home, home.parent.parent) if home.parent.name == "runs" else (home,)
    return next((read_json(each / "run.json") for each in homes if (each / "run.json").exists()), None)


def _check_architecture(home: epath.Path) -> None:
    """Raise a UserError if the parameters are those of an architecture from outside: as a BERT they would mislead."""
    if architecture := (_run(home) or {}).get("architecture"):
        raise UserError(
            f"{home} holds a model of the architecture {architecture}, and only a BERT can be opened: other pieces "
            "would read its parameters as something else. Resume its run with pretrain and the same objective, or "
            "build the model in Python and restore its state with bert_jax.checkpoints.checkpoint.Checkpoints"
        )


def _check_tokenizer(tokenizer: Tokenizer | None, run: dict[str, Any], home: epath.Path) -> None:
    """Raise a UserError if the vocabulary is not the recorded one: every id could mean a different word."""
    recorded = run.get("tokenizer_fingerprint")  # absent where a model was written without a vocabulary
    if tokenizer is not None and recorded is not None and tokenizer.fingerprint != recorded:
        raise UserError(
            f"{home / 'tokenizer'} is not the tokenizer of this model: its fingerprint is {tokenizer.fingerprint:.12}… "
            f"({tokenizer.vocab_size:,} entries, {'lower case' if tokenizer.lowercase else 'cased'}), run.json has "
            f"{recorded!s:.12}…; a file in it was changed after training. Restore tokenizer/ from a copy, or from the "
            "token store the model was trained on (STORE/tokenizer)"
        )


def _first_rows(array: StoredArray, rows: int) -> StoredArray:
    rows = min(rows, array.shape[0])  # the loader rejects an array with fewer rows than the configuration says

    def read(index: Any):
        start, stop, step = index[0].indices(rows)
        return array.read((slice(start, stop, step), *index[1:]))

    return StoredArray((rows, *array.shape[1:]), array.dtype, read)


def _whole(array: StoredArray) -> tuple[slice, ...]:
    return (slice(None),) * len(array.shape)
