"""Files of SQuAD's form, good and bad; TFDS through a small builder of ours; and the files that come out at the end."""

import copy
import dataclasses
import json
import pathlib
import types

import numpy as np
import pytest
from squad_tokenizer import TOKENIZER

from bert_jax.config import HeadConfig
from bert_jax.config.finetuning import Squad2Options, SquadOptions, TaskDataConfig
from bert_jax.errors import UserError
from bert_jax.pretrained import answers
from bert_jax.tasks import squad, squad_files

LENGTHS = {"max_length": 24, "max_query_length": 6}
OPTIONS = {"squad_v1": SquadOptions(**LENGTHS), "squad_v2": Squad2Options(**LENGTHS)}


def question(id: str, *answers: tuple[str, int], **more) -> dict:
    return {
        "id": id,
        "question": "a b?",
        "answers": [{"text": text, "answer_start": start} for text, start in answers],
        **more,
    }


def of(*questions: dict, context: str = "abcd cab, É. bad") -> dict:
    return {"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": list(questions)}]}]}


GOOD = [question(f"f{i}", *[("cab", 5)] * 40) for i in range(3)]
V1 = of(question("q0", ("cab", 5)), question("q1", ("bad", 0), ("É", 10), ("bad", 13)), *GOOD)
V2 = of(
    question("q0", ("cab", 5), is_impossible=False),
    question("q1", is_impossible=True, plausible_answers=[{"text": "bad", "answer_start": 13}]),
    question("q2"),
)


def load(tmp_path, contents, task="squad_v1", split="train"):
    file = tmp_path / "file.json"
    file.write_bytes(contents if isinstance(contents, bytes) else json.dumps(contents).encode())
    return squad.load(task, TaskDataConfig(**{split: str(file)}), split)


def changed(path: list, value) -> dict:
    contents = copy.deepcopy(V1)
    *above, last = path
    place = contents
    for key in above:
        place = place[key]
    if value is KeyError:
        del place[last]
    else:
        place[last] = value
    return contents


def test_what_is_read(tmp_path):
    examples = load(tmp_path, V1)
    assert (
        examples.contexts == ("abcd cab, É. bad",)
        and examples.has_answers
        and len(examples) == 5
        and examples.labels == ()
    )
    assert [(q.id, q.answers, q.span) for q in examples.questions[:2]] == [
        ("q0", ("cab",), (5, 8)),
        ("q1", ("bad", "É", "bad"), (10, 11)),
    ]  # the first answer is not at its offset
    assert len(examples.problems) == 1 and "question q1: answer 'bad' is not at character 0" in examples.problems[0]


def test_impossible_questions_have_no_answer_and_label_the_first_token(tmp_path):
    examples = load(tmp_path, V2, "squad_v2")
    assert [(q.answers, q.span) for q in examples.questions] == [(("cab",), (5, 8)), ((), None), ((), None)]
    assert squad.features(examples, TOKENIZER, OPTIONS["squad_v1"]).labels.all(axis=1).tolist() == [True, False, False]


def test_a_question_without_a_good_answer_is_skipped_in_training_only(tmp_path):
    contents = of(question("bad", ("bad", 0)), *GOOD)
    assert [q.id for q in load(tmp_path, contents).questions] == ["f0", "f1", "f2"]
    dev = load(tmp_path, contents, split="dev")
    assert dev.questions[0].answers == ("bad",) and dev.questions[0].span is None  # the metric compares texts


def test_questions_without_answers_are_unlabelled(tmp_path):
    contents = of({"id": "q0", "question": "a?"}, question("q1"))
    for task in ("squad_v1", "squad_v2"):
        examples = load(tmp_path, contents, task, "test")
        assert not examples.has_answers and squad.features(examples, TOKENIZER, OPTIONS["squad_v1"]).labels is None


PARAGRAPH = ["data", 0, "paragraphs", 0]


@pytest.mark.parametrize(
    "contents, message",
    [
        (b'{"data":\n[}', "file.json, line 2: not JSON"),
        (b'{"data": "\xff"}', "file.json, line 1: not UTF-8"),
        (b"[" * 100_000, "file.json is not in SQuAD's format"),
        (b'{"data": ' + b"9" * 5000 + b"}", "file.json is not in SQuAD's format"),
        ([], "the file has no 'data', "),
        ({"data": {}}, "the file: 'data' is {}, not of type list"),
        ({"data": []}, "holds no question"),
        (of(question("q0"), question("q1")), "none of 2 questions has an answer"),
        ({"data": [1]}, r"data\[0\] has no 'paragraphs', 1"),
        (changed([*PARAGRAPH, "context"], None), r"data\[0\], paragraphs\[0\]: 'context' is None, not of type str"),
        (changed([*PARAGRAPH, "context"], " \n"), "question q0: its context has no words"),
        (
            changed([*PARAGRAPH, "context"], "\ud800"),
            r"'context' holds half a surrogate pair \(.ud800\) at character 0",
        ),
        (changed([*PARAGRAPH, "qas", 0, "id"], 7), r"qas\[0\]: 'id' is 7"),
        (changed([*PARAGRAPH, "qas", 0, "id"], "q1"), "question q1 occurs twice"),
        (changed([*PARAGRAPH, "qas", 0, "question"], KeyError), "question q0 has no 'question', only 'id', 'answers'"),
        (changed([*PARAGRAPH, "qas", 0, "answers"], "cab"), "question q0: 'answers' is 'cab'"),
        (
            changed([*PARAGRAPH, "qas", 0, "answers", 0, "answer_start"], True),
            r"question q0, answers\[0\]: 'answer_start' is True",
        ),
        (changed([*PARAGRAPH, "qas", 0, "answers", 0, "answer_start"], 5.0), "'answer_start' is 5.0, not of type int"),
        (
            changed([*PARAGRAPH, "qas", 0, "answers"], []),
            "question q0 has no answer, which squad_v1 does not know; .* squad_v2",
        ),
        (changed([*PARAGRAPH, "qas", 0, "is_impossible"], 1), "question q0: 'is_impossible' is 1"),
        (
            of(question("q0", ("cab", 4), ("cab", -11), ("", 3), ("cab", 10**30))),
            r"4 of 4 answers \(100.0%\) are not where",
        ),
    ],
)
def test_bad_files_are_one_clear_error(tmp_path, contents, message):
    with pytest.raises(UserError, match=message):
        load(tmp_path, contents)


def test_templates_of_files_to_be_predicted_are_unlabelled(tmp_path):
    template = of(question("q0", is_impossible=False), question("q1", is_impossible=False))
    for task in ("squad_v1", "squad_v2"):
        examples = load(tmp_path, template, task, "test")
        assert len(examples) == 2 and not examples.has_answers
        with pytest.raises(UserError, match="question q0 has no answer"):
            load(tmp_path, template, task)


@pytest.mark.parametrize(
    "contents, message",
    [
        (of(question("q0", is_impossible=False)), "question q0 has no answer, but is_impossible is false"),
        (of(question("q0", ("cab", 5), is_impossible=True)), "question q0 is_impossible, yet it has the answer 'cab'"),
    ],
)
def test_contradictions_in_version_2(tmp_path, contents, message):
    with pytest.raises(UserError, match=message):
        load(tmp_path, contents, "squad_v2", "dev")


def test_files_of_a_directory(tmp_path):
    find = lambda split, task="squad_v1": squad.load(task, TaskDataConfig(dir=str(tmp_path)), split)
    with pytest.raises(UserError, match="has no train data; looked for train-v1.1.json and found nothing"):
        find("train")
    (tmp_path / "train-mini-v1.1.json").write_text(json.dumps(V1))
    assert len(find("train")) == 5
    (tmp_path / "train-v1.1.json").write_text(json.dumps(of(question("x", ("cab", 5)))))
    assert len(find("train")) == 1
    for name in "ab":
        (tmp_path / f"dev-{name}-v2.0.json").write_text(json.dumps(V2))
    with pytest.raises(
        UserError, match="no dev-v2.0.json, but dev-a-v2.0.json, dev-b-v2.0.json; name .* --data.dev=FILE"
    ):
        find("dev", "squad_v2")
    assert squad.splits("squad_v1", TaskDataConfig(dir=str(tmp_path), test="x.json")) == ("train", "test")
    with pytest.raises(UserError, match="nowhere.json: no such file"):
        squad.load("squad_v1", TaskDataConfig(dev=str(tmp_path / "nowhere.json")), "dev")


def test_tfds(tmp_path):
    builders = pytest.importorskip("tensorflow_datasets")

    class TinySquad(builders.core.GeneratorBasedBuilder):
        VERSION = builders.core.Version("1.0.0")

        def _info(self):
            of = builders.features
            answers = of.Sequence({"text": of.Text(), "answer_start": np.int32})
            return builders.core.DatasetInfo(
                builder=self,
                features=of.FeaturesDict(
                    {
                        "id": of.Text(),
                        "title": of.Text(),
                        "context": of.Text(),
                        "question": of.Text(),
                        "answers": answers,
                        "plausible_answers": answers,
                        "is_impossible": np.bool_,
                    }
                ),
            )

        def _split_generators(self, manager):
            return {"train": self._rows(), "validation": self._rows()}

        def _rows(self):
            paragraph = V2["data"][0]["paragraphs"][0]
            for record in paragraph["qas"]:
                yield (
                    record["id"],
                    {
                        "is_impossible": not record["answers"],
                        "plausible_answers": [],
                        **record,
                        "title": "t",
                        "context": paragraph["context"],
                    },
                )

        def _generate_examples(self):
            raise NotImplementedError

    TinySquad(data_dir=str(tmp_path)).download_and_prepare()
    data = TaskDataConfig(tfds="tiny_squad", tfds_dir=str(tmp_path))
    assert squad.splits("squad_v2", data) == ("train", "dev")
    assert squad.splits("squad_v2", dataclasses.replace(data, test="train[:1]")) == ("train", "dev", "test")
    examples = squad.load("squad_v2", data, "dev")
    same = load(tmp_path, V2, "squad_v2", "dev")
    assert sorted(examples.questions, key=lambda q: q.id) == list(same.questions) and examples.contexts == same.contexts


@pytest.mark.parametrize(
    "task, contents, scores",
    [
        ("squad_v1", V1, {"exact_match": 1, "f1": 1}),
        (
            "squad_v2",
            V2,
            {"exact_match": 1, "f1": 1, "HasAns_exact": 1, "HasAns_f1": 1, "NoAns_exact": 1, "NoAns_f1": 1},
        ),
    ],
)
def test_perfect_scores_give_perfect_answers(tmp_path, monkeypatch, task, contents, scores):
    examples = load(tmp_path, contents, task, "dev")
    features = squad.features(examples, TOKENIZER, OPTIONS[task])
    logits = [np.zeros((len(ids), 2), np.float32) for ids in features.input_ids]
    for row, (start, end) in zip(logits, features.labels):
        row[start, 0], row[end, 1] = 9, 8
    assert squad.score(examples, features, logits).items() >= scores.items()
    files = squad.write_predictions(examples, features, logits, tmp_path, "dev")
    assert files == [
        str(tmp_path / f"{name}.json") for name in ["predictions", "nbest", "null_odds"][: 2 + (task == "squad_v2")]
    ]
    predictions, nbest, *odds = (json.loads(pathlib.Path(file).read_text()) for file in files)
    assert list(predictions) == list(nbest) == [q.id for q in examples.questions]
    assert [predictions["q0"], predictions["q1"]] == ["cab", "É" if task == "squad_v1" else ""]
    assert (
        nbest["q0"][0].keys() == {"text", "probability", "start_logit", "end_logit"}
        and nbest["q0"][0]["start_logit"] == 9
    )
    monkeypatch.setattr(squad, "prediction_names", lambda *_: ["nbest.json"])
    assert squad.write_predictions(examples, features, logits, tmp_path / "one", "dev") == [
        str(tmp_path / "one/nbest.json")
    ]
    assert json.loads((tmp_path / "one/nbest.json").read_text()) == nbest, "what a file holds goes by its name"
    if odds:
        assert odds[0]["q0"] == -17 and odds[0]["q1"] >= 0
        golds = [q.answers for q in examples.questions]
        assert squad_files.evaluate_v2(list(predictions.values()), [-1.0] * 3, golds, 0.0)["f1"] == 1


def test_a_given_threshold_decides(tmp_path):
    examples = load(tmp_path, of(question("q0", ("cab", 5)), question("q1", ("cab", 5))), "squad_v2", "dev")
    for threshold, said in ((0.0, ["", ""]), (3.5, ["cab", ""]), (None, ["cab", "cab"])):
        options = Squad2Options(**LENGTHS, null_threshold=threshold)
        features = squad.features(examples, TOKENIZER, options)
        logits = [np.zeros((len(ids), 2), np.float32) for ids in features.input_ids]
        for row, (start, end), null in zip(logits, features.labels, (5, 6)):
            row[0], row[start, 0], row[end, 1] = null, 4, 3  # null odds 3 and 5
        file = squad.write_predictions(examples, features, logits, tmp_path, "dev")[0]
        assert list(json.loads(pathlib.Path(file).read_text()).values()) == said
        metrics = squad.score(examples, features, logits)
        assert metrics["f1"] == said.count("cab") / 2 and metrics["best_f1"] == 1 and metrics["best_f1_thresh"] == 5
        assert squad.tuned(options, metrics).null_threshold == (5 if threshold is None else threshold)


@pytest.mark.parametrize(
    "task, given, said", [("squad_v1", None, "ab"), ("squad_v2", None, "ab"), ("squad_v2", 2.5, "")]
)
def test_a_model_answers_new_texts_by_the_threshold_of_its_dev_set(task, given, said):
    history = {
        "config": {"finetune": {"task": task, "options": {"null_threshold": given} if task == "squad_v2" else {}}},
        "metrics": {"best_f1_thresh": 3.5},
    }
    model = types.SimpleNamespace(
        head=HeadConfig(kind="span"),
        history=history,
        need_tokenizer=lambda: TOKENIZER,
        config=types.SimpleNamespace(longest_sequence=24),
    )

    def task_scores(batch):
        rows = np.zeros((*batch["input_ids"].shape, 2), np.float32)
        context = batch["token_type_ids"][0].argmax()
        rows[0, 0], rows[0, context + 3] = 5, (4, 3)  # null odds 3
        return rows

    runner = types.SimpleNamespace(task_scores=task_scores, packs_scores=False)
    (answer,) = answers.predict(model, runner, ("a b?", "bad ab, ab"), batch_size=8, progress=False)
    assert answer.text == said and (answer.candidates[0][0] == "") == (task == "squad_v2")
