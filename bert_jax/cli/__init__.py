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
    command.__name__.replace("_", "-"): command
    for command in (
        *(commands.demo, commands.train_vocab, commands.extend_vocab, commands.prepare, commands.inspect),
        *(commands.describe, commands.count, commands.info, commands.plan, commands.bench, commands.analyze),
        *(commands.config, commands.pretrain, commands.study, commands.speedrun, commands.launch),
        *(commands.status, commands.report, commands.doctor, commands.replay, commands.evaluate, commands.fill_mask),
        *(commands.generate, commands.score, commands.finetune, commands.predict, commands.results),
        *(commands.index, commands.search, commands.mine, commands.serve, commands.average, commands.convert),
    )
}
"""All commands by name, in the order of `bert-jax help`."""

COMPUTING = (
    *("demo", "pretrain", "study", "speedrun", "replay", "evaluate", "fill-mask", "generate", "score", "analyze"),
    *("finetune", "predict", "index", "search", "mine", "serve"),
)
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
