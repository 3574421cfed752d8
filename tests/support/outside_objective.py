"""An objective that the package does not know: masked words with label smoothing, and finding the replaced tokens."""

import dataclasses

import jax
import jax.numpy as jnp

from bert_jax.models.bert import BertForPreTraining
from bert_jax.objectives.objective import Batch, Sums, Term

SMOOTHING = 0.1
SMOOTH = Term(name="smooth", label="smooth", title="Smoothed words", unit="nats", perplexity="smooth_perplexity")
REPLACED = Term(name="replaced", weight=2.0, label="replaced", title="Replaced tokens", panels=("accuracy",))


@dataclasses.dataclass(frozen=True)
class OutsideObjective:
    """Reads the replaced tokens by the weights of the sentence head, which needs no parameters of its own."""

    model: BertForPreTraining
    terms: tuple[Term, ...] = (SMOOTH, REPLACED)

    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        return {
            "smooth": jnp.sum(batch["masked_weights"]),
            "replaced": jnp.sum(batch["attention_mask"]).astype(jnp.float32),
        }

    def sums(self, params, batch: Batch, dropout_key: jax.Array | None = None) -> dict[str, Sums]:
        inputs = (batch["input_ids"], batch["token_type_ids"], batch["attention_mask"])
        encoded = self.model.encode(params, *inputs, dropout_key)
        weights, ids = batch["masked_weights"], batch["masked_ids"]

        logits = self.model.mlm_logits(params, batch, encoded)
        log = jax.nn.log_softmax(logits)
        own = jnp.take_along_axis(log, ids[:, :, None], axis=-1)[:, :, 0]
        losses = -(1 - SMOOTHING) * own - SMOOTHING * jnp.mean(log, axis=-1)
        right = jnp.argmax(logits, axis=-1) == ids
        smooth = Sums(jnp.sum(weights * losses), jnp.sum(weights), jnp.sum(weights * right))

        head, real = params["next_sentence"], batch["attention_mask"].astype(jnp.float32)
        scores = jnp.tensordot(encoded.last_hidden_state.astype(jnp.float32), head["kernel"][:, 1], axes=1)
        wanted = replaced(batch)
        losses = jax.nn.softplus(jnp.where(wanted, -scores, scores))
        replaced_sums = Sums(jnp.sum(real * losses), jnp.sum(real), jnp.sum(real * ((scores > 0) == wanted)))
        return {"smooth": smooth, "replaced": replaced_sums}


def replaced(batch: Batch) -> jax.Array:
    """Whether each token of [B, L] is not the original one."""
    rows = jnp.arange(batch["input_ids"].shape[0])[:, None]
    now = jnp.take_along_axis(batch["input_ids"], batch["masked_positions"], axis=1)
    changed = (now != batch["masked_ids"]) & (batch["masked_weights"] > 0)
    return jnp.zeros(batch["input_ids"].shape, bool).at[rows, batch["masked_positions"]].max(changed)
