"""`bert-jax bench prepare`, `load` and `attention` from end to end on small things, and what they refuse."""

import functools
import json
import math
import re
import sys

import jax
import numpy as np
import pytest
from command_lines import status
from full_device import DOES_NOT_FIT, full_device
from huggingface_directory import directory
from processes import UNOPTIMIZED

from bert_jax.bench import attention_benchmark, attention_contestant, contestants
from bert_jax.bench.contestants import Contestant, peer_program, started
from bert_jax.config.benchmarking import AttentionBenchConfig
from bert_jax.devices import hardware
from bert_jax.errors import UserError

QUICK = ("--rounds=2", "--turn_seconds=0")
bench = functools.partial(status, "bench")


def of_two(entry, clock: str) -> float:
    """The median of an entry's two turns."""
    return sum(turn[clock] / turn["units"] for turn in entry["turns"]) / 2


def test_prepare_beside_its_tokenizer(small_store, tmp_path, capsys):
    output, corpus = tmp_path / "prepare.json", small_store.parent / "corpus.txt"
    words = (f"--input={corpus}", f"--vocab={small_store.parent}/vocab.txt", "--sentences=lines", "--max_bytes=2000")
    assert bench("prepare", *words, *QUICK, f"--output={output}") == 0
    found = json.loads(output.read_text())
    whole, tokenizer = found["contestants"]
    assert 2000 <= found["text_bytes"] < 2000 + max(map(len, corpus.read_bytes().splitlines())) + 1
    assert found["megabytes_per_cpu_second"] == pytest.approx(found["text_bytes"] / 1e6 / of_two(whole, "cpu"))
    ratios = [b["cpu"] / b["units"] / (a["cpu"] / a["units"]) for a, b in zip(whole["turns"], tokenizer["turns"])]
    assert found["ratio_to_tokenizer"] == pytest.approx(np.median(ratios))
    assert "our tokenizer alone" in capsys.readouterr().out


@pytest.mark.slow
def test_attention_by_length(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", UNOPTIMIZED)
    output = tmp_path / "attention.json"
    words = ("--lengths=8,32", "--tokens=64", "--heads=2", f"--output={output}")
    assert bench("attention", *QUICK, *words) == 0
    found = json.loads(output.read_text())["contestants"]
    assert [(one["kernel"], one["path"], one["length"]) for one in found] == [("xla", "xla", 8), ("xla", "xla", 32)]
    for one in found:
        wall = of_two(one, "wall")
        assert one["tokens_per_second"] == pytest.approx(64 / wall)
        # Scores and weighted values forward, and five products backward, of L² × 64 each, with two operations.
        assert one["flops_per_second"] == pytest.approx(
            7 * 2 * (64 // one["length"]) * 2 * one["length"] ** 2 * 64 / wall
        )


@pytest.mark.parametrize(
    "words, message",
    [
        (
            ("attention", "--kernels=xla,flash"),
            "kernels=flash: there is no such kernel; choose from xla, auto, pallas, triton, cudnn",
        ),
        (("attention", "--lengths=0"), "lengths=0 must be at least 1"),
        (("attention", "--global_tokens=2"), "global_tokens=2 must be a number of tokens .*; give --window too"),
        (("attention", "--dropout=1"), "dropout=1.0 must be at least 0 and less than 1"),
        (("attention", "--kernels=cudnn"), "needs an NVIDIA GPU, but this runs on cpu"),
        (("load", "nowhere"), "nowhere"),
        (("prepare", "--input=nowhere", "--vocab=nowhere"), "nowhere"),
        (("prepare", "--input=x"), "give the required --vocab"),
        (("prepare", "--input=x", "--vocab=x", "--runner=beam"), "runner"),
    ],
)
def test_what_cannot_be_measured_is_refused(words, message, capsys):
    assert bench(*words) == 2
    captured = capsys.readouterr()
    assert re.search(message, captured.err.splitlines()[-1]) and not captured.out


@pytest.mark.skipif(hardware._has_nvidia_gpu(), reason="this machine has an NVIDIA GPU")
@pytest.mark.parametrize("benchmark", ["attention", "load"])
def test_an_accelerator_that_is_not_there_is_one_line(benchmark, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")  # for the contestants; this process has its devices
    words = ("attention",) if benchmark == "attention" else ("load", directory(tmp_path / "model"))
    assert bench(*words) == 2
    told, error = capsys.readouterr().err.splitlines()
    assert told.startswith("bench: starting ")
    assert re.match(
        "error: .*: JAX_PLATFORMS=cuda, but JAX finds no such device here; .*, or unset JAX_PLATFORMS$", error
    )


def test_attention_that_does_not_fit_gets_advice(monkeypatch):
    (contestant,) = attention_benchmark.contestants(AttentionBenchConfig(tokens=8, heads=1), 8)
    work, _ = attention_contestant.prepare(contestant.job)
    for patched, call in (
        ("block_until_ready", lambda: work(1)),
        ("jit", lambda: attention_contestant.prepare(contestant.job)),
    ):
        monkeypatch.setattr(jax, patched, full_device)
        with pytest.raises(UserError, match=f"^attention {DOES_NOT_FIT}; what helps: shorter --lengths; "):
            call()


@pytest.mark.slow
def test_loading_is_measured_in_new_processes(tmp_path):
    model = directory(tmp_path / "model")
    output = tmp_path / "load.json"
    assert bench("load", model, *QUICK, f"--output={output}") == 0
    (ours,) = json.loads(output.read_text())["contestants"]
    for turn in ours["turns"]:
        parts = turn["found"]
        assert (
            turn["units"] == 1 and 0 < parts["load"] <= parts["load_and_read"] < parts["from_the_start"] < turn["wall"]
        )
        assert turn["cpu"] > 0.1  # that of the process that was started
        assert math.isfinite(parts["sum"])


def test_a_program_that_fails_says_why():
    program = {"program": ["-c", "import sys; sys.exit('no such thing')"]}
    with pytest.raises(contestants.UserError, match="^a: no such thing$"):
        with started([Contestant("a", peer_program(sys.executable, "fresh_process.py"), program)]):
            pytest.fail("it is not ready")


def test_transformers_loads_the_same_weights(tmp_path, peer):
    model, output = directory(tmp_path / "model"), tmp_path / "load.json"
    assert bench("load", model, *QUICK, "--peer=torch", f"--peer_python={peer}", f"--output={output}") == 0
    ours, theirs = json.loads(output.read_text())["contestants"]
    sums = [entry["turns"][0]["found"]["sum"] for entry in (ours, theirs)]
    assert sums[0] == pytest.approx(sums[1], rel=1e-3)


def test_transformers_tokenizes_too(small_store, tmp_path, peer):
    output, place = tmp_path / "prepare.json", small_store.parent
    words = (f"--input={place}/corpus.txt", f"--vocab={place}/vocab.txt", "--max_bytes=2000", f"--output={output}")
    assert bench("prepare", *words, *QUICK, "--peer=torch", f"--peer_python={peer}") == 0
    assert len(json.loads(output.read_text())["contestants"]) == 3


def test_torch_computes_attention_too(tmp_path, peer, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", UNOPTIMIZED)
    output = tmp_path / "attention.json"
    words = ("--lengths=8,32", "--tokens=64", "--heads=2", "--window=4", "--global_tokens=1", f"--output={output}")
    assert bench("attention", *QUICK, *words, "--peer=torch", f"--peer_python={peer}") == 0
    found = json.loads(output.read_text())["contestants"]
    assert [(one["kernel"], one["length"]) for one in found] == [("xla", 8), ("torch", 8), ("xla", 32), ("torch", 32)]
    assert found[2]["temporary_bytes"] > 2 * 2 * 32 * 32 * 4 and found[3]["temporary_bytes"] is None  # two rows' scores
    first, peers = found[0]["turns"], found[1]["turns"]
    ratios = [theirs["wall"] / theirs["units"] / (ours["wall"] / ours["units"]) for ours, theirs in zip(first, peers)]
    assert found[1]["ratio"]["wall"]["median"] == pytest.approx(np.median(ratios))
