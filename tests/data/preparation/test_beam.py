"""Preparation by Apache Beam, and pairs of words that are counted."""

import collections
import contextlib
import dataclasses
import fractions
import importlib.util
import itertools
import json
import pathlib
import random
import re
import shlex
import signal
import subprocess
import sys
import types
from typing import Any, cast

import glue_files
import numpy as np
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from cloud_bucket import bucket
from documents import contents, random_documents, run, write_corpus
from processes import wait_until

from bert_jax import cli
from bert_jax.config import MaskingConfig, SkipGram
from bert_jax.config.corpora import CleaningConfig
from bert_jax.config.objective import GloVeConfig
from bert_jax.data.neighbours import counts_for, places
from bert_jax.data.pair_counts import COUNTS, MANIFEST, PAIRS, open_pair_counts, write_pair_counts
from bert_jax.data.preparation import beam
from bert_jax.data.preparation.beam import BlockSize, planned_shards
from bert_jax.data.preparation.encoding import Encoder
from bert_jax.data.store import open_store
from bert_jax.errors import UserError
from bert_jax.randomness import held_out_documents


@pytest.fixture
def corpus(tmp_path):
    """Files of several formats, among them one with nothing but blank lines."""
    write_corpus(tmp_path / "a.txt", random_documents(100))
    write_corpus(tmp_path / "b.txt.gz", random_documents(100, seed=1))
    (tmp_path / "c.txt").write_text("one sentence of a very long line. " * 500)
    (tmp_path / "d.txt").write_text("\n\n \n")
    records = [{"text": "\n".join(lines)} for lines in random_documents(30, seed=2)]
    (tmp_path / "e.jsonl").write_text("\n".join(map(json.dumps, records)))
    return f"{tmp_path}/*.txt*,{tmp_path}/e.jsonl"


@pytest.mark.parametrize("sentences", [pytest.param("lines", marks=pytest.mark.slow), "split"])
def test_the_store_is_that_of_the_local_runner(tmp_path, vocab, small_blocks, corpus, sentences):
    manifest = run(corpus, vocab, tmp_path / "local", sentences=sentences)
    assert len(manifest.shards) > 2
    assert run(corpus, vocab, tmp_path / "beam", sentences=sentences, runner="beam") == manifest
    assert contents(tmp_path / "beam") == contents(tmp_path / "local")


@pytest.mark.slow
def test_several_processes_make_the_same_store(tmp_path, vocab, corpus):
    write_corpus(tmp_path / "f.txt", random_documents(4000, seed=3))  # more than a block
    manifest = run(corpus, vocab, tmp_path / "local")
    assert run(corpus, vocab, tmp_path / "beam", runner="beam", workers=2) == manifest
    assert contents(tmp_path / "beam") == contents(tmp_path / "local")


def test_a_data_set_of_several_files_makes_the_same_store(tmp_path, vocab, small_blocks, monkeypatch):
    pytest.importorskip("tensorflow_datasets")
    texts = ["\n".join(lines) for lines in random_documents(40, seed=4)]
    glue_files.prepare(tmp_path / "data", monkeypatch, {"train": texts}, files=3)
    manifest = run("tfds:tiny_corpus", vocab, tmp_path / "local")
    assert len(manifest.sources) == 3 and manifest.counts.documents == 40
    run("tfds:tiny_corpus", vocab, tmp_path / "beam", runner="beam")
    assert contents(tmp_path / "beam") == contents(tmp_path / "local")


def test_what_is_left_out_is_counted_alike(tmp_path, vocab, small_blocks):
    book = "\n".join(
        [
            "*** START OF THE PROJECT GUTENBERG EBOOK X ***",
            *["Some words of it.", ""] * 9,
            "*** END OF THE PROJECT",
            "x",
        ]
    )
    for name in "ab":
        (tmp_path / f"{name}.book").write_text(f"Title: {name}\n\n{book}")
    manifest = run(tmp_path / "*.book", vocab, tmp_path / "local", format="gutenberg", sentences="split")
    assert manifest.removed
    run(tmp_path / "*.book", vocab, tmp_path / "beam", format="gutenberg", sentences="split", runner="beam")
    assert contents(tmp_path / "beam") == contents(tmp_path / "local")


def test_blocks_in_any_order_are_laid_out_as_the_writer_does(monkeypatch):
    monkeypatch.setattr("bert_jax.data.preparation.writer.SHARD_TOKENS", 10)
    sizes = [
        BlockSize(source=0, offset=0, end=5, continues=False, tokens=9),
        BlockSize(source=0, offset=5, end=9, continues=False, tokens=9),
        BlockSize(source=0, offset=9, end=20, continues=True, tokens=4),  # stays, for it continues a document
        BlockSize(source=2, offset=0, end=7, continues=False, tokens=0),
        BlockSize(source=2, offset=7, end=8, continues=False, tokens=1),
    ]
    random.Random(0).shuffle(sizes)
    plans = list(planned_shards(sizes))
    expected = [((0, 0, False), (0, 5, False), (0, 9, True)), ((2, 0, False), (2, 7, False))]
    assert [plan.blocks for plan in plans] == expected
    with pytest.raises(UserError, match="source number 1 has changed"):
        list(planned_shards(size for size in sizes if (size.source, size.offset) != (0, 5)))


@contextlib.contextmanager
def counted(patch):
    """A list of the blocks that are encoded."""
    encoded, original = [], Encoder.__call__
    patch.setattr(
        Encoder, "__call__", lambda self, block, *rest: encoded.append(block.start) or original(self, block, *rest)
    )
    yield encoded


def test_a_pipeline_that_failed_is_continued(tmp_path, vocab, small_blocks, corpus, monkeypatch, capsys):
    run(corpus, vocab, tmp_path / "local")
    with monkeypatch.context() as patch, counted(patch) as blocks:
        write = beam.encoding.write_block

        def break_off(file, block):
            if len(blocks) > 20:
                raise OSError(28, "No space left on device")
            write(file, block)

        patch.setattr(beam.encoding, "write_block", break_off)
        with pytest.raises(UserError, match="No space left on device.*the same command resumes"):
            run(corpus, vocab, tmp_path / "beam", runner="beam")
        assert not (tmp_path / "beam" / "manifest.json").exists()
    with pytest.raises(UserError, match="unfinished.*options.sentences: lines → split"):
        run(corpus, vocab, tmp_path / "beam", runner="beam", sentences="split")
    with pytest.raises(UserError, match="started with --runner=beam"):
        run(corpus, vocab, tmp_path / "beam")
    damaged = sorted((tmp_path / "beam" / "beam").rglob("*.npz"))[3]
    damaged.write_bytes(damaged.read_bytes()[:-30])
    with monkeypatch.context() as patch, counted(patch) as again:
        run(corpus, vocab, tmp_path / "beam", runner="beam")
    assert "resuming" in capsys.readouterr().out
    with monkeypatch.context() as patch, counted(patch) as whole:
        run(corpus, vocab, tmp_path / "anew", runner="beam")
    assert len(again) == len(whole) - 20 + 1  # the damaged one
    for name in ("beam", "anew"):
        assert contents(tmp_path / name) == contents(tmp_path / "local")


def test_a_store_written_to_a_bucket_is_the_local_one(tmp_path, vocab, small_blocks, corpus):
    run(corpus, vocab, tmp_path / "local")
    with bucket(tmp_path / "cloud"):
        run(corpus, vocab, "gs://bucket/store", runner="beam")
        (tmp_path / "bad.txt").write_bytes(b"\xff")
        with pytest.raises(UserError, match="is not UTF-8"):
            run(tmp_path / "bad.txt", vocab, "gs://bucket/other", runner="beam")
    assert contents(tmp_path / "cloud" / "bucket" / "store") == contents(tmp_path / "local")
    assert not list((tmp_path / "cloud" / "bucket").rglob("other/*"))


@pytest.mark.parametrize("workers", [1, 2])
def test_bad_text_is_one_line_and_leaves_nothing(tmp_path, vocab, workers):
    (tmp_path / "a.txt").write_bytes(b"good text\n\n" * 500 + b"\xff")
    (tmp_path / "b.jsonl").write_text('{"text": "good"}\n{"other": "bad"}\n')
    for name, match in (("a.txt", "a.txt: byte 5500 "), ("b.jsonl", "b.jsonl:2: no field 'text'")):
        with pytest.raises(UserError, match=match):
            run(tmp_path / name, vocab, tmp_path / "store", workers=workers, runner="beam")
        assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    "options, match",
    [
        ({"runner": "local", "beam": ("name=p",)}, "--beam.name=p is an option of Apache Beam; give --runner=beam"),
        ({"beam": ("projct=p",)}, "no option 'projct'; perhaps you meant --beam.project"),
        ({"beam": ("=3",)}, "--beam.=3 names no option of Apache Beam"),
        ({"beam": ("num_workers=many",)}, "--num_workers: invalid int value: 'many'"),
        ({"beam": ("runner=Sparkle",)}, "beam.runner=Sparkle cannot be used: Unexpected pipeline runner"),
        ({"beam": ("runner=DataflowRunner",)}, "input=.*a.txt is on this machine, where Dataflow's workers are not"),
        (
            {
                "beam": ("runner=DataflowRunner",),
                "input": "gs://bucket/a.txt",
                "output": "gs://bucket/store",
                "clean": CleaningConfig(decontaminate="gs://bucket/dev.txt, dev.txt"),
            },
            "clean.decontaminate=dev.txt is on this machine, where Dataflow's workers are not",
        ),
        ({"beam": ("runner=FlinkRunner",), "workers": 4}, "workers=4 applies to this machine only; FlinkRunner"),
    ],
    ids=["local", "unknown", "nameless", "type", "runner", "paths", "evaluation", "workers"],
)
def test_options_that_cannot_be_meant(tmp_path, vocab, options, match):
    options = {"runner": "beam", "workers": 0, **options}
    corpus = options.pop("input", write_corpus(tmp_path / "a.txt", random_documents(3)))
    with pytest.raises(UserError, match=match):
        run(corpus, vocab, options.pop("output", tmp_path / "store"), **options)
    assert not (tmp_path / "store").exists()


def test_what_does_not_wait_for_the_pipeline_is_refused_and_an_unfinished_store_kept(
    tmp_path, vocab, small_blocks, corpus, monkeypatch
):
    with monkeypatch.context() as patched, pytest.raises(UserError, match="the same command resumes"):
        patched.setattr(beam, "planned_shards", lambda *_: 1 / 0)
        run(corpus, vocab, tmp_path / "store", runner="beam")
    unfinished = contents(tmp_path / "store")
    assert any("blocks" in name for name in unfinished)
    for option in ("template_location=gs://bucket/template", "dry_run=True", "no_wait_until_finish"):
        with pytest.raises(UserError, match=f"--beam.{option.split('=')[0]} would not wait for the end"):
            run(corpus, vocab, tmp_path / "store", runner="beam", beam=(option,))
        assert contents(tmp_path / "store") == unfinished


def test_beam_that_is_not_installed(tmp_path, vocab, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "apache_beam" else find(name))
    with pytest.raises(UserError, match=r"runner=beam needs apache_beam, which is not installed; .*bert_jax\[beam\]"):
        run(tmp_path / "a.txt", vocab, tmp_path / "store", runner="beam")


@pytest.mark.parametrize("runner", ["local", "beam"])
def test_a_cleaning_that_leaves_nothing_is_named(tmp_path, vocab, runner):
    write_corpus(tmp_path / "short.txt", [["a few words"]] * 7)
    removed = "removed all of .* in 1 source; documents removed: quality.gopher.few_words 7"
    with pytest.raises(UserError, match=removed):
        run(tmp_path / "short.txt", vocab, tmp_path / "store", runner=runner, clean=CleaningConfig(quality=("gopher",)))
    assert not (tmp_path / "store" / "manifest.json").exists()


def test_a_corpus_without_text(tmp_path, vocab):
    (tmp_path / "blank.txt").write_text(" \n\u200b\n\n\ufeff\0\r\n")
    with pytest.raises(UserError, match="holds no text"):
        run(tmp_path / "blank.txt", vocab, tmp_path / "store", runner="beam")
    assert not (tmp_path / "store").exists()


def test_a_store_begun_on_this_machine_is_left_to_it(tmp_path, vocab):
    corpus = write_corpus(tmp_path / "a.txt", random_documents(3))
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "progress.json").write_text("{}")
    with pytest.raises(UserError, match="started with --runner=local"):
        run(corpus, vocab, tmp_path / "store", runner="beam")
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["progress.json"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks for the worker processes under /proc")
def test_kill_and_run_again(tmp_path, vocab):
    corpus = write_corpus(tmp_path / "a.txt", random_documents(40_000))
    run(corpus, vocab, tmp_path / "local")
    command = [sys.executable, "-m", "bert_jax", "prepare", f"--input={corpus}", f"--vocab={vocab}"]
    command += ["--sentences=lines", f"--output={tmp_path / 'beam'}", "--runner=beam", "--workers=2"]
    process = subprocess.Popen(command)
    wait_until(lambda: len(list(tmp_path.rglob("*.npz"))) > 3, lambda: process.poll() is None)
    children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "beam" / "manifest.json").exists()
    wait_until(lambda: not any(map(alive, children)), said=lambda: "a worker outlived its parent")
    run(corpus, vocab, tmp_path / "beam", runner="beam", workers=2)
    assert contents(tmp_path / "beam") == contents(tmp_path / "local")


def alive(process: str) -> bool:
    return pathlib.Path(f"/proc/{process}").exists()


def test_options_of_the_guide_exist():
    guide = (pathlib.Path(__file__).parents[3] / "docs" / "beam.md").read_text()
    names = set(re.findall(r"--beam\.(\w+)=", guide))
    assert len(names) > 5 and names <= {"NAME", *PipelineOptions([]).get_all_options()}


WINDOW, HELD_OUT = 4, 0.1


@pytest.fixture(scope="module")
def counted_of_pairs(small_store, tmp_path_factory):
    directory = tmp_path_factory.mktemp("counts")
    write_pair_counts(open_store(small_store), directory, WINDOW, HELD_OUT)
    return directory


def by_loop(store) -> dict[tuple[int, int], fractions.Fraction]:
    """As `cooccur` with symmetric=1: a pair adds 1/d to both of its cells, which are one for a word beside itself."""
    found = collections.defaultdict(fractions.Fraction)
    left_out = held_out_documents(store.num_documents, HELD_OUT)
    for document in np.flatnonzero(~left_out):
        ids = store.tokens(np.arange(*store.document_tokens[document : document + 2])).tolist()
        for place, first in enumerate(ids):
            for distance, second in enumerate(ids[place + 1 : place + 1 + WINDOW], 1):
                share = fractions.Fraction(1, distance)
                found[min(first, second), max(first, second)] += 2 * share if first == second else share
    return found


def test_counts_are_those_of_a_loop(small_store, counted_of_pairs):
    store = open_store(small_store)
    expected, counts = by_loop(store), open_pair_counts(str(counted_of_pairs))
    assert counts.counted.pairs == len(expected) > 900
    first, second = np.array([*expected]).T
    wanted = np.array([float(value) for value in expected.values()])
    np.testing.assert_array_equal(counts.of(first, second), wanted.astype(np.float32))
    np.testing.assert_array_equal(counts.of(second, first), counts.of(first, second))
    every = counts.of(*np.indices((store.vocab_size, store.vocab_size)))
    assert (every > 0).sum() == sum(1 + (first != second) for first, second in expected)


def test_files_do_not_depend_on_how_the_text_is_divided(small_store, counted_of_pairs, tmp_path, monkeypatch):
    monkeypatch.setattr("bert_jax.corpus.duplicates.RUN_ROWS", 500)
    monkeypatch.setattr("bert_jax.corpus.duplicates.MERGE_ROWS", 700)
    write_pair_counts(open_store(small_store), tmp_path, WINDOW, HELD_OUT, block=997)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([MANIFEST, PAIRS, COUNTS])
    for name in (MANIFEST, PAIRS, COUNTS):
        assert (tmp_path / name).read_bytes() == (counted_of_pairs / name).read_bytes()


def test_the_command_counts_and_does_not_overwrite(small_store, counted_of_pairs, tmp_path, capsys):
    words = ["bert-jax", "count", str(small_store), f"--output={tmp_path / 'counts'}"]
    assert cli._run([*words, f"--window={WINDOW}", f"--held_out={HELD_OUT}"]) == 0
    assert (tmp_path / "counts" / PAIRS).read_bytes() == (counted_of_pairs / PAIRS).read_bytes()
    capsys.readouterr()
    for more, message in (
        ([], "exists and is not an empty directory"),
        (["--window=21"], "--window=21 must be from 1 to 20"),
        (["--held_out=1"], "--held_out=1.0 must be from 0 to below 1"),
    ):
        assert cli._run([*words, *more]) == 2
        said = capsys.readouterr().err
        assert message in said and said.count("\n") == 1


def test_counts_of_something_else_are_refused(small_store, counted_of_pairs, tmp_path):
    store, options = open_store(small_store), GloVeConfig(window=WINDOW, counts=str(counted_of_pairs))
    assert counts_for(options, store, HELD_OUT).counted.window == WINDOW
    with pytest.raises(UserError, match="window=4, and --objective.static_vectors.window is 5"):
        counts_for(dataclasses.replace(options, window=5), store, HELD_OUT)
    with pytest.raises(UserError, match="held_out=0.1, and the share that this run holds out is 0.2"):
        counts_for(options, store, 0.2)
    with pytest.raises(UserError, match="counts is missing: count the pairs"):
        counts_for(GloVeConfig(), store, HELD_OUT)
    with pytest.raises(UserError, match=r"no counts of pairs in .*nowhere .*bert-jax count"):
        counts_for(dataclasses.replace(options, counts=str(tmp_path / "nowhere")), store, HELD_OUT)


@pytest.mark.parametrize("name, message", [(PAIRS, "contents of .*pairs.bin have changed"), (MANIFEST, "is damaged")])
def test_damage_is_named(counted_of_pairs, tmp_path, name, message):
    for each in (PAIRS, COUNTS, MANIFEST):
        (tmp_path / each).write_bytes((counted_of_pairs / each).read_bytes())
    damaged = bytearray((tmp_path / name).read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (tmp_path / name).write_bytes(damaged)
    with pytest.raises(UserError, match=message):
        open_pair_counts(str(tmp_path))
    (tmp_path / name).write_bytes(damaged[:-1])
    with pytest.raises(UserError, match="damaged|bytes, but"):
        open_pair_counts(str(tmp_path))


def test_the_manifest_says_what_was_counted(small_store, counted_of_pairs):
    found = json.loads((counted_of_pairs / MANIFEST).read_text())
    expected = (WINDOW, HELD_OUT, open_store(small_store).fingerprint)
    assert (found["window"], found["held_out"], found["store"]) == expected


def test_counts_that_the_error_advises_are_those_that_the_run_needs(small_store, tmp_path, capsys):
    store, share = open_store(small_store), 0.25
    with pytest.raises(UserError, match="counts is missing") as refused:
        counts_for(GloVeConfig(window=3), store, share)
    advised, counts = re.findall(r"`(bert-jax count .*?)`", str(refused.value)), str(tmp_path / "counts")
    assert cli._run(shlex.split(advised[0].replace("=COUNTS", f"={counts}"))) == 0
    assert counts_for(GloVeConfig(window=3, counts=counts), store, share).counted.held_out == share


def test_negatives_are_drawn_by_the_counts_of_the_documents_of_training(small_store):
    store, share, wanted = open_store(small_store), 0.9, collections.Counter()
    held_out = held_out_documents(store.num_documents, share)
    for document, (begin, end) in enumerate(itertools.pairwise(store.document_tokens)):
        wanted.update([] if held_out[document] else store.tokens(np.arange(begin, end)).tolist())
    tokenizer = types.SimpleNamespace(pad_id=0)
    choose = places(SkipGram(), MaskingConfig(), store, cast(Any, tokenizer), 8, share)
    rows, keys = np.zeros((400, 8), np.int32), np.arange(400).astype(np.uint64)
    drawn = choose(rows, np.zeros(rows.shape, bool), np.zeros(400), keys)["negatives"]
    assert set(np.unique(drawn).tolist()) <= set(wanted)
    found = np.bincount(drawn.ravel(), minlength=store.vocab_size) / drawn.size
    powers = np.array([wanted[word] for word in range(store.vocab_size)]) ** 0.75
    # Four standard deviations of the most frequent of 25,600 words.
    assert np.abs(found - powers / powers.sum()).max() < 4 * np.sqrt(found.max() / drawn.size)
