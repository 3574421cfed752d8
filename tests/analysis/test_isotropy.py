"""How states lie in space, and the gap at [MASK]."""

import contextlib
import dataclasses
import io
import itertools
import json
import pathlib

import numpy as np
import pytest
import safetensors.numpy
import scipy.stats
from command_lines import refusal
from pretrained_model import CONFIG, loaded, random_texts, stored_model, write_workdir
from small_pretraining import nothing_held_out, pretrain, run_config

import bert_jax
from bert_jax.analysis import fit_postprocess, isotropy, layers, mask_gap, sentence_correlation
from bert_jax.analysis.layers import CosineSums, Moments, pair_cosines, partition_score, postprocess_matrix
from bert_jax.analysis.mask_memory import check_measurable, last_visits, visits_of
from bert_jax.checkpoints.record import Position, Span
from bert_jax.config import Config, DataConfig, MaskingConfig, PhaseConfig, resolve_phases
from bert_jax.config.objective import Permutation
from bert_jax.config.pretraining import PretrainingNoiseConfig
from bert_jax.data.store import open_store
from bert_jax.errors import UserError
from bert_jax.training_data import Examples


def test_moments_of_parts_are_those_of_the_whole_even_far_from_zero():
    random = np.random.default_rng(0)
    vectors = random.standard_normal((50, 2, 6)) @ random.standard_normal((6, 6)) + 1e6
    moments = Moments(2, 6)
    for part in np.split(vectors, [1, 20, 21]):
        moments.add(part)
    for layer in range(2):
        states = vectors[:, layer]
        np.testing.assert_allclose(moments.mean[layer], states.mean(0), rtol=1e-14)
        np.testing.assert_allclose(moments.covariance()[layer], np.cov(states.T), rtol=1e-7)
        np.testing.assert_allclose(moments.second_moment()[layer], states.T @ states / 50, rtol=1e-12)


def test_cosines_equal_a_loop_over_all_pairs():
    vectors = np.random.default_rng(2).standard_normal((7, 2, 3)).astype(np.float32)
    vectors[3] = 0.0
    sums = CosineSums(2)
    sums.add(vectors)
    for layer in range(2):
        states = vectors[:, layer].astype(np.float64)
        of_pair = lambda a, b: a @ b / np.sqrt((a @ a) * (b @ b)) if a.any() and b.any() else 0.0
        cosines = [of_pair(*states[[i, j]]) for i, j in itertools.permutations(range(7), 2)]
        np.testing.assert_allclose(sums.signed[layer] / sums.pairs, np.mean(cosines), atol=1e-14)
        np.testing.assert_allclose(sums.absolute[layer] / sums.pairs, np.mean(np.abs(cosines)), atol=1e-14)


def second_moments(vectors: np.ndarray) -> np.ndarray:
    return np.einsum("nrh,nri->rhi", vectors, vectors) / len(vectors)


def test_the_partition_function_has_its_closed_forms():
    # Along every axis and back: all directions are equal.
    cross = np.concatenate([np.eye(4), -np.eye(4)])[:, None] * 1.5
    np.testing.assert_allclose(partition_score(cross, second_moments(cross)), 1.0, rtol=1e-12)
    single = np.tile(np.array([0.0, 3.0, 0.0]), (9, 1))[:, None]  # F is n · exp(3) along it, n · exp(-3) against it
    np.testing.assert_allclose(partition_score(single, second_moments(single)), np.exp(-6.0), rtol=1e-12)
    long = 1_000 * single  # exp(3000) is beyond float64; the ratio is 0, not NaN
    np.testing.assert_array_equal(partition_score(long, second_moments(long)), 0.0)


def test_the_partition_function_equals_a_direct_transcription():
    vectors = np.random.default_rng(3).standard_normal((30, 2, 5)) + 0.4
    found = partition_score(vectors, second_moments(vectors))
    for layer in range(2):
        states = vectors[:, layer]
        directions = np.linalg.svd(states)[2]  # the right singular vectors are the eigenvectors of Σ x xᵀ
        sums = [np.sum(np.exp(states @ (sign * c))) for c in directions for sign in (1, -1)]
        np.testing.assert_allclose(found[layer], min(sums) / max(sums), rtol=1e-9)


def test_the_layers_of_a_model_are_measured(model):
    lines = random_texts(30)
    result = isotropy(model, lines, progress=False)
    encoding = model.encode(lines, layers="all")
    mask = encoding.attention_mask[:, :, None]
    assert result.texts == 30 and result.vectors == "mean" and result.model == model.path
    assert result.spectrum.shape == (CONFIG.num_layers + 1, CONFIG.hidden_size)
    for layer, states in enumerate(encoding.hidden_states):
        vectors = ((states * mask).sum(1) / mask.sum(1)).astype(np.float64)
        units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        cosines = (units @ units.T)[~np.eye(30, dtype=bool)]
        # The states of other batches differ by rounding in float32.
        np.testing.assert_allclose(result.cosine[layer], cosines.mean(), atol=1e-5)
        np.testing.assert_allclose(result.absolute_cosine[layer], np.abs(cosines).mean(), atol=1e-5)
        wanted = np.linalg.eigvalsh(np.cov(vectors.T))[::-1]
        np.testing.assert_allclose(result.spectrum[layer], wanted, atol=1e-5 * wanted[0])
        np.testing.assert_allclose(
            result.effective_dimensions[layer], np.trace(np.cov(vectors.T)) ** 2 / np.sum(wanted**2), rtol=1e-4
        )
        assert 0 < result.partition[layer] <= 1


def test_vectors_that_are_all_the_same_have_no_dimensions(model):
    result = isotropy(model, random_texts(12), vectors="cls", progress=False)
    np.testing.assert_allclose(result.cosine[0], 1.0, rtol=1e-6)  # the embedding of [CLS]
    assert not result.spectrum[0].any() and np.isnan(result.effective_dimensions[0])
    assert (result.effective_dimensions[1:] >= 1).all() and (result.effective_dimensions[1:] <= 11).all()


def test_a_stream_gives_what_a_list_gives_up_to_the_pairs_between_windows(model, monkeypatch):
    lines = random_texts(24)
    whole = isotropy(model, lines, progress=False)
    monkeypatch.setattr(layers, "WINDOW", 8)
    streamed = isotropy(model, iter(lines), progress=False)
    assert streamed.texts == 24
    np.testing.assert_allclose(streamed.spectrum, whole.spectrum, atol=1e-4)
    parts = [isotropy(model, lines[start : start + 8], progress=False) for start in (0, 8, 16)]
    np.testing.assert_allclose(streamed.cosine, np.mean([part.cosine for part in parts], axis=0), atol=1e-5)


@pytest.mark.parametrize(
    "lines, options, message",
    [
        (["a cat"], {}, "there is only one; give two or more"),
        ([], {}, "there are no texts to analyze"),
        ("a cat", {}, "needs several texts"),
        (["a cat", "a dog"], {"vectors": "max"}, "vectors='max' must be one of"),
    ],
)
def test_texts_whose_isotropy_cannot_be_measured_are_one_clear_error(model, lines, options, message):
    with pytest.raises(UserError, match=message):
        isotropy(model, lines, progress=False, **options)


SIZE = CONFIG.hidden_size
RANK = SIZE - 1
"""Directions in which vectors of the last layer can vary: Σ (x - bias) / scale = 0 for what a LayerNorm returns."""


@pytest.fixture(scope="module")
def whitening(model):
    return fit_postprocess(model, random_texts(60), progress=False)


def test_whitened_vectors_have_mean_zero_and_the_identity_covariance(model, whitening):
    vectors = model.embed(random_texts(60), postprocess=whitening)
    # In float32, on vectors of a condition number of some hundreds.
    np.testing.assert_allclose(vectors.mean(0), 0.0, atol=1e-3)
    np.testing.assert_allclose(np.cov(vectors.T), np.eye(RANK), atol=2e-3)
    before = model.embed(random_texts(60))
    norm = model.params["encoder"]["feed_forward_norm"]
    sums = np.sum((before - np.asarray(norm["bias"][-1])) / np.asarray(norm["scale"][-1]), axis=1)
    np.testing.assert_allclose(sums, 0.0, atol=1e-4)
    assert np.abs(np.cov(before.T) - np.eye(SIZE)).max() > 0.1
    np.testing.assert_allclose(vectors, (before - whitening.mean) @ whitening.matrix, atol=1e-3)


def test_what_is_fitted_on_one_set_is_applied_to_another(model, whitening):
    others = random_texts(9, seed=1)
    plain = model.embed(others)
    train = model.embed(random_texts(60)).astype(np.float64)
    found = model.embed(others, postprocess=whitening).astype(np.float64)
    # Distances of whitened vectors are Mahalanobis distances, whatever the rotation.
    inverse = np.linalg.pinv(np.cov(train.T), rcond=1e-9, hermitian=True)
    for i in range(8):
        step = (plain[i] - plain[i + 1]).astype(np.float64)
        np.testing.assert_allclose(np.sum((found[i] - found[i + 1]) ** 2), step @ inverse @ step, rtol=5e-3)


def test_whitening_keeps_the_directions_with_the_most_variance(model, whitening):
    few = fit_postprocess(model, random_texts(60), components=3, progress=False)
    assert few.matrix.shape == (SIZE, 3)
    np.testing.assert_allclose(few.matrix, whitening.matrix[:, :3], atol=1e-5)
    lengths = np.linalg.norm(whitening.matrix, axis=0)  # 1 / √λ, so the largest variance comes first
    assert (np.diff(lengths) >= 0).all()


def test_removed_components_are_gone_and_the_others_untouched(model):
    lines = random_texts(60)
    removal = fit_postprocess(model, lines, "component_removal", components=2, progress=False)
    before, after = model.embed(lines).astype(np.float64), model.embed(lines, postprocess=removal).astype(np.float64)
    variances, directions = np.linalg.eigh(np.cov(before.T))
    np.testing.assert_allclose(after @ directions[:, -2:], 0.0, atol=1e-4)
    kept = directions[:, :-2]
    np.testing.assert_allclose(after @ kept, (before - before.mean(0)) @ kept, atol=1e-4)
    assert fit_postprocess(model, lines, "component_removal", progress=False).matrix.shape == (SIZE, SIZE)


@pytest.mark.parametrize("size, removed", [(16, 1), (149, 1), (256, 3), (768, 8)])
def test_a_hundredth_of_the_components_is_removed_unless_told_otherwise(size, removed):
    matrix = postprocess_matrix("component_removal", 9_999, np.diag(np.arange(1.0, size + 1)))
    np.testing.assert_allclose(matrix, np.diag([1.0] * (size - removed) + [0.0] * removed), atol=1e-12)


def test_vectors_are_normalized_after_the_map(model, whitening):
    plain = model.embed(random_texts(5), postprocess=whitening)
    unit = model.embed(random_texts(5), postprocess=whitening, normalize=True)
    np.testing.assert_allclose(unit, plain / np.linalg.norm(plain, axis=1, keepdims=True), atol=1e-6)


def test_a_stream_of_texts_is_fitted_in_parts(model, whitening, monkeypatch):
    monkeypatch.setattr(layers, "WINDOW", 16)
    streamed = fit_postprocess(model, iter(random_texts(60)), progress=False)
    np.testing.assert_allclose(streamed.mean, whitening.mean, atol=1e-5)
    gram = [each.matrix @ each.matrix.T for each in (streamed, whitening)]  # the inverse covariance: no signs
    np.testing.assert_allclose(gram[0], gram[1], rtol=1e-2, atol=1e-3 * np.abs(gram[1]).max())


@pytest.fixture(scope="module")
def saved(model, whitening, tmp_path_factory) -> pathlib.Path:
    model = loaded(stored_model())
    directory = tmp_path_factory.mktemp("saved") / "model"
    model.postprocesses["white"] = whitening
    model.postprocesses["all-but-2"] = fit_postprocess(
        model, random_texts(60), "component_removal", "second_to_last", "cls", components=2, progress=False
    )
    model.save(directory)
    return directory


def test_it_is_saved_with_the_model_and_loaded_by_name(model, whitening, saved, tmp_path):
    again = bert_jax.load(saved)
    assert sorted(again.postprocesses) == ["all-but-2", "white"]
    for name in ("kind", "layers", "pooling"):
        assert getattr(again.postprocesses["white"], name) == getattr(whitening, name)
    np.testing.assert_array_equal(again.postprocesses["white"].mean, whitening.mean)
    np.testing.assert_array_equal(again.postprocesses["white"].matrix, whitening.matrix)
    np.testing.assert_allclose(
        again.embed(random_texts(4), postprocess="white"),
        model.embed(random_texts(4), postprocess=whitening),
        atol=1e-3,
    )
    assert again.embed(random_texts(4), "second_to_last", "cls", postprocess="all-but-2").shape == (4, SIZE)
    again.save(tmp_path / "copy")
    assert sorted(bert_jax.load(tmp_path / "copy").postprocesses) == ["all-but-2", "white"]


def test_conversion_keeps_it_or_says_that_it_is_left_out(saved, tmp_path, capsys):
    bert_jax.convert(saved, tmp_path / "ours", to="bert_jax")
    assert "left out" not in capsys.readouterr().out
    assert sorted(bert_jax.load(tmp_path / "ours").postprocesses) == ["all-but-2", "white"]
    bert_jax.convert(saved, tmp_path / "theirs", to="huggingface")
    assert "left out: postprocesses (all-but-2, white); --to=bert_jax keeps that" in capsys.readouterr().out


@pytest.mark.parametrize(
    "count, options, message",
    [
        (SIZE, {}, f"needs more than {SIZE} texts, not {SIZE}"),
        (4, {"components": 4}, "needs more than 4 texts, not 4"),
        (60, {"components": 0}, f"components=0 must be between 1 and {SIZE}"),
        (60, {"components": SIZE, "kind": "component_removal"}, f"must be between 1 and {SIZE - 1}"),
        (60, {"kind": "pca"}, "kind='pca' must be one of whitening, component_removal"),
        (60, {"pooling": "median"}, "pooling='median' must be"),
    ],
)
def test_a_map_that_cannot_be_fitted_is_one_clear_error(model, count, options, message):
    with pytest.raises(UserError, match=message):
        fit_postprocess(model, random_texts(count), progress=False, **options)


def test_texts_that_vary_too_little_are_one_clear_error(model):
    lines = ["a cat"] * 20 + ["the dog"] * 20
    with pytest.raises(UserError, match="vary in 1 directions, not in 5; give texts that differ more"):
        fit_postprocess(model, lines, components=5, progress=False)
    assert fit_postprocess(model, lines, progress=False).matrix.shape == (SIZE, 1)
    with pytest.raises(UserError, match="vary in 0 directions, not in 1"):
        postprocess_matrix("whitening", 99, np.zeros((SIZE, SIZE)))


def test_a_map_of_other_vectors_is_refused(model, whitening):
    with pytest.raises(UserError, match="fitted on layers='last', pooling='mean', but embed has .* pooling='cls'"):
        model.embed("a cat", pooling="cls", postprocess=whitening)
    with pytest.raises(UserError, match="no postprocess 'white'; it has none"):
        model.embed("a cat", postprocess="white")


def test_a_name_that_is_no_file_name_is_refused_and_nothing_is_left(whitening, tmp_path):
    model = loaded(stored_model())
    model.postprocesses["../evil"] = whitening
    with pytest.raises(UserError, match="cannot be named '../evil'"):
        model.save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", ["cut", "kind", "pooling", "shape", "dtype", "json"])
def test_a_damaged_file_is_one_clear_error(whitening, tmp_path, damage):
    from bert_jax.formats.sentence_transformers import read_postprocesses, write_postprocesses

    write_postprocesses(tmp_path, {"white": whitening})
    file = tmp_path / "postprocess" / "white.safetensors"
    arrays = {"mean": whitening.mean, "matrix": whitening.matrix}
    about = {"kind": "whitening", "layers": "last", "pooling": "mean"}
    if damage in about:
        about[damage] = ["x"] if damage == "kind" else "x"
    arrays["mean"] = arrays["mean"][:3] if damage == "shape" else arrays["mean"]
    arrays = {name: each.astype(np.float16) if damage == "dtype" else each for name, each in arrays.items()}
    words = "{" if damage == "json" else json.dumps(about)
    file.write_bytes(safetensors.numpy.save(arrays, metadata={"postprocess": words}))
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(UserError, match="white.safetensors is not a (postprocess|whole safetensors)"):
        read_postprocesses(tmp_path)


def test_a_postprocess_is_compared_by_identity_and_cannot_be_changed(whitening):
    with pytest.raises(dataclasses.FrozenInstanceError):
        whitening.kind = "component_removal"


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
            firsts, seconds = (model.embed([p[s] for p in PAIRS], pooling=pooling, postprocess=maps) for s in (0, 1))
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
        (16, PAIRS, SIMILARITIES, "^16 texts are too few to whiten vectors of 16 values .* give more than 16"),
    ],
)
def test_judgements_that_do_not_fit_are_one_clear_error(model, count, pairs, similarities, message):
    with pytest.raises(UserError, match=message):
        sentence_correlation(model, random_texts(count), pairs, similarities, progress=False)


class NobodyReads(io.StringIO):
    """Standard output of `bert-jax … | head -0`."""

    def write(self, text):
        raise BrokenPipeError


def test_the_command_leaves_a_table_of_its_own_and_finds_it_again(tmp_path, capsys, analyze):
    write_workdir(tmp_path / "run", 1)
    (tmp_path / "texts.txt").write_text("\n".join(random_texts(60)) + "\n")
    columns = "index genre filename year old_index source1 source2 sentence1 sentence2 score".split()
    rows = [[str(n), *"abcdef", *pair, str(score)] for n, (pair, score) in enumerate(zip(PAIRS, SIMILARITIES))]
    (tmp_path / "dev.tsv").write_text("".join("\t".join(row) + "\n" for row in (columns, *rows)))
    words = ["isotropy", f"{tmp_path}/run", f"--input={tmp_path}/texts.txt"]
    printed, saved = analyze(*words, f"--sts={tmp_path}/dev.tsv", file="sts.json")
    assert "sts.json, sts.png, sts.svg" in printed
    assert np.shape(saved["spearman"]) == (2, CONFIG.num_layers + 1, 4) and saved["pairs"] == 20
    assert saved["spearman"][1][0] == [None] * 4
    printed, _ = analyze(*words, f"--sts={tmp_path}/dev.tsv")
    assert "result.json has this result already" in printed and "sts.json has this result already" in printed
    pictures = [path for path in (tmp_path / "out").glob("*.png") if path.name != "sts.png"]
    for picture in pictures:
        picture.unlink()
    with contextlib.redirect_stdout(NobodyReads()), contextlib.suppress(SystemExit):
        analyze(*words)
    assert pictures and all(picture.exists() for picture in pictures), "what is shown comes after what is written"
    few = ("analyze", *words, f"--output={tmp_path}/few", f"--sts={tmp_path}/dev.tsv", "--texts=16")
    assert "16 texts are too few to whiten vectors of 16 values" in refusal(capsys, *few)
    assert not (tmp_path / "few").exists(), "nothing was computed before"
    error = refusal(capsys, "analyze", *words, f"--output={tmp_path}/out", f"--sts={tmp_path}/none.tsv")
    assert error == f"error: data.dev={tmp_path}/none.tsv: no such file\n"


@pytest.fixture(scope="module")
def run(small_store, tmp_path_factory):
    """A short run with three checkpoints and two fixed masks a sequence."""
    place = tmp_path_factory.mktemp("gap") / "run"
    config = run_config(small_store, place, masking=MaskingConfig(static_masks=2))
    pretrain(dataclasses.replace(config, checkpoint=dataclasses.replace(config.checkpoint, keep_last=3)))
    return place


def unmasked(batch: dict) -> np.ndarray:
    ids, used = batch["input_ids"].copy(), batch["masked_weights"] > 0
    ids[np.nonzero(used)[0], batch["masked_positions"][used]] = batch["masked_ids"][used]
    return ids


@pytest.mark.parametrize("static_masks", (0, 1, 10))
def test_fresh_masks_hide_other_words_of_the_same_text(small_store, static_masks):
    config = run_config(small_store, "w", masking=MaskingConfig(static_masks=static_masks))
    examples = Examples(open_store(small_store), config)
    epochs, indices = np.repeat([0, 1, 2, 12], 20), np.tile(np.arange(20), 4)
    own, fresh, other = (examples.examples_at(epochs, indices, fresh=number) for number in (None, 0, 1))
    for first, second in ((own, fresh), (fresh, other)):
        np.testing.assert_array_equal(unmasked(first), unmasked(second))
        np.testing.assert_array_equal(first["masked_weights"].sum(axis=1), second["masked_weights"].sum(axis=1))
        assert (first["masked_positions"] != second["masked_positions"]).any(axis=1).mean() > 0.9
    again = examples.examples_at(epochs, indices, fresh=0)
    np.testing.assert_array_equal(again["input_ids"], fresh["input_ids"])
    rounds = {0: [False, False], 1: [True, True], 10: [False, True]}[static_masks]  # epochs 1 and 12, then 2 and 12
    for epoch, same in zip((1, 2), rounds, strict=True):
        positions = [own["masked_positions"][epochs == each] for each in (epoch, 12)]
        if static_masks:
            assert np.array_equal(*positions) == same


@pytest.mark.slow
def test_losses_are_those_of_a_transcription(run, small_store):
    result = mask_gap(run, sequences=12, fresh_masks=2, batch_size=5, progress=False)
    assert result.steps.tolist() == [6, 8, 12] and result.masks == "static, 2" and result.sequences == 12
    config = run_config(small_store, run, masking=MaskingConfig(static_masks=2))
    examples = Examples(open_store(small_store), config)
    model = bert_jax.load(run / "checkpoints" / "step_000000008")
    epochs, indices = last_visits(examples, Position(0, 8 * 16), 12, 0)
    batches = [examples.examples_at(epochs, indices, fresh=number) for number in (None, 0, 1)]
    losses = np.array([[loss_of(model, batch, row) for row in range(12)] for batch in batches])
    assert result.trained[1] == pytest.approx(losses[0].mean(), rel=1e-5)
    assert result.fresh[1] == pytest.approx(losses[1:].mean(), rel=1e-5)
    differences = losses[0] - losses[1:].mean(axis=0)
    assert result.gap[1] == pytest.approx(differences.mean(), rel=1e-3, abs=1e-5)
    assert result.gap_error[1] == pytest.approx(differences.std(ddof=1) / np.sqrt(12), rel=1e-3)
    assert np.isfinite(result.held_out).all() and result.held_out_sequences == 12


def loss_of(model, batch: dict, row: int) -> float:
    one = {name: values[row : row + 1] for name, values in batch.items()}
    logits, used = model.mlm_logits(one)[0].astype(np.float64), one["masked_weights"][0] > 0
    scores, targets = logits[used], one["masked_ids"][0][used]
    return float(np.mean(np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(targets)), targets]))


@pytest.mark.slow
def test_the_command_leaves_its_files_and_computes_once(run, tmp_path, analyze):
    words = ["mask_gap", run, "--sequences=8", "--fresh_masks=1"]
    printed, saved = analyze(*words)
    assert f"{tmp_path}/out: result.json, mask_gap.png, mask_gap.svg" in printed and saved["steps"] == [6, 8, 12]
    assert "has this result already" in analyze(*words)[0]


def test_what_had_been_seen(small_store):
    examples = Examples(open_store(small_store), run_config(small_store, "w"))
    first = examples.num_examples(0)
    assert set(last_visits(examples, Position(0, 5), 99, 0)[1].tolist()) == set(range(5))
    for seen, complete in ((first - 1, 0), (first, 0), (first + examples.num_examples(1), 1)):
        epochs, indices = last_visits(examples, Position(0, seen), 30, 0)
        assert set(epochs.tolist()) == {complete} and len(set(indices.tolist())) == 30


def test_what_a_rollback_skipped_was_not_seen(small_store):
    """Against a list of every position; the second span holds the first, as when a run goes back twice."""
    config = run_config(small_store, "w", masking=MaskingConfig(static_masks=2))
    examples = Examples(open_store(small_store), config)
    first = examples.num_examples(0)
    spans = (Span(0, 4, 9), Span(0, 2, 20), Span(1, 0, 50), Span(0, 2 * first + 1, 2 * first + 8))
    seen = 2 * first + 5
    position = Position(0, seen, spans)
    learned = [at for at in range(seen) if not any(span.phase == 0 and span.begin <= at < span.end for span in spans)]
    assert position.trained == len(learned) and Position(0, 7, spans).trained == 2 and Position(0, 7).trained == 7
    assert last_visits(examples, Position(0, 7, spans), 99, 0)[1].tolist() == examples.locate(np.arange(2))[1].tolist()
    epochs, indices = last_visits(examples, position, 99_999, 0)
    where = list(zip(*(part.tolist() for part in examples.locate(np.array(learned))), strict=True))
    assert list(zip(epochs, indices, strict=True)) == sorted(pair for pair in where if pair[0] == max(epochs))
    upto = [pair for pair in where if pair[0] <= max(epochs)]
    expected = [
        sum((epoch - each) % 2 == 0 and at == index for each, at in upto) for epoch, index in zip(epochs, indices)
    ]
    assert visits_of(examples, position, epochs, indices, 2).tolist() == expected and set(expected) == {1}
    epochs, indices = np.full(20, 2), np.arange(20)
    expected = [sum(each in (0, 2) and at == index for each, at in where) for index in indices]
    learned_again = [(2, index) in where for index in indices]
    found = visits_of(examples, position, epochs, indices, 2)
    assert found[learned_again].tolist() == np.array(expected)[learned_again].tolist()


@pytest.mark.slow
def test_epochs_are_those_of_the_steps_that_were_taken(small_store, tmp_path):
    """A run that goes on with a larger batch has read at each checkpoint what it had read then."""
    config = run_config(small_store, tmp_path / "run", data=nothing_held_out(small_store))
    short = dataclasses.replace(config.phases[0], steps=8, batch_size=8)
    pretrain(dataclasses.replace(config, phases=(short,)))
    longer = dataclasses.replace(short, steps=12, batch_size=32)
    pretrain(dataclasses.replace(config, phases=(longer,), elastic_batch=True))
    result = mask_gap(tmp_path / "run", sequences=8, fresh_masks=1, progress=False)
    epoch = Examples(open_store(small_store), config).num_examples(0)
    assert result.steps.tolist() == [8, 12]
    np.testing.assert_allclose(result.epochs * epoch, [8 * 8, 8 * 8 + 4 * 32])


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"objective": Permutation()}, "objective.name=permutation has no masked words"),
        ({"data": DataConfig(packing="on")}, "its rows are packed"),
        ({"data": DataConfig(noise=PretrainingNoiseConfig(rate=0.1))}, "data.noise changes the text"),
        ({"data": DataConfig(mixture="a:1,b:1")}, "it reads a mixture of stores"),
    ],
)
def test_runs_that_cannot_be_measured_are_refused(changes, message):
    config = Config(**changes)
    with pytest.raises(UserError, match=message):
        check_measurable(config.objective, config.data, resolve_phases(config), "run")


def test_bad_input_is_one_line(tmp_path, capsys):
    words = ["analyze", "mask_gap", f"{tmp_path}/nowhere", f"--output={tmp_path}/o"]
    assert "sequences=0 must be at least 1" in refusal(capsys, *words, "--sequences=0")
    assert "nowhere" in refusal(capsys, *words)
    (tmp_path / "nowhere").mkdir()
    for contents, message in (
        (
            {"model_type": "bert", "architectures": ["BertModel"]},
            "holds a model in the format of transformers; give the",
        ),
        (
            {"finetune": {"task": "mrpc"}, "model": {}},
            "holds a run of fine-tuning; give the work directory of a run of",
        ),
    ):
        (tmp_path / "nowhere" / "config.json").write_text(json.dumps(contents))
        assert message in refusal(capsys, *words)
        if "model_type" in contents:  # that of a fine-tuned model describes its encoder
            assert "give the config.json of a run" in refusal(capsys, "info", f"{tmp_path}/nowhere/config.json")
    assert not (tmp_path / "o").exists()


@pytest.mark.slow
def test_a_run_learns_one_mask_by_heart_and_held_out_text_does_not_know_it(small_store, tmp_path):
    phase = PhaseConfig(steps=300, sequence_length=32, batch_size=32, learning_rate=3e-3, warmup_steps=10)
    config = run_config(small_store, tmp_path / "run", masking=MaskingConfig(static_masks=1), phases=(phase,))
    config = dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, held_out=0.9),  # few sequences to learn
        checkpoint=dataclasses.replace(config.checkpoint, every_steps=300),
        evaluation=dataclasses.replace(config.evaluation, every_steps=0),
        model=dataclasses.replace(config.model, hidden_dropout=0.0, attention_dropout=0.0),
    )
    pretrain(config)
    result = mask_gap(tmp_path / "run", progress=False)
    assert result.gap[-1] < -5 * result.gap_error[-1]
    assert abs(result.held_out_gap[-1]) < 4 * result.held_out_gap_error[-1]
