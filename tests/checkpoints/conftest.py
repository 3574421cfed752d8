"""What the tests of work directories share: a tokenizer, and the directory of a run that has saved."""

import jax.numpy as jnp
import pytest
from workdirs import opened

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.tokenization.tokenizer import load_tokenizer


@pytest.fixture
def tokenizer(tmp_path_factory):
    vocab = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    vocab.write_text("".join(f"{token}\n" for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##b")))
    return load_tokenizer(vocab)


@pytest.fixture
def run(tmp_path, tokenizer):
    """A work directory whose run has saved a checkpoint."""
    path = tmp_path / "deep" / "run"
    with opened(path, tokenizer) as workdir:
        with Checkpoints(workdir.checkpoints) as checkpoints:
            checkpoints.save(5, {"x": jnp.zeros(2)}, position={}, config={})
    return path
