"""The functions of a loaded model, compiled once a shape, from batches of NumPy to results in NumPy."""

import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax import sharding
from bert_jax.config import HeadConfig
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.hidden_states import combine, pool
from bert_jax.models.task import BertForTask
from bert_jax.pretrained.parameters import Parameters
from bert_jax.task_step import predictions
from bert_jax.tasks.batching import Batch


class Runner:
    """Runs `network` on the current parameters; the mesh splits the batches too, and every host gets the whole result.

    `states`, `features`, `mlm_logits`, `next_sentence_logits` and, with a task head, `task_scores` are functions of
    (batch, **options).
    """

    def __init__(self, network: BertForPreTraining, head: HeadConfig | None, parameters: Parameters, mesh: Mesh):
        self.states = Compiled(_states, network, parameters, mesh, ("layers", "attentions", "pooling"))
        self.features = Compiled(_features, network, parameters, mesh, ("combination", "pooling"))
        self.mlm_logits = Compiled(BertForPreTraining.mlm_logits, network, parameters, mesh)
        self.next_sentence_logits = Compiled(BertForPreTraining.next_sentence_logits, network, parameters, mesh)
        if head is not None:
            task = BertForTask(network.config, head, network.compute)
            self.task_scores = Compiled(predictions, task, parameters, mesh)


class Compiled:
    """`function(network, params, batch, **options)` as a function of (batch, **options), for the parameters at each call."""

    def __init__(self, function, network, parameters: Parameters, mesh: Mesh, static: tuple[str, ...] = ()):
        self._parameters, self._mesh = parameters, mesh
        shardings = sharding.gathered(jax.tree.map(lambda leaf: leaf.sharding, parameters.tree))

        def whole(params, batch, **options):
            return function(network, jax.lax.with_sharding_constraint(params, shardings), batch, **options)

        self._jitted = jax.jit(whole, static_argnames=static, out_shardings=sharding.replicated(mesh))

    def __call__(self, batch: Batch, **options):
        rows = len(batch["input_ids"])
        placed = {name: self._placed(values) for name, values in batch.items()}
        output = self._jitted(self._parameters.current(), placed, **options)
        return jax.tree.map(lambda x: x[:rows], jax.device_get(output))

    @property
    def compilations(self) -> int:
        """For how many shapes and options it has been compiled."""
        return self._jitted._cache_size()

    def _placed(self, values: np.ndarray) -> jax.Array:
        """On the devices, with copies of the last row, so that they share the rows evenly."""
        where, parts = sharding.batch_sharding(self._mesh), self._mesh.shape["data"] * self._mesh.shape["fsdp"]
        filled = np.concatenate([values, np.repeat(values[-1:], -len(values) % parts, axis=0)])
        return jax.make_array_from_callback(filled.shape, where, filled.__getitem__)


def _states(network: BertForPreTraining, params, batch, layers: tuple[int, ...] | None, attentions: bool,
            pooling: str | None) -> dict:
    """float32: last [B, L, H], pooled [B, H] or None, layers (those asked for, [B, L, H]), attentions (N × [B, A, L, L])."""
    output = network.encode(params, *_inputs(batch), collect=layers is not None or attentions)
    last = output.last_hidden_state.astype(np.float32)
    pooled = output.pooled if pooling in (None, "pooler") else pool(last, batch["attention_mask"], pooling)
    chosen = {"pooled": pooled, "layers": tuple(output.hidden_states[index] for index in layers or ()),
              "attentions": output.attentions if attentions else ()}
    return {"last": last, **jax.tree.map(lambda x: x.astype(np.float32), chosen)}


def _features(network: BertForPreTraining, params, batch, weights, combination: str, pooling: str) -> jax.Array:
    """[B, H'] float32."""
    output = network.encode(params, *_inputs(batch), collect=combination != "last")
    if pooling == "pooler":
        return output.pooled.astype(np.float32)
    states = output.last_hidden_state if combination == "last" else combine(output.hidden_states, combination, weights)
    return pool(states.astype(np.float32), batch["attention_mask"], pooling)


def _inputs(batch) -> tuple:
    return batch["input_ids"], batch["token_type_ids"], batch["attention_mask"]
