"""Fine-tuning, or a BiLSTM on features of the frozen encoder (table 7 of the paper).

    bert-jax study features --data.path=STORE --task_data=DATA --workdir=DIR

DATA holds ud/, the English-EWT treebank of Universal Dependencies, whose parts of speech stand in for the names of
CoNLL-2003. The encoder has four layers, since four is what some of the features read.
"""

from bert_jax.config.studies import PARTS_OF_SPEECH, Arm, Measure, Published, Study

FIGURES = {  # what is read: its figure in the paper
    "fine_tuning": 96.4,
    "embeddings": 91.0,
    "second_to_last": 95.6,
    "last": 94.9,
    "weighted_last_four": 95.9,
    "concat_last_four": 96.1,
    "weighted_all": 95.5,
}


def get_study() -> Study:
    return Study(
        title="Fine-tuning or features",
        question="How near do features of the frozen encoder come to fine-tuning, and which layers give the best?",
        base="bert_study",
        options={"model.num_layers": 4},
        arms=tuple(
            Arm(
                name=name,
                label=name.replace("_", " ").replace("fine tuning", "fine-tuning"),
                task_options={} if name == "fine_tuning" else {"features": name},
            )
            for name in FIGURES
        ),
        tasks={"pos": PARTS_OF_SPEECH},
        measures=(Measure(metric="accuracy", of="pos", title="parts of speech", beside="NER F1"),),
        published=(Published(source="Devlin et al. 2019, table 7 (CoNLL-2003, dev F1)", figures={"NER F1": FIGURES}),),
    )
