"""Losses of vectors and their gradients, by the classes of sentence-transformers, in float64.

    python tests/oracles/make_vectors_oracle.py     # in an environment with sentence-transformers 6.2.0

It writes vectors_oracle.npz beside this file: losses of fixed vectors with the gradients by them, and of the means of
the states of the smallest model of tests/support/random_bert.py with the gradients by all its parameters, one after the
other (as float32); and vector_forms_oracle.npz, of vectors of tokens and of words. With a directory it writes instead
the vectors that the model there makes of the texts in texts.json, for the queries and documents named there too.
Nothing of bert_jax is imported.
"""

import json
import os
import pathlib
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
import transformers
from sentence_transformers import MultiVectorEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.multi_vector_encoder import losses as of_tokens
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.sentence_transformer.losses.matryoshka import shrink
from sentence_transformers.sentence_transformer.modules import Pooling
from sentence_transformers.sparse_encoder import losses as of_words
from sentence_transformers.util import dot_score, pairwise_cos_sim

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
import random_bert

EXAMPLES, TEXTS, WIDTH = 6, 4, 7
SIZES = random_bert.sizes("smallest")
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
    vectors[0, 1] = vectors[0, 0]  # whose distance has no gradient
    scores = np.array([4, 0, 2.5, 2.5, 5, 1], np.float32)
    teacher = np.asarray(3 * random.randn(EXAMPLES, TEXTS - 1), np.float32)
    found = {"vectors": vectors, "scores": scores, "teacher": teacher, **draw_texts(random)}
    given, model = torch.tensor(vectors, dtype=torch.float64, requires_grad=True), torch_model()
    means, parameters = mean_states(model, found), dict(model.named_parameters())
    for name in [*CASES, "nested"]:
        loss, of_model = (value(name, each, scores, teacher) for each in (given, means))
        found |= {f"{name}_loss": loss.item(), f"{name}_model_loss": of_model.item()}
        found[f"{name}_gradient"] = torch.autograd.grad(loss, given)[0].numpy()
        gradients = torch.autograd.grad(
            of_model, list(parameters.values()), retain_graph=True, allow_unused=True, materialize_grads=True
        )
        state = dict(zip(parameters, (each.numpy() for each in gradients), strict=True))
        ours = random_bert.from_hugging_face(state, SIZES)
        encoder = [path for path in random_bert.shapes(SIZES) if path.startswith(("embeddings", "encoder"))]
        found[f"{name}_model_gradient"] = np.concatenate([ours[path].ravel() for path in encoder]).astype(np.float32)
    np.savez_compressed(pathlib.Path(__file__).with_name("vectors_oracle.npz"), **found)


def value(name: str, given: torch.Tensor, scores: np.ndarray, teacher: np.ndarray) -> torch.Tensor:
    """Return the loss of this name of vectors [B, K, H], in float64."""
    if name == "nested":
        parts = zip((given.shape[-1], 4), (1.0, 0.5), strict=True)
        return sum(weight * value("info_nce_negatives", shrink(given, dim), scores, teacher) for dim, weight in parts)
    loss, texts, takes = CASES[name]
    wide = {"scores": scores, "shares": scores / 4, "teacher": teacher[:, : texts - 1]}
    labels = None if takes is None else torch.tensor(wide[takes], dtype=torch.float64)
    return loss.compute_loss_from_embeddings([given[:, place] for place in range(texts)], labels)


def draw_texts(random: np.random.RandomState) -> dict[str, np.ndarray]:
    """Return input_ids and attention_mask [EXAMPLES, TEXTS, L], int32; the id 0 only fills the rows."""
    shape = (EXAMPLES, TEXTS, SIZES["max_position_embeddings"])
    real = np.arange(shape[-1]) < random.randint(3, shape[-1] + 1, shape[:2])[..., None]
    ids = np.where(real, random.randint(1, SIZES["vocab_size"], shape), 0)
    return {"input_ids": ids.astype(np.int32), "attention_mask": real.astype(np.int32)}


def torch_model() -> transformers.BertForPreTraining:
    config = transformers.BertConfig(
        **random_bert.config_json(SIZES, "gelu_erf"),
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="eager",
    )
    model = transformers.BertForPreTraining(config).double()
    state = random_bert.to_hugging_face(random_bert.draw_parameters(SIZES))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(state[name]))
    return model


def mean_states(model: transformers.BertForPreTraining, texts: dict[str, np.ndarray]) -> torch.Tensor:
    """Return the means of the last states of the texts, [EXAMPLES, TEXTS, H]."""
    ids, mask = (torch.tensor(texts[name].astype(np.int64)).flatten(0, 1) for name in ("input_ids", "attention_mask"))
    states = model.bert(input_ids=ids, attention_mask=mask).last_hidden_state
    pooled = Pooling(SIZES["hidden_size"], "mean")({"token_embeddings": states, "attention_mask": mask})
    return pooled["sentence_embedding"].unflatten(0, (EXAMPLES, TEXTS))


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
