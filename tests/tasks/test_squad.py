"""SQuAD: files, windows, metric.

Oracles: the rules of evaluate-v1.1.py and evaluate-v2.0.py, written again, and original_squad.py.
"""

import collections
import copy
import dataclasses
import json
import pathlib
import random
import re
import string
import types

import family_pieces
import glue_files
import numpy as np
import original_squad
import pytest
from published_tokenizers import google_basic
from vocabularies import TOKENIZER

from bert_jax.config import HeadConfig
from bert_jax.config.finetuning import task_defaults
from bert_jax.config.options import to_dict
from bert_jax.config.tasks import Squad2Options, SquadOptions, TaskDataConfig
from bert_jax.errors import UserError
from bert_jax.pretrained import answers
from bert_jax.tasks import squad, squad_files
from bert_jax.tasks import squad as squad_windows
from bert_jax.tasks.squad_files import Examples, Question
from bert_jax.tasks.task_data import recorded_options
from bert_jax.tokenization.tokenizer import load_tokenizer

ODD = [
    *("the", "The", "a", "An", "an", "theatre", "A.", "U.S.", "us", "don't", "dont", "1,000", "1000", "–", "-", "—"),
    *("\u00a0", "\t", "", "Zürich", "zürich", "zu\u0308rich", "İ", "i\u0307", "ß", "SS", "中国", "“quoted”"),
    *('"quoted"', "the-end", "Σ", "ς", "a_b", "a\u0301"),
]


def plain_form(text: str) -> str:
    text = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return " ".join(re.sub(re.compile(r"\b(a|an|the)\b", re.UNICODE), " ", text).split())


def overlap(gold: str, said: str, version: int) -> float:
    gold, said = plain_form(gold).split(), plain_form(said).split()
    same = sum((collections.Counter(gold) & collections.Counter(said)).values())
    if version == 2 and (not gold or not said):
        return int(gold == said)
    if same == 0:
        return 0
    precision, recall = 1.0 * same / len(said), 1.0 * same / len(gold)
    return (2 * precision * recall) / (precision + recall)


def published_v1(said, golds):
    exact = f1 = 0
    for text, right in zip(said, golds):
        exact += max(plain_form(text) == plain_form(gold) for gold in right)
        f1 += max(overlap(gold, text, 1) for gold in right)
    return {"exact_match": exact / len(golds), "f1": f1 / len(golds)}


def published_v2(said, odds, golds, threshold):
    raw = {"exact": {}, "f1": {}}
    for i, (text, right) in enumerate(zip(said, golds)):
        right = [gold for gold in right if plain_form(gold)] or [""]
        raw["exact"][i] = max(int(plain_form(gold) == plain_form(text)) for gold in right)
        raw["f1"][i] = max(overlap(gold, text, 2) for gold in right)
    result = {}
    for name, scores in raw.items():
        final = {i: float(not golds[i]) if odds[i] > threshold else score for i, score in scores.items()}
        result[{"exact": "exact_match"}.get(name, name)] = added(final.values()) / len(final)
        for group, wanted in (("HasAns", True), ("NoAns", False)):
            chosen = [score for i, score in final.items() if bool(golds[i]) == wanted]
            result[f"{group}_{name}"] = added(chosen) / len(chosen)
        result[f"best_{name}"], result[f"best_{name}_thresh"] = published_threshold(scores, said, odds, golds)
    return result


def added(values) -> float:
    total = 0
    for value in values:
        total += value  # `sum` compensates from Python 3.12 on
    return total


def published_threshold(scores, said, odds, golds):
    current = best = sum(not answers for answers in golds)
    threshold = 0.0
    for i in sorted(range(len(odds)), key=lambda i: odds[i]):
        current += scores[i] if golds[i] else -1 if said[i] else 0
        if current > best:
            best, threshold = current, odds[i]
    return best / len(scores), threshold


def questions(seed: int, count: int = 300):
    generator = random.Random(seed)
    word = lambda: generator.choice(ODD) + generator.choice([" ", "", "  "])
    phrase = lambda: "".join(word() for _ in range(generator.randrange(5)))
    golds = [[phrase() for _ in range(generator.randrange(4))] for _ in range(count)]
    said = [generator.choice([phrase(), *answers]) for answers in golds]
    said = [text if plain_form(text) else "" for text in said]  # see the corrections of best_threshold
    odds = [generator.gauss(1.5 - 3 * bool(answers), 2) for answers in golds]
    return said, odds, golds


@pytest.mark.parametrize(
    "prediction, golds, exact, f1",
    [
        ("The Mongol Empire.", ["the Mongol Empire", "x"], 1, 1),
        ("the a an", ["..."], 1, 0),  # nothing is left of either: F1 is 0 in v1.1
        ("", ["the"], 1, 0),
        ("", ["x"], 0, 0),
        ("theatre", ["the atre"], 0, 0),  # an article is a whole word
        ("U.S.", ["us", "U S"], 1, 1),
        ("$1,000", ["1000"], 1, 1),
        ("1895–1943", ["1895-1943"], 0, 0),  # an en dash is not ASCII punctuation: it stays
        ("cafe", ["café"], 0, 0),  # accents stay
        ("to be or not to be", ["to be"], 0, 2 * (2 / 6) * 1 / (2 / 6 + 1)),  # multiplicity
        ("x y", ["y z", "x y z"], 0, 2 * 1 * (2 / 3) / (1 + 2 / 3)),  # the best gold answer counts
        ("new\u00a0york", ["New  York"], 1, 1),
    ],
)
def test_v1_by_hand(prediction, golds, exact, f1):
    assert squad_files.evaluate_v1([prediction], [golds]) == {"exact_match": exact, "f1": f1}


@pytest.mark.parametrize("seed", range(5))
def test_equal_to_the_published_rules(seed):
    said, odds, golds = questions(seed)
    answered = [i for i, answers in enumerate(golds) if answers]
    subset = [said[i] for i in answered], [golds[i] for i in answered]
    assert squad_files.evaluate_v1(*subset) == published_v1(*subset)
    for threshold in (-2.0, 0.0, odds[0]):
        assert squad_files.evaluate_v2(said, odds, golds, threshold) == published_v2(said, odds, golds, threshold)
    tuned = squad_files.evaluate_v2(said, odds, golds)
    assert tuned["f1"] == pytest.approx(tuned["best_f1"], abs=1e-14)


@pytest.mark.parametrize("seed", range(20))
def test_no_threshold_is_better_even_among_equal_odds(seed):
    said, odds, golds = questions(seed, 12)
    odds = np.round(np.array(odds) - (seed % 3 == 0) * 50)  # many ties; odds far below 0
    found = squad_files.evaluate_v2(said, odds, golds)
    for name, score in (("exact", "exact_match"), ("f1", "f1")):
        reached = {t: squad_files.evaluate_v2(said, odds, golds, t)[score] for t in [odds.min() - 1, *odds]}
        assert found[f"best_{name}"] == pytest.approx(max(reached.values()), abs=1e-14)
        assert reached[found[f"best_{name}_thresh"]] == pytest.approx(found[f"best_{name}"], abs=1e-14)


def test_where_nothing_should_be_answered_the_threshold_is_below_all_odds():
    found = squad_files.evaluate_v2(["x", "y"], [-7.0, -5.0], [[], []])
    assert found["f1"] == found["best_f1"] == 1 and found["best_f1_thresh"] == -8
    assert "HasAns_f1" not in found and published_threshold([0, 0], ["x", "y"], [-7.0, -5.0], [[], []]) == (1, 0.0)


def test_a_guess_of_which_nothing_is_left_counts_as_no_answer():
    assert squad_files.evaluate_v2(["the", "x"], [0.0, 1.0], [[], ["x"]])["best_f1"] == 1


LENGTHS = {"max_length": 24, "max_query_length": 6}
OPTIONS = {"squad_v1": SquadOptions(**LENGTHS), "squad_v2": Squad2Options(**LENGTHS)}


def question(id: str, *answers: tuple[str, int], **more) -> dict:
    listed = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": id, "question": "a b?", "answers": listed, **more}


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
    assert examples.contexts == ("abcd cab, É. bad",) and examples.has_answers and len(examples) == 5
    assert examples.labels == ()
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
        (b'{"data": ' + b"9" * 5000 + b"}", "the file: 'data' is inf, not of type list"),
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
    message = "no dev-v2.0.json, but dev-a-v2.0.json, dev-b-v2.0.json; name .* --data.dev=FILE"
    with pytest.raises(UserError, match=message):
        find("dev", "squad_v2")
    assert squad.splits("squad_v1", TaskDataConfig(dir=str(tmp_path), test="x.json")) == ("train", "test")
    with pytest.raises(UserError, match="nowhere.json: no such file"):
        squad.load("squad_v1", TaskDataConfig(dev=str(tmp_path / "nowhere.json")), "dev")


def test_tfds(tmp_path):
    def features(of) -> dict:
        answers = of.Sequence({"text": of.Text(), "answer_start": np.int32})
        texts = {name: of.Text() for name in ("id", "title", "context", "question")}
        return texts | {"answers": answers, "plausible_answers": answers, "is_impossible": np.bool_}

    paragraph = V2["data"][0]["paragraphs"][0]
    usual = {"plausible_answers": [], "title": "t", "context": paragraph["context"]}
    rows = [usual | {"is_impossible": not record["answers"]} | record for record in paragraph["qas"]]
    glue_files.write_dataset(tmp_path, "tiny_squad", features, {"train": rows, "validation": rows})
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
    names = ["predictions", "nbest", "null_odds"][: 2 + (task == "squad_v2")]
    assert files == [str(tmp_path / f"{name}.json") for name in names]
    predictions, nbest, *odds = (json.loads(pathlib.Path(file).read_text()) for file in files)
    assert list(predictions) == list(nbest) == [q.id for q in examples.questions]
    assert [predictions["q0"], predictions["q1"]] == ["cab", "É" if task == "squad_v1" else ""]
    assert nbest["q0"][0].keys() == {"text", "probability", "start_logit", "end_logit"}
    assert nbest["q0"][0]["start_logit"] == 9
    monkeypatch.setattr(squad, "prediction_names", lambda *_: ["nbest.json"])
    expected = [str(tmp_path / "one/nbest.json")]
    assert squad.write_predictions(examples, features, logits, tmp_path / "one", "dev") == expected
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

    def compute(_, features, batch_size, progress):
        (ids,), (types,) = features.input_ids, features.token_type_ids
        rows = np.zeros((1, len(ids), 2), np.float32)
        rows[0, 0], rows[0, types.argmax() + 3] = 5, (4, 3)  # null odds 3
        yield np.array([0]), rows

    (answer,) = answers.predict(model, compute, ("a b?", "bad ab, ab"), batch_size=8, progress=False)
    assert answer.text == said and (answer.candidates[0][0] == "") == (task == "squad_v2")


WORDS = ["a", "bad", "abcd", "cab", "(bad", "de)", "a-b", "b.", "Bad", "É.", "e\u0301a", "xyz", "中b", "'c", "d,"]


def pieces(text: str) -> list[str]:
    return [TOKENIZER.tokens[i] for i in TOKENIZER.encode(text)]


def document(generator, words: list[str], count: int, space: str = " ") -> str:
    return "".join(generator.choice(words) + generator.choice(space) for _ in range(count)).strip()


def single(context: str, question: str = "a b?", span=None, task: str = "squad_v2") -> Examples:
    answers = (context[slice(*span)],) if span else ()
    return Examples(task, (context,), (Question("q", question, 0, answers, span),), True)


@pytest.mark.parametrize("seed", range(40))
def test_windows_equal_the_original(seed):
    generator = random.Random(seed)
    context = document(generator, WORDS, generator.randrange(1, 60), " \n\t")
    question, step = document(generator, WORDS, generator.randrange(12)), generator.randrange(1, 30)
    begins = lambda i, c: not c.isspace() and c != "\u0301" and context[max(0, i - 1)] in " \n\t.,()-'"
    start = generator.choice([i for i, c in enumerate(context) if begins(i, c)] or [0])
    later = range(start + generator.randrange(1, 20), len(context))
    end = next((i for i in later if context[i] in " \n\t.,)("), len(context))
    options = SquadOptions(max_length=generator.randrange(14, 40), doc_stride=step, max_query_length=8)
    features = squad.features(single(context, question, (start, end)), TOKENIZER, options)
    answer = context[start:end], start
    expected = original_squad.make_windows(context, question, answer, pieces, options.max_length, step, 8)
    assert [[TOKENIZER.tokens[i] for i in ids] for ids in features.input_ids] == [window.tokens for window in expected]
    assert features.labels.tolist() == [[window.start, window.end] for window in expected]
    assert [types.tolist() for types in features.token_type_ids] == [
        [int(i > window.tokens.index("[SEP]")) for i in range(len(window.tokens))] for window in expected
    ]
    rows = zip(features.first, features.input_ids, features.prefix)
    flags = squad_windows.has_most_context([(first, len(ids) - prefix - 1) for first, ids, prefix in rows])
    assert [row.tolist() for row in flags] == [list(window.most_context.values()) for window in expected]


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("task", ["squad_v1", "squad_v2"])
def test_answers_equal_the_original(seed, task):
    generator = random.Random(seed)
    ascii_words = ["ab", "bad", "abcd", "(bad", "de)", "a-b", "b.", "'c", "d,", "cab", "ed"]
    context, version_2 = document(generator, ascii_words, generator.randrange(1, 50)), task == "squad_v2"
    n_best = generator.randrange(1, 9)
    kind = Squad2Options if version_2 else SquadOptions
    options = kind(max_length=24, doc_stride=5, max_query_length=6, n_best=n_best, max_answer_length=7)
    features = squad.features(single(context, "cab?", task=task), TOKENIZER, options)
    logits = [
        np.float32(np.round(np.random.default_rng([seed, i]).normal(size=(len(ids), 2)), 7 * (seed % 2)))  # even: ties
        for i, ids in enumerate(features.input_ids)
    ]
    for scores in logits:
        scores[0] += seed % 3  # "no answer" at any place of the list
    (found,) = squad.predict(single(context, task=task), features, logits)
    windows = original_squad.make_windows(context, "cab?", None, pieces, 24, 5, 6)
    best, guess, odds = original_squad.answer(
        context, windows, logits, n_best, 7, version_2, lambda text: " ".join(google_basic(text, True))
    )
    if best:
        assert [(answer.text, answer.start_logit, answer.end_logit) for answer in found.answers] == best
        shares = original_squad.softmax([start + end for _, start, end in best])
        assert [entry["probability"] for entry in found.entries()] == pytest.approx(shares)
    else:  # the original says "empty"
        assert [answer.text for answer in found.answers] == [""]
    if guess:  # else 2.0 of the original crashes
        assert found.guess == guess and (not version_2 or found.null_odds == pytest.approx(odds, abs=1e-12))


def test_only_null_among_the_best():
    options = Squad2Options(max_length=24, max_query_length=6, n_best=1)
    examples, scores = single("ab bad"), np.zeros((8, 2), np.float32)
    features = squad.features(examples, TOKENIZER, options)
    for null, cells, guess, odds in (
        (9, {(5, 0): 3, (6, 1): 3}, "", 18),
        (1, {(5, 0): 3, (6, 1): 2}, "ab bad", -3),
        (1, {(6, 0): 3, (5, 1): 3}, "", 2),
    ):
        logits = scores.copy()
        logits[0] = null
        for cell, value in cells.items():
            logits[cell] = value
        (found,) = squad.predict(examples, features, [logits])
        assert (found.guess, found.null_odds, len(found.answers)) == (guess, odds, 2 - (guess == ""))
        assert sum(entry["probability"] for entry in found.entries()) == pytest.approx(1)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_scores_of_a_diverged_model(value):
    examples = single("ab bad", span=(0, 2))
    features = squad.features(examples, TOKENIZER, Squad2Options(max_length=24, max_query_length=6))
    assert all(np.isfinite(m) for m in squad.score(examples, features, [np.full((8, 2), value, np.float32)]).values())


def test_every_answer_that_fits_lies_in_some_window():
    generator = random.Random(1)
    for _ in range(200):
        tokens, room, step = generator.randrange(1, 90), generator.randrange(2, 30), generator.randrange(1, 30)
        spans = squad_windows.windows(tokens, room, step)
        assert spans == original_squad.cut(tokens, room, step)
        shown = [begin <= t < begin + length for t in range(tokens) for begin, length in spans]
        assert np.reshape(shown, (tokens, -1)).any(axis=1).all()
        fits = room - min(step, room) + 1  # tokens that two neighbours share, and one
        for first in range(tokens - fits + 1):
            assert any(begin <= first and first + fits <= begin + length for begin, length in spans)


def test_a_last_window_much_shorter_shows_less_context():
    spans = squad_windows.windows(450, 300, 290)
    flags = squad_windows.has_most_context(spans)
    assert spans == [(0, 300), (290, 160)] and not flags[1][:6].any() and flags[1][6:].all()
    assert flags[1][:10].tolist() == [original_squad.most_context(spans, token) == 1 for token in range(290, 300)]


@pytest.mark.parametrize(
    "text, answer, found",
    [
        ("The leader was John Smith (1895-1943).", "1895", "1895"),  # inside a word of the original: tokens are finer
        # The accent is no token's, yet part of the answer.
        ("café au lait, cafe\u0301 noir", "cafe\u0301", "cafe\u0301"),
        ("CAFÉ Éa", "CAFÉ", "CAFÉ"),  # original case and accents
        ("bad\n\tcab", "bad\n\tcab", "bad\n\tcab"),  # original whitespace
        ("a €27 b", "27", "€27"),  # one [UNK] covers both
        ("in Japanese.", "Japan", "Japanese"),
        ("中中b", "中b", "中b"),
        ("x\u200bx ab", "ab", "ab"),
    ],
)
def test_characters_of_the_answer(text, answer, found):
    context, start = squad_windows.encode(text, TOKENIZER), text.index(answer)
    assert squad_windows.read(text, context, *squad_windows.answer_tokens(context, start, start + len(answer))) == found


@pytest.mark.parametrize("kind", ["wordpiece", "xlm-roberta", "albert"])
@pytest.mark.parametrize(
    "before, after", [("\x10 ", ""), ("\u2026\x10 ", "\x10"), ("", "\u200b"), ("\ufeff", " \ufffd")]
)
def test_what_a_tokenizer_drops_begins_and_ends_no_answer(tmp_path, kind, before, after):
    """SentencePiece makes spaces of some of it, which are part of the word that follows."""
    tokenizer = TOKENIZER
    if kind != "wordpiece":
        (tmp_path / family_pieces.FILES[kind]).write_bytes(family_pieces.train(kind))
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
        tokenizer = load_tokenizer(tmp_path)
    text = f"a {before}cab bad{after} b"
    context, start = squad_windows.encode(text, tokenizer), text.index("cab")
    for begin, answer in ((start, "cab bad"), (start, "cab"), (start + 4, "bad")):
        found = squad_windows.answer_tokens(context, begin, begin + len(answer))
        assert squad_windows.read(text, context, *found) == answer


def test_labels_without_an_answer():
    features = squad.features(single("a b c"), TOKENIZER, Squad2Options(max_length=20, max_query_length=5))
    assert features.labels.tolist() == [[0, 0]] and features.example.tolist() == [0]
    unlabelled = Examples("squad_v2", ("a b",), (Question("q", "a?", 0),), False)
    assert squad.features(unlabelled, TOKENIZER, Squad2Options(max_length=20, max_query_length=5)).labels is None


@pytest.mark.parametrize(
    "context, options, message",
    [
        (
            "a b",
            Squad2Options(max_length=6),
            r"max_length=6 leaves no room for a context next to question q, which has 3 tokens, \[CLS\] and 2 \[SEP\]; "
            "give 7 or more, or cut the questions",
        ),
        ("\u200b", Squad2Options(max_length=384), "question q: the tokenizer leaves nothing of its context"),
    ],
)
def test_what_cannot_become_features(context, options, message):
    with pytest.raises(UserError, match=message):
        squad.features(single(context), TOKENIZER, options)


def test_short_rows_are_enough_for_short_questions():
    """As the message above says, 7 tokens: [CLS] a b ? [SEP] c [SEP]; with longer questions, more."""
    features = squad.features(single("c a b"), TOKENIZER, Squad2Options(max_length=7, doc_stride=1))
    assert [len(ids) for ids in features.input_ids] == [7] * 3 and features.prefix.tolist() == [5] * 3
    config = dataclasses.replace(task_defaults("squad_v2"), options=Squad2Options(max_length=40))
    history = {"config": {"finetune": to_dict(config)}}
    assert recorded_options(history, "squad_v2", 512).max_query_length == 35, "as long as in training"
    assert recorded_options({}, "squad_v2", 60).max_query_length == 20


@pytest.mark.parametrize("casing", ["uncased", "cased"])
def test_real_answers_come_back_to_the_character(shared_data, casing):
    tokenizer = load_tokenizer(shared_data / "vocab" / casing / "vocab.txt")
    examples = squad.load("squad_v1", TaskDataConfig(dir=str(shared_data / "squad")), "dev")
    features = squad.features(examples, tokenizer, SquadOptions(max_length=384))
    exact, same_labels = 0, []
    for index, question in enumerate(examples.questions):
        text, context = examples.contexts[question.context], features.contexts[question.context]
        gold = text[slice(*question.span)]
        exact += squad_windows.read(text, context, *squad_windows.answer_tokens(context, *question.span)) == gold
        if index < 300:
            pieces_of = lambda t: [tokenizer.tokens[i] for i in tokenizer.encode(t)]
            answer = gold, question.span[0]
            windows = original_squad.make_windows(text, question.text, answer, pieces_of, 384, 128, 64)
            same_labels += [(window.start, window.end) for window in windows]
    assert (exact, len(examples)) == (1914, 1916)
    assert np.mean(features.labels[: len(same_labels)] == same_labels) > 0.998
