"""Discriminator and generator as one model: published sizes, the table of both, what each costs."""

import dataclasses

import jax
import numpy as np
import pytest
from small_model import compiled

from bert_jax.config import ComputeConfig, Config, ModelConfig, ReplacedTokens
from bert_jax.config.objective import GeneratorConfig
from bert_jax.console import load_config
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.costs import (
    computed_flops,
    parameter_counts,
    run_activation_bytes,
    trained_encoders,
    trained_parameters,
)
from bert_jax.objectives.choice import default_objective
from bert_jax.parameters import check_complete, entries, total_size
from bert_jax.training.learner import Load, remat_policy

PUBLISHED = {  # transformers 5.23.0 on the meta device: encoder and head of the discriminator, of the generator
    "electra_small": (13_483_008, 13_549_057, 4_580_928, 4_620_026),
    "electra_base": (108_891_648, 109_483_009, 33_511_168, 33_740_602),
    "electra_large": (334_092_288, 335_142_913, 50_999_552, 51_295_290),
}
SMALL = ModelConfig(
    vocab_size=600,
    hidden_size=64,
    num_layers=2,
    num_heads=4,
    embedding_size=24,
    max_position_embeddings=128,
    pair_head=False,
)


def objective_of(config: Config):
    return default_objective(BertForPreTraining(config.model, config.compute), config)


def small(embeddings: str = "shared", **options) -> Config:
    generator = GeneratorConfig(hidden_size=32, num_layers=1, embeddings=embeddings)
    return Config(model=SMALL, objective=ReplacedTokens(generator=generator), **options)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_parameter_counts_of_both_parts(name):
    config = load_config(name)
    counts = [parameter_counts(encoder.parameters) for encoder in trained_encoders(config)]
    assert tuple(number for each in counts for number in (each.encoder, each.pretraining)) == PUBLISHED[name]
    config = Config(model=dataclasses.replace(config.model, vocab_size=30_522), objective=config.objective)
    electra = objective_of(config).model
    for part, expected in ((electra.discriminator, PUBLISHED[name][1]), (electra.generator, PUBLISHED[name][3])):
        shapes = jax.eval_shape(part.init, jax.random.key(0))
        assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == expected
    whole = jax.eval_shape(electra.init, jax.random.key(0))
    shared = config.model.word_size * (30_522 + 512 + 2 + 2)  # tables, scale and bias of the norm
    counted = sum(leaf.size for leaf in jax.tree.leaves(whole))
    assert counted == total_size(trained_parameters(config)) == PUBLISHED[name][1] + PUBLISHED[name][3] - shared


@pytest.mark.parametrize("embeddings", ["shared", "own", "disentangled"])
def test_one_table_has_every_array_of_both_parts(embeddings):
    config = small(embeddings)
    electra = objective_of(config).model
    shapes = jax.eval_shape(electra.init, jax.random.key(0))
    check_complete(electra.parameters, shapes)
    entries(electra.parameters, shapes)
    assert electra.parameters == trained_parameters(config)
    decays = {path for path, parameter in electra.parameters.items() if parameter.decays}
    assert {"generator/encoder/attention/query/kernel", "replaced_tokens/dense/kernel"} < decays
    assert not any(path.endswith(("/bias", "/scale")) for path in decays)
    assert electra.parameters["generator/encoder/attention/query/kernel"].layer_axis == 0
    words = {path for path, parameter in electra.parameters.items() if parameter.axis("vocab") == 0}
    tables = {
        "shared": {"embeddings/word/table"},
        "own": {"embeddings/word/table", "generator/embeddings/word/table"},
        "disentangled": {"embeddings/word/delta", "generator/embeddings/word/table"},
    }
    assert words == {"generator/mlm/bias"} | tables[embeddings]


def test_deberta_v3_has_a_generator_of_half_its_layers_with_the_mask_decoder():
    config = load_config("deberta_v3_base")
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=128_100))
    discriminator, generator = trained_encoders(config)
    assert parameter_counts(discriminator.parameters).encoder == 183_831_552  # transformers 5.23.0
    assert generator.config.num_layers == 6 and generator.config.hidden_size == 768
    assert "mask_decoder/position/table" in generator.parameters
    electra = objective_of(config).model
    shapes = jax.eval_shape(electra.init, jax.random.key(0))
    check_complete(electra.parameters, shapes)
    entries(electra.parameters, shapes)
    assert [path for path in electra.parameters if path.endswith("/delta")] == ["embeddings/word/delta"]


def test_a_discriminator_starts_as_it_would_alone_and_differences_from_nothing():
    electra = objective_of(small("disentangled")).model
    params, alone = compiled(lambda key: (electra.init(key), electra.discriminator.init(key)))(jax.random.key(3))
    generator = electra.generator_params(params)
    own = electra.discriminator_params(params)
    for name in ("word", "position", "token_type"):
        assert not params["embeddings"][name]["delta"].any()
        assert (own["embeddings"][name]["table"] == generator["embeddings"][name]["table"]).all()
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: (a == b).all(), own["encoder"], alone["encoder"])))


def test_flops_are_those_the_compiler_counts():
    """Of a forward pass of both parts, whose sampling and elementwise work are a small share at this width."""
    model = ModelConfig(**{**vars(SMALL), "hidden_size": 256, "embedding_size": 128, "vocab_size": 2_000})
    config = Config(model=model, objective=ReplacedTokens(), compute=ComputeConfig(layers="loop"))
    objective = objective_of(config)
    ids, slots = (jax.ShapeDtypeStruct((4, size), "int32") for size in (128, 20))
    batch = dict(input_ids=ids, token_type_ids=ids, attention_mask=ids, masked_positions=slots, masked_ids=slots)
    batch["masked_weights"] = jax.ShapeDtypeStruct((4, 20), "float32")
    params = jax.eval_shape(objective.model.init, jax.random.key(0))
    counted = jax.jit(objective.sums).lower(params, batch).cost_analysis()["flops"] / 4
    assert objective.model.training_flops(128, 20) == computed_flops(config, 128, 20).total
    assert computed_flops(config, 128, 20).total / 3 == pytest.approx(counted, rel=0.05)


def test_activations_are_those_that_differentiation_keeps():
    """What a closure over the backward pass holds, beside the parameters: that of both, and one head for words."""
    model = dataclasses.replace(SMALL, hidden_size=256, embedding_size=128, vocab_size=3_000, num_layers=4)
    config = Config(model=model, objective=ReplacedTokens())
    objective, rows = objective_of(dataclasses.replace(config, compute=ComputeConfig(layers="scan"))), 3
    batch = {name: np.zeros((rows, 40), np.int32) for name in ("input_ids", "token_type_ids", "attention_mask")}
    batch |= {name: np.zeros((rows, 7), np.int32) for name in ("masked_positions", "masked_ids")}
    batch["masked_weights"] = np.ones((rows, 7), np.float32)

    def kept(params):
        def loss(params):
            return sum(sums.loss for sums in objective.sums(params, batch, jax.random.key(0)).values())

        return jax.vjp(loss, params)[1]

    params = jax.eval_shape(objective.model.init, jax.random.key(0))
    own = {leaf.shape for leaf in jax.tree.leaves(params)}
    found = sum(
        leaf.size * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(jax.eval_shape(kept, params))
        if leaf.shape not in own and leaf.shape[1:] not in own
    )
    expected = rows * run_activation_bytes(config, 40, 7, "none", value_bytes=4).total
    assert expected == pytest.approx(found, rel=0.05)


def test_the_generator_of_a_step_counts_in_the_memory_that_chooses_what_is_kept():
    objective = objective_of(small())
    load = Load(memory_bytes=0, moments=2, sequence_length=128, predictions=20, rows=64, split=1)
    electra, fits = objective.model, []
    for model in (electra, electra.discriminator):
        memory = range(20 * 10**6, 400 * 10**6, 10**6)
        loads = [dataclasses.replace(load, memory_bytes=size) for size in memory]
        fits.append([remat_policy(model, ComputeConfig(layers="loop"), each) for each in loads].count("none"))
    assert 0 < fits[0] < fits[1]
