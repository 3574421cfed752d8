"""Whole runs of the family's configurations, in small: resumed exactly, and the same on any mesh.

`BERT_JAX_MESHES=all pytest -m slow tests/pretraining/test_family_runs.py -k mesh` takes each of them to all meshes.
"""

import dataclasses
import os
import signal

import jax
import numpy as np
import pytest
from run_process import finish, start
from small_pretraining import rows, run_config

from bert_jax.config import CheckpointConfig, Config, MeshConfig, ObjectiveConfig, PhaseConfig
from bert_jax.config.commands import CountConfig
from bert_jax.console.command_line import load_config
from bert_jax.data.preparation.pair_counting import run_count
from bert_jax.pretraining import pretrain

NAMES = (
    "roberta_mini",
    "albert_mini",
    "distilbert_mini",
    "modernbert_mini",
    "gpt_mini",
    "elmo_mini",
    "ulmfit_mini",
    "skipgram_mini",
    "glove_mini",
    "spanbert_mini",
    "electra_mini",
    "deberta_v3_mini",
    "deberta_mini",
    "xlnet_mini",
)
MESHES = (MeshConfig(data=2, fsdp=2, tensor=2), MeshConfig(data=8), MeshConfig(fsdp=8))
ON_ALL_MESHES = NAMES if os.environ.get("BERT_JAX_MESHES") == "all" else ("electra_mini", "glove_mini")
"""Each of the three takes programs of its own, and the first divides along every axis."""
SMALLER = {"hidden_size": 32, "num_heads": 2, "intermediate_size": 48}


def small(name: str, store, workdir) -> Config:
    """Return a shipped configuration with its recipe, its number of layers and the sizes of a test."""
    config = load_config(name)
    sizes = SMALLER | ({} if config.model.embedding_size is None else {"embedding_size": 16})
    model = dataclasses.replace(config.model, **sizes)
    if model.local_window is not None:
        model = dataclasses.replace(model, local_window=8)
    if model.padding_id is not None:
        model = dataclasses.replace(model, padding_id=0)  # that of the vocabulary of tests
    objective = config.objective
    if objective.generator.hidden_size is not None:
        generator = dataclasses.replace(objective.generator, hidden_size=SMALLER["hidden_size"])
        objective = dataclasses.replace(objective, generator=generator)
    if objective.name == "glove":
        objective = with_counts(objective, store, workdir)
    return run_config(
        store,
        workdir,
        model=model,
        masking=config.masking,
        objective=objective,
        optimizer=config.optimizer,
        data=dataclasses.replace(config.data, path=str(store), held_out=0.1),
        phases=(PhaseConfig(steps=6, sequence_length=48, batch_size=8, learning_rate=1e-3, warmup_steps=2),),
        checkpoint=CheckpointConfig(every_steps=3, keep_last=5, keep_best=0),
    )


def with_counts(objective: ObjectiveConfig, store, workdir) -> ObjectiveConfig:
    """Return the objective with counts of the pairs of the store."""
    counts = workdir.with_name(f"{workdir.name}_counts")
    run_count(str(store), CountConfig(output=str(counts), held_out=0.1))
    vectors = dataclasses.replace(objective.static_vectors, counts=str(counts))
    return dataclasses.replace(objective, static_vectors=vectors)


KILLED = (
    *("gpt_mini", "elmo_mini", "ulmfit_mini", "spanbert_mini", "electra_mini", "deberta_mini", "xlnet_mini"),
    *("skipgram_mini", "glove_mini", "albert_mini", "deberta_v3_mini"),
)
"""One configuration of each objective, one with DropConnect, and one whose generator has a mask decoder and the tables
of its discriminator; BERT's is killed in test_resumption.py. The others are resumed below, inside one process."""


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_same_on_any_mesh(small_store, tmp_path, name):
    config = small(name, small_store, tmp_path / "run")
    pretrain(config, devices=jax.devices()[:1])
    whole, evaluated = rows(config.workdir), rows(config.workdir, "evaluation")
    if name not in KILLED:
        os.rename(tmp_path / "run/checkpoints/step_000000006", tmp_path / "taken")
        pretrain(config, devices=jax.devices()[:1])
        assert rows(config.workdir) == whole and rows(config.workdir, "evaluation") == evaluated
    for mesh in MESHES if name in ON_ALL_MESHES else MESHES[:1]:
        split = dataclasses.replace(config, workdir=str(tmp_path / f"{mesh.data}{mesh.fsdp}{mesh.tensor}"), mesh=mesh)
        pretrain(split, devices=jax.devices()[:8])
        losses = [[row["loss"] for row in found] for found in (whole, rows(split.workdir))]
        np.testing.assert_allclose(losses[1], losses[0], rtol=2e-6, err_msg=str(mesh))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert_mini", "modernbert_mini"])
def test_a_last_layer_computed_where_it_is_read_is_the_same_on_any_mesh(small_store, tmp_path, name):
    """Unrolled layers, with dropout, against a scan, which computes all of its layers at every position."""
    config = small(name, small_store, tmp_path / "scan")
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, hidden_dropout=0.1, num_layers=3))
    pretrain(config, devices=jax.devices()[:1])
    scanned = [row["loss"] for row in rows(config.workdir)]
    unrolled = dataclasses.replace(config, compute=dataclasses.replace(config.compute, layers="loop"))
    for mesh in (MeshConfig(data=1), *MESHES):
        workdir = str(tmp_path / f"{mesh.data}{mesh.fsdp}{mesh.tensor}")
        devices = jax.devices()[: abs(mesh.data * mesh.fsdp * mesh.tensor)]
        pretrain(dataclasses.replace(unrolled, workdir=workdir, mesh=mesh), devices=devices)
        np.testing.assert_allclose([row["loss"] for row in rows(workdir)], scanned, rtol=5e-6, err_msg=str(mesh))


@pytest.mark.slow
@pytest.mark.parametrize("name", KILLED)
def test_killed_and_resumed_exactly(small_store, tmp_path, name):
    whole, killed = (small(name, small_store, tmp_path / each) for each in ("whole", "killed"))
    assert_killed_and_resumed_exactly(whole, killed)


def assert_killed_and_resumed_exactly(whole: Config, killed: Config) -> None:
    """kill -9 at an arbitrary moment between the checkpoints of steps 6 and 18; all runs are processes alike."""
    phases = (dataclasses.replace(whole.phases[0], steps=20),)
    whole, killed = (dataclasses.replace(config, phases=phases) for config in (whole, killed))
    assert finish(start(whole), whole)[0] == 0
    assert finish(start(killed, dies_after=7), killed)[0] == -signal.SIGKILL
    assert 7 <= rows(killed.workdir)[-1]["step"] < 20
    code, output = finish(start(killed), killed)
    assert code == 0 and "resuming from step" in output, output
    assert rows(killed.workdir) == rows(whole.workdir) and len(rows(whole.workdir)) == 20
    assert rows(killed.workdir, "evaluation") == rows(whole.workdir, "evaluation")
