"""A BERT becomes a long one: more positions, local layers and a global token, by `init_from`."""

import dataclasses

import jax
import numpy as np
import pytest
from model_variants import variant
from one_device import pretrain
from small_pretraining import MODEL, rows, run_config

import bert_jax
from bert_jax.config import ComputeConfig, PhaseConfig
from bert_jax.devices import sharding
from bert_jax.training.learner import attention_of

LONG = variant(
    dataclasses.replace(MODEL, max_position_embeddings=256), local_window=16, global_every=0, global_tokens=1
)


@pytest.mark.slow
def test_a_bert_becomes_a_long_one(finished, small_store, tmp_path):
    """With hardly a step between them: texts within the window have the same states, others are read at all."""
    short = finished[0].workdir
    phase = PhaseConfig(steps=2, sequence_length=256, batch_size=4, learning_rate=1e-9, warmup_steps=0)
    long = run_config(small_store, tmp_path / "long", model=LONG, phases=(phase,), init_from=short)
    pretrain(long)
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
