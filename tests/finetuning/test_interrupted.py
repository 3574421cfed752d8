"""Fine-tuning that is interrupted, watched, or thaws layer by layer."""

import dataclasses
import gzip
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import processes
import pytest
from dying import dying
from small_finetuning import MODEL, Killed, assert_same_weights, run_config, sentences, weights
from small_model import compiled
from small_pretraining import DOES_NOT_FIT, finetune, full_device
from workdirs import wrong_at

from bert_jax.config import HeadConfig, HostFaultsConfig, MeshConfig, ModelConfig, ScheduleConfig
from bert_jax.config.finetuning import FinetuneConfig, check_finetune
from bert_jax.config.pretraining import ProfileConfig, SinksConfig
from bert_jax.console import load_config
from bert_jax.devices.hosts import EXIT_CODE
from bert_jax.devices.sharding import make_mesh
from bert_jax.errors import UserError
from bert_jax.finetuning import loop
from bert_jax.finetuning.plan import Run, learning_rates
from bert_jax.finetuning.programs import make_programs
from bert_jax.models.bert_parameters import bert_parameters
from bert_jax.models.task import BertForTask
from bert_jax.tools.status import LOST, read_run, status
from bert_jax.training.events import read_events
from bert_jax.training.metrics import read_rows
from bert_jax.training.optimizers import scale_by_depth, unfrozen_by_epoch
from bert_jax.training.step import Program


@pytest.mark.slow
@pytest.mark.optimized
@pytest.mark.parametrize("end", ["death", "signal"])
def test_an_interrupted_grid_repeats_nothing_and_ends_the_same(two_seeds, pretrained, tmp_path, monkeypatch, end):
    """Ended in the second epoch of the second run; every weight and metric equals the uninterrupted command's."""
    config, expected = two_seeds
    config = dataclasses.replace(config, workdir=str(tmp_path / "work"), save_every_steps=5)
    call, seen = Program.__call__, []

    def interrupted(program, state, batch, *rate_and_seed):
        if rate_and_seed:  # a step of training
            seen.append((int(rate_and_seed[1]), int(state.step)))
            if len(seen) == 40 + 29:  # 40 steps of the first run
                if end == "death":
                    raise Killed
                os.kill(os.getpid(), signal.SIGTERM)
        return call(program, state, batch, *rate_and_seed)

    monkeypatch.setattr(Program, "__call__", interrupted)
    if end == "death":
        with pytest.raises(Killed):
            finetune(config)
    else:
        assert finetune(config).exit_code == 143
    first = list(seen)
    if end == "death":  # a log in a bucket may lag behind the states, which have all that the record needs
        second = next((tmp_path / "work" / "runs").glob("*_seed1")) / "metrics.jsonl"
        second.write_text("".join(second.read_text().splitlines(keepends=True)[:3]))
    results = finetune(config).results
    assert seen[:69] == first
    assert seen[69] == (1, {"death": 25, "signal": 29}[end])  # nothing before the last save is done again
    for name in ("metrics", "epochs", "training_loss", "collapsed"):
        assert [record[name] for record in results["runs"]] == [record[name] for record in expected["runs"]]
    for record in results["runs"]:
        assert_same_weights(*(pathlib.Path(c.workdir) / "runs" / record["run"] for c in (config, two_seeds[0])))


@pytest.mark.slow
# The first batch of dev after an epoch, after the next, and for the files of predictions.
@pytest.mark.parametrize("batch", [1, 3, 5] if processes.EXHAUSTIVE else [1, 5])
def test_a_signal_during_predictions_is_answered_between_two_batches(
    two_seeds, pretrained, tmp_path, monkeypatch, capfd, batch
):
    """What is saved ends the same: nothing is trained again, and no evaluation is left out."""
    config, expected = two_seeds
    # Dev: two batches.
    config = dataclasses.replace(config, workdir=str(tmp_path / "work"), seeds=1, eval_batch_size=20)
    call, steps, batches = Program.__call__, [], []

    def interrupted(program, params, *rest):
        if len(rest) == 3:
            steps.append(int(params.step))
        else:
            batches.append(None)
            if len(batches) == batch:
                os.kill(os.getpid(), signal.SIGTERM)
        return call(program, params, *rest)

    monkeypatch.setattr(Program, "__call__", interrupted)
    assert finetune(config).exit_code == 143
    assert len(batches) == batch
    said = capfd.readouterr().err
    assert (
        f"saved step {len(steps)}; the same command resumes\n" in said
        if batch < 5
        else said == "stopping: nothing needs to be saved\n"
    )
    results = finetune(config).results
    assert steps == list(range(40))
    for name in ("metrics", "epochs", "training_loss", "collapsed"):
        assert results["runs"][0][name] == expected["runs"][0][name]


def texts(count: int, seed: int) -> list[str]:
    return [row.split("\t")[0] for row in sentences(count, seed).splitlines()[1:]]


def write_examples(place: pathlib.Path) -> None:
    """Write two files of pairs with equal texts among them, texts with several labels, and questions of MultiRC."""
    for name, count in (("a", 64), ("b", 24), ("dev", 20)):
        pairs = [f"{text}\t{text[4:]}" for text in texts(count, count)]
        (place / f"{name}.tsv").write_text("\n".join(["anchor\tpositive", *pairs]) + "\n")
    for name, count in (("train", 96), ("labels_dev", 32)):
        rows = [
            {"text": text * (1 + number % 3), "label": text.split()[1:3]} for number, text in enumerate(texts(count, 3))
        ]
        (place / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (place / "MultiRC").mkdir()
    for name, count in (("train", 32), ("val", 10)):
        rows = []
        for number, text in enumerate(texts(count, 5)):
            answers = [{"text": word, "idx": 2 * number + i, "label": i} for i, word in enumerate(text.split()[1:3])]
            questions = [{"question": "What?", "idx": number, "answers": answers}]
            rows.append({"idx": number, "passage": {"text": text, "questions": questions}})
        (place / f"MultiRC/{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


LABELS = (
    "text --data.train=@/train.jsonl --data.dev=@/labels_dev.jsonl --data.several_labels=true --epochs=4 --lora.rank=4 "
    "--loss.class_weights=balanced --loss.focal_gamma=2 --select=best --patience=2 --options.windows=mean "
    "--options.window_overlap=4"
)
KILLED = {  # a command whose @ is the directory of its files, and the step after which it is killed
    "text": ("text --data.dir=HOME/data --epochs=5", 40),
    "vectors": ("vectors --data.train=@/a.tsv,@/b.tsv*2 --data.dev=@/dev.tsv --epochs=3 --micro_batches=4", 15),
    "several labels": (LABELS, 16),
    "taught": ("text --data.dir=HOME/data --epochs=5 --distillation.teacher=TEACHER --distillation.share=0.7", 40),
    "superglue": ("multirc --data.dir=@/MultiRC --epochs=4 --freeze=embeddings,layers.0 --optimizer.name=lamb", 9),
    "folds": ("text --data.train=HOME/data/train.tsv --data.folds=2 --epochs=2", 15),
}


@pytest.mark.slow
@pytest.mark.optimized
@pytest.mark.parametrize("name", KILLED if processes.EXHAUSTIVE else list(KILLED)[:1])
def test_kill_9_in_the_middle_of_a_task(two_seeds, pretrained, tmp_path, name):
    """The command line in a process of its own, killed at an arbitrary moment: weights, losses and predictions of an
    uninterrupted run."""
    command, dies_after = KILLED[name]
    write_examples(tmp_path)
    for mark, place in (("@", tmp_path), ("HOME", pretrained), ("TEACHER", two_seeds[0].workdir)):
        command = command.replace(mark, str(place))
    usual = "--options.max_length=16 --batch_size=16 --learning_rate=1e-3 --save_every_steps=7 --log_every_steps=1"
    arguments = ["finetune", *command.split(), f"--init_from={pretrained / 'pretrained'}", *usual.split()]

    def run(name: str, dies_after: int = 0) -> int:
        command = dying(dies_after, *arguments, f"--workdir={tmp_path / name}")
        environment = processes.one_device(killed=dies_after > 0)
        return subprocess.run(command, env=environment, stdout=subprocess.DEVNULL).returncode

    def left(name: str) -> dict[str, bytes | list[float]]:
        work = tmp_path / name
        logs = {path.parent.name: read_rows(path) for path in work.glob("runs/*/metrics.jsonl")}
        losses = {run: [row["loss"] for row in rows if row["kind"] == "train"] for run, rows in logs.items()}
        files = (path for path in work.glob("predictions/**/*") if path.is_file())
        return losses | {str(path.relative_to(work)): path.read_bytes() for path in files}

    assert run("whole") == 0
    assert run("killed", dies_after) == -signal.SIGKILL
    assert not (tmp_path / "killed/results.json").exists()
    assert run("killed") == 0
    assert_same_weights(tmp_path / "whole", tmp_path / "killed")
    assert left("whole") == left("killed") != {}


@pytest.mark.slow
def test_a_grid_shares_its_programs_and_chooses_the_best(pretrained, tmp_path, monkeypatch):
    made = []
    make = loop.make_programs
    monkeypatch.setattr(loop, "make_programs", lambda *args, **given: made.append(make(*args, **given)) or made[-1])
    grid = {"grid_batch_sizes": (16,), "grid_learning_rates": (2e-3, 1e-6), "grid_epochs": (1, 2)}
    usual = {name: getattr(FinetuneConfig(), name) for name in ("batch_size", "learning_rate", "epochs")}
    config = run_config(pretrained, tmp_path / "work", grid=True, **usual, **grid, select="best", packing="off")
    train, held = loop.train_run, []
    monkeypatch.setattr(
        loop,
        "train_run",
        lambda *args: held.append(len(list((tmp_path / "work" / "runs").glob("*/checkpoints")))) or train(*args),
    )
    results = finetune(config).results
    assert held == [0, 1, 1, 1]  # weights that can be chosen no more are not kept until the end of a grid
    assert len(results["runs"]) == len(results["settings"]) == 4
    assert results["chosen"]["run"] == "batch16_rate0.002_epochs2_seed0"
    assert "of 4 runs, weights after the best epoch" in results["chosen"]["by"]
    assert results["settings"][-1]["setting"].startswith("batch16_rate1e-06")
    assert any(record["collapsed"] for record in results["runs"] if record["hyperparameters"]["learning_rate"] == 1e-6)
    (programs,) = made
    assert len(programs.train_step.compiled) == len(programs.predict_step.compiled) == 1
    assert programs.fresh_state._cache_size() == 1
    assert not list((tmp_path / "work" / "runs").glob("*/checkpoints"))  # keep=best: the chosen weights lie on top
    assert (tmp_path / "work" / "checkpoints").is_dir()


@pytest.mark.slow
def test_devices_share_the_batches(two_seeds, pretrained, tmp_path):
    """Four devices, fsdp and tensor axes, and filling rows in the last batch: the losses of one device."""
    changes = {"seeds": 1, "dropout": 0.0, "head_dropout": 0.0, "batch_size": 62, "epochs": 1}
    mesh = MeshConfig(data=1, fsdp=2, tensor=2)
    config = dataclasses.replace(two_seeds[0], workdir=str(tmp_path / "work"), mesh=mesh, **changes)
    loop.finetune(config, devices=jax.devices()[:4])
    finetune(dataclasses.replace(config, workdir=str(tmp_path / "one"), mesh=MeshConfig()))
    logs = (read_rows(next((tmp_path / name).glob("runs/*/metrics.jsonl"))) for name in ("one", "work"))
    one, many = ([row["loss"] for row in log if row["kind"] == "train"] for log in logs)
    assert len(one) == 6
    np.testing.assert_allclose(many, one, rtol=2e-4)


@pytest.mark.parametrize(
    "function, said",
    [
        ("run.first_state", f"the state of a run {DOES_NOT_FIT}; what helps: a smaller model; chips with more"),
        ("run.placed_batch", f"a batch of 16 sequences {DOES_NOT_FIT}; what helps: --compute.remat=sel or full"),
    ],
)
def test_what_does_not_fit_ends_with_advice(function, said, pretrained, tmp_path, monkeypatch):
    monkeypatch.setattr(f"bert_jax.finetuning.{function}", full_device)
    with pytest.raises(UserError, match=f"^{said}"):
        finetune(run_config(pretrained, tmp_path / "work"))


HANGING = """
import time
from bert_jax.cli import main
from bert_jax.devices import sharding
place, calls = sharding.to_global, []
def stuck(*given):
    calls.append(1)
    if len(calls) == 6:
        time.sleep(10_000)
    return place(*given)
sharding.to_global = stuck
main()
"""


@pytest.mark.slow
def test_a_traced_run_that_was_interrupted_learns_the_same_and_accounts_for_its_time(two_seeds, tmp_path, monkeypatch):
    """Steps 5 to 7 of both runs are traced; a signal ends the second one, which goes on half a second later."""
    config, expected = two_seeds
    work = tmp_path / "work"
    watched = {"profile": ProfileConfig(steps="4:7"), "faults": HostFaultsConfig(check_replicas_every=5)}
    config, call, steps = dataclasses.replace(config, workdir=str(work), **watched), Program.__call__, []

    def interrupted(program, state, batch, *rate_and_seed):
        if rate_and_seed:  # a step of training
            steps.append(1)
            if len(steps) == 40 + 12:  # 40 steps of the first run
                os.kill(os.getpid(), signal.SIGTERM)
        return call(program, state, batch, *rate_and_seed)

    monkeypatch.setattr(Program, "__call__", interrupted)
    begun = time.time()
    assert finetune(config).exit_code == 143
    time.sleep(0.5)
    results = finetune(config).results
    elapsed = time.time() - begun
    assert [record["metrics"] for record in results["runs"]] == [record["metrics"] for record in expected["runs"]]
    for record in results["runs"]:
        run = work / "runs" / record["run"]
        assert_same_weights(run, pathlib.Path(two_seeds[0].workdir) / "runs" / record["run"])
        (trace,) = (run / "profile").rglob("*.trace.json.gz")
        rows = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
        assert {int(row["args"]["step_num"]) for row in rows if row.get("name") == "train"} == {4, 5, 6}
        kinds = [row["kind"] for row in read_rows(run / "metrics.jsonl")]
        assert kinds.count("time") > kinds.count("train") == 40

    history = read_run(work)
    facts = status(history, time.time())
    seconds = facts["goodput"]["seconds"]
    assert min(seconds[name] for name in ("steps", "input", "evaluation", "checkpoint", "compile", "setup")) > 0
    # One stopwatch for both runs: the only hole is between the two starts.
    assert facts["goodput"]["restarts"] == 1 and seconds[LOST] >= 0.5
    spanned = history.rows[-1]["time"] - history.rows[0]["time"]
    assert spanned < sum(seconds.values()) < elapsed
    assert facts["seconds_since_last_row"] < time.time() - begun


@pytest.mark.slow
def test_a_device_that_computed_wrongly_ends_the_run(pretrained, tmp_path, monkeypatch):
    faults, devices = HostFaultsConfig(check_replicas_every=2), jax.devices()[:2]

    monkeypatch.setattr(Program, "__call__", wrong_at(3, devices[1].id))
    work = tmp_path / "work"
    with pytest.raises(UserError, match=r"not the same after step 4: .* delete the checkpoints after step 2"):
        loop.finetune(run_config(pretrained, work, faults=faults, save_every_steps=4), devices=devices)
    assert [row["event"] for row in read_events(work / "events.jsonl")][-2:] == ["replica_mismatch", "failed"]
    assert not list(work.glob("runs/*/training/step_*"))  # the state is compared before it is saved


@pytest.mark.parametrize(
    "change, said",
    [
        ({"profile": ProfileConfig(steps="30:41")}, "profile.steps=30:41 must be .* at most the last step, 40"),
        ({"faults": HostFaultsConfig(peer_timeout_seconds=3)}, "faults.peer_timeout_seconds=3 must be at least 10"),
        ({"sinks": SinksConfig(wandb="project")}, "sinks.wandb needs wandb, which is not installed"),
        ({"faults": HostFaultsConfig(check_replicas_every=-1)}, "faults.check_replicas_every=-1 must not be negative"),
    ],
)
def test_what_cannot_be_watched_is_refused_before_anything_is_written(pretrained, tmp_path, change, said, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    with pytest.raises(UserError, match=said):
        finetune(run_config(pretrained, tmp_path / "work", **change))
    assert not (tmp_path / "work").exists()


@pytest.mark.slow
def test_a_run_that_hangs_ends_with_its_stack(pretrained, tmp_path):
    words = ["finetune", "text", f"--init_from={pretrained / 'pretrained'}", f"--data.dir={pretrained / 'data'}"]
    words += [f"--workdir={tmp_path / 'work'}", "--options.max_length=16", "--faults.step_timeout_seconds=5"]
    done = processes.run(sys.executable, "-c", HANGING, *words, env=processes.one_device())
    assert done.returncode == EXIT_CODE, done.stderr
    assert "no progress for" in done.stderr and "in stuck" in done.stderr
    assert [row["event"] for row in read_events(tmp_path / "work/events.jsonl")][-1] == "hung"


LAYERS = 3
HEAD = HeadConfig(labels=("no", "yes"))


@pytest.fixture(scope="module", params=["post", "pre"])
def sizes(request):
    return dataclasses.replace(MODEL, num_layers=LAYERS, vocab_size=20, norm_position=request.param)


def learning(updates) -> dict[str, list[bool]]:
    """Which parts of a tree of updates are not 0; of the encoder, which layers from the bottom."""
    found = {part: [any(bool((leaf != 0).any()) for leaf in jax.tree.leaves(tree))] for part, tree in updates.items()}
    layers = [np.asarray(leaf).reshape(LAYERS, -1).any(axis=1) for leaf in jax.tree.leaves(updates["encoder"])]
    assert all((each == layers[0]).all() for each in layers)
    return found | {"encoder": layers[0].tolist()}


def test_a_layer_more_learns_in_each_epoch_and_the_embeddings_last(sizes):
    ones = jax.tree.map(lambda leaf: np.ones(leaf.shape, np.float32), shapes(sizes))
    thaw = unfrozen_by_epoch(LAYERS, bert_parameters(sizes, (), HEAD))
    update = compiled(lambda epoch: thaw.update(ones, thaw.init(ones), epoch=epoch)[0])
    for epoch in range(LAYERS + 3):
        found = learning(update(np.int32(epoch)))
        assert found["encoder"] == [layer >= LAYERS - epoch for layer in range(LAYERS)]
        assert found["head"] == found["pooler"] == [True]
        assert found["embeddings"] == [epoch > LAYERS]
        assert found.get("final_norm", [epoch > 0]) == [epoch > 0]


def shapes(sizes: ModelConfig):
    return jax.eval_shape(BertForTask(sizes, HEAD).init, jax.random.key(0))


def test_layers_that_share_parameters_are_refused(sizes):
    shared = dataclasses.replace(sizes, sharing="all")
    with pytest.raises(UserError, match="gradual_unfreezing=True needs separate parameters for each of 3 layers"):
        unfrozen_by_epoch(LAYERS, bert_parameters(shared, (), HEAD))


@pytest.mark.parametrize("sharing", ["all", "attention", "feed_forward"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"layer_decay": 0.5},
            r"layer_decay=0.5 needs separate parameters for each of 3 layers, but encoder/{shared}\S* is \[1, .*"
            "which layers share; use layer_decay=1",
        ),
        (
            {"reinitialize_layers": 1},
            "reinitialize_layers=1 needs layers with parameters of their own, .*{option}.*; use reinitialize_layers=0",
        ),
    ],
)
def test_what_shared_layers_cannot_have_is_refused_before_anything_is_compiled(sharing, options, message):
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    model = dataclasses.replace(MODEL, num_layers=LAYERS, vocab_size=20)
    make_programs(FinetuneConfig(**options), model, HEAD, mesh)
    shared = "feed_forward" if sharing == "feed_forward" else "attention"
    with pytest.raises(UserError, match=message.format(shared=shared, option=f"model.sharing={sharing}")):
        make_programs(FinetuneConfig(**options), dataclasses.replace(model, sharing=sharing), HEAD, mesh)


@pytest.mark.slow
def test_a_run_trains_the_head_then_the_top_layer_and_resumes_exactly(pretrained, tmp_path, monkeypatch, capfd):
    config = run_config(pretrained, tmp_path / "whole", gradual_unfreezing=True, layer_decay=0.5, save_every_steps=7)
    call, seen = Program.__call__, []

    def watched(program, state, *rest):
        if len(rest) > 1:
            seen.append((int(state.step), int(rest[3])))
            if len(seen) == 25 and config.workdir.endswith("killed"):
                raise Killed
        return call(program, state, *rest)

    monkeypatch.setattr(Program, "__call__", watched)
    finetune(config)
    assert (
        "2 epochs train the head and the top 1 of 2 layers; all, and the embeddings, learn from --epochs=4"
        in " ".join(capfd.readouterr().out.split())
    )
    assert seen == [(step, step // 20) for step in range(40)]
    before, after = weights(pretrained / "pretrained"), weights(tmp_path / "whole")
    for path, array in after.items():
        if path.startswith("embeddings"):
            np.testing.assert_array_equal(array, before[path], err_msg=path)
        elif path.startswith("encoder"):
            np.testing.assert_array_equal(array[0], before[path][0], err_msg=path)
            assert (array[1] != before[path][1]).any(), path
    config = dataclasses.replace(config, workdir=str(tmp_path / "killed"))
    seen.clear()
    with pytest.raises(Killed):
        finetune(config)
    finetune(config)
    assert seen[25] == (21, 1)
    assert_same_weights(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.slow
def test_it_is_part_of_what_a_directory_is_resumed_with(pretrained, tmp_path):
    config = run_config(pretrained, tmp_path / "work", epochs=1)
    finetune(config)
    with pytest.raises(UserError, match="finetune.gradual_unfreezing: False → True"):
        finetune(dataclasses.replace(config, gradual_unfreezing=True))
    file = tmp_path / "work/config.json"
    settings = json.loads(file.read_text())
    del settings["finetune"]["gradual_unfreezing"]
    file.write_text(json.dumps(settings))
    with pytest.raises(UserError, match="another version of bert_jax wrote it: missing: finetune.gradual_unfreezing$"):
        finetune(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": "last"}, "features=last freezes the encoder for the whole run"),
        ({"reinitialize_layers": 1}, "leaves random during the first epoch"),
    ],
)
def test_what_it_cannot_go_with_is_refused(pretrained, tmp_path, changes, message):
    with pytest.raises(UserError, match=re.escape(message)):
        check_finetune(run_config(pretrained, tmp_path, gradual_unfreezing=True, **changes))


def test_layer_decay_scales_what_has_thawed(sizes):
    parameters = bert_parameters(sizes, (), HEAD)
    ones = jax.tree.map(lambda leaf: np.ones(leaf.shape, np.float32), shapes(sizes))
    decay, thaw = scale_by_depth(0.5, LAYERS, parameters), unfrozen_by_epoch(LAYERS, parameters)
    updates, _ = decay.update(ones, decay.init(ones))
    updates, _ = thaw.update(updates, thaw.init(ones), epoch=np.int32(2))
    bias = np.asarray(updates["encoder"]["attention"]["output"]["bias"])
    np.testing.assert_array_equal(bias[:, 0], [0.0, 0.5, 1.0])


def test_layer_decay_is_refused_where_there_are_no_layers():
    static = dataclasses.replace(load_config("skipgram_mini").model, vocab_size=60)
    with pytest.raises(UserError, match="layer_decay=0.8 needs layers, and this model has none; use layer_decay=1"):
        scale_by_depth(0.8, static.num_layers, bert_parameters(static, (), HEAD))


def test_slanted_triangular_rates_are_a_schedule_with_a_final_fraction():
    """Howard & Ruder 2018, equation 3, cut_frac = 0.1 and ratio = 32; the warm-up here begins at 0, not at 1/32."""
    steps, cut, ratio = 200, 20, 32
    schedule = ScheduleConfig(name="linear_after_warmup", final_fraction=1 / ratio)
    found = learning_rates(Run(16, 1.0, 1, 0), schedule, 0.1, steps)
    step = np.arange(steps)
    share = np.where(step < cut, step / cut, 1 - (step - cut) / (cut * (1 / 0.1 - 1)))
    expected = (1 + share * (ratio - 1)) / ratio
    np.testing.assert_allclose(found[cut:], expected[cut:], rtol=1e-5)
    assert np.abs(found - expected)[:cut].max() <= 1 / ratio + 1e-6
