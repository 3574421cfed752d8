"""Commands on a configuration, without a run: its options, sizes, memory and speed."""

from bert_jax.config import Config
from bert_jax.config.checks import check
from bert_jax.console.command_line import asks_for_help, configured, load_config, parse, positional
from bert_jax.console.help import choices, described, usage
from bert_jax.errors import UserError


def config(arguments: list[str]) -> int:
    """config show CONFIG | bert-jax config diff CONFIG CONFIG

    Print the resolved options as JSON, or the options in which two configurations differ.

    CONFIG is a shipped configuration such as bert_base, a .py file with get_config(), or the config.json of a work
    directory. `show` also takes the options listed here.
    """
    import json

    from bert_jax.config.json_form import differences, to_dict

    action, rest = positional(arguments, usage(config), "show or diff")
    if action == "show" or asks_for_help(rest):
        print(json.dumps(to_dict(configured(rest, *described(config))), indent=2))
    elif action == "diff" and len(rest) == 2:
        first, second = (to_dict(check(load_config(path))) for path in rest)
        print("\n".join(differences(first, second)) or "no differences")
    else:
        raise UserError(f"usage: {usage(config)}")
    return 0


def info(arguments: list[str]) -> int:
    """info CONFIG

    Print the parameters by part, FLOPs and memory of a configuration, and how they grow with the sequence length.

    CONFIG is a shipped configuration such as bert_base, a .py file with get_config(), or the config.json of a work
    directory. `bert-jax info CONFIG --help` shows its values as defaults; without CONFIG the defaults are the built-in
    ones.
    """
    config = configured(arguments, *described(info))
    from bert_jax.commands.information import run_info

    run_info(config)
    return 0


def plan(arguments: list[str]) -> int:
    """plan CONFIG --topology=MACHINE [--search] [--price_per_chip_hour=P] [--output=FILE.json|FILE.html]

    Compile a run for TPUs you do not have, and report its memory, transfers, time and cost; exit with 1 if it does not
    fit.

    CONFIG is that of `bert-jax pretrain`, and all options of that command apply. The TPU compiler comes with the extra
    `plan`. A program is compiled once, which takes minutes, and then kept.
    """
    from bert_jax.config.planning import PlanConfig

    path, words = positional(arguments, usage(plan), "CONFIG")
    options = parse(PlanConfig.of(load_config(path) if path else Config()), words, *described(plan))
    from bert_jax.planning.whole_plan import run_plan

    return run_plan(options, arguments)


def bench(arguments: list[str]) -> int:
    """bench step|data|prepare|load|finetune|attention … [--peer=torch --peer_python=PYTHON] [--output=FILE.json]

    Measure speed. bert_jax and its competitors take turns within one run, and the machine is recorded with the result.

    Each benchmark has further options: `bert-jax bench step --help` lists those of step. With --peer=torch the same
    work is done in torch and transformers, in an environment that --peer_python names.
    """
    from bert_jax.config.benchmarking import BENCHMARKS

    benchmark, words = positional(arguments, usage(bench), " or ".join(BENCHMARKS))
    if not benchmark:
        print(choices(bench, BENCHMARKS.values()))
        return 0
    from bert_jax.bench.benchmarks import run_benchmark

    run_benchmark(benchmark, words)
    return 0
