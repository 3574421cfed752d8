"""Work directories: their record, their owner, runs that take them, and settings that have changed."""

import dataclasses
import fcntl
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
from unittest import mock

import jax
import jax.numpy as jnp
import pytest
from etils import epath
from processes import wait_until
from workdirs import CONFIG, changed, contents, held_by_another, no_locks, opened, start

from bert_jax import ownership
from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.cli.evaluate import default_config
from bert_jax.config import OptimizerConfig, PhaseConfig
from bert_jax.errors import UserError
from bert_jax.ownership import Owner
from bert_jax.tokenization.tokenizer import load_tokenizer
from bert_jax.training_data import read_config


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
    for name in ("a[1]", "a*", "a?b"):  # the library of checkpoints would take it for a pattern
        with pytest.raises(UserError, match=r"has [\[*?] in its name, where checkpoints cannot be kept; give another"):
            start(tmp_path / name, tokenizer)
        assert not (tmp_path / name).exists()
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
        message = r"not the same on all hosts \(its run.json is not there.*that all of them share"
        with pytest.raises(UserError, match=message):
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


HOLD = """
import sys, time
from etils import epath
from bert_jax.ownership import Owner
held = Owner(epath.Path(sys.argv[1]))
print(flush=True)
time.sleep(3600)
"""


def test_one_live_writer_and_takeover_after_kill(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        with pytest.raises(UserError, match=rf"written by process {process.pid} on {os.uname().nodename} since 20"):
            Owner(epath.Path(tmp_path))
        process.send_signal(signal.SIGKILL)
    first = Owner(epath.Path(tmp_path))
    with pytest.raises(UserError, match=f"process {os.getpid()} "):
        Owner(epath.Path(tmp_path))
    first.release()
    Owner(epath.Path(tmp_path)).release()


def test_ownership_by_time_stamp_where_there_are_no_locks(tmp_path, monkeypatch):
    monkeypatch.setattr(ownership.fcntl, "flock", no_locks)
    monkeypatch.setattr(ownership, "RENEW_SECONDS", 0.02)
    file = tmp_path / "owner.json"

    first = Owner(epath.Path(tmp_path))
    with pytest.raises(UserError, match=f"process {os.getpid()} "):
        Owner(epath.Path(tmp_path))
    renewed = json.loads(file.read_text())["renewed"]
    wait_until(lambda: json.loads(file.read_text())["renewed"] != renewed)
    assert json.loads(file.read_text())["renewed"] > renewed
    first.release()
    assert not file.exists()

    def left_behind(**facts):
        file.write_text(
            json.dumps({"host": os.uname().nodename, "since": "now", "id": "x", "renewed": time.time(), **facts})
        )

    gone = 2**30  # no system gives such numbers
    for facts in (
        {"pid": gone},
        {"pid": 1, "host": "elsewhere", "renewed": time.time() - ownership.STALE_SECONDS - 1},
    ):
        left_behind(**facts)
        Owner(epath.Path(tmp_path)).release()
    for facts in ({"pid": os.getppid()}, {"host": "elsewhere", "pid": gone}):
        left_behind(**facts)
        with pytest.raises(UserError, match="is being written by"):
            Owner(epath.Path(tmp_path))
    file.write_text('{"pid"')  # torn
    Owner(epath.Path(tmp_path)).release()


@pytest.mark.parametrize(
    "facts",
    [
        b"[" * 100_000,
        b"\xff\xfe",
        b"7",
        b'{"pid": 1' + b"0" * 400 + b', "host": [], "renewed": "now"}',
        b'{"renewed": {}}',
        json.dumps({"host": "two\nlines", "pid": "x", "since": "y" * 100_000}).encode(),
    ],
    ids=lambda facts: facts[:30],
)
def test_a_damaged_owner_file(tmp_path, monkeypatch, facts):
    """With locks it only names who has the directory; without, it is one that a crash has torn."""
    file = tmp_path / "owner.json"
    file.write_bytes(facts)
    with open(file) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(UserError, match=r"is being written by process \? on \? since \?; wait for it"):
            Owner(epath.Path(tmp_path))
    Owner(epath.Path(tmp_path)).release()
    file.write_bytes(facts)
    monkeypatch.setattr(ownership.fcntl, "flock", mock.Mock(side_effect=OSError("no locks here")))
    Owner(epath.Path(tmp_path)).release()
    now = time.time()  # somebody renews it, though the rest is damaged
    for left in ({}, {"host": os.uname().nodename}, {"host": 3, "pid": []}):
        file.write_text(json.dumps({"renewed": now, **left}))
        with pytest.raises(UserError, match="is being written by"):
            Owner(epath.Path(tmp_path))


def test_another_owner_s_time_stamp_is_not_written_over(tmp_path, monkeypatch):
    monkeypatch.setattr(ownership.fcntl, "flock", no_locks)
    monkeypatch.setattr(ownership, "RENEW_SECONDS", 0.02)
    ours, file, renewals = Owner(epath.Path(tmp_path)), tmp_path / "owner.json", []
    theirs = json.dumps({"host": "elsewhere", "pid": 1, "since": "now", "id": "x", "renewed": time.time()})
    with ours.renewing:  # not as ours is being written
        file.write_text(theirs)
        monkeypatch.setattr(
            Owner, "holds", lambda self, holds=Owner.holds: renewals.append(holds(self)) or renewals[-1]
        )
    wait_until(lambda: len(renewals) >= 3)
    assert not any(renewals) and file.read_text() == theirs
    with pytest.raises(UserError, match="is being written by process 1 on elsewhere"):
        ours.take()
    ours.release()
    assert file.read_text() == theirs


@pytest.fixture(params=["locks", "time stamps"])
def taken(request, tmp_path, tokenizer, monkeypatch):
    """A work directory that this process writes to, on a file system with locks or without."""
    if request.param == "time stamps":
        monkeypatch.setattr(ownership.fcntl, "flock", no_locks)
    with opened(tmp_path / "run", tokenizer) as workdir:
        yield workdir


LOSSES = {
    "deleted": shutil.rmtree,
    "renamed": lambda path: path.rename(path.with_name("elsewhere")),
    "emptied": lambda path: [shutil.rmtree(file) if file.is_dir() else file.unlink() for file in path.iterdir()],
    "no config.json": lambda path: (path / "config.json").unlink(),
    "no tokenizer": lambda path: shutil.rmtree(path / "tokenizer"),
    "no owner.json": lambda path: (path / "owner.json").unlink(),
    "a copy of itself": lambda path: (path.rename(path.with_name("old")), shutil.copytree(path.with_name("old"), path)),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_directory_that_is_lost_during_a_run_is_written_again(taken, tokenizer, caplog, loss):
    """And is this run's again: the next start finds it whole, and until then another process is refused."""
    path = pathlib.Path(taken.path)
    before = contents(path)
    assert taken.is_ours() and not taken.secure()
    LOSSES[loss](path)
    if loss == "a copy of itself" and taken.owner.holds():  # without locks its content is all that tells who owns it
        return
    name = loss.removeprefix("no ")
    only = name if name in ("config.json", "tokenizer") else None  # the directory with its checkpoints is still there
    assert taken.secure() == (only is None) and taken.is_ours() and not taken.secure()
    said = f"{path} lacked {only}" if only else f"{path} was deleted, renamed or replaced during this run"
    assert said in caplog.text and contents(path) == before
    with pytest.raises(UserError, match=f"is being written by process {os.getpid()} "):
        Owner(epath.Path(path))
    with Checkpoints(taken.checkpoints, run_id=taken.run_id) as checkpoints:
        checkpoints.save(5, {"x": jnp.zeros(2)}, position={}, config={})
    taken.release()
    with opened(path, tokenizer) as again:
        assert again.resumed and again.run_id == taken.run_id


def test_a_directory_that_another_process_has_taken_during_a_run_is_left_alone(tmp_path, tokenizer):
    path = tmp_path / "run"
    with opened(path, tokenizer) as workdir:
        path.rename(tmp_path / "elsewhere")
        path.mkdir()
        with held_by_another(path, 4711):
            before = (path / "owner.json").read_bytes()
            assert not workdir.is_ours()
            with pytest.raises(UserError, match=f"{path} is being written by process 4711 "):
                workdir.secure()
            assert [(file.name, file.read_bytes()) for file in path.iterdir()] == [("owner.json", before)]


@pytest.mark.parametrize("there", ["another run", "another program"])
def test_a_directory_that_holds_something_else_during_a_run_is_left_alone(taken, tmp_path, tokenizer, there):
    path = pathlib.Path(taken.path)
    path.rename(tmp_path / "elsewhere")
    if there == "another run":
        start(path, tokenizer, changed(seed=3))
    else:
        path.mkdir()
        (path / "config.json").write_text('{"model_type": "bert"}')
    before = contents(path)
    message = f"{path} was deleted or renamed during .* and holds something else.*another --workdir"
    with pytest.raises(UserError, match=message):
        taken.secure()
    assert contents(path) == before


def test_a_run_whose_config_json_lacks_an_option_is_not_guessed_at(run, tokenizer):
    whole = json.loads((run / "config.json").read_text())
    for group, name in (("objective", "mlm_weight"), ("data", "packing")):
        values = {**whole, group: {key: value for key, value in whole[group].items() if key != name}}
        (run / "config.json").write_text(json.dumps(values))
        says = f"{run}/config.json is damaged, or another version of bert_jax wrote it: missing: {group}.{name}$"
        with pytest.raises(UserError, match=says):
            start(run, tokenizer)
        with pytest.raises(UserError, match=says):
            default_config(str(run))


def test_another_objective_or_architecture_does_not_continue_a_run(tmp_path, tokenizer):
    def begin(**names):
        return opened(tmp_path, tokenizer, names=names, devices=jax.devices()[:3])

    with begin(objective="mine.Smooth (smooth)") as workdir, Checkpoints(workdir.checkpoints) as checkpoints:
        checkpoints.save(5, {"x": jnp.zeros(2)}, position={}, config={})
    facts = json.loads((tmp_path / "run.json").read_text())
    assert facts["objective"] == "mine.Smooth (smooth)" and "architecture" not in facts
    assert facts["starts"][0]["devices"] == 3
    for names, said in (
        ({}, r"the objective mine.Smooth \(smooth\), but this start has the default objective"),
        ({"objective": "mine.Sharp (sharp)"}, r"mine.Smooth \(smooth\), but .* the objective mine.Sharp \(sharp\)"),
        ({"objective": "mine.Smooth (smooth)", "architecture": "mine.local"}, "but .* the architecture mine.local"),
    ):
        with pytest.raises(UserError, match=said):
            begin(**names)
    assert json.loads((tmp_path / "run.json").read_text()) == facts
    begin(objective="mine.Smooth (smooth)").release()


def test_a_run_with_the_default_objective_does_not_continue_with_another(run, tokenizer):
    assert not {"objective", "architecture"} & json.loads((run / "run.json").read_text()).keys()
    with pytest.raises(UserError, match="holds a run with the default objective, but .* the objective mine.Smooth"):
        opened(run, tokenizer, names={"objective": "mine.Smooth"})


HARMLESS = {
    **{"workdir": "/elsewhere", "log_every_steps": 3, "elastic_batch": True, "checkpoint.keep_last": 9},
    **{"evaluation.every_steps": 7, "mesh.fsdp": 2, "compute.dtype": "float32", "data.path": "/moved"},
    **{"data.loader": "plain", "data.prefetch": 1, "data.cache": "/tmp", "phases.0.micro_batches": 4},
}
TRAJECTORY = {
    **{"seed": 1, "model.num_layers": 3, "model.vocab_size": 99, "model.hidden_dropout": 0.0, "optimizer.beta2": 0.98},
    **{"schedule.name": "cosine", "masking.rate": 0.2, "data.held_out": 0.02, "data.sentence_pairs": "sop"},
    **{"objective.mlm_weight": 0.5, "objective.sentence_pair_weight": 2.0, "data.eval_path": "/other"},
    **{"phases.0.steps": 80, "phases.0.batch_size": 512},
    **{"phases.1.learning_rate": 1e-3, "phases.1.sequence_length": 256},
}


@pytest.mark.parametrize("option", HARMLESS)
def test_harmless_changes_go_on(run, tokenizer, option):
    config = changed(**{option: HARMLESS[option]})
    with opened(run, tokenizer, config) as workdir:
        assert workdir.resumed
    assert read_config(run) == config
    assert len(json.loads((run / "run.json").read_text())["starts"]) == 2


@pytest.mark.parametrize("option", TRAJECTORY)
def test_changes_of_the_trajectory_are_refused_with_the_difference(run, tokenizer, option):
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file() and file.name != "owner.json"}
    value = TRAJECTORY[option]
    with pytest.raises(UserError, match=rf"different settings \({option}: .* → {value}\).*another --workdir"):
        start(run, tokenizer, changed(**{option: value}))
    assert {f: f.read_bytes() for f in run.rglob("*") if f.is_file() and f.name != "owner.json"} == before
    start(run, tokenizer)  # and the directory is not left owned


def test_batch_size_and_learning_rate_may_change_if_that_is_said(run, tokenizer, caplog):
    larger = changed(**{"phases.0.batch_size": 512, "phases.1.learning_rate": 1e-3})
    with pytest.raises(UserError, match=r"phases.0.batch_size: .* → 512; .*, or say --elastic_batch if the new"):
        start(run, tokenizer, larger)
    start(run, tokenizer, dataclasses.replace(larger, elastic_batch=True))
    assert "→ 512: from here on; no example is repeated or skipped" in caplog.text
    assert read_config(run).phases[0].batch_size == 512
    start(run, tokenizer, larger)  # which is now the run's own
    with pytest.raises(UserError, match=r"\(seed: 0 → 3\)[^,]*, or start this one in another --workdir"):
        start(run, tokenizer, dataclasses.replace(larger, elastic_batch=True, seed=3))


def test_every_option_is_either_harmless_or_refused(run, tokenizer):
    """An option added later is refused until someone decides that it is harmless."""
    parts = {
        "masking.": CONFIG.masking,
        "optimizer.": CONFIG.optimizer,
        "schedule.": CONFIG.schedule,
        "phases.0.": CONFIG.phases[0],
    }
    for prefix, part in parts.items():
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            if isinstance(value, (int, float)) and f"{prefix}{field.name}" not in HARMLESS:
                with pytest.raises(UserError, match=f"{prefix}{field.name}"):
                    start(run, tokenizer, changed(**{f"{prefix}{field.name}": value + 1}))


def test_several_differences_are_all_shown(run, tokenizer):
    config = dataclasses.replace(CONFIG, seed=3, optimizer=OptimizerConfig(name="lamb"))
    message = r"\(store_fingerprint: store-1 → store-2; optimizer.name: adamw → lamb; seed: 0 → 3\)"
    with pytest.raises(UserError, match=message):
        start(run, tokenizer, config, store="store-2")


def test_the_last_phase_may_become_longer_or_shorter(run, tokenizer, caplog):
    for steps in (20, 4):
        start(run, tokenizer, changed(**{"phases.1.steps": steps}))
        assert f"→ {steps}: from here on the learning rate" in caplog.text
    assert read_config(run).phases[1].steps == 4
    with pytest.raises(UserError, match="phases.2"):
        start(run, tokenizer, dataclasses.replace(read_config(run), phases=(*read_config(run).phases, PhaseConfig())))


def test_a_message_about_other_settings_stays_one_line(run, tokenizer):
    settings = json.loads((run / "config.json").read_text())
    settings["data"]["text_note"] = 1
    (run / "config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match="unknown option data.text_note"):
        start(run, tokenizer)
    del settings["data"]["text_note"]
    settings["data"]["path"] = "x" * 100_000
    settings["data"]["eval_path"] = "two\nlines"
    settings["optimizer"] |= {"beta2": 0.5, "weight_decay": 0.5}
    (run / "config.json").write_text(json.dumps(settings))
    other = changed(
        **{
            **{"optimizer.name": "lamb", "optimizer.beta1": 0.5, "optimizer.beta2": 0.6, "optimizer.epsilon": 0.1},
            **{"seed": 4, "masking.rate": 0.2, "model.num_layers": 4, "model.hidden_dropout": 0.3, "phases.0.steps": 7},
        }
    )
    with pytest.raises(UserError, match=r"holds a run with different settings .*; and \d+ more\)") as caught:
        start(run, tokenizer, other)
    assert len(str(caught.value)) < 1_000
