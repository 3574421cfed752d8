"""The notebooks of docs/: they run on any model, and are kept with outputs that name no machine."""

import pathlib
import re
import shutil
import sys

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError
from processes import compiler_flags
from small_pretraining import pretrain

from bert_jax.config import CheckpointConfig, Config, DataConfig, EvaluationConfig, ModelConfig, PhaseConfig

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "docs").glob("*.ipynb"))
ABSOLUTE = re.compile(r"(?<![\w.~/<:-])/(?:home|Users|root|tmp|work|usr|opt|var|mnt|private)/")

sys.path.insert(0, str(ROOT / "scripts"))
from execute_notebooks import METADATA, execute  # noqa: E402


@pytest.fixture(scope="module")
def workdir(small_store, tmp_path_factory) -> pathlib.Path:
    """What a short run leaves, on one device as on a laptop."""
    place = tmp_path_factory.mktemp("notebooks") / "run"
    config = Config(
        model=ModelConfig(hidden_size=32, num_layers=2, num_heads=2, max_position_embeddings=64),
        workdir=str(place),
        data=DataConfig(path=str(small_store), held_out=0.1, loader="plain"),
        checkpoint=CheckpointConfig(every_steps=4),
        phases=(PhaseConfig(steps=4, sequence_length=32, batch_size=16, learning_rate=1e-3, warmup_steps=1),),
        evaluation=EvaluationConfig(every_steps=0),
    )
    pretrain(config)
    return place


@pytest.mark.slow
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_notebooks_run(file, workdir, tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", compiler_flags())  # one device, as a user of a laptop has
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "true")
    (tmp_path / "docs").mkdir()
    notebook = execute(pathlib.Path(shutil.copy(file, tmp_path / "docs")), str(workdir))
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")


@pytest.mark.slow
def test_cells_run_in_this_interpreter_and_errors_show(tmp_path):
    cells = [nbformat.v4.new_code_cell("import os, sys; print(sys.executable, os.environ['BERT_JAX_MODEL'])")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "shown.ipynb")
    assert execute(tmp_path / "shown.ipynb", "the model").cells[0].outputs[0].text == f"{sys.executable} the model\n"
    nbformat.write(
        nbformat.v4.new_notebook(cells=[*cells, nbformat.v4.new_code_cell("1 / 0")]), tmp_path / "failing.ipynb"
    )
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        execute(tmp_path / "failing.ipynb", "the model")


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_notebooks_are_kept_with_their_outputs(file):
    notebook = nbformat.read(file, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata == METADATA and file.stat().st_size < 300_000
    assert not ABSOLUTE.search(nbformat.writes(notebook))
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]
    outputs = [output for cell in code for output in cell.outputs]
    assert outputs and not any(output.output_type == "error" or output.get("name") == "stderr" for output in outputs)
    assert any("image/png" in output.get("data", {}) for output in outputs)
