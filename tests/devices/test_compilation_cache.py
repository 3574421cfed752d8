"""Compiled programs on disk: loaded bit-identically by the next process, discarded if torn, as the options say."""

import concurrent.futures
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import zlib

import filelock
import numpy as np
import pytest
from pretrained_model import CONFIG, stored_model
from processes import SECONDS

from bert_jax.devices.compilation import discard_torn
from bert_jax.formats.huggingface_export import write_huggingface

PROGRAM = """
import json, sys, jax, numpy as np, bert_jax
before, events = jax.config.jax_compilation_cache_dir, []
jax.monitoring.register_event_listener(lambda event, **unused: events.append(event.split("/")[-1]))
model = bert_jax.load(sys.argv[1])
embedded = model.embed(["the cat sat", "birds"])
np.savez(sys.argv[2], embed=embedded, mlm=[c.probability for c in model.fill_mask("the [MASK]")[0]])
print(json.dumps({"before": before, "directory": jax.config.jax_compilation_cache_dir,
                  "hits": events.count("cache_hits"), "misses": events.count("cache_misses")}))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> pathlib.Path:
    place = tmp_path_factory.mktemp("model")
    write_huggingface(stored_model(dataclasses.replace(CONFIG, num_layers=1), kind="bert_jax"), place, "test")
    return place


def run(model, cache: pathlib.Path, values: str = "values.npz", **environment: str) -> tuple[dict, bytes, str]:
    """A separate process: what it did with the cache, the bytes of its results (saved in `values`), and its output."""
    options = {"XDG_CACHE_HOME": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", **environment}
    kept = {name: value for name, value in os.environ.items() if "_CACHE_" not in name}  # not the cache of the tests
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(model), str(cache.parent / values)],
        env=kept | options,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    found = np.load(cache.parent / values)
    return json.loads(done.stdout), b"".join(found[name].tobytes() for name in sorted(found)), done.stderr


@pytest.mark.slow
def test_the_next_process_loads_what_the_first_has_compiled(model, tmp_path):
    cache = tmp_path / "cache"
    off, compiled, _ = run(model, cache, JAX_ENABLE_COMPILATION_CACHE="false")
    assert off["directory"] is None and not cache.exists()
    first, values, said = run(model, cache)
    assert first["before"] is None, "importing changes nothing"
    directory = pathlib.Path(first["directory"])
    assert directory.parent == cache / "bert_jax" / "programs" and directory.stat().st_mode & 0o777 == 0o700
    assert first["hits"] == 0 and first["misses"] > 1 and said == ""
    entries = sorted(directory.glob("*-cache"))
    entries[0].write_bytes(entries[0].read_bytes()[:-100])  # as if the process had been killed before the last bytes,
    entries[1].with_name(entries[1].name.replace("-cache", "-atime")).unlink()  # or before it noted the time
    second, again, said = run(model, cache)
    assert (second["hits"], second["misses"], said) == (first["misses"] - 2, 2, "")
    third, once_more, said = run(model, cache)
    assert (third["hits"], third["misses"], said) == (first["misses"], 0, "")
    assert compiled == values == again == once_more


@pytest.mark.slow
def test_two_processes_share_a_cache(model, tmp_path):
    with concurrent.futures.ThreadPoolExecutor() as threads:
        one, other = threads.map(lambda name: run(model, tmp_path / "cache", name), ["one.npz", "other.npz"])
    assert one[1] == other[1] and one[2] == other[2] == ""
    after, values, said = run(model, tmp_path / "cache")
    assert after["misses"] == 0 and values == one[1] and said == ""


@pytest.mark.slow
def test_a_directory_of_the_user_is_used_and_one_that_cannot_be_is_no_error(model, tmp_path):
    found, _, _ = run(model, tmp_path / "cache", JAX_COMPILATION_CACHE_DIR=str(tmp_path / "own"))
    assert found["before"] == found["directory"] == str(tmp_path / "own") and list((tmp_path / "own").glob("*-cache"))
    assert not (tmp_path / "cache").exists()
    (tmp_path / "file").write_text("")
    found, _, said = run(model, tmp_path / "file")
    assert found["directory"] is None and said == ""


@pytest.mark.slow
@pytest.mark.parametrize("flags, kept", [([], True), (["--no_compilation_cache"], False)])
def test_a_flag_of_any_command_turns_it_off(model, tmp_path, flags, kept):
    command = [sys.executable, "-m", "bert_jax", "fill-mask", str(model), "the [MASK]", *flags]
    environment = {name: value for name, value in os.environ.items() if "_CACHE_" not in name}
    options = {"XDG_CACHE_HOME": str(tmp_path), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    done = subprocess.run(command, env=environment | options, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    assert bool(list(tmp_path.rglob("*-cache"))) == kept


def entry(directory: pathlib.Path, name: str, contents: bytes, used: bool = True) -> None:
    (directory / f"{name}-cache").write_bytes(contents)
    if used:
        (directory / f"{name}-atime").write_bytes(bytes(8))


def test_torn_entries_are_discarded_whatever_is_missing(tmp_path):
    whole = zlib.compress(os.urandom(5000))
    entry(tmp_path, "good", whole)
    for length in (0, 1, 100, len(whole) - 1):
        entry(tmp_path, f"cut{length}", whole[:length])
    entry(tmp_path, "unused", whole, used=False)
    entry(tmp_path, "zeros", bytes(len(whole)))
    (tmp_path / "evicted-atime").write_bytes(bytes(8))
    discard_torn(tmp_path)
    kept = {"good-cache", "good-atime", "good-whole", ".lockfile"}
    assert {file.name for file in tmp_path.iterdir()} == kept
    entry(
        tmp_path, "good", whole[:100]
    )  # evicted, written anew by another process and torn: the old mark does not count
    later = (tmp_path / "good-whole").stat().st_mtime_ns + 1
    os.utime(tmp_path / "good-cache", ns=(later, later))
    discard_torn(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {".lockfile"}


def test_nothing_is_discarded_while_another_process_writes(tmp_path, monkeypatch):
    entry(tmp_path, "half", b"half")
    monkeypatch.setattr(
        filelock.FileLock, "acquire", lambda *unused, **also: (_ for _ in ()).throw(filelock.Timeout("held"))
    )
    with pytest.raises(OSError):
        discard_torn(tmp_path)
    assert (tmp_path / "half-cache").exists()
