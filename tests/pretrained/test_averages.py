"""Averages of models, against transcriptions of the papers' formulas on whole vectors."""

import dataclasses
import json

import numpy as np
import pytest
from pretrained_model import SMALL, WORDS, every_array, write_workdir

from bert_jax.checkpoints.record import leaf_paths
from bert_jax.cli import commands
from bert_jax.config import Config, PhaseConfig, Rope
from bert_jax.config.commands import AverageConfig, Mean, MovingAverage, Slerp, Ties
from bert_jax.config.options import to_dict
from bert_jax.config.pretraining import PhaseModel
from bert_jax.console import parse
from bert_jax.errors import UserError
from bert_jax.formats.opening import open_stored
from bert_jax.pretrained import averages
from bert_jax.pretrained.averages import _checked, average, averaged, open_sources
from bert_jax.tokenization.tokenizer import Tokenizer
from bert_jax.tokenization.wordpiece import WordPiece


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A work directory with four steps, and the parameters of each, by path, in float64."""
    directory = tmp_path_factory.mktemp("run")
    written = write_workdir(directory, 1, 2, 3, 4, config=SMALL)
    return directory, {step: flat(tree) for step, tree in written.items()}


def flat(tree) -> dict[str, np.ndarray]:
    return {path: np.asarray(leaf, np.float64) for path, leaf in leaf_paths(tree).items()}


def steps_of(run, *steps):
    return [f"{run}:{step}" for step in steps]


def transcribed_mean(models, shares):
    return {path: sum(s * m[path] for s, m in zip(shares, models, strict=True)) / sum(shares) for path in models[0]}


def transcribed_ema(models, decay):
    total = dict(models[0])
    for model in models[1:]:
        total = {path: decay * total[path] + (1 - decay) * model[path] for path in total}
    return total


def transcribed_slerp(first, second, share):
    """Shoemake's formula for each array, and for each layer of the encoder's, which are stacked."""

    def arc(a, b):
        angle = np.arccos(np.sum(a * b) / np.sqrt(np.sum(a * a) * np.sum(b * b)))
        return (np.sin((1 - share) * angle) * a + np.sin(share * angle) * b) / np.sin(angle)

    return {
        path: np.stack([arc(a, b) for a, b in zip(first[path], second[path], strict=True)])
        if path.startswith("encoder/")
        else arc(first[path], second[path])
        for path in first
    }


def transcribed_ties(models, ancestor, kept, scale):
    """Algorithm 1 of arXiv:2306.01708 on task vectors of all parameters."""
    paths = list(ancestor)
    vector = lambda model: np.concatenate([np.float32(model[path]).reshape(-1) for path in paths])
    base = vector(ancestor)
    changes = []
    for model in models:
        change = vector(model) - base
        count = int(kept * change.size)
        largest = np.argsort(-np.abs(change), kind="stable")[:count]
        trimmed = np.zeros(change.size)
        trimmed[largest] = change[largest]
        changes.append(trimmed)
    changes = np.stack(changes)
    signs = np.sign(changes.sum(0))
    agreeing = (np.sign(changes) == signs) & (changes != 0)
    merged = base + scale * np.where(agreeing, changes, 0).sum(0) / np.maximum(agreeing.sum(0), 1)
    places = np.cumsum([0, *(ancestor[path].size for path in paths)])
    return {
        path: merged[begin:end].reshape(ancestor[path].shape)
        for path, begin, end in zip(paths, places, places[1:], strict=False)
    }


@pytest.mark.parametrize(
    "method, steps, transcription",
    [
        (Mean(), (1, 2, 4), lambda m: transcribed_mean([m[1], m[2], m[4]], [1, 1, 1])),
        (Mean(shares=(3.0, 1.0)), (1, 2), lambda m: transcribed_mean([m[1], m[2]], [3, 1])),
        (MovingAverage(decay=0.7), (2, 3, 4), lambda m: transcribed_ema([m[2], m[3], m[4]], 0.7)),
        (Slerp(share=0.3), (1, 2), lambda m: transcribed_slerp(m[1], m[2], 0.3)),
        (Ties(ancestor="1"), (2, 3, 4), lambda m: transcribed_ties([m[2], m[3], m[4]], m[1], 0.2, 1.0)),
        (Ties(ancestor="1", kept=0.7, scale=0.4), (2, 3), lambda m: transcribed_ties([m[2], m[3]], m[1], 0.7, 0.4)),
    ],
    ids=["mean", "shares", "ema", "slerp", "ties", "more of ties"],
)
def test_values_are_those_of_the_formula(run, monkeypatch, method, steps, transcription):
    directory, models = run
    monkeypatch.setattr(averages, "BLOCK", 100)  # so that most arrays are made of several blocks
    if isinstance(method, Ties):
        method = dataclasses.replace(method, ancestor=f"{directory}:{method.ancestor}")
    found = every_array(averaged(open_sources(steps_of(directory, *steps)), method))
    wanted = transcription(models)
    assert found.keys() == wanted.keys()
    for path, values in wanted.items():
        np.testing.assert_allclose(found[path], values, rtol=3e-7, atol=3e-7, err_msg=path)  # of one rounding


def test_slerp_of_a_model_with_itself_is_the_model(run):
    directory, models = run
    found = every_array(averaged(open_sources(steps_of(directory, 3, 3)), Slerp(share=0.5)))
    for path, values in models[3].items():
        np.testing.assert_allclose(found[path], values, rtol=2e-7, err_msg=path)


def test_the_command_writes_a_model_that_says_what_it_is_made_of(run, tmp_path, capsys):
    directory, models = run
    output = tmp_path / "mean"
    commands.average([str(directory), "--last=2", f"--output={output}"])
    assert "step 3, share 0.5" in capsys.readouterr().out
    stored = open_stored(output)
    wanted = transcribed_mean([models[3], models[4]], [1, 1])
    for path, values in every_array(stored).items():
        np.testing.assert_allclose(values, wanted[path], rtol=2e-7)
    source = json.loads((output / "run.json").read_text())["source"]
    assert source["written_by"] == "average" and source["made_of"]["method"]["method"] == "mean"
    assert [each["step"] for each in source["made_of"]["models"]] == [3, 4]
    assert stored.averaged == "mean of 2 models" and stored.history["step"] == 4
    assert stored.tokenizer is not None and stored.history["config"]["seed"] == 3
    average([output, f"{directory}:1"], tmp_path / "again", method=Slerp())  # of an average, too
    assert open_stored(tmp_path / "again").averaged == "slerp of 2 models"


def test_what_cannot_be_averaged_is_refused_in_one_line(run, tmp_path):
    directory, _ = run

    def refused(models, last=0, **options):
        with pytest.raises(UserError) as error:
            average(models, tmp_path / "refused", last=last, **options)
        assert not (tmp_path / "refused").exists() and "\n" not in str(error.value)
        return str(error.value)

    two, three = steps_of(directory, 1, 2), steps_of(directory, 1, 2, 3)
    assert "slerp lies between two models, and these are 3" in refused(three, method=Slerp())
    assert "--ancestor=RUN:STEP" in refused(two, method=Ties())
    assert "step 9 of" in (gone := refused(steps_of(directory, 1, 9))) and "other steps there: 1, 2, 3, 4" in gone
    assert "at least two models" in refused(two[:1])
    assert "has 4 checkpoints" in refused([directory], last=5)
    assert "2 numbers for 3 models" in refused(three, method=Mean(shares=(0.5, 0.5)))
    assert "shares=1e+308,1e+308 must be positive" in refused(two, method=Mean(shares=(1e308, 1e308)))  # together inf
    assert "no checkpoints in nowhere; name the work directory" in refused(["nowhere"], last=2)
    assert "kept=1.5" in refused(two, method=Ties(ancestor=two[0], kept=1.5))

    write_workdir(tmp_path / "wide", 1, config=dataclasses.replace(SMALL, hidden_size=32))
    assert "model.hidden_size is 16 and 32" in refused([directory, tmp_path / "wide"])
    write_workdir(tmp_path / "tanh", 1, config=dataclasses.replace(SMALL, activation="relu"))
    assert "model.activation" in refused([directory, tmp_path / "tanh"])


def test_models_of_other_words_heads_or_with_nan_are_refused(run):
    directory, _ = run
    one, two = open_sources(steps_of(directory, 1, 2))
    assert one.tokenizer is not None
    for other in (None, Tokenizer(WordPiece([*WORDS[:-2], *WORDS[:-3:-1]], lowercase=True))):  # two words swapped
        with pytest.raises(UserError, match="vocabularies differ"):
            averaged([one, dataclasses.replace(two, tokenizer=other)], Mean())
    with pytest.raises(UserError, match=r"pooler/bias is \[16\] and absent"):
        averaged([one, two.without("pooler")], Mean())

    lost = dataclasses.replace(two, tokenizer=None, history={"run": {"tokenizer_fingerprint": "1f"}})
    with pytest.raises(UserError, match="has lost its vocabulary"):
        _checked(lost)

    broken = dict(two.arrays)
    zero = broken["pooler/bias"]
    broken["pooler/bias"] = dataclasses.replace(zero, read=lambda index: zero.read(index) * np.float32(np.nan))
    two = dataclasses.replace(two, arrays=broken)
    with pytest.raises(UserError, match="pooler/bias of .* not finite"):
        every_array(averaged([one, two], Mean()))
    with pytest.raises(UserError, match="pooler/bias of .* not finite"):
        averaged([one, two], Slerp())


def test_steps_of_two_phases_are_averaged_if_both_compute_the_same_function(tmp_path):
    model = dataclasses.replace(SMALL, positions=Rope())
    changes = {}, {"hidden_dropout": 0.3}, {"direction": "left_to_right"}, {"rope_theta": 2e4}
    phases = tuple(PhaseConfig(steps=1, model=PhaseModel(**each)) for each in changes)
    written = write_workdir(tmp_path, 1, 2, 3, 4, config=model, **to_dict(Config(model=model, phases=phases)))
    found = every_array(averaged(open_sources(steps_of(tmp_path, 1, 2)), Mean()))
    for path, values in transcribed_mean([flat(written[1]), flat(written[2])], [1, 1]).items():
        np.testing.assert_allclose(found[path], values, rtol=3e-7, atol=3e-7, err_msg=path)
    for other, says in (3, "direction is both and left_to_right"), (4, "rope_theta is 10000.0 and 20000.0"):
        with pytest.raises(UserError, match=f"cannot be averaged: model.{says}; take models of one configuration"):
            averaged(open_sources(steps_of(tmp_path, 1, other)), Mean())


def test_methods_are_options_of_their_own():
    options = parse(AverageConfig(), ["--output=x", "--method=ties", "--ancestor=y"], "average MODEL…")
    assert options.method == Ties(ancestor="y")
    with pytest.raises(UserError, match="decay"):
        parse(AverageConfig(), ["--output=x", "--method=ties", "--decay=0.5"], "average MODEL…")
