"""Options of replaced-token detection: what they mean where they are left open, and one line for each that is wrong."""

import dataclasses

import pytest

from bert_jax.config import ModelConfig
from bert_jax.config.objective import GeneratorConfig, generator_model
from bert_jax.console import configured
from bert_jax.errors import UserError

WRONG = {
    ("--objective.generator.hidden_size=512",): "512 is wider than the discriminator, model.hidden_size=256",
    ("--objective.generator.num_heads=3",): "the generator's width of 64 is not divisible by its 3 heads",
    ("--objective.generator.num_layers=0",): "objective.generator.num_layers=0 must be positive",
    ("--objective.generator.embeddings=tied",): "invalid choice 'tied' for argument '--objective.gene",
    ("--objective.generator.width=64",): "objective.generator.width",
    ("--objective.name=replaced_token",): "invalid choice 'replaced_token'",
    ("--objective.mlm_weight=0",): "the generator would never learn",
    ("--objective.replaced_tokens_weight=0",): "the discriminator would never learn",
    ("--objective.replaced_tokens_weight=-1",): "must be 0 or a positive number",
    ("--objective.sentence_pair_weight=2",): "sentence_pair_weight=2 belongs to objective.name=masked_words, not to",
    ("--objective.span_boundary_weight=1",): "span_boundary_weight=1 belongs to objective.name=masked_words, not to",
    ("--data.sentence_pairs=sop",): "no second objective, but data.sentence_pairs=sop",
    ("--model.pair_head=true",): "has no second objective",
    ("--data.sentence_pairs=nsp", "--model.pair_head=true"): "set data.sentence_pairs=adjacent (or none) and",
    ("--model.type_vocab_size=1",): "data.sentence_pairs=adjacent needs two segments, but model.type_vocab_size=1; set",
    ("--masking.mask_share=0.85", "--masking.random_share=0.2"): "add up to more than 1",
    ("--masking.rate=0",): "masking.rate=0 leaves nothing to predict",
    ("--masking.rate=1.2",): "masking.rate=1.2 must be between 0 and 1",
    ("--model.positions=rope", "--objective.generator.num_heads=64"): "the generator has heads of 1",
    (
        "--objective.name=masked_words",
        "--objective.generator.num_layers=3",
    ): "objective.generator.num_layers=3 belongs to",
    ("--objective.name=masked_words", "--objective.replaced_tokens_weight=3"): "belongs to objective.name=replaced",
}


@pytest.mark.parametrize("options", WRONG, ids=" ".join)
def test_what_is_wrong_is_said_in_one_line(options):
    with pytest.raises(UserError) as raised:
        configured(["electra_mini", *options], "pretrain CONFIG", "")
    assert WRONG[options] in str(raised.value) and "\n" not in str(raised.value)


def test_a_generator_is_a_quarter_as_wide_with_heads_of_the_same_width():
    base = ModelConfig(embedding_size=None, pair_head=False)  # 768, 12 heads
    given = generator_model(base, GeneratorConfig())
    assert (given.hidden_size, given.num_heads, given.num_layers, given.feed_forward_size) == (192, 3, 12, 768)
    assert given.embedding_size == 768 and given.word_size == base.word_size
    third = generator_model(base, GeneratorConfig(hidden_size=256, num_layers=6, intermediate_size=100))
    assert (third.hidden_size, third.num_heads, third.num_layers, third.feed_forward_size) == (256, 4, 6, 100)
    narrow = dataclasses.replace(base, embedding_size=64)
    assert generator_model(narrow, GeneratorConfig(hidden_size=64)).embedding_size is None  # no map is needed
    assert generator_model(base, GeneratorConfig(hidden_size=32)).num_heads == 1
