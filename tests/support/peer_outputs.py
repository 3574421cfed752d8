"""Scripts of oracles/ in the peer's environment, and our outputs in the order in which transformers gives its own."""

import os
import pathlib
import subprocess

import jax
import numpy as np
from processes import SECONDS
from small_model import FLOAT32, compiled

from bert_jax.formats.opening import place
from bert_jax.formats.stored import StoredModel
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.task import BertForTask

ORACLES = pathlib.Path(__file__).parents[1] / "oracles"


def run_with_peer(peer: str, script: str, *words) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "XLA_FLAGS")}
    subprocess.run([peer, ORACLES / script, *words], check=True, timeout=SECONDS, env=environment)


def outputs_in_order(stored: StoredModel, batch: dict[str, np.ndarray]) -> list[jax.Array]:
    """Outputs of the class that `stored` is exported as; rows of a batch are the choices of one question."""
    params = place(stored)
    if stored.head is not None:
        if stored.head.kind == "choice":
            batch = {name: value[None] for name, value in batch.items()}
        logits = compiled(BertForTask(stored.model, stored.head, FLOAT32).apply)(params, batch)
        shaped = {"span": [logits[..., 0], logits[..., -1]], "regression": [logits[..., None]]}
        return shaped.get(stored.head.kind, [logits])
    model = BertForPreTraining(stored.model, FLOAT32, stored.parts)
    return compiled(lambda params, batch: _of_parts(model, params, batch))(params, batch)


def _of_parts(model: BertForPreTraining, params, batch) -> list[jax.Array]:
    parts, inputs = model.parts, [batch[name] for name in ("input_ids", "token_type_ids", "attention_mask")]
    if not {"mlm", "next_sentence", "replaced_tokens"} & set(parts):
        encoded = model.encode(params, *inputs)
        return [encoded.last_hidden_state] + ([encoded.pooled] if "pooler" in parts else [])
    rows, length = batch["input_ids"].shape
    everywhere = batch | {"masked_positions": np.tile(np.arange(length, dtype=np.int32), (rows, 1))}
    found = {
        "mlm": lambda: model.mlm_logits(params, everywhere),
        "next_sentence": lambda: model.next_sentence_logits(params, batch),
        "replaced_tokens": lambda: model.replaced_token_logits(params, batch),
    }
    return [found[part]() for part in found if part in parts]
