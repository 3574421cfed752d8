"""Checks of the options of replaced-token detection."""

from bert_jax.config.generator import GeneratorConfig, generator_model
from bert_jax.config.objectives import ObjectiveConfig
from bert_jax.config.options import Config
from bert_jax.errors import UserError


def check_generator(config: Config) -> None:
    """Raise a UserError if generator and discriminator cannot be trained, or if there are none to train."""
    objective, default = config.objective, ObjectiveConfig()
    if objective.name != "replaced_tokens":
        for name in ("generator", "replaced_tokens_weight"):
            if getattr(objective, name) != getattr(default, name):
                raise UserError(
                    f"objective.{name} belongs to objective.name=replaced_tokens, not to {objective.name}; set that "
                    "name or leave the option out"
                )
        return
    for name, consequence in (
        ("mlm_weight", "the generator would never learn"),
        ("replaced_tokens_weight", "the discriminator would never learn"),
    ):
        if not getattr(objective, name):
            raise UserError(
                f"objective.{name}=0 with objective.name=replaced_tokens: {consequence}; the paper's weights are "
                "mlm_weight=1 and replaced_tokens_weight=50"
            )
    for name in ("sentence_pair_weight", "span_boundary_weight"):
        if getattr(objective, name) != getattr(default, name):
            raise UserError(
                f"objective.{name}={getattr(objective, name):g} has no effect with objective.name=replaced_tokens; "
                "leave it out"
            )
    if config.data.has_pair_labels or config.model.pair_head:
        raise UserError(
            f"objective.name=replaced_tokens has no second objective, but data.sentence_pairs="
            f"{config.data.sentence_pairs} and model.pair_head={config.model.pair_head}; set "
            "data.sentence_pairs=adjacent (or none) and model.pair_head=False"
        )
    _check_sizes(config, objective.generator)


def _check_sizes(config: Config, generator: GeneratorConfig) -> None:
    for name in ("hidden_size", "num_layers", "num_heads", "intermediate_size"):
        if (value := getattr(generator, name)) is not None and value < 1:
            raise UserError(f"objective.generator.{name}={value} must be positive")
    model = generator_model(config.model, generator)
    if model.hidden_size > config.model.hidden_size:
        raise UserError(
            f"objective.generator.hidden_size={model.hidden_size} is wider than the discriminator, "
            f"model.hidden_size={config.model.hidden_size}; the paper takes a quarter to a half of it"
        )
    if model.hidden_size % model.num_heads:
        raise UserError(
            f"the generator's width of {model.hidden_size} is not divisible by its {model.num_heads} heads; set "
            "objective.generator.hidden_size or objective.generator.num_heads so that it is"
        )
    if config.objective.mask_decoder and model.num_layers < 2:
        raise UserError(
            "objective.mask_decoder=True passes through the last of several layers again, but "
            f"objective.generator.num_layers={model.num_layers}; give it two or leave the decoder out"
        )
    if model.positions == "rope" and model.head_size % 2:
        raise UserError(
            f"model.positions=rope turns features in pairs, but the generator has heads of {model.head_size}; set "
            "objective.generator.num_heads so that they are even"
        )
