"""The mode that is the original: the whole step by hand over 50 steps, and a table in the docs that cannot go stale."""

import dataclasses
import functools
import importlib.util
import pathlib
import re
import typing

import jax
import numpy as np
import numpy_bert
import pytest
from published_optimizers import PEAK, STEPS, bert_2018, published

from bert_jax.config import (
    Config,
    DataConfig,
    MaskingConfig,
    MeshConfig,
    ModelConfig,
    ObjectiveConfig,
    OptimizerConfig,
    PhaseConfig,
)
from bert_jax.config.checks import check
from bert_jax.config.json_form import differences, to_dict
from bert_jax.config.presets import google2018, model_config
from bert_jax.console import load_config
from bert_jax.devices import sharding
from bert_jax.models.bert import BertForPreTraining
from bert_jax.objectives.choice import default_objective
from bert_jax.training.optimizers import learning_rate, optimizer
from bert_jax.training.state import abstract_state, state_shardings
from bert_jax.training.step import make_train_step

ROOT = pathlib.Path(__file__).parents[2]
ROWS, LENGTH, MASKED, WORDS = 4, 8, 3, 24
CONFIG = google2018(
    Config(
        model=ModelConfig(
            vocab_size=WORDS,
            hidden_size=8,
            num_layers=2,
            num_heads=2,
            max_position_embeddings=LENGTH + 4,
            hidden_dropout=0.0,
            attention_dropout=0.0,
        ),
        phases=(PhaseConfig(steps=STEPS, warmup_steps=5, sequence_length=LENGTH, batch_size=ROWS, learning_rate=PEAK),),
    )
)


def batch(step: int) -> dict[str, np.ndarray]:
    """Few predictions, so that 1e-5 in the denominator shows in the loss; none on odd steps, which are below 1."""
    random = np.random.default_rng(step)
    weights = np.arange(MASKED) < np.array([[1], [step % 3], [0], [0]]) * (step % 2 == 0)
    arrays = {
        "input_ids": random.integers(5, WORDS, (ROWS, LENGTH)),
        "token_type_ids": np.arange(LENGTH) > random.integers(2, 6, (ROWS, 1)),
        "attention_mask": np.arange(LENGTH) < random.integers(5, LENGTH + 1, (ROWS, 1)),
        "masked_positions": weights * random.integers(1, 5, (ROWS, MASKED)),
        "masked_ids": weights * random.integers(5, WORDS, (ROWS, MASKED)),
        "next_sentence_labels": np.zeros(ROWS),
    }
    return {name: array.astype(np.int32) for name, array in arrays.items()} | {
        "masked_weights": weights.astype(np.float32)
    }


def initial_parameters(model: BertForPreTraining) -> dict:
    """Large, so that no gradient is small beside its rounding; scales around 1."""
    random, shapes = np.random.default_rng(0), jax.eval_shape(model.init, jax.random.key(0))
    draw = lambda path, leaf: (0.3 * random.normal(size=leaf.shape) + (path[-1].key == "scale")).astype(np.float32)
    return jax.tree.map_with_path(draw, shapes)


def differentiable_loss():
    """numpy_bert.loss with jax.numpy in NumPy's place: the same independent transcription, but with a gradient."""
    spec = importlib.util.spec_from_file_location("numpy_bert_with_gradient", numpy_bert.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.np = jax.numpy
    return jax.jit(
        jax.value_and_grad(lambda params, batch: module.loss(params, CONFIG.model, batch, weight_epsilon=1e-5))
    )


@pytest.fixture(scope="module")
def by_hand():
    """Parameters after 50 steps and the loss of each, in float64."""
    losses, function = [], differentiable_loss()

    def gradients_at(step, params):
        loss, gradients = function(params, batch(step))
        losses.append(float(loss))
        return [np.asarray(leaf) for leaf in jax.tree.leaves(gradients)]

    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"):  # the transcription is NumPy, which promotes
        return published(bert_2018, initial_parameters(BertForPreTraining(CONFIG.model)), gradients_at), losses


def test_fifty_steps_are_those_of_the_original(by_hand):
    """Forward, loss, gradient, clipping, moments, decay and schedule at once, on the compiled step that trains."""
    model = BertForPreTraining(CONFIG.model, CONFIG.compute)
    transformation = optimizer(CONFIG.optimizer, model.parameters)
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:1])
    abstract = abstract_state(model, transformation, mesh)
    shardings = state_shardings(abstract)
    step = make_train_step(
        default_objective(model, CONFIG),
        transformation,
        mesh,
        shardings,
        clip_norm=CONFIG.optimizer.clip_norm,
        schedule=functools.partial(learning_rate, CONFIG),
        seed=CONFIG.seed,
    )
    state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), abstract)
    state = jax.device_put(dataclasses.replace(state, params=initial_parameters(model)), shardings)
    history = []
    for number in range(STEPS):
        state, metrics = step(state, sharding.to_global(mesh, batch(number), ROWS))
        history.append(jax.device_get(metrics))
    expected, losses = by_hand
    norms = [metrics["grad_norm"] for metrics in history]
    assert min(norms) < 1 < max(norms)  # clipping acts on some steps and not on others
    np.testing.assert_allclose([metrics["loss"] for metrics in history], losses, rtol=2e-6, atol=2e-7)
    for (path, value), wanted in zip(jax.tree.leaves_with_path(state.params), jax.tree.leaves(expected), strict=True):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        # The gradient of the key bias is zero in theory: what rounding leaves of it is divided by epsilon.
        np.testing.assert_allclose(value, wanted, atol=1e-3 if name.endswith("key/bias") else 1e-5, err_msg=name)


def test_the_mode_sets_what_the_original_had_fixed_and_keeps_its_arguments():
    changed = dataclasses.replace(
        model_config("tiny"), activation="gelu_erf", norm_position="pre", vocab_pad_multiple=128
    )
    phases = PhaseConfig(steps=90), PhaseConfig(steps=10, schedule="restart", moments="reset", learning_rate=3e-4)
    given = Config(
        model=changed,
        data=DataConfig(path="store", sentence_pairs="sop"),
        phases=phases,
        seed=3,
        masking=MaskingConfig(unit="span", static_masks=3),
        optimizer=OptimizerConfig(name="lamb", clip_norm=0.5),
    )
    plain = Config(
        model=model_config("tiny"),
        data=DataConfig(path="store"),
        seed=3,
        phases=(PhaseConfig(steps=90), PhaseConfig(steps=10, learning_rate=3e-4)),
    )
    assert check(google2018(given)) == google2018(plain)


ARGUMENTS = {  # what its commands took, and what its checkpoints named
    "model": {
        "vocab_size",
        "hidden_size",
        "num_layers",
        "num_heads",
        "intermediate_size",
        "hidden_dropout",
        "attention_dropout",
        "initializer_range",
        "max_position_embeddings",
        "type_vocab_size",
    },
    "masking": set(),
    "objective": set(),
    "optimizer": set(),
    "schedule": set(),
}


def another(value, annotation):
    """A different value of an option of this type; of a group of options one whose first option differs, or kind."""
    if kinds := [kind for kind in typing.get_args(annotation) if dataclasses.is_dataclass(kind)]:
        return next(kind for kind in kinds if not isinstance(value, kind))()
    if dataclasses.is_dataclass(value):
        name, types = dataclasses.fields(value)[0].name, typing.get_type_hints(type(value))
        return dataclasses.replace(value, **{name: another(getattr(value, name), types[name])})
    if choices := [choice for choice in typing.get_args(annotation) if isinstance(choice, str) and choice != value]:
        return choices[0]
    return not value if isinstance(value, bool) else (value or 0) + 1


@pytest.mark.parametrize("group", ARGUMENTS)
def test_nothing_else_that_decides_what_is_learned_is_left_open(group):
    config, part = google2018(Config()), getattr(Config(), group)
    types = typing.get_type_hints(type(part))
    for name in {field.name for field in dataclasses.fields(part)} - ARGUMENTS[group]:
        changed = dataclasses.replace(part, **{name: another(getattr(part, name), types[name])})
        assert google2018(dataclasses.replace(Config(), **{group: changed})) == config, f"{group}.{name}"


def test_nor_is_another_objective():
    for kind in typing.get_args(ObjectiveConfig):
        assert google2018(dataclasses.replace(Config(), objective=kind())) == google2018(Config())


def documented() -> list[str]:
    """Option rows of the table in docs/google2018.md as `config diff` prints them."""
    page = (ROOT / "docs/google2018.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z0-9_.]+)`[^|]*\|[^|]*\| `([^`]*)` \| `([^`]*)` \|", page, re.M)
    return sorted(f"{option}: {default} → {original}" for option, default, original in rows)


def test_the_table_in_the_docs_is_the_difference_of_the_options():
    assert documented() == differences(to_dict(Config()), to_dict(google2018(Config())))


def test_the_configuration_files_differ_in_these_options_only():
    ours, theirs = (load_config(str(ROOT / f"configs/{name}.py")) for name in ("bert_base", "bert_base_google2018"))
    optimizer_row = "optimizer.name: adamw → adamw_bert"  # bert_base.py, the published recipe, has it already
    assert differences(to_dict(ours), to_dict(check(theirs))) == [row for row in documented() if row != optimizer_row]
    assert theirs == google2018(ours)
