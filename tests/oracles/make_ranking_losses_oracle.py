"""Losses of rankings and their gradients, by the classes of sentence-transformers' cross-encoders.

    python tests/oracles/make_ranking_losses_oracle.py     # in an environment with sentence-transformers 6.2.0

It writes ranking_losses_oracle.npz beside this file. With a directory and an output it writes instead the scores that
the CrossEncoder there gives to the pairs in pairs.json beside the output. Nothing of bert_jax is imported.
"""

import json
import os
import pathlib
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
from sentence_transformers import CrossEncoder
from sentence_transformers.cross_encoder import losses

SIZES = (5, 3, 2, 4)
LAMBDA = {
    "none": losses.NoWeightingScheme(),
    "ndcg1": losses.NDCGLoss1Scheme(),
    "ndcg2": losses.NDCGLoss2Scheme(),
    "lambdarank": losses.LambdaRankScheme(),
    "ndcg2++": losses.NDCGLoss2PPScheme(mu=7.0),
}


class Scores(CrossEncoder):
    """A model whose score of a pair is a number that is given: the second text is its place."""

    def __init__(self, scores: torch.Tensor):
        torch.nn.Module.__init__(self)
        self.given = scores

    num_labels = property(lambda self: 1)
    device = property(lambda self: torch.device("cpu"))

    def preprocess(self, pairs, prompt=None, task=None):
        return {"places": torch.tensor([int(place) for _, place in pairs])}

    def forward(self, inputs):
        return {"scores": self.given[inputs["places"]][:, None]}


def main() -> None:
    random = np.random.RandomState(3)
    scores = (2 * random.randn(sum(SIZES))).astype(np.float32)
    grades = np.array([2, 0, 1, 0, 0, 0, 3, 0, 1, 0, 0, 1, 0, 2], np.float32)
    teacher = (3 * random.randn(sum(SIZES))).astype(np.float32)
    ends = np.cumsum(SIZES)
    places = [list(map(str, range(end - size, end))) for size, end in zip(SIZES, ends, strict=True)]
    found = {"sizes": np.array(SIZES), "scores": scores, "grades": grades, "teacher": teacher}

    def lists(values: np.ndarray) -> list[torch.Tensor]:
        return [torch.tensor(values[end - size : end]) for size, end in zip(SIZES, ends, strict=True)]

    def record(name: str, loss_of) -> None:
        given = torch.tensor(scores, requires_grad=True)
        loss = loss_of(Scores(given))
        found[f"{name}_loss"] = loss.detach().numpy()
        found[f"{name}_gradient"] = torch.autograd.grad(loss, given)[0].numpy()

    def binary(model, **options):
        pairs = [["q"] * len(scores), [place for group in places for place in group]]
        return losses.BinaryCrossEntropyLoss(model, **options)(pairs, torch.tensor(grades) / 3)

    def in_lists(loss):
        return loss([["q"] * len(SIZES), places], lists(grades))

    def softmax(model, **options):
        """Return the mean over queries of that over their relevant documents, each with the irrelevant ones alone."""
        of_queries = []
        for group, own in zip(places, lists(grades), strict=True):
            wrong = [[place] for place, grade in zip(group, own, strict=True) if grade <= 0]
            loss = losses.MultipleNegativesRankingLoss(model, num_negatives=None, **options)
            right = [place for place, grade in zip(group, own, strict=True) if grade > 0]
            if right and wrong:
                of_queries.append(torch.stack([loss([["q"], [place], *wrong], None) for place in right]).mean())
        return torch.stack(of_queries).mean()

    def margin(model):
        """Return the mean over all pairs, which sentence-transformers takes of groups of one size."""
        total, count = 0.0, 0
        for group, own in zip(places, lists(teacher), strict=True):
            columns = [["q"], *([place] for place in group)]
            total += (len(group) - 1) * losses.MarginMSELoss(model)(columns, [own])
            count += len(group) - 1
        return total / count

    record("binary", binary)
    record("binary_weighted", lambda model: binary(model, pos_weight=torch.tensor(2.5)))
    record("softmax", lambda model: softmax(model, scale=1.0, activation_fn=None))
    record("softmax_sigmoid", lambda model: softmax(model))
    record("listnet", lambda model: in_lists(losses.ListNetLoss(model)))
    for name, scheme in LAMBDA.items():
        record(f"lambda_{name}", lambda model, scheme=scheme: in_lists(losses.LambdaLoss(model, scheme)))
    record("lambda_top", lambda model: in_lists(losses.LambdaLoss(model, k=2, sigma=1.5)))
    record("margin_mse", margin)
    np.savez_compressed(pathlib.Path(__file__).with_name("ranking_losses_oracle.npz"), **found)


def predict(directory: pathlib.Path, output: pathlib.Path) -> None:
    """Write what CrossEncoder.predict says of the pairs in pairs.json beside the output."""
    pairs = json.loads(output.with_name("pairs.json").read_text())
    np.save(output, CrossEncoder(str(directory)).predict(pairs))


if __name__ == "__main__":
    main() if len(sys.argv) == 1 else predict(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
