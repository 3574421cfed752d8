"""Options, memories, decoders and vocabularies that single model types have; test_model_types.py has the rest."""

import dataclasses
import functools
import json
import re
import shutil

import family_pieces
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import recorded_models
import safetensors.numpy
from etils import epath
from huggingface_directory import exported
from model_variants import variant
from pretrained_model import stored_model, whole
from recorded_models import CASES, check_gradients
from small_model import FLOAT32, compiled, perturbed
from tokenizers import pre_tokenizers
from vocabularies import byte_level

import bert_jax
from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.record import leaf_paths
from bert_jax.config import HeadConfig, NoPositions, ReplacedTokens
from bert_jax.config.objective import GeneratorConfig, generator_model
from bert_jax.config.options import to_dict
from bert_jax.config.presets import roberta_config
from bert_jax.devices.placement import StoredArray
from bert_jax.errors import UserError
from bert_jax.formats.conversion import new_directory, select
from bert_jax.formats.huggingface import open_huggingface, read_config
from bert_jax.formats.huggingface_export import write_huggingface
from bert_jax.formats.opening import place
from bert_jax.formats.stored import left_out
from bert_jax.models.bert import BertForPreTraining, extended_memory, with_memory
from bert_jax.models.bert_parameters import bert_parameters
from bert_jax.models.xlnet import Permutation
from bert_jax.objectives.masked_words import PretrainingObjective
from bert_jax.parameters import total_size
from bert_jax.pretrained.initialization import check_architecture
from bert_jax.tokenization.tokenizer import read_tokenizer

FILE = "model.safetensors"
HEAD = ("dense.weight", "dense.bias", "LayerNorm.weight", "LayerNorm.bias", "bias")  # of masked words in DeBERTa
ROBERTA = CASES["roberta/odd/RobertaForMaskedLM"]
XLNET = CASES["xlnet/words"]


@pytest.mark.parametrize("size", ["odd", pytest.param("segments", marks=pytest.mark.slow)])
def test_loss_and_gradients_of_a_roberta_are_those_of_torch(tmp_path, size):
    case = CASES[f"roberta/{size}/RobertaForMaskedLM"]
    stored = open_huggingface(case.save(tmp_path / "model"))
    assert stored.parts == ("mlm",)
    objective = PretrainingObjective(BertForPreTraining(stored.model, FLOAT32, ("mlm",)))
    batch = case.inputs() | {
        "masked_positions": recorded_models.PLACES,
        "masked_ids": recorded_models.words(case),
        "masked_weights": np.ones((4, 2), np.float32),
    }

    @compiled
    def measured(params):
        loss = jax.value_and_grad(lambda params: objective.sums(params, batch)["mlm"].loss / 8)
        return objective.model.mlm_logits(params, batch), *loss(params)

    logits, loss, gradients = measured(place(stored))
    np.testing.assert_allclose(logits, case.stored("logits"), atol=2e-5)
    np.testing.assert_allclose(loss, case.stored("loss"), rtol=1e-5)
    for key, values in exported(stored, tmp_path / "gradients", gradients).items():
        expected = case.stored(f"gradients/{key}")
        if key.endswith(recorded_models.ZERO):
            np.testing.assert_allclose(values, 0, atol=2e-5)
            continue
        if key == "roberta.embeddings.position_embeddings.weight":  # torch keeps the row of the padding as it is
            assert not expected[case.config["pad_token_id"]].any()
        np.testing.assert_allclose(values, expected, atol=1e-4 * np.abs(expected).max(), err_msg=key)


@pytest.mark.parametrize("kind", ["xlm-roberta", "camembert"])
def test_other_types_with_the_same_arrays(tmp_path, kind):
    source = CASES["roberta/odd/RobertaForSequenceClassification"].save(tmp_path / "model", model_type=kind)
    stored = open_huggingface(source)
    plain = open_huggingface(CASES["roberta/odd/RobertaForSequenceClassification"].save(tmp_path / "plain"))
    assert (stored.model, stored.head) == (plain.model, plain.head)
    assert stored.head.kind == "classification" and stored.parts == ("pooler", "head")


@pytest.mark.parametrize("kind, of_class", [("xlm-roberta", "XLMRoberta"), ("camembert", "Camembert")])
def test_conversions_keep_the_type_and_its_class(tmp_path, kind, of_class):
    source = ROBERTA.save(tmp_path / "model", model_type=kind)
    config = json.loads((source / "config.json").read_text()) | {"architectures": [f"{of_class}ForMaskedLM"]}
    (source / "config.json").write_text(json.dumps(config))
    for path, to in ((source, "bert_jax"), (tmp_path / "bert_jax", "huggingface"), (source, "huggingface")):
        place = tmp_path / to if path != source or to == "bert_jax" else tmp_path / "at once"
        bert_jax.convert(path, place, to=to)
    for place in (tmp_path / "huggingface", tmp_path / "at once"):
        written = json.loads((place / "config.json").read_text())
        assert (written["model_type"], written["architectures"]) == (kind, [f"{of_class}ForMaskedLM"])


def test_a_work_directory_keeps_the_positions(tmp_path):
    source, batch = ROBERTA.save(tmp_path / "model"), ROBERTA.inputs()
    bert_jax.convert(source, tmp_path / "out", to="bert_jax")
    ours, theirs = (
        bert_jax.load(path).encode_ids(batch["input_ids"], batch["attention_mask"]).last_hidden_state
        for path in (tmp_path / "out", source)
    )
    np.testing.assert_array_equal(ours, theirs)


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
    return bert_jax.load(ROBERTA.save(tmp_path_factory.mktemp("roberta")))


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
def export_of_roberta(tmp_path_factory):
    """A RoBERTa with a byte-level vocabulary, in our form and as it is exported."""
    sizes = dict(hidden_size=12, num_heads=3, num_layers=1, intermediate_size=20, max_position_embeddings=34)
    config = dataclasses.replace(roberta_config("tiny"), vocab_size=byte_level().vocab_size, **sizes)
    stored = stored_model(config, ("mlm",), tokenizer=byte_level())
    directory = tmp_path_factory.mktemp("exported") / "model"
    directory.mkdir()
    write_huggingface(stored, directory, "small")
    return stored, directory


def test_an_export_has_the_tokenizer_and_loads_again(export_of_roberta, tmp_path):
    stored, directory = export_of_roberta
    model = bert_jax.load(directory)
    assert model.tokenizer.fingerprint == stored.tokenizer.fingerprint
    assert model.config == stored.model
    candidates = model.fill_mask("The <mask> blooms <mask>.", top_k=3)
    assert len(candidates) == 2 and len(candidates[0]) == 3
    encoding = model.encode(("The rose", "a spade"))
    assert encoding.tokens[0][0] == "<s>" and encoding.tokens[0].count("</s>") == 3
    assert not encoding.token_type_ids.any()
    by_ids = model.encode_ids(encoding.input_ids, encoding.attention_mask)
    np.testing.assert_allclose(by_ids.last_hidden_state, encoding.last_hidden_state, atol=1e-5)
    shutil.copytree(directory, tmp_path / "model", ignore=shutil.ignore_patterns("vocab.json", "merges.txt"))
    assert open_huggingface(tmp_path / "model").tokenizer.fingerprint == stored.tokenizer.fingerprint


def test_a_longest_text_is_cut_to_the_positions_of_real_tokens(export_of_roberta):
    model = bert_jax.load(export_of_roberta[1])
    encoding = model.encode("The rose blooms. " * 40)
    assert encoding.input_ids.shape[1] == model.config.longest_sequence == model.config.max_position_embeddings - 2
    assert np.isfinite(encoding.last_hidden_state).all()


def test_two_vocabularies_that_differ_are_refused(export_of_roberta, tmp_path):
    shutil.copytree(export_of_roberta[1], tmp_path / "model")
    file = tmp_path / "model" / "merges.txt"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(UserError, match=r"vocab.json .* hold different vocabularies or merges"):
        open_huggingface(tmp_path / "model")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in ("deberta/third", "deberta/convolved") else name
        for name in recorded_models.DECODED
    ],
)
def test_published_words_are_those_of_two_more_passes_of_the_last_layer(tmp_path, name):
    """The enhanced mask decoder, by the layers of transformers and a head in torch."""
    case = CASES[name]
    model = bert_jax.load(recorded_models.save_published(case, tmp_path / "theirs"))
    assert model.network.parts == ("mlm", "mask_decoder")
    logits = recorded_models.logits_everywhere(model, case)
    np.testing.assert_allclose(logits[case.mask], case.stored("decoded_logits"), atol=1e-5)
    for layers in {"deberta/third": ("loop", "scan"), "deberta/first": ("scan",)}.get(name, ()):
        network = dataclasses.replace(model.network, compute=dataclasses.replace(FLOAT32, layers=layers))
        encode = compiled(lambda p, *inputs, network=network: network.encode(p, *inputs, collect=True))
        output = encode(model.params, *case.inputs().values())
        np.testing.assert_allclose(np.asarray(output.decoded)[case.mask], case.stored("decoded"), atol=2e-5)
        for index, state in enumerate(output.hidden_states):
            np.testing.assert_allclose(np.asarray(state)[case.mask], case.stored(f"states/{index}"), atol=2e-5)


def test_the_loss_of_a_published_model_is_that_of_its_decoded_words(tmp_path):
    """As evaluate measures it: from the logits that torch computed."""
    case = CASES["deberta/other words of one layer"]
    model = bert_jax.load(recorded_models.save_published(case, tmp_path / "theirs"))
    expected, places = np.zeros((*case.mask.shape, case.config["vocab_size"])), np.int32([[1, 8], [2, 4]])
    expected[case.mask] = case.stored("decoded_logits")
    words = np.int32([[5, 9], [30, 12]])
    masked = {"masked_positions": places, "masked_ids": words, "masked_weights": np.ones((2, 2), np.float32)}
    objective = PretrainingObjective(model.network)
    found = compiled(lambda params, batch: objective.sums(params, batch)["mlm"].loss)(
        model.params, case.inputs() | masked
    )
    chosen = np.take_along_axis(expected, places[..., None], 1)
    own = np.take_along_axis(chosen, words[..., None], -1)[..., 0]
    np.testing.assert_allclose(found, np.sum(np.log(np.exp(chosen).sum(-1)) - own), rtol=1e-6)


def test_rows_longer_than_the_table_of_the_mask_decoder_have_states_but_no_words(tmp_path):
    """Relative positions have no end; absolute ones do."""
    theirs = recorded_models.save_published(CASES["deberta/other words of one layer"], tmp_path / "theirs")
    model, ids = bert_jax.load(theirs), np.ones((1, 13), np.int32)
    assert model.encode_ids(ids).last_hidden_state.shape == (1, 13, 12)
    batch = {"input_ids": ids, "token_type_ids": ids * 0, "attention_mask": ids, "masked_positions": ids[:, :1]}
    with pytest.raises(UserError, match="a sequence of 13 tokens is longer .*max_position_embeddings=12 rows"):
        model.mlm_logits(batch)


LOST = {  # what is not in a directory, or is there beside the rest → what is said of it
    "no table": ({recorded_models.POSITIONS: None}, [f"doubtful: .* without {recorded_models.POSITIONS}: .* poor"]),
    "a discriminator": (
        {"mask_predictions.dense.weight": np.zeros((30, 30), np.float32)},
        [r"left out: arrays .* \(mask_predictions.dense.weight\)", "doubtful: mask_predictions.* of a discriminator"],
    ),
    "no head": (
        dict.fromkeys(f"lm_predictions.lm_head.{name}" for name in HEAD),
        [rf"left out: arrays that have no place here \({recorded_models.POSITIONS}\)"],
    ),
}


@pytest.mark.parametrize("name", LOST)
def test_what_is_lost_of_a_published_model_is_said_in_the_same_words(tmp_path, caplog, capsys, name):
    arrays, says = LOST[name]
    theirs = recorded_models.save_published(CASES["deberta/third"], tmp_path / "theirs", **arrays)
    with caplog.at_level("WARNING", logger="absl"):
        bert_jax.load(theirs)
    bert_jax.convert(theirs, tmp_path / "ours", to="bert_jax")
    printed, stored = capsys.readouterr().out, open_huggingface(theirs)
    lines = left_out(stored)
    assert len(lines) == len(says)
    for line, words in zip(lines, says, strict=True):
        assert re.match(words, line), line
        assert f"{theirs}: {line}" in caplog.messages and line in printed
    run = left_out(stored, {"embeddings", "encoder", "pooler", "head"}, vectors=False)  # a task
    heads = [] if name == "no head" else ["mlm, mask_decoder" if name == "a discriminator" else "mlm"]
    assert run == [*(f"left out: {head}" for head in heads), *(line for line in lines if "doubtful" not in line)]


def test_words_without_their_mask_decoder_are_doubted(tmp_path):
    stored = open_huggingface(recorded_models.save_published(CASES["deberta/third"], tmp_path / "theirs"))
    assert left_out(stored) == []
    lines = left_out(stored, {"embeddings", "encoder", "mlm"})
    assert lines[0] == "left out: mask_decoder" and lines[1].startswith("doubtful: ") and len(lines) == 2


@pytest.mark.parametrize("name", ["deberta/first", "deberta/third"])
def test_the_table_of_the_mask_decoder_is_written_again(tmp_path, name):
    theirs = recorded_models.save_published(CASES[name], tmp_path / "theirs")
    bert_jax.convert(theirs, tmp_path / "ours", to="bert_jax")
    for source in (theirs, tmp_path / "ours"):
        bert_jax.convert(source, tmp_path / f"back from {source.name}", to="huggingface")
        written = safetensors.numpy.load_file(tmp_path / f"back from {source.name}" / FILE)
        original = safetensors.numpy.load_file(theirs / FILE)
        names = {key: key.replace("lm_predictions.lm_head.", "cls.predictions.transform.") for key in original}
        names["lm_predictions.lm_head.bias"] = "cls.predictions.bias"
        assert written.keys() == set(names.values())
        for key, values in original.items():
            np.testing.assert_array_equal(written[names[key]], values, err_msg=key)
        again = open_huggingface(tmp_path / f"back from {source.name}")
        assert (again.parts, again.doubt) == (("mlm", "mask_decoder"), "")
    assert "enhanced mask decoder" in (tmp_path / "back from ours" / "README.md").read_text()


def test_the_options_of_published_files_are_read(tmp_path):
    """pos_att_type as words with a bar between them; max_relative_positions=-1 is max_position_embeddings."""
    written = {"pos_att_type": "p2c|c2p", "max_relative_positions": -1, "norm_rel_ebd": "layer_norm"}
    stored = open_huggingface(CASES["deberta/third"].save(tmp_path / "theirs", **written))
    assert (stored.model.disentangled.terms, stored.model.disentangled.max_distance) == ("c2p+p2c", 64)
    assert (stored.model.positions, stored.model.pooler, stored.model.pair_head) == (NoPositions(), "gelu_erf", False)


def test_version_1_has_no_class_for_multiple_choice(tmp_path):
    stored = open_huggingface(CASES["deberta/segments"].save(tmp_path / "theirs"))
    with pytest.raises(UserError, match="transformers has no class for a model of type deberta with"):
        write_huggingface(dataclasses.replace(stored, head=HeadConfig(kind="choice")), tmp_path, "small")


def test_a_discriminator_is_written_without_its_head_or_not_at_all(tmp_path):
    """transformers has no DeBERTa with the head of replaced tokens."""
    stored = open_huggingface(CASES["deberta/third"].save(tmp_path / "theirs"))
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


def test_a_generator_is_written_with_the_table_of_its_decoder(tmp_path, capsys):
    sizes = GeneratorConfig(embeddings="own", hidden_size=30, num_layers=2)
    objective = ReplacedTokens(mask_decoder=True, generator=sizes)
    model = open_huggingface(CASES["deberta/third"].save(tmp_path / "theirs")).model
    of_generator = BertForPreTraining(generator_model(model, sizes), FLOAT32, ("mlm", "mask_decoder"))
    of_both = leaf_paths(perturbed(BertForPreTraining(model, FLOAT32, ("replaced_tokens",))))
    of_both |= {f"generator/{path}": leaf for path, leaf in leaf_paths(perturbed(of_generator)).items()}
    with new_directory(tmp_path / "run") as run:
        config = {"model": to_dict(model), "objective": to_dict(objective)}
        state = {"params": jax.tree.map(np.asarray, _tree(of_both))}
        with Checkpoints(run / "checkpoints", run_id="run") as checkpoints:
            checkpoints.save(1, state, position={}, config=config)
    bert_jax.convert(tmp_path / "run", tmp_path / "generator", to="huggingface", parts="generator")
    said = [line for line in capsys.readouterr().out.splitlines() if "left out" in line]
    assert said == ["left out: discriminator"]
    written = open_huggingface(tmp_path / "generator")
    assert (written.parts, written.doubt) == (("mlm", "mask_decoder"), "")
    for path, array in written.arrays.items():
        np.testing.assert_array_equal(whole(array), of_both[f"generator/{path}"], err_msg=path)


def _tree(leaves: dict) -> dict:
    """A nested dict of leaves by path."""
    tree: dict = {}
    for path, leaf in leaves.items():
        *parents, name = path.split("/")
        functools.reduce(lambda node, parent: node.setdefault(parent, {}), parents, tree)[name] = leaf
    return tree


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
def test_spare_rows_of_the_published_word_tables_are_cut(tmp_path, caplog, multiple):
    """DeBERTa v3 has a multiple of 100, mDeBERTa one of 1,000; what is written has as many rows as config.json says."""
    theirs = CASES["deberta/third"].save(tmp_path / "theirs")
    (theirs / "spm.model").write_bytes(family_pieces.train("deberta-v2"))
    tokenizer = read_tokenizer(epath.Path(theirs))
    assert tokenizer is not None
    rows = -(-tokenizer.vocab_size // multiple) * multiple
    config, state = json.loads((theirs / "config.json").read_text()), CASES["deberta/third"].state()
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


def test_a_run_with_other_distances_cannot_start_from_it(tmp_path):
    stored = open_huggingface(CASES["deberta/first"].save(tmp_path / "theirs"))
    run = dataclasses.replace(stored.model, disentangled=dataclasses.replace(stored.model.disentangled, max_distance=7))
    message = r"max_distance is 7 here and 5 there\)\. .*--model.disentangled.max_distance=5"
    with pytest.raises(UserError, match=message):
        check_architecture(stored, run)
    check_architecture(stored, stored.model)


def test_rows_may_be_longer_than_config_json_says(tmp_path):
    """Rotary positions have no table, so the states do not depend on max_position_embeddings, as in transformers."""
    case = CASES["modernbert/words"]
    directory = case.save(tmp_path / "theirs", max_position_embeddings=8)
    ids, mask = (case.inputs()[name] for name in ("input_ids", "attention_mask"))
    types = np.ones_like(ids)  # a model without segments ignores them
    found = bert_jax.load(directory).encode_ids(ids, mask, types)
    for index, state in enumerate(found.hidden_states):
        np.testing.assert_allclose(state[case.mask], case.stored(f"states/{index}"), atol=2e-5)


def test_the_options_of_older_files_and_of_newer_ones_are_the_same_model(tmp_path):
    new = open_huggingface(CASES["modernbert/words"].save(tmp_path / "new"))
    older = {"layer_types": None, "rope_parameters": None, "global_attn_every_n_layers": 3}
    bases = {"global_rope_theta": 160_000.0, "local_rope_theta": 10_000.0}
    old = open_huggingface(CASES["modernbert/words"].save(tmp_path / "old", **older, **bases))
    assert old.model == new.model
    assert new.model.windows == (None, 3, 3, None, 3)
    assert (new.model.positions.rope_theta, new.model.positions.rope_local_theta) == (160_000.0, 10_000.0)
    scaled = {"rope_parameters": {"full_attention": {"type": "linear", "factor": 2.5}}}  # bases and the rest by default
    found = open_huggingface(CASES["modernbert/words"].save(tmp_path / "scaled", **scaled))
    assert found.model == variant(new.model, rope_scale=2.5)


OF_NOMIC = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}
OF_NOMIC |= {"intermediate_size": "n_inner", "max_position_embeddings": "n_positions"}


def test_nomic_bert_by_its_older_names(tmp_path):
    """As its authors' own code wrote them; transformers has the same names of arrays."""
    case, theirs = CASES["nomic_bert/words"], tmp_path / "theirs"
    values = {old: case.config[key] for key, old in OF_NOMIC.items()} | dict.fromkeys(OF_NOMIC)
    values |= {"rotary_emb_base": 1000, "rope_parameters": None, "activation_function": "swiglu", "hidden_act": None}
    older = open_huggingface(case.save(theirs, **values, layer_norm_epsilon=1e-12, layer_norm_eps=None))
    assert older.model == open_huggingface(case.save(tmp_path / "new")).model
    state = safetensors.numpy.load_file(theirs / FILE)
    state = {name.replace("nomic_bert.", "bert."): values for name, values in state.items()}
    safetensors.numpy.save_file(state, theirs / FILE)
    assert open_huggingface(theirs).arrays.keys() == older.arrays.keys()


@pytest.mark.parametrize(
    "values, message",
    [
        ({"moe_every_n_layers": 2}, "moe_every_n_layers=2"),
        ({"qkv_proj_bias": True}, "qkv_proj_bias=True"),
        ({"rotary_emb_fraction": 0.5}, "rotary_emb_fraction=0.5"),
        ({"hidden_act": "gelu_new"}, "hidden_act='gelu_new'; supported are silu, gelu"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 2.0}}, "rope_parameters of type 'llama3'"),
        ({"head_dim": 6}, "head_dim=6"),
    ],
)
def test_what_nomic_bert_has_not_here_is_refused(tmp_path, values, message):
    with pytest.raises(UserError, match=message):
        open_huggingface(CASES["nomic_bert/words"].save(tmp_path / "theirs", **values))


def test_nomic_bert_has_the_parameters_of_the_published_one(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "nomic_bert"}')
    assert (
        total_size(bert_parameters(read_config(epath.Path(tmp_path)).model, ())) == 136_731_648
    )  # nomic-embed-text-v1.5


def test_layers_may_all_be_local(tmp_path):
    kinds = {"layer_types": ["sliding_attention"] * 5}
    stored = open_huggingface(CASES["modernbert/words"].save(tmp_path / "theirs", **kinds))
    assert stored.model.windows == (3,) * 5
    exported(stored, tmp_path / "ours")
    written = json.loads((tmp_path / "ours/config.json").read_text())
    assert written["layer_types"] == kinds["layer_types"]
    assert open_huggingface(tmp_path / "ours").model == stored.model


def test_segments_read_one_after_the_other_have_the_states_of_transformers(tmp_path):
    """With a memory that is longer than a segment, cut at both ends, and states of padding in it."""
    model = bert_jax.load(XLNET.save(tmp_path / "theirs"))
    options, memory = recorded_models.MEMORY["xlnet/words"], None
    for number, given in enumerate(recorded_models.segments(XLNET)):
        inputs = given["input_ids"], given["attention_mask"], given["token_type_ids"]
        found = model.encode_ids(*inputs, attentions=True, memory=memory)
        real = given["attention_mask"].astype(bool)
        for index, state in enumerate(found.hidden_states):
            expected = XLNET.stored(f"memory/{number}/states/{index}")
            np.testing.assert_allclose(state[real], expected[real], atol=2e-5)
        forgetful = model.encode_ids(*inputs).last_hidden_state
        assert (np.abs(forgetful - found.last_hidden_state).max() > 1e-2) == (number > 0)
        memory = extended_memory(memory, found.hidden_states, options["mem_len"], options["reuse_len"])
    for index, weights in enumerate(found.attentions):
        rows, expected = (np.moveaxis(e, 1, 2)[real] for e in (weights, XLNET.stored(f"memory/attentions/{index}")))
        np.testing.assert_allclose(rows, expected, atol=2e-5)
    assert len(memory) == model.config.num_layers
    for index, state in enumerate(memory):
        np.testing.assert_allclose(state, XLNET.stored(f"memory/kept/{index}"), atol=2e-5)


def test_both_streams_see_a_memory_and_no_gradient_flows_through_it(tmp_path):
    case = CASES["xlnet/orders"]
    stored = open_huggingface(case.save(tmp_path / "theirs"))
    model = BertForPreTraining(stored.model, FLOAT32, stored.parts)
    before, given = recorded_models.segments(case)
    first, last = ([e[name] for name in ("input_ids", "token_type_ids", "attention_mask")] for e in (before, given))
    permutation = Permutation(*(recorded_models.orders(case)[name] for name in ("order", "targets")))

    def loss(params):
        memory = jnp.stack(extended_memory(None, model.encode(params, *first, collect=True).hidden_states))
        output = with_memory(model, memory).encode(params, *last, collect=True, permutation=permutation)
        return jnp.sum(jnp.sin(output.last_hidden_state[:, 0])), output.hidden_states

    (_, states), gradient = compiled(jax.value_and_grad(loss, has_aux=True))(place(stored))
    seen = np.concatenate([given["attention_mask"], np.ones_like(permutation.targets)], axis=1).astype(bool)
    for index, state in enumerate(states):
        expected = case.stored(f"memory/1/states/{index}")
        np.testing.assert_allclose(np.asarray(state)[seen], expected[seen], atol=2e-5)
    written = exported(stored, tmp_path / "gradients", gradient)
    check_gradients(written, case.stored("memory/gradients"))


@pytest.mark.parametrize(
    "memory, message",
    [
        ([np.zeros((2, 3, 12))], r"memory has 1 arrays \(\[2, 3, 12\]\); expected one for each of 2 layers"),
        ([np.zeros((1, 3, 12))] * 2, r"expected one for each of 2 layers, all \[2, states, 12\]"),
        ([np.zeros((2, 3, 12)), np.zeros((2, 4, 12))], r"\(\[2, 3, 12\], \[2, 4, 12\]\)"),
        ([np.zeros(12)] * 2, "expected one for each of 2 layers"),
        ([], "memory has 0 arrays"),
    ],
)
def test_a_memory_of_another_shape_is_refused(tmp_path, memory, message):
    model = bert_jax.load(XLNET.save(tmp_path / "theirs"))
    with pytest.raises(UserError, match=message):
        model.encode_ids(XLNET.inputs()["input_ids"], memory=memory)


def test_a_memory_of_no_length_is_refused():
    with pytest.raises(UserError, match="memory_length=0 must be positive"):
        extended_memory(None, [np.zeros((1, 2, 4))] * 3, 0)


def test_words_are_predicted_without_seeing_what_is_there(tmp_path):
    model = bert_jax.load(XLNET.save(tmp_path / "theirs"))
    given = XLNET.inputs()
    batch = given | {"masked_positions": np.array([[1, 4], [0, 9]], np.int32)}
    found = model.mlm_logits(batch)
    ids = batch["input_ids"].copy()
    np.put_along_axis(ids, batch["masked_positions"], 40, 1)
    np.testing.assert_array_equal(model.mlm_logits(batch | {"input_ids": ids}), found)
    ids[0, 2] = (ids[0, 2] + 1) % 41
    other = model.mlm_logits(batch | {"input_ids": ids})
    assert (other[0] != found[0]).any() and (other[1] == found[1]).all()
