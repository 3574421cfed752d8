"""Variants of ours as contestants: the same command with other options or environment variables."""

import re
import shlex

from bert_jax.config import Config
from bert_jax.config.checks import check
from bert_jax.console.command_line import parse

OURS = "bert_jax"  # the contestant with the options as they are given


def varied(config: Config, words: str) -> tuple[Config, dict[str, str]]:
    """Return the options and the environment of a variant: "compute.dtype=bfloat16 XLA_FLAGS=--flag".

    Raises:
      UserError: there is no such option.
    """
    options, environment = [], {}
    for word in shlex.split(words):
        name, equals, value = word.removeprefix("--").partition("=")
        if equals and re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
            environment[name] = value
        else:
            options.append(f"--{name}{equals}{value}")
    return check(parse(config, options, "bert-jax bench step")), environment
