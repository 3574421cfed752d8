"""The pages: the links, paths and names in them exist. `make docs` checks the rest, with every warning an error."""

import pathlib
import re

import pytest

import bert_jax

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    (ROOT / "docs").rglob("*.md")
)
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


ORIGINALS = ("tokenization.py", "run_squad.py", "run_classifier.py", "create_pretraining_data.py", "evaluate-v2.0.py")
"""Files of google-research/bert and of SQuAD that the pages compare with."""


def test_every_public_name_is_in_the_reference_once():
    pages = sorted((ROOT / "docs" / "reference").glob("*.md"))
    shown = re.findall(r"^::: bert_jax\.(\w+)$", "\n".join(page.read_text() for page in pages), re.MULTILINE)
    assert sorted(shown) == sorted(bert_jax.__all__)


def test_the_map_shows_every_folder_of_the_package_and_no_other():
    tree = (ROOT / "docs" / "layout.md").read_text(encoding="utf-8").split("```")[1]
    shown = re.findall(r"^  (\w[\w/]*)/ ", tree, re.MULTILINE)
    files = [file.relative_to(ROOT / "bert_jax") for file in (ROOT / "bert_jax").rglob("*.py")]
    folders = {file.parent.as_posix() for file in files if file.name != "__init__.py"} - {"."}
    assert sorted(shown) == sorted(folder for folder in folders if not folder.startswith("tasks/"))
    for file in re.findall(r"[\w/]+\.py", tree.split("scripts/")[0]):
        assert (ROOT / "bert_jax" / file).exists(), file
