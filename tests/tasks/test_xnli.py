"""XNLI: its files in their own forms, languages, accuracy of each and their mean, files of predictions."""

import pathlib

import numpy as np
import pytest
from glue_files import write

from bert_jax.config.finetuning import check_finetune, task_defaults
from bert_jax.config.options import with_options
from bert_jax.config.tasks import XnliDataConfig
from bert_jax.errors import UserError
from bert_jax.tasks import readers, xnli
from bert_jax.tasks.task_data import family_of, recorded_config

HEADER = (
    "language  gold_label  sentence1_binary_parse  sentence2_binary_parse  sentence1_parse  sentence2_parse  sentence1"
    "  sentence2  promptID  pairID  genre  label1  label2  label3  label4  label5  sentence1_tokenized"
    "  sentence2_tokenized  match"
)
"""That of XNLI-1.0; the parses are empty."""


def row(language, label, first, second, pair):
    return f"{language}  {label}          {first}  {second}  9  {pair}  face-to-face" + "  x" * 7 + "  True"


def write_xnli(directory):
    """Write files of both downloads in one place: 3 pairs in English and German, one in Swahili, training pairs."""
    for split in ("dev", "test"):
        rows = [
            row("en", "entailment", "A", "B", 1),
            row("en", "neutral", 'C "c', "D", 2),
            row("en", "neutral", "E", "F", 3),
        ]
        rows += [
            row("de", *each)
            for each in (("entailment", "Ä", "B", 1), ("neutral", "C", "D", 2), ("neutral", "E", "F", 3))
        ]
        write(directory, f"XNLI-1.0/xnli.{split}.tsv", HEADER, *rows, row("sw", "contradiction", "G", "H", 3))
    for language in ("en", "de"):
        rows = (f"p {language}  h  neutral", "q  k  contradictory")
        write(directory, f"XNLI-MT-1.0/multinli/multinli.train.{language}.tsv", "premise  hypo  label", *rows)
    return XnliDataConfig(dir=str(directory))


def test_files_in_their_original_forms_are_read(tmp_path):
    data = write_xnli(tmp_path)
    assert family_of("xnli") is xnli and xnli.splits("xnli", data) == ("train", "dev", "test")
    dev = xnli.load("xnli", data, "dev")
    assert dev.languages == ["en"] * 3 + ["de"] * 3 + ["sw"]
    assert (dev.first[1], dev.second[1], dev.answers.tolist()) == ('C "c', "D", [0, 1, 1, 0, 1, 1, 2])
    train = xnli.load("xnli", data, "train")
    assert (train.first, train.second, train.answers.tolist()) == (["p en", "q"], ["h", "k"], [1, 2])
    both = xnli.load("xnli", XnliDataConfig(dir=str(tmp_path), languages="de,en"), "train")
    assert both.first == ["p de", "q", "p en", "q"] and both.languages == ["de", "de", "en", "en"]
    mnli = write(
        tmp_path, "mnli.tsv", "index  sentence1  sentence2  label1  gold_label", "0  a  b  x  -", "1  c  d  x  neutral"
    )
    own = xnli.load("xnli", XnliDataConfig(train=str(mnli), dev="d"), "train")  # the training file of GLUE's MNLI
    assert (own.first, own.answers.tolist(), own.languages) == (["c"], [1], [""])


def test_the_hub_has_a_row_for_all_languages_or_a_configuration_for_one(monkeypatch):
    rows = [{
        "premise": {"de": "Ä", "en": "A"}, "label": "contradiction",
        "hypothesis": {"language": ["en", "de"], "translation": ["B", "Bä"]},
    }]  # fmt: skip
    monkeypatch.setattr(readers, "dataset_examples", lambda *_: rows)
    found = xnli.load("xnli", XnliDataConfig(hub="facebook/xnli:all_languages"), "dev")
    assert (found.languages, found.first, found.second) == (["de", "en"], ["Ä", "A"], ["Bä", "B"])
    train = xnli.load("xnli", XnliDataConfig(hub="facebook/xnli:all_languages"), "train")
    assert (train.languages, train.answers.tolist()) == (["en"], [2])
    rows[:] = [{"premise": "A", "hypothesis": "B", "label": "neutral"}]
    assert xnli.load("xnli", XnliDataConfig(hub="facebook/xnli:sw"), "dev").languages == ["sw"]


def test_accuracy_is_that_of_each_language_and_their_mean(tmp_path):
    """2 of 3 are right in English, 1 of 3 in German, the one in Swahili: the mean is 2/3, not 4/7 of all examples."""
    data = write_xnli(tmp_path)
    model = ("contradiction", "entailment", "neutral")  # the order of Google's models
    dev = xnli.load("xnli", data, "dev", model)
    assert dev.answers.tolist() == [1, 2, 2, 1, 2, 2, 0]
    logits = [np.eye(3)[number] for number in (1, 2, 0, 1, 0, 0, 0)]
    scores = xnli.score(dev, None, logits)
    assert scores == pytest.approx({"accuracy": 2 / 3, "accuracy_de": 1 / 3, "accuracy_en": 2 / 3, "accuracy_sw": 1.0})
    assert xnli.metrics(dev) == tuple(scores)
    (file,) = xnli.write_predictions(dev, None, logits, str(tmp_path), "dev")
    lines = pathlib.Path(file).read_text().splitlines()
    assert lines[0] == "language\tindex\tprediction" and lines[4] == "de\t1\tentailment" and len(lines) == 8


def test_a_model_of_mnli_answers_in_other_languages():
    made = {"config": {"finetune": {"task": "mnli", "options": {"max_length": 96}}}}
    config = recorded_config(made, "xnli")
    assert isinstance(config.data, XnliDataConfig) and config.max_length == 96


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("data.languages=en,fi has 'fi', but XNLI has ar, bg", {"languages": "en,fi", "dir": "d"}),
        ("data.languages is empty; give some of ar", {"languages": " ", "dir": "d"}),
        ("data.languages=de,de names a language twice", {"languages": "de,de", "dir": "d"}),
        (
            "data.languages=de chooses files of data.dir, but data.train=t",
            {"languages": "de", "train": "t", "dev": "d"},
        ),
    ],
)
def test_languages_that_cannot_be_are_refused(message, options):
    with pytest.raises(UserError, match=message):
        XnliDataConfig(**options).check()
    config = with_options(
        task_defaults("xnli"), {"init_from": "m", "workdir": "w", "data.dir": "d", "data.languages": "all"}
    )
    assert len(check_finetune(config).data.trained) == 15


OWN = "language  sentence1  sentence2  gold_label"


@pytest.mark.parametrize(
    ("message", "lines"),
    [
        ("no columns sentence1, sentence2 and gold_label among 'a', 'b': it is not xnli", ["a  b", "1  2"]),
        ("line 2: no column 'language', by which", ["sentence1  sentence2  gold_label", "a  b  neutral"]),
        ("line 2: unknown label 'neutrl'.*perhaps 'neutral'", [OWN, "en  a  b  neutrl"]),
        ("line 2: the text in column 'sentence2' is empty", [OWN, "en  a    neutral"]),
        ("line 3: 3 columns, line 1 has 4", [OWN, "en  a  b  neutral", "en  a  b"]),
        ("line 2: 'language' is ' en'; expected a name such as en", [OWN, " en  a  b  neutral"]),
        ("line 2: the label is missing", [OWN, "en  a  b  "]),
        ("holds no example of xnli dev", [OWN]),
    ],
)  # fmt: skip
def test_a_broken_row_is_refused_by_its_line(message, lines, tmp_path):
    file = write(tmp_path, "dev.tsv", *lines)
    with pytest.raises(UserError, match=message):
        xnli.load("xnli", XnliDataConfig(dev=str(file)), "dev")


def test_data_that_are_not_there_are_refused(tmp_path):
    with pytest.raises(UserError, match="has no train data; looked for XNLI-MT-1.0/multinli/multinli.train.de.tsv"):
        xnli.load("xnli", XnliDataConfig(dir=str(tmp_path), languages="de"), "train")
    with pytest.raises(UserError, match="the model has yes, no; fine-tune it on xnli or mnli first"):
        xnli.load("xnli", XnliDataConfig(dir=str(tmp_path)), "dev", ("yes", "no"))
    with pytest.raises(UserError, match=r"dev\[0\] is \['a', 'b'\]; expected a dict with language"):
        xnli.load("xnli", XnliDataConfig(), "dev", given={"dev": [("a", "b")]})
    empty = write(
        tmp_path, "train.tsv", "premise  hypo  label", *["a  b  neutral"] * 50, "  b  neutral", "a    neutral"
    )
    with pytest.raises(
        UserError, match="line 52: a text is empty, and so are those of 2 of 52 rows; at most 1 % may be"
    ):
        xnli.load("xnli", XnliDataConfig(train=str(empty), dev="d"), "train")


@pytest.mark.parametrize(
    ("premise", "names", "texts"),
    [({"de": "Ä"}, ["de", "de"], ["B", "C"]), ({"de": "Ä"}, ["de", "en"], ["B", "C"]), ({"de": "Ä"}, ["en"], ["B"])],
)
def test_a_row_of_all_languages_has_each_once(premise, names, texts):
    row = {"premise": premise, "hypothesis": {"language": names, "translation": texts}, "label": "neutral"}
    with pytest.raises(UserError, match=r"the premise in \['de'\]; each language has one of both"):
        xnli.load("xnli", XnliDataConfig(), "dev", given={"dev": [row]})
