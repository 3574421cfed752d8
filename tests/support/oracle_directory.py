"""Small models of transformers that an oracle has recorded: their parameters, and directories as it would save them.

The modules of cases (deberta_cases, modernbert_cases, xlnet_cases) have the sizes and the inputs.
"""

import json
import math
import pathlib
import sys
import zlib

import numpy as np
import random_bert
import safetensors.numpy

LABELS = {"id2label": {"0": "no", "1": "yes", "2": "so"}, "label2id": {"no": 0, "yes": 1, "so": 2}}
SCORE = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "problem_type": "regression"}


def of_class(name: str, config: dict, *real: int, **more) -> dict:
    """A class with its config.json and the number of real tokens of each row."""
    return {"class": name, "config": config, "length": max(real), "real": real, **more}


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


def logits_of(output):
    """What a class of transformers says: starts and ends of answers side by side, of a bare encoder its states."""
    import torch

    if "start_logits" in output:
        return torch.stack([output.start_logits, output.end_logits], -1)
    return output.logits if "logits" in output else output.last_hidden_state


def gradients_of(model, names) -> np.ndarray:
    """float32 [names, 1 + SAMPLES]: norm and samples of each parameter's gradient, by name; 0 of unused ones."""
    parameters = dict(model.named_parameters())
    gradients = {name: parameters[name].grad for name in sorted(names)}
    arrays = {name: 0 if gradient is None else gradient.numpy() for name, gradient in gradients.items()}
    return np.float32([random_bert.sample(array, name) for name, array in arrays.items()])


def check_gradients(found: dict[str, np.ndarray], expected: np.ndarray, zero: str | tuple[str, ...] = ()) -> None:
    """Compare arrays with what `gradients_of` gave; those whose names end in `zero` are that in exact arithmetic."""
    for (name, values), (norm, *samples) in zip(sorted(found.items()), expected, strict=True):
        if name.endswith(zero):
            assert np.abs(values).max() < 2e-5, name
            continue
        own_norm, *own = random_bert.sample(values, name)
        assert abs(own_norm - norm) <= 1e-4 * norm, name
        np.testing.assert_allclose(own, samples, atol=1e-4 * np.abs(values).max(), err_msg=name)


def record_all(cases, record, default: pathlib.Path) -> None:
    """Write what `record` returns for each case to the path that the command line names, or else to `default`."""
    path = pathlib.Path(sys.argv[1]) if sys.argv[1:] else default
    arrays = {}
    for name in cases:
        arrays |= record(name)
    np.savez_compressed(path, **arrays)
    print(f"{path.name}: {path.stat().st_size:,} bytes")
