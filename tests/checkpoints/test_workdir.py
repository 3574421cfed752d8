"""The work directory as a run begins: what it holds, whose it is, and refusals that leave nothing behind."""

import json
import os
import pathlib
import re

import jax
import pytest
from etils import epath
from started_workdir import CONFIG, changed, opened, start

from bert_jax.checkpoints.workdir import read_config
from bert_jax.errors import UserError
from bert_jax.tokenization.tokenizer import load_tokenizer


def test_a_new_run(tmp_path, tokenizer):
    path = tmp_path / "runs" / "one"
    with opened(path, tokenizer) as workdir:
        assert not workdir.resumed and workdir.checkpoints == epath.Path(path) / "checkpoints"
    assert read_config(path) == CONFIG
    assert load_tokenizer(path / "tokenizer").fingerprint == tokenizer.fingerprint
    facts = json.loads((path / "run.json").read_text())
    assert (facts["store_fingerprint"], facts["tokenizer_fingerprint"]) == ("store-1", tokenizer.fingerprint)
    assert facts["starts"][0]["versions"]["jax"] == jax.__version__
    assert sorted(p.name for p in path.iterdir()) == ["config.json", "owner.json", "run.json", "tokenizer"]


def run_id(path):
    return json.loads((path / "run.json").read_text())["run_id"]


def test_a_run_keeps_its_id_and_a_fresh_one_gets_another(run, tmp_path, tokenizer):
    first = run_id(run)
    assert re.fullmatch("[0-9a-f]{32}", first)
    with opened(run, tokenizer) as workdir:
        assert workdir.run_id == run_id(run) == first
    fresh = set()
    for _ in range(2):  # nothing has been saved there
        start(tmp_path / "new", tokenizer)
        fresh.add(run_id(tmp_path / "new"))
    assert len(fresh | {first}) == 3


def test_a_run_that_saved_nothing_starts_anew(tmp_path, tokenizer):
    start(tmp_path, tokenizer)
    (tmp_path / "config.json").write_text("{")
    start(tmp_path, tokenizer, changed(seed=7), store="store-2")
    assert read_config(tmp_path).seed == 7
    assert len(json.loads((tmp_path / "run.json").read_text())["starts"]) == 1


def test_damaged_settings_of_a_run_are_named(run, tokenizer):
    (run / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"config.json is not JSON"):
        start(run, tokenizer)


@pytest.mark.parametrize("name", ["checkpoints", "metrics.jsonl", "manifest.json"])
def test_somebody_elses_directory_is_refused_untouched(tmp_path, tokenizer, name):
    (tmp_path / name).mkdir() if name == "checkpoints" else (tmp_path / name).write_text("")
    with pytest.raises(UserError, match=f"already holds {name}"):
        start(tmp_path, tokenizer)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    with pytest.raises(UserError, match="no config.json"):
        read_config(tmp_path)


def test_a_place_that_cannot_be_written_is_refused(tmp_path, tokenizer):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below", pathlib.Path("/proc/run")):
        with pytest.raises(UserError, match=f"cannot write to the work directory {path}: .*--workdir"):
            start(path, tokenizer)
    (tmp_path / "note.txt").write_text("mine")
    start(tmp_path, tokenizer)  # files of other kinds do not matter


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind root")
def test_read_only_directory(tmp_path, tokenizer):
    tmp_path.chmod(0o555)
    with pytest.raises(UserError, match="Permission denied"):
        start(tmp_path, tokenizer)


def test_only_the_first_host_writes(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    with opened(tmp_path / "run", tokenizer) as workdir:
        assert workdir.owner is None
    assert not (tmp_path / "run").exists()


def test_hosts_that_do_not_share_the_directory_are_refused(tmp_path, tokenizer, monkeypatch):
    """Each would save its part of a checkpoint to a disk of its own."""
    monkeypatch.setattr("bert_jax.checkpoints.workdir.SHARED_SECONDS", 0)
    with opened(tmp_path / "run", tokenizer) as first:
        monkeypatch.setattr(jax, "process_index", lambda: 1)
        monkeypatch.setattr(jax, "process_count", lambda: 2)
        monkeypatch.setattr("bert_jax.checkpoints.workdir.from_first", lambda value: first.files["run.json"])
        with opened(tmp_path / "run", tokenizer) as second:
            assert second.run_id == first.run_id
        with pytest.raises(
            UserError, match=r"not the same on all hosts \(its run.json is not there.*that all of them share"
        ):
            opened(tmp_path / "own", tokenizer)
    assert not (tmp_path / "own").exists()


@pytest.mark.parametrize("name, kind", [("starts", "list"), ("run_id", "str")])
@pytest.mark.parametrize("value", [3, {"a": 1}, None])
def test_an_id_or_earlier_starts_of_another_kind_are_refused(run, tokenizer, name, kind, value):
    facts = json.loads((run / "run.json").read_text())
    says = f"run.json has {name}={value!r} where a {kind} is expected: it is damaged, or another version"
    for changed_facts in (facts | {name: value}, *([] if value else [{k: v for k, v in facts.items() if k != name}])):
        (run / "run.json").write_text(json.dumps(changed_facts))
        with pytest.raises(UserError, match=says):
            start(run, tokenizer)
