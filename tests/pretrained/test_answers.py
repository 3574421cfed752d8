"""Answers of fine-tuned models: each kind of head compared with scores that float64 NumPy computes per input."""

import itertools

import jax
import numpy as np
import numpy_bert
import pytest
from loaded_model import SMALL, loaded, original_pieces, row_by_row
from pretrained_model import TOKENIZER, stored_model

from bert_jax.config import HeadConfig
from bert_jax.errors import UserError

HEADS = {
    "classification": HeadConfig(labels=("no", "yes", "perhaps")),
    "regression": HeadConfig(kind="regression"),
    "tagging": HeadConfig(kind="tagging", labels=("O", "B-X", "I-X")),
    "crf": HeadConfig(kind="tagging", labels=("O", "B-X", "I-X"), crf=True),
    "choice": HeadConfig(kind="choice"),
    "span": HeadConfig(kind="span"),
}
CONTEXT = "The old cat sat on a big mat, and the bird flew in the tree house. " * 3


@pytest.fixture(scope="module")
def models():
    return {name: loaded(stored_model(config=SMALL, head=head)) for name, head in HEADS.items()}


def scores(model, text) -> np.ndarray:
    """Of the head at the pooled vector, or at every token: float64."""
    output = row_by_row(model, text)
    read = output["pooled"] if "pooler" in model.params else output["last_hidden_state"]
    return numpy_bert.dense(read[0], numpy_bert.as_float64(jax.device_get(model.params["head"])))


def test_classes_and_numbers(models):
    texts = ["the cat sat on the mat.", ("a dog", "ran in the house"), "birds"]
    for text, label in zip(texts, models["classification"].predict(texts), strict=True):
        shares = numpy_bert.softmax(scores(models["classification"], text))
        assert label.name == ("no", "yes", "perhaps")[shares.argmax()] and list(label.probabilities) == [
            "no",
            "yes",
            "perhaps",
        ]
        np.testing.assert_allclose(list(label.probabilities.values()), shares, atol=1e-5)
    for text, number in zip(texts, models["regression"].predict(texts, batch_size=2), strict=True):
        assert number == pytest.approx(scores(models["regression"], text)[0], abs=1e-4)


def test_the_choice_is_that_of_the_highest_score(models):
    first, seconds = "the cat sat", ["on the mat", "in the tree house", "a"]
    (choice,) = models["choice"].predict((first, seconds))
    shares = numpy_bert.softmax(np.array([scores(models["choice"], (first, second))[0] for second in seconds]))
    assert choice.index == shares.argmax()
    np.testing.assert_allclose(choice.probabilities, shares, atol=1e-5)


@pytest.mark.parametrize("name", ["tagging", "crf"])
def test_tags_stand_at_the_first_pieces_of_words(models, name):
    model, words = models[name], ("the", "cats", "sat", ",", "old", "bird")
    found, same = model.predict([" ".join(words), words])
    assert found == same and [word for word, _ in found] == list(words)
    sizes = [len(TOKENIZER.encode(word)) for word in words]
    emissions = scores(model, " ".join(words))[1 + np.cumsum([0, *sizes[:-1]])]
    if name == "tagging":
        best = emissions.argmax(-1)
    else:  # every path of the three labels over six words; I-X only behind B-X or I-X
        p = numpy_bert.as_float64(jax.device_get(model.params["crf"]))
        paths = [
            path
            for path in itertools.product(range(3), repeat=len(words))
            if not any(b == 2 and a == 0 for a, b in zip((0, *path), path))
        ]
        best = max(
            paths,
            key=lambda path: (
                p["start"][path[0]]
                + p["end"][path[-1]]
                + emissions[np.arange(6), path].sum()
                + sum(p["transitions"][a, b] for a, b in itertools.pairwise(path))
            ),
        )
    assert [tag for _, tag in found] == [HEADS["crf"].labels[i] for i in best]


def test_an_answer_is_the_best_part_of_the_context(models):
    model, question, context = models["span"], "the cat", "a big dog ran in the house , the bird flew"
    (answer,) = model.predict((question, context))
    table, prefix = scores(model, (question, context)), len(original_pieces(question)[0])
    starts, ends = table[prefix:-1].T
    spans = [(first, last) for first in range(len(starts)) for last in range(first, len(ends))]
    first, last = max(spans, key=lambda span: starts[span[0]] + ends[span[1]])
    assert answer.text == TOKENIZER.decode(TOKENIZER.encode(context)[first : last + 1])
    assert answer.candidates[0][0] == answer.text and sum(share for _, share in answer.candidates) == pytest.approx(1)
    long, short = model.predict([(question, CONTEXT), (question, context)])  # the first needs several windows
    assert long.text in CONTEXT and short.text == answer.text


@pytest.mark.parametrize("threshold, measured, empty", [(-1e9, 1e9, True), (1e9, -1e9, False), (None, -1e9, True)])
def test_without_an_answer_where_the_model_was_trained_to_say_so(models, threshold, measured, empty):
    settings = {"finetune": {"task": "squad_v2", "options": {"null_threshold": threshold}}}
    models["span"].history = {"config": settings, "metrics": {"best_f1_thresh": measured}}
    (answer,) = models["span"].predict(("the cat", "a dog ran"))
    assert (answer.text == "") == empty and "" in dict(answer.candidates)


@pytest.mark.parametrize(
    "name, short, long",
    [
        ("choice", ("the cat", ["sat", "ran"]), ("the cat " * 20, ["sat", "ran"])),
        ("span", ("the cat", CONTEXT), ("the cat " * 20, CONTEXT)),
    ],
)
def test_questions_that_are_cut_are_counted(models, caplog, name, short, long):
    models[name].predict([short, short])
    assert not caplog.records
    models[name].predict([short, long])
    (record,) = caplog.records
    assert record.getMessage().startswith("1 of 2 questions (50.0 %) are longer than the ")


@pytest.mark.parametrize(
    "name, inputs, message",
    [
        ("classification", [3], "text 0 is 3"),
        ("tagging", [], "a sentence"),
        ("tagging", [["the"]], "a tuple of its words"),
        ("tagging", "", "a tuple of its words"),
        ("tagging", None, "cannot read None"),
        ("choice", ("a", "b"), r"expected \(text, \[candidate"),
        ("choice", [("a", ["b", "c"]), ("a", ["b", "c", "d"])], "the same number of candidates"),
        ("choice", [], "candidate"),
        ("choice", 5, "cannot read 5; expected .text"),
        ("span", None, "cannot read None"),
        ("span", ("who", " "), r"expected \(question, context\)"),
        ("span", ["who"], r"expected \(question, context\)"),
    ],
)
def test_inputs_of_another_form_are_refused(models, name, inputs, message):
    with pytest.raises(UserError, match=message):
        models[name].predict(inputs)
