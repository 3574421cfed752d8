"""Directories with vocabularies like those of multilingual and Chinese BERT: cased, of many scripts, of ideographs."""

import json

import numpy as np
import pytest
import tokenizers
from google_tokenization import google
from huggingface_directory import of_rows, whole
from peer_outputs import run_with_peer

import bert_jax
from bert_jax.formats.huggingface import open_huggingface

SPECIALS = "[PAD] [unused1] [UNK] [CLS] [SEP] [MASK]".split()
PUNCTUATION = list(".,-'。，《》।،¿")
WORDS = {
    "multilingual": (
        "Straße Stra ##ßen Café caf ##é École naï ##ve die Der El niño "
        "Москва моск ##ов ##ский "
        "Ελλάδα λόγ ##ος سلام ال ##كتاب "
        "שלום ה ##ספר नम ##स्ते हिन्दी "
        "ไทย ภา ##ษา ##ไทย 한국 ##어 서울 東 京 カ ##タ ##カナ თბ "
        "##ილ Հայ ##երեն 19 ##87 ##9"
    ).split(),
    "chinese": "我 爱 北 京 天 安 门 年 的 语 言 ##京 ##天 龘 㐀 20 ##08 bert nba ##s 2 ##0 google".split(),
}
TEXTS = {
    "multilingual": [
        "Der Café-Straßen, Stra-café, die Straße; STRASSE",
        "École naïve, ¿El niño? ecole naive nino",
        "Москва московский москва",
        "Ελλάδα λόγος λογος",
        "سلام، الكتاب שלום הספר",
        "नमस्ते हिन्दी। ภาษาไทย ไทย",
        "한국어 서울 東京カタカナ。 თბილ Հայերեն 1987, 199",
    ],
    "chinese": [
        "我爱北京天安门，2008年的语言。",
        "我爱bert和BERT, NBA nbas 年google",  # capitals are no entries, and nothing lowers them
        "《龘》㐀 20年 2000",
    ],
}


def directory(place, name: str):
    """What transformers would have saved of a BERT with this vocabulary."""
    tokens = [*SPECIALS, *PUNCTUATION, *WORDS[name]]
    of_rows(place, len(tokens), tokens)
    (place / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False, "model_max_length": 512}))
    return place


@pytest.mark.parametrize("name", WORDS)
def test_text_is_read_as_by_google_and_written_again(tmp_path, name):
    place, out = directory(tmp_path / "theirs", name), tmp_path / "out"
    stored = open_huggingface(place)
    tokenizer = stored.need_tokenizer()
    assert not tokenizer.lowercase and tokenizer.vocab_size == stored.model.vocab_size
    expected = [google(text, set(tokenizer.tokens), lowercase=False) for text in TEXTS[name]]
    assert [[tokenizer.tokens[i] for i in tokenizer.encode(text)] for text in TEXTS[name]] == expected
    words = [piece for row in expected for piece in row]
    assert 0 < words.count("[UNK]") < len(words) / 4 and len(set(WORDS[name]) - set(words)) < len(WORDS[name]) / 4
    bert_jax.convert(place, out, to="huggingface")
    assert (out / "vocab.txt").read_bytes() == (place / "vocab.txt").read_bytes()
    assert json.loads((out / "tokenizer_config.json").read_text())["do_lower_case"] is False
    written = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
    assert [written.encode(text, add_special_tokens=False).tokens for text in TEXTS[name]] == expected
    again = open_huggingface(out)
    assert again.need_tokenizer().fingerprint == tokenizer.fingerprint
    for path, array in stored.arrays.items():
        np.testing.assert_array_equal(whole(again.arrays[path]), whole(array), err_msg=path)


def test_auto_tokenizer_reads_the_original_and_the_export_alike(peer, tmp_path):
    """Its BertTokenizer reads the original, whose files are its own."""
    requests, expected = [], []
    for name in WORDS:
        place, out = directory(tmp_path / name, name), tmp_path / f"{name} out"
        bert_jax.convert(place, out, to="huggingface")
        requests += [{"path": str(each), "texts": TEXTS[name]} for each in (place, out)]
        expected += 2 * [open_huggingface(place).need_tokenizer().encode_batch(TEXTS[name])]
    (tmp_path / "request.json").write_text(json.dumps({"models": [], "inputs": {}, "tokenizers": requests}))
    run_with_peer(peer, "open_with_transformers.py", tmp_path / "request.json", tmp_path / "result.npz")
    report = json.loads(str(np.load(tmp_path / "result.npz")["report"]))["tokenizers"]
    assert [each["ids"] for each in report] == expected
