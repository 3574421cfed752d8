"""A preparation that was interrupted: continued, or begun again where its files are damaged."""

import json
import random

import pytest
from letter_corpus import VOCABULARY, contents, random_documents, run, write_corpus

from bert_jax.config.json_form import from_dict
from bert_jax.data.preparation import writer as store_writer
from bert_jax.data.preparation.writer import Progress, resume
from bert_jax.errors import UserError
from bert_jax.files import sealed, unsealed


@pytest.fixture
def interrupted(tmp_path, vocab, small_blocks, monkeypatch):
    """(corpus, vocabulary, output) of a run that broke off with one shard closed and the next one open."""
    corpus, store = write_corpus(tmp_path / "a.txt", random_documents(100)), tmp_path / "store"
    append = store_writer.StoreWriter.append

    def break_off(writer, block, continues):
        if writer.state.shards and writer.state.sentences > 20:
            raise OSError(28, "No space left on device")
        append(writer, block, continues)

    with monkeypatch.context() as patch, pytest.raises(UserError, match="No space left"):
        patch.setattr(store_writer.StoreWriter, "append", break_off)
        run(corpus, vocab, store)
    assert (store / "shard-00001.tokens").stat().st_size > 100
    return corpus, vocab, store


def cut(data: bytes) -> bytes:
    return data[:10]


def flip(data: bytes) -> bytes:
    return data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]


def lengthen(data: bytes) -> bytes:
    """Of an open shard this would be text that the record does not know of yet."""
    return data + b"more"


@pytest.mark.parametrize(
    "name, damage",
    [
        ("shard-00000.tokens", cut),
        ("shard-00000.tokens", flip),
        ("shard-00000.documents", flip),
        ("shard-00000.sentences", lengthen),
        ("shard-00001.tokens", cut),
        ("shard-00001.tokens", flip),
        ("shard-00001.sentences", flip),
    ],
)
def test_shards_damaged_since_the_interruption_are_made_again(tmp_path, interrupted, capsys, name, damage):
    corpus, vocab, store = interrupted
    (store / name).write_bytes(damage((store / name).read_bytes()))
    run(corpus, vocab, store)
    shown = capsys.readouterr().out
    assert f"{name} does not hold what the interrupted run wrote" in shown and "resuming in" not in shown
    run(corpus, vocab, tmp_path / "whole")
    assert contents(store) == contents(tmp_path / "whole")


def test_a_vocabulary_damaged_since_the_interruption_is_not_used(tmp_path, interrupted, capsys):
    corpus, vocab, store = interrupted
    (store / "tokenizer" / "vocab.txt").write_text("\n".join([*VOCABULARY[:5], *reversed(VOCABULARY[5:])]) + "\n")
    (store / "tokenizer" / "added_tokens.json").write_text("{}")
    run(corpus, vocab, store)
    assert "resuming in" in capsys.readouterr().out
    run(corpus, vocab, tmp_path / "whole")
    assert contents(store) == contents(tmp_path / "whole")


def test_no_changed_bit_of_the_progress_goes_unnoticed(interrupted):
    corpus, vocab, store = interrupted
    path, draw = store / "progress.json", random.Random(0)
    original = path.read_bytes()
    made_from = from_dict(Progress, unsealed(json.loads(original))).made_from
    expected = resume(store, made_from)
    for place in range(len(original)):
        changed = bytearray(original)
        changed[place] ^= 1 << draw.randrange(8)
        path.write_bytes(changed)
        try:
            assert resume(store, made_from) == expected, place
        except UserError as error:
            assert "\n" not in str(error), place


@pytest.mark.parametrize("name", ["checksum", "cleaning"])
def test_progress_that_lacks_something_is_not_resumed(interrupted, name):
    corpus, vocab, store = interrupted
    values = json.loads((store / "progress.json").read_text())
    if name != "checksum":
        values = unsealed(values)
        del values[name]
        values = sealed(values)
    else:
        del values["checksum"]
    (store / "progress.json").write_text(json.dumps(values))
    says = "it has no checksum" if name == "checksum" else f"missing: {name}"
    with pytest.raises(UserError, match=f"progress.json is damaged: {says}; delete .* and start again"):
        run(corpus, vocab, store)
