"""What `load` finds at a place: kinds of directories recognised, and what cannot be loaded in one clear line."""

import pathlib

import pytest

from bert_jax.errors import UserError
from bert_jax.formats import huggingface, opening, own, tf1
from bert_jax.formats.opening import open_stored
from bert_jax.pretrained.model import load


def make(directory: pathlib.Path, *names: str) -> pathlib.Path:
    directory.mkdir(exist_ok=True)
    for name in names:
        (directory / name).parent.mkdir(exist_ok=True, parents=True)
        (directory / name).write_text("{}")
    return directory


@pytest.mark.parametrize(
    "names, path, opener",
    [
        (["config.json", "model.safetensors"], "", "huggingface"),
        (["config.json", "model.safetensors.index.json", "pytorch_model.bin"], "", "huggingface"),
        (["config.json", "model.safetensors", "checkpoints/notes.txt"], "", "huggingface"),
        (["bert_config.json", "bert_model.ckpt.index", "vocab.txt"], "", "tf1"),
        (["bert_config.json", "bert_model.ckpt.index", "vocab.txt"], "bert_model.ckpt", "tf1"),
        (["model.ckpt-100.index", "events.out"], "", "tf1"),
        (["config.json", "checkpoints/step_000000001/record/metadata"], "", "bert_jax"),
        (["record/metadata", "state/manifest.ocdbt"], "", "bert_jax"),
    ],
)
def test_kinds_are_recognised_by_what_lies_there(tmp_path, monkeypatch, names, path, opener):
    for module, name, kind in (
        (huggingface, "open_huggingface", "huggingface"),
        (tf1, "open_tf_checkpoint", "tf1"),
        (own, "open_checkpoint", "bert_jax"),
    ):
        monkeypatch.setattr(module, name, lambda path, kind=kind: (kind, str(path)))
    place = make(tmp_path / "m", *names) / path
    assert open_stored(place) == (opener, str(place))


@pytest.mark.parametrize(
    "names, path, message",
    [
        (
            [],
            "",
            "no model in .*looked for a work directory.*model.safetensors.*bert_model.ckpt.index.*; found nothing",
        ),
        (["a.txt", "b.txt"], "", "found a.txt, b.txt$"),
        (
            ["pytorch_model.bin", "config.json", "vocab.txt"],
            "",
            "model.bin is a pickle, which can run code.*save_pretrained",
        ),
        (["model.pt"], "", "model.pt is a pickle"),
        (["model.pth"], "model.pth", "model.pth is a pickle"),
        (["epoch=1.ckpt"], "epoch=1.ckpt", "ckpt is a pickle"),
        (["m.pkl"], "m.pkl", "is a pickle"),
        (["flax_model.msgpack"], "", "a format that is not read here"),
        (["tf_model.h5"], "tf_model.h5", "that is not read here"),
        (["bert.tar.gz"], "bert.tar.gz", "is an archive; unpack it"),
        (["model.safetensors"], "model.safetensors", "is a file; give the directory"),
        (
            ["config.json"],
            "absent",
            "there is no .*absent.*Nothing is downloaded.*hf download NAME --local-dir DIRECTORY",
        ),
        (["step_000000001/record/metadata"], "", "holds steps of a run; give one of them, or the work directory above"),
        (["checkpoints/notes.txt"], "", "there is no checkpoint below"),
    ],
)
def test_what_cannot_be_loaded_gets_one_clear_line(tmp_path, names, path, message):
    with pytest.raises(UserError, match=message) as caught:
        load(make(tmp_path / "m", *names) / path)
    assert "\n" not in str(caught.value)


def test_a_model_known_by_its_name_comes_with_the_command_that_fetches_it():
    for name in ("bert-base-uncased", "google-bert/bert-base-uncased"):
        with pytest.raises(UserError, match=f"hf download {name} --local-dir DIRECTORY .* give DIRECTORY$"):
            load(name)


@pytest.mark.parametrize("file", ["pytorch_model.bin", "tf_model.h5"])
@pytest.mark.parametrize("path", ["", "file"])
def test_a_family_that_is_unknown_need_not_be_converted(tmp_path, file, path):
    place = make(tmp_path / "m", file, "config.json")
    (place / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(UserError, match="config.json describes a model of type 'gpt2'; the types .* bert, roberta"):
        load(place / file if path else place)


@pytest.mark.parametrize(
    "path", ["http://example.org/bert", "s3://bucket/bert", "bert-base-uncased", "a\0b", "a\nb", "", "x" * 5000]
)
def test_other_places_are_refused(path):
    with pytest.raises(UserError) as caught:
        load(path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000


def test_a_bucket_out_of_reach_is_one_line(monkeypatch):
    class Unreachable(Exception):
        """As TensorFlow's FailedPreconditionError, which is no OSError."""

    class Remote:
        def is_dir(self):
            raise Unreachable("cannot resolve host:\n\t when reading")

    monkeypatch.setattr(opening.epath, "Path", lambda name: Remote())
    with pytest.raises(UserError, match="'gs://bucket/bert' cannot be opened: cannot resolve host: when reading$"):
        load("gs://bucket/bert")
