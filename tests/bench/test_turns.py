"""Contestants that only note when they work: who has the turn, and what happens to those that refuse or die."""

import json
import os
import sys

import pytest

from bert_jax.bench import contestants
from bert_jax.bench.contestants import Contestant, started, take_turns
from bert_jax.errors import UserError

FAKE = """
import sys, time
from bert_jax.bench.peer.serving import Refusal, serve

def prepare(job):
    print("a library says something")
    if job.get("refuses"):
        raise Refusal("it cannot\\nbe done")
    def note(what):
        with open(job["notes"], "a") as file:
            print(job["name"], what, file=file)
    def work(units):
        if units >= job.get("dies_at", 99):
            sys.exit("out of luck")
        if units >= job.get("refuses_at", 99):
            raise Refusal("it does not fit")
        note(f"begins {units}")
        print("noise")
        time.sleep(units * job["seconds"])
        note("ends")
    return work, {"pid": __import__("os").getpid()}

serve(prepare)
"""


@pytest.fixture
def fake(tmp_path):
    """Make a contestant of this name; its notes are lines of one file."""

    def make(name: str, **job) -> Contestant:
        job = {"name": name, "notes": str(tmp_path / "notes"), "seconds": 0.0} | job
        return Contestant(name, (sys.executable, "-c", FAKE), job)

    return make


def notes(tmp_path) -> list[str]:
    return (tmp_path / "notes").read_text().splitlines()


def test_contestants_work_in_turns_and_never_together(fake, tmp_path):
    with started([fake("a"), fake("b"), fake("c")]) as waiting:
        turns = take_turns(waiting, rounds=3, turn_seconds=0, rest=0)
    lines = notes(tmp_path)
    # Each line is written when it happens: a turn that overlapped another would stand between its two lines.
    pairs = [tuple(lines[place : place + 2]) for place in range(0, len(lines), 2)]
    assert [first.split()[0] for first, _ in pairs[-9:]] == list("abcabcabc")
    assert all(second == f"{first.split()[0]} ends" for first, second in pairs)
    assert [len(taken) for taken in turns] == [3, 3, 3]


def test_a_turn_is_as_long_as_it_was_asked_to_be(fake):
    with started([fake("slow", seconds=0.2), fake("fast", seconds=0.02)]) as waiting:
        (slow,), (fast,) = take_turns(waiting, rounds=1, turn_seconds=0.4, rest=0)
    # Sleeping takes at least as long as asked, so no more units fit, and the clock counts them.
    assert 1 <= slow.units <= 2 and 1 <= fast.units <= 20
    assert slow.wall >= 0.2 * slow.units and fast.wall >= 0.02 * fast.units
    assert slow.cpu < slow.wall  # which sleeping does not spend


def test_one_that_refuses_says_why_in_one_line_and_the_others_end(fake):
    others = []
    with pytest.raises(UserError, match="^b: it cannot be done$"):
        with started([fake("a")]) as waiting:
            others = waiting
            with started([fake("b", refuses=True)]):
                pytest.fail("b is not ready")
    with pytest.raises(ProcessLookupError):
        os.kill(others[0].facts["pid"], 0)


def test_one_that_refuses_a_turn_says_why(fake):
    with started([fake("a", refuses_at=2)]) as waiting:
        waiting[0].turn(1)
        with pytest.raises(UserError, match="^a: it does not fit$"):
            waiting[0].turn(2)


def test_one_that_dies_leaves_its_last_words(fake):
    with started([fake("a", dies_at=2)]) as waiting:
        with pytest.raises(UserError, match="^a: its process ended with status 1: out of luck$"):
            waiting[0].turn(2)


def test_a_program_that_is_not_there():
    with pytest.raises(UserError, match="^a: nowhere/python cannot be started: No such file"):
        with started([Contestant("a", ("nowhere/python",), {})]):
            pytest.fail("nothing was started")


def test_peers_do_not_see_our_sources(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "mine")
    show = ("-c", "import os, json; print(json.dumps({'ready': dict(os.environ)}))")
    found = {}
    for is_peer in (True, False):
        one = Contestant("a", (sys.executable, *show), {}, {"GIVEN": "1"}, is_peer)
        with started([one]) as waiting:
            found[is_peer] = waiting[0].facts
    assert "PYTHONPATH" not in found[True] and found[True]["GIVEN"] == "1"
    assert found[False]["PYTHONPATH"] == str(contestants.PACKAGE_DIRECTORY.parent)


def test_answers_are_lines_of_json(fake):
    with started([fake("a")]) as waiting:
        turn = waiting[0].turn(1)
    assert json.loads(json.dumps(turn.__dict__))["units"] == 1 and turn.wall >= 0 and turn.cpu >= 0
