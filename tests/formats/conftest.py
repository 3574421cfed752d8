"""A checkpoint of TF1."""

import shutil

import numpy as np
import pytest
from tf1_checkpoint import save, variables


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A pre-training checkpoint with the slots of the optimizer, and its variables."""
    directory, values = tmp_path_factory.mktemp("tf1") / "uncased", variables()
    slots = {f"{name}/adam_{slot}": np.ones_like(values[name]) for name in list(values)[:3] for slot in "mv"}
    save(directory, values | slots | {"global_step": np.int64(1000)})
    (directory / "checkpoint").unlink()  # the released archives have none
    return directory, values


@pytest.fixture
def copy(saved, tmp_path):
    return shutil.copytree(saved[0], tmp_path / "copy")
