"""BERT's heads, and ALBERT, DistilBERT and ELECTRA directories: smaller_encoders_oracle.npz is of transformers."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import oracle_directory
import pytest
import random_smaller_encoders as drawn
import safetensors.numpy
from drawn_values import value
from huggingface_directory import exported

import bert_jax
from bert_jax.config import ComputeConfig
from bert_jax.errors import UserError
from bert_jax.formats.huggingface import open_huggingface
from bert_jax.formats.opening import place
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.task import BertForTask

ORACLE = np.load(pathlib.Path(__file__).parents[1] / "oracles" / "smaller_encoders_oracle.npz")
FLOAT32 = ComputeConfig(dtype="float32")
FIRST = ("bert", "albert", "distilbert", "electra")
CASES = [
    pytest.param(*case, marks=() if case[0] in FIRST and case[1] != "Regression" else pytest.mark.slow)
    for case in drawn.CASES
]
ZERO = ("key.bias", "k_lin.bias")
"""Ends of the names of parameters whose gradients are zero in exact arithmetic."""
WITH_GRADIENTS = [
    pytest.param(*case, marks=() if case[0] in FIRST and drawn.is_whole(*case) else pytest.mark.slow)
    for case in drawn.CASES
]


def write(directory: pathlib.Path, size: str, task: str, **config) -> pathlib.Path:
    """The class as transformers would have saved it."""
    directory.mkdir(parents=True)
    shapes = json.loads(str(ORACLE[f"{size}/{task}/shapes"]))
    state = {name: value(size, name, tuple(shape)) for name, shape in shapes.items()}
    safetensors.numpy.save_file(state, directory / "model.safetensors", {"format": "pt"})
    (directory / "config.json").write_text(json.dumps(drawn.config_json(size, task) | config))
    return directory


def logits(stored, params, batch) -> dict[str, jax.Array]:
    """What transformers calls so, at every position; of a bare encoder its states, and what it pools."""
    if stored.head is not None and stored.head.kind == "choice":
        batch = {name: values[None] for name, values in batch.items()}
    if stored.head is not None:
        return {"logits": jax.jit(BertForTask(stored.model, stored.head, FLOAT32).apply)(params, batch)}
    model = BertForPreTraining(stored.model, FLOAT32, stored.parts)
    if "replaced_tokens" in stored.parts:
        return {"logits": jax.jit(model.replaced_token_logits)(params, batch)}
    rows, length = batch["input_ids"].shape
    everywhere = batch | {"masked_positions": jnp.broadcast_to(jnp.arange(length), (rows, length))}
    words = {"logits": jax.jit(model.mlm_logits)(params, everywhere)} if "mlm" in stored.parts else {}
    if "next_sentence" in stored.parts:
        return words | {"pair_logits" if words else "logits": jax.jit(model.next_sentence_logits)(params, batch)}
    if words:
        return words
    inputs = [batch[name] for name in ("input_ids", "token_type_ids", "attention_mask")]
    encoded = jax.jit(model.encode)(params, *inputs)
    found = {"logits": encoded.last_hidden_state, "pooled": encoded.pooled}
    return {name: values for name, values in found.items() if values is not None}


@pytest.mark.parametrize("size, task", CASES)
def test_logits_of_every_class_are_those_of_transformers(tmp_path, size, task):
    stored, batch = open_huggingface(write(tmp_path / "model", size, task)), drawn.batch(size)
    assert not stored.ignored
    real = batch["attention_mask"].astype(bool)
    for name, found in logits(stored, place(stored), batch).items():
        expected = ORACLE[f"{size}/{task}/{name}"]
        rows = real if found.shape[:2] == real.shape else slice(None)
        np.testing.assert_allclose(np.asarray(found)[rows], expected.reshape(found.shape)[rows], atol=2e-5)


@pytest.mark.parametrize("size, task", [case for case in CASES if case.values in drawn.WITH_STATES])
def test_states_and_attentions_of_every_layer_are_those_of_transformers(tmp_path, size, task):
    model, batch = bert_jax.load(write(tmp_path / "model", size, task)), drawn.batch(size)
    types = None if size.startswith("distilbert") else batch["token_type_ids"]
    found = model.encode_ids(batch["input_ids"], batch["attention_mask"], types, attentions=True)
    real = batch["attention_mask"].astype(bool)
    assert len(found.hidden_states) == len(model.layers) + 1
    for index, state in enumerate(found.hidden_states):
        expected = ORACLE[f"{size}/{task}/hidden_states/{index}"]
        np.testing.assert_allclose(state[real], expected[real], atol=2e-5)
    for index, maps in enumerate(found.attentions):
        expected = ORACLE[f"{size}/{task}/attentions/{index}"]
        np.testing.assert_allclose(np.moveaxis(maps, 1, 2)[real], np.moveaxis(expected, 1, 2)[real], atol=2e-5)


@pytest.mark.parametrize("size, task", WITH_GRADIENTS)
def test_gradients_are_those_of_torch(tmp_path, size, task):
    stored, batch = open_huggingface(write(tmp_path / "model", size, task)), drawn.batch(size)

    def total(params):
        found = logits(stored, params, batch).values()
        return sum(jnp.sum(each * drawn.weights(size, each.shape)) for each in found)

    gradients = exported(stored, tmp_path / "gradients", jax.jit(jax.grad(total))(place(stored)))
    if not drawn.is_whole(size, task):
        oracle_directory.check_gradients(gradients, ORACLE[f"{size}/{task}/gradients"], zero=ZERO)
        return
    for name, values in gradients.items():
        expected = ORACLE[f"{size}/{task}/gradients/{name}"]
        scale = 1 if name.endswith(ZERO) else np.abs(expected).max()
        np.testing.assert_allclose(values, expected, atol=1e-4 * scale, err_msg=name)


@pytest.mark.parametrize("size, task", CASES)
def test_export_has_the_names_and_values_it_was_read_from(tmp_path, size, task):
    source, out = write(tmp_path / "model", size, task), tmp_path / "out"
    bert_jax.convert(source, tmp_path / "ours", to="bert_jax")
    bert_jax.convert(tmp_path / "ours", out, to="huggingface")
    original = safetensors.numpy.load_file(source / "model.safetensors")
    written = safetensors.numpy.load_file(out / "model.safetensors")
    assert set(written) == set(original)
    for name, values in original.items():
        np.testing.assert_array_equal(written[name], values, err_msg=name)
    config, given = json.loads((out / "config.json").read_text()), drawn.config_json(size, task)
    assert {key: config[key] for key in given} == given


REFUSED = {
    "groups": ("albert", dict(num_hidden_groups=2), "num_hidden_groups=2 of 3 layers"),
    "inner groups": ("albert", dict(inner_group_num=2), "inner_group_num=2"),
    "width": ("electra", dict(embedding_size=None), "embedding_size=None"),
    "activation": ("electra", dict(hidden_act="relu"), "hidden_act='relu'"),
    "layers": ("distilbert", dict(n_layers=3), "2 layers"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_expressed_is_refused_by_name(tmp_path, name):
    size, config, message = REFUSED[name]
    with pytest.raises(UserError, match=message):
        open_huggingface(write(tmp_path / "model", size, "MaskedLM", **config))
