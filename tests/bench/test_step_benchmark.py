"""`bert-jax bench step` on a tiny model, from end to end and with chosen times; what it refuses; its batches."""

import dataclasses
import functools
import importlib.util
import json
import math
import re
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest
from command_lines import status
from processes import UNOPTIMIZED
from small_pretraining import DOES_NOT_FIT, TINY, full_device

from bert_jax.config import Config, resolve_phases
from bert_jax.config.options import from_dict, to_dict
from bert_jax.console import load_config
from bert_jax.data.examples import batch_layout
from bert_jax.devices.process import machine_memory
from bert_jax.errors import UserError
from bert_jax.tools.bench import contestants, step, turns
from bert_jax.tools.bench.turns import PEER_PROGRAMS, PEER_VERSIONS, Contestant, Turn, peer_program

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
    batches = step.write_batches(config, 0.0, tmp_path / "batches.npz")
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
        ("training.state.create_state", f"the state {DOES_NOT_FIT}; what helps: --mesh.data=1 --mesh.fsdp=8"),
        ("devices.sharding.to_global", f"the step {DOES_NOT_FIT}; what helps: --compute.remat=sel"),
    ],
)
def test_what_does_not_fit_gets_advice(function, said, job, monkeypatch):
    monkeypatch.setattr(f"bert_jax.{function}", full_device)
    with pytest.raises(UserError, match=f"^{said}"):
        contestants.step(job)


def test_a_turn_that_does_not_fit_gets_advice(job, monkeypatch):
    work, _ = contestants.step(job)
    work(1)
    monkeypatch.setattr(jax, "block_until_ready", full_device)
    with pytest.raises(UserError, match=f"^the step {DOES_NOT_FIT}; what helps: --compute.remat=sel"):
        work(1)


VERSIONS = {"stdout": 'noise\n{"torch": "9.8", "transformers": "7.6", "cuda": true}\n'}
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
    "peer_python=bare has no torch with transformers .*No module named 'torch'.*pip install torch transformers": (
        "--peer=torch",
        "--peer_python=bare",
    ),
    "has no model.sharing=all": ("--model.sharing=all", "--peer=torch", f"--peer_python={sys.executable}"),
    "has no model.padding_id=1": ("--model.padding_id=1", "--peer=torch", f"--peer_python={sys.executable}"),
    "nothing to pack in a synthetic batch": ("--variant=data.packing=on",),
    "platform=gpu, but JAX computes on cpu": ("--platform=gpu",),
}


@pytest.mark.parametrize("kernel, needs", [("pallas", "a TPU, but this runs on cpu"), ("cudnn", "an NVIDIA GPU")])
def test_a_kernel_of_another_device_is_refused(kernel, needs, job):
    job["config"]["compute"]["attention"] = kernel
    with pytest.raises(UserError, match=f"^compute.attention={kernel} needs {needs}"):
        contestants.step(job)


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_measured_is_refused_in_one_line(tiny_config, message, pythons, capsys):
    bare = {"returncode": 1, "stderr": "Traceback:\nModuleNotFoundError: No module named 'torch'\n"}
    pythons(true={}, echo={"stdout": f"-c {PEER_VERSIONS}\n"}, bare=bare, **{sys.executable: VERSIONS})
    assert bench("step", tiny_config, *REFUSED[message]) == 2
    captured = capsys.readouterr()
    (error,) = [line for line in captured.err.splitlines() if not line.startswith("bench:")]
    assert error.startswith("error: ") and re.search(message, error) and captured.out == ""
    assert "round 1" not in captured.err


@pytest.mark.slow
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


def test_synthetic_batches_have_what_a_step_needs():
    (phase, _) = resolve_phases(TINY)
    batch = step.synthetic_batch(TINY, phase, padding=0.25, seed=0)
    text = batch["attention_mask"].sum(1)
    assert (text == 12).all() and (batch["input_ids"][batch["attention_mask"] == 0] == 0).all()
    for row, positions in enumerate(batch["masked_positions"]):
        assert len(set(positions)) == phase.max_predictions and 0 < positions.min() and positions.max() < 12
        np.testing.assert_array_equal(batch["masked_ids"][row], batch["input_ids"][row][positions])
    assert batch["masked_weights"].all() and set(batch["next_sentence_labels"]) <= {0, 1}
    again = step.synthetic_batch(TINY, phase, padding=0.25, seed=0)
    assert all(np.array_equal(batch[name], again[name]) for name in batch)


@pytest.mark.parametrize("name", ["bert_mini", "roberta_mini", "xlnet_mini"])
def test_a_random_batch_has_the_arrays_of_a_real_one(name):
    config = load_config(name)
    phases = (dataclasses.replace(config.phases[0], batch_size=3, sequence_length=40),)
    model = dataclasses.replace(config.model, vocab_size=500)
    config = dataclasses.replace(config, model=model, phases=phases)
    (phase,) = resolve_phases(config)
    batch = step.synthetic_batch(config, phase, padding=0.2, seed=0)
    expected = {
        name: ((3, *shape), np.dtype(dtype))
        for name, (shape, dtype) in batch_layout(phase, config.objective, config.data.has_pair_labels).items()
    }
    assert {name: (values.shape, values.dtype) for name, values in batch.items()} == expected
    if "order" in batch:
        used = batch["masked_weights"] > 0
        places = np.take_along_axis(batch["order"], batch["masked_positions"], 1)
        assert (np.sort(places, 1)[used] == places[used]).all() and (places[used] > 0).all()
        assert (batch["order"] > 0).sum() == used.sum()


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
def measured(tiny_config, tmp_path, monkeypatch, pythons):
    """Measure contestants that note their jobs and take the time of SECONDS; neither JAX nor torch computes."""

    def run(where: dict, *words) -> dict:
        facts, output = where | {"attention": "xla", "remat": "none", "packed": False}, tmp_path / "step.json"

        class Timed:
            def __init__(self, contestant: Contestant):
                job = json.loads(json.dumps(contestant.job))  # as it reaches a process
                role = job.get("role", "ours")
                program = turns.our_program("step") if role == "ours" else peer_program("a python", "step")
                assert contestant.command == program
                shutil.copy(job["batches"], tmp_path / f"{role}.npz")
                self.name, self._times = contestant.name, zip(*SECONDS[role])
                self.facts = {"job": job} | (facts if role == "ours" else {})

            def get_ready(self) -> None:
                pass

            def turn(self, units: int) -> Turn:
                wall, cpu = next(self._times)
                return Turn(units, units * wall, units * cpu)

            def close(self) -> None:
                pass

        monkeypatch.setattr(turns, "Waiting", Timed)
        monkeypatch.setattr(turns, "take_turns", functools.partial(turns.take_turns, rest=0))
        pythons(**{"a python": VERSIONS})
        words = ("--peer=torch", "--peer_python=a python", f"--output={output}", *words)
        assert bench("step", tiny_config, "--rounds=3", "--turn_seconds=2", *words) == 0
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


def test_contestants_that_the_machine_has_no_room_for_are_refused_with_a_batch_that_fits(measured, capsys):
    """Three contestants of 40 % each exceed four fifths of the memory, of batches half as large they do not."""
    held = {"peak_memory_bytes": int(0.4 * machine_memory())}
    assert measured(GPU | held, "--batch_size=8")  # whose memory is the card's
    with pytest.raises(AssertionError):
        measured(CPU | held, "--batch_size=8")
    said = capsys.readouterr().err
    assert "3 contestants with batches of 8 would hold about" in said and "such as --batch_size=4, or" in said


@pytest.mark.parametrize("where, device, bfloat16", [(GPU, "cuda", True), (CPU, "cpu", False)])
def test_torch_is_asked_for_the_same_work(measured, tmp_path, where, device, bfloat16):
    sizes = ("--batch_size=8", "--micro_batches=2", "--max_predictions=3", "--phase=1", "--sequence_length=24")
    dropout = ("--model.hidden_dropout=0.25", "--model.attention_dropout=0.125")
    optimizer = ("--learning_rate=0.125", "--optimizer.weight_decay=0.5", "--optimizer.clip_norm=3")
    found = measured(where, *sizes, *dropout, *optimizer)
    ours, *peers = (one["facts"]["job"] for one in found["contestants"])
    config, batches = from_dict(Config, ours["config"]), dict(np.load(tmp_path / "ours.npz"))
    assert (config.model.hidden_dropout, config.model.attention_dropout) == (0.25, 0.125)
    assert batches["input_ids"].shape == (step.SYNTHETIC, 8, 24) and "next_sentence_labels" in batches
    assert batches["masked_positions"].shape == (step.SYNTHETIC, 8, 3) and batches["masked_weights"].all()
    for role, job in zip(("stock", "tuned"), peers, strict=True):
        theirs = dict(np.load(tmp_path / f"{role}.npz"))
        assert job["role"] == role and theirs.keys() == batches.keys()
        for name, array in batches.items():
            np.testing.assert_array_equal(theirs[name], array, err_msg=name)
        assert {name: job["model"][name] for name in MODEL} == MODEL
        assert (job["device"], job["bfloat16"], job["micro_batches"]) == (device, bfloat16, 2)
        assert (job["learning_rate"], job["weight_decay"], job["clip_norm"]) == (0.125, 0.5, 3)
        assert (job["betas"], job["epsilon"]) == ([0.9, 0.999], 1e-6)


MODERNBERT = ("modernbert_mini", "--model.num_layers=3", "--model.hidden_size=32", "--model.num_heads=2")
MODERNBERT += ("--model.intermediate_size=48", "--model.vocab_size=64", "--model.local_window=4", "--batch_size=4")
MODERNBERT += ("--sequence_length=32", "--padding=0", "--compute.dtype=bfloat16")


@pytest.mark.parametrize("words", [(), MODERNBERT], ids=["bert", "modernbert"])
def test_torch_does_the_same_work(words, tiny_config, tmp_path, peer):
    output, words = tmp_path / "step.json", words or (tiny_config,)
    peers = (f"--peer_python={peer}", "--peer=torch", "--peer_compile=false", f"--output={output}")
    assert bench("step", *words, *QUICK, *peers) == 0
    found = json.loads(output.read_text())
    ours, stock, tuned = found["contestants"]
    assert (stock["role"], tuned["role"]) == ("stock", "tuned") and found["peer"]["torch"]
    assert tuned["facts"]["failed"] == {} and tuned["facts"]["form"] == "eager"
    assert tuned["facts"]["attention"].keys() == ({"whole", "windows"} if words[1:] else {"whole"})
    for other in (stock, tuned):
        assert other["facts"]["first_loss"] == pytest.approx(ours["facts"]["first_loss"], abs=0.5)
        assert other["predictions_per_step"] == ours["predictions_per_step"]
        assert found[f"ratio_to_{other['role']}"] == other["ratio"]["wall"]["median"]
        assert found[f"cpu_ratio_to_{other['role']}"] == other["ratio"]["cpu"]["median"]


SAME_LOSS = """
import sys; sys.path.insert(0, sys.argv[1])
import numpy, torch, torch_contestants, torch_step
sizes = dict(vocab_size=64, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32)
bert = dict(model_type="bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
modern = dict(model_type="modernbert", local_attention=8, pad_token_id=0)
job = dict(clip_norm=1.0, weight_decay=0.01, learning_rate=1e-3, betas=[0.9, 0.999], epsilon=1e-6)

def gradients(step, loss_of, part, half):
    step.model.zero_grad()
    with torch_step.precision("cpu", half):
        loss = loss_of(part)
    loss.backward()
    return loss.item(), torch.cat([array.grad.flatten() for array in step.model.parameters()])

for file in sys.argv[2:]:
    arrays = {name: torch.from_numpy(array) for name, array in numpy.load(file).items()}
    for values in [bert, bert, modern][0 if "next_sentence_labels" in arrays else 1 :]:
        for half, error in ((False, 1e-5), (True, 0.02)):
            torch.manual_seed(0)
            model = torch_step.new_model(sizes | values, "next_sentence_labels" in arrays).train()
            step = torch_step.Step(job | {"bfloat16": half}, model, torch_step.batches(arrays, 2, "cpu"), "cpu")
            stock = [gradients(step, step.stock_loss, part, half) for part in step.parts[0]]
            assert step.tune(compiles=False) == ({}, {})
            for part, (loss, gradient) in zip(step.parts[0], stock):
                tuned, found = gradients(step, step.tuned_loss, part, half)
                assert abs(tuned - loss) < error and (found - gradient).norm() < error * gradient.norm(), (values, half)
            decays, others = (group["params"] for group in step.optimizer.param_groups)
            assert {array.ndim for array in decays} == {2} and {array.ndim for array in others} == {1}
            step.take(step.tuned_loss); step.take(step.stock_loss)
        arrays.pop("next_sentence_labels", None)
batch = torch_contestants.padded([[5, 6], [7]], [[0, 1], [0]], "cpu")
assert batch["input_ids"].tolist() == [[5, 6], [7, 0]] and batch["attention_mask"].tolist() == [[1, 1], [1, 0]]
"""


def test_the_tuned_loss_of_torch_is_the_stock_loss_and_rows_are_padded(tmp_path, peer):
    for padding in (0.25, 0.0):
        # Slots that are not used must not count: half of the last slot's weights are 0.
        batches = [step.synthetic_batch(TINY, resolve_phases(TINY)[0], padding, seed) for seed in range(2)]
        arrays = {name: np.stack([batch[name] for batch in batches]) for name in batches[0]}
        arrays["masked_weights"][:, ::2, -1] = 0
        arrays["masked_positions"][:, ::2, -1] = 0
        np.savez(tmp_path / f"{padding}.npz", **arrays)
    files = [tmp_path / "0.25.npz", tmp_path / "0.0.npz"]
    subprocess.run([peer, "-c", SAME_LOSS, PEER_PROGRAMS, *files], check=True)


SAME_WINDOWS = """
import sys; sys.path.insert(0, sys.argv[1])
import signal, time, torch, torch_step
torch.manual_seed(0)
length, width = 256, 24
query, key, value = (torch.randn(2, length, 3, 32).transpose(1, 2) for _ in range(3))
place = torch.arange(length)
near = ((place[:, None] - place[None]).abs() <= width)[None, None]
kernels = torch_step.window_kernels(length, width, "cpu")
with torch.no_grad():
    plain, flex = (kernels[name](query, key, value, near, 0.0, 0.5) for name in ("plain", "flex"))
    assert torch.allclose(plain, flex, atol=1e-5)
failed = {}
with torch_step.failure_noted(failed, "broken"):
    kernels["flex"](query, key, value, near, 0.1, 0.5)
torch_step.FORM_SECONDS = 0.1
with torch_step.failure_noted(failed, "endless"):
    while True: time.sleep(0.05)
assert list(failed) == ["broken", "endless"] and "no dropout" in failed["broken"] and "not ready" in failed["endless"]
assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
# Kernels of a GPU alone: their shapes, and that torch can compile them with their gradients.
those = [torch_step.cudnn_attention, torch_step.flash_attention, kernels["flash"]]
for kernel in those:
    arrays = [torch.empty(2, length, 3, 64, dtype=torch.bfloat16, device="meta", requires_grad=True) for _ in range(3)]
    form = torch.compile(kernel, backend="aot_eager", fullgraph=True, dynamic=False)
    found = form(*(array.transpose(1, 2) for array in arrays), None, 0.0, 0.125)
    assert found.shape == (2, 3, length, 64)
    gradients = torch.autograd.grad(found, arrays, torch.empty_like(found))
    assert {each.shape for each in gradients} == {arrays[0].shape}
"""


def test_kernels_of_torch_with_windows_agree_and_what_fails_is_noted(peer):
    subprocess.run([peer, "-c", SAME_WINDOWS, PEER_PROGRAMS], check=True)
