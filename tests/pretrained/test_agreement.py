"""Which options a run must have in common with the stored model that it starts from (init_from)."""

import dataclasses

import pytest
from model_variants import variant

from bert_jax.config import Config, ModelConfig, RecurrentConfig
from bert_jax.config.json_form import flattened, spelled_names, to_dict, with_options
from bert_jax.console import parse
from bert_jax.errors import UserError
from bert_jax.formats.stored import StoredModel
from bert_jax.pretrained.initialization import check_architecture

MODEL = ModelConfig(vocab_size=17, hidden_size=16, num_layers=2, num_heads=2, max_position_embeddings=12)


def stored_model(config: ModelConfig) -> StoredModel:
    return StoredModel(kind="bert_jax", path="somewhere", model=config, arrays={}, tokenizer=None)


DIFFERENT = {
    "hidden_size": 32,
    "num_layers": 3,
    "num_heads": 4,
    "intermediate_size": 40,
    "type_vocab_size": 3,
    "activation": "gelu_erf",
    "layer_norm_epsilon": 1e-6,
    "norm_position": "pre",
}


def test_another_architecture_is_one_error_with_the_options_to_paste():
    stored = stored_model(variant(MODEL, **DIFFERENT))
    with pytest.raises(UserError) as caught:
        check_architecture(stored, MODEL)
    message = str(caught.value)
    assert "\n" not in message and "model.activation is gelu_tanh here and gelu_erf there" in message
    options = message.partition("add: ")[2].split()
    assert len(options) == len(DIFFERENT)
    check_architecture(stored, parse(Config(model=MODEL), options, "x").model)


def test_a_width_that_is_written_out_equals_the_one_that_is_derived():
    check_architecture(stored_model(dataclasses.replace(MODEL, intermediate_size=4 * 16)), MODEL)


HARMLESS = {
    "vocab_size": 99,
    "vocab_pad_multiple": 8,
    "max_position_embeddings": 99,
    "hidden_dropout": 0.3,
    "attention_dropout": 0.3,
    "recurrent_dropout": 0.3,
    "initializer_range": 0.1,
    "scaled_outputs": True,
    "position_init": "sinusoidal",
    "pair_head": False,
}
OTHER_WORDS = {"layer": "lstm", "positions": "rope", "direction": "left_to_right", "pooler": "relu", "norm": "rms_norm"}
OTHER_WORDS |= {"convolution_activation": "gelu_erf", "disentangled.terms": "c2p"}
OTHER_WORDS |= {"sharing": "all", "feed_forward": "geglu", "activation": "gelu_erf", "norm_position": "pre"}
KINDS = (
    {},
    {"positions": "rope"},
    {"local_window": 4},
    {"convolution_width": 3},
    {"positions": "none", "disentangled.terms": "c2p+p2c"},
    {"layer": "lstm"},
)
"""Options that choose kinds, which have options of their own."""


def another(name: str, value):
    """A value of an option other than this one."""
    if isinstance(value, str):
        return OTHER_WORDS[name]
    return not value if isinstance(value, bool) else 7 if value is None else value + (2 if "width" in name else 1)


def spelled(model) -> dict:
    return {name.removeprefix("model."): value for name, value in flattened({"model": to_dict(model)}).items()}


def with_names(model, options: dict):
    return with_options(Config(model=model), {f"model.{name}": value for name, value in options.items()}).model


OPTIONS = [
    (number, name)
    for number, kind in enumerate(KINDS)
    for name in spelled(with_names(MODEL, kind))
    if (name not in kind) and (not number or name not in spelled(MODEL))
]


@pytest.mark.parametrize("number, name", OPTIONS)
def test_every_option_agrees_or_is_known_to_be_harmless(number, name):
    model = with_names(MODEL, KINDS[number])
    if name in HARMLESS:
        check_architecture(stored_model(with_names(model, {name: HARMLESS[name]})), model)
        return
    other = with_names(model, {name: another(name, spelled(model)[name])})
    with pytest.raises(UserError, match=rf"model\.{name} is .* here and .* there"):
        check_architecture(stored_model(other), model)


def test_every_option_of_a_transformer_or_of_recurrent_layers_is_among_them():
    names = {name.split(".")[0] for _, name in OPTIONS} | {"layer", "positions", "local_window", "convolution_width"}
    assert {*spelled_names(ModelConfig), *spelled_names(RecurrentConfig)} <= names


@dataclasses.dataclass(frozen=True, kw_only=True)
class Later(ModelConfig):
    """A ModelConfig with an option that nobody has heard of."""

    experts: int = 1


def test_a_new_option_must_agree_until_someone_says_otherwise():
    run, stored = (Later(**vars(MODEL), experts=experts) for experts in (1, 4))
    check_architecture(stored_model(run), run)
    with pytest.raises(UserError, match=r"model.experts is 1 here and 4 there.*--model.experts=4"):
        check_architecture(stored_model(stored), run)
    assert (run.beyond_bert, stored.beyond_bert) == ((), ("experts",))


@pytest.mark.parametrize("run", [{}, {"layer": "lstm"}])
def test_a_model_that_reads_to_the_right_is_no_start_for_one_of_both_sides(run):
    """As an LSTM or not; the arrays of a Transformer have the same shapes either way."""
    stored = stored_model(variant(MODEL, direction="left_to_right", **run))
    with pytest.raises(UserError, match=r"model.direction is both here and left_to_right there.*=left_to_right"):
        check_architecture(stored, variant(MODEL, **run))


def test_how_far_a_model_reaches_may_differ_in_a_longer_run():
    stored = stored_model(variant(MODEL, positions="rope"))
    run = variant(dataclasses.replace(stored.model, max_position_embeddings=24), rope_scale=2.0)
    check_architecture(stored, run)
    with pytest.raises(UserError, match="model.rope_scale is 2.0 here and 1.0 there"):
        check_architecture(stored, dataclasses.replace(run, max_position_embeddings=12))
