"""A program that loads a model with `bert_jax.load`, reads every parameter once, and prints what that took."""

import time

BEGAN = time.perf_counter()  # before the imports, which are measured

import json  # noqa: E402
import sys  # noqa: E402

import jax  # noqa: E402
import numpy as np  # noqa: E402

from bert_jax.bench.peer.serving import peak_memory  # noqa: E402
from bert_jax.devices.hardware import all_devices  # noqa: E402
from bert_jax.errors import UserError  # noqa: E402
from bert_jax.pretrained.loading import load  # noqa: E402


def main(path: str) -> None:
    """Load the model in `path`; print seconds and bytes as one object."""
    all_devices()
    imported = time.perf_counter()
    params = jax.block_until_ready(load(path).params)
    loaded = time.perf_counter()
    total = sum(float(np.asarray(leaf).sum()) for leaf in jax.tree.leaves(params))
    read = time.perf_counter()
    parts = {"imports": imported - BEGAN, "load": loaded - imported, "load_and_read": read - imported}
    print(json.dumps({**parts, "from_the_start": read - BEGAN, "peak_memory_bytes": peak_memory(), "sum": total}))


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except UserError as error:
        sys.exit(str(error))
