"""Removal of layers: what adds nothing goes first, measures against NumPy, and the command with its smaller model."""

import dataclasses
import json
import pathlib
import shutil

import jax
import numpy as np
import numpy_bert
import pytest
import small_corpus
import small_finetuning
import written_teacher
from command_lines import status
from loaded_model import loaded
from model_variants import variant
from one_device import pretrain
from pretrained_model import CONFIG, PARTS, TOKENIZER, random_texts, stored_model
from small_finetuning import sentences
from small_pretraining import nothing_held_out, run_config
from task_models import write_model

import bert_jax
from bert_jax.analysis import cka, draw_pruning, keep_layers, prune, pruning, results
from bert_jax.analysis.texts import mask_words, word_scores
from bert_jax.config import ModelConfig, PhaseConfig
from bert_jax.errors import UserError
from bert_jax.pretrained.model import PretrainedModel

SMALL = dataclasses.replace(CONFIG, num_layers=3)


@pytest.fixture(scope="module")
def model() -> PretrainedModel:
    return loaded(stored_model(SMALL))


def with_redundant_layer(norm_position: str, layer: int) -> PretrainedModel:
    """A model in which one layer returns what it is given: both its branches add nothing.

    With post-norm that takes norms without scale and bias, because the norm of a normalized vector is that vector.
    """
    model = loaded(stored_model(dataclasses.replace(SMALL, norm_position=norm_position)))
    params = jax.tree.map(np.array, model.params)
    for branch, last in (("attention", "output"), ("feed_forward", "output")):
        for values in params["encoder"][branch][last].values():
            values[layer] = 0.0
    norms = (*params["encoder"].items(), ("embeddings_norm", params["embeddings"].get("norm", {})))
    for name, values in norms if norm_position == "post" else ():
        if name.endswith("norm"):
            values.update(scale=np.ones_like(values["scale"]), bias=np.zeros_like(values["bias"]))
    model.params = params
    return model


@pytest.mark.parametrize("norm_position, layer", [("pre", 0), ("post", 2)])
def test_a_layer_that_adds_nothing_goes_first(norm_position, layer):
    model = with_redundant_layer(norm_position, layer)
    result = prune(model, random_texts(24), 1, draws=1, batch_size=16, progress=False)
    guided = result.curves[0]
    assert guided.layers[1] == tuple(other for other in range(3) if other != layer)
    np.testing.assert_allclose(guided.similarity[:2], 1.0, atol=1e-5)
    np.testing.assert_allclose(guided.mlm_loss[1], guided.mlm_loss[0], rtol=1e-5)
    assert np.nanargmax(result.candidates[0]) == layer
    assert result.layers == guided.layers[-1] and len(result.layers) == 1


def test_orders_and_measures_of_a_removal(model):
    given = random_texts(30)
    result = prune(model, iter(given), 1, draws=2, batch_size=8, progress=False)
    assert [curve.order for curve in result.curves] == ["cka", "top", "random", "random"]
    assert result.curves[1].layers == ((0, 1, 2), (0, 1), (0,)) and result.depths == [3, 2, 1]
    for curve in result.curves:
        assert all(set(fewer) < set(more) for more, fewer in zip(curve.layers, curve.layers[1:], strict=False))
        kept = curve.layers[1]
        expected = cka(keep_layers(model, kept), given[::2], model, progress=False).matrix[-1, -1]
        np.testing.assert_allclose(curve.similarity[1], expected, rtol=1e-5)
        assert np.isnan(curve.score).all()
    gone = next(layer for layer in range(3) if layer not in result.curves[0].layers[1])
    assert result.candidates.shape == (2, 3) and result.candidates[0, gone] == result.candidates[0].max()
    assert np.isnan(result.candidates[1, gone]) and np.isfinite(result.candidates[1]).sum() == 2
    assert len(draw_pruning(result).axes) == 3


def test_losses_are_those_of_numpy_with_the_layers_that_are_kept(model):
    masked = mask_words(model, random_texts(9), seed=3)
    assert masked is not None
    arrays = masked.arrays
    params = jax.tree.map(np.array, jax.device_get(keep_layers(model, [2, 0]).params))
    rows = numpy_bert.forward(params, dataclasses.replace(SMALL, num_layers=2), arrays)
    logits = np.asarray(rows["mlm_logits"], np.float64)
    losses = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, arrays["masked_ids"][..., None], -1)[..., 0]
    used = arrays["masked_weights"] > 0
    found = word_scores(keep_layers(model, [2, 0]), masked, batch_size=4)  # the last batch is not full
    np.testing.assert_allclose(found.loss, losses[used].mean(), rtol=1e-5)
    assert found.accuracy == pytest.approx((logits.argmax(-1) == arrays["masked_ids"])[used].mean(), abs=1e-9)
    assert found.predictions == used.sum()


def test_masks_hide_fifteen_percent_of_the_words_whatever_comes_with_them(model):
    given = random_texts(12)
    masked = mask_words(model, given, seed=1)
    assert masked is not None
    for row, text in enumerate(given):
        ids = [TOKENIZER.cls_id, *TOKENIZER.encode(text), TOKENIZER.sep_id]
        hidden = np.flatnonzero(masked.arrays["input_ids"][row] == TOKENIZER.mask_id)
        used = masked.arrays["masked_weights"][row] > 0
        assert sorted(masked.arrays["masked_positions"][row][used]) == hidden.tolist()
        assert len(hidden) == max(1, round(0.15 * (len(ids) - 2))) and 0 not in hidden and len(ids) - 1 not in hidden
        restored = masked.arrays["input_ids"][row].copy()
        restored[masked.arrays["masked_positions"][row][used]] = masked.arrays["masked_ids"][row][used]
        assert restored[: len(ids)].tolist() == ids
    alone = mask_words(model, given[:3], seed=1)
    assert alone is not None and len(alone) == 3
    width = alone.arrays["input_ids"].shape[1]
    np.testing.assert_array_equal(alone.arrays["input_ids"], masked.arrays["input_ids"][:3, :width])


def test_a_score_is_measured_once_for_every_set_of_layers(model):
    seen = []

    def score(pruned: PretrainedModel) -> float:
        seen.append(np.asarray(pruned.params["encoder"]["attention"]["query"]["bias"]).tobytes())
        return float(pruned.config.num_layers)

    result = prune(model, random_texts(10), 1, draws=3, score=score, score_name="layers", progress=False)
    assert len(seen) == len(set(seen)) == len({layers for curve in result.curves for layers in curve.layers})
    for curve in result.curves:
        np.testing.assert_array_equal(curve.score, [3, 2, 1])
    assert result.score_name == "layers"


def test_a_model_without_a_head_for_words_is_pruned_by_cka_alone():
    bare = loaded(stored_model(dataclasses.replace(SMALL, num_layers=2), ("pooler",)))
    result = prune(bare, random_texts(8), 1, draws=0, progress=False)
    assert np.isnan(result.curves[0].mlm_accuracy).all() and np.isfinite(result.curves[0].similarity).all()
    assert result.predictions == 0 and len(draw_pruning(result).axes) == 2


def shaped(**changes) -> PretrainedModel:
    return loaded(stored_model(variant(SMALL, **changes), PARTS))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"sharing": "all"}, "its layers share parameters"),
        ({"local_window": 4, "global_every": 2}, "one layer in 2 sees the whole sequence"),
        ({"norm_position": "pre", "first_attention_norm": False}, "its first layer differs from the others"),
        ({"convolution_width": 3}, "a convolution is added to its first layer"),
    ],
    ids=["shared", "windows", "first", "convolution"],
)
def test_layers_that_are_not_interchangeable_are_refused(config: dict, message: str):
    assert variant(**config) != ModelConfig()
    with pytest.raises(UserError, match=message):
        prune(shaped(**config), random_texts(8), 1)
    with pytest.raises(UserError, match=message):
        keep_layers(shaped(**config), [0])


def test_bad_input_is_one_clear_error(model):
    for depth in (0, -1, 3, 7):
        with pytest.raises(UserError, match=f"depth={depth} must be at least 1 and below the 3 layers"):
            prune(model, random_texts(8), depth)
    with pytest.raises(UserError, match="at least 8 texts.*not 7"):
        prune(model, random_texts(7), 1)
    with pytest.raises(UserError, match="at least 8 texts.*not 1"):
        prune(model, "one text", 1)
    with pytest.raises(UserError, match="draws=-1"):
        prune(model, random_texts(8), 1, draws=-1)
    with pytest.raises(UserError, match="vectors='max'"):
        prune(model, random_texts(8), 1, vectors="max")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match="has the layers 0 to 2, and no layer 3"):
        keep_layers(model, [0, 3])
    with pytest.raises(UserError, match="leaves no layer"):
        keep_layers(model, [])


@pytest.fixture(scope="module")
def place(small_store, tmp_path_factory) -> pathlib.Path:
    """A model of four layers with the vocabulary of a store, and texts."""
    place = tmp_path_factory.mktemp("prune")
    written_teacher.write(place / "model", small_store, ("pooler", "mlm", "next_sentence"))
    lines = [line for line in small_corpus.write(place / "corpus.txt", 12).read_text().splitlines() if line.strip()]
    (place / "texts.txt").write_text("\n".join(lines[:24]) + "\n")
    return place


def run(place: pathlib.Path, output: pathlib.Path, *words: str, model: str = "model") -> int:
    given = ["--depth=2", "--draws=0", f"--input={place}/texts.txt", f"--output={output}", *words]
    return status("analyze", "prune", place / model, *given)


@pytest.fixture(scope="module")
def pruned(place) -> pathlib.Path:
    assert run(place, place / "out") == 0
    return place / "out"


@pytest.mark.slow
def test_prune_leaves_its_result_its_pictures_and_the_model(place, pruned, monkeypatch, capsys):
    assert sorted(path.name for path in pruned.iterdir()) == ["model", "prune.png", "prune.svg", "result.json"]
    result = json.loads((pruned / "result.json").read_text())["result"]
    kept = result["curves"][0]["layers"][-1]
    whole, smaller = bert_jax.load(place / "model"), bert_jax.load(pruned / "model")
    for name in ("attention/query/kernel", "feed_forward/output/bias"):
        leaves = [_leaf(model.params["encoder"], name) for model in (whole, smaller)]
        np.testing.assert_array_equal(leaves[0][kept], leaves[1])
    np.testing.assert_array_equal(whole.params["mlm"]["bias"], smaller.params["mlm"]["bias"])

    def refuse(*arguments, **options):
        raise AssertionError("computed again")

    monkeypatch.setattr(pruning, "prune", refuse)
    assert run(place, pruned, "--batch_size=5") == 0
    printed = capsys.readouterr().out
    assert "has this result already" in printed and "--model.num_layers=2" in printed


def _leaf(tree, path: str) -> np.ndarray:
    for name in path.split("/"):
        tree = tree[name]
    return np.asarray(tree)


def test_a_model_of_other_layers_is_not_replaced(place, pruned, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    shutil.copy(pruned / "result.json", tmp_path / "out")
    bert_jax.load(place / "model").save(tmp_path / "out" / "model")
    assert run(place, tmp_path / "out") != 0
    assert "holds a model that differs from this result; remove it" in capsys.readouterr().err
    assert bert_jax.load(tmp_path / "out" / "model").config.num_layers == 4


def test_the_smaller_model_exports_to_hugging_face(pruned, tmp_path):
    bert_jax.convert(pruned / "model", tmp_path / "hf", to="huggingface")
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["num_hidden_layers"] == 2
    ours, theirs = bert_jax.load(pruned / "model"), bert_jax.load(tmp_path / "hf")
    text = ["The gardener waters the tulip."]
    np.testing.assert_array_equal(ours.encode(text).last_hidden_state, theirs.encode(text).last_hidden_state)


@pytest.mark.slow
def test_the_smaller_model_trains(pruned, small_store, tmp_path):
    base = run_config(small_store, tmp_path / "run", data=nothing_held_out(small_store))
    phase = PhaseConfig(steps=2, sequence_length=32, batch_size=16, learning_rate=1e-3, warmup_steps=1)
    model = dataclasses.replace(written_teacher.TEACHER, num_layers=2)
    config = dataclasses.replace(base, model=model, init_from=str(pruned / "model"), phases=(phase,))
    pretrain(config)
    before, after = bert_jax.load(pruned / "model"), bert_jax.load(tmp_path / "run")
    change = [np.abs(_leaf(model.params, "encoder/attention/query/kernel")).mean() for model in (before, after)]
    assert change[0] != change[1] and abs(change[1] / change[0] - 1) < 0.1  # two small steps from where it began


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--depth=0"], "depth=0 must be at least 1"),
        (["--depth=4"], "depth=4 must be at least 1 and below the 4 layers"),
        (["--texts=0"], "texts=0: pruning reads its texts"),
        (["--task=rte"], "task=rte needs its examples"),
    ],
    ids=["zero", "same", "texts", "task"],
)
def test_bad_options_are_one_line(place, tmp_path, words, message, capsys):
    assert run(place, tmp_path / "out", *words) != 0
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error and not (tmp_path / "out" / "model").exists()


@pytest.mark.slow
def test_the_score_of_a_fine_tuned_model_is_that_of_predict(place, tmp_path):
    write_model(tmp_path / "tuned", "text", dataclasses.replace(CONFIG, num_layers=2))
    rows = [f"the cat sat on the mat {word}\t{label}" for word, label in zip("a big old dog ran".split(), "abaab")]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "dev.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    (tmp_path / "texts.txt").write_text("\n".join(f"the {word} sat on a mat" for word in ["cat", "dog", "bird"] * 4))
    words = [f"--task_data={tmp_path}/data", f"--input={tmp_path}/texts.txt", "--depth=1"]
    assert run(tmp_path, tmp_path / "out", *words, model="tuned") == 0
    result = json.loads((tmp_path / "out" / "result.json").read_text())["result"]
    assert result["score_name"] == "text accuracy" and result["predictions"] == 0
    for number, directory in ((0, tmp_path / "tuned"), (-1, tmp_path / "out" / "model")):
        predicting = bert_jax.PredictConfig(
            input=str(tmp_path / "data" / "dev.tsv"), output=str(tmp_path / f"p{number}")
        )
        expected = bert_jax.predict(str(directory), predicting)
        assert result["curves"][0]["score"][number] == pytest.approx(expected["accuracy"])


@pytest.mark.slow
def test_a_pre_trained_model_is_fine_tuned_once_for_every_set_of_layers(tmp_path, monkeypatch, capsys):
    home = small_finetuning.write(tmp_path)
    (tmp_path / "texts.txt").write_text("\n".join(row.split("\t")[0] for row in sentences(12, 3).splitlines()[1:]))
    words = ["--depth=1", f"--task_data={home}/data", "--epochs=1", "--max_length=16", f"--input={tmp_path}/texts.txt"]
    assert run(home, tmp_path / "out", *words, model="pretrained") != 0
    assert "is a pre-trained model, which is fine-tuned for a score; give --task=NAME" in capsys.readouterr().err
    words.append("--task=text")
    assert run(home, tmp_path / "out", *words, model="pretrained") == 0
    result = json.loads((tmp_path / "out" / "result.json").read_text())["result"]
    assert result["score_name"] == "text, fine-tuned"
    kept = {tuple(layers) for curve in result["curves"] for layers in curve["layers"]}
    files = sorted((tmp_path / "out" / "fine_tuned").iterdir())
    assert len(files) == len(kept) and all(file.suffix == ".json" for file in files)
    scores = {json.loads(file.read_text())["result"]["score"] for file in files}
    assert {score for curve in result["curves"] for score in curve["score"]} == scores
    (tmp_path / "out" / "result.json").unlink()
    monkeypatch.setattr(results, "finetune", None)
    assert run(home, tmp_path / "out", *words, model="pretrained") == 0
    assert json.loads((tmp_path / "out" / "result.json").read_text())["result"]["curves"] == result["curves"]
