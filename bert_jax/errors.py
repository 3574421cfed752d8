"""The only exception class that users see."""

import importlib.util


class UserError(Exception):
    """A mistake that the user can correct: a bad option, file, store, checkpoint or work directory.

    The message is one paragraph: what was wrong, the value seen, the value expected, the way out. The command line
    prints it as `error: …` and exits with status 2; it shows a traceback only with `--debug`.
    """


def need_extra(library: str, extra: str, purpose: str, otherwise: str = "") -> None:
    """Check that a library of an optional extra of bert_jax is installed; it is not imported.

    Args:
      purpose: what needs it, the beginning of the message.
      otherwise: another way out, if there is one.

    Raises:
      UserError: it is not; the message names the extra.
    """
    if importlib.util.find_spec(library) is None:
        raise UserError(
            f"{purpose} needs {library}, which is not installed; pip install 'bert_jax[{extra}]' brings it"
            + (f", and {otherwise}" if otherwise else "")
        )
