"""Discriminator and generator in the checkpoint of one run (replaced-token detection), each as a model of its own."""

import dataclasses

from bert_jax.config import Config, ObjectiveConfig
from bert_jax.config.generator import GeneratorConfig, generator_model
from bert_jax.config.json_form import from_record, to_dict
from bert_jax.devices.placement import StoredArray
from bert_jax.errors import UserError
from bert_jax.formats.stored import StoredModel
from bert_jax.models.generator_parameters import DIFFERENCE, GENERATOR, difference_path, is_difference, is_shareable

_BELOW = f"{GENERATOR}/"
_SIZES = {
    "hidden_size": "hidden_size",
    "num_layers": "num_layers",
    "num_heads": "num_heads",
    "intermediate_size": "feed_forward_size",
}
"""Option of GeneratorConfig → attribute of ModelConfig that a run must have as the one that it continues from."""


def without_generator(arrays: dict[str, StoredArray]) -> tuple[dict[str, StoredArray], dict[str, StoredArray]]:
    """Return the arrays of the discriminator by the paths of any BERT, and those that a run has beside them.

    The latter, empty for other runs, are below "generator", or differences from the generator's tables.
    """
    beside = {
        path: array for path, array in arrays.items() if path.startswith(_BELOW) or path.endswith(f"/{DIFFERENCE}")
    }
    own = {path: array for path, array in arrays.items() if path not in beside}
    for path in [path.removeprefix(_BELOW) for path in beside]:
        if is_difference(path) and (difference := beside.get(difference_path(path))) is not None:
            own[path] = _sum(beside[_BELOW + path], difference)
    return own, beside


def generator_of(stored: StoredModel) -> StoredModel:
    """Return the generator of a run of replaced-token detection, a masked language model.

    Raises:
      UserError: `stored` is no such run.
    """
    if not any(path.startswith(_BELOW) for path in stored.beside):
        raise UserError(
            f"{stored.path} has no generator; the work directory of a run with objective.name=replaced_tokens has one "
            "(its converted discriminator has none)"
        )
    arrays = {path: array for path, array in stored.arrays.items() if is_shareable(path)}
    arrays |= {path.removeprefix(_BELOW): array for path, array in stored.beside.items() if path.startswith(_BELOW)}
    settings = stored.history["config"]
    generator, where = settings["objective"]["generator"], f"the record of {stored.path}"
    options = from_record(GeneratorConfig, generator, where, "objective.generator.")
    # Opened, evaluated and continued, it is a masked language model like any other.
    history = stored.history | {"config": settings | {"objective": to_dict(ObjectiveConfig())}}
    return dataclasses.replace(
        stored, model=generator_model(stored.model, options), arrays=arrays, beside={}, history=history
    )


def with_generator(stored: StoredModel, config: Config) -> StoredModel:
    """Return a model that a run of replaced-token detection starts from, with arrays under all paths of its table.

    A model without a generator gives its tables to that of the run, whose layers start fresh.

    Raises:
      UserError: the model has a generator, of other sizes than that of the run.
    """
    if not stored.beside:
        tables = {_BELOW + path: array for path, array in stored.arrays.items() if is_shareable(path)}
        return dataclasses.replace(stored, arrays=stored.arrays | tables)
    theirs, ours = generator_of(stored).model, generator_model(config.model, config.objective.generator)
    differing = {
        option: (getattr(ours, name), getattr(theirs, name))
        for option, name in _SIZES.items()
        if getattr(ours, name) != getattr(theirs, name)
    }
    if differing:
        shown = "; ".join(f"{option} is {here} here and {there} there" for option, (here, there) in differing.items())
        options = " ".join(f"--objective.generator.{option}={there}" for option, (_, there) in differing.items())
        raise UserError(
            f"init_from={stored.path} has a different generator from this configuration ({shown}). To continue from "
            f"it, add: {options}"
        )
    own = {_BELOW + path: array for path, array in generator_of(stored).arrays.items()}
    return dataclasses.replace(stored, arrays=stored.arrays | own | stored.beside)


def _sum(first: StoredArray, second: StoredArray) -> StoredArray:
    return StoredArray(first.shape, first.dtype, lambda index: first.read(index) + second.read(index))
