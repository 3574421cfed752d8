"""Results of fine-tuning, their work directory, and ensembles."""

import dataclasses
import json
import math
import pathlib
import re
import shutil
import types

import jax
import numpy as np
import pytest
from command_lines import status, succeed
from etils import epath
from pretrained_model import TOKENIZER
from processes import EXHAUSTIVE
from scipy.special import softmax
from small_finetuning import MODEL, Killed, run_config, sentences
from small_pretraining import finetune, run_predict

import bert_jax
from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.config import ComputeConfig, HeadConfig, ModelConfig, ScheduleConfig
from bert_jax.config.finetuning import FinetuneConfig, PredictConfig, task_defaults
from bert_jax.config.options import from_record, to_dict
from bert_jax.config.pretraining import NoiseConfig
from bert_jax.config.tasks import TASKS, SentenceOptions, SquadOptions, TextDataConfig
from bert_jax.data.sequences import Features
from bert_jax.devices import sharding
from bert_jax.errors import UserError
from bert_jax.finetuning import loop, prediction
from bert_jax.finetuning import run as one_run
from bert_jax.finetuning.plan import Run, check_length, collapsed, ignores_input, learning_rates, plan
from bert_jax.finetuning.programs import average, fitting_head, member_logits
from bert_jax.finetuning.results import METRICS, _cell, best, earlier_predictions, finished_runs, show_together, summary
from bert_jax.formats.opening import open_stored, place
from bert_jax.formats.stored import StoredModel
from bert_jax.tasks import squad, squad_files
from bert_jax.tasks.squad import SpanFeatures
from bert_jax.tasks.task_data import Split, _fingerprint, read_task
from bert_jax.tokenization.tokenizer import load_tokenizer
from bert_jax.training.reporter import Reporter


def test_the_plan_is_the_papers_grid_and_every_seed():
    config = dataclasses.replace(task_defaults("mrpc"), grid=True, seeds=2, seed=7)
    runs = plan(config)
    assert len(runs) == len({run.name for run in runs}) == 2 * 2 * 4 * 3
    assert {run.batch_size for run in runs} == {16, 32} and {run.epochs for run in runs} == {2, 3, 4}
    assert {run.seed for run in runs} == {7, 8} and {run.learning_rate for run in runs} == {5e-5, 4e-5, 3e-5, 2e-5}
    assert plan(dataclasses.replace(config, grid=False, seeds=1)) == [Run(16, 3e-5, 4, 7)]


FOLDS = dataclasses.replace(
    task_defaults("text"), data=TextDataConfig(train="a", folds=3), seeds=2, grid=True, grid_epochs=(1,)
)


def record(run: Run, accuracy: float) -> dict:
    parts = {"fold": run.fold, "folds": run.folds} if run.folds else {}
    own = {"run": run.name, "setting": run.setting, "seed": run.seed, "step": 1, "keep": "best", **parts}
    return own | {"metrics": {"accuracy": accuracy}, "hyperparameters": {}, "collapsed": None}


def test_a_cross_validation_has_a_run_per_part_and_the_highest_mean_wins():
    runs = plan(FOLDS)
    assert len(runs) == len({run.name for run in runs}) == 2 * 8 * 3
    assert runs[1].name == "batch16_rate5e-05_epochs1_folds3_seed0_fold2"
    assert len({run.setting for run in runs}) == 8 and "folds" not in plan(task_defaults("text"))[0].name
    assert runs[0].of(FOLDS).seed == 0 and runs[0].of(FOLDS).data == FOLDS.data
    first, second, unfinished = (
        [record(Run(16, rate, 1, seed, fold, 3), accuracy) for fold, accuracy in enumerate(figures, 1)]
        for rate, seed, figures in ((1e-3, 0, (0.9, 0.3, 0.6)), (2e-3, 0, (0.7, 0.8, 0.6)), (2e-3, 1, (1.0, 1.0)))
    )
    assert best([*first, *second, *unfinished], "accuracy") is second[1], "not the best part of all"
    found = summary(FOLDS, [*first, *second], "accuracy", {})
    assert found["settings"][0]["mean"]["accuracy"] == pytest.approx(0.7)
    assert found["settings"][0]["standard_deviation"]["accuracy"] == pytest.approx(0.1)
    assert "among the 3 folds whose mean is the highest of 6 runs" in found["chosen"]["by"]


def test_weights_of_parts_are_kept_while_their_mean_may_win(tmp_path):
    low = [record(Run(16, 1e-3, 1, 0, fold, 2), accuracy) for fold, accuracy in ((1, 0.9), (2, 0.1))]
    high = [record(Run(16, 2e-3, 1, 0, 1, 2), 0.6)]
    for each in (*low, *high):
        place = tmp_path / "runs" / each["run"]
        (place / "checkpoints").mkdir(parents=True)
        (place / "results.json").write_text(json.dumps(each))
    one_run.drop_losers(types.SimpleNamespace(path=epath.Path(tmp_path)), "accuracy")
    assert {path.parent.name for path in tmp_path.glob("runs/*/checkpoints")} == {low[0]["run"], high[0]["run"]}
    for fold in (0, 3, True, "1", None):
        (place / "results.json").write_text(json.dumps(each | {"fold": fold}))
        with pytest.raises(UserError, match="results.json has fold=.* of folds=2, so it is not the record of this run"):
            finished_runs(epath.Path(tmp_path) / "runs", "accuracy")


def test_every_example_is_predicted_out_of_fold(pretrained, tmp_path):
    """From the scores of three runs to one file, in the order of the examples; with the clean texts."""
    noisy = dataclasses.replace(run_config(pretrained, "w"), noise=NoiseConfig(rate=0.5), data=FOLDS.data)
    rows = [(f"{topic} {number}", topic) for number in range(12) for topic in ("garden", "harbour")]
    task = read_task(noisy, MODEL, load_tokenizer(pretrained / "vocab.txt"), {"train": rows})
    assert task.evaluations == {} and task.fewest_sequences == 16
    for number in range(3):
        fold = task.fold(number)
        assert len(fold.train.examples) == 16 and fold.evaluations["dev"].features.labels.sum() == 4
        dev = fold.evaluations["dev"]
        assert {
            (text, dev.examples.labels[answer]) for text, answer in zip(dev.examples.first, dev.examples.answers)
        } == {rows[place] for place in np.flatnonzero(task.parts == number)}
        assert not {text for text, _ in rows} >= set(fold.train.examples.first), "which have spelling errors"
        scores = np.array([[number, answer] for answer in dev.examples.answers], np.float32)
        run = Run(16, 1e-3, 1, 0, number + 1, 3)
        (tmp_path / "runs" / run.name).mkdir(parents=True)
        np.save(tmp_path / "runs" / run.name / one_run.SCORES, scores.reshape(-1))
    other = dataclasses.replace(task, parts=task.parts * 0)  # of a later command, which has other parts
    found = loop.out_of_fold(epath.Path(tmp_path), types.SimpleNamespace(data=other), record(run, 0.0))
    lines = (tmp_path / "predictions" / found["files"][0]).read_text().splitlines()[1:]
    assert [line.split("\t")[0] for line in lines] == [str(number) for number in range(24)]
    predicted = [line.split("\t")[1] for line in lines]
    expected = [
        "harbour" if task.parts[place] == 0 and topic == "harbour" else "garden"
        for place, (_, topic) in enumerate(rows)
    ]
    assert predicted == expected
    assert found["metrics"]["accuracy"] == np.mean([name == topic for name, (_, topic) in zip(predicted, rows)])
    for damaged in (scores[:-1].reshape(-1), scores, scores[0, 0]):
        np.save(tmp_path / "runs" / run.name / one_run.SCORES, damaged)
        with pytest.raises(UserError, match="fold3/scores.npy is gone or damaged; remove .*fold3 to train that run"):
            loop.out_of_fold(epath.Path(tmp_path), types.SimpleNamespace(data=task), record(run, 0.0))


def test_a_tenth_is_held_out_where_that_is_enough(pretrained):
    config, tokenizer = (
        run_config(pretrained, "w", data=TextDataConfig(train="a")),
        load_tokenizer(pretrained / "vocab.txt"),
    )
    rows = [(f"{topic} {number}", topic) for number in range(50) for topic in ("garden", "harbour")]
    task = read_task(config, MODEL, tokenizer, {"train": rows})
    assert task.held_out == 0.1 and len(task.evaluations["dev"].examples) == 10
    assert task.evaluations["dev"].examples.answers.sum() == 5
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, stratified=True))
    said = "10 of 100 training examples are held out (data.dev_share=0.1, the same share of every class;"
    assert said in loop._held_out(config, task)
    dev = task.evaluations["dev"]
    several = dataclasses.replace(dev, examples=dataclasses.replace(dev.examples, several=True))
    several = dataclasses.replace(task, evaluations={"dev": several})
    assert "(data.dev_share=0.1; equal texts" in loop._held_out(config, several)  # sets of labels are too many
    with pytest.raises(UserError, match="every training example has the weight 0: there is nothing to learn"):
        weighed = [{"text": text, "label": topic, "w": 0} for text, topic in rows]
        data = TextDataConfig(train="a", weight_column="w")
        read_task(dataclasses.replace(config, data=data), MODEL, tokenizer, {"train": weighed})
    with pytest.raises(UserError, match="a tenth of 90 training examples is too few .*dev_share=0.3 .*--data.folds=5"):
        read_task(config, MODEL, tokenizer, {"train": rows[:90]})
    asked = dataclasses.replace(config, data=TextDataConfig(train="a", dev_share=0.2))
    assert len(read_task(asked, MODEL, tokenizer, {"train": rows[:20]}).evaluations["dev"].examples) == 4
    with pytest.raises(UserError, match="data.folds=2 scores every training example, so the dev data of data.dir="):
        read_task(
            run_config(pretrained, "w", data=TextDataConfig(dir=str(pretrained / "data"), folds=2)), MODEL, tokenizer
        )
    asked = dataclasses.replace(config, data=TextDataConfig(train="a", dev="b"))
    pairs = [((one, one), label) for one, label in rows[:20]]
    with pytest.raises(UserError, match="examples are single texts, and those of dev are pairs; .*pair_column"):
        read_task(asked, MODEL, tokenizer, {"train": rows[:20], "dev": pairs})


def test_runs_of_earlier_versions_keep_their_random_part():
    """A record of 0.1.0 says nothing of classes; one that is begun now does."""
    config = dataclasses.replace(task_defaults("text"), data=TextDataConfig(train="a", dev_share=0.1))
    old = to_dict(config)
    for name in ("stratified", "folds", "weight_column"):
        del old["data"][name]
    assert from_record(FinetuneConfig, old, "x").data.stratified is False
    for recorded, expected in (({}, True), (old, False), (to_dict(loop._with_stratification(config, {})), True)):
        assert loop._with_stratification(config, recorded).data.stratified is expected
    asked = dataclasses.replace(config, data=dataclasses.replace(config.data, stratified=True))
    assert loop._with_stratification(asked, old) == asked


@pytest.mark.slow
def test_a_cross_validation_end_to_end(pretrained, tmp_path):
    """The predictions of every part are those of the loaded model of its run, and a second command trains nothing."""
    data = TextDataConfig(
        train=str(pretrained / "data" / "train.tsv"), test=str(pretrained / "data" / "test.tsv"), folds=3
    )
    config = run_config(pretrained, tmp_path / "work", epochs=3, data=data, keep="all")
    results = finetune(config).results
    (setting,) = results["settings"]
    assert setting["runs"] == 3 and setting["standard_deviation"]["accuracy"] is not None
    assert results["out_of_fold"]["metrics"]["accuracy"] > 0.7 and results["data"] == {"train": 320, "test": 20}
    lines = (tmp_path / "work" / "predictions" / results["out_of_fold"]["files"][0]).read_text().splitlines()[1:]
    task = read_task(config, MODEL, load_tokenizer(pretrained / "vocab.txt"))
    said = [line.split("\t")[1] for line in lines]
    for number, record in enumerate(results["runs"]):
        here = np.flatnonzero(task.parts == number)
        model = bert_jax.load(tmp_path / "work" / "runs" / record["run"])
        assert [said[place] for place in here] == [
            label.name for label in model.predict([task.clean.examples.first[place] for place in here])
        ]
    again = finetune(config).results
    assert again["runs"] == results["runs"] and again["out_of_fold"] == results["out_of_fold"]
    shutil.rmtree(tmp_path / "work" / "runs" / results["runs"][1]["run"])
    third = finetune(config).results
    for before, after in zip(results["runs"], third["runs"]):
        assert before["metrics"] == after["metrics"]
    assert third["out_of_fold"] == results["out_of_fold"], "a part that is trained again is the same"


PLACES = ("garden", "harbour")
IN_PARTS = {  # rows of a task, and what else it needs
    "ner": ([(["The", place, str(n)], ["O", f"B-{place}", "O"]) for n in range(12) for place in PLACES], {}),
    "choice": ([(f"The {place} {n}.", list(PLACES), n % 2) for n in range(12) for place in PLACES], {}),
    "squad_v1": (
        [(f"Where is {n}?", f"{n} is in the {place}.", [(place, 12 + n // 10)]) for n in range(12) for place in PLACES],
        {"max_length": 32, "doc_stride": 8, "max_query_length": 16},
    ),
    "vectors": ([(f"{place} {n}", f"the {place}") for n in range(12) for place in PLACES], {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("task", IN_PARTS if EXHAUSTIVE else ["squad_v1", "vectors"])
def test_a_cross_validation_of_every_task(task, pretrained, tmp_path):
    """The figures of every example, out of fold, are those of the model of its part on it."""
    rows, options = IN_PARTS[task]
    result = bert_jax.finetune(
        task,
        train=rows,
        **{"folds": 2, "epochs": 1, "batch_size": 8, "keep": "all", "max_length": 16, **options},
        init_from=pretrained / "pretrained",
        workdir=tmp_path / "work",
    )
    found = result.results
    assert found["settings"][0]["runs"] == 2 and found["data"] == {"train": 24}
    if task == "vectors":
        assert "out_of_fold" not in found
        return
    config = from_record(FinetuneConfig, found["config"], "x")
    whole = read_task(config, MODEL, load_tokenizer(pretrained / "vocab.txt"), {"train": rows})
    logits: dict[int, np.ndarray] = {}
    for number, record in enumerate(found["runs"]):
        stored = open_stored(result.path + f"/runs/{record['run']}")
        own = member_logits(stored, whole.train.features, PredictConfig(), sharding.make_mesh(config.mesh))
        here = np.flatnonzero(whole.parts[whole.train.features.example] == number)
        logits |= {each: own[each] for each in here.tolist()}
    expected = whole.scores(whole.train, whole.train.features, [logits[each] for each in range(len(logits))])
    assert found["out_of_fold"]["metrics"] == pytest.approx(expected)
    assert all((tmp_path / "work" / "predictions" / file).exists() for file in found["out_of_fold"]["files"])


def test_a_cooldown_that_the_shortest_run_has_no_room_for():
    schedule = ScheduleConfig(name="constant", cooldown_steps=90)
    config = dataclasses.replace(task_defaults("mrpc"), grid=True, schedule=schedule)
    check_length(config, 1600)  # two epochs of 50 steps, 10 of them warm-up
    message = r"cooldown_steps=90 and warmup_share=0.1 do not fit into the 98 steps of batch32_.*epochs2"
    with pytest.raises(UserError, match=message):
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
    expected = f"highest accuracy on dev {said} weights after the last epoch"
    assert summary(task_defaults("sst2"), records, "accuracy", {})["chosen"]["by"] == expected


def features_of(labels, lengths=4):
    ids = [np.zeros(lengths, np.int32)] * len(labels)
    return Features(ids, ids, labels, np.arange(len(labels)), 8)


@pytest.mark.parametrize(
    "best, metrics, message",
    [
        # Windows of 1.1 without the answer; the answers are read beside [CLS], and differ.
        ([(0, 0), (0, 0)], {"f1": 0.1}, None),
        ([(3, 4), (2, 3)], {"f1": 0.1}, "every prediction is tokens 1 to 2 of the window"),
        ([(3, 4), (3, 4)], {"f1": 0.1}, None),
        # By the threshold.
        ([(3, 4), (2, 3)], {"HasAns_f1": 0.0, "NoAns_f1": 1.0}, "every question is left unanswered"),
        ([(0, 0), (0, 0)], {"HasAns_f1": 0.1, "NoAns_f1": 0.9}, None),
    ],
)
def test_collapse_of_answers_in_windows(best, metrics, message):
    """Two windows after two tokens and after one; each has its own best start and end, and other second bests in it."""
    scores = [np.zeros((7, 2), np.float32) for _ in best]
    for row, (start, end), second in zip(scores, best, (2, 5)):
        row[start, 0] = row[end, 1] = 2
        row[second] += 1
    windows = {"prefix": np.array([2, 1]), "suffix": 1, "first": np.zeros(2, int), "contexts": []}
    dev = SpanFeatures(**vars(features_of(np.array(best), 7)), **windows, options=SquadOptions())
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
        # Matthews 0.5, accuracy 2/3.
        ("classification", np.repeat([0, 1], [40, 80]), [[1, 0]] * 80 + [[0, 1]] * 40, 0.3, None),
        ("classification", np.array([0, 1, 1, 0]), [[1, 0], [0, 1], [0, 1], [1, 0]], float("nan"), "loss"),
        ("regression", np.array([0.0, 5.0, 2.0]), [0.1, 4.0, 2.0], 0.2, None),
        ("regression", np.array([0.0, 5.0, 2.0]), [2.3, 2.3, 2.3], 0.2, "every prediction is 2.300"),
        ("regression", np.array([0.0, 5.0, 2.0]), [2.3, float("nan"), 1.0], 0.2, "1 of 3 answers on dev are not num"),
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
    succeed("results", tmp_path / "ours", tmp_path / "random", f"--output={tmp_path / 'out'}")
    text = (tmp_path / "out" / "results_table.md").read_text()
    assert text in capsys.readouterr().out + "\n"
    lines = text.splitlines()
    assert lines[0] == "| model |  | sst2 (accuracy) | squad_v1 (exact_match/f1) |"
    assert lines[2] == "| ours | measured, dev | 80.0 ± 1.0 (3 runs) | 70.0/80.0 ± 1.0 (3 runs) |"
    assert lines[4] == "| BERT-base | published, GLUE test; others dev | 93.5 | 80.8/88.5 |"
    assert [_cell({"pearson": 50.0}, METRICS["text"]), _cell({}, METRICS["ax"])] == ["pearson 50.0", "–"]
    assert json.loads((tmp_path / "out" / "results_table.json").read_text())[1]["tasks"]["sst2"]["accuracy"] == 60
    ours, random = str(tmp_path / "ours"), str(tmp_path / "random")
    succeed("results", ours, random, f"--gain_over={random}/")
    assert "\n| ours | gain, over random | +20.0 | +20.0/+20.0 |\n" in capsys.readouterr().out
    assert status("results", ours, f"--gain_over={random}") == 2
    assert f"--gain_over={random} is not among the directories given: {ours}" in capsys.readouterr().err
    assert status("results", "--output=x", ours) == 2
    # Once both "sst2".
    succeed("results", tmp_path / "ours/sst2", tmp_path / "random/sst2")
    assert f"\n| {tmp_path / 'ours/sst2'} | measured, dev | 80.0 ± 1.0 (3 runs) |\n" in capsys.readouterr().out
    (tmp_path / "ours" / "sst2" / "results.json").write_text("{")
    assert status("results", tmp_path / "ours") == 2
    assert status("results", tmp_path / "out") == 2


def test_tasks_over_one_encoder_have_a_column_each(tmp_path, capsys):
    setting = {"mean": {"accuracy": 0.5, "f1": 0.25}, "standard_deviation": {}, "runs": 1, "collapsed": 0}
    own = {"init_from": "x", "random_weights": False, "settings": [setting]}
    tasks = {"topic": {"task": "text", **own}, "place": {"task": "ner", **own}}
    (tmp_path / "results.json").write_text(json.dumps({"tasks": tasks, "temperature": 1.0}))
    succeed("results", str(tmp_path))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| model |  | ner (f1) | text (accuracy/micro_f1/pearson) |"
    assert lines[2].endswith("| measured, dev | 25.0 | accuracy 50.0 |")


def test_every_task_has_a_column():
    assert set(METRICS) == set(TASKS)


def test_results_of_one_task_have_a_row_each(tmp_path, capsys):
    """Beside the row of the tasks that occur once; each is compared with the row that gain_over names."""
    for name, task, value in (("sst2", "sst2", 0.8), ("sst2_grid", "sst2", 0.9), ("cola", "cola", 0.5)):
        (tmp_path / "runs" / name).mkdir(parents=True)
        metric = METRICS[task][0]
        setting = {"mean": {metric: value}, "standard_deviation": {metric: None}, "runs": 1, "collapsed": 0}
        (tmp_path / "runs" / name / "results.json").write_text(
            json.dumps({"task": task, "init_from": "x", "random_weights": False, "settings": [setting]})
        )
    succeed("results", f"{tmp_path / 'runs'}/", f"--gain_over={tmp_path / 'runs/sst2'}")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| model |  | sst2 (accuracy) | cola (matthews) |"
    assert lines[2:6] == [
        "| runs | measured, dev | – | 50.0 |",
        "| runs/sst2 | measured, dev | 80.0 | – |",
        "| runs/sst2_grid | measured, dev | 90.0 | – |",
        "| runs/sst2_grid | gain, over runs/sst2 | +10.0 | – |",
    ]


def test_results_of_several_tasks_over_one_encoder_are_in_one_row(tmp_path, capsys):
    setting = {"mean": {"accuracy": 0.8}, "standard_deviation": {"accuracy": None}, "runs": 1, "collapsed": 0}
    of_one = {"init_from": "x", "random_weights": False, "settings": [setting], "tests": {}, "collapsed": None}
    of_one |= {"metrics": {"accuracy": 0.8}}
    together = {"tasks": {"mood": of_one | {"task": "sst2"}, "same": of_one | {"task": "rte"}}, "temperature": 1}
    (tmp_path / "both").mkdir()
    (tmp_path / "both" / "results.json").write_text(json.dumps(together))
    succeed("results", tmp_path / "both")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| model |  | sst2 (accuracy) | rte (accuracy) |"
    assert lines[2] == "| both | measured, dev | 80.0 | 80.0 |"
    together["tasks"]["same"]["task"] = "sst2"
    (tmp_path / "both" / "results.json").write_text(json.dumps(together))
    succeed("results", tmp_path / "both")
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:4] == ["| tasks/mood | measured, dev | 80.0 |", "| tasks/same | measured, dev | 80.0 |"]
    show_together(together, "runs/both")
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "mood on dev: accuracy 80.00; its model is runs/both/tasks/mood" and len(said) == 2


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
        **{"run": "a", "setting": "a", "seed": 0, "metrics": {"accuracy": 0.5}, "collapsed": None, "step": 3},
        **{"keep": "best", "hyperparameters": {}},
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
    assert len(str(caught.value)) < 500


SETTING = {"mean": {"accuracy": 0.5}, "standard_deviation": {"accuracy": None}, "runs": 1, "collapsed": 0}


@pytest.mark.parametrize(
    "changes",
    [
        {"task": []},
        {"task": "x" * 100_000},
        {"tasks": 3},
        {"tasks": {"a": {"task": "sst2"}}},
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
    succeed("results", tmp_path)
    capsys.readouterr()
    (tmp_path / "results.json").write_text(changes if isinstance(changes, str) else json.dumps(content | changes))
    assert status("results", tmp_path) == 2
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
    expected = {"run": "a", "report": {}, **{name: value for name, value in content.items() if name != "chosen"}}
    assert earlier_predictions(file) == expected
    file.write_text("{" if changes is None else json.dumps(content | changes))
    assert earlier_predictions(file) is None


def test_every_gold_answer_is_part_of_the_data_s_fingerprint(pretrained):
    """Of SQuAD, training reads one answer of a question, the metric all of them."""

    def fingerprint(*answers):
        question = squad_files.Question("q", "where?", 0, answers, (3, 9))
        examples = squad_files.Examples("squad_v1", ("in France",), (question,), True)
        return _fingerprint([Split(examples, squad.features(examples, tokenizer, options))])

    tokenizer = load_tokenizer(pretrained / "vocab.txt")
    options = SquadOptions(max_length=24, max_query_length=6, doc_stride=8)
    assert fingerprint("France") == fingerprint("France") != fingerprint("France", "Paris")


@pytest.mark.slow
def test_the_same_command_again_trains_nothing(two_seeds, monkeypatch):
    config, results = two_seeds
    monkeypatch.setattr(loop, "train_run", lambda *_: pytest.fail("a finished run was repeated"))
    left = pathlib.Path(config.workdir) / "runs" / results["runs"][0]["run"] / "training"
    left.mkdir()  # as by a kill right before it was removed
    with monkeypatch.context() as patch:
        patch.setattr(one_run, "predict_logits", lambda *_: pytest.fail("predictions were made again"))
        again = finetune(config).results
    assert {**again, "versions": 0} == {**results, "versions": 0} and not left.exists()


def test_a_new_test_set_is_predicted_by_the_finished_model(two_seeds, pretrained, tmp_path, monkeypatch):
    config, results = two_seeds
    shutil.copytree(config.workdir, tmp_path / "work")
    shutil.copytree(pretrained / "data", tmp_path / "data")
    (tmp_path / "data" / "test.tsv").write_text(sentences(30, 1))
    monkeypatch.setattr(loop, "train_run", lambda *_: pytest.fail("a finished run was repeated"))
    data = TextDataConfig(dir=str(tmp_path / "data"))
    config = dataclasses.replace(config, workdir=str(tmp_path / "work"), data=data)
    again = finetune(config).results
    assert again["tests"]["test"]["accuracy"] > 0.8 and again["data"]["test"] == 30


def test_predictions_that_are_gone_are_made_again(two_seeds, tmp_path):
    work = tmp_path / "work"
    shutil.copytree(two_seeds[0].workdir, work)
    config = dataclasses.replace(two_seeds[0], workdir=str(work))
    (file,) = (work / "predictions" / "test").iterdir()
    before = file.read_bytes()
    file.unlink()
    finetune(config)
    assert file.read_bytes() == before
    assert {start["devices"] for start in json.loads((work / "run.json").read_text())["starts"]} == {1}


def test_a_run_that_was_trained_again_elsewhere_is_published_again(two_seeds, tmp_path):
    """Its name is that of the run whose weights lie on top, its figures are not."""
    work = tmp_path / "work"
    shutil.copytree(two_seeds[0].workdir, work)
    record = work / "runs" / two_seeds[1]["chosen"]["run"] / "results.json"
    content = json.loads(record.read_text())
    content["metrics"]["matthews"] = 0.123
    record.write_text(json.dumps(content))
    results = finetune(dataclasses.replace(two_seeds[0], workdir=str(work))).results
    assert results["metrics"] == open_stored(work).history["metrics"] == content["metrics"]


def test_other_names_of_the_same_test_examples_are_other_predictions(pretrained):
    config = run_config(pretrained, "unused")
    data = read_task(config, MODEL, load_tokenizer(pretrained / "vocab.txt"))
    test = data.tests["test"]
    renamed = dataclasses.replace(test.examples, index=[f"id-{name}" for name in test.examples.index])
    other = dataclasses.replace(data, tests={"test": Split(renamed, test.features)})
    assert data.test_fingerprint() != other.test_fingerprint() and data.fingerprint() == other.fingerprint()


@pytest.mark.slow
def test_weights_that_an_earlier_command_removed_are_named(pretrained, tmp_path, caplog):
    config = run_config(pretrained, tmp_path / "work", epochs=1, seeds=2)
    chosen = finetune(config).results["chosen"]["run"]
    (lost,) = {f"batch16_rate0.002_epochs1_seed{seed}" for seed in (0, 1)} - {chosen}
    finetune(dataclasses.replace(config, keep="all"))
    runs = tmp_path / "work" / "runs"
    gone = "the weights of {} are gone, an earlier command kept only the best; {}"
    assert gone.format(lost, f"remove {runs / lost} to train it again") in caplog.text
    assert gone.format(chosen, f"they are those of {tmp_path / 'work'} itself") in caplog.text
    shutil.rmtree(runs / lost)
    finetune(dataclasses.replace(config, keep="all"))
    assert load_tokenizer(runs / lost / "tokenizer").vocab_size and open_stored(runs / lost)
    finetune(config)
    assert open_stored(runs / lost), "weights that were kept on purpose were removed by a later command"


def test_the_parameters_begun_with_are_known_by_their_values(two_seeds, pretrained, tmp_path):
    """Not by where they lie: the same elsewhere are the same, others in the same place are not."""
    config, results = two_seeds
    shutil.copytree(config.workdir, tmp_path / "work")
    shutil.copytree(pretrained / "pretrained", tmp_path / "moved")
    config = dataclasses.replace(config, workdir=str(tmp_path / "work"), init_from=str(tmp_path / "moved"))
    assert finetune(config).results["runs"] == results["runs"]
    with Checkpoints(tmp_path / "moved" / "checkpoints") as checkpoints:  # pre-training goes on
        stored = open_stored(tmp_path / "moved")
        params = jax.tree.map(lambda value: value + 1, place(stored))
        checkpoints.save(1, {"params": params}, position={}, config=stored.history["config"])
    with pytest.raises(UserError, match="init_from_fingerprint"):
        finetune(dataclasses.replace(config, seeds=3))


@pytest.mark.slow
def test_a_run_that_has_saved_nothing_may_be_started_with_other_settings(pretrained, tmp_path, monkeypatch):
    config = run_config(pretrained, tmp_path / "work", epochs=1)
    with monkeypatch.context() as patch:
        # Such as: out of memory.
        patch.setattr(Reporter, "dispatched", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            finetune(config)
    assert list((tmp_path / "work" / "runs").iterdir())
    finetune(dataclasses.replace(config, options=SentenceOptions(max_length=12)))
    with pytest.raises(UserError, match="max_length"):
        finetune(config)


def test_a_directory_of_another_run_is_refused_unchanged(two_seeds, pretrained, tmp_path):
    config, _ = two_seeds
    other = TextDataConfig(dir=str(pretrained / "data"), train=str(pretrained / "data/dev.tsv"))
    for changes, message in (
        ({"layer_decay": 0.5}, "finetune.layer_decay: 1.0 → 0.5"),
        ({"data": other}, "features_fingerprint"),
        ({"options": SentenceOptions(max_length=12)}, "max_length"),
        ({"init_from": str(config.workdir)}, "init_from"),
        ({"options": SentenceOptions(max_length=64)}, "32 positions"),
        ({"compute": ComputeConfig(dtype="bfloat16")}, "compute.dtype: auto → bfloat16"),
    ):
        with pytest.raises(UserError, match=message):
            finetune(dataclasses.replace(config, **changes))
    with pytest.raises(UserError, match="pre-training|config.json"):
        finetune(dataclasses.replace(config, workdir=str(pretrained / "pretrained")))
    (tmp_path / "none").mkdir()
    with pytest.raises(UserError, match="no task head"):
        run_predict(str(pretrained / "pretrained"), PredictConfig(input=__file__, output="b"))


def test_predictions_of_the_work_directory_score_what_results_say(two_seeds, pretrained, tmp_path):
    config, results = two_seeds
    options = PredictConfig(input=str(pretrained / "data/dev.tsv"), output=str(tmp_path / "out.tsv"), split="dev")
    assert run_predict(config.workdir, options) == results["metrics"]
    assert len((tmp_path / "out.tsv").read_text().splitlines()) >= 40


def test_an_ensemble_is_the_mean_of_the_probabilities(two_seeds, pretrained, tmp_path):
    config, results = two_seeds
    members = ",".join(f"{config.workdir}/runs/{record['run']}" for record in results["runs"])
    output = str(tmp_path / "new" / "out.tsv")
    options = PredictConfig(input=str(pretrained / "data/dev.tsv"), output=output, split="dev")
    lowest = min(record["metrics"]["accuracy"] for record in results["runs"])
    assert run_predict(members, options)["accuracy"] >= lowest and (tmp_path / "new" / "out.tsv").exists()
    logits = [[np.array(row, np.float32) for row in rows] for rows in ([[2, 0, 1]], [[-1, 0, 3]])]
    expected = (softmax(logits[0][0]) + softmax(logits[1][0])) / 2
    np.testing.assert_allclose(softmax(average(HeadConfig(labels=("a", "b", "c")), logits)[0]), expected, rtol=1e-5)
    spans = [[np.full((5, 2), value, np.float32)] for value in (1, 4)]
    np.testing.assert_array_equal(average(HeadConfig(kind="span"), spans)[0], np.full((5, 2), 2.5))
    assert average(HeadConfig(kind="regression"), [[np.float32(1)], [np.float32(4)]]) == [2.5]


def test_an_ensemble_reads_by_what_its_members_agree_on():
    def member(positions, threshold, crf=False):
        settings = {"finetune": {"task": "squad_v2", "options": {"max_length": 200}}}
        history = {"config": settings, "metrics": {"best_f1_thresh": threshold}}
        return StoredModel(
            kind="bert_jax",
            path=f"m{positions}",
            model=ModelConfig(max_position_embeddings=positions),
            arrays={},
            history=history,
            head=HeadConfig(kind="tagging", labels=("O",), crf=crf),
            tokenizer=TOKENIZER,
        )

    options = prediction.options_of([member(384, 1.0), member(128, 4.0)], "squad_v2")
    assert options.null_threshold == 2.5 and options.max_length == 128
    with pytest.raises(UserError, match="m128: tagging with a CRF O and m384: tagging O"):
        prediction.check_member(member(128, 0.0, crf=True), member(384, 0.0))


@pytest.mark.parametrize(
    "theirs, ours, fits",
    [
        (("NO", "Yes"), ("no", "yes"), True),
        (("Yes", "NO"), ("no", "yes"), False),  # in another order
        (("a", "A"), ("A", "a"), False),  # two classes that only case tells apart
    ],
)
def test_a_head_fits_whatever_the_case_of_its_labels(theirs, ours, fits):
    stored = StoredModel("test", "m", ModelConfig(), {}, head=HeadConfig(labels=theirs))
    assert (fitting_head(stored, HeadConfig(labels=ours))[0] is stored) == fits
