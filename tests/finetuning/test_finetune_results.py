"""What surrounds the loop of a task: the plan of a grid, learning rates, collapsed runs, the table of results."""

import dataclasses
import json
import math
import re

import numpy as np
import pytest
from etils import epath

from bert_jax.cli import _run
from bert_jax.config import HeadConfig, ScheduleConfig
from bert_jax.config.finetuning import SquadOptions, task_defaults
from bert_jax.data.sequences import Features
from bert_jax.errors import UserError
from bert_jax.finetuning.plan import Run, check_length, collapsed, ignores_input, learning_rates, plan
from bert_jax.finetuning.results import METRICS, _cell, earlier_predictions, finished_runs, summary
from bert_jax.tasks.squad import SpanFeatures


def test_the_plan_is_the_papers_grid_and_every_seed():
    config = dataclasses.replace(task_defaults("mrpc"), grid=True, seeds=2, seed=7)
    runs = plan(config)
    assert len(runs) == len({run.name for run in runs}) == 2 * 2 * 4 * 3
    assert {run.batch_size for run in runs} == {16, 32} and {run.epochs for run in runs} == {2, 3, 4}
    assert {run.seed for run in runs} == {7, 8} and {run.learning_rate for run in runs} == {5e-5, 4e-5, 3e-5, 2e-5}
    assert plan(dataclasses.replace(config, grid=False, seeds=1)) == [Run(16, 3e-5, 4, 7)]


def test_a_cooldown_that_the_shortest_run_has_no_room_for():
    config = dataclasses.replace(
        task_defaults("mrpc"), grid=True, schedule=ScheduleConfig(name="constant", cooldown_steps=90)
    )
    check_length(config, 1600)  # two epochs of 50 steps, 10 of them warm-up
    with pytest.raises(
        UserError, match=r"cooldown_steps=90 and warmup_share=0.1 do not fit into the 98 steps of batch32_.*epochs2"
    ):
        check_length(config, 1568)


@pytest.mark.parametrize(
    "name, after_warmup",
    [("linear", lambda step: 1 - step / 20), ("linear_after_warmup", lambda step: (20 - step) / 18)],
)
def test_learning_rates_rise_and_fall_by_the_schedule(name, after_warmup):
    rates = learning_rates(Run(8, 2e-5, 1, 0), ScheduleConfig(name=name), 0.1, 20)
    np.testing.assert_allclose(rates, [0, 1e-5, *(2e-5 * after_warmup(s) for s in range(2, 20))], rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("count, said", [(1, "of 1 run,"), (2, "of 2 runs,")])
def test_results_say_of_how_many_runs_the_best_was_chosen(count, said):
    records = [
        {"run": f"seed{seed}", "setting": "a", "seed": seed, "metrics": {"accuracy": 0.5}, "collapsed": None}
        | {"hyperparameters": {}}
        for seed in range(count)
    ]
    assert summary(task_defaults("sst2"), records, "accuracy", {})["chosen"]["by"] == (
        f"highest accuracy on dev {said} weights after the last epoch"
    )


def features_of(labels, lengths=4):
    ids = [np.zeros(lengths, np.int32)] * len(labels)
    return Features(ids, ids, labels, np.arange(len(labels)), 8)


@pytest.mark.parametrize(
    "best, metrics, message",
    [
        (
            [(0, 0), (0, 0)],
            {"f1": 0.1},
            None,
        ),  # windows of 1.1 without the answer; the answers are read beside [CLS], and differ
        ([(3, 4), (2, 3)], {"f1": 0.1}, "every prediction is tokens 1 to 2 of the window"),
        ([(3, 4), (3, 4)], {"f1": 0.1}, None),
        (
            [(3, 4), (2, 3)],
            {"HasAns_f1": 0.0, "NoAns_f1": 1.0},
            "every question is left unanswered",
        ),  # by the threshold
        ([(0, 0), (0, 0)], {"HasAns_f1": 0.1, "NoAns_f1": 0.9}, None),
    ],
)
def test_collapse_of_answers_in_windows(best, metrics, message):
    """Two windows after two tokens and after one; each has its own best start and end, and other second bests in it."""
    scores = [np.zeros((7, 2), np.float32) for _ in best]
    for row, (start, end), second in zip(scores, best, (2, 5)):
        row[start, 0] = row[end, 1] = 2
        row[second] += 1
    columns = {
        name: getattr(features_of(np.array(best), 7), name)
        for name in ("input_ids", "token_type_ids", "labels", "example")
    }
    dev = SpanFeatures(
        **columns,
        max_length=8,
        prefix=np.array([2, 1]),
        suffix=1,
        first=np.zeros(2, int),
        contexts=[],
        options=SquadOptions(),
    )
    assert ignores_input(HeadConfig(kind="span"), dev, scores, metrics) == message


@pytest.mark.parametrize(
    "kind, labels, scores, loss, message",
    [
        ("classification", np.array([0, 1, 1, 0]), [[1, 0], [0, 1], [0, 1], [1, 0]], 0.1, None),
        ("classification", np.array([0, 1, 1, 0]), [[0, 1]] * 4, 0.5, "every prediction is 'yes'"),
        ("classification", np.array([0, 1, 1, 0]), [[1, 0], [0, 1], [0, 1], [1, 0]], 0.6930, "0.6931 without reading"),
        (
            "classification",
            np.array([0, 1, 1, 1]),
            [[0, 1], [0, 1], [0, 1], [1, 0]],
            0.3,
            "not above the share of .* 0.75",
        ),
        (
            "classification",
            np.repeat([0, 1], [40, 80]),
            [[1, 0]] * 80 + [[0, 1]] * 40,
            0.3,
            None,
        ),  # Matthews 0.5, accuracy 2/3
        ("classification", np.array([0, 1, 1, 0]), [[1, 0], [0, 1], [0, 1], [1, 0]], float("nan"), "loss"),
        ("regression", np.array([0.0, 5.0, 2.0]), [0.1, 4.0, 2.0], 0.2, None),
        ("regression", np.array([0.0, 5.0, 2.0]), [2.3, 2.3, 2.3], 0.2, "every prediction is 2.300"),
        ("choice", np.array([2, 1]), [[0, 0, 1], [0, 0, 1]], 0.2, "candidate 2"),
        ("tagging", [np.array([-1, 0, 1, -1])] * 2, [np.eye(4, 2)[[1, 0, 0, 1]]] * 2, 0.2, "every prediction is 'no'"),
    ],
)
def test_collapse_is_named(kind, labels, scores, loss, message):
    head = HeadConfig(kind=kind, labels=("no", "yes") if kind in ("classification", "tagging") else ())
    dev = features_of(labels)
    ignored = ignores_input(head, dev, [np.asarray(row, np.float32) for row in scores], {})
    found = collapsed(head, dev, ignored, loss, 0)
    if message is None:
        assert found is None
    else:
        assert re.search(message, found)
    assert "3 steps" in collapsed(head, dev, ignored, loss, 3)


def test_table_of_results_beside_the_papers(tmp_path, capsys):
    for model, value in (("ours", 0.8), ("random", 0.6)):
        for task, metric in (("sst2", "accuracy"), ("squad_v1", "f1")):
            place_ = tmp_path / model / task
            place_.mkdir(parents=True)
            mean = {metric: value, **({"exact_match": value - 0.1} if task == "squad_v1" else {})}
            setting = {"mean": mean, "standard_deviation": dict.fromkeys(mean, 0.01), "runs": 3, "collapsed": 0}
            place_.joinpath("results.json").write_text(
                json.dumps({"task": task, "init_from": "x", "random_weights": model == "random", "settings": [setting]})
            )
    assert (
        _run(["bert-jax", "results", str(tmp_path / "ours"), str(tmp_path / "random"), f"--output={tmp_path / 'out'}"])
        == 0
    )
    text = (tmp_path / "out" / "results_table.md").read_text()
    assert text in capsys.readouterr().out + "\n"
    lines = text.splitlines()
    assert lines[0] == "| model |  | sst2 (accuracy) | squad_v1 (exact_match/f1) |"
    assert lines[2] == "| ours | measured, dev | 80.0 ± 1.0 (3 runs) | 70.0/80.0 ± 1.0 (3 runs) |"
    assert lines[4] == "| BERT-base | published, GLUE test; others dev | 93.5 | 80.8/88.5 |"
    assert [_cell({"pearson": 50.0}, METRICS["text"]), _cell({}, METRICS["ax"])] == ["50.0", "–"]
    assert json.loads((tmp_path / "out" / "results_table.json").read_text())[1]["tasks"]["sst2"]["accuracy"] == 60
    ours, random = str(tmp_path / "ours"), str(tmp_path / "random")
    assert _run(["bert-jax", "results", ours, random, f"--gain_over={random}/"]) == 0
    assert "\n| ours | gain, over random | +20.0 | +20.0/+20.0 |\n" in capsys.readouterr().out
    assert _run(["bert-jax", "results", ours, f"--gain_over={random}"]) == 2
    assert f"--gain_over={random} is not among the directories given: {ours}" in capsys.readouterr().err
    assert _run(["bert-jax", "results", "--output=x", ours]) == 2
    assert (
        _run(["bert-jax", "results", str(tmp_path / "ours/sst2"), str(tmp_path / "random/sst2")]) == 0
    )  # once both "sst2"
    assert f"\n| {tmp_path / 'ours/sst2'} | measured, dev | 80.0 ± 1.0 (3 runs) |\n" in capsys.readouterr().out
    (tmp_path / "ours" / "sst2" / "results.json").write_text("{")
    assert _run(["bert-jax", "results", str(tmp_path / "ours")]) == 2
    assert _run(["bert-jax", "results", str(tmp_path / "out")]) == 2


def test_results_of_one_task_have_a_row_each(tmp_path, capsys):
    """Beside the row of the tasks that occur once; each is compared with the row that gain_over names."""
    for name, task, value in (("sst2", "sst2", 0.8), ("sst2_grid", "sst2", 0.9), ("cola", "cola", 0.5)):
        (tmp_path / "runs" / name).mkdir(parents=True)
        metric = METRICS[task][0]
        setting = {"mean": {metric: value}, "standard_deviation": {metric: None}, "runs": 1, "collapsed": 0}
        (tmp_path / "runs" / name / "results.json").write_text(
            json.dumps({"task": task, "init_from": "x", "random_weights": False, "settings": [setting]})
        )
    assert _run(["bert-jax", "results", f"{tmp_path / 'runs'}/", f"--gain_over={tmp_path / 'runs/sst2'}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| model |  | sst2 (accuracy) | cola (matthews) |"
    assert lines[2:6] == [
        "| runs | measured, dev | – | 50.0 |",
        "| runs/sst2 | measured, dev | 80.0 | – |",
        "| runs/sst2_grid | measured, dev | 90.0 | – |",
        "| runs/sst2_grid | gain, over runs/sst2 | +10.0 | – |",
    ]


DAMAGED = {
    "{": "is not JSON",
    "[" * 100_000: "is not JSON: nested too deeply",
    '{"run": ' * 100_000: "is not JSON: nested too deeply",
    "{}": "has run=None",
    '{"seed": "1"}': "has seed='1'",
    '{"metrics": 3}': "has metrics=3",
    '{"run": "other"}': "is that of the run 'other'",
    '{"run": "../../.."}': r"is that of the run '\.\./\.\./\.\.'",
    '{"metrics": {}}': "has no 'accuracy' among its metrics",
    '{"metrics": {"accuracy": "high"}}': "has metrics=",
    '{"metrics": {"accurac": 0.5}}': "has no 'accuracy' among its metrics",
    '{"collapsed": 3}': "has collapsed=3",
    '{"hyperparameters": null}': "has hyperparameters=None",
}


@pytest.mark.parametrize("text", DAMAGED, ids=lambda text: text[:40])
def test_a_damaged_record_of_a_run_is_named(tmp_path, text):
    record = {
        "run": "a",
        "setting": "a",
        "seed": 0,
        "metrics": {"accuracy": 0.5},
        "collapsed": None,
        "step": 3,
        "keep": "best",
        "hyperparameters": {},
    }
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(json.dumps(record | {"run": name}))
    assert [found["run"] for found in finished_runs(epath.Path(tmp_path), "accuracy")] == ["a", "b"]
    whole = text.endswith("}") and text != "{}"
    (tmp_path / "b" / "results.json").write_text(
        json.dumps(record | {"run": "b"} | json.loads(text)) if whole else text
    )
    with pytest.raises(UserError, match=f"b/results.json {DAMAGED[text]}") as caught:
        finished_runs(epath.Path(tmp_path), "accuracy")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


SETTING = {"mean": {"accuracy": 0.5}, "standard_deviation": {"accuracy": None}, "runs": 1, "collapsed": 0}


@pytest.mark.parametrize(
    "changes",
    [
        {"task": []},
        {"task": "x" * 100_000},
        {"settings": {}},
        {"settings": [[]]},
        "[" * 100_000,
        '{"task": ' * 100_000,
        *(
            {"settings": [SETTING | change]}
            for change in (
                {"mean": {"accuracy": "high"}},
                {"mean": []},
                {"standard_deviation": 3},
                {"standard_deviation": {"accuracy": []}},
                {"runs": None},
                {"runs": math.inf},
                {"runs": math.nan},
            )
        ),
    ],
    ids=lambda changes: str(changes)[:40],
)
def test_damaged_results_are_one_line(tmp_path, capsys, changes):
    content = {"task": "sst2", "init_from": "x", "random_weights": False, "settings": [SETTING]}
    (tmp_path / "results.json").write_text(json.dumps(content))
    assert _run(["bert-jax", "results", str(tmp_path)]) == 0
    capsys.readouterr()
    (tmp_path / "results.json").write_text(changes if isinstance(changes, str) else json.dumps(content | changes))
    assert _run(["bert-jax", "results", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {tmp_path}/results.json ") and error.count("\n") == 1 and len(error) < 500


@pytest.mark.parametrize(
    "changes",
    [
        {"chosen": 3},
        {"chosen": {}},
        {"tests": []},
        {"tests": {"test": {"accuracy": "high"}}},
        {"predictions": {"test_fingerprint": "t", "files": [3]}},
        {"predictions": None},
        None,
    ],
)
def test_predictions_that_damaged_results_speak_of_are_made_again(tmp_path, changes):
    content = {
        "chosen": {"run": "a"},
        "metrics": {"accuracy": 0.5},
        "tests": {"test": {"accuracy": 0.25}},
        "predictions": {"test_fingerprint": "t", "files": ["test/x.tsv"]},
    }
    file = epath.Path(tmp_path) / "results.json"
    assert earlier_predictions(file) is None
    file.write_text(json.dumps(content | {"settings": []}))
    assert earlier_predictions(file) == {
        "run": "a",
        **{name: value for name, value in content.items() if name != "chosen"},
    }
    file.write_text("{" if changes is None else json.dumps(content | changes))
    assert earlier_predictions(file) is None
