"""SuperGLUE: files in their original forms, the official scores, and the files of a submission."""

import json
import pathlib

import numpy as np
import pytest

from bert_jax.config.tasks import DataSourceConfig, TaskDataConfig
from bert_jax.errors import UserError
from bert_jax.tasks import superglue
from bert_jax.tasks.task_data import family_of

NEWS = "Anna met Bob Ray in Oslo.\n@highlight\nThe mayor of Oslo spoke"
ENTITIES = [{"start": 0, "end": 3}, {"start": 9, "end": 15}, {"start": 20, "end": 23}, {"start": 50, "end": 53}]
ROWS = {
    "boolq": {"question": "is it wet", "passage": "Rain fell.", "idx": 7, "label": True},
    "cb": {"premise": "I think so.", "hypothesis": "So it is.", "label": "neutral", "idx": 0},
    "superglue_rte": {"premise": "A fell.", "hypothesis": "A moved.", "label": "entailment", "idx": 3},
    "wic": {"word": "bank", "sentence1": "A bank lends.", "sentence2": "A river bank.", "idx": 1, "label": False,
            "start1": 2, "start2": 8, "end1": 6, "end2": 12, "version": 1.1},
    "wsc": {"text": 'Mark told Pete that "he" was late.', "idx": 4, "label": False,
            "target": {"span1_index": 0, "span1_text": "Mark", "span2_index": 4, "span2_text": "he"}},
    "copa": {"premise": "The sun rose.", "choice1": "It was warm.", "choice2": "It was dark.", "question": "effect",
             "label": 0, "idx": 9},
    "multirc": {"idx": 2, "passage": {"text": "Ann sang.", "questions": [
        {"question": "Who sang?", "idx": 5, "answers": [
            {"text": "Ann", "idx": 11, "label": 1}, {"text": "Bob", "idx": 12, "label": 0}]},
        {"question": "Why?", "idx": 6, "answers": [{"text": "For joy", "idx": 13, "label": 0}]}]}},
    "record": {"source": "news", "idx": 8, "passage": {"text": NEWS, "entities": ENTITIES}, "qas": [
        {"query": "@placeholder talked to him", "idx": 21, "answers": [{"start": 0, "end": 3, "text": "Anna"}]},
        {"query": "They met in @placeholder", "idx": 22, "answers": [{"start": 20, "end": 23, "text": "Oslo"}]}]},
}  # fmt: skip
"""A row of each task as its own download has it."""


def write(directory, task, *rows, split="train"):
    file = directory / superglue.SUPERGLUE_TASKS[task].name / superglue.FILES[split]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return TaskDataConfig(dir=str(directory))


def load(directory, task, *rows, split="train", labels=None):
    return superglue.load(task, write(directory, task, *rows, split=split), split, labels)


@pytest.mark.parametrize(
    ("task", "pairs", "answers", "index"),
    [
        ("boolq", [("Rain fell.", "is it wet")], [1], ["7"]),
        ("cb", [("I think so.", "So it is.")], [2], ["0"]),
        ("superglue_rte", [("A fell.", "A moved.")], [0], ["3"]),
        ("wic", [("bank: A bank lends.", "A river bank.")], [0], ["1"]),
        ("wsc", [('Mark told Pete that "*he*" was late.', "Mark")], [0], ["4"]),
        (
            "multirc",
            [("Ann sang.", "Who sang? Ann"), ("Ann sang.", "Who sang? Bob"), ("Ann sang.", "Why? For joy")],
            [1, 0, 0],
            ["2/5/11", "2/5/12", "2/6/13"],
        ),
        (
            "record",  # an entity that the passage names twice is one candidate
            [(NEWS, f"{name} talked to him") for name in ("Anna", "Bob Ray", "Oslo")]
            + [(NEWS, f"They met in {name}") for name in ("Anna", "Bob Ray", "Oslo")],
            [1, 0, 0, 0, 0, 1],
            ["21/Anna", "21/Bob Ray", "21/Oslo", "22/Anna", "22/Bob Ray", "22/Oslo"],
        ),
    ],
)
def test_files_in_their_original_forms_are_read(task, pairs, answers, index, tmp_path):
    examples = load(tmp_path, task, ROWS[task])
    assert list(zip(examples.first, examples.second, strict=True)) == pairs
    assert (examples.answers.tolist(), examples.index) == (answers, index)
    assert superglue.splits(task, TaskDataConfig(dir=str(tmp_path))) == ("train",)
    assert family_of(task) is superglue


def test_copa_is_multiple_choice(tmp_path):
    cause = ROWS["copa"] | {"question": "cause", "label": 1}
    first, second = load(tmp_path, "copa", ROWS["copa"], cause).questions
    assert (first.context, first.stem, first.choices, first.answer) == (
        "The sun rose.", "What happened as a result?", ("It was warm.", "It was dark."), 0,
    )  # fmt: skip
    assert (second.stem, second.answer) == ("What was the cause?", 1)


def test_rows_of_tfds_and_the_hub_are_those_of_the_files(tmp_path):
    """There, a row is one answer of multirc and one query of record, and classes have names of their own."""
    flat = [
        {"paragraph": "Ann sang.", "question": question, "answer": answer, "label": label,
         "idx": {"paragraph": 2, "question": number, "answer": own}}
        for question, number, answer, own, label in (
            ("Who sang?", 5, "Ann", 11, "True"),
            ("Who sang?", 5, "Bob", 12, "False"),
            ("Why?", 6, "For joy", 13, "False"),
        )
    ]  # fmt: skip
    nested = load(tmp_path, "multirc", ROWS["multirc"])
    assert repr(load(tmp_path, "multirc", *flat)) == repr(nested)
    entities = ["Anna", "Bob Ray", "Oslo", "Oslo"]
    flat = [
        {"passage": NEWS, "query": each["query"], "entities": entities, "answers": [each["answers"][0]["text"]],
         "idx": {"passage": 8, "query": each["idx"]}}
        for each in ROWS["record"]["qas"]
    ]  # fmt: skip
    nested = load(tmp_path, "record", ROWS["record"])
    assert repr(load(tmp_path, "record", *flat)) == repr(nested)
    span = ROWS["wsc"]["target"]
    target = {name: value for name, value in ROWS["wsc"].items() if name != "target"} | span | {"label": "False"}
    assert repr(load(tmp_path, "wsc", target)) == repr(load(tmp_path, "wsc", ROWS["wsc"]))
    named = ROWS["copa"] | {"label": "choice1"}
    assert load(tmp_path, "copa", named).questions[0].answer == 0


def logits_of(judged):
    return [np.array([0.0, 1.0 if each else -1.0]) for each in judged]


def test_scores_of_multirc_are_over_answers_and_over_whole_questions(tmp_path):
    """Precision 1/2 and recall 1 over three answers; of two questions one is judged right as a whole."""
    examples = load(tmp_path, "multirc", ROWS["multirc"])
    scores = superglue.score(examples, None, logits_of([1, 1, 0]))
    assert scores == {"f1a": pytest.approx(2 / 3), "exact_match": 0.5}
    assert superglue.score(examples, None, logits_of([1, 0, 0])) == {"f1a": 1.0, "exact_match": 1.0}
    swapped = load(tmp_path, "multirc", ROWS["multirc"], labels=("1", "0"))
    turned = [row[::-1] for row in logits_of([1, 1, 0])]
    assert superglue.score(swapped, None, turned) == scores


def test_scores_of_record_are_those_of_the_likeliest_entity(tmp_path):
    """Query 1 answers "Bob Ray" for "Bob": one word of two, F1 2/3; query 2 is right although no candidate passes 0."""
    rows = json.loads(json.dumps(ROWS["record"]))
    rows["qas"][0]["answers"][0]["text"] = "the Bob"  # articles do not count
    examples = load(tmp_path, "record", rows)
    logits = [np.array([0.0, value]) for value in (0.1, 0.9, 0.2, -5.0, -4.0, -3.0)]
    scores = superglue.score(examples, None, logits)
    assert scores == {"f1": pytest.approx((2 / 3 + 1) / 2), "exact_match": 0.5}


def test_macro_f1_of_cb_is_the_mean_over_classes(tmp_path):
    """Entailment 2·1/(2 + 1), contradiction 0, neutral 1: the mean of three; a class that is nowhere does not count."""
    labels = ("entailment", "entailment", "contradiction", "neutral")
    rows = [ROWS["cb"] | {"label": label, "idx": number} for number, label in enumerate(labels)]
    examples = load(tmp_path, "cb", *rows)
    scores = superglue.score(examples, None, list(np.eye(3)[[0, 2, 0, 2]]))
    by_class = [2 * 1 / (2 + 2), 0.0, 2 * 1 / (1 + 2)]
    assert scores == {"macro_f1": pytest.approx(np.mean(by_class)), "accuracy": 0.5}
    few = load(tmp_path, "cb", rows[0], rows[3])
    assert superglue.score(few, None, list(np.eye(3)[[0, 2]])) == {"macro_f1": 1.0, "accuracy": 1.0}


@pytest.mark.parametrize(
    ("task", "logits", "lines"),
    [
        ("boolq", logits_of([1]), [{"idx": 7, "label": "true"}]),
        ("cb", [np.array([0.0, 2.0, 1.0])], [{"idx": 0, "label": "contradiction"}]),
        ("copa", [np.array([1.0, 2.0])], [{"idx": 9, "label": 1}]),
        (
            "multirc",
            logits_of([0, 1, 1]),
            [{"idx": 2, "passage": {"questions": [
                {"idx": 5, "answers": [{"idx": 11, "label": 0}, {"idx": 12, "label": 1}]},
                {"idx": 6, "answers": [{"idx": 13, "label": 1}]},
            ]}}],
        ),
        (
            "record",
            logits_of([0, 1, 0, 1, 0, 0]),
            [{"idx": 21, "label": "Bob Ray"}, {"idx": 22, "label": "Anna"}],
        ),
        ("wsc", logits_of([0]), [{"idx": 4, "label": "false"}]),
    ],
)  # fmt: skip
def test_a_submission_has_the_numbers_and_classes_of_the_benchmark(task, logits, lines, tmp_path):
    def unlabelled(row):
        if isinstance(row, list):
            return [unlabelled(each) for each in row]
        if not isinstance(row, dict):
            return row
        return {
            key: unlabelled(value)
            for key, value in row.items()
            if key not in ("label", "answers") or task == "multirc" and key == "answers"
        }

    examples = load(tmp_path, task, unlabelled(ROWS[task]), split="test")
    assert not examples.has_answers
    (file,) = superglue.write_predictions(examples, None, logits, str(tmp_path / "out"), "test")
    assert file.endswith(f"/{superglue.SUPERGLUE_TASKS[task].name}.jsonl")
    assert [json.loads(line) for line in pathlib.Path(file).read_text("utf-8").splitlines()] == lines
    assert superglue.prediction_names(examples, "dev") == [f"{superglue.SUPERGLUE_TASKS[task].name}-dev.jsonl"]


WSC, RECORD = ROWS["wsc"], ROWS["record"]
ASKED = ROWS["multirc"]["passage"]
TWICE = ROWS["multirc"] | {"passage": ASKED | {"questions": ASKED["questions"][:1] * 2}}


@pytest.mark.parametrize(
    ("message", "task", "row"),
    [
        ("line 1: 'passage' is missing; expected text", "boolq", {"question": "q", "idx": 0, "label": True}),
        ("line 1: 'question' is empty", "boolq", ROWS["boolq"] | {"question": " "}),
        ("line 1: 'idx' is '7'; expected a whole number", "boolq", ROWS["boolq"] | {"idx": "7"}),
        ("line 1: the label is missing", "boolq", {"question": "q", "passage": "p", "idx": 0}),
        ("line 1: unknown label 'maybe'", "cb", ROWS["cb"] | {"label": "maybe"}),
        ("line 1: unknown label '3'; expected 0 or 1", "copa", ROWS["copa"] | {"label": 3}),
        ("'question' is 'why'; expected cause or effect", "copa", ROWS["copa"] | {"question": "why"}),
        ("span2_text='she' is no word of the text", "wsc", WSC | {"target": WSC["target"] | {"span2_text": "she"}}),
        ("'questions' is {}; expected a list", "multirc", {"idx": 0, "passage": {"text": "t", "questions": {}}}),
        ("'text' is missing", "multirc", {"idx": 0, "passage": {"questions": []}}),
        ("idx '2/5/11' is already that of an example in .*line 1; ids must differ", "multirc", TWICE),
        (r"the entity \(0, 99\) is outside of the passage", "record",
         RECORD | {"passage": {"text": NEWS, "entities": [{"start": 0, "end": 99}]}}),
        ("has no @placeholder", "record", RECORD | {"qas": [{"query": "Who?", "idx": 1, "answers": []}]}),
        ("the passage has no entity", "record", RECORD | {"passage": {"text": NEWS, "entities": []}}),
        ("'idx' is missing; expected an object", "multirc", {"paragraph": "p", "question": "q", "answer": "a"}),
        ("'idx' is 3; expected an object", "record", {"passage": "p", "query": "q", "idx": 3}),
        ("3 is no entity or answer; expected text", "record",
         {"passage": "p", "query": "@placeholder", "entities": [3], "answers": [], "idx": {"passage": 0, "query": 0}}),
        ("'idx' is missing", "record", RECORD | {"qas": ["Who?"]}),
    ],
)  # fmt: skip
def test_a_broken_row_is_refused_by_its_line(message, task, row, tmp_path):
    with pytest.raises(UserError, match=message):
        load(tmp_path, task, row)


def test_half_characters_are_replaced(tmp_path):
    """JSON can spell them, but no tokenizer and no file of predictions takes them."""
    examples = load(tmp_path, "boolq", ROWS["boolq"] | {"passage": "Rain \ud800"})
    assert examples.first == ["Rain \ufffd"]
    flat = {"passage": "Bob", "query": "@placeholder?", "entities": ["Bob\ud800"], "answers": ["Bob\ud800"]}
    examples = load(tmp_path, "record", flat | {"idx": {"passage": 0, "query": 1}})
    (file,) = superglue.write_predictions(examples, None, logits_of([1]), str(tmp_path), "dev")
    assert json.loads(pathlib.Path(file).read_text("utf-8"))["label"] == "Bob\ufffd" and examples.answers.tolist() == [
        1
    ]


def test_a_file_of_another_format_is_refused(tmp_path):
    (tmp_path / "train.tsv").write_text("passage\tquestion\n")
    with pytest.raises(UserError, match="determined by the end of its name, .jsonl, .parquet, .arrow, .feather"):
        superglue.load("boolq", TaskDataConfig(train=str(tmp_path / "train.tsv")), "train")


def test_classes_of_another_task_are_refused(tmp_path):
    with pytest.raises(UserError, match="cb has the classes entailment, contradiction, neutral, but the model has yes"):
        load(tmp_path, "cb", ROWS["cb"], labels=("yes", "no"))


RTE_LABELS = ("entailment", "not_entailment")


def test_ax_b_is_read_from_its_own_file_for_models_of_rte(tmp_path):
    (tmp_path / "AX-b").mkdir()
    row = {"sentence1": "A cat sat.", "sentence2": "It sat.", "logic": "", "idx": 4, "label": "not_entailment"}
    (tmp_path / "AX-b/AX-b.jsonl").write_text(
        f"{json.dumps(row)}\n{json.dumps(row | {'idx': 5, 'label': 'entailment'})}\n"
    )
    data = DataSourceConfig(dir=str(tmp_path))
    assert superglue.splits("axb", data) == ("test",)
    examples = superglue.load("axb", data, "test", RTE_LABELS[::-1])  # the order of the model's outputs
    assert (examples.first[0], examples.second[0], examples.answers.tolist()) == ("A cat sat.", "It sat.", [0, 1])
    logits = [np.array([1.0, 0.0]), np.array([0.0, 1.0])]
    assert superglue.score(examples, None, logits) == {"matthews": 1.0, "accuracy": 1.0}
    (file,) = superglue.write_predictions(examples, None, logits, str(tmp_path), "test")
    assert pathlib.Path(file).name == "AX-b.jsonl"
    assert json.loads(pathlib.Path(file).read_text().splitlines()[1]) == {"idx": 5, "label": "entailment"}
    with pytest.raises(UserError, match="axb has no train split, only test; it tests models of superglue_rte"):
        superglue.load("axb", data, "train")


def axg(directory, *rows):
    file = directory / "AX-g.jsonl"
    pairs = [
        {"premise": "Ann met Bob.", "hypothesis": "She met him.", "idx": number} | row
        for number, row in enumerate(rows)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in pairs))
    return superglue.load("axg", DataSourceConfig(dir=str(directory)), "test")


def test_ax_g_counts_the_pairs_that_are_judged_alike(tmp_path):
    """Of three pairs, whose rows need not be neighbours, two are judged alike, one of them wrongly."""
    labels = ["entailment", "not_entailment"]
    rows = [{"pair_id": pair, "label": labels[pair % 2]} for pair in (551, 12, 551, 7, 12, 7)]
    examples = axg(tmp_path, *rows)  # answers: 551 and 7 not_entailment, 12 entailment
    found = logits_of([1, 0, 1, 0, 1, 0])  # 551: alike and right; 12: one of each; 7: alike and wrong
    scores = superglue.score(examples, None, found)
    assert scores == {"gender_parity": pytest.approx(2 / 3), "accuracy": pytest.approx(3 / 6)}
    assert superglue.metrics(examples) == ("gender_parity", "accuracy")
    without = axg(tmp_path, *[{"label": row["label"]} for row in rows])
    assert superglue.score(without, None, found) == {"accuracy": pytest.approx(3 / 6)}
    with pytest.raises(UserError, match="'pair_id' 7 is that of 1 examples; a pair has two"):
        axg(tmp_path, *rows[:3], *rows[4:])
    with pytest.raises(UserError, match="some examples have a 'pair_id' and others none"):
        axg(tmp_path, *rows[:3], {"label": "entailment"})
