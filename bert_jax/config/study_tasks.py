"""The fine-tunings that the shipped studies have in common, of seconds on two CPU cores; standard library only.

The directory that --task_data names holds ud/, the English-EWT treebank of Universal Dependencies (its dev part is
trained on and its test part measured, both are a few thousand sentences), and SST-2/ of GLUE.
"""

from bert_jax.config.finetuning import FinetuneConfig
from bert_jax.config.task_options import TaskDataConfig, TaskOptions

PARTS_OF_SPEECH = FinetuneConfig(
    task="ner",
    data=TaskDataConfig(train="ud/en_ewt-ud-dev.conllu", dev="ud/en_ewt-ud-test.conllu"),
    options=TaskOptions(max_length=64),
    epochs=4,
    learning_rate=1e-3,
    lstm_size=128,
)
SENTIMENT = FinetuneConfig(
    task="sst2",
    data=TaskDataConfig(dir="SST-2"),
    options=TaskOptions(max_length=64),
    epochs=1,
    batch_size=64,
    learning_rate=5e-4,
)
