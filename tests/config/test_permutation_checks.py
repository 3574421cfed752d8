"""What XLNet and its objective are not, refused in one line that names the option."""

from collections.abc import Callable

import pytest

from bert_jax.config import Config, MaskedWords, ModelConfig, Permutation
from bert_jax.config.checks import check
from bert_jax.config.json_form import with_options
from bert_jax.console import load_config, parse
from bert_jax.errors import UserError

MINI = load_config("xlnet_mini")


def changed(part: str, **changes) -> Callable[[], Config]:
    return lambda: with_options(MINI, {f"{part}.{name}": value for name, value in changes.items()})


@pytest.mark.parametrize("name", ["mini", "base", "large"])
def test_the_shipped_configurations_are_good(name):
    config = check(load_config(f"xlnet_{name}"))
    assert config.model.two_streams and not config.model.pair_head and config.objective == Permutation()


@pytest.mark.parametrize(
    "config, message",
    [
        (
            changed("objective", name="masked_words"),
            "positions=xlnet and objective.name=masked_words.*or neither",
        ),
        (changed("model", positions="learned"), "positions=learned and objective.name=permutation.*or neither"),
        (
            changed("model", norm_position="pre"),
            "norm_position=pre belongs to .*, not to model.positions=xlnet",
        ),
        (
            changed("model", direction="left_to_right"),
            "direction=left_to_right belongs to .*, not to .*xlnet",
        ),
        (
            changed("model", local_window=8),
            "local_window=8 belongs to another model.positions, not to .*xlnet",
        ),
        (changed("model", embedding_size=64), "embedding_size=64 belongs to .*, not to model.positions=xlnet"),
        (changed("model", layer="lstm"), "layer=lstm and objective.name=permutation"),
        (changed("model", hidden_size=15, num_heads=3), "hidden_size=15 is odd"),
        (changed("masking", unit="span"), "masking.unit=span has no effect"),
        (changed("masking", random_share=0.0), "masking.random_share=0.0 has no effect"),
        (changed("objective", longest_span=0), "longest_span=0 must be positive; the paper's is 5"),
        (
            lambda: with_options(MINI, {"data.sentence_pairs": "nsp", "model.pair_head": True}),
            "sentence_pairs=nsp",
        ),
    ],
)
def test_what_does_not_go_with_xlnet_is_refused(config, message):
    with pytest.raises(UserError, match=message) as caught:
        check(config())
    assert "\n" not in str(caught.value)


def test_the_weight_of_masked_words_is_refused():
    with pytest.raises(UserError, match="objective.mlm_weight=0.5 belongs to .*, not to objective.name=permutation"):
        parse(MINI, ["--objective.mlm_weight=0.5"], "pretrain")


def test_a_bert_without_an_order_is_untouched():
    assert check(Config(model=ModelConfig(), objective=MaskedWords())) == Config()
