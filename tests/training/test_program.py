"""Programs of steps: kernels, recomputation, copies of tables, gradients, replicas."""

import dataclasses
import math
import shutil
import threading
import types
from types import SimpleNamespace

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from model_variants import variant
from outside_model import TwoEncoders
from small_pretraining import Run, rows, run_config, tiny
from workdirs import with_a_flipped_bit, wrong_at

from bert_jax import pretraining
from bert_jax.checkpoints.record import leaf_paths
from bert_jax.config import ComputeConfig, Config, FaultsConfig, MeshConfig, ModelConfig, PhaseConfig
from bert_jax.config.presets import model_config
from bert_jax.devices import sharding
from bert_jax.devices.signals import StopSignals
from bert_jax.errors import UserError
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.bert_parameters import bert_parameters
from bert_jax.models.costs import step_bytes
from bert_jax.parameters import Axis, Parameter, entries, table
from bert_jax.pretraining import make_learner
from bert_jax.training import step
from bert_jax.training.events import Events, read_events
from bert_jax.training.learner import USABLE, Learner, Load, attention_of, keeps_no_probabilities, remat_policy
from bert_jax.training.metrics import Rates
from bert_jax.training.state import Replicas
from bert_jax.training.step import Program, _tables_whole


def batch(length: int) -> dict:
    return {"x": np.ones((2, length), np.float32), "y": np.zeros(2, np.int32)}


def test_one_compilation_per_shape():
    program = Program(jax.jit(lambda scale, batch: scale * batch["x"].sum()))
    arrays = [jax.device_put((np.float32(2), batch(length))) for length in (3, 5, 3, 5)]
    assert [float(program(*given)) for given in arrays] == [12, 20, 12, 20]
    assert len(program.compiled) == 2


@pytest.mark.parametrize("signals", [None, StopSignals()])
def test_rates_count_the_steps_under_way_but_not_the_compilation(signals, monkeypatch):
    now = [0.0]
    rates = Rates(clock=lambda: now[0])

    def compile_():
        now[0] += 100
        return lambda scale, batch: "ran"

    def finish(arguments):  # the step before this one, which the device is still busy with
        now[0] += 1

    monkeypatch.setattr(jax, "block_until_ready", finish)
    program = Program(types.SimpleNamespace(lower=lambda *_: types.SimpleNamespace(compile=compile_)))
    rates.count(sequences=8, tokens=64)
    for _ in range(2):
        program.prepare(2, batch(3), signals=signals, rates=rates)
        assert program(2, batch(3)) == "ran"
    assert rates.report()["tokens_per_second"] == 64


def test_what_was_begun_is_not_compiled_again():
    compiled = []

    def compile_(*arguments):
        compiled.append(threading.current_thread())
        return types.SimpleNamespace(compile=lambda: lambda scale, batch: "ran")

    program = Program(types.SimpleNamespace(lower=compile_))
    described = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in batch(3).items()}
    for _ in range(2):
        program.begin(2, described)
    program.prepare(2, batch(3), signals=StopSignals())
    assert program(2, batch(3)) == "ran" and len(compiled) == 1 and compiled[0] is not threading.main_thread()
    program.begin(2, described)
    narrow = batch(3) | {"y": np.zeros(2, np.int16)}
    assert program(2, narrow) == "ran" and compiled[1:] == [threading.main_thread()], "another type, another program"


@pytest.mark.parametrize("begun", [False, True])
def test_an_error_in_compiling_is_raised_where_it_is_waited_for(begun):
    def compile_():
        raise ValueError("too large for the device")

    program = Program(types.SimpleNamespace(lower=lambda *_: types.SimpleNamespace(compile=compile_)))
    if begun:
        program.begin(2, batch(3))
    with pytest.raises(ValueError, match="too large"):
        program.prepare(2, batch(3), signals=StopSignals())


MODEL = ModelConfig(vocab_size=60, hidden_size=256, num_layers=2, num_heads=4)


def mesh(platform: str):
    """What is asked of a mesh of one device, which need not be here."""
    axes = dict.fromkeys(("slice", "data", "fsdp", "tensor"), 1)
    return SimpleNamespace(shape=axes, devices=np.array([SimpleNamespace(platform=platform)]))


@pytest.mark.parametrize(
    "platform, changes, layers, told",
    [
        ("cpu", {}, "loop", "xla"),
        ("tpu", {}, "scan", "pallas"),
        ("tpu", {}, "loop", "pallas; where only some states of the last layer are read, that layer by xla"),
        ("tpu", {"local_window": 8, "global_tokens": 1}, "scan", "xla, not pallas: it has no tokens that"),
        ("tpu", {"positions": "xlnet"}, "scan", "xla, not pallas: scores have a bias that depends on queries and keys"),
        ("gpu", {"positions": "xlnet"}, "scan", "xla"),
        ("tpu", {"positions": "learned_bias"}, "scan", "pallas"),
        ("cpu", {"positions": "learned_bias", "local_window": 8}, "scan", "xla"),
    ],
)
def test_what_is_announced_is_what_is_computed(platform, changes, layers, told):
    model = variant(MODEL, **changes)
    found = attention_of(model, ComputeConfig(layers=layers), mesh(platform), 8, 128)
    assert found == told or (told.startswith("xla, ") and found.startswith(told))


@pytest.mark.parametrize(
    "platform, changes, length, fused",
    [
        ("tpu", {}, 128, True),
        ("tpu", {}, 100, False),
        ("cpu", {}, 128, False),
        ("tpu", {"local_window": 64}, 512, True),
        ("tpu", {"local_window": 64, "global_tokens": 1}, 4096, False),  # blocks in JAX keep theirs
        ("tpu", {"layer": "lstm", "positions": "none"}, 128, False),
        ("tpu", {"positions": "xlnet"}, 128, False),
    ],
)
def test_probabilities_are_not_kept_where_every_layer_has_a_fused_kernel(platform, changes, length, fused):
    model = variant(MODEL, **changes)
    assert keeps_no_probabilities(model, ComputeConfig(), mesh(platform), 8, length) == fused


RECOMPUTATION_MODEL = dataclasses.replace(model_config("mini"), vocab_size=1_000)


def learner_with(memory_bytes: int | None, rows: int = 64, micro_batches: int = 1, **compute) -> Learner:
    phase = PhaseConfig(batch_size=rows, micro_batches=micro_batches)
    config = Config(
        model=RECOMPUTATION_MODEL, phases=(phase,), compute=ComputeConfig(**({"dtype": "bfloat16"} | compute))
    )
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:1])
    return make_learner(config, mesh, memory_bytes=memory_bytes)


def chosen(memory_bytes: int | None, **options) -> str:
    learner = learner_with(memory_bytes, **options)
    (phase,) = learner.stages
    remat = learner.remat(phase)
    assert learner.objective_of(phase).model.compute.remat in (remat, "auto")
    return remat


def enough_for(remat: str, **options) -> int:
    """Return the memory of which a step with this policy may take all that it needs."""
    learner = learner_with(None, remat=remat, **options)
    return math.ceil(learner.needed_bytes(learner.stages[0]) / USABLE) + 1


def test_the_generator_of_a_model_from_outside_counts():
    """Just enough memory for both, and a little less."""
    model = TwoEncoders(RECOMPUTATION_MODEL)
    sizes = dict(moments=2, sequence_length=128, predictions=20, rows=64, split=1)
    small = dataclasses.replace(RECOMPUTATION_MODEL, hidden_size=RECOMPUTATION_MODEL.hidden_size // 2)
    alone, both = (
        step_bytes(
            RECOMPUTATION_MODEL, model.parameters, remat="none", value_bytes=4, unrolled=True, generator=each, **sizes
        )
        for each in (None, small)
    )
    compute = ComputeConfig(layers="loop", dtype="float32")
    loads = [Load(memory_bytes=round(both / USABLE * share), **sizes) for share in (1.001, 0.999)]
    assert remat_policy(model, compute, loads[0]) == "none" != remat_policy(model, compute, loads[1])
    assert alone < both * 0.99


def test_a_fused_kernel_leaves_memory_for_the_rest():
    """By the bytes of two arrays of probabilities per layer, in float32 and in bfloat16, and of the layer at work."""
    model = BertForPreTraining(RECOMPUTATION_MODEL)
    sizes = dict(moments=2, sequence_length=512, predictions=77, rows=16, split=1)
    given = dict(remat="none", unrolled=True)
    kept, fused = (
        step_bytes(RECOMPUTATION_MODEL, model.parameters, probabilities=each, **given, **sizes)
        for each in (True, False)
    )
    assert kept - fused == 16 * (RECOMPUTATION_MODEL.num_layers + 1) * RECOMPUTATION_MODEL.num_heads * 512**2 * (4 + 2)
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
    (phase,) = learner.stages
    assert learner.remat(phase) == "sel" and learner.objective.model.compute.remat == "auto"
    assert learner.objective_of(phase).model.compute.remat == "sel"


ROWS, COLUMNS = 74, 16  # rows that no number of devices divides, but for the two of the tensor axis

MESHES = {
    "one_axis": MeshConfig(data=1, fsdp=8),
    "every_axis": MeshConfig(data=2, fsdp=2, tensor=2),
    "slices": MeshConfig(slice=2, data=1, fsdp=4),
}


@pytest.mark.parametrize("in_pairs", [False, True], ids=["at_once", "in_pairs"])
@pytest.mark.parametrize("by_rows", [False, True], ids=["by_columns", "by_rows"])
@pytest.mark.parametrize("name", MESHES)
def test_the_gradient_is_the_sum_over_all_parts_and_split_like_the_table(name, by_rows, in_pairs, monkeypatch):
    monkeypatch.setattr(step, "LEAST_BY_ROWS", 2 if by_rows else 9)
    monkeypatch.setattr(sharding, "LEAST_IN_PAIRS", 2 if in_pairs else 9)
    mesh = sharding.make_mesh(MESHES[name])
    where = NamedSharding(mesh, P("tensor", "fsdp"))
    # Whole numbers, whose sums are exact in any order.
    weights = np.random.default_rng(0).integers(-99, 99, (sharding.batch_parts(mesh), ROWS, COLUMNS)).astype(np.float32)

    def loss(params, weights):
        copied = step.with_copies(params, mesh, where, jnp.dtype("float32"))
        return jnp.sum(copied["embeddings"]["word"]["table"] * weights)

    params = {"embeddings": {"word": {"table": jax.device_put(np.ones((ROWS, COLUMNS), np.float32), where)}}}
    parts = jax.device_put(weights, NamedSharding(mesh, P(sharding.BATCH_AXES, "tensor", None)))
    gradient = jax.jit(jax.grad(loss))(params, parts)["embeddings"]["word"]["table"]
    np.testing.assert_array_equal(jax.device_get(gradient), weights.sum(0))
    assert gradient.sharding.is_equivalent_to(where, 2)


HIDDEN = Axis("hidden", 16)
PARAMETERS = {
    **bert_parameters(ModelConfig(vocab_size=64, hidden_size=16, num_heads=2, num_layers=1), ("mlm", "mask_decoder")),
    **table([Parameter("order/lines", (Axis("position", 8), HIDDEN), used="looked_up")]),
}


@pytest.mark.parametrize("copies", [False, True])
def test_tables_that_are_looked_up_are_summed_whole_from_outside_too(copies):
    zeros = {path: jnp.zeros(parameter.shape) for path, parameter in PARAMETERS.items()}
    arrays = flax.traverse_util.unflatten_dict(zeros, sep="/")
    mesh = sharding.make_mesh(MeshConfig(data=1, fsdp=8))
    shardings = sharding.shardings(mesh, entries(PARAMETERS, arrays))
    summed = jax.jit(lambda given: _tables_whole(PARAMETERS, given, shardings, copies))
    found = leaf_paths(summed(jax.device_put(arrays, shardings)))
    split = {path for path in PARAMETERS if "fsdp" in sharding.partition_spec(mesh, PARAMETERS[path])[0]}
    whole = {path for path in split if found[path].sharding.is_fully_replicated}
    tables = {"embeddings/position/table", "embeddings/token_type/table", "mask_decoder/position/table", "order/lines"}
    assert whole == (tables if copies else tables | {"embeddings/word/table"})  # copies are summed like kernels
    assert {"mlm/dense/kernel", "encoder/attention/query/kernel"} <= split


REPLICAS_MESHES = {
    "data": (MeshConfig(data=8), "encoder/attention/query/kernel", [5]),
    "fsdp": (MeshConfig(data=2, fsdp=4), "encoder/attention/query/kernel", [1, 5]),  # two copies of each share
    "tensor": (MeshConfig(data=4, tensor=2), "mlm/bias", [5]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REPLICAS_MESHES)
def test_a_flipped_bit_is_found_and_named(name, tmp_path):
    mesh_config, path, named = REPLICAS_MESHES[name]
    run = Run(*tiny(), mesh_config)
    with Events(tmp_path, StopSignals()) as events:
        replicas = Replicas(run.shardings, run.mesh, events)
        replicas.check(3, run.state)
        bad = with_a_flipped_bit(run.state, path, run.mesh.devices.flat[5].id)
        with pytest.raises(UserError, match=f"the copies of params/{path} are not the same after step 6") as error:
            replicas.check(6, bad)
    assert "delete the checkpoints after step 3, when they last agreed" in str(error.value)
    (row,) = [row for row in read_events(tmp_path / "events.jsonl") if row["event"] == "replica_mismatch"]
    expected = [f"device {run.mesh.devices.flat[at].id} (cpu) of host 0" for at in named]
    assert row["step"] == 6 and row["devices"] == {device: [f"params/{path}"] for device in expected}


@pytest.mark.slow
def test_a_run_stops_at_a_wrong_device_and_goes_on_from_before(finished, small_store, tmp_path, monkeypatch):
    config = run_config(small_store, tmp_path / "run", faults=FaultsConfig(check_replicas_every=2))
    devices = jax.devices()[:2]

    with monkeypatch.context() as patch:
        patch.setattr(Program, "__call__", wrong_at(7, devices[1].id))
        with pytest.raises(UserError, match="not the same after step 8: .* delete the checkpoints after step 6"):
            pretraining.pretrain(config, devices)
    events = [row["event"] for row in read_events(f"{config.workdir}/events.jsonl")]
    assert [event for event in events if event != "saved"][-2:] == ["replica_mismatch", "failed"]
    for saved in (tmp_path / "run" / "checkpoints").glob("step_*"):
        if int(saved.name.removeprefix("step_")) > 6:
            shutil.rmtree(saved)
    pretraining.pretrain(config, devices)
    learned = [row["loss"] for row in rows(config.workdir)]
    assert learned == pytest.approx([row["loss"] for row in rows(finished[0].workdir)], rel=1e-4)
