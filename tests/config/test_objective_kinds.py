"""Objectives: each has its own options, refuses those of the others, and answers what the package asks."""

import dataclasses
import typing

import pytest

from bert_jax.config import Config, GloVe, LeftToRight, MaskedWords, ObjectiveConfig, ReplacedTokens, SkipGram
from bert_jax.config.checks import check
from bert_jax.config.json_form import dotted_names, flattened, from_dict, resume_rule, to_dict
from bert_jax.config.objective import GeneratorConfig, GloVeConfig, SkipGramConfig
from bert_jax.console import load_config, parse
from bert_jax.errors import UserError

KINDS = {kind.chosen_by["name"]: kind for kind in typing.get_args(ObjectiveConfig)}
OWN = {name: set(dotted_names(kind)) for name, kind in KINDS.items()}
EVERY = sorted(set().union(*OWN.values()))
CONFIGS = {  # a shipped run of each
    **{"masked_words": "bert_mini", "left_to_right": "gpt_mini", "two_directions": "elmo_mini"},
    **{"replaced_tokens": "electra_mini", "permutation": "xlnet_mini", "skip_gram": "skipgram_mini"},
    "glove": "glove_mini",
}


def test_the_kinds_are_those_of_the_shipped_configurations():
    assert KINDS.keys() == CONFIGS.keys() and len(EVERY) == 27
    for name, config in CONFIGS.items():
        assert type(check(load_config(config)).objective) is KINDS[name]
    assert Config().objective == MaskedWords()


@pytest.mark.parametrize("name", KINDS)
def test_an_objective_is_written_with_its_own_options_and_read_again(name):
    config = dataclasses.replace(Config(), objective=KINDS[name]())
    values = to_dict(config)
    assert values["objective"]["name"] == name and set(values["objective"]) - {"name"} == {
        each.partition(".")[0] for each in OWN[name]
    }
    assert from_dict(Config, values, complete=True) == config
    assert parse(Config(), [f"--objective.name={name}"], "pretrain").objective == KINDS[name]()


@pytest.mark.parametrize("name", KINDS)
def test_every_option_of_the_others_is_refused_with_the_objectives_that_have_it(name):
    for option in sorted(set(EVERY) - OWN[name]):
        with pytest.raises(UserError) as raised:
            parse(Config(), [f"--objective.name={name}", f"--objective.{option}=1"], "pretrain")
        message = str(raised.value)
        assert message.startswith(f"objective.{option}=1 belongs to ") and "\n" not in message
        having, _, rest = message.partition(", not to ")
        assert {each for each in KINDS if f"objective.name={each}" in having} == {
            each for each in KINDS if option in OWN[each]
        }
        assert rest.startswith(f"objective.name={name}; set ") and rest.endswith("or leave the option out")


def test_options_that_two_objectives_have_are_kept_where_one_is_chosen_in_place_of_the_other():
    start = dataclasses.replace(Config(), objective=MaskedWords(mlm_weight=3.0, mask_decoder=True))
    words = ["--objective.name=replaced_tokens", "--objective.generator.num_layers=4"]
    assert parse(start, words, "pretrain").objective == ReplacedTokens(
        mlm_weight=3.0, mask_decoder=True, generator=GeneratorConfig(num_layers=4)
    )
    vectors = dataclasses.replace(Config(), objective=SkipGram(static_vectors=SkipGramConfig(window=7, negatives=2)))
    assert parse(vectors, ["--objective.name=glove"], "pretrain").objective == GloVe(
        static_vectors=GloVeConfig(window=7)
    )


def test_the_options_of_every_objective_say_whether_a_resumed_run_may_change_them():
    rules = {option: resume_rule(Config, f"objective.{option}") for option in ("name", *EVERY)}
    assert {option: rule for option, rule in rules.items() if rule} == {"distillation.teacher": "free"}


def test_the_width_of_what_is_predicted_is_that_of_the_phase_unless_all_is_predicted():
    for name, kind in KINDS.items():
        widths = [kind().predictions(length, given, 0.15) for length, given in ((128, None), (512, None), (128, 30))]
        all_of_them = {"left_to_right": 127, "two_directions": 127, "skip_gram": 128, "glove": 128}
        one = all_of_them.get(name)
        assert widths == ([20, 77, 30] if one is None else [one, one + 384, one])


def test_only_a_teacher_that_is_named_teaches():
    named = dataclasses.replace(MaskedWords().distillation, teacher="somewhere")
    assert MaskedWords(distillation=named).taught == named
    assert all(kind().taught is None for kind in KINDS.values())


def test_a_file_may_leave_options_out_but_not_name_those_of_another():
    values = flattened(to_dict(Config()))
    assert from_dict(Config, {"objective": {"name": "left_to_right"}}).objective == LeftToRight()
    assert "objective.generator.num_layers" not in values
    with pytest.raises(UserError, match="objective.generator.num_layers=3 belongs to objective.name=replaced_tokens,"):
        from_dict(Config, {"objective": {"generator": {"num_layers": 3}}})
