"""Parameters edited in Python: they count at once, misfits are named, and every command opens what `save` writes."""

import json

import jax
import numpy as np
import numpy_bert
import pytest
import started_workdir
from loaded_model import SMALL, compilations, loaded, row_by_row
from pretrained_model import TOKENIZER, contents, stored_model, write_workdir

import bert_jax
from bert_jax import cli
from bert_jax.config import ComputeConfig, Config, HeadConfig
from bert_jax.config.finetuning import task_defaults
from bert_jax.config.json_form import to_dict, with_options
from bert_jax.errors import UserError
from bert_jax.formats.conversion import convert
from bert_jax.formats.opening import open_stored
from bert_jax.pretrained.model import as_stored
from bert_jax.tasks.task_data import recorded_options

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
TEXT = "the cat sat on the mat ."


def model_of(task: str = "", **head):
    """A pre-trained model, or one fine-tuned on `task`, with the options and metrics of its training."""
    finetune = with_options(task_defaults(task or "text"), {"options.max_length": 12})
    history = {
        "step": 7,
        "metrics": {"best_f1_thresh": -40.0},
        "config": {"seed": 3} | ({"finetune": to_dict(finetune), "pairs": None} if task else {}),
        "run": {"store_fingerprint": "f00d", "starts": []},
    }
    return loaded(
        stored_model(config=SMALL, head=HeadConfig(**head) if task else None, kind="bert_jax", history=history)
    )


def edited(model) -> None:
    """Every parameter changed, by NumPy and JAX, as a whole and entry by entry."""
    model.params = jax.tree.map(lambda leaf: leaf * 0.75, model.params)
    model.params["embeddings"]["word"]["table"] = np.asarray(model.params["embeddings"]["word"]["table"]) + np.float32(
        0.125
    )
    model.params["encoder"] = jax.tree.map(lambda leaf: leaf + 0.01, model.params["encoder"])


def test_what_is_edited_counts_at_once():
    model = model_of()
    before = model.encode(TEXT)
    edited(model)
    assert set(model.params["encoder"]["attention"]) == {"query", "key", "value", "output"}
    expected, found = row_by_row(model, TEXT), model.encode(TEXT)
    assert np.abs(found.last_hidden_state - before.last_hidden_state).max() > 0.1
    np.testing.assert_allclose(found.last_hidden_state[0], expected["last_hidden_state"][0], atol=2e-5)
    np.testing.assert_allclose(model.embed(TEXT), [expected["last_hidden_state"][0].mean(0)], atol=2e-5)
    follows = numpy_bert.softmax(row_by_row(model, ("the cat", "a dog"))["next_sentence_logits"][0])[0]
    assert model.next_sentence("the cat", "a dog") == pytest.approx(follows, abs=1e-5)
    model.params["mlm"]["bias"] = model.params["mlm"]["bias"].at[TOKENIZER.tokens.index("dog")].set(50.0)
    assert model.fill_mask("the [MASK]")[0][0].token == "dog"
    assert compilations(model, "states") == 2, "TEXT has one length, the others another; other values compile nothing"


HEADS = {
    "text": dict(kind="classification", labels=("no", "so", "yes")),
    "stsb": dict(kind="regression"),
    "swag": dict(kind="choice"),
    "squad_v2": dict(kind="span"),
    "ner": dict(kind="tagging", labels=("O", "B-X", "I-X"), crf=True),
}
INPUTS = {
    "text": [TEXT, ("a dog", "old cats")],
    "stsb": [("a cat", "a dog")],
    "swag": [("the cat", ["sat", "flew on the mat"])],
    "squad_v2": [("who sat?", "the cat sat on the mat . the dog ran . a bird flew in the house .")],
    "ner": ["the big dog ran", ("old", "cats")],
}


@pytest.mark.parametrize("task", ["", *HEADS, "BiLSTM"])
def test_a_saved_model_is_the_model(tmp_path, task):
    name = "ner" if task == "BiLSTM" else task
    changes = {"features": "last", "lstm_size": 8} if task == "BiLSTM" else {}
    model = model_of(name, **HEADS.get(name, {}) | changes)
    edited(model)
    model.save(tmp_path / "saved")
    back = bert_jax.load(tmp_path / "saved", compute=ComputeConfig(dtype="float32", layers="scan"))
    assert contents(open_stored(tmp_path / "saved")) == contents(as_stored(model, model.params))
    assert (back.config, back.head, back.tokenizer.fingerprint) == (model.config, model.head, TOKENIZER.fingerprint)
    if task:  # windows, cuts and the threshold of "no answer" are those of its training
        assert repr(back.predict(INPUTS[name])) == repr(model.predict(INPUTS[name]))
    else:
        assert back.fill_mask("the [MASK] sat") == model.fill_mask("the [MASK] sat")
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


def test_the_threshold_of_no_answer_is_saved(tmp_path):
    model = model_of("squad_v2", **HEADS["squad_v2"])
    model.save(tmp_path / "saved")
    for history in (model.history, bert_jax.load(tmp_path / "saved").history):
        assert recorded_options(history, "squad_v2", 40).null_threshold == -40.0


def test_the_directory_says_where_it_came_from(tmp_path):
    write_workdir(tmp_path / "run", 7)
    (tmp_path / "run" / "run.json").write_text(
        json.dumps({"run_id": "run", "store_fingerprint": "f00d", "starts": [{"host": "secret"}]})
    )
    convert(tmp_path / "run", tmp_path / "converted", to="bert_jax")
    model = bert_jax.load(tmp_path / "converted")
    model.save(tmp_path / "saved")
    run = json.loads((tmp_path / "saved" / "run.json").read_text())
    source = {"kind": "bert_jax", "path": str(tmp_path / "run"), "step": 7, "written_by": "convert"}
    converted = json.loads((tmp_path / "converted" / "run.json").read_text())
    assert len(run["run_id"]) == 32 and run.pop("run_id") != converted["run_id"]
    assert run == {
        "store_fingerprint": "f00d",
        "tokenizer_fingerprint": TOKENIZER.fingerprint,
        "source": {
            "kind": "bert_jax",
            "path": str(tmp_path / "converted"),
            "step": 7,
            "written_by": "model.save",
            "source": source,
        },
    }
    saved = bert_jax.load(tmp_path / "saved")
    assert (
        saved.history["step"] == 7
        and saved.history["config"]["seed"] == 3
        and model.history["metrics"] == {"mlm_loss": 2.5}
    )
    assert saved.history["metrics"] is None, "they were measured with other parameters"
    with pytest.raises(UserError, match="saved holds a model that convert or model.save wrote, .* --init_from"):
        started_workdir.opened(tmp_path / "saved", TOKENIZER, Config())
    assert json.loads((tmp_path / "saved" / "run.json").read_text()).items() > run.items()


def test_a_fine_tuned_model_takes_gradients_like_any_other():
    """Beside the parameters of the network it has those of its head."""
    model = model_of("text", **HEADS["text"])
    loss = lambda params: (model.network.encode(params, **model.tokenizer(TEXT)).pooled ** 2).sum()
    gradients = jax.jit(jax.grad(loss))(model.params)
    assert not gradients["head"]["kernel"].any() and gradients["encoder"]["attention"]["value"]["kernel"].any()


def test_the_commands_open_it(tmp_path, capsys):
    model = loaded(stored_model(kind="huggingface"))
    model.save(tmp_path / "saved")
    assert cli._run(["bert-jax", "fill-mask", str(tmp_path / "saved"), "the [MASK] sat"]) == 0
    assert model.fill_mask("the [MASK] sat")[0][0].token in capsys.readouterr().out
    assert cli._run(["bert-jax", "convert", str(tmp_path / "saved"), str(tmp_path / "theirs"), "--to=huggingface"]) == 0
    assert contents(open_stored(tmp_path / "theirs")) == contents(as_stored(model, model.params))
    card = (tmp_path / "theirs" / "README.md").read_text()
    assert (
        "brought from Hugging Face by bert_jax and saved by model.save, before which its parameters may have been"
        in card
    )


WRONG = {
    "another shape": (
        lambda p: p["mlm"].update(bias=np.zeros(3, np.float32)),
        r"mlm/bias is float32\[3\], but the model has float32\[24\]",
    ),
    "another dtype": (
        lambda p: p["mlm"].update(bias=np.zeros(24)),
        r"mlm/bias is float64\[24\], but the model has float32\[24\]",
    ),
    "missing": (lambda p: p.pop("mlm"), r"mlm/bias is missing, but the model has float32\[24\] \(and 4 more differ\)"),
    "new": (lambda p: p.update(extra=np.zeros(2)), r"extra is float64\[2\], but the model has no such parameter"),
    "a list": (lambda p: p["mlm"].update(bias=[0.0] * 24), r"mlm/bias is missing"),
    "a number": (lambda p: p["mlm"].update(bias=0.0), r"mlm/bias is float\[\], but the model has"),
    "None": (lambda p: p.update(embeddings=None), "embeddings/norm/bias is missing"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_named(tmp_path, name):
    change, message = WRONG[name]
    model = model_of()
    other = jax.tree.map(np.asarray, model.params)
    change(other)
    with pytest.raises(UserError, match=message):
        model.params = other
    model.encode(TEXT)  # as it was
    change(model.params)
    for use in (lambda: model.encode(TEXT), lambda: model.save(tmp_path / "saved")):
        with pytest.raises(UserError, match=message) as caught:
            use()
        assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_an_existing_directory_is_refused_and_nan_is_told(tmp_path, caplog):
    model = model_of()
    model.params["pooler"]["bias"] = model.params["pooler"]["bias"].at[3].set(np.nan)
    model.save(tmp_path / "saved")
    assert "1 arrays have values that are NaN or infinite, first pooler/bias" in caplog.text
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    for place, message in ((tmp_path / "saved", "saved is not empty"), (tmp_path / "saved" / "run.json", "is a file")):
        with pytest.raises(UserError, match=message):
            model.save(place)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert np.isnan(bert_jax.load(tmp_path / "saved").params["pooler"]["bias"][3])
