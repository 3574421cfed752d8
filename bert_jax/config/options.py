"""Fields of configurations, which hold one value, other options or one of several kinds, and their form in JSON.

A kind is a dataclass with the options that it alone has (`kinds`). The metadata of a field also say what a resumed run
may change, and what may differ between hosts (`option`). Any option without a rule determines what is learned from
which batches: a start with a different value is an error. Standard library only.
"""

import dataclasses
import difflib
import functools
import math
import re
import types
import typing
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal, TypeVar

from bert_jax.errors import UserError

Resume = Literal["free", "moved", "elastic", "last", "branch"]
"""Rules of what a resumed run may change. free: the option says where results go and how they are computed, logged and
kept. moved: where something is, but not whether there is something. elastic: only with `elastic_batch`. last: only in
the last phase. branch: it must keep the value, but a run that branches off (`branch_from`) may have another."""
T = TypeVar("T")
INT32 = (-(2**31), 2**31 - 1)
SIZES_OF_FILES = ("max_bytes",)


def option(
    default: T,
    *,
    resume: Resume | None = None,
    hosts_differ: bool = False,
    of: tuple[str | bool, ...] = (),
    refused: bool = True,
    before: Any = dataclasses.MISSING,
) -> T:
    """Return a field of a configuration with a default.

    Args:
      resume: what a resumed run may do with it, and with everything below it; None: it must keep the value.
      hosts_differ: whether it says where copies of the same data and model are, or how they are read, and so may differ
        between hosts.
      of: the option next to it that it belongs to (or "one or another", or "one and another", which may be dotted), and
        the values with which it has an effect; without values, any but 0 or nothing.
      refused: whether another value than the default is refused where it has no effect, wherever it comes from, or only
        one that is given on the command line, since presets have it.
      before: of an option that is younger than 0.1.0, the value that says what older versions did: a record without the
        option is read as if it had this. Without it, a record must have the option.
    """
    metadata = {"resume": resume, "hosts_differ": hosts_differ, "of": of, "refused": refused, "before": before}
    field: Any = dataclasses.field(default=default, metadata=metadata)
    return field


@functools.cache
def _types(kind: type) -> Mapping[str, Any]:
    """Return the types of the fields of a dataclass, whose annotations take long to evaluate."""
    return typing.get_type_hints(kind)


def has_effect(options: Any, field: dataclasses.Field[Any]) -> bool:
    """Return whether the option that a field belongs to, if any, has a value with which this one has an effect."""
    if not (of := field.metadata.get("of")):
        return True
    names, *values = of
    found = [_reached(options, name) for name in re.split(" or | and ", names)]
    enough = all if " and " in names else any
    return enough(value in values if values else bool(value) for value in found)


def _reached(options: Any, name: str) -> Any:
    """Return the value of a dotted option; None if it is not one of the kind that is chosen."""
    for part in name.split("."):
        options = getattr(options, part, None)
    return options


def check_kinds(options: Any, path: str = "") -> None:
    """Raise a UserError about a field, at any depth, whose value is none of its kinds, such as a name in its place."""
    for field, (choice, several) in _groups(type(options)).items():
        value, name = getattr(options, field), f"{path}{field}"
        wanted = ", ".join([*(f"{kind.__name__}()" for kind in choice.kinds), *(["None"] if choice.absent else [])])
        if several and not isinstance(value, (tuple, list)):
            raise UserError(f"{name}={value!r:.80} must be a tuple of {wanted}")
        named = [(f"{name}.{index}", each) for index, each in enumerate(value)] if several else [(name, value)]
        for name, each in named:
            if not (isinstance(each, choice.kinds) or (each is None and choice.absent)):
                raise UserError(f"{name}={each!r:.80} must be one of {wanted}")
            chosen = choice.pick({choice.by: getattr(options, choice.by)}) if choice.by else type(each)
            if type(each) is not chosen:
                raise UserError(
                    f"{name} is {type(each).__name__}(), but {path}{choice.by}={getattr(options, choice.by)} has "
                    f"{chosen.__name__}(); give that"
                )
            for tag, none in choice.absent.items() if each is not None else ():
                if getattr(each, tag) == none:
                    raise UserError(f"{name} has {tag}={none}, as if there were none; give None in its place")
    for start, part in _parts(options, path):
        check_kinds(part, start)


def check_numbers(options: Any, path: str = "") -> None:
    """Raise a UserError about an option, at any depth, that is no finite number, or a whole one beyond 32 bits.

    The devices count in 32 bits. Only sizes of files may be greater.
    """
    for field in dataclasses.fields(options):
        value, name = getattr(options, field.name), f"{path}{field.name}"
        if dataclasses.is_dataclass(value):
            check_numbers(value, f"{name}.")
        for index, each in enumerate(value if isinstance(value, tuple) else (value,)):
            if isinstance(value, tuple) and dataclasses.is_dataclass(each):
                check_numbers(each, f"{name}.{index}.")
            elif isinstance(each, float) and not math.isfinite(each):
                raise UserError(f"{name}={each} must be a finite number")
            elif isinstance(each, int) and not INT32[0] <= each <= INT32[1] and field.name not in SIZES_OF_FILES:
                shown = each if each.bit_length() <= 128 else f"a number of {each.bit_length():,} bits"
                bound = f"at least {INT32[0]}" if each < 0 else f"at most {INT32[1]}"
                raise UserError(f"{name}={shown} must be {bound}")


def check_effects(options: Any, path: str = "", given: Collection[str] = (), preset: Any = None) -> None:
    """Raise a UserError about an option, at any depth, with a value that has no effect.

    Args:
      given: dotted names of options that are refused without effect even if their value is the usual one, those of the
        command line; but for 0, nothing, and a usual value that takes back what `preset` has.
      preset: the instance to which the options of the command line were added, if there is one.
    """
    before = {(start, type(part)): part for start, part in _parts(preset, path)} if preset is not None else {}
    for start, part in _parts(options, path):
        check_effects(part, start, given, before.get((start, type(part))))
    for field in dataclasses.fields(options):
        value, name = getattr(options, field.name), f"{path}{field.name}"
        own = [
            each
            for each in given
            if (each == name or each.startswith(f"{name}.")) and _reached(options, each.removeprefix(path))
            if not (each == name and value == field.default != getattr(preset, field.name, value))
        ]
        changed = field.metadata.get("refused", False) and value != field.default
        if has_effect(options, field) or not (own or changed):
            continue
        if own:
            name = own[0]
        elif dataclasses.is_dataclass(value):
            name = f"{name}.{_changed(value, field.default)}"
        inner = name.removeprefix(path)
        value, usual = _reached(options, inner), field.default
        if inner != field.name:
            usual = _reached(usual, inner.removeprefix(f"{field.name}."))
        had = usual if preset is None else _reached(preset, inner)
        way_out = _way_without(name, usual, had, name in given)
        of, *values = field.metadata["of"]
        if any(values):
            raise UserError(
                f"{name}={_shown(value)} belongs to {path}{of}={' or '.join(filter(None, values))}, not to "
                f"{getattr(options, of)}; {way_out}"
            )
        if values:
            other = next(each for each in of.split(" and ") if _reached(options, each) not in values)
            raise UserError(
                f"{name}={_shown(value)} has no effect with {path}{other}={_shown(_reached(options, other))}; leave "
                "one of them out"
            )
        raise UserError(f"{name}={_shown(value)} has no effect without {path}{of}; set that too, or {way_out}")


def _way_without(name: str, usual: Any, had: Any, was_given: bool) -> str:
    """Return what makes an option that has no effect go away; `had` is its value before the command line."""
    if had != usual:
        return f"set --{name}={_shown(usual)} to take back what the configuration has"
    return "leave it out" if was_given else f"leave it out, or set {name}={_shown(usual)}"


def _parts(options: Any, path: str) -> Iterable[tuple[str, Any]]:
    """Yield the instances of dataclasses that others hold, each after the beginning of the names of its options."""
    for field in dataclasses.fields(options):
        value, start = getattr(options, field.name), path + below(field)
        held = (
            {f"{start}{index}.": each for index, each in enumerate(value)}
            if isinstance(value, tuple)
            else {start: value}
        )
        yield from ((name, each) for name, each in held.items() if dataclasses.is_dataclass(each))


def _changed(value: Any, default: Any) -> str:
    """Return the dotted name of the first option in which a dataclass instance is not as usual."""
    usual = flattened(to_dict(default))
    return next(name for name, each in flattened(to_dict(value)).items() if each != usual.get(name))


def kinds(
    default: T,
    *,
    nested: bool = False,
    by: str = "",
    absent: Mapping[str, Any] | None = None,
    resume: Resume | None = None,
    before: Any = dataclasses.MISSING,
) -> T:
    """Return a field of a configuration whose value is one of several kinds: a union of dataclasses, or None.

    What chooses a kind is spelled like an option: a class has the options and values that choose it in `chosen_by`. A
    kind without them is chosen by a value, other than the one in `absent`, of an option of its own. With `by`, an
    option next to the field chooses: a kind has those of its values in `chosen_for`, and others choose the usual kind.

    Args:
      nested: whether the options of a kind are spelled below the name of the field, as in objective.name, or next to
        it, as in model.positions.
      by: the option next to the field that chooses, if any; then the field is nested.
      absent: the option by which None is chosen, and its value then.
      before: as for `option`.
    """
    choice = {"nested": nested or by != "", "by": by, "absent": dict(absent or {})}
    metadata = {"resume": resume, "kinds": choice, "before": before}
    field: Any = dataclasses.field(default=default, metadata=metadata)
    return field


@dataclasses.dataclass(frozen=True)
class Choice:
    """The kinds of a field; see `kinds`."""

    kinds: tuple[Any, ...]
    """Dataclasses, the usual one first."""
    nested: bool = True
    by: str = ""
    absent: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def tags(self) -> tuple[str, ...]:
        """Options by which a kind is chosen."""
        return tuple(dict.fromkeys([*(tag for kind in self.kinds for tag in choosing(kind)), *self.absent]))

    def values(self, tag: str) -> tuple[str, ...]:
        """Return the values of an option that choose a kind each."""
        return tuple(dict.fromkeys(choosing(kind)[tag] for kind in self.kinds if tag in choosing(kind)))

    def reachable(self, kind: Any, tag: str) -> dict[str, Any]:
        """Return the kinds that other values of an option choose while the rest of what chooses `kind` stays.

        They may be kinds of a field within one of them that is spelled next to it, as model.positions is.
        """
        rest = {name: value for name, value in choosing(kind).items() if name != tag}
        found: dict[str, Any] = {}
        for each in self.kinds:
            other = dict(choosing(each))
            value = other.pop(tag, None)
            if value is not None and other.items() <= rest.items():
                found.setdefault(value, each)
            elif other.items() <= rest.items():
                flat = [choice for choice in choices_of(each).values() if not choice.nested]
                for name, inner in [pair for choice in flat for pair in choice.reachable(choice.kinds[0], tag).items()]:
                    found.setdefault(name, inner)
        return found

    def pick(self, values: Mapping[str, Any]) -> Any:
        """Return the kind that some options choose, the one that needs most of them; None if it is none of the kinds.

        An option that is not among `values` has the value that chooses the usual kind.
        """
        for tag, none in self.absent.items():
            value = values.get(tag, none)
            return None if (type(value), value) == (type(none), none) else self.kinds[0]
        if self.by:
            return next((kind for kind in self.kinds if values.get(self.by) in kind.chosen_for), self.kinds[0])
        usual = choosing(self.kinds[0])
        fitting = [
            kind
            for kind in self.kinds
            if all(values.get(tag, usual.get(tag)) == v for tag, v in choosing(kind).items())
        ]
        return max(fitting, key=lambda kind: len(choosing(kind)), default=None)

    def chooser(self, options: Any, given: Mapping[str, str], path: str) -> dict[str, Any]:
        """Return the option next to the field that chooses, if any, with its value, given or in `options` at `path`."""
        return {self.by: given.get(path + self.by, getattr(options, self.by))} if self.by else {}

    def owners(self, name: str) -> list[Any]:
        """Return the kinds that have an option of this dotted name or, if none has, what it would be below."""
        for known in (name, name.partition(".")[0]):
            if owners := [each for each in self.kinds if known in choosing(each) or has_option(each, known)]:
                return owners
        return []

    def refuses(self, kind: Any, name: str) -> bool:
        """Return whether only other kinds have an option of this dotted name; `kind` may be None."""
        return name not in self.absent and name not in choosing(kind) and kind not in (self.owners(name) or [kind])


def choosing(kind: Any) -> Mapping[str, str]:
    """Return the options, and their values, that choose a kind."""
    return getattr(kind, "chosen_by", {})


@functools.lru_cache
def choices_of(owner: type) -> dict[str, Choice]:
    """Return the kinds of each field of a dataclass that has several, by the name of the field."""
    fields: list[Any] = [field for field in dataclasses.fields(owner) if "kinds" in field.metadata]
    hints = _types(owner) if fields else {}
    return {field.name: Choice(_kinds_in(hints[field.name]), **field.metadata["kinds"]) for field in fields}


def below(field: dataclasses.Field[Any]) -> str:
    """Return how the names of the options in a field begin: with its own name, or not, as those of some kinds."""
    return "" if field.metadata.get("kinds", {}).get("nested") is False else f"{field.name}."


@functools.lru_cache
def _groups(owner: type) -> dict[str, tuple[Choice, bool]]:
    """Return the kinds of each field of a dataclass that holds options, and whether it is a tuple of them."""
    groups: dict[str, tuple[Choice, bool]] = {}
    for name, hint in _types(owner).items():
        several = typing.get_origin(hint) is tuple
        if kinds := _kinds_in(typing.get_args(hint)[0] if several else hint):
            groups[name] = choices_of(owner).get(name, Choice(kinds)), several
    return groups


def _kinds_in(hint: Any) -> tuple[Any, ...]:
    several = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return tuple(kind for kind in several if dataclasses.is_dataclass(kind))


@functools.cache
def dotted_names(kind: Any) -> tuple[str, ...]:
    """Return the dotted names of the options of a dataclass as they are spelled, those of every kind of its fields."""
    hints, choices, names = _types(kind), choices_of(kind), []
    for field in dataclasses.fields(kind):
        inner = [name for each in _kinds_in(hints[field.name]) for name in dotted_names(each)]
        found = [*(choices[field.name].tags if field.name in choices else ()), *inner]
        names += [f"{below(field)}{name}" for name in found] or [field.name]
    return tuple(dict.fromkeys(names))


def spelled_names(kind: Any) -> tuple[str, ...]:
    """Return the names of the options of a dataclass as they are spelled, without those below them."""
    return tuple(dict.fromkeys(name.partition(".")[0] for name in dotted_names(kind)))


def has_option(kind: Any, name: str) -> bool:
    """Return whether a dataclass has an option, or a group of options, of this dotted name."""
    return any(each == name or each.startswith(f"{name}.") for each in dotted_names(kind))


def switched(options: Any, given: Mapping[str, str], path: str = "") -> Any:
    """Return options with the kinds that the command line chooses, whose other options are those before or usual ones.

    Args:
      given: text of each option that is given, by its dotted name.
      path: the name of `options`, with a dot at the end.
    """
    changes, choices = {}, choices_of(type(options))
    for field in dataclasses.fields(options):
        value, choice, inside = getattr(options, field.name), choices.get(field.name), path + below(field)
        if choice is not None:
            tags = {**choice.absent} if value is None else to_dict(value)
            tags |= {tag: given[inside + tag] for tag in choice.tags if inside + tag in given}
            tags |= {tag: none for tag, none in choice.absent.items() if str(tags[tag]).lower() == str(none).lower()}
            known = {tag: text for tag, text in tags.items() if text in (choice.values(tag) or [text])}
            kind = choice.pick(choice.chooser(options, given, path) | known)
            if kind is None and choice.absent:
                value = None
            elif kind is not None and type(value) is not kind:
                value = _as_kind(kind, value)
        changes[field.name] = switched(value, given, inside) if dataclasses.is_dataclass(value) else value
    return dataclasses.replace(options, **changes)


def refuse_other_kinds(options: Any, given: Mapping[str, str], path: str = "") -> None:
    """Raise a UserError about a given option that only kinds have which `options` are not of; see `switched`."""
    choices = choices_of(type(options))
    for field in dataclasses.fields(options):
        value, choice, inside = getattr(options, field.name), choices.get(field.name), path + below(field)
        if choice is not None:
            own = {word.removeprefix(inside): text for word, text in given.items() if word.startswith(inside)}
            chosen = choice.chooser(options, given, path).get(choice.by)
            _refuse_others(choice, None if value is None else type(value), own, inside, chosen)
        if dataclasses.is_dataclass(value):
            refuse_other_kinds(value, given, inside)


def with_options(options: Any, values: Mapping[str, Any]) -> Any:
    """Return options with other values, by their dotted names as the command line spells them.

    One that chooses another kind does so as on the command line: `with_options(config, {"model.positions": "rope",
    "model.rope_theta": 1e6})`.

    Raises:
      UserError: there is no such option, or not in the kind that is chosen, or its value has the wrong type.
    """
    tree = to_dict(switched(options, {name: str(value) for name, value in values.items()}))
    for name, value in values.items():
        _put(tree, name.split("."), value, name)
    return from_dict(type(options), tree)


def _put(values: Any, path: list[str], value: Any, option: str) -> None:
    """Set the entry at `path` of nested dicts and lists; unknown groups are made, for `from_dict` to name them."""
    name, *below = path
    if isinstance(values, list) and below and name.isdecimal() and int(name) < len(values):
        _put(values[int(name)], below, value, option)
    elif not isinstance(values, dict):
        raise UserError(f"unknown option {option}: there is no {name} in what comes before it")
    elif below:
        _put(values.setdefault(name, {}), below, value, option)
    else:
        values[name] = value


def _as_kind(kind: Any, value: Any) -> Any:
    """Return an instance of a kind with those values of another that it can have."""
    hints, choices, shared = _types(kind), choices_of(kind), {}
    names = {field.name for field in dataclasses.fields(kind)}
    for name, found in field_values(type(value), value).items() if value is not None else ():
        if name in choices:
            if type(found) in choices[name].kinds or (found is None and choices[name].absent):
                shared[name] = found
        elif name in names and (found is not None or type(None) in typing.get_args(hints[name])):
            other = dataclasses.is_dataclass(found) and type(found) is not hints[name]
            shared[name] = _as_kind(hints[name], found) if other else found
    return kind(**shared)


def field_values(kind: type, options: object) -> dict[str, Any]:
    """Return the values in `options` of the fields of the dataclass `kind`, by their names."""
    return {field.name: getattr(options, field.name) for field in dataclasses.fields(kind)}


def to_dict(config: Any) -> dict[str, Any]:
    """Return the nested plain dict (JSON types) of a configuration; `from_dict` is the inverse."""
    values: dict[str, Any] = dict(choosing(type(config)))
    choices = choices_of(type(config))
    for field in dataclasses.fields(config):
        value, choice = getattr(config, field.name), choices.get(field.name)
        if choice is None:
            values[field.name] = _plain(value)
        else:
            inner = dict(choice.absent) if value is None else to_dict(value)
            values |= {field.name: inner} if choice.nested else inner
    return values


def _plain(value: Any):
    if dataclasses.is_dataclass(value):
        return to_dict(value)
    return [_plain(v) for v in value] if isinstance(value, tuple) else value


def from_dict(
    cls: Any, values: dict[str, Any], path: str = "", complete: bool = False, others: Iterable[str] = ()
) -> Any:
    """Return the instance of dataclass `cls` that a nested dict describes.

    Args:
      cls: the dataclass, or a union of kinds.
      path: how messages name the dict, with a dot at the end.
      complete: whether every field must be there, as `to_dict` writes them, also one that has a default, but for those
        that an earlier version did not have; see `option`.
      others: options of other kinds, one of which may be what an unknown key was meant to be.

    Raises:
      UserError: an unknown or missing key, or a value of the wrong type; the message names the key.
    """
    if isinstance(cls, types.UnionType):
        return _from_choice(Choice(_kinds_in(cls)), values, path, complete)
    _need_object(values, cls.__name__, path)
    names = dict.fromkeys([*choosing(cls), *spelled_names(cls)])
    _need_known(values, names, cls.__name__, path, others)
    hints, choices, missing = _types(cls), choices_of(cls), []
    arguments = _younger(cls) if complete else {}
    for field in dataclasses.fields(cls):
        choice = choices.get(field.name)
        if choice is not None and not choice.nested:
            own = {tag: value for tag, value in values.items() if tag in _names(choice)}
            if own or complete:
                arguments[field.name] = _from_choice(choice, own, path, complete)
        elif field.name in values or (choice is not None and choice.by and not complete):
            inner = f"{path}{field.name}"
            arguments[field.name] = (
                _typed(hints[field.name], values[field.name], inner, complete)
                if choice is None
                else _from_choice(choice, values.get(field.name, {}), f"{inner}.", complete, values.get(choice.by))
            )
        elif field.name not in arguments and (
            complete or field.default is field.default_factory is dataclasses.MISSING
        ):
            missing.append(path + field.name)
    if missing:
        raise UserError(f"missing: {', '.join(missing)}")
    return cls(**arguments)


def _younger(cls: Any) -> dict[str, Any]:
    """Return the values that stand for the options of `cls` in a record that is older than they are."""
    given = {field.name: field.metadata.get("before", dataclasses.MISSING) for field in dataclasses.fields(cls)}
    return {name: value for name, value in given.items() if value is not dataclasses.MISSING}


def _names(choice: Choice) -> set[str]:
    return {*choice.tags, *(name for kind in choice.kinds for name in spelled_names(kind))}


def _need_object(values: Any, name: str, path: str) -> None:
    if not isinstance(values, dict):
        raise UserError(
            f"{path.removesuffix('.') or 'the configuration'} must be an object with the fields of {name}, "
            f"not {values!r:.80}"
        )


def _need_known(values: Mapping[Any, Any], names: Iterable[str], name: str, path: str, others: Iterable[str]) -> None:
    """Raise a UserError about a key that is none of `names`, those of `name`; one of `others` may be meant."""
    for key in values:
        if key not in names:
            close = difflib.get_close_matches(str(key)[:60], [*names, *others], n=1)
            hint = f"; perhaps you meant {path}{close[0]}" if close else f"; {name} has {', '.join(names)}"
            raise UserError(f"unknown option {path}{_shown(key)}{hint}")


def _from_choice(choice: Choice, values: dict[str, Any], path: str, complete: bool, chosen: Any = None) -> Any:
    """Return the instance of the kind that `values` choose, which must have no option of another kind.

    `chosen` is the value of the option next to the field, if one chooses.
    """
    usual = choice.kinds[0].__name__
    _need_object(values, usual, path)
    _need_values(choice, values, path)
    kind = choice.pick({choice.by: chosen} if choice.by else values)
    if kind is None and not choice.absent:
        tags = ", ".join(f"{path}{tag}={values[tag]!r:.80}" for tag in choice.tags if tag in values)
        raise UserError(f"{tags} cannot be combined")
    if complete and (missing := [path + tag for tag in choosing(kind) or choice.absent if tag not in values]):
        raise UserError(f"missing: {', '.join(missing)}")
    _refuse_others(choice, kind, _dotted(values), path, chosen)
    if kind is not None:
        return from_dict(kind, values, path, complete, _names(choice))
    _need_known(values, choice.absent, usual, path, _names(choice))
    return None


def _dotted(values: dict[str, Any]) -> dict[str, Any]:
    """Return what is in nested dicts by its dotted name; a dict that is empty stays."""
    found = {}
    for key, value in values.items():
        inner = _dotted(value) if isinstance(value, dict) and value else None
        found |= {key: value} if inner is None else {f"{key}.{name}": each for name, each in inner.items()}
    return found


def _need_values(choice: Choice, values: Mapping[str, Any], path: str) -> None:
    """Raise a UserError if what should choose a kind has a value that chooses none, and no option has either."""
    for tag in choice.tags:
        fitting, is_option = choice.values(tag), any(tag in spelled_names(kind) for kind in choice.kinds)
        if tag in values and fitting and values[tag] not in fitting and not is_option:
            raise UserError(f"{path}{tag}={values[tag]!r:.80} must be one of {', '.join(fitting)}")


def _refuse_others(choice: Choice, kind: Any, values: Mapping[str, Any], path: str, chosen: Any) -> None:
    """Raise a UserError about a value, by its dotted name, of an option that a kind, chosen by `chosen`, lacks."""
    for name, value in values.items():
        if choice.refuses(kind, name):
            _need_values(choice, values, path)
            raise UserError(f"{path}{name}={_shown(value)} {_way_out(choice, kind, choice.owners(name), path, chosen)}")


def _way_out(choice: Choice, kind: Any, owners: list[Any], path: str, chosen: Any) -> str:
    """Return the end of the message that an option belongs to other kinds, `owners`."""
    if choice.by:
        fitting = " or ".join(each for owner in owners for each in owner.chosen_for)
        return f"belongs to {choice.by}={fitting}, not to {chosen}; leave it out"
    if kind is None:
        (tag, none), *_ = choice.absent.items()
        return f"needs {path}{tag}, but {path}{tag}={none}; set that too, or leave it out"
    others = [_spelling(choice, each, path, kind) for each in owners]
    which = "that" if len(others) == 1 else "one of these"
    return (
        f"belongs to {' or '.join(others)}, not to {_spelling(choice, kind, path)}; set {which}, or leave the option "
        "out"
    )


def _spelling(choice: Choice, kind: Any, path: str, other: Any = None) -> str:
    """Return how a kind is chosen, as a user writes it, in place of `other`; without what chooses the usual one too."""
    usual, chosen = choosing(choice.kinds[0]), choosing(kind)
    if more := choosing(other).keys() - chosen.keys() if chosen.items() <= choosing(other).items() else ():
        return " and ".join(f"another {path}{tag}" for tag in sorted(more))
    own = {tag: value for tag, value in chosen.items() if kind is choice.kinds[0] or usual.get(tag) != value} or chosen
    return " and ".join(f"{path}{tag}={value}" for tag, value in own.items())


def from_record(cls: Any, values: dict[str, Any], where: str, path: str = "") -> Any:
    """Return the instance of `cls` that `to_dict` wrote to `where`, a file of a run or of a model.

    Raises:
      UserError: as `from_dict`, or a field is missing.
    """
    try:
        return from_dict(cls, values, path, complete=True)
    except UserError as error:
        raise UserError(f"{where} is damaged, or another version of bert_jax wrote it: {error}") from None


def not_of_pretraining(values: dict[str, Any]) -> str:
    """Return what a config.json is of if its entries are not those of a run of pre-training; "" if they are."""
    if "finetune" in values:
        return "a run of fine-tuning"
    return "a model in the format of transformers" if "phases" not in values and "model_type" in values else ""


def options_recorded(values: dict[str, Any]) -> dict[str, Any]:
    """Return those entries of a work directory's config.json that are options of pre-training.

    The file of a saved or converted model also says how it embeds texts, that of a fine-tuned one also its head and
    task.
    """
    return {
        name: value for name, value in values.items() if name not in ("embedding", "head", "finetune", "pairs", "run")
    }


def _typed(hint: Any, value: Any, path: str, complete: bool):
    if dataclasses.is_dataclass(hint):
        return from_dict(hint, value, path + ".", complete)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise UserError(f"{path}={value!r:.80} must be a list")
        return tuple(_typed(args[0], v, f"{path}.{i}", complete) for i, v in enumerate(value))
    if origin is Literal:
        if value in args:
            return value
        raise UserError(f"{path}={value!r:.80} must be one of {', '.join(args)}")
    if origin in (types.UnionType, typing.Union):
        return None if value is None else _typed(args[0], value, path, complete)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise UserError(f"{path}={value!r:.80} must be of type {hint.__name__}")
    return value


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return a line `key: old → new` for every leaf in which two nested dicts differ.

    Those that only one has, because it chooses another kind, come last.
    """
    return [line for _, line in sorted(_differences(old, new), key=lambda found: found[0])]


def _differences(old: dict[str, Any], new: dict[str, Any], path: str = "") -> Iterable[tuple[bool, str]]:
    """Yield whether only one dict has a leaf that differs, and its line."""
    for key in sorted({*old, *new}):
        missing = {} if isinstance(old.get(key, new.get(key)), dict) else None
        a, b = old.get(key, missing), new.get(key, missing)
        if isinstance(a, list) and isinstance(b, list):
            a, b = dict(enumerate(a)), dict(enumerate(b))
        if isinstance(a, dict) and isinstance(b, dict):
            yield from _differences(
                {str(k): v for k, v in a.items()}, {str(k): v for k, v in b.items()}, f"{path}{key}."
            )
        elif a != b:
            yield key not in old or key not in new, f"{path}{_shown(key)}: {_shown(a)} → {_shown(b)}"


def flattened(values: dict[str, Any]) -> dict[str, Any]:
    """Return the leaves of a nested dict by their dotted names; those of lists have the index as a name."""
    leaves = {}
    for key, value in values.items():
        value = {str(index): each for index, each in enumerate(value)} if isinstance(value, (list, tuple)) else value
        if isinstance(value, dict):
            leaves |= {f"{key}.{name}": leaf for name, leaf in flattened(value).items()}
        else:
            leaves[str(key)] = value
    return leaves


def is_among(key: str, names: tuple[str, ...]) -> bool:
    """Return whether a dotted option is one of `names`, or below one of those that end in a dot."""
    return any(key == name or (name.endswith(".") and key.startswith(name)) for name in names)


def _shown(value: Any) -> str:
    """Return the text of a value, or its beginning if it would not fit into a line."""
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return text if text.isprintable() and len(text) <= 200 else f"{text[:200]!r}…"


@functools.cache
def _rules(kind: Any) -> dict[str, tuple[Resume | None, bool]]:
    """Return what a resumed run may do with each option of a dataclass, and whether hosts may differ in it.

    They are by dotted names, with N for an index. The rule of a field that holds options, or several values, is that of
    all below it.
    """
    hints, rules = _types(kind), {}
    for field in dataclasses.fields(kind):
        hint, own = hints[field.name], (field.metadata.get("resume"), field.metadata.get("hosts_differ", False))
        name, start = field.name, below(field)
        if typing.get_origin(hint) is tuple:
            hint, name, start = typing.get_args(hint)[0], f"{name}.N", f"{name}.N."
        inner = {} if (kinds := _kinds_in(hint)) else {name: own}
        for each in kinds:
            for option, rule in _rules(each).items():
                known = inner.get(start + option, own)
                inner[start + option] = known[0] or rule[0], known[1] or rule[1]
        rules |= inner
    return rules


def resume_rule(kind: Any, key: str) -> Resume | None:
    """Return what a resumed run may do with a dotted option of the dataclass `kind`; None: it must keep the value."""
    return _rules(kind).get(re.sub(r"\.\d+\b", ".N", key), (None, False))[0]


def differing_options(kind: Any, path: str = "") -> tuple[str, ...]:
    """Return the dotted options of the dataclass `kind` that may differ between hosts, with `path` before each."""
    return tuple(path + name for name, (_, hosts_differ) in _rules(kind).items() if hosts_differ)


def is_harmless(kind: Any, line: str) -> bool:
    """Return whether a line of `differences` between two configurations `kind` does not prevent resuming."""
    key, change = line.split(": ", 1)
    rule = resume_rule(kind, key)
    return rule == "free" or (rule == "moved" and "" not in change.split(" → "))


def is_elastic(kind: Any, line: str) -> bool:
    """Return whether a line changes what a run may resume with if it says `elastic_batch`."""
    return resume_rule(kind, line.split(": ", 1)[0]) == "elastic"


def lengthens(kind: Any, line: str, phases: int) -> bool:
    """Return whether a line changes the steps of the last of `phases` phases: people extend runs, or cut them short."""
    key, change = line.split(": ", 1)
    return resume_rule(kind, key) == "last" and f".{phases - 1}." in key and "None" not in change


def metric_scale(metric: str) -> int:
    """Return the factor for display: shares are shown in percent; losses, perplexities and thresholds as they are."""
    return 1 if metric.endswith(("loss", "perplexity", "_thresh")) or is_of_class(metric) else 100


def is_of_class(metric: str) -> bool:
    """Return whether a metric is of one class, whose name, which may be any text, comes after a colon."""
    return ":" in metric
