"""Whole runs with a teacher: resumed exactly, also after kill -9, with the same teacher only; the same on any mesh."""

import dataclasses
import os
import shutil

import jax
import numpy as np
import pytest
import written_teacher
from family_runs import MESHES, assert_killed_and_resumed_exactly, small
from pretrained_model import contents
from processes import EXHAUSTIVE
from small_pretraining import rows

from bert_jax.cli.evaluate import run_evaluate
from bert_jax.errors import UserError
from bert_jax.formats.conversion import convert
from bert_jax.formats.opening import open_stored
from bert_jax.formats.own import open_checkpoint
from bert_jax.pretraining import pretrain


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
    os.rename(tmp_path / "run/checkpoints/step_000000006", tmp_path / "taken")
    os.rename(tmp_path / "teacher", tmp_path / "moved")
    pretrain(with_teacher(config, tmp_path / "moved"), devices=jax.devices()[:1])
    assert rows(config.workdir) == whole and rows(config.workdir, "evaluation") == evaluated
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
    config = dataclasses.replace(
        config,
        init_from_layers=(),
        model=dataclasses.replace(config.model, hidden_size=24),
        optimizer=dataclasses.replace(config.optimizer, ema_decay=0.9),
    )
    return with_teacher(config, tmp_path / "teacher")


@pytest.mark.slow
def test_a_narrower_student_is_resumed_is_the_same_on_any_mesh_and_leaves_its_map_behind(small_store, tmp_path):
    written_teacher.write(tmp_path / "teacher", small_store)
    config = narrower(small_store, tmp_path, "run")
    pretrain(config, devices=jax.devices()[:1])
    whole, evaluated = rows(config.workdir), rows(config.workdir, "evaluation")
    learned = contents(open_checkpoint(config.workdir))["state_projection/kernel"]
    os.rename(tmp_path / "run/checkpoints/step_000000006", tmp_path / "taken")
    pretrain(config, devices=jax.devices()[:1])
    assert rows(config.workdir) == whole and rows(config.workdir, "evaluation") == evaluated
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
    measured = run_evaluate(config.workdir, with_teacher(config, tmp_path / "moved"), one).metrics
    losses = [name for name in wanted if name.endswith("_loss")]
    assert "soft_targets_loss" in losses
    assert {name: measured[name] for name in losses} == pytest.approx({name: wanted[name] for name in losses}, rel=1e-6)
    with pytest.raises(UserError, match=r"other is not the teacher of .*; give the teacher of the run"):
        run_evaluate(config.workdir, with_teacher(config, tmp_path / "other"), one)
    shutil.rmtree(tmp_path / "moved")  # a trained student needs its teacher no more
    for path in (tmp_path / "moved", ""):
        alone = run_evaluate(config.workdir, with_teacher(config, path), one).metrics
        assert "soft_targets_loss" not in alone
        assert alone["mlm_loss"] == pytest.approx(wanted["mlm_loss"], rel=1e-6)
