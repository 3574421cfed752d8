"""The one exception class that people see."""


class UserError(Exception):
    """Something the user can put right: a bad option, file, store, checkpoint or work directory.

    The message is one paragraph: what was wrong, the value seen, the value expected, the way out. The command line
    prints it as `error: …` and exits with status 2; a traceback is shown only with `--debug`.
    """
