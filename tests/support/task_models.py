"""Fine-tuned models of random parameters, one per task."""

from pretrained_model import CONFIG, TOKENIZER, random_params

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.config.finetuning import task_defaults
from bert_jax.config.json_form import to_dict
from bert_jax.models.task import BertForTask
from bert_jax.tasks.glue import GLUE_TASKS
from bert_jax.tasks.task_data import family_of

LABELS = {
    "mnli": ("entailment", "neutral", "contradiction"),
    "rte": ("entailment", "not_entailment"),
    "text": ("a", "b"),
    "qnli": ("entailment", "not_entailment"),
    "ner": ("O", "B-X", "I-X"),
}


def write_model(directory, task: str, shape=CONFIG, **recorded):
    """What fine-tuning on `task` leaves, with random parameters; `recorded` is added to the record."""
    head = family_of(task).head(task, LABELS.get(task, ()))
    pairs = len(GLUE_TASKS[task].columns) == 2 if task in GLUE_TASKS else False if task == "text" else None
    facts = {"model": to_dict(shape), "head": to_dict(head), "finetune": to_dict(task_defaults(task)), "pairs": pairs}
    TOKENIZER.save(directory / "tokenizer")
    with Checkpoints(directory / "checkpoints") as checkpoints:
        checkpoints.save(0, {"params": random_params(BertForTask(shape, head))}, position={}, config=facts | recorded)
    return directory
