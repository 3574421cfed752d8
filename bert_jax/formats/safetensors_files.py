"""Files of named arrays in the safetensors format: opened lazily, checked before allocation, written as a stream.

The safetensors library checks offsets, sizes and types of a header; what it accepts (duplicate names, an index that
points elsewhere) is checked here, and its errors are rewritten to name the file.
"""

import collections
import contextlib
import dataclasses
import json
import math
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import safetensors
from etils import epath

from bert_jax.devices.placement import empty
from bert_jax.errors import UserError
from bert_jax.files import is_remote, read_object

FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_HEADER_BYTES = 16 << 20  # that of BERT-large has 50 kB; a parsed header takes some twenty times its size
FLOATS = {"F64": np.dtype("<f8"), "F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(ml_dtypes.bfloat16)}
AWAY = "fetch the file again, or have its owner save the model again"


@dataclasses.dataclass(frozen=True)
class FileTensor:
    """An array of a file. Nothing is read until `read` is called."""

    shape: tuple[int, ...]
    dtype: str
    """Type as the format spells it: F32, F16, BF16, F64; I64 and others are listed but cannot be read."""
    file: str
    read: Callable[[tuple[slice, ...]], np.ndarray]
    """Returns the values of the part that an index names, with a slice for each axis, as float32."""

    def parts(self, count: int, turns: int = 1) -> list["FileTensor"]:
        """Return the arrays of which this one is made: one after the other along the first axis, so many times."""
        rows = self.shape[0] // (count * turns)  # of a part in a turn

        def part(number: int) -> FileTensor:
            def read(index: tuple[slice, ...]) -> np.ndarray:
                start, stop, step = index[0].indices(rows * turns)
                pieces = []
                for turn in range(start // rows, max(-(-stop // rows), start // rows + 1)):
                    begin, shift = (turn * count + number) * rows, turn * rows
                    inside = slice(begin + max(start - shift, 0), begin + min(stop - shift, rows))
                    pieces.append(self.read((inside, *index[1:])))
                return (np.concatenate(pieces) if len(pieces) > 1 else pieces[0])[::step]

            return dataclasses.replace(self, shape=(rows * turns, *self.shape[1:]), read=read)

        return [part(number) for number in range(count)]


def open_directory(directory: epath.Path) -> dict[str, FileTensor]:
    """Return the arrays of model.safetensors, or of the files that model.safetensors.index.json names.

    Raises:
      UserError: neither file exists, one is damaged, or the index names a file elsewhere or an array that does not
        exist.
    """
    if (directory / FILE).exists():
        return open_file(inside(directory, FILE))
    if not (directory / INDEX).exists():
        raise UserError(f"{directory} has neither {FILE} nor {INDEX}")
    places = _read_index(inside(directory, INDEX))
    shards = {name: open_file(inside(directory, name)) for name in sorted(set(places.values()))}
    for tensor, name in places.items():
        if tensor not in shards[name]:
            raise UserError(f"{directory / INDEX} says that {tensor} is in {name}, but it is not; {AWAY}")
    return {tensor: shards[name][tensor] for tensor, name in places.items()}


def inside(directory: epath.Path, name: str) -> epath.Path:
    """Return directory/name if it is a plain file there: no way up, and no link that leads out.

    The cache of the Hugging Face hub is allowed, whose snapshots are links to the blobs next to them.
    """
    file = directory / name
    if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise UserError(
            f"{directory} refers to a file named {name!r:.80}: only files in the directory itself are opened"
        )
    if is_remote(directory):
        return file
    home, target = os.path.realpath(directory), os.path.realpath(file)
    blobs = os.path.join(os.path.dirname(os.path.dirname(home)), "blobs")
    allowed = [home, blobs] if os.path.basename(os.path.dirname(home)) == "snapshots" else [home]
    if os.path.dirname(target) not in allowed:
        raise UserError(f"{file} is a link to {target}, outside its directory; copy the file there if that is intended")
    if not os.path.isfile(target):
        raise UserError(f"{file} is missing or is not a file; {AWAY}")
    return file


def open_file(file: epath.Path) -> dict[str, FileTensor]:
    """Return the arrays of one file by name; raise a UserError if its header is wrong."""
    with _local(file) as local:
        (names, header, start), size = _header(local, file), os.path.getsize(local)
        try:
            with safetensors.safe_open(local, framework="numpy") as handle:
                parts = {name: handle.get_slice(name) for name in handle.keys()}
                kinds = {name: (tuple(part.get_shape()), part.get_dtype()) for name, part in parts.items()}
        except (safetensors.SafetensorError, OSError) as error:
            reason = str(error).removeprefix("Error while deserializing header: ")[:200]
            raise UserError(f"{file} is not a whole safetensors file ({size:,} bytes): {reason}; {AWAY}") from None
        contents = _Contents(local)
    repeated = [name for name, count in collections.Counter(names).items() if count > 1]
    if repeated:
        raise UserError(
            f"{file} is damaged: its header names {repeated[0]!r:.120} {names.count(repeated[0])} times; {AWAY}"
        )
    begins = {name: start + header[name]["data_offsets"][0] for name in kinds}
    return {
        name: FileTensor(shape, dtype, os.fspath(file), _reader(contents, begins[name], shape, dtype))
        for name, (shape, dtype) in kinds.items()
    }


class _Contents:
    """An open file, closed when nobody reads from it any more; survives the deletion of the copy of a remote file.

    It is not memory-mapped: mapped pages would count as memory of the process.
    """

    def __init__(self, path: str):
        self._path, self._descriptor = path, os.open(path, os.O_RDONLY)

    def __del__(self):
        os.close(self._descriptor)

    def read(self, start: int, values: np.ndarray) -> None:
        """Fill `values`, which is contiguous, with the bytes from position `start` on."""
        left = memoryview(values.reshape(-1).view(np.uint8).data)
        while left:
            count = os.preadv(self._descriptor, [left], start)
            if not count:
                raise UserError(f"{self._path} has become shorter while it was being read; {AWAY}")
            left, start = left[count:], start + count


def _reader(
    contents: _Contents, start: int, shape: tuple[int, ...], dtype: str
) -> Callable[[tuple[slice, ...]], np.ndarray]:
    """Return a function that reads the rows that an index names and cuts the other axes afterwards."""

    def read(index: tuple[slice, ...]) -> np.ndarray:
        first, stop, step = index[0].indices(shape[0]) if shape else (0, 1, 1)
        values = empty((max(0, stop - first), *shape[1:]), FLOATS[dtype])
        contents.read(start + first * math.prod(shape[1:]) * values.itemsize, values)
        return np.ascontiguousarray(
            values[(slice(None, None, step), *index[1:])] if shape else values[0], dtype=np.float32
        )

    return read


def _header(local: str, file: epath.Path) -> tuple[list[str], dict[str, Any], int]:
    """Return the names in a header in order, with duplicates; the header; and where the arrays begin.

    All of them are empty if the library will report an error.
    """
    with open(local, "rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if length > max(0, os.path.getsize(local) - 8):
            raise UserError(
                f"{file} is not a whole safetensors file: its header claims {length:,} bytes, but the file has "
                f"{os.path.getsize(local):,}; {AWAY}"
            )
        if length > MAX_HEADER_BYTES:
            raise UserError(
                f"{file} has a header of {length:,} bytes; at most {MAX_HEADER_BYTES:,} are read, and BERT-large "
                f"needs 50,000; {AWAY}"
            )
        header = stream.read(length)
    names = []

    def collect(pairs: Any):  # called for the inner objects first, so the last call is for the header itself
        names[:] = [name for name, _ in pairs]

    try:
        json.loads(header, object_pairs_hook=collect)
        return names, json.loads(header), 8 + length
    except (ValueError, RecursionError):
        return [], {}, 0


@contextlib.contextmanager
def _local(file: epath.Path) -> Iterator[str]:
    """Yield a local path with the contents of `file`: the library only reads local files, so others are copied.

    The copy is deleted at the end, but remains readable to those who have opened it.
    """
    if not is_remote(file):
        if not os.path.isfile(file):  # to open a pipe would be to wait for its other end
            raise UserError(f"{file} is missing or is not a file; {AWAY}")
        yield os.fspath(file)
        return
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as copy:
        with file.open("rb") as stream:
            shutil.copyfileobj(stream, copy, 16 << 20)
        copy.flush()
        yield copy.name


def _read_index(file: epath.Path) -> dict[str, str]:
    """Return the weight_map of an index: array → file name."""
    places = read_object(file, AWAY).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(name, str) for name in places.values()):
        raise UserError(f'{file} must hold an object "weight_map" from names of arrays to names of files; {AWAY}')
    return places


def write_file(file: epath.Path, arrays: dict[str, tuple[tuple[int, ...], Callable[[], np.ndarray]]]) -> Iterator[str]:
    """Write float32 arrays one after the other, so that only one is in memory; yield each name once it is written.

    `arrays`: name → (shape, function that reads it). transformers expects the entry "format": "pt".
    """
    header: dict[str, dict[str, Any]] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (shape, _) in arrays.items():
        size = 4 * int(np.prod(shape, dtype=np.int64))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # readers map the arrays in place, which needs aligned addresses
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for name, (shape, read) in arrays.items():
            values = np.ascontiguousarray(read(), dtype="<f4")
            if values.shape != tuple(shape):
                raise ValueError(f"{name} was announced as {shape} but is {values.shape}")
            stream.write(values.data)
            yield name
        if not is_remote(file):
            stream.flush()
            os.fsync(stream.fileno())  # the directory may be renamed before the bytes reach the disk
