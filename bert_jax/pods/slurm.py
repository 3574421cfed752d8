"""`bert-jax launch slurm`: a job with one task per GPU, submitted with sbatch."""

import re
import sys

from bert_jax.config.launching import SlurmConfig
from bert_jax.errors import UserError
from bert_jax.pods.job import Job, at_least, need_name
from bert_jax.pods.shell import call, need_program, say, shown
from bert_jax.pods.wheel import PACKAGE


def run_slurm(job: Job, options: SlurmConfig) -> int:
    """Submit the job, unless one of its name is queued or running, or cancel it; return 0.

    Raises:
      UserError: the options cannot work, or Slurm reports a failure.
    """
    _check(options)
    submit, cancel = submit_words(job, options), ["scancel", "--me", f"--name={options.name}"]
    if options.dry_run:
        print(shown(cancel if options.teardown else submit))
        return 0
    need_program("sbatch", "run this on a login node of the cluster")
    if options.teardown:
        call(cancel)
        say(f"{options.name} is cancelled")
        return 0
    queued = call(["squeue", "--me", f"--name={options.name}", "--noheader", "--format=%i %T"]).split()
    if queued:
        number, state = queued[:2]
        say(f"{options.name} is job {number} already, {state}; --teardown cancels it")
    else:
        number = call(submit).strip().partition(";")[0]  # a federation adds the name of the cluster
        say(f"{options.name} is job {number}")
    say(f"log:    tail --follow=name --retry {options.name}-{number}.log")
    say(f"state:  squeue --job={number}")
    return 0


def submit_words(job: Job, options: SlurmConfig) -> list[str]:
    """Return the words of the command that submits the job; it prints the number of the job."""
    given = {
        "partition": options.partition,
        "account": options.account,
        "time": options.time,
        "cpus-per-task": options.cpus_per_task,
    }
    return [
        "sbatch",
        "--parsable",
        f"--job-name={options.name}",
        f"--nodes={options.nodes}",
        # JAX takes one process per GPU; each sees all GPUs of its node and picks its own.
        f"--ntasks-per-node={options.gpus_per_node}",
        f"--gpus-per-node={options.gpus_per_node}",
        *(f"--{name}={value}" for name, value in given.items() if value),
        "--requeue",
        "--open-mode=append",
        f"--signal=TERM@{options.notice_seconds}",
        f"--output={options.name}-%j.log",
        str(PACKAGE / "pods" / "slurm.sh"),
        str(options.max_restarts),
        *job.command(sys.executable, "-m", "bert_jax"),
    ]


def _check(options: SlurmConfig) -> None:
    need_name(options.name)
    at_least(options, nodes=1, gpus_per_node=1, cpus_per_task=0, notice_seconds=1, max_restarts=0)
    if options.time and not re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}", options.time):
        raise UserError(f"--time={options.time} is not a time limit of Slurm, such as 24:00:00 or 2-12:00:00")
    for name in ("partition", "account"):
        if not re.fullmatch(r"[\w.,-]*", getattr(options, name)):
            raise UserError(f"--{name}={getattr(options, name)} is not a name that Slurm allows")
