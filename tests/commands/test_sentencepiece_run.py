"""A SentencePiece vocabulary through the whole job by the command line: train-vocab, prepare, pretrain, fill-mask."""

import json
import pathlib

import documents
import numpy as np
import pytest
import sentencepiece
from command_lines import succeed
from small_pretraining import pretrain_by_words

from bert_jax.config import Config
from bert_jax.config.options import from_dict
from bert_jax.data.store import open_store
from bert_jax.pretrained.model import load
from bert_jax.training_data import Examples

pytestmark = pytest.mark.slow

STEPS = 12


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> pathlib.Path:
    """corpus.txt, x.model, store/ and run/, each made from the one before."""
    place = tmp_path_factory.mktemp("sentencepiece")
    corpus = documents.write(place / "corpus.txt", 40)  # fewer than 256 sequences: small corpora are run first of all
    succeed("train-vocab", f"--input={corpus}", f"--output={place}/x.model", "--method=unigram", "--size=90")
    succeed("prepare", f"--input={corpus}", f"--vocab={place}/x.model", f"--output={place}/store", "--sentences=lines")
    (place / "config.json").write_text(
        json.dumps(
            {
                "model": {"hidden_size": 32, "num_layers": 1, "num_heads": 2, "max_position_embeddings": 64},
                "data": {"path": str(place / "store"), "held_out": 0.1, "loader": "plain"},
                "masking": {"unit": "whole_word"},
                "evaluation": {"sequences": 32, "batch_size": 32},
                "log_every_steps": 1,
                "phases": [
                    {"steps": STEPS, "sequence_length": 64, "batch_size": 16, "learning_rate": 3e-3, "warmup_steps": 2}
                ],
            }
        )
    )
    pretrain_by_words(f"{place}/config.json", f"--workdir={place}/run")
    return place


def test_the_store_holds_what_sentencepiece_itself_encodes(place):
    processor = sentencepiece.SentencePieceProcessor(model_file=str(place / "x.model"))
    store = open_store(place / "store")
    lines = [line for line in (place / "corpus.txt").read_text().split("\n") if line]
    starts = store.sentence_starts(np.arange(store.num_sentences + 1))
    ids = np.split(store.tokens(np.arange(store.num_tokens)), starts[1:-1])
    assert [row.tolist() for row in ids] == processor.encode(lines)


def test_whole_words_are_masked(place):
    """A word is a piece marked with a space, or the first after a special, and the unmarked ones that follow."""
    store, config = open_store(place / "store"), from_dict(Config, json.loads((place / "config.json").read_text()))
    tokens = store.tokenizer().tokens
    examples = Examples(store, config)
    assert examples.num_examples(0) < 256
    batch = examples.batch(np.arange(64))
    halved = words = longer = 0
    for row in range(64):
        ids = batch["input_ids"][row].copy()
        chosen = batch["masked_positions"][row][batch["masked_weights"][row] > 0]
        ids[chosen] = batch["masked_ids"][row][: len(chosen)]
        pieces = [tokens[i] for i in ids]
        special = [piece in ("[CLS]", "[SEP]", "[PAD]") for piece in pieces]
        starts = [p for p, piece in enumerate(pieces) if piece.startswith("\u2581") or special[p] or special[p - 1]]
        for start, end in zip(starts, [*starts[1:], len(pieces)]):
            inside = np.isin(np.arange(start, end), chosen)
            words, longer = words + inside.any(), longer + (inside.any() and end - start > 1)
            halved += inside.any() and not inside.all()
    assert words > 100 and longer > 20 and halved == 0


def test_the_run_learns_and_fills_in_pieces(place, capsys):
    rows = [json.loads(line) for line in (place / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [row["mlm_loss"] for row in rows if row["kind"] == "train"]
    assert len(losses) == STEPS and np.mean(losses[-3:]) < np.mean(losses[:3])
    model = load(place / "run")
    assert model.tokenizer.fingerprint == open_store(place / "store").tokenizer().fingerprint
    (candidates,) = model.fill_mask("The gardener [MASK] in the morning.", model.tokenizer.vocab_size)
    assert sorted(candidate.token for candidate in candidates) == sorted(model.tokenizer.tokens)
    assert sum(candidate.probability for candidate in candidates) == pytest.approx(1, abs=1e-5)
    capsys.readouterr()
    succeed("fill-mask", str(place / "run"), "The gardener [MASK] in the morning.", "--top_k=3")
    printed = capsys.readouterr().out
    assert not [candidate.token for candidate in candidates[:3] if candidate.token not in printed]
