"""`bert-jax COMMAND …`: one short function per command; each imports what it needs, so that `--help` answers at once.

The docstring of a command is its help: its usage, what it does, what its words mean. Options that its first line has
outside brackets are required.
"""

import io
import itertools
import os
import sys

from bert_jax.config import Config
from bert_jax.config.checks import check
from bert_jax.console.command_line import asks_for_help, configured, divided, load_config, parse, positional
from bert_jax.console.help import choices, described, usage
from bert_jax.console.running import leave, no_flags, run_command
from bert_jax.devices.host_process import start_anew
from bert_jax.errors import UserError


def demo(arguments: list[str]) -> int:
    """demo [--workdir=DIR]

    Run every step from vocabulary to filled-in masks within minutes, on text that comes with Python.
    """
    from bert_jax.config.commands import DemoConfig

    options = parse(DemoConfig(), arguments, *described(demo))
    from bert_jax.commands.demo import run_demo

    return run_demo(options)


def train_vocab(arguments: list[str]) -> int:
    """train-vocab --input=CORPUS --output=VOCAB [--size=N]

    Learn a vocabulary from a corpus: WordPiece or SentencePiece.
    """
    from bert_jax.config import TrainVocabConfig

    options = parse(TrainVocabConfig, arguments, *described(train_vocab))
    from bert_jax.tokenization.learning import run_train_vocab

    run_train_vocab(options)
    return 0


def extend_vocab(arguments: list[str]) -> int:
    """extend-vocab --vocab=VOCAB --output=VOCAB [--input=CORPUS | --words=FILE]

    Add the words of a domain to a vocabulary. Every entry keeps its id.

    Give either --input=CORPUS, to find the words in, or --words=FILE, which lists them.
    """
    from bert_jax.config.commands import ExtendVocabConfig

    options = parse(ExtendVocabConfig, arguments, *described(extend_vocab))
    from bert_jax.tokenization.extension import run_extend_vocab

    run_extend_vocab(options)
    return 0


def prepare(arguments: list[str]) -> int:
    """prepare --input=CORPUS --vocab=VOCAB --output=STORE

    Tokenize a corpus once into a token store, which every pre-training run reads.
    """
    from bert_jax.config import PrepareConfig

    options = parse(PrepareConfig, arguments, *described(prepare))
    from bert_jax.data.store.prepare import run_prepare

    run_prepare(options)
    return 0


def inspect(arguments: list[str]) -> int:
    """inspect STORE

    Show, in colour, how documents become sentences, pieces, pairs and masks.

    STORE is a token store that `bert-jax prepare` wrote, local or gs://.
    """
    from bert_jax.config.commands import InspectConfig

    store, options = positional(arguments, usage(inspect), "STORE")
    config = parse(InspectConfig(), options, *described(inspect))
    from bert_jax.commands.inspection import run_inspect

    run_inspect(store, config)
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

    Compile a run for TPUs that are not there, and print its memory, transfers, time and cost; exit with 1 if it does
    not fit.

    CONFIG is that of `bert-jax pretrain`, whose options are options here too. The TPU compiler comes with
    pip install 'bert_jax[plan]'. A program is compiled once, which takes minutes, and then kept.
    """
    from bert_jax.config.planning import PlanConfig

    path, words = positional(arguments, usage(plan), "CONFIG")
    options = parse(PlanConfig.of(load_config(path) if path else Config()), words, *described(plan))
    from bert_jax.planning.whole_plan import run_plan

    return run_plan(options, arguments)


def bench(arguments: list[str]) -> int:
    """bench step|data|prepare|load|finetune|attention … [--peer=torch --peer_python=PYTHON] [--output=FILE.json]

    Measure speed: contestants take turns in one run, ours and others, on a machine whose name is recorded.

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


def analyze(arguments: list[str]) -> int:
    """analyze cka|isotropy|similarity MODEL --input=FILE --output=DIR

    Look inside a model: what its layers represent, as numbers in JSON and as pictures.

    MODEL is anything that bert_jax.load opens. Each analysis has further options: `bert-jax analyze cka --help` lists
    those of cka. The same command takes the result from DIR where it is there already.
    """
    from bert_jax.config.analyzing import ANALYSES

    analysis, words = positional(arguments, usage(analyze), " or ".join(ANALYSES))
    if not analysis:
        print(choices(analyze, ANALYSES.values()))
        return 0
    from bert_jax.commands.analyses import run_analysis

    run_analysis(analysis, words)
    return 0


def config(arguments: list[str]) -> int:
    """config show CONFIG | bert-jax config diff CONFIG CONFIG

    Print the resolved options as JSON, or the options in which two configurations differ.

    CONFIG is a shipped configuration such as bert_base, a .py file with get_config(), or the config.json of a work
    directory. `show` also takes the options below.
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


def pretrain(arguments: list[str]) -> int:
    """pretrain CONFIG --data.path=STORE --workdir=DIR

    Pre-train a model on a token store. The same command resumes an interrupted run.

    CONFIG is a shipped configuration such as bert_base, a .py file (its get_config() returns a bert_jax.Config), or the
    config.json of a work directory. The options below override it. `bert-jax pretrain CONFIG --help` shows its values
    as defaults; without CONFIG the defaults are the built-in ones. The options of a run's only
    phase need no prefix: --steps means --phases.0.steps.
    """
    from bert_jax.config.launching import LocalConfig, PretrainConfig

    path, words = positional(arguments, usage(pretrain), "CONFIG")
    options = parse(PretrainConfig.of(load_config(path) if path else Config()), words, *described(pretrain))
    config = check(options.run)
    if options.simulate_hosts:
        from bert_jax.pods.job import Job
        from bert_jax.pods.local import run_local

        _, rest = divided(words, ["simulate_hosts"], config)
        return run_local(Job(path, tuple(rest), config), LocalConfig(hosts=options.simulate_hosts))
    from bert_jax.pretraining import pretrain as run

    return run(config).exit_code


def launch(arguments: list[str]) -> int:
    """launch tpu|gke|slurm|local CONFIG --data.path=STORE --workdir=DIR [--dry_run]

    Start a pre-training run on several hosts, and start it again after a preemption or a crash.

    CONFIG is that of `bert-jax pretrain`, whose options are options here too. Each platform has further ones:
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

    WORKDIR is the work directory of a run of pre-training or fine-tuning, local or gs://. Only its files are read, also
    while it runs.
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

    first, words = positional(arguments, usage(report), "WORKDIR")
    further = list(itertools.takewhile(lambda word: not word.startswith("-"), words))
    config = parse(ReportConfig, words[len(further) :], *described(report))
    from bert_jax.monitoring.comparison import run_report

    run_report([first, *further], config)
    return 0


def doctor(arguments: list[str]) -> int:
    """doctor PATH

    Look for the classic failures of a token store or a run, and say what to do. The exit status is 1 if one is found.

    PATH is a token store that `bert-jax prepare` wrote, or the work directory of a run, local or gs://. A run whose
    token store is on this machine is examined together with its data.
    """
    from bert_jax.config.watching import DoctorConfig

    path, options = positional(arguments, usage(doctor), "PATH")
    config = parse(DoctorConfig(), options, *described(doctor))
    from bert_jax.monitoring.doctor import run_doctor

    return run_doctor(path, config)


def evaluate(arguments: list[str]) -> int:
    """evaluate WORKDIR --data.path=STORE

    Print held-out loss, perplexity and accuracies of a pre-trained model, next to those of word frequencies alone.

    WORKDIR is the work directory of a pre-training run, whose newest checkpoint is evaluated, or a directory that
    `bert-jax convert --to=bert_jax` wrote. Of the options below, only data.path, data.cache, evaluation, compute and
    mesh are used; everything else is as in training. For a converted model that bert_jax has not trained,
    --sequence_length, masking and data.sentence_pairs are used too.
    """
    workdir, options = positional(arguments, usage(evaluate), "WORKDIR")
    trained = Config()
    if workdir:
        from bert_jax.commands.evaluate import default_config

        trained = default_config(workdir)
    config = check(parse(trained, options, *described(evaluate)))
    from bert_jax.commands.evaluate import run_evaluate

    run_evaluate(workdir, config)
    return 0


def fill_mask(arguments: list[str]) -> int:
    """fill-mask MODEL TEXT

    Print the most likely words for each [MASK] in a text.

    MODEL is anything that bert_jax.load opens: a work directory or checkpoint of bert_jax, a Hugging Face directory, or
    Google's TF1 files, local or gs://. TEXT is one text in quotation marks, such as "Paris is the [MASK] of France."
    """
    from bert_jax.config.commands import FillMaskConfig

    path, rest = positional(arguments, usage(fill_mask), "MODEL")
    text, options = positional(rest, usage(fill_mask), "TEXT")
    config = parse(FillMaskConfig(), options, *described(fill_mask))
    from bert_jax.commands.fill_mask import run_fill_mask

    run_fill_mask(path, text, config)
    return 0


def finetune(arguments: list[str]) -> int:
    """finetune TASK --init_from=MODEL --workdir=DIR [--data.dir=DIR]

    Fine-tune a model on a task: one run, several seeds or a grid. The same command resumes after an interruption.

    TASK is one of: {tasks}. `bert-jax finetune TASK --help` shows the defaults of that task.

    The examples come from --data.dir=DIR, which holds the task's files under their original names, from
    --data.train=FILE and --data.dev=FILE, or from --data.tfds=NAME.
    """
    from bert_jax.config.finetuning import TASKS, FinetuneConfig, check_finetune, task_defaults

    task, options = positional(arguments, usage(finetune), "TASK")
    default = task_defaults(task) if task else FinetuneConfig()
    description = described(finetune)[1].format(tasks=" ".join(TASKS))
    config = check_finetune(parse(default, options, usage(finetune), description))
    from bert_jax.finetuning.loop import finetune as run

    return run(config).exit_code


def predict(arguments: list[str]) -> int:
    """predict WORKDIR[,WORKDIR…] [--input=FILE | --text=TEXT] [--output=FILE]

    Print the answers of a fine-tuned model, or of the average of several, or write them to a file.

    WORKDIR is the work directory of a fine-tuning run, or one of the runs below its runs/; several, separated by commas
    without spaces, are averaged. Give either --input=FILE or --text=TEXT.
    """
    from bert_jax.config.predicting import PredictConfig

    workdirs, options = positional(arguments, usage(predict), "WORKDIR")
    config = parse(PredictConfig(), options, *described(predict))
    from bert_jax.finetuning.prediction import run_predict

    run_predict(workdirs, config)
    return 0


def results(arguments: list[str]) -> int:
    """results DIR…

    Print the results of `bert-jax finetune` as a table over tasks, together with the row that the paper published.

    DIR is a work directory of `bert-jax finetune`, or the directory above several of them. Each DIR is one row of the
    table, or several rows if it holds several results of one task.
    """
    from bert_jax.config.commands import ResultsConfig

    first, words = positional(arguments, usage(results), "DIR")
    further = list(itertools.takewhile(lambda word: not word.startswith("-"), words))
    options = parse(ResultsConfig(), words[len(further) :], *described(results))
    from bert_jax.finetuning.results_table import run_results

    run_results([first, *further], options)
    return 0


def convert(arguments: list[str]) -> int:
    """convert SOURCE DESTINATION --to=bert_jax|huggingface|tf1

    Write a model in another format. Every parameter keeps its value to the last bit.

    SOURCE is anything that bert_jax.load opens: a work directory or checkpoint of bert_jax, a Hugging Face directory,
    or Google's TF1 files. DESTINATION is a new directory.
    """
    from bert_jax.config.commands import ConvertConfig

    source, rest = positional(arguments, usage(convert), "SOURCE")
    destination, options = positional(rest, usage(convert), "DESTINATION")
    chosen = parse(ConvertConfig, options, *described(convert))
    from bert_jax.formats.conversion import convert as run

    run(source, destination, to=chosen.to, parts=chosen.parts)
    return 0


COMMANDS = {
    "demo": demo,
    "train-vocab": train_vocab,
    "extend-vocab": extend_vocab,
    "prepare": prepare,
    "inspect": inspect,
    "info": info,
    "plan": plan,
    "bench": bench,
    "analyze": analyze,
    "config": config,
    "pretrain": pretrain,
    "launch": launch,
    "status": status,
    "report": report,
    "doctor": doctor,
    "evaluate": evaluate,
    "fill-mask": fill_mask,
    "finetune": finetune,
    "predict": predict,
    "results": results,
    "convert": convert,
}


COMPUTING = ("demo", "pretrain", "evaluate", "fill-mask", "finetune", "predict")
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


if __name__ == "__main__":
    main()
