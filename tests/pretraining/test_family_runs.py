"""Runs of the family's configurations, in small: whole ones are resumed exactly, and the same on any mesh.

One configuration for each mechanism, on a mesh that divides along every axis; with `BERT_JAX_EXHAUSTIVE=1` all of
them, each taken to all meshes and killed.
"""

import dataclasses
import json
import math
import os

import jax
import numpy as np
import pytest
from family_runs import MESHES, assert_killed_and_resumed_exactly, on_mesh, small
from processes import EXHAUSTIVE
from small_pretraining import rows

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.workdir import read_config
from bert_jax.config import MeshConfig
from bert_jax.devices import sharding
from bert_jax.objectives.choice import default_objective
from bert_jax.pretraining import pretrain
from bert_jax.training.learner import Learner

MECHANISMS = {
    "albert_mini": "layers that share their arrays",
    "modernbert_mini": "rotary positions and local layers",
    "gpt_mini": "left to right",
    "elmo_mini": "recurrent in both directions",
    "ulmfit_mini": "a state carried from batch to batch",
    "skipgram_mini": "no layers",
    "glove_mini": "counts in place of text",
    "deberta_v3_mini": "a generator, and disentangled attention",
    "xlnet_mini": "permutations, seen by two streams",
}
"""What each configuration alone shows, by name."""
COMPOSED = ("roberta_mini", "distilbert_mini", "spanbert_mini", "electra_mini", "deberta_mini")
"""Configurations whose mechanisms are those above, BERT's, or shown by runs of distillation and of replaced tokens."""
NAMES = (*MECHANISMS, *(COMPOSED if EXHAUSTIVE else ()))
UNTRAINED = ("deberta_base", "mosaicbert_base", "neobert", "cramming")
"""Encoders that none of the above has."""
KILLED = NAMES if EXHAUSTIVE else ("ulmfit_mini",)
"""All are resumed inside one process. BERT's run, too, is killed, in test_resumption and test_kills."""


@pytest.mark.parametrize("name", UNTRAINED)
def test_a_step_begins_at_the_loss_of_chance_and_reaches_every_parameter(small_store, tmp_path, name):
    """In two layers. The first moments after one step are its gradients, times 1 - beta1."""
    config = small(name, small_store, tmp_path / "run")
    config = dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, num_layers=2),
        phases=(dataclasses.replace(config.phases[0], steps=1, warmup_steps=1),),
    )
    pretrain(config, devices=jax.devices()[:1])
    (trained,), (evaluated,) = rows(config.workdir), rows(config.workdir, "evaluation")
    config = read_config(config.workdir)
    chance = math.log(config.model.vocab_size)
    assert [trained["loss"], evaluated["mlm_loss"]] == pytest.approx([chance, chance], abs=0.1)
    learner = Learner.of(config, sharding.make_mesh(config.mesh, jax.devices()[:1]), default_objective)
    run_id = json.loads((tmp_path / "run/run.json").read_text())["run_id"]
    state = Checkpoints(tmp_path / "run/checkpoints", run_id=run_id).read(1, learner.abstract).state
    largest, parameters = {}, learner.objective.model.parameters
    for keys, moment in jax.tree.leaves_with_path(state.optimizer_state[0].mu):
        path = jax.tree_util.keystr(keys, simple=True, separator="/")
        layer = parameters[path].layer_axis
        moment = np.abs(moment) if layer is None else np.abs(np.moveaxis(moment, layer, 0))
        largest[path] = moment.max(None if layer is None else tuple(range(1, moment.ndim)))
    assert all(np.isfinite(each).all() for each in largest.values())
    assert largest.keys() == parameters.keys()
    noise = 1e-10 * max(each.max() for each in largest.values())
    # A bias of the keys adds the same to every score of a query, which the softmax ignores.
    without = {"encoder/attention/key/bias"} & largest.keys()
    assert {path for path, each in largest.items() if (each <= noise).any()} == without


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES, ids=lambda name: f"{name}: {MECHANISMS.get(name, 'composed')}")
def test_the_same_on_any_mesh(small_store, tmp_path, name):
    config = small(name, small_store, tmp_path / "run")
    pretrain(config, devices=jax.devices()[:1])
    whole, evaluated = rows(config.workdir), rows(config.workdir, "evaluation")
    os.rename(tmp_path / "run/checkpoints/step_000000006", tmp_path / "taken")
    pretrain(config, devices=jax.devices()[:1])
    assert rows(config.workdir) == whole and rows(config.workdir, "evaluation") == evaluated
    for mesh in MESHES if EXHAUSTIVE else MESHES[:1]:
        split = on_mesh(config, mesh, tmp_path)
        pretrain(split, devices=jax.devices()[:8])
        losses = [[row["loss"] for row in found] for found in (whole, rows(split.workdir))]
        np.testing.assert_allclose(losses[1], losses[0], rtol=2e-6, err_msg=str(mesh))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["modernbert_mini", *(["bert_mini"] if EXHAUSTIVE else [])])
def test_a_last_layer_computed_where_it_is_read_is_the_same_on_any_mesh(small_store, tmp_path, name):
    """Unrolled layers, with dropout, against a scan, which computes all of its layers at every position."""
    config = small(name, small_store, tmp_path / "scan")
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, hidden_dropout=0.1, num_layers=3))
    pretrain(config, devices=jax.devices()[:1])
    scanned = [row["loss"] for row in rows(config.workdir)]
    unrolled = dataclasses.replace(config, compute=dataclasses.replace(config.compute, layers="loop"))
    for mesh in (MeshConfig(data=1), *(MESHES if EXHAUSTIVE else MESHES[:1])):
        split = on_mesh(unrolled, mesh, tmp_path)
        pretrain(split, devices=jax.devices()[: abs(mesh.data * mesh.fsdp * mesh.tensor)])
        np.testing.assert_allclose([row["loss"] for row in rows(split.workdir)], scanned, rtol=5e-6, err_msg=str(mesh))


@pytest.mark.slow
@pytest.mark.parametrize("name", KILLED)
def test_killed_and_resumed_exactly(small_store, tmp_path, name):
    whole, killed = (small(name, small_store, tmp_path / each) for each in ("whole", "killed"))
    assert_killed_and_resumed_exactly(whole, killed)
