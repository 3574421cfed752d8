"""ELECTRA (Clark et al. 2020): a discriminator and its generator, trained together, as one model."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from bert_jax.config import ComputeConfig, EncoderConfig
from bert_jax.config.objective import EmbeddingSharing
from bert_jax.models.architecture import Architecture
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.bert_parameters import DIFFERENCE, GENERATOR, Layers, is_difference, is_shareable, joined
from bert_jax.models.kernels.plain import AttentionMask
from bert_jax.models.layers import PackedTexts
from bert_jax.models.protocol import EncoderOutput, Params, encoder_inputs
from bert_jax.parameters import ParameterTable


@dataclasses.dataclass(frozen=True)
class Electra:
    """Both parts as functions of one dict of arrays (see `Model`), whose `encode` is the discriminator's.

    The discriminator's arrays have the paths of any BERT, so that whoever opens the run finds it; those of the
    generator alone are below "generator".
    """

    discriminator: BertForPreTraining
    """The discriminator, with the part replaced_tokens."""
    generator: BertForPreTraining
    """The generator, with the part mlm, the vocabulary of the discriminator, and tables as wide as the
    discriminator's."""
    embeddings: EmbeddingSharing = "shared"
    """See GeneratorConfig.embeddings."""

    @property
    def config(self) -> EncoderConfig:
        """Sizes of the discriminator."""
        return self.discriminator.config

    @property
    def compute(self) -> ComputeConfig:
        """That of both parts."""
        return self.discriminator.compute

    @property
    def parameters(self) -> ParameterTable:
        """See `Model.parameters`."""
        return joined(self.discriminator.parameters, self.generator.parameters, self.embeddings)

    @property
    def encoder_layers(self) -> Layers:
        """Implement `HasLayers`, for the discriminator."""
        return self.discriminator.encoder_layers

    @property
    def dtype(self) -> jnp.dtype:
        """Type of activations and matrix products of both parts."""
        return self.discriminator.dtype

    @property
    def shares_word_table(self) -> bool:
        """Implement `SharesWordTable`; both parts look words up in that table."""
        return self.embeddings == "shared" and self.generator.shares_word_table

    @property
    def fills_masks(self) -> bool:
        """Implement `FillsMasks`, with the generator."""
        return self.generator.fills_masks

    @property
    def architecture(self) -> Callable[[EncoderConfig, ComputeConfig], Architecture]:
        """Chooses the pieces of both encoders."""
        return self.discriminator.architecture

    def training_flops(self, sequence_length: int, predictions: int) -> int:
        """Implement `Model.training_flops`, for both parts."""
        return sum(part.training_flops(sequence_length, predictions) for part in (self.discriminator, self.generator))

    def init(self, key: jax.Array) -> Params:
        """See `Model.init`; the discriminator's arrays are those that it has on its own, differences are 0."""
        discriminator, generator = self.discriminator.init(key), self.generator.init(jax.random.fold_in(key, 1))
        if self.embeddings == "disentangled":
            discriminator["embeddings"] = {
                name: {DIFFERENCE: jnp.zeros_like(module["table"])}
                if is_difference(f"embeddings/{name}/table") and "table" in module
                else module
                for name, module in discriminator["embeddings"].items()
            }
        if self.embeddings == "shared":
            generator["embeddings"] = {
                name: module
                for name, module in generator["embeddings"].items()
                if not is_shareable(f"embeddings/{name}/")
            }
        return {**discriminator, GENERATOR: {name: tree for name, tree in generator.items() if tree}}

    def generator_params(self, params: Params) -> Params:
        """Return the arrays of the generator, by the paths that it has on its own."""
        own = params[GENERATOR]
        if self.embeddings != "shared":
            return own
        shared = {name: module for name, module in params["embeddings"].items() if is_shareable(f"embeddings/{name}/")}
        return own | {"embeddings": shared | own.get("embeddings", {})}

    def discriminator_params(self, params: Params) -> Params:
        """Return the arrays of the discriminator, by the paths that it has on its own.

        Gradients by disentangled tables reach the differences alone.
        """
        if self.embeddings != "disentangled":
            return params
        generators = jax.lax.stop_gradient(params[GENERATOR]["embeddings"])
        tables = {
            name: {"table": generators[name]["table"] + module[DIFFERENCE]} if DIFFERENCE in module else module
            for name, module in params["embeddings"].items()
        }
        return params | {"embeddings": tables}

    def mlm_logits(
        self, params: Params, batch: dict[str, jax.Array], dropout_key: jax.Array | None = None
    ) -> jax.Array:
        """Return float32 [B, M, V], the generator's logits of the words at the masked_positions of a batch."""
        params, texts = self.generator_params(params), PackedTexts.of(batch)
        encoded = self.generator.read(params, *encoder_inputs(batch), batch["masked_positions"], dropout_key, texts)
        return self.generator.mlm_logits(params, batch, encoded)

    def replaced_token_logits(
        self, params: Params, batch: dict[str, jax.Array], dropout_key: jax.Array | None = None
    ) -> jax.Array:
        """Return float32 [B, L] of the discriminator: positive where a token of the batch seems to be replaced."""
        params, texts = self.discriminator_params(params), PackedTexts.of(batch)
        encoded = self.discriminator.encode(params, *encoder_inputs(batch), dropout_key, texts=texts)
        return self.discriminator.replaced_token_logits(params, batch, encoded)

    def encode(
        self,
        params: Params,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        attention_mask: jax.Array | AttentionMask,
        dropout_key: jax.Array | None = None,
        collect: bool = False,
        texts: PackedTexts | None = None,
    ) -> EncoderOutput:
        """Implement `BertForPreTraining.encode` with the discriminator."""
        params = self.discriminator_params(params)
        return self.discriminator.encode(
            params, input_ids, token_type_ids, attention_mask, dropout_key, collect=collect, texts=texts
        )
