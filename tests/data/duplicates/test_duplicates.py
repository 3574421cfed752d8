"""Near duplicates: signatures, their search, and a store without them."""

import errno
import itertools
import pathlib
import random
import signal
import subprocess
import sys

import numpy as np
import pytest
from cloud_bucket import bucket
from documents import contents, random_documents, run, write_corpus
from processes import wait_until

from bert_jax.config.corpora import CleaningConfig
from bert_jax.corpus import duplicates
from bert_jax.corpus.contamination import word_hashes
from bert_jax.corpus.duplicates import (
    EXACT,
    HASHES,
    LEAST_RECALL,
    NEAR,
    SHINGLE_WORDS,
    SHORTEST_PARAGRAPH,
    Banding,
    Groups,
    RecordWriter,
    Removals,
    band_keys,
    banding_for,
    block_records,
    find_duplicates,
    minimums,
    read_table,
    repeated,
    signature,
    similarity,
    sketches,
    sorted_rows,
)
from bert_jax.data.preparation import beam, local_run
from bert_jax.data.preparation import writer as store_writer
from bert_jax.data.store import open_store
from bert_jax.errors import UserError


def test_a_signature_is_that_of_the_set_of_five_words_in_a_row():
    words = "one two three four five six seven".split()
    text = " ".join(words)
    again = f"{text}. {' '.join(words).upper()}"  # adds the shingles that cross the middle
    assert (signature(word_hashes(text)) == signature(word_hashes("One, two — three: four (five) six seven!"))).all()
    assert (signature(word_hashes(text)) != signature(word_hashes(" ".join(reversed(words))))).all()
    assert (signature(word_hashes(again)) <= signature(word_hashes(text))).all()
    assert (signature(word_hashes("two words")) != signature(word_hashes("words two"))).all()
    assert signature(word_hashes("— …!")) is None


def test_the_estimate_is_that_of_the_sets_and_bands_meet_as_often_as_the_closed_form_says():
    """Pairs of sets of 200 random numbers, of which a known share is common; tolerances of four standard deviations."""
    draw, pairs, size = np.random.default_rng(0), 300, 200
    for wanted in (0.0, 0.3, 0.6, 0.8, 1.0):
        common = round(2 * size * wanted / (1 + wanted))
        truth = common / (2 * size - common)
        numbers = draw.integers(0, 2**32, (pairs, 2 * size - common), np.uint32)
        first, second = (
            np.stack([minimums(row[part]) for row in numbers]) for part in (slice(size), slice(size - common, None))
        )
        estimates = similarity(sketches(first), sketches(second))
        assert abs(estimates.mean() - truth) <= 4 * np.sqrt(0.25 / (pairs * HASHES))
        for banding in (Banding(18, 7), Banding(4, 3)):
            met = (band_keys(first, banding) == band_keys(second, banding)).any(axis=1).mean()
            expected = banding.probability(truth)
            assert abs(met - expected) <= 4 * np.sqrt(expected * (1 - expected) / pairs), (truth, banding)


@pytest.mark.parametrize("threshold, bands, rows", [(0.5, 42, 3), (0.8, 18, 7), (0.9, 10, 12), (1.0, 1, 128)])
def test_the_banding_has_the_most_rows_that_keep_the_recall(threshold, bands, rows):
    chosen = banding_for(threshold)
    assert (chosen.bands, chosen.rows) == (bands, rows)
    assert 1 - (1 - threshold**rows) ** bands >= LEAST_RECALL
    more = rows + 1
    assert more > HASHES or 1 - (1 - threshold**more) ** (HASHES // more) < LEAST_RECALL


@pytest.fixture
def small_memory(monkeypatch):
    """Everything happens in many parts, and runs are merged twice."""
    for module, name, value in (
        (duplicates, "RUN_ROWS", 50),
        (duplicates, "MERGE_ROWS", 16),
        (duplicates, "MOST_RUNS", 5),
        (duplicates, "CHUNK_ROWS", 17),
        (duplicates, "COMPARED_PAIRS", 3),
    ):
        monkeypatch.setattr(module, name, value)


def removed(directory, blocks, threshold=None):
    """[(document, why)], [(document, paragraph)] over all blocks of one source, numbered through."""
    banding = None if threshold is None else banding_for(threshold)
    writer = RecordWriter(directory, banding)
    for number, pieces in enumerate(blocks):
        writer.append(0, 1000 * number, block_records(pieces, banding))
    counts = writer.flush()
    writer.close()
    find_duplicates(read_table(directory, banding, counts), threshold, directory)
    removals, documents, paragraphs, before = Removals(directory), [], [], 0
    for number, pieces in enumerate(blocks):
        found = removals.of(0, 1000 * number)
        documents += [(before + document, why) for document, why in found.documents.items()]
        paragraphs += [(before + document, place) for document, place in sorted(found.paragraphs)]
        before += len(pieces)
    return documents, paragraphs


def shingles(lines):
    words = " ".join(lines).split()
    return {tuple(words[start : start + SHINGLE_WORDS]) for start in range(len(words) - SHINGLE_WORDS + 1)}


def jaccard(one, two):
    return len(one & two) / len(one | two)


def planted(count, seed=0):
    """Documents of 200 words, and of half of them a copy in which each word may be another."""
    draw = random.Random(seed)
    word = lambda: f"w{draw.randrange(5000)}"
    documents = [[" ".join(word() for _ in range(200))] for _ in range(count)]
    for lines in documents[: count // 2]:
        share = draw.choice((0.002, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1))
        copy = " ".join(word() if draw.random() < share else each for each in lines[0].split())
        documents.append([copy])
    draw.shuffle(documents)
    return documents


@pytest.mark.parametrize("width, most", [(1, 2**63), (2, 3), (3, 4)])
def test_rows_are_sorted_with_any_number_of_equal_ones(tmp_path, small_memory, width, most):
    rows = np.random.default_rng(0).integers(0, most, (997, width)).astype(np.uint64)
    chunks = list(sorted_rows(np.array_split(rows, 40), width, tmp_path))
    assert np.concatenate(chunks).tolist() == sorted(rows.tolist())
    assert len(chunks) > 50 and max(map(len, chunks)) <= duplicates.MERGE_ROWS
    assert not list(tmp_path.iterdir())
    assert list(sorted_rows([], width, tmp_path)) == []


def test_repeated_rows_are_found_across_chunks():
    rows = np.array([[key, number] for number, key in enumerate(sorted([1, 1, 1, 1, 2, 3, 3, 4, 4, 4]))], np.uint64)
    for size in (1, 2, 3, 10):
        found = [np.stack(columns, axis=1) for columns in repeated(np.split(rows, range(size, 10, size)), 1)]
        assert np.concatenate(found).tolist() == [[0, 0, 1], [0, 1, 2], [0, 2, 3], [5, 5, 6], [7, 7, 8], [7, 8, 9]]


def test_groups_are_the_components_of_the_graph(tmp_path):
    draw, groups, components = np.random.default_rng(0), Groups(tmp_path / "groups", 100), [{n} for n in range(100)]
    for _ in range(12):
        pairs = draw.integers(0, 100, (6, 2)).astype(np.uint64)
        groups.unite(*pairs.T)
        for one, two in pairs.tolist():
            joined = components[one] | components[two]
            for member in joined:
                components[member] = joined
        assert groups.first(np.arange(100)).tolist() == [min(component) for component in components]


def test_the_first_of_the_same_documents_and_paragraphs_stays(tmp_path, small_memory):
    long = {name: name * SHORTEST_PARAGRAPH for name in "abcdef"}
    blocks = [
        [[], [long["a"], "short", long["b"]], ["short"]],
        [[long["c"]], [long["a"], " short", long["b"] + " "], ["short"]],  # the same but for white space at ends
        [["other", long["b"], long["d"], long["d"]], [long["c"]]],
        [[], [], [long["a"][:-1], long["d"], "short", "short"]],
    ]
    documents, paragraphs = removed(tmp_path, blocks)
    assert documents == [(4, EXACT), (5, EXACT), (7, EXACT)]
    assert paragraphs == [(6, 1), (6, 3), (10, 1)]


def test_a_paragraph_is_not_removed_because_of_a_document_that_goes(tmp_path):
    """The second document goes as it is nearly the first; the third has a paragraph that only the second had."""
    draw = random.Random(0)
    words = [f"w{draw.randrange(10**6)}" for _ in range(400)]
    tail = " ".join(words[-40:])
    blocks = [[[" ".join(words)], [" ".join(words[:-40]), tail], ["another text", tail]]]
    assert len(tail) >= SHORTEST_PARAGRAPH
    assert removed(tmp_path, blocks, 0.8) == ([(1, NEAR)], [])
    assert removed(tmp_path, blocks)[1] == [(2, 1)]


def test_near_duplicates_are_those_of_exact_jaccard_but_for_the_error_of_the_estimate(tmp_path, small_memory):
    documents, threshold = planted(160), 0.8
    found = {number for number, why in removed(tmp_path, [documents[:100], documents[100:]], threshold)[0]}
    sets = [shingles(lines) for lines in documents]
    exact = {pair: jaccard(sets[pair[0]], sets[pair[1]]) for pair in itertools.combinations(range(len(sets)), 2)}
    for (_, second), value in exact.items():
        if value >= threshold + 0.12:  # 3.5 standard deviations above
            assert second in found
    assert all(max(exact[first, second] for first in range(second)) >= threshold - 0.12 for second in found)
    assert 20 < len(found) < 80


def test_groups_of_near_duplicates_reach_beyond_pairs(tmp_path):
    """Each text is near the next one, the first and the last are not: union over the corpus, whatever the order."""
    words = [f"w{number}" for number in range(700)]
    chain = [[" ".join(words[start : start + 500])] for start in range(0, 200, 20)]
    sets = [shingles(lines) for lines in chain]
    assert all(jaccard(one, two) > 0.9 for one, two in itertools.pairwise(sets)) and jaccard(sets[0], sets[-1]) < 0.5
    for order in (chain, chain[::-1], chain[1::2] + chain[::2]):
        assert [number for number, _ in removed(tmp_path, [order], 0.8)[0]] == list(range(1, 10))


def test_the_records_are_cut_where_a_killed_run_says(tmp_path, small_memory):
    """What was appended after the last flush may be there in part."""
    documents, banding = planted(40), banding_for(0.8)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for directory in (whole, broken):
        directory.mkdir()
    expected = removed(whole, [documents[:20], documents[20:]], 0.8)
    writer = RecordWriter(broken, banding)
    writer.append(0, 0, block_records(documents[:20], banding))
    counts = writer.flush()
    writer.append(0, 1000, block_records(documents[30:], banding))
    writer.close()
    with (broken / "bands").open("ab") as file:
        file.write(b"abc")
    writer = RecordWriter(broken, banding, counts)
    writer.append(0, 1000, block_records(documents[20:], banding))
    counts = writer.flush()
    writer.close()
    find_duplicates(read_table(broken, banding, counts), 0.8, broken)
    assert expected[0] and {path.name: path.read_bytes() for path in broken.iterdir()} == {
        path.name: path.read_bytes() for path in whole.iterdir()
    }
    with pytest.raises(UserError, match="has changed"):
        Removals(broken).of(0, 500)


DEDUPLICATED_NEAR, DEDUPLICATED_EXACT = CleaningConfig(deduplicate="near"), CleaningConfig(deduplicate="exact")


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


@pytest.mark.parametrize("clean", [DEDUPLICATED_EXACT, DEDUPLICATED_NEAR], ids=["exact", "near"])
def test_a_store_without_duplicates_is_that_of_the_other_documents(tmp_path, vocab, small_blocks, clean):
    documents = originals(9)
    write_corpus(tmp_path / "a.txt", with_duplicates(documents)[:12])
    write_corpus(tmp_path / "b.txt", with_duplicates(documents)[12:])
    manifest = run(f"{tmp_path}/a.txt,{tmp_path}/b.txt", vocab, tmp_path / "store", clean=clean)
    run(write_corpus(tmp_path / "c.txt", expected(documents, clean == DEDUPLICATED_NEAR)), vocab, tmp_path / "kept")
    store, kept = open_store(tmp_path / "store"), open_store(tmp_path / "kept")
    assert manifest.counts == kept.manifest.counts
    for part in ("tokens", "sentence_starts"):
        everything = np.arange(getattr(store, "num_tokens" if part == "tokens" else "num_sentences"))
        assert getattr(store, part)(everything).tolist() == getattr(kept, part)(everything).tolist()
    assert store.document_sentences.tolist() == kept.document_sentences.tolist()
    removed = {each.step: (each.documents, each.paragraphs) for each in manifest.cleaning}
    assert removed == {
        "deduplicate.documents": (3, 0),
        **({"deduplicate.near": (3, 0)} if clean == DEDUPLICATED_NEAR else {}),
        "deduplicate.paragraphs": (0, 3 if clean == DEDUPLICATED_NEAR else 6),
    }
    assert all(each.characters and each.samples for each in manifest.cleaning)


def test_a_corpus_without_duplicates_is_as_it_was(tmp_path, vocab, small_blocks):
    """Documents longer than a block, and short sentences that recur, among them."""
    corpus = write_corpus(tmp_path / "a.txt", [*random_documents(40), ["a b c"], ["a b c", "d"], ["a b c", "e"]])
    plain, same = (
        run(corpus, vocab, tmp_path / clean.deduplicate, clean=clean)
        for clean in (CleaningConfig(), DEDUPLICATED_EXACT)
    )
    assert plain.counts == same.counts and not same.cleaning
    assert [file.sha256 for file in plain.files] == [file.sha256 for file in same.files]


@pytest.fixture
def corpus(tmp_path):
    write_corpus(tmp_path / "a.txt", with_duplicates(originals(12)))
    write_corpus(tmp_path / "b.txt", with_duplicates(originals(12, seed=3)) + originals(12)[:5])
    return f"{tmp_path}/a.txt,{tmp_path}/b.txt"


@pytest.mark.usefixtures("forked_workers")
def test_any_number_of_workers_and_interruptions_make_one_store(tmp_path, vocab, small_blocks, corpus, monkeypatch):
    """Interrupted while records are made, while they are searched, when all is found, and while text is encoded."""
    for workers in (1, 2):
        run(corpus, vocab, tmp_path / f"by_{workers}", clean=DEDUPLICATED_NEAR, workers=workers)
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
            run(corpus, vocab, tmp_path / "resumed", clean=DEDUPLICATED_NEAR)
    with pytest.raises(UserError, match=r"made from something else \(.*near_threshold"):
        run(corpus, vocab, tmp_path / "resumed", clean=CleaningConfig(deduplicate="near", near_threshold=0.9))
    run(corpus, vocab, tmp_path / "resumed", clean=DEDUPLICATED_NEAR)
    assert contents(tmp_path / "by_1") == contents(tmp_path / "by_2") == contents(tmp_path / "resumed")
    records_made = len(counted)
    counted.clear()
    run(corpus, vocab, tmp_path / "whole", clean=DEDUPLICATED_NEAR)
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
def test_a_full_disk_is_one_line_and_resumed(tmp_path, vocab, small_blocks, corpus, monkeypatch, module, name, calls):
    full = OSError(errno.ENOSPC, "No space left on device")
    with monkeypatch.context() as patched, pytest.raises(UserError, match="No space left on device"):
        interrupt_after(patched, module, name, calls, full)
        run(corpus, vocab, tmp_path / "store", clean=DEDUPLICATED_NEAR)
    assert not (tmp_path / "store" / "manifest.json").exists()
    run(corpus, vocab, tmp_path / "store", clean=DEDUPLICATED_NEAR)
    run(corpus, vocab, tmp_path / "whole", clean=DEDUPLICATED_NEAR)
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
def test_what_was_damaged_meanwhile_is_made_again(tmp_path, vocab, small_blocks, corpus, monkeypatch, stage, name):
    """Records that are too short, as after a loss of power, and a result in which a bit has changed."""
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        interrupt_after(patched, local_run, stage, 0)
        run(corpus, vocab, tmp_path / "damaged", clean=DEDUPLICATED_NEAR)
    file = tmp_path / "damaged" / "duplicates" / name
    data = file.read_bytes()
    file.write_bytes(data[:-8] if name == "bands" else bytes([data[0] ^ 1]) + data[1:])
    run(corpus, vocab, tmp_path / "damaged", clean=DEDUPLICATED_NEAR)
    run(corpus, vocab, tmp_path / "whole", clean=DEDUPLICATED_NEAR)
    assert contents(tmp_path / "damaged") == contents(tmp_path / "whole")


@pytest.mark.parametrize("threshold", [0.49, 1.01, float("nan")])
def test_a_threshold_that_makes_no_sense_is_one_line(tmp_path, vocab, threshold):
    corpus = write_corpus(tmp_path / "a.txt", random_documents(3))
    with pytest.raises(UserError, match=r"clean.near_threshold=\S+ must be from 0.5 to 1; 0.8 is usual"):
        run(corpus, vocab, tmp_path / "store", clean=CleaningConfig(deduplicate="near", near_threshold=threshold))
    assert not (tmp_path / "store").exists()


@pytest.mark.slow
@pytest.mark.parametrize("clean", [DEDUPLICATED_EXACT, DEDUPLICATED_NEAR], ids=["exact", "near"])
def test_a_pipeline_of_beam_removes_the_same(tmp_path, vocab, small_blocks, corpus, clean, monkeypatch):
    """Also one that failed once the search had begun, and one whose output is in a bucket."""
    manifest = run(corpus, vocab, tmp_path / "local", clean=clean)
    assert {each.step for each in manifest.cleaning} >= {"deduplicate.documents", "deduplicate.paragraphs"}
    with monkeypatch.context() as patched, pytest.raises(UserError, match="resumes"):
        patched.setattr(beam, "find_duplicates", lambda *_: 1 / 0)
        run(corpus, vocab, tmp_path / "beam", clean=clean, runner="beam")
    assert not list((tmp_path / "beam" / "beam").glob("blocks/*/*"))
    monkeypatch.setattr(beam, "make_recorder", lambda _: lambda block: 1 / 0)  # the records are there
    assert run(corpus, vocab, tmp_path / "beam", clean=clean, runner="beam") == manifest
    monkeypatch.undo()
    assert contents(tmp_path / "beam") == contents(tmp_path / "local")
    with bucket(tmp_path / "cloud"):
        run(corpus, vocab, "gs://bucket/store", clean=clean, runner="beam")
    assert contents(tmp_path / "cloud" / "bucket" / "store") == contents(tmp_path / "local")
