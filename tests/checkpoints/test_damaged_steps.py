"""Steps that are damaged, of another run or unusable: which one a start goes back to, and what is said."""

import dataclasses
import pathlib
import shutil

import jax
import jax.numpy as jnp
import pytest
from small_states import KEEP_ALL, abstract, assert_same_bits, make_state, write_steps

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.errors import UserError


def largest_file(directory: pathlib.Path) -> pathlib.Path:
    return max((path for path in directory.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def flip_bit(step: pathlib.Path) -> None:
    path = largest_file(step / "state")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def truncate(step: pathlib.Path) -> None:
    path = largest_file(step / "state")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def change_position(step: pathlib.Path) -> None:
    path = largest_file(step / "record")
    text = path.read_text()
    assert '"examples_seen": 64' in text
    path.write_text(text.replace('"examples_seen": 64', '"examples_seen": 65'))


def empty(step: pathlib.Path) -> None:
    shutil.rmtree(step)
    step.mkdir()


DAMAGES = {
    "bit flip": (flip_bit, "the array params/embeddings/word/table has changed"),
    "truncated": (truncate, "the array params/embeddings/word/table cannot be read"),
    "deleted": (
        lambda step: largest_file(step / "state").unlink(),
        "the array params/embeddings/word/table cannot be read",
    ),
    "manifest deleted": (lambda step: (step / "state" / "manifest.ocdbt").unlink(), "cannot be used"),
    "position changed": (change_position, "checksum"),
    "record garbage": (lambda step: largest_file(step / "record").write_bytes(b"\xff{"), "cannot be used"),
    "no record": (lambda step: shutil.rmtree(step / "record"), "cannot be used"),
    "empty directory": (empty, "cannot be used"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_newest_step_gives_way_to_the_older(tmp_path, caplog, damage):
    states = write_steps(tmp_path, 1, 2)
    apply, said = DAMAGES[damage]
    apply(tmp_path / "step_000000002")
    with Checkpoints(tmp_path, KEEP_ALL) as checkpoints:
        restored = checkpoints.restore(abstract(states[1]))
        assert (restored.step, restored.position, restored.config) == (1, {"examples_seen": 32}, {"seed": 1})
        assert_same_bits(states[1], restored.state)
        assert "step 2" in caplog.text and said in caplog.text
        assert checkpoints.steps() == [1]
        assert checkpoints.save(
            2, states[2], position={"examples_seen": 64}, config={}
        )  # the run passes the place again
    assert_same_bits(states[2], Checkpoints(tmp_path, read_only=True).restore(abstract(states[2])).state)
    assert (tmp_path / "damaged_step_000000002").is_dir()


@pytest.mark.parametrize("name", ["_METADATA", "_sharding"])
def test_what_orbax_notes_beside_the_arrays_is_not_needed(tmp_path, name):
    states = write_steps(tmp_path, 1)
    (tmp_path / "step_000000001" / "state" / name).write_text("{")
    assert_same_bits(states[1], Checkpoints(tmp_path, read_only=True).restore(abstract(states[1])).state)


@pytest.mark.parametrize(
    "ours, theirs", [("a" * 32, "b" * 32), ("a" * 32, None), (None, "b" * 32), ("a" * 32, "a" * 32 + "/seed0")]
)
def test_a_step_of_another_run_gives_way_to_an_older_one_of_this_run(tmp_path, caplog, ours, theirs):
    states = write_steps(tmp_path / "ours", 1, run_id=ours)
    write_steps(tmp_path / "theirs", 2, run_id=theirs)
    shutil.copytree(tmp_path / "theirs" / "step_000000002", tmp_path / "ours" / "step_000000002")
    with Checkpoints(tmp_path / "ours", KEEP_ALL, run_id=ours) as checkpoints:
        restored = checkpoints.restore(abstract(states[1]))
        assert restored.step == 1 and checkpoints.steps() == [1]
        assert_same_bits(states[1], restored.state)
        assert f"step 2 in {tmp_path / 'ours'} cannot be used" in caplog.text
        assert f"it is a step of another run, {theirs!r}, not of {ours!r}" in caplog.text
    shutil.rmtree(tmp_path / "ours" / "step_000000001")
    (tmp_path / "ours" / "damaged_step_000000002").rename(tmp_path / "ours" / "step_000000002")
    with pytest.raises(UserError, match=r"none of the 1 checkpoints .*step 2: .*a step of another run"):
        Checkpoints(tmp_path / "ours", read_only=True, run_id=ours).restore(abstract(states[1]))


def test_a_step_under_another_number_gives_way_to_an_older_one(tmp_path, caplog):
    states = write_steps(tmp_path, 1, 2, run_id="a")
    shutil.copytree(tmp_path / "step_000000001", tmp_path / "step_000000003")
    with Checkpoints(tmp_path, KEEP_ALL, run_id="a") as checkpoints:
        assert checkpoints.restore(abstract(states[1])).step == 2
        assert "step 3 in" in caplog.text and "it is step 1 under another number" in caplog.text
        assert checkpoints.save(3, states[1], position={}, config={})


def test_reading_changes_nothing(tmp_path):
    states = write_steps(tmp_path, 1, 2)
    flip_bit(tmp_path / "step_000000002")
    (tmp_path / "step_000000003.orbax-checkpoint-tmp").mkdir()  # another process is saving
    (tmp_path / "notes").mkdir()
    (tmp_path / "0009").mkdir()
    before = sorted(tmp_path.rglob("*"))
    reader = Checkpoints(tmp_path, read_only=True)
    assert reader.steps() == [1, 2] and reader.restore(abstract(states[1])).step == 1
    assert sorted(tmp_path.rglob("*")) == before
    assert Checkpoints(tmp_path / "absent", read_only=True).restore(abstract(states[1])) is None
    assert not (tmp_path / "absent").exists()


def test_nothing_usable_is_an_error_and_never_step_zero(tmp_path):
    states = write_steps(tmp_path, 1, 2)
    for step in (1, 2):
        flip_bit(tmp_path / f"step_00000000{step}")
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(UserError, match=r"none of the 2 checkpoints .*step 2: the array \S+ has changed; step 1: "):
            checkpoints.restore(abstract(states[1]))
        assert checkpoints.steps() == [1, 2]


def test_another_model_is_refused_by_name(tmp_path):
    write_steps(tmp_path, 1)
    reader = Checkpoints(tmp_path, read_only=True)
    with pytest.raises(
        UserError, match=r"params/embeddings/word/table: checkpoint float32\[256, 64\], model float32\[320, "
    ):
        reader.restore(abstract(make_state(rows=320)))
    state = abstract(make_state())
    half = {**state.params["pooler"], "bias": jax.ShapeDtypeStruct((16,), jnp.bfloat16)}
    with pytest.raises(
        UserError, match=r"step 1 .*params/pooler/bias: checkpoint float32\[16\], model bfloat16\[16\]\. "
    ):
        reader.restore(dataclasses.replace(state, params={**state.params, "pooler": half}))
    with pytest.raises(
        UserError, match=r"params/pooler/bias: checkpoint float32\[16\], model none; params/pooler/kernel"
    ):
        reader.restore(dataclasses.replace(state, params={"embeddings": state.params["embeddings"]}))
