"""A phase that does not fit into the memory ends with advice, and is announced with its remat policy."""

import jax
import pytest
from one_device import pretrain

from bert_jax.config import Config, DataConfig, ModelConfig, PhaseConfig
from bert_jax.errors import UserError
from bert_jax.training.program import Program


def test_a_phase_that_does_not_fit_ends_with_advice(small_store, tmp_path, monkeypatch, capsys):
    def too_large(self, *arguments, **options):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Used 18.92G of 15.75G hbm. Exceeded hbm capacity.")

    monkeypatch.setattr(Program, "prepare", too_large)
    config = Config(
        model=ModelConfig(hidden_size=16, num_layers=1, num_heads=2, max_position_embeddings=32),
        data=DataConfig(path=str(small_store), held_out=0.1, loader="plain"),
        workdir=str(tmp_path / "run"),
        phases=(PhaseConfig(steps=2, sequence_length=32, batch_size=16),),
    )
    with pytest.raises(UserError) as raised:
        pretrain(config)
    said = str(raised.value)
    assert said.startswith("phase 0 does not fit into the memory of a device (the program needs 18.92 GiB, 15.75 GiB")
    assert "--compute.remat=sel or full" in said and "--phases.0.micro_batches=2" in said and "\n" not in said
    told = capsys.readouterr().out
    assert "remat: none" in told and "phase 0: attention by xla\n" in told
