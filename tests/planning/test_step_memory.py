"""The memory that is planned beside what a step really takes, where that can be measured: on the CPU."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import pytest
from processes import SECONDS

from bert_jax.config import Config, PhaseConfig
from bert_jax.config.json_form import to_dict
from bert_jax.config.presets import model_config
from bert_jax.tools.planning.compiler import resolved
from bert_jax.tools.planning.plan import plan_phase
from bert_jax.tools.planning.topology import find_topology

PROGRAM = pathlib.Path(__file__).resolve().parents[1] / "support" / "step_memory.py"


@pytest.mark.slow
@pytest.mark.usefixtures("kept_plans")
@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="the peak is measured through Linux's /proc")
def test_a_step_takes_the_memory_that_was_planned(tmp_path):
    """State and batch to the byte. Temporaries: 661 MB planned, 701 to 703 MB measured in three runs (6 % more).

    XLA's threads and its matrix products have memory of their own, about 40 MB, which no plan sees.
    """
    model = dataclasses.replace(model_config("mini"), vocab_size=8_000)
    topology = find_topology("cpu:1")
    config = resolved(Config(model=model, phases=(PhaseConfig(batch_size=32),)), topology)
    memory = plan_phase(config, topology, 0, print).memory
    assert memory is not None
    (tmp_path / "config.json").write_text(json.dumps(to_dict(config)))
    done = subprocess.run(
        [sys.executable, PROGRAM, tmp_path / "config.json"],
        capture_output=True,
        text=True,
        check=True,
        timeout=SECONDS,
        env=os.environ | {"XLA_FLAGS": ""},
    )
    used = json.loads(done.stdout)
    assert used["held"] == memory.parameters + memory.moments + memory.batch + 4  # the number of the step
    planned = memory.gradients + memory.activations + memory.unattributed
    assert memory.gradients and memory.activations > 5 * memory.gradients and memory.unattributed < 0.01 * planned
    assert 0.95 * planned < used["grown"] < 1.1 * planned
