"""The table of parameters of a discriminator and its generator: which arrays are whose, and which both use.

Nothing outside the standard library is imported, as in `models.parameters`.
"""

import dataclasses

from bert_jax.config import ObjectiveConfig
from bert_jax.config.generator import EmbeddingSharing
from bert_jax.models.parameters import ParameterTable, table

GENERATOR = "generator"
"""First key of the paths of what is the generator's alone; the discriminator has the paths of any BERT."""
DIFFERENCE = "delta"
"""Last key of the paths of differences from the generator's tables, in place of table."""

DISCRIMINATOR_PARTS = ("replaced_tokens",)


def generator_parts(objective: ObjectiveConfig) -> tuple[str, ...]:
    """Return the parts of a generator on its encoder; see MODEL_PARTS."""
    return ("mlm", "mask_decoder") if objective.mask_decoder else ("mlm",)


def is_shareable(path: str) -> bool:
    """Return whether an array is a table of the embeddings or their norm, but not the map to the width of a part."""
    return path.startswith("embeddings/") and not path.startswith("embeddings/projection/")


def is_difference(path: str) -> bool:
    """Return whether a discriminator with disentangled embeddings stores a difference in place of this array."""
    return is_shareable(path) and path.endswith("/table")


def difference_path(path: str) -> str:
    """Return the path of the difference of the table at `path`."""
    return path.removesuffix("table") + DIFFERENCE


def joined(discriminator: ParameterTable, generator: ParameterTable, embeddings: EmbeddingSharing) -> ParameterTable:
    """Return the table of both parts; arguments are the tables of each on its own."""
    disentangled = embeddings == "disentangled"
    entries = [
        dataclasses.replace(entry, path=difference_path(path)) if disentangled and is_difference(path) else entry
        for path, entry in discriminator.items()
    ]
    entries += [
        dataclasses.replace(entry, path=f"{GENERATOR}/{path}")
        for path, entry in generator.items()
        if embeddings != "shared" or not is_shareable(path)
    ]
    return table(entries)
