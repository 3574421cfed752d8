"""What a machine has and lacks: devices, software, memory, options of compilers, transfers."""

import logging
import os
import pathlib
import shutil
import subprocess
import tomllib
import types

import fresh
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bert_jax
from bert_jax.config import ComputeConfig, Config, MeshConfig, PhaseConfig, resolve_phases
from bert_jax.devices import hardware, hosts, sharding
from bert_jax.devices.compilation import APART, OVERLAP, compile_with, step_options
from bert_jax.devices.hardware import memory_advice, memory_error, shortage_of
from bert_jax.devices.hosts import commit, sources
from bert_jax.devices.sharding import narrow_type, narrowed, widened
from bert_jax.errors import UserError
from bert_jax.tools.planning import compiler
from bert_jax.tools.planning.topology import find_topology
from bert_jax.training import run
from bert_jax.training.learner import phase_advice, state_advice
from bert_jax.training.reporter import say_hardware
from bert_jax.training.run import PhaseSteps
from bert_jax.training.state import created

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
    environment = {name: v for name, v in os.environ.items() if name not in LAUNCHERS} | {"OMPI_COMM_WORLD_SIZE": "2"}
    code = "from bert_jax.devices.hardware import initialize_distributed; initialize_distributed()"
    done = fresh.run(code, env=environment)
    assert done.stderr.splitlines()[-1].startswith(
        "bert_jax.errors.UserError: OMPI_COMM_WORLD_SIZE=2, but JAX cannot tell where"
    )
    assert "set JAX_COORDINATOR_ADDRESS=HOST:PORT, JAX_NUM_PROCESSES and JAX_PROCESS_ID in every process" in done.stderr


@pytest.mark.parametrize(
    "present, name, extra", [("_has_nvidia_gpu", "an NVIDIA GPU", "cuda"), ("has_tpu_chips", "a TPU", "tpu")]
)
def test_an_idle_accelerator_is_named_with_a_command_that_works_in_a_clone(present, name, extra, monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    for detector in ("_has_nvidia_gpu", "has_tpu_chips"):
        monkeypatch.setattr(hardware, detector, lambda detector=detector: detector == present)
    said = hardware.idle_accelerator()
    assert name in said and f"pip install 'bert_jax[{extra}]'" in said
    with open(pathlib.Path(__file__).parents[2] / "pyproject.toml", "rb") as file:
        assert extra in tomllib.load(file)["project"]["optional-dependencies"]


@pytest.mark.parametrize(
    "flags, dtype, says",
    [
        ("fpu avx2 avx512_bf16", "auto", True),
        ("fpu avx2 amx_bf16", "auto", True),
        ("fpu avx2", "auto", False),
        (None, "auto", False),
        ("fpu avx2 amx_bf16", "float32", False),
    ],
)
def test_a_processor_that_multiplies_bfloat16_is_told_of(flags, dtype, says, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("bert_jax.devices.process.CPUINFO", tmp_path / "cpuinfo")
    if flags is not None:
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nmodel\t\t: 2\nflags\t\t: {flags}\n\nprocessor\t: 1\n")
    say_hardware(sharding.make_mesh(MeshConfig(), jax.devices()[:1]), ComputeConfig(dtype=dtype))
    said = capsys.readouterr().out
    assert said.startswith("1 × cpu\n") and ("--compute.dtype=bfloat16" in said) == says


def test_half_a_launcher_environment_is_refused(monkeypatch):
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "10.0.0.1:1234")
    monkeypatch.setenv("JAX_NUM_PROCESSES", "4")
    monkeypatch.delenv("JAX_PROCESS_ID", raising=False)
    with pytest.raises(UserError, match="JAX_PROCESS_ID is not a number"):
        hardware.initialize_distributed()


PACKAGE = pathlib.Path(bert_jax.__file__).parent


def test_sources_are_those_of_the_whole_package():
    assert {"__init__.py", "cli/commands.py", "models/bert.py"} <= sources().keys()


@pytest.mark.slow
@pytest.mark.skipif(not (PACKAGE.parent / ".git").exists() or not shutil.which("git"), reason="not a checkout")
def test_the_commit_is_that_of_the_checkout():
    head = subprocess.run(["git", "-C", PACKAGE, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    assert commit().removesuffix("-dirty") == head.stdout.strip()


def test_the_commit_is_what_git_says_where_there_is_a_checkout(tmp_path, monkeypatch):
    asked = []

    def git(words: list[str], **options: object) -> subprocess.CompletedProcess:
        asked.append(words[:3])
        return subprocess.CompletedProcess(words, 0, "0123abcd-dirty\n", "")

    monkeypatch.setattr(subprocess, "run", git)
    monkeypatch.setattr(hosts, "PACKAGE_DIRECTORY", tmp_path / "bert_jax")
    assert commit.__wrapped__() is None and not asked  # installed
    (tmp_path / ".git").touch()
    assert commit.__wrapped__() == "0123abcd-dirty" and asked == [["git", "-C", str(tmp_path)]]
    monkeypatch.setattr(subprocess, "run", lambda *_, **options: open(tmp_path / "no git"))
    assert commit.__wrapped__() is None


MESH = {"slice": 1, "data": 4, "fsdp": 1, "tensor": 1}


def test_an_allocation_that_fails_is_answered_with_what_helps():
    """The message is that of this machine's own allocator."""
    (phase,) = resolve_phases(Config(phases=(PhaseConfig(batch_size=64),)))
    with pytest.raises(jax.errors.JaxRuntimeError) as raised:
        jax.block_until_ready(jax.jit(lambda: jnp.ones((1 << 46,)) * 2.0)())
    answer = memory_error(raised.value, "phase 0", phase_advice(phase, MESH, "none"))
    assert isinstance(answer, UserError) and "\n" not in str(answer)
    assert str(answer).startswith("phase 0 does not fit into the memory of a device (")
    for option in (
        "--compute.remat=sel or full",
        "--mesh.fsdp=4",
        "--phases.0.micro_batches=2",
        "--phases.0.batch_size",
    ):
        assert option in str(answer)


def test_a_computation_that_a_cpu_had_begun_is_answered_too():
    said = "INTERNAL: Error dispatching computation: Out of memory allocating 70368744178432 bytes."
    answer = memory_error(RuntimeError(said), "the step", ["less"])
    assert isinstance(answer, UserError) and f"({said}); what helps: less" in str(answer)


def test_a_state_that_does_not_fit_is_an_error_and_not_waited_for():
    """Reading `small`, which has its memory, would not return."""
    initialize = jax.jit(lambda seed: {"small": jnp.zeros(()), "large": jnp.ones((1 << 42,)) * seed})
    with pytest.raises(jax.errors.JaxRuntimeError, match="Out of memory"):
        created(initialize, np.float32(1))


def test_what_helps_a_state_is_that_it_is_split_or_smaller():
    assert state_advice(MESH)[0].startswith("--mesh.data=1 --mesh.fsdp=4: ") and "a smaller model" in state_advice(MESH)
    assert state_advice({**MESH, "data": 1, "fsdp": 4})[0] == "a smaller model"
    assert not any("batch" in remedy for remedy in state_advice(MESH))


def test_the_figures_of_the_tpu_compiler_are_in_the_answer():
    said = "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 18.92G of 15.75G hbm. Exceeded by 3.17G."
    answer = memory_error(RuntimeError(said), "phase 1", ["less"])
    assert "(the program needs 18.92 GiB, 15.75 GiB are there); what helps: less" in str(answer)


def test_other_errors_stay_what_they_are():
    error = RuntimeError("INTERNAL: something else")
    assert memory_error(error, "phase 0", []) is error


def test_only_a_lack_of_memory_is_answered_within_a_block():
    with (
        pytest.raises(UserError, match=r"^a batch of 9 texts does not .* what helps: fewer$"),
        memory_advice("a batch of 9 texts", ["fewer"]),
    ):
        jax.block_until_ready(jax.jit(lambda: jnp.ones((1 << 46,)) * 2.0)())
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"), memory_advice("a batch", []):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")


@pytest.mark.parametrize(
    "message, needed, available",
    [
        (
            "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO "
            "temporaries (50.43G) exceeds available HBM (15.75G). HLO module: jit_train_step.",
            50.43,
            15.75,
        ),
        (
            "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 18.90G of 15.75G hbm. Exceeded hbm "
            "capacity by 3.15G.",
            18.9,
            15.75,
        ),
    ],
)
def test_what_is_missing(message, needed, available):
    shortage = shortage_of(message)
    assert shortage.needed == int(needed * 2**30) and shortage.available == int(available * 2**30)


def test_an_unknown_message_is_shown():
    assert shortage_of("RESOURCE_EXHAUSTED: something new\nand more").what == "RESOURCE_EXHAUSTED: something new"


def mesh_of(platform: str, count: int) -> types.SimpleNamespace:
    return types.SimpleNamespace(size=count, devices=np.array([types.SimpleNamespace(platform=platform)] * count))


def test_several_tpus_sum_beside_the_backward_pass_unless_they_should_not_and_gpus_merge_no_products():
    found = {
        (platform, count): step_options(ComputeConfig(), mesh_of(platform, count))
        for platform in ("cpu", "gpu", "tpu")
        for count in (1, 4)
    }
    given = {("tpu", 4): OVERLAP, ("gpu", 1): APART, ("gpu", 4): APART}
    assert {key: options for key, options in found.items() if options} == given
    assert step_options(ComputeConfig(overlap=False), mesh_of("tpu", 4)) == {}


@pytest.mark.parametrize("topology", ["gpu:h200:1", "v5e:2x2", "cpu:2"])
def test_a_plan_compiles_with_the_options_of_the_step_that_it_plans(topology):
    machine = find_topology(topology)
    mesh = mesh_of(machine.platform, machine.chips)
    planned, run = compiler.compiler_options(ComputeConfig(), mesh, machine), step_options(ComputeConfig(), mesh)
    assert planned == (run | compiler.FLAGS if machine.platform == "gpu" else run)
    assert planned or machine.platform == "cpu"


def test_options_reach_the_compiler(tmp_path):
    lowered = jax.jit(lambda x: jnp.sin(x) + 1).lower(jnp.ones(3))
    compile_with(lowered, {"xla_dump_to": str(tmp_path), "xla_dump_hlo_as_text": True})
    assert any("after_optimizations" in file.name for file in tmp_path.iterdir())


def test_a_compiler_without_them_compiles_without_them_and_says_so(caplog):
    lowered = jax.jit(lambda x: x + 1).lower(jnp.ones(3))
    with caplog.at_level(logging.WARNING):
        made = compile_with(lowered, {"xla_tpu_no_such_option": True})
    np.testing.assert_array_equal(made(jnp.ones(3)), 2)
    assert "'xla_tpu_no_such_option'" in caplog.text and "--compute.overlap=False" in caplog.text


def test_the_steps_of_a_run_are_compiled_with_them(monkeypatch, tmp_path):
    monkeypatch.setattr(run, "step_options", lambda compute, mesh: {"xla_dump_to": str(tmp_path)})
    lowered = jax.jit(lambda state, batch: state + batch["x"])
    learner = types.SimpleNamespace(
        network=types.SimpleNamespace(compute=ComputeConfig()), mesh=None, frozen=(), train_step=lambda phase: lowered
    )
    step = PhaseSteps(learner).of(types.SimpleNamespace(index=0, batch_size=1))
    np.testing.assert_array_equal(step(jnp.ones(3), {"x": jnp.ones(3)}), 2)
    assert list(tmp_path.iterdir())


def test_every_other_failure_is_raised():
    def compile_(**_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 3 GiB")

    with pytest.raises(jax.errors.JaxRuntimeError, match="3 GiB"):
        compile_with(types.SimpleNamespace(compile=compile_), OVERLAP)


@pytest.mark.parametrize(
    "dtype, bound, expected",
    [
        (np.int32, 30_522, np.int16),
        (np.int32, 2**15, np.int16),
        (np.int32, 2**15 + 1, np.uint16),
        (np.int32, 2**16, np.uint16),
        (np.int32, 2**16 + 1, np.int32),
        (np.float32, 10, np.float32),
        (np.int8, 10, np.int8),
    ],
)
def test_the_first_type_that_holds_the_values(dtype, bound, expected):
    assert narrow_type(dtype, bound) == expected


@pytest.mark.parametrize("bound", [100, 40_000, 70_000])
def test_values_arrive_as_they_left(bound):
    ids = np.array([[0, 1, bound - 1]], np.int32)
    weights = np.array([[0.5, 1.0, np.pi]], np.float32)
    sent = narrowed({"ids": ids, "weights": weights}, bound)
    assert sent["weights"] is weights and sent["ids"].dtype == narrow_type(np.int32, bound)
    received = jax.jit(widened)(jax.device_put(sent))
    assert received["ids"].dtype == np.int32 and received["weights"].dtype == np.float32
    np.testing.assert_array_equal(received["ids"], ids)
    np.testing.assert_array_equal(received["weights"], weights)


@pytest.mark.parametrize("value, bound", [(2**15, 100), (-1, 40_000), (2**16, 50_000)])
def test_a_value_that_does_not_fit_is_refused(value, bound):
    with pytest.raises(ValueError, match="ids has values that u?int16 does not hold"):
        narrowed({"ids": np.array([0, value], np.int32)}, bound)
