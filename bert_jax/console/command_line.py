"""Typed options: from the words of a command line to the dataclasses of `config`, through tyro.

tyro parses and checks types. This module adds one-line errors, the short forms `--steps`, `--batch_size` … of a run
with a single phase, and configuration files.
"""

import contextlib
import dataclasses
import difflib
import importlib.util
import io
import itertools
import pathlib
import re
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from bert_jax.config import Config, PhaseConfig
from bert_jax.config.checks import check
from bert_jax.config.json_form import from_dict, options_recorded
from bert_jax.config.shipped import shipped_configs
from bert_jax.console.help import print_help
from bert_jax.errors import UserError


def parse(default: Any, arguments: list[str], usage: str, description: str = "") -> Any:
    """Return `default` with the options in `arguments` applied.

    Args:
      default: a dataclass instance, or a dataclass if some of its options are required.
      arguments: words of the command line, such as `--seed=1`.
      usage: usage of the command, such as `bert-jax evaluate WORKDIR --data.path=STORE`.
      description: what it does and what its words mean, for `--help`, which prints them with the options and exits.

    Raises:
      UserError: an unknown option, or a value of the wrong type.
    """
    import tyro

    if asks_for_help(arguments):
        print_help(default, usage, description)  # and exit
    cls, instance = (default, None) if isinstance(default, type) else (type(default), default)
    arguments, program = _spelled_out(arguments, _option_names(default), default), " ".join(usage.split()[:2])
    if missing := _missing(default, arguments):
        raise UserError(f"give the required {' and '.join(missing)}; see {program} --help")
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            return tyro.cli(
                cls,
                prog=usage,
                default=tyro.MISSING_NONPROP if instance is None else instance,
                args=arguments,
                use_underscores=True,
                config=(tyro.conf.FlagConversionOff, tyro.conf.AvoidSubcommands),
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        raise UserError(_one_line(printed.getvalue(), program)) from None


def load_config(path: str) -> Config:
    """Return the Config at `path`: a Python file with `get_config()`, a config.json, or the name of a shipped one.

    A Python file is executed, so use JSON for files from someone else.

    Raises:
      UserError: there is no such file or name, or the file has no configuration.
    """
    file = named_file(path, shipped_configs(), "configuration")
    if file.suffix == ".json":
        from bert_jax.files import read_object

        return from_dict(Config, options_recorded(read_object(file, "give a whole one")))
    if file.suffix != ".py":
        raise UserError(f"{path!r} is not a configuration: expected a .py file with get_config(), or a config.json")
    module = executed(file)
    config = module.get_config() if hasattr(module, "get_config") else None
    if not isinstance(config, Config):
        raise UserError(f"{path} must define get_config() that returns a bert_jax.Config, not {type(config).__name__}")
    return config


def executed(file: pathlib.Path) -> ModuleType:
    """Return the module that a Python file makes when it is executed."""
    spec = importlib.util.spec_from_file_location(f"bert_jax_config_{file.stem}", file)
    assert spec is not None and spec.loader is not None  # as of every .py file
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    there = f"; {file.parent} has {', '.join(near)}" if near else ""
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
    others = [*_option_names(config), *(field.name for field in dataclasses.fields(PhaseConfig))]
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


def _spelled_out(arguments: list[str], names: list[str], config: Any) -> list[str]:
    """Return the same words with short forms replaced by full names; raise a UserError about unknown options."""
    phase_fields = [field.name for field in dataclasses.fields(PhaseConfig)] if isinstance(config, Config) else []
    out, takes_value = [], False
    for word, following in zip(arguments, [*arguments[1:], ""], strict=False):
        if takes_value or not word.startswith("--"):
            if not takes_value:
                raise UserError(f"unexpected word {word!r}: options are written --name=value")
            out.append(word)
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
        if name not in names:
            close = difflib.get_close_matches(name, names + phase_fields, n=1) or [
                n for n in names if n.endswith("." + name)
            ]
            hint = f"; perhaps you meant --{close[0]}" if close else "; --help lists the options"
            raise UserError(f"unknown option --{name}{hint}")
        if (
            not equals and isinstance(_value(config, name), bool) and following.lower() not in ("true", "false")
        ):  # --grid alone
            equals, value = "=", "True"
        if value.lower() in ("true", "false") and not isinstance(_value(config, name), str):
            value = value.capitalize()
        takes_value = not equals
        if isinstance(_value(config, name), tuple) and equals:  # --grid_epochs=3,4; --init_from_layers= for none
            out += [f"--{name}", *(value.split(",") if value else ())]
        else:
            out.append(f"--{name}{equals}{value}")
    return out


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


def _one_line(text: str, program: str) -> str:
    """Return tyro's boxed message as one line."""
    words = " ".join(re.sub(r"[│╭╮╰╯─┬┴├┤]+|-{20,}", " ", text).split())  # it draws with - if stdout is not UTF-8
    several = r"Could not find valid parse for arguments: (\[.*?\]) Argument helptext: \S+ \[(\w+) .*"  # of a tuple
    words = re.sub(several, r"\1 is not \2,\2,…", words)
    words = re.sub(r" *(Argument helptext:|For full helptext,) .*", "", words)
    words = re.sub(r"^(Parsing|Value) error (Error )?|^Invalid choice ", "", words).rstrip(". ")
    return f"{words}; see {program} --help"
