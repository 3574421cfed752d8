"""`bert-jax convert`: write a model in another layout; the parameters keep every bit.

A model of any format goes to a new directory, which gets its name on success and is removed otherwise. An object
store has no atomic rename, so there it is filled under its final name.
"""

import contextlib
import dataclasses
import json
import math
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from etils import epath
from rich.console import Console

from bert_jax import hub
from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.config import EmbeddingConfig
from bert_jax.config.commands import ConvertConfig, ModelFormat, PartsWritten, Weights
from bert_jax.config.options import from_dict, to_dict
from bert_jax.errors import UserError, need_cloud_storage
from bert_jax.files import is_remote, write_atomically
from bert_jax.formats.opening import open_stored, place
from bert_jax.formats.own import open_checkpoint
from bert_jax.formats.sentence_transformers import write_postprocesses
from bert_jax.formats.stored import StoredModel, check_fit, generator_of, left_out
from bert_jax.models.bert_parameters import ENCODER_PARTS, STATE_PROJECTION, TOKEN_VECTORS

TRAINED_ON = ("store_fingerprint", "store_fingerprints", "objective", "teacher")
"""Entries of the run.json of a run by which `evaluate` knows what the model has seen; a copy of the model has them."""


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

    `by`: writer that run.json names: "convert", "average", or "model.save", before which parameters may have been
    changed.
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
    known = {name: run[name] for name in TRAINED_ON if run.get(name)}
    if stored.tokenizer is not None:
        known["tokenizer_fingerprint"] = stored.tokenizer.fingerprint
    source = {"kind": stored.kind, "path": stored.path, "step": stored.history.get("step"), "written_by": by}
    source |= {"architecture": stored.architecture} if stored.architecture else {}
    source |= {"carried": stored.carried} if stored.carried else {}
    source |= {"made_of": stored.history["made_of"]} if "made_of" in stored.history else {}
    return {**known, "source": source | ({"source": run["source"]} if run.get("source") else {})}


def convert(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    to: ModelFormat,
    parts: PartsWritten = "all",
    weights: Weights = "last",
    push: str = "",
    private: bool = False,
) -> None:
    """Convert the model in `source`, of any known kind, to the new directory `destination`, and print a summary.

    Args:
      to: bert_jax, huggingface or tf1.
      parts: all, mlm, encoder or generator; see ConvertConfig.
      weights: last or ema; see ConvertConfig.
      push: repository of the Hugging Face hub that gets a copy; see ConvertConfig.
      private: whether a repository that is made for it is private.

    Raises:
      UserError: the source is unreadable, the destination is not empty, or the other format cannot represent the model;
        or the hub does not take it, which is asked for before anything is written.
    """
    from_dict(ConvertConfig, {"to": to, "parts": parts, "weights": weights})  # raises a UserError for any other word
    check_destination(destination)
    repository = _repository(push, private, to)
    stored = opened(source, weights)
    check_fit(stored)
    chosen = select(stored, parts, to)
    if repository is not None:
        hub.check_writable(repository, private)
    with new_directory(destination) as directory:
        _write(chosen, directory, to, os.path.basename(os.path.normpath(destination)))
    uploaded = "" if repository is None else hub.push(destination, repository)
    _print_summary(source, stored, chosen, destination, to)
    if uploaded:
        print(f"uploaded: {uploaded}")


def _repository(push: str, private: bool, to: ModelFormat) -> hub.HubName | None:
    """Return the repository to upload to; None if there is none, and a UserError if there cannot be one."""
    if private and not push:
        raise UserError("private=True says how a repository is made that push=OWNER/NAME names; leave it out")
    if not push:
        return None
    if to != "huggingface":
        raise UserError(f"push={push} uploads what transformers opens, but to={to}; use --to=huggingface")
    return hub.model_name(push if push.startswith(hub.PREFIX) else f"{hub.PREFIX}{push}")


def opened(source: str | os.PathLike[str], weights: Weights) -> StoredModel:
    """Return the model in `source`, with the weights that are asked for."""
    stored = open_stored(source)
    if weights == "last":
        return stored
    if stored.kind != "bert_jax":
        raise UserError(f"weights=ema, but {source} is not a run of bert_jax, and only such runs keep a moving average")
    return open_checkpoint(stored.path, weights)


def select(stored: StoredModel, parts: PartsWritten, to: ModelFormat = "bert_jax") -> StoredModel:
    """Return `stored` with only some of its parts; see ConvertConfig.parts.

    A student's map to the states of its teacher is never written. Only bert_jax knows a span boundary head, and code of
    Google no enhanced mask decoder; its run_squad.py leaves a pooler that nothing reads. The classes of transformers do
    not have one together with such a head, and would report it as unexpected.
    """
    if parts == "generator":
        generator = generator_of(stored)
        check_fit(generator)
        return select(generator, "all", to)
    stored = stored.without(STATE_PROJECTION)
    if to != "bert_jax":
        stored = stored.without("span_boundary")
    if to == "tf1":
        stored = stored.without("mask_decoder", TOKEN_VECTORS)
    if parts == "all" and to == "huggingface" and stored.head is not None and stored.head.kind in ("span", "tagging"):
        return stored.without("pooler")
    if parts == "all":
        return stored
    if parts == "mlm" and "mlm" not in stored.parts:
        raise UserError(
            f"parts=mlm, but {stored.path} has no masked-language-model head; it has "
            f"{', '.join(stored.parts) or 'an encoder only'}"
        )
    kept = (*ENCODER_PARTS, *{"mlm": ("mlm", "mask_decoder"), "encoder": ("pooler",)}[parts])
    arrays = {path: array for path, array in stored.arrays.items() if path.split("/")[0] in kept}
    found = dataclasses.replace(stored, arrays=arrays, head=None)
    return found if found.has_form else dataclasses.replace(found, embedding=EmbeddingConfig())


def _write(stored: StoredModel, directory: epath.Path, to: ModelFormat, name: str) -> None:
    if to == "bert_jax":
        write_bert_jax(stored, directory)
    elif to == "huggingface":
        from bert_jax.formats.huggingface_export import write_huggingface

        write_huggingface(stored, directory, name)
    else:
        from bert_jax.formats.tf1 import write_tf_checkpoint

        write_tf_checkpoint(stored, directory)


def _print_summary(source: Any, stored: StoredModel, chosen: StoredModel, destination: Any, to: ModelFormat) -> None:
    numbers = sum(math.prod(array.shape) for array in chosen.arrays.values())
    vocabulary = f"vocabulary of {chosen.tokenizer.vocab_size:,} entries" if chosen.tokenizer else "no vocabulary"
    lines = [
        f"from {source} ({stored.kind}): encoder of {stored.model.num_layers} layers and {stored.model.hidden_size} "
        f"features, {_listed(stored.parts)}",
        f"to {destination} ({to}): encoder, {_listed(chosen.parts)}, {numbers:,} parameters; {vocabulary}",
    ]
    if stored.beside:  # discriminator and generator of one run
        lines.append(f"left out: {'generator' if chosen.beside else 'discriminator'}")
        stored = stored if chosen.beside else generator_of(stored)
    own = to == "bert_jax"
    vectors = own or (to == "huggingface" and chosen.makes_vectors)
    remedy = "" if own else "; --to=bert_jax keeps that"
    lines += left_out(stored, chosen.parts, vectors, remedy, own)
    if chosen.head is not None and not own:
        if chosen.head.windows:
            lines.append(f"left out: the windows in which longer texts are read ({chosen.head.windows}){remedy}")
        if chosen.head.kind == "multilabel":
            lines.append(f"left out: the thresholds of the classes; others have 0.5 for all{remedy}")
    Console(highlight=False).print("\n".join(lines), markup=False, soft_wrap=True)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return (", ".join(names[:5]) or "nothing else") + more
