"""Measure the rate of a layer's matrix products here and in torch, in GFLOP per CPU second: the floor of training.

    taskset -c 0 python scripts/measure_products.py PYTHON [--width=384] [--tokens=1024] [--rounds=2]

PYTHON has torch. The products are those that a dense layer makes in its forward pass, for the gradient of its input and
for that of its kernel. Both sides have one thread each and take turns; the best of eight times four calls counts. With
one processor, as above, no thread of a library waits for another.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

TYPES = ("float32", "bfloat16")


def shapes(width: int) -> list[tuple[int, int]]:
    return [(width, width), (width, 4 * width), (4 * width, width)]


def rate(call: Callable[[], object], operations: int) -> float:
    """Return billions of operations per CPU second."""
    call()
    best = float("inf")
    for _ in range(8):
        began = time.process_time()
        for _ in range(4):
            call()
        best = min(best, (time.process_time() - began) / 4)
    return operations / best / 1e9


def ours(width: int, tokens: int) -> dict[str, list[float]]:
    import jax
    import jax.numpy as jnp

    from bert_jax.models.layers import summed_over_rows, wide_product, wide_product_with_rows

    found: dict[str, list[float]] = {}
    for name in TYPES:
        dtype = jnp.dtype(name)
        functions = [
            jax.jit(lambda x, kernel, g, dtype=dtype: wide_product(x, kernel).astype(dtype)),
            jax.jit(lambda x, kernel, g, dtype=dtype: wide_product_with_rows(g, kernel).astype(dtype)),
            jax.jit(lambda x, kernel, g: summed_over_rows(x, g).astype(jnp.float32)),
        ]
        for rows, columns in shapes(width):
            draw = np.random.default_rng(0).standard_normal
            sizes = ((tokens, rows), (rows, columns), (tokens, columns))
            arrays = [jnp.asarray(draw(size), dtype) for size in sizes]
            found[f"{name} {rows} x {columns}"] = [
                rate(lambda f=f, a=arrays: jax.block_until_ready(f(*a)), 2 * tokens * rows * columns) for f in functions
            ]
    return found


def theirs(width: int, tokens: int) -> dict[str, list[float]]:
    import torch

    torch.set_num_threads(1)
    found: dict[str, list[float]] = {}
    with torch.no_grad():
        for name in TYPES:
            for rows, columns in shapes(width):
                sizes = ((tokens, rows), (columns, rows), (tokens, columns))
                x, kernel, g = (torch.randn(*size).to(getattr(torch, name)) for size in sizes)
                calls = [
                    lambda x=x, kernel=kernel: torch.nn.functional.linear(x, kernel),
                    lambda g=g, kernel=kernel: g @ kernel,
                    lambda x=x, g=g: g.t() @ x,
                ]
                found[f"{name} {rows} x {columns}"] = [rate(call, 2 * tokens * rows * columns) for call in calls]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer_python", metavar="PYTHON")
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--side", choices=("ours", "theirs"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    sides = {"ours": ours, "theirs": theirs}
    if given.side:
        print(json.dumps(sides[given.side](given.width, given.tokens)))
        return
    words = [f"--width={given.width}", f"--tokens={given.tokens}"]
    runs: dict[str, list[dict[str, list[float]]]] = {side: [] for side in sides}
    for _ in range(given.rounds):
        for side, python in (("ours", sys.executable), ("theirs", given.peer_python)):
            command = [python, __file__, given.peer_python, f"--side={side}", *words]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            runs[side].append(json.loads(output.splitlines()[-1]))
    print(f"{'GFLOP per CPU second':24}  forward, input, kernel: XLA | torch | times")
    for name in runs["ours"][0]:
        best = {side: np.max([run[name] for run in runs[side]], axis=0) for side in sides}
        cells = [" ".join(f"{value:5.0f}" for value in best[side]) for side in sides]
        print(f"{name:24}  {' | '.join(cells)} | {np.mean(best['ours']) / np.mean(best['theirs']):.2f}")


if __name__ == "__main__":
    main()
