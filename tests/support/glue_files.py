"""Files of GLUE, written out by hand, and the tasks that are read from them."""

from bert_jax.config.finetuning import TaskDataConfig
from bert_jax.tasks import glue


def write(directory, name: str, *lines: str, end: str = "\n"):
    file = directory / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes("".join(line.replace("  ", "\t") + end for line in lines).encode())
    return file


def load(task, directory, split="train", labels=None, **options):
    return glue.load(task, TaskDataConfig(dir=str(directory), **options), split, labels)
