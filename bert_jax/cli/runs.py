"""Commands on runs of pre-training: start, launch, watch, compare."""

import dataclasses

from bert_jax.config import Config
from bert_jax.config.checks import check
from bert_jax.console.command_line import divided, load_config, parse, positional, positionals
from bert_jax.console.help import choices, described, usage
from bert_jax.errors import UserError


def demo(arguments: list[str]) -> int:
    """demo [--workdir=DIR]

    Run every step from vocabulary to filled-in masks within minutes, on text that comes with Python.
    """
    from bert_jax.config.commands import DemoConfig

    options = parse(DemoConfig(), arguments, *described(demo))
    from bert_jax.commands.demo import run_demo

    return run_demo(options)


def pretrain(arguments: list[str]) -> int:
    """pretrain CONFIG --data.path=STORE --workdir=DIR

    Pre-train a model on a token store. The same command resumes an interrupted run.

    CONFIG is a shipped configuration such as bert_base, a .py file (its get_config() returns a bert_jax.Config), or the
    config.json of a work directory. Options override its values. `bert-jax pretrain CONFIG --help` shows its values as
    defaults; without CONFIG the defaults are the built-in ones. The options of a run's only phase need no prefix:
    --steps means --phases.0.steps.
    """
    from bert_jax.config.launching import LocalConfig, PretrainConfig

    path, words = positional(arguments, usage(pretrain), "CONFIG")
    options = parse(PretrainConfig.of(load_config(path) if path else Config()), words, *described(pretrain))
    config = check(options.run)
    if options.simulate_hosts < 0:
        raise UserError(
            f"simulate_hosts={options.simulate_hosts} must be a number of hosts, or 0 to train in this process"
        )
    if options.simulate_hosts:
        from bert_jax.pods.job import Job
        from bert_jax.pods.local import run_local

        _, rest = divided(words, ["simulate_hosts"], config)
        return run_local(Job(path, tuple(rest), config), LocalConfig(hosts=options.simulate_hosts))
    from bert_jax.pretraining import pretrain as run

    return run(config).exit_code


def study(arguments: list[str]) -> int:
    """study NAME --data.path=STORE --workdir=DIR [--task_data=DIR] [--steps=N …]

    Run pre-trainings and fine-tunings that differ in one thing, and write one table and one picture that compare our
    figures with those of the paper. The same command resumes after an interruption. The exit status is 1 if a run
    failed.

    NAME is a shipped study such as replacement, or a .py file whose get_study() returns a Study of
    bert_jax.config.studying. Options of `bert-jax pretrain` apply to all arms (--data.path=STORE, --steps=N), and so do
    those of `bert-jax finetune` with a prefix (--finetune.epochs=2). Options in which the arms differ are refused.
    Everything is checked before anything runs; --dry_run stops after the checks.
    """
    from bert_jax.config.studying import StudyConfig

    path, words = positional(arguments, usage(study), "NAME")
    if not path:
        parse(StudyConfig, words, *described(study))  # --help
    from bert_jax.studies.study_file import given_words, load_study

    found = load_study(path)
    own, others = divided(words, [field.name for field in dataclasses.fields(StudyConfig)], Config())
    options = parse(StudyConfig, own, *described(study))
    from bert_jax.studies.study_loop import run_study

    return run_study(found, options, given_words(others))


def launch(arguments: list[str]) -> int:
    """launch tpu|gke|slurm|local CONFIG --data.path=STORE --workdir=DIR [--dry_run]

    Start a pre-training run on several hosts, and restart it after a preemption or a crash.

    CONFIG is that of `bert-jax pretrain`, and all options of that command apply. Each platform has further options:
    `bert-jax launch tpu --help` lists those of tpu. With --dry_run the commands are printed, and nothing is run.
    """
    from bert_jax.config.launching import PLATFORMS

    platform, words = positional(arguments, usage(launch), " or ".join(PLATFORMS))
    if not platform:
        print(choices(launch, PLATFORMS.values()))
        return 0
    from bert_jax.pods.start import start

    return start(platform, words)


def status(arguments: list[str]) -> int:
    """status WORKDIR

    Print how a run is doing: its step, rates, goodput, checkpoint and process, and what deserves a look.

    WORKDIR is the work directory of a run of pre-training or fine-tuning, local or gs://. The command only reads its
    files, so it can be used while the run is active.
    """
    from bert_jax.config.watching import StatusConfig

    workdir, options = positional(arguments, usage(status), "WORKDIR")
    config = parse(StatusConfig(), options, *described(status))
    from bert_jax.monitoring.status import run_status

    run_status(workdir, config)
    return 0


def report(arguments: list[str]) -> int:
    """report WORKDIR… --output=FILE.html

    Compare runs in one HTML file: curves to hover over and enlarge, options that differ, events, held-out figures.

    WORKDIR is the work directory of a run, local or gs://, of pre-training or fine-tuning.
    """
    from bert_jax.config.watching import ReportConfig

    workdirs, words = positionals(arguments, usage(report), "WORKDIR")
    config = parse(ReportConfig, words, *described(report))
    from bert_jax.monitoring.comparison import run_report

    run_report(workdirs, config)
    return 0


def doctor(arguments: list[str]) -> int:
    """doctor PATH

    Look for the classic failures of a token store or a run, and say how to repair them. The exit status is 1 if one is
    found.

    PATH is a token store that `bert-jax prepare` wrote, or the work directory of a run, local or gs://. A run whose
    token store is on this machine is examined together with its data.
    """
    from bert_jax.config.watching import DoctorConfig

    path, options = positional(arguments, usage(doctor), "PATH")
    config = parse(DoctorConfig(), options, *described(doctor))
    from bert_jax.monitoring.doctor import run_doctor

    return run_doctor(path, config)
