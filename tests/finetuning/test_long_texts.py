"""Texts that are longer than a sequence, read in overlapping windows whose scores are pooled."""

import dataclasses
import re

import numpy as np
import pytest
from pretrained_model import SMALL, TOKENIZER, random_params
from small_finetuning import run_config
from small_model import FLOAT32, compiled
from small_pretraining import finetune

import bert_jax
from bert_jax.config import HeadConfig
from bert_jax.config.finetuning import check_finetune, task_defaults
from bert_jax.config.tasks import SentenceOptions, TaskDataConfig, TextDataConfig
from bert_jax.data.sequences import padded
from bert_jax.errors import UserError
from bert_jax.models.task import BertForTask, pooled_windows
from bert_jax.tasks.sentences import Sentences, features, in_windows

OPTIONS = SentenceOptions(max_length=12, windows="mean", window_overlap=3)


def test_windows_overlap_and_cover_every_text():
    texts = [list(range(5, 5 + size)) for size in (1, 10, 11, 17, 18, 40)]
    found = in_windows(texts, TOKENIZER, OPTIONS)
    assert [len(each) for each in found.input_ids] == [1, 1, 2, 2, 3, 6] and found.in_windows and found.uncut is None
    for ids, windows in zip(texts, found.input_ids, strict=True):
        bodies = [window[1:-1].tolist() for window in windows]
        assert all(window[0] == TOKENIZER.cls_id and window[-1] == TOKENIZER.sep_id for window in windows)
        assert all(one[-3:] == other[:3] for one, other in zip(bodies, bodies[1:], strict=False))
        assert sum((body[3:] for body in bodies[1:]), bodies[0]) == ids and max(map(len, bodies)) <= 10
    batch = padded(found, np.array([3, 0, 4]), 4)
    assert batch["input_ids"].shape == (4, 4, 12), "the windows of a batch are a power of two"
    assert (batch["attention_mask"].sum(-1) > 1).sum(-1).tolist() == [2, 1, 3, 0]
    assert batch["attention_mask"][..., 0].all()


def test_the_score_of_a_text_is_that_of_its_windows():
    random = np.random.default_rng(0)
    scores, mask = random.standard_normal((3, 4, 2)).astype(np.float32), np.zeros((3, 4, 5), int)
    mask[..., 0] = 1
    for row, real in enumerate((4, 1, 2)):
        mask[row, :real, 1:3] = 1
    found = compiled(lambda *given: {name: pooled_windows(*given, name) for name in ("mean", "max")})(scores, mask)
    for pooling, texts in found.items():
        for row, real in enumerate((4, 1, 2)):
            np.testing.assert_allclose(texts[row], getattr(scores[row, :real], pooling)(0), rtol=1e-6)


def test_a_model_reads_windows_as_texts_of_their_own():
    """The scores of texts in windows are the means of those of each window alone; a short text has its own."""
    head = HeadConfig(labels=("a", "b"), windows="mean")
    model, random = BertForTask(SMALL, head, FLOAT32), np.random.default_rng(1)
    params, texts = random_params(model), [random.integers(5, 24, size).tolist() for size in (30, 6)]
    found, apply = in_windows(texts, TOKENIZER, OPTIONS), compiled(model.apply)
    batch = padded(found, np.arange(2), 2)
    scores = apply(params, batch)
    flat = {name: value.reshape(-1, value.shape[-1]) for name, value in batch.items() if value.ndim == 3}
    alone = apply(params, flat).reshape(2, -1, 2)
    windows = len(found.input_ids[0])
    np.testing.assert_allclose(scores[0], alone[0, :windows].mean(0), atol=1e-6)
    np.testing.assert_allclose(scores[1], alone[1, 0], atol=1e-6)


def test_what_cannot_be_read_in_windows_is_refused():
    pairs = Sentences("text", ["a"], ["b"], None, (), ["0"])
    with pytest.raises(UserError, match="options.windows=mean reads single texts in windows, and text has pairs here"):
        features(pairs, TOKENIZER, OPTIONS)
    config = dataclasses.replace(task_defaults("sst2"), init_from="a", workdir="b", data=TaskDataConfig(dir="c"))
    for changes, message in (
        (
            {"options": dataclasses.replace(OPTIONS, window_overlap=10)},
            "options.window_overlap=10 must be at least 0",
        ),
        ({"options": OPTIONS, "packing": "on"}, "packing=on puts several texts into a row, but options.windows=mean"),
    ):
        with pytest.raises(UserError, match=re.escape(message)):
            check_finetune(dataclasses.replace(config, **changes))


def planted(count: int, seed: int) -> str:
    """TSV of texts of the same words, with one at the end that is the label."""
    random, rows = np.random.default_rng(seed), ["text\tlabel"]
    for _ in range(count):
        words, label = " ".join(random.choice(["the", "a", "in", "and"], 36)), int(random.integers(2))
        rows.append(f"{words} {('gardener', 'sailor')[label]} the\tabc{label}")
    return "\n".join(rows) + "\n"


@pytest.mark.slow
def test_a_label_that_stands_beyond_the_first_window_is_learned(pretrained, tmp_path):
    for name, count, seed in (("train", 320, 0), ("dev", 60, 1)):
        (tmp_path / f"{name}.tsv").write_text(planted(count, seed))
    accuracy = {}
    for form in ("", "max"):
        options = SentenceOptions(max_length=16, windows=form, window_overlap=4)
        config = run_config(pretrained, tmp_path / f"run{form}", options=options, epochs=4)
        config = dataclasses.replace(config, data=TextDataConfig(dir=str(tmp_path)), packing="auto")
        accuracy[form] = finetune(config).results["metrics"]["accuracy"]
    assert accuracy["max"] > 0.95 and accuracy[""] < 0.7, accuracy
    rows = [row.split("\t") for row in (tmp_path / "dev.tsv").read_text().splitlines()[1:]]
    found = bert_jax.load(tmp_path / "runmax").predict([text for text, _ in rows])
    assert np.mean([one.name == label for one, (_, label) in zip(found, rows, strict=True)]) == accuracy["max"]
