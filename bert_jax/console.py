"""The command line: typed options by tyro, help, log messages, and running a command.

tyro parses and checks types, and writes `--help` from the docstrings of the options. This module adds one-line
errors, the short forms `--steps`, `--batch_size` … of a run with a single phase, configuration files, and the exit
status. What libraries log is one line per message, without those that a `UserError` explains better.
"""

import contextlib
import dataclasses
import decimal
import difflib
import functools
import importlib.metadata
import importlib.util
import io
import itertools
import logging
import os
import pathlib
import platform
import re
import shutil
import sys
import textwrap
import threading
import traceback
import typing
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TextIO, TypeVar

from bert_jax import __version__
from bert_jax.config import Config, PhaseConfig
from bert_jax.config.checks import check
from bert_jax.config.options import (
    Choice,
    check_effects,
    check_kinds,
    check_numbers,
    choices_of,
    choosing,
    dotted_names,
    flattened,
    from_dict,
    has_effect,
    not_of_pretraining,
    options_recorded,
    refuse_other_kinds,
    spelled_names,
    switched,
    to_dict,
)
from bert_jax.config.presets import shipped_configs, shipped_speedruns, shipped_studies
from bert_jax.config.pretraining import PHASE_GROUPS, SharedObjective
from bert_jax.config.studies import Speedrun, Study, check_speedrun, check_study
from bert_jax.errors import UserError, first_lines, is_of_cloud_storage, need_cloud_storage, need_known_place


def usage(command: Callable[..., Any]) -> str:
    """Return the usage of a command: the first line of its docstring."""
    return f"bert-jax {_paragraphs(command)[0]}"


def described(command: Callable[..., Any]) -> tuple[str, str]:
    """Return the usage of a command and its description: what it does and what its words mean."""
    return usage(command), "\n\n".join(_paragraphs(command)[1:])


def overview(commands: Iterable[Callable[..., Any]]) -> str:
    """Return the text of `bert-jax help`: two lines per command."""
    return "\n".join(
        [
            "usage: bert-jax COMMAND …",
            "",
            *map(_entry, commands),
            "",
            "bert-jax help COMMAND (or bert-jax COMMAND --help) explains a command and lists its options.",
            "bert-jax --version prints the versions. --debug shows the log of the libraries and whole tracebacks.",
            "--no_compilation_cache keeps no compiled programs (by default in ~/.cache/bert_jax, at most 1 GiB).",
        ]
    )


def choices(command: Callable[..., Any], kinds: Iterable[type]) -> str:
    """Return the help of a command whose first word chooses one of several kinds, each with options of its own."""
    lines = [f"usage: {_without_options(usage(command))}", "", *map(_wrapped, _paragraphs(command)[1:]), ""]
    for kind in kinds:
        lines += [_wrapped(f"  {usage(kind)}", "      "), _wrapped(f"      {_paragraphs(kind)[1]}", "      ")]
    return "\n".join(lines)


def _entry(command: Callable[..., Any]) -> str:
    return f"  {usage(command)}\n      {_paragraphs(command)[1]}"


def _without_options(usage: str) -> str:
    return re.sub(r" \[?--.*", "", usage)


def version() -> str:
    """Return what `bert-jax --version` prints; jax is not imported."""
    return f"bert_jax {__version__} (jax {importlib.metadata.version('jax')}, Python {platform.python_version()})"


def _paragraphs(command: Callable[..., Any]) -> list[str]:
    return [" ".join(paragraph.split()) for paragraph in (command.__doc__ or "").split("\n\n")]


def print_help(default: Any, usage: str, description: str) -> None:
    """Print usage, description, and every option with type, meaning and default, then exit with status 0.

    Args:
      default: a dataclass instance, or a dataclass if some options have no default.
      usage: usage of the command; options outside brackets are required if they are empty in `default`.
    """
    import tyro

    cls, instance = (default, tyro.MISSING_NONPROP) if isinstance(default, type) else (type(default), default)
    required = [
        name
        for name in re.findall(r"--([\w.]+)=", re.sub(r"\[.*?\]", "", usage))
        if cls is default or _value(default, name) in ("", None, tyro.MISSING)
    ]
    for name in required if cls is not default else ():
        if _value(default, name) is not None:
            instance = _replaced(instance, name, tyro.MISSING)
    paragraphs = description.split("\n\n")
    if cls is not default and (hidden := _hidden(default)):
        paragraphs.append(
            "Options that have no effect with the values of others are not shown; give those values together with "
            f"--help, such as --{hidden[0]} --help, to see what belongs to them."
        )
    if required:
        paragraphs.append(f"Required: {', '.join(f'--{name}' for name in required)}.")
    registry = tyro.constructors.ConstructorRegistry()
    registry.struct_rule(_documented)
    printed = _Printed(sys.stdout)
    try:
        with contextlib.redirect_stdout(printed):
            tyro.cli(
                cls,
                prog=_without_options(usage),
                description="\n\n".join(map(_wrapped, paragraphs)),
                default=instance,
                args=["--help"],
                registry=registry,
                use_underscores=True,
                config=(tyro.conf.FlagConversionOff, tyro.conf.AvoidSubcommands),
            )
    finally:
        # tyro's title of a group is the name of its field and "options", which for FinetuneConfig.options says that
        # word twice. The new title is as long as that one, so the frame around it still fits.
        sys.stdout.write(printed.getvalue().replace("options options", "options by task"))


class _Printed(io.TextIOWrapper):
    """The text that tyro prints, with the colours and frames that the real output can show."""

    def __init__(self, output: TextIO):
        super().__init__(io.BytesIO(), output.encoding, output.errors)
        self._output = output

    def isatty(self) -> bool:
        return self._output.isatty()

    def getvalue(self) -> str:
        self.seek(0)
        return self.read()


def _replaced(config: Any, name: str, value: Any):
    """Return `config` with `value` for the option with this dotted name."""
    field, _, rest = name.partition(".")
    return dataclasses.replace(config, **{field: _replaced(getattr(config, field), rest, value) if rest else value})


def _wrapped(paragraph: str, indent: str = "  ") -> str:
    """Return `paragraph` wrapped to the terminal, indented because tyro joins lines that begin with a letter."""
    return textwrap.fill(
        paragraph,
        shutil.get_terminal_size().columns,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _documented(info: Any):
    """Return tyro's view of a dataclass (None for other types): docstrings on one line, no "(default: '')", commas.

    tyro would keep the line breaks of the docstrings, and show several numbers with spaces between them.
    """
    import tyro

    if not (isinstance(info.type, type) and dataclasses.is_dataclass(info.type)):
        return None
    types = typing.get_type_hints(info.type)
    meanings = _meanings(info.type)
    fields = []
    for field in dataclasses.fields(info.type):
        if _is_idle(info.default if isinstance(info.default, info.type) else None, field):
            continue
        default = tyro.MISSING_NONPROP if field.default is dataclasses.MISSING else field.default
        default = getattr(info.default, field.name, default)
        shown: typing.Any = types[field.name]
        if isinstance(default, tuple) and not any(map(dataclasses.is_dataclass, default)):  # as it is written: 16,32
            name, values = typing.get_args(shown)[0].__name__.upper(), ",".join(map(str, default))
            hint = f"(default: {values})" if values else ""
            shown = typing.Annotated[shown, tyro.conf.arg(metavar=f"{name},{name},…", help_behavior_hint=hint)]
        elif default == "":
            names = ",".join(filter(None, typing.get_args(shown)))  # of a choice, in which the empty one is the default
            shown = typing.Annotated[
                shown, tyro.conf.arg(metavar=f"{{{names}}}" if names else None, help_behavior_hint="")
            ]
        fields.append(
            tyro.constructors.StructFieldSpec(
                field.name,
                shown,
                default,
                meanings.get(field.name, ""),
            )
        )
    return tyro.constructors.StructConstructorSpec(info.type, tuple(fields))


def _meanings(cls: Any) -> dict[str, str]:
    """Return the docstring of each option of a dataclass, on one line."""
    shown = {
        field.name: field.metadata["shown"].meaning for field in dataclasses.fields(cls) if "shown" in field.metadata
    }
    if shown:
        return shown
    inherited = [_own_meanings(each) for each in reversed(cls.__mro__) if dataclasses.is_dataclass(each)]
    return {name: meaning for meanings in inherited for name, meaning in meanings.items()}


@functools.cache
def _own_meanings(cls: Any) -> dict[str, str]:
    """Return the docstrings that stand in the source of a dataclass, which Python parses as a whole to find them."""
    import docstring_parser

    found = docstring_parser.parse_from_object(cls).params
    return {each.arg_name: " ".join((each.description or "").split()) for each in found}


class _Shown(typing.NamedTuple):
    """An option as it is spelled."""

    hint: Any
    """Its type."""
    value: Any
    """Its default."""
    meaning: str
    """Text of --help about it."""
    needs: str = ""
    """What has to be given for it to have an effect, as NAME=VALUE; empty if it has one."""


def _as_spelled(options: Any, explained: bool, choice: Choice | None = None) -> Any:
    """Return a dataclass instance whose fields are those options that the kinds in `options` have, as they are spelled.

    What chooses a kind is an option among them. `from_dict` of its `to_dict` is `options` again.

    Args:
      options: an instance of a dataclass, or None if there is none of the kinds.
      explained: whether what each option means is needed, which takes time to find.
      choice: the kinds that it is one of.
    """
    kind = type(options)
    found = {} if choice is None else _choosing_options(options, explained, choice)
    texts = _meanings(kind) if explained and options is not None else {}
    hints, choices = typing.get_type_hints(kind), choices_of(kind) if options is not None else {}
    for field in dataclasses.fields(options) if options is not None else ():
        name, value, meaning = field.name, getattr(options, field.name), texts.get(field.name, "")
        inner = choices.get(name)
        is_group = inner is not None or dataclasses.is_dataclass(value)
        shown = _as_spelled(value, explained, inner) if is_group else value
        if inner is not None and not inner.nested:
            found |= _next_to(found, shown, inner, meaning)
            continue
        hint = type(shown) if is_group else hints[name]
        if choice is not None and name in choice.absent:
            hint = _or(hint, choice.absent[name])
        found[name] = _Shown(hint, shown, meaning, _needs(field) if _is_idle(options, field) else "")
    usual = choice.kinds[0] if options is None and choice is not None else kind
    # tyro reads "help", and would otherwise parse sources to find the meaning, even where no help is asked for.
    form = dataclasses.make_dataclass(
        usual.__name__,
        [
            (name, each.hint, dataclasses.field(default=each.value, metadata={"shown": each, "help": each.meaning}))
            for name, each in found.items()
        ],
        kw_only=True,
        frozen=True,
    )
    form.__doc__ = usual.__doc__
    return form()


def _choosing_options(options: Any, explained: bool, choice: Choice) -> dict[str, _Shown]:
    """Return the options that choose another kind than that of `options`, which may be None."""
    kind, usual, found = type(options), choice.kinds[0], {}
    for tag in choice.tags:
        if options is None:
            none = choice.absent[tag]
            hint = _or(typing.get_type_hints(usual)[tag], none)
            found[tag] = _Shown(hint, none, _meanings(usual)[tag] if explained else "")
        elif (reachable := choice.reachable(kind, tag)) and tag in (*choosing(kind), *spelled_names(kind)):
            meanings = [f"{value}: {' '.join(_paragraphs(each)[:1])}" for value, each in reachable.items()]
            meaning = " ".join([*meanings, ITS_OPTIONS])
            found[tag] = _Shown(Literal[tuple(reachable)], choosing(kind).get(tag), meaning)
    return found


def _next_to(found: dict[str, _Shown], shown: Any, choice: Choice, meaning: str) -> dict[str, _Shown]:
    """Return the options in a field that is spelled flat; what chooses its kind has the values that `found` has."""
    added = {}
    for field in dataclasses.fields(shown):
        each: _Shown = field.metadata["shown"]
        if field.name in choice.tags and choice.values(field.name):
            other = found.get(field.name, each)
            each = each._replace(hint=other.hint, meaning=f"{meaning} {other.meaning}")
        added[field.name] = each
    return added


def _is_idle(options: Any, field: dataclasses.Field[Any]) -> bool:
    """Return whether an option has its default, and no other value would have an effect, so that --help is silent."""
    if "shown" in field.metadata:
        return field.metadata["shown"].needs != ""
    return options is not None and not has_effect(options, field) and getattr(options, field.name) == field.default


def _needs(field: dataclasses.Field[Any]) -> str:
    """Return NAME=VALUE with which an option has an effect that belongs to another one; … for a value of the user."""
    name, *values = field.metadata["of"]
    return f"{re.split(' or | and ', name)[0]}={next(filter(None, values), '…')}"


def _hidden(options: Any, path: str = "") -> list[str]:
    """Return NAME=VALUE with which an option is shown that --help leaves out, for each, at any depth.

    `options` are as they are spelled. Those come first of which the value is known.
    """
    found = []
    for field in dataclasses.fields(options):
        if _is_idle(options, field):
            found.append(path + field.metadata["shown"].needs)
        elif dataclasses.is_dataclass(value := getattr(options, field.name)):
            found += _hidden(value, f"{path}{field.name}.")
    return sorted(found, key=lambda each: "…" in each)


ITS_OPTIONS = "--help shows the options of the one that is chosen."


def _or(hint: Any, *values: Any) -> Any:
    """Return the type of an option that may also have these values: texts of a choice, or None."""
    if typing.get_origin(hint) is Literal:
        return Literal[tuple(dict.fromkeys([*values, *typing.get_args(hint)]))]
    return hint | None if None in values else hint


def parse(default: Any, arguments: list[str], usage: str, description: str = "", whole: bool = True) -> Any:
    """Return `default` with the options in `arguments` applied.

    Args:
      default: a dataclass instance, or a dataclass if some of its options are required.
      arguments: words of the command line, such as `--seed=1`.
      usage: usage of the command, such as `bert-jax evaluate WORKDIR --data.path=STORE`.
      description: what it does and what its words mean, for `--help`, which prints them with the options and exits.
      whole: whether nothing changes the options later, so that one that is given without effect is refused.

    Raises:
      UserError: an unknown option, a value of the wrong type, or an option without effect.
    """
    import tyro

    helps = asks_for_help(arguments)
    if helps and isinstance(default, type):
        needed = [field for field in dataclasses.fields(default) if field.default is dataclasses.MISSING]
        default = default(**{field.name: "" if field.type is str else tyro.MISSING for field in needed})
    is_class = isinstance(default, type)
    chosen = default if is_class else switched(default, _given(arguments))
    if helps and not is_class:  # which options have an effect also depends on the values that are given
        with contextlib.suppress(UserError):
            chosen = parse(default, [word for word in arguments if not asks_for_help([word])], usage)
    elif not is_class:
        refuse_other_kinds(chosen, _given(arguments))
        _warn_of_dropped(default, chosen, _given(arguments))
    options = default if is_class else _as_spelled(chosen, explained=helps)
    if helps:
        print_help(options, usage, description)  # and exit
    program = " ".join(usage.split()[:2])
    others = () if is_class else dotted_names(type(default))
    arguments = _spelled_out(arguments, _option_names(options), options, others)
    if missing := _missing(options, arguments):
        raise UserError(f"give the required {' and '.join(missing)}; see {program} --help")
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            parsed = tyro.cli(
                options if is_class else type(options),
                prog=usage,
                default=tyro.MISSING_NONPROP if is_class else options,
                args=arguments,
                use_underscores=True,
                config=(tyro.conf.FlagConversionOff, tyro.conf.AvoidSubcommands),
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        raise UserError(_one_line(printed.getvalue(), program)) from None
    result = parsed if is_class else from_dict(type(default), to_dict(parsed))
    check_numbers(result)
    if whole:
        given = [word[2:].partition("=")[0] for word in arguments if word.startswith("--")]
        check_effects(result, given=given, preset=None if is_class else default)
    return result


def _given(arguments: list[str]) -> dict[str, str]:
    """Return the text of each option that is spelled with its full name."""
    given = {}
    for word, following in zip(arguments, [*arguments[1:], ""], strict=False):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            given[name.replace("-", "_")] = value if equals else following
    return given


def _warn_of_dropped(before: Any, after: Any, given: Mapping[str, str]) -> None:
    """Log what `before` has, other than usual, and the kinds that were chosen in its place have not."""
    old, new = flattened(to_dict(before)), flattened(to_dict(after))
    if old.keys() <= new.keys():
        return
    usual = flattened(to_dict(switched(type(before)(), {name: str(value) for name, value in old.items()})))
    dropped = [
        f"{name}={value}"
        for name, value in old.items()
        if name not in given and value not in ((None, new[name]) if name in new else (usual.get(name),))
    ]
    if dropped:
        from absl import logging as absl_logging

        absl_logging.warning("other kinds were chosen, which do without %s", first_lines(dropped))


def load_config(path: str) -> Config:
    """Return the Config at `path`: a Python file with `get_config()`, a config.json, or the name of a shipped one.

    A Python file is executed, so use JSON for files from someone else.

    Raises:
      UserError: there is no such file or name, or the file has no configuration.
    """
    file = named_file(path, shipped_configs(), "configuration")
    if file.suffix == ".json":
        from bert_jax.files import read_object

        values = read_object(file, "give a whole one")
        if other := not_of_pretraining(options_recorded(values)):
            raise UserError(f"{path} is of {other}; give the config.json of a run of pre-training")
        return from_dict(Config, options_recorded(values))
    if file.suffix != ".py":
        raise UserError(f"{path!r} is not a configuration: expected a .py file with get_config(), or a config.json")
    config = defined(file, "get_config", Config)
    check_kinds(config)
    return config


def load_study(path: str) -> Study:
    """Return the Study at `path`: a Python file with `get_study()`, or the name of a shipped one.

    The file is executed.

    Raises:
      UserError: there is no such file or name, or its study is not sound.
    """
    file = named_file(path, shipped_studies(), "study")
    if file.suffix != ".py":
        raise UserError(f"{path!r} is not a study: expected a .py file with get_study()")
    return check_study(defined(file, "get_study", Study))


def load_speedrun(path: str) -> Speedrun:
    """Return the Speedrun at `path`: a Python file with `get_speedrun()`, or the name of a shipped one.

    The file is executed.

    Raises:
      UserError: there is no such file or name, or its speedrun is not sound.
    """
    file = named_file(path, shipped_speedruns(), "speedrun")
    if file.suffix != ".py":
        raise UserError(f"{path!r} is not a speedrun: expected a .py file with get_speedrun()")
    return check_speedrun(defined(file, "get_speedrun", Speedrun))


Defined = TypeVar("Defined")


def defined(file: pathlib.Path, function: str, kind: type[Defined]) -> Defined:
    """Execute a Python file, and return what its `function` returns.

    Raises:
      UserError: the file raises an exception, or the function does not return a `kind`.
    """
    spec = importlib.util.spec_from_file_location(f"bert_jax_config_{file.stem}", file)
    assert spec is not None and spec.loader is not None  # as of every .py file
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        found = getattr(module, function)() if hasattr(module, function) else None
    except UserError:
        raise
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
        if isinstance(error, SyntaxError) and error.filename == str(file):
            lines.append(error.lineno)
        where = f"{file}, line {lines[-1]}," if lines else str(file)  # a file that cannot be read has no line
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"{where} raises {what}; correct it (--debug shows the traceback)") from error
    if not isinstance(found, kind):
        raise UserError(f"{file} must define {function}() that returns a {kind.__name__}, not {type(found).__name__}")
    return found


def named_file(path: str, shipped: Mapping[str, pathlib.Path], kind: str) -> pathlib.Path:
    """Return the file at `path`, or the shipped one of this name; raise a UserError if there is neither.

    A shipped file may also be named as it lies in the repository, `configs/NAME.py`, from any directory.
    """
    file = pathlib.Path(path)
    if not file.is_file():
        from_repository = {f"configs/{each.name}": each for each in shipped.values() if each.parent.name == "configs"}
        file = {**from_repository, **shipped}.get(path, file)
    if file.is_file():
        return file
    close = difflib.get_close_matches(file.stem, shipped, n=1)
    hint = f"; perhaps you meant {close[0]}" if close else ""
    near = sorted(p.name for p in file.parent.glob("*.py")) if file.parent.is_dir() and file.name != path else []
    more = f" and {len(near) - 8} more" if len(near) > 8 else ""
    there = f"; {file.parent} has {', '.join(near[:8])}{more}" if near else ""
    raise UserError(f"no {kind} file {path!r}{hint}{there}; these come with bert_jax: {', '.join(shipped)}")


def configured(arguments: list[str], usage: str, description: str = "") -> Config:
    """Return the checked Config that results from CONFIG and the options after it."""
    path, options = positional(arguments, usage, "CONFIG")
    return check(parse(load_config(path) if path else Config(), options, usage, description))


def divided(arguments: list[str], names: list[str], config: Config) -> tuple[list[str], list[str]]:
    """Return the words for the options with these names, and those for the options of `config`, which have other names.

    Raises:
      UserError: an option of neither that resembles one of `names`.
    """
    others = [
        *_option_names(config),
        *dotted_names(type(config)),
        *(field.name for field in dataclasses.fields(PhaseConfig)),
    ]
    first: list[str] = []
    second: list[str] = []
    chosen = second
    for word in arguments:
        if word.startswith("--"):
            name = word[2:].partition("=")[0].replace("-", "_")
            chosen = first if name in names else second
            close = [] if name in others else difflib.get_close_matches(name, [*names, *others], n=1)
            if close and chosen is second and close[0] in names:
                raise UserError(f"unknown option --{name}; perhaps you meant --{close[0]}")
        chosen.append(word)
    return first, second


def asks_for_help(arguments: list[str]) -> bool:
    """Return whether the words ask for help rather than for the command."""
    return bool({"--help", "-h"}.intersection(arguments))


def positional(arguments: list[str], usage: str, name: str) -> tuple[str, list[str]]:
    """Return the first word, which must not be an option, and the others; "" and all words if they ask for help."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0], arguments[1:]
    if asks_for_help(arguments):
        return "", arguments
    raise UserError(f"usage: {usage}; {name} comes first" + (f", not {arguments[0]}" if arguments else ""))


def positionals(arguments: list[str], usage: str, name: str) -> tuple[list[str], list[str]]:
    """Return the words before the first option, of which there must be one, and the others; see `positional`."""
    first, words = positional(arguments, usage, name)
    further = list(itertools.takewhile(lambda word: not word.startswith("-"), words))
    return [first, *further], words[len(further) :]


def _option_names(default: Any, prefix: str = "") -> list[str]:
    """Return the dotted names of all leaves of a dataclass (instance or class), with the indices of tuples."""
    names = []
    for field in dataclasses.fields(default):
        value = getattr(default, field.name, None)
        if isinstance(value, tuple) and dataclasses.is_dataclass(value[0] if value else None):
            for index, item in enumerate(value):
                names += _option_names(item, f"{prefix}{field.name}.{index}.")
        elif dataclasses.is_dataclass(value):
            names += _option_names(value, f"{prefix}{field.name}.")
        else:
            names.append(prefix + field.name)
    return names


def _spelled_out(arguments: list[str], names: list[str], config: Any, others: Sequence[str] = ()) -> list[str]:
    """Return the same words with short forms replaced by full names; raise a UserError about unknown options.

    It may suggest one of `others`, such as an option of a kind that is not chosen.
    """
    fields = dataclasses.fields(PhaseConfig) if hasattr(config, "phases") else ()
    phase_fields = [field.name for field in fields if field.name not in PHASE_GROUPS]  # --model.name is the run's
    out, takes_value, is_whole = [], False, False
    for word, following in zip(arguments, [*arguments[1:], ""], strict=False):
        if takes_value or not word.startswith("--"):
            if not takes_value:
                raise UserError(f"unexpected word {word!r}: options are written --name=value")
            out.append(_in_full(word) if is_whole else word)
            takes_value = False
            continue
        name, equals, value = word[2:].partition("=")
        name = name.replace("-", "_")
        if name in phase_fields:
            if len(config.phases) > 1:
                full = " and ".join(f"--phases.{i}.{name}" for i in range(len(config.phases)))
                raise UserError(
                    f"--{name} is ambiguous: this configuration has {len(config.phases)} phases; set {full} instead"
                )
            name = f"phases.0.{name}"
        if phase_fields:
            _refuse_in_phase(name, value if equals else following, names, config)
        if name not in names:
            known = [*names, *phase_fields, *others]
            close = difflib.get_close_matches(name, known, n=1) or [n for n in known if n.endswith("." + name)]
            hint = f"; perhaps you meant --{close[0]}" if close else "; --help lists the options"
            raise UserError(f"unknown option --{name}{hint}")
        if not equals and isinstance(_value(config, name), tuple) and (not following or following.startswith("--")):
            raise UserError(f"--{name} has no values; give some, separated by commas, or none with --{name}=")
        if (
            not equals and isinstance(_value(config, name), bool) and following.lower() not in ("true", "false")
        ):  # --grid alone
            equals, value = "=", "True"
        if value.lower() in ("true", "false") and not isinstance(_value(config, name), str):
            value = value.capitalize()
        takes_value = not equals
        is_whole = _is_whole(config, name)
        if is_whole:
            value = ",".join(map(_in_full, value.split(",")))
        if isinstance(_value(config, name), tuple) and equals:  # --grid_epochs=3,4; --init_from_layers= for none
            out += [f"--{name}", *(value.split(",") if value else ())]
        else:
            out.append(f"--{name}{equals}{value}")
    return out


def _refuse_in_phase(name: str, value: str, names: list[str], config: Config) -> None:
    """Raise a UserError about an option of a phase that is not there, or one that only whole runs have.

    Args:
      name: dotted name of the option, of a phase or not.
      value: what it is given.
      names: those that `config` has.
    """
    found, phases = re.fullmatch(r"phases\.(\d+)\.(.+)", name), len(config.phases)
    if found is None:
        return
    if int(found[1]) >= phases:
        there = "1 phase, phases.0" if phases == 1 else f"{phases} phases, the last of which is phases.{phases - 1}"
        raise UserError(
            f"--{name}: this configuration has {there}; phases are added in a configuration file, "
            "of which docs/pretraining.md has an example"
        )
    of_run, objectives = found[2], choices_of(Config)["objective"].values("name")
    if of_run == "objective.name" and value in set(objectives).difference(typing.get_args(SharedObjective)):
        name, of_run = f"{name}={value}", f"{of_run}={value}"
    elif name in names or of_run not in dotted_names(Config):
        return
    shared = "one set of arrays" if of_run.startswith(("model.", "objective.")) else "it"
    raise UserError(
        f"--{name} is not for a phase, since all phases of a run share {shared}; give --{of_run} for the whole run, or "
        "to a second run that starts from this one (--init_from)"
    )


def _missing(default: Any, arguments: list[str]) -> list[str]:
    """Return the options without a default, where `default` is a class, that are not among spelled-out arguments."""
    given = {word.partition("=")[0] for word in arguments}
    return [
        f"--{field.name}"
        for field in dataclasses.fields(default)
        if isinstance(default, type) and field.default is dataclasses.MISSING and f"--{field.name}" not in given
    ]


def _value(config: Any, name: str):
    """Return the value of the option with this dotted name, or None if there is no instance that has it."""
    for part in name.split("."):
        config = config[int(part)] if isinstance(config, tuple) else getattr(config, part, None)
    return config


def _is_whole(config: Any, name: str) -> bool:
    """Return whether the option with this dotted name takes whole numbers."""
    hint: Any = None
    for part in name.split("."):
        if isinstance(config, tuple):
            config = config[int(part)]
            continue
        hint = typing.get_type_hints(config if isinstance(config, type) else type(config)).get(part)
        config = getattr(config, part, None)
    kinds = {hint, *typing.get_args(hint)}
    return int in kinds and not kinds & {str, float}


def _in_full(value: str) -> str:
    """Return a whole number such as 1e6 or 2.5e3 in digits; anything else as it is."""
    if (
        re.fullmatch(r"[0-9]{1,20}(\.[0-9]{0,20})?[eE]\+?[0-9]{1,2}", value)
        and (number := decimal.Decimal(value)) % 1 == 0
    ):
        return str(int(number))
    return value


def _one_line(text: str, program: str) -> str:
    """Return tyro's boxed message as one line."""
    words = " ".join(re.sub(r"[│╭╮╰╯─┬┴├┤]+|-{20,}", " ", text).split())  # it draws with - if stdout is not UTF-8
    several = r"Could not find valid parse for arguments: (\[.*?\]) Argument helptext: \S+ \[(\w+) .*"  # of a tuple
    words = re.sub(several, r"\1 is not \2,\2,…", words)
    words = re.sub(
        r"invalid literal for int\(\) with base 10: (\S+)|Exceeds the limit .* conversion.*", _no_integer, words
    )
    words = re.sub(r"could not convert string to float: (\S+)", r"\1 is not a number", words)
    words = re.sub(r" *(Argument helptext:|For full helptext,) .*", "", words)
    words = re.sub(r"^(Parsing|Value) error (Error )?|^Invalid choice ", "", words).rstrip(". ")
    return f"{words}; see {program} --help"


def _no_integer(found: re.Match[str]) -> str:
    return f"{found[1]} is not a whole number" if found[1] else "a number of thousands of digits is beyond every range"


class OneLine(logging.Formatter):
    """Formats a log record as one line, `warning: …`, without time, thread, source location and traceback."""

    def format(self, record: logging.LogRecord) -> str:
        cause = f": {record.exc_info[1]}" if record.exc_info and record.exc_info[1] else ""
        return f"{record.levelname.lower()}: {' '.join(f'{record.getMessage()}{cause}'.split())}"


def quiet_libraries() -> None:
    """Log warnings and errors as one line each, except those of Orbax and asyncio about a save that fails.

    Orbax logs the same failure four times, and closes the event loop while writes are still in flight: asyncio logs
    each of them, or Python prints a traceback, or warns of those that had not begun. `Checkpoints` raises the failure
    with its reason and the way out.

    TensorFlow, which opens gs:// paths, logs from C++ what it found in the processor and how it looked for credentials.
    It reads how much of that to show when it is imported, by this process or by one that this process starts. It is
    imported without Keras, which nothing here uses, so that commands start sooner.
    """
    for name, value in (("TF_CPP_MIN_LOG_LEVEL", "2"), ("TF_ENABLE_ONEDNN_OPTS", "0"), ("TF_USE_LEGACY_KERAS", "1")):
        os.environ.setdefault(name, value)
    from absl import logging as absl_logging

    absl_logging.set_verbosity(absl_logging.WARNING)  # Orbax logs every file at INFO
    handler = absl_logging.get_absl_handler()
    handler.setFormatter(OneLine())
    specs = map(importlib.util.find_spec, ("orbax.checkpoint", "asyncio"))
    saving = tuple(os.path.dirname(spec.origin) + os.sep for spec in specs if spec and spec.origin)
    handler.addFilter(lambda record: record.levelno < logging.ERROR or not record.pathname.startswith(saving))
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    shown = sys.unraisablehook
    sys.unraisablehook = lambda raised: None if str(raised.exc_value) == "Event loop is closed" else shown(raised)


Command = Callable[[list[str]], int | None]
Commands = Mapping[str, Command]


def _command(commands: Commands, name: str) -> Command:
    """Return the command with this name; raise a UserError that suggests the nearest one if there is none."""
    if name not in commands:
        close = difflib.get_close_matches(name, commands, n=1)
        raise UserError(
            f"unknown command {name!r}"
            + (f"; perhaps you meant {close[0]}" if close else "")
            + f"; commands: {', '.join(commands)}"
        )
    return commands[name]


def _answer(commands: Commands, words: list[str]) -> int | None:
    """Run the command in `words`, or print the help or version that they ask for; return the exit status."""
    if not words or words[0] in ("-h", "--help") or words[0] == "help" and (not words[1:] or asks_for_help(words[1:2])):
        print(overview(commands.values()))
    elif words[0] == "--version":
        print(version())
    elif words[0] == "help":
        return _command(commands, words[1])([*words[2:], "--help"])
    else:
        command = _command(commands, words[0])
        # The first two open no path of the options; launch leaves that to other machines.
        check = need_known_place if words[0] in ("info", "config", "launch") else need_cloud_storage
        for word in [] if asks_for_help(words) else _joined(_without_texts(words[1:])):
            check(word)
        return command(words[1:])
    return None


def _without_texts(words: list[str]) -> list[str]:
    """Return the words of a command without the texts and web addresses among them, which may begin like a path."""
    text = re.compile(r"--(text|pair|allowed_origins|allowed_hosts)=|.*(\s|\[MASK\]|<mask>)")
    before = ["", *words]
    return [word for number, word in enumerate(words) if not text.match(word) and not text.match(f"{before[number]}=")]


def _joined(words: list[str]) -> list[str]:
    """Return the words with each value that stands alone behind its option as --name=value."""
    before = ["", *words]
    return [
        f"{before[number]}={word}" if before[number].startswith("--") and "=" not in before[number] else word
        for number, word in enumerate(words)
    ]


def run_command(commands: Commands, argv: list[str]) -> int:
    """Run the command that `argv` names; return its exit status, which is 2 if it was used wrongly.

    Args:
      argv: name of the program, command and words for it; --debug among them shows tracebacks, and
        --no_compilation_cache lets JAX, which is not imported yet, compile everything again.
    """
    debug = "--debug" in argv
    words = [word for word in argv[1:] if word not in ("--debug", "--no_compilation_cache")]
    if "--no_compilation_cache" in argv:
        os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    try:
        status = _answer(commands, words)
        if status is None:  # what it has printed is its result; a run has others
            sys.stdout.flush()
        return status or 0
    except UserError as error:
        if debug:
            traceback.print_exc()
        _tell(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        _tell("interrupted")
        return 130
    except BrokenPipeError:  # `bert-jax … | head`
        return 0
    except OSError as error:  # a full disk, a lost mount: nothing that a traceback would explain
        if debug:
            traceback.print_exc()
        _tell(f"error: {error.filename or ' '.join(words[:1]) or 'bert-jax'}: {error.strerror or error}")
        return 2
    except Exception as error:
        if debug or not is_of_cloud_storage(error):
            raise
        if foreign := re.search(r"not implemented \(file: '([^']*)'\)", str(error)):
            _tell(f"error: {foreign[1]}: only local files and those of gs:// can be opened")
            return 2
        if not any("gs://" in word for word in words):
            raise
        _tell(
            f"error: Google Cloud Storage: {' '.join(str(error).split())[:300]}; check the name in "
            f"{_first_bucket(words)}, the network and your credentials (gcloud auth application-default login); "
            "--debug shows the whole traceback"
        )
        return 2


def _tell(text: str) -> None:
    with contextlib.suppress(OSError):  # standard error may be a file on the disk that is full: the status counts
        print(text, file=sys.stderr)


def _first_bucket(words: list[str]) -> str:
    """Return the first bucket that the words name, as gs://BUCKET."""
    return next(match[0] for word in words if (match := re.search(r"gs://[^/,\s]*", word)))


def leave(status: int) -> int:
    """Return `status`, or end the process with it if a thread is left for which Python would wait for minutes.

    XLA may still compile after a signal, and Orbax wait for a save that has failed. Python would also replace the
    status by 120 if what is left to print could not be written.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    # The name is signals.COMPILING, whose import would import jax.
    for thread in threading.enumerate():
        if thread.name.startswith("compiling") or type(thread).__module__.startswith("orbax."):
            os._exit(status)
    return status


def no_flags(argv: list[str]) -> list[str]:
    from absl import flags
    from absl import logging as absl_logging

    flags.FLAGS.mark_as_parsed()  # tyro parses the options; absl only handles logging and exit
    absl_logging.set_verbosity(absl_logging.INFO) if "--debug" in argv else quiet_libraries()
    return argv
