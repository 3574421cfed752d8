"""`bert-jax COMMAND …`: one short function a command; each imports what it needs, so that `--help` answers at once."""

import itertools
import os
import sys
import threading
import traceback

from bert_jax.command_line import configured, load_config, parse, positional
from bert_jax.errors import UserError


def pretrain(arguments: list[str]) -> int:
    """pretrain CONFIG --data.path=STORE --workdir=DIR: pre-train; goes on where DIR was left"""
    config = configured(arguments, "bert-jax pretrain")
    from bert_jax.pretraining import pretrain as run

    return run(config).exit_code


def evaluate(arguments: list[str]) -> int:
    """evaluate WORKDIR --data.path=STORE: held-out loss, perplexity and accuracies of a checkpoint"""
    workdir, options = positional(arguments, "bert-jax evaluate", "WORKDIR")
    from bert_jax.evaluation import run_evaluate
    from bert_jax.workdir import read_config

    run_evaluate(workdir, configured(options, "bert-jax evaluate", read_config(workdir)))
    return 0


def finetune(arguments: list[str]) -> int:
    """finetune TASK --init_from=MODEL --data.dir=DIR --workdir=DIR: fine-tune on a task; one run, several seeds or a grid"""
    from bert_jax.finetune_config import check_finetune, task_defaults

    task, options = positional(arguments, "bert-jax finetune", "TASK")
    config = check_finetune(parse(task_defaults(task), options, f"bert-jax finetune {task}"))
    from bert_jax.finetuning import finetune as run

    return run(config).exit_code


def predict(arguments: list[str]) -> int:
    """predict WORKDIR[,WORKDIR…] --input=FILE --output=FILE: the answers of a fine-tuned model, or of the mean of several"""
    workdirs, options = positional(arguments, "bert-jax predict", "WORKDIR")
    from bert_jax.predict_config import PredictConfig

    config = parse(PredictConfig, options, "bert-jax predict")
    from bert_jax.prediction import run_predict

    run_predict(workdirs, config)
    return 0


def results(arguments: list[str]) -> int:
    """results DIR…: a table over tasks of what finetune left there, with the paper's published row beside it"""
    from bert_jax.tasks.results_table import ResultsConfig, run_results

    first, words = positional(arguments, "bert-jax results", "DIR…")
    further = list(itertools.takewhile(lambda word: not word.startswith("-"), words))
    run_results([first, *further], parse(ResultsConfig(), words[len(further):], "bert-jax results DIR…"))
    return 0


def fill_mask(arguments: list[str]) -> int:
    """fill-mask MODEL "text with [MASK]": the likeliest words for each [MASK]"""
    from bert_jax.pretrained.filling import FillMaskConfig, run_fill_mask

    path, rest = positional(arguments, "bert-jax fill-mask", "MODEL")
    text, options = positional(rest, "bert-jax fill-mask MODEL", "TEXT")
    run_fill_mask(path, text, parse(FillMaskConfig(), options, "bert-jax fill-mask"))
    return 0


def train_vocab(arguments: list[str]) -> int:
    """train-vocab --input=CORPUS --output=VOCAB --size=N: learn a vocabulary"""
    from bert_jax.config import TrainVocabConfig

    options = parse(TrainVocabConfig, arguments, "bert-jax train-vocab")
    from bert_jax.vocabulary import run_train_vocab

    run_train_vocab(options)
    return 0


def extend_vocab(arguments: list[str]) -> int:
    """extend-vocab --vocab=VOCAB --input=CORPUS --output=VOCAB: add the words of a domain, keep every id"""
    from bert_jax.vocabulary_extension import ExtendVocabConfig, run_extend_vocab

    run_extend_vocab(parse(ExtendVocabConfig, arguments, "bert-jax extend-vocab"))
    return 0


def prepare(arguments: list[str]) -> int:
    """prepare --input=CORPUS --vocab=VOCAB --output=STORE: tokenize a corpus once into a token store"""
    from bert_jax.config import PrepareConfig

    options = parse(PrepareConfig, arguments, "bert-jax prepare")
    from bert_jax.data.prepare import run_prepare

    run_prepare(options)
    return 0


def inspect(arguments: list[str]) -> int:
    """inspect STORE: how documents become sentences, pieces, pairs and masks, in colour"""
    from bert_jax.inspection import InspectConfig, run_inspect

    store, options = positional(arguments, "bert-jax inspect", "STORE")
    run_inspect(store, parse(InspectConfig(), options, "bert-jax inspect"))
    return 0


def info(arguments: list[str]) -> int:
    """info CONFIG: parameters by part, FLOPs and memory, and how they grow with the sequence length"""
    config = configured(arguments, "bert-jax info")
    from bert_jax.information import run_info

    run_info(config)
    return 0


def config(arguments: list[str]) -> int:
    """config show CONFIG | config diff CONFIG CONFIG: the resolved options as JSON, or where two differ"""
    import json

    from bert_jax.config_checks import check
    from bert_jax.config_dict import differences, to_dict

    action, rest = positional(arguments, "bert-jax config", "show|diff")
    if action == "show":
        print(json.dumps(to_dict(configured(rest, "bert-jax config show")), indent=2))
    elif action == "diff" and len(rest) == 2:
        first, second = (to_dict(check(load_config(path))) for path in rest)
        print("\n".join(differences(first, second)) or "no differences")
    else:
        raise UserError("usage: bert-jax config show CONFIG [--options], or bert-jax config diff CONFIG CONFIG")
    return 0


def convert(arguments: list[str]) -> int:
    """convert SOURCE DESTINATION --to=bert_jax|huggingface|tf1: the same model for other programs"""
    from bert_jax.interop.conversion import ConvertConfig
    from bert_jax.interop.conversion import convert as run

    source, rest = positional(arguments, "bert-jax convert", "SOURCE")
    destination, options = positional(rest, "bert-jax convert SOURCE", "DESTINATION")
    chosen = parse(ConvertConfig, options, "bert-jax convert")
    run(source, destination, to=chosen.to, parts=chosen.parts)
    return 0


def demo(arguments: list[str]) -> int:
    """demo --workdir=DIR: the whole job in minutes on text that Python itself carries"""
    from bert_jax.demo import DemoConfig, run_demo

    return run_demo(parse(DemoConfig(), arguments, "bert-jax demo"))


COMMANDS = {
    "demo": demo, "train-vocab": train_vocab, "extend-vocab": extend_vocab, "prepare": prepare, "inspect": inspect,
    "info": info, "config": config, "pretrain": pretrain, "evaluate": evaluate, "fill-mask": fill_mask,
    "finetune": finetune, "predict": predict, "results": results,
    "convert": convert,
}


def _usage() -> str:
    lines = [f"  bert-jax {command.__doc__}" for command in COMMANDS.values()]
    return "\n".join(["usage: bert-jax COMMAND …", "", *lines, "", "bert-jax COMMAND … --help lists the options of a command;",
                      "--debug shows the libraries' log and the whole traceback of an error."])


def _run(argv: list[str]) -> int:
    words = argv[1:]
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    if not words or words[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0
    try:
        if words[0] not in COMMANDS:
            import difflib

            close = difflib.get_close_matches(words[0], COMMANDS, n=1)
            raise UserError(f"unknown command {words[0]!r}" + (f"; perhaps you meant {close[0]}" if close else "")
                            + f"; commands: {', '.join(COMMANDS)}")
        return COMMANDS[words[0]](words[1:])
    except UserError as error:
        if debug:
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `bert-jax … | head`
        return 0
    except OSError as error:  # a full disk, a lost mount: nothing that a traceback would explain
        if debug:
            traceback.print_exc()
        print(f"error: {error.filename or words[0]}: {error.strerror or error}", file=sys.stderr)
        return 2
    except Exception as error:
        if debug or not _of_cloud_storage(error, words):
            raise
        print(f"error: Google Cloud Storage: {' '.join(str(error).split())[:300]}; check the name of the bucket, the network and "
              "your credentials (--debug shows the whole traceback)", file=sys.stderr)
        return 2


def _of_cloud_storage(error: Exception, words: list[str]) -> bool:
    """Whether `error` comes from a library that reads gs:// for us; each has classes of its own for what OSError would say."""
    library = type(error).__module__.split(".")[0]
    return library in ("tensorflow", "gcsfs", "aiohttp", "google") and any("gs://" in word for word in words)


def _left(status: int) -> int:
    """`status`; ends the process here if a signal has ended the command while XLA compiles, which Python would wait for."""
    if any(thread.name.startswith("compiling") for thread in threading.enumerate()):  # signals.COMPILING, which would import jax
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


def _no_flags(argv: list[str]) -> list[str]:
    from absl import flags, logging

    flags.FLAGS.mark_as_parsed()  # options are tyro's; absl gives logging and exit handling
    logging.set_verbosity(logging.INFO if "--debug" in argv else logging.WARNING)  # Orbax tells every file at INFO
    return argv


def main() -> None:
    from absl import app

    app.run(lambda argv: _left(_run(argv)), argv=sys.argv, flags_parser=_no_flags)


if __name__ == "__main__":
    main()
