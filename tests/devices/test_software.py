"""What a run records of its own software: every file of the package, and the commit."""

import pathlib
import shutil
import subprocess

import pytest

import bert_jax
from bert_jax.devices.hosts import commit, sources

PACKAGE = pathlib.Path(bert_jax.__file__).parent


def test_sources_are_those_of_the_whole_package():
    assert {"__init__.py", "cli/commands.py", "models/bert.py"} <= sources().keys()


@pytest.mark.skipif(not (PACKAGE.parent / ".git").exists() or not shutil.which("git"), reason="not a checkout")
def test_the_commit_is_that_of_the_checkout():
    head = subprocess.run(["git", "-C", PACKAGE, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    assert commit().removesuffix("-dirty") == head.stdout.strip()
