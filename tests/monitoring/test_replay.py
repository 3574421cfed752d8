"""Steps of runs taken again, and the steps that read a document."""

import dataclasses
import io
import json
import math
import os
import shutil

import jax
import pytest
import written_teacher
from family_runs import small
from poisoned_objective import poisoned
from rich.console import Console
from small_pretraining import nothing_held_out, pretrain, run_config
from synthetic_store import SyntheticStore, prepared, random_documents, write_store
from workdirs import contents

from bert_jax.cli.inspect import run_inspect
from bert_jax.cli.replay import run_replay
from bert_jax.config import CheckpointConfig, DataConfig, OptimizerConfig, PhaseConfig
from bert_jax.config.commands import InspectConfig, ReplayConfig
from bert_jax.config.options import with_options
from bert_jax.config.pretraining import FaultsConfig, MeshConfig, PretrainingNoiseConfig
from bert_jax.errors import UserError
from bert_jax.pretraining import pretrain as pretrain_on
from bert_jax.tools.course import read_course
from bert_jax.tools.replay import replay

ONE = slice(0, 1)


def printed(run, *words, **options) -> str:
    console = Console(file=io.StringIO(), width=200)
    run(*words, console=console, **options)
    return console.file.getvalue()


def test_steps_are_equal_to_the_last_bit(finished, tmp_path):
    """Of a run that others have made, from its checkpoint of step 8; nothing in it changes."""
    config, _ = finished
    before = contents(config.workdir)
    options = ReplayConfig(step="10:12", show=2, output=str(tmp_path / "replay.json"))
    text = printed(run_replay, config.workdir, options, devices=jax.devices()[ONE])
    found = json.loads((tmp_path / "replay.json").read_text())
    assert (found["begin"], found["compared"], found["equal"], found["obstacles"]) == (8, 3, 3, [])
    assert "3 of the 3 steps with a row are equal" in text and text.count("Step 11, row") == 2
    for step in found["steps"]:
        assert {"loss", "grad_norm", "mlm_loss", "learning_rate", "skipped"} <= step["logged"].keys()
        assert step["positions"] == [16 * step["step"] - 16, 16 * step["step"]] and not step["differences"]
        assert len(step["documents"]) == 16 and len(step["texts"]) == 2
        assert all(text["text"].startswith("[CLS]") and text["predicted"] for text in step["texts"])
    assert contents(config.workdir) == before


def test_a_document_of_a_batch_is_found_at_its_step(finished, small_store, tmp_path):
    """As `replay` shows it, by the command, which also says of a held-out document that no step reads it."""
    config, _ = finished
    course = read_course(config.workdir)
    assert (course.last, course.stretches[-1].end) == (12, 12) and [each.step for each in course.saved] == [8, 12]
    options = InspectConfig(document=17, run=config.workdir, output=str(tmp_path / "steps.json"))
    text = printed(run_inspect, str(small_store), options)
    (document,) = json.loads((tmp_path / "steps.json").read_text())["passages"]
    assert document["steps"] and "rows of the 12 steps" in text and "to come" not in text.split("come")[1]
    text = printed(run_inspect, str(small_store), InspectConfig(words="before noon", run=config.workdir))
    assert text.count("Read in") == 1 and "┃ document ┃ phase" in text  # one table of all documents


REFUSED = [
    ({"step": "13"}, "has taken 12 steps so far"),
    ({"step": "0"}, "must be a step such as 120"),
    ({"step": "9:8"}, "must be a step such as 120"),
    ({"step": "x"}, "must be a step such as 120"),
    ({"step": "7"}, r"has no checkpoint of an earlier step \(it has 8, 12\); --from_start begins"),
    ({"step": "12", "stores": ("STORE",)}, "is not the store that .* was trained on"),
    ({"step": "12", "teacher": "x"}, "learned from no teacher"),
]


@pytest.mark.parametrize("options, message", REFUSED)
def test_what_cannot_be_replayed_is_refused_in_one_line(finished, tmp_path, options, message):
    if options.get("stores"):
        options = {**options, "stores": (prepared(tmp_path),)}
    with pytest.raises(UserError, match=message):
        replay(finished[0].workdir, **options, devices=jax.devices()[ONE])


def test_a_store_that_has_been_moved_is_named(finished, tmp_path):
    copy = shutil.copytree(finished[0].workdir, tmp_path / "run")
    settings = json.loads((copy / "config.json").read_text())
    settings["data"]["path"] = "nowhere"
    (copy / "config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match=r"token store nowhere of .* is not there; give its new place with --stores"):
        replay(copy, 12, devices=jax.devices()[ONE])


def test_the_steps_before_a_branch_are_those_of_another_run(finished, tmp_path):
    """From the checkpoint of step 8, of which run.json says that the run begins there."""
    copy = shutil.copytree(finished[0].workdir, tmp_path / "run")
    run = json.loads((copy / "run.json").read_text())
    origin = {"path": finished[0].workdir, "run_id": run["run_id"], "step": 8}
    (copy / "run.json").write_text(json.dumps(run | {"branched_from": origin}))
    shutil.rmtree(copy / "checkpoints" / "step_000000008")
    course = read_course(copy)
    assert course.at(9).positions(9)[0] == 8 * 16
    with pytest.raises(UserError, match="step=8: .* has branched off from step 8 of"):
        course.at(8)
    (copy / "run.json").write_text(json.dumps(run | {"branched_from": origin | {"path": "nowhere"}}))
    with pytest.raises(UserError, match="step 8 of nowhere, whose checkpoint is gone; give one behind .* of step 12"):
        replay(copy, 9, from_start=True, devices=jax.devices()[ONE])
    shutil.rmtree(copy / "checkpoints" / "step_000000012")
    with pytest.raises(UserError, match="branched off from step 8 of nowhere, whose checkpoint is gone"):
        read_course(copy)


def all_equal(config, step: str, count: int, **options) -> None:
    before = contents(config.workdir)
    found = replay(config.workdir, step, devices=options.pop("devices", jax.devices()[ONE]), **options)
    assert (found.compared, found.equal, found.obstacles) == (count, count, ())
    assert contents(config.workdir) == before


@pytest.mark.slow
def test_twenty_steps_across_phases_that_grow_and_start_moments_afresh(small_store, tmp_path):
    phases = (
        PhaseConfig(steps=13, sequence_length=16, batch_size=16, ramp_batch_sizes=(4, 8), ramp_steps=8, warmup_steps=2),
        PhaseConfig(steps=12, sequence_length=32, batch_size=8, schedule="restart", moments="reset", warmup_steps=2),
    )
    kept = CheckpointConfig(every_steps=3, keep_last=20, keep_best=0)
    config = run_config(small_store, tmp_path / "run", phases=phases, checkpoint=kept)
    pretrain(config)
    for step in ("4:23", "17", "14"):
        first, _, last = step.partition(":")
        all_equal(config, step, int(last or first) - int(first) + 1)
    for step in read_course(config.workdir).saved:
        if step.step < 25:
            shutil.rmtree(f"{config.workdir}/checkpoints/step_{step.step:09d}")
    all_equal(config, "6:25", 20, from_start=True)


@pytest.mark.slow
def test_twenty_steps_of_packed_rows_with_errors_muon_and_an_average(small_store, tmp_path):
    data = DataConfig(
        path=str(small_store), packing="on", copies=2, noise=PretrainingNoiseConfig(rate=0.05), loader="plain"
    )
    phase = PhaseConfig(steps=22, sequence_length=48, batch_size=8, learning_rate=1e-3, micro_batches=2)
    config = run_config(
        small_store,
        tmp_path / "run",
        data=data,
        phases=(phase,),
        optimizer=OptimizerConfig(name="muon", ema_decay=0.9),
        checkpoint=CheckpointConfig(every_steps=2, keep_last=20, keep_best=0),
    )
    pretrain(config)
    all_equal(config, "3:22", 20)


@pytest.mark.slow
def test_twenty_steps_of_a_mixture_whose_stores_have_been_moved(small_store, tmp_path):
    stores = {
        name: write_store(SyntheticStore(random_documents(count, count), count), tmp_path / name, 1000)
        for name, count in (("wiki", 60), ("books", 20))
    }
    mixtures = [f"{stores['wiki']}={share},{stores['books']}=3" for share in (9, 1)]
    phase = PhaseConfig(steps=11, sequence_length=32, batch_size=16, learning_rate=1e-3)
    config = run_config(
        "",
        tmp_path / "run",
        data=DataConfig(mixture=mixtures[0], held_out=0.2, loader="plain"),
        phases=(phase, dataclasses.replace(phase, mixture=mixtures[1])),
        checkpoint=CheckpointConfig(every_steps=2, keep_last=20, keep_best=0),
    )
    pretrain(config)
    all_equal(config, "3:22", 20)
    os.rename(stores["books"], tmp_path / "moved")
    with pytest.raises(UserError, match="books of .* is not there"):
        replay(config.workdir, 22, devices=jax.devices()[ONE])
    all_equal(config, "21:22", 2, stores=[str(tmp_path / "moved")])
    found = replay(config.workdir, "1:22", devices=jax.devices()[ONE], stores=[str(tmp_path / "moved")])
    rows = [(step.step, row, each) for step in found.steps for row, each in enumerate(step.documents)]
    of_books = [(step, row, each.documents) for step, row, each in rows if each.store == "moved"]
    document, output = of_books[-1][2][0], tmp_path / "steps.json"
    options = InspectConfig(document=document, run=config.workdir, output=str(output))
    printed(run_inspect, str(tmp_path / "moved"), options)
    steps = json.loads(output.read_text())["passages"][0]["steps"]
    wanted = [(step, row) for step, row, documents in of_books if document in documents]
    assert [(step["step"], step["row"]) for step in steps] == wanted


@pytest.mark.slow
def test_twenty_steps_behind_a_rollback(small_store, tmp_path):
    """The steps 4 and 5 were first taken on batches that are not finite; its objective comes from Python."""
    phase = PhaseConfig(steps=22, sequence_length=32, batch_size=16, learning_rate=1e-3, warmup_steps=2)
    config = run_config(
        small_store,
        tmp_path / "run",
        phases=(phase,),
        checkpoint=CheckpointConfig(every_steps=2, keep_last=20, keep_best=0),
        faults=FaultsConfig(max_skipped_steps=2),
    )
    objective = poisoned(config, (5 * 16, 6 * 16), math.nan)
    pretrain(config, objective=objective)
    assert [stretch.seen for stretch in read_course(config.workdir).stretches if stretch.begin == 4] == [7 * 16]
    all_equal(config, "3:22", 20, objective=objective)
    for step in (4, 6):  # between checkpoints too, and behind the newest
        shutil.rmtree(f"{config.workdir}/checkpoints/step_{step:09d}")
    all_equal(config, "3:8", 6, objective=objective)
    with pytest.raises(UserError, match=r"was trained with the objective .*; in Python, give bert_jax.replay the obj"):
        replay(config.workdir, 22, devices=jax.devices()[ONE])


@pytest.mark.slow
def test_twenty_steps_of_a_student_whose_teacher_has_been_moved(small_store, tmp_path):
    written_teacher.write(tmp_path / "teacher", small_store)
    phase = PhaseConfig(steps=22, sequence_length=32, batch_size=8, learning_rate=1e-3)
    data = dataclasses.replace(nothing_held_out(small_store), sentence_pairs="none")
    kept = CheckpointConfig(every_steps=2, keep_last=20, keep_best=0)
    config = run_config(small_store, tmp_path / "run", phases=(phase,), data=data, checkpoint=kept)
    config = with_options(config, {"objective.distillation.teacher": str(tmp_path / "teacher")})
    pretrain(config)
    os.rename(tmp_path / "teacher", tmp_path / "moved")
    with pytest.raises(UserError, match="teacher .* is not there; give its new place with --teacher"):
        replay(config.workdir, 22, devices=jax.devices()[ONE])
    all_equal(config, "3:22", 20, teacher=str(tmp_path / "moved"))


@pytest.mark.slow
def test_a_run_on_other_devices_is_replayed_and_the_reason_is_said(small_store, tmp_path):
    """On four devices, then with a batch that has changed; on one device the sums are rounded in another order."""
    phase = PhaseConfig(steps=4, sequence_length=32, batch_size=16, learning_rate=1e-3)
    kept = CheckpointConfig(every_steps=2, keep_last=20, keep_best=0)
    config = run_config(
        small_store, tmp_path / "run", phases=(phase,), mesh=MeshConfig(data=2, fsdp=2), checkpoint=kept
    )
    pretrain_on(config, devices=jax.devices()[:4])
    longer = dataclasses.replace(
        config, phases=(dataclasses.replace(phase, steps=9, batch_size=8),), elastic_batch=True
    )
    pretrain_on(longer, devices=jax.devices()[:4])
    all_equal(config, "1:9", 9, devices=jax.devices()[:4])
    shutil.rmtree(f"{config.workdir}/checkpoints/step_{4:09d}")
    all_equal(config, "3:9", 7, devices=jax.devices())
    found = replay(config.workdir, "3:9", devices=jax.devices()[ONE])
    assert found.obstacles == ("the run was on 4 devices, and here are 1, of which 1 are used",) and found.equal < 7
    for step in found.steps:
        assert step.replayed["loss"] == pytest.approx(step.logged["loss"], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["deberta_v3_mini", "xlnet_mini", "diffusion_mini", "ulmfit_mini", "glove_mini"])
def test_steps_of_other_objectives_are_equal_and_their_documents_are_found(small_store, tmp_path, name):
    """A generator, permutations with [CLS] last, masked diffusion, texts that go on in the next row, counts."""
    config = small(name, small_store, tmp_path / "run")
    pretrain(config)
    options = ReplayConfig(step="4:6", show=1, output=str(tmp_path / "replay.json"))
    printed(run_replay, config.workdir, options, devices=jax.devices()[ONE])
    found = json.loads((tmp_path / "replay.json").read_text())
    assert (found["compared"], found["equal"], found["obstacles"]) == (3, 3, [])
    document = found["steps"][-1]["documents"][0]["documents"][0]
    inspected = InspectConfig(document=document, run=config.workdir, output=str(tmp_path / "steps.json"))
    printed(run_inspect, str(small_store), inspected)
    steps = json.loads((tmp_path / "steps.json").read_text())["passages"][0]["steps"]
    wanted = [
        (step["step"], row)
        for step in found["steps"]
        for row, each in enumerate(step["documents"])
        if document in each["documents"]
    ]
    assert [(step["step"], step["row"]) for step in steps if step["step"] >= 4] == wanted
