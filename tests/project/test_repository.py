"""The repository: imports, public names, scripts, and the wheel."""

import ast
import dataclasses
import functools
import importlib.util
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import typing

import numpy as np
import processes
import pytest
from fresh import loaded_by
from pretrained_model import write_workdir

import bert_jax
import bert_jax.config
from bert_jax.config.finetuning import check_finetune, task_defaults
from bert_jax.console import parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
LOADS_TENSORFLOW = ("corpus/datasets.py", "formats/tf1.py", "tasks/readers.py", "tools/export/saved_model.py")
"""And data/."""


@functools.cache
def modules() -> dict[str, ast.Module]:
    """The syntax tree of every module, by its dotted name; a package is named without __init__."""
    found = {}
    for file in sorted((ROOT / "bert_jax").rglob("*.py")):
        name = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        found[name] = ast.parse(file.read_text(encoding="utf-8"))
    return found


def imported(node: ast.AST, names) -> list[str]:
    """The modules of ours that an import statement names, `from bert_jax import x` and `import bert_jax.x` included.

    A name that is no module of ours comes from the module before it; if that is bert_jax itself, it is the public API,
    which may import everything, so nothing inside may use it but for the version.
    """
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names if alias.name.split(".")[0] == "bert_jax"]
    if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").split(".")[0] == "bert_jax"):
        assert not node.level, "relative imports would not be seen"
        wanted = [alias.name for alias in node.names if (node.module, alias.name) != ("bert_jax", "__version__")]
        return [full if (full := f"{node.module}.{name}") in names else node.module for name in wanted]
    return []


def room(module: str) -> str:
    """Return the line of the table for a module: its folder on the top level, or its own name there."""
    return [*module.split(".")[1:], "bert_jax"][0]


def arrows() -> dict[str, set[str]]:
    """What each room imports, anywhere in its files: functions and blocks for type checkers count too."""
    found: dict[str, set[str]] = {}
    for name, tree in modules().items():
        own = found.setdefault(room(name), set())
        own |= {room(target) for node in ast.walk(tree) for target in imported(node, modules())} - {room(name)}
    return found


def table() -> dict[str, list[str]]:
    text = (ROOT / "docs" / "layout.md").read_text(encoding="utf-8")
    block = re.search(r"```\n(errors +:.*?)```", text, re.DOTALL)
    assert block, "docs/layout.md has the table of imports in a block that begins with errors"
    lines = [line.split(":") for line in block[1].splitlines()]
    return {left.strip(): right.split() for left, right in lines}


def test_every_package_imports_what_the_table_says_and_nothing_else():
    allowed, seen = table(), arrows()
    del seen["bert_jax"], seen["__main__"]  # the public API, and `python -m bert_jax`
    assert set(seen) == set(allowed)
    for name, targets in seen.items():
        assert sorted(targets) == sorted(allowed[name]), (
            f"{name} imports {sorted(targets ^ set(allowed[name]))} otherwise"
        )


def test_the_table_points_upwards_only():
    above: set[str] = set()
    for name, targets in table().items():
        assert set(targets) <= above, f"{name} imports {set(targets) - above}, which are not above it"
        above.add(name)


def test_below_the_door_nobody_knows_a_whole_configuration():
    door, found = {"bert_jax", "config", "console", "training_data", "branches", "pretraining", "cli", "tools"}, set()
    for name, tree in modules().items():
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        if any(each.name == "Config" for node in nodes for each in node.names):
            found.add(room(name))
    assert {"config", "pretraining", "tools"} <= found <= door


@pytest.mark.parametrize(
    "statement, targets",
    [
        ("from bert_jax import errors", ["errors"]),
        ("from bert_jax import load", ["bert_jax"]),
        ("import bert_jax.files", ["files"]),
        ("from bert_jax.config import Config", ["config"]),
        ("from bert_jax.data.store import open_store", ["data"]),
        ("from bert_jax.data import pairs", ["data"]),
        ("import jax", []),
    ],
)
def test_no_form_of_import_escapes(statement, targets):
    node = ast.parse(statement).body[0]
    assert [room(target) for target in imported(node, modules())] == targets


def test_no_module_is_in_a_circle():
    graph = {
        name: {target for node in ast.walk(tree) for target in imported(node, modules())} - {name}
        for name, tree in modules().items()
        if name != "bert_jax"
    }
    while leaves := [name for name, targets in graph.items() if not targets & set(graph)]:
        for name in leaves:
            del graph[name]
    assert not graph, f"these import each other: {sorted(graph)}"


def test_tensorflow_is_imported_only_where_it_is_needed_and_never_at_import_time():
    for name, tree in modules().items():
        file = name.removeprefix("bert_jax.").replace(".", "/") + ".py"
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                named = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
                if any(target.split(".")[0] in ("tensorflow", "tensorflow_datasets") for target in named):
                    assert file.startswith("data/") or file in LOADS_TENSORFLOW
                    assert node not in tree.body, f"{file} imports TensorFlow when it is imported"


def test_importing_a_module_needs_no_extra():
    """Workers of a pod have none, and train all the same. Nothing imports `beam` but a function that asks for Beam.

    What is behind `bert-jax serve` is imported by functions that ask for its libraries.
    """
    of_serving = {"starlette", "uvicorn", "prometheus_client", "h11"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {re.match(r"[\w-]+", each)[0].replace("-", "_").lower() for each in project["dependencies"]}
    needed |= {"absl", "orbax", "jaxlib", "serving", "torch_step"} | set(
        sys.stdlib_module_names
    )  # by the names of their modules
    for name, tree in modules().items():
        for node in tree.body:
            found = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            found += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            others = {each.partition(".")[0] for each in found} - needed - {"bert_jax"}
            others -= of_serving if name.startswith("bert_jax.tools.serving.") else set()
            assert not others or name == "bert_jax.data.preparation.beam", f"{name} imports {others}"


def test_scripts_and_makers_of_oracles_find_what_they_import():
    """The helpers of the tests are not on their path by themselves, so nothing else would notice one that moved."""
    # of an environment of their own
    peers = {"torch", "transformers", "sentence_transformers", "peft", "pytrec_eval", "seqeval", "mteb", "playwright"}
    folders = "tests/support", "tests/oracles", "scripts", "bert_jax/tools/bench/peer"  # on the paths of scripts
    helpers = {file.stem for folder in folders for file in (ROOT / folder).glob("*.py")}
    files = [*(ROOT / "scripts").glob("*.py"), *(ROOT / "tests" / "oracles").glob("*.py")]
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            found = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            found += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            for name in {each.partition(".")[0] for each in found} - helpers - peers:
                assert importlib.util.find_spec(name) is not None, f"{file.name} imports {name}"
    assert len(files) > 10


@pytest.mark.parametrize(
    "modules, without",
    [
        ("bert_jax, bert_jax.config", "jax numpy flax"),
        ("bert_jax.config.checks, bert_jax.config.options", "jax flax numpy tensorflow optax orbax tyro absl rich"),
        ("bert_jax.models.costs", "jax flax"),
        ("bert_jax.cli.info", "jax flax"),
        pytest.param("bert_jax.models.bert, bert_jax.objectives.masked_words", "tensorflow", marks=pytest.mark.slow),
    ],
)
def test_what_a_module_does_not_need_is_not_loaded(modules, without):
    ours = loaded_by(f"import {modules}")
    assert set(modules.split(", ")) <= ours and not set(without.split()) & ours


SOURCE = pathlib.Path(bert_jax.__file__)


def typed_names() -> dict[str, str]:
    """What the TYPE_CHECKING block of the package imports: {public name: module, and its name there if different}."""
    block = next(node for node in ast.parse(SOURCE.read_text()).body if isinstance(node, ast.If))
    return {
        alias.asname or alias.name: f"{node.module}:{alias.name}".removesuffix(f":{alias.asname or alias.name}")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_the_lists_of_public_names_agree():
    homes = {name: f"bert_jax.{home}" for name, home in bert_jax._HOMES.items()}
    assert typed_names() == homes
    assert bert_jax.__all__ == sorted(homes)
    assert {*bert_jax.__all__} <= {*dir(bert_jax)}


@pytest.mark.parametrize("name", bert_jax.__all__)
def test_each_public_name_is_there_and_explained(name):
    value = getattr(bert_jax, name)
    assert value.__doc__ and value.__module__.startswith("bert_jax.")


def held(kind) -> set[type]:
    """The dataclasses that a dataclass holds, directly, in tuples or in one another."""
    found = set()
    for hint in typing.get_type_hints(kind).values():
        for part in (hint, *typing.get_args(hint)):
            if dataclasses.is_dataclass(part):
                found |= {part, *held(part)}
    return found


def test_every_part_of_a_configuration_is_public_and_documented():
    parts = held(bert_jax.Config)
    assert {bert_jax.ModelConfig, bert_jax.PhaseConfig, bert_jax.DistillationConfig} <= parts
    reference = (SOURCE.parents[1] / "docs" / "reference" / "configuration.md").read_text().splitlines()
    for part in parts:
        assert getattr(bert_jax, part.__name__) is part and getattr(bert_jax.config, part.__name__) is part
        assert f"::: bert_jax.{part.__name__}" in reference


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'pretrian'"):
        bert_jax.pretrian


def test_importing_the_package_loads_no_library():
    seen = loaded_by("import bert_jax; assert 'analysis' in dir(bert_jax)")
    assert "bert_jax" in seen and not {"jax", "numpy", "flax", "tensorflow", "tyro"} & seen


@pytest.mark.slow
def test_a_type_checker_sees_the_public_names(tmp_path):
    pytest.importorskip("basedpyright", reason="the type checker is of the extra `lint`")
    (tmp_path / "uses.py").write_text(
        "import bert_jax\n"
        + "".join(f"bert_jax.{name}\n" for name in bert_jax.__all__)
        + "bert_jax.Config(sed=1)\nbert_jax.pretrian\n"
    )
    (tmp_path / "pyproject.toml").write_text(
        f'[tool.basedpyright]\ntypeCheckingMode = "standard"\nextraPaths = ["{SOURCE.parents[1]}"]\n'
        'reportUnusedExpression = "none"\n'
    )
    done = processes.run(
        sys.executable, "-m", "basedpyright", "--project", str(tmp_path), "--pythonpath", sys.executable, cwd=tmp_path
    )
    errors = [line for line in done.stdout.splitlines() if " error: " in line]
    assert len(errors) == 2, done.stdout
    assert '"sed"' in errors[0] and '"pretrian"' in errors[1]


def test_the_citation_names_the_version():
    assert f"\nversion: {bert_jax.__version__}\n" in (SOURCE.parents[1] / "CITATION.cff").read_text()


SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
STUB = """#!/bin/sh
echo "$*" >> "$CALLS"
case $* in finetune*)
  for word; do case $word in --workdir=*) mkdir -p "${word#--workdir=}/checkpoints" ;; esac; done ;;
esac
"""  # finetune leaves a model in its work directory


SHELLCHECK = shutil.which("shellcheck", path=f"{sys.prefix}/bin{os.pathsep}{os.environ['PATH']}")


@pytest.mark.slow
@pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is not installed; make install brings it")
def test_shellcheck_finds_nothing():
    scripts = [*SCRIPTS.glob("*.sh"), *(SCRIPTS.parent / "bert_jax").rglob("*.sh")]
    done = subprocess.run([SHELLCHECK, *scripts], capture_output=True, text=True)
    assert len(scripts) >= 5 and done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def shell():
    """A shell that runs the lines that it reads."""
    with subprocess.Popen(["sh"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


@pytest.fixture
def run_script(tmp_path, shell):
    """Run a script of the checkpoint `base` on tmp_path/data into tmp_path/out: its process, and its bert-jax calls."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "bin/bert-jax").write_text(STUB)
    (tmp_path / "bin/bert-jax").chmod(0o755)

    def run(script, *options, **environment):
        calls = tmp_path / "calls"
        calls.write_text("")
        environment |= {"CALLS": str(calls), "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
        variables = [f"{name}={value}" for name, value in environment.items()]
        words = ["env", *variables, "sh", SCRIPTS / script, "base", tmp_path / "data", tmp_path / "out", *options]
        shell.stdin.write(f"{shlex.join(map(str, words))} > {tmp_path}/stdout 2> {tmp_path}/stderr; echo $?\n")
        shell.stdin.flush()
        code, said = int(shell.stdout.readline()), [(tmp_path / name).read_text() for name in ("stdout", "stderr")]
        return subprocess.CompletedProcess(words, code, *said), [
            line.split() for line in calls.read_text().splitlines()
        ]

    return run


@pytest.fixture
def run_glue(run_script, tmp_path):
    """Run run_glue.sh on a GLUE of these directories: its process, and where each task that it fine-tuned began."""

    def run(*directories, **environment):
        for name in directories:
            (tmp_path / "data" / name).mkdir(parents=True, exist_ok=True)
        process, calls = run_script("run_glue.sh", **environment)
        return process, {task: start.removeprefix("--init_from=") for c, task, start, *_ in calls if c == "finetune"}

    return run


@pytest.mark.parametrize("name", ["AX", "diagnostic"])
def test_ax_is_left_out_where_there_is_no_model_of_mnli(run_glue, tmp_path, name):
    process, started = run_glue(name, "RTE")
    assert process.returncode == 0 and started == {"rte": "base"}
    assert f"ax: no model of mnli in {tmp_path / 'out/mnli'}, left out" in process.stdout
    process, started = run_glue("MNLI")
    assert process.returncode == 0 and started == {"mnli": "base", "ax": f"{tmp_path / 'out/mnli'}", "rte": "base"}
    _, started = run_glue(TASKS="ax")  # the model was made earlier
    assert started == {"ax": f"{tmp_path / 'out/mnli'}"}


def test_ax_gets_no_option_of_training(run_script, tmp_path):
    for name in ("MNLI", "AX"):
        (tmp_path / "data" / name).mkdir(parents=True)
    process, (mnli, ax, _) = run_script("run_glue.sh", "--seeds=5", "--grid", "--eval_batch_size=8", "--mesh.data=1")
    assert process.returncode == 0 and mnli[5:] == ["--seeds=5", "--grid", "--eval_batch_size=8", "--mesh.data=1"]
    assert ax[5:] == ["--eval_batch_size=8", "--mesh.data=1"]
    check_finetune(parse(task_defaults("ax"), ax[2:], "bert-jax finetune"))


def test_tasks_that_start_from_mnli_need_it_before_anything_runs(run_glue, tmp_path):
    process, started = run_glue("SST-2", "RTE", FROM_MNLI="1", TASKS="sst2 rte")
    assert process.returncode == 2 and not started and process.stderr.count("\n") == 1
    assert f"FROM_MNLI=1: rte starts from the model in {tmp_path / 'out/mnli'}, which has none" in process.stderr
    process, started = run_glue("MNLI", FROM_MNLI="1", TASKS="rte mnli")
    assert process.returncode == 2 and not started
    model = str(tmp_path / "out/mnli")
    _, started = run_glue(FROM_MNLI="1", TASKS="sst2 mnli rte")
    assert started == {"sst2": "base", "mnli": "base", "rte": model}
    _, started = run_glue(FROM_MNLI="1", TASKS="rte")  # the model was made earlier
    assert started == {"rte": model}


def options(call: list[str]) -> dict[str, str]:
    """As the command line reads them: of equal names the last counts."""
    return dict(word.removeprefix("--").split("=", 1) for word in call if word.startswith("--") and "=" in word)


def test_squad_leaves_out_what_is_not_there_and_goes_on_from_triviaqa(run_script, tmp_path):
    (tmp_path / "data/train-mini-v2.0.json").touch()
    process, (squad, results) = run_script("run_squad.sh", "--seeds=3")
    assert process.returncode == 0 and "squad_v1: no train-v1.1.json" in process.stdout
    assert squad[:2] == ["finetune", "squad_v2"] and results[0] == "results"
    assert options(squad) == {
        "init_from": "base",
        "data.dir": str(tmp_path / "data"),
        "workdir": str(tmp_path / "out/squad_v2"),
        "seeds": "3",
    }
    _, (trivia, squad, _) = run_script("run_squad.sh", TRIVIAQA="trivia", VERSIONS="v2")
    assert options(trivia)["data.dir"] == "trivia" and options(squad)["init_from"] == options(trivia)["workdir"]


def test_swag(run_script, tmp_path):
    process, (swag, results) = run_script("run_swag.sh", "--seeds=3")
    assert process.returncode == 0 and swag[:2] == ["finetune", "swag"] and options(swag)["seeds"] == "3"
    assert results == ["results", str(tmp_path / "out"), f"--output={tmp_path / 'out'}"]


def test_rates_and_grids_of_fine_tuning_are_not_those_of_a_bilstm(run_script, tmp_path):
    process, (tuned, *frozen, results) = run_script(
        "run_ner.sh", "--grid", "--grid_learning_rates=2e-5", "--crf", FEATURES="1"
    )
    assert process.returncode == 0
    assert tuned[5:] == ["--grid", "--grid_learning_rates=2e-5", "--crf"]
    assert "features" not in options(tuned)
    expected = ["embeddings", "second_to_last", "last", "weighted_last_four", "concat_last_four", "weighted_all"]
    assert [options(call)["features"] for call in frozen] == expected
    assert {(options(call)["learning_rate"], "--crf" in call, "--grid" in call) for call in frozen} == {
        ("1e-3", True, False)
    }
    assert len({options(call)["workdir"] for call in [tuned, *frozen]}) == 7 == len(results[1:-1])
    for call in [tuned, *frozen]:
        check_finetune(parse(task_defaults("ner"), call[2:], "bert-jax finetune"))
    _, (_, first, *_) = run_script("run_ner.sh", FEATURES="1", FEATURE_RATE="5e-4")
    assert options(first)["learning_rate"] == "5e-4"


WHEEL_ROOT = pathlib.Path(__file__).parents[2]


def pip(*words) -> None:
    done = processes.run(sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, words))
    assert done.returncode == 0, done.stdout + done.stderr


def test_files_that_are_released():
    """The build backend lists the files under version control, among them all that an installed package reads."""
    pytest.importorskip("hatchling", reason="hatchling is of the extra `dev`")
    from hatchling.builders.sdist import SdistBuilder
    from hatchling.builders.wheel import WheelBuilder

    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=WHEEL_ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("this is no checkout of git")
    tracked = {name for name in listed.stdout.splitlines() if (WHEEL_ROOT / name).exists()}
    wheel, source = (
        {file.distribution_path for file in builder(str(WHEEL_ROOT)).recurse_included_files()}
        for builder in (WheelBuilder, SdistBuilder)
    )
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "Makefile", "requirements.txt"} <= source
    assert not {name for name in source if name.startswith((".ci/", ".github/", "build/", ".venv", "runs/"))}
    forced = {f"bert_jax/{name}" for name in tracked if name.startswith("configs/")}
    package = {name for name in tracked if name.startswith("bert_jax/")}
    assert wheel == package | forced
    data = ("py.typed", "tools/report.html", "analysis/attention.html", "tools/pods/requirements.txt")
    data += tuple(f"tools/serving/playground.{kind}" for kind in ("html", "css", "js"))
    scripts = ("tools/pods/worker.sh", "tools/pods/slurm.sh", "tools/bench/peer/torch_step.py")
    assert {f"bert_jax/{name}" for name in (*data, *scripts)} <= package


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> pathlib.Path:
    """A directory with the files of the wheel, and nothing else."""
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling, which builds the wheel, is of the extra `dev`")
    place = tmp_path_factory.mktemp("wheel")
    pip("wheel", WHEEL_ROOT, "--no-deps", "--no-build-isolation", "--no-cache-dir", "--wheel-dir", place)
    (wheel,) = place.glob("bert_jax-*.whl")
    assert wheel.name == f"bert_jax-{bert_jax.__version__}-py3-none-any.whl"
    pip("install", wheel, "--no-deps", "--no-index", "--target", place / "site")
    return place / "site"


def run(installed: pathlib.Path, *words) -> subprocess.CompletedProcess:
    """Python with these words, outside the checkout; what is imported must be of the wheel."""
    return processes.run(sys.executable, *words, env={**os.environ, "PYTHONPATH": str(installed)}, cwd=installed.parent)


@pytest.mark.slow
def test_it_has_every_module_and_configuration_and_nothing_else(installed):
    modules = {file.relative_to(WHEEL_ROOT) for file in (WHEEL_ROOT / "bert_jax").rglob("*.py")}
    configs = {pathlib.Path("bert_jax") / f.relative_to(WHEEL_ROOT) for f in (WHEEL_ROOT / "configs").rglob("*.py")}
    present = {file.relative_to(installed) for file in installed.rglob("*.py")}
    assert present == modules | configs
    assert (installed / "bert_jax" / "py.typed").exists()
    (licence,) = installed.rglob("LICENSE")
    assert licence.read_text() == (WHEEL_ROOT / "LICENSE").read_text()


@pytest.mark.slow
def test_commands_find_the_configurations_by_name(installed):
    done = run(installed, "-m", "bert_jax", "info", "bert_base")
    assert done.returncode == 0, done.stderr
    assert "110,106,428" in done.stdout  # parameters of BERT-base with the vocabulary of 30,522 entries
    done = run(installed, "-m", "bert_jax", "info", "bert_bse")
    assert done.returncode == 2
    names = ", ".join(sorted(file.stem for file in (WHEEL_ROOT / "configs").glob("*.py")))
    assert "perhaps you meant bert_base" in done.stderr and done.stderr.endswith(f"come with bert_jax: {names}\n")


@pytest.mark.slow
def test_it_opens_a_model_without_tensorflow(installed, tmp_path):
    write_workdir(tmp_path / "model", 1)
    code = (
        "import sys; sys.modules['tensorflow'] = None\n"
        "import bert_jax; print(bert_jax.__file__)\n"
        f"print(*bert_jax.load({str(tmp_path / 'model')!r}).embed('a b')[0].tolist())"
    )
    done = run(installed, "-c", code)
    assert done.returncode == 0, done.stderr
    file, vector = done.stdout.splitlines()
    assert file == str(installed / "bert_jax" / "__init__.py")
    np.testing.assert_array_equal(
        np.array(vector.split(), np.float32), bert_jax.load(tmp_path / "model").embed("a b")[0]
    )
