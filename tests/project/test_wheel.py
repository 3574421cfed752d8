"""The wheel: built as a release is, and used where there is no checkout and no TensorFlow."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from pretrained_model import write_workdir
from processes import SECONDS

import bert_jax

pytestmark = pytest.mark.slow
ROOT = pathlib.Path(__file__).parents[2]


def pip(*words) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> pathlib.Path:
    """A directory with the files of the wheel, and nothing else."""
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling, which builds the wheel, is of the extra `dev`")
    place = tmp_path_factory.mktemp("wheel")
    pip("wheel", ROOT, "--no-deps", "--no-build-isolation", "--no-cache-dir", "--wheel-dir", place)
    (wheel,) = place.glob("bert_jax-*.whl")
    assert wheel.name == f"bert_jax-{bert_jax.__version__}-py3-none-any.whl"
    pip("install", wheel, "--no-deps", "--no-index", "--target", place / "site")
    return place / "site"


def run(installed: pathlib.Path, *words) -> subprocess.CompletedProcess:
    """Python with these words, outside the checkout; what is imported must be of the wheel."""
    return subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": str(installed)},
        cwd=installed.parent,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


def test_it_has_every_module_and_configuration_and_nothing_else(installed):
    modules = {file.relative_to(ROOT) for file in (ROOT / "bert_jax").rglob("*.py")}
    configs = {pathlib.Path("bert_jax") / file.relative_to(ROOT) for file in (ROOT / "configs").rglob("*.py")}
    present = {file.relative_to(installed) for file in installed.rglob("*.py")}
    assert present == modules | configs
    assert (installed / "bert_jax" / "py.typed").exists()
    (licence,) = installed.rglob("LICENSE")
    assert licence.read_text() == (ROOT / "LICENSE").read_text()


def test_commands_find_the_configurations_by_name(installed):
    done = run(installed, "-m", "bert_jax", "info", "bert_base")
    assert done.returncode == 0, done.stderr
    assert "110,106,428" in done.stdout  # parameters of BERT-base with the vocabulary of 30,522 entries
    done = run(installed, "-m", "bert_jax", "info", "bert_bse")
    assert done.returncode == 2
    names = ", ".join(sorted(file.stem for file in (ROOT / "configs").glob("*.py")))
    assert "perhaps you meant bert_base" in done.stderr and done.stderr.endswith(f"come with bert_jax: {names}\n")


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
