"""`bert-jax COMMAND …`: one short function per command; each imports what it needs, so that `--help` answers at once.

The docstring of a command is its help: its usage, what it does, what its words mean. Options that its first line has
outside brackets are required.
"""

import io
import os
import sys

from bert_jax.cli import configurations, corpora, runs, trained_models
from bert_jax.console.running import leave, no_flags, run_command
from bert_jax.devices.host_process import start_anew

COMMANDS = {
    "demo": runs.demo,
    "train-vocab": corpora.train_vocab,
    "extend-vocab": corpora.extend_vocab,
    "prepare": corpora.prepare,
    "inspect": corpora.inspect,
    "describe": corpora.describe,
    "count": corpora.count,
    "info": configurations.info,
    "plan": configurations.plan,
    "bench": configurations.bench,
    "analyze": trained_models.analyze,
    "config": configurations.config,
    "pretrain": runs.pretrain,
    "study": runs.study,
    "launch": runs.launch,
    "status": runs.status,
    "report": runs.report,
    "doctor": runs.doctor,
    "evaluate": trained_models.evaluate,
    "fill-mask": trained_models.fill_mask,
    "finetune": trained_models.finetune,
    "predict": trained_models.predict,
    "results": trained_models.results,
    "convert": trained_models.convert,
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
