"""Files in the form in which torch saves a dict of arrays, and hostile ones, written opcode by opcode."""

import pathlib
import pickle
import struct
import zipfile
from collections.abc import Iterable, Mapping

import ml_dtypes
import numpy as np

STORAGES = {
    **{"float64": "Double", "float32": "Float", "float16": "Half", "bfloat16": "BFloat16", "bool": "Bool"},
    **{"int64": "Long", "int32": "Int", "int16": "Short", "int8": "Char", "uint8": "Byte"},
}
WITHOUT_STORAGE = {"uint16": 2, "uint32": 4, "uint64": 8, "float8_e4m3fn": 1, "float8_e5m2": 1}
"""Types that have no class of storages, and their bytes."""
TYPES = {**STORAGES, **WITHOUT_STORAGE}


def dtype_of(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, name))


def name(module: str, attribute: str) -> bytes:
    return pickle.GLOBAL + f"{module}\n{attribute}\n".encode()


def text(value: str) -> bytes:
    return pickle.BINUNICODE + struct.pack("<I", len(value.encode())) + value.encode()


def number(value: int) -> bytes:
    if 0 <= value < 256:
        return pickle.BININT1 + bytes([value])
    digits = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return pickle.LONG1 + bytes([len(digits)]) + digits


def together(*parts: bytes) -> bytes:
    """A tuple."""
    return pickle.MARK + b"".join(parts) + pickle.TUPLE


EMPTY = name("collections", "OrderedDict") + pickle.EMPTY_TUPLE + pickle.REDUCE


def storage(key: str, dtype: str, values: int) -> bytes:
    """What stands for the storage of a typed array; `values` become bytes for a type that has no storages."""
    kind = name("torch", f"{STORAGES[dtype]}Storage") if dtype in STORAGES else name("torch.storage", "UntypedStorage")
    size = values * WITHOUT_STORAGE.get(dtype, 1)
    return together(text("storage"), kind, text(key), text("cpu"), number(size)) + pickle.BINPERSID


def array(
    key: str, dtype: str, values: int, shape: Iterable[int], strides: Iterable[int], offset: int = 0, form: str = "v2"
) -> bytes:
    """A call that makes an array; `form`: v1 and v2 are torch's own versions, v2 also inside of a parameter."""
    parts = [
        storage(key, dtype, values),
        number(offset),
        together(*map(number, shape)),
        together(*map(number, strides)),
    ]
    more = [pickle.NEWFALSE, EMPTY]
    if dtype in WITHOUT_STORAGE:
        call = name("torch._utils", "_rebuild_tensor_v3") + together(*parts, *more, name("torch", dtype))
    elif form == "v1":
        call = name("torch._utils", "_rebuild_tensor") + together(*parts)
    else:
        call = name("torch._utils", "_rebuild_tensor_v2") + together(*parts, *more)
    call += pickle.REDUCE
    if form == "parameter":
        call = name("torch._utils", "_rebuild_parameter") + together(call, pickle.NEWTRUE, EMPTY) + pickle.REDUCE
    return call


def program(entries: Mapping[str, bytes], start: bytes = EMPTY) -> bytes:
    """A pickle of a dict of these, with the attribute that torch gives to those of modules."""
    pairs = b"".join(text(each) + value for each, value in entries.items())
    version = pickle.EMPTY_DICT + text("version") + number(1) + pickle.SETITEM
    metadata = pickle.EMPTY_DICT + text("_metadata") + EMPTY + text("") + version + pickle.SETITEM + pickle.SETITEM
    return pickle.PROTO + b"\2" + start + pickle.MARK + pairs + pickle.SETITEMS + metadata + pickle.BUILD + pickle.STOP


def write_program(file: pathlib.Path, pickled: bytes, records: Mapping[str, bytes] = {}, compressed: bool = False):
    """An archive of any pickle and of records beside it."""
    how = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(file, "w", how) as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/byteorder", b"little")
        for key, contents in records.items():
            archive.writestr(f"archive/data/{key}", contents)
        archive.writestr("archive/version", b"3\n")


def write(file: pathlib.Path, state: Mapping[str, np.ndarray], form: str = "v2") -> pathlib.Path:
    """`state` as torch would have saved it."""
    entries = {
        each: array(str(key), value.dtype.name, value.size, value.shape, steps(value), form=form)
        for key, (each, value) in enumerate(state.items())
    }
    records = {str(key): np.ascontiguousarray(value).tobytes() for key, value in enumerate(state.values())}
    write_program(file, program(entries), records)
    return file


def steps(value: np.ndarray) -> list[int]:
    return [stride // value.itemsize for stride in np.ascontiguousarray(value).reshape(value.shape).strides]


def storages(file: pathlib.Path) -> dict[str, np.ndarray]:
    """The float32 values of every storage of a file, whatever their checksums say, as `zipfile` finds them."""
    found = {}
    with zipfile.ZipFile(file) as archive:
        for record in archive.infolist():
            if record.filename.startswith("archive/data/"):
                with archive.open(record) as contents:
                    contents._expected_crc = None
                    found[record.filename.replace("/", " ")] = np.frombuffer(contents.read(), np.float32)
    return found
