"""What the tests of `prepare` share: a vocabulary of letters, blocks and shards that small texts fill."""

import pytest
from documents import VOCABULARY

from bert_jax.corpus import blocks
from bert_jax.data.preparation import writer as store_writer


@pytest.fixture
def vocab(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    return str(tmp_path / "vocab.txt")


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(store_writer, "SHARD_TOKENS", 20_000)
