"""The second objective: next sentences, the order of sentences, or none.

    bert-jax study pairs --data.path=STORE --task_data=DATA --workdir=DIR

DATA holds SST-2/ of GLUE, and ud/, the English-EWT treebank of Universal Dependencies. Held-out words are predicted in
single texts in all arms.
"""

from bert_jax.config.studies import PARTS_OF_SPEECH, Arm, Measure, Published, Study

ARMS = (
    Arm(name="none", label="none"),
    Arm(name="nsp", label="next sentence", options={"data.sentence_pairs": "nsp"}),
    Arm(name="sop", label="sentence order", options={"data.sentence_pairs": "sop"}),
)


def get_study() -> Study:
    return Study(
        title="Next sentences, their order, or neither",
        question="Does a second objective on pairs of texts help the encoder?",
        base="bert_study",
        arms=ARMS,
        tasks={"pos": PARTS_OF_SPEECH},
        measures=(
            Measure(metric="mlm_accuracy", title="masked words", beside="masked words"),
            Measure(metric="next_sentence_accuracy", of="own", title="next sentence"),
            Measure(metric="sentence_order_accuracy", of="own", title="sentence order"),
            Measure(metric="accuracy", of="pos", title="parts of speech"),
        ),
        published=(
            Published(
                source="Lan et al. 2020 (ALBERT-base), table 5 (masked words and sentence pairs held out; dev)",
                figures={
                    "masked words": {"none": 54.9, "nsp": 54.5, "sop": 54.0},
                    "MNLI": {"none": 81.5, "nsp": 81.6, "sop": 82.0},
                    "SST-2": {"none": 89.9, "nsp": 91.1, "sop": 90.3},
                    "average": {"none": 79.0, "nsp": 79.2, "sop": 80.1},
                },
            ),
        ),
    )
