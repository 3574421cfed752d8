"""Scripts for the few minutes that a card is there: what they measure, the steps that fit, the model that they pack."""

import io
import json
import pathlib
import sys
import tarfile

import jax
import ml_dtypes
import numpy as np
import pytest
from etils import epath
from pretrained_model import write_workdir

import bert_jax
from bert_jax.formats.opening import open_stored, place
from bert_jax.formats.safetensors_files import open_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))

import measure_on_gpu
import train_on_gpu


def test_every_step_to_measure_passes_the_checks_and_every_family_has_losses_to_compare_with():
    cases = measure_on_gpu.cases(store="")
    assert len({case.name for case in cases}) == len(cases) > 25
    for case in cases:
        kernel, _, dropout = case.kernel.partition(", ")
        assert case.config.compute.attention == kernel, case.name
        assert not (dropout and case.config.model.attention_dropout), case.name
    losses = json.loads((measure_on_gpu.ROOT / "docs" / "gpu" / "losses.json").read_text())
    assert list(losses) == list(measure_on_gpu.FAMILIES)
    assert all(measure_on_gpu.small(family).compute.dtype == "float32" for family in losses)


@pytest.mark.parametrize("rate, fitting", [(20, 3000), (19, 3000), (23, 3000), (10.05, 1025), (40.05, 3935)])
def test_steps_that_nearly_fit_are_kept_and_others_leave_time_for_a_new_start(rate, fitting):
    """150 s after the end is provided for, of which a new start takes 50: 50 + 0.97 · rate · 100 steps."""
    left = 150 + train_on_gpu.ENDING
    assert train_on_gpu.steps_that_fit(3000, 51, rate, left, 50.0) == fitting


def test_the_packed_model_is_the_exported_one_with_rounded_weights(tmp_path):
    write_workdir(tmp_path / "run", 3)
    exported, there = tmp_path / "encoder", tmp_path / "there"
    bert_jax.convert(tmp_path / "run", exported, to="huggingface")
    whole = place(open_stored(exported))
    train_on_gpu.halve(exported)
    written = open_file(epath.Path(exported / "model.safetensors"))
    assert {array.dtype for array in written.values()} == {"BF16"}
    assert "bfloat16" in (exported / "README.md").read_text()
    with tarfile.open(fileobj=io.BytesIO(train_on_gpu.pack([exported]))) as archive:
        archive.extractall(there, filter="data")
    rounded = place(open_stored(there / "encoder"))
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(rounded), strict=True):
        np.testing.assert_array_equal(one.astype(ml_dtypes.bfloat16), other)
