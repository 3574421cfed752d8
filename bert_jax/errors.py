"""The only exception class that users see."""


class UserError(Exception):
    """A mistake that the user can correct: a bad option, file, store, checkpoint or work directory.

    The message is one paragraph: what was wrong, the value seen, the value expected, the way out. The command line
    prints it as `error: …` and exits with status 2; it shows a traceback only with `--debug`.
    """
