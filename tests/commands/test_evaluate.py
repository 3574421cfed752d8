"""`bert-jax evaluate` of models from elsewhere: converted ones, whole and in parts, and what it refuses."""

import dataclasses
import json

import numpy as np
import numpy_bert
import pytest
from command_lines import refusal, succeed
from model_variants import variant
from pretrained_model import CONFIG, PARTS, stored_model
from task_models import write_model

from bert_jax.cli.evaluate import default_config
from bert_jax.config import Config, DataConfig, EmbeddingConfig, HeadConfig, MeshConfig, PhaseConfig, resolve_phases
from bert_jax.config.checks import check
from bert_jax.config.options import to_dict
from bert_jax.console import load_config
from bert_jax.data.mixtures import HeldOut
from bert_jax.data.store import open_store
from bert_jax.devices import sharding
from bert_jax.formats import conversion
from bert_jax.formats.conversion import write_bert_jax
from bert_jax.formats.huggingface_export import write_huggingface
from bert_jax.parameters import entries
from bert_jax.pretrained.averages import average
from bert_jax.pretrained.model import load
from bert_jax.pretraining import default_objective
from bert_jax.training.evaluation import Evaluation
from bert_jax.training_data import held_out_examples

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def source(small_store):
    """Random parameters for the vocabulary of the small store, as a reader would describe them."""
    tokenizer = open_store(str(small_store)).tokenizer()
    config = dataclasses.replace(CONFIG, vocab_size=tokenizer.vocab_size)

    def make(parts=PARTS, head=None, **sizes):
        return stored_model(variant(config, **sizes), parts, head, tokenizer, kind="bert_jax")

    return make


def evaluate(directory, store, capsys, *options: str) -> tuple[dict, str]:
    """The figures and what is printed above them."""
    capsys.readouterr()
    words = ["evaluate", directory, f"--data.path={store}", "--evaluation.sequences=32", "--evaluation.batch_size=16"]
    succeed(*words, *options)
    *above, figures = capsys.readouterr().out.splitlines()
    return json.loads(figures), "\n".join(above)


def measured_batches(model, store, config, split="all"):
    """The sequences of all documents, or of those held out, as `evaluate` above measures them."""
    config = dataclasses.replace(config, evaluation=dataclasses.replace(config.evaluation, sequences=32, batch_size=16))
    mesh = sharding.make_mesh(MeshConfig())
    evaluation = Evaluation(
        default_objective(model.network, config),
        config.evaluation,
        held_out_examples(config, resolve_phases(config)[0], [HeldOut("", open_store(str(store)), split)]),
        {"": 1.0},
        mesh,
        sharding.shardings(mesh, entries(model.network.parameters, model.params)),
    )
    return evaluation._parts[0].batches(mesh)


def expected(directory, store, length: int, held_out: float | None = None) -> dict[str, float]:
    """The figures by the float64 model in NumPy, on all documents or on a share of them that is held out."""
    model, words, pairs = load(directory), [], []
    config = Config(data=DataConfig(held_out=held_out or 0.0), phases=(PhaseConfig(sequence_length=length),))
    for batch in measured_batches(model, store, config, "all" if held_out is None else "held_out"):
        output = numpy_bert.forward(model.params, model.config, batch)
        chances = np.log(numpy_bert.softmax(output["mlm_logits"]))
        real = batch["masked_weights"] > 0
        right = chances.argmax(-1) == batch["masked_ids"]
        chosen = np.take_along_axis(chances, batch["masked_ids"][:, :, None], axis=-1)[:, :, 0]
        words += [*zip(chosen[real], right[real])]
        labels, follows = batch["next_sentence_labels"], np.log(numpy_bert.softmax(output["next_sentence_logits"]))
        pairs += [*zip(follows[np.arange(len(labels)), labels], follows.argmax(-1) == labels)]
    (mlm_loss, mlm_accuracy), (pair_loss, pair_accuracy) = np.mean(words, axis=0), np.mean(pairs, axis=0)
    return {
        "mlm_loss": -mlm_loss,
        "perplexity": np.exp(-mlm_loss),
        "mlm_accuracy": mlm_accuracy,
        "next_sentence_loss": -pair_loss,
        "next_sentence_accuracy": pair_accuracy,
    }


def test_a_model_from_hugging_face_is_measured(source, small_store, tmp_path, capsys):
    (tmp_path / "theirs").mkdir()
    write_huggingface(source(), tmp_path / "theirs", "theirs")
    succeed("convert", f"{tmp_path}/theirs", f"{tmp_path}/ours", "--to=bert_jax")
    figures, said = evaluate(tmp_path / "ours", small_store, capsys)
    assert figures.pop("step") == 0 and figures == pytest.approx(expected(tmp_path / "ours", small_store, 40), rel=1e-4)
    assert "all documents; what it was trained on is unknown" in said and "Sequences of 40 tokens" in said
    assert "word frequencies alone" in said
    for title in ("Masked language model: loss", "Masked language model: perplexity", "Next sentence: accuracy"):
        assert title in said
    shorter, said = evaluate(tmp_path / "ours", small_store, capsys, "--sequence_length=24")
    assert shorter["mlm_loss"] == pytest.approx(expected(tmp_path / "ours", small_store, 24)["mlm_loss"], rel=1e-4)
    assert "Sequences of 24 tokens" in said
    says = refusal(capsys, "evaluate", f"{tmp_path}/theirs", f"--data.path={small_store}")
    assert f"convert the model first: bert-jax convert {tmp_path}/theirs NEW --to=bert_jax" in says


def test_an_average_is_measured_on_what_all_of_its_models_have_held_out(source, small_store, tmp_path, capsys):
    """The first has read the store in a mixture; the last, of the same values, another one, and holds more out."""
    fingerprint = open_store(str(small_store)).fingerprint
    mixed = {"store_fingerprint": "both", "store_fingerprints": ["books", fingerprint]}
    for name, run, held_out in (("first", mixed, 0.1), ("last", {"store_fingerprint": "wiki"}, 0.2)):
        stored, phases = source(num_layers=1), (PhaseConfig(sequence_length=40),)
        config = Config(model=stored.model, data=DataConfig(held_out=held_out), phases=phases)
        stored = dataclasses.replace(stored, history={"step": 3, "config": to_dict(config), "run": run})
        (tmp_path / name).mkdir()
        write_bert_jax(stored, tmp_path / name)
    average([tmp_path / "first", tmp_path / "last"], tmp_path / "average")
    conversion.convert(tmp_path / "average", tmp_path / "copy", to="bert_jax")
    recorded = json.loads((tmp_path / "copy" / "run.json").read_text())
    assert recorded["store_fingerprints"] == ["books", fingerprint, "wiki"] and "store_fingerprint" not in recorded
    figures, said = evaluate(tmp_path / "copy", small_store, capsys)
    conversion.convert(tmp_path / "copy", tmp_path / "theirs", to="huggingface")
    assert f"| books, {fingerprint}, wiki |" in (tmp_path / "theirs" / "README.md").read_text()
    wanted = {"step": 3, **expected(tmp_path / "first", small_store, 40, held_out=0.1)}
    assert figures == pytest.approx(wanted, rel=1e-4) and "(held-out documents)" in said


def without(stored, *parts: str):
    """The same parameters but for these parts."""
    kept = {path: array for path, array in stored.arrays.items() if path.split("/")[0] not in parts}
    return dataclasses.replace(stored, arrays=kept)


def test_a_model_without_one_of_the_heads_has_the_other_figures(source, small_store, tmp_path, capsys):
    whole = source()
    models = {
        "all": whole,
        "only words": without(whole, "pooler", "next_sentence"),
        "only pairs": without(whole, "mlm"),
    }
    for name, stored in models.items():
        (tmp_path / name).mkdir()
        write_bert_jax(stored, tmp_path / name)
    everything = expected(tmp_path / "all", small_store, 40)
    of_pairs = {name: value for name, value in everything.items() if name.startswith("next")}
    of_words = {name: value for name, value in everything.items() if name not in of_pairs}
    for name, wanted in (("only words", of_words), ("only pairs", of_pairs)):
        figures, said = evaluate(tmp_path / name, small_store, capsys)
        assert figures == pytest.approx({"step": 0, **wanted}, rel=1e-4)
    assert "MLM" not in said
    says = refusal(
        capsys, "evaluate", f"{tmp_path}/only pairs", f"--data.path={small_store}", "--data.sentence_pairs=none"
    )
    assert "no head for masked words (apart from the encoder: next_sentence, pooler)" in says


def test_one_segment_is_measured_without_pairs(source, small_store, tmp_path, capsys):
    write_bert_jax(source(("mlm",), type_vocab_size=1), tmp_path)
    figures, said = evaluate(tmp_path, small_store, capsys)
    assert set(figures) == {"step", "mlm_loss", "perplexity", "mlm_accuracy"} and "data.sentence_pairs=none" in said


@pytest.mark.parametrize(
    "form, objective",
    [
        ({"pair_head": False}, "masked_words"),
        ({"direction": "left_to_right"}, "left_to_right"),
        ({"layer": "lstm", "direction": "left_to_right"}, "left_to_right"),
        ({"layer": "lstm"}, "two_directions"),
        ({"positions": "xlnet", "type_vocab_size": 4, "pair_head": False}, "permutation"),
    ],
    ids=str,
)
def test_a_converted_model_is_measured_by_the_objective_of_its_form(source, tmp_path, form, objective):
    write_bert_jax(source(("mlm",), **form), tmp_path)
    config = check(default_config(str(tmp_path)))
    assert (config.objective.name, config.data.sentence_pairs) == (objective, "none")


def test_a_converted_model_from_left_to_right_is_measured_on_its_next_words(source, small_store, tmp_path, capsys):
    """Every token but the first of a text, from those before it alone, by the float64 model in NumPy."""
    write_bert_jax(source(direction="left_to_right"), tmp_path)
    figures, _ = evaluate(tmp_path, small_store, capsys)
    model, words = load(tmp_path), []
    for batch in measured_batches(model, small_store, default_config(str(tmp_path))):
        ids, mask = batch["input_ids"], batch["attention_mask"]
        everywhere = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
        seen = np.tril(np.ones((ids.shape[1], ids.shape[1]))) * mask[:, None, :]
        output = numpy_bert.forward(
            model.params, model.config, batch | {"masked_positions": everywhere}, [seen] * model.config.num_layers
        )
        chances = np.log(numpy_bert.softmax(output["mlm_logits"]))
        for row, place in zip(*np.nonzero(mask[:, 1:]), strict=True):
            of_next, word = chances[row, place], ids[row, place + 1]
            words.append((of_next[word], of_next.argmax() == word))
    loss, accuracy = np.multiply(np.mean(words, axis=0), (-1, 1))
    expected = {"step": 0, "next_word_loss": loss, "perplexity": np.exp(loss), "next_word_accuracy": accuracy}
    assert len(words) > 100 and figures == pytest.approx(expected, rel=1e-4)


def test_what_cannot_be_measured_is_one_line(source, small_store, tmp_path, capsys):
    models = {
        "bare": source(()),
        "tuned": source(head=HeadConfig(labels=("a", "b"))),
        "wordless": source(),
        "foreign": stored_model(kind="tf1"),
    }
    models["wordless"] = dataclasses.replace(models["wordless"], tokenizer=None)
    for name, stored in models.items():
        (tmp_path / name).mkdir()
        write_bert_jax(stored, tmp_path / name)
    for name, says in (
        ("bare", "has no head for masked words or pairs (apart from the encoder: nothing)"),
        ("tuned", "holds a fine-tuned model, but evaluate measures the objectives of pre-training"),
        ("wordless", "has no vocabulary"),
        ("foreign", f"prepare the corpus again with --vocab={tmp_path}/foreign/tokenizer"),
    ):
        assert says in refusal(capsys, "evaluate", f"{tmp_path}/{name}", f"--data.path={small_store}")
    assert "data.path is missing: it is the store to measure" in refusal(capsys, "evaluate", f"{tmp_path}/foreign")
    assert "sequence_length=128 is longer than model.max_position_embeddings=40" in refusal(
        capsys, "evaluate", f"{tmp_path}/foreign", f"--data.path={small_store}", "--sequence_length=128"
    )


def test_the_encoder_of_a_fine_tuned_model_is_no_fine_tuned_model(tmp_path, small_store, capsys):
    """Its record once had "pairs", which is no option of pre-training: `evaluate` said so, not what is missing."""
    write_model(tmp_path / "tuned", "text", pairs=False)
    conversion.convert(tmp_path / "tuned", tmp_path / "encoder", to="bert_jax", parts="encoder")
    assert default_config(str(tmp_path / "encoder")).model.num_layers == CONFIG.num_layers
    said = refusal(capsys, "evaluate", f"{tmp_path}/encoder", f"--data.path={small_store}")
    assert "has no head for masked words or pairs (apart from the encoder: pooler)" in said


def test_the_configuration_of_a_saved_model_can_be_opened(source, tmp_path):
    """With the options that only models have: how vectors are made of texts, or the task it was fine-tuned on."""
    saved = dataclasses.replace(source(), embedding=EmbeddingConfig(pooling="cls"))
    (tmp_path / "saved").mkdir()
    write_bert_jax(saved, tmp_path / "saved")
    assert "embedding" in json.loads((tmp_path / "saved" / "config.json").read_text())
    write_model(tmp_path / "tuned", "text", pairs=False)
    conversion.convert(tmp_path / "tuned", tmp_path / "copy", to="bert_jax")
    assert load_config(str(tmp_path / "saved" / "config.json")) == Config(model=saved.model)
    assert load_config(str(tmp_path / "copy" / "config.json")).model.num_layers == CONFIG.num_layers


def test_an_option_without_effect_on_a_run_is_refused(small_store, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(json.dumps(to_dict(Config(workdir=f"{tmp_path}/run"))))
    words = ("evaluate", f"{tmp_path}/run", f"--data.path={small_store}")
    said = refusal(capsys, *words, "--masking.rate=0.4", "--evaluation.sequences=32")
    assert "these changes have no effect: masking.rate: 0.15 → 0.4; leave them out" in said
    assert "no effect" not in refusal(capsys, *words, "--evaluation.sequences=32")  # there is no checkpoint
