"""The most expensive operations of a training step on one core, ours and those of torch in its tuned form.

    taskset -c 0 python scripts/profile_cpu_step.py CONFIG [OPTIONS] [--phase=0] [--peer=PYTHON] [--steps=3] [--most=10]

The steps and their synthetic batches are those of `bert-jax bench step`; OPTIONS are those of `bert-jax pretrain`, such
as --phases.0.batch_size=8. PYTHON has torch and transformers installed. Operations with the same work are added up:
ours by products and shapes, since a fusion has no other name that says anything, torch's by their own names and shapes.
The share is that of all operations. GFLOP/s are of the products in an operation, GB/s of what the program says that it
reads and writes. On one core the time of an operation is the processor's.
"""

import argparse
import collections
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

PEER = pathlib.Path(__file__).resolve().parents[1] / "bert_jax" / "bench" / "peer"


@dataclasses.dataclass
class Operation:
    """Operations with the same work."""

    times: float = 0
    seconds: float = 0
    flops: float = 0
    bytes: float = 0


def main() -> None:
    from bert_jax.devices.host_process import start_anew

    start_anew(os.environ)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--phase", type=int, default=0)
    parser.add_argument("--peer")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--most", type=int, default=10)
    own, words = parser.parse_known_args()
    from bert_jax.bench.step_benchmark import peer_job, with_vocabulary, write_batches
    from bert_jax.console.command_line import configured

    config = configured(words, "profile_cpu_step.py CONFIG", __doc__ or "")
    config = with_vocabulary(dataclasses.replace(config, phases=(config.phases[own.phase],)))
    with tempfile.TemporaryDirectory() as directory:
        file = write_batches(config, 0.06, pathlib.Path(directory) / "batches.npz")
        show("bert_jax", *ours(config, file.path, own.steps, directory), own.most)
        if own.peer:
            dtype = "bfloat16" if config.compute.dtype == "bfloat16" else "float32"
            job = peer_job(config, {"device": "cpu", "dtype": dtype})
            job |= {"batches": file.path, "role": "tuned", "compile": True, "steps": own.steps}
            command = [own.peer, __file__, "--job", json.dumps(job)]
            environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout
            found = json.loads(answer.splitlines()[-1])
            operations = {name: Operation(*values) for name, values in found["operations"].items()}
            show(f"torch, tuned ({found['form']})", found["seconds"], operations, own.most)


def ours(config, batches: str, steps: int, directory: str) -> tuple[float, dict[str, Operation]]:
    """Return the CPU seconds of a step, and its operations by what they compute."""
    import jax
    import numpy as np

    from bert_jax.bench.contestants import first_step
    from bert_jax.config import resolve_phases
    from bert_jax.devices import sharding
    from bert_jax.devices.hardware import hardware
    from bert_jax.objectives.objective_choice import default_objective
    from bert_jax.planning.hlo import parse_program
    from bert_jax.training.learner import Learner

    (phase,) = resolve_phases(config)
    mesh = sharding.make_mesh(config.mesh, None)
    with np.load(batches, allow_pickle=False) as stored:
        batch = {name: stored[name][0] for name in stored.files}
    place = lambda number: sharding.to_global(mesh, batch, phase.batch_size)
    learner = Learner.of(config, mesh, default_objective, hardware().memory_bytes)
    step, state, _ = first_step(learner, phase, place)

    def take(state):
        for number in range(steps):
            state, _ = step(state, place(number))
        return jax.block_until_ready(state)

    state = take(state)
    begun = time.process_time()
    state = take(state)
    seconds = (time.process_time() - begun) / steps
    with jax.profiler.trace(directory):
        take(state)
    (trace,) = pathlib.Path(directory).rglob("*.xplane.pb")
    program = parse_program(step.as_text())
    return seconds, added_up(program, durations(str(trace), program), steps)


def durations(trace: str, program) -> dict[str, tuple[int, float]]:
    """Return how often each instruction of the program ran, and its seconds."""
    import jax

    names = {each.name for _, each, _ in program.scheduled()}
    found = collections.defaultdict(lambda: (0, 0.0))
    for plane in jax.profiler.ProfileData.from_file(trace).planes:
        for line in plane.lines:
            for event in line.events:
                if event.name in names:
                    times, seconds = found[event.name]
                    found[event.name] = times + 1, seconds + event.duration_ns / 1e9
    return found


def added_up(program, taken: dict[str, tuple[int, float]], steps: int) -> dict[str, Operation]:
    """Return operations per step by their products and results."""
    from bert_jax.planning.roofline import flops_of, traffic_of

    found = collections.defaultdict(Operation)
    for computation, each, _ in program.scheduled():
        times, seconds = taken.get(each.name, (0, 0.0))
        operation = found[described(program, computation, each)]
        operation.times += times / steps
        operation.seconds += seconds / steps
        operation.flops += times / steps * flops_of(program, computation, each)
        operation.bytes += times / steps * traffic_of(program, computation, each)
    return found


def described(program, computation: str, each) -> str:
    """Return the products of an instruction, `left · right`, else where it comes from; and its result."""
    called = each.calls[0] if each.op == "fusion" else None
    inner = program.computations[called].values() if called else [each]
    scope = program.computations[called or computation]
    size = lambda shape: f"[{', '.join(map(str, shape.dims))}]"
    products = [
        " · ".join(size(scope[name].shapes[0]) for name in dot.operands[:2]) for dot in inner if dot.op == "dot"
    ]
    result = f"{each.shapes[0].dtype}{size(each.shapes[0])}" if each.shapes else "()"
    if products:
        return f"product {', '.join(products)} → {result}"
    origin = [part for part in each.op_name.split("/") if "(" not in part and not part.startswith("layer")]
    return f"{'/'.join(origin[-2:]) or each.op} → {result}"


def torchs(job: dict) -> dict:
    """Return the CPU seconds of a step of torch's contestant, and its operations by name and shapes."""
    sys.path.insert(0, str(PEER))
    import torch
    import torch_contestants

    if job["compile"]:
        import torch._inductor.config

        torch._inductor.config.cpp.enable_kernel_profile = True
    work, facts = torch_contestants.step(job)
    work(job["steps"])
    begun = time.process_time()
    work(job["steps"])
    seconds = (time.process_time() - begun) / job["steps"]
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, record_shapes=True, with_flops=True) as profile:
        work(job["steps"])
    found = {}
    for each in profile.key_averages(group_by_input_shape=True):
        shapes = " · ".join(str(shape) for shape in each.input_shapes[:3] if shape)
        values = found.setdefault(f"{each.key} {shapes}".strip(), [0, 0, 0, 0])
        values[0] += each.count / job["steps"]
        values[1] += each.self_cpu_time_total / 1e6 / job["steps"]
        values[2] += each.flops / job["steps"]
    return {"form": facts["form"], "seconds": seconds, "operations": found}


def show(name: str, seconds: float, operations: dict[str, Operation], most: int) -> None:
    total = sum(each.seconds for each in operations.values())
    print(f"\n{name}: {seconds:.3f} CPU s per step, {total:.3f} s of them in operations that the profile names\n")
    print("| operation | times | ms | share | GFLOP/s | GB/s |\n|---|---|---|---|---|---|")
    for what, each in sorted(operations.items(), key=lambda item: -item[1].seconds)[:most]:
        rates = " | ".join(f"{rate / each.seconds / 1e9:,.0f}" if rate else "" for rate in (each.flops, each.bytes))
        milliseconds, share = 1e3 * each.seconds, each.seconds / total
        print(f"| {what} | {each.times:.0f} | {milliseconds:.1f} | {share:.1%} | {rates} |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--job"]:
        print(json.dumps(torchs(json.loads(sys.argv[2]))))
    else:
        main()
