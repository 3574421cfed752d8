"""Positions of runs: how they are saved, and how spans are skipped by whoever comes to their beginning."""

import json

import pytest

from bert_jax.training.run import Position, Span


def test_what_is_empty_is_not_saved():
    position = Position.from_dict({"phase": 1, "examples_seen": 640})
    assert position == Position(1, 640) and position.to_dict() == {"phase": 1, "examples_seen": 640}


def test_a_position_goes_through_json():
    position = Position(1, 640, (Span(0, 32, 64), Span(1, 640, 960)), {"skipped": 2, "losses": [0.1]})
    assert Position.from_dict(json.loads(json.dumps(position.to_dict()))) == position


@pytest.mark.parametrize(
    "seen, behind",
    [
        (0, 0),
        (16, 16),
        (32, 96),  # over both, the second of which begins where the first ends
        (48, 96),
        (64, 96),
        (96, 96),
        (128, 128),
    ],
)
def test_spans_are_skipped_by_those_who_come_to_them(seen, behind):
    skipped = (Span(1, 64, 96), Span(0, 0, 1000), Span(1, 32, 64))
    assert Position(1, seen, skipped).seen_in(1) == behind


def test_a_later_phase_begins_at_its_first_example_or_behind_it():
    assert Position(0, 640).seen_in(1) == 0
    assert Position(0, 640, (Span(1, 0, 48),)).seen_in(1) == 48
    assert Position(0, 640, (Span(0, 640, 700),)).seen_in(1) == 0


def test_a_guard_s_memory_is_that_of_its_phase():
    position = Position(0, 640, guard={"skipped": 2})
    assert position.guard_of(0) == {"skipped": 2} and position.guard_of(1) == {}
