"""What `predict` and `finetune ax` refuse.

These are tasks that the head of a model cannot answer, ensembles that were taught different things, and work
directories that are taken.
"""

import dataclasses
import json

import pytest
from one_device import finetune, run_predict
from pretrained_model import CONFIG
from task_models import LABELS, write_model

from bert_jax.config import MeshConfig
from bert_jax.config.finetuning import InputFormConfig, PredictConfig, TaskDataConfig, task_defaults
from bert_jax.errors import UserError
from bert_jax.finetuning import programs


@pytest.mark.parametrize(
    ("task", "asked", "needed"),
    [
        ("rte", "squad_v1", "classification head, but squad_v1 needs one of span"),
        ("squad_v2", "stsb", "span head, but stsb needs one of regression"),
        ("swag", "stsb", "choice head, but stsb needs one of regression"),
        ("stsb", "choice", "regression head, but choice needs one of choice"),
        ("stsb", "rte", "regression head, but rte needs one of classification"),
        ("rte", "stsb", "classification head, but stsb needs one of regression"),
        ("ner", "text", "tagging head, but text needs one of classification"),
    ],
)
def test_a_task_that_needs_another_head_is_named(tmp_path, task, asked, needed):
    model = write_model(tmp_path / "model", task)
    (tmp_path / "input.tsv").write_text("sentence1\tsentence2\na cat\ta dog\n")
    options = PredictConfig(input=str(tmp_path / "input.tsv"), output=str(tmp_path / "output"), task=asked)
    with pytest.raises(UserError, match=f"{model} has a {needed}"):
        run_predict(str(model), options)
    assert not (tmp_path / "output").exists()


@pytest.mark.parametrize("tasks", [("qnli", "rte"), ("swag", "race"), ("squad_v1", "squad_v2")])
def test_models_of_several_tasks_are_no_ensemble(tmp_path, tasks):
    first, second = (write_model(tmp_path / task, task) for task in tasks)
    (tmp_path / "input").touch()
    options = PredictConfig(input=str(tmp_path / "input"), output=str(tmp_path / "output"))
    message = f"an ensemble needs models of one task, not {second} of {tasks[1]} and {first} of {tasks[0]}"
    with pytest.raises(UserError, match=message):
        run_predict(f"{first},{second}", options)


def test_a_model_predicts_another_task_of_its_head(tmp_path):
    model = write_model(tmp_path / "mnli", "mnli")
    (tmp_path / "input.tsv").write_text("index\tsentence1\tsentence2\n0\ta cat sat\ta dog ran\n")
    options = PredictConfig(input=str(tmp_path / "input.tsv"), output=str(tmp_path / "AX.tsv"), task="ax")
    assert run_predict(f"{model},{model}", options) == {}
    assert (tmp_path / "AX.tsv").read_text().split("\n")[0] == "index\tprediction"


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"input": "/nowhere.tsv"}, "--input=/nowhere.tsv: no such file"),
        ({"input": ""}, "give one of --input=FILE and --text=TEXT"),
        ({"text": "a cat"}, "give one of --input=FILE and --text=TEXT, not both"),
        ({"batch_size": 0}, "batch_size=0 must be positive"),
        ({"mesh": MeshConfig(data=0)}, "mesh.data=0"),
    ],
)
def test_options_that_cannot_be_are_named(tmp_path, changes, message):
    options = PredictConfig(input=__file__, output=str(tmp_path / "output"))
    with pytest.raises(UserError, match=message):
        run_predict(str(tmp_path), dataclasses.replace(options, **changes))


def test_a_file_without_a_header_is_read_as_its_error_says(tmp_path):
    """The model was taught by files with one."""
    model = write_model(tmp_path / "text", "text")
    (tmp_path / "input.tsv").write_text("a cat sat\na dog ran\n")
    options = PredictConfig(input=str(tmp_path / "input.tsv"), output=str(tmp_path / "output.tsv"))
    with pytest.raises(
        UserError, match="no column text or sentence or sentence1 .*--data.text_column=1 --data.label_column=2"
    ):
        run_predict(str(model), options)
    run_predict(str(model), dataclasses.replace(options, data=InputFormConfig(text_column="1", label_column="2")))
    assert len((tmp_path / "output.tsv").read_text().splitlines()) == 3
    options = dataclasses.replace(options, output=str(tmp_path / "other.tsv"), data=InputFormConfig(scheme="iob1"))
    with pytest.raises(UserError, match="^data.scheme=iob1 belongs to task=ner, not to text; leave it out$"):
        run_predict(str(model), options)


def test_ax_asks_for_a_model_of_mnli(tmp_path, monkeypatch):
    monkeypatch.setitem(LABELS, "text", ("LABEL_0", "LABEL_1", "LABEL_2"))
    model = write_model(tmp_path / "model", "text")
    (tmp_path / "input.tsv").write_text("index\tsentence1\tsentence2\n0\ta cat sat\ta dog ran\n")
    options = PredictConfig(input=str(tmp_path / "input.tsv"), output=str(tmp_path / "AX.tsv"), task="ax")
    with pytest.raises(
        UserError, match="the model has LABEL_0, .*; give one that was fine-tuned on mnli, or put .* id2label"
    ):
        run_predict(str(model), options)


@pytest.fixture
def on_ax(tmp_path):
    """`finetune ax` of a model of mnli, on one pair, into out/."""
    (tmp_path / "diagnostic.tsv").write_text("index\tsentence1\tsentence2\n0\ta cat sat\ta dog ran\n")
    return dataclasses.replace(
        task_defaults("ax"),
        init_from=str(write_model(tmp_path / "mnli", "mnli")),
        data=TaskDataConfig(dir=str(tmp_path)),
        workdir=str(tmp_path / "out"),
    )


@pytest.mark.parametrize("held", [{"run.json": {}}, {"results.json": {"task": "mnli"}}])
def test_ax_takes_no_work_directory_of_another_task(on_ax, tmp_path, held):
    (tmp_path / "out").mkdir()
    for name, content in held.items():
        (tmp_path / "out" / name).write_text(json.dumps(content))
    with pytest.raises(UserError, match=f"workdir={tmp_path}/out holds a different run or its results"):
        finetune(on_ax)
    assert {file.name: json.loads(file.read_text()) for file in (tmp_path / "out").iterdir()} == held


def test_ax_is_read_as_its_model_was_in_batches_of_the_size_asked_for(on_ax, monkeypatch):
    predict, seen = programs.predict_logits, []

    def spy(step, params, features, head, batch_size, mesh):
        seen.append((batch_size, features.max_length))
        return predict(step, params, features, head, batch_size, mesh)

    monkeypatch.setattr(programs, "predict_logits", spy)
    for _ in range(2):  # a directory of its own may be written again
        finetune(dataclasses.replace(on_ax, eval_batch_size=3))
    assert seen == [(3, CONFIG.max_position_embeddings)] * 2
    with pytest.raises(UserError, match="options.max_length=8 belongs to task=cola .*, not to ax; leave it out"):
        finetune(on_ax, max_length=8)
