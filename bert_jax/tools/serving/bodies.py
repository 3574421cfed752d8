"""Bodies of requests: JSON that anybody may have sent, read into dataclasses, and the JSON Schema of the same classes.

A body is a frozen dataclass. The types of its fields say what is read: str, bool, int, float, None, list, a tuple of
fixed length (an array), Literal, unions and other dataclasses; nothing is converted. `typing.Annotated` adds the
sentence that describes a field and the `Range` of a number. What is checked is therefore what /openapi.json shows.
"""

import asyncio
import dataclasses
import functools
import inspect
import json
import re
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from bert_jax.files import parse_object

Body = TypeVar("Body")

LARGE = 65_536
"""Bytes of a body that is read in a thread."""

PARTS = 10_000
"""Lists and objects in a body of few entries. More take seconds, in which the collections of Python stop all threads.
"""


class Refusal(Exception):
    """A request that is not answered: its status, one sentence that says why, and the field that is to blame."""

    def __init__(self, status: int, message: str, field: str = "", headers: Mapping[str, str] | None = None):
        super().__init__(message)
        self.status: int = status
        self.message: str = message
        self.field: str = field
        self.headers: dict[str, str] = dict(headers or {})


@dataclasses.dataclass(frozen=True)
class Range:
    """The least and the greatest value of a number."""

    least: float
    most: float


@dataclasses.dataclass(frozen=True)
class Limits:
    """How much of a body is read, so that a small one does not keep the server from others."""

    characters: int
    """Of a string; also the numbers in a list, which are ids of tokens."""
    entries: int
    """Of another list than one of strings, whose items are looked at one by one."""


def read_body(body: bytes, kind: type[Body], limits: Limits) -> Body:
    """Return the body of a request as an instance of `kind`.

    Args:
      body: bytes, at most as many as the server reads.
      kind: a dataclass.
      limits: how much of it is read.

    Raises:
      Refusal: 400 for what is not one JSON object in UTF-8 (with repeated names, NaN or halves of surrogates it is
        none), 413 for a string or list that is too long, 422 for values of other types, unknown names and missing ones.
    """
    most = max(PARTS, 4 * limits.entries)
    if _parts(body) > most:
        raise Refusal(413, f"the body has more than {most} lists and objects; ask in parts")
    try:
        values = parse_object(body, finite=True)
    except ValueError as error:
        raise Refusal(400, f"the body {error}") from None
    return _read(kind, values, "", limits)


def _parts(body: bytes) -> int:
    """Return the number of lists and objects in JSON."""
    count = sum(map(body.count, b"[{"))
    if count <= PARTS:
        return count
    bare = re.sub(rb'(?s)"(?:[^"\\]++|\\.)*+"?', b"", body)  # without strings; also of one without an end, at once
    return sum(map(bare.count, b"[{"))


async def read_aside(body: bytes, kind: type[Body], limits: Limits) -> Body:
    """Return what `read_body` returns; a thread reads a large body, which may take seconds, and others go on."""
    if len(body) < LARGE:
        return read_body(body, kind, limits)
    return await asyncio.to_thread(read_body, body, kind, limits)


def _read(hint: Any, value: Any, place: str, limits: Limits) -> Any:
    """Return `value` if it is of the type `hint`; lists are read item by item, objects as dataclasses."""
    hint, notes = _plain(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _read_object(hint, value, place, limits)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        _need(value in arguments and type(value) in map(type, arguments), place, value, hint)
    elif origin in (typing.Union, types.UnionType):
        return _read(_alternative(arguments, value, place, hint), value, place, limits)
    elif origin is list:
        _need(isinstance(value, list), place, value, hint)
        if _is_simple(arguments[0], value, limits):
            return value
        if len(value) > limits.entries:
            raise Refusal(413, f"{place} has {len(value)} entries, and at most {limits.entries} are read", place)
        return [_read(arguments[0], item, f"{place}[{number}]", limits) for number, item in enumerate(value)]
    elif origin is tuple:
        _need(isinstance(value, list) and len(value) == len(arguments), place, value, hint)
        pairs = enumerate(zip(arguments, value, strict=True))
        return tuple(_read(each, item, f"{place}[{number}]", limits) for number, (each, item) in pairs)
    else:
        good = type(value) is hint or hint is float and type(value) is int
        _need(good, place, value, hint)
        if isinstance(value, str) and len(value) > limits.characters:
            raise Refusal(413, f"{place} has {len(value)} characters, and at most {limits.characters} are read", place)
        for limit in notes:
            if isinstance(limit, Range) and isinstance(value, int | float) and not limit.least <= value <= limit.most:
                raise Refusal(422, f"{place}={value} must be between {limit.least} and {limit.most}", place)
    return value


def _is_simple(hint: Any, values: list[Any], limits: Limits) -> bool:
    """Return whether all items are numbers or short strings of the type `hint`, found without a look at each alone."""
    if hint not in (int, str) or not set(map(type, values)) <= {hint}:
        return False
    return (
        hint is int
        and len(values) <= limits.characters
        or hint is str
        and not any(len(text) > limits.characters for text in values)
    )


def _read_object(kind: Any, value: Any, place: str, limits: Limits) -> Any:
    _need(isinstance(value, dict), place or "the body", value, kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    prefix = f"{place}." if place else ""
    for name in value:
        if name not in fields:
            unknown = f"{prefix}{name:.60}"
            raise Refusal(422, f"unknown field {unknown!r}; known are {', '.join(fields)}", unknown)
    for name, field in fields.items():
        if name not in value and _is_required(field):
            raise Refusal(422, f"{prefix}{name} is missing", f"{prefix}{name}")
    hints = _hints(kind)
    return kind(**{name: _read(hints[name], each, f"{prefix}{name}", limits) for name, each in value.items()})


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


@functools.lru_cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def _plain(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a type without its annotations, and these."""
    return (hint.__origin__, hint.__metadata__) if typing.get_origin(hint) is Annotated else (hint, ())


def _alternative(hints: tuple[Any, ...], value: Any, place: str, union: Any) -> Any:
    """Return the type of a union that a value begins like; of lists, that of its first item."""
    fitting = [hint for hint in hints if _begins(hint, value)]
    _need(bool(fitting), place, value, union)
    return fitting[0]


def _begins(hint: Any, value: Any) -> bool:
    """Return whether a value is of this type, as far as it and its first items show."""
    hint, _ = _plain(hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return value in arguments
    if origin in (typing.Union, types.UnionType):
        return any(_begins(each, value) for each in arguments)
    if origin is list:
        return isinstance(value, list) and (not value or _begins(arguments[0], value[0]))
    if origin is tuple:
        return isinstance(value, list) and len(value) == len(arguments) and all(map(_begins, arguments, value))
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return isinstance(value, dict)
    return type(value) is hint or hint is float and type(value) is int


def _need(good: bool, place: str, value: Any, hint: Any) -> None:
    if not good:
        other = "another string" if isinstance(value, str) and _names_words(hint) else _kind_of(value)
        raise Refusal(422, f"{place} is {other}; expected {spelled(schema(hint, {}))}", place)


def _names_words(hint: Any) -> bool:
    """Return whether a type has certain strings alone, or one of its alternatives does."""
    hint, _ = _plain(hint)
    return typing.get_origin(hint) is Literal or any(map(_names_words, typing.get_args(hint)))


def _kind_of(value: Any) -> str:
    """Return what a JSON value is, in words: a text of a user is not repeated in an error."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int | float):
        return f"the number {value}"
    return {str: "a string", list: "an array", dict: "an object"}[type(value)] + (
        f" of {len(value)}" if isinstance(value, list) else ""
    )


def spelled(described_by: dict[str, Any]) -> str:
    """Return a JSON Schema in short: string | [string, …]."""
    if "anyOf" in described_by:
        return " | ".join(map(spelled, described_by["anyOf"]))
    if "enum" in described_by:
        return " | ".join(map(json.dumps, described_by["enum"]))
    if "prefixItems" in described_by:
        return f"[{', '.join(map(spelled, described_by['prefixItems']))}]"
    if "items" in described_by:
        return f"[{spelled(described_by['items'])}, …]"
    return described_by.get("$ref", described_by.get("type", "any")).rpartition("/")[2]


def schema(hint: Any, components: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of what `read_body` reads as `hint`; that of each dataclass is added to `components`."""
    hint, notes = _plain(hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        _add_component(hint, components)
        found: dict[str, Any] = {"$ref": f"#/components/schemas/{hint.__name__}"}
    elif origin is Literal:
        found = {"type": "string", "enum": list(arguments)}
    elif origin in (typing.Union, types.UnionType):
        found = {"anyOf": [schema(each, components) for each in arguments]}
    elif origin is list:
        found = {"type": "array", "items": schema(arguments[0], components)}
    elif origin is tuple and arguments[-1] is ...:
        found = {"type": "array", "items": schema(arguments[0], components)}
    elif origin is tuple:
        found = {"type": "array", "prefixItems": [schema(each, components) for each in arguments]}
        found |= {"minItems": len(arguments), "maxItems": len(arguments)}
    elif origin is dict:
        found = {"type": "object", "additionalProperties": schema(arguments[1], components)}
    else:
        names = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
        found = {"type": names[hint]} if hint in names else {}
    for note in notes:
        found |= {"description": note} if isinstance(note, str) else {"minimum": note.least, "maximum": note.most}
    return found


def _add_component(kind: Any, components: dict[str, Any]) -> None:
    if kind.__name__ in components:
        return
    components[kind.__name__] = {}  # known from here on, should it refer to itself
    hints, properties = _hints(kind), {}
    for field in dataclasses.fields(kind):
        properties[field.name] = schema(hints[field.name], components)
        if not _is_required(field):
            properties[field.name]["default"] = field.default
    components[kind.__name__] = {
        "type": "object",
        "description": " ".join(inspect.cleandoc(kind.__doc__ or "").split()),
        "properties": properties,
        "required": [field.name for field in dataclasses.fields(kind) if _is_required(field)],
        "additionalProperties": False,
    }
