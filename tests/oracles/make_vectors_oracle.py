"""Losses of vectors and their gradients, by the classes of sentence-transformers.

    python tests/oracles/make_vectors_oracle.py     # in an environment with sentence-transformers 6.2.0

It writes vectors_oracle.npz beside this file. With a directory it writes instead the vectors that the model there makes
of the texts in texts.json, for the queries and documents named there too. Nothing of bert_jax is imported.
"""

import json
import os
import pathlib
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.sentence_transformer.losses.matryoshka import shrink
from sentence_transformers.util import dot_score, pairwise_cos_sim

EXAMPLES, TEXTS, WIDTH = 6, 4, 7
DIMS, WEIGHTS = (7, 4), (1.0, 0.5)
DISTANCES = losses.TripletDistanceMetric
CASES = {  # name: loss, number of the texts of an example, what it takes in addition
    "info_nce": (losses.MultipleNegativesRankingLoss(None), 2, None),
    "info_nce_negatives": (losses.MultipleNegativesRankingLoss(None), 4, None),
    "info_nce_dot": (losses.MultipleNegativesRankingLoss(None, scale=1.0, similarity_fct=dot_score), 3, None),
    "info_nce_symmetric": (losses.MultipleNegativesSymmetricRankingLoss(None), 3, None),
    "cosent": (losses.CoSENTLoss(None), 2, "scores"),
    "angle": (losses.AnglELoss(None), 2, "scores"),
    "cosine": (losses.CosineSimilarityLoss(None), 2, "shares"),
    "triplet_euclidean": (losses.TripletLoss(None, DISTANCES.EUCLIDEAN), 3, None),
    "triplet_manhattan": (losses.TripletLoss(None, DISTANCES.MANHATTAN, 1.0), 3, None),
    "triplet_cosine": (losses.TripletLoss(None, DISTANCES.COSINE, 0.5), 3, None),
    "margin_mse": (losses.MarginMSELoss(None), 4, "teacher"),
    "margin_mse_cosine": (losses.MarginMSELoss(None, pairwise_cos_sim), 3, "teacher"),
    "kl": (losses.DistillKLDivLoss(None, temperature=2.0), 4, "teacher"),
}


def main() -> None:
    random = np.random.RandomState(5)
    vectors = random.randn(EXAMPLES, TEXTS, WIDTH).astype(np.float32)
    scores = np.array([4, 0, 2.5, 2.5, 5, 1], np.float32)
    taken = {"scores": scores, "shares": scores / np.float32(5), "teacher": 3 * random.randn(EXAMPLES, TEXTS - 1)}
    taken = {name: np.asarray(values, np.float32) for name, values in taken.items()}
    found = {"vectors": vectors, **taken}

    def value(name: str, given: torch.Tensor) -> torch.Tensor:
        loss, texts, takes = CASES[name]
        labels = None if takes is None else torch.tensor(taken[takes])
        labels = labels[:, : texts - 1] if takes == "teacher" else labels
        return loss.compute_loss_from_embeddings([given[:, place] for place in range(texts)], labels)

    for name in [*CASES, "nested"]:
        given = torch.tensor(vectors, requires_grad=True)
        if name == "nested":
            parts = zip(DIMS, WEIGHTS, strict=True)
            loss = sum(weight * value("info_nce_negatives", shrink(given, dim)) for dim, weight in parts)
        else:
            loss = value(name, given)
        found[f"{name}_loss"] = loss.detach().numpy()
        found[f"{name}_gradient"] = torch.autograd.grad(loss, given)[0].numpy()
    np.savez_compressed(pathlib.Path(__file__).with_name("vectors_oracle.npz"), **found)


def embed(directory: pathlib.Path, output: pathlib.Path) -> None:
    """Write the vectors of the texts that texts.json beside the output has, as they are and after each prompt."""
    model, texts = SentenceTransformer(str(directory)), json.loads(output.with_name("texts.json").read_text())
    prompts = {"plain": None, "query": "query", "document": "document"}
    found = {name: model.encode(texts, prompt_name=prompt) for name, prompt in prompts.items()}
    np.savez(output, **found)


if __name__ == "__main__":
    main() if len(sys.argv) == 1 else embed(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
