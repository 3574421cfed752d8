"""Plans: memory, topologies, teachers.

`bert-jax plan` from end to end on virtual CPU devices, and its refusals. Names of machines. The memory of a chip by
part, from what the compiler writes. A plan with a teacher: its memory, its operations and its vocabulary.
"""

import contextlib
import dataclasses
import importlib.util
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import processes
import pytest
import written_teacher
from four_phases import four_phases
from processes import wait_until

from bert_jax import cli
from bert_jax.config import (
    ComputeConfig,
    Config,
    DataConfig,
    MaskedWords,
    MeshConfig,
    ModelConfig,
    PhaseConfig,
)
from bert_jax.config.commands import PlanConfig
from bert_jax.config.objective import DistillationConfig
from bert_jax.config.options import to_dict
from bert_jax.devices.hardware import Shortage, peak_flops
from bert_jax.errors import UserError
from bert_jax.models.bert_parameters import bert_parameters
from bert_jax.models.costs import activation_bytes, computed_flops, state_bytes, training_flops
from bert_jax.parameters import FLOAT32, total_size
from bert_jax.tools.planning import compiler
from bert_jax.tools.planning import plan as search
from bert_jax.tools.planning.compiler import CompiledProgram, resolved
from bert_jax.tools.planning.hlo import Needed
from bert_jax.tools.planning.plan import PhasePlan, Section, make_plan, page, plan_phase, sections
from bert_jax.tools.planning.roofline import Operation, Work, cost, memory_of, step_time, throughput
from bert_jax.tools.planning.topology import GPUS, MEMORY_SHARES, TPUS, Topology, find_topology
from bert_jax.training.learner import phase_advice

SMALL = tuple(
    f"--model.{name}"
    for name in ("hidden_size=32", "num_layers=1", "num_heads=2", "vocab_size=64", "max_position_embeddings=16")
)
CONFIG = Config(model=ModelConfig(hidden_size=32, num_layers=2, num_heads=2, vocab_size=64), phases=(PhaseConfig(),))


@contextlib.contextmanager
def answered_here(request: dict, topology: Topology):
    """Stand in for the child that compiles: its program answers in this process, which has eight CPU devices."""
    said: list[dict] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.StringIO(json.dumps(request) + "\n"))
        patch.setattr(compiler, "_end_with_the_parent", lambda: None)
        patch.setattr(compiler, "_say", lambda **facts: said.append(json.loads(json.dumps(facts))))
        compiler.main()
    yield iter(said)


@pytest.fixture
def no_child(monkeypatch) -> None:
    """Answer what is asked of the child in this process."""
    monkeypatch.setattr(compiler, "_child", answered_here)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The plan of a small run on four CPU devices, as JSON; a second one as a page, whose program is stored by then."""
    place = tmp_path_factory.mktemp("plan")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(place))
        patch.setattr(compiler, "_child", answered_here)
        words = ["bert-jax", "plan", "bert_tiny", *SMALL, "--batch_size=16", "--sequence_length=16", "--topology=cpu:4"]
        assert cli._run([*words, f"--output={place / 'plan.json'}"]) == 0
        stages = []
        patch.setattr(compiler, "_child", _told(stages))
        assert cli._run([*words, f"--output={place / 'plan.html'}", "--seed=0"]) == 0
    return json.loads((place / "plan.json").read_text()), (place / "plan.html").read_text(), stages


def _told(stages: list):
    """The same child, whose lines are also appended to `stages`."""

    @contextlib.contextmanager
    def telling(*arguments):
        with answered_here(*arguments) as lines:
            yield (stages.append(line) or line for line in lines)

    return telling


def test_the_state_has_the_size_of_the_closed_form(written):
    (phase,) = written[0]["phases"]
    model = dataclasses.replace(CONFIG.model, num_layers=1, max_position_embeddings=16)
    expected = state_bytes(bert_parameters(model), moments=2)
    assert phase["memory"]["parameters"] == expected.parameters
    assert phase["memory"]["moments"] - expected.moments == 4  # the count of steps
    # 4 sequences of length 16, 3 masked positions: integers of two bytes, weights of four
    assert phase["memory"]["batch"] == 4 * (3 * 16 * 2 + 3 * (2 + 2 + 4) + 2)
    assert phase["mesh"] == {"slice": 1, "data": 4, "fsdp": 1, "tensor": 1} and phase["resharding_warnings"] == 0


def test_the_compiled_products_are_those_of_the_closed_form(written):
    (phase,) = written[0]["phases"]
    assert phase["work"]["flops"] == pytest.approx(phase["flops"], rel=0.02)


def test_every_gradient_is_summed(written):
    (phase,) = written[0]["phases"]
    (total,) = phase["collectives"]
    assert (total["kind"], total["dtype"], total["group"]) == ("all-reduce", "f32", 4)
    assert total["bytes"] >= phase["memory"]["parameters"]


def test_a_processor_has_no_times_and_its_memory_is_not_judged(written):
    (phase,) = written[0]["phases"]
    assert written[0]["fits"] and phase["time"] is None and "seconds" not in written[0]["phases"]


def test_a_second_plan_compiles_nothing(written):
    stages = [line["stage"] for line in written[2] if "stage" in line]
    assert stages == ["tracing"]


def test_the_page_loads_nothing_and_has_the_figures(written):
    facts, html, _ = written
    assert "<script" not in html and "http" not in html and "src=" not in html
    assert "all-reduce" in html and "--topology=cpu:4" in html
    assert f"{facts['phases'][0]['work']['flops'] / 1e12:,.3f}" in html


def test_texts_on_the_page_are_escaped():
    hostile = "<script>alert('&')</script>"
    html = page(hostile, [hostile], [Section(hostile, (hostile,), [(hostile,)], (hostile,))], hostile)
    assert "<script" not in html and html.count("&lt;script&gt;alert(&#x27;&amp;&#x27;)&lt;/script&gt;") == 8


@pytest.mark.parametrize(
    "words, parts",
    [
        (["--topology=v5e:7x7"], ["unknown topology 'v5e:7x7'", "known: v5e and v6e", "2xv5e:4x4"]),
        ([], ["--topology is missing", "known:"]),
        (["--topology=cpu:4", "--output=plan.pdf"], ["output=plan.pdf must end in .json or .html"]),
        (
            ["--topology=cpu:4", "--output=/nowhere/plan.json"],
            ["output=/nowhere/plan.json: /nowhere is not a writable"],
        ),
        (["--topology=cpu:4", "--price_per_chip_hour=-1"], ["price_per_chip_hour=-1.0", "positive"]),
        pytest.param(
            ["--topology=cpu:4", "--mesh.data=3"],
            ["needs 3 devices, but there are 4", "mesh.data=4"],
            marks=pytest.mark.slow,
        ),
        (["--topology=cpu:4", "--batch_size=30"], ["phases.0.batch_size=30 is not divisible by 4", "28 or 32"]),
        (["--topology=cpu:4", "--model.num_heads=5"], ["model.num_heads=5"]),
    ],
)
@pytest.mark.usefixtures("no_child")
def test_bad_input_is_one_line(words, parts, capsys):
    assert cli._run(["bert-jax", "plan", "bert_tiny", *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("error: ") and printed.err.count("\n") == 1
    assert all(part in printed.err for part in parts), printed.err


def test_a_missing_compiler_names_the_extra(monkeypatch, capsys):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "libtpu" else find_spec(name))
    assert cli._run(["bert-jax", "plan", "bert_tiny", "--topology=v5e:2x2"]) == 2
    assert "pip install 'bert_jax[plan]' installs it" in capsys.readouterr().err


# Processor seconds of a phase by docs/planning.md and docs/speed.md, in a loop but for the last two; 639 and 1,745 are
# halves of plans of two phases on a slower processor.
@pytest.mark.parametrize(
    "layers, form, measured",
    [(12, "auto", (411, 639)), (24, "loop", (570, 1745)), (2, "loop", (223,)), (24, "auto", (46, 98))],
)
def test_what_was_measured_is_inside_the_bracket(layers, form, measured):
    config = Config(model=ModelConfig(num_layers=layers), compute=ComputeConfig(layers=form))
    low, high = compiler.expected_minutes(config, find_topology("v6e:8x8"))
    assert all(low <= seconds / 60 <= high for seconds in measured) and high < 5 * low
    assert compiler.expected_minutes(config, find_topology("cpu:8")) is None


def test_a_plan_for_tpus_begins_with_its_duration(monkeypatch, capsys):
    """Twelve unrolled layers and two phases; a scan is said to be quicker and another program."""
    monkeypatch.setattr(search, "make_plan", lambda *_: pytest.fail("planned before it said how long that takes"))
    monkeypatch.setattr(compiler, "check_compiler", lambda _: None)
    with pytest.raises(pytest.fail.Exception):
        cli._run(["bert-jax", "plan", "bert_base", "--topology=v6e:8x8"])
    told = capsys.readouterr().err
    assert told.startswith("v6e:8x8: compiling takes 9 to 35 minutes of processor time, or none for what is stored; ")
    assert "--compute.layers=scan is planned in 1 to 6 minutes" in told and "needs more memory and time" in told
    config = Config(phases=(PhaseConfig(),), compute=ComputeConfig(layers="scan"))
    assert "scan" not in search.expectation(config, find_topology("v5e:2x2"))


def test_a_long_compilation_says_what_it_has_spent(monkeypatch):
    said, later = [], threading.Event()
    monkeypatch.setattr(compiler, "SAID_EVERY", 0.001)
    monkeypatch.setattr(compiler, "_say", lambda stage: (said.append(stage), len(said) > 2 and later.set()))
    with compiler._said_again_and_again(CONFIG, find_topology("v5e:2x2")):
        assert later.wait(processes.SECONDS)
    count = len(said)
    assert said[0] == "compiling, 1 to 5 minutes of processor time"
    assert re.fullmatch(r"compiling, \d+\.\d of 1 to 5 minutes of processor time", said[1])
    time.sleep(0.01)
    assert len(said) == count, "it goes on after the block"


def test_the_child_knows_nothing_of_the_job(monkeypatch):
    monkeypatch.setenv("TPU_WORKER_ID", "7")
    monkeypatch.setenv("MEGASCALE_NUM_SLICES", "2")
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "10.0.0.1:1")
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_use_thunk_runtime=true --xla_force_host_platform_device_count=2")
    before = dict(os.environ)
    environment = compiler._environment(find_topology("cpu:16"))
    assert not {"MEGASCALE_NUM_SLICES", "JAX_COORDINATOR_ADDRESS"} & environment.keys()
    assert environment["TPU_WORKER_ID"] == "0" and environment["JAX_PLATFORMS"] == "cpu"
    assert environment["XLA_FLAGS"].split() == [
        "--xla_cpu_use_thunk_runtime=true",
        "--xla_force_host_platform_device_count=16",
    ]
    assert dict(os.environ) == before


@pytest.fixture
def stub(tmp_path, monkeypatch):
    """Let these lines of a shell be the child, once it has read the request and said that it is tracing."""

    def stand_in(lines: str) -> None:
        place = tmp_path / "python"
        place.write_text(f"#!/bin/sh\nread request\necho '{json.dumps({'stage': 'tracing'})}'\n{lines}\n")
        place.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(place))

    return stand_in


@pytest.mark.parametrize("child", ["a shell", pytest.param("the compiler", marks=pytest.mark.slow)])
def test_the_child_ends_with_the_block(monkeypatch, stub, child):
    if child == "a shell":
        stub("exec sleep 1000")
    started = []
    monkeypatch.setattr(subprocess, "Popen", lambda *a, _popen=subprocess.Popen, **k: started.append(_popen(*a, **k)) or started[0])  # fmt: skip # noqa: E501
    request = {"config": to_dict(CONFIG), "topology": "cpu:1", "phase": 0}
    with pytest.raises(KeyboardInterrupt), compiler._child(request, find_topology("cpu:1")) as lines:
        assert next(lines) == {"stage": "tracing"}
        raise KeyboardInterrupt
    assert started[0].returncode is not None


def test_a_child_ends_when_the_pipe_from_its_parent_closes(monkeypatch):
    ended = []
    monkeypatch.setattr(sys, "stdin", io.StringIO("what is left"))
    monkeypatch.setattr(os, "_exit", ended.append)
    compiler._end_with_the_parent()
    assert ended == [1] and not sys.stdin.read()


@pytest.mark.slow
def test_a_child_ends_when_its_parent_is_killed():
    """The parent is killed as the child has begun, so that nothing can be cleaned up."""
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import subprocess, sys, time\n"
            "child = subprocess.Popen([sys.executable, '-c', 'import time, threading\\n"
            "from bert_jax.tools.planning import compiler\\n"
            "threading.Thread(target=compiler._end_with_the_parent).start()\\n"
            "print(1, flush=True)\\ntime.sleep(1000)'], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
            "child.stdout.read(1)\nprint(child.pid, flush=True)\ntime.sleep(1000)",
        ],
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    with parent.stdout:
        child = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
    wait_until(lambda: not _runs(child))


def _runs(pid: int) -> bool:
    """Whether a process is there and no zombie that waits for whoever adopted it."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.usefixtures("no_child")
@pytest.mark.skipif(compiler.plugin() is not None, reason="the compiler for GPUs is installed")
def test_a_graphics_card_is_planned_by_closed_forms_where_its_compiler_is_missing():
    config = dataclasses.replace(CONFIG, phases=(PhaseConfig(batch_size=64), PhaseConfig(batch_size=64, steps=5)))
    plan = make_plan(config, find_topology("gpu:h100:8"))
    first = plan.phases[0]
    state = state_bytes(bert_parameters(config.model), moments=2)
    assert first.memory is not None and first.optimistic is not None and first.pessimistic is None
    assert first.memory.parameters == first.memory.gradients == state.parameters and not first.compiled
    assert first.optimistic.utilization <= 1.0 and plan.fits
    assert plan.config.compute.dtype == "bfloat16" and len(plan.phases) == 2
    fused = dataclasses.replace(
        config, phases=config.phases[:1], compute=dataclasses.replace(config.compute, attention="triton")
    )
    in_kernel = make_plan(fused, find_topology("gpu:h100:8")).phases[0].memory
    kept = activation_bytes(config.model, 128, 20, "none").quadratic * 8
    of_a_layer = kept // config.model.num_layers
    assert in_kernel is not None and first.memory.activations - in_kernel.activations == kept + of_a_layer > 0


@pytest.mark.usefixtures("no_child")
@pytest.mark.skipif(compiler.plugin() is not None, reason="the compiler for GPUs is installed")
def test_a_phase_is_planned_as_a_run_of_its_options_alone(tmp_path, capsys):
    base = dataclasses.replace(CONFIG, phases=(PhaseConfig(batch_size=64),))
    (run, alone), output = four_phases(base), tmp_path / "plan.json"
    options = dataclasses.replace(PlanConfig.of(run), topology="gpu:h100:8", output=str(output))
    assert search.run_plan(options, []) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Phase ")]
    assert len(told) == 3 and "direction=left_to_right" in told[0] and told[1].startswith("Phase 1: masking.rate=0.3")
    found = [planned["flops"] for planned in json.loads(output.read_text())["phases"]]
    predictions = (127, 39, 20, 20)  # of rows of 128: all but one, 30 and 15 %
    assert found == [
        computed_flops(each.model, each.objective, each.compute, 128, number).total * 64 / 8
        for each, number in zip(alone, predictions, strict=True)
    ]
    assert len(set(found)) == 4


def test_slices_of_the_machine_are_those_of_the_mesh():
    two = resolved(CONFIG, find_topology("2xv5e:4x4"))
    assert two.mesh == MeshConfig(slice=2) and two.compute.dtype == "bfloat16"
    assert resolved(CONFIG, find_topology("cpu:4")).compute.dtype == "float32"
    given = dataclasses.replace(CONFIG, mesh=MeshConfig(slice=3))
    assert resolved(given, find_topology("2xv5e:4x4")).mesh.slice == 3  # which make_mesh will refuse


def test_times_and_costs_follow_from_a_step():
    topology = find_topology("v5e:2x2")
    work = Work(flops=0, bytes=0, cycles=1_500_000, roofline_seconds=4e-4, without_estimate={})
    time_ = step_time(topology, work, [])
    assert time_.pessimistic == pytest.approx(1e-3) and time_.optimistic == 4e-4  # 1.5 GHz
    phase = plan_of(CONFIG, "v5e:2x2", fits=True).phase
    found = throughput(0.5, topology, phase, flops=197e12 / 4)
    assert found.utilization == pytest.approx(0.5) and found.tokens_per_second == 256 * 128 / 0.5
    assert found.days == pytest.approx(1_000_000 * 0.5 / 86_400) and found.sequences_per_host == 512
    assert cost(2.0, 256, 1.2) == pytest.approx(2 * 24 * 256 * 1.2)


def plan_of(config: Config, name: str, fits: bool, seconds: float = 1.0) -> PhasePlan:
    """The plan of the first phase with the mesh of the options, which fits or not."""
    from bert_jax.config import resolve_phases

    topology, phase = find_topology(name), resolve_phases(config)[0]
    data = topology.chips // config.mesh.fsdp if config.mesh.data == -1 else config.mesh.data
    end = throughput(seconds, topology, phase, 1e12)
    return PhasePlan(
        phase=phase,
        mesh={"slice": 1, "data": data, "fsdp": config.mesh.fsdp, "tensor": 1},
        remat="none" if config.compute.remat == "auto" else config.compute.remat,
        compiled=True,
        flops=1e12,
        memory=None,
        shortage=None if fits else Shortage(2, 1, "HLO temporaries"),
        closed_form_bytes=1,
        needed=Needed(gradients=0, parameters=0, between_slices=0),
        optimistic=end,
        pessimistic=end,
    )


def test_a_search_finds_the_largest_batch_the_weakest_remat_and_the_fastest_mesh(monkeypatch):
    """A machine where 100 sequences a chip fit with remat=full, 20 with sel, none without; fsdp=4 is the fastest."""
    most = {"none": 0, "sel": 20, "full": 100}

    def fake(config: Config, topology, number, stage) -> PhasePlan:
        stage("compiling")
        fits = config.phases[0].batch_size / 4 <= most[config.compute.remat.replace("auto", "none")]
        return plan_of(config, "v5e:2x2", fits, seconds=1.0 if config.mesh.fsdp == 4 else 2.0)

    monkeypatch.setattr(search, "plan_phase", fake)
    topology, told = find_topology("v5e:2x2"), []
    for rows, policy, largest in ((8, "sel", 64), (64, "sel", 64), (256, "full", 256), (1024, "", 256)):
        config = dataclasses.replace(CONFIG, phases=(PhaseConfig(batch_size=rows),))
        found = search.search(config, topology, fake(config, topology, 0, told.append), told.append)
        chosen = {each.question: each.change for each in found if each.chosen}
        assert chosen.get("remat", "--compute.remat=") == f"--compute.remat={policy}"
        assert chosen.get("mesh") == ("--mesh.data=1 --mesh.fsdp=4" if policy else None)
        assert chosen["batch"] == f"--phases.0.batch_size={largest}"
    assert "--compute.remat=sel: compiling" in told


def test_a_search_goes_on_where_the_compiler_crashes(monkeypatch, caplog):
    """Without the mesh of 4 shards and without the batch of 128, which is the next one."""

    def fake(config: Config, topology, number, stage) -> PhasePlan:
        if config.mesh.fsdp == 4 or config.phases[0].batch_size == 128:
            raise compiler.CompilerFailure("has crashed")
        return plan_of(config, "v5e:2x2", fits=True)

    monkeypatch.setattr(search, "plan_phase", fake)
    config, topology = dataclasses.replace(CONFIG, phases=(PhaseConfig(batch_size=64),)), find_topology("v5e:2x2")
    found = search.search(config, topology, fake(config, topology, 0, print), lambda _: None)
    changes = {each.question: each.change for each in found if each.chosen}
    assert (changes["batch"], changes["mesh"]) == ("--phases.0.batch_size=64", "--mesh.data=4 --mesh.fsdp=1")
    assert "--phases.0.batch_size=128 is left out: has crashed" in caplog.text


def test_a_crash_of_the_compiler_is_one_line(stub):
    stub("kill -SEGV $$")
    topology = find_topology("v5e:2x2")
    with pytest.raises(compiler.CompilerFailure, match=r"v5e:2x2 has crashed \(SIGSEGV\)"):
        compiler.compile_phase(CONFIG, topology, 0, print)
    assert re.search("was killed, .* memory", compiler._crash(topology, signal.SIGKILL))


def test_the_costliest_operations_are_shown_in_milliseconds_of_the_chip():
    """v5e has 1.5 cycles in a nanosecond."""
    one = Operation(
        origin="jit(step)/dot_general",
        result="f32[8,8]",
        times=24,
        cycles=3_000_000,
        roofline_seconds=0.0015,
        flops=5 * 10**9,
        bytes=7 * 10**6,
    )
    work = Work(
        flops=one.flops, bytes=one.bytes, cycles=6_000_000, roofline_seconds=1.0, without_estimate={}, costliest=[one]
    )
    plan = dataclasses.replace(plan_of(CONFIG, "v5e:2x2", fits=True), work=work)
    (shown,) = (
        each for each in sections(find_topology("v5e:2x2"), [plan], [], 0.0) if each.title.startswith("What takes")
    )
    assert shown.rows == [("jit(step)/dot_general", "f32[8,8]", "24", "2.00", "50.0%", "1.50", "5.0", "7.0")]


def test_advice_names_options_that_exist():
    config = dataclasses.replace(CONFIG, phases=(PhaseConfig(batch_size=64),))
    plan = plan_of(config, "v5e:2x2", fits=False)
    lines = phase_advice(plan.phase, plan.mesh, plan.remat)
    assert [line.split()[0] for line in lines[:4]] == [
        "--compute.remat=sel",
        "--mesh.data=1",
        "--phases.0.micro_batches=2:",
        "--phases.0.batch_size=32:",
    ]


@pytest.mark.slow
def test_a_phase_that_does_not_exist_on_the_machine():
    with pytest.raises(UserError, match="batch_size=256 is not divisible by 7"):
        plan_phase(resolved(CONFIG, find_topology("cpu:7")), find_topology("cpu:7"), 0, print)


@pytest.mark.parametrize(
    "name, platform, slices, chips, hosts",
    [
        ("v5e:2x2", "tpu", 1, 4, 1),
        ("v5e:16x16", "tpu", 1, 256, 64),
        ("2xv5e:4x4", "tpu", 2, 32, 8),
        ("v5p:4x4x4", "tpu", 1, 64, 16),
        ("v4:2x2x1", "tpu", 1, 4, 1),
        ("v6e:1x1", "tpu", 1, 1, 1),
        ("cpu:8", "cpu", 1, 8, 1),
        ("gpu:h100:16", "gpu", 1, 16, 2),
    ],
)
def test_the_name_of_a_topology_gives_platform_slices_chips_and_hosts(name, platform, slices, chips, hosts):
    found = find_topology(name)
    assert (found.platform, found.slices, found.chips, found.hosts) == (platform, slices, chips, hosts)


@pytest.mark.parametrize(
    "name",
    [
        *("", "v5e", "v5e:3x3", "v5e:4x4x4", "v5p:4x4", "v7:2x2", "0xv5e:2x2", "2*v5e:2x2", "cpu:0", "cpu:99999"),
        *("gpu:8", "gpu:b300:8", "tpu:v5e:2x2", "v5e:2x2\n", "2x2xv5e:2x2"),
    ],
)
def test_unknown_names_list_the_known_ones(name):
    with pytest.raises(
        UserError, match="known: v5e and v6e with 1x1.*16x16 chips; v4 and v5p with 2x2x1.*; cpu:N; gpu:K"
    ):
        find_topology(name)


def test_a_near_name_is_suggested():
    with pytest.raises(UserError, match="unknown topology 'v5e:16x8'; perhaps you meant v5e:(8x16|16x16);"):
        find_topology("v5e:16x8")
    with pytest.raises(UserError, match="perhaps you meant v5e:4x4;"):
        find_topology("2*v5e:4x4")


def test_the_clock_is_the_peak_over_the_matrix_units():
    """Units per chip and their side: cloud.google.com/tpu/docs; the peak is that of devices/hardware.py."""
    for name, units, side in (("v4", 8, 128), ("v5e", 4, 128), ("v5p", 8, 128), ("v6e", 4, 256)):
        chip = TPUS[name]
        assert chip.clock is not None
        assert peak_flops(chip.kind) == pytest.approx(chip.clock * units * 2 * side**2, rel=0.01)


def test_every_chip_has_a_peak_and_the_compiler_knows_every_card():
    assert all(peak_flops(chip.kind) for chip in (*TPUS.values(), *GPUS.values()))
    assert compiler.CARDS.keys() == GPUS.keys()


@pytest.mark.skipif(compiler.plugin() is not None, reason="the compiler for GPUs is installed")
def test_a_plugin_that_jax_cannot_use_is_explained():
    with pytest.raises(UserError, match="cannot use the plugin .* install the same version of jax-cuda13-plugin"):
        compiler.described_cards(GPUS["h100"], 1)


def test_a_program_can_use_what_jax_takes_of_a_card(monkeypatch):
    """Three quarters, unless the environment says otherwise."""
    for name in MEMORY_SHARES:
        monkeypatch.delenv(name, raising=False)
    assert find_topology("gpu:h100:1").chip.memory_bytes == 60 * 10**9
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9")
    assert find_topology("gpu:h100:1").chip.memory_bytes == 72 * 10**9
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "90%")
    with pytest.raises(UserError, match="XLA_CLIENT_MEM_FRACTION=90% must be a share of the memory, above 0 and at"):
        find_topology("gpu:h100:1")


# As libtpu 0.0.51 writes them, shortened: color 1 is the memory on the chip.
BUFFERS = """BufferAssignment:
allocation 0: size 2097152, page 0, parameter 0, shape |f32[512,1024]| at ShapeIndex {}:
 value: <30 param.1 @0> (size=2097152,offset=0): f32[512,1024]{1,0:T(8,128)}
allocation 487: size 9000000, page 0, preallocated-temp:
 value: <31 saved @0> (size=4000000,offset=0): bf16[8,128,1024]{2,1,0}
 value: <32 recomputed @0> (size=4000000,offset=0): bf16[8,128,1024]{2,1,0}
 value: <33 gradient @0> (size=1048576,offset=4000000): bf16[512,1024]{1,0:T(8,128)(2,1)}
 value: <34 of_a_layer @0> (size=2000000,offset=6000000): f32[1024,16,64]{2,1,0}
 value: <35 early @0> (size=3000000,offset=5050000): f32[8,128]{1,0}
allocation 488: size 96231936, color 1, page 0, preallocated-temp:
 value: <54 on_the_chip @1> (size=90000000,offset=0): bf16[1024,1024]{1,0:T(8,128)(2,1)S(1)}
"""
RANGES = """HloLiveRange (max 33):
  BufferLiveRange:
    param.1{}:0-33
    saved{}:2-9
    recomputed{}:9-12
    gradient{}:10-20
    of_a_layer{}:11-20
    early{}:1-5
    on_the_chip{}:0-33
"""
FACTS = {
    "parameters": 10_000_000,
    "moments": 20_000_000,
    "teacher": 0,
    "batch": 1_000,
    "parameter_shapes": [[512, 1024], [24, 16, 64, 1024]],
}


def program(**changes) -> CompiledProgram:
    sizes = {
        "argument": 30_005_000,
        "output": 30_000_100,
        "alias": 30_000_000,
        "temp": 9_000_000,
        "generated_code": 500,
    }
    values = dict(text="", buffers=BUFFERS, live_ranges=RANGES, memory=sizes, failure="", resharding_warnings=0)
    return CompiledProgram(**(values | changes), seconds=1.0, cpu_seconds=1.0)


def test_the_parts_at_the_moment_when_most_is_kept():
    """At 11 there are the recomputed activations and both gradients; at 4 it is less, and VMEM does not count."""
    memory = memory_of(program(), FACTS)
    assert memory.gradients == 1_048_576 + 2_000_000  # a table, and one layer of a stacked kernel in another order
    assert memory.activations == 4_000_000  # two values in one place are there once
    assert memory.unattributed == 9_000_000 - memory.gradients - memory.activations
    assert (memory.parameters, memory.moments, memory.batch, memory.padding) == (10_000_000, 20_000_000, 1_000, 4_000)
    assert memory.total == 30_005_000 + 100 + 9_000_000 + 500


def test_the_parts_without_what_the_compiler_says_of_buffers():
    memory = memory_of(program(buffers="", live_ranges=""), FACTS)
    assert (memory.gradients, memory.activations, memory.unattributed) == (0, 0, 9_000_000)
    assert memory.total == 30_005_000 + 100 + 9_000_000 + 500


LENGTH, PREDICTIONS, ROWS = 48, 8, 64
STUDENT = dataclasses.replace(written_teacher.TEACHER, num_layers=2, type_vocab_size=0, pair_head=False)


@pytest.fixture(scope="module")
def teacher(small_store, tmp_path_factory):
    """Where it is, and what is there."""
    place = tmp_path_factory.mktemp("planned") / "teacher"
    return place, written_teacher.write(place, small_store)


def taught(teacher, **mesh) -> Config:
    place, _ = teacher
    phase = PhaseConfig(sequence_length=LENGTH, max_predictions=PREDICTIONS, batch_size=ROWS)
    return Config(
        model=STUDENT,
        data=DataConfig(sentence_pairs="none"),
        compute=ComputeConfig(remat="none"),
        mesh=MeshConfig(**mesh),
        objective=MaskedWords(distillation=DistillationConfig(teacher=str(place))),
        phases=(phase,),
    )


@pytest.fixture(scope="module")
def plans(teacher, kept_plans):
    """Of the student with and without its teacher on four devices of a processor."""
    topology = find_topology("cpu:4")
    config = resolved(taught(teacher), topology)
    alone = dataclasses.replace(config, objective=MaskedWords())
    return [plan_phase(each, topology, 0, lambda stage: None) for each in (config, alone)]


@pytest.mark.slow
@pytest.mark.usefixtures("kept_plans")
def test_a_teacher_has_memory_and_no_moments(teacher, plans):
    with_teacher, alone = (plan.memory for plan in plans)
    assert with_teacher.teacher == FLOAT32 * total_size(teacher[1].parameters) and alone.teacher == 0
    assert (with_teacher.parameters, with_teacher.moments) == (alone.parameters, alone.moments)
    assert with_teacher.padding == alone.padding


@pytest.mark.slow
@pytest.mark.usefixtures("kept_plans")
def test_a_teacher_computes_forward_only(teacher, plans):
    _, stored = teacher
    with_teacher, alone = (plan.work.flops for plan in plans)
    forward = training_flops(stored.model, stored.parameters, LENGTH, PREDICTIONS).total / 3
    # Of the student alone, the last layer is computed where words are predicted.
    left_out = plans[0].flops - plans[1].flops
    assert left_out > 0
    # The closed form counts matrix products alone; comparing predictions and states takes a few operations more.
    assert with_teacher - alone - left_out == pytest.approx(forward * ROWS / 4, rel=0.005)


@pytest.mark.slow
@pytest.mark.usefixtures("kept_plans")
def test_a_graphics_card_is_planned_with_the_teacher(teacher):
    topology = find_topology("gpu:h100:8")
    config = resolved(taught(teacher, fsdp=4), topology)
    planned = plan_phase(config, topology, 0, lambda stage: None)
    assert planned.memory is not None
    whole = state_bytes(teacher[1].parameters, moments=2).parameters
    assert whole / 4 <= planned.memory.teacher < whole / 3  # small vectors are on every device
    alone = plan_phase(dataclasses.replace(config, objective=MaskedWords()), topology, 0, lambda stage: None)
    assert planned.needed.gradients == alone.needed.gradients
    gathered = (planned.needed.parameters - alone.needed.parameters) / (2 * total_size(teacher[1].parameters))
    assert gathered == pytest.approx(3 / 4)  # in bfloat16, all but the quarter that is there already


@pytest.mark.slow
@pytest.mark.usefixtures("kept_plans")
def test_the_vocabulary_is_the_teachers(teacher, tmp_path, capsys):
    place, stored = teacher
    assert resolved(taught(teacher), find_topology("cpu:4")).model.vocab_size == stored.model.vocab_size
    shape = [f"--model.{name}={getattr(STUDENT, name)}" for name in ("hidden_size", "num_heads", "intermediate_size")]
    words = "bert-jax plan distilbert_mini --topology=cpu:1 --batch_size=2 --sequence_length=16".split() + shape
    words.append(f"--objective.distillation.teacher={place}")
    assert cli._run([*words, "--model.vocab_size=99"]) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1 and f"{stored.model.vocab_size:,} entries, the student one of 99" in printed
    assert cli._run([*words, f"--output={tmp_path / 'plan.json'}"]) == 0
    assert "parameters of the teacher" in capsys.readouterr().out
    memory = json.loads((tmp_path / "plan.json").read_text())["phases"][0]["memory"]
    assert memory["teacher"] == FLOAT32 * total_size(stored.parameters)
    assert cli._run([*words[:-1], f"--objective.distillation.teacher={tmp_path / 'nothing'}"]) == 2
    assert capsys.readouterr().err.startswith("error: there is no ")
