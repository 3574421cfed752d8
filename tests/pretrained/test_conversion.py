"""Models converted and saved, and the guide to both."""

import dataclasses
import json
import os
import pathlib
import re
import shutil

import jax
import numpy as np
import numpy_bert
import pytest
import random_bert
import safetensors.numpy
import workdirs
from command_lines import refusal, succeed
from models_of_parts import ENCODER, MLM, MODELS, POOLER, make
from pretrained_model import (
    CONFIG,
    SMALL,
    TOKENIZER,
    WORDS,
    assert_same,
    compilations,
    contents,
    loaded,
    row_by_row,
    stored_model,
    write_workdir,
)
from safetensors import safe_open

import bert_jax
from bert_jax.config import ComputeConfig, Config, HeadConfig
from bert_jax.config.finetuning import task_defaults
from bert_jax.config.options import to_dict, with_options
from bert_jax.data.store import open_store
from bert_jax.errors import UserError
from bert_jax.formats import huggingface_export
from bert_jax.formats.conversion import convert, new_directory, select, write_bert_jax
from bert_jax.formats.huggingface import open_huggingface
from bert_jax.formats.huggingface_export import write_huggingface
from bert_jax.formats.opening import open_stored
from bert_jax.formats.stored import check_fit
from bert_jax.pretrained.model import as_stored
from bert_jax.tasks.task_data import recorded_options


@pytest.mark.parametrize("name", MODELS)
def test_to_hugging_face_and_back(tmp_path, name):
    stored = make(name)
    write_huggingface(stored, tmp_path, "a model")
    back = open_huggingface(tmp_path)
    assert_same(stored, back)
    assert back.ignored == ()
    _, _, architecture, names = MODELS[name]
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [architecture]
    with safe_open(tmp_path / "model.safetensors", "numpy") as file:
        layers = range(CONFIG.num_layers)
        assert set(file.keys()) == {each.format(layer) for each in names for layer in layers}
        assert file.metadata() == {"format": "pt"}
        assert {file.get_slice(key).get_dtype() for key in file.keys()} == {"F32"}


@pytest.mark.parametrize("name", ["pretraining", "bare", "tagging"])
def test_to_our_own_layout_and_back(tmp_path, name):
    stored = make(name)
    write_bert_jax(stored, tmp_path)
    assert_same(stored, open_stored(tmp_path))


def test_a_span_boundary_head_is_left_out_by_name(tmp_path, capsys):
    config = dataclasses.replace(CONFIG, pair_head=False, vocab_pad_multiple=8)
    with new_directory(tmp_path / "ours") as directory:
        write_bert_jax(stored_model(config, ("mlm", "span_boundary")), directory)
    ours = open_stored(tmp_path / "ours")
    check_fit(ours)  # without the rows that pad the vocabulary, also those of this head's bias
    convert(tmp_path / "ours", tmp_path / "theirs", to="huggingface")
    assert "left out: span_boundary" in capsys.readouterr().out
    there = open_stored(tmp_path / "theirs")
    assert (ours.parts, there.parts) == (("mlm", "span_boundary"), ("mlm",))
    assert contents(there) == {p: values for p, values in contents(ours).items() if not p.startswith("span_boundary/")}


def test_windows_and_thresholds_are_left_out_by_name(tmp_path, capsys):
    head = HeadConfig(kind="multilabel", labels=("so", "yes"), windows="max")
    with new_directory(tmp_path / "ours") as directory:
        write_bert_jax(stored_model(CONFIG, None, head), directory)
    convert(tmp_path / "ours", tmp_path / "theirs", to="huggingface")
    said = capsys.readouterr().out
    assert "left out: the windows in which longer texts are read (max); --to=bert_jax keeps that" in said
    assert "left out: the thresholds of the classes; others have 0.5 for all; --to=bert_jax keeps that" in said


@pytest.mark.parametrize("to", ["bert_jax", "huggingface"])
def test_a_map_to_the_states_of_a_teacher_stays_behind(tmp_path, capsys, to):
    with new_directory(tmp_path / "ours") as directory:
        write_bert_jax(stored_model(teacher_size=24), directory)
    ours = open_stored(tmp_path / "ours")
    check_fit(ours)
    assert ours.arrays["state_projection/kernel"].shape == (CONFIG.hidden_size, 24)
    convert(tmp_path / "ours", tmp_path / "theirs", to=to)
    assert "left out: state_projection" in capsys.readouterr().out
    assert contents(open_stored(tmp_path / "theirs")) == contents(ours.without("state_projection"))


def test_from_hugging_face_through_ours_and_back_by_the_command_line(tmp_path, capsys):
    sizes = random_bert.sizes("tiny")
    state = random_bert.to_hugging_face(random_bert.draw_parameters(sizes))
    source, config = tmp_path / "source", random_bert.config_json(sizes, "gelu_tanh") | {"layer_norm_eps": 1e-7}
    source.mkdir()
    safetensors.numpy.save_file(state | {"bert.embeddings.position_ids": np.arange(20)}, source / "model.safetensors")
    (source / "config.json").write_text(json.dumps(config))
    (source / "vocab.txt").write_text("\n".join([*WORDS, *(f"more{i}" for i in range(97 - len(WORDS)))]) + "\n")
    (tmp_path / "ours").mkdir()  # empty: may be written to
    for words in (
        ["source", "ours", "--to=bert_jax"],
        ["ours", "theirs", "--to=huggingface"],
        ["source", "direct", "--to=huggingface"],
    ):
        succeed("convert", f"{tmp_path}/{words[0]}", f"{tmp_path}/{words[1]}", words[2])
    printed = capsys.readouterr().out
    assert "left out" not in printed and "vocabulary of 97 entries" in printed
    back = safetensors.numpy.load_file(tmp_path / "theirs" / "model.safetensors")
    assert {n: value.tobytes() for n, value in back.items()} == {n: value.tobytes() for n, value in state.items()}
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (tmp_path / "direct" / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes()
    written = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert {key: written[key] for key in config} == config
    assert (tmp_path / "theirs" / "vocab.txt").read_text() == (source / "vocab.txt").read_text()


def test_a_run_with_a_padded_vocabulary_and_its_model_card(tmp_path):
    run = tmp_path / "the run"
    written = write_workdir(run, 7, config=dataclasses.replace(CONFIG, vocab_pad_multiple=16))[7]
    record = {"run_id": "run", "store_fingerprint": "f00d", "starts": [{"host": "secret-host", "command": "secret"}]}
    (run / "run.json").write_text(json.dumps(record))
    convert(str(run), str(tmp_path / "exported"), to="huggingface")
    state = safetensors.numpy.load_file(tmp_path / "exported" / "model.safetensors")
    words = written["embeddings"]["word"]["table"][: len(WORDS)]
    np.testing.assert_array_equal(state["bert.embeddings.word_embeddings.weight"], words)
    card = (tmp_path / "exported" / "README.md").read_text()
    for line in (
        "| hidden_size | 16 |",
        "| mlm_loss | 2.5 |",
        "| fingerprint of the token store | f00d |",
        '"seed": 3',
        "AutoModelForPreTraining",
        "trained with bert_jax to step 7",
        f"| vocab_size | {len(WORDS)} |",
    ):
        assert line in card, line
    assert str(tmp_path) not in card and "secret" not in card


def test_the_card_has_the_manifest_but_no_path_and_no_markup(tmp_path, small_store):
    manifest = json.loads((small_store / "manifest.json").read_text())
    data = {"path": str(small_store), "cache": "/home/me/cache"}
    config = {"data": data, "workdir": "/home/me/run", "init_from": "/a/b/start"}
    head = HeadConfig(kind="classification", labels=("a|b", "<script>\n# c"))
    fingerprint = open_store(small_store).fingerprint
    history = {"config": config, "run": {"store_fingerprint": fingerprint}, "metrics": None, "step": 3}
    write_huggingface(stored_model(head=head, kind="bert_jax", history=history), tmp_path, "fine-tuned")
    card = (tmp_path / "README.md").read_text()
    counts = manifest["counts"]
    for line in (
        f"| tokens | {counts['tokens']:,} |",
        "| source 1 | corpus.txt (text,",
        '"path": "store"',
        '"init_from": "start"',
        "| labels | a b, script # c |",
        "pipeline_tag: text-classification",
    ):
        assert line in card, line
    assert "/home/me" not in card and str(small_store) not in card and "## Metrics" not in card


@pytest.mark.parametrize(
    "parts, names, left", [("mlm", ENCODER + MLM, ("mlm",)), ("encoder", ENCODER + POOLER, ("pooler",))]
)
def test_parts_are_chosen(tmp_path, parts, names, left):
    chosen = select(make("pretraining"), parts)
    assert chosen.parts == left
    write_huggingface(chosen, tmp_path, "some of it")
    with safe_open(tmp_path / "model.safetensors", "numpy") as file:
        found = {name if name.startswith(("bert.", "cls.")) else f"bert.{name}" for name in file.keys()}
    assert found == {name.format(layer) for name in names for layer in range(CONFIG.num_layers)}


@pytest.mark.parametrize(
    "changes, says",
    [
        (dict(config=dataclasses.replace(CONFIG, norm_position="pre")), "norm_position=pre"),
        (dict(head=HeadConfig(kind="tagging", labels=("O", "B-X"), crf=True)), "has a CRF"),
        (dict(head=HeadConfig(kind="tagging", labels=("O", "B-X"), features="last", lstm_size=8)), "has a BiLSTM"),
    ],
)
def test_what_transformers_has_not_is_refused(tmp_path, changes, says):
    with pytest.raises(UserError, match=says), new_directory(tmp_path / "out") as directory:
        write_huggingface(stored_model(kind="bert_jax", **changes), directory, "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_leaves_nothing(tmp_path, monkeypatch, failure):
    def fail(*_):
        assert [file.name for file in tmp_path.iterdir()] != ["out"], "written under the final name"
        raise failure

    monkeypatch.setattr(huggingface_export, "write_tokenizer", fail)
    with (
        pytest.raises(UserError if isinstance(failure, OSError) else type(failure), match="out: No space left|^$"),
        new_directory(tmp_path / "out") as directory,
    ):
        write_huggingface(make("bare"), directory, "out")
    assert list(tmp_path.iterdir()) == []


def test_a_link_to_an_empty_or_absent_directory_is_followed(tmp_path):
    (tmp_path / "there").mkdir()
    for name in ("there", "absent"):
        (tmp_path / f"to {name}").symlink_to(name)
        with new_directory(tmp_path / f"to {name}") as directory:
            (directory / "file").touch()
        assert (tmp_path / f"to {name}").is_symlink() and (tmp_path / name / "file").exists()


@pytest.mark.parametrize("kind, labels", [("span", ()), ("tagging", ("O", "B-X"))])
def test_a_pooler_that_the_class_of_transformers_lacks_stays_behind(tmp_path, capsys, kind, labels):
    """As Google's run_squad.py leaves one; transformers would report it as unexpected."""
    model = stored_model(CONFIG, (), HeadConfig(kind=kind, labels=labels), kind="bert_jax")
    pooler = {path: array for path, array in make("pooled").arrays.items() if path.startswith("pooler/")}
    with new_directory(tmp_path / "ours") as directory:
        write_bert_jax(dataclasses.replace(model, arrays=model.arrays | pooler), directory)
    assert open_stored(tmp_path / "ours").parts == ("pooler", "head")
    convert(tmp_path / "ours", tmp_path / "theirs", to="huggingface")
    assert "left out: pooler" in capsys.readouterr().out
    assert_same(model, open_stored(tmp_path / "theirs"))


def test_arrays_are_written_one_at_a_time(tmp_path):
    stored, held = make("pretraining"), []

    def counted(path, array):
        return dataclasses.replace(array, read=lambda index: held.append(path) or array.read(index))

    arrays = {path: counted(path, array) for path, array in stored.arrays.items()}
    write_huggingface(dataclasses.replace(stored, arrays=arrays), tmp_path, "streamed")
    layered = [path for path in arrays if path.startswith("encoder/")]
    assert sorted(held) == sorted([*arrays, *(layered * (CONFIG.num_layers - 1))])
    start = int.from_bytes((tmp_path / "model.safetensors").read_bytes()[:8], "little")
    assert start % 8 == 0  # so that whoever maps the file finds numbers at multiples of their size


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("bad")
    for name in ("encoder", "whole"):
        (place / name).mkdir()
        write_huggingface(make({"encoder": "bare", "whole": "pretraining"}[name]), place / name, name)
    (place / "damaged").mkdir()
    for file in (place / "whole").iterdir():
        (place / "damaged" / file.name).write_bytes(file.read_bytes())
    os.truncate(place / "damaged" / "model.safetensors", 1_000)
    (place / "empty").mkdir()
    shutil.copytree(place / "whole", place / "pickled")
    (place / "pickled" / "model.safetensors").unlink()
    (place / "pickled" / "pytorch_model.bin").write_bytes(b"cos\nsystem\n")
    (place / "file").write_text("")
    return place


@pytest.mark.parametrize(
    "command, says",
    [
        ("", ("usage", "SOURCE")),
        ("@/whole", ("usage", "DESTINATION")),
        ("@/whole @/out", ("to", "bert-jax convert --help")),
        ("@/whole @/out --to=pytorch", ("pytorch", "huggingface")),
        ("@/whole @/out --to=tf1 --part=mlm", ("--part", "--parts")),
        ("@/nothing @/out --to=bert_jax", ("there is no", "nothing")),
        ("@/empty @/out --to=bert_jax", ("no model in", "empty")),
        ("@/pickled @/out --to=bert_jax", ("pickled/pytorch_model.bin", "not a whole file of torch")),
        ("@/damaged @/out --to=bert_jax", ("damaged/model.safetensors", "1,000")),
        ("@/whole @/whole --to=bert_jax", ("whole is not empty", "new directory")),
        ("@/whole @/file --to=bert_jax", ("file is a file",)),
        ("@/whole \0 --to=bert_jax", ("destination '\\x00' is not a path",)),
        ("@/whole @/file/out --to=bert_jax", ("cannot make the directory", "file/out")),
        (
            "@/encoder @/out --to=huggingface --parts=mlm",
            ("parts=mlm", "no masked-language-model head", "encoder only"),
        ),
    ],
)
def test_bad_input_gets_one_line_and_writes_nothing(place, command, says, capfd):
    before = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
    error = refusal(capfd, "convert", *command.replace("@", str(place)).split())
    assert not [words for words in says if words not in error], error
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*")} == before


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
    made = HeadConfig(**head) if task else None
    return loaded(stored_model(config=SMALL, head=made, kind="bert_jax", history=history))


def edited(model) -> None:
    """Every parameter changed, by NumPy and JAX, as a whole and entry by entry."""
    model.params = jax.tree.map(lambda leaf: leaf * 0.75, model.params)
    words = model.params["embeddings"]["word"]
    words["table"] = np.asarray(words["table"]) + np.float32(0.125)
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


SAVED = [
    "",
    "ner",
    "BiLSTM",
    *(pytest.param(task, marks=pytest.mark.slow) for task in ("text", "stsb", "swag", "squad_v2")),
]


@pytest.mark.parametrize("task", SAVED)
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
    assert saved.history["step"] == 7 and saved.history["config"]["seed"] == 3
    assert model.history["metrics"] == {"mlm_loss": 2.5}
    assert saved.history["metrics"] is None, "they were measured with other parameters"
    with pytest.raises(
        UserError, match="saved holds a model that convert, average or model.save wrote, .* --init_from"
    ):
        workdirs.opened(tmp_path / "saved", TOKENIZER, Config())
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
    succeed("fill-mask", tmp_path / "saved", "the [MASK] sat")
    assert model.fill_mask("the [MASK] sat")[0][0].token in capsys.readouterr().out
    succeed("convert", tmp_path / "saved", tmp_path / "theirs", "--to=huggingface")
    assert contents(open_stored(tmp_path / "theirs")) == contents(as_stored(model, model.params))
    card = (tmp_path / "theirs" / "README.md").read_text()
    said = "brought from Hugging Face by bert_jax and saved by model.save, before which its parameters may have been"
    assert said in card


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
        with pytest.raises(UserError, match=message):
            use()
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


GUIDE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "checkpoints.md"


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """Everything that the example defines, and the parameters that it began with."""
    place = tmp_path_factory.mktemp("guide")
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    (code,) = [block for block in blocks if "jax.grad" in block]
    defined = {"model": loaded(stored_model(config=SMALL))}
    before = jax.device_get(defined["model"].params)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        exec(compile(code, GUIDE, "exec"), defined)
    return defined | {"before": before, "place": place}


def loss_in_float64(params, batch, wanted) -> float:
    states = numpy_bert.forward(params, SMALL, batch | {"masked_positions": np.zeros((3, 1), int)})["last_hidden_state"]
    vectors = np.stack([row[:size].mean(axis=0) for row, size in zip(states, batch["attention_mask"].sum(axis=1))])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return ((vectors @ vectors.T - np.asarray(wanted)) ** 2).mean()


def test_the_gradients_are_those_of_the_loss(example):
    """Along random directions through all parameters: central differences in float64, exact to about 1e-8."""
    before, random, small = example["before"], np.random.default_rng(0), 1e-5
    value, gradients = jax.jit(jax.value_and_grad(example["loss"]))(before)
    as_float64 = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), before)
    assert value == pytest.approx(loss_in_float64(as_float64, example["batch"], example["wanted"]), rel=1e-5)
    for _ in range(5):
        direction = jax.tree.map(lambda leaf: random.standard_normal(leaf.shape), as_float64)

        def moved(by: float) -> float:
            params = jax.tree.map(lambda leaf, way: leaf + by * way, as_float64, direction)
            return loss_in_float64(params, example["batch"], example["wanted"])

        ahead, behind = moved(small), moved(-small)
        slopes = jax.tree.map(lambda way, slope: np.vdot(way, np.asarray(slope, np.float64)), direction, gradients)
        along = sum(jax.tree.leaves(slopes))
        assert abs(along) > 1e-3 and along == pytest.approx((ahead - behind) / (2 * small), rel=1e-3)


def test_it_learns_and_what_it_saved_is_what_it_learned(example):
    saved = bert_jax.load(example["place"] / "adapted")
    after, before = (
        loss_in_float64(jax.device_get(params), example["batch"], example["wanted"])
        for params in (saved.params, example["before"])
    )
    assert after < 0.5 * before
    for ours, theirs in zip(jax.tree.leaves(example["model"].params), jax.tree.leaves(saved.params), strict=True):
        np.testing.assert_array_equal(ours, theirs)
