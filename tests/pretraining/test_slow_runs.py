"""Slow runs: replaced tokens, mixtures, optimizers, growing batches."""

import dataclasses
import json
import math
import pathlib
import re
import runpy

import jax
import numpy as np
import pytest
import small_pretraining
from command_lines import refusal, succeed
from etils import epath
from pretrained_model import every_array, whole
from processes import EXHAUSTIVE
from safetensors.numpy import load_file
from small_pretraining import (
    MODEL,
    assert_filled_in,
    assert_resumed_exactly,
    nothing_held_out,
    rows,
    run_config,
    source_of,
)
from synthetic_store import SyntheticStore, random_documents, write_store

import bert_jax
from bert_jax import pretraining
from bert_jax.checkpoints.record import leaf_paths, read_record
from bert_jax.cli.evaluate import default_config, run_evaluate
from bert_jax.config import CheckpointConfig, Config, DataConfig, PhaseConfig, ReplacedTokens
from bert_jax.config.checks import check
from bert_jax.config.objective import GeneratorConfig
from bert_jax.config.pretraining import EvaluationConfig, MaskingConfig, MeshConfig, OptimizerConfig
from bert_jax.data.store import open_store
from bert_jax.errors import UserError
from bert_jax.formats.conversion import convert
from bert_jax.formats.opening import open_stored
from bert_jax.formats.own import open_checkpoint
from bert_jax.models.costs import trained_parameters
from bert_jax.pretrained.averages import average
from bert_jax.pretraining import pretrain
from bert_jax.training.events import read_events
from bert_jax.training_data import Examples, open_corpus

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
    small_pretraining.pretrain(config)
    return config


def figures(workdir, store) -> dict[str, float]:
    """What `bert-jax evaluate` measures on held-out documents."""
    config = default_config(str(workdir))
    return small_pretraining.run_evaluate(
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


def test_the_discriminator_is_measured_on_the_words_that_the_run_drew(run):
    measure = runpy.run_path(str(pathlib.Path(__file__).resolve().parents[2] / "scripts/measure_discriminator.py"))
    found, logged = measure["figures"](*measure["judged"](run.workdir, 32)), rows(run.workdir, "evaluation")[-1]
    for name in ("loss", "accuracy"):
        assert found[name] == pytest.approx(logged[f"replaced_tokens_{name}"], rel=1e-5)


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


def two_steps(store, workdir, embeddings: str) -> tuple[Config, list]:
    """A run, which is measured again as it was, and the word tables of both of its parts."""
    phases = (PhaseConfig(steps=2, sequence_length=32, batch_size=16, learning_rate=2e-3, warmup_steps=1),)
    config = electra(store, workdir, embeddings, phases=phases)
    small_pretraining.pretrain(config)
    logged = rows(config.workdir, "evaluation")[-1]["replaced_tokens_loss"]
    assert figures(config.workdir, store)["replaced_tokens_loss"] == pytest.approx(logged, rel=1e-5)
    parts = bert_jax.load(config.workdir), bert_jax.load(config.workdir, part="generator")
    return config, [each.params["embeddings"]["word"]["table"] for each in parts]


def test_differences_are_opened_as_sums_and_continue_as_they_were(small_store, tmp_path):
    config, tables = two_steps(small_store, tmp_path / "run", "disentangled")
    assert 0 < float(np.max(np.abs(tables[0] - tables[1]))) < 0.01  # two steps from nothing
    continued = dataclasses.replace(config, init_from=config.workdir, workdir=str(tmp_path / "next"))
    source = source_of(continued)
    assert source is not None and {*trained_parameters(continued.model, continued.objective)} <= {*source.arrays}
    difference = whole(source.arrays["embeddings/word/delta"])
    np.testing.assert_array_equal(whole(source.arrays["generator/embeddings/word/table"]) + difference, tables[0])


def test_tables_of_their_own_are_opened_and_measured(small_store, tmp_path):
    _, tables = two_steps(small_store, tmp_path / "run", "own")
    assert tables[0].shape == tables[1].shape and float(np.max(np.abs(tables[0] - tables[1]))) > 0.04  # two draws


def test_both_parts_are_written_for_transformers(run, tmp_path, capsys):
    for parts, kind in (("all", "ElectraForPreTraining"), ("generator", "ElectraForMaskedLM")):
        out = tmp_path / parts
        succeed("convert", run.workdir, out, "--to=huggingface", f"--parts={parts}")
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
    succeed("convert", run.workdir, ours, "--to=bert_jax", "--parts=generator")
    found = figures(ours, small_store)
    assert found["mlm_loss"] == pytest.approx(rows(run.workdir, "evaluation")[-1]["mlm_loss"], rel=1e-5)
    assert "replaced_tokens_loss" not in found
    assert "has no generator" in refusal(
        capsys, "convert", ours, tmp_path / "no", "--to=huggingface", "--parts=generator"
    )


def test_a_discriminator_on_its_own_cannot_be_measured_and_says_why(run, small_store, tmp_path, capsys):
    ours = tmp_path / "ours"
    succeed("convert", run.workdir, ours, "--to=bert_jax")
    assert "without its generator" in refusal(capsys, "evaluate", ours, f"--data.path={small_store}")
    assert "no mlm" in refusal(capsys, "fill-mask", ours, "a [MASK]")


def test_the_generator_fills_in_masks_and_notes_what_it_would_write(run, capsys):
    generator = bert_jax.load(run.workdir, part="generator")
    (best, *_), *_ = generator.fill_mask("a [MASK]")
    capsys.readouterr()
    succeed("fill-mask", run.workdir, "a [MASK]")
    assert best.token in capsys.readouterr().out
    noted = [event for event in read_events(epath.Path(run.workdir) / "events.jsonl") if event["event"] == "sampled"]
    assert len(noted) == 2 and len(noted[-1]["samples"]) == 2
    assert_filled_in(generator, noted[-1]["samples"])


def test_a_run_continues_from_both_parts_of_another(run, small_store, tmp_path):
    config = electra(small_store, tmp_path / "next", init_from=run.workdir)
    source, table = source_of(config), trained_parameters(config.model, config.objective)
    assert source is not None and {*table} <= {*source.arrays}
    for part in (None, "generator"):
        there = leaf_paths(bert_jax.load(run.workdir, part=part).params)
        prefix = "" if part is None else "generator/"
        for path, array in there.items():
            np.testing.assert_array_equal(whole(source.arrays[prefix + path]), array)


def test_a_discriminator_without_a_generator_gives_it_tables_and_another_is_refused(run, small_store, tmp_path):
    succeed("convert", run.workdir, tmp_path / "alone", "--to=huggingface")
    config = electra(small_store, tmp_path / "next", "own", init_from=str(tmp_path / "alone"))
    source = source_of(config)
    assert source is not None
    lacking = {path for path in trained_parameters(config.model, config.objective) if path not in source.arrays}
    assert lacking and all(path.startswith(("generator/encoder/", "generator/mlm/")) for path in _without_map(lacking))
    tables = (whole(source.arrays[f"{part}embeddings/word/table"]) for part in ("", "generator/"))
    np.testing.assert_array_equal(*tables)
    objective = ReplacedTokens(generator=GeneratorConfig(hidden_size=8, num_heads=2))
    other = electra(small_store, tmp_path / "other", init_from=run.workdir, objective=objective)
    with pytest.raises(UserError, match=r"hidden_size is 8 here and 16 there.*--objective.generator.hidden_size=16"):
        source_of(other)


def _without_map(paths: set[str]) -> set[str]:
    return {path for path in paths if not path.startswith("generator/embeddings/projection/")}


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
        small_store, tmp_path / "several", model=model, data=data, phases=parts, compute=compute, mesh=MESHES[mesh]
    )
    pretrain(several, devices=jax.devices()[:8])
    for name in ("loss", "mlm_loss", "replaced_tokens_loss", "replaced_tokens_accuracy", "grad_norm"):
        found = [[row[name] for row in rows(config.workdir)] for config in (several, one)]
        np.testing.assert_allclose(*found, rtol=2e-5)


PHASE = PhaseConfig(steps=4, sequence_length=32, batch_size=16, learning_rate=1e-2, warmup_steps=2)


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    directory = tmp_path_factory.mktemp("mixed")
    wiki, books = (SyntheticStore(random_documents(count, count), count) for count in (60, 20))
    books.all_tokens[books.all_tokens > 5] %= 50  # few words, soon learned
    books.all_tokens[books.all_tokens < 5] = 6
    return {name: write_store(store, directory / name, 1000) for name, store in (("wiki", wiki), ("books", books))}


def mixed(stores, workdir, shares=(0.75, 0.25), later=(0.25, 0.75)):
    text = ",".join(f"{path}={share}" for path, share in zip(stores.values(), shares, strict=True))
    second = ",".join(f"{path}={share}" for path, share in zip(stores.values(), later, strict=True))
    return run_config(
        "",
        workdir,
        data=DataConfig(mixture=text, held_out=0.2, loader="plain"),
        phases=(PHASE, dataclasses.replace(PHASE, mixture=second, warmup_steps=None)),
        evaluation=EvaluationConfig(every_steps=4, sequences=32, batch_size=16),
        checkpoint=CheckpointConfig(every_steps=1, keep_last=9, keep_best=0),
    )


@pytest.fixture(scope="module")
def run_of_mixture(stores, tmp_path_factory):
    config = mixed(stores, tmp_path_factory.mktemp("mixture") / "run")
    pretraining.pretrain(config, devices=jax.devices()[:1])
    return config


def predictions(config, path) -> float:
    """The predictions of the sequences that a store is measured on."""
    examples = Examples(open_store(str(path)), config, 0, split="held_out", seed=2019)
    return float(examples.batch(np.arange(config.evaluation.sequences))["masked_weights"].sum())


def test_a_run_is_measured_on_each_store_and_on_its_mixture(run_of_mixture, stores):
    """The loss of the mixture is that of all predictions, those of a store weighed with its share."""
    first, last = rows(run_of_mixture.workdir, "evaluation")
    for row, shares in ((first, (0.75, 0.25)), (last, (0.25, 0.75))):
        losses = [row[f"{name}/mlm_loss"] for name in stores]
        assert losses[0] - losses[1] > 0.01
        weights = [share * predictions(run_of_mixture, p) for share, p in zip(shares, stores.values(), strict=True)]
        assert row["mlm_loss"] == pytest.approx(np.average(losses, weights=weights), rel=1e-6)
        assert {"wiki/next_sentence_accuracy", "books/mlm_loss", "books/perplexity"} < row.keys()


def test_each_store_is_measured_by_evaluate_on_what_it_holds_out(run_of_mixture, stores, tmp_path, capsys):
    """The other road to the same figure: the command, on one store, also of an average of the step with itself."""
    last = rows(run_of_mixture.workdir, "evaluation")[-1]
    average([f"{run_of_mixture.workdir}:8", run_of_mixture.workdir], tmp_path / "average")
    for name, path in stores.items():
        for workdir in (run_of_mixture.workdir, str(tmp_path / "average")):
            config = default_config(workdir)
            config = check(dataclasses.replace(config, data=dataclasses.replace(config.data, path=str(path))))
            found = run_evaluate(workdir, config, devices=jax.devices()[:1])
            assert found.metrics["mlm_loss"] == pytest.approx(last[f"{name}/mlm_loss"], rel=1e-6)
            assert "held-out documents" in capsys.readouterr().out


def test_a_resumed_run_is_the_same_across_a_change_of_weights(run_of_mixture):
    for step in (3, 4, 5):  # before the weights change, where they do, and after it
        assert_resumed_exactly(run_of_mixture, range(step + 1, 9))


def test_other_weights_do_not_resume_a_run_and_moved_stores_do(run_of_mixture, stores, tmp_path):
    other = mixed(stores, run_of_mixture.workdir, later=(0.5, 0.5))
    with pytest.raises(UserError, match="holds a run with different settings .*store_fingerprint"):
        pretraining.pretrain(other, devices=jax.devices()[:1])
    moved = {}
    for name, path in stores.items():
        (tmp_path / f"moved_{name}").symlink_to(path)
        moved[name] = tmp_path / f"moved_{name}"
    result = pretraining.pretrain(mixed(moved, run_of_mixture.workdir), devices=jax.devices()[:1])
    assert (result.step, result.exit_code) == (8, 0)


def test_it_says_how_often_a_store_smaller_than_its_budget_is_read(stores, tmp_path, caplog, capsys, monkeypatch):
    tokens = open_store(str(stores["books"])).manifest.counts.tokens
    assert tokens < 45_000
    mixture = f"{stores['wiki']}=3K,{stores['books']}=45K"
    small = ("hidden_size=32", "num_layers=1", "num_heads=2", "max_position_embeddings=32")
    words = [*(f"--model.{word}" for word in small), "--steps=2", "--batch_size=16", "--sequence_length=32"]
    words += [f"--data.mixture={mixture}", "--data.held_out=0", f"--workdir={tmp_path / 'run'}"]
    succeed("pretrain", "bert_tiny", *words)
    (line,) = [record.getMessage() for record in caplog.records if "fewer than its budget" in record.getMessage()]
    assert f"books has {tokens:,} tokens, fewer than its budget of 45,000: each is read " in line
    times = float(line.split("each is read ")[1].removesuffix(" times"))
    epochs = re.search(r"books \(([\d.e-]+) epochs\)", capsys.readouterr().out)
    assert epochs and times == pytest.approx(float(epochs[1]), rel=2e-3)


PHASES = (
    PhaseConfig(steps=3, sequence_length=48, batch_size=8, learning_rate=1e-2, warmup_steps=1),
    PhaseConfig(steps=3, sequence_length=48, batch_size=8, learning_rate=1e-2, moments="reset"),
)


@pytest.fixture(scope="module")
def finished(small_store, tmp_path_factory):
    config = run_config(
        small_store,
        tmp_path_factory.mktemp("average") / "run",
        optimizer=OptimizerConfig(name="muon", ema_decay=0.999),
        data=DataConfig(path=str(small_store), held_out=0.1, loader="plain"),
        phases=PHASES,
        checkpoint=CheckpointConfig(every_steps=1, keep_last=9, keep_best=0),
    )
    pretrain(config, devices=jax.devices()[:1])
    return config


def values(path, weights) -> dict[str, np.ndarray]:
    return every_array(open_checkpoint(path, weights))


def test_the_average_of_a_run_follows_its_weights_over_fresh_moments(finished):
    steps = [f"{finished.workdir}/checkpoints/step_{step:09d}" for step in range(1, 7)]
    average = values(steps[0], "ema")
    for step, path in enumerate(steps[1:], 1):
        weights, found = values(path, "last"), values(path, "ema")
        assert found.keys() == weights.keys()
        share = 1 - (1 + step) / (10 + step)
        for name in found:
            expected = average[name] + share * (weights[name] - average[name])
            np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-7)
        average = found


def test_both_are_evaluated_by_name(finished):
    (row,) = rows(finished.workdir, "evaluation")[-1:]
    for name in ("mlm_loss", "mlm_accuracy", "next_sentence_loss"):
        assert f"ema_{name}" in row and name in row
    assert row["ema_mlm_loss"] != row["mlm_loss"]


def test_resume_is_bit_identical(finished):
    last = f"{finished.workdir}/checkpoints/step_000000006"
    before = {weights: values(last, weights) for weights in ("last", "ema")}
    assert_resumed_exactly(finished, (4, 5, 6))
    for weights, arrays in before.items():
        jax.tree.map(np.testing.assert_array_equal, values(last, weights), arrays)


def test_the_average_is_written(finished, tmp_path):
    average, weights = values(finished.workdir, "ema"), values(finished.workdir, "last")
    convert(finished.workdir, tmp_path / "out", to="huggingface", weights="ema")
    written = every_array(open_stored(tmp_path / "out"))
    for name, array in written.items():
        np.testing.assert_array_equal(array, average[name])
    assert any(np.any(average[name] != weights[name]) for name in written)
    with pytest.raises(UserError, match="is not a run of bert_jax"):
        convert(tmp_path / "out", tmp_path / "again", to="bert_jax", weights="ema")
    convert(finished.workdir, tmp_path / "ours", to="bert_jax")
    with pytest.raises(UserError, match="holds no moving average"):
        convert(tmp_path / "ours", tmp_path / "again", to="bert_jax", weights="ema")


PLAIN = PhaseConfig(steps=7, sequence_length=48, batch_size=16, learning_rate=1e-3, warmup_steps=2)
RAMPED = dataclasses.replace(PLAIN, ramp_batch_sizes=(4, 8), ramp_steps=4)
SIZES = [4, 4, 8, 8, 16, 16, 16]


def config_of(store, workdir, phase):
    checkpoint = CheckpointConfig(every_steps=1, keep_last=9, keep_best=0)
    return run_config(store, workdir, phases=(phase,), data=nothing_held_out(store), checkpoint=checkpoint)


def seen(monkeypatch, config) -> list[np.ndarray]:
    """The ids of every batch of a run, which is made."""
    found, stream = [], pretraining.batches

    def noted(*args, **options):
        for batch in stream(*args, **options):
            found.append(np.asarray(batch["input_ids"]))
            yield batch

    with monkeypatch.context() as patch:
        patch.setattr(pretraining, "batches", noted)
        pretraining.pretrain(config, devices=jax.devices()[:1])
    return found


def test_the_examples_are_those_without_a_ramp_and_a_resumed_run_is_the_same(small_store, tmp_path, monkeypatch):
    plain = open_corpus(config_of(small_store, tmp_path / "plain", PLAIN)).training[0]
    config = config_of(small_store, tmp_path / "ramped", RAMPED)
    ramped = seen(monkeypatch, config)
    assert [len(batch) for batch in ramped] == SIZES
    whole = np.concatenate(ramped)
    np.testing.assert_array_equal(whole, plain.batch(np.arange(sum(SIZES)))["input_ids"])
    last = read_record(tmp_path / "ramped/checkpoints/step_000000007/record")
    assert last["position"] == {"phase": 0, "examples_seen": sum(SIZES)}
    for step in (3, 2):  # inside a stage, and where one ends
        assert_resumed_exactly(config, range(step + 1, 8))


def test_every_batch_of_a_ramp_must_fit_the_devices(small_store, tmp_path):
    config = config_of(small_store, tmp_path / "run", RAMPED)
    with pytest.raises(UserError, match="ramp_batch_sizes=4,8: 4 is not divisible by 8"):
        pretraining.pretrain(dataclasses.replace(config, mesh=MeshConfig(data=8)), devices=jax.devices()[:8])
