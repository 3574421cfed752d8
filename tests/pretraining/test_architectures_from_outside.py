"""An architecture defined outside the package trains through `pretrain`, is evaluated and saved."""

import dataclasses
import functools
import pathlib

import numpy as np
import pytest
from local_block import LocalBlock
from one_device import pretrain

from bert_jax.checkpoints.record import read_record
from bert_jax.config import CheckpointConfig, Config, DataConfig, EvaluationConfig, ModelConfig, PhaseConfig
from bert_jax.models.architecture import Architecture, bert_architecture
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.block import FeedForward
from bert_jax.models.layers import gelu_tanh
from bert_jax.objectives.choice import default_objective
from bert_jax.training.metrics import read_rows


def architecture(config, compute) -> Architecture:
    """Three layers with two sets of parameters, of which the second sees four tokens to each side."""
    usual = bert_architecture(config, compute)
    feed_forward = functools.partial(FeedForward, config, activation=gelu_tanh)
    stack = dataclasses.replace(
        usual.stack,
        block=functools.partial(LocalBlock, config, feed_forward=feed_forward),
        sharing=(0, 1, 0),
        layer_inputs={"window": np.array([32, 4, 32])},
    )

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
    result = pretrain(config, objective=objective)
    losses = [row["mlm_loss"] for row in read_rows(tmp_path / "run" / "metrics.jsonl") if row["kind"] == "train"]
    assert len(losses) == 12 and losses[-1] < losses[0] - 0.1 and result.evaluation["mlm_loss"] < losses[0]
    (newest,) = pathlib.Path(config.workdir, "checkpoints").glob("step_*12")
    arrays = read_record(newest / "record")["arrays"]
    assert arrays["params/encoder/attention/query/kernel"]["shape"] == [2, 16, 2, 8]
