"""Adapters in PEFT's files: added to models of every type, written, and refused in a line.

The oracle is PEFT's own (oracles/make_peft_oracle.py). The live test needs a Python with torch, transformers and peft:

    BERT_JAX_PEER=peer/bin/python python -m pytest tests/formats/test_peft.py
"""

import dataclasses
import json
import os
import subprocess

import numpy as np
import pytest
import random_bert
import safetensors.numpy
from etils import epath
from huggingface_directory import SIZES, directory, exported
from model_type_exports import inputs, make
from peer_outputs import ORACLES, outputs_in_order, run_with_peer
from pretrained_model import every_array
from processes import SECONDS

from bert_jax.config import EmbeddingConfig, HeadConfig
from bert_jax.config.finetuning import LoraConfig
from bert_jax.config.options import to_dict
from bert_jax.errors import UserError
from bert_jax.finetuning.lora import Adapters
from bert_jax.formats.huggingface_export import write_huggingface
from bert_jax.formats.model_types import MODEL_TYPES
from bert_jax.formats.opening import open_stored
from bert_jax.formats.peft import with_adapter, write_adapter
from bert_jax.formats.stored import check_fit
from bert_jax.models.task import BertForTask
from bert_jax.tasks.task_data import recorded_options, recorded_pairs

ALIKE = ("xlm-roberta", "camembert", "electra", "mpnet", "modernbert-decoder", "deberta", "eurobert", "neobert")
ADAPTED = [
    pytest.param(name, marks=pytest.mark.slow if name in ALIKE else ())
    for name, kind in MODEL_TYPES.items()
    if "classification" in kind.classes and name != "xlnet"
]
LORA = LoraConfig(rank=2, alpha=3.0, targets=("all",))


@pytest.fixture(scope="module")
def oracle():
    with np.load(ORACLES / "peft_oracle.npz") as file:
        return dict(file)


def written(place, arrays, **config):
    """A directory as PEFT would have saved it."""
    place.mkdir(parents=True, exist_ok=True)
    safetensors.numpy.save_file(arrays, place / "adapter_model.safetensors", {"format": "pt"})
    (place / "adapter_config.json").write_text(json.dumps(config))
    return place


def of_oracle(oracle, place, arrays=None, **changes):
    found = {name.removeprefix("array/"): value for name, value in oracle.items() if name.startswith("array/")}
    return written(place, found | (arrays or {}), **json.loads(str(oracle["facts"]))["config"] | changes)


def test_what_peft_saved_computes_what_peft_says(oracle, tmp_path):
    """With square roots of ranks and patterns of both numbers; the head of the adapter is taken, without names."""
    base, adapter = directory(tmp_path / "base"), of_oracle(oracle, tmp_path / "adapter")
    stored = with_adapter(open_stored(base), adapter)
    check_fit(stored)
    assert stored.head == HeadConfig(labels=("LABEL_0", "LABEL_1", "LABEL_2")) and stored.parts == ("pooler", "head")
    batch = {name: value for name, value in random_bert.draw_batch(SIZES).items() if not name.startswith("masked")}
    # The float32 of torch is 1.4e-6 from its float64 here, and ours adds up in another order.
    np.testing.assert_allclose(outputs_in_order(stored, batch)[0], oracle["logits"], rtol=0, atol=1e-5)
    named = of_oracle(oracle, tmp_path / "named", base_model_name_or_path=str(base))
    again = every_array(open_stored(named))
    assert all(np.array_equal(value, again[path]) for path, value in every_array(stored).items())


def random_adapter(stored, seed=0):
    """The table of an adapted model, and random values of all that learns."""
    adapters, random = Adapters(BertForTask(stored.model, stored.head), LORA), np.random.default_rng(seed)
    table = adapters.parameters
    learned = {path: 0.3 * random.standard_normal(entry.shape, np.float32) for path, entry in table.items()}
    return adapters, learned


def write(place, stored, learned, adapters, base="base"):
    place = epath.Path(place)
    write_adapter(place, stored, learned, adapters.parameters, scale=adapters.scale, base=str(base))
    return place


@pytest.mark.parametrize("name", ADAPTED)
def test_what_is_written_is_what_is_read_of_every_type(name, tmp_path):
    """In our layout W + s · A · B of each layer, in theirs W + s · B · A of each module, both by NumPy."""
    stored = make(name, "classification")
    adapters, learned = random_adapter(stored)
    place = write(tmp_path / "adapter", stored, learned, adapters)
    merged = with_adapter(stored.without("head"), place)
    assert merged.head == stored.head
    found = every_array(merged)
    for path, value in every_array(stored).items():
        module = path.removesuffix("/kernel")
        if path in adapters.targets:
            factors = learned[f"{module}/lora_a"], learned[f"{module}/lora_b"]
            value = value + 1.5 * np.stack([np.tensordot(a, b, 1) for a, b in zip(*factors, strict=True)])
        np.testing.assert_allclose(found[path], learned.get(path, value), rtol=1e-6, atol=1e-6, err_msg=path)

    theirs = safetensors.numpy.load_file(place / "adapter_model.safetensors")
    told = json.loads((place / "adapter_config.json").read_text())
    before, after = exported(stored, tmp_path / "before"), exported(merged, tmp_path / "after")
    for module in told["target_modules"]:
        a, b = (theirs[f"base_model.model.{module}.lora_{factor}.weight"] for factor in "AB")
        rank, alpha = (
            told[f"{key}_pattern"].get(module, told[usual]) for key, usual in (("rank", "r"), ("alpha", "lora_alpha"))
        )
        assert rank == len(a)
        name = f"{module}.weight"
        np.testing.assert_allclose(after[name], before[name] + alpha / rank * b @ a, rtol=1e-5, atol=1e-6)
    for saved in theirs.keys() - {
        f"base_model.model.{m}.lora_{f}.weight" for m in told["target_modules"] for f in "AB"
    }:
        assert np.array_equal(theirs[saved], after[saved.removeprefix("base_model.model.")]), saved


@pytest.mark.parametrize(
    ("head", "task"),
    [
        ("regression", "SEQ_CLS"),
        ("multilabel", "SEQ_CLS"),
        ("tagging", "TOKEN_CLS"),
        ("span", "QUESTION_ANS"),
        ("choice", None),
    ],
)
def test_the_heads_of_all_tasks_are_written(head, task, tmp_path):
    stored = make("bert", head)
    adapters, learned = random_adapter(stored)
    place = write(tmp_path / "adapter", stored, learned, adapters)
    merged = with_adapter(stored.without("head"), place)
    check_fit(merged)
    assert merged.head == stored.head
    assert np.array_equal(every_array(merged)["head/kernel"], learned["head/kernel"])
    told = json.loads((place / "adapter_config.json").read_text())
    own = {"span": ["qa_outputs"], "tagging": ["classifier"]}.get(head, ["bert.pooler.dense", "classifier"])
    assert (told["task_type"], told["modules_to_save"]) == (task, own)


def test_vectors_have_an_adapter_without_a_head(tmp_path):
    """Its names are those of a bare encoder, and how the model makes vectors goes with it."""
    embedding = EmbeddingConfig(pooling="max", normalize=True, max_length=9)
    stored = make("bert", "encoder")
    adapters = Adapters(BertForTask(stored.model, HeadConfig(kind="vectors"), embedding=embedding), LORA)
    learned = {path: np.ones(entry.shape, np.float32) for path, entry in adapters.parameters.items()}
    place = write(tmp_path, dataclasses.replace(stored, embedding=embedding), learned, adapters)
    told = json.loads((place / "adapter_config.json").read_text())
    assert (told["task_type"], told["modules_to_save"]) == ("FEATURE_EXTRACTION", None)
    assert told["target_modules"][0].startswith("encoder.layer.0.attention.self.")
    merged = with_adapter(stored, place)
    assert (merged.head, merged.embedding) == (None, embedding)
    before, after = every_array(stored), every_array(merged)
    assert {path for path in before if not np.array_equal(before[path], after[path])} == {*adapters.targets}
    path = "encoder/attention/query/kernel"
    np.testing.assert_allclose(after[path], before[path] + 1.5 * LORA.rank, rtol=1e-6, atol=1e-6)


def test_an_adapter_answers_as_the_model_that_was_trained(tmp_path):
    """With its lengths and thresholds, which PEFT has no place for, and not with those of the base."""
    stored = make("bert", "multilabel")
    adapters, learned = random_adapter(stored)
    options = {"max_length": 9, "thresholds": [0.1, 0.2, 0.3]}
    task = {"task": "text", "options": options, "pairs": True}
    write_adapter(tmp_path, stored, learned, adapters.parameters, scale=1.0, base="base", task=task)
    merged = with_adapter(dataclasses.replace(stored.without("head"), history={"metrics": {"x": 1.0}}), tmp_path)
    found = recorded_options(merged.history, "text", 32, merged.head)
    assert (found.max_length, found.thresholds) == (9, (0.1, 0.2, 0.3)) and recorded_pairs(merged.history)
    for change, message in (
        ({"task": "none"}, "unknown task 'none'"),
        ({"task": None}, "task=None must be of type str"),
        ({"pairs": 3}, "task.json has pairs=3; expected true"),
        ({"options": {"max_length": "x"}}, "max_length='x' must be of type int"),
    ):
        (tmp_path / "task.json").write_text(json.dumps(task | change))
        with pytest.raises(UserError, match=message):
            with_adapter(stored, tmp_path)


def test_matrices_that_are_no_linear_layers_there_are_not_written(tmp_path):
    stored = make("xlnet", "classification")
    adapters, learned = random_adapter(stored)
    with pytest.raises(UserError, match="PEFT adapts linear layers, which encoder/attention/query is none of .*XLNet"):
        write(tmp_path, stored, learned, adapters)


QUERY = "base_model.model.bert.encoder.layer.0.attention.self.query"


@pytest.mark.parametrize(
    ("arrays", "changes", "message"),
    [
        ({}, {"peft_type": "IA3"}, r"has peft_type='IA3', which is not supported here; only 'LORA' is"),
        ({}, {"use_dora": True}, "has use_dora=True"),
        ({}, {"bias": "all"}, "has bias='all'"),
        ({}, {"init_lora_weights": "pissa"}, "has init_lora_weights='pissa'"),
        ({}, {"r": 0}, "has r=0; expected a positive whole number"),
        ({}, {"r": True}, "has r=True"),
        ({}, {"lora_alpha": "8"}, "has lora_alpha='8'; expected a positive number"),
        ({}, {"rank_pattern": {"(a+)+$": 2}}, r"rank_pattern has the regular expression '\(a\+\)\+\$'"),
        ({}, {"rank_pattern": [2]}, r"has rank_pattern=\[2\]; expected an object"),
        ({}, {"base_model_name_or_path": 3}, "base_model_name_or_path=3 .* must be texts"),
        ({}, {"r": 4}, r"lora_A is \[3, .* where \[4, .* is expected"),
        (
            {f"{QUERY}.lora_A.weight": np.zeros((2, 31), np.float32)},
            {},
            r"query.lora_A is \[2, 31\] where \[2, 32\] is",
        ),
        ({f"{QUERY}.lora_A.weight": np.zeros((2, 32), np.int32)}, {}, "I32.* is no array of an adapter"),
        ({f"{QUERY}.lora_magnitude_vector": np.zeros(2, np.float32)}, {}, "only lora_A and lora_B of linear layers"),
        (
            {"base_model.model.bert.x.lora_A.weight": np.zeros((2, 2), np.float32)},
            {},
            "only one of lora_A and lora_B of",
        ),
        (
            {"base_model.model.bert.x.weight": np.zeros(2, np.float32)},
            {},
            r"changes bert.x.weight, which .*base \(read as",
        ),
        ({"query": np.zeros(2, np.float32)}, {}, "'query' .* is no array of an adapter"),
        ({"base_model.model.classifier.weight": np.zeros((3, 31), np.float32)}, {}, r"classifier.weight is \[3, 31\]"),
    ],
)
def test_what_computes_something_else_is_refused(oracle, tmp_path, arrays, changes, message):
    base, adapter = directory(tmp_path / "base"), of_oracle(oracle, tmp_path / "adapter", arrays, **changes)
    with pytest.raises(UserError, match=message) as caught:
        with_adapter(open_stored(base), adapter)
    assert "\n" not in str(caught.value)


def test_directories_without_what_they_need(oracle, tmp_path):
    base, adapter = directory(tmp_path / "base"), of_oracle(oracle, tmp_path / "adapter")
    for place, message in (
        (base, "is no adapter of PEFT: it has no adapter_config.json"),
        (
            of_oracle(oracle, tmp_path / "gone", base_model_name_or_path=str(tmp_path / "none")),
            "names the model '.*none'",
        ),
        (of_oracle(oracle, tmp_path / "silent", base_model_name_or_path=None), "does not say which model was adapted"),
        (
            of_oracle(oracle, tmp_path / "twice", base_model_name_or_path=str(adapter)),
            "which is not one here; give that",
        ),
    ):
        with pytest.raises(UserError, match=message):
            with_adapter(open_stored(base), place) if place == base else open_stored(place)
    safetensors.numpy.save_file({}, adapter / "adapter_model.safetensors")
    with pytest.raises(UserError, match="holds no arrays, so the adapter would change nothing"):
        with_adapter(open_stored(base), adapter)
    (adapter / "adapter_model.safetensors").unlink()
    with pytest.raises(UserError, match="adapter_model.bin, a pickle, is not read"):
        with_adapter(open_stored(base), adapter)
    head = of_oracle(oracle, tmp_path / "head")
    (head / "head.json").write_text(json.dumps(to_dict(HeadConfig(kind="span"))))
    with pytest.raises(UserError, match="describes a head for span, which is not the one in"):
        with_adapter(open_stored(base), head)


@pytest.mark.slow
def test_peft_opens_ours(peer, tmp_path):
    """The outputs are those of our merged model, whether PEFT adds the changes or keeps them beside."""
    if subprocess.run([peer, "-c", "import peft"], capture_output=True, timeout=SECONDS, env=_alone()).returncode:
        pytest.skip("peft is not installed with transformers")
    models, ours = [], []
    for name in ("bert", "roberta", "distilbert", "deberta-v2", "modernbert", "albert", "electra", "mpnet"):
        stored = make(name, "classification")
        kind = MODEL_TYPES[name]
        adapters, learned = random_adapter(stored)
        base, adapter = tmp_path / name, write(tmp_path / f"{name}_adapter", stored, learned, adapters, tmp_path / name)
        base.mkdir()
        write_huggingface(stored, base, name)
        batch = inputs(stored)
        taken = [*batch] if stored.model.type_vocab_size > 1 else ["input_ids", "attention_mask"]
        models.append(
            {
                **{"base": str(base), "adapter": str(adapter), "class": kind.classes["classification"]},
                "inputs": {key: batch[key].tolist() for key in taken},
            }
        )
        ours.append(outputs_in_order(with_adapter(stored, adapter), batch)[0])
    request, result = tmp_path / "request.json", tmp_path / "result.npz"
    request.write_text(json.dumps({"models": models}))
    run_with_peer(peer, "open_with_peft.py", str(request), str(result))
    with np.load(result) as theirs:
        for number, logits in enumerate(ours):
            for form in ("beside", "merged"):
                np.testing.assert_allclose(
                    theirs[f"{number}/{form}"], logits, atol=5e-6, err_msg=models[number]["base"]
                )


def _alone():
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "XLA_FLAGS")}
