"""Memory that a training step really takes on this machine's CPU: a process of its own, which prints bytes as JSON.

    python step_memory.py CONFIG.json

State and batch are on the device before; what is measured is how much the process grows while one step runs.
"""

import json
import pathlib
import re
import sys

import jax
import numpy as np

from bert_jax.config import Config, resolve_phases
from bert_jax.config.options import from_dict
from bert_jax.devices import sharding
from bert_jax.tools.planning.compiler import learner
from bert_jax.training.state import create_state


def status(name: str) -> int:
    """Return a size of this process in bytes, from /proc."""
    match = re.search(rf"{name}:\s+(\d+) kB", pathlib.Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1]) * 1024


def main() -> None:
    config = from_dict(Config, json.loads(pathlib.Path(sys.argv[1]).read_text()))
    mesh, phase = sharding.make_mesh(config.mesh, jax.devices()[:1]), resolve_phases(config)[0]
    what = learner(config, mesh)
    shapes = what.abstract_batch(phase)
    batch = {name: jax.device_put(np.ones(leaf.shape, leaf.dtype), leaf.sharding) for name, leaf in shapes.items()}
    state = create_state(what.objective.model, what.optimizer, mesh, seed=0)
    held = sum(leaf.nbytes for leaf in jax.tree.leaves((state, batch)))
    step = what.train_step(phase).lower(what.abstract, shapes).compile()
    jax.block_until_ready((state, batch))
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    before = status("VmRSS")
    jax.block_until_ready(step(state, batch))
    print(json.dumps({"held": held, "grown": status("VmHWM") - before}))


if __name__ == "__main__":
    main()
