"""Gradual unfreezing (Howard & Ruder 2018): what learns in which epoch, and the slanted triangular rates."""

import dataclasses
import json
import re

import jax
import numpy as np
import pytest
from one_device import finetune
from small_finetuning import MODEL, Killed, assert_same_weights, run_config, weights

from bert_jax.config import HeadConfig, MeshConfig, ModelConfig, ScheduleConfig
from bert_jax.config.finetuning import FinetuneConfig, check_finetune
from bert_jax.console import load_config
from bert_jax.devices.sharding import make_mesh
from bert_jax.errors import UserError
from bert_jax.finetuning.plan import Run, learning_rates
from bert_jax.finetuning.programs import make_programs
from bert_jax.models.bert_parameters import bert_parameters
from bert_jax.models.task import BertForTask
from bert_jax.training.optimizers import scale_by_depth, unfrozen_by_epoch
from bert_jax.training.step import Program

LAYERS = 3
HEAD = HeadConfig(labels=("no", "yes"))


@pytest.fixture(scope="module", params=["post", "pre"])
def sizes(request):
    return dataclasses.replace(MODEL, num_layers=LAYERS, vocab_size=20, norm_position=request.param)


def learning(updates) -> dict[str, list[bool]]:
    """Which parts of a tree of updates are not 0; of the encoder, which layers from the bottom."""
    found = {part: [any(bool((leaf != 0).any()) for leaf in jax.tree.leaves(tree))] for part, tree in updates.items()}
    layers = [np.asarray(leaf).reshape(LAYERS, -1).any(axis=1) for leaf in jax.tree.leaves(updates["encoder"])]
    assert all((each == layers[0]).all() for each in layers)
    return found | {"encoder": layers[0].tolist()}


def test_a_layer_more_learns_in_each_epoch_and_the_embeddings_last(sizes):
    ones = jax.tree.map(lambda leaf: np.ones(leaf.shape, np.float32), shapes(sizes))
    thaw = unfrozen_by_epoch(LAYERS, bert_parameters(sizes, (), HEAD))
    for epoch in range(LAYERS + 3):
        updates, _ = thaw.update(ones, thaw.init(ones), epoch=np.int32(epoch))
        found = learning(updates)
        assert found["encoder"] == [layer >= LAYERS - epoch for layer in range(LAYERS)]
        assert found["head"] == found["pooler"] == [True]
        assert found["embeddings"] == [epoch > LAYERS]
        assert found.get("final_norm", [epoch > 0]) == [epoch > 0]


def shapes(sizes: ModelConfig):
    return jax.eval_shape(BertForTask(sizes, HEAD).init, jax.random.key(0))


def test_layers_that_share_parameters_are_refused(sizes):
    shared = dataclasses.replace(sizes, sharing="all")
    with pytest.raises(UserError, match="gradual_unfreezing=True needs separate parameters for each of 3 layers"):
        unfrozen_by_epoch(LAYERS, bert_parameters(shared, (), HEAD))


@pytest.mark.parametrize("sharing", ["all", "attention", "feed_forward"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"layer_decay": 0.5},
            r"layer_decay=0.5 needs separate parameters for each of 3 layers, but encoder/{shared}\S* is \[1, .*"
            "which layers share; use layer_decay=1",
        ),
        (
            {"reinitialize_layers": 1},
            "reinitialize_layers=1 needs layers with parameters of their own, .*{option}.*; use reinitialize_layers=0",
        ),
    ],
)
def test_what_shared_layers_cannot_have_is_refused_before_anything_is_compiled(sharing, options, message):
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    model = dataclasses.replace(MODEL, num_layers=LAYERS, vocab_size=20)
    make_programs(FinetuneConfig(**options), model, HEAD, mesh)
    shared = "feed_forward" if sharing == "feed_forward" else "attention"
    with pytest.raises(UserError, match=message.format(shared=shared, option=f"model.sharing={sharing}")):
        make_programs(FinetuneConfig(**options), dataclasses.replace(model, sharing=sharing), HEAD, mesh)


@pytest.mark.slow
def test_a_run_trains_the_head_then_the_top_layer_and_resumes_exactly(pretrained, tmp_path, monkeypatch, capfd):
    config = run_config(pretrained, tmp_path / "whole", gradual_unfreezing=True, layer_decay=0.5, save_every_steps=7)
    call, seen = Program.__call__, []

    def watched(program, state, *rest):
        if len(rest) > 1:
            seen.append((int(state.step), int(rest[3])))
            if len(seen) == 25 and config.workdir.endswith("killed"):
                raise Killed
        return call(program, state, *rest)

    monkeypatch.setattr(Program, "__call__", watched)
    finetune(config)
    assert (
        "2 epochs train the head and the top 1 of 2 layers; all, and the embeddings, learn from --epochs=4"
        in " ".join(capfd.readouterr().out.split())
    )
    assert seen == [(step, step // 20) for step in range(40)]
    before, after = weights(pretrained / "pretrained"), weights(tmp_path / "whole")
    for path, array in after.items():
        if path.startswith("embeddings"):
            np.testing.assert_array_equal(array, before[path], err_msg=path)
        elif path.startswith("encoder"):
            np.testing.assert_array_equal(array[0], before[path][0], err_msg=path)
            assert (array[1] != before[path][1]).any(), path
    config = dataclasses.replace(config, workdir=str(tmp_path / "killed"))
    seen.clear()
    with pytest.raises(Killed):
        finetune(config)
    finetune(config)
    assert seen[25] == (21, 1)
    assert_same_weights(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.slow
def test_it_is_part_of_what_a_directory_is_resumed_with(pretrained, tmp_path):
    config = run_config(pretrained, tmp_path / "work", epochs=1)
    finetune(config)
    with pytest.raises(UserError, match="finetune.gradual_unfreezing: False → True"):
        finetune(dataclasses.replace(config, gradual_unfreezing=True))
    file = tmp_path / "work/config.json"
    settings = json.loads(file.read_text())
    del settings["finetune"]["gradual_unfreezing"]
    file.write_text(json.dumps(settings))
    with pytest.raises(UserError, match="finetune.gradual_unfreezing: None → False"):
        finetune(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "ner", "features": "last"}, "features=last freezes the encoder for the whole run"),
        ({"reinitialize_layers": 1}, "leaves random during the first epoch"),
    ],
)
def test_what_it_cannot_go_with_is_refused(pretrained, tmp_path, changes, message):
    with pytest.raises(UserError, match=re.escape(message)):
        check_finetune(run_config(pretrained, tmp_path, gradual_unfreezing=True, **changes))


def test_layer_decay_scales_what_has_thawed(sizes):
    parameters = bert_parameters(sizes, (), HEAD)
    ones = jax.tree.map(lambda leaf: np.ones(leaf.shape, np.float32), shapes(sizes))
    decay, thaw = scale_by_depth(0.5, LAYERS, parameters), unfrozen_by_epoch(LAYERS, parameters)
    updates, _ = decay.update(ones, decay.init(ones))
    updates, _ = thaw.update(updates, thaw.init(ones), epoch=np.int32(2))
    bias = np.asarray(updates["encoder"]["attention"]["output"]["bias"])
    np.testing.assert_array_equal(bias[:, 0], [0.0, 0.5, 1.0])


def test_layer_decay_is_refused_where_there_are_no_layers():
    static = dataclasses.replace(load_config("skipgram_mini").model, vocab_size=60)
    with pytest.raises(UserError, match="layer_decay=0.8 needs layers, and this model has none; use layer_decay=1"):
        scale_by_depth(0.8, static.num_layers, bert_parameters(static, (), HEAD))


def test_slanted_triangular_rates_are_a_schedule_with_a_final_fraction():
    """Howard & Ruder 2018, equation 3, cut_frac = 0.1 and ratio = 32; the warm-up here begins at 0, not at 1/32."""
    steps, cut, ratio = 200, 20, 32
    schedule = ScheduleConfig(name="linear_after_warmup", final_fraction=1 / ratio)
    found = learning_rates(Run(16, 1.0, 1, 0), schedule, 0.1, steps)
    step = np.arange(steps)
    share = np.where(step < cut, step / cut, 1 - (step - cut) / (cut * (1 / 0.1 - 1)))
    expected = (1 + share * (ratio - 1)) / ratio
    np.testing.assert_allclose(found[cut:], expected[cut:], rtol=1e-5)
    assert np.abs(found - expected)[:cut].max() <= 1 / ratio + 1e-6
