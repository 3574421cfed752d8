"""Linear probes against scikit-learn and finite differences, the examples of tasks known by hand, and the command."""

import json

import numpy as np
import pytest
import threadpoolctl
from command_lines import refusal
from pretrained_model import CONFIG, TOKENIZER, write_workdir
from scipy.optimize import approx_fprime
from sklearn.linear_model import LogisticRegression

import bert_jax
from bert_jax.analysis import probe, probes, read_probing_tasks, tagging_task
from bert_jax.analysis.probes import Problem, fit, fit_and_choose, probe_task, span_states, standardized
from bert_jax.analysis.probing_tasks import (
    ProbingTask,
    control_labels,
    divided,
    joined,
    make_task,
    span_task,
    text_tasks,
    tree_tasks,
)
from bert_jax.errors import UserError


def states(layers: int, examples: int, spans: int = 1, size: int = 6, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return standardized(random.standard_normal((layers, examples, spans, size)).astype(np.float32))[0]


@pytest.mark.parametrize("penalty", [1e-1, 1e-3])
def test_a_probe_is_the_logistic_regression_of_another_library(penalty):
    inputs = states(1, 300) * np.float32(3.0)
    noise = np.random.default_rng(1).standard_normal((300, 3))
    labels = (inputs[0, :, 0, :3] + noise).argmax(axis=1)
    found = fit(Problem(inputs, np.eye(3)[labels]), penalty)
    peer = LogisticRegression(C=1 / (penalty * 300), tol=1e-10, max_iter=10_000).fit(inputs[0, :, 0], labels)
    assert found.converged and found.mix.tolist() == [1.0]
    np.testing.assert_allclose(found.matrix.T, peer.coef_, atol=2e-3)
    np.testing.assert_allclose(found.bias - found.bias.mean(), peer.intercept_ - peer.intercept_.mean(), atol=2e-3)


def test_regression_is_ridge_regression():
    inputs = states(1, 200)
    x = inputs[0, :, 0].astype(np.float64)
    y = x @ np.arange(6.0)[:, None] + np.random.default_rng(1).standard_normal((200, 1))
    found = fit(Problem(inputs, y), 0.01)
    wanted = np.linalg.solve(x.T @ x / 200 + 0.01 * np.eye(6), x.T @ (y - y.mean()) / 200)
    np.testing.assert_allclose(found.matrix, wanted, atol=1e-3)
    np.testing.assert_allclose(found.bias, y.mean(axis=0), atol=1e-3)


@pytest.mark.parametrize("layers, spans, classes", [(1, 2, 3), (3, 1, 1), (3, 2, 4)])
def test_the_gradient_is_that_of_finite_differences(layers, spans, classes):
    random = np.random.default_rng(2)
    target = random.standard_normal((12, 1)) if classes == 1 else np.eye(classes)[random.integers(classes, size=12)]
    problem = Problem(states(layers, 12, spans, 3), target)
    problem.set_penalty(0.05)
    at = 0.3 * random.standard_normal(len(problem.packed(None)))
    wanted = approx_fprime(at, lambda values: problem(values)[0], 1e-3)  # a mix is summed in float32
    np.testing.assert_allclose(problem(at)[1], wanted, atol=3e-3, rtol=3e-3)


def planted(layer: int, regression: bool = False):
    """400 examples, each of a type of its own, and states of 4 layers that are noise but for one direction in one."""
    random = np.random.default_rng(4)
    found = random.standard_normal((4, 400, 8)).astype(np.float32)
    direction = random.standard_normal(8)
    values = found[layer, :, :] @ direction
    labels = [float(value) if regression else "yes" if value > 0 else "no" for value in values]
    examples = [
        (number // 4, ((number % 4, number % 4 + 1),), label, str(number)) for number, label in enumerate(labels)
    ]
    return joined([make_task("planted", ["abcd"] * 100, examples)]), found, np.arange(400)[:, None]


@pytest.mark.slow
@pytest.mark.parametrize("layer", [0, 2])
def test_a_planted_feature_is_found_in_its_layer_and_control_tasks_stay_at_chance(layer):
    result = probe_task(*planted(layer), (0, 1, 2, 3), range(10))
    assert result.unconverged == 0 and result.classes == ("no", "yes")
    others = [number for number in range(4) if number != layer]
    assert result.mean[layer] > 0.9 and result.mean[4] > 0.9
    # Of accuracies at chance: the seeds divide the same 400 labels, while those of the control tasks are drawn anew.
    of_task, of_control = np.sqrt(0.25 / 400), np.sqrt(0.25 / (10 * result.sizes[2]))
    assert (np.abs(result.mean[others] - 0.5) < 4 * of_task).all()
    assert (np.abs(result.controls.mean(axis=0) - 0.5) < 4 * of_control).all()
    np.testing.assert_allclose(result.selectivity, result.mean - result.controls.mean(axis=0), atol=1e-12)
    assert (result.mix[:, layer] > 0.8).all() and np.abs(result.centre_of_gravity - layer).max() < 0.5


def test_a_planted_number_is_estimated():
    result = probe_task(*planted(3, regression=True), (1, 3), range(2))
    assert result.metric == "R²" and result.mean[1] > 0.99 and abs(result.mean[0]) < 0.2
    assert (np.abs(result.centre_of_gravity - 3) < 0.1).all()  # of layers 1 and 3
    assert (np.abs(result.baseline) < 0.1).all()


def test_probes_train_side_by_side_each_with_one_thread_of_blas(monkeypatch):
    """Two layers, two kinds of labels and a mix of the layers; the results keep their order."""
    blas, choose, seen = lambda: {each["filepath"]: each["num_threads"] for each in blas_only()}, fit_and_choose, []
    monkeypatch.setattr(probes, "fit_and_choose", lambda *parts: seen.append((len(parts[0]), blas())) or choose(*parts))
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        before = blas()
        result = probe_task(*planted(1), (0, 1), range(1))
        assert blas() == before and set(before.values()) == {2}
    assert sorted(layers for layers, _ in seen) == [1, 1, 1, 1, 2, 2]
    assert all(set(threads.values()) == {1} for _, threads in seen)
    assert result.mean[1] > 0.9 > result.mean[0] and result.mix[0, 1] > 0.8


def blas_only():
    return [each for each in threadpoolctl.threadpool_info() if each["user_api"] == "blas"]


def test_intervals_are_those_of_students_t():
    result = probe_task(*planted(1), (1,), range(3))
    spread = result.scores[:, 0].std(ddof=1) / np.sqrt(3)
    np.testing.assert_allclose(result.interval[0], 4.302653 * spread, rtol=1e-6)  # t of 2 degrees of freedom, 97.5 %
    np.testing.assert_array_equal(result.scores[:, 0], result.scores[:, 1])  # the mix of one layer is that layer
    assert np.isnan(probe_task(*planted(1), (1,), range(1)).interval).all()


def test_no_text_is_in_two_parts_and_files_stay_apart():
    task, _, _ = planted(0)
    for seed in range(3):
        parts = [set(task.owners[part]) for part in divided(task, seed)]
        assert [len(part) for part in parts] == [70, 15, 15] and len(set.union(*parts)) == 100
    assert [part.tolist() for part in divided(task, 0)] != [part.tolist() for part in divided(task, 1)]
    more = [make_task("planted", ["abcd"] * 10, [(9, ((0, 1),), "yes", "a")], part) for part in ("dev", "test")]
    whole = joined([task, *more])
    train, dev, test = divided(whole, 0)
    assert len(set(whole.owners[train])) == 80 and whole.owners[dev] == [109] and whole.owners[test] == [119]


def test_a_control_task_gives_each_type_one_label_whatever_its_context():
    examples = [(number, ((0, 1),), "ab"[number % 2], str(number % 50)) for number in range(400)]
    task = joined([make_task("words", ["word"] * 400, examples)])
    labels = control_labels(task, 0)
    for kind in set(task.types):
        assert len(set(labels[task.types == kind])) == 1
    assert set(labels) == {"a", "b"} and (control_labels(task, 1) != labels).any()


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
    with pytest.raises(UserError, match=message):
        read_probing_tasks(model, str(tmp_path / name))


def test_tags_that_do_not_match_their_words_are_an_error():
    with pytest.raises(UserError, match="sentence 1: 2 words and 1 tags"):
        tagging_task("pos", [["a"], ["the", "cat"]], [["X"], ["Y"]])
    with pytest.raises(UserError, match="sentence 1: 0 words and 1 tags"):
        tagging_task("pos", [["a"]], [["X"], ["Y"]])


SENTENCES = ["the cats sat on a mat", "old dogs ran in the house", "a big bird flew", "the tree and the house"] * 6
TAGS = {"the": "D", "a": "D", "on": "P", "in": "P", "old": "A", "big": "A"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A model, tagged words and text."""
    place = tmp_path_factory.mktemp("probe")
    write_workdir(place / "run", 1)
    for name in ("a.conll", "b.conll"):
        (place / name).write_text(
            "\n\n".join("\n".join(f"{word} {TAGS.get(word, 'N')}" for word in each.split()) for each in SENTENCES)
        )
    (place / "text.txt").write_text("\n".join(SENTENCES))
    for name, second in (("one/x", ""), ("two/x", '"span2": [1, 2], ')):
        (place / name).parent.mkdir()
        (place / f"{name}.jsonl").write_text(
            f'{{"text": "a b", "targets": [{{"span1": [0, 1], {second}"label": "l"}}]}}'
        )
    return place


@pytest.mark.slow
def test_the_command_leaves_a_result_and_a_second_call_computes_nothing(place, tmp_path, analyze, monkeypatch):
    words = ["probe", place / "run", f"--input={place}/a.conll,{place}/text.txt", f"--test={place}/b.conll"]
    words += ["--tasks=tags,order", "--seeds=2", "--layers=0,5"]
    printed, saved = analyze(*words)
    assert "scores on test, 2 seeds" in printed and "result.json, probe.png, probe.svg" in printed
    assert [task["task"] for task in saved["tasks"]] == ["tags", "order"] and saved["layers"] == [0, 5]
    assert np.shape(saved["tasks"][0]["scores"]) == (2, 3) and saved["tasks"][0]["classes"] == ["A", "D", "N", "P"]
    assert saved["tasks"][0]["mean"][0] == 1.0  # each word has one tag, which its embedding tells
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".json", ".npy", ".png", ".svg"}
    monkeypatch.setattr(probes, "probe", None)  # calling it would fail
    assert "has this result already" in analyze(*words, "--batch_size=4")[0]


@pytest.mark.slow
def test_the_function_returns_what_the_command_saves(place, analyze):
    words = ["probe", place / "run", f"--input={place}/a.conll", "--seeds=1", "--layers=0,2", "--pieces=last"]
    printed, saved = analyze(*words)
    words = [each.split() for each in SENTENCES]
    task = tagging_task("tags", words, [[TAGS.get(word, "N") for word in each] for each in words])
    model = bert_jax.load(place / "run")
    result = probe(model, [task], layers=[0, 2], pieces="last", seeds=1, progress=False)
    np.testing.assert_allclose(saved["tasks"][0]["scores"], result.tasks[0].scores)
    assert result.layers == (0, 2) and saved["tasks"][0]["interval"] == [None] * 3  # one seed has none
    assert "scores on test, 1 seed" in printed and "±" not in printed and "nan" not in printed


@pytest.mark.parametrize(
    "words, message",
    [
        (["--input=a.conll", "--layers=9"], "there is no 9; 0 is the embeddings, 1 to 5 the layers"),
        (["--input=a.conll", "--layers=two"], "layers=two must be all, or numbers"),
        (["--input=a.conll", "--seeds=0"], "seeds=0 must be at least 1"),
        (["--input=a.conll", "--columns=pos"], "expected NAME:COLUMN"),
        (["--input=a.conll", "--columns=pos:7"], "tag_column=7, but there are 2 columns"),
        (["--input=a.conll", "--tasks=depth"], "makes no such task"),
        (["--input=a.conll,b.conll"], "gives the task 'tags' too"),
        (["--input=a.conll", "--test=text.txt"], "tasks from text are divided by the seed"),
        (["--input=none.conllu"], "none.conllu"),
        (["--input=one/x.jsonl", "--test=two/x.jsonl"], "some of its files have one span per example and some two"),
        (["--input=a.conll", "--max_length=3"], "max_length=3 must be between 5 and the 40 positions"),
    ],
)
def test_bad_input_is_one_line(place, tmp_path, capsys, monkeypatch, words, message):
    monkeypatch.chdir(place)
    assert message in refusal(capsys, "analyze", "probe", place / "run", f"--output={tmp_path}", *words)
