"""CPU time of the operations of a training step: XLA's beside torch's (oneDNN, MKL), in turns, in one run.

    taskset -c 0 python scripts/benchmark_cpu_operations.py [--peer=PYTHON] [--rounds=7] [--tokens=1024] [--hidden=768]

PYTHON has torch installed; without --peer only ours is measured. Every product [tokens, 4·hidden] · [4·hidden, hidden]
is shown in its three forms: that of the forward pass (nn), of the gradient of its input (nt) and of its kernel (tn);
bfloat16 operands with a float32 result, as `--compute.products=cpu` asks for, and with a bfloat16 result, as plain
code does; those with a float32 result also by the oneDNN that is built into jaxlib, where that computes them, and those
of float32 also by the OpenBLAS that NumPy brings. The other operations are forward and backward together, in float32
unless named otherwise. "Attention" is what lies between the projections, in rows of 128 tokens with heads of 64. CPU
milliseconds, the least of all rounds: on a machine that is shared, the least is the least disturbed.
"""

import argparse
import json
import platform
import subprocess
import sys
import time

ROUND_SECONDS = 0.2


def ours(tokens: int, hidden: int) -> dict:
    """Return functions without arguments that each compute one operation to its end."""
    products = our_products(tokens, hidden) | numpys_products(tokens, hidden)
    return products | our_other_operations(tokens, hidden) | our_updates((4 * hidden, 8 * hidden))


def our_products(tokens: int, hidden: int) -> dict:
    import jax
    import jax.numpy as jnp
    from jax import lax

    from bert_jax.models.products import cpu_product

    found = {}
    for dtype, name in ((jnp.float32, "float32"), (jnp.bfloat16, "bfloat16")):
        x, w, g = (
            array.astype(dtype) for array in normal((tokens, 4 * hidden), (4 * hidden, hidden), (tokens, hidden))
        )
        for result, to in ((jnp.float32, "float32"), (dtype, name)) if name == "bfloat16" else ((dtype, name),):
            for form, a, b, axes in (("nn", x, w, (1, 0)), ("nt", g, w, (1, 1)), ("tn", x, g, (0, 0))):
                dot = lambda a, b, axes=axes, result=result: lax.dot_general(
                    a, b, (((axes[0],), (axes[1],)), ((), ())), preferred_element_type=result
                )
                found[f"product {form}, {name} to {to}"] = compiled(dot, a, b)
                if to == "float32":
                    try:
                        call = compiled(by_onednn(jax.eval_shape(dot, a, b), form), a, b)
                        found[f"product {form}, {name} to {to}, by jaxlib's oneDNN"] = call
                    except jax.errors.JaxRuntimeError as error:
                        print(f"jaxlib's oneDNN, {form}: {error}", file=sys.stderr)
        kernel = w.astype(jnp.float32)
        found[f"product tn, {name} to float32, as products=cpu"] = compiled(
            lambda x, g, w=kernel: jax.vjp(lambda w: cpu_product(x, w, 1), w)[1](g)[0], x, g
        )
    return found


def numpys_products(tokens: int, hidden: int) -> dict:
    """Return the products by the OpenBLAS that NumPy brings, which a custom call could use."""
    import numpy as np

    x, w, g = (np.asarray(array) for array in normal((tokens, 4 * hidden), (4 * hidden, hidden), (tokens, hidden)))
    forms = {"nn": (x, w), "nt": (g, w.T), "tn": (x.T, g)}
    return {
        f"product {form}, float32 to float32, by NumPy's OpenBLAS": lambda a=a, b=b: a @ b
        for form, (a, b) in forms.items()
    }


def by_onednn(result, form: str):
    """Return a product by jaxlib's oneDNN, which has no public name; programs with it cannot be cached on disk."""
    import jax

    config = {"transpose_a": form == "tn", "transpose_b": form == "nt"}
    return jax.ffi.ffi_call(
        "__onednn$matmul",
        result,
        custom_call_api_version=2,
        legacy_backend_config=json.dumps({"onednn_matmul_config": config}),
    )


def our_other_operations(tokens: int, hidden: int) -> dict:
    import jax
    import jax.numpy as jnp
    from jax import lax

    from bert_jax.models.kernels import head_products, xla
    from bert_jax.models.kernels.contract import AttentionMask
    from bert_jax.models.layers import dropout, gelu_erf, gelu_tanh, in_float32

    def norm(x, scale, bias):
        centred = x - x.mean(-1, keepdims=True)
        return centred * lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-12) * scale + bias

    heads, key = hidden // 64, jax.random.key(1)
    wide, scores, rows, scale, bias, *heads_of = normal(
        *((tokens, 4 * hidden), (tokens * heads, 128), (tokens, hidden), (hidden,), (hidden,)),
        *[(tokens // 128, 128, heads, 64)] * 3,
    )
    narrow, mask = wide.astype(jnp.bfloat16), AttentionMask(padding=jnp.ones((tokens // 128, 128)))
    attention = lambda products: lambda q, k, v: xla.attention(q, k, v, mask, key, 0.1, products=products)[0]
    return {
        "softmax": with_gradient(lambda s: jax.nn.softmax(s, -1), scores),
        "layer norm": with_gradient(norm, rows, scale, bias),
        "GELU (erf)": with_gradient(gelu_erf, wide),
        "GELU (tanh), bfloat16": with_gradient(gelu_tanh, narrow),
        "GELU (tanh), bfloat16, as products=cpu": with_gradient(in_float32(gelu_tanh), narrow),
        "dropout": with_gradient(lambda x: dropout(x, 0.1, key), wide),
        **{
            f"attention, {dtype}{form}": with_gradient(attention(products), *(x.astype(dtype) for x in heads_of))
            for dtype in ("float32", "bfloat16")
            for form, products in (("", head_products.PLAIN), (", matrix by matrix", head_products.CPU))
        },
    }


def our_updates(size: tuple[int, int]) -> dict:
    """Return updates by AdamW of one array, whose state is donated and held where a gradient is not finite."""
    import jax
    import jax.numpy as jnp
    import optax

    from bert_jax.optim.holding import held, holding
    from bert_jax.optim.optimizers import scale_by_adam

    def update_by(adam):
        def step(params, state, gradient, finite):
            updates, state = adam.update(gradient, state, params, finite=finite)
            return held(finite, params - 1e-4 * (updates + 0.01 * params), params), state

        program, (params, gradient) = jax.jit(step, donate_argnums=(0, 1)), normal(size, size)
        kept, finite = [params, adam.init(params)], jnp.ones((), bool)

        def update():
            kept[:] = jax.block_until_ready(program(*kept, gradient, finite))

        return update

    return {
        "AdamW": update_by(holding(optax.scale_by_adam(0.9, 0.999, 1e-6))),
        "AdamW, moments chosen before they are read": update_by(scale_by_adam(0.9, 0.999, 1e-6)),
    }


def normal(*shapes):
    import jax

    keys = jax.random.split(jax.random.key(0), len(shapes))
    return [jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)]


def compiled(function, *arrays):
    import jax

    program = jax.jit(function).lower(*arrays).compile()
    return lambda: jax.block_until_ready(program(*arrays))


def with_gradient(function, *arrays):
    import jax

    result = jax.eval_shape(function, *arrays)
    cotangent = normal(result.shape)[0].astype(result.dtype)
    return compiled(lambda g, *given: jax.vjp(function, *given)[1](g), cotangent, *arrays)


def theirs(tokens: int, hidden: int) -> dict:
    """Return the same of torch; products give the type of their operands, accumulated in float32."""
    import torch  # of the peer's environment  # pyright: ignore[reportMissingImports]

    wide, heads = 4 * hidden, hidden // 64
    found = {}
    for dtype, name in ((torch.float32, "float32"), (torch.bfloat16, "bfloat16")):
        x, w, g = (torch.randn(shape).to(dtype) for shape in ((tokens, wide), (wide, hidden), (tokens, hidden)))
        for form, a, b in (("nn", x, w), ("nt", g, w.T), ("tn", x.T, g)):
            found[f"product {form}, {name} to {name}"] = lambda a=a, b=b: a @ b

    def with_gradient(function, *shapes, dtype=torch.float32):
        arrays = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]
        cotangent = torch.randn_like(function(*arrays))
        return lambda: torch.autograd.grad(function(*arrays), arrays, cotangent)

    def attention(dtype):
        shape, padding = (tokens // 128, hidden // 64, 128, 64), torch.ones(tokens // 128, 1, 1, 128, dtype=torch.bool)
        kernel = lambda *given: functional.scaled_dot_product_attention(*given, attn_mask=padding, dropout_p=0.1)
        return with_gradient(kernel, shape, shape, shape, dtype=dtype)

    parameter = torch.nn.Parameter(torch.randn(wide, 8 * hidden))
    parameter.grad = torch.randn_like(parameter)
    functional = torch.nn.functional
    return found | {
        "softmax": with_gradient(lambda s: s.softmax(-1), (tokens * heads, 128)),
        "layer norm": with_gradient(
            lambda x, s, b: functional.layer_norm(x, (hidden,), s, b), (tokens, hidden), (hidden,), (hidden,)
        ),
        "GELU (erf)": with_gradient(functional.gelu, (tokens, wide)),
        "GELU (tanh), bfloat16": with_gradient(
            lambda x: functional.gelu(x, approximate="tanh"), (tokens, wide), dtype=torch.bfloat16
        ),
        "dropout": with_gradient(lambda x: functional.dropout(x, 0.1, True), (tokens, wide)),
        "attention, float32": attention(torch.float32),
        "attention, bfloat16": attention(torch.bfloat16),
        "AdamW": torch.optim.AdamW([parameter], lr=1e-4, fused=True).step,
    }


def serve(side: str, tokens: int, hidden: int) -> None:
    """Answer each line of stdin with one round: CPU milliseconds by operation."""
    operations = {"ours": ours, "theirs": theirs}[side](tokens, hidden)
    counts = {}
    for name, operation in operations.items():
        operation()
        begin = time.process_time()
        operation()
        counts[name] = max(1, round(ROUND_SECONDS / max(time.process_time() - begin, 1e-5)))
    for _ in sys.stdin:
        taken = {}
        for name, operation in operations.items():
            begin = time.process_time()
            for _ in range(counts[name]):
                operation()
            taken[name] = 1e3 * (time.process_time() - begin) / counts[name]
        print(json.dumps(taken), flush=True)


def rounds(pythons: dict[str, str], options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return the least CPU milliseconds of each side, by operation, over rounds in turns."""
    sides = {}
    for side, python in pythons.items():
        words = [python, __file__, f"--serve={side}", f"--tokens={options.tokens}", f"--hidden={options.hidden}"]
        sides[side] = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    least = {side: {} for side in sides}
    for _ in range(options.rounds):
        for side, process in sides.items():
            process.stdin.write("\n")
            process.stdin.flush()
            for name, value in json.loads(process.stdout.readline()).items():
                least[side][name] = min(value, least[side].get(name, value))
    for process in sides.values():
        process.communicate()
    return least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve(options.serve, options.tokens, options.hidden)
    least = rounds({"ours": sys.executable} | ({"theirs": options.peer} if options.peer else {}), options)
    print(
        f"{platform.processor() or platform.machine()}; CPU milliseconds\n\n| operation | XLA | torch |\n|---|---|---|"
    )
    torch = least.get("theirs", {})
    for name in [*least["ours"], *(name for name in torch if name not in least["ours"])]:
        print(f"| {name} | {least['ours'].get(name, float('nan')):.2f} | {torch.get(name, float('nan')):.2f} |")


if __name__ == "__main__":
    main()
