"""Work directories of fine-tuning: what a command started again does over, what it refuses, and which weights stay."""

import dataclasses
import json
import pathlib
import shutil

import jax
import pytest
from one_device import finetune, run_predict
from small_finetuning import MODEL, Killed, run_config, sentences

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.config import ComputeConfig
from bert_jax.config.finetuning import PredictConfig, SentenceOptions, SquadOptions, TextDataConfig
from bert_jax.errors import UserError
from bert_jax.finetuning import loop
from bert_jax.formats.opening import open_stored, place
from bert_jax.tasks import squad, squad_files
from bert_jax.tasks.task_data import Split, _fingerprint, read_task
from bert_jax.tokenization.tokenizer import load_tokenizer
from bert_jax.training.reporter import Reporter


def test_every_gold_answer_is_part_of_the_data_s_fingerprint(pretrained):
    """Of SQuAD, training reads one answer of a question, the metric all of them."""

    def fingerprint(*answers):
        question = squad_files.Question("q", "where?", 0, answers, (3, 9))
        examples = squad_files.Examples("squad_v1", ("in France",), (question,), True)
        return _fingerprint([Split(examples, squad.features(examples, tokenizer, options))])

    tokenizer, options = (
        load_tokenizer(pretrained / "vocab.txt"),
        SquadOptions(max_length=24, max_query_length=6, doc_stride=8),
    )
    assert fingerprint("France") == fingerprint("France") != fingerprint("France", "Paris")


@pytest.mark.slow
def test_the_same_command_again_trains_nothing(two_seeds, monkeypatch):
    config, results = two_seeds
    monkeypatch.setattr(loop, "train_run", lambda *_: pytest.fail("a finished run was repeated"))
    left = pathlib.Path(config.workdir) / "runs" / results["runs"][0]["run"] / "training"
    left.mkdir()  # as by a kill right before it was removed
    with monkeypatch.context() as patch:
        patch.setattr(loop, "predict_logits", lambda *_: pytest.fail("predictions were made again"))
        again = finetune(config).results
    assert {**again, "versions": 0} == {**results, "versions": 0} and not left.exists()


def test_a_new_test_set_is_predicted_by_the_finished_model(two_seeds, pretrained, tmp_path, monkeypatch):
    config, results = two_seeds
    shutil.copytree(config.workdir, tmp_path / "work")
    shutil.copytree(pretrained / "data", tmp_path / "data")
    (tmp_path / "data" / "test.tsv").write_text(sentences(30, 1))
    monkeypatch.setattr(loop, "train_run", lambda *_: pytest.fail("a finished run was repeated"))
    config = dataclasses.replace(
        config, workdir=str(tmp_path / "work"), data=TextDataConfig(dir=str(tmp_path / "data"))
    )
    again = finetune(config).results
    assert again["tests"]["test"]["accuracy"] > 0.8 and again["data"]["test"] == 30


def test_predictions_that_are_gone_are_made_again(two_seeds, tmp_path):
    work = tmp_path / "work"
    shutil.copytree(two_seeds[0].workdir, work)
    config = dataclasses.replace(two_seeds[0], workdir=str(work))
    (file,) = (work / "predictions" / "test").iterdir()
    before = file.read_bytes()
    file.unlink()
    finetune(config)
    assert file.read_bytes() == before
    assert {start["devices"] for start in json.loads((work / "run.json").read_text())["starts"]} == {1}


def test_a_run_that_was_trained_again_elsewhere_is_published_again(two_seeds, tmp_path):
    """Its name is that of the run whose weights lie on top, its figures are not."""
    work = tmp_path / "work"
    shutil.copytree(two_seeds[0].workdir, work)
    record = work / "runs" / two_seeds[1]["chosen"]["run"] / "results.json"
    content = json.loads(record.read_text())
    content["metrics"]["matthews"] = 0.123
    record.write_text(json.dumps(content))
    results = finetune(dataclasses.replace(two_seeds[0], workdir=str(work))).results
    assert results["metrics"] == open_stored(work).history["metrics"] == content["metrics"]


def test_other_names_of_the_same_test_examples_are_other_predictions(pretrained):
    config = run_config(pretrained, "unused")
    data = read_task(config, MODEL, load_tokenizer(pretrained / "vocab.txt"))
    test = data.tests["test"]
    renamed = dataclasses.replace(test.examples, index=[f"id-{name}" for name in test.examples.index])
    other = dataclasses.replace(data, tests={"test": Split(renamed, test.features)})
    assert data.test_fingerprint() != other.test_fingerprint() and data.fingerprint() == other.fingerprint()


@pytest.mark.slow
def test_weights_that_an_earlier_command_removed_are_named(pretrained, tmp_path, caplog):
    config = run_config(pretrained, tmp_path / "work", epochs=1, seeds=2)
    chosen = finetune(config).results["chosen"]["run"]
    (lost,) = {f"batch16_rate0.002_epochs1_seed{seed}" for seed in (0, 1)} - {chosen}
    finetune(dataclasses.replace(config, keep="all"))
    runs = tmp_path / "work" / "runs"
    gone = "the weights of {} are gone, an earlier command kept only the best; {}"
    assert gone.format(lost, f"remove {runs / lost} to train it again") in caplog.text
    assert gone.format(chosen, f"they are those of {tmp_path / 'work'} itself") in caplog.text
    shutil.rmtree(runs / lost)
    finetune(dataclasses.replace(config, keep="all"))
    assert load_tokenizer(runs / lost / "tokenizer").vocab_size and open_stored(runs / lost)
    finetune(config)
    assert open_stored(runs / lost), "weights that were kept on purpose were removed by a later command"


def test_the_parameters_begun_with_are_known_by_their_values(two_seeds, pretrained, tmp_path):
    """Not by where they lie: the same elsewhere are the same, others in the same place are not."""
    config, results = two_seeds
    shutil.copytree(config.workdir, tmp_path / "work")
    shutil.copytree(pretrained / "pretrained", tmp_path / "moved")
    config = dataclasses.replace(config, workdir=str(tmp_path / "work"), init_from=str(tmp_path / "moved"))
    assert finetune(config).results["runs"] == results["runs"]
    with Checkpoints(tmp_path / "moved" / "checkpoints") as checkpoints:  # pre-training goes on
        stored = open_stored(tmp_path / "moved")
        params = jax.tree.map(lambda value: value + 1, place(stored))
        checkpoints.save(1, {"params": params}, position={}, config=stored.history["config"])
    with pytest.raises(UserError, match="init_from_fingerprint"):
        finetune(dataclasses.replace(config, seeds=3))


@pytest.mark.slow
def test_a_run_that_has_saved_nothing_may_be_started_with_other_settings(pretrained, tmp_path, monkeypatch):
    config = run_config(pretrained, tmp_path / "work", epochs=1)
    with monkeypatch.context() as patch:
        # Such as: out of memory.
        patch.setattr(Reporter, "dispatched", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            finetune(config)
    assert list((tmp_path / "work" / "runs").iterdir())
    finetune(dataclasses.replace(config, options=SentenceOptions(max_length=12)))
    with pytest.raises(UserError, match="max_length"):
        finetune(config)


def test_a_directory_of_another_run_is_refused_unchanged(two_seeds, pretrained, tmp_path):
    config, _ = two_seeds
    other = TextDataConfig(dir=str(pretrained / "data"), train=str(pretrained / "data/dev.tsv"))
    for changes, message in (
        ({"layer_decay": 0.5}, "finetune.layer_decay: 1.0 → 0.5"),
        ({"data": other}, "features_fingerprint"),
        ({"options": SentenceOptions(max_length=12)}, "max_length"),
        ({"init_from": str(config.workdir)}, "init_from"),
        ({"options": SentenceOptions(max_length=64)}, "32 positions"),
        ({"compute": ComputeConfig(dtype="bfloat16")}, "compute.dtype: auto → bfloat16"),
    ):
        with pytest.raises(UserError, match=message):
            finetune(dataclasses.replace(config, **changes))
    with pytest.raises(UserError, match="pre-training|config.json"):
        finetune(dataclasses.replace(config, workdir=str(pretrained / "pretrained")))
    (tmp_path / "none").mkdir()
    with pytest.raises(UserError, match="no task head"):
        run_predict(str(pretrained / "pretrained"), PredictConfig(input=__file__, output="b"))
