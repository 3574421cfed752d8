"""Configurations: files, presets, phases, and options that must fit."""

import dataclasses
import importlib.util
import math
import pathlib
import typing
from collections.abc import Callable

import pytest

from bert_jax.config import (
    Config,
    DataConfig,
    GloVe,
    LeftToRight,
    MaskedWords,
    MaskingConfig,
    MeshConfig,
    ModelConfig,
    ObjectiveConfig,
    OptimizerConfig,
    Permutation,
    PhaseConfig,
    PrepareConfig,
    ReplacedTokens,
    ScheduleConfig,
    SkipGram,
    max_predictions,
    presets,
    resolve_phases,
    resolve_stages,
    schedule_length,
    warmup_steps,
)
from bert_jax.config.checks import check, check_new
from bert_jax.config.finetuning import FinetuneConfig, FinetuningRecord
from bert_jax.config.objective import GeneratorConfig, GloVeConfig, SkipGramConfig, generator_model
from bert_jax.config.options import (
    check_numbers,
    differences,
    differing_options,
    dotted_names,
    flattened,
    from_dict,
    is_among,
    is_harmless,
    lengthens,
    resume_rule,
    to_dict,
    with_options,
)
from bert_jax.console import configured, load_config, parse
from bert_jax.errors import UserError

CONFIGS = sorted((pathlib.Path(__file__).parents[2] / "configs").glob("*.py"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_file_under_configs_is_valid_and_survives_json(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = check(module.get_config())
    assert from_dict(Config, to_dict(config)) == config


@pytest.mark.parametrize(
    "config, says",
    [
        (Config(model=ModelConfig(hidden_size=100)), "model.hidden_size=100 | model.num_heads=12 | 10"),
        (
            Config(phases=(PhaseConfig(sequence_length=1024),)),
            "phases.0.sequence_length=1024 | model.max_position_embeddings=512",
        ),
        (Config(phases=(PhaseConfig(batch_size=10, micro_batches=4),)), "phases.0.batch_size=10 | 8 or 12"),
        (Config(phases=(PhaseConfig(steps=50, warmup_steps=100),)), "phases.0.warmup_steps=100 | 50 steps"),
        (Config(phases=(PhaseConfig(moments="reset"),)), "phases.0.moments=reset"),
        (Config(phases=(PhaseConfig(max_predictions=200),)), "phases.0.max_predictions=200 | 128"),
        (Config(phases=(PhaseConfig(learning_rate=float("nan")),)), "phases.0.learning_rate=nan"),
        (Config(phases=()), "phases"),
        (Config(masking=MaskingConfig(rate=1.5)), "masking.rate=1.5 | between 0 and 1"),
        (
            Config(masking=MaskingConfig(mask_share=0.8, random_share=0.3)),
            "masking.mask_share=0.8 | masking.random_share=0.3",
        ),
        (Config(masking=MaskingConfig(loss_epsilon=-1e-5)), "masking.loss_epsilon=-1e-05"),
        (Config(data=DataConfig(copies=-1)), "data.copies=-1"),
        (
            Config(data=DataConfig(copies=10), masking=MaskingConfig(static_masks=3)),
            "data.copies=10 | masking.static_masks=3",
        ),
        (Config(schedule=ScheduleConfig(cooldown_steps=5)), "schedule.cooldown_steps=5 | constant"),
        (
            Config(schedule=ScheduleConfig(cooldown="one_minus_sqrt")),
            "cooldown=one_minus_sqrt | effect without schedule.cooldown_steps",
        ),
        (Config(mesh=MeshConfig(data=-1, fsdp=-1)), "only one axis may be -1"),
        (Config(mesh=MeshConfig(tensor=0)), "mesh.tensor=0"),
        (Config(model=ModelConfig(type_vocab_size=1)), "model.type_vocab_size=1 | data.sentence_pairs"),
        (Config(data=DataConfig(held_out=1.0)), "data.held_out=1.0"),
        (Config(optimizer=OptimizerConfig(clip_norm=-1.0)), "optimizer.clip_norm=-1.0"),
        (Config(optimizer=OptimizerConfig(ema_decay=1.0)), "optimizer.ema_decay=1.0"),
        (Config(optimizer=OptimizerConfig(momentum=-0.1)), "optimizer.momentum=-0.1"),
        (
            Config(phases=(PhaseConfig(steps=50),), schedule=ScheduleConfig(name="constant", cooldown_steps=60)),
            "schedule.cooldown_steps=60 do not fit into the 50 steps | to 0 and 5",
        ),
        (Config(log_every_steps=0), "log_every_steps=0"),
    ],
)
def test_values_that_do_not_fit_are_named(config, says):
    with pytest.raises(UserError) as caught:
        check(config)
    assert not [words for words in says.split(" | ") if words not in str(caught.value)]


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
    new = dataclasses.replace(old, phases=(PhaseConfig(steps=6),), model=ModelConfig(num_layers=3))
    assert differences(to_dict(old), to_dict(new)) == ["model.num_layers: 12 → 3", "phases.0.steps: 5 → 6"]


def test_the_papers_recipe_has_the_papers_numbers():
    config = Config(phases=(PhaseConfig(steps=900_000), PhaseConfig(steps=100_000, sequence_length=512)))
    assert schedule_length(config, 0) == 1_000_000 and warmup_steps(config, 0) == 10_000
    assert [max_predictions(phase, config) for phase in config.phases] == [20, 77]


def test_a_restart_cuts_the_schedule():
    config = Config(phases=(PhaseConfig(steps=700), PhaseConfig(steps=200, schedule="restart"), PhaseConfig(steps=100)))
    assert schedule_length(config, 0) == 700 and schedule_length(config, 1) == 300


def test_unknown_size_names_those_that_exist():
    with pytest.raises(UserError, match="perhaps you meant 'medium'.*base, large"):
        presets.model_config("meduim")
    assert len({presets.SIZES[name] for name in presets.SIZES}) == 25  # 24 miniatures and large
    assert to_dict(presets.model_config("base")) == to_dict(ModelConfig())


CONFIG = Config(
    phases=(
        PhaseConfig(steps=700, batch_size=32, learning_rate=0.5),
        PhaseConfig(steps=100, sequence_length=512, moments="reset", max_predictions=60),
        PhaseConfig(steps=60, warmup_steps=20, schedule="restart"),
        PhaseConfig(steps=40, learning_rate=0.25, micro_batches=4),
    ),
    masking=MaskingConfig(rate=0.15),
    seed=7,
)


def test_every_phase_knows_where_it_lies_in_the_run_and_in_its_schedule():
    phases = resolve_phases(CONFIG)
    expected = [(0, 0, 700), (1, 700, 800), (2, 800, 860), (3, 860, 900)]
    assert [(phase.index, phase.begin, phase.end) for phase in phases] == expected
    expected = [(0, 800, 8), (0, 800, 8), (800, 100, 20), (800, 100, 20)]
    assert [(phase.schedule_begin, phase.schedule_length, phase.warmup_steps) for phase in phases] == expected
    assert [phase.max_predictions for phase in phases] == [20, 60, 20, 20]
    assert [phase.resets_moments for phase in phases] == [False, True, False, False]
    assert phases[0].tokens_per_step == 32 * 128 and phases[3].micro_batches == 4
    assert [phase.learning_rate for phase in phases] == [0.5, 1e-4, 1e-4, 0.25]


def test_the_first_phase_has_the_seed_of_the_run_and_the_others_have_their_own():
    """No seed of another run of some billion seeds is that of a later phase of this one."""
    seeds = [phase.data_seed for phase in resolve_phases(CONFIG)]
    assert seeds == [7, 7 + 2**32, 7 + 2 * 2**32, 7 + 3 * 2**32]


HOW = {  # what a resumed run may change; a name that ends in a dot includes all that is below it
    Config: (
        *("data.path", "data.mixture", "data.cache", "data.loader", "data.prefetch", "workdir", "log_every_steps"),
        *("elastic_batch", "objective.distillation.teacher", "checkpoint.", "evaluation.", "mesh.", "compute."),
        *("faults.", "profile.", "sinks.", "phases.0.mixture", "phases.0.micro_batches"),
    ),
    FinetuneConfig: (
        *("init_from", "distillation.teacher", "data.", "workdir", "mesh.", "faults.", "profile.", "sinks."),
        *(f"compute.{name}" for name in ("attention", "layers", "overlap", "products", "remat")),
        *("seed", "seeds", "grid", "grid_batch_sizes.", "grid_learning_rates.", "grid_epochs.", "batch_size"),
        *("micro_batches", "packing", "learning_rate", "epochs", "keep", "eval_batch_size", "save_every_steps"),
        "log_every_steps",
    ),
}
WHERE = {  # what may differ between hosts
    Config: (
        *("data.path", "data.mixture", "data.eval_path", "data.loader", "data.prefetch", "data.cache"),
        *("objective.distillation.teacher", "checkpoint.local_path", "init_from", "branch_from"),
    ),
    FinetuneConfig: (
        *("init_from", "data.dir", "data.train", "data.dev", "data.test", "data.tfds", "data.tfds_dir", "data.hub"),
        "distillation.teacher",
    ),
}
OTHERS = {  # the other rules
    "data.eval_path": "moved",
    "phases.0.steps": "last",
    "phases.0.batch_size": "elastic",
    "phases.0.learning_rate": "elastic",
    **dict.fromkeys(("phases.0.schedule", "phases.0.warmup_steps"), "branch"),
    **{f"schedule.{name}": "branch" for name in ("name", "power", "final_fraction", "cooldown_steps", "cooldown")},
}


@pytest.mark.parametrize("kind", [Config, FinetuneConfig])
def test_every_option_says_whether_a_resumed_run_may_change_it_and_whether_hosts_may_differ_in_it(kind):
    leaves = {*flattened(to_dict(kind())), *dotted_names(kind)}
    assert len(leaves) > 90
    free = {name for name in leaves if resume_rule(kind, name) == "free"}
    assert free == {name for name in leaves if is_among(name, HOW[kind])}
    assert all(any(is_among(name, (each,)) for name in leaves) for each in HOW[kind])
    rules = {name: resume_rule(kind, name) for name in leaves if name not in free}
    assert {name: rule for name, rule in rules.items() if rule} == (OTHERS if kind is Config else {})
    assert differing_options(kind) == WHERE[kind] and set(WHERE[kind]) <= set(leaves)
    assert differing_options(kind, "run.") == tuple(f"run.{name}" for name in WHERE[kind])


def test_what_is_no_option_may_not_change():
    for name in ("", "phases", "phases.0", "phases.0.size", "mode", "data", "data.pathe", "seed", "seed.x"):
        assert resume_rule(Config, name) is None


def test_what_may_change_between_two_commands_of_fine_tuning():
    """The options that each run has of its own, and those that the record repeats outside "finetune"."""
    for line in ("finetune.learning_rate: 1e-05 → 2e-05", "compute.remat: none → full", "pairs: True → False"):
        assert is_harmless(FinetuningRecord, line)
    for line in ("finetune.bucket_window: 4 → 8", "compute.dtype: float32 → bfloat16", "model.num_layers: 2 → 3"):
        assert not is_harmless(FinetuningRecord, line)


def test_held_out_documents_may_move_but_neither_come_nor_go():
    assert is_harmless(Config, "data.eval_path: /a → /b")
    assert not any(is_harmless(Config, line) for line in ("data.eval_path:  → /b", "data.eval_path: /a → "))


def test_the_last_phase_alone_may_become_longer():
    assert all(lengthens(Config, f"phases.3.steps: 40 → {steps}", 4) for steps in (80, 20))
    assert not lengthens(Config, "phases.2.steps: 60 → 80", 4)
    assert not lengthens(Config, "phases.4.steps: None → 80", 5)
    assert not lengthens(Config, "phases.13.steps: 60 → 80", 4)
    assert is_harmless(Config, "phases.0.micro_batches: 1 → 4")
    assert not is_harmless(Config, "phases.0.batch_size: 32 → 64")


def test_a_phase_whose_batch_grows_is_divided_where_its_size_changes():
    phases = (
        PhaseConfig(steps=10, batch_size=32),
        PhaseConfig(steps=20, batch_size=64, ramp_batch_sizes=(8, 16, 24), ramp_steps=10, moments="reset"),
    )
    config = Config(phases=phases)
    stages = resolve_stages(config)
    expected = [(0, 0, 10, 32), (1, 10, 13, 8), (1, 13, 16, 16), (1, 16, 20, 24), (1, 20, 30, 64)]
    assert [(each.index, each.begin, each.end, each.batch_size) for each in stages] == expected
    assert [each.resets_moments for each in stages] == [False, True, False, False, False]
    assert len({each.data_seed for each in stages[1:]}) == 1 and stages[0] == resolve_phases(config)[0]
    last = dataclasses.replace(phases[1], ramp_steps=20)
    assert [each.batch_size for each in resolve_stages(Config(phases=(phases[0], last)))] == [32, 8, 16, 24]


@pytest.mark.parametrize(
    "sizes, steps, says",
    [
        ((8,), 0, "give batch sizes and a number of steps"),
        ((), 5, "phases.0.ramp_steps=5 has no effect without phases.0.ramp_batch_sizes; set that too"),
        ((8, 16), 1, "from 2 to the 10 of the phase"),
        ((8,), 11, "from 1 to the 10 of the phase"),
        ((8, 3), 4, "3 is no positive multiple of phases.0.micro_batches=2"),
        ((0,), 4, "0 is no positive multiple"),
    ],
)
def test_a_ramp_that_cannot_be(sizes, steps, says):
    phase = PhaseConfig(steps=10, batch_size=32, micro_batches=2, ramp_batch_sizes=sizes, ramp_steps=steps)
    with pytest.raises(UserError, match=says):
        check(Config(phases=(phase,)))


@pytest.mark.parametrize(
    "sizes, says", [((16, 8), "16,8 must grow .*=32, but 16 comes before 8"), ((8, 32), "but 32 .* 32")]
)
def test_the_batch_of_a_new_run_grows(sizes, says):
    config = Config(phases=(PhaseConfig(steps=10, batch_size=32, ramp_batch_sizes=sizes, ramp_steps=4),))
    check(config)  # a resumed run may have got a smaller batch by --elastic_batch
    with pytest.raises(UserError, match=says):
        check_new(config)


WRONG = {
    ("--objective.generator.num_layers=0",): "objective.generator.num_layers=0 must be positive",
    ("--objective.generator.embeddings=tied",): "invalid choice 'tied' for argument '--objective.gene",
    ("--objective.generator.width=64",): "objective.generator.width",
    ("--objective.name=replaced_token",): "invalid choice 'replaced_token'",
    ("--objective.mlm_weight=0",): "the generator would never learn",
    ("--objective.replaced_tokens_weight=0",): "the discriminator would never learn",
    ("--objective.replaced_tokens_weight=-1",): "must be 0 or a positive number",
    ("--data.sentence_pairs=sop",): "no second objective, but data.sentence_pairs=sop",
    ("--model.pair_head=true",): "has no second objective",
    ("--data.sentence_pairs=nsp", "--model.pair_head=true"): "set data.sentence_pairs=adjacent (or none) and",
    ("--model.type_vocab_size=1",): "data.sentence_pairs=adjacent needs two segments, but model.type_vocab_size=1; set",
    ("--masking.mask_share=0.85", "--masking.random_share=0.2"): "add up to more than 1",
    ("--masking.rate=0",): "masking.rate=0 leaves nothing to predict",
    ("--masking.rate=1.2",): "masking.rate=1.2 must be between 0 and 1",
    ("--model.positions=rope", "--objective.generator.num_heads=64"): "the generator has heads of 1",
}


@pytest.mark.parametrize("options", WRONG, ids=" ".join)
def test_what_is_wrong_is_said_in_one_line(options):
    with pytest.raises(UserError) as raised:
        configured(["electra_mini", *options], "pretrain CONFIG", "")
    assert WRONG[options] in str(raised.value)


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
    grouped = generator_model(dataclasses.replace(base, key_value_heads=4), GeneratorConfig(num_heads=6))
    assert (grouped.num_heads, grouped.key_value_heads) == (6, 2)  # a number that divides both


MINI = load_config("xlnet_mini")


def changed(part: str, **changes) -> Callable[[], Config]:
    return lambda: with_options(MINI, {f"{part}.{name}": value for name, value in changes.items()})


@pytest.mark.parametrize("name", ["mini", "base", "large"])
def test_the_shipped_configurations_are_good(name):
    config = check(load_config(f"xlnet_{name}"))
    assert config.model.two_streams and not config.model.pair_head and config.objective == Permutation()


@pytest.mark.parametrize(
    "config, message",
    [
        (changed("objective", name="masked_words"), "positions=xlnet and objective.name=masked_words.*or neither"),
        (changed("model", positions="learned"), "positions=learned and objective.name=permutation.*or neither"),
        (changed("model", norm_position="pre"), "norm_position=pre belongs to .*, not to model.positions=xlnet"),
        (changed("model", direction="left_to_right"), "direction=left_to_right belongs to .*, not to .*xlnet"),
        (changed("model", local_window=8), "local_window=8 belongs to another model.positions, not to .*xlnet"),
        (changed("model", embedding_size=64), "embedding_size=64 belongs to .*, not to model.positions=xlnet"),
        (changed("model", layer="lstm"), "layer=lstm and objective.name=permutation"),
        (changed("model", hidden_size=15, num_heads=3), "hidden_size=15 is odd"),
        (changed("masking", unit="span"), "masking.unit=span has no effect"),
        (changed("masking", random_share=0.0), "masking.random_share=0.0 has no effect"),
        (changed("objective", longest_span=0), "longest_span=0 must be positive; the paper's is 5"),
        (changed("model", num_layers=0), "model.num_layers=0 must be positive"),  # not: there are no layers
        (lambda: with_options(MINI, {"data.sentence_pairs": "nsp", "model.pair_head": True}), "sentence_pairs=nsp"),
    ],
)
def test_what_does_not_go_with_xlnet_is_refused(config, message):
    with pytest.raises(UserError, match=message):
        check(config())


def test_a_bert_without_an_order_is_untouched():
    assert check(Config(model=ModelConfig(), objective=MaskedWords())) == Config()


KINDS = {kind.chosen_by["name"]: kind for kind in typing.get_args(ObjectiveConfig)}
OWN = {name: set(dotted_names(kind)) for name, kind in KINDS.items()}
EVERY = sorted(set().union(*OWN.values()))
OBJECTIVE_CONFIGS = {  # a shipped run of each
    **{"masked_words": "bert_mini", "left_to_right": "gpt_mini", "two_directions": "elmo_mini"},
    **{"replaced_tokens": "electra_mini", "permutation": "xlnet_mini", "skip_gram": "skipgram_mini"},
    **{"glove": "glove_mini", "masked_diffusion": "diffusion_mini"},
}


def test_the_kinds_are_those_of_the_shipped_configurations():
    assert KINDS.keys() == OBJECTIVE_CONFIGS.keys() and len(EVERY) == 29
    for name, config in OBJECTIVE_CONFIGS.items():
        assert type(check(load_config(config)).objective) is KINDS[name]
    assert Config().objective == MaskedWords()


@pytest.mark.parametrize("name", KINDS)
def test_an_objective_is_written_with_its_own_options_and_read_again(name):
    config = dataclasses.replace(Config(), objective=KINDS[name]())
    values = to_dict(config)
    assert values["objective"]["name"] == name
    assert set(values["objective"]) - {"name"} == {each.partition(".")[0] for each in OWN[name]}
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
        assert {e for e in KINDS if f"objective.name={e}" in having} == {e for e in KINDS if option in OWN[e]}
        assert rest.startswith(f"objective.name={name}; set ") and rest.endswith("or leave the option out")


def test_options_that_two_objectives_have_are_kept_where_one_is_chosen_in_place_of_the_other():
    start = dataclasses.replace(Config(), objective=MaskedWords(mlm_weight=3.0, mask_decoder=True))
    words = ["--objective.name=replaced_tokens", "--objective.generator.num_layers=4"]
    expected = ReplacedTokens(mlm_weight=3.0, mask_decoder=True, generator=GeneratorConfig(num_layers=4))
    assert parse(start, words, "pretrain").objective == expected
    vectors = dataclasses.replace(Config(), objective=SkipGram(static_vectors=SkipGramConfig(window=7, negatives=2)))
    expected = GloVe(static_vectors=GloVeConfig(window=7))
    assert parse(vectors, ["--objective.name=glove"], "pretrain").objective == expected


def test_the_options_of_every_objective_say_whether_a_resumed_run_may_change_them():
    rules = {option: resume_rule(Config, f"objective.{option}") for option in ("name", *EVERY)}
    assert {option: rule for option, rule in rules.items() if rule} == {"distillation.teacher": "free"}


def test_the_width_of_what_is_predicted_is_that_of_the_phase_unless_all_is_predicted():
    for name, kind in KINDS.items():
        widths = [kind().predictions(length, given, 0.15) for length, given in ((128, None), (512, None), (128, 30))]
        all_of_them = {"left_to_right": 127, "two_directions": 127, "skip_gram": 128, "glove": 128}
        all_of_them |= {"masked_diffusion": 128}
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


@pytest.mark.parametrize("kind", [Config, FinetuneConfig])
def test_every_number_has_a_range(kind):
    """Whole ones that 32 bits hold, and no infinity, at any depth; the step itself is such a number."""
    numbers = {
        name: value
        for name, value in flattened(to_dict(kind())).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    assert len(numbers) > 30
    for name, value in numbers.items():
        values = to_dict(kind())
        *groups, last = name.split(".")
        part = values
        for group in groups:
            part = part[int(group)] if isinstance(part, list) else part[group]
        for wrong in (2**31, -(2**31) - 1, 10**5000) if isinstance(value, int) else (math.inf, -math.inf, math.nan):
            if isinstance(part, list):
                part[int(last)] = wrong
            else:
                part[last] = wrong
            with pytest.raises(
                UserError, match=f"{groups[-1] if isinstance(part, list) else last}.* must be (at |a finite)"
            ):
                check_numbers(from_dict(kind, values))
    check_numbers(kind())


def test_steps_of_all_phases_can_be_counted():
    phases = (PhaseConfig(steps=2**31 - 2, sequence_length=32), PhaseConfig(steps=2, sequence_length=64))
    with pytest.raises(UserError, match="2,147,483,648 steps together; a run has at most 2,147,483,647"):
        check(Config(phases=phases))
