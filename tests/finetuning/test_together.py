"""Several tasks over one encoder: whose turn it is, what a step changes, and runs that end as uninterrupted ones do."""

import json
import types

import jax
import numpy as np
import pytest
from small_finetuning import FAST, Killed, assert_same_weights, killed_before, run_config, weights
from small_pretraining import finetune

import bert_jax
from bert_jax.cli import commands
from bert_jax.errors import UserError
from bert_jax.finetuning import together
from bert_jax.finetuning.together import Member, SwitchedProgram, finetune_together, joined, turns
from bert_jax.objectives.objective import Sums, Term, WeightedObjective, mean_loss
from bert_jax.training.state import TrainState


@pytest.mark.parametrize("sizes", [(7,), (3, 3), (20, 7, 1), (1, 100)])
def test_each_task_has_its_share_of_turns(sizes):
    order = turns(sizes, 1.0, 3 * sum(sizes))
    counts = np.stack([np.cumsum(order == number) for number in range(len(sizes))])
    for epoch in (1, 2, 3):
        assert counts[:, epoch * sum(sizes) - 1].tolist() == [epoch * size for size in sizes]
    quotas = np.array(sizes)[:, None] / sum(sizes) * np.arange(1, len(order) + 1)
    assert np.abs(counts - quotas).max() < len(sizes)
    assert turns(sizes, 1.0, 5).tolist() == order[:5].tolist(), "the end of a run does not matter"


def test_a_temperature_makes_shares_alike():
    assert np.bincount(turns((100, 1), 2.0, 110)).tolist() == [100, 10], "shares as the square roots, 10 to 1"
    assert np.bincount(turns((1000, 10), 1e9, 100)).tolist() == [50, 50]
    for low in (0.3, 1e-9):
        with pytest.raises(UserError, match=f"temperature={low:g} leaves no step of an epoch to the task with"):
            turns((1000, 10), low, 1010)


def states(*names):
    """The state of each task, with parameters, moments and a number, all different."""

    def state(place):
        params = {
            part: {"kernel": np.full(2, 10 * place + at)}
            for at, part in enumerate(("encoder", "pooler", "head", "token_vectors"))
        }
        if place:
            del params["pooler"]
        return TrainState(np.int32(0), params, ({"count": np.int32(0)}, {"mu": params}, ()))

    return {name: state(place) for place, name in enumerate(names)}


def member(name, state, step=None):
    tuning = types.SimpleNamespace(programs=types.SimpleNamespace(train_step=step))
    return Member(name, tuning, None, tuple(state.params))


def test_a_step_of_a_task_leaves_the_heads_of_others_alone():
    parts = states("one", "two")

    def step(state, batch):
        new = jax.tree.map(lambda leaf: leaf + batch, state)
        return new, {"loss": 1, "learning_rate": 2, "grad_norm": 3, "skipped": 0, "accuracy": 5}

    members = [member(name, state, step) for name, state in parts.items()]
    state = joined(members, list(parts.values()))
    assert set(state.params) == {"encoder", "pooler", "head", "token_vectors"}
    assert set(state.params["head"]) == set(state.params["token_vectors"]) == {"one", "two"}
    assert set(members[1].view(state).params) == {"encoder", "head", "token_vectors"}
    assert jax.tree.structure(members[0].view(state)) == jax.tree.structure(parts["one"])
    new, values = SwitchedProgram(members)(state, 1, 100)
    assert "accuracy" not in values and new.step == 100 and new.optimizer_state[0]["count"] == 100
    for tree in (new.params, new.optimizer_state[1]["mu"]):
        assert tree["encoder"]["kernel"].tolist() == [100, 100], "that of the first task, which both have"
        assert tree["pooler"]["kernel"].tolist() == [1, 1] and tree["head"]["one"]["kernel"].tolist() == [2, 2]
        assert tree["head"]["two"]["kernel"].tolist() == [112, 112]
        assert tree["token_vectors"]["one"]["kernel"].tolist() == [3, 3], "whose size may be another"


def test_each_task_has_its_map_to_token_vectors():
    parts = [{"encoder": {"kernel": np.zeros(2)}, "token_vectors": {"kernel": np.zeros((2, size))}} for size in (8, 6)]
    states = [TrainState(np.int32(0), params, ()) for params in parts]
    members = [member(name, state) for name, state in zip("ab", states, strict=True)]
    state = joined(members, states)
    for one, params in zip(members, parts, strict=True):
        assert one.view(state).params["token_vectors"]["kernel"].shape == params["token_vectors"]["kernel"].shape
    assert jax.tree.structure(members[1].put(state, states[1])) == jax.tree.structure(state)


ROWS = [("a", "x"), ("b", "y")]
RUN = ("learning_rate", "epochs", "log_every_steps", "compute")


@pytest.mark.parametrize(
    "tasks, options, message",
    [
        ({}, {}, "tasks={} must be a dict of tasks by name"),
        ([("a", {})], {}, "tasks=.* must be a dict of tasks by name"),
        ({"a/b": {"task": "text"}}, {}, "the task 'a/b' needs a name of letters, digits, - and _"),
        ({"a": "text"}, {}, r"tasks\['a'\] is 'text'; expected a dict with task, train and dev"),
        ({"a": {"train": ROWS}}, {}, r"tasks\['a'\] is .*; expected a dict with task, train and dev"),
        ({"a": {"task": "txt"}}, {}, "unknown task 'txt'; perhaps you meant text"),
        ({"a": {"task": "text", "epochs": 5}}, {}, r"tasks\['a'\] has epochs, which belongs to the run"),
        (
            {"a": {"task": "text", "train": ROWS, "workdir": "x"}},
            {},
            r"tasks\['a'\] has workdir, which belongs to the run",
        ),
        ({"a": {"task": "text", "train": ROWS}}, {"temperature": True}, "temperature=True must be a number above 0"),
        ({"a": {"task": "text", "train": ROWS, "folds": 2}}, {}, "data.folds=2 is for a task by itself"),
        ({"a": {"task": "text", "train": ROWS}}, {"lora": {"rank": 4}}, "lora.rank=4 is for a task by itself"),
        ({"a": {"task": "text", "train": ROWS}}, {"seeds": 3}, "seeds=3 is for a task by itself"),
        ({"a": {"task": "text", "train": ROWS}}, {"temperature": 0}, "temperature=0 must be a number above 0"),
        ({"a": {"task": "text", "train": ROWS}}, {"select_by": "b"}, "select_by='b' is none of the tasks a"),
        ({"a": {"task": "text", "train": ROWS}}, {"workdir": ""}, "workdir is missing"),
        ({"a": {"task": "ax", "dir": "d"}}, {}, r"tasks\['a'\] is ax, which is not trained; leave it out"),
        ({"a": {"task": "text"}}, {}, "no data: give"),
        ({"a": {"task": "text", "train": ROWS, "loss_weight": -1}}, {}, "loss_weight=-1; expected a number above 0"),
    ],
)
def test_bad_arguments(tasks, options, message):
    with pytest.raises(UserError, match=message) as raised:
        finetune_together(tasks, **{"init_from": "m", "workdir": "w"} | options)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "content, options, message",
    [
        ('{"task": "text"}', [], "tasks.json has 'task'; write {\"tasks\""),
        ('{"tasks": ["text"]}', [], r"tasks.json has tasks=\['text'\]; write"),
        ("{", [], "tasks.json .*; write {"),
        ('{"tasks": {"a": {"task": "cola"}}}', ["--data.dir=d"], "--data belongs to one task, and here are several"),
    ],
)
def test_bad_files_of_the_command(tmp_path, content, options, message):
    (tmp_path / "tasks.json").write_text(content)
    with pytest.raises(UserError, match=message) as raised:
        commands.finetune([str(tmp_path / "tasks.json"), "--init_from=m", "--workdir=w", *options])
    assert "\n" not in str(raised.value)


def test_the_command_is_the_call(tmp_path, monkeypatch):
    tasks = {"a": {"task": "cola", "dir": "d"}, "b": {"task": "ner", "dir": "e", "loss_weight": 2}}
    (tmp_path / "tasks.json").write_text(json.dumps({"tasks": tasks, "temperature": 2}))
    calls = []
    monkeypatch.setattr(together, "finetune_together", lambda *given, **named: calls.append((given, named)) or Done)
    monkeypatch.setattr(commands, "_need", lambda **places: None)
    options = [
        f"--init_from={tmp_path / 'model'}",
        "--workdir=w",
        "--epochs=7",
        "--select_by=b",
        "--optimizer.beta2=0.9",
    ]
    assert commands.finetune([str(tmp_path / "tasks.json"), *options]) == 130
    (((given,), named),) = calls
    assert given == tasks and named["temperature"] == 2 and named["select_by"] == "b" and named["epochs"] == 7
    assert named["optimizer"].beta2 == 0.9 and named["learning_rate"] == 3e-5, "the default of the first task"
    assert not {"data", "batch_size", "task", "options"} & named.keys()


Done = types.SimpleNamespace(exit_code=130)


@pytest.mark.slow
def test_a_factor_multiplies_the_loss_of_a_task_and_its_gradient():
    """Where two losses are sums of squares, the gradient of both is the sum of those apart, each with its factor."""

    class Squares:
        model, terms = None, (Term(),)

        def denominators(self, batch):
            return {"": np.float32(len(batch["x"]))}

        def sums(self, params, batch, dropout_key=None):
            return {
                "": Sums(((params["encoder"] * params["head"] - batch["x"]) ** 2).sum(), np.float32(len(batch["x"])))
            }

    params, batch = {"encoder": np.float32(2.0), "head": np.float32(3.0)}, {"x": np.float32([1.0, 2.0])}
    for factor in (1.0, 0.25):
        objective = WeightedObjective(Squares(), factor)
        denominators = objective.denominators(batch)
        loss = lambda params: mean_loss(objective.terms, objective.sums(params, batch), denominators)
        gradients = jax.grad(loss)(params)
        mean = np.mean(2 * (6 - batch["x"]))
        assert gradients["encoder"] == pytest.approx(factor * mean * 3) and gradients["head"] == pytest.approx(
            factor * mean * 2
        )


TAGGED = [([place, str(n), "is"], [f"B-{place}", "O", "O"]) for n in range(60) for place in ("garden", "harbour")]


def two_tasks(home, workdir, **options):
    tasks = {
        "topic": {"task": "text", "dir": str(home / "data"), "packing": "off", "max_length": 16, "batch_size": 16},
        "place": {"task": "ner", "train": TAGGED, "dev_share": 0.2, "max_length": 16, "batch_size": 16},
    }
    usual = {"devices": jax.devices()[:1], **{name: FAST[name] for name in RUN}}
    return finetune_together(tasks, init_from=home / "pretrained", workdir=workdir, **usual | {"epochs": 3} | options)


@pytest.mark.slow
def test_one_task_is_trained_as_by_itself(pretrained, tmp_path):
    config = run_config(pretrained, tmp_path / "alone")
    expected = finetune(config).results
    own = {"task": "text", "dir": str(pretrained / "data"), "packing": "off", "max_length": 16, "batch_size": 16}
    usual = {"devices": jax.devices()[:1], **{name: FAST[name] for name in RUN}}
    own["bucket_window"] = FAST["bucket_window"]
    found = finetune_together({"topic": own}, init_from=pretrained / "pretrained", workdir=tmp_path / "work", **usual)
    assert_same_weights(tmp_path / "work" / "tasks" / "topic", tmp_path / "alone")
    found = found.results["tasks"]["topic"]
    for name in ("metrics", "report", "collapsed", "tests"):
        assert found[name] == expected[name]
    assert found["runs"][0]["training_loss"] == expected["runs"][0]["training_loss"]
    assert [each["accuracy"] for each in found["runs"][0]["epochs"]] == [
        each["accuracy"] for each in expected["runs"][0]["epochs"]
    ]


@pytest.mark.slow
def test_two_tasks_over_one_encoder(pretrained, tmp_path, monkeypatch):
    """Killed at any step and resumed, it is the same; and each model is one like any other."""
    whole = two_tasks(pretrained, tmp_path / "whole")
    topic, place = (weights(tmp_path / "whole" / "tasks" / name) for name in ("topic", "place"))
    shared = {path for path in topic if path.startswith(("embeddings", "encoder"))}
    assert shared and all(np.array_equal(topic[path], place[path]) for path in shared)
    assert {path.split("/")[0] for path in topic.keys() ^ place.keys()} == {"pooler"}
    assert whole.results["tasks"]["topic"]["metrics"]["accuracy"] > 0.8
    assert whole.results["tasks"]["place"]["metrics"]["f1"] > 0.3
    assert whole.model("topic").predict(["The rose grows."])[0].name in ("garden", "harbour")
    (tagged,) = whole.model("place").predict(["garden 1 is"])
    assert [word for word, _ in tagged] == ["garden", "1", "is"]
    assert {tag for _, tag in tagged} <= {"O", "B-garden", "I-garden", "B-harbour", "I-harbour"}
    bert_jax.convert(tmp_path / "whole" / "tasks" / "place", tmp_path / "hf", to="huggingface")
    assert bert_jax.load(tmp_path / "hf").head.labels == ("O", "B-garden", "I-garden", "B-harbour", "I-harbour")

    seen = killed_before(monkeypatch, 9, 30)
    for _ in range(2):
        with pytest.raises(Killed):
            two_tasks(pretrained, tmp_path / "work", save_every_steps=4)
    again = two_tasks(pretrained, tmp_path / "work", save_every_steps=4)
    for name in ("topic", "place"):
        assert_same_weights(tmp_path / "work" / "tasks" / name, tmp_path / "whole" / "tasks" / name)
        for figure in ("metrics", "collapsed", "report"):
            assert again.results["tasks"][name][figure] == whole.results["tasks"][name][figure]
    assert [record["training_loss"] for record in again.results["tasks"]["topic"]["runs"]] == [
        record["training_loss"] for record in whole.results["tasks"]["topic"]["runs"]
    ]
    taken = len(seen)
    assert two_tasks(pretrained, tmp_path / "work").results == again.results and len(seen) == taken
    assert not (tmp_path / "work" / "training").exists()
    with pytest.raises(UserError, match="holds a run with different data, parameters or settings .*temperature"):
        two_tasks(pretrained, tmp_path / "work", temperature=2.0)
    assert json.loads((tmp_path / "work" / "tasks" / "topic" / "results.json").read_text())["task"] == "text"
    assert together.TOGETHER.has_saved(tmp_path / "work")
