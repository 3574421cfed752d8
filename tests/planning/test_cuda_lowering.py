"""The step of `pretrain` as it is on an NVIDIA GPU, lowered for CUDA where there is none."""

import dataclasses
import re
import sys

import jax

from bert_jax.config import ComputeConfig, Config, PhaseConfig, resolve_phases
from bert_jax.config.presets import model_config
from bert_jax.devices import sharding
from bert_jax.tools.planning.compiler import learner, resolved
from bert_jax.tools.planning.topology import find_topology


def lowered_step(**compute) -> str:
    """A step with a row of 128 tokens in each of 8 rows; attention has no dropout where it is cuDNN's."""
    rate = 0.0 if compute else 0.1
    model = dataclasses.replace(model_config("tiny"), vocab_size=120, num_layers=3, attention_dropout=rate)
    phases = (PhaseConfig(sequence_length=128, batch_size=8),)
    config = resolved(Config(model=model, compute=ComputeConfig(**compute), phases=phases), find_topology("gpu:h100:1"))
    (phase,) = resolve_phases(config)
    what = learner(config, sharding.make_mesh(config.mesh, jax.devices()[:1]))
    traced = what.train_step(phase).trace(what.abstract, what.abstract_batch(phase))
    return traced.lower(lowering_platforms=("cuda",)).as_text()


def test_the_default_step_multiplies_by_kernels_in_bfloat16_and_calls_nothing_that_a_gpu_lacks():
    """Queries, keys, values and outputs of attention are 2 × 64 wide, the feed-forward layer 512."""
    text = lowered_step()
    products = re.findall(r"stablehlo.dot_general [^\n]*: \((\S+), (\S+)\) -> ", text)
    kernel = re.compile(r"tensor<(128x2x64|2x64x128|128x512|512x128)x(\w+)>")
    by_kernels = [(left, right) for left, right in products if kernel.fullmatch(right)]
    assert len(by_kernels) == 3 * 6 * 2, "six kernels of three layers, forward and for the gradients of their inputs"
    assert all(left.endswith("xbf16>") and right.endswith("xbf16>") for left, right in by_kernels)
    wide = [pair for pair in products if any(operand.endswith("xf32>") for operand in pair)]
    assert len(wide) == 5 and all(re.search(r"[<x]2x", left + right) for left, right in wide), "two types, two classes"
    assert "custom_call" not in text


def test_attention_by_cudnn_is_in_the_step(monkeypatch):
    """JAX asks the card of this process for its version and kind, and there is none: cuDNN 9.10 on a Hopper."""
    module = sys.modules["jax._src.cudnn.fused_attention_stablehlo"]
    monkeypatch.setattr(module, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(module, "check_compute_capability", lambda capability: True)
    text = lowered_step(attention="cudnn")
    assert len(re.findall(r"@__cudnn\$fmhaScaleBiasSoftmax\(", text)) == 2, "the last layer is read in part"
    assert len(re.findall(r"@__cudnn\$fmhaScaleBiasSoftmaxBackward\(", text)) == 2
