"""The texts of packed rows one per row, and a small model that reads both."""

import numpy as np
from synthetic_store import VOCAB_SIZE

from bert_jax.config import ModelConfig

MODEL = ModelConfig(
    vocab_size=VOCAB_SIZE, hidden_size=24, num_layers=1, num_heads=3, intermediate_size=40, max_position_embeddings=64
)


def unpacked(batch):
    """The texts of packed rows, one per row from position 0, and the row and number of each."""
    length, slots = batch["input_ids"].shape[1], batch["masked_ids"].shape[1]
    rows = [(row, text) for row in range(len(batch["text_ids"])) for text in range(batch["text_ids"][row].max())]
    alone = {n: np.zeros((len(rows), length), np.int32) for n in ("input_ids", "token_type_ids", "attention_mask")}
    alone |= {name: np.zeros((len(rows), slots), np.int32) for name in ("masked_positions", "masked_ids")}
    alone["masked_weights"] = np.zeros((len(rows), slots), np.float32)
    for number, (row, text) in enumerate(rows):
        here = np.flatnonzero(batch["text_ids"][row] == text + 1)
        for name in ("input_ids", "token_type_ids", "attention_mask"):
            alone[name][number, : len(here)] = batch[name][row, here]
        mine = np.isin(batch["masked_positions"][row], here) & (batch["masked_weights"][row] > 0)
        count = mine.sum()
        alone["masked_positions"][number, :count] = batch["masked_positions"][row, mine] - here[0]
        for name in ("masked_ids", "masked_weights"):
            alone[name][number, :count] = batch[name][row, mine]
    if "next_sentence_labels" in batch:
        alone["next_sentence_labels"] = np.array([batch["next_sentence_labels"][row, text] for row, text in rows])
    return alone, rows
