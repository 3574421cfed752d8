"""An export of every model type with every head, opened by the Python of its card, where transformers is installed.

See test_huggingface_live.py for how to name a Python that has it.
"""

import json

import difficult_text
import family_pieces
import numpy as np
import pytest
import recorded_models
from model_type_exports import FORMS, cases, inputs, make, tokenizer_of
from peer_outputs import outputs_in_order, run_with_peer
from pretrained_model import whole

import bert_jax
from bert_jax.formats.huggingface import open_huggingface
from bert_jax.formats.huggingface_export import write_huggingface
from bert_jax.formats.model_types import MODEL_TYPES
from bert_jax.tokenization.tokenizer import join

CONVOLUTION = {"convolution_width": 3, "convolution_activation": "gelu_erf"}
INSTALLED = [name for name in FORMS if not MODEL_TYPES[name].remote_code]  # the classes of the others are elsewhere
CASES = [(*case, {}) for case in cases() if case[0] in INSTALLED]
CASES += [(name, key, CONVOLUTION) for name, key in cases() if name == "deberta-v2"]  # v2-xlarge and v2-xxlarge
CASES += [
    ("albert", "mlm", {"num_layers": rounds * inner, "layer_groups": groups, "group_layers": inner})
    for rounds, groups, inner in ((5, 2, 1), (4, 2, 2), (3, 3, 2))
]
TEXTS = difficult_text.without_specials(family_pieces.texts())


def label(name: str, key: str, options: dict) -> str:
    return " ".join((name, key, *(f"{option}={value}" for option, value in options.items())))


@pytest.fixture(scope="module")
def exports(peer, tmp_path_factory):
    """Where each export is, what transformers said of it, and the outputs; and the ids of each type's tokenizer."""
    place = tmp_path_factory.mktemp("exports")
    directories, models = {label(*case): place / label(*case) for case in CASES}, []
    for (name, key, options), directory in zip(CASES, directories.values(), strict=True):
        directory.mkdir()
        write_huggingface(stored := make(name, key, **options), directory, "small")
        given = {name: value.tolist() for name, value in inputs(stored).items()}
        if stored.model.type_vocab_size == 0:
            del given["token_type_ids"]
        models.append({"path": str(directory), "inputs": given})
    tokenizers = [{"path": str(directories[label(name, "encoder", {})]), "texts": TEXTS} for name in INSTALLED]
    (place / "request.json").write_text(json.dumps({"models": models, "tokenizers": tokenizers, "inputs": {}}))
    run_with_peer(peer, "open_with_transformers.py", place / "request.json", place / "result.npz")
    arrays = dict(np.load(place / "result.npz"))
    report = json.loads(str(arrays["report"]))
    outputs = [[arrays[key] for key in arrays if key.startswith(f"{number}/")] for number in range(len(models))]
    said = dict(zip(directories, zip(directories.values(), report["models"], outputs)))
    return said, dict(zip(INSTALLED, report["tokenizers"]))


@pytest.mark.parametrize("name, key, options", CASES, ids=[label(*case) for case in CASES])
def test_the_python_of_a_card_opens_the_model_and_it_computes_the_same(exports, name, key, options):
    directory, report, outputs = exports[0][label(name, key, options)]
    assert report["log"] == report["missing_keys"] == report["unexpected_keys"] == report["mismatched_keys"] == []
    assert report["class"] == MODEL_TYPES[name].classes["encoder" if key == "pooled" else key]
    stored = make(name, key, **options)
    batch = inputs(stored)
    real = batch["attention_mask"].astype(bool)
    expected = outputs_in_order(stored, batch)
    assert [value.shape for value in outputs] == [value.shape for value in expected]
    for value, own in zip(outputs, expected):
        rows = real if own.shape[:2] == real.shape else slice(None)  # what padding gets, nobody defines
        np.testing.assert_allclose(value[rows], np.asarray(own)[rows], atol=2e-5, rtol=1e-5)
    again = open_huggingface(directory)
    assert (again.head, again.arrays.keys()) == (stored.head, stored.arrays.keys())
    for path, array in stored.arrays.items():
        np.testing.assert_array_equal(whole(again.arrays[path]), whole(array), err_msg=path)


def test_words_of_published_debertas_are_those_of_the_layers_of_transformers(peer, tmp_path):
    """By the enhanced mask decoder in torch, which the oracle's script adds to them."""
    run_with_peer(peer, "make_model_types_oracle.py", "deberta", tmp_path / "oracle.npz")
    arrays = np.load(tmp_path / "oracle.npz")
    for name in recorded_models.DECODED:
        case = recorded_models.CASES[name]
        model = bert_jax.load(recorded_models.save_published(case, tmp_path / case.name))
        expected = arrays[f"{case.name}/decoded_logits"]
        np.testing.assert_allclose(recorded_models.logits_everywhere(model, case)[case.mask], expected, atol=1e-5)


@pytest.mark.parametrize("name", INSTALLED)
def test_auto_tokenizer_gives_our_ids_and_pairs(exports, name):
    tokenizer, report = tokenizer_of(name), exports[1][name]
    differing = [text for text, ids in zip(TEXTS, report["ids"], strict=True) if ids != tokenizer.encode(text)]
    # Equal scores of two segmentations, and two marks on a letter, written apart.
    assert all(len(text) > 90 or "e\u0301\u0323" in text for text in differing)
    ids, types = join(tokenizer, tokenizer.encode("one text"), tokenizer.encode("another"), 24)
    assert report["pair"][0] == ids.tolist()
    segments = make(name, "encoder").model.type_vocab_size > 1
    assert report["pair"][1] == (types.tolist() if segments else None)
    assert (tuple(report["specials"]), report["model_max_length"]) == (
        tokenizer.special_ids,
        make(name, "encoder").model.longest_sequence,
    )
