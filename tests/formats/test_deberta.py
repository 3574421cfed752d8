"""DeBERTa directories of transformers, both versions: its numbers, its names in both directions, what is refused."""

import dataclasses
import json
import re

import deberta_cases
import family_pieces
import jax
import jax.numpy as jnp
import numpy as np
import oracle_directory
import pytest
import safetensors.numpy
from deberta_model import CONVOLVED, FIRST, THIRD
from etils import epath
from huggingface_directory import exported, refusal, whole
from model_variants import variant
from small_model import FLOAT32, compiled, perturbed
from tokenizers import pre_tokenizers

import bert_jax
from bert_jax.checkpoints.record import leaf_paths
from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.devices.placement import StoredArray
from bert_jax.errors import UserError
from bert_jax.formats.conversion import select
from bert_jax.formats.huggingface import open_huggingface
from bert_jax.formats.huggingface_export import write_huggingface
from bert_jax.formats.model_types import type_to_write
from bert_jax.formats.opening import place
from bert_jax.formats.tokenizer_files import read_tokenizer
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.task import BertForTask
from bert_jax.pretrained.initialization import check_architecture

FILE = "model.safetensors"
OTHER_HEAD = {
    "lm_predictions.lm_head.dense": "cls.predictions.transform.dense",
    "lm_predictions.lm_head.LayerNorm": "cls.predictions.transform.LayerNorm",
    "lm_predictions.lm_head": "cls.predictions",
}


@pytest.fixture(scope="module")
def oracle(request) -> dict[str, np.ndarray]:
    return dict(np.load(request.config.rootpath / "tests" / "oracles" / "deberta_oracle.npz"))


def legacy(name: str) -> str:
    """The name of an array where the masked-language-model head has its older names, which we write."""
    module, _, leaf = name.rpartition(".")
    return f"{OTHER_HEAD.get(module, module)}.{leaf}"


def outputs(stored, case, params, batch):
    """Logits at every position, of a bare encoder its states, and what the encoder gives."""
    if stored.head is not None:
        model = BertForTask(stored.model, stored.head, FLOAT32)
        found = model.apply(params, oracle_directory.asked(case, batch))
        return found, model.encode(params, *batch.values(), collect=True)
    model = BertForPreTraining(stored.model, FLOAT32, stored.parts)
    encoded = model.encode(params, *batch.values(), collect=True)
    if not stored.parts:
        return encoded.last_hidden_state, encoded
    rows, length = batch["input_ids"].shape
    places = jnp.tile(jnp.arange(length, dtype=jnp.int32), (rows, 1))
    return model.mlm_logits(params, {"masked_positions": places}, encoded), encoded


QUICK = ("first", "third", "second", "convolved", "convolved texts")
CASES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in deberta_cases.CASES]


@pytest.mark.parametrize("name", CASES)
def test_states_attentions_logits_and_gradients_are_those_of_transformers(oracle, tmp_path, name):
    stored = open_huggingface(oracle_directory.save(oracle, name, tmp_path / "theirs"))
    arrays = (array.astype(np.int32) for array in deberta_cases.inputs(name))
    batch = dict(zip(("input_ids", "token_type_ids", "attention_mask"), arrays, strict=True))
    real = batch["attention_mask"].astype(bool)

    def loss(params):
        found, output = outputs(stored, deberta_cases.CASES[name], params, batch)
        found = found[real] if found.shape[:2] == real.shape else found
        return jnp.sum(jnp.sin(found)), (found, output)

    (_, (found, output)), gradient = compiled(jax.value_and_grad(loss, has_aux=True))(place(stored))
    for index, state in enumerate(output.hidden_states):
        np.testing.assert_allclose(np.asarray(state)[real], oracle[f"{name}/states/{index}"], atol=2e-5)
    for index, weights in enumerate(output.attentions):
        rows, expected = (np.moveaxis(each, 1, 2)[real] for each in (weights, oracle[f"{name}/attentions/{index}"]))
        np.testing.assert_allclose(rows, expected, atol=2e-5)
    np.testing.assert_allclose(found, oracle[f"{name}/logits"].reshape(found.shape), atol=2e-5)
    written = exported(stored, tmp_path / "gradients", gradient)
    names = json.loads(str(oracle[f"{name}/shapes"]))
    assert written.keys() == set(map(legacy, names))
    named = {key: written[legacy(key)] for key in names}
    oracle_directory.check_gradients(named, oracle[f"{name}/gradients"], zero="pos_key_proj.bias")


def test_the_mask_decoder_is_two_passes_of_the_last_layer_of_transformers(oracle, tmp_path):
    name = deberta_cases.DECODED
    stored = open_huggingface(oracle_directory.save(oracle, name, tmp_path / "theirs"))
    model = BertForPreTraining(stored.model, FLOAT32, ("mlm", "mask_decoder"))
    ids, types, mask = (array.astype(np.int32) for array in deberta_cases.inputs(name))
    table = {"position": {"table": deberta_cases.absolute_positions(stored.model.hidden_size)}}
    params, real = place(stored) | {"mask_decoder": table}, mask.astype(bool)
    for layers in ("loop", "scan"):
        network = dataclasses.replace(model, compute=dataclasses.replace(FLOAT32, layers=layers))
        output = compiled(lambda p, network=network: network.encode(p, ids, types, mask, collect=True))(params)
        np.testing.assert_allclose(np.asarray(output.decoded)[real], oracle[f"{name}/decoded"], atol=2e-5)
        for index, state in enumerate(output.hidden_states):
            np.testing.assert_allclose(np.asarray(state)[real], oracle[f"{name}/states/{index}"], atol=2e-5)
    places, plain = {"masked_positions": np.int32([[3], [1], [2]])}, dataclasses.replace(model, parts=("mlm",))
    logits = compiled(model.mlm_logits)(params, places, output)
    states = output._replace(last_hidden_state=output.decoded, decoded=None)
    expected = compiled(plain.mlm_logits)(params, places, states)
    np.testing.assert_array_equal(logits, expected)


@pytest.mark.parametrize("name", ["third", "convolved", pytest.param("first", marks=pytest.mark.slow)])
def test_rows_of_ids_have_the_states_of_transformers(oracle, tmp_path, name):
    model = bert_jax.load(oracle_directory.save(oracle, name, tmp_path / "theirs"))
    ids, _, mask = deberta_cases.inputs(name)
    found = model.encode_ids(ids, mask)
    for index, state in enumerate(found.hidden_states):
        np.testing.assert_allclose(state[mask.astype(bool)], oracle[f"{name}/states/{index}"], atol=2e-5)
    for number in (0, 2) if name == "convolved" else ():  # a layer alone, and the one with a convolution
        state = model.layers[number](found.hidden_states[number], mask)
        np.testing.assert_allclose(state[mask.astype(bool)], oracle[f"{name}/states/{number + 1}"], atol=2e-5)


ROUND_TRIPS = [
    pytest.param(name, marks=pytest.mark.slow if name.startswith("other") else ()) for name in deberta_cases.CASES
]


@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_what_was_read_is_written_with_the_same_names_and_bits(oracle, tmp_path, name):
    theirs = oracle_directory.save(oracle, name, tmp_path / "theirs")
    bert_jax.convert(theirs, tmp_path / "ours", to="bert_jax")
    bert_jax.convert(tmp_path / "ours", tmp_path / "back", to="huggingface")
    there = safetensors.numpy.load_file(tmp_path / "back" / FILE)
    original = {legacy(key): value for key, value in oracle_directory.state_of(oracle, name).items()}
    assert there.keys() == original.keys()
    for key, value in original.items():
        np.testing.assert_array_equal(there[key], value, err_msg=key)
    stored, again = open_huggingface(theirs), open_huggingface(tmp_path / "back")
    assert (again.model, again.head) == (stored.model, stored.head) and not stored.ignored
    back, given = (json.loads((tmp_path / side / "config.json").read_text()) for side in ("back", "theirs"))
    chosen = ("model_type", "architectures", "position_biased_input", "position_buckets", "share_att_key")
    chosen += ("norm_rel_ebd", "pos_att_type", "type_vocab_size", "pooler_hidden_act", "layer_norm_eps")
    chosen += ("conv_kernel_size", "conv_act")
    assert {key: back[key] for key in chosen if key in given} == {key: given[key] for key in chosen if key in given}


def test_the_options_of_published_files_are_read(oracle, tmp_path):
    """pos_att_type as words with a bar between them; max_relative_positions=-1 is max_position_embeddings."""
    written = {"pos_att_type": "p2c|c2p", "max_relative_positions": -1, "norm_rel_ebd": "layer_norm"}
    stored = open_huggingface(oracle_directory.save(oracle, "third", tmp_path / "theirs", **written))
    assert (stored.model.disentangled.terms, stored.model.disentangled.max_distance) == ("c2p+p2c", 64)
    assert (stored.model.positions, stored.model.pooler, stored.model.pair_head) == ("none", "gelu_erf", False)


@pytest.mark.parametrize(
    "architecture, rows, kind",
    [
        ("DebertaV2ForMultipleChoice", 1, "choice"),
        ("DebertaV2ForSequenceClassification", 1, "regression"),
    ],
)
def test_the_other_heads_are_read_by_their_class(oracle, tmp_path, architecture, rows, kind):
    changes = dict(architectures=[architecture], id2label=None, label2id=None)
    theirs = oracle_directory.save(oracle, "second", tmp_path / "theirs", **changes)
    state = oracle_directory.state_of(oracle, "second")
    state |= {name: state[name][:rows] for name in ("classifier.weight", "classifier.bias")}
    safetensors.numpy.save_file(state, theirs / FILE)
    stored = open_huggingface(theirs)
    assert stored.head is not None and stored.head.kind == kind
    assert exported(stored, tmp_path / "ours").keys() == state.keys()
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["architectures"] == [architecture]


def test_version_1_has_no_class_for_multiple_choice(oracle, tmp_path):
    stored = open_huggingface(oracle_directory.save(oracle, "segments", tmp_path / "theirs"))
    with pytest.raises(UserError, match="transformers has no class for a model of type deberta with"):
        write_huggingface(dataclasses.replace(stored, head=HeadConfig(kind="choice")), tmp_path, "small")


def test_a_discriminator_is_written_without_its_head_or_not_at_all(oracle, tmp_path):
    """transformers has no DeBERTa with the head of replaced tokens."""
    stored = open_huggingface(oracle_directory.save(oracle, "third", tmp_path / "theirs"))
    model = BertForPreTraining(stored.model, FLOAT32, ("replaced_tokens",))
    leaves = leaf_paths(perturbed(model))
    arrays = {path: StoredArray(leaf.shape, leaf.dtype, leaf.__getitem__) for path, leaf in leaves.items()}
    discriminator = dataclasses.replace(stored, arrays=arrays)
    refused = "no class for a model of type deberta-v2 with replaced_tokens; use "
    with pytest.raises(UserError, match=refused + "--parts=encoder or --to=bert_jax$"):
        write_huggingface(discriminator, tmp_path, "small")
    with pytest.raises(UserError, match=refused + "--parts=generator, --parts=encoder or --to=bert_jax$"):
        write_huggingface(dataclasses.replace(discriminator, beside=arrays), tmp_path, "small")
    there = exported(select(discriminator, "encoder", "huggingface"), tmp_path / "ours")
    assert "encoder.rel_embeddings.weight" in there and not any("replaced" in name for name in there)
    back = open_huggingface(tmp_path / "ours")
    assert (back.parts, back.model) == ((), discriminator.model)
    assert {*back.arrays} == {path for path in arrays if not path.startswith("replaced_tokens/")}
    for path, array in back.arrays.items():
        np.testing.assert_array_equal(whole(array), leaves[path], err_msg=path)


def test_the_byte_level_vocabulary_of_version_1_has_berts_special_tokens(tmp_path):
    bytes_ = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *bytes_, "ab", "Ġc", "[MASK]"]
    (tmp_path / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}), encoding="utf-8")
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\nĠ c\n", encoding="utf-8")
    tokenizer = read_tokenizer(epath.Path(tmp_path))
    assert tokenizer is not None
    assert (tokenizer.special_ids, tokenizer.separators) == ((0, 3, 1, 2, 262), 1)
    assert tokenizer.encode_masked("ab [MASK] c") == [260, 262, 261]
    (row,) = tokenizer.encode_batch(["ab c"])
    assert [tokenizer.tokens[i] for i in row] == ["ab", "Ġc"]


@pytest.mark.parametrize("multiple", [100, 1_000])
def test_spare_rows_of_the_published_word_tables_are_cut(oracle, tmp_path, caplog, multiple):
    """DeBERTa v3 has a multiple of 100, mDeBERTa one of 1,000; what is written has as many rows as config.json says."""
    theirs = oracle_directory.save(oracle, "third", tmp_path / "theirs")
    (theirs / "spm.model").write_bytes(family_pieces.train("deberta-v2"))
    tokenizer = read_tokenizer(epath.Path(theirs))
    assert tokenizer is not None
    rows = -(-tokenizer.vocab_size // multiple) * multiple
    config, state = json.loads((theirs / "config.json").read_text()), oracle_directory.state_of(oracle, "third")
    words, bias = "deberta.embeddings.word_embeddings.weight", "lm_predictions.lm_head.bias"
    state |= {name: np.resize(state[name], (rows, *state[name].shape[1:])) for name in (words, bias)}
    (theirs / "config.json").write_text(json.dumps(config | {"vocab_size": rows}))
    safetensors.numpy.save_file(state, theirs / FILE)
    with caplog.at_level("WARNING", logger="absl"):
        bert_jax.convert(theirs, tmp_path / "ours", to="bert_jax")
    assert f"{rows - tokenizer.vocab_size} rows of the word table beyond" in caplog.text
    bert_jax.convert(tmp_path / "ours", tmp_path / "back", to="huggingface")
    there = safetensors.numpy.load_file(tmp_path / "back" / FILE)
    assert json.loads((tmp_path / "back" / "config.json").read_text())["vocab_size"] == tokenizer.vocab_size < rows
    np.testing.assert_array_equal(there[words], state[words][: tokenizer.vocab_size])
    np.testing.assert_array_equal(there["cls.predictions.bias"], state[bias][: tokenizer.vocab_size])
    again = open_huggingface(tmp_path / "back").tokenizer
    assert again is not None and again.fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize(
    "name, changes, message",
    [
        ("first", {"relative_attention": False}, "relative_attention=false"),
        ("first", {"pos_att_type": "c2p|p2p"}, r"pos_att_type='c2p\|p2p'; supported are c2p, p2c or both"),
        ("first", {"embedding_size": 12}, "embedding_size=12; only that of hidden_size, 30"),
        ("first", {"talking_head": True}, "talking_head=True"),
        ("first", {"type_vocab_size": -1}, "type_vocab_size=-1"),
        ("first", {"position_biased_input": "no"}, "position_biased_input='no' where true or false"),
        ("first", {"max_relative_positions": 6}, r"rel_embeddings.weight is \[10, 30\] where \[12, 30\] is expected"),
        ("first", {"conv_kernel_size": 3}, "conv_kernel_size=3, which a model of type deberta does not have"),
        ("third", {"conv_kernel_size": 3}, "deberta.encoder.conv.conv.weight is missing"),
        ("convolved", {"conv_kernel_size": 5}, r"conv.conv.weight is \[30, 30, 3\] where \[30, 30, 5\] is expected"),
        ("convolved", {"conv_kernel_size": 4}, "not possible here: model.convolution_width=4 must be odd"),
        ("convolved", {"conv_kernel_size": "3"}, "conv_kernel_size='3' where a whole number is expected"),
        ("convolved", {"conv_act": "silu"}, "conv_act='silu'; supported are gelu, tanh"),
        ("convolved", {"conv_groups": 3}, "conv_groups=3; only 1 is supported"),
        ("third", {"norm_rel_ebd": "layer_norm|batch"}, "norm_rel_ebd='layer_norm|batch'"),
        ("third", {"attention_head_size": 64}, "attention_head_size=64, but 3 heads of hidden_size=30 have 10"),
        ("third", {"position_buckets": 1}, "model.disentangled.buckets=1 must be at least 2"),
        ("third", {"position_buckets": 30}, "leaves nothing for the wider half"),
        ("second", {"pooler_dropout": 0.2}, "pooler_dropout=0.2"),
        ("second", {"pooler_hidden_act": "silu"}, "pooler_hidden_act='silu'; supported are gelu"),
        ("second", {"pooler_hidden_size": 7}, "pooler_hidden_size=7"),
    ],
)
def test_what_our_encoder_does_not_have_is_refused_by_name(oracle, tmp_path, name, changes, message):
    assert re.search(message, refusal(oracle_directory.save(oracle, name, tmp_path / "theirs", **changes)))


def with_options(model: ModelConfig, **changes) -> ModelConfig:
    return dataclasses.replace(model, disentangled=dataclasses.replace(model.disentangled, **changes))


def test_a_run_with_other_distances_cannot_start_from_it(oracle, tmp_path):
    stored = open_huggingface(oracle_directory.save(oracle, "first", tmp_path / "theirs"))
    run = with_options(stored.model, max_distance=7)
    with pytest.raises(
        UserError, match=r"max_distance is 7 here and 5 there\)\. .*--model.disentangled.max_distance=5"
    ):
        check_architecture(stored, run)
    check_architecture(stored, stored.model)


def test_the_type_that_a_model_is_written_as():
    models = {"deberta": (FIRST,), "deberta-v2": (THIRD, CONVOLVED)}
    for name, each in ((name, model) for name, group in models.items() for model in group):
        kind = type_to_write(each)
        assert kind is not None and kind.name == name
    for other in (
        with_options(FIRST, table_norm=True),
        with_options(THIRD, key_bias=False),
        dataclasses.replace(FIRST, norm_position="pre"),
        variant(FIRST, convolution_width=3),
        variant(THIRD, local_window=4),
    ):
        assert type_to_write(other) is None
