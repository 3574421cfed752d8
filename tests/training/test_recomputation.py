"""compute.remat=auto: the fastest policy whose closed form fits into the memory of a device."""

import dataclasses

import jax
import pytest
from outside_model import TwoEncoders

from bert_jax.config import ComputeConfig, Config, MeshConfig, PhaseConfig, resolve_phases
from bert_jax.config.presets import model_config
from bert_jax.devices import sharding
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.bert_parameters import bert_parameters
from bert_jax.models.memory_costs import state_bytes, step_bytes
from bert_jax.objectives.objective_choice import default_objective
from bert_jax.training.learner import Learner
from bert_jax.training.recomputation import USABLE, Load, remat_policy

MODEL = dataclasses.replace(model_config("mini"), vocab_size=1_000)
STATE = state_bytes(bert_parameters(MODEL), moments=2).total


def chosen(memory_bytes: int | None, rows: int = 64, micro_batches: int = 1, **compute) -> str:
    phase = PhaseConfig(batch_size=rows, micro_batches=micro_batches)
    config = Config(model=MODEL, phases=(phase,), compute=ComputeConfig(**({"dtype": "bfloat16"} | compute)))
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:1])
    learner = Learner.of(config, mesh, default_objective, memory_bytes)
    remat = learner.remat(resolve_phases(config)[0])
    assert learner.objective_of(resolve_phases(config)[0]).model.compute.remat in (remat, "auto")
    return remat


def test_the_generator_of_a_model_from_outside_counts():
    """Just enough memory for both, and a little less."""
    model = TwoEncoders(MODEL)
    sizes = dict(moments=2, sequence_length=128, predictions=20, rows=64, split=1)
    small = dataclasses.replace(MODEL, hidden_size=MODEL.hidden_size // 2)
    alone, both = (
        step_bytes(MODEL, model.parameters, remat="none", value_bytes=4, generator=each, **sizes)
        for each in (None, small)
    )
    compute = ComputeConfig(layers="loop", dtype="float32")
    loads = [Load(memory_bytes=round(both / USABLE * share), **sizes) for share in (1.001, 0.999)]
    assert remat_policy(model, compute, loads[0]) == "none" != remat_policy(model, compute, loads[1])
    assert alone < both * 0.99


def test_a_fused_kernel_leaves_memory_for_the_rest():
    """By the bytes of two arrays of probabilities per layer, in float32 and in bfloat16."""
    model, sizes = BertForPreTraining(MODEL), dict(moments=2, sequence_length=512, predictions=77, rows=16, split=1)
    kept, fused = (
        step_bytes(MODEL, model.parameters, remat="none", probabilities=each, **sizes) for each in (True, False)
    )
    assert kept - fused == 16 * MODEL.num_layers * MODEL.num_heads * 512**2 * (4 + 2)
    loads = [Load(memory_bytes=round(fused / USABLE * 1.01), probabilities=each, **sizes) for each in (True, False)]
    compute = ComputeConfig(layers="loop", dtype="bfloat16")
    assert [remat_policy(model, compute, load) for load in loads] == ["sel", "none"]


def test_where_memory_is_unknown_nothing_is_computed_again():
    assert chosen(None) == "none"


def test_a_policy_that_is_given_is_taken():
    assert chosen(10**6, remat="dots") == "dots" and chosen(None, remat="full") == "full"


def test_less_memory_takes_a_stronger_policy():
    assert [chosen(size) for size in (10**12, STATE + 700 * 10**6, 10**6)] == ["none", "sel", "full"]
    # A scan keeps whatever it is told to keep; sel is faster in one.
    assert [chosen(size, layers="scan") for size in (10**12, 10**6)] == ["sel", "full"]


@pytest.mark.parametrize("changes", [{"rows": 8}, {"micro_batches": 8}])
def test_fewer_sequences_at_a_time_need_less(changes):
    assert chosen(STATE + 700 * 10**6, **changes) == "none"


def test_float32_needs_more_than_bfloat16():
    assert chosen(STATE + 1_200 * 10**6) == "none" != chosen(STATE + 1_200 * 10**6, dtype="float32")


def test_the_policy_reaches_the_step():
    """What is computed again is in the traced step of the phase, and only there."""
    config = Config(model=MODEL, phases=(PhaseConfig(batch_size=64),), compute=ComputeConfig(dtype="bfloat16"))
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:1])
    learner = Learner.of(config, mesh, default_objective, STATE + 700 * 10**6)
    (phase,) = resolve_phases(config)
    assert learner.remat(phase) == "sel" and learner.objective.model.compute.remat == "auto"
    assert learner.objective_of(phase).model.compute.remat == "sel"
