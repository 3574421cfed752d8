"""Models as ONNX files: what onnxruntime computes is what JAX does, at every length, and the files are sound."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import model_type_exports
import numpy as np
import pytest
from pretrained_model import SMALL, loaded, stored_model
from test_exported_function import OTHERS

from bert_jax.config import EmbeddingConfig, HeadConfig
from bert_jax.errors import UserError
from bert_jax.tools.export.comparison import compare
from bert_jax.tools.export.function import ModelFunction, model_function
from bert_jax.tools.export.onnx import onnx_model, save, write_onnx

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


def runner(file: Any, function: ModelFunction) -> Callable[..., dict[str, np.ndarray]]:
    """What onnxruntime computes from a file, or from its bytes."""
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    names = list(function.outputs)
    assert [each.name for each in session.get_inputs()] == list(function.inputs)
    assert [each.name for each in session.get_outputs()] == names

    def run(*inputs: np.ndarray) -> dict[str, np.ndarray]:
        given = {name: np.asarray(values, np.int64) for name, values in zip(function.inputs, inputs, strict=True)}
        return dict(zip(names, session.run(names, given), strict=True))

    return run


def assert_exact(stored) -> None:
    model = loaded(stored)
    function = model_function(model)
    written = onnx_model(function, "a model")
    onnx.checker.check_model(written, full_check=True)
    run = runner(written.SerializeToString(), function)
    compared = compare(model, function, run)
    assert compared.relative < 1e-5, compared.describe()
    blank = [np.zeros((2, 5), np.int32) for _ in function.inputs]  # a row of nothing but padding
    assert all(np.isfinite(values).all() for values in run(*blank).values())


def of(compute: Callable[[jax.Array], jax.Array]) -> ModelFunction:
    """The function of x, int32 [batch, length], that gives one array."""
    return ModelFunction(lambda _, given: {"y": compute(given["x"])}, {}, ("x",), {"y": ("batch", "length")}, 16)


def test_a_classifier_and_its_file(capfd, tmp_path):
    head = HeadConfig(labels=("no", "yes"))
    model = loaded(stored_model(dataclasses.replace(SMALL, num_layers=1, activation="gelu_erf"), None, head))
    function = model_function(model)
    written = onnx_model(function, "a classifier")
    onnx.checker.check_model(written, full_check=True)
    assert written.SerializeToString() == onnx_model(function, "a classifier").SerializeToString()
    operations = [node.op_type for node in written.graph.node]
    # Norms, softmax and GELU are one operation each, and nothing is copied to be broadcast but the place of [CLS].
    assert [operations.count(name) for name in ("LayerNormalization", "Softmax", "Gelu", "Expand")] == [3, 1, 1, 1]
    sizes = [each.dim_param for each in written.graph.input[0].type.tensor_type.shape.dim]
    assert sizes == ["batch", "length"]
    save(written, tmp_path / "model.onnx", largest_file=0)  # as of a model above 2 GiB
    assert (tmp_path / "model.onnx").stat().st_size < (tmp_path / "model.onnx.data").stat().st_size
    run, jitted = runner(tmp_path / "model.onnx", function), jax.jit(function)
    random = np.random.default_rng(0)
    for rows, length in ((1, 1), (5, 33)):
        mask = np.arange(length) < np.maximum(1, length - random.integers(0, length, rows))[:, None]
        ids = random.integers(0, SMALL.vocab_size, mask.shape) * mask
        inputs = [values.astype(np.int32) for values in (ids, mask, random.integers(0, 2, mask.shape))]
        np.testing.assert_allclose(run(*inputs)["logits"], jitted(*inputs)["logits"], atol=1e-5)
    assert "onnxruntime" not in capfd.readouterr().err  # it warns of what it has to guess


def rare(np: Any, x: Any) -> Any:
    """What depends on sizes, and what few models compute, in NumPy or in JAX."""
    rows, length = x.shape
    turned = np.pad(x, ((0, 0), (0, length // 2)))[:, ::-1][:, :length]
    place = np.argsort(x % 3, axis=1, stable=True) + np.argmax(x, axis=1)[:, None] * (-length % 4)
    best = np.max(np.where(x > 3, x, -1), axis=1, keepdims=True) + np.cumsum(x, axis=1) + rows**2
    whole = np.log1p(np.abs(np.sin((turned + place + best).astype(np.float32))))
    return np.where(np.any(x > 5, axis=1, keepdims=True), whole, -whole)


def test_sizes_and_rare_operations():
    function = of(lambda x: jax.lax.optimization_barrier(rare(jnp, x)))
    run = runner(onnx_model(function, "a function").SerializeToString(), function)
    for shape in ((1, 1), (2, 5), (3, 16)):
        x = np.random.default_rng(1).integers(0, 9, shape)
        np.testing.assert_allclose(run(x)["y"], rare(np, x), atol=1e-6)


def test_what_is_not_translated_is_named():
    strange = of(lambda x: jax.lax.erf_inv(x.astype(jnp.float32)))
    with pytest.raises(UserError, match=r"^models/odd computes erf_inv, which .*--to=stablehlo"):
        onnx_model(strange, "models/odd")


@pytest.mark.slow
def test_integers_are_close_and_small(tmp_path):
    config = dataclasses.replace(SMALL, hidden_size=64, intermediate_size=256)
    model = loaded(stored_model(config, (), embedding=EmbeddingConfig(pooling="mean", normalize=True)))
    function = model_function(model)
    for precision in ("float32", "int8"):
        write_onnx(function, tmp_path / f"{precision}.onnx", "a model", precision)
    whole, small = ((tmp_path / f"{name}.onnx").stat().st_size for name in ("float32", "int8"))
    assert small < 0.4 * whole
    compared = compare(model, function, runner(tmp_path / "int8.onnx", function))
    assert 1e-5 < compared.relative < 0.1, compared.describe()


@pytest.mark.slow
@pytest.mark.parametrize("name, key", model_type_exports.listed())
def test_every_model_type_and_head_in_onnx(name, key):
    assert_exact(model_type_exports.make(name, key))


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_what_is_ours_alone_in_onnx(name):
    assert_exact(OTHERS[name]())
