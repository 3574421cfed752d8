"""Tasks of texts: files, data sets, noise, and cuts."""

import csv
import dataclasses
import io
import json
import pathlib

import glue_files
import numpy as np
import pytest
from pretrained_model import CONFIG, TOKENIZER

from bert_jax.config import HeadConfig
from bert_jax.config.finetuning import FinetuneConfig, check_finetune, task_defaults
from bert_jax.config.options import with_options
from bert_jax.config.pretraining import NoiseConfig
from bert_jax.config.tasks import (
    ChoiceOptions,
    SentenceOptions,
    SquadOptions,
    TaggingDataConfig,
    TaskDataConfig,
    TextDataConfig,
)
from bert_jax.data import sequences
from bert_jax.data.sequences import Uncut
from bert_jax.errors import UserError
from bert_jax.finetuning.plan import prior_loss
from bert_jax.objectives.tasks import classification_sums
from bert_jax.randomness import Stream, permute
from bert_jax.tasks import choice, glue, ner, readers, sentences, squad, squad_files, task_data, text
from bert_jax.tasks import readers as rows
from bert_jax.tasks.choice import Question
from bert_jax.tasks.conll import Sentence
from bert_jax.tasks.sentences import Sentences
from bert_jax.tasks.squad_files import Examples as Asked
from bert_jax.tasks.squad_files import Question as AskedQuestion
from bert_jax.tasks.task_data import noisy_examples
from bert_jax.tokenization.tokenizer import Tokenizer
from bert_jax.tokenization.wordpiece import WordPiece

TEXTS = ["Plain.", 'He said "no", twice', "Über\u2028allem", "comma, and more"]
LABELS = ["pos", "neg", "pos", "neg"]


def write(directory, name: str, content: str | bytes):
    file = directory / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode(errors="surrogateescape"))
    return file


def load(directory, split="train", labels=None, **options):
    return text.load("text", TextDataConfig(dir=str(directory), **options), split, labels)


def fails(message, directory, split="train", labels=None, **options):
    with pytest.raises(UserError, match=message):
        load(directory, split, labels, **options)


def csv_of(table) -> str:
    """Python's own CSV writer, with the line ends of RFC 4180."""
    out = io.StringIO()
    csv.writer(out).writerows(table)
    return out.getvalue()


FORMS = {
    "train.tsv": "\n".join(["\ufefftext\tlabel", *map("\t".join, zip(TEXTS, LABELS))]) + "\n",
    "train.csv": csv_of([("label", "text"), *zip(LABELS, TEXTS)]),
    "train.jsonl": "".join(json.dumps({"text": a, "label": b}) + "\r\n" for a, b in zip(TEXTS, LABELS)),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms(name, tmp_path):
    write(tmp_path, name, FORMS[name])
    examples = load(tmp_path)
    assert (examples.first, examples.second, examples.labels) == (TEXTS, None, ("neg", "pos"))
    assert examples.answers.tolist() == [1, 0, 1, 0] and examples.index == ["0", "1", "2", "3"]
    assert text.head("text", examples.labels) == HeadConfig(labels=("neg", "pos"))
    assert load(tmp_path, labels=("pos", "neg")).answers.tolist() == [0, 1, 0, 1]
    by_name = text.load("text", TextDataConfig(test=str(tmp_path / name)), "test", ("neg", "pos"))
    assert by_name.first == TEXTS and by_name.has_answers


def test_a_directory_for_each_class(tmp_path):
    """IMDb's form."""
    for name, content in {
        "train/pos/1_9.txt": "Good.<br />Two\nlines",
        "train/neg/0_1.txt": "Bad.",
        "train/unsup/0_0.txt": "What.",
        "train/bow.feat": "0:1",
        "test/pos/0_10.txt": "Better.",
    }.items():
        write(tmp_path, name, content)
    train, dev = load(tmp_path), load(tmp_path, "dev", ("neg", "pos"), dev=str(tmp_path / "test"))
    assert (train.first, train.answers.tolist()) == (["Bad.", "Good.<br />Two\nlines"], [0, 1])
    assert (dev.first, dev.answers.tolist(), dev.index) == (["Better."], [1], ["pos/0_10.txt"])
    write(tmp_path, "test/pos/1_10.txt", " \n")
    fails("1_10.txt is empty", tmp_path, "test", ("neg", "pos"))
    (tmp_path / "dev").mkdir()
    fails("has no directory with .txt files for each class", tmp_path, "dev")


def test_columns(tmp_path):
    write(tmp_path, "train.csv", "id,a,b,stars\n7,x,y,10\n8,z,w,9\n")
    examples = load(tmp_path, text_column="a", pair_column="b", label_column="stars")
    # Sorted as numbers.
    assert (examples.first, examples.second, examples.labels) == (["x", "z"], ["y", "w"], ("9", "10"))
    examples = load(tmp_path, text_column="a", pair_column="b", label_column="stars", regression=True)
    assert (examples.labels, examples.answers.tolist(), examples.answers.dtype) == ((), [10, 9], np.float64)
    assert text.head("text", examples.labels) == HeadConfig(kind="regression")
    # As the model has it.
    assert load(tmp_path, labels=(), text_column="a", label_column="stars").answers.tolist() == [10, 9]
    write(tmp_path, "dev.tsv", "1\tx\n0\ty\n")
    write(tmp_path, "test.tsv", "x\ny\n")
    assert load(tmp_path, "dev", text_column="2", label_column="1").first == ["x", "y"]
    test = load(tmp_path, "test", ("0", "1"), text_column="1", label_column="2")
    assert test.first == ["x", "y"] and not test.has_answers


MISSING = ["null", "NA", "nan", "None", "NaN", "N/A", "<NA>", "#N/A", "nil", "-", "true"]
"""What readers of tables take for a value that is not there, or for no text."""


@pytest.mark.parametrize("name", ["train.tsv", "train.csv", "train.jsonl"])
def test_words_for_what_is_missing_are_text_and_labels(tmp_path, name):
    rows = [(word, MISSING[number - 1]) for number, word in enumerate(MISSING)]
    if name == "train.jsonl":
        content = "".join(json.dumps({"text": first, "label": second}) + "\n" for first, second in rows)
    else:
        between = "\t" if name == "train.tsv" else ","
        content = "".join(f"{first}{between}{second}\n" for first, second in [("text", "label"), *rows])
    write(tmp_path, name, content)
    examples = load(tmp_path)
    assert examples.first == MISSING and set(examples.labels) == set(MISSING)
    assert [examples.labels[answer] for answer in examples.answers] == [label for _, label in rows]


def test_json_values(tmp_path):
    write(
        tmp_path,
        "train.jsonl",
        '{"sentence1": "a", "sentence2": "b", "label": 1}\n\n'
        '{"label": "0", "sentence2": "half \\ud83d", "sentence1": "c"}',
    )
    examples = load(tmp_path)
    assert (examples.second, examples.labels, examples.answers.tolist()) == (["b", "half \ufffd"], ("0", "1"), [1, 0])
    write(tmp_path, "test.jsonl", '{"text": "a", "label": null}')
    assert not load(tmp_path, "test", ("0", "1")).has_answers
    write(tmp_path, "dev.jsonl", '{"text": "a", "label": 0.5}\n{"text": "b", "label": -3e2}')
    assert load(tmp_path, "dev", ()).answers.tolist() == [0.5, -300]


@pytest.mark.parametrize(
    "table",
    [
        [["a", "b"], ["", "x"], ['"', '""'], ["two\r\nlines", ","], ["\r", "\u2028"], [" a ", "'"]],
        [["one"], ["two\nlines"], ["three"]],
    ],
)
def test_csv_reads_what_python_writes(table):
    for written in (csv_of(table), csv_of(table).removesuffix("\r\n")):
        assert [fields for _, fields in rows.csv(written, "x.csv")] == table
    lines = [1 + sum("\n" in cell for row in table[:i] for cell in row) + i for i in range(len(table))]
    assert [number for number, _ in rows.csv(csv_of(table), "x.csv")] == lines


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train.tsv", "text\tlabel\na\t0\nb\tc\t1\n", "train.tsv, line 3: 3 columns, line 1 has 2"),
        ("train.tsv", "text\tlabel\na\t0\n\n  \t1\n", "line 4: the text in column 'text' is empty"),
        ("train.tsv", "text\tlabel\na\t0\nb\t\n", "line 3: the label is missing"),
        ("train.tsv", "text\tlabel\na\t0\nb\udcff\t1\n", "line 3: not UTF-8 .byte 0xff"),
        (
            "train.tsv",
            "a good film\t1\na bad film\t0\n",
            "no column text or sentence.*among 'a good film', '1'.*by numbers",
        ),
        ("train.tsv", "text\ttext\na\tb\n", "two columns have the same name"),
        ("train.tsv", "text\tlabel\na\tx\nb\tx\n", "line 2, and every other example, has the label 'x'"),
        ("train.tsv", "text\tlabel\n" + "".join(f"a\t{i}5\n" for i in range(30)), "occurs once.*--data.regression"),
        (
            "train.tsv",
            "text\tlabel\n" + "".join(f"a\t{i % 26 / 5}\n" for i in range(200)),
            "line 2: the label '0.0' is a decimal number.*26 different.*--data.regression=true.*data.regression=false",
        ),
        (
            "train.jsonl",
            '{"text": "a", "label": 1}\n{"text": "b", "label": -2.5e-1}',
            "line 2: the label '-0.25' is a dec",
        ),
        ("train.tsv", "text\tlabel\na\tx\n".encode("utf-16"), "train.tsv is UTF-16, not UTF-8; convert it: iconv"),
        ("train.tsv", "text\tlabel\na\tx\n".encode("utf-16-le"), "train.tsv is UTF-16LE, not UTF-8"),
        ("train.csv", "text,label\na,x\n".encode("utf-16-be"), "train.csv is UTF-16BE, not UTF-8"),
        ("train.csv", "text,label\na,x\n".encode("utf-32"), "train.csv is UTF-32, not UTF-8"),
        ("train.tsv", "text\tlabel\ra\tx\r", r"train.tsv: its lines end in carriage returns alone.*tr '\\r' '\\n'"),
        ("train.jsonl", '{"text": "a", "label": "x"}\r{"text": "b", "label": "y"}\r', "carriage returns alone"),
        ("train.tsv", "text\tlabel\n", "holds no example"),
        (
            "train.csv",
            'text,label\na,0\n"b,1\nc,0\n',
            "train.csv, line 3: a quotation mark opens here and is never closed",
        ),
        ("train.csv", 'text,label\n"two\nlines",0\nb "c",1\n', "line 4: a quotation mark inside a field"),
        ("train.csv", 'text,label\n"b" c,1\n', "line 2: text after a closing quotation mark"),
        ("train.csv", "text,label\na,b,1\n", "line 2: 3 columns, line 1 has 2"),
        ("train.jsonl", '{"text": "a", "label": "x"}\n{"text": ', "train.jsonl, line 2: not JSON"),
        ("train.jsonl", '["a", "x"]', "line 1: expected an object"),
        ("train.jsonl", "[" * 100_000, "line 1: not JSON"),
        ("train.jsonl", '{"text": "a", "label": "x"}\n{"label": "y"}', "line 2: 'text' is missing"),
        ("train.jsonl", '{"text": 3, "label": "x"}', "line 1: 'text' is 3, not text"),
        (
            "train.jsonl",
            '{"text": "a", "label": ["x"]}',
            r"line 1: the label \['x'\] is a list; give --data.several_labels=true",
        ),
        ("train.jsonl", '{"text": "a", "label": "x\\ty"}', "line 1: the label .* do not print"),
        ("train.jsonl", '{"text": "a", "label": 1}\n{"text": "b", "label": NaN}', "line 2: the label is missing"),
        ("train.jsonl", '{"text": "a", "label": 1}\n{"text": "b", "label": 1e999}', "line 2: the label is infinite"),
        (
            "train.jsonl",
            '{"text": "a", "label": 0}\n{"text": "b", "text_pair": "c", "label": 1}',
            "train.jsonl, line 2 has 'text_pair', which the first example lacks",
        ),
        ("train.jsonl", '{"text": "a"}', "line 1: no column label among 'text'; name one with --data.label_column"),
    ],
)
def test_a_damaged_file_is_refused(name, content, message, tmp_path):
    write(tmp_path, name, content)
    fails(message, tmp_path)


def test_numbers_are_classes_or_estimated_as_is_said(tmp_path):
    def labels(numbers, **options):
        write(tmp_path, "train.tsv", "text\tlabel\n" + "".join(f"a\t{number}\n" for number in numbers))
        return load(tmp_path, **options).labels

    assert labels(["0.5", "10", "-2.0"], regression=False) == ("-2.0", "0.5", "10")
    assert labels(["0.5", "10", "-2.0"], regression=True) == ()
    assert labels(["0.5", "10", "n/a"]) == ("0.5", "10", "n/a"), "a name is among them"
    assert labels(["2", "10", "-1", "-2", "+3", "7" * 5000]) == ("-2", "-1", "2", "+3", "10", "7" * 5000)
    rows = [("a", 0.5), ("b", 2.0)]
    assert text.load("text", TextDataConfig(regression=False), "train", given={"train": rows}).labels == ("0.5", "2.0")


def test_a_label_has_one_spelling(tmp_path, caplog):
    """É as one character or as two, in files, in names of directories and columns, and in a model's classes."""
    write(tmp_path, "train.tsv", "text\tcatégorie\na\té\nb\te\u0301\nc\tx\n")
    train = load(tmp_path, label_column="cate\u0301gorie")
    assert (train.labels, train.answers.tolist()) == (("x", "é"), [1, 1, 0])
    said = [record.getMessage() for record in caplog.records if "composed form (NFC)" in record.getMessage()]
    assert len(said) == 1 and "line 3" in said[0]
    write(tmp_path, "dev.jsonl", '{"text": "a", "label": "e\\u0301"}\n{"text": "b", "label": "\\u00e9"}')
    for known in (("x", "é"), ("x", "e\u0301")):
        assert load(tmp_path, "dev", known).answers.tolist() == [1, 1]
    write(tmp_path, "test/e\u0301/1.txt", "a")
    assert load(tmp_path, "test", ("x", "é")).answers.tolist() == [1]


def test_a_number_of_many_digits_in_another_field_is_no_matter(tmp_path):
    write(tmp_path, "train.jsonl", '{"text": "a", "label": "x", "id": %s}\n{"text": "b", "label": "y"}' % ("7" * 4301))
    assert load(tmp_path).first == ["a", "b"]


def test_what_only_later_lines_have_is_not_lost(tmp_path):
    lines = '{"text": "a"}\n{"text": "b", "text_pair": null, "label": ""}\n'
    write(tmp_path, "test.jsonl", lines)
    examples = load(tmp_path, "test", ("x", "y"))
    assert (examples.first, examples.second, examples.has_answers) == (["a", "b"], None, False)
    for more, message in (
        ('{"text": "c", "label": "x"}', "'label'"),
        ('{"text": "c", "sentence2": "d"}', "'sentence2'"),
    ):
        write(tmp_path, "test.jsonl", lines + more)
        fails(f"test.jsonl, line 3 has {message}, which the first example lacks", tmp_path, "test", ("x", "y"))
    write(tmp_path, "test.jsonl", '{"text": "a"}\n{"text": "b", "stars": 3}')
    fails("line 2 has 'stars'", tmp_path, "test", ("x", "y"), label_column="stars")


def test_bad_requests(tmp_path):
    fails("looked for train.tsv, train.csv, train.jsonl, train", tmp_path)
    write(tmp_path, "dev.csv", "text,label\na,pos\nb,posi\n")
    message = "dev.csv, line 3: unknown label 'posi'; expected one of neg, pos; perhaps 'pos'"
    fails(message, tmp_path, "dev", ("neg", "pos"))
    fails("line 2: the label 'pos' is not a number", tmp_path, "dev", regression=True)
    fails("line 2: no column 'stars' among 'text', 'label'", tmp_path, "dev", label_column="stars")
    fails("line 2: no column 'b' .*--data.pair_column", tmp_path, "dev", pair_column="b")
    sheet = str(write(tmp_path, "x.xlsx", ""))
    fails("the format of a file is determined by the end of its name", tmp_path, train=sheet)
    fails("no such file", tmp_path, train=str(tmp_path / "none.tsv"))


def test_scores_features_and_predictions(tmp_path):
    write(tmp_path, "train.tsv", FORMS["train.tsv"])
    examples = load(tmp_path)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "plain", "."]
    features = text.features(examples, Tokenizer(WordPiece(vocabulary, lowercase=True)), SentenceOptions(max_length=8))
    assert features.input_ids[0].tolist() == [2, 5, 6, 3] and features.labels.tolist() == [1, 0, 1, 0]
    logits = [np.float32([0, 1]), np.float32([np.log(3), 0]), np.float32([0, 1]), np.float32([0, 1])]
    scores = text.score(examples, features, logits)
    assert scores == {
        "accuracy": 0.75,
        "matthews": pytest.approx(1 / np.sqrt(3)),
        "macro_f1": pytest.approx((2 / 3 + 4 / 5) / 2),
        "balanced_accuracy": 0.75,
    }
    assert text.metrics(examples) == tuple(scores) and text.metrics(examples)[0] == "accuracy"
    (file,) = text.write_predictions(examples, features, logits, str(tmp_path / "out"), "dev")
    lines = pathlib.Path(file).read_text().split("\n")
    assert lines[:3] == ["index\tprediction\tprobability", "0\tpos\t0.7311", "1\tneg\t0.7500"]
    write(tmp_path, "train.tsv", "text\tlabel\na\t1\nb\t2\nc\t4")
    examples = load(tmp_path, regression=True)
    logits = [np.float32(0.5), np.float32(1), np.float32(2)]
    scores = text.score(examples, features, logits)
    assert scores == {"pearson": pytest.approx(1), "spearman": pytest.approx(1)}
    assert text.metrics(examples) == tuple(scores) and text.metrics(examples)[0] == "pearson"
    (file,) = text.write_predictions(examples, features, logits, str(tmp_path), "test")
    assert pathlib.Path(file).read_text() == "index\tprediction\n0\t0.5\n1\t1.0\n2\t2.0\n"


def test_figures_computed_from_a_file_of_numbers_are_those_of_the_score(tmp_path):
    """Six digits and STS-B's three decimals make ties and other ranks; SciPy reads what was written."""
    stats, random = pytest.importorskip("scipy.stats"), np.random.default_rng(0)
    gold, logits = random.uniform(0, 5, 300), list((2.5 + 1e-4 * random.standard_normal(300)).astype(np.float32))
    logits[:2] = np.float32(-0.5), np.float32(5.5)  # outside of STS-B's scale
    rows = [f"a cat\ta dog\t{number!r}" for number in gold.tolist()]
    write(tmp_path, "dev.tsv", "\n".join(["sentence1\tsentence2\tscore", *rows]) + "\n")
    for task, options in (("text", {"regression": True, "label_column": "score"}), ("stsb", {})):
        family = task_data.family_of(task)
        kind = TextDataConfig if task == "text" else TaskDataConfig
        examples = family.load(task, kind(dir=str(tmp_path), **options), "dev")
        (file,) = family.write_predictions(examples, None, logits, str(tmp_path / task), "dev")
        found = [float(line.split("\t")[1]) for line in pathlib.Path(file).read_text().splitlines()[1:]]
        scores = family.score(examples, None, logits)
        assert scores["spearman"] == pytest.approx(stats.spearmanr(gold, found).statistic, rel=1e-13)
        assert scores["pearson"] == pytest.approx(stats.pearsonr(gold, found).statistic, rel=1e-13)
    (submitted,) = family.write_predictions(examples, None, logits, str(tmp_path), "test")
    expected = ["index\tprediction", "0\t0.000", "1\t5.000", f"2\t{logits[2]:.3f}"]
    assert pathlib.Path(submitted).read_text().splitlines()[:4] == expected


def divided(examples, share, stratified=True):
    """Return the part to train on and the part that is held out."""
    out = task_data.held_out(examples, share, stratified)
    return [examples.chosen(np.flatnonzero(part)) for part in (~out, out)]


def test_a_share_of_the_training_file_is_held_out(tmp_path):
    texts = [f"text {number % 90}" for number in range(100)]  # ten of them twice
    rows = [f"{one}\t{'ab'[number > 97]}" for number, one in enumerate(texts)]
    write(tmp_path, "train.tsv", "\n".join(["text\tlabel", *rows]))
    whole = load(tmp_path)
    train, dev = divided(whole, 0.2)
    assert len(set(dev.first)) == 18 and not set(dev.first) & set(train.first)
    assert sorted(map(int, train.index + dev.index)) == list(range(100))
    assert train.first == [texts[int(i)] for i in train.index]
    assert max(map(int, dev.index)) > 50 > min(map(int, dev.index)) and dev.has_answers
    again = divided(whole, 0.2)[1]
    assert (again.index, again.answers.tolist()) == (dev.index, dev.answers.tolist())
    assert divided(whole, 0.99)[0].labels == ("a", "b")  # a rare class may lie in one part only
    assert set(dev.first) < set(divided(whole, 0.4)[1].first)  # a larger share holds out the same and more
    with pytest.raises(UserError, match="data.dev_share=0.001 of 90 different texts leaves none for dev"):
        divided(whole, 0.001)
    with pytest.raises(UserError, match="data.dev_share=0.999 of 90 different texts leaves none to learn from"):
        divided(whole, 0.999)
    with pytest.raises(UserError, match="dev_share=0.2, but data.dir=d has a dev file"):
        task_data.held_out_share(TextDataConfig(dir="d", dev_share=0.2), ("train", "dev"))


@pytest.mark.parametrize(
    "data, present, share",
    [
        (TextDataConfig(train="a"), ("train",), 0.1),
        (TextDataConfig(dir="a"), ("train",), 0.1),
        (TextDataConfig(dir="a"), ("train", "dev"), 0.0),
        (TextDataConfig(train="a", folds=3), ("train",), 0.0),
        (TaskDataConfig(train="a"), ("train",), 0.1),
        (TaskDataConfig(dir="GLUE"), ("train",), 0.0),  # where the file of the benchmark is missing
        (TaskDataConfig(dir="GLUE", dev_share=0.3), ("train",), 0.3),
    ],
)
def test_which_share_is_held_out(data, present, share):
    assert task_data.held_out_share(data, present) == share


def test_the_share_that_is_held_out_is_the_same_of_every_class(tmp_path):
    """And that of 0.1.0 stays a random part for its runs, by its own formula."""
    random = np.random.default_rng(0)
    texts = [f"text {number}" for number in random.integers(0, 400, 600)]  # many of them twice
    classes = {one: "abc"[np.searchsorted([0.7, 0.95], random.random())] for one in dict.fromkeys(texts)}
    rows = [(one, classes[one]) for one in texts]

    def examples(rows, **options):
        return text.load("text", TextDataConfig(**options), "train", given={"train": rows})

    def parts(rows=rows, share=0.1, stratified=True, **options):
        return [set(part.first) for part in divided(examples(rows, **options), share, stratified)]

    train, dev = parts()
    assert train | dev == set(texts) and not train & dev and len(dev) == round(0.1 * len(classes))
    for name in "abc":
        whole, held_out = (sum(classes[one] == name for one in part) for part in (classes, dev))
        assert abs(held_out - 0.1 * whole) <= 1 and held_out
    assert parts() == [train, dev]
    shuffled = [list(classes)[place] for place in permute(np.arange(len(dev)), len(classes), 0, Stream.HELD_OUT)]
    assert parts(stratified=False)[1] == set(shuffled) != dev
    rare = divided(examples([("a", "x"), ("b", "x"), ("c", "y")]), 0.5)[0]
    assert set(rare.answers) == {0, 1}, "each class is learned"
    numbers = [(one, 0.5 * number) for number, one in enumerate(texts)]
    assert parts(numbers, regression=True)[1] == set(shuffled)


def test_folds(tmp_path):
    random = np.random.default_rng(1)
    texts = [f"text {number}" for number in random.integers(0, 100, 150)]
    rows = [(one, "ab"[hash_ % 3 == 0]) for one, hash_ in zip(texts, [int(one.split()[1]) for one in texts])]
    examples = text.load("text", TextDataConfig(), "train", given={"train": rows})
    parts = task_data.folds(examples, 5)
    assert parts.tolist() == task_data.folds(examples, 5).tolist() and set(parts) == set(range(5))
    by_text = dict(zip(texts, parts.tolist()))
    assert [by_text[one] for one in texts] == parts.tolist(), "equal texts stay together"
    for name in "ab":
        sizes = np.bincount([by_text[one] for one in by_text if dict(rows)[one] == name], minlength=5)
        assert np.ptp(sizes) <= 1
    assert np.ptp(np.bincount(list(by_text.values()))) <= 1
    assert task_data.folds(dataclasses.replace(examples, labels=()), 5).max() == 4
    with pytest.raises(UserError, match="data.folds=500, but there are .* different texts; give at most that many"):
        task_data.folds(examples, 500)


FIRST_WORD = {"text": ["context"], "answer_start": [0]}
DIVIDED = {  # rows of a task, and what tells the number of the part of one that is not divided
    "ner": ([([f"word{n // 2}"], ["B-X"]) for n in range(12)], lambda each: each.sentences[0].words),
    "choice": (
        [(f"context {n // 3}", ["a", "b"], n % 2) for n in range(12)],
        lambda each: each.questions[0].context,
    ),
    "mrpc": ([((f"text {n // 2}", "b"), n % 2) for n in range(12)], lambda each: each.first[0]),
    "vectors": ([(f"anchor {n // 2}", f"positive {n}") for n in range(12)], lambda each: each.texts[0][0]),
    "squad_v1": (
        [
            {"question": "q", "context": f"context {n // 2}", "title": f"{n // 4}", "answers": FIRST_WORD}
            for n in range(12)
        ],
        lambda each: each.articles[each.questions[0].context],
    ),
    "multirc": (
        [
            {
                "idx": {"paragraph": n // 4, "question": n // 2, "answer": n},
                **{"paragraph": f"text {n // 4}", "question": "q", "answer": f"a {n}", "label": n % 2},
            }
            for n in range(12)
        ],
        lambda each: each.first[0],
    ),
}


@pytest.mark.parametrize("task", DIVIDED)
def test_examples_of_every_task_are_divided(task):
    """Each once, in their order, and what belongs together in one part."""
    rows, unit = DIVIDED[task]
    data = dataclasses.replace(task_defaults(task).data, train="x")
    examples = task_data.family_of(task).load(task, data, "train", None, {"train": rows})
    owners = [unit(examples.chosen(np.array([number]))) for number in range(12)]
    assert len(set(owners)) in (3, 4, 6)
    for parts in (task_data.folds(examples, 3), task_data.held_out(examples, 0.3, True).astype(int)):
        assert len(parts) == 12 and len({*zip(owners, parts)}) == len(set(owners))
        chosen = [examples.chosen(np.flatnonzero(parts == part)) for part in np.unique(parts)]
        assert sum(map(len, chosen)) == 12 and all(each.has_answers for each in chosen)
        for each, part in zip(chosen, np.unique(parts)):
            alone = [unit(each.chosen(np.array([number]))) for number in range(len(each))]
            assert alone == [owner for owner, own in zip(owners, parts) if own == part]


def test_weights_of_every_task(tmp_path):
    """From rows in memory, for the sequences of training alone."""
    tokenizer = Tokenizer(WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"], lowercase=True))
    rows = {
        "ner": {"tokens": ["a"], "ner": ["B-X"]},
        "choice": {"context": "a", "choices": ["a", "b"], "answer": 0},
        "cola": {"sentence": "a", "label": 1},
        "squad_v1": {"question": "a", "context": "a " * 300, "answers": {"text": ["a"], "answer_start": [0]}},
        "boolq": {"passage": "a", "question": "a", "label": True, "idx": 0},
        "copa": {"premise": "a", "choice1": "a", "choice2": "b", "question": "cause", "label": 0, "idx": 0},
        "xnli": {"sentence1": "a", "sentence2": "a", "gold_label": "neutral", "language": "en"},
    }
    for task, row in rows.items():
        config, family = task_defaults(task), task_data.family_of(task)
        data = dataclasses.replace(config.data, weight_column="w")
        given = {split: [row | {"w": 0.5}, row | {"w": 2}] for split in ("train", "dev")}
        examples = {split: family.load(task, data, split, None, given) for split in given}
        found = {split: family.features(each, tokenizer, config.options) for split, each in examples.items()}
        assert found["train"].weights.tolist() == [(0.5, 2)[each] for each in found["train"].example], task
        assert found["dev"].weights is None
        with pytest.raises(UserError, match="no column 'w' among .*; name one with --data.weight_column"):
            family.load(task, data, "train", None, {"train": [row]})
    with pytest.raises(UserError, match="data.weight_column=w names a column of sentences, but a file of CoNLL has"):
        task_data.family_of("ner").load("ner", TaggingDataConfig(train="a.txt", weight_column="w"), "train")
    with pytest.raises(UserError, match="is a directory of texts without columns, so there is none of data.weight_co"):
        text.load("text", TextDataConfig(train=str(tmp_path), weight_column="w"), "train")


def weighted(rows, split="train", **options):
    given = {split: [dict(zip(("text", "label", "w"), row)) for row in rows]}
    return text.load("text", TextDataConfig(weight_column="w", **options), split, given=given)


def test_weights_of_examples_are_those_of_batches(tmp_path):
    """In padded rows and in shared ones; of a file too."""
    rows = [("a", "x", 0), ("a a", "y", 2.5), ("a", "y", "1e-1")]
    write(tmp_path, "train.tsv", "text\tlabel\tw\na\tx\t0\na a\ty\t2.5\na\ty\t1e-1\n")
    tokenizer = Tokenizer(WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"], lowercase=True))
    for examples in (weighted(rows), load(tmp_path, weight_column="w")):
        features = text.features(examples, tokenizer, SentenceOptions(max_length=8))
        assert features.weights.dtype == np.float32 and features.weights.tolist() == [0, 2.5, np.float32(0.1)]
    batch = sequences.padded(features, np.array([2, 1, 0]), 4)
    assert batch["weights"].tolist() == [np.float32(0.1), 2.5, 0, 0]
    shared = sequences.SharedRowBatches(features, 3, 16, seed=1).batch(0)
    by_label = {label: set(shared["weights"][shared["labels"] == label]) for label in (0, 1)}
    assert by_label == {0: {0}, 1: {np.float32(0.1), 2.5}}, "places without a text have 0 for both"
    assert weighted([("a", "x", 1), ("b", "y", 1)]).weights is None
    assert weighted([("a", "x"), ("b", "y")], "dev").weights is None, "which need none"


def test_losses_weighted_by_whole_numbers_are_those_of_repeated_rows():
    """The mean is over the weights; and the loss of guessing is that of the weighted labels."""
    random = np.random.default_rng(2)
    logits, labels, counts = (
        random.normal(size=(5, 3)).astype(np.float32),
        np.array([0, 2, 1, 1, 0]),
        np.array([3, 0, 1, 2, 1]),
    )
    log_softmax = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    losses = -log_softmax[np.arange(5), labels]
    found = classification_sums(logits, labels, counts.astype(np.float32))
    repeated = np.repeat(np.arange(5), counts)
    assert float(found.loss / found.weight) == pytest.approx(losses[repeated].mean(), rel=1e-6)
    assert found.correct == np.sum((logits.argmax(axis=1) == labels)[repeated]) and found.weight == counts.sum()
    some = sequences.as_features([(np.zeros(1), np.zeros(1))] * 5, 8)
    for head, values in ((HeadConfig(labels=("a", "b", "c")), labels), (HeadConfig(kind="regression"), logits[:, 0])):
        whole = dataclasses.replace(some, labels=values, weights=counts.astype(np.float32))
        part = dataclasses.replace(some, labels=values[repeated], input_ids=[0] * len(repeated))
        assert prior_loss(head, whole) == pytest.approx(prior_loss(head, part), rel=1e-6)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("a", "x", 1), ("b", "y", -1)], r"train\[1\]: the weight in column 'w' is -1, not a number from 0 to 1e30"),
        ([("a", "x", "much")], r"train\[0\]: the weight in column 'w' is 'much', not a number"),
        ([("a", "x", float("nan"))], "the weight in column 'w' is None, not a number"),
        ([("a", "x", True)], "the weight in column 'w' is True, not a number"),
        ([("a", "x", 1), ("b", "y")], r"train\[1\]: no column 'w' among 'text', 'label'"),
        (
            [("a", "x"), ("b", "y")],
            r"train\[0\]: no column 'w' among 'text', 'label'; name one with --data.weight_column",
        ),
    ],
)
def test_bad_weights_are_named(rows, message):
    with pytest.raises(UserError, match=message):
        weighted(rows)


def test_a_parquet_file(tmp_path):
    """As the package datasets writes it: with the names of the classes in its schema."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    label = {"names": ["neg", "pos"], "_type": "ClassLabel"}
    features = {
        "text": {"dtype": "string", "_type": "Value"},
        "label": label,
        "all": {"feature": label, "_type": "List"},
    }
    table = pyarrow.table({"text": TEXTS, "label": [1, 0, 1, -1], "all": [[1, 0], [], [0], [1]]})
    named = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    for file, content in (("train", named), ("plain", table)):
        parquet.write_table(content, tmp_path / f"{file}.parquet", row_group_size=2)
    rows = [row for _, row in readers.file_rows(tmp_path / "train.parquet")]
    assert [row["label"] for row in rows] == ["pos", "neg", "pos", None] and rows[0]["all"] == ["pos", "neg"]
    assert readers.in_memory("train", named) == rows
    with pytest.raises(UserError, match=r"train.parquet, row 3: the label is missing"):
        load(tmp_path)
    assert load(tmp_path, train=str(tmp_path / "plain.parquet")).labels == ("-1", "0", "1")
    whole = (tmp_path / "train.parquet").read_bytes()
    (tmp_path / "train.parquet").write_bytes(whole[:-40])
    fails("train.parquet is damaged or cut short", tmp_path)


def test_a_directory_without_a_dev_file_hears_of_the_share(tmp_path):
    write(tmp_path, "train.tsv", "text\tlabel\na\tx\nb\ty\n")
    with pytest.raises(
        UserError,
        match=r"data.dir=.* has no dev data; looked for dev.tsv, .* and found train.tsv; --data.dev=FILE names a file "
        "with a different name, and --data.dev_share=0.1 holds out a tenth of the training examples",
    ):
        load(tmp_path, "dev")
    with pytest.raises(UserError, match="there is no such directory"):
        load(tmp_path / "nowhere", "dev")


@pytest.mark.parametrize(
    "task, data, message",
    [
        (
            "text",
            {"train": "a.tsv", "dev_share": 0.0},
            "no dev data, .*: give --data.dev=FILE, or --data.dev_share=0.1 to hold out a tenth of a.tsv",
        ),
        ("ner", {"train": "a.txt", "dev_share": 0.0}, "no dev data, .*: give --data.dev=FILE, or --data.dev_share=0.1"),
        ("vectors", {"train": "a.tsv", "folds": -1}, "data.folds=-1 must be 2 or more parts"),
        ("text", {}, "no data: give"),
        ("text", {"dev_share": 0.1}, "no data: give"),
        ("text", {"train": "a.tsv", "dev_share": 1.0}, "data.dev_share=1.0 must be between 0 and 1"),
        (
            "text",
            {"train": "a.tsv", "dev": "b.tsv", "dev_share": 0.1},
            "cannot be used: data.dev=b.tsv is given; leave it out",
        ),
        ("text", {"train": "a.tsv", "folds": 1}, "data.folds=1 must be 2 or more parts, or 0 for no cross-validation"),
        (
            "text",
            {"train": "a.tsv", "dev": "b.tsv", "folds": 5},
            "data.folds=5 scores every training example, so data.dev=b.tsv has nothing to do",
        ),
        ("text", {"train": "a.tsv", "dev_share": 0.2, "folds": 5}, "so data.dev_share=0.2 has nothing to do"),
    ],
)
def test_data_without_dev(task, data, message):
    given = {"init_from": "m", "workdir": "w"} | {f"data.{name}": value for name, value in data.items()}
    with pytest.raises(UserError, match=message):
        check_finetune(with_options(task_defaults(task), given))


def test_the_tfds_road(monkeypatch):
    """imdb_reviews has no dev split: --data.dev=test."""
    asked, examples = [], [{"text": "Good.", "label": "pos"}, {"text": "Bad.", "label": "neg"}]
    monkeypatch.setattr(readers, "dataset_examples", lambda *arguments: asked.append(arguments) or examples)
    data = TextDataConfig(tfds="imdb_reviews", train="train[:90%]", dev="test")
    train = text.load("text", data, "train")
    assert (train.first, train.labels, train.answers.tolist()) == (["Good.", "Bad."], ("neg", "pos"), [1, 0])
    examples.append({"text": " ", "label": "neg"})
    with pytest.raises(UserError, match="imdb_reviews, split test, example 2: the text in column 'text' is empty"):
        text.load("text", data, "dev", train.labels)
    examples[:] = [{"text": "x", "label": "pos"}, {"text": "y", "label": "neg", "sentence2": "z"}]
    message = "imdb_reviews, split test, example 1 has 'sentence2', which the first example lacks"
    with pytest.raises(UserError, match=message):
        text.load("text", data, "dev", train.labels)
    examples[:] = [{"text": "x", "label": None}]
    assert not text.load("text", TextDataConfig(tfds="a", test="unsupervised"), "test", train.labels).has_answers
    assert asked[0] == ("imdb_reviews", "train[:90%]", "")


def features(of) -> dict:
    return {
        **{name: of.Text() for name in ("sentence1", "sentence2")},
        "score": np.float32,
        "label": of.ClassLabel(names=["entailment", "not_entailment"]),
        "tokens": of.Sequence(of.Text()),
        "tags": of.Sequence(of.ClassLabel(names=["O", "B-PER"])),
        "answers": of.Sequence({"text": of.Text(), "start": np.int32}),
        "options": of.Sequence(of.Sequence(of.Text())),
    }


def row(key: int, label: int) -> dict:
    return {
        **{"sentence1": f"Über {key}", "sentence2": "b", "score": key / 2, "label": label},
        "tokens": ["New", "York"][: key + 1],
        "tags": ["O", "B-PER"][: key + 1],
        "answers": [{"text": "b", "start": 7}] * key,
        "options": [["x", "y"], ["z"]][:key],
    }


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("tfds")
    labels = {"train": [0, 1, 0], "validation": [1, 0], "test": [-1, -1]}
    rows = {split: [row(*each) for each in enumerate(numbers)] for split, numbers in labels.items()}
    glue_files.write_dataset(path, "tiny_tasks", features, rows)
    return str(path)


def test_examples_are_plain(directory):
    rows = sorted(readers.dataset_examples("tiny_tasks", "train", directory), key=lambda row: row["score"])
    texts = {"sentence1": "Über 1", "sentence2": "b", "tokens": ["New", "York"], "tags": ["O", "B-PER"]}
    others = {"answers": {"text": ["b"], "start": [7]}, "options": [["x", "y"]]}
    assert rows[1] == texts | others | {"score": 0.5, "label": "not_entailment"}
    assert rows[0]["answers"] == {"text": [], "start": []} and rows[2]["options"] == [["x", "y"], ["z"]]
    assert type(rows[0]["score"]) is float and type(rows[1]["answers"]["start"][0]) is int
    assert [row["label"] for row in readers.dataset_examples("tiny_tasks", "test", directory)] == [None, None]


def test_glue_and_own_text_through_the_builder(directory):
    data = TextDataConfig(tfds="tiny_tasks", tfds_dir=directory)
    for read in (
        lambda split: glue.load("rte", data, split),
        lambda split: text.load("text", data, split, ("entailment", "not_entailment")),
    ):
        train, test = read("train"), read("test")
        assert sorted(zip(train.first, train.answers)) == [("Über 0", 0), ("Über 1", 1), ("Über 2", 0)]
        assert sorted(read("dev").answers) == [0, 1] and train.second == ["b"] * 3
        assert not test.has_answers and sorted(test.first) == ["Über 0", "Über 1"]
    numbers = TextDataConfig(tfds="tiny_tasks", tfds_dir=directory, label_column="score", regression=True)
    assert sorted(text.load("text", numbers, "train").answers) == [0, 0.5, 1]


def test_names_of_splits(directory):
    data = TaskDataConfig(train="train[:2]")
    expected = ["train[:2]", "validation", "test"]
    assert [readers.dataset_split(data, split) for split in ("train", "dev", "test")] == expected
    assert readers.dataset_split(data, "dev_mismatched") == "validation_mismatched"
    assert len(list(readers.dataset_examples("tiny_tasks", "train[:2]", directory))) == 2
    tiny = TaskDataConfig(tfds="tiny_tasks", tfds_dir=directory)
    assert glue.splits("rte", tiny) == text.splits("text", tiny) == ("train", "dev", "test")
    assert glue.splits("mnli", tiny) == ("train",)  # no validation_matched and so on
    with pytest.raises(UserError, match="valid"):
        readers.dataset_examples("tiny_tasks", "valid", directory)
    with pytest.raises(UserError, match="no_such_task"):
        readers.dataset_examples("no_such_task", "train", directory)


NOISE, DATA = NoiseConfig(rate=0.3), TaskDataConfig(dir="d")
NOISY_TEXTS = [f"the gardener waters {number} roses by the harbour" for number in range(40)]


def test_texts_change_and_answers_stay():
    clean = Sentences("text", NOISY_TEXTS, NOISY_TEXTS[::-1], np.arange(40) % 2, ("no", "yes"), list("x" * 40))
    noisy = noisy_examples(clean, NOISE)
    assert noisy_examples(clean, NoiseConfig()) is clean
    assert noisy.first == noisy_examples(clean, NOISE).first != noisy_examples(clean, NOISE, seed=1).first
    assert all(o != theirs for o, theirs in zip(noisy.first + noisy.second, clean.first + clean.second, strict=True))
    assert [len(text.split()) for text in noisy.first] == [len(text.split()) for text in clean.first]
    assert noisy.first[::-1] != noisy.second  # each text of a pair has errors of its own
    assert noisy.answers is clean.answers and noisy.index == clean.index
    single = Sentences("text", NOISY_TEXTS, None, None, ("no", "yes"), list("x" * 40))
    assert noisy_examples(single, NOISE).first == noisy.first and noisy_examples(single, NOISE).second is None


def test_each_word_keeps_its_tag():
    sentence = Sentence(("Anna", "o", "London", "-", "1"), ("B-PER", "O", "B-LOC", "O", "O"), None, ("f",) * 5)
    clean = ner.Examples((sentence,) * 50, ("O", "B-PER", "B-LOC"), True)
    for noisy in noisy_examples(clean, NoiseConfig(rate=1.0)).sentences:
        assert noisy.tags == sentence.tags and len(noisy.words) == 5 and all(noisy.words)
        assert noisy.words[0] != "Anna" and noisy.words[3] == "-"


def test_choices_change_and_the_right_one_stays():
    question = Question("f", NOISY_TEXTS[0], "then they", ("cook the onions", "sail to the lighthouse"), 1, "0")
    noisy = noisy_examples(choice.Examples("swag", (question,) * 3, True), NOISE).questions
    assert noisy[0] != noisy[1] and all(each.answer == 1 and len(each.choices) == 2 for each in noisy)
    assert noisy[0].context != question.context and noisy[0].choices != question.choices


def test_answers_that_are_places_are_refused():
    with pytest.raises(UserError, match="noise.rate=0.3 would move the answers of squad_v1"):
        noisy_examples(squad_files.Examples("squad_v1", (), (), True), NOISE)
    with pytest.raises(UserError, match="noise.rate=2.0 must be a probability"):
        check_finetune(FinetuneConfig(task="mrpc", init_from="m", workdir="w", data=DATA, noise=NoiseConfig(rate=2.0)))


WORDS = "the cat sat on a big mat in tree house"  # ten words, a piece each


def texts(*lengths):
    return [" ".join(WORDS.split()[:length]) for length in lengths]


def test_single_texts_and_pairs_are_counted_with_their_specials():
    options = SentenceOptions(max_length=8)
    single = sentences.features(Sentences("text", texts(5, 6, 7, 10), None, None, ("a", "b"), []), TOKENIZER, options)
    assert single.uncut.lengths.tolist() == [7, 8, 9, 12] and single.uncut.share == 0.5 and single.uncut.noun == "texts"
    pair = sentences.features(Sentences("text", texts(1, 2), texts(4, 4), None, ("a", "b"), []), TOKENIZER, options)
    assert pair.uncut.lengths.tolist() == [8, 9] and pair.uncut.share == 0.5 and pair.uncut.noun == "pairs"
    for features in (single, pair):  # what is counted as cut is what was cut
        untouched = [len(ids) == length for ids, length in zip(features.input_ids, features.uncut.lengths)]
        assert np.mean(untouched) == 1 - features.uncut.share


def test_a_choice_is_as_long_as_its_longest_candidate():
    questions = tuple(Question("", *texts(3), "", tuple(texts(*sizes)), 0, "") for sizes in ((1, 2), (1, 9), (2, 3)))
    features = choice.features(choice.Examples("race", questions, True), TOKENIZER, ChoiceOptions(max_length=9))
    assert features.uncut.lengths.tolist() == [8, 15, 9] and features.uncut.share == pytest.approx(1 / 3)


def test_of_windows_only_the_questions_are_cut():
    asked = tuple(AskedQuestion(str(size), *texts(size), 0) for size in (3, 4, 9))
    options = SquadOptions(max_length=12, max_query_length=4, doc_stride=4)
    features = squad.features(Asked("squad_v1", (WORDS,), asked, has_answers=False), TOKENIZER, options)
    assert features.uncut.lengths.tolist() == [3, 4, 9] and features.uncut.share == pytest.approx(1 / 3)
    assert features.uncut.advise("dev", CONFIG.max_position_embeddings) == (
        "1 of 3 dev questions (33.3 %) are longer than options.max_query_length=4 tokens (median 4) and are cut; "
        "--options.max_query_length=8, the most there is room for, cuts 33.3 %"
    )


@pytest.mark.parametrize(
    "longest, positions, remedy",
    [
        (317, 512, "--options.max_length=317 keeps all of them"),
        (900, 512, "--options.max_length=512, the most there is room for, cuts 25.0 %"),
        (900, 128, "there is room for no more"),
    ],
)
def test_the_advice_is_within_the_positions_of_the_model(longest, positions, remedy):
    uncut = Uncut(np.array([100, 200, 300, longest]), 128, "texts")
    assert uncut.advise("train", positions) == (
        f"3 of 4 train texts (75.0 %) are longer than options.max_length=128 tokens (median 250) and are cut; {remedy}"
    )
