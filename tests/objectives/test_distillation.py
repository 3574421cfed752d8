"""What a student learns from a teacher, against torch and against closed forms."""

import dataclasses
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pretrained_model import random_params
from small_model import FLOAT32, SMALL, compiled, encode, make_batch, perturbed
from synthetic_examples import make_examples
from synthetic_store import SyntheticStore
from unpacked_texts import MODEL as PACKED
from unpacked_texts import unpacked

from bert_jax.config import MaskedWords
from bert_jax.config.objective import DistillationConfig
from bert_jax.errors import UserError
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.bert_parameters import PRETRAINING_PARTS
from bert_jax.objectives import distillation
from bert_jax.objectives.distillation import DistillationObjective, compared_layers
from bert_jax.objectives.masked_words import PretrainingObjective
from bert_jax.objectives.objective import training_metrics

ORACLE = pathlib.Path(__file__).parents[1] / "oracles" / "distillation_oracle.npz"
PARTS = (*PRETRAINING_PARTS, "span_boundary")
EVERYTHING = DistillationConfig(teacher="there", hidden_weight=1.0, attention_weight=1.0)
STUDENT = dataclasses.replace(SMALL, num_layers=1, type_vocab_size=0, pair_head=False, vocab_pad_multiple=8)


@pytest.fixture(scope="module")
def oracle():
    with np.load(ORACLE) as file:
        return dict(file)


@pytest.mark.parametrize("name", ["soft_targets", "cosine", "hidden", "attention"])
def test_terms_and_gradients_are_those_of_torch(oracle, name):
    weights = oracle["mask"].astype(np.float32)
    pairs = weights[:, :, None] * weights[:, None, :]
    functions = {
        "soft_targets": ("logits", lambda x, y: distillation.loss_sums(x, y, weights, 2.0)),
        "cosine": ("states", lambda x, y: distillation.cosine_sums(x[-1], y[-1], weights)),
        "hidden": ("states", lambda x, y: distillation.hidden_sums(list(x), list(y), weights)),
        "attention": ("maps", lambda x, y: distillation.attention_sums(list(x), list(y), pairs)),
    }
    of, sums = functions[name]
    mean = lambda x: sums(x, oracle[f"teacher_{of}"]).loss / sums(x, oracle[f"teacher_{of}"]).weight
    loss, gradient = compiled(jax.value_and_grad(mean))(jnp.asarray(oracle[of]))
    assert float(loss) == pytest.approx(float(oracle[f"{name}_loss"]), rel=1e-6)
    largest = np.abs(oracle[f"{name}_gradient"]).max()
    np.testing.assert_allclose(gradient, oracle[f"{name}_gradient"], atol=2e-6 * largest)


def taught(student, teacher, params, options, mlm_weight=2.0):
    models = [BertForPreTraining(each, FLOAT32, ("mlm",)) for each in (student, teacher)]
    weights = MaskedWords(mlm_weight=mlm_weight, distillation=options)
    return DistillationObjective(*models, weights).reading(params)


@pytest.fixture(scope="module")
def teacher_params():
    return perturbed(BertForPreTraining(SMALL, FLOAT32, ("mlm",)))


@pytest.mark.parametrize("positions", ["masked", "all"])
def test_a_student_equal_to_its_teacher_has_nothing_to_learn_from_it(teacher_params, positions):
    options = dataclasses.replace(EVERYTHING, soft_positions=positions)
    objective, batch = taught(SMALL, SMALL, teacher_params, options), make_batch()
    sums = compiled(lambda params: objective.sums(params, batch))(teacher_params)
    metrics = training_metrics(objective.terms, sums, objective.denominators(batch))
    for name in ("soft_targets", "cosine", "hidden", "attention"):
        assert abs(float(metrics[f"{name}_loss"])) < 1e-6
    alone = PretrainingObjective(objective.model)
    words = compiled(lambda params: alone.sums(params, batch))(teacher_params)["mlm"]
    assert float(sums["mlm"].loss) == pytest.approx(float(words.loss), rel=1e-6)
    assert float(metrics["loss"]) == pytest.approx(2 * float(words.loss) / float(words.weight), rel=1e-5)


@pytest.mark.parametrize("positions", ["masked", "all"])
def test_terms_are_those_of_the_outputs_of_both_models(teacher_params, positions):
    """Padded positions and vocabulary rows count for nothing; the teacher is read without dropout."""
    options = dataclasses.replace(EVERYTHING, soft_positions=positions, temperature=3.0)
    objective, batch = taught(STUDENT, SMALL, teacher_params, options), make_batch()
    params = perturbed(objective.model)
    sums = compiled(lambda params: objective.sums(params, batch))(params)
    tokens, words = batch["attention_mask"] > 0, STUDENT.vocab_size
    everywhere = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
    at = batch if positions == "masked" else batch | {"masked_positions": everywhere}
    kept = batch["masked_weights"] > 0 if positions == "masked" else tokens
    logits, states, maps = [], [], []
    for model, arrays in ((objective.model, params), (objective.teacher, teacher_params)):
        encoded = encode(model, arrays, batch, collect=True)
        words_of = compiled(lambda arrays, model=model: model.mlm_logits(arrays, at))(arrays)
        logits.append(np.asarray(words_of, np.float64)[kept][:, :words] / 3)
        states.append([np.asarray(each, np.float64) for each in encoded.hidden_states])
        maps.append([np.asarray(each, np.float64) for each in encoded.attentions])
    soft, hard = (np.exp(each) / np.exp(each).sum(-1, keepdims=True) for each in logits)
    expected = {"soft_targets": 9 * (hard * np.log(hard / soft)).sum()}
    ours, theirs = (each[-1][tokens] for each in states)
    cosines = (ours * theirs).sum(-1) / np.sqrt((ours**2).sum(-1) * (theirs**2).sum(-1))
    expected["cosine"] = (1 - cosines).sum()
    layers = [(states[0][0], states[1][0]), (states[0][1], states[1][2])]
    expected["hidden"] = sum(((x - y)[tokens] ** 2).mean(-1).sum() for x, y in layers) / 2
    expected["attention"] = sum(
        ((maps[0][0] - maps[1][1])[row, :, :length, :length] ** 2).sum() / 3 for row, length in enumerate(tokens.sum(1))
    )
    for name, value in expected.items():
        assert float(sums[name].loss) == pytest.approx(value, rel=2e-5), name
    assert float(sums["soft_targets"].weight) == kept.sum()
    denominators = objective.denominators(batch)
    assert all(float(denominators[name]) == float(sums[name].weight) for name in sums)


def test_pairs_and_spans_are_learned_beside_a_teacher(teacher_params):
    """Each term is that of its objective without the other one."""
    batch = make_batch()
    batch["masked_positions"] = np.sort(batch["masked_positions"], axis=1)
    student = BertForPreTraining(dataclasses.replace(SMALL, num_layers=1), FLOAT32, PARTS)
    weights = MaskedWords(span_boundary_weight=0.5, sentence_pair_weight=2.0, distillation=EVERYTHING)
    teacher = BertForPreTraining(SMALL, FLOAT32, ("mlm",))
    both = DistillationObjective(student, teacher, weights, sentence_pairs="sop").reading(teacher_params)
    alone = PretrainingObjective(student, weights, sentence_pairs="sop")
    only = taught(student.config, SMALL, teacher_params, EVERYTHING)
    params, expected, names = perturbed(student), {}, {}
    for objective in (only, alone):
        for term in objective.terms:
            names[term.name] = term.weight
        sums = compiled(lambda params, objective=objective: objective.sums(params, batch))(params)
        expected |= {name: (float(each.loss), float(each.weight)) for name, each in sums.items()}
    found = compiled(lambda params: both.sums(params, batch))(params)
    assert {"mlm", "span_boundary", "sentence_order", "soft_targets", "hidden"} <= found.keys() == expected.keys()
    for name, (loss, weight) in expected.items():
        assert (float(found[name].loss), float(found[name].weight)) == pytest.approx((loss, weight), rel=1e-6), name
        assert float(both.denominators(batch)[name]) == weight
    assert {term.name: term.weight for term in both.terms} == {name: names[name] for name in expected}


def test_packed_texts_are_taught_as_if_each_had_its_own_row():
    generator = np.random.default_rng(7)
    store = SyntheticStore([generator.integers(1, 12, generator.integers(1, 7)).tolist() for _ in range(80)])
    batch = make_examples(store, sentence_pairs="none", packing="on").batch(np.arange(4))
    alone, rows = unpacked(batch)
    assert len(rows) > 8
    sized = dataclasses.replace(PACKED, num_layers=1)
    objective = taught(sized, sized, perturbed(BertForPreTraining(sized, FLOAT32, ("mlm",))), EVERYTHING)
    params = random_params(objective.model, 3)
    sums = [compiled(lambda params, b=each: objective.sums(params, b))(params) for each in (batch, alone)]
    for name in ("mlm", "soft_targets", "cosine", "hidden", "attention"):
        assert float(sums[0][name].loss) == pytest.approx(float(sums[1][name].loss), rel=2e-5), name
        assert float(sums[0][name].weight) == float(sums[1][name].weight) > 0


def test_layers_are_spread_evenly_or_named():
    sized = lambda layers: dataclasses.replace(SMALL, num_layers=layers)
    assert compared_layers(DistillationConfig(), sized(3), sized(6)) == (1, 3, 5)
    assert compared_layers(DistillationConfig(layers=(0, 4)), sized(2), sized(5)) == (0, 4)
    for layers, ours, theirs in (((), 2, 5), ((1,), 2, 4), ((0, 4), 2, 4)):
        with pytest.raises(UserError, match="must name a layer of the teacher"):
            compared_layers(DistillationConfig(layers=layers), sized(ours), sized(theirs))
