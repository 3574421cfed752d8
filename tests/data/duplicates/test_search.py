"""Duplicates that are found in records on disk, beside a search of all pairs in memory."""

import itertools
import random

import numpy as np
import pytest

from bert_jax.corpus import duplicates
from bert_jax.corpus.duplicates import (
    EXACT,
    NEAR,
    SHINGLE_WORDS,
    SHORTEST_PARAGRAPH,
    Groups,
    RecordWriter,
    Removals,
    banding_for,
    block_records,
    find_duplicates,
    read_table,
    repeated,
    sorted_rows,
)
from bert_jax.errors import UserError


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
