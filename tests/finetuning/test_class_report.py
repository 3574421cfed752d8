"""The report on a classifier: calibration by other ways to compute it, and a page that runs nothing of anybody's."""

import dataclasses
import html.parser
import json
import pathlib

import numpy as np
import pytest

from bert_jax.config.tasks import SentenceOptions
from bert_jax.finetuning.results import LONGEST, class_page, class_report
from bert_jax.tasks import sentences
from bert_jax.tasks.sentences import SentenceFeatures, Sentences

EVIL = "<script>alert(1)</script>"


def split_of(answers, labels, texts=None) -> tuple[Sentences, SentenceFeatures]:
    index = [str(number) for number in range(len(answers))]
    examples = Sentences("text", texts or ["x"] * len(answers), None, np.asarray(answers), labels, index)
    ids = [np.ones(3, np.int32)] * len(answers)
    return examples, SentenceFeatures(ids, ids, None, np.arange(len(answers)), 8, options=SentenceOptions())


def drawn(temperature: float, count=5_000) -> tuple[np.ndarray, np.ndarray]:
    """Logits, and answers drawn with the probabilities of the logits divided by a temperature."""
    random = np.random.default_rng(0)
    logits = random.normal(0, 2, (count, 3)).astype(np.float32)
    shares = np.exp(sentences.softened(logits, temperature))
    return logits, (random.random((count, 1)) > shares.cumsum(1)[:, :2]).sum(1)


def test_the_calibration_error_is_that_of_its_definition():
    """By a loop over examples, with bins whose upper ends belong to them."""
    random = np.random.default_rng(1)
    confidences = np.append(random.random(300), [1 / 15, 2 / 15, 1.0, 0.0])
    right = random.random(304) < confidences
    sums: dict[int, list] = {}
    for confidence, correct in zip(confidences, right):
        number = next(each for each in range(15) if confidence <= (each + 1) / 15)
        sums.setdefault(number, []).append((confidence, correct))
    expected = sum(len(each) / 304 * abs(np.mean(each, 0)[0] - np.mean(each, 0)[1]) for each in sums.values())
    assert sentences.calibration_error(confidences, right) == pytest.approx(expected, abs=1e-12)
    assert sentences.calibration_error(np.full(4, 0.75), np.array([1, 1, 1, 0], bool)) == 0
    assert sentences.calibration_error(np.full(4, 1.0), np.array([1, 1, 0, 0], bool)) == 0.5


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_temperature_is_the_one_that_the_answers_were_drawn_with(temperature):
    logits, answers = drawn(temperature)
    found = sentences.best_temperature(logits, answers)
    assert found == pytest.approx(temperature, rel=0.1)

    def slope(place: float) -> float:  # of the loss, in 1 / T: the mean logit expected less that of the answers
        shares = np.exp(sentences.softened(logits, 1 / place))
        return float(np.mean((shares * logits).sum(1) - logits[np.arange(len(answers)), answers]))

    assert slope(0.999 / found) < 0 < slope(1.001 / found)
    report = class_report(*split_of(answers, ("a", "b", "c")), list(logits))
    assert report["temperature"] == found and report["calibration_error_at_temperature"] < 0.02
    assert (report["calibration_error"] > 0.05) == (temperature != 1)
    assert sentences.best_temperature(np.eye(3), np.arange(3)) == pytest.approx(sentences.TEMPERATURES[0], rel=1e-5)


class Page(html.parser.HTMLParser):
    def __init__(self, text: str):
        super().__init__()
        self.tags, self.rows, self.inside = [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        self.inside = tag in ("td", "th")

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.rows[-1][-1] += data


def test_the_page_shows_what_is_wrong_and_runs_nothing():
    texts = [EVIL, "fine", "long " * 400, "sure", "also <b>fine</b>"]
    examples, features = split_of([0, 1, 1, 0, 1], ("good", EVIL), texts)
    logits = [np.float32(row) for row in ([0, 3], [0, 2], [1, 0], [4, 0], [0, 1])]
    report = class_report(examples, features, logits)
    assert report["classes"]["good"] == {"precision": 0.5, "recall": 0.5, "f1": 0.5, "support": 2}
    text = class_page(f"text, dev {EVIL}", examples, features, logits, report)
    page = Page(text)
    assert EVIL not in text and not {"script", "b", "img", "link", "iframe"} & {tag for tag, _ in page.tags}
    (policy,) = (given["content"] for tag, given in page.tags if tag == "meta" and "content" in given)
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"
    assert "//" not in "".join(value or "" for _, given in page.tags for value in given.values())
    assert ["good", "50.0", "50.0", "50.0", "2"] in page.rows and [EVIL, "66.7", "66.7", "66.7", "3"] in page.rows
    assert ["good", "1", "1"] in page.rows and [EVIL, "1", "2"] in page.rows
    first, second = page.rows[-2:]  # the surest error comes first
    assert first == ["0", "good", EVIL, "95.3", EVIL]
    assert second[:4] == ["2", EVIL, "good", "73.1"] and len(second[4]) == LONGEST + 1
    many = tuple(f"class {number}" for number in range(40))
    examples, features = split_of([3] * 5 + [7] * 2, many)
    logits = [np.eye(40)[place] for place in (5, 5, 3, 3, 9, 7, 5)]
    page = Page(class_page("many", examples, features, logits, class_report(examples, features, logits)))
    assert ["class 3", "class 5", "2"] in page.rows and ["class 7", "class 5", "1"] in page.rows


def test_the_page_of_several_labels():
    """Each label with its threshold and calibration; a label that is wrong is an error of its own."""
    examples, features = split_of(np.array([[1, 0], [1, 1], [0, 0]], bool), ("sea", EVIL), ["a", EVIL, "c"])
    examples = dataclasses.replace(examples, several=True)
    logits = [np.float32(row) for row in ([2, 0], [1, -2], [3, -1])]
    options = SentenceOptions(thresholds=(0.5, 0.4))
    features = dataclasses.replace(features, options=options)
    report = class_report(examples, features, logits)
    shares = 1 / (1 + np.exp(-np.array(logits)))
    assert report["classes"]["sea"] | {"calibration_error": 0} == {
        **{"precision": 2 / 3, "recall": 1.0, "f1": pytest.approx(0.8), "support": 2},
        **{"threshold": 0.5, "calibration_error": 0},
    }
    # Each of the three probabilities of a label is alone in its bin.
    expected = np.abs(shares - examples.answers).mean(axis=0)
    assert [each["calibration_error"] for each in report["classes"].values()] == pytest.approx(expected, rel=1e-6)
    page = Page(text := class_page("topics", examples, features, logits, report))
    assert EVIL not in text and "1 of 3 texts" not in text and "0 of 3 texts have exactly the labels" in text
    assert ["sea", "66.7", "100.0", "80.0", "2", "50.00", f"{100 * expected[0]:.2f}"] in page.rows
    assert page.rows[-3:] == [  # the surest error comes first
        ["2", "sea", "given, not there", "95.3", "c"],
        ["1", EVIL, "there, not given", "11.9", EVIL],
        ["0", EVIL, "given, not there", "50.0", "a"],
    ]


def test_the_temperature_of_several_labels_is_the_one_that_they_were_drawn_with():
    random = np.random.default_rng(3)
    logits = random.normal(0, 2, (2_000, 3)).astype(np.float32)
    examples, features = split_of(random.random((2_000, 3)) < 1 / (1 + np.exp(-logits / 2)), ("a", "b", "c"))
    report = class_report(dataclasses.replace(examples, several=True), features, list(logits))
    assert report["temperature"] == pytest.approx(2, rel=0.1)
    assert report["calibration_error_at_temperature"] < 0.02 < 0.05 < report["calibration_error"]


@pytest.mark.slow  # pages and figures themselves are tested above
def test_a_finished_run_has_the_report_of_the_chosen_model(two_seeds):
    config, results = two_seeds
    work = pathlib.Path(config.workdir)
    report = results["report"]["dev"]
    assert json.loads((work / "results.json").read_text())["report"]["dev"] == report
    assert set(report["classes"]) == set(results["labels"])
    assert sum(each["support"] for each in report["classes"].values()) == results["data"]["dev"]
    assert np.mean([each["f1"] for each in report["classes"].values()]) == pytest.approx(results["metrics"]["macro_f1"])
    assert "dev/report.html" in results["predictions"]["files"] and not (work / "predictions/test/report.html").exists()
    page = Page((work / "predictions/dev/report.html").read_text())
    assert [row[0] for row in page.rows[1:3]] == results["labels"]
