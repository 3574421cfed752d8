"""A plan with a teacher: its memory, its operations and its vocabulary."""

import dataclasses
import json

import pytest
import written_teacher

from bert_jax import cli
from bert_jax.config import ComputeConfig, Config, DataConfig, MaskedWords, MeshConfig, PhaseConfig
from bert_jax.config.objective import DistillationConfig
from bert_jax.models.costs import state_bytes, training_flops
from bert_jax.parameters import FLOAT32, total_size
from bert_jax.tools.planning.compiler import resolved
from bert_jax.tools.planning.plan import plan_phase
from bert_jax.tools.planning.topology import find_topology

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("kept_plans")]

LENGTH, PREDICTIONS, ROWS = 48, 8, 64
STUDENT = dataclasses.replace(written_teacher.TEACHER, num_layers=2, type_vocab_size=0, pair_head=False)


@pytest.fixture(scope="module")
def teacher(small_store, tmp_path_factory):
    """Where it is, and what is there."""
    place = tmp_path_factory.mktemp("planned") / "teacher"
    return place, written_teacher.write(place, small_store)


def taught(teacher, **mesh) -> Config:
    place, _ = teacher
    phase = PhaseConfig(sequence_length=LENGTH, max_predictions=PREDICTIONS, batch_size=ROWS)
    return Config(
        model=STUDENT,
        data=DataConfig(sentence_pairs="none"),
        compute=ComputeConfig(remat="none"),
        mesh=MeshConfig(**mesh),
        objective=MaskedWords(distillation=DistillationConfig(teacher=str(place))),
        phases=(phase,),
    )


@pytest.fixture(scope="module")
def plans(teacher, kept_plans):
    """Of the student with and without its teacher on four devices of a processor."""
    topology = find_topology("cpu:4")
    config = resolved(taught(teacher), topology)
    alone = dataclasses.replace(config, objective=MaskedWords())
    return [plan_phase(each, topology, 0, lambda stage: None) for each in (config, alone)]


def test_a_teacher_has_memory_and_no_moments(teacher, plans):
    with_teacher, alone = (plan.memory for plan in plans)
    assert with_teacher.teacher == FLOAT32 * total_size(teacher[1].parameters) and alone.teacher == 0
    assert (with_teacher.parameters, with_teacher.moments) == (alone.parameters, alone.moments)
    assert with_teacher.padding == alone.padding


def test_a_teacher_computes_forward_only(teacher, plans):
    _, stored = teacher
    with_teacher, alone = (plan.work.flops for plan in plans)
    forward = training_flops(stored.model, stored.parameters, LENGTH, PREDICTIONS).total / 3
    # Of the student alone, the last layer is computed where words are predicted.
    left_out = plans[0].flops - plans[1].flops
    assert left_out > 0
    # The closed form counts matrix products alone; comparing predictions and states takes a few operations more.
    assert with_teacher - alone - left_out == pytest.approx(forward * ROWS / 4, rel=0.005)


def test_a_graphics_card_is_planned_with_the_teacher(teacher):
    topology = find_topology("gpu:h100:8")
    config = resolved(taught(teacher, fsdp=4), topology)
    planned = plan_phase(config, topology, 0, lambda stage: None)
    assert planned.memory is not None
    whole = state_bytes(teacher[1].parameters, moments=2).parameters
    assert whole / 4 <= planned.memory.teacher < whole / 3  # small vectors are on every device
    alone = plan_phase(dataclasses.replace(config, objective=MaskedWords()), topology, 0, lambda stage: None)
    assert planned.needed.gradients == alone.needed.gradients
    gathered = (planned.needed.parameters - alone.needed.parameters) / (2 * total_size(teacher[1].parameters))
    assert gathered == pytest.approx(3 / 4)  # in bfloat16, all but the quarter that is there already


def test_the_vocabulary_is_the_teachers(teacher, tmp_path, capsys):
    place, stored = teacher
    assert resolved(taught(teacher), find_topology("cpu:4")).model.vocab_size == stored.model.vocab_size
    shape = [f"--model.{name}={getattr(STUDENT, name)}" for name in ("hidden_size", "num_heads", "intermediate_size")]
    words = "bert-jax plan distilbert_mini --topology=cpu:1 --batch_size=2 --sequence_length=16".split() + shape
    words.append(f"--objective.distillation.teacher={place}")
    assert cli._run([*words, "--model.vocab_size=99"]) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1 and f"{stored.model.vocab_size:,} entries, the student one of 99" in printed
    assert cli._run([*words, f"--output={tmp_path / 'plan.json'}"]) == 0
    assert "parameters of the teacher" in capsys.readouterr().out
    memory = json.loads((tmp_path / "plan.json").read_text())["phases"][0]["memory"]
    assert memory["teacher"] == FLOAT32 * total_size(stored.parameters)
    assert cli._run([*words[:-1], f"--objective.distillation.teacher={tmp_path / 'nothing'}"]) == 2
    assert capsys.readouterr().err.startswith("error: there is no ")
