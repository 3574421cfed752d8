"""What is said when a checkpoint cannot be written, or none can be read."""

import os
import re

from etils import epath

from bert_jax.checkpoints.walk_back import reason
from bert_jax.config.json_form import first_lines
from bert_jax.errors import UserError


def write_error(directory: epath.Path, step: int, error: Exception, latest: int | None) -> UserError:
    """Return the error of a save that has failed; `latest` is the newest step that a start can resume from."""
    kept = "nothing was saved before" if latest is None else f"the newest good one is step {latest}"
    return UserError(
        f"saving the checkpoint of step {step} to {directory} failed: {_system_s_words(error)}; {kept}. "
        "Check free space and permissions, then start the same command again to resume from there"
    )


def all_refused(directory: epath.Path, refused: dict[int, str]) -> UserError:
    """Return the error of a directory in which each step was refused, for the reasons given."""
    reasons = first_lines([f"step {step}: {problem}" for step, problem in refused.items()])
    return UserError(
        f"none of the {len(refused)} checkpoints in {directory} can be used ({reasons}). "
        "Restore the directory from a copy, or start a new run with another --workdir"
    )


def _system_s_words(error: Exception) -> str:
    """Return why a file was not written: the operating system's words, which TensorStore puts after long paths."""
    code = getattr(error, "errno", None) or next(iter(re.findall(r"os_error_code='(\d+)'", str(error))), None)
    return reason(error) if code is None else os.strerror(int(code))
