"""What a run says of itself: status, goodput, description."""

import collections
import dataclasses
import io
import json
import os
import pathlib
import re
import shutil
import time
import types

import numpy as np
import pytest
from clock import Clock
from etils import epath
from rich.console import Console
from synthetic_store import SyntheticStore, hand_made, random_documents, unverified, write_store

from bert_jax import cli
from bert_jax.config import EmbeddingConfig
from bert_jax.config.options import to_dict
from bert_jax.config.pretraining import DescribeConfig, StatusConfig
from bert_jax.data.store import open_store
from bert_jax.errors import UserError
from bert_jax.ownership import Owner, live_owner
from bert_jax.tools import description
from bert_jax.tools.description import (
    SHARES,
    corpus_card,
    count_tokens,
    frequent_sentences,
    run_describe,
    tables,
    text_hashes,
)
from bert_jax.tools.status import LOST, RunHistory, goodput, read_run, run_status, status
from bert_jax.training.metrics import Metrics, Rates, WallTime, read_rows
from bert_jax.training_data import read_config


@pytest.fixture
def workdir(finished, tmp_path) -> pathlib.Path:
    """A copy of a finished run, to be changed."""
    shutil.copytree(finished[0].workdir, tmp_path / "run")
    return tmp_path / "run"


def facts(workdir, now: float | None = None) -> dict:
    """The facts, which must be JSON in the strict sense."""
    found = status(read_run(workdir), time.time() if now is None else now)
    return json.loads(json.dumps(found, allow_nan=False))


def printed(workdir) -> str:
    out = io.StringIO()
    run_status(str(workdir), StatusConfig(), Console(file=out, width=200, highlight=False))
    return out.getvalue()


def lengthen(workdir, steps: int) -> None:
    file = workdir / "config.json"
    settings = json.loads(file.read_text())
    settings["phases"][0]["steps"] = steps
    file.write_text(json.dumps(settings))


def add(file: pathlib.Path, *rows: dict) -> None:
    with file.open("a") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)


def test_a_finished_run(finished):
    config, result = finished
    found = facts(config.workdir)
    assert (found["kind"], found["step"], found["total_steps"], found["finished"]) == ("pre-training", 12, 12, True)
    assert found["process"] is None and found["alarms"] == []
    assert found["checkpoint"]["step"] == 12 and found["starts"] == 1 and found["last_start"]["hosts"] == 1
    assert found["held_out"] == {"step": 12, **result.evaluation}
    assert found["rates"]["tokens_per_second"] > 0
    seconds = found["goodput"]["seconds"]
    assert found["goodput"]["share"] == pytest.approx(seconds["steps"] / sum(seconds.values()))
    shown = printed(config.workdir)
    assert "12 of 12 (100.0%)" in shown and "none; the run is finished" in shown and "lost to restarts" in shown
    assert "time left" not in shown


def test_a_live_process_is_seen_and_a_dead_one_is_an_alarm(workdir):
    lengthen(workdir, 100)
    assert live_owner(epath.Path(workdir)) is None
    (alarm,) = facts(workdir)["alarms"]
    assert "no process writes here and the run is at step 12 of 100" in alarm
    owner = Owner(epath.Path(workdir))
    try:
        last = read_run(workdir).last_sign()  # another test may have made the run long ago
        found = facts(workdir, last + 1)
        assert found["process"]["pid"] == os.getpid() and found["alarms"] == []
        (silent,) = facts(workdir, last + 3600)["alarms"]
        assert silent.startswith("nothing was written for 1 h 00 min")
        assert f"{os.getpid()} on " in printed(workdir)
    finally:
        owner.release()
    Owner(epath.Path(workdir)).release()  # looking has left no lock


@pytest.mark.parametrize(
    "last, words",
    [
        ({"event": "stopped", "signal": "SIGTERM"}, "it ended by SIGTERM"),
        ({"event": "failed", "error": "disk full"}, "it ended with an error: disk full"),
        ({"event": "hung", "seconds": 312.5, "place": "loop.py:42"}, "made no progress for 5 min 12 s, at loop.py:42"),
        ({"event": "hung"}, "it ended because it made no progress for ?, at ?"),
        ({"event": "saved"}, "it ended without a word"),
        ({"event": "unknown"}, "it ended without a word"),
    ],
)
def test_how_a_run_ended(workdir, last, words):
    lengthen(workdir, 100)
    add(workdir / "events.jsonl", {"time": time.time(), "step": 12, **last})
    assert words in facts(workdir)["alarms"][0]


def test_events_and_figures_that_deserve_a_look(workdir):
    row = {"kind": "train", "step": 12, "loss": "nan", "grad_norm": "inf", "learning_rate": 0.1, "skipped": 1.0}
    add(workdir / "metrics.jsonl", row)
    event = {"time": time.time(), "step": 11}
    add(workdir / "events.jsonl", *({**event, "event": "skipped"} for _ in range(3)))
    add(workdir / "events.jsonl", {**event, "event": "slow_host", "host": 7})
    add(workdir / "events.jsonl", {**event, "event": "rollback", "step": 11 - 1000})  # long ago
    alarms = facts(workdir)["alarms"]
    assert alarms[0] == "loss is nan at step 12"
    assert alarms[1].startswith("3 updates were skipped") and "host 7" in alarms[2] and len(alarms) == 3


def test_a_checkpoint_that_is_overdue(workdir):
    for step in (8, 12):
        (workdir / "checkpoints" / f"step_{step:09d}" / "record" / "metadata").write_text("torn")
    found = facts(workdir)
    assert "checkpoint" not in found  # neither is good
    assert found["alarms"] == ["there is no good checkpoint, though one is due every 4 steps"]


def test_a_local_save_is_told_where_it_is_newer_than_the_checkpoint(workdir):
    assert "local_save" not in facts(workdir)
    row = {"time": time.time() - 60, "event": "saved_locally", "seconds": 0.5}
    add(workdir / "events.jsonl", {**row, "step": 12})  # as new as the checkpoint
    assert "local_save" not in facts(workdir)
    add(workdir / "events.jsonl", {**row, "step": 13})
    found = facts(workdir)["local_save"]
    assert found["step"] == 13 and 60 <= found["seconds_old"] < 600
    assert "local save" in printed(workdir) and "step 13, " in printed(workdir)
    add(workdir / "events.jsonl", {**row, "event": "rollback", "step": 13})  # which deletes it
    assert "local_save" not in facts(workdir)


def test_a_disk_that_is_nearly_full(workdir, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**12, 10**12, 5 * 10**8))
    (alarm,) = facts(workdir)["alarms"]
    assert "the disk has 0.5 GB left" in alarm


def test_torn_lines_and_damaged_files_leave_the_rest(workdir):
    with (workdir / "metrics.jsonl").open("a") as stream:
        stream.write('{"kind": "time", "step": 3}\n{"kind": "train", "step": 13, "lo')
    (workdir / "run.json").write_text('{"starts": ')
    found = facts(workdir)
    assert found["step"] == 12 and "run.json is not JSON" in found["alarms"][-1]
    (workdir / "run.json").write_text('{"starts": [7, {"hosts": {}}]}')
    (workdir / "config.json").write_text('{"phases": "many", "new": 1}')
    assert facts(workdir)["starts"] == 1 and "12" in printed(workdir)


def test_a_config_json_that_lacks_an_option_is_told(workdir):
    settings = json.loads((workdir / "config.json").read_text())
    del settings["data"]["packing"]
    (workdir / "config.json").write_text(json.dumps(settings))
    found = facts(workdir)
    (alarm,) = found["alarms"]
    says = "config.json is damaged, or another version of bert_jax wrote it: missing: data.packing"
    assert alarm == f"{workdir}/{says}" and found["step"] == 12 and "total_steps" not in found


def test_a_saved_model_of_a_run_may_say_how_it_embeds(workdir):
    settings = json.loads((workdir / "config.json").read_text())
    (workdir / "config.json").write_text(json.dumps({**settings, "embedding": to_dict(EmbeddingConfig())}))
    assert facts(workdir)["total_steps"] == 12 and facts(workdir)["alarms"] == []
    assert read_config(workdir) == read_run(workdir).config


@pytest.mark.parametrize("name", ["finetuned", "finetuning"])
def test_directories_of_fine_tuning(finetunings, name):
    found, shown = facts(finetunings / name), printed(finetunings / name)
    assert found["goodput"]["seconds"]["steps"] == (18 if name == "finetuned" else 9) and name in shown
    unfinished = [
        "no process writes here and it is not finished; it ended without a word, as kill -9 or a lost machine end it"
    ]
    assert found["alarms"] == (unfinished if name == "finetuning" else [])
    assert found["kind"] == "fine-tuning" and found["finished"] == (name == "finetuned")
    assert [run["finished"] for run in found["runs"].values()] == [name == "finetuned"]
    for run, of_run in found["runs"].items():
        rows = read_rows(finetunings / name / "runs" / run / "metrics.jsonl")
        (*_, evaluated) = (row for row in rows if row["kind"] == "evaluation")
        assert of_run["dev_accuracy"] == evaluated["dev_accuracy"] and "dev_accuracy" in shown


def test_the_pace_of_a_fine_tuning_is_that_of_the_run_under_way(finetunings, monkeypatch):
    monkeypatch.setattr(RunHistory, "owner", lambda _: {"host": "here", "pid": 1, "since": "today"})
    for name in ("finetuned", "finetuning"):
        row = {"step": 3, "kind": "train", "loss": 0.5, "tokens_per_second": 800.0, "mfu": 0.25, "seconds_left": 1e6}
        for directory in (finetunings / name / "runs").iterdir():
            with (directory / "metrics.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")
        found, shown = facts(finetunings / name), printed(finetunings / name)
        if name == "finetuned":
            assert "rates" not in found and "time left" not in shown
        else:
            assert found["rates"] == {"tokens_per_second": 800.0, "mfu": 0.25} and "in this run" in shown


def test_the_facts_as_a_file_and_directories_that_are_none(finished, tmp_path, capsys):
    file = tmp_path / "status.json"
    assert cli._run(["bert-jax", "status", finished[0].workdir, f"--output={file}"]) == 0
    assert json.loads(file.read_text())["step"] == 12
    capsys.readouterr()
    for path, words in (
        (tmp_path, "none of run.json, config.json and metrics.jsonl"),
        (tmp_path / "no", "there is no such"),
        (file, "it is a file"),
    ):
        with pytest.raises(UserError, match=words):
            read_run(path)
        assert cli._run(["bert-jax", "status", str(path)]) == 2
    assert cli._run(["bert-jax", "status", finished[0].workdir, "--output=/nowhere/x.json"]) == 2
    assert capsys.readouterr().err.count("error: ") == 4


def train(workdir, clock: Clock, begin: int, end: int, saves: int = 10) -> None:
    """Steps of a second, of which each tenth has a row; each tenth is saved in two seconds, after its row.

    Setting up takes 30 seconds, compiling 60. Input is late by half a second before each fifth step.
    """
    wall_time = WallTime(clock, lambda: 1e9 + clock.now)
    rates = Rates(clock=clock, wall_time=wall_time)
    with Metrics(workdir, total_steps=1000, start_step=begin, wall_time=wall_time) as metrics:
        clock.now += 30
        with rates.paused("compile"):
            clock.now += 60
        for step in range(begin + 1, end + 1):
            with wall_time.awaiting(lambda: False):
                clock.now += 0.5 if step % 5 == 0 else 0
            wall_time.switch("steps")
            clock.now += 1
            if step % 10 == 0:
                metrics.write(step, {"loss": 1.0})
            if step % saves == 0:
                with rates.paused("checkpoint"):
                    clock.now += 2


def test_an_uninterrupted_run(tmp_path):
    clock = Clock()
    train(tmp_path, clock, 0, 40)
    found = goodput(read_rows(tmp_path / "metrics.jsonl"))
    assert found.seconds == pytest.approx(
        {"steps": 40, "input": 4, "evaluation": 0, "checkpoint": 8, "compile": 60, "setup": 30, LOST: 0}
    )
    assert found.total == pytest.approx(clock.now) == 142
    assert found.restarts == 0 and found.share == pytest.approx(40 / 142)


def test_a_restart_costs_the_steps_done_again_and_the_time_without_a_process(tmp_path):
    """Step 40 is saved, the process dies after step 57, another one starts 300 seconds later."""
    clock = Clock()
    train(tmp_path, clock, 0, 40)
    resumable = (tmp_path / "metrics.jsonl").read_bytes()
    lost_from = clock.now
    train(tmp_path, clock, 40, 57)  # its rows are dropped when step 40 is resumed, as those of one process would be
    (tmp_path / "metrics.jsonl").write_bytes(resumable)
    clock.now += 300
    back = clock.now
    train(tmp_path, clock, 40, 60)
    found = goodput(read_rows(tmp_path / "metrics.jsonl"))
    assert found.seconds == pytest.approx(
        {
            "steps": 60,
            "input": 6,
            "evaluation": 0,
            "checkpoint": 12,
            "compile": 120,
            "setup": 60,
            LOST: back - lost_from,
        }
    )
    assert found.total == pytest.approx(clock.now) and found.restarts == 1


def test_rows_after_the_checkpoint_are_dropped_by_the_next_start(tmp_path):
    """The same through the files alone: a process that dies never closes them."""
    clock = Clock()
    wall_time = WallTime(clock, lambda: 1e9 + clock.now)
    wall_time.switch("steps")
    dying = Metrics(tmp_path, total_steps=100, wall_time=wall_time)
    for step in (10, 20, 30):
        clock.now += 10
        dying.write(step, {"loss": 1.0})
    clock.now += 5  # to step 35, of which nothing is left
    dying.settle()
    before = (tmp_path / "metrics.jsonl").read_bytes()
    dying.close()
    (tmp_path / "metrics.jsonl").write_bytes(before)
    clock.now += 100
    train(tmp_path, clock, 20, 40)
    found = goodput(read_rows(tmp_path / "metrics.jsonl"))
    assert found.seconds["steps"] == pytest.approx(20 + 20)
    assert found.seconds[LOST] == pytest.approx(10 + 5 + 100)
    assert found.total == pytest.approx(clock.now)


def test_a_rollback_within_a_start_loses_the_steps_taken_again(tmp_path):
    clock = Clock()
    wall_time = WallTime(clock, lambda: 1e9 + clock.now)
    wall_time.switch("steps")
    with Metrics(tmp_path, total_steps=100, wall_time=wall_time) as metrics:
        for step in (10, 20, 30):
            clock.now += 10
            metrics.write(step, {"loss": 1.0})
        clock.now += 5
        metrics.rewind(20)
        clock.now += 10
        metrics.write(30, {"loss": 1.0})
    found = goodput(read_rows(tmp_path / "metrics.jsonl"))
    assert (found.seconds["steps"], found.seconds[LOST], found.restarts) == pytest.approx((30, 15, 1))
    assert found.total == pytest.approx(clock.now)


def test_there_is_none_without_whole_rows_of_time():
    assert goodput([]) is None
    assert goodput([{"kind": "train", "step": 1, "loss": 2.0}]) is None
    assert goodput([{"kind": "time", "step": 1, "time": 3.0}]) is None


@pytest.fixture(scope="module")
def synthetic():
    """A document that is there three times, and a sentence of three words that is in each of ten others."""
    documents = [*random_documents(30), *[[4, 9, 2]] * 3, *[[3, 6]] * 10]
    store = SyntheticStore(documents, seed=3)
    starts = store.document_tokens
    copies, others = range(len(documents) - 13, len(documents) - 10), range(len(documents) - 10, len(documents))
    for copy in copies[1:]:
        store.all_tokens[starts[copy] : starts[copy + 1]] = store.all_tokens[starts[copies[0]] : starts[copies[0] + 1]]
    for other in others:
        store.all_tokens[starts[other] : starts[other] + 3] = [5, 6, 8]
    return store


@pytest.fixture(scope="module")
def store(synthetic, tmp_path_factory):
    return open_store(str(write_store(synthetic, tmp_path_factory.mktemp("described") / "store", 20)))


def test_figures_are_those_of_a_plain_count(synthetic, store):
    card = corpus_card(store, "here")
    documents, sentences = np.diff(synthetic.document_tokens), np.diff(synthetic._starts)
    np.testing.assert_allclose(card.document_lengths, np.percentile(documents, SHARES))
    np.testing.assert_array_equal(card.sentence_lengths, np.percentile(sentences, SHARES, method="inverted_cdf"))
    for histogram, lengths in ((card.document_histogram, documents), (card.sentence_histogram, sentences)):
        edges = zip(card.length_edges[:-1], card.length_edges[1:], strict=True)
        assert histogram.tolist() == [int(((low <= lengths) & (lengths < high)).sum()) for low, high in edges]
        assert histogram.sum() == len(lengths)
    counts = collections.Counter(synthetic.all_tokens.tolist())
    assert card.used_entries == len(counts)
    assert card.rare_entries == sum(count < 100 for count in counts.values())
    assert card.token_shares[100] == sum(count for _, count in counts.most_common(100)) / synthetic.num_tokens
    assert card.frequencies[:3].tolist() == [count for _, count in counts.most_common(3)]
    assert (card.duplicated_documents, card.duplicated_tokens) == (2, 30)


def test_figures_do_not_depend_on_how_much_is_read_at_once(store, monkeypatch):
    whole = corpus_card(store, "here")
    monkeypatch.setattr(description, "BLOCK_TOKENS", 64)  # most documents are longer
    pieces = corpus_card(store, "here")
    np.testing.assert_array_equal(count_tokens(store).hashes, hashes_of_whole_documents(store))
    assert (pieces.duplicated_documents, pieces.frequent) == (whole.duplicated_documents, whole.frequent)
    np.testing.assert_array_equal(pieces.frequencies, whole.frequencies)


def hashes_of_whole_documents(store):
    tokens = store.tokens(np.arange(store.num_tokens))
    return text_hashes(tokens, store.document_tokens)


@pytest.mark.skipif(
    not os.environ.get("BERT_JAX_LARGE_STORE"), reason="two minutes of a core; set BERT_JAX_LARGE_STORE=1"
)
def test_a_store_beyond_32_bits_has_a_card(tmp_path):
    """More than 2^31 tokens and 2^32 bytes, in a sparse file: all zeros but for two documents behind these."""
    size, sentence, document = (1 << 31) + (1 << 20), 1 << 14, 1 << 18
    sentences, last = np.arange(0, size, sentence), range(size - 2 * document, size)
    ids = dict.fromkeys(last[: 2 * sentence], 7) | dict.fromkeys(last[-document:][:sentence], 8)
    documents = np.arange(0, len(sentences), document // sentence)
    store = unverified(hand_made(tmp_path / "store", [(size, ids, sentences, documents)], hashed=False))
    store.tokenizer = lambda: types.SimpleNamespace(decode=lambda ids: " ".join(map(str, ids[:3])))
    card = corpus_card(store, "large")
    assert card.counts["tokens"] == size > 1 << 31
    assert card.frequencies[:3].tolist() == [size - 3 * sentence, 2 * sentence, sentence]
    assert card.duplicated_documents == len(documents) - 3
    assert card.duplicated_tokens == (len(documents) - 3) * document
    assert [(each.text, each.count) for each in card.frequent] == [("0 0 0", len(sentences) - 3), ("7 7 7", 2)]
    assert card.document_histogram.sum() == len(documents) and card.sentence_lengths.tolist() == [sentence] * 7


def test_frequent_sentences_are_those_of_a_plain_count(synthetic, store):
    starts, tokenizer = synthetic._starts, store.tokenizer()
    plain = collections.Counter(
        tuple(synthetic.all_tokens[begin:end].tolist()) for begin, end in zip(starts[:-1], starts[1:], strict=True)
    )
    wanted = collections.Counter({text: count for text, count in plain.items() if count > 1})
    found = frequent_sentences(store, most=len(wanted) + 5)
    assert [each.count for each in found] == [count for _, count in wanted.most_common()]
    assert {(each.text, each.count, each.tokens) for each in found} == {
        (tokenizer.decode(list(text)), count, len(text)) for text, count in wanted.items()
    }
    assert {each.text: each.count for each in found}[tokenizer.decode([5, 6, 8])] >= 10


def test_the_page_shows_two_stores_beside_each_other_and_loads_nothing(store, tmp_path, capsys):
    other = write_store(SyntheticStore(random_documents(9), seed=8), tmp_path / "<b>other", 1000)
    output = tmp_path / "card.html"
    assert cli._run(["bert-jax", "describe", str(store.path), str(other), f"--output={output}"]) == 0
    assert f"{output}: 2 stores" in capsys.readouterr().out
    text = output.read_text(encoding="utf-8")
    assert "&lt;b&gt;other" in text and "<b>other" not in text
    assert "default-src" in text and not re.search(r"<(?:script|link|img)[^>]* (?:src|href)=", text)
    first, second = json.loads(output.with_suffix(".json").read_text(encoding="utf-8"))
    assert (first["path"], second["path"]) == (str(store.path), str(other))
    assert f"{first['counts']['tokens']:,}" in text and f"{second['counts']['tokens']:,}" in text
    assert first["samples"] == corpus_card(store, "").samples and len(first["samples"]) == 8
    assert {file["name"] for file in first["files"]} > {"shard-00000.tokens"}


def test_a_vocabulary_of_fewer_entries_has_the_rows_of_one_with_more(store):
    """All tokens are among the 10,000 most frequent of 2,000 entries, whichever store comes first."""
    card = corpus_card(store, "small")
    large = dataclasses.replace(card, path="large", token_shares={**card.token_shares, 10_000: 0.75})
    for cards in ([large, card], [card, large]):
        what, *_ = tables(cards)
        row = next(row for row in what.rows if row[0] == "tokens among the 10,000 most frequent entries")
        assert row[1:] == ["75.00%" if each is large else "100.00%" for each in cards]
        assert what.rows[-1][0] == "loss of word frequencies alone"


@pytest.mark.parametrize(
    ("paths", "changes", "message"),
    [
        (["a"], {"output": "card.txt"}, "output=card.txt must end in .html"),
        (["a", "b", "c"], {"output": "card.html"}, "3 stores are too many for two columns"),
        (["a"], {"output": "card.html", "samples": -1}, "samples=-1 must not be negative"),
        (["nowhere"], {"output": "card.html"}, "nowhere"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(paths, changes, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        run_describe(paths, DescribeConfig(**changes))
    assert message in str(error.value)
    assert not list(tmp_path.iterdir())
