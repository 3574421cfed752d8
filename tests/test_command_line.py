"""The command line: overrides, short forms, suggestions, one-line errors, and the module boundaries they rest on."""

import ast
import json
import pathlib
import subprocess
import sys

import pytest

from bert_jax import cli
from bert_jax.command_line import configured, load_config, parse
from bert_jax.config import Config, PhaseConfig, PrepareConfig, TrainVocabConfig
from bert_jax.errors import UserError

ROOT = pathlib.Path(__file__).parents[1]
TWO_PHASES = Config(phases=(PhaseConfig(steps=90), PhaseConfig(steps=10, sequence_length=512)))


def bert_jax(*words, **kwargs):
    return subprocess.run([sys.executable, "-m", "bert_jax", *words], capture_output=True, text=True, cwd=ROOT, timeout=120, **kwargs)


def test_overrides_are_typed_and_take_either_spelling():
    config = parse(Config(), ["--model.num_layers=3", "--log-every-steps", "7", "--data.held_out=0.5", "--model.vocab_size=None"], "x")
    assert (config.model.num_layers, config.log_every_steps, config.data.held_out, config.model.vocab_size) == (3, 7, 0.5, None)
    options = parse(TrainVocabConfig, ["--input=a", "--output=b", "--lowercase=false"], "x")
    assert options.lowercase is False
    assert parse(PrepareConfig, ["--input=a", "--vocab=v", "--output=b"], "x").lowercase is None


def test_short_forms_reach_the_only_phase():
    config = parse(Config(), ["--steps=5", "--batch_size", "8", "--learning_rate=1e-3", "--checkpoint.every_steps=2"], "x")
    assert config.phases == (PhaseConfig(steps=5, batch_size=8, learning_rate=1e-3),)


@pytest.mark.parametrize("name", ["steps", "batch_size"])
def test_short_forms_are_refused_with_several_phases(name):
    with pytest.raises(UserError, match=rf"--phases.0.{name} and --phases.1.{name}"):
        parse(TWO_PHASES, [f"--{name}=5"], "x")
    assert getattr(parse(TWO_PHASES, [f"--phases.1.{name}=5"], "x").phases[1], name) == 5


@pytest.mark.parametrize("words, message", [
    (["--model.num_layer=4"], "unknown option --model.num_layer; perhaps you meant --model.num_layers"),
    (["--learing_rate=1"], "perhaps you meant --learning_rate"),
    (["--num_layers=4"], "perhaps you meant --model.num_layers"),
    (["--steps=many"], "invalid literal for int"),
    (["--masking.unit=word"], "Expected one of ('token', 'whole_word', 'span')"),
    (["stray"], "unexpected word 'stray'"),
    (["--steps"], "--phases.0.steps"),
])
def test_mistakes_get_one_line(words, message):
    with pytest.raises(UserError) as caught:
        parse(Config(), words, "bert-jax pretrain")
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_configuration_files(tmp_path):
    assert configured([str(ROOT / "configs/bert_mini.py"), "--steps=7"], "x").phases[0].steps == 7
    with pytest.raises(UserError, match="bert_base.py"):
        load_config(str(ROOT / "configs/bert_bse.py"))
    wrong = tmp_path / "wrong.py"
    wrong.write_text("x = 1")
    with pytest.raises(UserError, match=r"must define get_config\(\)"):
        load_config(str(wrong))
    broken = tmp_path / "config.json"
    broken.write_text("{")
    with pytest.raises(UserError, match="is not JSON"):
        load_config(str(broken))


def test_the_command_prints_one_error_line_and_exits_with_2():
    for words, message in ((["pretran"], "perhaps you meant pretrain"), (["info", "configs/bert_base.py", "--model.num_heads=7"], "model.num_heads=7"),
                           (["pretrain", "configs/bert_base.py", "--steps=5"], "--phases.0.steps")):
        done = bert_jax(*words)
        assert done.returncode == 2 and done.stdout == ""
        assert done.stderr.startswith("error: ") and message in done.stderr and done.stderr.count("\n") == 1


def test_config_show_and_diff():
    shown = json.loads(bert_jax("config", "show", "configs/bert_tiny.py", "--seed=3").stdout)
    assert shown["seed"] == 3 and shown["model"]["num_layers"] == 2
    lines = bert_jax("config", "diff", "configs/bert_base.py", "configs/bert_large.py").stdout.splitlines()
    assert "model.num_layers: 12 → 24" in lines
    assert bert_jax("config", "diff", "configs/bert_base.py", "configs/bert_base.py").stdout.strip() == "no differences"


def test_help_answers_without_the_heavy_libraries():
    code = ("import sys, bert_jax.cli as cli\n"
            "try: cli.COMMANDS['pretrain'](['configs/bert_base.py', '--help'])\n"
            "except SystemExit: pass\n"
            "print([m for m in ('jax', 'tensorflow', 'flax', 'optax') if m in sys.modules], file=sys.stderr)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert "--phases.1.sequence_length" in done.stdout and done.stderr.strip() == "[]"


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


ALLOWED = {  # from architecture: who may import whom; a missing entry may be imported by the loops only
    "models": {"config", "errors", "models"}, "objectives": set(), "optim": {"config", "errors", "optim"},
    "data": {"config", "config_dict", "errors", "files", "tokenization", "data"}, "config": set(),
    "config_checks": {"config", "errors"}, "config_dict": {"errors"}, "presets": {"config", "errors"},
}


@pytest.mark.parametrize("package", ALLOWED)
def test_modules_import_downwards_only(package):
    place = ROOT / "bert_jax" / package
    for file in sorted(place.glob("*.py")) if place.is_dir() else [place.with_suffix(".py")]:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = ([node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names] if isinstance(node, ast.Import) else [])
            for name in names:
                if name.startswith("bert_jax."):
                    assert name.split(".")[1] in ALLOWED[package], f"{file.name} imports {name}"


WITH_TENSORFLOW = ("interop/tf_checkpoint.py", "tasks/tfds.py")  # beside the data pipeline


def test_tensorflow_is_imported_where_it_is_needed_only_and_never_at_import_time():
    for file in sorted((ROOT / "bert_jax").rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))
                   and any(name.split(".")[0] in ("tensorflow", "tensorflow_datasets")
                           for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]))]
        assert not imports or file.parent.name == "data" or file.relative_to(ROOT / "bert_jax").as_posix() in WITH_TENSORFLOW, file
        assert not any(node in tree.body for node in imports), f"{file.name} imports TensorFlow at import time"
