"""Progress: a line of plain text in a notebook (no ipywidgets needed), rich's bar on a terminal, elsewhere nothing."""

import dataclasses
import functools
import io
import sys

import nbformat
import pytest
import rich.console
from loaded_model import loaded
from nbclient import NotebookClient
from pretrained_model import CONFIG, stored_model
from processes import SECONDS

from bert_jax import progress as module
from bert_jax.progress import progress_bar, track


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
    assert (
        "1.0 MB/3.0 MB" in first
        and "left" not in first
        and second.endswith("2.0 MB/3.0 MB in 2:00:00 about 2:00:00 left")
    )
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
def test_elsewhere_there_is_nothing_and_on_a_terminal_a_bar(capsys, monkeypatch, visible):
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


def test_a_real_kernel_shows_the_line():
    code = (
        "import sys\nsys.modules['ipywidgets'] = None\nfrom bert_jax.progress import track\n"
        "kept = list(track(range(3), 'batches', 3))"
    )
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    NotebookClient(book, timeout=SECONDS, kernel_name="python3").execute()
    said = "".join(output.text for output in book.cells[0].outputs if output.get("name") == "stderr")
    assert "0/3" in said and "3/3" in said
