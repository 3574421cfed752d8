"""Every model type of transformers: its numbers, its names in both directions, what is refused.

Oracles of oracles/ have what transformers computes of small models of each class, which support/recorded_models.py
draws again. Ids begin with the name of the oracle: that of smaller_encoders has BERT, ALBERT, DistilBERT and ELECTRA.
"""

import dataclasses
import json
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import recorded_models
import safetensors.numpy
from huggingface_directory import exported, refusal
from model_type_exports import FORMS, cases, make
from model_variants import variant
from modern_models import FIRST, MODERN, THIRD
from pretrained_model import CONFIG, stored_model, whole
from processes import EXHAUSTIVE
from recorded_models import CASES, Case, check_gradients
from small_model import FLOAT32, compiled

import bert_jax
from bert_jax.config import HeadConfig
from bert_jax.config.presets import roberta_config, xlnet_config
from bert_jax.errors import UserError
from bert_jax.formats.huggingface import open_huggingface
from bert_jax.formats.huggingface_export import write_huggingface
from bert_jax.formats.model_types import MODEL_TYPES, obstacles, remark, type_to_write
from bert_jax.formats.opening import place
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.task import BertForTask
from bert_jax.models.xlnet import Permutation

FILE = "model.safetensors"
OTHER_HEAD = {
    "lm_predictions.lm_head.dense": "cls.predictions.transform.dense",
    "lm_predictions.lm_head.LayerNorm": "cls.predictions.transform.LayerNorm",
    "lm_predictions.lm_head": "cls.predictions",
}


def written_as(name: str) -> str:
    """The name of an array where the word head of DeBERTa has its older names, which we write."""
    module, _, leaf = name.rpartition(".")
    return f"{OTHER_HEAD[module]}.{leaf}" if module in OTHER_HEAD else name


def listed(quick, chosen=lambda case: True) -> list:
    """The cases that are chosen, slow unless they are quick."""
    return [
        pytest.param(case, id=case.id, marks=() if quick(case) else pytest.mark.slow)
        for case in CASES.values()
        if chosen(case)
    ]


def has_states(case: Case) -> bool:
    """Whether the oracle has the states and attentions of every layer."""
    return case.has("states/0") or case.has("hidden_states/0")


def outputs(stored, case: Case):
    """The function of parameters that returns what transformers returns, by name, and what the encoder does.

    Logits are those at every position, or of every target, and of a bare encoder its states.
    """
    batch = case.inputs()
    inputs = [batch[name] for name in ("input_ids", "token_type_ids", "attention_mask")]
    if stored.head is not None:
        network = BertForTask(stored.model, stored.head, FLOAT32)
        asked = case.asked(batch)
        encode = network.encode if has_states(case) else lambda *_, collect: None
        return lambda p: ({"logits": network.apply(p, asked)}, encode(p, *inputs, collect=True))
    model, permutation = BertForPreTraining(stored.model, FLOAT32, stored.parts), None
    rows, length = case.mask.shape
    places = np.tile(np.arange(length, dtype=np.int32), (rows, 1))
    if case.targets:
        given = recorded_models.orders(case)
        permutation = Permutation(given["order"], given["targets"])
        places = length + places[:, : given["targets"].shape[1]]

    def of(params):
        encoded = model.encode(params, *inputs, collect=True, permutation=permutation)
        if "replaced_tokens" in stored.parts:
            return {"logits": model.replaced_token_logits(params, batch, encoded)}, encoded
        found = {}
        if "mlm" in stored.parts:
            found["logits"] = model.mlm_logits(params, {"masked_positions": places}, encoded)
        if "next_sentence" in stored.parts:
            name = "pair_logits" if found else "logits"
            return found | {name: model.next_sentence_logits(params, batch, encoded)}, encoded
        if found:
            return found, encoded
        pooled = {} if encoded.pooled is None else {"pooled": encoded.pooled}
        return {"logits": encoded.last_hidden_state} | pooled, encoded

    return of


def check_layers(case: Case, states, attentions) -> None:
    """Compare the states and attentions of all layers, at real tokens and at targets, with those recorded."""
    length, real = case.mask.shape[1], case.mask
    recorded = case.numbered("states") or case.numbered("hidden_states")
    for state, expected in zip(states, recorded, strict=True):
        wanted = expected[real] if expected.ndim > 2 else expected
        np.testing.assert_allclose(state[:, :length][real], wanted, atol=2e-5)
    for maps, expected in zip(attentions, case.numbered("attentions"), strict=True):
        rows, expected = (np.moveaxis(each, 1, 2)[real] for each in (maps[:, :, :length], expected))
        np.testing.assert_allclose(rows, expected, atol=2e-5)
    if case.targets:
        for state, expected in zip(states, case.numbered("targets"), strict=True):
            np.testing.assert_allclose(state[:, length:], expected, atol=2e-5)
        for maps, expected in zip(attentions, case.numbered("target_attentions"), strict=True):
            np.testing.assert_allclose(maps[:, :, length:], expected, atol=2e-5)


def check_outputs(case: Case, found: dict, encoded) -> None:
    assert [name for name in ("logits", "pair_logits", "pooled") if case.has(name)] == list(found)
    for name, values in found.items():
        expected = case.stored(name)
        if expected.shape[:1] == (case.mask.sum(),):  # at real tokens only
            values = values[case.mask]
        else:
            rows = case.defined(values.shape)
            values, expected = values[rows], expected.reshape(values.shape)[rows]
        np.testing.assert_allclose(values, expected.reshape(values.shape), atol=2e-5, err_msg=name)
    if has_states(case):
        states = encoded.hidden_states
        # Those of a ModernBERT and a EuroBERT end with the last norm.
        normed = case.oracle.startswith(("modernbert", "eurobert"))
        states = (*states[:-1], encoded.last_hidden_state) if normed else states
        check_layers(case, states, encoded.attentions)


def total(case: Case, found: dict[str, jax.Array]) -> jax.Array:
    """The number whose gradients an oracle has."""
    if case.oracle == "smaller_encoders":
        return sum(jnp.sum(values * case.weights(values.shape)) for values in found.values())
    return jnp.sum(jnp.sin(found["logits"][case.defined(found["logits"].shape)]))


QUICK = {  # with gradients: those with a way of their own back, and one of each kind of layer
    "roberta": (),  # test_model_type_options.py
    "smaller_encoders": ("albert/PreTraining",),
    "deberta": ("convolved texts",),  # of its words: test_replaced_tokens.py
    "modernbert": ("words",),  # the layers of a ModernBERT decoder, a Nomic BERT and a EuroBERT are of its parts
    "modernbert_decoder": (),
    "nomic_bert": (),
    "eurobert": (),
    "mpnet": (),
    "xlnet": ("orders",),  # both streams
}
FORWARD = {  # without
    "roberta": tuple(
        f"odd/RobertaFor{task}"
        for task in ("SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice")
    ),
    "deberta": ("first", "second", "third", "convolved"),
    "modernbert": ("mean", "first", "tags", "yarn"),
    "modernbert_decoder": ("words", "every option"),
    "nomic_bert": ("words", "texts", "dynamic"),
    "eurobert": ("words", "texts", "dynamic", "yarn"),
    "mpnet": ("words",),
    "xlnet": ("texts", "choices"),  # both sides of padding; the other heads take as long
}
FIRST_SIZES = ("bert", "albert", "distilbert", "electra")


def is_quick(case: Case) -> bool:
    return case.name in QUICK[case.oracle]


def is_forward(case: Case) -> bool:
    """Whether its outputs alone are compared, its gradients by a slow test."""
    if case.oracle == "smaller_encoders":
        same_heads = case.name.startswith(("albert", "distilbert")) and case.name.endswith(
            ("MultipleChoice", "TokenClassification", "QuestionAnswering")
        )
        return is_first(case) and not is_quick(case) and not same_heads
    return case.name in FORWARD[case.oracle]


def is_first(case: Case) -> bool:
    """Whether it is of the first size of a type, with a head that no other case has."""
    return case.name.split("/")[0] in FIRST_SIZES and not case.name.endswith("Regression")


def other_gradients(case: Case) -> bool:
    """Of a RobertaModel there are none, and test_model_type_options.py has those of a RobertaForMaskedLM."""
    return case.oracle == "roberta" and case.of_class in ("RobertaModel", "RobertaForMaskedLM")


def is_alike(case: Case) -> bool:
    """Whether its encoder is that of another case, and its head is too, which is of the same kind in every size."""
    form, _, head = case.name.rpartition("/")
    if form == "segments" or case.oracle == "smaller_encoders" and form not in FIRST_SIZES:
        return head not in ("MaskedLM", "RobertaForSequenceClassification")
    others = case.name.startswith("other") and "words" not in case.name
    return others or head.startswith("score") or head.endswith("Regression")


def has_gradients(case: Case) -> bool:
    """Whether its gradients are compared: with BERT_JAX_EXHAUSTIVE=1 those of all."""
    return not other_gradients(case) and (EXHAUSTIVE or is_quick(case) or not is_alike(case))


@pytest.mark.parametrize("case", listed(is_quick, has_gradients))
def test_states_attentions_logits_and_gradients_are_those_of_transformers(tmp_path, case):
    stored = open_huggingface(case.save(tmp_path / "theirs"))
    of = outputs(stored, case)

    def loss(params):
        found, encoded = of(params)
        return total(case, found), (found, encoded)

    (_, (found, encoded)), gradient = compiled(jax.value_and_grad(loss, has_aux=True))(place(stored))
    check_outputs(case, found, encoded)
    written = exported(stored, tmp_path / "gradients", gradient)
    names = json.loads(str(case.stored("shapes")))
    assert written.keys() == set(map(written_as, names))
    gradients = {name: written[written_as(name)] for name in names}
    if case.has("gradients"):
        check_gradients(gradients, case.stored("gradients"))
        return
    for name, values in gradients.items():
        expected = case.stored(f"gradients/{name}")
        scale = 1 if name.endswith(recorded_models.ZERO) else np.abs(expected).max()
        np.testing.assert_allclose(values, expected, atol=1e-4 * scale, err_msg=name)


@pytest.mark.parametrize("case", listed(is_forward, is_forward))
def test_states_attentions_and_logits_of_further_classes_are_those_of_transformers(tmp_path, case):
    """Without gradients, whose test is slow."""
    stored = open_huggingface(case.save(tmp_path / "theirs"))
    check_outputs(case, *compiled(outputs(stored, case))(place(stored)))


FIRST_OF_ROWS = ("roberta/odd/RobertaModel", "smaller_encoders/bert/MaskedLM", "smaller_encoders/albert/Model")
ROWS_OF_IDS = (
    "deberta/third",
    "deberta/convolved",
    "deberta/first",
    "modernbert/words",
    "nomic_bert/words",
    "eurobert/words",
    "xlnet/words",
    "mpnet/words",
)


ROWS_OF_OTHERS = ("deberta/first", "nomic_bert/words", "eurobert/words")
"""Their layers are of the parts of those above; their states are compared without `encode_ids` too."""


@pytest.mark.parametrize(
    "case",
    listed(
        lambda case: case.id in FIRST_OF_ROWS or case.id in ROWS_OF_IDS and case.id not in ROWS_OF_OTHERS,
        lambda case: case.id in ROWS_OF_IDS or case.oracle in ("roberta", "smaller_encoders") and has_states(case),
    ),
)
def test_rows_of_ids_have_the_states_and_attentions_of_transformers(tmp_path, case):
    model, given = bert_jax.load(case.save(tmp_path / "theirs")), case.inputs()
    ids, types, mask = given["input_ids"], given["token_type_ids"], given["attention_mask"]
    types = types if model.config.type_vocab_size else None
    found = model.encode_ids(ids, mask, types, attentions=True)
    assert len(found.hidden_states) == model.config.num_layers + 1
    check_layers(case, found.hidden_states, found.attentions)
    np.testing.assert_array_equal(found.last_hidden_state, found.hidden_states[-1])
    if case.oracle == "roberta":
        np.testing.assert_allclose(found.pooled[:3], case.stored("pooled")[:3], atol=2e-5)
    for layer in model.layers if case.oracle == "mpnet" else ():  # each by itself has the table of all
        table = case.state()["mpnet.encoder.relative_attention_bias.weight"]
        np.testing.assert_array_equal(layer.params["relative_bias"]["table"], table)
    if case.name == "convolved":  # a layer alone, and the one with a convolution
        for number in (0, 2):
            alone = compiled(lambda state, layer=model.layers[number]: layer(state, mask))
            state = alone(found.hidden_states[number])
            np.testing.assert_allclose(state[case.mask], case.stored(f"states/{number + 1}"), atol=2e-5)
    if case.oracle == "modernbert":
        for layers, index in (("last", -1), ([1, 0], 1)):
            states = model.encode_ids(ids, mask, layers=layers, attentions=True).hidden_states
            np.testing.assert_array_equal(states[0], found.hidden_states[index])


SAID = {  # what config.json says on both sides; of other oracles all that is given
    "deberta": (
        *("model_type", "architectures", "position_biased_input", "position_buckets", "share_att_key"),
        *("norm_rel_ebd", "pos_att_type", "type_vocab_size", "pooler_hidden_act", "layer_norm_eps"),
        *("conv_kernel_size", "conv_act"),
    ),
    "modernbert": ("model_type", "architectures", "layer_types", "norm_bias", "attention_bias", "classifier_pooling"),
    "modernbert_decoder": (
        "model_type",
        "architectures",
        "layer_types",
        "norm_bias",
        "attention_bias",
        "local_attention",
    ),
    "nomic_bert": (
        *("model_type", "architectures", "hidden_act", "layer_norm_eps", "rope_parameters", "head_dim"),
        *("type_vocab_size", "hidden_dropout_prob", "intermediate_size", "max_position_embeddings"),
    ),
    "eurobert": (
        *("model_type", "architectures", "hidden_act", "rms_norm_eps", "rope_parameters", "head_dim", "mlp_bias"),
        *("num_key_value_heads", "attention_bias", "tie_word_embeddings", "classifier_pooling"),
    ),
    "mpnet": ("model_type", "architectures", "hidden_act", "layer_norm_eps", "relative_attention_num_buckets"),
    "xlnet": ("model_type", "architectures", "d_head", "d_inner", "ff_activation", "summary_type", "dropout"),
}


BY_OURS = (
    *("smaller_encoders/bert/QuestionAnswering", "smaller_encoders/albert/PreTraining"),
    *("smaller_encoders/distilbert/SequenceClassification", "smaller_encoders/electra/PreTraining"),
    *("deberta/first", "deberta/convolved", "deberta/tags"),
)
"""Written through a directory of ours, which has every array and head of them."""


def round_trip(case: Case) -> bool:
    if case.oracle == "smaller_encoders":
        return is_first(case)
    return not case.name.startswith("other")


@pytest.mark.parametrize("case", listed(round_trip, lambda case: not case.name.startswith("segments/")))
def test_what_was_read_is_written_with_the_same_names_and_bits(tmp_path, case):
    theirs, back = case.save(tmp_path / "theirs"), tmp_path / "back"
    if case.id in BY_OURS:  # the others at once
        bert_jax.convert(theirs, tmp_path / "ours", to="bert_jax")
        bert_jax.convert(tmp_path / "ours", back, to="huggingface")
    else:
        bert_jax.convert(theirs, back, to="huggingface")
    there = safetensors.numpy.load_file(back / FILE)
    original = {written_as(name): values for name, values in case.state().items()}
    assert there.keys() == original.keys()
    for name, values in original.items():
        np.testing.assert_array_equal(there[name], values, err_msg=name)
    stored, again = open_huggingface(theirs), open_huggingface(back)
    assert (again.model, again.head) == (stored.model, stored.head)
    assert stored.ignored == () and set(stored.arrays) == set(stored.parameters)
    written, given = json.loads((back / "config.json").read_text()), case.config_json()
    said = [name for name in SAID.get(case.oracle, given) if name in given]
    if "classifier_pooling" in said and stored.head is None:
        said.remove("classifier_pooling")
    assert {name: written[name] for name in said} == {name: given[name] for name in said}


@pytest.mark.parametrize(
    "case, name",
    [
        ("modernbert/words", "embeddings.tok_embeddings.weight"),
        ("nomic_bert/words", "emb_ln.weight"),
        ("eurobert/words", "embed_tokens.weight"),
        ("xlnet/words", "mask_emb"),
    ],
)
def test_a_bare_encoder_has_names_without_prefix(tmp_path, case, name):
    stored = open_huggingface(CASES[case].save(tmp_path / "whole"))
    bare = dataclasses.replace(stored, arrays={p: a for p, a in stored.arrays.items() if not p.startswith("mlm/")})
    names = exported(bare, tmp_path / "bare").keys()
    assert name in names and "layers.0.attn_norm.weight" not in names
    if case == "xlnet/words":
        assert {"word_embedding.weight", "layer.1.rel_attn.o"} <= names
    again = open_huggingface(tmp_path / "bare")
    assert again.parts == ()
    for path, array in again.arrays.items():
        np.testing.assert_array_equal(whole(array), whole(stored.arrays[path]), err_msg=path)


def same_arrays(found, expected) -> None:
    assert (found.model, found.parts) == (expected.model, expected.parts) and set(found.arrays) == set(expected.arrays)
    for path, array in expected.arrays.items():
        np.testing.assert_array_equal(whole(found.arrays[path]), whole(array), err_msg=path)


@pytest.mark.parametrize("name", [name for name in FORMS if MODEL_TYPES[name].tied])
def test_a_table_that_is_there_under_the_name_of_the_head_alone(tmp_path, name):
    """As safetensors.torch.save_model leaves it, which keeps one name of what two modules share."""
    place, kind = tmp_path / "theirs", MODEL_TYPES[name]
    state = exported(make(name, "mlm"), place)
    stored = open_huggingface(place)
    moved = {first: again for again, first in kind.tied.items()}
    assert set(moved) <= set(state)
    safetensors.numpy.save_file({moved.get(each, each): values for each, values in state.items()}, place / FILE)
    same_arrays(open_huggingface(place), stored)
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    assert "weight is missing" in refusal(place)


PREFIXES = ("module.", "_orig_mod.", "model.", "bert_model.", "_orig_mod.module.", "0.auto_model.")


BARE = ("bert", "xlnet")
"""The types whose encoders without a head are among the core tests."""


@pytest.mark.parametrize(
    "name, key",
    [
        *((name, "mlm") for name in FORMS),
        *(pytest.param(name, "encoder", marks=() if name in BARE else pytest.mark.slow) for name in FORMS),
    ],
)
def test_what_wrappers_put_before_all_names_is_left_out_and_said(tmp_path, caplog, name, key):
    place = tmp_path / "theirs"
    state = exported(make(name, key), place)
    stored = open_huggingface(place)
    for before in PREFIXES if name == "bert" else PREFIXES[:3]:
        if key == "encoder" and before == MODEL_TYPES[name].prefix:
            continue  # then it is the name that a model with a head has for its encoder
        safetensors.numpy.save_file({before + each: values for each, values in state.items()}, place / FILE)
        caplog.clear()
        with caplog.at_level("WARNING", logger="absl"):
            same_arrays(open_huggingface(place), stored)
        assert f"names of all arrays begin with {before}, which is left out" in caplog.text
    some = {f"module.{each}" if "embeddings" in each else each: values for each, values in state.items()}
    if len(some.keys() & state.keys()) < len(state):
        safetensors.numpy.save_file(some, place / FILE)
        assert "is missing" in refusal(place)


GROUPS = [(6, 2, 1), (5, 2, 1), (2, 1, 3), (4, 2, 2), (3, 3, 2)]
"""What config.json of an ALBERT has: rounds of all groups, groups, and layers in a group."""


@pytest.mark.parametrize("rounds, groups, inner", GROUPS)
def test_groups_of_an_albert_are_read_and_written(tmp_path, rounds, groups, inner):
    stored = make("albert", "mlm", num_layers=rounds * inner, layer_groups=groups, group_layers=inner)
    state = exported(stored, tmp_path / "theirs")
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert [config[key] for key in ("num_hidden_layers", "num_hidden_groups", "inner_group_num")] == [
        rounds,
        groups,
        inner,
    ]
    layers = {name.split(".attention.query.")[0] for name in state if name.endswith("attention.query.weight")}
    numbers = [(group, layer) for group in range(groups) for layer in range(inner)]
    assert layers == {f"albert.encoder.albert_layer_groups.{one}.albert_layers.{other}" for one, other in numbers}
    same_arrays(open_huggingface(tmp_path / "theirs"), stored)


LABELS = ("no", "yes", "so")
HEADS = {
    "modernbert/mean": HeadConfig(labels=LABELS, dropout=0.0, pooling="mean"),
    "xlnet/texts": HeadConfig(labels=LABELS),
    "xlnet/tags": HeadConfig(kind="tagging", labels=LABELS),
    "xlnet/answers": HeadConfig(kind="span"),
    "xlnet/choices": HeadConfig(kind="choice"),
}


@pytest.mark.parametrize("case", HEADS)
def test_heads_are_those_of_their_classes(tmp_path, case):
    assert open_huggingface(CASES[case].save(tmp_path / "theirs")).head == HEADS[case]


@pytest.mark.parametrize(
    "case, architecture, rows, kind",
    [
        ("deberta/second", "DebertaV2ForMultipleChoice", 1, "choice"),
        ("deberta/second", "DebertaV2ForSequenceClassification", 1, "regression"),
        ("modernbert/tags", "ModernBertForQuestionAnswering", 2, "span"),
        ("modernbert/tags", "ModernBertForMultipleChoice", 1, "choice"),
        ("modernbert/tags", "ModernBertForSequenceClassification", 1, "regression"),
    ],
)
def test_the_other_heads_are_read_by_their_class(tmp_path, case, architecture, rows, kind):
    theirs = CASES[case].save(tmp_path / "theirs", architectures=[architecture], id2label=None, label2id=None)
    state = CASES[case].state()
    state |= {name: state[name][:rows] for name in ("classifier.weight", "classifier.bias")}
    safetensors.numpy.save_file(state, theirs / FILE)
    stored = open_huggingface(theirs)
    assert stored.head is not None and stored.head.kind == kind
    assert exported(stored, tmp_path / "ours").keys() == state.keys()
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["architectures"] == [architecture]


REFUSED = {
    "roberta/odd/RobertaForMaskedLM": [
        ({"model_type": "gpt2"}, "'gpt2'; the types that can be loaded are bert, roberta"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"hidden_act": "gelu_new"}, "hidden_act='gelu_new'.*only 'gelu' is supported"),
    ],
    "smaller_encoders/albert/MaskedLM": [
        ({"num_hidden_groups": 4}, "num_hidden_groups=4, more than num_hidden_layers=3"),
        ({"num_hidden_groups": 2}, "the parameters of 2, but the weights have 1 layers"),
        ({"inner_group_num": 2}, "the parameters of 2, but the weights have 1 layers"),
        ({"inner_group_num": 0}, "inner_group_num=0 where a positive whole number"),
    ],
    "smaller_encoders/electra/MaskedLM": [({"hidden_act": "relu"}, "hidden_act='relu'")],
    "smaller_encoders/distilbert/MaskedLM": [({"n_layers": 3}, "2 layers")],
    "deberta/first": [
        ({"relative_attention": False}, "relative_attention=false"),
        ({"pos_att_type": "c2p|p2p"}, r"pos_att_type='c2p\|p2p'; supported are c2p, p2c or both"),
        ({"embedding_size": 12}, "embedding_size=12; only that of hidden_size, 30"),
        ({"talking_head": True}, "talking_head=True"),
        ({"type_vocab_size": -1}, "type_vocab_size=-1"),
        ({"position_biased_input": "no"}, "position_biased_input='no' where true or false"),
        ({"max_relative_positions": 6}, r"rel_embeddings.weight is \[10, 30\] where \[12, 30\] is expected"),
        ({"conv_kernel_size": 3}, "conv_kernel_size=3, which a model of type deberta does not have"),
    ],
    "deberta/third": [
        ({"conv_kernel_size": 3}, "deberta.encoder.conv.conv.weight is missing"),
        ({"norm_rel_ebd": "layer_norm|batch"}, "norm_rel_ebd='layer_norm|batch'"),
        ({"attention_head_size": 64}, "attention_head_size=64, but 3 heads of hidden_size=30 have 10"),
        ({"position_buckets": 1}, "model.disentangled.buckets=1 must be at least 2"),
        ({"position_buckets": 30}, "leaves nothing for the wider half"),
    ],
    "deberta/convolved": [
        ({"conv_kernel_size": 5}, r"conv.conv.weight is \[30, 30, 3\] where \[30, 30, 5\] is expected"),
        ({"conv_kernel_size": 4}, "not possible here: model.convolution_width=4 must be odd"),
        ({"conv_kernel_size": "3"}, "conv_kernel_size='3' where a whole number is expected"),
        ({"conv_act": "silu"}, "conv_act='silu'; supported are gelu, tanh"),
        ({"conv_groups": 3}, "conv_groups=3; only 1 is supported"),
    ],
    "deberta/second": [
        ({"pooler_dropout": 0.2}, "pooler_dropout=0.2"),
        ({"pooler_hidden_act": "silu"}, "pooler_hidden_act='silu'; supported are gelu"),
        ({"pooler_hidden_size": 7}, "pooler_hidden_size=7"),
    ],
    "modernbert/words": [
        ({"attention_bias": True}, "attention_bias=True, mlp_bias=False, classifier_bias=False; only all of them or"),
        ({"decoder_bias": False}, "decoder_bias=False"),
        ({"layer_types": ["sliding_attention"] * 4 + ["full_attention"]}, "layer_types=.*only every n-th layer"),
        ({"rope_parameters": {"full_attention": {"rope_type": "llama3"}}}, "type 'llama3'; .* linear, dynamic, yarn"),
        ({"rope_parameters": {"full_attention": {"type": "longrope"}}}, "type 'longrope'; supported are default"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 2, "truncate": False}}},
            "truncate=False in rope_parameters; only true",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 0.5}}},
            "factor=0.5 of rotary positions where a number of at least 1 is expected",
        ),
        ({"rope_parameters": {"sliding_attention": {"type": "linear", "factor": 2}}}, "rope_parameters=.*sliding"),
        ({"rope_parameters": {"full_attention": {"rope_type": "linear"}}}, "factor=None"),
        ({"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": math.inf}}}, "factor=inf"),
        ({"rope_parameters": {"full_attention": {"partial_rotary_factor": 0.5}}}, "'partial_rotary_factor' in full_"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 500}}, "'rope_type' in rope_parameters"),
        ({"rope_parameters": "default"}, "rope_parameters='default' where an object"),
        ({"rope_parameters": {"sliding_attention": [1]}}, r"sliding_attention=\[1\] where an object"),
        ({"rope_parameters": None, "local_rope_theta": 0}, "rope_theta=0 of rotary positions"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, "rope_scaling="),
        ({"tie_word_embeddings": 0}, "tie_word_embeddings=0 where true or false"),
        ({"num_attention_heads": 6}, "heads of 5 features, which rotary positions cannot turn"),
        ({"local_attention": 0}, "local_attention=0"),
        ({"hidden_activation": "relu"}, "hidden_activation='relu'; supported are gelu"),
        ({"classifier_activation": "gelu_new"}, "classifier_activation='gelu_new' and hidden_activation='gelu'"),
        ({"classifier_pooling": "max"}, "classifier_pooling='max'; supported are cls, mean"),
        ({"intermediate_size": 24}, r"Wi:0.weight is \[23, 30\] where \[24, 30\] is expected"),
    ],
    "eurobert/words": [
        ({"attention_bias": True}, "attention_bias=True, mlp_bias=False; only both of them or neither"),
        ({"num_key_value_heads": 4}, "num_key_value_heads=4 where a divisor of num_attention_heads=6"),
        ({"num_key_value_heads": "2"}, "num_key_value_heads='2' where a divisor"),
        ({"num_key_value_heads": 3}, r"k_proj.weight is \[8, 24\] where \[12, 24\] is expected"),
        ({"head_dim": 6}, "head_dim=6; only hidden_size / num_attention_heads"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings=True.*only False is supported"),
        ({"hidden_act": "relu"}, "hidden_act='relu'"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "factor=None"),
    ],
    "eurobert/texts": [({"classifier_pooling": "late"}, "classifier_pooling='late'; supported are bos")],
    "mpnet/words": [
        ({"relative_attention_num_buckets": 64}, "relative_attention_num_buckets=64.*only 32 is supported"),
        ({"pad_token_id": 0}, "pad_token_id=0.*only 1 is supported"),
        ({"hidden_act": "gelu_new"}, "hidden_act='gelu_new'.*only 'gelu' is supported"),
    ],
    "xlnet/orders": [
        ({"attn_type": "uni"}, "attn_type='uni'.*only 'bi' is supported"),
        ({"bi_data": True}, "bi_data=True"),
        ({"clamp_len": 8}, "clamp_len=8.*only -1"),
        ({"same_length": True}, "same_length=True"),
        ({"summary_type": "first"}, "summary_type='first'.*only 'last'"),
        ({"summary_activation": None, "summary_use_proj": False}, "summary_use_proj=False"),
        ({"d_head": 7}, "d_head=7; only d_model / n_head = 10"),
        ({"ff_activation": "relu"}, "ff_activation='relu'; supported are gelu"),
        ({"d_inner": 24}, r"layer_1.weight is \[23, 30\] where \[24, 30\] is expected"),
        ({"n_head": 5, "d_head": 6}, r"r_w_bias is \[3, 10\] where \[5, 6\] is expected"),
    ],
}


@pytest.mark.parametrize("case, changes, message", [(c, *refused) for c, group in REFUSED.items() for refused in group])
def test_what_our_encoder_does_not_have_is_refused_by_name(tmp_path, case, changes, message):
    assert re.search(message, refusal(CASES[case].save(tmp_path / "theirs", **changes)))


@pytest.mark.parametrize(
    "case, name, message",
    [
        ("roberta/odd/RobertaForMaskedLM", "pad_token_id", "pad_token_id=None"),
        ("smaller_encoders/electra/MaskedLM", "embedding_size", "embedding_size=None"),
    ],
)
def test_an_option_that_is_null_is_refused_by_name(tmp_path, case, name, message):
    config = CASES[case].save(tmp_path / "theirs") / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {name: None}))
    assert message in refusal(tmp_path / "theirs")


def with_options(model, **changes):
    return dataclasses.replace(model, disentangled=dataclasses.replace(model.disentangled, **changes))


XLNET = xlnet_config("mini")


@pytest.mark.parametrize(
    "model, changes",
    [
        (FIRST, {"norm_position": "pre"}),
        (FIRST, {"convolution_width": 3}),
        (THIRD, {"local_window": 4}),
        (MODERN, {"feed_forward": "swiglu"}),
        (MODERN, {"norm": "rms_norm"}),
        (MODERN, {"positions": "alibi"}),
        (MODERN, {"first_attention_norm": True}),
        (XLNET, {"hidden_dropout": 0.2}),
        (XLNET, {"norm": "rms_norm"}),
        (XLNET, {"feed_forward": "geglu"}),
        (with_options(THIRD, key_bias=False), {}),
    ],
)
def test_a_model_that_no_type_describes(model, changes):
    assert type_to_write(variant(model, **changes)) is None


STATIC = dict(layer="none")
MODELS = {  # configuration, everything that is said of its options
    "MosaicBERT": (
        variant(dataclasses.replace(CONFIG, feed_forward="geglu"), positions="alibi"),
        "none has model.positions=alibi; nearest are bert, xlnet without model.feed_forward=geglu",
    ),
    "ModernBERT with the layers of NeoBERT": (
        dataclasses.replace(MODERN, feed_forward="swiglu", norm="rms_norm", norm_bias=True),
        "nearest are modernbert without model.norm=rms_norm and model.feed_forward=swiglu",
    ),
    "shared attention": (dataclasses.replace(CONFIG, sharing="attention"), "none has model.sharing=attention"),
    "GPT": (
        dataclasses.replace(CONFIG, direction="left_to_right"),
        "nearest are bert without model.direction=left_to_right",
    ),
    "ELMo": (variant(CONFIG, layer="lstm"), "none has model.layer=lstm"),
    "ULMFiT": (
        variant(CONFIG, layer="lstm", direction="left_to_right", positions="none"),
        "none has model.layer=lstm",
    ),
    "skip-gram": (variant(CONFIG, **STATIC), "none has model.layer=none"),
    "pre-norm": (dataclasses.replace(CONFIG, norm_position="pre"), "nearest are bert without model.norm_position=pre"),
    "ELECTRA with embeddings as wide as its layers": (
        dataclasses.replace(CONFIG, embedding_size=CONFIG.hidden_size, pooler="gelu_erf", activation="gelu_erf"),
        "nearest are albert without model.pooler=gelu_erf, and electra without model.embedding_size=16",
    ),
    "RoBERTa of another GELU": (
        dataclasses.replace(roberta_config("tiny"), activation="gelu_tanh"),
        "nearest are bert without model.padding_id=1, and roberta, xlm-roberta, camembert without "
        "model.activation=gelu_tanh",
    ),
    "DeBERTa between its versions": (
        with_options(FIRST, table_norm=True),
        "nearest are deberta without model.disentangled.table_norm=True, and deberta-v2 without "
        "model.disentangled.key_bias=False",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_options_that_stand_in_the_way_are_named(name):
    config, says = MODELS[name]
    assert type_to_write(config) is None
    assert obstacles(config) == says
    instead = "bert_jax.load opens it, and convert --to=bert_jax writes a directory to pass on"
    assert remark(config).endswith(f"--to=huggingface will refuse this model ({says}); {instead}")


@pytest.mark.parametrize("name", FORMS)
def test_nothing_stands_in_the_way_of_a_type(name):
    model = make(name, "encoder").model
    assert type_to_write(model, name).name == name and remark(model) == ""


def test_as_many_heads_of_keys_as_of_queries_are_those_of_bert():
    written_out = dataclasses.replace(CONFIG, key_value_heads=CONFIG.num_heads)
    assert type_to_write(written_out).name == "bert"
    shared = dataclasses.replace(CONFIG, key_value_heads=1)
    assert obstacles(shared) == "nearest are bert without model.key_value_heads=1"


def test_a_refused_export_says_so_in_one_line(tmp_path):
    config, says = MODELS["MosaicBERT"]
    with pytest.raises(UserError) as refusal:
        write_huggingface(stored_model(config, ("mlm",)), tmp_path, "model")
    assert says in str(refusal.value) and "no model type of transformers" in str(refusal.value)
    assert "--to=bert_jax" in str(refusal.value)
    assert not list(tmp_path.iterdir())


FAMILIES = {
    **{"bert": "BERT", "roberta": "RoBERTa", "xlm-roberta": "XLM-RoBERTa", "camembert": "CamemBERT"},
    **{"modernbert": "ModernBERT", "albert": "ALBERT", "distilbert": "DistilBERT", "electra": "ELECTRA"},
    **{"deberta": "DeBERTa", "deberta-v2": "DeBERTa-v2", "xlnet": "XLNet", "nomic_bert": "NomicBERT"},
    **{"eurobert": "EuroBERT", "neobert": "NeoBERT", "mpnet": "MPNet"},
    "modernbert-decoder": "ModernBERT's decoder",
}
# Whose bare classes have one unless told not to.
WITH_POOLER = ("bert", "roberta", "xlm-roberta", "camembert", "albert", "mpnet")
WORDS = {
    "xlnet": ("AutoModelForPreTraining", None, "permutation-language-model head"),
    "modernbert-decoder": ("AutoModelForCausalLM", "text-generation", "language-model head"),
}
PAIRS = {"bert": "next-sentence head", "albert": "sentence-order head"}


def card_of(place, name: str, key: str) -> str:
    write_huggingface(make(name, key), place, "the model")
    return (place / "README.md").read_text()


@pytest.mark.parametrize("name, key", cases())
def test_a_card_names_family_parts_and_class(tmp_path, name, key):
    card = card_of(tmp_path, name, key)
    assert f"tags: [{name}, bert_jax]" in card
    assert f"An encoder of type {FAMILIES[name]} with " in card
    opener = re.search(r'^model = (\w+)\.from_pretrained\("PATH"(.*)\)$', card, re.MULTILINE)
    assert ("add_pooling_layer=False" in opener[2]) == (key == "encoder" and name in WITH_POOLER)
    assert ("add_pooling_layer=True" in opener[2]) == (key == "pooled" and name == "nomic_bert")
    task = re.search(r"^pipeline_tag: (.*)$", card, re.MULTILINE)
    if key == "mlm":
        usual = ("AutoModelForMaskedLM", "fill-mask", "masked-language-model head")
        assert (opener[1], task and task[1], re.search(r"with (.*?),", card)[1]) == WORDS.get(name, usual)
    if key in ("pretraining", "pairs"):
        assert PAIRS[name] in card
    if key == "encoder":
        assert (opener[1], task[1]) == ("AutoModel", "feature-extraction") and "with no head" in card


def test_a_model_without_vocabulary_has_a_card_without_tokenizer(tmp_path):
    write_huggingface(dataclasses.replace(make("bert", "mlm"), tokenizer=None), tmp_path, "the model")
    assert "AutoTokenizer" not in (tmp_path / "README.md").read_text()
