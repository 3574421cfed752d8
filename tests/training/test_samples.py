"""Sample predictions noted by a run: those of its own model, for the held-out sequences of its evaluations."""

import dataclasses
import pathlib
import types

import jax
import numpy as np
import pytest
from one_device import pretrain
from small_pretraining import rows, run_config

import bert_jax
from bert_jax.config import Config, EvaluationConfig, LeftToRight, MaskedWords, MeshConfig
from bert_jax.config.pretraining import ReportConfig
from bert_jax.tools.report import is_samples, run_report
from bert_jax.training.evaluation import make_samples
from bert_jax.training.events import read_events


@pytest.mark.slow
def test_a_run_notes_what_its_model_fills_in(finished, small_store, tmp_path):
    """Against `load(…).fill_mask`, whose batches are padded otherwise; and the run learns what it learns without."""
    evaluation = EvaluationConfig(every_steps=6, sequences=64, batch_size=32, samples=3)
    config = run_config(small_store, tmp_path / "run", evaluation=evaluation)
    pretrain(config)
    assert rows(config.workdir) == rows(finished[0].workdir)
    assert rows(config.workdir, "evaluation") == rows(finished[0].workdir, "evaluation")
    noted = [row for row in read_events(tmp_path / "run" / "events.jsonl") if row["event"] == "sampled"]
    assert [row["step"] for row in noted] == [6, 12] and all(is_samples(row["samples"]) for row in noted)
    first, last = (row["samples"] for row in noted)
    assert [sample["text"] for sample in first] == [sample["text"] for sample in last] and len(last) == 3
    model = bert_jax.load(config.workdir)  # of step 12
    tokenizer = model.need_tokenizer()
    for sample in last:
        words = sample["text"].split()
        assert words[0] == "[CLS]" and words.count("[MASK]") == len(sample["masks"])
        ids = np.array([[tokenizer.tokens.index(piece) for piece in words]])
        parts = np.cumsum(ids == tokenizer.sep_id, axis=1) - (ids == tokenizer.sep_id)
        batch = {
            "input_ids": ids.astype(np.int32),
            "token_type_ids": np.minimum(parts, 1).astype(np.int32),
            "attention_mask": np.ones_like(ids, np.int32),
            "masked_positions": np.flatnonzero(ids[0] == tokenizer.mask_id)[None].astype(np.int32),
        }
        logits = np.asarray(jax.jit(model.network.mlm_logits)(model.params, batch), np.float64)[0]
        shares = np.exp(logits - logits.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        for mask, expected in zip(sample["masks"], shares, strict=True):
            best = np.argsort(-expected)[:3]
            np.testing.assert_allclose([share for _, share in mask["candidates"]], expected[best], atol=1e-4)
            assert mask["candidates"][0][0] == tokenizer.tokens[best[0]]
    run_report([config.workdir], ReportConfig(output=str(tmp_path / "page.html")))
    page = pathlib.Path(tmp_path / "page.html").read_text()
    assert "<th>step 6</th><th>step 12</th>" in page and f"<td>{last[0]['masks'][0]['word']}</td>" in page


@pytest.mark.slow
def test_fewer_samples_than_devices_of_several_slices(small_store, tmp_path):
    """One row for each device of both slices; the surplus is not noted."""
    evaluation = EvaluationConfig(every_steps=6, sequences=64, batch_size=32, samples=2)
    config = run_config(small_store, tmp_path / "run", evaluation=evaluation, mesh=MeshConfig(slice=2))
    bert_jax.pretrain(config, devices=jax.devices()[:4])
    noted = [row for row in read_events(tmp_path / "run" / "events.jsonl") if row["event"] == "sampled"]
    assert [len(row["samples"]) for row in noted] == [2, 2] and all(is_samples(row["samples"]) for row in noted)


def test_what_has_another_form_is_no_sample():
    good = [{"text": "a [MASK]", "masks": [{"word": "b", "candidates": []}]}]
    assert is_samples(good) and is_samples([])
    wrong = [[{"text": text, "masks": masks}] for text, masks in ((3, []), ("", [3]), ("", 3))]
    assert not any(is_samples(bad) for bad in (None, {}, "x", [3], *wrong))


@pytest.mark.parametrize("given, parts", [(LeftToRight(), ("mlm",)), (MaskedWords(), ("pooler",))])
def test_of_what_fills_no_masks_in_nothing_is_noted_and_that_is_said(given, parts, caplog):
    model = bert_jax.BertForPreTraining(bert_jax.ModelConfig(vocab_size=61), parts=parts)
    config = Config(objective=given, evaluation=EvaluationConfig(samples=3))
    learner = types.SimpleNamespace(config=config, objective=types.SimpleNamespace(model=model))
    assert make_samples(learner, evaluation=None, store=None) is None
    form = f"the model BertForPreTraining with objective.name={given.name}"
    assert f"evaluation.samples=3 notes nothing: {form}" in caplog.text


def test_without_the_option_nothing_is_noted(finished):
    events = read_events(pathlib.Path(finished[0].workdir) / "events.jsonl")
    assert "evaluated" in {row["event"] for row in events} and "sampled" not in {row["event"] for row in events}
    assert dataclasses.asdict(finished[0].evaluation)["samples"] == 0
