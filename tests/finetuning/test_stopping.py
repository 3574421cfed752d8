"""When a run ends and by which metric its weights are chosen: patience, evaluations between epochs, `metrics=`."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest
from small_finetuning import MODEL, Killed, assert_same_weights, run_config
from small_pretraining import finetune

from bert_jax.errors import UserError
from bert_jax.finetuning import run
from bert_jax.finetuning.run import TaskSteps, exhausted
from bert_jax.tasks import task_data
from bert_jax.tasks.sentences import named_answers
from bert_jax.tokenization.tokenizer import load_tokenizer
from bert_jax.training.step import Program


def dev_of(*scores: float) -> dict:
    return {10 * number: {"metrics": {"f1": score}} for number, score in enumerate(scores, 1)}


@pytest.mark.parametrize(
    "scores, patience, expected",
    [
        ((), 1, False),
        ((0.5,), 1, False),
        ((0.5, 0.4), 1, True),
        ((0.5, 0.5), 1, True),  # no better
        ((0.5, 0.4), 2, False),
        ((0.5, 0.4, 0.6), 1, False),
        ((0.5, 0.4, 0.5), 2, True),
        ((0.4, 0.6, 0.5, 0.55, 0.6), 3, True),
        ((0.5, 0.4, 0.3, 0.2), 0, False),
    ],
)
def test_patience_is_a_function_of_the_recorded_evaluations(scores, patience, expected):
    assert exhausted(dev_of(*scores), "f1", patience) is expected


def test_the_loss_at_the_end_is_that_of_the_newest_epoch_that_came_to_its_half():
    def loss_after(last: int, resumed_at: int = 0) -> float:
        steps = TaskSteps(30, 5, lambda lengths: 0.0, epoch=10)
        for step in range(1, last + 1):
            if step == resumed_at:
                steps = TaskSteps(30, 5, lambda lengths: 0.0, json.loads(json.dumps(steps.totals)), epoch=10)
            steps.observe(step, {"loss": np.float32(step), "skipped": 0.0})
        return steps.tail_loss

    expected = {3: np.mean([1, 2, 3]), 10: np.mean(range(6, 11)), 13: np.mean(range(6, 11)), 30: np.mean(range(26, 31))}
    for last, mean in expected.items():
        assert loss_after(last) == loss_after(last, resumed_at=max(1, last - 3)) == mean
    assert TaskSteps(30, 5, lambda lengths: 0.0, epoch=10).epoch_of(20) == 2


@pytest.fixture
def scored(monkeypatch):
    """Accuracies on dev by step, whatever the weights."""
    values, evaluate_at = {15: 0.5, 20: 0.7, 30: 0.7, 40: 0.6, 60: 0.65}, run.RunTask._evaluate

    def evaluate(task, step, params):
        found = {"accuracy": values[step], "matthews": 0.0, "macro_f1": 0.0, "balanced_accuracy": 0.0}
        monkeypatch.setattr(run, "evaluate", lambda *_: (found, None))
        evaluate_at(task, step, params)

    monkeypatch.setattr(run.RunTask, "_evaluate", evaluate)


@pytest.mark.slow
def test_a_run_ends_when_its_patience_does_and_a_killed_one_at_the_same_step(pretrained, tmp_path, scored, monkeypatch):
    config = run_config(pretrained, tmp_path / "whole", epochs=6, select="best", patience=2, save_every_steps=7)
    result = finetune(config)
    (record,) = result.results["runs"]
    assert (record["step"], record["steps"], record["stopped_early"]) == (20, 60, True)
    assert result.results["stopped_early"] and [entry["epoch"] for entry in record["epochs"]] == [1, 2, 3]
    # The learning rate is that of all six epochs.
    (rows,) = pathlib.Path(config.workdir).glob("runs/*/metrics.jsonl")
    rates = [row["learning_rate"] for row in map(json.loads, rows.read_text().splitlines()) if "learning_rate" in row]
    assert len(rates) == 60 and rates[-1] > 0.4 * max(rates)
    call, seen = Program.__call__, []

    def interrupted(program, state, *rest):
        if hasattr(state, "step"):
            seen.append(int(state.step))
            if len(seen) == 47:
                raise Killed
        return call(program, state, *rest)

    monkeypatch.setattr(Program, "__call__", interrupted)
    config = dataclasses.replace(config, workdir=str(tmp_path / "killed"))
    with pytest.raises(Killed):
        finetune(config)
    again = finetune(config).results
    assert seen[-1] == 59 and seen[47] == 42
    assert again["runs"][0]["epochs"] == record["epochs"] and again["runs"][0]["step"] == 20
    assert_same_weights(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.slow
def test_evaluations_between_epochs_count_too(pretrained, tmp_path, scored):
    config = run_config(pretrained, tmp_path / "work", epochs=4, select="best", patience=2, evaluate_every_steps=15)
    (record,) = finetune(config).results["runs"]
    assert [entry["epoch"] for entry in record["epochs"]] == [0.75, 1, 1.5, 2]
    assert (record["step"], record["steps"]) == (20, 40)


def test_metrics_from_outside_get_names(pretrained):
    config = run_config(pretrained, "unused")

    data = task_data.read_task(config, MODEL, load_tokenizer(pretrained / "vocab.txt"))
    seen = []

    def share_of_harbour(answers, predictions):
        seen.append((answers[:2].tolist(), set(predictions.tolist())))
        return np.float32(np.mean(predictions == "harbour"))

    measured = data.measured_by({"share": share_of_harbour}, "share")
    assert measured.main_metric == "share" and data.main_metric == "accuracy"
    dev = measured.evaluations["dev"]
    logits = [np.float32([0, 1])] * len(dev.examples)
    scores = measured.scores(dev, dev.features, logits)
    assert list(scores)[-1] == "share" and scores["share"] == 1.0
    assert seen[0][0] == named_answers(dev.examples)[:2].tolist() and seen[-1][1] == {"harbour"}
    assert data.measured_by({"nan": lambda a, b: float("nan")}, "").scores(dev, dev.features, logits)["nan"] == 0.0
    for metrics, select_by, message in (
        ({}, "f1", "select_by='f1' is none of the metrics on dev, accuracy, matthews, macro_f1, balanced_accuracy"),
        ({"accuracy": share_of_harbour}, "", "metrics has 'accuracy', the name of one that text has already"),
        ({"wrong": lambda a, b: "high"}, "", "the metric 'wrong' returned 'high'; expected a number"),
        ({"odd": lambda a, b: a["x"]}, "", "the metric 'odd' raised IndexError: only integers"),
    ):
        with pytest.raises(UserError, match=message):
            data.measured_by(metrics, select_by)
    for task, metrics, message in (
        ("ner", {"mine": max}, "metrics belong to tasks on sentences .*, not to ner"),
        ("text", {"a b": max}, "metrics has 'a b'"),
        ("text", {"a": 3}, "metrics has 'a': 3; expected a name"),
        ("text", [max], "metrics=.* must be a dict"),
    ):
        with pytest.raises(UserError, match=message):
            task_data.check_metrics(task, metrics)
