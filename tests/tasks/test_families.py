"""Every module of tasks has what the rest of fine-tuning uses of it."""

import inspect

import pytest

from bert_jax.tasks.task_data import FAMILIES, Family, family_of

NAMES = {name for name in vars(Family) if not name.startswith("_")}


@pytest.mark.parametrize("task", FAMILIES)
def test_a_family_has_every_name_with_the_arguments_in_their_order(task):
    module = family_of(task)
    assert task in module.MAIN_METRIC
    for name in NAMES - {"MAIN_METRIC"}:
        wanted = list(inspect.signature(getattr(Family, name)).parameters)[1:]
        assert list(inspect.signature(getattr(module, name)).parameters)[: len(wanted)] == wanted, name
