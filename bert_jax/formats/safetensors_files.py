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
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import safetensors
from etils import epath

from bert_jax.devices.placement import empty
from bert_jax.errors import UserError
from bert_jax.files import REMEDY, inside, is_remote, read_object

FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
ADAPTER = "adapter_model.safetensors"  # the file of PEFT (formats/peft.py)
MAX_HEADER_BYTES = 16 << 20  # that of BERT-large has 50 kB; a parsed header takes some twenty times its size
FLOATS = {"F64": np.dtype("<f8"), "F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(ml_dtypes.bfloat16)}
"""Types of parameters."""
TYPES = FLOATS | {
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "BOOL": np.dtype(bool),
    **{f"{kind}{8 * size}": np.dtype(f"<{kind.lower()}{size}") for kind in "IU" for size in (1, 2, 4, 8)},
}
"""All that can be read. Numbers of eight bits have scales of their own somewhere, so no model here is made of them."""


@dataclasses.dataclass(frozen=True)
class FileTensor:
    """An array of a file. Nothing is read until `read` is called."""

    shape: tuple[int, ...]
    dtype: str
    """Type as safetensors spells it: a key of TYPES, or another, which is listed but cannot be read."""
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
    """Return the arrays of model.safetensors, or of the files that its index names; see `open_files`."""
    return open_files(directory, FILE, INDEX, open_file)


def open_files(
    directory: epath.Path, file: str, index: str, open_one: Callable[[epath.Path], dict[str, FileTensor]]
) -> dict[str, FileTensor]:
    """Return the arrays of a file of any format, or, without it, of the files that an index names.

    Raises:
      UserError: a file is missing or damaged, or the index names a file elsewhere or an array that does not exist.
    """
    if (directory / file).exists():
        return open_one(inside(directory, file))
    places = _read_index(inside(directory, index))
    shards = {name: open_one(inside(directory, name)) for name in sorted(set(places.values()))}
    for tensor, name in places.items():
        if tensor not in shards[name]:
            raise UserError(f"{directory / index} says that {tensor} is in {name}, but it is not; {REMEDY}")
    return {tensor: shards[name][tensor] for tensor, name in places.items()}


def open_file(file: epath.Path) -> dict[str, FileTensor]:
    """Return the arrays of one file by name; raise a UserError if its header is wrong."""
    with local_copy(file) as local:
        (names, header, start), size = _header(local, file), os.path.getsize(local)
        try:
            with safetensors.safe_open(local, framework="numpy") as handle:
                parts = {name: handle.get_slice(name) for name in handle.keys()}
                kinds = {name: (tuple(part.get_shape()), part.get_dtype()) for name, part in parts.items()}
        except (safetensors.SafetensorError, OSError) as error:
            reason = str(error).removeprefix("Error while deserializing header: ")[:200]
            raise UserError(f"{file} is not a whole safetensors file ({size:,} bytes): {reason}; {REMEDY}") from None
        contents = Contents(local)
    repeated = [name for name, count in collections.Counter(names).items() if count > 1]
    if repeated:
        raise UserError(
            f"{file} is damaged: its header names {repeated[0]!r:.120} {names.count(repeated[0])} times; {REMEDY}"
        )
    begins = {name: start + header[name]["data_offsets"][0] for name in kinds}
    return {
        name: FileTensor(shape, dtype, os.fspath(file), reader(contents, begins[name], shape, dtype))
        for name, (shape, dtype) in kinds.items()
    }


class Contents:
    """An open file, closed when nobody reads from it any more; survives the deletion of the copy of a remote file.

    It is not memory-mapped: mapped pages would count as memory of the process.
    """

    def __init__(self, path: str):
        self._path, self._descriptor = path, os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)  # __del__ would find no `os` at the end of the interpreter

    def read(self, start: int, values: np.ndarray) -> None:
        """Fill `values`, which is contiguous, with the bytes from position `start` on."""
        left = memoryview(values.reshape(-1).view(np.uint8).data)
        while left:
            count = os.preadv(self._descriptor, [left], start)
            if not count:
                raise UserError(f"{self._path} has become shorter while it was being read; {REMEDY}")
            left, start = left[count:], start + count


def reader(
    contents: Contents, start: int, shape: tuple[int, ...], dtype: str, strides: tuple[int, ...] | None = None
) -> Callable[[tuple[slice, ...]], np.ndarray]:
    """Return a function that reads the rows that an index names and cuts the other axes afterwards.

    `strides`: values from one index of an axis to the next; None: one row follows the other.
    """
    apart = strides or tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))

    def read(index: tuple[slice, ...]) -> np.ndarray:
        first, stop, step = index[0].indices(shape[0]) if shape else (0, 1, 1)
        sizes = (max(0, stop - first), *shape[1:]) if shape else ()
        reach = 1 + sum((size - 1) * stride for size, stride in zip(sizes, apart, strict=True)) if all(sizes) else 0
        values = empty((reach,), TYPES[dtype])
        contents.read(start + (first * apart[0] if shape else 0) * values.itemsize, values)
        if not shape:
            return values.astype(np.float32).reshape(())
        memory = values.view(np.uint8).data
        rows = np.ndarray(sizes, values.dtype, memory, strides=[stride * values.itemsize for stride in apart])
        return np.ascontiguousarray(rows[(slice(None, None, step), *index[1:])], dtype=np.float32)

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
                f"{os.path.getsize(local):,}; {REMEDY}"
            )
        if length > MAX_HEADER_BYTES:
            raise UserError(
                f"{file} has a header of {length:,} bytes; at most {MAX_HEADER_BYTES:,} are read, and BERT-large "
                f"needs 50,000; {REMEDY}"
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
def local_copy(file: epath.Path) -> Iterator[str]:
    """Yield a local path with the contents of `file`: the library only reads local files, so others are copied.

    The copy is deleted at the end, but remains readable to those who have opened it.
    """
    if not is_remote(file):
        if not os.path.isfile(file):  # to open a pipe would be to wait for its other end
            raise UserError(f"{file} is missing or is not a file; {REMEDY}")
        yield os.fspath(file)
        return
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as copy:
        with file.open("rb") as stream:
            shutil.copyfileobj(stream, copy, 16 << 20)
        copy.flush()
        yield copy.name


def _read_index(file: epath.Path) -> dict[str, str]:
    """Return the weight_map of an index: array → file name."""
    places = read_object(file, REMEDY).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(name, str) for name in places.values()):
        raise UserError(f'{file} must hold an object "weight_map" from names of arrays to names of files; {REMEDY}')
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
