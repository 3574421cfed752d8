"""Signs of life between hosts, over a store of keys in place of JAX's coordination service, and a clock in hand."""

import atexit
import json
import threading

import jax
import pytest
from clock import Clock
from processes import SECONDS

from bert_jax.devices import hosts as watching
from bert_jax.devices.hosts import END, LINGER_SECONDS, Peers


class Service:
    """The calls of JAX's coordination client that hosts use, with its errors."""

    def __init__(self):
        self.values: dict[str, str] = {}

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None:
        if key in self.values and not allow_overwrite:
            raise jax.errors.JaxRuntimeError(f"ALREADY_EXISTS: {key}")
        self.values[key] = value

    def key_value_try_get(self, key: str) -> str:
        if key not in self.values:
            raise jax.errors.JaxRuntimeError(f"NOT_FOUND: {key}")
        return self.values[key]

    def key_value_dir_get(self, prefix: str) -> list[tuple[str, str]]:
        return [(key, value) for key, value in self.values.items() if key.startswith(prefix + "/")]


@pytest.fixture
def job():
    """A clock and three hosts, which count one as dead after 40 s."""
    service, clock = Service(), Clock()
    return clock, [Peers(service, host, 40.0, clock) for host in range(3)]


def pass_time(clock: Clock, peers, seconds: int) -> list[str | None]:
    """Let these hosts look every second; return why each of them would end, at the last look."""
    reasons = []
    for _ in range(seconds):
        clock.now += 1
        reasons = [each.look() for each in peers]
    return reasons


def test_hosts_that_send_heartbeats_live(job):
    clock, peers = job
    assert pass_time(clock, peers, 500) == [None] * 3
    assert sorted(peers[0].heartbeats) == [0, 1, 2] and peers[1].heartbeats == {}
    assert {beat["left"] for beat in peers[0].heartbeats.values()} == {False}


def test_a_host_leaves_though_the_service_does_not_answer(monkeypatch):
    monkeypatch.setattr(watching, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(watching, "LINGER_SECONDS", 0.1)
    service, called, cut = Service(), threading.Event(), threading.Event()

    def silent(key: str) -> str:
        called.set()
        cut.wait()
        raise jax.errors.JaxRuntimeError("UNAVAILABLE")

    monkeypatch.setattr(service, "key_value_try_get", silent)
    host = Peers(service, 1, 1e9)
    host.start()
    try:
        assert called.wait(SECONDS)
        host.stop()
        assert service.values == {}
    finally:
        cut.set()
        atexit.unregister(host.stop)


def test_a_silent_host_is_named_within_the_bound_and_everybody_told(job):
    clock, peers = job
    pass_time(clock, peers, 100)
    silent_since = clock.now
    while not any(reasons := pass_time(clock, peers[:2], 1)):
        assert clock.now < silent_since + 40, "too late"
    assert clock.now >= silent_since + 0.7 * 40, "too early"
    assert reasons[0].startswith("host 2 (") and "has sent no heartbeat for 3" in reasons[0]
    assert reasons[1] == peers[2].look() == f"host 0: {reasons[0]}"


def test_a_host_that_has_left_in_good_order_is_not_missed(job):
    clock, peers = job
    pass_time(clock, peers, 10)
    peers[2].stop()
    assert pass_time(clock, peers[:2], 200) == [None, None]


def test_the_first_host_stays_until_those_that_live_have_left(job, monkeypatch):
    clock, peers = job
    pass_time(clock, peers, 10)
    pass_time(clock, peers[:2], 32)  # the third is dead
    ends = iter([None, peers[1].farewell])  # the second reads why, and ends, a moment later
    monkeypatch.setattr("time.sleep", lambda seconds: (end := next(ends)) and end())
    peers[0].farewell()
    assert peers[0].heartbeats[1]["left"] and next(ends, "both") == "both"


def test_the_first_host_does_not_wait_for_ever(job, monkeypatch):
    clock, peers = job
    pass_time(clock, peers, 10)
    monkeypatch.setattr("time.sleep", lambda seconds: pass_time(clock, peers[1:], 1))
    begun = clock.now
    peers[0].farewell()
    assert clock.now - begun == LINGER_SECONDS


def test_a_host_that_has_not_started_is_not_missed(job):
    clock, peers = job  # JAX waits for it, with a bound of its own
    assert pass_time(clock, peers[:2], 200) == [None, None]


def test_the_first_reason_counts(job):
    _, peers = job
    peers[1].tell("no progress")
    peers[2].tell("a collective operation has failed")
    assert [each.look() for each in peers] == ["host 1: no progress"] * 3


def test_facts_come_with_the_next_heartbeat(job):
    clock, peers = job
    peers[2].publish(input_seconds=0.25, step=7)
    pass_time(clock, peers, 20)
    assert (peers[0].heartbeats[2]["input_seconds"], peers[0].heartbeats[2]["step"]) == (0.25, 7)
    assert "input_seconds" not in peers[0].heartbeats[1] and peers[0].heartbeats[1]["place"]


def test_a_service_that_is_gone_is_an_error_of_its_own(job):
    _, peers = job

    def gone(key):
        raise jax.errors.JaxRuntimeError("UNAVAILABLE: Socket closed")

    peers[1]._client.key_value_try_get = gone
    with pytest.raises(jax.errors.JaxRuntimeError, match="UNAVAILABLE"):
        peers[1].look()
    peers[1].tell("anything")  # to nobody, without an error
    assert json.loads(peers[1]._client.values[END])["host"] == 1
