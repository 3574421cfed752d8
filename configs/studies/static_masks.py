"""Masks that are drawn once (static) or again in every epoch (dynamic).

    bert-jax study static_masks --data.path=STORE --task_data=DATA --workdir=DIR

It takes epochs to tell: give a small store, which the steps read several times.
"""

from bert_jax.config.studies import Arm, Measure, Published, Study

ARMS = (
    Arm(name="dynamic"),
    Arm(name="static_10", label="static, 10 masks", options={"masking.static_masks": 10}),
    Arm(name="static_1", label="static, 1 mask", options={"masking.static_masks": 1}),
)


def get_study() -> Study:
    return Study(
        title="Static and dynamic masks",
        question="Does it help to mask other tokens each time a text is read?",
        base="bert_study",
        arms=ARMS,
        measures=(
            Measure(metric="mlm_accuracy", title="masked words"),
            Measure(metric="mlm_loss", title="loss of masked words"),
        ),
        published=(
            Published(
                source="Liu et al. 2019 (RoBERTa), table 1 (BERT-base, dev, medians of 5; static: 10 masks)",
                figures={
                    "SQuAD 2.0 F1": {"dynamic": 78.7, "static_10": 78.3},
                    "MNLI-m": {"dynamic": 84.0, "static_10": 84.3},
                    "SST-2": {"dynamic": 92.9, "static_10": 92.5},
                },
            ),
        ),
    )
