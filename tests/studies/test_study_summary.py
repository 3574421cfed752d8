"""The arithmetic of a study against closed forms, and what its table says of it."""

import math

import pytest

from bert_jax.config.commands import Arm, Measure, Published, Study
from bert_jax.tools.study import column, difference_interval, study_table

STUDY = Study(
    title="Rates",
    question="Which?",
    base="bert_study",
    arms=(Arm(name="a"), Arm(name="b"), Arm(name="c", label="the third")),
    measures=(Measure(metric="accuracy", beside="MNLI"),),
    published=(Published(source="a paper", figures={"MNLI": {"a": 1.0, "b": 3.0, "c": 2.0}}),),
)
STUDENT_4 = 2.7764451  # 97.5 % point of Student's t with 4 degrees of freedom, from tables


def test_differences_have_welchs_interval():
    # Variances of 1 and 4 in samples of 3: standard error √(1/3 + 4/3), and by Welch and Satterthwaite
    # (1/3 + 4/3)² / ((1/3)² / 2 + (4/3)² / 2) = 50 / 17 degrees of freedom. With equal variances there are 4.
    low, high = difference_interval((2.0, 3.0, 4.0), (1.0, 2.0, 3.0))
    assert low == pytest.approx(1 - STUDENT_4 * math.sqrt(2 / 3)) and high == pytest.approx(
        1 + STUDENT_4 * math.sqrt(2 / 3)
    )
    low, high = difference_interval((2.0, 4.0, 6.0), (1.0, 2.0, 3.0))
    assert low + high == pytest.approx(4.0)
    # The t distribution with 50/17 degrees of freedom has its 97.5 % point between those with 2 and 3: 4.303 and 3.182.
    assert 3.182 < (high - low) / 2 / math.sqrt(5 / 3) < 4.303
    assert difference_interval((1.0, 1.0), (2.0, 2.0)) == (-1.0, -1.0)
    assert difference_interval((1.0,), (2.0, 3.0)) is None


def test_a_column_has_means_deviations_and_the_probability_of_chance():
    values = {"a": [1.0, 2.0, 3.0], "b": [2.0, 3.0, 4.0]}
    found = column(STUDY, "accuracy", values, "MNLI")
    assert (found.figures["b"].mean, found.figures["b"].deviation, found.figures["b"].difference) == (3.0, 1.0, 1.0)
    assert found.figures["a"].difference is None and found.figures["b"].told_apart is False
    # With two groups F = t² = 1.5. The t distribution with 4 degrees of freedom in closed form: with x = t² / 4,
    # P(|T| > t) = 1 − 3/4 · t / √(1 + x) · (1 − x / (3 · (1 + x)))
    t = math.sqrt(1.5)
    x = t**2 / 4
    chance = 1 - 3 / 4 * t / math.sqrt(1 + x) * (1 - x / (3 * (1 + x)))
    assert found.p_value == pytest.approx(chance)
    assert found.rank_correlation is None  # two arms have no order to speak of


def test_the_order_of_the_arms_is_compared_with_the_papers():
    values = {"a": [0.1], "b": [0.3], "c": [0.4]}
    # Ranks 1, 2, 3 against 1, 3, 2: 1 − 6 · (0 + 1 + 1) / (3 · 8) = 1/2
    assert column(STUDY, "accuracy", values, "MNLI").rank_correlation == pytest.approx(0.5)


def test_the_table_marks_what_seeds_do_not_tell_apart():
    found = column(STUDY, "accuracy", {"a": [0.5, 0.52], "b": [0.51, 0.53], "c": [0.9, 0.91]}, "MNLI")
    table = study_table(STUDY, [found], {}, "6 of 6 runs are done.")
    assert "| a | 51.00 ± 1.41 | 1.0 |" in table
    assert "| b | 52.00 ± 1.41 ≈ | 3.0 |" in table
    assert "| the third | 90.50 ± 0.71 | 2.0 |" in table
    assert "the arms differ by more than their seeds" in table
    alike = column(STUDY, "accuracy", {"a": [0.5, 0.52], "b": [0.51, 0.53]}, "MNLI")
    assert "not seen to differ by more than their seeds" in study_table(STUDY, [alike], {}, "")
    one = column(STUDY, "accuracy", {"a": [0.5], "b": [0.6]}, "MNLI")
    table = study_table(STUDY, [one], {"b, seed 0": "why"}, "")
    assert "| b | 60.00 | 3.0 |" in table and "| the third | – | 2.0 |" in table
    assert "may be chance" in table and "≈" not in table and "Failed: b, seed 0: why" in table
