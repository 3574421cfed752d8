"""Randomly initialised BERT, ALBERT, DistilBERT and ELECTRA as config.json describes them, and their inputs."""

import numpy as np

SIZES = {
    "bert": dict(
        vocab_size=53,
        hidden_size=15,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=23,
        max_position_embeddings=13,
        hidden_act="gelu_new",
    ),
    "bert wider": dict(
        vocab_size=41,
        hidden_size=18,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=21,
        max_position_embeddings=17,
        type_vocab_size=3,
    ),
    "albert": dict(
        vocab_size=53,
        embedding_size=7,
        hidden_size=15,
        num_hidden_layers=3,
        num_attention_heads=3,
        intermediate_size=23,
        max_position_embeddings=13,
        hidden_act="gelu_new",
    ),
    "albert unshared": dict(
        vocab_size=41,
        embedding_size=16,
        hidden_size=16,
        num_hidden_layers=2,
        num_hidden_groups=2,
        num_attention_heads=2,
        intermediate_size=21,
        max_position_embeddings=17,
        type_vocab_size=3,
        hidden_act="gelu_new",
    ),
    "distilbert": dict(
        vocab_size=53, dim=15, n_layers=2, n_heads=3, hidden_dim=23, max_position_embeddings=13, activation="gelu"
    ),
    "distilbert deeper": dict(
        vocab_size=41, dim=16, n_layers=3, n_heads=2, hidden_dim=21, max_position_embeddings=17, activation="gelu"
    ),
    "electra": dict(
        vocab_size=53,
        embedding_size=7,
        hidden_size=15,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=23,
        max_position_embeddings=13,
    ),
    "electra as wide": dict(
        vocab_size=41,
        embedding_size=16,
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=21,
        max_position_embeddings=17,
        type_vocab_size=3,
    ),
}
TASKS = ("SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice", "Regression")
CLASSES = {
    "bert": ("MaskedLM", "NextSentencePrediction", *TASKS),  # huggingface_oracle.npz has BertForPreTraining, BertModel
    "albert": ("Model", "PreTraining", "MaskedLM", *TASKS),
    "distilbert": ("Model", "MaskedLM", *TASKS),
    "electra": ("Model", "PreTraining", "MaskedLM", *TASKS),
}
PREFIXES = {"bert": "Bert", "albert": "Albert", "distilbert": "DistilBert", "electra": "Electra"}
CASES = [(size, task) for size in SIZES for task in CLASSES[size.split()[0]]]
WITH_STATES = [case for case in CASES if case[1] in ("Model", "MaskedLM")]
"""Whose states and attentions of every layer are stored."""
WHOLE = ("albert/PreTraining", "distilbert/SequenceClassification", "electra/PreTraining")
"""Whose gradients are stored whole, at both sizes; of the other classes there are norms and samples."""
LABELS = 3


def class_name(size: str, task: str) -> str:
    prefix = PREFIXES[size.split()[0]]
    if task == "Model":
        return f"{prefix}Model"
    return f"{prefix}For{'SequenceClassification' if task == 'Regression' else task}"


def is_whole(size: str, task: str) -> bool:
    return f"{size.split()[0]}/{task}" in WHOLE


def config_json(size: str, task: str) -> dict:
    labels = {"id2label": {str(i): f"LABEL_{i}" for i in range(LABELS)}} if "Classification" in task else {}
    if task == "Regression":
        labels = {"id2label": {"0": "LABEL_0"}, "problem_type": "regression"}
    return {"model_type": size.split()[0], "architectures": [class_name(size, task)], **SIZES[size], **labels}


def weights(size: str, shape: tuple[int, ...]) -> np.ndarray:
    """Factors of logits of this shape in the sum whose gradients are compared; 0 at padding."""
    found = np.cos(np.arange(np.prod(shape), dtype=np.float32)).reshape(shape)
    real = batch(size)["attention_mask"]
    if shape[:2] == real.shape:
        found[real == 0] = 0
    return found


def batch(size: str) -> dict[str, np.ndarray]:
    """Three rows: a full one with two segments, and two with padding."""
    length, random = SIZES[size]["max_position_embeddings"] - 2, np.random.RandomState(7)
    real = np.arange(length) < np.array([length, 7, 4])[:, None]
    ids = np.where(real, random.randint(1, SIZES[size]["vocab_size"], real.shape), 0)
    segments = (np.arange(length) >= 3) & real & (not size.startswith("distilbert"))
    return {
        "input_ids": ids.astype(np.int32),
        "token_type_ids": segments.astype(np.int32),
        "attention_mask": real.astype(np.int32),
    }
