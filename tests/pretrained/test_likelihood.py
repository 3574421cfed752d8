"""Likelihoods of texts against one mask at a time in NumPy, and minimal pairs."""

import json

import jax
import numpy as np
import numpy_bert
import pytest
from model_variants import variant
from pretrained_model import CONFIG, SMALL, TOKENIZER, loaded, stored_model

from bert_jax.cli import writing
from bert_jax.config.commands import ScoreConfig
from bert_jax.errors import UserError
from bert_jax.pretrained import likelihood

TEXTS = ["the cats sat on the mat.", "dogs", "a big dog ran in the old house, birds flew on"]
CONTINUING = [number for number, word in enumerate(TOKENIZER.tokens) if word.startswith("##")]


def one_at_a_time(logits_of, ids: list[int], unit: str) -> list[float]:
    """The logarithm of the probability of each token, from a row with the masks for it alone."""
    found = []
    for place in range(1, len(ids) - 1):
        hidden, end = list(ids), place + 1
        while unit == "word" and ids[end] in CONTINUING:
            end += 1
        hidden[place:end] = [TOKENIZER.mask_id] * (end - place)
        logits = logits_of(hidden, place).astype(np.float64)
        found.append(logits[ids[place]] - np.log(np.exp(logits).sum()))
    return found


def marked(*texts: str) -> list[int]:
    return [TOKENIZER.cls_id, *(number for text in texts for number in [*TOKENIZER.encode(text), TOKENIZER.sep_id])]


def in_numpy(model, *texts: str, unit: str = "token") -> list[float]:
    """The logarithm of the probability of each token of a text, or of a pair and the mark between them, by NumPy."""
    params, ids = jax.device_get(model.params), marked(*texts)
    types = (np.arange(len(ids)) >= len(marked(texts[0]))).astype(np.int32)[None]

    def logits_of(ids, place):
        row = np.array([ids])
        batch = {"input_ids": row, "token_type_ids": types, "attention_mask": 0 * row + 1}
        return numpy_bert.forward(params, CONFIG, batch | {"masked_positions": np.array([[place]])})["mlm_logits"][0, 0]

    return one_at_a_time(logits_of, ids, unit)


@pytest.mark.parametrize("unit", ["token", "word"])
def test_pseudo_likelihoods_are_those_of_one_mask_at_a_time(model, unit):
    found = model.score(TEXTS, unit=unit, reduction="tokens")
    for text, own in zip(TEXTS, found, strict=True):
        np.testing.assert_allclose(own.log_probabilities, in_numpy(model, text, unit=unit), atol=1e-5)
        assert own.tokens == tuple(TOKENIZER.tokenize(text))
    assert model.score(TEXTS, unit=unit) == [own.total for own in found]
    assert model.score(TEXTS[0], unit=unit, reduction="mean") == pytest.approx(found[0].total / len(found[0].tokens))
    pieces = [token.startswith("##") for own in found for token in own.tokens]
    assert any(pieces), "or both units are the same"


def test_both_texts_of_a_pair_count_and_its_marks_do_not(model):
    first, second = "the cats sat", "a dog"
    size, every = len(marked(first)), in_numpy(model, first, second)
    found = model.score((first, second), reduction="tokens")
    assert found.tokens == (*TOKENIZER.tokenize(first), *TOKENIZER.tokenize(second))
    np.testing.assert_allclose(found.log_probabilities, [*every[: size - 2], *every[size - 1 :]], atol=1e-5)
    assert model.score([(first, second), first]) == pytest.approx([found.total, sum(in_numpy(model, first))], abs=1e-4)


def test_a_text_has_the_same_figure_in_every_list(model, monkeypatch):
    alone = [model.score(text) for text in TEXTS]
    assert len(set(alone)) == 3 and max(TEXTS, key=model.score) == TEXTS[int(np.argmax(alone))]
    monkeypatch.setattr(likelihood, "TOGETHER", 50)
    np.testing.assert_allclose(model.score([*TEXTS[::-1], *TEXTS]), [*alone[::-1], *alone], atol=1e-5)


XLNET = {"positions": "xlnet"}


@pytest.mark.parametrize(
    "form, unit",
    [
        ({"direction": "left_to_right"}, "token"),
        pytest.param(XLNET, "token", marks=pytest.mark.slow),
        pytest.param(XLNET, "word", marks=pytest.mark.slow),
    ],
)
def test_other_models_hide_tokens_in_their_own_way(form, unit):
    model = loaded(stored_model(config=variant(SMALL, **form)))
    before = int("direction" in form)

    def logits_of(ids, place):
        row = np.zeros((1, 16), np.int32)
        row[0, : len(ids)] = ids
        seen = (np.arange(16) < len(ids)).astype(np.int32)[None]
        batch = {"input_ids": row, "token_type_ids": 0 * row, "attention_mask": seen}
        hidden = np.flatnonzero(row[0] == TOKENIZER.mask_id) - before  # those of a word, of which the first is `place`
        return model.mlm_logits(batch | {"masked_positions": hidden[None].astype(np.int32)})[0, 0]

    for text, own in zip(TEXTS, model.score(TEXTS, reduction="tokens", unit=unit), strict=True):
        wanted = one_at_a_time(logits_of, marked(text), unit)  # a mask is at the place of the answer or after it
        np.testing.assert_allclose(own.log_probabilities, wanted, atol=1e-5)
    if before:
        pairs = [likelihood.Pair("a line", "all", ("the big cat sat", "the old cat"))]
        wanted = [sum(one_at_a_time(logits_of, marked(text), "token")) for text in pairs[0].texts]
        scores = likelihood.scores_of_pairs(model, "crows_pairs", pairs)  # all tokens: what differs is before others
        np.testing.assert_allclose(scores, [wanted], atol=1e-4)
        with pytest.raises(UserError, match="unit=word says what is masked, .*=left_to_right"):
            model.score("a", unit="word")


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda m: m.score(["a", ""]), "text 1 of those to score has no token"),
        (lambda m: m.score("the " * 50), "has 52 tokens with its .CLS. and .SEP., 40 are allowed"),
        (lambda m: m.score("a", unit="span"), "unit='span' must be token or word"),
        (lambda m: m.score("a", reduction="max"), "reduction='max' must be sum, mean or tokens"),
        (lambda m: m.score([]), "empty list"),
    ],
)
def test_what_has_no_likelihood_is_refused(model, call, message):
    with pytest.raises(UserError, match=message):
        call(model)


BLIMP = [
    {"sentence_good": "the cat sat.", "sentence_bad": "the cat sat the.", "UID": "verbs"},
    {"sentence_good": "a dog ran", "sentence_bad": "dog a ran", "UID": "articles"},
    {"sentence_good": "birds flew", "sentence_bad": "birds flew", "UID": "verbs"},
]


def test_the_command_prints_and_writes_the_scores_of_texts(model, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(writing, "load_with_generator", lambda path: (model, None))
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    by_hand = [in_numpy(model, text) for text in TEXTS]
    for reduction, reduced in (("sum", np.sum), ("mean", np.mean)):
        writing.run_score("model", TEXTS, ScoreConfig(reduction=reduction))
        shown = [line.strip().split("  ", 1) for line in capsys.readouterr().out.splitlines()]
        assert [text for _, text in shown] == TEXTS
        assert [float(figure) for figure, _ in shown] == pytest.approx(list(map(reduced, by_hand)), abs=2e-3)
    writing.run_score("model", [], ScoreConfig(input=str(tmp_path / "texts.txt"), reduction="tokens"))
    shown = [line.strip().split("  ", 1) for line in capsys.readouterr().out.splitlines()]
    figures = [number for own in by_hand for number in (sum(own), *own)]
    assert [text for _, text in shown] == [part for text in TEXTS for part in (text, *TOKENIZER.tokenize(text))]
    assert [float(figure) for figure, _ in shown] == pytest.approx(figures, abs=2e-3)
    options = ScoreConfig(input=str(tmp_path / "texts.txt"), output=str(tmp_path / "scores.jsonl"))
    writing.run_score("model", [], options)
    assert capsys.readouterr().out == ""
    for line, text, own in zip((tmp_path / "scores.jsonl").read_text().splitlines(), TEXTS, by_hand, strict=True):
        row = json.loads(line)
        assert (row["text"], row["tokens"]) == (text, TOKENIZER.tokenize(text))
        assert [row["sum"], row["mean"]] == pytest.approx([np.sum(own), np.mean(own)], abs=1e-4)
        assert row["log_probabilities"] == pytest.approx(own, abs=1e-5)


def write_pairs(place, form: str) -> str:
    """Write BLIMP without the groups that it names, as one file or as a directory of two; return where."""
    pairs = [{name: text for name, text in pair.items() if name != "UID"} for pair in BLIMP]
    file = place / f"pairs.{form}"
    if form == "directory":
        for name, own in (("late", pairs[1:]), ("early", pairs[:1])):
            (place / f"{name}.jsonl").write_text("\n".join(map(json.dumps, own)))
        return str(place)
    if form == "tsv":
        file.write_text("\n".join("\t".join(row) for row in [pairs[0], *(pair.values() for pair in pairs)]) + "\n")
    else:
        pyarrow = pytest.importorskip("pyarrow", reason="it is of the extra `corpora`")
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(pairs), file)
    return str(file)


@pytest.mark.parametrize("form", ["directory", "tsv", "parquet"])
def test_pairs_are_read_in_several_forms_and_compared_by_the_mean(model, tmp_path, monkeypatch, capsys, form):
    monkeypatch.setattr(writing, "load_with_generator", lambda path: (model, None))
    output = tmp_path / "scores.json"
    writing.run_score("model", [], ScoreConfig(pairs=write_pairs(tmp_path, form), reduction="mean", output=str(output)))
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["group"] for row in rows] == (["early", "late", "late"] if form == "directory" else ["pairs"] * 3)
    for row, pair in zip(rows, BLIMP, strict=True):
        assert row["texts"] == [pair["sentence_good"], pair["sentence_bad"]]
        assert row["scores"] == pytest.approx([np.mean(in_numpy(model, text)) for text in row["texts"]], abs=1e-5)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if " all " in line]
    assert f" {sum(row['scores'][0] > row['scores'][1] for row in rows) / 3:.1%} " in line and " 3 " in line


def test_minimal_pairs_are_counted_by_group(model, tmp_path, monkeypatch, capsys):
    (tmp_path / "blimp.jsonl").write_text("\n".join(map(json.dumps, BLIMP)))
    monkeypatch.setattr(writing, "load_with_generator", lambda path: (model, None))
    options = ScoreConfig(pairs=str(tmp_path / "blimp.jsonl"), output=str(tmp_path / "scores.jsonl"))
    writing.run_score("model", [], options)
    rows = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    for row, pair in zip(rows, BLIMP, strict=True):
        assert row["scores"] == pytest.approx(model.score([pair["sentence_good"], pair["sentence_bad"]]))
    good = [row["scores"][0] > row["scores"][1] for row in rows]
    shown = capsys.readouterr().out
    for group, own in (("verbs", good[::2]), ("articles", good[1:2]), ("all", good)):
        (line,) = (line for line in shown.splitlines() if f" {group} " in line)
        assert f"{sum(own) / len(own):.1%}" in line and f" {len(own)} " in line


def test_crows_pairs_judge_what_both_sentences_share(model, tmp_path):
    """By hand: `the big cat sat` and `the old dog cat sat` have the, cat and sat in common."""
    (tmp_path / "crows.csv").write_text(",sent_more,sent_less,bias_type\n0,the big cat sat,the old dog cat sat,age\n")
    form, pairs = likelihood.read_pairs(tmp_path / "crows.csv")
    assert form == "crows_pairs" and pairs[0].group == "age"
    (scores,) = likelihood.scores_of_pairs(model, form, pairs)
    for text, places, found in zip(pairs[0].texts, ([0, 2, 3], [0, 3, 4]), scores, strict=True):
        every = model.score(text, reduction="tokens").log_probabilities
        assert found == pytest.approx(every[places].sum(), abs=1e-5)
    with pytest.raises(UserError, match="unit=word would mask what the sentences of CrowS-Pairs differ in"):
        likelihood.scores_of_pairs(model, form, pairs, "word")
    with pytest.raises(UserError, match="line 2: group_by='kind' is none of the columns , sent_more"):
        likelihood.read_pairs(tmp_path / "crows.csv", "kind")
    with pytest.raises(UserError, match="it is a directory; give a file"):
        writing.run_score("model", ["a"], ScoreConfig(output=str(tmp_path)))


def test_the_interval_is_that_of_wilson():
    found = likelihood.Preferences("all", 100, 80, 0)  # scipy's binomtest(80, 100).proportion_ci(method="wilson")
    np.testing.assert_allclose(found.interval, (0.711170, 0.866633), atol=1e-5)
    assert likelihood.Preferences("all", 3, 3, 0).interval[1] == 1.0


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.csv", "good,bad\nx,y\n", "the columns are good, bad; expected sentence_good and sentence_bad or sent_more"),
        ("a.jsonl", "", "holds no pairs"),
        ("a.jsonl", '{"sentence_good": "a", "sentence_bad": 3}', "line 1: 'sentence_bad' is 3, not text"),
        ("a.txt", "", "the format of a file is determined by the end of its name"),
    ],
)
def test_a_file_of_other_pairs_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        likelihood.read_pairs(tmp_path / name)


def test_a_pair_that_is_too_long_is_told_by_its_line(model):
    pair = likelihood.Pair("file, line 7", "all", ("a", "the " * 50))
    with pytest.raises(UserError, match="file, line 7: the text 'the the .* has 52 tokens .* takes 40"):
        likelihood.scores_of_pairs(model, "blimp", [pair])
