"""Losses of vectors and their gradients, by the classes of sentence-transformers.

    python tests/oracles/make_vectors_oracle.py     # in an environment with sentence-transformers 6.2.0

It writes vectors_oracle.npz and vector_forms_oracle.npz, of vectors of tokens and of words, beside this file. With a
directory it writes instead the vectors that the model there makes of the texts in texts.json, for the queries and
documents named there too. Nothing of bert_jax is imported.
"""

import json
import os
import pathlib
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
from sentence_transformers import MultiVectorEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.multi_vector_encoder import losses as of_tokens
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.sentence_transformer.losses.matryoshka import shrink
from sentence_transformers.sparse_encoder import losses as of_words
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


LENGTH, WORDS = 5, 9


class Table(torch.nn.Module):
    """A model whose vectors are rows of a table, which the ids name."""

    def __init__(self, table: np.ndarray):
        super().__init__()
        self.table = torch.nn.Parameter(torch.tensor(table))

    def forward(self, features: dict[str, torch.Tensor], task: str | None = None) -> dict[str, torch.Tensor]:
        rows = self.table[features["input_ids"]]
        return {**features, "token_embeddings": rows, "sentence_embedding": rows[:, 0]}


def forms() -> None:
    """Write the losses of vectors of tokens, some of which do not count, and of vectors of words, most of them 0."""
    random = np.random.RandomState(6)
    tokens = random.randn(EXAMPLES, TEXTS, LENGTH, WIDTH).astype(np.float32)
    words = np.maximum(random.randn(EXAMPLES, TEXTS, WORDS), 0).astype(np.float32)
    compared = (random.rand(EXAMPLES, TEXTS, LENGTH) < 0.6).astype(np.int32)
    compared[:, :, 0] = 1
    teacher = (3 * random.randn(EXAMPLES, TEXTS - 1)).astype(np.float32)
    found = {"tokens": tokens, "words": words, "compared": compared, "teacher": teacher}
    model, sparse = Table(tokens.reshape(-1, WIDTH)), Table(words.reshape(-1, WORDS))
    splade = lambda loss: of_words.SpladeLoss(sparse, loss, 0.3, 0.5)
    cases = {
        "tokens_info_nce": (of_tokens.MultiVectorMultipleNegativesRankingLoss(model), TEXTS),
        "tokens_info_nce_scaled": (of_tokens.MultiVectorMultipleNegativesRankingLoss(model, scale=3.0), 2),
        "tokens_margin_mse": (of_tokens.MultiVectorMarginMSELoss(model), TEXTS),
        "tokens_kl": (of_tokens.MultiVectorDistillKLDivLoss(model, temperature=2.0), TEXTS),
        "words_info_nce": (splade(of_words.SparseMultipleNegativesRankingLoss(sparse)), TEXTS),
        "words_margin_mse": (splade(of_words.SparseMarginMSELoss(sparse)), TEXTS),
        "words_kl": (splade(of_words.SparseDistillKLDivLoss(sparse, temperature=2.0)), TEXTS),
    }
    for name, (loss, texts) in cases.items():
        own, length = (model, LENGTH) if name.startswith("tokens") else (sparse, 1)
        ids = torch.arange(EXAMPLES * TEXTS * length).reshape(EXAMPLES, TEXTS, length)
        mask = torch.tensor(compared) if length > 1 else torch.ones_like(ids)
        columns = [{"input_ids": ids[:, place], "attention_mask": mask[:, place]} for place in range(texts)]
        value = loss(columns, None if "info" in name else torch.tensor(teacher))
        value = sum(value.values()) if isinstance(value, dict) else value
        found[f"{name}_loss"] = value.detach().numpy()
        (gradient,) = torch.autograd.grad(value, own.table)
        found[f"{name}_gradient"] = gradient.reshape(EXAMPLES, TEXTS, *(() if length == 1 else (length,)), -1).numpy()
    np.savez_compressed(pathlib.Path(__file__).with_name("vector_forms_oracle.npz"), **found)


def embed(directory: pathlib.Path, output: pathlib.Path) -> None:
    """Write the vectors of the texts that texts.json beside the output has, as they are and after each prompt.

    Vectors of tokens are queries or documents. They follow each other, and "sizes" has how many each text has.
    """
    texts = json.loads(output.with_name("texts.json").read_text())
    settings = json.loads((directory / "config_sentence_transformers.json").read_text())
    kind = {"SparseEncoder": SparseEncoder, "MultiVectorEncoder": MultiVectorEncoder}.get(settings.get("model_type"))
    model = (kind or SentenceTransformer)(str(directory))
    if kind is None:
        prompts = {"plain": None, "query": "query", "document": "document"}
        found = {name: model.encode(texts, prompt_name=prompt) for name, prompt in prompts.items()}
    else:
        found = {"query": model.encode_query(texts), "document": model.encode_document(texts)}
    if kind is SparseEncoder:
        found = {name: vectors.to_dense().numpy() for name, vectors in found.items()}
    if kind is MultiVectorEncoder:
        found |= {f"{name}_sizes": [len(each) for each in vectors] for name, vectors in found.items()}
        found |= {name: np.concatenate([each.numpy() for each in found[name]]) for name in ("query", "document")}
    np.savez(output, **found)


if __name__ == "__main__":
    (main(), forms()) if len(sys.argv) == 1 else embed(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
