"""SentencePiece vocabularies in directories of transformers, read and written."""

import dataclasses
import json

import family_pieces
import numpy as np
import pytest
import safetensors.numpy
import tokenizers
from etils import epath
from family_pieces import FILES, OPTIONS
from huggingface_directory import refusal
from recorded_models import CASES

from bert_jax.errors import UserError
from bert_jax.formats.conversion import convert
from bert_jax.formats.huggingface import open_huggingface
from bert_jax.formats.tokenizer_files import read_tokenizer, write_tokenizer
from bert_jax.tokenization.tokenizer import join, load_tokenizer


def vocabulary(place, family: str):
    """A directory of transformers without a model, and its tokenizer."""
    place.mkdir(exist_ok=True)
    (place / FILES[family]).write_bytes(family_pieces.train(family))
    (place / "config.json").write_text(json.dumps({"model_type": family}))
    return read_tokenizer(epath.Path(place))


def model_of_vocabulary(place, tokenizer, family: str):
    """A masked-language model of this type with as many words, without the vocabulary."""
    case = CASES["roberta/odd/RobertaForMaskedLM"]
    case.save(place, model_type=family, vocab_size=tokenizer.vocab_size)
    state = case.state()
    for name in ("roberta.embeddings.word_embeddings.weight", "lm_head.bias"):
        state[name] = np.resize(state[name], (tokenizer.vocab_size, *state[name].shape[1:]))
    safetensors.numpy.save_file(state, place / "model.safetensors", {"format": "pt"})
    return place


@pytest.mark.parametrize("family", OPTIONS)
def test_tokenizer_json_gives_our_ids(tmp_path, family):
    tokenizer = vocabulary(tmp_path / "there", family)
    write_tokenizer(tokenizer, epath.Path(tmp_path / "out"), 128)
    fast = tokenizers.Tokenizer.from_file(str(tmp_path / "out/tokenizer.json"))
    texts = [text for text in family_pieces.texts() if not any(name in text for name in ("[CLS]", "<s>", "[MASK]"))]
    differing = [text for text in texts if fast.encode(text, add_special_tokens=False).ids != tokenizer.encode(text)]
    # Equal scores of two segmentations, and two marks on a letter, written apart.
    assert all(len(text) > 90 or "e\u0301\u0323" in text for text in differing)
    for pair in (("the gardener",), ("the gardener", "before noon")):
        expected = join(tokenizer, *(tokenizer.encode(text) for text in pair), *[None] * (2 - len(pair)), 128)
        written = fast.encode(*pair)
        assert written.ids == expected[0].tolist() and written.type_ids == expected[1].tolist()
    config = json.loads((tmp_path / "out/tokenizer_config.json").read_text())
    assert (config["family"], config["model_max_length"]) == (family, 128)
    assert config.get("padding_side") == ("left" if family == "xlnet" else None)
    assert read_tokenizer(epath.Path(tmp_path / "out")).fingerprint == tokenizer.fingerprint
    assert (tmp_path / "out" / FILES[family]).read_bytes() == (tmp_path / "there" / FILES[family]).read_bytes()


def test_the_entries_that_transformers_saves_as_added_are_known(tmp_path):
    tokenizer = vocabulary(tmp_path, "xlm-roberta")
    added = {str(i): {"content": tokenizer.tokens[i]} for i in (0, 1, 2, 3, tokenizer.vocab_size - 1)}
    config = {"tokenizer_class": "XLMRobertaTokenizer", "added_tokens_decoder": added, "model_max_length": int(1e30)}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert read_tokenizer(epath.Path(tmp_path)).fingerprint == tokenizer.fingerprint
    config["added_tokens_decoder"]["5"] = {"content": "<new>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="adds 6 tokens to its vocabulary|adds 1 tokens to its vocabulary"):
        read_tokenizer(epath.Path(tmp_path))


@pytest.mark.parametrize("family", ["xlm-roberta", "camembert"])
def test_a_model_with_its_vocabulary_goes_to_bert_jax_and_back(tmp_path, family):
    tokenizer = vocabulary(tmp_path / "vocabulary", family)
    place = model_of_vocabulary(tmp_path / "model", tokenizer, family)
    (place / FILES[family]).write_bytes((tmp_path / "vocabulary" / FILES[family]).read_bytes())
    assert open_huggingface(place).tokenizer.fingerprint == tokenizer.fingerprint
    convert(place, tmp_path / "ours", to="bert_jax")
    assert load_tokenizer(tmp_path / "ours/tokenizer").fingerprint == tokenizer.fingerprint
    convert(tmp_path / "ours", tmp_path / "back", to="huggingface")
    back = open_huggingface(tmp_path / "back")
    assert back.tokenizer.fingerprint == tokenizer.fingerprint
    first, again = open_huggingface(place), back
    assert first.arrays.keys() == again.arrays.keys()
    for path, array in first.arrays.items():
        index = (slice(None),) * len(array.shape)
        np.testing.assert_array_equal(array.read(index), again.arrays[path].read(index))


def test_a_vocabulary_of_another_family_does_not_fit(tmp_path):
    tokenizer = vocabulary(tmp_path / "vocabulary", "xlm-roberta")
    place = model_of_vocabulary(tmp_path / "model", tokenizer, "camembert")
    (place / FILES["camembert"]).write_bytes((tmp_path / "vocabulary" / FILES["xlm-roberta"]).read_bytes())
    assert (
        f"vocabulary of {tokenizer.vocab_size + 3} entries for a word table of {tokenizer.vocab_size} rows"
        in refusal(place)
    )
    assert dataclasses.asdict(tokenizer.vocabulary.cleaning) == {
        "tidies": False,
        "strips_accents": False,
        "lowercase": False,
    }


@pytest.mark.parametrize("family", OPTIONS)
def test_a_tokenizer_json_without_its_model(tmp_path, family):
    """As transformers 5 saves: the .model is not written again."""
    tokenizer = vocabulary(tmp_path / "there", family)
    write_tokenizer(tokenizer, epath.Path(tmp_path / "out"), 128)
    (tmp_path / "out" / FILES[family]).unlink()
    again = read_tokenizer(epath.Path(tmp_path / "out"))
    assert (again.tokens, again.special_ids) == (tokenizer.tokens, tokenizer.special_ids)
    assert again.vocabulary.cleaning == tokenizer.vocabulary.cleaning
    assert again.vocabulary.family is tokenizer.vocabulary.family
    texts = [text for text in family_pieces.texts() if len(text) < 90]
    assert again.encode_batch(texts) == tokenizer.encode_batch(texts)
    again.save(tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").fingerprint == again.fingerprint


CHANGES = {
    "no scores": (lambda values: values["model"].update(vocab=[["a"]]), "is damaged: model.vocab"),
    "no id": (lambda values: values["model"].update(unk_id=None), "is damaged: model.vocab"),
    "half an addition": (
        lambda values: values["added_tokens"].append({"id": 9_999, "content": "<e1>"}),
        "cannot be read",
    ),
    "an addition that is none": (lambda values: values.update(added_tokens=[7]), "cannot be read by tokenizers: .*7"),
    "a table that is none": (
        lambda values: values.update(normalizer={"type": "Precompiled", "precompiled_charsmap": "%%"}),
        "not base64",
    ),
    "a table of nothing": (
        lambda values: values.update(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
        "cannot be read by SentencePiece",
    ),
    "no pieces": (
        lambda values: (values["model"].update(vocab=[]), values.update(added_tokens=[])),
        "begins with|has no",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_tokenizer_json_that_sentencepiece_cannot_read(tmp_path, name):
    change, says = CHANGES[name]
    write_tokenizer(vocabulary(tmp_path / "there", "albert"), epath.Path(tmp_path / "out"), 128)
    (tmp_path / "out" / FILES["albert"]).unlink()
    file = tmp_path / "out/tokenizer.json"
    values = json.loads(file.read_text())
    change(values)
    file.write_text(json.dumps(values))
    with pytest.raises(UserError, match=says) as found:
        read_tokenizer(epath.Path(tmp_path / "out"))
    assert "\n" not in str(found.value)


def test_a_mask_that_is_added_behind_the_pieces(tmp_path):
    tokenizer = vocabulary(tmp_path / "there", "deberta-v2")
    write_tokenizer(tokenizer, epath.Path(tmp_path / "out"), 128)
    (tmp_path / "out" / FILES["deberta-v2"]).unlink()
    file = tmp_path / "out/tokenizer.json"
    values = json.loads(file.read_text())
    assert values["model"]["vocab"].pop()[0] == "[MASK]"
    file.write_text(json.dumps(values))
    again = read_tokenizer(epath.Path(tmp_path / "out"))
    assert (again.tokens, again.special_ids) == (tokenizer.tokens, tokenizer.special_ids)
