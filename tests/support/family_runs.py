"""Runs of the family's configurations, in small, and how one that was killed is compared with a whole one."""

import dataclasses
import signal
from collections.abc import Sequence

import jax
import numpy as np
from forked_run import run
from model_variants import variant
from small_pretraining import rows, run_config

from bert_jax.config import CheckpointConfig, Config, GloVe, MeshConfig, PhaseConfig, ReplacedTokens
from bert_jax.config.commands import CountConfig
from bert_jax.console import load_config
from bert_jax.data.pair_counts import run_count
from bert_jax.pretraining import pretrain

MESHES = (MeshConfig(data=2, fsdp=2, tensor=2), MeshConfig(data=8), MeshConfig(data=1, fsdp=8))
"""Each of the three takes programs of its own, and the first divides along every axis."""
SMALLER = {"hidden_size": 32, "num_heads": 2, "intermediate_size": 48}


def small(name: str, store, workdir) -> Config:
    """Return a shipped configuration with its recipe, its number of layers and the sizes of a test."""
    config = load_config(name)
    sizes = SMALLER | ({} if config.model.embedding_size is None else {"embedding_size": 16})
    model = dataclasses.replace(config.model, **{name: s for name, s in sizes.items() if name in vars(config.model)})
    if model.window is not None:
        model = variant(model, local_window=8)
    if model.padding_id is not None:
        model = variant(model, padding_id=0)  # that of the vocabulary of tests
    objective = config.objective
    if isinstance(objective, ReplacedTokens) and objective.generator.hidden_size is not None:
        generator = dataclasses.replace(objective.generator, hidden_size=SMALLER["hidden_size"])
        objective = dataclasses.replace(objective, generator=generator)
    if isinstance(objective, GloVe):
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


def with_counts(objective: GloVe, store, workdir) -> GloVe:
    """Return the objective with counts of the pairs of the store."""
    counts = workdir.with_name(f"{workdir.name}_counts")
    run_count(str(store), CountConfig(output=str(counts), held_out=0.1))
    vectors = dataclasses.replace(objective.static_vectors, counts=str(counts))
    return dataclasses.replace(objective, static_vectors=vectors)


def on_mesh(config: Config, mesh: MeshConfig, workdir) -> Config:
    """Return the same run on a mesh, without what costs time and changes no loss of training."""
    return dataclasses.replace(
        config,
        workdir=str(workdir / f"{mesh.data}{mesh.fsdp}{mesh.tensor}"),
        mesh=mesh,
        evaluation=dataclasses.replace(config.evaluation, every_steps=0),
        checkpoint=CheckpointConfig(every_steps=100, keep_best=0),
    )


def assert_same_losses(config: Config, meshes: Sequence[MeshConfig], workdir, rtol: float) -> None:
    """Check that a finished run has its losses on meshes too, up to the order of sums."""
    losses = lambda run: [row["loss"] for row in rows(run.workdir)]
    for mesh in meshes:
        split = on_mesh(config, mesh, workdir)
        pretrain(split, devices=jax.devices()[: mesh.data * mesh.fsdp * mesh.tensor])
        np.testing.assert_allclose(losses(split), losses(config), rtol=rtol, err_msg=f"{mesh}")


def assert_killed_and_resumed_exactly(whole: Config, killed: Config) -> None:
    """kill -9 at an arbitrary moment after step 13, when step 6 is saved: the save of step 12 has awaited that.

    All runs are processes alike.
    """
    changes = {
        "phases": (dataclasses.replace(whole.phases[0], steps=26),),
        "checkpoint": dataclasses.replace(whole.checkpoint, every_steps=6),
    }
    whole, killed = (dataclasses.replace(config, **changes) for config in (whole, killed))
    assert run(whole)[0] == 0
    assert run(killed, dies_after=13)[0] == -signal.SIGKILL
    assert 13 <= rows(killed.workdir)[-1]["step"] < 26
    code, output = run(killed)
    assert code == 0 and "resuming from step" in output, output
    assert rows(killed.workdir) == rows(whole.workdir) and len(rows(whole.workdir)) == 26
    assert rows(killed.workdir, "evaluation") == rows(whole.workdir, "evaluation")
