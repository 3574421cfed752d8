"""The command line and its progress bar."""

import dataclasses
import functools
import importlib.metadata
import importlib.util
import io
import itertools
import json
import logging
import os
import re
import string
import subprocess
import sys
import warnings
from types import SimpleNamespace

import nbformat
import pytest
import rich.console
from command_lines import ROOT, bert_jax, refusal, status, succeed
from nbclient import NotebookClient
from pretrained_model import CONFIG, loaded, stored_model
from processes import SECONDS

import bert_jax as package
from bert_jax import cli, console
from bert_jax import progress as module
from bert_jax.config import Config, DataConfig, PhaseConfig, PrepareConfig, TrainVocabConfig
from bert_jax.config.analyses import PruneConfig
from bert_jax.config.checks import check, check_given
from bert_jax.config.commands import ExtendVocabConfig, StepBenchConfig, TpuConfig
from bert_jax.config.finetuning import PredictConfig, check_finetune, task_defaults
from bert_jax.config.options import with_options
from bert_jax.config.studies import SpeedrunConfig
from bert_jax.console import configured, load_config, parse
from bert_jax.data.preparation.prepare import run_prepare
from bert_jax.data.preparation.vocabularies import run_train_vocab
from bert_jax.errors import UserError
from bert_jax.progress import progress_bar, track
from bert_jax.tools.status import read_run

TWO_PHASES = Config(phases=(PhaseConfig(steps=90), PhaseConfig(steps=10, sequence_length=512)))


def test_overrides_are_typed_and_take_either_spelling():
    config = parse(
        Config(),
        ["--model.num_layers=3", "--log-every-steps", "7", "--data.held_out=0.5", "--model.vocab_size=None"],
        "x",
    )
    expected = (3, 7, 0.5, None)
    assert (config.model.num_layers, config.log_every_steps, config.data.held_out, config.model.vocab_size) == expected
    options = parse(TrainVocabConfig, ["--input=a", "--output=b", "--lowercase=false"], "x")
    assert options.lowercase is False
    assert parse(PrepareConfig, ["--input=a", "--vocab=v", "--output=b"], "x").lowercase is None


def test_several_values_are_separated_by_commas_and_none_are_written_as_nothing():
    config = Config(init_from="m", init_from_layers=(0, 2))
    for word, layers in (("=1,3", (1, 3)), ("=5", (5,)), ("=", ())):
        assert parse(config, [f"--init_from_layers{word}", "--seed=4"], "x") == Config(
            init_from="m", init_from_layers=layers, seed=4
        )
    assert parse(config, ["--init_from_layers", "5", "--seed=4"], "x").init_from_layers == (5,)
    for words in (["--init_from_layers", "--seed=4"], ["--seed=4", "--init_from_layers"]):
        with pytest.raises(UserError, match=r"--init_from_layers has no values; .*or none with --init_from_layers=$"):
            parse(config, words, "x")


PREPARED, PREDICTED = PrepareConfig(input="a", vocab="b", output="c"), PredictConfig(input="a")
TEXT, NER = (dataclasses.replace(task_defaults(task), init_from="m", workdir="w") for task in ("text", "ner"))
WITHOUT_EFFECT = [
    (PREPARED, "clean.near_threshold=0.7", "belongs to clean.deduplicate=near, not to keep"),
    (PREPARED, "clean.overlap=20", "no effect without clean.decontaminate"),
    (PREPARED, "clean.phone_region=DE", "belongs to clean.contacts=remove, not to keep"),
    (TrainVocabConfig(input="a", output="b"), "min_pair_count=100", "belongs to method=likelihood, not to frequency"),
    (ExtendVocabConfig(vocab="a", output="b", words="c"), "max_words=5", "no effect without input"),
    (ExtendVocabConfig(vocab="a", output="b", words="c"), "text_field=body", "no effect without input"),
    (StepBenchConfig(data=DataConfig(path="a")), "padding=0.5", "no effect with data.path=a"),
    (StepBenchConfig(), "peer_compile=false", "belongs to peer=torch, not to none"),
    (TpuConfig(name="a", zone="b", accelerator_type="c", teardown=True), "keep=true", "no effect with teardown=True"),
    (PruneConfig(input="a", output="b", depth=1), "learning_rate=1e-3", "no effect without task_data"),
    (SpeedrunConfig(workdir="w"), "task_data=GLUE", "no effect without scores"),
    (PREDICTED, "overwrite=true", "no effect without output"),
    (PredictConfig(text="a"), "data.text_column=2", "no effect without input"),
    (PredictConfig(text="a"), "split=test", "no effect without input"),  # which is the default, but given
    (TEXT, "data.tfds_dir=a", "no effect without data.tfds"),
    (with_options(TEXT, {"data.tfds": "a"}), "data.dir=b", "no effect with data.tfds=a"),
    (NER, "data.label_column=a", "no effect without data.tfds"),
    (with_options(NER, {"data.tfds": "a"}), "data.tag_column=2", "no effect with data.tfds=a"),
    (TEXT, "lstm_size=128", "no effect without features"),
    (TEXT, "train_encoder=true", "no effect without features"),
    (TEXT, "grid_epochs=2,3", "no effect without grid"),
    (TEXT, "noise.per=word", "no effect without noise.rate"),
    (TEXT, "distillation.temperature=3", "no effect without distillation.teacher"),
    (Config(), "masking.span_continue=0.5", "belongs to masking.unit=span, not to token"),
    (Config(), "masking.ngram_max=2", "belongs to masking.unit=ngram, not to token"),
    (Config(), "checkpoint.local_every_steps=5", "no effect without checkpoint.local_path"),
    (Config(), "objective.distillation.hidden_weight=1", "no effect without objective.distillation.teacher"),
    (Config(), "init_from_layers=0,1", "no effect without init_from or objective.distillation.teacher"),
    (with_options(Config(), {"data.eval_path": "a"}), "data.held_out=0.2", "no effect with data.eval_path=a"),
]


@pytest.mark.parametrize(("options", "word", "message"), WITHOUT_EFFECT, ids=[word for _, word, _ in WITHOUT_EFFECT])
def test_an_option_that_has_no_effect_is_refused(options, word, message):
    name = word.partition("=")[0]
    with pytest.raises(UserError, match=rf"^{name}=.* {message}.*(leave|set)"):
        parse(options, [f"--{word}"], "bert-jax x")
    parse(options, [f"--{word}"], "bert-jax x", whole=False)  # where others follow that it may belong to


def test_phases_that_continue_a_schedule_have_no_warm_up_of_their_own():
    def refused(message, *phases):
        with pytest.raises(UserError, match=message):
            check(dataclasses.replace(Config(), phases=phases))

    refused("phases.0.schedule=restart: there is no schedule yet", PhaseConfig(schedule="restart"))
    refused("phases.1.warmup_steps=5 has no effect, .*schedule=restart", PhaseConfig(), PhaseConfig(warmup_steps=5))
    check(dataclasses.replace(Config(), phases=(PhaseConfig(), PhaseConfig(warmup_steps=5, schedule="restart"))))


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
    with pytest.raises(UserError, match=rf"phases.2.{name}: .* 2 phases, the last of which is phases.1; "):
        parse(TWO_PHASES, [f"--phases.2.{name}=5"], "x")


@pytest.mark.parametrize(
    "words, message",
    [
        (["--model.num_layer=4"], "unknown option --model.num_layer; perhaps you meant --model.num_layers"),
        (["--learing_rate=1"], "perhaps you meant --learning_rate"),
        (["--num_layers=4"], "perhaps you meant --model.num_layers"),
        (["--steps=many"], "parsing --phases.0.steps: 'many' is not a whole number; see bert-jax pretrain --help"),
        (["--masking.unit=word"], "Expected one of ('token', 'whole_word', 'span', 'ngram')"),
        (["stray"], "unexpected word 'stray'"),
        (["--steps"], "--phases.0.steps"),
    ],
)
def test_mistakes_get_one_line(words, message):
    with pytest.raises(UserError) as caught:
        parse(Config(), words, "bert-jax pretrain")
    assert message in str(caught.value)


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
    for number in range(20):
        (tmp_path / f"other_{number:02}.py").touch()
    with pytest.raises(UserError, match=r"has other_00.*other_07\.py and \d+ more; these come with"):
        load_config(str(tmp_path / "nothing.py"))


def test_shipped_configurations_are_found_by_name_from_any_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = sorted(file.stem for file in (ROOT / "configs").glob("*.py"))
    for name in names:
        assert load_config(name) == load_config(str(ROOT / "configs" / f"{name}.py"))
    with pytest.raises(UserError, match=f"perhaps you meant bert_base.*: {', '.join(names)}$"):
        load_config("bert_bse")
    (tmp_path / "bert_base").mkdir()  # a work directory of that name does not hide it
    assert load_config("bert_base").model.num_layers == 12


def test_a_shipped_file_may_be_named_as_in_the_repository_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_config("configs/electra_mini.py") == load_config("electra_mini")
    with pytest.raises(UserError, match="'configs/electra_mni.py'; perhaps you meant electra_mini"):
        load_config("configs/electra_mni.py")
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/electra_mini.py").write_text(
        "from bert_jax import Config\n\n\ndef get_config():\n    return Config(seed=7)\n"
    )
    assert load_config("configs/electra_mini.py").seed == 7  # a file that is there comes first


def test_the_command_prints_one_error_line_and_exits_with_2(capsys):
    for words, message in (
        (["info", "configs/bert_base.py", "--model.num_heads=7"], "model.num_heads=7"),
        (["pretrain", "configs/bert_base.py", "--steps=5"], "--phases.0.steps"),
    ):
        assert message in refusal(capsys, *words)
    done = bert_jax("pretran")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: ") and "perhaps you meant pretrain" in done.stderr
    assert done.stderr.count("\n") == 1


def test_config_show_and_diff(capsys):
    def printed(*words: str) -> str:
        succeed("config", *words)
        return capsys.readouterr().out

    shown = json.loads(printed("show", "configs/bert_tiny.py", "--seed=3"))
    assert shown["seed"] == 3 and shown["model"]["num_layers"] == 2
    assert "model.num_layers: 12 → 24" in printed("diff", "configs/bert_base.py", "configs/bert_large.py").splitlines()
    assert printed("diff", "configs/bert_base.py", "configs/bert_base.py").strip() == "no differences"


@pytest.mark.slow
def test_warnings_are_one_line_and_said_once(tmp_path):
    pieces = [piece for letter in string.ascii_lowercase for piece in (letter, f"##{letter}")]
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *pieces]) + "\n")
    # Two blocks: workers start.
    (tmp_path / "corpus.txt").write_text("Some words that end here.\nAnd some more.\n\n" * 60_000)
    options = [f"--input={tmp_path}/corpus.txt", f"--vocab={tmp_path}/vocab.txt", "--lowercase=false", "--workers=2"]
    done = bert_jax("prepare", *options, f"--output={tmp_path / 'store'}")
    assert done.returncode == 0
    assert done.stderr == (
        f"warning: lowercase=False, but no entry of {tmp_path / 'vocab.txt'} has a capital letter: "
        "words that have one become [UNK]\n"
    )
    full = bert_jax("prepare", *options, f"--output={tmp_path / 'full'}", "--debug").stderr
    assert re.search(r"^W\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ wordpiece.py:\d+\] lowercase=False", full, re.MULTILINE)


@pytest.mark.parametrize(
    "words, message",
    [
        ("prepare --input=x", "give the required --vocab and --output; see bert-jax prepare --help"),
        ("convert a b", "give the required --to; see bert-jax convert --help"),
        (
            "pretrain configs/bert_tiny.py --steps=many",
            "parsing --phases.0.steps: 'many' is not a whole number; see bert-jax pretrain --help",
        ),
        (
            "convert a b --to=x",
            "invalid choice 'x' for argument '--to'. Expected one of ('bert_jax', 'huggingface', 'tf1', 'onnx', "
            "'stablehlo', 'saved_model'); see bert-jax convert --help",
        ),
    ],
)
def test_one_line_says_the_same_on_every_terminal(words, message, monkeypatch):
    for encoding in ("utf-8", "ascii"):
        for stream in ("stdout", "stderr"):
            monkeypatch.setattr(sys, stream, io.TextIOWrapper(io.BytesIO(), encoding))
        assert status(*words.split()) == 2
        sys.stderr.flush()
        assert sys.stderr.buffer.getvalue() == f"error: {message}\n".encode("ascii")


@pytest.mark.parametrize(
    "option, says",
    [
        ("--steps=2147483648", "phases.0.steps=2147483648 must be at most 2147483647"),
        ("--seed=99999999999999999999", "seed=99999999999999999999 must be at most 2147483647"),
        ("--seed=" + "9" * 5_000, "parsing --seed: a number of thousands of digits is beyond every range"),
        ("--data.prefetch=-2147483649", "data.prefetch=-2147483649 must be at least -2147483648"),
        ("--learning_rate=inf", "phases.0.learning_rate=inf must be a finite number"),
        ("--evaluation.sequences=1e10", "evaluation.sequences=10000000000 must be at most 2147483647"),
        ("--ramp_batch_sizes=8,1e12", "phases.0.ramp_batch_sizes=1000000000000 must be at most 2147483647"),
        ("--steps=1.5e0", "parsing --phases.0.steps: '1.5e0' is not a whole number"),
        ("--learning_rate=much", "parsing --phases.0.learning_rate: 'much' is not a number"),
    ],
    ids=lambda text: text[:30],
)
def test_numbers_beyond_what_is_counted_are_refused_at_once(option, says, capsys):
    assert status("pretrain", "bert_tiny", "--data.path=x", "--workdir=y", option) == 2
    assert capsys.readouterr().err.startswith(f"error: {says}")


def test_whole_numbers_may_be_written_short():
    words = ["--steps=1e3", "--warmup_steps", "2.5e1", "--ramp_batch_sizes=8,1.6E+1", "--ramp_steps=10"]
    (phase,) = configured(["bert_tiny", *words], "pretrain CONFIG", "").phases
    assert (phase.steps, phase.warmup_steps, phase.ramp_batch_sizes) == (1000, 25, (8, 16))


def test_a_full_disk_behind_the_output_leaves_the_status(monkeypatch, capsys):
    for stream, words in (("stdout", ["config", "show", "bert_tiny"]), ("stderr", ["config", "show"])):
        with open("/dev/full", "w") as full, monkeypatch.context() as patch:
            patch.setattr(sys, stream, full)
            assert console.leave(status(*words)) == 2  # what is left to print is dropped, so that closing does not fail
    assert "config: No space left on device" in capsys.readouterr().err


def test_log_records_of_several_lines_become_one():
    record = logging.LogRecord("absl", logging.ERROR, "file.py", 1, "step %d\n  failed", (3,), None)
    assert console.OneLine().format(record) == "error: step 3 failed"
    try:
        raise OSError(28, "No space left on device")
    except OSError:
        record.exc_info = sys.exc_info()
    assert console.OneLine().format(record) == "error: step 3 failed: [Errno 28] No space left on device"


def test_writes_that_a_failed_save_left_undone_are_not_told_of(monkeypatch):
    """Python warns of them as it ends, after the line that says what is wrong."""

    async def write():
        pass

    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        write()
        assert len(told) == 1
        console.quiet_libraries()
        write()
    assert len(told) == 1


@pytest.mark.slow
def test_tensorflow_starts_in_silence():
    """It opens gs:// paths: what it found in the processor would stand before the line that says what is wrong."""
    pytest.importorskip("tensorflow")
    program = "from bert_jax.console import quiet_libraries; quiet_libraries(); import tensorflow"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_storage_out_of_reach_is_one_line_and_other_failures_keep_their_traceback(monkeypatch, capsys):
    class Unavailable(Exception):
        __module__ = "gcsfs.retry"

    def fail(arguments):
        raise Unavailable("no\nroute")

    monkeypatch.setitem(cli.COMMANDS, "info", fail)
    assert status("info", "--workdir=gs://bucket/run") == 2
    said = capsys.readouterr().err
    assert said.startswith("error: Google Cloud Storage: no route; check the name in gs://bucket, the network")
    assert "gcloud auth application-default login" in said and said.count("\n") == 1
    for words in (["info", "--workdir=run"], ["--debug", "info", "gs://bucket/run"]):
        with pytest.raises(Unavailable):
            cli._run(["bert-jax", *words])


def test_a_place_that_cannot_hold_files_is_one_line(capsys):
    place = "hf://owner/name"
    pytest.importorskip("tensorflow", reason="it is what opens a path of another form")
    for words in (["status", place], ["convert", "run", place, "--to=tf1"]):
        assert status(*words) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"error: {place}") and "gs://" in said, said


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
            assert status(command, word) == 2
            expected = f"error: {word} needs gcsfs, which is not installed; pip install 'bert_jax[gcs]' installs it\n"
            assert capsys.readouterr().err == expected
    for command in ("info", "config"):  # they open no path of the options
        succeed(command, "--workdir=gs://bucket/run")
    monkeypatch.setitem(cli.COMMANDS, "fill-mask", lambda arguments: seen.append(arguments) or 0)
    succeed("fill-mask", "run", "Write [MASK] to gs://bucket.")
    for library in ("tensorflow", "gcsfs"):  # either will do
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name == library else None)
        succeed("fill-mask", "gs://bucket/run", "a")
    assert len(seen) == 5


URLS = ("http://x.org/a", "https://x.org/a.txt", "s3://bucket/a", "az://bucket/a", "file:///a/b")


def test_places_that_nothing_here_opens_are_refused_by_every_command_and_function(tmp_path, monkeypatch, capsys):
    def reached(arguments):
        raise AssertionError

    for command in cli.COMMANDS:
        monkeypatch.setitem(cli.COMMANDS, command, reached)
    for command, url in zip(cli.COMMANDS, itertools.cycle(URLS)):
        for word in (url, f"--workdir={url}", f"gs://bucket/run,{url}"):
            said = refusal(capsys, command, word)
            assert said.startswith(f"error: {word}: paths are local, or begin with gs://")
            assert ("give the path alone, /a/b" if url.startswith("file") else "copy it to one of them") in said
        for name in ("workdir", "output", "pretrainings", "data.path"):  # what is there is only read
            for words in ([f"--{name}=hf://owner/name"], [f"--{name}", "hf://owner/name"]):
                assert "neither places to write to" in refusal(capsys, command, *words)
    seen = []
    for command in ("fill-mask", "predict", "analyze", "serve"):
        monkeypatch.setitem(cli.COMMANDS, command, seen.append)
    succeed(*"serve run --allowed_origins=https://a.org,http://b.org:80 --allowed_hosts=http://a".split())
    assert seen.pop(), "it says by itself what a host is"
    for words in ("fill-mask run http://x.org/[MASK]", "predict run --text=s3://a", "analyze attention --pair s3://a"):
        succeed(*words.split())
    succeed("predict", "run", "--text", "http://x.org is a page")
    assert len(seen) == 4
    output = str(tmp_path / "output")
    for call in (
        lambda url: run_prepare(PrepareConfig(input=url, vocab="v", output=output)),
        lambda url: run_prepare(PrepareConfig(input="i", vocab=url, output=output)),
        lambda url: run_prepare(PrepareConfig(input="i", vocab="v", output=url)),
        lambda url: run_train_vocab(TrainVocabConfig(input=url, output=output)),
        lambda url: run_train_vocab(TrainVocabConfig(input=__file__, output=url)),
        *(package.load, package.load_tokenizer, package.open_store, read_run),
        lambda url: package.convert(url, output, to="bert_jax"),
        lambda url: package.convert(tmp_path, url, to="bert_jax"),
        lambda url: check_given(dataclasses.replace(Config(workdir=url), data=DataConfig(path="store"))),
        lambda url: check_given(dataclasses.replace(Config(workdir="run"), data=DataConfig(path=url))),
        lambda url: check_finetune(dataclasses.replace(task_defaults("sst2"), init_from=url, workdir="run")),
        lambda url: check_finetune(dataclasses.replace(task_defaults("sst2"), init_from="model", workdir=url)),
    ):
        for url in URLS:
            with pytest.raises(UserError, match=f"{url}: paths are local, or begin with gs://"):
                call(url)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def notebook(monkeypatch):
    """As in a Jupyter kernel without ipywidgets."""
    monkeypatch.setattr(module, "Console", functools.partial(rich.console.Console, force_jupyter=True))
    monkeypatch.setitem(sys.modules, "ipywidgets", None)


def lines(capsys) -> list[str]:
    said = capsys.readouterr()
    assert said.out == "" and said.err.endswith("\n") and "\x1b" not in said.err
    return [line.strip() for line in said.err.split("\r") if line.strip()]


def test_a_notebook_gets_a_line_of_text(notebook, capsys, monkeypatch):
    clock = iter(range(0, 1000, 60))
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    assert list(track(range(4), "batches", 4)) == [0, 1, 2, 3]
    assert lines(capsys) == [
        f"batches [{'-' * 30}] 0/4 in 1:00",
        f"batches [{'#' * 8}{'-' * 22}] 1/4 in 2:00 about 6:00 left",
        f"batches [{'#' * 15}{'-' * 15}] 2/4 in 3:00 about 3:00 left",
        f"batches [{'#' * 22}{'-' * 8}] 3/4 in 4:00 about 1:20 left",
        f"batches [{'#' * 30}] 4/4 in 5:00",
    ]


def test_bytes_an_unknown_total_and_a_start_in_the_middle(notebook, capsys, monkeypatch):
    clock = iter(range(0, 100_000, 3600))
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    with progress_bar("preparing", 3_000_000, 1_000_000, "bytes") as move_to:
        move_to(2_000_000)
    first, second = lines(capsys)
    assert "1.0 MB/3.0 MB" in first and "left" not in first
    assert second.endswith("2.0 MB/3.0 MB in 2:00:00 about 2:00:00 left")
    with progress_bar("reading", None) as move_to:
        move_to(1_234)
    assert lines(capsys) == ["reading 0 in 1:00:00", "reading 1,234 in 2:00:00"]


def test_little_is_written_and_the_end_always(notebook, capsys):
    list(track(range(100_000), "many", 100_000))
    written = lines(capsys)
    assert len(written) < 20 and "0/100,000" in written[0] and "100,000/100,000" in written[-1]
    with pytest.raises(ZeroDivisionError), progress_bar("fails", 2):
        1 / 0
    assert "0/2" in lines(capsys)[0]


@pytest.mark.parametrize("visible", [True, False])
def test_a_log_gets_a_line_twice_a_minute(capsys, monkeypatch, visible):
    clock = iter(range(0, 1000, 20))
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    assert list(track("abcdef", "letters", None, visible)) == list("abcdef")
    told = capsys.readouterr()
    assert told == ("", "letters 2 in 0:40\nletters 4 in 1:20\nletters 6 in 2:00\n" if visible else "")


@pytest.mark.parametrize("visible", [True, False])
def test_what_is_short_leaves_nothing_in_a_log_and_a_terminal_has_a_bar(capsys, monkeypatch, visible):
    assert list(track("ab", "letters", 2, visible)) == ["a", "b"]
    assert capsys.readouterr() == ("", "")
    screen = io.StringIO()
    monkeypatch.setattr(
        module, "Console", lambda stderr: rich.console.Console(file=screen, force_terminal=True, width=100)
    )
    assert list(track("ab", "letters", 2, visible)) == ["a", "b"]
    assert ("letters" in screen.getvalue()) == visible


def test_a_long_call_of_a_model_shows_its_progress(notebook, capsys):
    loaded(stored_model(config=dataclasses.replace(CONFIG, num_layers=1))).embed(["the cat"] * 220, batch_size=2)
    written = lines(capsys)
    assert "batches of texts" in written[0] and "0/11" in written[0] and "11/11" in written[-1]
    loaded(stored_model(config=dataclasses.replace(CONFIG, num_layers=1))).embed(
        ["the cat"] * 220, batch_size=2, progress=False
    )
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_a_real_kernel_shows_the_line():
    code = (
        "import sys\nsys.modules['ipywidgets'] = None\nfrom bert_jax.progress import track\n"
        "kept = list(track(range(3), 'batches', 3))"
    )
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    NotebookClient(book, timeout=SECONDS, kernel_name="python3").execute()
    said = "".join(output.text for output in book.cells[0].outputs if output.get("name") == "stderr")
    assert "0/3" in said and "3/3" in said


def test_what_is_in_a_bucket_is_left_to_the_command(monkeypatch):
    """A run there goes on without the model that it began from; a store there is no run."""
    asked = []
    monkeypatch.setattr(
        "bert_jax.pretraining.pretrain", lambda config: asked.append(config.workdir) or SimpleNamespace(exit_code=0)
    )
    monkeypatch.setattr("bert_jax.tools.doctor.run_doctor", lambda path, _: asked.append(path) or 0)
    words = ["--workdir=gs://bucket/run", "--data.path=gs://bucket/store", "--init_from=nowhere"]
    assert cli._run(["bert-jax", "pretrain", "bert_mini", *words]) == 0
    assert cli._run(["bert-jax", "doctor", "gs://bucket/store"]) == 0
    assert asked == ["gs://bucket/run", "gs://bucket/store"]
