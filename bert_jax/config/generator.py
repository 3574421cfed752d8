"""The generator of replaced-token detection, from which the discriminator's words come; the standard library only."""

import dataclasses
from typing import Literal

from bert_jax.config.encoder import ModelConfig

EmbeddingSharing = Literal["shared", "own", "disentangled"]
"""Ways in which generator and discriminator share embeddings; see `GeneratorConfig.embeddings`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeneratorConfig:
    """The masked language model that is trained together with the discriminator. All other options are those of
    `model`."""

    hidden_size: int | None = None
    """Width of each layer, at most that of the discriminator. None: a quarter of it, as in ELECTRA-small and -large
    (base: a third)."""
    num_layers: int | None = None
    """Number of layers. None: as many as the discriminator has, as in ELECTRA; DeBERTa v3 has half of them."""
    num_heads: int | None = None
    """Number of attention heads per layer. None: heads as wide as the discriminator's, and at least one."""
    intermediate_size: int | None = None
    """Width of the feed-forward layer. None: four times hidden_size."""
    embeddings: EmbeddingSharing = "shared"
    """Sharing of embeddings between generator and discriminator. shared: the same tables and norm, trained by
    both losses, as in ELECTRA; an affine map takes them to the width of each. own: each part has its own. disentangled:
    the discriminator's tables are those of the generator, which its loss does not train, plus a difference that it
    learns (DeBERTa v3)."""


def generator_model(model: ModelConfig, generator: GeneratorConfig) -> ModelConfig:
    """Return the sizes of the generator of a discriminator `model`."""
    hidden_size = max(1, model.hidden_size // 4) if generator.hidden_size is None else generator.hidden_size
    heads = max(1, hidden_size // model.head_size) if generator.num_heads is None else generator.num_heads
    return dataclasses.replace(
        model,
        hidden_size=hidden_size,
        embedding_size=None if model.word_size == hidden_size else model.word_size,
        num_layers=model.num_layers if generator.num_layers is None else generator.num_layers,
        num_heads=heads,
        intermediate_size=generator.intermediate_size,
        pair_head=False,
    )
