"""Attention within windows, and the choice of a kernel."""

import dataclasses
import functools
import math
import os
import re
import subprocess
import sys
import types

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.mesh import AbstractDevice
from model_variants import variant
from modern_models import MODERN, rows
from processes import EXHAUSTIVE
from small_model import compiled, perturbed

from bert_jax.config import ComputeConfig, MeshConfig, ModelConfig
from bert_jax.devices import sharding
from bert_jax.errors import UserError
from bert_jax.models.architecture import bert_architecture
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.block import alibi_bias, causal_bias
from bert_jax.models.kernels import choice, gpu, plain, tpu, windowed
from bert_jax.models.kernels.plain import AttentionMask, Call
from bert_jax.models.kernels.tpu import BUNDLES
from bert_jax.models.layers import PackedTexts
from bert_jax.parameters import entries

HEADS, SIZE = 2, 4
CASES = [  # length, window, global tokens, real positions of each row, whether there are segments
    pytest.param(50, 3, 0, (50, 31), False, id="blocks wider than the window"),
    pytest.param(64, 16, 0, (64, 40), True, id="whole blocks, segments"),
    pytest.param(77, 17, 0, (77, 50), False, id="odd"),
    pytest.param(70, 5, 3, (70, 44), False, id="global tokens"),
    pytest.param(70, 9, 1, (70, 52), True, id="a global token of each text"),
    pytest.param(90, 3, 2, (90, 61), True, id="two of each text"),
    pytest.param(20, 19, 2, (20, 20), False, id="a window over all"),
]


def setting(length, window, first, real, segmented) -> tuple[list[np.ndarray], AttentionMask, np.ndarray]:
    random = np.random.default_rng(length)
    inputs = [random.standard_normal((len(real), length, HEADS, SIZE)).astype(np.float32) for _ in range(3)]
    padding = (np.arange(length)[None, :] < np.array(real)[:, None]).astype(np.int32)
    segments = np.tile(np.arange(length) // 21, (len(real), 1)).astype(np.int32) if segmented else None
    positions = None if not first else np.arange(first, dtype=np.int32)[None]
    if first and segmented:  # each text has some, and a row one that is not there
        starts = np.arange(0, length, 21)[:, None] + np.arange(first)
        positions = np.append(starts, length).astype(np.int32)[None]
    mask = AttentionMask(padding=padding, segments=segments, window=window, global_positions=positions)
    return inputs, mask, padding.astype(bool)


BIASES = {"no bias": None, "ALiBi": functools.partial(alibi_bias, HEADS), "left to right": causal_bias}
BIASED = "two of each text"
"""The case that core tests have with each bias; the others they have without one."""


@pytest.mark.parametrize(
    "length, window, first, real, segmented, bias",
    [
        pytest.param(
            *case.values,
            bias,
            id=f"{name}-{case.id}",
            marks=() if (bias is None) != (case.id == BIASED) else pytest.mark.slow,
        )
        for name, bias in BIASES.items()
        for case in CASES
    ],
)
def test_outputs_and_gradients_are_those_of_the_masked_full_matrix(length, window, first, real, segmented, bias):
    inputs, mask, seen = setting(length, window, first, real, segmented)
    # To xla as a full matrix, computed here, and to the blocks as a function of distances.
    full = None if bias is None else np.asarray(bias(np.arange(length)[None, :] - np.arange(length)[:, None]))[None]
    masks = {
        windowed.attention: dataclasses.replace(mask, distance_bias=bias),
        plain.attention: dataclasses.replace(mask, bias=full),
    }

    def loss(inputs, attend):
        found, _ = attend(*inputs, masks[attend])
        return jnp.sum(jnp.where(seen[:, :, None, None], jnp.sin(found), 0)), found

    @compiled
    def both(inputs):
        return [
            jax.value_and_grad(functools.partial(loss, attend=attend), has_aux=True)(inputs)
            for attend in (windowed.attention, plain.attention)
        ]

    ((_, found), slopes), ((_, expected), wanted) = both(inputs)
    np.testing.assert_allclose(np.asarray(found)[seen], np.asarray(expected)[seen], atol=2e-6)
    for one, other in zip(slopes, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def largest(length: int) -> int:
    """Values of the largest array on the way to the gradients."""
    inputs, mask, _ = setting(length, 24, 2, (length,), False)
    loss = jax.grad(lambda inputs: jnp.sum(windowed.attention(*inputs, mask, jax.random.key(0), 0.1)[0]))
    jaxpr = jax.make_jaxpr(loss)(inputs)
    return max(math.prod(each.aval.shape) for each in variables(jaxpr.jaxpr))


def variables(jaxpr):
    for equation in jaxpr.eqns:
        yield from equation.outvars
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from variables(inner)


def test_no_array_grows_faster_than_the_length():
    assert largest(960) == 2 * largest(480)


def test_dropped_probabilities_keep_the_mean():
    inputs, mask, _ = setting(640, 16, 1, (640,), False)
    query, key, value = inputs[0], inputs[1], np.ones_like(inputs[2])
    attend = compiled(lambda: windowed.attention(query, key, value, mask, jax.random.key(3), 0.25)[0][0, ..., 0])
    found, again = np.asarray(attend()), np.asarray(attend())
    np.testing.assert_array_equal(found, again)
    error = found.std() / math.sqrt(found.size)
    assert found.std() > 0.05 and abs(found.mean() - 1) < 6 * error


def test_it_is_chosen_for_windows_far_shorter_than_the_row():
    call = Call(rows=1, length=8192, heads=12, size=64, rate=0.0, dtype=jnp.dtype("float32"), window=64)
    paths = {
        (length, window): choice.attention_path(
            ComputeConfig(), "cpu", dataclasses.replace(call, length=length, window=window)
        )
        for length in (128, 8192)
        for window in (None, 64, 4096)
    }
    assert paths.pop((8192, 64)) == "windowed" and set(paths.values()) == {"xla"}
    assert choice.attention_path(ComputeConfig(attention="xla"), "cpu", call) == "xla"
    # With G global tokens a position has 3 · 64 + 2 · G scores, which is half of a row of 512 where G = 32.
    sizes = ((512, 32), (512, 33), (896, 128), (888, 128))
    calls = [dataclasses.replace(call, length=length, global_tokens=number) for length, number in sizes]
    found = [choice.attention_path(ComputeConfig(), "cpu", each) for each in calls]
    assert found == ["windowed", "xla", "windowed", "xla"]
    # On a TPU it is what the kernel there cannot do: global tokens, and lengths that are no multiple of 128.
    changes = ({}, {"global_tokens": 1}, {"length": 8200})
    on_tpu = [dataclasses.replace(call, dtype=jnp.dtype("bfloat16"), **each) for each in changes]
    paths = [choice.attention_path(ComputeConfig(), "tpu", each) for each in on_tpu]
    assert paths == ["pallas", "windowed", "windowed"]


@pytest.mark.parametrize(
    "layers, changes",
    [
        pytest.param("loop", {}, id="loop"),
        pytest.param("scan", {}, id="scan", marks=pytest.mark.slow),
        pytest.param("scan", {"positions": "alibi"}, id="ALiBi"),
        pytest.param("scan", {"direction": "left_to_right"}, id="left to right", marks=pytest.mark.slow),
    ],
)
def test_a_model_with_local_layers_is_the_same_by_blocks(layers, changes, monkeypatch):
    config = variant(MODERN, max_position_embeddings=128, num_layers=4, **changes, global_tokens=1)
    params, batch = perturbed(BertForPreTraining(config, parts=())), rows(101, (101, 60))
    calls = []
    counted = dataclasses.replace(
        windowed.KERNEL, function=lambda *given: calls.append(1) or windowed.attention(*given)
    )
    monkeypatch.setattr(windowed, "KERNEL", counted)
    states = {}
    for kernel in ("auto", "xla"):
        model = BertForPreTraining(config, ComputeConfig(dtype="float32", attention=kernel, layers=layers), ())
        states[kernel] = np.asarray(compiled(model.encode)(params, *batch).last_hidden_state)[batch[2] > 0]
        assert (len(calls) > 0) == (kernel == "auto")
        calls.clear()
    np.testing.assert_allclose(states["auto"], states["xla"], atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [0, 2], ids=["single texts", "global tokens of two texts"])
def test_a_model_with_local_layers_is_the_same_on_any_mesh(tokens):
    sizes = {"hidden_size": 32, "num_heads": 4, "max_position_embeddings": 128, "num_layers": 4}
    config = variant(MODERN, **sizes, global_tokens=tokens)
    model = BertForPreTraining(config, ComputeConfig(dtype="float32", layers="scan"), ())
    params, batch = perturbed(model), rows(128, (128, 60, 128, 33))
    real = jnp.asarray(batch[2])[:, :, None]
    numbers = (batch[2] * (1 + (np.arange(128) >= 30)[None])).astype(np.int32)
    texts = PackedTexts(numbers, np.array([[0, 30]] * 4, np.int32)) if tokens else None

    def loss(params, batch):
        return jnp.sum(jnp.sin(model.encode(params, *batch, texts=texts).last_hidden_state) * real)

    expected, slopes = compiled(jax.value_and_grad(loss))(params, batch)
    others = (MeshConfig(data=8), MeshConfig(data=1, fsdp=8)) if EXHAUSTIVE else ()
    for sizes in (MeshConfig(data=2, fsdp=2, tensor=2), *others):
        mesh = sharding.make_mesh(sizes)
        placed = jax.device_put(params, sharding.shardings(mesh, entries(model.parameters, params)))
        step = compiled(sharding.under(mesh, jax.value_and_grad(loss)))
        found, gradient = step(placed, batch)
        assert float(found) == pytest.approx(float(expected), rel=1e-5)
        for one, other in zip(jax.tree.leaves(gradient), jax.tree.leaves(slopes), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5 * np.abs(other).max())


MODEL = ModelConfig(vocab_size=60, hidden_size=128, num_layers=2, num_heads=2, intermediate_size=64)


def kernel(**compute):
    return bert_architecture(MODEL, ComputeConfig(**compute)).stack.attend


def test_the_architecture_takes_the_kernel_that_is_asked_for_and_here_the_plain_one():
    assert kernel(attention="xla").function is plain.attention
    for name in ("auto", "pallas", "triton", "cudnn"):
        taken = kernel(attention=name).function
        assert taken.func is choice.chosen and taken.args == (name, plain.attention)
    kernels = {"pallas": tpu.KERNEL, "triton": gpu.KERNEL, "cudnn": choice.KERNEL, "windowed": windowed.KERNEL}
    assert all(choice.declared(name) is each for name, each in kernels.items())


@pytest.mark.parametrize(
    "platform, length, fused", [("tpu", 128, True), ("tpu", 64, False), ("cpu", 512, False), (None, 512, False)]
)
def test_the_mesh_in_use_decides_what_is_automatic(platform, length, fused):
    """A plan is traced here for chips that are not here."""
    device = platform and AbstractDevice(device_kind="", num_cores=1, platform=platform)
    mesh = jax.sharding.AbstractMesh((1,), ("data",), abstract_device=device)
    x = jax.ShapeDtypeStruct((2, length, 2, 64), jnp.bfloat16)
    with jax.sharding.use_abstract_mesh(mesh):
        padding = np.ones((2, length), np.int32)
        traced = jax.make_jaxpr(lambda x: kernel()(x, x, x, AttentionMask(padding=padding))[0])(x)
    assert (f"attention_forward_{length}" in str(traced)) == fused


@pytest.mark.parametrize(
    "name, platform, allowed",
    [
        *(("pallas", "tpu", True), ("pallas", "cpu", False), ("pallas", "gpu", False)),
        *(("triton", "gpu", True), ("triton", "tpu", False)),
        *(("cudnn", "gpu", True), ("cudnn", "cpu", False), ("auto", "cpu", True), ("xla", "tpu", True)),
    ],
)
def test_a_kernel_for_another_machine_is_refused(name, platform, allowed):
    compute = ComputeConfig(attention=name)
    if allowed:
        choice.check_attention(compute, platform)
    else:
        with pytest.raises(UserError, match=rf"compute.attention={name} needs an? .*runs on {platform}; .*=auto"):
            choice.check_attention(compute, platform)


CALL = Call(rows=8, length=512, heads=16, size=64, rate=0.1, dtype=jnp.dtype("bfloat16"))


@pytest.mark.parametrize(
    "attention, platform, changes, path",
    [
        ("auto", "cpu", {}, "xla"),
        ("auto", "tpu", {}, "pallas"),
        ("auto", "tpu", {"length": 128}, "pallas"),
        ("auto", "tpu", {"length": 64}, "xla"),
        ("auto", "tpu", {"length": 300}, "xla, not pallas: length 300 is not a multiple of 128 up to 8192"),
        ("pallas", "tpu", {"length": 128}, "pallas"),
        ("auto", "tpu", {"global_tokens": 1}, "xla, not pallas: it has no tokens that see the whole row"),
        ("auto", "tpu", {"head_parts": 5}, "xla, not pallas: 16 heads are not a multiple of mesh.tensor=5"),
        ("auto", "tpu", {"head_parts": 2}, "pallas"),
        ("auto", "tpu", {"row_parts": 3}, "xla, not pallas: 8 rows are not a multiple of the 3 parts of the mesh"),
        ("auto", "tpu", {"length": 4096, "window": 64, "global_tokens": 1}, "windowed"),
        ("auto", "gpu", {}, "triton"),
        ("auto", "gpu", {"length": 4096, "window": 64}, "triton"),
        ("auto", "gpu", {"length": 64}, "xla"),
        ("auto", "gpu", {"dtype": jnp.dtype("float32")}, "xla"),
        ("auto", "gpu", {"length": 300}, "xla, not triton: length 300 is not a multiple of 16"),
        ("auto", "gpu", {"disentangled": True}, "xla, not triton: scores have a bias that depends on queries and keys"),
        ("triton", "gpu", {}, "triton"),
        ("triton", "gpu", {"size": 36}, "xla, not triton: heads of size 36"),
        ("triton", "gpu", {"head_parts": 5}, "xla, not triton: 16 heads are not a multiple of mesh.tensor=5"),
        ("triton", "gpu", {"global_tokens": 1}, "xla, not triton: it has no tokens that see the whole row"),
        ("cudnn", "gpu", {"rate": 0.0}, "cudnn"),
        ("cudnn", "gpu", {}, "xla, not cudnn: it has no dropout of the probabilities (model.attention_dropout)"),
        ("cudnn", "gpu", {"rate": 0.0, "dtype": jnp.dtype("float32")}, "xla, not cudnn: it computes in bfloat16"),
        ("cudnn", "gpu", {"rate": 0.0, "size": 36}, "xla, not cudnn: heads of size 36"),
        ("cudnn", "gpu", {"rate": 0.0, "length": 77}, "xla, not cudnn: length 77 is odd"),
    ],
)
def test_the_path_is_named_and_a_detour_explained(attention, platform, changes, path):
    disentangled = changes.get("disentangled", False)
    call = dataclasses.replace(CALL, **{name: value for name, value in changes.items() if name != "disentangled"})
    found = choice.attention_path(ComputeConfig(attention=attention), platform, call, disentangled)
    assert found == path if "," not in path else found.startswith(path)


def gradients(attention, query, key, value, gradient, padding, segments):
    def output(*qkv):
        return attention(*qkv, AttentionMask(padding=padding, segments=segments))[0]

    found, backward = jax.vjp(output, query, key, value)
    return found, backward(gradient)


def test_cudnn_is_lowered_for_cuda_with_segments_as_a_bias(monkeypatch):
    """JAX asks the card of this process for its version and kind, and there is none: cuDNN 9.10 on a Hopper."""
    module = sys.modules["jax._src.cudnn.fused_attention_stablehlo"]
    monkeypatch.setattr(module, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(module, "check_compute_capability", lambda capability: True)
    x, rows = jax.ShapeDtypeStruct((2, 128, 4, 64), jnp.bfloat16), jax.ShapeDtypeStruct((2, 128), jnp.int32)
    traced = jax.jit(functools.partial(gradients, choice.attention)).trace(x, x, x, x, rows, rows)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert len(re.findall(r"custom_call @__cudnn\$fmhaScaleBiasSoftmax\(", text)) == 1
    assert len(re.findall(r"custom_call @__cudnn\$fmhaScaleBiasSoftmaxBackward\(", text)) == 1
    assert "tensor<2x1x128x128xbf16>" in text and "stablehlo.exponential" not in text
    (backward,) = re.findall(r"%\d+:(\d+) = stablehlo.custom_call @__cudnn\$fmhaScaleBiasSoftmaxBackward\(", text)
    if not jax.__version__.startswith("0.10."):
        assert backward == "4", "gradients of query, key and value, and room to work, but none of the mask"


@pytest.mark.parametrize("biased", [False, True])
def test_cudnn_gets_the_mask_and_the_bias(monkeypatch, biased):
    """What it is called with, computed by JAX's own attention, is the plain attention of queries that see a key."""
    given = jax.nn.dot_product_attention
    monkeypatch.setattr(
        jax.nn, "dot_product_attention", lambda *arrays, implementation: given(*arrays, implementation="xla")
    )
    random = np.random.default_rng(0)
    query, key, value = (jnp.asarray(random.standard_normal((2, 16, 4, 8)), jnp.bfloat16) for _ in range(3))
    segments = np.sort(random.integers(1, 4, (2, 16)), 1).astype(np.int32)
    padding = np.ones((2, 16), np.int32)
    padding[1, 9:] = 0
    bias = jnp.asarray(random.standard_normal((1, 4, 16, 16)), jnp.float32) if biased else None
    mask = AttentionMask(padding=padding, segments=segments, window=5, bias=bias)
    found, expected = (jax.jit(each)(query, key, value, mask)[0] for each in (choice.attention, plain.attention))
    reads = np.asarray(mask.seen().any(axis=(1, 3)))
    assert reads[0].all() and 9 <= reads[1].sum() < 16
    np.testing.assert_allclose(np.float32(found)[reads], np.float32(expected)[reads], atol=2**-6)
    assert np.isfinite(np.float32(found)).all()
    # What it cannot do, it does not try.
    kernels = kernel(attention="cudnn"), plain.attention
    dropped = compiled(lambda *qkv: [each(*qkv, mask, jax.random.key(0), 0.1)[0] for each in kernels])
    np.testing.assert_array_equal(*map(np.float32, dropped(query, key, value)))


COMPILE = r"""
import dataclasses, re, sys
import jax
import jax.numpy as jnp
from jax.experimental import topologies
from bert_jax.models.kernels import tpu as pallas
from bert_jax.models.kernels.plain import AttentionMask
from bert_jax.models.kernels.tpu import BUNDLES
from bert_jax.models.stack import REMAT_POLICIES

chip = topologies.get_topology_desc(platform="tpu", topology_name=sys.argv[1]).devices[0]
place = jax.sharding.SingleDeviceSharding(chip)
for batch, length, heads, size, restricted in eval_shapes:  # by arrays, or by a window of so many tokens
    hidden = heads * size
    def layer(x, kernel, padding, segments, window, bias, key):
        def loss(x, kernel, bias):
            q, k, v = (jnp.einsum("blh,had->blad", x, part.reshape(hidden, heads, size)) for part in kernel)
            mask = AttentionMask(padding=padding, segments=segments)
            if restricted:
                given = {"window": window, "bias": bias} if restricted == "arrays" else {"window": restricted}
                mask = dataclasses.replace(mask, **given)
            y = pallas.attention(q, k, v, mask, key, 0.1)[0]
            return jnp.sum(jnp.einsum("blad,adh->blh", y, kernel[0].reshape(heads, size, hidden)).astype(jnp.float32))
        saved = jax.checkpoint(loss, policy=REMAT_POLICIES["sel"])
        return jax.grad(saved, (0, 1, 2))(x, kernel, bias)
    of = lambda shape, dtype: jax.ShapeDtypeStruct(shape, dtype)
    rows = of((batch, length), jnp.int32)
    arguments = (of((batch, length, hidden), jnp.bfloat16), of((3, hidden, hidden), jnp.bfloat16), rows, rows,
                 of((), jnp.int32), of((1, heads, length, length), jnp.float32),
                 jax.eval_shape(lambda: jax.random.key(0)))
    text = jax.jit(layer, in_shardings=place, out_shardings=place).lower(*arguments).compile().as_text()
    made = dict(re.findall(r"^ *(?:ROOT )?(%[\w.\-]+) = .*? ([\w\-]+)\(", text, re.M))
    calls = [line for line in text.splitlines() if 'custom_call_target="tpu_custom_call"' in line]
    activations = [name for line in calls for name in re.findall(r"%[\w.\-]+", line.split(" custom-call(")[1])
                   if f" {name} = bf16[{batch},{length},{hidden}]" in text]
    moved = [name for name in activations if made[name] in ("copy", "transpose")]
    print(batch, length, heads, size, "kernels", len(calls), "activations", len(activations) >= 6, "moved", moved)
"""
SHAPES = (  # whole rows, blocks of queries with all restrictions, and a window that is known
    *((8, 512, 16, 64, None), (1, 2048, 2, 64, "arrays"), (2, 512, 12, 64, 64)),
    *(((64, 128, 12, 64, None), (1, 8192, 2, 64, None)) if EXHAUSTIVE else ()),
    *(((2, 1024, 12, 64, 64), (1, 8192, 2, 64, 64)) if EXHAUSTIVE else ()),
)


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["v5e:2x2", *(["v5p:2x2x1", "v6e:2x2"] if EXHAUSTIVE else [])])
def test_kernels_compile_for_tpus_and_take_activations_as_the_projections_make_them(machine):
    """With the compiler of libtpu (make build/libtpu/.installed), in a process of its own."""
    pytest.importorskip("libtpu")
    from bert_jax.tools.planning.compiler import WITHOUT_A_TPU

    script = COMPILE.replace("eval_shapes", repr(SHAPES))
    environment = os.environ | WITHOUT_A_TPU | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script, machine], env=environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.split("\n")[: len(SHAPES)]
    # Forward, once though all is recomputed that is not named, and backward; for the gradient of a bias one more.
    assert lines == [
        f"{batch} {length} {heads} {size} kernels {2 + (restricted == 'arrays')} activations True moved []"
        for batch, length, heads, size, restricted in SHAPES
    ]


INSTRUCTIONS = r"""
import math, os, pathlib, re, sys, tempfile
directory = tempfile.mkdtemp(dir=sys.argv[1])
os.environ["LIBTPU_INIT_ARGS"] = f"--xla_jf_dump_to={directory} --xla_jf_dump_llo_text=true"
import jax
import jax.extend
import jax.numpy as jnp
from jax.experimental import topologies
from bert_jax.models.kernels import tpu as pallas
from bert_jax.models.kernels.plain import AttentionMask

def layer(query, key, value, numbers, gradient):
    mask = AttentionMask(padding=numbers, segments=numbers)
    attend = lambda *inputs: pallas.attention(*inputs, mask, jax.random.key(0), 0.1)[0]
    output, backward = jax.vjp(attend, query, key, value)
    return output, backward(gradient.reshape(output.shape))

def grids(jaxpr):
    for equation in jaxpr.eqns:
        if equation.primitive.name == "pallas_call":
            yield math.prod(equation.params["grid_mapping"].grid)
            continue
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from grids(inner)

length, heads, size, tile = 128, 12, 64, 128
x = jax.ShapeDtypeStruct((1, length, heads, size), jnp.bfloat16)
numbers = jax.ShapeDtypeStruct((1, length), jnp.int32)
chip = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices[0]
place = jax.sharding.SingleDeviceSharding(chip)
traced = jax.jit(layer, in_shardings=place, out_shardings=place).trace(x, x, x, numbers, x)
traced.lower().compile()
# libtpu 0.0.42 writes of a kernel that all instructions belong to one operation, a call.
kernel = re.compile(r"^\s*(\d+)\.00 scheduled bundles \(100\.00%\): .* custom-call\(", re.M)
files = sorted(pathlib.Path(directory).glob("*schedule-analysis_final_bundles.txt"))
scheduled = [int(found[1]) for file in files if (found := kernel.search(file.read_text()))]
steps = grids(traced.jaxpr.jaxpr)
print(*(each * count / (heads * (length / tile) ** 2) for each, count in zip(steps, scheduled, strict=True)))
"""


@pytest.mark.slow
def test_plans_charge_the_kernels_with_the_instructions_that_the_compiler_schedules(tmp_path):
    """Count those for 128 queries and 128 keys of a head; plans leave out the start of each step of the grid."""
    pytest.importorskip("libtpu")
    from bert_jax.tools.planning.compiler import WITHOUT_A_TPU

    command = [sys.executable, "-c", INSTRUCTIONS, tmp_path]
    environment = os.environ | WITHOUT_A_TPU | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr[-3000:]
    forward, *backward = map(float, done.stdout.split())
    for counted, kernel in ((forward, "forward"), (sum(backward), "backward")):
        assert 1 <= counted / BUNDLES[kernel][128] < 1.1


@pytest.mark.parametrize("capability, path", [("7.5", "xla"), ("8.0", "triton"), ("12.1", "triton"), ("gfx90a", "xla")])
def test_cards_that_triton_does_not_compile_for_get_attention_in_jax(capability, path, monkeypatch):
    card = types.SimpleNamespace(compute_capability=capability)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [card])
    assert choice.attention_path(ComputeConfig(), "gpu", CALL) == path
