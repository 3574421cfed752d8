"""A program that loads a model with transformers, reads every parameter once, and prints what that took."""

# pyright: reportMissingImports=false

import time

BEGAN = time.perf_counter()  # before the imports, which are measured

import json  # noqa: E402
import sys  # noqa: E402

import torch  # noqa: E402
import transformers  # noqa: E402
from serving import peak_memory  # noqa: E402
from transformers import AutoModelForPreTraining  # noqa: E402


def main(path: str) -> None:
    """Load the model in `path`; print seconds and bytes as one object."""
    transformers.utils.logging.set_verbosity_error()
    imported = time.perf_counter()
    model = AutoModelForPreTraining.from_pretrained(path, dtype=torch.float32)
    loaded = time.perf_counter()
    with torch.no_grad():  # the file is mapped, and stays on the disk until it is read
        total = sum(float(parameter.sum()) for parameter in model.parameters())
    read = time.perf_counter()
    parts = {"imports": imported - BEGAN, "load": loaded - imported, "load_and_read": read - imported}
    print(json.dumps({**parts, "from_the_start": read - BEGAN, "peak_memory_bytes": peak_memory(), "sum": total}))


if __name__ == "__main__":
    main(sys.argv[1])
