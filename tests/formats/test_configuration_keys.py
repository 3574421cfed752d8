"""Every key that transformers writes is used, has its value again in an export, or is refused by name.

oracles/configuration_keys.json lists the keys; oracles/make_configuration_keys.py made it.
"""

import json
import math
import pathlib

import numpy as np
import pytest
import recorded_models
import tokenizer_directories as forms
import tokenizers
from etils import epath
from huggingface_directory import ENCODER, directory, refusal
from peer_outputs import run_with_peer

import bert_jax
from bert_jax.errors import UserError
from bert_jax.formats.huggingface import ACTIVATIONS, open_huggingface, read_config, to_json
from bert_jax.formats.huggingface_export import write_tokenizer
from bert_jax.models.architecture import ACTIVATIONS as OURS
from bert_jax.tokenization.directories import carried_settings
from bert_jax.tokenization.tokenizer import read_tokenizer

FILE = pathlib.Path(__file__).parents[1] / "oracles" / "configuration_keys.json"
KEYS = json.loads(FILE.read_text())
EVERY = [(name, key) for name, values in KEYS["config.json"].items() for key in values]
OTHERS = {
    **dict.fromkeys(("dtype", "_name_or_path", "transformers_version", "architectures", "model_type")),  # of the file
    "legacy": True,  # names of arrays, of which either are read
    "tie_word_embeddings": True,  # two tables must be equal
    "local_attention": 128,  # 129 // 2 on either side as well
    "max_relative_positions": 512,  # 0 means as many as there are positions
}
"""Keys of which an export says what is true of it, and then what."""
NAMED_OTHERWISE = {"dim": "hidden_size", "d_model": "hidden_size", "num_hidden_layers": "layer_types"}


def changed(value):
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1 if isinstance(value, int) else value / 2 + 0.25
    return {str: "other", list: ["other"], dict: {"other": 1}, type(None): 7}[type(value)]


@pytest.mark.parametrize("name, key", EVERY, ids=[" ".join(pair) for pair in EVERY])
def test_no_key_of_config_json_is_lost(tmp_path, name, key):
    values = KEYS["config.json"][name] | {"id2label": {"0": "a"}, "label2id": {"a": 0}}
    if key == "model_type":
        return
    values[key] = {"id2label": {"0": "b"}, "label2id": {"b": 0}}.get(key, changed(values[key]))
    (tmp_path / "config.json").write_text(json.dumps(values))
    try:
        found = read_config(epath.Path(tmp_path))
    except UserError as error:
        assert key in str(error) or NAMED_OTHERWISE.get(key, key) in str(error)
        return
    written = to_json(found.model, None, "Model", 0, found.kind) | found.of_head | found.others
    assert written.get(key) == values[key] or (key in OTHERS and OTHERS[key] in (None, written.get(key)))


def test_keys_go_to_bert_jax_and_back(tmp_path):
    """XLNet's memory and DistilBERT's sines, and what nobody reads, with a head or without."""
    given = {"mem_len": 5, "reuse_len": 3, "use_mems_eval": False, "bos_token_id": 9, "our_note": {"a": [1, None]}}
    source = recorded_models.CASES["xlnet/words"].save(tmp_path / "xlnet", **given)
    bert_jax.convert(source, tmp_path / "ours", to="bert_jax")
    for path, place in ((source, "at once"), (tmp_path / "ours", "by us")):
        bert_jax.convert(path, tmp_path / place, to="huggingface")
        written = json.loads((tmp_path / place / "config.json").read_text())
        assert {key: written[key] for key in given} == given
    case = recorded_models.CASES["smaller_encoders/distilbert/Model"]
    bert_jax.convert(case.save(tmp_path / "distilbert", sinusoidal_pos_embds=True), tmp_path / "back", to="huggingface")
    assert json.loads((tmp_path / "back" / "config.json").read_text())["sinusoidal_pos_embds"] is True
    labels = {"id2label": {"0": "bad", "1": "good"}, "label2id": {"bad": 0, "good": 1}, "classifier_dropout": 0.3}
    bert_jax.convert(directory(tmp_path / "bare", ENCODER, **labels), tmp_path / "kept", to="huggingface")
    written = json.loads((tmp_path / "kept" / "config.json").read_text())
    assert {key: written[key] for key in labels} == labels


def test_a_key_that_nobody_knows_is_named(tmp_path, caplog):
    directory(tmp_path, use_cache=False, mem_len=4, num_experts=8, use_gates=False, auto_map={"AutoModel": "a.B"})
    open_huggingface(tmp_path)
    assert "config.json has num_experts, which nothing here reads" in caplog.text
    assert "names Python files (auto_map), which are not run; the model is read as bert" in caplog.text
    assert "mem_len" not in caplog.text and "use_gates" not in caplog.text


def _erf(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def _tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


FORMULAS = {  # as in activations.py of transformers
    "gelu": _erf,
    "gelu_python": _erf,
    "gelu_new": _tanh,
    "gelu_accurate": _tanh,
    "gelu_python_tanh": _tanh,
    "gelu_pytorch_tanh": _tanh,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
    "gelu_fast": lambda x: 0.5 * x * (1 + np.tanh(x * 0.7978845608 * (1 + 0.044715 * x * x))),
}


def test_names_of_the_activation(tmp_path):
    inputs = np.linspace(-6, 6, 201)
    for name, formula in FORMULAS.items():
        found = read_config(epath.Path(directory(tmp_path, hidden_act=name))).model.activation
        np.testing.assert_allclose(OURS[found](np.float32(inputs)), formula(inputs), atol=2e-6, err_msg=name)
    assert FORMULAS.keys() == ACTIVATIONS.keys()
    assert "hidden_act='quick_gelu'; supported are gelu, " in refusal(directory(tmp_path, hidden_act="quick_gelu"))
    case = recorded_models.CASES["roberta/odd/RobertaModel"]  # whose word head takes the exact form, whatever is said
    assert open_huggingface(case.save(tmp_path / "roberta", hidden_act="gelu_python")).model.activation == "gelu_erf"
    with pytest.raises(UserError, match="hidden_act='gelu_fast'"):
        open_huggingface(case.save(tmp_path / "roberta", hidden_act="gelu_fast"))


READ = {  # keys of tokenizer_config.json that change ids, or say where files were or what reads them
    *("add_prefix_space", "added_tokens_decoder", "do_basic_tokenize", "do_lower_case", "keep_accents", "never_split"),
    *("remove_space", "strip_accents", "tokenize_chinese_chars", "tokenizer_class", *forms.KEYS),
    *("backend", "is_local", "jumanpp_kwargs", "local_files_only", "mecab_kwargs", "spm_file", "sudachi_kwargs"),
    "vocab_file",
}


@pytest.mark.parametrize("key", KEYS["tokenizer_config.json"])
def test_no_key_of_tokenizer_config_json_is_lost(tmp_path, key, caplog):
    if key in READ:
        return  # test_tokenizer_directories.py has each that changes ids
    given = {"additional_special_tokens": ["[CLS]"], "extra_special_tokens": ["[CLS]"], "model_max_length": 7}
    value = given.get(key, {"clean_up_tokenization_spaces": False}.get(key, "other"))
    place = directory(tmp_path / "there")
    (place / "tokenizer_config.json").write_text(json.dumps({key: value}))
    (out := tmp_path / "out").mkdir()
    try:
        tokenizer = read_tokenizer(epath.Path(place))
    except UserError as error:
        assert f"has {key}='other'" in str(error)
        return
    write_tokenizer(tokenizer, epath.Path(out), 64, carried=carried_settings(epath.Path(place)))
    assert json.loads((out / "tokenizer_config.json").read_text())[key] == value and key not in caplog.text


PARTS = {
    "WordPiece": lambda: forms.wordpiece(),
    "BPE": lambda: forms.bpe(forms.pre_tokenizers.ByteLevel(add_prefix_space=False), of_bytes=True),
}
OTHER_PARTS = {
    "normalizer": {"type": "NFKD"},
    "pre_tokenizer": {"type": "Whitespace"},
    "decoder": {"type": "Fuse"},
    "truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
    "padding": {"strategy": {"Fixed": 9}, "direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}
    | {"pad_to_multiple_of": None},
    "added_tokens": [],
    "unk_token": "x",
    "continuing_subword_prefix": "o",
    "end_of_word_suffix": "d",
    "max_input_chars_per_word": 3,
    "fuse_unk": True,
    "byte_fallback": True,
    "ignore_merges": True,
}
OF_MODEL = {
    "WordPiece": ("unk_token", "continuing_subword_prefix", "max_input_chars_per_word"),
    "BPE": ("unk_token", "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges"),
}
ANYWHERE = ("normalizer", "pre_tokenizer", "decoder", "truncation", "padding", "added_tokens")
WHERE = [(kind, key) for kind in PARTS for key in (*ANYWHERE, *OF_MODEL[kind])]


@pytest.mark.parametrize("kind, key", WHERE, ids=[" ".join(pair) for pair in WHERE])
def test_every_key_of_tokenizer_json_has_its_effect(tmp_path, kind, key):
    file = forms.of_json(PARTS[kind]())
    values = json.loads(file["tokenizer.json"])
    (values if key in ANYWHERE else values["model"])[key] = OTHER_PARTS[key]
    for name, text in (file | {"tokenizer.json": json.dumps(values)}).items():
        (tmp_path / name).write_text(text)
    expected = tokenizers.Tokenizer.from_str(json.dumps(values | {"truncation": None, "padding": None}))
    words = [text for text in forms.TEXTS if text.isascii() and text.isprintable() and "x" * 101 not in text]
    expected = [expected.encode(text, add_special_tokens=False).ids for text in words]
    assert read_tokenizer(epath.Path(tmp_path)).encode_batch(words) == expected


def test_the_list_of_keys_is_that_of_this_transformers(peer, tmp_path):
    run_with_peer(peer, "make_configuration_keys.py", tmp_path / "keys.json")
    found = json.loads((tmp_path / "keys.json").read_text())
    assert found["tokenizer_config.json"] == KEYS["tokenizer_config.json"]
    for name, values in found["config.json"].items():
        assert {*values} <= {*KEYS["config.json"][name]}, name
