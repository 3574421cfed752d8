"""What `bert-jax bench step --peer=torch` writes of chosen times, and what it asks torch to do; torch is not needed."""

import functools
import json
import pathlib
import sys

import numpy as np
import pytest
from command_lines import status

from bert_jax.bench import step_batches, step_benchmark
from bert_jax.config import Config
from bert_jax.config.json_form import from_dict

CONTESTANT = """#!{python}
import json, pathlib, shutil, sys, types
if sys.argv[1] == "-c":
    print(json.dumps({{"torch": "9.8", "transformers": "7.6", "cuda": True}}))
    sys.exit()
sys.path.insert(0, {directory!r})
import serving

def prepare(job):
    role = job.get("role", "ours")
    wall, cpu = (iter(times) for times in {times!r}[role])

    def work(units):
        clock["wall"] += units * next(wall)
        clock["cpu"] += units * next(cpu)

    shutil.copy(job["batches"], pathlib.Path(sys.argv[0]).with_name(role + ".npz"))
    return work, {{"job": job}} | ({facts!r} if role == "ours" else {{}})

clock = {{"wall": 100.0, "cpu": 50.0}}
serving.time = types.SimpleNamespace(perf_counter=lambda: clock["wall"])
serving.cpu_seconds = lambda: clock["cpu"]
serving.serve(prepare)
"""
SECONDS = {  # of a step in each turn, wall and CPU; the first turns warm up
    "ours": ([1.0] * 5 + [1.0, 2.0, 0.5], [1.5] * 5 + [2.0, 1.0, 0.5]),
    "stock": ([4.0] * 2 + [3.0, 4.0, 5.0], [4.0] * 2 + [10.0, 6.0, 4.0]),
    "tuned": ([2.0] * 2 + [2.0, 3.0, 4.0], [2.0] * 2 + [6.0, 2.0, 2.0]),
}
GPU = {"platform": "gpu", "dtype": "bfloat16", "device": "1 × NVIDIA H100 (gpu): peak 989 TFLOP/s bfloat16 per device"}
CPU = {"platform": "cpu", "dtype": "float32", "device": "1 × cpu"}
MODEL = {  # the tiny one, with the dropout of the test, by the names of transformers
    "hidden_dropout_prob": 0.25,
    "attention_probs_dropout_prob": 0.125,
    "vocab_size": 64,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
    "type_vocab_size": 2,
    "hidden_act": "gelu_new",
}


@pytest.fixture
def measured(tiny_config, tmp_path, monkeypatch):
    """Measure contestants that note their jobs and take the time of SECONDS; neither JAX nor torch computes."""

    def run(where: dict, *words) -> dict:
        python, output = tmp_path / "python", tmp_path / "step.json"
        directory = str(pathlib.Path(step_benchmark.__file__).parent / "peer")
        facts = where | {"attention": "xla", "remat": "none", "packed": False}
        python.write_text(CONTESTANT.format(python=sys.executable, directory=directory, times=SECONDS, facts=facts))
        python.chmod(0o755)
        monkeypatch.setattr(step_benchmark, "our_program", lambda module: (str(python), module))
        monkeypatch.setattr(step_benchmark, "take_turns", functools.partial(step_benchmark.take_turns, rest=0))
        words = ("--peer=torch", f"--peer_python={python}", f"--output={output}", *words)
        assert status("bench", "step", tiny_config, "--rounds=3", "--turn_seconds=2", *words) == 0
        return json.loads(output.read_text())

    return run


def test_ratios_are_those_of_neighbouring_turns(measured, tmp_path):
    found = measured(GPU, "--batch_size=8", "--padding=0.25")
    ours, stock, tuned = found["contestants"]
    assert [turn["units"] for one in (ours, stock, tuned) for turn in one["turns"]] == [2] * 3 + [1] * 6
    # Wall: 3/1, 4/2, 5/0.5 and 2/1, 3/2, 4/0.5, not the ratios of medians, 4 and 3. CPU: 5, 6, 8 and 3, 2, 4.
    assert (found["ratio_to_stock"], found["ratio_to_tuned"]) == pytest.approx((3, 2))
    assert (found["cpu_ratio_to_stock"], found["cpu_ratio_to_tuned"]) == pytest.approx((6, 3))
    # 8 rows of 16 positions, 4 of which are padding, in a second of wall or CPU time.
    assert (found["tokens_per_second"], found["useful_tokens_per_second"]) == pytest.approx((128, 96))
    assert found["useful_tokens_per_cpu_second"] == pytest.approx(96)
    assert [one["useful_tokens_per_second"] for one in (stock, tuned)] == pytest.approx([96 / 4, 96 / 3])
    assert found["processor"] and found["device"] == GPU["device"]
    assert found["peer"] == {"torch": "9.8", "transformers": "7.6", "cuda": True}
    where, table = (tmp_path / "step.md").read_text().split("\n| contestant")
    assert f"{GPU['device']}; {found['processor']}" in where and ", torch 9.8, transformers 7.6." in where
    assert "| 3.00 (2.50 to 6.50) | 6.00 (5.50 to 7.00) |" in table


@pytest.mark.parametrize("where, device, bfloat16", [(GPU, "cuda", True), (CPU, "cpu", False)])
def test_torch_is_asked_for_the_same_work(measured, tmp_path, where, device, bfloat16):
    sizes = ("--batch_size=8", "--micro_batches=2", "--max_predictions=3", "--phase=1", "--sequence_length=24")
    dropout = ("--model.hidden_dropout=0.25", "--model.attention_dropout=0.125")
    optimizer = ("--learning_rate=0.125", "--optimizer.weight_decay=0.5", "--optimizer.clip_norm=3")
    found = measured(where, *sizes, *dropout, *optimizer)
    ours, *peers = (one["facts"]["job"] for one in found["contestants"])
    config, batches = from_dict(Config, ours["config"]), dict(np.load(tmp_path / "ours.npz"))
    assert (config.model.hidden_dropout, config.model.attention_dropout) == (0.25, 0.125)
    assert batches["input_ids"].shape == (step_batches.SYNTHETIC, 8, 24) and "next_sentence_labels" in batches
    assert batches["masked_positions"].shape == (step_batches.SYNTHETIC, 8, 3) and batches["masked_weights"].all()
    for role, job in zip(("stock", "tuned"), peers, strict=True):
        theirs = dict(np.load(tmp_path / f"{role}.npz"))
        assert job["role"] == role and theirs.keys() == batches.keys()
        for name, array in batches.items():
            np.testing.assert_array_equal(theirs[name], array, err_msg=name)
        assert {name: job["model"][name] for name in MODEL} == MODEL
        assert (job["device"], job["bfloat16"], job["micro_batches"]) == (device, bfloat16, 2)
        assert (job["learning_rate"], job["weight_decay"], job["clip_norm"]) == (0.125, 0.5, 3)
        assert (job["betas"], job["epsilon"]) == ([0.9, 0.999], 1e-6)
