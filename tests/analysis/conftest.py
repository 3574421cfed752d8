"""What most analyses are tried on, and their command."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from command_lines import succeed
from matplotlib.figure import Figure
from pretrained_model import loaded, stored_model

from bert_jax.pretrained.model import PretrainedModel


@pytest.fixture(scope="module")
def model() -> PretrainedModel:
    """A model of five layers and random parameters."""
    return loaded(stored_model())


@pytest.fixture
def analyze(request, tmp_path, capsys, monkeypatch) -> Callable[..., tuple[str, Any]]:
    """`bert-jax analyze` with its files in tmp_path/out: what it prints, and the result that it leaves there.

    A figure is laid out once, in a few dots, but that of a slow test, which is drawn as for users.
    """
    savefig = Figure.savefig

    def sketch(self, file, *, format: str, **options):
        if format == "png":
            savefig(self, file, format=format, dpi=20)

    if request.node.get_closest_marker("slow") is None:
        monkeypatch.setattr(Figure, "savefig", sketch)

    def run(*words: object, file: str = "result.json") -> tuple[str, Any]:
        succeed("analyze", *words, f"--output={tmp_path}/out")
        return capsys.readouterr().out, json.loads((tmp_path / "out" / file).read_text())["result"]

    return run
