"""`bert-jax analyze probe`: its files, a second call, and bad input."""

import json

import numpy as np
import pytest
from pretrained_model import write_workdir

import bert_jax
from bert_jax import cli
from bert_jax.analysis import probe, probes, tagging_task

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


def analyze(place, output, *words: str) -> int:
    return cli._run(["bert-jax", "analyze", "probe", str(place / "run"), f"--output={output}", *words])


@pytest.mark.slow
def test_the_command_leaves_a_result_and_a_second_call_computes_nothing(place, tmp_path, capsys, monkeypatch):
    words = [f"--input={place}/a.conll,{place}/text.txt", f"--test={place}/b.conll", "--tasks=tags,order", "--seeds=2"]
    words.append("--layers=0,5")
    assert analyze(place, tmp_path, *words) == 0
    printed = capsys.readouterr().out
    assert "scores on test, 2 seeds" in printed and "result.json, probe.png, probe.svg" in printed
    saved = json.loads((tmp_path / "result.json").read_text())["result"]
    assert [task["task"] for task in saved["tasks"]] == ["tags", "order"] and saved["layers"] == [0, 5]
    assert np.shape(saved["tasks"][0]["scores"]) == (2, 3) and saved["tasks"][0]["classes"] == ["A", "D", "N", "P"]
    assert saved["tasks"][0]["mean"][0] == 1.0  # each word has one tag, which its embedding tells
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".npy", ".png", ".svg"}
    monkeypatch.setattr(probes, "probe", None)  # calling it would fail
    assert analyze(place, tmp_path, *words, "--batch_size=4") == 0
    assert "has this result already" in capsys.readouterr().out


@pytest.mark.slow
def test_the_function_returns_what_the_command_saves(place, tmp_path):
    assert analyze(place, tmp_path, f"--input={place}/a.conll", "--seeds=1", "--layers=0,2", "--pieces=last") == 0
    saved = json.loads((tmp_path / "result.json").read_text())["result"]
    words = [each.split() for each in SENTENCES]
    task = tagging_task("tags", words, [[TAGS.get(word, "N") for word in each] for each in words])
    model = bert_jax.load(place / "run")
    result = probe(model, [task], layers=[0, 2], pieces="last", seeds=1, progress=False)
    np.testing.assert_allclose(saved["tasks"][0]["scores"], result.tasks[0].scores)
    assert result.layers == (0, 2) and saved["tasks"][0]["interval"] == [None] * 3  # one seed has none


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
    assert analyze(place, tmp_path, *words) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 1
