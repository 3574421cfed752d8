"""A Python that has imported nothing yet, once for all tests: it forks for each program, and the fork runs that.

So a program finds what a new interpreter would, without the time that starting one takes. Variables such as PYTHONPATH,
which Python reads as it starts, are those of the first program.
"""

import dataclasses
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from processes import SECONDS

INTERPRETER = f"""
import json, os, signal, sys
for line in sys.stdin:
    code, words, environment, directory, files = json.loads(line)
    child = os.fork()
    if not child:
        break
    print(json.dumps([child, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]), flush=True)
else:
    sys.exit()
signal.alarm({SECONDS})  # ends what hangs
for stream, file in enumerate([os.devnull, *files]):
    os.dup2(os.open(file, os.O_WRONLY if stream else os.O_RDONLY), stream)
os.chdir(directory)
os.environ.clear()
os.environ.update(environment)
sys.argv = ["-c", *words]
sys.orig_argv = [sys.executable, "-c", code, *words]  # by which a program starts itself anew
exec(compile(code, "<string>", "exec"), {{"__name__": "__main__"}})
"""
ROOT = pathlib.Path(__file__).parents[2]
COMMAND = "import runpy; runpy.run_module('bert_jax', run_name='__main__', alter_sys=True)"


@dataclasses.dataclass(frozen=True)
class Ended:
    """A program that has ended."""

    pid: int
    returncode: int
    """Negative if a signal has ended it, as that of `subprocess`."""
    stdout: str
    stderr: str


def run(code: str, *words: str, cwd: pathlib.Path | None = None, env: dict[str, str] | None = None) -> Ended:
    """Run `python -c CODE WORDS…` to its end."""
    interpreter, place = _interpreter(), cwd or pathlib.Path.cwd()
    with tempfile.TemporaryDirectory() as directory:
        files = [pathlib.Path(directory, name) for name in ("stdout", "stderr")]
        for file in files:
            file.touch()
        program = [
            code,
            list(map(str, words)),
            dict(os.environ if env is None else env),
            str(place),
            list(map(str, files)),
        ]
        interpreter.stdin.write(json.dumps(program) + "\n")
        interpreter.stdin.flush()
        return Ended(*json.loads(interpreter.stdout.readline()), *(file.read_text() for file in files))


def loaded_by(code: str) -> set[str]:
    """Return the modules that a new interpreter in the checkout has after `code`."""
    ended = run(f"{code}\nimport sys; print('\\n', *sys.modules)", cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    return set(ended.stdout.splitlines()[-1].split())


def end() -> None:
    """End the interpreter, if there is one, and wait for it: its processor time is then known."""
    if _interpreter.cache_info().currsize:
        _interpreter().communicate()
        _interpreter.cache_clear()


@functools.cache
def _interpreter() -> subprocess.Popen:
    words = [sys.executable, "-c", INTERPRETER]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
