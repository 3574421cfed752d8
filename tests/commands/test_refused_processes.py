"""Refusals and failures of a command in a process of its own: one line on stderr, whatever the libraries would add."""

import shlex
import shutil
import subprocess
import sys

import pytest
from processes import SECONDS, one_device


@pytest.mark.parametrize(
    "command",
    [
        pytest.param("prepare --input=@/latin1.txt --vocab=@/vocab.txt --output=@/new", marks=pytest.mark.slow),
        "pretrain @/config.json --workdir=@/new --mesh.data=3",
        pytest.param("evaluate @/run --data.path=@/other_store", marks=pytest.mark.slow),
    ],
    ids=["not UTF-8", "a mesh for other devices", "evaluate on another vocabulary"],
)
def test_the_libraries_add_no_line_of_their_own(command, bad_inputs):
    """In a process of its own, where absl, JAX and TensorFlow greet whom they can."""
    words = [word.replace("@", str(bad_inputs)) for word in command.split()]
    finished = subprocess.run(
        [sys.executable, "-m", "bert_jax", *words], capture_output=True, text=True, timeout=SECONDS
    )
    assert finished.returncode == 2 and finished.stdout == ""
    assert finished.stderr.startswith("error: ") and finished.stderr.count("\n") == 1, finished.stderr


ARRAY = "params.pooler.kernel"


@pytest.mark.slow
@pytest.mark.parametrize(
    "command, says",
    [
        (
            "pretrain @/config.json --workdir=RUN",
            "error: none of the 1 checkpoints in RUN/checkpoints can be used (step 2: the array "
            "params/pooler/kernel cannot be read (FAILED_PRECONDITION)). ",
        ),
        (
            "fill-mask RUN [MASK]",
            "error: no checkpoint of RUN can be used (step_000000002: the array params/pooler/kernel cannot be "
            "read (FAILED_PRECONDITION)); ",
        ),
    ],
)
def test_a_damaged_array_is_named_in_one_line(command, says, bad_inputs, tmp_path):
    """In a process of its own: reads that were given up used to print tracebacks from TensorStore's threads."""
    import tensorstore

    shutil.copytree(bad_inputs / "run", tmp_path / "run")
    state = tmp_path / "run" / "checkpoints" / "step_000000002" / "state"
    arrays = tensorstore.KvStore.open({"driver": "ocdbt", "base": {"driver": "file", "path": f"{state}/"}}).result()
    for chunk in [
        key for key in arrays.list().result() if key.startswith(f"{ARRAY}/".encode()) and b".zarray" not in key
    ]:
        arrays.write(chunk, b"not zstd").result()
    words = [word.replace("@", str(bad_inputs)).replace("RUN", f"{tmp_path}/run") for word in command.split()]
    finished = subprocess.run(
        [sys.executable, "-m", "bert_jax", *words], capture_output=True, text=True, timeout=SECONDS
    )
    assert finished.returncode == 2 and finished.stderr.count("\n") == 1, finished.stderr
    assert finished.stderr.startswith(says.replace("RUN", f"{tmp_path}/run")), finished.stderr


@pytest.mark.slow
def test_a_save_that_fails_is_one_line(bad_inputs, tmp_path):
    """Orbax logs the failure four times, and prints a traceback for each write that was in flight."""
    command = shlex.join(
        [
            sys.executable,
            "-m",
            "bert_jax",
            "pretrain",
            f"{bad_inputs}/config.json",
            f"--workdir={tmp_path}/run",
            "--model.hidden_size=128",
            "--checkpoint.every_steps=1",
        ]
    )
    finished = subprocess.run(
        ["bash", "-c", f"ulimit -f 64 && {command}"],  # KiB
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=one_device(killed=True),
    )
    assert finished.returncode == 2 and finished.stderr.count("\n") == 1, finished.stderr
    assert finished.stderr.startswith(
        f"error: saving the checkpoint of step 1 to {tmp_path}/run/checkpoints failed: File too large; "
    )
