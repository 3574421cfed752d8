"""The compiled step: the same result on every mesh and for every number of micro-batches; its behavior on failures."""

import dataclasses
import json
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from processes import SECONDS, free_port
from small_pretraining import BATCH, CUBE, MASKED, SINGLE, Run, batch, compiled, initial_parameters, losses, tiny

from bert_jax.config import MeshConfig
from bert_jax.devices import sharding
from bert_jax.pretraining import default_objective
from bert_jax.training.optimizers import optimizer
from bert_jax.training.state import abstract_state
from bert_jax.training.step import COUNTS, make_forward_step

pytestmark = pytest.mark.optimized


@pytest.fixture(autouse=True)
def strict():
    """Broadcasting over a missing axis, or a copy to the device that nobody asked for, is an error."""
    with jax.numpy_rank_promotion("raise"), jax.transfer_guard("disallow"):
        yield


@pytest.fixture(scope="module")
def reference():
    """Four steps with dropout on one device."""
    return losses(*tiny(), SINGLE)


@pytest.mark.parametrize(
    "mesh",
    [
        *(pytest.param(mesh, marks=pytest.mark.slow) for mesh in (MeshConfig(data=8), MeshConfig(data=1, fsdp=8))),
        CUBE,
        pytest.param(MeshConfig(data=4, fsdp=2), marks=pytest.mark.slow),
        MeshConfig(slice=2, fsdp=2),
    ],
    ids=lambda mesh: f"{mesh.slice}x{mesh.data}x{mesh.fsdp}x{mesh.tensor}",
)
def test_every_mesh_gives_the_losses_of_one_device_with_dropout(mesh, reference):
    history, params = losses(*tiny(), mesh)
    for step, (found, expected) in enumerate(zip(history, reference[0])):
        assert found["loss"] == pytest.approx(expected["loss"], rel=2e-6), step
        assert found["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-5), step
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), params, reference[1])


def test_sums_that_are_scattered_over_pairs_of_devices_are_the_same(reference, monkeypatch):
    monkeypatch.setattr(sharding, "LEAST_IN_PAIRS", 8)
    model, config = tiny()
    mesh = MeshConfig(data=-1, fsdp=8)  # written otherwise than above, whose step stays in the cache
    history, params = losses(model, config, mesh)
    for found, expected in zip(history, reference[0]):
        assert found["loss"] == pytest.approx(expected["loss"], rel=2e-6)
        assert found["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), params, reference[1])
    rows = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in batch(0).items()}
    built, _, step = compiled(model, config, mesh)
    program = step.lower(abstract_state(model, optimizer(config.optimizer, model.parameters), built), rows)
    assert '"pair"=2' in program.as_text()


@pytest.mark.slow
def test_slices_without_fsdp_are_data_parallelism_to_the_last_bit():
    """The same devices hold the same rows and the same whole state, and the gradients are summed over all of them."""
    history, params = losses(*tiny(), MeshConfig(data=8), steps=2)
    in_slices, same_params = losses(*tiny(), MeshConfig(slice=2, data=4), steps=2)
    assert in_slices == history
    jax.tree.map(np.testing.assert_array_equal, same_params, params)


def test_dropout_is_on_in_that_comparison_and_new_at_every_step(reference):
    still, _ = losses(*tiny(dropout=0.0), SINGLE, steps=1)
    assert abs(still[0]["loss"] - reference[0][0]["loss"]) > 1e-3
    run = Run(*tiny(), SINGLE)
    # lr is 0 at step 0, so the second step sees the same parameters and the same batch: only dropout differs.
    assert abs(run(batch(0))["loss"] - run(batch(0))["loss"]) > 1e-3


@pytest.mark.parametrize(
    "mesh, micro_batches",
    [
        (MeshConfig(data=8), 2),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in ((CUBE, 4), (SINGLE, 2))),
    ],
)
def test_micro_batches_equal_the_whole_batch(mesh, micro_batches, whole_batch):
    history, params = losses(*tiny(dropout=0.0, micro_batches=micro_batches), mesh, steps=3)
    for found, expected in zip(history, whole_batch[0]):
        assert found == pytest.approx(expected, rel=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), params, whole_batch[1])


def test_micro_batches_move_no_row_to_another_device():
    model, config = tiny(dropout=0.0, micro_batches=2)
    mesh, _, step = compiled(model, config, MeshConfig(data=8))
    rows = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in batch(0).items()}
    state = abstract_state(model, optimizer(config.optimizer, model.parameters), mesh)
    program = step.lower(state, rows).compile().as_text()
    assert "all-reduce" in program  # of gradients and sums
    assert not any(word in program for word in ("all-gather", "all-to-all", "collective-permute"))


@pytest.fixture(scope="module")
def whole_batch():
    return losses(*tiny(dropout=0.0), SINGLE, steps=3)


def test_metrics_equal_a_hand_calculation_over_the_whole_batch(whole_batch):
    model, config = tiny(dropout=0.0)
    arrays = batch(0)
    output = jax.device_get(jax.jit(model.apply)(jax.device_put(initial_parameters(model)), jax.device_put(arrays)))
    log = output.mlm_logits - np.log(np.exp(output.mlm_logits).sum(-1, keepdims=True))
    chosen = np.take_along_axis(log, arrays["masked_ids"][:, :, None], -1)[:, :, 0]
    weights = arrays["masked_weights"]
    mlm_loss = -(weights * chosen).sum() / weights.sum()
    sentence = output.next_sentence_logits
    logp = sentence - np.log(np.exp(sentence).sum(-1, keepdims=True))
    sentence_loss = -logp[np.arange(BATCH), arrays["next_sentence_labels"]].mean()
    found = whole_batch[0][0]
    assert found["mlm_loss"] == pytest.approx(mlm_loss, rel=1e-5)
    assert found["next_sentence_loss"] == pytest.approx(sentence_loss, rel=1e-5)
    assert found["loss"] == pytest.approx(mlm_loss + sentence_loss, rel=1e-5)
    right = weights * (output.mlm_logits.argmax(-1) == arrays["masked_ids"])
    assert found["mlm_accuracy"] == pytest.approx(right.sum() / weights.sum(), abs=1e-6)
    right = sentence.argmax(-1) == arrays["next_sentence_labels"]
    assert found["next_sentence_accuracy"] == pytest.approx(right.mean())
    assert (found["learning_rate"], found["skipped"]) == (0.0, 0.0)


def test_first_steps_follow_the_optimizer_applied_by_hand(whole_batch):
    """Gradient of the plain loss, clipped, through the optimizer, times the scheduled rate."""
    model, config = tiny(dropout=0.0)
    transformation = optimizer(config.optimizer, model.parameters)

    def loss(params, arrays):
        output = model.apply(params, arrays)
        log = jax.nn.log_softmax(output.mlm_logits)
        mlm = -jnp.take_along_axis(log, arrays["masked_ids"][:, :, None], -1)[:, :, 0] * arrays["masked_weights"]
        sentence = jax.nn.log_softmax(output.next_sentence_logits)
        return jnp.sum(mlm) / jnp.sum(arrays["masked_weights"]) - jnp.mean(
            jnp.take_along_axis(sentence, arrays["next_sentence_labels"][:, None], -1)
        )

    @jax.jit
    def by_hand(params, state, arrays, rate):
        gradients = jax.grad(loss)(params, arrays)
        norm = jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(gradients)))
        gradients = jax.tree.map(lambda g: jnp.where(norm > 1, g / norm, g), gradients)
        updates, state = transformation.update(gradients, state, params)
        return jax.tree.map(lambda p, u: p - rate * u, params, updates), state, norm

    with jax.transfer_guard("allow"):
        params, state = initial_parameters(model), transformation.init(initial_parameters(model))
        for step, rate in enumerate((0.0, 0.005, 0.01 * 98 / 100)):
            params, state, norm = by_hand(params, state, batch(step), rate)
            assert whole_batch[0][step]["grad_norm"] == pytest.approx(float(norm), rel=1e-5)
            assert whole_batch[0][step]["learning_rate"] == pytest.approx(rate, rel=1e-6)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), params, whole_batch[1])


@pytest.mark.slow
def test_an_unrolled_stack_gives_the_same_under_sharding(reference):
    history, _ = losses(*tiny(layers="loop"), CUBE, steps=3)
    for found, expected in zip(history, reference[0]):
        assert found["loss"] == pytest.approx(expected["loss"], rel=2e-6)


def test_a_loss_that_is_not_finite_changes_nothing_but_the_step():
    run = Run(*tiny(), CUBE)
    run(batch(0)), run(batch(1))
    before = jax.device_get(run.state)
    for bad in (np.nan, np.inf):
        metrics = run(batch(2) | {"masked_weights": np.full((BATCH, MASKED), bad, np.float32)})
        assert metrics["skipped"] == 1 and not np.isfinite(metrics["loss"])
    after = jax.device_get(run.state)
    assert after.step == before.step + 2
    jax.tree.map(np.testing.assert_array_equal, after.params, before.params)
    jax.tree.map(np.testing.assert_array_equal, after.optimizer_state, before.optimizer_state)
    assert run(batch(3))["skipped"] == 0
    assert not np.array_equal(jax.device_get(run.state.params["pooler"]["kernel"]), after.params["pooler"]["kernel"])


def test_a_batch_without_predictions_or_pairs_still_has_finite_numbers():
    run = Run(*tiny(dropout=0.0), SINGLE)
    metrics = run(batch(0, pairs=False) | {"masked_weights": np.zeros((BATCH, MASKED), np.float32)})
    assert metrics["useful_predictions"] == 0
    of_model = {name: value for name, value in metrics.items() if name not in COUNTS}
    assert of_model == {"loss": 0, "mlm_loss": 0, "mlm_accuracy": 0, "learning_rate": 0, "grad_norm": 0, "skipped": 0}


def test_the_state_is_donated_and_stays_sharded():
    run = Run(*tiny(), CUBE)
    old = run.state
    run(batch(0))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(old))
    for leaf, where in zip(jax.tree.leaves(run.state), jax.tree.leaves(run.shardings)):
        assert leaf.sharding.is_equivalent_to(where, leaf.ndim)


@pytest.mark.slow
def test_two_processes_load_their_own_rows_and_get_the_losses_of_one(tmp_path):
    """Two processes of two devices each, joined as on a pod, against one device."""
    address = f"127.0.0.1:{free_port()}"
    script = tmp_path / "host.py"
    script.write_text(HOST)
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "",
        "JAX_NUM_CPU_DEVICES": "2",
        "JAX_NUM_PROCESSES": "2",
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
        "JAX_COORDINATOR_ADDRESS": address,
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    hosts = [
        subprocess.Popen(
            [sys.executable, script],
            env=environment | {"JAX_PROCESS_ID": str(index)},
            text=True,
            stdout=subprocess.PIPE,
        )
        for index in range(2)
    ]
    try:
        outputs = [json.loads(host.communicate(timeout=SECONDS)[0].splitlines()[-1]) for host in hosts]
    finally:
        for host in hosts:
            host.kill()
    assert sorted(outputs[0]["rows"] + outputs[1]["rows"]) == list(range(BATCH))
    expected, _ = losses(*tiny(), SINGLE, steps=3)
    for output in outputs:
        assert output["losses"] == pytest.approx([metrics["loss"] for metrics in expected], rel=2e-6)


HOST = """
import dataclasses
import json
from bert_jax.devices import hardware, sharding
hardware.initialize_distributed()
hardware.initialize_distributed()
import small_pretraining
run = small_pretraining.Run(*small_pretraining.tiny(), small_pretraining.MeshConfig(data=2, fsdp=2))
rows = sharding.host_rows(run.mesh, small_pretraining.BATCH)
batches = [small_pretraining.batch(step).items() for step in range(3)]
losses = [run({name: array[rows] for name, array in batch})["loss"] for batch in batches]
print(json.dumps({"rows": rows.tolist(), "losses": losses}))
"""


def test_evaluation_sums_over_the_global_batch():
    model, config = tiny()
    run = Run(model, config, CUBE)
    evaluate = make_forward_step(default_objective(model, config).sums, run.mesh, run.shardings.params)
    sums = jax.device_get(evaluate(run.state.params, sharding.to_global(run.mesh, batch(0), BATCH)))
    still, _ = losses(*tiny(dropout=0.0), SINGLE, steps=1)
    words, pairs = sums["mlm"], sums["next_sentence"]
    assert words.weight == batch(0)["masked_weights"].sum() and pairs.weight == BATCH
    assert words.loss / words.weight == pytest.approx(still[0]["mlm_loss"], rel=1e-5)
    assert pairs.loss / BATCH == pytest.approx(still[0]["next_sentence_loss"], rel=1e-5)


def test_the_word_table_is_summed_over_devices_once_in_the_type_of_the_products():
    """Traced for bfloat16 on eight devices: one sum of copies; compiled for float32: one sum of the table's size."""
    model, config = tiny()
    model = dataclasses.replace(model, compute=dataclasses.replace(model.compute, dtype="bfloat16"))
    mesh, _, step = compiled(model, config, MeshConfig(data=8))
    rows = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in batch(0).items()}
    state = abstract_state(model, optimizer(config.optimizer, model.parameters), mesh)
    program = step.lower(state, rows).as_text()
    sums = re.findall(r"stablehlo\.reduce\(.*?tensor<8x64x16x(\w+)>", program)
    assert sums == ["bf16"]
    in_float32 = dataclasses.replace(model, compute=dataclasses.replace(model.compute, dtype="float32"))
    _, _, step = compiled(in_float32, config, MeshConfig(data=8))
    collectives = re.findall(r"= \(?(.*?)\)? all-reduce(?:-start)?\(", step.lower(state, rows).compile().as_text())
    assert sum(shape.count("f32[64,16]") for shape in collectives) == 1
