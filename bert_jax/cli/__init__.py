"""`bert-jax COMMAND …`: one short function per command; each imports what it needs, so that `--help` is instant.

The docstring of a command is its help: its usage, what it does, and its arguments. Options that the first line shows
outside brackets are required.
"""

import io
import os
import sys

from bert_jax.cli import commands
from bert_jax.console import leave, no_flags, run_command
from bert_jax.devices.process import start_anew

COMMANDS = {
    "demo": commands.demo,
    "train-vocab": commands.train_vocab,
    "extend-vocab": commands.extend_vocab,
    "prepare": commands.prepare,
    "inspect": commands.inspect,
    "describe": commands.describe,
    "count": commands.count,
    "info": commands.info,
    "plan": commands.plan,
    "bench": commands.bench,
    "analyze": commands.analyze,
    "config": commands.config,
    "pretrain": commands.pretrain,
    "study": commands.study,
    "launch": commands.launch,
    "status": commands.status,
    "report": commands.report,
    "doctor": commands.doctor,
    "evaluate": commands.evaluate,
    "fill-mask": commands.fill_mask,
    "finetune": commands.finetune,
    "predict": commands.predict,
    "results": commands.results,
    "convert": commands.convert,
}

COMPUTING = ("demo", "pretrain", "study", "evaluate", "fill-mask", "analyze", "finetune", "predict")
"""The commands that run a model in their own process."""


def _run(argv: list[str]) -> int:
    return run_command(COMMANDS, argv)


def main() -> None:
    if sys.argv[1:2] and sys.argv[1] in COMPUTING:
        start_anew(os.environ)
    from absl import app

    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal that is not UTF-8 shows ? in place of a traceback
        sys.stdout.reconfigure(errors="replace")
    app.run(lambda argv: leave(_run(argv)), argv=sys.argv, flags_parser=no_flags)
