"""The command line: overrides, short forms, suggestions, one-line errors, and the module boundaries they rest on."""

import dataclasses
import importlib.metadata
import importlib.util
import json
import logging
import os
import pathlib
import platform
import re
import string
import subprocess
import sys
import typing
from dataclasses import asdict

import docstring_parser
import pytest
from processes import SECONDS

from bert_jax import __version__, cli
from bert_jax.config import Config, DataConfig, PhaseConfig, PrepareConfig, TrainVocabConfig
from bert_jax.config.analyzing import ANALYSES, CkaConfig, IsotropyConfig, SimilarityConfig
from bert_jax.config.benchmarking import (
    BENCHMARKS,
    AttentionBenchConfig,
    DataBenchConfig,
    FinetuneBenchConfig,
    LoadBenchConfig,
    PrepareBenchConfig,
    StepBenchConfig,
)
from bert_jax.config.commands import (
    ConvertConfig,
    DemoConfig,
    ExtendVocabConfig,
    FillMaskConfig,
    InspectConfig,
    ResultsConfig,
)
from bert_jax.config.finetuning import TASKS, FinetuneConfig
from bert_jax.config.json_form import to_dict
from bert_jax.config.launching import PLATFORMS, GkeConfig, LocalConfig, PretrainConfig, SlurmConfig, TpuConfig
from bert_jax.config.planning import PlanConfig
from bert_jax.config.predicting import PredictConfig
from bert_jax.config.watching import DoctorConfig, ReportConfig, StatusConfig
from bert_jax.console import log
from bert_jax.console.command_line import configured, load_config, parse
from bert_jax.errors import UserError

ROOT = pathlib.Path(__file__).parents[2]
TWO_PHASES = Config(phases=(PhaseConfig(steps=90), PhaseConfig(steps=10, sequence_length=512)))


def bert_jax(*words, **kwargs):
    return subprocess.run(
        [sys.executable, "-m", "bert_jax", *words], capture_output=True, text=True, cwd=ROOT, timeout=SECONDS, **kwargs
    )


def test_overrides_are_typed_and_take_either_spelling():
    config = parse(
        Config(),
        ["--model.num_layers=3", "--log-every-steps", "7", "--data.held_out=0.5", "--model.vocab_size=None"],
        "x",
    )
    assert (config.model.num_layers, config.log_every_steps, config.data.held_out, config.model.vocab_size) == (
        3,
        7,
        0.5,
        None,
    )
    options = parse(TrainVocabConfig, ["--input=a", "--output=b", "--lowercase=false"], "x")
    assert options.lowercase is False
    assert parse(PrepareConfig, ["--input=a", "--vocab=v", "--output=b"], "x").lowercase is None


def test_short_forms_reach_the_only_phase():
    config = parse(
        Config(), ["--steps=5", "--batch_size", "8", "--learning_rate=1e-3", "--checkpoint.every_steps=2"], "x"
    )
    assert config.phases == (PhaseConfig(steps=5, batch_size=8, learning_rate=1e-3),)


@pytest.mark.parametrize("name", ["steps", "batch_size"])
def test_short_forms_are_refused_with_several_phases(name):
    with pytest.raises(UserError, match=rf"--phases.0.{name} and --phases.1.{name}"):
        parse(TWO_PHASES, [f"--{name}=5"], "x")
    assert getattr(parse(TWO_PHASES, [f"--phases.1.{name}=5"], "x").phases[1], name) == 5


@pytest.mark.parametrize(
    "words, message",
    [
        (["--model.num_layer=4"], "unknown option --model.num_layer; perhaps you meant --model.num_layers"),
        (["--learing_rate=1"], "perhaps you meant --learning_rate"),
        (["--num_layers=4"], "perhaps you meant --model.num_layers"),
        (["--steps=many"], "invalid literal for int"),
        (["--masking.unit=word"], "Expected one of ('token', 'whole_word', 'span', 'ngram')"),
        (["stray"], "unexpected word 'stray'"),
        (["--steps"], "--phases.0.steps"),
    ],
)
def test_mistakes_get_one_line(words, message):
    with pytest.raises(UserError) as caught:
        parse(Config(), words, "bert-jax pretrain")
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_configuration_files(tmp_path):
    assert configured([str(ROOT / "configs/bert_mini.py"), "--steps=7"], "x").phases[0].steps == 7
    with pytest.raises(UserError, match="bert_base.py"):
        load_config(str(ROOT / "configs/bert_bse.py"))
    here = tmp_path / "notes.txt"
    here.write_text("x = 1")
    with pytest.raises(UserError, match="expected a .py file"):
        load_config(str(here))
    wrong = tmp_path / "wrong.py"
    wrong.write_text("x = 1")
    with pytest.raises(UserError, match=r"must define get_config\(\)"):
        load_config(str(wrong))
    broken = tmp_path / "config.json"
    broken.write_text("{")
    with pytest.raises(UserError, match="is not JSON"):
        load_config(str(broken))


def test_shipped_configurations_are_found_by_name_from_any_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = sorted(file.stem for file in (ROOT / "configs").glob("*.py"))
    for name in names:
        assert load_config(name) == load_config(str(ROOT / "configs" / f"{name}.py"))
    with pytest.raises(UserError, match=f"perhaps you meant bert_base.*: {', '.join(names)}$"):
        load_config("bert_bse")
    (tmp_path / "bert_base").mkdir()  # a work directory of that name does not hide it
    assert load_config("bert_base").model.num_layers == 12


def test_the_command_prints_one_error_line_and_exits_with_2():
    for words, message in (
        (["pretran"], "perhaps you meant pretrain"),
        (["info", "configs/bert_base.py", "--model.num_heads=7"], "model.num_heads=7"),
        (["pretrain", "configs/bert_base.py", "--steps=5"], "--phases.0.steps"),
    ):
        done = bert_jax(*words)
        assert done.returncode == 2 and done.stdout == ""
        assert done.stderr.startswith("error: ") and message in done.stderr and done.stderr.count("\n") == 1


def test_config_show_and_diff():
    shown = json.loads(bert_jax("config", "show", "configs/bert_tiny.py", "--seed=3").stdout)
    assert shown["seed"] == 3 and shown["model"]["num_layers"] == 2
    lines = bert_jax("config", "diff", "configs/bert_base.py", "configs/bert_large.py").stdout.splitlines()
    assert "model.num_layers: 12 → 24" in lines
    assert bert_jax("config", "diff", "configs/bert_base.py", "configs/bert_base.py").stdout.strip() == "no differences"


def printed_by(capsys, *words) -> str:
    """What a command prints that exits with 0 in place of running."""
    try:
        assert cli._run(["bert-jax", *words]) == 0
    except SystemExit as stop:
        assert not stop.code
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out


def prose(text: str) -> str:
    """The words of a help text, without the frames around them."""
    return " ".join(text.replace("│", " ").split())


def shown_options(text: str) -> dict[str, str]:
    """What a help text says about each option, its type first."""
    parts = re.split(r"^[│ ] --([\w.]+) ", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], map(prose, parts[2::2])))


def leaves(values, prefix: str = "") -> list[str]:
    """Dotted names of the leaves of a nested dict or list."""
    items = values.items() if isinstance(values, dict) else enumerate(values)
    names = []
    for name, value in items:
        nested = isinstance(value, dict) or (isinstance(value, (list, tuple)) and value and isinstance(value[0], dict))
        names += leaves(value, f"{prefix}{name}.") if nested else [f"{prefix}{name}"]
    return names


OPTIONS = {  # of every command
    "demo": DemoConfig(),
    "train-vocab": TrainVocabConfig(input="", output=""),
    "inspect": InspectConfig(),
    "extend-vocab": ExtendVocabConfig(vocab="", output=""),
    "prepare": PrepareConfig(input="", vocab="", output=""),
    "info": Config(),
    "plan": PlanConfig(),
    "bench": dataclasses.make_dataclass("NoOptions", [])(),  # each benchmark has its own
    "bench step": StepBenchConfig(),
    "bench data": DataBenchConfig(),
    "bench finetune": FinetuneBenchConfig(),
    "bench prepare": PrepareBenchConfig(input="", vocab=""),
    "bench load": LoadBenchConfig(),
    "bench attention": AttentionBenchConfig(),
    "analyze": dataclasses.make_dataclass("NoOptions", [])(),  # each analysis has its own
    "analyze cka": CkaConfig(input="", output=""),
    "analyze isotropy": IsotropyConfig(input="", output=""),
    "analyze similarity": SimilarityConfig(input="", output=""),
    "config": Config(),
    "pretrain": PretrainConfig(),
    "launch": dataclasses.make_dataclass("NoOptions", [])(),  # each platform has its own
    "launch tpu": TpuConfig(name="", zone="", accelerator_type=""),
    "launch gke": GkeConfig(name="", image="", topology=""),
    "launch slurm": SlurmConfig(name="", nodes=1),
    "launch local": LocalConfig(),
    "status": StatusConfig(),
    "report": ReportConfig(output=""),
    "doctor": DoctorConfig(),
    "evaluate": Config(),
    "fill-mask": FillMaskConfig(),
    "finetune": FinetuneConfig(),
    "predict": PredictConfig(),
    "results": ResultsConfig(),
    "convert": ConvertConfig(to="bert_jax"),
}


def test_the_table_of_options_has_every_command():
    assert {name.split()[0] for name in OPTIONS} == set(cli.COMMANDS)
    assert {name.removeprefix("bench ") for name in OPTIONS if name.startswith("bench ")} == set(BENCHMARKS)
    assert {name.removeprefix("analyze ") for name in OPTIONS if name.startswith("analyze ")} == set(ANALYSES)
    assert {name.removeprefix("launch ") for name in OPTIONS if name.startswith("launch ")} == set(PLATFORMS)


@pytest.mark.parametrize("command", OPTIONS)
def test_every_command_explains_itself(command, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    words = command.split()
    text = printed_by(capsys, *words, "--help")
    assert text == printed_by(capsys, "help", *words) == printed_by(capsys, *words, "-h")
    assert text.startswith(f"usage: bert-jax {command} ")
    assert max(map(len, text.splitlines()[1:])) <= 80
    assert "(default: '')" not in text
    assert sorted(shown_options(text)) == sorted(leaves(asdict(OPTIONS[command])))
    # Every word in capitals that stands in the usage is explained below it.
    for word in set(re.findall(r"\b[A-Z]{3,}\b", text.splitlines()[0])) - {"OPTIONS", "STR", "INT"}:
        assert re.search(rf"\b{word} is ", prose(text)), word


@pytest.mark.parametrize("cls", [type(options) for options in OPTIONS.values()], ids=lambda cls: cls.__name__)
def test_every_option_is_documented_in_full_sentences(cls):
    hints = typing.get_type_hints(cls)
    meanings = {found.arg_name: found.description for found in docstring_parser.parse_from_object(cls).params}
    inherited = {field.name for base in cls.__bases__ if base is not object for field in dataclasses.fields(base)}
    for field in dataclasses.fields(cls):
        if field.name in inherited:  # and documented there
            continue
        kind = (typing.get_args(hints[field.name]) or (hints[field.name],))[0]
        if dataclasses.is_dataclass(kind):
            test_every_option_is_documented_in_full_sentences(kind)
            continue
        meaning = meanings.get(field.name) or ""
        name = f"{cls.__name__}.{field.name}"
        assert re.match(r"[A-Z]|ner: ", meaning) and meaning.endswith("."), f"{name}: {meaning!r}"
        assert field.default is not None or re.search(r"None:\s", meaning), f"{name} does not say what None means"


PHASE_OPTIONS = [field.name for field in dataclasses.fields(PhaseConfig)]  # in a run of one phase they need no prefix

REQUIRED = {  # commands that lack one option each
    "train-vocab": ("--input=x", "--output=x"),
    "extend-vocab": ("--vocab=x", "--output=x"),
    "prepare": ("--input=x", "--vocab=x", "--output=x"),
    "pretrain configs/bert_tiny.py": ("--data.path=x", "--workdir=x"),
    "finetune mrpc --data.dir=x": ("--init_from=x", "--workdir=x"),
    "convert x y": ("--to=tf1",),
}


@pytest.mark.parametrize("command", REQUIRED)
def test_options_shown_as_required_are_refused_where_they_are_missing(command, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    words, options = command.split(), REQUIRED[command]
    text = printed_by(capsys, words[0], "--help")
    names = [option[2:].partition("=")[0] for option in options]
    assert {name for name, meaning in shown_options(text).items() if "(required)" in meaning} == set(names)
    assert set(re.search(r"Required: (.*?)\. ", prose(text)).group(1).split(", ")) == {f"--{name}" for name in names}
    for index, name in enumerate(names):
        assert cli._run(["bert-jax", *words, *options[:index], *options[index + 1 :]]) == 2
        assert name in capsys.readouterr().err


def test_defaults_are_those_of_the_configuration_or_task_that_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    for words, size in ((["--help"], 768), (["configs/bert_tiny.py", "--help"], 128)):
        assert f"(default: {size})" in shown_options(printed_by(capsys, "pretrain", *words))["model.hidden_size"]
    (tmp_path / "config.json").write_text(json.dumps(to_dict(Config(data=DataConfig(path="store")))))
    text = printed_by(capsys, "pretrain", str(tmp_path / "config.json"), "--help")
    assert "(default: store)" in shown_options(text)["data.path"] and "Required: --workdir." in text
    assert "phases.1.sequence_length" in shown_options(printed_by(capsys, "help", "pretrain", "configs/bert_base.py"))
    for words, length in ([], 128), (["squad_v1"], 384):
        text = printed_by(capsys, "finetune", *words, "--help")
        assert f"(default: {length})" in shown_options(text)["options.max_length"]
        assert " ".join(TASKS) in prose(text)


def test_several_numbers_are_shown_as_they_are_written(capsys):
    options, default = shown_options(printed_by(capsys, "finetune", "mrpc", "--help")), FinetuneConfig()
    for name, kind in (("grid_batch_sizes", "INT"), ("grid_learning_rates", "FLOAT"), ("grid_epochs", "INT")):
        assert options[name].startswith(f"{kind},{kind},… ")
        (written,) = re.findall(r"\(default: (.*)\)$", options[name])
        changed = dataclasses.replace(default, **{name: (1,)})
        assert parse(changed, [f"--{name}={written}"], "x") == default


def test_help_for_what_does_not_exist_suggests_what_does(capsys):
    for words, message in (
        (["help", "pretran"], "unknown command 'pretran'; perhaps you meant pretrain"),
        (["finetune", "mrcp", "--help"], "perhaps you meant mrpc"),
        (["pretrain", "nothing.py", "--help"], "no configuration file 'nothing.py'"),
    ):
        assert cli._run(["bert-jax", *words]) == 2
        assert message in capsys.readouterr().err


def test_usage_lists_every_command(capsys):
    usages = {
        printed_by(capsys, *words) for words in ([], ["help"], ["--help"], ["-h"], ["help", "--help"], ["help", "-h"])
    }
    assert len(usages) == 1
    for command in cli.COMMANDS:
        assert f"\n  bert-jax {command} " in next(iter(usages))


def test_version_names_the_package_jax_and_python(capsys):
    assert printed_by(capsys, "--version") == (
        f"bert_jax {__version__} (jax {importlib.metadata.version('jax')}, Python {platform.python_version()})\n"
    )


def test_help_answers_without_the_heavy_libraries():
    code = (
        "import sys, bert_jax.cli as cli\n"
        "def run(*words):\n"
        "  try: assert cli._run(['bert-jax', *words]) == 0\n"
        "  except SystemExit as stop: assert not stop.code\n"
        "lines = ('', '--version', 'finetune mrpc --help', 'pretrain configs/bert_base.py --help')\n"
        "for line in lines: run(*line.split())\n"
        "for command in cli.COMMANDS: run(command, '--help')\n"
        "heavy = ('jax', 'tensorflow', 'flax', 'optax', 'orbax', 'numpy', 'rich', 'etils', 'absl')\n"
        "print([name for name in heavy if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=SECONDS)
    assert done.returncode == 0 and done.stderr.strip() == "[]"


def test_warnings_are_one_line_and_said_once(tmp_path):
    pieces = [piece for letter in string.ascii_lowercase for piece in (letter, f"##{letter}")]
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *pieces]) + "\n")
    (tmp_path / "corpus.txt").write_text(
        "Some words that end here.\nAnd some more.\n\n" * 60_000
    )  # two blocks: workers start
    options = [
        f"--input={tmp_path / 'corpus.txt'}",
        f"--vocab={tmp_path / 'vocab.txt'}",
        "--lowercase=false",
        "--workers=2",
    ]
    done = bert_jax("prepare", *options, f"--output={tmp_path / 'store'}")
    assert done.returncode == 0
    assert done.stderr == (
        f"warning: lowercase=False, but no entry of {tmp_path / 'vocab.txt'} has a capital letter: "
        "words that have one become [UNK]\n"
    )
    full = bert_jax("prepare", *options, f"--output={tmp_path / 'full'}", "--debug").stderr
    assert re.search(r"^W\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ vocabulary_file.py:\d+\] lowercase=False", full, re.MULTILINE)


def test_commands_of_the_guides_exist_with_their_options():
    found = 0
    for file in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        text = file.read_text(encoding="utf-8").replace("\\\n", " ")
        assert "bert_jax[" not in text, f"{file.name}: the package is not published; pip install -e '.[…]'"
        for line in re.findall(
            r"^(?:.*[ '/])?bert-jax (.*)", "\n".join(re.findall(r"```\n(.*?)```", text, re.DOTALL)), re.MULTILINE
        ):
            command, *words = re.split(r"#|&&|\.\.\.|…|'$", line)[0].split()
            if command in ("help", "--version"):
                continue
            command = f"{command} {words[0]}" if command in ("launch", "bench", "analyze") else command
            taken = [OPTIONS[command], *([Config()] if command.startswith("launch") else [])]
            options = {"debug", "help", *PHASE_OPTIONS, *(name for each in taken for name in leaves(asdict(each)))}
            for name in re.findall(r"(?<!\S)--([\w.]+)", " ".join(words)):
                assert name in options, f"{file.name}: bert-jax {line}"
                found += 1
    assert found > 100


@pytest.mark.parametrize(
    "words, message",
    [
        ("prepare --input=x", "give the required --vocab and --output; see bert-jax prepare --help"),
        ("convert a b", "give the required --to; see bert-jax convert --help"),
        (
            "pretrain configs/bert_tiny.py --steps=many",
            "parsing --phases.0.steps: invalid literal for int() with base 10: 'many'; see bert-jax pretrain --help",
        ),
        (
            "convert a b --to=x",
            "invalid choice 'x' for argument '--to'. Expected one of ('bert_jax', 'huggingface', 'tf1'); "
            "see bert-jax convert --help",
        ),
    ],
)
def test_one_line_says_the_same_on_every_terminal(words, message):
    for encoding in ("utf-8", "ascii"):
        assert (
            bert_jax(*words.split(), env={**os.environ, "PYTHONIOENCODING": encoding}).stderr == f"error: {message}\n"
        )


def test_help_on_a_terminal_without_our_letters():
    done = bert_jax("help", "finetune", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0 and done.stderr == "" and "seed + 1, ?" in prose(done.stdout)


def test_log_records_of_several_lines_become_one():
    record = logging.LogRecord("absl", logging.ERROR, "file.py", 1, "step %d\n  failed", (3,), None)
    assert log.OneLine().format(record) == "error: step 3 failed"
    try:
        raise OSError(28, "No space left on device")
    except OSError:
        record.exc_info = sys.exc_info()
    assert log.OneLine().format(record) == "error: step 3 failed: [Errno 28] No space left on device"


def test_storage_out_of_reach_is_one_line_and_other_failures_keep_their_traceback(monkeypatch, capsys):
    class Unavailable(Exception):
        __module__ = "gcsfs.retry"

    def fail(arguments):
        raise Unavailable("no\nroute")

    monkeypatch.setitem(cli.COMMANDS, "info", fail)
    assert cli._run(["bert-jax", "info", "--workdir=gs://bucket/run"]) == 2
    assert capsys.readouterr().err.startswith("error: Google Cloud Storage: no route; check")
    for words in (["info", "--workdir=run"], ["--debug", "info", "gs://bucket/run"]):
        with pytest.raises(Unavailable):
            cli._run(["bert-jax", *words])


def test_storage_without_a_library_is_one_line_that_names_the_extra(monkeypatch, capsys):
    def reached(arguments):
        raise AssertionError

    seen = []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for command in cli.COMMANDS:
        monkeypatch.setitem(cli.COMMANDS, command, reached)
    for command in ("info", "config"):
        monkeypatch.setitem(cli.COMMANDS, command, lambda arguments: seen.append(arguments) or 0)
    for command in cli.COMMANDS.keys() - {"info", "config", "launch"}:
        for word in ("gs://bucket/run", "--workdir=gs://bucket/run", "runs/one,gs://bucket/run"):
            assert cli._run(["bert-jax", command, word]) == 2
            assert capsys.readouterr().err == (
                f"error: {word} needs gcsfs, which is not installed; pip install 'bert_jax[gcs]' installs it\n"
            )
    for command in ("info", "config"):  # they open no path of the options
        assert cli._run(["bert-jax", command, "--workdir=gs://bucket/run"]) == 0
    monkeypatch.setitem(cli.COMMANDS, "fill-mask", lambda arguments: seen.append(arguments) or 0)
    assert cli._run(["bert-jax", "fill-mask", "run", "Write [MASK] to gs://bucket."]) == 0
    for library in ("tensorflow", "gcsfs"):  # either will do
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name == library else None)
        assert cli._run(["bert-jax", "fill-mask", "gs://bucket/run", "a"]) == 0
    assert len(seen) == 5
