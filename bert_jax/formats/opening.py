"""Recognize the kind of a model in a directory, and place its arrays on the devices.

Importing this loads no JAX, and neither does `need_model` but for RUN:STEP: what is not there is refused before that.
"""

import dataclasses
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from etils import epath

from bert_jax import hub
from bert_jax.config import MeshConfig
from bert_jax.config.checks import run_and_step
from bert_jax.devices.placement import StoredArray, placed
from bert_jax.errors import UserError, need_cloud_storage
from bert_jax.files import is_remote, read_object
from bert_jax.formats import safetensors_files, torch_files
from bert_jax.formats.stored import StoredModel
from bert_jax.parameters import entry

if TYPE_CHECKING:
    import jax
    from jax.sharding import Mesh, NamedSharding

PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
"""Suffixes of torch's files, of which only pytorch_model.bin is known to hold arrays alone. (TensorFlow 1's .ckpt is a
prefix, not a file.)"""
OTHER_WEIGHTS = (".msgpack", ".h5", ".onnx", ".npz")
LONGEST_NAME = 4_096  # characters, the limit of Linux
ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z")
SMALLER = ("a smaller model", "devices with more memory, or more of them with a larger mesh.fsdp")
LOOKED_FOR = (
    "a work directory of bert_jax (checkpoints/) or one of its steps (RUN:STEP), a Hugging Face directory "
    "(config.json, with model.safetensors or pytorch_model.bin), an adapter of PEFT (adapter_model.safetensors), "
    "a TensorFlow 1 checkpoint (bert_config.json, bert_model.ckpt.index)"
)


def open_stored(path: str | os.PathLike[str]) -> StoredModel:
    """Describe the model in `path`, whose kind its contents determine, or of that name on the hub; see `load`.

    The path of one from the hub is its name with the commit.
    """
    if not isinstance(path, str | os.PathLike):
        raise UserError(f"a model is opened by its path or its name on the hub, not by {path!r:.60}")
    if (name := hub.model_name(os.fspath(path))) is None:
        return _opened(_existing(os.fspath(path)))
    found = hub.model_files(name)
    stored = _opened(epath.Path(found.directory))
    source = {**stored.history.get("source", {}), "path": str(found.name)}
    return dataclasses.replace(stored, path=str(found.name), history={**stored.history, "source": source})


def need_model(name: str) -> None:
    """Raise the UserError of `open_stored` if nothing in a place on this machine looks like a model; nothing is read.

    What is on the hub or in a bucket is left to `open_stored`, which asks there once.
    """
    if hub.model_name(name) is None and not is_remote(name):
        _kind(_existing(name))


def _opened(path: epath.Path) -> StoredModel:
    kind = _kind(path)
    if kind == "peft":
        from bert_jax.formats.peft import with_adapter

        return with_adapter(_base_of(path), path)
    if kind == "tf1":
        from bert_jax.formats.tf1 import open_tf_checkpoint

        return open_tf_checkpoint(path)
    if kind == "huggingface":
        from bert_jax.formats.huggingface import open_huggingface

        return open_huggingface(path)
    from bert_jax.formats.own import open_checkpoint

    return open_checkpoint(path)


def _base_of(directory: epath.Path) -> StoredModel:
    """Return the model that an adapter of PEFT says it was trained on, a path or the name of one of the hub."""
    from bert_jax.formats.peft import CONFIG, read_adapter_config

    base = read_adapter_config(directory).base
    remedy = f'give that model too: bert_jax.load(MODEL, adapter="{directory}")'
    if not base:
        raise UserError(
            f"{directory / CONFIG} does not say which model was adapted (base_model_name_or_path); {remedy}"
        )
    if hub.model_name(base) is None and (not is_there(base) or _kind(_existing(base)) == "peft"):
        raise UserError(f"{directory / CONFIG} names the model {base!r:.200}, which is not one here; {remedy}")
    return open_stored(base)


def _kind(path: epath.Path) -> Literal["tf1", "huggingface", "bert_jax", "peft"]:
    """Return what kind of model the names in a directory are of; raise a UserError if they are of none."""
    if not path.is_dir():  # the prefix of a TensorFlow 1 checkpoint: <prefix>.index is next to it
        return "tf1"
    names = sorted(entry.name for entry in path.iterdir())
    if safetensors_files.ADAPTER in names and not {safetensors_files.FILE, safetensors_files.INDEX} & set(names):
        return "peft"
    if any(name.endswith((".safetensors", ".safetensors.index.json")) for name in names):
        return "huggingface"
    if "checkpoints" in names or {"record", "state"} <= set(names):
        return "bert_jax"
    if "bert_config.json" in names or any(name.endswith(".index") for name in names):
        return "tf1"
    if {torch_files.FILE, torch_files.INDEX} & set(names):
        return "huggingface"
    for name in names:
        if name.endswith((*PICKLES, *OTHER_WEIGHTS)):
            raise _refused(path, name)
    if any(name.startswith("step_") for name in names):
        raise UserError(f"{path} holds steps of a run; give one of them, or the work directory above: {path.parent}")
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") if names else "nothing"
    raise UserError(f"no model in {path}: looked for {LOOKED_FOR}; found {shown}")


def describe(stored: StoredModel, mesh: "Mesh") -> dict[str, Any]:
    """Return what `place` would put on `mesh`, whose devices need not exist, as ShapeDtypeStructs; nothing is read."""
    import jax

    def described(array: StoredArray, where: "NamedSharding") -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(array.shape, np.float32, sharding=where)

    return _tree(stored, mesh, described)


def place(stored: StoredModel, mesh: "Mesh | None" = None) -> dict[str, Any]:
    """Return a nested dict of float32 arrays, of which each device of `mesh` (None: the first) reads its own part.

    Raises:
      UserError: an array that a model of this configuration does not have, or has in another shape; or there is no
        memory for one.
    """
    from bert_jax.devices.hardware import memory_advice

    def read(array: StoredArray, where: "NamedSharding") -> "jax.Array":
        return placed(array.shape, where, array.read)

    with memory_advice(f"the model in {stored.path}", SMALLER):
        return _tree(stored, one_device() if mesh is None else mesh, read)


def _tree(stored: StoredModel, mesh: "Mesh", make: Callable[[StoredArray, "NamedSharding"], Any]) -> dict[str, Any]:
    """Return a nested dict of what `make` returns for each array and its place on `mesh`."""
    from jax.sharding import NamedSharding

    from bert_jax.devices import sharding

    parameters, params = stored.parameters, {}
    for path, array in stored.arrays.items():
        *parents, name = path.split("/")
        node = params
        for parent in parents:
            node = node.setdefault(parent, {})
        where = NamedSharding(mesh, sharding.partition_spec(mesh, entry(parameters, path, array.shape))[0])
        node[name] = make(array, where)
    return params


def one_device() -> "Mesh":
    """Return the mesh of the first device of this process."""
    import jax

    from bert_jax.devices import sharding
    from bert_jax.devices.hardware import all_devices

    own = [device for device in all_devices() if device.process_index == jax.process_index()]
    return sharding.make_mesh(MeshConfig(), own[:1])


def is_there(name: str) -> bool:
    """Return whether there is anything that could be a model in a place, by the rules of `open_stored`."""
    try:
        found = hub.model_name(name)
        _existing(name) if found is None else hub.model_files(found)
    except UserError:
        return False
    return True


def _existing(name: str) -> epath.Path:
    """Return the directory or the prefix of a TensorFlow 1 checkpoint that `name` is, or a step that is RUN:STEP.

    Raises:
      UserError: nothing is there, or a file.
    """
    if len(name) > LONGEST_NAME:
        raise UserError(f"{name[:60]!r}… is not a path: it has {len(name):,} characters; give the directory of a model")
    if not name.strip():
        raise UserError("the path of the model is empty; give the directory of a model")
    need_cloud_storage(name)
    path = epath.Path(name if is_remote(name) else os.path.abspath(os.path.expanduser(name)))
    try:
        if path.is_dir() or epath.Path(f"{os.fspath(path)}.index").exists():
            return path
        exists = path.exists()
    except Exception as error:  # OSError, ValueError; of a bucket, whatever its client library raises
        if not is_remote(name) and not isinstance(error, (OSError, ValueError)):
            raise
        raise UserError(f"{name!r} cannot be opened: {' '.join(str(error).split())[:300]}") from None
    if not exists:
        if (named := run_and_step(name)) is not None and (found := _step(*named)) is not None:
            return found
        raise UserError(
            f"there is no {name!r:.200}: give the directory of a model, or hf://owner/name for one of the Hugging Face "
            "hub"
        )
    if path.suffix in (*PICKLES, *OTHER_WEIGHTS) and path.name != torch_files.FILE:
        raise _refused(path.parent, path.name)
    if path.suffix in ARCHIVES:
        raise UserError(f"{name} is an archive; unpack it and give the directory")
    raise UserError(f"{name} is a file; give the directory that it is in ({path.parent})")


def _step(run: str, step: int) -> epath.Path | None:
    """Return the directory of a step of a run; None if `run` is no work directory."""
    from bert_jax.checkpoints.steps import StepDirectories, unusable_step

    directory = epath.Path(os.path.expanduser(run)) / "checkpoints"
    if not directory.is_dir():
        return None
    steps = StepDirectories(directory)
    if step not in steps.committed():
        raise unusable_step(run, step, steps, "is not there")
    return steps.path(step)


def _refused(directory: epath.Path, name: str) -> UserError:
    """Return the error about a file of weights; raise one about the model's type, which converting would not change."""
    from bert_jax.formats.huggingface import FILE
    from bert_jax.formats.model_types import model_type

    if (config := directory / FILE).exists():
        model_type(read_object(config), config)
    why = "a pickle, which can run code when it is read" if name.endswith(PICKLES) else "a format that is not read here"
    return UserError(
        f"{directory / name} is {why}; there is no {safetensors_files.FILE} or {torch_files.FILE} next to it. If you "
        "trust it, convert it where transformers is installed: python -c "
        '"from transformers import AutoModelForPreTraining as M; '
        "M.from_pretrained('OLD').save_pretrained('NEW')\" (OLD: this directory), copy the vocabulary files "
        "too, and give NEW"
    )
