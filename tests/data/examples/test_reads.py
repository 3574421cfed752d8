"""Where a document is read, against a search through everything that is read."""

import dataclasses
import json

import numpy as np
import pytest
from synthetic_store import (
    PAIRS,
    SyntheticStore,
    documents_of,
    make_config,
    make_examples,
    random_documents,
    write_store,
)

from bert_jax.config import PhaseConfig, resolve_phases
from bert_jax.config.options import to_dict
from bert_jax.data.mixtures import GRAINS, Mixture, assign, assigned, grains, read_before
from bert_jax.data.reads import Passage, documents_at, passages_with, reads_of, whole
from bert_jax.data.store import open_store
from bert_jax.errors import UserError
from bert_jax.tools.course import read_course, trace
from bert_jax.training_data import Examples

DOCUMENTS = (0, 7, 23, 41, 43, 46)  # the last are a word, a sentence of many rows, sentences longer than a row
BEGIN, END = 100, 900


@pytest.fixture(scope="module")
def store():
    store = SyntheticStore(random_documents(40, mean_sentences=6))
    store.fingerprint = "f" * 64
    return store


def searched(examples, store, positions) -> np.ndarray:
    """Position, epoch, first place and number of tokens of every document in each row, one line per read."""
    epochs, indices = examples.locate(positions)
    tokens = examples.rows(epochs, indices).token_index
    row, place = np.nonzero(tokens >= 0)
    document = documents_of(store, tokens[row, place])
    lines, first, count = np.unique(np.stack([document, row], 1), axis=0, return_index=True, return_counts=True)
    document, row = lines.T
    return np.stack([document, positions[row], epochs[row], place[first], count], 1)


@pytest.mark.parametrize("repeated", [{}, {"copies": 3}, {"static_masks": 2}], ids=["new", "copies", "static"])
@pytest.mark.parametrize("packing", ["off", "on"])
@pytest.mark.parametrize("pairs", PAIRS)
def test_reads_are_those_that_a_search_finds(store, monkeypatch, pairs, packing, repeated):
    monkeypatch.setattr("bert_jax.data.packing.GROUP_TEXTS", 100)  # several groups in an epoch
    examples = make_examples(store, "train", held_out=0.1, sentence_pairs=pairs, packing=packing, **repeated)
    everything = searched(examples, store, np.arange(BEGIN, END))
    read = 0
    for document in DOCUMENTS:
        found = reads_of(examples, store, whole(store, document), BEGIN, END)
        lines = np.stack([found.positions, found.epochs, found.first_places, found.num_tokens], 1)
        np.testing.assert_array_equal(lines, everything[everything[:, 0] == document, 1:])
        assert (found.last_tokens - found.first_tokens + 1 >= found.num_tokens).all()
        read += len(found)
    assert read
    some = np.array([BEGIN, END - 1, 500])
    for position, row in zip(some, documents_at(examples, some), strict=True):
        assert set(row.documents) == set(everything[everything[:, 1] == position, 0])


@pytest.mark.parametrize("weights", [(1,), (1, 1), (5, 0, 3, 2, 1e-9), (1, 2, 3, 4, 5, 6, 7)])
def test_a_mixture_is_undone(weights):
    counts, positions = grains(np.array(weights, float)), np.r_[:4000, GRAINS - 300 : GRAINS + 900]
    number, own = assign(positions, counts)
    for index in range(len(weights)):
        here = number == index
        if counts[index]:
            np.testing.assert_array_equal(assigned(own[here], index, counts), positions[here])
        for position in (0, 1, 17, 3999):
            assert read_before(position, index, counts) == (number[:position] == index).sum()


def test_a_document_of_a_mixture_is_found(store):
    sources = {name: make_examples(store, "train", seed, held_out=0.1) for seed, name in enumerate(("one", "two"))}
    other = SyntheticStore(random_documents(20), seed=1)
    other.fingerprint = "e" * 64
    sources["other"] = make_examples(other, "train", held_out=0.1)
    mixture = Mixture(sources, np.array([0.2, 0.3, 0.5]))
    number, own = assign(np.arange(BEGIN, END), mixture.grains)
    for document in DOCUMENTS:
        found = reads_of(mixture, store, whole(store, document), BEGIN, END)  # which is in two of the sources
        wanted = []
        for index, name in enumerate(("one", "two")):
            here = np.flatnonzero(number == index)
            lines = searched(sources[name], store, own[here])
            at = dict(zip(own[here], here + BEGIN, strict=True))
            wanted += [at[line[1]] for line in lines if line[0] == document]
        assert found.positions.tolist() == sorted(wanted)
    rows = documents_at(mixture, np.arange(BEGIN, BEGIN + 50))
    assert [row.store for row in rows] == [list(sources)[index] for index in number[:50]]


@pytest.mark.parametrize("steps", [2_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_the_steps_of_a_document_are_those_of_a_search_through_simulated_steps(store, tmp_path, steps):
    """Of a run in two phases, whose second has a batch that grows; its directory says what it does."""
    path = write_store(store, tmp_path / "store", documents_per_shard=20)
    first, ramp, last = steps * 7 // 10, steps // 10 + 1, steps * 2 // 10 - 1
    config = make_config(sequence_length=16, held_out=0.1)
    config = dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, path=str(path)),
        workdir=str(tmp_path / "run"),
        phases=(
            PhaseConfig(steps=first, sequence_length=24, batch_size=1),
            PhaseConfig(steps=ramp + last, sequence_length=16, batch_size=2, ramp_batch_sizes=(1,), ramp_steps=ramp),
        ),
    )
    opened = open_store(path)
    (tmp_path / "run").mkdir()
    run = {"run_id": "1", "starts": [], "store_fingerprint": opened.fingerprint}
    for name, content in (("config.json", to_dict(config)), ("run.json", run)):
        (tmp_path / "run" / name).write_text(json.dumps(content))
    sizes = np.repeat([1, 1, 2], [first, ramp, last])
    step_of = np.repeat(np.arange(1, steps + 1), sizes)
    row_of = np.concatenate([np.zeros(first + ramp, int), np.tile([0, 1], last)])
    simulated = []
    for phase, begin, count in zip(resolve_phases(config), (0, first), (first, len(step_of) - first), strict=True):
        examples = Examples(opened, config, phase, seed=phase.data_seed)
        for at in range(0, count, 8192):
            lines = searched(examples, store, np.arange(at, min(at + 8192, count)))
            lines[:, 1] += begin
            simulated.append(np.insert(lines, 5, phase.index, axis=1))
    simulated = np.concatenate(simulated)
    held_out = set(range(store.num_documents)) - {*simulated[:, 0].tolist()}
    documents = [*DOCUMENTS, min(held_out)]
    course = read_course(config.workdir)
    assert course.last == 0 and course.stretches[-1].end == steps
    for found in trace(course, opened, str(path), [whole(opened, each) for each in documents], ()):
        document = found.passage.document
        wanted = simulated[simulated[:, 0] == document]
        columns = {
            "step": step_of[wanted[:, 1]],
            "row": row_of[wanted[:, 1]],
            "phase": wanted[:, 5],
            "epoch": wanted[:, 2],
            "first_place": wanted[:, 3],
            "tokens": wanted[:, 4],
        }
        for name, values in columns.items():
            assert [step[name] for step in found.steps] == values.tolist(), (document, name)
        assert found.held_out == (document in held_out) == (not found.steps)


def test_passages_are_found_by_their_words_and_read_where_they_are(small_store):
    store = open_store(small_store)
    tokenizer, start = store.tokenizer(), int(store.document_tokens[17])
    text = tokenizer.decode(store.tokens(np.arange(start + 11, start + 21)))
    assert Passage(17, 11, 21) in passages_with(store, text) and len(passages_with(store, "the")) == 20
    for words in ("", "zebra crossing"):
        with pytest.raises(UserError, match="words="):
            passages_with(store, words)
    examples = make_examples(store, "train", held_out=0.0, sentence_pairs="none")
    positions = np.arange(examples.num_examples(0))
    tokens = examples.rows(np.zeros_like(positions), positions).token_index - start
    inside = (tokens >= 11) & (tokens < 21)
    order = examples.positions_of(0, positions)
    found = reads_of(examples, store, Passage(17, 11, 21), 0, len(positions))
    assert found.positions.tolist() == np.sort(order[inside.any(1)]).tolist()
    assert found.num_tokens.tolist() == inside.sum(1)[found.positions].tolist()
    assert (found.first_tokens >= 11).all() and (found.last_tokens < 21).all() and len(found)
