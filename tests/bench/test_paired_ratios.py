"""Medians, quartiles and paired ratios against figures worked out by hand."""

import pytest

from bert_jax.bench.contestants import Turn
from bert_jax.bench.paired_ratios import Spread, ratio, seconds

OURS = [Turn(units=2, wall=4.0, cpu=6.0), Turn(units=2, wall=10.0, cpu=6.0), Turn(units=2, wall=6.0, cpu=8.0)]
THEIRS = [Turn(units=1, wall=6.0, cpu=3.0), Turn(units=1, wall=10.0, cpu=9.0), Turn(units=1, wall=3.0, cpu=8.0)]


def test_a_spread_has_the_median_and_interpolated_quartiles():
    # Sorted 1 2 4 8: the quartiles are at places 0.75 and 2.25 counted from 0, the median between the middle two.
    assert Spread.of([8.0, 1.0, 4.0, 2.0]) == Spread(3.0, 1.75, 5.0, 1.0, 8.0)
    assert Spread.of([8.0, 1.0, 4.0]) == Spread(4.0, 2.5, 6.0, 1.0, 8.0)
    assert Spread.of([5.0]) == Spread(5.0, 5.0, 5.0, 5.0, 5.0)


def test_seconds_are_those_of_one_unit():
    wall, cpu = seconds(OURS)
    assert wall == Spread.of([2.0, 5.0, 3.0]) and cpu == Spread.of([3.0, 3.0, 4.0])


def test_ratios_are_those_of_turns_beside_each_other():
    # Theirs over ours, round by round: 6/2, 10/5, 3/3 on the clock; 3/3, 9/3, 8/4 of the processor.
    found = ratio(OURS, THEIRS)
    assert found.wall == Spread.of([3.0, 2.0, 1.0]) and found.cpu == Spread.of([1.0, 3.0, 2.0])
    # The ratio of the medians would be 6 / 3 too; of other pairs it is not.
    assert ratio(OURS, THEIRS[::-1]).wall == Spread.of([1.5, 2.0, 2.0])


def test_all_turns_together_weigh_the_long_ones_more():
    # 20 s for 6 units of ours, 20 s for 3 of theirs.
    assert ratio(OURS, THEIRS).total_cpu == pytest.approx(2.0)
    assert ratio([Turn(1, 1.0, 1.0), Turn(1, 9.0, 9.0)], [Turn(1, 3.0, 3.0), Turn(1, 9.0, 9.0)]).total_cpu == 1.2
    assert ratio(OURS, THEIRS, 512, 256).total_cpu == pytest.approx(4.0)


def test_a_unit_that_achieves_more_counts_more():
    # A step of ours has 512 tokens, one of theirs 256: twice the ratios above.
    assert ratio(OURS, THEIRS, 512, 256).wall == Spread.of([6.0, 4.0, 2.0])


def test_every_turn_needs_its_neighbour():
    with pytest.raises(ValueError, match="shorter"):
        ratio(OURS, THEIRS[:2])
