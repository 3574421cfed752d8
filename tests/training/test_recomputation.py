"""compute.remat=auto: the fastest policy whose closed form fits into the memory of a device."""

import dataclasses
import math

import jax
import pytest
from outside_model import TwoEncoders

from bert_jax.config import ComputeConfig, Config, MeshConfig, PhaseConfig, resolve_phases
from bert_jax.config.presets import model_config
from bert_jax.devices import sharding
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.costs import step_bytes
from bert_jax.objectives.choice import default_objective
from bert_jax.training.learner import USABLE, Learner, Load, remat_policy

MODEL = dataclasses.replace(model_config("mini"), vocab_size=1_000)


def learner_with(memory_bytes: int | None, rows: int = 64, micro_batches: int = 1, **compute) -> Learner:
    phase = PhaseConfig(batch_size=rows, micro_batches=micro_batches)
    config = Config(model=MODEL, phases=(phase,), compute=ComputeConfig(**({"dtype": "bfloat16"} | compute)))
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:1])
    return Learner.of(config, mesh, default_objective, memory_bytes)


def chosen(memory_bytes: int | None, **options) -> str:
    learner = learner_with(memory_bytes, **options)
    (phase,) = resolve_phases(learner.config)
    remat = learner.remat(phase)
    assert learner.objective_of(phase).model.compute.remat in (remat, "auto")
    return remat


def enough_for(remat: str, **options) -> int:
    """Return the memory of which a step with this policy may take all that it needs."""
    learner = learner_with(None, remat=remat, **options)
    return math.ceil(learner.needed_bytes(resolve_phases(learner.config)[0]) / USABLE) + 1


def test_the_generator_of_a_model_from_outside_counts():
    """Just enough memory for both, and a little less."""
    model = TwoEncoders(MODEL)
    sizes = dict(moments=2, sequence_length=128, predictions=20, rows=64, split=1)
    small = dataclasses.replace(MODEL, hidden_size=MODEL.hidden_size // 2)
    alone, both = (
        step_bytes(MODEL, model.parameters, remat="none", value_bytes=4, unrolled=True, generator=each, **sizes)
        for each in (None, small)
    )
    compute = ComputeConfig(layers="loop", dtype="float32")
    loads = [Load(memory_bytes=round(both / USABLE * share), **sizes) for share in (1.001, 0.999)]
    assert remat_policy(model, compute, loads[0]) == "none" != remat_policy(model, compute, loads[1])
    assert alone < both * 0.99


def test_a_fused_kernel_leaves_memory_for_the_rest():
    """By the bytes of two arrays of probabilities per layer, in float32 and in bfloat16, and of the layer at work."""
    model, sizes = BertForPreTraining(MODEL), dict(moments=2, sequence_length=512, predictions=77, rows=16, split=1)
    given = dict(remat="none", unrolled=True)
    kept, fused = (step_bytes(MODEL, model.parameters, probabilities=each, **given, **sizes) for each in (True, False))
    assert kept - fused == 16 * (MODEL.num_layers + 1) * MODEL.num_heads * 512**2 * (4 + 2)
    loads = [Load(memory_bytes=round(kept / USABLE * 0.99), probabilities=each, **sizes) for each in (True, False)]
    compute = ComputeConfig(layers="loop", dtype="bfloat16")
    assert [remat_policy(model, compute, load) for load in loads] == ["sel", "none"]


def test_where_memory_is_unknown_nothing_is_computed_again():
    assert chosen(None) == "none"


def test_a_policy_that_is_given_is_taken():
    assert chosen(10**6, remat="dots") == "dots" and chosen(None, remat="full") == "full"


def test_less_memory_takes_a_stronger_policy():
    sizes = [enough_for("none"), enough_for("none") - 10, enough_for("sel"), enough_for("sel") - 10, 10**6]
    assert [chosen(size) for size in sizes] == ["none", "sel", "sel", "full", "full"]
    # A scan keeps whatever it is told to keep; sel is faster in one.
    assert [chosen(size, layers="scan") for size in (10**12, 10**6)] == ["sel", "full"]


def test_a_loop_needs_less_than_a_scan_that_keeps_all():
    """The compiler sees all layers, and computes again what costs no product; docs/planning.md has its figures."""
    assert 1.1 * enough_for("none", layers="loop") < enough_for("none", layers="scan")


@pytest.mark.parametrize("changes", [{"rows": 8}, {"micro_batches": 8}])
def test_fewer_sequences_at_a_time_need_less(changes):
    scarce = enough_for("none") - 10
    assert chosen(scarce, **changes) == "none" != chosen(scarce)


def test_float32_needs_more_than_bfloat16():
    enough = enough_for("none")
    assert chosen(enough) == "none" != chosen(enough, dtype="float32")


def test_the_policy_reaches_the_step():
    """What is computed again is in the traced step of the phase, and only there."""
    learner = learner_with(enough_for("none") - 10)
    (phase,) = resolve_phases(learner.config)
    assert learner.remat(phase) == "sel" and learner.objective.model.compute.remat == "auto"
    assert learner.objective_of(phase).model.compute.remat == "sel"
