"""Runs on several stores: resumed exactly across a change of weights, measured on what each store holds out."""

import dataclasses
import os
import pathlib
import re

import jax
import numpy as np
import pytest
from small_pretraining import rows, run_config
from synthetic_store import SyntheticStore, random_documents, write_store

from bert_jax import cli, pretraining
from bert_jax.checkpoints.record import read_record
from bert_jax.cli.evaluate import default_config, run_evaluate
from bert_jax.config import CheckpointConfig, DataConfig, EvaluationConfig, PhaseConfig
from bert_jax.data.examples import Examples
from bert_jax.data.store import open_store
from bert_jax.errors import UserError

pytestmark = pytest.mark.slow
PHASE = PhaseConfig(steps=4, sequence_length=32, batch_size=16, learning_rate=1e-2, warmup_steps=2)


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    directory = tmp_path_factory.mktemp("mixed")
    wiki, books = (SyntheticStore(random_documents(count, count), count) for count in (60, 20))
    books.all_tokens[books.all_tokens > 5] %= 50  # few words, soon learned
    books.all_tokens[books.all_tokens < 5] = 6
    return {name: write_store(store, directory / name, 1000) for name, store in (("wiki", wiki), ("books", books))}


def mixed(stores, workdir, shares=(0.75, 0.25), later=(0.25, 0.75)):
    text = ",".join(f"{path}={share}" for path, share in zip(stores.values(), shares, strict=True))
    second = ",".join(f"{path}={share}" for path, share in zip(stores.values(), later, strict=True))
    return run_config(
        "",
        workdir,
        data=DataConfig(mixture=text, held_out=0.2, loader="plain"),
        phases=(PHASE, dataclasses.replace(PHASE, mixture=second)),
        evaluation=EvaluationConfig(every_steps=4, sequences=32, batch_size=16),
        checkpoint=CheckpointConfig(every_steps=1, keep_last=9, keep_best=0),
    )


@pytest.fixture(scope="module")
def run(stores, tmp_path_factory):
    config = mixed(stores, tmp_path_factory.mktemp("mixture") / "run")
    pretraining.pretrain(config, devices=jax.devices()[:1])
    return config


def predictions(config, path) -> float:
    """The predictions of the sequences that a store is measured on."""
    examples = Examples(open_store(str(path)), config, 0, split="held_out", seed=2019)
    return float(examples.batch(np.arange(config.evaluation.sequences))["masked_weights"].sum())


def test_a_run_is_measured_on_each_store_and_on_its_mixture(run, stores):
    """The loss of the mixture is that of all predictions, those of a store weighed with its share."""
    first, last = rows(run.workdir, "evaluation")
    for row, shares in ((first, (0.75, 0.25)), (last, (0.25, 0.75))):
        losses = [row[f"{name}/mlm_loss"] for name in stores]
        assert losses[0] - losses[1] > 0.01
        weights = [share * predictions(run, path) for share, path in zip(shares, stores.values(), strict=True)]
        assert row["mlm_loss"] == pytest.approx(np.average(losses, weights=weights), rel=1e-6)
        assert {"wiki/next_sentence_accuracy", "books/mlm_loss", "books/perplexity"} < row.keys()


def test_each_store_is_measured_by_evaluate_on_what_it_holds_out(run, stores, capsys):
    """The other road to the same figure: the command, on one store alone."""
    last = rows(run.workdir, "evaluation")[-1]
    for name, path in stores.items():
        config = default_config(run.workdir)
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, mixture="", path=str(path)))
        found = run_evaluate(run.workdir, config, devices=jax.devices()[:1])
        assert found.metrics["mlm_loss"] == pytest.approx(last[f"{name}/mlm_loss"], rel=1e-6)
        assert "held-out documents" in capsys.readouterr().out


def test_a_resumed_run_is_the_same_across_a_change_of_weights(run, tmp_path):
    place, logged = pathlib.Path(run.workdir, "checkpoints"), rows(run.workdir)
    last = read_record(place / "step_000000008/record")
    for step in (3, 4, 5):  # before the weights change, where they do, and after it
        for later in range(step + 1, 9):
            os.rename(f"{place}/step_{later:09d}", tmp_path / f"taken_{step}_{later}")
        pretraining.pretrain(run, devices=jax.devices()[:1])
        assert rows(run.workdir) == logged
        again = read_record(place / "step_000000008/record")
        assert (again["position"], again["arrays"]) == (last["position"], last["arrays"])


def test_other_weights_do_not_resume_a_run_and_moved_stores_do(run, stores, tmp_path):
    other = mixed(stores, run.workdir, later=(0.5, 0.5))
    with pytest.raises(UserError, match="holds a run with different settings .*store_fingerprint"):
        pretraining.pretrain(other, devices=jax.devices()[:1])
    moved = {}
    for name, path in stores.items():
        (tmp_path / f"moved_{name}").symlink_to(path)
        moved[name] = tmp_path / f"moved_{name}"
    result = pretraining.pretrain(mixed(moved, run.workdir), devices=jax.devices()[:1])
    assert (result.step, result.exit_code) == (8, 0)


def test_the_command_says_how_often_a_store_smaller_than_its_budget_is_read(
    stores, tmp_path, caplog, capsys, monkeypatch
):
    tokens = open_store(str(stores["books"])).manifest.counts.tokens
    assert tokens < 45_000
    mixture = f"{stores['wiki']}=3K,{stores['books']}=45K"
    small = ("hidden_size=32", "num_layers=1", "num_heads=2", "max_position_embeddings=32")
    words = [*(f"--model.{word}" for word in small), "--steps=2", "--batch_size=16", "--sequence_length=32"]
    words += [f"--data.mixture={mixture}", "--data.held_out=0", f"--workdir={tmp_path / 'run'}"]
    assert cli._run(["bert-jax", "pretrain", "bert_tiny", *words]) == 0
    (line,) = [record.getMessage() for record in caplog.records if "fewer than its budget" in record.getMessage()]
    assert f"books has {tokens:,} tokens, fewer than its budget of 45,000: each is read " in line
    times = float(line.split("each is read ")[1].removesuffix(" times"))
    epochs = re.search(r"books \(([\d.e-]+) epochs\)", capsys.readouterr().out)
    assert epochs and times == pytest.approx(float(epochs[1]), rel=2e-3)
