"""Factors on attention heads, against zeros in the output projection, in models of every family."""

import copy
import dataclasses

import numpy as np
import pytest
from families_with_heads import families, model_of
from loaded_model import SMALL, loaded
from model_variants import variant
from pretrained_model import stored_model

from bert_jax.errors import UserError


def batch_of(model) -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    ids = random.integers(5, 20, (2, 9)).astype(np.int32)
    return {
        "input_ids": ids,
        "token_type_ids": np.zeros_like(ids),
        "attention_mask": (np.arange(9) < np.array([[9], [6]])).astype(np.int32),
        "masked_positions": np.array([[1, 4], [2, 5]], np.int32),
        "masked_ids": np.array([[7, 8], [9, 6]], np.int32),
    }


@pytest.mark.parametrize("family", families())
def test_a_gate_of_zero_is_a_head_whose_output_projection_is_zero(family):
    model = model_of(family)
    batch, whole = batch_of(model), None
    logits = model.mlm_logits({name: values for name, values in batch.items() if name != "masked_ids"})
    own = np.take_along_axis(logits, batch["masked_ids"][..., None], axis=-1)[..., 0]
    whole = np.log(np.exp(logits.astype(np.float64)).sum(axis=-1)) - own
    np.testing.assert_allclose(model.mlm_losses(batch), whole, atol=1e-5)
    gates = np.ones((2, 4))
    gates[1, 2] = 0.0
    if family == "albert":  # one output projection serves both layers
        gates[0, 2] = 0.0
    found = model.mlm_losses(batch, gates)
    params = copy.deepcopy(model.params)
    kernel = np.array(params["encoder"]["attention"]["output"]["kernel"])
    kernel[-1, 2] = 0.0
    params["encoder"]["attention"]["output"]["kernel"] = kernel
    model.params = params
    np.testing.assert_allclose(found, model.mlm_losses(batch), atol=1e-5)
    assert np.abs(found - whole).max() > 1e-3


def test_gates_of_another_shape_or_without_heads_are_one_line():
    with pytest.raises(UserError, match=r"head_gates has shape \(2,\) and must have .* \(2, 4\)"):
        model_of("bert").mlm_losses({}, np.ones(2))
    recurrent = loaded(stored_model(variant(dataclasses.replace(SMALL, direction="left_to_right"), layer="lstm")))
    with pytest.raises(UserError, match="recurrent .* have no heads"):
        recurrent.mlm_losses(batch_of(recurrent))
