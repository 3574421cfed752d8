"""The architecture of docs/extending.md, run as it is printed there: from outside the package, through the public API.

Those of an objective and of a table of parameters are run by the tests of these subjects.
"""

import dataclasses
import pathlib

import numpy as np
import one_device
import pytest

import bert_jax
from bert_jax.config import CheckpointConfig, Config, DataConfig, EvaluationConfig, ModelConfig, PhaseConfig
from bert_jax.errors import UserError
from bert_jax.training.sinks import read_rows

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "extending.md"


def test_the_architecture_of_the_guide_trains(small_store, tmp_path, monkeypatch):
    code = PAGE.read_text(encoding="utf-8").split("## An architecture")[1].split("```python\n")[1].split("```")[0]
    monkeypatch.setattr(bert_jax, "pretrain", one_device.pretrain, raising=False)
    config = Config(
        model=ModelConfig(hidden_size=16, num_layers=2, num_heads=2, max_position_embeddings=32),
        data=DataConfig(path=str(small_store), held_out=0.1, loader="plain"),
        workdir=str(tmp_path / "run"),
        log_every_steps=1,
        phases=(PhaseConfig(steps=8, sequence_length=32, batch_size=16, learning_rate=1e-2, warmup_steps=0),),
        evaluation=EvaluationConfig(every_steps=8, sequences=16, batch_size=16),
        checkpoint=CheckpointConfig(every_steps=8),
    )
    exec(compile(code, PAGE, "exec"), {"config": config, "__name__": "guide"})
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    losses = [row["mlm_loss"] for row in rows if row["kind"] == "train"]
    assert len(losses) == 8 and np.mean(losses[-2:]) < np.mean(losses[:2])
    assert ["mlm_loss" in row for row in rows if row["kind"] == "evaluation"] == [True]
    _is_resumed_and_restored_as_itself_alone(code, config, tmp_path)


def _is_resumed_and_restored_as_itself_alone(code: str, config: Config, tmp_path: pathlib.Path) -> None:
    names = {"config": config, "__name__": "guide"}
    exec(compile(code, PAGE, "exec"), names)
    workdir, said = config.workdir, "holds a model of the architecture guide.local_bert, and only a BERT can be opened"
    for opened in (workdir, next(pathlib.Path(workdir, "checkpoints").glob("step_*"))):
        with pytest.raises(UserError, match=said):
            bert_jax.load(opened)
    with pytest.raises(UserError, match=said):
        one_device.run_evaluate(workdir, config)
    with pytest.raises(UserError, match=said):
        bert_jax.convert(workdir, tmp_path / "converted", to="huggingface")
    with pytest.raises(UserError, match=said):
        one_device.pretrain(dataclasses.replace(config, workdir=str(tmp_path / "next"), init_from=workdir))
    with pytest.raises(UserError, match="the architecture guide.local_bert, but this start has the default arch"):
        one_device.pretrain(config)
    assert one_device.pretrain(config, objective=names["objective"]).step == 8
