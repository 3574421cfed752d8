"""Steps of runs taken again, and the steps that read a document."""

import dataclasses
import pathlib

import jax
import numpy as np
import pytest
from small_pretraining import run_config
from workdirs import contents

from bert_jax.tools.replay import replay

ONE = slice(0, 1)


def test_steps_are_equal_to_the_last_bit(finished):
    """Between two evaluations and saves, from the checkpoint of step 8."""
    config, _ = finished
    before = contents(config.workdir)
    found = replay(config.workdir, "10:12", devices=jax.devices()[ONE])
    assert (found.begin, found.compared, found.equal, found.obstacles) == (8, 3, 3, ())
    for step in found.steps:
        assert {
            "loss",
            "grad_norm",
            "mlm_loss",
            "learning_rate",
            "skipped",
        } <= step.logged.keys() and not step.differences
        assert step.positions == (16 * step.step - 16, 16 * step.step)
    assert contents(config.workdir) == before
