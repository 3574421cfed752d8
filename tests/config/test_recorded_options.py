"""Recorded options that had no effect or another name: a run that has them is resumed and measured all the same."""

import dataclasses
import pathlib

import pytest
from etils import epath

from bert_jax.checkpoints.run_directory import read_config
from bert_jax.checkpoints.run_files import write_json
from bert_jax.commands.evaluate import default_config
from bert_jax.config import Config, MaskingConfig, ObjectiveConfig, OptimizerConfig, ScheduleConfig
from bert_jax.config.checks import check
from bert_jax.config.json_form import to_dict
from bert_jax.config.recorded_options import without_ignored
from bert_jax.console.command_line import configured, load_config
from bert_jax.errors import UserError
from bert_jax.monitoring.run_history import read_run

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


def test_an_option_that_had_another_name_is_read_under_its_own(tmp_path):
    config = dataclasses.replace(load_config("albert_mini"), objective=ObjectiveConfig(sentence_pair_weight=0.5))
    values = to_dict(config)
    values["objective"]["next_sentence_weight"] = values["objective"].pop("sentence_pair_weight")
    write_json(epath.Path(tmp_path / "config.json"), values)
    assert read_config(tmp_path) == read_run(tmp_path).config == load_config(str(tmp_path / "config.json")) == config
    assert default_config(str(tmp_path)).objective == config.objective


def test_the_command_line_names_the_option_of_today():
    with pytest.raises(
        UserError, match="--objective.next_sentence_weight; perhaps you meant --objective.sentence_pair"
    ):
        configured(["bert_mini", "--objective.next_sentence_weight=2"], "pretrain")
