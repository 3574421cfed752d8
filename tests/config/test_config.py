"""Configuration: the checks that span several options, and the road to JSON and back."""

import dataclasses
import importlib.util
import pathlib
import subprocess
import sys

import pytest

from bert_jax.config import (
    Config,
    DataConfig,
    MaskingConfig,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    PhaseConfig,
    PrepareConfig,
    ScheduleConfig,
    max_predictions,
    schedule_length,
    warmup_steps,
)
from bert_jax.config.checks import check
from bert_jax.config.json_form import differences, from_dict, to_dict
from bert_jax.errors import UserError

CONFIGS = sorted((pathlib.Path(__file__).parents[2] / "configs").glob("*.py"))


def replace(config, **parts):
    return dataclasses.replace(config, **parts)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_file_under_configs_is_valid_and_survives_json(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = check(module.get_config())
    assert from_dict(Config, to_dict(config)) == config


@pytest.mark.parametrize(
    "config, words",
    [
        (Config(model=ModelConfig(hidden_size=100)), ["model.hidden_size=100", "model.num_heads=12", "10"]),
        (
            Config(phases=(PhaseConfig(sequence_length=1024),)),
            ["phases.0.sequence_length=1024", "model.max_position_embeddings=512"],
        ),
        (Config(phases=(PhaseConfig(batch_size=10, micro_batches=4),)), ["phases.0.batch_size=10", "8 or 12"]),
        (Config(phases=(PhaseConfig(steps=50, warmup_steps=100),)), ["phases.0.warmup_steps=100", "50 steps"]),
        (Config(phases=(PhaseConfig(moments="reset"),)), ["phases.0.moments=reset"]),
        (Config(phases=(PhaseConfig(max_predictions=200),)), ["phases.0.max_predictions=200", "128"]),
        (Config(phases=(PhaseConfig(learning_rate=float("nan")),)), ["phases.0.learning_rate=nan"]),
        (Config(phases=()), ["phases"]),
        (Config(masking=MaskingConfig(rate=1.5)), ["masking.rate=1.5", "between 0 and 1"]),
        (
            Config(masking=MaskingConfig(mask_share=0.8, random_share=0.3)),
            ["masking.mask_share=0.8", "masking.random_share=0.3"],
        ),
        (Config(masking=MaskingConfig(loss_epsilon=-1e-5)), ["masking.loss_epsilon=-1e-05"]),
        (Config(data=DataConfig(copies=-1)), ["data.copies=-1"]),
        (
            Config(data=DataConfig(copies=10), masking=MaskingConfig(static_masks=3)),
            ["data.copies=10", "masking.static_masks=3"],
        ),
        (Config(schedule=ScheduleConfig(cooldown_steps=5)), ["schedule.cooldown_steps=5", "constant"]),
        (
            Config(schedule=ScheduleConfig(cooldown="one_minus_sqrt")),
            ["cooldown=one_minus_sqrt", "effect without schedule.cooldown_steps"],
        ),
        (Config(mesh=MeshConfig(data=-1, fsdp=-1)), ["only one axis may be -1"]),
        (Config(mesh=MeshConfig(tensor=0)), ["mesh.tensor=0"]),
        (Config(model=ModelConfig(type_vocab_size=1)), ["model.type_vocab_size=1", "data.sentence_pairs"]),
        (Config(data=DataConfig(held_out=1.0)), ["data.held_out=1.0"]),
        (Config(optimizer=OptimizerConfig(clip_norm=-1.0)), ["optimizer.clip_norm=-1.0"]),
        (Config(optimizer=OptimizerConfig(ema_decay=1.0)), ["optimizer.ema_decay=1.0"]),
        (Config(optimizer=OptimizerConfig(momentum=-0.1)), ["optimizer.momentum=-0.1"]),
        (Config(optimizer=OptimizerConfig(momentum=0.9)), ["optimizer.momentum=0.9", "optimizer.name=muon", "adamw"]),
        (Config(schedule=ScheduleConfig(power=2.0)), ["schedule.power=2.0", "schedule.name=polynomial", "linear"]),
        (
            Config(phases=(PhaseConfig(steps=50),), schedule=ScheduleConfig(name="constant", cooldown_steps=60)),
            ["schedule.cooldown_steps=60 do not fit into the 50 steps", "to 0 and 5"],
        ),
        (Config(log_every_steps=0), ["log_every_steps=0"]),
    ],
)
def test_values_that_do_not_fit_are_named(config, words):
    with pytest.raises(UserError) as caught:
        check(config)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_json_with_unknown_keys_or_wrong_types_is_refused_by_name():
    good = to_dict(Config())
    with pytest.raises(UserError, match=r"unknown option model.num_layer; perhaps you meant model.num_layers"):
        from_dict(Config, {**good, "model": {"num_layer": 3}})
    with pytest.raises(UserError, match=r"phases.0.steps='many' must be of type int"):
        from_dict(Config, {**good, "phases": [{"steps": "many"}]})
    with pytest.raises(UserError, match=r"masking.unit='word' must be one of token, whole_word, span"):
        from_dict(Config, {**good, "masking": {"unit": "word"}})
    with pytest.raises(UserError, match=r"model.vocab_size=True must be of type int"):
        from_dict(Config, {**good, "model": {"vocab_size": True}})
    for wrong in ("1000", 7, {"steps": 5}, None):
        with pytest.raises(UserError, match="phases=.* must be a list"):
            from_dict(Config, {**good, "phases": wrong})
    with pytest.raises(UserError, match=r"phases.0 must be an object with the fields of PhaseConfig, not 5"):
        from_dict(Config, {**good, "phases": [5]})
    with pytest.raises(UserError, match="missing: input, vocab"):
        from_dict(PrepareConfig, {"output": "store"})


def test_differences_names_nested_leaves():
    old = Config(phases=(PhaseConfig(steps=5),))
    new = replace(old, phases=(PhaseConfig(steps=6),), model=ModelConfig(num_layers=3))
    assert differences(to_dict(old), to_dict(new)) == ["model.num_layers: 12 → 3", "phases.0.steps: 5 → 6"]


def test_the_papers_recipe_has_the_papers_numbers():
    config = Config(phases=(PhaseConfig(steps=900_000), PhaseConfig(steps=100_000, sequence_length=512)))
    assert schedule_length(config, 0) == 1_000_000 and warmup_steps(config, 0) == 10_000
    assert [max_predictions(phase, config) for phase in config.phases] == [20, 77]


def test_a_restart_cuts_the_schedule():
    config = Config(phases=(PhaseConfig(steps=700), PhaseConfig(steps=200, schedule="restart"), PhaseConfig(steps=100)))
    assert schedule_length(config, 0) == 700 and schedule_length(config, 1) == 300


def test_the_configuration_needs_the_standard_library_only():
    heavy = "jax flax numpy tensorflow optax orbax tyro absl rich"
    code = (
        "import sys, bert_jax.config.checks, bert_jax.config.json_form\n"
        f"sys.exit(' '.join(m for m in '{heavy}'.split() if m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr.strip() == ""
