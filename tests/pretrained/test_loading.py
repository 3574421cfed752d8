"""Loading: places that can be opened, tokenizers on record, and answers."""

import dataclasses
import itertools
import json
import pathlib
import shutil

import fresh
import jax
import numpy as np
import numpy_bert
import pytest
from pretrained_model import (
    CONFIG,
    SMALL,
    TOKENIZER,
    WORDS,
    loaded,
    original_pieces,
    row_by_row,
    stored_model,
    write_workdir,
)
from small_pretraining import DOES_NOT_FIT, full_device

import bert_jax
from bert_jax.checkpoints.record import leaf_paths, sealed
from bert_jax.config import ComputeConfig, HeadConfig, MeshConfig
from bert_jax.devices.placement import StoredArray
from bert_jax.devices.sharding import make_mesh, partition_spec
from bert_jax.errors import UserError
from bert_jax.formats import huggingface, huggingface_export, opening, own, tf1
from bert_jax.formats.conversion import convert
from bert_jax.formats.opening import open_stored, place
from bert_jax.formats.stored import check_fit
from bert_jax.pretrained.model import PretrainedModel, load
from bert_jax.tokenization.tokenizer import load_tokenizer


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
    assert_are(load(f"{place}:2").params, written[2])
    with pytest.raises(UserError, match="step 3 of .* is not there; other steps there: 2, 5"):
        load(f"{place}:3")
    with pytest.raises(UserError, match="there is no '.*nothing:3'"):
        load(tmp_path / "nothing:3")
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
    assert "step_000000005" in caplog.text and "cannot be used" in caplog.text
    assert "step_000000002 is used" in caplog.text
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
    foreign = "it is a step of another run, 'theirs', not of 'ours'"
    assert f"step_000000005 of {ours} cannot be used ({foreign})" in caplog.text
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
    texts = ["the cat sat on the mat.", ("a dog", "ran in the house"), "the"]
    options = {"layers": "all", "attentions": True}
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


def test_a_file_that_shrinks_after_it_was_opened_is_an_error(tmp_path):
    huggingface_export.write_huggingface(stored_model(kind="bert_jax"), tmp_path, "test")
    stored, file = open_stored(tmp_path), tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(UserError, match="model.safetensors has become shorter"):
        place(stored)


def test_arrays_that_do_not_fit_are_named_with_both_shapes():
    arrays = stored_model().arrays
    message = r"key/bias: stored \[5, 4, 4\], by the configuration \[5, 2, 8\].* and 4 more. Put the config"
    with pytest.raises(UserError, match=message):
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


def test_the_pre_training_loop_loads_no_task_and_loading_and_encoding_need_no_tensorflow(workdir):
    """One process, as importing JAX takes most of it."""
    code = "import sys, bert_jax.pretraining\nprint(*sys.modules)\n"
    ended = fresh.run(f"{code}bert_jax.load({str(workdir[0])!r}).embed('the cat')\nprint(*sys.modules)", cwd=fresh.ROOT)
    assert (ended.returncode, ended.stderr) == (0, "")  # no library greets
    first, last = (line.split() for line in ended.stdout.splitlines())
    assert "bert_jax.training.step" in first and "jax" in last
    assert not [name for name in first if name.startswith(("bert_jax.tasks", "bert_jax.finetuning"))]
    assert not {*first, *last} & {"tensorflow", "torch", "transformers"}


def test_the_public_names():
    assert bert_jax.load is load and bert_jax.PretrainedModel is PretrainedModel


def test_a_kernel_that_this_machine_cannot_run_is_refused_before_it_computes():
    stored, mesh = stored_model(), make_mesh(MeshConfig(), jax.devices()[:1])
    with pytest.raises(UserError, match="compute.attention=pallas needs a TPU, but this runs on cpu"):
        PretrainedModel(stored, place(stored, mesh), mesh, ComputeConfig(attention="pallas"))


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
        (["config.json", "pytorch_model.bin", "training_args.bin"], "", "huggingface"),
        (["config.json", "pytorch_model.bin.index.json"], "", "huggingface"),
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
            "pytorch_model.bin is not a whole file of torch .2 bytes",
        ),
        (["model.pt"], "", "model.pt is a pickle"),
        (["model.pth"], "model.pth", "model.pth is a pickle"),
        (["epoch=1.ckpt"], "epoch=1.ckpt", "ckpt is a pickle"),
        (["m.pkl"], "m.pkl", "is a pickle"),
        (["flax_model.msgpack"], "", "a format that is not read here"),
        (["tf_model.h5"], "tf_model.h5", "that is not read here"),
        (["bert.tar.gz"], "bert.tar.gz", "is an archive; unpack it"),
        (["model.safetensors"], "model.safetensors", "is a file; give the directory"),
        (["pytorch_model.bin"], "pytorch_model.bin", "is a file; give the directory"),
        (
            ["config.json"],
            "absent",
            "there is no .*absent.*: give the directory of a model, or hf://owner/name",
        ),
        (["step_000000001/record/metadata"], "", "holds steps of a run; give one of them, or the work directory above"),
        (["checkpoints/notes.txt"], "", "there is no checkpoint below"),
    ],
)
def test_what_cannot_be_loaded_gets_one_clear_line(tmp_path, names, path, message):
    with pytest.raises(UserError, match=message):
        load(make(tmp_path / "m", *names) / path)


@pytest.mark.parametrize(
    "file, path",
    [("pytorch_model.bin", ""), *((file, path) for file in ("model.pt", "tf_model.h5") for path in ("", "file"))],
)
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
    assert len(str(caught.value)) < 1000


def test_a_bucket_out_of_reach_is_one_line(monkeypatch):
    class Unreachable(Exception):
        """As TensorFlow's FailedPreconditionError, which is no OSError."""

    class Remote:
        def is_dir(self):
            raise Unreachable("cannot resolve host:\n\t when reading")

    monkeypatch.setattr(opening.epath, "Path", lambda name: Remote())
    with pytest.raises(UserError, match="'gs://bucket/bert' cannot be opened: cannot resolve host: when reading$"):
        load("gs://bucket/bert")


@pytest.fixture
def recorded(workdir, tmp_path):
    """A work directory whose run.json names its tokenizer, as runs leave it."""
    shutil.copytree(workdir[0], tmp_path / "run")
    facts = {"run_id": "run", "tokenizer_fingerprint": TOKENIZER.fingerprint}
    (tmp_path / "run" / "run.json").write_text(json.dumps(facts))
    return tmp_path / "run"


def exchange(directory: pathlib.Path) -> None:
    """Two lines of the vocabulary in each other's place."""
    words = [*WORDS[:6], WORDS[7], WORDS[6], *WORDS[8:]]
    (directory / "tokenizer" / "vocab.txt").write_text("\n".join(words) + "\n")


@pytest.mark.parametrize("below", ["", "checkpoints/step_000000002"])
def test_another_tokenizer_beside_a_checkpoint_is_refused(recorded, below):
    assert load(recorded / below).tokenizer.fingerprint == TOKENIZER.fingerprint
    exchange(recorded)
    ours = TOKENIZER.fingerprint[:12]
    says = f"not the tokenizer of this model: .* {{}}.*24 entries, {{}}.*run.json has {ours}.*Restore"
    exchanged = load_tokenizer(recorded / "tokenizer")
    with pytest.raises(UserError, match=says.format(exchanged.fingerprint[:12], "lower case")):
        open_stored(recorded / below)  # which --init_from, convert and predict call too
    TOKENIZER.save(recorded / "tokenizer")
    (recorded / "tokenizer" / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    with pytest.raises(UserError, match=says.format("", "cased")):
        load(recorded / below)


def test_another_tokenizer_beside_a_converted_model_or_a_single_run_is_refused(recorded, tmp_path):
    convert(recorded, tmp_path / "converted", to="bert_jax")
    exchange(tmp_path / "converted")
    with pytest.raises(UserError, match="not the tokenizer of this model"):
        load(tmp_path / "converted")
    one = tmp_path / "grid" / "runs" / "seed0"  # of fine-tuning, with --keep=all
    write_workdir(one, 2, run_id="run/seed0")
    (tmp_path / "grid" / "run.json").write_text((recorded / "run.json").read_text())
    assert load(one).tokenizer.tokens == WORDS
    exchange(one)
    with pytest.raises(UserError, match="runs/seed0/tokenizer is not the tokenizer of this model"):
        load(one)


def test_a_model_that_was_written_without_a_vocabulary_opens_with_one_of_its_size(recorded):
    (recorded / "run.json").write_text(json.dumps({"run_id": "run", "source": {"kind": "tf1"}}))
    assert load(recorded).tokenizer.tokens == WORDS
    # One short, 24 rows: may be padding.
    (recorded / "tokenizer" / "vocab.txt").write_text("\n".join(WORDS[:-1]) + "\n")
    assert load(recorded).tokenizer.tokens == WORDS[:-1]
    (recorded / "tokenizer" / "vocab.txt").write_text("\n".join(WORDS[:12]) + "\n")
    with pytest.raises(UserError, match="vocabulary of 12 entries for a word table of 24 rows.*not padding"):
        load(recorded)


HEADS = {
    "classification": HeadConfig(labels=("no", "yes", "perhaps")),
    "regression": HeadConfig(kind="regression"),
    "tagging": HeadConfig(kind="tagging", labels=("O", "B-X", "I-X")),
    "crf": HeadConfig(kind="tagging", labels=("O", "B-X", "I-X"), crf=True),
    "choice": HeadConfig(kind="choice"),
    "span": HeadConfig(kind="span"),
}
CONTEXT = "The old cat sat on a big mat, and the bird flew in the tree house. " * 3


@pytest.fixture(scope="module")
def models():
    return {name: loaded(stored_model(config=SMALL, head=head)) for name, head in HEADS.items()}


def scores(model, text) -> np.ndarray:
    """Of the head at the pooled vector, or at every token: float64."""
    output = row_by_row(model, text)
    read = output["pooled"] if "pooler" in model.params else output["last_hidden_state"]
    return numpy_bert.dense(read[0], numpy_bert.as_float64(jax.device_get(model.params["head"])))


def test_classes_and_numbers(models):
    texts = ["the cat sat on the mat.", ("a dog", "ran in the house"), "birds"]
    for text, label in zip(texts, models["classification"].predict(texts), strict=True):
        shares = numpy_bert.softmax(scores(models["classification"], text))
        assert label.name == ("no", "yes", "perhaps")[shares.argmax()]
        assert list(label.probabilities) == ["no", "yes", "perhaps"]
        np.testing.assert_allclose(list(label.probabilities.values()), shares, atol=1e-5)
    for text, number in zip(texts, models["regression"].predict(texts, batch_size=2), strict=True):
        assert number == pytest.approx(scores(models["regression"], text)[0], abs=1e-4)


def test_the_choice_is_that_of_the_highest_score(models):
    first, seconds = "the cat sat", ["on the mat", "in the tree house", "a"]
    (choice,) = models["choice"].predict((first, seconds))
    shares = numpy_bert.softmax(np.array([scores(models["choice"], (first, second))[0] for second in seconds]))
    assert choice.index == shares.argmax()
    np.testing.assert_allclose(choice.probabilities, shares, atol=1e-5)


@pytest.mark.parametrize("name", ["tagging", "crf"])
def test_tags_stand_at_the_first_pieces_of_words(models, name):
    model, words = models[name], ("the", "cats", "sat", ",", "old", "bird")
    found, same = model.predict([" ".join(words), words])
    assert found == same and [word for word, _ in found] == list(words)
    sizes = [len(TOKENIZER.encode(word)) for word in words]
    emissions = scores(model, " ".join(words))[1 + np.cumsum([0, *sizes[:-1]])]
    if name == "tagging":
        best = emissions.argmax(-1)
    else:  # every path of the three labels over six words; I-X only behind B-X or I-X
        p = numpy_bert.as_float64(jax.device_get(model.params["crf"]))

        def score(path):
            between = sum(p["transitions"][a, b] for a, b in itertools.pairwise(path))
            return p["start"][path[0]] + emissions[np.arange(6), path].sum() + between + p["end"][path[-1]]

        allowed = lambda path: all((a, b) != (0, 2) for a, b in zip((0, *path), path))
        best = max(filter(allowed, itertools.product(range(3), repeat=len(words))), key=score)
    assert [tag for _, tag in found] == [HEADS["crf"].labels[i] for i in best]


def test_an_answer_is_the_best_part_of_the_context(models):
    model, question, context = models["span"], "the cat", "a big dog ran in the house , the bird flew"
    (answer,) = model.predict((question, context))
    table, prefix = scores(model, (question, context)), len(original_pieces(question)[0])
    starts, ends = table[prefix:-1].T
    spans = [(first, last) for first in range(len(starts)) for last in range(first, len(ends))]
    first, last = max(spans, key=lambda span: starts[span[0]] + ends[span[1]])
    assert answer.text == TOKENIZER.decode(TOKENIZER.encode(context)[first : last + 1])
    assert answer.candidates[0][0] == answer.text and sum(share for _, share in answer.candidates) == pytest.approx(1)
    long, short = model.predict([(question, CONTEXT), (question, context)])  # the first needs several windows
    assert long.text in CONTEXT and short.text == answer.text


@pytest.mark.parametrize("threshold, measured, empty", [(-1e9, 1e9, True), (1e9, -1e9, False), (None, -1e9, True)])
def test_without_an_answer_where_the_model_was_trained_to_say_so(models, threshold, measured, empty):
    settings = {"finetune": {"task": "squad_v2", "options": {"null_threshold": threshold}}}
    models["span"].history = {"config": settings, "metrics": {"best_f1_thresh": measured}}
    (answer,) = models["span"].predict(("the cat", "a dog ran"))
    assert (answer.text == "") == empty and "" in dict(answer.candidates)


@pytest.mark.parametrize(
    "name, short, long",
    [
        ("choice", ("the cat", ["sat", "ran"]), ("the cat " * 20, ["sat", "ran"])),
        ("span", ("the cat", CONTEXT), ("the cat " * 20, CONTEXT)),
    ],
)
def test_questions_that_are_cut_are_counted(models, caplog, name, short, long):
    models[name].predict([short, short])
    assert not caplog.records
    models[name].predict([short, long])
    (record,) = caplog.records
    assert record.getMessage().startswith("1 of 2 questions (50.0 %) are longer than the ")


@pytest.mark.parametrize(
    "name, inputs, message",
    [
        ("classification", [3], "text 0 is 3"),
        ("tagging", [], "a sentence"),
        ("tagging", [["the"]], "a tuple of its words"),
        ("tagging", "", "a tuple of its words"),
        ("tagging", None, "cannot read None"),
        ("choice", ("a", "b"), r"expected \(text, \[candidate"),
        ("choice", [("a", ["b", "c"]), ("a", ["b", "c", "d"])], "the same number of candidates"),
        ("choice", [], "candidate"),
        ("choice", 5, "cannot read 5; expected .text"),
        ("span", None, "cannot read None"),
        ("span", ("who", " "), r"expected \(question, context\)"),
        ("span", ["who"], r"expected \(question, context\)"),
    ],
)
def test_inputs_of_another_form_are_refused(models, name, inputs, message):
    with pytest.raises(UserError, match=message):
        models[name].predict(inputs)
