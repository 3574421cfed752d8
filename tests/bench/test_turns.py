"""Turns, ratios and records: who works when, what happens to those that refuse or die, and what the times add up to."""

import itertools
import json
import os
import subprocess
import sys

import pytest
from two_phases import TINY

from bert_jax.devices.hosts import PACKAGE_DIRECTORY
from bert_jax.errors import UserError
from bert_jax.tools.bench import contestants
from bert_jax.tools.bench.turns import (
    PEER_PROGRAMS,
    Contestant,
    Report,
    Spread,
    Turn,
    peer_program,
    ratio,
    recorded,
    seconds,
    show,
    started,
    take_turns,
    varied,
)

FAKE = """
import sys, time
sys.path.insert(0, sys.argv[1])
from serving import Refusal, serve

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

OURS = [Turn(units=2, wall=4.0, cpu=6.0), Turn(units=2, wall=10.0, cpu=6.0), Turn(units=2, wall=6.0, cpu=8.0)]
THEIRS = [Turn(units=1, wall=6.0, cpu=3.0), Turn(units=1, wall=10.0, cpu=9.0), Turn(units=1, wall=3.0, cpu=8.0)]
GPU = "1 × NVIDIA H100 80GB HBM3 (gpu): peak 989 TFLOP/s bfloat16 per device, 79.6 GiB per device"
PEER = {"torch": "2.13.0", "transformers": "5.24.0", "cuda": True}


@pytest.fixture
def fake(tmp_path):
    """Make a contestant of this name; its notes are lines of one file."""

    def make(name: str, **job) -> Contestant:
        job = {"name": name, "notes": str(tmp_path / "notes"), "seconds": 0.0} | job
        return Contestant(name, (sys.executable, "-c", FAKE, str(PEER_PROGRAMS)), job)

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
    for turn in itertools.chain(*turns):  # they come as lines of JSON, and go into one
        assert json.loads(json.dumps(turn.__dict__))["units"] == 1 and turn.wall >= 0 and turn.cpu >= 0


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
    assert found[False]["PYTHONPATH"] == str(PACKAGE_DIRECTORY.parent)


def test_a_program_that_fails_says_why():
    program = {"program": ["-c", "import sys; sys.exit('no such thing')"]}
    with pytest.raises(UserError, match="^a: no such thing$"):
        with started([Contestant("a", peer_program(sys.executable, "process", file="serving.py"), program)]):
            pytest.fail("it is not ready")


def test_programs_import_nothing_heavy_before_they_know_their_kind():
    code = "import sys; sys.path.insert(0, sys.argv[1])"
    code += f"; import {contestants.__name__}, torch_contestants; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, PEER_PROGRAMS], check=True, capture_output=True, text=True)
    loaded = set(done.stdout.split())
    assert {contestants.__name__, "torch_contestants"} <= loaded
    assert not {"jax", "numpy", "flax", "torch", "transformers"} & loaded


def test_words_in_capitals_are_variables():
    config, environment = varied(TINY, 'seed=3 XLA_FLAGS="--a=1 --b"')
    assert config.seed == 3 and environment == {"XLA_FLAGS": "--a=1 --b"}


def test_a_spread_has_the_median_and_interpolated_quartiles():
    # Sorted 1 2 4 8: the quartiles are at places 0.75 and 2.25 counted from 0, the median between the middle two.
    assert Spread.of([8.0, 1.0, 4.0, 2.0]) == Spread(3.0, 1.75, 5.0, 1.0, 8.0)
    assert Spread.of([8.0, 1.0, 4.0]) == Spread(4.0, 2.5, 6.0, 1.0, 8.0)
    assert Spread.of([5.0]) == Spread(5.0, 5.0, 5.0, 5.0, 5.0)


def test_seconds_are_those_of_one_unit():
    wall, cpu = seconds(OURS)
    assert wall == Spread.of([2.0, 5.0, 3.0]) and cpu == Spread.of([3.0, 3.0, 4.0])


def test_ratios_are_those_of_neighbouring_turns():
    # Theirs over ours, round by round: 6/2, 10/5, 3/3 on the clock; 3/3, 9/3, 8/4 of the processor.
    found = ratio(OURS, THEIRS)
    assert found.wall == Spread.of([3.0, 2.0, 1.0]) and found.cpu == Spread.of([1.0, 3.0, 2.0])
    # The ratio of the medians would be 6 / 3 too; of other pairs it is not.
    assert ratio(OURS, THEIRS[::-1]).wall == Spread.of([1.5, 2.0, 2.0])


def test_all_turns_together_weigh_the_long_ones_more():
    # 20 s for our 6 units, 20 s for their 3.
    assert ratio(OURS, THEIRS).total_cpu == pytest.approx(2.0)
    assert ratio([Turn(1, 1.0, 1.0), Turn(1, 9.0, 9.0)], [Turn(1, 3.0, 3.0), Turn(1, 9.0, 9.0)]).total_cpu == 1.2
    assert ratio(OURS, THEIRS, 512, 256).total_cpu == pytest.approx(4.0)


def test_a_unit_that_achieves_more_counts_more():
    # Our step has 512 tokens, theirs 256: twice the ratios above.
    assert ratio(OURS, THEIRS, 512, 256).wall == Spread.of([6.0, 4.0, 2.0])


def test_every_turn_needs_its_neighbour():
    with pytest.raises(ValueError, match="shorter"):
        ratio(OURS, THEIRS[:2])


def report(device: str | None, peer: dict | None) -> Report:
    """Of three contestants, the first of which uses no device and the last that of another run."""
    facts = [{}, {"facts": {"path": "xla"} | ({"device": device} if device else {})}, {"facts": {"device": "another"}}]
    values = recorded("load", ["MODEL"], (0.25, 0.5), peer=peer)
    return Report(
        values | {"contestants": facts[: 3 if device else 2]}, "A title", {"contestant": lambda entry: "ours"}, ["."]
    )


@pytest.mark.parametrize("device", [GPU, "4 × TPU v5 lite (tpu) on 2 hosts: peak 197 TFLOP/s bfloat16 per device"])
def test_an_accelerator_is_named_before_the_processor(device, tmp_path, capsys):
    show(found := report(device, None), str(tmp_path / "a.json"))
    values = json.loads((tmp_path / "a.json").read_text())
    where = (tmp_path / "a.md").read_text().splitlines()[2]
    assert values["device"] == device and values["benchmark"] == "load"
    assert where.startswith(f"{device}; {values['processor']}, {values['cores']} cores, ")
    assert capsys.readouterr().out.startswith(found.markdown())


@pytest.mark.parametrize("device", ["1 × cpu", "8 × cpu on 2 hosts", None])
def test_the_processor_is_named_once(device, tmp_path):
    show(report(device, None), str(tmp_path / "a.json"))
    values = json.loads((tmp_path / "a.json").read_text())
    where = (tmp_path / "a.md").read_text().splitlines()[2]
    assert values["device"] == device
    assert where.startswith(f"{values['processor']}, ") and "× cpu" not in where


@pytest.mark.parametrize("peer, ends", [(PEER, ", torch 2.13.0, transformers 5.24.0."), (None, ".")])
def test_versions_of_the_peer_follow_ours(peer, ends):
    found = report(GPU, peer)
    (where,) = (line for line in found.markdown().splitlines() if "load average" in line)
    assert where.endswith(f", jax {found.values['versions']['jax']}{ends}")
