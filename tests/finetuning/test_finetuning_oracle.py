"""Twenty steps of fine-tuning give the losses of torch and transformers: same weights, order, hyper-parameters.

The live test runs where they are installed, or with the Python that BERT_JAX_PEER names.
"""

import dataclasses
import importlib.util
import os
import subprocess
import sys

import jax
import numpy as np
import pytest
import random_bert
from oracles import make_finetuning_oracle as oracle
from small_pretraining import SCANNED

from bert_jax.config import HeadConfig, MeshConfig, ModelConfig, OptimizerConfig, ScheduleConfig
from bert_jax.config.finetuning import FinetuneConfig
from bert_jax.data import sequences
from bert_jax.data.sequences import Features, SharedRowBatches
from bert_jax.devices import sharding
from bert_jax.finetuning.plan import Run, learning_rates
from bert_jax.finetuning.programs import make_programs
from bert_jax.training.state import TrainState

HEAD = HeadConfig(labels=("no", "yes"), dropout=0.0)


@pytest.fixture(scope="module", params=["own_rows", "shared_rows"])
def ours(request):
    """Losses of every step and the final logits of the first batch, through the code that `finetune` runs."""
    config = FinetuneConfig(
        dropout=0.0,
        compute=dataclasses.replace(SCANNED, dtype="float32"),
        optimizer=OptimizerConfig(epsilon=oracle.EPSILON, weight_decay=oracle.DECAY, clip_norm=oracle.CLIP),
    )
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:1])
    programs = make_programs(config, ModelConfig(**oracle.SIZES, activation="gelu_erf"), HEAD, mesh)
    flat = random_bert.draw_parameters(oracle.SIZES) | oracle.draw_head()
    params = jax.tree.map_with_path(
        lambda path, leaf: jax.device_put(flat["/".join(key.key for key in path)], leaf.sharding),
        programs.abstract.params,
    )
    state = programs.fresh_state(np.uint32(0))
    state = TrainState(step=state.step, params=params, optimizer_state=state.optimizer_state)
    ids, types, labels = oracle.draw_pairs()
    features = Features(ids, types, labels, np.arange(len(ids)), oracle.SIZES["max_position_embeddings"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequences, "permute", lambda indices, *_: indices)
        plain = sequences.TrainingBatches(features, oracle.BATCH)
        shared = SharedRowBatches(features, oracle.BATCH, features.max_length)
        batches = plain if request.param == "own_rows" else shared
        steps = oracle.EPOCHS * batches.steps_per_epoch
        rates = learning_rates(
            Run(oracle.BATCH, oracle.RATE, oracle.EPOCHS, 0),
            ScheduleConfig(name="linear_after_warmup"),
            oracle.WARMUP / steps,
            steps,
        )
        losses = []
        for step in range(steps):
            state, values = programs.train_step(
                state, *jax.device_put((batches.batch(step), rates[step], np.uint32(0)))
            )
            losses.append(float(values["loss"]))
        first = {name: value for name, value in plain.batch(0).items() if name not in ("labels", "weights")}
    return np.array(losses), np.asarray(programs.predict_step(state.params, jax.device_put(first))), programs


def check(ours, path) -> None:
    losses, logits, _ = ours
    with np.load(path) as stored:
        # Float32 against float64, over 20 updates that Adam divides by their own size. The distance is 1.4e-6 and
        # 2.3e-6; without weight decay it would be 1.7e-5 and 1.6e-4, with the gradient clipped at 0.999 5.6e-6 and
        # 2.8e-5.
        np.testing.assert_allclose(losses, stored["losses"], rtol=0, atol=4e-6)
        np.testing.assert_allclose(logits, stored["logits"], rtol=0, atol=1e-5)
        assert stored["losses"].max() - stored["losses"].min() > 0.3  # a curve that moves, or it would show nothing


def test_the_loss_curve_of_torch_and_transformers(ours):
    check(ours, oracle.PATH)
    shapes = {shape for compiled in ours[2].train_step.compiled for name, shape, _ in compiled if name == "input_ids"}
    assert len({length for _, length in shapes}) <= len(sequences.ladder(20)) == 3


def test_the_loss_curve_of_this_torch(ours, tmp_path):
    peer = os.environ.get("BERT_JAX_PEER") or (sys.executable if importlib.util.find_spec("torch") else None)
    if not peer:
        pytest.skip("neither torch here nor BERT_JAX_PEER")
    subprocess.run([peer, oracle.__file__, str(tmp_path / "oracle.npz")], check=True, capture_output=True)
    check(ours, tmp_path / "oracle.npz")
