"""The only exception class that users see, and the checks for optional libraries."""

import importlib.util
import re


class UserError(Exception):
    """A mistake that the user can correct: a bad option, file, store, checkpoint or work directory.

    The message is one paragraph: what was wrong, the value seen, the value expected, the way out. The command line
    prints it as `error: …` and exits with status 2; it shows a traceback only with `--debug`.
    """


def need_extra(library: str, extra: str, purpose: str, otherwise: str = "") -> None:
    """Check that a library of an optional extra of bert_jax is installed, without importing it.

    Args:
      library: name of the library's package.
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


def need_cloud_storage(path: str) -> None:
    """Check that `path` can be opened if it is a gs:// path: by TensorFlow if that is installed, else by gcsfs.

    Args:
      path: a path, several separated by commas, or a word of the command line such as `--workdir=gs://bucket/run`.

    Raises:
      UserError: neither is installed; the message names the extra.
    """
    if re.search(r"(^|[=,])gs://", path) and importlib.util.find_spec("tensorflow") is None:
        need_extra("gcsfs", "gcs", path)


def is_of_cloud_storage(error: BaseException) -> bool:
    """Return whether a library that reads gs:// paths has raised `error`: each has its own classes."""
    return type(error).__module__.split(".")[0] in ("tensorflow", "gcsfs", "aiohttp", "google")
