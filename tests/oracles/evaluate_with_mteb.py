"""Scores of a model by mteb, read by sentence-transformers and by bert_jax, on four small tasks that are made here.

    python tests/oracles/evaluate_with_mteb.py MODEL PLACE_OF_JAX > scores.json

MODEL: a directory of sentence-transformers. PLACE_OF_JAX: site-packages with what bert_jax needs and this Python lacks.
It needs mteb 2.x and sentence-transformers, and bert_jax on PYTHONPATH.
"""

import json
import os
import random
import sys
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
sys.path.append(sys.argv[2])

import mteb
from datasets import Dataset, DatasetDict
from mteb.abstasks import AbsTaskClassification, AbsTaskClustering, AbsTaskRetrieval
from mteb.abstasks.sts import AbsTaskSTS
from mteb.abstasks.task_metadata import TaskMetadata
from sentence_transformers import SentenceTransformer

import bert_jax

TOPICS = {
    "cooking": ["soup", "bread", "an onion", "rice", "a cake", "the oven"],
    "sailing": ["the ship", "a sail", "the harbour", "an anchor", "the tide", "a rope"],
    "law": ["the court", "a judge", "the contract", "a witness", "the verdict", "a claim"],
}
FORMS = ["She wrote about {}.", "There was {} on the table.", "What is {}?", "He has never seen {} before."]
TEXTS = [(form.format(thing), topic) for topic, things in TOPICS.items() for thing in things for form in FORMS]


def metadata(kind: str, score: str) -> TaskMetadata:
    name = f"Local{kind}"
    return TaskMetadata(
        type=kind, name=name, main_score=score, description=name, reference="https://example.com", category="t2t",
        dataset={"path": "NA", "revision": "NA"}, eval_splits=["test"], eval_langs=["eng-Latn"], modalities=["text"],
        date=("2026-01-01", "2026-01-01"), dialect=[], domains=[], task_subtypes=[], license="mit",
        annotations_creators="derived", sample_creation="found", bibtex_citation="",
    )  # fmt: skip


class Local:
    """A task whose data are made here."""

    def load_data(self, num_proc: int | None = None, **_: Any) -> None:
        self.dataset, self.data_loaded = self.made(random.Random(0)), True


class Sts(Local, AbsTaskSTS):
    metadata = metadata("STS", "cosine_spearman")
    min_score, max_score = 0, 5

    def made(self, choose):
        pairs = [(choose.choice(TEXTS), choose.choice(TEXTS)) for _ in range(60)]
        columns = {f"sentence{place + 1}": [pair[place][0] for pair in pairs] for place in (0, 1)}
        scores = [5 * (first[1] == second[1]) * choose.random() for first, second in pairs]
        return DatasetDict(test=Dataset.from_dict({**columns, "score": scores}))


class Classification(Local, AbsTaskClassification):
    metadata = metadata("Classification", "accuracy")

    def made(self, choose):
        rows = choose.sample(TEXTS, len(TEXTS))
        parts = {"train": rows[:48], "test": rows[48:]}
        labels = list(TOPICS)
        columns = {
            split: {"text": [text for text, _ in part], "label": [labels.index(name) for _, name in part]}
            for split, part in parts.items()
        }
        return DatasetDict({split: Dataset.from_dict(values) for split, values in columns.items()})


class Clustering(Local, AbsTaskClustering):
    metadata = metadata("Clustering", "v_measure")
    max_fraction_of_documents_to_embed = None
    max_documents_per_cluster = 60
    n_clusters = 4

    def made(self, choose):
        texts, labels = map(list, zip(*TEXTS, strict=True))
        return DatasetDict(test=Dataset.from_dict({"sentences": texts, "labels": labels}))


class Retrieval(Local, AbsTaskRetrieval):
    metadata = metadata("Retrieval", "ndcg_at_10")

    def made(self, choose):
        ids = [f"d{number}" for number in range(len(TEXTS))]
        corpus = Dataset.from_dict(
            {"id": ids, "title": [topic for _, topic in TEXTS], "text": [text for text, _ in TEXTS]}
        )
        queries = [f"A book on {thing}" for things in TOPICS.values() for thing in things]
        owned = {f"q{number}": {f"d{4 * number + form}": 1 for form in range(4)} for number in range(len(queries))}
        asked = Dataset.from_dict({"id": list(owned), "text": queries})
        split = {"corpus": corpus, "queries": asked, "relevant_docs": owned, "top_ranked": None}
        return {"default": {"test": split}}


def scores(model: Any) -> dict[str, float]:
    tasks = [Sts(), Classification(), Clustering(), Retrieval()]
    found = mteb.evaluate(model, tasks, cache=None, co2_tracker=False, show_progress_bar=False)
    return {result.task_name: result.scores["test"][0]["main_score"] for result in found.task_results}


if __name__ == "__main__":
    ours = bert_jax.MtebEncoder(bert_jax.load(sys.argv[1]))
    assert isinstance(ours, mteb.EncoderProtocol)
    theirs = scores(SentenceTransformer(sys.argv[1], device="cpu"))
    meta = ours.mteb_model_meta
    json.dump({"ours": scores(ours), "theirs": theirs, "name": meta.name, "dims": meta.embed_dim}, sys.stdout)
