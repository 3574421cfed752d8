"""Pre-training runs in processes with one device, which may be killed and draw no curves.

They are forked from a process that has imported everything; `run_process` begins with the command line, as users do.
"""

import json
import os
import pathlib
import sys

import jax
import pictures
import processes
from dying import die_after

from bert_jax.config import Config
from bert_jax.config.options import to_dict
from bert_jax.console import load_config
from bert_jax.pretraining import pretrain


def run(config: Config, dies_after: int = 0) -> tuple[int, str]:
    """Return the exit status of the run, negative if a signal ended it, and everything that was printed.

    With `dies_after` it kills itself at an arbitrary moment after that step.
    """
    file, log = (pathlib.Path(config.workdir).with_suffix(suffix) for suffix in (".json", ".log"))
    file.write_text(json.dumps(to_dict(config)))
    environment = processes.one_device(killed=dies_after > 0)
    process = processes.forks(__name__).Process(target=_pretrain, args=(str(file), str(log), environment, dies_after))
    process.start()
    try:
        process.join(processes.SECONDS)
        assert process.exitcode is not None, log.read_text()
        return process.exitcode, log.read_text()
    finally:
        process.kill()
        process.join()


def _pretrain(file: str, log: str, environment: dict[str, str], dies_after: int) -> None:
    written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(written, stream)
    os.environ.update(environment)
    seconds = float(environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", seconds)
    pictures.leave_out()
    if dies_after:
        die_after(dies_after)
    sys.exit(pretrain(load_config(file)).exit_code)
