"""The output of `bert-jax help`, `--version` and `COMMAND --help` (made by tyro from the docstrings of the options)."""

import contextlib
import dataclasses
import importlib.metadata
import io
import operator
import platform
import re
import shutil
import sys
import textwrap
import typing
from collections.abc import Callable, Iterable
from typing import Any, TextIO

from bert_jax import __version__


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
      description: paragraphs with an empty line between them.
    """
    import tyro

    cls, instance = (default, tyro.MISSING_NONPROP) if isinstance(default, type) else (type(default), default)
    required = [
        name
        for name in re.findall(r"--([\w.]+)=", re.sub(r"\[.*?\]", "", usage))
        if cls is default or operator.attrgetter(name)(default) == ""
    ]
    for name in required if cls is not default else ():
        instance = _replaced(instance, name, tyro.MISSING)
    paragraphs = description.split("\n\n")
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
    import docstring_parser
    import tyro

    if not (isinstance(info.type, type) and dataclasses.is_dataclass(info.type)):
        return None
    types = typing.get_type_hints(info.type)
    meanings = {  # those of the class from which it inherits are not in its own source
        found.arg_name: found.description
        for cls in reversed(info.type.__mro__)
        if dataclasses.is_dataclass(cls)
        for found in docstring_parser.parse_from_object(cls).params
    }
    fields = []
    for field in dataclasses.fields(info.type):
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
                " ".join((meanings.get(field.name) or "").split()),
            )
        )
    return tyro.constructors.StructConstructorSpec(info.type, tuple(fields))
