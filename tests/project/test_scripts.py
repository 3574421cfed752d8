"""Scripts that train what is configured: their options are those that the configurations have."""

import pathlib
import sys

import pytest
from synthetic_store import SyntheticStore, random_documents, write_store

from bert_jax.console import configured

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))

import compare_commits
import compare_family
import train_on_gpu


def test_the_family_is_compared_at_equal_operations(tmp_path):
    store = write_store(SyntheticStore(random_documents(8)), tmp_path / "store", 8)
    plans = [compare_family.plan(name, str(store), "OUTPUT", 1e13, []) for name in compare_family.CONFIGS]
    for plan in plans:
        if plan.name in compare_family.STATIC:
            assert plan.steps == compare_family.STATIC_STEPS
        else:
            assert plan.steps * plan.flops == pytest.approx(1e13, rel=1e-2)
    for name in ("bert_mini", "xlnet_mini", "modernbert_mini"):  # with options of positions that others do not have
        options = ["--model.num_layers=2", *(["--model.positions=rope"] if name == "bert_mini" else [])]
        small = compare_family.plan(name, str(store), "OUTPUT", 1e13, options)
        whole = next(plan for plan in plans if plan.name == name)
        assert small.steps > 1.5 * whole.steps and set(options) <= set(small.options), name


def test_what_two_commits_or_a_card_train_can_be_configured():
    for name, options in compare_commits.FAMILY.values():
        configured([name, "--data.path=STORE", "--workdir=DIR", *compare_commits.sizes(name), *options], "")
    configured(["modernbert_mini", "--data.path=STORE", "--workdir=DIR", *train_on_gpu.RECIPE], "")
