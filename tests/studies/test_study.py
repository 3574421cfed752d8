"""Studies and their summaries."""

import dataclasses
import hashlib
import json
import math
import pathlib

import jax
import pytest
from small_finetuning import FAST, sentences
from small_pretraining import run_config

from bert_jax.config import Config, EvaluationConfig, GeneratorConfig, PhaseConfig, ReplacedTokens
from bert_jax.config.finetuning import task_defaults
from bert_jax.config.options import to_dict
from bert_jax.config.presets import shipped_studies
from bert_jax.config.studies import Arm, Measure, Published, Study, StudyConfig, check_study
from bert_jax.config.tasks import TaskDataConfig
from bert_jax.console import load_study
from bert_jax.errors import UserError
from bert_jax.tools import study as study_loop
from bert_jax.tools.study import column, difference_interval, draw_study, run_study, study_table
from bert_jax.tools.study_plan import Given, _digest, changed, given_words, measure_held_out, study_plan

PHASE = PhaseConfig(steps=6, sequence_length=32, batch_size=16, learning_rate=1e-2, warmup_steps=1)


@pytest.fixture(scope="module")
def study(small_store, tmp_path_factory) -> Study:
    """Two masking rates: a pre-training of six steps each, and a fine-tuning on topics."""
    home = tmp_path_factory.mktemp("study")
    config = run_config(small_store, "", phases=(PHASE,), evaluation=EvaluationConfig(every_steps=0, sequences=32))
    (home / "base.json").write_text(json.dumps(to_dict(config)))
    (home / "topics").mkdir()
    for name, text in {"train": sentences(64, 0), "dev": sentences(40, 1)}.items():
        (home / "topics" / f"{name}.tsv").write_text(text)
    options = FAST | {"epochs": 1, "data": TaskDataConfig(dir="topics")}
    return Study(
        title="Masking rates",
        question="How many tokens should be masked?",
        base=str(home / "base.json"),
        options={"masking.unit": "whole_word"},
        arms=(Arm(name="few"), Arm(name="many", options={"masking.rate": 0.4}, label="40 %")),
        seeds=1,
        tasks={"topics": dataclasses.replace(task_defaults("text"), **options)},
        measures=(
            Measure(metric="mlm_loss"),
            Measure(metric="mlm_loss", of="own"),
            Measure(metric="accuracy", of="topics", beside="MNLI"),
        ),
        published=(Published(source="Wettig et al. 2023", figures={"MNLI": {"few": 84.2, "many": 84.5}}),),
    )


def run(study: Study, workdir: pathlib.Path, **options) -> int:
    home = pathlib.Path(study.base).parent
    given = options.pop("given", Given())
    config = StudyConfig(workdir=str(workdir), task_data=str(home), **options)
    return run_study(study, config, given, devices=jax.devices()[:1])


def figures(workdir: pathlib.Path) -> dict:
    """What was measured, without the directories."""
    results = json.loads((workdir / "results.json").read_text())
    return {(each["arm"], each["seed"]): each["metrics"] for each in results["runs"]}


@pytest.fixture(scope="module")
def broken(study, tmp_path_factory) -> pathlib.Path:
    """A study that was killed after its first pre-training, failed in its second, and was resumed after each."""
    workdir = tmp_path_factory.mktemp("broken") / "work"
    with pytest.MonkeyPatch.context() as patch:

        def killed(*_, **__):
            raise KeyboardInterrupt

        patch.setattr(study_loop, "finetune", killed)
        with pytest.raises(KeyboardInterrupt):
            run(study, workdir)
    checkpoint = next((workdir / "runs/few/seed_0/pretraining/checkpoints").glob("step_*"))
    before = checkpoint.stat().st_mtime_ns
    assert not (workdir / "runs/many").exists()

    with pytest.MonkeyPatch.context() as patch:
        really = study_loop.pretrain

        def failing(config, devices):
            if config.masking.rate == 0.4:
                raise RuntimeError("out of\nmemory")
            return really(config, devices)

        patch.setattr(study_loop, "pretrain", failing)
        assert run(study, workdir) == 1  # and the other arm is there all the same
    table, found = (workdir / "table.md").read_text(), figures(workdir)
    assert "1 of 2 runs are done" in table and "Failed: many, seed 0: out of memory" in table
    assert found["few", 0].keys() == {"held_out", "own", "topics"} and found["many", 0] == {}

    assert run(study, workdir) == 0
    assert figures(workdir)["few", 0] == found["few", 0]
    assert checkpoint.stat().st_mtime_ns == before  # nothing was trained twice
    return workdir


@pytest.mark.slow
def test_a_study_that_was_killed_and_failed_is_resumed_to_its_table(study, broken, capsys):
    found, table = figures(broken), (broken / "table.md").read_text()
    assert (broken / "picture.png").read_bytes().startswith(b"\x89PNG")
    # The arm with the base's masks is measured as it measures itself, the other one with masks that are not its own.
    assert found["few", 0]["held_out"] == found["few", 0]["own"]
    assert found["many", 0]["held_out"]["mlm_loss"] != found["many", 0]["own"]["mlm_loss"]
    assert "| 40 % |" in table and "| 84.5 |" in table and "those of one seed" in table

    (broken / "table.md").unlink()
    assert run(study, broken, render=True) == 0
    assert (broken / "table.md").read_text() == table
    longer = Given(pretraining=("--steps=7",))
    with pytest.raises(UserError, match=r"arm few: .*holds a run with different settings \(phases.0.steps: 6 → 7\)"):
        run(study, broken, given=longer)
    capsys.readouterr()


def test_a_table_that_cannot_be_written_costs_a_study_no_run(study, tmp_path, monkeypatch, caplog):
    """Only at the end, when there is nothing else left to do, is it the error of the command."""
    done = []
    monkeypatch.setattr(study_loop, "_run", lambda plan, run, *_: done.append(run.name))
    monkeypatch.setattr(study_loop.study_plan, "check_runs", lambda *_: {})
    monkeypatch.setattr(study_loop.study_plan, "show_plan", lambda *_: None)

    def full(*_):
        raise OSError(28, "No space left on device", "table.md")

    monkeypatch.setattr(study_loop, "write_report", full)
    with pytest.raises(OSError, match="No space left on device"):
        run(study, tmp_path / "work")
    assert done == ["few, seed 0", "many, seed 0"]
    assert caplog.text.count(f"{tmp_path}/work has no table of this run") == 1


@pytest.mark.slow
def test_it_ends_as_one_that_nothing_stopped(study, broken, tmp_path):
    whole = tmp_path / "whole"
    assert run(study, whole) == 0
    assert figures(broken) == figures(whole)
    assert (broken / "table.md").read_text() == (whole / "table.md").read_text()
    # Measured as if its masks were not the base's, the first arm has what its own training measured.
    plan = study_plan(study, StudyConfig(workdir=str(whole)), Given())
    measure_held_out(plan.runs[0].config, plan.base, jax.devices()[:1])
    (written,) = (whole / "runs/few").rglob("study_held_out.json")
    assert json.loads(written.read_text())["metrics"] == pytest.approx(figures(whole)["few", 0]["own"])


@pytest.mark.parametrize(
    "changes, words, message",
    [
        ({"options": {"masking.rat": 0.4}}, [], "arm a: unknown option masking.rat; perhaps you meant masking.rate"),
        ({"options": {"masking.rate.x": 0.4}}, [], "unknown option masking.rate.x"),
        ({"options": {"masking.rate": "much"}}, [], "arm a: masking.rate='much' must be of type float"),
        ({"options": {"masking.rate": 2.0}}, [], "arm a: masking.rate=2.0"),
        ({"task_options": {"epoch": 2}}, [], "arm a: unknown option epoch; perhaps you meant epochs"),
        ({"options": {"workdir": "x"}}, [], "arm a: workdir=x"),
        ({"options": {"masking.rate": 0.4}}, ["--masking.rate=0.2"], "masking.rate is what the arms differ in"),
        ({"options": {"steps": 4}}, ["--phases.0.steps=3"], "steps is what the arms differ in"),
        ({}, ["--step=2"], "unknown option --step"),
        ({}, ["--finetune.epoch=2"], "unknown option --epoch"),
    ],
    ids=["unknown", "below", "type", "value", "task", "place", "both", "short", "given", "finetune"],
)
def test_what_an_arm_cannot_be_is_refused_when_the_study_is_planned(study, changes, words, message):
    changed = dataclasses.replace(study, published=(), arms=(Arm(name="a", **changes),))
    with pytest.raises(UserError) as refused:
        study_plan(changed, StudyConfig(workdir="never"), given_words(words))
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"options": {"data.path": "nowhere"}}, "arm few: nowhere"),
        ({"options": {"data.path": ""}}, "arm few: --data.path is missing"),
        ({"tasks": {"topics": task_defaults("text")}}, "arm few: no data"),
        ({"task_data": "elsewhere"}, "arm few: topics: "),
    ],
    ids=["store", "no-store", "no-data", "files"],
)
def test_what_would_fail_an_hour_later_is_refused_before_anything_runs(study, tmp_path, changes, message):
    given = StudyConfig(workdir=str(tmp_path / "work"), task_data=changes.pop("task_data", ""))
    changed = dataclasses.replace(study, **changes)
    with pytest.raises(UserError) as refused:
        run_study(changed, given, devices=jax.devices()[:1])
    assert str(refused.value).startswith(message)
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"arms": (Arm(name="../x"),)}, "'../x' names a directory"),
        ({"arms": (Arm(name="few"), Arm(name="few"))}, "same name"),
        ({"arms": (Arm(name="few", tasks=("pos",)),), "published": ()}, "'pos', but the tasks are topics"),
        ({"arms": ()}, "at least one arm"),
        ({"seeds": 0}, "seeds=0"),
        ({"measures": (Measure(metric="accuracy", of="mnli"),)}, "'mnli'; expected one of held_out, own, topics"),
        ({"measures": (Measure(metric="mlm_loss", beside="QNLI"),)}, "'QNLI', which no published table"),
        ({"published": (Published(source="x", figures={"MNLI": {"most": 1.0}}),)}, "'most', which is no arm"),
    ],
    ids=["path", "twice", "tasks", "none", "seeds", "measure", "paper", "figure"],
)
def test_a_study_whose_parts_do_not_fit_is_refused(study, changes, message):
    with pytest.raises(UserError, match="(?s).*") as refused:
        check_study(dataclasses.replace(study, **changes))
    assert message in str(refused.value)


def test_arms_with_the_same_pre_training_share_it(study):
    arms = (Arm(name="a"), Arm(name="b", task_options={"epochs": 2}), Arm(name="c", options={"masking.rate": 0.4}))
    plan = study_plan(dataclasses.replace(study, arms=arms, published=()), StudyConfig(workdir="w", seeds=2), Given())
    assert [(run.arm.name, run.seed) for run in plan.runs] == [(arm, seed) for seed in (0, 1) for arm in "abc"]
    assert set(plan.pretrainings) == {f"w/runs/{arm}/seed_{seed}/pretraining" for seed in (0, 1) for arm in "ac"}
    assert plan.runs[1].tasks["topics"].init_from == "w/runs/a/seed_0/pretraining"
    assert plan.runs[1].tasks["topics"].workdir == "w/runs/b/seed_0/topics"


def test_studies_share_the_pre_trainings_of_a_directory_by_their_options(study):
    first = dataclasses.replace(study, arms=(Arm(name="a"), Arm(name="b", options={"masking.rate": 0.4})), published=())
    other = dataclasses.replace(first, arms=(Arm(name="c", options={"steps": 5}), Arm(name="d")))
    places = [
        [run.config.workdir for run in study_plan(each, StudyConfig(workdir=w, pretrainings="all"), Given()).runs]
        for each, w in ((first, "v"), (other, "w"))
    ]
    assert places[0][0] == places[1][1] and len({*places[0], *places[1]}) == 3
    assert all(place.startswith("all/") for place in (*places[0], *places[1]))


def test_an_arm_may_have_another_objective_and_its_place_is_named_by_what_differs_from_the_defaults():
    options = {"objective.generator.num_layers": 1, "objective.name": "replaced_tokens", "seed": 3}
    config = changed(Config(), options)
    assert config == Config(objective=ReplacedTokens(generator=GeneratorConfig(num_layers=1)), seed=3)
    digest = hashlib.sha256(json.dumps(options).encode()).hexdigest()
    assert _digest(config) == digest[:16]
    message = "num_layers=1 belongs to objective.name=replaced_tokens, not to .*masked_words"
    with pytest.raises(UserError, match=message):
        changed(Config(), {"objective.generator.num_layers": 1})


def test_an_option_that_an_arm_does_not_have_is_refused_and_named():
    study = load_study("objectives")
    given = Given(pretraining=("--objective.mlm_weight=0.5",))
    message = "arm left_to_right: --objective.mlm_weight=0.5 is for another model or objective"
    with pytest.raises(UserError, match=message):
        study_plan(study, StudyConfig(workdir="w", arms=("left_to_right",)), given)
    study_plan(study, StudyConfig(workdir="w", arms=("no_nsp",)), given)


@pytest.mark.parametrize("name", shipped_studies())
def test_every_shipped_study_can_be_planned(name):
    study = load_study(name)
    plan = study_plan(study, StudyConfig(workdir="w"), Given())
    assert len(plan.runs) == len(study.arms) * study.seeds


STUDY = Study(
    title="Rates",
    question="Which?",
    base="bert_study",
    arms=(Arm(name="a"), Arm(name="b"), Arm(name="c", label="the third")),
    measures=(Measure(metric="accuracy", beside="MNLI"),),
    published=(Published(source="a paper", figures={"MNLI": {"a": 1.0, "b": 3.0, "c": 2.0}}),),
)
STUDENT_4 = 2.7764451  # 97.5 % point of Student's t with 4 degrees of freedom, from tables


def test_differences_have_welchs_interval():
    # Variances of 1 and 4 in samples of 3: standard error √(1/3 + 4/3), and by Welch and Satterthwaite
    # (1/3 + 4/3)² / ((1/3)² / 2 + (4/3)² / 2) = 50 / 17 degrees of freedom. With equal variances there are 4.
    low, high = difference_interval((2.0, 3.0, 4.0), (1.0, 2.0, 3.0))
    assert low == pytest.approx(1 - STUDENT_4 * math.sqrt(2 / 3))
    assert high == pytest.approx(1 + STUDENT_4 * math.sqrt(2 / 3))
    low, high = difference_interval((2.0, 4.0, 6.0), (1.0, 2.0, 3.0))
    assert low + high == pytest.approx(4.0)
    # The t distribution with 50/17 degrees of freedom has its 97.5 % point between those with 2 and 3: 4.303 and 3.182.
    assert 3.182 < (high - low) / 2 / math.sqrt(5 / 3) < 4.303
    assert difference_interval((1.0, 1.0), (2.0, 2.0)) == (-1.0, -1.0)
    assert difference_interval((1.0,), (2.0, 3.0)) is None


def test_a_column_has_means_deviations_and_the_probability_of_chance():
    values = {"a": [1.0, 2.0, 3.0], "b": [2.0, 3.0, 4.0]}
    found = column(STUDY, "accuracy", values, "MNLI")
    assert (found.figures["b"].mean, found.figures["b"].deviation, found.figures["b"].difference) == (3.0, 1.0, 1.0)
    assert found.figures["a"].difference is None and found.figures["b"].told_apart is False
    # With two groups F = t² = 1.5. The t distribution with 4 degrees of freedom in closed form: with x = t² / 4,
    # P(|T| > t) = 1 − 3/4 · t / √(1 + x) · (1 − x / (3 · (1 + x)))
    t = math.sqrt(1.5)
    x = t**2 / 4
    chance = 1 - 3 / 4 * t / math.sqrt(1 + x) * (1 - x / (3 * (1 + x)))
    assert found.p_value == pytest.approx(chance)
    assert found.rank_correlation is None  # two arms have no order to speak of


def test_the_order_of_the_arms_is_compared_with_the_papers():
    values = {"a": [0.1], "b": [0.3], "c": [0.4]}
    # Ranks 1, 2, 3 against 1, 3, 2: 1 − 6 · (0 + 1 + 1) / (3 · 8) = 1/2
    assert column(STUDY, "accuracy", values, "MNLI").rank_correlation == pytest.approx(0.5)


def test_the_axis_of_the_picture_shows_its_numbers_whole():
    """Not 0.001 with +68.99 in a corner."""
    found = column(STUDY, "accuracy", {"a": [0.68991], "b": [0.68993]}, "MNLI")
    figure = draw_study(dataclasses.replace(STUDY, measures=STUDY.measures[:1], published=()), [found])
    figure.draw_without_rendering()
    (axis,) = (axes.xaxis for axes in figure.axes if axes.get_title(loc="left"))
    assert axis.get_offset_text().get_text() == "" and "68.99" in axis.get_ticklabels()[1].get_text()


def test_a_picture_has_panels_of_lines_over_the_same_places():
    """Losses of two widths at three rates in each of two panels, one of which is not there yet."""
    arms = [(kind, width, rate) for kind in ("plain", "scaled") for width in (8, 16) for rate in (0.001, 0.002, 0.004)]
    named = {f"{kind}_{width}_{rate:g}": (kind, width, rate) for kind, width, rate in arms}
    study = dataclasses.replace(
        STUDY,
        arms=tuple(Arm(name=name, x=x, line=f"{width} wide", panel=kind) for name, (kind, width, x) in named.items()),
        measures=(Measure(metric="mlm_loss", title="loss"),),
        published=(),
        axis="rate",
        log_axis=True,
    )
    losses = {name: [width + 1000 * rate] for name, (_, width, rate) in named.items() if name != "scaled_16_0.004"}
    figure = draw_study(study, [column(study, "loss", losses, "")])
    figure.draw_without_rendering()
    assert [panel.get_title(loc="left") for panel in figure.axes] == ["loss, plain", "loss, scaled"]
    for panel, last in zip(figure.axes, (3, 2), strict=True):
        lines = {
            line.get_label(): line.get_xydata().tolist() for line in panel.get_lines() if "wide" in line.get_label()
        }
        assert lines["8 wide"] == [[0.001, 9], [0.002, 10], [0.004, 12]] and len(lines["16 wide"]) == last
        assert [label.get_text() for label in panel.get_xticklabels()] == ["0.001", "0.002", "0.004"]
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()


def test_the_table_marks_what_seeds_do_not_tell_apart():
    found = column(STUDY, "accuracy", {"a": [0.5, 0.52], "b": [0.51, 0.53], "c": [0.9, 0.91]}, "MNLI")
    table = study_table(STUDY, [found], {}, "6 of 6 runs are done.")
    assert "| a | 51.00 ± 1.41 | 1.0 |" in table
    assert "| b | 52.00 ± 1.41 ≈ | 3.0 |" in table
    assert "| the third | 90.50 ± 0.71 | 2.0 |" in table
    assert "the arms differ by more than their seeds" in table
    alike = column(STUDY, "accuracy", {"a": [0.5, 0.52], "b": [0.51, 0.53]}, "MNLI")
    assert "not seen to differ by more than their seeds" in study_table(STUDY, [alike], {}, "")
    one = column(STUDY, "accuracy", {"a": [0.5], "b": [0.6]}, "MNLI")
    table = study_table(STUDY, [one], {"b, seed 0": "why"}, "")
    assert "| b | 60.00 | 3.0 |" in table and "| the third | – | 2.0 |" in table
    assert "may be chance" in table and "≈" not in table and "Failed: b, seed 0: why" in table
