"""From the words of `bert-jax launch` to what a platform runs."""

import dataclasses
import os

from bert_jax.config.checks import check
from bert_jax.config.launching import PLATFORMS
from bert_jax.console.command_line import asks_for_help, divided, load_config, parse, positional
from bert_jax.console.help import described, usage
from bert_jax.errors import UserError
from bert_jax.pods.gke import run_gke
from bert_jax.pods.job import Job
from bert_jax.pods.local import run_local
from bert_jax.pods.slurm import run_slurm
from bert_jax.pods.tpu import run_tpu

RUN = {"tpu": run_tpu, "gke": run_gke, "slurm": run_slurm, "local": run_local}


def start(platform: str, words: list[str]) -> int:
    """Launch a run on a platform; return the exit code of the launch.

    Args:
      platform: a name in PLATFORMS.
      words: CONFIG, and options of the platform and of pretrain.

    Raises:
      UserError: an unknown platform, or options that cannot work; nothing has been started.
    """
    if platform not in PLATFORMS:
        raise UserError(f"unknown platform {platform!r}; platforms: {', '.join(PLATFORMS)}")
    cls = PLATFORMS[platform]
    if asks_for_help(words):
        parse(cls, ["--help"], *described(cls))  # which exits
    path, words = positional(words, usage(cls), "CONFIG")
    default = load_config(path)
    own, others = divided(words, [field.name for field in dataclasses.fields(cls)], default)
    options = parse(cls, own, *described(cls))
    config = check(parse(default, others, *described(cls)))
    if os.environ.get("JAX_ENABLE_COMPILATION_CACHE") == "false":  # --no_compilation_cache, taken from every command
        others = [*others, "--no_compilation_cache"]
    return RUN[platform](Job(path, tuple(others), config), options)
