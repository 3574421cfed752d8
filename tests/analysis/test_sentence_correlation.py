"""Cosines against judgements: a planted order, treatments by hand, and the command with a file of STS-B."""

import json

import numpy as np
import pytest
import scipy.stats
from pretrained_model import CONFIG, random_texts, write_workdir

from bert_jax import cli
from bert_jax.analysis import fit_postprocess, sentence_correlation
from bert_jax.analysis.layers import pair_cosines
from bert_jax.errors import UserError

PAIRS = list(zip(random_texts(20, 1), random_texts(20, 2), strict=True))
SIMILARITIES = np.random.default_rng(3).uniform(0, 5, 20).round(1).tolist()


@pytest.fixture(scope="module")
def result(model):
    return sentence_correlation(model, random_texts(80), PAIRS, SIMILARITIES, progress=False)


def test_every_correlation_is_that_of_the_vectors_that_embed_returns(model, result):
    """The last layer, by another road: the maps fitted through embed, and SciPy's correlation."""
    assert result.poolings == ("mean", "cls") and result.pairs == 20 and result.texts == 80
    for row, pooling in enumerate(result.poolings):
        for column, kind in enumerate(result.treatments):
            maps = None
            if kind in ("component_removal", "whitening"):
                maps = fit_postprocess(model, random_texts(80), kind, pooling=pooling, progress=False)
            firsts, seconds = (
                model.embed([pair[side] for pair in PAIRS], pooling=pooling, postprocess=maps) for side in (0, 1)
            )
            if kind == "centred":
                mean = model.embed(random_texts(80), pooling=pooling).mean(0)
                firsts, seconds = firsts - mean, seconds - mean
            cosines = np.sum(firsts * seconds, 1) / np.linalg.norm(firsts, axis=1) / np.linalg.norm(seconds, axis=1)
            wanted = scipy.stats.spearmanr(cosines, SIMILARITIES).statistic
            # Rounding may exchange neighbours in rank: one of 20 moves the correlation by up to 0.002.
            np.testing.assert_allclose(result.spearman[row, -1, column], wanted, atol=0.01)


def test_judgements_that_are_the_cosines_of_a_layer_correlate_fully_there(model):
    vectors = model.encode([text for pair in PAIRS for text in pair], layers=[2]).hidden_states[0][:, 0]
    found = sentence_correlation(
        model, random_texts(80), PAIRS, pair_cosines(vectors.astype(float)).tolist(), progress=False
    )
    row = found.poolings.index("cls")
    assert found.spearman[row, 2, 0] > 0.99  # up to rounding in float32
    assert np.nanmax(np.delete(found.spearman[row, :, 0], 2)) < 0.99


def test_vectors_that_are_all_the_same_have_no_correlation(result):
    row = result.poolings.index("cls")
    assert np.isnan(result.spearman[row, 0]).all() and np.isfinite(result.spearman[row, 1:]).all()
    assert result.spearman.shape == (2, CONFIG.num_layers + 1, 4)


@pytest.mark.parametrize(
    "count, pairs, similarities, message",
    [
        (80, PAIRS, SIMILARITIES[:-1], "20 pairs with 19 similarities"),
        (80, [], [], "0 pairs"),
        (10, PAIRS, SIMILARITIES, "whitening with 16 components needs more than 16 texts, not 10"),
    ],
)
def test_bad_input_is_one_clear_error(model, count, pairs, similarities, message):
    with pytest.raises(UserError, match=message):
        sentence_correlation(model, random_texts(count), pairs, similarities, progress=False)


def test_the_command_leaves_a_table_of_its_own_and_finds_it_again(tmp_path, capsys):
    write_workdir(tmp_path / "run", 1)
    (tmp_path / "texts.txt").write_text("\n".join(random_texts(60)) + "\n")
    columns = "index genre filename year old_index source1 source2 sentence1 sentence2 score".split()
    rows = [[str(n), *"abcdef", *pair, str(score)] for n, (pair, score) in enumerate(zip(PAIRS, SIMILARITIES))]
    (tmp_path / "dev.tsv").write_text("".join("\t".join(row) + "\n" for row in (columns, *rows)))
    words = ["isotropy", f"{tmp_path}/run", f"--input={tmp_path}/texts.txt", f"--output={tmp_path}/out"]
    assert cli._run(["bert-jax", "analyze", *words, f"--sts={tmp_path}/dev.tsv"]) == 0
    assert "sts.json, sts.png, sts.svg" in capsys.readouterr().out
    saved = json.loads((tmp_path / "out" / "sts.json").read_text())["result"]
    assert np.shape(saved["spearman"]) == (2, CONFIG.num_layers + 1, 4) and saved["pairs"] == 20
    assert saved["spearman"][1][0] == [None] * 4
    assert cli._run(["bert-jax", "analyze", *words, f"--sts={tmp_path}/dev.tsv"]) == 0
    printed = capsys.readouterr().out
    assert "result.json has this result already" in printed and "sts.json has this result already" in printed
    assert cli._run(["bert-jax", "analyze", *words, f"--sts={tmp_path}/none.tsv"]) == 2
    assert capsys.readouterr().err == f"error: data.dev={tmp_path}/none.tsv: no such file\n"
