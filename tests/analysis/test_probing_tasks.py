"""The examples of probing tasks, known by hand, and the states of their spans."""

import json

import numpy as np
import pytest
from pretrained_model import CONFIG, TOKENIZER

from bert_jax.analysis import read_probing_tasks, tagging_task
from bert_jax.analysis.probes import span_states
from bert_jax.analysis.probing_tasks import ProbingTask, span_task, text_tasks, tree_tasks
from bert_jax.errors import UserError

TREE = """# text = The cats sat on a mat
1\tThe\tthe\tDET\tDT\t_\t2\tdet\t_\t_
2\tcats\tcat\tNOUN\tNN\t_\t3\tnsubj:pass\t_\t_
3\tsat\tsit\tVERB\tVB\t_\t0\troot\t_\t_
4\ton\ton\tADP\tIN\t_\t6\tcase\t_\t_
5\ta\ta\tDET\tDT\t_\t6\tdet\t_\t_
6\tmat\tmat\tNOUN\tNN\t_\t3\tobl\t_\t_
"""


def shown(task: ProbingTask) -> list[tuple]:
    """Each example as the strings of its spans and its label."""
    return [
        (*(task.texts[owner][low:high] for low, high in spans), label)
        for owner, spans, label in zip(task.owners, task.spans, task.labels, strict=True)
    ]


def test_a_tree_makes_tags_arcs_relations_and_depths(tmp_path):
    (tmp_path / "a.conllu").write_text(TREE)
    pos, arc, relation, depth = tree_tasks(str(tmp_path / "a.conllu"))
    assert shown(pos) == [*zip("The cats sat on a mat".split(), "DET NOUN VERB ADP DET NOUN".split(), strict=True)]
    assert shown(depth) == [("The", 2.0), ("cats", 1.0), ("sat", 0.0), ("on", 2.0), ("a", 2.0), ("mat", 1.0)]
    assert ("cats", "sat", "nsubj") in shown(relation) and len(shown(relation)) == 5  # the root has no head
    heads = {(child, head) for child, head, _ in shown(relation)}
    assert {pair[:2] for pair in shown(arc) if pair[2] == "head"} == heads
    others = [pair for pair in shown(arc) if pair[2] == "other"]
    assert len(others) == 5 and not heads & {pair[:2] for pair in others} and all(a != b for a, b, _ in others)
    assert arc.types[0] == "The cats"


def test_spans_count_words_and_may_come_in_pairs(tmp_path):
    targets = [{"span1": [0, 2], "span2": [3, 4], "label": "agent"}, {"span1": [2, 3], "span2": [0, 1], "label": "x"}]
    (tmp_path / "roles.jsonl").write_text(json.dumps({"text": "the  big dog ran", "targets": targets}) + "\n")
    task = span_task(str(tmp_path / "roles.jsonl"))
    assert task.name == "roles" and shown(task) == [("the big", "ran", "agent"), ("dog", "the", "x")]
    assert task.types.tolist() == ["the big | ran", "dog | the"]


def test_text_makes_tasks_without_labels():
    lines = ["The cats sat on Mat and the NATO dog ran."] * 30 + ["Too short."] + ["word " * 12 + "."] * 30
    made = {name: make() for name, make in text_tasks(TOKENIZER, lines).items() if name != "content"}
    assert shown(made["length"])[0][1] == "9-12" and shown(made["length"])[-1][1] == "13-16"
    assert len(made["length"].labels) == 60  # not the line that is too short
    capital = dict(shown(made["capital"]))
    assert capital["Mat"] == "capitalized" and capital["NATO"] == "capitals" and capital["cats"] == "small"
    assert "The" not in capital  # the first of its sentence
    assert ("cat", "first") in shown(made["subword"]) and ("s", "last") in shown(made["subword"])
    assert ("sat", "whole") in shown(made["subword"])
    order = shown(made["order"])
    straight = [text for text, label in order if label == "in order"]
    assert set(straight) == {lines[0], lines[-1]} and {label for _, label in order} == {"in order", "swapped"}
    for text, label in order:
        if label == "swapped":  # the same words, two neighbours of them in the other order
            original = next(line for line in lines if sorted(line) == sorted(text)).replace(".", " .").split()
            moved = [a != b for a, b in zip(text.replace(".", " .").split(), original, strict=True)]
            assert sum(moved) == 2 and moved[moved.index(True) + 1]


def test_content_asks_for_the_one_word_of_medium_frequency_that_a_text_has():
    common = [f"{first}{second}" for first in "abcde" for second in "uvwxyz"]  # 30 words, in every text
    lines = [" ".join([*common, ("river", "mountain")[number % 2]]) for number in range(20)]
    task = text_tasks(TOKENIZER, [*lines, " ".join([*common, "river mountain"])])["content"]()
    assert task.labels.tolist() == ["river", "mountain"] * 10 and len(task.texts) == 21


@pytest.mark.parametrize("pieces", ["first", "mean", "last"])
def test_states_of_spans_are_those_of_encode(model, tmp_path, pieces):
    texts = ("the cats sat", "old dogs, big cats", "a " * 60 + "cat")
    spans = np.array([[0, 4, 8], [1, 0, 8], [1, 0, 3], [2, 120, 123], [2, 0, 1]])
    found = span_states(model, texts, spans, tmp_path, pieces=pieces, progress=False)
    encoding = model.encode(list(texts), layers="all")
    states = np.stack(encoding.hidden_states)
    assert encoding.tokens[0][2:4] == ["cat", "##s"] and encoding.tokens[1][1:4] == ["old", "dog", "##s"]
    for place, (text, low, high) in enumerate([(0, 2, 4), (1, 1, 4), (1, 1, 2)]):
        low, high = {"first": (low, low + 1), "mean": (low, high), "last": (high - 1, high)}[pieces]
        np.testing.assert_allclose(found[:, place], states[:, text, low:high].mean(axis=1), atol=1e-5)
    assert np.isnan(found[:, 3]).all() and not np.isnan(found[:, 4]).any()  # 61 words, 40 positions
    assert found.shape[0] == CONFIG.num_layers + 1


def test_states_are_computed_once(model, tmp_path, monkeypatch):
    texts, spans = ("the cat sat",), np.array([[0, 0, 3]])
    first = np.array(span_states(model, texts, spans, tmp_path, progress=False))
    monkeypatch.setattr(type(model), "encode_ids", None)  # calling it would fail
    np.testing.assert_array_equal(span_states(model, texts, spans, tmp_path, progress=False), first)
    with pytest.raises(TypeError):
        span_states(model, texts, spans + [[0, 1, 0]], tmp_path, progress=False)
    assert len(list(tmp_path.iterdir())) == 1  # nothing is left of what failed


@pytest.mark.parametrize(
    "name, contents, message",
    [
        ("empty.conllu", "\n", "empty.conllu holds no words"),
        ("head.conllu", TREE.replace("\t6\tcase", "\t9\tcase"), "line 5: the head '9' of 'on' must be the number"),
        ("loop.conllu", TREE.replace("\t0\troot", "\t6\troot"), "line 2: the heads above 'The' go in a circle"),
        ("tags.conll", "the DET\ncat\n", "line 2: 1 columns, but earlier words have 2"),
        ("one.conll", "the X\ncat X\n\n", "tags: all 2 examples to train on have the same label 'X'"),
        (
            "a.jsonl",
            '{"text": "the cat", "targets": [{"span1": [0, 3], "label": "x"}]}',
            "not inside the text of 2 words",
        ),
        ("b.jsonl", '{"text": "the cat", "targets": [{"span1": [0, 1], "label": 3}]}', "one label, a string"),
        ("c.jsonl", '{"text": "the cat"}', "line 1: expected"),
        ("d.jsonl", '{"text": "the cat", "targets": []}', "d has no examples in 1 texts"),
        ("e.txt", "one two\n", "no examples in 0 texts"),
    ],
)
def test_bad_files_are_one_clear_error(model, tmp_path, name, contents, message):
    (tmp_path / name).write_text(contents)
    with pytest.raises(UserError, match=message) as error:
        read_probing_tasks(model, str(tmp_path / name))
    assert "\n" not in str(error.value)


def test_tags_that_do_not_match_their_words_are_an_error():
    with pytest.raises(UserError, match="sentence 1: 2 words and 1 tags"):
        tagging_task("pos", [["a"], ["the", "cat"]], [["X"], ["Y"]])
    with pytest.raises(UserError, match="sentence 1: 0 words and 1 tags"):
        tagging_task("pos", [["a"]], [["X"], ["Y"]])
