"""Models with every combination of parts that Hugging Face transformers has a class for."""

import dataclasses

import random_bert
from pretrained_model import CONFIG, PARTS, stored_model

from bert_jax.config import HeadConfig

ENCODER = [n for n in random_bert.hugging_face_names().values() if n.startswith("bert.") and "pooler" not in n]


POOLER = ["bert.pooler.dense.weight", "bert.pooler.dense.bias"]


MLM = [name for name in random_bert.hugging_face_names().values() if name.startswith("cls.predictions")]


PAIRS = ["cls.seq_relationship.weight", "cls.seq_relationship.bias"]


CLASSIFIER = ["classifier.weight", "classifier.bias"]


MODELS = {  # name: (parts, head, class of transformers, its parameters: as its save_pretrained writes them)
    "pretraining": (PARTS, None, "BertForPreTraining", ENCODER + POOLER + MLM + PAIRS),
    "masked words": (("mlm",), None, "BertForMaskedLM", ENCODER + MLM),
    "pairs": (("pooler", "next_sentence"), None, "BertForNextSentencePrediction", ENCODER + POOLER + PAIRS),
    "pooled": (("pooler",), None, "BertModel", [name.removeprefix("bert.") for name in ENCODER + POOLER]),
    "bare": ((), None, "BertModel", [name.removeprefix("bert.") for name in ENCODER]),
    "classification": (
        None,
        HeadConfig(kind="classification", labels=("no", "so", "yes"), dropout=0.3),
        "BertForSequenceClassification",
        ENCODER + POOLER + CLASSIFIER,
    ),
    "regression": (None, HeadConfig(kind="regression"), "BertForSequenceClassification", ENCODER + POOLER + CLASSIFIER),
    "choice": (None, HeadConfig(kind="choice"), "BertForMultipleChoice", ENCODER + POOLER + CLASSIFIER),
    "tagging": (
        None,
        HeadConfig(kind="tagging", labels=("O", "B-PER", "I-PER")),
        "BertForTokenClassification",
        ENCODER + CLASSIFIER,
    ),
    "span": (
        None,
        HeadConfig(kind="span"),
        "BertForQuestionAnswering",
        ENCODER + ["qa_outputs.weight", "qa_outputs.bias"],
    ),
}


def make(name):
    """A model with these parts; those with a head have the other GELU."""
    parts, head, *_ = MODELS[name]
    config = dataclasses.replace(CONFIG, activation="gelu_erf" if head else "gelu_tanh")
    return stored_model(config, parts, head, kind="bert_jax")
