"""`bert-jax convert`: round trips bit for bit, files that other programs open, and nothing half-written."""

import dataclasses
import json
import os

import numpy as np
import pytest
import random_bert
import safetensors.numpy
from command_lines import refusal
from models_of_parts import ENCODER, MLM, MODELS, POOLER, make
from pretrained_model import CONFIG, WORDS, contents, stored_model, write_workdir
from safetensors import safe_open
from same_models import assert_same

from bert_jax import cli
from bert_jax.config import HeadConfig
from bert_jax.data.store import open_store
from bert_jax.errors import UserError
from bert_jax.formats import huggingface_export
from bert_jax.formats.conversion import convert, new_directory, select, write_bert_jax
from bert_jax.formats.huggingface import open_huggingface
from bert_jax.formats.huggingface_export import write_huggingface
from bert_jax.formats.opening import open_stored
from bert_jax.formats.stored import check_fit


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
        assert file.metadata() == {"format": "pt"} and {file.get_slice(key).get_dtype() for key in file.keys()} == {
            "F32"
        }


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
    assert contents(there) == {
        path: values for path, values in contents(ours).items() if not path.startswith("span_boundary/")
    }


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
        assert cli._run(["bert-jax", "convert", f"{tmp_path}/{words[0]}", f"{tmp_path}/{words[1]}", words[2]]) == 0
    printed = capsys.readouterr().out
    assert "ignored in the source: bert.embeddings.position_ids" in printed and "vocabulary of 97 entries" in printed
    back = safetensors.numpy.load_file(tmp_path / "theirs" / "model.safetensors")
    assert {name: value.tobytes() for name, value in back.items()} == {
        name: value.tobytes() for name, value in state.items()
    }
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (tmp_path / "direct" / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes()
    written = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert {key: written[key] for key in config} == config
    assert (tmp_path / "theirs" / "vocab.txt").read_text() == (source / "vocab.txt").read_text()


def test_a_run_with_a_padded_vocabulary_and_its_model_card(tmp_path):
    run = tmp_path / "the run"
    written = write_workdir(run, 7, config=dataclasses.replace(CONFIG, vocab_pad_multiple=16))[7]
    record = {
        "run_id": "run",
        "store_fingerprint": "f00d",
        "starts": [{"host": "secret-host", "command": "secret command"}],
    }
    (run / "run.json").write_text(json.dumps(record))
    convert(str(run), str(tmp_path / "exported"), to="huggingface")
    words = safetensors.numpy.load_file(tmp_path / "exported" / "model.safetensors")[
        "bert.embeddings.word_embeddings.weight"
    ]
    np.testing.assert_array_equal(words, written["embeddings"]["word"]["table"][: len(WORDS)])
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
    config = {
        "data": {"path": str(small_store), "cache": "/home/me/cache"},
        "workdir": "/home/me/run",
        "init_from": "/a/b/start",
    }
    head = HeadConfig(kind="classification", labels=("a|b", "<script>\n# c"))
    history = {
        "config": config,
        "run": {"store_fingerprint": open_store(small_store).fingerprint},
        "metrics": None,
        "step": 3,
    }
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
    (place / "pickled").mkdir()
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
        ("@/pickled @/out --to=bert_jax", ("pytorch_model.bin", "pickle")),
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
