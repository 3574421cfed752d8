"""Commands on a trained model: evaluate, look inside, fine-tune, predict, convert."""

from bert_jax.config import Config
from bert_jax.config.checks import check
from bert_jax.console.command_line import parse, positional, positionals
from bert_jax.console.help import choices, described, usage


def evaluate(arguments: list[str]) -> int:
    """evaluate WORKDIR --data.path=STORE

    Print held-out loss, perplexity and accuracies of a pre-trained model, next to those of word frequencies alone.

    WORKDIR is the work directory of a pre-training run, whose newest checkpoint is evaluated, or a directory that
    `bert-jax convert --to=bert_jax` wrote. Only the options data.path, data.cache, evaluation, compute, mesh and
    objective.distillation.teacher, the place of a student's teacher, are used; everything else is as in training. For a
    converted model that bert_jax has not trained, --sequence_length, masking, data.sentence_pairs and objective.name
    are used too.
    """
    workdir, options = positional(arguments, usage(evaluate), "WORKDIR")
    trained = Config()
    if workdir:
        from bert_jax.commands.evaluate import default_config

        trained = default_config(workdir)
    config = check(parse(trained, options, *described(evaluate)))
    from bert_jax.commands.evaluate import check_used, run_evaluate

    check_used(workdir, config)
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


def analyze(arguments: list[str]) -> int:
    """analyze NAME MODEL --input=FILE --output=DIR

    Look inside a model: what its layers represent, as numbers in JSON and as pictures.

    NAME is one of the analyses. MODEL is anything that bert_jax.load opens. Each analysis has its own options:
    `bert-jax analyze cka --help` lists those of cka. If DIR already has the result, the same command reads it from
    there.
    """
    from bert_jax.config.analyses import ANALYSES

    analysis, words = positional(arguments, usage(analyze), " or ".join(ANALYSES))
    if not analysis:
        print(choices(analyze, ANALYSES.values()))
        return 0
    from bert_jax.commands.analyses import run_analysis

    run_analysis(analysis, words)
    return 0


def finetune(arguments: list[str]) -> int:
    """finetune TASK --init_from=MODEL --workdir=DIR [--data.dir=DIR]

    Fine-tune a model on a task: one run, several seeds or a grid. The same command resumes after an interruption.

    TASK is one of: {tasks}. `bert-jax finetune TASK --help` shows the defaults of that task.

    The examples come from --data.dir=DIR, which holds the task's files under their original names, from
    --data.train=FILE and --data.dev=FILE, or from --data.tfds=NAME.
    """
    from bert_jax.config.finetuning import FinetuneConfig, task_defaults
    from bert_jax.config.finetuning_checks import check_finetune
    from bert_jax.config.task_options import TASKS

    task, options = positional(arguments, usage(finetune), "TASK")
    default = task_defaults(task) if task else FinetuneConfig()
    description = described(finetune)[1].format(tasks=" ".join(TASKS))
    config = check_finetune(parse(default, options, usage(finetune), description))
    from bert_jax.finetuning.loop import finetune as run

    return run(config).exit_code


def predict(arguments: list[str]) -> int:
    """predict WORKDIR[,WORKDIR…] [--input=FILE | --text=TEXT] [--output=FILE]

    Print the answers of a fine-tuned model, or of the average of several, or write them to a file.

    WORKDIR is the work directory of a fine-tuning run, or the directory of a single run in its runs/. Several,
    separated by commas without spaces, are averaged. Give either --input=FILE or --text=TEXT.
    """
    from bert_jax.config.predicting import PredictConfig

    workdirs, options = positional(arguments, usage(predict), "WORKDIR")
    config = parse(PredictConfig(), options, *described(predict))
    from bert_jax.finetuning.prediction import run_predict

    run_predict(workdirs, config)
    return 0


def results(arguments: list[str]) -> int:
    """results DIR…

    Print the results of `bert-jax finetune` as a table of tasks, with the paper's row for comparison.

    DIR is a work directory of `bert-jax finetune`, or the directory above several of them. Each DIR is one row of the
    table, or several rows if it holds several results of one task.
    """
    from bert_jax.config.commands import ResultsConfig

    directories, words = positionals(arguments, usage(results), "DIR")
    options = parse(ResultsConfig(), words, *described(results))
    from bert_jax.finetuning.results_table import run_results

    run_results(directories, options)
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

    run(source, destination, to=chosen.to, parts=chosen.parts, weights=chosen.weights)
    return 0
