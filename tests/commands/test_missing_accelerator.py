"""JAX_PLATFORMS names an accelerator that is not there: one line from what computes, and no matter to what does not."""

import os
import subprocess
import sys

import pytest
from command_lines import bert_jax

from bert_jax.devices import hardware

ELSEWHERE = {**os.environ, "JAX_PLATFORMS": "cuda"}
LINE = (
    "JAX_PLATFORMS=cuda, but JAX finds no such device here; install jax with support for it on a machine that has one, "
)
pytestmark = pytest.mark.skipif(hardware._has_nvidia_gpu(), reason="this machine has an NVIDIA GPU")


@pytest.mark.parametrize(
    "command",
    [
        "pretrain @/config.json --workdir=@/new",
        pytest.param("fill-mask @/run [MASK]", marks=pytest.mark.slow),
        pytest.param("analyze init bert_tiny --output=@/new", marks=pytest.mark.slow),
    ],
)
def test_a_command_that_computes_is_refused_in_one_line(command, bad_inputs):
    done = bert_jax(*(word.replace("@", str(bad_inputs)) for word in command.split()), env=ELSEWHERE)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {LINE}or unset JAX_PLATFORMS\n"
    assert not (bad_inputs / "new").exists()


@pytest.mark.slow
def test_loading_in_python_raises_the_error_of_the_commands(bad_inputs):
    code = f"import bert_jax\ntry: bert_jax.load('{bad_inputs}/run')\nexcept bert_jax.UserError as error: print(error)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ELSEWHERE)
    assert done.stdout.startswith(LINE), done.stderr


@pytest.mark.parametrize("command", [pytest.param("info bert_tiny", marks=pytest.mark.slow), "inspect @/store"])
def test_a_command_that_does_not_compute_asks_for_no_device(command, bad_inputs):
    done = bert_jax(*(word.replace("@", str(bad_inputs)) for word in command.split()), env=ELSEWHERE)
    assert done.returncode == 0, done.stderr
