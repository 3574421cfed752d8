"""Runs of the family: teachers, packed rows, long inputs, models from outside.

One configuration for each mechanism, on a mesh that divides along every axis; with `BERT_JAX_EXHAUSTIVE=1` all of
them, each taken to all meshes and killed.
"""

import dataclasses
import functools
import json
import math
import os
import pathlib
import shutil

import jax
import numpy as np
import pytest
import written_teacher
from family_runs import MESHES, assert_killed_and_resumed_exactly, assert_same_losses, small
from local_block import LocalBlock
from model_variants import variant
from outside_objective import OutsideObjective
from pretrained_model import contents
from processes import EXHAUSTIVE
from small_pretraining import MODEL, assert_resumed_exactly, rows, run_config
from small_pretraining import pretrain as pretrain_on_one_device

import bert_jax
from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.record import read_record
from bert_jax.cli.evaluate import run_evaluate
from bert_jax.config import Config, ModelConfig, PhaseConfig, resolve_phases
from bert_jax.config.presets import google2018
from bert_jax.config.pretraining import CheckpointConfig, ComputeConfig, DataConfig, EvaluationConfig, MeshConfig
from bert_jax.devices import sharding
from bert_jax.errors import UserError
from bert_jax.formats.conversion import convert
from bert_jax.formats.opening import open_stored
from bert_jax.formats.own import open_checkpoint
from bert_jax.models.architecture import Architecture, bert_architecture
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.block import FeedForward
from bert_jax.models.layers import gelu_tanh
from bert_jax.pretraining import default_objective, make_learner, pretrain
from bert_jax.training.learner import attention_of
from bert_jax.training.metrics import read_rows
from bert_jax.training_data import read_config


def with_teacher(config, path):
    distillation = dataclasses.replace(config.objective.distillation, teacher=str(path), hidden_weight=0.5)
    return dataclasses.replace(config, objective=dataclasses.replace(config.objective, distillation=distillation))


@pytest.mark.slow
def test_resumed_exactly_with_the_same_teacher(small_store, tmp_path):
    drawn = written_teacher.write(tmp_path / "teacher", small_store)
    config = small("distilbert_mini", small_store, tmp_path / "run")
    config = dataclasses.replace(config, init_from_layers=(0, 2))
    config = with_teacher(config, tmp_path / "teacher")
    pretrain(config, devices=jax.devices()[:1])
    whole, evaluated = rows(config.workdir), rows(config.workdir, "evaluation")
    assert {"mlm_loss", "soft_targets_loss", "cosine_loss", "hidden_loss"} <= whole[0].keys() & evaluated[0].keys()
    assert contents(open_stored(tmp_path / "teacher")) == contents(drawn)
    os.rename(tmp_path / "teacher", tmp_path / "moved")
    assert_resumed_exactly(config, (6,), again=with_teacher(config, tmp_path / "moved"))
    written_teacher.write(tmp_path / "other", small_store, num_layers=2)
    for path, problem in (("other", "the teacher .* but this start has the teacher"), (None, "but this start has no")):
        with pytest.raises(UserError, match=problem):
            pretrain(with_teacher(config, tmp_path / path if path else ""), devices=jax.devices()[:1])
    for mesh in MESHES if EXHAUSTIVE else ():  # below, with a teacher of another width
        name = f"{mesh.data}{mesh.fsdp}{mesh.tensor}"
        split = dataclasses.replace(config, workdir=str(tmp_path / name), mesh=mesh)
        pretrain(with_teacher(split, tmp_path / "moved"), devices=jax.devices()[:8])
        for loss in ("loss", "soft_targets_loss", "cosine_loss", "hidden_loss"):
            losses = [[row[loss] for row in found] for found in (whole, rows(split.workdir))]
            np.testing.assert_allclose(losses[1], losses[0], rtol=3e-6, err_msg=f"{loss} on {mesh}")
    evaluate_with_and_without(config, tmp_path, evaluated[-1])


@pytest.mark.slow
def test_pairs_are_learned_beside_a_teacher(small_store, tmp_path):
    written_teacher.write(tmp_path / "teacher", small_store)
    config = with_teacher(small("bert_mini", small_store, tmp_path / "run"), tmp_path / "teacher")
    pretrain(config, devices=jax.devices()[:1])
    evaluated = rows(config.workdir, "evaluation")[-1]
    wanted = {"mlm_loss", "next_sentence_loss", "soft_targets_loss", "cosine_loss", "hidden_loss"}
    assert wanted <= rows(config.workdir)[0].keys() & evaluated.keys()
    measured = run_evaluate(config.workdir, config, jax.devices()[:1]).metrics
    assert {name: measured[name] for name in wanted} == pytest.approx({n: evaluated[n] for n in wanted}, rel=1e-6)


def narrower(store, tmp_path, name):
    """A student of 24 features, which starts from random parameters, and its teacher of 32."""
    config = small("distilbert_mini", store, tmp_path / name)
    model = dataclasses.replace(config.model, hidden_size=24)
    optimizer = dataclasses.replace(config.optimizer, ema_decay=0.9)
    config = dataclasses.replace(config, init_from_layers=(), model=model, optimizer=optimizer)
    return with_teacher(config, tmp_path / "teacher")


@pytest.mark.slow
def test_a_narrower_student_is_resumed_is_the_same_on_any_mesh_and_leaves_its_map_behind(small_store, tmp_path):
    written_teacher.write(tmp_path / "teacher", small_store)
    config = narrower(small_store, tmp_path, "run")
    pretrain(config, devices=jax.devices()[:1])
    whole, evaluated = rows(config.workdir), rows(config.workdir, "evaluation")
    learned = contents(open_checkpoint(config.workdir))["state_projection/kernel"]
    assert_resumed_exactly(config, (6,))
    assert contents(open_checkpoint(config.workdir))["state_projection/kernel"] == learned
    split = dataclasses.replace(narrower(small_store, tmp_path, "split"), mesh=MESHES[0])
    pretrain(split, devices=jax.devices()[:8])
    for loss in ("loss", "soft_targets_loss", "cosine_loss", "hidden_loss"):
        losses = [[row[loss] for row in found] for found in (whole, rows(split.workdir))]
        np.testing.assert_allclose(losses[1], losses[0], rtol=3e-6, err_msg=loss)
    last, average = (open_checkpoint(config.workdir, weights) for weights in ("last", "ema"))
    kernels = [contents(each)["state_projection/kernel"] for each in (last, average)]
    assert kernels[0] != kernels[1] and len(kernels[0]) == 4 * 24 * 32
    measured = run_evaluate(config.workdir, config, jax.devices()[:1]).metrics
    assert measured["hidden_loss"] == pytest.approx(evaluated[-1]["hidden_loss"], rel=1e-6)
    convert(config.workdir, tmp_path / "student", to="huggingface")
    assert "state_projection" not in open_stored(tmp_path / "student").parts


@pytest.mark.slow
@pytest.mark.skipif(not EXHAUSTIVE, reason="set BERT_JAX_EXHAUSTIVE=1; without it the run is resumed, but not killed")
def test_a_narrower_student_is_killed_and_resumed_exactly(small_store, tmp_path):
    written_teacher.write(tmp_path / "teacher", small_store)
    whole, killed = (narrower(small_store, tmp_path, name) for name in ("whole", "killed"))
    assert_killed_and_resumed_exactly(whole, killed)
    assert "hidden_loss" in rows(whole.workdir)[0]
    found = [contents(open_checkpoint(each.workdir))["state_projection/kernel"] for each in (whole, killed)]
    assert found[0] == found[1]


def evaluate_with_and_without(config, tmp_path, wanted):
    """Measure a student with its teacher, moved and back, with a different one, and without."""
    one = jax.devices()[:1]
    convert(config.workdir, tmp_path / "converted", to="bert_jax")
    losses = {name: value for name, value in wanted.items() if name.endswith("_loss")}
    assert "soft_targets_loss" in losses
    for workdir in (config.workdir, str(tmp_path / "converted")):
        measured = run_evaluate(workdir, with_teacher(config, tmp_path / "moved"), one).metrics
        assert {name: measured[name] for name in losses} == pytest.approx(losses, rel=1e-6)
    with pytest.raises(UserError, match=r"other is not the teacher of .*; give the teacher of the run"):
        run_evaluate(config.workdir, with_teacher(config, tmp_path / "other"), one)
    shutil.rmtree(tmp_path / "moved")  # a trained student needs its teacher no more
    for path in (tmp_path / "moved", ""):
        alone = run_evaluate(config.workdir, with_teacher(config, path), one).metrics
        assert "soft_targets_loss" not in alone
        assert alone["mlm_loss"] == pytest.approx(wanted["mlm_loss"], rel=1e-6)


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
    "diffusion_mini": "a rate of masks for each text, and its weight",
}
"""What each configuration alone shows, by name."""
COMPOSED = ("roberta_mini", "distilbert_mini", "spanbert_mini", "electra_mini", "deberta_mini")
"""Configurations whose mechanisms are those above, BERT's, or shown by runs of distillation and of replaced tokens."""
NAMES = (*MECHANISMS, *(COMPOSED if EXHAUSTIVE else ()))
UNTRAINED = (
    "cramming",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("deberta_base", "mosaicbert_base", "neobert")),
)
"""Encoders that none of the above has."""
KILLED = NAMES if EXHAUSTIVE else ("ulmfit_mini",)
"""All are resumed inside one process. BERT's run, too, is killed, in test_resumption and test_kills."""


@pytest.mark.parametrize("name", UNTRAINED)
def test_a_step_begins_at_the_loss_of_chance_and_reaches_every_parameter(small_store, tmp_path, name):
    """In two layers. The first moments after one step are its gradients, times 1 - beta1."""
    config = small(name, small_store, tmp_path / "run")
    phases = (dataclasses.replace(config.phases[0], steps=1, warmup_steps=1),)
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, num_layers=2), phases=phases)
    pretrain(config, devices=jax.devices()[:1])
    (trained,), (evaluated,) = rows(config.workdir), rows(config.workdir, "evaluation")
    config = read_config(config.workdir)
    chance = math.log(config.model.vocab_size)
    assert [trained["loss"], evaluated["mlm_loss"]] == pytest.approx([chance, chance], abs=0.1)
    learner = make_learner(config, sharding.make_mesh(config.mesh, jax.devices()[:1]))
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
    assert_resumed_exactly(config, (6,))
    count = len(MESHES) if EXHAUSTIVE else 1 + (name == "diffusion_mini")  # whose rows have weights of their own
    assert_same_losses(config, MESHES[:count], tmp_path, rtol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["modernbert_mini", *(["bert_mini"] if EXHAUSTIVE else [])])
def test_a_last_layer_computed_where_it_is_read_is_the_same_on_any_mesh(small_store, tmp_path, name):
    """Unrolled layers, with dropout, against a scan, which computes all of its layers at every position."""
    config = small(name, small_store, tmp_path / "scan")
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, hidden_dropout=0.1, num_layers=3))
    pretrain(config, devices=jax.devices()[:1])
    unrolled = dataclasses.replace(config, compute=dataclasses.replace(config.compute, layers="loop"))
    assert_same_losses(unrolled, (MeshConfig(data=1), *(MESHES if EXHAUSTIVE else MESHES[:1])), tmp_path, rtol=5e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", KILLED)
def test_killed_and_resumed_exactly(small_store, tmp_path, name):
    whole, killed = (small(name, small_store, tmp_path / each) for each in ("whole", "killed"))
    assert_killed_and_resumed_exactly(whole, killed)


PHASE = PhaseConfig(steps=6, sequence_length=64, batch_size=8, learning_rate=1e-3, warmup_steps=2)
KEPT = CheckpointConfig(every_steps=3, keep_last=5, keep_best=0)


def packed_config(store, workdir, packing="on", **changes):
    data = DataConfig(path=str(store), held_out=0.1, loader="plain", packing=packing)
    return run_config(store, workdir, phases=(PHASE,), checkpoint=KEPT, data=data, **changes)


@pytest.fixture(scope="module")
def finished_of_packed(small_store, tmp_path_factory):
    config = packed_config(small_store, tmp_path_factory.mktemp("packed") / "run")
    pretrain(config, devices=jax.devices()[:1])
    return config


@pytest.mark.slow
def test_resume_is_bit_identical(small_store, finished_of_packed, tmp_path, capsys):
    config = packed_config(small_store, tmp_path / "cut")
    pretrain(config, devices=jax.devices()[:1])
    assert "packing up to 4 texts into a sequence" in capsys.readouterr().out
    assert_resumed_exactly(config, (6,))
    assert rows(config.workdir) == rows(finished_of_packed.workdir)


@pytest.mark.slow
def test_evaluation_is_that_of_runs_without(small_store, tmp_path):
    untrained = (dataclasses.replace(PHASE, steps=1, warmup_steps=0, learning_rate=1e-30),)
    found = []
    for packing in ("on", "off"):
        config = packed_config(small_store, tmp_path / packing, packing=packing)
        found.append(pretrain(dataclasses.replace(config, phases=untrained)).evaluation)
    assert found[0] == pytest.approx(found[1], rel=1e-5)


@pytest.mark.slow
def test_devices_and_micro_batches_share_the_rows_of_one_batch(small_store, finished_of_packed, tmp_path):
    config = packed_config(small_store, tmp_path / "four")
    config = dataclasses.replace(config, phases=(dataclasses.replace(PHASE, micro_batches=2),))
    model = dataclasses.replace(config.model, hidden_dropout=0.0, attention_dropout=0.0)
    whole = packed_config(small_store, tmp_path / "one", model=model)
    pretrain(whole, devices=jax.devices()[:1])
    pretrain(dataclasses.replace(config, model=model), devices=jax.devices()[:4])
    losses = [[row["loss"] for row in rows(each.workdir)] for each in (config, whole)]
    assert len(losses[0]) == PHASE.steps and losses[0] == pytest.approx(losses[1], abs=2e-5)


@pytest.mark.slow
def test_a_run_goes_on_as_it_began(finished_of_packed):
    with pytest.raises(UserError, match="data.packing: on → off"):
        pretrain(
            dataclasses.replace(finished_of_packed, data=dataclasses.replace(finished_of_packed.data, packing="off"))
        )
    assert read_config(finished_of_packed.workdir).data.packing == "on"


@pytest.mark.slow
def test_auto_is_off_where_no_phase_is_long_and_for_objectives_that_may_not_know_of_it(small_store, tmp_path):
    config = packed_config(small_store, tmp_path / "run", packing="auto")
    assert not resolve_phases(config)[0].packed
    longer = dataclasses.replace(config, phases=(dataclasses.replace(PHASE, sequence_length=256),))
    assert resolve_phases(longer)[0].packed and not resolve_phases(google2018(longer))[0].packed
    pretrain(config, devices=jax.devices()[:1], objective=lambda model, config: OutsideObjective(model))
    assert read_config(config.workdir).data.packing == "off"


LONG = variant(
    dataclasses.replace(MODEL, max_position_embeddings=256), local_window=16, global_every=0, global_tokens=1
)


@pytest.mark.slow
def test_a_bert_becomes_a_long_one(finished, small_store, tmp_path):
    """With hardly a step between them: texts within the window have the same states, others are read at all."""
    short = finished[0].workdir
    phase = PhaseConfig(steps=2, sequence_length=256, batch_size=4, learning_rate=1e-9, warmup_steps=0)
    long = run_config(small_store, tmp_path / "long", model=LONG, phases=(phase,), init_from=short)
    pretrain_on_one_device(long)
    assert np.isfinite([row["loss"] for row in rows(long.workdir)]).all()
    before, after = (bert_jax.load(path) for path in (short, tmp_path / "long"))
    ids = np.random.default_rng(0).integers(5, before.config.vocab_size, (2, 250))
    states = [model.encode_ids(ids[:, :16]).hidden_states[-1] for model in (before, after)]
    np.testing.assert_allclose(*states, atol=1e-5)
    table = np.asarray(after.params["embeddings"]["position"]["table"])
    np.testing.assert_allclose(table[64:127], table[1:64], atol=1e-6)
    assert np.isfinite(after.encode_ids(ids).hidden_states[-1]).all()
    mesh = sharding.make_mesh(long.mesh, jax.devices()[:1])
    assert attention_of(LONG, ComputeConfig(), mesh, 4, 256).endswith("in local layers by windowed")


def architecture(config, compute) -> Architecture:
    """Three layers with two sets of parameters, of which the second sees four tokens to each side."""
    usual = bert_architecture(config, compute)
    feed_forward = functools.partial(FeedForward, config, activation=gelu_tanh)
    block = functools.partial(LocalBlock, config, feed_forward=feed_forward)
    layer_inputs = {"window": np.array([32, 4, 32])}
    stack = dataclasses.replace(usual.stack, block=block, sharing=(0, 1, 0), layer_inputs=layer_inputs)

    return dataclasses.replace(usual, stack=stack)


def objective(_, config):
    return default_objective(BertForPreTraining(config.model, config.compute, architecture=architecture), config)


@pytest.mark.slow
def test_pretrain_trains_evaluates_and_saves_it(small_store, tmp_path):
    config = Config(
        model=ModelConfig(hidden_size=16, num_layers=3, num_heads=2, max_position_embeddings=32),
        data=DataConfig(path=str(small_store), held_out=0.1, loader="plain"),
        workdir=str(tmp_path / "run"),
        log_every_steps=1,
        phases=(PhaseConfig(steps=12, sequence_length=32, batch_size=16, learning_rate=1e-2, warmup_steps=0),),
        evaluation=EvaluationConfig(every_steps=6, sequences=32, batch_size=16),
        checkpoint=CheckpointConfig(every_steps=6),
    )
    result = pretrain_on_one_device(config, objective=objective)
    losses = [row["mlm_loss"] for row in read_rows(tmp_path / "run" / "metrics.jsonl") if row["kind"] == "train"]
    assert len(losses) == 12 and losses[-1] < losses[0] - 0.1 and result.evaluation["mlm_loss"] < losses[0]
    (newest,) = pathlib.Path(config.workdir, "checkpoints").glob("step_*12")
    arrays = read_record(newest / "record")["arrays"]
    assert arrays["params/encoder/attention/query/kernel"]["shape"] == [2, 16, 2, 8]
