"""A pre-training run of seconds, and what it logged."""

import dataclasses
import pathlib

from bert_jax.config import (
    CheckpointConfig,
    ComputeConfig,
    Config,
    DataConfig,
    EvaluationConfig,
    ModelConfig,
    PhaseConfig,
)
from bert_jax.training.metrics import read_rows

MODEL = ModelConfig(hidden_size=32, num_layers=2, num_heads=2, max_position_embeddings=64)
SCANNED = ComputeConfig(layers="scan")
"""Two layers in a scan compile in half the time of two that are unrolled, which is what a run of users has."""


TIMES = {"steps_per_second", "sequences_per_second", "tokens_per_second", "token_share", "seconds_left", "mfu"} | {
    f"host_input_seconds_{statistic}" for statistic in ("median", "p90", "max")
}


def run_config(store, workdir, **changes) -> Config:
    base = Config(
        model=MODEL,
        compute=SCANNED,
        data=DataConfig(path=str(store), held_out=0.1, loader="plain"),
        workdir=str(workdir),
        log_every_steps=1,
        phases=(PhaseConfig(steps=12, sequence_length=32, batch_size=16, learning_rate=1e-3, warmup_steps=2),),
        evaluation=EvaluationConfig(every_steps=6, sequences=64, batch_size=32),
        checkpoint=CheckpointConfig(every_steps=4, keep_last=2),
    )
    return dataclasses.replace(base, **changes)


def nothing_held_out(store) -> DataConfig:
    """For runs whose rows of training are what counts: an evaluation is one more program to compile per mesh."""
    return DataConfig(path=str(store), held_out=0.0, loader="plain")


def rows(workdir, kind="train"):
    """What was logged, without the clock's share of it."""
    return [
        {name: value for name, value in row.items() if name not in TIMES}
        for row in read_rows(pathlib.Path(workdir) / "metrics.jsonl")
        if row["kind"] == kind
    ]
