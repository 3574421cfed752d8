"""Time and peak memory to load BERT-base (float32, pre-training heads): `bert_jax.load` against `transformers`.

    python scripts/benchmark_loading.py --peer=PYTHON [--repeats=5]

PYTHON has torch and transformers installed; without --peer only our side is measured. Writes a directory with random
weights (model.safetensors, 440 MB) into the temporary directory and loads it in turn with both, each time in a new
process; a third column is `bert_jax.load` on the same weights as a checkpoint of ours, whose fingerprints are checked.
"load" ends when the call returns, "read" when every parameter has been summed once: torch maps the file and leaves it
on disk until then. "from the start" includes the imports. Memory is the most that the process held (VmHWM), and the
part of it that came after the imports. Linux only.
"""

import argparse
import dataclasses
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

MEASURE = """
import json, re, sys, time
def memory(kind):
    return int(re.search(kind + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
start = time.perf_counter()
{imports}
imported, before = time.perf_counter(), memory("VmRSS")
model = {load}
loaded = time.perf_counter()
{read}
read = time.perf_counter()
print(json.dumps({{"import s": imported - start, "load s": loaded - imported, "load and read s": read - imported,
                  "from the start s": read - start, "peak MiB": memory("VmHWM"),
                  "beyond the imports MiB": memory("VmHWM") - before}}))
"""
OURS = MEASURE.format(
    imports="import jax, bert_jax; load = bert_jax.load; jax.devices()",
    load="jax.block_until_ready(load(sys.argv[1]).params)",
    read="import numpy\ntotal = sum(float(numpy.asarray(leaf).sum()) for leaf in jax.tree.leaves(model))",
)
THEIRS = MEASURE.format(
    imports="import torch, transformers\n"
    "from transformers import AutoModelForPreTraining as model, BertForPreTraining\n"
    "transformers.utils.logging.set_verbosity_error()",
    load="model.from_pretrained(sys.argv[1], dtype=torch.float32)",
    read="with torch.no_grad():\n    total = sum(float(parameter.sum()) for parameter in model.parameters())",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", default="", help="a Python with torch and transformers")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    programs = (
        {"bert_jax": (sys.executable, OURS, "huggingface")}
        | ({"transformers": (options.peer, THEIRS, "huggingface")} if options.peer else {})
        | {"own checkpoint": (sys.executable, OURS, "bert_jax")}
    )
    found: dict[str, list[dict]] = {name: [] for name in programs}
    with tempfile.TemporaryDirectory() as directory:
        write_base(pathlib.Path(directory))
        for _ in range(options.repeats):
            for name, (python, program, layout) in programs.items():
                done = subprocess.run([python, "-c", program, f"{directory}/{layout}"], capture_output=True, text=True)
                if done.returncode:
                    sys.exit(f"{name}: {done.stderr}")
                found[name].append(json.loads(done.stdout.splitlines()[-1]))
    show(found)


def write_base(directory: pathlib.Path) -> None:
    """Random BERT-base weights in both layouts, without a vocabulary: huggingface/ and bert_jax/ below `directory`."""
    import jax
    import numpy as np

    from bert_jax.checkpoints.fingerprint import leaf_paths
    from bert_jax.config.presets import model_config
    from bert_jax.formats.huggingface import write_huggingface
    from bert_jax.formats.stored import StoredArray, StoredModel
    from bert_jax.formats.writing import write_bert_jax
    from bert_jax.models.bert import BertForPreTraining

    config = dataclasses.replace(model_config("base"), vocab_size=30_522)
    random = np.random.default_rng(0)
    shapes = leaf_paths(jax.eval_shape(BertForPreTraining(config).init, jax.random.key(0)))
    values = {path: 0.02 * random.standard_normal(leaf.shape, np.float32) for path, leaf in shapes.items()}
    arrays = {path: StoredArray(array.shape, array.dtype, array.__getitem__) for path, array in values.items()}
    stored = StoredModel("bert_jax", str(directory), config, arrays)
    for layout in ("huggingface", "bert_jax"):
        (directory / layout).mkdir()
    write_huggingface(stored, directory / "huggingface", "random base")
    write_bert_jax(stored, directory / "bert_jax")


def show(found: dict[str, list[dict]]) -> None:
    """Medians with the least and the most, and the median of the ratios of neighbouring runs."""
    for measure in found["bert_jax"][0]:
        line = f"{measure:>24}"
        for name, rows in found.items():
            values = [row[measure] for row in rows]
            line += f"   {name} {statistics.median(values):8,.2f} ({min(values):,.2f} to {max(values):,.2f})"
        if "transformers" in found:
            ratios = [
                ours[measure] / theirs[measure]
                for ours, theirs in zip(found["bert_jax"], found["transformers"], strict=True)
            ]
            line += f"   ratio of the first two {statistics.median(ratios):.2f}"
        print(line)


if __name__ == "__main__":
    main()
