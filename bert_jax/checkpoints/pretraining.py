"""The work directory of pre-training: which run it holds, and which settings that run may resume with."""

import os

from absl import logging
from etils import epath

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.workdir import WorkDirectory, open_workdir, read_json, read_settings, refused_changes
from bert_jax.config import Config
from bert_jax.config.changes import is_harmless, lengthens
from bert_jax.config.json_form import first_lines, from_dict, to_dict
from bert_jax.errors import UserError
from bert_jax.tokenization.tokenizer import Tokenizer


def open_pretraining(
    path: str | os.PathLike[str], config: Config, *, store_fingerprint: str, tokenizer: Tokenizer
) -> WorkDirectory:
    """Take `path` (local or gs://) for this run: begin there, or resume the run that has saved something there.

    Raises:
      UserError: `path` is not writable, another process writes to it, or it holds something else or a run with other
        settings.
    """
    identity = {"store_fingerprint": store_fingerprint, "tokenizer_fingerprint": tokenizer.fingerprint}
    resumed = has_checkpoint(path)
    return open_workdir(path, identity, to_dict(config), tokenizer, resumed=resumed, check=_check_continues)


def has_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Return whether a run in work directory `path` has saved anything; the directory need not exist."""
    return bool(Checkpoints(epath.Path(path) / "checkpoints", read_only=True).steps())


def read_config(path: str | os.PathLike[str]) -> Config:
    """Return the configuration that the run in work directory `path` was last started with."""
    return from_dict(Config, read_settings(path))


def _check_continues(path: epath.Path, identity: dict, settings: dict) -> None:
    """Raise a UserError if `settings` and the data would not continue the run in `path`; log harmless changes."""
    if "source" in read_json(path / "run.json"):
        raise UserError(
            f"{path} holds a model that convert or model.save wrote, without the state of a run; give it as "
            "--init_from, and another --workdir"
        )
    before, phases = to_dict(read_config(path)), len(settings["phases"])
    lines = refused_changes(path, identity, before, settings, is_harmless)
    for line in (line for line in lines if lengthens(line, phases)):
        logging.warning(
            "%s: from here on the learning rate (its decay, and a warm-up that is not given) follows a "
            "schedule of the new length",
            line,
        )
    if lines := [line for line in lines if not lengthens(line, phases)]:
        raise UserError(
            f"{path} holds a run with other settings ({first_lines(lines)}). Resume with that run's own settings "
            f"({path / 'config.json'}), or start this one in another --workdir"
        )
