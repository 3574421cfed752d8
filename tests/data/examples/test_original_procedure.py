"""Our examples against those of the original's create_pretraining_data.py, written out in original_procedure.py."""

import itertools

import numpy as np
import original_procedure
import pytest
from synthetic_examples import PAIRS, epoch_rows, make_examples, sentences_seen
from synthetic_store import SyntheticStore, random_documents

from bert_jax.config import PrepareConfig
from bert_jax.data.mixtures import epoch_report
from bert_jax.data.preparation.prepare import run_prepare
from bert_jax.data.store import Rows, open_store


def statistics(lengths, is_random, truncated, num_tokens):
    return {
        "is_next": 1 - np.mean(is_random),
        "mean_length": np.mean(lengths),
        "truncated": np.sum(truncated) / num_tokens,
    }


def epochs_statistics(examples, epochs=4):
    rows = Rows.concatenate([epoch_rows(examples, epoch) for epoch in range(epochs)])
    return statistics(rows.lengths, rows.labels, rows.truncated / epochs, examples.documents.num_tokens.sum())


def original_statistics(documents, sequence_length, short, passes=4):
    examples = [
        example
        for seed in range(passes)
        for example in original_procedure.create_examples(documents, sequence_length - 3, short, seed)
    ]
    lengths = [example.num_first + example.num_second + 3 for example in examples]
    truncated = [example.truncated / passes for example in examples]
    return statistics(lengths, [example.is_random for example in examples], truncated, sum(map(sum, documents)))


@pytest.mark.parametrize("short", [0.0, 0.1])
def test_lengths_truncation_and_share_of_next_are_near_the_original(short):
    """Close, not equal: the original leaves more lone sentences, so 44 to 46 % IsNext; ours are the paper's 50 %.

    Ours are a little shorter and lose less, because no chunk may have more sentences than a sequence can show.
    """
    documents = random_documents(600, seed=3)[:600]
    ours = epochs_statistics(make_examples(SyntheticStore(documents), sequence_length=128, short=short))
    theirs = original_statistics(documents, 128, short)
    assert abs(ours["is_next"] - 0.5) < 0.03 and abs(ours["is_next"] - theirs["is_next"]) < 0.08
    assert 0.92 < ours["mean_length"] / theirs["mean_length"] < 1.0
    assert theirs["truncated"] - 0.06 < ours["truncated"] < theirs["truncated"]


def test_epochs_of_wikipedia_are_near_the_original_and_have_every_sentence(shared_data, tmp_path):
    """Found over five epochs: IsNext 50 against 44 %, mean length 107 against 112, cut off 5 against 10 %."""
    text, vocab = shared_data / "wiki/wiki_valid.txt.gz", shared_data / "vocab/uncased/vocab.txt"
    run_prepare(PrepareConfig(input=str(text), vocab=str(vocab), output=str(tmp_path / "store"), workers=1))
    store = open_store(tmp_path / "store")
    starts = store.sentence_starts(np.arange(store.num_sentences + 1))
    documents = [lengths.tolist() for lengths in np.split(np.diff(starts), store.document_sentences[1:-1])]
    examples = make_examples(store, sequence_length=128)
    ours, theirs = epochs_statistics(examples), original_statistics(documents, 128, 0.1)
    assert abs(ours["is_next"] - 0.5) < 0.03 and abs(ours["is_next"] - theirs["is_next"]) < 0.08
    assert 0.93 < ours["mean_length"] / theirs["mean_length"] < 1.0
    assert theirs["truncated"] - 0.06 < ours["truncated"] < theirs["truncated"]
    report = epoch_report(examples)
    assert report.duplicated < 0.06 and report.sentences_seen == 1
    assert report.tokens_seen == pytest.approx(
        1 - report.truncated, abs=0.01
    )  # a borrowed copy may bring back what was cut
    for sentence_pairs, sequence_length in itertools.product(PAIRS, (128, 512)):
        examples = make_examples(store, sentence_pairs=sentence_pairs, sequence_length=sequence_length)
        assert [sentences_seen(examples, epoch) for epoch in range(3)] == [store.num_sentences] * 3
