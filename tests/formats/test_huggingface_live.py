"""Exports opened by transformers itself, and the numbers computed anew, where torch and transformers are installed.

Elsewhere, name the Python of an environment that has them:

    python -m venv peer && peer/bin/pip install torch transformers
    BERT_JAX_PEER=peer/bin/python python -m pytest tests/formats/test_huggingface_live.py
"""

import gzip
import json

import difficult_text
import documents
import huggingface_errors
import numpy as np
import pytest
import random_bert
from etils import epath
from models_of_parts import MODELS, make
from peer_outputs import outputs_in_order, run_with_peer
from pretrained_model import CONFIG
from recorded_models import cases_of, recorded

from bert_jax.config import TrainVocabConfig
from bert_jax.data.preparation.vocabularies import run_train_vocab
from bert_jax.formats.conversion import select
from bert_jax.formats.huggingface import open_huggingface
from bert_jax.formats.huggingface_export import write_huggingface, write_tokenizer
from bert_jax.tokenization.tokenizer import Tokenizer, load_tokenizer
from bert_jax.tokenization.wordpiece import WordPiece

CLASSES = {
    **{"pretraining": "AutoModelForPreTraining", "masked words": "AutoModelForMaskedLM", "pooled": "AutoModel"},
    **{"pairs": "AutoModelForNextSentencePrediction", "bare": "AutoModel"},
    **{"classification": "AutoModelForSequenceClassification", "regression": "AutoModelForSequenceClassification"},
    **{"choice": "AutoModelForMultipleChoice", "tagging": "AutoModelForTokenClassification"},
    **{"span": "AutoModelForQuestionAnswering", "mlm of it": "AutoModelForMaskedLM", "encoder of it": "AutoModel"},
}
TOKENIZERS = ("cased", "uncased", "unigram", "bpe")
TEXTS = [*difficult_text.without_specials(difficult_text.texts()), *documents.documents(5)]
LENGTH = 12


@pytest.fixture(scope="module")
def models() -> dict:
    """What is exported: every class, and parts of the first."""
    stored = {name: make(name) for name in MODELS}
    return stored | {f"{parts} of it": select(stored["pretraining"], parts) for parts in ("mlm", "encoder")}


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory) -> dict:
    """One of each kind, for the difficult texts."""
    place, words = tmp_path_factory.mktemp("vocabularies"), difficult_text.vocabulary()
    lower = [word for word in words if word == word.lower() or word in difficult_text.SPECIALS]
    corpus = documents.write(place / "corpus.txt", 100)
    learned = {
        method: run_train_vocab(
            TrainVocabConfig(input=str(corpus), output=str(place / f"{method}.model"), size=150, method=method)
        )
        for method in ("unigram", "bpe")
    }
    return {"cased": Tokenizer(WordPiece(words, False)), "uncased": Tokenizer(WordPiece(lower, True))} | learned


@pytest.fixture(scope="module")
def opened(peer, models, tokenizers, tmp_path_factory) -> tuple[dict, dict, dict]:
    """What transformers said of each model and of each tokenizer, and the outputs of each model."""
    directory = tmp_path_factory.mktemp("exports")
    for name, stored in models.items():
        (directory / name).mkdir()
        write_huggingface(stored, directory / name, name)
    for name, tokenizer in tokenizers.items():
        write_tokenizer(tokenizer, epath.Path(directory / name), LENGTH)
    (directory / "request.json").write_text(
        json.dumps(
            {
                "models": [
                    {
                        "path": str(directory / name),
                        "class": CLASSES[name],
                        "options": {"add_pooling_layer": False} if name == "bare" else {},
                    }
                    for name in models
                ],
                "tokenizers": [{"path": str(directory / name), "texts": TEXTS} for name in tokenizers],
                "inputs": {name: value.tolist() for name, value in inputs().items()},
            }
        )
    )
    run_with_peer(peer, "open_with_transformers.py", directory / "request.json", directory / "result.npz")
    arrays = dict(np.load(directory / "result.npz"))
    report = json.loads(str(arrays["report"]))
    outputs = {
        name: [value for key, value in arrays.items() if key.startswith(f"{number}/")]
        for number, name in enumerate(models)
    }
    return dict(zip(models, report["models"])), dict(zip(tokenizers, report["tokenizers"])), outputs


def inputs() -> dict[str, np.ndarray]:
    """Three rows with segments and padding."""
    random, column = np.random.RandomState(3), np.arange(LENGTH)
    real = column < np.array([LENGTH, 9, 5])[:, None]
    ids = np.where(real, random.randint(1, CONFIG.vocab_size, real.shape), 0)
    values = {"input_ids": ids, "token_type_ids": (column >= 4) & real, "attention_mask": real}
    return {name: value.astype(np.int32) for name, value in values.items()}


@pytest.mark.parametrize("name", CLASSES)
def test_auto_classes_open_every_export_without_a_word_and_compute_the_same(opened, models, name):
    report, outputs = opened[0][name], opened[2][name]
    assert report["log"] == report["missing_keys"] == report["unexpected_keys"] == report["mismatched_keys"] == []
    assert report["dtype"] == "torch.float32"
    expected = outputs_in_order(models[name], inputs())
    assert [value.shape for value in outputs] == [value.shape for value in expected]
    for value, own in zip(outputs, expected):
        np.testing.assert_allclose(value, own, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_auto_tokenizer_gives_our_ids(opened, tokenizers, name):
    tokenizer, report = tokenizers[name], opened[1][name]
    differing = [text for text, ids in zip(TEXTS, report["ids"]) if ids != tokenizer.encode(text)]
    assert [text for text in differing if "e\u0301\u0323" not in text or "cased" in name] == []
    a, b = tokenizer.encode("one text"), tokenizer.encode("another")
    assert report["pair"][0] == [tokenizer.cls_id, *a, tokenizer.sep_id, *b, tokenizer.sep_id]
    assert report["pair"][1] == [0] * (len(a) + 2) + [1] * (len(b) + 1) and set(report["pair"][2]) == {1}
    assert (tuple(report["specials"]), report["model_max_length"]) == (tokenizer.special_ids, LENGTH)


def test_auto_tokenizer_gives_our_ids_on_wikipedia(peer, shared_data, tmp_path):
    tokenizer = load_tokenizer(shared_data / "vocab" / "uncased")
    write_tokenizer(tokenizer, epath.Path(tmp_path / "out"), 512)
    with gzip.open(shared_data / "wiki" / "wiki_valid.txt.gz", "rt", encoding="utf-8") as file:
        texts = [line for line in file.read().split("\n") if line.strip()]
    request = {"models": [], "inputs": {}, "tokenizers": [{"path": str(tmp_path / "out"), "texts": texts}]}
    (tmp_path / "request.json").write_text(json.dumps(request))
    run_with_peer(peer, "open_with_transformers.py", tmp_path / "request.json", tmp_path / "result.npz")
    ids = json.loads(str(np.load(tmp_path / "result.npz")["report"]))["tokenizers"][0]["ids"]
    print(f"{len(texts):,} lines, {sum(map(len, ids)):,} tokens")
    assert ids == tokenizer.encode_batch(texts)


def test_the_numbers_of_this_transformers(peer, tmp_path):
    """What test_huggingface.py checks against stored arrays, against the versions that are installed."""
    run_with_peer(peer, "make_huggingface_oracle.py", tmp_path / "oracle.npz", "tiny", "odd")
    for case in random_bert.CASES[:3]:
        for quantity, found in huggingface_errors.compare(*case, tmp_path / "oracle.npz").items():
            assert found.error <= 8 * found.their_largest_error + 8 * 2**-23 * found.size, quantity
            assert found.norm_error < 3e-6 or quantity.endswith("key/bias"), quantity


@pytest.mark.parametrize("oracle", ["modernbert", "deberta", "xlnet"])
def test_exports_open_without_a_word_and_compute_the_same(peer, tmp_path, oracle):
    models = []
    for case in cases_of(oracle):
        theirs = case.save(tmp_path / f"{case.name}_theirs")
        (tmp_path / case.name).mkdir()
        write_huggingface(open_huggingface(theirs), tmp_path / case.name, case.name)
        inputs = {key: values.tolist() for key, values in case.given().items()}
        models.append({"path": str(tmp_path / case.name), "class": case.of_class, "inputs": inputs})
    (tmp_path / "request.json").write_text(json.dumps({"models": models, "tokenizers": [], "inputs": {}}))
    run_with_peer(peer, "open_with_transformers.py", tmp_path / "request.json", tmp_path / "result.npz")
    result = dict(np.load(tmp_path / "result.npz"))
    reports = json.loads(str(result["report"]))["models"]
    for number, (case, report) in enumerate(zip(cases_of(oracle), reports, strict=True)):
        assert report["log"] == report["missing_keys"] == report["unexpected_keys"] == []
        # The ends of answers apart; logits, or the states of a bare encoder.
        logits = np.stack([values for key, values in result.items() if key.startswith(f"{number}/")], -1)
        expected = case.stored("logits")
        logits = logits[case.mask] if logits.shape[:2] == case.mask.shape else logits
        np.testing.assert_allclose(logits.reshape(expected.shape), expected, atol=1e-5)


@pytest.mark.parametrize("oracle", ["modernbert", "deberta", "xlnet", "roberta", "smaller_encoders", "replaced_tokens"])
def test_the_numbers_of_this_transformers_for_models_of_drawn_parameters(peer, tmp_path, oracle):
    script, *words = ["replaced_tokens"] if oracle == "replaced_tokens" else ["model_types", oracle]
    run_with_peer(peer, f"make_{script}_oracle.py", *words, tmp_path / "oracle.npz")
    ours, theirs = recorded(oracle), np.load(tmp_path / "oracle.npz")
    assert set(ours) == set(theirs)
    for name, expected in ours.items():
        if expected.dtype.kind == "f":  # gradients of sums over logits are as large as 80
            scale = np.maximum(1, np.abs(np.atleast_1d(expected)).max(-1, keepdims=True))
            np.testing.assert_allclose(theirs[name] / scale, expected / scale, atol=1e-5, rtol=1e-4, err_msg=name)
