"""Texts with any number of labels: how they are read, scored, answered and refused; and a run with its model."""

import dataclasses
import json
import pathlib
import subprocess

import documents
import numpy as np
import pytest
from oracles import make_task_losses_oracle as oracle
from small_finetuning import FAST
from small_pretraining import finetune, run_predict

import bert_jax
from bert_jax.config import HeadConfig
from bert_jax.config.finetuning import PredictConfig, task_defaults
from bert_jax.config.options import to_dict
from bert_jax.config.tasks import SentenceOptions, TextDataConfig
from bert_jax.data.sequences import SharedRowBatches, padded
from bert_jax.errors import UserError
from bert_jax.finetuning.loop import from_arguments
from bert_jax.finetuning.plan import ignores_input
from bert_jax.finetuning.prediction import options_of
from bert_jax.formats.opening import open_stored
from bert_jax.tasks import sentences, task_data, text
from bert_jax.tasks.sentences import Sentences
from bert_jax.tokenization.tokenizer import Tokenizer
from bert_jax.tokenization.wordpiece import WordPiece

GIVEN, FIGURES = oracle.drawn(), dict(np.load(oracle.PATH))
LABELS = ("a", "b", "c", "d", "e")
FORMS = {
    "train.jsonl": '{"text": "x", "label": ["joy", "fear"]}\n{"text": "y", "label": []}\n{"text": "z", "label": "joy"}',
    "train.tsv": "text\tlabel\nx\tjoy,fear\ny\t\nz\tjoy\n",
    "train.csv": 'text,label\nx,"joy, fear,"\ny,\nz,joy\n',
}


def load(directory, split="train", labels=None, **options):
    return text.load("text", TextDataConfig(dir=str(directory), several_labels=True, **options), split, labels)


@pytest.mark.parametrize("name", FORMS)
def test_forms(name, tmp_path):
    (tmp_path / name).write_text(FORMS[name])
    examples = load(tmp_path)
    assert (examples.labels, examples.several) == (("fear", "joy"), True)
    assert examples.answers.tolist() == [[True, True], [False, False], [False, True]]
    other = tmp_path / "other.tsv"
    other.write_text("text\tlabel\nx\tjoy|fear\ny\tjoy\n")
    assert load(tmp_path, train=str(other), label_separator="|").answers.tolist() == [[True, True], [False, True]]
    rows = [("x", ["joy", "fear"]), ("y", set()), ("z", "joy")]
    config, given = from_arguments("text", {"train": rows, "dev": rows}, {"init_from": "m", "several_labels": True})
    assert text.load("text", config.data, "train", given=given).answers.tolist() == examples.answers.tolist()
    (tmp_path / "test.tsv").write_text("text\tlabel\nx\t\ny\t\n")
    assert not load(tmp_path, "test", examples.labels).has_answers


@pytest.mark.parametrize(
    "line, message",
    [
        ('{"text": "x", "label": [["a"]]}', r"line 1: the label \['a'\] is neither text nor a number"),
        ('{"text": "x", "label": ["a", ""]}', "line 1: one of the labels .* is empty"),
        ('{"text": "x", "label": {"a": 1}}', "line 1: the label .* is neither text nor a number"),
        ('{"text": "x", "label": null}\n{"text": "y", "label": ["a"]}', "line 1: the labels are missing"),
        ('{"text": "x", "label": ["a"]}\n{"text": "y", "label": "a"}', "has the same labels .a.: there is nothing"),
    ],
)
def test_bad_labels_are_named(tmp_path, line, message):
    (tmp_path / "train.jsonl").write_text(line)
    with pytest.raises(UserError, match=message):
        load(tmp_path)
    (tmp_path / "dev.jsonl").write_text('{"text": "x", "label": ["a", "bb"]}')
    with pytest.raises(UserError, match="dev.jsonl, line 1: unknown label 'bb'; expected one of a, b; perhaps 'b'"):
        load(tmp_path, "dev", ("a", "b"))
    (tmp_path / "train" / "a").mkdir(parents=True)
    with pytest.raises(UserError, match="a directory for each class, in which a text has one label"):
        load(tmp_path, train=str(tmp_path / "train"))


def split_of(answers, several=True, labels=LABELS) -> Sentences:
    index = [str(number) for number in range(len(answers))]
    return Sentences("text", ["x"] * len(answers), None, np.asarray(answers), labels, index, several)


def features_of(examples: Sentences, options: SentenceOptions | None = None):
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "x"]
    return text.features(
        examples, Tokenizer(WordPiece(vocabulary, lowercase=True)), options or SentenceOptions(max_length=8)
    )


def test_metrics_are_those_of_scikit_learn():
    there, said = GIVEN["there"], GIVEN["said"]
    for number, figures in enumerate(sentences.by_class(there, said)):
        assert list(figures.values()) == pytest.approx(FIGURES["by_class"][:, number].tolist())
    examples = split_of(there)
    logits = np.where(said, 3.0, -3.0)
    scores = text.score(examples, features_of(examples, SentenceOptions(max_length=8, thresholds=(0.5,))), logits)
    expected = {name: float(FIGURES[f"several_{name}"]) for name in sentences.MEASURED["multilabel"]}
    assert scores == pytest.approx(expected | {f"threshold:{label}": 0.5 for label in LABELS})
    answers, predictions = GIVEN["answers"], GIVEN["predictions"]
    for name in ("macro_f1", "balanced_accuracy"):
        assert sentences.METRICS[name](answers, predictions) == pytest.approx(float(FIGURES[name]))


def test_thresholds_have_the_best_f1_there_is():
    """As scikit-learn finds it along the curve of precision and recall; equal probabilities stay together."""
    for there, shares, best in zip(GIVEN["there"].T, GIVEN["shares"].T, FIGURES["best_f1"]):
        threshold = sentences.best_threshold(there, shares)
        (found,) = sentences.by_class(there[:, None], (shares >= threshold)[:, None])
        assert found["f1"] == pytest.approx(best)
    assert sentences.best_threshold(GIVEN["there"][:, 4], GIVEN["shares"][:, 4]) == 0.5
    equal = np.array([0.25, 0.25, 0.75, 0.25])
    assert sentences.best_threshold(np.array([True, False, True, True]), equal) == 0.125
    assert sentences.best_threshold(np.array([False, False, True, False]), equal) == 0.5


def test_a_model_answers_with_the_thresholds_that_dev_has_chosen(tmp_path):
    examples = split_of([[1, 0], [0, 1], [1, 1]], labels=("a", "b"))
    logits = np.log([[0.6 / 0.4, 0.1 / 0.9], [0.3 / 0.7, 0.2 / 0.8], [0.9 / 0.1, 0.3 / 0.7]]).astype(np.float32)
    metrics = text.score(examples, features_of(examples), logits)
    assert metrics["exact_match"] == metrics["micro_f1"] == 1.0
    assert (metrics["threshold:a"], metrics["threshold:b"]) == pytest.approx((0.45, 0.15))
    head = HeadConfig(kind="multilabel", labels=("a", "b"))
    history = {"metrics": metrics, "config": {"head": to_dict(head), "finetune": to_dict(task_defaults("text"))}}
    options = task_data.recorded_options(history, "text", 8, head)
    assert options.thresholds == (metrics["threshold:a"], metrics["threshold:b"])
    saved = task_data.without_metrics(history)
    assert saved["metrics"] is None and task_data.recorded_options(saved, "text", 8, head) == options
    assert task_data.recorded_options({}, "text", 8, head).thresholds == (0.5, 0.5)  # from elsewhere
    assert task_data.recorded_config({}, "text", head).data.several_labels
    history["metrics"] |= {"threshold:a": "high"}
    with pytest.raises(UserError, match="thresholds .*its record is damaged"):
        task_data.recorded_options(history, "text", 8, head)
    features = features_of(examples, dataclasses.replace(options, thresholds=(0.45, 0.25)))
    (file,) = text.write_predictions(examples, features, logits, str(tmp_path), "dev")
    assert [json.loads(line) for line in pathlib.Path(file).read_text().splitlines()][1:] == [
        {"index": "1", "prediction": [], "probabilities": {"a": 0.3, "b": 0.2}},
        {"index": "2", "prediction": ["a", "b"], "probabilities": {"a": 0.9, "b": 0.3}},
    ]
    assert pathlib.Path(file).name == "predictions_dev.jsonl"


def test_the_labels_of_a_text_stay_with_it_in_shared_rows():
    examples = split_of(GIVEN["there"][:40])
    features = features_of(examples)
    assert features.labels.dtype == np.float32
    own = padded(features, np.arange(4), 6)
    assert own["labels"].shape == (6, 5) and not own["labels"][4:].any()
    np.testing.assert_array_equal(own["labels"][:4], GIVEN["there"][:4])
    batches = SharedRowBatches(features, 16, 32)
    batch = batches.batch(0)
    used = batch["weights"] > 0
    assert sorted(map(tuple, batch["labels"][used])) == sorted(map(tuple, GIVEN["there"][batches.indices(0)]))
    assert not batch["labels"][~used].any()


def test_a_run_that_learned_nothing_is_named():
    head = HeadConfig(kind="multilabel", labels=LABELS)
    dev = features_of(split_of(GIVEN["there"][:3]))
    assert "the same for each label" in ignores_input(head, dev, [np.full(5, 0.25)] * 3, {})
    assert ignores_input(head, dev, list(np.eye(3, 5)), {}) is None


def rows(count: int, seed: int) -> list[tuple[str, list[str]]]:
    """Texts about up to three topics, in any order, which are their labels; some are about none."""
    random, found = np.random.default_rng(seed), []
    for _ in range(count):
        parts, chosen = [], [name for name in documents.TOPICS if random.random() < 0.4]
        for name in random.permutation(chosen):
            nouns, verbs = documents.TOPICS[name]
            parts.append(f"The {nouns[random.integers(5)]} {verbs[random.integers(5)]}.")
        found.append((" ".join(parts) or "It was.", sorted(chosen)))
    return found


@pytest.fixture(scope="module")
def learned(pretrained, tmp_path_factory):
    """The result of a run on such rows."""
    options = {name: value for name, value in FAST.items() if name not in ("options", "epochs")}
    return finetune(
        "text",
        train=rows(320, 0),
        dev=rows(60, 1),
        test=rows(60, 2),
        init_from=pretrained / "pretrained",
        workdir=tmp_path_factory.mktemp("several") / "work",
        several_labels=True,
        max_length=24,
        epochs=10,
        class_weights="balanced",
        **options,
    )


@pytest.mark.slow
def test_a_run_learns_them_and_its_model_answers_as_it_was_measured(learned, tmp_path):
    results, test = learned.results, rows(60, 2)
    assert results["main_metric"] == "micro_f1" and results["metrics"]["micro_f1"] > 0.9
    assert results["collapsed"] is None and results["report"]["dev"]["classes"]["garden"]["f1"] > 0.9
    answers = learned.model.predict([each for each, _ in test])
    exact = np.mean([sorted(answer.names) == labels for answer, (_, labels) in zip(answers, test)])
    assert exact > 0.8 and exact == pytest.approx(results["tests"]["test"]["exact_match"])
    file = tmp_path / "test.jsonl"
    file.write_text("".join(json.dumps({"text": each, "label": labels}) + "\n" for each, labels in test))
    scores = run_predict(learned.path, PredictConfig(input=str(file), output=str(tmp_path / "out.jsonl")))
    assert scores == pytest.approx(results["tests"]["test"])
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [tuple(each["prediction"]) for each in written] == [answer.names for answer in answers]
    both = run_predict(f"{learned.path},{learned.path}", PredictConfig(input=str(file), output=str(tmp_path / "both")))
    assert both == pytest.approx(scores)
    learned.model.save(tmp_path / "saved")
    assert bert_jax.load(tmp_path / "saved").predict([test[0][0]])[0].names == answers[0].names


@pytest.mark.slow
def test_transformers_gets_a_model_of_several_labels_and_its_own_is_read(learned, peer, tmp_path):
    """Equal probabilities by its own class, for both directions; thresholds are not part of its format."""
    bert_jax.convert(learned.path, tmp_path / "theirs", to="huggingface")
    config = json.loads((tmp_path / "theirs/config.json").read_text())
    assert config["problem_type"] == "multi_label_classification"
    model = bert_jax.load(tmp_path / "theirs")
    assert model.head == dataclasses.replace(learned.model.head, dropout=model.head.dropout)
    texts = [each for each, _ in rows(8, 3)]
    program = (
        "import json, sys, torch, transformers as t\n"
        "model = t.AutoModelForSequenceClassification.from_pretrained(sys.argv[1]).eval()\n"
        "tokenizer = t.AutoTokenizer.from_pretrained(sys.argv[1])\n"
        "tokens = tokenizer(json.loads(sys.argv[2]), padding=True, return_tensors='pt')\n"
        "with torch.no_grad():\n"
        "    loss = model(**tokens, labels=torch.ones(len(tokens['input_ids']), model.config.num_labels)).loss\n"
        "    print(json.dumps([float(loss), model(**tokens).logits.sigmoid().tolist()]))\n"
    )
    done = subprocess.run([peer, "-c", program, str(tmp_path / "theirs"), json.dumps(texts)], capture_output=True)
    loss, theirs = json.loads(done.stdout.splitlines()[-1])
    ours = [list(answer.probabilities.values()) for answer in model.predict(texts)]
    np.testing.assert_allclose(ours, theirs, atol=2e-5)
    assert loss == pytest.approx(-np.mean(np.log(theirs)), rel=1e-4)  # it takes the model for one of several labels
    with pytest.raises(UserError, match="head for multilabel: Google's TF1 code has none"):
        bert_jax.convert(learned.path, tmp_path / "tf1", to="tf1")


@pytest.mark.slow
def test_models_of_one_label_and_of_several_are_no_ensemble(learned, two_seeds):
    members = [open_stored(learned.path), open_stored(learned.path)]
    assert options_of(members, "text").thresholds == options_of(members[:1], "text").thresholds
    with pytest.raises(UserError, match="an ensemble needs models with the same answers"):
        run_predict(f"{learned.path},{two_seeds[0].workdir}", PredictConfig(text="x"))
