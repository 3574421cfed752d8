"""The settings with which a run may resume: which changes go on, which are refused, and what is said of them."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import pytest
from started_workdir import CONFIG, changed, opened, start

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.workdir import read_config
from bert_jax.cli.evaluate import default_config
from bert_jax.config import OptimizerConfig, PhaseConfig
from bert_jax.errors import UserError


def test_a_run_whose_config_json_lacks_an_option_is_not_guessed_at(run, tokenizer):
    whole = json.loads((run / "config.json").read_text())
    for group, name in (("objective", "mlm_weight"), ("data", "packing")):
        values = {**whole, group: {key: value for key, value in whole[group].items() if key != name}}
        (run / "config.json").write_text(json.dumps(values))
        says = f"{run}/config.json is damaged, or another version of bert_jax wrote it: missing: {group}.{name}$"
        with pytest.raises(UserError, match=says):
            start(run, tokenizer)
        with pytest.raises(UserError, match=says):
            default_config(str(run))


def test_another_objective_or_architecture_does_not_continue_a_run(tmp_path, tokenizer):
    def begin(**names):
        return opened(tmp_path, tokenizer, names=names, devices=jax.devices()[:3])

    with begin(objective="mine.Smooth (smooth)") as workdir, Checkpoints(workdir.checkpoints) as checkpoints:
        checkpoints.save(5, {"x": jnp.zeros(2)}, position={}, config={})
    facts = json.loads((tmp_path / "run.json").read_text())
    assert facts["objective"] == "mine.Smooth (smooth)" and "architecture" not in facts
    assert facts["starts"][0]["devices"] == 3
    for names, said in (
        ({}, r"the objective mine.Smooth \(smooth\), but this start has the default objective"),
        ({"objective": "mine.Sharp (sharp)"}, r"mine.Smooth \(smooth\), but .* the objective mine.Sharp \(sharp\)"),
        ({"objective": "mine.Smooth (smooth)", "architecture": "mine.local"}, "but .* the architecture mine.local"),
    ):
        with pytest.raises(UserError, match=said):
            begin(**names)
    assert json.loads((tmp_path / "run.json").read_text()) == facts
    begin(objective="mine.Smooth (smooth)").release()


def test_a_run_with_the_default_objective_does_not_continue_with_another(run, tokenizer):
    assert not {"objective", "architecture"} & json.loads((run / "run.json").read_text()).keys()
    with pytest.raises(UserError, match="holds a run with the default objective, but .* the objective mine.Smooth"):
        opened(run, tokenizer, names={"objective": "mine.Smooth"})


HARMLESS = {
    "workdir": "/elsewhere",
    "log_every_steps": 3,
    "elastic_batch": True,
    "checkpoint.keep_last": 9,
    "evaluation.every_steps": 7,
    "mesh.fsdp": 2,
    "compute.dtype": "float32",
    "data.path": "/moved",
    "data.loader": "plain",
    "data.prefetch": 1,
    "data.cache": "/tmp",
    "phases.0.micro_batches": 4,
}
TRAJECTORY = {
    "seed": 1,
    "model.num_layers": 3,
    "model.vocab_size": 99,
    "model.hidden_dropout": 0.0,
    "optimizer.beta2": 0.98,
    "schedule.name": "cosine",
    "masking.rate": 0.2,
    "data.held_out": 0.02,
    "data.sentence_pairs": "sop",
    "objective.mlm_weight": 0.5,
    "objective.sentence_pair_weight": 2.0,
    "data.eval_path": "/other",
    "phases.0.steps": 80,
    "phases.0.batch_size": 512,
    "phases.1.learning_rate": 1e-3,
    "phases.1.sequence_length": 256,
}


@pytest.mark.parametrize("option", HARMLESS)
def test_harmless_changes_go_on(run, tokenizer, option):
    config = changed(**{option: HARMLESS[option]})
    with opened(run, tokenizer, config) as workdir:
        assert workdir.resumed
    assert read_config(run) == config
    assert len(json.loads((run / "run.json").read_text())["starts"]) == 2


@pytest.mark.parametrize("option", TRAJECTORY)
def test_changes_of_the_trajectory_are_refused_with_the_difference(run, tokenizer, option):
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file() and file.name != "owner.json"}
    value = TRAJECTORY[option]
    with pytest.raises(UserError, match=rf"different settings \({option}: .* → {value}\).*another --workdir"):
        start(run, tokenizer, changed(**{option: value}))
    assert {
        file: file.read_bytes() for file in run.rglob("*") if file.is_file() and file.name != "owner.json"
    } == before
    start(run, tokenizer)  # and the directory is not left owned


def test_batch_size_and_learning_rate_may_change_if_that_is_said(run, tokenizer, caplog):
    larger = changed(**{"phases.0.batch_size": 512, "phases.1.learning_rate": 1e-3})
    with pytest.raises(UserError, match=r"phases.0.batch_size: .* → 512; .*, or say --elastic_batch if the new"):
        start(run, tokenizer, larger)
    start(run, tokenizer, dataclasses.replace(larger, elastic_batch=True))
    assert "→ 512: from here on; no example is repeated or skipped" in caplog.text
    assert read_config(run).phases[0].batch_size == 512
    start(run, tokenizer, larger)  # which is now the run's own
    with pytest.raises(UserError, match=r"\(seed: 0 → 3\)[^,]*, or start this one in another --workdir"):
        start(run, tokenizer, dataclasses.replace(larger, elastic_batch=True, seed=3))


def test_every_option_is_either_harmless_or_refused(run, tokenizer):
    """An option added later is refused until someone decides that it is harmless."""
    parts = {
        "masking.": CONFIG.masking,
        "optimizer.": CONFIG.optimizer,
        "schedule.": CONFIG.schedule,
        "phases.0.": CONFIG.phases[0],
    }
    for prefix, part in parts.items():
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            if isinstance(value, (int, float)) and f"{prefix}{field.name}" not in HARMLESS:
                with pytest.raises(UserError, match=f"{prefix}{field.name}"):
                    start(run, tokenizer, changed(**{f"{prefix}{field.name}": value + 1}))


def test_several_differences_are_all_shown(run, tokenizer):
    config = dataclasses.replace(CONFIG, seed=3, optimizer=OptimizerConfig(name="lamb"))
    with pytest.raises(
        UserError, match=r"\(store_fingerprint: store-1 → store-2; optimizer.name: adamw → lamb; seed: 0 → 3\)"
    ):
        start(run, tokenizer, config, store="store-2")


def test_the_last_phase_may_become_longer_or_shorter(run, tokenizer, caplog):
    for steps in (20, 4):
        start(run, tokenizer, changed(**{"phases.1.steps": steps}))
        assert f"→ {steps}: from here on the learning rate" in caplog.text
    assert read_config(run).phases[1].steps == 4
    with pytest.raises(UserError, match="phases.2"):
        start(run, tokenizer, dataclasses.replace(read_config(run), phases=(*read_config(run).phases, PhaseConfig())))


def test_a_message_about_other_settings_stays_one_line(run, tokenizer):
    settings = json.loads((run / "config.json").read_text())
    settings["data"]["text_note"] = 1
    (run / "config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match="unknown option data.text_note"):
        start(run, tokenizer)
    del settings["data"]["text_note"]
    settings["data"]["path"] = "x" * 100_000
    settings["data"]["eval_path"] = "two\nlines"
    settings["optimizer"] |= {"beta2": 0.5, "weight_decay": 0.5}
    (run / "config.json").write_text(json.dumps(settings))
    other = changed(
        **{
            "optimizer.name": "lamb",
            "optimizer.beta1": 0.5,
            "optimizer.beta2": 0.6,
            "optimizer.epsilon": 0.1,
            "seed": 4,
            "masking.rate": 0.2,
            "model.num_layers": 4,
            "model.hidden_dropout": 0.3,
            "phases.0.steps": 7,
        }
    )
    with pytest.raises(UserError, match=r"holds a run with different settings .*; and \d+ more\)") as caught:
        start(run, tokenizer, other)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1_000
