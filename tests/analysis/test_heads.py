"""What heads do: planted attention for every measure, relations, clusters, ablation, and the command."""

import dataclasses

import numpy as np
import pytest
from families_with_heads import WINDOWS, families, model_of
from loaded_model import SMALL, loaded
from model_variants import variant
from pretrained_model import TOKENIZER, stored_model, write_workdir
from scipy.spatial.distance import jensenshannon

from bert_jax.analysis import heads
from bert_jax.analysis.head_behaviour import (
    MEASURES,
    HeadSums,
    Mention,
    ParsedText,
    _RelationSums,
    batch_fitting,
    clusters_of,
    divergences,
    head_ablation,
    punctuation_pieces,
    ratio,
    read_parsed,
    scaled_map,
    word_attention,
    word_pieces,
)
from bert_jax.analysis.texts import mask_words
from bert_jax.errors import UserError
from bert_jax.models.kernels import windowed

TEXTS = ["the cat sat on the mat .", "a big dog ran", "birds , cats", "the old tree"] * 3
TREE = """# text = the cats sat .
1\tthe\tthe\tDET\t_\t_\t2\tdet\t_\tEntity=(e1-animal
2\tcats\tcat\tNOUN\t_\t_\t3\tnsubj:pass\t_\tEntity=e1)
3\tsat\tsit\tVERB\t_\t_\t0\troot\t_\tSpaceAfter=No|Entity=(e2-event)
4\tbig\tbig\tADJ\t_\t_\t3\tobj\t_\tEntity=(e1-animal)

"""


def one_hot(keys: list[int]) -> np.ndarray:
    return np.eye(len(keys))[keys]


def test_planted_attention_gives_each_measure():
    ids = np.array(TOKENIZER.encode("the cat , sat ."))
    ids = np.array([TOKENIZER.cls_id, *ids, TOKENIZER.sep_id])
    length, uniform = 7, np.full((7, 7), 1 / 7)
    before, after = np.maximum(np.arange(7) - 1, 0), np.minimum(np.arange(7) + 1, 6)
    rows = [one_hot(before), one_hot(after), np.eye(7), one_hot([0] * 7), one_hot([6] * 7), one_hot([3, 5] * 3 + [3])]
    sums = HeadSums(1, 7, TOKENIZER)
    sums.add(np.stack([*rows, uniform])[None], ids)
    found = dict(zip(MEASURES, sums.means()[:, 0], strict=True))
    for head, name in enumerate(MEASURES[:6]):
        assert found[name][head] == pytest.approx(1.0)
    np.testing.assert_allclose(sums.means()[:, 0, 6], sums.uniform())
    assert found["previous"][6] == pytest.approx(1 / 7) and found["punctuation"][6] == pytest.approx(2 / 7)
    assert found["distance"][[0, 2, 3]] == pytest.approx([6 / 7, 0, 3])
    assert found["entropy"][[0, 6]] == pytest.approx([0, np.log(7)])
    assert found["broadness"][[0, 6]] == pytest.approx([1 / length, 1])
    sums.add(np.ones((1, 7, 1, 1)), np.array([TOKENIZER.cls_id]))  # has no neighbour, separator or punctuation
    assert sums.means()[0, 0, 0] == pytest.approx(1.0) and sums.tokens == 8


def test_punctuation_is_that_of_bert():
    marked = punctuation_pieces(TOKENIZER)
    assert {TOKENIZER.tokens[number] for number in np.flatnonzero(marked)} == {".", ","}


def test_divergences_are_those_of_scipy_and_the_map_keeps_them():
    random = np.random.default_rng(0)
    rows = random.dirichlet(np.full(6, 0.4), (4, 5))
    rows[3] = rows[0]
    found = divergences(rows)
    expected = [[np.mean([jensenshannon(p, q) ** 2 for p, q in zip(a, b, strict=True)]) for b in rows] for a in rows]
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert clusters_of(found, 3)[0] == clusters_of(found, 3)[3] == 0
    points = random.standard_normal((8, 2))
    squared = np.square(points[:, None] - points[None]).sum(axis=-1)
    placed = scaled_map(squared)
    np.testing.assert_allclose(np.square(placed[:, None] - placed[None]).sum(axis=-1), squared, atol=1e-9)
    with pytest.raises(UserError, match="clusters=5 must be from 1 to the 4 heads"):
        clusters_of(found, 5)


def test_attention_between_words_sums_over_pieces_seen_and_averages_over_pieces_that_look(model):
    member, length = word_pieces(model, ("the", "cats", "sat"))
    assert length == 6 and member.astype(int).tolist() == [[0, 1, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 1, 0]]
    weights = np.random.default_rng(1).dirichlet(np.ones(6), (2, 3, 6))
    found = word_attention(weights, member)
    np.testing.assert_allclose(found[..., 1, 2], weights[..., 2:4, 4].mean(axis=-1))
    np.testing.assert_allclose(found[..., 0, 1], weights[..., 1, 2:4].sum(axis=-1))


def test_a_head_that_looks_at_syntactic_heads_finds_them_all(tmp_path):
    (tmp_path / "some.conllu").write_text(TREE)
    (tree,) = read_parsed(tmp_path / "some.conllu")
    assert tree.heads == (1, 2, -1, 2) and tree.relations == ("det", "nsubj", "root", "obj")
    assert tree.mentions == (Mention(3, (1,), 2),)
    to_head, to_first = one_hot([1, 2, 2, 2]), one_hot([1, 1, 1, 1])
    sums = _RelationSums(1, 3)
    sums.add(np.stack([to_head, to_head.T, to_first])[None], np.ones(4, bool), tree)
    found = sums.result(0)
    assert found.relations == ("any", "det", "nsubj", "obj") and found.counts.tolist() == [3, 1, 1, 1]
    assert found.to_head[0, 0, [0, 2]].tolist() == pytest.approx([1.0, 1 / 3])
    assert found.from_head[0, 0, 1] == pytest.approx(1.0) and found.attention[0].tolist() == pytest.approx(
        [1, 0, 1 / 3]
    )
    assert found.offsets[0] == 1 and found.baseline[0] == pytest.approx(2 / 3)
    assert found.antecedents[0].tolist() == [0, 0, 1] and found.nearest == 0 and found.mentions == 1


@pytest.mark.slow
@pytest.mark.parametrize("family", families())
def test_models_of_every_family_attend_by_probabilities_and_states_are_those_of_the_fast_path(family):
    model = model_of(family)
    result = heads(
        model, TEXTS[:4], [ParsedText(("the", "cat"), (1, -1), ("det", "root"))], ablation_texts=0, progress=False
    )
    assert result.map_error < 1e-5 and result.texts == 4 and result.relations.counts[0] == 1
    found = model.encode(TEXTS[:2], attentions=True)
    for layer in found.attentions:
        for row, mask in enumerate(found.attention_mask):
            real = int(mask.sum())
            np.testing.assert_allclose(layer[row, :, :real].sum(axis=-1), 1.0, atol=1e-5)
            assert not layer[row, :, :real, real:].any()


def test_maps_belong_to_the_states_of_attention_that_was_computed_by_blocks(monkeypatch):
    by_blocks = []

    def attention(*args):
        by_blocks.append(args[0].shape[1])
        return windowed.attention(*args)

    monkeypatch.setattr(windowed, "KERNEL", dataclasses.replace(windowed.KERNEL, function=attention))
    config = variant(SMALL, max_position_embeddings=128, **WINDOWS)
    model = loaded(stored_model(config, ("pooler", "mlm", "next_sentence")))
    result = heads(model, ["the cat sat on the mat . " * 16], ablation_texts=0, progress=False)
    assert by_blocks and min(by_blocks) > 96 and result.map_error < 1e-5


def test_the_ablation_is_the_paired_difference_of_losses(model):
    found = head_ablation(model, TEXTS, seed=2, batch_size=5, progress=False)
    batch = next(mask_words(model, TEXTS, seed=2).batches(len(TEXTS)))
    gates = np.ones((5, 4))
    gates[3, 1] = 0.0
    weights = batch["masked_weights"]
    whole, without = ((weights * model.mlm_losses(batch, each)).sum(axis=1) for each in (None, gates))
    assert found.loss == pytest.approx(whole.sum() / weights.sum(), abs=1e-5)
    assert found.increase[3, 1] == pytest.approx((without - whole).sum() / weights.sum(), abs=1e-5)
    assert found.predictions == weights.sum() and found.texts == len(TEXTS)
    assert np.isnan(head_ablation(model, []).increase).all()


def test_the_error_of_a_mean_is_that_of_resampled_texts():
    random = np.random.default_rng(5)
    counts = random.integers(1, 6, 400).astype(float)
    sums = counts * 0.3 + random.standard_normal(400) * counts
    draws = random.integers(0, 400, (2_000, 400))
    resampled = sums[draws].sum(axis=1) / counts[draws].sum(axis=1)
    mean, error = ratio(sums, counts)
    assert mean == pytest.approx(sums.sum() / counts.sum()) and error == pytest.approx(resampled.std(), rel=0.1)


def test_batches_shrink_where_their_attention_is_large(model):
    assert batch_fitting(model, ["a"], 32, None) == 32
    big = dataclasses.replace(SMALL, num_layers=12, num_heads=16, max_position_embeddings=2_048)
    wide = type("Wide", (), {"config": big})
    assert batch_fitting(wide, ["a" * 5_000], 32, None) == 1


@pytest.mark.slow
def test_the_command_leaves_numbers_and_pictures_and_computes_once(tmp_path, analyze):
    write_workdir(tmp_path / "run", 1, config=SMALL)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    (tmp_path / "some.conllu").write_text(TREE)
    words = ["heads", tmp_path / "run", f"--input={tmp_path}/texts.txt", f"--trees={tmp_path}/some.conllu"]
    words.append("--max_length=16")
    printed, saved = analyze(*words)
    assert "antecedents of 1 mentions" in printed and "MLM loss" in printed
    names = {f"{name}.{end}" for name in ("heads", "clusters", "ablation", "relations") for end in ("png", "svg")}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names | {"result.json"}
    assert np.shape(saved["itself"]) == (2, 4)
    assert "has this result already" in analyze(*words)[0]


def test_what_cannot_work_is_one_line(model, tmp_path):
    with pytest.raises(UserError, match="clusters=21 must be from 1 to the 20 heads"):
        heads(model, TEXTS, clusters=21)
    with pytest.raises(UserError, match="has recurrent layers and no attention heads"):
        heads(loaded(stored_model(variant(SMALL, layer="lstm"))), TEXTS)
    with pytest.raises(UserError, match=r"must be a CoNLL-U file"):
        read_parsed(tmp_path / "trees.txt")
    (tmp_path / "bad.conllu").write_text(TREE.replace("\t3\tobj", "\t9\tobj"))
    with pytest.raises(
        UserError, match=r"bad.conllu, line 5: the head '9' of 'big' must be the number of a different one"
    ):
        read_parsed(tmp_path / "bad.conllu")
