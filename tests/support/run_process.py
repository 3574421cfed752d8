"""A pre-training run in a process of its own with one device, which may be killed."""

import json
import pathlib
import subprocess

import processes
from dying import dying
from processes import SECONDS

from bert_jax.config import Config
from bert_jax.config.options import to_dict


def start(config: Config, dies_after: int = 0) -> subprocess.Popen:
    """The same run in a process of its own with one device, through the command line."""
    file = pathlib.Path(config.workdir).with_suffix(".json")
    file.write_text(json.dumps(to_dict(config)))
    with open(log_of(config), "w") as log:
        env = processes.one_device(killed=dies_after > 0)
        return subprocess.Popen(dying(dies_after, "pretrain", str(file)), env=env, stdout=log, stderr=subprocess.STDOUT)


def log_of(config: Config) -> pathlib.Path:
    return pathlib.Path(config.workdir).with_suffix(".log")


def finish(process: subprocess.Popen, config: Config, seconds: float = SECONDS) -> tuple[int, str]:
    """Exit status and everything that was printed; a process that is late does not go on beside the next tests."""
    try:
        return process.wait(seconds), log_of(config).read_text()
    finally:
        process.kill()
        process.wait()
