"""One writer per work directory: by a lock, or by a time stamp where there are none; and what a crash leaves."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from unittest import mock

import pytest
from etils import epath
from held_workdir import HOLD, no_locks
from processes import wait_until

from bert_jax import ownership
from bert_jax.errors import UserError
from bert_jax.ownership import Owner


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

    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for facts in (
        {"pid": gone.pid},
        {"pid": 1, "host": "elsewhere", "renewed": time.time() - ownership.STALE_SECONDS - 1},
    ):
        left_behind(**facts)
        Owner(epath.Path(tmp_path)).release()
    for facts in ({"pid": os.getppid()}, {"host": "elsewhere", "pid": gone.pid}):
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
