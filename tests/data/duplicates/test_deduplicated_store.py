"""A store of a corpus with planted duplicates is the store of the corpus without them."""

import errno
import pathlib
import random
import signal
import subprocess
import sys

import numpy as np
import pytest
from cloud_bucket import bucket
from letter_corpus import contents, random_documents, run, write_corpus
from processes import wait_until

from bert_jax.config.corpora import CleaningConfig
from bert_jax.corpus import duplicates
from bert_jax.data.preparation import beam, local_run
from bert_jax.data.preparation import writer as store_writer
from bert_jax.data.store import open_store
from bert_jax.errors import UserError

NEAR, EXACT = CleaningConfig(deduplicate="near"), CleaningConfig(deduplicate="exact")


def word(draw):
    return "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=4))


def originals(count, seed=0):
    """Documents of two paragraphs, together of 160 words."""
    draw = random.Random(seed)
    return [[" ".join(word(draw) for _ in range(size)) for size in (40, 120)] for _ in range(count)]


def with_duplicates(documents):
    """The documents, each followed later by a copy of it, by one in which a word differs, or by a paragraph of it."""
    draw, copies = random.Random(1), []
    for index, (first, second) in enumerate(documents):
        words = second.split()
        words[50] = word(draw)
        copies.append(([first, second], [first, " ".join(words)], [word(draw), first, word(draw)])[index % 3])
    return [*documents, *copies]


def expected(documents, near):
    """What stays of `with_duplicates(documents)`."""
    kept, copies = [], with_duplicates(documents)[len(documents) :]
    for index, ((first, _), copy) in enumerate(zip(documents, copies, strict=True)):
        if index % 3 == 1 and not near:
            kept.append(copy[1:])  # the first paragraph is the same
        elif index % 3 == 2:
            kept.append([line for line in copy if line != first])
    return [*documents, *kept]


@pytest.mark.parametrize("clean", [EXACT, NEAR], ids=["exact", "near"])
def test_a_store_without_duplicates_is_that_of_the_other_documents(tmp_path, vocab, small_blocks, clean):
    documents = originals(9)
    write_corpus(tmp_path / "a.txt", with_duplicates(documents)[:12])
    write_corpus(tmp_path / "b.txt", with_duplicates(documents)[12:])
    manifest = run(f"{tmp_path}/a.txt,{tmp_path}/b.txt", vocab, tmp_path / "store", clean=clean)
    run(write_corpus(tmp_path / "c.txt", expected(documents, clean == NEAR)), vocab, tmp_path / "kept")
    store, kept = open_store(tmp_path / "store"), open_store(tmp_path / "kept")
    assert manifest.counts == kept.manifest.counts
    for part in ("tokens", "sentence_starts"):
        everything = np.arange(getattr(store, "num_tokens" if part == "tokens" else "num_sentences"))
        assert getattr(store, part)(everything).tolist() == getattr(kept, part)(everything).tolist()
    assert store.document_sentences.tolist() == kept.document_sentences.tolist()
    removed = {each.step: (each.documents, each.paragraphs) for each in manifest.cleaning}
    assert removed == {
        "deduplicate.documents": (3, 0),
        **({"deduplicate.near": (3, 0)} if clean == NEAR else {}),
        "deduplicate.paragraphs": (0, 3 if clean == NEAR else 6),
    }
    assert all(each.characters and each.samples for each in manifest.cleaning)


def test_a_corpus_without_duplicates_is_as_it_was(tmp_path, vocab, small_blocks):
    """Documents longer than a block, and short sentences that recur, among them."""
    corpus = write_corpus(tmp_path / "a.txt", [*random_documents(40), ["a b c"], ["a b c", "d"], ["a b c", "e"]])
    plain, same = (run(corpus, vocab, tmp_path / clean.deduplicate, clean=clean) for clean in (CleaningConfig(), EXACT))
    assert plain.counts == same.counts and not same.cleaning
    assert [file.sha256 for file in plain.files] == [file.sha256 for file in same.files]


@pytest.fixture
def corpus(tmp_path):
    write_corpus(tmp_path / "a.txt", with_duplicates(originals(12)))
    write_corpus(tmp_path / "b.txt", with_duplicates(originals(12, seed=3)) + originals(12)[:5])
    return f"{tmp_path}/a.txt,{tmp_path}/b.txt"


def test_any_number_of_workers_and_interruptions_make_the_same_store(
    tmp_path, vocab, small_blocks, corpus, monkeypatch
):
    """Interrupted while records are made, while they are searched, when all is found, and while text is encoded."""
    for workers in (1, 2):
        run(corpus, vocab, tmp_path / f"by_{workers}", clean=NEAR, workers=workers)
    monkeypatch.setattr(local_run, "RECORD_SECONDS", 0)
    monkeypatch.setattr(local_run, "RECORD_SECONDS", 0)
    counted = []
    count_calls(monkeypatch, counted)
    for module, name, calls in (
        (local_run, "block_records", 10),
        (local_run, "find_duplicates", 0),
        (local_run, "remove_records", 0),
        (local_run, "merged", 5),
    ):
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            interrupt_after(patched, module, name, calls)
            run(corpus, vocab, tmp_path / "resumed", clean=NEAR)
    with pytest.raises(UserError, match=r"made from something else \(.*near_threshold"):
        run(corpus, vocab, tmp_path / "resumed", clean=CleaningConfig(deduplicate="near", near_threshold=0.9))
    run(corpus, vocab, tmp_path / "resumed", clean=NEAR)
    assert contents(tmp_path / "by_1") == contents(tmp_path / "by_2") == contents(tmp_path / "resumed")
    records_made = len(counted)
    counted.clear()
    run(corpus, vocab, tmp_path / "whole", clean=NEAR)
    assert len(counted) == records_made > 20


KILLED = """
import sys
from bert_jax.config import PrepareConfig
from bert_jax.config.corpora import CleaningConfig
from bert_jax.corpus import blocks as text_blocks
from bert_jax.data.preparation import local_run as duplicate_search, local_run, prepare, writer
text_blocks.BLOCK_BYTES = 1000
writer.SHARD_TOKENS = 20_000
duplicate_search.RECORD_SECONDS = local_run.RECORD_SECONDS = 0
if __name__ == "__main__":
    corpus, vocab, output, evaluation = sys.argv[1:]
    clean = CleaningConfig(unicode="repair", contacts="remove", deduplicate="near", decontaminate=evaluation)
    options = dict(input=corpus, vocab=vocab, output=output, sentences="lines", workers=2, clean=clean)
    prepare.run_prepare(PrepareConfig(**options))
"""


def written(paths):
    return sum(path.stat().st_size for path in paths if path.exists())


@pytest.mark.slow
def test_a_cleaned_store_is_the_same_after_kill_9(tmp_path, vocab, small_blocks):
    """Killed at two points while records are made, and at two while text is encoded."""
    documents = originals(500)
    corpus = write_corpus(tmp_path / "a.txt", with_duplicates(documents))
    (tmp_path / "dev.txt").write_text("\n".join(lines[1] for lines in documents[::40]))
    (tmp_path / "killed.py").write_text(KILLED)
    store = tmp_path / "killed"
    command = [sys.executable, str(tmp_path / "killed.py"), corpus, vocab, str(store), str(tmp_path / "dev.txt")]
    records, tokens = lambda: [store / "duplicates" / "documents"], lambda: store.glob("shard-*.tokens")
    for files, size in ((records, 5_000), (records, 12_000), (tokens, 50_000), (tokens, 300_000)):
        process = subprocess.Popen(command)
        wait_until(lambda files=files, size=size: written(files()) > size, lambda p=process: p.poll() is None)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not (store / "manifest.json").exists()
    run(corpus, vocab, store, clean=cleaned(tmp_path / "dev.txt"))
    whole = run(corpus, vocab, tmp_path / "whole", clean=cleaned(tmp_path / "dev.txt"))
    assert contents(store) == contents(tmp_path / "whole")
    steps = {each.step for each in whole.cleaning}
    assert {"decontaminate", "deduplicate.documents", "deduplicate.near", "deduplicate.paragraphs"} <= steps


def cleaned(evaluation: pathlib.Path) -> CleaningConfig:
    return CleaningConfig(unicode="repair", contacts="remove", deduplicate="near", decontaminate=str(evaluation))


@pytest.mark.parametrize(
    ("module", "name", "calls"),
    [
        (duplicates.RecordWriter, "append", 10),
        (duplicates.RecordWriter, "flush", 0),
        (duplicates, "sorted_rows", 1),
        (local_run, "remove_records", 0),
        (store_writer.StoreWriter, "append", 5),
    ],
)
def test_a_full_disk_is_one_line_and_the_same_command_resumes(
    tmp_path, vocab, small_blocks, corpus, monkeypatch, module, name, calls
):
    full = OSError(errno.ENOSPC, "No space left on device")
    with monkeypatch.context() as patched, pytest.raises(UserError, match="No space left on device") as error:
        interrupt_after(patched, module, name, calls, full)
        run(corpus, vocab, tmp_path / "store", clean=NEAR)
    assert "\n" not in str(error.value) and not (tmp_path / "store" / "manifest.json").exists()
    run(corpus, vocab, tmp_path / "store", clean=NEAR)
    run(corpus, vocab, tmp_path / "whole", clean=NEAR)
    assert contents(tmp_path / "store") == contents(tmp_path / "whole")


def interrupt_after(patched, module, name, calls, error=KeyboardInterrupt):
    """Let a function be called so many times, and raise an error at the next call."""
    original, left = getattr(module, name), iter(range(calls))

    def interrupted(*arguments):
        if next(left, None) is None:
            raise error
        return original(*arguments)

    patched.setattr(module, name, interrupted)


def count_calls(patched, counted):
    """Add to a list for each block of which records are made."""
    original = local_run.block_records
    patched.setattr(local_run, "block_records", lambda *given: counted.append(1) or original(*given))


@pytest.mark.parametrize(
    ("stage", "name"),
    [("find_duplicates", "bands"), ("remove_records", "removed_documents")],
    ids=["records", "result"],
)
def test_what_was_damaged_since_an_interruption_is_made_again(
    tmp_path, vocab, small_blocks, corpus, monkeypatch, stage, name
):
    """Records that are too short, as after a loss of power, and a result in which a bit has changed."""
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        interrupt_after(patched, local_run, stage, 0)
        run(corpus, vocab, tmp_path / "damaged", clean=NEAR)
    file = tmp_path / "damaged" / "duplicates" / name
    data = file.read_bytes()
    file.write_bytes(data[:-8] if name == "bands" else bytes([data[0] ^ 1]) + data[1:])
    run(corpus, vocab, tmp_path / "damaged", clean=NEAR)
    run(corpus, vocab, tmp_path / "whole", clean=NEAR)
    assert contents(tmp_path / "damaged") == contents(tmp_path / "whole")


@pytest.mark.parametrize("threshold", [0.49, 1.01, float("nan")])
def test_a_threshold_that_makes_no_sense_is_one_line(tmp_path, vocab, threshold):
    corpus = write_corpus(tmp_path / "a.txt", random_documents(3))
    with pytest.raises(UserError, match=r"clean.near_threshold=\S+ must be from 0.5 to 1; 0.8 is usual"):
        run(corpus, vocab, tmp_path / "store", clean=CleaningConfig(deduplicate="near", near_threshold=threshold))
    assert not (tmp_path / "store").exists()


@pytest.mark.slow
@pytest.mark.parametrize("clean", [EXACT, NEAR], ids=["exact", "near"])
def test_a_pipeline_of_beam_removes_the_same(tmp_path, vocab, small_blocks, corpus, clean, monkeypatch):
    """Also one that failed once the search had begun, and one whose output is in a bucket."""
    manifest = run(corpus, vocab, tmp_path / "local", clean=clean)
    assert {each.step for each in manifest.cleaning} >= {"deduplicate.documents", "deduplicate.paragraphs"}
    with monkeypatch.context() as patched, pytest.raises(UserError, match="resumes"):
        patched.setattr(beam, "find_duplicates", lambda *_: 1 / 0)
        run(corpus, vocab, tmp_path / "beam", clean=clean, runner="beam")
    assert not list((tmp_path / "beam" / "beam").glob("blocks/*/*"))
    monkeypatch.setattr(beam, "write_arrays", lambda *_: 1 / 0)  # the records are there
    assert run(corpus, vocab, tmp_path / "beam", clean=clean, runner="beam") == manifest
    monkeypatch.undo()
    assert contents(tmp_path / "beam") == contents(tmp_path / "local")
    with bucket(tmp_path / "cloud"):
        run(corpus, vocab, "gs://bucket/store", clean=clean, runner="beam")
    assert contents(tmp_path / "cloud" / "bucket" / "store") == contents(tmp_path / "local")
