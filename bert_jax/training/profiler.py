"""Traces of a range of steps for XProf, below the `profile` folder of the work directory."""

import contextlib
import os
import pathlib
import tempfile
from typing import Any

import jax
from absl import logging
from etils import epath

from bert_jax.files import is_remote

FOLDER = "profile"


class Profiler:
    """Traces the steps of a range on the first host. A trace that fails is a warning, never the end of a run.

    Args:
      workdir: the work directory, local or gs://.
      steps: numbers of steps after which a traced step begins.
    """

    def __init__(self, workdir: str | os.PathLike[str], steps: range):
        self._folder = epath.Path(workdir) / FOLDER
        self._steps = steps if jax.process_index() == 0 else range(0)
        self._local: pathlib.Path | None = None  # where the trace is being written

    def step(self, step: int, state: Any) -> contextlib.AbstractContextManager[Any]:
        """Return a context for the step that begins after `step`; begins the trace before its first one.

        Args:
          state: arrays whose computation is waited for, so that the trace has whole steps.
        """
        if step not in self._steps:
            return contextlib.nullcontext()
        if self._local is None:
            self._start(state)
        return jax.profiler.StepTraceAnnotation("train", step_num=step)

    def finish(self, step: int, state: Any) -> None:
        """End the trace if `step` is its last one."""
        if self._local is not None and step >= self._steps.stop:
            jax.block_until_ready(state)
            self.close()

    def close(self) -> None:
        """End the trace if there is one, even before its last step, and put its files into the work directory."""
        if self._local is None:
            return
        local, self._local, self._steps = self._local, None, range(0)
        try:
            jax.profiler.stop_trace()
            _move(local, self._folder)
            logging.info("the trace is in %s; show it with xprof --logdir=%s", self._folder, self._folder)
        except (OSError, RuntimeError) as error:
            logging.warning("the trace could not be written to %s: %s", self._folder, error)

    def _start(self, state: Any) -> None:
        jax.block_until_ready(state)
        # jaxlib writes to no bucket, so the files of a trace are copied there.
        remote = is_remote(self._folder)
        self._local = pathlib.Path(tempfile.mkdtemp(prefix="bert_jax-") if remote else self._folder)
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # an evaluation that compiles would fill the trace with calls of Python
        try:
            jax.profiler.start_trace(self._local, profiler_options=options)
        except (OSError, RuntimeError) as error:
            self._local, self._steps = None, range(0)
            logging.warning("no trace is written to %s: %s", self._folder, error)

    def __enter__(self) -> "Profiler":
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()


def _move(local: pathlib.Path, folder: epath.Path) -> None:
    """Copy the files of a trace from a temporary directory, and delete them there; nothing if it is the folder."""
    if os.fspath(local) == os.fspath(folder):
        return
    for file in [file for file in local.rglob("*") if file.is_file()]:
        target = folder / file.relative_to(local)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
        file.unlink()
