"""Speedruns: which runs are due, the operations to a target, the loss that all arms share, and what is refused."""

import contextlib
import dataclasses
import functools
import json
import math
import os
import pathlib
import signal
import sys

import jax
import numpy as np
import numpy_bert
import processes
import pytest
from scipy import stats
from small_finetuning import FAST, sentences
from small_pretraining import run_config

from bert_jax.config import EvaluationConfig, OptimizerConfig, PhaseConfig
from bert_jax.config.finetuning import task_defaults
from bert_jax.config.options import to_dict
from bert_jax.config.presets import shipped_speedruns
from bert_jax.config.pretraining import resolve_phases
from bert_jax.config.studies import Measure, Share, Speedrun, SpeedrunArm, SpeedrunConfig, check_speedrun
from bert_jax.config.tasks import TaskDataConfig
from bert_jax.console import load_speedrun
from bert_jax.data.store import open_store
from bert_jax.errors import UserError
from bert_jax.ownership import Owner
from bert_jax.pretrained.model import load
from bert_jax.tools import speedrun as speedrun_loop
from bert_jax.tools import speedrun_report
from bert_jax.tools.speedrun import OUTCOME, run_speedrun
from bert_jax.tools.speedrun_plan import Crossing, Design, Progress, Run, scored_arms, speedrun_plan
from bert_jax.tools.speedrun_report import Outcome, mean, ratio, reached, standings, welch
from bert_jax.tools.study import write_picture
from bert_jax.tools.study_plan import Given, given_words, held_out_metrics
from bert_jax.training.optimizers import optimizer_flops, orthogonalized
from bert_jax.training_data import Examples, held_out_examples

LENGTHS = tuple(2 ** (power / 2) for power in range(-8, 5))
STUDENT_2, STUDENT_4 = 4.3026527, 2.7764451  # 97.5 % points of Student's t with 2 and 4 degrees of freedom, from tables


def simulated(design: Design, loss) -> tuple[Progress, list[Run]]:
    """Run a whole design whose losses are a function of the run; return what is known then, and the order."""
    losses, order = {}, []
    while due := Progress(design, losses).wanted():
        assert not set(due) & set(losses) and len(set(due)) == len(due)
        order.append(due[0])
        losses[due[0]] = loss(due[0])
    return Progress(design, losses), order


FASTER = {"bert": 1.0, "half": 2.0, "quarter": 4.0, "worse": 0.5, "never": 0.1}
BEST = {"bert": 2.0, "half": 4.0, "quarter": 4.0, "worse": 1.0, "never": 2.0}
ON = {"bert": "", "half": "bert", "quarter": "half", "worse": "quarter", "never": "bert"}


def closed_form(run: Run) -> float:
    """An arm that is k times faster has at length 1/k the loss of the reference at 1; seeds move it by 10 %."""
    seed = 1.1 ** (run.seed - 1)
    return 5.0 - math.log(run.length * FASTER[run.arm] * seed) + 0.3 * math.log(run.rate_factor / BEST[run.arm]) ** 2


def test_every_arm_is_run_at_its_best_rate_around_the_target_and_no_further():
    design = Design(ON, frozenset({"worse"}), (0.5, 1.0, 2.0), LENGTHS, (0, 1, 2))
    progress, order = simulated(design, closed_form)
    assert progress.target == pytest.approx(5.0)
    # Around the best rate of what they change: 2, 2 · 2, 4 · 1; "worse" has a rate of its own: 1 · 1.
    assert {arm: progress.rate_factor(arm) for arm in ON} == {
        "bert": 2.0,
        "half": 4.0,
        "quarter": 4.0,
        "worse": 1.0,
    } | {"never": 2.0}
    outcomes = {run: Outcome(closed_form(run), 0.0, 1e12 * run.length, 1, None) for run in order}
    for arm, factor in FASTER.items():
        for seed in range(3):
            crossing = progress.crossing(arm, seed)
            found = reached(crossing, outcomes, progress.target)
            if arm == "never":  # ten times as long as the reference, and the longest run is four
                assert crossing == Crossing(Run(arm, 2.0, 4.0, seed), None) and found is None
                continue
            assert crossing.after.length == pytest.approx(math.sqrt(2) * crossing.before.length)
            # The loss is linear in the logarithm of the length, so the interpolation is exact.
            assert found.flops == pytest.approx(1e12 / factor / 1.1 ** (seed - 1), rel=1e-9)
    # The way of the middle rate to the target, two other rates there, and the neighbours of two other seeds.
    assert len([run for run in order if run.arm == "quarter"]) <= 4 + 2 + 2 * 3
    assert all(run.length < 1 for run in order if run.arm == "half")
    assert max(run.length for run in order if run.arm == "quarter") == 0.5


def test_a_run_that_failed_counts_as_one_that_does_not_get_there():
    design = Design({"bert": "", "a": "bert"}, frozenset(), (1.0, 2.0), LENGTHS, (0,))
    fails = lambda run: (
        math.inf if run.arm == "a" and (run.rate_factor == 2 or run.length < 0.9) else 5 - math.log(run.length)
    )
    progress, order = simulated(design, fails)
    assert progress.rate_factor("a") == 1.0
    crossing = progress.crossing("a", 0)
    outcomes = {run: Outcome(fails(run), 0.0, run.length, 1, 2.0) for run in order if math.isfinite(fails(run))}
    assert crossing.after.length == 1.0 and reached(crossing, outcomes, progress.target).flops == 1.0
    # Without a rate that works, or a target, there is nothing more to run.
    for broken in ("a", "bert"):
        progress, order = simulated(design, lambda run: math.inf if run.arm == broken else 5 - math.log(run.length))
        tried = 3 if broken == "a" else 2  # "a" looks for the target with one rate below length 1
        assert progress.rate_factor(broken) is None and len([run for run in order if run.arm == broken]) == tried


def test_the_shortest_length_may_reach_the_target_and_scores_take_length_one():
    design = Design({"bert": "", "a": "bert"}, frozenset(), (1.0,), (0.5, 1.0), (0, 1), scores=frozenset({"bert", "a"}))
    loss = lambda run: 5.0 - (run.arm == "a") - math.log(run.length or 1e-9)
    progress, order = simulated(design, loss)
    assert progress.crossing("a", 1) == Crossing(None, Run("a", 1.0, 0.5, 1))
    assert {Run("a", 1.0, 1.0, seed) for seed in (0, 1)} <= set(order)
    assert {run for run in order if run.length == 0} == {Run("bert", 1e-6, 0.0, seed) for seed in (0, 1)}
    # Only arms that are asked for, and the reference.
    _, order = simulated(dataclasses.replace(design, scores=scored_arms(["bert", "a"], ["bert"])), loss)
    assert Run("bert", 1.0, 1.0, 1) in order and Run("a", 1.0, 1.0, 1) not in order
    assert scored_arms(["bert", "a", "b"], ["b"]) == {"bert", "b"} and not scored_arms(["bert", "a"], [])
    assert scored_arms(["bert", "a", "b"], ["all"]) == {"bert", "a", "b"}
    with pytest.raises(UserError, match="scores=c: no such arm runs; give all, or names among bert, a "):
        scored_arms(["bert", "a"], ["c"])


def test_means_and_ratios_are_geometric_with_intervals_of_student_and_welch():
    found = mean([1.0, 2.0, 4.0])  # logarithms 0, 1 and 2 of 2: deviation log 2
    half = STUDENT_2 * math.log(2) / math.sqrt(3)
    assert found.value == pytest.approx(2.0)
    assert found.interval == pytest.approx((2 * math.exp(-half), 2 * math.exp(half)), rel=1e-6)
    assert mean([3.0]).interval is None
    # Equal variances: Welch has 4 degrees of freedom, and t = log 2 / (log 2 · √(2/3)).
    both = ratio([2.0, 4.0, 8.0], [1.0, 2.0, 4.0])
    half = STUDENT_4 * math.log(2) * math.sqrt(2 / 3)
    assert both.value == pytest.approx(2.0)
    assert both.interval == pytest.approx((2 * math.exp(-half), 2 * math.exp(half)), rel=1e-6)
    t = math.sqrt(3 / 2)
    x = t**2 / 4  # the t distribution with 4 degrees of freedom in closed form
    assert both.p_value == pytest.approx(1 - 3 / 4 * t / math.sqrt(1 + x) * (1 - x / (3 * (1 + x))))
    assert ratio([2.0], [1.0, 3.0]).interval is None
    # Unequal variances: the degrees of freedom of Welch and Satterthwaite.
    few, many = [0.1, 0.7], [2.0, 2.2, 3.1, 5.0]
    of_few, of_many = np.var(few, ddof=1) / 2, np.var(many, ddof=1) / 4
    freedom = (of_few + of_many) ** 2 / (of_few**2 / 1 + of_many**2 / 3)
    t = abs(np.mean(few) - np.mean(many)) / math.sqrt(of_few + of_many)
    assert welch(few, many) == pytest.approx(2 * stats.t.sf(t, freedom))


def test_the_products_of_muon_are_those_of_its_program():
    shapes = ((3, 8, 4), (2, 4, 4))
    found = 0
    for shape in shapes:
        program = jax.make_jaxpr(orthogonalized)(np.zeros(shape, np.float32))
        for equation in program.eqns:
            if equation.primitive.name == "dot_general":
                (contracted, _), _ = equation.params["dimension_numbers"]
                inner = math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
                found += 2 * inner * math.prod(equation.outvars[0].aval.shape)
    table = {str(shape): Matrix(shape[1:], math.prod(shape)) for shape in shapes} | {"bias": Matrix(None, 7)}
    assert optimizer_flops(OptimizerConfig(name="muon"), table) == found > 0
    assert optimizer_flops(OptimizerConfig(), table) == 0


@dataclasses.dataclass
class Matrix:
    """What `optimizer_flops` asks of a parameter."""

    matrix: tuple[int, int] | None
    size: int


@pytest.fixture(scope="module")
def speedrun(small_store, tmp_path_factory) -> Speedrun:
    """A reference and two changes, with a task."""
    home = tmp_path_factory.mktemp("speedrun")
    phase = PhaseConfig(steps=8, sequence_length=32, batch_size=16, learning_rate=1e-2)
    config = run_config(small_store, "", phases=(phase,), evaluation=EvaluationConfig(every_steps=0, sequences=32))
    (home / "base.json").write_text(json.dumps(to_dict(config)))
    (home / "topics").mkdir()
    for name, text in {"train": sentences(64, 0), "dev": sentences(40, 1)}.items():
        (home / "topics" / f"{name}.tsv").write_text(text)
    options = FAST | {"epochs": 1, "data": TaskDataConfig(dir="topics")}
    return Speedrun(
        title="A short ladder",
        base=str(home / "base.json"),
        options={"warmup_steps": Share(0.25)},
        arms=(
            SpeedrunArm(name="bert"),
            SpeedrunArm(name="single", options={"data.sentence_pairs": "none", "masking.rate": 0.3}),
            SpeedrunArm(
                name="two",
                on="single",
                options={"optimizer.name": "muon"},
                phases=({"steps": Share(0.75), "sequence_length": 16, "batch_size": 32}, {"learning_rate": 5e-3}),
            ),
        ),
        rate_factors=(1.0,),
        lengths=(0.5, 1.0, 2.0),
        seeds=1,
        sequence_length=24,
        sequences=32,
        tasks={"topics": dataclasses.replace(task_defaults("text"), **options)},
        measures=(Measure(metric="accuracy", of="topics"),),
    )


def planned(speedrun: Speedrun, workdir="never", words: tuple[str, ...] = (), **options):
    options = SpeedrunConfig(workdir=str(workdir), **options)
    return speedrun_plan(speedrun, options, given_words(list(words)), jax.devices()[:1])


@pytest.fixture(scope="module")
def plan(speedrun):
    return planned(speedrun)


def test_a_length_is_a_number_of_operations_and_steps_are_shares_of_it(plan):
    whole = plan.flops(Run("bert", 1.0, 1.0, 0))
    reference = plan.config(Run("bert", 1.0, 2.0, 3))
    assert (reference.total_steps, reference.phases[0].warmup_steps, reference.seed) == (16, 4, 3)
    config = plan.config(Run("two", 0.5, 2.0, 0))
    first, second = config.phases
    assert first.steps == round(0.75 * config.total_steps) and first.warmup_steps == round(0.25 * config.total_steps)
    assert (first.learning_rate, second.learning_rate) == (0.5e-2, 2.5e-3)
    assert config.masking.rate == 0.3 and config.optimizer.name == "muon"  # what it takes from the arm that it changes
    # By hand: the steps of each phase, its rows, and the products of Muon in every step.
    model = plan.model(Run("two", 1.0, 1.0, 0))
    rows = [model.training_flops(16, 5) * 32, model.training_flops(32, 10) * 16]
    expected = first.steps * rows[0] + second.steps * rows[1]
    expected += config.total_steps * optimizer_flops(config.optimizer, model.parameters)
    assert plan.flops(Run("two", 0.5, 2.0, 0)) == expected
    assert expected == pytest.approx(2 * whole, rel=0.5 / config.total_steps * 2)
    assert plan.tokens(Run("two", 1.0, 2.0, 0)) == first.steps * 16 * 32 + second.steps * 32 * 16


def test_all_arms_are_measured_on_the_same_texts_with_the_same_masks(plan, small_store):
    batches = []
    for arm in plan.recipes:
        given = plan.common(plan.config(Run(arm, 1.0, 1.0, 7)))
        phase = resolve_phases(given)[-1]
        store = open_store(str(small_store))
        (held_out,) = held_out_examples(given, phase, [HeldOut("", store, "held_out")]).values()
        batches.append(held_out.batch(np.arange(16)))
    for other in batches[1:]:
        assert other.keys() == batches[0].keys()
        for name, array in other.items():
            np.testing.assert_array_equal(array, batches[0][name])
    assert batches[0]["input_ids"].shape == (16, 24) and not batches[0]["token_type_ids"].any()


@dataclasses.dataclass
class HeldOut:
    """A store of which documents are held out."""

    name: str
    store: object
    split: str


def test_the_common_loss_is_that_of_an_independent_evaluation(plan, finished):
    """Of a run on pairs at another length: NumPy's forward pass over the texts one by one, and its mean."""
    config, _ = finished
    given = plan.common(config)
    found = held_out_metrics(config.workdir, given, jax.devices()[:1])
    model, store = load(config.workdir), open_store(config.data.path)
    examples = Examples(store, given, dataclasses.replace(resolve_phases(given)[-1]), "held_out", seed=2019)
    batch = examples.batch(np.arange(32))
    logits = numpy_bert.forward(jax.device_get(model.params), model.config, batch)["mlm_logits"]
    words = np.log(numpy_bert.softmax(logits))
    right = np.take_along_axis(words, batch["masked_ids"][:, :, None], axis=-1)[:, :, 0]
    assert found["mlm_loss"] == pytest.approx(-(right * batch["masked_weights"]).sum() / batch["masked_weights"].sum())
    assert not {name for name in found if "sentence" in name}


class Killed(BaseException):
    """In place of kill -9."""


def test_a_table_says_of_how_many_seeds_it_knows_so_far(speedrun):
    plan = planned(speedrun, seeds=2, arms=("single",))

    def table(losses: dict[Run, float]) -> str:
        progress = Progress(plan.design, losses)
        outcomes = {run: Outcome(loss, 0.1, plan.flops(run), 1, None) for run, loss in losses.items()}
        return speedrun_report.speedrun_table(plan, progress, standings(plan, progress, outcomes), {}, {})

    _, order = simulated(plan.design, loss := lambda run: 5 - math.log(run.length) - (run.arm == "single") * 0.5)
    losses = {run: loss(run) for run in order}
    second = [run for run in order if run.arm == "single" and run.seed == 1]
    assert second and " so far" not in table(losses)
    reference, single = table({run: value for run, value in losses.items() if run not in second}).splitlines()[4:6]
    assert "single" in single and "; 1 of 2 seeds so far |" in single and " so far" not in reference


@pytest.fixture
def made_up(monkeypatch):
    """Pre-trainings that take no time: their common loss follows from the arm and the steps; returns those done."""
    done = []

    def pretrain(config, devices):
        place = pathlib.Path(config.workdir)
        place.mkdir(parents=True, exist_ok=True)
        (place / "run.json").write_text(json.dumps({"run_id": "x", "starts": [{}]}))
        done.append(config)
        return speedrun_loop_result

    def measured(workdir, given, devices):
        steps = done[-1].total_steps
        return {"mlm_loss": 6.0 - (done[-1].masking.rate == 0.3) - math.log(steps) / 2, "mlm_accuracy": 0.1}

    speedrun_loop_result = type("Result", (), {"exit_code": 0})()
    monkeypatch.setattr(speedrun_loop, "pretrain", pretrain)
    monkeypatch.setattr(speedrun_loop, "held_out_metrics", measured)
    monkeypatch.setattr(speedrun_report, "write_picture", lambda *_: None)
    return done


def run(speedrun: Speedrun, workdir: pathlib.Path, **options) -> int:
    home = pathlib.Path(speedrun.base).parent
    given = options.pop("given", Given())
    config = SpeedrunConfig(workdir=str(workdir), task_data=str(home), **options)
    return run_speedrun(speedrun, config, given, devices=jax.devices()[:1])


def test_a_speedrun_that_was_killed_resumes_and_others_take_what_nobody_has(
    speedrun, made_up, tmp_path, monkeypatch, capsys
):
    workdir, really = tmp_path / "work", speedrun_loop.held_out_metrics

    def killed(*given):
        if len(made_up) == 3:
            raise Killed
        return really(*given)

    monkeypatch.setattr(speedrun_loop, "held_out_metrics", killed)
    with pytest.raises(Killed):
        run(speedrun, workdir)
    monkeypatch.setattr(speedrun_loop, "held_out_metrics", really)
    before = {file: file.stat().st_mtime_ns for file in workdir.rglob(OUTCOME)}
    assert len(before) == 2
    # Another process has the run that is due, and ends while this one waits for it.
    home = workdir / "runs/single/rate_1/length_0.5/seed_0"
    home.mkdir(parents=True, exist_ok=True)
    owner, waited = Owner(home, "taken.json"), []

    def wait(seconds):
        waited.append(seconds)
        owner.release()

    monkeypatch.setattr(speedrun_loop.time, "sleep", wait)
    assert run(speedrun, workdir, arms=("single",)) == 0
    assert waited and all(file.stat().st_mtime_ns == at for file, at in before.items())
    table, results = (workdir / "table.md").read_text(), json.loads((workdir / "results.json").read_text())
    # The other arm has everywhere one nat less, so the shortest run reaches the target.
    assert "| single | bert | 0.01 | ≤ " in table and results["target"] == pytest.approx(6 - math.log(8) / 2)
    made = {(each["arm"], each["length"]) for each in results["runs"]}
    assert made == {("bert", 1.0), ("bert", 0.5), ("single", 0.5)}
    (workdir / "table.md").unlink()
    monkeypatch.setattr(speedrun_report, "write_picture", write_picture)
    assert run(speedrun, workdir, arms=("single",), render=True) == 0
    assert (workdir / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert (workdir / "table.md").read_text() == table and len(made_up) == 4
    capsys.readouterr()


def test_an_arm_that_never_gets_there_is_shown_as_such_and_a_failure_costs_no_other(
    speedrun, made_up, tmp_path, monkeypatch, capsys
):
    worse = SpeedrunArm(name="worse", options={"masking.rate": 0.4})
    small = dataclasses.replace(speedrun, arms=(speedrun.arms[0], worse, *speedrun.arms[1:2]))
    really, metrics = speedrun_loop.pretrain, speedrun_loop.held_out_metrics

    def failing(config, devices):
        if config.masking.rate == 0.3:
            raise RuntimeError("out of\nmemory")
        return really(config, devices)

    late = lambda workdir, given, devices: {
        name: value + 2 * ("worse" in workdir) for name, value in metrics(workdir, given, devices).items()
    }
    monkeypatch.setattr(speedrun_loop, "pretrain", failing)
    monkeypatch.setattr(speedrun_loop, "held_out_metrics", late)
    assert run(small, tmp_path / "work") == 1
    table = (tmp_path / "work/table.md").read_text()
    assert "| worse | bert | 0.01 | > 2 × (0 of 1 seeds reach it) |" in table
    assert "Failed: single, rate × 1, length 1, seed 0: out of memory" in table
    with pytest.raises(UserError, match=r"arm bert: .*holds a run with different settings"):
        pathlib.Path(tmp_path, "work/runs/bert/rate_1/length_1/seed_0/pretraining/checkpoints/step_000000008").mkdir(
            parents=True
        )
        monkeypatch.setattr(speedrun_loop, "check_continues", different)
        run(small, tmp_path / "work")
    capsys.readouterr()


def test_a_run_without_a_finite_loss_has_failed(speedrun, made_up, tmp_path, monkeypatch, capsys):
    metrics = speedrun_loop.held_out_metrics
    broken = lambda workdir, *given: metrics(workdir, *given) | ({"mlm_loss": math.nan} if "single" in workdir else {})
    monkeypatch.setattr(speedrun_loop, "held_out_metrics", broken)
    assert run(dataclasses.replace(speedrun, arms=speedrun.arms[:2]), tmp_path / "work") == 1
    table = (tmp_path / "work/table.md").read_text()
    assert "Failed: single, rate × 1, length 1, seed 0: its held-out loss is nan" in table
    capsys.readouterr()


def test_outcomes_of_other_options_or_stores_and_damaged_ones_are_refused(speedrun, made_up, tmp_path, capsys):
    """Also where no checkpoint of their runs is left."""
    short, work = dataclasses.replace(speedrun, arms=speedrun.arms[:2]), tmp_path / "work"
    assert run(short, work) == 0
    show = functools.partial(run, short, work, render=True)
    assert show() == 0
    for words, said in (
        ("--steps=9", "outcome.json has steps=8, which here would be 9: it was made with other options or stores"),
        ("--model.hidden_size=48", r"outcome.json has flops=\d+\.0, which here would be"),
    ):
        with pytest.raises(UserError, match=said):
            show(given=given_words([words]))
    file = next(work.rglob(OUTCOME))
    good = json.loads(file.read_text())
    for change, said in (
        ({"stores": good["stores"] | {"store_fingerprint": "0" * 64}}, "has stores=.*other options or stores"),
        ({"loss": math.nan}, "has loss=nan, which no run has: it is damaged; delete it"),
    ):
        file.write_text(json.dumps(good | change))
        with pytest.raises(UserError, match=said):
            show()
    file.write_text(json.dumps({name: value for name, value in good.items() if name != "stores"}))
    assert show() == 0  # of an earlier version
    with pytest.raises(UserError, match="nowhere is not there, so --render has nothing to show"):
        run(short, tmp_path / "nowhere", render=True)
    capsys.readouterr()


def test_tasks_without_data_are_refused_before_anything_runs(speedrun, made_up, tmp_path):
    with pytest.raises(UserError, match=f"arm bert: topics: .*{tmp_path}"):
        options = SpeedrunConfig(workdir=str(tmp_path / "work"), task_data=str(tmp_path), scores=("single",))
        run_speedrun(speedrun, options, Given(), devices=jax.devices()[:1])
    assert not made_up and not (tmp_path / "work").exists()


def different(config):
    raise UserError(f"{config.workdir} holds a run with different settings (phases.0.steps: 8 → 9)")


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"arms": ()}, "at least one arm, the reference"),
        ({"arms": (SpeedrunArm(name="../x"),)}, "'../x' names a directory"),
        ({"arms": (SpeedrunArm(name="a"), SpeedrunArm(name="a"))}, "same name"),
        ({"arms": (SpeedrunArm(name="a", options={"seed": 1}),)}, "is the reference and changes nothing"),
        ({"arms": (SpeedrunArm(name="a"), SpeedrunArm(name="b", on="c"))}, "changes 'c', which is no arm before it: a"),
        ({"lengths": (0.5, 2.0)}, "lengths=0.5,2 must include 1"),
        ({"lengths": (1.0, 0.5)}, "lengths=1,0.5 must be positive numbers, ascending"),
        ({"rate_factors": ()}, "rate_factors= must be positive"),
        ({"seeds": 0}, "seeds=0"),
        ({"measures": (Measure(metric="accuracy", of="mnli"),)}, "'mnli'; the tasks are topics"),
        (
            {"arms": (SpeedrunArm(name="a"), SpeedrunArm(name="b", phases=({"steps": 3}, {})))},
            "arm b: phase 0 has steps=3; expected a Share",
        ),
        (
            {"arms": (SpeedrunArm(name="a"), SpeedrunArm(name="b", phases=({"steps": Share(1.0)}, {})))},
            "leave no steps for the last one",
        ),
    ],
)
def test_a_speedrun_whose_parts_do_not_fit_is_refused(speedrun, changes, message):
    with pytest.raises(UserError) as refused:
        check_speedrun(dataclasses.replace(speedrun, **changes))
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "options, words, message",
    [
        ({"masking.rat": 0.3}, (), "arm a: unknown option masking.rat; perhaps you meant masking.rate"),
        ({"steps": 9}, (), "arm a: steps follows from the length of a run"),
        ({"masking.rate": 0.3}, ("--masking.rate=0.2",), "masking.rate is what the arms differ in"),
        ({}, ("--workdir=x",), "workdir=x: every run of a comparison starts afresh"),
        ({}, ("--branch_from=trunk:5",), "branch_from=trunk:5: every run of a comparison starts afresh"),
        ({"data.held_out": 0.2}, (), "arm a: data.held_out=0.2, where the reference has 0.1: all arms read the same"),
        ({"data.path": "nowhere"}, (), "arm a: data.path=nowhere, where the reference has "),
        ({"model.vocab_size": 99}, (), "arm a: model.vocab_size=99, but "),
        ({"objective.name": "left_to_right", "model.direction": "left_to_right", "model.pair_head": False}
         | {"data.sentence_pairs": "none"}, (), "arm a: objective.name=left_to_right does not predict masked words"),
        ({}, ("--data.path=",), "arm bert: "),
        ({"sequence_length": 16, "model.max_position_embeddings": 16}, (), "less than sequence_length=24 of the"),
    ],
    ids="unknown steps both place branch held-out texts vocabulary objective store length".split(),
)  # fmt: skip
def test_what_an_arm_cannot_be_is_refused_before_anything_runs(speedrun, tmp_path, options, words, message):
    arms = (speedrun.arms[0], SpeedrunArm(name="a", options=options))
    with pytest.raises(UserError) as refused:
        run(dataclasses.replace(speedrun, arms=arms), tmp_path / "work", given=given_words(list(words)))
    assert message in str(refused.value)
    assert not (tmp_path / "work").exists()


LEFT_TO_RIGHT = {"objective.name": "left_to_right", "model.direction": "left_to_right", "data.sentence_pairs": "none"}


def test_an_arm_is_measured_and_continued_as_its_last_phase_and_its_run_are(speedrun, tmp_path, monkeypatch):
    first = {"steps": Share(0.5)}
    arms = {
        "first": SpeedrunArm(name="first", phases=(first | LEFT_TO_RIGHT, {"model.hidden_dropout": 0.0})),
        "masked": SpeedrunArm(
            name="masked",
            options={"data.sentence_pairs": "none"},
            phases=(first, {"objective.name": "masked_diffusion"}),
        ),
        "last": SpeedrunArm(name="last", phases=(first, LEFT_TO_RIGHT)),
    }
    make = lambda *names: planned(dataclasses.replace(speedrun, arms=(speedrun.arms[0], *map(arms.get, names))))
    with pytest.raises(UserError, match="arm last: objective.name=left_to_right does not predict masked words"):
        make("last").check()
    plan, compared = make("first", "masked"), []
    monkeypatch.setattr(speedrun_loop, "check_continues", compared.append)
    run = Run("first", 1.0, 1.0, 0)
    values = {"loss": 1.0, "accuracy": 0.0, "flops": float(plan.flops(run)), "tokens": 1}
    speedrun_loop.Work(plan)._outcome(run, values, tmp_path)
    assert compared[0].model == dataclasses.replace(plan.config(run).model, vocab_size=200)  # as config.json has it
    assert plan.model(run).config.hidden_dropout == 0.0 < compared[0].model.hidden_dropout


@pytest.mark.parametrize("name", shipped_speedruns())
def test_every_shipped_speedrun_can_be_planned(name):
    found = load_speedrun(name)
    plan = speedrun_plan(found, SpeedrunConfig(workdir="w"), Given())
    assert list(plan.recipes) == [arm.name for arm in found.arms]
    # Without those between it and the reference, an arm has their changes all the same.
    last = found.arms[-1].name
    alone = speedrun_plan(found, SpeedrunConfig(workdir="w", arms=(last,)), Given())
    assert alone.design.arms == {found.arms[0].name: "", last: found.arms[0].name}
    assert alone.recipe_config(last, 1_000) == plan.recipe_config(last, 1_000)
    with pytest.raises(UserError, match="arms=none: this speedrun has no such arm; it has "):
        speedrun_plan(found, SpeedrunConfig(workdir="w", arms=("none",)), Given())


def work(speedrun: Speedrun, workdir: pathlib.Path, environment: dict[str, str], log: pathlib.Path) -> None:
    """Take part in a speedrun, as a process of its own."""
    written = os.open(log, os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(written, stream)
    os.environ.update(environment)
    seconds = float(environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", seconds)
    speedrun_loop.WAIT_SECONDS = 0.1
    sys.exit(run(speedrun, workdir, arms=("two",)))


def has_begun(workdir: pathlib.Path, pid: int | None) -> bool:
    """Whether a process is pre-training."""
    for file in workdir.rglob("taken.json"):
        with contextlib.suppress(ValueError, FileNotFoundError):
            if json.loads(file.read_text())["pid"] == pid and (file.parent / "pretraining/run.json").exists():
                return True
    return False


@pytest.mark.slow
def test_two_processes_make_what_one_makes_though_one_of_them_is_killed(speedrun, tmp_path, capsys):
    """Kill -9 ends one in the middle of a run, which the other goes on with, and with all others."""
    whole, shared = tmp_path / "whole", tmp_path / "shared"
    logs = [tmp_path / f"{number}.log" for number in range(2)]
    make = processes.forks("forked_run").Process
    places = [processes.one_device(killed=log == logs[0]) for log in logs]
    both = [make(target=work, args=(speedrun, shared, *each)) for each in zip(places, logs, strict=True)]
    first, second = both
    try:
        first.start()
        processes.wait_until(lambda: has_begun(shared, first.pid), first.is_alive, logs[0].read_text)
        second.start()
        os.kill(first.pid, signal.SIGKILL)
        second.join(processes.SECONDS)
        assert (second.exitcode, first.exitcode) == (0, -signal.SIGKILL), logs[1].read_text()
    finally:
        for process in both:
            if process.pid is not None:
                process.kill()
                process.join()
    assert run(speedrun, whole, arms=("two",), scores=("all",)) == 0

    def figures(workdir):
        runs = json.loads((workdir / "results.json").read_text())["runs"]
        return {(each["arm"], each["length"]): {name: each[name] for name in ("loss", "accuracy")} for each in runs}

    assert figures(shared).keys() >= {("bert", 1.0), ("two", 1.0)} and figures(shared).items() <= figures(whole).items()
    runs = json.loads((whole / "results.json").read_text())["runs"]
    assert all(each["scores"]["topics"].keys() for each in runs if each["length"] == 1)
    assert "| topics accuracy |" in (whole / "table.md").read_text()
    capsys.readouterr()
