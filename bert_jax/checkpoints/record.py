"""The record of a checkpoint: the position of the run, and the shape, type and fingerprint of every array.

It is one JSON object with a checksum of its own: run, step, data position, configuration, metrics, and shape, dtype and
fingerprint of each array by path. A change of a single digit is noticed, in it and in the arrays.
"""

import math
from typing import Any

import numpy as np
from etils import epath

from bert_jax.checkpoints.fingerprint import fingerprint, leaf_paths
from bert_jax.config.json_form import first_lines
from bert_jax.errors import UserError
from bert_jax.files import checksum, parse_object

FORMAT = 1


class Damaged(Exception):
    """Part of a checkpoint cannot be read, or is not what was written; the message names the part."""


def make_record(
    step: int,
    state: Any,
    position: dict[str, Any],
    config: dict[str, Any],
    metrics: dict[str, Any] | None,
    run_id: str | None,
) -> dict[str, Any]:
    """Return the content of the record; computes the fingerprints, so it waits for the arrays of `state`."""
    prints = fingerprint(state)
    return {
        "format": FORMAT,
        "run_id": run_id,
        "step": int(step),
        "position": position,
        "config": config,
        "metrics": None if metrics is None else {name: float(value) for name, value in metrics.items()},
        "arrays": {path: {**_kind(leaf), "fingerprint": prints[path]} for path, leaf in leaf_paths(state).items()},
    }


def sealed(content: dict[str, Any]) -> dict[str, Any]:
    return {"content": content, "sha256": checksum(content)}


def read_record(directory: epath.Path) -> dict[str, Any]:
    """Return the content of the record in `directory`.

    Raises:
      UserError: another version wrote it.
      Damaged: it cannot be read, or is not what was written.
    """
    try:
        stored = parse_object((directory / "metadata").read_bytes())
    except OSError as error:
        raise Damaged(f"the record cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise Damaged(f"the record {error}") from None
    content = stored.get("content")
    if not isinstance(content, dict) or stored.get("sha256") != checksum(content):
        raise Damaged("the record does not match its checksum")
    if content["format"] != FORMAT:
        raise UserError(
            f"{directory} has checkpoint format {content['format']!r:.20}, but this version of bert_jax reads format "
            f"{FORMAT}; install the version that wrote it"
        )
    return content


def check_origin(content: dict[str, Any], step: int, run_id: str | None) -> None:
    """Raise Damaged unless a record belongs to this step of this run, and was not copied or renamed."""
    if content["step"] != step:
        raise Damaged(f"it is step {content['step']!r:.20} under another number")
    if content["run_id"] != run_id:
        raise Damaged(f"it is a step of another run, {content['run_id']!r:.80}, not of {run_id!r}")


def rank(content: dict[str, Any], metric: str) -> tuple[int, float] | None:
    """Return the rank of a checkpoint, lowest for the best; None without a finite held-out loss named `metric`.

    Losses are comparable only within a phase, because a different sequence length is a different test. So the steps of
    a later phase come first.
    """
    loss = (content["metrics"] or {}).get(metric, math.nan)
    return (-content["position"].get("phase", 0), loss) if math.isfinite(loss) else None


def misfits(stored: dict[str, Any], abstract: Any) -> list[str]:
    """Return a line per array in which a record's `arrays` differ from the ShapeDtypeStructs; parameters first."""
    wanted = {path: _kind(leaf) for path, leaf in leaf_paths(abstract).items()}
    lines = []
    for path in sorted({*stored, *wanted}, key=lambda path: (not path.startswith("params/"), path)):
        old, new = (
            f"{tree[path]['dtype']}{tree[path]['shape']}" if path in tree else "none" for tree in (stored, wanted)
        )
        if old != new:
            lines.append(f"{path}: checkpoint {old}, model {new}")
    return lines


def check_fit(content: dict[str, Any], abstract: Any, name: str) -> None:
    """Raise a UserError unless the arrays of a record are those of `abstract`; `name` begins the message."""
    if lines := misfits(content["arrays"], abstract):
        raise UserError(
            f"{name} does not fit this model: {first_lines(lines, 5)}. Use its own model settings (config.json "
            "in its directory), or another --workdir"
        )


def check_unchanged(content: dict[str, Any], state: Any) -> None:
    """Raise Damaged, on every host, if the contents of an array of `state` differ from the recorded ones."""
    stored = content["arrays"]
    paths = [path for path, value in fingerprint(state).items() if value != stored[path]["fingerprint"]]
    if paths:
        raise Damaged(f"the array {paths[0]} has changed" + (f", as have {len(paths) - 1} more" if paths[1:] else ""))


def _kind(leaf: Any) -> dict[str, Any]:
    return {
        "shape": list(np.shape(leaf)),
        "dtype": str(leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype),
    }
