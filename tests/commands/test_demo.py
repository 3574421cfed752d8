"""`make demo`, shortened: all but the number of steps, of documents and of devices is the real thing."""

import dataclasses
import functools
import json
import pathlib

import jax
import pytest

from bert_jax import pretraining
from bert_jax.cli import demo
from bert_jax.config import EvaluationConfig
from bert_jax.corpus import documentation

pytestmark = pytest.mark.slow


def test_the_demo_runs_through_and_goes_on(tmp_path, monkeypatch, capsys):
    modules = documentation._modules()[::12]  # reading all of them takes minutes
    monkeypatch.setattr(documentation, "_modules", lambda: modules)
    one_device = functools.partial(pretraining.pretrain, devices=jax.devices()[:1])
    monkeypatch.setattr(pretraining, "pretrain", one_device)
    config = demo.demo_config()
    phase = dataclasses.replace(config.phases[0], steps=16, warmup_steps=4)
    monkeypatch.setattr(
        demo,
        "demo_config",
        lambda: dataclasses.replace(
            config, phases=(phase,), log_every_steps=4, evaluation=EvaluationConfig(every_steps=8, sequences=64)
        ),
    )
    assert demo.run_demo(demo.DemoConfig(workdir=str(tmp_path / "demo"))) == 0
    shown = capsys.readouterr().out
    assert "5/5" in shown and "Reached after 16 steps" in shown.replace("\n", " ") and "Next:" in shown
    # A long path is broken over lines, so white space does not count.
    assert "".join(f"bert-jax serve {tmp_path / 'demo'} (".split()) in "".join(shown.split())
    work = tmp_path / "demo"
    for name in (
        *("config.json", "metrics.jsonl", "curves.png", "tensorboard", "checkpoints", "tokenizer"),
        *("data/vocab.txt", "data/store/manifest.json"),
    ):
        assert (work / name).exists(), name
    manifest = json.loads((work / "data/store/manifest.json").read_text())
    assert manifest["counts"]["sentences"] > 5_000  # of real text
    before = {path: path.stat().st_mtime_ns for path in pathlib.Path(work / "data").rglob("*") if path.is_file()}
    assert demo.run_demo(demo.DemoConfig(workdir=str(work))) == 0
    assert "exists already" in capsys.readouterr().out
    assert {p: p.stat().st_mtime_ns for p in pathlib.Path(work / "data").rglob("*") if p.is_file()} == before
