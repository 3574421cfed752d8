"""Running one of the commands of cli/: its help, its errors in one line, its exit status."""

import difflib
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Mapping

from bert_jax.console.command_line import asks_for_help
from bert_jax.console.help import overview, version
from bert_jax.console.log import quiet_libraries, show_libraries
from bert_jax.errors import UserError, is_of_cloud_storage, need_cloud_storage

Command = Callable[[list[str]], int]
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


def _answer(commands: Commands, words: list[str]) -> int:
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
        if words[0] not in ("info", "config", "launch") and not asks_for_help(words):
            for word in words[1:]:
                need_cloud_storage(word)
        return command(words[1:])
    return 0


def run_command(commands: Commands, argv: list[str]) -> int:
    """Run the command that `argv` names; return its exit status, which is 2 if it was used wrongly.

    Args:
      commands: the commands by name.
      argv: name of the program, command and words for it; --debug among them shows tracebacks, and
        --no_compilation_cache lets JAX, which is not imported yet, compile everything again.
    """
    debug = "--debug" in argv
    words = [word for word in argv[1:] if word not in ("--debug", "--no_compilation_cache")]
    if "--no_compilation_cache" in argv:
        os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    try:
        return _answer(commands, words)
    except UserError as error:
        if debug:
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `bert-jax … | head`
        return 0
    except OSError as error:  # a full disk, a lost mount: nothing that a traceback would explain
        if debug:
            traceback.print_exc()
        print(
            f"error: {error.filename or ' '.join(words[:1]) or 'bert-jax'}: {error.strerror or error}", file=sys.stderr
        )
        return 2
    except Exception as error:
        if debug or not (is_of_cloud_storage(error) and any("gs://" in word for word in words)):
            raise
        print(
            f"error: Google Cloud Storage: {' '.join(str(error).split())[:300]}; check the name in "
            f"{_first_bucket(words)}, the network and your credentials (gcloud auth application-default login); "
            "--debug shows the whole traceback",
            file=sys.stderr,
        )
        return 2


def _first_bucket(words: list[str]) -> str:
    """Return the first bucket that the words name, as gs://BUCKET."""
    return next(match[0] for word in words if (match := re.search(r"gs://[^/,\s]*", word)))


def leave(status: int) -> int:
    """Return `status`, or end the process with it if a signal came while XLA compiles, for which Python would wait."""
    # The name is signals.COMPILING, whose import would import jax.
    if any(thread.name.startswith("compiling") for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


def no_flags(argv: list[str]) -> list[str]:
    from absl import flags

    flags.FLAGS.mark_as_parsed()  # tyro parses the options; absl only handles logging and exit
    show_libraries() if "--debug" in argv else quiet_libraries()
    return argv
