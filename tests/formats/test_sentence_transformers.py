"""Directories of sentence-transformers: `embed` makes their vectors, compared with NumPy, and refuses other layouts."""

import dataclasses
import json

import numpy as np
import numpy_bert
import pytest
from pretrained_model import CONFIG, TOKENIZER, WORDS, stored_model

from bert_jax import cli
from bert_jax.config import EmbeddingConfig
from bert_jax.errors import UserError
from bert_jax.formats.huggingface_export import write_huggingface
from bert_jax.pretrained.model import load

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
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
        batch = {
            "input_ids": ids,
            "token_type_ids": 0 * ids,
            "attention_mask": 0 * ids + 1,
            "masked_positions": 0 * ids[:, :1],
        }
        row = MODES[mode](numpy_bert.forward(model.params, MODEL, batch)["last_hidden_state"][0])
        rows.append(row / np.linalg.norm(row) if normalized else row)
    return np.array(rows)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("modules", [("Transformer", "Pooling", "Normalize"), ("Transformer", "Pooling")])
def test_embed_follows_the_modules(tmp_path, mode, modules):
    model = load(directory(tmp_path, mode, modules))
    assert max(len(TOKENIZER.encode(text)) for text in TEXTS) > 12, "one text is cut"
    np.testing.assert_allclose(model.embed(TEXTS), expected(model, mode, len(modules) == 3), atol=2e-5)
    plain = model.embed(TEXTS, pooling="mean", normalize=False, max_length=40)  # what is given counts
    np.testing.assert_allclose(plain, expected(model, "mean_tokens", False, 40), atol=2e-5)
    assert ("normalized, at most 12 tokens" if len(modules) == 3 else "of the last layer, at most 12 tokens") in repr(
        model
    )


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
    "two poolings": (
        dict(pooling={"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}),
        "pooling cls.mean",
    ),
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
    place = directory(
        tmp_path, config_sentence_transformers={"prompts": {"query": "query: "}, "default_prompt_name": None}
    )
    assert not load(place).embedding.unsupported


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
    assert "\n" not in str(caught.value) and str(place) in str(caught.value)
    (place / file).write_text("[" * 100_000)
    with pytest.raises(UserError, match="is not JSON"):
        load(place)


def test_conversion_keeps_it_or_says_what_is_lost(tmp_path, capsys):
    model = load(directory(tmp_path / "theirs", "cls_token"))
    assert cli._run(["bert-jax", "convert", f"{tmp_path}/theirs", f"{tmp_path}/ours", "--to=bert_jax"]) == 0
    assert "left out" not in capsys.readouterr().out
    kept = load(tmp_path / "ours")
    assert kept.embedding == model.embedding
    np.testing.assert_allclose(kept.embed(TEXTS), expected(model, "cls_token", True), atol=2e-5)
    kept.save(tmp_path / "saved")
    assert load(tmp_path / "saved").embedding == model.embedding
    assert cli._run(["bert-jax", "convert", f"{tmp_path}/ours", f"{tmp_path}/plain", "--to=huggingface"]) == 0
    assert (
        "left out: how embed makes vectors (cls of the last layer, normalized, at most 12 tokens)"
        in capsys.readouterr().out
    )
    assert load(tmp_path / "plain").embedding == EmbeddingConfig()
