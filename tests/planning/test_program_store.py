"""Programs on disk: found by what they are made of, refused when damaged, the oldest removed."""

import gzip
import os

import pytest

from bert_jax.tools.planning import compiler
from bert_jax.tools.planning.compiler import CompiledProgram, load_program, program_key, store_program


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "bert_jax" / "plans"


def program(text: str = "HloModule") -> CompiledProgram:
    sizes = {"argument": 1, "temp": 2}
    values = dict(text=text, buffers="", live_ranges="", memory=sizes, failure="", resharding_warnings=3)
    return CompiledProgram(**values, seconds=1.5, cpu_seconds=2.5)


def test_a_program_comes_back_as_it_was():
    key = program_key("traced", "v5e:2x2", "1.0")
    assert load_program(key) is None
    store_program(key, program())
    assert load_program(key) == program()


def test_every_circumstance_makes_another_program():
    keys = [program_key(*parts) for parts in (("a", "b", "c"), ("a", "b", "d"), ("a", "bc"), ("ab", "c"), ("a", "b"))]
    assert len(set(keys)) == 5


@pytest.mark.parametrize(
    "contents",
    [
        b"",
        b"not gzip",
        gzip.compress(b"[]"),
        gzip.compress(b'{"text": 3}'),
        gzip.compress(
            b'{"text": "", "buffers": "", "live_ranges": "", "memory": {"temp": "many"}, "failure": "", '
            b'"resharding_warnings": 0, "seconds": 1, "cpu_seconds": 1}'
        ),
    ],
    ids=["empty", "not gzip", "a list", "a number for the text", "a word for a size"],
)
def test_damaged_entries_are_compiled_again(own_cache, contents):
    store_program("key", program())
    (own_cache / "key.json.gz").write_bytes(contents)
    assert load_program("key") is None


def test_torn_and_endless_entries_are_refused(own_cache, monkeypatch):
    store_program("key", program("x" * 10_000))
    file = own_cache / "key.json.gz"
    whole = file.read_bytes()
    file.write_bytes(whole[:-9])
    assert load_program("key") is None
    file.write_bytes(whole)
    monkeypatch.setattr(compiler, "LONGEST", 5_000)
    assert load_program("key") is None


def test_the_oldest_go_first(own_cache, monkeypatch):
    for number in range(3):
        store_program(str(number), program(os.urandom(500).hex()))
        os.utime(own_cache / f"{number}.json.gz", (number, number))
    monkeypatch.setattr(compiler, "MOST_BYTES", 2 * (own_cache / "0.json.gz").stat().st_size + 100)
    store_program("3", program(os.urandom(500).hex()))
    assert sorted(file.name for file in own_cache.iterdir()) == ["2.json.gz", "3.json.gz"]


def test_a_disk_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    store_program("key", program())
    assert load_program("key") is None
