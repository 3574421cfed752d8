"""Initial values and rates by width and depth (μP), against a model that has its factors in the function."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from family_runs import MESHES, assert_same_losses
from flax.traverse_util import flatten_dict, unflatten_dict
from model_variants import variant
from small_model import FLOAT32, compiled, make_batch
from small_pretraining import MODEL, nothing_held_out, pretrain, run_config

from bert_jax.analysis import signal
from bert_jax.analysis.widths import FLAT, width_changes
from bert_jax.config import Config, HeadConfig, ModelConfig, OptimizerConfig, PhaseConfig, Scaling
from bert_jax.config.checks import check
from bert_jax.config.objective import GeneratorConfig, ReplacedTokens, generator_model
from bert_jax.errors import UserError
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.bert_parameters import MODEL_PARTS, bert_parameters
from bert_jax.objectives.masked_words import masked_word_sums
from bert_jax.training.optimizers import UPDATE_SIZE, at_rates, optimizer

BASE = ModelConfig(vocab_size=61, hidden_size=8, num_layers=1, num_heads=2, max_position_embeddings=20)
SCALING = Scaling(base_hidden_size=8, base_head_size=4, base_num_layers=1)
TIMES, DEPTH, HEAD = 4, 2, 16
WIDE = dataclasses.replace(
    BASE,
    hidden_size=8 * TIMES,
    num_layers=DEPTH,
    initializer_range=0.3,
    hidden_dropout=0.0,
    attention_dropout=0.0,
    scaling=SCALING,
)
HAND = OptimizerConfig(epsilon=1e-7, weight_decay=0.1, clip_norm=0)
RATE, STEPS = 0.01, 3


def norm(x, at, pre):
    centred = x - x.mean(-1, keepdims=True)
    normed = centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + BASE.layer_norm_epsilon)
    return normed * at[f"{pre}/scale"] + at[f"{pre}/bias"]


def loss_by_hand(weights, batch, position):
    """Loss of masked words of a BERT with μP's factors where they are defined: in the function."""
    branch, scores = DEPTH**-0.5, math.sqrt(SCALING.base_head_size or 0) / HEAD
    gelu = lambda x: jax.nn.gelu(x, approximate=True)
    x = weights["embeddings/word/table"][batch["input_ids"]]
    x = x + weights["embeddings/position/table"][None, : x.shape[1]]
    x = norm(x + weights["embeddings/token_type/table"][batch["token_type_ids"]], weights, "embeddings/norm")
    seen = jnp.where(batch["attention_mask"], 0.0, -1e9)[:, None, None, :]
    for layer in range(DEPTH):
        at = {path.removeprefix("encoder/"): w[layer] for path, w in weights.items() if path.startswith("encoder/")}

        def attend(x, at=at):
            query, key, value = (
                jnp.einsum("blh,had->blad", x, at[f"attention/{name}/kernel"]) + at[f"attention/{name}/bias"]
                for name in ("query", "key", "value")
            )
            chances = jax.nn.softmax(jnp.einsum("blad,bkad->balk", query, key) * scores + seen, axis=-1)
            context = jnp.einsum("balk,bkad->blad", chances, value)
            return jnp.einsum("blad,adh->blh", context, at["attention/output/kernel"]) + at["attention/output/bias"]

        def feed(x, at=at):
            inner = gelu(x @ at["feed_forward/intermediate/kernel"] + at["feed_forward/intermediate/bias"])
            return inner @ at["feed_forward/output/kernel"] + at["feed_forward/output/bias"]

        for part, pre in ((attend, "attention_norm"), (feed, "feed_forward_norm")):
            x = norm(x + branch * part(x), at, pre) if position == "post" else x + branch * part(norm(x, at, pre))
    x = x if position == "post" else norm(x, weights, "final_norm")
    x = jnp.take_along_axis(x, batch["masked_positions"][:, :, None], axis=1)
    x = norm(gelu(x @ weights["mlm/dense/kernel"] + weights["mlm/dense/bias"]), weights, "mlm/norm")
    logits = x @ weights["embeddings/word/table"].T / TIMES + weights["mlm/bias"]
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), batch["masked_ids"][:, :, None], axis=2)[:, :, 0]
    return -(chosen * batch["masked_weights"]).sum() / batch["masked_weights"].sum()


def by_hand(path, position):
    """(factor that our array has in it, factor of Adam's rate without it, initial deviation without it).

    Tensor Programs V, table 8: kernels between two wide sides 1/√fan-in and 1/width, everything else as at the base.
    VI: what is in a branch 1/√depth, as the branch is divided by it too; what is between branches 1/depth.
    """
    kernel = path.endswith("/kernel")
    of_branch = path.startswith("encoder/") and not (position == "post" and "_norm/" in path)
    depth = DEPTH**-0.5 if of_branch else 1 / DEPTH if path.startswith("encoder/") else 1.0
    factor = {"query": math.sqrt(SCALING.base_head_size or 0) / HEAD * math.sqrt(HEAD)}.get(path.split("/")[-2], 1.0)
    if path.startswith(("encoder/attention/output", "encoder/feed_forward/output")):
        factor = DEPTH**-0.5
    if path.startswith("mlm/norm"):
        factor = 1 / TIMES
    deviation = 0.3 * 0.8796 / (math.sqrt(TIMES) if kernel else 1.0)
    return factor, depth / (TIMES if kernel else 1.0), deviation


def adam_by_hand(position, start, batch):
    weights = {path: value / by_hand(path, position)[0] for path, value in start.items()}
    mean, square = (dict.fromkeys(weights, 0.0) for _ in range(2))
    losses, slopes_of = [], jax.value_and_grad(loss_by_hand)
    for step in range(1, STEPS + 1):
        loss, slopes = slopes_of(weights, batch, position)
        losses.append(loss)
        for path, slope in slopes.items():
            factor, rate, _ = by_hand(path, position)
            mean[path] = HAND.beta1 * mean[path] + (1 - HAND.beta1) * slope
            square[path] = HAND.beta2 * square[path] + (1 - HAND.beta2) * slope**2
            root = jnp.sqrt(square[path] / (1 - HAND.beta2**step))
            # Slopes have the factor too, so that with the same epsilon both would not be quite the same.
            way = rate * (mean[path] / (1 - HAND.beta1**step)) / (root + HAND.epsilon * factor)
            decay = HAND.weight_decay if path.endswith(("/kernel", "/table")) else 0.0
            weights[path] = weights[path] - RATE * (way + decay * weights[path])
    return losses, {path: value * by_hand(path, position)[0] for path, value in weights.items()}


@pytest.mark.parametrize("position", ["post", pytest.param("pre", marks=pytest.mark.slow)])
def test_training_is_that_of_a_model_with_the_factors_in_its_function(position):
    config, batch = dataclasses.replace(WIDE, norm_position=position), make_batch(WIDE)
    network = BertForPreTraining(config, FLOAT32, parts=("mlm",))
    rule = optimizer(HAND, network.parameters)

    def loss(params):
        logits = network.mlm_logits(params, batch)
        sums = masked_word_sums(logits, batch["masked_ids"], batch["masked_weights"])
        return sums.loss / sums.weight

    @compiled
    def ours(key):
        start = network.init(key)

        def step(state, _):
            value, slopes = jax.value_and_grad(loss)(state[0])
            ways, moments = rule.update(slopes, state[1], state[0])
            return (jax.tree.map(lambda p, way: p - RATE * way, state[0], ways), moments), value

        (end, _), losses = jax.lax.scan(step, (start, rule.init(start)), length=STEPS)
        return start, end, losses

    start, end, losses = ours(jax.random.key(0))
    start, end = flatten_dict(start, sep="/"), flatten_dict(end, sep="/")
    with jax.numpy_rank_promotion("allow"):
        expected, weights = compiled(lambda start: adam_by_hand(position, start, batch))(start)
    np.testing.assert_allclose(losses, expected, rtol=2e-5)
    assert losses[-1] < losses[0]
    for path, value in end.items():
        if path.endswith("key/bias"):
            continue  # softmax ignores it, so its slope is that of rounding
        assert np.abs(value - start[path]).max() > 1e-4, path
        np.testing.assert_allclose(value, weights[path], atol=2e-5, rtol=1e-3, err_msg=path)
        if path.endswith(("/kernel", "/table")) and value.size > 500:
            factor, _, deviation = by_hand(path, position)
            error = 3 * (2 * value.size) ** -0.5
            np.testing.assert_allclose(start[path].std(), factor * deviation, rtol=error, err_msg=path)


FORMS = {
    "bert": {},
    "scaled_outputs": {"scaled_outputs": True},
    "modern": {"positions": "rope", "norm_position": "pre", "feed_forward": "geglu", "word_head": "linear"},
    "grouped": {"positions": "alibi", "norm_position": "pre", "key_value_heads": 1},
    "deberta": {"positions": "none", "disentangled.terms": "c2p+p2c"},
    "albert": {"embedding_size": 4, "sharing": "all"},
}


@pytest.mark.parametrize("form", FORMS)
def test_at_the_base_size_nothing_changes(form):
    usual = variant(BASE, **FORMS[form])
    scaled = dataclasses.replace(usual, scaling=SCALING)
    for head in (None, HeadConfig(kind="classification", labels=("a", "b"))):
        tables = [bert_parameters(each, MODEL_PARTS, head, teacher_size=12) for each in (usual, scaled)]
        assert tables[0] == tables[1]
    assert usual.output_range == scaled.output_range


def factors(config, head=None, parts=MODEL_PARTS):
    return bert_parameters(config, parts, head, teacher_size=12)


def test_a_wider_model_differs_as_the_table_of_tensor_programs_says():
    """Exponents of the width m: (initial values, rate), those of Adam; heads of one size."""
    wide = dataclasses.replace(BASE, hidden_size=128, num_heads=32, scaling=Scaling(base_hidden_size=8))
    found = factors(wide, HeadConfig(kind="classification", labels=("a", "b")))
    exponents = {
        path: (math.log(entry.initial, 16), math.log(entry.rate, 16)) for path, entry in found.items() if entry.decays
    }
    inputs = ["embeddings/word/table", "embeddings/position/table", "embeddings/token_type/table"]
    inputs += ["span_boundary/place/table", "mask_decoder/position/table"]
    outputs = ["next_sentence/kernel", "replaced_tokens/output/kernel", "state_projection/kernel", "head/kernel"]
    for path, pair in exponents.items():
        expected = (0, 0) if path in inputs else (-1, -1) if path in outputs else (-0.5, -1)
        assert pair == pytest.approx(expected), path
    last = [f"{path}/norm/{name}" for path in ("mlm", "span_boundary/words") for name in ("scale", "bias")]
    for path, entry in found.items():
        if not entry.decays:
            assert (entry.initial, entry.rate) == ((1 / 16, 1 / 16) if path in last else (1, 1)), path


def test_a_head_with_its_own_table_of_words_is_a_map_to_few_outputs():
    wide = variant(BASE, norm_position="pre", word_head="affine", positions="none", hidden_size=32)
    found = factors(dataclasses.replace(wide, scaling=Scaling(base_hidden_size=8)), parts=("mlm",))
    assert (found["mlm/table"].initial, found["mlm/table"].rate) == (1 / 4, 1 / 4)
    assert found["embeddings/word/table"].initial == found["embeddings/word/table"].rate == 1


@pytest.mark.parametrize("exponent", [0.5, 0.75, 1.0])
def test_a_deeper_model_has_smaller_branches_and_slower_layers(exponent):
    scaling = Scaling(base_hidden_size=8, base_num_layers=1, depth_exponent=exponent)
    found = factors(variant(BASE, num_layers=16, norm_position="pre", scaling=scaling))
    for path, entry in found.items():
        ends = path.startswith(("encoder/attention/output", "encoder/feed_forward/output"))
        initial, rate = (-exponent, -1) if ends else (0, exponent - 1) if path.startswith("encoder/") else (0, 0)
        assert (entry.initial, entry.rate) == pytest.approx((16**initial, 16**rate)), path
    both = dataclasses.replace(BASE, num_layers=16, scaled_outputs=True, scaling=scaling)
    total = both.output_range * factors(both)["encoder/attention/output/kernel"].initial
    assert total == pytest.approx(0.02 / math.sqrt(2) * 16**-exponent)


def test_an_update_of_muon_keeps_its_singular_values_whatever_the_width():
    sizes = {}
    for times in (1, 4):
        wide = dataclasses.replace(BASE, hidden_size=8 * times, scaling=Scaling(base_hidden_size=8))
        table = factors(wide, parts=("mlm",))
        ones = unflatten_dict({path: np.ones(entry.shape) for path, entry in table.items()}, sep="/")
        found = {
            path: values.flat[0] for path, values in flatten_dict(at_rates(table, ones, muon=True), sep="/").items()
        }
        sizes[times] = {
            path: UPDATE_SIZE * max(entry.matrix) ** 0.5 * found[path] for path, entry in table.items() if entry.matrix
        }
        assert found["mlm/dense/kernel"] == 1 / times  # Adam's
    assert sizes[1] and sizes[1] == pytest.approx(sizes[4])


def test_a_generator_is_as_many_times_its_base_as_the_discriminator():
    wide = dataclasses.replace(BASE, hidden_size=64, num_heads=16, num_layers=4, scaling=SCALING)
    model = generator_model(wide, GeneratorConfig())
    assert isinstance(model, ModelConfig) and model.scaling is not None
    assert (model.scaling.base_hidden_size, model.scaling.base_num_layers, model.scaling.base_head_size) == (2, 1, 4)
    assert model.scaling.width(model) == 8 and model.scaling.depth(model) == 4
    wide = dataclasses.replace(wide, pair_head=False, max_position_embeddings=128)
    run = Config(model=wide, objective=ReplacedTokens())
    run = dataclasses.replace(run, data=dataclasses.replace(run.data, sentence_pairs="none"))
    check(run)
    odd = dataclasses.replace(run.objective, generator=GeneratorConfig(hidden_size=12, num_heads=3))
    with pytest.raises(UserError, match=r"not be a whole number wide or deep \(width: 12 times"):
        check(dataclasses.replace(run, objective=odd))


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        (Scaling(base_hidden_size=0), "model.scaling.base_hidden_size=0 must be positive"),
        (Scaling(base_num_layers=2, depth_exponent=0.4), "depth_exponent=0.4 must be from 0.5"),
    ],
    ids=["width", "depth"],
)
def test_what_cannot_be_a_base_is_refused(scaling, message):
    with pytest.raises(UserError, match=message):
        dataclasses.replace(BASE, scaling=scaling).check()


def test_lamb_sets_the_size_of_its_updates_itself():
    with pytest.raises(UserError, match=r"optimizer.name=lamb takes .* use optimizer.name=adamw"):
        optimizer(OptimizerConfig(name="lamb"), factors(WIDE))
    optimizer(OptimizerConfig(name="lamb"), factors(dataclasses.replace(WIDE, scaling=None)))


def test_widths_that_cannot_be_compared_are_refused():
    with pytest.raises(UserError, match="a slope needs two widths"):
        width_changes(BASE, (8, 8))
    with pytest.raises(UserError, match="widths=10 is no multiple of heads of 4 features"):
        width_changes(BASE, (8, 10))
    with pytest.raises(UserError, match="widths=10 is no multiple"):  # before the other figures are measured
        signal.init(BASE, heads=(1,), lengths=(8,), length=8, widths=(8, 10), draws=10**9)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["adamw", "muon"])
def test_changes_of_the_first_step_depend_on_the_width_without_scaling_alone(rule):
    """States without scaling change like the width with Adam and like its root with Muon; logits like both."""
    config = variant(BASE, hidden_size=64, num_layers=2, positions="rope", initializer_range=0.05)
    config = dataclasses.replace(config, max_position_embeddings=64)
    found = width_changes(config, (64, 256), steps=1, rate=1e-3, rule=rule, length=64)
    assert found.names == ("emb", "1", "2", "words") and found.change.shape == (2, 4, 2)
    standard, scaled = found.slope
    assert (standard[1:3] > (0.7 if rule == "adamw" else 0.2)).all() and standard[3] > 0.7
    assert (np.abs(scaled[:3]) < FLAT).all() and -0.5 < scaled[3] < FLAT
    np.testing.assert_array_equal(found.change[0, :, 0], found.change[1, :, 0])


@pytest.mark.slow
def test_losses_are_the_same_on_any_mesh(small_store, tmp_path):
    scaling = Scaling(base_hidden_size=8, base_head_size=4, base_num_layers=1)
    phases = (PhaseConfig(steps=3, sequence_length=32, batch_size=16, learning_rate=1e-2, warmup_steps=0),)
    model, data = dataclasses.replace(MODEL, scaling=scaling), nothing_held_out(small_store)
    rule = OptimizerConfig(name="muon")  # whose tables, biases and norms have Adam's rates
    config = run_config(small_store, tmp_path / "one", model=model, data=data, phases=phases, optimizer=rule)
    pretrain(config)
    assert_same_losses(config, MESHES[:2], tmp_path, rtol=2e-6)
