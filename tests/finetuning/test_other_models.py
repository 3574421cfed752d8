"""Fine-tuning of other encoders, and from a teacher."""

import dataclasses
import json
import os

import jax
import numpy as np
import pytest
from modern_models import FIRST, MODERN, THIRD
from pretrained_model import random_params
from processes import EXHAUSTIVE
from small_finetuning import Killed, assert_same_weights, run_config, write
from small_pretraining import finetune
from task_models import HEADS, MODEL, ROWS, make_batch

import bert_jax
from bert_jax.checkpoints.record import leaf_paths
from bert_jax.config import ComputeConfig, MeshConfig
from bert_jax.config.finetuning import FinetuneConfig
from bert_jax.config.objective import TaskDistillationConfig
from bert_jax.devices import sharding
from bert_jax.errors import UserError
from bert_jax.finetuning.programs import make_programs
from bert_jax.formats.conversion import convert
from bert_jax.models.task import BertForTask
from bert_jax.objectives.distillation import Teacher
from bert_jax.parameters import entries
from bert_jax.training.metrics import read_rows
from bert_jax.training.step import Program

MODELS = {  # model type: model, layers, class of the export, options of the fine-tuning
    "modernbert": (MODERN, 4, "ModernBertForSequenceClassification", {}),
    "deberta-v2": (THIRD, 2, "DebertaV2ForSequenceClassification", {"layer_decay": 0.9}),
    "deberta": (FIRST, 2, "DebertaForSequenceClassification", {"layer_decay": 0.9}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["modernbert", "deberta-v2", *(["deberta"] if EXHAUSTIVE else [])])
def test_it_is_fine_tuned_and_exported(tmp_path, name):
    model, layers, of_class, options = MODELS[name]
    sizes = dict(hidden_size=32, num_layers=layers, num_heads=2, initializer_range=0.1, max_position_embeddings=32)
    home = write(tmp_path, dataclasses.replace(model, **sizes, pair_head=False))
    found = finetune(run_config(home, tmp_path / "tuned", epochs=1, **options))
    assert found.results["metrics"]["accuracy"] > 0.8
    tuned = bert_jax.load(tmp_path / "tuned")
    convert(tmp_path / "tuned", tmp_path / "theirs", to="huggingface")
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == (name, [of_class])
    texts = ["The garden.", "A ship at sea."]  # shorter than the 16 tokens that fine-tuning reads
    ours, theirs = (each.predict(texts) for each in (tuned, bert_jax.load(tmp_path / "theirs")))
    assert [label.name for label in ours] == [label.name for label in theirs]
    np.testing.assert_allclose(*([*label.probabilities.values()] for label in (ours[0], theirs[0])), rtol=1e-5)
    if name == "modernbert":
        assert tuned.params["head"].keys() == {"dense", "norm", "kernel", "bias"} and "pooler" not in tuned.params
        assert "attention_norm" not in tuned.layers[0].params and "attention_norm" in tuned.layers[1].params
        states = tuned.encode(texts, layers="all")
        above, real = tuned.layers[0](states.hidden_states[0], states.attention_mask), states.attention_mask > 0
        np.testing.assert_allclose(np.asarray(above)[real], states.hidden_states[1][real], atol=1e-5)


def taught(config, teacher):
    return dataclasses.replace(config, distillation=TaskDistillationConfig(teacher=str(teacher), share=0.7))


def losses(mesh, micro_batches):
    """Two steps on one batch; without dropout, so that micro-batches change nothing."""
    compute = ComputeConfig(dtype="float32")
    distillation = TaskDistillationConfig(teacher="there")
    config = FinetuneConfig(micro_batches=micro_batches, dropout=0.0, compute=compute, distillation=distillation)
    head = HEADS["classification"]
    model = BertForTask(MODEL, head, config.compute)
    arrays = random_params(model, 3)
    where = sharding.shardings(mesh, entries(model.parameters, arrays))
    teacher = Teacher(model, jax.device_put(arrays, where), "fingerprint")
    programs = make_programs(config, MODEL, head, mesh, teacher=teacher)
    state, found = programs.fresh_state(np.uint32(0)), []
    rate, seed = (sharding.on_every_device(mesh, value) for value in (np.float32(1e-3), np.uint32(0)))
    for step in range(2):
        batch = sharding.to_global(mesh, make_batch("classification", step), ROWS)
        state, values = programs.train_step(state, batch, rate, seed)
        found.append([float(values[name]) for name in ("loss", "labels_loss", "teacher_loss")])
    for path, values in leaf_paths(teacher.params).items():
        assert np.asarray(values).tobytes() == leaf_paths(arrays)[path].tobytes()
    return found


@pytest.mark.slow
def test_meshes_and_micro_batches_give_the_same_losses_and_leave_the_teacher_alone():
    alone = losses(sharding.make_mesh(MeshConfig(), jax.devices()[:1]), 1)
    mesh = sharding.make_mesh(MeshConfig(data=2, fsdp=2, tensor=2), jax.devices()[:8])
    np.testing.assert_allclose(losses(mesh, 2), alone, rtol=5e-6)


@pytest.mark.slow
def test_resumed_exactly_with_the_same_teacher(two_seeds, pretrained, tmp_path, monkeypatch):
    teacher = two_seeds[0].workdir
    config = taught(run_config(pretrained, tmp_path / "whole", save_every_steps=5), teacher)
    whole = finetune(config).results
    (run,) = (tmp_path / "whole" / "runs").iterdir()
    rows = [row for row in read_rows(run / "metrics.jsonl") if row["kind"] == "train"]
    assert {"loss", "labels_loss", "labels_accuracy", "teacher_loss"} <= rows[0].keys()
    assert rows[-1]["teacher_loss"] < rows[0]["teacher_loss"] / 2 and whole["metrics"]["accuracy"] > 0.9
    call, seen = Program.__call__, []

    def killed(program, state, batch, *rate_and_seed):
        seen.extend(rate_and_seed[:1])
        if len(seen) == 29:
            raise Killed
        return call(program, state, batch, *rate_and_seed)

    again = dataclasses.replace(config, workdir=str(tmp_path / "again"))
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(Program, "__call__", killed)
        finetune(again)
    other = run_config(pretrained, tmp_path / "other", epochs=1)
    finetune(other)
    for path in (other.workdir, ""):
        with pytest.raises(UserError, match="teacher: .* → "):
            finetune(taught(again, path))
    os.symlink(teacher, tmp_path / "moved")
    results = finetune(taught(again, tmp_path / "moved")).results
    assert results["metrics"] == whole["metrics"]
    assert_same_weights(tmp_path / "whole", tmp_path / "again")
