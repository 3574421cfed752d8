"""What the tests of `prepare` share: blocks and shards that small texts fill."""

import pytest

from bert_jax.data.corpus import text_blocks
from bert_jax.data.store import prepare
from bert_jax.data.store import writer as store_writer


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(prepare, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(store_writer, "SHARD_TOKENS", 20_000)
