"""A work directory that is lost while it is held: written again, or left to whoever has taken its place."""

import os
import pathlib
import shutil
import subprocess
import sys

import jax.numpy as jnp
import pytest
from etils import epath
from held_workdir import HOLD, contents, no_locks
from started_workdir import changed, opened, start

from bert_jax import ownership
from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.errors import UserError
from bert_jax.ownership import Owner


@pytest.fixture(params=["locks", "time stamps"])
def taken(request, tmp_path, tokenizer, monkeypatch):
    """A work directory that this process writes to, on a file system with locks or without."""
    if request.param == "time stamps":
        monkeypatch.setattr(ownership.fcntl, "flock", no_locks)
    with opened(tmp_path / "run", tokenizer) as workdir:
        yield workdir


LOSSES = {
    "deleted": shutil.rmtree,
    "renamed": lambda path: path.rename(path.with_name("elsewhere")),
    "emptied": lambda path: [shutil.rmtree(file) if file.is_dir() else file.unlink() for file in path.iterdir()],
    "no config.json": lambda path: (path / "config.json").unlink(),
    "no tokenizer": lambda path: shutil.rmtree(path / "tokenizer"),
    "no owner.json": lambda path: (path / "owner.json").unlink(),
    "a copy of itself": lambda path: (path.rename(path.with_name("old")), shutil.copytree(path.with_name("old"), path)),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_directory_that_is_lost_during_a_run_is_written_again(taken, tokenizer, caplog, loss):
    """And is this run's again: the next start finds it whole, and until then another process is refused."""
    path = pathlib.Path(taken.path)
    before = contents(path)
    assert taken.is_ours() and not taken.secure()
    LOSSES[loss](path)
    if loss == "a copy of itself" and taken.owner.holds():  # without locks its content is all that tells who owns it
        return
    name = loss.removeprefix("no ")
    only = name if name in ("config.json", "tokenizer") else None  # the directory with its checkpoints is still there
    assert taken.secure() == (only is None) and taken.is_ours() and not taken.secure()
    said = f"{path} lacked {only}" if only else f"{path} was deleted, renamed or replaced during this run"
    assert said in caplog.text and contents(path) == before
    with pytest.raises(UserError, match=f"is being written by process {os.getpid()} "):
        Owner(epath.Path(path))
    with Checkpoints(taken.checkpoints, run_id=taken.run_id) as checkpoints:
        checkpoints.save(5, {"x": jnp.zeros(2)}, position={}, config={})
    taken.release()
    with opened(path, tokenizer) as again:
        assert again.resumed and again.run_id == taken.run_id


def test_a_directory_that_another_process_has_taken_during_a_run_is_left_alone(tmp_path, tokenizer):
    path = tmp_path / "run"
    with opened(path, tokenizer) as workdir:
        path.rename(tmp_path / "elsewhere")
        path.mkdir()
        with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE) as process:
            try:
                process.stdout.readline()
                before = (path / "owner.json").read_bytes()
                assert not workdir.is_ours()
                with pytest.raises(UserError, match=f"{path} is being written by process {process.pid} "):
                    workdir.secure()
                assert [(file.name, file.read_bytes()) for file in path.iterdir()] == [("owner.json", before)]
            finally:
                process.kill()


@pytest.mark.parametrize("there", ["another run", "another program"])
def test_a_directory_that_holds_something_else_during_a_run_is_left_alone(taken, tmp_path, tokenizer, there):
    path = pathlib.Path(taken.path)
    path.rename(tmp_path / "elsewhere")
    if there == "another run":
        start(path, tokenizer, changed(seed=3))
    else:
        path.mkdir()
        (path / "config.json").write_text('{"model_type": "bert"}')
    before = contents(path)
    with pytest.raises(
        UserError, match=f"{path} was deleted or renamed during .* and holds something else.*another --workdir"
    ):
        taken.secure()
    assert contents(path) == before
