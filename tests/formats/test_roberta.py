"""RoBERTa directories: the numbers and the names of `transformers`, of which roberta_oracle.npz has the outputs."""

import json
import pathlib
import shutil

import huggingface_directory
import jax
import jax.numpy as jnp
import numpy as np
import oracle_directory
import pytest
import random_roberta
import safetensors.numpy
import small_roberta
from roberta_directory import write
from small_model import compiled

import bert_jax
from bert_jax.config import ComputeConfig
from bert_jax.errors import UserError
from bert_jax.formats.huggingface import open_huggingface
from bert_jax.formats.huggingface_export import write_huggingface
from bert_jax.formats.opening import place
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.task import BertForTask
from bert_jax.objectives.masked_words import PretrainingObjective

ORACLE = np.load(pathlib.Path(__file__).parents[1] / "oracles" / "roberta_oracle.npz")
FLOAT32 = ComputeConfig(dtype="float32")
HEADS = [name for name in random_roberta.PARTS if name not in ("RobertaModel", "RobertaForMaskedLM")]
SECOND = pytest.param("segments", marks=pytest.mark.slow)
CASES = [("odd", name) for name in HEADS] + [pytest.param("segments", name, marks=pytest.mark.slow) for name in HEADS]


@pytest.mark.parametrize("size", random_roberta.SIZES)
def test_states_and_attentions_of_ids_are_those_of_transformers(tmp_path, size):
    batch = random_roberta.batch(size)
    real = batch["attention_mask"].astype(bool)
    model = bert_jax.load(write(tmp_path / "model", size, "RobertaModel"))
    found = model.encode_ids(batch["input_ids"], batch["attention_mask"], batch["token_type_ids"], attentions=True)
    assert len(found.hidden_states) == model.config.num_layers + 1
    for index, state in enumerate(found.hidden_states):
        expected = ORACLE[f"{size}/RobertaModel/hidden_states/{index}"]
        np.testing.assert_allclose(state[real], expected[real], atol=2e-5)
    for index, maps in enumerate(found.attentions):
        expected = ORACLE[f"{size}/RobertaModel/attentions/{index}"]
        np.testing.assert_allclose(maps.swapaxes(1, 2)[real], expected.swapaxes(1, 2)[real], atol=2e-5)
    np.testing.assert_allclose(found.pooled[:3], ORACLE[f"{size}/RobertaModel/pooled"][:3], atol=2e-5)
    np.testing.assert_array_equal(found.last_hidden_state, found.hidden_states[-1])


@pytest.mark.parametrize("size, name", CASES)
def test_logits_and_gradients_of_every_head_are_those_of_transformers(tmp_path, size, name):
    stored = open_huggingface(write(tmp_path / "model", size, name))
    batch = random_roberta.batch(size)
    if stored.head.kind == "choice":
        batch = {key: values[None] for key, values in batch.items()}
    model, rows = BertForTask(stored.model, stored.head, FLOAT32), random_roberta.defined(size, name)

    def loss(params):
        logits = model.apply(params, batch)
        return jnp.sum(jnp.sin(logits[rows])), logits

    (_, logits), gradient = compiled(jax.value_and_grad(loss, has_aux=True))(place(stored))
    expected = ORACLE[f"{size}/{name}/logits"].reshape(logits.shape)
    np.testing.assert_allclose(logits[rows], expected[rows], atol=2e-5)
    written = huggingface_directory.exported(stored, tmp_path / "gradients", gradient)
    oracle_directory.check_gradients(written, ORACLE[f"{size}/{name}/gradients"], zero="key.bias")


@pytest.mark.parametrize("size", ["odd", SECOND])
def test_loss_and_gradients_are_those_of_torch(tmp_path, size):
    stored = open_huggingface(write(tmp_path / "model", size, "RobertaForMaskedLM"))
    assert stored.parts == ("mlm",)
    objective = PretrainingObjective(BertForPreTraining(stored.model, FLOAT32, ("mlm",)))
    batch = random_roberta.batch(size) | {
        "masked_positions": random_roberta.PLACES,
        "masked_ids": random_roberta.labels(size),
        "masked_weights": np.ones((4, 2), np.float32),
    }

    @compiled
    def measured(params):
        loss = jax.value_and_grad(lambda params: objective.sums(params, batch)["mlm"].loss / 8)
        return objective.model.mlm_logits(params, batch), *loss(params)

    logits, loss, gradients = measured(place(stored))
    np.testing.assert_allclose(logits, ORACLE[f"{size}/RobertaForMaskedLM/logits"], atol=2e-5)
    np.testing.assert_allclose(loss, ORACLE[f"{size}/RobertaForMaskedLM/loss"], rtol=1e-5)
    found = huggingface_directory.exported(stored, tmp_path / "gradients", gradients)
    for key, values in found.items():
        expected = ORACLE[f"{size}/RobertaForMaskedLM/gradients/{key}"]
        if key.endswith("key.bias"):  # zero in exact arithmetic
            np.testing.assert_allclose(values, 0, atol=2e-5)
            continue
        if key == "roberta.embeddings.position_embeddings.weight":  # torch keeps the row of the padding as it is
            assert not expected[random_roberta.SIZES[size]["pad_token_id"]].any()
        np.testing.assert_allclose(values, expected, atol=1e-4 * np.abs(expected).max(), err_msg=key)


@pytest.mark.parametrize("name", random_roberta.PARTS)
def test_export_has_the_names_and_values_it_was_read_from(tmp_path, name):
    source, out = write(tmp_path / "model", "odd", name), tmp_path / "out"
    bert_jax.convert(source, out, to="huggingface")
    original = safetensors.numpy.load_file(source / "model.safetensors")
    written = safetensors.numpy.load_file(out / "model.safetensors")
    assert set(written) == set(original)
    for key, values in original.items():
        np.testing.assert_array_equal(written[key], values, err_msg=key)
    config, given = json.loads((out / "config.json").read_text()), random_roberta.config_json("odd", name)
    assert {key: config[key] for key in given} == given


@pytest.mark.parametrize("kind", ["xlm-roberta", "camembert"])
def test_other_types_with_the_same_arrays(tmp_path, kind):
    source = write(tmp_path / "model", "odd", "RobertaForSequenceClassification", model_type=kind)
    stored = open_huggingface(source)
    plain = open_huggingface(write(tmp_path / "plain", "odd", "RobertaForSequenceClassification"))
    assert (stored.model, stored.head) == (plain.model, plain.head)
    assert stored.head.kind == "classification" and stored.parts == ("pooler", "head")


@pytest.mark.parametrize("kind, of_class", [("xlm-roberta", "XLMRoberta"), ("camembert", "Camembert")])
def test_conversions_keep_the_type_and_its_class(tmp_path, kind, of_class):
    source = write(tmp_path / "model", "odd", "RobertaForMaskedLM", model_type=kind)
    config = json.loads((source / "config.json").read_text()) | {"architectures": [f"{of_class}ForMaskedLM"]}
    (source / "config.json").write_text(json.dumps(config))
    for path, to in ((source, "bert_jax"), (tmp_path / "bert_jax", "huggingface"), (source, "huggingface")):
        place = tmp_path / to if path != source or to == "bert_jax" else tmp_path / "at once"
        bert_jax.convert(path, place, to=to)
    for place in (tmp_path / "huggingface", tmp_path / "at once"):
        written = json.loads((place / "config.json").read_text())
        assert (written["model_type"], written["architectures"]) == (kind, [f"{of_class}ForMaskedLM"])


def test_a_work_directory_keeps_the_positions(tmp_path):
    source, batch = write(tmp_path / "model", "odd", "RobertaForMaskedLM"), random_roberta.batch("odd")
    bert_jax.convert(source, tmp_path / "out", to="bert_jax")
    ours, theirs = (
        bert_jax.load(path).encode_ids(batch["input_ids"], batch["attention_mask"]).last_hidden_state
        for path in (tmp_path / "out", source)
    )
    np.testing.assert_array_equal(ours, theirs)


REFUSED = {
    "gpt2": (dict(model_type="gpt2"), "'gpt2'; the types that can be loaded are bert, roberta"),
    "padding": (dict(pad_token_id=None), "pad_token_id=None"),
    "relative": (dict(position_embedding_type="relative_key"), "position_embedding_type"),
    "another activation": (dict(hidden_act="gelu_new"), "hidden_act='gelu_new'.*only 'gelu' is supported"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_a_roberta_is_refused_by_name(tmp_path, name):
    config, says = REFUSED[name]
    with pytest.raises(UserError, match=says):
        open_huggingface(write(tmp_path / "model", "odd", "RobertaForMaskedLM", **config))


BAD_IDS = {
    "a vector": (dict(input_ids=[1, 2, 3]), "shape"),
    "rows of different lengths": (dict(input_ids=[[5, 6], [5]]), "input_ids has rows of different lengths; pad them"),
    "fractions": (dict(input_ids=[[1.5, 2]]), "integers"),
    "too long": (dict(input_ids=np.ones((1, 15), int)), "1 to 14 tokens"),
    "no such word": (dict(input_ids=[[5, 53]]), "53; this model knows 0 to 52"),
    "negative": (dict(input_ids=[[5, -1]]), "-1"),
    "mask of another shape": (dict(input_ids=[[5, 6]], attention_mask=[[1]]), "attention_mask"),
    "second segment": (dict(input_ids=[[5, 6]], token_type_ids=[[0, 1]]), "token_type_ids.*0 to 0"),
}


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    return bert_jax.load(write(tmp_path_factory.mktemp("roberta") / "model", "odd", "RobertaForMaskedLM"))


def test_a_mask_may_be_of_floats(masked):
    ids, mask = [[5, 6, 7], [8, 9, 1]], [[1, 1, 1], [1, 1, 0]]
    found, expected = (masked.encode_ids(ids, np.array(mask, kind)).last_hidden_state for kind in (np.float32, int))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", BAD_IDS)
def test_ids_that_a_model_cannot_read_are_refused(masked, name):
    arguments, says = BAD_IDS[name]
    with pytest.raises(UserError, match=says):
        masked.encode_ids(**arguments)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A RoBERTa with a byte-level vocabulary, in our form and as it is exported."""
    stored = small_roberta.stored_model()
    directory = tmp_path_factory.mktemp("exported") / "model"
    directory.mkdir()
    write_huggingface(stored, directory, "small")
    return stored, directory


def test_an_export_has_the_tokenizer_and_loads_again(exported, tmp_path):
    stored, directory = exported
    model = bert_jax.load(directory)
    assert model.tokenizer.fingerprint == stored.tokenizer.fingerprint
    assert model.config == stored.model
    candidates = model.fill_mask("The <mask> blooms <mask>.", top_k=3)
    assert len(candidates) == 2 and len(candidates[0]) == 3
    encoding = model.encode(("The rose", "a spade"))
    assert (
        encoding.tokens[0][0] == "<s>" and encoding.tokens[0].count("</s>") == 3 and not encoding.token_type_ids.any()
    )
    by_ids = model.encode_ids(encoding.input_ids, encoding.attention_mask)
    np.testing.assert_allclose(by_ids.last_hidden_state, encoding.last_hidden_state, atol=1e-5)
    shutil.copytree(directory, tmp_path / "model", ignore=shutil.ignore_patterns("vocab.json", "merges.txt"))
    assert open_huggingface(tmp_path / "model").tokenizer.fingerprint == stored.tokenizer.fingerprint


def test_a_longest_text_is_cut_to_the_positions_of_real_tokens(exported):
    model = bert_jax.load(exported[1])
    encoding = model.encode("The rose blooms. " * 40)
    assert encoding.input_ids.shape[1] == model.config.longest_sequence == model.config.max_position_embeddings - 2
    assert np.isfinite(encoding.last_hidden_state).all()


def test_two_vocabularies_that_differ_are_refused(exported, tmp_path):
    shutil.copytree(exported[1], tmp_path / "model")
    file = tmp_path / "model" / "merges.txt"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(UserError, match=r"vocab.json .* hold different vocabularies or merges"):
        open_huggingface(tmp_path / "model")
