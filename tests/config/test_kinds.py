"""Fields that hold one of several kinds: spelled flat or nested, chosen by options, and refused by name."""

import dataclasses
import importlib
from collections.abc import Mapping
from typing import ClassVar, Literal, get_args

import pytest

from bert_jax.config import (
    Config,
    MaskedWords,
    ModelConfig,
    PhaseConfig,
    RecurrentConfig,
    Rope,
    ScheduleConfig,
    options,
)
from bert_jax.config.checks import check
from bert_jax.config.finetuning import InputFormConfig, check_finetune, task_defaults
from bert_jax.config.objective import ObjectiveConfig
from bert_jax.config.tasks import SentenceOptions
from bert_jax.config.vectors import Cosent
from bert_jax.console import parse
from bert_jax.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Engine:
    """An engine."""

    power: int = 5
    """Its power."""
    maker: str = options.option("", resume="free", hosts_differ=True)
    """Who made it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Oars:
    """A pair of oars."""

    power: int = 1
    """Power of who rows."""
    length: float = 2.5
    """Their length."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Motor:
    """Driven by an engine."""

    chosen_by: ClassVar[Mapping[str, str]] = {"name": "motor"}

    load: int = 3
    """How much it carries."""
    tank: float = 10.0
    """Size of the tank."""
    drive: Engine = Engine()
    """The engine."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rowing:
    """Driven by people."""

    chosen_by: ClassVar[Mapping[str, str]] = {"name": "rowing"}

    load: int = 2
    """How much it carries."""
    pace: Literal["slow", "fast"] = "slow"
    """The pace."""
    drive: Oars = Oars()
    """The oars."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drifting:
    """Driven by nothing."""

    chosen_by: ClassVar[Mapping[str, str]] = {"name": "drifting"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Canoe:
    """Narrow."""

    chosen_by: ClassVar[Mapping[str, str]] = {"hull": "canoe"}

    keel: float = options.option(0.1, resume="free")
    """Depth of the keel."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Raft:
    """Flat."""

    chosen_by: ClassVar[Mapping[str, str]] = {"hull": "raft"}

    logs: int = 8
    """Number of logs."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sail:
    """A sail."""

    area: int = 6
    """Its area. None: there is no sail."""
    reefs: int = 2
    """Number of reefs."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Boat:
    """A boat."""

    title: str = "ark"
    """What it is called."""
    moved: Motor | Rowing | Drifting = options.kinds(Motor(), nested=True)
    """What moves it."""
    form: Canoe | Raft = options.kinds(Canoe())
    """Its form."""
    sail: Sail | None = options.kinds(None, absent={"area": None})
    """Its sail."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sea:
    """Salt water."""

    chosen_for: ClassVar[tuple[str, ...]] = ("atlantic", "pacific")

    depth: int = 4000
    """Its depth."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class River:
    """Fresh water."""

    chosen_for: ClassVar[tuple[str, ...]] = ("rhine", "seine")

    depth: int = 5
    """Its depth."""
    locks: int = 12
    """Number of locks."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Voyage:
    """A voyage."""

    water: str = "pacific"
    """Its name."""
    course: Sea | River = options.kinds(Sea(), by="water", resume="free")
    """What it crosses."""
    tow: Engine = options.option(Engine(), of=("water", *River.chosen_for))
    """The engine of a tow."""


BOATS = [
    Boat(),
    Boat(moved=Rowing(pace="fast", drive=Oars(length=3.0)), form=Raft(logs=9), sail=Sail(area=4)),
    Boat(moved=Drifting(), sail=Sail()),
    Boat(moved=Motor(drive=Engine(maker="me")), form=Canoe(keel=0.5)),
]


def test_each_kind_is_spelled_with_its_own_options_alone():
    assert options.to_dict(Boat()) == {
        "title": "ark",
        "moved": {"name": "motor", "load": 3, "tank": 10.0, "drive": {"power": 5, "maker": ""}},
        "hull": "canoe",
        "keel": 0.1,
        "area": None,
    }
    expected = {"title": "ark", "moved": {"name": "drifting"}, "hull": "canoe", "keel": 0.1, "area": 6, "reefs": 2}
    assert options.to_dict(BOATS[2]) == expected


@pytest.mark.parametrize("boat", BOATS, ids=range(len(BOATS)))
def test_what_was_written_is_read_again_and_must_be_complete(boat):
    values = options.to_dict(boat)
    assert options.from_dict(Boat, values) == options.from_dict(Boat, values, complete=True) == boat
    for name in options.flattened(values):
        *groups, last = name.split(".")
        lacking = options.to_dict(boat)
        group = lacking
        for each in groups:
            group = group[each]
        del group[last]
        with pytest.raises(UserError, match=f"missing: {name}"):
            options.from_dict(Boat, lacking, complete=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Barge:
    """A boat whose engine, and what it may tow, are newer than the oldest records."""

    tow: int = options.option(4, before=0)
    """How much it tows."""
    drive: Engine = options.option(Engine(), before=Engine(power=1))
    """The engine."""
    draught: float = 1.5
    """Its depth."""


def test_an_option_that_is_younger_than_a_record_has_the_value_of_its_time():
    assert options.from_record(Barge, {"draught": 2.0}, "barge.json") == Barge(
        tow=0, drive=Engine(power=1), draught=2.0
    )
    assert options.from_record(Barge, options.to_dict(Barge()), "barge.json") == Barge()
    assert options.from_dict(Barge, {}) == Barge()  # a file that somebody writes today
    with pytest.raises(UserError, match="barge.json is damaged, or another version of bert_jax wrote it: .* draught$"):
        options.from_record(Barge, {"tow": 3}, "barge.json")
    with pytest.raises(UserError, match="missing: drive.maker$"):  # of an engine that was there
        options.from_record(Barge, {"draught": 2.0, "drive": {"power": 3}}, "barge.json")


def test_what_is_left_out_has_the_usual_value_and_the_usual_kind():
    assert options.from_dict(Boat, {}) == Boat()
    assert options.from_dict(Boat, {"moved": {"load": 7}, "keel": 0.2, "area": 9}) == Boat(
        moved=Motor(load=7), form=Canoe(keel=0.2), sail=Sail(area=9)
    )
    assert options.from_dict(Boat, {"moved": {"name": "rowing"}, "hull": "raft"}) == Boat(moved=Rowing(), form=Raft())


WRONG = {  # values of a file, and what is said of them; a word of the command line says the same where it is given
    "of another kind": (
        {"moved": {"tank": 2.0, "name": "rowing"}},
        ["--moved.name=rowing", "--moved.tank=2.0"],
        "moved.tank=2.0 belongs to moved.name=motor, not to moved.name=rowing; set that, or leave the option out",
    ),
    "of two other kinds": (
        {"moved": {"name": "drifting", "load": 4}},
        ["--moved.name=drifting", "--moved.load", "4"],
        "moved.load=4 belongs to moved.name=motor or moved.name=rowing, not to moved.name=drifting; set one of these, ",
    ),
    "below an option that both kinds have": (
        {"moved": {"drive": {"length": 3.0}}},
        ["--moved.drive.length=3.0"],
        "moved.drive.length=3.0 belongs to moved.name=rowing, not to moved.name=motor; set that, or leave the option",
    ),
    "of another kind next to the field": (
        {"logs": 4},
        ["--logs=4"],
        "logs=4 belongs to hull=raft, not to hull=canoe; set that, or leave the option out",
    ),
    "absent kind": ({"reefs": 4}, ["--reefs=4"], "reefs=4 needs area, but area=None; set that too, or leave it out"),
    "no kind, and one of its options": (
        {"moved": {"name": "rowin", "pace": "fast"}},
        ["--moved.name=rowin", "--moved.pace=fast"],
        "moved.name='rowin' must be one of motor, rowing, drifting",
    ),
    "no option of a kind": ({"moved": {"tanc": 2.0}}, None, "unknown option moved.tanc; perhaps you meant moved.tank"),
    "resembles one of another": ({"moved": {"pase": "fast"}}, ["--moved.pase=fast"], "moved.pase; perhaps you meant "),
    "resembles nothing": ({"moved": {"name": "drifting", "x": 1}}, None, "unknown option moved.x; Drifting has name"),
    "no kind": ({"hull": "tub"}, None, "hull='tub' must be one of canoe, raft"),
    "the wrong type": ({"moved": {"load": "much"}}, None, "moved.load='much' must be of type int"),
    "no object": ({"moved": "rowing"}, None, "moved must be an object with the fields of Motor, not 'rowing'"),
    "no option": ({"titel": "x"}, ["--titel=x"], "titel; perhaps you meant "),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_names_the_option_its_value_and_the_way_out(case):
    values, words, message = WRONG[case]
    with pytest.raises(UserError) as raised:
        options.from_dict(Boat, values)
    assert message in str(raised.value)
    if words is not None:
        with pytest.raises(UserError) as raised:
            parse(Boat(), words, "boat")
        assert message in str(raised.value).replace("--", "")


def test_the_command_line_chooses_kinds_and_keeps_what_they_share():
    start = Boat(moved=Motor(load=9, tank=1.0, drive=Engine(power=7)), form=Canoe(keel=0.5))
    assert parse(start, [], "boat") == start
    assert parse(start, ["--moved.name=rowing"], "boat").moved == Rowing(load=9, drive=Oars(power=7))
    assert parse(start, ["--moved.name", "rowing", "--moved.drive.length=4"], "boat").moved == Rowing(
        load=9, drive=Oars(power=7, length=4.0)
    )
    expected = dataclasses.replace(start.moved, load=1)
    assert parse(start, ["--moved.name=motor", "--moved.load=1"], "boat").moved == expected
    assert parse(start, ["--hull=raft", "--logs=3"], "boat").form == Raft(logs=3)
    assert parse(start, ["--area=4", "--reefs=1"], "boat").sail == Sail(area=4, reefs=1)
    furled = parse(dataclasses.replace(start, sail=Sail()), ["--area=None"], "boat")
    assert furled == start


def test_help_shows_the_options_of_what_is_chosen_and_the_meaning_of_every_choice(capsys):
    def shown(*words) -> str:
        with pytest.raises(SystemExit):
            parse(Boat(), [*words, "--help"], "bert-jax boat [--OPTION=VALUE …]", "Build a boat.")
        return " ".join(capsys.readouterr().out.replace("│", " ").split())

    usual, other = shown(), shown("--moved.name=rowing", "--hull=raft", "--area=3")
    for meaning in ("motor: Driven by an engine.", "drifting: Driven by nothing.", "canoe: Narrow. raft: Flat."):
        assert meaning in usual and meaning in other
    assert all(f"--{name} " in usual for name in options.flattened(options.to_dict(Boat())))
    chosen = options.flattened(options.to_dict(Boat(moved=Rowing(), form=Raft(), sail=Sail())))
    assert all(f"--{name} " in other for name in chosen)
    assert not [name for name in options.dotted_names(Boat) if name not in chosen and f"--{name} " in other]
    assert not [
        name
        for name in options.dotted_names(Boat)
        if name not in options.flattened(options.to_dict(Boat())) and f"--{name} " in usual
    ]


def test_every_kind_counts_in_what_may_change_and_what_hosts_may_differ_in():
    assert options.dotted_names(Boat) == (
        *("title", "moved.name", "moved.load", "moved.tank", "moved.drive.power", "moved.drive.maker"),
        *("moved.pace", "moved.drive.length", "hull", "keel", "logs", "area", "reefs"),
    )
    assert options.spelled_names(Boat) == ("title", "moved", "hull", "keel", "logs", "area", "reefs")
    rules = {name: options.resume_rule(Boat, name) for name in options.dotted_names(Boat)}
    assert {name for name, rule in rules.items() if rule} == {"moved.drive.maker", "keel"}
    assert set(rules.values()) == {None, "free"}
    assert options.differing_options(Boat) == ("moved.drive.maker",)


def test_a_change_of_kind_is_told_before_the_options_that_only_one_has():
    lines = options.differences(options.to_dict(Boat()), options.to_dict(Boat(moved=Rowing(), form=Raft())))
    assert lines == [
        "hull: canoe → raft",
        "moved.drive.power: 5 → 1",
        "moved.load: 3 → 2",
        "moved.name: motor → rowing",
        "keel: 0.1 → None",
        "logs: None → 8",
        "moved.drive.length: None → 2.5",
        "moved.drive.maker:  → None",
        "moved.pace: None → slow",
        "moved.tank: 10.0 → None",
    ]
    assert not options.is_harmless(Boat, "moved.name: motor → rowing")


def test_a_choice_that_may_be_left_open_is_read_from_a_file_and_from_the_command_line():
    assert parse(InputFormConfig(), ["--scheme=iob2"], "predict").scheme == "iob2"
    assert parse(InputFormConfig(scheme="iob2"), ["--scheme=None"], "predict").scheme is None
    assert options.from_dict(InputFormConfig, {"scheme": "iob2"}).scheme == "iob2"
    with pytest.raises(UserError, match="scheme='iob3' must be one of auto, iob1, iob2"):
        options.from_dict(InputFormConfig, {"scheme": "iob3"})


def test_a_name_or_a_class_in_place_of_a_kind_is_refused():
    for make, message in (
        (
            lambda: ModelConfig(positions="rope"),
            r"model.positions='rope' must be one of Learned\(\), LearnedBias\(\), ",
        ),
        (lambda: ModelConfig(window=8), r"model.window=8 must be one of Window\(\), None"),
        (lambda: RecurrentConfig(positions=Rope()), r"must be one of Learned\(\), NoPositions\(\)$"),
        (lambda: check(Config(objective="glove")), r"^objective='glove' must be one of MaskedWords\(\), "),
        (lambda: check(Config(objective=MaskedWords)), "^objective=<class .*MaskedWords'> must be one of"),
        (lambda: check(Config(model=None)), r"^model=None must be one of ModelConfig\(\), "),
        (lambda: check(Config(phases=PhaseConfig())), r"^phases=PhaseConfig\(.* must be a tuple of PhaseConfig\(\)$"),
        (lambda: check(Config(phases=(PhaseConfig(), 3))), r"^phases.1=3 must be one of PhaseConfig\(\)$"),
    ):
        with pytest.raises(UserError, match=message):
            make()


def test_an_option_next_to_the_field_may_choose():
    voyages = [Voyage(), Voyage(water="atlantic", course=Sea(depth=3)), Voyage(water="seine", course=River(locks=1))]
    for voyage in voyages:
        values = options.to_dict(voyage)
        assert options.from_dict(Voyage, values) == options.from_dict(Voyage, values, complete=True) == voyage
        del values["course"]
        with pytest.raises(UserError, match="missing: course"):
            options.from_dict(Voyage, values, complete=True)
    courses = [options.to_dict(voyage)["course"] for voyage in (voyages[2], Voyage())]
    assert courses == [{"depth": 5, "locks": 1}, {"depth": 4000}]
    assert options.from_dict(Voyage, {"water": "rhine"}) == Voyage(water="rhine", course=River())
    assert options.from_dict(Voyage, {"water": "rhine", "course": {"depth": 2}}).course == River(depth=2)
    assert options.from_dict(Voyage, {"water": "baltic"}).course == Sea()  # the usual kind of any other
    assert parse(Voyage(), ["--water=rhine", "--course.locks=2"], "voyage").course == River(depth=4000, locks=2)
    assert parse(voyages[2], ["--course.depth=9"], "voyage").course == River(depth=9, locks=1)
    assert parse(voyages[2], ["--water", "atlantic"], "voyage").course == Sea(depth=5)
    assert options.with_options(Voyage(), {"water": "seine", "course.locks": 3}).course.locks == 3
    assert options.resume_rule(Voyage, "course.locks") == "free" and "course.locks" in options.dotted_names(Voyage)


def test_a_kind_that_the_option_next_to_the_field_does_not_choose_is_refused():
    for right in (Voyage(), Voyage(water="baltic"), Voyage(water="rhine", course=River())):
        options.check_kinds(right)
    with pytest.raises(UserError, match=r"^course is Sea\(\), but water=rhine has River\(\); give that$"):
        options.check_kinds(Voyage(water="rhine"))
    with pytest.raises(UserError, match="course='rhine' must be one of Sea"):
        options.check_kinds(Voyage(water="rhine", course="rhine"))
    sentences = dataclasses.replace(task_defaults("ner"), init_from="m", workdir="w", options=SentenceOptions())
    with pytest.raises(UserError, match=r"^options is SentenceOptions\(\), but task=ner has TaggingOptions\(\); "):
        check_finetune(sentences)


@pytest.mark.parametrize("water", ["", "atlantic", "baltic"])
def test_what_belongs_to_other_values_of_it_names_these(water):
    message = f"course.locks=3 belongs to water=rhine or seine, not to {water or 'pacific'}; leave it out"
    chosen = {"water": water} if water else {"water": "pacific"}
    with pytest.raises(UserError, match=message):
        options.from_dict(Voyage, chosen | {"course": {"locks": 3}})
    with pytest.raises(UserError, match=message):
        parse(Voyage(), [*([f"--water={water}"] if water else []), "--course.locks=3"], "voyage")
    with pytest.raises(UserError, match="unknown option course.lokcs; perhaps you meant course.locks"):
        options.from_dict(Voyage, chosen | {"course": {"lokcs": 3}})


def test_a_group_that_belongs_to_other_values_is_named_by_what_is_not_as_usual():
    towed = Voyage(tow=Engine(maker="me"))
    with pytest.raises(UserError, match="tow.maker=me belongs to water=rhine or seine, not to pacific; leave it out"):
        options.check_effects(towed)
    options.check_effects(dataclasses.replace(towed, water="rhine"))
    options.check_effects(Voyage())


def test_what_a_preset_has_for_another_kind_is_taken_back_by_its_usual_value():
    preset = Config(schedule=ScheduleConfig(name="constant", cooldown_steps=9, cooldown="one_minus_sqrt"))
    words = ["--schedule.name=linear"]
    for name, usual in (("cooldown_steps", "0"), ("cooldown", "linear")):
        with pytest.raises(UserError, match=rf"schedule\.{name}=.*set --schedule\.{name}={usual} to take back"):
            parse(preset, words, "pretrain")
        words.append(f"--schedule.{name}={usual}")
    assert parse(preset, words, "pretrain").schedule == ScheduleConfig()
    with pytest.raises(UserError, match="schedule.cooldown_steps=5 belongs to .*; set --schedule.cooldown_steps=0 to "):
        parse(preset, ["--schedule.name=linear", "--schedule.cooldown_steps=5"], "pretrain")
    taken_back = "init_from_changes=direction has no effect .*, or set --init_from_changes= to take back"
    with pytest.raises(UserError, match=taken_back):
        parse(Config(init_from="run", init_from_changes=("direction",)), ["--init_from="], "pretrain")
    with pytest.raises(UserError, match="schedule.cooldown=linear has no effect without .*, or leave it out$"):
        parse(Config(), ["--schedule.cooldown=linear"], "pretrain")  # which had nothing to take back


def test_what_other_kinds_do_without_is_said(capsys, caplog):
    before = Config(model=ModelConfig(num_heads=4, positions=Rope(rope_theta=5.0)))
    with caplog.at_level("WARNING", "absl"):
        after = parse(before, ["--model.layer=lstm"], "pretrain")
    assert after.model == RecurrentConfig()
    (record,) = caplog.records
    said = record.getMessage()
    assert all(each in said for each in ("model.num_heads=4", "model.positions=rope", "model.rope_theta=5.0"))
    caplog.clear()
    parse(Config(), ["--model.layer=lstm"], "pretrain")
    parse(before, ["--model.rope_theta=6"], "pretrain")
    assert not caplog.records


@pytest.mark.parametrize("kind", get_args(ObjectiveConfig))
def test_an_objective_names_modules_that_make_its_losses_and_choose_its_places(kind):
    assert callable(importlib.import_module(f"bert_jax.objectives.{kind.losses}").objective)
    assert callable(importlib.import_module(f"bert_jax.data.{kind.places}").places)


def test_options_of_a_generator_that_has_no_attention_are_refused():
    words = ["--model.layer=lstm", "--objective.generator.num_heads=5", "--data.sentence_pairs=none"]
    config = parse(Config(), [*words, "--objective.name=replaced_tokens", "--model.pair_head=false"], "pretrain")
    with pytest.raises(UserError, match="objective.generator.num_heads=5 has no effect with model.layer=lstm"):
        check(config)


@pytest.mark.parametrize(
    "model, message",
    [
        ({"local_window": "NONE"}, "model.local_window='NONE' must be of type int"),
        ({"convolution_width": "0"}, "model.convolution_width='0' must be of type int"),
        ({"convolution_width": False}, "model.convolution_width=False must be of type int"),
        ({"disentangled": {"terms": "NONE"}}, "model.disentangled.terms='NONE' must be one of c2p"),
    ],
    ids=str,
)
def test_what_chooses_none_in_a_file_is_that_value_and_not_its_text(model, message):
    with pytest.raises(UserError, match=message):
        options.from_dict(Config, {"model": model})
    absent = {"local_window": None, "convolution_width": 0, "disentangled": {"terms": "none"}}
    assert options.from_dict(Config, {"model": absent}) == Config()


@pytest.mark.parametrize("task", ["vectors", "ranking"])
def test_every_loss_and_form_is_chosen_by_its_name_alone(task):
    """A None that the usual kind may have is not kept for one that must have a value."""
    usual = task_defaults(task)
    for group, choice in options.choices_of(type(usual.options)).items():
        for kind in choice.kinds:
            chosen = options.with_options(usual, {f"options.{group}.name": kind.chosen_by["name"]})
            assert type(getattr(chosen.options, group)) is kind


def test_a_none_that_another_kind_does_without_is_not_worth_a_warning(caplog):
    found = parse(task_defaults("vectors"), ["--options.loss.name=cosent"], "finetune")
    assert found.options.loss == Cosent() and not caplog.records
