"""Run the benchmark that the words of `bert-jax bench` name, once its options are checked."""

import dataclasses
from typing import TypeVar

from bert_jax.config import Config, commands
from bert_jax.config.checks import check
from bert_jax.config.finetuning import FinetuneConfig, check_finetune, task_defaults
from bert_jax.console import described, divided, load_config, parse, positional, usage
from bert_jax.errors import UserError, at_least

AnyPhase = TypeVar("AnyPhase", bound=commands.PhaseTurnsConfig)


def run_benchmark(name: str, words: list[str]) -> None:
    """Run a benchmark, or print its help.

    Raises:
      UserError: an unknown benchmark, or options that cannot work; nothing has been measured.
    """
    if name not in commands.BENCHMARKS:
        raise UserError(f"unknown benchmark {name!r}; benchmarks: {', '.join(commands.BENCHMARKS)}")
    runs = {"step": _step, "data": _data, "prepare": _prepare, "load": _load, "finetune": _finetune}
    (runs | {"attention": _attention})[name](words)


def _step(words: list[str]) -> None:
    path, given = positional(words, usage(commands.StepBenchConfig), "CONFIG")
    options = _of_a_phase(commands.StepBenchConfig, load_config(path) if path else Config(), given)
    from bert_jax.tools.bench.step import run_step

    run_step(options, words)


def _data(words: list[str]) -> None:
    store, given = positional(words, usage(commands.DataBenchConfig), "STORE")
    path, given = positional(given, usage(commands.DataBenchConfig), "CONFIG")
    config = load_config(path) if path else Config()
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, path=store))
    options = _of_a_phase(commands.DataBenchConfig, config, given)
    from bert_jax.tools.bench.data import run_data

    run_data(options, words)


def _finetune(words: list[str]) -> None:
    task, given = positional(words, usage(commands.FinetuneBenchConfig), "TASK")
    default = commands.FinetuneBenchConfig.of(task_defaults(task) if task else FinetuneConfig())
    options = parse(default, given, *described(commands.FinetuneBenchConfig))
    commands.check_turns(options)
    at_least(1, texts=options.texts)
    check_finetune(options.run)
    from bert_jax.tools.bench.finetuning import run_finetune

    run_finetune(options, words)


def _prepare(words: list[str]) -> None:
    options = parse(commands.PrepareBenchConfig, words, *described(commands.PrepareBenchConfig))
    commands.check_turns(options)
    at_least(1, max_bytes=options.max_bytes)
    from bert_jax.tools.bench.data import run_prepare_benchmark

    run_prepare_benchmark(options, words)


def _load(words: list[str]) -> None:
    path, given = positional(words, usage(commands.LoadBenchConfig), "MODEL")
    options = parse(commands.LoadBenchConfig(), given, *described(commands.LoadBenchConfig))
    commands.check_turns(options)
    if options.turn_seconds != commands.LoadBenchConfig().turn_seconds:
        raise UserError(f"turn_seconds={options.turn_seconds} has no effect: a turn is one process; leave it out")
    from bert_jax.formats.opening import need_model

    need_model(path)
    from bert_jax.tools.bench.finetuning import run_load

    run_load(path, options, words)


def _attention(words: list[str]) -> None:
    options = parse(commands.AttentionBenchConfig(), words, *described(commands.AttentionBenchConfig))
    commands.check_turns(options)
    commands.check_attention_bench(options)
    from bert_jax.tools.bench.attention import run_attention

    run_attention(options, words)


def _of_a_phase(cls: type[AnyPhase], config: Config, words: list[str]) -> AnyPhase:
    """Return the checked options of a benchmark of one phase of `config`.

    The options of that phase need no prefix, so which one it is has to be known before they are read.
    """
    phase, _ = divided(words, ["phase"], config)
    variants, words = divided(words, ["variant"], config)
    options = parse(cls.of(config, _phase(phase)), words, *described(cls))
    options = dataclasses.replace(options, variant=tuple(_values(variants)))
    commands.check_turns(options)
    check(options.run)
    return options


def _phase(words: list[str]) -> int:
    value = (_values(words) or ["0"])[-1]
    if not value.isdecimal():
        raise UserError(f"phase={value} must be the number of a phase, counted from 0")
    return int(value)


def _values(words: list[str]) -> list[str]:
    """Return the values of an option that may be given several times: --variant=A --variant B."""
    return [
        word.partition("=")[2] if word.startswith("--") else word
        for word in words
        if "=" in word or not word.startswith("--")
    ]
