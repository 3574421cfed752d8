"""The cache of programs, and arrays over devices."""

import concurrent.futures
import dataclasses
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import zlib

import filelock
import jax
import numpy as np
import optax
import processes
import pytest
from jax.sharding import PartitionSpec as P
from pretrained_model import CONFIG, stored_model
from processes import EXHAUSTIVE, SECONDS
from rich.console import Console

from bert_jax.config import Config, MeshConfig, ModelConfig, OptimizerConfig, PhaseConfig, resolve_stages
from bert_jax.devices import sharding
from bert_jax.devices.compilation import discard_torn
from bert_jax.errors import UserError
from bert_jax.formats.huggingface_export import write_huggingface
from bert_jax.models.bert import BertForPreTraining
from bert_jax.parameters import entries
from bert_jax.training.optimizers import optimizer
from bert_jax.training.state import abstract_state, create_state, reset_moments

PROGRAM = """
import json, sys, jax, numpy as np, bert_jax
before, events = jax.config.jax_compilation_cache_dir, []
jax.monitoring.register_event_listener(lambda event, **unused: events.append(event.split("/")[-1]))
model = bert_jax.load(sys.argv[1])
embedded = model.embed(["the cat sat", "birds"])
np.savez(sys.argv[2], embed=embedded, mlm=[c.probability for c in model.fill_mask("the [MASK]")[0]])
print(json.dumps({"before": before, "directory": jax.config.jax_compilation_cache_dir,
                  "hits": events.count("cache_hits"), "misses": events.count("cache_misses")}))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> pathlib.Path:
    place = tmp_path_factory.mktemp("model")
    write_huggingface(stored_model(dataclasses.replace(CONFIG, num_layers=1), kind="bert_jax"), place, "test")
    return place


def run(model, cache: pathlib.Path, values: str = "values.npz", **environment: str) -> tuple[dict, bytes, str]:
    """A separate process: what it did with the cache, the bytes of its results (saved in `values`), and its output."""
    options = {"XDG_CACHE_HOME": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", **environment}
    kept = {name: value for name, value in os.environ.items() if "_CACHE_" not in name}  # not the cache of the tests
    done = processes.run(sys.executable, "-c", PROGRAM, str(model), str(cache.parent / values), env=kept | options)
    assert done.returncode == 0, done.stderr
    found = np.load(cache.parent / values)
    return json.loads(done.stdout), b"".join(found[name].tobytes() for name in sorted(found)), done.stderr


@pytest.mark.slow
def test_the_next_process_loads_what_the_first_has_compiled(model, tmp_path):
    cache = tmp_path / "cache"
    off, compiled, _ = run(model, cache, JAX_ENABLE_COMPILATION_CACHE="false")
    assert off["directory"] is None and not cache.exists()
    first, values, said = run(model, cache)
    assert first["before"] is None, "importing changes nothing"
    directory = pathlib.Path(first["directory"])
    assert directory.parent == cache / "bert_jax" / "programs" and directory.stat().st_mode & 0o777 == 0o700
    assert first["hits"] == 0 and first["misses"] > 1 and said == ""
    entries = sorted(directory.glob("*-cache"))
    entries[0].write_bytes(entries[0].read_bytes()[:-100])  # as if the process had been killed before the last bytes,
    entries[1].with_name(entries[1].name.replace("-cache", "-atime")).unlink()  # or before it noted the time
    second, again, said = run(model, cache)
    assert (second["hits"], second["misses"], said) == (first["misses"] - 2, 2, "")
    third, once_more, said = run(model, cache)
    assert (third["hits"], third["misses"], said) == (first["misses"], 0, "")
    assert compiled == values == again == once_more


@pytest.mark.slow
def test_two_processes_share_a_cache(model, tmp_path):
    with concurrent.futures.ThreadPoolExecutor() as threads:
        one, other = threads.map(lambda name: run(model, tmp_path / "cache", name), ["one.npz", "other.npz"])
    assert one[1] == other[1] and one[2] == other[2] == ""
    after, values, said = run(model, tmp_path / "cache")
    assert after["misses"] == 0 and values == one[1] and said == ""


@pytest.mark.slow
def test_a_directory_of_the_user_is_used_and_one_that_cannot_be_is_no_error(model, tmp_path):
    found, _, _ = run(model, tmp_path / "cache", JAX_COMPILATION_CACHE_DIR=str(tmp_path / "own"))
    assert found["before"] == found["directory"] == str(tmp_path / "own") and list((tmp_path / "own").glob("*-cache"))
    assert not (tmp_path / "cache").exists()
    (tmp_path / "file").write_text("")
    found, _, said = run(model, tmp_path / "file")
    assert found["directory"] is None and said == ""


@pytest.mark.slow
@pytest.mark.parametrize("flags, kept", [([], True), (["--no_compilation_cache"], False)])
def test_a_flag_of_any_command_turns_it_off(model, tmp_path, flags, kept):
    command = [sys.executable, "-m", "bert_jax", "fill-mask", str(model), "the [MASK]", *flags]
    environment = {name: value for name, value in os.environ.items() if "_CACHE_" not in name}
    options = {"XDG_CACHE_HOME": str(tmp_path), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    done = subprocess.run(command, env=environment | options, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    assert bool(list(tmp_path.rglob("*-cache"))) == kept


def entry(directory: pathlib.Path, name: str, contents: bytes, used: bool = True) -> None:
    (directory / f"{name}-cache").write_bytes(contents)
    if used:
        (directory / f"{name}-atime").write_bytes(bytes(8))


def test_torn_entries_are_discarded_whatever_is_missing(tmp_path):
    whole = zlib.compress(os.urandom(5000))
    entry(tmp_path, "good", whole)
    for length in (0, 1, 100, len(whole) - 1):
        entry(tmp_path, f"cut{length}", whole[:length])
    entry(tmp_path, "unused", whole, used=False)
    entry(tmp_path, "zeros", bytes(len(whole)))
    (tmp_path / "evicted-atime").write_bytes(bytes(8))
    discard_torn(tmp_path)
    kept = {"good-cache", "good-atime", "good-whole", ".lockfile"}
    assert {file.name for file in tmp_path.iterdir()} == kept
    # Evicted, written anew by another process and torn: the old mark does not count.
    entry(tmp_path, "good", whole[:100])
    later = (tmp_path / "good-whole").stat().st_mtime_ns + 1
    os.utime(tmp_path / "good-cache", ns=(later, later))
    discard_torn(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {".lockfile"}


def test_nothing_is_discarded_while_another_process_writes(tmp_path, monkeypatch):
    entry(tmp_path, "half", b"half")
    monkeypatch.setattr(
        filelock.FileLock, "acquire", lambda *unused, **also: (_ for _ in ()).throw(filelock.Timeout("held"))
    )
    with pytest.raises(OSError):
        discard_torn(tmp_path)
    assert (tmp_path / "half-cache").exists()


MODEL = BertForPreTraining(
    ModelConfig(
        vocab_size=60,
        vocab_pad_multiple=8,
        hidden_size=16,
        num_layers=2,
        num_heads=4,
        max_position_embeddings=16,
        norm_position="pre",
    )
)


@pytest.mark.parametrize(
    "config, shape",
    [
        (MeshConfig(), (1, 8, 1, 1)),
        (MeshConfig(fsdp=2, tensor=2), (1, 2, 2, 2)),
        (MeshConfig(data=1, fsdp=-1), (1, 1, 8, 1)),
        (MeshConfig(data=4, fsdp=1, tensor=2), (1, 4, 1, 2)),
        (MeshConfig(data=1, tensor=-1), (1, 1, 1, 8)),
        (MeshConfig(slice=2), (2, 4, 1, 1)),
        (MeshConfig(slice=2, fsdp=2), (2, 2, 2, 1)),
    ],
)
def test_a_mesh_has_the_shape_of_its_options_and_all_devices(config, shape):
    mesh = sharding.make_mesh(config)
    assert tuple(mesh.shape.items()) == tuple(zip(("slice", "data", "fsdp", "tensor"), shape))
    assert set(mesh.devices.flat) == set(jax.devices())


@pytest.mark.parametrize(
    "config, count, parts",
    [
        (MeshConfig(data=3), 8, ["data=3 × fsdp=1 × tensor=1", "needs 3 devices", "there are 8", "mesh.data=8"]),
        (
            MeshConfig(data=2, fsdp=2),
            8,
            ["needs 4 devices", "mesh.slice=2 or mesh.data=4 or mesh.fsdp=4 or mesh.tensor=2"],
        ),
        (MeshConfig(fsdp=3), 8, ["a multiple of 3 devices", "there are 8", "mesh.fsdp=2"]),
        (MeshConfig(tensor=16), 8, ["a multiple of 16 devices", "there are 8", "mesh.tensor=8"]),
        (MeshConfig(data=3, fsdp=3), 8, ["needs 9 devices", "mesh.slice=1 mesh.data=-1 mesh.fsdp=1 mesh.tensor=1"]),
        (MeshConfig(slice=3), 8, ["slice=3 × data=-1", "a multiple of 3 devices", "there are 8", "mesh.slice=2"]),
    ],
)
def test_a_mesh_that_does_not_fit_the_devices(config, count, parts):
    with pytest.raises(UserError) as error:
        sharding.make_mesh(config, jax.devices()[:count])
    assert all(part in str(error.value) for part in parts), error.value


def test_every_remedy_of_a_wrong_mesh_works():
    wrong = [(3, 1, 1), (2, 2, 1), (-1, 3, 1), (-1, 1, 16), (3, 3, 1), (4, 4, 4), (-1, 4, 4)]
    for data, fsdp, tensor in wrong + [(2, 2, 2)]:
        given = dict(slice=1 if (data, fsdp, tensor) in wrong else 3, data=data, fsdp=fsdp, tensor=tensor)
        with pytest.raises(UserError) as error:
            sharding.make_mesh(MeshConfig(**given))
        for remedy in str(error.value).split("meshes that fit: ")[1].split(" or "):
            changes = {key: int(value) for key, value in re.findall(r"mesh\.(\w+)=(-?\d+)", remedy)}
            assert sharding.make_mesh(MeshConfig(**(given | changes))).size == 8


def phases_of(*phases: PhaseConfig) -> tuple:
    return resolve_stages(Config(phases=phases)), phases


def test_batches_that_do_not_split():
    mesh = sharding.make_mesh(MeshConfig(data=4, fsdp=2))
    sharding.check_batch(*phases_of(PhaseConfig(batch_size=32, micro_batches=4)), mesh)
    message = r"phases\.1\.batch_size=20 is not divisible by 8 .*data=4 × fsdp=2.*nearest: 16 or 24"
    with pytest.raises(UserError, match=message):
        sharding.check_batch(*phases_of(PhaseConfig(), PhaseConfig(batch_size=20)), mesh)
    message = r"phases\.0\.batch_size=40 .* 32 .*phases\.0\.micro_batches=4\); nearest: 32 or 64"
    with pytest.raises(UserError, match=message):
        sharding.check_batch(*phases_of(PhaseConfig(batch_size=40, micro_batches=4)), mesh)
    slices = sharding.make_mesh(MeshConfig(slice=2, fsdp=2))
    with pytest.raises(UserError, match=r"batch_size=20 .* 8 \(mesh slice=2 × data=2 × fsdp=2 .*nearest: 16 or 24"):
        sharding.check_batch(*phases_of(PhaseConfig(batch_size=20)), slices)
    with pytest.raises(UserError, match=r"batch_size=4 .*nearest: 8$"):
        sharding.check_batch(*phases_of(PhaseConfig(batch_size=4)), mesh)


def test_every_large_parameter_and_moment_is_split():
    mesh = sharding.make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    specs = {}
    state = abstract_state(MODEL, optimizer(OptimizerConfig(name="adamw"), MODEL.parameters), mesh)
    for path, leaf in jax.tree.leaves_with_path(state):
        specs[jax.tree_util.keystr(path, simple=True, separator="/")] = leaf.sharding.spec
    assert specs["params/embeddings/word/table"] == P("tensor", "fsdp")
    assert specs["params/encoder/attention/query/kernel"] == P(None, "fsdp", "tensor", None)
    assert specs["params/encoder/attention/output/kernel"] == P(None, "tensor", None, "fsdp")
    assert specs["params/encoder/feed_forward/intermediate/kernel"] == P(None, "fsdp", "tensor")
    assert specs["params/encoder/feed_forward/output/kernel"] == P(None, "tensor", "fsdp")
    assert all(any(spec) for path, spec in specs.items() if path.endswith(("kernel", "table")))
    assert all(not any(spec) for path, spec in specs.items() if "norm/" in path or path.endswith(("step", "count")))
    for moment in ("mu", "nu"):
        for path, spec in specs.items():
            if path.startswith("params/"):
                assert specs[f"optimizer_state/0/{moment}/{path.removeprefix('params/')}"] == spec


def test_gathered_parameters_keep_the_tensor_axis_only():
    mesh = sharding.make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    where = sharding.gathered(
        sharding.shardings(mesh, entries(MODEL.parameters, jax.eval_shape(MODEL.init, jax.random.key(0))))
    )
    assert where["encoder"]["attention"]["query"]["kernel"].spec == P(None, None, "tensor", None)
    assert all("fsdp" not in leaf.spec for leaf in jax.tree.leaves(where))


def test_coarse_shards_are_those_of_two_neighbours(monkeypatch):
    monkeypatch.setattr(sharding, "LEAST_IN_PAIRS", 4)
    mesh = sharding.make_mesh(MeshConfig(data=1, fsdp=4, tensor=2))
    fine = sharding.NamedSharding(mesh, P("tensor", "fsdp"))
    rows = lambda where: {
        device: (parts[0].indices(4)[:2], parts[1].indices(16)[:2])
        for device, parts in where.devices_indices_map((4, 16)).items()
    }
    exact, coarse = rows(fine), rows(sharding.split_coarsely(fine))
    assert {device: (h, (start // 8 * 8, start // 8 * 8 + 8)) for device, (h, (start, _)) in exact.items()} == coarse
    whole = sharding.NamedSharding(mesh, P("tensor"))
    monkeypatch.setattr(sharding, "LEAST_IN_PAIRS", 5)
    assert sharding.split_coarsely(whole) is whole and sharding.split_coarsely(fine) is fine


def test_a_dimension_that_does_not_divide_stays_whole_and_the_table_says_so():
    mesh = sharding.make_mesh(MeshConfig(data=1, fsdp=1, tensor=8))
    spec, remarks = sharding.partition_spec(mesh, MODEL.parameters["encoder/attention/query/kernel"])
    assert spec == P(None, "fsdp", None, None) and remarks == ["4 is not divisible by tensor=8: whole on every device"]
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(sharding.table(mesh, MODEL.parameters))
    text = console.export_text()
    assert re.search(r"encoder/attention/query/kernel +│ 2 × 16 × 4 × 4 .*4 is not divisible by tensor=8", text)
    assert re.search(r"embeddings/word/table +│ 64 × 16 +│ tensor, fsdp", text)


@pytest.mark.parametrize("width", [80, 200])
def test_the_table_names_every_array_in_full(width):
    mesh = sharding.make_mesh(MeshConfig(data=1, fsdp=2, tensor=4))
    params = jax.eval_shape(lambda: MODEL.init(jax.random.key(0)))
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(sharding.table(mesh, MODEL.parameters))
    text = console.export_text()
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in jax.tree.leaves_with_path(params)]
    assert "…" not in text and not [name for name in names if f" {name} " not in text]


def test_created_state_lies_where_planned_and_equals_an_unsharded_one():
    adamw = optimizer(OptimizerConfig(), MODEL.parameters)
    mesh = sharding.make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    single = sharding.make_mesh(MeshConfig(), jax.devices()[:1])
    state, plain = create_state(MODEL, adamw, mesh, seed=3), create_state(MODEL, adamw, single, seed=3)
    assert state.params["embeddings"]["word"]["table"].addressable_data(0).shape == (32, 8)
    for leaf, plan in zip(jax.tree.leaves(state), jax.tree.leaves(abstract_state(MODEL, adamw, mesh))):
        assert (leaf.sharding, leaf.shape, leaf.dtype) == (plan.sharding, plan.shape, plan.dtype)
    jax.tree.map(np.testing.assert_array_equal, state, plain)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 2**32 + 5, -1, *([0, 2**31, 2**32 - 1] if EXHAUSTIVE else [])])
def test_a_seed_gives_the_values_that_it_gave_when_it_was_compiled_in(seed):
    """As in every release before; the tolerance is for another order of the same float32 operations."""
    before = jax.jit(lambda: MODEL.init(jax.random.fold_in(jax.random.key(seed), np.uint32(2**32 - 1))))()
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:1])
    state = create_state(MODEL, optimizer(OptimizerConfig(), MODEL.parameters), mesh, seed)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-6), state.params, before)


@pytest.mark.parametrize(
    "transformation",
    [optimizer(OptimizerConfig(), MODEL.parameters), optax.scale_by_rss(initial_accumulator_value=0.5)],
)
def test_reset_moments_equals_a_fresh_optimizer(transformation):
    """Also of an optimizer whose state does not begin with zeros."""
    mesh = sharding.make_mesh(MeshConfig(fsdp=2))
    used = jax.tree.map(
        lambda leaf: jax.device_put(np.full(leaf.shape, 7, leaf.dtype), leaf.sharding),
        abstract_state(MODEL, transformation, mesh),
    )
    reset = reset_moments(used, transformation)
    assert reset.step == 7
    jax.tree.map(np.testing.assert_array_equal, reset.optimizer_state, transformation.init(used.params))
    jax.tree.map(np.testing.assert_array_equal, reset.params, used.params)
    assert jax.tree.map(lambda leaf: leaf.sharding, reset) == jax.tree.map(lambda leaf: leaf.sharding, used)


@pytest.mark.parametrize("config", [MeshConfig(), MeshConfig(fsdp=2, tensor=2), MeshConfig(data=1, tensor=-1)])
def test_host_rows_and_global_arrays(config):
    mesh = sharding.make_mesh(config, jax.devices()[::-1])
    rows = sharding.host_rows(mesh, 16)
    assert rows.dtype == np.int64
    np.testing.assert_array_equal(rows, np.arange(16))  # one process loads everything, once
    batch = sharding.to_global(mesh, {"input_ids": np.arange(32, dtype=np.int32).reshape(16, 2)[rows]}, 16)
    ids = batch["input_ids"]
    np.testing.assert_array_equal(ids, np.arange(32).reshape(16, 2))
    assert ids.sharding == sharding.batch_sharding(mesh)
    assert ids.addressable_data(0).shape[0] == 16 // (mesh.shape["data"] * mesh.shape["fsdp"])
