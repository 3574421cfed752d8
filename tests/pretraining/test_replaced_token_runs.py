"""A run of replaced-token detection: what it logs, how its two parts are opened, measured, written and continued."""

import dataclasses
import json
import math

import jax
import numpy as np
import one_device
import pytest
from command_lines import refusal
from etils import epath
from processes import EXHAUSTIVE
from safetensors.numpy import load_file
from small_pretraining import MODEL, rows, run_config

import bert_jax
from bert_jax import cli
from bert_jax.checkpoints.record import leaf_paths
from bert_jax.cli.evaluate import default_config
from bert_jax.config import (
    Config,
    DataConfig,
    EvaluationConfig,
    MaskingConfig,
    MeshConfig,
    PhaseConfig,
    ReplacedTokens,
)
from bert_jax.config.objective import GeneratorConfig
from bert_jax.devices.placement import StoredArray
from bert_jax.errors import UserError
from bert_jax.models.costs import trained_parameters
from bert_jax.pretrained.initialization import open_source
from bert_jax.pretraining import pretrain
from bert_jax.training.events import read_events

pytestmark = pytest.mark.slow

DISCRIMINATOR = dataclasses.replace(MODEL, embedding_size=20, pair_head=False, activation="gelu_erf", pooler="gelu_erf")


def electra(store, workdir, embeddings: str = "shared", **changes) -> Config:
    generator = GeneratorConfig(hidden_size=16, num_layers=1, num_heads=2, embeddings=embeddings)
    options = {
        "model": DISCRIMINATOR,
        "data": DataConfig(path=str(store), held_out=0.1, loader="plain", sentence_pairs="adjacent"),
        "masking": MaskingConfig(mask_share=0.85, random_share=0.0),
        "objective": ReplacedTokens(generator=generator),
        "phases": (PhaseConfig(steps=8, sequence_length=32, batch_size=16, learning_rate=2e-3, warmup_steps=2),),
        "evaluation": EvaluationConfig(every_steps=4, sequences=32, batch_size=32, samples=2),
    }
    return run_config(store, workdir, **(options | changes))


@pytest.fixture(scope="module")
def run(small_store, tmp_path_factory) -> Config:
    config = electra(small_store, tmp_path_factory.mktemp("electra") / "run")
    one_device.pretrain(config)
    return config


def figures(workdir, store) -> dict[str, float]:
    """What `bert-jax evaluate` measures on held-out documents."""
    config = default_config(str(workdir))
    return one_device.run_evaluate(
        str(workdir), dataclasses.replace(config, data=dataclasses.replace(config.data, path=str(store)))
    ).metrics


def test_both_losses_are_logged_by_their_names_and_weighted(run):
    logged, evaluated = rows(run.workdir), rows(run.workdir, "evaluation")
    for row in logged:
        assert row["loss"] == pytest.approx(row["mlm_loss"] + 50 * row["replaced_tokens_loss"], rel=1e-5)
        assert 0 <= row["replaced_tokens_accuracy"] <= 1
    assert logged[0]["mlm_loss"] == pytest.approx(math.log(bert_jax.load(run.workdir).config.vocab_size), rel=0.05)
    assert logged[-1]["replaced_tokens_loss"] < logged[0]["replaced_tokens_loss"]
    assert len(evaluated) == 2 and {"mlm_loss", "perplexity", "replaced_tokens_loss"} < {*evaluated[-1]}


def test_evaluate_draws_the_words_that_the_run_drew(run, small_store):
    """The held-out figures of the last step again, from both parts as they are opened."""
    found = figures(run.workdir, small_store)
    logged = rows(run.workdir, "evaluation")[-1]
    names = ("mlm_loss", "mlm_accuracy", "replaced_tokens_loss", "replaced_tokens_accuracy")
    assert {name: found[name] for name in names} == pytest.approx({name: logged[name] for name in names}, rel=1e-5)


def test_the_work_directory_opens_as_its_discriminator_and_the_generator_is_reachable(run):
    model, generator = bert_jax.load(run.workdir), bert_jax.load(run.workdir, part="generator")
    assert model.network.parts == ("replaced_tokens",) and generator.network.parts == ("mlm",)
    assert (generator.config.hidden_size, generator.config.num_layers) == (16, 1)
    for name in ("word", "position", "token_type"):
        tables = (each.params["embeddings"][name]["table"] for each in (model, generator))
        np.testing.assert_array_equal(*tables)
    ids = {"input_ids": np.array([[2, 7, 9, 3]], np.int32), "token_type_ids": np.zeros((1, 4), np.int32)}
    batch = ids | {"attention_mask": np.ones((1, 4), np.int32)}
    assert jax.jit(model.network.replaced_token_logits)(model.params, batch).shape == (1, 4)
    assert len(generator.fill_mask("[MASK]")[0]) == 5
    with pytest.raises(UserError, match="part='encoder' must be 'generator'"):
        bert_jax.load(run.workdir, part="encoder")  # pyright: ignore[reportArgumentType]


def two_steps(store, workdir, embeddings: str) -> Config:
    phases = (PhaseConfig(steps=2, sequence_length=32, batch_size=16, learning_rate=2e-3, warmup_steps=1),)
    config = electra(store, workdir, embeddings, phases=phases)
    one_device.pretrain(config)
    return config


def test_differences_are_opened_as_sums_and_continue_as_they_were(small_store, tmp_path):
    config = two_steps(small_store, tmp_path / "run", "disentangled")
    model, generator = bert_jax.load(config.workdir), bert_jax.load(config.workdir, part="generator")
    tables = [each.params["embeddings"]["word"]["table"] for each in (model, generator)]
    assert 0 < float(np.max(np.abs(tables[0] - tables[1]))) < 0.01  # two steps from nothing
    logged = rows(config.workdir, "evaluation")[-1]
    assert figures(config.workdir, small_store)["replaced_tokens_loss"] == pytest.approx(
        logged["replaced_tokens_loss"], rel=1e-5
    )
    continued = dataclasses.replace(config, init_from=config.workdir, workdir=str(tmp_path / "next"))
    source = open_source(continued, resumed=False)
    assert source is not None and {*trained_parameters(continued)} <= {*source.arrays}
    difference = whole(source.arrays["embeddings/word/delta"])
    np.testing.assert_array_equal(whole(source.arrays["generator/embeddings/word/table"]) + difference, tables[0])


def test_tables_of_their_own_are_opened_and_measured(small_store, tmp_path):
    config = two_steps(small_store, tmp_path / "run", "own")
    model, generator = bert_jax.load(config.workdir), bert_jax.load(config.workdir, part="generator")
    tables = [each.params["embeddings"]["word"]["table"] for each in (model, generator)]
    assert tables[0].shape == tables[1].shape and float(np.max(np.abs(tables[0] - tables[1]))) > 0.04  # two draws
    logged = rows(config.workdir, "evaluation")[-1]
    assert figures(config.workdir, small_store)["replaced_tokens_loss"] == pytest.approx(
        logged["replaced_tokens_loss"], rel=1e-5
    )


def test_both_parts_are_written_for_transformers(run, tmp_path, capsys):
    for parts, kind in (("all", "ElectraForPreTraining"), ("generator", "ElectraForMaskedLM")):
        out = tmp_path / parts
        assert cli._run(["bert-jax", "convert", run.workdir, str(out), "--to=huggingface", f"--parts={parts}"]) == 0
        assert json.loads((out / "config.json").read_text())["architectures"] == [kind]
        heads = {name.split(".")[0] for name in load_file(out / "model.safetensors")}
        assert heads == {"electra", *(["discriminator_predictions"] if parts == "all" else _GENERATOR)}
        part = None if parts == "all" else "generator"
        theirs, ours = bert_jax.load(out).params, bert_jax.load(run.workdir, part=part).params
        jax.tree.map(np.testing.assert_array_equal, theirs, ours)
    said = capsys.readouterr().out
    assert "left out: generator" in said and "left out: discriminator" in said


_GENERATOR = ("generator_predictions", "generator_lm_head")


def test_a_generator_on_its_own_is_a_masked_language_model(run, small_store, tmp_path, capsys):
    ours = tmp_path / "ours"
    assert cli._run(["bert-jax", "convert", run.workdir, str(ours), "--to=bert_jax", "--parts=generator"]) == 0
    found = figures(ours, small_store)
    assert found["mlm_loss"] == pytest.approx(rows(run.workdir, "evaluation")[-1]["mlm_loss"], rel=1e-5)
    assert "replaced_tokens_loss" not in found
    assert "has no generator" in refusal(
        capsys, "convert", ours, tmp_path / "no", "--to=huggingface", "--parts=generator"
    )


def test_a_discriminator_on_its_own_cannot_be_measured_and_says_why(run, small_store, tmp_path, capsys):
    ours = tmp_path / "ours"
    assert cli._run(["bert-jax", "convert", run.workdir, str(ours), "--to=bert_jax"]) == 0
    assert "without its generator" in refusal(capsys, "evaluate", ours, f"--data.path={small_store}")
    assert "no mlm" in refusal(capsys, "fill-mask", ours, "a [MASK]")


def test_the_generator_fills_in_masks_and_notes_what_it_would_write(run, capsys):
    generator = bert_jax.load(run.workdir, part="generator")
    (best, *_), *_ = generator.fill_mask("a [MASK]")
    capsys.readouterr()
    assert cli._run(["bert-jax", "fill-mask", run.workdir, "a [MASK]"]) == 0
    assert best.token in capsys.readouterr().out
    noted = [event for event in read_events(epath.Path(run.workdir) / "events.jsonl") if event["event"] == "sampled"]
    assert len(noted) == 2 and len(noted[-1]["samples"]) == 2
    tokens = generator.need_tokenizer().tokens
    for sample in noted[-1]["samples"]:
        ids = np.array([[tokens.index(piece) for piece in sample["text"].split()]], np.int32)
        places = np.flatnonzero(ids[0] == generator.need_tokenizer().mask_id)[None].astype(np.int32)
        ends = (ids == generator.need_tokenizer().sep_id).astype(np.int32)
        types = np.cumsum(ends, 1, dtype=np.int32) - ends  # 1 behind the first [SEP]
        batch = {"input_ids": ids, "token_type_ids": types, "attention_mask": np.ones_like(ids)}
        logits = jax.jit(generator.network.mlm_logits)(generator.params, batch | {"masked_positions": places})
        shares = np.asarray(jax.nn.softmax(logits))[0]
        for mask, share in zip(sample["masks"], shares, strict=False):
            for token, expected in mask["candidates"]:
                assert share[tokens.index(token)] == pytest.approx(expected, abs=1e-4)


def test_a_run_continues_from_both_parts_of_another(run, small_store, tmp_path):
    config = electra(small_store, tmp_path / "next", init_from=run.workdir)
    source, table = open_source(config, resumed=False), trained_parameters(config)
    assert source is not None and {*table} <= {*source.arrays}
    for part in (None, "generator"):
        there = leaf_paths(bert_jax.load(run.workdir, part=part).params)
        prefix = "" if part is None else "generator/"
        for path, array in there.items():
            np.testing.assert_array_equal(whole(source.arrays[prefix + path]), array)


def test_a_discriminator_without_a_generator_gives_it_tables_and_another_generator_is_refused(
    run, small_store, tmp_path
):
    assert cli._run(["bert-jax", "convert", run.workdir, str(tmp_path / "alone"), "--to=huggingface"]) == 0
    config = electra(small_store, tmp_path / "next", "own", init_from=str(tmp_path / "alone"))
    source = open_source(config, resumed=False)
    assert source is not None
    lacking = {path for path in trained_parameters(config) if path not in source.arrays}
    assert lacking and all(path.startswith(("generator/encoder/", "generator/mlm/")) for path in _without_map(lacking))
    tables = (whole(source.arrays[f"{part}embeddings/word/table"]) for part in ("", "generator/"))
    np.testing.assert_array_equal(*tables)
    objective = ReplacedTokens(generator=GeneratorConfig(hidden_size=8, num_heads=2))
    other = electra(small_store, tmp_path / "other", init_from=run.workdir, objective=objective)
    with pytest.raises(UserError, match=r"hidden_size is 8 here and 16 there.*--objective.generator.hidden_size=16"):
        open_source(other, resumed=False)


def _without_map(paths: set[str]) -> set[str]:
    return {path for path in paths if not path.startswith("generator/embeddings/projection/")}


def whole(array: StoredArray) -> np.ndarray:
    return array.read((slice(None),) * len(array.shape))


MESHES = {
    "8x1x1": MeshConfig(data=8),
    "1x8x1": MeshConfig(data=1, fsdp=8),
    "2x2x2": MeshConfig(data=2, fsdp=2, tensor=2),
}


@pytest.mark.parametrize("mesh", MESHES if EXHAUSTIVE else ["2x2x2"])
def test_the_losses_do_not_depend_on_mesh_micro_batches_or_how_layers_run(small_store, tmp_path, mesh):
    """Packed rows, dropout 0: which words are drawn depends on the row alone."""
    model = dataclasses.replace(DISCRIMINATOR, hidden_dropout=0.0, attention_dropout=0.0)
    data = DataConfig(path=str(small_store), held_out=0.0, loader="plain", sentence_pairs="adjacent", packing="on")
    phases = (PhaseConfig(steps=4, sequence_length=64, batch_size=16, learning_rate=2e-3, warmup_steps=1),)
    one = electra(small_store, tmp_path / "one", model=model, data=data, phases=phases)
    pretrain(one, devices=jax.devices()[:1])
    parts = (dataclasses.replace(phases[0], micro_batches=2),)
    compute = dataclasses.replace(one.compute, layers="scan", remat="full")
    several = electra(
        small_store,
        tmp_path / "several",
        model=model,
        data=data,
        phases=parts,
        compute=compute,
        mesh=MESHES[mesh],
    )
    pretrain(several, devices=jax.devices()[:8])
    for name in ("loss", "mlm_loss", "replaced_tokens_loss", "replaced_tokens_accuracy", "grad_norm"):
        found = [[row[name] for row in rows(config.workdir)] for config in (several, one)]
        np.testing.assert_allclose(*found, rtol=2e-5)
