"""`bert-jax bench data` and `prepare` from end to end on a small store, what they refuse, and what the peer gets."""

import dataclasses
import functools
import json
import pathlib
import re

import numpy as np
import pytest
from command_lines import status
from two_phases import TINY

from bert_jax.config import resolve_phases
from bert_jax.config.commands import DataBenchConfig
from bert_jax.data.examples import Examples
from bert_jax.data.store import SPECIAL, open_store
from bert_jax.errors import UserError
from bert_jax.tools.bench import data
from bert_jax.tools.planning.plan import PhasePlan
from bert_jax.tools.planning.roofline import Throughput

QUICK = ("--rounds=2", "--turn_seconds=0", "--phase=1", "--batch_size=8", "--model.vocab_size=None")
PREPARE = ("--rounds=2", "--turn_seconds=0", "--max_bytes=2000")
bench = functools.partial(status, "bench")


def test_loaders_take_turns_and_the_record_has_the_rates(small_store, tiny_config, tmp_path, capsys):
    output, variant = tmp_path / "data.json", "data.packing=on masking.unit=span"
    words = (*QUICK, f"--variant={variant}", "--need=one chip=1000,8 chips=8000", f"--output={output}")
    assert bench("data", small_store, tiny_config, *words) == 0
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
    "masks no spans": ("STORE", "--masking.unit=span", "--peer=torch", "--peer_python=PEER"),
    "fewer than a batch of 100000": ("STORE", "--phase=1", "--batch_size=100000"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_measured_is_refused(small_store, tiny_config, message, capsys, monkeypatch):
    monkeypatch.setattr(data, "peer_versions", lambda options: {"torch": "0"})
    store, *options = (word.replace("STORE", str(small_store)) for word in REFUSED[message])
    assert bench("data", store, tiny_config, "--model.vocab_size=None", *options) == 2
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
    assert bench("data", small_store, tiny_config, *QUICK, *words) == 0
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


def test_prepare_beside_its_tokenizer(small_store, tmp_path, capsys):
    output, corpus = tmp_path / "prepare.json", small_store.parent / "corpus.txt"
    words = (f"--input={corpus}", f"--vocab={small_store.parent}/vocab.txt", "--sentences=lines")
    assert bench("prepare", *words, *PREPARE, f"--output={output}") == 0
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
    assert bench("prepare", *words) == 2
    captured = capsys.readouterr()
    assert re.search(message, captured.err.splitlines()[-1]) and not captured.out


def test_transformers_tokenizes_too(small_store, tmp_path, peer):
    output, place = tmp_path / "prepare.json", small_store.parent
    words = (f"--input={place}/corpus.txt", f"--vocab={place}/vocab.txt", f"--output={output}")
    assert bench("prepare", *words, *PREPARE, "--peer=torch", f"--peer_python={peer}") == 0
    assert len(json.loads(output.read_text())["contestants"]) == 3
