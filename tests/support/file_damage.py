"""Ways to damage a file, drawn from a seeded generator: bytes, structure of JSON, and the file as a whole."""

import json
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


def damage(file: pathlib.Path, random: np.random.Generator) -> str:
    """Damages `file` in one way, and returns which."""
    contents = file.read_bytes()
    kinds = [
        *(_bit, _replaced, _inserted, _deleted, _bit, _replaced, _inserted, _deleted, _cut, _zeroed, _repeated, _empty),
        *(_missing, _directory),
    ]
    if _json_lines(contents):
        kinds += [_value] * 8 + [_no_key, _key_twice]
    kind = kinds[random.integers(len(kinds))]
    return f"{kind.__name__[1:]} {kind(file, contents, random)}"


def _place(contents: bytes, random) -> int:
    return int(random.integers(max(1, len(contents))))


def _bit(file, contents, random) -> str:
    at, bit = _place(contents, random), int(random.integers(8))
    file.write_bytes(contents[:at] + bytes(byte ^ 1 << bit for byte in contents[at : at + 1]) + contents[at + 1 :])
    return f"{bit} of byte {at}"


def _replaced(file, contents, random) -> str:
    at, byte = _place(contents, random), int(random.integers(256))
    file.write_bytes(contents[:at] + bytes([byte]) + contents[at + 1 :])
    return f"byte {at} by {byte}"


def _inserted(file, contents, random) -> str:
    at, byte = _place(contents, random), int(random.integers(256))
    file.write_bytes(contents[:at] + bytes([byte]) + contents[at:])
    return f"{byte} before byte {at}"


def _deleted(file, contents, random) -> str:
    at = _place(contents, random)
    file.write_bytes(contents[:at] + contents[at + 1 :])
    return f"byte {at}"


def _cut(file, contents, random) -> str:
    at = _place(contents, random)
    file.write_bytes(contents[:at])
    return f"at byte {at}"


def _zeroed(file, contents, random) -> str:
    at, size = _place(contents, random), int(random.integers(2, 65))
    file.write_bytes(contents[:at] + bytes(len(contents[at : at + size])) + contents[at + size :])
    return f"{size} bytes from {at}"


def _repeated(file, contents, random) -> str:
    at, size = _place(contents, random), int(random.integers(2, 65))
    file.write_bytes(contents[: at + size] + contents[at:])
    return f"{size} bytes from {at}"


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
