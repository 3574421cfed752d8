"""Multiple choice from its three forms of files to sequences, accuracy and predictions."""

import csv
import json

import glue_files
import numpy as np
import pytest

from bert_jax.config.tasks import ChoiceOptions, TaskDataConfig
from bert_jax.errors import UserError
from bert_jax.tasks import choice
from bert_jax.tokenization.tokenizer import Tokenizer
from bert_jax.tokenization.wordpiece import WordPiece

HEADER = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"
SWAG = (
    HEADER
    + """0,v,1,"A man, here. He","A man, here.",He,gold,runs.,"says ""hi"".","sits,
down.",eats.,2
7,v,2,A dog. It,A dog.,It,gen,sits.,runs.,eats.,barks.,0
"""
)
ARTICLE = {
    "article": "A man runs.",
    "questions": ["Who runs?", "What does _ do?"],
    "id": "high1.txt",
    "options": [["A man", "A dog", "It"], ["runs", "sits", "eats"]],
    "answers": ["A", "C"],
}
LINE = {"context": "A man runs.", "question": "Who runs?", "choices": ["A man", "A dog"], "answer": 1}
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"a man dog it runs sits who does eats . ?".split()]
TOKENIZER = Tokenizer(WordPiece(PIECES, lowercase=True))


def write(path, name, *records):
    (path / name).parent.mkdir(parents=True, exist_ok=True)
    text = "".join(record if isinstance(record, str) else json.dumps(record) + "\n" for record in records)
    (path / name).write_bytes(text.encode("utf-8", "surrogatepass"))
    return TaskDataConfig(dir=str(path))


def load(path, name, *records, task="choice", split="train"):
    return choice.load(task, write(path, name, *records), split)


def test_swag_is_read_with_and_without_answers(tmp_path):
    examples = load(tmp_path, "train.csv", SWAG, task="swag")
    first, second = examples.questions
    assert first[1:6] == ("A man, here.", "He", ("runs.", 'says "hi".', "sits,\ndown.", "eats."), 2, "0")
    assert (second.answer, second.index, second.where) == (0, "7", f"{tmp_path}/train.csv, line 4")
    without = SWAG.replace(",label", "").replace(",2\n", "\n").replace(",0\n", "\n")
    unlabelled = load(tmp_path, "test.csv", without, split="test")
    assert not unlabelled.has_answers
    assert [q.choices for q in unlabelled.questions] == [q.choices for q in examples.questions]
    assert choice.features(unlabelled, TOKENIZER, ChoiceOptions()).labels is None


def test_race(tmp_path):
    write(tmp_path, "dev/high/1.txt", ARTICLE)
    middle = ARTICLE | {"id": "m2", "answers": ["B", "A"]}
    examples = load(tmp_path, "dev/middle/2.txt", middle, task="race", split="dev")
    assert [(q.stem, q.answer, q.index) for q in examples.questions] == [
        ("Who runs?", 0, "high1.txt/0"),
        ("What does _ do?", 2, "high1.txt/1"),
        ("Who runs?", 1, "m2/0"),
        ("What does _ do?", 0, "m2/1"),
    ]
    assert examples.questions[1].choices == ("runs", "sits", "eats")
    middle = choice.load("race", TaskDataConfig(train=str(tmp_path / "dev" / "middle")), "train")
    assert choice.splits("race", TaskDataConfig(dir=str(tmp_path))) == ("dev",)
    assert len(middle) == 2 and middle.questions[1].where.endswith("dev/middle/2.txt, question 2")


@pytest.mark.parametrize("answer, index", [(1, 1), ("1", 1), ("B", 1), ("a", 0), (0, 0)])
def test_questions_are_read_from_json_lines(tmp_path, answer, index):
    (question,) = load(tmp_path, "train.jsonl", LINE | {"answer": answer}).questions
    assert question[1:6] == ("A man runs.", "Who runs?", ("A man", "A dog"), index, "0")
    without = {key: value for key, value in LINE.items() if key != "question"}
    assert load(tmp_path, "train.jsonl", without).questions[0].stem == ""


@pytest.mark.parametrize(
    "name, records, where, message",
    [
        ("train.csv", [SWAG.replace("eats.,2", "eats.,4")], ", line 2", "the answer '4' is none of the 4 choices"),
        ("train.csv", [SWAG.replace("barks.,0", "barks.,")], ", line 4", "the answer is missing"),
        ("train.csv", [SWAG.replace(",barks.", "")], ", line 4", "11 columns, but the header has 12"),
        ("train.csv", [SWAG.replace("barks.", " ")], ", line 4", "choice 3 is empty"),
        ("train.csv", [SWAG.replace("ending1", "distractor")], ", line 1", "no column ending1"),
        ("train.csv", [SWAG.replace('"A man, here."', 'A "man')], ", line 2", "quotation mark inside a field"),
        (
            "train.jsonl",
            [LINE, LINE | {"choices": ["A", "B", "C"]}],
            ", line 2",
            "3 choices, but earlier questions have 2",
        ),
        ("train.jsonl", [LINE, {"context": "A"}], ", line 2", "choices is missing"),
        ("train.jsonl", [LINE | {"choices": ["A"]}], ", line 1", "1 choices; a question has 2 to 26"),
        ("train.jsonl", [LINE | {"choices": ["A"] * 27}], ", line 1", "27 choices; a question has 2 to 26"),
        ("train.jsonl", [LINE | {"choices": ["A", 3]}], ", line 1", "choice 1 is not text but 3"),
        ("train.jsonl", [LINE | {"answer": "C"}], ", line 1", "the answer 'C' is none of the 2 choices"),
        ("train.jsonl", [LINE | {"answer": "AB"}], ", line 1", "the answer 'AB' is none"),
        ("train.jsonl", [LINE | {"answer": True}], ", line 1", "the answer 'True' is none"),
        ("train.jsonl", [LINE | {"answer": "9" * 5000}], ", line 1", "is none of the 2 choices"),
        ("train.jsonl", [LINE | {"answer": None}], ", line 1", "train needs questions with answers"),
        ("train.jsonl", [LINE | {"context": " "}], ", line 1", "context is empty"),
        ("train.jsonl", ["{\n"], ", line 1", "not JSON"),
        ("train.jsonl", [{"text": "A"}], ", line 1", "neither sent1 (SWAG) nor article (RACE) nor context"),
        ("train/1.txt", [ARTICLE | {"answers": ["A"]}], "", "2 questions, 2 lists of options and 1 answers"),
        ("train/1.txt", [ARTICLE | {"answers": ["A", "D"]}], ", question 2", "the answer 'D' is none of the 3 choices"),
        (
            "train/1.txt",
            [ARTICLE | {"options": ["AB", "CD"]}],
            "",
            'options holds "AB" where a list of choices belongs',
        ),
        ("train/1.txt", ["nothing"], "", "not JSON"),
    ],
)
def test_bad_questions_are_named(tmp_path, name, records, where, message):
    with pytest.raises(UserError) as caught:
        load(tmp_path, name, *records)
    assert str(caught.value).startswith(f"{tmp_path}/{name}{where}: ") and message in str(caught.value)


def test_data_without_questions_are_refused(tmp_path):
    with pytest.raises(UserError, match="no dev data; looked for val.csv, dev.csv"):
        load(tmp_path, "train.jsonl", LINE, split="dev")
    with pytest.raises(UserError, match="train.jsonl holds no question"):
        load(tmp_path, "train.jsonl", "\n")
    write(tmp_path, "train.tsv", "x")
    with pytest.raises(UserError, match="expected SWAG's .csv"):
        choice.load("swag", TaskDataConfig(train=str(tmp_path / "train.tsv")), "train")


def test_one_sequence_a_choice(tmp_path):
    examples = load(tmp_path, "train.jsonl", LINE, LINE | {"choices": ["It \ud800 sits", "dog"], "answer": 0})
    features = choice.features(examples, TOKENIZER, ChoiceOptions(max_length=12))
    by_name = [[" ".join(PIECES[i] for i in ids) for ids in row] for row in features.input_ids]
    assert by_name == [
        ["[CLS] a man runs . [SEP] who runs ? a man [SEP]", "[CLS] a man runs . [SEP] who runs ? a dog [SEP]"],
        ["[CLS] a man runs . [SEP] who runs ? it sits [SEP]", "[CLS] a man runs . [SEP] who runs ? dog [SEP]"],
    ]
    assert [types.tolist() for types in features.token_type_ids[1]] == [[0] * 6 + [1] * 6, [0] * 6 + [1] * 5]
    assert features.labels.tolist() == [1, 0] and features.labels.dtype == np.int32
    assert features.example.tolist() == [0, 1]
    short = choice.features(examples, TOKENIZER, ChoiceOptions(max_length=8))
    assert [PIECES[i] for i in short.input_ids[0][0]] == "[CLS] a man runs [SEP] who runs [SEP]".split()
    assert choice.head("choice").outputs == 1


def test_accuracy_and_predictions(tmp_path):
    examples = load(tmp_path, "train.csv", SWAG, task="swag")
    logits = [np.array([0, 1, 2, -1], np.float32), np.array([0, 5, 0, 0], np.float32)]
    assert choice.score(examples, None, logits) == {"accuracy": 0.5}
    (file,) = choice.write_predictions(examples, None, logits, tmp_path, "test")
    with open(file, newline="") as stream:
        assert file.endswith("/test_predictions.csv")
        assert list(csv.reader(stream)) == [["", "pred"], ["0", "2"], ["7", "1"]]
    race = load(tmp_path, "dev/1.txt", ARTICLE, task="race", split="dev")
    logits = [np.log(np.array([1, 2, 5], np.float32)), np.zeros(3, np.float32)]
    (file,) = choice.write_predictions(race, None, logits, tmp_path, "dev")
    with open(file) as stream:
        assert [json.loads(line) for line in stream] == [
            {"id": "high1.txt/0", "answer": "C", "probabilities": [0.125, 0.25, 0.625]},
            {"id": "high1.txt/1", "answer": "A", "probabilities": [0.333333] * 3},
        ]


def test_tfds(tmp_path):
    def features(of) -> dict:
        many = of.Sequence(of.Text())
        texts = {"article": of.Text(), "example_id": of.Text()}
        return texts | {"questions": many, "options": of.Sequence(many), "answers": many}

    row = {key: value for key, value in ARTICLE.items() if key != "id"} | {"example_id": "high1.txt"}
    glue_files.write_dataset(tmp_path / "tfds", "tiny_race", features, {"train": [row]})
    found = choice.load("race", TaskDataConfig(tfds="tiny_race", tfds_dir=str(tmp_path / "tfds")), "train")
    expected = load(tmp_path, "train/1.txt", ARTICLE, task="race")
    assert [question[1:] for question in found.questions] == [question[1:] for question in expected.questions]
    assert found.questions[1].where == "tiny_race, split train, example 0, question 2"
