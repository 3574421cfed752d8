"""What is learned: masked words with next sentences, masked words alone, or the next word (table 5 of the paper).

    bert-jax study objectives --data.path=STORE --task_data=DATA --workdir=DIR

DATA holds SST-2/ of GLUE, and ud/, the English-EWT treebank of Universal Dependencies. A BiLSTM is put on
taggers only here; the paper has one for every task.
"""

from bert_jax.config.studies import PARTS_OF_SPEECH, SENTIMENT, Arm, Measure, Published, Study

LEFT_TO_RIGHT = {"objective.name": "left_to_right", "model.direction": "left_to_right"}
ARMS = (
    Arm(name="bert", label="masked words, next sentences", options={"data.sentence_pairs": "nsp"}),
    Arm(name="no_nsp", label="masked words"),
    Arm(
        name="left_to_right",
        label="left to right",
        options=LEFT_TO_RIGHT,
    ),
    Arm(
        name="left_to_right_bilstm",
        label="left to right, BiLSTM on top",
        options=LEFT_TO_RIGHT,
        task_options={"features": "last", "train_encoder": True},
        tasks=("pos",),
    ),
)


def get_study() -> Study:
    names = [arm.name for arm in ARMS]
    figures = {
        "MNLI": (84.4, 83.9, 82.1, 82.1),
        "QNLI": (88.4, 84.9, 84.3, 84.1),
        "MRPC": (86.7, 86.5, 77.5, 75.7),
        "SST-2": (92.7, 92.6, 92.1, 91.6),
        "SQuAD F1": (88.5, 87.9, 77.8, 84.9),
    }
    return Study(
        title="Masked words or left to right",
        question="Does reading in both directions help, and does predicting the next sentence?",
        base="bert_study",
        arms=ARMS,
        tasks={"pos": PARTS_OF_SPEECH, "sst2": SENTIMENT},
        measures=(
            Measure(metric="accuracy", of="pos", title="parts of speech"),
            Measure(metric="accuracy", of="sst2", title="SST-2", beside="SST-2"),
        ),
        published=(
            Published(
                source="Devlin et al. 2019, table 5 (BERT-base, dev)",
                figures={column: dict(zip(names, rows, strict=True)) for column, rows in figures.items()},
            ),
        ),
    )
