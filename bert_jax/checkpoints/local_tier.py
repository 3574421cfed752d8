"""Frequent saves to the hosts' local disks, between the rarer ones of `Checkpoints`, and restoring from them.

Every host writes what its devices hold into a directory of its own, in the background and without waiting for others:
`local_path/RUN_ID/host_0/step_000000100`. In it, `arrays` has the contents of the parts one after another, and
`metadata` is the sealed record (record.py), with the parts that all hosts held ("layout") and, for those in this
directory, their offset and SHA-256 ("held"). The directory gets its name when it is complete. Nothing is forced to
the disk: the digests reveal what a power failure lost, and such a copy is only ever one of several.

When a run is resumed, the hosts compare what they find, choose copies and plan the transfers. A step can be used if
the good copies together have every part of every array, whatever number of hosts they come from: a host that lacks
what its devices need, because its disk is empty or damaged or the mesh has changed, gets it from another host.
Otherwise an older local step is used, or the newest step of `Checkpoints`. Where arrays are replicated over hosts,
one surviving copy is enough; where they are split (fsdp), each part has to survive.

Orbax has managers for this (orbax.checkpoint.experimental.emergency, in 0.12.8), which do not serve here: they need
at least two data-parallel replicas of whole hosts, or a service of GKE, save the state alone, and read it back on the
mesh that wrote it, each device its own part. They do not detect corruption, and cannot fall back to another copy.
"""

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import pathlib
import re
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from absl import logging
from etils import epath
from jax.experimental import multihost_utils

from bert_jax.checkpoints.record import (
    Damaged,
    check_fit,
    check_origin,
    check_unchanged,
    leaf_paths,
    make_record,
    read_record,
    sealed,
)
from bert_jax.checkpoints.steps import STEP_NAMES, Restored, reason, together
from bert_jax.devices.hosts import any_failure, decide
from bert_jax.devices.placement import empty, placed
from bert_jax.errors import UserError
from bert_jax.files import checksum
from bert_jax.ownership import Owner

Box = list[list[int]]
"""A part of an array: [first index, last index + 1] of each axis."""
Parts = dict[int, np.ndarray]
"""Contents of some parts of an array, by their number in its `layout`."""

PIECE = 1 << 22
"""Number of 32-bit words that hosts exchange at once: 16 MiB."""


def layout(leaf: jax.Array) -> list[Box]:
    """Return the different parts that the devices of all hosts hold of an array, in the same order on every host."""
    found = {_spans(index, leaf.shape) for index in leaf.sharding.devices_indices_map(leaf.shape).values()}
    return [[list(span) for span in spans] for spans in sorted(found)]


def held(leaves: dict[str, jax.Array]) -> dict[str, Parts]:
    """Return copies of the parts of some arrays on this host, which stay when the arrays are donated."""
    on_devices: dict[str, dict[int, jax.Array]] = {}
    for path, leaf in leaves.items():
        boxes, on_devices[path] = layout(leaf), {}
        for shard in leaf.addressable_shards:
            number = boxes.index([list(span) for span in _spans(shard.index, leaf.shape)])
            if number not in on_devices[path]:
                on_devices[path][number] = shard.data
                shard.data.copy_to_host_async()
    return {path: {number: np.array(part) for number, part in parts.items()} for path, parts in on_devices.items()}


def needed(leaf: jax.ShapeDtypeStruct, boxes: list[Box]) -> list[int]:
    """Return the numbers of the parts that overlap what the devices of this host hold of `leaf`."""
    assert leaf.sharding is not None
    places = leaf.sharding.addressable_devices_indices_map(leaf.shape).values()
    wanted = {_spans(index or (), leaf.shape) for index in places}
    return [number for number, box in enumerate(boxes) if any(_overlap(box, spans) is not None for spans in wanted)]


def joined(leaf: jax.ShapeDtypeStruct, boxes: list[Box], parts: Parts) -> jax.Array:
    """Return the array on the devices of `leaf.sharding`; `parts` has those that are `needed`."""

    def read(index: Any) -> np.ndarray:
        spans = _spans(index, leaf.shape)
        whole = [number for number in parts if tuple(map(tuple, boxes[number])) == spans]
        if whole:
            return parts[whole[0]]
        values = empty(tuple(stop - start for start, stop in spans), leaf.dtype)
        for number, part in parts.items():
            if (common := _overlap(boxes[number], spans)) is not None:
                target = tuple(slice(a - start, b - start) for (a, b), (start, _) in zip(common, spans, strict=True))
                source = tuple(slice(a - s, b - s) for (a, b), (s, _) in zip(common, boxes[number], strict=True))
                values[target] = part[source]
        return values

    return placed(leaf.shape, leaf.sharding, read, leaf.dtype)


def is_part(box: Box, shape: list[int]) -> bool:
    """Return whether a box that was read from a file lies within an array of this shape."""
    return len(box) == len(shape) and all(
        len(span) == 2 and all(type(end) is int for end in span) and 0 <= span[0] < span[1] <= size
        for span, size in zip(box, shape, strict=True)
    )


def shape_of(box: Box) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in box)


def exchanged(shape: tuple[int, ...], dtype: np.dtype, mine: np.ndarray | None) -> np.ndarray:
    """Return the part that one host gives as `mine`, on every host; all hosts call this.

    Words are added to the zeros of the other hosts as integers, which keeps every bit.
    """
    size = math.prod(shape) * dtype.itemsize
    words = np.zeros(-(-size // 4), np.uint32)
    if mine is not None:
        words.view(np.uint8)[:size] = np.ascontiguousarray(mine).reshape(-1).view(np.uint8)
    for start in range(0, words.size, PIECE):
        piece = words[start : start + PIECE]
        padded = np.zeros(1 << (piece.size - 1).bit_length(), np.uint32)  # few sizes, as each is a program
        padded[: piece.size] = piece
        piece[...] = multihost_utils.broadcast_one_to_all(padded, is_source=mine is not None)[: piece.size]
    return words.view(np.uint8)[:size].view(dtype).reshape(shape)


def _spans(index: tuple[slice, ...], shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    return tuple(axis.indices(size)[:2] for axis, size in zip(index, shape, strict=True))


def _overlap(box: Any, spans: Any) -> list[tuple[int, int]] | None:
    """Return what two parts have in common; None if that is nothing. Arrays without axes have one part."""
    common = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, spans, strict=True)]
    return common if all(start < stop for start, stop in common) else None


PARTIAL = "partial_"
DIGESTED = ("run_id", "step", "position", "arrays", "layout")
"""Parts that are the same on all hosts; paths in the configuration may differ."""


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


@dataclasses.dataclass(frozen=True)
class Assembly:
    """Copies of one step that have every part of every array between them."""

    content: dict[str, Any]
    """The record, on every host."""
    givers: dict[str, list[int]]
    """The host that gives a part to those that lack it, by the path of the array and the number of the part."""
    mine: dict[tuple[str, int], LocalCopy]
    """The parts on this host."""

    @classmethod
    def of(cls, copies: list[LocalCopy], problems: list[str]) -> "Assembly":
        """Return what the copies of this host make together with those of the others; every host calls this.

        Args:
          problems: of the copies of this host that cannot be used.

        Raises:
          Damaged: a part is missing; raised on every host.
        """
        offers = [
            {
                "id": copy.id,
                "held": copy.held,
                "parts": {path: len(boxes) for path, boxes in copy.layout.items()},
            }
            for copy in copies
        ]
        verdict = decide({"offers": offers, "problems": problems}, _choose)
        if "problem" in verdict:
            raise Damaged(verdict["problem"])
        copies = [copy for copy in copies if copy.id == verdict["id"]]
        content = {name: value for name, value in copies[0].content.items() if name != "held"} if copies else None
        content = decide(content, lambda values: next(value for value in values if value is not None))
        mine = {(path, number): copy for copy in copies for path, numbers in copy.held.items() for number in numbers}
        return cls(content, verdict["givers"], mine)

    def arrays(self, abstract: Any) -> Any:
        """Return the arrays for `abstract`, a pytree of ShapeDtypeStructs with shardings; every host calls this.

        Raises:
          Damaged: a part that was good can no longer be read here, and no host needs any other's; raised on every host.
        """
        leaves, boxes = leaf_paths(abstract), self.content["layout"]
        lacks = (
            path
            for path, leaf in leaves.items()
            for number in needed(leaf, boxes[path])
            if (path, number) not in self.mine
        )
        if any_failure(next(lacks, None)) is not None:
            logging.info("the hosts exchange their local copies")
            found = [self._exchanged_array(path, leaf) for path, leaf in leaves.items()]
        else:
            found = together(lambda: [self._own_array(path, leaf) for path, leaf in leaves.items()])
        return jax.tree.unflatten(jax.tree.structure(abstract), found)

    def _own_array(self, path: str, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        boxes = self.content["layout"][path]
        return joined(leaf, boxes, {n: self.mine[path, n].read(path, n) for n in needed(leaf, boxes)})

    def _exchanged_array(self, path: str, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        boxes, parts = self.content["layout"][path], Parts()
        wanted = needed(leaf, boxes)
        for number, box in enumerate(boxes):
            given = self._given(path, number) if self.givers[path][number] == jax.process_index() else None
            values = exchanged(shape_of(box), np.dtype(leaf.dtype), given)
            if number in wanted:
                parts[number] = values
        return joined(leaf, boxes, parts)

    def _given(self, path: str, number: int) -> np.ndarray | None:
        try:
            return self.mine[path, number].read(path, number)
        except (OSError, Damaged) as error:  # the others wait for this part; the fingerprints will show that it is zero
            logging.warning("%s", reason(error))
            return None


def _choose(values: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the id of the copies to use and the hosts that give their parts, or the reason why there are none."""
    problems = [
        f"host {host}: {problem}" if len(values) > 1 else problem
        for host, value in enumerate(values)
        for problem in value["problems"]
    ]
    for id in sorted({offer["id"] for value in values for offer in value["offers"]}):
        parts, holders = {}, {}
        for host, value in enumerate(values):
            for offer in (offer for offer in value["offers"] if offer["id"] == id):
                parts = offer["parts"]
                for path, numbers in offer["held"].items():
                    for number in numbers:
                        holders.setdefault((path, number), []).append(host)
        every = [(path, number) for path, count in parts.items() for number in range(count)]
        if missing := [path for path, number in every if (path, number) not in holders]:
            problems.append(f"no host has part of the array {missing[0]}")
            continue
        givers: dict[str, list[int]] = {}
        for turn, (path, number) in enumerate(every):
            hosts = holders[path, number]
            givers.setdefault(path, []).append(hosts[turn % len(hosts)])
        return {"id": id, "givers": givers}
    return {"problem": "; ".join(problems) or "it is gone"}


KEPT = 2
"""Steps that every host keeps. When a host has written one, all have written the one before: that one is complete."""
HOST_NAME = re.compile(r"host_(\d{1,9})")


class LocalTier:
    """The local saves of one run on this host, and what the hosts make of all of them together.

    All hosts make one, and call `steps`, `read` and `save` together.

    Args:
      path: directory of this machine; several processes of a machine may share it.
      committed: called with the step and the seconds of each copy that has been written, by `poll` or `wait`.

    Raises:
      UserError: the directory cannot be written, or another process of the run still writes there.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        run_id: str,
        committed: Callable[[int, float], None] = lambda step, seconds: None,
    ):
        self.run_id: str = run_id
        self._home = pathlib.Path(os.path.abspath(path)) / run_id
        self._own = self._home / f"host_{jax.process_index()}"
        self._committed = committed
        self._writing: threading.Thread | None = None
        self._written: tuple[int, float] | None = None
        self._failure: str | None = None
        self._owners: list[Owner] = []
        try:
            self._own.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._directories = self._dealt()
            for directory in self._directories:
                self._owners.append(Owner(epath.Path(directory), refusal=_still_written))
                for partial in directory.glob(f"{PARTIAL}*"):
                    shutil.rmtree(partial)
        except OSError as error:
            self.close()
            raise UserError(
                f"cannot save below {path}: {error.strerror or error}; give another --checkpoint.local_path, a "
                "directory of each host's own disk"
            ) from error
        except UserError:
            self.close()
            raise

    def _dealt(self) -> list[pathlib.Path]:
        """Return the directories of this process: its own, and its share of those that no process writes any longer."""
        names = sorted(found.name for found in self._home.iterdir() if HOST_NAME.fullmatch(found.name))
        machine = f"{socket.gethostname()}:{os.path.realpath(self._home)}"
        machines = decide(machine, lambda values: values)
        here = [host for host, other in enumerate(machines) if other == machine]
        mine = []
        for name in names:
            host = int(name.removeprefix("host_"))
            if (host if host in here else here[host % len(here)]) == jax.process_index():
                mine.append(self._home / name)
        return mine

    def newest(self) -> int | None:
        """Return the newest step of which this host has a part; hosts do not meet."""
        return max((step for step, _ in self._found()), default=None)

    def steps(self) -> list[int]:
        """Return the steps of which any host has a part."""
        mine = sorted({step for step, _ in self._found()})
        return decide(mine, lambda values: sorted({step for found in values for step in found}))

    def _found(self) -> list[tuple[int, pathlib.Path]]:
        return _copies(self._directories)

    def save(self, step: int, state: Any, *, position: dict[str, Any], config: dict[str, Any]) -> None:
        """Copy what this host's devices hold of `state`, and write it in the background.

        A copy that cannot be written is reported as a warning: the run has its other saves.
        """
        self.wait()
        record = make_record(step, state, position, config, None, self.run_id)
        leaves = leaf_paths(state)
        boxes = {path: layout(leaf) for path, leaf in leaves.items()}
        self._writing = threading.Thread(
            target=self._write, args=(step, record, boxes, held(leaves), time.monotonic()), name="local_tier"
        )
        self._writing.start()

    def _write(
        self, step: int, record: dict[str, Any], boxes: dict[str, Any], parts: dict[str, Any], begun: float
    ) -> None:
        directory = self._own / STEP_NAMES.build_name(step)
        try:
            if directory.exists():  # of an earlier start that came this far
                shutil.rmtree(directory)
            write_copy(directory, record, boxes, parts)
            kept = sorted({found for found, _ in self._found()})[-KEPT:]
            self._remove(lambda found: found not in kept)
            self._written = step, time.monotonic() - begun
        except OSError as error:
            self._failure = f"step {step} was not saved to {self._own}: {error.strerror or error}"

    def poll(self) -> None:
        """Report a copy that has been written; cheap enough to call at every step."""
        if self._writing is not None and not self._writing.is_alive():
            self.wait()

    def wait(self) -> None:
        """Block until the copy that is being written is complete, or has failed, and report it."""
        if self._writing is not None:
            self._writing.join()
            self._writing = None
        if self._written is not None:
            written, self._written = self._written, None
            self._committed(*written)
        if self._failure is not None:
            logging.warning(
                "%s; the run continues, and the saves in the work directory are not affected", self._failure
            )
            self._failure = None

    def read(self, step: int, abstract: Any) -> Restored:
        """Return one step in the shape of `abstract`, whose leaves have shardings; see `steps.Tier`."""
        copies, problems = self._open(step)
        assembly = Assembly.of(copies, problems)
        content = assembly.content
        check_fit(content, abstract, f"the local save of step {step}")
        state = assembly.arrays(abstract)
        check_unchanged(content, state)
        return Restored(step, state, content["position"], content["config"], None)

    def _open(self, step: int) -> tuple[list[LocalCopy], list[str]]:
        copies, problems = [], []
        for found, directory in self._found():
            if found == step:
                try:
                    copies.append(open_copy(directory, step, self.run_id))
                except Exception as error:  # a damaged record provokes anything; the other hosts get to know
                    problems.append(reason(error))
        return copies, problems

    def settle(self, refused: dict[int, str], restored: Restored | None) -> None:
        """Report the steps that could not be used, and remove them and all that a run from `restored` makes again."""
        start = 0 if restored is None else restored.step
        for step, problem in refused.items():
            logging.warning("the local copies of step %d cannot be used (%s); step %d is used", step, problem, start)
        self._remove(lambda step: step > start or step in refused)

    def discard_after(self, step: int) -> None:
        """Delete the later steps of this host."""
        self.wait()
        self._remove(lambda later: later > step)

    def _remove(self, unwanted: Any) -> None:
        for step, directory in self._found():
            if unwanted(step):
                shutil.rmtree(directory, ignore_errors=True)

    def clear(self) -> None:
        """Remove the saves of this host, which a finished run no longer needs."""
        self.wait()
        for directory in self._directories:
            shutil.rmtree(directory, ignore_errors=True)
        with contextlib.suppress(OSError):  # other processes of this machine may not have come this far
            self._home.rmdir()

    def close(self) -> None:
        """Wait for the copy that is being written, and let another process write here."""
        self.wait()
        while self._owners:
            self._owners.pop().release()


def has_copies(path: str | os.PathLike[str], run_id: str) -> bool:
    """Return whether this machine has local saves of a run; hosts do not meet."""
    home = pathlib.Path(path) / run_id
    return home.is_dir() and bool(_copies(sorted(home.glob("host_*"))))


def _copies(directories: list[pathlib.Path]) -> list[tuple[int, pathlib.Path]]:
    """Return the steps in some directories of hosts, with the directory of each."""
    found = []
    for directory in directories:
        for entry in sorted(directory.glob("step_*")):
            if re.fullmatch(r"step_[0-9]{9,18}", entry.name):
                found.append((int(entry.name.removeprefix("step_")), entry))
    return found


def _still_written(directory: epath.Path, facts: dict[str, Any]) -> UserError:
    return UserError(
        f"{directory} is being written by process {facts.get('pid', '?')} on {facts.get('host', '?')} since "
        f"{facts.get('since', '?')}, which belongs to an earlier start of this run; wait for it, or stop it"
    )
