"""`bert-jax count` against a loop over the tokens of every document, and what is refused."""

import collections
import dataclasses
import fractions
import json

import numpy as np
import pytest

from bert_jax import cli
from bert_jax.config.objective import GloVeConfig
from bert_jax.data.neighbours import counts_for
from bert_jax.data.pair_counts import COUNTS, MANIFEST, PAIRS, open_pair_counts, write_pair_counts
from bert_jax.data.store import open_store
from bert_jax.errors import UserError
from bert_jax.randomness import held_out_documents

WINDOW, HELD_OUT = 4, 0.1


@pytest.fixture(scope="module")
def counted(small_store, tmp_path_factory):
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


def test_counts_are_those_of_a_loop(small_store, counted):
    store = open_store(small_store)
    expected, counts = by_loop(store), open_pair_counts(str(counted))
    assert counts.counted.pairs == len(expected) > 900
    first, second = np.array([*expected]).T
    wanted = np.array([float(value) for value in expected.values()])
    np.testing.assert_array_equal(counts.of(first, second), wanted.astype(np.float32))
    np.testing.assert_array_equal(counts.of(second, first), counts.of(first, second))
    every = counts.of(*np.indices((store.vocab_size, store.vocab_size)))
    assert (every > 0).sum() == sum(1 + (first != second) for first, second in expected)


def test_files_do_not_depend_on_how_the_text_is_divided(small_store, counted, tmp_path, monkeypatch):
    monkeypatch.setattr("bert_jax.corpus.duplicates.RUN_ROWS", 500)
    monkeypatch.setattr("bert_jax.corpus.duplicates.MERGE_ROWS", 700)
    write_pair_counts(open_store(small_store), tmp_path, WINDOW, HELD_OUT, block=997)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([MANIFEST, PAIRS, COUNTS])
    for name in (MANIFEST, PAIRS, COUNTS):
        assert (tmp_path / name).read_bytes() == (counted / name).read_bytes()


def test_the_command_counts_and_does_not_overwrite(small_store, counted, tmp_path, capsys):
    words = ["bert-jax", "count", str(small_store), f"--output={tmp_path / 'counts'}"]
    assert cli._run([*words, f"--window={WINDOW}", f"--held_out={HELD_OUT}"]) == 0
    assert (tmp_path / "counts" / PAIRS).read_bytes() == (counted / PAIRS).read_bytes()
    capsys.readouterr()
    for more, message in (
        ([], "exists and is not an empty directory"),
        (["--window=21"], "--window=21 must be from 1 to 20"),
        (["--held_out=1"], "--held_out=1.0 must be from 0 to below 1"),
    ):
        assert cli._run([*words, *more]) == 2
        said = capsys.readouterr().err
        assert message in said and said.count("\n") == 1


def test_counts_of_something_else_are_refused(small_store, counted, tmp_path):
    store, options = open_store(small_store), GloVeConfig(window=WINDOW, counts=str(counted))
    assert counts_for(options, store, HELD_OUT).counted.window == WINDOW
    with pytest.raises(UserError, match="window=4, and --objective.static_vectors.window is 5"):
        counts_for(dataclasses.replace(options, window=5), store, HELD_OUT)
    with pytest.raises(UserError, match="held_out=0.1, and --data.held_out.* is 0.2"):
        counts_for(options, store, 0.2)
    with pytest.raises(UserError, match="counts is missing: count the pairs"):
        counts_for(GloVeConfig(), store, HELD_OUT)
    with pytest.raises(UserError, match=r"no counts of pairs in .*nowhere .*bert-jax count"):
        counts_for(dataclasses.replace(options, counts=str(tmp_path / "nowhere")), store, HELD_OUT)


@pytest.mark.parametrize("name, message", [(PAIRS, "contents of .*pairs.bin have changed"), (MANIFEST, "is damaged")])
def test_damage_is_named(counted, tmp_path, name, message):
    for each in (PAIRS, COUNTS, MANIFEST):
        (tmp_path / each).write_bytes((counted / each).read_bytes())
    damaged = bytearray((tmp_path / name).read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (tmp_path / name).write_bytes(damaged)
    with pytest.raises(UserError, match=message):
        open_pair_counts(str(tmp_path))
    (tmp_path / name).write_bytes(damaged[:-1])
    with pytest.raises(UserError, match="damaged|bytes, but"):
        open_pair_counts(str(tmp_path))


def test_the_manifest_says_what_was_counted(small_store, counted):
    found = json.loads((counted / MANIFEST).read_text())
    assert (found["window"], found["held_out"], found["store"]) == (
        WINDOW,
        HELD_OUT,
        open_store(small_store).fingerprint,
    )
