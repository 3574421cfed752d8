"""The model that a run of pre-training starts from (init_from), before any of its arrays is read."""

from bert_jax.checkpoints.fingerprint import stored_fingerprint
from bert_jax.config import Config
from bert_jax.formats.fit import check_fit
from bert_jax.formats.generator_arrays import with_generator
from bert_jax.formats.stored import StoredModel
from bert_jax.models.bert_parameters import STATE_PROJECTION
from bert_jax.pretrained.initialization import check_architecture
from bert_jax.pretrained.layer_selection import with_layers


def open_source(config: Config, resumed: bool) -> StoredModel | None:
    """Return the model that init_from names; None without init_from, and for a resumed run, which ignores it.

    With init_from_layers it has these layers alone, and can be the teacher.

    Raises:
      UserError: there is no such model, or it has another architecture.
    """
    path, option, layers = config.init_from, "init_from", config.init_from_layers
    if layers and not path:
        path, option = config.objective.distillation.teacher, "objective.distillation.teacher"
    if not path or resumed:
        return None
    from bert_jax.formats.opening import open_stored  # the readers of all formats, which most runs do not need

    source = open_stored(path)
    check_fit(source)
    source = source.without(STATE_PROJECTION)  # to a teacher that need not be that of this run
    source = with_layers(source, layers, config.model) if layers else source
    check_architecture(source, config.model, option)
    return with_generator(source, config) if config.objective.name == "replaced_tokens" else source


def source_fingerprint(source: StoredModel | None) -> dict[str, str | None]:
    """Return what must be equal on all hosts, wherever their copies of the model are."""
    return {"init_from_fingerprint": None if source is None else stored_fingerprint(source.arrays)}
