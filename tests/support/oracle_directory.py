"""Small models of transformers that an oracle has recorded: their parameters, and directories as it would save them.

The modules of cases (deberta_cases, modernbert_cases, xlnet_cases) have the sizes and the inputs.
"""

import json
import math
import pathlib
import sys
import zlib

import numpy as np
import safetensors.numpy


def draw(shapes: dict[str, list[int]]) -> dict[str, np.ndarray]:
    """Parameters by name: no bias of zero, no scale of one, so that each shows in the outputs."""
    found = {}
    for name, shape in shapes.items():
        random = np.random.RandomState(zlib.crc32(name.encode()))
        norm_scale = "norm" in name.lower() and name.endswith("weight")
        spread = 0.3 if len(shape) == 1 else math.prod(shape[1:]) ** -0.5
        found[name] = (random.standard_normal(shape) * spread + norm_scale).astype(np.float32)
    return found


def state_of(oracle, name: str) -> dict[str, np.ndarray]:
    """Every array of a case, by its name there."""
    return draw(json.loads(str(oracle[f"{name}/shapes"])))


def save(oracle, name: str, directory: pathlib.Path, **changes) -> pathlib.Path:
    """Write the directory that transformers would have saved; None removes a key of config.json."""
    config = json.loads(str(oracle[f"{name}/config"])) | changes
    directory.mkdir(exist_ok=True)
    kept = {key: value for key, value in config.items() if value is not None}
    (directory / "config.json").write_text(json.dumps(kept))
    safetensors.numpy.save_file(state_of(oracle, name), directory / "model.safetensors")
    return directory


def asked(case: dict, batch: dict) -> dict:
    """Rows of arrays or tensors as the class of a case reads them: [questions, choices, length] where it chooses."""
    count = case.get("choices")
    return {key: value.reshape(-1, count, value.shape[-1]) for key, value in batch.items()} if count else batch


def record_all(cases, record, default: pathlib.Path) -> None:
    """Write what `record` returns for each case to the path that the command line names, or else to `default`."""
    path = pathlib.Path(sys.argv[1]) if sys.argv[1:] else default
    arrays = {}
    for name in cases:
        arrays |= record(name)
    np.savez_compressed(path, **arrays)
    print(f"{path.name}: {path.stat().st_size:,} bytes")
