"""What is masked together: single tokens, whole words, or spans of words.

    bert-jax study units --data.path=STORE --task_data=DATA --workdir=DIR

DATA holds ud/, the English-EWT treebank of Universal Dependencies. Held-out words are
masked token by token in all arms.
"""

from bert_jax.config.studies import PARTS_OF_SPEECH, Arm, Measure, Study

ARMS = (
    Arm(name="token", label="tokens"),
    Arm(name="whole_word", label="whole words", options={"masking.unit": "whole_word"}),
    Arm(name="span", label="spans", options={"masking.unit": "span"}),
)


def get_study() -> Study:
    return Study(
        title="Tokens, whole words or spans",
        question="Does it help to mask what belongs together?",
        base="bert_study",
        arms=ARMS,
        tasks={"pos": PARTS_OF_SPEECH},
        measures=(
            Measure(metric="mlm_accuracy", title="masked tokens"),
            Measure(metric="accuracy", of="pos", title="parts of speech"),
        ),
    )
