"""`load`: our checkpoints read by slices and checked, other formats alike, arrays placed on any mesh."""

import dataclasses
import json
import pathlib
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest
from full_device import DOES_NOT_FIT, full_device
from pretrained_model import CONFIG, WORDS, stored_model, write_workdir
from processes import SECONDS

import bert_jax
from bert_jax.checkpoints.record import leaf_paths, sealed
from bert_jax.config import ComputeConfig, HeadConfig, MeshConfig
from bert_jax.devices.placement import StoredArray
from bert_jax.devices.sharding import make_mesh, partition_spec
from bert_jax.errors import UserError
from bert_jax.formats import huggingface_export, own
from bert_jax.formats.opening import open_stored, place
from bert_jax.formats.stored import check_fit
from bert_jax.pretrained.model import PretrainedModel, load


def flip_bits(step: pathlib.Path) -> None:
    """In a hundred places of every file with arrays; chance decides which files hold parameters."""
    for file in (step / "state" / "ocdbt.process_0" / "d").iterdir():
        contents = bytearray(file.read_bytes())
        for number in range(1, 101):
            contents[len(contents) * number // 101] ^= 1
        file.write_bytes(contents)


def assert_are(params: dict, written: dict) -> None:
    """Bit for bit, but for the padding of the vocabulary."""
    found, expected = leaf_paths(params), leaf_paths(written)
    assert set(found) == set(expected)
    for path, values in expected.items():
        values = values[: len(WORDS)] if path in ("embeddings/word/table", "mlm/bias") else values
        assert found[path].dtype == np.float32 and np.asarray(found[path]).tobytes() == values.tobytes(), path


def test_a_work_directory_gives_its_newest_step(workdir, monkeypatch):
    place, written = workdir
    opened, original = [], own.open_array
    monkeypatch.setattr(own, "open_array", lambda state, path: opened.append(path) or original(state, path))
    model = load(place)
    assert_are(model.params, written[5])
    assert (model.kind, model.history["step"], model.history["metrics"]) == ("bert_jax", 5, {"mlm_loss": 2.5})
    assert model.history["config"]["seed"] == 3 and model.head is None and model.tokenizer.tokens == WORDS
    assert model.config == CONFIG  # the padding of the vocabulary is gone
    assert {path.split("/")[0] for path in opened} == {"params"}, "optimizer state was read"


def test_a_model_that_does_not_fit_is_answered_with_advice(workdir, monkeypatch):
    monkeypatch.setattr("bert_jax.formats.opening.placed", full_device)
    with pytest.raises(UserError, match=f"^the model in {workdir[0]} {DOES_NOT_FIT}; what helps: a smaller model; "):
        load(workdir[0])


def test_one_step_of_it_and_a_step_taken_elsewhere(workdir, tmp_path):
    place, written = workdir
    step = place / "checkpoints" / "step_000000002"
    assert_are(load(step).params, written[2])
    shutil.copytree(step, tmp_path / "taken")
    alone = load(tmp_path / "taken")
    assert_are(alone.params, written[2])
    with pytest.raises(UserError, match="has no vocabulary"):
        alone.encode("the cat")


def test_arrays_are_read_by_slices(workdir):
    stored, words = open_stored(workdir[0]), workdir[1][5]["embeddings"]["word"]["table"]
    array = stored.arrays["embeddings/word/table"]
    assert array.shape == (len(WORDS), 16) and words.shape == (32, 16)
    np.testing.assert_array_equal(array.read((slice(3, 7), slice(None, None))), words[3:7])
    np.testing.assert_array_equal(array.read((slice(20, None), slice(4, 6))), words[20:24, 4:6])


def test_a_damaged_step_gives_way_to_the_one_before_it(workdir, tmp_path, caplog):
    place = tmp_path / "run"
    shutil.copytree(workdir[0], place)
    flip_bits(place / "checkpoints" / "step_000000005")
    before = sorted(place.rglob("*"))
    assert_are(load(place).params, workdir[1][2])
    assert (
        "step_000000005" in caplog.text and "cannot be used" in caplog.text and "step_000000002 is used" in caplog.text
    )
    assert sorted(place.rglob("*")) == before
    with pytest.raises(UserError, match="no checkpoint of .*step_000000005: "):
        load(place / "checkpoints" / "step_000000005")
    flip_bits(place / "checkpoints" / "step_000000002")
    with pytest.raises(UserError, match="step_000000005: .*; step_000000002: "):
        load(place)


def test_a_step_of_another_run_gives_way_to_the_one_before_it(tmp_path, caplog):
    """In a work directory; a step that lies away from any run opens by itself."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    written = {home: write_workdir(home, step, run_id=home.name) for home, step in ((ours, 2), (theirs, 5))}
    for home in written:
        (home / "run.json").write_text(json.dumps({"run_id": home.name}))
    for number in ("5", "7"):
        shutil.copytree(theirs / "checkpoints" / "step_000000005", ours / "checkpoints" / f"step_00000000{number}")
    assert_are(load(ours).params, written[ours][2])
    assert f"step_000000007 of {ours} cannot be used (it is step 5 under another number)" in caplog.text
    assert (
        f"step_000000005 of {ours} cannot be used (it is a step of another run, 'theirs', not of 'ours')" in caplog.text
    )
    with pytest.raises(UserError, match="it is a step of another run"):  # its vocabulary would be that of ours
        load(ours / "checkpoints" / "step_000000005")
    shutil.copytree(theirs / "checkpoints" / "step_000000005", tmp_path / "best_step")
    for taken in (theirs, theirs / "checkpoints" / "step_000000005", tmp_path / "best_step"):
        assert_are(load(taken).params, written[theirs][5])


@pytest.mark.parametrize("below", ["", "runs/seed0"])
def test_a_run_json_without_an_id_is_refused(tmp_path, below):
    write_workdir(tmp_path / below, 2)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(UserError, match=f"{tmp_path}/run.json has run_id=None where a str is expected: it is damaged"):
        load(tmp_path / below)


def test_a_run_below_a_fine_tuning_directory_has_an_id_of_its_own(tmp_path):
    runs = {name: tmp_path / "runs" / name for name in ("seed0", "seed1")}
    written = {name: write_workdir(place, 2, run_id=f"mine/{name}") for name, place in runs.items()}
    (tmp_path / "run.json").write_text(json.dumps({"run_id": "mine"}))
    assert_are(load(runs["seed0"]).params, written["seed0"][2])
    shutil.rmtree(runs["seed0"] / "checkpoints")
    shutil.copytree(runs["seed1"] / "checkpoints", runs["seed0"] / "checkpoints")
    with pytest.raises(UserError, match="it is a step of another run, 'mine/seed1', not of 'mine/seed0'"):
        load(runs["seed0"])


@pytest.mark.parametrize(
    "change, says",
    [
        (
            lambda content: content["config"]["model"].update(vocab_size=99),
            r"mlm/bias: stored \[24\], by the configuration \[99\]",
        ),
        (lambda content: content["config"].pop("model"), "step_000000005: KeyError: 'model'"),
        (lambda content: content.pop("metrics"), "step_000000005: KeyError: 'metrics'"),
    ],
)
def test_a_record_that_lies_under_a_good_checksum(tmp_path, change, says):
    write_workdir(tmp_path, 5)
    file = next((tmp_path / "checkpoints" / "step_000000005" / "record").iterdir())
    content = json.loads(file.read_text())["content"]
    change(content)
    file.write_text(json.dumps(sealed(content)))
    with pytest.raises(UserError, match=says):
        load(tmp_path)


def test_a_damaged_run_json_is_named(tmp_path):
    write_workdir(tmp_path, 5)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(UserError, match="run.json is not JSON"):
        load(tmp_path)


@pytest.mark.parametrize("shape", [(2, 2, 2), (1, 4, 2), (8, 1, 1)])
def test_on_a_mesh_every_device_reads_its_part(shape):
    stored, mesh = stored_model(), make_mesh(MeshConfig(**dict(zip(("data", "fsdp", "tensor"), shape))))
    reads = {}

    def counted(path, array):
        def read(index):
            reads.setdefault(path, []).append(index)
            return array.read(index)

        return StoredArray(array.shape, array.dtype, read)

    counting = dataclasses.replace(stored, arrays={path: counted(path, array) for path, array in stored.arrays.items()})
    whole, parts = leaf_paths(place(stored)), leaf_paths(place(counting, mesh))
    for path, array in parts.items():
        spec = partition_spec(mesh, stored.parameters[path])[0]
        assert array.sharding.spec == spec and np.array_equal(array, whole[path]), path
        pieces = np.prod([mesh.shape[axis] for axis in spec if axis] or [1])
        assert len(reads[path]) == pieces, f"{path} was read {len(reads[path])} times, it has {pieces} parts"
        assert array.addressable_shards[0].data.size * pieces == array.size


def test_on_a_mesh_the_model_says_the_same(workdir):
    texts, options = (
        ["the cat sat on the mat.", ("a dog", "ran in the house"), "the"],
        {"layers": "all", "attentions": True},
    )
    mesh, compute = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2)), ComputeConfig(dtype="float32", layers="scan")
    one, eight = (load(workdir[0], mesh=m, compute=compute) for m in (None, mesh))
    found, expected = (jax.tree.leaves(vars(model.encode(texts, **options))) for model in (eight, one))
    for a, b in zip(found, expected, strict=True):
        assert a == b if isinstance(a, str) else np.allclose(a, b, atol=2e-6)
    for a, b in zip(one.fill_mask("the [MASK] sat", 3)[0], eight.fill_mask("the [MASK] sat", 3)[0]):
        assert (a.token, a.probability) == (b.token, pytest.approx(b.probability, abs=1e-6))
    for options in ({"pooling": "cls"}, {"pooling": "max", "normalize": True}, {"layers": "second_to_last"}):
        np.testing.assert_allclose(one.embed(texts, **options), eight.embed(texts, **options), atol=2e-6)
    assert one.next_sentence("a dog", "ran") == pytest.approx(eight.next_sentence("a dog", "ran"), abs=1e-6)


def test_a_hugging_face_directory_gives_the_same_model(tmp_path):
    stored = stored_model(kind="bert_jax")
    huggingface_export.write_huggingface(stored, tmp_path, "float32")
    model = load(tmp_path)
    assert model.kind == "huggingface" and model.tokenizer.tokens == WORDS
    for path, values in leaf_paths(model.params).items():
        assert np.array_equal(values, stored.arrays[path].read(...)), path


def test_a_file_that_shrinks_after_it_was_opened_is_an_error(tmp_path):
    huggingface_export.write_huggingface(stored_model(kind="bert_jax"), tmp_path, "test")
    stored, file = open_stored(tmp_path), tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(UserError, match="model.safetensors has become shorter"):
        place(stored)


def test_arrays_that_do_not_fit_are_named_with_both_shapes():
    arrays = stored_model().arrays
    with pytest.raises(
        UserError, match=r"key/bias: stored \[5, 4, 4\], by the configuration \[5, 2, 8\].* and 4 more. Put the config"
    ):
        check_fit(stored_model(model=dataclasses.replace(CONFIG, num_heads=2)))
    with pytest.raises(UserError, match=r"pooler/bias: stored none, by the configuration \[16\]"):
        check_fit(stored_model(arrays={path: array for path, array in arrays.items() if path != "pooler/bias"}))
    with pytest.raises(UserError, match=r"embeddings/extra: stored \[5, 4, 4\], by the configuration none"):
        check_fit(stored_model(arrays=arrays | {"embeddings/extra": arrays["encoder/attention/key/bias"]}))
    with pytest.raises(UserError, match="made by an architecture or an objective from outside the package"):
        check_fit(stored_model(kind="bert_jax", arrays=arrays | {"gate": arrays["encoder/attention/key/bias"]}))
    with pytest.raises(UserError, match="vocabulary of 24 entries for a word table of 20 rows"):
        check_fit(stored_model(config=dataclasses.replace(CONFIG, vocab_size=20)))
    for head in (None, HeadConfig(labels=("a", "b")), HeadConfig(kind="tagging", labels=("O", "B-X", "I-X"), crf=True)):
        check_fit(stored_model(head=head))


def test_half_precision_becomes_float32():
    stored = stored_model()

    def half(array):
        return StoredArray(array.shape, np.dtype(np.float16), lambda index: array.read(index).astype(np.float16))

    halves = {path: half(array) for path, array in stored.arrays.items()}
    for path, values in leaf_paths(place(dataclasses.replace(stored, arrays=halves))).items():
        assert values.dtype == np.float32
        np.testing.assert_array_equal(values, stored.arrays[path].read(...).astype(np.float16).astype(np.float32))


def test_loading_and_encoding_need_no_tensorflow(workdir):
    code = (
        "import sys, json, bert_jax\nmodel = bert_jax.load(sys.argv[1])\nmodel.embed('the cat')\n"
        "imported = {name.split('.')[0] for name in sys.modules}\n"
        "print(json.dumps(sorted(imported & {'tensorflow', 'torch', 'transformers'})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(workdir[0])], capture_output=True, text=True, timeout=SECONDS
    )
    assert json.loads(done.stdout) == [], done.stderr


def test_the_public_names():
    assert bert_jax.load is load and bert_jax.PretrainedModel is PretrainedModel


def test_a_kernel_that_this_machine_cannot_run_is_refused_before_it_computes():
    stored, mesh = stored_model(), make_mesh(MeshConfig(), jax.devices()[:1])
    with pytest.raises(UserError, match="compute.attention=pallas needs a TPU, but this runs on cpu"):
        PretrainedModel(stored, place(stored, mesh), mesh, ComputeConfig(attention="pallas"))
