"""A small ELECTRA whose parts and words are drawn: config.json of both, parameters, a masked batch and a sample."""

import numpy as np

LENGTH, VOCABULARY = 11, 53
_SIZES = dict(
    vocab_size=VOCABULARY, embedding_size=7, num_hidden_layers=2, max_position_embeddings=13, model_type="electra"
)
PARTS = {
    "discriminator": dict(
        **_SIZES,
        hidden_size=15,
        num_attention_heads=3,
        intermediate_size=23,
        architectures=["ElectraForPreTraining"],
    ),
    "generator": dict(
        **_SIZES,
        hidden_size=6,
        num_attention_heads=2,
        intermediate_size=9,
        architectures=["ElectraForMaskedLM"],
    ),
}
SHARED = "electra.embeddings."
"""Beginning of the names of tables and norm; embeddings_project is another module."""


def masked_batch() -> dict[str, np.ndarray]:
    """Three rows: a full one, and two with padding; the last has a slot that predicts nothing."""
    random = np.random.RandomState(7)
    lengths = np.array([LENGTH, 8, 6])
    real = np.arange(LENGTH) < lengths[:, None]
    ids = np.where(real, random.randint(5, VOCABULARY, real.shape), 0)
    places = np.array([[1, 4, 9], [2, 3, 6], [3, 0, 0]])
    weights = np.array([[1, 1, 1], [1, 1, 1], [1, 0, 0]], np.float32)
    originals = np.where(weights > 0, np.take_along_axis(ids, places, 1), 0)
    masked = ids.copy()
    for row, slot in np.argwhere(weights > 0)[:-2]:  # the last two stay as they are
        masked[row, places[row, slot]] = 4
    arrays = {
        "input_ids": masked,
        "token_type_ids": np.zeros_like(ids),
        "attention_mask": real,
        "masked_positions": places,
        "masked_ids": originals,
    }
    return {name: array.astype(np.int32) for name, array in arrays.items()} | {"masked_weights": weights}


def sample() -> np.ndarray:
    """Words in place of the masked ones, of which the second of each row happens to be the original."""
    words = np.random.RandomState(3).randint(5, VOCABULARY, (3, 3)).astype(np.int32)
    words[:, 1] = masked_batch()["masked_ids"][:, 1]
    return words
