"""The work directory of pre-training: which run it holds, and which settings that run may resume with."""

import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from absl import logging
from etils import epath

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.local_tier import has_copies
from bert_jax.checkpoints.run_files import read_json, read_settings, refused_changes
from bert_jax.checkpoints.workdir import WorkDirectory, open_workdir
from bert_jax.config import Config, resolve_phases
from bert_jax.config.changes import is_elastic, is_harmless, lengthens
from bert_jax.config.json_form import first_lines, from_dict, from_record, options_recorded, to_dict
from bert_jax.devices import sharding
from bert_jax.devices.hosts import decide
from bert_jax.errors import UserError
from bert_jax.tokenization.tokenizer import Tokenizer


def open_pretraining(
    path: str | os.PathLike[str],
    config: Config,
    *,
    store_fingerprint: str,
    mixed_stores: Sequence[str] = (),
    tokenizer: Tokenizer,
    own_names: Mapping[str, str] = MappingProxyType({}),
    devices: sharding.Devices = None,
) -> WorkDirectory:
    """Take `path` (local or gs://) for this run: begin there, or resume the run that has saved something there.

    Args:
      store_fingerprint: that of the store, or of the mixtures of several.
      mixed_stores: the fingerprint of each store of a mixture.
      own_names: of an objective and an architecture that are not the default (`objectives.identity.own_names`), and the
        fingerprint of a teacher.
      devices: that the run computes on; None for those of all processes.

    Raises:
      UserError: `path` is not writable, another process writes to it, or it holds something else or a run with other
        settings, another objective or another architecture. Equal names can still be different formulas.
    """
    identity: dict[str, Any] = {
        "store_fingerprint": store_fingerprint,
        "tokenizer_fingerprint": tokenizer.fingerprint,
        **own_names,
    }
    if mixed_stores:
        identity["store_fingerprints"] = list(mixed_stores)
    has_saved = has_checkpoint(path) or _has_local_saves(path, config.checkpoint.local_path)
    resumed = decide(has_saved, any)  # the disk of the first host may be a new one
    return open_workdir(
        path, identity, to_dict(config), tokenizer, resumed=resumed, check=_check_continues, devices=devices
    )


def has_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Return whether a run in work directory `path` has saved anything; the directory need not exist."""
    return bool(Checkpoints(epath.Path(path) / "checkpoints", read_only=True).steps())


def _has_local_saves(path: str | os.PathLike[str], local_path: str) -> bool:
    """Return whether this machine has local saves of the run in work directory `path`."""
    run = epath.Path(path) / "run.json"
    if not local_path or not run.exists():
        return False
    run_id = read_json(run).get("run_id")
    return isinstance(run_id, str) and has_copies(local_path, run_id)


def read_config(path: str | os.PathLike[str]) -> Config:
    """Return the configuration that the run in work directory `path` was last started with.

    Raises:
      UserError: there is no config.json, it is damaged, or another version of bert_jax wrote it.
    """
    return from_record(Config, options_recorded(read_settings(path)), f"{epath.Path(path) / 'config.json'}")


def _check_continues(path: epath.Path, identity: dict[str, Any], settings: dict[str, Any]) -> None:
    """Raise a UserError if `settings` and the data would not continue the run in `path`; log harmless changes."""
    if "source" in read_json(path / "run.json"):
        raise UserError(
            f"{path} holds a model that convert or model.save wrote, without the state of a run; give it as "
            "--init_from, and another --workdir"
        )
    _check_own_names(path, identity)
    before, now, phases = read_config(path), from_dict(Config, settings), len(settings["phases"])
    lines = refused_changes(path, identity, to_dict(before), settings, is_harmless)
    if _packed(before) == _packed(now):
        lines = [line for line in lines if not line.startswith("data.packing: ")]
    refused = []
    for line in lines:
        if lengthens(line, phases):
            logging.warning(
                "%s: from here on the learning rate (its decay, and a warm-up that is not given) follows a "
                "schedule of the new length",
                line,
            )
        elif settings["elastic_batch"] and is_elastic(line):
            logging.warning("%s: from here on; no example is repeated or skipped, and the steps stay as given", line)
        else:
            refused.append(line)
    if refused:
        elastic = ", or say --elastic_batch if the new values are meant" if all(map(is_elastic, refused)) else ""
        raise UserError(
            f"{path} holds a run with different settings ({first_lines(refused)}). Resume with that run's own settings "
            f"({path / 'config.json'}){elastic}, or start this one in another --workdir"
        )


def _packed(config: Config) -> list[bool]:
    """Return whether each phase packs its rows."""
    return [phase.packed for phase in resolve_phases(config)]


def _check_own_names(path: epath.Path, identity: dict[str, Any]) -> None:
    """Raise a UserError if the run in `path` has another objective, architecture or teacher.

    run.json lacks those that are the default.
    """
    saved = read_json(path / "run.json")
    for name in ("architecture", "objective", "teacher"):
        before, now = saved.get(name), identity.get(name)
        if before != now and name == "teacher":
            raise UserError(
                f"{path} holds a run with {_taught(before)}, but this start has {_taught(now)}. Resume with the "
                "teacher whose arrays have that fingerprint (objective.distillation.teacher, wherever it is now), or "
                "start this one in another --workdir"
            )
        if before != now:
            raise UserError(
                f"{path} holds a run with {_shown(name, before)}, but this start has {_shown(name, now)}. Resume with "
                "the same one (the objective that pretrain is given in Python), or start this one in another --workdir"
            )


def _taught(fingerprint: str | None) -> str:
    return "no teacher" if fingerprint is None else f"the teacher {fingerprint:.12}…"


def _shown(name: str, value: str | None) -> str:
    return f"the default {name}" if value is None else f"the {name} {value}"
