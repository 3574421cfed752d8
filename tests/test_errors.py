"""What is said where a library of an optional extra is missing, before anything is opened."""

import importlib.util

import pytest

import bert_jax
from bert_jax.errors import UserError

PATH = "gs://bucket/place"
CALLS = {
    "finetune, work directory": lambda: bert_jax.finetune("sst2", init_from="a", workdir=PATH, data={"dir": "b"}),
    "finetune, model": lambda: bert_jax.finetune("sst2", init_from=PATH, workdir="a", data={"dir": "b"}),
    "finetune, examples": lambda: bert_jax.finetune("sst2", init_from="a", workdir="b", data={"dir": PATH}),
    "finetune, file": lambda: bert_jax.finetune("text", init_from="a", workdir="b", train=PATH, dev="c"),
    "prepare, corpus": lambda: bert_jax.prepare(bert_jax.PrepareConfig(input=PATH, vocab="a", output="b")),
    "prepare, vocabulary": lambda: bert_jax.prepare(bert_jax.PrepareConfig(input="a", vocab=PATH, output="b")),
    "prepare, store": lambda: bert_jax.prepare(bert_jax.PrepareConfig(input="a", vocab="b", output=PATH)),
    "convert, destination": lambda: bert_jax.convert("a", PATH, to="huggingface"),
    "load": lambda: bert_jax.load(PATH),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_bucket_without_a_library_that_reads_it_is_one_line(call, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    find_spec = importlib.util.find_spec
    missing = ("tensorflow", "gcsfs")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in missing else find_spec(name))
    with pytest.raises(UserError) as caught:
        call()
    assert str(caught.value) == f"{PATH} needs gcsfs, which is not installed; pip install 'bert_jax[gcs]' installs it"
    assert list(tmp_path.iterdir()) == []
