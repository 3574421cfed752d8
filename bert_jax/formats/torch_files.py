"""Files of named arrays that torch has saved (`pytorch_model.bin`), read without running anything that is in them.

Such a file is a zip archive of a pickle and of the bytes of every storage, a stretch of memory in which one or more
arrays lie. A pickle is a program for a stack machine that can import and call whatever it names. The machine here has
the opcodes with which torch writes a dict of arrays. A name is compared with a list of names, and never looked up; a
call makes a description of an array, or an empty dict. Every number is checked against the file before it is used,
loops and recursion do not exist, and a value is never printed, hashed or compared unless it is a text or a number.
"""

import dataclasses
import io
import math
import os
import pickletools
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

from etils import epath

from bert_jax.errors import UserError
from bert_jax.files import REMEDY
from bert_jax.formats.safetensors_files import TYPES, Contents, FileTensor, local_copy, open_files, reader

FILE, INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
MAX_BYTES = 4 << 20  # of the list of records, and of the pickle; those of BERT-large have 50 kB
MAX_OPERATIONS = 1 << 19  # of the pickle; that of BERT-large has some 12,000
MAX_AXES = 32
SHARED = 4  # values of all arrays per byte of the file; a word table with two names counts twice
WITHIN_PYTHON = "python -c \"import torch; torch.save(torch.load('OLD', weights_only={}), 'NEW')\""
OLD_FORMS = (  # bytes at some position, what they mean, whether torch reads it without running it
    (0, b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "the form of torch before 1.6, a pickle", True),
    (257, b"ustar", "the form of torch before 0.1.10, a tar archive", False),
)
STORAGES = {
    "torch DoubleStorage": "F64",
    "torch FloatStorage": "F32",
    "torch HalfStorage": "F16",
    "torch BFloat16Storage": "BF16",
    "torch LongStorage": "I64",
    "torch IntStorage": "I32",
    "torch ShortStorage": "I16",
    "torch CharStorage": "I8",
    "torch ByteStorage": "U8",
    "torch BoolStorage": "BOOL",
    "torch.storage UntypedStorage": None,
}
"""Storage as a pickle names it → type of its values; None: the array says it."""
DTYPES = {
    "torch float64": "F64",
    "torch float32": "F32",
    "torch float16": "F16",
    "torch bfloat16": "BF16",
    "torch float8_e4m3fn": "F8_E4M3",
    "torch float8_e5m2": "F8_E5M2",
    "torch bool": "BOOL",
    **{f"torch int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{f"torch uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
}
DICT = "collections OrderedDict"
ARRAYS = {f"torch._utils _rebuild_tensor{version}" for version in ("", "_v2", "_v3")}
WRAPPERS = {f"torch._utils _rebuild_parameter{kind}" for kind in ("", "_with_state")}
KNOWN = {DICT, *ARRAYS, *WRAPPERS, *STORAGES, *DTYPES}
"""Every name that a pickle may have."""


def open_directory(directory: epath.Path) -> dict[str, FileTensor]:
    """Return the arrays of pytorch_model.bin, or of the files that its index names; see `open_file`."""
    return open_files(directory, FILE, INDEX, open_file)


def open_file(file: epath.Path) -> dict[str, FileTensor]:
    """Return the arrays of one file by name.

    Raises:
      UserError: the file is damaged, has one of torch's older forms, or is more than a dict of arrays.
    """
    with local_copy(file) as local:
        _check_form(local, file)
        try:
            with _Stream(local) as stream:
                archive = _Archive(stream)
                arrays = _arrays(archive)
        except ValueError as error:
            raise UserError(f"{file} {' '.join(str(error).split())[:300]}; {REMEDY}") from None
        contents = Contents(local)
    found = {}
    for name, array in arrays.items():
        start = archive.storages[array.storage.key].start + array.offset * TYPES[array.dtype].itemsize
        read = reader(contents, start, array.shape, array.dtype, array.strides)
        found[name] = FileTensor(array.shape, array.dtype, os.fspath(file), read)
    return found


def _check_form(local: str, file: epath.Path) -> None:
    """Raise a UserError if the file has one of torch's older forms; it says how to get the present one."""
    with open(local, "rb") as stream:
        start = stream.read(512)
    for position, mark, form, safe in OLD_FORMS:
        if start.startswith(mark, position):
            caution = "" if safe else "torch runs what is in such a file, so do this only if you trust its owner: "
            raise UserError(
                f"{file} has {form}, which is not read here; {caution}where torch is installed, "
                f"{WITHIN_PYTHON.format(safe)} writes the present form; put that here under the old name"
            )


class _Stream(io.FileIO):
    """A file of which only so much can be read at once as a list of records needs."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > MAX_BYTES:
            raise ValueError(f"claims a list of records of {size:,} bytes; at most {MAX_BYTES:,} are read")
        return super().read(-1 if size is None else size) or b""


@dataclasses.dataclass(frozen=True)
class _Record:
    """Where the bytes of a record lie in the file."""

    start: int
    size: int


class _Archive:
    """A zip archive as torch writes it: the pickle, and the place of every storage by its key."""

    def __init__(self, stream: _Stream):
        self.size = stream.seek(0, os.SEEK_END)
        try:
            records = zipfile.ZipFile(stream).infolist()
        except (zipfile.BadZipFile, NotImplementedError, OverflowError, ValueError, OSError, struct.error) as error:
            raise ValueError(f"is not a whole file of torch ({self.size:,} bytes): {error}") from None
        named = {record.filename: record for record in records}
        if len(named) < len(records):
            raise ValueError("is damaged: two of its records have one name")
        if sum(record.file_size for record in records) > self.size:
            raise ValueError(f"has records of more than its {self.size:,} bytes")
        pickles = [name for name in named if name.count("/") == 1 and name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise ValueError("is a zip archive, but not of torch: it has no data.pkl in a directory")
        home = pickles[0].removesuffix("data.pkl")
        order = named.get(f"{home}byteorder")
        if order is not None and self._contents(stream, order) != b"little":
            raise ValueError("was not written by a little-endian machine")
        self.program = self._contents(stream, named[pickles[0]])
        data = f"{home}data/"
        self.storages = {
            name.removeprefix(data): self._place(stream, record)
            for name, record in named.items()
            if name.startswith(data)
        }

    def _place(self, stream: _Stream, record: zipfile.ZipInfo) -> _Record:
        """Return where the bytes of a record are; the list has only the place of the header before them."""
        stored = record.compress_type == zipfile.ZIP_STORED and record.file_size == record.compress_size
        if not stored or record.flag_bits & 1:
            raise ValueError(f"has a compressed or encrypted record, {record.filename!r:.80}; torch has none")
        if not 0 <= record.header_offset < self.size:
            raise ValueError(f"has the record {record.filename!r:.80} beyond its end")
        stream.seek(record.header_offset)
        header = stream.read(30)
        if len(header) < 30 or not header.startswith(b"PK\3\4"):
            raise ValueError(f"is damaged: there is no record {record.filename!r:.80} where its list says")
        of_name, of_more = struct.unpack("<HH", header[26:])
        if stream.read(of_name) != record.orig_filename.encode("utf-8" if record.flag_bits & 0x800 else "cp437"):
            raise ValueError(f"is damaged: another record is where its list has {record.filename!r:.80}")
        start = record.header_offset + 30 + of_name + of_more
        if start + record.file_size > self.size:
            raise ValueError(f"has the record {record.filename!r:.80} beyond its end")
        return _Record(start, record.file_size)

    def _contents(self, stream: _Stream, record: zipfile.ZipInfo) -> bytes:
        """Return all bytes of a small record."""
        place = self._place(stream, record)
        if place.size > MAX_BYTES:
            raise ValueError(f"has a {record.filename!r:.80} of {place.size:,} bytes; at most {MAX_BYTES:,} are read")
        stream.seek(place.start)
        contents = stream.read(place.size)
        if record.CRC and zlib.crc32(contents) != record.CRC:  # 0 if torch was asked for none
            raise ValueError(f"is damaged: the checksum of {record.filename!r:.80} is wrong")
        return contents


@dataclasses.dataclass(frozen=True)
class _Name:
    """One of KNOWN."""

    name: str


@dataclasses.dataclass(frozen=True)
class _Storage:
    key: str
    dtype: str | None
    size: int
    """Values, or bytes if `dtype` is None."""


@dataclasses.dataclass(frozen=True)
class _Array:
    """An array in a storage: as torch describes it, in values of its type."""

    storage: _Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _arrays(archive: _Archive) -> dict[str, _Array]:
    """Return the arrays that the pickle describes, each within its storage.

    Raises:
      ValueError: it describes anything else, or is no pickle.
    """
    found = _Machine().run(archive.program)
    if type(found) is not dict or not found:
        raise ValueError("holds no dict of arrays")
    for name, array in found.items():
        if type(array) is not _Array or not name.isprintable():
            raise ValueError(f"is not a dict of named arrays alone: {name!r:.120}")
        _check_place(name, array, archive)
    if (values := sum(math.prod(array.shape) for array in found.values())) > SHARED * archive.size:
        raise ValueError(f"claims {values:,} values, which cannot be in its {archive.size:,} bytes")
    return found


def _check_place(name: str, array: _Array, archive: _Archive) -> None:
    """Raise a ValueError unless an array lies within its storage, and that is a record of its size."""
    sizes = (array.offset, *array.shape, *array.strides)
    if len(array.shape) != len(array.strides) or len(array.shape) > MAX_AXES:
        raise ValueError(f"has {len(array.shape)} sizes and {len(array.strides)} strides for {name!r:.120}")
    if not all(type(size) is int and 0 <= size < 2**62 for size in sizes):
        raise ValueError(f"has no possible sizes for {name!r:.120}")
    of_array, storage = TYPES[array.dtype].itemsize, array.storage
    claimed = storage.size * (TYPES[storage.dtype].itemsize if storage.dtype else 1)
    place = archive.storages.get(storage.key)
    if place is None or place.size != claimed:
        there = "is missing" if place is None else f"has {place.size:,} bytes instead of {claimed:,}"
        raise ValueError(f"is damaged: the storage {storage.key!r:.40} of {name!r:.120} {there}")
    reach = sum((size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True))
    if all(array.shape) and (array.offset + reach + 1) * of_array > claimed:
        raise ValueError(f"is damaged: {name!r:.120} reaches beyond its storage of {claimed:,} bytes")


class _Machine:
    """A stack, and the opcodes that change it; each takes the argument that follows it in the pickle, if any."""

    def __init__(self):
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, program: bytes) -> Any:
        """Return what the pickle leaves on the stack.

        Raises:
          ValueError: an opcode or a name that is not known here, or one that does not fit what is there.
        """
        stream = io.BytesIO(program)
        for _ in range(MAX_OPERATIONS):
            code = stream.read(1)
            if code == b".":
                return self.pop()
            if code not in OPCODES:
                raise ValueError(f"needs more than a dict of arrays does (opcode {code!r}), which is not read")
            argument, act = OPCODES[code]
            try:
                value = argument.reader(stream) if argument else None
            except ValueError as error:
                raise ValueError(f"is damaged: {error}") from None
            act(self, value)
        raise ValueError(f"describes its arrays in more than {MAX_OPERATIONS:,} operations")

    def pop(self) -> Any:
        """Return the last value, which is taken off the stack, but not beyond the last mark."""
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise ValueError("is damaged: its pickle takes what it has not made")
        return self.stack.pop()

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def mark(self, _: None) -> None:
        self.marks.append(len(self.stack))

    def since_mark(self) -> list[Any]:
        """Return everything after the last mark, which is taken off the stack with it."""
        if not self.marks:
            raise ValueError("is damaged: its pickle takes what it has not made")
        mark = self.marks.pop()
        values, self.stack[mark:] = self.stack[mark:], []
        return values

    def last(self, count: int) -> tuple[Any, ...]:
        return tuple([self.pop() for _ in range(count)][::-1])

    def name(self, name: str) -> None:
        if name not in KNOWN:
            raise ValueError(
                f"asks for {name.replace(' ', '.')!r:.120}, and nothing but arrays is read, as "
                "torch.save(model.state_dict(), …) saves them"
            )
        self.push(_Name(name))

    def name_of_two(self, _: None) -> None:
        module, name = self.last(2)
        if type(module) is not str or type(name) is not str:
            raise ValueError("is damaged: a name in it is no text")
        self.name(f"{module} {name}")

    def call(self, _: None) -> None:
        function, arguments = self.last(2)
        if type(function) is not _Name or type(arguments) is not tuple:
            raise ValueError("calls what is no function")
        if function.name == DICT and not arguments:
            self.push({})
        elif function.name in WRAPPERS and arguments and type(arguments[0]) is _Array:
            self.push(arguments[0])
        elif function.name in ARRAYS:
            self.push(_described(function.name, arguments))
        else:
            raise ValueError(f"calls {function.name.replace(' ', '.')} with other arguments than torch does")

    def storage(self, _: None) -> None:
        """Replace ("storage", type, key, device, size) by the storage."""
        match self.pop():
            case ("storage", _Name(name=kind), str() as key, str(), int() as size) if kind in STORAGES and size >= 0:
                self.push(_Storage(key, STORAGES[kind], size))
            case _:
                raise ValueError("refers to something outside that is no storage")

    def set_items(self, pairs: list[Any]) -> None:
        """Put names and values, one after the other, into the dict on the stack."""
        there = self.pop()
        if type(there) is not dict or len(pairs) % 2:
            raise ValueError("is damaged: it adds entries to what is no dict")
        for name, value in zip(pairs[::2], pairs[1::2], strict=True):
            if type(name) is not str or name in there:
                raise ValueError("has an entry with a name that is there twice, or is no text")
            there[name] = value
        self.push(there)

    def drop_attributes(self, _: None) -> None:
        """Leave out the attributes of a dict, in which torch keeps the versions of modules."""
        there, _ = self.last(2)
        if type(there) is not dict:
            raise ValueError("gives attributes to what is no dict")
        self.push(there)

    def remember(self, number: int | None) -> None:
        value = self.pop()
        self.memo[len(self.memo) if number is None else number] = value
        self.push(value)

    def recall(self, number: int) -> None:
        if number not in self.memo:
            raise ValueError("is damaged: its pickle takes what it has not made")
        self.push(self.memo[number])


def _described(function: str, arguments: tuple[Any, ...]) -> _Array:
    """Return the array that one of torch's functions would make of these arguments."""
    most = {"torch._utils _rebuild_tensor": 4, "torch._utils _rebuild_tensor_v2": 7}.get(function, 8)
    match arguments:
        case (_Storage() as storage, offset, tuple() as shape, tuple() as strides, *others):
            dtype = storage.dtype
            if most == 8:
                dtype = DTYPES.get(others[2].name) if len(others) > 2 and type(others[2]) is _Name else None
            view = arguments[most - 1] if most > 4 and len(arguments) == most else None  # conjugated or negated
            if dtype is not None and len(arguments) in (most, max(4, most - 1)) and not view:
                return _Array(storage, dtype, offset, shape, strides)
    raise ValueError("describes an array in a way that is not known here")


ACTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": lambda machine, version: None,
    "FRAME": lambda machine, size: None,
    "GLOBAL": _Machine.name,
    "STACK_GLOBAL": _Machine.name_of_two,
    "REDUCE": _Machine.call,
    "BUILD": _Machine.drop_attributes,
    "BINPERSID": _Machine.storage,
    "MARK": _Machine.mark,
    "SETITEM": lambda machine, _: machine.set_items(list(machine.last(2))),
    "SETITEMS": lambda machine, _: machine.set_items(machine.since_mark()),
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "EMPTY_TUPLE": lambda machine, _: machine.push(()),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.since_mark())),
    "TUPLE1": lambda machine, _: machine.push(machine.last(1)),
    "TUPLE2": lambda machine, _: machine.push(machine.last(2)),
    "TUPLE3": lambda machine, _: machine.push(machine.last(3)),
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    **dict.fromkeys(("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"), _Machine.push),
    **dict.fromkeys(("BINUNICODE", "SHORT_BINUNICODE"), _Machine.push),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT", "MEMOIZE"), _Machine.remember),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), _Machine.recall),
}
OPCODES = {
    opcode.code.encode("latin-1"): (opcode.arg, ACTIONS[opcode.name])
    for opcode in pickletools.opcodes
    if opcode.name in ACTIONS
}
"""Byte in a pickle → how its argument is read, and what it does."""
