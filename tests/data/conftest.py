"""What the tests of `prepare` share: a vocabulary of letters, blocks and shards that small texts fill."""

import multiprocessing

import pytest
from documents import VOCABULARY
from processes import forks

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


@pytest.fixture
def forked_workers(monkeypatch) -> None:
    """Fork the workers of a preparation from a process that has its imports, which take most of the life of each.

    `prepare` starts them anew (test_any_number_of_workers_writes_the_same_bytes).
    """
    real = multiprocessing.get_context
    patched = lambda method=None: forks("bert_jax.data.preparation.prepare") if method == "spawn" else real(method)
    monkeypatch.setattr(multiprocessing, "get_context", patched)
