"""tokenizer.json, tokenizer_config.json and vocab.txt of Hugging Face directories: the same ids, or a refusal."""

import json

import numpy as np
import pytest
from huggingface_directory import DRAWN, TOKENS, directory, of_rows, refusal, whole

from bert_jax.formats.huggingface import open_huggingface


def fast_tokenizer(place, tokens=TOKENS, model=None, **changes):
    """A tokenizer.json as transformers writes it for BERT; vocab.txt goes."""
    values = {
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {token: i for i, token in enumerate(tokens)},
        }
        | (model or {}),
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": False,
        },
        "added_tokens": [{"id": i, "content": token, "special": True} for i, token in enumerate(tokens[:5])],
    } | changes
    (directory(place) / "tokenizer.json").write_text(json.dumps(values))
    (place / "vocab.txt").unlink(missing_ok=True)
    return place


def test_the_vocabulary_of_a_tokenizer_json(tmp_path):
    tokenizer = open_huggingface(fast_tokenizer(tmp_path)).tokenizer
    assert tokenizer.tokens == TOKENS and not tokenizer.lowercase
    assert tokenizer.encode("ab B word7") == [91, 95, 1, 12]


@pytest.mark.parametrize("entries, rows", [(90, 96), (97, 128), (65, 128), (97, 104)])
def test_padded_rows_of_the_vocabulary_are_cut_and_a_warning_says_so(tmp_path, caplog, entries, rows):
    with caplog.at_level("WARNING", logger="absl"):
        stored = open_huggingface(of_rows(tmp_path, rows, TOKENS[:entries]))
    assert f"{rows - entries} rows of the word table beyond the {entries} entries" in caplog.text
    assert stored.model.vocab_size == stored.tokenizer.vocab_size == entries
    for path in ("embeddings/word/table", "mlm/bias"):
        np.testing.assert_array_equal(whole(stored.arrays[path]), DRAWN[path][:entries])


@pytest.mark.parametrize("entries, rows", [(96, 97), (90, 97), (49, 97), (48, 96), (86, 104), (30, 1000)])
def test_missing_entries_are_no_padding(tmp_path, entries, rows):
    says = refusal(of_rows(tmp_path, rows, TOKENS[:entries]))
    assert f"vocabulary of {entries} entries for a word table of {rows:,} rows" in says
    assert (
        f"the last {rows - entries} rows are not padding" in says and "append a line for each to its vocab.txt" in says
    )
    fast_tokenizer(tmp_path, TOKENS[:entries])
    of_rows(tmp_path, rows, None)
    assert f"vocabulary of {entries} entries for a word table of {rows:,} rows" in refusal(tmp_path)


def test_too_many_entries_and_none(tmp_path):
    assert "vocabulary of 98 entries for a word table of 97 rows" in refusal(
        directory(tmp_path, tokens=[*TOKENS, "more"])
    )
    assert open_huggingface(directory(tmp_path / "none", tokens=None)).tokenizer is None


@pytest.mark.parametrize(
    "file, content",
    [
        ("added_tokens.json", {"<e1>": 97}),
        ("added_tokens.json", {"word3": 4}),
        ("added_tokens.json", {"word3": [8]}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"97": {"content": "<e1>"}}}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"0": {"content": "[CLS]"}}}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"9" * 5000: {"content": "[CLS]"}}}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"0": {"content": ["[PAD]"]}}}),
    ],
)
def test_tokens_added_beside_a_vocabulary(tmp_path, file, content):
    """transformers appends them to the vocabulary or overwrites entries; without them their rows look like padding."""
    place = of_rows(tmp_path, 104)
    open_huggingface(place)
    (place / file).write_text(json.dumps(content))
    assert f"{file} adds 1 tokens to its vocabulary" in refusal(place)


def test_entries_that_are_named_as_added_change_nothing(tmp_path):
    directory(tmp_path)
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[MASK]": 4}))
    names = {str(i): {"content": token, "special": True} for i, token in enumerate(TOKENS[:5])}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": names}))
    assert open_huggingface(tmp_path).tokenizer.tokens == TOKENS


NORMALIZER = {"type": "BertNormalizer", "lowercase": True, "clean_text": True, "handle_chinese_chars": True}
TOKENIZERS = {  # changes of tokenizer.json, what the message says
    "another model": (dict(model={"type": "BPE"}), "'BPE'"),
    "another prefix": (dict(model={"continuing_subword_prefix": "@@"}), "'@@'"),
    "ids with a gap": (
        dict(model={"vocab": {"[PAD]": 0, "a": 2}}),
        "the ids of the vocabulary must be 0 to 1; 1 is missing",
    ),
    "no vocabulary": (dict(model={"vocab": []}), "no vocabulary"),
    "no specials": (dict(model={"vocab": {"a": 0}}, added_tokens=[]), "has no [PAD]"),
    "added tokens": (dict(added_tokens=[{"content": "<e1>"}]), "adds 1 tokens to its vocabulary, first '<e1>'"),
    "added tokens that are none": (dict(added_tokens=5, model={"vocab": {"a": 0}}), "has no [PAD]"),
    "another normalizer": (dict(normalizer={"type": "NFKC"}), "'NFKC', not with BertNormalizer"),
    "accents kept": (
        dict(normalizer=NORMALIZER | {"strip_accents": False}),
        "strip_accents=False with do_lower_case=True",
    ),
    "ideographs joined": (
        dict(normalizer=NORMALIZER | {"handle_chinese_chars": False}),
        "tokenize_chinese_chars=False",
    ),
    "controls kept": (dict(normalizer=NORMALIZER | {"clean_text": False}), "clean_text=false"),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_tokenizer_json_under_which_ids_would_differ(tmp_path, name):
    changes, says = TOKENIZERS[name]
    assert says in refusal(fast_tokenizer(tmp_path, **changes))


def test_tokenizer_config(tmp_path):
    config = directory(tmp_path) / "tokenizer_config.json"
    for lowercase in (True, False):
        config.write_text(
            json.dumps({"do_lower_case": lowercase, "strip_accents": None, "tokenize_chinese_chars": True})
        )
        assert open_huggingface(tmp_path).tokenizer.lowercase == lowercase
    for values, says in (
        ({"do_lower_case": False, "strip_accents": True}, "strip_accents=True with do_lower_case=False"),
        ({"tokenize_chinese_chars": False}, "tokenize_chinese_chars=False"),
        ({"do_lower_case": 3}, "3"),
    ):
        config.write_text(json.dumps(values))
        assert says in refusal(tmp_path)
    config.write_text("{}")
    fast = json.loads((fast_tokenizer(tmp_path / "other") / "tokenizer.json").read_text())
    fast["model"]["vocab"] |= {"word0": 6, "word1": 5}
    (tmp_path / "tokenizer.json").write_text(json.dumps(fast))
    assert "different vocabularies, first at id 5: 'word0' and 'word1'" in refusal(tmp_path)
    vocabulary = [token.upper() if token == "word3" else token for token in TOKENS]
    config.write_text('{"do_lower_case": true}')
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    assert "is a cased vocabulary" in refusal(tmp_path)
