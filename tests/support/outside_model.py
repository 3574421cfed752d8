"""A model that the package does not know: a generator fills masked words in, and a discriminator finds them."""

import dataclasses

import jax
import jax.numpy as jnp
import outside_objective

from bert_jax.config import ComputeConfig, ModelConfig
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.protocol import EncoderOutput, Params
from bert_jax.objectives import masked_words
from bert_jax.objectives.objective import Batch, Sums, Term
from bert_jax.parameters import Axis, ParameterTable, linear, table


@dataclasses.dataclass(frozen=True)
class TwoEncoders:
    """Parameters: a BERT each in generator/… and discriminator/…, and found/…, the map of the latter to a logit."""

    config: ModelConfig
    compute: ComputeConfig = ComputeConfig()

    @property
    def generator(self) -> BertForPreTraining:
        small = dataclasses.replace(self.config, hidden_size=self.config.hidden_size // 2)
        return BertForPreTraining(small, self.compute, ("mlm",))

    @property
    def discriminator(self) -> BertForPreTraining:
        return BertForPreTraining(self.config, self.compute, ())

    @property
    def parameters(self) -> ParameterTable:
        return table(
            [
                *(
                    dataclasses.replace(entry, path=f"{name}/{entry.path}")
                    for name in ("generator", "discriminator")
                    for entry in getattr(self, name).parameters.values()
                ),
                *linear("found", (Axis("hidden", self.config.hidden_size),), (Axis("label", 1),)),
            ]
        )

    def training_flops(self, sequence_length: int, predictions: int) -> int:
        found = 3 * 2 * sequence_length * self.config.hidden_size
        encoders = self.generator, self.discriminator
        return found + sum(encoder.training_flops(sequence_length, predictions) for encoder in encoders)

    def init(self, key: jax.Array) -> Params:
        one, other = jax.random.split(key)
        return {
            "generator": self.generator.init(one),
            "discriminator": self.discriminator.init(other),
            "found": {"kernel": jnp.zeros((self.config.hidden_size, 1)), "bias": jnp.zeros(1)},
        }

    @property
    def fills_masks(self) -> bool:
        return True

    def mlm_logits(self, params: Params, batch: Batch) -> jax.Array:
        return self.generator.mlm_logits(params["generator"], batch)

    def encode(
        self, params, input_ids, token_type_ids, attention_mask, dropout_key=None, collect=False
    ) -> EncoderOutput:
        inputs = input_ids, token_type_ids, attention_mask, dropout_key, collect
        return self.discriminator.encode(params["discriminator"], *inputs)


@dataclasses.dataclass(frozen=True)
class ReplacedTokens:
    """ELECTRA's objective (Clark et al. 2020), with the most probable words in place of drawn ones."""

    model: TwoEncoders
    terms: tuple[Term, ...] = (Term(name="mlm", label="words"), Term(name="found", weight=50.0, label="found"))

    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        return {"mlm": jnp.sum(batch["masked_weights"]), "found": jnp.sum(batch["attention_mask"]).astype(jnp.float32)}

    def sums(self, params, batch: Batch, dropout_key: jax.Array | None = None) -> dict[str, Sums]:
        generator, types, real = self.model.generator, batch["token_type_ids"], batch["attention_mask"]
        encoded = generator.encode(params["generator"], batch["input_ids"], types, real, dropout_key)
        logits = generator.mlm_logits(params["generator"], batch, encoded)
        words = masked_words.masked_word_sums(logits, batch["masked_ids"], batch["masked_weights"])

        rows, places = jnp.arange(len(logits))[:, None], batch["masked_positions"]
        masked = batch["masked_weights"] > 0
        before = jnp.take_along_axis(batch["input_ids"], places, axis=1)
        filled = jnp.where(masked, jnp.argmax(logits, axis=-1), before)
        corrupted = batch | {
            "input_ids": batch["input_ids"].at[rows, places].set(filled.astype(batch["input_ids"].dtype))
        }
        wanted, weights = outside_objective.replaced(corrupted), real.astype(jnp.float32)
        states = self.model.encode(params, corrupted["input_ids"], types, real, dropout_key).last_hidden_state
        scores = (states.astype(jnp.float32) @ params["found"]["kernel"])[:, :, 0] + params["found"]["bias"][0]
        losses = jax.nn.softplus(jnp.where(wanted, -scores, scores))
        found = Sums(jnp.sum(weights * losses), jnp.sum(weights), jnp.sum(weights * ((scores > 0) == wanted)))
        return {"mlm": words, "found": found}
