"""The real TPU compiler on the real step, without a TPU; and the table of machines, which takes an hour.

`pytest -m slow tests/planning` compiles four programs in about four minutes of processor time, once: what the compiler
says of them is kept. With BERT_JAX_PLAN_TABLE=1 it also compiles base and large, both phases, for every machine of
docs/planning.md.
"""

import dataclasses
import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest
from processes import EXHAUSTIVE

from bert_jax.config import ComputeConfig, Config, MeshConfig, PhaseConfig
from bert_jax.config.presets import model_config
from bert_jax.errors import UserError
from bert_jax.models.bert_parameters import bert_parameters
from bert_jax.models.costs import state_bytes
from bert_jax.tools.planning.compiler import resolved
from bert_jax.tools.planning.hlo import BETWEEN_SLICES
from bert_jax.tools.planning.plan import plan_phase
from bert_jax.tools.planning.topology import find_topology
from bert_jax.training.learner import USABLE, phase_advice

ROOT = pathlib.Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("kept_plans"),
    pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None, reason="pip install -e '.[plan]' brings the compiler"
    ),
]


def planned(size: str, machine: str, rows: int, layers: int | None = None, **changes):
    topology = find_topology(machine)
    model = model_config(size)
    model = dataclasses.replace(model, num_layers=layers or model.num_layers)
    config = Config(model=model, phases=(PhaseConfig(batch_size=rows * topology.chips),), **changes)
    config = resolved(config, topology)
    return config, plan_phase(config, topology, 0, print)


def test_base_compiles_for_four_chips_and_agrees_with_the_closed_forms():
    config, plan = planned("base", "v5e:2x2", 64, compute=ComputeConfig(layers="scan"))
    state = state_bytes(bert_parameters(config.model), moments=2)
    assert plan.fits and plan.memory is not None and plan.work is not None and plan.time is not None
    assert plan.memory.parameters == state.parameters and plan.memory.moments - state.moments == 4
    assert plan.work.flops == pytest.approx(plan.flops, rel=0.01)
    assert plan.resharding_warnings == 0
    assert 0.8 * plan.closed_form_bytes < plan.memory.total < plan.closed_form_bytes / USABLE
    # Every gradient is summed once, those of kernels and of the word table in the type of the products; a few numbers.
    assert {each.kind for each in plan.collectives} == {"all-reduce"}
    assert sum(each.moved for each in plan.collectives) == pytest.approx(plan.needed.within_slice, rel=0.03)
    assert sum(each.bytes for each in plan.collectives if each.dtype == "f32") < 0.02 * state.parameters
    # Those of half of the kernels at least run beside products (devices/compilation.py); by default none do.
    kernels = 2 * 12 * config.model.num_layers * config.model.hidden_size**2  # bytes
    assert sum(each.bytes_beside for each in plan.collectives) > kernels / 2
    assert plan.time.pessimistic is not None and plan.time.optimistic < plan.time.pessimistic
    assert plan.pessimistic is not None and 0.05 < plan.pessimistic.utilization < 1


def test_gradients_are_summed_within_a_slice_before_they_cross_to_another():
    """Each chip sends its part of the sum only, whose 32 columns of the word table the layout fills up to 128."""
    config, plan = planned("tiny", "2xv5e:2x2", 64, layers=1)
    kinds = {each.kind for each in plan.collectives}
    assert {"reduce-scatter", "all-gather", BETWEEN_SLICES} <= kinds
    across = [each for each in plan.collectives if each.kind == BETWEEN_SLICES]
    assert all(each.group == 2 for each in across)
    table = bert_parameters(config.model)["embeddings/word/table"].size * 4
    whole = bert_parameters(config.model).values()
    rest = 4 * sum(each.size for each in whole) - table
    assert sum(each.bytes for each in across) <= table + (table + rest) / 4 + 1e6
    with pytest.raises(UserError, match="those of 2 TPU slices, but mesh.slice=4; set mesh.slice=2"):
        planned("tiny", "2xv5e:2x2", 64, mesh=MeshConfig(slice=4))


@pytest.mark.parametrize("name", ["v5e:8x8", *(["v5p:4x4x4"] if EXHAUSTIVE else [])])
def test_arrays_that_are_split_over_all_chips_are_gathered_and_their_gradients_scattered(name):
    """Otherwise (devices/sharding.py, training/step.py) the compiler sums whole arrays: twice as much."""
    topology = find_topology(name)
    model = dataclasses.replace(model_config("large"), num_layers=1, vocab_size=4090)
    config = Config(model=model, phases=(PhaseConfig(batch_size=64),), mesh=MeshConfig(data=1, fsdp=64))
    plan = plan_phase(resolved(config, topology), topology, 0, print)
    size = 2 * 12 * model.hidden_size**2  # bytes of a layer's kernels: four of attention, two of four times the size
    for kind in ("reduce-scatter", "all-gather"):
        assert sum(each.bytes for each in plan.collectives if each.kind == kind) >= size, kind
    sums = sum(each.bytes for each in plan.collectives if each.kind == "all-reduce")
    assert sums < 2 * model.vocab_size * model.hidden_size  # bytes of the word table's gradient


def test_a_batch_that_does_not_fit_is_an_answer():
    config, plan = planned("tiny", "v5e:1x1", 20_000)
    assert not plan.fits and plan.shortage is not None and plan.memory is None
    assert plan.shortage.needed > plan.shortage.available == int(15.75 * 2**30)
    assert plan.shortage.available == find_topology("v5e:1x1").chip.memory_bytes
    assert plan.remat == "full" and config.compute.remat == "auto"
    assert phase_advice(plan.phase, plan.mesh, plan.remat)[0].startswith("--phases.0.micro_batches=")


@pytest.mark.skipif(not os.environ.get("BERT_JAX_PLAN_TABLE"), reason="an hour; set BERT_JAX_PLAN_TABLE=1")
@pytest.mark.timeout(6 * 3600)
def test_the_whole_table_compiles():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "plan_table.py"], capture_output=True, text=True, check=True
    )
    rows = [line for line in done.stdout.splitlines() if line.startswith(("| base", "| large"))]
    assert len(rows) == 24 and not any("does not fit" in row for row in rows)
