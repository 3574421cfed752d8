"""SentencePiece vocabularies and sentence-transformers in directories of transformers."""

import dataclasses
import json
import re

import family_pieces
import numpy as np
import numpy_bert
import pytest
import safetensors.numpy
import tokenizers
from command_lines import succeed
from etils import epath
from family_pieces import FILES, OPTIONS
from huggingface_directory import refusal
from pretrained_model import CONFIG, TOKENIZER, WORDS, assert_same, stored_model
from recorded_models import CASES

from bert_jax.config import EmbeddingConfig
from bert_jax.config.heads import TokenVectors, WordVector
from bert_jax.errors import UserError
from bert_jax.formats.conversion import convert
from bert_jax.formats.huggingface import open_huggingface
from bert_jax.formats.huggingface_export import write_huggingface, write_tokenizer
from bert_jax.formats.opening import open_stored
from bert_jax.formats.sentence_transformers import read_embedding, write_embedding
from bert_jax.formats.stored import left_out
from bert_jax.pretrained.model import load
from bert_jax.tokenization.tokenizer import join, load_tokenizer, read_tokenizer


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
    with pytest.raises(UserError, match="gives its added token '<new>' the id 5, but"):
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
    assert_same(open_huggingface(place), open_huggingface(tmp_path / "back"))


def test_a_vocabulary_of_another_family_does_not_fit(tmp_path):
    tokenizer = vocabulary(tmp_path / "vocabulary", "xlm-roberta")
    place = model_of_vocabulary(tmp_path / "model", tokenizer, "camembert")
    (place / FILES["camembert"]).write_bytes((tmp_path / "vocabulary" / FILES["xlm-roberta"]).read_bytes())
    size = tokenizer.vocab_size
    assert f"vocabulary of {size + 3} entries for a word table of {size} rows" in refusal(place)
    expected = {"tidies": False, "strips_accents": False, "lowercase": False}
    assert dataclasses.asdict(tokenizer.vocabulary.cleaning) == expected


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
    "half a token": (lambda values: values["added_tokens"].append({"id": 9_999, "content": "<e1>"}), "cannot be read"),
    "an addition that is none": (
        lambda values: values.update(added_tokens=[7]),
        "adds {} with the id None to its vocabulary",
    ),
    "a table that is none": (
        lambda values: values.update(normalizer={"type": "Precompiled", "precompiled_charsmap": "%%"}),
        "not base64",
    ),
    "a table of nothing": (
        lambda values: values.update(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
        "cannot be read by SentencePiece",
    ),
    "empty": (lambda values: (values["model"].update(vocab=[]), values.update(added_tokens=[])), "begins with|has no"),
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
    with pytest.raises(UserError, match=says):
        read_tokenizer(epath.Path(tmp_path / "out"))


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


MODEL = dataclasses.replace(CONFIG, num_layers=1)  # compiles soonest
TEXTS = ["The CAT sat on the mat.", "birds", "old cats, old dogs flew on the big old tree in a house."]
MODES = {  # flag of 1_Pooling/config.json: what it means for states [L, H]
    "cls_token": lambda states: states[0],
    "max_tokens": lambda states: states.max(0),
    "mean_tokens": lambda states: states.mean(0),
    "mean_sqrt_len_tokens": lambda states: states.sum(0) / len(states) ** 0.5,
}


def kind(name: str) -> str:
    return f"sentence_transformers.models.{name}"


def directory(place, mode="mean_tokens", modules=("Transformer", "Pooling", "Normalize"), settings=None, **files):
    """A directory as sentence-transformers saves it; `files`: further ones by name without .json, dots as __."""
    place.mkdir(parents=True, exist_ok=True)
    write_huggingface(stored_model(MODEL, kind="bert_jax"), place, "test")
    listed = [
        {"idx": i, "name": str(i), "path": "" if i == 0 else f"{i}_{name}", "type": kind(name)}
        for i, name in enumerate(modules)
    ]
    (place / "modules.json").write_text(json.dumps(listed))
    (place / "1_Pooling").mkdir()
    flags = {f"pooling_mode_{name}": name == mode for name in MODES}
    (place / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 16} | flags))
    settings = {"max_seq_length": 12, "do_lower_case": False} | (settings or {})
    (place / "sentence_bert_config.json").write_text(json.dumps(settings))
    for name, content in files.items():
        (place / f"{name}.json").write_text(json.dumps(content))
    return place


def expected(model, mode, normalized: bool, longest: int = 12) -> np.ndarray:
    """One text after the other through the float64 model, cut to `longest` tokens."""
    rows = []
    for text in TEXTS:
        ids = np.array([[TOKENIZER.cls_id, *TOKENIZER.encode(text)[: longest - 2], TOKENIZER.sep_id]])
        batch = {"input_ids": ids, "token_type_ids": 0 * ids, "attention_mask": 0 * ids + 1}
        batch |= {"masked_positions": 0 * ids[:, :1]}
        row = MODES[mode](numpy_bert.forward(model.params, MODEL, batch)["last_hidden_state"][0])
        rows.append(row / np.linalg.norm(row) if normalized else row)
    return np.array(rows)


NORMALIZED = ("Transformer", "Pooling", "Normalize")


@pytest.mark.parametrize(
    "mode, modules",
    [
        *((mode, NORMALIZED) for mode in MODES),
        ("mean_tokens", NORMALIZED[:2]),
        *(pytest.param(m, NORMALIZED[:2], marks=pytest.mark.slow) for m in MODES if m != "mean_tokens"),
    ],
)
def test_embed_follows_the_modules(tmp_path, mode, modules):
    model = load(directory(tmp_path, mode, modules))
    assert max(len(TOKENIZER.encode(text)) for text in TEXTS) > 12, "one text is cut"
    np.testing.assert_allclose(model.embed(TEXTS), expected(model, mode, len(modules) == 3), atol=2e-5)
    plain = model.embed(TEXTS, pooling="mean", normalize=False, max_length=40)  # what is given counts
    np.testing.assert_allclose(plain, expected(model, "mean_tokens", False, 40), atol=2e-5)
    said = "normalized, at most 12 tokens" if len(modules) == 3 else "of the last layer, at most 12 tokens"
    assert said in repr(model)


def test_newer_names_and_defaults(tmp_path):
    for name, pooling, says in (
        ("new", {"embedding_dimension": 16, "pooling_mode": "cls"}, "cls"),
        ("old", {"word_embedding_dimension": 16}, "mean"),  # theirs, where nothing is said
        ("list", {"pooling_mode": ["max"]}, "max"),
    ):
        place = directory(tmp_path / name)
        (place / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
        assert load(place).embedding == EmbeddingConfig(pooling=says, normalize=True, max_length=12)
    place = directory(tmp_path / "lengths", settings={"max_seq_length": None})
    assert load(place).embedding.max_length == 40  # of the tokenizer, which is the model's
    (place / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, "model_max_length": 1e30}))
    assert load(place).embedding.max_length == 40
    (place / "sentence_bert_config.json").unlink()
    (place / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, "model_max_length": 20}))
    assert load(place).embedding.max_length == 20


def test_text_is_lowered_where_the_settings_say_so(tmp_path):
    words = [word.title() if word == "cat" else word for word in WORDS]
    place = directory(tmp_path, settings={"do_lower_case": True})
    for name in ("tokenizer.json", "special_tokens_map.json"):
        (place / name).unlink()
    (place / "vocab.txt").write_text("\n".join(words) + "\n")
    (place / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    model = load(place)
    np.testing.assert_array_equal(model.embed(["The Cat", ("The", "MAT")]), model.embed(["the cat", ("the", "mat")]))
    assert not np.allclose(model.encode("Cat").last_hidden_state, model.encode("cat").last_hidden_state)
    assert "text in lower case" in repr(model)


UNKNOWN = {  # files, what the message says
    "a dense layer": (dict(modules=("Transformer", "Pooling", "Dense")), "modules Transformer, Pooling, Dense"),
    "no pooling": (dict(modules=("Transformer",)), "modules Transformer;"),
    "another package": (dict(modules=[{"path": "", "type": "custom.Transformer"}]), "modules custom.Transformer"),
    "two modes": (dict(pooling={"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}), "pooling cls.mean"),
    "a weighted mean": (
        dict(pooling={"pooling_mode_weightedmean_tokens": True, "pooling_mode_mean_tokens": False}),
        "weightedmean",
    ),
    "the last token": (dict(pooling={"pooling_mode": "lasttoken"}), "pooling lasttoken"),
    "no mode": (dict(pooling={"pooling_mode_mean_tokens": False}), "pooling none"),
    "a prompt": (
        dict(prompts={"prompts": {"query": "query: "}, "default_prompt_name": "query"}),
        "default prompt 'query'",
    ),
    "a prompt that is not pooled": (
        dict(pooling={"include_prompt": False}, prompts={"prompts": {"query": "query: "}}),
        "include_prompt=False",
    ),
    "arguments": (dict(settings={"tokenizer_args": {"strip_accents": False}}), "tokenizer_args"),
    "another directory": (
        dict(modules=[{"path": "0_BERT", "type": kind("Transformer")}, {"path": "1_Pooling", "type": kind("Pooling")}]),
        "0_BERT",
    ),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_modules_that_are_not_known_make_embed_ask(tmp_path, name):
    files, says = UNKNOWN[name]
    place = directory(tmp_path, settings=files.get("settings"))
    if "modules" in files:
        modules = [
            module if isinstance(module, dict) else {"path": "1_Pooling" * (i > 0), "type": kind(module)}
            for i, module in enumerate(files["modules"])
        ]
        (place / "modules.json").write_text(json.dumps(modules))
    if "pooling" in files:
        (place / "1_Pooling" / "config.json").write_text(json.dumps(files["pooling"]))
    if "prompts" in files:
        (place / "config_sentence_transformers.json").write_text(json.dumps(files["prompts"]))
    model = load(place)
    with pytest.raises(UserError, match=f"sentence-transformers with .*{says}.*give pooling"):
        model.embed(TEXTS)
    assert "embed: needs pooling=…: sentence-transformers uses" in repr(model)


def test_an_unknown_module_leaves_the_bare_model(tmp_path):
    model = load(directory(tmp_path, modules=("Transformer", "Pooling", "Dense")))
    np.testing.assert_allclose(model.embed(TEXTS, pooling="mean"), expected(model, "mean_tokens", False, 40), atol=2e-5)


def test_prompts_that_nobody_asks_for_change_nothing(tmp_path):
    config_sentence_transformers = {"prompts": {"query": "query: "}, "default_prompt_name": None}
    place = directory(tmp_path, config_sentence_transformers=config_sentence_transformers)
    assert not load(place).embedding.unsupported


OF_FORMS = {  # the form, a file, what changes in it, what the message says
    "words that are none": ("tokens", "2_MultiVectorMask/config.json", {"skiplist_words": [[1]]}, "skiplist_words=..1"),
    "a number of words": ("tokens", "2_MultiVectorMask/config.json", {"skiplist_words": 3}, "skiplist_words=3"),
    "an expansion of 3": ("tokens", "sentence_bert_config.json", {"query_expansion": 3}, "query_expansion=3"),
    "a pooling elsewhere": ("words", "1_SpladePooling/config.json", None, "lacks the settings of one of its modules"),
}


@pytest.mark.parametrize("name", OF_FORMS)
def test_settings_of_other_forms_that_are_not_known(tmp_path, name):
    form, file, changes, says = OF_FORMS[name]
    embedding = EmbeddingConfig(form={"tokens": TokenVectors(size=8, query_length=8), "words": WordVector()}[form])
    write_embedding(embedding, 16, 40, tmp_path, None)
    assert read_embedding(tmp_path, 16, 40).form == embedding.form
    if changes is None:
        (tmp_path / file).unlink()
        with pytest.raises(UserError, match=says):
            read_embedding(tmp_path, 16, 40)
    else:
        (tmp_path / file).write_text(json.dumps(json.loads((tmp_path / file).read_text()) | changes))
        assert re.match(says, read_embedding(tmp_path, 16, 40).unsupported)


def pooled_in(path: str) -> list[dict]:
    return [{"path": "", "type": kind("Transformer")}, {"path": path, "type": kind("Pooling")}]


DAMAGED = {
    "modules that are no list": ("modules.json", {}),
    "a module without a path": ("modules.json", [{"type": kind("Pooling")}]),
    "a way out": ("modules.json", pooled_in("../1_Pooling")),
    "an absolute path": ("modules.json", pooled_in("/etc")),
    "no such directory": ("modules.json", pooled_in("9_P")),
    "pooling that is no object": ("1_Pooling/config.json", []),
    "other features": ("1_Pooling/config.json", {"word_embedding_dimension": 7}),
    "a length of text": ("sentence_bert_config.json", {"max_seq_length": "long"}),
    "a length of none": ("sentence_bert_config.json", {"max_seq_length": -1}),
    "lower case of a kind": ("sentence_bert_config.json", {"do_lower_case": "yes"}),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_are_one_line(tmp_path, name):
    file, content = DAMAGED[name]
    place = directory(tmp_path)
    (place / file).write_text(json.dumps(content))
    with pytest.raises(UserError) as caught:
        load(place)
    assert str(place) in str(caught.value)
    (place / file).write_text("[" * 100_000)
    with pytest.raises(UserError, match="is not JSON"):
        load(place)


def test_conversion_keeps_it_or_says_what_is_lost(tmp_path, capsys):
    model = load(directory(tmp_path / "theirs", "cls_token"))
    succeed("convert", f"{tmp_path}/theirs", f"{tmp_path}/ours", "--to=bert_jax")
    assert "left out" not in capsys.readouterr().out
    kept = load(tmp_path / "ours")
    assert kept.embedding == model.embedding
    np.testing.assert_allclose(kept.embed(TEXTS), expected(model, "cls_token", True), atol=2e-5)
    kept.save(tmp_path / "saved")
    assert load(tmp_path / "saved").embedding == model.embedding
    succeed("convert", f"{tmp_path}/ours", f"{tmp_path}/again", "--to=huggingface")
    assert "left out" not in capsys.readouterr().out
    assert load(tmp_path / "again").embedding == model.embedding
    lost = "left out: how embed makes vectors (cls of the last layer, normalized, at most 12 tokens); elsewhere"
    assert lost in left_out(open_stored(tmp_path / "ours"), vectors=False, remedy="; elsewhere")
