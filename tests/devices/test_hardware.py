"""Device table and the rule for joining other hosts; no accelerator is needed."""

import os
import pathlib
import subprocess
import sys
import tomllib

import jax
import pytest
from processes import SECONDS

from bert_jax.devices import hardware, hosts
from bert_jax.errors import UserError

LAUNCHERS = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", *hardware.PROCESS_COUNTS)


@pytest.mark.parametrize(
    "kind, teraflops",
    [
        ("TPU v2", 22.5),
        ("TPU v3", 61.5),
        ("TPU v4", 275),
        ("TPU v5 lite", 197),
        ("TPU v5e", 197),
        ("TPU v5", 459),
        ("TPU v5p", 459),
        ("TPU v6 lite", 918),
        ("TPU v6e", 918),
        ("TPU7x", 1153.5),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989),
        ("NVIDIA B200", 2250),
        ("NVIDIA L4", 121),
        ("NVIDIA L40S", 362),
    ],
)
def test_peak_rates(kind, teraflops):
    assert hardware.peak_flops(kind) == teraflops * 1e12


@pytest.mark.parametrize("kind", ["cpu", "TPU v4 lite", "TPU v9", "NVIDIA A1000", "NVIDIA GeForce RTX 4070"])
def test_no_rate_is_invented_for_other_kinds(kind):
    assert hardware.peak_flops(kind) is None


def test_report_of_this_machine():
    found = hardware.hardware()
    assert (found.platform, found.num_devices, found.num_processes, found.peak_flops) == ("cpu", 8, 1, None)
    assert str(found) == "8 × cpu"  # which has no peak to tell


def test_report_of_some_of_the_devices():
    found = hardware.hardware(jax.devices()[2:5])
    assert (found.num_devices, found.num_local_devices, str(found)) == (3, 3, "3 × cpu")


NO_LIBRARY = "Unable to initialize backend 'tpu': INTERNAL: no libtpu.so (set JAX_PLATFORMS='' to choose another)"


@pytest.mark.parametrize(
    "platforms, error, said",
    [
        ("cuda", AssertionError(), "JAX_PLATFORMS=cuda, but JAX finds no such device here; .*, or unset JAX_PLATFORMS"),
        (
            "tpu",
            RuntimeError(NO_LIBRARY),
            r"JAX_PLATFORMS=tpu, .* here \(Unable to initialize backend 'tpu': INTERNAL: no libtpu.so\); install",
        ),
        (
            "",
            RuntimeError("Unable to initialize backend 'cuda': broken"),
            r"JAX finds no device \(Unable to .*\); install .*, or set JAX_PLATFORMS=cpu",
        ),
    ],
)
def test_devices_that_are_not_there_are_one_line(platforms, error, said, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    monkeypatch.setattr(jax, "devices", lambda: (_ for _ in ()).throw(error))
    with pytest.raises(UserError, match=f"^{said}") as raised:
        hardware.hardware()
    assert "\n" not in str(raised.value)


def test_a_start_that_fails_among_several_hosts_is_not_blamed_on_the_options(monkeypatch):
    """Another one may have died: all of them start again, as after any failure that is nobody's mistake."""
    monkeypatch.setattr(hosts, "is_watching", lambda: True)
    monkeypatch.setattr(jax, "devices", lambda: (_ for _ in ()).throw(RuntimeError("DEADLINE_EXCEEDED: topology")))
    with pytest.raises(RuntimeError, match="topology"):
        hardware.all_devices()


@pytest.mark.parametrize(
    "peak, memory, text",
    [
        (275e12, 32 * 2**30, "8 × TPU v4 (tpu) on 2 hosts: peak 275 TFLOP/s bfloat16 per device, 32.0 GiB per device"),
        (None, None, "8 × TPU v4 (tpu) on 2 hosts: peak FLOP/s unknown"),
    ],
)
def test_report_of_accelerators(peak, memory, text):
    assert str(hardware.Hardware("tpu", "TPU v4", 8, 4, 2, peak, memory)) == text


BEATS = {"heartbeat_timeout_seconds": 150}


@pytest.mark.parametrize(
    "environment, tpu, calls",
    [
        ({}, False, []),
        ({"SLURM_STEP_NUM_TASKS": "1"}, False, []),
        ({"SLURM_STEP_NUM_TASKS": "4"}, False, [BEATS]),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, False, [BEATS]),
        ({}, True, [BEATS]),
        (
            {"JAX_COORDINATOR_ADDRESS": "10.0.0.1:1234", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "0"},
            False,
            [{"num_processes": 4, "process_id": 0} | BEATS],
        ),
    ],
)
def test_when_processes_are_joined(environment, tpu, calls, monkeypatch):
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    seen = []
    monkeypatch.setattr(hardware, "on_tpu", lambda: tpu)
    monkeypatch.setattr(jax.distributed, "initialize", lambda **options: seen.append(options))
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: bool(seen))
    hardware.initialize_distributed()
    hardware.initialize_distributed()
    assert seen == calls


def test_a_launcher_that_jax_does_not_know_is_one_line():
    """Open MPI 5 says how many processes there are, but not where, as JAX would look for it."""
    environment = {name: value for name, value in os.environ.items() if name not in LAUNCHERS} | {
        "OMPI_COMM_WORLD_SIZE": "2"
    }
    code = "from bert_jax.devices.hardware import initialize_distributed; initialize_distributed()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.stderr.splitlines()[-1].startswith(
        "bert_jax.errors.UserError: OMPI_COMM_WORLD_SIZE=2, but JAX cannot tell where"
    )
    assert "set JAX_COORDINATOR_ADDRESS=HOST:PORT, JAX_NUM_PROCESSES and JAX_PROCESS_ID in every process" in done.stderr


@pytest.mark.parametrize(
    "present, name, extra", [("_has_nvidia_gpu", "an NVIDIA GPU", "cuda"), ("_has_tpu_chips", "a TPU", "tpu")]
)
def test_an_idle_accelerator_is_named_with_a_command_that_works_in_a_clone(present, name, extra, monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    for detector in ("_has_nvidia_gpu", "_has_tpu_chips"):
        monkeypatch.setattr(hardware, detector, lambda detector=detector: detector == present)
    said = hardware.idle_accelerator()
    assert name in said and f"pip install -e '.[{extra}]'" in said
    with open(pathlib.Path(__file__).parents[2] / "pyproject.toml", "rb") as file:
        assert extra in tomllib.load(file)["project"]["optional-dependencies"]


def test_half_a_launcher_environment_is_refused(monkeypatch):
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "10.0.0.1:1234")
    monkeypatch.setenv("JAX_NUM_PROCESSES", "4")
    monkeypatch.delenv("JAX_PROCESS_ID", raising=False)
    with pytest.raises(UserError, match="JAX_PROCESS_ID is not a number"):
        hardware.initialize_distributed()
