"""What the compiler said of each program, on disk, so that a plan is made from the same program at once."""

import dataclasses
import gzip
import hashlib
import json
import os
import pathlib
import zlib
from typing import Any

from bert_jax.files import cache_directory, parse_object, write_atomically

MOST_BYTES = 1 << 29  # of all programs; those that have not been used for longest go first
LONGEST = 1 << 28  # bytes of one program when it is unpacked


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompiledProgram:
    """The answer of the compiler."""

    text: str
    """The optimized and scheduled program; empty if there is none, because it did not fit."""
    buffers: str
    """Which value has which place in memory (buffer-assignment); empty if the compiler has not said."""
    live_ranges: str
    """From which instruction to which each value is kept; empty if the compiler has not said."""
    memory: dict[str, int]
    """Bytes on one device: argument, output, alias, temp, generated_code; empty if it did not fit."""
    failure: str
    """What the compiler said where the program needs more memory than there is; else empty."""
    resharding_warnings: int
    """How often the compiler said that it copies a whole array to move it between devices."""
    seconds: float
    """How long the compilation took by the clock."""
    cpu_seconds: float
    """Seconds of all processors that it took."""


def program_key(text: str, *circumstances: str) -> str:
    """Return the name of the traced program `text` compiled under `circumstances`: versions, options, machine."""
    return hashlib.sha256("\0".join((text, *circumstances)).encode()).hexdigest()


def load_program(key: str) -> CompiledProgram | None:
    """Return the stored program; None if there is none that is whole."""
    file = _directory() / f"{key}.json.gz"
    try:
        unpacker = zlib.decompressobj(wbits=31)
        contents = unpacker.decompress(file.read_bytes(), LONGEST)
        if not unpacker.eof:
            return None
        program = _program(parse_object(contents))
        os.utime(file)
    except (OSError, ValueError, zlib.error):
        return None
    return program


def store_program(key: str, program: CompiledProgram) -> None:
    """Store a program and remove the oldest if there are too many; a disk that cannot be written is no error."""
    try:
        _directory().mkdir(mode=0o700, parents=True, exist_ok=True)
        packed = gzip.compress(json.dumps(dataclasses.asdict(program)).encode(), compresslevel=6)
        write_atomically(_directory() / f"{key}.json.gz", packed)
        files = sorted(_directory().glob("*.json.gz"), key=lambda file: file.stat().st_mtime, reverse=True)
        total = 0
        for file in files:
            total += file.stat().st_size
            if total > MOST_BYTES:
                file.unlink(missing_ok=True)
    except OSError:
        pass


def _directory() -> pathlib.Path:
    return cache_directory() / "plans"


def _program(values: dict[str, Any]) -> CompiledProgram:
    """Return the program in `values`; ValueError if they are not those of one."""
    fields = {field.name: field.type for field in dataclasses.fields(CompiledProgram)}
    kinds = {str: str, int: int, float: (int, float), dict[str, int]: dict}
    if values.keys() != fields.keys() or any(not isinstance(values[name], kinds[fields[name]]) for name in fields):
        raise ValueError("is not a stored program")
    if any(not isinstance(size, int) for size in values["memory"].values()):
        raise ValueError("has sizes that are not numbers")
    return CompiledProgram(**values)
