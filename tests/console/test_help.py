"""What --help says of every command and option, and that it says it at once."""

import dataclasses
import functools
import importlib.metadata
import importlib.util
import json
import platform
import re
import tomllib
import typing

import docstring_parser
import fresh
import pytest
from command_lines import ROOT, status, succeed

from bert_jax import __version__, cli
from bert_jax.config import Config, DataConfig, PhaseConfig, PrepareConfig, TrainVocabConfig, commands, studies
from bert_jax.config.analyses import ANALYSES
from bert_jax.config.finetuning import FinetuneConfig, PredictConfig, check_finetune, task_defaults
from bert_jax.config.options import choices_of, dotted_names, to_dict
from bert_jax.config.pretraining import DescribeConfig, DoctorConfig, ReportConfig, StatusConfig
from bert_jax.config.search import IndexConfig, MineConfig, SearchConfig
from bert_jax.config.serving import ServeConfig
from bert_jax.config.tasks import TASKS
from bert_jax.console import parse
from bert_jax.errors import UserError


def printed_by(capsys, *words) -> str:
    """What a command prints that exits with 0 in place of running."""
    try:
        succeed(*words)
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


def every_name(options) -> list[str]:
    """Dotted names of the leaves of options, with those of every kind that they may have."""
    return [*leaves(to_dict(options)), *dotted_names(type(options))]


def with_required(options):
    """Options with an empty value for each that has no default."""
    values = {"str": "", "int": 1}
    needed = [each for each in dataclasses.fields(options) if each.default is dataclasses.MISSING]
    return options(**{each.name: values[getattr(each.type, "__name__", each.type)] for each in needed})


OPTIONS = {  # of every command
    "demo": commands.DemoConfig(),
    "train-vocab": TrainVocabConfig(input="", output=""),
    "inspect": commands.InspectConfig(),
    "extend-vocab": commands.ExtendVocabConfig(vocab="", output=""),
    "prepare": PrepareConfig(input="", vocab="", output=""),
    "info": Config(),
    "plan": commands.PlanConfig(),
    "bench": dataclasses.make_dataclass("NoOptions", [])(),  # each benchmark has its own
    "bench step": commands.StepBenchConfig(),
    "bench data": commands.DataBenchConfig(),
    "bench finetune": commands.FinetuneBenchConfig(),
    "bench prepare": commands.PrepareBenchConfig(input="", vocab=""),
    "bench load": commands.LoadBenchConfig(),
    "bench attention": commands.AttentionBenchConfig(),
    "analyze": dataclasses.make_dataclass("NoOptions", [])(),  # each analysis has its own
    **{f"analyze {name}": with_required(options) for name, options in ANALYSES.items()},
    "config": Config(),
    "pretrain": commands.PretrainConfig(),
    "study": studies.StudyConfig(workdir=""),
    "speedrun": studies.SpeedrunConfig(workdir=""),
    "launch": dataclasses.make_dataclass("NoOptions", [])(),  # each platform has its own
    "launch tpu": commands.TpuConfig(name="", zone="", accelerator_type=""),
    "launch gke": commands.GkeConfig(name="", image="", topology=""),
    "launch slurm": commands.SlurmConfig(name="", nodes=1),
    "launch local": commands.LocalConfig(),
    "status": StatusConfig(),
    "report": ReportConfig(output=""),
    "doctor": DoctorConfig(),
    "replay": commands.ReplayConfig(step=""),
    "describe": DescribeConfig(output=""),
    "count": commands.CountConfig(output=""),
    "evaluate": Config(),
    "fill-mask": commands.FillMaskConfig(),
    "generate": commands.GenerateConfig(),
    "score": commands.ScoreConfig(),
    "finetune": FinetuneConfig(),
    "predict": PredictConfig(),
    "results": commands.ResultsConfig(),
    "index": IndexConfig(model="", output=""),
    "search": SearchConfig(),
    "mine": MineConfig(queries="", qrels="", output=""),
    "serve": ServeConfig(),
    "average": commands.AverageConfig(),
    "convert": commands.ConvertConfig(to="bert_jax"),
}


def idle_options(options, prefix: str = "") -> list[str]:
    """Dotted names of the options that belong to a value which another one, their neighbour, does not have."""
    names = []
    for field in dataclasses.fields(options):
        value, choice = getattr(options, field.name), choices_of(type(options)).get(field.name)
        below = prefix if choice is not None and not choice.nested else f"{prefix}{field.name}."
        if dataclasses.is_dataclass(value):
            names += idle_options(value, below)
        for index, each in enumerate(value if isinstance(value, tuple) else ()):
            names += idle_options(each, f"{below}{index}.") if dataclasses.is_dataclass(each) else []
        neighbour, *wanted = field.metadata.get("of") or ("",)
        reached = lambda name: functools.reduce(lambda at, part: getattr(at, part, None), name.split("."), options)
        found = [reached(name) for name in neighbour.split(" and ")]  # "one or another" is reached by no name
        if neighbour and any(value not in wanted if wanted else not value for value in found):
            group = leaves(to_dict(value)) if dataclasses.is_dataclass(value) else [""]
            names += [f"{prefix}{field.name}.{name}".rstrip(".") for name in group]
    return names


def test_pretraining_shows_no_more_than_a_person_can_read(capsys):
    assert len(shown_options(printed_by(capsys, "pretrain", "bert_mini", "--help"))) <= 120


def test_the_table_of_options_has_every_command():
    assert {name.split()[0] for name in OPTIONS} == set(cli.COMMANDS)
    assert {name.removeprefix("bench ") for name in OPTIONS if name.startswith("bench ")} == set(commands.BENCHMARKS)
    assert {name.removeprefix("launch ") for name in OPTIONS if name.startswith("launch ")} == set(commands.PLATFORMS)


@pytest.mark.parametrize("command", OPTIONS)
def test_every_command_explains_itself(command, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    words = command.split()
    text = printed_by(capsys, *words, "--help")
    assert text == printed_by(capsys, "help", *words) == printed_by(capsys, *words, "-h")
    assert text.startswith(f"usage: bert-jax {command} ")
    assert max(map(len, text.splitlines()[1:])) <= 80
    assert "(default: '')" not in text
    without_effect = set(idle_options(OPTIONS[command]))
    assert sorted(shown_options(text)) == sorted(set(leaves(to_dict(OPTIONS[command]))) - without_effect)
    assert ("have no effect with the values of others are not shown" in prose(text)) == bool(without_effect)
    if hint := re.search(r"such as --(\S+)=(\S+) --help", prose(text)):
        assert hint[1] in every_name(OPTIONS[command]), hint[0]
    # Every word in capitals that stands in the usage is explained below it.
    for word in set(re.findall(r"\b[A-Z]{3,}\b", text.splitlines()[0])) - {"OPTIONS", "STR", "INT", "FLOAT"}:
        assert re.search(rf"\b{word} is ", prose(text)), word


@pytest.mark.parametrize("cls", [type(options) for options in OPTIONS.values()], ids=lambda cls: cls.__name__)
def test_every_option_says_what_it_is(cls):
    hints = typing.get_type_hints(cls)
    meanings = {found.arg_name: found.description for found in docstring_parser.parse_from_object(cls).params}
    bases = filter(dataclasses.is_dataclass, cls.__bases__)
    inherited = {field.name for base in bases for field in dataclasses.fields(base)}
    for field in dataclasses.fields(cls):
        if field.name in inherited:  # and documented there
            continue
        kinds = typing.get_args(hints[field.name]) or (hints[field.name],)
        if dataclasses.is_dataclass(kinds[0]):
            for kind in filter(dataclasses.is_dataclass, kinds):
                test_every_option_says_what_it_is(kind)
            continue
        meaning = meanings.get(field.name) or ""
        name = f"{cls.__name__}.{field.name}"
        assert re.match(r"[A-Z]", meaning) and meaning.endswith("."), f"{name}: {meaning!r}"
        assert field.default is not None or re.search(r"None:\s", meaning), f"{name} does not say what None means"


PHASE_OPTIONS = [field.name for field in dataclasses.fields(PhaseConfig)]  # in a run of one phase they need no prefix
REQUIRED = {  # commands that lack one option each
    "train-vocab": ("--input=x", "--output=x"),
    "extend-vocab": ("--vocab=x", "--output=x"),
    "prepare": ("--input=x", "--vocab=x", "--output=x"),
    "pretrain configs/bert_tiny.py": ("--data.path=x", "--workdir=x"),
    "finetune mrpc --data.dir=x": ("--init_from=x", "--workdir=x"),
    "convert x y": ("--to=tf1",),
    "index x": ("--model=x", "--output=x"),
    "mine x": ("--queries=x", "--qrels=x", "--output=x"),
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
        assert status(*words, *options[:index], *options[index + 1 :]) == 2
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


def test_only_the_options_of_the_chosen_objective_are_shown(capsys):
    weights = {f"{name}_weight" for name in ("mlm", "z_loss", "sentence_pair", "span_boundary")}
    for words, own in (
        ((), {*weights, "mask_decoder", "distillation"}),
        (("xlnet_mini",), {"longest_span"}),
        (("gpt_mini",), {"z_loss_weight"}),
        (("skipgram_mini", "--objective.name=glove"), {"static_vectors"}),
        (("--objective.name=replaced_tokens",), {"mlm_weight", "replaced_tokens_weight", "generator", "mask_decoder"}),
    ):
        options = shown_options(printed_by(capsys, "pretrain", *words, "--help"))
        shown = {name.split(".")[1] for name in options if name.startswith("objective.")}
        assert shown == {"name", *own}
        assert "glove: Counts of neighbouring words" in options["objective.name"]


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ((), "learned,learned_bias,rope,alibi,none,xlnet"),
        (("xlnet_mini",), "learned,learned_bias,rope,alibi,none,xlnet"),
        (("--model.layer=lstm",), "learned,none"),
    ],
    ids=str,
)
def test_every_encoding_of_positions_that_may_be_chosen_is_explained(capsys, words, values):
    text = printed_by(capsys, "pretrain", *words, "--help")
    assert f"--model.positions {{{values}}}" in text
    means = shown_options(text)["model.positions"]
    assert [means.count(f" {value}: ") for value in values.split(",")] == [1] * len(values.split(","))


SQUAD = {"squad_v1", "squad_v2"}
SENTENCES = {"cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli", "text"}
SENTENCES |= {"boolq", "cb", "multirc", "record", "superglue_rte", "wic", "wsc", "xnli"}
TRAINED = set(TASKS) - {"ax", "axb", "axg"}
OF_TASKS = {  # the tasks that have an option which others do not have, and a value that is not its default
    "options.max_length": (TRAINED, "9"),
    "options.doc_stride": ({*SQUAD, "ner"}, "9"),
    "options.max_query_length": (SQUAD, "9"),
    "options.max_answer_length": (SQUAD, "9"),
    "options.n_best": (SQUAD, "9"),
    "options.null_threshold": ({"squad_v2"}, "1.5"),
    "options.windows": (SENTENCES, "mean"),
    "options.context": ({"ner"}, "false"),
    "data.dev_share": (TRAINED, "0.2"),
    "data.stratified": (TRAINED, "false"),
    "data.folds": (TRAINED, "5"),
    "data.weight_column": (TRAINED - {"vectors", "ranking"}, "x"),
    "data.text_column": ({"text"}, "x"),
    "data.pair_column": ({"text"}, "x"),
    "data.label_column": ({"text", "ner", "ranking"}, "x"),
    "data.regression": ({"text"}, "true"),
    "data.several_labels": ({"text"}, "true"),
    "data.languages": ({"xnli"}, "de"),
    "data.word_column": ({"ner"}, "2"),
    "data.tag_column": ({"ner"}, "2"),
    "data.scheme": ({"ner"}, "iob1"),
    "options.thresholds": (SENTENCES, "0.5"),
    "loss.focal_gamma": (SENTENCES, "2"),
    "patience": (TRAINED, "2"),
    "crf": ({"ner"}, "true"),
    "packing": ({*SENTENCES, "vectors", "ranking"}, "on"),
    "seeds": (TRAINED, "5"),
    "schedule.name": (TRAINED, "constant"),
    "noise.rate": (TRAINED - {"vectors", "ranking", *SQUAD}, "0.1"),
    **{
        f"options.{name}": ({"vectors"}, value)
        for name, value in {
            **{"pooling": "max", "normalize": "true", "lowercase": "true", "query_prompt": "x", "document_prompt": "x"},
            **{"dims": "4", "loss.similarity": "dot", "loss.symmetric": "true", "form.name": "tokens"},
            **{"sparsity.query_weight": "1", "sparsity.document_weight": "1", "sparsity.ramp": "0.1"},
        }.items()
    },
    **{f"data.{name}_column": ({"vectors"}, "x") for name in ("anchor", "positive", "score")},
    "data.negative_columns": ({"vectors", "ranking"}, "x"),
    "data.lowest_score": ({"vectors"}, "1.5"),
    "options.loss.name": ({"vectors", "ranking"}, "cosent"),
    "options.loss.positive_weight": ({"ranking"}, "2"),
    **{f"data.{name}_column": ({"ranking"}, "x") for name in ("query", "document", "group")},
}
OF_LOSSES = {"options.loss.scale", "options.loss.highest"}  # of one loss each in vectors and in ranking


def by_kind() -> list:
    """Return all tasks; those that share the kind of an earlier one, and no option is theirs, are slow tests."""
    seen, found = set(), []
    for task in TASKS:
        kind = type(task_defaults(task).options), *(task in has for has, _ in OF_TASKS.values())
        found.append(pytest.param(task, marks=pytest.mark.slow) if kind in seen else task)
        seen.add(kind)
    return found


@pytest.mark.parametrize("task", by_kind())
def test_a_task_has_and_shows_its_own_options_alone(task, capsys):
    default = dataclasses.replace(task_defaults(task), init_from="m", workdir="w")
    shown = shown_options(printed_by(capsys, "finetune", task, "--help"))
    of_tfds = {"data.label_column"} if task == "ner" else set()
    own = {name for name, (has, _) in OF_TASKS.items() if task in has}
    assert {name for name in OF_TASKS if name in shown} == own - of_tfds
    assert not [name for name in shown if name.startswith("options.") and name not in {*OF_TASKS, *OF_LOSSES}]
    assert not shown.keys() & {"grid_epochs", "lstm_size", "train_encoder"}  # which need another option
    for name, (has, value) in OF_TASKS.items():
        if task not in has:
            with pytest.raises(UserError) as raised:
                check_finetune(parse(default, [f"--{name}={value}", "--data.dir=d"], "bert-jax finetune TASK"))
            said = re.fullmatch(rf"{name}=\S+ belongs to task=(.*), not to {task}; leave it out", str(raised.value))
            assert said is not None and set(said[1].split(" or ")) == has


def test_several_numbers_are_shown_as_they_are_written(capsys):
    options, default = shown_options(printed_by(capsys, "finetune", "mrpc", "--grid", "--help")), FinetuneConfig()
    for name, kind in (("grid_batch_sizes", "INT"), ("grid_learning_rates", "FLOAT"), ("grid_epochs", "INT")):
        assert options[name].startswith(f"{kind},{kind},… ")
        (written,) = re.findall(r"\(default: (.*)\)$", options[name])
        changed = dataclasses.replace(default, grid=True, **{name: (1,)})
        assert parse(changed, [f"--{name}={written}"], "x") == dataclasses.replace(default, grid=True)


def test_no_heading_or_choice_is_without_a_name(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    text = printed_by(capsys, "finetune", "--help")
    headings = re.findall(r"^(?:╭─)? ((?:[\w.]+ )*?options(?: by task)?) [ ─]*╮?$", text, flags=re.MULTILINE)
    assert "options by task" in headings and len(set(headings)) == len(headings)
    assert not [heading for heading in headings if len(set(heading.split())) < len(heading.split())]
    assert shown_options(text)["features"].startswith("{embeddings,last,")  # and not the empty one, its default
    assert shown_options(printed_by(capsys, "study", "--help"))["arms"].startswith("STR,STR,… ")  # empty by default


def test_help_for_what_does_not_exist_suggests_what_does(capsys):
    for words, message in (
        (["help", "pretran"], "unknown command 'pretran'; perhaps you meant pretrain"),
        (["finetune", "mrcp", "--help"], "perhaps you meant mrpc"),
        (["pretrain", "nothing.py", "--help"], "no configuration file 'nothing.py'"),
    ):
        assert status(*words) == 2
        assert message in capsys.readouterr().err


def test_usage_lists_every_command(capsys):
    usages = {printed_by(capsys, *w) for w in ([], ["help"], ["--help"], ["-h"], ["help", "--help"], ["help", "-h"])}
    assert len(usages) == 1
    for command in cli.COMMANDS:
        assert f"\n  bert-jax {command} " in next(iter(usages))


def test_version_names_the_package_jax_and_python(capsys):
    assert printed_by(capsys, "--version") == (
        f"bert_jax {__version__} (jax {importlib.metadata.version('jax')}, Python {platform.python_version()})\n"
    )


def test_help_answers_without_the_heavy_libraries():
    code = (
        "import bert_jax.cli as cli\n"
        "def run(*words):\n"
        "  try: assert cli._run(['bert-jax', *words]) == 0\n"
        "  except SystemExit as stop: assert not stop.code\n"
        "lines = ('', '--version', 'finetune mrpc --help', 'pretrain configs/bert_base.py --help')\n"
        "for line in lines: run(*line.split())\n"
        "for command in cli.COMMANDS: run(command, '--help')"
    )
    heavy = {"jax", "tensorflow", "flax", "optax", "orbax", "numpy", "rich", "etils", "absl"}
    assert not heavy & fresh.loaded_by(code)


REFUSED = """
pretrain bert_mini --nothing=1
pretrain bert_mini --steps=-1
pretrain bert_mini --workdir=none/run
pretrain bert_mini --data.path=none --workdir=none/run
pretrain bert_mini --data.path=none --workdir hf://owner/name
finetune mrpc --init_from=none --data.dir=. --workdir=none/run
finetune mrpc --init_from=model --data.dir=none --workdir=none/run
finetune mrpc --init_from=. --data.dir=. --workdir=none/run
evaluate none --data.path=none
convert none made --to=tf1
plan bert_mini --topology=nothing
plan bert_mini --topology=v5e:2x2 --steps=-1
prepare --input=none --vocab=none --output=none/store
analyze nothing
analyze cka none --input=none --output=none/result
bench step bert_mini --rounds=0
bench load none
bench step bert_mini --peer=torch --peer_python=none
pretrain bert_mini --data.path=none --workdir=none/run --simulate_hosts=2
launch local bert_mini --data.path=none --workdir=none/run
study nothing
study depth --workdir=none/run --seeds=x
study depth --data.path none --workdir=none/run
speedrun nothing
speedrun ladder --workdir=none/run
speedrun ladder --data.path none --workdir=none/run
count none --output=none/counts
describe none --output=none/card.html
status none
report none --output=none/page.html
doctor none
replay none --step=1
inspect none --run=none
fill-mask none [MASK]
score none text
generate none --length=3
score none
predict none --text=text
predict model
"""


def test_refusals_that_need_no_model_answer_without_jax(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").touch()
    code = (
        f"import os, bert_jax.cli as cli\nos.chdir({str(tmp_path)!r})\n"
        f"for line in {REFUSED.split(chr(10))[1:-1]!r}:\n"
        "  assert cli._run(['bert-jax', *line.split()]) == 2, line\n"
        "  import sys; assert 'jax' not in sys.modules, line"
    )
    heavy = {"jax", "tensorflow", "flax", "optax", "orbax.checkpoint", "matplotlib", "datasets", "grain"}
    assert not heavy & fresh.loaded_by(code)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_study_shows_its_table_without_its_data(tmp_path, capsys):
    words = ("study", "depth", "--data.path=none", f"--workdir={tmp_path}/study", "--render")
    assert "| MNLI (paper) |" in printed_by(capsys, *words)


def test_guides_name_extras_that_exist_as_messages_do():
    """`pip install 'bert_jax[hub]'` also adds to an installation of a checkout, so there is one spelling."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    table = set()
    for file in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"-e\s+'\.\[", text), file.name
        for names in re.findall(r"bert_jax\[([a-z,]+)\]", text):
            assert set(names.split(",")) <= declared.keys(), (file.name, names)
        if file.name == "installing.md":
            rows = re.findall(r"^\| (`[a-z`, ]+) \|", text.split("## Extras")[1].split("## ")[0], re.MULTILINE)
            table |= set(re.findall("`(.+?)`", " ".join(rows)))
    assert table == declared.keys()


def test_commands_of_the_guides_exist_with_their_options():
    found = 0
    for file in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        text = file.read_text(encoding="utf-8").replace("\\\n", " ")
        for line in re.findall(
            r"^(?:.*[ '/])?bert-jax (.*)", "\n".join(re.findall(r"```\n(.*?)```", text, re.DOTALL)), re.MULTILINE
        ):
            command, *words = re.split(r"#|&&|\.\.\.|…|'$", line)[0].split()
            if command in ("help", "--version"):
                continue
            command = f"{command} {words[0]}" if command in ("launch", "bench", "analyze") else command
            taken = [OPTIONS[command], *([Config()] if command.startswith(("launch", "study", "speedrun")) else [])]
            options = {"debug", "help", *PHASE_OPTIONS, *(name for each in taken for name in every_name(each))}
            for name in re.findall(r"(?<!\S)--([\w.]+)", " ".join(words)):
                if name.startswith("beam."):  # see test_beam.py
                    continue
                name = re.sub(r"^phases\.[1-9]", "phases.0", name)
                assert name in options, f"{file.name}: bert-jax {line}"
                found += 1
    assert found > 100


def test_help_on_a_terminal_without_our_letters():
    ended = fresh.run(f"import sys; sys.stdout.reconfigure(encoding='ascii')\n{fresh.COMMAND}", "help", "finetune")
    assert ended.returncode == 0 and ended.stderr == "" and "squad/v1.1, ?" in prose(ended.stdout)


def test_help_shows_what_has_an_effect_with_the_values_that_are_given(capsys):
    def shown(*words: str) -> set[str]:
        return set(shown_options(printed_by(capsys, "pretrain", "bert_mini", *words, "--help")))

    usual = shown()
    assert shown("--schedule.name=constant") - usual == {"schedule.cooldown_steps"}
    assert shown("--schedule.name=constant", "--schedule.cooldown_steps=5") - usual >= {"schedule.cooldown"}
    of_muon = {f"optimizer.{name}" for name in ("momentum", "momentum_warmup_steps", "orthogonalization")}
    assert shown("--optimizer.name=muon") - usual == of_muon
    taught = shown("--objective.distillation.teacher=/teacher") - usual
    assert {"init_from_layers", "objective.distillation.temperature"} <= taught
    of_start = {f"init_from_{name}" for name in ("layers", "changes", "depth", "width")}
    assert shown("--init_from=/model") - usual == of_start
    replaced = shown("--phases.0.masking.rate=0.3") - usual
    assert {"phases.0.masking.unit", "phases.0.objective.name", "phases.0.model.direction"} <= replaced
    assert all(re.match(r"phases\.0\.(masking|objective|model|data)\.", name) for name in replaced)
    assert shown("--schedule.name=steep") == usual  # what cannot be is refused without --help
