"""The pages: the links, paths and names in them exist. `make docs` checks the rest, with every warning an error."""

import ast
import inspect
import itertools
import pathlib
import pydoc
import re
import textwrap
import typing

import pytest

import bert_jax
from bert_jax.config.presets import shipped_configs

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [ROOT / n for n in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted((ROOT / "docs").rglob("*.md"))
TOP = ("bert_jax", "tests", "scripts", "configs", "docs")


def named(pages: list[pathlib.Path]):
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in pages]


def anchors(page: pathlib.Path) -> set[str]:
    """Anchors of the headings of a page, as Python-Markdown and GitHub make them from plain words."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


@pytest.mark.parametrize("page", named(PAGES))
def test_links_between_files_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        place, _, anchor = link.partition("#")
        target = (page.parent / place).resolve() if place else page
        assert target.exists() and target.is_relative_to(ROOT), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", named([*PAGES, *sorted((ROOT / "docs").glob("*.ipynb"))]))
def test_files_of_the_repository_that_a_page_names_exist(page):
    text = page.read_text(encoding="utf-8")
    if page.name == "CHANGELOG.md":
        text = text.split("\n## ")[1]  # older entries name what was there then
    for path in re.findall(rf"(?<![\w./-])(?:{'|'.join(TOP)})/[\w./-]*\w", text):
        assert (ROOT / path).exists() or path.startswith("tests/…"), path
    for path in re.findall(r"`(\w+(?:/\w+)*\.py)`", text):
        assert any((ROOT / top / path).exists() for top in ("", "bert_jax", "configs", "scripts", "tests")) or (
            path in ORIGINALS
        ), path


def prose(page: pathlib.Path) -> list[str]:
    """Lines of a page; those of code blocks are blank."""
    without_code = re.sub(
        r"^```.*?^```$",
        lambda block: "\n" * block[0].count("\n"),
        page.read_text(encoding="utf-8"),
        flags=re.DOTALL | re.MULTILINE,
    )
    return without_code.split("\n")


@pytest.mark.parametrize("page", named(PAGES))
def test_a_row_of_a_table_is_one_line(page):
    """It ends with the bar of its last cell and has as many cells as the row above it."""
    above = 0
    for number, line in enumerate(prose(page), 1):
        bars = re.sub(r"`[^`]*`", "", line).count("|") if line.startswith("|") else 0
        assert not bars or line.endswith("|"), f"line {number}: {line}"
        assert not bars or not above or bars == above, f"line {number}: {line}"
        above = bars


@pytest.mark.parametrize("page", named(PAGES))
def test_lists_and_tables_follow_a_blank_line(page):
    """Python-Markdown makes anything else part of the paragraph above it."""
    above = ""
    for number, line in enumerate(prose(page), 1):
        if re.match(r" *([-*+]|\d+\.) ", line):
            assert re.match(r" *([-*+]|\d+\.) |  |$", above), f"line {number}: {line}"
        if line.startswith("|"):
            assert above.startswith("|") or not above, f"line {number}: {line}"
        above = line


ORIGINALS = ("tokenization.py", "run_squad.py", "run_classifier.py", "create_pretraining_data.py", "evaluate-v2.0.py")
"""Files of google-research/bert and of SQuAD that the pages compare with."""


def reference() -> list[str]:
    """Paths of the objects that the Python reference shows."""
    pages = sorted((ROOT / "docs" / "reference").glob("*.md"))
    return re.findall(r"^::: ([\w.]+)$", "\n".join(page.read_text() for page in pages), re.MULTILINE)


@pytest.mark.parametrize("package", [bert_jax, bert_jax.analysis], ids=lambda package: package.__name__)
def test_every_public_name_is_in_the_reference_once(package):
    shown = [path.rpartition(".")[::2] for path in reference()]
    assert sorted(name for home, name in shown if home == package.__name__) == sorted(package.__all__)


def test_what_the_guide_to_extending_imports_is_in_the_reference():
    text = (ROOT / "docs" / "extending.md").read_text()
    imports = re.findall(r"^from (bert_jax[\w.]+) import (.+)$", text, re.MULTILINE)
    named = [f"{module}.{name}" for module, names in imports for name in names.split(", ")]
    named += re.findall(r"`(bert_jax(?:\.[a-z_]+)+\.[A-Z]\w+)`", text)  # the others are of `import bert_jax`
    assert len(named) > 8 and {*named} <= {*reference()}


@pytest.mark.parametrize("path", reference())
def test_the_reference_leaves_nothing_of_a_class_out(path):
    """It shows what has a docstring: every field, property and method whose name has no underscore must have one.

    What a class of ours that it extends has is explained there.
    """
    shown = pydoc.locate(path)
    assert shown is not None
    if inspect.isclass(shown):
        ours = [each for each in shown.__mro__ if each.__module__.startswith("bert_jax")]
        for number, each in enumerate(ours):
            check_explained(path, each, {name for base in ours[number + 1 :] for name in members(base)})


def members(cls: type) -> set[str]:
    return {*vars(cls), *inspect.get_annotations(cls)}


def check_explained(path: str, cls: type, elsewhere: set[str]) -> None:
    definition = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(definition, ast.ClassDef) and ast.get_docstring(definition)
    for statement, below in itertools.zip_longest(definition.body, definition.body[1:]):
        name = statement.target.id if isinstance(statement, ast.AnnAssign) else getattr(statement, "name", "")
        if name in elsewhere:
            continue
        if isinstance(statement, ast.AnnAssign):
            described = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            assert described, f"{path}: {ast.unparse(statement)}"
        if isinstance(statement, ast.FunctionDef) and not statement.name.startswith("_"):
            decorators = {ast.unparse(decorator) for decorator in statement.decorator_list}
            another = {"overload", f"{statement.name}.setter"} & decorators
            assert another or ast.get_docstring(statement), f"{path}.{statement.name}"


@pytest.mark.parametrize("name", [name for name in bert_jax.__all__ if not inspect.isclass(getattr(bert_jax, name))])
def test_what_a_public_function_returns_is_in_the_reference(name):
    shown = [pydoc.locate(path) for path in reference()]
    returned = typing.get_type_hints(getattr(bert_jax, name))["return"]
    for part in (returned, *typing.get_args(returned)):
        assert part in shown or not getattr(part, "__module__", "").startswith("bert_jax")


def test_the_map_shows_every_folder_of_the_package_and_no_other():
    tree = (ROOT / "docs" / "layout.md").read_text(encoding="utf-8").split("```")[1]
    shown = re.findall(r"^  (\w[\w/]*)/ ", tree, re.MULTILINE)
    files = [file.relative_to(ROOT / "bert_jax") for file in (ROOT / "bert_jax").rglob("*.py")]
    folders = {file.parent.as_posix() for file in files if file.name != "__init__.py"} - {"."}
    assert sorted(shown) == sorted(folder for folder in folders if not folder.startswith("tasks/"))
    for file in re.findall(r"[\w/]+\.py", tree.split("scripts/")[0]):
        assert (ROOT / "bert_jax" / file).exists(), file


def family() -> dict[str, str]:
    """The configurations of the table of the family, and the last cell of the row of each."""
    table = (ROOT / "docs/family.md").read_text(encoding="utf-8").split("take it when")[1].split("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| `")]
    return {name: cells[-1] for cells in rows for name in re.findall(r"`(\w+)`", cells[0])}


def test_the_table_of_the_family_has_every_configuration_and_what_is_measured_of_it():
    others = {"bert_demo", "bert_study", "bert_base_google2018"}  # recipes of one of the family
    assert set(family()) == set(shipped_configs()) - others
    measured = {file.stem for file in (ROOT / "docs/family_rows").iterdir()} | {"bert_tiny"}  # of docs/watching.md
    for name, cell in family().items():
        sizes = re.findall(r"\w+", re.sub(r"\(.*?\)", "", cell))
        assert (cell == "yes" or name.split("_")[-1] in sizes) == (name in measured), name
