"""`bert-jax bench step` from end to end on a tiny model, what it refuses, and its batches."""

import dataclasses
import functools
import importlib.util
import json
import math
import pathlib
import re
import subprocess
import sys

import jax
import numpy as np
import pytest
from command_lines import status
from full_device import DOES_NOT_FIT, full_device
from processes import UNOPTIMIZED
from two_phases import TINY

from bert_jax.bench import step_batches, step_contestant
from bert_jax.bench.variants import varied
from bert_jax.config import resolve_phases
from bert_jax.config.json_form import to_dict
from bert_jax.errors import UserError

QUICK = ("--rounds=2", "--turn_seconds=0")
bench = functools.partial(status, "bench")


@pytest.fixture(autouse=True)
def compiled_quickly(monkeypatch):
    """Contestants have one device, and XLA does not optimize."""
    monkeypatch.setenv("XLA_FLAGS", UNOPTIMIZED)


@pytest.fixture
def job(tmp_path) -> dict:
    """The job of a contestant for the first phase of `TINY`."""
    config = dataclasses.replace(TINY, phases=TINY.phases[:1])
    batches = step_batches.write_batches(config, 0.0, tmp_path / "batches.npz")
    return {"config": to_dict(config), "batches": batches.path, "platform": "auto"}


@pytest.mark.slow
def test_a_variant_takes_turns_and_the_record_says_where(tiny_config, tmp_path, capsys):
    output, variant = tmp_path / "step.json", "model.num_layers=2 NOTHING=1"
    options = ("--phase=1", "--batch_size=8", "--padding=0.25", f"--variant={variant}", f"--output={output}")
    options = (*options, "--starts=2")
    words = ("step", tiny_config, *QUICK, *options)  # the options of the second phase need no prefix
    assert bench(*words) == 0
    found = json.loads(output.read_text())
    assert found["command"] == ["bert-jax", "bench", *map(str, words)]
    assert {"processor", "cores", "memory_gib", "load_average", "versions", "commit", "date"} <= found.keys()
    assert found["config"]["phases"][0]["sequence_length"] == 32
    assert [one["role"] for one in found["contestants"]] == ["ours", "variant"]
    first, second = found["contestants"]
    assert second["name"] == variant and len(first["turns"]) == len(second["turns"]) == 4  # two starts
    # A quarter of the rows is padding, so useful tokens are three quarters of all.
    assert found["useful_tokens_per_second"] == pytest.approx(0.75 * found["tokens_per_second"])
    wall = sorted(turn["wall"] / turn["units"] for turn in first["turns"])
    assert found["tokens_per_second"] == pytest.approx(8 * 32 / ((wall[1] + wall[2]) / 2))
    assert first["ratio"]["wall"]["median"] == first["ratio"]["cpu"]["median"] == 1
    assert first["predictions_per_step"] == 8 * 5  # 15 % of 32 positions, rounded up
    # Random weights find every word equally likely, and both orders of a pair.
    assert first["facts"]["first_loss"] == pytest.approx(math.log(64) + math.log(2), abs=0.5)
    printed = capsys.readouterr().out
    assert printed.startswith((tmp_path / "step.md").read_text())
    assert found["processor"] in printed and f"| {variant} |" in printed
    assert (first["facts"]["attention"], first["facts"]["remat"], first["facts"]["packed"]) == ("xla", "none", False)
    assert "attention by xla; remat: none; one text or pair in a row" in printed


@pytest.mark.parametrize(
    "function, said",
    [
        ("create_state", f"the state {DOES_NOT_FIT}; what helps: --mesh.data=1 --mesh.fsdp=8"),
        ("sharding.to_global", f"the step {DOES_NOT_FIT}; what helps: --compute.remat=sel"),
    ],
)
def test_what_does_not_fit_gets_advice(function, said, job, monkeypatch):
    monkeypatch.setattr(f"bert_jax.bench.step_contestant.{function}", full_device)
    with pytest.raises(UserError, match=f"^{said}"):
        step_contestant.prepare(job)


def test_a_turn_that_does_not_fit_gets_advice(job, monkeypatch):
    work, _ = step_contestant.prepare(job)
    work(1)
    monkeypatch.setattr(jax, "block_until_ready", full_device)
    with pytest.raises(UserError, match=f"^the step {DOES_NOT_FIT}; what helps: --compute.remat=sel"):
        work(1)


REFUSED = {
    "phase=2": ("--phase=2",),
    "phase=last must be": ("--phase=last",),
    "rounds=0": ("--rounds=0",),
    "starts=0": ("--starts=0",),
    "turn_seconds=-1": ("--turn_seconds=-1.0",),
    "padding=1.0": ("--padding=1",),
    "give both": ("--peer=torch",),
    "output=x.txt must end in .json": ("--output=x.txt",),
    "there is no directory nowhere": ("--output=nowhere/x.json",),
    "unknown option --compute.dtpe; perhaps you meant --compute.dtype": ("--variant=compute.dtpe=float32",),
    "there is no model.norm_position=pre|has no model.norm_position=pre": (
        "--model.norm_position=pre",
        "--peer=torch",
        f"--peer_python={sys.executable}",
    ),
    "peer_python=nowhere cannot be started": ("--peer=torch", "--peer_python=nowhere"),
    "peer_python=true is no Python: it printed “”;": ("--peer=torch", "--peer_python=true"),
    "peer_python=echo is no Python: it printed “-c import json": ("--peer=torch", "--peer_python=echo"),
    "has no model.sharing=all": ("--model.sharing=all", "--peer=torch", f"--peer_python={sys.executable}"),
    "has no model.padding_id=1": ("--model.padding_id=1", "--peer=torch", f"--peer_python={sys.executable}"),
    "compute.attention=pallas needs a TPU, but this runs on cpu": ("--compute.attention=pallas",),
    "compute.attention=cudnn needs an NVIDIA GPU": ("--compute.attention=cudnn",),
    "nothing to pack in a synthetic batch": ("--variant=data.packing=on",),
    "platform=gpu, but JAX computes on cpu": ("--platform=gpu",),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_measured_is_refused_in_one_line(tiny_config, message, capsys):
    assert bench("step", tiny_config, *REFUSED[message]) == 2
    captured = capsys.readouterr()
    (error,) = [line for line in captured.err.splitlines() if not line.startswith("bench:")]
    assert error.startswith("error: ") and re.search(message, error) and captured.out == ""
    assert "round 1" not in captured.err


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="this environment has torch")
def test_an_environment_without_torch_is_named(tiny_config, capsys):
    assert bench("step", tiny_config, "--peer=torch", f"--peer_python={sys.executable}") == 2
    error = capsys.readouterr().err
    assert re.search("has no torch with transformers .*No module named 'torch'.*pip install torch transformers", error)


def test_unknown_benchmarks_are_listed(capsys):
    assert (
        bench("steps") == 2
        and "unknown benchmark 'steps'; benchmarks: step, data, prepare, load" in capsys.readouterr().err
    )
    assert bench() == 2 and "usage: bert-jax bench" in capsys.readouterr().err


def test_words_in_capitals_are_variables():
    config, environment = varied(TINY, 'seed=3 XLA_FLAGS="--a=1 --b"')
    assert config.seed == 3 and environment == {"XLA_FLAGS": "--a=1 --b"}


def test_synthetic_batches_have_what_a_step_needs():
    (phase, _) = resolve_phases(TINY)
    batch = step_batches.synthetic_batch(TINY, phase, padding=0.25, seed=0)
    text = batch["attention_mask"].sum(1)
    assert (text == 12).all() and (batch["input_ids"][batch["attention_mask"] == 0] == 0).all()
    for row, positions in enumerate(batch["masked_positions"]):
        assert len(set(positions)) == phase.max_predictions and 0 < positions.min() and positions.max() < 12
        np.testing.assert_array_equal(batch["masked_ids"][row], batch["input_ids"][row][positions])
    assert batch["masked_weights"].all() and set(batch["next_sentence_labels"]) <= {0, 1}
    again = step_batches.synthetic_batch(TINY, phase, padding=0.25, seed=0)
    assert all(np.array_equal(batch[name], again[name]) for name in batch)


def test_torch_does_the_same_work(tiny_config, tmp_path, peer):
    output = tmp_path / "step.json"
    words = (f"--peer_python={peer}", "--peer=torch", "--peer_compile=false", f"--output={output}")
    assert bench("step", tiny_config, *QUICK, *words) == 0
    found = json.loads(output.read_text())
    ours, stock, tuned = found["contestants"]
    assert (stock["role"], tuned["role"]) == ("stock", "tuned") and found["peer"]["torch"]
    for other in (stock, tuned):
        assert other["facts"]["first_loss"] == pytest.approx(ours["facts"]["first_loss"], abs=0.5)
        assert other["predictions_per_step"] == ours["predictions_per_step"]
        assert found[f"ratio_to_{other['role']}"] == other["ratio"]["wall"]["median"]
        assert found[f"cpu_ratio_to_{other['role']}"] == other["ratio"]["cpu"]["median"]


SAME_LOSS = """
import sys; sys.path.insert(0, sys.argv[1])
import numpy, torch, torch_step, transformers
config = transformers.BertConfig(vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
    intermediate_size=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
arrays = {name: torch.from_numpy(array) for name, array in numpy.load(sys.argv[2]).items()}
job = dict(bfloat16=False, clip_norm=1.0, weight_decay=0.01, learning_rate=1e-3, betas=[0.9, 0.999], epsilon=1e-6)
kinds = [transformers.BertForPreTraining, transformers.BertForMaskedLM]
for kind in kinds[: 2 if "next_sentence_labels" in arrays else 0] or kinds[1:]:
    if kind is kinds[1]: arrays.pop("next_sentence_labels", None)
    torch.manual_seed(0)
    step = torch_step.Step(job, kind(config).train(), torch_step.batches(arrays, 2), "cpu")
    for part in step.parts[0]:
        stock, tuned = step.stock_loss(part), step.tuned_loss(part)
        assert abs(stock.item() - tuned.item()) < 1e-5, (stock, tuned)
    step.take(step.tuned_loss); step.take(step.stock_loss)
"""


def test_the_tuned_loss_of_torch_is_the_stock_loss(tmp_path, peer):
    # Slots that are not used must not count: half of the last slot's weights are 0.
    batches = [step_batches.synthetic_batch(TINY, resolve_phases(TINY)[0], 0.25, seed) for seed in range(2)]
    arrays = {name: np.stack([batch[name] for batch in batches]) for name in batches[0]}
    arrays["masked_weights"][:, ::2, -1] = 0
    arrays["masked_positions"][:, ::2, -1] = 0
    np.savez(tmp_path / "batches.npz", **arrays)
    directory = pathlib.Path(step_batches.__file__).parent / "peer"
    subprocess.run([peer, "-c", SAME_LOSS, str(directory), str(tmp_path / "batches.npz")], check=True)
