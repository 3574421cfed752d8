"""Spelling errors in the text that a model is pre-trained on, with clean targets.

    bert-jax study noise --data.path=STORE --task_data=DATA --workdir=DIR

DATA holds ud/, the English-EWT treebank of Universal Dependencies. Held-out words stand in clean text in all arms;
`bert-jax analyze noise` measures the models of the arms on text with errors.
"""

from bert_jax.config.studies import PARTS_OF_SPEECH, Arm, Measure, Study

ARMS = (
    Arm(name="clean"),
    Arm(name="two", label="2 % of the letters", options={"data.noise.rate": 0.02, "data.noise.reserve": 0.1}),
    Arm(name="ten", label="10 % of the letters", options={"data.noise.rate": 0.1, "data.noise.reserve": 0.25}),
)


def get_study() -> Study:
    return Study(
        title="Spelling errors in training",
        question="What do spelling errors in training cost on clean text?",
        base="bert_study",
        arms=ARMS,
        tasks={"pos": PARTS_OF_SPEECH},
        measures=(
            Measure(metric="mlm_accuracy", title="masked words"),
            Measure(metric="accuracy", of="pos", title="parts of speech"),
        ),
    )
