"""One host's part of one step in a directory of its local disk: what it held of every array, and the record.

`arrays` has the contents of the parts one after another, and `metadata` is the sealed record (record.py), with the
parts that all hosts held ("layout") and, for those in this directory, their offset and SHA-256 ("held"). The directory
gets its name when it is complete. Nothing is forced to the disk: what a power failure loses is noticed by its digest,
and such a copy is only ever one of several.
"""

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import pathlib
import shutil
import uuid
from typing import Any

import numpy as np
from etils import epath

from bert_jax.checkpoints.parts import Box, Parts, is_part, shape_of
from bert_jax.checkpoints.record import Damaged, check_origin, read_record, sealed
from bert_jax.devices.placement import empty
from bert_jax.files import checksum

PARTIAL = "partial_"
DIGESTED = ("run_id", "step", "position", "arrays", "layout")
"""What is the same on all hosts; paths in the configuration may differ."""


@dataclasses.dataclass(frozen=True)
class LocalCopy:
    """A copy on this host whose digests were right when it was opened."""

    directory: pathlib.Path
    content: dict[str, Any]

    @property
    def id(self) -> str:
        """The same for the copies that several hosts have of one state, split in the same way."""
        return checksum({name: self.content[name] for name in DIGESTED})

    @property
    def layout(self) -> dict[str, list[Box]]:
        return self.content["layout"]

    @property
    def held(self) -> dict[str, list[int]]:
        """Numbers of the parts in this copy, by the path of their array."""
        return {path: [int(number) for number in parts] for path, parts in self.content["held"].items()}

    def read(self, path: str, number: int) -> np.ndarray:
        """Return the contents of a part.

        Raises:
          Damaged: they have changed since they were written, or cannot be read.
        """
        entry = self.content["held"][path][str(number)]
        shape, dtype = shape_of(self.layout[path][number]), np.dtype(self.content["arrays"][path]["dtype"])
        values = empty(shape, dtype)
        view = values.reshape(-1).view(np.uint8).data
        with open(self.directory / "arrays", "rb") as file:
            file.seek(entry["offset"])
            count = file.readinto(view)
        if count != len(view) or hashlib.sha256(view).hexdigest() != entry["sha256"]:
            raise Damaged(f"the array {path} in {self.directory} has changed")
        return values


def open_copy(directory: pathlib.Path, step: int, run_id: str) -> LocalCopy:
    """Return the copy in `directory` after reading all of it.

    Raises:
      Damaged: part of it cannot be read or has changed, or it is that of another step or run. Anything else may be
        raised by a record that somebody else has written.
    """
    content = read_record(epath.Path(directory))
    check_origin(content, step, run_id)
    copy = LocalCopy(directory, content)
    size = os.path.getsize(directory / "arrays")
    for path, boxes in copy.layout.items():
        if not all(is_part(box, content["arrays"][path]["shape"]) for box in boxes):
            raise Damaged(f"{directory} has parts beyond the array {path}")
        for number in copy.held.get(path, []):
            if math.prod(shape_of(boxes[number])) > size:
                raise Damaged(f"{directory} is shorter than its arrays")
            copy.read(path, number)
    return copy


def write_copy(
    directory: pathlib.Path, record: dict[str, Any], boxes: dict[str, list[Box]], parts: dict[str, Parts]
) -> None:
    """Write the parts of a state that this host holds, under a name of its own until everything is there.

    Raises:
      OSError: they could not be written, and nothing is left of them.
    """
    partial = directory.with_name(f"{PARTIAL}{uuid.uuid4().hex}")
    try:
        partial.mkdir()
        held: dict[str, dict[str, dict[str, Any]]] = {}
        with open(partial / "arrays", "wb") as file:
            for path, numbered in parts.items():
                for number, values in numbered.items():
                    contents = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
                    entry = {"offset": file.tell(), "sha256": hashlib.sha256(contents).hexdigest()}
                    held.setdefault(path, {})[str(number)] = entry
                    file.write(contents)
        content = {**record, "layout": boxes, "held": held}
        (partial / "metadata").write_text(json.dumps(sealed(content)))
        partial.rename(directory)
    except OSError:
        with contextlib.suppress(OSError):
            shutil.rmtree(partial)
        raise
