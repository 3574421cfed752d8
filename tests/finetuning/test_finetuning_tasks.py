"""Questions, tags and choices in the whole loop: learned, and predicted alike by the loop, the command and `load`."""

import dataclasses
import json

import jax
import numpy as np
import pytest
import small_corpus
import small_pretraining
from one_device import finetune, run_predict
from processes import EXHAUSTIVE
from small_finetuning import FAST, weights

import bert_jax
from bert_jax.config.finetuning import (
    ChoiceOptions,
    PredictConfig,
    Squad2Options,
    TaggingOptions,
    TaskDataConfig,
    task_defaults,
)
from bert_jax.console import load_config
from bert_jax.data.sequences import ladder
from bert_jax.errors import UserError
from bert_jax.finetuning import loop
from bert_jax.pretraining import pretrain

GARDEN = small_corpus.TOPICS["garden"][0]


def sentences(random, topics):
    """One sentence of each of these topics: (noun, verb, place)."""
    return [
        [words[random.integers(5)] for words in (*small_corpus.TOPICS[topic], small_corpus.PLACES)] for topic in topics
    ]


def squad(random, count):
    """Contexts of two windows, asked for their noun of the garden; a third has none."""
    questions = []
    for number in range(count):
        topics = ["harbour", "kitchen", "workshop" if number % 3 == 0 else "garden"]
        found = sentences(random, random.permutation(topics))
        context = " ".join(f"The {noun} {verb} {place}." for noun, verb, place in found)
        answers = [{"text": noun, "answer_start": context.index(noun)} for noun, _, _ in found if noun in GARDEN]
        questions.append(
            {
                "context": context,
                "qas": [
                    {"id": f"q{number}", "question": "the garden?", "answers": answers, "is_impossible": not answers}
                ],
            }
        )
    return json.dumps({"version": "v2.0", "data": [{"paragraphs": questions}]})


def ner(random, count):
    """Nouns of two topics, and times of several words."""
    lines = []
    for number in range(count):
        topic = ("garden", "harbour")[number % 2]
        ((noun, verb, place),) = sentences(random, [topic])
        first, *more = place.split()
        lines += [
            "The O",
            f"{noun} B-{topic}",
            f"{verb} O",
            f"{first} B-time",
            *(f"{word} I-time" for word in more),
            "",
        ]
    return "\n".join(lines) + "\n"


def choice(random, count):
    """The one of three that is about the garden."""
    lines = []
    for _ in range(count):
        topics = random.permutation(["garden", "harbour", "kitchen"])
        choices = [f"{noun} {verb}" for noun, verb, _ in sentences(random, topics)]
        lines.append(json.dumps({"context": "The", "choices": choices, "answer": int(np.argmax(topics == "garden"))}))
    return "\n".join(lines) + "\n"


WINDOWS = Squad2Options(max_length=24, max_query_length=6, doc_stride=8)
CASES = {
    "squad_v2": (squad, ".json", 0.6, {"options": WINDOWS, "epochs": 2}, "predictions.json"),
    "ner": (ner, ".txt", 0.8, {"options": TaggingOptions(max_length=16), "epochs": 4}, "predictions.conll"),
    "ner crf features": (
        ner,
        ".txt",
        0.8,
        {
            "options": TaggingOptions(max_length=16),
            "crf": True,
            "features": "weighted_all",
            "lstm_size": 8,
            "learning_rate": 2e-2,
            "epochs": 4,
        },
        "predictions.conll",
    ),
    "ner lstm": (
        ner,
        ".txt",
        0.8,
        {
            "options": TaggingOptions(max_length=16),
            "features": "last",
            "train_encoder": True,
            "lstm_size": 32,
            "learning_rate": 5e-3,
            "epochs": 4,
        },
        "predictions.conll",
    ),
    "choice": (choice, ".jsonl", 0.9, {"options": ChoiceOptions(max_length=16)}, "predictions.jsonl"),
}


def answers(task, model, file):
    """What the loaded model says to the examples of a file, in the form of `predictions`."""
    if task == "squad_v2":
        questions = [
            (asked["question"], paragraph["context"], asked["id"])
            for paragraph in json.loads(file.read_text())["data"][0]["paragraphs"]
            for asked in paragraph["qas"]
        ]
        return dict(
            zip((id for *_, id in questions), (answer.text for answer in model.predict([q[:2] for q in questions])))
        )
    if task == "choice":
        records = map(json.loads, file.read_text().splitlines())
        return [
            choice.index for choice in model.predict([(record["context"], record["choices"]) for record in records])
        ]
    blocks = [[line.split()[0] for line in block.splitlines()] for block in file.read_text().strip().split("\n\n")]
    return [tag for tags in model.predict([tuple(words) for words in blocks]) for _, tag in tags]


def predictions(task, file):
    text = file.read_text()
    if task == "squad_v2":
        return json.loads(text)
    if task == "choice":
        return [json.loads(line)["answer"] for line in text.splitlines()]
    return [line.split()[-1] for line in text.splitlines() if line]


def keys(answers):
    return answers if isinstance(answers, dict) else range(len(answers))


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if case != "ner lstm" or EXHAUSTIVE])
def test_learned_and_predicted_alike_on_every_road(case, pretrained, tmp_path, monkeypatch):
    make_file, suffix, least, changes, name = CASES[case]
    task, work = case.split()[0], tmp_path / "work"
    train, dev = (tmp_path / f"{split}{suffix}" for split in ("train", "dev"))
    for file, count, seed in ((train, 240, 0), (dev, 30, 1)):
        file.write_text(make_file(np.random.default_rng(seed), count))
    made, make = [], loop.make_programs
    monkeypatch.setattr(loop, "make_programs", lambda *args: made.append(make(*args)) or made[-1])
    config = dataclasses.replace(
        task_defaults(task),
        init_from=str(pretrained / "pretrained"),
        workdir=str(work),
        data=TaskDataConfig(train=str(train), dev=str(dev)),
        **FAST | changes,
    )
    results = finetune(config).results
    assert results["metrics"][results["main_metric"]] > least and results["collapsed"] is None
    for program in (made[0].train_step, made[0].predict_step):
        assert len(program.compiled) <= len(ladder(config.options.max_length))

    metric = results["main_metric"]
    options = PredictConfig(input=str(dev), output=f"{tmp_path / 'again'}/", split="dev", batch_size=7)
    # SQuAD's threshold is the very odds of one question, which falls on either side of it by how its batch is rounded.
    assert run_predict(str(work), options)[metric] == pytest.approx(results["metrics"][metric], abs=1.01 / 30)
    roads = (work / "predictions/dev", tmp_path / "again")
    said, again, loaded = *(predictions(task, road / name) for road in roads), answers(task, bert_jax.load(work), dev)
    for other in again, loaded:
        assert len(other) == len(said) and sum(other[key] != said[key] for key in keys(said)) <= (task == "squad_v2")
    before, after = weights(pretrained / "pretrained"), weights(work)
    same = [np.array_equal(before[path], after[path]) for path in after if path.startswith(("embeddings", "encoder"))]
    assert all(same) if "features" in case else not any(same)


def natural_inference(random, count):
    """(premise, hypothesis, label): what the hypothesis is about decides, as a model of this size can learn."""
    labels, rows = {"garden": "entailment", "harbour": "neutral", "kitchen": "contradiction"}, []
    for topic in random.choice(list(labels), count):
        rows.append([*(" ".join(words) for words in sentences(random, ["workshop", topic])), labels[topic]])
    return rows


@pytest.mark.slow
def test_a_model_of_mnli_is_tried_on_ax(pretrained, tmp_path, capsys):
    metrics, random = pytest.importorskip("sklearn.metrics"), np.random.default_rng(0)
    for file, count in {"train": 240, "dev_matched": 30, "dev_mismatched": 30}.items():
        rows = ["sentence1\tsentence2\tgold_label", *map("\t".join, natural_inference(random, count))]
        (tmp_path / f"{file}.tsv").write_text("\n".join(rows) + "\n")
    asked = natural_inference(random, 60)
    (tmp_path / "AX").mkdir()
    table = ["Premise\tHypothesis\tLabel", *map("\t".join, asked)]
    (tmp_path / "AX/diagnostic-full.tsv").write_text("\n".join(table) + "\n")
    config = dataclasses.replace(
        task_defaults("mnli"),
        init_from=str(pretrained / "pretrained"),
        workdir=str(tmp_path / "mnli"),
        data=TaskDataConfig(dir=str(tmp_path)),
        **FAST | {"epochs": 4},
    )
    results = finetune(config).results
    assert results["metrics"]["accuracy"] > 0.5 < results["metrics"]["mismatched_accuracy"]

    config = dataclasses.replace(
        task_defaults("ax"),
        init_from=str(tmp_path / "mnli"),
        workdir=str(tmp_path / "ax"),
        data=TaskDataConfig(dir=str(tmp_path / "AX")),
    )
    with pytest.raises(UserError, match="mnli holds a different run or its results"):
        finetune(dataclasses.replace(config, workdir=config.init_from))
    assert json.loads((tmp_path / "mnli/results.json").read_text()) == results
    capsys.readouterr()
    results = finetune(config).results
    (file,) = (tmp_path / "ax/predictions/dev").iterdir()
    said = [line.split("\t")[1] for line in file.read_text().splitlines()[1:]]
    expected = metrics.matthews_corrcoef([label for *_, label in asked], said)
    assert results["metrics"]["matthews"] == pytest.approx(expected, abs=1e-12) and expected > 0.2
    assert json.loads((tmp_path / "ax/results.json").read_text()) == results
    assert f"ax dev: 60 predictions in {file.parent}, matthews {100 * expected:.2f}" in capsys.readouterr().out


@pytest.mark.slow
def test_the_weighted_layers_of_elmo_are_features(small_store, tmp_path):
    """Peters et al. 2018, section 3.2: pre-trained, frozen, and its layers mixed by weights that are learned."""
    elmo = load_config("elmo_mini")
    config = small_pretraining.run_config(
        small_store,
        tmp_path / "elmo",
        model=dataclasses.replace(elmo.model, hidden_size=32, initializer_range=0.1),
        objective=elmo.objective,
        data=dataclasses.replace(elmo.data, path=str(small_store), held_out=0.0, loader="plain"),
    )
    pretrain(config, devices=jax.devices()[:1])
    train, dev = (tmp_path / f"{split}.txt" for split in ("train", "dev"))
    for file, count, seed in ((train, 240, 0), (dev, 30, 1)):
        file.write_text(ner(np.random.default_rng(seed), count))
    _, _, least, changes, _ = CASES["ner crf features"]
    task = dataclasses.replace(
        task_defaults("ner"),
        init_from=str(tmp_path / "elmo"),
        workdir=str(tmp_path / "task"),
        data=TaskDataConfig(train=str(train), dev=str(dev)),
        **FAST | changes,
    )
    assert finetune(task).results["metrics"]["f1"] > least
    before, after = weights(tmp_path / "elmo"), weights(tmp_path / "task")
    for path in (path for path in after if path.startswith(("embeddings", "encoder"))):
        np.testing.assert_array_equal(after[path], before[path], err_msg=path)
    assert np.ptp(after["head/mix/weights"]) > 0 and after["head/mix/weights"].shape == (2,)
    words = "The rose waters the garden".split()
    assert [word for word, _ in bert_jax.load(tmp_path / "task").predict([tuple(words)])[0]] == words

    asked = [natural_inference(np.random.default_rng(seed), count) for seed, count in ((0, 240), (1, 30))]
    train, dev = ([((premise, hypothesis), label) for premise, hypothesis, label in rows] for rows in asked)
    options = {"features": "weighted_with_embeddings", "lstm_size": 8, "learning_rate": 2e-2, "epochs": 4}
    classified = finetune("text", train=train, dev=dev, init_from=str(tmp_path / "elmo"), **FAST | options)
    assert classified.results["metrics"]["accuracy"] > 0.8
    for path, array in weights(classified.path).items():
        if path.startswith(("embeddings", "encoder")):
            np.testing.assert_array_equal(array, before[path], err_msg=path)
    (answer,) = bert_jax.load(classified.path).predict([dev[0][0]])
    assert answer.name in {"entailment", "neutral", "contradiction"}
