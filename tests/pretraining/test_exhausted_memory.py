"""A state or a phase that does not fit into the memory ends with advice; the phase names its remat policy."""

import dataclasses
import shutil

import jax
import pytest
from full_device import DOES_NOT_FIT, full_device
from one_device import pretrain

from bert_jax.config import Config, DataConfig, ModelConfig, PhaseConfig
from bert_jax.errors import UserError
from bert_jax.training.step import Program


def small(store, place) -> Config:
    return Config(
        model=ModelConfig(hidden_size=16, num_layers=1, num_heads=2, max_position_embeddings=32),
        data=DataConfig(path=str(store), held_out=0.1, loader="plain"),
        workdir=str(place / "run"),
        phases=(PhaseConfig(steps=2, sequence_length=32, batch_size=16),),
    )


def test_a_phase_that_does_not_fit_ends_with_advice(small_store, tmp_path, monkeypatch, capsys):
    def too_large(self, *arguments, **options):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Used 18.92G of 15.75G hbm. Exceeded hbm capacity.")

    monkeypatch.setattr(Program, "prepare", too_large)
    with pytest.raises(UserError) as raised:
        pretrain(small(small_store, tmp_path))
    said = str(raised.value)
    assert said.startswith("phase 0 does not fit into the memory of a device (the program needs 18.92 GiB, 15.75 GiB")
    assert "--compute.remat=sel or full" in said and "--phases.0.micro_batches=2" in said and "\n" not in said
    told = capsys.readouterr().out
    assert "remat: none" in told and "phase 0: attention by xla\n" in told


def test_a_first_state_that_does_not_fit_ends_with_advice(small_store, tmp_path, monkeypatch):
    monkeypatch.setattr("bert_jax.pretraining.create_state", full_device)
    with pytest.raises(
        UserError, match=f"^the state of the run {DOES_NOT_FIT}; what helps: a smaller model; chips with"
    ):
        pretrain(small(small_store, tmp_path))


def test_a_checkpoint_that_does_not_fit_is_not_taken_for_a_damaged_one(finished, tmp_path, monkeypatch):
    shutil.copytree(finished[0].workdir, tmp_path / "run")
    (phase,) = finished[0].phases
    phases = (dataclasses.replace(phase, steps=13),)
    longer = dataclasses.replace(finished[0], workdir=str(tmp_path / "run"), phases=phases)
    monkeypatch.setattr("bert_jax.checkpoints.record.placed", full_device)
    with pytest.raises(
        UserError, match=f"^the state of the run {DOES_NOT_FIT}; what helps: a smaller model; chips with"
    ):
        pretrain(longer)
    monkeypatch.undo()
    assert pretrain(longer).step == 13
    assert {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()} == {"step_000000012", "step_000000013"}


class TooLarge:
    """A jitted function for which there is no memory."""

    def lower(self, *arguments):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8597736080 bytes.")


def test_an_evaluation_that_does_not_fit_is_not_blamed_on_the_phase(small_store, tmp_path, monkeypatch):
    monkeypatch.setattr("bert_jax.training.evaluation.make_sums_step", lambda *arguments: TooLarge())
    with pytest.raises(UserError, match=r"^an evaluation batch of \d+ sequences .* a smaller --evaluation.batch_size$"):
        pretrain(small(small_store, tmp_path))
