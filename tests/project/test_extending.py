"""The examples of docs/extending.md, run as they are printed there: what they add from outside the package trains."""

import pathlib
import re

import numpy as np
import one_device
import pytest

import bert_jax
from bert_jax.config import CheckpointConfig, Config, DataConfig, EvaluationConfig, ModelConfig, PhaseConfig
from bert_jax.training.sinks import read_rows

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "extending.md"
EXAMPLES = dict(
    re.findall(r"^## (.*?)\n.*?```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
)


def config(store, workdir) -> Config:
    phase = PhaseConfig(steps=8, sequence_length=32, batch_size=16, learning_rate=1e-2, warmup_steps=0)
    return Config(
        model=ModelConfig(hidden_size=16, num_layers=2, num_heads=2, max_position_embeddings=32),
        data=DataConfig(path=str(store), held_out=0.1, loader="plain"),
        workdir=str(workdir),
        log_every_steps=1,
        phases=(phase,),
        evaluation=EvaluationConfig(every_steps=8, sequences=16, batch_size=16),
        checkpoint=CheckpointConfig(every_steps=8),
    )


@pytest.mark.parametrize("name, metric", [("An objective", "smooth_loss"), ("An architecture", "mlm_loss")])
def test_the_example_trains(name, metric, small_store, tmp_path, monkeypatch):
    monkeypatch.setattr(bert_jax, "pretrain", one_device.pretrain, raising=False)
    exec(compile(EXAMPLES[name], PAGE, "exec"), {"config": config(small_store, tmp_path / "run")})
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    losses = [row[metric] for row in rows if row["kind"] == "train"]
    assert len(losses) == 8 and np.mean(losses[-2:]) < np.mean(losses[:2])
    assert [metric in row for row in rows if row["kind"] == "evaluation"] == [True]
