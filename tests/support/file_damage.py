"""Ways to damage a file, drawn from a seeded generator: bytes, structure of JSON, and the file as a whole."""

import json
import os
import pathlib
import shutil

import numpy as np

DEEP = "[" * 100_000
VALUES = (
    "1e400",
    "-1e400",
    "1" + "0" * 5_000,
    "1" + "0" * 400,
    *"-9223372036854775809 4294967296 NaN Infinity -1 0 3 0.5 1e-7 true false null".split(),
    *('""', '"\\ud800"', '"\\u0000"', '"../../x"', '"two\\nlines"'),
    '"' + "x" * 100_000 + '"',
    *("[]", "{}", "[null]", "[[1]]", '{"a": {}}'),
    DEEP,
    DEEP + "]" * 100_000,
)
"""JSON texts that a reader may not expect where they stand."""
PLACEHOLDER = "@@value@@"


_BYTES = {  # what a second number is drawn from, and what becomes of the contents at a place
    "bit": ((0, 8), lambda data, at, bit: data[:at] + bytes(b ^ 1 << bit for b in data[at : at + 1]) + data[at + 1 :]),
    "replaced": ((0, 256), lambda data, at, byte: data[:at] + bytes([byte]) + data[at + 1 :]),
    "inserted": ((0, 256), lambda data, at, byte: data[:at] + bytes([byte]) + data[at:]),
    "deleted": (None, lambda data, at, _: data[:at] + data[at + 1 :]),
    "cut": (None, lambda data, at, _: data[:at]),
    "zeroed": ((2, 65), lambda data, at, size: data[:at] + bytes(len(data[at : at + size])) + data[at + size :]),
    "repeated": ((2, 65), lambda data, at, size: data[: at + size] + data[at:]),
}


def damage(file: pathlib.Path, random: np.random.Generator) -> str:
    """Damages `file` in one way, and returns which."""
    contents = file.read_bytes()
    kinds = [*[*_BYTES][:4] * 2, *[*_BYTES][4:], _empty, _missing, _directory, _pipe, _device]
    if _json_lines(contents):
        kinds += [_value] * 8 + [_no_key, _key_twice]
    kind = kinds[random.integers(len(kinds))]
    if kind not in _BYTES:
        return f"{kind.__name__[1:]} {kind(file, contents, random)}"
    drawn, changed = _BYTES[kind]
    at = int(random.integers(max(1, len(contents))))
    number = int(random.integers(*drawn)) if drawn else 0
    file.write_bytes(changed(contents, at, number))
    return f"{kind} at byte {at}, {number}"


def _empty(file, contents, random) -> str:
    file.write_bytes(b"")
    return ""


def _missing(file, contents, random) -> str:
    file.unlink()
    return ""


def _directory(file, contents, random) -> str:
    file.unlink()
    file.mkdir()
    return ""


def _pipe(file, contents, random) -> str:
    file.unlink()
    os.mkfifo(file)
    return ""


def _device(file, contents, random) -> str:
    file.unlink()
    file.symlink_to("/dev/zero")
    return ""


def restore(file: pathlib.Path, contents: bytes) -> None:
    """Undoes whatever `damage` did."""
    if file.is_dir():
        shutil.rmtree(file)
    file.write_bytes(contents)


def _json_lines(contents: bytes) -> list:
    """The JSON objects of a file, one for each line of a .jsonl; [] if it holds anything else."""
    for texts in ([contents], contents.splitlines()):
        try:
            values = [json.loads(text) for text in texts]
        except ValueError:
            continue
        return values if all(isinstance(value, dict) and value for value in values) else []
    return []


def _places(value, path=()) -> list[tuple]:
    """Paths of everything in nested JSON."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, child in children for place in _places(child, (*path, key)))]


def _value(file, contents, random) -> str:
    objects = _json_lines(contents)
    which = int(random.integers(len(objects)))
    places, new = _places(objects[which]), VALUES[random.integers(len(VALUES))]
    place = places[random.integers(len(places))]
    if not place:
        objects[which] = PLACEHOLDER
    else:
        _parent(objects[which], place)[place[-1]] = PLACEHOLDER
    file.write_text("\n".join(json.dumps(value).replace(json.dumps(PLACEHOLDER), new) for value in objects) + "\n")
    return f"{which}:{'.'.join(map(str, place))} is {new[:20]}"


def _no_key(file, contents, random) -> str:
    objects, which, place = _key(contents, random)
    del _parent(objects[which], place)[place[-1]]
    file.write_text("\n".join(map(json.dumps, objects)) + "\n")
    return f"{which}:{'.'.join(map(str, place))}"


def _key_twice(file, contents, random) -> str:
    objects, which, place = _key(contents, random)
    name = json.dumps(place[-1])
    _parent(objects[which], place)[PLACEHOLDER] = 7
    file.write_text("\n".join(map(json.dumps, objects)).replace(json.dumps(PLACEHOLDER), name) + "\n")
    return f"{which}:{'.'.join(map(str, place))}"


def _key(contents: bytes, random) -> tuple[list, int, tuple]:
    objects = _json_lines(contents)
    which = int(random.integers(len(objects)))
    places = [place for place in _places(objects[which]) if place and isinstance(place[-1], str)]
    return objects, which, places[random.integers(len(places))]


def _parent(value, place: tuple):
    for key in place[:-1]:
        value = value[key]
    return value
