"""How the command line shows what libraries log: one line per message, and none that a `UserError` explains better."""

import importlib.util
import logging
import os
import sys


class OneLine(logging.Formatter):
    """Formats a log record as one line, `warning: …`, without time, thread, source location and traceback."""

    def format(self, record: logging.LogRecord) -> str:
        cause = f": {record.exc_info[1]}" if record.exc_info and record.exc_info[1] else ""
        return f"{record.levelname.lower()}: {' '.join(f'{record.getMessage()}{cause}'.split())}"


def show_libraries() -> None:
    """Log everything from INFO on, in the format of the libraries."""
    from absl import logging as absl_logging

    absl_logging.set_verbosity(absl_logging.INFO)


def quiet_libraries() -> None:
    """Log warnings and errors as one line each, except those of Orbax and asyncio about a save that fails.

    Orbax logs the same failure four times, and closes the event loop while writes are still in flight: asyncio logs
    each of them, or Python prints a traceback. `Checkpoints` raises the failure with its reason and the way out.

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
    shown = sys.unraisablehook
    sys.unraisablehook = lambda raised: None if str(raised.exc_value) == "Event loop is closed" else shown(raised)
