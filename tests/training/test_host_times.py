"""A slow host among the heartbeats that the first host has of all of them."""

import pytest

from bert_jax.devices import hosts
from bert_jax.devices.signals import StopSignals
from bert_jax.training.events import Events, HostTimes, read_events


@pytest.fixture
def heartbeats(monkeypatch) -> dict[int, dict]:
    """What the hosts have said; the test fills it."""
    said: dict[int, dict] = {}
    monkeypatch.setattr(hosts, "heartbeats", lambda: said)
    return said


def rows(tmp_path, heartbeats, monkeypatch, *times: dict[int, float]) -> tuple[list[dict], list[dict]]:
    """The row of metrics and all events after each of these sets of seconds by host, with steps of one second."""
    found, now = [], [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    with Events(tmp_path, StopSignals()) as events:
        measuring = HostTimes(events)
        for step, seconds in enumerate(times, 1):
            heartbeats.clear()
            for host, value in seconds.items():
                heartbeats[host] = {"name": f"worker-{host}", "input_seconds": value}
            with measuring.measured():
                now[0] += 0.01
            now[0] += 0.99
            found.append(measuring.row(step))
    return found, [row for row in read_events(tmp_path / "events.jsonl") if row["event"] == "slow_host"]


def test_a_slow_host_is_named_once(tmp_path, heartbeats, monkeypatch):
    even = dict.fromkeys(range(5), 0.01)
    slow = {**even, 3: 0.5}
    metrics, events = rows(tmp_path, heartbeats, monkeypatch, even, slow, slow, even, slow)
    assert [(row["step"], row["host"], row["name"]) for row in events] == [(2, 3, "worker-3"), (5, 3, "worker-3")]
    assert metrics[1] == {
        "host_input_seconds_median": 0.01,
        "host_input_seconds_p90": 0.5,
        "host_input_seconds_max": 0.5,
    }


def test_a_multiple_of_nothing_is_not_slow(tmp_path, heartbeats, monkeypatch):
    _, events = rows(tmp_path, heartbeats, monkeypatch, {0: 0.001, 1: 0.001, 2: 0.09}, {0: 0.001, 1: 0.001, 2: 0.11})
    assert [row["step"] for row in events] == [2]


def test_one_host_has_nobody_to_be_compared_with(tmp_path, heartbeats, monkeypatch):
    assert rows(tmp_path, heartbeats, monkeypatch, {}, {0: 5.0}) == ([{}, {}], [])


def test_a_host_says_its_mean(tmp_path, heartbeats, monkeypatch):
    said = []
    monkeypatch.setattr(hosts, "publish", lambda **facts: said.append(facts))
    rows(tmp_path, heartbeats, monkeypatch, {}, {})
    assert said == [{"input_seconds": pytest.approx(0.01)}] * 2
