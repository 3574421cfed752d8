"""Costs of models: parameters, operations and memory, also of two encoders in one."""

import dataclasses
import typing

import jax
import numpy as np
import pytest
from model_variants import variant
from small_model import compiled

from bert_jax.config import ComputeConfig, Config, HeadConfig, ModelConfig, OptimizerConfig, ReplacedTokens
from bert_jax.config.objective import GeneratorConfig
from bert_jax.config.presets import model_config
from bert_jax.console import load_config
from bert_jax.models import costs
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.bert_parameters import bert_parameters, pretraining_parts
from bert_jax.models.task import BertForTask
from bert_jax.parameters import Axis, check_complete, entries, linear, table, total_size, with_axis
from bert_jax.pretraining import default_objective
from bert_jax.training.learner import Load, remat_policy
from bert_jax.training.optimizers import optimizer

CASED, UNCASED, MULTILINGUAL, CHINESE = 28_996, 30_522, 119_547, 21_128

WIDTHS = (128, 256, 512, 768)
ENCODERS = {  # with pooler; the 24 miniatures by number of layers, one of each width, uncased vocabulary
    2: (4_385_920, 9_591_040, 22_458_880, 38_603_520),
    4: (4_782_464, 11_170_560, 28_763_648, 52_779_264),
    6: (5_179_008, 12_750_080, 35_068_416, 66_955_008),
    8: (5_575_552, 14_329_600, 41_373_184, 81_130_752),
    10: (5_972_096, 15_909_120, 47_677_952, 95_306_496),
    12: (6_368_640, 17_488_640, 53_982_720, 109_482_240),
}
PUBLISHED = [  # size, vocabulary, padded to a multiple of, encoder with pooler, pre-training model
    ("base", UNCASED, 1, 109_482_240, 110_106_428),
    ("large", UNCASED, 1, 335_141_888, 336_226_108),
    ("base", CASED, 1, 108_310_272, 108_932_934),
    ("large", CASED, 1, 333_579_264, 334_661_958),
    ("base", MULTILINGUAL, 1, 177_853_440, None),
    ("base", CHINESE, 1, 102_267_648, None),
    ("base", UNCASED, 8, None, 110_111_042),
    ("base", UNCASED, 128, None, 110_160_258),
    ("base", UNCASED, 1024, None, 110_258_690),
    ("large", UNCASED, 8, None, 336_232_258),
    ("large", UNCASED, 128, None, 336_297_858),
    ("large", UNCASED, 1024, None, 336_429_058),
    ("tiny", UNCASED, 1, 4_385_920, 4_433_468),
    ("L-2_H-256_A-4", UNCASED, 1, 9_591_040, 9_688_380),
    ("L-2_H-512_A-8", UNCASED, 1, 22_458_880, 22_754_108),
    ("L-2_H-768_A-12", UNCASED, 1, 38_603_520, 39_227_708),
    ("mini", UNCASED, 1, 11_170_560, None),
    ("small", UNCASED, 1, 28_763_648, None),
    ("medium", UNCASED, 1, 41_373_184, None),
]


ALBERT = dict(vocab_size=30_000, embedding_size=128, sharing="all")


def sized(name, vocab_size=UNCASED, **options):
    return variant(model_config(name), vocab_size=vocab_size, **options)


def kept_bytes(function, params) -> int:
    """Bytes that a closure over the backward pass of a function holds, beside the parameters and their copies."""
    own = {leaf.shape for leaf in jax.tree.leaves(params)}
    leaves = jax.tree.leaves(jax.eval_shape(lambda params: jax.vjp(function, params)[1], params))
    others = [leaf for leaf in leaves if leaf.shape not in own and leaf.shape[1:] not in own]
    return sum(leaf.size * leaf.dtype.itemsize for leaf in others)


def built(config):
    """(encoder with pooler, pre-training model) counted over the shapes the model really makes."""
    shapes = jax.eval_shape(BertForPreTraining(config).init, jax.random.key(0))
    size = {name: sum(leaf.size for leaf in jax.tree.leaves(part)) for name, part in shapes.items()}
    return sum(size.values()) - size["mlm"] - size["next_sentence"], sum(size.values())


@pytest.mark.parametrize("name, vocab_size, multiple, encoder, pretraining", PUBLISHED)
def test_published_parameter_counts(name, vocab_size, multiple, encoder, pretraining):
    config = sized(name, vocab_size, vocab_pad_multiple=multiple)
    counts = costs.parameter_counts(bert_parameters(config))
    assert (counts.encoder, counts.pretraining) == built(config)
    assert counts.encoder == encoder or encoder is None
    assert counts.pretraining == pretraining or pretraining is None


@pytest.mark.parametrize("hidden", WIDTHS)
@pytest.mark.parametrize("layers", ENCODERS)
def test_parameter_counts_of_the_24_miniatures(layers, hidden):
    config, expected = sized(f"L-{layers}_H-{hidden}_A-{hidden // 64}"), ENCODERS[layers][WIDTHS.index(hidden)]
    assert costs.parameter_counts(bert_parameters(config)).encoder == built(config)[0] == expected


FAMILY = {  # transformers 5.23.0 on the meta device, unique arrays: encoder, with the heads of pre-training
    "ALBERT base": (dict(**ALBERT), 11_683_584, 11_813_810),
    "ALBERT large": (dict(**ALBERT, hidden_size=1024, num_layers=24, num_heads=16), 17_683_968, 17_847_474),
    "ALBERT xlarge": (dict(**ALBERT, hidden_size=2048, num_layers=24, num_heads=16), 58_724_864, 59_021_490),
    "ALBERT xxlarge": (dict(**ALBERT, hidden_size=4096, num_layers=12, num_heads=64), 222_595_584, 223_158_450),
    "DistilBERT": (dict(vocab_size=30_522, pair_head=False, num_layers=6, type_vocab_size=0), 66_362_880, 66_985_530),
}


@pytest.mark.parametrize("name", FAMILY)
def test_parameter_counts_of_the_family(name):
    options, encoder, pretraining = FAMILY[name]
    config = ModelConfig(**options)
    counts = costs.parameter_counts(bert_parameters(config))
    assert (counts.encoder, counts.pretraining) == (encoder, pretraining)
    model = BertForPreTraining(config, parts=pretraining_parts(config))
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == pretraining


def test_layers_that_share_parameters_cost_what_others_do():
    """A model that shares costs as many operations as one that does not, and a map of the embeddings adds its own."""
    config = ModelConfig(vocab_size=1_000, hidden_size=48, num_layers=3, num_heads=4)
    alone = costs.training_flops(config, bert_parameters(config), 16, 2)
    for sharing in ("attention", "feed_forward", "all"):
        shared = dataclasses.replace(config, sharing=sharing)
        assert costs.training_flops(shared, bert_parameters(shared), 16, 2) == alone
    narrow = dataclasses.replace(config, embedding_size=8)
    flops = costs.training_flops(narrow, bert_parameters(narrow), 16, 2)
    assert flops.kernels - alone.kernels == 6 * 16 * 8 * 48
    assert alone.heads - flops.heads == 6 * 2 * (1_000 + 48) * 40  # word table and affine map, 40 features narrower


def test_parameter_counts_by_part():
    base, large = (costs.parameter_counts(bert_parameters(sized(name))) for name in ("base", "large"))
    assert (base.embeddings, base.block, base.encoder_without_pooler) == (23_837_184, 7_087_872, 108_891_648)
    assert (large.embeddings, large.block, large.encoder_without_pooler) == (31_782_912, 12_596_224, 334_092_288)
    assert base.encoder_without_pooler + base.mlm_head == 109_514_298  # a masked language model without pooler
    assert large.encoder_without_pooler + large.mlm_head == 335_174_458


@pytest.mark.parametrize(
    "name, length, predictions, giga",
    [("base", 128, 20, 69.93), ("base", 512, 76, 300.9), ("large", 128, 20, 240.6), ("large", 512, 76, 1019.8)],
)
def test_training_flops(name, length, predictions, giga):
    expected = pytest.approx(giga, rel=2e-4)
    assert costs.training_flops(sized(name), bert_parameters(sized(name)), length, predictions).total / 1e9 == expected


@pytest.mark.parametrize("form", [{}, {"key_value_heads": 1, "word_head": "affine"}])
def test_flops_equal_those_the_compiler_counts(form):
    """Of a forward pass; XLA also counts elementwise work, which is a small share at this width."""
    config = ModelConfig(vocab_size=4_000, hidden_size=256, num_layers=2, num_heads=4, **form)
    model = BertForPreTraining(config)
    ids = jax.ShapeDtypeStruct((4, 128), "int32")
    batch = dict(
        input_ids=ids, token_type_ids=ids, attention_mask=ids, masked_positions=jax.ShapeDtypeStruct((4, 20), "int32")
    )
    lowered = jax.jit(model.apply).lower(jax.eval_shape(model.init, jax.random.key(0)), batch)
    counted = lowered.cost_analysis()["flops"] / 4
    assert costs.training_flops(config, model.parameters, 128, 20).total / 3 == pytest.approx(counted, rel=0.05)


@pytest.mark.parametrize("kind, predictions", [("tagging", 128), ("classification", 1)])
def test_flops_of_a_task_equal_those_the_compiler_counts(kind, predictions):
    """With many labels, so that the product of the head at every position would be seen to lack."""
    config = ModelConfig(vocab_size=4_000, hidden_size=256, num_layers=1, num_heads=4)
    model = BertForTask(config, HeadConfig(kind=kind, labels=tuple(map(str, range(1_000)))))
    ids = jax.ShapeDtypeStruct((4, 128), "int32")
    batch = dict(input_ids=ids, token_type_ids=ids, attention_mask=ids)
    lowered = jax.jit(model.apply).lower(jax.eval_shape(model.init, jax.random.key(0)), batch)
    counted = lowered.cost_analysis()["flops"] / 4
    assert model.training_flops(128, predictions) / 3 == pytest.approx(counted, rel=0.05)


def test_flops_follow_the_table_of_another_architecture():
    """A gate is one more product per position; layers that share parameters are computed once each."""
    config = ModelConfig(vocab_size=100, hidden_size=8, num_layers=6, num_heads=2)
    bert = bert_parameters(config)
    layer, hidden, wide = Axis("layer", 6), Axis("hidden", 8), Axis("intermediate", 32)
    gated = {**bert, **table(linear("encoder/gate", (hidden,), (wide,), (layer,)))}
    plain, more = (costs.training_flops(config, parameters, 10, 2) for parameters in (bert, gated))
    assert more.kernels - plain.kernels == 3 * 2 * 10 * 6 * 8 * 32
    assert costs.training_flops(config, with_axis(bert, Axis("layer", 1)), 10, 2) == plain


def test_memory():
    base, large = sized("base"), sized("large")
    states = [costs.state_bytes(bert_parameters(config), OptimizerConfig().moments) for config in (base, large)]
    assert [state.total / 2**30 for state in states] == pytest.approx([1.64, 5.01], abs=0.005)
    without_gradients = [(state.parameters + state.moments) / 2**30 for state in states]
    assert without_gradients == pytest.approx([1.23, 3.76], abs=0.005)


KEPT = [
    *((remat, "xla", 40, {}) for remat in ("none", "sel", "dots", "full")),
    *((remat, "xla", 40, {"key_value_heads": 2}) for remat in ("none", "sel", "dots")),
    ("none", "pallas", 128, {}),
    ("none", "auto", 384, {"local_window": 32, "global_every": 0}),
    ("none", "auto", 384, {"local_window": 32, "global_every": 0, "global_tokens": 2}),
]
SIBLINGS = dict.fromkeys((5, 6, 8), pytest.mark.slow)
"""Fewer heads of keys with another policy, each of which is there by itself; a window without global tokens."""


@pytest.mark.parametrize(
    "remat, attention, length, local, dtype, value_bytes",
    [
        *(pytest.param(*case, "bfloat16", 2, marks=SIBLINGS.get(i, ())) for i, case in enumerate(KEPT)),
        (*KEPT[0], "float32", 4),
        *(pytest.param(*case, "float32", 4, marks=pytest.mark.slow) for case in KEPT[1:]),
    ],
)
def test_activations_are_those_that_differentiation_keeps(remat, attention, length, local, dtype, value_bytes):
    """What a closure over the backward pass holds, beside the parameters and their copies."""
    config, rows, predictions = sized("mini", vocab_size=3_000, **local), 3, 7
    model = BertForPreTraining(config, ComputeConfig(dtype=dtype, layers="scan", remat=remat, attention=attention))
    objective = default_objective(model, Config(model=config))
    params = jax.eval_shape(model.init, jax.random.key(0))
    shapes = {"input_ids": length, "token_type_ids": length, "attention_mask": length}
    shapes |= {"masked_positions": predictions, "masked_ids": predictions}
    batch = {name: np.zeros((rows, size), np.int32) for name, size in shapes.items()}
    batch["masked_weights"] = np.ones((rows, predictions), np.float32)

    found = kept_bytes(lambda params: objective.sums(params, batch, jax.random.key(0))["mlm"].loss, params)
    sizes, fused = (config, length, predictions), attention == "pallas"
    expected = rows * costs.activation_bytes(*sizes, remat, value_bytes, probabilities=not fused).total
    assert expected == pytest.approx(found, rel=0.03)


def test_a_step_needs_more_memory_for_each_weaker_policy_and_less_where_the_state_is_split():
    config = sized("large")
    given = {"moments": 2, "sequence_length": 512, "predictions": 77}
    sizes = [
        costs.step_bytes(config, bert_parameters(config), **given, rows=8, split=1, remat=remat)
        for remat in ("none", "dots", "sel", "full")
    ]
    assert sizes[0] > sizes[2] > sizes[1] > sizes[3]
    split = costs.step_bytes(config, bert_parameters(config), **given, rows=8, split=4, remat="sel")
    assert sizes[2] - split == costs.state_bytes(bert_parameters(config), 2).total * 3 // 4


def test_the_layer_that_is_computed_again_is_one_that_sees_everything():
    """What mixed layers need with sel is at least what global ones do; local layers alone need far less."""
    config, given = sized("mini", num_layers=6), {"moments": 2, "sequence_length": 4096, "predictions": 600}
    mixed, whole, local = (
        costs.step_bytes(each, bert_parameters(each), **given, rows=1, split=1, remat="sel")
        for each in (variant(config, local_window=64, global_every=every) for every in (3, 1, 0))
    )
    scores = 4096**2 * config.num_heads * (4 + 2)
    assert mixed >= whole > local + 0.8 * scores


def test_layers_with_a_learned_bias_have_all_scores_within_a_window_too():
    config, given = sized("mini"), {"moments": 2, "sequence_length": 512, "predictions": 77}
    for positions, is_whole in (("learned", False), ("learned_bias", True)):
        near, whole = (
            costs.step_bytes(each, bert_parameters(each), **given, rows=1, split=1, remat="none")
            for each in (variant(config, positions=positions, local_window=16, global_every=every) for every in (0, 1))
        )
        assert (near == whole) == is_whole and near <= whole


@pytest.mark.parametrize("name", typing.get_args(typing.get_type_hints(OptimizerConfig)["name"]))
def test_moments_take_the_memory_of_the_state_that_the_optimizer_makes(name):
    model, config = BertForPreTraining(sized("tiny")), OptimizerConfig(name=name)
    params = jax.eval_shape(model.init, jax.random.key(0))
    state = jax.eval_shape(optimizer(config, model.parameters).init, params)
    made = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state) if leaf.ndim)
    second = 4 * sum(entry.size for entry in model.parameters.values() if entry.matrix)  # that Muon does without
    expected = made + second * (name == "muon")
    assert costs.state_bytes(model.parameters, config.moments).moments == expected


ELECTRA_PUBLISHED = {  # transformers 5.23.0 on the meta device: encoder and head of the discriminator, of the generator
    "electra_small": (13_483_008, 13_549_057, 4_580_928, 4_620_026),
    "electra_base": (108_891_648, 109_483_009, 33_511_168, 33_740_602),
    "electra_large": (334_092_288, 335_142_913, 50_999_552, 51_295_290),
}
SMALL = ModelConfig(vocab_size=600, hidden_size=64, num_layers=2, num_heads=4, embedding_size=24, pair_head=False)
SMALL = variant(SMALL, max_position_embeddings=128)


def objective_of(config: Config):
    return default_objective(BertForPreTraining(config.model, config.compute), config)


def small(embeddings: str = "shared", **options) -> Config:
    generator = GeneratorConfig(hidden_size=32, num_layers=1, embeddings=embeddings)
    return Config(model=SMALL, objective=ReplacedTokens(generator=generator), **options)


@pytest.mark.parametrize("name", ELECTRA_PUBLISHED)
def test_published_parameter_counts_of_both_parts(name):
    config = load_config(name)
    counts = [
        costs.parameter_counts(encoder.parameters) for encoder in costs.trained_encoders(config.model, config.objective)
    ]
    assert tuple(number for each in counts for number in (each.encoder, each.pretraining)) == ELECTRA_PUBLISHED[name]
    config = Config(model=dataclasses.replace(config.model, vocab_size=30_522), objective=config.objective)
    electra = objective_of(config).model
    sizes = []
    for part in (electra.discriminator, electra.generator, electra):
        sizes.append(sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(part.init, jax.random.key(0)))))
    shared = config.model.word_size * (30_522 + 512 + 2 + 2)  # tables, scale and bias of the norm
    assert tuple(sizes[:2]) == ELECTRA_PUBLISHED[name][1::2]
    assert (
        sizes[2] == total_size(costs.trained_parameters(config.model, config.objective)) == sizes[0] + sizes[1] - shared
    )


def test_deberta_v3_has_a_generator_of_half_its_layers_with_the_mask_decoder():
    config = load_config("deberta_v3_base")
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=128_100))
    discriminator, generator = costs.trained_encoders(config.model, config.objective)
    assert costs.parameter_counts(discriminator.parameters).encoder == 183_831_552  # transformers 5.23.0
    assert generator.config.num_layers == 6 and generator.config.hidden_size == 768
    assert "mask_decoder/position/table" in generator.parameters
    electra = objective_of(config).model
    shapes = jax.eval_shape(electra.init, jax.random.key(0))
    check_complete(electra.parameters, shapes)
    entries(electra.parameters, shapes)
    assert [path for path in electra.parameters if path.endswith("/delta")] == ["embeddings/word/delta"]


def test_a_discriminator_starts_as_it_would_alone_and_differences_from_nothing():
    electra = objective_of(small("disentangled")).model
    both = compiled(lambda key: (electra.init(key), electra.discriminator.init(key)["encoder"]))
    params, alone = both(jax.random.key(3))
    generator = electra.generator_params(params)
    own = electra.discriminator_params(params)
    for name in ("word", "position", "token_type"):
        assert not params["embeddings"][name]["delta"].any()
        assert (own["embeddings"][name]["table"] == generator["embeddings"][name]["table"]).all()
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: (a == b).all(), own["encoder"], alone)))


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
    computed = costs.computed_flops(config.model, config.objective, config.compute, 128, 20).total
    assert objective.model.training_flops(128, 20) == computed
    assert computed / 3 == pytest.approx(counted, rel=0.05)


def test_activations_of_both_parts_are_those_that_differentiation_keeps():
    """What a closure over the backward pass holds, beside the parameters: that of both, and one head for words."""
    model = dataclasses.replace(SMALL, hidden_size=256, embedding_size=128, vocab_size=3_000, num_layers=4)
    config = Config(model=model, objective=ReplacedTokens())
    objective, rows = objective_of(dataclasses.replace(config, compute=ComputeConfig(layers="scan"))), 3
    batch = {name: np.zeros((rows, 40), np.int32) for name in ("input_ids", "token_type_ids", "attention_mask")}
    batch |= {name: np.zeros((rows, 7), np.int32) for name in ("masked_positions", "masked_ids")}
    batch["masked_weights"] = np.ones((rows, 7), np.float32)

    def loss(params):
        return sum(sums.loss for sums in objective.sums(params, batch, jax.random.key(0)).values())

    found = kept_bytes(loss, jax.eval_shape(objective.model.init, jax.random.key(0)))
    expected = rows * costs.run_activation_bytes(config.model, config.objective, 40, 7, "none", value_bytes=4).total
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
