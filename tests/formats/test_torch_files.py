"""pytorch_model.bin: the arrays that torch saved, hostile and damaged files, and directories that have nothing else."""

import io
import itertools
import json
import pickle
import random
import re
import struct
import sys
import tracemalloc
import zipfile

import file_damage
import numpy as np
import pytest
import recorded_models
import safetensors.numpy
import torch_form
from etils import epath
from huggingface_directory import STATE, directory, refusal
from peer_outputs import run_with_peer
from pretrained_model import whole
from processes import EXHAUSTIVE
from torch_form import array, name, number, program, storage, text, together, write_program

import bert_jax
from bert_jax.errors import UserError
from bert_jax.formats import torch_files
from bert_jax.formats.huggingface import open_huggingface
from bert_jax.formats.opening import open_stored
from bert_jax.formats.safetensors_files import TYPES

SEED = 20181011
BASE = np.arange(48, dtype=np.float32).reshape(6, 8)


def opened(file) -> dict:
    return torch_files.open_file(epath.Path(file))


def says(file) -> str:
    """The message with which a file is refused: one line of bounded length."""
    with pytest.raises(UserError) as caught:
        opened(file)
    message = str(caught.value)
    assert str(file) in message and "\n" not in message and len(message) < 900
    return message


def of_type(dtype: str) -> np.ndarray:
    values = np.array([[-1.5, 0.0, 2.0], [3.25, 1.0, 0.5]])
    return (np.abs(values) if dtype.startswith(("u", "bool")) else values).astype(torch_form.dtype_of(dtype))


@pytest.mark.parametrize("form", ["v1", "v2", "parameter"])
def test_arrays_of_every_type_in_every_form(tmp_path, form):
    state = {dtype: of_type(dtype) for dtype in torch_form.TYPES} | {"scalar": np.float32(3).reshape(())}
    found = opened(torch_form.write(tmp_path / "x.bin", state, form))
    assert {tensor.dtype for tensor in found.values()} == set(TYPES) and list(found) == list(state)
    for each, value in state.items():
        assert found[each].shape == value.shape
        np.testing.assert_array_equal(whole(found[each]), value.astype(np.float32), err_msg=each)


VIEWS = {  # arrays in one storage of 48 values: a function of the base, and what torch says of it
    "all": (lambda base: base, (6, 8), (8, 1), 0),
    "rows": (lambda base: base[1:4], (3, 8), (8, 1), 8),
    "columns": (lambda base: base[:, 2:5], (6, 3), (8, 1), 2),
    "transposed": (lambda base: base.T, (8, 6), (1, 8), 0),
    "every second": (lambda base: base[1::2, ::3], (3, 3), (16, 3), 8),
    "folded": (lambda base: base.reshape(6, 2, 4).transpose(2, 0, 1), (4, 6, 2), (1, 8, 4), 0),
    "repeated": (lambda base: np.broadcast_to(base[0], (5, 8)), (5, 8), (0, 1), 0),
    "one": (lambda base: base[5, 7], (), (), 47),
    "none": (lambda base: base[:0], (0, 8), (8, 1), 48),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e5m2"])
def test_arrays_that_share_a_storage_and_are_not_contiguous(tmp_path, dtype):
    base = BASE.astype(torch_form.dtype_of(dtype))
    entries = {
        each: array("0", dtype, 48, shape, strides, offset) for each, (_, shape, strides, offset) in VIEWS.items()
    }
    write_program(tmp_path / "x.bin", program(entries), {"0": base.tobytes()})
    found = opened(tmp_path / "x.bin")
    for each, (view, shape, _, _) in VIEWS.items():
        expected = view(base).astype(np.float32)
        assert found[each].shape == shape == expected.shape
        np.testing.assert_array_equal(whole(found[each]), expected, err_msg=each)
        for bounds in itertools.product([slice(1, 3), slice(0, 0), slice(None, None, 2)], repeat=len(shape)):
            np.testing.assert_array_equal(found[each].read(bounds), expected[bounds], err_msg=f"{each} {bounds}")


def only_torch(place, state=STATE, **config):
    """A directory whose arrays are in pytorch_model.bin alone."""
    directory(place, state, **config)
    (place / "model.safetensors").unlink()
    torch_form.write(place / "pytorch_model.bin", state)
    return place


def test_a_directory_is_the_model_that_safetensors_would_be(tmp_path):
    expected, place = open_stored(directory(tmp_path / "safe")), only_torch(tmp_path / "torch")
    stored = open_stored(place)
    assert (
        stored.model == expected.model and stored.parts == expected.parts and set(stored.arrays) == {*expected.arrays}
    )
    for path, value in expected.arrays.items():
        np.testing.assert_array_equal(whole(stored.arrays[path]), whole(value), err_msg=path)
        bounds = tuple(slice(1, max(2, size - 1)) for size in value.shape)
        np.testing.assert_array_equal(stored.arrays[path].read(bounds), value.read(bounds), err_msg=path)
    bert_jax.convert(place, tmp_path / "out", to="huggingface")
    written = safetensors.numpy.load_file(tmp_path / "out" / "model.safetensors")
    for each, value in STATE.items():
        np.testing.assert_array_equal(written[each], value, err_msg=each)


def test_shards_and_their_index(tmp_path):
    place, files = only_torch(tmp_path), ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"]
    (place / "pytorch_model.bin").unlink()
    home = {each: files[number % 2] for number, each in enumerate(STATE)}
    for file in files:
        torch_form.write(place / file, {each: STATE[each] for each in STATE if home[each] == file})
    index = place / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": home}))
    expected = open_huggingface(directory(tmp_path / "safe"))
    for path, value in open_stored(place).arrays.items():
        np.testing.assert_array_equal(whole(value), whole(expected.arrays[path]), err_msg=path)
    for changed, message in (
        ({"extra": files[0]}, "pytorch_model.bin.index.json says that extra is in pytorch_model-00001"),
        ({"extra": "../x.bin"}, "only files in the directory itself are opened"),
        ({"extra": "gone.bin"}, "gone.bin is missing"),
    ):
        index.write_text(json.dumps({"weight_map": home | changed}))
        assert message in refusal(place)


@pytest.mark.parametrize("before", ["module.", "_orig_mod.module."])
def test_the_published_words_of_a_deberta_behind_the_names_of_a_wrapper(tmp_path, before):
    """Its head and its table have names of their own, which no class of transformers has."""
    place = recorded_models.save_published(recorded_models.CASES["deberta/third"], tmp_path / "theirs")
    expected, state = open_stored(place), safetensors.numpy.load_file(place / "model.safetensors")
    expected = {path: whole(array) for path, array in expected.arrays.items()}
    assert any(path.startswith("mask_decoder/") for path in expected)
    (place / "model.safetensors").unlink()
    torch_form.write(place / "pytorch_model.bin", {before + each: values for each, values in state.items()})
    found = open_stored(place).arrays
    assert found.keys() == expected.keys()
    for path, values in found.items():
        np.testing.assert_array_equal(whole(values), expected[path], err_msg=path)


def test_safetensors_beside_it_are_read_instead(tmp_path):
    place = directory(tmp_path)
    (place / "pytorch_model.bin").write_bytes(b"not read")
    np.testing.assert_array_equal(whole(open_stored(place).arrays["pooler/bias"]), STATE["bert.pooler.dense.bias"])


OLD = pickle.PROTO + b"\2" + pickle.LONG1 + b"\nl\xfc\x9cF\xf9 j\xa8P\x19.more"
"""The number with which files of torch begin that are not archives."""


@pytest.mark.parametrize(
    "contents, message",
    [
        (
            OLD,
            "before 1.6, a pickle.*weights_only=True",
        ),
        (b"storages".ljust(257, b"\0") + b"ustar", "before 0.1.10, a tar archive.*trust its owner.*weights_only=False"),
        (b"", "not a whole file of torch .0 bytes"),
        (b"version https://git-lfs.github.com/spec/v1\n", "not a whole file of torch .43 bytes"),
        (b"cos\nsystem\n(S'true'\ntR.", "not a whole file of torch"),
    ],
)
def test_other_forms_are_named_for_what_they_are(tmp_path, contents, message):
    (tmp_path / "x.bin").write_bytes(contents)
    with pytest.raises(UserError, match=message):
        opened(tmp_path / "x.bin")


ONE = array("0", "float32", 48, (6, 8), (8, 1))
PUSHED = text("x")


def call(function: bytes, *arguments: bytes) -> bytes:
    return function + together(*arguments) + pickle.REDUCE


LYING = {  # a pickle, and what the message says
    "no arrays": (program({}), "no dict of arrays"),
    "an array alone": (pickle.PROTO + b"\2" + ONE + pickle.STOP, "no dict of arrays"),
    "more than arrays": (program({"epoch": number(3)}), "'epoch'"),
    "a dict within": (program({"model": pickle.EMPTY_DICT + text("a") + ONE + pickle.SETITEM}), "'model'"),
    "a name without letters": (program({"a\nb": ONE}), "'a\\nb'"),
    "a name twice": (
        pickle.EMPTY_DICT + pickle.MARK + 2 * (text("a") + ONE) + pickle.SETITEMS + pickle.STOP,
        "a name that is there twice",
    ),
    "a shape beyond its storage": (program({"a": array("0", "float32", 48, (7, 8), (8, 1))}), "beyond its storage"),
    "an offset beyond it": (program({"a": array("0", "float32", 48, (6, 8), (8, 1), 1)}), "beyond its storage"),
    "strides beyond it": (program({"a": array("0", "float32", 48, (2, 2), (47, 1))}), "beyond its storage"),
    "a storage that is longer": (program({"a": array("0", "float32", 2**40, (6, 8), (8, 1))}), "instead of 4,398"),
    "a storage of another type": (program({"a": array("0", "float64", 48, (6, 8), (8, 1))}), "has 192 bytes"),
    "a storage that is missing": (program({"a": array("1", "float32", 48, (6, 8), (8, 1))}), "storage '1' of 'a'"),
    "a storage elsewhere": (program({"a": array("../version", "float32", 48, (6, 8), (8, 1))}), "'../version'"),
    "negative sizes": (program({"a": array("0", "float32", 48, (-6, 8), (8, 1))}), "no possible sizes"),
    "negative strides": (program({"a": array("0", "float32", 48, (6, 8), (-8, 1), 40)}), "no possible sizes"),
    "sizes beyond 64 bits": (program({"a": array("0", "float32", 48, (2**1000, 8), (0, 1))}), "no possible sizes"),
    "a negative storage": (program({"a": array("0", "float32", -1, (0,), (1,))}), "no storage"),
    "more strides than sizes": (program({"a": array("0", "float32", 48, (6, 8), (8, 1, 1))}), "2 sizes and 3 strides"),
    "too many axes": (program({"a": array("0", "float32", 48, [1] * 33, [0] * 33)}), "33 sizes"),
    "one value for all": (program({"a": array("0", "float32", 48, (2**40,), (0,))}), "claims 1,099,511,627,776 values"),
    "many small claims": (
        program({str(each): array("0", "float32", 48, (6, 8, 99), (8, 1, 0)) for each in range(40)}),
        "claims 190,080 values",
    ),
    "a conjugate": (
        program(
            {
                "a": call(
                    name("torch._utils", "_rebuild_tensor_v2"),
                    *(storage("0", "float32", 48), number(0), together(number(6)), together(number(1))),
                    *(pickle.NEWFALSE, torch_form.EMPTY),
                    pickle.EMPTY_DICT + text("neg") + pickle.NEWTRUE + pickle.SETITEM,
                )
            }
        ),
        "in a way that is not known",
    ),
    "a function without arguments": (
        program({"a": call(name("torch._utils", "_rebuild_tensor_v2"))}),
        "not known here",
    ),
    "a parameter of nothing": (
        program({"a": call(name("torch._utils", "_rebuild_parameter"), PUSHED)}),
        "other arguments",
    ),
    "a text that is called": (program({"a": call(PUSHED)}), "no function"),
    "a type that is called": (program({"a": call(name("torch", "FloatStorage"), number(9))}), "other arguments"),
    "a dict of something": (program({"a": call(name("collections", "OrderedDict"), ONE)}), "other arguments"),
    "another persistent id": (program({"a": text("x") + pickle.BINPERSID}), "no storage"),
    "attributes of an array": (program({"a": ONE + pickle.EMPTY_DICT + pickle.BUILD}), "no dict"),
    "items of a text": (program({"a": PUSHED + PUSHED + PUSHED + pickle.SETITEM}), "no dict"),
    "half a pair": (pickle.EMPTY_DICT + pickle.MARK + PUSHED + pickle.SETITEMS + pickle.STOP, "no dict"),
    "a number for a name": (program({}, pickle.EMPTY_DICT + number(1) + ONE + pickle.SETITEM), "is no text"),
    "nothing on the stack": (pickle.TUPLE2 + pickle.STOP, "has not made"),
    "nothing above the mark": (PUSHED + pickle.MARK + pickle.TUPLE1 + pickle.STOP, "has not made"),
    "no mark": (PUSHED + pickle.TUPLE + pickle.STOP, "has not made"),
    "nothing remembered": (pickle.BINGET + b"\7" + pickle.STOP, "has not made"),
    "no end": (pickle.EMPTY_DICT, "opcode b''"),
    "half a number": (pickle.BININT + b"\1", "is damaged: not enough data"),
    "a text of 4 GiB": (pickle.BINUNICODE + struct.pack("<I", 2**32 - 1) + b"x", "expected 4294967295 bytes"),
    "a text of 2^63 bytes": (pickle.BINUNICODE8 + struct.pack("<Q", 2**63) + b"x", "opcode"),
    "a decimal number of a million digits": (pickle.INT + b"9" * 10**6 + b"\n", "opcode b'I'"),
    "a list": (pickle.EMPTY_LIST + pickle.STOP, "opcode"),
    "an object": (name("os", "system") + pickle.EMPTY_TUPLE + pickle.NEWOBJ, "'os.system'"),
    "a name by number": (pickle.EXT1 + b"\1", "opcode"),
    "a name from texts": (text("posix") + text("system") + pickle.STACK_GLOBAL, "'posix.system'"),
    "a name from numbers": (number(1) + number(2) + pickle.STACK_GLOBAL, "is no text"),
    "a name within a name": (name("torch._utils", "_rebuild_tensor_v2.__globals__"), "__globals__"),
    "operations without end": (PUSHED * (torch_files.MAX_OPERATIONS + 1), "more than 524,288 operations"),
    "marks without end": (pickle.MARK * (torch_files.MAX_OPERATIONS + 1), "more than 524,288 operations"),
    "tuples without end": (
        pickle.EMPTY_TUPLE + pickle.TUPLE1 * (torch_files.MAX_OPERATIONS - 2) + pickle.STOP,
        "no dict of arrays",
    ),
    "a value of 2^500 leaves": (
        pickle.EMPTY_TUPLE + (pickle.BINPUT + b"\0" + pickle.BINGET + b"\0" + pickle.TUPLE2) * 500 + pickle.STOP,
        "no dict of arrays",
    ),
    "a dict within itself": (
        pickle.EMPTY_DICT + pickle.BINPUT + b"\0" + text("a") + pickle.BINGET + b"\0" + pickle.SETITEM + pickle.STOP,
        "is not a dict of named arrays alone: 'a'",
    ),
}


@pytest.mark.parametrize("lie", LYING)
def test_a_pickle_that_lies(tmp_path, lie):
    pickled, message = LYING[lie]
    write_program(tmp_path / "x.bin", pickled, {"0": BASE.tobytes()})
    assert message in says(tmp_path / "x.bin")


def archive(*records: tuple[str, bytes], how: int = zipfile.ZIP_STORED) -> bytes:
    """A zip archive of these records, which may have one name."""
    contents = io.BytesIO()
    with zipfile.ZipFile(contents, "w", how) as written:
        for each in records:
            written.writestr(*each)
    return contents.getvalue()


PICKLED = ("archive/data.pkl", program({"a": ONE}))
VALUES = ("archive/data/0", BASE.tobytes())


def test_an_archive_that_lies(tmp_path):
    whole_one = archive(PICKLED, VALUES)
    directory_at, end = whole_one.index(b"PK\1\2"), whole_one.index(b"PK\5\6")
    claimed = bytearray(whole_one)
    claimed[end + 12 : end + 16] = struct.pack("<I", 2**31)
    moved = bytearray(whole_one)
    moved[directory_at + 42 : directory_at + 46] = struct.pack("<I", whole_one.index(b"PK\3\4", 1))
    broken = whole_one.replace(b"_rebuild_tensor_v2", b"_rebuild_tensor_v3")
    with pytest.warns(UserWarning, match="Duplicate name"):
        twice = archive(PICKLED, VALUES, VALUES)
    for contents, message in {
        archive(PICKLED, VALUES, how=zipfile.ZIP_DEFLATED): "compressed or encrypted record, 'archive/data.pkl'",
        archive(PICKLED, ("archive/data/0", bytes(10**7)), how=zipfile.ZIP_DEFLATED): "records of more than its",
        archive(("archive/data.pkl", bytes(5 << 20))): "'archive/data.pkl' of 5,242,880 bytes; at most 4,194,304",
        archive(PICKLED, VALUES, ("archive/byteorder", b"big")): "little-endian",
        archive(VALUES): "not of torch",
        archive(("data.pkl", PICKLED[1])): "not of torch",
        archive(PICKLED, ("other/data.pkl", b".")): "not of torch",
        twice: "two of its records have one name",
        bytes(claimed): "not a whole file of torch",
        bytes(moved): "another record is where its list has",
        broken: "checksum of 'archive/data.pkl' is wrong",
        whole_one[: directory_at - 1]: "not a whole file of torch",
    }.items():
        (tmp_path / "x.bin").write_bytes(contents)
        assert message in says(tmp_path / "x.bin"), message
    (tmp_path / "x.bin").write_bytes(whole_one)
    np.testing.assert_array_equal(whole(opened(tmp_path / "x.bin")["a"]), BASE)


def test_a_list_of_records_that_needs_gigabytes_is_not_read(tmp_path):
    """An end of archive that claims all of a sparse file as the list."""
    size = 3 << 30
    with (tmp_path / "x.bin").open("wb") as stream:
        stream.truncate(size)
        stream.seek(size)
        stream.write(struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 65535, 65535, size - 1, 0, 0))
    assert "at most 4,194,304 are read" in says(tmp_path / "x.bin")


WATCHED: list[str] = []
"""What the interpreter did while a file was read that reading must not do; a hook cannot be taken away again."""
FORBIDDEN = ("os.", "subprocess.", "exec", "compile", "pickle.", "import", "socket.", "ctypes.", "shutil.", "code.")
WATCHING = [False]


def _watch(event: str, arguments: tuple) -> None:
    if WATCHING[0] and event.startswith(FORBIDDEN) and event not in ("os.listdir", "os.scandir"):
        WATCHED.append(f"{event} {arguments!r:.100}")


COMMANDS = [
    ("os", "system"), ("posix", "system"), ("subprocess", "Popen"), ("builtins", "eval"), ("builtins", "exec"),
    ("builtins", "getattr"), ("builtins", "__import__"), ("importlib", "import_module"), ("operator", "attrgetter"),
    ("functools", "partial"), ("types", "FunctionType"), ("pickle", "loads"), ("torch", "load"), ("numpy", "load"),
    ("torch.jit", "load"), ("torch._utils", "_rebuild_tensor_v2.__globals__"), ("runpy", "run_path"),
    ("collections", "OrderedDict.fromkeys"), ("torch.storage", "UntypedStorage.from_file"), ("shutil", "rmtree"),
]  # fmt: skip


def hostile(draw: random.Random, marker: str) -> tuple[bytes, dict[str, bytes]]:
    """A pickle that would write a file, and hide that, exhaust memory or never end if it were run; and records."""
    command = text(f"touch {marker}")
    danger = call(name(*draw.choice(COMMANDS)), command)
    sizes = [draw.choice([0, 1, 2**31, 2**62, 2**63, 2**900, -1, -(2**63)]) for _ in range(draw.randrange(5))]

    def chain() -> bytes:
        """getattr(getattr(…, "__class__"), "__subclasses__") …"""
        found = draw.choice([pickle.EMPTY_TUPLE, name("collections", "OrderedDict"), text("x")])
        for _ in range(draw.randrange(1, 40)):
            attribute = draw.choice(["__class__", "__base__", "__subclasses__", "__globals__", "system", "__init__"])
            found = call(name("builtins", "getattr"), found, text(attribute))
        return call(found, command)

    def loop() -> bytes:
        """Something that contains itself, by way of the memo."""
        start, number = draw.choice([pickle.EMPTY_DICT, torch_form.EMPTY]), bytes([draw.randrange(256)])
        inside = draw.choice([pickle.BINGET + number, together(pickle.BINGET + number), pickle.BINGET + bytes([3])])
        return start + pickle.BINPUT + number + text("a") + inside + pickle.SETITEM

    def deep() -> bytes:
        count = draw.randrange(1, 20_000)
        grown = draw.choice([pickle.TUPLE1, pickle.BINPUT + b"\0" + pickle.BINGET + b"\0" + pickle.TUPLE2])
        return draw.choice([pickle.EMPTY_TUPLE + grown * count, pickle.MARK * count, pickle.EMPTY_DICT * count])

    def claim() -> bytes:
        strides = [draw.choice([0, 1, 2**40]) for _ in sizes]
        key, values = draw.choice(["0", "1", "../0", "/etc/passwd"]), draw.choice([48, 2**40, 2**900])
        return array(key, draw.choice([*torch_form.TYPES]), values, sizes, strides, draw.choice([0, 1, 2**62]))

    def noise() -> bytes:
        return bytes(draw.randrange(256) for _ in range(draw.randrange(200)))

    def shuffled() -> bytes:
        opcodes = [each for each in torch_files.OPCODES if each != pickle.STOP]
        return b"".join(draw.choice([draw.choice(opcodes), ONE, number(3), text("a")]) for _ in range(60))

    def build() -> bytes:
        """An object whose attributes, or whose state, would be the command."""
        return draw.choice([torch_form.EMPTY, name("torch", "FloatStorage"), ONE]) + danger + pickle.BUILD

    part = draw.choice([lambda: danger, chain, loop, deep, claim, noise, shuffled, build])()
    kept = draw.choice([part, part + pickle.BINPUT + b"\x09" + ONE, ONE + part, together(part, ONE)])
    pickled = draw.choice(
        [program({"a": ONE, "b": kept}), pickle.PROTO + b"\4" + kept + pickle.STOP, program({}, kept)]
    )
    return pickled, {"0": BASE.tobytes()}


def test_hostile_pickles_run_nothing_in_bounded_memory(tmp_path):
    cases, refused = 1_000 if EXHAUSTIVE else 150, 0
    file, marker = tmp_path / "x.bin", tmp_path / "ran"
    write_program(file, program({"a": ONE}), {"0": BASE.tobytes()})
    opened(file)  # imports what a first reading needs
    sys.addaudithook(_watch)
    tracemalloc.start()
    try:
        for case in range(cases):
            draw = random.Random(f"{SEED} {case}")
            pickled, records = hostile(draw, str(marker))
            write_program(file, pickled, records, compressed=draw.random() < 0.05)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            WATCHING[0] = True
            try:
                found = {each: tensor.shape for each, tensor in opened(file).items()}
            except UserError as error:
                refused += 1
                assert "\n" not in str(error) and len(str(error)) < 900, case
            else:
                assert set(found) <= {"a", "b"} and np.prod([*found.values()][-1]) <= 4 * file.stat().st_size, case
            finally:
                WATCHING[0] = False
            assert not WATCHED and not marker.exists(), (case, WATCHED)
            assert tracemalloc.get_traced_memory()[1] - before < 32 << 20, case
    finally:
        tracemalloc.stop()
    assert refused > 0.9 * cases


def test_damaged_bytes_are_refused_or_change_values_alone(tmp_path):
    """Nothing but the values themselves has no checksum, and is as long as it was."""
    contents = {"a": BASE, "b": np.arange(6, dtype=np.int64), "c": BASE[:2].astype(np.float16)}
    file, intact = tmp_path / "x.bin", torch_form.write(tmp_path / "intact.bin", contents).read_bytes()
    refused, cases = 0, 1_000 if EXHAUSTIVE else 150
    for case in range(cases):
        if file.is_dir() and not file.is_symlink():
            file.rmdir()
        file.unlink(missing_ok=True)  # it may be a pipe or a link to a device, to which nothing can be written
        file.write_bytes(intact)
        what = file_damage.damage(file, np.random.default_rng([SEED, case]))
        if not file.is_file():
            continue
        try:
            found = opened(file)
        except UserError as error:
            refused += 1
            assert "\n" not in str(error) and len(str(error)) < 900, what
            continue
        assert {each: (tensor.shape, whole(tensor).shape) for each, tensor in found.items()} == {
            each: (value.shape, value.shape) for each, value in contents.items()
        }, what
        assert sum(not np.array_equal(whole(found[each]), value) for each, value in contents.items()) <= 1, what
    assert refused > 0.4 * cases


def test_arrays_are_those_that_torch_wrote(peer, tmp_path):
    (tmp_path / "old.bin").write_bytes(OLD)
    (advice,) = re.findall('python -c "(.*?)"', says(tmp_path / "old.bin"))
    advice = advice.replace("OLD", "old.bin").replace("NEW", "renewed.bin")
    run_with_peer(peer, "save_with_torch.py", tmp_path, advice)
    expected = dict(np.load(tmp_path / "expected.npz"))
    assert "before 1.6" in says(tmp_path / "old.bin")
    found = {file.name: opened(file) for file in tmp_path.glob("*.bin") if file.name != "old.bin"}
    assert len(found) == 6 and len(expected) > 20
    assert len(found["renewed.bin"]) == len(expected) - 5
    for file, tensors in found.items():
        assert set(tensors) == set(expected) or file == "renewed.bin"
        for each, tensor in tensors.items():
            assert tensor.shape == expected[each].shape
            np.testing.assert_array_equal(whole(tensor), expected[each], err_msg=f"{file} {each}")
