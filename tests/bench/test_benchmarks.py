"""Benchmarks of attention and of data, and measurements in turns.

`bert-jax bench attention` from end to end on small arrays, and what it refuses. `bert-jax bench data` and `prepare`
from end to end on a small store, what they refuse, and what the peer gets. Turns, ratios and records: who works when,
what happens to those that refuse or die, and what the times add up to.
"""

import dataclasses
import functools
import json
import os
import pathlib
import re
import subprocess
import sys
import types

import fresh
import jax
import numpy as np
import pytest
from command_lines import status
from processes import SECONDS, UNOPTIMIZED, wait_until
from small_pretraining import DOES_NOT_FIT, TINY, full_device

from bert_jax.config import resolve_phases
from bert_jax.config.commands import AttentionBenchConfig, DataBenchConfig
from bert_jax.data.store import SPECIAL, open_store
from bert_jax.devices import hardware
from bert_jax.devices.hosts import PACKAGE_DIRECTORY
from bert_jax.errors import UserError
from bert_jax.tools.bench import attention, contestants, data, turns
from bert_jax.tools.bench.peer import serving
from bert_jax.tools.bench.turns import (
    PEER_PROGRAMS,
    Contestant,
    Report,
    Spread,
    Turn,
    _environment,
    peer_program,
    ratio,
    recorded,
    seconds,
    show,
    started,
    take_turns,
    varied,
)
from bert_jax.tools.planning.plan import PhasePlan
from bert_jax.tools.planning.roofline import Throughput
from bert_jax.training_data import Examples

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


@pytest.mark.slow
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


DATA_QUICK = ("--rounds=2", "--turn_seconds=0", "--phase=1", "--batch_size=8", "--model.vocab_size=None")
PREPARE = ("--rounds=2", "--turn_seconds=0", "--max_bytes=2000")
bench_of_data = functools.partial(status, "bench")


@pytest.mark.usefixtures("here_and_in_processes")
def test_loaders_take_turns_and_the_record_has_the_rates(small_store, tiny_config, tmp_path, capsys):
    output, variant = tmp_path / "data.json", "data.packing=on masking.unit=span"
    words = (*DATA_QUICK, f"--variant={variant}", "--need=one chip=1000,8 chips=8000", f"--output={output}")
    assert bench_of_data("data", small_store, tiny_config, *words) == 0
    found = json.loads(output.read_text())
    first, second = found["contestants"]
    assert second["token_share"] > first["token_share"]  # which is what packing is for
    assert first["peak_memory_bytes"] > 2**25  # Python with NumPy
    assert second["name"] == variant and found["processor"] in capsys.readouterr().out
    cpu = [turn["cpu"] / turn["units"] for turn in first["turns"]]
    assert found["sequences_per_cpu_second"] == pytest.approx(8 / (sum(cpu) / 2))
    # The share of tokens is that of the same batches made here.
    config = DataBenchConfig.of(TINY, 1)
    phase = resolve_phases(config.run)[0]
    lengths = Examples(open_store(str(small_store)), config.run, phase, seed=phase.data_seed)
    masks = lengths.batch(np.arange(8 * 8))["attention_mask"]
    assert found["token_share"] == pytest.approx(masks.mean())
    rate = found["sequences_per_cpu_second"]
    assert found["cores_busy"] == pytest.approx({"one chip": 1000 / rate, "8 chips": 8000 / rate})


def planned(directory: pathlib.Path, length: int, rate: float) -> str:
    """Write what `bert-jax plan` writes of two phases, as far as it is read, and return the path."""
    end = {"step_seconds": 0.1, "sequences_per_host": rate}
    phases = [{"phase": {"sequence_length": size}, "optimistic": end, "pessimistic": None} for size in (16, length)]
    path = directory / "plan.json"
    path.write_text(json.dumps({"topology": {"name": "v5e:2x4"}, "phases": phases}))
    return str(path)


def test_a_plan_says_what_a_host_needs(tmp_path):
    options = dataclasses.replace(DataBenchConfig.of(TINY, 1), need=(planned(tmp_path, 32, 7000.0), "one=5"))
    assert data.needed(options) == {f"v5e:2x4 ({tmp_path}/plan.json)": 7000.0, "one": 5.0}


@pytest.mark.parametrize(
    "length, rate, message",
    [(64, 7000.0, "rows of 64 tokens, but the measured phase has 32"), (32, 0.0, "holds no rate")],
)
def test_a_plan_of_something_else_is_refused(tmp_path, length, rate, message):
    options = dataclasses.replace(DataBenchConfig.of(TINY, 1), need=(planned(tmp_path, length, rate),))
    with pytest.raises(UserError, match=message):
        data.needed(options)


def test_a_plan_is_written_as_it_is_read():
    """The names that are read are those of the planner's own classes."""
    read = {field.name for field in dataclasses.fields(PhasePlan)}
    assert {"phase", "optimistic"} <= read
    assert "sequences_per_host" in {field.name for field in dataclasses.fields(Throughput)}


REFUSED = {
    "no token store at nowhere|nowhere": ("nowhere", "--rounds=1"),
    "need=v5e must be NAME=SEQUENCES_PER_SECOND": ("STORE", "--need=v5e"),
    "need=v5e=fast must be": ("STORE", "--need=v5e=fast"),
    "masks no spans": ("STORE", "--masking.unit=span", "--peer=torch", f"--peer_python={sys.executable}"),
    "fewer than a batch of 100000": ("STORE", "--phase=1", "--batch_size=100000"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_data_that_cannot_be_measured_are_refused(small_store, tiny_config, message, capsys, monkeypatch):
    monkeypatch.setattr(data.turns, "peer_versions", lambda options: {"torch": "0"})
    store, *options = (word.replace("STORE", str(small_store)) for word in REFUSED[message])
    assert bench_of_data("data", store, tiny_config, "--model.vocab_size=None", *options) == 2
    captured = capsys.readouterr()
    assert re.search(message, captured.err.splitlines()[-1]) and "round 1" not in captured.err and not captured.out


@pytest.fixture
def examples(small_store) -> Examples:
    return Examples(open_store(str(small_store)), TINY, 1)


def test_the_collator_gets_the_words_that_ours_masks(examples):
    ids = data.unmasked(examples.batch(np.arange(50)))
    tokenizer = examples.store.tokenizer()
    rows = examples.rows(*examples.locate(np.arange(50)))  # where each token is in the store
    for row, places in enumerate(rows.token_index):
        text = places >= 0
        np.testing.assert_array_equal(ids[row, text], examples.store.tokens(places[text]))
        assert ids[row, 0] == tokenizer.cls_id and (ids[row, places == SPECIAL][1:] == tokenizer.sep_id).all()


def test_the_grid_has_every_loader_with_tokens_and_words():
    names = data.grid()
    for packing in ("off", "on"):
        for unit in ("token", "whole_word"):
            assert f"data.loader=plain data.packing={packing} masking.unit={unit}" in names
    assert len(set(names)) == len(names)


def test_the_collator_takes_turns(small_store, tiny_config, tmp_path, peer):
    output = tmp_path / "data.json"
    words = ("--peer=torch", f"--peer_python={peer}", f"--output={output}")
    assert bench_of_data("data", small_store, tiny_config, *DATA_QUICK, *words) == 0
    found = json.loads(output.read_text())
    best = min(found["contestants"][1:], key=lambda one: one["cpu_seconds_per_batch"]["median"])
    assert found["collator"] == best["name"] and found["ratio_to_collator"] == best["ratio"]["cpu"]["median"]
    assert best["token_share"] == pytest.approx(found["token_share"], abs=0.1)


def test_pieces_of_a_word_touch(torch_contestants):
    class Tokenizer(list):
        def convert_ids_to_tokens(self, ids):
            return [self[i] for i in ids]

    pieces = Tokenizer(["[CLS]", "[SEP]", "un", "##do", "##ing", "it"])
    example = {"input_ids": [0, 2, 3, 4, 5, 5, 1], "special_tokens_mask": [1, 0, 0, 0, 0, 0, 1]}
    (found,) = torch_contestants.with_offsets([example], pieces)
    offsets = found["offset_mapping"]
    assert [a[1] == b[0] for a, b in zip(offsets[1:5], offsets[2:6])] == [True, True, False, False]
    assert offsets[0] == offsets[-1] == (0, 0)


@pytest.mark.usefixtures("here_and_in_processes")
def test_prepare_beside_its_tokenizer(small_store, tmp_path, capsys):
    output, corpus = tmp_path / "prepare.json", small_store.parent / "corpus.txt"
    words = (f"--input={corpus}", f"--vocab={small_store.parent}/vocab.txt", "--sentences=lines")
    assert bench_of_data("prepare", *words, *PREPARE, f"--output={output}") == 0
    found = json.loads(output.read_text())
    whole, tokenizer = found["contestants"]
    assert 2000 <= found["text_bytes"] < 2000 + max(map(len, corpus.read_bytes().splitlines())) + 1
    cpu, alone = ([turn["cpu"] / turn["units"] for turn in one["turns"]] for one in (whole, tokenizer))
    assert found["megabytes_per_cpu_second"] == pytest.approx(found["text_bytes"] / 1e6 / (sum(cpu) / 2))
    assert found["ratio_to_tokenizer"] == pytest.approx(np.median(np.array(alone) / cpu))
    assert "our tokenizer alone" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words, message",
    [
        (("--input=nowhere", "--vocab=nowhere"), "nowhere"),
        (("--input=x",), "give the required --vocab"),
        (("--input=x", "--vocab=x", "--runner=beam"), "runner"),
    ],
)
def test_what_cannot_be_prepared_is_refused(words, message, capsys):
    assert bench_of_data("prepare", *words) == 2
    captured = capsys.readouterr()
    assert re.search(message, captured.err.splitlines()[-1]) and not captured.out


def test_transformers_tokenizes_too(small_store, tmp_path, peer):
    output, place = tmp_path / "prepare.json", small_store.parent
    words = (f"--input={place}/corpus.txt", f"--vocab={place}/vocab.txt", f"--output={output}")
    assert bench_of_data("prepare", *words, *PREPARE, "--peer=torch", f"--peer_python={peer}") == 0
    assert len(json.loads(output.read_text())["contestants"]) == 3


FAKE = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from serving import Refusal, serve

def prepare(job):
    print("a library says something", flush=True)
    if job.get("refuses"):
        raise Refusal(job["refuses"])
    def note(what):
        with open(job["notes"], "a") as file:
            print(job["name"], what, file=file)
    def work(units):
        if units >= job.get("refuses_at", 99):
            raise Refusal("it does not fit")
        note(f"begins {units}")
        print("noise")
        time.sleep(units * job["seconds"])
        note("ends")
    return work, {"pid": os.getpid()} | {name: os.environ.get(name) for name in ("GIVEN", "PYTHONPATH")}

serve(prepare)
"""

OURS = [Turn(units=2, wall=4.0, cpu=6.0), Turn(units=2, wall=10.0, cpu=6.0), Turn(units=2, wall=6.0, cpu=8.0)]
THEIRS = [Turn(units=1, wall=6.0, cpu=3.0), Turn(units=1, wall=10.0, cpu=9.0), Turn(units=1, wall=3.0, cpu=8.0)]
GPU = "1 × NVIDIA H100 80GB HBM3 (gpu): peak 989 TFLOP/s bfloat16 per device, 79.6 GiB per device"
PEER = {"torch": "2.13.0", "transformers": "5.24.0", "cuda": True}


@pytest.fixture
def fake(tmp_path):
    """Make a contestant of this name; its notes are lines of one file."""

    def make(name: str, **job) -> Contestant:
        job = {"name": name, "notes": str(tmp_path / "notes"), "seconds": 0.0} | job
        return Contestant(name, (sys.executable, "-c", FAKE, str(PEER_PROGRAMS)), job)

    return make


def notes(tmp_path) -> list[str]:
    return (tmp_path / "notes").read_text().splitlines()


def test_a_contestant_works_and_refuses_and_all_end_with_the_block(fake, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "mine")
    one = dataclasses.replace(fake("a", refuses_at=2, seconds=0.1), environment={"GIVEN": "1"}, is_peer=True)
    with pytest.raises(KeyboardInterrupt), started([one, fake("b")]) as waiting:
        a, b = waiting
        assert (a.facts["GIVEN"], a.facts["PYTHONPATH"]) == ("1", None)
        taken = a.turn(1)
        assert notes(tmp_path) == ["a begins 1", "a ends"]  # a turn is over when it has returned
        assert taken.units == 1 and taken.wall >= 0.1 > taken.cpu >= 0  # sleeping spends no processor time
        with pytest.raises(UserError, match="^a: it does not fit$"):
            a.turn(2)
        with pytest.raises(UserError, match="^a: its process ended with status 0: noise$"):
            a.turn(1)
        os.kill(b.facts["pid"], 0)  # is there
        raise KeyboardInterrupt
    with pytest.raises(ProcessLookupError):
        os.kill(b.facts["pid"], 0)


def test_a_contestant_ends_with_whoever_gives_the_turns(fake, tmp_path):
    with started([fake("a", seconds=10 * SECONDS)]) as (waiting,):
        waiting._say({"units": 1})
        wait_until(lambda: (tmp_path / "notes").exists())
        stdin, waiting._process.stdin = waiting._process.stdin, None
        stdin.close()
        assert waiting._process.wait(SECONDS) == 0


def test_peers_do_not_see_our_sources(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "mine")
    for is_peer, path in ((True, None), (False, str(PACKAGE_DIRECTORY.parent))):
        found = _environment(Contestant("a", (), {}, {"GIVEN": "1"}, is_peer))
        assert (found.get("PYTHONPATH"), found["GIVEN"]) == (path, "1")


@pytest.mark.slow
def test_a_program_that_fails_says_why(tmp_path):
    """It is started when the contestant gets ready, and for each unit."""
    once = f"import os, sys; os.mkdir({str(tmp_path / 'once')!r}); print('noise'); print('[7]')"
    command = peer_program(sys.executable, "process", file="serving.py")
    with started([Contestant("a", command, {"program": ["-c", once]})]) as waiting:
        with pytest.raises(UserError, match="^a: its process ended with status 1: FileExistsError: .*/once'$"):
            waiting[0].turn(1)


def test_a_program_that_cannot_be_used_is_refused_and_one_that_fails_later_ends_the_contestant(monkeypatch):
    ends = [(1, "", "a library\nno such thing\n"), (0, "noise\n[7]\n", ""), (1, "", "a library\nno such thing\n")]
    run = lambda words, **options: subprocess.CompletedProcess(words, *ends.pop(0))
    monkeypatch.setattr(serving, "subprocess", types.SimpleNamespace(run=run))
    with pytest.raises(serving.Refusal, match="^no such thing$"):
        serving.whole_process({"program": ["-c", ""]})
    work, _ = serving.whole_process({"program": ["-c", ""]})
    with pytest.raises(SystemExit, match="^no such thing$"):
        work(1)


def test_one_that_refuses_its_job_says_why_in_one_line():
    job = json.dumps({"refuses": "it cannot\nbe done"}).encode() + b"\n"
    given = f"import os, sys; end, begin = os.pipe(); os.write(begin, {job!r}); sys.stdin = os.fdopen(end)"
    ended = fresh.run(f"{given}{FAKE}", str(PEER_PROGRAMS))
    assert (ended.returncode, ended.stdout) == (0, '{"refused": "it cannot be done"}\n')
    assert ended.stderr == "a library says something\n"  # which would be taken for an answer


def test_a_program_that_is_not_there(monkeypatch):
    def no_program(*unused, **options):
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(turns, "subprocess", types.SimpleNamespace(Popen=no_program, PIPE=subprocess.PIPE))
    with pytest.raises(UserError, match="^a: nowhere/python cannot be started: No such file"):
        with started([Contestant("a", ("nowhere/python",), {})]):
            pytest.fail("nothing was started")


class Noting:
    """A contestant that works as long as it was said to, and notes its turns."""

    def __init__(self, name: str, seconds: float, notes: list[str]):
        self.name, self._seconds, self._notes = name, seconds, notes

    def turn(self, units: int) -> Turn:
        self._notes.append(self.name)
        return Turn(units, units * self._seconds, 0.0)


def test_contestants_work_in_turns():
    noted: list[str] = []
    taken = take_turns([Noting(name, 1.0, noted) for name in "abc"], rounds=3, turn_seconds=0, rest=0)
    assert noted == [*"aabbcc", *"abcabcabc"]
    assert [[turn.units for turn in turns] for turns in taken] == [[1] * 3] * 3


def test_a_turn_is_as_long_as_it_was_asked_to_be():
    contestants = [Noting(name, seconds, []) for name, seconds in (("slow", 0.25), ("fast", 0.02))]
    (slow,), (fast,) = take_turns(contestants, rounds=1, turn_seconds=0.5, rest=0)
    assert (slow.units, fast.units) == (2, 25)


def test_programs_import_nothing_heavy_before_they_know_their_kind():
    path = f"import sys; sys.path.insert(0, {str(PEER_PROGRAMS)!r})"
    loaded = fresh.loaded_by(f"{path}; import {contestants.__name__}, torch_contestants")
    assert {contestants.__name__, "torch_contestants"} <= loaded
    assert not {"jax", "numpy", "flax", "torch", "transformers"} & loaded


def test_words_in_capitals_are_variables():
    config, environment = varied(TINY, 'seed=3 XLA_FLAGS="--a=1 --b"')
    assert config.seed == 3 and environment == {"XLA_FLAGS": "--a=1 --b"}


def test_a_spread_has_the_median_and_interpolated_quartiles():
    # Sorted 1 2 4 8: the quartiles are at places 0.75 and 2.25 counted from 0, the median between the middle two.
    assert Spread.of([8.0, 1.0, 4.0, 2.0]) == Spread(3.0, 1.75, 5.0, 1.0, 8.0)
    assert Spread.of([8.0, 1.0, 4.0]) == Spread(4.0, 2.5, 6.0, 1.0, 8.0)
    assert Spread.of([5.0]) == Spread(5.0, 5.0, 5.0, 5.0, 5.0)


def test_seconds_are_those_of_one_unit():
    wall, cpu = seconds(OURS)
    assert wall == Spread.of([2.0, 5.0, 3.0]) and cpu == Spread.of([3.0, 3.0, 4.0])


def test_ratios_are_those_of_neighbouring_turns():
    # Theirs over ours, round by round: 6/2, 10/5, 3/3 on the clock; 3/3, 9/3, 8/4 of the processor.
    found = ratio(OURS, THEIRS)
    assert found.wall == Spread.of([3.0, 2.0, 1.0]) and found.cpu == Spread.of([1.0, 3.0, 2.0])
    # The ratio of the medians would be 6 / 3 too; of other pairs it is not.
    assert ratio(OURS, THEIRS[::-1]).wall == Spread.of([1.5, 2.0, 2.0])


def test_all_turns_together_weigh_the_long_ones_more():
    # 20 s for our 6 units, 20 s for their 3.
    assert ratio(OURS, THEIRS).total_cpu == pytest.approx(2.0)
    assert ratio([Turn(1, 1.0, 1.0), Turn(1, 9.0, 9.0)], [Turn(1, 3.0, 3.0), Turn(1, 9.0, 9.0)]).total_cpu == 1.2
    assert ratio(OURS, THEIRS, 512, 256).total_cpu == pytest.approx(4.0)


def test_a_unit_that_achieves_more_counts_more():
    # Our step has 512 tokens, theirs 256: twice the ratios above.
    assert ratio(OURS, THEIRS, 512, 256).wall == Spread.of([6.0, 4.0, 2.0])


def test_every_turn_needs_its_neighbour():
    with pytest.raises(ValueError, match="shorter"):
        ratio(OURS, THEIRS[:2])


def report(device: str | None, peer: dict | None) -> Report:
    """Of three contestants, the first of which uses no device and the last that of another run."""
    facts = [{}, {"facts": {"path": "xla"} | ({"device": device} if device else {})}, {"facts": {"device": "another"}}]
    values = recorded("load", ["MODEL"], (0.25, 0.5), peer=peer)
    return Report(
        values | {"contestants": facts[: 3 if device else 2]}, "A title", {"contestant": lambda entry: "ours"}, ["."]
    )


@pytest.mark.parametrize("device", [GPU, "4 × TPU v5 lite (tpu) on 2 hosts: peak 197 TFLOP/s bfloat16 per device"])
def test_an_accelerator_is_named_before_the_processor(device, tmp_path, capsys):
    show(found := report(device, None), str(tmp_path / "a.json"))
    values = json.loads((tmp_path / "a.json").read_text())
    where = (tmp_path / "a.md").read_text().splitlines()[2]
    assert values["device"] == device and values["benchmark"] == "load"
    assert where.startswith(f"{device}; {values['processor']}, {values['cores']} cores, ")
    assert capsys.readouterr().out.startswith(found.markdown())


@pytest.mark.parametrize("device", ["1 × cpu", "8 × cpu on 2 hosts", None])
def test_the_processor_is_named_once(device, tmp_path):
    show(report(device, None), str(tmp_path / "a.json"))
    values = json.loads((tmp_path / "a.json").read_text())
    where = (tmp_path / "a.md").read_text().splitlines()[2]
    assert values["device"] == device
    assert where.startswith(f"{values['processor']}, ") and "× cpu" not in where


@pytest.mark.parametrize("peer, ends", [(PEER, ", torch 2.13.0, transformers 5.24.0."), (None, ".")])
def test_versions_of_the_peer_follow_ours(peer, ends):
    found = report(GPU, peer)
    (where,) = (line for line in found.markdown().splitlines() if "load average" in line)
    assert where.endswith(f", jax {found.values['versions']['jax']}{ends}")
