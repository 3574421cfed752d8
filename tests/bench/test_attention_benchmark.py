"""`bert-jax bench attention` from end to end on small arrays, and what it refuses."""

import functools
import json
import re

import jax
import numpy as np
import pytest
from command_lines import status
from full_device import DOES_NOT_FIT, full_device
from processes import UNOPTIMIZED

from bert_jax.config.commands import AttentionBenchConfig
from bert_jax.devices import hardware
from bert_jax.errors import UserError
from bert_jax.tools.bench import attention, contestants

QUICK = ("--rounds=2", "--turn_seconds=0")
bench = functools.partial(status, "bench", "attention")


@pytest.mark.slow
def test_attention_by_length(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", UNOPTIMIZED)
    output = tmp_path / "attention.json"
    words = ("--lengths=8,32", "--tokens=64", "--heads=2", f"--output={output}")
    assert bench(*QUICK, *words) == 0
    found = json.loads(output.read_text())["contestants"]
    assert [(one["kernel"], one["path"], one["length"]) for one in found] == [("xla", "xla", 8), ("xla", "xla", 32)]
    for one in found:
        wall = sum(turn["wall"] / turn["units"] for turn in one["turns"]) / 2
        assert one["tokens_per_second"] == pytest.approx(64 / wall)
        # Scores and weighted values forward, and five products backward, of L² × 64 each, with two operations.
        assert one["flops_per_second"] == pytest.approx(
            7 * 2 * (64 // one["length"]) * 2 * one["length"] ** 2 * 64 / wall
        )


@pytest.mark.parametrize(
    "word, message",
    [
        ("--kernels=xla,flash", "kernels=flash: there is no such kernel; choose from xla, auto, pallas, triton, cudnn"),
        ("--lengths=0", "lengths=0 must be at least 1"),
        ("--global_tokens=2", "global_tokens=2 must be a number of tokens .*; give --window too"),
        ("--dropout=1", "dropout=1.0 must be at least 0 and less than 1"),
    ],
)
def test_what_cannot_be_measured_is_refused(word, message, capsys):
    assert bench(word) == 2
    captured = capsys.readouterr()
    assert re.search(message, captured.err.splitlines()[-1]) and not captured.out


def job(**options) -> dict:
    """The job of the contestant for one row of eight tokens."""
    (contestant,) = attention.kernel_contestants(AttentionBenchConfig(tokens=8, heads=1, **options), 8)
    return contestant.job


def test_a_kernel_of_another_device_is_refused():
    with pytest.raises(UserError, match="needs an NVIDIA GPU, but this runs on cpu"):
        contestants.attention(job(kernels=("cudnn",)))


@pytest.mark.skipif(hardware._has_nvidia_gpu(), reason="this machine has an NVIDIA GPU")
def test_an_accelerator_that_is_not_there_is_one_line(monkeypatch, capsys):
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")  # for the contestant; this process has its devices
    assert bench() == 2
    told, error = capsys.readouterr().err.splitlines()
    assert told.startswith("bench: starting ")
    assert re.match(
        "error: .*: JAX_PLATFORMS=cuda, but JAX finds no such device here; .*, or unset JAX_PLATFORMS$", error
    )


def test_attention_that_does_not_fit_gets_advice(monkeypatch):
    work, _ = contestants.attention(job())
    for patched, call in (
        ("block_until_ready", lambda: work(1)),
        ("jit", lambda: contestants.attention(job())),
    ):
        monkeypatch.setattr(jax, patched, full_device)
        with pytest.raises(UserError, match=f"^attention {DOES_NOT_FIT}; what helps: shorter --lengths; "):
            call()


def test_torch_computes_attention_too(tmp_path, peer, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", UNOPTIMIZED)
    output = tmp_path / "attention.json"
    words = ("--lengths=8,32", "--tokens=64", "--heads=2", "--window=4", "--global_tokens=1", f"--output={output}")
    assert bench(*QUICK, *words, "--peer=torch", f"--peer_python={peer}") == 0
    found = json.loads(output.read_text())["contestants"]
    assert [(one["kernel"], one["length"]) for one in found] == [("xla", 8), ("torch", 8), ("xla", 32), ("torch", 32)]
    assert found[2]["temporary_bytes"] > 2 * 2 * 32 * 32 * 4 and found[3]["temporary_bytes"] is None  # two rows' scores
    first, peers = found[0]["turns"], found[1]["turns"]
    ratios = [theirs["wall"] / theirs["units"] / (ours["wall"] / ours["units"]) for ours, theirs in zip(first, peers)]
    assert found[1]["ratio"]["wall"]["median"] == pytest.approx(np.median(ratios))
