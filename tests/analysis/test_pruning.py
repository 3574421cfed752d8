"""Layers and heads that are taken out: what a model loses, and the commands."""

import dataclasses
import json
import pathlib
import shutil
import types

import documents
import jax
import numpy as np
import numpy_bert
import pytest
import small_finetuning
import written_teacher
from command_lines import status
from model_variants import variant
from pretrained_model import CONFIG, PARTS, TOKENIZER, loaded, random_texts, stored_model, write_workdir
from pretrained_model import SMALL as HEADS_SMALL
from scipy.spatial.distance import jensenshannon
from small_finetuning import sentences
from small_pretraining import nothing_held_out, pretrain, run_config
from task_models import WINDOWS, families, model_of, write_model

import bert_jax
from bert_jax.analysis import cka, draw_pruning, head_behaviour, heads, keep_layers, prune, pruning
from bert_jax.analysis.texts import in_batches, mask_words, word_scores
from bert_jax.checkpoints.record import leaf_paths
from bert_jax.config import ModelConfig, PhaseConfig
from bert_jax.config.analyses import PruneConfig
from bert_jax.config.options import check_kinds
from bert_jax.errors import UserError
from bert_jax.models.kernels import windowed
from bert_jax.pretrained.model import PretrainedModel

SMALL = dataclasses.replace(CONFIG, num_layers=3)


@pytest.fixture(scope="module")
def model_of_pruning() -> PretrainedModel:
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


@pytest.mark.parametrize("norm_position, layer", [("pre", 0), pytest.param("post", 2, marks=pytest.mark.slow)])
def test_a_layer_that_adds_nothing_goes_first(norm_position, layer):
    model = with_redundant_layer(norm_position, layer)
    result = prune(model, random_texts(24), 1, draws=1, batch_size=16, progress=False)
    guided = result.curves[0]
    assert guided.layers[1] == tuple(other for other in range(3) if other != layer)
    np.testing.assert_allclose(guided.similarity[:2], 1.0, atol=1e-5)
    np.testing.assert_allclose(guided.mlm_loss[1], guided.mlm_loss[0], rtol=1e-5)
    assert np.nanargmax(result.candidates[0]) == layer
    assert result.layers == guided.layers[-1] and len(result.layers) == 1


def test_orders_and_measures_of_a_removal(model_of_pruning):
    given = random_texts(30)
    result = prune(model_of_pruning, iter(given), 1, draws=2, batch_size=8, progress=False)
    assert [curve.order for curve in result.curves] == ["cka", "top", "random", "random"]
    assert result.curves[1].layers == ((0, 1, 2), (0, 1), (0,)) and result.depths == [3, 2, 1]
    for curve in result.curves:
        assert all(set(fewer) < set(more) for more, fewer in zip(curve.layers, curve.layers[1:], strict=False))
        kept = curve.layers[1]
        expected = cka(keep_layers(model_of_pruning, kept), given[::2], model_of_pruning, progress=False).matrix[-1, -1]
        np.testing.assert_allclose(curve.similarity[1], expected, rtol=1e-5)
        assert np.isnan(curve.score).all()
    gone = next(layer for layer in range(3) if layer not in result.curves[0].layers[1])
    assert result.candidates.shape == (2, 3) and result.candidates[0, gone] == result.candidates[0].max()
    assert np.isnan(result.candidates[1, gone]) and np.isfinite(result.candidates[1]).sum() == 2
    *_, candidates = drawn = draw_pruning(result).axes
    assert len(drawn) == 3 and "from 1" in candidates.get_xlabel()
    assert [label.get_text() for label in candidates.get_xticklabels()] == ["1", "2", "3"]


def test_losses_are_those_of_numpy_with_the_layers_that_are_kept(model_of_pruning):
    masked = mask_words(model_of_pruning, random_texts(9), seed=3)
    assert masked is not None
    params = jax.tree.map(np.array, jax.device_get(keep_layers(model_of_pruning, [2, 0]).params))
    rows = numpy_bert.forward(params, dataclasses.replace(SMALL, num_layers=2), masked)
    logits = np.asarray(rows["mlm_logits"], np.float64)
    losses = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, masked["masked_ids"][..., None], -1)[..., 0]
    used = masked["masked_weights"] > 0
    found = word_scores(keep_layers(model_of_pruning, [2, 0]), masked, batch_size=4)  # the last batch is not full
    np.testing.assert_allclose(found.loss, losses[used].mean(), rtol=1e-5)
    assert found.accuracy == pytest.approx((logits.argmax(-1) == masked["masked_ids"])[used].mean(), abs=1e-9)
    assert found.predictions == used.sum()


def test_masks_hide_fifteen_percent_of_the_words_whatever_comes_with_them(model_of_pruning):
    given = random_texts(12)
    masked = mask_words(model_of_pruning, given, seed=1)
    assert masked is not None
    for row, text in enumerate(given):
        ids = [TOKENIZER.cls_id, *TOKENIZER.encode(text), TOKENIZER.sep_id]
        hidden = np.flatnonzero(masked["input_ids"][row] == TOKENIZER.mask_id)
        used = masked["masked_weights"][row] > 0
        assert sorted(masked["masked_positions"][row][used]) == hidden.tolist()
        assert len(hidden) == max(1, round(0.15 * (len(ids) - 2))) and 0 not in hidden and len(ids) - 1 not in hidden
        restored = masked["input_ids"][row].copy()
        restored[masked["masked_positions"][row][used]] = masked["masked_ids"][row][used]
        assert restored[: len(ids)].tolist() == ids
    alone = mask_words(model_of_pruning, given[:3], seed=1)
    assert alone is not None and len(alone["input_ids"]) == 3
    width = alone["input_ids"].shape[1]
    np.testing.assert_array_equal(alone["input_ids"], masked["input_ids"][:3, :width])


def test_a_score_is_measured_once_for_every_set_of_layers(model_of_pruning):
    seen = []

    def score(pruned: PretrainedModel) -> float:
        seen.append(np.asarray(pruned.params["encoder"]["attention"]["query"]["bias"]).tobytes())
        return float(pruned.config.num_layers)

    result = prune(model_of_pruning, random_texts(10), 1, draws=3, score=score, score_name="layers", progress=False)
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
        ({"value_embeddings": "ends"}, "some add vectors of words to their values .*=ends"),
    ],
    ids=["shared", "windows", "first", "convolution", "words"],
)
def test_layers_that_are_not_interchangeable_are_refused(config: dict, message: str):
    assert variant(**config) != ModelConfig()
    with pytest.raises(UserError, match=message):
        prune(shaped(**config), random_texts(8), 1)
    with pytest.raises(UserError, match=message):
        keep_layers(shaped(**config), [0])


def test_bad_input_is_one_clear_error(model_of_pruning):
    for depth in (0, -1, 3, 7):
        with pytest.raises(UserError, match=f"depth={depth} must be at least 1 and below the 3 layers"):
            prune(model_of_pruning, random_texts(8), depth)
    with pytest.raises(UserError, match="at least 8 texts.*not 7"):
        prune(model_of_pruning, random_texts(7), 1)
    with pytest.raises(UserError, match="at least 8 texts.*not 1"):
        prune(model_of_pruning, "one text", 1)
    with pytest.raises(UserError, match="draws=-1"):
        prune(model_of_pruning, random_texts(8), 1, draws=-1)
    with pytest.raises(UserError, match="vectors='max'"):
        prune(model_of_pruning, random_texts(8), 1, vectors="max")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match="has the layers 0 to 2, and no layer 3"):
        keep_layers(model_of_pruning, [0, 3])
    with pytest.raises(UserError, match="leaves no layer"):
        keep_layers(model_of_pruning, [])


@pytest.fixture(scope="module")
def place(small_store, tmp_path_factory) -> pathlib.Path:
    """A model of four layers with the vocabulary of a store, and texts."""
    place = tmp_path_factory.mktemp("prune")
    written_teacher.write(place / "model", small_store, ("pooler", "mlm", "next_sentence"))
    lines = [line for line in documents.write(place / "corpus.txt", 12).read_text().splitlines() if line.strip()]
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
        leaves = [np.asarray(leaf_paths(model.params["encoder"])[name]) for model in (whole, smaller)]
        np.testing.assert_array_equal(leaves[0][kept], leaves[1])
    np.testing.assert_array_equal(whole.params["mlm"]["bias"], smaller.params["mlm"]["bias"])

    def refuse(*arguments, **options):
        raise AssertionError("computed again")

    monkeypatch.setattr(pruning, "prune", refuse)
    assert run(place, pruned, "--batch_size=5") == 0
    printed = capsys.readouterr().out
    assert "has this result already" in printed and "--model.num_layers=2" in printed


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
    kernels = (leaf_paths(model.params)["encoder/attention/query/kernel"] for model in (before, after))
    change = [np.abs(kernel).mean() for kernel in kernels]
    assert change[0] != change[1] and abs(change[1] / change[0] - 1) < 0.1  # two small steps from where it began


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--depth=0"], "depth=0 must be at least 1"),
        (["--depth=4"], "depth=4 must be at least 1 and below the 4 layers"),
        (["--texts=0"], "texts=0: pruning reads its texts"),
        (["--task=rte"], "task=rte needs its examples"),
        (["--epochs=2"], "epochs=2 has no effect without task_data"),
    ],
    ids=["zero", "same", "texts", "task", "epochs"],
)
def test_bad_options_are_one_line(place, tmp_path, words, message, capsys):
    assert run(place, tmp_path / "out", *words) != 0
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error and not (tmp_path / "out").exists()


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
        output = str(tmp_path / f"p{number}")
        predicting = bert_jax.PredictConfig(input=str(tmp_path / "data" / "dev.tsv"), output=output)
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
    monkeypatch.setattr("bert_jax.finetuning.loop.finetune", None)
    assert run(home, tmp_path / "out", *words, model="pretrained") == 0
    assert json.loads((tmp_path / "out" / "result.json").read_text())["result"]["curves"] == result["curves"]


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
    sums = head_behaviour.HeadSums(1, 7, TOKENIZER)
    sums.add(np.stack([*rows, uniform])[None], ids)
    found = dict(zip(head_behaviour.MEASURES, sums.means()[:, 0], strict=True))
    for head, name in enumerate(head_behaviour.MEASURES[:6]):
        assert found[name][head] == pytest.approx(1.0)
    np.testing.assert_allclose(sums.means()[:, 0, 6], sums.uniform())
    assert found["previous"][6] == pytest.approx(1 / 7) and found["punctuation"][6] == pytest.approx(2 / 7)
    assert found["distance"][[0, 2, 3]] == pytest.approx([6 / 7, 0, 3])
    assert found["entropy"][[0, 6]] == pytest.approx([0, np.log(7)])
    assert found["broadness"][[0, 6]] == pytest.approx([1 / length, 1])
    sums.add(np.ones((1, 7, 1, 1)), np.array([TOKENIZER.cls_id]))  # has no neighbour, separator or punctuation
    assert sums.means()[0, 0, 0] == pytest.approx(1.0) and sums.tokens == 8


def test_the_maps_of_heads_say_what_their_axes_are():
    values = dict.fromkeys(head_behaviour.MEASURES, np.full((2, 4), 0.5))
    figures = {"model": "m", "texts": 1, "tokens": 9, "uniform": np.ones(len(values))}
    for axes in head_behaviour.draw_heads(types.SimpleNamespace(**values, **figures)).axes:
        assert axes.get_xlabel().startswith("head (") and axes.get_ylabel() == "layer"


def test_punctuation_is_that_of_bert():
    marked = head_behaviour.punctuation_pieces(TOKENIZER)
    assert {TOKENIZER.tokens[number] for number in np.flatnonzero(marked)} == {".", ","}


def test_divergences_are_those_of_scipy_and_the_map_keeps_them():
    random = np.random.default_rng(0)
    rows = random.dirichlet(np.full(6, 0.4), (4, 5))
    rows[3] = rows[0]
    found = head_behaviour.divergences(rows)
    expected = [[np.mean([jensenshannon(p, q) ** 2 for p, q in zip(a, b, strict=True)]) for b in rows] for a in rows]
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert head_behaviour.clusters_of(found, 3)[0] == head_behaviour.clusters_of(found, 3)[3] == 0
    points = random.standard_normal((8, 2))
    squared = np.square(points[:, None] - points[None]).sum(axis=-1)
    placed = head_behaviour.scaled_map(squared)
    np.testing.assert_allclose(np.square(placed[:, None] - placed[None]).sum(axis=-1), squared, atol=1e-9)
    with pytest.raises(UserError, match="clusters=5 must be from 1 to the 4 heads"):
        head_behaviour.clusters_of(found, 5)


def test_attention_between_words_sums_over_pieces_seen_and_averages_over_pieces_that_look(model):
    member, length = head_behaviour.word_pieces(model, ("the", "cats", "sat"))
    assert length == 6 and member.astype(int).tolist() == [[0, 1, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 1, 0]]
    weights = np.random.default_rng(1).dirichlet(np.ones(6), (2, 3, 6))
    found = head_behaviour.word_attention(weights, member)
    np.testing.assert_allclose(found[..., 1, 2], weights[..., 2:4, 4].mean(axis=-1))
    np.testing.assert_allclose(found[..., 0, 1], weights[..., 1, 2:4].sum(axis=-1))


def test_a_head_that_looks_at_syntactic_heads_finds_them_all(tmp_path):
    (tmp_path / "some.conllu").write_text(TREE)
    (tree,) = head_behaviour.read_parsed(tmp_path / "some.conllu")
    assert tree.heads == (1, 2, -1, 2) and tree.relations == ("det", "nsubj", "root", "obj")
    assert tree.mentions == (head_behaviour.Mention(3, (1,), 2),)
    to_head, to_first = one_hot([1, 2, 2, 2]), one_hot([1, 1, 1, 1])
    sums = head_behaviour._RelationSums(1, 3)
    sums.add(np.stack([to_head, to_head.T, to_first])[None], np.ones(4, bool), tree)
    found = sums.result(0)
    assert found.relations == ("any", "det", "nsubj", "obj") and found.counts.tolist() == [3, 1, 1, 1]
    assert found.to_head[0, 0, [0, 2]].tolist() == pytest.approx([1.0, 1 / 3])
    assert found.from_head[0, 0, 1] == pytest.approx(1.0)
    assert found.attention[0].tolist() == pytest.approx([1, 0, 1 / 3])
    assert found.offsets[0] == 1 and found.baseline[0] == pytest.approx(2 / 3)
    assert found.antecedents[0].tolist() == [0, 0, 1] and found.nearest == 0 and found.mentions == 1


@pytest.mark.slow
@pytest.mark.parametrize("family", families())
def test_models_of_every_family_attend_by_probabilities_and_states_are_those_of_the_fast_path(family):
    model = model_of(family)
    result = heads(
        model,
        TEXTS[:4],
        [head_behaviour.ParsedText(("the", "cat"), (1, -1), ("det", "root"))],
        ablation_texts=0,
        progress=False,
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
    config = variant(HEADS_SMALL, max_position_embeddings=128, **WINDOWS)
    model = loaded(stored_model(config, ("pooler", "mlm", "next_sentence")))
    result = heads(model, ["the cat sat on the mat . " * 16], ablation_texts=0, progress=False)
    assert by_blocks and min(by_blocks) > 96 and result.map_error < 1e-5


def test_the_ablation_is_the_paired_difference_of_losses(model):
    found = head_behaviour.head_ablation(model, TEXTS, seed=2, batch_size=5, progress=False)
    batch = next(in_batches(mask_words(model, TEXTS, seed=2), len(TEXTS)))
    gates = np.ones((5, 4))
    gates[3, 1] = 0.0
    weights = batch["masked_weights"]
    whole, without = ((weights * model.mlm_losses(batch, each)).sum(axis=1) for each in (None, gates))
    assert found.loss == pytest.approx(whole.sum() / weights.sum(), abs=1e-5)
    assert found.increase[3, 1] == pytest.approx((without - whole).sum() / weights.sum(), abs=1e-5)
    assert found.predictions == weights.sum() and found.texts == len(TEXTS)
    assert np.isnan(head_behaviour.head_ablation(model, []).increase).all()


def test_the_error_of_a_mean_is_that_of_resampled_texts():
    random = np.random.default_rng(5)
    counts = random.integers(1, 6, 400).astype(float)
    sums = counts * 0.3 + random.standard_normal(400) * counts
    draws = random.integers(0, 400, (2_000, 400))
    resampled = sums[draws].sum(axis=1) / counts[draws].sum(axis=1)
    mean, error = head_behaviour.ratio(sums, counts)
    assert mean == pytest.approx(sums.sum() / counts.sum()) and error == pytest.approx(resampled.std(), rel=0.1)


def test_batches_shrink_where_their_attention_is_large(model):
    assert head_behaviour.batch_fitting(model, ["a"], 32, None) == 32
    big = dataclasses.replace(HEADS_SMALL, num_layers=12, num_heads=16, max_position_embeddings=2_048)
    wide = type("Wide", (), {"config": big})
    assert head_behaviour.batch_fitting(wide, ["a" * 5_000], 32, None) == 1


@pytest.mark.slow
def test_the_command_leaves_numbers_and_pictures_and_computes_once(tmp_path, analyze):
    write_workdir(tmp_path / "run", 1, config=HEADS_SMALL)
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
        heads(loaded(stored_model(variant(HEADS_SMALL, layer="lstm"))), TEXTS)
    with pytest.raises(UserError, match=r"must be a CoNLL-U file"):
        head_behaviour.read_parsed(tmp_path / "trees.txt")
    (tmp_path / "bad.conllu").write_text(TREE.replace("\t3\tobj", "\t9\tobj"))
    message = r"bad.conllu, line 5: the head '9' of 'big' must be the number of a different one"
    with pytest.raises(UserError, match=message):
        head_behaviour.read_parsed(tmp_path / "bad.conllu")


@pytest.mark.parametrize("task", ["mrpc", "text", "ner", "squad_v2"])
def test_the_files_of_a_task_are_of_its_kind(task):
    """`check_finetune` refuses those of another, which no option of `analyze prune` could change."""
    pretrained = types.SimpleNamespace(head=None, path="model")
    options = PruneConfig(depth=1, input="texts", task=task, task_data="files", output="pruned")
    score = pruning._score(pretrained, options, bert_jax.finetune)
    assert score._config.data.dir == "files"
    check_kinds(score._config)
