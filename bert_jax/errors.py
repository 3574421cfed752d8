"""The only exception class that users see, and checks that raise it: of numbers and of optional libraries."""

import importlib.util
import math
import re


class UserError(Exception):
    """A mistake that the user can correct: a bad option, file, store, checkpoint or work directory.

    The message is one paragraph: what was wrong, the value seen, the value expected, the way out. The command line
    prints it as `error: …` and exits with status 2; it shows a traceback only with `--debug`.
    """


def need_extra(library: str, extra: str, purpose: str, otherwise: str = "") -> None:
    """Check that a library of an optional extra of bert_jax is installed, without importing it.

    Args:
      extra: extra of bert_jax that installs it.
      purpose: what needs it, as the beginning of the message.
      otherwise: another way out, if there is one.

    Raises:
      UserError: it is not installed; the message names the extra.
    """
    try:
        found = importlib.util.find_spec(library)
    except ModuleNotFoundError:  # the package that a dotted name is in
        found = None
    if found is None:
        raise UserError(
            f"{purpose} needs {library}, which is not installed; pip install 'bert_jax[{extra}]' installs it"
            + (f", and {otherwise}" if otherwise else "")
        )


PLACES = ("gs", "hf")
"""Beginnings of paths, before ://, that are not local."""


def need_place_to_write(path: str, word: str = "") -> None:
    """Raise a UserError that begins with the `word` of the command line if `path` is a name of the hub."""
    if path.startswith("hf://"):
        raise UserError(
            f"{word or path:.200}: hf:// names models and data sets to read, neither places to write to nor token "
            "stores; give a path that is local, or begins with gs://"
        )


def need_known_place(path: str) -> None:
    """Check that `path` is local or of one of PLACES; see `need_cloud_storage`.

    Raises:
      UserError: it is a URL of another kind, or a word such as `--workdir=hf://owner/name`, which would write to the
        hub; the message names what can be opened.
    """
    if option := re.match(r"--(workdir|output|pretrainings|data\.path)=", path):
        need_place_to_write(path[option.end() :], path)
    for scheme, rest in re.findall(r"(?:^|[=,])([A-Za-z][\w+.-]*)://([^,]*)", path):
        if scheme not in PLACES:
            instead = (
                f"give the path alone, {rest:.100}" if scheme == "file" else "copy it to one of them, and give that"
            )
            raise UserError(f"{path:.200}: paths are local, or begin with gs:// (Google Cloud Storage); {instead}")


def need_cloud_storage(path: str) -> None:
    """Check that `path` can be opened: it is local, or on gs://, which TensorFlow opens if it is installed, else gcsfs.

    Args:
      path: a path, several separated by commas, or a word of the command line such as `--workdir=gs://bucket/run`.

    Raises:
      UserError: it begins with anything else, or neither is installed; the message names the extra.
    """
    need_known_place(path)
    if re.search(r"(^|[=,])gs://", path) and importlib.util.find_spec("tensorflow") is None:
        need_extra("gcsfs", "gcs", path)


def is_of_cloud_storage(error: BaseException) -> bool:
    """Return whether a library that reads gs:// paths has raised `error`: each has its own classes."""
    return type(error).__module__.split(".")[0] in ("tensorflow", "gcsfs", "aiohttp", "google")


def at_least(least: int, **values: int) -> None:
    """Raise a UserError if one of the values, by the names of their options, is less."""
    for name, value in values.items():
        if value < least:
            raise UserError(f"{name}={value} must be at least {least}")


def need_positive(part: object, prefix: str, *names: str) -> None:
    """Raise a UserError unless the options `names` of `part`, named after `prefix`, are positive or None."""
    for name in names:
        value = getattr(part, name)
        if value is not None and not 0 < value < math.inf:
            raise UserError(f"{prefix}{name}={value} must be positive")


def need_no_negative(part: object, prefix: str, *names: str) -> None:
    """Raise a UserError unless the options `names` of `part` are 0 or a positive number."""
    for name in names:
        value = getattr(part, name)
        if not 0 <= value < math.inf:
            raise UserError(f"{prefix}{name}={value} must be 0 or a positive number")


def need_share(part: object, prefix: str, *names: str, below_one: bool = False) -> None:
    """Raise a UserError unless the options `names` of `part` are between 0 and 1, which `below_one` excludes."""
    for name in names:
        value = getattr(part, name)
        if not 0 <= value <= 1 or (below_one and value == 1):
            raise UserError(
                f"{prefix}{name}={value} must be between 0 and 1" + (", 1 not included" if below_one else "")
            )


def first_lines(lines: list[str], most: int = 8) -> str:
    """Return the first few of many short texts and the number of the others, in one line."""
    return "; ".join(lines[:most]) + (f"; and {len(lines) - most} more" if len(lines) > most else "")
