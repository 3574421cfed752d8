"""`bert_jax.finetune` in Python: examples in memory and options by keyword give the same run as files and a config."""

import dataclasses
import json
import re
import tempfile

import numpy as np
import pytest
from one_device import finetune
from small_finetuning import FAST, assert_same_weights, sentences

import bert_jax
from bert_jax.config import ComputeConfig, OptimizerConfig
from bert_jax.config.finetuning import FinetuneConfig, SentenceOptions, TaskDataConfig, TextDataConfig, task_defaults
from bert_jax.devices import hardware
from bert_jax.errors import UserError
from bert_jax.finetuning.loop import IN_MEMORY, from_arguments
from bert_jax.tasks import text

OPTIONS = {
    "max_length": 16,
    "batch_size": 16,
    "learning_rate": 2e-3,
    "epochs": 1,
    "log_every_steps": 5,
    "bucket_window": 1,
}


def rows_of(tsv: str) -> list[tuple[str, str]]:
    return [tuple(line.split("\t")) for line in tsv.splitlines()[1:]]


@pytest.fixture(scope="module")
def home(pretrained):
    """The fixture's directory, with saved/: its model, written by model.save."""
    bert_jax.load(pretrained / "pretrained").save(pretrained / "saved")
    return pretrained


@pytest.fixture(scope="module")
def in_memory(home, tmp_path_factory):
    """Arguments of a finished call, and its result."""
    arguments = dict(
        train=rows_of(sentences(320, 0)),
        dev=np.array(rows_of(sentences(40, 1))),
        init_from=home / "saved",
        workdir=tmp_path_factory.mktemp("memory") / "work",
        **OPTIONS,
    )
    return arguments, finetune("text", **arguments)


@pytest.mark.slow
def test_it_is_the_run_of_the_files(in_memory, home, tmp_path):
    """From the saved model and lists as from the model and files: bit for bit."""
    arguments, result = in_memory
    files = dataclasses.replace(
        task_defaults("text"),
        init_from=str(home / "pretrained"),
        workdir=str(tmp_path / "work"),
        data=TaskDataConfig(train=str(home / "data/train.tsv"), dev=str(home / "data/dev.tsv")),
        **FAST | {"epochs": 1, "log_every_steps": 5, "compute": ComputeConfig()},
    )
    other = finetune(files)
    assert_same_weights(result.path, other.path)
    assert result.path == str(arguments["workdir"]) and repr(result) == f"Result(exit_code=0, path={result.path!r})"
    for name in ("metrics", "data", "labels", "hyperparameters"):
        assert result.results[name] == other.results[name]
    texts = [text for text, _ in arguments["train"][:4]]
    found = result.model.predict(texts)
    assert found == bert_jax.load(result.path).predict(texts) and {one.name for one in found} <= {"garden", "harbour"}
    assert result.model is result.model, "loaded once"


@pytest.mark.slow
def test_the_contents_decide_whether_a_run_is_resumed(in_memory):
    arguments, result = in_memory
    same = {"dev": [list(row) for row in arguments["dev"]], "train": iter(arguments["train"])}
    again = finetune("text", **arguments | same)
    assert again.results["runs"] == result.results["runs"], "finished: nothing was trained"
    changed = [*arguments["train"][:-1], (arguments["train"][-1][0] + " again", arguments["train"][-1][1])]
    with pytest.raises(UserError, match="different data.*features_fingerprint"):
        finetune("text", **arguments | {"train": changed})
    config = json.loads((arguments["workdir"] / "config.json").read_text())["finetune"]
    assert config["data"]["train"] == config["data"]["dev"] == IN_MEMORY


@pytest.mark.slow
def test_without_a_workdir_there_is_a_temporary_one(home, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(UserError, match="there is no"):
        finetune("text", train=[("a", "x"), ("b", "y")], dev=[("a", "x")], init_from="nowhere")
    assert not list(tmp_path.iterdir()), "nothing was begun"
    numbers = [(text, len(text)) for text, _ in rows_of(sentences(64, 3))]
    result = finetune("text", train=numbers, dev=numbers[:16], init_from=home / "saved", regression=True, **OPTIONS)
    assert f"no workdir was given: results and weights go to {result.path}" in capsys.readouterr().out
    assert [str(path) for path in tmp_path.iterdir()] == [result.path] and result.results["main_metric"] == "pearson"
    assert isinstance(result.model.predict("a text")[0], float)


def test_several_hosts_are_given_a_workdir(monkeypatch):
    """Each would draw a temporary one of its own."""
    monkeypatch.setattr(hardware, "initialize_distributed", lambda peer_timeout_seconds: None)
    here = dataclasses.replace(hardware.hardware(), num_processes=2)
    monkeypatch.setattr(hardware, "hardware", lambda: here)
    with pytest.raises(UserError, match="several hosts need one workdir that all of them see: give workdir="):
        finetune("mrpc", dir="nowhere", init_from="nowhere")


def test_an_interrupted_run_has_no_model():
    from bert_jax.finetuning.loop import Result

    with pytest.raises(UserError, match="interrupted; the same call with workdir='here' resumes it"):
        Result({}, 130, "here").model


PAIRS = [(("a", "b"), 1), (["c", "d"], 0), (("e", "f"), 10)]
FORMS = {
    "names": ([("a", "x"), ["b", " y "], np.array(["c", "x"])], ["a", "b", "c"], None, ("x", "y"), [0, 1, 0]),
    "an array": (np.array([("a", "x"), ("b", "y")]), ["a", "b"], None, ("x", "y"), [0, 1]),
    "an array of objects": (np.array([("a", 3), ("b", 20)], object), ["a", "b"], None, ("3", "20"), [0, 1]),
    "numbers of NumPy": (list(zip(["a", "b"], np.array([1, 0]))), ["a", "b"], None, ("0", "1"), [1, 0]),
    "truth": ([("a", True), ("b", np.False_)], ["a", "b"], None, ("False", "True"), [1, 0]),
    "pairs": (PAIRS, ["a", "c", "e"], ["b", "d", "f"], ("0", "1", "10"), [1, 0, 2]),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms(name):
    rows, first, second, labels, answers = FORMS[name]
    config, given = from_arguments("text", {"train": rows, "dev": "dev.tsv"}, {"init_from": "m"})
    examples = text.load("text", config.data, "train", given=given)
    assert (examples.first, examples.second, examples.labels, examples.answers.tolist()) == (
        first,
        second,
        labels,
        answers,
    )
    dev = text.load("text", TextDataConfig(), "dev", labels, {"dev": rows[::-1]})
    assert dev.first == first[::-1] and dev.labels == labels


def test_numbers_and_test_sets_without_labels():
    regression = TextDataConfig(regression=True)
    examples = text.load(
        "text", regression, "train", given={"train": [("a", 1), ("b", np.float32(0.5)), ("c", "-3e1")]}
    )
    assert (examples.labels, examples.answers.tolist()) == ((), [1, 0.5, -30])
    unlabelled = text.load("text", TextDataConfig(), "test", ("x", "y"), {"test": [("a", None), ("b", None)]})
    assert unlabelled.first == ["a", "b"] and not unlabelled.has_answers


WRONG = {
    "two lists": ((["a", "b", "c"], ["x", "y", "x"]), r"train\[0\] is \['a', 'b', 'c'\]; expected .*list\(zip\("),
    "texts alone": (["a good film", "a bad film"], r"train\[0\] is 'a good film'; expected"),
    "three texts": ([(("a", "b", "c"), "x")], r"train\[0\] has 3 texts"),
    "no text": ([("a", "x"), (3, "y")], r"train\[1\]: 'text' is 3, not text"),
    "an empty text": ([("a", "x"), (" ", "y")], r"train\[1\]: the text in column 'text' is empty"),
    "a pair later": ([("a", "x"), (("b", "c"), "y")], r"train\[1\]: a 'text_pair', which the first example lacks"),
    "a single text later": ([(("a", "b"), "x"), ("c", "y")], r"train\[1\]: 'text_pair' is missing"),
    "no label": ([("a", "x"), ("b", None)], r"train\[1\]: the label is missing"),
    "floats": ([("a", 1.0), ("b", 0.0)], r"train\[0\]: the label 1.0 is a float; give regression=True"),
    "a list as a label": ([("a", ["x"])], r"train\[0\]: the label \['x'\] is neither text nor a number"),
    "one class": ([("a", "x"), ("b", "x")], r"train\[0\], and every other example, has the label 'x'"),
    "nothing": ([], "train holds no example"),
    "a mapping": ({"a": "x"}, "train is dict; expected a file, or examples"),
    "a number": (3, "train is int; expected a file"),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_examples_are_named(name):
    rows, message = WRONG[name]
    with pytest.raises(UserError, match=message):
        config, given = from_arguments("text", {"train": rows, "dev": []}, {})
        text.load("text", config.data, "train", given=given)


def test_an_unknown_class_in_dev():
    with pytest.raises(UserError, match=r"dev\[1\]: unknown label 'posi'; expected one of neg, pos; perhaps 'pos'"):
        text.load("text", TextDataConfig(), "dev", ("neg", "pos"), {"dev": [("a", "pos"), ("b", "posi")]})


def test_options_by_keyword(tmp_path):
    config, given = from_arguments(
        "mrpc",
        {"train": tmp_path / "a.tsv", "dev": "b.tsv", "test": None},
        {
            "init_from": tmp_path,
            "workdir": "w",
            "epochs": np.int64(7),
            "learning_rate": 1,
            "max_length": 64,
            "grid_epochs": [1, 2],
            "optimizer": {"name": "lamb"},
            "weight_decay": 0.5,
            "mesh.data": 2,
            "head_dropout": 0.25,
            "schedule": bert_jax.ScheduleConfig(power=2.0),
        },
    )
    assert not given and config == dataclasses.replace(
        task_defaults("mrpc"),
        init_from=str(tmp_path),
        workdir="w",
        epochs=7,
        learning_rate=1.0,
        grid_epochs=(1, 2),
        options=SentenceOptions(max_length=64),
        data=TaskDataConfig(train=str(tmp_path / "a.tsv"), dev="b.tsv"),
        head_dropout=0.25,
        optimizer=OptimizerConfig(name="lamb", weight_decay=0.5),
        mesh=bert_jax.MeshConfig(data=2),
        schedule=bert_jax.ScheduleConfig(power=2.0),
    )
    assert from_arguments(config, {}, {"seed": 3})[0] == dataclasses.replace(config, seed=3)
    assert from_arguments(FinetuneConfig(task="text"), {}, {})[0].workdir == ""


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("text", {"learning_rat": 1e-3}, "unknown option 'learning_rat'; perhaps you meant learning_rate"),
        ("text", {"maxlength": 8}, "perhaps you meant max_length"),
        ("text", {"zzz": 1}, "unknown option 'zzz'; `bert-jax finetune TASK --help` lists them"),
        ("text", {"name": "lamb"}, "name is ambiguous: schedule.name or optimizer.name; write schedule={'name': …}"),
        ("text", {"optimizer": {"nam": "lamb"}}, "unknown option optimizer.nam; perhaps you meant optimizer.name"),
        ("text", {"optimizer": "lamb"}, "optimizer takes a dict of its options (name, "),
        ("text", {"data": "GLUE"}, "data takes a dict of its options (dir, train, dev, test, "),
        ("text", {"data": None}, "regression), not None"),
        ("text", {"doc_stride": 9}, "options.doc_stride=9 belongs to task=squad_v1 or squad_v2 or ner, not to text"),
        ("mrpc", {"data": {"scheme": "iob1"}}, "data.scheme=iob1 belongs to task=ner, not to mrpc; leave it out"),
        ("text", {"epochs": 1.5}, "epochs=1.5 must be of type int"),
        ("text", {"learning_rate": "3e-5"}, "learning_rate='3e-5' must be of type float"),
        ("text", {"select": "first"}, "select='first' must be one of last, best"),
        ("text", {"init_from": object()}, "init_from takes the path of a model, not a object; model.save(path)"),
        ("txt", {}, "unknown task 'txt'; perhaps you meant text"),
        (3, {}, "takes a task or a FinetuneConfig first, not 3"),
    ],
)
def test_bad_options_are_named(task, options, message):
    with pytest.raises(UserError, match=re.escape(message)):
        from_arguments(task, {}, options)


def test_a_share_of_train_is_held_out_as_of_a_file(home):
    """The same texts as of the file with the same lines."""
    rows = rows_of(sentences(320, 0))
    config, given = from_arguments("text", {"train": rows}, {"dev_share": 0.2})
    of_file = dataclasses.replace(config.data, train=str(home / "data/train.tsv"))
    parts = [text.load("text", config.data, split, given=given) for split in ("train", "dev")]
    for split, part in zip(("train", "dev"), parts):
        assert part.first == text.load("text", of_file, split).first
    assert sum(map(len, parts)) == 320 and 40 < len(parts[1]) < 90
    with pytest.raises(
        UserError, match=r"train is given and dev, .* give dev=\[\(text, label\), …\], or dev_share=0.1"
    ):
        from_arguments("text", {"train": rows}, {})


def test_other_tasks_read_files():
    with pytest.raises(UserError, match="train, dev in memory: .* to the task text.*ner reads files: train=FILE"):
        from_arguments("ner", {"train": [(["a"], ["O"])], "dev": []}, {})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"tfds": "glue/sst2"},
            "tfds='glue/sst2' has all splits, but train and dev are given in memory too; leave one of the two out",
        ),
        ({"text_column": "review"}, "text_column='review' names a column of a file, but all examples are in memory"),
        ({"pair_column": "b"}, "pair_column='b' names a column"),
        ({"data": {"label_column": "y"}}, "label_column='y' names a column"),
    ],
)
def test_options_of_files_beside_examples_in_memory(options, message):
    """Once ignored."""
    rows = [("a", "x"), ("b", "y")]
    with pytest.raises(UserError, match=re.escape(message)):
        from_arguments("text", {"train": rows, "dev": rows}, options)
    if "tfds" not in options:
        assert from_arguments("text", {"train": rows, "dev": "dev.tsv"}, options)[1] == {"train": rows}
        assert from_arguments("text", {"train": rows}, options | {"dir": "d"})[1] == {"train": rows}
