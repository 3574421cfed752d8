"""The user's own text: every form read to the same examples, every bad file one error with its line."""

import csv
import io
import json
import pathlib

import numpy as np
import pytest

from bert_jax.config import HeadConfig
from bert_jax.config.finetuning import SentenceOptions, TaskDataConfig, TextDataConfig, check_finetune, task_defaults
from bert_jax.config.json_form import with_options
from bert_jax.errors import UserError
from bert_jax.tasks import readers, task_data, text
from bert_jax.tasks import readers as rows
from bert_jax.tokenization.tokenizer import Tokenizer
from bert_jax.tokenization.wordpiece import WordPiece

TEXTS = ["Plain.", 'He said "no", twice', "Über\u2028allem", "comma, and more"]
LABELS = ["pos", "neg", "pos", "neg"]


def write(directory, name: str, content: str):
    file = directory / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content.encode(errors="surrogateescape"))
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
    assert (examples.first, examples.second, examples.labels) == (
        ["x", "z"],
        ["y", "w"],
        ("9", "10"),
    )  # sorted as numbers
    examples = load(tmp_path, text_column="a", pair_column="b", label_column="stars", regression=True)
    assert (examples.labels, examples.answers.tolist(), examples.answers.dtype) == ((), [10, 9], np.float64)
    assert text.head("text", examples.labels) == HeadConfig(kind="regression")
    assert load(tmp_path, labels=(), text_column="a", label_column="stars").answers.tolist() == [
        10,
        9,
    ]  # as the model has it
    write(tmp_path, "dev.tsv", "1\tx\n0\ty\n")
    write(tmp_path, "test.tsv", "x\ny\n")
    assert load(tmp_path, "dev", text_column="2", label_column="1").first == ["x", "y"]
    test = load(tmp_path, "test", ("0", "1"), text_column="1", label_column="2")
    assert test.first == ["x", "y"] and not test.has_answers


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
        ("train.tsv", "text\tlabel\n" + "".join(f"a\t{i}.5\n" for i in range(30)), "occurs once.*--data.regression"),
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
        ("train.jsonl", '{"text": "a", "label": ["x"]}', r"line 1: the label \['x'\] is neither text nor a number"),
        ("train.jsonl", '{"text": "a", "label": "x\\ty"}', "line 1: the label .* do not print"),
        (
            "train.jsonl",
            '{"text": "a", "label": 0}\n{"text": "b", "text_pair": "c", "label": 1}',
            "train.jsonl, line 2: a 'text_pair', which the first example lacks",
        ),
        ("train.jsonl", '{"text": "a"}', "line 1: no column label among 'text'; name one with --data.label_column"),
    ],
)
def test_a_damaged_file_is_refused(name, content, message, tmp_path):
    write(tmp_path, name, content)
    fails(message, tmp_path)


def test_what_only_later_lines_have_is_not_lost(tmp_path):
    lines = '{"text": "a"}\n{"text": "b", "text_pair": null, "label": ""}\n'
    write(tmp_path, "test.jsonl", lines)
    examples = load(tmp_path, "test", ("x", "y"))
    assert (examples.first, examples.second, examples.has_answers) == (["a", "b"], None, False)
    for more, message in (
        ('{"text": "c", "label": "x"}', "a 'label'"),
        ('{"text": "c", "sentence2": "d"}', "a 'sentence2'"),
    ):
        write(tmp_path, "test.jsonl", lines + more)
        fails(f"test.jsonl, line 3: {message}, which the first example lacks", tmp_path, "test", ("x", "y"))
    write(tmp_path, "test.jsonl", '{"text": "a"}\n{"text": "b", "stars": 3}')
    fails("line 2: a 'stars'", tmp_path, "test", ("x", "y"), label_column="stars")


def test_bad_requests(tmp_path):
    fails("looked for train.tsv, train.csv, train.jsonl, train", tmp_path)
    write(tmp_path, "dev.csv", "text,label\na,pos\nb,posi\n")
    fails(
        "dev.csv, line 3: unknown label 'posi'; expected one of neg, pos; perhaps 'pos'",
        tmp_path,
        "dev",
        ("neg", "pos"),
    )
    fails("line 2: the label 'pos' is not a number", tmp_path, "dev", regression=True)
    fails("line 2: no column 'stars' among 'text', 'label'", tmp_path, "dev", label_column="stars")
    fails("line 2: no column 'b' .*--data.pair_column", tmp_path, "dev", pair_column="b")
    fails(
        "the format of a file is determined by the end of its name", tmp_path, train=str(write(tmp_path, "x.xlsx", ""))
    )
    fails("no such file", tmp_path, train=str(tmp_path / "none.tsv"))


def test_scores_features_and_predictions(tmp_path):
    write(tmp_path, "train.tsv", FORMS["train.tsv"])
    examples = load(tmp_path)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "plain", "."]
    features = text.features(examples, Tokenizer(WordPiece(vocabulary, lowercase=True)), SentenceOptions(max_length=8))
    assert features.input_ids[0].tolist() == [2, 5, 6, 3] and features.labels.tolist() == [1, 0, 1, 0]
    logits = [np.float32([0, 1]), np.float32([np.log(3), 0]), np.float32([0, 1]), np.float32([0, 1])]
    scores = text.score(examples, features, logits)
    assert scores == {"accuracy": 0.75, "matthews": pytest.approx(1 / np.sqrt(3))}
    assert task_data.main_metric("text", examples.labels) == "accuracy"
    (file,) = text.write_predictions(examples, features, logits, str(tmp_path / "out"), "dev")
    lines = pathlib.Path(file).read_text().split("\n")
    assert lines[:3] == ["index\tprediction\tprobability", "0\tpos\t0.7311", "1\tneg\t0.7500"]
    write(tmp_path, "train.tsv", "text\tlabel\na\t1\nb\t2\nc\t4")
    examples = load(tmp_path, regression=True)
    logits = [np.float32(0.5), np.float32(1), np.float32(2)]
    scores = text.score(examples, features, logits)
    assert scores == {"pearson": pytest.approx(1), "spearman": pytest.approx(1)}
    assert task_data.main_metric("text", examples.labels) == "pearson"
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
    assert pathlib.Path(submitted).read_text().splitlines()[:4] == [
        "index\tprediction",
        "0\t0.000",
        "1\t5.000",
        f"2\t{logits[2]:.3f}",
    ]


def test_a_share_of_the_training_file_is_held_out(tmp_path):
    texts = [f"text {number % 90}" for number in range(100)]  # ten of them twice
    rows = [f"{one}\t{'ab'[number > 97]}" for number, one in enumerate(texts)]
    write(tmp_path, "train.tsv", "\n".join(["text\tlabel", *rows]))
    whole = load(tmp_path)
    train, dev = (load(tmp_path, split, whole.labels, dev_share=0.2) for split in ("train", "dev"))
    assert len(set(dev.first)) == 18 and not set(dev.first) & set(train.first)
    assert sorted(map(int, train.index + dev.index)) == list(range(100)) and train.first == [
        texts[int(i)] for i in train.index
    ]
    assert max(map(int, dev.index)) > 50 > min(map(int, dev.index)) and dev.has_answers
    again = load(tmp_path, "dev", whole.labels, dev_share=0.2)
    assert (again.index, again.answers.tolist()) == (dev.index, dev.answers.tolist())
    assert load(tmp_path, dev_share=0.99).labels == ("a", "b")  # a rare class may lie in one part only
    other = load(tmp_path, "dev", whole.labels, dev_share=0.4)
    assert set(dev.first) < set(other.first)  # a larger share holds out the same and more
    fails("data.dev_share=0.001 of 90 different texts leaves none for dev", tmp_path, dev_share=0.001)
    fails("data.dev_share=0.999 of 90 different texts leaves none to learn from", tmp_path, dev_share=0.999)
    write(tmp_path, "dev.tsv", "text\tlabel\nx\ta\n")
    fails("dev_share=0.2, but data.dir=.* has a dev file", tmp_path, dev_share=0.2)


def test_a_directory_without_a_dev_file_hears_of_the_share(tmp_path):
    write(tmp_path, "train.tsv", "text\tlabel\na\tx\nb\ty\n")
    with pytest.raises(
        UserError,
        match=r"data.dir=.* has no dev file; looked for dev.tsv, .*; give --data.dev=FILE, or "
        "--data.dev_share=0.1 to hold out a tenth of the training file",
    ):
        load(tmp_path, "dev")
    with pytest.raises(UserError, match="there is no such directory"):
        load(tmp_path / "nowhere", "dev")


@pytest.mark.parametrize(
    "task, data, message",
    [
        (
            "text",
            {"train": "a.tsv"},
            "no dev data, .*: give --data.dev=FILE, or --data.dev_share=0.1 to hold out a tenth of a.tsv",
        ),
        ("ner", {"train": "a.txt"}, "no dev data, on which runs are compared and chosen: give --data.dev=FILE$"),
        ("text", {}, "no data: give"),
        ("text", {"dev_share": 0.1}, "no data: give"),
        ("text", {"train": "a.tsv", "dev_share": 1.0}, "data.dev_share=1.0 must be between 0 and 1"),
        (
            "text",
            {"train": "a.tsv", "dev": "b.tsv", "dev_share": 0.1},
            "cannot be used: data.dev=b.tsv is given; leave it out",
        ),
        (
            "text",
            {"tfds": "imdb_reviews", "dev_share": 0.1},
            r"cannot be used: a split of TFDS is cut by --data.train='train",
        ),
        ("mrpc", {"dir": "x", "dev_share": 0.1}, "data.dev_share=0.1 belongs to task=text, not to mrpc; leave it out"),
    ],
)
def test_data_without_dev(task, data, message):
    given = {"init_from": "m", "workdir": "w"} | {f"data.{name}": value for name, value in data.items()}
    with pytest.raises(UserError, match=message):
        check_finetune(with_options(task_defaults(task), given))


def test_the_tfds_road(monkeypatch):
    """imdb_reviews has no dev split: --data.dev=test."""
    asked, examples = [], [{"text": "Good.", "label": "pos"}, {"text": "Bad.", "label": "neg"}]
    monkeypatch.setattr(readers, "tfds_examples", lambda *arguments: asked.append(arguments) or examples)
    data = TextDataConfig(tfds="imdb_reviews", train="train[:90%]", dev="test")
    train = text.load("text", data, "train")
    assert (train.first, train.labels, train.answers.tolist()) == (["Good.", "Bad."], ("neg", "pos"), [1, 0])
    examples.append({"text": " ", "label": "neg"})
    with pytest.raises(UserError, match="imdb_reviews, split test, example 2: the text in column 'text' is empty"):
        text.load("text", data, "dev", train.labels)
    examples[:] = [{"text": "x", "label": "pos"}, {"text": "y", "label": "neg", "sentence2": "z"}]
    with pytest.raises(
        UserError, match="imdb_reviews, split test, example 1: a 'sentence2', which the first example lacks"
    ):
        text.load("text", data, "dev", train.labels)
    examples[:] = [{"text": "x", "label": None}]
    assert not text.load("text", TextDataConfig(tfds="a", test="unsupervised"), "test", train.labels).has_answers
    assert asked[0] == ("imdb_reviews", "train[:90%]", "")
