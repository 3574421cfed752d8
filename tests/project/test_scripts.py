"""Scripts that train what is configured: their options are those that the configurations have."""

import argparse
import pathlib
import re
import sys

import numpy as np
import pytest
from synthetic_store import SyntheticStore, random_documents, write_store

from bert_jax.console import configured

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))

import compare_commits
import compare_family
import measure_discriminator
import train_on_gpu
import warm_start


def test_the_family_is_compared_at_equal_operations(tmp_path):
    store = write_store(SyntheticStore(random_documents(8)), tmp_path / "store", 8)
    plans = [compare_family.plan(name, str(store), "OUTPUT", 1e13, []) for name in compare_family.CONFIGS]
    for plan in plans:
        if plan.name in compare_family.STATIC:
            assert plan.steps == compare_family.STATIC_STEPS
        else:
            assert plan.steps * plan.flops == pytest.approx(1e13, rel=1e-2)
    (of_phases,) = (plan for plan in plans if plan.name == "best_mini")
    first, second = map(int, re.findall(r"phases\.\d\.steps=(\d+)", " ".join(of_phases.options)))
    assert first + second == of_phases.steps and first == pytest.approx(of_phases.steps / 4, abs=1)
    for name in ("bert_mini", "xlnet_mini", "modernbert_mini"):  # with options of positions that others do not have
        options = ["--model.num_layers=2", *(["--model.positions=rope"] if name == "bert_mini" else [])]
        small = compare_family.plan(name, str(store), "OUTPUT", 1e13, options)
        whole = next(plan for plan in plans if plan.name == name)
        assert small.steps > 1.5 * whole.steps and set(options) <= set(small.options), name


def test_scores_are_told_apart_from_those_of_random_weights():
    """By hand, on SST-2 (78.1 ± 0.4): 1.6 / √((1 + 0.16) / 3) = 2.6, and 4.8; with 2.6 degrees the limit is 3.5."""
    assert compare_family.score([0.787, 0.797, 0.807], "sst2") == "79.7 ± 1.0 ≈"
    assert compare_family.score([0.801, 0.811, 0.821], "sst2") == "81.1 ± 1.0"
    assert (compare_family.score([0.7], "sst2"), compare_family.score([], "sst2")) == ("70.0", "–")
    # Against those of their own shape where they have a row: 1 / √(2 / 3) = 1.2, with four degrees the limit is 2.8.
    own, shown = {"sst2": [0.791, 0.801, 0.811]}, {"steps": 9, "gflop_per_step": 2, "held_out": {"mlm_loss": 3.0}}
    one, other = {"sst2": [0.801, 0.811, 0.821]}, {"sst2": [0.851, 0.861, 0.871]}
    rows = [{"configuration": "a", "scores": one} | shown, {"configuration": "b", "scores": one} | shown]
    rows += [{"configuration": "b_random", "scores": own}, {"configuration": "c", "scores": other} | shown]
    lines = compare_family.table(rows).splitlines()[2:]
    assert [line.split(" | ")[-4] for line in lines] == ["81.1 ± 1.0", "81.1 ± 1.0 ≈", "80.1 ± 1.0", "86.1 ± 1.0"]
    assert lines[2].startswith("| random weights of `b` | – | – | – | ")


def test_what_two_commits_or_a_card_train_can_be_configured():
    for name, options in compare_commits.FAMILY.values():
        configured([name, "--data.path=STORE", "--workdir=DIR", *compare_commits.sizes(name), *options], "")
    configured(["modernbert_mini", "--data.path=STORE", "--workdir=DIR", *train_on_gpu.RECIPE], "")


def test_a_discriminator_is_measured_against_answers_that_do_not_look():
    """By hand: of five tokens two are replaced, one is found, and five of the six pairs are in order."""
    labels = np.array([True, False, True, False, False])
    logits = np.log([3.0, 0.25, 0.5, 1 / 3, 0.75]).astype(np.float32)
    losses = np.log([4 / 3, 5 / 4, 3, 4 / 3, 7 / 4])
    entropy = -(0.4 * np.log(0.4) + 0.6 * np.log(0.6))
    assert measure_discriminator.figures(labels, logits) == pytest.approx(
        {"replaced": 0.4, "accuracy": 0.8, "loss": losses.mean(), "entropy": entropy, "found": 0.5, "area": 5 / 6}
    )


def test_growing_is_compared_by_the_operations_to_a_common_loss(tmp_path):
    """By hand: the target is the fresh arm's loss at step 80, which the grown one crosses halfway from 20 to 40."""
    store = write_store(SyntheticStore(random_documents(8)), tmp_path / "store", 8)
    options = argparse.Namespace(store=str(store), workdir=tmp_path, steps=100, seeds=1, rates=[1e-3])
    curve = lambda *losses: [{"step": 20 * number, "mlm_loss": loss} for number, loss in enumerate(losses, 1)]
    losses = {"fresh": curve(9, 8, 7, 6, 1), "stack": curve(7, 5, 4, 4, 3), "spread": curve(9, 9, 9, 7, 2)}
    best = dict.fromkeys(losses, 1e-3)
    rows = {warm_start.Run(arm, 1e-3, 0): found for arm, found in losses.items()}
    found = warm_start.compared(options, rows, best)
    fresh, stack, spread = (row["operations"] for row in found["rows"])
    assert found["target"] == 6 and stack / fresh == pytest.approx(30 / 80) and spread is None
    assert 0.25 < found["small"] / (fresh * 50 / 80) < 1  # two layers of four, and the head of both
    fresh_line, stack_line, spread_line = warm_start.described(found, best).splitlines()[1:]
    assert f"{fresh:.3g} with the small model; last losses 1.000" in fresh_line
    assert f"{stack + found['small']:.3g} with the small model" in stack_line
    assert "not every seed has reached it" in spread_line
