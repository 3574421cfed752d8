"""Every `bert-jax` command: parse its words, import what it needs, and run it.

The docstring of a command is its help. The commands work on configurations (options, sizes, memory, speed), on text
(vocabularies, the token store, examples), on runs of pre-training (start, launch, watch, compare), and on trained
models (evaluate, inspect, fine-tune, predict, convert).
"""

import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from bert_jax.config import Config, PrepareConfig, TrainVocabConfig, commands, finetuning, pretraining, studies, tasks
from bert_jax.config.analyses import ANALYSES
from bert_jax.config.checks import branch_point, check, check_given, run_of, training_paths
from bert_jax.config.search import IndexConfig, MineConfig, SearchConfig
from bert_jax.config.serving import ServeConfig, named_models, need_libraries
from bert_jax.console import (
    asks_for_help,
    choices,
    configured,
    described,
    divided,
    load_config,
    load_speedrun,
    load_study,
    parse,
    positional,
    positionals,
    usage,
)
from bert_jax.devices.process import may_have_peers
from bert_jax.errors import UserError, need_place_to_write

T = TypeVar("T", IndexConfig, MineConfig)


def _need(models: Iterable[str] = (), stores: Iterable[str] = (), runs: Iterable[str] = ()) -> None:
    """Raise a UserError if a place on this machine has no model, store or run, without the seconds that JAX takes.

    One of several processes leaves that to the command itself, which tells the others before it ends.
    """
    if may_have_peers():
        return
    for path in filter(None, models):
        from bert_jax.formats.opening import need_model

        need_model(path)
    for path in filter(None, stores):
        from bert_jax.data.store import need_store

        need_store(path)
    for path in runs:
        from bert_jax.ownership import need_run

        need_run(path)


def _need_inputs(config: Config) -> None:
    """Raise a UserError if what a run of pre-training reads is not on this machine.

    A run that resumes no longer needs its model; whether one in a bucket does, only the command itself knows.
    """
    from bert_jax.files import is_remote

    is_new = not is_remote(config.workdir) and not os.path.isdir(os.path.join(config.workdir, "checkpoints"))
    runs = [branch_point(config.branch_from)[0]] if is_new and config.branch_from else []
    models = [config.init_from] if is_new and not runs else []
    _need(models=models, stores=[*training_paths(config), config.data.eval_path], runs=runs)


def config(arguments: list[str]) -> None:
    """config show CONFIG | bert-jax config diff CONFIG CONFIG

    Print the resolved options as JSON, or the options in which two configurations differ.

    CONFIG is a shipped configuration such as bert_base, a .py file with get_config(), or the config.json of a work
    directory. `show` also takes the options listed here.
    """
    import json

    from bert_jax.config.options import differences, to_dict

    action, rest = positional(arguments, usage(config), "show or diff")
    if action == "show" or asks_for_help(rest):
        print(json.dumps(to_dict(configured(rest, *described(config))), indent=2))
    elif action == "diff" and len(rest) == 2:
        first, second = (to_dict(check(load_config(path))) for path in rest)
        print("\n".join(differences(first, second)) or "no differences")
    else:
        raise UserError(f"usage: {usage(config)}")


def info(arguments: list[str]) -> None:
    """info CONFIG

    Print the parameters by part, FLOPs and memory of a configuration, and how they grow with the sequence length.

    CONFIG is a shipped configuration such as bert_base, a .py file with get_config(), or the config.json of a work
    directory. `bert-jax info CONFIG --help` shows its values as defaults; without CONFIG the defaults are the built-in
    ones.
    """
    config = configured(arguments, *described(info))
    from bert_jax.cli.info import run_info

    run_info(config)


def plan(arguments: list[str]) -> int:
    """plan CONFIG --topology=MACHINE [--search] [--price_per_chip_hour=P] [--output=FILE.json|FILE.html]

    Compile a run for TPUs you do not have, and report its memory, transfers, time and cost; exit with 1 if it does not
    fit.

    CONFIG is that of `bert-jax pretrain`, and all options of that command apply. The TPU compiler comes with the extra
    `plan`. A program is compiled once, which takes minutes, and then kept.
    """
    path, words = positional(arguments, usage(plan), "CONFIG")
    options = parse(commands.PlanConfig.of(load_config(path) if path else Config()), words, *described(plan))
    from bert_jax.tools.planning.topology import find_topology

    commands.check_plan(options)
    find_topology(options.topology)
    check(options.run)
    from bert_jax.tools.planning.plan import run_plan

    return run_plan(options, arguments)


def bench(arguments: list[str]) -> None:
    """bench step|data|prepare|load|finetune|attention … [--peer=torch --peer_python=PYTHON] [--output=FILE.json]

    Measure speed. bert_jax and its competitors take turns within one run, and the machine is recorded with the result.

    Each benchmark has further options: `bert-jax bench step --help` lists those of step. With --peer=torch the same
    work is done in torch and transformers, in an environment that --peer_python names.
    """
    benchmark, words = positional(arguments, usage(bench), " or ".join(commands.BENCHMARKS))
    if not benchmark:
        print(choices(bench, commands.BENCHMARKS.values()))
        return
    from bert_jax.tools.bench.benchmarks import run_benchmark

    run_benchmark(benchmark, words)


def train_vocab(arguments: list[str]) -> None:
    """train-vocab --input=CORPUS --output=VOCAB [--size=N]

    Learn a vocabulary from a corpus: WordPiece, SentencePiece or byte-level BPE.
    """
    options = parse(TrainVocabConfig, arguments, *described(train_vocab))
    from bert_jax.data.preparation.vocabularies import run_train_vocab

    run_train_vocab(options)


def extend_vocab(arguments: list[str]) -> None:
    """extend-vocab --vocab=VOCAB --output=VOCAB [--input=CORPUS | --words=FILE]

    Add the words of a domain to a vocabulary. Every entry keeps its id.

    Give either --input=CORPUS, in which the words are found, or --words=FILE, which lists them.
    """
    options = parse(commands.ExtendVocabConfig, arguments, *described(extend_vocab))
    from bert_jax.data.preparation.vocabularies import run_extend_vocab

    run_extend_vocab(options)


def prepare(arguments: list[str]) -> None:
    """prepare --input=CORPUS --vocab=VOCAB --output=STORE [--runner=beam --beam.NAME=VALUE …]

    Tokenize a corpus once into a token store, which every pre-training run reads.

    NAME is an option of Apache Beam, and VALUE is what it is set to. Such options need --runner=beam.
    """
    prefix = "--beam."
    options = parse(PrepareConfig, [word for word in arguments if not word.startswith(prefix)], *described(prepare))
    beam = tuple(word.removeprefix(prefix) for word in arguments if word.startswith(prefix))
    options = dataclasses.replace(options, beam=(*options.beam, *beam))
    from bert_jax.data.preparation.prepare import run_prepare

    run_prepare(options)


def count(arguments: list[str]) -> None:
    """count STORE --output=COUNTS [--window=N]

    Count how often any two tokens of a store occur near each other, for GloVe (objective.name=glove).

    STORE is a token store that `bert-jax prepare` wrote, local or gs://.
    """
    store, options = positional(arguments, usage(count), "STORE")
    config = parse(commands.CountConfig, options, *described(count))
    from bert_jax.data.pair_counts import run_count

    run_count(store, config)


def describe(arguments: list[str]) -> None:
    """describe STORE [OTHER] --output=FILE.html

    Write the card of a token store: counts, lengths, vocabulary, duplicates, frequent sentences, sources, samples.

    STORE is a token store that `bert-jax prepare` wrote, local or gs://. OTHER is shown next to it.
    """
    stores, words = positionals(arguments, usage(describe), "STORE")
    config = parse(pretraining.DescribeConfig, words, *described(describe))
    _need(stores=stores)
    from bert_jax.tools.description import run_describe

    run_describe(stores, config)


def inspect(arguments: list[str]) -> None:
    """inspect STORE [--document=N | --words=WORDS] [--run=WORKDIR]

    Show, in colour, how documents become sentences, pieces, pairs and masks; or when a run has read them.

    STORE is a token store that `bert-jax prepare` wrote, local or gs://. With --run=WORKDIR every step at which a run
    of `bert-jax pretrain` read a document is listed.
    """
    store, options = positional(arguments, usage(inspect), "STORE")
    config = parse(commands.InspectConfig(), options, *described(inspect))
    _need(stores=[store], runs=[config.run] if config.run else [])
    from bert_jax.cli.inspect import run_inspect

    run_inspect(store, config)


def demo(arguments: list[str]) -> int:
    """demo [--workdir=DIR]

    Run every step from vocabulary to filled-in masks within minutes, on text that comes with Python.
    """
    options = parse(commands.DemoConfig(), arguments, *described(demo))
    from bert_jax.cli.demo import run_demo

    return run_demo(options)


def pretrain(arguments: list[str]) -> int:
    """pretrain CONFIG --data.path=STORE --workdir=DIR

    Pre-train a model on a token store. The same command resumes an interrupted run.

    CONFIG is a shipped configuration such as bert_base, a .py file (its get_config() returns a bert_jax.Config), or the
    config.json of a work directory. Options override its values. `bert-jax pretrain CONFIG --help` shows its values as
    defaults; without CONFIG the defaults are the built-in ones. The options of a run's only phase need no prefix:
    --steps means --phases.0.steps.
    """
    path, words = positional(arguments, usage(pretrain), "CONFIG")
    options = parse(commands.PretrainConfig.of(load_config(path) if path else Config()), words, *described(pretrain))
    config = check(options.run)
    if options.simulate_hosts < 0:
        raise UserError(
            f"simulate_hosts={options.simulate_hosts} must be a number of hosts, or 0 to train in this process"
        )
    if options.simulate_hosts:
        _need_inputs(config)
        from bert_jax.tools.pods.job import Job
        from bert_jax.tools.pods.launch import run_local

        _, rest = divided(words, ["simulate_hosts"], config)
        return run_local(Job(path, tuple(rest), config), commands.LocalConfig(hosts=options.simulate_hosts))
    check_given(config)
    _need_inputs(config)
    print("starting JAX", flush=True)  # which takes seconds
    from bert_jax.pretraining import pretrain as run

    return run(config).exit_code


def study(arguments: list[str]) -> int:
    """study NAME --data.path=STORE --workdir=DIR [--task_data=DIR] [--steps=N …]

    Run pre-trainings and fine-tunings that differ in one thing, and write one table and one picture that compare our
    figures with those of the paper. The same command resumes after an interruption. The exit status is 1 if a run
    failed.

    NAME is a shipped study such as replacement, or a .py file whose get_study() returns a Study of
    bert_jax.config.studies. Options of `bert-jax pretrain` apply to all arms (--data.path=STORE, --steps=N), and so do
    those of `bert-jax finetune` with a prefix (--finetune.epochs=2). Options in which the arms differ are refused.
    Everything is checked before anything runs; --dry_run stops after the checks.
    """
    path, words = positional(arguments, usage(study), "NAME")
    if not path:
        parse(studies.StudyConfig, words, *described(study))  # --help
    found = load_study(path)
    own, others = divided(words, [field.name for field in dataclasses.fields(studies.StudyConfig)], Config())
    options = parse(studies.StudyConfig, own, *described(study))
    if not options.render:  # which shows the study alone
        store, _ = divided(others, ["data.path"], Config())
        _need(stores=[parse(Config(), store, usage(study)).data.path])
    from bert_jax.tools.study import run_study
    from bert_jax.tools.study_plan import given_words

    return run_study(found, options, given_words(others))


def speedrun(arguments: list[str]) -> int:
    """speedrun NAME --data.path=STORE --workdir=DIR [--scores=ARMS --task_data=DIR] [--steps=N …]

    Find how many operations each of several recipes takes to the held-out loss of masked words that the first of them,
    the reference, has at the end of its own run: with intervals over seeds, as one table and one picture. The same
    command resumes after an interruption; started several times, the processes divide the work. The exit status is 1 if
    a run failed.

    NAME is a shipped speedrun such as ladder, or a .py file whose get_speedrun() returns a Speedrun of
    bert_jax.config.studies. Options of `bert-jax pretrain` apply to all arms (--data.path=STORE,
    --model.num_layers=4; --steps=N is that of the reference), and so do those of `bert-jax finetune` with a prefix
    (--finetune.epochs=2). Options in which the arms differ are refused. Everything is checked before anything runs;
    --dry_run stops after the checks.
    """
    path, words = positional(arguments, usage(speedrun), "NAME")
    if not path:
        parse(studies.SpeedrunConfig, words, *described(speedrun))  # --help
    found = load_speedrun(path)
    own, others = divided(words, [field.name for field in dataclasses.fields(studies.SpeedrunConfig)], Config())
    options = parse(studies.SpeedrunConfig, own, *described(speedrun))
    store, _ = divided(others, ["data.path"], Config())
    if not (path := parse(Config(), store, usage(speedrun)).data.path):
        raise UserError("--data.path is missing: give the token store that bert-jax prepare wrote")
    _need(stores=[path])
    from bert_jax.tools.speedrun import run_speedrun
    from bert_jax.tools.study_plan import given_words

    return run_speedrun(found, options, given_words(others))


def launch(arguments: list[str]) -> int:
    """launch tpu|gke|slurm|local CONFIG --data.path=STORE --workdir=DIR [--dry_run]

    Start a pre-training run on several hosts, and restart it after a preemption or a crash.

    CONFIG is that of `bert-jax pretrain`, and all options of that command apply. Each platform has further options:
    `bert-jax launch tpu --help` lists those of tpu. With --dry_run the commands are printed, and nothing is run.
    """
    platform, words = positional(arguments, usage(launch), " or ".join(commands.PLATFORMS))
    if not platform:
        print(choices(launch, commands.PLATFORMS.values()))
        return 0
    from bert_jax.tools.pods.launch import RUN, planned

    job, settings = planned(platform, words)
    if platform == "local" and not settings.dry_run:
        _need_inputs(job.config)
    return RUN[platform](job, settings)


def status(arguments: list[str]) -> None:
    """status WORKDIR

    Print how a run is doing: its step, rates, goodput, checkpoint and process, and what deserves a look.

    WORKDIR is the work directory of a run of pre-training or fine-tuning, local or gs://. The command only reads its
    files, so it can be used while the run is active.
    """
    workdir, options = positional(arguments, usage(status), "WORKDIR")
    config = parse(pretraining.StatusConfig(), options, *described(status))
    _need(runs=[workdir])
    from bert_jax.tools.status import run_status

    run_status(workdir, config)


def report(arguments: list[str]) -> None:
    """report WORKDIR… --output=FILE.html

    Compare runs in one HTML file: curves to hover over and enlarge, options that differ, events, held-out figures.

    WORKDIR is the work directory of a run, local or gs://, of pre-training or fine-tuning.
    """
    workdirs, words = positionals(arguments, usage(report), "WORKDIR")
    config = parse(pretraining.ReportConfig, words, *described(report))
    _need(runs=workdirs)
    from bert_jax.tools.report import run_report

    run_report(workdirs, config)


def doctor(arguments: list[str]) -> int:
    """doctor PATH

    Look for the classic failures of a token store or a run, and say how to repair them. The exit status is 1 if one is
    found.

    PATH is a token store that `bert-jax prepare` wrote, or the work directory of a run, local or gs://. A run whose
    token store is on this machine is examined together with its data.
    """
    path, options = positional(arguments, usage(doctor), "PATH")
    config = parse(pretraining.DoctorConfig(), options, *described(doctor))
    from bert_jax.files import is_remote

    if not is_remote(path) and not os.path.exists(os.path.join(path, "manifest.json")):
        _need(runs=[path])
    from bert_jax.tools.doctor import run_doctor

    return run_doctor(path, config)


def replay(arguments: list[str]) -> int:
    """replay WORKDIR --step=N [--show=ROWS] [--output=FILE.json]

    Take steps of a run again from its checkpoints, and compare loss, gradient norm and all else with what was logged.
    The exit status is 1 if a figure differs though devices and versions are those of the run.

    WORKDIR is the work directory of a run of `bert-jax pretrain`, local or gs://; nothing in it is changed. The batch
    is made again from the token store, the step's own, and --show=4 shows its first four rows.
    """
    workdir, options = positional(arguments, usage(replay), "WORKDIR")
    config = parse(commands.ReplayConfig, options, *described(replay))
    _need(runs=[workdir], stores=config.stores)
    from bert_jax.cli.replay import run_replay

    return run_replay(workdir, config)


def evaluate(arguments: list[str]) -> None:
    """evaluate WORKDIR --data.path=STORE

    Print held-out loss, perplexity and accuracies of a pre-trained model, next to those of word frequencies alone.

    WORKDIR is the work directory of a pre-training run, whose newest checkpoint is evaluated, or one of its steps as
    RUN:STEP, or a directory that `bert-jax convert --to=bert_jax` wrote. Only the options data.path, data.cache,
    evaluation, compute, mesh and objective.distillation.teacher, the place of a student's teacher, are used; everything
    else is as in training. For a converted model that bert_jax has not trained, --sequence_length, masking,
    data.sentence_pairs and objective.name are used too.
    """
    workdir, options = positional(arguments, usage(evaluate), "WORKDIR")
    trained = Config()
    if workdir:
        _need(runs=[run_of(workdir)])
        from bert_jax.cli.evaluate import default_config

        trained = default_config(workdir)
    config = check(parse(trained, options, *described(evaluate)))
    from bert_jax.cli.evaluate import check_used, run_evaluate

    check_used(workdir, config)
    run_evaluate(workdir, config)


def fill_mask(arguments: list[str]) -> None:
    """fill-mask MODEL TEXT

    Print the most likely words for each [MASK] in a text.

    MODEL is anything that bert_jax.load opens: a work directory or checkpoint of bert_jax, a Hugging Face directory, or
    Google's TF1 files, local or gs://, or hf://owner/name of the Hugging Face hub. TEXT is one text in quotation marks,
    such as "Paris is the [MASK] of France."
    """
    path, rest = positional(arguments, usage(fill_mask), "MODEL")
    text, options = positional(rest, usage(fill_mask), "TEXT")
    config = parse(commands.FillMaskConfig(), options, *described(fill_mask))
    _need(models=[path])
    from bert_jax.cli.demo import run_fill_mask

    run_fill_mask(path, text, config)


def generate(arguments: list[str]) -> None:
    """generate MODEL [TEXT …] [--length=N] [--steps=N] [--output=FILE]

    Write texts with a model of masked words: fill in all masks of a text step by step, or go on after it.

    MODEL is as for fill-mask. TEXT is one text in quotation marks, such as "The capital of [MASK] [MASK] is Rome.",
    whose masks are all filled in, or one without masks, after which as many as --length says are filled in. Without
    TEXT there is nothing before them. Models that were trained to fill in texts with many masks write best
    (objective.name=masked_diffusion).
    """
    path, texts, options = _with_texts(generate, arguments)
    config = parse(commands.GenerateConfig(), options, *described(generate))
    config.check()
    _need(models=[path])
    from bert_jax.cli.writing import run_generate

    run_generate(path, texts or [""], config)


def _with_texts(command: Callable[..., Any], arguments: list[str]) -> tuple[str, list[str], list[str]]:
    """Return MODEL, which comes first, the texts after it, and the options."""
    path, rest = positional(arguments, usage(command), "MODEL")
    texts = list(itertools.takewhile(lambda word: not word.startswith("--") and word != "-h", rest))
    return path, texts, rest[len(texts) :]


def score(arguments: list[str]) -> None:
    """score MODEL [TEXT …] [--input=FILE | --pairs=FILE] [--output=FILE]

    Print how likely a model finds texts, or which text of each minimal pair it prefers.

    MODEL is as for fill-mask. A model of masked words gives the pseudo-log-likelihood, in which each token is masked in
    turn, and one that reads from left to right the logarithm of the text's probability, in nats. TEXT is one text in
    quotation marks. For pairs in the format of BLiMP the table says how often the good sentence is the more likely one.
    For CrowS-Pairs it says how often the more stereotypical one is, by the tokens that both sentences have in common.
    """
    path, texts, options = _with_texts(score, arguments)
    config = parse(commands.ScoreConfig(), options, *described(score))
    config.check(len(texts))
    _need(models=[path])
    from bert_jax.cli.writing import run_score

    run_score(path, texts, config)


def analyze(arguments: list[str]) -> None:
    """analyze NAME MODEL --input=FILE --output=DIR

    Look inside a model: what its layers represent, as numbers in JSON and as pictures.

    NAME is one of the analyses. MODEL is anything that bert_jax.load opens. Each analysis has its own options:
    `bert-jax analyze cka --help` lists those of cka. If DIR already has the result, the same command reads it from
    there.
    """
    analysis, words = positional(arguments, usage(analyze), " or ".join(ANALYSES))
    if not analysis:
        print(choices(analyze, ANALYSES.values()))
        return
    if analysis not in ANALYSES:
        raise UserError(f"unknown analysis {analysis!r}; analyses: {', '.join(ANALYSES)}")
    path, words = positional(words, usage(ANALYSES[analysis]), "MODEL")
    options = parse(ANALYSES[analysis], words, *described(ANALYSES[analysis]))
    options.check()
    _need(models=[path] if options.examines == "model" else [], runs=[path] if options.examines == "run" else [])
    from bert_jax.analysis.attention_maps import run_attention  # --help answers without what computes
    from bert_jax.analysis.head_behaviour import run_heads
    from bert_jax.analysis.layers import run_cka, run_isotropy
    from bert_jax.analysis.mask_memory import run_mask_gap
    from bert_jax.analysis.probes import run_probe
    from bert_jax.analysis.pruning import run_prune
    from bert_jax.analysis.signal import run_init
    from bert_jax.analysis.spelling import run_noise
    from bert_jax.analysis.vector_tasks import run_vectors
    from bert_jax.analysis.words import run_similarity
    from bert_jax.finetuning.loop import finetune

    runs = {
        "attention": run_attention,
        "cka": run_cka,
        "init": run_init,
        "heads": run_heads,
        "isotropy": run_isotropy,
        "probe": run_probe,
        "mask_gap": run_mask_gap,
        "noise": run_noise,
        "prune": functools.partial(run_prune, fine_tune=finetune),
        "similarity": run_similarity,
        "vectors": run_vectors,
    }
    runs[analysis](path, options)


def finetune(arguments: list[str]) -> int:
    """finetune TASK --init_from=MODEL --workdir=DIR [--data.dir=DIR]

    Fine-tune a model on a task: one run, several seeds or a grid. The same command resumes after an interruption.

    TASK is one of: {tasks}. `bert-jax finetune TASK --help` shows its options and their defaults.

    The examples come from --data.dir=DIR, which holds the task's files under their original names, from
    --data.train=FILE and --data.dev=FILE, from --data.hub=OWNER/NAME of the Hugging Face hub, or from
    --data.tfds=NAME.

    A file FILE.json in place of TASK names several tasks with their data, which are trained over one encoder; the guide
    to fine-tuning shows its form.
    """
    task, options = positional(arguments, usage(finetune), "TASK")
    if task.endswith(".json"):
        return _finetune_together(task, options)
    default = finetuning.task_defaults(task) if task else finetuning.FinetuneConfig()
    description = described(finetune)[1].format(tasks=" ".join(tasks.TASKS))
    config = finetuning.check_finetune(parse(default, options, usage(finetune), description))
    _need(models=[config.init_from, config.distillation.teacher])
    if not may_have_peers():
        from bert_jax.tasks.readers import need_files

        need_files(config.data)
    print("starting JAX", flush=True)  # which takes seconds
    from bert_jax.finetuning.loop import finetune as run

    return run(config).exit_code


def _finetune_together(file: str, arguments: list[str]) -> int:
    """Fine-tune on the tasks that a file names, with the options of the command for all of them."""
    from bert_jax.files import read_object

    form = 'write {"tasks": {"NAME": {"task": TASK, "train": FILE, "dev": FILE}}, "temperature": 1} into it'
    content = read_object(file, form)
    given, others = content.get("tasks"), content.keys() - {"tasks", "temperature"}
    first = next(iter(given.values()), None) if isinstance(given, dict) else None
    if others or given is None or not isinstance(first, dict) or not isinstance(first.get("task"), str):
        seen = f"has {min(others)!r:.60}" if others else f"has tasks={given!r:.60}"
        raise UserError(f"{file} {seen}; {form}")
    default = finetuning.task_defaults(first["task"])
    config = parse(default, arguments, usage(finetune), described(finetune)[1].format(tasks=" ".join(tasks.TASKS)))
    own = [name for name in finetuning.OF_A_TASK if name not in ("task", "select_by")]
    if changed := next((name for name in own if getattr(config, name) != getattr(default, name)), None):
        raise UserError(f"--{changed} belongs to one task, and here are several; put it into {file}, beside its task")
    shared = {each.name: getattr(config, each.name) for each in dataclasses.fields(config)}
    shared = {name: value for name, value in shared.items() if name not in finetuning.OF_A_TASK}
    _need(models=[config.init_from])
    print("starting JAX", flush=True)  # which takes seconds
    from bert_jax.finetuning.together import finetune_together

    temperature = content.get("temperature", 1.0)
    return finetune_together(given, temperature=temperature, select_by=config.select_by, **shared).exit_code


def predict(arguments: list[str]) -> None:
    """predict WORKDIR[,WORKDIR…] [--input=FILE | --text=TEXT] [--output=FILE]

    Print the answers of a fine-tuned model, or of the average of several, or write them to a file.

    WORKDIR is the work directory of a fine-tuning run, or the directory of a single run in its runs/. Several,
    separated by commas without spaces, are averaged. Give either --input=FILE or --text=TEXT.
    """
    workdirs, options = positional(arguments, usage(predict), "WORKDIR")
    config = finetuning.check_predict(parse(finetuning.PredictConfig(), options, *described(predict)))
    _need(models=workdirs.split(","))
    from bert_jax.finetuning.prediction import run_predict

    run_predict(workdirs, config)


def _with_model(command: Callable[..., Any], options: type[T], arguments: list[str], what: str) -> tuple[str, T]:
    """Return the place that a command of search begins with and its options, checked, whose model is there."""
    path, words = positional(arguments, usage(command), what)
    given = parse(options, words, *described(command))
    given.check()
    _need(models=[given.model])
    return path, given


def index(arguments: list[str]) -> None:
    """index CORPUS --model=MODEL --output=INDEX

    Make the index of a corpus: the vector of every document, for search. The same command goes on after an
    interruption.

    CORPUS is a file of documents, in JSON lines as BEIR's corpus.jsonl, in a .tsv of ids and texts, or with a document
    on each line, which may be compressed; or a directory that holds corpus.jsonl.
    """
    corpus, options = _with_model(index, IndexConfig, arguments, "CORPUS")
    from bert_jax.tools.search.index import run_index

    run_index(corpus, options)


def search(arguments: list[str]) -> None:
    """search INDEX [QUERY] [--queries=FILE] [--qrels=FILE] [--output=DIR] [--rerank=MODEL]

    Find the documents nearest to a query, or measure BM25, vectors, their hybrid and a re-ranking of it on the judged
    queries of a file.

    INDEX is the directory that `bert-jax index` wrote. QUERY is a text in quotation marks, such as "heat in slabs"; in
    its place --queries=FILE names many, and --qrels=FILE says what answers them.
    """
    path, words = positional(arguments, usage(search), "INDEX")
    query, words = (words[0], words[1:]) if words and not words[0].startswith("-") else ("", words)
    options = parse(SearchConfig(), words, *described(search))
    options.check(query)
    _need(models=[options.model, options.rerank])
    from bert_jax.tools.search.search import run_search

    run_search(path, query, options)


def mine(arguments: list[str]) -> None:
    """mine INDEX --queries=FILE --qrels=FILE --output=FILE [--negatives=N] [--margin=M]

    Write training examples with hard negatives: for each query and each of its answers, near documents that are none.

    INDEX is the directory that `bert-jax index` wrote.
    """
    path, options = _with_model(mine, MineConfig, arguments, "INDEX")
    from bert_jax.tools.search.search import run_mine

    run_mine(path, options)


def results(arguments: list[str]) -> None:
    """results DIR…

    Print the results of `bert-jax finetune` as a table of tasks, with the paper's row for comparison.

    DIR is a work directory of `bert-jax finetune`, or the directory above several of them. Each DIR is one row of the
    table, or several rows if it holds several results of one task.
    """
    directories, words = positionals(arguments, usage(results), "DIR")
    options = parse(commands.ResultsConfig(), words, *described(results))
    from bert_jax.finetuning.results import run_results

    run_results(directories, options)


def serve(arguments: list[str]) -> int:
    """serve MODEL… [--port=N] [--host=ADDRESS --token_file=FILE]

    Answer questions about texts over HTTP, to many clients at once: vectors, classes, tags, answers, ranks, words for
    masks, also in the forms of OpenAI and of text-embeddings-inference. A page for the browser shows what the models
    do.

    MODEL is anything that bert_jax.load opens, or NAME=MODEL to give it a name; several are told apart by "model" in a
    request. The routes are those of the parts that each model has, and are printed. SIGTERM and Ctrl+C end the server
    when it has answered what it had accepted. docs/serving.md has examples of every route.
    """
    words, options = positionals(arguments, usage(serve), "MODEL")
    config = parse(ServeConfig(), options, *described(serve))
    if not words:
        return 0
    config.check()
    need_libraries("bert-jax serve")
    _need(models=named_models(words).values())
    from bert_jax.tools.serving.server import run_serve

    return run_serve(words, config)


def average(arguments: list[str]) -> None:
    """average MODEL… --output=DIR [--method=mean|ema|slerp|ties] [--last=N]

    Make one model of several with the same parameters: steps of a run, or runs of one ancestor.

    MODEL is anything that bert_jax.load opens, or RUN:STEP for one step of a run. With --last=N, MODEL is one run,
    whose newest N steps are averaged. The vocabulary and the function of all models must be the same.
    """
    models, words = positionals(arguments, usage(average), "MODEL")
    options = parse(commands.AverageConfig(), words, *described(average))
    options.check(models)
    need_place_to_write(options.output)
    from bert_jax.pretrained.averages import run_average

    run_average(models, options)


def convert(arguments: list[str]) -> None:
    """convert SOURCE DESTINATION --to=bert_jax|huggingface|tf1|onnx|stablehlo|saved_model

    Write a model in another format, in which every parameter keeps its value to the last bit; or as a program that runs
    without bert_jax, which is compared with the model before it is kept.

    SOURCE is anything that bert_jax.load opens: a work directory or checkpoint of bert_jax, a Hugging Face directory,
    Google's TF1 files, or hf://owner/name of the Hugging Face hub. DESTINATION is a new directory; --push=owner/name
    uploads it to the hub too.
    """
    source, rest = positional(arguments, usage(convert), "SOURCE")
    destination, options = positional(rest, usage(convert), "DESTINATION")
    chosen = parse(commands.ConvertConfig, options, *described(convert))
    need_place_to_write(destination)
    _need(models=[source])
    from bert_jax.tools.export.directory import convert as run

    run(source, destination, **{field.name: getattr(chosen, field.name) for field in dataclasses.fields(chosen)})
