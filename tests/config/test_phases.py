"""Phases as they are carried out, and which options may change between two starts or differ between hosts."""

import dataclasses

import pytest

from bert_jax.config import Config, MaskingConfig, PhaseConfig, resolve_phases, resolve_stages
from bert_jax.config.checks import check, check_ramps
from bert_jax.config.finetuning import FinetuneConfig, FinetuningRecord
from bert_jax.config.json_form import (
    differing_options,
    dotted_names,
    flattened,
    is_among,
    is_harmless,
    lengthens,
    resume_rule,
    to_dict,
)
from bert_jax.errors import UserError

CONFIG = Config(
    phases=(
        PhaseConfig(steps=700, batch_size=32, learning_rate=0.5),
        PhaseConfig(steps=100, sequence_length=512, moments="reset", max_predictions=60),
        PhaseConfig(steps=60, warmup_steps=20, schedule="restart"),
        PhaseConfig(steps=40, learning_rate=0.25, micro_batches=4),
    ),
    masking=MaskingConfig(rate=0.15),
    seed=7,
)


def test_every_phase_knows_where_it_lies_in_the_run_and_in_its_schedule():
    phases = resolve_phases(CONFIG)
    assert [(phase.index, phase.begin, phase.end) for phase in phases] == [
        (0, 0, 700),
        (1, 700, 800),
        (2, 800, 860),
        (3, 860, 900),
    ]
    assert [(phase.schedule_begin, phase.schedule_length, phase.warmup_steps) for phase in phases] == [
        (0, 800, 8),
        (0, 800, 8),
        (800, 100, 20),
        (800, 100, 20),
    ]
    assert [phase.max_predictions for phase in phases] == [20, 60, 20, 20]
    assert [phase.resets_moments for phase in phases] == [False, True, False, False]
    assert phases[0].tokens_per_step == 32 * 128 and phases[3].micro_batches == 4
    assert [phase.learning_rate for phase in phases] == [0.5, 1e-4, 1e-4, 0.25]


def test_the_first_phase_has_the_seed_of_the_run_and_the_others_have_their_own():
    """No seed of another run of some billion seeds is that of a later phase of this one."""
    seeds = [phase.data_seed for phase in resolve_phases(CONFIG)]
    assert seeds == [7, 7 + 2**32, 7 + 2 * 2**32, 7 + 3 * 2**32]


HOW = {  # what a resumed run may change; a name that ends in a dot includes all that is below it
    Config: (
        *("data.path", "data.mixture", "data.cache", "data.loader", "data.prefetch", "workdir", "log_every_steps"),
        *("elastic_batch", "objective.distillation.teacher", "checkpoint.", "evaluation.", "mesh.", "compute."),
        *("faults.", "profile.", "sinks.", "phases.0.mixture", "phases.0.micro_batches"),
    ),
    FinetuneConfig: (
        *("init_from", "distillation.teacher", "data.", "workdir", "mesh.", "faults.", "profile.", "sinks."),
        *(f"compute.{name}" for name in ("attention", "layers", "overlap", "products", "remat")),
        *("seed", "seeds", "grid", "grid_batch_sizes.", "grid_learning_rates.", "grid_epochs.", "batch_size"),
        *("micro_batches", "packing", "learning_rate", "epochs", "keep", "eval_batch_size", "save_every_steps"),
        "log_every_steps",
    ),
}
WHERE = {  # what may differ between hosts
    Config: (
        *("data.path", "data.mixture", "data.eval_path", "data.loader", "data.prefetch", "data.cache"),
        *("objective.distillation.teacher", "checkpoint.local_path", "init_from"),
    ),
    FinetuneConfig: (
        *("init_from", "data.dir", "data.train", "data.dev", "data.test", "data.tfds", "data.tfds_dir"),
        "distillation.teacher",
    ),
}
OTHERS = {  # the other rules
    "data.eval_path": "moved",
    "phases.0.steps": "last",
    "phases.0.batch_size": "elastic",
    "phases.0.learning_rate": "elastic",
}


@pytest.mark.parametrize("kind", [Config, FinetuneConfig])
def test_every_option_says_whether_a_resumed_run_may_change_it_and_whether_hosts_may_differ_in_it(kind):
    leaves = {*flattened(to_dict(kind())), *dotted_names(kind)}
    assert len(leaves) > 90
    free = {name for name in leaves if resume_rule(kind, name) == "free"}
    assert free == {name for name in leaves if is_among(name, HOW[kind])}
    assert all(any(is_among(name, (each,)) for name in leaves) for each in HOW[kind])
    rules = {name: resume_rule(kind, name) for name in leaves if name not in free}
    assert {name: rule for name, rule in rules.items() if rule} == (OTHERS if kind is Config else {})
    assert differing_options(kind) == WHERE[kind] and set(WHERE[kind]) <= set(leaves)
    assert differing_options(kind, "run.") == tuple(f"run.{name}" for name in WHERE[kind])


def test_what_is_no_option_may_not_change():
    for name in ("", "phases", "phases.0", "phases.0.size", "mode", "data", "data.pathe", "seed", "seed.x"):
        assert resume_rule(Config, name) is None


def test_what_may_change_between_two_commands_of_fine_tuning():
    """The options that each run has of its own, and those that the record repeats outside "finetune"."""
    for line in ("finetune.learning_rate: 1e-05 → 2e-05", "compute.remat: none → full", "pairs: True → False"):
        assert is_harmless(FinetuningRecord, line)
    for line in ("finetune.bucket_window: 4 → 8", "compute.dtype: float32 → bfloat16", "model.num_layers: 2 → 3"):
        assert not is_harmless(FinetuningRecord, line)


def test_held_out_documents_may_move_but_neither_come_nor_go():
    assert is_harmless(Config, "data.eval_path: /a → /b")
    assert not any(is_harmless(Config, line) for line in ("data.eval_path:  → /b", "data.eval_path: /a → "))


def test_the_last_phase_alone_may_become_longer():
    assert all(lengthens(Config, f"phases.3.steps: 40 → {steps}", 4) for steps in (80, 20))
    assert not lengthens(Config, "phases.2.steps: 60 → 80", 4)
    assert not lengthens(Config, "phases.4.steps: None → 80", 5)
    assert not lengthens(Config, "phases.13.steps: 60 → 80", 4)
    assert is_harmless(Config, "phases.0.micro_batches: 1 → 4")
    assert not is_harmless(Config, "phases.0.batch_size: 32 → 64")


def test_a_phase_whose_batch_grows_is_divided_where_its_size_changes():
    phases = (
        PhaseConfig(steps=10, batch_size=32),
        PhaseConfig(steps=20, batch_size=64, ramp_batch_sizes=(8, 16, 24), ramp_steps=10, moments="reset"),
    )
    config = Config(phases=phases)
    stages = resolve_stages(config)
    assert [(each.index, each.begin, each.end, each.batch_size) for each in stages] == [
        (0, 0, 10, 32),
        (1, 10, 13, 8),
        (1, 13, 16, 16),
        (1, 16, 20, 24),
        (1, 20, 30, 64),
    ]
    assert [each.resets_moments for each in stages] == [False, True, False, False, False]
    assert len({each.data_seed for each in stages[1:]}) == 1 and stages[0] == resolve_phases(config)[0]
    last = dataclasses.replace(phases[1], ramp_steps=20)
    assert [each.batch_size for each in resolve_stages(Config(phases=(phases[0], last)))] == [32, 8, 16, 24]


@pytest.mark.parametrize(
    "sizes, steps, says",
    [
        ((8,), 0, "give batch sizes and a number of steps"),
        ((), 5, "phases.0.ramp_steps=5 has no effect without phases.0.ramp_batch_sizes; set that too"),
        ((8, 16), 1, "from 2 to the 10 of the phase"),
        ((8,), 11, "from 1 to the 10 of the phase"),
        ((8, 3), 4, "3 is no positive multiple of phases.0.micro_batches=2"),
        ((0,), 4, "0 is no positive multiple"),
    ],
)
def test_a_ramp_that_cannot_be(sizes, steps, says):
    phase = PhaseConfig(steps=10, batch_size=32, micro_batches=2, ramp_batch_sizes=sizes, ramp_steps=steps)
    with pytest.raises(UserError, match=says):
        check(Config(phases=(phase,)))


@pytest.mark.parametrize(
    "sizes, says", [((16, 8), "16,8 must grow .*=32, but 16 comes before 8"), ((8, 32), "but 32 .* 32")]
)
def test_the_batch_of_a_new_run_grows(sizes, says):
    config = Config(phases=(PhaseConfig(steps=10, batch_size=32, ramp_batch_sizes=sizes, ramp_steps=4),))
    check(config)  # a resumed run may have got a smaller batch by --elastic_batch
    with pytest.raises(UserError, match=says):
        check_ramps(config)
