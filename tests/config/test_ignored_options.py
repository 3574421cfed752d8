"""Recorded options that had no effect: a run that has them is resumed and measured without them."""

import dataclasses
import pathlib

import pytest
from etils import epath

from bert_jax.checkpoints.run_directory import read_config
from bert_jax.checkpoints.run_files import write_json
from bert_jax.config import Config, MaskingConfig, ObjectiveConfig, OptimizerConfig, ScheduleConfig
from bert_jax.config.checks import check
from bert_jax.config.ignored_options import without_ignored
from bert_jax.config.json_form import to_dict
from bert_jax.console.command_line import load_config
from bert_jax.errors import UserError

CONFIGS = sorted(file.stem for file in (pathlib.Path(__file__).parents[2] / "configs").glob("*.py"))


@pytest.mark.parametrize("name", CONFIGS)
def test_shipped_options_all_have_an_effect(name):
    config = load_config(name)
    assert without_ignored(config) == config


@pytest.mark.parametrize(
    "name, changes",
    [
        ("gpt_mini", {"masking": MaskingConfig(rate=0.3)}),
        ("xlnet_mini", {"masking": MaskingConfig(rate=1 / 6, mask_share=0.5)}),
        ("bert_mini", {"optimizer": OptimizerConfig(momentum=0.5)}),
        ("bert_mini", {"schedule": ScheduleConfig(power=2.0)}),
        ("bert_mini", {"objective": ObjectiveConfig(longest_span=7)}),
    ],
)
def test_what_is_refused_today_is_left_out_of_a_record(name, changes, tmp_path):
    config = dataclasses.replace(load_config(name), workdir=str(tmp_path), **changes)
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, path="store"))
    with pytest.raises(UserError, match="leave"):
        check(config)
    write_json(epath.Path(tmp_path / "config.json"), to_dict(config))
    recorded = read_config(tmp_path)
    assert check(recorded) == recorded != config


def test_what_has_an_effect_stays():
    config = Config(
        masking=MaskingConfig(rate=0.3, unit="span"),
        optimizer=OptimizerConfig(name="muon", momentum=0.9),
        schedule=ScheduleConfig(name="polynomial", power=2.0),
    )
    assert without_ignored(config) == config
