"""Entities and their F1 against seqeval, the rules of the conlleval script, and round trips between schemes."""

import json

import numpy as np
import pytest
from oracles import make_seqeval_oracle

from bert_jax.tasks import conll

ORACLE = json.loads(make_seqeval_oracle.PATH.read_text())
CASES = {name: (gold, predicted) for name, gold, predicted in make_seqeval_oracle.cases()}


@pytest.mark.parametrize("name", CASES)
def test_entities_and_scores_equal_seqeval(name):
    gold, predicted = CASES[name]
    assert [[list(entity) for entity in conll.entities(tags)] for tags in predicted] == ORACLE[name]["entities"]
    assert conll.scores(gold, predicted) == ORACLE[name]["scores"]
    assert 0 < ORACLE[name]["scores"]["f1"] < 1


def conlleval(tags):
    """Entities by the tables of CoNLL-2000's script conlleval (IOB only): does a chunk end before, start at, a tag?"""
    found, start, before, kind_before = [], 0, "O", ""
    for position, tag in enumerate([*tags, "O"]):
        prefix, _, kind = tag.partition("-")
        ends = (before, prefix) in (("B", "B"), ("B", "O"), ("I", "B"), ("I", "O")) or (
            before != "O" and kind != kind_before
        )
        starts = (before, prefix) in (("B", "B"), ("I", "B"), ("O", "B"), ("O", "I")) or (
            prefix != "O" and kind != kind_before
        )
        found += [(kind_before, start, position - 1)] if ends else []
        start = position if starts else start
        before, kind_before = prefix, kind
    return found


def test_entities_equal_conlleval():
    random = np.random.default_rng(5)
    for _ in range(300):
        tags = list(random.choice(["O", "B-X", "I-X", "B-Y", "I-Y"], random.integers(0, 9)))
        assert conll.entities(tags) == conlleval(tags)


def draw(random):
    """Non-overlapping entities over a sentence, some of them side by side, and their tags in each scheme by hand."""
    tags = {"iob1": [], "iob2": [], "iobes": []}
    before = None
    for _ in range(random.integers(1, 7)):
        kind, length = random.choice(["X", "Y", ""]), int(random.integers(1, 4))
        if not kind:
            for scheme in tags.values():
                scheme += ["O"] * length
        else:
            inside = [f"I-{kind}"] * (length - 1)
            tags["iob1"] += [f"B-{kind}" if before == kind else f"I-{kind}", *inside]
            tags["iob2"] += [f"B-{kind}", *inside]
            tags["iobes"] += [f"B-{kind}", *inside[1:], f"E-{kind}"] if inside else [f"S-{kind}"]
        before = kind
    return tags


def test_schemes_are_recognised_and_say_the_same():
    random = np.random.default_rng(2)
    drawn = [draw(random) for _ in range(60)]
    for scheme in ("iob1", "iob2", "iobes"):
        sentences = [tags[scheme] for tags in drawn]
        assert conll.recognise(sentences) == scheme
        assert [conll.to_iob2(tags) for tags in sentences] == [tags["iob2"] for tags in drawn]
        assert all(conll.fault(tags, scheme) is None for tags in sentences)


def test_plain_tags_are_entities_of_one_word():
    assert conll.recognise([["NN", "VB"], ["O"]]) == "plain"
    assert conll.to_iob2(["NN", "NN"]) == ["NN", "NN"]
    result = conll.scores([["NN", "VB", "NN"]], [["NN", "NN", "NN"]])
    assert result["f1"] == result["accuracy"] == 2 / 3 and result["precision_NN"] == 2 / 3 and result["recall_VB"] == 0


@pytest.mark.parametrize(
    "scheme, tags, position, word",
    [
        ("iob2", "O I-X", 1, "does not follow B-X or I-X"),
        ("iob2", "B-X I-Y", 1, "does not follow B-Y or I-Y"),
        ("iob2", "B-X E-X", 1, "not a tag of IOB2"),
        ("iob2", "O PER", 1, "'PER' is not a tag"),
        ("iob1", "B-X I-X", 0, "the only place of B-"),
        ("iobes", "S-X E-X", 1, "does not follow B-X"),
        ("iobes", "B-X I-X O", 1, "is the last word of its entity"),
        ("iobes", "B-X", 0, "is the last word of its entity"),
        ("iobes", "B-X S-X", 0, "is the last word of its entity"),
    ],
)
def test_what_a_scheme_forbids_is_found_at_its_word(scheme, tags, position, word):
    found, message = conll.fault(tags.split(), scheme)
    assert found == position and word in message


def test_nothing_to_find_scores_zero():
    assert conll.scores([["O", "O"], []], [["O", "O"], []]) == {"precision": 0, "recall": 0, "f1": 0, "accuracy": 1}
