"""The record of a checkpoint, fingerprints that do not depend on the mesh, and reading arrays one by one.

The record is one JSON object with a checksum of its own: run, step, data position, configuration, metrics, and the
shape, dtype and fingerprint of each array by path. A change of a single digit is noticed, in the record and in the
arrays.

A fingerprint is the same on every mesh and number of hosts. Every element is hashed together with its position in the
global array, and the hashes are added as wrapping integers. Integer sums commute, so the order of reduction, and
therefore the sharding, cannot change the result; a flipped bit, a zeroed block or two exchanged elements do.

Each array is read separately from the OCDBT database that Orbax writes. Orbax's restore reads them all in one event
loop and closes it when the first one fails: every other read in flight then prints a traceback, and no message names
the damaged array.
"""

import concurrent.futures
import dataclasses
import functools
import hashlib
import math
import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from etils import epath
from jax.sharding import NamedSharding, PartitionSpec

from bert_jax.devices.placement import StoredArray, empty, placed
from bert_jax.errors import UserError, first_lines
from bert_jax.files import checksum, is_remote, parse_object, read_bytes

SEEDS = (0x9E3779B1, 0x85EBCA6B)
PIECE = 1 << 18  # elements that `host_fingerprint` hashes at once: one program serves all large arrays
SMALL = 1 << 18  # elements up to which an array is sooner hashed by NumPy than a program for its shape is compiled


def leaf_paths(tree: Any) -> dict[str, Any]:
    """Return a flat view of any pytree: `params/embeddings/word/table` → leaf."""
    return {"/".join(_name(key) for key in path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _name(key: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def fingerprint(tree: Any) -> dict[str, str]:
    """Return {path: 16 hexadecimal digits} for every leaf; block until the arrays are computed."""
    leaves = leaf_paths(tree)
    # Fetched one by one: a hundred programs with collectives in flight deadlock on virtual CPU devices (jax 0.10.2).
    words = [
        _hashed_by_numpy(leaf) if _is_small(leaf) else jax.device_get(_hasher(getattr(leaf, "sharding", None))(leaf))
        for leaf in leaves.values()
    ]
    return {path: "".join(f"{int(word):08x}" for word in pair) for path, pair in zip(leaves, words, strict=True)}


def host_fingerprint(array: np.ndarray) -> str:
    """Return the 16 digits that `fingerprint` gives an array of 32-bit elements; large ones by one program for all."""
    words, sums = np.ascontiguousarray(array).reshape(-1).view(np.uint32), np.zeros(2, np.uint32)
    for start in range(0, words.size, PIECE):
        piece = words[start : start + PIECE]
        if piece.size <= PIECE // 2:  # the program takes as long as for a whole piece
            sums += _hashed_words(piece, start)
            continue
        padded = piece if piece.size == PIECE else np.pad(piece, (0, PIECE - piece.size))
        placed = jax.device_put((padded, np.uint32(start % 2**32), np.uint32(piece.size)))
        sums += jax.device_get(_piece_hash(*placed))
    return "".join(f"{int(word):08x}" for word in sums)


def stored_fingerprint(arrays: dict[str, Any]) -> str:
    """Return the SHA-256 over the values of a stored model, {path: StoredArray}, which is the same in all formats."""
    digest = hashlib.sha256()
    for path in sorted(arrays):
        array = arrays[path]
        values = np.asarray(array.read((slice(None),) * len(array.shape)), np.float32)
        digest.update(f"{path} {array.shape} {host_fingerprint(values)}\n".encode())
    return digest.hexdigest()


@jax.jit
def _piece_hash(words: jax.Array, start: jax.Array, size: jax.Array) -> jax.Array:
    """Return uint32 [2]: the hash of the first `size` of `words`, which begin at index `start` of their array."""
    index = jnp.arange(PIECE, dtype=jnp.uint32)
    hashes = (_mix(words ^ _mix(start + index + np.uint32(seed))) for seed in SEEDS)
    return jnp.stack([jnp.sum(jnp.where(index < size, each, 0), dtype=jnp.uint32) for each in hashes])


def _is_small(x: Any) -> bool:
    """Return whether each host has all of a small array: all hosts answer alike, because programs wait for all."""
    sharding = getattr(x, "sharding", None)
    return np.size(x) <= SMALL and (sharding is None or jax.process_count() == 1 or sharding.is_fully_replicated)


def _hashed_by_numpy(x: Any) -> np.ndarray:
    """Return what `hashed` returns."""
    if hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    values = jax.device_get(x.addressable_data(0) if getattr(x, "is_fully_replicated", False) else jnp.asarray(x))
    unsigned = {1: np.uint8, 2: np.uint16}.get(values.dtype.itemsize, np.uint32)
    return _hashed_words(np.ascontiguousarray(values).reshape(-1).view(unsigned).astype(np.uint32))


def _hashed_words(words: np.ndarray, start: int = 0) -> np.ndarray:
    """Return uint32 [2]: the hash of `words`, which begin at index `start` of their array."""
    position = np.arange(words.size, dtype=np.uint32) + np.uint32(start % 2**32)
    return np.array([_mix(words ^ _mix(position + np.uint32(seed))).sum(dtype=np.uint32) for seed in SEEDS])


@functools.cache
def _hasher(sharding: Any):
    """Return one program per sharding: leaves of equal shape (a parameter and its two moments) share a compilation."""
    if isinstance(sharding, NamedSharding):  # replicated, so that every host can read it
        return jax.jit(hashed, out_shardings=NamedSharding(sharding.mesh, PartitionSpec()))
    return jax.jit(hashed)


def hashed(x: Any) -> jax.Array:
    """Return uint32 [2] for one array: one number per seed, of its values and where they are in it."""
    words = _words(jnp.asarray(x))
    position, stride = jnp.zeros(words.shape, jnp.uint32), 1
    for axis in reversed(range(words.ndim)):
        position += jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis) * np.uint32(stride % 2**32)
        stride *= words.shape[axis]
    return jnp.stack([jnp.sum(_mix(words ^ _mix(position + np.uint32(seed))), dtype=jnp.uint32) for seed in SEEDS])


def _words(x: jax.Array) -> jax.Array:
    """Return the bits of `x` as uint32; 64-bit elements become two words on a new last axis."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    if x.dtype == jnp.bool_:
        return x.astype(jnp.uint32)
    unsigned = {1: jnp.uint8, 2: jnp.uint16}.get(x.dtype.itemsize, jnp.uint32)
    return jax.lax.bitcast_convert_type(x, unsigned).astype(jnp.uint32)


def _mix(h: Any) -> Any:
    """Return the finalizer of MurmurHash3 (Appleby, public domain): every input bit changes half of the output bits."""
    h = (h ^ (h >> 16)) * np.uint32(0x85EBCA6B)
    h = (h ^ (h >> 13)) * np.uint32(0xC2B2AE35)
    return h ^ (h >> 16)


class Span(NamedTuple):
    """Positions of a phase that a run has skipped after a rollback."""

    phase: int
    begin: int
    end: int
    """The first position behind the span."""


@dataclasses.dataclass(frozen=True)
class Position:
    """The phase of a run, its place in the examples of that phase, and what it has skipped."""

    phase: int = 0
    examples_seen: int = 0
    """Position of the next example of the phase; those of skipped spans before it count."""
    skipped: tuple[Span, ...] = ()
    """One span per rollback, in the order of the rollbacks."""
    guard: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Memory of the guard of the phase about earlier steps; see `Guard.memory`."""

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> "Position":
        """Return what `to_dict` saved."""
        skipped = tuple(Span(*map(int, span)) for span in saved.get("skipped", ()))
        return cls(saved["phase"], saved["examples_seen"], skipped, saved.get("guard", {}))

    def to_dict(self) -> dict[str, Any]:
        """Return the position as JSON can represent it, without what is empty."""
        optional = {"skipped": [list(span) for span in self.skipped], "guard": self.guard}
        return {"phase": self.phase, "examples_seen": self.examples_seen} | {
            name: value for name, value in optional.items() if value
        }

    def seen_in(self, phase: int) -> int:
        """Return the position of the next example of `phase`, this one or a later one: behind spans that begin there.

        A span begins where a checkpoint was restored. So only a start can come to its beginning, and no batch within a
        phase has a gap.
        """
        seen = self.examples_seen if phase == self.phase else 0
        for span in sorted(self.skipped):
            if span.phase == phase and span.begin <= seen < span.end:
                seen = span.end
        return seen

    @property
    def trained(self) -> int:
        """Number of examples of the phase that the state has learned from: those before its position, without spans."""
        trained = left = 0
        for span in sorted(span for span in self.skipped if span.phase == self.phase):
            trained += max(0, min(span.begin, self.examples_seen) - left)
            left = max(left, span.end)
        return trained + max(0, self.examples_seen - left)

    def guard_of(self, phase: int) -> dict[str, Any]:
        """Return what the guard of `phase` remembers: nothing, if that phase has not begun."""
        return self.guard if phase == self.phase else {}


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
        stored = parse_object(read_bytes(directory / "metadata"))
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


def rank(content: dict[str, Any], metric: str | Sequence[str]) -> tuple[int, float] | None:
    """Return the rank of a checkpoint, lowest for the best; None without a finite held-out loss of this name.

    `metric` is its name, or that of each phase. Losses are comparable only within a phase, because a different sequence
    length is a different test. So the steps of a later phase come first.
    """
    phase = content["position"].get("phase", 0)
    name = metric if isinstance(metric, str) else next(iter(metric[phase:]), "")
    loss = (content["metrics"] or {}).get(name, math.nan)
    return (-phase, loss) if math.isfinite(loss) else None


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


READERS = 4  # arrays at a time: enough to hide the latency of a remote store, few enough for the memory of a host


def check_files(state: epath.Path) -> None:
    """Raise Damaged if a local directory has anything but files, such as a pipe, for whose end a read would wait."""
    if is_remote(state):
        return
    for place, _, names in os.walk(state):
        for name in names:
            path = os.path.join(place, name)
            if os.path.exists(path) and not os.path.isfile(path):
                raise Damaged(f"{path} is not a regular file")


def open_array(state: epath.Path, path: str) -> StoredArray:
    """Return one array of the directory `state`; Orbax joins the parts of a name with dots.

    Raises:
      Damaged: there is no such array, or it cannot be read; reading it later may raise this, too.
    """
    import tensorstore

    place = os.fspath(state) + "/"
    base = place if is_remote(place) else {"driver": "file", "path": place}
    store = {"driver": "ocdbt", "base": base, "path": path.replace("/", ".") + "/"}

    def finished(future: Any):
        try:
            return future.result()
        except (ValueError, OSError) as error:  # its text is a page that may begin with a status such as DATA_LOSS
            logging.info("%s: %s", path, error)
            status = re.match("[A-Z_]+(?=: )", str(error))
            raise Damaged(f"the array {path} cannot be read" + (f" ({status[0]})" if status else "")) from None

    array = finished(tensorstore.open({"driver": "auto", "kvstore": store}, open=True, read=True))

    def read(index: Any):
        part = array[index]
        values = empty(part.shape, part.dtype.numpy_dtype)
        values[...] = finished(part.read())
        return values

    return StoredArray(tuple(array.shape), np.dtype(array.dtype.numpy_dtype), read)


def read_arrays(state: epath.Path, abstract: Any) -> Any:
    """Return the arrays for `abstract`, a pytree of ShapeDtypeStructs with shardings; each device reads its part.

    Raises:
      Damaged: an array cannot be read, or has a different shape or type.
    """

    def read(path: Any, leaf: Any):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        array = open_array(state, name)
        if (array.shape, array.dtype) != (leaf.shape, leaf.dtype):
            raise Damaged(f"the array {name} is {array.dtype}{list(array.shape)}, not {leaf.dtype}{list(leaf.shape)}")
        return placed(leaf.shape, leaf.sharding, array.read, leaf.dtype)

    check_files(state)
    leaves, structure = jax.tree_util.tree_flatten_with_path(abstract)
    with concurrent.futures.ThreadPoolExecutor(READERS) as readers:
        return structure.unflatten(readers.map(lambda pair: read(*pair), leaves))
