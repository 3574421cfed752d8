"""What a run leaves when it gives up: which steps, positions and texts, and norms layer by layer, as one JSON file."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from bert_jax.checkpoints.fingerprint import leaf_paths
from bert_jax.config import Phase
from bert_jax.data.examples.batch_layout import Batch
from bert_jax.data.examples.examples import Examples
from bert_jax.data.examples.mixture import Mixture
from bert_jax.devices import sharding
from bert_jax.files import finite_json, write_atomically
from bert_jax.models.parameters import entries
from bert_jax.training.batch_gradients import make_gradients
from bert_jax.training.guard import Trouble
from bert_jax.training.learner import Learner
from bert_jax.training.state import TrainState

TEXTS = 256
"""Most sequences whose text is in a report."""


def write_report(
    workdir: epath.Path,
    trouble: Trouble,
    positions: tuple[int, int],
    learner: Learner,
    phase: Phase,
    state: TrainState,
    examples: Examples | Mixture,
    seed: int,
) -> epath.Path:
    """Write `fault_at_step_N.json` below `workdir`, on the first host, and return its path; every host calls this.

    It has the text of the last batch, the norms of the parameters that the steps have left, and those of the gradients
    that these give for that batch: an array whose norm is not finite is where the trouble begins or shows.

    Args:
      workdir: directory of the run.
      trouble: what has happened.
      positions: the first of the steps that went wrong, and the one behind their last.
      learner: what is trained.
      phase: the phase of the steps.
      state: the newest state.
      examples: the training examples of the phase.
      seed: that of the run.
    """
    last_batch = np.arange(positions[1] - phase.batch_size, positions[1])
    mine = sharding.host_rows(learner.mesh, phase.batch_size)
    batch = sharding.to_global(learner.mesh, examples.batch(last_batch[mine]), phase.batch_size)
    gradients = make_gradients(
        learner.objective_of(phase),
        learner.mesh,
        learner.shardings,
        micro_batches=phase.micro_batches,
        seed=seed,
        frozen=learner.frozen,
    )
    report = {
        "reason": str(trouble),
        "steps": [trouble.first, trouble.last],
        "phase": phase.index,
        "positions": list(positions),
        "parameter_norms": _norms(learner, state.params),
        "gradient_norms": _norms(learner, gradients(state, batch, *learner.frozen)),
    }
    file = workdir / f"fault_at_step_{trouble.last}.json"
    if jax.process_index() == 0:
        report["last_batch"] = _texts(examples, last_batch[:TEXTS])
        write_atomically(file, (json.dumps(report, indent=1, ensure_ascii=False) + "\n").encode())
    return file


def _norms(learner: Learner, tree: Any) -> dict[str, Any]:
    """Return the Euclidean norm of each array; for one with an axis of layers, a list with that of each layer."""
    described = entries(learner.objective.model.parameters, tree)

    def norm(parameter: Any, leaf: jax.Array) -> jax.Array:
        layers = parameter.layer_axis
        others = tuple(axis for axis in range(leaf.ndim) if axis != layers)
        return jnp.sqrt(jnp.sum(jnp.square(leaf), axis=others))

    alike = sharding.replicated(learner.mesh)
    found = jax.jit(lambda tree: jax.tree.map(norm, described, tree), out_shardings=alike)(tree)
    return {path: finite_json(np.asarray(value).tolist()) for path, value in leaf_paths(jax.device_get(found)).items()}


def _texts(examples: Examples | Mixture, positions: np.ndarray) -> list[dict[str, Any]]:
    batch, tokenizer = examples.batch(positions), examples.store.tokenizer()
    return [
        {"position": int(position), "text": tokenizer.decode(_ids(batch, row)), "masked": _masked(batch, row)}
        for row, position in enumerate(positions)
    ]


def _ids(batch: Batch, row: int) -> list[int]:
    return batch["input_ids"][row, batch["attention_mask"][row] > 0].tolist()


def _masked(batch: Batch, row: int) -> int:
    """Return the number of predictions in a row."""
    return int((batch["masked_weights"][row] > 0).sum())
