"""NeoBERT, of which transformers has no class: against NumPy, and by the names and numbers of the published model."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import numpy_neobert
import pytest
import safetensors.numpy
from etils import epath
from huggingface_directory import exported, refusal
from small_model import FLOAT32, compiled

import bert_jax
from bert_jax.formats.huggingface import name_table, open_huggingface, read_config
from bert_jax.formats.model_types import MODEL_TYPES
from bert_jax.formats.opening import place
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.task import BertForTask

MASK = np.arange(14) < np.array([14, 9, 5])[:, None]
IDS = np.where(MASK, np.random.RandomState(8).randint(5, 41, MASK.shape), 0).astype(np.int32)
BATCH = {"input_ids": IDS, "token_type_ids": IDS * 0, "attention_mask": MASK.astype(np.int32)}
PUBLISHED = dict(norm_eps=1e-5, max_length=4_096)


def double(state):
    return {name: values.astype(np.float64) for name, values in state.items()}


@pytest.mark.parametrize("labels", [0, 3])
def test_outputs_and_gradients_are_those_of_numpy(tmp_path, labels):
    """A derivative along a random direction in their arrays is a quotient of differences in float64."""
    state = numpy_neobert.arrays(labels)
    named = {"id2label": {str(number): f"class {number}" for number in range(labels)}} if labels else {}
    architecture = "NeoBERTForSequenceClassification" if labels else "NeoBERTLMHead"
    theirs = numpy_neobert.save(tmp_path / "theirs", state, architectures=[architecture], **named)
    stored = open_huggingface(theirs)
    assert stored.ignored == () and (stored.head is not None) == bool(labels)

    def loss(params):
        if labels:
            found = BertForTask(stored.model, stored.head, FLOAT32).apply(params, BATCH)
            return jnp.sum(jnp.sin(found)), found
        found = BertForPreTraining(stored.model, FLOAT32, ("mlm",)).mlm_logits(params, BATCH)
        return jnp.sum(jnp.sin(found) * MASK[:, :, None]), found

    (_, found), gradient = compiled(jax.value_and_grad(loss, has_aux=True))(place(stored))
    expected, real = numpy_neobert.logits(double(state), IDS, MASK), slice(None) if labels else MASK
    np.testing.assert_allclose(found[real], expected[real], atol=3e-5)
    written, random = exported(stored, tmp_path / "gradient", gradient), np.random.RandomState(3)
    assert written.keys() == state.keys()
    along = {name: random.randn(*values.shape) for name, values in state.items()}

    def moved(step: float) -> float:
        there = {name: values + step * along[name] for name, values in double(state).items()}
        return float(np.sin(numpy_neobert.logits(there, IDS, MASK))[real].sum())

    slope = sum(float((along[name] * written[name]).sum()) for name in state)
    np.testing.assert_allclose(slope, (moved(1e-6) - moved(-1e-6)) / 2e-6, rtol=2e-4)


def test_states_and_attentions_are_those_of_numpy(tmp_path):
    state = numpy_neobert.arrays()
    model = bert_jax.load(numpy_neobert.save(tmp_path / "theirs", state))
    found = model.encode_ids(IDS, BATCH["attention_mask"], attentions=True)
    states, maps = numpy_neobert.states(double(state), IDS, MASK)
    for values, expected in zip(found.hidden_states, states, strict=True):
        np.testing.assert_allclose(values[MASK], expected[MASK], atol=2e-5, rtol=1e-5)
    for values, expected in zip(found.attentions, maps, strict=True):
        np.testing.assert_allclose(np.swapaxes(values, 1, 2)[MASK], np.swapaxes(expected, 1, 2)[MASK], atol=5e-6)


@pytest.mark.parametrize("labels", [0, 2])
def test_what_was_read_is_written_with_the_same_names_and_bits(tmp_path, labels):
    state = numpy_neobert.arrays(labels)
    architecture = "NeoBERTForSequenceClassification" if labels else "NeoBERTLMHead"
    theirs = numpy_neobert.save(tmp_path / "theirs", state, architectures=[architecture], **PUBLISHED)
    bert_jax.convert(theirs, tmp_path / "ours", to="bert_jax")
    bert_jax.convert(tmp_path / "ours", tmp_path / "back", to="huggingface")
    back = safetensors.numpy.load_file(tmp_path / "back" / "model.safetensors")
    assert back.keys() == state.keys()
    for name, values in state.items():
        np.testing.assert_array_equal(back[name], values, err_msg=name)
    written, given = json.loads((tmp_path / "back" / "config.json").read_text()), numpy_neobert.CONFIG | PUBLISHED
    del given["intermediate_size"]  # of several that round to the same width, it is the least
    assert {key: written[key] for key in given} == given | {"architectures": [architecture]}
    assert open_huggingface(tmp_path / "back").model == open_huggingface(theirs).model
    files = {"AutoModelForMaskedLM": "NeoBERTLMHead", "AutoModel": "NeoBERT"}
    assert {key: written["auto_map"][key] for key in files} == {
        key: f"chandar-lab/NeoBERT--model.{name}" for key, name in files.items()
    }
    assert 'from_pretrained("PATH", trust_remote_code=True)' in (tmp_path / "back" / "README.md").read_text()


def test_names_and_shapes_are_those_of_the_published_model(tmp_path):
    """172 arrays and 245,136,954 parameters of them, of which the word table and the head's are not one."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "neobert", **PUBLISHED}))
    found = read_config(epath.Path(tmp_path))
    assert (found.model.max_position_embeddings, found.model.layer_norm_epsilon) == (4_096, 1e-5)
    shapes = {}
    for each in name_table(found.model, None, MODEL_TYPES["neobert"]).values():
        for name in each.names:
            whole, _, part = name.partition(":")
            name = f"{whole}.weight" if part else whole
            rows, *rest = each.their_shape
            shapes[name] = (rows + shapes.get(name, (0,))[0], *rest)
    assert len(shapes) == 172
    layer = "model.transformer_encoder.27"
    assert {name: shapes[name] for name in shapes if layer in name} == {
        f"{layer}.attention_norm.weight": (768,),
        f"{layer}.ffn.w12.weight": (4_096, 768),
        f"{layer}.ffn.w3.weight": (768, 2_048),
        f"{layer}.ffn_norm.weight": (768,),
        f"{layer}.qkv.weight": (2_304, 768),
        f"{layer}.wo.weight": (768, 768),
    }
    assert (shapes["decoder.weight"], shapes["decoder.bias"]) == ((30_522, 768), (30_522,))
    assert sum(int(np.prod(shape)) for shape in shapes.values()) == 245_136_954


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"ngpt": True}, "ngpt=True"),
        ({"rms_norm": False}, "rms_norm=False"),
        ({"rope": False}, "rope=False"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"num_attention_heads": 8}, "heads of 3 features"),
        ({"intermediate_size": 40}, r"ffn.w12:0.weight is \[24, 24\] where \[32, 24\] is expected"),
    ],
)
def test_what_neobert_has_not_here_is_refused(tmp_path, changes, message):
    assert re.search(message, refusal(numpy_neobert.save(tmp_path / "theirs", numpy_neobert.arrays(), **changes)))
