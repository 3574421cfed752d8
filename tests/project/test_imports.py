"""Imports between folders: exactly the table in docs/layout.md, downwards only, and no file in a circle."""

import ast
import functools
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LOADS_TENSORFLOW = ("corpus/datasets.py", "formats/tf1.py", "tasks/readers.py")  # and data/


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
                named = (
                    [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
                )
                if any(target.split(".")[0] in ("tensorflow", "tensorflow_datasets") for target in named):
                    assert file.startswith("data/") or file in LOADS_TENSORFLOW
                    assert node not in tree.body, f"{file} imports TensorFlow when it is imported"


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter has after `statement`."""
    code = f"import sys; {statement}; print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


def test_the_pre_training_loop_loads_no_task():
    ours = loaded_by("import bert_jax.pretraining")
    assert "bert_jax.training.step" in ours
    assert not {name for name in ours if name.startswith(("bert_jax.tasks", "bert_jax.finetuning", "tensorflow"))}


def test_options_load_neither_jax_nor_numpy():
    ours = loaded_by("import bert_jax, bert_jax.config")
    assert "bert_jax.config" in ours and not {"jax", "numpy", "flax"} & ours
