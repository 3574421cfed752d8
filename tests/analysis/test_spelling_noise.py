"""Spelling errors: measures transcribed word by word, the same hidden words at every rate, and scores of a task."""

import dataclasses
import pathlib

import numpy as np
import pytest
from command_lines import refusal
from loaded_model import SMALL, loaded
from pretrained_model import TOKENIZER, stored_model, write_workdir
from task_models import write_model

import bert_jax
from bert_jax.analysis import noise, task_noise
from bert_jax.config.finetuning import TaskDataConfig
from bert_jax.config.pretraining import NoiseConfig
from bert_jax.data.spelling_errors import edited_words
from bert_jax.errors import UserError
from bert_jax.randomness import Stream, bits, uniform

TEXTS = [
    "the cat sat on the mat .",
    "a big dog ran in the house , the old birds flew",
    "bird",
    "old cats, old dogs",
] * 6
RATES = (0.0, 0.1, 0.5)


@pytest.fixture(scope="module")
def model():
    return loaded(stored_model(SMALL))


def transcribed(model, rate: float) -> dict[str, float]:
    """All measures of `noise`, text by text; every text fits at every rate."""
    counts = dict.fromkeys(("predictions", "loss", "accuracy", "words", "pieces", "split", "unknown", "changed"), 0.0)
    for number, text in enumerate(TEXTS):
        words = text.split()
        keys = bits(bits(0, Stream.EDITED_TEXT, number), Stream.EDITED_WORD, np.arange(len(words)))
        ids, targets = [TOKENIZER.cls_id], {}
        for key, word in zip(keys, words, strict=True):
            clean = TOKENIZER.encode(word)
            if uniform(bits(key, Stream.HIDDEN_WORD)) < 0.15 and TOKENIZER.unk_id not in clean:
                targets |= {len(ids) + place: piece for place, piece in enumerate(clean)}
                ids += [TOKENIZER.mask_id] * len(clean)
                continue
            (spelled,) = edited_words([word], np.array([key]), NoiseConfig(rate=rate))
            pieces = TOKENIZER.encode(spelled)
            ids += pieces
            measured = (1, len(pieces), len(pieces) > 1, TOKENIZER.unk_id in pieces, spelled != word)
            for name, value in zip(("words", "pieces", "split", "unknown", "changed"), measured, strict=True):
                counts[name] += value
        if not targets:
            continue
        row = np.array([[*ids, TOKENIZER.sep_id]], np.int32)
        batch = {"input_ids": row, "token_type_ids": np.zeros_like(row), "attention_mask": np.ones_like(row)}
        logits = model.mlm_logits({**batch, "masked_positions": np.array([list(targets)], np.int32)})[0].astype(
            np.float64
        )
        for scores, target in zip(logits, targets.values(), strict=True):
            counts["loss"] += np.log(np.exp(scores).sum()) - scores[target]
            counts["accuracy"] += scores.argmax() == target
            counts["predictions"] += 1
    return counts


def test_every_measure_is_that_of_a_transcription(model):
    result = noise(model, TEXTS, rates=RATES, batch_size=5, max_length=None, progress=False)
    assert result.texts == len(TEXTS)
    for number, rate in enumerate(RATES):
        wanted = transcribed(model, rate)
        assert result.predictions == wanted["predictions"] and result.words == wanted["words"]
        assert result.loss[number] == pytest.approx(wanted["loss"] / wanted["predictions"], rel=1e-5)
        assert result.accuracy[number] == pytest.approx(wanted["accuracy"] / wanted["predictions"])
        for name, field in (("pieces", "pieces_per_word"), ("split",) * 2, ("unknown",) * 2, ("changed",) * 2):
            ours = getattr(result, field if name == "pieces" else f"{field}_words")[number]
            assert ours == pytest.approx(wanted[name] / wanted["words"]), name
    assert result.edits[0] == 0 and 0.05 < result.edits[1] < 0.15 < 0.4 < result.edits[2] < 0.6


def test_texts_are_cut_where_they_fit_at_every_rate(model):
    long = noise(model, TEXTS, rates=RATES, progress=False)
    short = noise(model, TEXTS, rates=RATES, max_length=8, progress=False)
    assert 0 < short.predictions < long.predictions and short.words < long.words
    alone = noise(model, TEXTS, rates=(0.0,), progress=False)
    assert alone.loss[0] == pytest.approx(long.loss[0], rel=1e-6) and alone.predictions == long.predictions


@pytest.mark.slow
def test_a_task_is_scored_on_clean_and_noisy_texts(tmp_path, analyze):
    write_model(tmp_path / "tuned", "text", dataclasses.replace(SMALL, num_layers=1))
    rows = [f"the {word} sat on the mat\t{label}" for word, label in zip("cat big old dog bird".split(), "abaab")]
    (tmp_path / "dev.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    _, result = analyze("noise", tmp_path / "tuned", f"--input={tmp_path}/dev.tsv", "--rates=0,0.5")
    assert result["metric"] == "text accuracy" and result["examples"] == 5
    predicting = bert_jax.PredictConfig(input=str(tmp_path / "dev.tsv"), split="dev", output=str(tmp_path / "p"))
    assert result["score"][0] == pytest.approx(bert_jax.predict(str(tmp_path / "tuned"), predicting)["accuracy"])
    assert result["pieces"][0] == 8 and result["unknown"][0] == 0 < result["unknown"][1]
    assert {"noise.png", "noise.svg", "result.json"} == {path.name for path in (tmp_path / "out").iterdir()}


@pytest.mark.slow
def test_the_command_leaves_its_files_and_computes_once(tmp_path, analyze):
    write_workdir(tmp_path / "run", 1, config=SMALL)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    words = ["noise", tmp_path / "run", f"--input={tmp_path}/texts.txt", "--texts=0", "--rates=0,0.3"]
    printed, saved = analyze(*words, "--kinds=swap,delete")
    assert f"{tmp_path}/out: result.json, noise.png, noise.svg" in printed
    again = noise(bert_jax.load(tmp_path / "run"), TEXTS, rates=(0, 0.3), kinds=("swap", "delete"), progress=False)
    np.testing.assert_allclose(saved["loss"], again.loss, rtol=1e-6)
    assert "has this result already" in analyze(*words, "--kinds=swap,delete")[0]


@pytest.mark.parametrize(
    "word, message",
    [
        ("--rates=0.2,0.1", "rates=0.2,0.1 must be ascending numbers"),
        ("--rates=0,2", "rate=2.0 must be a probability"),
        ("--kinds=typo", "kinds=typo must be some of insert"),
    ],
)
def test_bad_options_are_one_line(tmp_path: pathlib.Path, word, message, capsys):
    assert message in refusal(capsys, "analyze", "noise", "nowhere", "--input=i", f"--output={tmp_path}/o", word)
    assert not (tmp_path / "o").exists()


def test_models_that_cannot_be_measured_are_refused(model):
    without = loaded(stored_model(SMALL, parts=("pooler",)))
    with pytest.raises(UserError, match="predicts no masked words"):
        noise(without, TEXTS)
    with pytest.raises(UserError, match="has no task head to score"):
        task_noise(model, TaskDataConfig(dev="dev.tsv"))
    with pytest.raises(UserError, match="no word of the texts could be hidden"):
        noise(model, ["zebra"], progress=False)
