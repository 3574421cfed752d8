"""The wheel that workers install: the one that is given, or one built from the checkout that this code is in."""

import importlib.util
import pathlib
import sys

from bert_jax import __version__
from bert_jax.errors import UserError

PACKAGE = pathlib.Path(__file__).resolve().parents[1]


def find_wheel(given: str) -> tuple[pathlib.Path, list[str]]:
    """Return the file of the wheel, and the command that has to build it first, which is empty if it is `given`.

    Raises:
      UserError: `given` is no wheel, or none is given and this code is not in a checkout.
    """
    if given:
        file = pathlib.Path(given)
        if not file.is_file() or file.suffix != ".whl":
            raise UserError(f"--wheel={given} is not a wheel: give the .whl file of bert_jax that the workers install")
        return file, []
    checkout = PACKAGE.parent
    if not (checkout / "pyproject.toml").is_file():
        raise UserError(
            "bert_jax is installed without its source, so there is nothing to build a wheel from; give --wheel=FILE"
        )
    directory = checkout / "build" / "launch"
    # Without isolation the build needs no network; hatchling comes with `make install`.
    isolation = ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else []
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", *isolation]
    return directory / f"bert_jax-{__version__}-py3-none-any.whl", [*build, f"--wheel-dir={directory}", str(checkout)]
