"""The functions of a loaded model, compiled once a shape, from batches of NumPy to results in NumPy."""

import functools

import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax import sharding
from bert_jax.hidden_states import combine, pool
from bert_jax.models.bert import BertForPreTraining

Batch = dict[str, np.ndarray]


class Runner:
    """Runs `network` on `params`, where those lie; a mesh splits the batches too, and every host gets the whole result."""

    def __init__(self, network: BertForPreTraining, params: dict, mesh: Mesh | None):
        self._params, self._mesh, self._network = params, mesh, network
        self.states = self._compiled(_states, ("layers", "attentions", "pooling"))
        self.features = self._compiled(_features, ("combination", "pooling"))
        self.mlm_logits = self._compiled(BertForPreTraining.mlm_logits)
        self.next_sentence_logits = self._compiled(BertForPreTraining.next_sentence_logits)

    def _compiled(self, function, static: tuple[str, ...] = ()):
        """`function(network, params, batch, **options)` as a function of (batch, **options)."""
        mesh, shardings = self._mesh, jax.tree.map(lambda leaf: leaf.sharding, self._params)

        def whole(params, batch, **options):
            if mesh is not None:
                params = jax.lax.with_sharding_constraint(params, sharding.gathered(shardings))
            return function(self._network, params, batch, **options)

        placement = {} if mesh is None else {"out_shardings": sharding.replicated(mesh)}
        jitted = jax.jit(whole, static_argnames=static, **placement)

        @functools.wraps(jitted)
        def run(batch: Batch, **options):
            rows = len(batch["input_ids"])
            output = jitted(self._params, self._placed(batch, rows), **options)
            return jax.tree.map(lambda x: x[:rows], jax.device_get(output))

        run.compilations = jitted._cache_size
        return run

    def _placed(self, batch: Batch, rows: int):
        """On the devices; on a mesh with copies of the last row, so that the rows can be split evenly."""
        if self._mesh is None:
            return batch
        where, parts = sharding.batch_sharding(self._mesh), self._mesh.shape["data"] * self._mesh.shape["fsdp"]
        placed = {}
        for name, values in batch.items():
            filled = np.concatenate([values, np.repeat(values[-1:], -rows % parts, axis=0)])
            placed[name] = jax.make_array_from_callback(filled.shape, where, filled.__getitem__)
        return placed


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
